// iq2_xs.c - 256 elements in 74 bytes: f16 d; for each 8 elements 16 bits: row number (9), signs (7); 16 scales of 4
// bits. y = d / 8 (2 scale + 1) level. The eighth sign follows from the seven stored: an even number is negative.
#include "tensor/quant/grid.h"

static const struct gb_grid_format format = { .grid = &gb_grid_iq2_xs,
    .per_scale = 16,
    .n_scales = 16,
    .unit = 0.125f,
    .even_signs = true,
    .low = 0.6f,
    .high = 1.5f };

static void read(const uint8_t * block, struct gb_grid_block * g) {
    g->d = gb_load_f16(block + GB_AT(iq2_xs, d));
    for (int i = 0; i < 32; i++) {
        const uint32_t bits = gb_load_u16(block + GB_AT(iq2_xs, qs) + 2 * i);
        g->row[i] = bits & 511;
        g->signs[i] = gb_grid_signs(bits >> 9);
    }
    for (int s = 0; s < 16; s++) {
        g->scale[s] = block[GB_AT(iq2_xs, scales) + s / 2] >> 4 * (s % 2) & 15;
    }
}

static void write(const struct gb_grid_block * g, uint8_t * block) {
    gb_store_f16(block + GB_AT(iq2_xs, d), g->d);
    for (int i = 0; i < 32; i++) {
        gb_store_u16(block + GB_AT(iq2_xs, qs) + 2 * i, g->row[i] | (uint32_t) gb_grid_sign_code(g->signs[i]) << 9);
    }
    for (int i = 0; i < 8; i++) {
        block[GB_AT(iq2_xs, scales) + i] = (uint8_t) (g->scale[2 * i] | g->scale[2 * i + 1] << 4);
    }
}

GB_GRID_BLOCKS
GB_GRID_FORMAT(iq2_xs, 0.125f * 31 * 43, GB_NAN_F16, GB_AT(iq2_xs, d))
