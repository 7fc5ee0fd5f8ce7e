// conv_nodes.c - the convolution of a CONV_2D, CONV_2D_DW or CONV_3D node, and of an IM2COL with
// its product.
#include "cpu/ops/conv/conv.h"
#include "tensor/conv_params.h"

static struct gb_conv_axis axis_of(int64_t in, int64_t kernel, int64_t out, int64_t stride, int64_t pad,
    int64_t dilation) {
    return (struct gb_conv_axis){ in, kernel, out, stride, pad, dilation };
}

// Axis d of a node whose parameters are strides, paddings and dilations of n axes.
static struct gb_conv_axis axis_of_node(const struct ggml_tensor * node, int d, int n) {
    return axis_of(node->src[1]->ne[d], node->src[0]->ne[d], node->ne[d], gb_op_param_i32(node, d),
        gb_op_param_i32(node, n + d), gb_op_param_i32(node, 2 * n + d));
}

struct gb_conv_job gb_conv_job_of(const struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const int axes = node->op == GGML_OP_CONV_3D ? 3 : 2;
    const struct gb_conv_channels c = gb_conv_channels_of(node);
    struct gb_conv_job j = {
        .axis = { axis_of_node(node, 0, axes), axis_of_node(node, 1, axes), axis_of(1, 1, 1, 1, 0, 1) },
        .batches = c.batches,
        .groups = c.groups,
        .ic = c.in / c.groups,
        .oc = c.out / c.groups,
        .x = b->data,
        .x_type = b->type,
        .x_nb = { b->nb[0], b->nb[1], axes == 3 ? b->nb[2] : 0 },
        .x_channel = b->nb[axes],
        .x_batch = axes == 3 ? b->nb[3] * (size_t) c.in : b->nb[3],
        .w = a->data,
        .w_type = a->type,
        .y = node->data,
    };
    if (axes == 3) {
        j.axis[2] = axis_of_node(node, 2, axes);
    }
    j.y_channel = gb_conv_positions(&j);
    j.y_batch = j.y_channel * c.out;
    return j;
}

// IM2COL has positions of images as rows, so the product of n images has memory [positions, images, channels].
struct gb_conv_job gb_conv_job_of_columns(const struct ggml_tensor * columns, const struct ggml_tensor * product,
    const struct ggml_tensor * kernel) {
    const struct ggml_tensor *a = columns->src[0], *b = columns->src[1];
    const int32_t * p = columns->op_params; // s0, s1, p0, p1, d0, d1, is_2d
    const bool is_2d = p[6] == 1;
    struct gb_conv_job j = {
        .axis = { axis_of(b->ne[0], a->ne[0], columns->ne[1], p[0], p[2], p[4]), axis_of(1, 1, 1, 1, 0, 1),
            axis_of(1, 1, 1, 1, 0, 1) },
        .batches = is_2d ? b->ne[3] : b->ne[2],
        .groups = 1,
        .ic = is_2d ? b->ne[2] : b->ne[1],
        .x = b->data,
        .x_type = b->type,
        .x_nb = { b->nb[0], is_2d ? b->nb[1] : 0, 0 },
        .x_channel = is_2d ? b->nb[2] : b->nb[1],
        .x_batch = is_2d ? b->nb[3] : b->nb[2],
        .rounds = columns->type == GGML_TYPE_F16 && b->type != GGML_TYPE_F16,
        .w = kernel->data,
        .w_type = kernel->type,
        .y = product->data,
    };
    if (is_2d) {
        j.axis[1] = axis_of(b->ne[1], a->ne[1], columns->ne[2], p[1], p[3], p[5]);
    }
    j.y_batch = gb_conv_positions(&j);
    j.oc = gb_count(kernel) / gb_conv_terms(&j);
    j.y_channel = j.y_batch * j.batches;
    return j;
}

static void run(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct gb_conv_job j = gb_conv_job_of(node);
    gb_conv_run(call, &j);
}

static int n_tasks(const struct ggml_tensor * node, int n_threads) {
    const struct gb_conv_job j = gb_conv_job_of(node);
    return gb_conv_n_tasks(&j, n_threads);
}

static size_t work_size(const struct ggml_tensor * node, int tasks) {
    const struct gb_conv_job j = gb_conv_job_of(node);
    return gb_conv_work_size(&j, tasks);
}

static const char * unsupported(const struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    if (a->type != GGML_TYPE_F32 && a->type != GGML_TYPE_F16) {
        return "type of src[0] must be f32 or f16";
    }
    if (!gb_is_float(b->type)) {
        return "type of src[1] must be f32, f16 or bf16";
    }
    if (node->type != GGML_TYPE_F32 || !ggml_is_contiguous(node)) {
        return "the result must be f32 and contiguous";
    }
    return ggml_is_contiguous(a) ? NULL : "src[0] must be contiguous";
}

const struct gb_cpu_op gb_cpu_op_conv_2d = {
    .unsupported = unsupported, .n_tasks = n_tasks, .work_size = work_size, .run = run
};
const struct gb_cpu_op gb_cpu_op_conv_2d_dw = {
    .unsupported = unsupported, .n_tasks = n_tasks, .work_size = work_size, .run = run
};
const struct gb_cpu_op gb_cpu_op_conv_3d = {
    .unsupported = unsupported, .n_tasks = n_tasks, .work_size = work_size, .run = run
};
