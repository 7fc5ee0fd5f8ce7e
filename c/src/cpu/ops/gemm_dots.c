// gemm_dots.c - products with few rows of x: columns of w are read once, as they lie, and multiplied with all rows.
//
// Three ways: weights in bytes with rows that were rounded to bytes (gemm_bytes.h), several columns of floats at a time, and one dot
// product after the other for what is left. Which one is taken, and in which order a sum is made, depends on shapes and types alone.
#include "cpu/ops/gemm_impl.h"

#define DOT_ROWS 2     // up to so many rows a group, packing w does not pay
#define DOT_TERMS 1024 // of a quantized column that are dequantized at a time for a dot product
#define DENSE_DOT_ROWS 8 // of floats, and where several columns are taken at a time
#define DENSE_DOT_TERMS 1024

bool gb_gemm_uses_dots(const struct gb_gemm * p) {
    if (gb_gemm_uses_bytes(p)) {
        return p->rows <= GB_BYTES_DOTS;
    }
    if (gb_gemm_uses_dense_dots(p)) {
        return p->rows <= DENSE_DOT_ROWS;
    }
    const bool fits = ggml_is_quantized(p->w.type) ? p->x.type == GGML_TYPE_F32 : !ggml_is_quantized(p->x.type);
    return p->rows <= DOT_ROWS && gb_gemm_is_dense(&p->w) && gb_gemm_is_dense(&p->x) && fits;
}

size_t gb_gemm_dots_work_size(const struct gb_gemm * p) {
    return gb_gemm_uses_bytes(p) ? (size_t) p->total * gb_bytes_row_size(p->k, GB_BYTES_HALVES) : 0;
}

// ------------------------------------------------------------------------------------------------------------------- dots

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
static void dots_quantized(const struct gb_kernels * kernels, const struct gb_gemm * p, const char * w, const struct gb_gemm_row * row,
                           int rows, int64_t j) {
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

static void dots(const struct gb_kernels * kernels, const struct gb_gemm * p, const char * w, const struct gb_gemm_row * row, int rows,
                 int64_t j) {
    for (int r = 0; r < rows; r++) {
        row[r].dst[j] = dot(kernels, p, w, row[r].x);
    }
}

// Columns [j, end) of dense weights times rows of floats.
static void dots_dense(const struct gb_kernels * kernels, const struct gb_gemm * p, const struct gb_gemm_matrix * w,
                       const struct gb_gemm_row * row, int rows, int64_t j, int64_t end) {
    enum { ROWS = 4, COLUMNS = 4 }; // at most
    void (*const fn)(int64_t, int, int, float *, const void * const *, const float * const *) =
        p->w.type == GGML_TYPE_F16 ? kernels->dots_f16 : p->w.type == GGML_TYPE_BF16 ? kernels->dots_bf16 : kernels->dots_f32;
    for (int nw; j < end; j += nw) {
        const void * columns[COLUMNS];
        nw = (int) GB_MIN(end - j, kernels->dots_w);
        for (int i = 0; i < nw; i++) {
            columns[i] = w->data + (size_t) (j + i) * w->nb_m;
        }
        int64_t k0 = 0;
        do { // the columns stay in the first-level cache for all rows
            const int64_t kc = rows <= ROWS ? p->k : GB_MIN(p->k - k0, DENSE_DOT_TERMS);
            for (int r0 = 0; r0 < rows; r0 += ROWS) {
                const int     nx = GB_MIN(rows - r0, ROWS);
                const float * x[ROWS];
                float         y[ROWS * COLUMNS];
                for (int r = 0; r < nx; r++) {
                    x[r] = (const float *) row[r0 + r].x + k0;
                }
                fn(kc, nw, nx, y, columns, x);
                for (int r = 0; r < nx; r++) {
                    for (int i = 0; i < nw; i++) {
                        float * const dst = row[r0 + r].dst + j + i;
                        *dst              = (k0 > 0 ? *dst : 0) + y[r * kernels->dots_w + i];
                    }
                }
            }
            for (int i = 0; i < nw; i++) {
                columns[i] = (const char *) columns[i] + (size_t) kc * p->w.nb_k;
            }
            k0 += kc;
        } while (k0 < p->k);
    }
}

// Columns of all groups, counted through, are shared out; a column of w is read once, for all rows.
void gb_gemm_run_dots(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    const bool             quantized = ggml_is_quantized(p->w.type), bytes = gb_gemm_uses_bytes(p), dense = gb_gemm_uses_dense_dots(p);
    const struct gb_unpack unpack = gb_unpack_of(call->k, p->w.type);
    int64_t                i, last;
    if (bytes) {
        gb_bytes_quantize_rows(call, p, unpack.kind, call->work);
        gb_cpu_barrier(call);
    }
    gb_cpu_share(call, p->n_groups * p->m, &i, &last);
    while (i < last) {
        const int64_t      g = i / p->m, column = i % p->m;
        const int64_t      end  = GB_MIN(p->m, column + last - i);
        const int          rows = (int) gb_gemm_group_rows(p, g);
        struct gb_gemm_row row[DENSE_DOT_ROWS];
        float *            dst[DENSE_DOT_ROWS];

        const struct gb_gemm_matrix w = p->w_of(p, g);
        const char * const          x = (const char *) call->work + (size_t) gb_gemm_first_row(p, g) * gb_bytes_row_size(p->k, unpack.kind);
        for (int r = 0; r < rows; r++) {
            row[r] = p->row_of(p, g, r);
            dst[r] = row[r].dst;
        }
        for (int64_t j = column; j < end && bytes && rows > 0; j++) {
            gb_bytes_dots(call->k, &unpack, p->w.type, p->k, w.data + (size_t) j * w.nb_m, rows, x, dst, j);
        }
        if (dense && rows > 0) {
            dots_dense(call->k, p, &w, row, rows, column, end);
        }
        for (int64_t j = column; j < end && !bytes && !dense; j++) {
            (quantized ? dots_quantized : dots)(call->k, p, w.data + (size_t) j * w.nb_m, row, rows, j);
        }
        i += end - column;
    }
}

