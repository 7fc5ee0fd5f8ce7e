// int8_avx2.tpl.h - int8.tpl.h on AVX2: spreads scales over lanes.

static ALWAYS_INLINE vf spread_(const float * d, int lanes) {
    if (lanes == 8) {
        return _mm256_set1_ps(d[0]);
    }
    return _mm256_insertf128_ps(_mm256_set1_ps(d[0]), _mm_set1_ps(d[1]), 1);
}
