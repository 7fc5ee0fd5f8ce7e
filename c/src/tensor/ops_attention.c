// ops_attention.c - fused attention, its derivative, and the fused feed-forward block.
//
// op_params[0] of attention says if it is masked. The derivative makes one row that holds the
// gradients of q, k and v (shapes.h). derivatives.c takes them apart.
#include "tensor/ops.h"

struct ggml_tensor * ggml_flash_attn(struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k,
    struct ggml_tensor * v, bool masked) {
    if (!gb_check_flash_attn(__func__, q, k, v)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_FLASH_ATTN, GGML_TYPE_F32, gb_shape_like(q));
    const int32_t params = masked;
    gb_op_set_params(node, &params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, q, k, v);
}

struct ggml_tensor * ggml_flash_attn_back(struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k,
    struct ggml_tensor * v, struct ggml_tensor * d, bool masked) {
    if (!gb_check_flash_attn_back(__func__, q, k, v, d)) {
        return NULL;
    }
    struct ggml_tensor * node =
        gb_op_new(ctx, __func__, GGML_OP_FLASH_ATTN_BACK, GGML_TYPE_F32, gb_shape_flash_attn_back(q, k, v));
    if (node == NULL) {
        return NULL;
    }
    const int32_t params = masked;
    gb_op_set_params(node, &params, sizeof(params));
    node->src[3] = d;
    return gb_op_sources(ctx, node, GB_GRAD_NONE, q, k, v);
}

// Five sources: a, b0, b1, c0, c1, in this order.
struct ggml_tensor * ggml_flash_ff(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b0,
    struct ggml_tensor * b1, struct ggml_tensor * c0, struct ggml_tensor * c1) {
    if (!gb_check_flash_ff(__func__, a, b0, b1, c0, c1)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_FLASH_FF, GGML_TYPE_F32, gb_shape_like(a));
    if (node == NULL) {
        return NULL;
    }
    node->src[3] = c0;
    node->src[4] = c1;
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b0, b1);
}

// ------------------------------------------------------------------------------------------------------------ as built

// These functions check whether the builder could have made node t. The table in validate.c calls
// them.
bool gb_built_flash_attn(gb_ct t) {
    return gb_check_flash_attn(NULL, t->src[0], t->src[1], t->src[2]) && gb_is_like(t, t->src[0]);
}

bool gb_built_flash_attn_back(gb_ct t) {
    return gb_check_flash_attn_back(NULL, t->src[0], t->src[1], t->src[2], t->src[3]) &&
           gb_is_shape(t, gb_shape_flash_attn_back(t->src[0], t->src[1], t->src[2]));
}

bool gb_built_flash_ff(gb_ct t) {
    return gb_check_flash_ff(NULL, t->src[0], t->src[1], t->src[2], t->src[3], t->src[4]) && gb_is_like(t, t->src[0]);
}
