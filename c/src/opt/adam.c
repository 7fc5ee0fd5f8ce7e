// adam.c - AdamW: Adam (Kingma and Ba 2015, algorithm 1) with decoupled weight decay (Loshchilov and
// Hutter 2019, algorithm 2).
//
// opt->iter counts the steps since ggml_opt_init, for the corrections of the moments' bias.
#include <math.h>

#include "opt/opt.h"
#include "tensor/tensor.h"

// Scales the gradient to the largest norm that the user allows.
static void clip(float limit, int64_t n, float * g) {
    const double norm = sqrt(gb_opt_dot(n, g, g));
    if (limit <= 0.0f || norm <= (double) limit) {
        return;
    }
    const float factor = (float) ((double) limit / norm);
    for (int64_t i = 0; i < n; i++) {
        g[i] *= factor;
    }
}

// x -= rate (decay x + m' / (sqrt(v') + eps)), with unbiased moments m' and v'.
static void step(struct gb_problem * p, struct ggml_opt_context * opt) {
    const struct ggml_opt_params * params = &opt->params;
    const double beta1 = (double) params->adam.beta1, beta2 = (double) params->adam.beta2;
    const float rate = params->adam.alpha * p->sched;
    const float unbias1 = (float) (1.0 / (1.0 - pow(beta1, opt->iter)));
    const float unbias2 = (float) (1.0 / (1.0 - pow(beta2, opt->iter)));
    float *g = opt->adam.g->data, *m = opt->adam.m->data, *v = opt->adam.v->data;
    clip(params->adam.gclip, p->nx, g);
    for (size_t k = 0; k < p->params.n; k++) {
        struct ggml_tensor * t = p->params.data[k];
        float * x = t->data;
        const int64_t n = ggml_nelements(t);
        const float decay = ggml_n_dims(t) >= params->adam.decay_min_ndim ? params->adam.decay : 0.0f;
        for (int64_t i = 0; i < n; i++) {
            m[i] += (g[i] - m[i]) * (1.0f - params->adam.beta1);
            v[i] += (g[i] * g[i] - v[i]) * (1.0f - params->adam.beta2);
            x[i] -= rate * (decay * x[i] + m[i] * unbias1 / (sqrtf(v[i] * unbias2) + params->adam.eps));
        }
        g += n, m += n, v += n;
    }
}

enum ggml_opt_result gb_adam_run(struct gb_problem * p, struct ggml_opt_context * opt) {
    const struct gb_past past = { &opt->params, opt->adam.pf, &opt->adam.fx_best, &opt->adam.n_no_improvement };
    float fx;
    enum ggml_opt_result result = gb_problem_evaluate(p, &fx, opt->adam.g->data);
    if (result != GGML_OPT_OK) {
        return result;
    }
    if (!gb_problem_is_finite(p, fx, opt->adam.g->data, opt->iter)) {
        return GGML_OPT_FAIL;
    }
    opt->loss_before = opt->loss_after = opt->adam.fx_prev = fx;
    if (opt->just_initialized) {
        gb_past_begin(&past, fx);
        opt->just_initialized = false;
    }
    for (int i = 0; i < opt->params.adam.n_iter; i++) {
        opt->iter++;
        step(p, opt);
        result = gb_problem_evaluate(p, &fx, opt->adam.g->data);
        if (result != GGML_OPT_OK) {
            return result;
        }
        opt->loss_after = fx;
        if (!gb_problem_is_finite(p, fx, opt->adam.g->data, opt->iter)) {
            return GGML_OPT_FAIL;
        }
        if (fabsf(fx - opt->adam.fx_prev) < opt->params.adam.eps_f * fabsf(fx) ||
            gb_past_converged(&past, opt->iter, fx)) {
            return GGML_OPT_OK;
        }
        opt->adam.fx_prev = fx;
    }
    return GGML_OPT_DID_NOT_CONVERGE;
}
