// iq1_m.c - 256 elements in 56 bytes. In the order of the bytes:
//   for each 8 elements   the lower 8 bits of a row number
//   for each 8 elements   4 bits: the upper 3 bits of the row number, the sign of the offset
//   for each 64 elements  16 bits, lowest first: 4 scales of 3 bits, 4 bits of the f16 d
//
// Each 16 elements have a scale, each 8 an offset: y = d / 8 (2 scale + 1) (level + offset).
#include "tensor/quant/grid.h"

static const struct gb_grid_format format = {
    .grid = &gb_grid_iq1, .per_scale = 16, .n_scales = 8, .unit = 0.125f, .per_offset = 8, .low = 0.85f, .high = 2.8f
};

static void read(const uint8_t * block, struct gb_grid_block * g) {
    uint32_t d = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t bits = gb_load_u16(block + GB_AT(iq1_m, scales) + 2 * i);
        d |= bits >> 12 << 4 * i;
        for (int l = 0; l < 4; l++) {
            g->scale[4 * i + l] = bits >> 3 * l & 7;
        }
    }
    g->d = gb_f16_to_f32((uint16_t) d);
    for (int i = 0; i < 32; i++) {
        const uint32_t bits = block[GB_AT(iq1_m, qh) + i / 2] >> 4 * (i % 2);
        g->row[i] = (uint16_t) (block[GB_AT(iq1_m, qs) + i] | (bits & 7) << 8);
        g->negative[i] = bits >> 3 & 1;
    }
}

static void write(const struct gb_grid_block * g, uint8_t * block) {
    const uint32_t d = gb_f32_to_f16(g->d);
    for (int i = 0; i < 4; i++) {
        uint32_t bits = (d >> 4 * i & 15) << 12;
        for (int l = 0; l < 4; l++) {
            bits |= (uint32_t) g->scale[4 * i + l] << 3 * l;
        }
        gb_store_u16(block + GB_AT(iq1_m, scales) + 2 * i, bits);
    }
    memset(block + GB_AT(iq1_m, qh), 0, 16);
    for (int i = 0; i < 32; i++) {
        block[GB_AT(iq1_m, qs) + i] = (uint8_t) g->row[i];
        block[GB_AT(iq1_m, qh) + i / 2] |= (uint8_t) ((g->row[i] >> 8 | g->negative[i] << 3) << 4 * (i % 2));
    }
}

GB_GRID_BLOCKS
GB_GRID_FORMAT(iq1_m, 0.125f * 15 * 9, GB_NAN_SPREAD, GB_AT(iq1_m, scales))
