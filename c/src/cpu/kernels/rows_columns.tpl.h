// rows_columns.tpl.h - products of columns of weights and few rows of floats, both read in place,
// with a tile of sums in registers. For so few rows, packing the weights does not pay.
//
// A tile is 4 columns by at most RC_X rows. Each step loads a vector of each row and column and
// multiplies every pair. At the end the lanes of each sum are added, in the same order for all
// places in the tile. So a result depends on k alone, not on the other rows and columns. Columns
// and rows have constant distances, so that a few addresses are enough and stay in registers.
//
// The steps prefetch each cache line of the next tile once, in turns. Bursts of prefetches between
// two tiles would fill the queue of outstanding loads and stall the arithmetic. Lines go to the
// second-level cache (compiler.h), and to the first-level cache just before their use.

#define RC_W 4
#define RC_LINE 64 // bytes of a cache line
#define RC_NEAR 384 // distance of prefetches to the first-level cache, in bytes
#if V_REGISTERS < 32
#    define RC_X GB_ROWS_X_NARROW
#else
#    define RC_X 6
#endif

#if V_ISA_AVX512
#    include "x86/rows_columns_avx512.tpl.h"
#else
static ALWAYS_INLINE void rc_store_(int nx, vf acc[RC_W][RC_X], int nw, float * y, int64_t ldy, bool accumulate) {
    for (int j = 0; j < nx; j++) {
        for (int i = 0; i < nw; i++) {
            const float sum = v_sum(acc[i][j]);
            y[j * ldy + i] = accumulate ? y[j * ldy + i] + sum : sum;
        }
    }
}
#endif

#define ROWS_COLUMNS(name, T, LOAD)                                                                                 \
    enum { name##_line_ = RC_LINE / sizeof(T) < V_N ? V_N : RC_LINE / sizeof(T) };                                  \
    static ALWAYS_INLINE void name##_step_(int nx, const T * const * c, const float * const * r, int64_t p,         \
        vf acc[RC_W][RC_X]) {                                                                                       \
        vf wv[RC_W];                                                                                                \
        UNROLL                                                                                                      \
        for (int i = 0; i < RC_W; i++) {                                                                            \
            wv[i] = LOAD(c[i] + p);                                                                                 \
            IN_REGISTER(wv[i]);                                                                                     \
        }                                                                                                           \
        UNROLL                                                                                                      \
        for (int j = 0; j < nx; j++) {                                                                              \
            vf xv = v_load(r[j] + p);                                                                               \
            IN_REGISTER(xv);                                                                                        \
            UNROLL                                                                                                  \
            for (int i = 0; i < RC_W; i++) {                                                                        \
                acc[i][j] = v_fma(wv[i], xv, acc[i][j]);                                                            \
            }                                                                                                       \
        }                                                                                                           \
    }                                                                                                               \
    static ALWAYS_INLINE void name##_tile_(int nx, int64_t k, int nw, const char * w, size_t nb_w, const float * x, \
        size_t ldx, float * y, int64_t ldy, bool accumulate, const char * const * next) {                           \
        vf acc[RC_W][RC_X];                                                                                         \
        const T * c[RC_W];                                                                                          \
        const char * later[RC_W];                                                                                   \
        const float * r[RC_X];                                                                                      \
        int64_t p = 0;                                                                                              \
        UNROLL                                                                                                      \
        for (int i = 0; i < RC_W; i++) { /* for a missing column: column 0, whose sums are dropped */               \
            c[i] = (const T *) (const void *) (w + (size_t) (i < nw ? i : 0) * nb_w);                               \
            later[i] = next != NULL ? next[i] : (const char *) c[i];                                                \
            UNROLL                                                                                                  \
            for (int j = 0; j < nx; j++) {                                                                          \
                acc[i][j] = v_set(0.0f);                                                                            \
            }                                                                                                       \
        }                                                                                                           \
        UNROLL                                                                                                      \
        for (int j = 0; j < nx; j++) {                                                                              \
            r[j] = x + (size_t) j * ldx;                                                                            \
        }                                                                                                           \
        for (; p + name##_line_ <= k; p += name##_line_) {                                                          \
            UNROLL                                                                                                  \
            for (int s = 0; s < name##_line_ / V_N; s++) {                                                          \
                UNROLL                                                                                              \
                for (int i = s; i < RC_W; i += name##_line_ / V_N) {                                                \
                    PREFETCH((const char *) (c[i] + p) + RC_NEAR);                                                  \
                    PREFETCH_L2(later[i] + (size_t) p * sizeof(T));                                                 \
                }                                                                                                   \
                name##_step_(nx, c, r, p + s * V_N, acc);                                                           \
            }                                                                                                       \
        }                                                                                                           \
        for (; p + V_N <= k; p += V_N) {                                                                            \
            name##_step_(nx, c, r, p, acc);                                                                         \
        }                                                                                                           \
        if (p < k) {                                                                                                \
            const int n = (int) (k - p);                                                                            \
            UNROLL                                                                                                  \
            for (int i = 0; i < RC_W; i++) {                                                                        \
                const vf wv = LOAD##_N(c[i] + p, n);                                                                \
                UNROLL                                                                                              \
                for (int j = 0; j < nx; j++) {                                                                      \
                    acc[i][j] = v_fma(wv, v_load_n(r[j] + p, n), acc[i][j]);                                        \
                }                                                                                                   \
            }                                                                                                       \
        }                                                                                                           \
        rc_store_(nx, acc, nw, y, ldy, accumulate);                                                                 \
    }                                                                                                               \
    static void name(const struct gb_rows_columns * a) {                                                            \
        switch (a->nx) {                                                                                            \
            RC_CASES(name)                                                                                          \
            default: break;                                                                                         \
        }                                                                                                           \
    }
#define RC_CASE(name, n) \
    case n: name##_tile_(n, a->k, a->nw, a->w, a->nb_w, a->x, a->ldx, a->y, a->ldy, a->accumulate, a->next); break;
#if V_REGISTERS < 32
#    define RC_CASES(name) RC_CASE(name, 1) RC_CASE(name, 2)
#else
#    define RC_CASES(name) \
    RC_CASE(name, 1) RC_CASE(name, 2) RC_CASE(name, 3) RC_CASE(name, 4) RC_CASE(name, 5) RC_CASE(name, 6)
#endif

ROWS_COLUMNS(rows_columns_f32, float, LOAD_F32)
ROWS_COLUMNS(rows_columns_f16, uint16_t, LOAD_F16)
ROWS_COLUMNS(rows_columns_bf16, uint16_t, LOAD_BF16)
