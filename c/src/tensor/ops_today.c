// ops_today.c - the builders of ggml-today.h: forms of 2026 made of the operators that exist.
#define GGML_TODAY_DECLARATIONS_ONLY // this file calls the older forms
#include "ggml-today.h"
#include "tensor/ops.h"
#include "tensor/rule.h"

// -------------------------------------------------------------------------------------------------------------- ROPE

struct ggml_tensor * ggml_today_rope(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int n_dims, int mode) {
    return ggml_rope_ext(ctx, a, b, NULL, n_dims, mode, 0, 10000, 1, 0, 1, 0, 0);
}

struct ggml_tensor * ggml_today_rope_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int n_dims, int mode) {
    return ggml_rope_ext_inplace(ctx, a, b, NULL, n_dims, mode, 0, 10000, 1, 0, 1, 0, 0);
}

struct ggml_tensor * ggml_today_rope_custom(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor,
    float beta_fast, float beta_slow) {
    return ggml_rope_ext(ctx, a, b, NULL, n_dims, mode, n_ctx_orig, freq_base, freq_scale, ext_factor, attn_factor,
        beta_fast, beta_slow);
}

struct ggml_tensor * ggml_today_rope_custom_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor,
    float attn_factor, float beta_fast, float beta_slow) {
    return ggml_rope_ext_inplace(ctx, a, b, NULL, n_dims, mode, n_ctx_orig, freq_base, freq_scale, ext_factor,
        attn_factor, beta_fast, beta_slow);
}

// --------------------------------------------------------------------------------------------------- CONCAT, REPEAT

// a with dimensions dim and 2 exchanged.
static struct ggml_tensor * exchanged(struct ggml_context * ctx, struct ggml_tensor * a, int dim) {
    int axes[4] = { 0, 1, 2, 3 };
    axes[dim] = 2;
    axes[2] = dim;
    return ggml_permute(ctx, a, axes[0], axes[1], axes[2], axes[3]);
}

// CONCAT joins along dimension 2.
struct ggml_tensor * ggml_today_concat(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int dim) {
    const struct gb_call c = GB_CALL_2("ggml_concat", a, b);
    bool ok = gb_rule_given(&c) && gb_rule_in_range(&c, "dim", dim, 0, 3) && gb_rule_same_type(&c, 0, 1);
    for (int d = 0; d < 4 && ok; d++) {
        ok = d == dim || gb_rule_equal(&c, 0, d, 1, d);
    }
    if (!ok || !gb_op_has_context(ctx, c.func)) {
        return NULL;
    }
    if (dim == 2) {
        return ggml_concat(ctx, a, b);
    }
    struct ggml_tensor * first = exchanged(ctx, a, dim);
    struct ggml_tensor * joined = ggml_concat(ctx, first, first != NULL ? exchanged(ctx, b, dim) : NULL);
    struct ggml_tensor * view = joined != NULL ? exchanged(ctx, joined, dim) : NULL;
    return gb_op_keep_if(ctx, first, view != NULL ? ggml_cont(ctx, view) : NULL);
}

struct ggml_tensor * ggml_today_repeat_4d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1,
    int64_t ne2, int64_t ne3) {
    static const char * const names[4] = { "ne0", "ne1", "ne2", "ne3" };
    const struct gb_call c = GB_CALL_1("ggml_repeat_4d", a);
    const int64_t ne[4] = { ne0, ne1, ne2, ne3 };
    bool ok = gb_rule_given(&c);
    for (int d = 0; d < 4 && ok; d++) {
        ok = gb_rule_at_least(&c, names[d], ne[d], 0) &&
             (gb_size_divides(a->ne[d], ne[d]) || GB_BROKEN(&c, COUNT_NO_MULTIPLE, .a = "a", .a_dim = d,
                                                      .name = names[d], .number = { ne[d], a->ne[d] }));
    }
    if (!ok) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, c.func, GGML_OP_REPEAT, a->type, gb_shape_of(ne0, ne1, ne2, ne3));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

struct ggml_tensor * ggml_today_argsort_top_k(struct ggml_context * ctx, struct ggml_tensor * a, int k) {
    return ggml_top_k(ctx, a, k);
}

// ------------------------------------------------------------------------------------------------------------- pooling

// POOL_1D takes matrices and POOL_2D stacks of them. Further dimensions are merged into the last of
// these `n_kept` ones.
static struct ggml_tensor * merged(struct ggml_context * ctx, struct ggml_tensor * a, int n_kept) {
    if (a->ne[3] == 1 && (n_kept == 3 || a->ne[2] == 1)) {
        return a;
    }
    const int64_t planes = gb_size_product(a->ne[2], a->ne[3]); // -1, which is refused, if it overflows
    return n_kept == 3 ? ggml_cont_3d(ctx, a, a->ne[0], a->ne[1], planes)
                       : ggml_cont_2d(ctx, a, a->ne[0], gb_size_product(a->ne[1], planes));
}

