// unpack.tpl.h - quantized weights as unsigned bytes: a weight is d u + m, with d and m for each group of 32 terms, or of 16 ("halves").
//
// unpack_<format>(k, u, d, m, x): k terms, whole blocks, at most GB_UNPACK_MAX. Levels that a format counts from below zero are moved up
// by a bias, which m takes back. The loops are plain C of a shape that compilers vectorize; where that leaves too much on the table
// there is a second version beside it (below). u is at most 127, except where unpack_kind (gemm_int8.c) says "wide".

#include <string.h>

// ------------------------------------------------------------------------------------------------------- blocks of 32 terms

static inline void low_high_(uint8_t * u, const uint8_t * qs) { // nibbles of 16 bytes: the low ones first
    for (int j = 0; j < 16; j++) {
        u[j]      = qs[j] & 15;
        u[j + 16] = qs[j] >> 4;
    }
}

static inline void fifth_bits_(uint8_t * u, const uint8_t * qh) { // bit i of 32 becomes bit 4 of u[i]
    for (int i = 0; i < 4; i++) {
        const uint64_t kept = qh[i] * UINT64_C(0x0101010101010101) & UINT64_C(0x8040201008040201);
        const uint64_t ones = (kept + UINT64_C(0x00406070787c7e7f)) >> 7 & UINT64_C(0x0101010101010101);
        uint64_t       eight;
        memcpy(&eight, u + 8 * i, sizeof(eight));
        eight |= ones << 4;
        memcpy(u + 8 * i, &eight, sizeof(eight));
    }
}

static inline void lookup_low_high_(uint8_t * u, const uint8_t * qs, const uint8_t * table) { // 16 bytes
#if defined(__AVX2__)
    const __m128i t = _mm_loadu_si128((const __m128i *) table), q = _mm_loadu_si128((const __m128i *) qs), low = _mm_set1_epi8(15);
    _mm_storeu_si128((__m128i *) u, _mm_shuffle_epi8(t, _mm_and_si128(q, low)));
    _mm_storeu_si128((__m128i *) (u + 16), _mm_shuffle_epi8(t, _mm_and_si128(_mm_srli_epi16(q, 4), low)));
#else
    for (int j = 0; j < 16; j++) {
        u[j]      = table[qs[j] & 15];
        u[j + 16] = table[qs[j] >> 4];
    }
#endif
}

enum { UNPACK_BLOCKS = GB_UNPACK_MAX / 32 };

static void symmetric_scales_(int64_t n, float bias, float * d, float * m, const uint16_t * half) {
    f16_to_f32(n, d, half);
    for (int64_t i = 0; i < n; i++) {
        m[i] = d[i] * -bias;
    }
}

// For each block: collects the f16 at its start (and the next, if affine), and unpacks its levels.
#define UNPACK_BLOCKS_OF(size, ...)                                                                                    \
    const uint8_t * block = x;                                                                                         \
    uint16_t        half[UNPACK_BLOCKS];                                                                               \
    for (int64_t i = 0; i < k / 32; i++, block += size, u += 32) {                                                     \
        memcpy(half + i, block, sizeof(*half));                                                                        \
        __VA_ARGS__;                                                                                                   \
    }

static void unpack_q4_0_plain_(int64_t k, uint8_t * u, float * d, float * m, const void * x) {
    UNPACK_BLOCKS_OF(18, low_high_(u, block + 2))
    symmetric_scales_(k / 32, 8, d, m, half);
}

static void unpack_q5_0(int64_t k, uint8_t * u, float * d, float * m, const void * x) {
    UNPACK_BLOCKS_OF(22, low_high_(u, block + 6); fifth_bits_(u, block + 2))
    symmetric_scales_(k / 32, 16, d, m, half);
}

static void unpack_q8_0(int64_t k, uint8_t * u, float * d, float * m, const void * x) {
    UNPACK_BLOCKS_OF(34, for (int j = 0; j < 32; j++) { u[j] = (uint8_t) (block[2 + j] ^ 0x80); })
    symmetric_scales_(k / 32, 128, d, m, half);
}

static const uint8_t iq4_levels_[16] = { 1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241 }; // + 128

static void unpack_iq4_nl(int64_t k, uint8_t * u, float * d, float * m, const void * x) {
    UNPACK_BLOCKS_OF(18, lookup_low_high_(u, block + 2, iq4_levels_))
    symmetric_scales_(k / 32, 128, d, m, half);
}

static void unpack_q4_1(int64_t k, uint8_t * u, float * d, float * m, const void * x) {
    uint16_t mins[UNPACK_BLOCKS];
    UNPACK_BLOCKS_OF(20, memcpy(mins + i, block + 2, sizeof(*mins)); low_high_(u, block + 4))
    f16_to_f32(k / 32, d, half);
    f16_to_f32(k / 32, m, mins);
}

