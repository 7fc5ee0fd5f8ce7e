// epilogue.c - the epilogue of a product, for algorithms that finish whole rows or columns.
#include "cpu/ops/product/algorithm.h"

void gb_gemm_finish_rows(const struct gb_cpu_call * call, const struct gb_gemm * p, int64_t g, int64_t first,
    int64_t end, int64_t column, int64_t n) {
    for (int64_t r = first; r < end && p->epilogue != NULL && n > 0; r++) {
        p->epilogue->finish(call, p->epilogue, p->row_of(p, g, r).dst + column, column, n);
        if (gb_cpu_stopped(call, n)) {
            return;
        }
    }
}

void gb_gemm_finish_all(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    int64_t first, last, flat = 0;
    if (p->epilogue == NULL) {
        return;
    }
    if (!gb_cpu_barrier(call)) {
        return;
    }
    gb_cpu_share(call, p->total, &first, &last);
    for (int64_t g = 0; g < p->n_groups && flat < last; g++) {
        const int64_t rows = gb_gemm_group_rows(p, g);
        gb_gemm_finish_rows(call, p, g, GB_MAX(first - flat, (int64_t) 0), GB_MIN(last - flat, rows), 0, p->m);
        flat += rows;
    }
}
