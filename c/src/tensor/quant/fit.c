// fit.c - weighted least squares over a small set of candidate scales. For fixed levels l the best scale of x ~ s l is
// sum(w x l) / sum(w l^2); candidates differ in how the levels are rounded.
#include "tensor/quant/fit.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_BLOCK = 256 };

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

void gb_fit_importance(int n, const float * x, const float * importance, float sigma2, float * w) {
    for (int i = 0; i < n; i++) {
        w[i] = (importance != NULL ? importance[i] : 1) * sqrtf(sigma2 + x[i] * x[i]);
    }
}

// sum(w x l) and sum(w l^2) for the signed levels that `factor` gives.
static void symmetric_sums(int n, int n_levels, const float * x, const float * w, float factor, float * wxl,
                           float * wll) {
    *wxl = *wll = 0;
    for (int i = 0; i < n; i++) {
        const float l = (float) gb_fit_round(factor * x[i], -n_levels, n_levels - 1);
        *wxl += w[i] * x[i] * l;
        *wll += w[i] * l * l;
    }
}

float gb_fit_symmetric(int n, int n_levels, const float * x, const float * w, uint8_t * levels) {
    const float extreme = gb_fit_extreme(n, x);
    if (!(fabsf(extreme) >= 1e-30f) || isinf(extreme)) {
        memset(levels, 0, (size_t) n);
        return 0;
    }
    float factor = (float) -n_levels / extreme;
    float wxl, wll;
    symmetric_sums(n, n_levels, x, w, factor, &wxl, &wll);
    float scale = wll > 0 ? wxl / wll : 0;
    float best  = scale * wxl;
    for (int t = -9; t <= 9; t++) {
        const float candidate = -((float) n_levels + 0.1f * (float) t) / extreme;
        symmetric_sums(n, n_levels, x, w, candidate, &wxl, &wll);
        if (t != 0 && wll > 0 && wxl * wxl > best * wll) {
            factor = candidate;
            scale  = wxl / wll;
            best   = scale * wxl;
        }
    }
    for (int i = 0; i < n; i++) {
        levels[i] = (uint8_t) (gb_fit_round(factor * x[i], -n_levels, n_levels - 1) + n_levels);
    }
    return scale;
}

static float affine_error(int n, const float * x, const float * w, const uint8_t * levels, float scale, float low,
                          bool absolute) {
    float error = 0;
    for (int i = 0; i < n; i++) {
        const float d = scale * (float) levels[i] + low - x[i];
        error += w[i] * (absolute ? fabsf(d) : d * d);
    }
    return error;
}

// The weighted regression of x on the levels; false when the levels are all equal.
static bool regress(int n, const float * x, const float * w, const uint8_t * levels, float * scale, float * low) {
    float sw = 0, swx = 0, swl = 0, swll = 0, swlx = 0;
    for (int i = 0; i < n; i++) {
        const float l = (float) levels[i];
        sw += w[i];
        swx += w[i] * x[i];
        swl += w[i] * l;
        swll += w[i] * l * l;
        swlx += w[i] * l * x[i];
    }
    const float d = sw * swll - swl * swl;
    if (!(d > 0)) {
        return false;
    }
    *scale = (sw * swlx - swx * swl) / d;
    *low   = (swll * swx - swl * swlx) / d;
    if (*low > 0) {
        *low   = 0;
        *scale = swlx / swll;
    }
    return true;
}

float gb_fit_affine(int n, int n_levels, const float * x, const float * w, const struct gb_fit_search * search,
                    uint8_t * levels, float * minimum) {
    if (n <= 0) {
        *minimum = 0;
        return 0;
    }
    float low = 0, high = x[0];
    for (int i = 0; i < n; i++) {
        low  = GB_MIN(low, x[i]);
        high = GB_MAX(high, x[i]);
    }
    if (!(high > low) || isinf(high - low)) {
        memset(levels, 0, (size_t) n);
        *minimum = isinf(low) ? 0 : -low;
        return 0;
    }
    const float range  = high - low;
    float       factor = (float) n_levels / range;
    float       scale  = 1 / factor;
    for (int i = 0; i < n; i++) {
        levels[i] = (uint8_t) gb_fit_round(factor * (x[i] - low), 0, n_levels);
    }
    float   best = affine_error(n, x, w, levels, scale, low, search->absolute);
    uint8_t tried[MAX_BLOCK];
    for (int t = 0; t <= search->steps; t++) {
        factor = (search->start + search->step * (float) t + (float) n_levels) / range;
        for (int i = 0; i < n; i++) {
            tried[i] = (uint8_t) gb_fit_round(factor * (x[i] - low), 0, n_levels);
        }
        float s, m;
        if (!regress(n, x, w, tried, &s, &m)) {
            continue;
        }
        const float error = affine_error(n, x, w, tried, s, m, search->absolute);
        if (error < best) {
            memcpy(levels, tried, (size_t) n);
            best  = error;
            scale = s;
            low   = m;
        }
    }
    *minimum = -low;
    return scale;
}

// One pass of coordinate descent over signed levels in [low, high]: for each element, the level that the scale fitted
// to the others asks for is taken when it improves the fit. wxl, wll: sums over the current levels. Returns whether any
// level changed.
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
            l[i]    = (int8_t) next;
            *wxl    = p;
            *wll    = q;
            changed = true;
        }
    }
    return changed;
}

enum { DESCENT_PASSES = 5 };

float gb_fit_symmetric_descent(int n, int n_levels, const float * x, uint8_t * levels) {
    const float extreme = gb_fit_extreme(n, x);
    if (extreme == 0 || isinf(extreme)) {
        memset(levels, 0, (size_t) n);
        return 0;
    }
    float  w[MAX_BLOCK], wxl = 0, wll = 0;
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

static float positive_error(int n, int n_levels, const float * x, const float * w, float factor) {
    float error = 0;
    for (int i = 0; i < n; i++) {
        const float d = x[i] - (float) gb_fit_round(factor * x[i], 0, n_levels) / factor;
        error += w[i] * d * d;
    }
    return error;
}

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
    float best   = positive_error(n, n_levels, x, w, factor);
    for (int t = -4; t <= 4; t++) {
        const float candidate = (0.1f * (float) t + (float) n_levels) / high;
        const float error     = t == 0 ? best : positive_error(n, n_levels, x, w, candidate);
        if (error < best) {
            best   = error;
            factor = candidate;
        }
    }
    float  wxl = 0, wll = 0;
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
