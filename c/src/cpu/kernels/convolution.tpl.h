// convolution.tpl.h - convolutions in registers: tiles of output channels by positions, rows and
// planes of one channel.
//
// The tile is that of gemm.tpl.h, but its columns come from a slab (contracts/convolution.h), so
// nothing is packed. Its vectors of x are not aligned. Two such loads serve up to 24 multiply-adds.

// The distance in terms of the prefetch of x.
#define CONV_AHEAD 12

static ALWAYS_INLINE void conv_tile_(int mr, int nv, const struct gb_conv_tile * t) {
    const struct gb_conv_tile tile = *t;
    const float * third[(TILE_MR + 2) / 3];
    vf acc[TILE_MR][V_GEMM_NV];
    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int j = 0; j < nv; j++) {
            acc[i][j] = v_set(0.0f);
        }
    }
    UNROLL
    for (int i = 0; i < mr; i += 3) {
        third[i / 3] = tile.a + i * tile.lda;
    }
    for (int64_t k = 0; k < tile.k; k++) {
        const float * x = tile.x + tile.offsets[k];
        vf xv[V_GEMM_NV];
        PREFETCH(tile.x + tile.offsets[k + CONV_AHEAD < tile.k ? k + CONV_AHEAD : k]);
        UNROLL
        for (int j = 0; j < nv; j++) {
            xv[j] = v_load(x + j * V_N);
            IN_REGISTER(xv[j]);
        }
        UNROLL
        for (int i = 0; i < mr; i++) {
            const vf av = v_set(third[i / 3][i % 3 * tile.lda]);
            UNROLL
            for (int j = 0; j < nv; j++) {
                acc[i][j] = v_fma(av, xv[j], acc[i][j]);
            }
        }
        UNROLL
        for (int i = 0; i < mr; i += 3) {
            third[i / 3]++;
        }
    }
    UNROLL
    for (int i = 0; i < mr; i++) {
        store_row_(nv, tile.c + i * tile.ldc, acc[i], tile.nr, false);
    }
}

static ALWAYS_INLINE void conv_tile_of_rows_(int nv, const struct gb_conv_tile * t) {
    switch (t->mr) {
#define CONV_CASE(n) \
    case n: conv_tile_(n, nv, t); break;
        CONV_CASE(1)
        CONV_CASE(2)
        CONV_CASE(3)
        CONV_CASE(4)
#if V_GEMM_MR > 4
        CONV_CASE(5)
        CONV_CASE(6)
#endif
#if V_GEMM_MR > 6
        CONV_CASE(7)
        CONV_CASE(8)
        CONV_CASE(9)
        CONV_CASE(10)
        CONV_CASE(11)
        CONV_CASE(12)
#endif
#undef CONV_CASE
        default: break;
    }
}

static void conv_tile_f32(const struct gb_conv_tile * t) {
    if (t->nr <= V_GEMM_NV / 2 * V_N) {
        conv_tile_of_rows_(V_GEMM_NV / 2, t);
    } else {
        conv_tile_of_rows_(V_GEMM_NV, t);
    }
}

// --------------------------------------------------------------------------------------------------- rows of a channel

#define CONV_ROWS 4 // at a time
#define CONV_VECTORS 4 // of a single row

// Computes nv vectors of each of the rows r .. r + rows - 1, from column j on. The last vector has
// `left` values.
static ALWAYS_INLINE void conv_piece_(int rows, int nv, const struct gb_conv_rows * p, int64_t r, int64_t j, int left) {
    const float * x = p->x + r * p->pitch + j;
    const int64_t pitch = p->pitch;
    vf acc[CONV_ROWS][CONV_VECTORS];
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < nv; v++) {
            acc[i][v] = v_set(0.0f);
        }
    }
    for (int64_t k = 0; k < p->k; k++) {
        const vf w = v_set(p->w[k]);
        const float * at = x + p->offsets[k];
        UNROLL
        for (int i = 0; i < rows; i++) {
            UNROLL
            for (int v = 0; v < nv; v++) {
                acc[i][v] = v_fma(w, v_load(at + i * pitch + v * V_N), acc[i][v]);
            }
        }
    }
    UNROLL
    for (int i = 0; i < rows; i++) {
        store_row_(nv, p->y + (r + i) * p->ldy + j, acc[i], (nv - 1) * V_N + left, false);
    }
}

