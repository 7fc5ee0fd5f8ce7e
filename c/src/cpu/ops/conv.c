// conv.c - IM2COL and the transposed convolutions.
//
// IM2COL gathers, for each output position, the values under the kernel. The product with the
// kernel is a MUL_MAT. The transposed convolutions give each thread whole output channels. The
// thread clears them and then adds scaled kernel rows.
#include "cpu/ops/elements.h"

// -------------------------------------------------------------------------------------------------------------- IM2COL

// s: strides, p: padding, d: dilation, with 0 for x and 1 for y; i: input, k: kernel, c: channels.
// A 1-d input is an image of height 1.
struct im2col {
    int s0, s1, p0, p1, d0, d1;
    bool is_2d;
    int64_t iw, ih, ic, kw, kh;
    size_t channel, batch; // strides of b
};

// op_params: s0, s1, p0, p1, d0, d1, is_2d.
static struct im2col im2col_of(const struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const bool is_2d = gb_op_param_i32(node, 6) == 1;
    return (struct im2col){
        .s0 = gb_op_param_i32(node, 0),
        .s1 = gb_op_param_i32(node, 1),
        .p0 = gb_op_param_i32(node, 2),
        .p1 = gb_op_param_i32(node, 3),
        .d0 = gb_op_param_i32(node, 4),
        .d1 = gb_op_param_i32(node, 5),
        .is_2d = is_2d,
        .iw = b->ne[0],
        .ih = is_2d ? b->ne[1] : 1,
        .ic = is_2d ? b->ne[2] : b->ne[1],
        .kw = a->ne[0],
        .kh = is_2d ? a->ne[1] : 1,
        .channel = is_2d ? b->nb[2] : b->nb[1],
        .batch = is_2d ? b->nb[3] : b->nb[2],
    };
}

// Writes one line of a kernel window: kw values at x, x + d0, ... of the input row at p (NULL:
// outside). The value is 0 where x is outside.
static void gather_line(const struct im2col * m, const struct ggml_tensor * b, const char * p, int64_t x, float * y) {
    for (int64_t k = 0; k < m->kw; k++, x += m->d0) {
        if (p == NULL || x < 0 || x >= m->iw) {
            y[k] = 0.0f;
        } else {
            const char * at = p + (size_t) x * b->nb[0];
            y[k] = b->type == GGML_TYPE_F32 ? gb_get_f32(at) : gb_get(b->type, at);
        }
    }
}

// Row (b, y, x) of the result is the window at output position (x, y): IC lines of KH x KW values. Threads share the
// rows.
static void run_im2col(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor * b = node->src[1];
    const struct im2col m = im2col_of(node);
    float * scratch = gb_my_floats(call, node->ne[0]);
    int64_t first, last;
    gb_cpu_share(call, gb_rows(node), &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(node, i);
        const int64_t oh = m.is_2d ? r.i2 : 0;
        const char * image = (const char *) b->data + (size_t) (m.is_2d ? r.i3 : r.i2) * m.batch;
        float * y = scratch;
        for (int64_t ic = 0; ic < m.ic; ic++) {
            for (int64_t kh = 0; kh < m.kh; kh++, y += m.kw) {
                const int64_t ih = m.is_2d ? oh * m.s1 + kh * m.d1 - m.p1 : 0;
                const char * line = ih < 0 || ih >= m.ih
                                        ? NULL
                                        : image + (size_t) ic * m.channel + (m.is_2d ? (size_t) ih * b->nb[1] : 0);
                gather_line(&m, b, line, r.i1 * m.s0 - m.p0, y);
            }
        }
        gb_store(call->k, node->type, node->ne[0], gb_row_of(node, r), node->nb[0], scratch);
        if (gb_cpu_stopped(call, 2 * node->ne[0])) {
            return;
        }
    }
}

static const char * im2col_unsupported(const struct ggml_tensor * node) { // of the kernel only the shape is used
    if (!gb_is_float(node->type)) {
        return "the result must be f32, f16 or bf16";
    }
    return gb_is_float(node->src[1]->type) ? NULL : "source 1 must be f32, f16 or bf16";
}

static size_t im2col_work(const struct ggml_tensor * node, int n_tasks) { return gb_floats_size(node->ne[0], n_tasks); }

// --------------------------------------------------------------------------------------------------- CONV_TRANSPOSE_1D

// Input values between which a thread may stop.
enum { SPREAD = 1024 };

// y[l stride + k] += x[l] kernel[k]. False: the run is over.
static bool spread(const struct gb_cpu_call * call, float * y, const float * x, int64_t n, int64_t stride,
    const float * kernel, int64_t width) {
    for (int64_t l = 0; l < n;) {
        const int64_t piece = l, end = GB_MIN(n, l + SPREAD);
        for (; l < end; l++) {
            call->k->mad_f32(width, y + l * stride, kernel, x[l]);
        }
        if (gb_cpu_stopped(call, (end - piece) * (5 + width / 4))) {
            return false;
        }
    }
    return true;
}

