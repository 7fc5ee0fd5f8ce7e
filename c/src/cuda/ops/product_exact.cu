// product_exact.cu - any product, in float: GGML_PREC_F32, OUT_PROD, odd strides.
#include "cuda/ops/products.h"

const char * gb_exact_declines(const gb_cuda_backend &, const gb_product &) { return NULL; }

gb_row_kind gb_exact_rows(const gb_product &) { return GB_ROWS_F32; }

enum ggml_status gb_exact_run(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind) {
    gb_ready_rows x = {};
    enum ggml_status status = gb_product_make_rows(b, p, kind, {}, true, &x);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    gb_gemm q = gb_product_gemm(p, x);
    const gb_exact e = { p.type, p.nb_k, p.across };
    const bool quantized = gb_is_format(p.type);
    const bool large =
        !quantized && gb_cuda_ceil_div(p.m, 128) * gb_cuda_ceil_div(p.rows, 128) * p.slices >= b.device->n_sm;
    const int side = large ? 128 : 64;
    status = gb_product_route(b, p, side, q.routed);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    const dim3 grid((unsigned) gb_cuda_ceil_div(p.m, side), (unsigned) gb_product_tiles_of_rows(p, side),
        (unsigned) p.slices);
    if (quantized) {
        GB_CUDA_TRY(b, GB_LAUNCH((gb_gemm_exact<true, 4>), grid, GB_GEMM_THREADS, 0, b.queue, q, e));
    } else if (large) {
        GB_CUDA_TRY(b, GB_LAUNCH((gb_gemm_exact<false, 8>), grid, GB_GEMM_THREADS, 0, b.queue, q, e));
    } else {
        GB_CUDA_TRY(b, GB_LAUNCH((gb_gemm_exact<false, 4>), grid, GB_GEMM_THREADS, 0, b.queue, q, e));
    }
    return GGML_STATUS_SUCCESS;
}
