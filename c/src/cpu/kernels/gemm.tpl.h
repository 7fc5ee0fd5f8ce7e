// gemm.tpl.h - the tile of matrix products in registers, and the packing of its panels.
//
// A tile is V_GEMM_MR rows of V_GEMM_NV vectors. All of them are accumulators, which stay in
// registers for the whole loop over k. Each step loads NV vectors of b, broadcasts MR values of a,
// and does MR x NV multiply-adds. Accumulators stay in registers only if the loops over them are
// unrolled completely. So each instance has pragmas, and constant `mr` and `nv`.

#define TILE_MR V_GEMM_MR
#define TILE_NR (V_GEMM_NV * V_N)

// Stores the first nr values of the nv vectors of a row, or adds them to c.
static ALWAYS_INLINE void store_row_(int nv, float * c, const vf * acc, int nr, bool accumulate) {
    UNROLL
    for (int j = 0; j < nv; j++) {
        const int left = nr - j * V_N;
        float * p = c + j * V_N;
        if (left >= V_N) {
            v_store(p, accumulate ? v_add(v_load(p), acc[j]) : acc[j]);
        } else if (left > 0) {
            v_store_n(p, accumulate ? v_add(v_load_n(p, left), acc[j]) : acc[j], left);
        }
    }
}

// A panel of a stays in the first-level cache. Panels of b come from the second-level cache, so they are prefetched
// some steps ahead.
#define PREFETCH_FLOATS 512
static ALWAYS_INLINE void prefetch_ahead_(const float * b) {
    UNROLL
    for (int j = 0; j < TILE_NR; j += 16) {
        PREFETCH(b + PREFETCH_FLOATS + j);
    }
}

// No hardware prefetcher follows the rows of a tile of c. They are prefetched about PREFETCH_STEPS before the last
// step. Earlier prefetches could be evicted: rows of c are often a power of two apart, and then the whole tile shares
// two sets of the cache.
#define PREFETCH_STEPS 64
static ALWAYS_INLINE void prefetch_tile_(int mr, const float * c, int64_t ldc) {
    COMPUTED_HERE(ldc);
    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int j = 0; j < TILE_NR; j += 16) {
            PREFETCH_TO_WRITE(c + i * ldc + j);
        }
    }
}

// For rows that are read in place, one cache line of each row is prefetched, ROWS_AHEAD terms
// before its use. At the end of a row, this is a line of the row that follows it in the next tile.
// Short rows need no prefetch.
#define ROWS_AHEAD 32
#define ROWS_FAR 64
static ALWAYS_INLINE void prefetch_rows_(int mr, const float * a, int64_t lda) {
    COMPUTED_HERE(lda);
    UNROLL
    for (int i = 0; i < mr; i++) {
        PREFETCH(a + i * lda);
    }
}

// c + a b on lanes of 32 bits that hold two bfloat16 each: the sum of both products is added.
static inline vf dot_pairs_(vf c, vf a, vf b) {
#if HAVE_BF16_DOT
    return v_dot_bf16(c, a, b);
#else
    const vi upper = vi_set(-65536);
    c = v_fma(v_from_bits(vi_shl(v_bits(a), 16)), v_from_bits(vi_shl(v_bits(b), 16)), c);
    return v_fma(v_from_bits(vi_and(v_bits(a), upper)), v_from_bits(vi_and(v_bits(b), upper)), c);
#endif
}

// A tile decides once in this many steps (a cache line of each row) whether to prefetch. Deciding
// in every step would need too many registers.
#define STEPS 16

// a is a panel of floats, a panel of pairs of bfloat16, or rows of floats that are read in place.
enum tile_of { TILE_PANELS, TILE_PAIRS, TILE_ROWS };

// Computes rows 0 .. mr - 1 and the first nv vectors of the tile. Callers pass constants for mr, nv
// and kind, so that each combination becomes a separate function. Of rows that are read in place,
// every third one has a pointer. The two rows after it are at one and two times lda from it, which
// addressing modes can express.
static ALWAYS_INLINE void tile_(int mr, int nv, enum tile_of kind, const struct gb_tile * t) {
    const struct gb_tile tile = *t; // a copy, because the compiler assumes that stores to c change *t
    const float *a = tile.a, *b = tile.b, *third[(TILE_MR + 2) / 3];
    vf acc[TILE_MR][V_GEMM_NV];
    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int j = 0; j < nv; j++) {
            acc[i][j] = v_set(0.0f);
        }
    }
    UNROLL
    for (int i = 0; i < mr && kind == TILE_ROWS; i += 3) {
        third[i / 3] = a + i * tile.lda;
    }
    const int64_t ahead = tile.k * TILE_MR;
    for (int64_t p = 0, end; p < tile.k;) {
        end = tile.k - p > STEPS ? p + STEPS : tile.k;
        if (tile.k - p <= PREFETCH_STEPS && tile.k - p > PREFETCH_STEPS - STEPS) {
            prefetch_tile_(mr, tile.c, tile.ldc);
        }
        if (kind == TILE_ROWS && tile.k > ROWS_FAR) {
            const float * const next = tile.a + p + ROWS_AHEAD;
            prefetch_rows_(mr, p + ROWS_AHEAD < tile.k ? next : next + mr * tile.lda - tile.k, tile.lda);
        }
        for (; p < end; p++) {
            vf bv[V_GEMM_NV];
            UNROLL
            for (int j = 0; j < nv; j++) {
                bv[j] = v_load(b + j * V_N);
            }
            UNROLL
            for (int i = 0; i < mr; i++) {
                const vf av = v_set(kind == TILE_ROWS ? third[i / 3][i % 3 * tile.lda] : a[i]);
                UNROLL
                for (int j = 0; j < nv; j++) {
                    acc[i][j] = kind == TILE_PAIRS ? dot_pairs_(acc[i][j], bv[j], av) : v_fma(av, bv[j], acc[i][j]);
                }
            }
            prefetch_ahead_(b);
            if (kind != TILE_ROWS) { // the next panel of a follows this one
                PREFETCH(a + ahead);
            }
            UNROLL
            for (int i = 0; i < mr && kind == TILE_ROWS; i += 3) {
                third[i / 3]++;
            }
            a += TILE_MR;
            b += TILE_NR;
        }
    }
    UNROLL
    for (int i = 0; i < mr; i++) {
        store_row_(nv, tile.c + i * tile.ldc, acc[i], tile.nr, tile.accumulate);
    }
}

