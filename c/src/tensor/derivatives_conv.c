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

// Kernels a of `k` elements from `in` to `out` channels, each from its last element to its first, with input and output
// channels exchanged: [K, OC, IC], contiguous.
static struct ggml_tensor * turned(struct ggml_context * ctx, struct ggml_tensor * a, int64_t k, int64_t in,
    int64_t out) {
    struct ggml_tensor * rows = ggml_cont(ctx, ggml_transpose(ctx, ggml_reshape_2d(ctx, a, k, in * out))); // [IC OC, K]
    if (k > 1) {
        struct ggml_tensor * places = ggml_scale_bias(ctx, ggml_arange(ctx, 0, (float) k, 1), -1, (float) (k - 1));
        rows = ggml_get_rows(ctx, rows, ggml_cast(ctx, places, GGML_TYPE_I32));
    }
    rows = rows != NULL ? ggml_permute(ctx, ggml_reshape_3d(ctx, rows, in, out, k), 2, 1, 0, 3) : NULL;
    return ggml_cont(ctx, rows);
}

// The gradient of an image is the convolution of g, spread by the strides, with the turned kernels. Gets the paddings
// of this convolution. False if a padding would be negative. p: strides, paddings and dilations of the axes.
static bool pads_back(const struct ggml_tensor * a, const int32_t * p, int axes, int * pads) {
    for (int i = 0; i < axes; i++) {
        const int64_t pad = p[2 * axes + i] * (a->ne[i] - 1) - p[axes + i];
        if (pad < 0 || pad > INT32_MAX) {
            return false;
        }
        pads[i] = (int) pad;
    }
    return true;
}

// The positions of an image and of its padding that the convolution with turned kernels reads from g.
static int64_t spread_size(const struct ggml_tensor * a, const struct ggml_tensor * b, const int32_t * p, int axes,
    int axis) {
    return b->ne[axis] + 2 * (int64_t) p[axes + axis] - p[2 * axes + axis] * (a->ne[axis] - 1);
}

// ------------------------------------------------------------------------------------------------------------- columns

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
    int pads[2];
    if (!gb_grad_wanted(s, b)) {
        return true;
    }
    if (y->op_params[0] == 1 && y->op_params[1] == 1 && pads_back(a, y->op_params, 2, pads)) {
        struct ggml_tensor * kernels = turned(ctx, a, k, 1, channels);
        kernels = kernels != NULL ? ggml_reshape(ctx, kernels, a) : NULL;
        return gb_grad_add(s, b,
            ggml_conv_2d_dw_direct(ctx, kernels, g, 1, 1, pads[0], pads[1], y->op_params[4], y->op_params[5]));
    }
    struct ggml_tensor * rows =
        ggml_out_prod(ctx, ggml_reshape_4d(ctx, a, k, 1, channels, 1), ggml_reshape_4d(ctx, g, places, 1, channels, n));
    rows = ggml_reshape_4d(ctx, rows, k, y->ne[0], y->ne[1], channels * n);
    struct ggml_tensor * back = windows_back(ctx, &w, rows);
    return back != NULL && gb_grad_add(s, b, ggml_reshape(ctx, back, b));
}

RULE(conv_2d_dw) { return derive_depthwise(s, y, g); }

// -------------------------------------------------------------------------------------------------------- two axes

enum { PLACES_MAX = 1 << 18 }; // of the images of a convolution: a CPU has a copy of 32 channels for each thread

// True if columns are smaller than the kernels a, or if strides above 1 separate the windows, so that columns are no
// larger than the image. Then products with columns are faster than convolutions. Also true if a has no elements,
// because CONV_3D needs kernels and channels. g: a tensor of the shape of the convolution's result
static bool are_columns_small(const struct ggml_tensor * a, const struct ggml_tensor * g, const int32_t * p) {
    const bool is_dense = p[0] == 1 && p[1] == 1;
    return ggml_nelements(a) == 0 || g->ne[0] * g->ne[1] * g->ne[3] < g->ne[2] ||
           (!is_dense && p[0] >= a->ne[0] && p[1] >= a->ne[1]);
}