// y[oc][l s + k] = sum over ic of x[ic][l] kernel[ic][oc][k]. Threads share the output channels.
static void run_conv_transpose_1d(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1]; // [K, OC, IC], [L, IC]
    const int64_t width = a->ne[0], length = b->ne[0], stride = gb_op_param_i32(node, 0);
    float * scratch = gb_my_floats(call, width + length);
    int64_t first, last;
    gb_cpu_share(call, gb_rows(node), &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(node, i);
        float * y = (float *) (void *) gb_row_of(node, r);
        memset(y, 0, (size_t) node->ne[0] * sizeof(*y));
        for (int64_t ic = 0; ic < b->ne[1]; ic++) {
            const float * kernel = gb_in(call->k, a, gb_row_ptr(a, r.i1, ic, 0), width, scratch);
            const float * x = gb_in(call->k, b, gb_row_ptr(b, ic, r.i2, r.i3), length, scratch + width);
            if (!spread(call, y, x, length, stride, kernel, width)) {
                return;
            }
        }
    }
}

// Kernel rows are added to the result in place, so it must be dense f32.
static const char * conv_transpose_unsupported(const struct ggml_tensor * node) {
    const char * why = gb_need_float(node, 2);
    if (why != NULL) {
        return why;
    }
    return node->type == GGML_TYPE_F32 && ggml_is_contiguous(node) ? NULL : "the result must be f32 and contiguous";
}

// ggml_conv_transpose_1d stores padding and dilation, but the operator is defined only without them.
static const char * conv_transpose_1d_unsupported(const struct ggml_tensor * node) {
    if (gb_op_param_i32(node, 1) != 0 || gb_op_param_i32(node, 2) != 1) {
        return "padding must be 0 and dilation 1";
    }
    return conv_transpose_unsupported(node);
}

// The work is the number of multiply-adds: each input value times each weight of an output channel.
static int conv_transpose_1d_tasks(const struct ggml_tensor * node, int n_threads) {
    const struct ggml_tensor * a = node->src[0];
    return gb_tasks_for((double) gb_rows(node) * (double) node->src[1]->ne[0] * (double) a->ne[0] * (double) a->ne[2],
        gb_rows(node), n_threads);
}

// Scratch of a thread: a converted kernel row and a converted input row. The same in 2-d.
static size_t conv_transpose_1d_work(const struct ggml_tensor * node, int n_tasks) {
    return gb_floats_size(node->src[0]->ne[0] + node->src[1]->ne[0], n_tasks);
}

// --------------------------------------------------------------------------------------------------- CONV_TRANSPOSE_2D

// Adds the part of input channel ic of batch n to the plane of output channel oc. False: the run is
// over. Each input row is multiplied by each kernel row, and the products are added to row h stride
// + kh of the plane.
static bool add_channel(const struct gb_cpu_call * call, struct ggml_tensor * node, int64_t ic, int64_t oc, int64_t n,
    float * scratch) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1]; // [KW, KH, OC, IC], [W, H, IC, N]
    const int64_t width = a->ne[0], length = b->ne[0], stride = gb_op_param_i32(node, 0);
    for (int64_t h = 0; h < b->ne[1]; h++) {
        const float * x = gb_in(call->k, b, gb_row_ptr(b, h, ic, n), length, scratch + width);
        for (int64_t kh = 0; kh < a->ne[1]; kh++) {
            const float * kernel = gb_in(call->k, a, gb_row_ptr(a, kh, oc, ic), width, scratch);
            float * y = (float *) (void *) gb_row_ptr(node, h * stride + kh, oc, n);
            if (!spread(call, y, x, length, stride, kernel, width)) {
                return false;
            }
        }
    }
    return true;
}

// y[n][oc][h s + kh][w s + kw] = sum over ic of x[n][ic][h][w] kernel[ic][oc][kh][kw]. Threads share the planes (n,
// oc).
static void run_conv_transpose_2d(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    float * scratch = gb_my_floats(call, node->src[0]->ne[0] + node->src[1]->ne[0]);
    int64_t first, last;
    gb_cpu_share(call, node->ne[2] * node->ne[3], &first, &last);
    for (int64_t u = first; u < last; u++) {
        const int64_t n = u / node->ne[2], oc = u % node->ne[2];
        memset(gb_row_ptr(node, 0, oc, n), 0, (size_t) (node->ne[0] * node->ne[1]) * sizeof(float));
        for (int64_t ic = 0; ic < node->src[1]->ne[2]; ic++) {
            if (!add_channel(call, node, ic, oc, n, scratch)) {
                return;
            }
        }
    }
}

static int conv_transpose_2d_tasks(const struct ggml_tensor * node, int n_threads) {
    return gb_tasks_for((double) gb_count(node) * (double) node->src[1]->ne[2], node->ne[2] * node->ne[3], n_threads);
}

static const char * conv_transpose_2d_unsupported(const struct ggml_tensor * node) {
    return gb_op_param_i32(node, 0) < 1 ? "the stride must be positive" : conv_transpose_unsupported(node);
}

const struct gb_cpu_op gb_cpu_op_im2col = {
    .unsupported = im2col_unsupported,
    .n_tasks = gb_tasks_dst_rows,
    .work_size = im2col_work,
    .run = run_im2col,
};
const struct gb_cpu_op gb_cpu_op_conv_transpose_1d = {
    .unsupported = conv_transpose_1d_unsupported,
    .n_tasks = conv_transpose_1d_tasks,
    .work_size = conv_transpose_1d_work,
    .run = run_conv_transpose_1d,
};
const struct gb_cpu_op gb_cpu_op_conv_transpose_2d = {
    .unsupported = conv_transpose_2d_unsupported,
    .n_tasks = conv_transpose_2d_tasks,
    .work_size = conv_transpose_1d_work,
    .run = run_conv_transpose_2d,
};
