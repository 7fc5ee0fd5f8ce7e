// q3_k.c - 256 elements in 110 bytes: third bits, 2-bit levels, 16 scales of 6 bits, f16 d;
// y = d (scale - 32) (level - 4).
#include "tensor/quant/kquant.h"

// Lower four bits in bytes 0 .. 7, upper two bits in bytes 8 .. 11. scales: 0 .. 63.
static void pack_scales(const uint8_t * scales, uint8_t * out) {
    memset(out, 0, 12);
    for (int s = 0; s < 16; s++) {
        out[s % 8] |= (uint8_t) ((scales[s] & 15) << 4 * (s / 8));
        out[8 + s % 4] |= (uint8_t) ((scales[s] >> 4) << 2 * (s / 4));
    }
}

// The value of scale s, -32 .. 31.
static int unpack_scale(const uint8_t * in, int s) {
    const int low = in[s % 8] >> 4 * (s / 8) & 15, high = in[8 + s % 4] >> 2 * (s / 4) & 3;
    return low + 16 * high - 32;
}

// 6-bit sub-block scales around 32 and their common step.
static float quantize_scales(const float * scales, uint8_t * out) {
    const float extreme = gb_fit_extreme(16, scales);
    const float factor = extreme != 0 ? -32 / extreme : 0;
    for (int s = 0; s < 16; s++) {
        out[s] = (uint8_t) (gb_fit_round(factor * scales[s], -32, 31) + 32);
    }
    return factor != 0 ? 1 / factor : 0;
}

static int nearest(float v) { return gb_fit_round(v, -4, 3); }

// Fits sub-blocks one by one, rounds their scales to 6 bits, and finds levels again for the stored
// scales.
static void quantize_block(const float * x, const float * importance, uint8_t * block) {
    uint8_t levels[GB_SUPER], stored[16];
    float w[GB_SUPER], scales[16], sums[16] = { 0 }, d;
    if (importance) {
        gb_k_importance(x, importance, 2, w);
        for (int s = 0; s < 16; s++) {
            scales[s] = gb_fit_symmetric(16, 4, x + 16 * s, w + 16 * s, levels + 16 * s);
            for (int i = 0; i < 16; i++) {
                sums[s] += w[16 * s + i];
            }
        }
        d = gb_fit_symmetric(16, 32, scales, sums, stored);
    } else {
        for (int s = 0; s < 16; s++) {
            scales[s] = gb_fit_symmetric_descent(16, 4, x + 16 * s, levels + 16 * s);
        }
        d = quantize_scales(scales, stored);
    }
    if (d == 0) {
        memset(stored, 0, sizeof(stored)); // all scale bytes are 0
    }
    const float wanted = d;
    d = gb_store_f16(block + GB_AT(q3_k, d), d);
    if (gb_scale_is_inexact(wanted, d, GB_REFITTED)) {
        struct gb_small_super b = {
            .n_sub = 16, .size = 16, .scale_low = -32, .scale_high = 31, .nearest = nearest, .d = wanted
        };
        gb_small_super_fit(&b, x, importance ? w : NULL, scales, NULL);
        d = gb_store_f16(block + GB_AT(q3_k, d), b.d);
        for (int s = 0; s < 16; s++) {
            stored[s] = (uint8_t) (b.scale[s] + 32);
        }
    }
    pack_scales(stored, block + GB_AT(q3_k, scales));
    for (int e = 0; e < GB_SUPER; e++) {
        const float scale = d * (float) (stored[e / 16] - 32);
        if (scale != 0) {
            levels[e] = (uint8_t) (gb_fit_round(x[e] / scale, -4, 3) + 4);
        }
    }
    memset(block + GB_AT(q3_k, qh), 0, 32);
    for (int e = 0; e < GB_SUPER; e++) {
        block[GB_AT(q3_k, qh) + e % 32] |= (uint8_t) ((levels[e] > 3) << e / 32);
    }
    gb_k_pack2(levels, block + GB_AT(q3_k, qs));
}

// The level is 0 .. 3 from two bits, plus 4 if the third bit is set, minus 4.
static void unpack_block(const uint8_t * block, struct gb_super * b) {
    b->d = gb_load_f16(block + GB_AT(q3_k, d));
    for (int s = 0; s < 16; s++) {
        b->scale[s] = (int16_t) unpack_scale(block + GB_AT(q3_k, scales), s);
    }
    gb_k_unpack2(block + GB_AT(q3_k, qs), b->level);
    for (int g = 0; g < 8; g++) {
        for (int l = 0; l < 32; l++) {
            b->level[32 * g + l] = (int8_t) (b->level[32 * g + l] + 4 * (block[GB_AT(q3_k, qh) + l] >> g & 1) - 4);
        }
    }
}

GB_K_FORMAT(q3_k, GB_F16_MAX * 32 * 3)
