// mxfp4.c - 32 elements in 17 bytes: exponent e of a power of two, 16 bytes of nibbles. The OCP microscaling format:
// y = 2^(e - 128) times twice the e2m1 value of the nibble. Importance is ignored.
#include <float.h>

#include "tensor/quant/legacy.h"

static const int8_t values[16] = { GB_VALUES_E2M1(GB_VALUE) };

static float scale_of(uint8_t e) { // 2^(e - 128); the two smallest are subnormal
    return gb_f32_from_bits(e < 2 ? (uint32_t) 0x200000 << e : (uint32_t) (e - 1) << 23);
}

// The exponent that maps the largest magnitude to [4, 8). The rounded f32 logarithm can reach the
// next integer just below a power of two.
static uint8_t exponent_of(float largest) {
    if (!(largest > 0)) {
        return 0;
    }
    const float e = floorf((float) log2((double) largest)) - 2 + 127;
    return (uint8_t) (e < 0 ? 0 : e > 254 ? 254 : e);
}

static uint8_t nearest(float x, float d) { // the first of equals; NaN: 0
    uint8_t best = 0;
    float error = fabsf(x);
    for (uint8_t i = 1; i < 16; i++) {
        const float distance = fabsf(d * (float) values[i] - x);
        if (distance < error) {
            error = distance;
            best = i;
        }
    }
    return best;
}

// The specification determines the exponent from the largest magnitude alone, so there is no
// search.
static void quantize_block(const float * x, const float * w, uint8_t * block, uint8_t * levels) {
    (void) w;
    block[GB_AT(mxfp4, e)] = exponent_of(fabsf(gb_fit_extreme(GB_BLOCK, x)));
    const float d = scale_of(block[GB_AT(mxfp4, e)]);
    for (int i = 0; i < GB_BLOCK; i++) {
        levels[i] = nearest(x[i], d);
    }
    gb_pack_nibbles(levels, block + GB_AT(mxfp4, qs));
}

// Codes become the e2m1 values times 2, and scale_of has the factor 1/2.
static void unpack_block(const uint8_t * block, struct gb_block * b) {
    b->d = scale_of(block[GB_AT(mxfp4, e)]);
    gb_unpack_nibbles(block + GB_AT(mxfp4, qs), b->level);
    for (int i = 0; i < GB_BLOCK; i++) {
        b->level[i] = values[b->level[i]];
    }
}

GB_BLOCK_FORMAT(mxfp4, 0, FLT_MAX, GB_NAN_NONE)
