// ops_attention.c - fused attention, its derivative, and the fused feed-forward block.
//
// op_params[0] of attention says if it is masked. The derivative's result is one row with the
// gradients of q, k and v (shapes.h). derivatives.c separates them.
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

// Indices of FLASH_ATTN_EXT's mask and sinks (sources) and precision (parameter).
enum { MASK = 3, SINKS = 4, PREC = 3 };

struct ggml_tensor * ggml_flash_attn_ext(struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k,
    struct ggml_tensor * v, struct ggml_tensor * mask, float scale, float max_bias, float logit_softcap) {
    const struct gb_attention_numbers numbers = { scale, max_bias, logit_softcap };
    if (!gb_check_flash_attn_ext(__func__, q, k, v, mask, &numbers)) {
        return NULL;
    }
    struct ggml_tensor * node =
        gb_op_new(ctx, __func__, GGML_OP_FLASH_ATTN_EXT, GGML_TYPE_F32, gb_shape_flash_attn_ext(q, v));
    if (node == NULL) {
        return NULL;
    }
    gb_op_set_params(node, &numbers, sizeof(numbers));
    node->src[MASK] = mask;
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, q, k, v);
}

enum ggml_status gb_op_set_sinks(struct ggml_tensor * a, struct ggml_tensor * sinks, const char * func, enum ggml_op op,
    int s, int64_t n_heads) {
    char text[GB_DESCRIBE_SIZE];
    GB_FAIL_IF(a->op != op, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'a': needs a %s node, has %s", func,
        ggml_op_name(op), gb_describe(a, text));
    GB_FAIL_IF(sinks != NULL && a->src[s] != NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'a': %s has sinks already; remove them with NULL first", func, gb_describe(a, text));
    GB_FAIL_IF(sinks != NULL && sinks->grad != NULL, GGML_STATUS_UNSUPPORTED,
        "%s: argument 'sinks': %s has a gradient, but ggml_build_backward_expand derives no sinks", func,
        gb_describe(sinks, text));
    if (!gb_check_sinks(func, a, sinks, n_heads)) {
        return ggml_last_status();
    }
    a->src[s] = sinks;
    return GGML_STATUS_SUCCESS;
}

enum ggml_status ggml_flash_attn_ext_add_sinks(struct ggml_tensor * a, struct ggml_tensor * sinks) {
    GB_CHECK_ARG(a);
    return gb_op_set_sinks(a, sinks, __func__, GGML_OP_FLASH_ATTN_EXT, SINKS, a->ne[1]);
}

enum ggml_status ggml_flash_attn_ext_set_prec(struct ggml_tensor * a, enum ggml_prec prec) {
    GB_CHECK_ARG(a);
    char text[GB_DESCRIBE_SIZE];
    GB_FAIL_IF(prec != GGML_PREC_DEFAULT && prec != GGML_PREC_F32, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'prec': %d is not a precision", __func__, (int) prec);
    GB_FAIL_IF(a->op != GGML_OP_FLASH_ATTN_EXT, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'a': needs a FLASH_ATTN_EXT node, has %s", __func__, gb_describe(a, text));
    a->op_params[PREC] = (int32_t) prec;
    return GGML_STATUS_SUCCESS;
}

enum ggml_prec ggml_flash_attn_ext_get_prec(const struct ggml_tensor * a) {
    GB_CHECK_ARG_RETURNING(a, GGML_PREC_DEFAULT);
    char text[GB_DESCRIBE_SIZE];
    GB_FAIL_IF_RETURNING(a->op != GGML_OP_FLASH_ATTN_EXT, GGML_PREC_DEFAULT, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'a': needs a FLASH_ATTN_EXT node, has %s", __func__, gb_describe(a, text));
    return (enum ggml_prec) gb_op_param_i32(a, PREC);
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

// ----------------------------------------------------------------------------------------------- checks of built nodes

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

bool gb_built_flash_attn_ext(gb_ct t) {
    const struct gb_attention_numbers numbers = { gb_op_param_f32(t, 0), gb_op_param_f32(t, 1), gb_op_param_f32(t, 2) };
    return gb_check_flash_attn_ext(NULL, t->src[0], t->src[1], t->src[2], t->src[MASK], &numbers) &&
           gb_check_sinks(NULL, t->src[0], t->src[SINKS], t->src[0]->ne[2]) &&
           gb_is_shape(t, gb_shape_flash_attn_ext(t->src[0], t->src[2]));
}
