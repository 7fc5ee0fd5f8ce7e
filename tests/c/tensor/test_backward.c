// Backward graphs: parameters, reset, keep, failures that change nothing, depth, checkpoints,
// failing allocations. The oracle is derivatives known on paper. test_derivatives.c tests single
// operators.
#include "base/mem.h"
#include "tensor/tensor.h"
#include "test.h"

static struct ggml_context * own(void) { return ggml_init((struct ggml_init_params){ 0, NULL, false }); }

static struct ggml_tensor * param(struct ggml_context * ctx, int64_t n, float value) {
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, n);
    if (t == NULL || ggml_set_param(ctx, t) != GGML_STATUS_SUCCESS) {
        return NULL;
    }
    return ggml_set_f32(t, value);
}

static void run(struct ggml_context * ctx, struct ggml_cgraph * gf, struct ggml_cgraph * gb,
    struct ggml_tensor * loss) {
    CHECK_INT(ggml_graph_reset(gf), GGML_STATUS_SUCCESS);
    ggml_set_f32(loss->grad, 1.0f);
    CHECK_INT(ggml_graph_compute_with_ctx(ctx, gb, 1), GGML_STATUS_SUCCESS);
}

static void parameters(void) {
    struct ggml_context * ctx = own();
    struct ggml_tensor * x = ggml_set_name(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 3, 2), "x");
    CHECK_INT(ggml_set_param(ctx, x), GGML_STATUS_SUCCESS);
    CHECK(x->is_param && x->grad != NULL && ggml_are_same_shape(x, x->grad) && x->grad->type == GGML_TYPE_F32);
    CHECK_STR(x->grad->name, "x (grad)");
    struct ggml_tensor * grad = x->grad;
    CHECK_INT(ggml_set_param(ctx, x), GGML_STATUS_INVALID_STATE);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "'x' has a gradient already");
    CHECK(x->grad == grad);
    CHECK_INT(ggml_set_param(NULL, x), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_set_param(ctx, NULL), GGML_STATUS_INVALID_ARGUMENT);
    ggml_free(ctx);
}

static void known_values(void) { // d/dx sum(x^2 + 3 x) = 2 x + 3
    struct ggml_context * ctx = own();
    struct ggml_tensor * x = param(ctx, 4, 5.0f);
    struct ggml_tensor * loss = ggml_sum(ctx, ggml_add(ctx, ggml_sqr(ctx, x), ggml_scale(ctx, x, 3.0f)));
    struct ggml_cgraph * gf = ggml_new_graph_custom(ctx, 32, true);
    ggml_build_forward_expand(gf, loss);
    CHECK(gf->nodes[0] == x); // a parameter is a node
    struct ggml_cgraph * gb = ggml_graph_dup(ctx, gf);
    CHECK_INT(ggml_build_backward_expand(ctx, gf, gb, false), GGML_STATUS_SUCCESS);
    run(ctx, gf, gb, loss);
    for (int i = 0; i < 4; i++) {
        CHECK(ggml_get_f32_1d(x->grad, i) == 13.0f);
    }
    ggml_set_f32(x, -1.0f); // again with other values
    run(ctx, gf, gb, loss);
    for (int i = 0; i < 4; i++) {
        CHECK(ggml_get_f32_1d(x->grad, i) == 1.0f);
    }
    CHECK(ggml_get_f32_1d(loss, 0) == 4 * (1 - 3));
    ggml_free(ctx);
}

static void unused_parameter(void) { // its gradient is still zero
    struct ggml_context * ctx = own();
    struct ggml_tensor * x = param(ctx, 2, 5.0f);
    struct ggml_tensor * u = param(ctx, 2, 7.0f);
    struct ggml_tensor * loss = ggml_sum(ctx, x);
    struct ggml_cgraph * gf = ggml_new_graph_custom(ctx, 32, true);
    ggml_build_forward_expand(gf, u);
    ggml_build_forward_expand(gf, loss);
    struct ggml_cgraph * gb = ggml_graph_dup(ctx, gf);
    CHECK_INT(ggml_build_backward_expand(ctx, gf, gb, false), GGML_STATUS_SUCCESS);
    ggml_set_f32(u->grad, 9.0f);
    run(ctx, gf, gb, loss);
    CHECK(ggml_get_f32_1d(u->grad, 1) == 0.0f && ggml_get_f32_1d(x->grad, 1) == 1.0f);
    ggml_free(ctx);
}

