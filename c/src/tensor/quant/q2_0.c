// q2_0.c - 64 elements in 18 bytes: f16 d, four levels of 2 bits in a byte, the lowest first.
// y = d (level - 1). Quantizing writes levels 0 .. 2. Files may also have 3.
#include "tensor/quant/low.h"
#include "tensor/quant/ternary.h"

static void quantize_block(const float * x, uint8_t * block) {
    uint8_t levels[GB_ELEMENTS(q2_0)];
    gb_store_f16(block + GB_AT(q2_0, d), gb_ternary_quantize(GB_ELEMENTS(q2_0), x, levels));
    for (int i = 0; i < GB_ELEMENTS(q2_0); i += 4) {
        block[GB_AT(q2_0, qs) + i / 4] =
            (uint8_t) (levels[i] | levels[i + 1] << 2 | levels[i + 2] << 4 | levels[i + 3] << 6);
    }
}

static void unpack_block(const uint8_t * block, int8_t * levels) {
    const uint8_t * qs = block + GB_AT(q2_0, qs);
    for (int i = 0; i < GB_ELEMENTS(q2_0); i++) {
        levels[i] = (int8_t) ((qs[i / 4] >> 2 * (i % 4) & 3) - 1);
    }
}

GB_LOW_FORMAT(q2_0)
