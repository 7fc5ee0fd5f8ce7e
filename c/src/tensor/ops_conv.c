// ops_conv.c - convolutions: IM2COL followed by a matrix product, and the direct and transposed
// forms, which are operators of their own.
//
// The first form copies the elements under every kernel position of b into a row, and multiplies all
// rows with all kernels in one product. The product has the order [positions, images, channels].
// With more than one image the last step changes it to the documented order. Comments at the ends
// of lines give the shape of the node.
#include "tensor/ops.h"

// The caller has checked the operands.
static struct ggml_tensor * im2col(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, const struct gb_conv * v, enum ggml_type type) {
    struct ggml_tensor * node = gb_op_new(ctx, func, GGML_OP_IM2COL, type, gb_shape_im2col(a, b, v));
    const int32_t params[] = { (int32_t) v->s0, (int32_t) v->s1, (int32_t) v->p0, (int32_t) v->p1, (int32_t) v->d0,
        (int32_t) v->d1, (int32_t) v->is_2d };
    gb_op_set_params(node, params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);
}

// The image has no memory. Only its sizes are read.
struct ggml_tensor * ggml_im2col_back(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    const int64_t * ne, int s0, int s1, int p0, int p1, int d0, int d1, bool is_2D) {
    const struct gb_conv conv = { s0, s1, p0, p1, d0, d1, is_2D };
    struct ggml_tensor image = { .type = GGML_TYPE_F32 };
    GB_CHECK_ARG_RETURNING(ne, NULL);
    memcpy(image.ne, ne, sizeof(image.ne));
    if (!gb_check_im2col_back(__func__, a, b, &image, &conv)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_IM2COL_BACK, GGML_TYPE_F32, gb_shape_like(&image));
    const int32_t params[] = { s0, s1, p0, p1, d0, d1, is_2D };
    gb_op_set_params(node, params, sizeof(params));
    gb_op_set_ndim(node, is_2D ? 4 : 3);
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);
}

