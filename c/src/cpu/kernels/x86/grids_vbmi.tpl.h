// grids_vbmi.tpl.h - grids.tpl.h with AVX-512 and VBMI. A super-block's rows are looked up
// together, in tables that are read as vectors.
//
// Two vectors hold 64 words of a table, from which one instruction chooses 32 by their numbers.
// Masks choose between parts of the table. One shift of eight fields of a word spreads a row over
// bytes. No data is stored in parts and loaded as a whole, because such a load waits for its
// stores.

struct grid_rows {
    __m512i row[2]; // row numbers
    uint64_t flags[4];
};

// table: n rows, a multiple of 256.
static ALWAYS_INLINE __m512i look_up_rows_(const uint16_t * table, int n, __m512i index) {
    const __mmask32 b6 = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64)),
                    b7 = _mm512_test_epi16_mask(index, _mm512_set1_epi16(128));
    const __m512i upper = _mm512_srli_epi16(index, 8);
    __m512i rows = _mm512_setzero_si512();
    UNROLL
    for (int c = 0; c < n / 256; c++) {
        __m512i quarter[4];
        UNROLL
        for (int i = 0; i < 4; i++) {
            const uint16_t * p = table + 256 * c + 64 * i;
            quarter[i] = _mm512_permutex2var_epi16(_mm512_loadu_si512(p), index, _mm512_loadu_si512(p + 32));
        }
        const __m512i low = _mm512_mask_mov_epi16(quarter[0], b6, quarter[1]),
                      high = _mm512_mask_mov_epi16(quarter[2], b6, quarter[3]);
        const __m512i all = _mm512_mask_mov_epi16(low, b7, high);
        rows = n == 256
                   ? all
                   : _mm512_mask_mov_epi16(rows, _mm512_cmpeq_epi16_mask(upper, _mm512_set1_epi16((short) c)), all);
    }
    return rows;
}

// Stores the levels of 64 codes. Bits above a code are ignored.
static ALWAYS_INLINE void store_levels_(uint8_t * u, __m512i spread, __m512i levels, int mask, uint64_t flags) {
    const __m512i codes = _mm512_and_si512(spread, _mm512_set1_epi8((char) mask));
    const __m512i index = _mm512_mask_add_epi8(codes, flags, codes, _mm512_set1_epi8(GRID_FLAG));
    _mm512_storeu_si512(u, _mm512_shuffle_epi8(levels, index));
}

static ALWAYS_INLINE __m128i quarter_(__m512i a, int i) {
    const __m256i half = i < 2 ? _mm512_castsi512_si256(a) : _mm512_extracti64x4_epi64(a, 1);
    return i % 2 ? _mm256_extracti128_si256(half, 1) : _mm256_castsi256_si128(half);
}

static ALWAYS_INLINE void expand_rows_(uint8_t * u, int bits, const uint16_t * table, int n, const uint8_t * levels,
    const struct grid_rows * g) {
    const __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *) levels));
    const __m512i twos = _mm512_set1_epi64(0x0e0c0a0806040200); // the first bit of each byte
    const __m512i fours = _mm512_set1_epi64(0x2c2824200c080400);
    __m512i rows[2];
    UNROLL
    for (int h = 0; h < bits / 2; h++) {
        rows[h] = look_up_rows_(table, n, g->row[h]);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        if (bits == 2) {
            store_levels_(u + 64 * i, _mm512_multishift_epi64_epi8(twos, _mm512_cvtepu16_epi64(quarter_(rows[0], i))),
                all, 3, g->flags[i]);
        } else {
            const __m256i words =
                i % 2 ? _mm512_extracti64x4_epi64(rows[i / 2], 1) : _mm512_castsi512_si256(rows[i / 2]);
            store_levels_(u + 64 * i, _mm512_multishift_epi64_epi8(fours, _mm512_cvtepu16_epi32(words)), all, 7,
                g->flags[i]);
        }
    }
}

// Expands seven signs in each byte: sets the highest bit if an odd number of the others is set.
static ALWAYS_INLINE void set_even_signs_(struct grid_rows * g, __m256i signs) {
    const __m256i odd = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128,
        0, -128, -128, 0));
    const __m256i low = _mm256_and_si256(signs, _mm256_set1_epi8(0x7f));
    const __m256i folded = _mm256_and_si256(_mm256_xor_si256(low, _mm256_srli_epi16(low, 4)), _mm256_set1_epi8(15));
    _mm256_storeu_si256((__m256i *) g->flags, _mm256_or_si256(low, _mm256_shuffle_epi8(odd, folded)));
}

