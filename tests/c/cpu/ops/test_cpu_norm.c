// NORM, RMS_NORM, RMS_NORM_BACK, GROUP_NORM against their formulas in double.
#include "test_cpu_ops.h"

static double param(const struct ggml_tensor * node) {
    float f;
    memcpy(&f, node->op_params, sizeof(f));
    return (double) f;
}

static double want_norm(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor * a = node->src[0];
    const double n = (double) a->ne[0];
    double mean = 0, var = 0;
    for (int64_t j = 0; j < a->ne[0] && node->op == GGML_OP_NORM; j++) {
        mean += at(a, j, i[1], i[2], i[3]) / n;
    }
    for (int64_t j = 0; j < a->ne[0]; j++) {
        const double v = at(a, j, i[1], i[2], i[3]) - mean;
        var += v * v / n;
    }
    return (at(a, i[0], i[1], i[2], i[3]) - mean) / sqrt(var + param(node));
}

static double want_rms_back(const struct ggml_tensor * node, const int64_t i[4]) { // the derivative, by differences
    const struct ggml_tensor *x = node->src[0], *dy = node->src[1];
    const double n = (double) x->ne[0], h = 1e-5;
    double loss[2], squares = 0;
    for (int64_t j = 0; j < x->ne[0]; j++) {
        squares += pow(at(x, j, i[1], i[2], i[3]), 2);
    }
    const double xi = at(x, i[0], i[1], i[2], i[3]);
    for (int side = 0; side < 2; side++) {
        const double moved = xi + (side ? h : -h);
        const double rms = sqrt((squares - xi * xi + moved * moved) / n + param(node));
        loss[side] = 0;
        for (int64_t j = 0; j < x->ne[0]; j++) {
            loss[side] += at(dy, j, i[1], i[2], i[3]) * (j == i[0] ? moved : at(x, j, i[1], i[2], i[3])) / rms;
        }
    }
    return (loss[1] - loss[0]) / (2 * h);
}

// The same by the formula, without eps.
static double want_rms_back_far(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor *x = node->src[0], *dy = node->src[1];
    double squares = 0, product = 0;
    for (int64_t j = 0; j < x->ne[0]; j++) {
        squares += pow(at(x, j, i[1], i[2], i[3]), 2);
        product += at(x, j, i[1], i[2], i[3]) * at(dy, j, i[1], i[2], i[3]);
    }
    return (at(dy, i[0], i[1], i[2], i[3]) - at(x, i[0], i[1], i[2], i[3]) * product / squares) /
           sqrt(squares / (double) x->ne[0]);
}

static double want_group(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor * a = node->src[0];
    float eps;
    memcpy(&eps, node->op_params + 1, sizeof(eps));
    const int64_t channels = (a->ne[2] + node->op_params[0] - 1) / node->op_params[0];
    double sum = 0, squares = 0, n = 0;
    for (int64_t c = 0; c < a->ne[2]; c++) {
        for (int64_t y = 0; y < a->ne[1] && c / channels == i[2] / channels; y++) {
            for (int64_t x = 0; x < a->ne[0]; x++) {
                const double v = at(a, x, y, c, i[3]);
                sum += v;
                squares += v * v;
                n++;
            }
        }
    }
    return (at(a, i[0], i[1], i[2], i[3]) - sum / n) /
           sqrt(squares / n - sum / n * (sum / n) + (double) (eps != 0 ? eps : 1e-6f));
}

static void rows(void) {
    static const int64_t lengths[] = { 1, 2, 31, 64 };
    for (int s = 0; s < 4; s++) {
        FOR_LAYOUTS(layout) {
            FOR_FLOATS(type) {
                begin();
                const int64_t n = lengths[s];
                struct ggml_tensor * a = fill(tensor(type, layout, n, 3, 2, 2), -1, 4);
                CHECK_NODE(reading(typed(ggml_norm(ctx, stand_in(n, 3, 2, 2), 1e-5f), type), 0, a), want_norm, 3e-6);
                CHECK_NODE(reading(typed(ggml_rms_norm(ctx, stand_in(n, 3, 2, 2), 1e-6f), type), 0, a), want_norm,
                    3e-6);
                CHECK_NODE(onto(reading(typed(ggml_norm(ctx, stand_in(n, 3, 2, 2), 1e-5f), type), 0, a), 0), want_norm,
                    3e-6);
                CHECK_NODE(onto(reading(typed(ggml_rms_norm(ctx, stand_in(n, 3, 2, 2), 1e-6f), type), 0, a), 0),
                    want_norm, 3e-6);
                end();
            }
        }
    }
}

