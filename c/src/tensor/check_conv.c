// check_conv.c - the rules of convolution, pooling, resampling and windows over images (see
// check.c), and their numbers of positions.
#include "tensor/check.h"

#include "tensor/rule.h"
#include "tensor/shapes.h"
#include "tensor/tensor.h"

// ------------------------------------------------------------------------------------ convolution, pooling, resampling

int64_t gb_conv_out(int64_t n, int64_t k, int64_t s, int64_t p, int64_t d) {
    int64_t reach; // from the first to the last element under the kernel
    if (n <= 0 || k <= 0 || n > INT64_MAX - 2 * p || !gb_mul_i64(d, k - 1, &reach)) {
        return 0;
    }
    const int64_t slack = n + 2 * p - 1 - reach;
    return slack < 0 ? 0 : slack / s + 1;
}

// Computes in double, because the padding may have a fraction.
int64_t gb_pool_out(int64_t n, int64_t k, int64_t s, double p) {
    const double slack = (double) n + 2 * p - (double) k;
    const double out = slack / (double) s + 1;
    return slack < 0 || !(out < 9e18) ? 0 : (int64_t) out; // 0 also if int64_t cannot hold it
}

// Stride, padding and dilation along one axis. `names` are the names of the parameters.
static bool rule_conv_axis(const struct gb_call * c, const char * const names[3], int64_t s, int64_t p, int64_t d) {
    return gb_rule_in_range(c, names[0], s, 1, INT32_MAX) && gb_rule_in_range(c, names[1], p, 0, INT32_MAX) &&
           gb_rule_in_range(c, names[2], d, 1, INT32_MAX);
}

// The kernel has at least one position along the axis.
static bool rule_fits(const struct gb_call * c, int axis, int64_t n, int64_t k, int64_t out) {
    return out > 0 || GB_BROKEN(c, KERNEL_TOO_LARGE, .a = c->list[c->n - 1].role, .a_dim = axis, .number = { k, n });
}

// The parameters of both axes, or of the only axis.
static bool rule_conv_params(const struct gb_call * c, gb_ct a, gb_ct b, const struct gb_conv * v) {
    static const char * const names[2][3] = { { "s0", "p0", "d0" }, { "s1", "p1", "d1" } };
    if (!rule_conv_axis(c, names[0], v->s0, v->p0, v->d0) ||
        !rule_fits(c, 0, b->ne[0], a->ne[0], gb_conv_out(b->ne[0], a->ne[0], v->s0, v->p0, v->d0))) {
        return false;
    }
    return !v->is_2d || (rule_conv_axis(c, names[1], v->s1, v->p1, v->d1) &&
                            rule_fits(c, 1, b->ne[1], a->ne[1], gb_conv_out(b->ne[1], a->ne[1], v->s1, v->p1, v->d1)));
}

static bool rule_kernel_type(const struct gb_call * c, gb_ct a) {
    return a->type == GGML_TYPE_F16 || a->type == GGML_TYPE_F32 || GB_BROKEN(c, NO_KERNEL_TYPE, .a = "a", .t = a->type);
}

// The kernel and the image have the same channels. Their axis depends on the number of dimensions.
static bool rule_im2col(const struct gb_call * c, gb_ct a, gb_ct b, const struct gb_conv * v) {
    if (!rule_kernel_type(c, a)) {
        return false;
    }
    const bool channels =
        v->is_2d ? gb_rule_equal(c, 0, 2, 1, 2) : gb_rule_equal(c, 0, 1, 1, 1) && gb_rule_max_dims(c, 1, 3);
    return channels && rule_conv_params(c, a, b, v);
}

bool gb_check_im2col(const char * func, gb_ct a, gb_ct b, const struct gb_conv * conv) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && rule_im2col(&c, a, b, conv);
}

// b has the shape of the windows of t.
bool gb_check_im2col_back(const char * func, gb_ct a, gb_ct b, gb_ct t, const struct gb_conv * conv) {
    const struct gb_call c = GB_CALL_2(func, a, b), image = GB_CALL(func, GB_OPERAND(a), { "ne", t });
    if (!gb_rule_given(&c) || !rule_im2col(&image, a, t, conv)) {
        return false;
    }
    const struct gb_shape windows = gb_shape_im2col(a, t, conv);
    for (int d = 0; d < 4; d++) {
        if (!gb_rule_size(&c, 1, d, windows.ne[d])) {
            return false;
        }
    }
    return true;
}

