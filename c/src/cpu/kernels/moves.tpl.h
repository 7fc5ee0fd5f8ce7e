// moves.tpl.h - transposes squares of V_N x V_N in registers, so that whole cache lines are read and written.
//
// d[c][r] = s[r][c] for r < rows, c < columns; strides in bytes between rows of s and of d.
// Elements of 2 bytes are widened to lanes of 4 bytes in registers.

static inline const void * source_(const void * s, size_t stride, int64_t r, int64_t c, size_t size) {
    return (const char *) s + (size_t) r * stride + (size_t) c * size;
}
static inline void * target_(void * d, size_t stride, int64_t r, int64_t c, size_t size) {
    return (char *) d + (size_t) c * stride + (size_t) r * size;
}

#define TRANSPOSE(name, T, LOAD, LOAD_N, STORE, STORE_N)                                                               \
    static inline void name##_square_(T * d, size_t ds, const T * s, size_t ss) {                                      \
        vf t[V_N];                                                                                                     \
        _Pragma("GCC unroll 16") for (int i = 0; i < V_N; i++) {                                                       \
            t[i] = LOAD((const T *) source_(s, ss, i, 0, sizeof(T)));                                                  \
        }                                                                                                              \
        v_transpose(t);                                                                                                \
        _Pragma("GCC unroll 16") for (int i = 0; i < V_N; i++) { STORE((T *) target_(d, ds, 0, i, sizeof(T)), t[i]); } \
    }                                                                                                                  \
    static void name##_part_(int rows, int columns, T * d, size_t ds, const T * s, size_t ss) {                        \
        vf t[V_N];                                                                                                     \
        for (int i = 0; i < V_N; i++) {                                                                                \
            t[i] = i < rows ? LOAD_N((const T *) source_(s, ss, i, 0, sizeof(T)), columns) : v_set(0.0f);              \
        }                                                                                                              \
        v_transpose(t);                                                                                                \
        for (int i = 0; i < columns; i++) {                                                                            \
            STORE_N((T *) target_(d, ds, 0, i, sizeof(T)), t[i], rows);                                                \
        }                                                                                                              \
    }                                                                                                                  \
    static void name(int64_t rows, int64_t columns, T * d, size_t ds, const T * s, size_t ss) {                        \
        for (int64_t c = 0; c < columns; c += V_N) {                                                                   \
            const int width = (int) (columns - c < V_N ? columns - c : V_N);                                           \
            for (int64_t r = 0; r < rows; r += V_N) {                                                                  \
                const int height = (int) (rows - r < V_N ? rows - r : V_N);                                            \
                T * to = target_(d, ds, r, c, sizeof(T));                                                              \
                const T * from = source_(s, ss, r, c, sizeof(T));                                                      \
                if (width == V_N && height == V_N) {                                                                   \
                    name##_square_(to, ds, from, ss);                                                                  \
                } else {                                                                                               \
                    name##_part_(height, width, to, ds, from, ss);                                                     \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }

#define LOAD_WORD(p) v_load((const float *) (const void *) (p))
#define LOAD_WORD_N(p, n) v_load_n((const float *) (const void *) (p), n)
#define STORE_WORD(p, a) v_store((float *) (void *) (p), a)
#define STORE_WORD_N(p, a, n) v_store_n((float *) (void *) (p), a, n)
#define LOAD_HALFWORD(p) v_from_bits(v_load_u16(p))
#define LOAD_HALFWORD_N(p, n) v_from_bits(v_load_u16_n(p, n))
#define STORE_HALFWORD(p, a) v_store_u16(p, v_bits(a))
#define STORE_HALFWORD_N(p, a, n) v_store_u16_n(p, v_bits(a), n)

TRANSPOSE(transpose_32, uint32_t, LOAD_WORD, LOAD_WORD_N, STORE_WORD, STORE_WORD_N)
TRANSPOSE(transpose_16, uint16_t, LOAD_HALFWORD, LOAD_HALFWORD_N, STORE_HALFWORD, STORE_HALFWORD_N)

// Stores whole vectors that bypass the caches if the instruction set can. Loads from memory would
// wait for these stores, so the floats at `next` are prefetched.
static void stream_f32(int64_t n, float * y, const float * x, const float * next, bool last) {
#if HAVE_STREAM
    int64_t i = 0;
    for (; i < n && (uintptr_t) (y + i) % (V_N * sizeof(float)) != 0; i++) {
        y[i] = x[i];
    }
    for (; i + V_N <= n; i += V_N) {
        PREFETCH(next + i);
        v_stream(y + i, v_load(x + i));
    }
    for (; i < n; i++) {
        y[i] = x[i];
    }
    if (last) {
        stream_done_();
    }
#else
    (void) last, (void) next;
    if (n > 0) {
        memcpy(y, x, (size_t) n * sizeof(float));
    }
#endif
}
