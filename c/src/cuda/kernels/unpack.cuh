// unpack.cuh - quantized blocks to integers, for all formats.
//
// 32 adjacent elements of any format are 32 signed bytes, with a scale and an offset for each half
// (struct gb_group). gb_format<TYPE> has the elements and bytes of a block, and unpacks a group.
// Products, GET_ROWS and copies are written for groups, once for all formats; the fastest kernels decode
// the common formats themselves (matvec_quick.cuh, few_rows.cuh, attention_ext.cuh). The bytes may be at
// any address in global or shared memory. formats.def defines the layout of a block,
// c/src/tensor/quant/<stem>.c the values.
#ifndef GB_CUDA_KERNELS_UNPACK_CUH
#define GB_CUDA_KERNELS_UNPACK_CUH

#include <stdint.h>

#include "cuda/kernels/bits.cuh"
#include "ggml.h"
#include "tensor/quant/blocks.h"

#define GB_GRID_TABLE [[maybe_unused]] GB_CONST
#include "tensor/quant/grids.c"
#undef GB_GRID_TABLE

struct gb_group { // element i is d[i / 16] level i + m[i / 16]; level i is byte i % 4 of q[i / 4]
    int q[8];
    float d[2], m[2];
};

// ----------------------------------------------------------------------------------------------------- bytes of blocks

// 32-bit words at an address of any alignment. Reads no word outside of the requested bytes.
struct gb_words {
    const uint32_t * aligned;
    uint32_t shift; // bits
    GB_METHOD explicit gb_words(const uint8_t * p) {
        const uint32_t beyond = (uint32_t) (uintptr_t) p & 3;
        aligned = (const uint32_t *) (const void *) (p - beyond); // the compiler still knows the address space
        shift = beyond * 8;
    }
    GB_METHOD uint32_t operator[](int i) const {
        const uint32_t low = aligned[i], high = shift != 0 ? aligned[i + 1] : 0;
        return gb_funnel_right(low, high, shift);
    }
};

GB_DEVICE uint32_t gb_read_u16(const uint8_t * p) { return p[0] | (uint32_t) p[1] << 8; }

GB_DEVICE uint32_t gb_read_u32(const uint8_t * p) { return gb_words(p)[0]; }

GB_DEVICE float gb_read_f16(const uint8_t * p) { return gb_half_bits_to_float((uint16_t) gb_read_u16(p)); }

GB_DEVICE float gb_read_f32(const uint8_t * p) { return gb_bits_to_float(gb_read_u32(p)); }

// -------------------------------------------------------------------------------------------- four bytes in a register

// x - c for each byte, with x in 0 .. 127 and c up to 128.
GB_DEVICE uint32_t gb_sub4(uint32_t x, uint32_t c) { return ((x | 0x80808080u) - c * 0x01010101u) ^ 0x80808080u; }

// Moves bit i of four to bit 0 of byte i.
GB_DEVICE uint32_t gb_spread4(uint32_t bits) { return ((bits & 15) * 0x00204081u) & 0x01010101u; }

// Negates the bytes that have a bit; none of them is 0.
GB_DEVICE uint32_t gb_negate4(uint32_t x, uint32_t bits) {
    const uint32_t ones = gb_spread4(bits);
    return (x ^ ones * 0xff) + ones;
}

// Turns eight codes of 2 bits into values: a code selects a byte of the table.
GB_DEVICE void gb_lookup2(uint32_t row, uint32_t table, int * q) {
    uint32_t x = (row | row << 8) & 0x00ff00ffu; // a code for each nibble, 4 codes in each half
    x = (x | x << 4) & 0x0f0f0f0fu;
    x = (x | x << 2) & 0x33333333u;
    q[0] = (int) gb_perm(table, 0, x & 0xffff);
    q[1] = (int) gb_perm(table, 0, x >> 16);
}

struct gb_table16 { // sixteen bytes
    uint32_t w[4];
};

