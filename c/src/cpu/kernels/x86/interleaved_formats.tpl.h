// interleaved_formats.tpl.h - one function for each format, which converts sixteen groups from
// their stored form to a unit in registers. interleaved.tpl.h includes this file for 512-bit
// vectors with VNNI and VBMI.
//
// The functions load 64 bytes at a time, permute the words of each group into its lane, then mask
// and shift.

#define EACH_16(f) f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8), f(9), f(10), f(11), f(12), f(13), f(14), f(15)
#define BY_LANE(f) ((vi) (__v16si) { EACH_16(f) })
#define EACH_64(f)                                                                                               \
    f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8), f(9), f(10), f(11), f(12), f(13), f(14), f(15), f(16), \
        f(17), f(18), f(19), f(20), f(21), f(22), f(23), f(24), f(25), f(26), f(27), f(28), f(29), f(30), f(31), \
        f(32), f(33), f(34), f(35), f(36), f(37), f(38), f(39), f(40), f(41), f(42), f(43), f(44), f(45), f(46), \
        f(47), f(48), f(49), f(50), f(51), f(52), f(53), f(54), f(55), f(56), f(57), f(58), f(59), f(60), f(61), \
        f(62), f(63)

struct interleaved {
    vi u[8];
    vf d, m; // m: not set if all groups have the same level for zero
};

static ALWAYS_INLINE vi words_(const void * p) { return _mm512_loadu_si512(p); }
static ALWAYS_INLINE vi bytes_(vi a, int byte) { return _mm512_and_si512(a, _mm512_set1_epi8((char) byte)); }
static ALWAYS_INLINE vi select_(int mask, vi a, vi b) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8((char) mask), a, b, 0xca);
}
// a | mask & b
static ALWAYS_INLINE vi or_bits_(vi a, vi b, int mask) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8((char) mask), a, b, 0xec);
}
// f16 in the lower half of each word
static ALWAYS_INLINE vf halves_(vi a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }
static ALWAYS_INLINE vi two_(const void * a, const void * b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) a)),
        _mm256_loadu_si256((const __m256i *) b), 1);
}

// Transposes four vectors of four quarters each: quarter i of all of them becomes vector i.
static ALWAYS_INLINE void transpose_quarters_(vi a[4]) {
    const vi u0 = _mm512_shuffle_i32x4(a[0], a[1], 0x88), u1 = _mm512_shuffle_i32x4(a[0], a[1], 0xdd);
    const vi u2 = _mm512_shuffle_i32x4(a[2], a[3], 0x88), u3 = _mm512_shuffle_i32x4(a[2], a[3], 0xdd);
    a[0] = _mm512_shuffle_i32x4(u0, u2, 0x88);
    a[1] = _mm512_shuffle_i32x4(u1, u3, 0x88);
    a[2] = _mm512_shuffle_i32x4(u0, u2, 0xdd);
    a[3] = _mm512_shuffle_i32x4(u1, u3, 0xdd);
}

// The same for the first two quarters of four vectors.
static ALWAYS_INLINE void transpose_two_quarters_(vi a[4]) {
    const vi u0 = _mm512_shuffle_i32x4(a[0], a[1], 0x44), u2 = _mm512_shuffle_i32x4(a[2], a[3], 0x44);
    a[0] = _mm512_shuffle_i32x4(u0, u2, 0x88);
    a[1] = _mm512_shuffle_i32x4(u0, u2, 0xdd);
}

// Transposes sixteen consecutive groups: of 16 bytes, four to a vector, or of 32 bytes, two to a
// vector.
static ALWAYS_INLINE void transpose_groups_(bool halves, vi u[8]) {
    if (halves) {
        const vi index = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        UNROLL
        for (int i = 0; i < 4; i++) {
            u[i] = _mm512_permutexvar_epi32(index, u[i]);
        }
        transpose_quarters_(u);
        return;
    }
    const vi low = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
    vi a[4], b[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_permutex2var_epi32(u[2 * i], low, u[2 * i + 1]);
        b[i] = _mm512_permutex2var_epi32(u[2 * i], _mm512_add_epi32(low, _mm512_set1_epi32(4)), u[2 * i + 1]);
    }
    transpose_quarters_(a);
    transpose_quarters_(b);
    UNROLL
    for (int i = 0; i < 4; i++) {
        u[i] = a[i];
        u[i + 4] = b[i];
    }
}

