// unpack.tpl.h - quantized weights as unsigned bytes: a weight is d u + m, with d and m for each group of 32 terms, or
// of 16 ("halves").
//
// unpack_<stem>(k, u, d, m, x): k terms, whole blocks, at most GB_UNPACK_MAX. Levels that a format counts from below
// zero are moved up by the `zero` of its row in formats.def, which m takes back; u is at most the row's `top`. What the
// fields of a block mean is said in tensor/quant/<stem>.c. The loops are plain C of a shape that compilers vectorize;
// where that leaves too much on the table there is a second version beside it (below).

#include <string.h>

// 32 bytes, and what is done with the fields in them. Shifts move bits across bytes: mask before, or after.
#if V_N == 8 || V_N == 16
typedef __m256i    b32;
static inline b32  b32_load(const void * p) { return _mm256_loadu_si256((const __m256i *) p); }
static inline void b32_store(void * p, b32 a) { _mm256_storeu_si256((__m256i *) p, a); }
static inline b32  b32_set(int byte) { return _mm256_set1_epi8((char) byte); }
static inline b32  b32_and(b32 a, int byte) { return _mm256_and_si256(a, b32_set(byte)); }
static inline b32  b32_or(b32 a, b32 b) { return _mm256_or_si256(a, b); }
static inline b32  b32_xor(b32 a, int byte) { return _mm256_xor_si256(a, b32_set(byte)); }
#    define b32_shr(a, n) _mm256_srli_epi16((a), (n))
#    define b32_shl(a, n) _mm256_slli_epi16((a), (n))
// The low nibbles of 16 bytes, then the high ones.
static inline b32 b32_nibbles(const void * p) {
    const __m128i q = _mm_loadu_si128((const __m128i *) p);
    return b32_and(_mm256_inserti128_si256(_mm256_castsi128_si256(q), _mm_srli_epi16(q, 4), 1), 15);
}
static inline b32 b32_lookup(b32 index, const uint8_t * table) { // of 16
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) table)), index);
}
static inline b32 b32_bits(const void * p, int byte) { // `byte` where a bit of the 32 at p is set
    uint32_t bits;
    memcpy(&bits, p, sizeof(bits));
    const b32 spread = _mm256_shuffle_epi8(_mm256_set1_epi32((int32_t) bits),
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    const b32 one    = _mm256_set1_epi64x((int64_t) 0x8040201008040201u);
    return b32_and(_mm256_cmpeq_epi8(_mm256_and_si256(spread, one), one), byte);
}
static inline void scaled_8_(float * y, const void * bytes, float scale) { // y[i] = scale bytes[i]
    _mm256_storeu_ps(y, _mm256_mul_ps(_mm256_set1_ps(scale),
                            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) bytes)))));
}
#else
typedef struct {
    uint8_t b[32];
} b32;
static inline b32 b32_load(const void * p) {
    b32 a;
    memcpy(&a, p, sizeof(a));
    return a;
}
static inline void b32_store(void * p, b32 a) { memcpy(p, &a, sizeof(a)); }
#    define B32_EACH(name, params, value) \
    static inline b32 name params {       \
        for (int i = 0; i < 32; i++) {    \
            a.b[i] = (uint8_t) (value);   \
        }                                 \
        return a;                         \
    }
B32_EACH(b32_and, (b32 a, int byte), a.b[i] & byte)
B32_EACH(b32_or, (b32 a, b32 b), a.b[i] | b.b[i])
B32_EACH(b32_xor, (b32 a, int byte), a.b[i] ^ byte)
B32_EACH(b32_shr, (b32 a, int n), a.b[i] >> n)
B32_EACH(b32_shl, (b32 a, int n), a.b[i] << n)
B32_EACH(b32_lookup, (b32 a, const uint8_t * table), table[a.b[i]])
static inline b32 b32_nibbles(const void * p) {
    const uint8_t * q = p;
    b32             a;
    for (int i = 0; i < 16; i++) {
        a.b[i]      = q[i] & 15;
        a.b[i + 16] = q[i] >> 4;
    }
    return a;
}
static inline b32 b32_bits(const void * p, int byte) {
    const uint8_t * q = p;
    b32             a;
    for (int i = 0; i < 32; i++) {
        a.b[i] = q[i / 8] >> i % 8 & 1 ? (uint8_t) byte : 0;
    }
    return a;
}
static inline void scaled_8_(float * y, const void * bytes, float scale) {
    for (int i = 0; i < 8; i++) {
        y[i] = scale * (float) ((const int8_t *) bytes)[i];
    }
}
#endif