// Computes one vector of each of the rows for a square kernel of `side`. A vector of x is used for
// all rows whose kernel covers it.
static ALWAYS_INLINE void conv_square_(int side, int rows, const struct gb_conv_rows * p, int64_t r, int64_t j,
    int left) {
    const float * x = p->x + r * p->pitch + j;
    vf w[25], acc[CONV_ROWS];
    UNROLL
    for (int k = 0; k < side * side; k++) {
        w[k] = v_set(p->w[k]);
    }
    UNROLL
    for (int i = 0; i < rows; i++) {
        acc[i] = v_set(0.0f);
    }
    UNROLL
    for (int line = 0; line < rows + side - 1; line++) {
        UNROLL
        for (int k = 0; k < side; k++) {
            vf v = v_load(x + line * p->pitch + p->offsets[k]);
            IN_REGISTER(v);
            UNROLL
            for (int i = 0; i < rows; i++) {
                if (line >= i && line < i + side) {
                    acc[i] = v_fma(w[(line - i) * side + k], v, acc[i]);
                }
            }
        }
    }
    UNROLL
    for (int i = 0; i < rows; i++) {
        store_row_(1, p->y + (r + i) * p->ldy + j, &acc[i], left, false);
    }
}

static inline int conv_left_(const struct gb_conv_rows * p, int64_t j) {
    return (int) (p->n - j < V_N ? p->n - j : V_N);
}

// Computes rows r .. r + rows - 1, all columns.
#define CONV_LINES(rows, PIECE)                 \
    for (int64_t j = 0; j < p->n; j += V_N) {   \
        PIECE(rows, p, r, j, conv_left_(p, j)); \
    }
#define CONV_ANY(rows, p, r, j, left) conv_piece_(rows, 1, p, r, j, left)
#define CONV_3(rows, p, r, j, left) conv_square_(3, rows, p, r, j, left)
#define CONV_5(rows, p, r, j, left) conv_square_(5, rows, p, r, j, left)

#define CONV_ALL_ROWS(name, PIECE)                         \
    static void name(const struct gb_conv_rows * p) {      \
        int64_t r = 0;                                     \
        for (; r + CONV_ROWS <= p->rows; r += CONV_ROWS) { \
            CONV_LINES(CONV_ROWS, PIECE)                   \
        }                                                  \
        switch (p->rows - r) {                             \
            case 3: CONV_LINES(3, PIECE) break;            \
            case 2: CONV_LINES(2, PIECE) break;            \
            case 1: CONV_LINES(1, PIECE) break;            \
            default: break;                                \
        }                                                  \
    }

CONV_ALL_ROWS(conv_rows_any_, CONV_ANY)
CONV_ALL_ROWS(conv_rows_3_, CONV_3)
CONV_ALL_ROWS(conv_rows_5_, CONV_5)

static void conv_rows_f32(const struct gb_conv_rows * p) {
    if (p->rows != 1) {
        (p->square == 3 ? conv_rows_3_ : p->square == 5 ? conv_rows_5_ : conv_rows_any_)(p);
        return;
    }
    int64_t j = 0;
    for (; j + CONV_VECTORS * V_N < p->n; j += CONV_VECTORS * V_N) {
        conv_piece_(1, CONV_VECTORS, p, 0, j, V_N);
    }
    const int vectors = (int) ((p->n - j + V_N - 1) / V_N), left = (int) (p->n - j) - (vectors - 1) * V_N;
    switch (vectors) { // one instance for each number of chains, because a single chain waits for each sum
        case 4: conv_piece_(1, 4, p, 0, j, left); break;
        case 3: conv_piece_(1, 3, p, 0, j, left); break;
        case 2: conv_piece_(1, 2, p, 0, j, left); break;
        case 1: conv_piece_(1, 1, p, 0, j, left); break;
        default: break;
    }
}

