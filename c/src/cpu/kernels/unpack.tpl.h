// unpack.tpl.h - unpacks quantized weights to unsigned bytes: a weight is d u + m, with d and m for
// each group of 32 terms, or of 16 ("halves").
//
// unpack_<stem>(k, u, d, m, x) unpacks k terms, whole blocks, at most GB_UNPACK_MAX. If a format
// has negative levels, the `zero` of its row in formats.def is added to them, and m subtracts it
// again. u is at most the row's `top`. tensor/quant/<stem>.c explains the fields of a block. The
// loops are plain C that compilers vectorize.

#include <string.h>

// -------------------------------------------------------------------------------------------------- blocks of 32 terms

enum { UNPACK_BLOCKS = GB_UNPACK_MAX / 32 };

static void symmetric_scales_(int64_t n, float bias, float * restrict d, float * restrict m, const uint16_t * half) {
    f16_to_f32(n, d, half);
    for (int64_t i = 0; i < n; i++) {
        m[i] = d[i] * -bias;
    }
}

// For each block, stores d, an f16, and unpacks the levels.
#define UNPACK_BLOCKS_OF(stem, ...)                                          \
    const uint8_t * block = x;                                               \
    uint16_t half[UNPACK_BLOCKS];                                            \
    for (int64_t i = 0; i < k / 32; i++, block += GB_BYTES(stem), u += 32) { \
        memcpy(half + i, block + GB_AT(stem, d), sizeof(*half));             \
        __VA_ARGS__;                                                         \
    }

static void unpack_q4_0_plain_(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    UNPACK_BLOCKS_OF(q4_0, b32_store(u, b32_nibbles(block + GB_AT(q4_0, qs))))
    symmetric_scales_(k / 32, GB_ZERO(q4_0), d, m, half);
}

static void unpack_q5_0(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    UNPACK_BLOCKS_OF(q5_0,
        b32_store(u, b32_or(b32_nibbles(block + GB_AT(q5_0, qs)), b32_bits(block + GB_AT(q5_0, qh), 16))))
    symmetric_scales_(k / 32, GB_ZERO(q5_0), d, m, half);
}

static void unpack_q8_0(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    UNPACK_BLOCKS_OF(q8_0, b32_store(u, b32_xor(b32_load(block + GB_AT(q8_0, qs)), GB_ZERO(q8_0))))
    symmetric_scales_(k / 32, GB_ZERO(q8_0), d, m, half);
}

#define IQ4_LEVEL(v) (v) + GB_ZERO(iq4_nl)
static const uint8_t iq4_levels_[16] = { GB_VALUES_IQ4(IQ4_LEVEL) };
static_assert(GB_ZERO(iq4_xs) == GB_ZERO(iq4_nl), "one table for both");

static void unpack_iq4_nl(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    UNPACK_BLOCKS_OF(iq4_nl, b32_store(u, b32_lookup(b32_nibbles(block + GB_AT(iq4_nl, qs)), iq4_levels_)))
    symmetric_scales_(k / 32, GB_ZERO(iq4_nl), d, m, half);
}

static void unpack_q4_1(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    uint16_t mins[UNPACK_BLOCKS];
    UNPACK_BLOCKS_OF(q4_1, memcpy(mins + i, block + GB_AT(q4_1, m), sizeof(*mins));
        b32_store(u, b32_nibbles(block + GB_AT(q4_1, qs))))
    f16_to_f32(k / 32, d, half);
    f16_to_f32(k / 32, m, mins);
}

static void unpack_q5_1(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    uint16_t mins[UNPACK_BLOCKS];
    UNPACK_BLOCKS_OF(q5_1, memcpy(mins + i, block + GB_AT(q5_1, m), sizeof(*mins));
        b32_store(u, b32_or(b32_nibbles(block + GB_AT(q5_1, qs)), b32_bits(block + GB_AT(q5_1, qh), 16))))
    f16_to_f32(k / 32, d, half);
    f16_to_f32(k / 32, m, mins);
}