static ALWAYS_INLINE void set_scales_8_(__m256i scale, float unit, float bias, float * d, float * m) {
    const __m256 y = _mm256_mul_ps(_mm256_set1_ps(unit),
        _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_add_epi32(scale, scale), _mm256_set1_epi32(1))));
    _mm256_storeu_ps(d, y);
    _mm256_storeu_ps(m, _mm256_mul_ps(y, _mm256_set1_ps(-bias)));
}

static ALWAYS_INLINE void set_scales_16_(__m128i scale, float unit, float bias, float * d, float * m) { // bytes
    const __m512i s = _mm512_cvtepu8_epi32(scale);
    const __m512 y = _mm512_mul_ps(_mm512_set1_ps(unit),
        _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_add_epi32(s, s), _mm512_set1_epi32(1))));
    _mm512_storeu_ps(d, y);
    _mm512_storeu_ps(m, _mm512_mul_ps(y, _mm512_set1_ps(-bias)));
}

static ALWAYS_INLINE __m128i scale_nibbles_(__m128i bytes) { // the lower first
    return _mm_and_si128(_mm_unpacklo_epi8(bytes, _mm_srli_epi16(bytes, 4)), _mm_set1_epi8(15));
}

static ALWAYS_INLINE __m512i rows_of_bytes_(const uint8_t * p) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *) p));
}

// For each word of 64 bits, moves to bits 8 .. 15 of its four words of 16 bits the bits in `mask`
// that begin `step` bits further each time.
static ALWAYS_INLINE __m512i upper_bits_(__m512i words, int step, int mask) {
    const int64_t starts = (int64_t) step << 24 | (int64_t) (2 * step) << 40 | (int64_t) (3 * step) << 56;
    return _mm512_and_si512(_mm512_multishift_epi64_epi8(_mm512_set1_epi64(starts), words),
        _mm512_set1_epi16((short) (mask << 8)));
}

static ALWAYS_INLINE void read_iq2_xxs_(struct grid_rows * g, const uint8_t * block, float * d, float * m) {
    static const uint8_t from[32] = { 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27, 32, 33, 34, 35, 40, 41,
        42, 43, 48, 49, 50, 51, 56, 57, 58, 59 };
    // each 64 bits have four row numbers, four times 7 signs, and a scale
    const __m512i words = _mm512_loadu_si512(block + GB_AT(iq2_xxs, qs));
    const __m512i bytes =
        _mm512_permutexvar_epi8(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) from)), words);
    const __m512i signs = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x352e2720), words);
    g->row[0] = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(bytes));
    set_even_signs_(g, _mm512_cvtepi64_epi32(signs));
    set_scales_8_(_mm512_cvtepi64_epi32(_mm512_srli_epi64(words, 60)), half_at_(block + GB_AT(iq2_xxs, d)) * 0.125f,
        GB_ZERO(iq2_xxs), d, m);
}

static ALWAYS_INLINE void read_iq2_xs_(struct grid_rows * g, const uint8_t * block, float * d, float * m) {
    const __m512i words = _mm512_loadu_si512(block + GB_AT(iq2_xs, qs)); // 9 bits of a row number, 7 signs
    g->row[0] = _mm512_and_si512(words, _mm512_set1_epi16(511));
    set_even_signs_(g, _mm512_cvtepi16_epi8(_mm512_srli_epi16(words, 9)));
    set_scales_16_(scale_nibbles_(_mm_loadl_epi64((const __m128i *) (block + GB_AT(iq2_xs, scales)))),
        half_at_(block + GB_AT(iq2_xs, d)) * 0.125f, GB_ZERO(iq2_xs), d, m);
}

static ALWAYS_INLINE void read_iq2_s_(struct grid_rows * g, const uint8_t * block, float * d, float * m) {
    const __m512i top = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *) (block + GB_AT(iq2_s, qh))));
    g->row[0] = _mm512_or_si512(rows_of_bytes_(block + GB_AT(iq2_s, qs)), upper_bits_(top, 2, 3));
    memcpy(g->flags, block + GB_AT(iq2_s, signs), sizeof(g->flags));
    set_scales_16_(scale_nibbles_(_mm_loadl_epi64((const __m128i *) (block + GB_AT(iq2_s, scales)))),
        half_at_(block + GB_AT(iq2_s, d)) * 0.125f, GB_ZERO(iq2_s), d, m);
}