// -------------------------------------------------------------------------------------------------- blocks of 32 terms

enum { UNPACK_BLOCKS = GB_UNPACK_MAX / 32 };

static void symmetric_scales_(int64_t n, float bias, float * restrict d, float * restrict m, const uint16_t * half) {
    f16_to_f32(n, d, half);
    for (int64_t i = 0; i < n; i++) {
        m[i] = d[i] * -bias;
    }
}

// For each block: collects d, an f16, and unpacks its levels.
#define UNPACK_BLOCKS_OF(stem, ...)                                          \
    const uint8_t * block = x;                                               \
    uint16_t        half[UNPACK_BLOCKS];                                     \
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
        const uint8_t  e    = block[GB_AT(mxfp4, e)];
        const uint32_t bits = e < 2 ? (uint32_t) 0x200000 << e : (uint32_t) (e - 1) << 23;
        memcpy(d + i, &bits, sizeof(*d));
        m[i] = d[i] * (float) -GB_ZERO(mxfp4);
        b32_store(u, b32_lookup(b32_nibbles(block + GB_AT(mxfp4, qs)), e2m1_levels_));
    }
}

// Eight bytes of nibbles to a group of 16: the lower ones first.
static void unpack_nvfp4(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    const uint8_t * block = x;
    for (int64_t left = k / 64; left > 0; left--, block += GB_BYTES(nvfp4), u += 64, d += 4, m += 4) {
        const b32 q = b32_load(block + GB_AT(nvfp4, qs));
        uint8_t   low[32], high[32];
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

// ------------------------------------------------------------------------------------------------- blocks of 256 terms

static inline float half_at_(const uint8_t * p) {
    uint16_t h;
    memcpy(&h, p, sizeof(h));
#if V_N == 8 || V_N == 16
    return _cvtsh_ss(h);
#elif V_N == 4
    float f;
    v_store_n(&f, v_load_f16_n(&h, 1), 1);
    return f;
#else
    return v_load_f16(&h);
#endif
}

// d, dmin and the scales of Q4_K, which Q5_K begins with, too: eight scales and minima of 6 bits in 12 bytes.
static_assert(GB_AT(q5_k, d) == GB_AT(q4_k, d) && GB_AT(q5_k, dmin) == GB_AT(q4_k, dmin) &&
                  GB_AT(q5_k, scales) == GB_AT(q4_k, scales),
    "both blocks begin alike");
static inline void scales_45_(const uint8_t * restrict block, float * restrict d, float * restrict m) {
    const float scale = half_at_(block + GB_AT(q4_k, d)), min = -half_at_(block + GB_AT(q4_k, dmin));
    uint32_t    w[3]; // bytes are put together in registers: what is stored in parts and loaded as a whole has to wait
    memcpy(w, block + GB_AT(q4_k, scales), sizeof(w));
    const uint32_t sc     = (w[2] & 0x0f0f0f0fu) | (w[0] >> 6 & 0x03030303u) << 4;
    const uint32_t mn     = (w[2] >> 4 & 0x0f0f0f0fu) | (w[1] >> 6 & 0x03030303u) << 4;
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
        b32 fifth = b32_load(block + GB_AT(q5_k, qh)); // the next two groups' lie in the lowest bits
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
            const b32       a   = b32_load(block + GB_AT(q6_k, ql) + 64 * h),
                            b   = b32_load(block + GB_AT(q6_k, ql) + 64 * h + 32),
                            top = b32_load(block + GB_AT(q6_k, qh) + 32 * h);
            uint8_t * const y   = u + 128 * h;
            b32_store(y, b32_or(b32_and(a, 15), b32_shl(b32_and(top, 3), 4)));
            b32_store(y + 32, b32_or(b32_and(b, 15), b32_shl(b32_and(top, 12), 2)));
            b32_store(y + 64, b32_or(b32_and(b32_shr(a, 4), 15), b32_and(top, 48)));
            b32_store(y + 96, b32_or(b32_and(b32_shr(b, 4), 15), b32_shr(b32_and(top, 192), 2)));
        }
    }
}

// The bit pairs of 64 bytes, 32 of them at a time; third: bits that become bit 2, from the lowest on.
static inline void pairs_256_(uint8_t * restrict u, const uint8_t * restrict qs, b32 third) {
    for (int h = 0; h < 2; h++) {
        b32 q = b32_load(qs + 32 * h);
        for (int g = 0; g < 4; g++) {
            b32_store(u + 128 * h + 32 * g, b32_or(b32_and(q, 3), b32_shl(b32_and(third, 1), 2)));
            q     = b32_shr(q, 2);
            third = b32_shr(third, 1);
        }
    }
}

