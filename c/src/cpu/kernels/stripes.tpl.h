// stripes.tpl.h - few rows of activations times quantized columns: sixteen groups of a column at a time, each in a lane of its own.
//
// A stripe is 16 groups of terms that follow each other: 512 terms, or 256 where groups have 16 terms ("halves"). It is held as 8 (4)
// vectors of words, vector j with word j, four bytes, of each group, and two vectors of floats. Products of bytes then add up in a lane
// until its group is complete, and one multiplication and one FMA put all sixteen into a sum of floats; nothing is moved across lanes.
// Rows of activations are brought into this order once (stripe_rows: words, scales D, and S or the centered sums of int8.tpl.h, which
// see). Columns are on the way: what a format stores is put in order in registers, then unpacked, so that every level is moved as the
// bits that it has in memory. Formats without such a function are unpacked by their kernel (unpack.tpl.h) and put in order then.
//
// Behind the last block a stripe is filled up with zero bytes in columns, zero scales in rows. A sum is made in the same order whatever
// rows and columns are taken together, and whether columns are unpacked by the way (stripe_dots) or before (stripe_columns, stripe_tile).

#define STRIPE_ROWS 4    // of activations at a time
#define STRIPE_DIRECT 2  // columns at a time that are unpacked by the way
#define STRIPE_COLUMNS 3 // that were unpacked before
#define STRIPE_K 4096    // terms that are unpacked at a time

#if V_N == 16 && defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#    define HAVE_STRIPES true

#    define EACH_16(f) f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8), f(9), f(10), f(11), f(12), f(13), f(14), f(15)
#    define BY_LANE(f) ((vi) (__v16si){ EACH_16(f) })
#    define EACH_64(f)                                                                                                 \
        f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8), f(9), f(10), f(11), f(12), f(13), f(14), f(15), f(16), f(17), f(18), f(19), \
            f(20), f(21), f(22), f(23), f(24), f(25), f(26), f(27), f(28), f(29), f(30), f(31), f(32), f(33), f(34), f(35), f(36), f(37), \
            f(38), f(39), f(40), f(41), f(42), f(43), f(44), f(45), f(46), f(47), f(48), f(49), f(50), f(51), f(52), f(53), f(54), f(55), \
            f(56), f(57), f(58), f(59), f(60), f(61), f(62), f(63)

struct stripe {
    vi u[8];
    vf d, m; // m: unless all groups have the same level for zero
};

static ALWAYS_INLINE vi words_(const void * p) { return _mm512_loadu_si512(p); }
static ALWAYS_INLINE vi bytes_(vi a, int byte) { return _mm512_and_si512(a, _mm512_set1_epi8((char) byte)); }
static ALWAYS_INLINE vi select_(int mask, vi a, vi b) { return _mm512_ternarylogic_epi32(_mm512_set1_epi8((char) mask), a, b, 0xca); }
static ALWAYS_INLINE vi or_bits_(vi a, vi b, int mask) { return _mm512_ternarylogic_epi32(_mm512_set1_epi8((char) mask), a, b, 0xec); } // a | mask & b
static ALWAYS_INLINE vf halves_(vi a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); } // f16 in the lower half of each word
static ALWAYS_INLINE vi two_(const void * a, const void * b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) a)), _mm256_loadu_si256((const __m256i *) b), 1);
}

// Four vectors of four quarters each: quarter i of all of them becomes vector i.
static ALWAYS_INLINE void turn_quarters_(vi a[4]) {
    const vi u0 = _mm512_shuffle_i32x4(a[0], a[1], 0x88), u1 = _mm512_shuffle_i32x4(a[0], a[1], 0xdd);
    const vi u2 = _mm512_shuffle_i32x4(a[2], a[3], 0x88), u3 = _mm512_shuffle_i32x4(a[2], a[3], 0xdd);
    a[0]        = _mm512_shuffle_i32x4(u0, u2, 0x88);
    a[1]        = _mm512_shuffle_i32x4(u1, u3, 0x88);
    a[2]        = _mm512_shuffle_i32x4(u0, u2, 0xdd);
    a[3]        = _mm512_shuffle_i32x4(u1, u3, 0xdd);
}

// The first two quarters of four vectors.
static ALWAYS_INLINE void turn_two_quarters_(vi a[4]) {
    const vi u0 = _mm512_shuffle_i32x4(a[0], a[1], 0x44), u2 = _mm512_shuffle_i32x4(a[2], a[3], 0x44);
    a[0]        = _mm512_shuffle_i32x4(u0, u2, 0x88);
    a[1]        = _mm512_shuffle_i32x4(u0, u2, 0xdd);
}

// Sixteen groups as they follow each other: of 16 bytes, four to a vector, or of 32, two to a vector.
static ALWAYS_INLINE void turn_groups_(bool halves, vi u[8]) {
    if (halves) {
        const vi index = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        UNROLL
        for (int i = 0; i < 4; i++) {
            u[i] = _mm512_permutexvar_epi32(index, u[i]);
        }
        turn_quarters_(u);
        return;
    }
    const vi low = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
    vi       a[4], b[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_permutex2var_epi32(u[2 * i], low, u[2 * i + 1]);
        b[i] = _mm512_permutex2var_epi32(u[2 * i], _mm512_add_epi32(low, _mm512_set1_epi32(4)), u[2 * i + 1]);
    }
    turn_quarters_(a);
    turn_quarters_(b);
    UNROLL
    for (int i = 0; i < 4; i++) {
        u[i]     = a[i];
        u[i + 4] = b[i];
    }
}

// -------------------------------------------------------------------------------------------------------------- blocks of 32

