// iq4_xs.c - 256 elements in 136 bytes: f16 d, 8 scales of 6 bits (upper bits, then lower), nibbles.
// y = d (scale - 32) value[nibble].
#include "tensor/quant/iq4.h"
#include "tensor/quant/kquant.h"

// scales: 0 .. 63, which represent -32 .. 31.
static void pack_scales(const uint8_t * scales, uint8_t * block) {
    memset(block + GB_AT(iq4_xs, scales_high), 0, GB_SIZE(iq4_xs, scales_high));
    memset(block + GB_AT(iq4_xs, scales_low), 0, GB_SIZE(iq4_xs, scales_low));
    for (int s = 0; s < 8; s++) {
        block[GB_AT(iq4_xs, scales_low) + s / 2] |= (uint8_t) ((scales[s] & 15) << 4 * (s % 2));
        block[GB_AT(iq4_xs, scales_high) + s / 4] |= (uint8_t) (scales[s] >> 4 << 2 * (s % 4));
    }
}

// The first half of each 32 elements in the low nibbles, the second in the high ones.
static void pack_levels(const uint8_t * levels, uint8_t * qs) {
    for (int e = 0; e < GB_SUPER / 2; e++) {
        const uint8_t * l = levels + e / 16 * 32 + e % 16;
        qs[e] = (uint8_t) (l[0] | l[16] << 4);
    }
}

// The nearest levels for d and the stored scales. For a scale of 0, the level nearest to 0.
static void nearest_levels(const float * x, float d, const uint8_t * scales, uint8_t * levels) {
    for (int e = 0; e < GB_SUPER; e++) {
        const float scale = d * (float) (scales[e / 32] - 32);
        levels[e] = gb_iq4_nearest(scale != 0 ? x[e] / scale : 0);
    }
}

// The least-squares d for the given levels and scales.
static float refit(const float * x, const float * w, float d, const uint8_t * scales, const uint8_t * levels) {
    float wxv = 0, wvv = 0;
    for (int e = 0; e < GB_SUPER; e++) {
        const float v = (float) ((scales[e / 32] - 32) * gb_iq4_values[levels[e]]);
        wxv += w[e] * x[e] * v;
        wvv += w[e] * v * v;
    }
    return wvv > 0 ? wxv / wvv : d;
}

// Fits sub-blocks one by one. The scale of largest magnitude becomes about -32. Then fits d to the
// levels again.
static void quantize_block(const float * x, const float * importance, uint8_t * block) {
    uint8_t levels[GB_SUPER], stored[8];
    float w[GB_SUPER], scales[8];
    gb_k_importance(x, importance, 1, w);
    for (int s = 0; s < 8; s++) {
        scales[s] = gb_iq4_fit(x + 32 * s, w + 32 * s);
    }
    const float wanted = gb_fit_extreme(8, scales) / -32;
    float d = gb_store_f16(block + GB_AT(iq4_xs, d), wanted);
    if (gb_scale_is_inexact(wanted, d, GB_REFITTED)) {
        struct gb_small_super b = {
            .n_sub = 8, .size = 32, .scale_low = -32, .scale_high = 31, .nearest = gb_iq4_nearest_value, .d = wanted
        };
        gb_small_super_fit(&b, x, importance ? w : NULL, scales, NULL);
        d = gb_store_f16(block + GB_AT(iq4_xs, d), b.d);
        for (int s = 0; s < 8; s++) {
            stored[s] = (uint8_t) (b.scale[s] + 32);
        }
    } else {
        for (int s = 0; s < 8; s++) {
            stored[s] = (uint8_t) (d != 0 ? gb_fit_round(scales[s] / d, -32, 31) + 32 : 32);
        }
        nearest_levels(x, d, stored, levels);
        d = gb_store_f16(block + GB_AT(iq4_xs, d), refit(x, w, d, stored, levels));
    }
    nearest_levels(x, d, stored, levels);
    pack_scales(stored, block);
    pack_levels(levels, block + GB_AT(iq4_xs, qs));
}

static void unpack_block(const uint8_t * block, struct gb_super * b) {
    b->d = gb_load_f16(block + GB_AT(iq4_xs, d));
    for (int s = 0; s < 16; s++) {
        const int i = s / 2, low = block[GB_AT(iq4_xs, scales_low) + i / 2] >> 4 * (i % 2) & 15,
                  high = block[GB_AT(iq4_xs, scales_high) + i / 4] >> 2 * (i % 4) & 3;
        b->scale[s] = (int16_t) (low + 16 * high - 32);
    }
    for (int e = 0; e < GB_SUPER / 2; e++) {
        int8_t * level = b->level + e / 16 * 32 + e % 16;
        level[0] = gb_iq4_values[block[GB_AT(iq4_xs, qs) + e] & 15];
        level[16] = gb_iq4_values[block[GB_AT(iq4_xs, qs) + e] >> 4];
    }
}

GB_K_FORMAT(iq4_xs, GB_F16_MAX * 32 * 80)
