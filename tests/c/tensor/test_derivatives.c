// The derivative of every operator that has one, against central differences of the computed function.
//
// A case builds an expression of up to three inputs. The loss is the sum of its elements times
// fixed random weights. Each input element is moved up and down by a small step, the forward graph
// computed, and the slope compared with the gradient. For the second derivative the function is the
// sum of the gradients' elements times random weights. Gradients are made by
// ggml_build_backward_expand and by ggml_grad.
#include "base/mem.h"
#include "test.h"

enum { MAX_INPUTS = 3 };

struct inputs {
    struct ggml_context * ctx;
    struct ggml_tensor * x[MAX_INPUTS]; // parameters, F32, random
    struct ggml_tensor * ids;           // I32, `n_ids` of them
};

typedef struct ggml_tensor * (*expression)(const struct inputs * in);

struct grad_case {
    const char * name;
    expression build;
    int64_t ne[MAX_INPUTS][4]; // all 0: no such input
    float low, high;           // range of input values
    float step, tolerance;     // 0: 1e-2 and 2e-2
};

static struct ggml_tensor * random_tensor(struct ggml_context * ctx, const int64_t ne[4], float low, float high) {
    struct ggml_tensor * t = ggml_new_tensor(ctx, GGML_TYPE_F32, 4, ne);
    for (int64_t i = 0; i < ggml_nelements(t); i++) {
        ((float *) t->data)[i] = test_random_float(low, high);
    }
    return t;
}

static float compute_loss(struct ggml_context * ctx, struct ggml_cgraph * g, struct ggml_tensor * loss) {
    CHECK_INT(ggml_graph_compute_with_ctx(ctx, g, 1), GGML_STATUS_SUCCESS);
    return ggml_get_f32_1d(loss, 0);
}

