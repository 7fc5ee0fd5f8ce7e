// COMPARE and WHERE against their definitions, for all types, layouts and repeats.
#include "test_cpu_ops.h"

enum { N_TYPES = 4 };
static const enum ggml_type types[N_TYPES] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_I32 };

static double repeated(const struct ggml_tensor * t, const int64_t i[4]) {
    return at(t, i[0] % t->ne[0], i[1] % t->ne[1], i[2] % t->ne[2], i[3] % t->ne[3]);
}

static double want_compare(const struct ggml_tensor * node, const int64_t i[4]) {
    const double x = repeated(node->src[0], i), y = repeated(node->src[1], i);
    switch (node->op_params[0]) {
        case GGML_COMPARE_EQUAL: return x == y;
        case GGML_COMPARE_NOT_EQUAL: return x != y;
        case GGML_COMPARE_LESS: return x < y;
        case GGML_COMPARE_LESS_EQUAL: return x <= y;
        case GGML_COMPARE_GREATER: return x > y;
        default: return x >= y;
    }
}

static double want_where(const struct ggml_tensor * node, const int64_t i[4]) {
    return repeated(node->src[repeated(node->src[0], i) != 0 ? 1 : 2], i);
}

// Small integers, so that many are equal and many are 0.
static struct ggml_tensor * some(enum ggml_type type, int layout, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    return fill_int(tensor(type, layout, n0, n1, n2, n3), -2, 2);
}

static void comparisons(void) {
    FOR_LAYOUTS(layout) {
        for (int t = 0; t < N_TYPES; t++) {
            begin();
            const enum ggml_type other = types[t] == GGML_TYPE_I32 ? GGML_TYPE_I32 : types[(t + 1) % 3];
            for (int c = 0; c < GGML_COMPARE_COUNT; c++) {
                const enum ggml_comparison how = (enum ggml_comparison) c;
                CHECK_NODE(ggml_compare(ctx, some(types[t], layout, 37, 3, 2, 2), some(other, DENSE, 37, 3, 2, 2), how),
                    want_compare, 0);
                CHECK_NODE(ggml_compare(ctx, some(types[t], DENSE, 36, 3, 2, 2), some(other, layout, 4, 1, 2, 1), how),
                    want_compare, 0);
            }
            end();
        }
    }
}

static void long_runs(void) { // several runs of a row, several threads
    for (int t = 0; t < N_TYPES; t++) {
        begin();
        CHECK_NODE(ggml_compare(ctx, some(types[t], DENSE, 50001, 1, 1, 1), some(types[t], DENSE, 1, 1, 1, 1),
                       GGML_COMPARE_LESS),
            want_compare, 0);
        CHECK_NODE(ggml_compare(ctx, some(types[t], DENSE, 50001, 1, 1, 1), some(types[t], DENSE, 50001, 1, 1, 1),
                       GGML_COMPARE_GREATER_EQUAL),
            want_compare, 0);
        for (int c = 0; c < N_TYPES; c++) {
            struct ggml_tensor * node = ggml_where(ctx, some(types[c], DENSE, 2100, 30, 1, 1),
                some(types[t], DENSE, 700, 1, 1, 1), some(types[t], DENSE, 2100, 30, 1, 1));
            CHECK(is_shared(node));
            CHECK_NODE(node, want_where, 0);
            CHECK_NODE(ggml_where(ctx, some(types[c], DENSE, 70001, 1, 1, 1), some(types[t], DENSE, 70001, 1, 1, 1),
                           some(types[t], DENSE, 70001, 1, 1, 1)),
                want_where, 0);
        }
        end();
    }
}

static void choices(void) {
    FOR_LAYOUTS(layout) {
        for (int c = 0; c < N_TYPES; c++) {
            for (int t = 0; t < N_TYPES; t++) {
                begin();
                CHECK_NODE(ggml_where(ctx, some(types[c], layout, 37, 3, 2, 2), some(types[t], DENSE, 37, 3, 2, 2),
                               some(types[t], layout, 37, 3, 2, 2)),
                    want_where, 0);
                CHECK_NODE(ggml_where(ctx, some(types[c], layout, 12, 1, 1, 1), some(types[t], layout, 6, 3, 1, 1),
                               some(types[t], layout, 1, 1, 2, 4)),
                    want_where, 0);
                end();
            }
        }
    }
}

