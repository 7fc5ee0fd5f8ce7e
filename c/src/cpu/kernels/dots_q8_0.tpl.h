// dots_q8_0.tpl.h - short columns of Q8_0 as they lie, times a few rows that were rounded to bytes: the keys of a cache
// times queries.
//
// A tile is 4 columns by at most DQ_X rows, its sums in registers, one scale for each group of 32 terms in the lanes
// that hold its sums. To unpack columns first, one by one, takes several times as long as multiplying a hundred terms.
// Columns that come later are asked for: keys of a head do not lie together. A result depends on k alone, not on what
// it is computed with.
//
// Bytes of weights are signed, and what multiplies them wants one side unsigned: with 256 bits both signs go to the
// row, with 512 bits 128 is added to the weights and what that adds to the sum is taken off its start.

#if V_N == 16 || (V_N == 8 && defined(__F16C__))
#    define DQ_W     4
#    define DQ_SIZE  GB_BYTES(q8_0)
#    define DQ_LATER 32 // columns that are asked for before they are needed

#    if V_N == 16
#        ifdef __AVX512VNNI__
#            define DQ_ROWS 16 // are worth it: for more, or without the instruction, columns are better unpacked once
#        else
#            define DQ_ROWS 4
#        endif
#        define DQ_X      4
#        define DQ_GROUPS 2 // in a vector

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
static ALWAYS_INLINE vf dq_spread_(const float * d, int groups) { // of one group each over half the lanes
    const __m512 two = _mm512_maskz_loadu_ps((__mmask16) (groups == 1 ? 1 : 3), d);
    return _mm512_permutexvar_ps(_mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0), two);
}
static ALWAYS_INLINE short dq_half_(const char * w) {
    short half;
    memcpy(&half, w, sizeof(half));
    return half;
}
static ALWAYS_INLINE void dq_scales_(const char * const w[DQ_W], int groups, vf d[DQ_W]) {
    const size_t  next = groups == 1 ? 0 : DQ_SIZE;
    const __m512  all  = _mm512_castps256_ps512(_mm256_cvtph_ps(_mm_set_epi16(dq_half_(w[3] + next), dq_half_(w[3]),
        dq_half_(w[2] + next), dq_half_(w[2]), dq_half_(w[1] + next), dq_half_(w[1]), dq_half_(w[0] + next),
        dq_half_(w[0]))));
    const __m512i lane = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    UNROLL
    for (int i = 0; i < DQ_W; i++) {
        d[i] = _mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(2 * i)), all);
    }
}
#        define DQ_START(q)         _mm512_sub_epi32(vi_set(0), vi_dot4w(vi_set(0), _mm512_set1_epi8(-128), q))
#        define DQ_DOT(start, w, q) vi_dot4w(start, vi_xor(w, _mm512_set1_epi8(-128)), q)

#    else
#        define DQ_ROWS             8
#        define DQ_X                1
#        define DQ_GROUPS           1

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
#        define DQ_START(q)         vi_set(0)
#        define DQ_DOT(start, w, q) vi_dot4(start, _mm256_abs_epi8(w), _mm256_sign_epi8(q, w))
#    endif

static ALWAYS_INLINE void dq_groups_(int nx, int groups, const char * const w[DQ_W], const int8_t * const * q,
    const float * const * dx, int64_t g, vf acc[RC_W][RC_X]) {
    vi u[DQ_W];
    vf d[DQ_W];
    dq_scales_(w, groups, d);
    UNROLL
    for (int i = 0; i < DQ_W; i++) {
        u[i] = dq_levels_(w[i], groups);
    }
    UNROLL
    for (int j = 0; j < nx; j++) {
        const vi x = dq_row_(q[j] + 32 * g, groups), start = DQ_START(x);
        const vf s = dq_spread_(dx[j] + g, groups);
        UNROLL
        for (int i = 0; i < DQ_W; i++) {
            acc[i][j] = v_fma(v_from_int(DQ_DOT(start, u[i], x)), v_mul(d[i], s), acc[i][j]);
        }
    }
}

static ALWAYS_INLINE void dq_tile_(int nx, int64_t k, int nw, const char * w, size_t nb_w, const int8_t * const * q,
    const float * const * dx, float * y, int64_t ldy, size_t later) {
    vf           acc[RC_W][RC_X];
    const char * c[DQ_W];
    int64_t      g = 0;
    UNROLL
    for (int i = 0; i < DQ_W; i++) { // a column that is not there: another one, whose sums are dropped
        c[i] = w + (size_t) (i < nw ? i : 0) * nb_w;
        UNROLL
        for (int j = 0; j < nx; j++) {
            acc[i][j] = v_set(0.0f);
        }
    }
    for (; g + DQ_GROUPS <= k / 32; g += DQ_GROUPS) {
        dq_groups_(nx, DQ_GROUPS, c, q, dx, g, acc);
        UNROLL
        for (int i = 0; i < DQ_W; i++) {
            ASK(c[i] + later);
            ASK(c[i] + later + DQ_GROUPS * DQ_SIZE - 1);
            c[i] += DQ_GROUPS * DQ_SIZE;
        }
    }
    if (g < k / 32) {
        dq_groups_(nx, 1, c, q, dx, g, acc);
    }
    rc_store_(nx, acc, nw, y, ldy, false);
}

static bool dots_q8_0(int64_t k, int64_t n, int nx, const void * w, size_t nb_w, const int8_t * const * q,
    const float * const * dx, float * y, int64_t ldy) {
    const char * column = w;
    for (int64_t i = 0; i < n; i += DQ_W, column += DQ_W * nb_w) {
        const int    nw    = n - i < DQ_W ? (int) (n - i) : DQ_W;
        const size_t later = DQ_LATER * nb_w;
        for (int j = 0; j < nx; j += DQ_X) {
            switch (nx - j < DQ_X ? nx - j : DQ_X) {
                case 1: dq_tile_(1, k, nw, column, nb_w, q + j, dx + j, y + j * ldy + i, ldy, later); break;
#    if DQ_X > 1
                case 2: dq_tile_(2, k, nw, column, nb_w, q + j, dx + j, y + j * ldy + i, ldy, later); break;
                case 3: dq_tile_(3, k, nw, column, nb_w, q + j, dx + j, y + j * ldy + i, ldy, later); break;
                case 4: dq_tile_(4, k, nw, column, nb_w, q + j, dx + j, y + j * ldy + i, ldy, later); break;
#    endif
                default: break;
            }
        }
    }
    return true;
}

#else
#    define DQ_ROWS 0

static bool dots_q8_0(int64_t k, int64_t n, int nx, const void * w, size_t nb_w, const int8_t * const * q,
    const float * const * dx, float * y, int64_t ldy) {
    (void) k, (void) n, (void) nx, (void) w, (void) nb_w, (void) q, (void) dx, (void) y, (void) ldy;
    return false;
}
#endif
