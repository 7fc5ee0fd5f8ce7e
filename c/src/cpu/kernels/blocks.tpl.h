// blocks.tpl.h - converts rows of floats to blocks of Q8_0 and Q4_0 and back, with the same bytes
// as tensor/quant.
//
// These are plain loops over the 32 elements of a block, which compilers vectorize. Magnitudes are
// compared as integers, so NaN is above all numbers. Rounding is arithmetic. Blocks whose scale is
// a normal number or 0 in f16 are made here, all others by the format's own function.
#include <math.h>

#include "base/fp16.h"
#include "tensor/quant/quant.h"

enum { BLOCK_N = 32 };
static_assert(GB_ELEMENTS(q8_0) == BLOCK_N && GB_ELEMENTS(q4_0) == BLOCK_N, "the blocks of this file");
static_assert(GB_AT(q8_0, d) == 0 && GB_AT(q4_0, d) == 0, "blocks begin with d");

static inline void store_scale_(uint8_t * block, float d) {
#if HAVE_F16C
    const uint16_t h = f16_of_f32_(d);
#else
    const uint16_t h = gb_f32_to_f16(d);
#endif
    memcpy(block, &h, sizeof(h));
}

// True if d is a normal number in f16, or 0. Scales that are too small, too large, or NaN are not
// plain.
static inline bool is_plain_(float d) {
    const float size = d < 0 ? -d : d;
    return (size >= 0x1p-14f && size <= 65504.0f) || size == 0;
}

// A block of any values, by the format's function (tensor/quant).
static inline void store_odd_(enum ggml_type type, const float * x, uint8_t * block) {
    gb_quant_format_of(type)->from_float(x, block, BLOCK_N);
}

// The half float at p, at any alignment.
static inline float half_at_(const uint8_t * p) {
    uint16_t h;
    memcpy(&h, p, sizeof(h));
#if HAVE_F16C
    return f32_of_f16_(h);
#else
    float f;
    v_store_n(&f, v_load_f16_n(&h, 1), 1);
    return f;
#endif
}

// The two bytes at p, for a loop that only copies scales. Compilers would insert them into vectors one by one, which
// takes several times as long.
static inline uint16_t copied_half_(const void * p) {
    uint16_t half;
    memcpy(&half, p, sizeof(half));
    int bits = half;
    COMPUTED_HERE(bits);
    return (uint16_t) bits;
}

#if V_ISA_AVX512
#    include "x86/blocks_avx512.tpl.h"
#else
static inline uint32_t largest_(const float * restrict x, uint32_t * restrict magnitude) {
    int32_t largest = 0;
    for (int i = 0; i < BLOCK_N; i++) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof(bits));
        bits &= 0x7fffffff;
        magnitude[i] = (uint32_t) bits;
        largest = bits > largest ? bits : largest;
    }
    return (uint32_t) largest;
}

// Rounds x id to nearest, halves away from zero. The magnitudes are at most 127.
static inline void to_bytes_(int8_t * restrict q, const float * restrict x, float id) {
    for (int i = 0; i < BLOCK_N; i++) {
        const float v = x[i] * id;
        const float r = (v + 0x1.8p23f) - 0x1.8p23f; // halves to even
        const float off = v - r;
        const float up = off == 0.5f && v > 0 ? 1.0f : 0.0f, down = off == -0.5f && v < 0 ? 1.0f : 0.0f;
        q[i] = (int8_t) (int32_t) (r + up - down);
    }
}

static void f32_to_q8_0(int64_t n, void * y, const float * x) {
    uint8_t * block = y;
    for (int64_t i = 0; i < n; i += BLOCK_N, block += GB_BYTES(q8_0)) {
        uint32_t magnitude[BLOCK_N];
        const float d = gb_f32_from_bits(largest_(x + i, magnitude)) / 127;
        if (!is_plain_(d)) {
            store_odd_(GGML_TYPE_Q8_0, x + i, block);
            continue;
        }
        const float id = d != 0 ? 1 / d : 0;
        store_scale_(block, d);
        to_bytes_((int8_t *) block + GB_AT(q8_0, qs), x + i, id);
    }
}

static void f32_to_q4_0(int64_t n, void * y, const float * x) {
    uint8_t * block = y;
    for (int64_t i = 0; i < n; i += BLOCK_N, block += GB_BYTES(q4_0)) {
        uint32_t magnitude[BLOCK_N];
        const uint32_t largest = largest_(x + i, magnitude);
        int32_t first = BLOCK_N - 1; // the first of several largest gives the sign
        for (int j = 0; j < BLOCK_N; j++) {
            const int32_t at = magnitude[j] == largest ? j : BLOCK_N - 1;
            first = at < first ? at : first;
        }
        const float d = (largest != 0 ? x[i + first] : 0.0f) / -8;
        if (!is_plain_(d)) {
            store_odd_(GGML_TYPE_Q4_0, x + i, block);
            continue;
        }
        const float id = d != 0 ? 1 / d : 0;
        int32_t level[BLOCK_N];
        for (int j = 0; j < BLOCK_N; j++) {
            const float v = x[i + j] * id + 8.5f; // above 0
            level[j] = (int32_t) (v < 15.0f ? v : 15.0f);
        }
        store_scale_(block, d);
        for (int j = 0; j < BLOCK_N / 2; j++) {
            block[GB_AT(q4_0, qs) + j] = (uint8_t) (level[j] | level[j + BLOCK_N / 2] << 4);
        }
    }
}

#endif

static void q8_0_to_f32(int64_t n, float * y, const void * x) {
    const uint8_t * block = x;
    for (int64_t i = 0; i < n; i += BLOCK_N, block += GB_BYTES(q8_0)) {
        const float d = half_at_(block);
        const int8_t * q = (const int8_t *) block + GB_AT(q8_0, qs);
        float * v = y + i;
        for (int j = 0; j < BLOCK_N; j++) {
            v[j] = (float) q[j] * d;
        }
    }
}

static void q4_0_to_f32(int64_t n, float * y, const void * x) {
    const uint8_t * block = x;
    for (int64_t i = 0; i < n; i += BLOCK_N, block += GB_BYTES(q4_0)) {
        const float d = half_at_(block);
        uint8_t level[BLOCK_N];
        b32_store(level, b32_nibbles(block + GB_AT(q4_0, qs)));
        float * v = y + i;
        for (int j = 0; j < BLOCK_N; j++) {
            v[j] = (float) ((int32_t) level[j] - GB_ZERO(q4_0)) * d;
        }
    }
}
