// DIAG_MASK_INF, DIAG_MASK_ZERO, ALIBI against index arithmetic.
#include "test_cpu_ops.h"

static double want_mask(const struct ggml_tensor * node, const int64_t i[4]) {
    if (i[0] > node->op_params[0] + i[1]) {
        return node->op == GGML_OP_DIAG_MASK_INF ? -INFINITY : 0;
    }
    return at(node->src[0], i[0], i[1], i[2], i[3]);
}

static double want_alibi(const struct ggml_tensor * node, const int64_t i[4]) {
    const int n_head = node->op_params[1];
    const double h = exp2(floor(log2(n_head)));
    float bias;
    memcpy(&bias, &node->op_params[2], sizeof(bias));
    const double m0 = exp2(-(double) bias / h), m1 = exp2(-(double) bias / (2 * h));
    const double k = (double) (i[2] + i[3] * node->ne[2]);
    return at(node->src[0], i[0], i[1], i[2], i[3]) +
           (double) i[0] * (k < h ? pow(m0, k + 1) : pow(m1, 2 * (k - h) + 1));
}

static void masks(void) {
    static const int past[] = { 0, 3, 100 };
    for (int p = 0; p < 3; p++) {
        FOR_LAYOUTS(layout) {
            FOR_FLOATS(type) {
                begin();
                struct ggml_tensor * a = random_tensor(type, layout, 11, 6, 3, 2);
                CHECK_NODE(reading(typed(ggml_diag_mask_inf(ctx, stand_in(11, 6, 3, 2), past[p]), type), 0, a),
                    want_mask, 0);
                CHECK_NODE(reading(typed(ggml_diag_mask_zero(ctx, stand_in(11, 6, 3, 2), past[p]), type), 0, a),
                    want_mask, 0);
                CHECK_NODE(onto(reading(typed(ggml_diag_mask_inf(ctx, stand_in(11, 6, 3, 2), past[p]), type), 0, a), 0),
                    want_mask, 0);
                end();
            }
        }
    }
    begin();
    struct ggml_tensor * node =
        ggml_diag_mask_inf_inplace(ctx, random_tensor(GGML_TYPE_F32, DENSE, 220, 200, 1, 1), 20);
    CHECK(is_shared(node));
    CHECK_NODE(node, want_mask, 0);
    CHECK_NODE(ggml_diag_mask_zero_inplace(ctx, random_tensor(GGML_TYPE_F32, DENSE, 9, 8, 2, 1), 1), want_mask, 0);
    end();
}

static void alibi(void) {
    for (int heads = 1; heads <= 13; heads += 4) {
        FOR_LAYOUTS(layout) {
            FOR_FLOATS(type) {
                begin();
                struct ggml_tensor * a = random_tensor(type, layout, 530, 3, heads, 1);
                CHECK_NODE(onto(reading(typed(ggml_alibi(ctx, stand_in(530, 3, heads, 1), 0, heads, 8.0f), type), 0, a),
                               0),
                    want_alibi, 1e-6);
                end();
            }
        }
    }
    begin();
    struct ggml_tensor * node = ggml_alibi(ctx, random_tensor(GGML_TYPE_F32, DENSE, 400, 13, 8, 1), 0, 8, 8.0f);
    CHECK(is_shared(node));
    CHECK_NODE(node, want_alibi, 1e-6);
    end();
}

TEST_MAIN(TEST(masks), TEST(alibi))
