// ops.c - the steps that all builders share (ops.h).
#include "tensor/ops.h"

bool gb_op_has_context(const struct ggml_context * ctx, const char * func) {
    if (ctx == NULL) {
        gb_fail_null(func, "ctx");
    }
    return ctx != NULL;
}

// The number of dimensions is unknown until the sources are set (settle_ndim).
struct ggml_tensor * gb_op_new(struct ggml_context * ctx, const char * func, enum ggml_op op, enum ggml_type type,
    struct gb_shape shape) {
    if (!gb_op_has_context(ctx, func)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_tensor_new(ctx, type, 4, shape.ne);
    if (node != NULL) {
        node->op = op;
        gb_tensor_set_ndim(node, -1);
    }
    return node;
}

struct ggml_tensor * gb_op_like(struct ggml_context * ctx, const char * func, enum ggml_op op, struct ggml_tensor * a,
    bool inplace) {
    if (!inplace) {
        return gb_op_new(ctx, func, op, a->type, gb_shape_like(a));
    }
    return gb_check_inplace(func, a) ? gb_op_view(ctx, func, op, a, a->ne, a->nb, 0, "view") : NULL;
}

struct ggml_tensor * gb_op_view(struct ggml_context * ctx, const char * func, enum ggml_op op, struct ggml_tensor * a,
    const int64_t ne[4], const size_t * nb, size_t offset, const char * suffix) {
    if (!gb_op_has_context(ctx, func)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_tensor_view(ctx, a, 4, ne, nb, offset, func);
    if (node != NULL) {
        node->op = op;
        gb_tensor_set_ndim(node, -1);
        gb_tensor_name_after(node, a, suffix, NULL);
    }
    return node;
}

struct ggml_tensor * gb_op_keep_if(struct ggml_context * ctx, struct ggml_tensor * first, struct ggml_tensor * last) {
    if (last == NULL && first != NULL) {
        gb_context_drop(ctx, first);
    }
    return last;
}

void gb_op_set_ndim(struct ggml_tensor * node, int ndim) {
    if (node != NULL) {
        gb_tensor_set_ndim(node, ndim);
    }
}

void gb_op_set_params(struct ggml_tensor * node, const void * params, size_t size) {
    if (node != NULL) {
        memcpy(node->op_params, params, size);
    }
}

void gb_op_set_param_f32(struct ggml_tensor * node, int i, float value) {
    if (node != NULL) {
        memcpy(&node->op_params[i], &value, sizeof(value));
    }
}

// A node has the largest number of dimensions of its sources, unless its builder has set it.
static void settle_ndim(struct ggml_tensor * node) {
    int most = 0;
    for (int i = 0; i < 3 && !gb_tensor_knows_ndim(node); i++) {
        const struct ggml_tensor * src = node->src[i];
        most = src != NULL && src != node ? GB_MAX(most, gb_tensor_ndim(src)) : most;
    }
    if (!gb_tensor_knows_ndim(node)) {
        gb_tensor_set_ndim(node, most);
    }
}

// The mark of a source passes to the node (marks.h).
static void inherit_derived(struct ggml_tensor * node) {
    for (int i = 0; i < 3; i++) {
        if (node->src[i] != NULL && gb_tensor_has_flag(node->src[i], GB_TENSOR_DERIVED)) {
            gb_tensor_set_flag(node, GB_TENSOR_DERIVED);
        }
    }
}

struct ggml_tensor * gb_op_sources(struct ggml_context * ctx, struct ggml_tensor * node, enum gb_grad grad,
    struct ggml_tensor * a, struct ggml_tensor * b, struct ggml_tensor * c) {
    if (node == NULL) {
        return NULL;
    }
    node->src[0] = a;
    node->src[1] = b;
    node->src[2] = c;
    settle_ndim(node);
    inherit_derived(node);
    return grad == GB_GRAD_INHERIT ? gb_op_keep_if(ctx, node, gb_tensor_inherit_grad(ctx, node)) : node;
}
