// mul_mat_id.cu - MUL_MAT_ID and MUL_MAT_EXPERTS. A row of dst uses the weights of its expert, which only the device
// knows.
//
// For few rows, each block reads the id of its row. Otherwise the device sorts the rows by expert first. An id out of
// range gives a row of NaN and an error (index.h).
#include <algorithm>

#include "cuda/ops/elements.h"
#include "cuda/ops/products.h"

static const char * mul_mat_id_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const ggml_tensor * a = dst->src[2];
    for (int i = 0; i < dst->op_params[1]; i++) {
        const ggml_tensor * e = dst->src[2 + i];
        if (e->type != a->type || e->nb[0] != a->nb[0] || e->nb[1] != a->nb[1]) {
            return "all matrices must have one type and the same strides";
        }
    }
    if (dst->ne[2] * dst->ne[3] != 1) {
        return "rows in several batches";
    }
    if (dst->src[0]->type != GGML_TYPE_I32) {
        return "ids that are not i32";
    }
    if (dst->src[0]->nb[0] % sizeof(int32_t) != 0 || dst->src[0]->nb[1] % sizeof(int32_t) != 0) {
        return "ids that are not whole elements";
    }
    return gb_product_unsupported(a, dst->src[1], dst, 0);
}

static enum ggml_status mul_mat_id_run(gb_cuda_backend & b, ggml_tensor * dst) {
    gb_product p;
    gb_product_of(p, dst);
    p.w.reader = gb_cuda_index_reader(b, dst, dst->src[0], p.w.n_experts);
    return gb_product_run(b, p, b.choices.data[b.at]);
}

static const char * experts_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const ggml_tensor *a = dst->src[0], *b = dst->src[1], *ids = dst->src[2];
    if (ids->type != GGML_TYPE_I32 || gb_unaligned(ids) != NULL) {
        return "ids that are not i32";
    }
    if (a->ne[2] <= 0) {
        return "no experts";
    }
    // At most one tile for 32 rows and one more for each expert with rows (gb_product_tiles_of_rows).
    const int64_t rows = dst->ne[1] * dst->ne[2], used = std::min(a->ne[2], rows);
    if (a->ne[2] > INT32_MAX / 2 || used > GB_MAX_GRID / 2 || rows > (int64_t) (GB_MAX_GRID / 2) * 32) {
        return "more rows or experts than a grid has";
    }
    return gb_product_unsupported(a, b, dst, 0);
}

static enum ggml_status experts_run(gb_cuda_backend & b, ggml_tensor * dst) {
    gb_product p;
    gb_product_of(p, dst);
    p.w.reader = gb_cuda_index_reader(b, dst, dst->src[2], p.w.n_experts);
    return gb_product_run(b, p, b.choices.data[b.at]);
}

GB_CUDA_FAMILY_DEFINE(mul_mat_id,
    { GGML_OP_MUL_MAT_ID, mul_mat_id_supports, mul_mat_id_run, nullptr, gb_product_choose_of, gb_product_candidate_of },
    { GGML_OP_MUL_MAT_EXPERTS, experts_supports, experts_run, nullptr, gb_product_choose_of, gb_product_candidate_of })
