// short.c - products of a few rows with short columns of Q8_0: queries with the keys of a cache, head by head.
//
// Rows are rounded to bytes once, by all threads; then columns are shared out and multiplied where they lie, all of a
// thread in one call of the kernel (kernels/dots_q8_0.tpl.h). How a result comes about depends on k alone.
#include "cpu/ops/product/algorithm.h"

#define ROWS_MAX  16   // of a level, at most
#define TERMS_MAX 256  // longer columns fill the lanes of other kernels
#define PIECE     4096 // columns between which a thread may stop

bool gb_gemm_may_be_short(const struct gb_gemm * p) {
    return gb_gemm_uses_bytes(p) && p->w.type == GGML_TYPE_Q8_0 && p->k <= TERMS_MAX && p->rows <= ROWS_MAX;
}

bool gb_gemm_is_short(const struct gb_gemm * p, const struct gb_kernels * kernels) {
    return p->rows <= kernels->q8_0_rows && gb_gemm_may_be_short(p);
}

size_t gb_gemm_short_work_size(const struct gb_gemm * p) { return (size_t) p->total * gb_bytes_row_size(p->k, 0); }

void gb_gemm_run_short(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    const size_t size = gb_bytes_row_size(p->k, 0);
    int64_t      i, last;
    gb_bytes_quantize_rows(call, p, 0, call->work);
    if (!gb_cpu_barrier(call)) {
        return;
    }
    gb_cpu_share(call, p->n_groups * p->m, &i, &last);
    while (i < last) {
        const int64_t g = i / p->m, column = i % p->m, n = GB_MIN(GB_MIN(p->m - column, last - i), (int64_t) PIECE);
        const int     rows                = (int) gb_gemm_group_rows(p, g);
        const struct gb_gemm_matrix w     = p->w_of(p, g);
        const char * const          first = w.data + (size_t) column * w.nb_m;
        struct gb_gemm_row          row[ROWS_MAX];
        const int8_t *              q[ROWS_MAX];
        const float *               d[ROWS_MAX];
        for (int r = 0; r < rows; r++) {
            row[r] = p->row_of(p, g, r);
            q[r]   = (const int8_t *) call->work + (size_t) (gb_gemm_first_row(p, g) + r) * size;
            d[r]   = (const float *) (const void *) (q[r] + p->k);
        }
        const int64_t ld    = gb_gemm_dst_stride(row, rows);
        const int     taken = ld != 0 ? rows : 1; // at a time
        for (int r = 0; r < rows; r += taken) {
            call->k->dots_q8_0(p->k, n, taken, first, w.nb_m, q + r, d + r, row[r].dst + column, ld);
        }
        if (gb_cpu_stopped(call, gb_gemm_work(rows, n, p->k))) {
            return;
        }
        i += n;
    }
}
