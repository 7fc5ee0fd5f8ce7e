// columns.tpl.h - unpacks quantized weights and packs them into a panel of bytes, in one pass.
//
// The blocks of V_N columns are transposed as they are stored, in words of 32 bits, so that a
// vector holds the same word of each column. Unpacking then works on whole vectors. It gives levels
// in the order of the panel, four bytes of every column, and scales as a vector. Only the stored
// bits move across lanes: 4.5 bits a weight for Q4_0. Transposing levels would move 8.
//
// pack_columns_q8 (contracts/bytes.h) takes n <= BYTES_NR columns of k <= GB_PACK_COLUMNS_MAX
// terms. The panel is that of int8.tpl.h. Columns from n on repeat the first one. It returns false
// if the row of the type in formats.def does not say DIRECT, or if it would not be faster. The
// values have the bits of the unpack kernels.

// the destination of V_N columns in the panel
struct columns {
    float * u; // fours of bytes
    float * d; // scales
    float * m; // minima; NULL: not stored
};

// The word that begins at any byte of the transposed blocks.
static ALWAYS_INLINE vi raw_(const float * t, int byte) {
    const float * p = t + byte / 4 * V_N;
    const vi low = v_bits(v_load(p));
    switch (byte % 4) {
        case 1: return vi_or(vi_shr(low, 8), vi_shl(v_bits(v_load(p + V_N)), 24));
        case 2: return vi_or(vi_shr(low, 16), vi_shl(v_bits(v_load(p + V_N)), 16));
        case 3: return vi_or(vi_shr(low, 24), vi_shl(v_bits(v_load(p + V_N)), 8));
        default: return low;
    }
}

static ALWAYS_INLINE vf raw_half_(vi word) { // f16 in the lower half
    uint16_t half[V_N];
    v_store_u16(half, vi_and(word, vi_set(0xffff)));
    return v_load_f16(half);
}

static ALWAYS_INLINE void put_levels_(const struct columns * c, int step, vi levels) {
    v_store(c->u + step * BYTES_NR, v_from_bits(levels));
}

static ALWAYS_INLINE void put_scale_(const struct columns * c, int group, vf d, vf m) {
    v_store(c->d + group * BYTES_NR, d);
    if (c->m != NULL) {
        v_store(c->m + group * BYTES_NR, m);
    }
}

static ALWAYS_INLINE vi fields_(vi a, int byte) { // the same bits of every byte
    return vi_and(a, vi_set((int32_t) ((uint32_t) byte * 0x01010101u)));
}

// -------------------------------------------------------------------------------------------------- blocks of 32 terms

// Stores the lower nibbles of 16 bytes, then the upper ones, each through a table or with a fifth
// bit.
static ALWAYS_INLINE void put_nibbles_(const struct columns * c, int step, const float * t, int byte,
    const uint8_t * table) {
    for (int i = 0; i < 4; i++) {
        const vi q = raw_(t, byte + 4 * i), low = fields_(q, 15), high = fields_(vi_shr(q, 4), 15);
        put_levels_(c, step + i, table == NULL ? low : vi_lookup16(low, table));
        put_levels_(c, step + 4 + i, table == NULL ? high : vi_lookup16(high, table));
    }
}

static ALWAYS_INLINE vi fifth_bits_(vi bits) { // the lowest four bits, to bit 4 of the four bytes
    vi x = vi_and(bits, vi_set(15));
    x = vi_or(x, vi_shl(x, 14));
    x = vi_or(x, vi_shl(x, 7));
    return vi_shl(fields_(x, 1), 4);
}

static ALWAYS_INLINE void put_fives_(const struct columns * c, int step, const float * t, int high, int byte) {
    vi bits = raw_(t, high), upper[4];
    for (int i = 0; i < 4; i++) {
        const vi q = raw_(t, byte + 4 * i);
        upper[i] = fields_(vi_shr(q, 4), 15);
        put_levels_(c, step + i, vi_or(fields_(q, 15), fifth_bits_(bits)));
        bits = vi_shr(bits, 4);
    }
    for (int i = 0; i < 4; i++) {
        put_levels_(c, step + 4 + i, vi_or(upper[i], fifth_bits_(bits)));
        bits = vi_shr(bits, 4);
    }
}

static ALWAYS_INLINE void put_symmetric_(const struct columns * c, int group, vf d, float bias) {
    put_scale_(c, group, d, v_mul(d, v_set(-bias)));
}

// d and m are adjacent
static_assert(GB_AT(q4_1, m) == GB_AT(q4_1, d) + 2 && GB_AT(q5_1, m) == GB_AT(q5_1, d) + 2, "one word");
static ALWAYS_INLINE void put_affine_(const struct columns * c, int group, vi halves) {
    put_scale_(c, group, raw_half_(halves), raw_half_(vi_shr(halves, 16)));
}

