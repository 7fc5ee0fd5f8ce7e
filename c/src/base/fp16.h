// fp16.h - converts single numbers to and from binary16 and bfloat16 by integer arithmetic: exact,
// without tables or special instructions. The kernels convert rows faster. These functions are the
// reference.
#ifndef GB_BASE_FP16_H
#define GB_BASE_FP16_H

#include <stdint.h>
#include <string.h>

static inline float gb_f32_from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static inline uint32_t gb_f32_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

// Widening, exact. Normal numbers: mantissa and exponent are shifted up, and the exponent's bias
// changes from 15 to 127. Infinities and NaN keep their mantissa under the largest exponent.
// Subnormals are normalized by the product with 2^-24.
static inline float gb_f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t) (h & 0x8000u) << 16;
    const uint32_t magnitude = h & 0x7fffu;
    uint32_t bits;
    if (magnitude >= 0x7c00u) { // infinity, NaN
        bits = 0x7f800000u | ((magnitude & 0x3ffu) << 13);
    } else if (magnitude >= 0x0400u) { // normal: exponent bias 15 -> 127
        bits = (magnitude << 13) + (112u << 23);
    } else { // zero, subnormal: magnitude * 2^-24
        bits = gb_f32_bits((float) magnitude * 0x1p-24f);
    }
    return gb_f32_from_bits(sign | bits);
}

// Narrowing, to nearest even. NaN becomes a quiet NaN of the same sign.
static inline uint16_t gb_f32_to_f16(float f) {
    const uint32_t bits = gb_f32_bits(f);
    const uint16_t sign = (uint16_t) ((bits >> 16) & 0x8000u);
    const uint32_t mag = bits & 0x7fffffffu;
    if (mag > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    if (mag >= 0x477ff000u) { // 65520 and above rounds to infinity
        return sign | 0x7c00u;
    }
    if (mag >= 0x38800000u) { // normal: drop 13 bits with round to even, rebias
        const uint32_t odd = (mag >> 13) & 1u;
        return sign | (uint16_t) ((mag - (112u << 23) + 0x0fffu + odd) >> 13);
    }
    // subnormal: adding 0.5 aligns the value so that the float adder rounds it to a multiple of
    // 2^-24
    const float aligned = gb_f32_from_bits(mag) + 0.5f;
    return sign | (uint16_t) (gb_f32_bits(aligned) - 0x3f000000u);
}

// bfloat16 is the upper half of a float.
static inline float gb_bf16_to_f32(uint16_t h) { return gb_f32_from_bits((uint32_t) h << 16); }

// Narrowing, to nearest even. NaN becomes quiet and keeps its sign and the upper bits of its payload.
static inline uint16_t gb_f32_to_bf16(float f) {
    const uint32_t bits = gb_f32_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t) ((bits >> 16) | 0x40u); // sets the quiet bit, so that a cut payload does not become infinity
    }
    return (uint16_t) ((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#endif // GB_BASE_FP16_H
