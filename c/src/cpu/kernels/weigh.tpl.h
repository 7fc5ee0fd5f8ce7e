// weigh.tpl.h - weighted sums of rows of floats or of Q8_0, read in place. Attention uses
// them to add up the values of a cache.
//
// The sums of some columns stay in registers for all rows, for a few results at a time. Converting
// each row to floats before would store and load several times as many bytes.

// Q8_0: up to WQ_X results at a time, and up to WQ_BLOCKS blocks of columns. A pass over up to WQ_ROWS rows first
// multiplies scales by weights, because a scale is a single number among bytes.
#if V_ISA_AVX512
#    define WQ_X 4
#    define WQ_BLOCKS 4
#elif V_ISA_SCALAR
#    define WQ_X 1
#    define WQ_BLOCKS 1
#else
#    define WQ_X 2
#    define WQ_BLOCKS 2
#endif
#define WQ_ROWS 64
#define WQ_LATER 60 // prefetch distance in rows

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

// Scale of block b of row c, times the weight of the row for result j. 0 if the weight is 0.
struct wq_factors_ {
    float of[WQ_X][WQ_BLOCKS][WQ_ROWS];
};

static ALWAYS_INLINE void wq_fill_(struct wq_factors_ * f, int nx, int blocks, int n, const uint8_t * x, size_t nb_x,
    const float * w, int64_t ldw) {
    uint16_t half[WQ_BLOCKS][WQ_ROWS] = { 0 };
    for (int c = 0; c < n; c++, x += nb_x) {
        UNROLL
        for (int b = 0; b < blocks; b++) {
            half[b][c] = copied_half_(x + b * GB_BYTES(q8_0) + GB_AT(q8_0, d));
        }
    }
    for (int c = 0; c < n; c += V_N) {
        for (int j = 0; j < nx; j++) {
            const vf weight = v_load_n(w + j * ldw + c, n - c < V_N ? n - c : V_N), zero = v_set(0.0f);
            for (int b = 0; b < blocks; b++) {
                v_store(f->of[j][b] + c, v_sel(v_eq(weight, zero), zero, v_mul(weight, LOAD_F16(half[b] + c))));
            }
        }
    }
}

static ALWAYS_INLINE void wq_rows_(const struct wq_factors_ * f, int nx, int blocks, int n, const uint8_t * x,
    size_t nb_x, float * y, int64_t ldy) {
    vf sum[WQ_X][WQ_BLOCKS * WQ_V];
    UNROLL
    for (int j = 0; j < nx; j++) {
        UNROLL
        for (int i = 0; i < blocks * WQ_V; i++) {
            sum[j][i] = v_load(y + j * ldy + i * V_N);
        }
    }
    for (int c = 0; c < n; c++, x += nb_x) {
        UNROLL
        for (int b = 0; b < blocks; b++) {
            const uint8_t * const block = x + b * GB_BYTES(q8_0);
            vf q[WQ_V];
            if (b % 2 == 0) { // two blocks are 68 bytes
                PREFETCH_L2(block + WQ_LATER * nb_x);
            }
            UNROLL
            for (int i = 0; i < WQ_V; i++) {
                q[i] = wq_load_((const int8_t *) block + GB_AT(q8_0, qs) + i * V_N);
            }
            UNROLL
            for (int j = 0; j < nx; j++) {
                const vf factor = v_set(f->of[j][b][c]);
                UNROLL
                for (int i = 0; i < WQ_V; i++) {
                    sum[j][b * WQ_V + i] = v_fma(q[i], factor, sum[j][b * WQ_V + i]);
                }
            }
        }
    }
    UNROLL
    for (int j = 0; j < nx; j++) {
        UNROLL
        for (int i = 0; i < blocks * WQ_V; i++) {
            v_store(y + j * ldy + i * V_N, sum[j][i]);
        }
    }
}

// All columns of nx results from result j on, for n rows from row c on. `most`: blocks whose sums fit into the
// registers.
static ALWAYS_INLINE void wq_results_(int nx, int most, const struct gb_weigh * p, int j, int64_t c, int n) {
    struct wq_factors_ f;
    const uint8_t * x = (const uint8_t *) p->x + (size_t) c * p->nb_x;
    const float * const w = p->w + j * p->ldw + c;
    float * y = p->y + j * p->ldy;
    int64_t left = p->k / 32;
    for (; left >= most; left -= most, x += most * GB_BYTES(q8_0), y += most * 32) {
        wq_fill_(&f, nx, most, n, x, p->nb_x, w, p->ldw);
        wq_rows_(&f, nx, most, n, x, p->nb_x, y, p->ldy);
    }
    for (; left > 0; left--, x += GB_BYTES(q8_0), y += 32) {
        wq_fill_(&f, nx, 1, n, x, p->nb_x, w, p->ldw);
        wq_rows_(&f, nx, 1, n, x, p->nb_x, y, p->ldy);
    }
}