// `at`: the first byte of the block, counted from word 0 of t. g: the number of the block in the
// panel.
static ALWAYS_INLINE void column_q4_0_(const struct columns * c, int g, const float * t, int at) {
    put_symmetric_(c, g, raw_half_(raw_(t, at + GB_AT(q4_0, d))), GB_ZERO(q4_0));
    put_nibbles_(c, 8 * g, t, at + GB_AT(q4_0, qs), NULL);
}

static ALWAYS_INLINE void column_q4_1_(const struct columns * c, int g, const float * t, int at) {
    put_affine_(c, g, raw_(t, at + GB_AT(q4_1, d)));
    put_nibbles_(c, 8 * g, t, at + GB_AT(q4_1, qs), NULL);
}

static ALWAYS_INLINE void column_q5_0_(const struct columns * c, int g, const float * t, int at) {
    put_symmetric_(c, g, raw_half_(raw_(t, at + GB_AT(q5_0, d))), GB_ZERO(q5_0));
    put_fives_(c, 8 * g, t, at + GB_AT(q5_0, qh), at + GB_AT(q5_0, qs));
}

static ALWAYS_INLINE void column_q5_1_(const struct columns * c, int g, const float * t, int at) {
    put_affine_(c, g, raw_(t, at + GB_AT(q5_1, d)));
    put_fives_(c, 8 * g, t, at + GB_AT(q5_1, qh), at + GB_AT(q5_1, qs));
}

static ALWAYS_INLINE void column_q8_0_(const struct columns * c, int g, const float * t, int at) {
    put_symmetric_(c, g, raw_half_(raw_(t, at + GB_AT(q8_0, d))), GB_ZERO(q8_0));
    for (int i = 0; i < 8; i++) {
        put_levels_(c, 8 * g + i, vi_xor(raw_(t, at + GB_AT(q8_0, qs) + 4 * i), vi_set((int32_t) 0x80808080u)));
    }
}

static ALWAYS_INLINE void column_iq4_nl_(const struct columns * c, int g, const float * t, int at) {
    put_symmetric_(c, g, raw_half_(raw_(t, at + GB_AT(iq4_nl, d))), GB_ZERO(iq4_nl));
    put_nibbles_(c, 8 * g, t, at + GB_AT(iq4_nl, qs), iq4_levels_);
}

// ------------------------------------------------------------------------------------------------- blocks of 256 terms

// Stores the scales, and minima, of four groups from the bytes of two words, lowest first.
static ALWAYS_INLINE void put_affine_4_(const struct columns * c, int group, vi scales, vi minima, vf d, vf min) {
    const vi byte = vi_set(255);
    for (int j = 0; j < 4; j++) {
        put_scale_(c, group + j, v_mul(d, v_from_int(vi_and(scales, byte))),
            v_mul(min, v_from_int(vi_and(minima, byte))));
        scales = vi_shr(scales, 8);
        minima = vi_shr(minima, 8);
    }
}

// The same from bytes with an offset of `zero`, and one bias.
static ALWAYS_INLINE void put_symmetric_4_(const struct columns * c, int group, vi scales, int zero, vf d, float bias) {
    for (int j = 0; j < 4; j++) {
        put_symmetric_(c, group + j, v_mul(d, v_from_int(vi_sub(vi_and(scales, vi_set(255)), vi_set(zero)))), bias);
        scales = vi_shr(scales, 8);
    }
}

// Stores the scales and minima of Q4_K and Q5_K, as scales_45_ unpacks them.
static_assert(GB_AT(q4_k, dmin) == GB_AT(q4_k, d) + 2, "one word");
static ALWAYS_INLINE void put_scales_45_(const struct columns * c, int group, const float * t) {
    const vi halves = raw_(t, GB_AT(q4_k, d)), w0 = raw_(t, GB_AT(q4_k, scales)), w1 = raw_(t, GB_AT(q4_k, scales) + 4),
             w2 = raw_(t, GB_AT(q4_k, scales) + 8);
    const vf d = raw_half_(halves), min = v_neg(raw_half_(vi_shr(halves, 16)));
    put_affine_4_(c, group, fields_(w0, 63), fields_(w1, 63), d, min);
    put_affine_4_(c, group + 4, vi_or(fields_(w2, 15), vi_shl(fields_(vi_shr(w0, 6), 3), 4)),
        vi_or(fields_(vi_shr(w2, 4), 15), vi_shl(fields_(vi_shr(w1, 6), 3), 4)), d, min);
}

