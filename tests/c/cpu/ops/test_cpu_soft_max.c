// SOFT_MAX with scale and mask, its derivative, and rows without a distribution.
#include "test_cpu_ops.h"

static double logit(const struct ggml_tensor * node, int64_t j, const int64_t i[4]) {
    const struct ggml_tensor *a = node->src[0], *mask = node->src[1];
    float scale;
    memcpy(&scale, node->op_params, sizeof(scale));
    const int64_t row = i[1] + a->ne[1] * (i[2] + a->ne[2] * i[3]);
    float bias;
    memcpy(&bias, node->op_params + 1, sizeof(bias));
    int64_t two_power = 1; // the largest one up to the number of heads
    while (2 * two_power <= a->ne[2]) {
        two_power *= 2;
    }
    const double power = i[2] < two_power ? (double) (i[2] + 1) : (double) (i[2] - two_power) + 0.5,
                 slope = bias == 0 ? 1 : pow(2, -(double) bias * power / (double) two_power);
    return (double) scale * at(a, j, i[1], i[2], i[3]) + (mask ? slope * at(mask, j, row % mask->ne[1], 0, 0) : 0);
}

static double want_soft_max(const struct ggml_tensor * node, const int64_t i[4]) {
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < node->ne[0]; j++) {
        max = fmax(max, logit(node, j, i));
    }
    for (int64_t j = 0; j < node->ne[0]; j++) {
        sum += exp(logit(node, j, i) - max);
    }
    return max == -INFINITY ? 0 : exp(logit(node, i[0], i) - max) / sum;
}

static double want_back(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor *dy = node->src[0], *y = node->src[1];
    double dot = 0;
    for (int64_t j = 0; j < y->ne[0]; j++) {
        dot += at(y, j, i[1], i[2], i[3]) * at(dy, j, i[1], i[2], i[3]);
    }
    return at(y, i[0], i[1], i[2], i[3]) * (at(dy, i[0], i[1], i[2], i[3]) - dot);
}

static void without_mask(void) {
    static const int64_t lengths[] = { 1, 5, 64 };
    for (int s = 0; s < 3; s++) {
        FOR_LAYOUTS(layout) {
            FOR_FLOATS(type) {
                begin();
                const int64_t n = lengths[s];
                struct ggml_tensor * a = fill(tensor(type, layout, n, 3, 2, 1), -20, 20);
                CHECK_NODE(reading(typed(ggml_soft_max(ctx, stand_in(n, 3, 2, 1)), type), 0, a), want_soft_max, 2e-6);
                CHECK_NODE(onto(reading(typed(ggml_soft_max(ctx, stand_in(n, 3, 2, 1)), type), 0, a), 0), want_soft_max,
                    2e-6);
                end();
            }
        }
    }
    begin();
    CHECK_NODE(ggml_soft_max_inplace(ctx, random_tensor(GGML_TYPE_F32, DENSE, 40, 3, 1, 1)), want_soft_max, 2e-6);
    CHECK_NODE(ggml_soft_max(ctx, random_tensor(GGML_TYPE_F32, DENSE, 1030, 2, 1, 1)), want_soft_max, 2e-6);
    struct ggml_tensor * shared = ggml_soft_max(ctx, random_tensor(GGML_TYPE_F32, DENSE, 100, 420, 1, 1));
    CHECK(is_shared(shared));
    CHECK_NODE(shared, NULL, 0);
    end();
}

static struct ggml_tensor * random_mask(enum ggml_type type, int layout, int64_t n0, int64_t n1) {
    struct ggml_tensor * m = random_tensor(type, layout, n0, n1, 1, 1);
    FOR_ELEMENTS(m, i) {
        if (test_random() % 3 == 0) {
            write_value(type, address(m, i), -INFINITY);
        }
    }
    return m;
}

