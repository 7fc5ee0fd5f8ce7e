// test_compat_opt.c - programs of early 2024 that optimize: a regression, a valley, a small
// network, a small Llama on synthetic text. Oracles are minima known on paper, and AdamW in double.
#include "test.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

static struct ggml_context * own(size_t mebibytes) {
    return ggml_init((struct ggml_init_params){ mebibytes << 20, NULL, false });
}

static struct ggml_opt_params quiet(enum ggml_opt_type type) {
    struct ggml_opt_params params = ggml_opt_default_params(type);
    params.print_forward_graph = false;
    params.print_backward_graph = false;
    return params;
}

static struct ggml_tensor * param(struct ggml_context * ctx, int64_t n0, int64_t n1, float low, float high) {
    struct ggml_tensor * t = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n0, n1);
    for (int64_t i = 0; i < n0 * n1; i++) {
        ggml_set_f32_1d(t, (int) i, test_random_float(low, high));
    }
    ggml_set_param(ctx, t);
    return t;
}

static void defaults(void) {
    const struct ggml_opt_params adam = ggml_opt_default_params(GGML_OPT_ADAM);
    CHECK(adam.type == GGML_OPT_ADAM && adam.graph_size == GGML_DEFAULT_GRAPH_SIZE && adam.n_threads == 1);
    CHECK(adam.adam.alpha == 1e-3f && adam.adam.n_iter == 10000 && adam.max_no_improvement == 100);
    CHECK(adam.print_forward_graph && adam.print_backward_graph && adam.n_gradient_accumulation == 1);
    const struct ggml_opt_params lbfgs = ggml_opt_default_params(GGML_OPT_LBFGS);
    CHECK(lbfgs.lbfgs.m == 6 && lbfgs.lbfgs.n_iter == 100 && lbfgs.max_no_improvement == 0);
    CHECK(lbfgs.lbfgs.linesearch == GGML_LINESEARCH_BACKTRACKING_WOLFE && lbfgs.past == 0);
}

// ---------------------------------------------------------------------------------------------------------- regression

enum { N_POINTS = 32 };

struct line { // y = slope x + offset, without noise
    struct ggml_context * ctx;
    struct ggml_tensor * w; // slope, offset
    struct ggml_tensor * loss;
    float x[N_POINTS], y[N_POINTS];
};

static void line_new(struct line * l) {
    l->ctx = own(16);
    struct ggml_tensor * x = ggml_new_tensor_2d(l->ctx, GGML_TYPE_F32, 2, N_POINTS);
    struct ggml_tensor * y = ggml_new_tensor_2d(l->ctx, GGML_TYPE_F32, 1, N_POINTS);
    for (int i = 0; i < N_POINTS; i++) {
        l->x[i] = test_random_float(-1, 1);
        l->y[i] = 1.5f * l->x[i] - 0.25f;
        ggml_set_f32_1d(x, 2 * i, l->x[i]);
        ggml_set_f32_1d(x, 2 * i + 1, 1.0f);
        ggml_set_f32_1d(y, i, l->y[i]);
    }
    l->w = param(l->ctx, 2, 1, 0, 0);
    struct ggml_tensor * error = ggml_sub(l->ctx, ggml_mul_mat(l->ctx, l->w, x), y);
    l->loss = ggml_scale(l->ctx, ggml_sum(l->ctx, ggml_sqr(l->ctx, error)), 1.0f / N_POINTS);
}

static void regression(void) {
    for (int type = GGML_OPT_ADAM; type <= GGML_OPT_LBFGS; type++) {
        struct line l;
        line_new(&l);
        struct ggml_opt_params params = quiet((enum ggml_opt_type) type);
        params.adam.alpha = 0.02f;
        params.adam.eps_f = 0;
        params.max_no_improvement = 50;
        const enum ggml_opt_result result = ggml_opt(l.ctx, params, l.loss);
        CHECK_MSG(result == GGML_OPT_OK, "type %d: %d: %s", type, (int) result, ggml_last_error());
        CHECK_MSG(fabsf(ggml_get_f32_1d(l.w, 0) - 1.5f) < 1e-3f && fabsf(ggml_get_f32_1d(l.w, 1) + 0.25f) < 1e-3f,
            "type %d: %g, %g", type, (double) ggml_get_f32_1d(l.w, 0), (double) ggml_get_f32_1d(l.w, 1));
        ggml_free(l.ctx);
    }
}