// Turns the four nibbles of `codes` into values.
GB_DEVICE uint32_t gb_lookup4(const gb_table16 & t, uint32_t codes) {
    const uint32_t low = gb_perm(t.w[0], t.w[1], codes & 0x7777), high = gb_perm(t.w[2], t.w[3], codes & 0x7777);
    return gb_perm(low, high, 0x3210 | (codes & 0x8888) >> 1);
}

// Turns the low nibbles of four bytes into values in *low, the high ones in *high.
GB_DEVICE void gb_lookup_nibbles(const gb_table16 & t, uint32_t bytes, int * low, int * high) {
    const uint32_t a = gb_lookup4(t, bytes & 0xffff), b = gb_lookup4(t, bytes >> 16);
    *low = (int) gb_perm(a, b, 0x6420);
    *high = (int) gb_perm(a, b, 0x7531);
}

// Values as the bytes of words. The arguments are those of GB_VALUES_*.
#define GB_WORD(a, b, c, d)                                                                      \
    ((uint32_t) (uint8_t) (a) | (uint32_t) (uint8_t) (b) << 8 | (uint32_t) (uint8_t) (c) << 16 | \
        (uint32_t) (uint8_t) (d) << 24)
#define GB_WORD_OF_3(...) GB_WORD_OF_3_(__VA_ARGS__)
#define GB_WORD_OF_3_(a, b, c) GB_WORD(a, b, c, 0)
#define GB_WORDS_OF_8(...) GB_WORDS_OF_8_(__VA_ARGS__)
#define GB_WORDS_OF_8_(a, b, c, d, e, f, g, h) GB_WORD(a, b, c, d), GB_WORD(e, f, g, h)
#define GB_WORDS_OF_16(...) GB_WORDS_OF_16_(__VA_ARGS__)
#define GB_WORDS_OF_16_(a, b, c, d, e, f, g, h, ...) GB_WORDS_OF_8_(a, b, c, d, e, f, g, h), GB_WORDS_OF_8_(__VA_ARGS__)

GB_DEVICE gb_table16 gb_iq4_table() { return { { GB_WORDS_OF_16(GB_VALUES_IQ4(GB_VALUE)) } }; }

GB_DEVICE gb_table16 gb_e2m1_table() { return { { GB_WORDS_OF_16(GB_VALUES_E2M1(GB_VALUE)) } }; }

GB_DEVICE void gb_scales(gb_group & o, float d, float m) {
    o.d[0] = o.d[1] = d;
    o.m[0] = o.m[1] = m;
}

GB_DEVICE void gb_scales2(gb_group & o, float d0, float d1) {
    o.d[0] = d0;
    o.d[1] = d1;
    o.m[0] = o.m[1] = 0;
}

// ------------------------------------------------------------------------------------------------------------- formats

// block: elements. bytes: of a block. offsets: some m is not 0. unpack: group `g` of the block at p.
template <int TYPE> struct gb_format;

#define GB_FORMAT(id, stem, name, n_elements, n_bytes, group, zero, ...)      \
    template <> struct gb_format<GGML_TYPE_##id> {                            \
        static constexpr int block = n_elements, bytes = n_bytes;             \
        static constexpr bool offsets = (zero) == 0;                          \
        static GB_METHOD void unpack(const uint8_t * p, int g, gb_group & o); \
    };
#include "tensor/quant/formats.def"
#undef GB_FORMAT

// Begins the definition of a format's unpack. A row of formats.def without a definition does not
// link.
#define GB_UNPACK(id) \
    GB_METHOD void gb_format<GGML_TYPE_##id>::unpack(const uint8_t * p, [[maybe_unused]] int g, gb_group & o)

// Sixteen bytes of nibbles: the low ones are the first half of a group, the high ones the second.
GB_DEVICE void gb_nibbles(const uint8_t * p, gb_group & o) {
    const gb_words w(p);
    GB_UNROLL for (int i = 0; i < 4; i++) {
        const uint32_t x = w[i];
        o.q[i] = (int) (x & 0x0f0f0f0fu);
        o.q[i + 4] = (int) (x >> 4 & 0x0f0f0f0fu);
    }
}

