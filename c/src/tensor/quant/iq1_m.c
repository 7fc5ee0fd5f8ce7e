// iq1_m.c - 256 elements in 56 bytes: for each 8 elements the lower 8 bits of a row number, then 4 bits: the upper 3
// bits and the sign of the offset; for each 64 elements 16 bits: 4 scales of 3 bits and 4 bits of the f16 d, lowest
// first.
#include "tensor/quant/grid.h"

enum { QS = 0, QH = 32, SCALES = 48 };

static const struct gb_grid_format format = {
    .grid = &gb_grid_iq1, .per_scale = 16, .n_scales = 8, .unit = 0.125f, .per_offset = 8, .low = 0.85f, .high = 2.8f
};

static void read(const uint8_t * block, struct gb_grid_block * g) {
    uint32_t d = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t bits = gb_load_u16(block + SCALES + 2 * i);
        d |= bits >> 12 << 4 * i;
        for (int l = 0; l < 4; l++) {
            g->scale[4 * i + l] = bits >> 3 * l & 7;
        }
    }
    g->d = gb_f16_to_f32((uint16_t) d);
    for (int i = 0; i < 32; i++) {
        const uint32_t bits = block[QH + i / 2] >> 4 * (i % 2);
        g->row[i]           = (uint16_t) (block[QS + i] | (bits & 7) << 8);
        g->negative[i]      = bits >> 3 & 1;
    }
}

static void write(const struct gb_grid_block * g, uint8_t * block) {
    const uint32_t d = gb_f32_to_f16(g->d);
    for (int i = 0; i < 4; i++) {
        uint32_t bits = (d >> 4 * i & 15) << 12;
        for (int l = 0; l < 4; l++) {
            bits |= (uint32_t) g->scale[4 * i + l] << 3 * l;
        }
        gb_store_u16(block + SCALES + 2 * i, bits);
    }
    memset(block + QH, 0, 16);
    for (int i = 0; i < 32; i++) {
        block[QS + i] = (uint8_t) g->row[i];
        block[QH + i / 2] |= (uint8_t) ((g->row[i] >> 8 | g->negative[i] << 3) << 4 * (i % 2));
    }
}

GB_GRID_BLOCKS
GB_GRID_FORMAT(iq1_m, 56, 0.125f * 15 * 9, GB_NAN_SPREAD, SCALES)
