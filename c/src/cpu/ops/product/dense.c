// dense.c - products of few rows of f32 with columns of f32, f16 or bf16. Several columns are
// multiplied together, in place.
//
// dense_row: one row, at any address. dense_rows: copies the rows so that vectors do not cross
// cache lines and no two rows share sets of the cache. Stretches of their terms then stay in the
// first-level cache, and blocks of columns in the second-level cache. The order of a sum depends on
// shapes and types alone.
#include "cpu/ops/product/algorithm.h"
#include "cpu/ops/product/tuning.h"

static const char * declines(const struct gb_gemm * p, int64_t rows) {
    return ggml_is_quantized(p->w.type) ? "the weights are quantized"
           : p->x.type != GGML_TYPE_F32 ? "the activations are not f32"
           : !gb_gemm_both_dense(p)     ? "terms are not consecutive"
           : p->rows > rows             ? "there are many rows"
                                        : NULL;
}

// ----------------------------------------------------------------------------------------------------------- dense_row

const char * gb_dense_row_declines(const struct gb_gemm * p) { return declines(p, 1); }

// Multiplies one row with n columns of each stream. Stream s starts at column j + s * apart.
static void multiply_streams(const struct gb_kernels * kernels, const struct gb_gemm * p,
    const struct gb_gemm_matrix * w, const struct gb_gemm_row * row, int64_t j, int64_t n, int streams, int64_t apart) {
    const enum ggml_type type = p->w.type;
    gb_kernel_dots * dots = type == GGML_TYPE_F16    ? kernels->dots_f16
                            : type == GGML_TYPE_BF16 ? kernels->dots_bf16
                                                     : kernels->dots_f32;
    const size_t ahead = gb_gemm_ahead(w, ggml_row_size(type, p->k), GB_DENSE_AHEAD);
    for (int64_t i = j; i < j + n; i++) {
        const void * columns[GB_DOTS_W_MAX];
        float y[GB_DOTS_W_MAX];
        for (int s = 0; s < streams; s++) {
            columns[s] = w->data + (size_t) (i + s * apart) * w->nb_m;
        }
        dots(p->k, streams, y, columns, (const float *) row->x, ahead);
        for (int s = 0; s < streams; s++) {
            row->dst[i + s * apart] = y[s];
        }
    }
}

// Multiplies columns [j, end) with one row. The columns are cut into consecutive streams, which are
// read at the same time.
static void multiply_row(const struct gb_kernels * kernels, const struct gb_gemm * p, const struct gb_gemm_matrix * w,
    const struct gb_gemm_row * row, int64_t j, int64_t end) {
    const int width = kernels->dots_w;
    const int64_t each = (end - j) / width, last = j + each * width;
    multiply_streams(kernels, p, w, row, j, each, width, each);
    if (last < end) {
        multiply_streams(kernels, p, w, row, last, 1, (int) (end - last), 1);
    }
}

void gb_dense_row_run(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    struct gb_gemm_columns c = gb_gemm_share_columns(call, p);
    while (gb_gemm_next_columns(p, &c, gb_gemm_piece(p))) {
        const struct gb_gemm_matrix w = p->w_of(p, c.g);
        if (c.rows > 0) {
            const struct gb_gemm_row row = p->row_of(p, c.g, 0);
            multiply_row(call->k, p, &w, &row, c.first, c.first + c.n);
        }
        if (gb_cpu_stopped(call, gb_gemm_dots_work(p, c.rows, c.n))) {
            return;
        }
        gb_gemm_finish(call, p, c.g, c.first, c.n);
    }
}

// ---------------------------------------------------------------------------------------------------------- dense_rows

static const char * declines_rows(const struct gb_gemm * p, int64_t rows) {
    return declines(p, p->k < GB_DENSE_LONG ? rows / GB_DENSE_SHORT : rows);
}

const char * gb_dense_rows_declines(const struct gb_gemm * p) { return declines_rows(p, GB_DENSE_ROWS_NARROW); }

const char * gb_dense_rows_wide_declines(const struct gb_gemm * p) { return declines_rows(p, GB_DENSE_ROWS); }

