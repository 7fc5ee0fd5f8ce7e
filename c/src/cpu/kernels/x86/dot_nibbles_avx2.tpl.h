// dot_nibbles_avx2.tpl.h - dot_columns.tpl.h for Q4_0, Q4_1, Q5_0, Q5_1, Q4_K and Q5_K on AVX2.
//
// A vector holds 16 terms of each of two groups, one in each half. So both groups share one sum of
// pairs, one conversion and one addition of floats: levels are below 32, and 16 bits hold a sum of four
// products. Of eight groups, i and i + 4 make such a pair. So the scales of a pair are at the same place
// of both halves of a vector of eight scales. After the last eight, neighbours make a pair.
//
// The rows are brought into this order once for all columns of a call. Two columns are computed at a
// time, because one would wait for its own sums.

#define DN_TERMS 8192 // terms of the rows that are arranged at a time: with their scales 10 KiB of stack for each row
#define DN_AHEAD 4096 // bytes: the minimum prefetch distance

// Terms of one row. q: for each pair, the first 16 terms of both groups, then the other 16 of both. dx and s of eight
// groups are in their order. Of a pair after the last eight, dx has four copies for each group, s four quarters: a zero
// times an infinite minimum would be NaN.
struct dn_row {
    _Alignas(32) int8_t q[DN_TERMS];
    _Alignas(32) float dx[DN_TERMS / 32 + 24], s[DN_TERMS / 32 + 24];
};

// The columns of a call.
struct dn_columns {
    int64_t groups;
    const struct dn_row * row;
    const uint8_t * w;
    size_t nb_w, ahead;
    float * const * y;
    bool first; // sets y, else adds to it
};

// ---------------------------------------------------------------------------------------------------------------- rows

// a and b: 32 terms of each group. b is NULL if there is one group.
static ALWAYS_INLINE void dn_arrange_pair_(int8_t * y, const int8_t * a, const int8_t * b) {
    const b32 p = b32_load(a), q = b == NULL ? b32_set(0) : b32_load(b);
    b32_store(y, _mm256_permute2x128_si256(p, q, 0x20));
    b32_store(y + 32, _mm256_permute2x128_si256(p, q, 0x31));
}

// center: minus the level of zero, or if groups have minima their sign. It scales s.
static void dn_arrange_(int64_t groups, float center, struct dn_row * y, const int8_t * q, const float * dx,
    const float * s) {
    const float quarter = center / 4;
    int64_t g = 0;
    for (; g + 8 <= groups; g += 8) {
        for (int i = 0; i < 4; i++) {
            dn_arrange_pair_(y->q + 32 * g + 64 * i, q + 32 * (g + i), q + 32 * (g + i + 4));
        }
        v_store(y->dx + g, v_load(dx + g));
        v_store(y->s + g, v_mul(v_load(s + g), v_set(center)));
    }
    for (float *d = y->dx + g, *m = y->s + g; g < groups; g += 2, d += 8, m += 8) {
        const bool two = g + 1 < groups;
        dn_arrange_pair_(y->q + 32 * g, q + 32 * g, two ? q + 32 * (g + 1) : NULL);
        v_store(d, _mm256_set_m128(_mm_set1_ps(two ? dx[g + 1] : 0.0f), _mm_set1_ps(dx[g])));
        v_store(m, _mm256_set_m128(_mm_set1_ps(two ? s[g + 1] * quarter : 0.0f), _mm_set1_ps(s[g] * quarter)));
    }
}

// ------------------------------------------------------------------------------------------------------------- columns

static const uint8_t dn_no_block_[32] = { 0 }; // follows the last block if their number is odd

static ALWAYS_INLINE int32_t dn_word_(const uint8_t * p) {
    int32_t word;
    memcpy(&word, p, sizeof(word));
    return word;
}

// Of each of eight blocks the half at w, and the half after it.
static ALWAYS_INLINE void dn_two_halves_(const uint8_t * w, int64_t size, vf * first, vf * second) {
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m128i a = _mm_setr_epi32(dn_word_(w), dn_word_(w + size), dn_word_(w + 2 * size), dn_word_(w + 3 * size)),
                  b = _mm_setr_epi32(dn_word_(w + 4 * size), dn_word_(w + 5 * size), dn_word_(w + 6 * size),
                      dn_word_(w + 7 * size));
    const __m128i p = _mm_shuffle_epi8(a, order), q = _mm_shuffle_epi8(b, order);
    *first = _mm256_cvtph_ps(_mm_unpacklo_epi64(p, q));
    *second = _mm256_cvtph_ps(_mm_unpackhi_epi64(p, q));
}

