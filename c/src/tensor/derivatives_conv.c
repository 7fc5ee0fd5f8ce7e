// derivatives_conv.c - the derivatives of convolutions and of the windows that they read (derivatives_rules.h).
#include "tensor/conv_params.h"
#include "tensor/derivatives_rules.h"

// The kernel only gives its shape.
RULE(im2col) {
    const int32_t * p = y->op_params;
    return ADD(y->src[1],
        ggml_im2col_back(s->ctx, y->src[0], g, y->src[1]->ne, p[0], p[1], p[2], p[3], p[4], p[5], p[6] != 0));
}

RULE(im2col_back) {
    const int32_t * p = y->op_params;
    return ADD(y->src[1],
        ggml_im2col_as(s->ctx, y->src[0], g, p[0], p[1], p[2], p[3], p[4], p[5], p[6] != 0, GGML_TYPE_F32));
}

// The gradients of a kernel and of an image by the windows of the image. Both are products with these windows.
struct windows {
    struct ggml_tensor *kernel, *image;
    const int32_t * p; // of the convolution
};

static struct ggml_tensor * windows_of(struct ggml_context * ctx, const struct windows * w) {
    const int32_t * p = w->p;
    return ggml_im2col_as(ctx, w->kernel, w->image, p[0], p[1], p[2], p[3], p[4], p[5], true, GGML_TYPE_F32);
}

static struct ggml_tensor * windows_back(struct ggml_context * ctx, const struct windows * w, struct ggml_tensor * g) {
    const int32_t * p = w->p;
    return ggml_im2col_back(ctx, w->kernel, g, w->image->ne, p[0], p[1], p[2], p[3], p[4], p[5], true);
}

// Each channel is an image with a kernel of its own.
static bool derive_depthwise(struct gb_sweep * s, struct ggml_tensor * y, struct ggml_tensor * g) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor *a = y->src[0], *b = y->src[1];
    const int64_t k = a->ne[0] * a->ne[1], places = y->ne[0] * y->ne[1], channels = b->ne[2], n = b->ne[3];
    struct ggml_tensor * whole = gb_grad_contiguous(ctx, b);
    const struct windows w = { ggml_reshape_4d(ctx, a, a->ne[0], a->ne[1], 1, channels),
        ggml_reshape_4d(ctx, whole, b->ne[0], b->ne[1], 1, channels * n), y->op_params };
    if (w.kernel == NULL || w.image == NULL) {
        return false;
    }
    if (gb_grad_wanted(s, a)) {
        struct ggml_tensor * rows = ggml_reshape_4d(ctx, windows_of(ctx, &w), k, places, channels, n);
        struct ggml_tensor * each = ggml_out_prod(ctx, rows, ggml_reshape_4d(ctx, g, 1, places, channels, n));
        struct ggml_tensor shape = { .type = GGML_TYPE_F32, .ne = { k, 1, channels, 1 } }; // only its shape is read
        each = each != NULL ? ggml_repeat_back(ctx, each, &shape) : NULL;
        if (each == NULL || !gb_grad_add(s, a, ggml_reshape(ctx, each, a))) {
            return false;
        }
    }
    if (!gb_grad_wanted(s, b)) {
        return true;
    }
    struct ggml_tensor * rows =
        ggml_out_prod(ctx, ggml_reshape_4d(ctx, a, k, 1, channels, 1), ggml_reshape_4d(ctx, g, places, 1, channels, n));
    rows = ggml_reshape_4d(ctx, rows, k, y->ne[0], y->ne[1], channels * n);
    struct ggml_tensor * back = windows_back(ctx, &w, rows);
    return back != NULL && gb_grad_add(s, b, ggml_reshape(ctx, back, b));
}

RULE(conv_2d_dw) { return derive_depthwise(s, y, g); }

// y = kernels times windows: the gradient of the kernels is g times windows, that of the windows is kernels times g.
// Convolutions of several groups have a derivative here if each channel is a group.
RULE(conv_2d) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor *a = y->src[0], *b = y->src[1];
    const int32_t groups = y->op_params[6];
    if (groups > 1) {
        return a->ne[2] == 1 && a->ne[3] == b->ne[2] ? derive_depthwise(s, y, g) : gb_grad_underivable(s, y);
    }
    const struct windows w = { a, b, y->op_params };
    const int64_t k = a->ne[0] * a->ne[1] * a->ne[2], kernels = a->ne[3];
    const int64_t places = y->ne[0] * y->ne[1] * y->ne[3];
    struct ggml_tensor * rows = ggml_cont(ctx, ggml_permute(ctx, g, 1, 2, 0, 3)); // [kernels, OW, OH, N]
    rows = rows != NULL ? ggml_reshape_2d(ctx, rows, kernels, places) : NULL;
    if (rows == NULL) {
        return false;
    }
    if (gb_grad_wanted(s, a)) {
        struct ggml_tensor * of_a = ggml_out_prod(ctx, ggml_reshape_2d(ctx, windows_of(ctx, &w), k, places), rows);
        if (of_a == NULL || !gb_grad_add(s, a, ggml_reshape(ctx, of_a, a))) {
            return false;
        }
    }
    if (!gb_grad_wanted(s, b)) {
        return true;
    }
    struct ggml_tensor * back = ggml_out_prod(ctx, ggml_reshape_2d(ctx, a, k, kernels), ggml_transpose(ctx, rows));
    return gb_grad_add(s, b, windows_back(ctx, &w, ggml_reshape_4d(ctx, back, k, y->ne[0], y->ne[1], y->ne[3])));
}

