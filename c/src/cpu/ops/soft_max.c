// soft_max.c - SOFT_MAX (scaled and masked, per row; the mask times ALiBi's slope of the head, if there is a bias) and
// its derivative.
//
// A row whose every entry is masked with -inf has no distribution: the result is a row of zeros, which lets padded
// positions of attention contribute nothing. NaN in the input stays NaN.
#include "cpu/ops/elements.h"

// ------------------------------------------------------------------------------------------------------------ SOFT_MAX

// y = softmax(scale x + slope mask) per row, slope 1 without a bias. The mask's rows repeat over all rows of src[0],
// counted through heads. Threads share the rows.
static void run_soft_max(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *mask = node->src[1];
    const int64_t             n       = node->ne[0];
    const float               scale   = gb_op_param_f32(node, 0);
    const float               bias    = gb_op_param_f32(node, 1);
    float *                   scratch = gb_my_floats(call, 2 * n); // row, mask row
    int64_t                   first, last;
    gb_cpu_share(call, n > 0 ? gb_rows(node) : 0, &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(node, i);
        char *              p = gb_row_of(node, r);
        const float *       x = gb_in(call->k, a, gb_row_of(a, r), n, scratch);
        const float * m = mask ? gb_in(call->k, mask, gb_row_ptr(mask, i % mask->ne[1], 0, 0), n, scratch + n) : NULL;
        float *       w = gb_out(node, p, n, scratch);
        if (bias > 0 && m != NULL) {
            call->k->scale_f32(n, scratch + n, m,
                gb_alibi_slope(r.i2, (int) GB_MIN(node->ne[2], (int64_t) INT32_MAX), bias));
            m = scratch + n;
        }
        call->k->soft_max_row_f32(n, w, x, scale, m);
        gb_put(call->k, node, p, n, w);
        if (gb_cpu_stopped(call, 4 * n)) {
            return;
        }
    }
}

// The mask is optional.
static const char * soft_max_unsupported(const struct ggml_tensor * node) {
    return gb_need_float(node, node->src[1] ? 2 : 1);
}

// Two converted rows for each thread; the same for the derivative.
static size_t soft_max_work(const struct ggml_tensor * node, int n_tasks) {
    return gb_floats_size(2 * node->ne[0], n_tasks);
}

// ------------------------------------------------------------------------------------------------------- SOFT_MAX_BACK

// dx = y (dy - sum(y dy)); dy is src[0], y is src[1].
static void run_soft_max_back(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const int64_t             n       = node->ne[0];
    float *                   scratch = gb_my_floats(call, 2 * n);
    int64_t                   first, last;
    gb_cpu_share(call, n > 0 ? gb_rows(node) : 0, &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r   = gb_row_at(node, i);
        char *              p   = gb_row_of(node, r);
        const float *       dy  = gb_in(call->k, a, gb_row_of(a, r), n, scratch);
        const float *       y   = gb_in(call->k, b, gb_row_of(b, r), n, scratch + n);
        float *             dx  = gb_out(node, p, n, scratch);
        const float         dot = call->k->dot_f32(n, y, dy);
        for (int64_t j = 0; j < n; j++) {
            dx[j] = y[j] * (dy[j] - dot);
        }
        gb_put(call->k, node, p, n, dx);
        if (gb_cpu_stopped(call, 4 * n)) {
            return;
        }
    }
}

static const char * soft_max_back_unsupported(const struct ggml_tensor * node) { return gb_need_float(node, 2); }

const struct gb_cpu_op gb_cpu_op_soft_max = {
    .unsupported = soft_max_unsupported,
    .n_tasks     = gb_tasks_dst_rows,
    .work_size   = soft_max_work,
    .run         = run_soft_max,
};
const struct gb_cpu_op gb_cpu_op_soft_max_back = {
    .unsupported = soft_max_back_unsupported,
    .n_tasks     = gb_tasks_dst_rows,
    .work_size   = soft_max_work,
    .run         = run_soft_max_back,
};
