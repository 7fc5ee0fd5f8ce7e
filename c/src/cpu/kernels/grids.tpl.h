// grids.tpl.h - the formats whose levels are rows of a codebook (IQ1, IQ2, IQ3), and the ternary ones, as unsigned
// bytes: unpack kernels as in unpack.tpl.h.
//
// A row is 16 bits: 8 codes of 2 bits, or 4 codes of 4 bits. Its codes are spread to bytes, each
// with a flag (its sign, or the direction of its offset). A byte is then an index into a table of
// at most 16 levels, for one shuffle of bytes. The portable body looks up one row at a time and
// spreads it in 64-bit words. x86/grids_vbmi.tpl.h looks up 32 rows at a time, in tables in
// registers.

#include "tensor/quant/grid.h"

#define GRID_FLAG 8 // in an index, in addition to the code

// Codes with the flag begin at GRID_FLAG. A sign negates a value. An offset is 1 without the flag,
// else -1.
#define GRID_PLUS(v) (v) + GRID_BIAS
#define GRID_MINUS(v) -(v) + GRID_BIAS
#define GRID_ABOVE(v) (v) + 1 + GRID_BIAS
#define GRID_BELOW(v) (v) - 1 + GRID_BIAS
#define GRID_SIGNED(v) { v(GRID_PLUS), [GRID_FLAG] = v(GRID_MINUS) }
#define GRID_WITH_OFFSETS(v) { v(GRID_ABOVE), [GRID_FLAG] = v(GRID_BELOW) }
#define GRID_BIAS GB_ZERO(iq2_s)
static const uint8_t levels_iq2_[16] = GRID_SIGNED(GB_VALUES_IQ2);
#undef GRID_BIAS
#define GRID_BIAS GB_ZERO(iq3_xxs)
static const uint8_t levels_iq3_xxs_[16] = GRID_SIGNED(GB_VALUES_IQ3_XXS);
#undef GRID_BIAS
#define GRID_BIAS GB_ZERO(iq3_s)
static const uint8_t levels_iq3_s_[16] = GRID_SIGNED(GB_VALUES_IQ3_S);
#undef GRID_BIAS
#define GRID_BIAS GB_ZERO(iq1_s)
static const uint8_t levels_iq1_[16] = GRID_WITH_OFFSETS(GB_VALUES_IQ1);
#undef GRID_BIAS
static_assert(GB_ZERO(iq2_xxs) == GB_ZERO(iq2_s) && GB_ZERO(iq2_xs) == GB_ZERO(iq2_s), "one table for all of IQ2");
static_assert(GB_ZERO(iq1_m) == GB_ZERO(iq1_s), "one table for both of IQ1");

static inline uint64_t grid_u64_(const uint8_t * p) {
    uint64_t w;
    memcpy(&w, p, sizeof(w));
    return w;
}

// The unit from four words, each with four scales of 3 bits and 4 bits of an f16.
static inline float iq1_m_unit_(uint64_t scales) {
    const uint16_t half =
        (uint16_t) ((scales >> 12 & 15) | (scales >> 24 & 0xf0) | (scales >> 36 & 0xf00) | (scales >> 48 & 0xf000));
    return half_at_((const uint8_t *) &half) * 0.125f;
}

#if HAVE_VBMI
#    include "x86/grids_vbmi.tpl.h"
#else

static inline uint32_t grid_u32_(const uint8_t * p) {
    uint32_t w;
    memcpy(&w, p, sizeof(w));
    return w;
}

// Expands four fields of 7 bits of a word to bytes. Sets the highest bit of a byte if an odd number
// of its other bits is set.
static inline uint32_t even_signs_(uint32_t fields) {
    const uint32_t seven =
        (fields & 0x7fu) | (fields & 0x3f80u) << 1 | (fields & 0x1fc000u) << 2 | (fields & 0xfe00000u) << 3;
    uint32_t odd = seven ^ (seven >> 4 & 0x0f0f0f0fu);
    odd ^= odd >> 2 & 0x33333333u;
    odd ^= odd >> 1;
    return seven | (odd & 0x01010101u) << 7;
}

// The data of a super-block: row numbers, a flag for each level. The functions below add the
// scales.
struct grid_rows {
    uint16_t row[64];
    uint64_t flags[4];
};

