// q8_0.c - 32 elements in 34 bytes: f16 d, 32 signed bytes; y = q d. q is rounded half away from zero. Importance is
// ignored.
#include "tensor/quant/legacy.h"

static void quantize_block(const float * x, const float * w, uint8_t * block, uint8_t * levels) {
    (void) w;
    gb_store_f16(block, gb_quantize_bytes(x, (int8_t *) block + 2));
    for (int i = 0; i < GB_BLOCK; i++) {
        levels[i] = (uint8_t) ((int8_t) block[2 + i] / 16 + 8); // what the histogram counts
    }
}

static void unpack_block(const uint8_t * block, struct gb_block * b) {
    b->d = gb_load_f16(block);
    memcpy(b->level, block + 2, GB_BLOCK);
}

GB_SYMMETRIC_FORMAT(q8_0, 34, 0)
