// dot_columns_avx2.tpl.h - dot_columns.tpl.h for Q8_0, Q6_K, IQ4_NL and IQ4_XS on AVX2.

#define DC_AHEAD 4096 // bytes: the prefetch distance

// Prefetches the weights that are read DC_AHEAD bytes after w, where a part of this many bytes begins.
static ALWAYS_INLINE void dc_prefetch_(const uint8_t * w, int bytes) {
    UNROLL
    for (int i = 0; i < bytes; i += 64) {
        PREFETCH(w + i + DC_AHEAD);
    }
}

// The sums of each row: two chains, because one would wait for its own sums. And the part with the minima.
struct dc_sums {
    vf acc[GB_DOT_Q8_ROWS][2], min[GB_DOT_Q8_ROWS];
};

// Of eight groups: scales of the weights times those of each row.
struct dc_scales {
    float d[GB_DOT_Q8_ROWS][8];
};

// The first eight floats at p, or the first one with zeros behind it.
static ALWAYS_INLINE vf dc_floats_(int groups, const float * p) {
    return groups == 8 ? v_load(p) : _mm256_zextps128_ps256(_mm_load_ss(p));
}

// Groups g0 .. g0 + groups - 1 of the rows: eight or one, as in d.
static ALWAYS_INLINE void dc_open_(int n, int groups, const struct gb_dot_columns_q8 * p, int64_t g0, vf d,
    struct dc_scales * scales) {
    UNROLL
    for (int j = 0; j < n; j++) {
        v_store(scales->d[j], v_mul(d, dc_floats_(groups, p->dx[j] + g0)));
        IN_MEMORY(scales->d[j]);
    }
}

// Adds group g of the eight, whose first term is k0. w: its levels.
static ALWAYS_INLINE void dc_add_(int n, const struct gb_dot_columns_q8 * p, int64_t k0, int g, b32 w,
    const struct dc_scales * scales, struct dc_sums * sums) {
    const b32 size = _mm256_abs_epi8(w);
    UNROLL
    for (int j = 0; j < n; j++) {
        const vb x = vb_load(p->q[j] + k0 + 32 * g);
        const vi sum = vi_dot4(vi_set(0), size, _mm256_sign_epi8(x, w));
        sums->acc[j][g % 2] = v_fma(v_from_int(sum), v_set(scales->d[j][g]), sums->acc[j][g % 2]);
    }
}

// i: the column
static ALWAYS_INLINE void dc_close_(int n, bool has_min, const struct gb_dot_columns_q8 * p, int64_t i,
    const struct dc_sums * sums) {
    UNROLL
    for (int j = 0; j < n; j++) {
        const vf sum = v_add(sums->acc[j][0], sums->acc[j][1]);
        p->y[j][i] = v_sum(has_min ? v_add(sum, sums->min[j]) : sum);
    }
}

static ALWAYS_INLINE void dc_start_(int n, struct dc_sums * sums) {
    UNROLL
    for (int j = 0; j < n; j++) {
        sums->acc[j][0] = sums->acc[j][1] = sums->min[j] = v_set(0.0f);
    }
}

// -------------------------------------------------------------------------------------------------- blocks of 32 terms

// The half at w of each of eight blocks, or of one with zeros behind it.
static ALWAYS_INLINE vf dc_halves_(int groups, const uint8_t * w, int64_t size) {
    vf first, second;
    if (groups == 1) {
        return _mm256_zextps128_ps256(_mm_set_ss(half_at_(w)));
    }
    dn_two_halves_(w, size, &first, &second);
    return first;
}

