// dots.tpl.h - dot products of a few columns of weights with one row of floats, all in registers.
//
// y[i] = sum over k of w_i x for i < nw <= DOTS_W. The order of a sum depends on k alone, so a
// result does not depend on the other columns. Each term of the row is read once for all columns.
// The kernel prefetches `ahead` bytes after the weights.

#if V_REGISTERS < 32
#    define DOTS_W 2
#else
#    define DOTS_W 4
#endif

#define DOTS(name, T, LOAD)                                                                                       \
    static ALWAYS_INLINE void name##_tile_(int nw, int64_t k, float * y, const T * const * w, const float * x,    \
        size_t ahead) {                                                                                           \
        vf acc[DOTS_W][2]; /* two chains a column: one would wait for its own sums */                             \
        int64_t p = 0;                                                                                            \
        UNROLL                                                                                                    \
        for (int i = 0; i < nw; i++) {                                                                            \
            acc[i][0] = acc[i][1] = v_set(0.0f);                                                                  \
        }                                                                                                         \
        for (; p + 2 * V_N <= k; p += 2 * V_N) {                                                                  \
            UNROLL                                                                                                \
            for (int c = 0; c < 2; c++) {                                                                         \
                vf xv = v_load(x + p + c * V_N);                                                                  \
                IN_REGISTER(xv);                                                                                  \
                UNROLL                                                                                            \
                for (int i = 0; i < nw; i++) {                                                                    \
                    acc[i][c] = v_fma(LOAD(w[i] + p + c * V_N), xv, acc[i][c]);                                   \
                    PREFETCH_L2((const char *) (w[i] + p + c * V_N) + ahead);                                     \
                }                                                                                                 \
            }                                                                                                     \
        }                                                                                                         \
        for (; p < k; p += V_N) {                                                                                 \
            const int n = (int) (k - p < V_N ? k - p : V_N);                                                      \
            const vf xv = v_load_n(x + p, n);                                                                     \
            UNROLL                                                                                                \
            for (int i = 0; i < nw; i++) {                                                                        \
                acc[i][0] = v_fma(LOAD##_N(w[i] + p, n), xv, acc[i][0]);                                          \
            }                                                                                                     \
        }                                                                                                         \
        UNROLL                                                                                                    \
        for (int i = 0; i < nw; i++) {                                                                            \
            y[i] = v_sum(v_add(acc[i][0], acc[i][1]));                                                            \
        }                                                                                                         \
    }                                                                                                             \
    static void name##_part_(int64_t k, int nw, float * y, const void * const * columns, int64_t from,            \
        const float * x, size_t ahead) {                                                                          \
        const T * w[DOTS_W] = { 0 };                                                                              \
        for (int i = 0; i < nw; i++) {                                                                            \
            w[i] = (const T *) columns[i] + from;                                                                 \
        }                                                                                                         \
        if (nw == DOTS_W) {                                                                                       \
            name##_tile_(DOTS_W, k, y, w, x, ahead);                                                              \
            return;                                                                                               \
        }                                                                                                         \
        for (int i = 0; i < nw; i++) {                                                                            \
            name##_tile_(1, k, y + i, w + i, x, ahead);                                                           \
        }                                                                                                         \
    }                                                                                                             \
    static void name(int64_t k, int nw, float * y, const void * const * columns, const float * x, size_t ahead) { \
        double sum[DOTS_W] = { 0 };                                                                               \
        if (k <= SUM_PART) {                                                                                      \
            name##_part_(k, nw, y, columns, 0, x, ahead);                                                         \
            return;                                                                                               \
        }                                                                                                         \
        for (int64_t p = 0; p < k; p += SUM_PART) { /* reduce.tpl.h */                                            \
            float part[DOTS_W];                                                                                   \
            name##_part_(k - p < SUM_PART ? k - p : SUM_PART, nw, part, columns, p, x + p, ahead);                \
            for (int i = 0; i < nw; i++) {                                                                        \
                sum[i] += (double) part[i];                                                                       \
            }                                                                                                     \
        }                                                                                                         \
        for (int i = 0; i < nw; i++) {                                                                            \
            y[i] = (float) sum[i];                                                                                \
        }                                                                                                         \
    }

DOTS(dots_f32, float, LOAD_F32)
DOTS(dots_f16, uint16_t, LOAD_F16)
DOTS(dots_bf16, uint16_t, LOAD_BF16)
