// blocks.tpl.h - rows of floats to blocks of Q8_0 and Q4_0 and back, byte for byte as tensor/quant does it.
//
// Plain loops over the 32 elements of a block, written so that a compiler makes vectors of them: magnitudes are
// compared as integers (NaN is above all), and rounding is arithmetic. Blocks whose scale f16 holds well are made here;
// the others, by the format itself.
#include <math.h>

#include "base/fp16.h"
#include "tensor/quant/quant.h"

enum { BLOCK_N = 32 };
static_assert(GB_ELEMENTS(q8_0) == BLOCK_N && GB_ELEMENTS(q4_0) == BLOCK_N, "the blocks of this file");
static_assert(GB_AT(q8_0, d) == 0 && GB_AT(q4_0, d) == 0, "blocks begin with d");

#if V_N != 16
static inline uint32_t largest_(const float * restrict x, uint32_t * restrict magnitude) {
    int32_t largest = 0;
    for (int i = 0; i < BLOCK_N; i++) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof(bits));
        bits &= 0x7fffffff;
        magnitude[i] = (uint32_t) bits;
        largest      = bits > largest ? bits : largest;
    }
    return (uint32_t) largest;
}
#endif

static inline void store_scale_(uint8_t * block, float d) {
#ifdef __F16C__
    const uint16_t h = _cvtss_sh(d, _MM_FROUND_TO_NEAREST_INT);
#else
    const uint16_t h = gb_f32_to_f16(d);
#endif
    memcpy(block, &h, sizeof(h));
}

// A scale that f16 holds well, or that of a block of zeros; not one that gets lost, is too large, or is NaN.
static inline bool is_plain_(float d) {
    const float size = d < 0 ? -d : d;
    return (size >= 0x1p-14f && size <= 65504.0f) || size == 0;
}

// A block of anything (tensor/quant).
static inline void store_odd_(enum ggml_type type, const float * x, uint8_t * block) {
    gb_quant_format_of(type)->from_float(x, block, BLOCK_N);
}

static inline float load_scale_(const uint8_t * block) {
    uint16_t h;
    memcpy(&h, block, sizeof(h));
#ifdef __F16C__
    return _cvtsh_ss(h);
#else
    return gb_f16_to_f32(h);
#endif
}

#if V_N == 16
static inline bool has_nan_(__m512 a, __m512 b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0; }

static inline float extreme_(const float * x, __m512 a, __m512 b) { // the first of largest magnitude; no NaN among them
    const vf        p = v_abs(a), q = v_abs(b), largest = v_set(v_largest(v_max(p, q)));
    const __mmask32 at    = (__mmask32) v_eq(p, largest) | (__mmask32) v_eq(q, largest) << 16;
    const float     value = x[__builtin_ctz(at)];
    return value != 0 ? value : 0.0f; // zeros of either sign
}

// To the nearest, halves away from zero, of |x id| below 128. Cutting off after adding the largest float below 1/2 does
// it: that lifts exactly k + 1/2 to k + 1 (rounded: the rest is half a unit at most, and the tie at 1/2 goes to 1), and
// nothing less, since the float before k + 1/2 is a whole unit away.
static inline __m128i byte_levels_(__m512 x, __m512 id) {
    const vf v = v_mul(x, id);
    return _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(v_add(v, v_copysign(v_set(0x1.fffffep-2f), v))));
}

static inline vi nibble_levels_(__m512 x, __m512 id) { // the sum apart from the product: two roundings
    const vf v = v_add(v_mul(x, id), v_set(8.5f));
    return _mm512_cvttps_epi32(v_min(v, v_set(15.0f))); // v is above 0
}

static void f32_to_q8_0(int64_t n, void * y, const float * x) {
    uint8_t * block = y;
    for (int64_t i = 0; i < n; i += BLOCK_N, block += GB_BYTES(q8_0)) {
        const vf    a = v_load(x + i), b = v_load(x + i + 16);
        const float d = has_nan_(a, b) ? INFINITY : v_largest(v_max(v_abs(a), v_abs(b))) / 127;
        if (!is_plain_(d)) {
            store_odd_(GGML_TYPE_Q8_0, x + i, block);
            continue;
        }
        const vf id = v_set(d != 0 ? 1 / d : 0);
        store_scale_(block, d);
        _mm_storeu_si128((__m128i *) (block + GB_AT(q8_0, qs)), byte_levels_(a, id));
        _mm_storeu_si128((__m128i *) (block + GB_AT(q8_0, qs) + 16), byte_levels_(b, id));
    }
}

