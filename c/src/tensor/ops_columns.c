// ops_columns.c - IM2COL_3D unrolls the windows of volumes. COL2IM_1D adds the rows of windows back
// into a signal. IM2COL of one and two axes is in ops_conv.c. Neither operator has a derivative.
#include "tensor/ops.h"
#include "tensor/rule.h"

// ----------------------------------------------------------------------------------------------------------- IM2COL_3D

// op_params: [0 .. 2] strides, [3 .. 5] paddings, [6 .. 8] dilations, width first, [9] channels
enum { WORDS = 10 };

// The number of positions of the kernel along axis d.
static int64_t positions(gb_ct a, gb_ct b, const int32_t w[WORDS], int d) {
    return gb_conv_out(b->ne[d], a->ne[d], w[d], w[3 + d], w[6 + d]);
}

static bool rule_axis(const struct gb_call * c, gb_ct a, gb_ct b, const int32_t w[WORDS], int d) {
    static const char * const names[9] = { "s0", "s1", "s2", "p0", "p1", "p2", "d0", "d1", "d2" };
    return gb_rule_at_least(c, names[d], w[d], 1) && gb_rule_at_least(c, names[3 + d], w[3 + d], 0) &&
           gb_rule_at_least(c, names[6 + d], w[6 + d], 1) &&
           (positions(a, b, w, d) > 0 ||
               GB_BROKEN(c, KERNEL_TOO_LARGE, .a = "b", .a_dim = d, .number = { a->ne[d], b->ne[d] }));
}

// a [KW, KH, KD, IC OC] only gives its shape. b is [W, H, D, IC N].
static bool check_im2col_3d(const char * func, gb_ct a, gb_ct b, const int32_t w[WORDS]) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    const int32_t channels = w[9];
    if (!gb_rule_given(&c) || !gb_rule_no_grad(&c) || !gb_rule_at_least(&c, "IC", channels, 1)) {
        return false;
    }
    for (int i = 0; i < 2; i++) {
        const int64_t n = c.list[i].t->ne[3];
        if (n % channels != 0) {
            return GB_BROKEN(&c, NO_MULTIPLE_OF, .a = c.list[i].role, .a_dim = 3, .name = "IC",
                .number = { n, channels });
        }
    }
    return rule_axis(&c, a, b, w, 0) && rule_axis(&c, a, b, w, 1) && rule_axis(&c, a, b, w, 2);
}

static struct gb_shape shape_im2col_3d(gb_ct a, gb_ct b, const int32_t w[WORDS]) {
    const int64_t volume = gb_size_product(gb_size_product(a->ne[0], a->ne[1]), a->ne[2]);
    return gb_shape_of(gb_size_product(w[9], volume), positions(a, b, w, 0), positions(a, b, w, 1),
        gb_size_product(positions(a, b, w, 2), b->ne[3] / w[9]));
}

struct ggml_tensor * ggml_im2col_3d(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int64_t IC, int s0, int s1, int s2, int p0, int p1, int p2, int d0, int d1, int d2, enum ggml_type dst_type) {
    const int32_t channels = (int32_t) GB_MIN(GB_MAX(IC, (int64_t) 0), (int64_t) INT32_MAX);
    const int32_t params[WORDS] = { s0, s1, s2, p0, p1, p2, d0, d1, d2, channels };
    GB_FAIL_IF_RETURNING(dst_type != GGML_TYPE_F32 && dst_type != GGML_TYPE_F16, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'dst_type' must be f32 or f16", __func__);
    if (!check_im2col_3d(__func__, a, b, params)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_IM2COL_3D, dst_type, shape_im2col_3d(a, b, params));
    gb_op_set_params(node, params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, b, NULL);
}

// ----------------------------------------------------------------------------------------------------------- COL2IM_1D

// The number of positions of the signal, after cutting both ends.
static int64_t length_of(gb_ct a, int s0, int oc, int p0) {
    return (a->ne[1] > 0 ? gb_size_spread(a->ne[1], s0, a->ne[0] / oc) : 0) - 2 * (int64_t) p0;
}

// a [K OC, L]
static bool check_col2im_1d(const char * func, gb_ct a, int s0, int oc, int p0) {
    const struct gb_call c = GB_CALL_1(func, a);
    if (!gb_rule_given(&c) || !gb_rule_no_grad(&c) || !gb_rule_max_dims(&c, 0, 2) ||
        !gb_rule_at_least(&c, "s0", s0, 1) || !gb_rule_at_least(&c, "oc", oc, 1) ||
        !gb_rule_at_least(&c, "p0", p0, 0)) {
        return false;
    }
    if (a->ne[0] < 1 || a->ne[0] % oc != 0) {
        return GB_BROKEN(&c, NO_MULTIPLE_OF, .a = "a", .name = "oc", .number = { a->ne[0], oc });
    }
    return length_of(a, s0, oc, p0) > 0 ||
           GB_BROKEN(&c, ALL_CUT_OFF, .name = "p0", .number = { p0, length_of(a, s0, oc, 0) });
}

static struct gb_shape shape_col2im_1d(gb_ct a, int s0, int oc, int p0) {
    return gb_shape_of(length_of(a, s0, oc, p0), oc, 1, 1);
}

// op_params: stride, channels, number of elements cut at each end
struct ggml_tensor * ggml_col2im_1d(struct ggml_context * ctx, struct ggml_tensor * a, int s0, int oc, int p0) {
    if (!check_col2im_1d(__func__, a, s0, oc, p0)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_COL2IM_1D, a->type, shape_col2im_1d(a, s0, oc, p0));
    const int32_t params[] = { s0, oc, p0 };
    gb_op_set_params(node, params, sizeof(params));
    gb_op_set_ndim(node, 2);
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, NULL, NULL);
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

bool gb_built_im2col_3d(gb_ct t) {
    return check_im2col_3d(NULL, t->src[0], t->src[1], t->op_params) &&
           gb_is_shape(t, shape_im2col_3d(t->src[0], t->src[1], t->op_params));
}

bool gb_built_col2im_1d(gb_ct t) {
    const int32_t * p = t->op_params;
    return check_col2im_1d(NULL, t->src[0], p[0], p[1], p[2]) &&
           gb_is_shape(t, shape_col2im_1d(t->src[0], p[0], p[1], p[2]));
}
