// mul_mat.cu - MUL_MAT, see products.h. attention_chain.cu and product_group.cu compute it together
// with other nodes.
#include "cuda/ops/attention.h"
#include "cuda/ops/products.h"

static const char * mul_mat_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    return gb_product_unsupported(dst->src[0], dst->src[1], dst, 0);
}

static enum ggml_status mul_mat_run(gb_cuda_backend & b, ggml_tensor * dst) {
    gb_product p;
    gb_product_of(p, dst);
    return gb_product_run(b, p, b.choices.data[b.at]);
}

static int mul_mat_fuse(gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i) {
    const int n = gb_attention_fuse(b, nodes, i);
    return n != 0 ? n : gb_product_fuse(b, i);
}

GB_CUDA_FAMILY_DEFINE(mul_mat,
    { GGML_OP_MUL_MAT, mul_mat_supports, mul_mat_run, mul_mat_fuse, gb_product_choose_of, gb_product_candidate_of })
