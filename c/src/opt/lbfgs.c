// lbfgs.c - the limited-memory BFGS method (Nocedal and Wright 2006, algorithms 7.4 and 7.5).
//
// The direction d = -H g, where m corrections s = x - xp and y = g - gp approximate the inverse
// Hessian H. They lie in a ring, of which `end` is the next place. The step along d is found by
// backtracking: from 1, it is halved while the loss does not decrease enough, and grows while the
// slope is still too steep (Wolfe conditions, equations 3.6 and 3.7).
#include <float.h>
#include <math.h>

#include "base/status.h"
#include "opt/opt.h"
#include "tensor/tensor.h"

static const float SHRINK = 0.5f, GROW = 2.1f;

struct state { // the data of opt->lbfgs
    int64_t n;
    float *x, *xp, *g, *gp, *d;
    float *alpha, *ys, *s, *y;
};

static struct state state_of(const struct ggml_opt_context * opt) {
    return (struct state){ opt->nx, opt->lbfgs.x->data, opt->lbfgs.xp->data, opt->lbfgs.g->data, opt->lbfgs.gp->data,
        opt->lbfgs.d->data, opt->lbfgs.lmal->data, opt->lbfgs.lmys->data, opt->lbfgs.lms->data, opt->lbfgs.lmy->data };
}

static void add_scaled(int64_t n, float * y, float factor, const float * x) {
    for (int64_t i = 0; i < n; i++) {
        y[i] += factor * x[i];
    }
}

static double norm(int64_t n, const float * x) { return sqrt(gb_opt_dot(n, x, x)); }

// The factor for the next try. 0: the step is good. A step to a loss or slope that is not finite is
// too long.
static float judge(const struct ggml_opt_params * params, float fx, float fx_start, double slope, double slope_start,
    float step) {
    const double highest = (double) fx_start + (double) step * (double) params->lbfgs.ftol * slope_start;
    if (!isfinite(fx) || !isfinite(slope) || !((double) fx <= highest)) {
        return SHRINK;
    }
    if (params->lbfgs.linesearch == GGML_LINESEARCH_BACKTRACKING_ARMIJO) {
        return 0.0f;
    }
    if (slope < (double) params->lbfgs.wolfe * slope_start) {
        return GROW;
    }
    if (params->lbfgs.linesearch == GGML_LINESEARCH_BACKTRACKING_STRONG_WOLFE &&
        slope > -(double) params->lbfgs.wolfe * slope_start) {
        return SHRINK;
    }
    return 0.0f;
}

// Moves from xp along d. On success x, g and *fx are at the new point, and opt->lbfgs.step is the step.
static enum ggml_opt_result search_line(struct gb_problem * p, struct ggml_opt_context * opt, const struct state * at,
    float * fx) {
    const struct ggml_opt_params * params = &opt->params;
    const float fx_start = *fx;
    const double slope_start = gb_opt_dot(at->n, at->g, at->d);
    float * step = &opt->lbfgs.step;
    GB_FAIL_IF_RETURNING(!(*step > 0.0f), GGML_LINESEARCH_INVALID_PARAMETERS, GGML_STATUS_INVALID_STATE,
        "ggml_opt: the step of the line search is %g", (double) *step);
    GB_FAIL_IF_RETURNING(!(slope_start < 0), GGML_LINESEARCH_FAIL, GGML_STATUS_FAILED,
        "ggml_opt: the loss does not decrease along the search direction");
    for (int tries = 0; tries < params->lbfgs.max_linesearch; tries++) {
        memcpy(at->x, at->xp, (size_t) at->n * sizeof(float));
        add_scaled(at->n, at->x, *step, at->d);
        gb_problem_set(p, at->x);
        const enum ggml_opt_result result = gb_problem_evaluate(p, fx, at->g);
        if (result != GGML_OPT_OK) {
            return result;
        }
        const float factor = judge(params, *fx, fx_start, gb_opt_dot(at->n, at->g, at->d), slope_start, *step);
        if (factor == 0.0f) {
            return GGML_OPT_OK;
        }
        *step *= factor;
        GB_FAIL_IF_RETURNING(*step < params->lbfgs.min_step, GGML_LINESEARCH_MINIMUM_STEP, GGML_STATUS_FAILED,
            "ggml_opt: the line search reached the smallest step, %g", (double) params->lbfgs.min_step);
        GB_FAIL_IF_RETURNING(*step > params->lbfgs.max_step, GGML_LINESEARCH_MAXIMUM_STEP, GGML_STATUS_FAILED,
            "ggml_opt: the line search reached the largest step, %g", (double) params->lbfgs.max_step);
    }
    gb_fail(GGML_STATUS_FAILED, "ggml_opt: the line search found no step in %d tries", params->lbfgs.max_linesearch);
    return GGML_LINESEARCH_MAXIMUM_ITERATIONS;
}

// Appends s = x - xp and y = g - gp to the ring, unless the curvature y . s is not positive: then H
// would not be positive definite.
static void remember(struct ggml_opt_context * opt, const struct state * at) {
    const int m = opt->params.lbfgs.m;
    float *s = at->s + opt->lbfgs.end * at->n, *y = at->y + opt->lbfgs.end * at->n;
    for (int64_t i = 0; i < at->n; i++) {
        s[i] = at->x[i] - at->xp[i];
        y[i] = at->g[i] - at->gp[i];
    }
    const double ys = gb_opt_dot(at->n, y, s);
    if (ys > (double) FLT_MIN) {
        at->ys[opt->lbfgs.end] = (float) ys;
        opt->lbfgs.end = (opt->lbfgs.end + 1) % m;
        opt->lbfgs.j = GB_MIN(opt->lbfgs.j + 1, m);
    }
}

