// vec_avx512.h - the vector operations of the templates on AVX-512 (F, BW, DQ, VL): sixteen lanes.
// vec_scalar.h explains them.
#ifndef GB_CPU_KERNELS_VEC_H
#define GB_CPU_KERNELS_VEC_H

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "x86.h"

#define V_ISA_AVX512 1
#define HAVE_LOAD_I8 1
#define V_LOOKUP 1
#define HAVE_SCALE2 1
#define HAVE_ROUGH_RECIPROCALS 1
#define HAVE_STREAM 1
#define HAVE_STORE_HIGH 1
#ifdef __AVX512VNNI__
#    define HAVE_VNNI 1
#endif
#ifdef __AVX512VBMI__
#    define HAVE_VBMI 1
#endif
#ifdef __AVX512BF16__
#    define HAVE_BF16_DOT 1
#endif
#ifdef __AMX_BF16__
#    define HAVE_AMX_BF16 1
#endif
#include "cpu/kernels/isa.h"
#include "cpu/kernels/compiler.h"

#define V_N 16
#define V_REGISTERS 32
#define V_CHAINS 20
#define V_ASM_REGISTER "v"
#define V_GEMM_MR 12 // 24 accumulators, 2 vectors of b; a is broadcast from memory
#define V_GEMM_NV 2
#define V_BYTES_MR 6
#define V_BYTES_NV 2

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;
typedef struct {
    __m512d low, high;
} vd;

static inline __mmask16 lanes_below_(int n) { return (__mmask16) _bzhi_u32(0xffffu, (unsigned) n); }

static inline vf v_set(float x) { return _mm512_set1_ps(x); }
static inline vf v_load(const float * p) { return _mm512_loadu_ps(p); }
static inline vf v_load_n(const float * p, int n) { return _mm512_maskz_loadu_ps(lanes_below_(n), p); }
static inline void v_store(float * p, vf a) { _mm512_storeu_ps(p, a); }
static inline void v_stream(float * p, vf a) { _mm512_stream_ps(p, a); }
static inline void stream_done_(void) { _mm_sfence(); }
static inline void v_store_n(float * p, vf a, int n) { _mm512_mask_storeu_ps(p, lanes_below_(n), a); }
static inline vf v_first(vf a, int n, vf rest) { return _mm512_mask_mov_ps(rest, lanes_below_(n), a); }

static inline vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf v_sqrt(vf a) { return _mm512_sqrt_ps(a); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf v_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
static inline vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf v_abs(vf a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
static inline vf v_neg(vf a) { return _mm512_xor_ps(_mm512_set1_ps(-0.0f), a); }
static inline vf v_copysign(vf magnitude, vf sign) { // bit ? sign : magnitude
    const __m512i bit = _mm512_set1_epi32(INT32_MIN);
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(bit, _mm512_castps_si512(sign), _mm512_castps_si512(magnitude),
        0xca));
}

static inline vm v_gt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
static inline vm v_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline vm v_eq(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
static inline vm v_not_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }
static inline vm v_ordered(vm m, vf a, vf b) { return _mm512_mask_cmp_ps_mask(m, a, b, _CMP_ORD_Q); }
static inline bool vm_all(vm a) { return a == 0xffff; }
static inline vf v_sel(vm m, vf a, vf b) { return _mm512_mask_mov_ps(b, m, a); }
static inline vf v_keep(vm m, vf a) { return _mm512_maskz_mov_ps(m, a); }
static inline vf v_mul_where(vm m, vf a, vf b) { return _mm512_maskz_mul_ps(m, a, b); }

static inline vi v_bits(vf a) { return _mm512_castps_si512(a); }
static inline vf v_from_bits(vi a) { return _mm512_castsi512_ps(a); }
static inline vf v_load_i8(const int8_t * p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) (const void *) p)));
}
static inline vf v_from_int(vi a) { return _mm512_cvtepi32_ps(a); }
static inline vi vi_set(int32_t x) { return _mm512_set1_epi32(x); }
static inline vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
static inline vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
static inline vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
static inline vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
#define vi_shl(a, n) _mm512_slli_epi32((a), (n))
#define vi_shr(a, n) _mm512_srli_epi32((a), (n))
static inline vi vi_half(vi a) { return _mm512_srai_epi32(a, 1); }
static inline vi vi_exponent(vi a) { return _mm512_srai_epi32(a, 23); }

