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

#define DQ_W     4
#define DQ_SIZE  GB_BYTES(q8_0)
#define DQ_LATER 32 // columns that are asked for before they are needed

#if V_ISA_AVX512
#    include "x86/dots_q8_0_avx512.tpl.h"
#elif V_ISA_AVX2
#    include "x86/dots_q8_0_avx2.tpl.h"
#else
#    define DQ_ROWS 0 // no body: dots_q8_0 does nothing
#endif

#if DQ_ROWS > 0
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

static bool dots_q8_0(int64_t k, int64_t n, int nx, const void * w, size_t nb_w, const int8_t * const * q,
    const float * const * dx, float * y, int64_t ldy) {
    (void) k, (void) n, (void) nx, (void) w, (void) nb_w, (void) q, (void) dx, (void) y, (void) ldy;
    return false;
}
#endif
