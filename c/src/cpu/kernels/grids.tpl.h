// grids.tpl.h - the formats whose levels are rows of a codebook (IQ1, IQ2, IQ3), and the ternary ones, as unsigned
// bytes. Like unpack.tpl.h.
//
// A row is 16 bits: 8 codes of 2 bits, or 4 of 4. Spread to a code a byte, with a flag beside each (its sign, or the
// direction of its offset), it is the index into a table of at most 16 levels: one shuffle of bytes gives the levels.
// AVX-512 with VBMI looks 32 rows up at a time in tables that lie in registers; elsewhere rows are looked up one by one
// and spread in 64-bit words.

#include "tensor/quant/grid.h"

#define GRID_FLAG 8 // in an index, beside the code

// level + bias, and for flagged indices -level + bias (signs) or level - 1 + bias, else level + 1 + bias (offsets).
// 43
static const uint8_t levels_iq2_[16] = { 51, 68, 86, 0, 0, 0, 0, 0, 35, 18, 0, 0, 0, 0, 0, 0 };
// 62
static const uint8_t levels_iq3_xxs_[16] = { 66, 74, 82, 90, 98, 106, 114, 124, 58, 50, 42, 34, 26, 18, 10, 0 };
// 15
static const uint8_t levels_iq3_s_[16] = { 16, 18, 20, 22, 24, 26, 28, 30, 14, 12, 10, 8, 6, 4, 2, 0 };
// 9
static const uint8_t levels_iq1_[16] = { 2, 10, 18, 0, 0, 0, 0, 0, 0, 8, 16, 0, 0, 0, 0, 0 };

static inline uint64_t grid_u64_(const uint8_t * p) {
    uint64_t w;
    memcpy(&w, p, sizeof(w));
    return w;
}

// Four times four scales of 3 bits and 4 bits of an f16.
static inline float iq1_m_unit_(uint64_t scales) {
    const uint16_t half =
        (uint16_t) ((scales >> 12 & 15) | (scales >> 24 & 0xf0) | (scales >> 36 & 0xf00) | (scales >> 48 & 0xf000));
    return half_at_((const uint8_t *) &half) * 0.125f;
}

#if V_N == 16 && defined(__AVX512VBMI__)
#    include "grids_avx512.tpl.h"
#else

static inline uint32_t grid_u32_(const uint8_t * p) {
    uint32_t w;
    memcpy(&w, p, sizeof(w));
    return w;
}

// Four fields of 7 bits of a word to bytes, the uppermost bit such that an even number of them is set.
static inline uint32_t even_signs_(uint32_t fields) {
    const uint32_t seven =
        (fields & 0x7fu) | (fields & 0x3f80u) << 1 | (fields & 0x1fc000u) << 2 | (fields & 0xfe00000u) << 3;
    uint32_t odd = seven ^ (seven >> 4 & 0x0f0f0f0fu);
    odd ^= odd >> 2 & 0x33333333u;
    odd ^= odd >> 1;
    return seven | (odd & 0x01010101u) << 7;
}

// Of a super-block: row numbers, a flag for each level, and by the functions below the scales.
struct grid_rows {
    uint16_t row[64];
    uint64_t flags[4];
};

static inline uint64_t spread_row_(int bits, uint64_t row) { // of 8 codes of 2 bits, or 4 of 4 bits
#if (V_N == 8 || V_N == 16) && defined(__BMI2__) && defined(__x86_64__)
    return _pdep_u64(row, bits == 4 ? UINT64_C(0x0f0f0f0f) : UINT64_C(0x0303030303030303));
#else
    if (bits == 4) {
        row = (row | row << 8) & 0x00ff00ffu;
        return (row | row << 4) & 0x0f0f0f0fu;
    }
    row = (row | row << 24) & UINT64_C(0x000000ff000000ff);
    row = (row | row << 12) & UINT64_C(0x000f000f000f000f);
    return (row | row << 6) & UINT64_C(0x0303030303030303);
#endif
}