// -------------------------------------------------------------------------------------------------------- blocks of 32

// Four blocks are loaded together. Byte i of the requested field is in word i / 16 of block i / 4 %
// 4. It is byte `n` of the four blocks. If it is not among the first 64 bytes, it is in a second
// load that ends with the four blocks.
#define IN_FOUR(n, size) ((n) < 64 ? (n) : 64 + (n) - (4 * (size) - 64))
#define LEVELS_AT(i, stem) \
    (char) IN_FOUR(GB_BYTES(stem) * ((i) / 4 % 4) + GB_AT(stem, qs) + (i) / 16 * 4 + (i) % 4, GB_BYTES(stem))
// the fifth bits, then the word at the start of the block: d, in q5_1 d and m
#define HEAD_AT(i, stem)                                                                                     \
    (char) IN_FOUR(GB_BYTES(stem) * ((i) / 4 % 4) + ((i) < 16 ? GB_AT(stem, qh) : GB_AT(stem, d)) + (i) % 4, \
        GB_BYTES(stem))
#define AT_Q4_0(i) LEVELS_AT(i, q4_0)
#define AT_Q5_0(i) LEVELS_AT(i, q5_0)
#define AT_MXFP4(i) LEVELS_AT(i, mxfp4)
#define AT_Q4_1(i) LEVELS_AT(i, q4_1)
#define AT_Q5_1(i) LEVELS_AT(i, q5_1)
#define HEAD_Q5_0(i) HEAD_AT(i, q5_0)
#define HEAD_Q5_1(i) HEAD_AT(i, q5_1)

static const char words_at_[5][64] = { { EACH_64(AT_Q4_0) }, { EACH_64(AT_Q5_0) }, { EACH_64(AT_MXFP4) },
    { EACH_64(AT_Q4_1) }, { EACH_64(AT_Q5_1) } };
static const char heads_at_[2][64] = { { EACH_64(HEAD_Q5_0) }, { EACH_64(HEAD_Q5_1) } };

// The functions below rely on these offsets.
static_assert(GB_BYTES(iq4_nl) == GB_BYTES(q4_0) && GB_AT(iq4_nl, d) == GB_AT(q4_0, d) &&
                  GB_AT(iq4_nl, qs) == GB_AT(q4_0, qs),
    "the blocks of IQ4_NL are those of Q4_0");
static_assert(GB_AT(q4_0, d) == 0 && GB_AT(q8_0, d) == 0 && GB_AT(q4_1, d) == 0 && GB_AT(mxfp4, e) == 0,
    "these blocks begin with their scale");
static_assert(GB_AT(q4_1, m) == GB_AT(q4_1, d) + 2 && GB_AT(q5_1, m) == GB_AT(q5_1, d) + 2, "d and m are a word");
static_assert(GB_AT(nvfp4, scales) == 0 && GB_AT(nvfp4, qs) == 4 && GB_BYTES(nvfp4) == 36, "NVFP4_WORD");
static_assert(GB_AT(q4_k, d) == 0 && GB_AT(q4_k, dmin) == 2 && GB_AT(q4_k, scales) == 4, "scales_45_two_");
static_assert(GB_AT(q5_k, d) == 0 && GB_AT(q5_k, dmin) == 2 && GB_AT(q5_k, scales) == 4, "scales_45_two_");
static_assert(GB_AT(iq4_xs, d) == 0 && GB_AT(iq4_xs, scales_high) == 2, "the upper half of a word");

static ALWAYS_INLINE vi of_four_(const uint8_t * p, int size, vi index) {
    return _mm512_permutex2var_epi8(words_(p), index, words_(p + 4 * size - 64));
}

// Collects the bytes of sixteen blocks that have the places `at` in groups of four blocks.
static ALWAYS_INLINE void of_sixteen_(const uint8_t * p, int size, const char * at, vi a[4]) {
    const vi index = words_(at);
    UNROLL
    for (int i = 0; i < 4; i++) {
        a[i] = of_four_(p + 4 * size * i, size, index);
    }
}

