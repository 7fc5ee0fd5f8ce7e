// product_steps.cu - what several algorithms do before and after a product.
#include <algorithm>

#include "cuda/kernels/product_steps.cuh"
#include "cuda/ops/products.h"

enum ggml_status gb_product_route(gb_cuda_backend & b, const gb_product & p, int nt, gb_routed_rows & out) {
    out = {};
    if (p.w.ids == NULL) {
        return GGML_STATUS_SUCCESS;
    }
    const int64_t entries = p.w.n_experts + 1;
    int * lists = (int *) gb_cuda_scratch(b, (size_t) (2 * entries + p.rows) * sizeof(int));
    if (lists == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_CUDA_TRY(b, GB_LAUNCH(gb_route, (unsigned) entries, 256, 0, b.queue, p.w, (int) p.rows, nt, lists,
                       lists + entries, lists + 2 * entries, p.dst, p.m));
    out = { lists, lists + entries, lists + 2 * entries };
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
    return gb_cuda_ceil_div(p.rows, nt) + (p.w.ids != NULL ? std::min<int64_t>(p.w.n_experts, p.rows) : 0);
}
