// iq4_nl.c - 32 elements in 18 bytes: f16 d, 16 bytes of nibbles; y = d value[nibble].
#include "tensor/quant/iq4.h"
#include "tensor/quant/legacy.h"

// Without importances, larger numbers weigh more: sqrt(mean square + x^2).
static void quantize_block(const float * x, const float * w, uint8_t * block, uint8_t * levels) {
    const float * given = w;
    float squares[GB_BLOCK];
    if (w == NULL) {
        gb_fit_importance(GB_BLOCK, x, NULL, gb_fit_mean_square(GB_BLOCK, x), squares);
        w = squares;
    }
    const float wanted = gb_iq4_fit(x, w);
    float d = gb_store_f16(block + GB_AT(iq4_nl, d), wanted);
    if (gb_scale_is_inexact(wanted, d, GB_REFITTED)) {
        int8_t unused[GB_BLOCK];
        d = gb_store_f16(block + GB_AT(iq4_nl, d),
            gb_small_fit(GB_BLOCK, x, given, gb_iq4_nearest_value, wanted, 0, unused));
    }
    for (int i = 0; i < GB_BLOCK; i++) {
        levels[i] = gb_iq4_nearest(d != 0 ? x[i] / d : 0);
    }
    gb_pack_nibbles(levels, block + GB_AT(iq4_nl, qs));
}

static void unpack_block(const uint8_t * block, struct gb_block * b) {
    b->d = gb_load_f16(block + GB_AT(iq4_nl, d));
    gb_unpack_nibbles(block + GB_AT(iq4_nl, qs), b->level);
    for (int i = 0; i < GB_BLOCK; i++) {
        b->level[i] = gb_iq4_values[b->level[i]];
    }
}

GB_SYMMETRIC_FORMAT(iq4_nl, 0, 80 * GB_F16_MAX)
