// epilogue.c - applies the epilogue of a product, for algorithms that complete columns of all rows.
#include "cpu/ops/product/algorithm.h"

void gb_gemm_finish(const struct gb_cpu_call * call, const struct gb_gemm * p, int64_t g, int64_t column, int64_t n) {
    for (int64_t r = 0; r < gb_gemm_group_rows(p, g) && p->epilogue != NULL && n > 0; r++) {
        p->epilogue->finish(call, p->epilogue, g, p->row_of(p, g, r).dst + column, column, n);
        if (gb_cpu_stopped(call, n)) {
            return;
        }
    }
}
