// ops_soft_max.c - softmax, causal masks, and the position bias of ALiBi. SOFT_MAX has scale in
// op_params[0] and max_bias in op_params[1], where 0 means no bias.
#include "tensor/ops.h"
#include "tensor/rule.h"

// mask may be NULL.
static struct ggml_tensor * soft_max(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * mask, float scale, bool inplace) {
    if (!gb_check_soft_max(func, a, mask)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, func, GGML_OP_SOFT_MAX, a, inplace);
    gb_op_set_param_f32(node, 0, scale);
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, mask, NULL);
}

struct ggml_tensor * ggml_soft_max(struct ggml_context * ctx, struct ggml_tensor * a) {
    return soft_max(ctx, __func__, a, NULL, 1.0f, false);
}

struct ggml_tensor * ggml_soft_max_inplace(struct ggml_context * ctx, struct ggml_tensor * a) {
    return soft_max(ctx, __func__, a, NULL, 1.0f, true);
}

struct ggml_tensor * ggml_soft_max_ext(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * mask,
    float scale) {
    return soft_max(ctx, __func__, a, mask, scale, false);
}

// The bias multiplies the mask by a slope for each head, so a bias needs a mask.
static struct ggml_tensor * soft_max_bias(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * mask, float scale, float max_bias, bool inplace) {
    if (!gb_check_soft_max(func, a, mask) || !gb_check_max_bias(func, a, mask, max_bias)) {
        return NULL;
    }
    struct ggml_tensor * node = soft_max(ctx, func, a, mask, scale, inplace);
    gb_op_set_param_f32(node, 1, max_bias);
    return node;
}

struct ggml_tensor * ggml_soft_max_bias(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * mask,
    float scale, float max_bias) {
    return soft_max_bias(ctx, __func__, a, mask, scale, max_bias, false);
}

struct ggml_tensor * ggml_soft_max_bias_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * mask, float scale, float max_bias) {
    return soft_max_bias(ctx, __func__, a, mask, scale, max_bias, true);
}

enum ggml_status ggml_soft_max_add_sinks(struct ggml_tensor * a, struct ggml_tensor * sinks) {
    GB_CHECK_ARG(a);
    return gb_op_set_sinks(a, sinks, __func__, GGML_OP_SOFT_MAX, 2, a->ne[2]);
}

static struct ggml_tensor * soft_max_back(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, bool inplace) {
    if (!gb_check_soft_max_back(func, a, b)) {
        return NULL;
    }
    return gb_op_sources(ctx, gb_op_like(ctx, func, GGML_OP_SOFT_MAX_BACK, a, inplace), GB_GRAD_INHERIT, a, b, NULL);
}

struct ggml_tensor * ggml_soft_max_back(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    return soft_max_back(ctx, __func__, a, b, false);
}

struct ggml_tensor * ggml_soft_max_back_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b) {
    return soft_max_back(ctx, __func__, a, b, true);
}

static bool check_ext_back(const char * func, struct ggml_tensor * a, struct ggml_tensor * b, float max_bias) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_check_soft_max_back(func, a, b) &&
           (max_bias == 0 || GB_BROKEN(&c, NOT_ZERO, .name = "max_bias", .real = (double) max_bias));
}

struct ggml_tensor * ggml_soft_max_ext_back(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    float scale, float max_bias) {
    if (!gb_op_has_context(ctx, __func__) || !check_ext_back(__func__, a, b, max_bias)) {
        return NULL;
    }
    struct ggml_tensor * inner = soft_max_back(ctx, __func__, a, b, false);
    return scale == 1 || inner == NULL ? inner : gb_op_keep_if(ctx, inner, ggml_scale(ctx, inner, scale));
}

struct ggml_tensor * ggml_soft_max_ext_back_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, float scale, float max_bias) {
    if (!gb_op_has_context(ctx, __func__) || !check_ext_back(__func__, a, b, max_bias)) {
        return NULL;
    }
    struct ggml_tensor * inner = soft_max_back(ctx, __func__, a, b, true);
    return scale == 1 || inner == NULL ? inner : gb_op_keep_if(ctx, inner, ggml_scale_inplace(ctx, inner, scale));
}

// The builder of both causal masks: row r keeps its columns from 0 to n_past + r.
static struct ggml_tensor * diag_mask(struct ggml_context * ctx, const char * func, enum ggml_op op,
    struct ggml_tensor * a, int n_past, bool inplace) {
    if (!gb_check_diag_mask(func, a, n_past, inplace)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, func, op, a, inplace);
    const int32_t params = n_past;
    gb_op_set_params(node, &params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

struct ggml_tensor * ggml_diag_mask_inf(struct ggml_context * ctx, struct ggml_tensor * a, int n_past) {
    return diag_mask(ctx, __func__, GGML_OP_DIAG_MASK_INF, a, n_past, false);
}

struct ggml_tensor * ggml_diag_mask_inf_inplace(struct ggml_context * ctx, struct ggml_tensor * a, int n_past) {
    return diag_mask(ctx, __func__, GGML_OP_DIAG_MASK_INF, a, n_past, true);
}

struct ggml_tensor * ggml_diag_mask_zero(struct ggml_context * ctx, struct ggml_tensor * a, int n_past) {
    return diag_mask(ctx, __func__, GGML_OP_DIAG_MASK_ZERO, a, n_past, false);
}

struct ggml_tensor * ggml_diag_mask_zero_inplace(struct ggml_context * ctx, struct ggml_tensor * a, int n_past) {
    return diag_mask(ctx, __func__, GGML_OP_DIAG_MASK_ZERO, a, n_past, true);
}

// Always in place, so operands with a gradient tensor are refused.
struct ggml_tensor * ggml_alibi(struct ggml_context * ctx, struct ggml_tensor * a, int n_past, int n_head,
    float bias_max) {
    if (!gb_check_alibi(__func__, a, n_head)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, __func__, GGML_OP_ALIBI, a, true);
    const int32_t params[] = { n_past, n_head };
    gb_op_set_params(node, params, sizeof(params));
    gb_op_set_param_f32(node, 2, bias_max);
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, NULL, NULL);
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

bool gb_built_soft_max(gb_ct t) {
    return gb_check_soft_max(NULL, t->src[0], t->src[1]) && gb_check_sinks(NULL, t->src[0], t->src[2], t->ne[2]) &&
           gb_check_max_bias(NULL, t->src[0], t->src[1], gb_op_param_f32(t, 1)) && gb_is_like(t, t->src[0]);
}

bool gb_built_soft_max_back(gb_ct t) {
    return gb_check_soft_max_back(NULL, t->src[0], t->src[1]) && gb_is_like(t, t->src[0]);
}

bool gb_built_diag_mask_inf(gb_ct t) {
    return gb_check_diag_mask(NULL, t->src[0], t->op_params[0], true) && gb_is_like(t, t->src[0]);
}

bool gb_built_diag_mask_zero(gb_ct t) { return gb_built_diag_mask_inf(t); }

bool gb_built_alibi(gb_ct t) { return gb_check_alibi(NULL, t->src[0], t->op_params[1]) && gb_is_like(t, t->src[0]); }