GB_DEVICE void gb_fifth_bits(uint32_t bits, gb_group & o) {
    GB_UNROLL for (int i = 0; i < 8; i++) { o.q[i] |= (int) (gb_spread4(bits >> 4 * i) << 4); }
}

GB_DEVICE void gb_subtract(gb_group & o, uint32_t c) {
    GB_UNROLL for (int i = 0; i < 8; i++) { o.q[i] = (int) gb_sub4((uint32_t) o.q[i], c); }
}

GB_DEVICE void gb_bytes(const uint8_t * p, gb_group & o) {
    const gb_words w(p);
    GB_UNROLL for (int i = 0; i < 8; i++) { o.q[i] = (int) w[i]; }
}

GB_UNPACK(Q4_0) {
    gb_nibbles(p + GB_AT(q4_0, qs), o);
    gb_subtract(o, GB_ZERO(q4_0));
    gb_scales(o, gb_read_f16(p + GB_AT(q4_0, d)), 0);
}

GB_UNPACK(Q4_1) {
    gb_nibbles(p + GB_AT(q4_1, qs), o);
    gb_scales(o, gb_read_f16(p + GB_AT(q4_1, d)), gb_read_f16(p + GB_AT(q4_1, m)));
}

GB_UNPACK(Q5_0) {
    gb_nibbles(p + GB_AT(q5_0, qs), o);
    gb_fifth_bits(gb_read_u32(p + GB_AT(q5_0, qh)), o);
    gb_subtract(o, GB_ZERO(q5_0));
    gb_scales(o, gb_read_f16(p + GB_AT(q5_0, d)), 0);
}

GB_UNPACK(Q5_1) {
    gb_nibbles(p + GB_AT(q5_1, qs), o);
    gb_fifth_bits(gb_read_u32(p + GB_AT(q5_1, qh)), o);
    gb_scales(o, gb_read_f16(p + GB_AT(q5_1, d)), gb_read_f16(p + GB_AT(q5_1, m)));
}

GB_UNPACK(Q8_0) {
    gb_bytes(p + GB_AT(q8_0, qs), o);
    gb_scales(o, gb_read_f16(p + GB_AT(q8_0, d)), 0);
}

GB_UNPACK(Q8_1) {
    gb_bytes(p + GB_AT(q8_1, qs), o);
    gb_scales(o, gb_read_f32(p + GB_AT(q8_1, d)), 0);
}

GB_UNPACK(Q8_K) {
    gb_bytes(p + GB_AT(q8_k, qs) + 32 * g, o);
    gb_scales(o, gb_read_f32(p + GB_AT(q8_k, d)), 0);
}

GB_UNPACK(IQ4_NL) {
    const gb_words w(p + GB_AT(iq4_nl, qs));
    GB_UNROLL for (int i = 0; i < 4; i++) { gb_lookup_nibbles(gb_iq4_table(), w[i], &o.q[i], &o.q[i + 4]); }
    gb_scales(o, gb_read_f16(p + GB_AT(iq4_nl, d)), 0);
}

GB_UNPACK(MXFP4) {
    const gb_words w(p + GB_AT(mxfp4, qs));
    GB_UNROLL for (int i = 0; i < 4; i++) { gb_lookup_nibbles(gb_e2m1_table(), w[i], &o.q[i], &o.q[i + 4]); }
    const uint32_t e = p[GB_AT(mxfp4, e)]; // 2^(e - 128), the two smallest subnormal
    gb_scales(o, gb_bits_to_float(e < 2 ? 0x200000u << e : (e - 1) << 23), 0);
}

GB_DEVICE float gb_half_e4m3(uint32_t code) { // half the value; the code of NaN counts as 0
    const int exponent = (int) (code >> 3 & 15), mantissa = (int) (code & 7);
    if (code == 0x7f) {
        return 0;
    }
    const float power = gb_bits_to_float((uint32_t) (127 + (exponent == 0 ? -10 : exponent - 11)) << 23);
    return (float) (exponent == 0 ? mantissa : 8 + mantissa) * power;
}