const char * gb_dense_rows_wide_level_declines(const struct gb_gemm * p, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits) {
    (void) p;
    (void) traits;
    return kernels->rows_x > GB_ROWS_X_NARROW ? NULL : "a tile of the level has few rows";
}

static size_t copied_row_floats(const struct gb_gemm * p) { return (size_t) (p->k + 15) / 16 * 16 + 16; }

size_t gb_dense_rows_work_size(const struct gb_gemm * p, int n_tasks) {
    return gb_gemm_prepared_size(p, copied_row_floats(p) * sizeof(float), n_tasks);
}

static void copy_rows(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    int64_t i, last, flat = 0;
    gb_cpu_share(call, p->total, &i, &last);
    for (int64_t g = 0; g < p->n_groups && flat < last; g++) {
        const int64_t rows = gb_gemm_group_rows(p, g);
        for (int64_t r = GB_MAX(i - flat, 0); r < rows && flat + r < last; r++) {
            memcpy((float *) call->work + (size_t) (flat + r) * copied_row_floats(p), p->row_of(p, g, r).x,
                (size_t) p->k * sizeof(float));
            if (gb_cpu_stopped(call, p->k / 2)) {
                return;
            }
        }
        flat += rows;
    }
}

struct dense { // columns of dense weights times consecutive rows
    const struct gb_cpu_call * call;
    gb_kernel_rows_columns * fn; // of the type of the weights
    const char * w; // column 0
    size_t nb_m, nb_k;
    const float * x; // row 0
    size_t ldx;
    const struct gb_gemm_row * row;
    int64_t ldy; // floats from one row's dst to the next; 0: no fixed distance
    int rows, part; // all rows; rows of a tile
};

static void dense_tile(const struct dense * d, int64_t j, int nw, int64_t k0, int64_t kc, int r, int nx,
    const char * const * next) {
    struct gb_rows_columns tile = {
        .k = kc,
        .nw = nw,
        .nx = nx,
        .w = d->w + (size_t) j * d->nb_m + (size_t) k0 * d->nb_k,
        .nb_w = d->nb_m,
        .x = d->x + (size_t) r * d->ldx + k0,
        .ldx = d->ldx,
        .next = next,
    };
    if (d->ldy != 0) {
        tile.y = d->row[r].dst + j;
        tile.ldy = d->ldy;
        tile.accumulate = k0 > 0;
        d->fn(&tile);
        return;
    }
    float y[GB_ROWS_X_MAX * GB_ROWS_W];
    tile.y = y;
    tile.ldy = GB_ROWS_W;
    d->fn(&tile);
    for (int i = 0; i < nx * nw; i++) {
        float * const dst = d->row[r + i / nw].dst + j + i % nw;
        *dst = (k0 > 0 ? *dst : 0) + y[i / nw * GB_ROWS_W + i % nw];
    }
}

struct next { // columns of the stretch that is read next
    const char * first;
    int64_t n;
};

// The columns that the tile of column i and part q of the rows prefetches. The parts divide the
// four columns that follow this tile's columns.
static const char * const * prefetch_for(const struct dense * d, const struct next * next, int64_t i, int q, int parts,
    const char * columns[4]) {
    if (next->n == 0 || q >= parts) {
        return NULL;
    }
    const int each = (4 + parts - 1) / parts;
    for (int c = 0; c < 4; c++) {
        columns[c] = next->first + (size_t) GB_MIN(i + GB_MIN(q * each + c % each, 3), next->n - 1) * d->nb_m;
    }
    return columns;
}

// Multiplies columns [j, last), which stay in the second-level cache, with a stretch of terms of all rows. A set of
// rows fits into the first-level cache. The first set prefetches the next columns.
static void dense_block(const struct dense * d, int64_t j, int64_t last, int64_t k0, int64_t kc, int set,
    const struct next * next) {
    const int parts = GB_MIN((GB_MIN(d->rows, set) + d->part - 1) / d->part, 4); // parts that prefetch
    for (int first = 0; first < d->rows; first += set) {
        const int end = GB_MIN(d->rows, first + set);
        for (int64_t i = j; i < last; i += 4) {
            for (int r = first, q = 0; r < end; r += d->part, q++) {
                const char * columns[4];
                dense_tile(d, i, (int) GB_MIN(last - i, 4), k0, kc, r, GB_MIN(end - r, d->part),
                    first == 0 ? prefetch_for(d, next, i - j, q, parts, columns) : NULL);
            }
        }
    }
}