static void keep(void) {
    struct ggml_context * ctx = own();
    struct ggml_tensor * x = param(ctx, 3, 2.0f);
    struct ggml_tensor * loss = ggml_sum(ctx, ggml_sqr(ctx, x));
    struct ggml_cgraph * gf = ggml_new_graph_custom(ctx, 32, true);
    ggml_build_forward_expand(gf, loss);
    struct ggml_cgraph * gb[2];
    struct ggml_tensor * grad[2];
    for (int i = 0; i < 2; i++) { // twice the same derivative, each with its own tensors
        struct ggml_tensor *old_x = x->grad, *old_loss = loss->grad;
        gb[i] = ggml_graph_dup(ctx, gf);
        CHECK_INT(ggml_build_backward_expand(ctx, gf, gb[i], true), GGML_STATUS_SUCCESS);
        grad[i] = x->grad;
        CHECK(x->grad != old_x && loss->grad != old_loss && gf->grads[gf->n_nodes - 1] == loss->grad);
        run(ctx, gf, gb[i], loss);
        CHECK(ggml_get_f32_1d(grad[i], 2) == 4.0f);
    }
    CHECK(grad[0] != grad[1]);
    ggml_free(ctx);
}

static void reset(void) {
    struct ggml_context * ctx = own();
    struct ggml_cgraph * g = ggml_new_graph_custom(ctx, 8, true);
    struct ggml_tensor * x = param(ctx, 3, 2.0f);
    struct ggml_tensor * y = ggml_sqr(ctx, x);
    ggml_build_forward_expand(g, y);
    ggml_set_f32(x->grad, 1);
    ggml_set_f32(y->grad, 1);
    CHECK_INT(ggml_graph_reset(g), GGML_STATUS_SUCCESS);
    CHECK(ggml_get_f32_1d(x->grad, 2) == 0.0f && ggml_get_f32_1d(y->grad, 0) == 0.0f && ggml_get_f32_1d(x, 0) == 2.0f);
    CHECK_INT(ggml_graph_reset(ggml_new_graph(ctx)), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "without gradients");
    CHECK_INT(ggml_graph_reset(NULL), GGML_STATUS_INVALID_ARGUMENT);
    x->grad->data = NULL;
    CHECK_INT(ggml_graph_reset(g), GGML_STATUS_INVALID_STATE);
    ggml_free(ctx);
}

static void bad_arguments(void) {
    struct ggml_context * ctx = own();
    struct ggml_cgraph * none = ggml_new_graph(ctx);
    struct ggml_cgraph * gf = ggml_new_graph_custom(ctx, 8, true);
    struct ggml_cgraph * gb = ggml_new_graph_custom(ctx, 8, true);
    CHECK_INT(ggml_build_backward_expand(ctx, none, gb, false), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "without gradients");
    CHECK_INT(ggml_build_backward_expand(ctx, gf, gb, false), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "no nodes");
    CHECK_INT(ggml_build_backward_expand(NULL, gf, gb, false), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_build_backward_expand(ctx, NULL, gb, false), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_build_backward_expand(ctx, gf, NULL, false), GGML_STATUS_INVALID_ARGUMENT);
    ggml_build_forward_expand(gf, ggml_sqr(ctx, param(ctx, 1, 1)));
    struct ggml_tensor * list[1] = { gf->nodes[0] };
    CHECK_INT(ggml_build_backward_gradient_checkpointing(ctx, gf, gb, NULL, list, 1), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_build_backward_gradient_checkpointing(ctx, gf, gb, gb, list, 1), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_build_backward_gradient_checkpointing(ctx, gf, gb, none, NULL, 1), GGML_STATUS_INVALID_ARGUMENT);
    ggml_free(ctx);
}