// True for functions whose second derivative is 0 or undefined everywhere, so that only the build is checked.
static bool is_flat(const char * name) {
    static const char * const names[] = { "sgn", "step", "compare" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

// True for operators whose gradient has an operator without a rule.
static bool has_no_second(const char * name) {
    return strcmp(name, "flash_attn") == 0 || strcmp(name, "flash_attn_masked") == 0 || strcmp(name, "conv_3d") == 0 ||
           strcmp(name, "cross_entropy_eps") == 0;
}

static void compare_input(struct ggml_context * ctx, const struct grad_case * c, struct ggml_cgraph * gf,
    struct ggml_tensor * loss, struct ggml_tensor * x, const float * grad, int which) {
    const float step = c->step > 0 ? c->step : 1e-2f, tolerance = c->tolerance > 0 ? c->tolerance : 2e-2f;
    int nonzero = 0;
    for (int64_t i = 0; i < ggml_nelements(x); i++) {
        float * value = (float *) x->data + i;
        const float keep = *value;
        *value = keep + step;
        const double up = compute_loss(ctx, gf, loss);
        *value = keep - step;
        const double down = compute_loss(ctx, gf, loss);
        *value = keep;
        const double slope = (up - down) / (2.0 * (double) step);
        nonzero += grad[i] != 0.0f;
        CHECK_MSG(fabs(slope - (double) grad[i]) <= (double) tolerance * (1.0 + fabs(slope)),
            "%s: input %d, element %d: gradient %g, slope %g", c->name, which, (int) i, (double) grad[i], slope);
    }
    if (!is_flat(c->name)) {
        CHECK_MSG(nonzero > 0, "%s: input %d: all gradients are 0", c->name, which);
    }
}

// The inputs of a case. `params`: with the field grad. in->ctx: NULL for a new context. Returns their number.
static int make_inputs(const struct grad_case * c, bool params, struct inputs * in) {
    in->ctx = in->ctx != NULL ? in->ctx : ggml_init((struct ggml_init_params){ 0, NULL, false });
    int n = 0;
    for (; n < MAX_INPUTS && c->ne[n][0] > 0; n++) {
        in->x[n] = random_tensor(in->ctx, c->ne[n], c->low, c->high);
        if (params) {
            CHECK_INT(ggml_set_param(in->ctx, in->x[n]), GGML_STATUS_SUCCESS);
        }
    }
    in->ids = ggml_new_tensor_1d(in->ctx, GGML_TYPE_I32, 5);
    for (int i = 0; i < 5; i++) {
        ggml_set_i32_1d(in->ids, i, (i * 3 + 1) % 4);
    }
    return n;
}

static void run_case(const struct grad_case * c) {
    struct inputs in = { 0 };
    const int n = make_inputs(c, true, &in);
    struct ggml_context * ctx = in.ctx;
    struct ggml_tensor * y = c->build(&in);
    if (y == NULL || y->grad == NULL) {
        test_fail(__FILE__, __LINE__, "%s: no expression with gradient: %s", c->name, ggml_last_error());
        ggml_free(ctx);
        return;
    }
    struct ggml_tensor * loss = ggml_sum(ctx, ggml_mul(ctx, y, random_tensor(ctx, y->ne, -1, 1)));
    struct ggml_cgraph * gf = ggml_new_graph_custom(ctx, 64, true);
    CHECK_INT(ggml_build_forward_expand(gf, loss), GGML_STATUS_SUCCESS);
    const int n_forward = gf->n_nodes;
    struct ggml_cgraph * gb = ggml_graph_dup(ctx, gf);
    const enum ggml_status status = ggml_build_backward_expand(ctx, gf, gb, false);
    if (status != GGML_STATUS_SUCCESS) {
        test_fail(__FILE__, __LINE__, "%s: %s", c->name, ggml_last_error());
        ggml_free(ctx);
        return;
    }
    CHECK_INT(gf->n_nodes, n_forward);
    CHECK_INT(ggml_graph_reset(gf), GGML_STATUS_SUCCESS);
    ggml_set_f32(loss->grad, 1.0f);
    CHECK_MSG(ggml_graph_compute_with_ctx(ctx, gb, 2) == GGML_STATUS_SUCCESS, "%s: %s", c->name, ggml_last_error());
    for (int k = 0; k < n; k++) {
        const int64_t count = ggml_nelements(in.x[k]);
        float * grad = gb_malloc((size_t) count * sizeof(float));
        CHECK(ggml_are_same_shape(in.x[k], in.x[k]->grad) && ggml_is_contiguous(in.x[k]->grad));
        memcpy(grad, in.x[k]->grad->data, (size_t) count * sizeof(float));
        compare_input(ctx, c, gf, loss, in.x[k], grad, k);
        gb_free(grad);
    }
    ggml_free(ctx);
}

// Derives the sum of w x gradient. Operators whose gradient is a single operator without a rule are
// refused by name.
static void run_second(const struct grad_case * c) {
    struct inputs in = { 0 };
    const int n = make_inputs(c, true, &in);
    struct ggml_context * ctx = in.ctx;
    struct ggml_tensor * y = c->build(&in);
    // The square makes the second derivative of linear functions differ from 0.
    y = y ? ggml_add(ctx, y, ggml_sqr(ctx, y)) : NULL;
    struct ggml_tensor * loss = y ? ggml_sum(ctx, ggml_mul(ctx, y, random_tensor(ctx, y->ne, -1, 1))) : NULL;
    CHECK(loss != NULL);
    struct ggml_cgraph * gf = ggml_new_graph_custom(ctx, 512, true);
    CHECK_INT(ggml_build_forward_expand(gf, loss), GGML_STATUS_SUCCESS);
    struct ggml_cgraph * gb = ggml_graph_dup(ctx, gf);
    CHECK_INT(ggml_build_backward_expand(ctx, gf, gb, false), GGML_STATUS_SUCCESS);
    struct ggml_tensor * seed = loss->grad;
    struct ggml_tensor * dot = NULL;
    for (int k = 0; k < n; k++) {
        struct ggml_tensor * w = random_tensor(ctx, in.x[k]->ne, -1, 1);
        struct ggml_tensor * part = ggml_sum(ctx, ggml_mul(ctx, in.x[k]->grad, w));
        dot = dot ? ggml_add(ctx, dot, part) : part;
    }
    CHECK_INT(ggml_build_forward_expand(gb, dot), GGML_STATUS_SUCCESS);
    struct ggml_cgraph * gbb = ggml_graph_dup(ctx, gb);
    ggml_clear_error();
    const enum ggml_status status = ggml_build_backward_expand(ctx, gb, gbb, true);
    if (status != GGML_STATUS_SUCCESS) {
        CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "the operator has no derivative");
        CHECK_MSG(has_no_second(c->name), "%s: %s", c->name, ggml_last_error());
        ggml_free(ctx);
        return;
    }
    CHECK_INT(ggml_graph_reset(gb), GGML_STATUS_SUCCESS);
    ggml_set_f32(seed, 1.0f);
    if (dot->grad == NULL) {
        CHECK_MSG(is_flat(c->name), "%s: the gradient does not depend on the inputs", c->name);
        ggml_free(ctx);
        return;
    }
    ggml_set_f32(dot->grad, 1.0f);
    CHECK_MSG(ggml_graph_compute_with_ctx(ctx, gbb, 2) == GGML_STATUS_SUCCESS, "%s: %s", c->name, ggml_last_error());
    for (int k = 0; k < n; k++) {
        const int64_t count = ggml_nelements(in.x[k]);
        float * grad = gb_malloc((size_t) count * sizeof(float));
        memcpy(grad, in.x[k]->grad->data, (size_t) count * sizeof(float));
        compare_input(ctx, c, gb, dot, in.x[k], grad, k);
        gb_free(grad);
    }
    ggml_free(ctx);
}

// The function is `loss`, or with `second` the sum of w x gradient of loss.
static struct ggml_tensor * function_of(const struct grad_case * c, const struct inputs * in, int n, bool second) {
    struct ggml_context * ctx = in->ctx;
    struct ggml_tensor * y = c->build(in);
    y = second && y ? ggml_add(ctx, y, ggml_sqr(ctx, y)) : y;
    struct ggml_tensor * loss = y ? ggml_sum(ctx, ggml_mul(ctx, y, random_tensor(ctx, y->ne, -1, 1))) : NULL;
    if (!second || loss == NULL) {
        return loss;
    }
    struct ggml_tensor *grads[MAX_INPUTS] = { 0 }, *x[MAX_INPUTS], *dot = NULL;
    memcpy(x, in->x, sizeof(x));
    CHECK_MSG(ggml_grad(ctx, loss, x, n, grads) == GGML_STATUS_SUCCESS, "%s: %s", c->name, ggml_last_error());
    for (int k = 0; k < n && grads[k] != NULL; k++) {
        struct ggml_tensor * part = ggml_sum(ctx, ggml_mul(ctx, grads[k], random_tensor(ctx, x[k]->ne, -1, 1)));
        dot = dot ? ggml_add(ctx, dot, part) : part;
    }
    return dot;
}

static void run_grad(const struct grad_case * c, bool second) {
    struct inputs in = { 0 };
    const int n = make_inputs(c, false, &in);
    struct ggml_context * ctx = in.ctx;
    struct ggml_tensor * grads[MAX_INPUTS] = { 0 };
    struct ggml_tensor * f = function_of(c, &in, n, second);
    ggml_clear_error();
    if (f == NULL || ggml_grad(ctx, f, in.x, n, grads) != GGML_STATUS_SUCCESS) {
        CHECK_MSG(f != NULL && second && has_no_second(c->name), "%s: %s", c->name, ggml_last_error());
        ggml_free(ctx);
        return;
    }
    struct ggml_cgraph *gf = ggml_new_graph(ctx), *gb = ggml_new_graph(ctx);
    CHECK_INT(ggml_build_forward_expand(gf, f), GGML_STATUS_SUCCESS);
    for (int k = 0; k < n; k++) {
        CHECK_MSG(grads[k] != NULL ? ggml_are_same_shape(grads[k], in.x[k]) && grads[k]->type == GGML_TYPE_F32
                                   : is_flat(c->name),
            "%s: input %d", c->name, k);
        CHECK(in.x[k]->grad == NULL);
        if (grads[k] != NULL) {
            CHECK_INT(ggml_build_forward_expand(gb, grads[k]), GGML_STATUS_SUCCESS);
        }
    }
    CHECK_MSG(ggml_graph_compute_with_ctx(ctx, gb, 2) == GGML_STATUS_SUCCESS, "%s: %s", c->name, ggml_last_error());
    for (int k = 0; k < n && grads[k] != NULL; k++) {
        const size_t bytes = (size_t) ggml_nelements(in.x[k]) * sizeof(float);
        float * grad = gb_malloc(bytes);
        memcpy(grad, grads[k]->data, bytes);
        compare_input(ctx, c, gf, f, in.x[k], grad, k);
        gb_free(grad);
    }
    ggml_free(ctx);
}

// --------------------------------------------------------------------------------------------------------- expressions

#define EXPR(name, ...)                                          \
    static struct ggml_tensor * name(const struct inputs * in) { \
        struct ggml_context * ctx = in->ctx;                     \
        struct ggml_tensor * a = in->x[0];                       \
        struct ggml_tensor * b = in->x[1];                       \
        struct ggml_tensor * c = in->x[2];                       \
        (void) ctx, (void) a, (void) b, (void) c;                \
        return __VA_ARGS__;                                      \
    }

// Zeros and ones, as integers.
static struct ggml_tensor * random_mask(struct ggml_context * ctx, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    struct ggml_tensor * t = ggml_new_tensor_4d(ctx, GGML_TYPE_I32, n0, n1, n2, n3);
    for (int64_t i = 0; i < ggml_nelements(t); i++) {
        ((int32_t *) t->data)[i] = (int32_t) test_random_int(0, 1);
    }
    return t;
}

EXPR(e_dup, ggml_dup(ctx, a))
EXPR(e_cont, ggml_cont(ctx, ggml_permute(ctx, a, 2, 0, 3, 1)))
EXPR(e_cpy, ggml_cpy(ctx, a, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 4, 6)))
EXPR(e_add, ggml_add(ctx, a, b))
EXPR(e_add_self, ggml_add(ctx, a, a))
EXPR(e_add1, ggml_add1(ctx, a, b))
EXPR(e_acc, ggml_acc(ctx, a, b, a->nb[1], a->nb[2], a->nb[3], a->nb[1] + 8))
EXPR(e_set, ggml_set(ctx, a, b, a->nb[1], a->nb[2], a->nb[3], a->nb[1] + 8))
EXPR(e_set_1d, ggml_set_1d(ctx, a, b, 12))
EXPR(e_sub, ggml_sub(ctx, a, b))
EXPR(e_mul, ggml_mul(ctx, a, b))
EXPR(e_div, ggml_div(ctx, a, b))
EXPR(e_sqr, ggml_sqr(ctx, a))
EXPR(e_sqrt, ggml_sqrt(ctx, a))
EXPR(e_log, ggml_log(ctx, a))
EXPR(e_sum, ggml_sum(ctx, a))
EXPR(e_sum_rows, ggml_sum_rows(ctx, a))
EXPR(e_repeat, ggml_repeat(ctx, a, ggml_new_tensor_4d(ctx, GGML_TYPE_F32, 6, 4, 2, 3)))
EXPR(e_repeat_back, ggml_repeat_back(ctx, a, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 3, 2)))
EXPR(e_rms_norm, ggml_rms_norm(ctx, a, 1e-5f))
EXPR(e_mul_mat, ggml_mul_mat(ctx, a, b))
EXPR(e_mul_mat_permuted, ggml_mul_mat(ctx, ggml_permute(ctx, a, 0, 2, 1, 3), ggml_permute(ctx, b, 0, 2, 1, 3)))
EXPR(e_scale, ggml_scale(ctx, a, -1.75f))
EXPR(e_reshape, ggml_sqr(ctx, ggml_reshape_2d(ctx, a, 4, 6)))
EXPR(e_view, ggml_view_3d(ctx, a, 2, 2, 2, a->nb[1], a->nb[2], a->nb[1] + 4))
EXPR(e_views, ggml_add(ctx, ggml_view_1d(ctx, a, 6, 8), ggml_view_1d(ctx, a, 6, 16)))
EXPR(e_permute, ggml_cont(ctx, ggml_permute(ctx, a, 1, 2, 3, 0)))
EXPR(e_transpose, ggml_mul_mat(ctx, ggml_cont(ctx, ggml_transpose(ctx, a)), b))
EXPR(e_get_rows, ggml_get_rows(ctx, a, in->ids))
EXPR(e_get_rows_batched, ggml_get_rows(ctx, a, ggml_reshape_2d(ctx, ggml_view_1d(ctx, in->ids, 4, 0), 2, 2)))
EXPR(e_diag_mask_zero, ggml_diag_mask_zero(ctx, a, 1))
EXPR(e_diag_mask_inf, ggml_soft_max(ctx, ggml_diag_mask_inf(ctx, a, 1)))
EXPR(e_soft_max, ggml_soft_max(ctx, a))
EXPR(e_soft_max_ext, ggml_soft_max_ext(ctx, a, b, 0.7f))
EXPR(e_soft_max_bias,
    ggml_soft_max_bias(ctx, a, random_tensor(ctx, (int64_t[]){ a->ne[0], a->ne[1], 1, 1 }, -1, 1), 0.7f, 8))