// Multiplies columns [j, end). The thread's next columns are the `ahead` columns after them.
static void multiply_rows(const struct dense * d, int64_t k, int64_t j, int64_t end, int64_t ahead) {
    const int64_t terms = GB_MIN(GB_MAX(GB_DENSE_FLOATS / d->rows, GB_DENSE_TERMS), GB_DENSE_TERMS_MAX);
    const int64_t stretches = GB_MAX(gb_div_up(k, terms), 1);
    const int64_t stretch = GB_MAX((k / stretches + 63) / 64 * 64, 64); // of about equal length
    const int64_t columns = GB_MAX(GB_DENSE_WEIGHTS / stretch / 4 * 4, 4);
    const int set = GB_MAX(GB_DENSE_FLOATS / (int) stretch / d->part, 1) * d->part;
    for (int64_t last; j < end; j = last) {
        int64_t k0 = 0;
        last = GB_MIN(end, j + columns);
        do { // once even for k = 0
            const int64_t kc = GB_MIN(k - k0, stretch);
            const bool more = k0 + kc < k; // these columns have more terms
            const struct next next = { d->w + (size_t) (more ? j : last) * d->nb_m +
                                           (size_t) (more ? k0 + kc : 0) * d->nb_k,
                more ? last - j : GB_MIN(end + ahead - last, columns) };
            dense_block(d, j, last, k0, kc, set, &next);
            if (gb_cpu_stopped(d->call, gb_gemm_work(d->rows, last - j, kc))) {
                return;
            }
            k0 += kc;
        } while (k0 < k);
    }
}

static struct dense dense_of(const struct gb_cpu_call * call, const struct gb_gemm * p, const struct gb_gemm_matrix * w,
    const struct gb_gemm_row * row, int rows) {
    const struct gb_kernels * const kernels = call->k;
    const int parts = (rows + kernels->rows_x - 1) / kernels->rows_x;
    return (struct dense){
        .call = call,
        .fn = p->w.type == GGML_TYPE_F16    ? kernels->rows_columns_f16
              : p->w.type == GGML_TYPE_BF16 ? kernels->rows_columns_bf16
                                            : kernels->rows_columns_f32,
        .w = w->data,
        .nb_m = w->nb_m,
        .nb_k = p->w.nb_k,
        .x = (const float *) row[0].x,
        .ldx = copied_row_floats(p),
        .row = row,
        .ldy = gb_gemm_dst_stride(row, rows),
        .rows = rows,
        .part = (rows + parts - 1) / parts,
    };
}

void gb_dense_rows_run(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    const struct gb_cpu_call preparation = gb_gemm_preparation(call, p, copied_row_floats(p) * sizeof(float));
    copy_rows(&preparation, p);
    if (!gb_gemm_is_prepared(call, p)) {
        return;
    }
    struct gb_gemm_columns c = gb_gemm_share_columns(call, p);
    while (gb_gemm_next_columns(p, &c, p->m)) {
        const struct gb_gemm_matrix w = p->w_of(p, c.g);
        const float * const x = (float *) preparation.work + (size_t) gb_gemm_first_row(p, c.g) * copied_row_floats(p);
        struct gb_gemm_row row[GB_MAX(GB_DENSE_ROWS, GB_DENSE_ROWS_NARROW)];
        gb_gemm_rows_of(p, c.g, 0, c.rows, row);
        for (int r = 0; r < c.rows; r++) {
            row[r].x = (const char *) (x + (size_t) r * copied_row_floats(p));
        }
        if (c.rows > 0) {
            const struct dense d = dense_of(call, p, &w, row, c.rows);
            multiply_rows(&d, p->k, c.first, c.first + c.n, c.ahead);
        }
        if (gb_cpu_stopped(call, 0)) {
            return;
        }
        gb_gemm_finish(call, p, c.g, c.first, c.n);
    }
}