// ggml_opt makes its own context, so no gradients remain in the caller's.
static void a_private_pool_leaves_nothing(void) {
    struct line l;
    line_new(&l);
    struct ggml_tensor *grad = l.w->grad, *loss_grad = l.loss->grad;
    struct ggml_opt_params params = quiet(GGML_OPT_LBFGS);
    CHECK_INT(ggml_opt(NULL, params, l.loss), GGML_OPT_OK);
    CHECK(l.w->grad == grad && l.loss->grad == loss_grad);
    CHECK(fabsf(ggml_get_f32_1d(l.w, 0) - 1.5f) < 1e-3f);
    ggml_free(l.ctx);
}

// ----------------------------------------------------------------------------------------------------- adam, in double

struct reference {
    double w[2], m[2], v[2];
    int t;
};

// One step of AdamW on the regression. Returns the loss before it.
static double reference_step(struct reference * r, const struct line * l, const struct ggml_opt_params * p,
    double sched) {
    double g[2] = { 0, 0 }, loss = 0;
    for (int i = 0; i < N_POINTS; i++) {
        const double x = (double) l->x[i], e = r->w[0] * x + r->w[1] - (double) l->y[i];
        loss += e * e / N_POINTS;
        g[0] += 2 * e * x / N_POINTS;
        g[1] += 2 * e / N_POINTS;
    }
    const double limit = (double) p->adam.gclip, norm = sqrt(g[0] * g[0] + g[1] * g[1]);
    const double factor = limit > 0 && norm > limit ? limit / norm : 1;
    const double b1 = (double) p->adam.beta1, b2 = (double) p->adam.beta2, rate = (double) p->adam.alpha * sched;
    r->t++;
    for (int k = 0; k < 2; k++) {
        r->m[k] = b1 * r->m[k] + (1 - b1) * factor * g[k];
        r->v[k] = b2 * r->v[k] + (1 - b2) * factor * g[k] * factor * g[k];
        const double m = r->m[k] / (1 - pow(b1, r->t)), v = r->v[k] / (1 - pow(b2, r->t));
        r->w[k] -= rate * ((double) p->adam.decay * r->w[k] + m / (sqrt(v) + (double) p->adam.eps));
    }
    return loss;
}

struct calls {
    int n, last_step, cancel_at;
    float sched;
};

static void count_calls(void * data, int accum_step, float * sched, bool * cancel) {
    struct calls * calls = data;
    calls->n++;
    calls->last_step = accum_step;
    *sched = calls->sched;
    *cancel = calls->n == calls->cancel_at;
}

// Weight decay, clipping and the callback's factor. 40 steps at once, or two at a time from the
// kept state. The weights decay although w has one row: a tensor of [2, 1] has one dimension.
static void adam_takes_the_steps_of_the_paper(void) {
    for (int variant = 0; variant < 4; variant++) {
        struct line l;
        line_new(&l);
        struct ggml_opt_params params = quiet(GGML_OPT_ADAM);
        params.adam.alpha = 0.05f;
        params.adam.decay = 0.1f;
        params.adam.decay_min_ndim = 1;
        params.adam.gclip = variant == 1 ? 0.05f : 0;
        params.adam.eps_f = 0;
        params.n_gradient_accumulation = variant == 2 ? 3 : 1;
        params.adam.n_iter = variant == 3 ? 2 : 40;
        struct ggml_cgraph * gf = ggml_new_graph_custom(l.ctx, 64, true);
        ggml_build_forward_expand(gf, l.loss);
        struct ggml_cgraph * gb = ggml_graph_dup(l.ctx, gf);
        ggml_build_backward_expand(l.ctx, gf, gb, true);
        struct ggml_opt_context opt;
        ggml_opt_init(l.ctx, &opt, params, 2);
        CHECK(opt.nx == 2 && opt.just_initialized && opt.iter == 0 && opt.adam.pf == NULL);
        struct calls calls = { .sched = 0.5f };
        struct reference r = { .t = 0 };
        double first = 0, last = 0;
        for (int i = 0; i < 40; i++) {
            const double loss = reference_step(&r, &l, &params, 0.5);
            first = i == 0 ? loss : first;
        }
        last = reference_step(&(struct reference){ .w = { r.w[0], r.w[1] } }, &l, &params, 0.5);
        for (int i = 0; i < (variant == 3 ? 20 : 1); i++) {
            CHECK_INT(ggml_opt_resume_g(l.ctx, &opt, l.loss, gf, gb, count_calls, &calls), GGML_OPT_DID_NOT_CONVERGE);
            CHECK(i > 0 || fabs((double) opt.loss_before - first) < 1e-6);
        }
        CHECK_INT(opt.iter, 40);
        CHECK_INT(calls.n, variant == 2 ? 41 * 3 : variant == 3 ? 20 * 3 : 41);
        CHECK_INT(calls.last_step, variant == 2 ? 2 : 0);
        for (int k = 0; k < 2; k++) {
            CHECK_MSG(fabs((double) ggml_get_f32_1d(l.w, k) - r.w[k]) < 1e-5, "variant %d, w %d: %g, %g", variant, k,
                (double) ggml_get_f32_1d(l.w, k), r.w[k]);
        }
        CHECK(fabs((double) opt.loss_after - last) < 1e-6);
        ggml_free(l.ctx);
    }
}