// ---------------------------------------------------------------------------------------------------------- transposed

// a [KW, KH, OC, IC] spreads each element of b [W, H, IC, N] over a window of the result. So the gradient of b is the
// convolution of g, and the gradient of a is a product with the windows of g. CONV_TRANSPOSE_1D gives its sources and g
// an axis of size 1, so the gradients get the shapes of the sources back.
static bool derive_transposed(struct gb_sweep * s, const struct ggml_tensor * y, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * g, const int32_t p[6]) {
    struct ggml_context * ctx = s->ctx;
    if (a == NULL || b == NULL || g == NULL) {
        return false;
    }
    if (gb_grad_wanted(s, y->src[1])) {
        struct ggml_tensor * of_b = ggml_conv_2d_direct(ctx, a, g, p[0], p[1], 0, 0, 1, 1);
        if (of_b == NULL || !gb_grad_add(s, y->src[1], ggml_reshape(ctx, of_b, y->src[1]))) {
            return false;
        }
    }
    if (!gb_grad_wanted(s, y->src[0])) {
        return true;
    }
    const struct windows w = { a, g, p };
    const int64_t k = a->ne[0] * a->ne[1] * a->ne[2], places = b->ne[0] * b->ne[1] * b->ne[3];
    struct ggml_tensor * rows = ggml_cont(ctx, ggml_permute(ctx, b, 1, 2, 0, 3)); // [IC, W, H, N]
    rows = rows != NULL ? ggml_reshape_2d(ctx, rows, b->ne[2], places) : NULL;
    struct ggml_tensor * of_a = ggml_out_prod(ctx, ggml_reshape_2d(ctx, windows_of(ctx, &w), k, places), rows);
    return of_a != NULL && gb_grad_add(s, y->src[0], ggml_reshape(ctx, of_a, y->src[0]));
}

RULE(conv_transpose_2d) {
    const int32_t p[] = { y->op_params[0], y->op_params[0], 0, 0, 1, 1 };
    return derive_transposed(s, y, gb_grad_contiguous(s->ctx, y->src[0]), y->src[1], g, p);
}

RULE(conv_transpose_1d) { // images of one line
    const struct ggml_tensor *a = y->src[0], *b = y->src[1];
    const int32_t p[] = { y->op_params[0], 1, 0, 0, 1, 1 };
    struct ggml_tensor * kernels = gb_grad_contiguous(s->ctx, y->src[0]);
    struct ggml_tensor * lines = gb_grad_contiguous(s->ctx, y->src[1]);
    return kernels != NULL && lines != NULL &&
           derive_transposed(s, y, ggml_reshape_4d(s->ctx, kernels, a->ne[0], 1, a->ne[1], a->ne[2]),
               ggml_reshape_4d(s->ctx, lines, b->ne[0], 1, b->ne[1], 1),
               ggml_reshape_4d(s->ctx, g, g->ne[0], 1, g->ne[1], 1), p);
}

// ---------------------------------------------------------------------------------------------------- three dimensions

// t with stride - 1 zeros behind each element along an axis, cut to `size` elements.
static struct ggml_tensor * spread(struct ggml_context * ctx, struct ggml_tensor * t, int axis, int stride,
    int64_t size) {
    if (t == NULL || (stride == 1 && t->ne[axis] == size)) {
        return t;
    }
    int64_t ne[4] = { t->ne[0], t->ne[1], t->ne[2], t->ne[3] }, before = 1, after = 1;
    for (int i = 0; i < 4; i++) {
        before *= i < axis ? ne[i] : 1;
        after *= i > axis ? ne[i] : 1;
    }
    t = ggml_pad_ext(ctx, ggml_reshape_4d(ctx, t, before, 1, ne[axis], after), 0, 0, 0, stride - 1, 0, 0, 0, 0);
    t = t != NULL ? ggml_reshape_3d(ctx, t, before, stride * ne[axis], after) : NULL;
    t = t != NULL ? ggml_cont(ctx, ggml_view_3d(ctx, t, before, size, after, t->nb[1], t->nb[2], 0)) : NULL;
    ne[axis] = size;
    return t != NULL ? ggml_reshape_4d(ctx, t, ne[0], ne[1], ne[2], ne[3]) : NULL;
}