#define E2M1_LEVEL(v) (v) + GB_ZERO(mxfp4)
static const uint8_t e2m1_levels_[16] = { GB_VALUES_E2M1(E2M1_LEVEL) };
static_assert(GB_ZERO(nvfp4) == GB_ZERO(mxfp4), "one table for both");

static void unpack_mxfp4(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    const uint8_t * block = x;
    for (int64_t i = 0; i < k / 32; i++, block += GB_BYTES(mxfp4), u += 32) {
        const uint8_t e = block[GB_AT(mxfp4, e)];
        const uint32_t bits = e < 2 ? (uint32_t) 0x200000 << e : (uint32_t) (e - 1) << 23;
        memcpy(d + i, &bits, sizeof(*d));
        m[i] = d[i] * (float) -GB_ZERO(mxfp4);
        b32_store(u, b32_lookup(b32_nibbles(block + GB_AT(mxfp4, qs)), e2m1_levels_));
    }
}

// Eight bytes of nibbles are a group of 16, the lower nibbles first.
static void unpack_nvfp4(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    const uint8_t * block = x;
    for (int64_t left = k / 64; left > 0; left--, block += GB_BYTES(nvfp4), u += 64, d += 4, m += 4) {
        const b32 q = b32_load(block + GB_AT(nvfp4, qs));
        uint8_t low[32], high[32];
        b32_store(low, b32_lookup(b32_and(q, 15), e2m1_levels_));
        b32_store(high, b32_lookup(b32_and(b32_shr(q, 4), 15), e2m1_levels_));
        for (int s = 0; s < 4; s++) {
            const uint32_t code = block[GB_AT(nvfp4, scales) + s], bits = ((code >> 3 & 15) + 119) << 23 | (code & 7)
                                                                                                               << 20;
            memcpy(d + s, &bits, sizeof(*d));
            d[s] = (code >> 3 & 15) == 0 ? (float) (code & 7) * 0x1p-10f : code == 0x7f ? 0.0f : d[s];
            m[s] = d[s] * (float) -GB_ZERO(nvfp4);
            memcpy(u + 16 * s, low + 8 * s, 8);
            memcpy(u + 16 * s + 8, high + 8 * s, 8);
        }
    }
}

// Groups of 32 of a block share its scale, and level 1 stands for 0.
static inline void around_one_(int n, float scale, float * restrict d, float * restrict m) {
    for (int s = 0; s < n; s++) {
        d[s] = scale;
        m[s] = -scale;
    }
}

static void unpack_q1_0(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    enum { groups = GB_ELEMENTS(q1_0) / GB_GROUP(q1_0) };
    static_assert(GB_ZERO(q1_0) == 1 && GB_TOP(q1_0) == 2, "a bit is level 0 or 2");
    const uint8_t * block = x;
    for (int64_t left = k / GB_ELEMENTS(q1_0); left > 0; left--, block += GB_BYTES(q1_0), d += groups, m += groups) {
        around_one_(groups, half_at_(block + GB_AT(q1_0, d)), d, m);
        for (int s = 0; s < groups; s++, u += 32) {
            b32_store(u, b32_bits(block + GB_AT(q1_0, qs) + 4 * s, 2));
        }
    }
}

// Each byte becomes four: copies of it, shifted, keep two bits each.
static void unpack_q2_0(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    enum { groups = GB_ELEMENTS(q2_0) / GB_GROUP(q2_0), bytes = GB_ELEMENTS(q2_0) / 4 };
    static_assert(GB_ZERO(q2_0) == 1, "around_one_");
    const uint8_t * block = x;
    for (int64_t left = k / GB_ELEMENTS(q2_0); left > 0; left--, block += GB_BYTES(q2_0), d += groups, m += groups) {
        uint32_t four[bytes];
        around_one_(groups, half_at_(block + GB_AT(q2_0, d)), d, m);
        for (int i = 0; i < bytes; i++) {
            const uint32_t byte = block[GB_AT(q2_0, qs) + i];
            four[i] = (byte | byte << 6 | byte << 12 | byte << 18) & 0x03030303u;
        }
        memcpy(u, four, sizeof(four));
        u += sizeof(four);
    }
}