// Numbers that reveal arithmetic: integers read as floats, or floats that are not moved bit by bit.
static void hard_numbers(void) {
    begin();
    struct ggml_tensor *a = tensor(GGML_TYPE_I32, DENSE, 8, 1, 1, 1), *b = tensor(GGML_TYPE_I32, DENSE, 8, 1, 1, 1);
    memcpy(a->data, (int32_t[]){ INT32_MIN, INT32_MAX, 16777217, 1, -1, 0x7fa00001, 0, 2143289344 }, 32);
    memcpy(b->data, (int32_t[]){ 0, INT32_MAX - 1, 16777216, 0, 1, 0x7fa00001, INT32_MIN, 0 }, 32);
    for (int c = 0; c < GGML_COMPARE_COUNT; c++) {
        CHECK_NODE(ggml_compare(ctx, a, b, (enum ggml_comparison) c), want_compare, 0);
    }
    CHECK_NODE(ggml_where(ctx, a, b, a), want_where, 0);
    CHECK_NODE(ggml_where(ctx, b, a, b), want_where, 0);
    struct ggml_tensor *x = tensor(GGML_TYPE_F32, DENSE, 8, 1, 1, 1), *y = tensor(GGML_TYPE_F32, DENSE, 8, 1, 1, 1);
    memcpy(x->data, (float[]){ NAN, 1, -0.0f, INFINITY, -INFINITY, 1e-45f, NAN, 3 }, 32);
    memcpy(y->data, (float[]){ 0, NAN, 0.0f, INFINITY, INFINITY, -1e-45f, NAN, 3 }, 32);
    for (int c = 0; c < GGML_COMPARE_COUNT; c++) {
        CHECK_NODE(ggml_compare(ctx, x, y, (enum ggml_comparison) c), want_compare, 0);
    }
    CHECK_NODE(ggml_where(ctx, x, y, x), want_where, 0);
    CHECK_NODE(ggml_where(ctx, y, a, b), want_where, 0);
    end();
}

static void onto_sources(void) {
    for (int k = 0; k < 3; k++) {
        begin();
        CHECK_NODE(onto(ggml_where(ctx, some(GGML_TYPE_F32, PADDED, 600, 3, 2, 1),
                            some(GGML_TYPE_F32, PADDED, 600, 3, 2, 1), some(GGML_TYPE_F32, PADDED, 600, 3, 2, 1)),
                       k),
            want_where, 0);
        CHECK_NODE(onto(ggml_where(ctx, some(GGML_TYPE_I32, DENSE, 600, 3, 2, 1),
                            some(GGML_TYPE_I32, DENSE, 600, 3, 2, 1), some(GGML_TYPE_I32, DENSE, 600, 3, 2, 1)),
                       k),
            want_where, 0);
        if (k < 2) {
            CHECK_NODE(onto(ggml_compare(ctx, some(GGML_TYPE_F32, PADDED, 600, 3, 2, 1),
                                some(GGML_TYPE_F32, PADDED, 600, 3, 2, 1), GGML_COMPARE_LESS),
                           k),
                want_compare, 0);
        }
        end();
    }
}

static void empty(void) {
    begin();
    CHECK_NODE(ggml_compare(ctx, some(GGML_TYPE_F32, DENSE, 0, 3, 1, 1), some(GGML_TYPE_F32, DENSE, 1, 1, 1, 1),
                   GGML_COMPARE_LESS),
        want_compare, 0);
    struct ggml_tensor * node = ggml_where(ctx, some(GGML_TYPE_F32, DENSE, 4, 3, 1, 1),
        some(GGML_TYPE_F32, DENSE, 0, 3, 1, 1), some(GGML_TYPE_F32, DENSE, 1, 1, 1, 1));
    CHECK(node != NULL && node->ne[0] == 0 && node->ne[1] == 3);
    CHECK_NODE(node, want_where, 0);
    end();
}

static void refused(void) {
    begin();
    struct ggml_tensor * f = tensor(GGML_TYPE_F32, DENSE, 32, 1, 1, 1);
    struct ggml_tensor * q = ggml_new_tensor_1d(ctx, GGML_TYPE_Q8_0, 32);
    give_memory(q);
    struct ggml_tensor * nodes[] = { ggml_compare(ctx, q, f, GGML_COMPARE_LESS), ggml_where(ctx, q, f, f),
        ggml_where(ctx, f, q, q), typed(ggml_compare(ctx, f, f, GGML_COMPARE_LESS), GGML_TYPE_F16),
        typed(ggml_where(ctx, f, f, f), GGML_TYPE_I32) };
    for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++) {
        CHECK(nodes[i] != NULL && gb_cpu_op_of(nodes[i])->unsupported(nodes[i]) != NULL);
    }
    end();
}

TEST_MAIN(TEST(comparisons), TEST(long_runs), TEST(choices), TEST(hard_numbers), TEST(onto_sources), TEST(empty),
    TEST(refused))