static bool can_be_rows(const char * func, enum ggml_type type) {
    GB_FAIL_IF_RETURNING(type != GGML_TYPE_F32 && type != GGML_TYPE_F16, false, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'type' must be f32 or f16", func);
    return true;
}

struct ggml_tensor * ggml_im2col_as(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b, int s0,
    int s1, int p0, int p1, int d0, int d1, bool is_2D, enum ggml_type type) {
    const struct gb_conv conv = { s0, s1, p0, p1, d0, d1, is_2D };
    return can_be_rows(__func__, type) && gb_check_im2col(__func__, a, b, &conv)
               ? im2col(ctx, __func__, a, b, &conv, type)
               : NULL;
}

struct ggml_tensor * ggml_im2col(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b, int s0,
    int s1, int p0, int p1, int d0, int d1, bool is_2D) {
    const struct gb_conv conv = { s0, s1, p0, p1, d0, d1, is_2D };
    return gb_check_im2col(__func__, a, b, &conv) ? im2col(ctx, __func__, a, b, &conv, GGML_TYPE_F16) : NULL;
}

// The kernel as the right operand for rows of this type: cast to the type, unless the kernel is
// f32.
static struct ggml_tensor * suited(struct ggml_context * ctx, struct ggml_tensor * kernel, enum ggml_type rows) {
    return kernel == NULL || kernel->type == GGML_TYPE_F32 || kernel->type == rows ? kernel
                                                                                   : ggml_cast(ctx, kernel, rows);
}

// type: the type of the rows. On failure, drops all nodes made so far from the context, here and
// below.
static struct ggml_tensor * conv_1d(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, const struct gb_conv * v, enum ggml_type type) {
    if (!can_be_rows(func, type) || !gb_check_conv(func, a, b, v)) {
        return NULL;
    }
    struct ggml_tensor * rows = im2col(ctx, func, a, b, v, type); // [K IC, OW, N]
    if (rows == NULL) {
        return NULL;
    }
    const int64_t k = rows->ne[0], ow = rows->ne[1], n = rows->ne[2], oc = a->ne[2];
    struct ggml_tensor * r = ggml_mul_mat(ctx, ggml_reshape_2d(ctx, rows, k, ow * n),
        suited(ctx, ggml_reshape_2d(ctx, a, k, oc), type)); // [OW N, OC]
    r = n == 1 ? ggml_reshape_3d(ctx, r, ow, oc, 1)
               : ggml_cont(ctx, ggml_permute(ctx, ggml_reshape_3d(ctx, r, ow, n, oc), 0, 2, 1, 3));
    return gb_op_keep_if(ctx, rows, r);
}

struct ggml_tensor * ggml_conv_1d(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b, int s0,
    int p0, int d0) {
    return conv_1d(ctx, __func__, a, b, &(const struct gb_conv){ s0, 0, p0, 0, d0, 0, false }, GGML_TYPE_F16);
}

struct ggml_tensor * ggml_conv_1d_as(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b, int s0,
    int p0, int d0, enum ggml_type type) {
    return conv_1d(ctx, __func__, a, b, &(const struct gb_conv){ s0, 0, p0, 0, d0, 0, false }, type);
}

// Pads by half a kernel, so that stride 1 keeps the length for odd kernels.
struct ggml_tensor * ggml_conv_1d_ph(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b, int s,
    int d) {
    const int64_t half = a != NULL ? a->ne[0] / 2 : 0;
    return conv_1d(ctx, __func__, a, b, &(const struct gb_conv){ s, 0, half, 0, d, 0, false }, GGML_TYPE_F16);
}

static struct ggml_tensor * conv_2d(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, const struct gb_conv * v, enum ggml_type type) {
    if (!can_be_rows(func, type) || !gb_check_conv(func, a, b, v)) {
        return NULL;
    }
    struct ggml_tensor * rows = im2col(ctx, func, a, b, v, type); // [KW KH IC, OW, OH, N]
    if (rows == NULL) {
        return NULL;
    }
    const int64_t k = rows->ne[0], ow = rows->ne[1], oh = rows->ne[2], n = rows->ne[3], oc = a->ne[3];
    struct ggml_tensor * r = ggml_mul_mat(ctx, ggml_reshape_2d(ctx, rows, k, ow * oh * n),
        suited(ctx, ggml_reshape_2d(ctx, a, k, oc), type)); // [OW OH N, OC]
    r = n == 1 ? ggml_reshape_4d(ctx, r, ow, oh, oc, 1)
               : ggml_cont(ctx, ggml_permute(ctx, ggml_reshape_4d(ctx, r, ow, oh, n, oc), 0, 1, 3, 2));
    return gb_op_keep_if(ctx, rows, r);
}

struct ggml_tensor * ggml_conv_2d(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b, int s0,
    int s1, int p0, int p1, int d0, int d1) {
    return conv_2d(ctx, __func__, a, b, &(const struct gb_conv){ s0, s1, p0, p1, d0, d1, true }, GGML_TYPE_F16);
}

struct ggml_tensor * ggml_conv_2d_as(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b, int s0,
    int s1, int p0, int p1, int d0, int d1, enum ggml_type type) {
    return conv_2d(ctx, __func__, a, b, &(const struct gb_conv){ s0, s1, p0, p1, d0, d1, true }, type);
}

// The stride is the kernel's size, so positions do not overlap.
struct ggml_tensor * ggml_conv_2d_sk_p0(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    const int64_t w = a != NULL ? a->ne[0] : 1;
    const int64_t h = a != NULL ? a->ne[1] : 1;
    return conv_2d(ctx, __func__, a, b, &(const struct gb_conv){ w, h, 0, 0, 1, 1, true }, GGML_TYPE_F16);
}

// Pads by half a kernel along both axes, with stride 1.
struct ggml_tensor * ggml_conv_2d_s1_ph(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    const int64_t w = a != NULL ? a->ne[0] / 2 : 0;
    const int64_t h = a != NULL ? a->ne[1] / 2 : 0;
    return conv_2d(ctx, __func__, a, b, &(const struct gb_conv){ 1, 1, w, h, 1, 1, true }, GGML_TYPE_F16);
}

// Every channel has its own kernel. So channels become images of one channel, and the product
// repeats the kernels over the images.
static struct ggml_tensor * conv_depthwise_2d(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, const struct gb_conv * v, enum ggml_type type) {
    if (!can_be_rows(func, type) || !gb_check_conv_depthwise(func, a, b, v) || !gb_op_has_context(ctx, func)) {
        return NULL;
    }
    const int64_t n_kernels = a->ne[2] * a->ne[3], kernel = a->ne[0] * a->ne[1];
    struct ggml_tensor * kernels = ggml_reshape_4d(ctx, a, a->ne[0], a->ne[1], 1, n_kernels);
    if (kernels == NULL) {
        return NULL;
    }
    struct ggml_tensor * images = ggml_reshape_4d(ctx, b, b->ne[0], b->ne[1], 1, b->ne[2] * b->ne[3]);
    struct ggml_tensor * rows =
        images != NULL ? im2col(ctx, func, kernels, images, v, type) : NULL; // [KW KH, OW, OH, C N]
    if (rows == NULL) {
        return gb_op_keep_if(ctx, kernels, NULL);
    }
    const int64_t ow = rows->ne[1], oh = rows->ne[2];
    if (a->type == GGML_TYPE_F32 && type != GGML_TYPE_F32) {
        rows = ggml_cast(ctx, rows, GGML_TYPE_F32); // an f32 kernel is the left operand, which needs f32 rows
    }
    struct ggml_tensor * left = suited(ctx, ggml_reshape_4d(ctx, kernels, kernel, 1, n_kernels, 1), type);
    struct ggml_tensor * r =
        ggml_mul_mat(ctx, left, ggml_reshape_4d(ctx, rows, kernel, ow * oh, b->ne[2], b->ne[3])); // [1, OW OH, C, N]
    return gb_op_keep_if(ctx, kernels, ggml_reshape_4d(ctx, r, ow, oh, b->ne[2], b->ne[3]));
}

struct ggml_tensor * ggml_conv_depthwise_2d(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int s1, int p0, int p1, int d0, int d1) {
    const struct gb_conv conv = { s0, s1, p0, p1, d0, d1, true };
    return conv_depthwise_2d(ctx, __func__, a, b, &conv, GGML_TYPE_F16);
}

struct ggml_tensor * ggml_conv_depthwise_2d_as(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int s1, int p0, int p1, int d0, int d1, enum ggml_type type) {
    const struct gb_conv conv = { s0, s1, p0, p1, d0, d1, true };
    return conv_depthwise_2d(ctx, __func__, a, b, &conv, type);
}

// ------------------------------------------------------------------------------------------------- without columns

static struct ggml_tensor * conv_2d_node(struct ggml_context * ctx, const char * func, enum ggml_op op,
    struct ggml_tensor * a, struct ggml_tensor * b, const struct gb_conv * v, int64_t groups) {
    struct ggml_tensor * node = gb_op_new(ctx, func, op, GGML_TYPE_F32, gb_shape_conv_2d(a, b, v));
    const int32_t params[] = { (int32_t) v->s0, (int32_t) v->s1, (int32_t) v->p0, (int32_t) v->p1, (int32_t) v->d0,
        (int32_t) v->d1, op == GGML_OP_CONV_2D ? (int32_t) groups : 0 };
    gb_op_set_params(node, params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);
}

struct ggml_tensor * ggml_conv_2d_grouped(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int s1, int p0, int p1, int d0, int d1, int groups) {
    const struct gb_conv conv = { s0, s1, p0, p1, d0, d1, true };
    return gb_check_conv_2d(__func__, a, b, &conv, groups)
               ? conv_2d_node(ctx, __func__, GGML_OP_CONV_2D, a, b, &conv, groups)
               : NULL;
}

struct ggml_tensor * ggml_conv_2d_direct(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int s1, int p0, int p1, int d0, int d1) {
    const struct gb_conv conv = { s0, s1, p0, p1, d0, d1, true };
    return gb_check_conv_2d(__func__, a, b, &conv, 1) ? conv_2d_node(ctx, __func__, GGML_OP_CONV_2D, a, b, &conv, 1)
                                                      : NULL;
}

struct ggml_tensor * ggml_conv_2d_dw_direct(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int stride0, int stride1, int pad0, int pad1, int dilation0, int dilation1) {
    const struct gb_conv conv = { stride0, stride1, pad0, pad1, dilation0, dilation1, true };
    return gb_check_conv_2d_dw(__func__, a, b, &conv)
               ? conv_2d_node(ctx, __func__, GGML_OP_CONV_2D_DW, a, b, &conv, b->ne[2])
               : NULL;
}

// Data and kernels are treated as images of height 1.
struct ggml_tensor * ggml_conv_1d_grouped(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int p0, int d0, int groups) {
    const struct gb_conv conv = { s0, 1, p0, 0, d0, 1, true };
    if (!gb_check_conv_1d_grouped(__func__, a, b, groups) || !gb_op_has_context(ctx, __func__)) {
        return NULL;
    }
    const int64_t ne[4] = { b->ne[0], 1, b->ne[1], b->ne[2] };
    const size_t nb[4] = { b->nb[0], b->nb[1], b->nb[1], b->nb[2] };
    struct ggml_tensor * kernels = ggml_reshape_4d(ctx, a, a->ne[0], 1, a->ne[1], a->ne[2]);
    struct ggml_tensor * images =
        kernels != NULL ? gb_op_view(ctx, __func__, GGML_OP_VIEW, b, ne, nb, 0, "view") : NULL;
    gb_op_set_ndim(images, 4);
    images = gb_op_sources(ctx, images, GB_GRAD_INHERIT, b, NULL, NULL);
    if (images == NULL || !gb_check_conv_2d(__func__, kernels, images, &conv, groups)) {
        return gb_op_keep_if(ctx, kernels, NULL);
    }
    struct ggml_tensor * r = conv_2d_node(ctx, __func__, GGML_OP_CONV_2D, kernels, images, &conv, groups);
    return gb_op_keep_if(ctx, kernels, r != NULL ? ggml_reshape_3d(ctx, r, r->ne[0], r->ne[2], r->ne[3]) : NULL);
}

static struct ggml_tensor * conv_3d(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, const struct gb_conv_3d * v) {
    if (!gb_check_conv_3d(func, a, b, v)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, func, GGML_OP_CONV_3D, GGML_TYPE_F32, gb_shape_conv_3d(a, b, v));
    const int32_t params[] = { v->s[0], v->s[1], v->s[2], v->p[0], v->p[1], v->p[2], v->d[0], v->d[1], v->d[2],
        v->channels, v->batches, v->channels_out, v->groups };
    gb_op_set_params(node, params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);
}

struct ggml_tensor * ggml_conv_3d_direct(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int s1, int s2, int p0, int p1, int p2, int d0, int d1, int d2, int n_channels, int n_batch,
    int n_channels_out) {
    return conv_3d(ctx, __func__, a, b,
        &(const struct gb_conv_3d){
            { s0, s1, s2 }, { p0, p1, p2 }, { d0, d1, d2 }, n_channels, n_batch, n_channels_out, 1 });
}

struct ggml_tensor * ggml_conv_3d_grouped(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int s1, int s2, int p0, int p1, int p2, int d0, int d1, int d2, int n_channels, int n_batch,
    int n_channels_out, int groups) {
    return conv_3d(ctx, __func__, a, b,
        &(const struct gb_conv_3d){
            { s0, s1, s2 }, { p0, p1, p2 }, { d0, d1, d2 }, n_channels, n_batch, n_channels_out, groups });
}

// ------------------------------------------------------------------------------------------------------ transposed

// A separate operator: it spreads each element of b instead of gathering.
struct ggml_tensor * ggml_conv_transpose_1d(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int p0, int d0) {
    if (!gb_check_conv_transpose_1d(__func__, a, b, s0, p0, d0)) {
        return NULL;
    }
    struct ggml_tensor * node =
        gb_op_new(ctx, __func__, GGML_OP_CONV_TRANSPOSE_1D, GGML_TYPE_F32, gb_shape_conv_transpose_1d(a, b, s0));
    const int32_t params[] = { s0, p0, d0 };
    gb_op_set_params(node, params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);
}

struct ggml_tensor * ggml_conv_transpose_2d_p0(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int stride) {
    if (!gb_check_conv_transpose_2d(__func__, a, b, stride)) {
        return NULL;
    }
    struct ggml_tensor * node =
        gb_op_new(ctx, __func__, GGML_OP_CONV_TRANSPOSE_2D, GGML_TYPE_F32, gb_shape_conv_transpose_2d(a, b, stride));
    const int32_t params = stride;
    gb_op_set_params(node, &params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

bool gb_built_im2col(gb_ct t) {
    const int32_t * p = t->op_params;
    const struct gb_conv v = { p[0], p[1], p[2], p[3], p[4], p[5], p[6] != 0 };
    return gb_check_im2col(NULL, t->src[0], t->src[1], &v) && gb_is_shape(t, gb_shape_im2col(t->src[0], t->src[1], &v));
}

bool gb_built_im2col_back(gb_ct t) {
    const int32_t * p = t->op_params;
    const struct gb_conv v = { p[0], p[1], p[2], p[3], p[4], p[5], p[6] != 0 };
    return gb_check_im2col_back(NULL, t->src[0], t->src[1], t, &v);
}

static struct gb_conv conv_of(gb_ct t) {
    const int32_t * p = t->op_params;
    return (struct gb_conv){ p[0], p[1], p[2], p[3], p[4], p[5], true };
}

bool gb_built_conv_2d(gb_ct t) {
    const struct gb_conv v = conv_of(t);
    return gb_check_conv_2d(NULL, t->src[0], t->src[1], &v, t->op_params[6] == 0 ? 1 : t->op_params[6]) &&
           gb_is_shape(t, gb_shape_conv_2d(t->src[0], t->src[1], &v));
}

bool gb_built_conv_2d_dw(gb_ct t) {
    const struct gb_conv v = conv_of(t);
    return gb_check_conv_2d_dw(NULL, t->src[0], t->src[1], &v) &&
           gb_is_shape(t, gb_shape_conv_2d(t->src[0], t->src[1], &v));
}

bool gb_built_conv_3d(gb_ct t) {
    const int32_t * p = t->op_params;
    const struct gb_conv_3d v = { { p[0], p[1], p[2] }, { p[3], p[4], p[5] }, { p[6], p[7], p[8] }, p[9], p[10], p[11],
        p[12] == 0 ? 1 : p[12] };
    return gb_check_conv_3d(NULL, t->src[0], t->src[1], &v) &&
           gb_is_shape(t, gb_shape_conv_3d(t->src[0], t->src[1], &v));
}

bool gb_built_conv_transpose_1d(gb_ct t) {
    const int32_t * p = t->op_params;
    return gb_check_conv_transpose_1d(NULL, t->src[0], t->src[1], p[0], p[1], p[2]) &&
           gb_is_shape(t, gb_shape_conv_transpose_1d(t->src[0], t->src[1], p[0]));
}

bool gb_built_conv_transpose_2d(gb_ct t) {
    return gb_check_conv_transpose_2d(NULL, t->src[0], t->src[1], t->op_params[0]) &&
           gb_is_shape(t, gb_shape_conv_transpose_2d(t->src[0], t->src[1], t->op_params[0]));
}
