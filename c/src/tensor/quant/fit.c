// fit.c - weighted least squares over a small set of candidate scales. For fixed levels l the best
// scale of x ~ s l is sum(w x l) / sum(w l^2). Candidates differ in the rounding of the levels.
#include "tensor/quant/fit.h"

#include <math.h>
#include <string.h>

#include "base/fp16.h"
#include "base/mem.h"

enum { MAX_BLOCK = 256 };

// Tries four candidates at a time, one in each lane of a vector. Each candidate's sums are added in
// order, so the results equal those of one candidate after another.
enum { LANES = 4 };

// gb_fit_round as a float, for low and high within 2^22. The large number leaves no bits for a
// fraction.
static inline float round_level(float v, float low, float high) {
    const float large = 12582912.0f;
    v = v > low ? v : low;
    v = v < high ? v : high;
    return v + large - large;
}

int gb_fit_round(float v, int low, int high) {
    if (!(v > (float) low)) {
        return low;
    }
    return v >= (float) high ? high : (int) lrintf(v);
}

float gb_fit_extreme(int n, const float * x) {
    float extreme = 0;
    for (int i = 0; i < n; i++) {
        if (fabsf(x[i]) > fabsf(extreme)) {
            extreme = x[i];
        }
    }
    return extreme;
}

float gb_fit_mean_square(int64_t n, const float * x) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += x[i] * x[i];
    }
    return n > 0 ? sum / (float) n : 0;
}

// The power of two near 1 / sqrt(v). The largest one for 0, the smallest for infinity.
static float inverse_root(float v) {
    const int exponent = (int) (gb_f32_bits(v) >> 23 & 255) - 127;
    return gb_f32_from_bits((uint32_t) (127 - exponent / 2) << 23);
}

void gb_fit_importance(int n, const float * x, const float * importance, float sigma2, float * w) {
    const float unit = importance != NULL ? inverse_root(sigma2) : 1;
    for (int i = 0; i < n; i++) {
        w[i] = (importance != NULL ? importance[i] : 1) * (unit * sqrtf(sigma2 + x[i] * x[i]));
    }
}

// sum(w x l) and sum(w l^2) for the signed levels that each of the factors gives.
static void symmetric_sums(int n, int n_levels, const float * x, const float * w, const float * factor, float * wxl,
    float * wll) {
    float p[LANES] = { 0 }, q[LANES] = { 0 };
    for (int i = 0; i < n; i++) {
        const float wx = w[i] * x[i];
        for (int k = 0; k < LANES; k++) {
            const float l = round_level(factor[k] * x[i], (float) -n_levels, (float) (n_levels - 1));
            p[k] += wx * l;
            q[k] += w[i] * l * l;
        }
    }
    memcpy(wxl, p, sizeof(p));
    memcpy(wll, q, sizeof(q));
}

// Blocks of zeros, of numbers below 1e-30 and of infinities have levels 0 and scale 0.
float gb_fit_symmetric(int n, int n_levels, const float * x, const float * w, uint8_t * levels) {
    const float extreme = gb_fit_extreme(n, x);
    if (!(fabsf(extreme) >= 1e-30f) || isinf(extreme)) {
        memset(levels, 0, (size_t) n);
        return 0;
    }
    // First the plain factor, then 19 factors around it, which include it again.
    float best_factor = 0, scale = 0, best = 0;
    for (int t = 0; t < 20; t += LANES) {
        float factor[LANES], wxl[LANES], wll[LANES];
        for (int k = 0; k < LANES; k++) {
            factor[k] =
                t + k == 0 ? (float) -n_levels / extreme : -((float) n_levels + 0.1f * (float) (t + k - 10)) / extreme;
        }
        symmetric_sums(n, n_levels, x, w, factor, wxl, wll);
        for (int k = 0; k < LANES; k++) {
            const bool first = t + k == 0;
            if (first || (t + k != 10 && wll[k] > 0 && wxl[k] * wxl[k] > best * wll[k])) {
                best_factor = factor[k];
                scale = wll[k] > 0 ? wxl[k] / wll[k] : 0;
                best = scale * wxl[k];
            }
        }
    }
    for (int i = 0; i < n; i++) {
        levels[i] = (uint8_t) (gb_fit_round(best_factor * x[i], -n_levels, n_levels - 1) + n_levels);
    }
    return scale;
}

