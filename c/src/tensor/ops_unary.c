// ops_unary.c - one operand, element by element: the functions of UNARY, which ops.def lists, and
// separate operators. A node of UNARY stores its function in op_params[0].
#include <math.h>

#include "tensor/ops.h"

// The builder of all functions of UNARY.
static struct ggml_tensor * unary(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    enum ggml_unary_op kind, bool inplace) {
    if (!gb_check_unary(func, a, kind)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, func, GGML_OP_UNARY, a, inplace);
    const int32_t params = (int32_t) kind;
    gb_op_set_params(node, &params, sizeof(params));
    return gb_op_sources(ctx, node, gb_grad_unless(inplace), a, NULL, NULL);
}

struct ggml_tensor * ggml_unary(struct ggml_context * ctx, struct ggml_tensor * a, enum ggml_unary_op op) {
    return unary(ctx, __func__, a, op, false);
}

struct ggml_tensor * ggml_unary_inplace(struct ggml_context * ctx, struct ggml_tensor * a, enum ggml_unary_op op) {
    return unary(ctx, __func__, a, op, true);
}

// The builders of the functions in ops.def. GENERIC: only ggml_unary. FRESH: a builder of a fresh
// result. BOTH: also one in place.
#define GENERIC(stem, id)
#define FRESH(stem, id)                                                                   \
    struct ggml_tensor * ggml_##stem(struct ggml_context * ctx, struct ggml_tensor * a) { \
        return unary(ctx, __func__, a, GGML_UNARY_OP_##id, false);                        \
    }
#define BOTH(stem, id)                                                                              \
    FRESH(stem, id)                                                                                 \
    struct ggml_tensor * ggml_##stem##_inplace(struct ggml_context * ctx, struct ggml_tensor * a) { \
        return unary(ctx, __func__, a, GGML_UNARY_OP_##id, true);                                   \
    }
#define GB_UNARY_OP(id, stem, tolerance, forms, derivative) forms(stem, id)
#include "tensor/ops.def"

// The builder of operators without parameters.
static struct ggml_tensor * plain(struct ggml_context * ctx, const char * func, enum ggml_op op, struct ggml_tensor * a,
    bool inplace) {
    if (!gb_check_1(func, a)) {
        return NULL;
    }
    return gb_op_sources(ctx, gb_op_like(ctx, func, op, a, inplace), gb_grad_unless(inplace), a, NULL, NULL);
}

struct ggml_tensor * ggml_sqr(struct ggml_context * ctx, struct ggml_tensor * a) {
    return plain(ctx, __func__, GGML_OP_SQR, a, false);
}

struct ggml_tensor * ggml_sqr_inplace(struct ggml_context * ctx, struct ggml_tensor * a) {
    return plain(ctx, __func__, GGML_OP_SQR, a, true);
}

struct ggml_tensor * ggml_sqrt(struct ggml_context * ctx, struct ggml_tensor * a) {
    return plain(ctx, __func__, GGML_OP_SQRT, a, false);
}

struct ggml_tensor * ggml_sqrt_inplace(struct ggml_context * ctx, struct ggml_tensor * a) {
    return plain(ctx, __func__, GGML_OP_SQRT, a, true);
}

struct ggml_tensor * ggml_log(struct ggml_context * ctx, struct ggml_tensor * a) {
    return plain(ctx, __func__, GGML_OP_LOG, a, false);
}

struct ggml_tensor * ggml_log_inplace(struct ggml_context * ctx, struct ggml_tensor * a) {
    return plain(ctx, __func__, GGML_OP_LOG, a, true);
}

struct ggml_tensor * ggml_leaky_relu(struct ggml_context * ctx, struct ggml_tensor * a, float negative_slope,
    bool inplace) {
    if (!gb_check_1(__func__, a)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, __func__, GGML_OP_LEAKY_RELU, a, inplace);
    gb_op_set_param_f32(node, 0, negative_slope);
    return gb_op_sources(ctx, node, gb_grad_unless(inplace), a, NULL, NULL);
}

// Always in place, so operands with a gradient tensor are refused.
struct ggml_tensor * ggml_clamp(struct ggml_context * ctx, struct ggml_tensor * a, float min, float max) {
    if (!gb_check_no_grad(__func__, a)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, __func__, GGML_OP_CLAMP, a, true);
    const float params[] = { min, max };
    gb_op_set_params(node, params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, NULL, NULL);
}

// Both forms have a gradient, which does not need a.
static struct ggml_tensor * scale(struct ggml_context * ctx, const char * func, struct ggml_tensor * a, float s,
    bool inplace) {
    if (!gb_check_1(func, a)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, func, GGML_OP_SCALE, a, inplace);
    gb_op_set_param_f32(node, 0, s);
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

struct ggml_tensor * ggml_scale(struct ggml_context * ctx, struct ggml_tensor * a, float s) {
    return scale(ctx, __func__, a, s, false);
}

struct ggml_tensor * ggml_scale_inplace(struct ggml_context * ctx, struct ggml_tensor * a, float s) {
    return scale(ctx, __func__, a, s, true);
}

// op_params: the factor, and the number to add
static struct ggml_tensor * scale_bias(struct ggml_context * ctx, const char * func, struct ggml_tensor * a, float s,
    float b, bool inplace) {
    if (b == 0) {
        return scale(ctx, func, a, s, inplace); // every backend supports SCALE without an addend
    }
    if (!gb_check_1(func, a)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, func, GGML_OP_SCALE_BIAS, a, inplace);
    gb_op_set_param_f32(node, 0, s);
    gb_op_set_param_f32(node, 1, b);
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

struct ggml_tensor * ggml_scale_bias(struct ggml_context * ctx, struct ggml_tensor * a, float s, float b) {
    return scale_bias(ctx, __func__, a, s, b, false);
}

struct ggml_tensor * ggml_scale_bias_inplace(struct ggml_context * ctx, struct ggml_tensor * a, float s, float b) {
    return scale_bias(ctx, __func__, a, s, b, true);
}

static float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

// op_params: the factors below and above 0, beta, eps
struct ggml_tensor * ggml_xielu(struct ggml_context * ctx, struct ggml_tensor * a, float alpha_n, float alpha_p,
    float beta, float eps) {
    if (!gb_check_1(__func__, a)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, __func__, GGML_OP_XIELU, a, false);
    const float params[] = { beta + softplus(alpha_n), softplus(alpha_p), beta, eps };
    gb_op_set_params(node, params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

bool gb_built_unary(gb_ct t) {
    return gb_check_unary(NULL, t->src[0], (enum ggml_unary_op) t->op_params[0]) && gb_is_like(t, t->src[0]);
}

static bool is_map(gb_ct t) { return gb_check_1(NULL, t->src[0]) && gb_is_like(t, t->src[0]); }

bool gb_built_sqr(gb_ct t) { return is_map(t); }

bool gb_built_sqrt(gb_ct t) { return is_map(t); }

bool gb_built_log(gb_ct t) { return is_map(t); }

bool gb_built_scale(gb_ct t) { return is_map(t); }

bool gb_built_clamp(gb_ct t) { return is_map(t); }

bool gb_built_leaky_relu(gb_ct t) { return is_map(t); }

bool gb_built_xielu(gb_ct t) { return is_map(t); }

bool gb_built_scale_bias(gb_ct t) { return is_map(t); }
