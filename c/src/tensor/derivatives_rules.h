// derivatives_rules.h - what the files of rules share: derivatives.c has the table and the rules of elementary
// operators, derivatives_layers.c those of activations, norms, gates, attention and images.
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
// Reports that the node has no derivative. Returns false.
bool gb_grad_underivable(const struct gb_sweep * s, const struct ggml_tensor * y);

// The rules of derivatives_layers.c. X(name) for each derive_<name> of ops.def.
#define GB_LAYER_RULES(X) \
    X(norm)               \
    X(group_norm)         \
    X(l2_norm)            \
    X(concat)             \
    X(pad)                \
    X(pad_ext)            \
    X(roll)               \
    X(upscale)            \
    X(pool_2d)            \
    X(set_rows)           \
    X(leaky_relu)         \
    X(clamp)              \
    X(im2col)             \
    X(im2col_back)        \
    X(conv_2d)            \
    X(conv_2d_dw)         \
    X(xielu)              \
    X(glu)                \
    X(attention_ext)      \
    X(unary_tanh)         \
    X(unary_elu)          \
    X(unary_gelu)         \
    X(unary_gelu_quick)   \
    X(unary_gelu_erf)     \
    X(unary_hardswish)    \
    X(unary_hardsigmoid)

#define GB_LAYER_RULE(name) bool gb_derive_##name(struct gb_sweep * s, struct ggml_tensor * y, struct ggml_tensor * g);
GB_LAYER_RULES(GB_LAYER_RULE)

#endif // GB_TENSOR_DERIVATIVES_RULES_H
