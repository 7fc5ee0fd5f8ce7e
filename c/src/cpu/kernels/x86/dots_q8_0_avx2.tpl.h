// dots_q8_0_avx2.tpl.h - the body of dots_q8_0.tpl.h for AVX2, with a group of 32 terms in a
// vector.
//
// Bytes of weights are signed, but the multiplication needs one unsigned operand. So the signs of
// the weights are moved to the row.

#define DQ_ROWS 8
#define DQ_X 1
#define DQ_GROUPS 1

static ALWAYS_INLINE vi dq_levels_(const char * w, int groups) {
    (void) groups;
    return _mm256_loadu_si256((const __m256i *) (const void *) (w + GB_AT(q8_0, qs)));
}
static ALWAYS_INLINE vi dq_row_(const int8_t * q, int groups) {
    (void) groups;
    return _mm256_loadu_si256((const __m256i *) (const void *) q);
}
static ALWAYS_INLINE vf dq_spread_(const float * d, int groups) {
    (void) groups;
    return v_set(d[0]);
}
static ALWAYS_INLINE void dq_scales_(const char * const w[DQ_W], int groups, vf d[DQ_W]) {
    (void) groups;
    UNROLL
    for (int i = 0; i < DQ_W; i++) {
        uint16_t half;
        memcpy(&half, w[i], sizeof(half));
        d[i] = _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
    }
}
#define DQ_START(q) vi_set(0)
#define DQ_DOT(start, w, q) vi_dot4(start, _mm256_abs_epi8(w), _mm256_sign_epi8(q, w))