static void unpack_q2_k(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    FOR_SUPER_BLOCKS(q2_k) {
        const float scale = half_at_(block + GB_AT(q2_k, d)), min = -half_at_(block + GB_AT(q2_k, dmin));
        uint8_t     sc[32]; // the scales, then the minima
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
        uint32_t    w[3], sc[4]; // four scales of 6 bits in a word, around 32
        memcpy(w, block + GB_AT(q3_k, scales), sizeof(w));
        for (int j = 0; j < 4; j++) { // minus 32, in every byte: the upper two bits are the sign
            const uint32_t six = (w[j % 2] >> 4 * (j / 2) & 0x0f0f0f0fu) | (w[2] >> 2 * j & 0x03030303u) << 4;
            const uint32_t top = ~six & 0x20202020u;
            sc[j]              = (six & 0x1f1f1f1fu) | top | top << 1 | top << 2;
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
        const float    scale = half_at_(block + GB_AT(iq4_xs, d));
        const uint8_t *low = block + GB_AT(iq4_xs, scales_low), *high = block + GB_AT(iq4_xs, scales_high);
        for (int s = 0; s < 8; s++) {
            const int bits = (low[s / 2] >> 4 * (s % 2) & 15) + 16 * (high[s / 4] >> 2 * (s % 4) & 3);
            d[s]           = scale * (float) (bits - 32);
            m[s]           = d[s] * (float) -GB_ZERO(iq4_xs);
            b32_store(u + 32 * s, b32_lookup(b32_nibbles(block + GB_AT(iq4_xs, qs) + 16 * s), iq4_levels_));
        }
    }
}

// ------------------------------------------------------------------------------------------------------------- by hand

#if V_N == 16 && defined(__AVX512VBMI__)
// Four blocks, 72 bytes, at a time: one permutation of bytes puts the 16 bytes of two blocks twice into a vector. The
// indices are for these blocks.
static_assert(GB_BYTES(q4_0) == 18 && GB_AT(q4_0, d) == 0 && GB_AT(q4_0, qs) == 2, "the indices below");
static void unpack_q4_0(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
#define FROM(i)  (i), (i) + 1, (i) + 2, (i) + 3, (i) + 4, (i) + 5, (i) + 6, (i) + 7
#define TWICE(i) FROM(i), FROM((i) + 8), FROM(i), FROM((i) + 8)
    static const uint8_t index[2][64] = { { TWICE(2), TWICE(20) },
        { TWICE(38), FROM(56), FROM(64 + 56), FROM(56), FROM(64 + 56) } };
    const uint8_t *      block        = x; // byte 64 and those behind it come from the second load, 8 bytes further
    int64_t              i            = 0;
    const __m512i        first = _mm512_loadu_si512(index[0]), second = _mm512_loadu_si512(index[1]);
#undef TWICE
#undef FROM
    const __m512i shift  = _mm512_inserti64x4(_mm512_inserti32x4(_mm512_setzero_si512(), _mm_set1_epi16(4), 1),
        _mm256_inserti128_si256(_mm256_setzero_si256(), _mm_set1_epi16(4), 1), 1);
    const __m512i low    = _mm512_set1_epi8(15);
    const __m512i halves = _mm512_castsi128_si512(_mm_setr_epi16(0, 9, 18, 27, 0, 0, 0, 0));
    for (; i + 4 <= k / 32; i += 4, block += 4 * GB_BYTES(q4_0), u += 128) {
        const __m512i a = _mm512_loadu_si512(block), b = _mm512_loadu_si512(block + 8);
        const __m512i p = _mm512_permutex2var_epi8(a, first, b), q = _mm512_permutex2var_epi8(a, second, b);
        const __m128  scale = _mm_cvtph_ps(_mm512_castsi512_si128(_mm512_permutexvar_epi16(halves, a)));
        _mm512_storeu_si512(u, _mm512_and_si512(_mm512_srlv_epi16(p, shift), low));
        _mm512_storeu_si512(u + 64, _mm512_and_si512(_mm512_srlv_epi16(q, shift), low));
        _mm_storeu_ps(d + i, scale);
        _mm_storeu_ps(m + i, _mm_mul_ps(scale, _mm_set1_ps((float) -GB_ZERO(q4_0))));
    }
    unpack_q4_0_plain_(k - 32 * i, u, d + i, m + i, block);
}
#else
static void unpack_q4_0(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    unpack_q4_0_plain_(k, u, d, m, x);
}
#endif
