// ffi_build.h - makes nodes for the Python package: NumPy's rules for shapes, and the number of dimensions of
// results.
//
// A call from Python costs as much as making a small tensor, so each function does all that one node needs. If a
// function returns NULL (or a negative number), nothing was made and there is no message: the caller finds the
// reason. Shapes and axes are in NumPy order. Included by ffi_support.h only.
#ifndef GBPY_FFI_BUILD_H
#define GBPY_FFI_BUILD_H

#include <string.h>

#include "ggml.h"
#include "extension.h"

// cdef: begin

// Rules for the number of dimensions of a result: as many as ...
enum gbpy_ndim_rule {
    GBPY_NDIM_MOST = -1, // the source that has the most
    GBPY_NDIM_FIRST = -2, // the first source
    GBPY_NDIM_SECOND = -3, // the second source
    GBPY_NDIM_PRODUCT = -4, // a product: a matrix by a vector is a vector
};

// Flags that gbpy_broadcast adds to the number of dimensions.
enum { GBPY_SWAP = 8, GBPY_REPEAT = 16 };

static inline void gbpy_set_ndim(struct ggml_tensor * t, int ndim);
static inline int gbpy_ndim(const struct ggml_tensor * t);
static inline void gbpy_settle(struct ggml_tensor * t, int ndim);

static inline int gbpy_broadcast(const struct ggml_tensor * a, const struct ggml_tensor * b);
static inline struct ggml_tensor * gbpy_reshape(struct ggml_context * ctx, struct ggml_tensor * t, int n, int64_t s0,
    int64_t s1, int64_t s2, int64_t s3);
static inline struct ggml_tensor * gbpy_transpose(struct ggml_context * ctx, struct ggml_tensor * t, int n, int64_t a0,
    int64_t a1, int64_t a2, int64_t a3);
static inline struct ggml_tensor * gbpy_slice(struct ggml_context * ctx, struct ggml_tensor * t, int n, int64_t from0,
    int64_t to0, int64_t from1, int64_t to1, int64_t from2, int64_t to2, int64_t from3, int64_t to3);

static inline struct ggml_tensor * gbpy_view_all(struct ggml_context * ctx, struct ggml_tensor * t);
static inline struct ggml_tensor * gbpy_view_bytes(struct ggml_context * ctx, struct ggml_tensor * bytes,
    enum ggml_type type, int n, const int64_t ne[4], size_t offset, size_t size);

// cdef: end

// The number of dimensions belongs to the tensor (c/src/tensor/tensor.h). So all handles of a tensor, and its copies,
// agree on its shape.
static inline void gbpy_set_ndim(struct ggml_tensor * t, int ndim) { gb_tensor_set_ndim(t, ndim); }

static inline int gbpy_ndim(const struct ggml_tensor * t) { return gb_tensor_ndim(t); }

static inline int gbpy_ndim_of_source(const struct ggml_tensor * t, int i) {
    return t->src[i] && t->src[i] != t ? gbpy_ndim(t->src[i]) : 0; // CAST refers to its result
}

// Sets the number of dimensions of a new node. ndim: the number, or an enum gbpy_ndim_rule.
static inline void gbpy_settle(struct ggml_tensor * t, int ndim) {
    if (ndim < 0) {
        const int first = gbpy_ndim_of_source(t, 0), second = gbpy_ndim_of_source(t, 1),
                  more = first > second ? first : second;
        const int rule = ndim;
        ndim = rule == GBPY_NDIM_FIRST ? first : rule == GBPY_NDIM_SECOND ? second : more;
        for (int i = 2; i < GGML_MAX_SRC && rule == GBPY_NDIM_MOST; i++) {
            const int n = gbpy_ndim_of_source(t, i);
            ndim = ndim < n ? n : ndim;
        }
        if (rule == GBPY_NDIM_PRODUCT && ndim == 2 && second == 1) {
            ndim = 1;
        }
    }
    gbpy_set_ndim(t, ndim);
}

// Finds how to make NumPy's a + b from ggml's, which repeats b over a. Returns the number of dimensions of the
// result. Adds GBPY_SWAP if only a must be repeated, so that the operands change places, and GBPY_REPEAT if both must
// be repeated. -1: the shapes do not broadcast.
static inline int gbpy_broadcast(const struct ggml_tensor * a, const struct ggml_tensor * b) {
    bool a_grows = false, b_grows = false;
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        if (a->ne[d] != b->ne[d]) {
            a_grows |= a->ne[d] == 1;
            b_grows |= b->ne[d] == 1;
            if (a->ne[d] != 1 && b->ne[d] != 1) {
                return -1;
            }
        }
    }
    const int x = gbpy_ndim(a), y = gbpy_ndim(b), n = x > y ? x : y;
    return a_grows ? n | (b_grows ? GBPY_REPEAT : GBPY_SWAP) : n;
}

