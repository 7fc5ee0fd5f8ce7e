// ops_reduce.c - sums, extrema, order, repetition and concatenation. Operands that only give a
// shape are not sources.
#include "tensor/ops.h"

struct ggml_tensor * ggml_sum(struct ggml_context * ctx, struct ggml_tensor * a) {
    if (!gb_check_1(__func__, a)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_SUM, a->type, gb_shape_scalar());
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

// The sum of each row, with the type of a.
struct ggml_tensor * ggml_sum_rows(struct ggml_context * ctx, struct ggml_tensor * a) {
    if (!gb_check_1(__func__, a)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_SUM_ROWS, a->type, gb_shape_per_row(a));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

// The result is f32 for any type of a, because the mean of integers may have a fraction.
struct ggml_tensor * ggml_mean(struct ggml_context * ctx, struct ggml_tensor * a) {
    if (!gb_check_1(__func__, a)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_MEAN, GGML_TYPE_F32, gb_shape_per_row(a));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

// Positions of the largest elements, as I32.
struct ggml_tensor * ggml_argmax(struct ggml_context * ctx, struct ggml_tensor * a) {
    if (!gb_check_argmax(__func__, a)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_ARGMAX, GGML_TYPE_I32, gb_shape_argmax(a));
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, NULL, NULL);
}

// The caller has checked the operand.
static struct ggml_tensor * argsort(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    enum ggml_sort_order order) {
    struct ggml_tensor * node = gb_op_new(ctx, func, GGML_OP_ARGSORT, GGML_TYPE_I32, gb_shape_like(a));
    const int32_t params = (int32_t) order;
    gb_op_set_params(node, &params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, NULL, NULL);
}

struct ggml_tensor * ggml_argsort(struct ggml_context * ctx, struct ggml_tensor * a, enum ggml_sort_order order) {
    return gb_check_argsort(__func__, a, order) ? argsort(ctx, __func__, a, order) : NULL;
}

// The first k positions of the sorted row: a view.
struct ggml_tensor * ggml_top_k(struct ggml_context * ctx, struct ggml_tensor * a, int k) {
    if (!gb_check_top_k(__func__, a, k)) {
        return NULL;
    }
    struct ggml_tensor * sorted = argsort(ctx, __func__, a, GGML_SORT_DESC);
    if (sorted == NULL) {
        return NULL;
    }
    struct ggml_tensor * top = ggml_view_4d(ctx, sorted, k, sorted->ne[1], sorted->ne[2], sorted->ne[3], sorted->nb[1],
        sorted->nb[2], sorted->nb[3], 0);
    return gb_op_keep_if(ctx, sorted, top);
}

static struct gb_shape shape_top_k(gb_ct a, int64_t k) { return gb_shape_of(k, a->ne[1], a->ne[2], a->ne[3]); }

// A separate operator, which does not sort.
struct ggml_tensor * ggml_top_k_unsorted(struct ggml_context * ctx, struct ggml_tensor * a, int k) {
    if (!gb_check_no_grad(__func__, a) || !gb_check_top_k(__func__, a, k)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_TOP_K, GGML_TYPE_I32, shape_top_k(a, k));
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, NULL, NULL);
}

struct ggml_tensor * ggml_repeat(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    if (!gb_check_repeat(__func__, a, b)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_REPEAT, a->type, gb_shape_like(b));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);  // b only gives its shape
}

// If nothing is repeated, returns the operand itself, unless it has a gradient, which needs a node.
struct ggml_tensor * ggml_repeat_back(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    if (!gb_check_repeat_back(__func__, a, b)) {
        return NULL;
    }
    if (ggml_are_same_shape(a, b) && a->grad == NULL) {
        return a;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_REPEAT_BACK, a->type, gb_shape_like(b));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

struct ggml_tensor * ggml_concat(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    if (!gb_check_concat(__func__, a, b)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_CONCAT, a->type, gb_shape_concat(a, b));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

bool gb_built_sum(gb_ct t) { return gb_check_1(NULL, t->src[0]) && gb_is_shape(t, gb_shape_scalar()); }

bool gb_built_sum_rows(gb_ct t) { return gb_check_1(NULL, t->src[0]) && gb_is_shape(t, gb_shape_per_row(t->src[0])); }

bool gb_built_mean(gb_ct t) { return gb_check_1(NULL, t->src[0]) && gb_is_shape(t, gb_shape_per_row(t->src[0])); }

bool gb_built_argmax(gb_ct t) { return gb_check_argmax(NULL, t->src[0]) && gb_is_shape(t, gb_shape_argmax(t->src[0])); }

bool gb_built_argsort(gb_ct t) {
    return gb_check_argsort(NULL, t->src[0], (enum ggml_sort_order) t->op_params[0]) && gb_is_like(t, t->src[0]);
}

bool gb_built_top_k(gb_ct t) {
    const int64_t k = t->ne[0];
    return k <= INT32_MAX && gb_check_top_k(NULL, t->src[0], (int) k) && gb_is_shape(t, shape_top_k(t->src[0], k));
}

bool gb_built_repeat(gb_ct t) { return gb_check_repeat(NULL, t->src[0], t); }

bool gb_built_repeat_back(gb_ct t) { return gb_check_repeat_back(NULL, t->src[0], t); }

bool gb_built_concat(gb_ct t) {
    return gb_check_concat(NULL, t->src[0], t->src[1]) && gb_is_shape(t, gb_shape_concat(t->src[0], t->src[1]));
}