bool gb_check_conv(const char * func, gb_ct a, gb_ct b, const struct gb_conv * conv) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && (conv->is_2d || gb_rule_max_dims(&c, 0, 3)) && rule_im2col(&c, a, b, conv) &&
           gb_rule_contiguous(&c, 0);
}

bool gb_check_conv_depthwise(const char * func, gb_ct a, gb_ct b, const struct gb_conv * conv) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    if (!gb_rule_given(&c) || !rule_kernel_type(&c, a)) {
        return false;
    }
    const int64_t n = gb_size_product(a->ne[2], a->ne[3]); // kernels
    if (n < 1 || b->ne[2] % n != 0) {
        return GB_BROKEN(&c, CHANNELS, .a = "b", .number = { b->ne[2], n });
    }
    return rule_conv_params(&c, a, b, conv) && gb_rule_contiguous(&c, 0) && gb_rule_contiguous(&c, 1);
}

// Types of the operators that convolve without columns.
static bool rule_direct_types(const struct gb_call * c, gb_ct a, gb_ct b) {
    return rule_kernel_type(c, a) && (gb_rule_is_built(c) || b->type == GGML_TYPE_F32 || b->type == GGML_TYPE_F16 ||
                                         b->type == GGML_TYPE_BF16 || GB_BROKEN(c, NO_FLOAT, .a = "b", .t = b->type));
}

// `channels` is the number of channels of a kernel, `kernels` the number of kernels, `data` the
// number of channels of b.
static bool rule_groups(const struct gb_call * c, int64_t groups, int64_t channels, int64_t kernels, int64_t data) {
    if (!gb_rule_at_least(c, "groups", groups, 1)) {
        return false;
    }
    if (gb_size_product(channels, groups) != data) {
        return GB_BROKEN(c, GROUP_CHANNELS, .a = "b",
            .number = { gb_size_product(channels, groups), groups, channels, data });
    }
    return kernels % groups == 0 || GB_BROKEN(c, GROUP_KERNELS, .number = { kernels, groups });
}

bool gb_check_conv_2d(const char * func, gb_ct a, gb_ct b, const struct gb_conv * conv, int64_t groups) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && rule_direct_types(&c, a, b) && (groups != 1 || gb_rule_equal(&c, 0, 2, 1, 2)) &&
           rule_groups(&c, groups, a->ne[2], a->ne[3], b->ne[2]) && rule_conv_params(&c, a, b, conv) &&
           gb_rule_contiguous(&c, 0);
}

bool gb_check_conv_2d_dw(const char * func, gb_ct a, gb_ct b, const struct gb_conv * conv) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && rule_direct_types(&c, a, b) && gb_rule_size(&c, 0, 2, 1) &&
           gb_rule_equal(&c, 0, 3, 1, 2) && rule_conv_params(&c, a, b, conv) && gb_rule_contiguous(&c, 0);
}

bool gb_check_conv_1d_grouped(const char * func, gb_ct a, gb_ct b, int64_t groups) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && rule_direct_types(&c, a, b) && gb_rule_max_dims(&c, 0, 3) &&
           gb_rule_max_dims(&c, 1, 3) && (groups != 1 || gb_rule_equal(&c, 0, 1, 1, 1)) &&
           rule_groups(&c, groups, a->ne[1], a->ne[2], b->ne[1]) && gb_rule_contiguous(&c, 0);
}