EXPR(e_rope, ggml_rope(ctx, a, in->ids, 4, 0, 0))
EXPR(e_rope_neox, ggml_rope_custom(ctx, a, in->ids, 6, 2, 0, 64, 1000.0f, 0.5f, 0.5f, 1.2f, 32.0f, 1.0f))
EXPR(e_abs, ggml_abs(ctx, a))
EXPR(e_neg, ggml_neg(ctx, a))
EXPR(e_relu, ggml_relu(ctx, a))
EXPR(e_silu, ggml_silu(ctx, a))
EXPR(e_exp, ggml_exp(ctx, a))
EXPR(e_sigmoid, ggml_sigmoid(ctx, a))
EXPR(e_sin, ggml_sin(ctx, a))
EXPR(e_cos, ggml_cos(ctx, a))
EXPR(e_softplus, ggml_softplus(ctx, a))
EXPR(e_compare, ggml_compare(ctx, a, b, GGML_COMPARE_GREATER))
EXPR(e_where, ggml_where(ctx, random_mask(ctx, 5, 4, 1, 1), ggml_sqr(ctx, a), b))
EXPR(e_where_repeated, ggml_where(ctx, random_mask(ctx, 5, 4, 3, 2), a, b))
EXPR(e_where_wide, ggml_where(ctx, random_mask(ctx, 1, 4, 1, 1), a, b))
EXPR(e_sgn, ggml_sgn(ctx, a))
EXPR(e_step, ggml_step(ctx, a))
static struct ggml_tensor * e_soft_max_sinks(const struct inputs * in) {
    struct ggml_tensor * y = ggml_soft_max_ext(in->ctx, in->x[0], NULL, 0.7f);
    CHECK_INT(ggml_soft_max_add_sinks(y, random_tensor(in->ctx, (int64_t[]){ y->ne[2], 1, 1, 1 }, -1, 1)),
        GGML_STATUS_SUCCESS);
    return y;
}

EXPR(e_mean, ggml_mean(ctx, a))
EXPR(e_cumsum, ggml_cumsum(ctx, a))
EXPR(e_tri, ggml_tri(ctx, a, GGML_TRI_TYPE_LOWER_DIAG))
EXPR(e_tri_upper, ggml_tri(ctx, a, GGML_TRI_TYPE_UPPER))
EXPR(e_expm1, ggml_expm1(ctx, a))
EXPR(e_scale_bias, ggml_scale_bias(ctx, a, 0.3f, -2))
EXPR(e_swiglu, ggml_swiglu_split(ctx, a, b))
EXPR(e_mul_mat_experts, ggml_mul_mat_experts(ctx, a, b, ggml_reshape_2d(ctx, ggml_view_1d(ctx, in->ids, 4, 0), 2, 2)))

static struct ggml_tensor * e_mul_mat_id(const struct inputs * in) {
    struct ggml_tensor * as[] = { in->x[0], in->x[1], in->x[0], in->x[1] };
    return ggml_mul_mat_id(in->ctx, as, 4, ggml_reshape_2d(in->ctx, ggml_view_1d(in->ctx, in->ids, 4, 0), 1, 4), 0,
        in->x[2]);
}

EXPR(e_add_id, ggml_add_id(ctx, a, b, ggml_reshape_2d(ctx, in->ids, a->ne[1], a->ne[2])))
EXPR(e_cross_entropy, ggml_cross_entropy_loss(ctx, a, ggml_soft_max(ctx, random_tensor(ctx, a->ne, -1, 1))))
EXPR(e_cross_entropy_exact, ggml_cross_entropy_loss_eps(ctx, a, random_tensor(ctx, a->ne, 0.1f, 1), 0.0f))
EXPR(e_cross_entropy_eps, ggml_cross_entropy_loss_eps(ctx, a, random_tensor(ctx, a->ne, 0.1f, 1), 0.125f))
EXPR(e_rope_exact, ggml_rope_custom(ctx, a, in->ids, 4, GGML_ROPE_EXACT, 0, 64, 1000.0f, 0.5f, 0.5f, 1.2f, 32.0f, 1.0f))
EXPR(e_rope_neox_exact,
    ggml_rope_custom(ctx, a, in->ids, 6, 2 | GGML_ROPE_EXACT, 0, 64, 1000.0f, 0.5f, 0.5f, 1.2f, 32.0f, 1.0f))
