// q5_k.c - 256 elements in 176 bytes: f16 d and dmin, 12 bytes of scales, fifth bits, 4-bit levels.
// y = d sc level - dmin mn.
#include "tensor/quant/q45_k.h"

static int nearest(float v) { return gb_fit_round(v, 0, 31); }

// Levels are 0 .. 31; bit 4 of element e is bit e / 32 of qh[e mod 32].
static void quantize_block(const float * x, const float * importance, uint8_t * block) {
    static const struct gb_fit_search search = { -0.5f, 0.1f, 15, false };
    uint8_t levels[GB_SUPER];
    gb_q45_fit(31, nearest, &search, x, importance, block, levels);
    memset(block + GB_AT(q5_k, qh), 0, 32);
    for (int e = 0; e < GB_SUPER; e++) {
        block[GB_AT(q5_k, qh) + e % 32] |= (uint8_t) ((levels[e] >> 4) << e / 32);
    }
    gb_k_pack4(levels, block + GB_AT(q5_k, qs));
}

static void unpack_block(const uint8_t * block, struct gb_super * b) {
    gb_q45_unpack(block, b);
    gb_k_unpack4(block + GB_AT(q5_k, qs), b->level);
    for (int g = 0; g < 8; g++) {
        for (int l = 0; l < 32; l++) {
            b->level[32 * g + l] = (int8_t) (b->level[32 * g + l] | (block[GB_AT(q5_k, qh) + l] >> g & 1) << 4);
        }
    }
}

GB_K_FORMAT(q5_k, GB_F16_MAX * 63 / 2)
