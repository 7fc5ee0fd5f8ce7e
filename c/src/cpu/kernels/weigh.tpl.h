// weigh.tpl.h - weighted sums of rows of floats or of Q8_0, read in place. They add up the values of a cache.
//
// The sums of some columns stay in registers for all rows, for a few results at a time. Converting
// single rows first stores and loads several times as many bytes.

#if V_ISA_AVX512
#    define WQ_X 4
#elif V_ISA_SCALAR
#    define WQ_X 1
#else
#    define WQ_X 2
#endif
#define WQ_LATER 24 // prefetch distance in rows

enum { WQ_V = 32 / V_N }; // vectors of a block

static inline vf wq_load_(const int8_t * p) {
#if HAVE_LOAD_I8
    return v_load_i8(p);
#else
    float x[V_N];
    for (int i = 0; i < V_N; i++) {
        x[i] = (float) p[i];
    }
    return v_load(x);
#endif
}

// One block of columns of nx <= WQ_X results. x: of the first row. w, y: of the first result.
static ALWAYS_INLINE void wq_block_(int nx, const struct gb_weigh * p, const uint8_t * x, const float * w, float * y) {
    vf sum[WQ_X][WQ_V];
    for (int j = 0; j < nx; j++) {
        UNROLL
        for (int i = 0; i < WQ_V; i++) {
            sum[j][i] = v_load(y + j * p->ldy + i * V_N);
        }
    }
    for (int64_t c = 0; c < p->n; c++, x += p->nb_x) {
        vf q[WQ_V];
        const float d = half_at_(x + GB_AT(q8_0, d));
        PREFETCH_L2(x + WQ_LATER * p->nb_x);
        UNROLL
        for (int i = 0; i < WQ_V; i++) {
            q[i] = wq_load_((const int8_t *) x + GB_AT(q8_0, qs) + i * V_N);
        }
        UNROLL
        for (int j = 0; j < nx; j++) {
            const float weight = w[j * p->ldw + c];
            const vf s = v_set(weight != 0 ? weight * d : 0.0f);
            UNROLL
            for (int i = 0; i < WQ_V; i++) {
                sum[j][i] = v_fma(q[i], s, sum[j][i]);
            }
        }
    }
    for (int j = 0; j < nx; j++) {
        UNROLL
        for (int i = 0; i < WQ_V; i++) {
            v_store(y + j * p->ldy + i * V_N, sum[j][i]);
        }
    }
}

static void weigh_q8_0(const struct gb_weigh * p) {
    static_assert(GB_ELEMENTS(q8_0) == 32, "a block");
    const uint8_t * x = p->x;
    for (int64_t i = 0; i < p->k; i += 32, x += GB_BYTES(q8_0)) {
        for (int j = 0; j < p->nx; j += WQ_X) {
            const float * const w = p->w + j * p->ldw;
            float * const y = p->y + j * p->ldy + i;
            switch (p->nx - j < WQ_X ? p->nx - j : WQ_X) {
                case 1: wq_block_(1, p, x, w, y); break;
#if WQ_X > 1
                case 2: wq_block_(2, p, x, w, y); break;
#endif
#if WQ_X > 2
                case 3: wq_block_(3, p, x, w, y); break;
                case 4: wq_block_(4, p, x, w, y); break;
#endif
                default: break;
            }
        }
    }
}

// Floats: WEIGH_X results at a time, and up to WEIGH_V vectors of columns. A load is used for all of the results.
#define WEIGH_V 8
#if V_REGISTERS < 32
#    define WEIGH_X 2
#else
#    define WEIGH_X 4
#endif
#define WEIGH_LATER 8 // prefetch distance in rows

