// ops_optimizer.c - steps of optimizers: OPT_STEP_ADAMW and OPT_STEP_SGD.
//
// A node overwrites the tensor src[0], and its result is a view of that tensor. So backends, planners
// and schedulers treat it like other nodes in place. AdamW changes three tensors with three nodes.
// op_params[0] says which one the node writes:
//
//   GB_ADAMW_MEAN      m   sources: m, grad, params
//   GB_ADAMW_SQUARES   v   sources: v, grad, params
//   GB_ADAMW_WEIGHTS   a   sources: a, the MEAN node, the SQUARES node, params
#include "tensor/ops.h"
#include "tensor/rule.h"

enum { N_ADAMW = 7, N_SGD = 2 }; // numbers in params

static bool check_adamw(const char * func, gb_ct a, gb_ct grad, gb_ct m, gb_ct v, gb_ct params) {
    const struct gb_call c = GB_CALL_5(func, a, grad, m, v, params);
    if (!gb_rule_given(&c)) {
        return false;
    }
    for (int i = 0; i < 5; i++) {
        if (!gb_rule_type(&c, i, GGML_TYPE_F32) || (i > 0 && i < 4 && !gb_rule_same_shape(&c, 0, i))) {
            return false;
        }
    }
    return gb_rule_max_dims(&c, 4, 1) && gb_rule_size(&c, 4, 0, N_ADAMW) && gb_rule_contiguous(&c, 4) &&
           gb_rule_apart(&c, 0) && gb_rule_apart(&c, 2) && gb_rule_apart(&c, 3);
}

// n: the size of params
static bool check_step(const char * func, gb_ct a, gb_ct grad, gb_ct params, int64_t n) {
    const struct gb_call c = GB_CALL_3(func, a, grad, params);
    return gb_rule_given(&c) && gb_rule_type(&c, 0, GGML_TYPE_F32) && gb_rule_type(&c, 1, GGML_TYPE_F32) &&
           gb_rule_type(&c, 2, GGML_TYPE_F32) && gb_rule_same_shape(&c, 0, 1) && gb_rule_max_dims(&c, 2, 1) &&
           gb_rule_size(&c, 2, 0, n) && gb_rule_contiguous(&c, 2) && gb_rule_apart(&c, 0);
}

// A node that overwrites t.
static struct ggml_tensor * step(struct ggml_context * ctx, const char * func, enum ggml_op op, int32_t part,
    struct ggml_tensor * t, struct ggml_tensor * b, struct ggml_tensor * c) {
    struct ggml_tensor * node = gb_op_like(ctx, func, op, t, true);
    gb_op_set_params(node, &part, sizeof(part));
    return gb_op_sources(ctx, node, GB_GRAD_NONE, t, b, c);
}

struct ggml_tensor * ggml_opt_step_adamw(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * grad,
    struct ggml_tensor * m, struct ggml_tensor * v, struct ggml_tensor * params) {
    const enum ggml_op op = GGML_OP_OPT_STEP_ADAMW;
    if (!check_adamw(__func__, a, grad, m, v, params)) {
        return NULL;
    }
    struct ggml_tensor * mean = step(ctx, __func__, op, GB_ADAMW_MEAN, m, grad, params);
    struct ggml_tensor * squares = mean ? step(ctx, __func__, op, GB_ADAMW_SQUARES, v, grad, params) : NULL;
    struct ggml_tensor * node = squares ? step(ctx, __func__, op, GB_ADAMW_WEIGHTS, a, mean, squares) : NULL;
    if (node != NULL) {
        node->src[3] = params;
    }
    return gb_op_keep_if(ctx, mean, node);
}

struct ggml_tensor * ggml_opt_step_sgd(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * grad,
    struct ggml_tensor * params) {
    return check_step(__func__, a, grad, params, N_SGD) ? step(ctx, __func__, GGML_OP_OPT_STEP_SGD, 0, a, grad, params)
                                                        : NULL;
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

bool gb_built_opt_step_adamw(gb_ct t) {
    gb_ct a = t->src[0], b = t->src[1], c = t->src[2];
    switch (t->op_params[0]) {
        case GB_ADAMW_MEAN:
        case GB_ADAMW_SQUARES: return check_step(NULL, a, b, c, N_ADAMW) && gb_is_like(t, a);
        case GB_ADAMW_WEIGHTS: return check_adamw(NULL, a, b, b, c, t->src[3]) && gb_is_like(t, a);
        default: return false;
    }
}

bool gb_built_opt_step_sgd(gb_ct t) {
    return check_step(NULL, t->src[0], t->src[1], t->src[2], N_SGD) && gb_is_like(t, t->src[0]);
}