#if V_ISA_AVX512 || V_ISA_AVX2
// The even elements of two vectors.
static inline vf even_(vf a, vf b) {
#    if V_ISA_AVX512
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_permutex2var_ps(a, even, b);
#    else
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)), 0xd8));
#    endif
}

static void every_second_(int64_t n, float * y, const float * x) {
    int64_t i = 0;
    for (; i + V_N < n; i += V_N) { // x has no element after the last one of y
        v_store(y + i, even_(v_load(x + 2 * i), v_load(x + 2 * i + V_N)));
    }
    if (i < n) {
        const int left = (int) (n - i), used = 2 * left - 1;
        const vf low = v_load_n(x + 2 * i, used < V_N ? used : V_N);
        v_store_n(y + i, even_(low, used > V_N ? v_load_n(x + 2 * i + V_N, used - V_N) : low), left);
    }
}
#endif

static void every_f32(int64_t n, float * y, const float * x, int64_t stride) {
#if V_ISA_AVX512 || V_ISA_AVX2
    if (stride == 2) {
        every_second_(n, y, x);
        return;
    }
#endif
    for (int64_t i = 0; i < n; i++) {
        y[i] = x[i * stride];
    }
}

// ------------------------------------------------------------------------------------------------- planes of a channel

// The lanes from .. to - 1 of the vector at p; zeros in the others, whose memory is not read.
#if V_ISA_AVX512
typedef __mmask16 conv_lanes;
static inline conv_lanes lanes_between_(int from, int to) {
    return (conv_lanes) (lanes_below_(to) & ~lanes_below_(from));
}
static inline vf load_lanes_(const float * p, conv_lanes m) { return _mm512_maskz_loadu_ps(m, p); }
#elif V_ISA_AVX2
typedef __m256i conv_lanes;
static inline conv_lanes lanes_between_(int from, int to) {
    return _mm256_andnot_si256(lanes_below_(from), lanes_below_(to));
}
static inline vf load_lanes_(const float * p, conv_lanes m) { return _mm256_maskload_ps(p, m); }
#else
typedef struct {
    int from, to;
} conv_lanes;
static inline conv_lanes lanes_between_(int from, int to) { return (conv_lanes) { from, to }; }
static inline vf load_lanes_(const float * p, conv_lanes m) {
    float part[V_N] = { 0 };
    for (int i = m.from; i < m.to; i++) {
        part[i] = p[i];
    }
    return v_load(part);
}
#endif

static inline int within_vector_(int64_t i) { return (int) (i < 0 ? 0 : i < V_N ? i : V_N); }

// One vector of each of the rows r .. r + rows - 1, from column j on.
static ALWAYS_INLINE void conv_plane_piece_(int side, int rows, const struct gb_conv_plane * p, int64_t r, int64_t j) {
    const float * x = p->x + (r - p->pad_h) * p->ldx + j - p->pad_w;
    conv_lanes lanes[7];
    vf acc[CONV_ROWS];
    UNROLL
    for (int k = 0; k < side; k++) {
        lanes[k] = lanes_between_(within_vector_(p->pad_w - j - k), within_vector_(p->in_w + p->pad_w - j - k));
    }
    UNROLL
    for (int i = 0; i < rows; i++) {
        acc[i] = v_set(0.0f);
    }
    UNROLL
    for (int line = 0; line < rows + side - 1; line++) {
        const int64_t at = r + line - p->pad_h;
        if (at < 0 || at >= p->in_h) {
            continue;
        }
        UNROLL
        for (int k = 0; k < side; k++) {
            vf v = load_lanes_(x + line * p->ldx + k, lanes[k]);
            IN_REGISTER(v);
            UNROLL
            for (int i = 0; i < rows; i++) {
                if (line >= i && line < i + side) {
                    acc[i] = v_fma(v_set(p->w[(line - i) * side + k]), v, acc[i]);
                }
            }
        }
    }
    UNROLL
    for (int i = 0; i < rows; i++) {
        store_row_(1, p->y + (r + i) * p->ldy + j, &acc[i], within_vector_(p->out_w - j), false);
    }
}