// The bytes with the nibbles. Vector j has word j of the blocks.
static ALWAYS_INLINE void nibble_bytes_(const uint8_t * p, int size, const char * at, vi a[4]) {
    of_sixteen_(p, size, at, a);
    transpose_quarters_(a);
}

static ALWAYS_INLINE void put_nibbles_in_(vi u[8], const vi a[4]) {
    UNROLL
    for (int j = 0; j < 4; j++) {
        u[j] = bytes_(a[j], 15);
        u[j + 4] = bytes_(vi_shr(a[j], 4), 15);
    }
}

// The f16 at the start of sixteen blocks, as halves in the lower words. For affine formats whole
// words.
static ALWAYS_INLINE vf scales_16_(const uint8_t * p, int size) {
    const vi index = _mm512_set1_epi64((int64_t) ((uint64_t) (size / 2) << 16 | (uint64_t) size << 32 |
                                                  (uint64_t) (size / 2 * 3) << 48));
    vi all = _mm512_permutexvar_epi16(index, words_(p));
    UNROLL
    for (int i = 1; i < 4; i++) {
        all = _mm512_mask_permutexvar_epi16(all, 0xfu << 4 * i, index, words_(p + 4 * size * i));
    }
    return _mm512_cvtph_ps(_mm512_castsi512_si256(all));
}

// scale and minimum of blocks of `size` bytes, four of these words in 64 bytes
static ALWAYS_INLINE vi affine_16_(const uint8_t * p, int size) {
    const int n = size / 4;
    const vi index = _mm512_setr_epi32(0, n, 2 * n, 3 * n, 0, n, 2 * n, 3 * n, 0, n, 2 * n, 3 * n, 0, n, 2 * n, 3 * n);
    vi all = _mm512_permutexvar_epi32(index, words_(p));
    UNROLL
    for (int i = 1; i < 4; i++) {
        all = _mm512_mask_permutexvar_epi32(all, (__mmask16) (0xfu << 4 * i), index, words_(p + 4 * size * i));
    }
    return all;
}

static ALWAYS_INLINE void look_up_(vi u[8], const uint8_t * table) {
    UNROLL
    for (int j = 0; j < 8; j++) {
        u[j] = vi_lookup16(u[j], table);
    }
}

// Each group has a word of 32 bits. Bit 4 j + i becomes bit 4 of byte i of word j.
static ALWAYS_INLINE void put_fifths_(vi u[8], vi bits) {
    UNROLL
    for (int j = 0; j < 8; j++) {
        const uint64_t from = ((uint64_t) (60 + 4 * j) & 63) | ((uint64_t) (61 + 4 * j) & 63) << 8 |
                              ((uint64_t) (62 + 4 * j) & 63) << 16 | ((uint64_t) (63 + 4 * j) & 63) << 24;
        const uint64_t high = (uint64_t) (28 + 4 * j) | (uint64_t) (29 + 4 * j) << 8 | (uint64_t) (30 + 4 * j) << 16 |
                              (uint64_t) (31 + 4 * j) << 24;
        u[j] = or_bits_(u[j], _mm512_multishift_epi64_epi8(_mm512_set1_epi64((int64_t) (from | high << 32)), bits), 16);
    }
}

static ALWAYS_INLINE void interleave_q4_0_(const uint8_t * p, struct interleaved * s) {
    vi a[4];
    nibble_bytes_(p, GB_BYTES(q4_0), words_at_[0], a);
    put_nibbles_in_(s->u, a);
    s->d = scales_16_(p, GB_BYTES(q4_0));
}

static ALWAYS_INLINE void interleave_iq4_nl_(const uint8_t * p, struct interleaved * s) {
    interleave_q4_0_(p, s);
    look_up_(s->u, iq4_levels_);
}

static ALWAYS_INLINE void interleave_q4_1_(const uint8_t * p, struct interleaved * s) {
    vi a[4];
    const vi halves = affine_16_(p, GB_BYTES(q4_1));
    nibble_bytes_(p, GB_BYTES(q4_1), words_at_[3], a);
    put_nibbles_in_(s->u, a);
    s->d = halves_(halves);
    s->m = halves_(vi_shr(halves, 16));
}