// ------------------------------------------------------------------------------------------------- blocks of 256 terms

// Unpacks the scales and minima of Q4_K, and of Q5_K, which begins with the same fields: d, dmin,
// and eight scales and eight minima of 6 bits in 12 bytes.
static inline void scales_45_(const uint8_t * restrict block, float * restrict d, float * restrict m) {
    const float scale = half_at_(block + GB_AT(q4_k, d)), min = -half_at_(block + GB_AT(q4_k, dmin));
    uint32_t w[3]; // combines bytes in registers, because a wide load of data that was stored in parts has to wait
    memcpy(w, block + GB_AT(q4_k, scales), sizeof(w));
    const uint32_t sc = (w[2] & 0x0f0f0f0fu) | (w[0] >> 6 & 0x03030303u) << 4;
    const uint32_t mn = (w[2] >> 4 & 0x0f0f0f0fu) | (w[1] >> 6 & 0x03030303u) << 4;
    const uint64_t all_sc = (w[0] & 0x3f3f3f3fu) | (uint64_t) sc << 32,
                   all_mn = (w[1] & 0x3f3f3f3fu) | (uint64_t) mn << 32;
    scaled_8_(d, &all_sc, scale);
    scaled_8_(m, &all_mn, min);
}

#define FOR_SUPER_BLOCKS(stem)                                \
    enum { groups = GB_ELEMENTS(stem) / GB_GROUP(stem) };     \
    static_assert(GB_ELEMENTS(stem) == 256, "a super-block"); \
    const uint8_t * block = x;                                \
    for (int64_t left = k / 256; left > 0; left--, block += GB_BYTES(stem), u += 256, d += groups, m += groups)

static void unpack_q4_k(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    FOR_SUPER_BLOCKS(q4_k) {
        scales_45_(block, d, m);
        for (int c = 0; c < 4; c++) {
            const b32 q = b32_load(block + GB_AT(q4_k, qs) + 32 * c);
            b32_store(u + 64 * c, b32_and(q, 15));
            b32_store(u + 64 * c + 32, b32_and(b32_shr(q, 4), 15));
        }
    }
}

static void unpack_q5_k(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    FOR_SUPER_BLOCKS(q5_k) {
        b32 fifth = b32_load(block + GB_AT(q5_k, qh)); // the bits of the next two groups are the lowest
        scales_45_(block, d, m);
        for (int c = 0; c < 4; c++) {
            const b32 q = b32_load(block + GB_AT(q5_k, qs) + 32 * c);
            b32_store(u + 64 * c, b32_or(b32_and(q, 15), b32_shl(b32_and(fifth, 1), 4)));
            b32_store(u + 64 * c + 32, b32_or(b32_and(b32_shr(q, 4), 15), b32_shl(b32_and(fifth, 2), 3)));
            fifth = b32_shr(fifth, 2);
        }
    }
}

static void unpack_q6_k(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    FOR_SUPER_BLOCKS(q6_k) {
        const float scale = half_at_(block + GB_AT(q6_k, d));
        scaled_8_(d, block + GB_AT(q6_k, scales), scale);
        scaled_8_(d + 8, block + GB_AT(q6_k, scales) + 8, scale);
        for (int s = 0; s < 16; s++) {
            m[s] = d[s] * (float) -GB_ZERO(q6_k);
        }
        for (int h = 0; h < 2; h++) {
            const b32 a = b32_load(block + GB_AT(q6_k, ql) + 64 * h),
                      b = b32_load(block + GB_AT(q6_k, ql) + 64 * h + 32),
                      top = b32_load(block + GB_AT(q6_k, qh) + 32 * h);
            uint8_t * const y = u + 128 * h;
            b32_store(y, b32_or(b32_and(a, 15), b32_shl(b32_and(top, 3), 4)));
            b32_store(y + 32, b32_or(b32_and(b, 15), b32_shl(b32_and(top, 12), 2)));
            b32_store(y + 64, b32_or(b32_and(b32_shr(a, 4), 15), b32_and(top, 48)));
            b32_store(y + 96, b32_or(b32_and(b32_shr(b, 4), 15), b32_shr(b32_and(top, 192), 2)));
        }
    }
}