static ALWAYS_INLINE void read_iq3_xxs_(struct grid_rows * g, const uint8_t * block, float * d, float * m) {
    // four times 7 signs, and a scale
    const __m256i words = _mm256_loadu_si256((const __m256i *) (block + GB_AT(iq3_xxs, bits)));
    const __m512i signs = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x150e0700), _mm512_cvtepu32_epi64(words));
    g->row[0] = rows_of_bytes_(block + GB_AT(iq3_xxs, qs));
    g->row[1] = rows_of_bytes_(block + GB_AT(iq3_xxs, qs) + 32);
    set_even_signs_(g, _mm512_cvtepi64_epi32(signs));
    set_scales_8_(_mm256_srli_epi32(words, 28), half_at_(block + GB_AT(iq3_xxs, d)) * 0.25f, GB_ZERO(iq3_xxs), d, m);
}

static ALWAYS_INLINE void read_iq3_s_(struct grid_rows * g, const uint8_t * block, float * d, float * m) {
    const uint64_t ninth = grid_u64_(block + GB_AT(iq3_s, qh));
    const __m512i low = rows_of_bytes_(block + GB_AT(iq3_s, qs)), high = rows_of_bytes_(block + GB_AT(iq3_s, qs) + 32),
                  bit = _mm512_set1_epi16(256);
    // the upper half of the last eight bytes of the block
    static_assert(GB_AT(iq3_s, scales) + 4 == GB_BYTES(iq3_s), "the load ends with the block");
    const __m128i scales = scale_nibbles_(_mm_loadl_epi64((const __m128i *) (block + GB_AT(iq3_s, scales) - 4)));
    g->row[0] = _mm512_mask_add_epi16(low, (__mmask32) ninth, low, bit);
    g->row[1] = _mm512_mask_add_epi16(high, (__mmask32) (ninth >> 32), high, bit);
    memcpy(g->flags, block + GB_AT(iq3_s, signs), sizeof(g->flags));
    set_scales_8_(_mm256_cvtepu8_epi32(_mm_srli_si128(scales, 8)), half_at_(block + GB_AT(iq3_s, d)), GB_ZERO(iq3_s), d,
        m);
}

static ALWAYS_INLINE void read_iq1_s_(struct grid_rows * g, const uint8_t * block, float * d, float * m) {
    // four times 3 bits of a row number, a scale, and the offset's sign
    const __m128i bits = _mm_loadu_si128((const __m128i *) (block + GB_AT(iq1_s, qh)));
    const __m256i wide = _mm256_cvtepi16_epi32(bits);
    g->row[0] =
        _mm512_or_si512(rows_of_bytes_(block + GB_AT(iq1_s, qs)), upper_bits_(_mm512_cvtepu16_epi64(bits), 3, 7));
    _mm256_storeu_si256((__m256i *) g->flags, _mm256_srai_epi32(wide, 31));
    set_scales_8_(_mm256_and_si256(_mm256_srli_epi32(wide, 12), _mm256_set1_epi32(7)),
        half_at_(block + GB_AT(iq1_s, d)) * 0.125f, GB_ZERO(iq1_s), d, m);
}

static ALWAYS_INLINE void read_iq1_m_(struct grid_rows * g, const uint8_t * block, float * d, float * m) {
    const __m512i upper =
        upper_bits_(_mm512_cvtepu16_epi64(_mm_loadu_si128((const __m128i *) (block + GB_AT(iq1_m, qh)))), 4, 15);
    const uint64_t scales = grid_u64_(block + GB_AT(iq1_m, scales));
    const __m128i starts = _mm_setr_epi8(0, 3, 6, 9, 16, 19, 22, 25, 32, 35, 38, 41, 48, 51, 54, 57);
    const __m128i three =
        _mm_and_si128(_mm_multishift_epi64_epi8(starts, _mm_set1_epi64x((int64_t) scales)), _mm_set1_epi8(7));
    g->row[0] =
        _mm512_or_si512(rows_of_bytes_(block + GB_AT(iq1_m, qs)), _mm512_and_si512(upper, _mm512_set1_epi16(0x700)));
    _mm256_storeu_si256((__m256i *) g->flags,
        _mm256_movm_epi8(_mm512_test_epi16_mask(upper, _mm512_set1_epi16(0x800))));
    set_scales_16_(three, iq1_m_unit_(scales), GB_ZERO(iq1_m), d, m);
}