// The even and the odd elements of two vectors, in an order that in_order_ undoes.
#if V_ISA_AVX512
static inline vf evens_(vf a, vf b) { return _mm512_shuffle_ps(a, b, 0x88); }
static inline vf odds_(vf a, vf b) { return _mm512_shuffle_ps(a, b, 0xdd); }
static inline vf in_order_(vf a) {
    return _mm512_castpd_ps(_mm512_permutexvar_pd(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), _mm512_castps_pd(a)));
}
#elif V_ISA_AVX2
static inline vf evens_(vf a, vf b) { return _mm256_shuffle_ps(a, b, 0x88); }
static inline vf odds_(vf a, vf b) { return _mm256_shuffle_ps(a, b, 0xdd); }
static inline vf in_order_(vf a) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(a), 0xd8)); }
#else
static inline vf every_other_(vf a, vf b, int first) {
    float all[2 * V_N], some[V_N];
    v_store(all, a);
    v_store(all + V_N, b);
    for (int i = 0; i < V_N; i++) {
        some[i] = all[2 * i + first];
    }
    return v_load(some);
}
static inline vf evens_(vf a, vf b) { return every_other_(a, b, 0); }
static inline vf odds_(vf a, vf b) { return every_other_(a, b, 1); }
static inline vf in_order_(vf a) { return a; }
#endif

// The same for stride 2. Two vectors of x hold the values under two neighbouring elements of the kernel.
static ALWAYS_INLINE void conv_plane_piece_2_(int side, int rows, const struct gb_conv_plane * p, int64_t r,
    int64_t j) {
    const float * x = p->x + (2 * r - p->pad_h) * p->ldx + 2 * j - p->pad_w;
    conv_lanes lanes[4][2];
    vf acc[CONV_ROWS];
    UNROLL
    for (int k = 0; k < side; k += 2) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            const int64_t before = p->pad_w - 2 * j - k - h * V_N; // the input
            lanes[k / 2][h] = lanes_between_(within_vector_(before), within_vector_(p->in_w + before));
        }
    }
    UNROLL
    for (int i = 0; i < rows; i++) {
        acc[i] = v_set(0.0f);
    }
    UNROLL
    for (int line = 0; line < 2 * (rows - 1) + side; line++) {
        const int64_t at = 2 * r + line - p->pad_h;
        if (at < 0 || at >= p->in_h) {
            continue;
        }
        UNROLL
        for (int k = 0; k < side; k += 2) {
            const vf a = load_lanes_(x + line * p->ldx + k, lanes[k / 2][0]);
            const vf b = load_lanes_(x + line * p->ldx + k + V_N, lanes[k / 2][1]);
            const vf even = evens_(a, b), odd = k + 1 < side ? odds_(a, b) : even;
            UNROLL
            for (int i = 0; i < rows; i++) {
                if (line >= 2 * i && line < 2 * i + side) {
                    const float * w = p->w + (line - 2 * i) * side + k;
                    acc[i] = v_fma(v_set(w[0]), even, acc[i]);
                    if (k + 1 < side) {
                        acc[i] = v_fma(v_set(w[1]), odd, acc[i]);
                    }
                }
            }
        }
    }
    UNROLL
    for (int i = 0; i < rows; i++) {
        acc[i] = in_order_(acc[i]);
        store_row_(1, p->y + (r + i) * p->ldy + j, &acc[i], within_vector_(p->out_w - j), false);
    }
}

#define CONV_PLANE(PIECE, side, rows)             \
    for (int64_t j = 0; j < p->out_w; j += V_N) { \
        PIECE(side, rows, p, r, j);               \
    }