EXPR(e_flash_attn, ggml_flash_attn(ctx, a, b, c, false))
EXPR(e_flash_attn_masked, ggml_flash_attn(ctx, a, b, c, true))
EXPR(e_tanh, ggml_tanh(ctx, a))
EXPR(e_elu, ggml_elu(ctx, a))
EXPR(e_gelu, ggml_gelu(ctx, a))
EXPR(e_gelu_quick, ggml_gelu_quick(ctx, a))
EXPR(e_gelu_erf, ggml_gelu_erf(ctx, a))
EXPR(e_hardswish, ggml_hardswish(ctx, a))
EXPR(e_hardsigmoid, ggml_hardsigmoid(ctx, a))
EXPR(e_leaky_relu, ggml_leaky_relu(ctx, a, 0.3f, false))
EXPR(e_xielu, ggml_xielu(ctx, a, 0.4f, 0.6f, 0.5f, -1e-6f))
EXPR(e_reglu, ggml_reglu(ctx, a))
EXPR(e_geglu_swapped, ggml_geglu_swapped(ctx, a))
EXPR(e_swiglu_halves, ggml_swiglu(ctx, a))
EXPR(e_geglu, ggml_geglu_split(ctx, a, b))
EXPR(e_geglu_erf, ggml_geglu_erf_split(ctx, a, b))
EXPR(e_geglu_quick, ggml_geglu_quick(ctx, a))
EXPR(e_swiglu_oai, ggml_swiglu_oai(ctx, a, b, 1.702f, 7))
EXPR(e_swiglu_oai_cut, ggml_swiglu_oai(ctx, ggml_scale(ctx, a, 3), ggml_scale(ctx, b, 2), 1.702f, 0.9f))
EXPR(e_swiglu_oai_uncut, ggml_swiglu_oai(ctx, a, b, 1.702f, INFINITY))
EXPR(e_norm, ggml_norm(ctx, a, 1e-3f))
EXPR(e_group_norm, ggml_group_norm(ctx, a, 2))
EXPR(e_group_norm_eps, ggml_group_norm_eps(ctx, ggml_permute(ctx, a, 1, 0, 2, 3), 1, 0.1f))
EXPR(e_l2_norm, ggml_l2_norm(ctx, a, 1e-6f))
EXPR(e_l2_norm_short, ggml_l2_norm(ctx, a, 2.5f))
EXPR(e_concat, ggml_concat(ctx, a, b))
EXPR(e_pad, ggml_pad(ctx, a, 1, 0, 2, 1))
EXPR(e_pad_ext, ggml_pad_ext(ctx, a, 1, 2, 0, 3, 2, 0, 1, 1))
EXPR(e_roll, ggml_roll(ctx, a, 1, -1, 0, 0))
EXPR(e_upscale, ggml_upscale(ctx, a, 2))
EXPR(e_pool_avg, ggml_pool_2d(ctx, a, GGML_OP_POOL_AVG, 2, 2, 2, 2, 0, 0))
EXPR(e_pool_max, ggml_pool_2d(ctx, a, GGML_OP_POOL_MAX, 2, 2, 2, 2, 0, 0))
EXPR(e_im2col,
    ggml_im2col_as(ctx, random_tensor(ctx, (int64_t[]){ 2, 3, 2, 1 }, -1, 1), a, 2, 1, 1, 2, 1, 2, true, GGML_TYPE_F32))
EXPR(e_conv_2d, ggml_conv_2d_direct(ctx, a, b, 2, 1, 1, 2, 1, 2))
EXPR(e_conv_2d_dense, ggml_conv_2d_direct(ctx, a, b, 1, 1, 1, 0, 1, 2))
EXPR(e_conv_2d_padded, ggml_conv_2d_direct(ctx, a, b, 1, 1, 2, 3, 1, 1))
EXPR(e_conv_2d_strided, ggml_conv_2d_direct(ctx, a, b, 2, 2, 1, 0, 1, 1))
EXPR(e_conv_2d_channels, ggml_conv_2d_grouped(ctx, a, b, 1, 2, 0, 1, 2, 1, 3))
EXPR(e_conv_3d, ggml_conv_3d_direct(ctx, a, b, 2, 1, 2, 1, 2, 0, 1, 2, 1, 2, 2, 3))
EXPR(e_conv_transpose_2d, ggml_conv_transpose_2d_p0(ctx, a, ggml_permute(ctx, b, 1, 0, 2, 3), 2))
EXPR(e_conv_transpose_1d, ggml_conv_transpose_1d(ctx, a, b, 2, 0, 1))
EXPR(e_ssm_conv, ggml_ssm_conv(ctx, a, b))
EXPR(e_conv_2d_dw, ggml_conv_2d_dw_direct(ctx, a, ggml_permute(ctx, b, 1, 0, 2, 3), 1, 1, 1, 0, 1, 1))
EXPR(e_set_rows, ggml_set_rows(ctx, ggml_dup(ctx, a), b, ggml_view_1d(ctx, in->ids, 3, 0)))
EXPR(e_clamp, ggml_clamp(ctx, ggml_dup(ctx, a), -0.5f, 0.4f))
EXPR(e_alibi, ggml_alibi(ctx, ggml_dup(ctx, a), 0, 2, 8))

// -inf for later keys and for the whole last row.
static struct ggml_tensor * causal_mask(struct ggml_context * ctx, int64_t keys, int64_t rows) {
    struct ggml_tensor * mask = random_tensor(ctx, (int64_t[]){ keys, rows, 1, 1 }, -1, 1);
    for (int64_t i = 0; i < keys * rows; i++) {
        if (i % keys > i / keys + 1 || i / keys == rows - 1) {
            ((float *) mask->data)[i] = -INFINITY;
        }
    }
    return ggml_cast(ctx, mask, GGML_TYPE_F16);
}

EXPR(e_attention, ggml_flash_attn_ext(ctx, a, b, c, NULL, 0.6f, 0, 0))
EXPR(e_attention_masked, ggml_flash_attn_ext(ctx, a, b, c, causal_mask(ctx, b->ne[1], a->ne[1]), 0.6f, 8, 0))
EXPR(e_attention_cap, ggml_flash_attn_ext(ctx, a, b, c, NULL, 0.6f, 0, 1.5f))
static struct ggml_tensor * e_attention_sinks(const struct inputs * in) {
    struct ggml_tensor * y = ggml_flash_attn_ext(in->ctx, in->x[0], in->x[1], in->x[2], NULL, 0.6f, 0, 0);
    CHECK_INT(ggml_flash_attn_ext_add_sinks(y, random_tensor(in->ctx, (int64_t[]){ 4, 1, 1, 1 }, -1, 1)),
        GGML_STATUS_SUCCESS);
    return y;
}