static inline uint64_t spread_row_(int bits, uint64_t row) { // of 8 codes of 2 bits, or 4 of 4 bits
#if HAVE_PDEP64
    return deposit_64_(row, bits == 4 ? UINT64_C(0x0f0f0f0f) : UINT64_C(0x0303030303030303));
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
        uint64_t codes[4];
        const uint32_t flags = (uint32_t) (g->flags[i / 2] >> 32 * (i % 2));
        for (int j = 0; j < 4; j++) {
            if (bits == 2) {
                codes[j] = spread_row_(2, table[g->row[4 * i + j]]);
            } else {
                const uint16_t * row = g->row + 8 * i + 2 * j;
                codes[j] = spread_row_(4, table[row[0]]) | spread_row_(4, table[row[1]]) << 32;
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

// Unpacks scales from nibbles, the lower first.
static inline void set_scales_(int groups, const uint8_t * nibbles, float unit, float bias, float * restrict d,
    float * restrict m) {
    for (int s = 0; s < groups; s++) {
        set_scale_(d, m, s, unit, nibbles[s / 2] >> 4 * (s % 2) & 15, bias);
    }
}

static inline void read_iq2_xxs_(struct grid_rows * restrict g, const uint8_t * restrict block, float * restrict d,
    float * restrict m) {
    for (int i = 0; i < 8; i++) {
        const uint8_t * p = block + GB_AT(iq2_xxs, qs) + 8 * i;
        const uint32_t bits = grid_u32_(p + 4);
        for (int l = 0; l < 4; l++) {
            g->row[4 * i + l] = p[l];
        }
        set_flags_(g, i, even_signs_(bits));
        set_scale_(d, m, i, half_at_(block + GB_AT(iq2_xxs, d)) * 0.125f, (int) (bits >> 28), GB_ZERO(iq2_xxs));
    }
}

static inline void read_iq2_xs_(struct grid_rows * restrict g, const uint8_t * restrict block, float * restrict d,
    float * restrict m) {
    for (int i = 0; i < 8; i++) {
        // four times 9 bits of a row number and 7 signs
        const uint64_t word = grid_u64_(block + GB_AT(iq2_xs, qs) + 8 * i);
        for (int l = 0; l < 4; l++) {
            g->row[4 * i + l] = word >> 16 * l & 511;
        }
        set_flags_(g, i,
            even_signs_((uint32_t) ((word >> 9 & 0x7f) | (word >> 18 & 0x3f80) | (word >> 27 & 0x1fc000) |
                                    (word >> 36 & 0xfe00000))));
    }
    set_scales_(16, block + GB_AT(iq2_xs, scales), half_at_(block + GB_AT(iq2_xs, d)) * 0.125f, GB_ZERO(iq2_xs), d, m);
}

static inline void read_iq2_s_(struct grid_rows * restrict g, const uint8_t * restrict block, float * restrict d,
    float * restrict m) {
    for (int i = 0; i < 32; i++) {
        g->row[i] =
            (uint16_t) (block[GB_AT(iq2_s, qs) + i] | (block[GB_AT(iq2_s, qh) + i / 4] >> 2 * (i % 4) & 3) << 8);
    }
    memcpy(g->flags, block + GB_AT(iq2_s, signs), sizeof(g->flags));
    set_scales_(16, block + GB_AT(iq2_s, scales), half_at_(block + GB_AT(iq2_s, d)) * 0.125f, GB_ZERO(iq2_s), d, m);
}

static inline void read_iq3_xxs_(struct grid_rows * restrict g, const uint8_t * restrict block, float * restrict d,
    float * restrict m) {
    for (int i = 0; i < 64; i++) {
        g->row[i] = block[GB_AT(iq3_xxs, qs) + i];
    }
    for (int i = 0; i < 8; i++) {
        const uint32_t bits = grid_u32_(block + GB_AT(iq3_xxs, bits) + 4 * i);
        set_flags_(g, i, even_signs_(bits));
        set_scale_(d, m, i, half_at_(block + GB_AT(iq3_xxs, d)) * 0.25f, (int) (bits >> 28), GB_ZERO(iq3_xxs));
    }
}

static inline void read_iq3_s_(struct grid_rows * restrict g, const uint8_t * restrict block, float * restrict d,
    float * restrict m) {
    for (int i = 0; i < 8; i++) {
        for (int j = 0; j < 8; j++) {
            g->row[8 * i + j] =
                (uint16_t) (block[GB_AT(iq3_s, qs) + 8 * i + j] | (block[GB_AT(iq3_s, qh) + i] >> j & 1) << 8);
        }
    }
    memcpy(g->flags, block + GB_AT(iq3_s, signs), sizeof(g->flags));
    set_scales_(8, block + GB_AT(iq3_s, scales), half_at_(block + GB_AT(iq3_s, d)), GB_ZERO(iq3_s), d, m);
}

static inline void read_iq1_s_(struct grid_rows * restrict g, const uint8_t * restrict block, float * restrict d,
    float * restrict m) {
    for (int i = 0; i < 8; i++) {
        uint16_t bits; // four times 3 bits of a row number, a scale, the offset's sign
        memcpy(&bits, block + GB_AT(iq1_s, qh) + 2 * i, sizeof(bits));
        for (int l = 0; l < 4; l++) {
            g->row[4 * i + l] = (uint16_t) (block[GB_AT(iq1_s, qs) + 4 * i + l] | (bits >> 3 * l & 7) << 8);
        }
        set_flags_(g, i, 0u - (bits >> 15));
        set_scale_(d, m, i, half_at_(block + GB_AT(iq1_s, d)) * 0.125f, bits >> 12 & 7, GB_ZERO(iq1_s));
    }
}

static inline void read_iq1_m_(struct grid_rows * restrict g, const uint8_t * restrict block, float * restrict d,
    float * restrict m) {
    const uint64_t scales = grid_u64_(block + GB_AT(iq1_m, scales));
    const float unit = iq1_m_unit_(scales);
    for (int i = 0; i < 32; i++) {
        g->row[i] =
            (uint16_t) (block[GB_AT(iq1_m, qs) + i] | (block[GB_AT(iq1_m, qh) + i / 2] >> 4 * (i % 2) & 7) << 8);
    }
    for (int i = 0; i < 8; i++) {
        // bit 3 of each nibble, an offset's sign, is expanded to a byte
        const uint32_t p = block[GB_AT(iq1_m, qh) + 2 * i], q = block[GB_AT(iq1_m, qh) + 2 * i + 1];
        set_flags_(g, i, ((p >> 3 & 1) | (p >> 7) << 8 | (q >> 3 & 1) << 16 | (q >> 7) << 24) * 255u);
    }
    for (int s = 0; s < 16; s++) {
        set_scale_(d, m, s, unit, (int) (scales >> (16 * (s / 4) + 3 * (s % 4)) & 7), GB_ZERO(iq1_m));
    }
}
#endif

#define UNPACK_GRID(stem, bits, table, levels)                                                         \
    static void unpack_##stem(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m, \
        const void * restrict x) {                                                                     \
        enum { rows = sizeof(table) / sizeof((table)[0]) };                                            \
        FOR_SUPER_BLOCKS(stem) {                                                                       \
            struct grid_rows g;                                                                        \
            read_##stem##_(&g, block, d, m);                                                           \
            expand_rows_(u, bits, table, rows, levels, &g);                                            \
        }                                                                                              \
    }
UNPACK_GRID(iq2_xxs, 2, gb_grid_rows_iq2_xxs, levels_iq2_)
UNPACK_GRID(iq2_xs, 2, gb_grid_rows_iq2_xs, levels_iq2_)
UNPACK_GRID(iq2_s, 2, gb_grid_rows_iq2_s, levels_iq2_)
UNPACK_GRID(iq3_xxs, 4, gb_grid_rows_iq3_xxs, levels_iq3_xxs_)
UNPACK_GRID(iq3_s, 4, gb_grid_rows_iq3_s, levels_iq3_s_)
UNPACK_GRID(iq1_s, 2, gb_grid_rows_iq1, levels_iq1_)
UNPACK_GRID(iq1_m, 2, gb_grid_rows_iq1, levels_iq1_)

// ------------------------------------------------------------------------------------------------------------- ternary

// Unpacks five base-3 digits from a byte. Multiplied by 3, the byte overflows by the first digit:
// once from 86 on, twice from 171 on.
static ALWAYS_INLINE void ternary_digits_(int bytes, int digits, uint8_t * restrict u, const uint8_t * restrict q) {
    uint8_t rest[32];
    memcpy(rest, q, (size_t) bytes);
    for (int n = 0; n < digits; n++, u += bytes) {
        for (int i = 0; i < bytes; i++) {
            u[i] = (uint8_t) ((uint8_t) (rest[i] > 85) + (uint8_t) (rest[i] > 170));
            rest[i] = (uint8_t) (rest[i] * 3);
        }
    }
}

static void unpack_tq1_0(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    FOR_SUPER_BLOCKS(tq1_0) {
        const float scale = half_at_(block + GB_AT(tq1_0, d));
        for (int s = 0; s < 8; s++) {
            d[s] = scale;
            m[s] = -scale;
        }
        ternary_digits_(32, 5, u, block + GB_AT(tq1_0, by32));
        ternary_digits_(16, 5, u + 160, block + GB_AT(tq1_0, by16));
        ternary_digits_(4, 4, u + 240, block + GB_AT(tq1_0, by4));
    }
}

static void unpack_tq2_0(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    FOR_SUPER_BLOCKS(tq2_0) {
        const float scale = half_at_(block + GB_AT(tq2_0, d));
        for (int s = 0; s < 8; s++) {
            d[s] = scale;
            m[s] = -scale;
        }
        pairs_256_(u, block + GB_AT(tq2_0, qs), b32_and(b32_load(block), 0));
    }
}