// The half at a in four lanes, and the half at b in the other four.
static ALWAYS_INLINE vf dn_pair_of_halves_(const uint8_t * a, const uint8_t * b) {
    const uint64_t four = 0x0001000100010001;
    return _mm256_cvtph_ps(_mm_set_epi64x((int64_t) (copied_half_(b) * four), (int64_t) (copied_half_(a) * four)));
}

// Of the bits at a and at b, those of the first 16 terms of a group, or those of the others: 16 where a bit is set.
static ALWAYS_INLINE b32 dn_bits_(const uint8_t * a, const uint8_t * b, bool others) {
    const b32 bits = _mm256_set_m128i(_mm_cvtsi32_si128(dn_word_(b)), _mm_cvtsi32_si128(dn_word_(a)));
    const __m128i spread = _mm_add_epi8(_mm_set_epi64x(0x0101010101010101, 0), _mm_set1_epi8(others ? 2 : 0));
    const b32 one = _mm256_set1_epi64x((int64_t) 0x8040201008040201u);
    const b32 set = _mm256_and_si256(_mm256_shuffle_epi8(bits, _mm256_broadcastsi128_si256(spread)), one);
    return b32_and(_mm256_cmpeq_epi8(set, one), 16);
}

// 16 bytes at a and 16 at b.
static ALWAYS_INLINE b32 dn_join_(const uint8_t * a, const uint8_t * b) {
    return _mm256_loadu2_m128i((const __m128i *) (const void *) b, (const __m128i *) (const void *) a);
}

// Sums of products of a pair: four of the first group, and four of the second.
static ALWAYS_INLINE vf dn_sums_(b32 low, b32 high, const int8_t * q) {
    const __m256i pairs =
        _mm256_add_epi16(_mm256_maddubs_epi16(low, b32_load(q)), _mm256_maddubs_epi16(high, b32_load(q + 32)));
    return v_from_int(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

// Lane i of each half.
static ALWAYS_INLINE vf dn_lanes_(vf a, int i) {
    switch (i) {
        case 0: return _mm256_permute_ps(a, 0x00);
        case 1: return _mm256_permute_ps(a, 0x55);
        case 2: return _mm256_permute_ps(a, 0xaa);
        default: return _mm256_permute_ps(a, 0xff);
    }
}

// Registers hold the sums of two columns of at most two rows.
#define DN_ROWS(stem, n)                                  \
    {                                                     \
        const int64_t pairs = (n) <= 2 ? columns / 2 : 0; \
        for (int64_t i = 0; i < pairs; i++) {             \
            dn_##stem##_columns_((n), 2, p, 2 * i);       \
        }                                                 \
        for (int64_t i = 2 * pairs; i < columns; i++) {   \
            dn_##stem##_columns_((n), 1, p, i);           \
        }                                                 \
    }

// A format with functions dn_<stem>_eight_(w, d, m), which reads scales of eight groups and what multiplies s, and
// dn_<stem>_levels_(w, i, low, high), which unpacks the groups i and i + 4: the first 16 terms of both, and the others.
#define DN_FORMAT(stem, eight_bytes, TAIL)                                                                           \
    /* Adds eight groups from g on, whose blocks are at w. */                                                        \
    static ALWAYS_INLINE void dn_##stem##_add_eight_(int n, int64_t g, const struct dn_row * row, const uint8_t * w, \
        vf * acc) {                                                                                                  \
        vf d, m, scale[GB_DOT_Q8_ROWS];                                                                              \
        COMPUTED_HERE(g); /* else the compiler keeps what it loaded for another column */                            \
        dn_##stem##_eight_(w, &d, &m);                                                                               \
        UNROLL                                                                                                       \
        for (int r = 0; r < n; r++) {                                                                                \
            scale[r] = v_mul(d, v_load(row[r].dx + g));                                                              \
            acc[r] = v_fma(m, v_load(row[r].s + g), acc[r]);                                                         \
        }                                                                                                            \
        UNROLL                                                                                                       \
        for (int i = 0; i < 4; i++) {                                                                                \
            b32 low, high;                                                                                           \
            dn_##stem##_levels_(w, i, &low, &high);                                                                  \
            UNROLL                                                                                                   \
            for (int r = 0; r < n; r++) {                                                                            \
                const vf sums = dn_sums_(low, high, row[r].q + 32 * g + 64 * i);                                     \
                acc[r] = v_fma(sums, dn_lanes_(scale[r], i), acc[r]);                                                \
            }                                                                                                        \
        }                                                                                                            \
    }                                                                                                                \
    /* Multiplies one or two columns, from column i on, with n rows. */                                              \
    static ALWAYS_INLINE void dn_##stem##_columns_(int n, int columns, const struct dn_columns * p, int64_t i) {     \
        const uint8_t * w = p->w + (size_t) i * p->nb_w;                                                             \
        vf acc[2][GB_DOT_Q8_ROWS];                                                                                   \
        int64_t g = 0;                                                                                               \
        UNROLL                                                                                                       \
        for (int r = 0; r < n; r++) {                                                                                \
            acc[0][r] = acc[1][r] = v_set(0.0f);                                                                     \
        }                                                                                                            \
        for (; g + 8 <= p->groups; g += 8, w += (eight_bytes)) {                                                     \
            UNROLL                                                                                                   \
            for (int c = 0; c < columns; c++) {                                                                      \
                const uint8_t * const block = w + (size_t) c * p->nb_w;                                              \
                UNROLL                                                                                               \
                for (int at = 0; at < (eight_bytes); at += 64) {                                                     \
                    PREFETCH(block + at + p->ahead);                                                                 \
                }                                                                                                    \
                dn_##stem##_add_eight_(n, g, p->row, block, acc[c]);                                                 \
            }                                                                                                        \
        }                                                                                                            \
        TAIL(stem)                                                                                                   \
        UNROLL                                                                                                       \
        for (int c = 0; c < columns; c++) {                                                                          \
            UNROLL                                                                                                   \
            for (int r = 0; r < n; r++) {                                                                            \
                const float sum = v_sum(acc[c][r]);                                                                  \
                float * const y = p->y[r] + i + c;                                                                   \
                *y = p->first ? sum : *y + sum;                                                                      \
            }                                                                                                        \
        }                                                                                                            \
    }                                                                                                                \
    static void dn_##stem##_(int n, int64_t columns, const struct dn_columns * p) {                                  \
        switch (n) {                                                                                                 \
            case 1: DN_ROWS(stem, 1) break;                                                                          \
            case 2: DN_ROWS(stem, 2) break;                                                                          \
            case 3: DN_ROWS(stem, 3) break;                                                                          \
            case 4: DN_ROWS(stem, 4) break;                                                                          \
            default: break;                                                                                          \
        }                                                                                                            \
    }