static void a_callback_cancels(void) {
    for (int type = GGML_OPT_ADAM; type <= GGML_OPT_LBFGS; type++) {
        struct line l;
        line_new(&l);
        struct ggml_cgraph * gf = ggml_new_graph_custom(l.ctx, 64, true);
        ggml_build_forward_expand(gf, l.loss);
        struct ggml_cgraph * gb = ggml_graph_dup(l.ctx, gf);
        ggml_build_backward_expand(l.ctx, gf, gb, true);
        struct ggml_opt_context opt;
        ggml_opt_init(NULL, &opt, quiet((enum ggml_opt_type) type), 2);
        struct calls calls = { .sched = 1, .cancel_at = 3 };
        CHECK_INT(ggml_opt_resume_g(NULL, &opt, l.loss, gf, gb, count_calls, &calls), GGML_OPT_CANCEL);
        CHECK_INT(calls.n, 3);
        calls = (struct calls){ .sched = 1 };
        CHECK(ggml_opt_resume_g(NULL, &opt, l.loss, gf, gb, count_calls, &calls) <= GGML_OPT_DID_NOT_CONVERGE);
        ggml_free(opt.ctx);
        ggml_free(l.ctx);
    }
}

// A search that finds no step leaves the parameters unchanged. The next call begins with a normal
// step.
static void a_failed_search_does_not_spoil_the_next_run(void) {
    struct ggml_context * ctx = own(16);
    struct ggml_tensor * x = param(ctx, 1, 1, 3, 3);
    struct ggml_tensor * f = ggml_sqr(ctx, x);
    struct ggml_opt_params params = quiet(GGML_OPT_LBFGS);
    params.lbfgs.linesearch = GGML_LINESEARCH_BACKTRACKING_ARMIJO;
    params.lbfgs.ftol = 1.5f; // no step decreases the loss so much
    params.lbfgs.min_step = 1e-12f;
    params.lbfgs.max_linesearch = 100;
    struct ggml_opt_context opt;
    ggml_opt_init(ctx, &opt, params, 1);
    CHECK_INT(ggml_opt_resume(ctx, &opt, f), GGML_LINESEARCH_MINIMUM_STEP);
    CHECK(ggml_get_f32_1d(x, 0) == 3.0f && opt.lbfgs.step < 1e-12f);
    opt.params = quiet(GGML_OPT_LBFGS);
    opt.params.lbfgs.max_linesearch = 5;
    CHECK_INT(ggml_opt_resume(ctx, &opt, f), GGML_OPT_OK);
    CHECK(fabsf(ggml_get_f32_1d(x, 0)) < 1e-3f);
    ggml_free(ctx);
}

// -------------------------------------------------------------------------------------------------------------- valley