static void unpack_q5_1(int64_t k, uint8_t * u, float * d, float * m, const void * x) {
    uint16_t mins[UNPACK_BLOCKS];
    UNPACK_BLOCKS_OF(24, memcpy(mins + i, block + 2, sizeof(*mins)); low_high_(u, block + 8); fifth_bits_(u, block + 4))
    f16_to_f32(k / 32, d, half);
    f16_to_f32(k / 32, m, mins);
}

static void unpack_mxfp4(int64_t k, uint8_t * u, float * d, float * m, const void * x) {
    static const uint8_t levels[16] = { 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0 }; // + 12
    const uint8_t *      block      = x;
    for (int64_t i = 0; i < k / 32; i++, block += 17, u += 32) {
        const uint32_t bits = block[0] < 2 ? (uint32_t) 0x200000 << block[0] : (uint32_t) (block[0] - 1) << 23;
        memcpy(d + i, &bits, sizeof(*d));
        m[i] = d[i] * -12.0f;
        lookup_low_high_(u, block + 1, levels);
    }
}

// ------------------------------------------------------------------------------------------------------ blocks of 256 terms

static inline float half_at_(const uint8_t * p) {
    uint16_t h;
    float    f;
    memcpy(&h, p, sizeof(h));
    v_store_n(&f, v_load_f16_n(&h, 1), 1);
    return f;
}

static inline void nibbles_256_(uint8_t * u, const uint8_t * qs) {
    for (int c = 0; c < 4; c++) {
        for (int l = 0; l < 32; l++) {
            u[64 * c + l]      = qs[32 * c + l] & 15;
            u[64 * c + 32 + l] = qs[32 * c + l] >> 4;
        }
    }
}

static inline void pairs_256_(uint8_t * u, const uint8_t * qs) {
    for (int h = 0; h < 2; h++) {
        for (int g = 0; g < 4; g++) {
            for (int l = 0; l < 32; l++) {
                u[128 * h + 32 * g + l] = qs[32 * h + l] >> 2 * g & 3;
            }
        }
    }
}

// Eight scales and minima of 6 bits in 12 bytes.
static inline void scales_45_(const uint8_t * block, float * d, float * m) {
    uint32_t    w[3], sc[2], mn[2];
    uint8_t     bytes[16];
    const float scale = half_at_(block), min = -half_at_(block + 2);
    memcpy(w, block + 4, sizeof(w));
    sc[0] = w[0] & 0x3f3f3f3fu;
    mn[0] = w[1] & 0x3f3f3f3fu;
    sc[1] = (w[2] & 0x0f0f0f0fu) | (w[0] >> 6 & 0x03030303u) << 4;
    mn[1] = (w[2] >> 4 & 0x0f0f0f0fu) | (w[1] >> 6 & 0x03030303u) << 4;
    memcpy(bytes, sc, 8);
    memcpy(bytes + 8, mn, 8);
    for (int i = 0; i < 8; i++) {
        d[i] = scale * (float) bytes[i];
        m[i] = min * (float) bytes[8 + i];
    }
}

#define FOR_SUPER_BLOCKS(size, groups)                                                                                 \
    const uint8_t * block = x;                                                                                         \
    for (int64_t i = 0; i < k / 256; i++, block += size, u += 256, d += groups, m += groups)

static void unpack_q4_k(int64_t k, uint8_t * u, float * d, float * m, const void * x) {
    FOR_SUPER_BLOCKS(144, 8) {
        scales_45_(block, d, m);
        nibbles_256_(u, block + 16);
    }
}

static void unpack_q5_k(int64_t k, uint8_t * u, float * d, float * m, const void * x) {
    FOR_SUPER_BLOCKS(176, 8) {
        scales_45_(block, d, m);
        nibbles_256_(u, block + 48);
        for (int g = 0; g < 8; g++) {
            for (int l = 0; l < 32; l++) {
                u[32 * g + l] = (uint8_t) (u[32 * g + l] | (block[16 + l] >> g & 1) << 4);
            }
        }
    }
}

static void unpack_q6_k(int64_t k, uint8_t * u, float * d, float * m, const void * x) {
    FOR_SUPER_BLOCKS(210, 16) {
        const float scale = half_at_(block + 208);
        for (int s = 0; s < 16; s++) {
            d[s] = scale * (float) (int8_t) block[192 + s];
            m[s] = d[s] * -32.0f;
        }
        for (int h = 0; h < 2; h++) {
            const uint8_t * low = block + 64 * h;
            const uint8_t * top = block + 128 + 32 * h;
            uint8_t *       y   = u + 128 * h;
            for (int l = 0; l < 32; l++) {
                y[l]      = (uint8_t) ((low[l] & 15) | (top[l] & 3) << 4);
                y[l + 32] = (uint8_t) ((low[l + 32] & 15) | (top[l] >> 2 & 3) << 4);
                y[l + 64] = (uint8_t) (low[l] >> 4 | (top[l] >> 4 & 3) << 4);
                y[l + 96] = (uint8_t) (low[l + 32] >> 4 | top[l] >> 6 << 4);
            }
        }
    }
}