// The weighted error of scale level + low, in squares or absolute values.
static float affine_error(int n, const float * x, const float * w, const uint8_t * levels, float scale, float low,
    bool absolute) {
    float error = 0;
    for (int i = 0; i < n; i++) {
        const float d = scale * (float) levels[i] + low - x[i];
        error += w[i] * (absolute ? fabsf(d) : d * d);
    }
    return error;
}

// Data shared by the trials of one block. `sw` and `swx` do not depend on the levels.
struct affine {
    int n, n_levels;
    const float * x;
    const float * w;
    float sw, swx; // sums of w, of w x
    bool absolute;
};

// Four factors, each with its levels, the weighted regression of x on these levels, and its error.
// The error is infinite if all levels are equal.
struct trials {
    float factor[LANES], scale[LANES], low[LANES], error[LANES];
    float level[MAX_BLOCK][LANES];
};

// Weighted linear regression of x on the levels, from its sums. low is at most 0, because *minimum
// is never negative.
static void regress(const struct affine * a, float swl, float swll, float swlx, float * scale, float * low) {
    const float d = a->sw * swll - swl * swl;
    if (!(d > 0)) {
        *scale = *low = INFINITY;
        return;
    }
    *scale = (a->sw * swlx - a->swx * swl) / d;
    *low = (swll * a->swx - swl * swlx) / d;
    if (*low > 0) {
        *low = 0;
        *scale = swlx / swll;
    }
}

// Fills levels, regressions and errors of the trials for their factors, with levels counted from `low`.
static void try_factors(const struct affine * a, float low, struct trials * t) {
    float swl[LANES] = { 0 }, swll[LANES] = { 0 }, swlx[LANES] = { 0 }, error[LANES] = { 0 };
    for (int i = 0; i < a->n; i++) {
        for (int k = 0; k < LANES; k++) {
            const float l = round_level(t->factor[k] * (a->x[i] - low), 0, (float) a->n_levels);
            const float wl = a->w[i] * l;
            t->level[i][k] = l;
            swl[k] += wl;
            swll[k] += wl * l;
            swlx[k] += wl * a->x[i];
        }
    }
    for (int k = 0; k < LANES; k++) {
        regress(a, swl[k], swll[k], swlx[k], &t->scale[k], &t->low[k]);
    }
    for (int i = 0; i < a->n; i++) {
        for (int k = 0; k < LANES; k++) {
            const float d = t->scale[k] * t->level[i][k] + t->low[k] - a->x[i];
            error[k] += a->w[i] * (a->absolute ? fabsf(d) : d * d);
        }
    }
    memcpy(t->error, error, sizeof(error));
}

// The plain division of the range comes first. A trial replaces it only if its error is smaller.
float gb_fit_affine(int n, int n_levels, const float * x, const float * w, const struct gb_fit_search * search,
    uint8_t * levels, float * minimum) {
    if (n <= 0) {
        *minimum = 0;
        return 0;
    }
    float low = 0, high = x[0];
    for (int i = 0; i < n; i++) {
        low = GB_MIN(low, x[i]);
        high = GB_MAX(high, x[i]);
    }
    if (!(high > low) || isinf(high - low)) {
        memset(levels, 0, (size_t) n);
        *minimum = isinf(low) ? 0 : -low;
        return 0;
    }
    const float factor = (float) n_levels / (high - low);
    float scale = 1 / factor;
    for (int i = 0; i < n; i++) {
        levels[i] = (uint8_t) gb_fit_round(factor * (x[i] - low), 0, n_levels);
    }
    float best = affine_error(n, x, w, levels, scale, low, search->absolute);
    struct affine a = { n, n_levels, x, w, 0, 0, search->absolute };
    for (int i = 0; i < n; i++) {
        a.sw += w[i];
        a.swx += w[i] * x[i];
    }
    struct trials t;
    for (int done = 0; done <= search->steps;) {  // after a success the next trials count levels from the new low
        for (int k = 0; k < LANES; k++) {
            t.factor[k] = (search->start + search->step * (float) (done + k) + (float) n_levels) / (high - low);
        }
        try_factors(&a, low, &t);
        for (int k = 0, end = GB_MIN(LANES, search->steps + 1 - done); k < end; k++) {
            done++;
            if (t.error[k] < best) {
                for (int i = 0; i < n; i++) {
                    levels[i] = (uint8_t) t.level[i][k];
                }
                best = t.error[k];
                scale = t.scale[k];
                low = t.low[k];
                break;
            }
        }
    }
    *minimum = -low;
    return scale;
}

