// Elementwise operators of one source against their definitions in double.
#include "test_cpu_ops.h"

static double reference(enum ggml_unary_op op, double x) {
    switch (op) {
        case GGML_UNARY_OP_ABS: return fabs(x);
        case GGML_UNARY_OP_SGN: return x > 0 ? 1 : x < 0 ? -1 : 0;
        case GGML_UNARY_OP_NEG: return -x;
        case GGML_UNARY_OP_STEP: return x > 0;
        case GGML_UNARY_OP_TANH: return tanh(x);
        case GGML_UNARY_OP_ELU: return x > 0 ? x : expm1(x);
        case GGML_UNARY_OP_RELU: return fmax(x, 0);
        case GGML_UNARY_OP_GELU:
            return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
        case GGML_UNARY_OP_GELU_QUICK: return x / (1 + exp(-1.702 * x));
        case GGML_UNARY_OP_SILU: return x / (1 + exp(-x));
        case GGML_UNARY_OP_HARDSWISH: return x * fmin(1, fmax(0, (x + 3) / 6));
        case GGML_UNARY_OP_HARDSIGMOID: return fmin(1, fmax(0, (x + 3) / 6));
        case GGML_UNARY_OP_GELU_ERF: return 0.5 * x * erfc(-x / sqrt(2));
        case GGML_UNARY_OP_EXP: return exp(x);
        case GGML_UNARY_OP_SIGMOID: return 1 / (1 + exp(-x));
        case GGML_UNARY_OP_SIN: return sin(x);
        case GGML_UNARY_OP_COS: return cos(x);
        case GGML_UNARY_OP_SOFTPLUS: return log1p(exp(x));
        case GGML_UNARY_OP_EXPM1: return expm1(x);
        case GGML_UNARY_OP_FLOOR: return floor(x);
        case GGML_UNARY_OP_CEIL: return ceil(x);
        case GGML_UNARY_OP_ROUND: return round(x);
        case GGML_UNARY_OP_TRUNC: return trunc(x);
        case GGML_UNARY_OP_COUNT: break;
    }
    return NAN;
}

static double want_unary(const struct ggml_tensor * node, const int64_t i[4]) {
    return reference((enum ggml_unary_op) node->op_params[0], at(node->src[0], i[0], i[1], i[2], i[3]));
}

static void every_unary_op(void) {
    for (int op = 0; op < GGML_UNARY_OP_COUNT; op++) {
        FOR_FLOATS(type) {
            begin();
            CHECK_NODE(ggml_unary(ctx, fill(tensor(type, DENSE, 37, 3, 2, 2), -6, 6), (enum ggml_unary_op) op),
                want_unary, 2e-6);
            CHECK_NODE(ggml_unary(ctx, fill(tensor(type, DENSE, 1, 1, 1, 1), -6, 6), (enum ggml_unary_op) op),
                want_unary, 2e-6);
            end();
        }
    }
}

static void layouts(void) {
    FOR_LAYOUTS(layout) {
        FOR_FLOATS(type) {
            begin();
            CHECK_NODE(ggml_silu(ctx, random_tensor(type, layout, 5, 4, 3, 2)), want_unary, 2e-6);
            CHECK_NODE(ggml_neg(ctx, random_tensor(type, layout, 1025, 2, 1, 3)), want_unary, 0);
            CHECK_NODE(onto(ggml_tanh(ctx, random_tensor(type, layout, 700, 2, 3, 1)), 0), want_unary, 2e-6);
            end();
        }
    }
}

static void in_place_forms(void) {
    begin();
    CHECK_NODE(ggml_relu_inplace(ctx, random_tensor(GGML_TYPE_F32, DENSE, 33, 5, 1, 1)), want_unary, 0);
    CHECK_NODE(ggml_gelu_inplace(ctx, random_tensor(GGML_TYPE_F32, PADDED, 33, 5, 2, 1)), want_unary, 2e-6);
    end();
}