// Blocks are taken by fours. Byte i of what is wanted from one is word i / 16 of block i / 4 % 4; it lies at byte `n` of the four, or, behind the
// first 64, in a second load that ends with them.
#    define IN_FOUR(n, size) ((n) < 64 ? (n) : 64 + (n) - (4 * (size) - 64))
#    define LEVELS_AT(i, size, start) (char) IN_FOUR((size) * ((i) / 4 % 4) + (start) + (i) / 16 * 4 + (i) % 4, size)
#    define AT_Q4_0(i) LEVELS_AT(i, 18, 2)
#    define AT_Q5_0(i) LEVELS_AT(i, 22, 6)
#    define AT_MXFP4(i) LEVELS_AT(i, 17, 1)
#    define AT_Q4_1(i) LEVELS_AT(i, 20, 4)
#    define AT_Q5_1(i) LEVELS_AT(i, 24, 8)
#    define HEAD_Q5_0(i) (char) IN_FOUR(22 * ((i) / 4 % 4) + ((i) < 16 ? 2 : 0) + (i) % 4, 22)
#    define HEAD_Q5_1(i) (char) IN_FOUR(24 * ((i) / 4 % 4) + ((i) < 16 ? 4 : 0) + (i) % 4, 24)

static const char stripe_at_[5][64] = { { EACH_64(AT_Q4_0) }, { EACH_64(AT_Q5_0) }, { EACH_64(AT_MXFP4) }, { EACH_64(AT_Q4_1) }, { EACH_64(AT_Q5_1) } };
static const char stripe_head_[2][64] = { { EACH_64(HEAD_Q5_0) }, { EACH_64(HEAD_Q5_1) } };

static ALWAYS_INLINE vi of_four_(const uint8_t * p, int size, vi index) {
    return _mm512_permutex2var_epi8(words_(p), index, words_(p + 4 * size - 64));
}

// The bytes with the nibbles: vector j has word j of the blocks.
static ALWAYS_INLINE void nibble_bytes_(const uint8_t * p, int size, const char * at, vi a[4]) {
    const vi index = words_(at);
    UNROLL
    for (int i = 0; i < 4; i++) {
        a[i] = of_four_(p + 4 * size * i, size, index);
    }
    turn_quarters_(a);
}

static ALWAYS_INLINE void put_nibbles_in_(vi u[8], const vi a[4]) {
    UNROLL
    for (int j = 0; j < 4; j++) {
        u[j]     = bytes_(a[j], 15);
        u[j + 4] = bytes_(vi_shr(a[j], 4), 15);
    }
}

// The f16 at the start of sixteen blocks, as halves in the lower words; or dwords of affine ones.
static ALWAYS_INLINE vf scales_16_(const uint8_t * p, int size) {
    const vi index = _mm512_set1_epi64((int64_t) ((uint64_t) (size / 2) << 16 | (uint64_t) size << 32 | (uint64_t) (size / 2 * 3) << 48));
    vi       all   = _mm512_permutexvar_epi16(index, words_(p));
    UNROLL
    for (int i = 1; i < 4; i++) {
        all = _mm512_mask_permutexvar_epi16(all, 0xfu << 4 * i, index, words_(p + 4 * size * i));
    }
    return _mm512_cvtph_ps(_mm512_castsi512_si256(all));
}

