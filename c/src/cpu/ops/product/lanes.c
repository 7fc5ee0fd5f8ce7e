// lanes.c - algorithm lanes: small products of some rows of f32. The lanes of a register hold rows of activations.
//
// Usually a tile has rows of activations as its rows, and packed columns of weights in its lanes.
// Here the operands change places: rows of activations are packed, and weights are read in place,
// one by one. The tiles are transposed when they are stored. With few rows, packing them and
// transposing the results costs less than packing the weights. Each thread packs the rows for
// itself, so no thread waits.
#include "cpu/ops/product/algorithm.h"
#include "cpu/ops/product/tuning.h"

enum {
    COLUMNS = 48, // that are transposed at a time: whole tiles and whole vectors at every level
    STRETCH = GB_LANES_TERMS,
};

_Static_assert(GB_LANES_ROWS % GB_GEMM_NR_MAX == 0, "panels");

const char * gb_lanes_declines(const struct gb_gemm * p) {
    const int64_t padded = gb_div_up(p->rows, 16) * 16;
    if (p->w.type != GGML_TYPE_F32 || p->x.type != GGML_TYPE_F32) {
        return "the operands are not f32";
    }
    if (!gb_gemm_both_dense(p)) {
        return "terms are not consecutive";
    }
    if (p->run == 0) { // the number of rows is not known when a plan is made
        return "rows may be anywhere";
    }
    if (p->rows > GB_LANES_ROWS || (double) p->m * (double) p->k > GB_LANES_WEIGHTS) {
        return "the operands are large";
    }
    if (p->rows * (p->m + p->k) > p->m * p->k) {
        return "packing weights costs less than turning results";
    }
    if (p->k % 1024 == 0) {
        return "columns are multiples of 4 KiB apart, and would evict each other from the first-level cache";
    }
    if (p->rows <= GB_LANES_FEW && p->k > GB_LANES_SHORT) {
        return "adding the lanes of few long sums costs less";
    }
    return 8 * p->rows < 7 * padded ? "there are few rows for the lanes" : NULL;
}

static int64_t panel_floats(const struct gb_gemm * p) { return GB_GEMM_NR_MAX * p->k; }

// Of a thread: panels of rows, a panel of columns that cannot be read in place, and results before
// and after they are transposed.
static int64_t memory_floats(const struct gb_gemm * p) {
    return GB_GEMM_NR_MAX + gb_div_up(p->rows, GB_GEMM_NR_MAX) * panel_floats(p) + GB_GEMM_MR_MAX * STRETCH +
           2 * COLUMNS * GB_GEMM_NR_MAX;
}

static size_t memory_size(const struct gb_gemm * p) { return gb_lines((size_t) memory_floats(p) * sizeof(float)); }

size_t gb_lanes_work_size(const struct gb_gemm * p, int n_tasks) { return memory_size(p) * (size_t) n_tasks; }

struct lanes { // what a thread computes with
    const struct gb_cpu_call * call;
    const struct gb_gemm * p;
    int nr, rows;
    struct gb_gemm_row row[GB_LANES_ROWS];
    int64_t ldy; // floats from one row's dst to the next; 0: they are anywhere
    float *panels, *columns, *sums, *turned;
};

static void pack_group(struct lanes * l, int64_t g) {
    const struct gb_gemm * p = l->p;
    gb_gemm_rows_of(p, g, 0, l->rows, l->row);
    l->ldy = gb_gemm_dst_stride(l->row, l->rows);
    for (int r = 0; r < l->rows; r += l->nr) {
        const void * x[GB_GEMM_NR_MAX];
        const int n = GB_MIN(l->nr, l->rows - r);
        for (int i = 0; i < n; i++) {
            x[i] = l->row[r + i].x;
        }
        l->call->k->pack_f32(p->k, n, l->nr, l->panels + (int64_t) r * p->k, x);
    }
}

// Sums of n columns from `column` on with the rows of the panel at r: [n][nr].
static void multiply(const struct lanes * l, const struct gb_gemm_matrix * w, int64_t column, int n, int r) {
    const struct gb_kernels * kernels = l->call->k;
    const bool in_place = w->nb_m % sizeof(float) == 0 && (uintptr_t) w->data % sizeof(float) == 0;
    struct gb_tile t = { .ldc = l->nr, .nr = GB_MIN(l->nr, l->rows - r) };
    for (int64_t k0 = 0; k0 == 0 || k0 < l->p->k; k0 += STRETCH) {
        t.k = GB_MIN(l->p->k - k0, (int64_t) STRETCH);
        t.b = l->panels + r * l->p->k + k0 * l->nr;
        t.accumulate = k0 > 0;
        for (int i = 0; i < n; i += kernels->gemm_mr) {
            const char * first = w->data + (size_t) (column + i) * w->nb_m + (size_t) k0 * sizeof(float);
            t.mr = GB_MIN(kernels->gemm_mr, n - i);
            t.c = l->sums + i * l->nr;
            t.a = (const float *) (const void *) first;
            t.lda = (int64_t) (w->nb_m / sizeof(float));
            if (!in_place) {
                const void * columns[GB_GEMM_MR_MAX];
                for (int c = 0; c < t.mr; c++) {
                    columns[c] = first + (size_t) c * w->nb_m;
                }
                kernels->pack_f32(t.k, t.mr, kernels->gemm_mr, l->columns, columns);
                t.a = l->columns;
                t.lda = 0;
            }
            kernels->gemm_tile_f32(&t);
        }
    }
}

// Stores the sums of n columns as rows.
static void turn(const struct lanes * l, int64_t column, int n, int r) {
    const int rows = GB_MIN(l->nr, l->rows - r);
    float * to = l->ldy != 0 ? l->row[r].dst + column : l->turned;
    const size_t nb = (size_t) (l->ldy != 0 ? l->ldy : COLUMNS) * sizeof(float);
    l->call->k->transpose_32(n, rows, (uint32_t *) (void *) to, nb, (const uint32_t *) (const void *) l->sums,
        (size_t) l->nr * sizeof(float));
    for (int i = 0; i < rows && l->ldy == 0; i++) {
        memcpy(l->row[r + i].dst + column, l->turned + i * COLUMNS, (size_t) n * sizeof(float));
    }
}

void gb_lanes_run(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    struct lanes l = { .call = call, .p = p, .nr = call->k->gemm_nr };
    l.panels = (float *) (void *) ((char *) call->work + (size_t) call->ith * memory_size(p));
    l.columns = l.panels + gb_div_up(p->rows, GB_GEMM_NR_MAX) * panel_floats(p);
    l.sums = l.columns + GB_GEMM_MR_MAX * STRETCH;
    l.turned = l.sums + COLUMNS * GB_GEMM_NR_MAX;
    struct gb_gemm_columns c = gb_gemm_share_columns(call, p);
    int64_t packed = -1;
    while (gb_gemm_next_columns(p, &c, COLUMNS)) {
        const struct gb_gemm_matrix w = p->w_of(p, c.g);
        l.rows = c.rows;
        if (c.g != packed) {
            pack_group(&l, c.g);
            packed = c.g;
        }
        for (int r = 0; r < l.rows; r += l.nr) {
            multiply(&l, &w, c.first, (int) c.n, r);
            turn(&l, c.first, (int) c.n, r);
        }
        if (gb_cpu_stopped(call, gb_gemm_work(c.rows, c.n, p->k))) {
            return;
        }
        gb_gemm_finish(call, p, c.g, c.first, c.n);
    }
}
