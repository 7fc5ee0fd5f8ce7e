// GET_ROWS, GET_ROWS_BACK, SET_ROWS, DIAG: rows by index, and invalid indices.
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
    FOR_LAYOUTS(layout) { // the indices may have any layout
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
                fill_int(tensor(GGML_TYPE_I32, DENSE, 9, 1, 1, 1), 0, 3); // several times, or never
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

// The last row with this index, otherwise the old value.
static double want_set_rows(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor *b = node->src[0], *c = node->src[1];
    double found = at(node, i[0], i[1], i[2], i[3]);
    for (int64_t j = 0; j < b->ne[1]; j++) {
        if ((int64_t) at(c, j, i[2] % c->ne[1], i[3] % c->ne[2], 0) == i[1]) {
            found = at(b, i[0], j, i[2], i[3]);
        }
    }
    return node->type == GGML_TYPE_I32 ? trunc(found) : found;
}

static struct ggml_tensor * places(enum ggml_type type, int layout, int rows, int64_t n, int64_t n1, int64_t n2) {
    return fill_int(tensor(type, layout, n, n1, n2, 1), 0, rows - 1);
}

static void set_rows(void) {
    static const enum ggml_type types[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_I32 };
    for (int t = 0; t < 4; t++) {
        FOR_LAYOUTS(layout) {
            FOR_FLOATS(type) {
                begin();
                struct ggml_tensor * a = fill_int(tensor(types[t], layout, 33, 9, 4, 3), -100, 100);
                struct ggml_tensor * b = random_tensor(type, (layout + 1) % N_LAYOUTS, 33, 5, 4, 3);
                const enum ggml_type index = layout % 2 ? GGML_TYPE_I64 : GGML_TYPE_I32;
                CHECK_NODE(ggml_set_rows(ctx, a, b, places(index, layout, 9, 5, 2, 3)), want_set_rows, 0);
                CHECK_NODE(ggml_set_rows(ctx, a, b, places(index, DENSE, 9, 5, 1, 1)), want_set_rows, 0);
                end();
            }
        }
        begin(); // several threads; single elements, as in a transposed cache of values
        struct ggml_tensor * a = fill_int(tensor(types[t], DENSE, 1, 60000, 1, 1), -100, 100);
        struct ggml_tensor * node = ggml_set_rows(ctx, a, random_tensor(GGML_TYPE_F32, DENSE, 1, 45000, 1, 1),
            places(GGML_TYPE_I64, DENSE, 60000, 45000, 1, 1));
        CHECK(is_shared(node));
        CHECK_NODE(node, NULL, 0);
        node = ggml_set_rows(ctx, fill_int(tensor(types[t], DENSE, 700, 90, 1, 1), -9, 9),
            random_tensor(GGML_TYPE_F16, DENSE, 700, 70, 1, 1), places(GGML_TYPE_I32, DENSE, 90, 70, 1, 1));
        CHECK(is_shared(node));
        CHECK_NODE(node, want_set_rows, 0);
        end();
    }
    begin(); // nothing to write; no place to write to
    CHECK_NODE(ggml_set_rows(ctx, random_tensor(GGML_TYPE_F32, DENSE, 5, 4, 2, 1),
                   tensor(GGML_TYPE_F32, DENSE, 5, 0, 2, 1), tensor(GGML_TYPE_I32, DENSE, 0, 1, 1, 1)),
        want_set_rows, 0);
    CHECK_NODE(ggml_set_rows(ctx, tensor(GGML_TYPE_F32, DENSE, 0, 4, 1, 1), tensor(GGML_TYPE_F32, DENSE, 0, 2, 1, 1),
                   places(GGML_TYPE_I32, DENSE, 4, 2, 1, 1)),
        want_set_rows, 0);
    end();
}

// Rows are quantized as by CPY. Other rows keep their bytes.
static void set_quantized_rows(void) {
    enum { D = 512, ROWS = 9, N = 4 };
    static const int at_[N] = { 7, 0, 3, 8 };
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        if (!ggml_is_quantized((enum ggml_type) type)) {
            continue;
        }
        begin();
        struct ggml_tensor * a = tensor((enum ggml_type) type, DENSE, D, ROWS, 1, 1);
        struct ggml_tensor * copy = tensor((enum ggml_type) type, DENSE, D, N, 1, 1);
        struct ggml_tensor * b = random_tensor(GGML_TYPE_F32, PADDED, D, N, 1, 1);
        struct ggml_tensor * c = tensor(GGML_TYPE_I32, DENSE, N, 1, 1, 1);
        memcpy(c->data, at_, sizeof(at_));
        struct ggml_tensor *node = ggml_set_rows(ctx, a, b, c), *same = ggml_cpy(ctx, b, copy);
        const char * why = gb_cpu_op_of(node)->unsupported(node);
        CHECK((why == NULL) == (gb_cpu_op_of(same)->unsupported(same) == NULL));
        if (why == NULL) {
            const size_t size = ggml_row_size((enum ggml_type) type, D);
            char * before = malloc(ROWS * size);
            memcpy(before, a->data, ROWS * size);
            CHECK_INT(run_node(node, 3, gb_kernels_default()), GGML_STATUS_SUCCESS);
            CHECK_INT(run_node(same, 1, gb_kernels_default()), GGML_STATUS_SUCCESS);
            for (int i = 0; i < N; i++) {
                CHECK(memcmp((char *) a->data + (size_t) at_[i] * size, (char *) copy->data + (size_t) i * size,
                          size) == 0);
                memcpy(before + (size_t) at_[i] * size, (char *) copy->data + (size_t) i * size, size);
            }
            CHECK(memcmp(before, a->data, ROWS * size) == 0);
            free(before);
        }
        end();
    }
}

static void bad_places(void) {
    static const int64_t bad[] = { -1, 10, INT64_MIN, INT64_MAX, (int64_t) 1 << 32 };
    for (int k = 0; k < 5; k++) {
        for (int wide = k > 1; wide < 2; wide++) {
            begin();
            struct ggml_tensor * a = ggml_set_name(random_tensor(GGML_TYPE_F32, DENSE, 7, 10, 1, 1), "cache");
            struct ggml_tensor * c = places(wide ? GGML_TYPE_I64 : GGML_TYPE_I32, DENSE, 10, 5, 1, 1);
            write_value(c->type, (char *) c->data + 3 * c->nb[0], 0);
            if (wide) {
                ((int64_t *) c->data)[3] = bad[k];
            } else {
                ((int32_t *) c->data)[3] = (int32_t) bad[k];
            }
            struct ggml_tensor * node = ggml_set_rows(ctx, a, random_tensor(GGML_TYPE_F32, DENSE, 7, 5, 1, 1), c);
            CHECK_INT(run_node(node, 1, gb_kernels_default()), GGML_STATUS_INVALID_ARGUMENT);
            char text[100];
            snprintf(text, sizeof(text), "index %lld at [3, 0, 0] is out of range 0..9", (long long) bad[k]);
            CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, text);
            end();
        }
    }
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

TEST_MAIN(TEST(get_rows), TEST(bad_indices), TEST(get_rows_back), TEST(set_rows), TEST(set_quantized_rows),
    TEST(bad_places), TEST(diag))
