// q1_0.c - 128 elements in 18 bytes: f16 d, a bit for each element, the lowest first.
// y = d where the bit is set, else -d.
#include <math.h>

#include "tensor/quant/low.h"

// d is the mean magnitude, which has the least squared error for these signs. The nearest f16 is
// never worse than zeros, so small values need no search.
static void quantize_block(const float * x, uint8_t * block) {
    float sum = 0; // in this order, because the bytes depend on it
    for (int i = 0; i < GB_ELEMENTS(q1_0); i++) {
        sum += fabsf(x[i]);
    }
    gb_store_f16(block + GB_AT(q1_0, d), sum / (float) GB_ELEMENTS(q1_0));
    uint8_t * qs = block + GB_AT(q1_0, qs);
    for (int i = 0; i < GB_ELEMENTS(q1_0) / 8; i++) {
        qs[i] = 0;
        for (int k = 0; k < 8; k++) {
            qs[i] |= (uint8_t) ((x[8 * i + k] >= 0) << k);
        }
    }
}

static void unpack_block(const uint8_t * block, int8_t * levels) {
    const uint8_t * qs = block + GB_AT(q1_0, qs);
    for (int i = 0; i < GB_ELEMENTS(q1_0); i++) {
        levels[i] = (int8_t) (2 * (qs[i / 8] >> i % 8 & 1) - 1);
    }
}

GB_LOW_FORMAT(q1_0)
