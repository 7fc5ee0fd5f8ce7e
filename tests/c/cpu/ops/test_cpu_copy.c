// DUP, CPY, CONT: element k in logical order becomes element k, for all pairs of layouts, shapes and types.
#include "test_cpu_ops.h"

static double want_copy(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor * a = node->src[0];
    int64_t k = i[0] + node->ne[0] * (i[1] + node->ne[1] * (i[2] + node->ne[2] * i[3]));
    int64_t j[4];
    for (int d = 0; d < 4; d++) {
        j[d] = k % a->ne[d];
        k /= a->ne[d];
    }
    const double v = at(a, j[0], j[1], j[2], j[3]);
    return node->type == GGML_TYPE_I32 && a->type != GGML_TYPE_I32 ? trunc(v) : v;
}

static const enum ggml_type converting[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_I32 };
static const enum ggml_type all_plain[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_I8, GGML_TYPE_I16,
    GGML_TYPE_I32, GGML_TYPE_I64, GGML_TYPE_F64 };

static void conversions(void) {
    for (int from = 0; from < 4; from++) {
        for (int to = 0; to < 4; to++) {
            FOR_LAYOUTS(la) {
                FOR_LAYOUTS(lb) {
                    begin();
                    struct ggml_tensor * a = fill(tensor(converting[from], la, 9, 6, 4, 2), -100, 100);
                    CHECK_NODE(ggml_cpy(ctx, a, tensor(converting[to], lb, 9, 6, 4, 2)), want_copy, 0);
                    end();
                }
            }
        }
    }
}

static void same_type(void) {
    for (int t = 0; t < 8; t++) {
        FOR_LAYOUTS(layout) {
            begin();
            struct ggml_tensor * a = fill_int(tensor(all_plain[t], layout, 9, 6, 4, 2), -100, 100);
            CHECK_NODE(ggml_dup(ctx, a), want_copy, 0);
            CHECK_NODE(ggml_cont(ctx, a), want_copy, 0);
            CHECK_NODE(ggml_cpy(ctx, a, tensor(all_plain[t], TRANSPOSED, 9, 6, 4, 2)), want_copy, 0);
            end();
        }
    }
}

static void other_shapes(void) {
    static const int64_t shapes[][4] = { { 432, 1, 1, 1 }, { 4, 6, 2, 9 }, { 8, 54, 1, 1 }, { 1, 27, 16, 1 } };
    for (int s = 0; s < 4; s++) {
        const int64_t * n = shapes[s];
        FOR_LAYOUTS(la) {
            FOR_LAYOUTS(lb) {
                begin();
                struct ggml_tensor * a = random_tensor(GGML_TYPE_F32, la, 9, 6, 4, 2);
                CHECK_NODE(ggml_cpy(ctx, a, tensor(GGML_TYPE_F32, lb, n[0], n[1], n[2], n[3])), want_copy, 0);
                CHECK_NODE(ggml_cpy(ctx, a, tensor(GGML_TYPE_F16, lb, n[0], n[1], n[2], n[3])), want_copy, 0);
                CHECK_NODE(ggml_cont_4d(ctx, a, n[0], n[1], n[2], n[3]), want_copy, 0);
                end();
            }
        }
    }
}

static void casts(void) {
    begin();
    struct ggml_tensor * a = random_tensor(GGML_TYPE_F32, TRANSPOSED, 9, 6, 4, 2);
    CHECK_NODE(ggml_cast(ctx, a, GGML_TYPE_F16), want_copy, 0);
    CHECK_NODE(ggml_cast(ctx, a, GGML_TYPE_BF16), want_copy, 0);
    end();
}

static void shared_work(void) {
    FOR_LAYOUTS(layout) {
        begin();
        struct ggml_tensor * a = random_tensor(GGML_TYPE_F32, layout, 531, 7, 12, 2);
        struct ggml_tensor * cont = ggml_cont(ctx, a);
        CHECK(is_shared(cont));
        CHECK_NODE(cont, want_copy, 0);
        CHECK_NODE(ggml_cpy(ctx, a, tensor(GGML_TYPE_F16, SWAPPED, 177, 252, 2, 1)), want_copy, 0);
        CHECK_NODE(ggml_dup(ctx, ggml_transpose(ctx, a)), want_copy, 0);
        end();
    }
}

static void in_place(void) { // the copy does nothing
    begin();
    CHECK_NODE(ggml_dup_inplace(ctx, random_tensor(GGML_TYPE_F32, SWAPPED, 5, 4, 3, 2)), want_copy, 0);
    end();
}

static void out_of_range_to_int(void) {
    begin();
    struct ggml_tensor * a = tensor(GGML_TYPE_F32, DENSE, 5, 1, 1, 1);
    memcpy(a->data, (float[]){ 3e9f, -3e9f, NAN, INFINITY, -1.9f }, 20);
    struct ggml_tensor * node = ggml_cpy(ctx, a, tensor(GGML_TYPE_I32, DENSE, 5, 1, 1, 1));
    CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_SUCCESS);
    CHECK(memcmp(node->data, (int32_t[]){ INT32_MAX, INT32_MIN, 0, INT32_MAX, -1 }, 20) == 0);
    end();
}

static void quantized(void) { // all bytes, and no others
    begin();
    struct ggml_tensor * a = tensor(GGML_TYPE_Q4_0, DENSE, 64, 3, 2, 1);
    for (size_t b = 0; b < ggml_nbytes(a); b++) {
        ((char *) a->data)[b] = (char) test_random();
    }
    struct ggml_tensor * node = ggml_cpy(ctx, a, tensor(GGML_TYPE_Q4_0, DENSE, 64, 3, 2, 1));
    char * const end_of = (char *) node->data + ggml_nbytes(node);
    CHECK_INT(ggml_nbytes(node), 6 * 2 * 18);
    CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_SUCCESS);
    CHECK(memcmp(node->data, a->data, ggml_nbytes(a)) == 0);
    CHECK_INT(*end_of, 0x5a);
    struct ggml_tensor * g =
        ggml_cpy(ctx, random_tensor(GGML_TYPE_F32, DENSE, 4, 1, 1, 1), tensor(GGML_TYPE_I64, DENSE, 4, 1, 1, 1));
    CHECK(run_node(g, 1, gb_kernels_default()) == GGML_STATUS_UNSUPPORTED);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "no conversion between these types");
    end();
}

TEST_MAIN(TEST(conversions), TEST(same_type), TEST(other_shapes), TEST(casts), TEST(shared_work), TEST(in_place),
    TEST(out_of_range_to_int), TEST(quantized))