// -------------------------------------------------------------------------------------------------- blocks of 32 terms

// The levels of the blocks a and b: of the first 16 terms of both, and of the others.
#define DN_LEVELS(stem, FIFTH)                                                                                 \
    static ALWAYS_INLINE void dn_##stem##_pair_(const uint8_t * a, const uint8_t * b, b32 * low, b32 * high) { \
        const b32 two = dn_join_(a + GB_AT(stem, qs), b + GB_AT(stem, qs));                                    \
        *low = b32_and(two, 15);                                                                               \
        *high = b32_and(b32_shr(two, 4), 15);                                                                  \
        FIFTH(stem)                                                                                            \
    }
#define DN_FOUR_BITS(stem)
#define DN_FIVE_BITS(stem)                                                          \
    *low = b32_or(*low, dn_bits_(a + GB_AT(stem, qh), b + GB_AT(stem, qh), false)); \
    *high = b32_or(*high, dn_bits_(a + GB_AT(stem, qh), b + GB_AT(stem, qh), true));

// The scales of eight blocks, or of the blocks a and b, and what multiplies s.
#define DN_CENTERED(stem)                                                                              \
    static ALWAYS_INLINE void dn_##stem##_eight_(const uint8_t * w, vf * d, vf * m) {                  \
        dn_two_halves_(w + GB_AT(stem, d), GB_BYTES(stem), d, m);                                      \
        *m = *d;                                                                                       \
    }                                                                                                  \
    static ALWAYS_INLINE void dn_##stem##_two_(const uint8_t * a, const uint8_t * b, vf * d, vf * m) { \
        *m = *d = dn_pair_of_halves_(a + GB_AT(stem, d), b + GB_AT(stem, d));                          \
    }
#define DN_MINIMA(stem)                                                                                \
    static_assert(GB_AT(stem, m) == GB_AT(stem, d) + 2, "one word");                                   \
    static ALWAYS_INLINE void dn_##stem##_eight_(const uint8_t * w, vf * d, vf * m) {                  \
        dn_two_halves_(w + GB_AT(stem, d), GB_BYTES(stem), d, m);                                      \
    }                                                                                                  \
    static ALWAYS_INLINE void dn_##stem##_two_(const uint8_t * a, const uint8_t * b, vf * d, vf * m) { \
        *d = dn_pair_of_halves_(a + GB_AT(stem, d), b + GB_AT(stem, d));                               \
        *m = dn_pair_of_halves_(a + GB_AT(stem, m), b + GB_AT(stem, m));                               \
    }