static ALWAYS_INLINE void tile_of_rows_(int nv, enum tile_of kind, const struct gb_tile * t) {
    switch (t->mr) {
#define TILE_CASE(rows) \
    case rows: tile_(rows, nv, kind, t); break;
        TILE_CASE(1)
        TILE_CASE(2)
        TILE_CASE(3)
        TILE_CASE(4)
#if V_GEMM_MR > 4
        TILE_CASE(5)
        TILE_CASE(6)
#endif
#if V_GEMM_MR > 6
        TILE_CASE(7)
        TILE_CASE(8)
        TILE_CASE(9)
        TILE_CASE(10)
        TILE_CASE(11)
        TILE_CASE(12)
#endif
#undef TILE_CASE
        default: break;
    }
}

// For up to half of the columns, half of the vectors and half of the time suffice.
static ALWAYS_INLINE void tile_of_columns_(enum tile_of kind, const struct gb_tile * t) {
    if (t->nr <= V_GEMM_NV / 2 * V_N) {
        tile_of_rows_(V_GEMM_NV / 2, kind, t);
    } else {
        tile_of_rows_(V_GEMM_NV, kind, t);
    }
}

static void gemm_tile_f32(const struct gb_tile * t) {
    if (t->lda != 0) {
        tile_of_columns_(TILE_ROWS, t);
    } else {
        tile_of_columns_(TILE_PANELS, t);
    }
}

#if HAVE_AMX_BF16
#    include "x86/tile_amx.tpl.h"
#else
#    define BF16_MR TILE_MR
#    define BF16_NR TILE_NR
#    define BF16_STEP 1
static void enter_tiles(void) {}

static void leave_tiles(void) {}

static void gemm_tile_bf16(const struct gb_tile * t) { tile_of_columns_(TILE_PAIRS, t); }
#endif

// ------------------------------------------------------------------------------------------------------------- packing

// Stores columns i0 .. i0 + V_N - 1 of the panel from V_N transposed pieces of rows. In panels narrower than a vector,
// a row is stored as a full vector if another row follows, which then overwrites the excess.
static ALWAYS_INLINE void store_transposed_(vf t[V_N], int count, int lanes, int64_t rows_after, int width, float * y) {
    v_transpose(t);
    UNROLL
    for (int j = 0; j < V_N; j++) {
        if (j < count) {
            const int64_t floats_after = (count - 1 - j + rows_after) * width;
            if (lanes == V_N || (width < V_N && floats_after >= V_N - lanes)) {
                v_store(y + (int64_t) j * width, t[j]);
            } else {
                v_store_n(y + (int64_t) j * width, t[j], lanes);
            }
        }
    }
}

#define PACK(name, T, LOAD)                                                                   \
    static void name(int64_t k, int rows, int width, float * y, const void * const * x) {     \
        for (int i0 = 0; i0 < width; i0 += V_N) {                                             \
            const int lanes = width - i0 < V_N ? width - i0 : V_N;                            \
            const int valid = rows - i0 < V_N ? rows - i0 : V_N;                              \
            for (int64_t j = 0; j < k; j += V_N) {                                            \
                const int count = (int) (k - j < V_N ? k - j : V_N);                          \
                vf t[V_N];                                                                    \
                UNROLL                                                                        \
                for (int i = 0; i < V_N; i++) {                                               \
                    if (i < valid) {                                                          \
                        const T * p = (const T *) x[i0 + i] + j;                              \
                        t[i] = count == V_N ? LOAD(p) : LOAD##_N(p, count);                   \
                    } else {                                                                  \
                        t[i] = v_set(0.0f);                                                   \
                    }                                                                         \
                }                                                                             \
                store_transposed_(t, count, lanes, k - j - count, width, y + j * width + i0); \
            }                                                                                 \
        }                                                                                     \
    }

PACK(pack_f32, float, LOAD_F32)
PACK(pack_f16, uint16_t, LOAD_F16)
PACK(pack_bf16, uint16_t, LOAD_BF16)

// Terms are far apart, so no hardware prefetcher follows them.
#define TERMS_AHEAD 16
static void pack_terms_f32(int64_t k, int rows, int width, float * y, const float * x, int64_t ldx) {
    const int whole = rows / V_N * V_N, part = rows - whole;
    for (int64_t j = 0; j < k; j++, y += width) {
        const float * const term = x + j * ldx;
        int i = 0;
        PREFETCH(x + (k - j > TERMS_AHEAD ? j + TERMS_AHEAD : j) * ldx);
        for (; i < whole; i += V_N) {
            v_store(y + i, v_load(term + i));
        }
        if (part > 0) { // zeros fill the vector
            v_store_n(y + i, v_load_n(term + i, part), width - i < V_N ? width - i : V_N);
            i += V_N;
        }
        for (; i < width; i += V_N) {
            v_store_n(y + i, v_set(0.0f), width - i < V_N ? width - i : V_N);
        }
    }
}