// gb has fixed memory, too little for the backward part.
static void full_graph(void) {
    static _Alignas(16) char memory[4000];
    struct ggml_context * fixed = ggml_init((struct ggml_init_params){ sizeof(memory), memory, true });
    struct ggml_cgraph * gb = ggml_new_graph_custom(fixed, 5, true);
    REQUIRE(gb != NULL);
    struct ggml_context * ctx = own();
    struct ggml_tensor * x = param(ctx, 3, 2.0f);
    struct ggml_tensor * loss = ggml_sum(ctx, ggml_sqr(ctx, ggml_silu(ctx, x)));
    struct ggml_cgraph * gf = ggml_new_graph_custom(ctx, 32, true);
    ggml_build_forward_expand(gf, loss);
    CHECK_INT(ggml_graph_cpy(gf, gb), GGML_STATUS_SUCCESS);
    struct ggml_tensor *old_x = x->grad, *old_loss = loss->grad;
    CHECK_INT(ggml_build_backward_expand(ctx, gf, gb, true), GGML_STATUS_ALLOC_FAILED);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "ggml_build_backward_expand: the graph is full: it has space for 5 nodes");
    CHECK(x->grad == old_x && loss->grad == old_loss && gf->grads[0] == old_x);
    CHECK(gb->n_nodes == 4 && gb->nodes[3] == loss);
    struct ggml_cgraph * large = ggml_graph_dup(ctx, gf);
    CHECK_INT(ggml_build_backward_expand(ctx, gf, large, false), GGML_STATUS_SUCCESS);
    run(ctx, gf, large, loss);
    const double s = 1 / (1 + exp(-2.0)), y = 2 * s; // 2 y y'
    CHECK(fabs((double) ggml_get_f32_1d(x->grad, 0) - 2 * y * (s + y * (1 - s))) < 1e-4);
    ggml_free(fixed);
    ggml_free(ctx);
}

static void deep_graph(void) { // no recursion
    enum { N = 200000 };
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, false });
    struct ggml_tensor * x = param(ctx, 1, 1.0f);
    struct ggml_tensor * t = x;
    for (int i = 0; i < N; i++) {
        t = ggml_neg(ctx, t);
    }
    struct ggml_cgraph * gf = ggml_new_graph_custom(ctx, 100, true);
    CHECK_INT(ggml_build_forward_expand(gf, t), GGML_STATUS_SUCCESS);
    struct ggml_cgraph * gb = ggml_graph_dup(ctx, gf);
    CHECK_INT(ggml_build_backward_expand(ctx, gf, gb, false), GGML_STATUS_SUCCESS);
    CHECK_INT(gb->n_nodes, 2 * N + 1);

    struct ggml_cgraph * gc = ggml_new_graph_custom(ctx, 100, true);
    struct ggml_cgraph * tmp = ggml_new_graph_custom(ctx, 100, true);
    struct ggml_tensor * checkpoints = gf->nodes[1];
    CHECK_INT(ggml_build_backward_gradient_checkpointing(ctx, gf, gc, tmp, &checkpoints, 1), GGML_STATUS_SUCCESS);
    ggml_free(ctx);
}

// --------------------------------------------------------------------------------------------------------- checkpoints

enum { LAYERS = 6, WIDTH = 4 };

struct model {
    struct ggml_context * ctx;
    struct ggml_tensor * w[LAYERS];
    struct ggml_tensor * layer[LAYERS];
    struct ggml_tensor * loss;
    struct ggml_cgraph * gf;
};

// A view, a reshape and an in-place form between the products.
static bool build_model(struct model * m, struct ggml_context * ctx) {
    *m = (struct model){ .ctx = ctx };
    struct ggml_tensor * h = ctx ? ggml_new_tensor_2d(ctx, GGML_TYPE_F32, WIDTH, 3) : NULL;
    for (int i = 0; h != NULL && i < WIDTH * 3; i++) {
        ggml_set_f32_1d(h, i, test_random_float(-1, 1));
    }
    for (int k = 0; k < LAYERS && h != NULL; k++) {
        m->w[k] = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, WIDTH, WIDTH);
        if (m->w[k] == NULL || ggml_set_param(ctx, m->w[k]) != GGML_STATUS_SUCCESS) {
            return false;
        }
        for (int i = 0; i < WIDTH * WIDTH; i++) {
            ggml_set_f32_1d(m->w[k], i, test_random_float(-1, 1));
        }
        h = ggml_mul_mat(ctx, m->w[k], h);
        h = ggml_scale_inplace(ctx, h, 0.75f);
        h = ggml_silu(ctx, ggml_reshape_1d(ctx, h, WIDTH * 3));
        h = ggml_reshape_2d(ctx, ggml_view_1d(ctx, h, WIDTH * 3, 0), WIDTH, 3);
        m->layer[k] = h;
    }
    m->loss = h ? ggml_sum(ctx, ggml_sqr(ctx, h)) : NULL;
    m->gf = m->loss ? ggml_new_graph_custom(ctx, 64, true) : NULL;
    return m->gf != NULL && ggml_build_forward_expand(m->gf, m->loss) == GGML_STATUS_SUCCESS;
}

