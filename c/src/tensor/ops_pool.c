// ops_pool.c - pooling, upscaling, padding.
#include "tensor/ops.h"

struct ggml_tensor * ggml_pool_1d(struct ggml_context * ctx, struct ggml_tensor * a, enum ggml_op_pool op, int k0,
    int s0, int p0) {
    if (!gb_check_pool_1d(__func__, a, op, k0, s0, p0)) {
        return NULL;
    }
    struct ggml_tensor * node =
        gb_op_new(ctx, __func__, GGML_OP_POOL_1D, GGML_TYPE_F32, gb_shape_pool_1d(a, k0, s0, p0));
    const int32_t params[] = { (int32_t) op, k0, s0, p0 };
    gb_op_set_params(node, params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, NULL, NULL);
}

struct ggml_tensor * ggml_pool_2d(struct ggml_context * ctx, struct ggml_tensor * a, enum ggml_op_pool op, int k0,
    int k1, int s0, int s1, float p0, float p1) {
    const int   k[] = { k0, k1 }, s[] = { s0, s1 };
    const float p[] = { p0, p1 };
    if (!gb_check_pool_2d(__func__, a, op, k, s, p)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_POOL_2D, GGML_TYPE_F32, gb_shape_pool_2d(a, k, s, p));
    const int32_t        params[] = { (int32_t) op, k0, k1, s0, s1, (int32_t) p0, (int32_t) p1 };
    gb_op_set_params(node, params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, NULL, NULL);
}

struct ggml_tensor * ggml_upscale(struct ggml_context * ctx, struct ggml_tensor * a, int scale_factor) {
    if (!gb_check_upscale(__func__, a, scale_factor)) {
        return NULL;
    }
    struct ggml_tensor * node   = gb_op_new(ctx, __func__, GGML_OP_UPSCALE, a->type, gb_shape_upscale(a, scale_factor));
    const int32_t        params = scale_factor;
    gb_op_set_params(node, &params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, NULL, NULL);
}

struct ggml_tensor * ggml_pad(struct ggml_context * ctx, struct ggml_tensor * a, int p0, int p1, int p2, int p3) {
    const int p[] = { p0, p1, p2, p3 };
    if (!gb_check_pad(__func__, a, p)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_PAD, a->type, gb_shape_pad(a, p));
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, NULL, NULL);
}
