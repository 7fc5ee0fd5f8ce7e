// OPT_STEP_ADAMW and OPT_STEP_SGD, in place.
#include "tensor/numbers.h"
#include "test_cpu_ops.h"

static double number(const struct ggml_tensor * params, int i) { return at(params, i, 0, 0, 0); }

static double want_sgd(const struct ggml_tensor * node, const int64_t i[4]) {
    const double alpha = number(node->src[2], 0), wd = number(node->src[2], 1);
    return at(node->src[0], i[0], i[1], i[2], i[3]) * (1 - alpha * wd) -
           alpha * at(node->src[1], i[0], i[1], i[2], i[3]);
}

static double want_adamw(const struct ggml_tensor * node, const int64_t i[4]) {
    const double a = at(node->src[0], i[0], i[1], i[2], i[3]), b = at(node->src[1], i[0], i[1], i[2], i[3]);
    const struct ggml_tensor * params = node->src[node->op_params[0] == GB_ADAMW_WEIGHTS ? 3 : 2];
    switch (node->op_params[0]) {
        case GB_ADAMW_MEAN: return number(params, 1) * a + (1 - number(params, 1)) * b;
        case GB_ADAMW_SQUARES: return number(params, 2) * a + (1 - number(params, 2)) * b * b;
        default: break;
    }
    const double alpha = number(params, 0), v = at(node->src[2], i[0], i[1], i[2], i[3]);
    return a * (1 - alpha * number(params, 4)) -
           alpha * (b * number(params, 5)) / (sqrt(v * number(params, 6)) + number(params, 3));
}

static struct ggml_tensor * numbers(int64_t n) { return fill(tensor(GGML_TYPE_F32, DENSE, n, 1, 1, 1), 0.1f, 0.9f); }

static void sgd(void) {
    FOR_LAYOUTS(layout) {
        begin();
        struct ggml_tensor * a = random_tensor(GGML_TYPE_F32, layout, 37, 5, 3, 2);
        struct ggml_tensor * g = random_tensor(GGML_TYPE_F32, (layout + 1) % N_LAYOUTS, 37, 5, 3, 2);
        CHECK_NODE(ggml_opt_step_sgd(ctx, a, g, numbers(2)), want_sgd, 1e-6);
        end();
    }
    begin();
    struct ggml_tensor * a = random_tensor(GGML_TYPE_F32, DENSE, 70000, 1, 1, 1);
    struct ggml_tensor * node =
        ggml_opt_step_sgd(ctx, a, random_tensor(GGML_TYPE_F32, DENSE, 70000, 1, 1, 1), numbers(2));
    CHECK(is_shared(node));
    CHECK_NODE(node, want_sgd, 1e-6);
    end();
}

// The three nodes of a step, each by itself.
static void check_adamw(int layout, int64_t n0, int64_t n1, int64_t n2) {
    begin();
    struct ggml_tensor * t[3];
    for (int k = 0; k < 3; k++) {
        t[k] = random_tensor(GGML_TYPE_F32, (layout + k) % N_LAYOUTS, n0, n1, n2, 1);
    }
    struct ggml_tensor * v = fill(tensor(GGML_TYPE_F32, layout, n0, n1, n2, 1), 0, 2);
    struct ggml_tensor * node = ggml_opt_step_adamw(ctx, t[0], t[1], t[2], v, numbers(7));
    CHECK(node != NULL && node->src[1]->view_src != NULL && node->src[2]->view_src != NULL);
    CHECK_NODE(node->src[1], want_adamw, 1e-6);
    CHECK_NODE(node->src[2], want_adamw, 1e-6);
    CHECK_NODE(node, want_adamw, 3e-6);
    end();
}

static void adamw(void) {
    FOR_LAYOUTS(layout) { check_adamw(layout, 37, 5, 3); }
    check_adamw(DENSE, 70000, 1, 1);
}

// The gradient of half the sum of squares is the tensor itself.
static void a_tensor_may_be_its_gradient(void) {
    begin();
    struct ggml_tensor * a = random_tensor(GGML_TYPE_F32, DENSE, 70, 5, 1, 1);
    CHECK_NODE(ggml_opt_step_sgd(ctx, a, a, numbers(2)), want_sgd, 1e-6);
    struct ggml_tensor * v = fill(tensor(GGML_TYPE_F32, DENSE, 70, 5, 1, 1), 0, 2);
    struct ggml_tensor * node = ggml_opt_step_adamw(ctx, a, v, v, v, numbers(7));
    CHECK_NODE(node->src[1], want_adamw, 1e-6);
    CHECK_NODE(node->src[2], want_adamw, 1e-6);
    CHECK_NODE(node, want_adamw, 3e-6);
    end();
}

// Nodes that a program made wrongly are refused with a reason.
static void wrong_nodes(void) {
    begin();
    struct ggml_tensor * a = random_tensor(GGML_TYPE_F32, DENSE, 8, 1, 1, 1);
    struct ggml_tensor * node = ggml_opt_step_adamw(ctx, a, a, a, a, numbers(7));
    CHECK(gb_cpu_op_of(node)->unsupported(node) == NULL);
    node->src[3] = NULL;
    CHECK_STR(gb_cpu_op_of(node)->unsupported(node), "a source is missing");
    node->op_params[0] = 5;
    CHECK_STR(gb_cpu_op_of(node)->unsupported(node), "unknown part of AdamW");
    node = ggml_opt_step_sgd(ctx, a, a, ggml_view_1d(ctx, numbers(9), 2, 4));
    CHECK(gb_cpu_op_of(node)->unsupported(node) == NULL);
    node->src[2]->nb[0] = 8;
    CHECK_STR(gb_cpu_op_of(node)->unsupported(node), "the parameters must be contiguous f32");
    end();
}

TEST_MAIN(TEST(sgd), TEST(adamw), TEST(a_tensor_may_be_its_gradient), TEST(wrong_nodes))
