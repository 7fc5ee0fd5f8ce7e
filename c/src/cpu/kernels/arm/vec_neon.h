// vec_neon.h - the vector operations of the templates on arm64's Advanced SIMD: four lanes.
// vec_scalar.h explains them.
#ifndef GB_CPU_KERNELS_VEC_H
#define GB_CPU_KERNELS_VEC_H

#include <arm_neon.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __ARM_FEATURE_MATMUL_INT8
#    define HAVE_I8MM 1
#endif
#include "cpu/kernels/isa.h"

#define V_N 4
#define V_REGISTERS 32
#define V_CHAINS 24
#define V_ASM_REGISTER "w"
#define V_GEMM_MR 6 // 24 accumulators, 4 vectors of b, 1 broadcast: 29 of 32 registers
#define V_GEMM_NV 4
#define V_BYTES_MR 6
#define V_BYTES_NV 2

typedef float32x4_t vf;
typedef int32x4_t vi;
typedef uint32x4_t vm;
typedef struct {
    float64x2_t low, high;
} vd;

static inline vm lanes_below_(int n) { // all bits of the first n lanes
    static const int32_t index[4] = { 0, 1, 2, 3 };
    return vcltq_s32(vld1q_s32(index), vdupq_n_s32(n));
}

static inline vf v_set(float x) { return vdupq_n_f32(x); }
static inline vf v_load(const float * p) { return vld1q_f32(p); }
static inline vf v_load_n(const float * p, int n) {
    float part[V_N] = { 0 };
    memcpy(part, p, (size_t) n * sizeof(*p));
    return vld1q_f32(part);
}
static inline void v_store(float * p, vf a) { vst1q_f32(p, a); }
static inline void v_store_n(float * p, vf a, int n) {
    float part[V_N];
    vst1q_f32(part, a);
    memcpy(p, part, (size_t) n * sizeof(*p));
}
static inline vf v_sel(vm m, vf a, vf b) { return vbslq_f32(m, a, b); }
static inline vf v_first(vf a, int n, vf rest) { return v_sel(lanes_below_(n), a, rest); }

static inline vm v_gt(vf a, vf b) { return vcgtq_f32(a, b); }
static inline vm v_lt(vf a, vf b) { return vcltq_f32(a, b); }
static inline vm v_eq(vf a, vf b) { return vceqq_f32(a, b); }

static inline vm v_not_lt(vf a, vf b) { return vmvnq_u32(vcltq_f32(a, b)); }
static inline vm v_ordered(vm m, vf a, vf b) { return vandq_u32(m, vandq_u32(vceqq_f32(a, a), vceqq_f32(b, b))); }
static inline bool vm_all(vm a) { return vminvq_u32(a) != 0; }

static inline vf v_add(vf a, vf b) { return vaddq_f32(a, b); }
static inline vf v_sub(vf a, vf b) { return vsubq_f32(a, b); }
static inline vf v_mul(vf a, vf b) { return vmulq_f32(a, b); }
static inline vf v_keep(vm m, vf a) { return vreinterpretq_f32_u32(vandq_u32(m, vreinterpretq_u32_f32(a))); }
static inline vf v_mul_where(vm m, vf a, vf b) { return v_mul(v_keep(m, a), b); }
static inline vf v_div(vf a, vf b) { return vdivq_f32(a, b); }
static inline vf v_sqrt(vf a) { return vsqrtq_f32(a); }
static inline vf v_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline vf v_fnma(vf a, vf b, vf c) { return vfmsq_f32(c, a, b); }
static inline vf v_min(vf a, vf b) { return v_sel(v_lt(a, b), a, b); } // vminq would return a NaN of either operand
static inline vf v_max(vf a, vf b) { return v_sel(v_gt(a, b), a, b); }
static inline vf v_abs(vf a) { return vabsq_f32(a); }
static inline vf v_neg(vf a) { return vnegq_f32(a); }
static inline vf v_copysign(vf magnitude, vf sign) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude); }

static inline vi v_bits(vf a) { return vreinterpretq_s32_f32(a); }
static inline vf v_from_bits(vi a) { return vreinterpretq_f32_s32(a); }
static inline vf v_from_int(vi a) { return vcvtq_f32_s32(a); }
static inline vi vi_set(int32_t x) { return vdupq_n_s32(x); }
static inline vi vi_add(vi a, vi b) { return vaddq_s32(a, b); }
static inline vi vi_sub(vi a, vi b) { return vsubq_s32(a, b); }
static inline vi vi_and(vi a, vi b) { return vandq_s32(a, b); }
static inline vi vi_or(vi a, vi b) { return vorrq_s32(a, b); }
#define vi_shl(a, n) vshlq_n_s32((a), (n))
#define vi_shr(a, n) vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), (n)))
static inline vi vi_half(vi a) { return vshrq_n_s32(a, 1); }
static inline vi vi_exponent(vi a) { return vshrq_n_s32(a, 23); }