static ALWAYS_INLINE void interleave_heads_(const uint8_t * p, int size, const char * at, vi head[4]) {
    of_sixteen_(p, size, at, head);
    transpose_two_quarters_(head);
}

// Levels of five bits. Returns the words that precede them, which have f16 numbers.
static ALWAYS_INLINE vi interleave_fives_(const uint8_t * p, int size, const char * heads, const char * levels,
    vi u[8]) {
    vi a[4], head[4];
    interleave_heads_(p, size, heads, head);
    nibble_bytes_(p, size, levels, a);
    put_nibbles_in_(u, a);
    put_fifths_(u, head[0]);
    return head[1];
}

static ALWAYS_INLINE void interleave_q5_0_(const uint8_t * p, struct interleaved * s) {
    s->d = halves_(interleave_fives_(p, GB_BYTES(q5_0), heads_at_[0], words_at_[1], s->u));
}

static ALWAYS_INLINE void interleave_q5_1_(const uint8_t * p, struct interleaved * s) {
    const vi scales = interleave_fives_(p, GB_BYTES(q5_1), heads_at_[1], words_at_[4], s->u);
    s->d = halves_(scales);
    s->m = halves_(vi_shr(scales, 16));
}

static ALWAYS_INLINE void interleave_q8_0_(const uint8_t * p, struct interleaved * s) {
    const vi index = _mm512_set1_epi32(GB_BYTES(q8_0) / 2 << 16);
    vi all = _mm512_permutexvar_epi16(index, words_(p));
    UNROLL
    for (int i = 0; i < 8; i++) {
        const uint8_t * two = p + 2 * GB_BYTES(q8_0) * i;
        s->u[i] = _mm512_xor_si512(two_(two + GB_AT(q8_0, qs), two + GB_BYTES(q8_0) + GB_AT(q8_0, qs)),
            _mm512_set1_epi8(-128));
        all = i == 0 ? all : _mm512_mask_permutexvar_epi16(all, 3u << 2 * i, index, words_(two));
    }
    transpose_groups_(false, s->u);
    s->d = _mm512_cvtph_ps(_mm512_castsi512_si256(all));
}

static ALWAYS_INLINE void interleave_mxfp4_(const uint8_t * p, struct interleaved * s) {
    #define EXPONENT_AT(g) (GB_BYTES(mxfp4) * ((g) % 4))
    const vi at = BY_LANE(EXPONENT_AT);
    vi a[4], e = _mm512_permutexvar_epi8(at, words_(p)); // exponents
    UNROLL
    for (int i = 1; i < 4; i++) {
        e = _mm512_mask_permutexvar_epi8(e, (__mmask64) 0xffff << 16 * i, at, words_(p + 4 * GB_BYTES(mxfp4) * i));
    }
    e = vi_and(e, vi_set(255));
    const __mmask16 small = _mm512_cmplt_epi32_mask(e, vi_set(2));
    const vi bits = vi_shl(vi_sub(e, vi_set(1)), 23);
    s->d = v_from_bits(_mm512_mask_sllv_epi32(bits, small, vi_set(0x200000), e));
    nibble_bytes_(p, GB_BYTES(mxfp4), words_at_[2], a);
    put_nibbles_in_(s->u, a);
    look_up_(s->u, e2m1_levels_);
}

static ALWAYS_INLINE int32_t word_at_(const uint8_t * p) {
    int32_t word;
    memcpy(&word, p, sizeof(word));
    return word;
}