static bool rule_conv_3d_channels(const struct gb_call * c, gb_ct a, gb_ct b, const struct gb_conv_3d * v) {
    if (!gb_rule_at_least(c, "n_channels", v->channels, 1) || !gb_rule_at_least(c, "n_batch", v->batches, 0) ||
        !gb_rule_at_least(c, "n_channels_out", v->channels_out, 1) || !gb_rule_at_least(c, "groups", v->groups, 1)) {
        return false;
    }
    if (v->channels % v->groups != 0) {
        return GB_BROKEN(c, GROUPED_CHANNELS, .number = { v->channels, v->groups });
    }
    if (gb_size_product(v->channels / v->groups, v->channels_out) != a->ne[3]) {
        return GB_BROKEN(c, KERNEL_PLANES, .a = "a", .a_dim = 3,
            .number = { a->ne[3], v->channels / v->groups, v->channels_out });
    }
    if (gb_size_product(v->channels, v->batches) != b->ne[3]) {
        return GB_BROKEN(c, IMAGE_PLANES, .a = "b", .a_dim = 3, .number = { b->ne[3], v->channels, v->batches });
    }
    return rule_groups(c, v->groups, v->channels / v->groups, v->channels_out, v->channels);
}

bool gb_check_conv_3d(const char * func, gb_ct a, gb_ct b, const struct gb_conv_3d * v) {
    static const char * const names[3][3] = { { "s0", "p0", "d0" }, { "s1", "p1", "d1" }, { "s2", "p2", "d2" } };
    const struct gb_call c = GB_CALL_2(func, a, b);
    if (!gb_rule_given(&c) || !rule_direct_types(&c, a, b) || !rule_conv_3d_channels(&c, a, b, v)) {
        return false;
    }
    for (int i = 0; i < 3; i++) {
        if (!rule_conv_axis(&c, names[i], v->s[i], v->p[i], v->d[i]) ||
            !rule_fits(&c, i, b->ne[i], a->ne[i], gb_conv_out(b->ne[i], a->ne[i], v->s[i], v->p[i], v->d[i]))) {
            return false;
        }
    }
    return gb_rule_contiguous(&c, 0);
}

bool gb_check_conv_transpose_1d(const char * func, gb_ct a, gb_ct b, int s0, int p0, int d0) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && gb_rule_max_dims(&c, 0, 3) && gb_rule_max_dims(&c, 1, 2) &&
           gb_rule_equal(&c, 0, 2, 1, 1) && gb_rule_at_least(&c, "s0", s0, 1) && gb_rule_in_range(&c, "p0", p0, 0, 0) &&
           gb_rule_in_range(&c, "d0", d0, 1, 1) && gb_rule_size_in_range(&c, 0, 0, 1, INT64_MAX) &&
           gb_rule_size_in_range(&c, 1, 0, 1, INT64_MAX);
}

bool gb_check_conv_transpose_2d(const char * func, gb_ct a, gb_ct b, int stride) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    if (!gb_rule_given(&c) || !gb_rule_equal(&c, 0, 3, 1, 2) || !gb_rule_at_least(&c, "stride", stride, 1)) {
        return false;
    }
    for (int d = 0; d < 2; d++) {
        if (!gb_rule_size_in_range(&c, 0, d, 1, INT64_MAX) || !gb_rule_size_in_range(&c, 1, d, 1, INT64_MAX)) {
            return false;
        }
    }
    return true;
}

// The parameters of pooling along one axis. The padding of POOL_2D is a float in the public
// interface.
static bool rule_pool(const struct gb_call * c, int axis, int64_t n, enum ggml_op_pool op, int k, int s, double p) {
    const char * const names[2][3] = { { "k0", "s0", "p0" }, { "k1", "s1", "p1" } };
    return gb_rule_in_range(c, "pooling operator", (int) op, 0, GGML_OP_POOL_COUNT - 1) &&
           gb_rule_at_least(c, names[axis][0], k, 1) && gb_rule_at_least(c, names[axis][1], s, 1) &&
           ((p >= 0 && p <= INT32_MAX) ||
               GB_BROKEN(c, REAL_OUT_OF_RANGE, .name = names[axis][2], .number = { 0, INT32_MAX }, .real = p)) &&
           rule_fits(c, axis, n, k, gb_pool_out(n, k, s, p));
}

// Pools one axis of a matrix, each row by itself.
bool gb_check_pool_1d(const char * func, gb_ct a, enum ggml_op_pool op, int k0, int s0, int p0) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_no_grad(&c) && gb_rule_max_dims(&c, 0, 2) &&
           rule_pool(&c, 0, a->ne[0], op, k0, s0, p0);
}

