// q45_k.h - the common part of Q4_K and Q5_K: eight sub-blocks of 32 with 6-bit scales and minima, and 4 or 5 bits a
// level.
#ifndef GB_TENSOR_QUANT_Q45_K_H
#define GB_TENSOR_QUANT_Q45_K_H

#include "tensor/quant/kquant.h"

// Writes d, dmin and the scales, and finds levels for the stored values. Without importance the
// weight of an element is the root mean square of its sub-block plus its own magnitude.
static inline void gb_q45_fit(int n_levels, gb_nearest_t nearest, const struct gb_fit_search * search, const float * x,
    const float * importance, uint8_t * block, uint8_t * levels) {
    float w[GB_SUPER], scales[8], mins[8];
    uint8_t sc[8], mn[8];
    if (importance) {
        gb_k_importance(x, importance, 1, w);
        search = &gb_k_importance_search;
    }
    for (int s = 0; s < 8; s++) {
        const float rms = sqrtf(gb_fit_mean_square(32, x + 32 * s));
        for (int i = 32 * s; !importance && i < 32 * (s + 1); i++) {
            w[i] = rms + fabsf(x[i]);
        }
        scales[s] = gb_fit_affine(32, n_levels, x + 32 * s, w + 32 * s, search, levels + 32 * s, &mins[s]);
    }
    float d = gb_k_quantize_scales(8, 63, scales, sc), dmin = gb_k_quantize_scales(8, 63, mins, mn);
    const bool small = gb_k_affine_is_small(d, dmin);
    if (small) {
        gb_k_affine_small(8, 32, 63, nearest, x, importance ? w : NULL, scales, mins, &d, &dmin, sc, mn, levels);
    }
    d = gb_store_f16(block + GB_AT(q4_k, d), d);
    dmin = gb_store_f16(block + GB_AT(q4_k, dmin), dmin);
    gb_k_pack_scales(sc, mn, block + GB_AT(q4_k, scales));
    if (!small) {
        gb_k_requantize_affine(8, 32, n_levels, x, d, dmin, sc, mn, levels);
    }
}

// Unpacks everything except the levels.
static inline void gb_q45_unpack(const uint8_t * block, struct gb_super * b) {
    uint8_t sc[8], mn[8];
    b->d = gb_load_f16(block + GB_AT(q4_k, d));
    b->dmin = gb_load_f16(block + GB_AT(q4_k, dmin));
    b->affine = true;
    gb_k_unpack_scales(block + GB_AT(q4_k, scales), sc, mn);
    for (int s = 0; s < 16; s++) {
        b->scale[s] = sc[s / 2];
        b->min[s] = mn[s / 2];
    }
}

#endif // GB_TENSOR_QUANT_Q45_K_H