GB_UNPACK(NVFP4) { // nibbles of elements j and j + 8 of 16
    const gb_words w(p + GB_AT(nvfp4, qs) + 16 * g);
    GB_UNROLL for (int s = 0; s < 2; s++) {
        gb_lookup_nibbles(gb_e2m1_table(), w[2 * s], &o.q[4 * s], &o.q[4 * s + 2]);
        gb_lookup_nibbles(gb_e2m1_table(), w[2 * s + 1], &o.q[4 * s + 1], &o.q[4 * s + 3]);
    }
    const uint8_t * scales = p + GB_AT(nvfp4, scales);
    gb_scales2(o, gb_half_e4m3(scales[2 * g]), gb_half_e4m3(scales[2 * g + 1]));
}

// Two bits of each element: bits 2 (g % 4) of the 32 bytes g / 4.
GB_DEVICE void gb_pairs_of_bits(const uint8_t * p, int g, gb_group & o) {
    const gb_words w(p + 32 * (g / 4));
    GB_UNROLL for (int i = 0; i < 8; i++) { o.q[i] = (int) (w[i] >> 2 * (g % 4) & 0x03030303u); }
}

GB_UNPACK(Q2_K) {
    gb_pairs_of_bits(p + GB_AT(q2_k, qs), g, o);
    const float d = gb_read_f16(p + GB_AT(q2_k, d)), dmin = gb_read_f16(p + GB_AT(q2_k, dmin));
    GB_UNROLL for (int s = 0; s < 2; s++) {
        const uint32_t scale = p[GB_AT(q2_k, scales) + 2 * g + s];
        o.d[s] = d * (float) (scale & 15);
        o.m[s] = -dmin * (float) (scale >> 4);
    }
}

GB_DEVICE int gb_q3_scale(const uint8_t * scales, int s) {
    const uint32_t low = s < 8 ? scales[s] & 15u : (uint32_t) scales[s - 8] >> 4,
                   high = scales[8 + s % 4] >> 2 * (s / 4) & 3;
    return (int) (low + 16 * high) - 32;
}

GB_UNPACK(Q3_K) {
    gb_pairs_of_bits(p + GB_AT(q3_k, qs), g, o);
    const gb_words w(p + GB_AT(q3_k, qh));
    GB_UNROLL for (int i = 0; i < 8; i++) { o.q[i] |= (int) ((w[i] >> g & 0x01010101u) << 2); }
    gb_subtract(o, GB_ZERO(q3_k));
    const float d = gb_read_f16(p + GB_AT(q3_k, d));
    const uint8_t * scales = p + GB_AT(q3_k, scales);
    gb_scales2(o, d * (float) gb_q3_scale(scales, 2 * g), d * (float) gb_q3_scale(scales, 2 * g + 1));
}

// Nibbles of 64 elements in 32 bytes: the low ones are the first group, the high ones the second.
GB_DEVICE void gb_nibbles_of_pair(const uint8_t * p, int g, gb_group & o) {
    const gb_words w(p + 32 * (g / 2));
    GB_UNROLL for (int i = 0; i < 8; i++) { o.q[i] = (int) (w[i] >> 4 * (g % 2) & 0x0f0f0f0fu); }
}

// Scale and minimum of six bits, in Q4_K and Q5_K, which begin with the same members (blocks.h).
GB_DEVICE void gb_q45_scales(const uint8_t * p, int g, gb_group & o) {
    const uint8_t * s = p + GB_AT(q4_k, scales);
    uint32_t scale, min;
    if (g < 4) {
        scale = s[g] & 63u;
        min = s[g + 4] & 63u;
    } else {
        scale = (s[g + 4] & 15u) | (uint32_t) s[g - 4] >> 6 << 4;
        min = (uint32_t) s[g + 4] >> 4 | (uint32_t) s[g] >> 6 << 4;
    }
    gb_scales(o, gb_read_f16(p + GB_AT(q4_k, d)) * (float) scale, -gb_read_f16(p + GB_AT(q4_k, dmin)) * (float) min);
}