static void weigh_q8_0(const struct gb_weigh * p) {
    static_assert(GB_ELEMENTS(q8_0) == 32, "a block");
    for (int64_t c = 0; c < p->n; c += WQ_ROWS) {
        const int n = p->n - c < WQ_ROWS ? (int) (p->n - c) : WQ_ROWS;
        for (int j = 0; j < p->nx; j += WQ_X) {
            switch (p->nx - j < WQ_X ? p->nx - j : WQ_X) {
                case 1: wq_results_(1, WQ_BLOCKS, p, j, c, n); break;
#if WQ_X == 2
                case 2: wq_results_(2, WQ_BLOCKS / 2, p, j, c, n); break;
#elif WQ_X == 4
                case 2: wq_results_(2, WQ_BLOCKS, p, j, c, n); break;
                case 3: wq_results_(3, WQ_BLOCKS / 2, p, j, c, n); break;
                case 4: wq_results_(4, WQ_BLOCKS / 2, p, j, c, n); break;
#endif
                default: break;
            }
        }
    }
}

// Floats: the sums of a tile stay in registers: up to WEIGH_X results times up to WEIGH_V vectors of columns. So the
// rows are read once for each tile. The first tile prefetches whole rows, also for the other tiles, so that memory is
// read in order.
#define WEIGH_X 4
#define WEIGH_V 8
#if V_REGISTERS < 32
#    define WEIGH_OF_4 2 // vectors of columns for four results
#else
#    define WEIGH_OF_4 4
#endif
#define WEIGH_ROWS 64 // rows that stay in the first-level cache
#define WEIGH_LATER 2048 // prefetch distance: so many bytes of rows, without the gaps between rows
#define WEIGH_LINE 64

// True if no weight of nx results is 0. To compare each weight where it is used takes as long as to multiply.
static inline bool weigh_all_(int nx, int64_t n, const float * w, int64_t ldw) {
    int zeros = 0;
    for (int j = 0; j < nx; j++) {
        for (int64_t c = 0; c < n; c++) {
            zeros += w[j * ldw + c] == 0;
        }
    }
    return zeros == 0;
}

