// q6_k.c - 256 elements in 210 bytes: low nibbles, upper bit pairs, 16 signed byte scales, f16 d.
// y = d scale (level - 32).
#include "tensor/quant/kquant.h"

// The byte with the low four bits of an element.
static int low_byte(int e) { return GB_AT(q6_k, ql) + 64 * (e / 128) + 32 * (e % 64 / 32) + e % 32; }

// Elements of the second half of each 128 have the upper four bits of their byte.
static int low_shift(int e) { return e % 128 / 64 * 4; }

// levels: 0 .. 63. qh gets their upper two bits, packed as Q2_K packs its levels.
static void pack(const uint8_t * levels, uint8_t * block) {
    memset(block + GB_AT(q6_k, ql), 0, 128);
    for (int e = 0; e < GB_SUPER; e++) {
        block[low_byte(e)] |= (uint8_t) ((levels[e] & 15) << low_shift(e));
    }
    uint8_t upper[GB_SUPER];
    for (int e = 0; e < GB_SUPER; e++) {
        upper[e] = levels[e] >> 4;
    }
    gb_k_pack2(upper, block + GB_AT(q6_k, qh));
}

static int nearest(float v) { return gb_fit_round(v, -32, 31); }

// Weights without importance are x^2. The sub-block scale of largest magnitude becomes -128, so
// that d has its opposite sign.
static void quantize_block(const float * x, const float * importance, uint8_t * block) {
    uint8_t levels[GB_SUPER];
    float w[GB_SUPER], scales[16];
    for (int e = 0; e < GB_SUPER; e++) {
        w[e] = importance ? importance[e] : x[e] * x[e];
    }
    for (int s = 0; s < 16; s++) {
        scales[s] = gb_fit_symmetric(16, 32, x + 16 * s, w + 16 * s, levels + 16 * s);
    }
    const float extreme = gb_fit_extreme(16, scales);
    memset(block, 0, GB_BYTES(q6_k));
    if (!(fabsf(extreme) > 0) || isinf(extreme)) {
        return;
    }
    const float factor = -128 / extreme;
    float d = gb_store_f16(block + GB_AT(q6_k, d), 1 / factor);
    int8_t stored[16];
    for (int s = 0; s < 16; s++) {
        stored[s] = (int8_t) gb_fit_round(factor * scales[s], -128, 127);
    }
    if (gb_scale_is_inexact(1 / factor, d, GB_REFITTED)) {
        struct gb_small_super b = {
            .n_sub = 16, .size = 16, .scale_low = -128, .scale_high = 127, .nearest = nearest, .d = 1 / factor
        };
        gb_small_super_fit(&b, x, importance ? w : NULL, scales, NULL);
        d = gb_store_f16(block + GB_AT(q6_k, d), b.d);
        memcpy(stored, b.scale, 16);
    }
    memcpy(block + GB_AT(q6_k, scales), stored, 16);
    for (int e = 0; e < GB_SUPER; e++) {
        const float scale = d * (float) stored[e / 16];
        if (scale != 0) {
            levels[e] = (uint8_t) (gb_fit_round(x[e] / scale, -32, 31) + 32);
        }
    }
    pack(levels, block);
}

// The stored levels minus 32.
static void unpack_block(const uint8_t * block, struct gb_super * b) {
    b->d = gb_load_f16(block + GB_AT(q6_k, d));
    for (int s = 0; s < 16; s++) {
        b->scale[s] = (int8_t) block[GB_AT(q6_k, scales) + s];
    }
    gb_k_unpack2(block + GB_AT(q6_k, qh), b->level);
    for (int g = 0; g < GB_SUPER; g += 32) {
        const uint8_t * low = block + low_byte(g);
        const int shift = low_shift(g);
        for (int l = 0; l < 32; l++) {
            b->level[g + l] = (int8_t) ((low[l] >> shift & 15) + 16 * b->level[g + l] - 32);
        }
    }
}

GB_K_FORMAT(q6_k, GB_F16_MAX * 128 * 31)
