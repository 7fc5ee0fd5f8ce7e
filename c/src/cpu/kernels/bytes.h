// bytes.h - products of bytes, four to a 32-bit lane: what the int8 kernels need beside the vector operations of
// vec_<isa>.h.
//
//   vb              4 V_N bytes
//   vb_set4(p)      the four bytes at p in every lane
//   vi_dot4(c,u,s)  c + the sum of u[i] s[i] in each lane; u unsigned, at most 127; s signed, at least -127
//   vi_dot4w        the same for any u ("wide")
//   vi_lookup16     each byte of the index, below 16, through a table
// Sums of bytes are exact, so that all levels agree in them.
#ifndef GB_CPU_KERNELS_BYTES_H
#define GB_CPU_KERNELS_BYTES_H

#include <string.h>

#if V_N == 16

typedef __m512i vb;
#    define V_BYTES_MR 6
#    define V_BYTES_NV 2

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
#    if defined(__AVX512VNNI__)
static inline vi vi_dot4(vi c, vb u, vb s) { return _mm512_dpbusd_epi32(c, u, s); }
static inline vi vi_dot4w(vi c, vb u, vb s) { return _mm512_dpbusd_epi32(c, u, s); }
#    else
static inline vi vi_dot4(vi c, vb u, vb s) {
    return _mm512_add_epi32(c, _mm512_madd_epi16(_mm512_maddubs_epi16(u, s), _mm512_set1_epi16(1)));
}
static inline vi vi_dot4w(vi c, vb u, vb s) { // the uppermost bit apart: sums of two products fit 16 bits
    const vb top = _mm512_and_si512(_mm512_srli_epi16(u, 7), _mm512_set1_epi8(1));
    c            = vi_dot4(c, _mm512_and_si512(u, _mm512_set1_epi8(0x7f)), s);
    return _mm512_add_epi32(c, _mm512_madd_epi16(_mm512_maddubs_epi16(top, s), _mm512_set1_epi16(128)));
}
#    endif

#elif V_N == 8

typedef __m256i vb;
#    define V_BYTES_MR 6
#    define V_BYTES_NV 1

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
static inline vi vi_dot4w(vi c, vb u, vb s) { // the uppermost bit apart: sums of two products fit 16 bits
    const vb top = _mm256_and_si256(_mm256_srli_epi16(u, 7), _mm256_set1_epi8(1));
    c            = vi_dot4(c, _mm256_and_si256(u, _mm256_set1_epi8(0x7f)), s);
    return _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_maddubs_epi16(top, s), _mm256_set1_epi16(128)));
}

#elif V_N == 4

typedef uint8x16_t vb;
#    define V_BYTES_MR 6
#    define V_BYTES_NV 2

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
#    if defined(__ARM_FEATURE_DOTPROD)
static inline vi signed_dot4_(vi c, int8x16_t a, int8x16_t b) { return vdotq_s32(c, a, b); }
#    else
static inline vi signed_dot4_(vi c, int8x16_t a, int8x16_t b) {
    const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
    return vaddq_s32(c, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
}
#    endif
#    if defined(__ARM_FEATURE_MATMUL_INT8) // unsigned times signed
static inline vi vi_dot4(vi c, vb u, vb s) { return vusdotq_s32(c, u, vreinterpretq_s8_u8(s)); }
static inline vi vi_dot4w(vi c, vb u, vb s) { return vi_dot4(c, u, s); }
#    else
static inline vi vi_dot4(vi c, vb u, vb s) { return signed_dot4_(c, vreinterpretq_s8_u8(u), vreinterpretq_s8_u8(s)); }
static inline vi vi_dot4w(vi c, vb u, vb s) { // u - 128 and 128
    c = vi_dot4(c, veorq_u8(u, vdupq_n_u8(0x80)), s);
    c = vi_dot4(c, vdupq_n_u8(64), s);
    return vi_dot4(c, vdupq_n_u8(64), s);
}
#    endif

#else // one lane of four bytes

typedef struct {
    uint8_t b[4];
} vb;
#    define V_BYTES_MR 4
#    define V_BYTES_NV 4

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

#endif

#endif // GB_CPU_KERNELS_BYTES_H
