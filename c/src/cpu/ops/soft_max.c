// soft_max.c - SOFT_MAX (scaled and masked, per row; the mask times ALiBi's slope of the head, if there is a bias) and
// its derivative.
//
// A row whose every entry is masked with -inf has no distribution: the result is a row of zeros, which lets padded
// positions of attention contribute nothing. NaN in the input stays NaN.
#include "cpu/ops/elements.h"

// ------------------------------------------------------------------------------------------------------------ SOFT_MAX

// y = softmax(scale x + slope mask) per row, slope 1 without a bias. The mask's rows repeat over all rows of src[0],
// counted through heads.
static bool soft_max_row(const struct gb_cpu_call * call, const struct ggml_tensor * node,
    const struct gb_float_row * row) {
    const struct ggml_tensor * mask = node->src[1];
    const float scale = gb_op_param_f32(node, 0), bias = gb_op_param_f32(node, 1);
    const int64_t n = row->n;
    const float * m = NULL;
    if (mask != NULL) {
        m = gb_in(call->k, mask, gb_row_ptr(mask, row->i % mask->ne[1], 0, 0), n, row->spare);
    }
    if (bias > 0 && m != NULL) {
        const int n_head = (int) GB_MIN(node->ne[2], (int64_t) INT32_MAX);
        call->k->scale_f32(n, row->spare, m, gb_alibi_slope(row->r.i2, n_head, bias));
        m = row->spare;
    }
    call->k->soft_max_row_f32(n, row->y, row->x, scale, m);
    return !gb_cpu_stopped(call, 4 * n);
}

static void run_soft_max(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    gb_run_row_map(call, node, 2, soft_max_row);
}

// The mask is optional.
static const char * soft_max_unsupported(const struct ggml_tensor * node) {
    return gb_need_float(node, node->src[1] ? 2 : 1);
}

// ------------------------------------------------------------------------------------------------------- SOFT_MAX_BACK

// dx = y (dy - sum(y dy)); dy is src[0], y is src[1].
static bool soft_max_back_row(const struct gb_cpu_call * call, const struct ggml_tensor * node,
    const struct gb_float_row * row) {
    const int64_t n = row->n;
    const float * dy = row->x;
    const float * y = gb_in(call->k, node->src[1], gb_row_of(node->src[1], row->r), n, row->spare);
    const float dot = call->k->dot_f32(n, y, dy);
    for (int64_t j = 0; j < n; j++) {
        row->y[j] = y[j] * (dy[j] - dot);
    }
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
