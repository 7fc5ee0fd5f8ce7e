// loss.c - CROSS_ENTROPY_LOSS between softmax(src[0]) and the distribution src[1], and its
// derivative.
//
// Probabilities are kept above 0: p = softmax (1 - EPS) + EPS. As in early 2024, the derivative
// uses p instead of softmax, and assumes that each row of the distribution sums to 1. A given eps
// (op_params, ops_loss.c) replaces EPS. 0 log 0 is then 0, and the derivative is exact for rows of
// any sum.
#include <math.h>

#include "cpu/ops/elements.h"

#define EPS 1e-9f

// e = exp(x - max). Returns the sum of e. e may be x. Stops early if the run is over.
static double exponentials(const struct gb_cpu_call * call, int64_t n, float * e, const float * x, float * max) {
    double sum = 0;
    *max = -INFINITY;
    for (int64_t i = 0; i < n; i += GB_STRETCH) {
        const float largest = call->k->max_f32(GB_MIN(n - i, (int64_t) GB_STRETCH), x + i);
        *max = largest > *max || isnan(largest) ? largest : *max;
    }
    for (int64_t i = 0; i < n; i += GB_STRETCH) {
        const int64_t length = GB_MIN(n - i, (int64_t) GB_STRETCH);
        sum += call->k->exp_sum_f32(length, e + i, x + i, *max, GB_EXP_LEAST);
        if (gb_cpu_stopped(call, 2 * length)) {
            break;
        }
    }
    return sum;
}

// Converts exponentials with the sum `sum` to p = softmax (1 - EPS) + EPS. The addition comes
// first, so that no product is subnormal.
static void probabilities(const struct gb_kernels * k, int64_t n, float * p, double sum) {
    const double share = (1.0 - (double) EPS) / sum;
    k->norm_apply_f32(n, p, p, (float) (-(double) EPS / share), (float) share);
}

static const char * loss_unsupported(const struct ggml_tensor * node) { return gb_need_float(node, 2); }

struct given { // decoded op_params
    bool eps_is_given;
    double eps;
};

// op_params: whether an eps was given, and the eps.
static struct given given_of(const struct ggml_tensor * node) {
    return (struct given){ gb_op_param_i32(node, 0) != 0, (double) gb_op_param_f32(node, 1) };
}

// Work memory: one number for each row, then 3 rows for each thread.
static size_t totals_size(const struct ggml_tensor * node) {
    return gb_lines((size_t) gb_rows(node->src[0]) * sizeof(double));
}

static size_t loss_work(const struct ggml_tensor * node, int n_tasks) {
    return totals_size(node) + gb_floats_size(3 * node->src[0]->ne[0], n_tasks);
}

// -------------------------------------------------------------------------------------------------- CROSS_ENTROPY_LOSS

// The sum of target log(p) of one row. e: n floats, which may be x unless an eps was given. Stops
// early if the run is over.
static double loss_row(const struct gb_cpu_call * call, int64_t n, float * e, const float * x, const float * target,
    const struct given * given) {
    float max;
    const double sum = exponentials(call, n, e, x, &max), log_sum = log(sum), eps = given->eps;
    double total = 0;
    for (int64_t i = 0; i < n;) {
        const int64_t end = GB_MIN(n, i + GB_STRETCH), length = end - i;
        if (given->eps_is_given) {
            for (; i < end; i++) {
                if (target[i] != 0) {
                    const double log_p = eps == 0 ? (double) x[i] - (double) max - log_sum
                                                  : log((double) e[i] / sum * (1.0 - eps) + eps);
                    total += (double) target[i] * log_p;
                }
            }
        } else {
            probabilities(call->k, length, e + i, sum);
            call->k->log_f32(length, e + i, e + i);
            for (; i < end; i++) {
                total += (double) target[i] * (double) e[i];
            }
        }
        if (gb_cpu_stopped(call, 8 * length)) {
            break;
        }
    }
    return total;
}

// loss = -sum over rows and classes of b log(p) / rows. Each row has a separate sum. The first
// thread adds these sums in order, so the result does not depend on the number of threads.
static void run_cross_entropy_loss(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const int64_t n = a->ne[0], rows = n > 0 ? gb_rows(a) : 0;
    const struct given given = given_of(node);
    struct gb_cpu_call behind = *call; // with the threads' part of the work memory
    behind.work = (char *) call->work + totals_size(node);
    double * totals = call->work;
    float * scratch = gb_my_floats(&behind, 3 * n);
    int64_t first, last;
    gb_cpu_share(call, rows, &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(a, i);
        const float * x = gb_in(call->k, a, gb_row_of(a, r), n, scratch);
        const float * t = gb_in(call->k, b, gb_row_of(b, r), n, scratch + n);
        totals[i] = loss_row(call, n, given.eps_is_given ? scratch + 2 * n : scratch, x, t, &given);
        if (gb_cpu_stopped(call, 0)) {
            break;
        }
    }
    if (gb_cpu_barrier(call) && call->ith == 0) {
        double sum = 0;
        for (int64_t i = 0; i < rows; i++) {
            sum += totals[i];
        }
        gb_set(node->type, node->data, rows > 0 ? (float) (-sum / (double) rows) : 0.0f);
    }
}

