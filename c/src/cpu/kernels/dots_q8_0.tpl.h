// dots_q8_0.tpl.h - short columns of Q8_0, read in place, times a few rows that were rounded to
// bytes. It multiplies the keys of a cache with queries.
//
// A tile is 4 columns by at most DQ_X rows. Its sums stay in registers. A vector holds the scale of
// each group of 32 terms in the lanes of its sums. Unpacking single columns first takes several
// times as long as multiplying a hundred terms. Later columns are prefetched, because the keys of a
// head are not contiguous. A result depends on k alone, not on the other rows and columns.
//
// A body for an instruction set (x86/dots_q8_0_*.tpl.h) defines DQ_ROWS, DQ_X, DQ_GROUPS (groups in
// a vector), DQ_START and DQ_DOT (the product of signed bytes), dq_levels_, dq_row_, dq_spread_ and
// dq_scales_.

#define DQ_W 4
#define DQ_SIZE GB_BYTES(q8_0)
#define DQ_LATER 32 // prefetch distance in columns

#if V_ISA_AVX512
#    include "x86/dots_q8_0_avx512.tpl.h"
#elif V_ISA_AVX2
#    include "x86/dots_q8_0_avx2.tpl.h"
#else
#    define DQ_ROWS 0 // no body: dots_q8_0 does nothing
#endif

#if DQ_ROWS > 0
static_assert(DQ_W == RC_W && DQ_X <= RC_X, "the sums of a tile are stored by rows_columns.tpl.h");

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
    vf acc[RC_W][RC_X];
    const char * c[DQ_W];
    int64_t g = 0;
    UNROLL
    for (int i = 0; i < DQ_W; i++) { // missing columns repeat another one, and their sums are not stored
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
            PREFETCH_L2(c[i] + later);
            PREFETCH_L2(c[i] + later + DQ_GROUPS * DQ_SIZE - 1);
            c[i] += DQ_GROUPS * DQ_SIZE;
        }
    }
    if (g < k / 32) {
        dq_groups_(nx, 1, c, q, dx, g, acc);
    }
    rc_store_(nx, acc, nw, y, ldy, false);
}

static bool dots_q8_0(const struct gb_dots_q8_0 * p) {
    const int64_t k = p->k, n = p->n, ldy = p->ldy;
    const size_t nb_w = p->nb_w;
    const char * column = p->w;
    for (int64_t i = 0; i < n; i += DQ_W, column += DQ_W * nb_w) {
        const int nw = n - i < DQ_W ? (int) (n - i) : DQ_W;
        const size_t later = DQ_LATER * nb_w;
        for (int j = 0; j < p->nx; j += DQ_X) {
            const int8_t * const * const q = p->q + j;
            const float * const * const dx = p->dx + j;
            float * const y = p->y + j * ldy + i;
            switch (p->nx - j < DQ_X ? p->nx - j : DQ_X) {
                case 1: dq_tile_(1, k, nw, column, nb_w, q, dx, y, ldy, later); break;
#if DQ_X > 1
                case 2: dq_tile_(2, k, nw, column, nb_w, q, dx, y, ldy, later); break;
                case 3: dq_tile_(3, k, nw, column, nb_w, q, dx, y, ldy, later); break;
                case 4: dq_tile_(4, k, nw, column, nb_w, q, dx, y, ldy, later); break;
#endif
                default: break;
            }
        }
    }
    return true;
}

#else

static bool dots_q8_0(const struct gb_dots_q8_0 * p) {
    (void) p;
    return false;
}
#endif
