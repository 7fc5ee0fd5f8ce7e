// ops_loss.c - losses. op_params of both operators: 0 for the formula of early 2024, or 1 followed
// by the requested eps.
#include "tensor/ops.h"

// The loss is one number for all rows.
static struct ggml_tensor * loss(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b) {
    if (!gb_check_cross_entropy_loss(func, a, b)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, func, GGML_OP_CROSS_ENTROPY_LOSS, a->type, gb_shape_scalar());
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);
}

static struct ggml_tensor * loss_back(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c) {
    if (!gb_check_cross_entropy_loss_back(func, a, b, c)) {
        return NULL;
    }
    return gb_op_sources(ctx, gb_op_like(ctx, func, GGML_OP_CROSS_ENTROPY_LOSS_BACK, a, false), GB_GRAD_NONE, a, b, c);
}

// Sets this eps in the node. NULL passes through.
static struct ggml_tensor * with_eps(struct ggml_tensor * node, float eps) {
    if (node != NULL) {
        const int32_t given = 1;
        memcpy(node->op_params, &given, sizeof(given));
        memcpy(node->op_params + 1, &eps, sizeof(eps));
    }
    return node;
}

struct ggml_tensor * ggml_cross_entropy_loss(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b) {
    return loss(ctx, __func__, a, b);
}

struct ggml_tensor * ggml_cross_entropy_loss_back(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c) {
    return loss_back(ctx, __func__, a, b, c);
}

struct ggml_tensor * ggml_cross_entropy_loss_eps(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, float eps) {
    return gb_check_cross_entropy_loss(__func__, a, b) && gb_check_loss_eps(__func__, a, eps)
               ? with_eps(loss(ctx, __func__, a, b), eps)
               : NULL;
}

struct ggml_tensor * ggml_cross_entropy_loss_eps_back(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c, float eps) {
    return gb_check_cross_entropy_loss_back(__func__, a, b, c) && gb_check_loss_eps(__func__, a, eps)
               ? with_eps(loss_back(ctx, __func__, a, b, c), eps)
               : NULL;
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

// True if the node has a valid eps, or none.
static bool has_eps(gb_ct t) {
    return t->op_params[0] == 0 || (t->src[0] != NULL && gb_check_loss_eps(NULL, t->src[0], gb_op_param_f32(t, 1)));
}

bool gb_built_cross_entropy_loss(gb_ct t) {
    return has_eps(t) && gb_check_cross_entropy_loss(NULL, t->src[0], t->src[1]) && gb_is_shape(t, gb_shape_scalar());
}

bool gb_built_cross_entropy_loss_back(gb_ct t) {
    return has_eps(t) && gb_check_cross_entropy_loss_back(NULL, t->src[0], t->src[1], t->src[2]) &&
           gb_is_like(t, t->src[0]);
}
