// q8_0.c - 32 elements in 34 bytes: f16 d, 32 signed bytes; y = q d. q is rounded half away from zero. Importance is ignored.
#include "tensor/quant/legacy.h"

static void quantize_block(const float * x, const float * w, uint8_t * block, uint8_t * levels) {
    (void) w;
    const float d  = fabsf(gb_fit_extreme(GB_BLOCK, x)) / 127;
    const float id = d != 0 ? 1 / d : 0;
    gb_store_f16(block, d);
    for (int i = 0; i < GB_BLOCK; i++) {
        const float  v = roundf(x[i] * id);
        const int8_t q = (int8_t) (v >= -127 && v <= 127 ? v : v > 0 ? 127 : v < 0 ? -127 : 0); // NaN: 0
        memcpy(block + 2 + i, &q, 1);
        levels[i] = (uint8_t) (q / 16 + 8); // what the histogram counts
    }
}

static void dequantize_block(const uint8_t * block, float * y) {
    const float d = gb_load_f16(block);
    for (int i = 0; i < GB_BLOCK; i++) {
        y[i] = (float) (int8_t) block[2 + i] * d;
    }
}

GB_LEGACY_FORMAT(q8_0, 34, 0, Q8_0)
