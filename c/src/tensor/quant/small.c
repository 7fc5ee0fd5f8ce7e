// small.c - chooses scales and levels together if scales have few possible values (small.h). Tries
// every candidate with its own best levels, and uses the candidate with the least squared error.
#include "tensor/quant/small.h"

#include <string.h>

#include "base/fp16.h"
#include "base/mem.h"

// Rounds to nearest, then steps back if the result exceeds the number.
float gb_f16_inward(float v) {
    uint16_t h = gb_f32_to_f16(fabsf(v));
    h = (uint16_t) (h - (gb_f16_to_f32(h) > fabsf(v)));
    return copysignf(gb_f16_to_f32(h), v);
}

float gb_f16_outward(float v) {
    uint16_t h = gb_f32_to_f16(fabsf(v));
    h = (uint16_t) (h + (gb_f16_to_f32(h) < fabsf(v)));
    return copysignf(gb_f16_to_f32(h), v);
}

// Writes the nearest levels (d 0: those nearest to 0) and returns the weighted squared error.
static float choose_levels(int n, const float * x, const float * w, gb_nearest_t nearest, float d, float m,
    int8_t * levels) {
    float error = 0;
    for (int i = 0; i < n; i++) {
        levels[i] = (int8_t) nearest(d != 0 ? (x[i] - m) / d : 0);
        const float e = d * (float) levels[i] + m - x[i];
        error += (w != NULL ? w[i] * e : e) * e;
    }
    return error;
}

// On equal errors uses the number nearer to zero.
float gb_small_fit(int n, const float * x, const float * w, gb_nearest_t nearest, float d, float m, int8_t * levels) {
    const float inward = gb_f16_inward(d), outward = gb_f16_outward(d);
    const float error = choose_levels(n, x, w, nearest, inward, m, levels);
    if (choose_levels(n, x, w, nearest, outward, m, levels) < error) {
        return outward;
    }
    choose_levels(n, x, w, nearest, inward, m, levels);
    return inward;
}

// The integers to try for a quotient: 0 and the integers on both sides of it.
static int candidates(float quotient, int low, int high, int * out) {
    const float below = floorf(quotient);
    int n = 0;
    out[n++] = 0;
    for (int k = 0; k < 2; k++) {
        const float v = below + (float) k;
        const int i = v<(float) low ? low : v>(float) high ? high : (int) v;
        if (i != out[n - 1] && i != 0) {
            out[n++] = i;
        }
    }
    return n;
}

// Chooses the integers and levels of sub-block s for the d and dmin of b.
static void fit_sub(struct gb_small_super * b, int s, const float * x, const float * w, float scale, float min) {
    int sc[3] = { 0 }, mn[3] = { 0 };
    int8_t trial[256];
    float best = INFINITY;
    const int n_sc = b->d != 0 ? candidates(scale / b->d, b->scale_low, b->scale_high, sc) : 1;
    const int n_mn = b->dmin != 0 ? candidates(min / b->dmin, 0, b->min_high, mn) : 1;
    for (int i = 0; i < n_sc; i++) {
        for (int k = 0; k < n_mn; k++) {
            const float error =
                choose_levels(b->size, x, w, b->nearest, b->d * (float) sc[i], -b->dmin * (float) mn[k], trial);
            if (error < best) {
                best = error;
                b->scale[s] = (int8_t) sc[i];
                b->min[s] = (int8_t) mn[k];
                memcpy(b->level + s * b->size, trial, (size_t) b->size);
            }
        }
    }
}

// Rounds scales away from zero, so that the largest sub-block stays in range. The integers of the
// sub-blocks compensate.
void gb_small_super_fit(struct gb_small_super * b, const float * x, const float * w, const float * scales,
    const float * mins) {
    b->d = gb_f16_outward(b->d);
    b->dmin = b->min_high > 0 ? gb_f16_outward(b->dmin) : 0;
    memset(b->scale, 0, sizeof(b->scale));
    memset(b->min, 0, sizeof(b->min));
    memset(b->level, 0, sizeof(b->level));
    for (int s = 0; s < b->n_sub; s++) {
        const int i = s * b->size;
        fit_sub(b, s, x + i, w != NULL ? w + i : NULL, scales[s], b->min_high > 0 ? mins[s] : 0);
    }
}