// Four blocks of 64. Words 0 and 1 of a group are the lower nibbles of its eight bytes, words 2 and
// 3 the upper nibbles.
static ALWAYS_INLINE void interleave_nvfp4_(const uint8_t * p, struct interleaved * s) {
#define NVFP4_WORD(g) (9 * ((g) / 4) + 1 + 2 * ((g) % 4))
    const vi index = BY_LANE(NVFP4_WORD),
             code = _mm512_cvtepu8_epi32(_mm_setr_epi32(word_at_(p), word_at_(p + GB_BYTES(nvfp4)),
                 word_at_(p + 2 * GB_BYTES(nvfp4)), word_at_(p + 3 * GB_BYTES(nvfp4))));
    UNROLL
    for (int j = 0; j < 2; j++) {
        const vi at = vi_add(index, vi_set(j));
        vi a = _mm512_permutex2var_epi32(words_(p), at, words_(p + 64));
        // the last block
        a = _mm512_mask_permutexvar_epi32(a, 0xf000, vi_sub(at, vi_set(20)), words_(p + 80));
        s->u[j] = vi_lookup16(bytes_(a, 15), e2m1_levels_);
        s->u[j + 2] = vi_lookup16(bytes_(vi_shr(a, 4), 15), e2m1_levels_);
    }
    const vi exponent = vi_and(vi_shr(code, 3), vi_set(15)), mantissa = vi_and(code, vi_set(7));
    const vf normal = v_from_bits(vi_or(vi_shl(vi_add(exponent, vi_set(119)), 23), vi_shl(mantissa, 20)));
    const __mmask16 small = _mm512_cmpeq_epi32_mask(exponent, vi_set(0)),
                    none = _mm512_cmpeq_epi32_mask(code, vi_set(0x7f));
    s->d =
        _mm512_mask_mov_ps(_mm512_mask_mul_ps(normal, small, v_from_int(mantissa), v_set(0x1p-10f)), none, v_set(0.0f));
}

// ------------------------------------------------------------------------------------------------------- blocks of 256

#define GROUP_SHIFT_NIBBLES _mm512_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4)

// the f16 at p for eight lanes, the f16 at q for the other eight
static ALWAYS_INLINE vf half_pair_(const uint8_t * p, const uint8_t * q) {
    return _mm512_insertf32x8(_mm512_set1_ps(half_at_(p)), _mm256_set1_ps(half_at_(q)), 1);
}

// The scales and minima of 6 bits of two blocks.
static ALWAYS_INLINE void scales_45_two_(const uint8_t * p, int size, struct interleaved * s) {
    const __m256i all = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *) p)),
        _mm_loadu_si128((const __m128i *) (p + size)), 1);
    // The words of a block: two halves, scales, minima, and the upper bits of scales and minima.
    // `bits` has four scales and the other four, then four minima and the other four.
    const __m256i low = _mm256_srlv_epi32(_mm256_shuffle_epi32(all, 1 | 3 << 2 | 2 << 4 | 3 << 6),
        _mm256_setr_epi32(0, 0, 0, 4, 0, 0, 0, 4));
    const __m256i top = _mm256_srli_epi32(_mm256_shuffle_epi32(all, 1 << 2 | 2 << 6), 2);
    const __m256i bits = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi64x(0x0f0f0f0f3f3f3f3f)),
        _mm256_and_si256(top, _mm256_set1_epi64x(0x3030303000000000)));
    const __m256i parts = _mm256_permute4x64_epi64(bits, 0xd8);
    s->d = v_mul(half_pair_(p, p + size), v_from_int(_mm512_cvtepu8_epi32(_mm256_castsi256_si128(parts))));
    s->m = v_mul(v_neg(half_pair_(p + GB_AT(q4_k, dmin), p + size + GB_AT(q4_k, dmin))),
        v_from_int(_mm512_cvtepu8_epi32(_mm256_extracti128_si256(parts, 1))));
}

// Two blocks with 128 bytes of nibbles each. 32 bytes are for two groups, the lower nibbles first.
static ALWAYS_INLINE void nibbles_45_(const uint8_t * p, int size, struct interleaved * s) {
    // word 0 of all groups, then word 4
    const vi index = _mm512_setr_epi32(0, 0, 8, 8, 16, 16, 24, 24, 4, 4, 12, 12, 20, 20, 28, 28);
    UNROLL
    for (int j = 0; j < 4; j++) {
        const vi at = vi_add(index, vi_set(j));
        const vi a = _mm512_permutex2var_epi32(words_(p), at, words_(p + 64)),
                 b = _mm512_permutex2var_epi32(words_(p + size), at, words_(p + size + 64));
        s->u[j] = bytes_(_mm512_srlv_epi32(_mm512_shuffle_i64x2(a, b, 0x44), GROUP_SHIFT_NIBBLES), 15);
        s->u[j + 4] = bytes_(_mm512_srlv_epi32(_mm512_shuffle_i64x2(a, b, 0xee), GROUP_SHIFT_NIBBLES), 15);
    }
}