static ALWAYS_INLINE void expand_rows_(uint8_t * u, int bits, const uint16_t * table, int n, const uint8_t * levels,
    const struct grid_rows * g) {
    (void) n;
    for (int i = 0; i < 8; i++, u += 32) {
        uint64_t       codes[4];
        const uint32_t flags = (uint32_t) (g->flags[i / 2] >> 32 * (i % 2));
        for (int j = 0; j < 4; j++) {
            if (bits == 2) {
                codes[j] = spread_row_(2, table[g->row[4 * i + j]]);
            } else {
                const uint16_t * row = g->row + 8 * i + 2 * j;
                codes[j]             = spread_row_(4, table[row[0]]) | spread_row_(4, table[row[1]]) << 32;
            }
        }
        b32_store(u, b32_lookup(b32_or(b32_load(codes), b32_bits(&flags, GRID_FLAG)), levels));
    }
}

static inline void set_flags_(struct grid_rows * g, int i, uint32_t flags) { // of 32 levels
    g->flags[i / 2] = i % 2 ? g->flags[i / 2] | (uint64_t) flags << 32 : flags;
}

static inline void set_scale_(float * d, float * m, int s, float unit, int scale, float bias) {
    d[s] = unit * (float) (2 * scale + 1);
    m[s] = d[s] * -bias;
}

// Scales in nibbles, the lower first.
static inline void set_scales_(int groups, const uint8_t * nibbles, float unit, float bias, float * restrict d,
    float * restrict m) {
    for (int s = 0; s < groups; s++) {
        set_scale_(d, m, s, unit, nibbles[s / 2] >> 4 * (s % 2) & 15, bias);
    }
}

static inline void read_iq2_xxs_(struct grid_rows * restrict g, const uint8_t * restrict block, float * restrict d,
    float * restrict m) {
    for (int i = 0; i < 8; i++) {
        const uint8_t * p    = block + 2 + 8 * i;
        const uint32_t  bits = grid_u32_(p + 4);
        for (int l = 0; l < 4; l++) {
            g->row[4 * i + l] = p[l];
        }
        set_flags_(g, i, even_signs_(bits));
        set_scale_(d, m, i, half_at_(block) * 0.125f, (int) (bits >> 28), 43);
    }
}

static inline void read_iq2_xs_(struct grid_rows * restrict g, const uint8_t * restrict block, float * restrict d,
    float * restrict m) {
    for (int i = 0; i < 8; i++) {
        const uint64_t word = grid_u64_(block + 2 + 8 * i); // four times 9 bits of a row number and 7 signs
        for (int l = 0; l < 4; l++) {
            g->row[4 * i + l] = word >> 16 * l & 511;
        }
        set_flags_(g, i,
            even_signs_((uint32_t) ((word >> 9 & 0x7f) | (word >> 18 & 0x3f80) | (word >> 27 & 0x1fc000) |
                                    (word >> 36 & 0xfe00000))));
    }
    set_scales_(16, block + 66, half_at_(block) * 0.125f, 43, d, m);
}

static inline void read_iq2_s_(struct grid_rows * restrict g, const uint8_t * restrict block, float * restrict d,
    float * restrict m) {
    for (int i = 0; i < 32; i++) {
        g->row[i] = (uint16_t) (block[2 + i] | (block[66 + i / 4] >> 2 * (i % 4) & 3) << 8);
    }
    memcpy(g->flags, block + 34, sizeof(g->flags));
    set_scales_(16, block + 74, half_at_(block) * 0.125f, 43, d, m);
}

static inline void read_iq3_xxs_(struct grid_rows * restrict g, const uint8_t * restrict block, float * restrict d,
    float * restrict m) {
    for (int i = 0; i < 64; i++) {
        g->row[i] = block[2 + i];
    }
    for (int i = 0; i < 8; i++) {
        const uint32_t bits = grid_u32_(block + 66 + 4 * i);
        set_flags_(g, i, even_signs_(bits));
        set_scale_(d, m, i, half_at_(block) * 0.25f, (int) (bits >> 28), 62);
    }
}

static inline void read_iq3_s_(struct grid_rows * restrict g, const uint8_t * restrict block, float * restrict d,
    float * restrict m) {
    for (int i = 0; i < 8; i++) {
        for (int j = 0; j < 8; j++) {
            g->row[8 * i + j] = (uint16_t) (block[2 + 8 * i + j] | (block[66 + i] >> j & 1) << 8);
        }
    }
    memcpy(g->flags, block + 74, sizeof(g->flags));
    set_scales_(8, block + 106, half_at_(block), 15, d, m);
}

