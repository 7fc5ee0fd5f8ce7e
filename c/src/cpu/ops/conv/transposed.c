// transposed.c - CONV_TRANSPOSE_1D and CONV_TRANSPOSE_2D: chooses the algorithm, and has algorithm spread.
#include "cpu/ops/conv/transposed.h"

#include <stdatomic.h>

struct gb_transposed gb_transposed_of(const struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const int axes = node->op == GGML_OP_CONV_TRANSPOSE_2D ? 2 : 1;
    const int64_t stride = gb_op_param_i32(node, 0);
    return (struct gb_transposed){
        .node = node,
        .axes = axes,
        .stride = { stride, axes == 2 ? stride : 1 },
        .kernel = { a->ne[0], axes == 2 ? a->ne[1] : 1 },
        .in = { b->ne[0], axes == 2 ? b->ne[1] : 1 },
        .out = { node->ne[0], axes == 2 ? node->ne[1] : 1 },
        .ic = b->ne[axes],
        .oc = node->ne[axes],
        .images = axes == 2 ? node->ne[3] : node->ne[2] * node->ne[3],
    };
}

// -------------------------------------------------------------------------------------------------------------- spread

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

// Adds the part of input channel c to the plane of output channel o. False: the run is over. Each
// input row is multiplied by each kernel row, and the products are added to row h stride + k of the
// plane.
static bool add_channel(const struct gb_cpu_call * call, const struct gb_transposed * t, int64_t image, int64_t c,
    int64_t o, float * scratch) {
    const struct ggml_tensor *a = t->node->src[0], *b = t->node->src[1];
    for (int64_t h = 0; h < t->in[1]; h++) {
        const float * x = gb_in(call->k, b, gb_transposed_x(t, image, c, h), t->in[0], scratch + t->kernel[0]);
        for (int64_t k = 0; k < t->kernel[1]; k++) {
            const float * kernel = gb_in(call->k, a, gb_transposed_w(t, c, o, k), t->kernel[0], scratch);
            float * y = gb_transposed_y(t, image, o) + (h * t->stride[1] + k) * t->out[0];
            if (!spread(call, y, x, t->in[0], t->stride[0], kernel, t->kernel[0])) {
                return false;
            }
        }
    }
    return true;
}

// Threads share the planes. A converted kernel row and a converted input row for each thread.
static void run_spread(const struct gb_cpu_call * call, const struct gb_transposed * t) {
    float * scratch = gb_my_floats(call, t->kernel[0] + t->in[0]);
    int64_t first, last;
    gb_cpu_share(call, t->images * t->oc, &first, &last);
    for (int64_t i = first; i < last; i++) {
        const int64_t image = i / t->oc, o = i % t->oc;
        memset(gb_transposed_y(t, image, o), 0, (size_t) (t->out[0] * t->out[1]) * sizeof(float));
        for (int64_t c = 0; c < t->ic; c++) {
            if (!add_channel(call, t, image, c, o, scratch)) {
                return;
            }
        }
    }
}

// -------------------------------------------------------------------------------------------------------------- driver

static atomic_bool prefers_spread = false;

void gb_transposed_prefer_spread(bool prefer) { atomic_store(&prefers_spread, prefer); }

static bool is_woven(const struct gb_transposed * t) {
    return !atomic_load_explicit(&prefers_spread, memory_order_relaxed) && gb_woven_cannot(t) == NULL;
}

static void run(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct gb_transposed t = gb_transposed_of(node);
    if (!gb_is_empty(node)) {
        (is_woven(&t) ? gb_woven_run : run_spread)(call, &t);
    }
}

// Sums are stored in place, so the result must be dense f32.
static const char * unsupported(const struct ggml_tensor * node) {
    const char * why = gb_need_float(node, 2);
    if (why != NULL) {
        return why;
    }
    return node->type == GGML_TYPE_F32 && ggml_is_contiguous(node) ? NULL : "the result must be f32 and contiguous";
}

// ggml_conv_transpose_1d stores padding and dilation, but the operator is defined only without them.
static const char * unsupported_1d(const struct ggml_tensor * node) {
    if (gb_op_param_i32(node, 1) != 0 || gb_op_param_i32(node, 2) != 1) {
        return "padding must be 0 and dilation 1";
    }
    return gb_op_param_i32(node, 0) < 1 ? "the stride must be positive" : unsupported(node);
}

static const char * unsupported_2d(const struct ggml_tensor * node) {
    return gb_op_param_i32(node, 0) < 1 ? "the stride must be positive" : unsupported(node);
}

// The work is the number of multiply-adds: each input value times each weight of an output channel.
static int n_tasks(const struct ggml_tensor * node, int n_threads) {
    const struct gb_transposed t = gb_transposed_of(node);
    const double planes = (double) t.images * (double) t.oc, terms = (double) t.ic * (double) t.kernel[0];
    const double work = planes * terms * (double) t.kernel[1] * (double) t.in[0] * (double) t.in[1];
    const int64_t units = !gb_is_empty(node) && is_woven(&t) ? gb_woven_n_units(&t) : t.images * t.oc;
    return gb_tasks_for(work / 4, units, n_threads);
}

static size_t work_size(const struct ggml_tensor * node, int tasks) {
    const struct gb_transposed t = gb_transposed_of(node);
    return gb_is_empty(node) ? 0
           : is_woven(&t)    ? gb_woven_work_size(&t, tasks)
                             : gb_floats_size(t.kernel[0] + t.in[0], tasks);
}

const struct gb_cpu_op gb_cpu_op_conv_transpose_1d = {
    .unsupported = unsupported_1d, .n_tasks = n_tasks, .work_size = work_size, .run = run
};
const struct gb_cpu_op gb_cpu_op_conv_transpose_2d = {
    .unsupported = unsupported_2d, .n_tasks = n_tasks, .work_size = work_size, .run = run
};
