// q4_1.c - 32 elements in 20 bytes: f16 d, f16 m, 16 bytes of nibbles; y = level d + m.
#include "tensor/quant/legacy.h"

static int nearest(float v) { return gb_fit_round(v, 0, 15); }

// Without importance the least element becomes level 0 and the largest level 15.
static void quantize_block(const float * x, const float * w, uint8_t * block, uint8_t * levels) {
    float d, m;
    if (w) {
        d = gb_fit_affine(GB_BLOCK, 15, x, w, &gb_legacy_search, levels, &m);
        m = -m;
    } else {
        float high;
        gb_block_range(x, &m, &high);
        d = (high - m) / 15;
        const float id = d != 0 ? 1 / d : 0;
        for (int i = 0; i < GB_BLOCK; i++) {
            levels[i] = gb_level((x[i] - m) * id + 0.5f, 15);
        }
    }
    gb_store_affine(block, d, m, x, w, nearest, 15, levels);
    gb_pack_nibbles(levels, block + GB_AT(q4_1, qs));
}

static void unpack_block(const uint8_t * block, struct gb_block * b) {
    b->d = gb_load_f16(block + GB_AT(q4_1, d));
    b->m = gb_load_f16(block + GB_AT(q4_1, m));
    gb_unpack_nibbles(block + GB_AT(q4_1, qs), b->level);
}

GB_AFFINE_FORMAT(q4_1, 0)
