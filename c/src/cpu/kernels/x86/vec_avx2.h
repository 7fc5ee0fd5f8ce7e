// vec_avx2.h - the vector operations of the templates on AVX2, FMA and F16C: eight lanes.
// vec_scalar.h explains them.
#ifndef GB_CPU_KERNELS_VEC_H
#define GB_CPU_KERNELS_VEC_H

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "x86.h"

#define V_ISA_AVX2 1
#define HAVE_STREAM 1
#define HAVE_ADD_AT 1
#define HAVE_LOAD_I8 1
#define HAVE_STORE_HIGH 1
#include "cpu/kernels/isa.h"
#include "cpu/kernels/compiler.h"

#define V_N 8
#define V_REGISTERS 16
#define V_CHAINS 12
#define V_ASM_REGISTER "x"
#define V_GEMM_MR 6 // 12 accumulators, 2 vectors of b, 1 broadcast: 15 of 16 registers
#define V_GEMM_NV 2
#define V_BYTES_MR 6
#define V_BYTES_NV 1

typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm;
typedef struct {
    __m256d low, high;
} vd;

static inline __m256i lanes_below_(int n) { // all bits of the first n lanes
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vf v_set(float x) { return _mm256_set1_ps(x); }
static inline vf v_load(const float * p) { return _mm256_loadu_ps(p); }
static inline vf v_load_n(const float * p, int n) { return _mm256_maskload_ps(p, lanes_below_(n)); }
static inline void v_store(float * p, vf a) { _mm256_storeu_ps(p, a); }
static inline void v_stream(float * p, vf a) { _mm256_stream_ps(p, a); }
static inline void stream_done_(void) { _mm_sfence(); }
static inline void v_store_n(float * p, vf a, int n) { _mm256_maskstore_ps(p, lanes_below_(n), a); }
static inline vf v_first(vf a, int n, vf rest) {
    return _mm256_blendv_ps(rest, a, _mm256_castsi256_ps(lanes_below_(n)));
}

static inline vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf v_sqrt(vf a) { return _mm256_sqrt_ps(a); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf v_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
static inline vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf v_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline vf v_neg(vf a) { return _mm256_xor_ps(_mm256_set1_ps(-0.0f), a); }
static inline vf v_copysign(vf magnitude, vf sign) {
    const vf bit = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(bit, magnitude), _mm256_and_ps(bit, sign));
}

static inline vm v_gt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
static inline vm v_lt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
static inline vm v_eq(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
static inline vm v_not_lt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_NLT_UQ); }
static inline vm v_ordered(vm m, vf a, vf b) { return _mm256_and_ps(m, _mm256_cmp_ps(a, b, _CMP_ORD_Q)); }
static inline bool vm_all(vm a) { return _mm256_movemask_ps(a) == 0xff; }
static inline vf v_sel(vm m, vf a, vf b) { return _mm256_blendv_ps(b, a, m); }
static inline vf v_keep(vm m, vf a) { return _mm256_and_ps(m, a); }
static inline vf v_mul_where(vm m, vf a, vf b) { return v_mul(v_keep(m, a), b); }

static inline vi v_bits(vf a) { return _mm256_castps_si256(a); }
static inline vf v_from_bits(vi a) { return _mm256_castsi256_ps(a); }
static inline vf v_load_i8(const int8_t * p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) (const void *) p)));
}
static inline vf v_from_int(vi a) { return _mm256_cvtepi32_ps(a); }
static inline vi vi_set(int32_t x) { return _mm256_set1_epi32(x); }
static inline vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
static inline vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
static inline vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
static inline vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
#define vi_shl(a, n) _mm256_slli_epi32((a), (n))
#define vi_shr(a, n) _mm256_srli_epi32((a), (n))
static inline vi vi_half(vi a) { return _mm256_srai_epi32(a, 1); }
static inline vi vi_exponent(vi a) { return _mm256_srai_epi32(a, 23); }

static inline __m128i load_halves_n_(const uint16_t * p, int n) {
    uint16_t part[V_N] = { 0 };
    memcpy(part, p, (size_t) n * sizeof(*p));
    return _mm_loadu_si128((const __m128i *) part);
}
static inline void store_halves_n_(uint16_t * p, __m128i a, int n) {
    uint16_t part[V_N];
    _mm_storeu_si128((__m128i *) part, a);
    memcpy(p, part, (size_t) n * sizeof(*p));
}
static inline __m128i low_halves_(vi a) {
    const __m256i even = _mm256_and_si256(a, _mm256_set1_epi32(0xffff)); // so that packing does not saturate
    return _mm_packus_epi32(_mm256_castsi256_si128(even), _mm256_extracti128_si256(even, 1));
}