static ALWAYS_INLINE void column_q4_k_(const struct columns * c, int b, const float * t, int at) {
    (void) at; // 0
    put_scales_45_(c, 8 * b, t);
    for (int i = 0; i < 32; i++) {
        const vi q = raw_(t, GB_AT(q4_k, qs) + 4 * i);
        const int step = 64 * b + i / 8 * 16 + i % 8;
        put_levels_(c, step, fields_(q, 15));
        put_levels_(c, step + 8, fields_(vi_shr(q, 4), 15));
    }
}

static ALWAYS_INLINE void column_q5_k_(const struct columns * c, int b, const float * t, int at) {
    (void) at; // 0
    put_scales_45_(c, 8 * b, t);
    for (int i = 0; i < 8; i++) {
        vi fifth = raw_(t, GB_AT(q5_k, qh) + 4 * i);
        for (int p = 0; p < 4; p++) {
            const vi q = raw_(t, GB_AT(q5_k, qs) + 32 * p + 4 * i);
            put_levels_(c, 64 * b + 16 * p + i, vi_or(fields_(q, 15), vi_shl(fields_(fifth, 1), 4)));
            put_levels_(c, 64 * b + 16 * p + 8 + i, vi_or(fields_(vi_shr(q, 4), 15), vi_shl(fields_(fifth, 2), 3)));
            fifth = vi_shr(fifth, 2);
        }
    }
}

static ALWAYS_INLINE void column_q6_k_(const struct columns * c, int b, const float * t, int at) {
    const vf d = raw_half_(raw_(t, at + GB_AT(q6_k, d)));
    for (int j = 0; j < 4; j++) { // signed bytes
        put_symmetric_4_(c, 16 * b + 4 * j,
            vi_xor(raw_(t, at + GB_AT(q6_k, scales) + 4 * j), vi_set((int32_t) 0x80808080u)), 128, d, GB_ZERO(q6_k));
    }
    for (int i = 0; i < 16; i++) {
        const int byte = at + GB_AT(q6_k, ql) + i / 8 * 64 + i % 8 * 4, step = 64 * b + i / 8 * 32 + i % 8;
        const vi a = raw_(t, byte), e = raw_(t, byte + 32), top = raw_(t, at + GB_AT(q6_k, qh) + 4 * i);
        put_levels_(c, step, vi_or(fields_(a, 15), vi_shl(fields_(top, 3), 4)));
        put_levels_(c, step + 8, vi_or(fields_(e, 15), vi_shl(fields_(top, 12), 2)));
        put_levels_(c, step + 16, vi_or(fields_(vi_shr(a, 4), 15), fields_(top, 48)));
        put_levels_(c, step + 24, vi_or(fields_(vi_shr(e, 4), 15), fields_(vi_shr(top, 2), 48)));
    }
}

static_assert(GB_AT(q2_k, dmin) == GB_AT(q2_k, d) + 2, "one word");
static ALWAYS_INLINE void column_q2_k_(const struct columns * c, int b, const float * t, int at) {
    const vi halves = raw_(t, at + GB_AT(q2_k, d));
    const vf d = raw_half_(halves), min = v_neg(raw_half_(vi_shr(halves, 16)));
    for (int j = 0; j < 4; j++) {
        const vi both = raw_(t, at + GB_AT(q2_k, scales) + 4 * j);
        put_affine_4_(c, 16 * b + 4 * j, fields_(both, 15), fields_(vi_shr(both, 4), 15), d, min);
    }
    for (int i = 0; i < 16; i++) {
        vi q = raw_(t, at + GB_AT(q2_k, qs) + 4 * i);
        for (int p = 0; p < 4; p++) {
            put_levels_(c, 64 * b + i / 8 * 32 + 8 * p + i % 8, fields_(q, 3));
            q = vi_shr(q, 2);
        }
    }
}

static ALWAYS_INLINE void column_q3_k_(const struct columns * c, int b, const float * t, int at) {
    const vf d = raw_half_(raw_(t, at + GB_AT(q3_k, d)));
    const vi w0 = raw_(t, at + GB_AT(q3_k, scales)), w1 = raw_(t, at + GB_AT(q3_k, scales) + 4);
    vi w2 = raw_(t, at + GB_AT(q3_k, scales) + 8);
    for (int j = 0; j < 4; j++) { // six bits, around 32
        const vi w = j % 2 ? w1 : w0, low = fields_(j < 2 ? w : vi_shr(w, 4), 15);
        put_symmetric_4_(c, 16 * b + 4 * j, vi_or(low, vi_shl(fields_(w2, 3), 4)), 32, d, GB_ZERO(q3_k));
        w2 = vi_shr(w2, 2);
    }
    for (int i = 0; i < 8; i++) {
        vi third = raw_(t, at + GB_AT(q3_k, qh) + 4 * i);
        for (int h = 0; h < 2; h++) {
            vi q = raw_(t, at + GB_AT(q3_k, qs) + 32 * h + 4 * i);
            for (int p = 0; p < 4; p++) {
                put_levels_(c, 64 * b + 32 * h + 8 * p + i, vi_or(fields_(q, 3), vi_shl(fields_(third, 1), 2)));
                q = vi_shr(q, 2);
                third = vi_shr(third, 1);
            }
        }
    }
}

