// dots.c - products with few rows of x: columns of w are read once, as they lie, and multiplied with all rows.
//
// Three ways: weights in bytes with rows that were rounded to bytes (bytes.h), several columns of floats at a
// time, and one dot product after the other for what is left. Which one is taken, and in which order a sum is made,
// depends on shapes and types alone.
#include "cpu/ops/product/algorithm.h"

#define DOT_ROWS       2         // up to so many rows a group, packing w does not pay
#define DOT_TERMS      1024      // of a quantized column that are dequantized at a time for a dot product
#define AHEAD_FAR      (1 << 18) // bytes to columns that may be asked for,
#define AHEAD          2048      // else to terms of the same one
#define DENSE_DOT_ROWS 64 // of floats, and where several columns are taken at a time: more are worth packing w for
#define DENSE_DOT_ROWS_SHORT 16   // when sums have fewer terms than
#define DENSE_DOT_LONG       128  // so many: the lanes are added once for them
#define DENSE_DOT_ROWS_BF16  16   // panels of pairs are worth it sooner
#define DENSE_DOT_FLOATS     8192 // of rows that stay in the first-level cache while columns pass by
#define DENSE_DOT_TERMS      512  // at least; each stretch of terms ends with the sums of all lanes
#define DENSE_DOT_TERMS_MAX  2048
#define DENSE_PART_MAX       8     // rows that a kernel takes at a time, at most
#define DENSE_DOT_WEIGHTS    24576 // that pass by, one stretch of terms after the other
#define PIECE (1 << 18)            // weights between which a thread may stop, where columns pass by one after the other

bool gb_gemm_uses_dots(const struct gb_gemm * p) {
    if (gb_gemm_uses_bytes(p)) {
        return p->rows <= GB_BYTES_DOTS;
    }
    if (gb_gemm_uses_dense_dots(p)) {
        return p->rows <= (p->w.type == GGML_TYPE_BF16 ? DENSE_DOT_ROWS_BF16
                              : p->k < DENSE_DOT_LONG  ? DENSE_DOT_ROWS_SHORT
                                                       : DENSE_DOT_ROWS);
    }
    const bool fits = ggml_is_quantized(p->w.type) ? p->x.type == GGML_TYPE_F32 : !ggml_is_quantized(p->x.type);
    return p->rows <= DOT_ROWS && gb_gemm_is_dense(&p->w) && gb_gemm_is_dense(&p->x) && fits;
}

// Where there are several, rows are copied to where vectors do not straddle cache lines, and rows not each other's
// sets.
static bool copies_rows(const struct gb_gemm * p) { return p->rows > 1 && gb_gemm_uses_dense_dots(p); }

static size_t copied_row_floats(const struct gb_gemm * p) { return (size_t) (p->k + 15) / 16 * 16 + 16; }

size_t gb_gemm_dots_work_size(const struct gb_gemm * p) {
    if (gb_gemm_uses_bytes(p)) {
        return (size_t) p->total * gb_bytes_row_size(p->k, GB_BYTES_HALVES);
    }
    return copies_rows(p) ? (size_t) p->total * copied_row_floats(p) * sizeof(float) + 64 : 0;
}

static float * copied_rows(const struct gb_cpu_call * call) {
    return (float *) ((char *) call->work + (64 - (uintptr_t) call->work % 64) % 64);
}

static void copy_rows(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    int64_t i, last, flat = 0;
    gb_cpu_share(call, p->total, &i, &last);
    for (int64_t g = 0; g < p->n_groups && flat < last; g++) {
        const int64_t rows = gb_gemm_group_rows(p, g);
        for (int64_t r = GB_MAX(i - flat, 0); r < rows && flat + r < last; r++) {
            memcpy(copied_rows(call) + (size_t) (flat + r) * copied_row_floats(p), p->row_of(p, g, r).x,
                (size_t) p->k * sizeof(float));
            if (gb_cpu_stopped(call, p->k / 2)) {
                return;
            }
        }
        flat += rows;
    }
}

// ---------------------------------------------------------------------------------------------------------------- dots

static float dot(const struct gb_kernels * kernels, const struct gb_gemm * p, const char * w, const char * x) {
    const bool wide = p->x.type == GGML_TYPE_F32;
    switch (p->w.type) {
        case GGML_TYPE_F16:
            return wide ? kernels->dot_f16_f32(p->k, (const uint16_t *) w, (const float *) x)
                        : kernels->dot_f16(p->k, (const uint16_t *) w, (const uint16_t *) x);
        case GGML_TYPE_BF16:
            return wide ? kernels->dot_bf16_f32(p->k, (const uint16_t *) w, (const float *) x)
                        : kernels->dot_bf16(p->k, (const uint16_t *) w, (const uint16_t *) x);
        default: return kernels->dot_f32(p->k, (const float *) w, (const float *) x);
    }
}

