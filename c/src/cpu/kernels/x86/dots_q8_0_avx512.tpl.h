// dots_q8_0_avx512.tpl.h - the body of dots_q8_0.tpl.h for AVX-512, with two groups of 32 terms in
// a vector.
//
// Bytes of weights are signed, but the multiplication needs one unsigned operand. So 128 is added
// to the weights, and the sum starts with the negative of what that adds.

#if HAVE_VNNI
#    define DQ_ROWS 16 // rows for which it pays; for more, or without the instruction, unpacking columns once is better
#else
#    define DQ_ROWS 4
#endif
#define DQ_X 4
#define DQ_GROUPS 2 // in a vector

static ALWAYS_INLINE vi dq_levels_(const char * w, int groups) {
    const __m256i low = _mm256_loadu_si256((const __m256i *) (const void *) (w + GB_AT(q8_0, qs)));
    if (groups == 1) {
        return _mm512_zextsi256_si512(low);
    }
    return _mm512_inserti64x4(_mm512_castsi256_si512(low),
        _mm256_loadu_si256((const __m256i *) (const void *) (w + DQ_SIZE + GB_AT(q8_0, qs))), 1);
}
static ALWAYS_INLINE vi dq_row_(const int8_t * q, int groups) {
    return groups == 1 ? _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *) (const void *) q))
                       : _mm512_loadu_si512(q);
}
static ALWAYS_INLINE vf dq_spread_(const float * d, int groups) { // d of one group in each half of the lanes
    const __m512 two = _mm512_maskz_loadu_ps((__mmask16) (groups == 1 ? 1 : 3), d);
    return _mm512_permutexvar_ps(_mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0), two);
}
static ALWAYS_INLINE short dq_half_(const char * w) {
    short half;
    memcpy(&half, w, sizeof(half));
    return half;
}
static ALWAYS_INLINE void dq_scales_(const char * const w[DQ_W], int groups, vf d[DQ_W]) {
    const size_t next = groups == 1 ? 0 : DQ_SIZE;
    const __m512 all = _mm512_castps256_ps512(_mm256_cvtph_ps(_mm_set_epi16(dq_half_(w[3] + next), dq_half_(w[3]),
        dq_half_(w[2] + next), dq_half_(w[2]), dq_half_(w[1] + next), dq_half_(w[1]), dq_half_(w[0] + next),
        dq_half_(w[0]))));
    const __m512i lane = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    UNROLL
    for (int i = 0; i < DQ_W; i++) {
        d[i] = _mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(2 * i)), all);
    }
}
#define DQ_START(q) _mm512_sub_epi32(vi_set(0), vi_dot4w(vi_set(0), _mm512_set1_epi8(-128), q))
#define DQ_DOT(start, w, q) vi_dot4w(start, vi_xor(w, _mm512_set1_epi8(-128)), q)
