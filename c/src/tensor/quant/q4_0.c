// q4_0.c - 32 elements in 18 bytes: f16 d, 16 bytes of nibbles; y = (level - 8) d.
#include "tensor/quant/legacy.h"

static int nearest(float v) { return gb_fit_round(v, -8, 7); }

// Without importances the element of largest magnitude becomes level 0, which represents -8 d.
static void quantize_block(const float * x, const float * w, uint8_t * block, uint8_t * levels) {
    float d;
    if (w) {
        d = gb_fit_symmetric(GB_BLOCK, 8, x, w, levels);
    } else {
        d = gb_fit_extreme(GB_BLOCK, x) / -8;
        const float id = d != 0 ? 1 / d : 0;
        for (int i = 0; i < GB_BLOCK; i++) {  // rounds product and sum separately, like the gguf package
            levels[i] = gb_level(x[i] * id + 8.5f, 15);
        }
    }
    gb_store_symmetric(block, d, x, w, nearest, 8, levels);
    gb_pack_nibbles(levels, block + GB_AT(q4_0, qs));
}

static void unpack_block(const uint8_t * block, struct gb_block * b) {
    b->d = gb_load_f16(block + GB_AT(q4_0, d));
    gb_unpack_nibbles(block + GB_AT(q4_0, qs), b->level);
    for (int i = 0; i < GB_BLOCK; i++) {
        b->level[i] -= GB_ZERO(q4_0);
    }
}

GB_SYMMETRIC_FORMAT(q4_0, 0, 8 * GB_F16_MAX)
