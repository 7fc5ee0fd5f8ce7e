// short.c - products of a few rows with short columns of Q8_0: queries with the keys of a cache, head by head.
//
// Rows are rounded to bytes once. Then threads divide the columns and multiply them in place, with
// one kernel call for each piece (kernels/dots_q8_0.tpl.h). The order of a sum depends on k alone.
#include "cpu/ops/product/algorithm.h"
#include "cpu/ops/product/tuning.h"

_Static_assert(GB_SHORT_ROWS <= GB_Q8_0_ROWS_MAX, "the kernel takes all rows");

#define PIECE 4096 // columns; a thread may stop after each piece

const char * gb_short_declines(const struct gb_gemm * p) {
    return p->w.type != GGML_TYPE_Q8_0 ? "the weights are not q8_0"
           : p->k > GB_SHORT_TERMS     ? "the columns are long"
           : p->rows > GB_SHORT_ROWS   ? "there are many rows"
                                       : gb_bytes_decline(p);
}

const char * gb_short_level_declines(const struct gb_gemm * p, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits) {
    (void) traits;
    return kernels->q8_0_rows == 0        ? "the level has no kernel for it"
           : p->rows > kernels->q8_0_rows ? "there are more rows than the level's kernel is fast for"
                                          : NULL;
}

size_t gb_short_work_size(const struct gb_gemm * p, int n_tasks) {
    return gb_gemm_prepared_size(p, gb_bytes_row_size(p->k, 0), n_tasks);
}

void gb_short_run(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    const size_t size = gb_bytes_row_size(p->k, 0);
    const struct gb_cpu_call preparation = gb_gemm_preparation(call, p, size);
    gb_bytes_quantize_rows(&preparation, p, 0, preparation.work);
    if (!gb_gemm_is_prepared(call, p)) {
        return;
    }
    struct gb_gemm_columns c = gb_gemm_share_columns(call, p);
    while (gb_gemm_next_columns(p, &c, PIECE)) {
        const struct gb_gemm_matrix w = p->w_of(p, c.g);
        struct gb_gemm_row row[GB_SHORT_ROWS];
        const int8_t * q[GB_SHORT_ROWS];
        const float * d[GB_SHORT_ROWS];
        for (int r = 0; r < c.rows; r++) {
            row[r] = p->row_of(p, c.g, r);
            q[r] = (const int8_t *) preparation.work + (size_t) (gb_gemm_first_row(p, c.g) + r) * size;
            d[r] = (const float *) (const void *) (q[r] + p->k);
        }
        const int64_t ld = gb_gemm_dst_stride(row, c.rows);
        const int taken = ld != 0 ? c.rows : 1; // per call
        for (int r = 0; r < c.rows; r += taken) {
            call->k->dots_q8_0(&(struct gb_dots_q8_0){
                .k = p->k,
                .n = c.n,
                .nx = taken,
                .w = w.data + (size_t) c.first * w.nb_m,
                .nb_w = w.nb_m,
                .q = q + r,
                .dx = d + r,
                .y = row[r].dst + c.first,
                .ldy = ld,
            });
        }
        if (gb_cpu_stopped(call, gb_gemm_work(c.rows, c.n, p->k))) {
            return;
        }
        gb_gemm_finish(call, p, c.g, c.first, c.n);
    }
}
