// dots_q8_0.tpl.h - short columns of Q8_0, read in place, times a few rows that were rounded to
// bytes. Attention uses it to multiply queries with the keys of a cache.
//
// A tile is V_N columns, one per lane, by at most DQ_X rows. A block of each column is transposed
// in registers, so that a vector holds four bytes of every column. They are multiplied by four
// bytes of a row. So the sums need no additions across lanes, and one multiplication applies the
// scales of all columns. Later columns are prefetched, because the keys of a head are not
// contiguous. A result depends on k alone, not on the other rows and columns.
//
// A body for an instruction set (x86/dots_q8_0_*.tpl.h) defines DQ_ROWS, DQ_X, DQ_BIAS (what is added to weights),
// DQ_DOT (adds the product of a row and weights with the bias), DQ_LOW and DQ_HIGH (interleave halves of quarters, by
// 32 or 64 bits) and dq_quarters_.

#define DQ_SIZE GB_BYTES(q8_0)
#define DQ_LATER 12 // prefetch distance in columns
#define DQ_GROUPS 8 // blocks of a column in one pass over all columns

#if V_ISA_AVX512
#    include "x86/dots_q8_0_avx512.tpl.h"
#elif V_ISA_AVX2
#    include "x86/dots_q8_0_avx2.tpl.h"
#else
#    define DQ_ROWS 0 // no body: dots_q8_0 does nothing
#endif

#if DQ_ROWS > 0

// u[t] = the bytes 4 t .. 4 t + 3 of the column in each lane, with the bias
static ALWAYS_INLINE void dq_turn_(const char * w, size_t nb_w, vi u[8]) {
    UNROLL
    for (int h = 0; h < 2; h++) {
        const vi a = dq_quarters_(w + 16 * h, 4 * nb_w), b = dq_quarters_(w + nb_w + 16 * h, 4 * nb_w);
        const vi c = dq_quarters_(w + 2 * nb_w + 16 * h, 4 * nb_w), d = dq_quarters_(w + 3 * nb_w + 16 * h, 4 * nb_w);
        const vi ab = DQ_LOW(32, a, b), cd = DQ_LOW(32, c, d), ab2 = DQ_HIGH(32, a, b), cd2 = DQ_HIGH(32, c, d);
        u[4 * h] = DQ_LOW(64, ab, cd);
        u[4 * h + 1] = DQ_HIGH(64, ab, cd);
        u[4 * h + 2] = DQ_LOW(64, ab2, cd2);
        u[4 * h + 3] = DQ_HIGH(64, ab2, cd2);
    }
#if DQ_BIAS != 0
    UNROLL
    for (int t = 0; t < 8; t++) {
        u[t] = vi_xor(u[t], vi_set((int32_t) 0x80808080));
    }
#endif
}

// What a pass multiplies columns by: DQ_GROUPS blocks of all rows.
struct dq_rows_ {
    int groups;
    const int8_t * q[GB_Q8_0_ROWS_MAX];
    const float * d[GB_Q8_0_ROWS_MAX];
    int32_t start[GB_Q8_0_ROWS_MAX][DQ_GROUPS]; // minus the product with the bias
};

static void dq_open_(struct dq_rows_ * r, const struct gb_dots_q8_0 * p, int64_t g) {
    r->groups = p->k / 32 - g < DQ_GROUPS ? (int) (p->k / 32 - g) : DQ_GROUPS;
    for (int j = 0; j < p->nx; j++) {
        r->q[j] = p->q[j] + 32 * g;
        r->d[j] = p->dx[j] + g;
        for (int i = 0; i < r->groups; i++) {
            int32_t sum = 0;
            for (int t = 0; t < 32; t++) {
                sum += r->q[j][32 * i + t];
            }
            r->start[j][i] = -DQ_BIAS * sum;
        }
    }
}