static ALWAYS_INLINE vi affine_16_(const uint8_t * p, int size) { // scale and minimum of blocks of `size` bytes, four words of them in 64 bytes
    const int n     = size / 4;
    const vi  index = _mm512_setr_epi32(0, n, 2 * n, 3 * n, 0, n, 2 * n, 3 * n, 0, n, 2 * n, 3 * n, 0, n, 2 * n, 3 * n);
    vi        all   = _mm512_permutexvar_epi32(index, words_(p));
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

// A word of 32 bits to each group: bit 4 j + i becomes bit 4 of byte i of word j.
static ALWAYS_INLINE void put_fifths_(vi u[8], vi bits) {
    UNROLL
    for (int j = 0; j < 8; j++) {
        const uint64_t from = ((uint64_t) (60 + 4 * j) & 63) | ((uint64_t) (61 + 4 * j) & 63) << 8 | ((uint64_t) (62 + 4 * j) & 63) << 16 | ((uint64_t) (63 + 4 * j) & 63) << 24;
        const uint64_t high = (uint64_t) (28 + 4 * j) | (uint64_t) (29 + 4 * j) << 8 | (uint64_t) (30 + 4 * j) << 16 | (uint64_t) (31 + 4 * j) << 24;
        u[j]                = or_bits_(u[j], _mm512_multishift_epi64_epi8(_mm512_set1_epi64((int64_t) (from | high << 32)), bits), 16);
    }
}

static ALWAYS_INLINE void stripe_q4_0_(const uint8_t * p, struct stripe * s) {
    vi a[4];
    nibble_bytes_(p, 18, stripe_at_[0], a);
    put_nibbles_in_(s->u, a);
    s->d = scales_16_(p, 18);
}

static ALWAYS_INLINE void stripe_iq4_nl_(const uint8_t * p, struct stripe * s) {
    stripe_q4_0_(p, s);
    look_up_(s->u, iq4_levels_);
}

static ALWAYS_INLINE void stripe_q4_1_(const uint8_t * p, struct stripe * s) {
    vi       a[4];
    const vi halves = affine_16_(p, 20);
    nibble_bytes_(p, 20, stripe_at_[3], a);
    put_nibbles_in_(s->u, a);
    s->d = halves_(halves);
    s->m = halves_(vi_shr(halves, 16));
}

static ALWAYS_INLINE void stripe_heads_(const uint8_t * p, int size, const char * at, vi head[4]) {
    const vi index = words_(at);
    UNROLL
    for (int i = 0; i < 4; i++) {
        head[i] = of_four_(p + 4 * size * i, size, index);
    }
    turn_two_quarters_(head);
}

static ALWAYS_INLINE void stripe_q5_0_(const uint8_t * p, struct stripe * s) {
    vi a[4], head[4];
    stripe_heads_(p, 22, stripe_head_[0], head);
    nibble_bytes_(p, 22, stripe_at_[1], a);
    put_nibbles_in_(s->u, a);
    put_fifths_(s->u, head[0]);
    s->d = halves_(head[1]);
}

static ALWAYS_INLINE void stripe_q5_1_(const uint8_t * p, struct stripe * s) {
    vi a[4], head[4];
    stripe_heads_(p, 24, stripe_head_[1], head);
    nibble_bytes_(p, 24, stripe_at_[4], a);
    put_nibbles_in_(s->u, a);
    put_fifths_(s->u, head[0]);
    s->d = halves_(head[1]);
    s->m = halves_(vi_shr(head[1], 16));
}

static ALWAYS_INLINE void stripe_q8_0_(const uint8_t * p, struct stripe * s) {
    const vi index = _mm512_set1_epi32(17 << 16);
    vi       all   = _mm512_permutexvar_epi16(index, words_(p));
    UNROLL
    for (int i = 0; i < 8; i++) {
        s->u[i] = _mm512_xor_si512(two_(p + 68 * i + 2, p + 68 * i + 36), _mm512_set1_epi8(-128));
        all     = i == 0 ? all : _mm512_mask_permutexvar_epi16(all, 3u << 2 * i, index, words_(p + 68 * i));
    }
    turn_groups_(false, s->u);
    s->d = _mm512_cvtph_ps(_mm512_castsi512_si256(all));
}

static ALWAYS_INLINE void stripe_mxfp4_(const uint8_t * p, struct stripe * s) {
    const vi at = _mm512_setr_epi32(0, 17, 34, 51, 0, 17, 34, 51, 0, 17, 34, 51, 0, 17, 34, 51);
    vi       a[4], e = _mm512_permutexvar_epi8(at, words_(p)); // exponents
    UNROLL
    for (int i = 1; i < 4; i++) {
        e = _mm512_mask_permutexvar_epi8(e, (__mmask64) 0xffff << 16 * i, at, words_(p + 68 * i));
    }
    e                     = vi_and(e, vi_set(255));
    const __mmask16 small = _mm512_cmplt_epi32_mask(e, vi_set(2));
    const vi        bits  = vi_shl(vi_sub(e, vi_set(1)), 23);
    s->d                  = v_from_bits(_mm512_mask_sllv_epi32(bits, small, vi_set(0x200000), e));
    nibble_bytes_(p, 17, stripe_at_[2], a);
    put_nibbles_in_(s->u, a);
    look_up_(s->u, mxfp4_levels_);
}

static ALWAYS_INLINE int32_t word_at_(const uint8_t * p) {
    int32_t word;
    memcpy(&word, p, sizeof(word));
    return word;
}

// Four blocks of 64: words 0 and 1 of a group are the lower nibbles of its eight bytes, words 2 and 3 the upper ones.
static ALWAYS_INLINE void stripe_nvfp4_(const uint8_t * p, struct stripe * s) {
#    define NVFP4_WORD(g) (9 * ((g) / 4) + 1 + 2 * ((g) % 4))
    const vi index = BY_LANE(NVFP4_WORD), code = _mm512_cvtepu8_epi32(_mm_setr_epi32(word_at_(p), word_at_(p + 36), word_at_(p + 72), word_at_(p + 108)));
    UNROLL
    for (int j = 0; j < 2; j++) {
        const vi at = vi_add(index, vi_set(j));
        vi       a  = _mm512_permutex2var_epi32(words_(p), at, words_(p + 64));
        a           = _mm512_mask_permutexvar_epi32(a, 0xf000, vi_sub(at, vi_set(20)), words_(p + 80)); // the last block
        s->u[j]     = vi_lookup16(bytes_(a, 15), mxfp4_levels_);
        s->u[j + 2] = vi_lookup16(bytes_(vi_shr(a, 4), 15), mxfp4_levels_);
    }
    const vi        exponent = vi_and(vi_shr(code, 3), vi_set(15)), mantissa = vi_and(code, vi_set(7));
    const vf        normal   = v_from_bits(vi_or(vi_shl(vi_add(exponent, vi_set(119)), 23), vi_shl(mantissa, 20)));
    const __mmask16 small    = _mm512_cmpeq_epi32_mask(exponent, vi_set(0)), none = _mm512_cmpeq_epi32_mask(code, vi_set(0x7f));
    s->d = _mm512_mask_mov_ps(_mm512_mask_mul_ps(normal, small, v_from_int(mantissa), v_set(0x1p-10f)), none, v_set(0.0f));
}

// ------------------------------------------------------------------------------------------------------------- blocks of 256

#    define GROUP_SHIFT_NIBBLES _mm512_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4)

static ALWAYS_INLINE vf half_pair_(const uint8_t * p, const uint8_t * q) { // the f16 at p for eight lanes, that at q for the others
    return _mm512_insertf32x8(_mm512_set1_ps(half_at_(p)), _mm256_set1_ps(half_at_(q)), 1);
}

// The scales and minima of 6 bits of two blocks.
static ALWAYS_INLINE void scales_45_two_(const uint8_t * p, int size, struct stripe * s) {
    const __m256i all = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *) p)), _mm_loadu_si128((const __m128i *) (p + size)), 1);
    // words: halves, scales, minima, the rest of both; wanted: four scales, four more, four minima, four more
    const __m256i low   = _mm256_srlv_epi32(_mm256_shuffle_epi32(all, 1 | 3 << 2 | 2 << 4 | 3 << 6), _mm256_setr_epi32(0, 0, 0, 4, 0, 0, 0, 4));
    const __m256i top   = _mm256_srli_epi32(_mm256_shuffle_epi32(all, 1 << 2 | 2 << 6), 2);
    const __m256i bits  = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi64x(0x0f0f0f0f3f3f3f3f)),
                                          _mm256_and_si256(top, _mm256_set1_epi64x(0x3030303000000000)));
    const __m256i parts = _mm256_permute4x64_epi64(bits, 0xd8);
    s->d = v_mul(half_pair_(p, p + size), v_from_int(_mm512_cvtepu8_epi32(_mm256_castsi256_si128(parts))));
    s->m = v_mul(v_neg(half_pair_(p + 2, p + size + 2)), v_from_int(_mm512_cvtepu8_epi32(_mm256_extracti128_si256(parts, 1))));
}

