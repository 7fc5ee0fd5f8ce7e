// sum_avx512.tpl.h - the sum of a row (reduce.tpl.h) with vectors of 256 bits, because Zen 4 widens
// floats faster in them than in vectors of 512 bits. Intel's processors widen both at the same
// rate. The terms of a lane and their order are those of vd_add, so the bits are the same.

static ALWAYS_INLINE vd wide_of_(const __m256d s[4]) {
    return (vd) { _mm512_insertf64x4(_mm512_castpd256_pd512(s[0]), s[1], 1),
        _mm512_insertf64x4(_mm512_castpd256_pd512(s[2]), s[3], 1) };
}

static double sum_f32(int64_t n, const float * x) {
    const __m256d one = _mm256_set1_pd(1.0); // as in sum_f64_
    __m256d s[8];
    int64_t i = 0;
    UNROLL
    for (int j = 0; j < 8; j++) {
        s[j] = _mm256_setzero_pd();
    }
    for (; i + 2 * V_N <= n; i += 2 * V_N) {
        UNROLL
        for (int j = 0; j < 8; j++) {
            s[j] = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm_loadu_ps(x + i + 4 * j)), one, s[j]);
        }
    }
    vd s0 = wide_of_(s);
    for (; i < n; i += V_N) {
        const int left = (int) (n - i < V_N ? n - i : V_N);
        s0 = vd_add(s0, v_load_n(x + i, left));
    }
    return vd_sum(vd_join(s0, wide_of_(s + 4)));
}