// A tile with nv vectors of columns, the last one with `lanes` lanes. `all`: no weight is 0. `ahead`: bytes of each row
// to prefetch.
#define WEIGH(name, T, LOAD)                                                                                       \
    static ALWAYS_INLINE void name##_tile_(int nx, int nv, int lanes, bool all, size_t ahead,                      \
        const struct gb_weigh * p, const char * x, const float * w, float * y) {                                   \
        const bool whole = lanes == V_N;                                                                           \
        const size_t later = ahead == 0 ? 0 : (WEIGH_LATER + ahead - 1) / ahead * p->nb_x;                         \
        vf sum[WEIGH_X][WEIGH_V];                                                                                  \
        UNROLL                                                                                                     \
        for (int j = 0; j < nx; j++) {                                                                             \
            UNROLL                                                                                                 \
            for (int i = 0; i < nv; i++) {                                                                         \
                const float * const from = y + j * p->ldy + i * V_N;                                               \
                sum[j][i] = whole ? v_load(from) : v_load_n(from, lanes);                                          \
            }                                                                                                      \
        }                                                                                                          \
        for (int64_t c = 0; c < p->n; c++, x += p->nb_x) {                                                         \
            const T * const row = (const T *) (const void *) x;                                                    \
            vf v[WEIGH_V];                                                                                         \
            for (size_t at = 0; at < ahead; at += WEIGH_LINE) {                                                    \
                PREFETCH(x + later + at);                                                                          \
            }                                                                                                      \
            UNROLL                                                                                                 \
            for (int i = 0; i < nv; i++) {                                                                         \
                v[i] = whole ? LOAD(row + i * V_N) : LOAD##_N(row + i * V_N, lanes);                               \
            }                                                                                                      \
            UNROLL                                                                                                 \
            for (int j = 0; j < nx; j++) {                                                                         \
                const float weight = w[j * p->ldw + c];                                                            \
                if (all || weight != 0) {                                                                          \
                    UNROLL                                                                                         \
                    for (int i = 0; i < nv; i++) {                                                                 \
                        sum[j][i] = v_fma(v[i], v_set(weight), sum[j][i]);                                         \
                    }                                                                                              \
                }                                                                                                  \
            }                                                                                                      \
        }                                                                                                          \
        UNROLL                                                                                                     \
        for (int j = 0; j < nx; j++) {                                                                             \
            UNROLL                                                                                                 \
            for (int i = 0; i < nv; i++) {                                                                         \
                if (whole) {                                                                                       \
                    v_store(y + j * p->ldy + i * V_N, sum[j][i]);                                                  \
                } else {                                                                                           \
                    v_store_n(y + j * p->ldy + i * V_N, sum[j][i], lanes);                                         \
                }                                                                                                  \
            }                                                                                                      \
        }                                                                                                          \
    }                                                                                                              \
    /* The tiles of nv whole vectors that fit from column i on. Returns the column after them. */                  \
    static ALWAYS_INLINE int64_t name##_tiles_(int nx, int nv, int64_t i, bool all, size_t ahead,                  \
        const struct gb_weigh * p, const float * w, float * y) {                                                   \
        for (; i + nv * V_N <= p->k; i += nv * V_N) {                                                              \
            name##_tile_(nx, nv, V_N, all, i == 0 ? ahead : 0, p, (const char *) p->x + (size_t) i * sizeof(T), w, \
                y + i);                                                                                            \
        }                                                                                                          \
        return i;                                                                                                  \
    }                                                                                                              \
    /* All columns of nx results, in tiles of `most` vectors at first. */                                          \
    static ALWAYS_INLINE void name##_results_(int nx, int most, bool all, size_t ahead, const struct gb_weigh * p, \
        const float * w, float * y) {                                                                              \
        int64_t i = name##_tiles_(nx, most, 0, all, ahead, p, w, y);                                               \
        i = name##_tiles_(nx, most / 2, i, all, ahead, p, w, y);                                                   \
        i = name##_tiles_(nx, 1, i, all, ahead, p, w, y);                                                          \
        if (i < p->k) {                                                                                            \
            name##_tile_(nx, 1, (int) (p->k - i), all, i == 0 ? ahead : 0, p,                                      \
                (const char *) p->x + (size_t) i * sizeof(T), w, y + i);                                           \
        }                                                                                                          \
    }                                                                                                              \
    static ALWAYS_INLINE void name##_block_(bool all, const struct gb_weigh * p) {                                 \
        size_t ahead = (size_t) p->k * sizeof(T);                                                                  \
        int j = 0;                                                                                                 \
        for (; j + 4 <= p->nx; j += 4, ahead = 0) {                                                                \
            name##_results_(4, WEIGH_OF_4, all, ahead, p, p->w + j * p->ldw, p->y + j * p->ldy);                   \
        }                                                                                                          \
        for (; j + 2 <= p->nx; j += 2, ahead = 0) {                                                                \
            name##_results_(2, 4, all, ahead, p, p->w + j * p->ldw, p->y + j * p->ldy);                            \
        }                                                                                                          \
        if (j < p->nx) {                                                                                           \
            name##_results_(1, WEIGH_V, all, ahead, p, p->w + j * p->ldw, p->y + j * p->ldy);                      \
        }                                                                                                          \
    }                                                                                                              \
    static void name(const struct gb_weigh * whole) {                                                              \
        struct gb_weigh p = *whole;                                                                                \
        for (int64_t left = whole->n; left > 0; left -= p.n) {                                                     \
            p.n = left < WEIGH_ROWS ? left : WEIGH_ROWS;                                                           \
            if (weigh_all_(p.nx, p.n, p.w, p.ldw)) {                                                               \
                name##_block_(true, &p);                                                                           \
            } else {                                                                                               \
                name##_block_(false, &p);                                                                          \
            }                                                                                                      \
            p.x = (const char *) p.x + (size_t) p.n * p.nb_x;                                                      \
            p.w += p.n;                                                                                            \
        }                                                                                                          \
    }

WEIGH(weigh_f32, float, LOAD_F32)
WEIGH(weigh_f16, uint16_t, LOAD_F16)
WEIGH(weigh_bf16, uint16_t, LOAD_BF16)
