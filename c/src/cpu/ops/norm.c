// norm.c - NORM, RMS_NORM, L2_NORM, RMS_NORM_BACK, GROUP_NORM.
//
// A row that is not dense f32 is converted into the thread's scratch row, normalized there and
// converted back. Threads share whole rows (GROUP_NORM: whole groups), so one thread computes each
// sum.
//
// NORM: y = (x - mean) / sqrt(variance + eps). RMS_NORM: y = x / sqrt(mean(x^2) + eps). eps is op_params[0].
#include <math.h>

#include "cpu/ops/elements.h"
#include "tensor/numbers.h"

// Source and result may be different float types.
static const char * norm_unsupported(const struct ggml_tensor * node) { return gb_need_float(node, 1); }

static size_t row_work(const struct ggml_tensor * node, int n_tasks) { return gb_floats_size(node->ne[0], n_tasks); }

// ------------------------------------------------------------------------------------------------------ NORM, RMS_NORM

static bool norm_row(const struct gb_cpu_call * call, const struct ggml_tensor * node,
    const struct gb_float_row * row) {
    call->k->norm_row_f32(row->n, row->y, row->x, gb_op_param_f32(node, 0), NULL, NULL);
    return !gb_cpu_stopped(call, 2 * row->n);
}

static bool rms_norm_row(const struct gb_cpu_call * call, const struct ggml_tensor * node,
    const struct gb_float_row * row) {
    call->k->rms_norm_row_f32(row->n, row->y, row->x, gb_op_param_f32(node, 0), NULL);
    return !gb_cpu_stopped(call, 2 * row->n);
}

// y = x / max(length of x, eps)
static bool l2_norm_row(const struct gb_cpu_call * call, const struct ggml_tensor * node,
    const struct gb_float_row * row) {
    const double length = sqrt(call->k->sum_sqr_f32(row->n, row->x));
    const double least = (double) gb_op_param_f32(node, 0);
    call->k->scale_f32(row->n, row->y, row->x, (float) (1.0 / (length < least ? least : length)));
    return !gb_cpu_stopped(call, 2 * row->n);
}

static void run_l2_norm(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    gb_run_row_map(call, node, 1, l2_norm_row);
}

static void run_norm(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    gb_run_row_map(call, node, 1, norm_row);
}

static void run_rms_norm(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    gb_run_row_map(call, node, 1, rms_norm_row);
}

// ------------------------------------------------------------------------------------------------------- RMS_NORM_BACK

// dx = (dy - y sum(y dy) / n) / sqrt(sum(x^2) / n + eps), where y is RMS_NORM of x. src[0] is x, src[1] is dy, the
// gradient of y. Sums of y dy do not overflow for large x, as sums of x dy would.
static bool rms_norm_back_row(const struct gb_cpu_call * call, const struct ggml_tensor * node,
    const struct gb_float_row * row) {
    const int64_t n = row->n;
    const float * x = row->x;
    const float * dy = gb_in(call->k, node->src[1], gb_row_of(node->src[1], row->r), n, row->spare);
    double squares = 0, product = 0;
    float y[GB_RUN];
    for (int64_t i = 0; i < n; i += GB_STRETCH) {
        const int64_t length = GB_MIN(n - i, (int64_t) GB_STRETCH);
        squares += call->k->sum_sqr_f32(length, x + i);
        if (gb_cpu_stopped(call, length)) {
            return false;
        }
    }
    const float scale = (float) (1.0 / sqrt(squares / (double) n + (double) gb_op_param_f32(node, 0)));
    for (int64_t i = 0; i < n; i += GB_RUN) {
        const int64_t length = GB_MIN(n - i, (int64_t) GB_RUN);
        call->k->scale_f32(length, y, x + i, scale);
        product += (double) call->k->dot_f32(length, y, dy + i);
        if (gb_cpu_stopped(call, length)) {
            return false;
        }
    }
    const float along = (float) (-product / (double) n * (double) scale);
    for (int64_t i = 0; i < n; i += GB_RUN) {
        const int64_t length = GB_MIN(n - i, (int64_t) GB_RUN);
        call->k->scale_f32(length, y, x + i, scale);
        call->k->blend_f32(length, row->y + i, y, dy + i, along, scale);
        if (gb_cpu_stopped(call, length)) {
            return false;
        }
    }
    return true;
}

static void run_rms_norm_back(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    gb_run_row_map(call, node, 2, rms_norm_back_row);
}

static const char * rms_norm_back_unsupported(const struct ggml_tensor * node) { return gb_need_float(node, 2); }

// ---------------------------------------------------------------------------------------------------------- GROUP_NORM

// Channels [c0, c1) of batch i3, which are normalized together.
struct group {
    const struct ggml_tensor * a;
    int64_t i3, c0, c1;
};

