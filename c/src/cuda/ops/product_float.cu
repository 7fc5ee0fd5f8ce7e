// product_float.cu - launches the kernel of gemm_floats.cuh.
#include <algorithm>

#include "cuda/kernels/gemm_floats.cuh"
#include "cuda/ops/products.h"

const char * gb_tiles_float_declines(const gb_cuda_backend &, const gb_product & p) {
    return p.type != GGML_TYPE_F32    ? "the weights are not f32"
           : !gb_product_is_along(p)  ? "the sum goes across the weights"
           : gb_product_is_aligned(p) ? NULL
                                      : "rows of the weights do not begin at multiples of 16 bytes";
}

gb_row_kind gb_tiles_float_rows(const gb_product &) { return GB_ROWS_F32; }

static int rows_of_tile(const gb_product & p) {
    const int64_t rows_of_one = p.w.ids != NULL ? p.rows / p.w.n_experts : p.rows;
    return rows_of_one <= 32 ? 32 : rows_of_one <= 64 ? 64 : 128;
}

static cudaError_t launch(int nt, dim3 grid, size_t shared, const gb_gemm & q, const gb_queue & queue) {
    if (nt == 128) {
        return GB_LAUNCH(gb_gemm_floats<8>, grid, GB_GEMM_THREADS, shared, queue, q);
    }
    if (nt == 64) {
        return GB_LAUNCH(gb_gemm_floats<4>, grid, GB_GEMM_THREADS, shared, queue, q);
    }
    return GB_LAUNCH(gb_gemm_floats<2>, grid, GB_GEMM_THREADS, shared, queue, q);
}

enum ggml_status gb_tiles_float_run(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind) {
    enum { BLOCKS = 2 }; // of a multiprocessor
    gb_ready_rows x = {};
    enum ggml_status status = gb_product_make_rows(b, p, kind, {}, true, &x);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    gb_gemm q = gb_product_gemm(p, x);
    const int nt = rows_of_tile(p);
    const int64_t rows = gb_product_tiles_of_rows(p, nt), columns = gb_cuda_ceil_div(p.m, GB_GEMM_M);
    status = gb_product_route(b, p, nt, q.routed);
    if (status == GGML_STATUS_SUCCESS) {
        status = gb_product_cut_depth(b, p, rows * columns * p.slices, BLOCKS * b.device->n_sm, q);
    }
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    const size_t stage = (size_t) (GB_GEMM_M + nt) * GB_GEMM_K * sizeof(uint16_t);
    q.stages = (int) std::min<size_t>(4, std::max<size_t>(2, b.device->shared_max / BLOCKS / stage));
    const dim3 grid((unsigned) columns, (unsigned) rows, (unsigned) (p.slices * q.parts));
    GB_CUDA_TRY(b, launch(nt, grid, (size_t) q.stages * stage, q, b.queue));
    return q.parts > 1 ? gb_product_add_parts(b, p, q.dst, q.parts) : GGML_STATUS_SUCCESS;
}
