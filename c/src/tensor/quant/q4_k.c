// q4_k.c - 256 elements in 144 bytes: f16 d and dmin, 12 bytes of scales, 4-bit levels; y = d sc level - dmin mn.
#include "tensor/quant/q45_k.h"

static int nearest(float v) { return gb_fit_round(v, 0, 15); }

// Levels are 0 .. 15. The search is that of the format's reference algorithm.
static void quantize_block(const float * x, const float * importance, uint8_t * block) {
    static const struct gb_fit_search search = { -1, 0.1f, 20, false };
    uint8_t levels[GB_SUPER];
    gb_q45_fit(15, nearest, &search, x, importance, block, levels);
    gb_k_pack4(levels, block + GB_AT(q4_k, qs));
}

static void unpack_block(const uint8_t * block, struct gb_super * b) {
    gb_q45_unpack(block, b);
    gb_k_unpack4(block + GB_AT(q4_k, qs), b->level);
}

GB_K_FORMAT(q4_k, GB_F16_MAX * 63 / 2)