#define DN_BLOCKS(stem, SCALES, FIFTH)                                                                      \
    SCALES(stem)                                                                                            \
    DN_LEVELS(stem, FIFTH)                                                                                  \
    static ALWAYS_INLINE void dn_##stem##_levels_(const uint8_t * w, int i, b32 * low, b32 * high) {        \
        dn_##stem##_pair_(w + i * GB_BYTES(stem), w + (i + 4) * GB_BYTES(stem), low, high);                 \
    }                                                                                                       \
    /* Adds the groups of the blocks a and b, whose first is g. at: of their dx and s. */                   \
    static ALWAYS_INLINE void dn_##stem##_add_two_(int n, int64_t g, int64_t at, const struct dn_row * row, \
        const uint8_t * a, const uint8_t * b, vf * acc) {                                                   \
        vf d, m;                                                                                            \
        b32 low, high;                                                                                      \
        dn_##stem##_two_(a, b, &d, &m);                                                                     \
        dn_##stem##_pair_(a, b, &low, &high);                                                               \
        UNROLL                                                                                              \
        for (int r = 0; r < n; r++) {                                                                       \
            const vf sums = dn_sums_(low, high, row[r].q + 32 * g);                                         \
            acc[r] = v_fma(m, v_load(row[r].s + at), acc[r]);                                               \
            acc[r] = v_fma(sums, v_mul(d, v_load(row[r].dx + at)), acc[r]);                                 \
        }                                                                                                   \
    }                                                                                                       \
    DN_FORMAT(stem, 8 * GB_BYTES(stem), DN_TAIL)

// The groups after the last eight.
#define DN_TAIL(stem)                                                                                                 \
    for (int64_t at = g; g < p->groups; g += 2, at += 8, w += 2 * GB_BYTES(stem)) {                                   \
        UNROLL                                                                                                        \
        for (int c = 0; c < columns; c++) {                                                                           \
            const uint8_t * const a = w + (size_t) c * p->nb_w;                                                       \
            PREFETCH(a + p->ahead);                                                                                   \
            dn_##stem##_add_two_(n, g, at, p->row, a, g + 1 < p->groups ? a + GB_BYTES(stem) : dn_no_block_, acc[c]); \
        }                                                                                                             \
    }

#define DN_NO_TAIL(stem)

DN_BLOCKS(q4_0, DN_CENTERED, DN_FOUR_BITS)
DN_BLOCKS(q4_1, DN_MINIMA, DN_FOUR_BITS)
DN_BLOCKS(q5_0, DN_CENTERED, DN_FIVE_BITS)
DN_BLOCKS(q5_1, DN_MINIMA, DN_FIVE_BITS)

// ------------------------------------------------------------------------------------------------- blocks of 256 terms

// Eight scales and eight minima of six bits (scales_45_ explains them). s is multiplied with -1.
static ALWAYS_INLINE void dn_scales_45_(const uint8_t * w, vf * d, vf * m) {
    static_assert(GB_AT(q4_k, d) == 0 && GB_AT(q4_k, dmin) == 2 && GB_AT(q4_k, scales) == 4 && GB_AT(q5_k, d) == 0 &&
                      GB_AT(q5_k, dmin) == 2 && GB_AT(q5_k, scales) == 4,
        "one vector");
    const __m128i all = _mm_loadu_si128((const __m128i *) (const void *) w);
    const __m128i low = _mm_and_si128(_mm_srlv_epi32(_mm_shuffle_epi32(all, 0xed), _mm_setr_epi32(0, 0, 0, 4)),
        _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    const __m128i top = _mm_shuffle_epi8(_mm_and_si128(_mm_srli_epi16(all, 2), _mm_set1_epi8(0x30)),
        _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11));
    const __m128i bytes = _mm_or_si128(low, top);
    const __m128 both = _mm_cvtph_ps(all);
    *d = v_mul(v_from_int(_mm256_cvtepu8_epi32(bytes)), _mm256_broadcastss_ps(both));
    *m = v_mul(v_from_int(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes))),
        _mm256_broadcastss_ps(_mm_permute_ps(both, 0x55)));
}
static ALWAYS_INLINE void dn_q4_k_eight_(const uint8_t * w, vf * d, vf * m) { dn_scales_45_(w, d, m); }
static ALWAYS_INLINE void dn_q5_k_eight_(const uint8_t * w, vf * d, vf * m) { dn_scales_45_(w, d, m); }

