// REPEAT, REPEAT_BACK, CONCAT, PAD, UPSCALE against index arithmetic.
#include "test_cpu_ops.h"

static const enum ggml_type plain[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_I8, GGML_TYPE_I16,
    GGML_TYPE_I32, GGML_TYPE_I64, GGML_TYPE_F64 };
#define FOR_PLAIN(type) \
    for (int type##_i = 0, type = plain[0]; type##_i < 8; type = plain[++type##_i < 8 ? type##_i : 0])

static struct ggml_tensor * ints(enum ggml_type type, int layout, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    return fill_int(tensor(type, layout, n0, n1, n2, n3), -100, 100);
}

static double want_repeat(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor * a = node->src[0];
    return at(a, i[0] % a->ne[0], i[1] % a->ne[1], i[2] % a->ne[2], i[3] % a->ne[3]);
}

static double want_repeat_back(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor * a = node->src[0];
    double s = 0;
    FOR_ELEMENTS(a, j) {
        if (j[0] % node->ne[0] == i[0] && j[1] % node->ne[1] == i[1] && j[2] % node->ne[2] == i[2] &&
            j[3] % node->ne[3] == i[3]) {
            s += at(a, j[0], j[1], j[2], j[3]);
        }
    }
    return s;
}

static double want_concat(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    return i[2] < a->ne[2] ? at(a, i[0], i[1], i[2], i[3]) : at(b, i[0], i[1], i[2] - a->ne[2], i[3]);
}

static double want_pad(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor * a = node->src[0];
    return i[0] < a->ne[0] && i[1] < a->ne[1] && i[2] < a->ne[2] && i[3] < a->ne[3] ? at(a, i[0], i[1], i[2], i[3]) : 0;
}

static double want_upscale(const struct ggml_tensor * node, const int64_t i[4]) {
    const int f = node->op_params[0];
    return at(node->src[0], i[0] / f, i[1] / f, i[2], i[3]);
}

static void repeats(void) {
    FOR_PLAIN(type) {
        FOR_LAYOUTS(layout) {
            begin();
            CHECK_NODE(ggml_repeat(ctx, ints(type, layout, 3, 2, 2, 1), tensor(type, DENSE, 9, 4, 2, 3)), want_repeat,
                0);
            CHECK_NODE(ggml_repeat(ctx, ints(type, layout, 1, 2, 1, 1), tensor(type, DENSE, 9, 4, 2, 3)), want_repeat,
                0);
            CHECK_NODE(ggml_repeat(ctx, ints(type, layout, 9, 4, 2, 3), tensor(type, DENSE, 9, 4, 2, 3)), want_repeat,
                0);
            end();
        }
    }
}

static void repeats_back(void) {
    static const int64_t shapes[][4] = { { 3, 2, 2, 1 }, { 1, 2, 1, 1 }, { 1, 1, 1, 1 }, { 6, 1, 2, 3 },
        { 6, 4, 1, 3 } };
    for (int s = 0; s < 5; s++) {
        const int64_t * n = shapes[s];
        FOR_LAYOUTS(layout) {
            FOR_FLOATS(type) {
                begin();
                CHECK_NODE(ggml_repeat_back(ctx, random_tensor(type, layout, 6, 4, 2, 3),
                               tensor(type, DENSE, n[0], n[1], n[2], n[3])),
                    want_repeat_back, 2e-6);
                end();
            }
        }
    }
    begin();
    struct ggml_tensor * wide = ggml_repeat_back(ctx, random_tensor(GGML_TYPE_F32, DENSE, 5000, 9, 1, 1),
        tensor(GGML_TYPE_F32, DENSE, 2500, 1, 1, 1));
    CHECK(is_shared(wide));
    CHECK_NODE(wide, NULL,
        0); // short rows are checked above, long rows below
    CHECK_NODE(ggml_repeat_back(ctx, random_tensor(GGML_TYPE_F16, DENSE, 1400, 3, 1, 1),
                   tensor(GGML_TYPE_F16, DENSE, 700, 1, 1, 1)),
        want_repeat_back, 2e-6);
    end();
}

static void concat_pad_upscale(void) {
    FOR_PLAIN(type) {
        FOR_LAYOUTS(layout) {
            begin();
            CHECK_NODE(ggml_concat(ctx, ints(type, layout, 5, 3, 2, 2), ints(type, DENSE, 5, 3, 4, 2)), want_concat, 0);
            CHECK_NODE(ggml_concat(ctx, ints(type, DENSE, 5, 3, 2, 2), ints(type, layout, 5, 3, 1, 2)), want_concat, 0);
            end();
            begin();
            CHECK_NODE(ggml_pad(ctx, ints(type, layout, 5, 3, 2, 2), 1, 2, 3, 1), want_pad, 0);
            CHECK_NODE(ggml_pad(ctx, ints(type, layout, 5, 3, 2, 2), 0, 0, 0, 0), want_pad, 0);
            CHECK_NODE(ggml_upscale(ctx, ints(type, layout, 5, 3, 2, 2), 3), want_upscale, 0);
            CHECK_NODE(ggml_upscale(ctx, ints(type, layout, 5, 3, 2, 2), 1), want_upscale, 0);
            end();
        }
    }
}

static void shared_work(void) {
    begin();
    struct ggml_tensor * nodes[] = {
        ggml_repeat(ctx, random_tensor(GGML_TYPE_F32, SWAPPED, 50, 5, 3, 1),
            tensor(GGML_TYPE_F32, DENSE, 100, 50, 9, 1)),
        ggml_pad(ctx, random_tensor(GGML_TYPE_F32, DENSE, 99, 200, 2, 1), 1, 50, 1, 0),
        ggml_upscale(ctx, random_tensor(GGML_TYPE_F32, DENSE, 70, 80, 2, 1), 2),
        ggml_concat(ctx, random_tensor(GGML_TYPE_F32, DENSE, 99, 100, 2, 2),
            random_tensor(GGML_TYPE_F32, PADDED, 99, 100, 1, 2)),
    };
    want_fn * const wants[] = { want_repeat, want_pad, want_upscale, want_concat };
    for (int k = 0; k < 4; k++) {
        CHECK(is_shared(nodes[k]));
        CHECK_NODE(nodes[k], wants[k], 0);
    }
    end();
}

TEST_MAIN(TEST(repeats), TEST(repeats_back), TEST(concat_pad_upscale), TEST(shared_work))