static void long_rows(void) {
    FOR_FLOATS(type) {
        begin();
        struct ggml_tensor * a = random_tensor(type, TRANSPOSED, 1100, 2, 1, 1);
        CHECK_NODE(reading(typed(ggml_norm(ctx, stand_in(1100, 2, 1, 1), 1e-5f), type), 0, a), want_norm, 3e-6);
        CHECK_NODE(onto(reading(typed(ggml_rms_norm(ctx, stand_in(1100, 2, 1, 1), 1e-6f), type), 0, a), 0), want_norm,
            3e-6);
        end();
    }
}

static void far_from_zero(void) {  // subtracts the mean before squaring, so nothing cancels
    begin();
    CHECK_NODE(ggml_norm(ctx, fill(tensor(GGML_TYPE_F32, DENSE, 300, 4, 1, 1), 1000, 1001), 1e-5f), want_norm, 1e-3);
    end();
}

static void shared_rows(void) {
    begin();
    struct ggml_tensor * a = random_tensor(GGML_TYPE_F32, PADDED, 301, 70, 3, 1);
    struct ggml_tensor * nodes[] = { ggml_norm(ctx, a, 1e-5f), ggml_rms_norm(ctx, a, 1e-5f) };
    for (int k = 0; k < 2; k++) {
        CHECK(is_shared(nodes[k]));
        CHECK_NODE(nodes[k], NULL, 0);
    }
    end();
}

static void rms_norm_back(void) {
    FOR_LAYOUTS(layout) {
        FOR_FLOATS(type) {
            begin();
            struct ggml_tensor *x = random_tensor(type, layout, 33, 3, 2, 1),
                               *dy = random_tensor(type, layout, 33, 3, 2, 1);
            struct ggml_tensor * node =
                typed(ggml_rms_norm_back(ctx, stand_in(33, 3, 2, 1), stand_in(33, 3, 2, 1), 1e-3f), type);
            CHECK_NODE(reading(reading(node, 0, x), 1, dy), want_rms_back, 1e-5);
            end();
        }
    }
    begin();
    struct ggml_tensor * node = ggml_rms_norm_back(ctx, random_tensor(GGML_TYPE_F32, DENSE, 300, 140, 1, 1),
        random_tensor(GGML_TYPE_F32, DENSE, 300, 140, 1, 1), 1e-3f);
    CHECK(is_shared(node));
    CHECK_NODE(node, NULL, 0);
    end();
}

static void rms_norm_back_of_very_large_or_small_rows(void) { // products of x and dy overflow or vanish in float
    static const float sizes[] = { 1e-25f, 1e25f };
    for (int s = 0; s < 2; s++) {
        const float size = sizes[s];
        begin();
        struct ggml_tensor * x = fill(tensor(GGML_TYPE_F32, DENSE, 700, 3, 1, 1), size, 2 * size);
        struct ggml_tensor * dy = fill(tensor(GGML_TYPE_F32, DENSE, 700, 3, 1, 1), -size, size);
        CHECK_NODE(ggml_rms_norm_back(ctx, x, dy, 0), want_rms_back_far, 1e-5);
        end();
    }
}

static void group_norm(void) {
    for (int groups = 1; groups <= 8; groups++) { // 7 channels: groups of unequal size, and empty ones
        FOR_LAYOUTS(layout) {
            FOR_FLOATS(type) {
                begin();
                struct ggml_tensor * a = random_tensor(type, layout, 5, 3, 7, 2);
                CHECK_NODE(reading(typed(ggml_group_norm(ctx, stand_in(5, 3, 7, 2), groups), type), 0, a), want_group,
                    1e-5);
                CHECK_NODE(reading(typed(ggml_group_norm_eps(ctx, stand_in(5, 3, 7, 2), groups, 0.5f), type), 0, a),
                    want_group, 1e-5);
                if (groups == 3) {
                    CHECK_NODE(onto(reading(typed(ggml_group_norm(ctx, stand_in(5, 3, 7, 2), groups), type), 0, a), 0),
                        want_group, 1e-5);
                }
                end();
            }
        }
    }
    begin();
    struct ggml_tensor * node = ggml_group_norm(ctx, random_tensor(GGML_TYPE_F32, DENSE, 700, 3, 40, 1), 10);
    CHECK(is_shared(node));
    CHECK_NODE(node, NULL, 0);
    end();
}

TEST_MAIN(TEST(rows), TEST(long_rows), TEST(far_from_zero), TEST(shared_rows), TEST(rms_norm_back),
    TEST(rms_norm_back_of_very_large_or_small_rows), TEST(group_norm))
