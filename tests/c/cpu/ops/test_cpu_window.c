// WIN_PART, WIN_UNPART, GET_REL_POS, ADD_REL_POS against index arithmetic.
#include "test_cpu_ops.h"

static double want_part(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor * a = node->src[0];
    const int64_t w = node->ne[1], across = (a->ne[1] + w - 1) / w;
    const int64_t x = i[3] % across * w + i[1], y = i[3] / across * w + i[2];
    return x < a->ne[1] && y < a->ne[2] ? at(a, i[0], x, y, 0) : 0;
}

static double want_unpart(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor * a = node->src[0];
    const int64_t w = a->ne[1], across = (node->ne[1] + w - 1) / w;
    return at(a, i[0], i[1] % w, i[2] % w, i[2] / w * across + i[1] / w);
}

static double want_get_rel_pos(const struct ggml_tensor * node, const int64_t i[4]) {
    return at(node->src[0], i[0], node->ne[1] - 1 - i[1] + i[2], 0, 0);
}

static double want_add_rel_pos(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor *pw = node->src[1], *ph = node->src[2];
    const int64_t k = pw->ne[0], i1 = i[1] % pw->ne[1], i2 = i[1] / pw->ne[1];
    return at(node->src[0], i[0], i[1], i[2], i[3]) + at(ph, i[0] / k, i1, i2, i[2]) + at(pw, i[0] % k, i1, i2, i[2]);
}

static void windows(void) {
    for (int w = 1; w <= 7; w++) {
        FOR_LAYOUTS(layout) {
            FOR_FLOATS(type) {
                begin();
                struct ggml_tensor * a = random_tensor(type, layout, 3, 7, 5, 1);
                CHECK_NODE(reading(typed(ggml_win_part(ctx, stand_in(3, 7, 5, 1), w), type), 0, a), want_part, 0);
                const int64_t n = ((7 + w - 1) / w) * ((5 + w - 1) / w);
                struct ggml_tensor * parts = random_tensor(type, layout, 3, w, w, n);
                CHECK_NODE(reading(typed(ggml_win_unpart(ctx, stand_in(3, w, w, n), 7, 5, w), type), 0, parts),
                    want_unpart, 0);
                end();
            }
        }
    }
    begin();
    struct ggml_tensor * node = ggml_win_part(ctx, random_tensor(GGML_TYPE_F32, DENSE, 20, 50, 45, 1), 14);
    CHECK(is_shared(node));
    CHECK_NODE(node, want_part, 0);
    node = ggml_win_unpart(ctx, random_tensor(GGML_TYPE_F32, DENSE, 20, 14, 14, 16), 50, 45, 14);
    CHECK(is_shared(node));
    CHECK_NODE(node, want_unpart, 0);
    end();
}

static void rel_pos(void) {
    FOR_LAYOUTS(layout) {
        FOR_FLOATS(type) {
            begin();
            struct ggml_tensor * pos = random_tensor(type, layout, 5, 13, 1, 1);
            CHECK_NODE(reading(typed(ggml_get_rel_pos(ctx, tensor(GGML_TYPE_F16, DENSE, 5, 13, 1, 1), 7, 7), type), 0,
                           pos),
                want_get_rel_pos, 0);
            struct ggml_tensor *a = random_tensor(type, layout, 9, 8, 3, 1),
                               *pw = random_tensor(type, layout, 3, 4, 2, 3),
                               *ph = random_tensor(type, layout, 3, 4, 2, 3);
            struct ggml_tensor * node =
                typed(ggml_add_rel_pos(ctx, stand_in(9, 8, 3, 1), stand_in(3, 4, 2, 3), stand_in(3, 4, 2, 3)), type);
            reading(reading(reading(node, 0, a), 1, pw), 2, ph);
            CHECK_NODE(node, want_add_rel_pos, 1e-6);
            CHECK_NODE(onto(node, 0), want_add_rel_pos, 1e-6);
            end();
        }
    }
    begin();
    CHECK_NODE(ggml_add_rel_pos_inplace(ctx, random_tensor(GGML_TYPE_F32, DENSE, 9, 8, 3, 1),
                   random_tensor(GGML_TYPE_F32, DENSE, 3, 4, 2, 3), random_tensor(GGML_TYPE_F32, DENSE, 3, 4, 2, 3)),
        want_add_rel_pos, 1e-6);
    struct ggml_tensor * node = ggml_add_rel_pos(ctx, random_tensor(GGML_TYPE_F32, DENSE, 100, 100, 5, 1),
        random_tensor(GGML_TYPE_F32, DENSE, 10, 10, 10, 5), random_tensor(GGML_TYPE_F32, DENSE, 10, 10, 10, 5));
    CHECK(is_shared(node));
    CHECK_NODE(node, want_add_rel_pos, 1e-6);
    end();
}

TEST_MAIN(TEST(windows), TEST(rel_pos))