// Means divided by the share of their windows that lies inside rows of a. The mean of nothing stays 0.
static struct ggml_tensor * of_inside(struct ggml_context * ctx, struct ggml_tensor * means, struct ggml_tensor * a,
    int k0, int s0, int p0) {
    struct ggml_tensor * row = ggml_view_1d(ctx, a, a->ne[0], 0); // FILL takes its shape alone
    struct ggml_tensor * ones = row != NULL ? ggml_fill(ctx, row, 1) : NULL;
    struct ggml_tensor * share = ones != NULL ? ggml_pool_1d(ctx, ones, GGML_OP_POOL_AVG, k0, s0, p0) : NULL;
    return share != NULL ? ggml_div(ctx, means, ggml_clamp(ctx, share, 0.5f / (float) k0, 1)) : NULL;
}

struct ggml_tensor * ggml_today_pool_1d(struct ggml_context * ctx, struct ggml_tensor * a, enum ggml_op_pool op, int k0,
    int s0, int p0) {
    const struct gb_call c = GB_CALL_1("ggml_pool_1d", a);
    if (!gb_rule_given(&c) || !gb_op_has_context(ctx, c.func)) {
        return NULL;
    }
    struct ggml_tensor * m = merged(ctx, a, 2);
    struct ggml_tensor * pooled = m != NULL ? ggml_pool_1d(ctx, m, op, k0, s0, p0) : NULL;
    struct ggml_tensor * r = pooled;
    if (pooled != NULL && op == GGML_OP_POOL_AVG && p0 > 0 && ggml_nelements(pooled) > 0) {
        r = of_inside(ctx, pooled, m, k0, s0, p0);
    }
    if (r != NULL && m != a) {
        r = ggml_reshape_4d(ctx, r, r->ne[0], a->ne[1], a->ne[2], a->ne[3]);
    }
    return gb_op_keep_if(ctx, m != a ? m : pooled, r);
}

struct ggml_tensor * ggml_today_pool_2d(struct ggml_context * ctx, struct ggml_tensor * a, enum ggml_op_pool op, int k0,
    int k1, int s0, int s1, float p0, float p1) {
    const struct gb_call c = GB_CALL_1("ggml_pool_2d", a);
    if (!gb_rule_given(&c) || !gb_op_has_context(ctx, c.func)) {
        return NULL;
    }
    struct ggml_tensor * m = merged(ctx, a, 3);
    struct ggml_tensor * r = m != NULL ? ggml_pool_2d(ctx, m, op, k0, k1, s0, s1, p0, p1) : NULL;
    if (m == a || m == NULL) {
        return r;
    }
    r = r != NULL ? ggml_reshape_4d(ctx, r, r->ne[0], r->ne[1], a->ne[2], a->ne[3]) : NULL;
    return gb_op_keep_if(ctx, m, r);
}

// -------------------------------------------------------------------------------------------------------- convolutions

// F16 cannot hold every BF16 kernel.
static enum ggml_type columns(const struct ggml_tensor * kernel) {
    return kernel != NULL && kernel->type == GGML_TYPE_BF16 ? GGML_TYPE_F32 : GGML_TYPE_F16;
}

// The padding that keeps the length of dimension d for odd kernels.
static int half(const struct ggml_tensor * kernel, int d) {
    return kernel != NULL && kernel->ne[d] < INT32_MAX ? (int) (kernel->ne[d] / 2) : 0;
}

struct ggml_tensor * ggml_today_conv_1d(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int p0, int d0) {
    return ggml_conv_1d_as(ctx, a, b, s0, p0, d0, columns(a));
}

struct ggml_tensor * ggml_today_conv_1d_ph(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s, int d) {
    return ggml_conv_1d_as(ctx, a, b, s, half(a, 0), d, columns(a));
}

struct ggml_tensor * ggml_today_conv_2d(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int s1, int p0, int p1, int d0, int d1) {
    return ggml_conv_2d_as(ctx, a, b, s0, s1, p0, p1, d0, d1, columns(a));
}

struct ggml_tensor * ggml_today_conv_2d_sk_p0(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b) {
    const int s0 = a != NULL && a->ne[0] < INT32_MAX ? (int) a->ne[0] : 1;
    const int s1 = a != NULL && a->ne[1] < INT32_MAX ? (int) a->ne[1] : 1;
    return ggml_conv_2d_as(ctx, a, b, s0, s1, 0, 0, 1, 1, columns(a));
}

struct ggml_tensor * ggml_today_conv_2d_s1_ph(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b) {
    return ggml_conv_2d_as(ctx, a, b, 1, 1, half(a, 0), half(a, 1), 1, 1, columns(a));
}

