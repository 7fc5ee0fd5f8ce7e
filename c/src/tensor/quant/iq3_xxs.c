// iq3_xxs.c - 256 elements in 98 bytes: y = d / 4 (2 scale + 1) level. In the order of the bytes:
//   f16 d
//   for each 4 elements   a row number
//   for each 32 elements  32 bits: 4 times 7 signs, a scale of 4 bits
//
// The eighth sign follows from the seven stored.
#include "tensor/quant/grid.h"

static const struct gb_grid_format format = { .grid = &gb_grid_iq3_xxs,
    .per_scale = 32,
    .n_scales = 16,
    .unit = 0.25f,
    .even_signs = true,
    .low = 0.65f,
    .high = 1.3f };

static void read(const uint8_t * block, struct gb_grid_block * g) {
    g->d = gb_load_f16(block + GB_AT(iq3_xxs, d));
    for (int i = 0; i < 64; i++) {
        g->row[i] = block[GB_AT(iq3_xxs, qs) + i];
    }
    for (int i = 0; i < 8; i++) {
        const uint32_t bits = gb_load_u32(block + GB_AT(iq3_xxs, bits) + 4 * i);
        g->scale[i] = (uint8_t) (bits >> 28);
        for (int l = 0; l < 4; l++) {
            g->signs[4 * i + l] = gb_grid_signs(bits >> 7 * l & 127);
        }
    }
}

static void write(const struct gb_grid_block * g, uint8_t * block) {
    gb_store_f16(block + GB_AT(iq3_xxs, d), g->d);
    for (int i = 0; i < 64; i++) {
        block[GB_AT(iq3_xxs, qs) + i] = (uint8_t) g->row[i];
    }
    for (int i = 0; i < 8; i++) {
        uint32_t bits = (uint32_t) g->scale[i] << 28;
        for (int l = 0; l < 4; l++) {
            bits |= (uint32_t) gb_grid_sign_code(g->signs[4 * i + l]) << 7 * l;
        }
        gb_store_u32(block + GB_AT(iq3_xxs, bits) + 4 * i, bits);
    }
}

GB_GRID_BLOCKS
GB_GRID_FORMAT(iq3_xxs, 0.25f * 31 * 62, GB_NAN_F16, GB_AT(iq3_xxs, d))