// Adds nx rows from row j on, times V_N columns, to n columns of y.
static ALWAYS_INLINE void dq_tile_(int nx, const struct dq_rows_ * r, int j, const char * w, size_t nb_w, int n,
    float * y, int64_t ldy, bool first) {
    uint16_t half[DQ_GROUPS][V_N];
    vf sum[DQ_X];
    for (int g = 0; g < r->groups; g++) {
        const char * d = w + g * DQ_SIZE + GB_AT(q8_0, d);
        UNROLL
        for (int i = 0; i < V_N; i++, d += nb_w) {
            half[g][i] = copied_half_(d);
        }
    }
    UNROLL
    for (int i = 0; i < nx; i++) {
        sum[i] = first ? v_set(0.0f) : v_load_n(y + i * ldy, n);
    }
    for (int g = 0; g < r->groups; g++, w += DQ_SIZE) {
        vi u[8];
        if (g % 2 == 0) { // two blocks are 68 bytes
            const char * later = w + DQ_LATER * nb_w;
            UNROLL
            for (int i = 0; i < V_N; i++, later += nb_w) {
                PREFETCH_L2(later);
            }
        }
        dq_turn_(w + GB_AT(q8_0, qs), nb_w, u);
        const vf d = LOAD_F16(half[g]);
        UNROLL
        for (int i = 0; i < nx; i++) {
            const int8_t * const q = r->q[j + i] + 32 * g;
            vi dot = vi_set(r->start[j + i][g]);
            UNROLL
            for (int t = 0; t < 8; t++) {
                dot = DQ_DOT(dot, u[t], vb_set4(q + 4 * t));
            }
            sum[i] = v_fma(v_from_int(dot), v_mul(d, v_set(r->d[j + i][g])), sum[i]);
        }
    }
    UNROLL
    for (int i = 0; i < nx; i++) {
        v_store_n(y + i * ldy, sum[i], n);
    }
}

// The columns i .. i + n - 1.
static void dq_columns_(const struct dq_rows_ * r, const struct gb_dots_q8_0 * p, const char * w, size_t nb_w,
    int64_t i, int n, bool first) {
    for (int j = 0; j < p->nx; j += DQ_X) {
        float * const y = p->y + j * p->ldy + i;
        switch (p->nx - j < DQ_X ? p->nx - j : DQ_X) {
            case 1: dq_tile_(1, r, j, w, nb_w, n, y, p->ldy, first); break;
            case 2: dq_tile_(2, r, j, w, nb_w, n, y, p->ldy, first); break;
#if DQ_X > 2
            case 3: dq_tile_(3, r, j, w, nb_w, n, y, p->ldy, first); break;
            case 4: dq_tile_(4, r, j, w, nb_w, n, y, p->ldy, first); break;
#endif
            default: break;
        }
    }
}

// The last n < V_N columns, with zeros behind them.
static void dq_last_(const struct dq_rows_ * r, const struct gb_dots_q8_0 * p, const char * w, int64_t i, int n,
    bool first) {
    enum { NB = DQ_GROUPS * DQ_SIZE };
    char some[V_N * NB] = { 0 };
    for (int c = 0; c < n; c++) {
        memcpy(some + c * NB, w + (size_t) c * p->nb_w, (size_t) r->groups * DQ_SIZE);
    }
    dq_columns_(r, p, some, NB, i, n, first);
}

static bool dots_q8_0(const struct gb_dots_q8_0 * p) {
    int64_t g = 0;
    do { // also without terms: sums are 0
        struct dq_rows_ r;
        dq_open_(&r, p, g);
        const char * w = (const char *) p->w + g * DQ_SIZE;
        int64_t i = 0;
        for (; i + V_N <= p->n; i += V_N, w += V_N * p->nb_w) {
            dq_columns_(&r, p, w, p->nb_w, i, V_N, g == 0);
        }
        if (i < p->n) {
            dq_last_(&r, p, w, i, (int) (p->n - i), g == 0);
        }
        g += DQ_GROUPS;
    } while (g < p->k / 32);
    return true;
}

#else

static bool dots_q8_0(const struct gb_dots_q8_0 * p) {
    (void) p;
    return false;
}
#endif