static int count_clones(const struct ggml_cgraph * g) {
    int n = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        n += strstr(g->nodes[i]->name, "(clone)") != NULL;
    }
    return n;
}

static void checkpoints(void) {
    float expected[LAYERS][WIDTH * WIDTH];
    for (int variant = 0; variant < 4; variant++) {
        struct model m;
        test_seed = 5;
        REQUIRE(build_model(&m, own()));
        const int n_forward = m.gf->n_nodes;
        struct ggml_cgraph * gb = ggml_new_graph_custom(m.ctx, 64, true);
        struct ggml_cgraph * tmp = ggml_new_graph_custom(m.ctx, 64, true);
        struct ggml_tensor * list[] = { m.layer[1], m.layer[3], m.w[2] };
        const int n[] = { 0, 1, 2, 3 };
        CHECK_INT(ggml_build_backward_gradient_checkpointing(m.ctx, m.gf, gb, tmp, list, n[variant]),
            GGML_STATUS_SUCCESS);
        CHECK_INT(m.gf->n_nodes, n_forward);
        CHECK((count_clones(gb) > 0) == (variant > 0));
        // the backward part may read only some forward tensors
        for (int i = n_forward; i < gb->n_nodes && variant > 0; i++) {
            const struct ggml_tensor * t = gb->nodes[i];
            for (int k = -1; k < GGML_MAX_SRC; k++) {
                const struct ggml_tensor * src = k < 0 ? t->view_src : t->src[k];
                for (int j = 0; j < n_forward && src != NULL; j++) {
                    bool allowed = m.gf->nodes[j] != src || src->is_param;
                    for (int c = 0; c < n[variant]; c++) {
                        allowed = allowed || src == list[c] || src == list[c]->view_src;
                    }
                    CHECK_MSG(allowed, "variant %d: backward node %d reads '%s'", variant, i, src->name);
                }
            }
        }
        run(m.ctx, m.gf, gb, m.loss);
        for (int k = 0; k < LAYERS; k++) {
            if (variant == 0) {
                memcpy(expected[k], m.w[k]->grad->data, sizeof(expected[k]));
            } else {
                CHECK_MSG(memcmp(expected[k], m.w[k]->grad->data, sizeof(expected[k])) == 0,
                    "variant %d: gradient of layer %d", variant, k);
            }
        }
        ggml_free(m.ctx);
    }
}

// --------------------------------------------------------------------------------------------- gradients of gradients

// f = sum of x1^3 x2 + x2^2. The Hessian is by hand; a second backward graph gives each row.
static void hessian_of_a_polynomial(void) {
    const float x1 = 2.0f, x2 = -3.0f;
    const float hessian[2][2] = { { 6 * x1 * x2, 3 * x1 * x1 }, { 3 * x1 * x1, 2 } };
    for (int row = 0; row < 2; row++) {
        struct ggml_context * ctx = own();
        struct ggml_tensor *a = param(ctx, 1, x1), *b = param(ctx, 1, x2);
        struct ggml_tensor * f = ggml_add(ctx, ggml_mul(ctx, ggml_mul(ctx, ggml_sqr(ctx, a), a), b), ggml_sqr(ctx, b));
        struct ggml_cgraph * gf = ggml_new_graph_custom(ctx, 16, true);
        CHECK_INT(ggml_build_forward_expand(gf, f), GGML_STATUS_SUCCESS);
        struct ggml_cgraph * gb = ggml_graph_dup(ctx, gf);
        CHECK_INT(ggml_build_backward_expand(ctx, gf, gb, false), GGML_STATUS_SUCCESS);
        run(ctx, gf, gb, f);
        struct ggml_tensor * g = row == 0 ? a->grad : b->grad;
        CHECK(g->grad == NULL && ggml_get_f32_1d(g, 0) == (row == 0 ? 3 * x1 * x1 * x2 : x1 * x1 * x1 + 2 * x2));
        struct ggml_cgraph * gbb = ggml_graph_dup(ctx, gb);
        CHECK_INT(ggml_build_backward_expand(ctx, gb, gbb, true), GGML_STATUS_SUCCESS);
        CHECK(g->grad != NULL && a->grad != g && b->grad != g);
        CHECK_INT(ggml_graph_reset(gb), GGML_STATUS_SUCCESS);
        ggml_set_f32(g->grad, 1.0f);
        CHECK_INT(ggml_graph_compute_with_ctx(ctx, gbb, 1), GGML_STATUS_SUCCESS);
        CHECK(ggml_get_f32_1d(a->grad, 0) == hessian[row][0] && ggml_get_f32_1d(b->grad, 0) == hessian[row][1]);
        ggml_free(ctx);
    }
}

