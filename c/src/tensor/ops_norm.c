// ops_norm.c - normalisation of rows and of groups of channels, and derivatives that are operators
// of their own. op_params[0] is eps, or the number of groups.
#include "tensor/ops.h"

static struct ggml_tensor * norm(struct ggml_context * ctx, const char * func, struct ggml_tensor * a, float eps,
    bool inplace) {
    if (!gb_check_norm(func, a, eps)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, func, GGML_OP_NORM, a, inplace);
    gb_op_set_param_f32(node, 0, eps);
    return gb_op_sources(ctx, node, gb_grad_unless(inplace), a, NULL, NULL);
}

struct ggml_tensor * ggml_norm(struct ggml_context * ctx, struct ggml_tensor * a, float eps) {
    return norm(ctx, __func__, a, eps, false);
}

struct ggml_tensor * ggml_norm_inplace(struct ggml_context * ctx, struct ggml_tensor * a, float eps) {
    return norm(ctx, __func__, a, eps, true);
}

static struct ggml_tensor * rms_norm(struct ggml_context * ctx, const char * func, struct ggml_tensor * a, float eps,
    bool inplace) {
    if (!gb_check_norm(func, a, eps)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, func, GGML_OP_RMS_NORM, a, inplace);
    gb_op_set_param_f32(node, 0, eps);
    return gb_op_sources(ctx, node, gb_grad_unless(inplace), a, NULL, NULL);
}

struct ggml_tensor * ggml_rms_norm(struct ggml_context * ctx, struct ggml_tensor * a, float eps) {
    return rms_norm(ctx, __func__, a, eps, false);
}

struct ggml_tensor * ggml_rms_norm_inplace(struct ggml_context * ctx, struct ggml_tensor * a, float eps) {
    return rms_norm(ctx, __func__, a, eps, true);
}

struct ggml_tensor * ggml_rms_norm_back(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    float eps) {
    if (!gb_check_rms_norm_back(__func__, a, b, eps)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, __func__, GGML_OP_RMS_NORM_BACK, a, false);
    gb_op_set_param_f32(node, 0, eps);
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);
}

// Makes rows of length 1. eps is the smallest divisor of a row.
static struct ggml_tensor * l2_norm(struct ggml_context * ctx, const char * func, struct ggml_tensor * a, float eps,
    bool inplace) {
    if (!gb_check_norm(func, a, eps)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, func, GGML_OP_L2_NORM, a, inplace);
    gb_op_set_param_f32(node, 0, eps);
    return gb_op_sources(ctx, node, gb_grad_unless(inplace), a, NULL, NULL);
}

struct ggml_tensor * ggml_l2_norm(struct ggml_context * ctx, struct ggml_tensor * a, float eps) {
    return l2_norm(ctx, __func__, a, eps, false);
}

struct ggml_tensor * ggml_l2_norm_inplace(struct ggml_context * ctx, struct ggml_tensor * a, float eps) {
    return l2_norm(ctx, __func__, a, eps, true);
}

// Groups are ranges of dimension 2. op_params: the number of groups, and eps, with 0 for the fixed one of early 2024.
static struct ggml_tensor * group_norm(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    int n_groups, float eps, bool inplace) {
    if (!gb_check_group_norm(func, a, n_groups)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, func, GGML_OP_GROUP_NORM, a, inplace);
    const int32_t params = n_groups;
    gb_op_set_params(node, &params, sizeof(params));
    gb_op_set_param_f32(node, 1, eps);
    return gb_op_sources(ctx, node, gb_grad_unless(inplace), a, NULL, NULL);
}

struct ggml_tensor * ggml_group_norm(struct ggml_context * ctx, struct ggml_tensor * a, int n_groups) {
    return group_norm(ctx, __func__, a, n_groups, 0, false);
}

struct ggml_tensor * ggml_group_norm_inplace(struct ggml_context * ctx, struct ggml_tensor * a, int n_groups) {
    return group_norm(ctx, __func__, a, n_groups, 0, true);
}

struct ggml_tensor * ggml_group_norm_eps(struct ggml_context * ctx, struct ggml_tensor * a, int n_groups, float eps) {
    return gb_check_norm(__func__, a, eps) ? group_norm(ctx, __func__, a, n_groups, eps, false) : NULL;
}

struct ggml_tensor * ggml_group_norm_eps_inplace(struct ggml_context * ctx, struct ggml_tensor * a, int n_groups,
    float eps) {
    return gb_check_norm(__func__, a, eps) ? group_norm(ctx, __func__, a, n_groups, eps, true) : NULL;
}

struct ggml_tensor * ggml_silu_back(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    if (!gb_check_same_shape(__func__, a, b)) {
        return NULL;
    }
    return gb_op_sources(ctx, gb_op_like(ctx, __func__, GGML_OP_SILU_BACK, a, false), GB_GRAD_INHERIT, a, b, NULL);
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

bool gb_built_norm(gb_ct t) {
    return gb_check_norm(NULL, t->src[0], gb_op_param_f32(t, 0)) && gb_is_like(t, t->src[0]);
}

bool gb_built_rms_norm(gb_ct t) {
    return gb_check_norm(NULL, t->src[0], gb_op_param_f32(t, 0)) && gb_is_like(t, t->src[0]);
}

bool gb_built_rms_norm_back(gb_ct t) {
    return gb_check_rms_norm_back(NULL, t->src[0], t->src[1], gb_op_param_f32(t, 0)) && gb_is_like(t, t->src[0]);
}

bool gb_built_group_norm(gb_ct t) {
    const float eps = gb_op_param_f32(t, 1);
    return gb_check_group_norm(NULL, t->src[0], t->op_params[0]) && (eps == 0 || gb_check_norm(NULL, t->src[0], eps)) &&
           gb_is_like(t, t->src[0]);
}

bool gb_built_l2_norm(gb_ct t) {
    return gb_check_norm(NULL, t->src[0], gb_op_param_f32(t, 0)) && gb_is_like(t, t->src[0]);
}

bool gb_built_silu_back(gb_ct t) { return gb_check_same_shape(NULL, t->src[0], t->src[1]) && gb_is_like(t, t->src[0]); }
