// iq3_s.c - 256 elements in 110 bytes: f16 d; for each 4 elements the lower 8 bits of a row number, then the ninth
// bits; signs; 8 scales of 4 bits. y = d (2 scale + 1) level.
#include "tensor/quant/grid.h"

static const struct gb_grid_format format = {
    .grid = &gb_grid_iq3_s, .per_scale = 32, .n_scales = 16, .unit = 1, .low = 0.65f, .high = 1.3f
};

static void read(const uint8_t * block, struct gb_grid_block * g) {
    g->d = gb_load_f16(block + GB_AT(iq3_s, d));
    for (int i = 0; i < 64; i++) {
        g->row[i] = (uint16_t) (block[GB_AT(iq3_s, qs) + i] | (block[GB_AT(iq3_s, qh) + i / 8] >> i % 8 & 1) << 8);
    }
    memcpy(g->signs, block + GB_AT(iq3_s, signs), 32);
    for (int s = 0; s < 8; s++) {
        g->scale[s] = block[GB_AT(iq3_s, scales) + s / 2] >> 4 * (s % 2) & 15;
    }
}

static void write(const struct gb_grid_block * g, uint8_t * block) {
    gb_store_f16(block + GB_AT(iq3_s, d), g->d);
    memcpy(block + GB_AT(iq3_s, signs), g->signs, 32);
    memset(block + GB_AT(iq3_s, qh), 0, 8);
    for (int i = 0; i < 64; i++) {
        block[GB_AT(iq3_s, qs) + i] = (uint8_t) g->row[i];
        block[GB_AT(iq3_s, qh) + i / 8] |= (uint8_t) (g->row[i] >> 8 << i % 8);
    }
    for (int i = 0; i < 4; i++) {
        block[GB_AT(iq3_s, scales) + i] = (uint8_t) (g->scale[2 * i] | g->scale[2 * i + 1] << 4);
    }
}

GB_GRID_BLOCKS
GB_GRID_FORMAT(iq3_s, 31 * 15, GB_NAN_F16, GB_AT(iq3_s, d))