// Rosenbrock's valley: (1 - a)^2 + 100 (b - a^2)^2, from (-1.2, 1) to (1, 1).
static void every_line_search_finds_the_end_of_the_valley(void) {
    for (int search = GGML_LINESEARCH_BACKTRACKING_ARMIJO; search <= GGML_LINESEARCH_BACKTRACKING_STRONG_WOLFE;
        search++) {
        struct ggml_context * ctx = own(16);
        struct ggml_tensor *a = param(ctx, 1, 1, -1.2f, -1.2f), *b = param(ctx, 1, 1, 1, 1);
        struct ggml_tensor * one = ggml_new_f32(ctx, 1.0f);
        struct ggml_tensor * f = ggml_add(ctx, ggml_sqr(ctx, ggml_sub(ctx, one, a)),
            ggml_scale(ctx, ggml_sqr(ctx, ggml_sub(ctx, b, ggml_sqr(ctx, a))), 100.0f));
        struct ggml_opt_params params = quiet(GGML_OPT_LBFGS);
        params.lbfgs.linesearch = (enum ggml_linesearch) search;
        params.lbfgs.max_linesearch = 60;
        params.lbfgs.n_iter = 0;
        params.past = 3;
        params.delta = 1e-6f;
        const enum ggml_opt_result result = ggml_opt(ctx, params, f);
        CHECK_MSG(result == GGML_OPT_OK, "search %d: %d: %s", search, (int) result, ggml_last_error());
        CHECK_MSG(fabsf(ggml_get_f32_1d(a, 0) - 1) < 0.01f && fabsf(ggml_get_f32_1d(b, 0) - 1) < 0.02f,
            "search %d: %g, %g", search, (double) ggml_get_f32_1d(a, 0), (double) ggml_get_f32_1d(b, 0));
        ggml_free(ctx);
    }
}

// ------------------------------------------------------------------------------------------------------------ networks

// Two layers learn exclusive or.
static void a_small_network_learns(void) {
    for (int type = GGML_OPT_ADAM; type <= GGML_OPT_LBFGS; type++) {
        test_seed = 3;
        struct ggml_context * ctx = own(16);
        struct ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 2, 4);
        struct ggml_tensor * y = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 1, 4);
        for (int i = 0; i < 4; i++) {
            ggml_set_f32_1d(x, 2 * i, (float) (i & 1));
            ggml_set_f32_1d(x, 2 * i + 1, (float) (i >> 1));
            ggml_set_f32_1d(y, i, (float) ((i & 1) ^ (i >> 1)));
        }
        struct ggml_tensor *w1 = param(ctx, 2, 8, -1, 1), *b1 = param(ctx, 8, 1, -1, 1), *w2 = param(ctx, 8, 1, -1, 1);
        struct ggml_tensor * hidden =
            ggml_silu(ctx, ggml_add(ctx, ggml_mul_mat(ctx, w1, x), ggml_repeat(ctx, b1, ggml_mul_mat(ctx, w1, x))));
        struct ggml_tensor * loss = ggml_sum(ctx, ggml_sqr(ctx, ggml_sub(ctx, ggml_mul_mat(ctx, w2, hidden), y)));
        struct ggml_opt_params params = quiet((enum ggml_opt_type) type);
        params.n_threads = 2;
        params.adam.alpha = 0.05f;
        params.adam.n_iter = 1000;
        params.adam.eps_f = 0;
        params.max_no_improvement = 0;
        params.lbfgs.n_iter = 500;
        const enum ggml_opt_result result = ggml_opt(ctx, params, loss);
        CHECK_MSG(ggml_get_f32_1d(loss, 0) < 1e-3f, "type %d: result %d, loss %g: %s", type, (int) result,
            (double) ggml_get_f32_1d(loss, 0), ggml_last_error());
        ggml_free(ctx);
    }
}

enum { N_VOCAB = 8, N_EMBD = 16, N_HEAD = 2, N_CTX = 12 };