// A format whose blocks have signed LEVELS.
#define DC_BLOCKS(stem, LEVELS)                                                                                      \
    static ALWAYS_INLINE void dc_##stem##_groups_(int n, int groups, const struct gb_dot_columns_q8 * p, int64_t g0, \
        const uint8_t * w, struct dc_sums * sums) {                                                                  \
        struct dc_scales scales;                                                                                     \
        dc_prefetch_(w, groups * GB_BYTES(stem));                                                                    \
        const vf d = dc_halves_(groups, w + GB_AT(stem, d), GB_BYTES(stem));                                         \
        dc_open_(n, groups, p, g0, d, &scales);                                                                      \
        UNROLL                                                                                                       \
        for (int g = 0; g < groups; g++) {                                                                           \
            const uint8_t * const block = w + g * GB_BYTES(stem);                                                    \
            dc_add_(n, p, 32 * g0, g, LEVELS(stem), &scales, sums);                                                  \
        }                                                                                                            \
    }                                                                                                                \
    static ALWAYS_INLINE void dc_##stem##_column_(int n, const struct gb_dot_columns_q8 * p, int64_t i,              \
        const uint8_t * w) {                                                                                         \
        struct dc_sums sums;                                                                                         \
        int64_t g = 0;                                                                                               \
        dc_start_(n, &sums);                                                                                         \
        for (; g + 8 <= p->k / 32; g += 8, w += 8 * GB_BYTES(stem)) {                                                \
            dc_##stem##_groups_(n, 8, p, g, w, &sums);                                                               \
        }                                                                                                            \
        for (; g < p->k / 32; g++, w += GB_BYTES(stem)) {                                                            \
            dc_##stem##_groups_(n, 1, p, g, w, &sums);                                                               \
        }                                                                                                            \
        dc_close_(n, false, p, i, &sums);                                                                            \
    }

#define DC_BYTES(stem) b32_load(block + GB_AT(stem, qs))
#define DC_IQ4(stem) b32_lookup(b32_nibbles(block + GB_AT(stem, qs)), (const uint8_t *) dc_iq4_)

#define DC_IQ4_LEVEL(v) (v)
static const int8_t dc_iq4_[16] = { GB_VALUES_IQ4(DC_IQ4_LEVEL) };

DC_BLOCKS(q8_0, DC_BYTES)
DC_BLOCKS(iq4_nl, DC_IQ4)

// ------------------------------------------------------------------------------------------------- blocks of 256 terms

// Scales of six bits around 32: four are in each word of the low bits, eight in the high bits.
static ALWAYS_INLINE vf dc_scales_iq4_xs_(const uint8_t * w) {
    uint32_t low;
    uint16_t high;
    memcpy(&low, w + GB_AT(iq4_xs, scales_low), sizeof(low));
    memcpy(&high, w + GB_AT(iq4_xs, scales_high), sizeof(high));
    const vi fours = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28), twos = _mm256_srli_epi32(fours, 1);
    const vi bits = _mm256_and_si256(_mm256_srlv_epi32(vi_set((int32_t) low), fours), vi_set(15));
    const vi top = _mm256_and_si256(_mm256_srlv_epi32(vi_set(high), twos), vi_set(3));
    const vi scale = _mm256_sub_epi32(_mm256_or_si256(bits, _mm256_slli_epi32(top, 4)), vi_set(32));
    return v_mul(v_from_int(scale), v_set(half_at_(w + GB_AT(iq4_xs, d))));
}

static ALWAYS_INLINE void dc_iq4_xs_column_(int n, const struct gb_dot_columns_q8 * p, int64_t i, const uint8_t * w) {
    struct dc_sums sums;
    dc_start_(n, &sums);
    for (int64_t k0 = 0; k0 < p->k; k0 += 256, w += GB_BYTES(iq4_xs)) {
        struct dc_scales scales;
        dc_prefetch_(w, GB_BYTES(iq4_xs));
        dc_open_(n, 8, p, k0 / 32, dc_scales_iq4_xs_(w), &scales);
        UNROLL
        for (int g = 0; g < 8; g++) {
            const b32 q = b32_lookup(b32_nibbles(w + GB_AT(iq4_xs, qs) + 16 * g), (const uint8_t *) dc_iq4_);
            dc_add_(n, p, k0, g, q, &scales, &sums);
        }
    }
    dc_close_(n, false, p, i, &sums);
}

// Q6_K has scales for 16 terms. They are integers, and multiply the sums of two products. scale: those of the first and
// of the second 16 terms of each group, in the halves of the vector.
static ALWAYS_INLINE void dc_add_halves_(int n, const struct gb_dot_columns_q8 * p, int64_t k0, int g, b32 w,
    __m256i scale, const struct dc_scales * scales, struct dc_sums * sums) {
    const __m256i two = _mm256_shuffle_epi8(scale, _mm256_set1_epi16((short) (2 * g | (2 * g + 1) << 8)));
    UNROLL
    for (int j = 0; j < n; j++) {
        const vi sum = _mm256_madd_epi16(_mm256_maddubs_epi16(w, vb_load(p->q[j] + k0 + 32 * g)), two);
        sums->acc[j][g % 2] = v_fma(v_from_int(sum), v_set(scales->d[j][g]), sums->acc[j][g % 2]);
    }
}

