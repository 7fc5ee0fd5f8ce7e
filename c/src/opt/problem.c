// problem.c - the function that an optimizer minimizes: losses and gradients by the CPU.
#include <math.h>

#include "base/status.h"
#include "opt/opt.h"
#include "tensor/tensor.h"

// Lists the parameters, which are nodes of gf.
static enum ggml_status list_params(struct gb_problem * p) {
    for (int i = 0; i < p->gf->n_nodes; i++) {
        struct ggml_tensor * t = p->gf->nodes[i];
        if (!t->is_param) {
            continue;
        }
        char text[GB_DESCRIBE_SIZE];
        GB_FAIL_IF(t->type != GGML_TYPE_F32 || !ggml_is_contiguous(t), GGML_STATUS_UNSUPPORTED,
            "ggml_opt: parameter %s: needs contiguous f32", gb_describe(t, text));
        GB_FAIL_IF(t->grad == NULL || t->grad->type != GGML_TYPE_F32 || !ggml_is_contiguous(t->grad) ||
                       !ggml_are_same_shape(t, t->grad),
            GGML_STATUS_INVALID_ARGUMENT, "ggml_opt: parameter %s: has no gradient of its shape", gb_describe(t, text));
        GB_FAIL_IF(t->data == NULL, GGML_STATUS_INVALID_STATE, "ggml_opt: parameter %s: has no memory",
            gb_describe(t, text));
        GB_FAIL_IF(!gb_tensor_is_host(t) || !gb_tensor_is_host(t->grad), GGML_STATUS_UNSUPPORTED,
            "ggml_opt: parameter %s: it or its gradient is not in host memory", gb_describe(t, text));
        if (!gb_vec_push(&p->params, t)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
        p->nx += ggml_nelements(t);
    }
    GB_FAIL_IF(p->nx == 0, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_opt: the loss '%s' depends on no parameter (ggml_set_param)", p->f->name);
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status check_loss(const struct ggml_tensor * f) {
    char text[GB_DESCRIBE_SIZE];
    GB_FAIL_IF(f->type != GGML_TYPE_F32 || ggml_nelements(f) != 1, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_opt: the loss %s: needs to be one f32 number", gb_describe(f, text));
    GB_FAIL_IF(f->grad == NULL, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_opt: the loss %s: depends on no parameter (ggml_set_param)", gb_describe(f, text));
    GB_FAIL_IF(f->data == NULL || f->grad->data == NULL, GGML_STATUS_INVALID_STATE,
        "ggml_opt: the loss %s: it or its gradient has no memory", gb_describe(f, text));
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status open_problem(struct gb_problem * p, const struct ggml_opt_params * params) {
    GB_TRY(check_loss(p->f));
    GB_TRY(list_params(p));
    const uint64_t failures = gb_fail_count();
    p->plan = ggml_graph_plan(p->gb, params->n_threads);
    GB_TRY(gb_status_since(failures));
    if (p->plan.work_size > 0) {
        p->plan.work_data = gb_malloc(p->plan.work_size);
        return p->plan.work_data != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_opt_result gb_problem_open(struct gb_problem * p, const struct ggml_opt_params * params) {
    p->n_accumulation = GB_MAX(params->n_gradient_accumulation, 1);
    p->sched = params->adam.sched;
    if (open_problem(p, params) == GGML_STATUS_SUCCESS) {
        return GGML_OPT_OK;
    }
    gb_problem_close(p);
    return GGML_OPT_FAIL;
}

void gb_problem_close(struct gb_problem * p) {
    gb_vec_free(&p->params);
    gb_free(p->plan.work_data);
    p->plan.work_data = NULL;
}

void gb_problem_get(const struct gb_problem * p, float * x) {
    for (size_t i = 0; i < p->params.n; i++) {
        const int64_t n = ggml_nelements(p->params.data[i]);
        memcpy(x, p->params.data[i]->data, (size_t) n * sizeof(float));
        x += n;
    }
}

void gb_problem_set(const struct gb_problem * p, const float * x) {
    for (size_t i = 0; i < p->params.n; i++) {
        const int64_t n = ggml_nelements(p->params.data[i]);
        memcpy(p->params.data[i]->data, x, (size_t) n * sizeof(float));
        x += n;
    }
}

// g += factor x the parameters' gradients.
static void add_gradients(const struct gb_problem * p, float factor, float * g) {
    for (size_t i = 0; i < p->params.n; i++) {
        const struct ggml_tensor * grad = p->params.data[i]->grad;
        const float * from = grad->data;
        const int64_t n = ggml_nelements(grad);
        for (int64_t k = 0; k < n; k++) {
            g[k] += factor * from[k];
        }
        g += n;
    }
}

static enum ggml_opt_result evaluate_once(struct gb_problem * p, int step) {
    bool cancel = false;
    if (p->callback != NULL) {
        p->callback(p->callback_data, step, &p->sched, &cancel);
    }
    if (cancel) {
        return GGML_OPT_CANCEL;
    }
    if (ggml_graph_reset(p->gf) != GGML_STATUS_SUCCESS || ggml_set_f32(p->f->grad, 1.0f) == NULL ||
        ggml_graph_compute(p->gb, &p->plan) != GGML_STATUS_SUCCESS) {
        return GGML_OPT_FAIL;
    }
    return GGML_OPT_OK;
}

enum ggml_opt_result gb_problem_evaluate(struct gb_problem * p, float * fx, float * g) {
    const float factor = 1.0f / (float) p->n_accumulation;
    double sum = 0;
    memset(g, 0, (size_t) p->nx * sizeof(*g));
    for (int step = 0; step < p->n_accumulation; step++) {
        const enum ggml_opt_result result = evaluate_once(p, step);
        if (result != GGML_OPT_OK) {
            return result;
        }
        add_gradients(p, factor, g);
        sum += (double) ggml_get_f32_1d(p->f, 0);
    }
    *fx = (float) (sum / p->n_accumulation);
    return GGML_OPT_OK;
}

bool gb_problem_is_finite(const struct gb_problem * p, float fx, const float * g, int iter) {
    GB_FAIL_IF_RETURNING(!isfinite(fx), false, GGML_STATUS_FAILED, "ggml_opt: the loss '%s' is %g at iteration %d",
        p->f->name, (double) fx, iter);
    for (size_t i = 0; i < p->params.n; i++) {
        const int64_t n = ggml_nelements(p->params.data[i]);
        for (int64_t k = 0; k < n; k++) {
            char text[GB_DESCRIBE_SIZE];
            GB_FAIL_IF_RETURNING(!isfinite(g[k]), false, GGML_STATUS_FAILED,
                "ggml_opt: the gradient of parameter %s is %g in element %lld at iteration %d",
                gb_describe(p->params.data[i], text), (double) g[k], (long long) k, iter);
        }
        g += n;
    }
    return true;
}

double gb_opt_dot(int64_t n, const float * a, const float * b) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double) a[i] * (double) b[i];
    }
    return sum;
}

void gb_past_begin(const struct gb_past * past, float fx) {
    if (past->pf != NULL) {
        ((float *) past->pf->data)[0] = fx;
    }
    *past->best = fx;
    *past->n_no_improvement = 0;
}

bool gb_past_converged(const struct gb_past * past, int iter, float fx) {
    const struct ggml_opt_params * params = past->params;
    if (past->pf != NULL) {
        float * slot = (float *) past->pf->data + iter % params->past;
        if (iter >= params->past && fabsf(*slot - fx) < params->delta * fabsf(fx)) {
            return true;
        }
        *slot = fx;
    }
    if (params->max_no_improvement <= 0) {
        return false;
    }
    *past->n_no_improvement = fx < *past->best ? 0 : *past->n_no_improvement + 1;
    *past->best = fx < *past->best ? fx : *past->best;
    return *past->n_no_improvement >= params->max_no_improvement;
}