// [OC, OW, OH, N] as rows of output channels, in the order of columns.
static struct ggml_tensor * rows_of(struct ggml_context * ctx, struct ggml_tensor * g) {
    struct ggml_tensor * rows = ggml_cont(ctx, ggml_permute(ctx, g, 1, 2, 0, 3));
    return rows != NULL ? ggml_reshape_2d(ctx, rows, rows->ne[0], rows->ne[1] * rows->ne[2] * rows->ne[3]) : NULL;
}

// The gradient of the kernels a as a product of g with the windows. The result has the elements of a.
static struct ggml_tensor * kernels_by_columns(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * image, struct ggml_tensor * g, const int32_t * p) {
    const struct windows w = { a, image, p };
    const int64_t k = a->ne[0] * a->ne[1] * a->ne[2], places = g->ne[0] * g->ne[1] * g->ne[3];
    struct ggml_tensor * rows = rows_of(ctx, g);
    return rows != NULL ? ggml_out_prod(ctx, ggml_reshape_2d(ctx, windows_of(ctx, &w), k, places), rows) : NULL;
}

// The gradient of the kernels a is a convolution of the images with the kernels g. Strides and dilations change places,
// and images become channels. Input channels become the first axis, which is long enough for vectors, and along which g
// has one element. The result has [IC, KW or more, KH or more, OC].
static struct ggml_tensor * convolve_images(struct ggml_context * ctx, struct ggml_tensor * images,
    struct ggml_tensor * g, const int32_t * p) {
    if (images == NULL || g == NULL) {
        return NULL;
    }
    const int64_t n = g->ne[3], out = g->ne[2];
    g = gb_grad_contiguous(ctx, ggml_permute(ctx, g, 0, 1, 3, 2)); // [OW, OH, N, OC]
    g = g != NULL ? ggml_reshape_4d(ctx, g, 1, g->ne[0], g->ne[1], n * out) : NULL;
    return ggml_conv_3d_direct(ctx, g, ggml_permute(ctx, images, 1, 2, 0, 3), 1, p[4], p[5], 0, p[2], p[3], 1, p[0],
        p[1], (int) n, 1, (int) out);
}

// Images [first, first + n) of t.
static struct ggml_tensor * images_of(struct ggml_context * ctx, struct ggml_tensor * t, int64_t first, int64_t n) {
    return n == t->ne[3] ? t
                         : ggml_view_4d(ctx, t, t->ne[0], t->ne[1], t->ne[2], n, t->nb[1], t->nb[2], t->nb[3],
                               (size_t) first * t->nb[3]);
}

static struct ggml_tensor * kernels_by_convolution(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * image, struct ggml_tensor * g, const int32_t * p) {
    const int64_t images = image->ne[3], plane = GB_MAX(image->ne[0] * image->ne[1], (int64_t) 1);
    const int64_t step = GB_MAX(PLACES_MAX / plane, (int64_t) 1);
    struct ggml_tensor * sum = NULL;
    for (int64_t i = 0; i < images; i += step) {
        const int64_t n = GB_MIN(step, images - i);
        struct ggml_tensor * part = convolve_images(ctx, images_of(ctx, image, i, n), images_of(ctx, g, i, n), p);
        sum = i == 0 ? part : ggml_add(ctx, sum, part);
        if (sum == NULL) {
            return NULL;
        }
    }
    sum = ggml_view_4d(ctx, sum, a->ne[2], a->ne[0], a->ne[1], g->ne[2], sum->nb[1], sum->nb[2], sum->nb[3], 0);
    return sum != NULL ? ggml_cont(ctx, ggml_permute(ctx, sum, 2, 0, 1, 3)) : NULL;
}

// The gradient of the kernels a of a convolution. g: the gradient of the convolution's result. CONV_3D has a derivative
// if its kernels, here g, reach across the padding.
static struct ggml_tensor * kernels_back(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * image,
    struct ggml_tensor * g, const int32_t * p) {
    g = g->type != GGML_TYPE_F32 ? ggml_cast(ctx, g, GGML_TYPE_F32) : g;
    if (g == NULL) {
        return NULL;
    }
    const bool reaches = p[2] <= p[0] * (g->ne[0] - 1) && p[3] <= p[1] * (g->ne[1] - 1);
    return are_columns_small(a, g, p) || !reaches || image->ne[0] * image->ne[1] > PLACES_MAX
               ? kernels_by_columns(ctx, a, image, g, p)
               : kernels_by_convolution(ctx, a, image, g, p);
}