static ALWAYS_INLINE void interleave_q4_k_(const uint8_t * p, struct interleaved * s) {
    nibbles_45_(p + GB_AT(q4_k, qs), GB_BYTES(q4_k), s);
    scales_45_two_(p, GB_BYTES(q4_k), s);
}

static ALWAYS_INLINE void interleave_q5_k_(const uint8_t * p, struct interleaved * s) {
    const vi fifth = two_(p + GB_AT(q5_k, qh), p + GB_BYTES(q5_k) + GB_AT(q5_k, qh)); // bit g of a byte is for group g
    const vi index = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8);
    const vi rotate = _mm512_setr_epi32(4, 3, 2, 1, 0, 31, 30, 29, 4, 3, 2, 1, 0, 31, 30, 29);
    nibbles_45_(p + GB_AT(q5_k, qs), GB_BYTES(q5_k), s);
    UNROLL
    for (int j = 0; j < 8; j++) {
        const vi bits = _mm512_permutexvar_epi32(vi_add(index, vi_set(j)), fifth);
        s->u[j] = or_bits_(s->u[j], _mm512_rolv_epi32(bits, rotate), 16);
    }
    scales_45_two_(p, GB_BYTES(q5_k), s);
}

// Groups of 16 in pairs of bits. 32 bytes hold two groups in each pair of bits, the lowest first.
#define PAIR_WORD(g) (8 * ((g) / 8) + 4 * ((g) % 2))
#define PAIR_SHIFT(g) (2 * ((g) / 2 % 4))
#define PAIR_WORDS BY_LANE(PAIR_WORD)
#define PAIR_SHIFTS BY_LANE(PAIR_SHIFT)

static ALWAYS_INLINE void interleave_q6_k_(const uint8_t * p, struct interleaved * s) {
#define NIBBLE_WORD(g) (16 * ((g) / 8) + 8 * ((g) / 2 % 2) + 4 * ((g) % 2))
#define NIBBLE_SHIFT(g) ((g) % 8 < 4 ? 0 : 4)
#define TOP_ROTATE(g) ((32 + 4 - PAIR_SHIFT(g)) % 32)
    const vi top = words_(p + GB_AT(q6_k, qh)), nibble_words = BY_LANE(NIBBLE_WORD);
    UNROLL
    for (int j = 0; j < 4; j++) {
        const vi low = _mm512_permutex2var_epi32(words_(p + GB_AT(q6_k, ql)), vi_add(nibble_words, vi_set(j)),
            words_(p + GB_AT(q6_k, ql) + 64));
        const vi high = _mm512_permutexvar_epi32(vi_add(PAIR_WORDS, vi_set(j)), top);
        s->u[j] = bytes_(select_(15, _mm512_srlv_epi32(low, BY_LANE(NIBBLE_SHIFT)),
                             _mm512_rolv_epi32(high, BY_LANE(TOP_ROTATE))),
            63);
    }
    s->d = v_mul(v_set(half_at_(p + GB_AT(q6_k, d))),
        v_from_int(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) (p + GB_AT(q6_k, scales))))));
}

static ALWAYS_INLINE void interleave_pairs_(const uint8_t * p, struct interleaved * s) {
    UNROLL
    for (int j = 0; j < 4; j++) {
        s->u[j] =
            bytes_(_mm512_srlv_epi32(_mm512_permutexvar_epi32(vi_add(PAIR_WORDS, vi_set(j)), words_(p)), PAIR_SHIFTS),
                3);
    }
}

static ALWAYS_INLINE void interleave_q2_k_(const uint8_t * p, struct interleaved * s) {
    const vi both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) (p + GB_AT(q2_k, scales))));
    interleave_pairs_(p + GB_AT(q2_k, qs), s);
    s->d = v_mul(v_set(half_at_(p + GB_AT(q2_k, d))), v_from_int(vi_and(both, vi_set(15))));
    s->m = v_mul(v_set(-half_at_(p + GB_AT(q2_k, dmin))), v_from_int(vi_shr(both, 4)));
}

