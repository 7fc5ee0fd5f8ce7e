// rows_columns_avx512.tpl.h - the sums of a tile of rows_columns.tpl.h on AVX-512, transposed four
// by four in registers.

// The sums of 4 columns by 4 rows. Vector r of `sums` has the columns of row r in its lanes.
static ALWAYS_INLINE void rc_sums_(vf acc[RC_W][RC_X], int first, int last, __m128 sums[4]) {
    vf u[RC_W];
    UNROLL
    for (int i = 0; i < RC_W; i++) {
        const vf low = half_sums_(acc[i][first], acc[i][first + 1 < last ? first + 1 : last]);
        const vf high =
            half_sums_(acc[i][first + 2 < last ? first + 2 : last], acc[i][first + 3 < last ? first + 3 : last]);
        u[i] = half_sums_(low, high); // a row in each quarter, four parts of its sum
    }
    const vf a = v_add(_mm512_unpacklo_ps(u[0], u[1]), _mm512_unpackhi_ps(u[0], u[1]));
    const vf b = v_add(_mm512_unpacklo_ps(u[2], u[3]), _mm512_unpackhi_ps(u[2], u[3]));
    const vf c = v_add(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    sums[0] = _mm512_castps512_ps128(c);
    sums[1] = _mm512_extractf32x4_ps(c, 1);
    sums[2] = _mm512_extractf32x4_ps(c, 2);
    sums[3] = _mm512_extractf32x4_ps(c, 3);
}

static ALWAYS_INLINE void rc_store_(int nx, vf acc[RC_W][RC_X], int nw, float * y, int64_t ldy, bool accumulate) {
    const __mmask8 lanes = (__mmask8) (0xf >> (4 - nw));
    UNROLL
    for (int j0 = 0; j0 < nx; j0 += 4) {
        __m128 sums[4];
        rc_sums_(acc, j0, nx - 1, sums);
        UNROLL
        for (int j = 0; j < 4; j++) {
            float * const p = y + (j0 + j) * ldy;
            if (j0 + j < nx) {
                _mm_mask_storeu_ps(p, lanes, accumulate ? _mm_add_ps(_mm_maskz_loadu_ps(lanes, p), sums[j]) : sums[j]);
            }
        }
    }
}