// For stride 1: a convolution with turned kernels.
static struct ggml_tensor * image_back_turned(struct ggml_context * ctx, const struct ggml_tensor * y,
    struct ggml_tensor * g, const int * pads) {
    struct ggml_tensor * a = y->src[0];
    const int32_t * p = y->op_params;
    struct ggml_tensor * kernels = turned(ctx, a, a->ne[0] * a->ne[1], a->ne[2], a->ne[3]);
    kernels = kernels != NULL ? ggml_reshape_4d(ctx, kernels, a->ne[0], a->ne[1], a->ne[3], a->ne[2]) : NULL;
    return ggml_conv_2d_direct(ctx, kernels, g, 1, 1, pads[0], pads[1], p[4], p[5]);
}

// For equal strides: the part of the transposed convolution that lies on the image. Kernels are longer than the stride,
// so this part has the first element of the image.
static struct ggml_tensor * image_back_transposed(struct ggml_context * ctx, const struct ggml_tensor * y,
    struct ggml_tensor * g) {
    const struct ggml_tensor * b = y->src[1];
    const int32_t * p = y->op_params;
    struct ggml_tensor * all = ggml_conv_transpose_2d_p0(ctx, y->src[0], g, p[0]);
    if (all == NULL) {
        return NULL;
    }
    const int64_t w = GB_MIN(b->ne[0], all->ne[0] - p[2]), h = GB_MIN(b->ne[1], all->ne[1] - p[3]);
    const size_t first = (size_t) p[2] * all->nb[0] + (size_t) p[3] * all->nb[1];
    all = ggml_view_4d(ctx, all, w, h, all->ne[2], all->ne[3], all->nb[1], all->nb[2], all->nb[3], first);
    all = all != NULL ? ggml_cont(ctx, all) : NULL;
    return all != NULL && (w < b->ne[0] || h < b->ne[1])
               ? ggml_pad(ctx, all, (int) (b->ne[0] - w), (int) (b->ne[1] - h), 0, 0)
               : all;
}

// Kernels times g are the gradient of the windows.
static struct ggml_tensor * image_back_columns(struct ggml_context * ctx, const struct ggml_tensor * y,
    struct ggml_tensor * g) {
    struct ggml_tensor * a = y->src[0];
    const struct windows w = { a, y->src[1], y->op_params };
    const int64_t k = a->ne[0] * a->ne[1] * a->ne[2];
    struct ggml_tensor * rows = rows_of(ctx, g);
    rows = rows != NULL ? ggml_out_prod(ctx, ggml_reshape_2d(ctx, a, k, a->ne[3]), ggml_transpose(ctx, rows)) : NULL;
    return rows != NULL ? windows_back(ctx, &w, ggml_reshape_4d(ctx, rows, k, y->ne[0], y->ne[1], y->ne[3])) : NULL;
}

// The gradient of the image b. Turned kernels are faster for stride 1, but need two copies of the kernels.
static struct ggml_tensor * image_back(struct ggml_context * ctx, struct ggml_tensor * y, struct ggml_tensor * g) {
    const struct ggml_tensor *a = y->src[0], *b = y->src[1];
    const int32_t * p = y->op_params;
    const bool is_even = p[0] == p[1] && p[4] == 1 && p[5] == 1 && a->ne[0] > p[0] && a->ne[1] > p[0];
    const bool is_large = ggml_nelements(a) > ggml_nelements(b);
    int pads[2];
    if (are_columns_small(a, y, p)) {
        return image_back_columns(ctx, y, g);
    }
    if (p[0] == 1 && p[1] == 1 && pads_back(a, p, 2, pads) && !(is_large && is_even)) {
        return image_back_turned(ctx, y, g, pads);
    }
    return is_even ? image_back_transposed(ctx, y, g) : image_back_columns(ctx, y, g);
}

