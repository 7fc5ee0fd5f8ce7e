// dots.tpl.h - dot products of a few columns of weights with a few rows of floats, all in registers: what few rows are multiplied with.
//
// y[j * DOTS_W + i] = sum over k of w_i x_j for i < nw <= DOTS_W, j < nx <= DOTS_X. Every sum is made in an order that depends on k and nx
// only, so that it does not matter which columns are taken together. Each weight is read and widened once. What lies `ahead` bytes behind a
// weight is asked for while it is multiplied.

#if V_N == 8 || V_N == 1 // 16 registers
#    define DOTS_W 2
#else
#    define DOTS_W 4
#endif
#define DOTS_X 4

#if defined(__GNUC__)
#    define DOTS_AHEAD(p) __builtin_prefetch((const char *) (p) + ahead)
#else
#    define DOTS_AHEAD(p) (void) ((const char *) (p) + ahead)
#endif

// Compilers read a vector again for every product with it, if they may: loads are then what the loop waits for.
#if defined(__GNUC__) && V_N == 16
#    define IN_REGISTER(v) __asm__("" : "+v"(v))
#elif defined(__GNUC__) && V_N == 8
#    define IN_REGISTER(v) __asm__("" : "+x"(v))
#else
#    define IN_REGISTER(v) (void) (v)
#endif

// Of the lanes, for each row.
static ALWAYS_INLINE void sums_(int nx, vf acc[DOTS_X][2], float * y) {
    UNROLL
    for (int j = 0; j < nx; j++) {
        y[j] = v_sum(v_add(acc[j][0], acc[j][1]));
    }
}

#define DOTS(name, T, LOAD)                                                                                            \
    static ALWAYS_INLINE void name##_tile_(int nw, int nx, int64_t k, float * y, const T * const * w, const float * const * x, size_t ahead) { \
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
                vf wv[DOTS_W];                                                                                         \
                if (c == chains) {                                                                                     \
                    break;                                                                                             \
                }                                                                                                      \
                UNROLL                                                                                                 \
                for (int i = 0; i < nw; i++) {                                                                         \
                    wv[i] = LOAD(w[i] + p + c * V_N);                                                                  \
                    DOTS_AHEAD(w[i] + p + c * V_N);                                                                    \
                    IN_REGISTER(wv[i]);                                                                                \
                }                                                                                                      \
                UNROLL                                                                                                 \
                for (int j = 0; j < nx; j++) {                                                                         \
                    vf xv = v_load(x[j] + p + c * V_N);                                                                \
                    IN_REGISTER(xv);                                                                                   \
                    UNROLL                                                                                             \
                    for (int i = 0; i < nw; i++) {                                                                     \
                        acc[i][j][c] = v_fma(wv[i], xv, acc[i][j][c]);                                                 \
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
            float sums[DOTS_X];                                                                                        \
            sums_(nx, acc[i], sums);                                                                                   \
            UNROLL                                                                                                     \
            for (int j = 0; j < nx; j++) {                                                                             \
                y[j * DOTS_W + i] = sums[j];                                                                           \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void name(int64_t k, int nw, int nx, float * y, const void * const * columns, const float * const * x, size_t ahead) { \
        const T * w[DOTS_W] = { 0 };                                                                                   \
        for (int i = 0; i < nw; i++) {                                                                                 \
            w[i] = columns[i];                                                                                         \
        }                                                                                                              \
        for (int i = 0; i < nw; i += nw == DOTS_W ? DOTS_W : 1) {                                                      \
            switch (nx + (nw == DOTS_W ? DOTS_X : 0)) {                                                                \
                DOTS_CASE(name, 0, 1, 1)                                                                               \
                DOTS_CASE(name, 0, 1, 2)                                                                               \
                DOTS_CASE(name, 0, 1, 3)                                                                               \
                DOTS_CASE(name, 0, 1, 4)                                                                               \
                DOTS_CASE(name, 4, DOTS_W, 1)                                                                          \
                DOTS_CASE(name, 4, DOTS_W, 2)                                                                          \
                DOTS_CASE(name, 4, DOTS_W, 3)                                                                          \
                DOTS_CASE(name, 4, DOTS_W, 4)                                                                          \
                default: break;                                                                                        \
            }                                                                                                          \
        }                                                                                                              \
    }
#define DOTS_CASE(name, whole, w_n, x_n)                                                                               \
    case whole + x_n: name##_tile_(w_n, x_n, k, y + i, w + i, x, ahead); break;

DOTS(dots_f32, float, LOAD_F32)
DOTS(dots_f16, uint16_t, LOAD_F16)
DOTS(dots_bf16, uint16_t, LOAD_BF16)
