// q8_0.c - 32 elements in 34 bytes: f16 d, 32 signed bytes; y = q d. q is rounded half away from zero. Importance is
// ignored.
#include "tensor/quant/legacy.h"

static int nearest(float v) { return gb_fit_round(v, -127, 127); }

// The element of largest magnitude becomes 127 or -127, unless f16 cannot hold its scale (small.h).
static void quantize_block(const float * x, const float * w, uint8_t * block, uint8_t * levels) {
    (void) w;
    int8_t * q = (int8_t *) block + GB_AT(q8_0, qs);
    const float d = gb_quantize_bytes(x, q);
    if (gb_scale_is_inexact(d, gb_store_f16(block + GB_AT(q8_0, d), d), 127)) {
        gb_store_f16(block + GB_AT(q8_0, d), gb_small_fit(GB_BLOCK, x, NULL, nearest, d, 0, q));
    }
    for (int i = 0; i < GB_BLOCK; i++) {
        levels[i] = (uint8_t) (q[i] / 16 + 8);  // for the histogram
    }
}

static void unpack_block(const uint8_t * block, struct gb_block * b) {
    b->d = gb_load_f16(block + GB_AT(q8_0, d));
    memcpy(b->level, block + GB_AT(q8_0, qs), GB_BLOCK);
}

GB_SYMMETRIC_FORMAT(q8_0, 0, 127 * GB_F16_MAX)