static inline vi v_load_u16(const uint16_t * p) { return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) p)); }
static inline vi v_load_u16_n(const uint16_t * p, int n) { return _mm256_cvtepu16_epi32(load_halves_n_(p, n)); }
static inline void v_store_u16_high(uint16_t * p, vi a, vi b) {
    const __m256i halves = _mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16));
    _mm256_storeu_si256((__m256i *) p, _mm256_permute4x64_epi64(halves, 0xd8));
}
static inline void v_store_u16(uint16_t * p, vi a) { _mm_storeu_si128((__m128i *) p, low_halves_(a)); }
static inline void v_store_u16_n(uint16_t * p, vi a, int n) { store_halves_n_(p, low_halves_(a), n); }
static inline vf v_load_f16(const uint16_t * p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)); }
static inline vf v_load_f16_n(const uint16_t * p, int n) { return _mm256_cvtph_ps(load_halves_n_(p, n)); }
static inline void v_store_f16(uint16_t * p, vf a) {
    __m128i halves = _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
    IN_REGISTER(halves); // AMD converts to memory at two thirds of the rate
    _mm_storeu_si128((__m128i *) p, halves);
}
static inline void v_store_f16_n(uint16_t * p, vf a, int n) {
    store_halves_n_(p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT), n);
}

static inline float v_sum(vf a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline float v_largest(vf a) { // no NaN
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
static inline __m256d low_f64_(vf a) { return _mm256_cvtps_pd(_mm256_castps256_ps128(a)); }
static inline __m256d high_f64_(vf a) { return _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)); }
static inline vd vd_zero(void) { return (vd) { _mm256_setzero_pd(), _mm256_setzero_pd() }; }
// A sum as a product with 1 and an addition has the same bits, and uses other pipes than
// conversions: AMD converts and adds in two pipes and multiplies in two others.
static inline __m256d sum_f64_(__m256d s, __m256d a) { return _mm256_fmadd_pd(a, _mm256_set1_pd(1.0), s); }
static inline vd vd_add(vd s, vf a) { return (vd) { sum_f64_(s.low, low_f64_(a)), sum_f64_(s.high, high_f64_(a)) }; }
static inline vd vd_add_at(vd s, const float * p) {
    return (vd) { sum_f64_(s.low, _mm256_cvtps_pd(_mm_loadu_ps(p))),
        sum_f64_(s.high, _mm256_cvtps_pd(_mm_loadu_ps(p + 4))) };
}
static inline vd vd_mad(vd s, vf a, vf b) {
    return (vd) { _mm256_fmadd_pd(low_f64_(a), low_f64_(b), s.low),
        _mm256_fmadd_pd(high_f64_(a), high_f64_(b), s.high) };
}
static inline vd vd_join(vd a, vd b) { return (vd) { _mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high) }; }
static inline double vd_sum(vd a) {
    const __m256d s = _mm256_add_pd(a.low, a.high);
    const __m128d t = _mm_add_pd(_mm256_castpd256_pd128(s), _mm256_extractf128_pd(s, 1));
    return _mm_cvtsd_f64(_mm_add_sd(t, _mm_unpackhi_pd(t, t)));
}

// Rows to columns: first pairs, then fours, inside the 128-bit halves. Then the halves are
// exchanged.
static inline void v_transpose(vf t[V_N]) {
    vf u[V_N];
    for (int i = 0; i < 8; i += 2) {
        u[i] = _mm256_unpacklo_ps(t[i], t[i + 1]);
        u[i + 1] = _mm256_unpackhi_ps(t[i], t[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        t[i] = _mm256_shuffle_ps(u[i], u[i + 2], 0x44);
        t[i + 1] = _mm256_shuffle_ps(u[i], u[i + 2], 0xee);
        t[i + 2] = _mm256_shuffle_ps(u[i + 1], u[i + 3], 0x44);
        t[i + 3] = _mm256_shuffle_ps(u[i + 1], u[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        const vf low = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
        const vf high = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
        t[i] = low;
        t[i + 4] = high;
    }
}

static inline vf v_recip(vf a) { return _mm256_div_ps(_mm256_set1_ps(1.0f), a); }
static inline vi v_to_int(vf a) { return _mm256_cvtps_epi32(a); }
static inline vf v_swap_pairs(vf a) { return _mm256_permute_ps(a, 0xb1); } // lanes 2j and 2j + 1

// --------------------------------------------------------------------------------------------------- products of bytes

typedef __m256i vb;

static inline vb vb_load(const void * p) { return _mm256_loadu_si256((const __m256i *) p); }
static inline vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
static inline vi vi_lookup16(vi index, const uint8_t * table) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) table)), index);
}
static inline vb vb_set4(const void * p) {
    int32_t four;
    memcpy(&four, p, sizeof(four));
    return _mm256_set1_epi32(four);
}
static inline vi vi_dot4(vi c, vb u, vb s) {
    return _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)));
}
static inline vi vi_dot4w(vi c, vb u, vb s) { // the highest bit apart: sums of two products fit 16 bits
    const vb top = _mm256_and_si256(_mm256_srli_epi16(u, 7), _mm256_set1_epi8(1));
    c = vi_dot4(c, _mm256_and_si256(u, _mm256_set1_epi8(0x7f)), s);
    return _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_maddubs_epi16(top, s), _mm256_set1_epi16(128)));
}

#endif // GB_CPU_KERNELS_VEC_H
