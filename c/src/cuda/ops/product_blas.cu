// product_blas.cu - products of floats by cuBLAS, if the backend has it.
#include <mutex>

#include "cuda/blas.h"
#include "cuda/ops/products.h"

// Number of calls for all slices, 0 if there are too many. A call computes slices at equal distances.
static int64_t calls_for_slices(const gb_product & p) {
    enum { CALLS_MAX = 64 };
    const bool even = p.w.r2 == 1 && p.w.r3 == 1;
    const int64_t calls = even ? gb_cuda_ceil_div(p.slices, p.w.ne2) : p.slices;
    return calls <= CALLS_MAX ? calls : 0;
}

const char * gb_blas_declines(const gb_cuda_backend & b, const gb_product & p) {
    const int64_t size = (int64_t) ggml_type_size((enum ggml_type) p.type);
    return b.blas == NULL                    ? "cuBLAS is not used (GGML_CUDA_CUBLAS)"
           : gb_is_format(p.type)            ? "the weights are quantized"
           : p.w.ids != NULL                 ? "rows have different experts"
           : p.rows <= GB_PRODUCT_FEW_ROWS   ? "needs more than 8 rows"
           : !gb_product_is_along(p)         ? "the sum goes across the weights"
           : (int64_t) p.w.nb_m < p.k * size ? "rows of the weights overlap"
           : calls_for_slices(p) == 0        ? "the slices need too many calls"
           : p.type == GGML_TYPE_F32         ? NULL
           : p.exact                         ? "GGML_PREC_F32 rounds sums only"
           : gb_product_is_aligned(p)        ? NULL
                                             : "rows of the weights do not begin at multiples of 16 bytes";
}

static bool queue_blas(gb_cuda_backend & b, const gb_product & p, const gb_ready_rows & x, int64_t calls,
    int64_t each) {
    const bool listed = b.queue.list != NULL;
    std::unique_lock<std::mutex> no_waiting(gb_cuda_wait_lock(b.device), std::defer_lock);
    const int64_t size = (int64_t) ggml_type_size((enum ggml_type) p.type);
    gb_cuda_blas_product q = { p.type, NULL, x.x, p.dst, p.m, p.k, p.rows, (int64_t) p.w.nb_m / size, x.x_row,
        (int64_t) p.w.nb2 / size, each };
    if (listed) {
        no_waiting.lock();
    }
    gb_queue_begin_library(b.queue);
    bool ok = true;
    for (int64_t i = 0; i < calls && ok; i++) {
        const int64_t z = i * each;
        q.w = p.w.a[0] + z % p.w.ne2 / p.w.r2 * (int64_t) p.w.nb2 + z / p.w.ne2 / p.w.r3 * (int64_t) p.w.nb3;
        q.x = (const char *) x.x + z * p.rows * x.x_row * size;
        q.dst = p.dst + z * p.rows * p.m;
        ok = gb_cuda_blas_run(b.blas, q, listed);
    }
    gb_queue_end_library(b.queue);
    if (listed && !ok) {
        b.queue.list->broken = true;
    }
    return ok;
}

gb_row_kind gb_blas_rows(const gb_product & p) { return p.type == GGML_TYPE_F32 ? GB_ROWS_F32 : gb_product_halves(p); }

// UNSUPPORTED: the next algorithm computes the product.
enum ggml_status gb_blas_run(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind) {
    const int64_t calls = calls_for_slices(p);
    const size_t before = b.scratch.used;
    gb_ready_rows x = {};
    const enum ggml_status status = gb_product_make_rows(b, p, kind, {}, false, &x);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    if (!b.queue.nowhere && queue_blas(b, p, x, calls, p.slices / calls)) {
        return GGML_STATUS_SUCCESS;
    }
    b.scratch.used = before; // the next algorithm makes other rows; a dry run measures both
    return GGML_STATUS_UNSUPPORTED;
}