// Two blocks with 128 bytes of nibbles each: 32 bytes for two groups, the lower nibbles first.
static ALWAYS_INLINE void nibbles_45_(const uint8_t * p, int size, struct stripe * s) {
    const vi index = _mm512_setr_epi32(0, 0, 8, 8, 16, 16, 24, 24, 4, 4, 12, 12, 20, 20, 28, 28); // word 0 of all groups, word 4
    UNROLL
    for (int j = 0; j < 4; j++) {
        const vi at = vi_add(index, vi_set(j));
        const vi a  = _mm512_permutex2var_epi32(words_(p), at, words_(p + 64)), b = _mm512_permutex2var_epi32(words_(p + size), at, words_(p + size + 64));
        s->u[j]     = bytes_(_mm512_srlv_epi32(_mm512_shuffle_i64x2(a, b, 0x44), GROUP_SHIFT_NIBBLES), 15);
        s->u[j + 4] = bytes_(_mm512_srlv_epi32(_mm512_shuffle_i64x2(a, b, 0xee), GROUP_SHIFT_NIBBLES), 15);
    }
}

static ALWAYS_INLINE void stripe_q4_k_(const uint8_t * p, struct stripe * s) {
    nibbles_45_(p + 16, 144, s);
    scales_45_two_(p, 144, s);
}

static ALWAYS_INLINE void stripe_q5_k_(const uint8_t * p, struct stripe * s) {
    const vi fifth  = two_(p + 16, p + 176 + 16); // bit g of a byte is for group g
    const vi index  = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8);
    const vi rotate = _mm512_setr_epi32(4, 3, 2, 1, 0, 31, 30, 29, 4, 3, 2, 1, 0, 31, 30, 29);
    nibbles_45_(p + 48, 176, s);
    UNROLL
    for (int j = 0; j < 8; j++) {
        const vi bits = _mm512_permutexvar_epi32(vi_add(index, vi_set(j)), fifth);
        s->u[j]       = or_bits_(s->u[j], _mm512_rolv_epi32(bits, rotate), 16);
    }
    scales_45_two_(p, 176, s);
}

// Groups of 16 in pairs of bits: 32 bytes hold two groups in each pair of bits, the lowest first.
#    define PAIR_WORD(g) (8 * ((g) / 8) + 4 * ((g) % 2))
#    define PAIR_SHIFT(g) (2 * ((g) / 2 % 4))
#    define PAIR_WORDS BY_LANE(PAIR_WORD)
#    define PAIR_SHIFTS BY_LANE(PAIR_SHIFT)

static ALWAYS_INLINE void stripe_q6_k_(const uint8_t * p, struct stripe * s) {
#    define NIBBLE_WORD(g) (16 * ((g) / 8) + 8 * ((g) / 2 % 2) + 4 * ((g) % 2))
#    define NIBBLE_SHIFT(g) ((g) % 8 < 4 ? 0 : 4)
#    define TOP_ROTATE(g) ((32 + 4 - PAIR_SHIFT(g)) % 32)
    const vi top = words_(p + 128), nibble_words = BY_LANE(NIBBLE_WORD);
    UNROLL
    for (int j = 0; j < 4; j++) {
        const vi low  = _mm512_permutex2var_epi32(words_(p), vi_add(nibble_words, vi_set(j)), words_(p + 64));
        const vi high = _mm512_permutexvar_epi32(vi_add(PAIR_WORDS, vi_set(j)), top);
        s->u[j]       = bytes_(select_(15, _mm512_srlv_epi32(low, BY_LANE(NIBBLE_SHIFT)),
                                       _mm512_rolv_epi32(high, BY_LANE(TOP_ROTATE))), 63);
    }
    s->d = v_mul(v_set(half_at_(p + 208)), v_from_int(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) (p + 192)))));
}

static ALWAYS_INLINE void stripe_pairs_(const uint8_t * p, struct stripe * s) {
    UNROLL
    for (int j = 0; j < 4; j++) {
        s->u[j] = bytes_(_mm512_srlv_epi32(_mm512_permutexvar_epi32(vi_add(PAIR_WORDS, vi_set(j)), words_(p)), PAIR_SHIFTS), 3);
    }
}

static ALWAYS_INLINE void stripe_q2_k_(const uint8_t * p, struct stripe * s) {
    const vi both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) p));
    stripe_pairs_(p + 16, s);
    s->d = v_mul(v_set(half_at_(p + 80)), v_from_int(vi_and(both, vi_set(15))));
    s->m = v_mul(v_set(-half_at_(p + 82)), v_from_int(vi_shr(both, 4)));
}

static ALWAYS_INLINE void stripe_q3_k_(const uint8_t * p, struct stripe * s) {
#    define THIRD_WORD(g) (4 * ((g) % 2))
#    define THIRD_ROTATE(g) ((32 + 2 - (g) / 2) % 32)
    const __m512i third = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) p));
    const __m128i sc    = _mm_loadu_si128((const __m128i *) (p + 94)); // 12 bytes from the third on, the scale behind them
    stripe_pairs_(p + 32, s);
    UNROLL
    for (int j = 0; j < 4; j++) {
        const vi bits = _mm512_permutexvar_epi32(vi_add(BY_LANE(THIRD_WORD), vi_set(j)), third);
        s->u[j]       = or_bits_(s->u[j], _mm512_rolv_epi32(bits, BY_LANE(THIRD_ROTATE)), 4);
    }
    const __m128i w   = _mm_srli_si128(sc, 2);
    const __m128i low = _mm_and_si128(_mm_srlv_epi32(_mm_shuffle_epi32(w, 0x44), _mm_setr_epi32(0, 0, 4, 4)), _mm_set1_epi8(15));
    const __m128i top = _mm_and_si128(_mm_srlv_epi32(_mm_shuffle_epi32(w, 0xaa), _mm_setr_epi32(0, 2, 4, 6)), _mm_set1_epi8(3));
    const __m128i six = _mm_or_si128(low, _mm_slli_epi32(top, 4)); // around 32
    s->d              = v_mul(v_set(half_at_(p + 108)), v_from_int(vi_sub(_mm512_cvtepu8_epi32(six), vi_set(32))));
}

static ALWAYS_INLINE vi pair_of_words_(const uint8_t * p, const uint8_t * q) {
    return _mm512_inserti64x4(vi_set(word_at_(p)), _mm256_set1_epi32(word_at_(q)), 1);
}