// Unpacks the bit pairs of 64 bytes to 256 levels. `third` has bit 2 of the levels: bit i of its
// bytes belongs to the i-th 32 levels.
static inline void pairs_256_(uint8_t * restrict u, const uint8_t * restrict qs, b32 third) {
    for (int h = 0; h < 2; h++) {
        b32 q = b32_load(qs + 32 * h);
        for (int g = 0; g < 4; g++) {
            b32_store(u + 128 * h + 32 * g, b32_or(b32_and(q, 3), b32_shl(b32_and(third, 1), 2)));
            q = b32_shr(q, 2);
            third = b32_shr(third, 1);
        }
    }
}

static void unpack_q2_k(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    FOR_SUPER_BLOCKS(q2_k) {
        const float scale = half_at_(block + GB_AT(q2_k, d)), min = -half_at_(block + GB_AT(q2_k, dmin));
        uint8_t sc[32]; // the scales, then the minima
        b32_store(sc, b32_nibbles(block + GB_AT(q2_k, scales)));
        scaled_8_(d, sc, scale);
        scaled_8_(d + 8, sc + 8, scale);
        scaled_8_(m, sc + 16, min);
        scaled_8_(m + 8, sc + 24, min);
        pairs_256_(u, block + GB_AT(q2_k, qs), b32_and(b32_load(block), 0));
    }
}

static void unpack_q3_k(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    FOR_SUPER_BLOCKS(q3_k) {
        const float scale = half_at_(block + GB_AT(q3_k, d));
        uint32_t w[3], sc[4]; // four scales of 6 bits in a word, around 32
        memcpy(w, block + GB_AT(q3_k, scales), sizeof(w));
        for (int j = 0; j < 4; j++) { // minus 32, in every byte: the upper two bits are the sign
            const uint32_t six = (w[j % 2] >> 4 * (j / 2) & 0x0f0f0f0fu) | (w[2] >> 2 * j & 0x03030303u) << 4;
            const uint32_t top = ~six & 0x20202020u;
            sc[j] = (six & 0x1f1f1f1fu) | top | top << 1 | top << 2;
        }
        const uint64_t low = sc[0] | (uint64_t) sc[1] << 32, high = sc[2] | (uint64_t) sc[3] << 32;
        scaled_8_(d, &low, scale);
        scaled_8_(d + 8, &high, scale);
        for (int s = 0; s < 16; s++) {
            m[s] = d[s] * (float) -GB_ZERO(q3_k);
        }
        pairs_256_(u, block + GB_AT(q3_k, qs), b32_load(block + GB_AT(q3_k, qh)));
    }
}

static void unpack_iq4_xs(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    FOR_SUPER_BLOCKS(iq4_xs) {
        const float scale = half_at_(block + GB_AT(iq4_xs, d));
        const uint8_t *low = block + GB_AT(iq4_xs, scales_low), *high = block + GB_AT(iq4_xs, scales_high);
        for (int s = 0; s < 8; s++) {
            const int bits = (low[s / 2] >> 4 * (s % 2) & 15) + 16 * (high[s / 4] >> 2 * (s % 4) & 3);
            d[s] = scale * (float) (bits - 32);
            m[s] = d[s] * (float) -GB_ZERO(iq4_xs);
            b32_store(u + 32 * s, b32_lookup(b32_nibbles(block + GB_AT(iq4_xs, qs) + 16 * s), iq4_levels_));
        }
    }
}

// ----------------------------------------------------------------------------------------------------- with intrinsics

#if HAVE_VBMI
#    include "x86/unpack_vbmi.tpl.h"
#else
static void unpack_q4_0(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    unpack_q4_0_plain_(k, u, d, m, x);
}
#endif