GB_UNPACK(Q4_K) {
    gb_nibbles_of_pair(p + GB_AT(q4_k, qs), g, o);
    gb_q45_scales(p, g, o);
}

GB_UNPACK(Q5_K) {
    gb_nibbles_of_pair(p + GB_AT(q5_k, qs), g, o);
    const gb_words w(p + GB_AT(q5_k, qh));
    GB_UNROLL for (int i = 0; i < 8; i++) { o.q[i] |= (int) ((w[i] >> g & 0x01010101u) << 4); }
    gb_q45_scales(p, g, o);
}

GB_UNPACK(Q6_K) {
    const gb_words low(p + GB_AT(q6_k, ql) + 64 * (g / 4) + 32 * (g % 2)), high(p + GB_AT(q6_k, qh) + 32 * (g / 4));
    GB_UNROLL for (int i = 0; i < 8; i++) {
        o.q[i] = (int) ((low[i] >> 4 * (g / 2 % 2) & 0x0f0f0f0fu) | (high[i] >> 2 * (g % 4) & 0x03030303u) << 4);
    }
    gb_subtract(o, GB_ZERO(q6_k));
    const float d = gb_read_f16(p + GB_AT(q6_k, d));
    const uint8_t * scales = p + GB_AT(q6_k, scales);
    gb_scales2(o, d * (float) (int8_t) scales[2 * g], d * (float) (int8_t) scales[2 * g + 1]);
}

GB_UNPACK(IQ4_XS) {
    const gb_words w(p + GB_AT(iq4_xs, qs) + 16 * g);
    GB_UNROLL for (int i = 0; i < 4; i++) { gb_lookup_nibbles(gb_iq4_table(), w[i], &o.q[i], &o.q[i + 4]); }
    const int low = p[GB_AT(iq4_xs, scales_low) + g / 2] >> 4 * (g % 2) & 15,
              high = p[GB_AT(iq4_xs, scales_high) + g / 4] >> 2 * (g % 4) & 3;
    gb_scales(o, gb_read_f16(p + GB_AT(iq4_xs, d)) * (float) (low + 16 * high - 32), 0);
}

GB_UNPACK(TQ2_0) {
    gb_pairs_of_bits(p + GB_AT(tq2_0, qs), g, o);
    gb_subtract(o, GB_ZERO(tq2_0));
    gb_scales(o, gb_read_f16(p + GB_AT(tq2_0, d)), 0);
}

GB_UNPACK(Q1_0) { // the four bytes of a group have its bits
    const uint32_t bits = gb_read_u32(p + GB_AT(q1_0, qs) + 4 * g);
    GB_UNROLL for (int i = 0; i < 8; i++) { o.q[i] = (int) (gb_spread4(bits >> 4 * i) << 1); }
    gb_subtract(o, GB_ZERO(q1_0));
    gb_scales(o, gb_read_f16(p + GB_AT(q1_0, d)), 0);
}

GB_UNPACK(Q2_0) { // a byte has four neighbours
    const gb_words w(p + GB_AT(q2_0, qs) + 8 * g);
    GB_UNROLL for (int i = 0; i < 8; i++) {
        const uint32_t byte = w[i / 4] >> 8 * (i % 4) & 255;
        o.q[i] = (int) ((byte | byte << 6 | byte << 12 | byte << 18) & 0x03030303u);
    }
    gb_subtract(o, GB_ZERO(q2_0));
    gb_scales(o, gb_read_f16(p + GB_AT(q2_0, d)), 0);
}

