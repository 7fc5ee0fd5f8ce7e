// bits.h - reads and writes the fields of blocks, at any address. Files and machines are
// little-endian.
#ifndef GB_TENSOR_QUANT_BITS_H
#define GB_TENSOR_QUANT_BITS_H

#include <stdint.h>
#include <string.h>

#include "base/fp16.h"

// Bytes of a block are read and written with memcpy, so no address needs to be aligned.
static inline uint16_t gb_load_u16(const uint8_t * p) {
    uint16_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static inline void gb_store_u16(uint8_t * p, uint32_t v) { // the lower 16 bits
    const uint16_t h = (uint16_t) v;
    memcpy(p, &h, sizeof(h));
}

static inline uint32_t gb_load_u32(const uint8_t * p) {
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static inline void gb_store_u32(uint8_t * p, uint32_t v) { memcpy(p, &v, sizeof(v)); }

// An f16 field as a float; exact.
static inline float gb_load_f16(const uint8_t * p) { return gb_f16_to_f32(gb_load_u16(p)); }

// Stores f as an f16 and returns the rounded value.
static inline float gb_store_f16(uint8_t * p, float f) {
    const uint16_t h = gb_f32_to_f16(f);
    gb_store_u16(p, h);
    return gb_f16_to_f32(h);
}

// Byte i of the result is bit i. Each byte of a copy keeps its own bit, which moves to 0x80 and
// then to 1.
static inline uint64_t gb_spread_bits(uint8_t bits) {
    const uint64_t kept = bits * UINT64_C(0x0101010101010101) & UINT64_C(0x8040201008040201);
    return (kept + UINT64_C(0x00406070787c7e7f)) >> 7 & UINT64_C(0x0101010101010101);
}

#endif // GB_TENSOR_QUANT_BITS_H
