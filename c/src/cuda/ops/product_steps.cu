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

enum ggml_status gb_product_cut_depth(gb_cuda_backend & b, const gb_product & p, int64_t tiles, int64_t places,
    gb_gemm & q) {
    enum { LEAST_DEPTH = 512, MOST_PARTS = 16 };
    if (p.w.ids != NULL || tiles >= places || p.k < LEAST_DEPTH) {
        return GGML_STATUS_SUCCESS;
    }
    const int64_t wanted = std::min<int64_t>(std::min<int64_t>(places / tiles, p.k / GB_PART_DEPTH), MOST_PARTS);
    const int64_t depth = gb_cuda_round_up(gb_cuda_ceil_div(p.k, wanted), GB_PART_DEPTH);
    const int64_t parts = gb_cuda_ceil_div(p.k, depth);
    if (parts < 2 || parts * p.slices > GB_MAX_GRID) {
        return GGML_STATUS_SUCCESS;
    }
    q.part_depth = (int) depth;
    q.parts = (int) parts;
    q.dst = (float *) gb_cuda_scratch(b, (size_t) (q.part_rows * p.m * parts) * sizeof(float));
    return q.dst != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

enum ggml_status gb_add_parts(gb_cuda_backend & b, float * dst, int64_t elements, const float * part, int parts) {
    const bool fours = elements % 4 == 0 && (uintptr_t) dst % 16 == 0;
    const int64_t n = fours ? elements / 4 : elements;
    const unsigned blocks = (unsigned) gb_cuda_ceil_div(n, 256);
    GB_CUDA_TRY(b, fours ? GB_LAUNCH(gb_gemm_add_parts<true>, blocks, 256, 0, b.queue, dst, part, n, parts)
                         : GB_LAUNCH(gb_gemm_add_parts<false>, blocks, 256, 0, b.queue, dst, part, n, parts));
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_product_add_parts(gb_cuda_backend & b, const gb_product & p, const float * part, int parts) {
    return gb_add_parts(b, p.dst, p.rows * p.slices * p.m, part, parts);
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