#define CONV_PLANE_OF(name, PIECE, side)                    \
    static void name(const struct gb_conv_plane * p) {      \
        int64_t r = 0;                                      \
        for (; r + CONV_ROWS <= p->out_h; r += CONV_ROWS) { \
            CONV_PLANE(PIECE, side, CONV_ROWS)              \
        }                                                   \
        switch (p->out_h - r) {                             \
            case 3: CONV_PLANE(PIECE, side, 3) break;       \
            case 2: CONV_PLANE(PIECE, side, 2) break;       \
            case 1: CONV_PLANE(PIECE, side, 1) break;       \
            default: break;                                 \
        }                                                   \
    }

CONV_PLANE_OF(conv_plane_3_, conv_plane_piece_, 3)
CONV_PLANE_OF(conv_plane_5_, conv_plane_piece_, 5)
CONV_PLANE_OF(conv_plane_7_, conv_plane_piece_, 7)
CONV_PLANE_OF(conv_plane_3_by_2_, conv_plane_piece_2_, 3)
CONV_PLANE_OF(conv_plane_5_by_2_, conv_plane_piece_2_, 5)
CONV_PLANE_OF(conv_plane_7_by_2_, conv_plane_piece_2_, 7)

static void conv_plane_f32(const struct gb_conv_plane * p) {
    switch (p->side) {
        case 3: (p->stride == 2 ? conv_plane_3_by_2_ : conv_plane_3_)(p); break;
        case 5: (p->stride == 2 ? conv_plane_5_by_2_ : conv_plane_5_)(p); break;
        case 7: (p->stride == 2 ? conv_plane_7_by_2_ : conv_plane_7_)(p); break;
        default: break;
    }
}

// ----------------------------------------------------------------------------------------------------- woven sequences

#if V_ISA_AVX512
static inline void weave_pair_(vf a, vf b, vf y[2]) {
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
    y[0] = _mm512_permutex2var_ps(a, low, b);
    y[1] = _mm512_permutex2var_ps(a, high, b);
}
#elif V_ISA_AVX2
static inline void weave_pair_(vf a, vf b, vf y[2]) {
    const vf low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
    y[0] = _mm256_permute2f128_ps(low, high, 0x20);
    y[1] = _mm256_permute2f128_ps(low, high, 0x31);
}
#endif

#if V_ISA_AVX512 || V_ISA_AVX2
// Weaves vectors of `ways` sequences. Those of even numbers become one sequence, those of odd numbers another.
static ALWAYS_INLINE void weave_vectors_(int ways, float * y, const float * x, int64_t ldx) {
    vf v[8], w[8];
    UNROLL
    for (int f = 0; f < ways; f++) {
        v[f] = v_load(x + f * ldx);
    }
    UNROLL
    for (int length = 1; length < ways; length *= 2) { // vectors of a sequence
        const int n = ways / length; // sequences
        UNROLL
        for (int f = 0; f < n / 2; f++) {
            UNROLL
            for (int i = 0; i < length; i++) {
                weave_pair_(v[f * length + i], v[(f + n / 2) * length + i], &w[2 * (f * length + i)]);
            }
        }
        UNROLL
        for (int i = 0; i < ways; i++) {
            v[i] = w[i];
        }
    }
    UNROLL
    for (int f = 0; f < ways; f++) {
        v_store(y + f * V_N, v[f]);
    }
}
#    define WEAVE_WAYS(ways)                              \
    for (; i + V_N <= n; i += V_N) {                      \
        weave_vectors_(ways, y + i * (ways), x + i, ldx); \
    }                                                     \
    break;
#endif

static void weave_f32(int64_t n, int64_t ways, float * y, const float * x, int64_t ldx) {
    int64_t i = 0;
#if V_ISA_AVX512 || V_ISA_AVX2
    switch (ways) {
        case 2: WEAVE_WAYS(2)
        case 4: WEAVE_WAYS(4)
        case 8: WEAVE_WAYS(8)
        default: break;
    }
#endif
    for (; i < n; i++) {
        for (int64_t f = 0; f < ways; f++) {
            y[i * ways + f] = x[f * ldx + i];
        }
    }
}