static struct ggml_tensor * e_sinks(const struct inputs * in) {
    struct ggml_tensor * y = ggml_soft_max_ext(in->ctx, in->x[0], NULL, 0.7f);
    CHECK_INT(ggml_soft_max_add_sinks(y, in->x[1]), GGML_STATUS_SUCCESS);
    return y;
}

static struct ggml_tensor * e_sinks_of_attention(const struct inputs * in) {
    struct ggml_tensor * mask = causal_mask(in->ctx, in->x[1]->ne[1], in->x[0]->ne[1]);
    struct ggml_tensor * y = ggml_flash_attn_ext(in->ctx, in->x[0], in->x[1], in->x[1], mask, 0.6f, 0, 1.5f);
    CHECK_INT(ggml_flash_attn_ext_add_sinks(y, in->x[2]), GGML_STATUS_SUCCESS);
    return y;
}
EXPR(e_mask_of_attention, ggml_flash_attn_ext(ctx, a, b, b, c, 0.6f, 0, 1.5f))
EXPR(e_biased_mask_of_attention, ggml_flash_attn_ext(ctx, a, b, b, c, 0.6f, 6, 0))
EXPR(e_biased_mask, ggml_soft_max_bias(ctx, a, b, 0.6f, 5))
EXPR(e_mask_of_soft_max, ggml_soft_max_ext(ctx, a, b, 0.6f))

// a tensor that is used several times, also through an in-place form and a cast
EXPR(e_shared, ggml_add(ctx, ggml_mul(ctx, a, ggml_silu(ctx, a)), ggml_scale_inplace(ctx, ggml_sqr(ctx, a), 0.5f)))
EXPR(e_block, ggml_mul_mat(ctx, a, ggml_silu(ctx, ggml_rms_norm(ctx, ggml_add(ctx, b, ggml_mul(ctx, b, b)), 1e-4f))))

