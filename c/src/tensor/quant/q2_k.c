// q2_k.c - 256 elements in 84 bytes: 16 scale and minimum pairs of 4 bits, 2-bit levels, f16 d and dmin; y = d sc level
// - dmin mn.
#include "tensor/quant/kquant.h"

static void fit_with_importance(const float * x, const float * importance, uint8_t * levels, uint8_t * sc, uint8_t * mn,
                                float * d, float * dmin) {
    float w[GB_SUPER], scales[16], mins[16], sums[16] = { 0 };
    gb_k_importance(x, importance, 1, w);
    for (int s = 0; s < 16; s++) {
        scales[s] = gb_fit_affine(16, 3, x + 16 * s, w + 16 * s, &gb_k_importance_search, levels + 16 * s, &mins[s]);
        for (int i = 0; i < 16; i++) {
            sums[s] += w[16 * s + i];
        }
    }
    *d    = gb_fit_positive(16, 15, scales, sums, sc);
    *dmin = gb_fit_positive(16, 15, mins, sums, mn);
}

static void fit_plain(const float * x, uint8_t * levels, uint8_t * sc, uint8_t * mn, float * d, float * dmin) {
    static const struct gb_fit_search search = { -0.5f, 0.1f, 15, true };
    float                             w[16], scales[16], mins[16];
    for (int s = 0; s < 16; s++) {
        for (int i = 0; i < 16; i++) {
            w[i] = fabsf(x[16 * s + i]);
        }
        scales[s] = gb_fit_affine(16, 3, x + 16 * s, w, &search, levels + 16 * s, &mins[s]);
    }
    *d    = gb_k_quantize_scales(16, 15, scales, sc);
    *dmin = gb_k_quantize_scales(16, 15, mins, mn);
}

static void quantize_block(const float * x, const float * importance, uint8_t * block) {
    uint8_t levels[GB_SUPER], sc[16], mn[16];
    float   d, dmin;
    if (importance) {
        fit_with_importance(x, importance, levels, sc, mn, &d, &dmin);
    } else {
        fit_plain(x, levels, sc, mn, &d, &dmin);
    }
    d    = gb_store_f16(block + 80, d);
    dmin = gb_store_f16(block + 82, dmin);
    for (int s = 0; s < 16; s++) {
        block[s] = (uint8_t) (sc[s] | mn[s] << 4);
    }
    gb_k_requantize_affine(16, 16, 3, x, d, dmin, sc, mn, levels);
    gb_k_pack2(levels, block + 16);
}

static void unpack_block(const uint8_t * block, struct gb_super * b) {
    b->d      = gb_load_f16(block + 80);
    b->dmin   = gb_load_f16(block + 82);
    b->affine = true;
    for (int s = 0; s < 16; s++) {
        b->scale[s] = block[s] & 15;
        b->min[s]   = block[s] >> 4;
    }
    gb_k_unpack2(block + 16, b->level);
}

GB_K_FORMAT(q2_K, 84)
