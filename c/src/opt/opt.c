// opt.c - ggml_opt and its kin: default parameters, the state between calls, graphs of a loss.
#include "base/status.h"
#include "opt/opt.h"
#include "tensor/tensor.h"

enum { POOL_SIZE = 16 * 1024 * 1024 }; // of ggml_opt without a context

struct ggml_opt_params ggml_opt_default_params(enum ggml_opt_type type) {
    struct ggml_opt_params params = {
        .type = type,
        .graph_size = GGML_DEFAULT_GRAPH_SIZE,
        .n_threads = 1,
        .delta = 1e-5f,
        .max_no_improvement = type == GGML_OPT_ADAM ? 100 : 0,
        .print_forward_graph = true,
        .print_backward_graph = true,
        .n_gradient_accumulation = 1,
    };
    params.adam.n_iter = 10000;
    params.adam.sched = 1.0f;
    params.adam.decay_min_ndim = 2;
    params.adam.alpha = 1e-3f;
    params.adam.beta1 = 0.9f;
    params.adam.beta2 = 0.999f;
    params.adam.eps = 1e-8f;
    params.adam.eps_f = 1e-5f;
    params.adam.eps_g = 1e-3f;
    params.lbfgs.m = 6;
    params.lbfgs.n_iter = 100;
    params.lbfgs.max_linesearch = 20;
    params.lbfgs.eps = 1e-5f;
    params.lbfgs.ftol = 1e-4f;
    params.lbfgs.wolfe = 0.9f;
    params.lbfgs.min_step = 1e-20f;
    params.lbfgs.max_step = 1e20f;
    params.lbfgs.linesearch = GGML_LINESEARCH_DEFAULT;
    return params;
}

// --------------------------------------------------------------------------------------------------------------- state

static bool is_beta(float beta) { return beta >= 0.0f && beta < 1.0f; }

static bool check_params(const char * func, const struct ggml_opt_params * params) {
    GB_FAIL_IF_RETURNING(params->type != GGML_OPT_ADAM && params->type != GGML_OPT_LBFGS, false,
        GGML_STATUS_INVALID_ARGUMENT, "%s: params.type: %d is no optimizer", func, (int) params->type);
    GB_FAIL_IF_RETURNING(params->type == GGML_OPT_LBFGS && params->lbfgs.m < 1, false, GGML_STATUS_INVALID_ARGUMENT,
        "%s: params.lbfgs.m has to be at least 1, is %d", func, params->lbfgs.m);
    GB_FAIL_IF_RETURNING(params->type == GGML_OPT_ADAM && !(is_beta(params->adam.beta1) && is_beta(params->adam.beta2)),
        false, GGML_STATUS_INVALID_ARGUMENT,
        "%s: params.adam.beta1 and beta2 have to be at least 0 and below 1, are %g and %g", func,
        (double) params->adam.beta1, (double) params->adam.beta2);
    return true;
}

struct slot { // one tensor of the state, F32
    struct ggml_tensor ** tensor;
    int64_t n, rows; // rows 0: a vector
};

enum { MAX_SLOTS = 10 };

// Lists the tensors that params.type needs for nx elements. Returns their number.
static int list_slots(struct ggml_opt_context * opt, int64_t nx, struct slot slots[MAX_SLOTS]) {
    const int64_t m = opt->params.lbfgs.m, past = opt->params.past;
    int n = 0;
    if (opt->params.type == GGML_OPT_ADAM) {
        slots[n++] = (struct slot){ &opt->adam.g, nx, 0 };
        slots[n++] = (struct slot){ &opt->adam.m, nx, 0 };
        slots[n++] = (struct slot){ &opt->adam.v, nx, 0 };
    } else {
        slots[n++] = (struct slot){ &opt->lbfgs.x, nx, 0 };
        slots[n++] = (struct slot){ &opt->lbfgs.xp, nx, 0 };
        slots[n++] = (struct slot){ &opt->lbfgs.g, nx, 0 };
        slots[n++] = (struct slot){ &opt->lbfgs.gp, nx, 0 };
        slots[n++] = (struct slot){ &opt->lbfgs.d, nx, 0 };
        slots[n++] = (struct slot){ &opt->lbfgs.lmal, m, 0 };
        slots[n++] = (struct slot){ &opt->lbfgs.lmys, m, 0 };
        slots[n++] = (struct slot){ &opt->lbfgs.lms, nx, m };
        slots[n++] = (struct slot){ &opt->lbfgs.lmy, nx, m };
    }
    struct ggml_tensor ** pf = opt->params.type == GGML_OPT_ADAM ? &opt->adam.pf : &opt->lbfgs.pf;
    *pf = past > 0 ? *pf : NULL;
    if (past > 0) {
        slots[n++] = (struct slot){ pf, past, 0 };
    }
    return n;
}

