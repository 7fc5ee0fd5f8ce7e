// ops_triangle.c - CUMSUM along rows, TRI and SOLVE_TRI on triangles of square matrices. SOLVE_TRI has no derivative.
#include "tensor/ops.h"
#include "tensor/rule.h"

struct ggml_tensor * ggml_cumsum(struct ggml_context * ctx, struct ggml_tensor * a) {
    if (!gb_check_1(__func__, a)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, __func__, GGML_OP_CUMSUM, a, false);
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

static bool rule_square(const struct gb_call * c, gb_ct a) {
    return a->ne[0] == a->ne[1] || GB_BROKEN(c, NOT_SQUARE, .a = "a", .number = { a->ne[0], a->ne[1] });
}

static bool check_tri(const char * func, gb_ct a, enum ggml_tri_type type) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && rule_square(&c, a) &&
           gb_rule_in_range(&c, "type", (int) type, 0, GGML_TRI_TYPE_COUNT - 1);
}

// op_params[0] is the kind of triangle.
struct ggml_tensor * ggml_tri(struct ggml_context * ctx, struct ggml_tensor * a, enum ggml_tri_type type) {
    if (!check_tri(__func__, a, type)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, __func__, GGML_OP_TRI, a, false);
    const int32_t params = (int32_t) type;
    gb_op_set_params(node, &params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

// For each matrix of b, a has a square matrix with as many rows as b's.
static bool check_solve_tri(const char * func, gb_ct a, gb_ct b) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && gb_rule_no_grad(&c) && rule_square(&c, a) && gb_rule_equal(&c, 0, 1, 1, 1) &&
           gb_rule_equal(&c, 0, 2, 1, 2) && gb_rule_equal(&c, 0, 3, 1, 3);
}

struct ggml_tensor * ggml_solve_tri(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    bool left, bool lower, bool uni) {
    if (!check_solve_tri(__func__, a, b)) {
        return NULL;
    }
    GB_FAIL_IF_RETURNING(!left || !lower || uni, NULL, GGML_STATUS_UNSUPPORTED,
        "%s: only left = true, lower = true, uni = false is supported", __func__);
    struct ggml_tensor * node = gb_op_like(ctx, __func__, GGML_OP_SOLVE_TRI, b, false);
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, b, NULL);
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

bool gb_built_cumsum(gb_ct t) { return gb_check_1(NULL, t->src[0]) && gb_is_like(t, t->src[0]); }

bool gb_built_tri(gb_ct t) {
    return check_tri(NULL, t->src[0], (enum ggml_tri_type) t->op_params[0]) && gb_is_like(t, t->src[0]);
}

bool gb_built_solve_tri(gb_ct t) { return check_solve_tri(NULL, t->src[0], t->src[1]) && gb_is_like(t, t->src[1]); }
