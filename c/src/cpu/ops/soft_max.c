// soft_max.c - SOFT_MAX (of scaled rows with a mask, ALiBi's slope of the head, and a sink) and its
// derivative.
//
// A row that is masked completely with -inf has no distribution. Its result is zeros, so padded
// positions of attention contribute nothing. NaN in the input stays NaN.
#include <math.h>

#include "cpu/ops/elements.h"

// ------------------------------------------------------------------------------------------------------------ SOFT_MAX

// The row of the mask. Its rows repeat, or it has at least as many rows as the node. Heads and
// batches repeat.
static const char * mask_row(const struct ggml_tensor * mask, struct gb_row r) {
    return gb_row_ptr(mask, r.i1 % mask->ne[1], r.i2 % mask->ne[2], r.i3 % mask->ne[3]);
}

// y = exp(scale x + m - top) over the sum of all exponentials and that of the sink. `top` is the
// largest logit.
static void soft_max_with_sink(const struct gb_cpu_call * call, int64_t n, float * y, const float * x, float scale,
    const float * m, float sink) {
    call->k->scale_mask_f32(n, y, x, scale, m);
    const float most = call->k->max_f32(n, y), top = sink > most ? sink : most;
    if (top == -INFINITY) {
        memset(y, 0, (size_t) n * sizeof(float));
        return;
    }
    if (isnan(top) || isnan(sink) || top == INFINITY) {
        for (int64_t i = 0; i < n; i++) {
            y[i] = NAN;
        }
        return;
    }
    const double sum = call->k->exp_sum_f32(n, y, y, top, GB_EXP_LEAST) + exp((double) sink - (double) top);
    call->k->scale_f32(n, y, y, (float) (1.0 / sum));
}

// y = softmax(scale x + slope mask) per row, slope 1 without a bias.
static bool soft_max_row(const struct gb_cpu_call * call, const struct ggml_tensor * node,
    const struct gb_float_row * row) {
    const struct ggml_tensor *mask = node->src[1], *sinks = node->src[2];
    const float scale = gb_op_param_f32(node, 0), bias = gb_op_param_f32(node, 1);
    const int64_t n = row->n;
    const float * m = NULL;
    if (mask != NULL) {
        m = gb_in(call->k, mask, mask_row(mask, row->r), n, row->spare);
    }
    if (bias > 0 && m != NULL) {
        const int n_head = (int) GB_MIN(node->ne[2], (int64_t) INT32_MAX);
        call->k->scale_f32(n, row->spare, m, gb_alibi_slope(row->r.i2, n_head, bias));
        m = row->spare;
    }
    if (sinks != NULL) {
        const float sink = gb_get_f32((const char *) sinks->data + (size_t) row->r.i2 * sinks->nb[0]);
        soft_max_with_sink(call, n, row->y, row->x, scale, m, sink);
    } else {
        call->k->soft_max_row_f32(n, row->y, row->x, scale, m);
    }
    return !gb_cpu_stopped(call, 4 * n);
}

static void run_soft_max(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    gb_run_row_map(call, node, 2, soft_max_row);
}

// The mask and the sinks are optional.
static const char * soft_max_unsupported(const struct ggml_tensor * node) {
    if (node->src[2] != NULL && node->src[2]->type != GGML_TYPE_F32) {
        return "source 2 must be f32";
    }
    return gb_need_float(node, node->src[1] ? 2 : 1);
}

// ------------------------------------------------------------------------------------------------------- SOFT_MAX_BACK

// dx = y (dy - sum(y dy)); dy is src[0], y is src[1].
static bool soft_max_back_row(const struct gb_cpu_call * call, const struct ggml_tensor * node,
    const struct gb_float_row * row) {
    const int64_t n = row->n;
    const float * dy = row->x;
    const float * y = gb_in(call->k, node->src[1], gb_row_of(node->src[1], row->r), n, row->spare);
    call->k->soft_max_back_row_f32(n, row->y, y, dy);
    return !gb_cpu_stopped(call, 4 * n);
}

static void run_soft_max_back(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    gb_run_row_map(call, node, 2, soft_max_back_row);
}

static const char * soft_max_back_unsupported(const struct ggml_tensor * node) { return gb_need_float(node, 2); }

const struct gb_cpu_op gb_cpu_op_soft_max = {
    .unsupported = soft_max_unsupported,
    .n_tasks = gb_tasks_dst_rows,
    .work_size = gb_two_rows_work,
    .run = run_soft_max,
};
const struct gb_cpu_op gb_cpu_op_soft_max_back = {
    .unsupported = soft_max_back_unsupported,
    .n_tasks = gb_tasks_dst_rows,
    .work_size = gb_two_rows_work,
    .run = run_soft_max_back,
};