bool gb_check_pool_2d(const char * func, gb_ct a, enum ggml_op_pool op, const int k[2], const int s[2],
    const float p[2]) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_max_dims(&c, 0, 3) &&
           rule_pool(&c, 0, a->ne[0], op, k[0], s[0], (double) p[0]) &&
           rule_pool(&c, 1, a->ne[1], op, k[1], s[1], (double) p[1]);
}

// The larger sizes must fit into 64 bits.
bool gb_check_upscale(const char * func, gb_ct a, int factor) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_at_least(&c, "scale_factor", factor, 1) &&
           gb_rule_size_in_range(&c, 0, 0, 0, INT64_MAX / factor) &&
           gb_rule_size_in_range(&c, 0, 1, 0, INT64_MAX / factor);
}

bool gb_check_pad(const char * func, gb_ct a, const int p[4]) {
    static const char * const names[4] = { "p0", "p1", "p2", "p3" };
    const struct gb_call c = GB_CALL_1(func, a);
    bool ok = gb_rule_given(&c);
    for (int d = 0; d < 4 && ok; d++) {
        ok = gb_rule_at_least(&c, names[d], p[d], 0);
    }
    return ok;
}

// ------------------------------------------------------------------------------------------------------------- windows

// Windows of w x w in an image [channels, width, height]. Kernels count windows in 32 bits.
bool gb_check_win_part(const char * func, gb_ct a, int w) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_no_grad(&c) && gb_rule_at_least(&c, "w", w, 1) && gb_rule_max_dims(&c, 0, 3) &&
           gb_rule_contiguous(&c, 0) && gb_rule_size_in_range(&c, 0, 1, 0, INT32_MAX) &&
           gb_rule_size_in_range(&c, 0, 2, 0, INT32_MAX);
}

// All windows of an image of w0 x h0 positions.
bool gb_check_win_unpart(const char * func, gb_ct a, int w0, int h0, int w) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_no_grad(&c) && gb_rule_at_least(&c, "w", w, 1) &&
           gb_rule_at_least(&c, "w0", w0, 1) && gb_rule_at_least(&c, "h0", h0, 1) && gb_rule_size(&c, 0, 1, w) &&
           gb_rule_size(&c, 0, 2, w) && gb_rule_size(&c, 0, 3, gb_windows(w0, w) * gb_windows(h0, w)) &&
           gb_rule_contiguous(&c, 0);
}

// a is a table with an entry for each difference of two positions: 2 kh - 1 entries.
bool gb_check_get_rel_pos(const char * func, gb_ct a, int qh, int kh) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_no_grad(&c) && gb_rule_at_least(&c, "kh", kh, 1) &&
           (qh == kh || GB_BROKEN(&c, UNEQUAL_POSITIONS, .number = { qh, kh })) &&
           gb_rule_size(&c, 0, 1, 2 * (int64_t) kh - 1) && gb_rule_max_dims(&c, 0, 2) && gb_rule_contiguous(&c, 0);
}

// a has the products of all pairs of positions in a window, so its sizes follow from those of pw.
static bool rule_rel_pos_sizes(const struct gb_call * c, gb_ct pw) {
    return gb_rule_size(c, 0, 0, gb_size_product(pw->ne[0], pw->ne[0])) &&
           gb_rule_size(c, 0, 1, gb_size_product(pw->ne[1], pw->ne[2])) && gb_rule_equal(c, 0, 2, 1, 3) &&
           gb_rule_size(c, 0, 3, 1);
}

bool gb_check_add_rel_pos(const char * func, gb_ct a, gb_ct pw, gb_ct ph) {
    const struct gb_call c = GB_CALL_3(func, a, pw, ph);
    return gb_rule_given(&c) && gb_rule_same_shape(&c, 1, 2) && gb_rule_type(&c, 1, GGML_TYPE_F32) &&
           gb_rule_type(&c, 2, GGML_TYPE_F32) && rule_rel_pos_sizes(&c, pw) && gb_rule_contiguous(&c, 0) &&
           gb_rule_contiguous(&c, 1) && gb_rule_contiguous(&c, 2);
}