static ALWAYS_INLINE void interleave_q3_k_(const uint8_t * p, struct interleaved * s) {
#define THIRD_WORD(g) (4 * ((g) % 2))
#define THIRD_ROTATE(g) ((32 + 2 - (g) / 2) % 32)
    const __m512i third = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) (p + GB_AT(q3_k, qh))));
    // 12 bytes from the third on, by a load that ends with the block
    static_assert(GB_AT(q3_k, scales) - 2 + 16 == GB_BYTES(q3_k), "nothing behind the block is read");
    const __m128i sc = _mm_loadu_si128((const __m128i *) (p + GB_AT(q3_k, scales) - 2));
    interleave_pairs_(p + GB_AT(q3_k, qs), s);
    UNROLL
    for (int j = 0; j < 4; j++) {
        const vi bits = _mm512_permutexvar_epi32(vi_add(BY_LANE(THIRD_WORD), vi_set(j)), third);
        s->u[j] = or_bits_(s->u[j], _mm512_rolv_epi32(bits, BY_LANE(THIRD_ROTATE)), 4);
    }
    const __m128i w = _mm_srli_si128(sc, 2);
    const __m128i low =
        _mm_and_si128(_mm_srlv_epi32(_mm_shuffle_epi32(w, 0x44), _mm_setr_epi32(0, 0, 4, 4)), _mm_set1_epi8(15));
    const __m128i top =
        _mm_and_si128(_mm_srlv_epi32(_mm_shuffle_epi32(w, 0xaa), _mm_setr_epi32(0, 2, 4, 6)), _mm_set1_epi8(3));
    const __m128i six = _mm_or_si128(low, _mm_slli_epi32(top, 4)); // around 32
    s->d = v_mul(v_set(half_at_(p + GB_AT(q3_k, d))), v_from_int(vi_sub(_mm512_cvtepu8_epi32(six), vi_set(32))));
}

static ALWAYS_INLINE vi pair_of_words_(const uint8_t * p, const uint8_t * q) {
    return _mm512_inserti64x4(vi_set(word_at_(p)), _mm256_set1_epi32(word_at_(q)), 1);
}

static ALWAYS_INLINE void interleave_iq4_xs_(const uint8_t * p, struct interleaved * s) {
#define TWICE_LANE(g) (2 * ((g) % 8))
    const vi index = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
             twice = BY_LANE(TWICE_LANE);
    const vi high = pair_of_words_(p, p + GB_BYTES(iq4_xs)),
             low = pair_of_words_(p + GB_AT(iq4_xs, scales_low), p + GB_BYTES(iq4_xs) + GB_AT(iq4_xs, scales_low));
    vi a[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_permutexvar_epi32(index, words_(p + i / 2 * GB_BYTES(iq4_xs) + GB_AT(iq4_xs, qs) + i % 2 * 64));
    }
    transpose_quarters_(a);
    put_nibbles_in_(s->u, a);
    look_up_(s->u, iq4_levels_);
    const vi four = vi_and(_mm512_srlv_epi32(low, vi_add(twice, twice)), vi_set(15));
    const vi two = vi_and(_mm512_srlv_epi32(high, vi_add(twice, vi_set(16))), vi_set(3));
    s->d = v_mul(half_pair_(p, p + GB_BYTES(iq4_xs)), v_from_int(vi_sub(vi_or(four, vi_shl(two, 4)), vi_set(32))));
}

static ALWAYS_INLINE void interleave_tq2_0_(const uint8_t * p, struct interleaved * s) {
#define TQ2_WORD(g) (16 * ((g) / 8) + 8 * ((g) / 4 % 2))
#define TQ2_SHIFT(g) (2 * ((g) % 4))
    UNROLL
    for (int j = 0; j < 8; j++) {
        const vi a = _mm512_permutex2var_epi32(words_(p + GB_AT(tq2_0, qs)), vi_add(BY_LANE(TQ2_WORD), vi_set(j)),
            words_(p + GB_BYTES(tq2_0) + GB_AT(tq2_0, qs)));
        s->u[j] = bytes_(_mm512_srlv_epi32(a, BY_LANE(TQ2_SHIFT)), 3);
    }
    s->d = half_pair_(p + GB_AT(tq2_0, d), p + GB_BYTES(tq2_0) + GB_AT(tq2_0, d));
}