// One block with rotary attention and a gated feed-forward, over [N_EMBD, N_CTX].
static struct ggml_tensor * block(struct ggml_context * ctx, struct ggml_tensor * x) {
    struct ggml_tensor * positions = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, N_CTX);
    for (int i = 0; i < N_CTX; i++) {
        ggml_set_i32_1d(positions, i, i);
    }
    const int64_t head = N_EMBD / N_HEAD;
    struct ggml_tensor * h = ggml_rms_norm(ctx, x, 1e-5f);
    struct ggml_tensor * qkv[3];
    for (int i = 0; i < 3; i++) {
        qkv[i] = ggml_mul_mat(ctx, param(ctx, N_EMBD, N_EMBD, -0.3f, 0.3f), h);
        qkv[i] = ggml_reshape_3d(ctx, qkv[i], head, N_HEAD, N_CTX);
        qkv[i] = i < 2 ? ggml_rope(ctx, qkv[i], positions, (int) head, 0, 0) : qkv[i];
    }
    struct ggml_tensor * q = ggml_permute(ctx, qkv[0], 0, 2, 1, 3);
    struct ggml_tensor * k = ggml_permute(ctx, qkv[1], 0, 2, 1, 3);
    struct ggml_tensor * v = ggml_cont(ctx, ggml_permute(ctx, qkv[2], 1, 2, 0, 3));
    struct ggml_tensor * scores = ggml_scale(ctx, ggml_mul_mat(ctx, k, q), 1.0f / sqrtf((float) head));
    scores = ggml_soft_max(ctx, ggml_diag_mask_inf(ctx, scores, 0));
    struct ggml_tensor * mixed = ggml_permute(ctx, ggml_mul_mat(ctx, v, scores), 0, 2, 1, 3);
    mixed = ggml_reshape_2d(ctx, ggml_cont(ctx, mixed), N_EMBD, N_CTX);
    x = ggml_add(ctx, x, ggml_mul_mat(ctx, param(ctx, N_EMBD, N_EMBD, -0.3f, 0.3f), mixed));
    h = ggml_rms_norm(ctx, x, 1e-5f);
    struct ggml_tensor * gate = ggml_silu(ctx, ggml_mul_mat(ctx, param(ctx, N_EMBD, 2 * N_EMBD, -0.3f, 0.3f), h));
    struct ggml_tensor * up = ggml_mul_mat(ctx, param(ctx, N_EMBD, 2 * N_EMBD, -0.3f, 0.3f), h);
    struct ggml_tensor * down = ggml_mul_mat(ctx, param(ctx, 2 * N_EMBD, N_EMBD, -0.3f, 0.3f), ggml_mul(ctx, gate, up));
    return ggml_add(ctx, x, down);
}

// The text repeats 0 3 6 1 4 7 2 5: each token is the one before plus 3, modulo 8.
static void a_small_llama_learns_its_text(void) {
    test_seed = 9;
    struct ggml_context * ctx = own(64);
    struct ggml_tensor * tokens = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, N_CTX);
    struct ggml_tensor * targets = ggml_set_zero(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, N_VOCAB, N_CTX));
    for (int i = 0; i < N_CTX; i++) {
        ggml_set_i32_1d(tokens, i, 3 * i % N_VOCAB);
        ggml_set_f32_1d(targets, i * N_VOCAB + 3 * (i + 1) % N_VOCAB, 1.0f);
    }
    struct ggml_tensor * x = ggml_get_rows(ctx, param(ctx, N_EMBD, N_VOCAB, -1, 1), tokens);
    x = block(ctx, block(ctx, x));
    struct ggml_tensor * logits =
        ggml_mul_mat(ctx, param(ctx, N_EMBD, N_VOCAB, -0.3f, 0.3f), ggml_rms_norm(ctx, x, 1e-5f));
    struct ggml_tensor * loss = ggml_cross_entropy_loss(ctx, logits, targets);
    struct ggml_opt_params params = quiet(GGML_OPT_ADAM);
    params.adam.alpha = 0.01f;
    params.adam.n_iter = 150;
    params.adam.eps_f = 0;
    struct ggml_opt_context opt;
    ggml_opt_init(ctx, &opt, params, 0);
    CHECK(ggml_opt_resume(ctx, &opt, loss) <= GGML_OPT_DID_NOT_CONVERGE);
    CHECK_MSG(opt.loss_before > 1.5f && opt.loss_after < 0.05f, "loss %g, then %g: %s", (double) opt.loss_before,
        (double) opt.loss_after, ggml_last_error());
    for (int i = 0; i < N_CTX; i++) {
        int best = 0;
        for (int k = 1; k < N_VOCAB; k++) {
            best = ggml_get_f32_1d(logits, i * N_VOCAB + k) > ggml_get_f32_1d(logits, i * N_VOCAB + best) ? k : best;
        }
        CHECK_INT(best, 3 * (i + 1) % N_VOCAB);
    }
    ggml_free(ctx);
}