// The three passes over a group: its sum, its sum of squared deviations, and its normalization into the result.
enum pass { PASS_SUM, PASS_DEVIATION, PASS_APPLY };

// Returns the sum of the pass, in double and in fixed order; 0 for PASS_APPLY.
static double group_pass(const struct gb_cpu_call * call, const struct group * g, enum pass pass,
    struct ggml_tensor * node, float mean, float scale) {
    const struct ggml_tensor * a = g->a;
    float buf[GB_RUN];
    double sum = 0;
    for (int64_t i2 = g->c0; i2 < g->c1; i2++) {
        for (int64_t i1 = 0; i1 < a->ne[1]; i1++) {
            for (int64_t i0 = 0; i0 < a->ne[0]; i0 += GB_RUN) {
                const int64_t n = GB_MIN(a->ne[0] - i0, (int64_t) GB_RUN);
                const float * x = gb_in(call->k, a, gb_row_ptr(a, i1, i2, g->i3) + (size_t) i0 * a->nb[0], n, buf);
                if (pass == PASS_SUM) {
                    sum += call->k->sum_f32(n, x);
                } else if (pass == PASS_DEVIATION) {
                    sum += call->k->sum_sqr_dev_f32(n, x, mean);
                } else {
                    char * p = gb_row_ptr(node, i1, i2, g->i3) + (size_t) i0 * node->nb[0];
                    float * y = gb_out(node, p, n, buf);
                    call->k->norm_apply_f32(n, y, x, mean, scale);
                    gb_put(call->k, node, p, n, y);
                }
                if (gb_cpu_stopped(call, n)) {
                    return sum;
                }
            }
        }
    }
    return sum;
}

// Groups have equal size, except the last. If there are few channels, the last groups may be empty.
static int64_t channels_a_group(const struct ggml_tensor * node) {
    return gb_div_up(node->ne[2], gb_op_param_i32(node, 0));
}

// y = (x - mean) / sqrt(variance + eps) over all elements of a group.
static void run_group_norm(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor * a = node->src[0];
    const int64_t channels = channels_a_group(node);
    const int64_t groups = channels > 0 ? gb_div_up(node->ne[2], channels) : 0; // groups that are not empty
    const float given = gb_op_param_f32(node, 1);
    const double eps = (double) (given != 0 ? given : GB_GROUP_NORM_EPS);
    int64_t first, last;
    gb_cpu_share(call, gb_is_empty(node) ? 0 : groups * node->ne[3], &first, &last);
    for (int64_t u = first; u < last; u++) {
        const int64_t c0 = u % groups * channels;
        const struct group g = { a, u / groups, c0, GB_MIN(c0 + channels, a->ne[2]) };
        const double count = (double) (a->ne[0] * a->ne[1] * (g.c1 - g.c0));
        const float mean = (float) (group_pass(call, &g, PASS_SUM, node, 0, 0) / count);
        const double var = group_pass(call, &g, PASS_DEVIATION, node, mean, 0) / count;
        group_pass(call, &g, PASS_APPLY, node, mean, (float) (1.0 / sqrt(var + eps)));
        if (gb_cpu_stopped(call, 0)) {
            return;
        }
    }
}

static const char * group_norm_unsupported(const struct ggml_tensor * node) {
    return gb_op_param_i32(node, 0) < 1 ? "the number of groups must be positive" : gb_need_float(node, 1);
}

// A group is indivisible, because one thread computes its sums.
static int group_norm_tasks(const struct ggml_tensor * node, int n_threads) {
    return gb_tasks_for((double) gb_count(node), GB_MIN((int64_t) gb_op_param_i32(node, 0), node->ne[2]) * node->ne[3],
        n_threads);
}

const struct gb_cpu_op gb_cpu_op_norm = {
    .unsupported = norm_unsupported, .n_tasks = gb_tasks_dst_rows, .work_size = row_work, .run = run_norm
};
const struct gb_cpu_op gb_cpu_op_rms_norm = {
    .unsupported = norm_unsupported,
    .n_tasks = gb_tasks_dst_rows,
    .work_size = row_work,
    .run = run_rms_norm,
};
const struct gb_cpu_op gb_cpu_op_l2_norm = {
    .unsupported = norm_unsupported, .n_tasks = gb_tasks_dst_rows, .work_size = row_work, .run = run_l2_norm
};
const struct gb_cpu_op gb_cpu_op_rms_norm_back = {
    .unsupported = rms_norm_back_unsupported,
    .n_tasks = gb_tasks_dst_rows,
    .work_size = gb_two_rows_work,
    .run = run_rms_norm_back,
};
const struct gb_cpu_op gb_cpu_op_group_norm = {
    .unsupported = group_norm_unsupported, .n_tasks = group_norm_tasks, .run = run_group_norm
};
