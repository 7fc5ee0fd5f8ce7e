// iq2_xxs.c - 256 elements in 66 bytes: f16 d; for each 32 elements 4 row numbers and 32 bits: 4 times 7 signs, a scale
// of 4 bits. y = d / 8 (2 scale + 1) level. The eighth sign follows from the seven stored: an even number is negative.
#include "tensor/quant/grid.h"

static const struct gb_grid_format format = { .grid = &gb_grid_iq2_xxs,
    .per_scale = 32,
    .n_scales = 16,
    .unit = 0.125f,
    .even_signs = true,
    .low = 0.6f,
    .high = 1.5f };

static void read(const uint8_t * block, struct gb_grid_block * g) {
    g->d = gb_load_f16(block + GB_AT(iq2_xxs, d));
    for (int i = 0; i < 8; i++) {
        const uint8_t * p = block + GB_AT(iq2_xxs, qs) + 8 * i;
        const uint32_t bits = gb_load_u32(p + 4);
        g->scale[i] = (uint8_t) (bits >> 28);
        for (int l = 0; l < 4; l++) {
            g->row[4 * i + l] = p[l];
            g->signs[4 * i + l] = gb_grid_signs(bits >> 7 * l & 127);
        }
    }
}

static void write(const struct gb_grid_block * g, uint8_t * block) {
    gb_store_f16(block + GB_AT(iq2_xxs, d), g->d);
    for (int i = 0; i < 8; i++) {
        uint8_t * p = block + GB_AT(iq2_xxs, qs) + 8 * i;
        uint32_t bits = (uint32_t) g->scale[i] << 28;
        for (int l = 0; l < 4; l++) {
            p[l] = (uint8_t) g->row[4 * i + l];
            bits |= (uint32_t) gb_grid_sign_code(g->signs[4 * i + l]) << 7 * l;
        }
        gb_store_u32(p + 4, bits);
    }
}

GB_GRID_BLOCKS
GB_GRID_FORMAT(iq2_xxs, 0.125f * 31 * 43, GB_NAN_F16, GB_AT(iq2_xxs, d))
