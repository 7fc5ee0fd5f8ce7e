// derivatives_rules.h - what the files of rules share: derivatives.c has the table and the rules of elementary
// operators, derivatives_layers.c those of layers, and derivatives_conv.c those of convolutions.
//
// A rule gets a node y and its gradient g (same shape as the node, contiguous). It adds to the gradients of
// the sources that have one. Rules are pure algebra over the public builders and never read data. In
// formulas, a and b are the sources of y, and dx is the gradient of x. NULL passes through all functions,
// because the failed builder has reported.
#ifndef GB_TENSOR_DERIVATIVES_RULES_H
#define GB_TENSOR_DERIVATIVES_RULES_H

#include "tensor/derivatives.h"

// Builds `expr` only if the source has a gradient. `s` is the sweep of the rule.
#define ADD(source, expr) (!gb_grad_wanted(s, (source)) || gb_grad_add(s, (source), (expr)))

struct ggml_tensor * gb_grad_contiguous(struct ggml_context * ctx, struct ggml_tensor * t);
// Sums over the dimensions along which `like` was repeated.
struct ggml_tensor * gb_grad_unrepeated(struct ggml_context * ctx, struct ggml_tensor * expr,
    struct ggml_tensor * like);
// The same for the slices of a that MUL_MAT broadcasts: slice i2 of t belongs to slice i2 / r2 of a.
struct ggml_tensor * gb_grad_unbroadcast(struct ggml_context * ctx, struct ggml_tensor * t, struct ggml_tensor * a);
// The sum of a b over each row, kept as a row of one element.
struct ggml_tensor * gb_grad_row_dot(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b);
// Adds the gradients of a and b in their product (MUL_MAT), whose gradient is g.
bool gb_grad_of_product(struct gb_sweep * s, struct ggml_tensor * a, struct ggml_tensor * b, struct ggml_tensor * g);
// The gradient of the sinks of a softmax y, whose gradient is g.
struct ggml_tensor * gb_grad_of_sinks(struct ggml_context * ctx, struct ggml_tensor * y, struct ggml_tensor * g,
    struct ggml_tensor * sinks);
// The gradient of a mask from that of the logits to which it is added. It repeats over the logits, or has more rows.
// max_bias: 0, or ALiBi's, by which each head multiplies the mask.
struct ggml_tensor * gb_grad_of_mask(struct ggml_context * ctx, struct ggml_tensor * logits, struct ggml_tensor * mask,
    float max_bias);
// Reports that the node has no derivative. Returns false.
bool gb_grad_underivable(const struct gb_sweep * s, const struct ggml_tensor * y);

// Defines a rule, whose body follows.
#define RULE(name) bool gb_derive_##name(struct gb_sweep * s, struct ggml_tensor * y, struct ggml_tensor * g)

// ops.def names the rules. Several operators share some of them.
#define gb_derive_unary_flat gb_derive_flat
#define gb_derive_unary_none gb_derive_none
#define GB_OP(id, stem, sources, work, cost, inplace, unit, derivative, symbol) RULE(derivative);
#define GB_UNARY_OP(id, stem, tolerance, forms, derivative) RULE(unary_##derivative);
#include "tensor/ops.def"

#endif // GB_TENSOR_DERIVATIVES_RULES_H
