// q5_0.c - 32 elements in 22 bytes: f16 d, fifth bits (4 bytes), 16 bytes of nibbles; y = (level - 16) d.
#include "tensor/quant/legacy.h"

static int nearest(float v) { return gb_fit_round(v, -16, 15); }

// Without importances the element of largest magnitude becomes level 0, which represents -16 d.
static void quantize_block(const float * x, const float * w, uint8_t * block, uint8_t * levels) {
    float d;
    if (w) {
        d = gb_fit_symmetric(GB_BLOCK, 16, x, w, levels);
    } else {
        d = gb_fit_extreme(GB_BLOCK, x) / -16;
        const float id = d != 0 ? 1 / d : 0;
        for (int i = 0; i < GB_BLOCK; i++) {  // rounds product and sum separately, like the gguf package
            levels[i] = gb_level(x[i] * id + 16.5f, 31);
        }
    }
    gb_store_symmetric(block, d, x, w, nearest, 16, levels);
    gb_pack_fifth(levels, block + GB_AT(q5_0, qh));
    gb_pack_nibbles(levels, block + GB_AT(q5_0, qs));
}

static void unpack_block(const uint8_t * block, struct gb_block * b) {
    b->d = gb_load_f16(block + GB_AT(q5_0, d));
    gb_unpack_nibbles(block + GB_AT(q5_0, qs), b->level);
    gb_unpack_fifth(block + GB_AT(q5_0, qh), b->level);
    for (int i = 0; i < GB_BLOCK; i++) {
        b->level[i] -= GB_ZERO(q5_0);
    }
}

GB_SYMMETRIC_FORMAT(q5_0, 1, 16 * GB_F16_MAX)
