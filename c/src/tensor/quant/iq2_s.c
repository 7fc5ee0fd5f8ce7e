// iq2_s.c - 256 elements in 82 bytes: y = d / 8 (2 scale + 1) level. In the order of the bytes:
//   f16 d
//   for each 8 elements   the lower 8 bits of a row number
//   for each 8 elements   8 signs, in any combination
//   for each 8 elements   the upper 2 bits of the row number
//   16 scales of 4 bits
#include "tensor/quant/grid.h"

static const struct gb_grid_format format = {
    .grid = &gb_grid_iq2_s, .per_scale = 16, .n_scales = 16, .unit = 0.125f, .low = 0.6f, .high = 1.5f
};

static void read(const uint8_t * block, struct gb_grid_block * g) {
    g->d = gb_load_f16(block + GB_AT(iq2_s, d));
    for (int i = 0; i < 32; i++) {
        g->row[i] =
            (uint16_t) (block[GB_AT(iq2_s, qs) + i] | (block[GB_AT(iq2_s, qh) + i / 4] >> 2 * (i % 4) & 3) << 8);
    }
    memcpy(g->signs, block + GB_AT(iq2_s, signs), 32);
    for (int s = 0; s < 16; s++) {
        g->scale[s] = block[GB_AT(iq2_s, scales) + s / 2] >> 4 * (s % 2) & 15;
    }
}

static void write(const struct gb_grid_block * g, uint8_t * block) {
    gb_store_f16(block + GB_AT(iq2_s, d), g->d);
    memcpy(block + GB_AT(iq2_s, signs), g->signs, 32);
    memset(block + GB_AT(iq2_s, qh), 0, 8);
    for (int i = 0; i < 32; i++) {
        block[GB_AT(iq2_s, qs) + i] = (uint8_t) g->row[i];
        block[GB_AT(iq2_s, qh) + i / 4] |= (uint8_t) (g->row[i] >> 8 << 2 * (i % 4));
    }
    for (int i = 0; i < 8; i++) {
        block[GB_AT(iq2_s, scales) + i] = (uint8_t) (g->scale[2 * i] | g->scale[2 * i + 1] << 4);
    }
}

GB_GRID_BLOCKS
GB_GRID_FORMAT(iq2_s, 0.125f * 31 * 43, GB_NAN_F16, GB_AT(iq2_s, d))