static inline void read_iq1_s_(struct grid_rows * restrict g, const uint8_t * restrict block, float * restrict d,
    float * restrict m) {
    for (int i = 0; i < 8; i++) {
        uint16_t bits; // four times 3 bits of a row number, a scale, the offset's sign
        memcpy(&bits, block + 34 + 2 * i, sizeof(bits));
        for (int l = 0; l < 4; l++) {
            g->row[4 * i + l] = (uint16_t) (block[2 + 4 * i + l] | (bits >> 3 * l & 7) << 8);
        }
        set_flags_(g, i, 0u - (bits >> 15));
        set_scale_(d, m, i, half_at_(block) * 0.125f, bits >> 12 & 7, 9);
    }
}

static inline void read_iq1_m_(struct grid_rows * restrict g, const uint8_t * restrict block, float * restrict d,
    float * restrict m) {
    const uint64_t scales = grid_u64_(block + 48);
    const float    unit   = iq1_m_unit_(scales);
    for (int i = 0; i < 32; i++) {
        g->row[i] = (uint16_t) (block[i] | (block[32 + i / 2] >> 4 * (i % 2) & 7) << 8);
    }
    for (int i = 0; i < 8; i++) {
        // bit 3 of each four: an offset's sign, here to a whole byte
        const uint32_t p = block[32 + 2 * i], q = block[33 + 2 * i];
        set_flags_(g, i, ((p >> 3 & 1) | (p >> 7) << 8 | (q >> 3 & 1) << 16 | (q >> 7) << 24) * 255u);
    }
    for (int s = 0; s < 16; s++) {
        set_scale_(d, m, s, unit, (int) (scales >> (16 * (s / 4) + 3 * (s % 4)) & 7), 9);
    }
}
#endif

#define UNPACK_GRID(stem, size, groups, bits, table, rows, levels)                                     \
    static void unpack_##stem(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m, \
        const void * restrict x) {                                                                     \
        FOR_SUPER_BLOCKS(size, groups) {                                                               \
            struct grid_rows g;                                                                        \
            read_##stem##_(&g, block, d, m);                                                           \
            expand_rows_(u, bits, table, rows, levels, &g);                                            \
        }                                                                                              \
    }
UNPACK_GRID(iq2_xxs, 66, 8, 2, gb_grid_rows_iq2_xxs, 256, levels_iq2_)
UNPACK_GRID(iq2_xs, 74, 16, 2, gb_grid_rows_iq2_xs, 512, levels_iq2_)
UNPACK_GRID(iq2_s, 82, 16, 2, gb_grid_rows_iq2_s, 1024, levels_iq2_)
UNPACK_GRID(iq3_xxs, 98, 8, 4, gb_grid_rows_iq3_xxs, 256, levels_iq3_xxs_)
UNPACK_GRID(iq3_s, 110, 8, 4, gb_grid_rows_iq3_s, 512, levels_iq3_s_)
UNPACK_GRID(iq1_s, 50, 8, 2, gb_grid_rows_iq1, 2048, levels_iq1_)
UNPACK_GRID(iq1_m, 56, 16, 2, gb_grid_rows_iq1, 2048, levels_iq1_)

// ------------------------------------------------------------------------------------------------------------- ternary

// Five digits to the base of 3 in a byte: times 3 the first one overflows, once from 86 on, twice from 171 on.
static ALWAYS_INLINE void ternary_digits_(int bytes, int digits, uint8_t * restrict u, const uint8_t * restrict q) {
    uint8_t rest[32];
    memcpy(rest, q, (size_t) bytes);
    for (int n = 0; n < digits; n++, u += bytes) {
        for (int i = 0; i < bytes; i++) {
            u[i]    = (uint8_t) ((uint8_t) (rest[i] > 85) + (uint8_t) (rest[i] > 170));
            rest[i] = (uint8_t) (rest[i] * 3);
        }
    }
}

static void unpack_tq1_0(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    FOR_SUPER_BLOCKS(54, 8) {
        const float scale = half_at_(block + 52);
        for (int s = 0; s < 8; s++) {
            d[s] = scale;
            m[s] = -scale;
        }
        ternary_digits_(32, 5, u, block);
        ternary_digits_(16, 5, u + 160, block + 32);
        ternary_digits_(4, 4, u + 240, block + 48);
    }
}

static void unpack_tq2_0(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    FOR_SUPER_BLOCKS(66, 8) {
        const float scale = half_at_(block + 64);
        for (int s = 0; s < 8; s++) {
            d[s] = scale;
            m[s] = -scale;
        }
        pairs_256_(u, block, b32_and(b32_load(block), 0));
    }
}
