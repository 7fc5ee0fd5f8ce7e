// ADD, SUB, MUL, DIV with broadcasting, ADD1, ACC and SET against their definitions.
#include "test_cpu_ops.h"

static double want_binary(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const double x = at(a, i[0], i[1], i[2], i[3]);
    const double y = at(b, i[0] % b->ne[0], i[1] % b->ne[1], i[2] % b->ne[2], i[3] % b->ne[3]);
    switch (node->op) {
        case GGML_OP_ADD:
        case GGML_OP_ADD1: return x + y;
        case GGML_OP_SUB: return x - y;
        case GGML_OP_MUL: return x * y;
        default: return x / y;
    }
}

typedef struct ggml_tensor * builder(struct ggml_context *, struct ggml_tensor *, struct ggml_tensor *);
static builder * const builders[] = { ggml_add, ggml_sub, ggml_mul, ggml_div };

static struct ggml_tensor * positive(enum ggml_type type, int layout, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    return fill(tensor(type, layout, n0, n1, n2, n3), 0.5f, 3);
}

static void same_shape(void) {
    FOR_LAYOUTS(layout) {
        FOR_FLOATS(type) {
            FOR_FLOATS(other) {
                begin();
                for (int op = 0; op < 4; op++) {
                    CHECK_NODE(builders[op](ctx, random_tensor(type, layout, 7, 5, 3, 2),
                                   positive(other, DENSE, 7, 5, 3, 2)),
                        want_binary, 1e-6);
                    CHECK_NODE(builders[op](ctx, random_tensor(type, DENSE, 7, 5, 3, 2),
                                   positive(other, layout, 7, 5, 3, 2)),
                        want_binary, 1e-6);
                }
                end();
            }
        }
    }
}

static void broadcasts(void) { // src[1] repeats, in single dimensions and in all
    static const int64_t shapes[][4] = { { 12, 6, 4, 2 }, { 1, 6, 4, 2 }, { 12, 1, 1, 1 }, { 1, 1, 1, 1 },
        { 4, 3, 2, 1 }, { 12, 6, 1, 2 }, { 3, 6, 4, 2 } };
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        const int64_t * ne = shapes[s];
        FOR_LAYOUTS(layout) {
            FOR_FLOATS(type) {
                begin();
                for (int op = 0; op < 4; op++) {
                    CHECK_NODE(builders[op](ctx, random_tensor(type, DENSE, 12, 6, 4, 2),
                                   positive(type, layout, ne[0], ne[1], ne[2], ne[3])),
                        want_binary, 1e-6);
                }
                end();
            }
        }
    }
}

static void long_rows_with_a_period(void) { // runs begin inside src[1]
    begin();
    CHECK_NODE(ggml_add(ctx, random_tensor(GGML_TYPE_F32, DENSE, 2100, 3, 1, 1),
                   random_tensor(GGML_TYPE_F32, DENSE, 7, 1, 1, 1)),
        want_binary, 1e-6);
    CHECK_NODE(ggml_mul(ctx, random_tensor(GGML_TYPE_F16, PADDED, 2100, 3, 1, 1),
                   random_tensor(GGML_TYPE_F32, TRANSPOSED, 700, 3, 1, 1)),
        want_binary, 1e-6);
    end();
}

static void onto_either_source(void) {
    FOR_LAYOUTS(layout) {
        FOR_FLOATS(type) {
            for (int k = 0; k < 2; k++) {
                begin();
                for (int op = 0; op < 4; op++) {
                    CHECK_NODE(onto(builders[op](ctx, random_tensor(type, layout, 600, 3, 2, 1),
                                        positive(type, layout, 600, 3, 2, 1)),
                                   k),
                        want_binary, 1e-6);
                }
                struct ggml_tensor * x = positive(type, layout, 9, 3, 2, 1); // both sources and the result
                CHECK_NODE(onto(ggml_div(ctx, x, x), 0), want_binary, 1e-6);
                end();
            }
        }
    }
    begin();
    CHECK_NODE(ggml_mul_inplace(ctx, random_tensor(GGML_TYPE_F32, PADDED, 9, 4, 2, 1),
                   random_tensor(GGML_TYPE_F32, DENSE, 9, 1, 1, 1)),
        want_binary, 1e-6);
    end();
}

static void shared_work(void) {
    FOR_FLOATS(type) {
        begin();
        struct ggml_tensor * a = random_tensor(type, PADDED, 211, 40, 7, 1);
        struct ggml_tensor * b = random_tensor(GGML_TYPE_F32, DENSE, 211, 1, 7, 1);
        struct ggml_tensor * node = ggml_add(ctx, a, b);
        CHECK(is_shared(node));
        CHECK_NODE(node, want_binary, 1e-6);
        CHECK_NODE(onto(ggml_mul(ctx, a, b), 0), want_binary, 1e-6);
        end();
    }
}