// Column j of w, quantized, times all rows, which are f32.
static void dots_quantized(const struct gb_kernels * kernels, const struct gb_gemm * p, const char * w,
    const struct gb_gemm_row * row, int rows, int64_t j) {
    float buf[DOT_TERMS];
    for (int r = 0; r < rows; r++) {
        row[r].dst[j] = 0;
    }
    for (int64_t k = 0; k < p->k; k += DOT_TERMS) {
        const int64_t n = GB_MIN(p->k - k, DOT_TERMS);
        gb_gemm_dequantize(p->w.type, w + gb_gemm_term_offset(&p->w, k), n, buf);
        for (int r = 0; r < rows; r++) {
            row[r].dst[j] += kernels->dot_f32(n, buf, (const float *) row[r].x + k);
        }
    }
}

static void dots(const struct gb_kernels * kernels, const struct gb_gemm * p, const char * w,
    const struct gb_gemm_row * row, int rows, int64_t j) {
    for (int r = 0; r < rows; r++) {
        row[r].dst[j] = dot(kernels, p, w, row[r].x);
    }
}

// Columns [j, end) with one row, anywhere: w passes by once, from wherever it is. The columns that come next are asked
// for: what lies some way behind in the same column would leave out the start of each, half of a short one.
static void dots_dense_one(const struct gb_kernels * kernels, const struct gb_gemm * p, const struct gb_gemm_matrix * w,
    const struct gb_gemm_row * row, int64_t j, int64_t end) {
    const enum ggml_type type  = p->w.type;
    const int            width = kernels->dots_w;
    const size_t         next = (size_t) width * w->nb_m, ahead = next <= AHEAD_FAR ? next : AHEAD;
    for (; j < end; j += width) {
        const void * columns[4];
        const int    nw = (int) GB_MIN(end - j, width);
        for (int i = 0; i < nw; i++) {
            columns[i] = w->data + (size_t) (j + i) * w->nb_m;
        }
        (type == GGML_TYPE_F16 ? kernels->dots_f16
            : type == GGML_TYPE_BF16
                ? kernels->dots_bf16
                : kernels->dots_f32)(p->k, nw, row->dst + j, columns, (const float *) row->x, ahead);
    }
}

typedef void (*rows_columns_fn)(int64_t, int, int, const void *, size_t, const float *, size_t, float *, int64_t, bool,
    const char * const *);

struct dense { // columns of dense weights times rows that lie one behind the other
    const struct gb_cpu_call * call;
    rows_columns_fn            fn;
    const char *               w; // column 0
    size_t                     nb_m, nb_k;
    const float *              x; // row 0
    size_t                     ldx;
    const struct gb_gemm_row * row;
    int64_t                    ldy;        // floats from one row's dst to the next; 0: they are anywhere
    int                        rows, part; // all; at a time
};

static void dense_tile(const struct dense * d, int64_t j, int nw, int64_t k0, int64_t kc, int r, int nx,
    const char * const * next) {
    const char * const  w = d->w + (size_t) j * d->nb_m + (size_t) k0 * d->nb_k;
    const float * const x = d->x + (size_t) r * d->ldx + k0;
    if (d->ldy != 0) {
        d->fn(kc, nw, nx, w, d->nb_m, x, d->ldx, d->row[r].dst + j, d->ldy, k0 > 0, next);
        return;
    }
    float y[DENSE_PART_MAX * 4];
    d->fn(kc, nw, nx, w, d->nb_m, x, d->ldx, y, 4, false, next);
    for (int i = 0; i < nx * nw; i++) {
        float * const dst = d->row[r + i / nw].dst + j + i % nw;
        *dst              = (k0 > 0 ? *dst : 0) + y[i / nw * 4 + i % nw];
    }
}

struct next { // columns, a stretch of whose terms is read next
    const char * first;
    int64_t      n;
};