static void with_mask(void) {
    for (int64_t rows = 1; rows <= 6; rows += rows == 1 ? 2 : 3) { // 1, 3, 6 mask rows for 6 rows
        FOR_LAYOUTS(layout) {
            FOR_FLOATS(type) {
                begin();
                struct ggml_tensor * node = ggml_soft_max_ext(ctx, random_tensor(GGML_TYPE_F32, DENSE, 37, 6, 2, 2),
                    stand_in(37, rows, 1, 1), 0.3f);
                CHECK_NODE(reading(node, 1, random_mask(type, layout, 37, rows)), want_soft_max, 2e-6);
                end();
            }
        }
    }
}

// The number of heads is a power of two in some cases.
static void with_bias(void) {
    for (int64_t heads = 1; heads <= 12; heads += heads == 1 ? 2 : 3) { // 1, 3, 6, 9, 12
        FOR_FLOATS(type) {
            begin();
            struct ggml_tensor * node = ggml_soft_max_bias(ctx, random_tensor(GGML_TYPE_F32, DENSE, 37, 6, heads, 2),
                stand_in(37, 6, 1, 1), 0.3f, 8);
            CHECK_NODE(reading(node, 1, random_mask(type, PADDED, 37, 6)), want_soft_max, 2e-6);
            end();
        }
    }
    begin();
    struct ggml_tensor * node = ggml_soft_max_bias(ctx, random_tensor(GGML_TYPE_F32, DENSE, 37, 6, 1, 1),
        random_mask(GGML_TYPE_F32, DENSE, 37, 6), 0.3f, 5);
    CHECK_NODE(onto(node, 1), want_soft_max, 2e-6);
    end();
}

static void onto_the_mask(void) {
    begin();
    struct ggml_tensor * node = ggml_soft_max_ext(ctx, random_tensor(GGML_TYPE_F32, DENSE, 37, 6, 1, 1),
        random_mask(GGML_TYPE_F32, DENSE, 37, 6), 0.3f);
    CHECK_NODE(onto(node, 1), want_soft_max, 2e-6);
    end();
}

static void rows_that_are_masked_out(void) { // zeros, but NaN is not hidden
    begin();
    struct ggml_tensor * a = tensor(GGML_TYPE_F32, DENSE, 20, 2, 1, 1);
    FOR_ELEMENTS(a, i) { write_value(a->type, address(a, i), -INFINITY); }
    struct ggml_tensor * node = ggml_soft_max(ctx, a);
    CHECK_NODE(node, want_soft_max, 0);
    ((float *) a->data)[25] = NAN;
    CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_SUCCESS);
    CHECK(((float *) node->data)[0] == 0.0f && isnan(((float *) node->data)[25]));
    ((float *) a->data)[24] = 1;
    CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_SUCCESS);
    CHECK(isnan(((float *) node->data)[25]));
    end();
}

static void back(void) {
    FOR_LAYOUTS(layout) {
        FOR_FLOATS(type) {
            begin();
            struct ggml_tensor *dy = random_tensor(type, layout, 45, 3, 2, 2),
                               *y = fill(tensor(type, layout, 45, 3, 2, 2), 0, 0.1f);
            struct ggml_tensor * node =
                typed(ggml_soft_max_back(ctx, stand_in(45, 3, 2, 2), stand_in(45, 3, 2, 2)), type);
            CHECK_NODE(reading(reading(node, 0, dy), 1, y), want_back, 2e-6);
            struct ggml_tensor * over =
                typed(ggml_soft_max_back(ctx, stand_in(45, 3, 2, 2), stand_in(45, 3, 2, 2)), type);
            CHECK_NODE(onto(reading(reading(over, 0, dy), 1, y), layout % 2), want_back, 2e-6);
            end();
        }
    }
}

TEST_MAIN(TEST(without_mask), TEST(with_mask), TEST(with_bias), TEST(onto_the_mask), TEST(rows_that_are_masked_out),
    TEST(back))