// The nibbles at qs: 32 bytes have the levels of two consecutive groups.
static ALWAYS_INLINE void dn_nibbles_(const uint8_t * qs, int i, b32 * low, b32 * high) {
    const uint8_t * const q = qs + i / 2 * 32;
    const b32 a = dn_join_(q, q + 64), b = dn_join_(q + 16, q + 80);
    *low = b32_and(i % 2 == 0 ? a : b32_shr(a, 4), 15);
    *high = b32_and(i % 2 == 0 ? b : b32_shr(b, 4), 15);
}

// Bits i of 16 bytes, and bits i + 4 of the same bytes: 16 where a bit is set.
static ALWAYS_INLINE b32 dn_two_bits_(const uint8_t * p, int i) {
    const b32 bits = _mm256_srlv_epi32(dn_join_(p, p), _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
    switch (i) {
        case 0: return b32_shl(b32_and(bits, 1), 4);
        case 1: return b32_shl(b32_and(bits, 2), 3);
        case 2: return b32_shl(b32_and(bits, 4), 2);
        default: return b32_shl(b32_and(bits, 8), 1);
    }
}

static ALWAYS_INLINE void dn_q4_k_levels_(const uint8_t * w, int i, b32 * low, b32 * high) {
    dn_nibbles_(w + GB_AT(q4_k, qs), i, low, high);
}

static ALWAYS_INLINE void dn_q5_k_levels_(const uint8_t * w, int i, b32 * low, b32 * high) {
    dn_nibbles_(w + GB_AT(q5_k, qs), i, low, high);
    *low = b32_or(*low, dn_two_bits_(w + GB_AT(q5_k, qh), i));
    *high = b32_or(*high, dn_two_bits_(w + GB_AT(q5_k, qh) + 16, i));
}

DN_FORMAT(q4_k, GB_BYTES(q4_k), DN_NO_TAIL)
DN_FORMAT(q5_k, GB_BYTES(q5_k), DN_NO_TAIL)

// ----------------------------------------------------------------------------------------------------------- dispatch

// Arranges the rows, and multiplies, DN_TERMS at a time. size: bytes of eight groups.
static void dn_run_(void (*multiply)(int, int64_t, const struct dn_columns *), float center, int size,
    const struct gb_dot_columns_q8 * p) {
    struct dn_row row[GB_DOT_Q8_ROWS];
    const size_t two = 2 * p->nb_w;
    struct dn_columns part = { .row = row, .nb_w = p->nb_w, .y = p->y, .first = true };
    part.ahead = two * (two > 0 ? (DN_AHEAD + two - 1) / two : 0); // the same place of later columns
    for (int64_t k0 = 0; k0 < p->k || part.first; k0 += DN_TERMS, part.first = false) {
        part.groups = (p->k - k0 < DN_TERMS ? p->k - k0 : DN_TERMS) / 32;
        part.w = (const uint8_t *) p->w + k0 / 256 * size;
        for (int r = 0; r < p->n; r++) {
            dn_arrange_(part.groups, center, row + r, p->q[r] + k0, p->dx[r] + k0 / 32, p->s[r] + k0 / 32);
        }
        multiply(p->n, p->columns, &part);
    }
}

static bool dn_columns_(int type, const struct gb_dot_columns_q8 * p) {
    switch (type) {
        case GGML_TYPE_Q4_0: dn_run_(dn_q4_0_, -(float) GB_ZERO(q4_0), 8 * GB_BYTES(q4_0), p); return true;
        case GGML_TYPE_Q4_1: dn_run_(dn_q4_1_, 1.0f, 8 * GB_BYTES(q4_1), p); return true;
        case GGML_TYPE_Q5_0: dn_run_(dn_q5_0_, -(float) GB_ZERO(q5_0), 8 * GB_BYTES(q5_0), p); return true;
        case GGML_TYPE_Q5_1: dn_run_(dn_q5_1_, 1.0f, 8 * GB_BYTES(q5_1), p); return true;
        case GGML_TYPE_Q4_K: dn_run_(dn_q4_k_, -1.0f, GB_BYTES(q4_k), p); return true;
        case GGML_TYPE_Q5_K: dn_run_(dn_q5_k_, -1.0f, GB_BYTES(q5_k), p); return true;
        default: return false;
    }
}