// Convolutions of several groups have a derivative here if each channel is a group.
RULE(conv_2d) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor *a = y->src[0], *b = y->src[1];
    if (y->op_params[6] > 1) {
        return a->ne[2] == 1 && a->ne[3] == b->ne[2] ? derive_depthwise(s, y, g) : gb_grad_underivable(s, y);
    }
    if (gb_grad_wanted(s, a)) {
        struct ggml_tensor * of_a = kernels_back(ctx, a, b, g, y->op_params);
        if (of_a == NULL || !gb_grad_add(s, a, ggml_reshape(ctx, of_a, a))) {
            return false;
        }
    }
    return ADD(b, image_back(ctx, y, g));
}

// ---------------------------------------------------------------------------------------------------------- transposed

// a [KW, KH, OC, IC] spreads each element of b [W, H, IC, N] over a window of the result. So the gradient of b is the
// convolution of g, and the gradient of a is that of kernels over the image g. CONV_TRANSPOSE_1D gives its sources and
// g an axis of size 1, so the gradients get the shapes of the sources back.
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
    struct ggml_tensor * of_a = kernels_back(ctx, a, g, b, p);
    return of_a != NULL && gb_grad_add(s, y->src[0], ggml_reshape(ctx, of_a, y->src[0]));
}

// Kernels as CONV_2D reads them: contiguous, F32 or F16.
static struct ggml_tensor * kernels_of(struct ggml_context * ctx, struct ggml_tensor * a) {
    const bool is_read = a->type == GGML_TYPE_F32 || a->type == GGML_TYPE_F16;
    return is_read ? gb_grad_contiguous(ctx, a) : ggml_cast(ctx, a, GGML_TYPE_F32);
}

RULE(conv_transpose_2d) {
    const int32_t p[] = { y->op_params[0], y->op_params[0], 0, 0, 1, 1 };
    return derive_transposed(s, y, kernels_of(s->ctx, y->src[0]), y->src[1], g, p);
}

RULE(conv_transpose_1d) { // images of one line
    const struct ggml_tensor *a = y->src[0], *b = y->src[1];
    const int32_t p[] = { y->op_params[0], 1, 0, 0, 1, 1 };
    struct ggml_tensor * kernels = kernels_of(s->ctx, y->src[0]);
    struct ggml_tensor * lines = gb_grad_contiguous(s->ctx, y->src[1]);
    return kernels != NULL && lines != NULL &&
           derive_transposed(s, y, ggml_reshape_4d(s->ctx, kernels, a->ne[0], 1, a->ne[1], a->ne[2]),
               ggml_reshape_4d(s->ctx, lines, b->ne[0], 1, b->ne[1], 1),
               ggml_reshape_4d(s->ctx, g, g->ne[0], 1, g->ne[1], 1), p);
}

// ---------------------------------------------------------------------------------------------------- three dimensions

// The gradient of the kernels is a product with the windows. Convolutions of several groups, and paddings beyond the
// reach of a kernel, have no derivative here.
RULE(conv_3d) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor *a = y->src[0], *b = y->src[1];
    const int32_t * p = y->op_params; // strides, paddings, dilations
    const struct gb_conv_channels c = gb_conv_channels_of(y);
    const int64_t k = a->ne[0] * a->ne[1] * a->ne[2] * c.in, places = y->ne[0] * y->ne[1] * y->ne[2];
    int pads[3];
    struct ggml_tensor * wide = g;
    if (c.groups != 1 || !pads_back(a, p, 3, pads)) {
        return gb_grad_underivable(s, y);
    }
    for (int i = 0; i < 3 && gb_grad_wanted(s, b); i++) {
        wide = spread(ctx, wide, i, p[i], spread_size(a, b, p, 3, i));
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
    if (!gb_grad_wanted(s, b)) {
        return true;
    }
    struct ggml_tensor * kernels = turned(ctx, a, a->ne[0] * a->ne[1] * a->ne[2], c.in, c.out);
    kernels = kernels != NULL ? ggml_reshape_4d(ctx, kernels, a->ne[0], a->ne[1], a->ne[2], c.out * c.in) : NULL;
    return gb_grad_add(s, b,
        ggml_conv_3d_direct(ctx, kernels, wide, 1, 1, 1, pads[0], pads[1], pads[2], p[6], p[7], p[8], (int) c.out,
            (int) c.batches, (int) c.in));
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
