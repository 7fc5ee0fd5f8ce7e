// dots.tpl.h - dot products of a few columns of weights with a few rows of floats, all in registers: what few rows are multiplied with.
//
// y[j * DOTS_W + i] = sum over k of w_i x_j for i < nw <= DOTS_W, j < nx <= DOTS_X. Every sum is made in an order that depends on k and nx
// only, so that it does not matter which columns are taken together. Each weight is read and widened once.

#if V_N == 8 || V_N == 1 // 16 registers
#    define DOTS_W 2
#else
#    define DOTS_W 4
#endif
#define DOTS_X 4

#if defined(__GNUC__)
#    define DOTS_AHEAD(p) __builtin_prefetch((const char *) (p) + 2048)
#else
#    define DOTS_AHEAD(p) (void) (p)
#endif

#define DOTS(name, T, LOAD)                                                                                            \
    static ALWAYS_INLINE void name##_tile_(int nw, int nx, int64_t k, float * y, const T * const * w, const float * const * x) { \
        const int chains = nx == 1 ? 2 : 1;                                                                            \
        vf        acc[DOTS_W][DOTS_X][2];                                                                              \
        int64_t   p = 0;                                                                                               \
        UNROLL                                                                                                         \
        for (int i = 0; i < nw; i++) {                                                                                 \
            UNROLL                                                                                                     \
            for (int j = 0; j < nx; j++) {                                                                             \
                acc[i][j][0] = acc[i][j][1] = v_set(0.0f);                                                             \
            }                                                                                                          \
        }                                                                                                              \
        for (; p + chains * V_N <= k; p += chains * V_N) {                                                             \
            UNROLL                                                                                                     \
            for (int c = 0; c < 2; c++) {                                                                              \
                vf xv[DOTS_X];                                                                                         \
                if (c == chains) {                                                                                     \
                    break;                                                                                             \
                }                                                                                                      \
                UNROLL                                                                                                 \
                for (int j = 0; j < nx; j++) {                                                                         \
                    xv[j] = v_load(x[j] + p + c * V_N);                                                                \
                }                                                                                                      \
                UNROLL                                                                                                 \
                for (int i = 0; i < nw; i++) {                                                                         \
                    const vf wv = LOAD(w[i] + p + c * V_N);                                                            \
                    DOTS_AHEAD(w[i] + p + c * V_N);                                                                    \
                    UNROLL                                                                                             \
                    for (int j = 0; j < nx; j++) {                                                                     \
                        acc[i][j][c] = v_fma(wv, xv[j], acc[i][j][c]);                                                 \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        for (; p < k; p += V_N) {                                                                                      \
            const int n = (int) (k - p < V_N ? k - p : V_N);                                                           \
            UNROLL                                                                                                     \
            for (int i = 0; i < nw; i++) {                                                                             \
                const vf wv = LOAD##_N(w[i] + p, n);                                                                   \
                UNROLL                                                                                                 \
                for (int j = 0; j < nx; j++) {                                                                         \
                    acc[i][j][0] = v_fma(wv, v_load_n(x[j] + p, n), acc[i][j][0]);                                     \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL                                                                                                         \
        for (int i = 0; i < nw; i++) {                                                                                 \
            UNROLL                                                                                                     \
            for (int j = 0; j < nx; j++) {                                                                             \
                y[j * DOTS_W + i] = v_sum(v_add(acc[i][j][0], acc[i][j][1]));                                          \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void name(int64_t k, int nw, int nx, float * y, const void * const * columns, const float * const * x) {    \
        const T * w[DOTS_W] = { 0 };                                                                                   \
        for (int i = 0; i < nw; i++) {                                                                                 \
            w[i] = columns[i];                                                                                         \
        }                                                                                                              \
        if (nw == DOTS_W) {                                                                                            \
            switch (nx) {                                                                                              \
                case 1: name##_tile_(DOTS_W, 1, k, y, w, x); return;                                                   \
                case 2: name##_tile_(DOTS_W, 2, k, y, w, x); return;                                                   \
                case 3: name##_tile_(DOTS_W, 3, k, y, w, x); return;                                                   \
                default: name##_tile_(DOTS_W, 4, k, y, w, x); return;                                                  \
            }                                                                                                          \
        }                                                                                                              \
        for (int i = 0; i < nw; i++) {                                                                                 \
            switch (nx) {                                                                                              \
                case 1: name##_tile_(1, 1, k, y + i, w + i, x); break;                                                 \
                case 2: name##_tile_(1, 2, k, y + i, w + i, x); break;                                                 \
                case 3: name##_tile_(1, 3, k, y + i, w + i, x); break;                                                 \
                default: name##_tile_(1, 4, k, y + i, w + i, x); break;                                                \
            }                                                                                                          \
        }                                                                                                              \
    }

DOTS(dots_f32, float, LOAD_F32)
DOTS(dots_f16, uint16_t, LOAD_F16)
DOTS(dots_bf16, uint16_t, LOAD_BF16)