// x^5 derived three times.
static void third_derivative(void) {
    struct ggml_context * ctx = own();
    struct ggml_tensor * x = param(ctx, 1, 2.0f);
    struct ggml_tensor * y = ggml_mul(ctx, ggml_sqr(ctx, ggml_sqr(ctx, x)), x);
    struct ggml_cgraph * g = ggml_new_graph_custom(ctx, 16, true);
    CHECK_INT(ggml_build_forward_expand(g, y), GGML_STATUS_SUCCESS);
    for (int order = 1; order <= 3; order++) {
        struct ggml_cgraph * gb = ggml_graph_dup(ctx, g);
        CHECK_INT(ggml_build_backward_expand(ctx, g, gb, order > 1), GGML_STATUS_SUCCESS);
        CHECK_INT(ggml_graph_reset(g), GGML_STATUS_SUCCESS);
        ggml_set_f32(y->grad, 1.0f);
        CHECK_INT(ggml_graph_compute_with_ctx(ctx, gb, 1), GGML_STATUS_SUCCESS);
        CHECK(ggml_get_f32_1d(x->grad, 0) == (order == 1 ? 80.0f : order == 2 ? 160.0f : 240.0f));
        y = x->grad;
        g = gb;
    }
    ggml_free(ctx);
}

// The product of the Hessian and a vector of ones, with and without recomputed nodes.
static void checkpoints_keep_second_derivatives(void) {
    float expected[LAYERS][WIDTH * WIDTH];
    for (int variant = 0; variant < 2; variant++) {
        struct model m;
        test_seed = 5;
        REQUIRE(build_model(&m, own()));
        struct ggml_cgraph * gb = ggml_new_graph_custom(m.ctx, 64, true);
        struct ggml_cgraph * tmp = ggml_new_graph_custom(m.ctx, 64, true);
        CHECK_INT(ggml_build_backward_gradient_checkpointing(m.ctx, m.gf, gb, tmp, &m.layer[2], variant),
            GGML_STATUS_SUCCESS);
        CHECK((count_clones(gb) > 0) == (variant > 0));
        struct ggml_tensor *seed = m.loss->grad, *dot = NULL;
        for (int k = 0; k < LAYERS; k++) {
            struct ggml_tensor * part = ggml_sum(m.ctx, m.w[k]->grad);
            dot = dot ? ggml_add(m.ctx, dot, part) : part;
        }
        CHECK_INT(ggml_build_forward_expand(gb, dot), GGML_STATUS_SUCCESS);
        struct ggml_cgraph * gbb = ggml_graph_dup(m.ctx, gb);
        CHECK_INT(ggml_build_backward_expand(m.ctx, gb, gbb, true), GGML_STATUS_SUCCESS);
        CHECK_INT(ggml_graph_reset(gb), GGML_STATUS_SUCCESS);
        ggml_set_f32(seed, 1.0f);
        REQUIRE(dot->grad != NULL);
        ggml_set_f32(dot->grad, 1.0f);
        CHECK_INT(ggml_graph_compute_with_ctx(m.ctx, gbb, 2), GGML_STATUS_SUCCESS);
        for (int k = 0; k < LAYERS; k++) {
            for (int i = 0; i < WIDTH * WIDTH; i++) {
                const float value = ggml_get_f32_1d(m.w[k]->grad, i);
                if (variant == 0) {
                    expected[k][i] = value;
                    CHECK(value != 0.0f);
                }
                CHECK_MSG(fabsf(value - expected[k][i]) <= 1e-5f * (1 + fabsf(value)), "layer %d, element %d: %g, %g",
                    k, i, (double) value, (double) expected[k][i]);
            }
        }
        ggml_free(m.ctx);
    }
}