static const struct grad_case grad_cases[] = {
    { "dup", e_dup, { { 4, 3, 2, 1 } }, -1, 1, 0, 0 },
    { "cont", e_cont, { { 4, 3, 2, 1 } }, -1, 1, 0, 0 },
    { "cpy", e_cpy, { { 3, 2, 2, 2 } }, -1, 1, 0, 0 },
    { "add", e_add, { { 4, 3, 2, 2 }, { 4, 3, 2, 2 } }, -1, 1, 0, 0 },
    { "add_self", e_add_self, { { 4, 3, 1, 1 } }, -1, 1, 0, 0 },
    { "add1", e_add1, { { 4, 3, 1, 1 }, { 1, 1, 1, 1 } }, -1, 1, 0, 0 },
    { "acc", e_acc, { { 5, 4, 3, 1 }, { 2, 2, 2, 1 } }, -1, 1, 0, 0 },
    { "set", e_set, { { 5, 4, 3, 1 }, { 2, 2, 2, 1 } }, -1, 1, 0, 0 },
    { "set_1d", e_set_1d, { { 9, 1, 1, 1 }, { 4, 1, 1, 1 } }, -1, 1, 0, 0 },
    { "sub", e_sub, { { 4, 3, 1, 1 }, { 4, 3, 1, 1 } }, -1, 1, 0, 0 },
    { "mul", e_mul, { { 4, 3, 1, 1 }, { 4, 3, 1, 1 } }, -1, 1, 0, 0 },
    { "div", e_div, { { 4, 3, 1, 1 }, { 4, 3, 1, 1 } }, 0.5f, 2, 0, 0 },
    { "sqr", e_sqr, { { 4, 3, 1, 1 } }, -1, 1, 0, 0 },
    { "sqrt", e_sqrt, { { 4, 3, 1, 1 } }, 0.5f, 2, 0, 0 },
    { "log", e_log, { { 4, 3, 1, 1 } }, 0.5f, 2, 0, 0 },
    { "sum", e_sum, { { 4, 3, 2, 1 } }, -1, 1, 0, 0 },
    { "sum_rows", e_sum_rows, { { 4, 3, 2, 1 } }, -1, 1, 0, 0 },
    { "repeat", e_repeat, { { 3, 2, 1, 3 } }, -1, 1, 0, 0 },
    { "repeat_back", e_repeat_back, { { 6, 4, 2, 1 } }, -1, 1, 0, 0 },
    { "rms_norm", e_rms_norm, { { 5, 3, 1, 1 } }, 0.3f, 1, 0, 0 },
    { "mul_mat", e_mul_mat, { { 5, 3, 1, 1 }, { 5, 4, 1, 1 } }, -1, 1, 0, 0 },
    { "mul_mat_broadcast", e_mul_mat, { { 3, 2, 2, 2 }, { 3, 4, 6, 4 } }, -1, 1, 0, 0 },
    { "mul_mat_broadcast_3", e_mul_mat, { { 3, 2, 2, 1 }, { 3, 2, 2, 3 } }, -1, 1, 0, 0 },
    { "mul_mat_permuted", e_mul_mat_permuted, { { 3, 2, 2, 1 }, { 3, 2, 3, 1 } }, -1, 1, 0, 0 },
    { "scale", e_scale, { { 4, 3, 1, 1 } }, -1, 1, 0, 0 },
    { "reshape", e_reshape, { { 3, 2, 2, 2 } }, -1, 1, 0, 0 },
    { "view", e_view, { { 4, 4, 3, 1 } }, -1, 1, 0, 0 },
    { "views", e_views, { { 12, 1, 1, 1 } }, -1, 1, 0, 0 },
    { "permute", e_permute, { { 4, 3, 2, 2 } }, -1, 1, 0, 0 },
    { "transpose", e_transpose, { { 3, 5, 1, 1 }, { 5, 4, 1, 1 } }, -1, 1, 0, 0 },
    { "get_rows", e_get_rows, { { 3, 4, 1, 1 } }, -1, 1, 0, 0 },
    { "diag_mask_zero", e_diag_mask_zero, { { 5, 3, 2, 1 } }, -1, 1, 0, 0 },
    { "diag_mask_inf", e_diag_mask_inf, { { 5, 3, 2, 1 } }, -1, 1, 0, 0 },
    { "soft_max", e_soft_max, { { 5, 3, 2, 1 } }, -1, 1, 0, 0 },
    { "soft_max_bias", e_soft_max_bias, { { 5, 3, 2, 1 } }, -1, 1, 0, 0 },
    { "soft_max_ext", e_soft_max_ext, { { 5, 4, 3, 1 }, { 5, 2, 1, 1 } }, -1, 1, 0, 0 },
    { "soft_max_sinks", e_soft_max_sinks, { { 5, 3, 2, 1 } }, -1, 1, 0, 0 },
    { "mean", e_mean, { { 5, 3, 2, 1 } }, -1, 1, 0, 0 },
    { "cumsum", e_cumsum, { { 7, 3, 2, 1 } }, -1, 1, 0, 0 },
    { "tri", e_tri, { { 4, 4, 2, 1 } }, -1, 1, 0, 0 },
    { "tri_upper", e_tri_upper, { { 4, 4, 1, 2 } }, -1, 1, 0, 0 },
    { "expm1", e_expm1, { { 4, 3, 1, 1 } }, -2, 1, 0, 0 },
    { "scale_bias", e_scale_bias, { { 4, 3, 1, 1 } }, -1, 1, 0, 0 },
    { "swiglu", e_swiglu, { { 4, 3, 1, 1 }, { 4, 3, 1, 1 } }, -2, 2, 0, 0 },
    { "add_id", e_add_id, { { 3, 5, 1, 1 }, { 3, 4, 1, 1 } }, -1, 1, 0, 0 },
    { "rope", e_rope, { { 6, 2, 5, 1 } }, -1, 1, 0, 0 },
    { "rope_exact", e_rope_exact, { { 7, 2, 5, 1 } }, -1, 1, 0, 0 },
    { "rope_neox_exact", e_rope_neox_exact, { { 8, 2, 5, 2 } }, -1, 1, 0, 0 },
    { "rope_neox", e_rope_neox, { { 8, 2, 5, 2 } }, -1, 1, 0, 0 },
    { "abs", e_abs, { { 4, 3, 1, 1 } }, 0.2f, 1, 0, 0 },
    { "abs_negative", e_abs, { { 4, 3, 1, 1 } }, -1, -0.2f, 0, 0 },
    { "neg", e_neg, { { 4, 3, 1, 1 } }, -1, 1, 0, 0 },
    { "relu", e_relu, { { 4, 3, 1, 1 } }, 0.2f, 1, 0, 0 },
    { "silu", e_silu, { { 4, 3, 1, 1 } }, -2, 2, 0, 0 },
    { "exp", e_exp, { { 4, 3, 1, 1 } }, -2, 2, 0, 0 },
    { "sigmoid", e_sigmoid, { { 4, 3, 1, 1 } }, -3, 3, 0, 0 },
    { "sin", e_sin, { { 4, 3, 1, 1 } }, -9, 9, 0, 0 },
    { "cos", e_cos, { { 4, 3, 1, 1 } }, -9, 9, 0, 0 },
    { "softplus", e_softplus, { { 4, 3, 1, 1 } }, -3, 3, 0, 0 },
    { "compare", e_compare, { { 4, 3, 1, 1 }, { 1, 1, 1, 1 } }, -1, 1, 1e-6f, 0 },
    { "where", e_where, { { 5, 4, 1, 1 }, { 5, 4, 1, 1 } }, 0.5f, 1, 0, 0 },
    { "where_repeated", e_where_repeated, { { 5, 1, 3, 1 }, { 1, 1, 1, 1 } }, -1, 1, 0, 0 },
    { "where_wide", e_where_wide, { { 5, 1, 3, 2 }, { 5, 4, 1, 2 } }, -1, 1, 0, 0 },
    { "sgn", e_sgn, { { 4, 3, 1, 1 } }, 0.2f, 1, 0, 0 },
    { "step", e_step, { { 4, 3, 1, 1 } }, 0.2f, 1, 0, 0 },
    { "cross_entropy", e_cross_entropy, { { 5, 4, 1, 1 } }, -1, 1, 0, 0 },
    { "cross_entropy_exact", e_cross_entropy_exact, { { 5, 4, 1, 1 } }, -1, 1, 0, 0 },
    { "cross_entropy_eps", e_cross_entropy_eps, { { 5, 4, 1, 1 } }, -1, 1, 0, 0 },
    { "flash_attn", e_flash_attn, { { 4, 3, 2, 1 }, { 4, 5, 2, 1 }, { 5, 4, 2, 1 } }, -1, 1, 0, 0 },
    { "flash_attn_masked", e_flash_attn_masked, { { 3, 3, 4, 2 }, { 3, 5, 2, 2 }, { 5, 3, 2, 2 } }, -1, 1, 0, 0 },
    { "tanh", e_tanh, { { 4, 3, 1, 1 } }, -2, 2, 0, 0 },
    { "elu", e_elu, { { 4, 3, 1, 1 } }, -2, -0.1f, 0, 0 },
    { "elu_positive", e_elu, { { 4, 3, 1, 1 } }, 0.1f, 2, 0, 0 },
    { "gelu", e_gelu, { { 7, 5, 1, 1 } }, -4, 4, 0, 0 },
    { "gelu_quick", e_gelu_quick, { { 7, 5, 1, 1 } }, -4, 4, 0, 0 },
    { "gelu_erf", e_gelu_erf, { { 7, 5, 1, 1 } }, -4, 4, 0, 0 },
    { "gelu_erf_near_0", e_gelu_erf, { { 4, 3, 1, 1 } }, -0.02f, 0.02f, 0, 0 },
    { "hardswish", e_hardswish, { { 4, 3, 1, 1 } }, -2.8f, 2.8f, 0, 0 },
    { "hardswish_outside", e_hardswish, { { 4, 3, 1, 1 } }, 3.1f, 4, 0, 0 },
    { "hardsigmoid", e_hardsigmoid, { { 4, 3, 1, 1 } }, -2.8f, 2.8f, 0, 0 },
    { "leaky_relu", e_leaky_relu, { { 4, 3, 1, 1 } }, 0.1f, 1, 0, 0 },
    { "leaky_relu_negative", e_leaky_relu, { { 4, 3, 1, 1 } }, -1, -0.1f, 0, 0 },
    { "xielu", e_xielu, { { 4, 3, 1, 1 } }, 0.1f, 1, 0, 0 },
    { "xielu_negative", e_xielu, { { 4, 3, 1, 1 } }, -2, -0.1f, 0, 0 },
    { "reglu", e_reglu, { { 6, 3, 1, 1 } }, 0.1f, 1, 0, 0 },
    { "geglu_swapped", e_geglu_swapped, { { 6, 3, 2, 1 } }, -2, 2, 0, 0 },
    { "swiglu_halves", e_swiglu_halves, { { 6, 3, 2, 2 } }, -2, 2, 0, 0 },
    { "geglu", e_geglu, { { 4, 3, 1, 1 }, { 4, 3, 1, 1 } }, -2, 2, 0, 0 },
    { "geglu_erf", e_geglu_erf, { { 4, 3, 1, 1 }, { 4, 3, 1, 1 } }, -2, 2, 0, 0 },
    { "geglu_quick", e_geglu_quick, { { 6, 3, 1, 1 } }, -2, 2, 0, 0 },
    { "swiglu_oai", e_swiglu_oai, { { 4, 3, 1, 1 }, { 4, 3, 1, 1 } }, -2, 2, 0, 0 },
    { "swiglu_oai_cut", e_swiglu_oai_cut, { { 4, 3, 1, 1 }, { 4, 3, 1, 1 } }, -1, 1, 1e-3f, 0 },
    { "swiglu_oai_uncut", e_swiglu_oai_uncut, { { 4, 3, 1, 1 }, { 4, 3, 1, 1 } }, -2, 2, 0, 0 },
    { "norm", e_norm, { { 5, 3, 2, 1 } }, -1, 1, 0, 0 },
    { "group_norm", e_group_norm, { { 3, 2, 4, 2 } }, -1, 1, 0, 0 },
    { "group_norm_eps", e_group_norm_eps, { { 3, 2, 3, 1 } }, -1, 1, 0, 0 },
    { "l2_norm", e_l2_norm, { { 5, 3, 1, 1 } }, 0.3f, 1, 0, 0 },
    { "l2_norm_short", e_l2_norm_short, { { 5, 3, 1, 1 } }, -1, 1, 0, 2e-3f },
    { "concat", e_concat, { { 3, 2, 2, 2 }, { 3, 2, 3, 2 } }, -1, 1, 0, 0 },
    { "pad", e_pad, { { 3, 2, 2, 2 } }, -1, 1, 0, 0 },
    { "pad_ext", e_pad_ext, { { 3, 2, 2, 2 } }, -1, 1, 0, 0 },
    { "roll", e_roll, { { 3, 4, 2, 1 } }, -1, 1, 0, 0 },
    { "upscale", e_upscale, { { 3, 2, 2, 2 } }, -1, 1, 0, 0 },
    { "pool_avg", e_pool_avg, { { 5, 4, 2, 1 } }, -1, 1, 0, 0 },
    { "pool_max", e_pool_max, { { 5, 4, 2, 1 } }, -1, 1, 1e-3f, 0 },
    { "im2col", e_im2col, { { 5, 6, 2, 2 } }, -1, 1, 0, 0 },
    { "conv_2d", e_conv_2d, { { 2, 3, 2, 3 }, { 5, 6, 2, 2 } }, -1, 1, 0, 0 },
    { "conv_2d_dense", e_conv_2d_dense, { { 3, 2, 2, 3 }, { 5, 6, 2, 2 } }, -1, 1, 0, 0 },
    { "conv_2d_large_kernels", e_conv_2d_dense, { { 3, 2, 3, 8 }, { 4, 4, 3, 1 } }, -1, 1, 0, 0 },
    { "conv_2d_few_places", e_conv_2d_dense, { { 3, 1, 2, 9 }, { 4, 1, 2, 2 } }, -1, 1, 0, 0 },
    { "conv_2d_padded", e_conv_2d_padded, { { 2, 3, 2, 3 }, { 4, 3, 2, 2 } }, -1, 1, 0, 0 },
    { "conv_2d_strided", e_conv_2d_strided, { { 3, 3, 2, 3 }, { 7, 6, 2, 2 } }, -1, 1, 0, 0 },
    { "conv_2d_apart", e_conv_2d_strided, { { 2, 1, 2, 3 }, { 7, 6, 2, 2 } }, -1, 1, 0, 0 },
    { "conv_2d_one_place", e_conv_2d_strided, { { 3, 3, 2, 1 }, { 2, 3, 2, 1 } }, -1, 1, 0, 0 },
    { "conv_2d_channels", e_conv_2d_channels, { { 2, 3, 1, 3 }, { 5, 4, 3, 2 } }, -1, 1, 0, 0 },
    { "conv_3d", e_conv_3d, { { 2, 3, 2, 6 }, { 4, 5, 3, 4 } }, -1, 1, 0, 0 },
    { "conv_transpose_2d", e_conv_transpose_2d, { { 3, 2, 2, 3 }, { 2, 3, 3, 2 } }, -1, 1, 0, 0 },
    { "conv_transpose_1d", e_conv_transpose_1d, { { 3, 2, 3, 1 }, { 4, 3, 1, 1 } }, -1, 1, 0, 0 },
    { "ssm_conv", e_ssm_conv, { { 6, 3, 2, 1 }, { 3, 3, 1, 1 } }, -1, 1, 0, 0 },
    { "mul_mat_experts", e_mul_mat_experts, { { 3, 2, 4, 1 }, { 3, 2, 2, 1 } }, -1, 1, 0, 0 },
    { "mul_mat_experts_of_one_row", e_mul_mat_experts, { { 3, 2, 4, 1 }, { 3, 1, 2, 1 } }, -1, 1, 0, 0 },
    { "mul_mat_id", e_mul_mat_id, { { 3, 2, 1, 1 }, { 3, 2, 1, 1 }, { 3, 4, 1, 1 } }, -1, 1, 0, 0 },
    { "conv_2d_dw", e_conv_2d_dw, { { 3, 2, 1, 3 }, { 3, 4, 3, 2 } }, -1, 1, 0, 0 },
    { "set_rows", e_set_rows, { { 3, 4, 1, 1 }, { 3, 3, 1, 1 } }, -1, 1, 0, 0 },
    { "get_rows_batched", e_get_rows_batched, { { 3, 4, 2, 1 } }, -1, 1, 0, 0 },
    { "attention", e_attention, { { 4, 3, 4, 2 }, { 4, 5, 2, 2 }, { 6, 5, 2, 2 } }, -1, 1, 0, 0 },
    { "attention_masked", e_attention_masked, { { 4, 3, 4, 1 }, { 4, 5, 2, 1 }, { 6, 5, 2, 1 } }, -1, 1, 0, 0 },
    { "attention_cap", e_attention_cap, { { 4, 3, 4, 1 }, { 4, 5, 4, 1 }, { 4, 5, 4, 1 } }, -1, 1, 0, 0 },
    { "attention_sinks", e_attention_sinks, { { 4, 3, 4, 1 }, { 4, 5, 4, 1 }, { 4, 5, 4, 1 } }, -1, 1, 0, 0 },
    { "shared", e_shared, { { 4, 3, 1, 1 } }, -1, 1, 0, 0 },
    { "block", e_block, { { 5, 3, 1, 1 }, { 5, 4, 1, 1 } }, 0.2f, 1, 0, 0 },
};

