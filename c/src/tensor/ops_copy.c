// ops_copy.c - copies, conversions and gathers. A copy keeps the logical order of the elements, for
// any strides of source and result.
#include "tensor/ops.h"

// A copy of the same type and shape, contiguous unless it is in place.
static struct ggml_tensor * dup(struct ggml_context * ctx, const char * func, struct ggml_tensor * a, bool inplace) {
    if (!gb_check_1(func, a)) {
        return NULL;
    }
    return gb_op_sources(ctx, gb_op_like(ctx, func, GGML_OP_DUP, a, inplace), gb_grad_unless(inplace), a, NULL, NULL);
}

struct ggml_tensor * ggml_dup(struct ggml_context * ctx, struct ggml_tensor * a) {
    return dup(ctx, __func__, a, false);
}

struct ggml_tensor * ggml_dup_inplace(struct ggml_context * ctx, struct ggml_tensor * a) {
    return dup(ctx, __func__, a, true);
}

// The node is a view of b, so computing it writes to b's memory.
struct ggml_tensor * ggml_cpy(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    if (!gb_check_cpy(__func__, a, b)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, __func__, GGML_OP_CPY, b, true);
    if (b->name[0] != '\0') {
        gb_tensor_name_after(node, b, "copy", a);
    } else {
        gb_tensor_name_after(node, a, "copy", NULL);
    }
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);
}

// A copy of another type in its own memory.
struct ggml_tensor * ggml_cast(struct ggml_context * ctx, struct ggml_tensor * a, enum ggml_type type) {
    if (!gb_check_type(__func__, a, type)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_CPY, type, gb_shape_like(a));
    gb_tensor_name_after(node, a, "copy", NULL);
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, node, NULL);  // CPY writes to src[1], here the node itself
}

// A contiguous copy of a with the sizes ne, which have as many elements.
static struct ggml_tensor * cont(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    const int64_t ne[4], enum gb_grad grad) {
    struct ggml_tensor * node = gb_op_new(ctx, func, GGML_OP_CONT, a->type, gb_shape_of(ne[0], ne[1], ne[2], ne[3]));
    gb_tensor_name_after(node, a, "cont", NULL);
    return gb_op_sources(ctx, node, grad, a, NULL, NULL);
}

struct ggml_tensor * ggml_cont(struct ggml_context * ctx, struct ggml_tensor * a) {
    return gb_check_1(__func__, a) ? cont(ctx, __func__, a, a->ne, GB_GRAD_INHERIT) : NULL;
}

// A contiguous copy to another shape has no gradient.
static struct ggml_tensor * cont_as(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    const int64_t ne[4]) {
    return gb_check_count(func, a, ne) ? cont(ctx, func, a, ne, GB_GRAD_NONE) : NULL;
}

struct ggml_tensor * ggml_cont_1d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0) {
    return cont_as(ctx, __func__, a, (const int64_t[4]){ ne0, 1, 1, 1 });
}

struct ggml_tensor * ggml_cont_2d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1) {
    return cont_as(ctx, __func__, a, (const int64_t[4]){ ne0, ne1, 1, 1 });
}

struct ggml_tensor * ggml_cont_3d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1,
    int64_t ne2) {
    return cont_as(ctx, __func__, a, (const int64_t[4]){ ne0, ne1, ne2, 1 });
}

struct ggml_tensor * ggml_cont_4d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1,
    int64_t ne2, int64_t ne3) {
    return cont_as(ctx, __func__, a, (const int64_t[4]){ ne0, ne1, ne2, ne3 });
}

// Rows of I32 stay I32. Rows of any other type become F32.
struct ggml_tensor * ggml_get_rows(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    if (!gb_check_get_rows(__func__, a, b)) {
        return NULL;
    }
    const enum ggml_type type = a->type == GGML_TYPE_I32 ? GGML_TYPE_I32 : GGML_TYPE_F32;
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_GET_ROWS, type, gb_shape_get_rows(a, b));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);
}

struct ggml_tensor * ggml_get_rows_back(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * c) {
    if (!gb_check_get_rows_back(__func__, a, b, c)) {
        return NULL;
    }
    struct ggml_tensor * node =
        gb_op_new(ctx, __func__, GGML_OP_GET_ROWS_BACK, GGML_TYPE_F32, gb_shape_get_rows_back(c));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);  // c only gives its shape
}

// The node is a view of a, so computing it writes to a's memory. a is a source, because most of its
// rows do not change.
struct ggml_tensor * ggml_set_rows(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * c) {
    if (!gb_check_set_rows(__func__, a, b, c)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, __func__, GGML_OP_SET_ROWS, a, true);
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, b, c, a);
}

struct ggml_tensor * ggml_diag(struct ggml_context * ctx, struct ggml_tensor * a) {
    if (!gb_check_diag(__func__, a)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_DIAG, a->type, gb_shape_diag(a));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

// A program that fills the fields of a copy itself may change its shape and its type in one node.
// No single builder makes such a node. The copy goes to the node's memory: src[1] of CPY is not read.
static bool is_copy(gb_ct t) { return gb_check_cpy(NULL, t->src[0], t); }

bool gb_built_dup(gb_ct t) { return is_copy(t); }

bool gb_built_cpy(gb_ct t) { return is_copy(t); }

bool gb_built_cont(gb_ct t) { return is_copy(t); }

bool gb_built_get_rows(gb_ct t) {
    return gb_check_get_rows(NULL, t->src[0], t->src[1]) && gb_is_shape(t, gb_shape_get_rows(t->src[0], t->src[1]));
}

bool gb_built_get_rows_back(gb_ct t) {
    return gb_check_get_rows_back(NULL, t->src[0], t->src[1], t) && gb_is_shape(t, gb_shape_get_rows_back(t));
}

// The node writes to its own memory. src[2] makes the scheduler keep the other rows of that memory.
bool gb_built_set_rows(gb_ct t) {
    return gb_check_set_rows(NULL, t->src[2], t->src[0], t->src[1]) && gb_is_like(t, t->src[2]);
}

bool gb_built_diag(gb_ct t) { return gb_check_diag(NULL, t->src[0]) && gb_is_shape(t, gb_shape_diag(t->src[0])); }