// True if all tensors of the state are there and have the sizes that the parameters now ask for.
static bool has_state(struct ggml_opt_context * opt, int64_t nx) {
    struct slot slots[MAX_SLOTS];
    const int n = list_slots(opt, nx, slots);
    bool fits = opt->nx == nx;
    for (int i = 0; i < n && fits; i++) {
        const struct ggml_tensor * t = *slots[i].tensor;
        fits = t != NULL && t->data != NULL && t->type == GGML_TYPE_F32 && ggml_is_contiguous(t) &&
               ggml_nelements(t) == slots[i].n * (slots[i].rows > 0 ? slots[i].rows : 1);
    }
    return fits;
}

// Allocates the tensors, filled with zeros. False: reported.
static bool new_state(struct ggml_opt_context * opt, int64_t nx, const char * func) {
    struct slot slots[MAX_SLOTS];
    const int n = list_slots(opt, nx, slots);
    for (int i = 0; i < n; i++) {
        struct ggml_tensor * t = slots[i].rows > 0
                                     ? ggml_new_tensor_2d(opt->ctx, GGML_TYPE_F32, slots[i].n, slots[i].rows)
                                     : ggml_new_tensor_1d(opt->ctx, GGML_TYPE_F32, slots[i].n);
        GB_FAIL_IF_RETURNING(t != NULL && t->data == NULL, false, GGML_STATUS_INVALID_ARGUMENT,
            "%s: argument 'ctx': needs to allocate data (no_alloc is set)", func);
        if (t == NULL) {
            return false;
        }
        *slots[i].tensor = ggml_set_zero(t);
    }
    return true;
}

