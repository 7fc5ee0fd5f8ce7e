// out_prod.cu - OUT_PROD: a product (products.h) whose sum goes along the second dimension.
#include "cuda/ops/products.h"

static const char * out_prod_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    return gb_product_unsupported(dst->src[0], dst->src[1], dst, 1);
}

static enum ggml_status out_prod_run(gb_cuda_backend & b, ggml_tensor * dst) {
    gb_product p;
    gb_product_of(p, dst);
    return gb_product_run(b, p, b.choices.data[b.at]);
}

GB_CUDA_FAMILY_DEFINE(out_prod,
    { GGML_OP_OUT_PROD, out_prod_supports, out_prod_run, nullptr, gb_product_choose_of, gb_product_candidate_of })