static void f32_to_q4_0(int64_t n, void * y, const float * x) {
    uint8_t * block = y;
    for (int64_t i = 0; i < n; i += BLOCK_N, block += GB_BYTES(q4_0)) {
        const vf    a = v_load(x + i), b = v_load(x + i + 16);
        const float d = has_nan_(a, b) ? INFINITY : extreme_(x + i, a, b) / -8;
        if (!is_plain_(d)) {
            store_odd_(GGML_TYPE_Q4_0, x + i, block);
            continue;
        }
        const vf id = v_set(d != 0 ? 1 / d : 0);
        store_scale_(block, d);
        const vi both = vi_or(nibble_levels_(a, id), vi_shl(nibble_levels_(b, id), 4));
        _mm_storeu_si128((__m128i *) (block + GB_AT(q4_0, qs)), _mm512_cvtepi32_epi8(both));
    }
}
#else
// To the nearest, halves away from zero, of |x id| that round to 127 at most.
static inline void to_bytes_(int8_t * restrict q, const float * restrict x, float id) {
    for (int i = 0; i < BLOCK_N; i++) {
        const float v   = x[i] * id;
        const float r   = (v + 0x1.8p23f) - 0x1.8p23f; // halves to even
        const float off = v - r;
        const float up = off == 0.5f && v > 0 ? 1.0f : 0.0f, down = off == -0.5f && v < 0 ? 1.0f : 0.0f;
        q[i] = (int8_t) (int32_t) (r + up - down);
    }
}

static void f32_to_q8_0(int64_t n, void * y, const float * x) {
    uint8_t * block = y;
    for (int64_t i = 0; i < n; i += BLOCK_N, block += GB_BYTES(q8_0)) {
        uint32_t    magnitude[BLOCK_N];
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
        uint32_t       magnitude[BLOCK_N];
        const uint32_t largest = largest_(x + i, magnitude);
        int32_t        first   = BLOCK_N - 1; // the first of several largest gives the sign
        for (int j = 0; j < BLOCK_N; j++) {
            const int32_t at = magnitude[j] == largest ? j : BLOCK_N - 1;
            first            = at < first ? at : first;
        }
        const float d = (largest != 0 ? x[i + first] : 0.0f) / -8;
        if (!is_plain_(d)) {
            store_odd_(GGML_TYPE_Q4_0, x + i, block);
            continue;
        }
        const float id = d != 0 ? 1 / d : 0;
        int32_t     level[BLOCK_N];
        for (int j = 0; j < BLOCK_N; j++) {
            const float v = x[i + j] * id + 8.5f; // above 0
            level[j]      = (int32_t) (v < 15.0f ? v : 15.0f);
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
        const float    d = load_scale_(block);
        const int8_t * q = (const int8_t *) block + GB_AT(q8_0, qs);
        float *        v = y + i;
        for (int j = 0; j < BLOCK_N; j++) {
            v[j] = (float) q[j] * d;
        }
    }
}

static void q4_0_to_f32(int64_t n, float * y, const void * x) {
    const uint8_t * block = x;
    for (int64_t i = 0; i < n; i += BLOCK_N, block += GB_BYTES(q4_0)) {
        const float     d = load_scale_(block);
        const uint8_t * q = block + GB_AT(q4_0, qs);
        float           v[BLOCK_N];
        for (int j = 0; j < BLOCK_N / 2; j++) {
            v[j]               = (float) ((int32_t) (q[j] & 15) - GB_ZERO(q4_0)) * d;
            v[j + BLOCK_N / 2] = (float) ((int32_t) (q[j] >> 4) - GB_ZERO(q4_0)) * d;
        }
        memcpy(y + i, v, sizeof(v));
    }
}
