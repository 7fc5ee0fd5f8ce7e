// feed_forward.cu - FLASH_FF: dst = c0^T gelu(b0^T a + b1) + c1, as two products of products.h with a step after each.
#include "cuda/kernels/rows.cuh"
#include "cuda/ops/elements.h"
#include "cuda/ops/products.h"

// x[i] += bias[i % n], then gelu.
GB_KERNEL GB_BOUNDS(256, 1)
    gb_add_bias(float * x, const char * bias, int bias_type, int64_t bias_nb, int64_t n, int64_t count, bool gelu) {
    gb_wait_for_earlier();
    const int64_t i = (int64_t) blockIdx.x * 256 + threadIdx.x;
    if (i >= count) {
        return;
    }
    const float v = x[i] + gb_load_float(bias_type, bias + i % n * bias_nb);
    x[i] = gelu ? 0.5f * v * (1 + tanhf(0.797884560802865f * v * (1 + 0.044715f * v * v))) : v;
}

// Memory for the hidden rows: dense f32, in the shape of a product of b0 and a.
static ggml_tensor hidden_of(const ggml_tensor * dst) {
    ggml_tensor h = {};
    h.type = GGML_TYPE_F32;
    h.ne[0] = dst->src[1]->ne[1];
    h.nb[0] = sizeof(float);
    for (int i = 1; i < 4; i++) {
        h.ne[i] = dst->src[0]->ne[i];
        h.nb[i] = h.nb[i - 1] * (size_t) h.ne[i - 1];
    }
    return h;
}

static bool is_bias(const ggml_tensor * t, int64_t n) {
    return gb_is_float_type(t->type) && t->ne[0] == n && t->nb[0] % ggml_type_size(t->type) == 0;
}

static const char * flash_ff_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const ggml_tensor *a = dst->src[0], *b0 = dst->src[1], *c0 = dst->src[3];
    const ggml_tensor hidden = hidden_of(dst);
    if (!is_bias(dst->src[2], b0->ne[1]) || !is_bias(dst->src[4], dst->ne[0])) {
        return "biases must be f32, f16 or bf16, one for each row of the weights";
    }
    for (int i = 2; i < 4; i++) {
        if (b0->ne[i] != a->ne[i] || c0->ne[i] != a->ne[i]) {
            return "weights must have the slices of a";
        }
    }
    if (b0->ne[0] != a->ne[0] || c0->ne[0] != b0->ne[1] || c0->ne[1] != dst->ne[0]) {
        return "weights must fit the rows";
    }
    const char * why = gb_product_unsupported(b0, a, &hidden, 0);
    return why != NULL ? why : gb_product_unsupported(c0, &hidden, dst, 0);
}

static enum ggml_status product_and_bias(gb_cuda_backend & b, const ggml_tensor * w, const ggml_tensor * x,
    const ggml_tensor * bias, bool gelu, const ggml_tensor * y) {
    gb_product p;
    gb_product_describe(p, w, x, y, 0);
    const enum ggml_status status = gb_product_run(b, p, gb_product_choose(b, p));
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    const int64_t count = ggml_nelements(y);
    GB_CUDA_TRY(b, GB_LAUNCH(gb_add_bias, (unsigned) gb_cuda_ceil_div(count, 256), 256, 0, b.queue, (float *) y->data,
                       (const char *) bias->data, (int) bias->type, (int64_t) bias->nb[0], y->ne[0], count, gelu));
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status flash_ff_run(gb_cuda_backend & b, ggml_tensor * dst) {
    ggml_tensor hidden = hidden_of(dst);
    if (ggml_nelements(&hidden) > 0) {
        hidden.data = gb_cuda_scratch(b, ggml_nbytes(&hidden));
        if (hidden.data == NULL) {
            return GGML_STATUS_ALLOC_FAILED;
        }
        const enum ggml_status status = product_and_bias(b, dst->src[1], dst->src[0], dst->src[2], true, &hidden);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
    }
    return product_and_bias(b, dst->src[3], &hidden, dst->src[4], false, dst);
}

GB_CUDA_FAMILY_DEFINE(feed_forward, { GGML_OP_FLASH_FF, flash_ff_supports, flash_ff_run, nullptr })