static void shared_work(void) {
    FOR_FLOATS(type) {
        begin();
        struct ggml_tensor * flat = ggml_gelu(ctx, random_tensor(type, DENSE, 50001, 1, 1, 1));
        CHECK(is_shared(flat));
        CHECK_NODE(flat, want_unary, 2e-6);
        struct ggml_tensor * rows = ggml_abs(ctx, random_tensor(type, TRANSPOSED, 301, 171, 1, 1));
        CHECK(is_shared(rows));
        CHECK_NODE(onto(rows, 0), want_unary, 0);
        end();
    }
}

static double want_named(const struct ggml_tensor * node, const int64_t i[4]) {
    const double x = at(node->src[0], i[0], i[1], i[2], i[3]);
    float p[2];
    memcpy(p, node->op_params, sizeof(p));
    switch (node->op) {
        case GGML_OP_SQR: return x * x;
        case GGML_OP_SQRT: return sqrt(x);
        case GGML_OP_LOG: return log(x);
        case GGML_OP_LEAKY_RELU: return x > 0 ? x : x * (double) p[0];
        case GGML_OP_CLAMP: return fmax(fmin(x, (double) p[1]), (double) p[0]);
        case GGML_OP_SCALE: return x * (double) p[0];
        default: return NAN;
    }
}

static void operators_of_their_own(void) {
    FOR_LAYOUTS(layout) {
        FOR_FLOATS(type) {
            begin();
            CHECK_NODE(ggml_sqr(ctx, random_tensor(type, layout, 19, 3, 2, 1)), want_named, 1e-6);
            CHECK_NODE(ggml_sqrt(ctx, fill(tensor(type, layout, 19, 3, 2, 1), 0, 9)), want_named, 1e-6);
            CHECK_NODE(ggml_log(ctx, fill(tensor(type, layout, 19, 3, 2, 1), 0.01f, 9)), want_named, 1e-6);
            CHECK_NODE(ggml_leaky_relu(ctx, random_tensor(type, layout, 19, 3, 2, 1), 0.1f, false), want_named, 1e-6);
            CHECK_NODE(ggml_leaky_relu(ctx, random_tensor(type, layout, 19, 3, 2, 1), 0.1f, true), want_named, 1e-6);
            CHECK_NODE(ggml_clamp(ctx, random_tensor(type, layout, 19, 3, 2, 1), -0.5f, 1.0f), want_named, 0);
            CHECK_NODE(onto(ggml_scale(ctx, random_tensor(type, DENSE, 19, 3, 2, 1), -1.5f), 0), want_named, 1e-6);
            end();
        }
    }
}

static double want_silu_back(const struct ggml_tensor * node, const int64_t i[4]) {
    const double x = at(node->src[0], i[0], i[1], i[2], i[3]), dy = at(node->src[1], i[0], i[1], i[2], i[3]);
    const double s = 1 / (1 + exp(-x));
    return dy * (s + x * s * (1 - s));
}

static void silu_back(void) {
    FOR_LAYOUTS(layout) {
        FOR_FLOATS(type) {
            begin();
            struct ggml_tensor * x = fill(tensor(type, layout, 21, 3, 2, 2), -9, 9);
            CHECK_NODE(ggml_silu_back(ctx, x, random_tensor(type, DENSE, 21, 3, 2, 2)), want_silu_back, 2e-6);
            end();
        }
    }
}