static inline uint16x4_t load_halves_n_(const uint16_t * p, int n) {
    uint16_t part[V_N] = { 0 };
    memcpy(part, p, (size_t) n * sizeof(*p));
    return vld1_u16(part);
}
static inline void store_halves_n_(uint16_t * p, uint16x4_t a, int n) {
    uint16_t part[V_N];
    vst1_u16(part, a);
    memcpy(p, part, (size_t) n * sizeof(*p));
}
static inline uint16x4_t to_f16_(vf a) { return vreinterpret_u16_f16(vcvt_f16_f32(a)); }
static inline vf from_f16_(uint16x4_t h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }
static inline uint16x4_t low_halves_(vi a) { return vmovn_u32(vreinterpretq_u32_s32(a)); }
static inline vi from_halves_(uint16x4_t h) { return vreinterpretq_s32_u32(vmovl_u16(h)); }

static inline vi v_load_u16(const uint16_t * p) { return from_halves_(vld1_u16(p)); }
static inline vi v_load_u16_n(const uint16_t * p, int n) { return from_halves_(load_halves_n_(p, n)); }
static inline void v_store_u16(uint16_t * p, vi a) { vst1_u16(p, low_halves_(a)); }
static inline void v_store_u16_n(uint16_t * p, vi a, int n) { store_halves_n_(p, low_halves_(a), n); }
static inline vf v_load_f16(const uint16_t * p) { return from_f16_(vld1_u16(p)); }
static inline vf v_load_f16_n(const uint16_t * p, int n) { return from_f16_(load_halves_n_(p, n)); }
static inline void v_store_f16(uint16_t * p, vf a) { vst1_u16(p, to_f16_(a)); }
static inline void v_store_f16_n(uint16_t * p, vf a, int n) { store_halves_n_(p, to_f16_(a), n); }

static inline float v_sum(vf a) { return vaddvq_f32(a); }
static inline float v_largest(vf a) { return vmaxvq_f32(a); } // no NaN
static inline float64x2_t low_f64_(vf a) { return vcvt_f64_f32(vget_low_f32(a)); }
static inline float64x2_t high_f64_(vf a) { return vcvt_high_f64_f32(a); }
static inline vd vd_zero(void) { return (vd) { vdupq_n_f64(0), vdupq_n_f64(0) }; }
static inline vd vd_add(vd s, vf a) { return (vd) { vaddq_f64(s.low, low_f64_(a)), vaddq_f64(s.high, high_f64_(a)) }; }
static inline vd vd_mad(vd s, vf a, vf b) {
    return (vd) { vfmaq_f64(s.low, low_f64_(a), low_f64_(b)), vfmaq_f64(s.high, high_f64_(a), high_f64_(b)) };
}
static inline vd vd_join(vd a, vd b) { return (vd) { vaddq_f64(a.low, b.low), vaddq_f64(a.high, b.high) }; }
static inline double vd_sum(vd a) { return vaddvq_f64(vaddq_f64(a.low, a.high)); }

static inline void v_transpose(vf t[V_N]) { // rows to columns: pairs of rows, then the halves
    const float32x4x2_t a = vtrnq_f32(t[0], t[1]);
    const float32x4x2_t b = vtrnq_f32(t[2], t[3]);
    t[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
    t[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
    t[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
    t[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}

static inline vf v_recip(vf a) { return vdivq_f32(vdupq_n_f32(1.0f), a); }
static inline vi v_to_int(vf a) { return vcvtq_s32_f32(a); }
static inline vf v_swap_pairs(vf a) { return vrev64q_f32(a); } // lanes 2j and 2j + 1

// --------------------------------------------------------------------------------------------------- products of bytes

typedef uint8x16_t vb;

static inline vb vb_load(const void * p) { return vld1q_u8(p); }
static inline vi vi_xor(vi a, vi b) { return veorq_s32(a, b); }
static inline vi vi_lookup16(vi index, const uint8_t * table) {
    return vreinterpretq_s32_u8(vqtbl1q_u8(vld1q_u8(table), vreinterpretq_u8_s32(index)));
}
static inline vb vb_set4(const void * p) {
    uint32_t four;
    memcpy(&four, p, sizeof(four));
    return vreinterpretq_u8_u32(vdupq_n_u32(four));
}
#if defined(__ARM_FEATURE_DOTPROD)
static inline vi signed_dot4_(vi c, int8x16_t a, int8x16_t b) { return vdotq_s32(c, a, b); }
#else
static inline vi signed_dot4_(vi c, int8x16_t a, int8x16_t b) {
    const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
    return vaddq_s32(c, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
}
#endif
#if HAVE_I8MM // unsigned times signed
static inline vi vi_dot4(vi c, vb u, vb s) { return vusdotq_s32(c, u, vreinterpretq_s8_u8(s)); }
static inline vi vi_dot4w(vi c, vb u, vb s) { return vi_dot4(c, u, s); }
#else
static inline vi vi_dot4(vi c, vb u, vb s) { return signed_dot4_(c, vreinterpretq_s8_u8(u), vreinterpretq_s8_u8(s)); }
static inline vi vi_dot4w(vi c, vb u, vb s) { // u - 128 and 128
    c = vi_dot4(c, veorq_u8(u, vdupq_n_u8(0x80)), s);
    c = vi_dot4(c, vdupq_n_u8(64), s);
    return vi_dot4(c, vdupq_n_u8(64), s);
}
#endif

#endif // GB_CPU_KERNELS_VEC_H