static ALWAYS_INLINE void stripe_iq4_xs_(const uint8_t * p, struct stripe * s) {
#    define TWICE_LANE(g) (2 * ((g) % 8))
    const vi index = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), twice = BY_LANE(TWICE_LANE);
    const vi high = pair_of_words_(p, p + 136), low = pair_of_words_(p + 4, p + 140);
    vi       a[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_permutexvar_epi32(index, words_(p + i / 2 * 136 + 8 + i % 2 * 64));
    }
    turn_quarters_(a);
    put_nibbles_in_(s->u, a);
    look_up_(s->u, iq4_levels_);
    const vi four = vi_and(_mm512_srlv_epi32(low, vi_add(twice, twice)), vi_set(15));
    const vi two  = vi_and(_mm512_srlv_epi32(high, vi_add(twice, vi_set(16))), vi_set(3));
    s->d          = v_mul(half_pair_(p, p + 136), v_from_int(vi_sub(vi_or(four, vi_shl(two, 4)), vi_set(32))));
}

static ALWAYS_INLINE void stripe_tq2_0_(const uint8_t * p, struct stripe * s) {
#    define TQ2_WORD(g) (16 * ((g) / 8) + 8 * ((g) / 4 % 2))
#    define TQ2_SHIFT(g) (2 * ((g) % 4))
    UNROLL
    for (int j = 0; j < 8; j++) {
        const vi a = _mm512_permutex2var_epi32(words_(p), vi_add(BY_LANE(TQ2_WORD), vi_set(j)), words_(p + 66));
        s->u[j]    = bytes_(_mm512_srlv_epi32(a, BY_LANE(TQ2_SHIFT)), 3);
    }
    s->d = half_pair_(p + 64, p + 130);
}

// ------------------------------------------------------------------------------------------------------------------ products

#    define STRIPE_FORMATS(f)                                                                                          \
        f(Q4_0, q4_0, false, 8, 32, 18) f(Q4_1, q4_1, false, 0, 32, 20) f(Q5_0, q5_0, false, 16, 32, 22) f(Q5_1, q5_1, false, 0, 32, 24) \
        f(Q8_0, q8_0, false, 128, 32, 34) f(IQ4_NL, iq4_nl, false, 128, 32, 18) f(MXFP4, mxfp4, false, 12, 32, 17)     \
        f(Q2_K, q2_k, true, 0, 256, 84) f(Q3_K, q3_k, true, 4, 256, 110) f(Q4_K, q4_k, false, 0, 256, 144)             \
        f(Q5_K, q5_k, false, 0, 256, 176) f(Q6_K, q6_k, true, 32, 256, 210) f(IQ4_XS, iq4_xs, false, 128, 256, 136)    \
        f(NVFP4, nvfp4, true, 12, 64, 36) f(TQ2_0, tq2_0, false, 1, 256, 66)
// Unpacked by their kernels.
#    define STRIPE_OTHERS(f)                                                                                           \
        f(IQ1_S, iq1_s, false, 9, 256, 50) f(IQ1_M, iq1_m, true, 9, 256, 56) f(IQ2_XXS, iq2_xxs, false, 43, 256, 66)   \
        f(IQ2_XS, iq2_xs, true, 43, 256, 74) f(IQ2_S, iq2_s, true, 43, 256, 82) f(IQ3_XXS, iq3_xxs, false, 62, 256, 98) \
        f(IQ3_S, iq3_s, false, 15, 256, 110) f(TQ1_0, tq1_0, false, 1, 256, 54)

#    define STRIPE_TERMS(halves) ((halves) ? 256 : 512)
#    define STRIPE_SIZE(halves) ((halves) ? 384 : 640) // of rows and unpacked columns: words, two vectors of floats

static ALWAYS_INLINE void prefetch_lines_(const uint8_t * p, size_t size) {
#    if defined(__GNUC__)
    for (size_t i = 0; i < size; i += 64) {
        __builtin_prefetch(p + i);
    }
#    endif
}

// A stripe of nw columns with that of each row, at byte `at`, onto sums of floats.
static ALWAYS_INLINE void multiply_stripe_(int nw, int nx, bool halves, bool centered, const struct stripe s[STRIPE_DIRECT], const char * const * x, size_t at,
                                           vf acc[STRIPE_DIRECT][STRIPE_ROWS]) {
    const int words = halves ? 4 : 8;
    UNROLL
    for (int j = 0; j < nx; j++) {
        const char * const p = x[j] + at;
        const vf           d = v_from_bits(words_(p + 64 * words)), end = v_from_bits(words_(p + 64 * words + 64));
        vi                 sum[STRIPE_DIRECT];
        UNROLL
        for (int i = 0; i < nw; i++) {
            sum[i] = centered ? v_bits(end) : vi_set(0);
        }
        UNROLL
        for (int l = 0; l < words; l++) {
            vi q = words_(p + 64 * l);
            if (nw > 1) {
                IN_REGISTER(q);
            }
            UNROLL
            for (int i = 0; i < nw; i++) {
                sum[i] = vi_dot4(sum[i], s[i].u[l], q);
            }
        }
        UNROLL
        for (int i = 0; i < nw; i++) {
            acc[i][j] = v_fma(v_from_int(sum[i]), v_mul(s[i].d, d), acc[i][j]);
            acc[i][j] = centered ? acc[i][j] : v_fma(s[i].m, end, acc[i][j]);
        }
    }
}

// Sums of floats come from memory, or are new, and go there.
static ALWAYS_INLINE void load_sums_(int nw, int nx, vf sums[][STRIPE_ROWS], const float * acc, bool accumulate) {
    UNROLL
    for (int i = 0; i < nw; i++) {
        UNROLL
        for (int j = 0; j < nx; j++) {
            sums[i][j] = accumulate ? v_load(acc + (i * STRIPE_ROWS + j) * V_N) : v_set(0.0f);
        }
    }
}