static inline __m256i load_halves_(const uint16_t * p) { return _mm256_loadu_si256((const __m256i *) p); }
static inline __m256i load_halves_n_(const uint16_t * p, int n) { return _mm256_maskz_loadu_epi16(lanes_below_(n), p); }

static inline vi v_load_u16(const uint16_t * p) { return _mm512_cvtepu16_epi32(load_halves_(p)); }
static inline vi v_load_u16_n(const uint16_t * p, int n) { return _mm512_cvtepu16_epi32(load_halves_n_(p, n)); }
static inline void v_store_u16_high(uint16_t * p, vi a, vi b) {
    const __m512i upper = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
        25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    _mm512_storeu_si512(p, _mm512_permutex2var_epi16(a, upper, b));
}
static inline void v_store_u16(uint16_t * p, vi a) { _mm256_storeu_si256((__m256i *) p, _mm512_cvtepi32_epi16(a)); }
static inline void v_store_u16_n(uint16_t * p, vi a, int n) {
    _mm256_mask_storeu_epi16(p, lanes_below_(n), _mm512_cvtepi32_epi16(a));
}
static inline vf v_load_f16(const uint16_t * p) { return _mm512_cvtph_ps(load_halves_(p)); }
static inline vf v_load_f16_n(const uint16_t * p, int n) { return _mm512_cvtph_ps(load_halves_n_(p, n)); }
static inline void v_store_f16(uint16_t * p, vf a) {
    __m256i halves = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
    IN_REGISTER(halves); // AMD converts to memory at two thirds of the rate
    _mm256_storeu_si256((__m256i *) p, halves);
}
static inline void v_store_f16_n(uint16_t * p, vf a, int n) {
    _mm256_mask_storeu_epi16(p, lanes_below_(n), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

static inline float v_sum(vf a) { return _mm512_reduce_add_ps(a); }
static inline float v_largest(vf a) { return _mm512_reduce_max_ps(a); } // no NaN
static inline __m512d low_f64_(vf a) { return _mm512_cvtps_pd(_mm512_castps512_ps256(a)); }
static inline __m512d high_f64_(vf a) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)); }
static inline vd vd_zero(void) { return (vd) { _mm512_setzero_pd(), _mm512_setzero_pd() }; }
// A sum as a product with 1 and an addition has the same bits, and uses other pipes than
// conversions: AMD converts and adds in two pipes and multiplies in two others.
static inline __m512d sum_f64_(__m512d s, __m512d a) { return _mm512_fmadd_pd(a, _mm512_set1_pd(1.0), s); }
static inline vd vd_add(vd s, vf a) { return (vd) { sum_f64_(s.low, low_f64_(a)), sum_f64_(s.high, high_f64_(a)) }; }
static inline vd vd_mad(vd s, vf a, vf b) {
    return (vd) { _mm512_fmadd_pd(low_f64_(a), low_f64_(b), s.low),
        _mm512_fmadd_pd(high_f64_(a), high_f64_(b), s.high) };
}
static inline vd vd_join(vd a, vd b) { return (vd) { _mm512_add_pd(a.low, b.low), _mm512_add_pd(a.high, b.high) }; }
static inline double vd_sum(vd a) { return _mm512_reduce_add_pd(_mm512_add_pd(a.low, a.high)); }

