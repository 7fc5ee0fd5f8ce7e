// columns.c - IM2COL_3D, COL2IM_1D.
#include "cpu/ops/elements.h"

// ----------------------------------------------------------------------------------------------------------- IM2COL_3D

// A row of the result is collected in a buffer of floats, which is stored when it is full.
struct row {
    const struct gb_cpu_call * call;
    const struct ggml_tensor * node;
    char * d;
    int n;
    float values[GB_RUN];
};

static void flush(struct row * r) {
    gb_store(r->call->k, r->node->type, r->n, r->d, r->node->nb[0], r->values);
    r->d += (size_t) r->n * r->node->nb[0];
    r->n = 0;
}

// Adds the values under the kernel in one line of the source, from position x on. line NULL: the
// line is in the padding.
static void add_line(struct row * r, const struct ggml_tensor * b, const char * line, int64_t x, int64_t width,
    int64_t dilation) {
    for (int64_t i = 0; i < width; i++, x += dilation) {
        const bool inside = line != NULL && x >= 0 && x < b->ne[0];
        r->values[r->n++] = inside ? gb_get(b->type, line + (size_t) x * b->nb[0]) : 0.0f;
        if (r->n == GB_RUN) {
            flush(r);
        }
    }
}

// op_params: strides, paddings, dilations, each width first; channels
static void im2col_row(const struct gb_cpu_call * call, const struct ggml_tensor * node, struct gb_row at) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const int32_t * w = node->op_params;
    const int64_t channels = w[9], depth = node->ne[3] / (b->ne[3] / channels);
    const int64_t od = at.i3 % depth, image = at.i3 / depth;
    struct row r = { .call = call, .node = node, .d = gb_row_of(node, at) };
    for (int64_t c = 0; c < channels; c++) {
        for (int64_t kd = 0; kd < a->ne[2]; kd++) {
            const int64_t z = od * w[2] + kd * w[8] - w[5];
            for (int64_t kh = 0; kh < a->ne[1]; kh++) {
                const int64_t y = at.i2 * w[1] + kh * w[7] - w[4];
                const bool inside = z >= 0 && z < b->ne[2] && y >= 0 && y < b->ne[1];
                add_line(&r, b, inside ? gb_row_ptr(b, y, z, image * channels + c) : NULL,
                    at.i1 * (int64_t) w[0] - w[3], a->ne[0], w[6]);
            }
        }
        if (gb_cpu_stopped(call, 2 * a->ne[0] * a->ne[1] * a->ne[2])) {
            return;
        }
    }
    flush(&r);
}

static void run_im2col_3d(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    int64_t first, last;
    gb_cpu_share(call, gb_rows(node), &first, &last);
    for (int64_t u = first; u < last; u++) {
        im2col_row(call, node, gb_row_at(node, u));
        if (gb_cpu_stopped(call, 1)) {
            return;
        }
    }
}

static const char * im2col_3d_unsupported(const struct ggml_tensor * node) {
    if (!gb_is_float(node->type)) {
        return "the result must be f32, f16 or bf16";
    }
    return gb_is_float(node->src[1]->type) ? NULL : "source 1 must be f32, f16 or bf16";
}

// ----------------------------------------------------------------------------------------------------------- COL2IM_1D

// Computes positions [x0, x0 + n) of channel o, n at most GB_RUN. Overlapping values are added in
// the order of the rows of a.
static void fold_run(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t o, int64_t x0, int n) {
    const struct ggml_tensor * a = node->src[0];
    const int64_t s = gb_op_param_i32(node, 0), k = a->ne[0] / gb_op_param_i32(node, 1);
    const int64_t from = x0 + gb_op_param_i32(node, 2), end = from + n; // in the signal before it is cut
    float sum[GB_RUN] = { 0 }, buf[GB_RUN];
    const int64_t first = from < k ? 0 : (from - k) / s + 1, last = GB_MIN(a->ne[1] - 1, (end - 1) / s);
    for (int64_t l = first; l <= last; l++) {
        const int64_t begin = GB_MAX(from - l * s, (int64_t) 0), m = GB_MIN(k, end - l * s) - begin;
        const char * p = gb_row_ptr(a, l, 0, 0) + (size_t) (k * o + begin) * a->nb[0];
        float * y = sum + (l * s + begin - from);
        call->k->add_f32(m, y, y, gb_in(call->k, a, p, m, buf));
        if (gb_cpu_stopped(call, 8 + m)) {
            return;
        }
    }
    gb_store(call->k, node->type, n, gb_row_ptr(node, o, 0, 0) + (size_t) x0 * node->nb[0], node->nb[0], sum);
}

static void run_col2im_1d(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const int64_t runs = gb_div_up(node->ne[0], GB_RUN);
    int64_t first, last;
    gb_cpu_share(call, runs * node->ne[1], &first, &last);
    for (int64_t u = first; u < last; u++) {
        const int64_t x0 = u % runs * GB_RUN;
        fold_run(call, node, u / runs, x0, (int) GB_MIN(node->ne[0] - x0, (int64_t) GB_RUN));
        if (gb_cpu_stopped(call, 1)) {
            return;
        }
    }
}

static const char * col2im_1d_unsupported(const struct ggml_tensor * node) { return gb_need_float(node, 1); }

static int col2im_1d_tasks(const struct ggml_tensor * node, int n_threads) {
    return gb_tasks_for((double) gb_count(node) + (double) gb_count(node->src[0]),
        gb_div_up(node->ne[0], GB_RUN) * node->ne[1], n_threads);
}

const struct gb_cpu_op gb_cpu_op_im2col_3d = {
    .unsupported = im2col_3d_unsupported, .n_tasks = gb_tasks_dst_rows, .run = run_im2col_3d
};
const struct gb_cpu_op gb_cpu_op_col2im_1d = {
    .unsupported = col2im_1d_unsupported, .n_tasks = col2im_1d_tasks, .run = run_col2im_1d
};