// After a failure nothing changes, and no node keeps a new gradient.
static void a_failed_second_build_changes_nothing(void) {
    struct ggml_context * ctx = own();
    struct ggml_tensor * x = param(ctx, 4, 0.5f);
    struct ggml_tensor * loss = ggml_cross_entropy_loss_eps(ctx, x, ggml_set_f32(ggml_dup_tensor(ctx, x), 0.25f), 0.1f);
    struct ggml_cgraph * gf = ggml_new_graph_custom(ctx, 16, true);
    CHECK_INT(ggml_build_forward_expand(gf, loss), GGML_STATUS_SUCCESS);
    struct ggml_cgraph * gb = ggml_graph_dup(ctx, gf);
    CHECK_INT(ggml_build_backward_expand(ctx, gf, gb, false), GGML_STATUS_SUCCESS);
    struct ggml_tensor * first = x->grad;
    struct ggml_cgraph * gbb = ggml_graph_dup(ctx, gb);
    const int n = gbb->n_nodes;
    CHECK_INT(ggml_build_backward_expand(ctx, gb, gbb, true), GGML_STATUS_UNSUPPORTED);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "CROSS_ENTROPY_LOSS_BACK");
    CHECK(x->grad == first && first->grad == NULL && gbb->n_nodes == n);
    ggml_free(ctx);
}

// ----------------------------------------------------------------------------------------------------------- no memory

static bool scenario(bool with_checkpoints) {
    struct model m;
    const bool built = build_model(&m, own());
    struct ggml_cgraph * gb = built ? ggml_new_graph_custom(m.ctx, 4, true) : NULL;
    struct ggml_cgraph * tmp = gb ? ggml_new_graph_custom(m.ctx, 4, true) : NULL;
    bool ok = false;
    if (tmp != NULL) {
        struct ggml_tensor * grads[LAYERS];
        for (int k = 0; k < LAYERS; k++) {
            grads[k] = m.w[k]->grad;
        }
        const struct ggml_cgraph before = *m.gf;
        const enum ggml_status status =
            with_checkpoints ? ggml_build_backward_gradient_checkpointing(m.ctx, m.gf, gb, tmp, &m.layer[2], 1)
                             : ggml_build_backward_expand(m.ctx, m.gf, gb, true);
        ok = status == GGML_STATUS_SUCCESS;
        CHECK(memcmp(&before, m.gf, sizeof(before)) == 0);
        if (!ok) {
            CHECK_INT(status, GGML_STATUS_ALLOC_FAILED);
            CHECK(gb->n_nodes == 0 && tmp->n_nodes == 0);
            for (int k = 0; k < LAYERS; k++) {
                CHECK(m.w[k]->grad == grads[k]);
            }
            for (int i = 0; i < m.gf->n_nodes; i++) {
                CHECK(m.gf->grads[i] == m.gf->nodes[i]->grad);
            }
            gb_test_fail_alloc(0, false);
            CHECK_INT(ggml_build_backward_expand(m.ctx, m.gf, gb, false), GGML_STATUS_SUCCESS);
        }
    }
    ggml_free(m.ctx);
    return ok;
}

static void failing_allocations(void) {
    const int64_t before = gb_test_live_allocs();
    for (int kind = 0; kind < 2; kind++) {
        int n = 1;
        bool ok = false;
        for (; !ok && n < 1000; n++) {
            gb_test_fail_alloc(n, false);
            ok = scenario(kind == 1);
            gb_test_fail_alloc(0, false);
            CHECK_INT(gb_test_live_allocs(), before);
        }
        CHECK(ok);
        CHECK_MSG(n > 10, "only %d allocations", n - 2);
    }
}

TEST_MAIN(TEST(parameters), TEST(known_values), TEST(unused_parameter), TEST(keep), TEST(reset), TEST(bad_arguments),
    TEST(full_graph), TEST(deep_graph), TEST(checkpoints), TEST(hessian_of_a_polynomial), TEST(third_derivative),
    TEST(checkpoints_keep_second_derivatives), TEST(a_failed_second_build_changes_nothing), TEST(failing_allocations))
