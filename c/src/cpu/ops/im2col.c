// im2col.c - IM2COL: gathers, for each output position, the values under the kernel. The product with
// the kernel is a MUL_MAT. IM2COL_BACK adds such values to the places from which they came.
#include "cpu/ops/elements.h"

// s: strides, p: padding, d: dilation, with 0 for x and 1 for y; i: input, k: kernel, c: channels.
// A 1-d input is an image of height 1.
struct im2col {
    int s0, s1, p0, p1, d0, d1;
    bool is_2d;
    int64_t iw, ih, ic, kw, kh;
    size_t channel, batch; // strides of b
};

// op_params: s0, s1, p0, p1, d0, d1, is_2d. b: the image
static struct im2col im2col_of(const struct ggml_tensor * node, const struct ggml_tensor * b) {
    const struct ggml_tensor * a = node->src[0];
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
    const struct im2col m = im2col_of(node, b);
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

const struct gb_cpu_op gb_cpu_op_im2col = {
    .unsupported = im2col_unsupported,
    .n_tasks = gb_tasks_dst_rows,
    .work_size = im2col_work,
    .run = run_im2col,
};

// --------------------------------------------------------------------------------------------------------- IM2COL_BACK

// Adds the window at output position (x, y), whose kh * kw values begin at p, to a plane of the image.
static void add_window(const struct im2col * m, const struct ggml_tensor * b, const char * p, int64_t x, int64_t y,
    float * plane) {
    for (int64_t kh = 0; kh < m->kh; kh++) {
        const int64_t ih = m->is_2d ? y * m->s1 + kh * m->d1 - m->p1 : 0;
        if (ih < 0 || ih >= m->ih) {
            continue;
        }
        float * line = plane + ih * m->iw;
        const char * at = p + (size_t) (kh * m->kw) * b->nb[0];
        int64_t iw = x * m->s0 - m->p0;
        for (int64_t kw = 0; kw < m->kw; kw++, iw += m->d0, at += b->nb[0]) {
            if (iw >= 0 && iw < m->iw) {
                line[iw] += b->type == GGML_TYPE_F32 ? gb_get_f32(at) : gb_get(b->type, at);
            }
        }
    }
}

// Threads share the planes of channels and images. Windows are added in their order.
static void run_im2col_back(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor * b = node->src[1];
    const struct im2col m = im2col_of(node, node);
    float * plane = gb_my_floats(call, m.iw * m.ih);
    const int64_t images = m.is_2d ? node->ne[3] : node->ne[2], oh = m.is_2d ? b->ne[2] : 1;
    int64_t first, last;
    gb_cpu_share(call, gb_is_empty(node) ? 0 : m.ic * images, &first, &last);
    for (int64_t i = first; i < last; i++) {
        const int64_t ic = i % m.ic, n = i / m.ic;
        const char * image = (const char *) b->data + (size_t) n * (m.is_2d ? b->nb[3] : b->nb[2]) +
                             (size_t) (ic * m.kw * m.kh) * b->nb[0];
        memset(plane, 0, (size_t) (m.iw * m.ih) * sizeof(float));
        for (int64_t y = 0; y < oh; y++) {
            for (int64_t x = 0; x < b->ne[1]; x++) {
                add_window(&m, b, image + (size_t) x * b->nb[1] + (m.is_2d ? (size_t) y * b->nb[2] : 0), x, y, plane);
            }
            if (gb_cpu_stopped(call, 2 * b->ne[1] * m.kw * m.kh)) {
                return;
            }
        }
        char * to = (char *) node->data + (size_t) n * m.batch + (size_t) ic * m.channel;
        for (int64_t y = 0; y < m.ih; y++) {
            gb_store(call->k, node->type, m.iw, to + (m.is_2d ? (size_t) y * node->nb[1] : 0), node->nb[0],
                plane + y * m.iw);
        }
    }
}

static size_t im2col_back_work(const struct ggml_tensor * node, int n_tasks) {
    return gb_floats_size(node->ne[0] * (gb_op_param_i32(node, 6) == 1 ? node->ne[1] : 1), n_tasks);
}

static int im2col_back_tasks(const struct ggml_tensor * node, int n_threads) {
    const int64_t planes = node->ne[2] * (gb_op_param_i32(node, 6) == 1 ? node->ne[3] : node->ne[1]);
    return gb_tasks_for((double) gb_count(node->src[1]), planes, n_threads);
}

const struct gb_cpu_op gb_cpu_op_im2col_back = {
    .unsupported = im2col_unsupported,
    .n_tasks = im2col_back_tasks,
    .work_size = im2col_back_work,
    .run = run_im2col_back,
};