// Reshapes a contiguous tensor to n sizes. One of them may be -1.
static inline struct ggml_tensor * gbpy_reshape(struct ggml_context * ctx, struct ggml_tensor * t, int n, int64_t s0,
    int64_t s1, int64_t s2, int64_t s3) {
    const int64_t size[GGML_MAX_DIMS] = { s0, s1, s2, s3 };
    int64_t ne[GGML_MAX_DIMS] = { 1, 1, 1, 1 };
    const int64_t count = ggml_nelements(t);
    int64_t known = 1;
    int open = -1; // the dimension whose size is not given
    for (int d = 0; d < n; d++) {
        ne[d] = size[n - 1 - d];
        if (ne[d] == -1 && open < 0) {
            open = d;
        } else if (ne[d] <= 0 || ne[d] > count / known) {
            return NULL;
        } else {
            known *= ne[d];
        }
    }
    if (open >= 0) {
        ne[open] = count / known;
        known *= ne[open];
    }
    if (known != count || count == 0 || !ggml_is_contiguous(t)) {
        return NULL;
    }
    struct ggml_tensor * result = ggml_reshape_4d(ctx, t, ne[0], ne[1], ne[2], ne[3]);
    if (result) {
        gbpy_set_ndim(result, n);
    }
    return result;
}

// Makes a view of all of t as a node, so that a graph computes t before it.
static inline struct ggml_tensor * gbpy_view_all(struct ggml_context * ctx, struct ggml_tensor * t) {
    struct ggml_tensor * result = ggml_view_tensor(ctx, t);
    if (result) {
        result->op = GGML_OP_VIEW;
        result->src[0] = t;
    }
    return result;
}

// Makes a view with another type over some bytes of a row of I8: a contiguous tensor of n dimensions. The caller has
// computed `size`.
static inline struct ggml_tensor * gbpy_view_bytes(struct ggml_context * ctx, struct ggml_tensor * bytes,
    enum ggml_type type, int n, const int64_t ne[4], size_t offset, size_t size) {
    struct ggml_tensor * result = ggml_view_1d(ctx, bytes, (int64_t) size, offset);
    if (result) {
        result->type = type;
        result->nb[0] = ggml_type_size(type);
        memcpy(result->ne, ne, sizeof(result->ne));
        for (int d = 1; d < GGML_MAX_DIMS; d++) {
            result->nb[d] = result->nb[d - 1] * (size_t) (d == 1 ? ne[0] / ggml_blck_size(type) : ne[d - 1]);
        }
        gbpy_set_ndim(result, n);
    }
    return result;
}

// Permutes the n axes of t: axis i of the result is axis a_i of t.
static inline struct ggml_tensor * gbpy_transpose(struct ggml_context * ctx, struct ggml_tensor * t, int n, int64_t a0,
    int64_t a1, int64_t a2, int64_t a3) {
    const int64_t axis[GGML_MAX_DIMS] = { a0, a1, a2, a3 };
    int to[GGML_MAX_DIMS] = { 0, 1, 2, 3 };
    unsigned seen = 0;
    if (n != gbpy_ndim(t)) {
        return NULL;
    }
    for (int i = 0; i < n; i++) {
        const int64_t old = axis[i] < 0 ? axis[i] + n : axis[i];
        if (old < 0 || old >= n || (seen & 1u << old)) {
            return NULL;
        }
        seen |= 1u << old;
        to[n - 1 - old] = n - 1 - i;
    }
    struct ggml_tensor * result = ggml_permute(ctx, t, to[0], to[1], to[2], to[3]);
    if (result) {
        gbpy_set_ndim(result, n);
    }
    return result;
}

// Slices the first n axes, from `from` to before `to` (INT64_MAX: the end; negative: counted from the end). Needs at
// least one element on each axis, and adjacent elements on the last axis.
static inline struct ggml_tensor * gbpy_slice(struct ggml_context * ctx, struct ggml_tensor * t, int n, int64_t from0,
    int64_t to0, int64_t from1, int64_t to1, int64_t from2, int64_t to2, int64_t from3, int64_t to3) {
    const int64_t from[GGML_MAX_DIMS] = { from0, from1, from2, from3 }, to[GGML_MAX_DIMS] = { to0, to1, to2, to3 };
    const int ndim = gbpy_ndim(t);
    int64_t ne[GGML_MAX_DIMS];
    size_t offset = 0;
    memcpy(ne, t->ne, sizeof(ne));
    if (n > ndim || t->nb[0] != ggml_type_size(t->type)) {
        return NULL;
    }
    for (int i = 0; i < n; i++) {
        const int d = ndim - 1 - i;
        const int64_t size = t->ne[d], start = from[i] < 0 ? from[i] + size : from[i];
        const int64_t after = to[i] < 0 ? to[i] + size : to[i];
        const int64_t end = after > size ? size : after;
        if (start < 0 || start >= end || (d == 0 && end - start != size && ggml_blck_size(t->type) > 1)) {
            return NULL;
        }
        ne[d] = end - start;
        offset += (size_t) start * t->nb[d];
    }
    if (ne[0] == 0 || ne[1] == 0 || ne[2] == 0 || ne[3] == 0) { // Python handles tensors without elements
        return NULL;
    }
    struct ggml_tensor * result =
        ndim == 1   ? ggml_view_1d(ctx, t, ne[0], offset)
        : ndim == 2 ? ggml_view_2d(ctx, t, ne[0], ne[1], t->nb[1], offset)
        : ndim == 3 ? ggml_view_3d(ctx, t, ne[0], ne[1], ne[2], t->nb[1], t->nb[2], offset)
        : ndim == 4 ? ggml_view_4d(ctx, t, ne[0], ne[1], ne[2], ne[3], t->nb[1], t->nb[2], t->nb[3], offset)
                    : NULL;
    if (result) {
        gbpy_set_ndim(result, ndim);
    }
    return result;
}

#endif // GBPY_FFI_BUILD_H
