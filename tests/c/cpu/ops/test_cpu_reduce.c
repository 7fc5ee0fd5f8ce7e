// SUM, SUM_ROWS, MEAN, ARGMAX, ARGSORT against plain loops.
#include "test_cpu_ops.h"

static double want_sum(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor * a = node->src[0];
    double s = 0;
    (void) i;
    FOR_ELEMENTS(a, j) { s += at(a, j[0], j[1], j[2], j[3]); }
    return s;
}

static double want_row(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor * a = node->src[0];
    double s = 0;
    for (int64_t j = 0; j < a->ne[0]; j++) {
        s += at(a, j, i[1], i[2], i[3]);
    }
    return node->op == GGML_OP_MEAN ? s / (double) a->ne[0] : s;
}

static double want_argmax(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor * a = node->src[0];
    int64_t best = 0;
    for (int64_t j = 1; j < a->ne[0]; j++) {
        if (at(a, j, i[0], 0, 0) >= at(a, best, i[0], 0, 0)) {
            best = j;
        }
    }
    return (double) best;
}

// The index of the element with i[0] predecessors: smaller (greater) elements, and equal ones to
// its left.
static double want_argsort(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor * a = node->src[0];
    const double sign = node->op_params[0] == GGML_SORT_ASC ? 1 : -1;
    for (int64_t c = 0; c < a->ne[0]; c++) {
        const double x = sign * at(a, c, i[1], i[2], i[3]);
        int64_t before = 0;
        for (int64_t j = 0; j < a->ne[0]; j++) {
            const double y = sign * at(a, j, i[1], i[2], i[3]);
            before += y < x || (y == x && j < c);
        }
        if (before == i[0]) {
            return (double) c;
        }
    }
    return -1;
}

static void sums(void) {
    static const int64_t shapes[][4] = { { 1, 1, 1, 1 }, { 7, 5, 3, 2 }, { 1100, 3, 1, 2 }, { 1, 40, 9, 1 },
        { 9000, 1, 1, 1 } };
    for (int s = 0; s < 5; s++) {
        const int64_t * n = shapes[s];
        FOR_LAYOUTS(layout) {
            FOR_FLOATS(type) {
                begin();
                struct ggml_tensor * a = random_tensor(type, layout, n[0], n[1], n[2], n[3]);
                CHECK_NODE(ggml_sum(ctx, a), want_sum, 1e-6);
                CHECK_NODE(ggml_sum_rows(ctx, a), want_row, 1e-6);
                CHECK_NODE(ggml_mean(ctx, a), want_row, 1e-6);
                end();
            }
        }
    }
}

static void shared_sums(void) {
    FOR_LAYOUTS(layout) {
        begin();
        struct ggml_tensor * a = random_tensor(GGML_TYPE_F32, layout, 301, 61, 7, 1);
        struct ggml_tensor * sum = ggml_sum(ctx, a);
        CHECK(is_shared(sum));
        CHECK_NODE(sum, want_sum, 1e-6);
        struct ggml_tensor * rows = ggml_sum_rows(ctx, a);
        CHECK(is_shared(rows));
        CHECK_NODE(rows, want_row, 1e-6);
        end();
    }
}

static void sums_of_nothing(void) {
    begin();
    CHECK_NODE(ggml_sum(ctx, tensor(GGML_TYPE_F32, DENSE, 0, 4, 1, 1)), want_sum, 0);
    CHECK_NODE(ggml_sum(ctx, tensor(GGML_TYPE_F32, DENSE, 4, 0, 1, 1)), want_sum, 0);
    CHECK_NODE(ggml_sum_rows(ctx, tensor(GGML_TYPE_F32, DENSE, 0, 4, 1, 1)), want_row, 0);
    end();
}

