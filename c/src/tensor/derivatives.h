// derivatives.h - computes the gradients of a node's sources from the gradient of the node, with
// one rule for each operator.
//
// backward.c and grad.c run a sweep over a graph, which calls gb_derive for each node. The rules
// (derivatives_rules.h) pass their results to gb_grad_add. During the sweep, gradients are stored in the
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
    struct ggml_tensor * before;  // its grad when the sweep began; NULL in grad.c, and for nodes of an earlier sweep
    struct ggml_tensor * current;  // the sum so far; contiguous unless it is `before`; NULL: zero, without a tensor
    bool is_zero;  // nothing added yet, and the initial gradient is zero
    bool was_derived;  // had the mark DERIVED when the sweep began
};

// The state of one sweep; backward.c or grad.c makes and frees it.
struct gb_sweep {
    struct ggml_context * ctx;
    struct gb_ptrmap ids; // tensor -> index in entries
    GB_VEC(struct gb_grad_entry) entries;
    const char * func; // for messages
    bool in_f32; // gradients are F32, else they have the types of their tensors where rules convert
};

// The entry of a tensor. NULL if it has no gradient, and for NULL.
struct gb_grad_entry * gb_sweep_entry(const struct gb_sweep * sweep, const struct ggml_tensor * tensor);
// Adds an entry for a tensor without one. False: memory ran out.
bool gb_sweep_add(struct gb_sweep * sweep, struct gb_grad_entry entry);
// True if a source of the node has an entry. A cast names itself as a source, which does not count.
bool gb_sweep_has_source(const struct gb_sweep * sweep, const struct ggml_tensor * node);
// Calls the rules of the nodes with a gradient, from last to first. So all readers of a node have
// added to its gradient before its own rule runs. False: a rule failed (reported).
bool gb_sweep_nodes(struct gb_sweep * sweep, struct ggml_tensor * const * nodes, int n);
void gb_sweep_free(struct gb_sweep * sweep);

// True if the tensor has a gradient, so that rules build only what is needed. False for NULL.
bool gb_grad_wanted(const struct gb_sweep * sweep, const struct ggml_tensor * tensor);

// Adds `expr` to the gradient of `tensor`, which has one. gb_grad_add_region adds it to a region
// only. False: `expr` is NULL (reported by its builder), or the sum could not be built.
bool gb_grad_add(struct gb_sweep * sweep, struct ggml_tensor * tensor, struct ggml_tensor * expr);
bool gb_grad_add_region(struct gb_sweep * sweep, struct ggml_tensor * tensor, struct ggml_tensor * expr,
    const size_t nb[4], size_t offset);

// Zeros of the shape of `like`, as F32. The node does not read `like`, whose memory may so be reused.
// NULL on failure (reported).
struct ggml_tensor * gb_grad_zeros(struct ggml_context * ctx, struct ggml_tensor * like);

// Adds the contributions of `node`, whose gradient is `grad`, to its sources. False: the operator
// has no derivative, or a builder failed (reported).
bool gb_derive(struct gb_sweep * sweep, struct ggml_tensor * node, struct ggml_tensor * grad);

#endif // GB_TENSOR_DERIVATIVES_H
