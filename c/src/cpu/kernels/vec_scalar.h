// vec_scalar.h - the vector operations of the templates on plain C scalars: vectors of one lane.
//
// Every vec_<isa>.h defines the same names. This file, the simplest one, explains them:
//   vf, vi, vm, vd      floats, 32-bit integers, comparison results, doubles (as many as vf has lanes)
//   v_load_n, v_store_n the first n lanes (0 <= n <= V_N); loading sets the remaining lanes to zero
//   v_first             keeps the first n lanes and replaces the others
//   v_min, v_max        a < b ? a : b, a > b ? a : b: the second operand if one is NaN
//   v_ordered           where m holds and neither a nor b is NaN
//   v_not_lt            a >= b, or one is NaN
//   v_keep              a where m holds, else +0
//   v_mul_where         a b where m holds, else +0; lanes where m does not hold are not multiplied
//   v_fma               a b + c, rounded once; in this set twice
//   v_sum               of all lanes, in a fixed order
//   v_recip             1 / a within an ulp, for a from 1 to 2^100
//   v_to_int            of an integer in -150 .. 130, as vi
//   v_scale2            with HAVE_SCALE2, instead of v_to_int (math.tpl.h)
//   v_swap_pairs        swaps lanes 2j and 2j + 1 (not with one lane)
//   vb                  4 V_N bytes: four to a lane of vi
//   vb_set4(p)          the four bytes at p in every lane
//   vi_dot4(c, u, s)    c + the sum of u[i] s[i] in each lane; u unsigned, at most 127; s signed, at least -127
//   vi_dot4w            the same for any u ("wide")
//   vi_lookup16         looks up each byte of the index, below 16, in a table
// Results of the operations other than v_fma, v_fnma, v_sum, vd_sum, v_recip have the same bits at
// every level. Sums of bytes are exact. isa.h lists further facts that a vec_<isa>.h states about
// its set.
#ifndef GB_CPU_KERNELS_VEC_H
#define GB_CPU_KERNELS_VEC_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/fp16.h"

#define V_ISA_SCALAR 1
#include "isa.h"

#define V_N 1
#define V_REGISTERS 16
#define V_CHAINS 12
#if defined(__SSE2__) // the registers of floats
#    define V_ASM_REGISTER "x"
#elif defined(__aarch64__)
#    define V_ASM_REGISTER "w"
#else
#    define V_ASM_REGISTER "m"
#endif
#define V_GEMM_MR 4 // rows of a matrix product tile
#define V_GEMM_NV 4 // vectors in a row of it
#define V_BYTES_MR 4
#define V_BYTES_NV 4

typedef float vf;
typedef int32_t vi;
typedef bool vm;
typedef double vd;

static inline vf v_set(float x) { return x; }
static inline vf v_load(const float * p) { return *p; }
static inline vf v_load_n(const float * p, int n) { return n > 0 ? *p : 0.0f; }
static inline void v_store(float * p, vf a) { *p = a; }
static inline void v_store_n(float * p, vf a, int n) {
    if (n > 0) {
        *p = a;
    }
}
static inline vf v_first(vf a, int n, vf rest) { return n > 0 ? a : rest; }

static inline vf v_add(vf a, vf b) { return a + b; }
static inline vf v_sub(vf a, vf b) { return a - b; }
static inline vf v_mul(vf a, vf b) { return a * b; }
static inline vf v_div(vf a, vf b) { return a / b; }
static inline vf v_sqrt(vf a) { return sqrtf(a); }
static inline vf v_fma(vf a, vf b, vf c) { return a * b + c; }
static inline vf v_fnma(vf a, vf b, vf c) { return c - a * b; }
static inline vf v_min(vf a, vf b) { return a < b ? a : b; }
static inline vf v_max(vf a, vf b) { return a > b ? a : b; }
static inline vf v_abs(vf a) { return gb_f32_from_bits(gb_f32_bits(a) & 0x7fffffffu); }
static inline vf v_neg(vf a) { return gb_f32_from_bits(gb_f32_bits(a) ^ 0x80000000u); }
static inline vf v_copysign(vf magnitude, vf sign) {
    return gb_f32_from_bits((gb_f32_bits(magnitude) & 0x7fffffffu) | (gb_f32_bits(sign) & 0x80000000u));
}