// Kernels a [KW, KH, KD, IC OC], each from its last element to its first, with input and output channels exchanged.
static struct ggml_tensor * turned(struct ggml_context * ctx, struct ggml_tensor * a, int64_t in, int64_t out) {
    const int64_t k = a->ne[0] * a->ne[1] * a->ne[2];
    struct ggml_tensor * places = ggml_scale_bias(ctx, ggml_arange(ctx, 0, (float) k, 1), -1, (float) (k - 1));
    struct ggml_tensor * rows = ggml_cont(ctx, ggml_transpose(ctx, ggml_reshape_2d(ctx, a, k, in * out)));
    rows = ggml_get_rows(ctx, rows, ggml_cast(ctx, places, GGML_TYPE_I32)); // [IC OC, K]
    rows = rows != NULL ? ggml_permute(ctx, ggml_reshape_3d(ctx, rows, in, out, k), 2, 1, 0, 3) : NULL;
    rows = ggml_cont(ctx, rows); // [K, OC, IC]
    return rows != NULL ? ggml_reshape_4d(ctx, rows, a->ne[0], a->ne[1], a->ne[2], out * in) : NULL;
}

// The gradient of the kernels is a product with the windows. That of the images is the convolution of g, spread by the
// strides, with the turned kernels. Convolutions of several groups, and paddings beyond the reach of a kernel, have no
// derivative here.
RULE(conv_3d) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor *a = y->src[0], *b = y->src[1];
    const int32_t * p = y->op_params; // strides, paddings, dilations
    const struct gb_conv_channels c = gb_conv_channels_of(y);
    const int64_t k = a->ne[0] * a->ne[1] * a->ne[2] * c.in, places = y->ne[0] * y->ne[1] * y->ne[2];
    int pad[3];
    struct ggml_tensor * wide = g;
    for (int i = 0; i < 3; i++) {
        const int64_t reach = p[6 + i] * (a->ne[i] - 1);
        if (c.groups != 1 || reach < p[3 + i] || reach > INT32_MAX) {
            return gb_grad_underivable(s, y);
        }
        pad[i] = (int) reach - p[3 + i];
        wide = gb_grad_wanted(s, b) ? spread(ctx, wide, i, p[i], b->ne[i] + 2 * p[3 + i] - reach) : wide;
    }
    if (gb_grad_wanted(s, a)) {
        struct ggml_tensor * windows =
            ggml_im2col_3d(ctx, a, b, c.in, p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], GGML_TYPE_F32);
        windows = windows != NULL ? ggml_reshape_2d(ctx, windows, k, places * c.batches) : NULL;
        struct ggml_tensor * rows = ggml_permute(ctx, ggml_reshape_3d(ctx, g, places, c.out, c.batches), 1, 0, 2, 3);
        rows = ggml_cont(ctx, rows);
        rows = rows != NULL ? ggml_reshape_2d(ctx, rows, c.out, places * c.batches) : NULL;
        struct ggml_tensor * of_a = ggml_out_prod(ctx, windows, rows);
        if (of_a == NULL || !gb_grad_add(s, a, ggml_reshape(ctx, of_a, a))) {
            return false;
        }
    }
    return !gb_grad_wanted(s, b) ||
           gb_grad_add(s, b,
               ggml_conv_3d_direct(ctx, turned(ctx, a, c.in, c.out), wide, 1, 1, 1, pad[0], pad[1], pad[2], p[6], p[7],
                   p[8], (int) c.out, (int) c.batches, (int) c.in));
}

// ---------------------------------------------------------------------------------------------------------------- taps

// y[d, t] = the sum over taps j of x[t + j, d] c[j, d]. Each tap adds its part to both gradients.
RULE(ssm_conv) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor *x = y->src[0], *c = y->src[1];
    struct ggml_tensor * lines = ggml_cont(ctx, ggml_permute(ctx, g, 1, 0, 2, 3)); // [T, D, S]
    const size_t nb1 = (size_t) x->ne[0] * sizeof(float), nb2 = nb1 * (size_t) x->ne[1];
    const size_t nb_x[4] = { sizeof(float), nb1, nb2, nb2 * (size_t) x->ne[2] };
    const size_t row = (size_t) c->ne[0] * sizeof(float), all = row * (size_t) c->ne[1];
    const size_t nb_c[4] = { sizeof(float), row, all, all };
    struct ggml_tensor shape = { .type = GGML_TYPE_F32, .ne = { 1, c->ne[1], 1, 1 } }; // only its shape is read
    bool ok = lines != NULL;
    for (int64_t j = 0; j < c->ne[0] && ok; j++) {
        const size_t at = (size_t) j * sizeof(float);
        if (gb_grad_wanted(s, x)) {
            struct ggml_tensor * tap = ggml_view_2d(ctx, c, 1, c->ne[1], c->nb[1], (size_t) j * c->nb[0]);
            ok = gb_grad_add_region(s, x, ggml_mul(ctx, lines, tap), nb_x, at);
        }
        if (ok && gb_grad_wanted(s, c)) {
            struct ggml_tensor * seen =
                ggml_view_3d(ctx, x, y->ne[1], x->ne[1], x->ne[2], x->nb[1], x->nb[2], (size_t) j * x->nb[0]);
            struct ggml_tensor * sums = gb_grad_row_dot(ctx, lines, seen); // [1, D, S]
            ok = gb_grad_add_region(s, c, sums ? ggml_repeat_back(ctx, sums, &shape) : NULL, nb_c, at);
        }
    }
    return ok;
}
