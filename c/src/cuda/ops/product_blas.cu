// product_blas.cu - products of floats by cuBLAS, if the backend has it.
#include <mutex>

#include "cuda/blas.h"
#include "cuda/ops/products.h"

static bool blas_suits(const gb_cuda_backend & b, const gb_product & p) {
    const bool halves = !p.exact && !gb_is_format(p.type) && p.type != GGML_TYPE_F32 && gb_product_is_aligned(p);
    return b.blas != NULL && p.w.ids == NULL && p.k > 0 && p.rows > GB_PRODUCT_FEW_ROWS && gb_product_is_along(p) &&
           (halves || p.type == GGML_TYPE_F32);
}

// Number of calls that compute all slices, each evenly spaced slices; 0: too many.
static int64_t calls_for_slices(const gb_product & p) {
    enum { CALLS_MAX = 64 };
    const bool even = p.w.r2 == 1 && p.w.r3 == 1;
    const int64_t calls = even ? gb_cuda_ceil_div(p.slices, p.w.ne2) : p.slices;
    return calls <= CALLS_MAX ? calls : 0;
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

enum ggml_status gb_product_run_blas(gb_cuda_backend & b, const gb_product & p, bool * done) {
    const gb_row_kind kind = p.type == GGML_TYPE_F32 ? GB_ROWS_F32 : gb_product_halves(p);
    const int64_t size = (int64_t) ggml_type_size((enum ggml_type) p.type), calls = calls_for_slices(p),
                  each = calls > 0 ? p.slices / calls : 0;
    gb_ready_rows x = {};
    *done = false;
    // cuBLAS does not take rows that overlap.
    if (!blas_suits(b, p) || calls == 0 || (int64_t) p.w.nb_m < p.k * size) {
        return GGML_STATUS_SUCCESS;
    }
    const size_t before = b.scratch.used;
    const enum ggml_status status = gb_product_make_rows(b, p, kind, {}, false, &x);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    *done = !b.queue.nowhere && queue_blas(b, p, x, calls, each); // a dry run measures both algorithms
    b.scratch.used = *done ? b.scratch.used : before;             // our kernels make other rows
    return status;
}