// Adds nv vectors of columns, the last one with `lanes` lanes, to nx results.
#define WEIGH(name, T, LOAD)                                                                                          \
    static ALWAYS_INLINE void name##_block_(int nx, int nv, bool whole, int lanes, const struct gb_weigh * p,         \
        const char * x, const float * w, float * y) {                                                                 \
        vf sum[WEIGH_X][WEIGH_V];                                                                                     \
        UNROLL                                                                                                        \
        for (int j = 0; j < nx; j++) {                                                                                \
            UNROLL                                                                                                    \
            for (int i = 0; i < nv; i++) {                                                                            \
                const float * const from = y + j * p->ldy + i * V_N;                                                  \
                sum[j][i] = whole ? v_load(from) : v_load_n(from, lanes);                                             \
            }                                                                                                         \
        }                                                                                                             \
        for (int64_t c = 0; c < p->n; c++, x += p->nb_x) {                                                            \
            const T * const row = (const T *) (const void *) x;                                                       \
            vf v[WEIGH_V];                                                                                            \
            UNROLL                                                                                                    \
            for (int i = 0; i < nv; i++) {                                                                            \
                v[i] = whole ? LOAD(row + i * V_N) : LOAD##_N(row + i * V_N, lanes);                                  \
                PREFETCH((const char *) (row + i * V_N) + WEIGH_LATER * p->nb_x);                                     \
            }                                                                                                         \
            UNROLL                                                                                                    \
            for (int j = 0; j < nx; j++) {                                                                            \
                const float weight = w[j * p->ldw + c];                                                               \
                if (weight != 0) {                                                                                    \
                    UNROLL                                                                                            \
                    for (int i = 0; i < nv; i++) {                                                                    \
                        sum[j][i] = v_fma(v[i], v_set(weight), sum[j][i]);                                            \
                    }                                                                                                 \
                }                                                                                                     \
            }                                                                                                         \
        }                                                                                                             \
        UNROLL                                                                                                        \
        for (int j = 0; j < nx; j++) {                                                                                \
            UNROLL                                                                                                    \
            for (int i = 0; i < nv; i++) {                                                                            \
                if (whole) {                                                                                          \
                    v_store(y + j * p->ldy + i * V_N, sum[j][i]);                                                     \
                } else {                                                                                              \
                    v_store_n(y + j * p->ldy + i * V_N, sum[j][i], lanes);                                            \
                }                                                                                                     \
            }                                                                                                         \
        }                                                                                                             \
    }                                                                                                                 \
    /* All columns of nx results. `most`: vectors whose sums and loads fit into the registers. */                     \
    static ALWAYS_INLINE void name##_results_(int nx, int most, const struct gb_weigh * p, const float * w,           \
        float * y) {                                                                                                  \
        int64_t i = 0;                                                                                                \
        for (; i + most * V_N <= p->k; i += most * V_N) {                                                             \
            name##_block_(nx, most, true, V_N, p, (const char *) p->x + (size_t) i * sizeof(T), w, y + i);            \
        }                                                                                                             \
        for (; i + V_N <= p->k; i += V_N) {                                                                           \
            name##_block_(nx, 1, true, V_N, p, (const char *) p->x + (size_t) i * sizeof(T), w, y + i);               \
        }                                                                                                             \
        if (i < p->k) {                                                                                               \
            name##_block_(nx, 1, false, (int) (p->k - i), p, (const char *) p->x + (size_t) i * sizeof(T), w, y + i); \
        }                                                                                                             \
    }                                                                                                                 \
    static void name(const struct gb_weigh * p) {                                                                     \
        int j = 0;                                                                                                    \
        for (; j + WEIGH_X <= p->nx; j += WEIGH_X) {                                                                  \
            name##_results_(WEIGH_X, 4, p, p->w + j * p->ldw, p->y + j * p->ldy);                                     \
        }                                                                                                             \
        for (; j + 2 <= p->nx; j += 2) {                                                                              \
            name##_results_(2, 4, p, p->w + j * p->ldw, p->y + j * p->ldy);                                           \
        }                                                                                                             \
        for (; j < p->nx; j++) {                                                                                      \
            if (p->k >= WEIGH_V * V_N) {                                                                              \
                name##_results_(1, WEIGH_V, p, p->w + j * p->ldw, p->y + j * p->ldy);                                 \
            } else {                                                                                                  \
                name##_results_(1, 4, p, p->w + j * p->ldw, p->y + j * p->ldy);                                       \
            }                                                                                                         \
        }                                                                                                             \
    }

WEIGH(weigh_f32, float, LOAD_F32)
WEIGH(weigh_f16, uint16_t, LOAD_F16)
WEIGH(weigh_bf16, uint16_t, LOAD_BF16)
