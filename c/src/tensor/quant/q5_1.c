// q5_1.c - 32 elements in 24 bytes: f16 d, f16 m, fifth bits (4 bytes), 16 bytes of nibbles; y = level d + m.
#include "tensor/quant/legacy.h"

static int nearest(float v) { return gb_fit_round(v, 0, 31); }

// Without importance the least element becomes level 0 and the largest level 31.
static void quantize_block(const float * x, const float * w, uint8_t * block, uint8_t * levels) {
    float d, m;
    if (w) {
        d = gb_fit_affine(GB_BLOCK, 31, x, w, &gb_legacy_search, levels, &m);
        m = -m;
    } else {
        float high;
        gb_block_range(x, &m, &high);
        d = (high - m) / 31;
        const float id = d != 0 ? 1 / d : 0;
        for (int i = 0; i < GB_BLOCK; i++) {
            levels[i] = gb_level((x[i] - m) * id + 0.5f, 31);
        }
    }
    gb_store_affine(block, d, m, x, w, nearest, 31, levels);
    gb_pack_fifth(levels, block + GB_AT(q5_1, qh));
    gb_pack_nibbles(levels, block + GB_AT(q5_1, qs));
}

static void unpack_block(const uint8_t * block, struct gb_block * b) {
    b->d = gb_load_f16(block + GB_AT(q5_1, d));
    b->m = gb_load_f16(block + GB_AT(q5_1, m));
    gb_unpack_nibbles(block + GB_AT(q5_1, qs), b->level);
    gb_unpack_fifth(block + GB_AT(q5_1, qh), b->level);
}

GB_AFFINE_FORMAT(q5_1, 1)
