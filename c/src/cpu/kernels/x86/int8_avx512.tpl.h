// int8_avx512.tpl.h - int8.tpl.h on AVX-512: rounds activations to bytes four groups at a time, and
// multiplies sixteen groups of a column by a few rows.

// The largest of the sixteen lanes, for each of four vectors.
static ALWAYS_INLINE __m128i largest_of_four_(const __m512i v[4]) {
    const __m512i a = _mm512_max_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    const __m512i b = _mm512_max_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    const __m512i c = _mm512_max_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    const __m256i d = _mm256_max_epi32(_mm512_castsi512_si256(c), _mm512_extracti64x4_epi64(c, 1));
    return _mm_max_epi32(_mm256_castsi256_si128(d), _mm256_extracti128_si256(d, 1));
}

// Rounds four groups of 32, `step` bytes apart in q. The values equal those of quantize_32_, but
// the four reductions are done together.
static ALWAYS_INLINE void quantize_128_(int8_t * q, int64_t step, float d[4], int32_t sums[8], const float * x) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i larger[4];
    UNROLL
    for (int g = 0; g < 4; g++) {
        const __m512i a = v_bits(v_load(x + 32 * g)), b = v_bits(v_load(x + 32 * g + 16));
        larger[g] = _mm512_max_epi32(_mm512_and_si512(a, magnitude), _mm512_and_si512(b, magnitude));
    }
    const __m128 max = _mm_castsi128_ps(largest_of_four_(larger));
    const __mmask8 some = _mm_cmp_ps_mask(max, _mm_set1_ps(GB_LEAST_ACTIVATION), _CMP_NLT_UQ),
                   fits = _mm_cmp_ps_mask(max, _mm_set1_ps(GB_LARGEST_ACTIVATION), _CMP_LT_OQ);
    const __m512 inverse = _mm512_castps128_ps512(_mm_maskz_div_ps(some & fits, _mm_set1_ps(127.0f), max));
    __m512i four[2];
    _mm_storeu_ps(d, _mm_mask_mov_ps(_mm_set1_ps(NAN), fits, _mm_maskz_div_ps(some, max, _mm_set1_ps(127.0f))));
    UNROLL
    for (int h = 0; h < 2; h++) {
        __m256i two[2];
        UNROLL
        for (int g = 2 * h; g < 2 * h + 2; g++) {
            const __m512 scale = _mm512_permutexvar_ps(_mm512_set1_epi32(g), inverse);
            // for infinity and NaN the lowest byte is 0
            const __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(v_load(x + 32 * g), scale));
            const __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(v_load(x + 32 * g + 16), scale));
            two[g % 2] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(low)),
                _mm512_cvtepi32_epi8(high), 1);
            _mm256_storeu_si256((__m256i *) (q + g * step), two[g % 2]);
        }
        four[h] =
            vi_dot4(vi_set(0), _mm512_set1_epi8(1), _mm512_inserti64x4(_mm512_castsi256_si512(two[0]), two[1], 1));
    }
    // In `four`, each half of a group has four lanes. Those of the first two groups and of the last
    // two groups are added side by side.
    __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi32(four[0], four[1]), _mm512_unpackhi_epi32(four[0], four[1]));
    all = _mm512_add_epi32(all, _mm512_shuffle_epi32(all, _MM_PERM_BADC));
    _mm256_storeu_si256((__m256i *) sums,
        _mm512_castsi512_si256(_mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0,
                                                            0),
            all)));
}

static ALWAYS_INLINE vf spread_(const float * d, int lanes) {
    if (lanes == 8) {
        return _mm512_mask_broadcastss_ps(_mm512_set1_ps(d[0]), 0xff00, _mm_load_ss(d + 1));
    }
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
        _mm512_castps128_ps512(_mm_loadu_ps(d)));
}

// Sixteen groups: their scales are one vector. A permutation gives each vector of terms its scales.
static ALWAYS_INLINE void dot_groups_(int n, bool halves, bool wide, const uint8_t * u, const float * d, int64_t i,
    const int8_t * const * q, const float * const * dx, vf acc[GB_DOT_Q8_ROWS][2]) {
    const vi ramp = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const vi pairs = _mm512_srli_epi32(ramp, 1), lanes = _mm512_srli_epi32(ramp, halves ? 2 : 3);
    vf scale[GB_DOT_Q8_ROWS];
    UNROLL
    for (int j = 0; j < n; j++) {
        const vf x = halves ? _mm512_permutexvar_ps(pairs, _mm512_castps256_ps512(_mm256_loadu_ps(dx[j] + i / 32)))
                            : v_load(dx[j] + i / 32);
        scale[j] = v_mul(v_load(d), x);
    }
    UNROLL
    for (int v = 0; v < 8; v++) {
        if (halves && v >= 4) {
            break;
        }
        const vb w = vb_load(u + 64 * v);
        const vi index = vi_add(lanes, vi_set(halves ? 4 * v : 2 * v));
        UNROLL
        for (int j = 0; j < n; j++) {
            const vb x = vb_load(q[j] + i + 64 * v);
            const vi sum = wide ? vi_dot4w(vi_set(0), w, x) : vi_dot4(vi_set(0), w, x);
            acc[j][v % 2] = v_fma(v_from_int(sum), _mm512_permutexvar_ps(index, scale[j]), acc[j][v % 2]);
        }
    }
}