static ALWAYS_INLINE void store_sums_(int nw, int nx, vf sums[][STRIPE_ROWS], float * acc) {
    UNROLL
    for (int i = 0; i < nw; i++) {
        UNROLL
        for (int j = 0; j < nx; j++) {
            v_store(acc + (i * STRIPE_ROWS + j) * V_N, sums[i][j]);
        }
    }
}

// The sums of the lanes of each.
static ALWAYS_INLINE void sums_of_four_(const vf a[4], int n, float * y) {
    vf t = half_sums_(half_sums_(a[0], a[1]), half_sums_(a[2], a[3]));
    t    = v_add(t, _mm512_permute_ps(t, 0x4e));
    t    = v_add(t, _mm512_permute_ps(t, 0xb1));
    v_store_n(y, _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), t), n);
}

static ALWAYS_INLINE void store_stripe_(bool halves, bool centered, const struct stripe * s, char * y) {
    const int words = halves ? 4 : 8;
    UNROLL
    for (int i = 0; i < words; i++) {
        _mm512_storeu_si512(y + 64 * i, s->u[i]);
    }
    _mm512_storeu_ps(y + 64 * words, s->d);
    if (!centered) {
        _mm512_storeu_ps(y + 64 * words + 64, s->m);
    }
}

// Levels that were unpacked before.
struct unpacked {
    uint8_t u[STRIPE_K];
    float   d[STRIPE_K / 16], m[STRIPE_K / 16];
};

static ALWAYS_INLINE void stripe_unpacked_(bool halves, const struct unpacked * a, int64_t index, struct stripe * s) {
    const int words = halves ? 4 : 8;
    UNROLL
    for (int i = 0; i < words; i++) {
        s->u[i] = words_(a->u + index * STRIPE_TERMS(halves) + 64 * i);
    }
    turn_groups_(halves, s->u);
    s->d = v_load(a->d + 16 * index);
    s->m = v_load(a->m + 16 * index);
}

struct stripe_task { // of stripe_dots
    const uint8_t * w[STRIPE_DIRECT], *next[STRIPE_DIRECT];
    const char *    x[STRIPE_ROWS];
    bool            accumulate;
};