// Rows to columns: first pairs, then fours, inside the 128-bit quarters. Then the quarters are
// exchanged in two steps.
static inline void v_transpose(vf t[V_N]) {
    vf u[V_N];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        u[i] = _mm512_unpacklo_ps(t[i], t[i + 1]);
        u[i + 1] = _mm512_unpackhi_ps(t[i], t[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) { // quarter q of the new t[i + c] is column 4 q + c of rows i .. i + 3
        t[i] = _mm512_shuffle_ps(u[i], u[i + 2], 0x44);
        t[i + 1] = _mm512_shuffle_ps(u[i], u[i + 2], 0xee);
        t[i + 2] = _mm512_shuffle_ps(u[i + 1], u[i + 3], 0x44);
        t[i + 3] = _mm512_shuffle_ps(u[i + 1], u[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        u[c] = _mm512_shuffle_f32x4(t[c], t[c + 4], 0x88);          // quarters 0 and 2, rows 0 .. 7
        u[c + 4] = _mm512_shuffle_f32x4(t[c], t[c + 4], 0xdd);      // quarters 1 and 3
        u[c + 8] = _mm512_shuffle_f32x4(t[c + 8], t[c + 12], 0x88); // rows 8 .. 15
        u[c + 12] = _mm512_shuffle_f32x4(t[c + 8], t[c + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        t[c] = _mm512_shuffle_f32x4(u[c], u[c + 8], 0x88);
        t[c + 8] = _mm512_shuffle_f32x4(u[c], u[c + 8], 0xdd);
        t[c + 4] = _mm512_shuffle_f32x4(u[c + 4], u[c + 12], 0x88);
        t[c + 12] = _mm512_shuffle_f32x4(u[c + 4], u[c + 12], 0xdd);
    }
}

static inline vf v_recip(vf a) { // one Newton step from 14 bits
    const vf r = _mm512_rcp14_ps(a);
    return _mm512_fmadd_ps(r, _mm512_fnmadd_ps(a, r, _mm512_set1_ps(1.0f)), r);
}
static inline vf v_scale2(vf p, vf n) { return _mm512_scalef_ps(p, n); }

// Further operations for math_lookup.tpl.h.
static inline vf v_lookup(const float table[16], vi index) { // by the low four bits
    return _mm512_permutexvar_ps(index, _mm512_loadu_ps(table));
}
static inline vf v_recip_rough(vf a) { return _mm512_rcp14_ps(a); } // 14 bits
// p 2^(n rounded down). _where: only where m holds, else +0
static inline vf v_scale_floor(vf p, vf n) { return _mm512_scalef_ps(p, n); }
static inline vf v_scale_floor_where(vm m, vf p, vf n) { return _mm512_maskz_scalef_ps(m, p, n); }
// a b where m holds, else `rest`
static inline vf v_mul_or(vf rest, vm m, vf a, vf b) { return _mm512_mask_mul_ps(rest, m, a, b); }

static inline vf v_swap_pairs(vf a) { return _mm512_permute_ps(a, 0xb1); } // lanes 2j and 2j + 1

// Adds the halves of each of two vectors, and puts the sums side by side.
static inline vf half_sums_(vf a, vf b) {
    return v_add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

// --------------------------------------------------------------------------------------------------- products of bytes

typedef __m512i vb;

static inline vb vb_load(const void * p) { return _mm512_loadu_si512(p); }
static inline vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
static inline vi vi_lookup16(vi index, const uint8_t * table) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *) table)), index);
}
static inline vb vb_set4(const void * p) {
    int32_t four;
    memcpy(&four, p, sizeof(four));
    return _mm512_set1_epi32(four);
}
#if HAVE_VNNI
static inline vi vi_dot4(vi c, vb u, vb s) { return _mm512_dpbusd_epi32(c, u, s); }
static inline vi vi_dot4w(vi c, vb u, vb s) { return _mm512_dpbusd_epi32(c, u, s); }
#else
static inline vi vi_dot4(vi c, vb u, vb s) {
    return _mm512_add_epi32(c, _mm512_madd_epi16(_mm512_maddubs_epi16(u, s), _mm512_set1_epi16(1)));
}
static inline vi vi_dot4w(vi c, vb u, vb s) { // the highest bit apart: sums of two products fit 16 bits
    const vb top = _mm512_and_si512(_mm512_srli_epi16(u, 7), _mm512_set1_epi8(1));
    c = vi_dot4(c, _mm512_and_si512(u, _mm512_set1_epi8(0x7f)), s);
    return _mm512_add_epi32(c, _mm512_madd_epi16(_mm512_maddubs_epi16(top, s), _mm512_set1_epi16(128)));
}
#endif

#if HAVE_BF16_DOT
static inline bool v_has_subnormal(vf a, vf b) {
    return _mm512_kortestz(_mm512_fpclass_ps_mask(a, 0x20), _mm512_fpclass_ps_mask(b, 0x20)) == 0;
}
static inline vf v_dot_bf16(vf c, vf a, vf b) { return _mm512_dpbf16_ps(c, (__m512bh) a, (__m512bh) b); }

static inline void v_store_bf16(uint16_t * p, vf a, vf b) {
    _mm512_storeu_si512(p, (__m512i) _mm512_cvtne2ps_pbh(b, a));
}

static inline vi v_bf16_pairs(vf a, vf b) {
    const __m512i low_and_high = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
        22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(low_and_high, (__m512i) _mm512_cvtne2ps_pbh(b, a));
}
#endif

#endif // GB_CPU_KERNELS_VEC_H
