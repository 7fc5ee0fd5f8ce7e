// dots_q8_0_avx2.tpl.h - the body of dots_q8_0.tpl.h for AVX2.
//
// Bytes of weights are signed, but the multiplication needs one unsigned operand. So the signs of
// the weights are moved to the row.

#define DQ_ROWS 8
#define DQ_X 2
#define DQ_BIAS 0
#define DQ_DOT(sum, w, q) vi_dot4(sum, _mm256_abs_epi8(w), _mm256_sign_epi8(q, w))
#define DQ_LOW(bits, a, b) _mm256_unpacklo_epi##bits(a, b)
#define DQ_HIGH(bits, a, b) _mm256_unpackhi_epi##bits(a, b)

static ALWAYS_INLINE __m128i dq_bytes_(const char * w) { return _mm_loadu_si128((const __m128i *) (const void *) w); }

// Sixteen bytes of two columns.
static ALWAYS_INLINE vi dq_quarters_(const char * w, size_t nb_w) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(dq_bytes_(w)), dq_bytes_(w + nb_w), 1);
}
