// derivatives.h - computes the gradients of a node's sources from the gradient of the node, with
// one rule for each operator.
//
// backward.c runs a sweep over a graph and calls gb_derive for each node. The rules in
// derivatives.c pass their results to gb_grad_add. During the sweep, gradients are stored in the
// sweep, and the forward tensors have no grad field. So the rules' builders neither make gradients
// nor refuse operands with a gradient.
#ifndef GB_TENSOR_DERIVATIVES_H
#define GB_TENSOR_DERIVATIVES_H

#include "base/hash.h"
#include "base/vec.h"
#include "tensor/tensor.h"

// A forward tensor that has a gradient.
struct gb_grad_entry {
    struct ggml_tensor * tensor;
    struct ggml_tensor * before;  // its grad when the sweep began; NULL: an earlier sweep made the tensor
    struct ggml_tensor * current;  // the sum so far; contiguous unless it is `before`
    bool is_zero;  // nothing added yet, and ggml_graph_reset zeroes the initial gradient
    bool was_derived;  // had the mark DERIVED when the sweep began
};

// The state of one sweep; backward.c makes and frees it.
struct gb_sweep {
    struct ggml_context * ctx;
    struct gb_ptrmap ids; // tensor -> index in entries
    GB_VEC(struct gb_grad_entry) entries;
    const char * func; // for messages
};

// True if the tensor has a gradient, so that rules build only what is needed. False for NULL.
bool gb_grad_wanted(const struct gb_sweep * sweep, const struct ggml_tensor * tensor);

// Adds `expr` to the gradient of `tensor`, which has one. gb_grad_add_region adds it to a region
// only. False: `expr` is NULL (reported by its builder), or the sum could not be built.
bool gb_grad_add(struct gb_sweep * sweep, struct ggml_tensor * tensor, struct ggml_tensor * expr);
bool gb_grad_add_region(struct gb_sweep * sweep, struct ggml_tensor * tensor, struct ggml_tensor * expr,
    const size_t nb[4], size_t offset);

// Adds the contributions of `node`, whose gradient is `grad`, to its sources. False: the operator
// has no derivative, or a builder failed (reported).
bool gb_derive(struct gb_sweep * sweep, struct ggml_tensor * node, struct ggml_tensor * grad);

#endif // GB_TENSOR_DERIVATIVES_H
