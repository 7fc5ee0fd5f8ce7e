// GET_ROWS, GET_ROWS_BACK, DIAG: rows by index, and what happens to bad indices.
#include "test_cpu_ops.h"

static double want_get_rows(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    return at(a, i[0], (int64_t) at(b, i[1], i[2], i[3], 0), i[2], i[3]);
}

static double want_get_rows_back(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    double s = 0;
    for (int64_t j = 0; j < a->ne[1]; j++) {
        s += (int64_t) at(b, j, 0, 0, 0) == i[1] ? at(a, i[0], j, 0, 0) : 0;
    }
    return s;
}

static double want_diag(const struct ggml_tensor * node, const int64_t i[4]) {
    return i[0] == i[1] ? at(node->src[0], i[0], 0, i[2], i[3]) : 0;
}

static void get_rows(void) {
    static const enum ggml_type types[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_I32 };
    for (int t = 0; t < 4; t++) {
        FOR_LAYOUTS(layout) {
            begin();
            struct ggml_tensor * a = fill_int(tensor(types[t], layout, 600, 9, 3, 2), -100, 100);
            struct ggml_tensor * b = fill_int(tensor(GGML_TYPE_I32, DENSE, 5, 3, 2, 1), 0, 8);
            struct ggml_tensor * node = ggml_get_rows(ctx, a, b);
            CHECK_INT(node->type, types[t] == GGML_TYPE_I32 ? GGML_TYPE_I32 : GGML_TYPE_F32);
            CHECK_NODE(node, want_get_rows, 0);
            end();
        }
    }
    FOR_LAYOUTS(layout) { // the indices may lie anyhow too
        begin();
        struct ggml_tensor * a = random_tensor(GGML_TYPE_F16, DENSE, 7, 9, 3, 2);
        CHECK_NODE(ggml_get_rows(ctx, a, fill_int(tensor(GGML_TYPE_I32, layout, 5, 3, 2, 1), 0, 8)), want_get_rows, 0);
        end();
    }
    begin();
    struct ggml_tensor * node = ggml_get_rows(ctx, random_tensor(GGML_TYPE_F16, DENSE, 301, 30, 1, 1),
        fill_int(tensor(GGML_TYPE_I32, DENSE, 200, 1, 1, 1), 0, 29));
    CHECK(is_shared(node));
    CHECK_NODE(node, want_get_rows, 0);
    end();
}

static void bad_indices(void) {
    static const int bad[] = { -1, 10, INT32_MIN, INT32_MAX };
    for (int k = 0; k < 4; k++) {
        begin();
        struct ggml_tensor * a = random_tensor(GGML_TYPE_F32, DENSE, 7, 10, 1, 1);
        struct ggml_tensor * b = fill_int(tensor(GGML_TYPE_I32, DENSE, 5, 1, 1, 1), 0, 9);
        ((int32_t *) b->data)[3] = bad[k];
        struct ggml_tensor * node = ggml_get_rows(ctx, a, b);
        give_memory(node);
        CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_INVALID_ARGUMENT);
        char text[100];
        snprintf(text, sizeof(text), "index %d at [3, 0, 0] is out of range 0..9", bad[k]);
        CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, text);

        struct ggml_tensor * back = ggml_get_rows_back(ctx, random_tensor(GGML_TYPE_F32, DENSE, 7, 5, 1, 1), b,
            tensor(GGML_TYPE_F32, DENSE, 7, 10, 1, 1));
        give_memory(back);
        CHECK(run_node(back, 1, gb_kernels_default()) == GGML_STATUS_INVALID_ARGUMENT);
        snprintf(text, sizeof(text), "index %d at [3] is out of range 0..9", bad[k]);
        CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, text);
        end();
    }
}

static void get_rows_back(void) {
    FOR_LAYOUTS(layout) {
        FOR_FLOATS(type) {
            begin();
            struct ggml_tensor * shape = tensor(GGML_TYPE_F32, DENSE, 150, 4, 1, 1);
            struct ggml_tensor * b =
                fill_int(tensor(GGML_TYPE_I32, DENSE, 9, 1, 1, 1), 0, 3); // hit several times, and perhaps never
            struct ggml_tensor * node = ggml_get_rows_back(ctx, stand_in(150, 9, 1, 1), b, shape);
            CHECK_NODE(reading(node, 0, random_tensor(type, layout, 150, 9, 1, 1)), want_get_rows_back, 2e-6);
            end();
        }
    }
    begin();
    struct ggml_tensor * node = ggml_get_rows_back(ctx, random_tensor(GGML_TYPE_F32, DENSE, 640, 70, 1, 1),
        fill_int(tensor(GGML_TYPE_I32, DENSE, 70, 1, 1, 1), 0, 9), tensor(GGML_TYPE_F32, DENSE, 640, 10, 1, 1));
    CHECK(is_shared(node));
    CHECK_NODE(node, want_get_rows_back, 4e-6);
    end();
}

static void diag(void) {
    FOR_LAYOUTS(layout) {
        FOR_FLOATS(type) {
            begin();
            struct ggml_tensor * a = random_tensor(type, layout, 9, 1, 3, 2);
            CHECK_NODE(reading(typed(ggml_diag(ctx, stand_in(9, 1, 3, 2)), type), 0, a), want_diag, 0);
            end();
        }
    }
    begin();
    struct ggml_tensor * node = ggml_diag(ctx, random_tensor(GGML_TYPE_F32, DENSE, 150, 1, 2, 1));
    CHECK(is_shared(node));
    CHECK_NODE(node, want_diag, 0);
    end();
}

TEST_MAIN(TEST(get_rows), TEST(bad_indices), TEST(get_rows_back), TEST(diag))