static void add_cast_and_add1(void) {
    FOR_LAYOUTS(layout) {
        begin();
        CHECK_NODE(ggml_add_cast(ctx, random_tensor(GGML_TYPE_F16, layout, 9, 4, 2, 3),
                       random_tensor(GGML_TYPE_F32, layout, 9, 4, 2, 3), GGML_TYPE_F32),
            want_binary, 1e-6);
        FOR_FLOATS(type) {
            struct ggml_tensor * a = random_tensor(type, layout, 9, 4, 2, 3);
            CHECK_NODE(ggml_add1(ctx, a, random_tensor(GGML_TYPE_F32, DENSE, 1, 1, 1, 1)), want_binary, 1e-6);
            CHECK_NODE(onto(ggml_add1(ctx, a, random_tensor(type, DENSE, 1, 1, 1, 1)), 0), want_binary, 1e-6);
        }
        CHECK_NODE(onto(ggml_add1(ctx, random_tensor(GGML_TYPE_F32, DENSE, 1, 1, 1, 1),
                            random_tensor(GGML_TYPE_F32, DENSE, 1, 1, 1, 1)),
                       1),
            want_binary, 1e-6);
        end();
    }
}

// ------------------------------------------------------------------------------------------------------------ ACC, SET

// Finds the elements of src[1] that go to this place, from the last to the first.
static double want_region(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const int64_t es = (int64_t) ggml_type_size(node->type);
    const int64_t byte =
        i[0] * es + i[1] * (int64_t) node->nb[1] + i[2] * (int64_t) node->nb[2] + i[3] * (int64_t) node->nb[3];
    double v = at(a, i[0], i[1], i[2], i[3]);
    FOR_ELEMENTS(b, j) {
        if (byte == node->op_params[3] + j[0] * es + j[1] * node->op_params[0] + j[2] * node->op_params[1] +
                        j[3] * node->op_params[2]) {
            v = at(b, j[0], j[1], j[2], j[3]) + (node->op == GGML_OP_ACC ? v : 0);
        }
    }
    return v;
}

static void regions(void) {
    FOR_LAYOUTS(layout) {
        begin();
        struct ggml_tensor * a = random_tensor(GGML_TYPE_F32, DENSE, 11, 7, 3, 2);
        struct ggml_tensor * b = random_tensor(GGML_TYPE_F32, layout, 5, 3, 2, 2);
        const size_t offset = 2 * a->nb[0] + 3 * a->nb[1];
        CHECK_NODE(ggml_acc(ctx, a, b, a->nb[1], a->nb[2], a->nb[3], offset), want_region, 1e-6);
        CHECK_NODE(ggml_acc_inplace(ctx, a, b, a->nb[1], a->nb[2], a->nb[3], offset), want_region, 1e-6);
        CHECK_NODE(ggml_set(ctx, a, b, a->nb[1], a->nb[2], a->nb[3], offset), want_region, 0);
        CHECK_NODE(ggml_set_inplace(ctx, a, b, 2 * a->nb[1], a->nb[2], a->nb[3], 0), want_region, 0);
        CHECK_NODE(ggml_set_1d(ctx, a, random_tensor(GGML_TYPE_F32, layout, 60, 1, 1, 1), 16), want_region, 0);
        CHECK_NODE(ggml_set_2d(ctx, a, random_tensor(GGML_TYPE_F32, layout, 4, 6, 1, 1), a->nb[1], 4), want_region, 0);
        CHECK_NODE(ggml_acc(ctx, a, random_tensor(GGML_TYPE_F32, layout, 4, 6, 1, 1), 4, 0, 0, 8), want_region,
            2e-6); // places overlap
        end();
    }
}

static void shared_regions(void) {
    begin();
    struct ggml_tensor * a = random_tensor(GGML_TYPE_F32, DENSE, 200, 300, 1, 1);
    struct ggml_tensor * b = random_tensor(GGML_TYPE_F32, PADDED, 10, 9, 1, 1);
    struct ggml_tensor * node = ggml_acc(ctx, a, b, a->nb[1], a->nb[2], a->nb[3], 40 * a->nb[1]);
    CHECK(is_shared(node));
    CHECK_NODE(node, want_region, 1e-6);
    end();
}

static void overlapping_regions_are_not_shared(void) { // the result depends on the order of the additions
    begin();
    struct ggml_tensor * a = random_tensor(GGML_TYPE_F32, DENSE, 200, 300, 1, 1);
    struct ggml_tensor * node =
        ggml_acc(ctx, a, random_tensor(GGML_TYPE_F32, DENSE, 200, 250, 1, 1), 4, a->nb[2], a->nb[3], 0);
    CHECK_INT(gb_cpu_op_of(node)->n_tasks(node, 5), 1);
    CHECK_NODE(node, NULL, 0);
    end();
}

static void a_region_beyond_the_result(void) {
    begin();
    struct ggml_tensor * a = random_tensor(GGML_TYPE_F32, DENSE, 8, 4, 1, 1);
    struct ggml_tensor * node =
        ggml_acc(ctx, a, random_tensor(GGML_TYPE_F32, DENSE, 8, 1, 1, 1), a->nb[1], a->nb[2], a->nb[3], 3 * a->nb[1]);
    give_memory(node);
    node->op_params[3] += 4;
    CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_UNSUPPORTED);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "the region goes beyond the result");
    end();
}

TEST_MAIN(TEST(same_shape), TEST(broadcasts), TEST(long_rows_with_a_period), TEST(onto_either_source),
    TEST(shared_work), TEST(add_cast_and_add1), TEST(regions), TEST(shared_regions),
    TEST(overlapping_regions_are_not_shared), TEST(a_region_beyond_the_result))