static void argmax(void) {
    FOR_LAYOUTS(layout) {
        FOR_FLOATS(type) {
            begin();
            CHECK_NODE(ggml_argmax(ctx, random_tensor(type, layout, 1300, 9, 1, 1)), want_argmax, 0);
            CHECK_NODE(ggml_argmax(ctx, fill_int(tensor(type, layout, 20, 9, 1, 1), 0, 3)), want_argmax,
                0); // many ties
            end();
        }
    }
    begin();
    struct ggml_tensor * shared = ggml_argmax(ctx, random_tensor(GGML_TYPE_F32, DENSE, 1001, 60, 1, 1));
    CHECK(is_shared(shared));
    CHECK_NODE(shared, want_argmax, 0);
    end();
}

static void argsort(void) {
    static const int64_t lengths[] = { 1, 2, 7, 8, 9, 16, 31, 100 };
    for (int s = 0; s < 8; s++) {
        FOR_LAYOUTS(layout) {
            for (int order = 0; order < 2; order++) {
                begin();
                CHECK_NODE(ggml_argsort(ctx, random_tensor(GGML_TYPE_F32, layout, lengths[s], 3, 2, 1),
                               (enum ggml_sort_order) order),
                    want_argsort, 0);
                CHECK_NODE(ggml_argsort(ctx, fill_int(tensor(GGML_TYPE_F16, layout, lengths[s], 3, 2, 1), 0, 4),
                               (enum ggml_sort_order) order),
                    want_argsort, 0);
                end();
            }
        }
    }
    begin();
    struct ggml_tensor * shared =
        ggml_argsort(ctx, random_tensor(GGML_TYPE_F32, DENSE, 12, 3700, 1, 1), GGML_SORT_DESC);
    CHECK(is_shared(shared));
    CHECK_NODE(shared, want_argsort, 0);
    end();
}

static void nan_comes_last(void) {
    for (int order = 0; order < 2; order++) {
        begin();
        struct ggml_tensor * a = tensor(GGML_TYPE_F32, DENSE, 12, 1, 1, 1);
        memcpy(a->data, (float[]){ NAN, 3, 1, NAN, 2, INFINITY, -INFINITY, 1, NAN, 0, 5, 4 }, 48);
        struct ggml_tensor * node = ggml_argsort(ctx, a, (enum ggml_sort_order) order);
        give_memory(node);
        CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_SUCCESS);
        const int32_t up[] = { 6, 9, 2, 7, 4, 1, 11, 10, 5, 0, 3, 8 },
                      down[] = { 5, 10, 11, 1, 4, 2, 7, 9, 6, 0, 3, 8 };
        CHECK(memcmp(node->data, order == GGML_SORT_ASC ? up : down, sizeof(up)) == 0);
        end();
    }
}

static void nan_is_the_maximum(void) { // the last of equal maxima, in short rows, in long ones, at every level
    static const int64_t lengths[] = { 1, 2, 17, 64, 65, 1300 };
    for (int s = 0; s < 6; s++) {
        for (int round = 0; round < 20; round++) {
            FOR_LAYOUTS(layout) {
                begin();
                const int64_t n = lengths[s], last = test_random_int(0, n - 1);
                struct ggml_tensor * a = random_tensor(round % 2 ? GGML_TYPE_F16 : GGML_TYPE_F32, layout, n, 2, 1, 1);
                for (int64_t j = 0; j <= last; j++) {
                    const bool none = j == last || test_random() % 8 == 0;
                    write_value(a->type, address(a, (int64_t[]){ j, 0, 0, 0 }),
                        none                     ? NAN
                        : test_random() % 4 == 0 ? INFINITY
                                                 : 1);
                }
                struct ggml_tensor * node = ggml_argmax(ctx, a);
                give_memory(node);
                for (int l = 0; l < gb_level_count(); l++) {
                    const struct gb_level * level = gb_level_at(l);
                    if (!level->usable()) {
                        continue;
                    }
                    CHECK(run_node(node, 1, level->kernels) == GGML_STATUS_SUCCESS);
                    CHECK_INT(((int32_t *) node->data)[0], last);
                }
                end();
            }
        }
    }
}

TEST_MAIN(TEST(nan_is_the_maximum), TEST(sums), TEST(shared_sums), TEST(sums_of_nothing), TEST(argmax), TEST(argsort),
    TEST(nan_comes_last))