struct ggml_tensor * ggml_today_conv_2d_dw(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int s1, int p0, int p1, int d0, int d1) {
    return ggml_conv_depthwise_2d_as(ctx, a, b, s0, s1, p0, p1, d0, d1, columns(a));
}

// The kernel as CONV_2D and CONV_3D take it.
static struct ggml_tensor * direct(struct ggml_context * ctx, struct ggml_tensor * kernel) {
    return kernel->type == GGML_TYPE_BF16 ? ggml_cast(ctx, kernel, GGML_TYPE_F32) : kernel;
}

struct ggml_tensor * ggml_today_conv_1d_dw(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int p0, int d0) {
    const struct gb_call c = GB_CALL_2("ggml_conv_1d_dw", a, b);
    if (!gb_rule_given(&c) || !gb_rule_equal(&c, 0, 2, 1, 1) || !gb_rule_size_in_range(&c, 0, 2, 1, INT32_MAX) ||
        !gb_op_has_context(ctx, c.func)) {
        return NULL;
    }
    struct ggml_tensor * kernel = direct(ctx, a);
    struct ggml_tensor * r = kernel != NULL ? ggml_conv_1d_grouped(ctx, kernel, b, s0, p0, d0, (int) a->ne[2]) : NULL;
    return gb_op_keep_if(ctx, kernel != a ? kernel : NULL, r);
}

struct ggml_tensor * ggml_today_conv_1d_dw_ph(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int d0) {
    return ggml_today_conv_1d_dw(ctx, a, b, s0, half(a, 0), d0);
}

struct ggml_tensor * ggml_today_conv_3d(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int64_t IC, int s0, int s1, int s2, int p0, int p1, int p2, int d0, int d1, int d2) {
    const struct gb_call c = GB_CALL_2("ggml_conv_3d", a, b);
    if (!gb_rule_given(&c) || !gb_rule_in_range(&c, "IC", IC, 1, INT32_MAX) ||
        !gb_rule_size_in_range(&c, 0, 3, 0, INT32_MAX) || !gb_rule_size_in_range(&c, 1, 3, 0, INT32_MAX) ||
        !gb_op_has_context(ctx, c.func)) {
        return NULL;
    }
    struct ggml_tensor * kernel = direct(ctx, a);
    struct ggml_tensor * r = kernel != NULL ? ggml_conv_3d_direct(ctx, kernel, b, s0, s1, s2, p0, p1, p2, d0, d1, d2,
                                                  (int) IC, (int) (b->ne[3] / IC), (int) (a->ne[3] / IC))
                                            : NULL;
    return gb_op_keep_if(ctx, kernel != a ? kernel : NULL, r);
}

// --------------------------------------------------------------------------------------------------------------- other

struct ggml_tensor * ggml_today_cross_entropy_loss(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b) {
    return ggml_cross_entropy_loss_eps(ctx, a, b, 0);
}

struct ggml_tensor * ggml_today_cross_entropy_loss_back(struct ggml_context * ctx, struct ggml_tensor * grad,
    struct ggml_tensor * a, struct ggml_tensor * b) {
    return ggml_cross_entropy_loss_eps_back(ctx, a, b, grad, 0);
}

struct ggml_tensor * ggml_today_custom_4d(struct ggml_context * ctx, enum ggml_type type, int64_t ne0, int64_t ne1,
    int64_t ne2, int64_t ne3, struct ggml_tensor ** args, int n_args, ggml_custom_op_t fun, int n_tasks,
    void * userdata) {
    const int64_t ne[4] = { ne0, ne1, ne2, ne3 };
    return ggml_custom(ctx, type, ne, 4, args, n_args, fun, n_tasks, userdata);
}

enum ggml_status ggml_today_mul_mat_set_hint(struct ggml_tensor * a, enum ggml_op_hint hint) {
    GB_CHECK_ARG(a);
    GB_FAIL_IF(a->op != GGML_OP_MUL_MAT, GGML_STATUS_INVALID_ARGUMENT, "ggml_mul_mat_set_hint: '%s' is not a MUL_MAT",
        ggml_get_name(a));
    GB_FAIL_IF(hint != GGML_HINT_NONE && hint != GGML_HINT_SRC0_IS_HADAMARD, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_mul_mat_set_hint: there is no hint %d", (int) hint);
    return GGML_STATUS_SUCCESS;
}

int ggml_today_graph_n_nodes(struct ggml_cgraph * cgraph) { return cgraph != NULL ? cgraph->n_nodes : 0; }

struct ggml_tensor * ggml_today_graph_node(struct ggml_cgraph * cgraph, int i) {
    const int n = ggml_today_graph_n_nodes(cgraph), at = i < 0 ? n + i : i;
    GB_FAIL_IF_RETURNING(at < 0 || at >= n, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_graph_node: there is no node %d, the graph has %d", i, n);
    return cgraph->nodes[at];
}