static inline vm v_gt(vf a, vf b) { return a > b; }
static inline vm v_lt(vf a, vf b) { return a < b; }
static inline vm v_eq(vf a, vf b) { return a == b; }
static inline vm v_not_lt(vf a, vf b) { return !(a < b); }
static inline vm v_ordered(vm m, vf a, vf b) { return m && a == a && b == b; }
static inline bool vm_all(vm a) { return a; }
static inline vf v_sel(vm m, vf a, vf b) { return m ? a : b; }
static inline vf v_keep(vm m, vf a) { return m ? a : 0.0f; }
static inline vf v_mul_where(vm m, vf a, vf b) { return v_keep(m, a) * b; }

static inline vi v_bits(vf a) { return (vi) gb_f32_bits(a); }
static inline vf v_from_bits(vi a) { return gb_f32_from_bits((uint32_t) a); }
static inline vf v_from_int(vi a) { return (float) a; }
static inline vi vi_set(int32_t x) { return x; }
static inline vi vi_add(vi a, vi b) { return (vi) ((uint32_t) a + (uint32_t) b); } // wraps
static inline vi vi_sub(vi a, vi b) { return (vi) ((uint32_t) a - (uint32_t) b); }
static inline vi vi_and(vi a, vi b) { return a & b; }
static inline vi vi_or(vi a, vi b) { return a | b; }
#define vi_shl(a, n) ((vi) ((uint32_t) (a) << (n)))
#define vi_shr(a, n) ((vi) ((uint32_t) (a) >> (n)))
// a / 2, rounded down
static inline vi vi_half(vi a) { return a >= 0 ? a / 2 : -((1 - a) / 2); }
// a / 2^23, rounded down
static inline vi vi_exponent(vi a) { return a >= 0 ? a >> 23 : ~(~a >> 23); }

static inline vi v_load_u16(const uint16_t * p) { return *p; }
static inline vi v_load_u16_n(const uint16_t * p, int n) { return n > 0 ? *p : 0; }
static inline void v_store_u16(uint16_t * p, vi a) { *p = (uint16_t) a; } // the low halves
static inline void v_store_u16_n(uint16_t * p, vi a, int n) {
    if (n > 0) {
        *p = (uint16_t) a;
    }
}
static inline vf v_load_f16(const uint16_t * p) { return gb_f16_to_f32(*p); }
static inline vf v_load_f16_n(const uint16_t * p, int n) { return n > 0 ? gb_f16_to_f32(*p) : 0.0f; }
static inline void v_store_f16(uint16_t * p, vf a) { *p = gb_f32_to_f16(a); }
static inline void v_store_f16_n(uint16_t * p, vf a, int n) {
    if (n > 0) {
        *p = gb_f32_to_f16(a);
    }
}

static inline float v_sum(vf a) { return a; }
static inline float v_largest(vf a) { return a; }
static inline vd vd_zero(void) { return 0.0; }
static inline vd vd_add(vd s, vf a) { return s + (double) a; }
static inline vd vd_mad(vd s, vf a, vf b) { return s + (double) a * (double) b; }
static inline vd vd_join(vd a, vd b) { return a + b; }
static inline double vd_sum(vd a) { return a; }

static inline void v_transpose(vf t[V_N]) { (void) t; }

static inline vf v_recip(vf a) { return 1.0f / a; }
static inline vi v_to_int(vf a) { return vi_sub(v_bits(v_add(a, v_set(0x1.8p23f))), v_bits(v_set(0x1.8p23f))); }

// --------------------------------------------------------------------------------------------------- products of bytes

typedef struct {
    uint8_t b[4];
} vb;

static inline vb vb_load(const void * p) {
    vb v;
    memcpy(&v, p, sizeof(v));
    return v;
}
static inline vb vb_set4(const void * p) { return vb_load(p); }
static inline vi vi_xor(vi a, vi b) { return a ^ b; }
static inline vi vi_lookup16(vi index, const uint8_t * table) {
    const uint32_t i = (uint32_t) index;
    return (vi) (table[i & 15] | (uint32_t) table[i >> 8 & 15] << 8 | (uint32_t) table[i >> 16 & 15] << 16 |
                 (uint32_t) table[i >> 24 & 15] << 24);
}
static inline vi vi_dot4(vi c, vb u, vb s) {
    return c + u.b[0] * (int8_t) s.b[0] + u.b[1] * (int8_t) s.b[1] + u.b[2] * (int8_t) s.b[2] +
           u.b[3] * (int8_t) s.b[3];
}
static inline vi vi_dot4w(vi c, vb u, vb s) { return vi_dot4(c, u, s); }

#endif // GB_CPU_KERNELS_VEC_H
