// ops.h - helpers of builders.
//
// Every builder has three steps. It checks the call with check.h. It makes the result: a fresh
// tensor, or a view of `a` for the in-place form. It sets parameters and sources. All helpers
// accept the NULL of a failed step and return it, so builders need no tests for it. The failed step
// has reported. `func` is the public builder's name, for messages.
#ifndef GB_TENSOR_OPS_H
#define GB_TENSOR_OPS_H

#include "tensor/check.h"
#include "tensor/shapes.h"
#include "tensor/tensor.h"

// True if a node gets its own gradient when a source has one.
enum gb_grad { GB_GRAD_NONE, GB_GRAD_INHERIT };

// False and reported if ctx is NULL. The helpers below check this themselves. Builders that call
// other builders check it first, so that the message has their name.
bool gb_op_has_context(const struct ggml_context * ctx, const char * func);

// A fresh contiguous node; NULL on failure (reported), here and below.
struct ggml_tensor * gb_op_new(struct ggml_context * ctx, const char * func, enum ggml_op op, enum ggml_type type,
    struct gb_shape shape);

// A node like a: fresh with its type and shape, or, in place, a view of it.
struct ggml_tensor * gb_op_like(struct ggml_context * ctx, const char * func, enum ggml_op op, struct ggml_tensor * a,
    bool inplace);

// A node of op PERMUTE, VIEW, ... over a's memory, like gb_tensor_view. Its name is "<a>
// (<suffix>)".
struct ggml_tensor * gb_op_view(struct ggml_context * ctx, const char * func, enum ggml_op op, struct ggml_tensor * a,
    const int64_t ne[4], const size_t * nb, size_t offset, const char * suffix);

// Sets the number of dimensions of the node if it is not the largest number of its sources.
void gb_op_set_ndim(struct ggml_tensor * node, int ndim);

// Copies the operator's parameters into the node, at most GGML_MAX_OP_PARAMS bytes. Parameter i
// counts in units of 4 bytes.
void gb_op_set_params(struct ggml_tensor * node, const void * params, size_t size);
void gb_op_set_param_f32(struct ggml_tensor * node, int i, float value);

// Sets src[0..2] (b and c may be NULL: unused). This is the last step. Returns the node.
struct ggml_tensor * gb_op_sources(struct ggml_context * ctx, struct ggml_tensor * node, enum gb_grad grad,
    struct ggml_tensor * a, struct ggml_tensor * b, struct ggml_tensor * c);

// Sets src[s], the sinks of a node of operator `op` with n_heads heads. The node must have no sinks
// yet. NULL removes them.
enum ggml_status gb_op_set_sinks(struct ggml_tensor * a, struct ggml_tensor * sinks, const char * func, enum ggml_op op,
    int s, int64_t n_heads);

// For builders of several nodes: returns the last one; if that is NULL, drops all nodes since the first from the
// context.
struct ggml_tensor * gb_op_keep_if(struct ggml_context * ctx, struct ggml_tensor * first, struct ggml_tensor * last);

// The rule of most operators: only a fresh node gets a gradient. An in-place node overwrites data
// that derivatives may read.
static inline enum gb_grad gb_grad_unless(bool inplace) { return inplace ? GB_GRAD_NONE : GB_GRAD_INHERIT; }

// True if the operator's builder could have made node t from its sources and parameters. Each
// function is next to its builder, because both use the same check (here without a function's name)
// and shape. Views have no such function, because they only must be inside their root.
#define GB_OP(id, stem, ...) bool gb_built_##stem(const struct ggml_tensor * t);
#include "tensor/ops.def"

#endif // GB_TENSOR_OPS_H