// Reads the scales, and adds the part with the minima.
static ALWAYS_INLINE __m256i dc_open_q6_k_(int n, const struct gb_dot_columns_q8 * p, int64_t k0, const uint8_t * w,
    struct dc_scales * scales, struct dc_sums * sums) {
    const __m128i all = _mm_loadu_si128((const __m128i *) (const void *) (w + GB_AT(q6_k, scales)));
    const vf d = v_set(half_at_(w + GB_AT(q6_k, d))), m = v_mul(d, v_set(-(float) GB_ZERO(q6_k)));
    const vf first = v_mul(m, v_from_int(_mm256_cvtepi8_epi32(all))),
             second = v_mul(m, v_from_int(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(all, all))));
    dc_open_(n, 8, p, k0 / 32, d, scales);
    UNROLL
    for (int j = 0; j < n; j++) {
        const float * const s = p->s[j] + k0 / 16;
        sums->min[j] = v_fma(first, v_load(s), v_fma(second, v_load(s + 8), sums->min[j]));
    }
    return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(all,
        _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15)));
}

static ALWAYS_INLINE void dc_q6_k_column_(int n, const struct gb_dot_columns_q8 * p, int64_t i, const uint8_t * w) {
    struct dc_sums sums;
    dc_start_(n, &sums);
    for (int64_t k0 = 0; k0 < p->k; k0 += 256, w += GB_BYTES(q6_k)) {
        struct dc_scales scales;
        dc_prefetch_(w, GB_BYTES(q6_k));
        const __m256i scale = dc_open_q6_k_(n, p, k0, w, &scales, &sums);
        UNROLL
        for (int h = 0; h < 2; h++) {
            const b32 a = b32_load(w + GB_AT(q6_k, ql) + 64 * h), b = b32_load(w + GB_AT(q6_k, ql) + 64 * h + 32),
                      top = b32_load(w + GB_AT(q6_k, qh) + 32 * h);
            const b32 levels[4] = {
                b32_or(b32_and(a, 15), b32_shl(b32_and(top, 3), 4)),
                b32_or(b32_and(b, 15), b32_shl(b32_and(top, 12), 2)),
                b32_or(b32_and(b32_shr(a, 4), 15), b32_and(top, 48)),
                b32_or(b32_and(b32_shr(b, 4), 15), b32_shr(b32_and(top, 192), 2)),
            };
            UNROLL
            for (int c = 0; c < 4; c++) {
                dc_add_halves_(n, p, k0, 4 * h + c, levels[c], scale, &scales, &sums);
            }
        }
    }
    dc_close_(n, true, p, i, &sums);
}

// ----------------------------------------------------------------------------------------------------------- dispatch

#define DC_COLUMNS(stem, rows)                                                          \
    for (int64_t i = 0; i < p->columns; i++) {                                          \
        dc_##stem##_column_(rows, p, i, (const uint8_t *) p->w + (size_t) i * p->nb_w); \
    }

#define DC_CASE(id, stem)                      \
    case GGML_TYPE_##id:                       \
        switch (p->n) {                        \
            case 1: DC_COLUMNS(stem, 1) break; \
            case 2: DC_COLUMNS(stem, 2) break; \
            case 3: DC_COLUMNS(stem, 3) break; \
            case 4: DC_COLUMNS(stem, 4) break; \
            default: break;                    \
        }                                      \
        return true;

static bool dot_columns_q8(int type, const struct gb_dot_columns_q8 * p) {
    if (dn_columns_(type, p)) {
        return true;
    }
    switch (type) {
        DC_CASE(Q8_0, q8_0)
        DC_CASE(IQ4_NL, iq4_nl)
        DC_CASE(Q6_K, q6_k)
        DC_CASE(IQ4_XS, iq4_xs)
        default: return false;
    }
}