// False: reported, and opt->nx is 0.
static bool init(struct ggml_context * ctx, struct ggml_opt_context * opt, const struct ggml_opt_params * params,
    int64_t nx, const char * func) {
    struct ggml_context * own = NULL;
    *opt = (struct ggml_opt_context){ .params = *params };
    if (!check_params(func, params)) {
        return false;
    }
    GB_FAIL_IF_RETURNING(nx < 0, false, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'nx' is negative", func);
    if (ctx == NULL) {
        ctx = own = ggml_init((struct ggml_init_params){ 0, NULL, false });
    }
    opt->ctx = ctx;
    if (ctx == NULL || (nx > 0 && !new_state(opt, nx, func))) {
        ggml_free(own);
        *opt = (struct ggml_opt_context){ .params = *params, .ctx = own != NULL ? NULL : ctx };
        return false;
    }
    opt->nx = nx;
    opt->just_initialized = true;
    return true;
}

void ggml_opt_init(struct ggml_context * ctx, struct ggml_opt_context * opt, struct ggml_opt_params params,
    int64_t nx) {
    if (opt == NULL) {
        gb_fail_null(__func__, "opt");
        return;
    }
    init(ctx, opt, &params, nx, __func__);
}

// ----------------------------------------------------------------------------------------------------------------- run

// Keeps the state of an earlier call if it fits the problem, or makes a new one.
static bool have_state(struct ggml_opt_context * opt, int64_t nx, const char * func) {
    const struct ggml_opt_params params = opt->params;
    return check_params(func, &params) && (has_state(opt, nx) || init(opt->ctx, opt, &params, nx, func));
}

static enum ggml_opt_result run(struct ggml_opt_context * opt, struct ggml_tensor * f, struct ggml_cgraph * gf,
    struct ggml_cgraph * gb, ggml_opt_callback callback, void * callback_data, const char * func) {
    struct gb_problem problem = { .f = f, .gf = gf, .gb = gb, .callback = callback, .callback_data = callback_data };
    enum ggml_opt_result result = gb_problem_open(&problem, &opt->params);
    if (result != GGML_OPT_OK) {
        return result;
    }
    if (!have_state(opt, problem.nx, func)) {
        gb_problem_close(&problem);
        return GGML_OPT_FAIL;
    }
    result = opt->params.type == GGML_OPT_ADAM ? gb_adam_run(&problem, opt) : gb_lbfgs_run(&problem, opt);
    if (opt->params.print_forward_graph) {
        ggml_graph_print(gf);
    }
    if (opt->params.print_backward_graph) {
        ggml_graph_print(gb);
    }
    gb_problem_close(&problem);
    return result;
}

enum ggml_opt_result ggml_opt_resume_g(struct ggml_context * ctx, struct ggml_opt_context * opt, struct ggml_tensor * f,
    struct ggml_cgraph * gf, struct ggml_cgraph * gb, ggml_opt_callback callback, void * callback_data) {
    GB_CHECK_ARG_RETURNING(opt, GGML_OPT_FAIL);
    GB_CHECK_ARG_RETURNING(f, GGML_OPT_FAIL);
    GB_CHECK_ARG_RETURNING(gf, GGML_OPT_FAIL);
    GB_CHECK_ARG_RETURNING(gb, GGML_OPT_FAIL);
    if (gb_graph_check(gf, "gf", __func__) != GGML_STATUS_SUCCESS ||
        gb_graph_check(gb, "gb", __func__) != GGML_STATUS_SUCCESS) {
        return GGML_OPT_FAIL;
    }
    opt->ctx = opt->ctx != NULL ? opt->ctx : ctx;
    return run(opt, f, gf, gb, callback, callback_data, __func__);
}

static enum ggml_opt_result run_new_graphs(struct ggml_context * ctx, struct ggml_opt_context * opt,
    struct ggml_tensor * f, struct ggml_cgraph * gf) {
    struct ggml_cgraph * gb = ggml_graph_dup(ctx, gf);
    if (gb == NULL || ggml_build_backward_expand(ctx, gf, gb, true) != GGML_STATUS_SUCCESS) {
        return GGML_OPT_FAIL;
    }
    return ggml_opt_resume_g(ctx, opt, f, gf, gb, NULL, NULL);
}

static struct ggml_cgraph * new_forward_graph(struct ggml_context * ctx, size_t size, struct ggml_tensor * f) {
    struct ggml_cgraph * gf = ggml_new_graph_custom(ctx, size, true);
    return gf != NULL && ggml_build_forward_expand(gf, f) == GGML_STATUS_SUCCESS ? gf : NULL;
}

enum ggml_opt_result ggml_opt_resume(struct ggml_context * ctx, struct ggml_opt_context * opt, struct ggml_tensor * f) {
    GB_CHECK_ARG_RETURNING(ctx, GGML_OPT_FAIL);
    GB_CHECK_ARG_RETURNING(opt, GGML_OPT_FAIL);
    GB_CHECK_ARG_RETURNING(f, GGML_OPT_FAIL);
    struct ggml_cgraph * gf = new_forward_graph(ctx, opt->params.graph_size, f);
    return gf != NULL ? run_new_graphs(ctx, opt, f, gf) : GGML_OPT_FAIL;
}

// Runs in a context that is freed afterwards, so the nodes get back the gradients that they had.
static enum ggml_opt_result run_privately(struct ggml_context * ctx, struct ggml_opt_context * opt,
    struct ggml_tensor * f) {
    struct ggml_cgraph * gf = new_forward_graph(ctx, opt->params.graph_size, f);
    struct ggml_tensor ** grads = gf ? gb_calloc((size_t) GB_MAX(gf->n_nodes, 1), sizeof(*grads)) : NULL;
    if (grads == NULL) {
        return GGML_OPT_FAIL;
    }
    for (int i = 0; i < gf->n_nodes; i++) {
        grads[i] = gf->nodes[i]->grad;
    }
    const enum ggml_opt_result result = run_new_graphs(ctx, opt, f, gf);
    for (int i = 0; i < gf->n_nodes; i++) {
        gf->nodes[i]->grad = grads[i];
    }
    gb_free(grads);
    return result;
}

enum ggml_opt_result ggml_opt(struct ggml_context * ctx, struct ggml_opt_params params, struct ggml_tensor * f) {
    GB_CHECK_ARG_RETURNING(f, GGML_OPT_FAIL);
    struct ggml_context * own = ctx == NULL ? ggml_init((struct ggml_init_params){ POOL_SIZE, NULL, false }) : NULL;
    if (ctx == NULL && own == NULL) {
        return GGML_OPT_NO_CONTEXT;
    }
    struct ggml_opt_context opt;
    enum ggml_opt_result result = GGML_OPT_FAIL;
    if (init(own != NULL ? own : ctx, &opt, &params, 0, __func__)) {
        result = own != NULL ? run_privately(own, &opt, f) : ggml_opt_resume(ctx, &opt, f);
    }
    ggml_free(own);
    return result;
}