// One pass of coordinate descent over signed levels in [low, high]. For each element, fits the
// scale to the other elements, and takes the nearest level of that scale if it improves the fit.
// wxl, wll: sums over the current levels. True if a level changed.
static bool descend(int n, int low, int high, const float * x, const float * w, int8_t * l, float * wxl, float * wll) {
    bool changed = false;
    for (int i = 0; i < n; i++) {
        float p = *wxl - w[i] * x[i] * (float) l[i];
        float q = *wll - w[i] * (float) l[i] * (float) l[i];
        if (!(p > 0) || (low == 0 && !(q > 0))) {
            continue;
        }
        const int next = gb_fit_round(x[i] * q / p, low, high);
        if (next == l[i]) {
            continue;
        }
        p += w[i] * x[i] * (float) next;
        q += w[i] * (float) next * (float) next;
        if (q > 0 && p * p * *wll > *wxl * *wxl * q) {
            l[i] = (int8_t) next;
            *wxl = p;
            *wll = q;
            changed = true;
        }
    }
    return changed;
}

// The maximum number of passes, even if a block still changes.
enum { DESCENT_PASSES = 5 };

// Starts from the levels of the plain factor.
float gb_fit_symmetric_descent(int n, int n_levels, const float * x, uint8_t * levels) {
    const float extreme = gb_fit_extreme(n, x);
    if (extreme == 0 || isinf(extreme)) {
        memset(levels, 0, (size_t) n);
        return 0;
    }
    float w[MAX_BLOCK], wxl = 0, wll = 0;
    int8_t l[MAX_BLOCK];
    for (int i = 0; i < n; i++) {
        w[i] = x[i] * x[i];
        l[i] = (int8_t) gb_fit_round((float) -n_levels / extreme * x[i], -n_levels, n_levels - 1);
        wxl += w[i] * x[i] * (float) l[i];
        wll += w[i] * (float) l[i] * (float) l[i];
    }
    for (int pass = 0; pass < DESCENT_PASSES && descend(n, -n_levels, n_levels - 1, x, w, l, &wxl, &wll); pass++) {
    }
    for (int i = 0; i < n; i++) {
        levels[i] = (uint8_t) (l[i] + n_levels);
    }
    return wll > 0 ? wxl / wll : 0;
}

// The weighted squared error of rounding to levels 0 .. n_levels with a given factor.
static float positive_error(int n, int n_levels, const float * x, const float * w, float factor) {
    float error = 0;
    for (int i = 0; i < n; i++) {
        const float d = x[i] - (float) gb_fit_round(factor * x[i], 0, n_levels) / factor;
        error += w[i] * d * d;
    }
    return error;
}

// The best of nine factors around the plain one, then coordinate descent over its levels.
float gb_fit_positive(int n, int n_levels, const float * x, const float * w, uint8_t * levels) {
    float high = 0;
    for (int i = 0; i < n; i++) {
        high = GB_MAX(high, x[i]);
    }
    if (high == 0 || isinf(high)) {
        memset(levels, 0, (size_t) n);
        return 0;
    }
    float factor = (float) n_levels / high;
    float best = positive_error(n, n_levels, x, w, factor);
    for (int t = -4; t <= 4; t++) {
        const float candidate = (0.1f * (float) t + (float) n_levels) / high;
        const float error = t == 0 ? best : positive_error(n, n_levels, x, w, candidate);
        if (error < best) {
            best = error;
            factor = candidate;
        }
    }
    float wxl = 0, wll = 0;
    int8_t l[MAX_BLOCK];
    for (int i = 0; i < n; i++) {
        l[i] = (int8_t) gb_fit_round(factor * x[i], 0, n_levels);
        wxl += w[i] * x[i] * (float) l[i];
        wll += w[i] * (float) l[i] * (float) l[i];
    }
    for (int pass = 0; pass < DESCENT_PASSES && descend(n, 0, n_levels, x, w, l, &wxl, &wll); pass++) {
    }
    for (int i = 0; i < n; i++) {
        levels[i] = (uint8_t) l[i];
    }
    return wll > 0 ? wxl / wll : 0;
}
