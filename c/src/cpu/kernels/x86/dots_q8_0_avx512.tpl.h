// dots_q8_0_avx512.tpl.h - the body of dots_q8_0.tpl.h for AVX-512.
//
// Bytes of weights are signed, but the multiplication needs one unsigned operand. So 128 is added
// to the weights.

#if HAVE_VNNI
#    define DQ_ROWS 16 // rows for which it pays; for more, or without the instruction, unpacking columns once is better
#else
#    define DQ_ROWS 4
#endif
#define DQ_X 4
#define DQ_BIAS 128
#define DQ_DOT(sum, w, q) vi_dot4w(sum, w, q)
#define DQ_LOW(bits, a, b) _mm512_unpacklo_epi##bits(a, b)
#define DQ_HIGH(bits, a, b) _mm512_unpackhi_epi##bits(a, b)

static ALWAYS_INLINE __m128i dq_bytes_(const char * w) { return _mm_loadu_si128((const __m128i *) (const void *) w); }

// Sixteen bytes of four columns.
static ALWAYS_INLINE vi dq_quarters_(const char * w, size_t nb_w) {
    const vi a = _mm512_inserti32x4(_mm512_castsi128_si512(dq_bytes_(w)), dq_bytes_(w + nb_w), 1);
    return _mm512_inserti32x4(_mm512_inserti32x4(a, dq_bytes_(w + 2 * nb_w), 2), dq_bytes_(w + 3 * nb_w), 3);
}