// -------------------------------------------------------------------------------------------------------------- errors

static void bad_input(void) {
    struct line l;
    line_new(&l);
    struct ggml_opt_params params = quiet(GGML_OPT_LBFGS);
    CHECK_INT(ggml_opt(l.ctx, params, NULL), GGML_OPT_FAIL);
    CHECK_INT(ggml_opt(l.ctx, params, l.w), GGML_OPT_FAIL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "one f32 number");
    CHECK_INT(ggml_opt(l.ctx, params, ggml_sum(l.ctx, ggml_new_f32(l.ctx, 1.0f))), GGML_OPT_FAIL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "depends on no parameter");
    params.lbfgs.wolfe = 1e-5f;
    CHECK_INT(ggml_opt(l.ctx, params, l.loss), GGML_OPT_INVALID_WOLFE);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "above ftol (0.0001) and below 1, is 1e-05");
    params = quiet(GGML_OPT_LBFGS);
    params.lbfgs.max_linesearch = 0;
    CHECK_INT(ggml_opt(l.ctx, params, l.loss), GGML_LINESEARCH_INVALID_PARAMETERS);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "max_linesearch has to be at least 1, is 0");
    for (int i = 0; i < 4; i++) {
        static const float wrong[4] = { 1.0f, -0.1f, INFINITY, NAN };
        params = quiet(GGML_OPT_ADAM);
        *(i % 2 == 0 ? &params.adam.beta1 : &params.adam.beta2) = wrong[i];
        CHECK_INT(ggml_opt(l.ctx, params, l.loss), GGML_OPT_FAIL);
        CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "beta1 and beta2 have to be at least 0 and below 1");
    }
    CHECK(ggml_get_f32_1d(l.w, 0) == 0.0f && ggml_get_f32_1d(l.w, 1) == 0.0f);
    params = quiet(GGML_OPT_LBFGS);
    params.lbfgs.m = 0;
    CHECK_INT(ggml_opt(l.ctx, params, l.loss), GGML_OPT_FAIL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "lbfgs.m");
    params = quiet((enum ggml_opt_type) 7);
    CHECK_INT(ggml_opt(l.ctx, params, l.loss), GGML_OPT_FAIL);
    struct ggml_opt_context opt;
    ggml_opt_init(l.ctx, NULL, params, 1);
    ggml_opt_init(l.ctx, &opt, quiet(GGML_OPT_ADAM), -1);
    CHECK(opt.nx == 0);
    ggml_opt_init(l.ctx, &opt, quiet(GGML_OPT_ADAM), INT64_MAX);
    CHECK(opt.nx == 0 && opt.ctx == l.ctx);
    ggml_opt_init(NULL, &opt, quiet(GGML_OPT_ADAM), INT64_MAX);
    CHECK(opt.nx == 0 && opt.ctx == NULL);
    struct ggml_context * no_data = ggml_init((struct ggml_init_params){ 1 << 16, NULL, true });
    ggml_opt_init(no_data, &opt, quiet(GGML_OPT_ADAM), 4);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "no_alloc");
    CHECK(opt.nx == 0);
    CHECK_INT(ggml_opt_resume_g(NULL, &opt, l.loss, NULL, NULL, NULL, NULL), GGML_OPT_FAIL);
    CHECK_INT(ggml_opt_resume(NULL, &opt, l.loss), GGML_OPT_FAIL);
    ggml_free(no_data);
    ggml_free(l.ctx);
}

// sqrt of a negative number, and a loss without a lower bound.
static void losses_that_cannot_be_minimized(void) {
    for (int type = GGML_OPT_ADAM; type <= GGML_OPT_LBFGS; type++) {
        struct ggml_context * ctx = own(16);
        struct ggml_tensor * x = param(ctx, 1, 1, -2, -2);
        CHECK_INT(ggml_opt(ctx, quiet((enum ggml_opt_type) type), ggml_sqrt(ctx, x)), GGML_OPT_FAIL);
        CHECK_ERROR(GGML_STATUS_FAILED, "the loss");
        ggml_free(ctx);
    }
    struct ggml_context * ctx = own(16);
    struct ggml_tensor * x = param(ctx, 1, 1, 1, 1);
    struct ggml_opt_params params = quiet(GGML_OPT_LBFGS);
    params.lbfgs.max_linesearch = 1000;
    CHECK_INT(ggml_opt(ctx, params, ggml_neg(ctx, ggml_sum(ctx, x))), GGML_LINESEARCH_MAXIMUM_STEP);
    CHECK(ggml_get_f32_1d(x, 0) == 1.0f);
    ggml_free(ctx);
}

