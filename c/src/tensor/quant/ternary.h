// ternary.h - the common part of TQ1_0, TQ2_0 and Q2_0: levels 0, 1, 2 for -d, 0, d with d the
// largest magnitude. Importance is ignored.
#ifndef GB_TENSOR_QUANT_TERNARY_H
#define GB_TENSOR_QUANT_TERNARY_H

#include "tensor/quant/kquant.h"

// n: a multiple of 4. Returns d. NaN and infinities become 0.
static inline float gb_ternary_levels(int n, const float * x, uint8_t * levels) {
    float lanes[4] = { 0 }, d = 0;
    for (int e = 0; e < n; e += 4) {
        for (int k = 0; k < 4; k++) {
            const float magnitude = fabsf(x[e + k]);
            lanes[k] = magnitude > lanes[k] ? magnitude : lanes[k];
        }
    }
    for (int k = 0; k < 4; k++) {
        d = lanes[k] > d ? lanes[k] : d;
    }
    const float id = d != 0 ? 1 / d : 0;
    for (int e = 0; e < n; e++) {
        const float v = x[e] * id; // rounded half away from 0
        levels[e] = (uint8_t) (1 + (v >= 0.5f) - (v <= -0.5f));
    }
    return d;
}

// The level nearest to a quotient, for small.h.
static inline int gb_ternary_nearest(float v) { return gb_fit_round(v, -1, 1); }

// The levels of n numbers, at most GB_SUPER, and the stored d. Numbers of half of d become d or zero,
// so even a slightly larger d changes the result.
static inline float gb_ternary_quantize(int n, const float * x, uint8_t * levels) {
    const float d = gb_ternary_levels(n, x, levels);
    if (!gb_scale_is_inexact(d, gb_f16_to_f32(gb_f32_to_f16(d)), 127)) {
        return d;
    }
    int8_t chosen[GB_SUPER];
    const float other = gb_small_fit(n, x, NULL, gb_ternary_nearest, d, 0, chosen);
    for (int e = 0; e < n; e++) {
        levels[e] = (uint8_t) (chosen[e] + 1);
    }
    return other;
}

// Subtracts 1 from the unpacked levels and sets the scale, for TQ1_0 and TQ2_0. d: the bytes of the
// f16 scale in the block.
static inline void gb_ternary_center(const uint8_t * d, struct gb_super * b) {
    b->d = gb_load_f16(d);
    for (int s = 0; s < 16; s++) {
        b->scale[s] = 1;
    }
    for (int e = 0; e < GB_SUPER; e++) {
        b->level[e] -= 1;
    }
}

#endif // GB_TENSOR_QUANT_TERNARY_H