// --------------------------------------------------------------------------------------------- CROSS_ENTROPY_LOSS_BACK

// With s = softmax and p = s (1 - eps) + eps, computes -(1 - eps) s (b / p - sum(s b / p)) c /
// rows. For eps 0 that is (s sum(b) - b) c / rows. y: exponentials that add up to `sum`. False: the
// run is over.
static bool back_row_given(const struct gb_cpu_call * call, int64_t n, float * y, const float * target, double sum,
    double eps, double scale) {
    double all = 0;
    for (int64_t i = 0; i < n;) {
        const int64_t end = GB_MIN(n, i + GB_STRETCH), length = end - i;
        for (; i < end; i++) {
            const double s = (double) y[i] / sum;
            all += eps == 0 ? (double) target[i] : s * (double) target[i] / (s * (1.0 - eps) + eps);
        }
        if (gb_cpu_stopped(call, 4 * length)) {
            return false;
        }
    }
    for (int64_t i = 0; i < n;) {
        const int64_t end = GB_MIN(n, i + GB_STRETCH), length = end - i;
        for (; i < end; i++) {
            const double s = (double) y[i] / sum, t = (double) target[i];
            y[i] = (float) (scale * (eps == 0 ? s * all - t : (1.0 - eps) * s * (all - t / (s * (1.0 - eps) + eps))));
        }
        if (gb_cpu_stopped(call, 4 * length)) {
            return false;
        }
    }
    return true;
}

// The same for the default: (p - b) c / rows.
static bool back_row(const struct gb_cpu_call * call, int64_t n, float * y, const float * target, double sum,
    float scale) {
    for (int64_t i = 0; i < n; i += GB_STRETCH) {
        const int64_t length = GB_MIN(n - i, (int64_t) GB_STRETCH);
        probabilities(call->k, length, y + i, sum);
        call->k->sub_f32(length, y + i, y + i, target + i);
        call->k->scale_f32(length, y + i, y + i, scale);
        if (gb_cpu_stopped(call, 2 * length)) {
            return false;
        }
    }
    return true;
}

// src[2] is the gradient of the loss, one number. Threads share the rows, which are independent.
static void run_cross_entropy_loss_back(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1], *c = node->src[2];
    const int64_t n = a->ne[0];
    const struct given given = given_of(node);
    const float scale = gb_get(c->type, c->data) / (float) gb_rows(a);
    float * scratch = gb_my_floats(call, 2 * n);
    int64_t first, last;
    gb_cpu_share(call, n > 0 ? gb_rows(a) : 0, &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(node, i);
        const float * x = gb_in(call->k, a, gb_row_of(a, r), n, scratch);
        const float * t = gb_in(call->k, b, gb_row_of(b, r), n, scratch + n);
        float max;
        const double sum = exponentials(call, n, scratch, x, &max);
        if (!(given.eps_is_given ? back_row_given(call, n, scratch, t, sum, given.eps, (double) scale)
                                 : back_row(call, n, scratch, t, sum, scale))) {
            return;
        }
        gb_store(call->k, node->type, n, gb_row_of(node, r), node->nb[0], scratch);
    }
}

static const char * loss_back_unsupported(const struct ggml_tensor * node) { return gb_need_float(node, 3); }

// Work memory of a thread: the row itself, which becomes the result, and a converted row of the
// distribution.
static size_t loss_back_work(const struct ggml_tensor * node, int n_tasks) {
    return gb_floats_size(2 * node->ne[0], n_tasks);
}

const struct gb_cpu_op gb_cpu_op_cross_entropy_loss = {
    .unsupported = loss_unsupported,
    .n_tasks = gb_tasks_src_rows,
    .work_size = loss_work,
    .run = run_cross_entropy_loss,
};
const struct gb_cpu_op gb_cpu_op_cross_entropy_loss_back = {
    .unsupported = loss_back_unsupported,
    .n_tasks = gb_tasks_src_rows,
    .work_size = loss_back_work,
    .run = run_cross_entropy_loss_back,
};