static_assert(GB_AT(iq4_xs, scales_high) == GB_AT(iq4_xs, d) + 2, "one word");
static ALWAYS_INLINE void column_iq4_xs_(const struct columns * c, int b, const float * t, int at) {
    const vi word = raw_(t, at + GB_AT(iq4_xs, d));
    const vf d = raw_half_(word);
    vi high = vi_shr(word, 16), low = raw_(t, at + GB_AT(iq4_xs, scales_low));
    for (int s = 0; s < 8; s++) {
        const vi bits = vi_or(vi_and(low, vi_set(15)), vi_shl(vi_and(high, vi_set(3)), 4));
        put_symmetric_(c, 8 * b + s, v_mul(d, v_from_int(vi_sub(bits, vi_set(32)))), GB_ZERO(iq4_xs));
        put_nibbles_(c, 64 * b + 8 * s, t, at + GB_AT(iq4_xs, qs) + 16 * s, iq4_levels_);
        low = vi_shr(low, 4);
        high = vi_shr(high, 2);
    }
}

// -------------------------------------------------------------------------------------------------------------- panels

// Transposes the blocks of V_N columns, word by word. The last word may be half a word.
static ALWAYS_INLINE void transpose_blocks_(float * t, size_t bytes, const void * const * x) {
    pack_f32((int64_t) (bytes / 4), V_N, V_N, t, x);
    for (int i = 0; i < V_N && bytes % 4 != 0; i++) {
        uint32_t last = 0;
        memcpy(&last, (const char *) x[i] + bytes / 4 * 4, bytes % 4);
        memcpy(t + bytes / 4 * V_N + i, &last, sizeof(last));
    }
}

#define COLUMNS_NONE(stem)
#define COLUMNS_UNPACKED(stem)
#define COLUMNS_DIRECT(stem)                                                                                  \
    static_assert(GB_PACK_COLUMNS_MAX % GB_ELEMENTS(stem) == 0 && GB_BYTES(stem) % 2 == 0,                    \
        "blocks begin at even bytes");                                                                        \
    static void columns_##stem##_(int64_t k, bool centered, int n, float * y, const void * const * x) {       \
        enum { terms = GB_ELEMENTS(stem), size = GB_BYTES(stem), group = GB_GROUP(stem) };                    \
        float t[(GB_PACK_COLUMNS_MAX / terms * size / 4 + 2) * V_N];                                          \
        struct columns c = { y, y + k / 4 * BYTES_NR, centered ? NULL : y + (k / 4 + k / group) * BYTES_NR }; \
        for (int i0 = 0; i0 < BYTES_NR; i0 += V_N) {                                                          \
            const void * from[V_N];                                                                           \
            for (int i = 0; i < V_N; i++) {                                                                   \
                from[i] = x[i0 + i < n ? i0 + i : 0];                                                         \
            }                                                                                                 \
            transpose_blocks_(t, (size_t) (k / terms) * size, from);                                          \
            for (int b = 0; b < (int) (k / terms); b++) {                                                     \
                if (b * size % 4 == 0) {                                                                      \
                    column_##stem##_(&c, b, t + b * size / 4 * V_N, 0);                                       \
                } else {                                                                                      \
                    column_##stem##_(&c, b, t + b * size / 4 * V_N, 2);                                       \
                }                                                                                             \
            }                                                                                                 \
            c.u += V_N;                                                                                       \
            c.d += V_N;                                                                                       \
            c.m = c.m != NULL ? c.m + V_N : NULL;                                                             \
        }                                                                                                     \
    }
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, partner, columns, ...) COLUMNS_##columns(stem)
#include "tensor/quant/formats.def"
#undef GB_FORMAT

static bool pack_columns_q8(int type, int64_t k, bool centered, int n, float * y, const void * const * x) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    const bool worth_it = false;
#else
    const bool worth_it = V_N > 1;
#endif
    if (!worth_it || k > GB_PACK_COLUMNS_MAX) {
        return false;
    }
    switch (type) {
#define CASE_NONE(id, stem)
#define CASE_UNPACKED(id, stem)
#define CASE_DIRECT(id, stem) \
    case GGML_TYPE_##id: columns_##stem##_(k, centered, n, y, x); return true;
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, partner, columns, ...) \
    CASE_##columns(id, stem)
#include "tensor/quant/formats.def"
#undef GB_FORMAT
#undef CASE_NONE
#undef CASE_UNPACKED
#undef CASE_DIRECT
        default: return false;
    }
}