// Calls that refuse operands with the field grad.
static const struct grad_case cases_without_fields[] = {
    { "clamp", e_clamp, { { 4, 3, 1, 1 } }, -1, 1, 1e-3f, 0 },
    { "alibi", e_alibi, { { 4, 3, 2, 1 } }, -1, 1, 0, 0 },
    { "sinks", e_sinks, { { 5, 3, 4, 2 }, { 4, 1, 1, 1 } }, -1, 1, 0, 0 },
};

// The same, in a test of their own: the random values of other cases must not lie at a corner of their functions.
static const struct grad_case mask_cases[] = {
    { "sinks_of_attention", e_sinks_of_attention, { { 4, 3, 4, 2 }, { 4, 5, 2, 2 }, { 4, 1, 1, 1 } }, -1, 1, 0, 0 },
    { "mask_of_attention", e_mask_of_attention, { { 4, 3, 4, 2 }, { 4, 5, 2, 2 }, { 5, 4, 2, 1 } }, -1, 1, 0, 0 },
    { "biased_mask_of_attention", e_biased_mask_of_attention, { { 4, 3, 6, 2 }, { 4, 5, 3, 2 }, { 5, 4, 2, 1 } }, -1, 1,
        0, 0 },
    { "biased_mask", e_biased_mask, { { 5, 3, 7, 2 }, { 5, 3, 1, 2 } }, -1, 1, 0, 0 },
    { "biased_long_mask", e_biased_mask, { { 5, 3, 4, 1 }, { 5, 4, 1, 1 } }, -1, 1, 0, 0 },
    { "long_mask", e_mask_of_soft_max, { { 5, 3, 2, 1 }, { 5, 4, 1, 1 } }, -1, 1, 0, 0 },
};

