// loss.c - CROSS_ENTROPY_LOSS between softmax(src[0]) and the distribution src[1], and its derivative.
//
// Probabilities are kept away from 0: p = softmax (1 - EPS) + EPS, and the derivative takes p for softmax and each row of the
// distribution for one whose sum is 1; so do programs of early 2024. Where an eps was given (op_params, ops_loss.c), it stands for EPS, 0
// times the logarithm of 0 is 0, and the derivative is that of the loss, whatever the rows' sums.
#include <math.h>

#include "cpu/ops/elements.h"

#define EPS 1e-9f

// p = softmax(x) (1 - EPS) + EPS; p may be x.
static void probabilities(const struct gb_kernels * k, int64_t n, float * p, const float * x) {
    const double sum = k->exp_sum_f32(n, p, x, k->max_f32(n, x));
    k->scale_f32(n, p, p, (float) ((1.0 - (double) EPS) / sum));
    k->add1_f32(n, p, p, EPS);
}

static const char * loss_unsupported(const struct ggml_tensor * node) {
    return gb_need_float(node, 2);
}

struct given { // what op_params say
    bool   eps_is_given;
    double eps;
};

static struct given given_of(const struct ggml_tensor * node) {
    return (struct given){ gb_op_param_i32(node, 0) != 0, (double) gb_op_param_f32(node, 1) };
}

// Work: one number a row, then 3 rows for each thread.
static size_t totals_size(const struct ggml_tensor * node) {
    return gb_lines((size_t) gb_rows(node->src[0]) * sizeof(double));
}

static size_t loss_work(const struct ggml_tensor * node, int n_tasks) {
    return totals_size(node) + gb_floats_size(3 * node->src[0]->ne[0], n_tasks);
}

// -------------------------------------------------------------------------------------------------- CROSS_ENTROPY_LOSS

// e: n floats for exponentials
static double loss_row_given(const struct gb_kernels * k, int64_t n, float * e, const float * x, const float * target, double eps) {
    const float  max = k->max_f32(n, x);
    const double sum = k->exp_sum_f32(n, e, x, max), log_sum = log(sum);
    double       total = 0;
    for (int64_t i = 0; i < n; i++) {
        if (target[i] != 0) {
            const double log_p = eps == 0 ? (double) x[i] - (double) max - log_sum : log((double) e[i] / sum * (1.0 - eps) + eps);
            total += (double) target[i] * log_p;
        }
    }
    return total;
}

static double loss_row(const struct gb_kernels * k, int64_t n, float * scratch, const float * x, const float * target) {
    double sum = 0;
    probabilities(k, n, scratch, x);
    k->log_f32(n, scratch, scratch);
    for (int64_t i = 0; i < n; i++) {
        sum += (double) target[i] * (double) scratch[i];
    }
    return sum;
}

static void run_cross_entropy_loss(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const int64_t             n = a->ne[0], rows = n > 0 ? gb_rows(a) : 0;
    const struct given        given = given_of(node);
    struct gb_cpu_call        behind = *call; // the part of work that is for threads
    behind.work                      = (char *) call->work + totals_size(node);
    double * totals                  = call->work;
    float *  scratch                 = gb_my_floats(&behind, 3 * n);
    int64_t  first, last;
    gb_cpu_share(call, rows, &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(a, i);
        const float *       x = gb_in(call->k, a, gb_row_of(a, r), n, scratch);
        const float *       t = gb_in(call->k, b, gb_row_of(b, r), n, scratch + n);
        totals[i] = given.eps_is_given ? loss_row_given(call->k, n, scratch + 2 * n, x, t, given.eps) : loss_row(call->k, n, scratch, x, t);
        if (gb_cpu_stopped(call, 8 * n)) {
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

// With s = softmax and p = s (1 - eps) + eps: -(1 - eps) s (b / p - sum(s b / p)) c / rows, which is (s sum(b) - b) c / rows for eps 0.
static void back_row_given(const struct gb_kernels * k, int64_t n, float * y, const float * x, const float * target, double eps, double scale) {
    const double sum = k->exp_sum_f32(n, y, x, k->max_f32(n, x));
    double       all = 0;
    for (int64_t i = 0; i < n; i++) {
        const double s = (double) y[i] / sum;
        all += eps == 0 ? (double) target[i] : s * (double) target[i] / (s * (1.0 - eps) + eps);
    }
    for (int64_t i = 0; i < n; i++) {
        const double s = (double) y[i] / sum, t = (double) target[i];
        y[i] = (float) (scale * (eps == 0 ? s * all - t : (1.0 - eps) * s * (all - t / (s * (1.0 - eps) + eps))));
    }
}

// dst = (p - b) c / rows, c the gradient from above.
static void run_cross_entropy_loss_back(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1], *c = node->src[2];
    const int64_t             n       = a->ne[0];
    const struct given        given   = given_of(node);
    const float               scale   = gb_get(c->type, c->data) / (float) gb_rows(a);
    float *                   scratch = gb_my_floats(call, 2 * n);
    int64_t                   first, last;
    gb_cpu_share(call, n > 0 ? gb_rows(a) : 0, &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(node, i);
        const float *       x = gb_in(call->k, a, gb_row_of(a, r), n, scratch);
        const float *       t = gb_in(call->k, b, gb_row_of(b, r), n, scratch + n);
        if (given.eps_is_given) {
            back_row_given(call->k, n, scratch, x, t, given.eps, (double) scale);
        } else {
            probabilities(call->k, n, scratch, x);
            call->k->sub_f32(n, scratch, scratch, t);
            call->k->scale_f32(n, scratch, scratch, scale);
        }
        gb_store(call->k, node->type, n, gb_row_of(node, r), node->nb[0], scratch);
        if (gb_cpu_stopped(call, 8 * n)) {
            return;
        }
    }
}

static const char * loss_back_unsupported(const struct ggml_tensor * node) {
    return gb_need_float(node, 3);
}

static size_t loss_back_work(const struct ggml_tensor * node, int n_tasks) {
    return gb_floats_size(2 * node->ne[0], n_tasks);
}

const struct gb_cpu_op gb_cpu_op_cross_entropy_loss = {
    .unsupported = loss_unsupported,
    .n_tasks     = gb_tasks_src_rows,
    .work_size   = loss_work,
    .run         = run_cross_entropy_loss,
};
const struct gb_cpu_op gb_cpu_op_cross_entropy_loss_back = {
    .unsupported = loss_back_unsupported,
    .n_tasks     = gb_tasks_src_rows,
    .work_size   = loss_back_work,
    .run         = run_cross_entropy_loss_back,
};