// sqrt has an infinite slope at 0, where its value is finite.
static void an_infinite_gradient_changes_no_parameter(void) {
    for (int type = GGML_OPT_ADAM; type <= GGML_OPT_LBFGS; type++) {
        struct ggml_context * ctx = own(16);
        struct ggml_tensor * x = param(ctx, 2, 1, 4, 4);
        ggml_set_f32_1d(x, 1, 0.0f);
        struct ggml_tensor * f = ggml_sum(ctx, ggml_sqrt(ctx, x));
        CHECK_INT(ggml_opt(ctx, quiet((enum ggml_opt_type) type), f), GGML_OPT_FAIL);
        CHECK_ERROR(GGML_STATUS_FAILED, "is inf in element 1 at iteration 0");
        CHECK(ggml_get_f32_1d(x, 0) == 4.0f && ggml_get_f32_1d(x, 1) == 0.0f);
        ggml_free(ctx);
    }
}

// The steepest step of length 1 goes from x = 1 to 0, where the loss sqrt(x) is 0 and its slope is
// infinite. The search must not accept this point.
static void a_search_avoids_infinite_slopes(void) {
    struct ggml_context * ctx = own(16);
    struct ggml_tensor * x = param(ctx, 1, 1, 1, 1);
    struct ggml_opt_params params = quiet(GGML_OPT_LBFGS);
    params.lbfgs.linesearch = GGML_LINESEARCH_BACKTRACKING_ARMIJO;
    params.lbfgs.n_iter = 1;
    CHECK_INT(ggml_opt(ctx, params, ggml_sqrt(ctx, x)), GGML_OPT_DID_NOT_CONVERGE);
    CHECK(ggml_get_f32_1d(x, 0) == 0.5f);
    ggml_free(ctx);
}

// At a minimum the gradient is 0, so any accuracy is met, even 0.
static void a_minimum_is_a_minimum_for_every_eps(void) {
    struct ggml_context * ctx = own(16);
    struct ggml_opt_params params = quiet(GGML_OPT_LBFGS);
    params.lbfgs.eps = 0;
    CHECK_INT(ggml_opt(ctx, params, ggml_sum(ctx, ggml_sqr(ctx, param(ctx, 3, 1, 0, 0)))), GGML_OPT_OK);
    ggml_free(ctx);
}

static void parameters_need_host_memory(void) {
    for (int type = GGML_OPT_ADAM; type <= GGML_OPT_LBFGS; type++) {
        struct ggml_context *ctx = own(16), *far = ggml_init((struct ggml_init_params){ 1 << 16, NULL, true });
        ggml_backend_t sim = ggml_backend_reg_init_backend_from_str("SIM");
        struct ggml_tensor * x = ggml_new_tensor_1d(far, GGML_TYPE_F32, 4);
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(far, sim);
        ggml_set_param(ctx, x);
        struct ggml_tensor * f = ggml_sum(ctx, ggml_sqr(ctx, x));
        CHECK_INT(ggml_opt(ctx, quiet((enum ggml_opt_type) type), f), GGML_OPT_FAIL);
        CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "not in host memory");
        ggml_free(ctx);
        ggml_free(far);
        ggml_backend_buffer_free(buffer);
        ggml_backend_free(sim);
    }
}

TEST_MAIN(TEST(defaults), TEST(regression), TEST(a_private_pool_leaves_nothing),
    TEST(adam_takes_the_steps_of_the_paper), TEST(a_callback_cancels),
    TEST(a_failed_search_does_not_spoil_the_next_run), TEST(every_line_search_finds_the_end_of_the_valley),
    TEST(a_small_network_learns), TEST(a_small_llama_learns_its_text), TEST(bad_input),
    TEST(losses_that_cannot_be_minimized), TEST(an_infinite_gradient_changes_no_parameter),
    TEST(a_search_avoids_infinite_slopes), TEST(a_minimum_is_a_minimum_for_every_eps),
    TEST(parameters_need_host_memory))
