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

// The fraction of the padding only affects the shape, so the node does not store it.
struct ggml_tensor * ggml_pool_2d(struct ggml_context * ctx, struct ggml_tensor * a, enum ggml_op_pool op, int k0,
    int k1, int s0, int s1, float p0, float p1) {
    const int k[] = { k0, k1 }, s[] = { s0, s1 };
    const float p[] = { p0, p1 };
    if (!gb_check_pool_2d(__func__, a, op, k, s, p)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_POOL_2D, GGML_TYPE_F32, gb_shape_pool_2d(a, k, s, p));
    const int32_t params[] = { (int32_t) op, k0, k1, s0, s1, (int32_t) p0, (int32_t) p1 };
    gb_op_set_params(node, params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

// Every element becomes a square of factor x factor equal ones.
struct ggml_tensor * ggml_upscale(struct ggml_context * ctx, struct ggml_tensor * a, int scale_factor) {
    if (!gb_check_upscale(__func__, a, scale_factor)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_UPSCALE, a->type, gb_shape_upscale(a, scale_factor));
    const int32_t params = scale_factor;
    gb_op_set_params(node, &params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

// Zeros are added behind the elements of each dimension.
struct ggml_tensor * ggml_pad(struct ggml_context * ctx, struct ggml_tensor * a, int p0, int p1, int p2, int p3) {
    const int p[] = { p0, p1, p2, p3 };
    if (!gb_check_pad(__func__, a, p)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_PAD, a->type, gb_shape_pad(a, p));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

bool gb_built_pool_1d(gb_ct t) {
    const int32_t * p = t->op_params;
    return gb_check_pool_1d(NULL, t->src[0], (enum ggml_op_pool) p[0], p[1], p[2], p[3]) &&
           gb_is_shape(t, gb_shape_pool_1d(t->src[0], p[1], p[2], p[3]));
}

// The node stores its padding without the fraction. So its shape is between the shapes for this
// padding and for one more.
bool gb_built_pool_2d(gb_ct t) {
    const struct ggml_tensor * a = t->src[0];
    const int32_t * p = t->op_params;
    const int k[2] = { p[1], p[2] }, s[2] = { p[3], p[4] };
    const float least[2] = { (float) p[5], (float) p[6] }, most[2] = { least[0] + 1, least[1] + 1 };
    if (p[5] < 0 || p[6] < 0 || !gb_check_pool_2d(NULL, a, (enum ggml_op_pool) p[0], k, s, most)) {
        return false;
    }
    const struct gb_shape low = gb_shape_pool_2d(a, k, s, least), high = gb_shape_pool_2d(a, k, s, most);
    return t->ne[0] >= low.ne[0] && t->ne[0] <= high.ne[0] && t->ne[1] >= low.ne[1] && t->ne[1] <= high.ne[1] &&
           gb_is_shape(t, gb_shape_of(t->ne[0], t->ne[1], high.ne[2], high.ne[3]));
}

bool gb_built_upscale(gb_ct t) {
    const int factor = t->op_params[0];
    return gb_check_upscale(NULL, t->src[0], factor) && gb_is_shape(t, gb_shape_upscale(t->src[0], factor));
}

// The node does not store the padding, so this only checks that it is not smaller than its source.
bool gb_built_pad(gb_ct t) {
    gb_ct a = t->src[0];
    return gb_check_1(NULL, a) && t->ne[0] >= a->ne[0] && t->ne[1] >= a->ne[1] && t->ne[2] >= a->ne[2] &&
           t->ne[3] >= a->ne[3];
}