static void silu_back_far_out(void) { // the derivative tends to 0 and 1, not to NaN
    begin();
    struct ggml_tensor * x = tensor(GGML_TYPE_F32, DENSE, 4, 1, 1, 1);
    memcpy(x->data, (float[]){ -200, -90, 90, 200 }, 16);
    CHECK_NODE(ggml_silu_back(ctx, x, fill(tensor(GGML_TYPE_F32, DENSE, 4, 1, 1, 1), 1, 2)), want_silu_back, 1e-6);
    memcpy(x->data, (float[]){ -INFINITY, INFINITY, NAN, 0 }, 16);
    struct ggml_tensor *dy = tensor(GGML_TYPE_F32, DENSE, 4, 1, 1, 1), *node = ggml_silu_back(ctx, x, dy);
    memcpy(dy->data, (float[]){ 3, 3, 3, 3 }, 16);
    give_memory(node);
    CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_SUCCESS);
    const float * z = node->data;
    CHECK(z[0] == 0.0f && z[1] == 3.0f && isnan(z[2]) && z[3] == 1.5f);
    end();
}

static void refused(void) {
    begin();
    struct ggml_tensor * node = ggml_abs(ctx, tensor(GGML_TYPE_F32, DENSE, 32, 1, 1, 1));
    give_memory(node);
    struct ggml_tensor * blocks = tensor(GGML_TYPE_Q4_0, DENSE, 32, 1, 1, 1);
    struct ggml_tensor * floats = node->src[0];
    node->src[0] = blocks;
    CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_UNSUPPORTED);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "quantized");
    node->src[0] = floats;
    node->src[0]->type = GGML_TYPE_I32;
    CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_UNSUPPORTED);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "source 0 must be f32, f16 or bf16");
    node->src[0]->type = GGML_TYPE_F32;
    node->op_params[0] = GGML_UNARY_OP_COUNT;
    CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_UNSUPPORTED);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "unknown unary op");
    end();
}

static void no_elements(void) {
    begin();
    struct ggml_tensor * a = tensor(GGML_TYPE_F32, DENSE, 0, 3, 1, 1);
    CHECK_NODE(ggml_abs(ctx, a), want_unary, 0);
    end();
}

// Results larger than caches, whose rows may have gaps or odd addresses, equal those of small ones.
// Memory around them is unchanged.
static void large_results(void) {
    enum { N = 3001, ROWS = 3000 };
    struct ggml_context * big = ggml_init((struct ggml_init_params){ (size_t) 200 << 20, NULL, false });
    struct ggml_tensor *x = ggml_new_tensor_2d(big, GGML_TYPE_F32, N, ROWS), *y = ggml_dup_tensor(big, x);
    for (int64_t i = 0; i < (int64_t) N * ROWS; i++) {
        ((float *) x->data)[i] = (float) (i % 1009 - 500);
        ((float *) y->data)[i] = (float) (i % 503);
    }
    struct ggml_tensor * part = ggml_view_2d(big, x, N - 1, ROWS, x->nb[1], sizeof(float)); // rows with gaps
    struct ggml_tensor * z[] = { ggml_neg(big, x), ggml_sub(big, x, y), ggml_neg(big, part),
        ggml_neg_inplace(big, ggml_neg(big, x)) };
    struct ggml_cgraph * g = ggml_new_graph(big);
    for (int i = 0; i < 4; i++) {
        ggml_build_forward_expand(g, z[i]);
    }
    CHECK_INT(ggml_graph_compute_with_ctx(big, g, 3), GGML_STATUS_SUCCESS);
    int64_t wrong = 0;
    for (int64_t i = 0; i < (int64_t) N * ROWS; i++) {
        const float a = ((const float *) x->data)[i], b = ((const float *) y->data)[i];
        wrong += ((const float *) z[0]->data)[i] != -a || ((const float *) z[1]->data)[i] != a - b ||
                 ((const float *) z[3]->data)[i] != a;
        wrong += i % N > 0 && ((const float *) z[2]->data)[i / N * (N - 1) + i % N - 1] != -a;
    }
    CHECK_INT(wrong, 0);
    ggml_free(big);
}

TEST_MAIN(TEST(every_unary_op), TEST(layouts), TEST(in_place_forms), TEST(shared_work), TEST(operators_of_their_own),
    TEST(silu_back), TEST(silu_back_far_out), TEST(refused), TEST(no_elements), TEST(large_results))
