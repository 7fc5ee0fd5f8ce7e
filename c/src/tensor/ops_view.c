// ops_view.c - RESHAPE, VIEW, PERMUTE, TRANSPOSE: views of a's memory. Nothing is computed.
// gb_tensor_view checks the true extent of every view against the memory that it shows.
#include "tensor/ops.h"

// a is contiguous, so the result is contiguous over the same bytes.
static struct ggml_tensor * reshape(struct ggml_context * ctx, const char * func, struct ggml_tensor * a, int ndim,
    const int64_t ne[4]) {
    if (!gb_check_reshape(func, a, ne)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_view(ctx, func, GGML_OP_RESHAPE, a, ne, NULL, 0, "reshaped");
    gb_op_set_ndim(node, ndim);
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

struct ggml_tensor * ggml_reshape(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    return gb_check_2(__func__, a, b) ? reshape(ctx, __func__, a, gb_tensor_ndim(b), b->ne) : NULL;
}

struct ggml_tensor * ggml_reshape_1d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0) {
    return reshape(ctx, __func__, a, 1, (const int64_t[4]){ ne0, 1, 1, 1 });
}

struct ggml_tensor * ggml_reshape_2d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1) {
    return reshape(ctx, __func__, a, 2, (const int64_t[4]){ ne0, ne1, 1, 1 });
}

struct ggml_tensor * ggml_reshape_3d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1,
    int64_t ne2) {
    return reshape(ctx, __func__, a, 3, (const int64_t[4]){ ne0, ne1, ne2, 1 });
}

struct ggml_tensor * ggml_reshape_4d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1,
    int64_t ne2, int64_t ne3) {
    return reshape(ctx, __func__, a, 4, (const int64_t[4]){ ne0, ne1, ne2, ne3 });
}

// A view with the strides nb. NULL: contiguous. The node stores its offset relative to a, for
// derivatives and files.
static struct ggml_tensor * view(struct ggml_context * ctx, const char * func, struct ggml_tensor * a, int ndim,
    const int64_t ne[4], const size_t * nb, size_t offset) {
    if (!gb_check_1(func, a)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_view(ctx, func, GGML_OP_VIEW, a, ne, nb, offset, "view");
    gb_op_set_ndim(node, ndim);
    gb_op_set_params(node, &offset, sizeof(offset));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

// The stride of the dimension after one with n elements. If a product overflows, this returns a
// stride that no memory has, so the view is refused.
static size_t next_stride(size_t nb, int64_t n) {
    size_t r;
    return gb_mul_size(nb, (size_t) n, &r) ? r : SIZE_MAX;
}

struct ggml_tensor * ggml_view_1d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, size_t offset) {
    return view(ctx, __func__, a, 1, (const int64_t[4]){ ne0, 1, 1, 1 }, NULL, offset);
}

struct ggml_tensor * ggml_view_2d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1,
    size_t nb1, size_t offset) {
    const size_t nb2 = next_stride(nb1, ne1);
    return view(ctx, __func__, a, 2, (const int64_t[4]){ ne0, ne1, 1, 1 },
        (const size_t[4]){ a != NULL ? ggml_type_size(a->type) : 0, nb1, nb2, nb2 }, offset);
}

struct ggml_tensor * ggml_view_3d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1,
    int64_t ne2, size_t nb1, size_t nb2, size_t offset) {
    return view(ctx, __func__, a, 3, (const int64_t[4]){ ne0, ne1, ne2, 1 },
        (const size_t[4]){ a != NULL ? ggml_type_size(a->type) : 0, nb1, nb2, next_stride(nb2, ne2) }, offset);
}

struct ggml_tensor * ggml_view_4d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1,
    int64_t ne2, int64_t ne3, size_t nb1, size_t nb2, size_t nb3, size_t offset) {
    return view(ctx, __func__, a, 4, (const int64_t[4]){ ne0, ne1, ne2, ne3 },
        (const size_t[4]){ a != NULL ? ggml_type_size(a->type) : 0, nb1, nb2, nb3 }, offset);
}

// Dimension d of a becomes dimension axes[d] of the result.
struct ggml_tensor * ggml_permute(struct ggml_context * ctx, struct ggml_tensor * a, int axis0, int axis1, int axis2,
    int axis3) {
    const int axes[4] = { axis0, axis1, axis2, axis3 };
    if (!gb_check_permute(__func__, a, axes)) {
        return NULL;
    }
    int64_t ne[4];
    size_t nb[4];
    int32_t params[4];
    for (int d = 0; d < 4; d++) {
        ne[axes[d]] = a->ne[d];
        nb[axes[d]] = a->nb[d];
        params[d] = axes[d];
    }
    struct ggml_tensor * node = gb_op_view(ctx, __func__, GGML_OP_PERMUTE, a, ne, nb, 0, "permuted");
    gb_op_set_params(node, params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

struct ggml_tensor * ggml_transpose(struct ggml_context * ctx, struct ggml_tensor * a) {
    if (!gb_check_1(__func__, a)) {
        return NULL;
    }
    const int64_t ne[4] = { a->ne[1], a->ne[0], a->ne[2], a->ne[3] };
    const size_t nb[4] = { a->nb[1], a->nb[0], a->nb[2], a->nb[3] };
    struct ggml_tensor * node = gb_op_view(ctx, __func__, GGML_OP_TRANSPOSE, a, ne, nb, 0, "transposed");
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}
