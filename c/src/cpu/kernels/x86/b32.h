// b32.h - the vectors of 32 bytes of b32.tpl.h on AVX2.

typedef __m256i b32;
static inline b32 b32_load(const void * p) { return _mm256_loadu_si256((const __m256i *) p); }
static inline void b32_store(void * p, b32 a) { _mm256_storeu_si256((__m256i *) p, a); }
static inline b32 b32_set(int byte) { return _mm256_set1_epi8((char) byte); }
static inline b32 b32_and(b32 a, int byte) { return _mm256_and_si256(a, b32_set(byte)); }
static inline b32 b32_or(b32 a, b32 b) { return _mm256_or_si256(a, b); }
static inline b32 b32_xor(b32 a, int byte) { return _mm256_xor_si256(a, b32_set(byte)); }
#define b32_shr(a, n) _mm256_srli_epi16((a), (n))
#define b32_shl(a, n) _mm256_slli_epi16((a), (n))
// The low nibbles of 16 bytes, then the high ones.
static inline b32 b32_nibbles(const void * p) {
    const __m128i q = _mm_loadu_si128((const __m128i *) p);
    return b32_and(_mm256_inserti128_si256(_mm256_castsi128_si256(q), _mm_srli_epi16(q, 4), 1), 15);
}
static inline b32 b32_lookup(b32 index, const uint8_t * table) { // of 16
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) table)), index);
}
static inline b32 b32_bits(const void * p, int byte) { // `byte` where one of the 32 bits at p is set
    uint32_t bits;
    memcpy(&bits, p, sizeof(bits));
    const b32 spread = _mm256_shuffle_epi8(_mm256_set1_epi32((int32_t) bits),
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    const b32 one = _mm256_set1_epi64x((int64_t) 0x8040201008040201u);
    return b32_and(_mm256_cmpeq_epi8(_mm256_and_si256(spread, one), one), byte);
}
static inline void scaled_8_(float * y, const void * bytes, float scale) { // y[i] = scale bytes[i]
    _mm256_storeu_ps(y, _mm256_mul_ps(_mm256_set1_ps(scale),
                            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) bytes)))));
}