// What the tile of column i of a block with part q of the rows asks for: the parts share out the four columns that take
// this tile's place.
static const char * const * ask(const struct dense * d, const struct next * next, int64_t i, int q, int parts,
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

// Columns [j, last), which stay in the second-level cache, times a stretch of terms of all rows: of as many as fit the
// first-level cache at a time. The first of these sets asks for what comes next.
static void dense_block(const struct dense * d, int64_t j, int64_t last, int64_t k0, int64_t kc, int set,
    const struct next * next) {
    const int parts = GB_MIN((GB_MIN(d->rows, set) + d->part - 1) / d->part, 4); // that ask
    for (int first = 0; first < d->rows; first += set) {
        const int end = GB_MIN(d->rows, first + set);
        for (int64_t i = j; i < last; i += 4) {
            for (int r = first, q = 0; r < end; r += d->part, q++) {
                const char * columns[4];
                dense_tile(d, i, (int) GB_MIN(last - i, 4), k0, kc, r, GB_MIN(end - r, d->part),
                    first == 0 ? ask(d, next, i - j, q, parts, columns) : NULL);
            }
        }
    }
}

static void dots_dense_many(const struct dense * d, int64_t k, int64_t j, int64_t end) {
    const int64_t terms     = GB_MIN(GB_MAX(DENSE_DOT_FLOATS / d->rows, DENSE_DOT_TERMS), DENSE_DOT_TERMS_MAX);
    const int64_t stretches = GB_MAX((k + terms - 1) / terms, 1);
    const int64_t stretch   = GB_MAX((k / stretches + 63) / 64 * 64, 64); // of one length, about
    const int64_t columns   = GB_MAX(DENSE_DOT_WEIGHTS / stretch / 4 * 4, 4);
    const int     set       = GB_MAX(DENSE_DOT_FLOATS / (int) stretch / d->part, 1) * d->part;
    for (int64_t last; j < end; j = last) {
        int64_t k0 = 0;
        last       = GB_MIN(end, j + columns);
        do { // once even for k = 0
            const int64_t     kc   = GB_MIN(k - k0, stretch);
            const bool        more = k0 + kc < k; // terms of these columns; else the next columns
            const struct next next = { d->w + (size_t) (more ? j : last) * d->nb_m +
                                           (size_t) (more ? k0 + kc : 0) * d->nb_k,
                more ? last - j : GB_MIN(end - last, columns) };
            dense_block(d, j, last, k0, kc, set, &next);
            if (gb_cpu_stopped(d->call, gb_gemm_work(d->rows, last - j, kc))) {
                return;
            }
            k0 += kc;
        } while (k0 < k);
    }
}

static void dots_dense(const struct gb_cpu_call * call, const struct gb_gemm * p, const struct gb_gemm_matrix * w,
    const struct gb_gemm_row * row, int rows, int64_t j, int64_t end) {
    const struct gb_kernels * const kernels = call->k;
    if (!copies_rows(p)) {
        dots_dense_one(kernels, p, w, row, j, end);
        return;
    }
    const int          parts = (rows + kernels->rows_x - 1) / kernels->rows_x;
    const struct dense d     = {
        .call = call,
        .fn   = p->w.type == GGML_TYPE_F16    ? kernels->rows_columns_f16
                : p->w.type == GGML_TYPE_BF16 ? kernels->rows_columns_bf16
                                              : kernels->rows_columns_f32,
        .w    = w->data,
        .nb_m = w->nb_m,
        .nb_k = p->w.nb_k,
        .x    = (const float *) row[0].x,
        .ldx  = copied_row_floats(p),
        .row  = row,
        .ldy  = gb_gemm_dst_stride(row, rows),
        .rows = rows,
        .part = (rows + parts - 1) / parts,
    };
    dots_dense_many(&d, p->k, j, end);
}

// Columns of all groups, counted through, are shared out; a column of w is read once, for all rows.
void gb_gemm_run_dots(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    const bool             quantized = ggml_is_quantized(p->w.type), bytes = gb_gemm_uses_bytes(p),
                           dense  = gb_gemm_uses_dense_dots(p);
    const struct gb_unpack unpack = gb_unpack_of(call->k, p->w.type);
    int64_t                i, last;
    if (bytes) {
        gb_bytes_quantize_rows(call, p, unpack.kind, call->work);
    } else if (copies_rows(p)) {
        copy_rows(call, p);
    }
    if ((bytes || copies_rows(p)) && !gb_cpu_barrier(call)) {
        return;
    }
    gb_cpu_share(call, p->n_groups * p->m, &i, &last);
    while (i < last) {
        const int64_t      g = i / p->m, column = i % p->m;
        const int64_t      end  = GB_MIN(p->m, column + last - i);
        const int          rows = (int) gb_gemm_group_rows(p, g);
        struct gb_gemm_row row[DENSE_DOT_ROWS];
        float *            dst[DENSE_DOT_ROWS];

        const struct gb_gemm_matrix w = p->w_of(p, g);
        const char * const          x =
            (const char *) call->work + (size_t) gb_gemm_first_row(p, g) * gb_bytes_row_size(p->k, unpack.kind);
        for (int r = 0; r < rows; r++) {
            row[r] = p->row_of(p, g, r);
            dst[r] = row[r].dst;
            if (copies_rows(p)) {
                row[r].x =
                    (const char *) (copied_rows(call) + (size_t) (gb_gemm_first_row(p, g) + r) * copied_row_floats(p));
            }
        }
        const int64_t piece =
            bytes || !copies_rows(p) ? GB_MAX(PIECE / GB_MAX(p->k, 1) / 64 * 64, (int64_t) 64) : end - column;
        for (int64_t from = column; from < end; from += piece) {
            const int64_t to = GB_MIN(end, from + piece);
            for (int64_t j = from; j < to && bytes && rows > 0; j++) {
                gb_bytes_dots(call->k, &unpack, p->w.type, p->k, w.data + (size_t) j * w.nb_m, rows, x, dst, j);
            }
            if (dense && rows > 0) {
                dots_dense(call, p, &w, row, rows, from, to);
            }
            for (int64_t j = from; j < to && !bytes && !dense; j++) {
                (quantized ? dots_quantized : dots)(call->k, p, w.data + (size_t) j * w.nb_m, row, rows, j);
            }
            if (gb_cpu_stopped(call, GB_MAX(rows, 4) * (to - from) * p->k / 8)) {
                return;
            }
        }
        gb_gemm_finish_rows(call, p, g, 0, rows, column, end - column);
        i += end - column;
    }
}
