// unpack_vbmi.tpl.h - unpack_q4_0 with AVX-512 and VBMI, for unpack.tpl.h, which has the loop over
// single blocks.

// Takes four blocks, 72 bytes, at a time. One permutation of bytes puts the 16 bytes of two blocks
// twice into a vector. The indices are for these blocks.
static_assert(GB_BYTES(q4_0) == 18 && GB_AT(q4_0, d) == 0 && GB_AT(q4_0, qs) == 2, "the indices below");
static void unpack_q4_0(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
#define FROM(i) (i), (i) + 1, (i) + 2, (i) + 3, (i) + 4, (i) + 5, (i) + 6, (i) + 7
#define TWICE(i) FROM(i), FROM((i) + 8), FROM(i), FROM((i) + 8)
    static const uint8_t index[2][64] = { { TWICE(2), TWICE(20) },
        { TWICE(38), FROM(56), FROM(64 + 56), FROM(56), FROM(64 + 56) } };
    const uint8_t * block = x; // byte 64 and later bytes come from the second load, 8 bytes further
    int64_t i = 0;
    const __m512i first = _mm512_loadu_si512(index[0]), second = _mm512_loadu_si512(index[1]);
#undef TWICE
#undef FROM
    const __m512i shift = _mm512_inserti64x4(_mm512_inserti32x4(_mm512_setzero_si512(), _mm_set1_epi16(4), 1),
        _mm256_inserti128_si256(_mm256_setzero_si256(), _mm_set1_epi16(4), 1), 1);
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i halves = _mm512_castsi128_si512(_mm_setr_epi16(0, 9, 18, 27, 0, 0, 0, 0));
    for (; i + 4 <= k / 32; i += 4, block += 4 * GB_BYTES(q4_0), u += 128) {
        const __m512i a = _mm512_loadu_si512(block), b = _mm512_loadu_si512(block + 8);
        const __m512i p = _mm512_permutex2var_epi8(a, first, b), q = _mm512_permutex2var_epi8(a, second, b);
        const __m128 scale = _mm_cvtph_ps(_mm512_castsi512_si128(_mm512_permutexvar_epi16(halves, a)));
        _mm512_storeu_si512(u, _mm512_and_si512(_mm512_srlv_epi16(p, shift), low));
        _mm512_storeu_si512(u + 64, _mm512_and_si512(_mm512_srlv_epi16(q, shift), low));
        _mm_storeu_ps(d + i, scale);
        _mm_storeu_ps(m + i, _mm_mul_ps(scale, _mm_set1_ps((float) -GB_ZERO(q4_0))));
    }
    unpack_q4_0_plain_(k - 32 * i, u, d + i, m + i, block);
}
