// iq1_s.c - 256 elements in 50 bytes: y = d / 8 (2 scale + 1) (level + offset). In the order of the bytes:
//   f16 d
//   for each 8 elements   the lower 8 bits of a row number
//   for each 32 elements  16 bits: 4 times the upper 3 bits, a scale of 3 bits, the sign of the offset
#include "tensor/quant/grid.h"

static const struct gb_grid_format format = {
    .grid = &gb_grid_iq1, .per_scale = 32, .n_scales = 8, .unit = 0.125f, .per_offset = 32, .low = 0.85f, .high = 2.8f
};

static void read(const uint8_t * block, struct gb_grid_block * g) {
    g->d = gb_load_f16(block + GB_AT(iq1_s, d));
    for (int i = 0; i < 8; i++) {
        const uint32_t bits = gb_load_u16(block + GB_AT(iq1_s, qh) + 2 * i);
        g->scale[i] = bits >> 12 & 7;
        for (int l = 0; l < 4; l++) {
            g->row[4 * i + l] = (uint16_t) (block[GB_AT(iq1_s, qs) + 4 * i + l] | (bits >> 3 * l & 7) << 8);
            g->negative[4 * i + l] = bits >> 15;
        }
    }
}

static void write(const struct gb_grid_block * g, uint8_t * block) {
    gb_store_f16(block + GB_AT(iq1_s, d), g->d);
    for (int i = 0; i < 8; i++) {
        uint32_t bits = (uint32_t) g->scale[i] << 12 | (uint32_t) g->negative[4 * i] << 15;
        for (int l = 0; l < 4; l++) {
            block[GB_AT(iq1_s, qs) + 4 * i + l] = (uint8_t) g->row[4 * i + l];
            bits |= (uint32_t) (g->row[4 * i + l] >> 8) << 3 * l;
        }
        gb_store_u16(block + GB_AT(iq1_s, qh) + 2 * i, bits);
    }
}

GB_GRID_BLOCKS
GB_GRID_FORMAT(iq1_s, 0.125f * 15 * 9, GB_NAN_F16, GB_AT(iq1_s, d))
