// product_steps.cu - steps before and after a product that several algorithms share.
#include "cuda/kernels/product_steps.cuh"
#include "cuda/ops/products.h"

enum ggml_status gb_product_route(gb_cuda_backend & b, const gb_product & p, gb_gemm & q) {
    if (p.w.ids == NULL) {
        return GGML_STATUS_SUCCESS;
    }
    int * lists = (int *) gb_cuda_scratch(b, (size_t) (GGML_MAX_SRC + 1 + p.rows) * sizeof(int));
    if (lists == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    q.first = lists;
    q.tokens = lists + GGML_MAX_SRC + 1;
    GB_CUDA_TRY(b,
        GB_LAUNCH(gb_route, 1, 256, 0, b.queue, p.w, (int) p.rows, lists, lists + GGML_MAX_SRC + 1, p.dst, p.m));
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_product_add_parts(gb_cuda_backend & b, const gb_product & p, const float * part, int parts) {
    const int64_t elements = p.rows * p.slices * p.m;
    GB_CUDA_TRY(b, GB_LAUNCH(gb_gemm_add_parts, (unsigned) gb_cuda_ceil_div(elements, 256), 256, 0, b.queue, p.dst,
                       part, elements, parts));
    return GGML_STATUS_SUCCESS;
}

gb_gemm gb_product_gemm(const gb_product & p, const gb_ready_rows & x) {
    gb_gemm q = {};
    q.w = p.w;
    q.x = x.x;
    q.x_row = x.x_row;
    q.dst = p.dst;
    q.m = p.m;
    q.k = p.k;
    q.rows = p.rows;
    q.parts = 1;
    q.part_rows = p.rows * p.slices;
    q.part_depth = (int) gb_cuda_round_up(p.k, GB_PART_DEPTH);
    return q;
}

int64_t gb_product_tiles_of_rows(const gb_product & p, int nt) {
    return gb_cuda_ceil_div(p.rows, nt) + (p.w.ids != NULL ? p.w.n_experts : 0);
}