// Digit `n` of each of four bytes, which are fractions in base 3.
GB_DEVICE uint32_t gb_ternary_digits(uint32_t bytes, int n) {
    const uint32_t power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
    // The earlier digits overflow the byte and are dropped. The overflow of three times the rest is
    // the digit.
    const uint32_t even = (bytes & 0x00ff00ffu) * power & 0x00ff00ffu,
                   odd = (bytes >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu;
    return (even * 3 >> 8 & 0x00030003u) | (odd * 3 & 0x03000300u);
}

GB_UNPACK(TQ1_0) { // digits have distance 32 elements, then 16, then 4
    const gb_words w(p);
    GB_UNROLL for (int i = 0; i < 8; i++) {
        const int word = 8 * g + i; // four elements of the block
        int byte, digit;
        if (word < 40) {
            byte = GB_AT(tq1_0, by32) + 4 * (word % 8);
            digit = word / 8;
        } else if (word < 60) {
            byte = GB_AT(tq1_0, by16) + 4 * ((word - 40) % 4);
            digit = (word - 40) / 4;
        } else {
            byte = GB_AT(tq1_0, by4);
            digit = word - 60;
        }
        o.q[i] = (int) gb_ternary_digits(w[byte / 4], digit);
    }
    gb_subtract(o, GB_ZERO(tq1_0));
    gb_scales(o, gb_read_f16(p + GB_AT(tq1_0, d)), 0);
}

// ----------------------------------------------------------------------------------------------------------- codebooks

GB_DEVICE uint32_t gb_parity_sign(uint32_t code) { // seven stored signs; the eighth makes their number even
    return (code & 127) | gb_parity(code & 127) << 7;
}

GB_DEVICE void gb_signed_row2(uint32_t row, uint32_t signs, int * q) {
    gb_lookup2(row, GB_WORD_OF_3(GB_VALUES_IQ2(GB_VALUE)), q);
    q[0] = (int) gb_negate4((uint32_t) q[0], signs);
    q[1] = (int) gb_negate4((uint32_t) q[1], signs >> 4);
}

GB_UNPACK(IQ2_XXS) {
    const gb_words w(p + GB_AT(iq2_xxs, qs) + 8 * g);
    const uint32_t rows = w[0], bits = w[1];
    GB_UNROLL for (int l = 0; l < 4; l++) {
        gb_signed_row2(gb_grid_rows_iq2_xxs[rows >> 8 * l & 255], gb_parity_sign(bits >> 7 * l), &o.q[2 * l]);
    }
    gb_scales(o, gb_read_f16(p + GB_AT(iq2_xxs, d)) * 0.125f * (float) (2 * (bits >> 28) + 1), 0);
}

GB_DEVICE void gb_nibble_scales(float d, uint32_t scales, gb_group & o) {
    gb_scales2(o, d * (float) (2 * (scales & 15) + 1), d * (float) (2 * (scales >> 4) + 1));
}

GB_UNPACK(IQ2_XS) {
    GB_UNROLL for (int l = 0; l < 4; l++) {
        const uint32_t bits = gb_read_u16(p + GB_AT(iq2_xs, qs) + 8 * g + 2 * l);
        gb_signed_row2(gb_grid_rows_iq2_xs[bits & 511], gb_parity_sign(bits >> 9), &o.q[2 * l]);
    }
    gb_nibble_scales(gb_read_f16(p + GB_AT(iq2_xs, d)) * 0.125f, p[GB_AT(iq2_xs, scales) + g], o);
}

GB_UNPACK(IQ2_S) {
    const uint32_t high = p[GB_AT(iq2_s, qh) + g];
    GB_UNROLL for (int l = 0; l < 4; l++) {
        gb_signed_row2(gb_grid_rows_iq2_s[p[GB_AT(iq2_s, qs) + 4 * g + l] | (high >> 2 * l & 3) << 8],
            p[GB_AT(iq2_s, signs) + 4 * g + l], &o.q[2 * l]);
    }
    gb_nibble_scales(gb_read_f16(p + GB_AT(iq2_s, d)) * 0.125f, p[GB_AT(iq2_s, scales) + g], o);
}

GB_UNPACK(IQ3_XXS) {
    const uint32_t bits = gb_read_u32(p + GB_AT(iq3_xxs, bits) + 4 * g);
    GB_UNROLL for (int i = 0; i < 8; i++) {
        const uint32_t row = gb_grid_rows_iq3_xxs[p[GB_AT(iq3_xxs, qs) + 8 * g + i]],
                       signs = gb_parity_sign(bits >> 7 * (i / 2));
        o.q[i] = (int) gb_negate4(gb_perm(GB_WORDS_OF_8(GB_VALUES_IQ3_XXS(GB_VALUE)), row), signs >> 4 * (i % 2));
    }
    gb_scales(o, gb_read_f16(p + GB_AT(iq3_xxs, d)) * 0.25f * (float) (2 * (bits >> 28) + 1), 0);
}

GB_UNPACK(IQ3_S) {
    const uint32_t ninth = p[GB_AT(iq3_s, qh) + g];
    GB_UNROLL for (int i = 0; i < 8; i++) {
        const uint32_t row = gb_grid_rows_iq3_s[p[GB_AT(iq3_s, qs) + 8 * g + i] | (ninth >> i & 1) << 8],
                       signs = p[GB_AT(iq3_s, signs) + 4 * g + i / 2];
        o.q[i] = (int) gb_negate4(gb_perm(GB_WORDS_OF_8(GB_VALUES_IQ3_S(GB_VALUE)), row), signs >> 4 * (i % 2));
    }
    const uint32_t scale = p[GB_AT(iq3_s, scales) + g / 2] >> 4 * (g % 2) & 15;
    gb_scales(o, gb_read_f16(p + GB_AT(iq3_s, d)) * (float) (2 * scale + 1), 0);
}

// A value plus 1 or minus 1.
#define GB_ABOVE(v) (v) + 1
#define GB_BELOW(v) (v) - 1
GB_DEVICE void gb_offset_row(uint32_t row, bool negative, int * q) {
    gb_lookup2(row, negative ? GB_WORD_OF_3(GB_VALUES_IQ1(GB_BELOW)) : GB_WORD_OF_3(GB_VALUES_IQ1(GB_ABOVE)), q);
}

GB_UNPACK(IQ1_S) {
    const uint32_t bits = gb_read_u16(p + GB_AT(iq1_s, qh) + 2 * g);
    GB_UNROLL for (int l = 0; l < 4; l++) {
        gb_offset_row(gb_grid_rows_iq1[p[GB_AT(iq1_s, qs) + 4 * g + l] | (bits >> 3 * l & 7) << 8], bits >> 15 != 0,
            &o.q[2 * l]);
    }
    gb_scales(o, gb_read_f16(p + GB_AT(iq1_s, d)) * 0.125f * (float) (2 * (bits >> 12 & 7) + 1), 0);
}

GB_UNPACK(IQ1_M) {
    uint32_t d = 0;
    GB_UNROLL for (int i = 0; i < 4; i++) { d |= (uint32_t) (p[GB_AT(iq1_m, scales) + 2 * i + 1] >> 4) << 4 * i; }
    GB_UNROLL for (int l = 0; l < 4; l++) {
        const uint32_t bits = p[GB_AT(iq1_m, qh) + 2 * g + l / 2] >> 4 * (l % 2);
        gb_offset_row(gb_grid_rows_iq1[p[GB_AT(iq1_m, qs) + 4 * g + l] | (bits & 7) << 8], (bits & 8) != 0,
            &o.q[2 * l]);
    }
    const uint32_t scales = gb_read_u16(p + GB_AT(iq1_m, scales) + 2 * (g / 2)) >> 6 * (g % 2);
    const float unit = gb_half_bits_to_float((uint16_t) d) * 0.125f;
    gb_scales2(o, unit * (float) (2 * (scales & 7) + 1), unit * (float) (2 * (scales >> 3 & 7) + 1));
}

#undef GB_UNPACK

// Signed byte i of a word as a number, without a conversion: as the low bits of 2^23 + 128 + x.
GB_DEVICE float gb_byte_to_float(int word, int i) {
    return gb_bits_to_float(gb_perm((uint32_t) word ^ 0x80808080u, 0x4b000000u, 0x7440u + (uint32_t) i)) - 8388736.0f;
}

#endif // GB_CUDA_KERNELS_UNPACK_CUH