// d = -H g by the two loops of algorithm 7.4. opt->lbfgs.j corrections are in the ring.
static void find_direction(struct ggml_opt_context * opt, const struct state * at) {
    const int m = opt->params.lbfgs.m, kept = opt->lbfgs.j;
    for (int64_t i = 0; i < at->n; i++) {
        at->d[i] = -at->g[i];
    }
    for (int i = 1; i <= kept; i++) { // newest first
        const int k = (opt->lbfgs.end - i + m) % m;
        at->alpha[k] = (float) (gb_opt_dot(at->n, at->s + k * at->n, at->d) / (double) at->ys[k]);
        add_scaled(at->n, at->d, -at->alpha[k], at->y + k * at->n);
    }
    if (kept > 0) { // H0 = (s . y) / (y . y), equation 7.20
        const int newest = (opt->lbfgs.end - 1 + m) % m;
        const float * y = at->y + newest * at->n;
        const float scale = (float) ((double) at->ys[newest] / gb_opt_dot(at->n, y, y));
        for (int64_t i = 0; i < at->n; i++) {
            at->d[i] *= scale;
        }
    }
    for (int i = kept; i >= 1; i--) {
        const int k = (opt->lbfgs.end - i + m) % m;
        const double beta = gb_opt_dot(at->n, at->y + k * at->n, at->d) / (double) at->ys[k];
        add_scaled(at->n, at->d, (float) ((double) at->alpha[k] - beta), at->s + k * at->n);
    }
}

static bool is_flat(const struct ggml_opt_context * opt, const struct state * at) {
    return norm(at->n, at->g) <= (double) opt->params.lbfgs.eps * fmax(norm(at->n, at->x), 1.0);
}

// Evaluates the start. Without corrections the direction is the steepest one, with a step of length
// 1. The step is set anew, because an earlier run may have ended with a failed line search.
static enum ggml_opt_result begin(struct gb_problem * p, struct ggml_opt_context * opt, const struct state * at,
    const struct gb_past * past, float * fx) {
    gb_problem_get(p, at->x);
    const enum ggml_opt_result result = gb_problem_evaluate(p, fx, at->g);
    if (result != GGML_OPT_OK) {
        return result;
    }
    if (!gb_problem_is_finite(p, *fx, at->g, opt->iter)) {
        return GGML_OPT_FAIL;
    }
    opt->loss_before = opt->loss_after = *fx;
    if (opt->just_initialized) {
        gb_past_begin(past, *fx);
        opt->lbfgs.j = opt->lbfgs.end = 0;
        opt->lbfgs.k = 1;
        opt->just_initialized = false;
    }
    find_direction(opt, at); // of a resumed run, too: the parameters or the batch may have changed
    opt->lbfgs.step = opt->lbfgs.j > 0 ? 1.0f : (float) (1.0 / fmax(norm(at->n, at->d), (double) FLT_MIN));
    return GGML_OPT_OK;
}

// One iteration. If the line search fails, the parameters are where they were.
static enum ggml_opt_result iterate(struct gb_problem * p, struct ggml_opt_context * opt, const struct state * at,
    float * fx) {
    memcpy(at->xp, at->x, (size_t) at->n * sizeof(float));
    memcpy(at->gp, at->g, (size_t) at->n * sizeof(float));
    const enum ggml_opt_result result = search_line(p, opt, at, fx);
    if (result != GGML_OPT_OK) {
        memcpy(at->x, at->xp, (size_t) at->n * sizeof(float));
        memcpy(at->g, at->gp, (size_t) at->n * sizeof(float));
        gb_problem_set(p, at->x);
        return result;
    }
    opt->loss_after = *fx;
    opt->iter++;
    return GGML_OPT_OK;
}

enum ggml_opt_result gb_lbfgs_run(struct gb_problem * p, struct ggml_opt_context * opt) {
    const struct ggml_opt_params * params = &opt->params;
    GB_FAIL_IF_RETURNING(params->lbfgs.linesearch != GGML_LINESEARCH_BACKTRACKING_ARMIJO &&
                             !(params->lbfgs.ftol < params->lbfgs.wolfe && params->lbfgs.wolfe < 1.0f),
        GGML_OPT_INVALID_WOLFE, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_opt: params.lbfgs.wolfe has to be above ftol (%g) and below 1, is %g", (double) params->lbfgs.ftol,
        (double) params->lbfgs.wolfe);
    GB_FAIL_IF_RETURNING(params->lbfgs.max_linesearch < 1, GGML_LINESEARCH_INVALID_PARAMETERS,
        GGML_STATUS_INVALID_ARGUMENT, "ggml_opt: params.lbfgs.max_linesearch has to be at least 1, is %d",
        params->lbfgs.max_linesearch);
    const struct state at = state_of(opt);
    const struct gb_past past = { params, opt->lbfgs.pf, &opt->lbfgs.fx_best, &opt->lbfgs.n_no_improvement };
    float fx;
    enum ggml_opt_result result = begin(p, opt, &at, &past, &fx);
    if (result != GGML_OPT_OK || is_flat(opt, &at)) {
        return result;
    }
    for (int i = 0; params->lbfgs.n_iter <= 0 || i < params->lbfgs.n_iter; i++) {
        result = iterate(p, opt, &at, &fx);
        if (result != GGML_OPT_OK) {
            return result;
        }
        remember(opt, &at);
        find_direction(opt, &at);
        opt->lbfgs.step = 1.0f;
        if (is_flat(opt, &at) || gb_past_converged(&past, opt->lbfgs.k, fx)) {
            return GGML_OPT_OK;
        }
        opt->lbfgs.k++;
    }
    return GGML_OPT_DID_NOT_CONVERGE;
}
