// fit.c - weighted least squares over a small set of candidate scales. For fixed levels l the best scale of x ~ s l is
// sum(w x l) / sum(w l^2); candidates differ in how the levels are rounded.
#include "tensor/quant/fit.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_BLOCK = 256 };

static int round_even(float v) { // to nearest, ties to even, as the specification asks
    return (int) lrintf(v);
}

static int clamp(int v, int low, int high) {
    return v < low ? low : v > high ? high : v;
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
        w[i] = importance[i] * sqrtf(sigma2 + x[i] * x[i]);
    }
}

// sum(w x l) and sum(w l^2) for the signed levels that `factor` gives.
static void symmetric_sums(int n, int n_levels, const float * x, const float * w, float factor, float * wxl, float * wll) {
    *wxl = *wll = 0;
    for (int i = 0; i < n; i++) {
        const float l = (float) clamp(round_even(factor * x[i]), -n_levels, n_levels - 1);
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
        levels[i] = (uint8_t) (clamp(round_even(factor * x[i]), -n_levels, n_levels - 1) + n_levels);
    }
    return scale;
}

static float affine_error(int n, const float * x, const float * w, const uint8_t * levels, float scale, float low, bool absolute) {
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

float gb_fit_affine(int n, int n_levels, const float * x, const float * w, const struct gb_fit_search * search, uint8_t * levels, float * minimum) {
    float low = 0, high = n > 0 ? x[0] : 0;
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
        levels[i] = (uint8_t) clamp(round_even(factor * (x[i] - low)), 0, n_levels);
    }
    float   best = affine_error(n, x, w, levels, scale, low, search->absolute);
    uint8_t tried[MAX_BLOCK];
    for (int t = 0; t <= search->steps; t++) {
        factor = (search->start + search->step * (float) t + (float) n_levels) / range;
        for (int i = 0; i < n; i++) {
            tried[i] = (uint8_t) clamp(round_even(factor * (x[i] - low)), 0, n_levels);
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