static void unpack_q2_k(int64_t k, uint8_t * u, float * d, float * m, const void * x) {
    FOR_SUPER_BLOCKS(84, 16) {
        const float scale = half_at_(block + 80), min = -half_at_(block + 82);
        for (int s = 0; s < 16; s++) {
            d[s] = scale * (float) (block[s] & 15);
            m[s] = min * (float) (block[s] >> 4);
        }
        pairs_256_(u, block + 16);
    }
}

static void unpack_q3_k(int64_t k, uint8_t * u, float * d, float * m, const void * x) {
    FOR_SUPER_BLOCKS(110, 16) {
        const uint8_t * sc    = block + 96;
        const float     scale = half_at_(block + 108);
        for (int s = 0; s < 16; s++) {
            const int bits = (sc[s % 8] >> 4 * (s / 8) & 15) + 16 * (sc[8 + s % 4] >> 2 * (s / 4) & 3);
            d[s]           = scale * (float) (bits - 32);
            m[s]           = d[s] * -4.0f;
        }
        pairs_256_(u, block + 32);
        for (int g = 0; g < 8; g++) {
            for (int l = 0; l < 32; l++) {
                u[32 * g + l] = (uint8_t) (u[32 * g + l] | (block[l] >> g & 1) << 2);
            }
        }
    }
}

static void unpack_iq4_xs(int64_t k, uint8_t * u, float * d, float * m, const void * x) {
    FOR_SUPER_BLOCKS(136, 8) {
        const float scale = half_at_(block);
        for (int s = 0; s < 8; s++) {
            const int bits = (block[4 + s / 2] >> 4 * (s % 2) & 15) + 16 * (block[2 + s / 4] >> 2 * (s % 4) & 3);
            d[s]           = scale * (float) (bits - 32);
            m[s]           = d[s] * -128.0f;
            lookup_low_high_(u + 32 * s, block + 8 + 16 * s, iq4_levels_);
        }
    }
}

// --------------------------------------------------------------------------------------------------------------- by hand

#if defined(__AVX512VBMI__)
// Four blocks, 72 bytes, at a time: one permutation of bytes puts the 16 bytes of two blocks twice into a vector.
static void unpack_q4_0(int64_t k, uint8_t * u, float * d, float * m, const void * x) {
    static const uint8_t from[2][4] = { { 2, 2, 20, 20 }, { 38, 38, 56, 56 } }; // bytes from 64 on come from the second load, 8 further
    uint8_t              index[2][64];
    const uint8_t *      block = x;
    int64_t              i     = 0;
    for (int b = 0; b < 128; b++) {
        const int at               = from[b / 64][b % 64 / 16] + b % 16;
        index[b / 64][b % 64]      = (uint8_t) (at < 64 ? at : at + 56);
    }
    const __m512i first = _mm512_loadu_si512(index[0]), second = _mm512_loadu_si512(index[1]);
    const __m512i shift = _mm512_inserti64x4(_mm512_inserti32x4(_mm512_setzero_si512(), _mm_set1_epi16(4), 1),
                                             _mm256_inserti128_si256(_mm256_setzero_si256(), _mm_set1_epi16(4), 1), 1);
    const __m512i low    = _mm512_set1_epi8(15);
    const __m512i halves = _mm512_castsi128_si512(_mm_setr_epi16(0, 9, 18, 27, 0, 0, 0, 0));
    for (; i + 4 <= k / 32; i += 4, block += 72, u += 128) {
        const __m512i a = _mm512_loadu_si512(block), b = _mm512_loadu_si512(block + 8);
        const __m512i p = _mm512_permutex2var_epi8(a, first, b), q = _mm512_permutex2var_epi8(a, second, b);
        const __m128  scale = _mm_cvtph_ps(_mm512_castsi512_si128(_mm512_permutexvar_epi16(halves, a)));
        _mm512_storeu_si512(u, _mm512_and_si512(_mm512_srlv_epi16(p, shift), low));
        _mm512_storeu_si512(u + 64, _mm512_and_si512(_mm512_srlv_epi16(q, shift), low));
        _mm_storeu_ps(d + i, scale);
        _mm_storeu_ps(m + i, _mm_mul_ps(scale, _mm_set1_ps(-8.0f)));
    }
    unpack_q4_0_plain_(k - 32 * i, u, d + i, m + i, block);
}
#else
static void unpack_q4_0(int64_t k, uint8_t * u, float * d, float * m, const void * x) {
    unpack_q4_0_plain_(k, u, d, m, x);
}
#endif