// Each format: its dot products with rows, and itself unpacked. The last stripe is copied if it is not whole.
#    define STRIPES_OF(id, stem, halves, zero, block, size)                                                            \
        enum { STRIPE_BYTES_##id = STRIPE_TERMS(halves) / (block) * (size) };                                          \
        static ALWAYS_INLINE const uint8_t * stripe_end_##stem##_(uint8_t * copy, int64_t k, const uint8_t * p) {      \
            const size_t left = (size_t) (k % STRIPE_TERMS(halves) / (block)) * (size);                                \
            memset(copy + left, 0, STRIPE_BYTES_##id - left);                                                          \
            return memcpy(copy, p, left);                                                                              \
        }                                                                                                              \
        static ALWAYS_INLINE void stripe_dots_##stem##_(int nw, int nx, int64_t k, float * sums, const struct stripe_task * t) {\
            uint8_t       copy[STRIPE_BYTES_##id];                                                                     \
            struct stripe s[STRIPE_DIRECT];                                                                            \
            vf            acc[STRIPE_DIRECT][STRIPE_ROWS];                                                             \
            size_t        at = 0, byte = 0;                                                                            \
            load_sums_(nw, nx, acc, sums, t->accumulate);                                                              \
            for (; k >= STRIPE_TERMS(halves); k -= STRIPE_TERMS(halves), at += STRIPE_SIZE(halves), byte += STRIPE_BYTES_##id) {\
                UNROLL                                                                                                 \
                for (int i = 0; i < nw; i++) {                                                                         \
                    prefetch_lines_(t->next[i] + byte, STRIPE_BYTES_##id);                                             \
                    stripe_##stem##_(t->w[i] + byte, &s[i]);                                                           \
                }                                                                                                      \
                multiply_stripe_(nw, nx, halves, (zero) != 0, s, t->x, at, acc);                                       \
            }                                                                                                          \
            if (k > 0) {                                                                                               \
                UNROLL                                                                                                 \
                for (int i = 0; i < nw; i++) {                                                                         \
                    stripe_##stem##_(stripe_end_##stem##_(copy, k, t->w[i] + byte), &s[i]);                            \
                }                                                                                                      \
                multiply_stripe_(nw, nx, halves, (zero) != 0, s, t->x, at, acc);                                       \
            }                                                                                                          \
            store_sums_(nw, nx, acc, sums);                                                                            \
        }                                                                                                              \
        static void stripe_columns_##stem##_(int64_t k, char * y, const uint8_t * p) {                                 \
            uint8_t       copy[STRIPE_BYTES_##id];                                                                     \
            struct stripe s;                                                                                           \
            for (; k >= STRIPE_TERMS(halves); k -= STRIPE_TERMS(halves), y += STRIPE_SIZE(halves), p += STRIPE_BYTES_##id) { \
                stripe_##stem##_(p, &s);                                                                               \
                store_stripe_(halves, (zero) != 0, &s, y);                                                             \
            }                                                                                                          \
            if (k > 0) {                                                                                               \
                stripe_##stem##_(stripe_end_##stem##_(copy, k, p), &s);                                                \
                store_stripe_(halves, (zero) != 0, &s, y);                                                             \
            }                                                                                                          \
        }
STRIPE_FORMATS(STRIPES_OF)

// The same through an array of levels, of at most STRIPE_K terms.
#    define STRIPES_BY_KERNEL(id, stem, halves, zero, block, size)                                                     \
        static int64_t unpack_part_##stem##_(struct unpacked * a, int64_t k, const uint8_t * p) {        \
            const int64_t terms = k < STRIPE_K ? k : STRIPE_K, stripes = (terms + STRIPE_TERMS(halves) - 1) / STRIPE_TERMS(halves); \
            unpack_##stem(terms, a->u, a->d, a->m, p);                                                                 \
            memset(a->u + terms, 0, (size_t) (stripes * STRIPE_TERMS(halves) - terms));                                \
            for (int64_t g = terms / (STRIPE_TERMS(halves) / 16); g < 16 * stripes; g++) {                             \
                a->d[g] = a->m[g] = 0;                                                                                 \
            }                                                                                                          \
            return stripes;                                                                                            \
        }                                                                                                              \
        static ALWAYS_INLINE void stripe_column_dots_##stem##_(int nx, int64_t k, float * sums, const struct stripe_task * t, int column) {\
            vf              acc[STRIPE_DIRECT][STRIPE_ROWS];                                                           \
            struct unpacked a;                                                                                         \
            struct stripe   s[STRIPE_DIRECT];                                                                          \
            const uint8_t * p  = t->w[column];                                                                         \
            size_t          at = 0;                                                                                    \
            load_sums_(1, nx, acc, sums, t->accumulate);                                                               \
            prefetch_lines_(t->next[column], (size_t) k / (block) * (size));                                           \
            for (; k > 0; k -= STRIPE_K, p += STRIPE_K / (block) * (size)) {                                           \
                const int64_t stripes = unpack_part_##stem##_(&a, k, p);                                               \
                for (int64_t i = 0; i < stripes; i++, at += STRIPE_SIZE(halves)) {                                     \
                    stripe_unpacked_(halves, &a, i, s);                                                                \
                    multiply_stripe_(1, nx, halves, (zero) != 0, s, t->x, at, acc);                                    \
                }                                                                                                      \
            }                                                                                                          \
            store_sums_(1, nx, acc, sums);                                                                             \
        }                                                                                                              \
        static void stripe_dots_##stem##_(int nw, int nx, int64_t k, float * sums, const struct stripe_task * t) {     \
            for (int i = 0; i < nw; i++, sums += STRIPE_ROWS * V_N) {                                                  \
                switch (nx) {                                                                                          \
                    case 1: stripe_column_dots_##stem##_(1, k, sums, t, i); break;                                     \
                    case 2: stripe_column_dots_##stem##_(2, k, sums, t, i); break;                                     \
                    default: stripe_column_dots_##stem##_(4, k, sums, t, i); break;                                    \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        static void stripe_columns_##stem##_(int64_t k, char * y, const uint8_t * p) {                                 \
            struct unpacked a;                                                                                         \
            struct stripe   s;                                                                                         \
            for (; k > 0; k -= STRIPE_K, p += STRIPE_K / (block) * (size)) {                                           \
                const int64_t stripes = unpack_part_##stem##_(&a, k, p);                                               \
                for (int64_t i = 0; i < stripes; i++, y += STRIPE_SIZE(halves)) {                                      \
                    stripe_unpacked_(halves, &a, i, &s);                                                               \
                    store_stripe_(halves, (zero) != 0, &s, y);                                                         \
                }                                                                                                      \
            }                                                                                                          \
        }
STRIPE_OTHERS(STRIPES_BY_KERNEL)

static void stripe_rows(int64_t k, int kind, int zero, void * y, const float * x) {
    const bool halves = kind & GB_BYTES_HALVES;
    const int  words = halves ? 4 : 8, terms = STRIPE_TERMS(halves), group = terms / 16;
    char *     out = y;
    for (; k > 0; k -= terms, x += terms, out += STRIPE_SIZE(halves)) {
        _Alignas(64) int8_t  q[512] = { 0 };
        _Alignas(64) float   d[16] = { 0 };
        _Alignas(64) int32_t sums[32] = { 0 };
        const int            n = (int) (k < terms ? k : terms) / 32;
        float                ends[2][16];
        vi                   u[8];
        for (int i = 0; i < n; i++) {
            d[i] = quantize_32_(q + 32 * i, x + 32 * i, sums + 2 * i);
        }
        for (int g = 0; g < 16; g++) {
            const int32_t sum = halves ? sums[g] : sums[2 * g] + sums[2 * g + 1], centered = -zero * sum;
            ends[0][g]        = d[g * group / 32];
            ends[1][g]        = ends[0][g] * (float) sum;
            if (zero != 0) {
                memcpy(&ends[1][g], &centered, sizeof(centered));
            }
        }
        UNROLL
        for (int i = 0; i < 8; i++) {
            u[i] = words_(q + 64 * i);
        }
        turn_groups_(halves, u);
        for (int i = 0; i < words; i++) {
            _mm512_storeu_si512(out + 64 * i, u[i]);
        }
        memcpy(out + 64 * words, ends, sizeof(ends));
    }
}

// Three rows are taken as four, of which two are the same, and one column with several rows as two: not worth versions of their own.
static bool stripe_dots(int type, int64_t k, int nw, int nx, float * acc, const void * const * columns, const void * const * rows, const void * const * next,
                        bool accumulate) {
    struct stripe_task t = { .accumulate = accumulate };
    for (int i = 0; i < STRIPE_DIRECT && nw > 0; i++) {
        t.w[i]    = columns[i < nw ? i : 0];
        t.next[i] = next[i < nw ? i : 0];
    }
    for (int j = 0; j < STRIPE_ROWS && nx > 0; j++) {
        t.x[j] = rows[j < nx ? j : nx - 1];
    }
#    define STRIPE_DOTS_CASE(id, stem, halves, zero, block, size)                                                      \
        case GGML_TYPE_##id:                                                                                           \
            switch (nx == 1 ? nw : 1 + nx) {                                                                           \
                case 1: stripe_dots_##stem##_(1, 1, k, acc, &t); break;                                                \
                case 2: stripe_dots_##stem##_(2, 1, k, acc, &t); break;                                                \
                case 3: stripe_dots_##stem##_(2, 2, k, acc, &t); break;                                                \
                case 4:                                                                                                \
                case 5: stripe_dots_##stem##_(2, 4, k, acc, &t); break;                                                \
                default: break;                                                                                        \
            }                                                                                                          \
            return true;
#    define STRIPE_OTHER_CASE(id, stem, halves, zero, block, size)                                                     \
        case GGML_TYPE_##id: stripe_dots_##stem##_(nw, nx, k, acc, &t); return true;
    switch (type) {
        STRIPE_FORMATS(STRIPE_DOTS_CASE)
        STRIPE_OTHERS(STRIPE_OTHER_CASE)
        default: return false;
    }
}

static bool stripe_columns(int type, int64_t k, void * y, const void * w) {
#    define STRIPE_COLUMNS_CASE(id, stem, halves, zero, block, size)                                                   \
        case GGML_TYPE_##id: stripe_columns_##stem##_(k, y, w); return true;
    switch (type) {
        STRIPE_FORMATS(STRIPE_COLUMNS_CASE)
        STRIPE_OTHERS(STRIPE_COLUMNS_CASE)
        default: return false;
    }
}

// nw columns, unpacked, by nx rows; acc[i][j] is a vector of V_N sums.
static ALWAYS_INLINE void stripe_tile_(int nw, int nx, bool halves, bool centered, int64_t stripes, float * acc, const char * const * w, const char * const * x,
                                       bool accumulate) {
    const int words = halves ? 4 : 8;
    vf        sums[STRIPE_COLUMNS][STRIPE_ROWS];
    load_sums_(nw, nx, sums, acc, accumulate);
    for (size_t at = 0; stripes > 0; stripes--, at += STRIPE_SIZE(halves)) {
        const size_t ends = at + 64 * (size_t) words;
        vi           dot[STRIPE_COLUMNS][STRIPE_ROWS];
        UNROLL
        for (int j = 0; j < nx; j++) {
            const vi start = centered ? words_(x[j] + ends + 64) : vi_set(0);
            UNROLL
            for (int i = 0; i < nw; i++) {
                dot[i][j] = start;
            }
        }
        UNROLL
        for (int p = 0; p < words; p++) {
            vi u[STRIPE_COLUMNS];
            UNROLL
            for (int i = 0; i < nw; i++) {
                u[i] = words_(w[i] + at + 64 * p);
                IN_REGISTER(u[i]);
            }
            UNROLL
            for (int j = 0; j < nx; j++) {
                vi q = words_(x[j] + at + 64 * p);
                IN_REGISTER(q);
                UNROLL
                for (int i = 0; i < nw; i++) {
                    dot[i][j] = vi_dot4(dot[i][j], u[i], q);
                }
            }
        }
        UNROLL
        for (int j = 0; j < nx; j++) {
            const vf d = v_from_bits(words_(x[j] + ends)), s = centered ? d : v_from_bits(words_(x[j] + ends + 64));
            UNROLL
            for (int i = 0; i < nw; i++) {
                const vf dw = v_from_bits(words_(w[i] + ends)), m = centered ? dw : v_from_bits(words_(w[i] + ends + 64));
                sums[i][j]  = v_fma(v_from_int(dot[i][j]), v_mul(dw, d), sums[i][j]);
                sums[i][j]  = centered ? sums[i][j] : v_fma(m, s, sums[i][j]);
            }
        }
    }
    store_sums_(nw, nx, sums, acc);
}

static void stripe_tile(int64_t stripes, int kind, int nw, int nx, float * acc, const void * const * columns, const void * const * rows, bool accumulate) {
    const char *w[STRIPE_COLUMNS], *x[STRIPE_ROWS];
    for (int i = 0; i < nw; i++) {
        w[i] = columns[i];
    }
    for (int j = 0; j < nx; j++) {
        x[j] = rows[j];
    }
#    define STRIPE_KIND(cw, cx, halves, centered)                                                                      \
        case (halves * GB_BYTES_HALVES + centered * GB_BYTES_CENTERED): stripe_tile_(cw, cx, halves, centered, stripes, acc, w, x, accumulate); break;
#    define STRIPE_TILE(cw, cx)                                                                                        \
        case 8 * cw + cx:                                                                                              \
            switch (kind) {                                                                                            \
                STRIPE_KIND(cw, cx, 0, 0)                                                                              \
                STRIPE_KIND(cw, cx, 1, 0)                                                                              \
                STRIPE_KIND(cw, cx, 0, 1)                                                                              \
                STRIPE_KIND(cw, cx, 1, 1)                                                                              \
                default: break;                                                                                        \
            }                                                                                                          \
            break;
    switch (8 * nw + nx) {
        STRIPE_TILE(1, 1)
        STRIPE_TILE(1, 2)
        STRIPE_TILE(1, 3)
        STRIPE_TILE(1, 4)
        STRIPE_TILE(2, 1)
        STRIPE_TILE(2, 2)
        STRIPE_TILE(2, 3)
        STRIPE_TILE(2, 4)
        STRIPE_TILE(3, 1)
        STRIPE_TILE(3, 2)
        STRIPE_TILE(3, 3)
        STRIPE_TILE(3, 4)
        default: break;
    }
}

static void stripe_sums(int nw, int nx, float * y, const float * acc) {
    for (int i = 0; i < nw; i++) {
        vf a[STRIPE_ROWS];
        UNROLL
        for (int j = 0; j < STRIPE_ROWS; j++) {
            a[j] = v_load(acc + (STRIPE_ROWS * i + j) * V_N);
        }
        sums_of_four_(a, nx, y + STRIPE_ROWS * i);
    }
}

#else
#    define HAVE_STRIPES false

static void stripe_rows(int64_t k, int kind, int zero, void * y, const float * x) {
    (void) k, (void) kind, (void) zero, (void) y, (void) x;
}

static bool stripe_dots(int type, int64_t k, int nw, int nx, float * acc, const void * const * columns, const void * const * rows, const void * const * next,
                        bool accumulate) {
    (void) type, (void) k, (void) nw, (void) nx, (void) acc, (void) columns, (void) rows, (void) next, (void) accumulate;
    return false;
}

static bool stripe_columns(int type, int64_t k, void * y, const void * w) {
    (void) type, (void) k, (void) y, (void) w;
    return false;
}

static void stripe_tile(int64_t stripes, int kind, int nw, int nx, float * acc, const void * const * columns, const void * const * rows, bool accumulate) {
    (void) stripes, (void) kind, (void) nw, (void) nx, (void) acc, (void) columns, (void) rows, (void) accumulate;
}

static void stripe_sums(int nw, int nx, float * y, const float * acc) {
    (void) nw, (void) nx, (void) y, (void) acc;
}
#endif