static void gradients_of_masks_and_sinks(void) {
    for (size_t i = 0; i < 2 * sizeof(mask_cases) / sizeof(mask_cases[0]); i++) {
        run_grad(&mask_cases[i / 2], i % 2 != 0);
    }
}

static void gradients_without_fields(void) {
    for (int second = 0; second < 2; second++) {
        for (size_t i = 0; i < sizeof(grad_cases) / sizeof(grad_cases[0]); i++) {
            if (strcmp(grad_cases[i].name, "shared") != 0) { // in place
                run_grad(&grad_cases[i], second != 0);
            }
        }
        for (size_t i = 0; i < sizeof(cases_without_fields) / sizeof(cases_without_fields[0]); i++) {
            run_grad(&cases_without_fields[i], second != 0);
        }
    }
}

static void central_differences(void) {
    for (size_t i = 0; i < sizeof(grad_cases) / sizeof(grad_cases[0]); i++) {
        run_case(&grad_cases[i]);
    }
}

static void second_derivatives(void) {
    for (size_t i = 0; i < sizeof(grad_cases) / sizeof(grad_cases[0]); i++) {
        run_second(&grad_cases[i]);
    }
}

// Operators without a derivative give an error with the node, and nothing changes.
static void underivable(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, false });
    struct ggml_tensor * x = ggml_set_name(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4), "x");
    ggml_set_param(ctx, x);
    struct ggml_tensor * y = ggml_set_name(ggml_diag(ctx, ggml_sqr(ctx, x)), "y");
    struct ggml_cgraph * gf = ggml_new_graph_custom(ctx, 16, true);
    ggml_build_forward_expand(gf, ggml_sum(ctx, y));
    struct ggml_cgraph * gb = ggml_graph_dup(ctx, gf);
    struct ggml_tensor * before[4];
    for (int i = 0; i < 4; i++) {
        before[i] = gf->nodes[i]->grad;
    }
    CHECK_INT(ggml_build_backward_expand(ctx, gf, gb, false), GGML_STATUS_UNSUPPORTED);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "DIAG 'y' f32 [4, 4] of 'node_1' f32 [4]: the operator has no derivative");
    for (int i = 0; i < 4; i++) {
        CHECK(gf->nodes[i]->grad == before[i] && before[i] != NULL);
    }
    CHECK_INT(gb->n_nodes, gf->n_nodes);

    ggml_clear_error();
    struct ggml_tensor * t = ggml_view_1d(ctx, ggml_transpose(ctx, ggml_reshape_2d(ctx, x, 2, 2)), 2, 0);
    struct ggml_cgraph * gv = ggml_new_graph_custom(ctx, 16, true);
    ggml_build_forward_expand(gv, ggml_sum(ctx, t));
    CHECK_INT(ggml_build_backward_expand(ctx, gv, ggml_graph_dup(ctx, gv), false), GGML_STATUS_UNSUPPORTED);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "contiguous");
    ggml_free(ctx);
}

// ---------------------------------------------------------------------------------------------------------- no memory

enum { SPACE = 1 << 19 }; // bytes of a context

// Without data. The gradient of the kernels has a convolution for each image.
static struct ggml_tensor * loss_of_large_images(struct inputs * in) {
    ggml_set_no_alloc(in->ctx, true);
    in->x[0] = ggml_new_tensor_4d(in->ctx, GGML_TYPE_F32, 3, 2, 1, 2);
    in->x[1] = ggml_new_tensor_4d(in->ctx, GGML_TYPE_F32, 512, 512, 1, 3);
    return ggml_sum(in->ctx, ggml_conv_2d_direct(in->ctx, in->x[0], in->x[1], 1, 1, 0, 0, 1, 1));
}

// Derives a case (NULL: large images) with `left` bytes for the nodes of the gradients. Sets the bytes that they take.
static enum ggml_status derive_within(const struct grad_case * c, void * memory, size_t left, size_t * taken) {
    struct inputs in = { .ctx = ggml_init((struct ggml_init_params){ SPACE, memory, false }) };
    const int n = c != NULL ? make_inputs(c, false, &in) : 2;
    struct ggml_tensor *grads[MAX_INPUTS] = { 0 },
                       *loss = c != NULL ? function_of(c, &in, n, false) : loss_of_large_images(&in);
    const size_t used = ggml_used_mem(in.ctx) + ggml_tensor_overhead() + left;
    CHECK(loss != NULL && used <= SPACE);
    ggml_set_no_alloc(in.ctx, false);
    CHECK(ggml_new_tensor_1d(in.ctx, GGML_TYPE_I8, (int64_t) (SPACE - used)) != NULL);
    ggml_set_no_alloc(in.ctx, true);
    const size_t before = ggml_used_mem(in.ctx);
    ggml_clear_error();
    const enum ggml_status status = ggml_grad(in.ctx, loss, in.x, n, grads);
    *taken = ggml_used_mem(in.ctx) - before;
    ggml_free(in.ctx);
    return status;
}

static void starve(const struct grad_case * c, void * memory) {
    const char * name = c != NULL ? c->name : "large images";
    size_t need, taken;
    CHECK_MSG(derive_within(c, memory, SPACE / 4, &need) == GGML_STATUS_SUCCESS, "%s: %s", name, ggml_last_error());
    for (size_t left = 0; left < need; left += ggml_tensor_overhead()) {
        const enum ggml_status status = derive_within(c, memory, left, &taken);
        CHECK_MSG(status == GGML_STATUS_ALLOC_FAILED, "%s, %zu bytes: %s", name, left, ggml_last_error());
    }
}

// No rule reads a node for which there was no memory.
static void no_memory(void) {
    const int64_t live = gb_test_live_allocs();
    void * memory = gb_aligned_alloc(16, SPACE);
    for (size_t i = 0; i < sizeof(grad_cases) / sizeof(grad_cases[0]); i++) {
        starve(&grad_cases[i], memory);
    }
    for (size_t i = 0; i < sizeof(cases_without_fields) / sizeof(cases_without_fields[0]); i++) {
        starve(&cases_without_fields[i], memory);
    }
    for (size_t i = 0; i < sizeof(mask_cases) / sizeof(mask_cases[0]); i++) {
        starve(&mask_cases[i], memory);
    }
    starve(NULL, memory);
    gb_aligned_free(memory);
    CHECK_INT(gb_test_live_allocs(), live);
}

TEST_MAIN(TEST(central_differences), TEST(second_derivatives), TEST(gradients_without_fields), TEST(underivable),
    TEST(gradients_of_masks_and_sinks), TEST(no_memory))
