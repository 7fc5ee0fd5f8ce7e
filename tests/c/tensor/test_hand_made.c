// Nodes that a program makes by writing `op` and `src` compute what the kernels of early 2024
// compute. Expected values come element by element from the sources.
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "tensor/tensor.h"
#include "test.h"

static struct ggml_context * ctx;

static void begin(void) { ctx = ggml_init((struct ggml_init_params){ 1 << 20, NULL, false }); }

static void end(void) { ggml_free(ctx); }

// Values 1, 2, 3, ... in logical order.
static struct ggml_tensor * counting(enum ggml_type type, int64_t ne0, int64_t ne1, int64_t ne2) {
    struct ggml_tensor * t = ggml_new_tensor_3d(ctx, type, ne0, ne1, ne2);
    for (int i = 0; i < (int) ggml_nelements(t); i++) {
        ggml_set_f32_1d(t, i, (float) (i + 1));
    }
    return t;
}

static struct ggml_tensor * make(struct ggml_tensor * dst, enum ggml_op op, struct ggml_tensor * a,
    struct ggml_tensor * b) {
    dst->op = op;
    dst->src[0] = a;
    dst->src[1] = b;
    return dst;
}

static bool computes(struct ggml_tensor * dst) {
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    CHECK_INT(ggml_build_forward_expand(g, dst), GGML_STATUS_SUCCESS);
    const enum ggml_status status = ggml_graph_compute_with_ctx(ctx, g, 2);
    CHECK_MSG(status == GGML_STATUS_SUCCESS, "%s: %s", ggml_op_name(dst->op), ggml_last_error());
    ggml_clear_error();
    return status == GGML_STATUS_SUCCESS;
}

// True if dst holds the elements of src in logical order.
static void check_copied(struct ggml_tensor * dst, struct ggml_tensor * src) {
    for (int i = 0; computes(dst) && i < (int) ggml_nelements(dst); i++) {
        if (ggml_get_f32_1d(dst, i) != ggml_get_f32_1d(src, i)) {
            test_fail(__FILE__, __LINE__, "%s element %d is %g, not %g", ggml_op_name(dst->op), i,
                (double) ggml_get_f32_1d(dst, i), (double) ggml_get_f32_1d(src, i));
            return;
        }
    }
}

static const enum ggml_op copies[] = { GGML_OP_DUP, GGML_OP_CPY, GGML_OP_CONT };

// Every pair of shapes with 24 elements: new tensors, views of a part of a larger one, and
// transposed.
static void copies_take_any_source_with_as_many_elements(void) {
    static const int64_t shapes[][3] = { { 24, 1, 1 }, { 1, 24, 1 }, { 1, 1, 24 }, { 4, 6, 1 }, { 6, 2, 2 },
        { 2, 3, 4 }, { 12, 1, 2 } };
    static const enum ggml_type types[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_I32 };
    for (int k = 0; k < 3 * 7 * 7 * 3 * 3 * 3; k++) {
        const int64_t *from = shapes[k / 3 % 7], *to = shapes[k / 21 % 7];
        const enum ggml_type type = types[k / 147 % 3];
        const int in = k / 441 % 3, out = k / 1323 % 3;
        begin();
        struct ggml_tensor * src = counting(type, from[0], from[1], from[2]);
        if (in == 1) {
            src = ggml_transpose(ctx, src);
        } else if (in == 2) {
            src = counting(type, 2 * from[0], from[1], from[2]);
            src = ggml_view_3d(ctx, src, from[0], from[1], from[2], src->nb[1], src->nb[2],
                src->nb[0] * (size_t) from[0]);
        }
        struct ggml_tensor * dst = ggml_new_tensor_3d(ctx, type, to[0], to[1], to[2]);
        if (out == 1) {
            dst = ggml_transpose(ctx, dst);
        } else if (out == 2) {
            dst = ggml_new_tensor_3d(ctx, type, 2 * to[0], to[1], to[2]);
            dst = ggml_view_3d(ctx, dst, to[0], to[1], to[2], dst->nb[1], dst->nb[2], dst->nb[0]);
        }
        dst->op = GGML_OP_NONE;
        check_copied(make(dst, copies[k % 3], src, copies[k % 3] == GGML_OP_CPY ? dst : NULL), src);
        end();
    }
}

static void copies_convert_between_types(void) {
    static const enum ggml_type types[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 };
    for (int k = 0; k < 27; k++) {
        begin();
        struct ggml_tensor * src = counting(types[k / 3 % 3], 4, 6, 1);
        check_copied(make(ggml_new_tensor_1d(ctx, types[k / 9], 24), copies[k % 3], src, NULL), src);
        end();
    }
}

// Blocks of 8-bit numbers hold these values within half a step of 24 / 127.
static void copies_quantize_and_dequantize(void) {
    for (int k = 0; k < 3; k++) {
        begin();
        struct ggml_tensor * src = counting(GGML_TYPE_F32, 32, 2, 1);
        struct ggml_tensor * blocks = make(ggml_new_tensor_1d(ctx, GGML_TYPE_Q8_0, 64), copies[k], src, NULL);
        struct ggml_tensor * back = make(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 1), copies[k], blocks, NULL);
        for (int i = 0; computes(back) && i < 64; i++) {
            CHECK(fabsf(ggml_get_f32_1d(back, i) - (float) (i + 1)) < 0.3f);
        }
        end();
    }
}

// The second source of CPY is the tensor to write. Without it the node's own memory is written.
static void a_copy_needs_no_second_source(void) {
    begin();
    struct ggml_tensor * src = counting(GGML_TYPE_F32, 1, 10, 1);
    check_copied(make(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 10), GGML_OP_CPY, src, NULL), src);
    check_copied(make(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 10), GGML_OP_CPY, src,
                     ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 5, 2)),
        src);
    end();
}

// A copy into a view of its source does nothing, for any shape.
static void a_copy_to_the_same_memory_keeps_it(void) {
    begin();
    struct ggml_tensor * src = counting(GGML_TYPE_F32, 1, 10, 1);
    check_copied(make(ggml_view_1d(ctx, src, 10, 0), GGML_OP_DUP, src, NULL), src);
    CHECK(ggml_get_f32_1d(src, 9) == 10.0f);
    end();
}

static void copies_of_other_counts_are_refused(void) {
    for (int k = 0; k < 3; k++) {
        begin();
        struct ggml_tensor * dst =
            make(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 9), copies[k], counting(GGML_TYPE_F32, 1, 10, 1), NULL);
        struct ggml_cgraph * g = ggml_new_graph(ctx);
        ggml_build_forward_expand(g, dst);
        CHECK(ggml_graph_compute_with_ctx(ctx, g, 1) != GGML_STATUS_SUCCESS);
        ggml_clear_error();
        end();
    }
}

// Allocators and scheduler accept these copies, also on a device with its own memory.
static void copies_are_scheduled(void) {
    for (int k = 0; k < 3; k++) {
        ggml_backend_t list[2] = { ggml_backend_reg_init_backend_from_str("SIM"), ggml_backend_cpu_init() };
        ggml_backend_sched_t sched = ggml_backend_sched_new(list, NULL, 2, 0);
        ctx = ggml_init((struct ggml_init_params){ 1 << 20, NULL, true });
        struct ggml_tensor * leaf = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 1, 10);
        struct ggml_tensor * src = ggml_scale(ctx, leaf, 2);
        struct ggml_tensor * dst = make(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 10), copies[k], src, NULL);
        struct ggml_tensor * y = ggml_scale(ctx, dst, 2);
        struct ggml_cgraph * g = ggml_new_graph(ctx);
        ggml_set_input(leaf);
        ggml_build_forward_expand(g, y);
        CHECK_INT(ggml_backend_sched_alloc_graph(sched, g), GGML_STATUS_SUCCESS);
        float values[10];
        for (int i = 0; i < 10; i++) {
            values[i] = (float) i;
        }
        CHECK_INT(ggml_backend_tensor_set(leaf, values, 0, sizeof(values)), GGML_STATUS_SUCCESS);
        CHECK_INT(ggml_backend_sched_graph_compute(sched, g), GGML_STATUS_SUCCESS);
        CHECK_INT(ggml_backend_tensor_get(y, values, 0, sizeof(values)), GGML_STATUS_SUCCESS);
        for (int i = 0; i < 10; i++) {
            CHECK(values[i] == 4 * (float) i);
        }
        ggml_backend_sched_free(sched);
        ggml_backend_free(list[0]);
        ggml_backend_free(list[1]);
        end();
    }
}

static struct ggml_tensor * like(struct ggml_tensor * a) { return ggml_dup_tensor(ctx, a); }

// Makes each operator as its builder does: only op, src and the parameters that the operator reads.
static void nodes_without_a_builder_compute(void) {
    begin();
    struct ggml_tensor *a = counting(GGML_TYPE_F32, 4, 3, 1), *row = counting(GGML_TYPE_F32, 4, 1, 1);
    struct ggml_tensor * t = make(like(a), GGML_OP_ADD, a, row);
    CHECK(computes(t) && ggml_get_f32_1d(t, 5) == 8);
    t = make(like(a), GGML_OP_MUL, a, row);
    CHECK(computes(t) && ggml_get_f32_1d(t, 5) == 12);
    t = make(like(a), GGML_OP_SUB, a, a);
    CHECK(computes(t) && ggml_get_f32_1d(t, 5) == 0);
    t = make(like(a), GGML_OP_DIV, a, row);
    CHECK(computes(t) && ggml_get_f32_1d(t, 5) == 3);
    t = make(like(a), GGML_OP_SQR, a, NULL);
    CHECK(computes(t) && ggml_get_f32_1d(t, 5) == 36);
    t = make(like(a), GGML_OP_UNARY, a, NULL);
    t->op_params[0] = GGML_UNARY_OP_NEG;
    CHECK(computes(t) && ggml_get_f32_1d(t, 5) == -6);
    t = make(like(a), GGML_OP_SCALE, a, NULL);
    memcpy(t->op_params, &(float){ 0.5f }, sizeof(float));
    CHECK(computes(t) && ggml_get_f32_1d(t, 5) == 3);
    t = make(like(a), GGML_OP_SCALE, a, NULL); // an unset factor is 0
    CHECK(computes(t) && ggml_get_f32_1d(t, 5) == 0);
    t = make(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1), GGML_OP_SUM, a, NULL);
    CHECK(computes(t) && ggml_get_f32_1d(t, 0) == 78);
    t = make(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 1, 3), GGML_OP_SUM_ROWS, a, NULL);
    CHECK(computes(t) && ggml_get_f32_1d(t, 1) == 26);
    t = make(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 3, 1), GGML_OP_MUL_MAT, a, row);
    CHECK(computes(t) && ggml_get_f32_1d(t, 0) == 30);
    t = make(like(a), GGML_OP_REPEAT, row, a); // a tensor of the result's shape as a source, as in 2023
    CHECK(computes(t) && ggml_get_f32_1d(t, 5) == 2);
    t = make(like(a), GGML_OP_SOFT_MAX, a, NULL); // without its factor all logits are 0
    CHECK(computes(t) && ggml_get_f32_1d(t, 5) == 0.25f);
    end();
}

// Shape operators compute nothing, so a program may set them on any tensor.
static void shape_operators_made_by_hand_are_idle(void) {
    static const enum ggml_op ops[] = { GGML_OP_RESHAPE, GGML_OP_VIEW, GGML_OP_PERMUTE, GGML_OP_TRANSPOSE };
    for (int k = 0; k < 4; k++) {
        begin();
        struct ggml_tensor * a = counting(GGML_TYPE_F32, 4, 3, 1);
        struct ggml_tensor * v = make(ggml_view_1d(ctx, a, 12, 0), ops[k], a, NULL);
        struct ggml_tensor * y = ggml_sqr(ctx, v);
        CHECK(computes(y) && ggml_get_f32_1d(y, 5) == 36);
        struct ggml_tensor * own = make(counting(GGML_TYPE_F32, 12, 1, 1), ops[k], a, NULL);
        y = ggml_sqr(ctx, own);
        CHECK(computes(y) && ggml_get_f32_1d(y, 5) == 36);
        end();
    }
}

// The result is a view of the source, as from in-place builders. If the operator only moves bytes,
// the shapes may differ.
static void results_in_place_made_by_hand(void) {
    begin();
    struct ggml_tensor * a = counting(GGML_TYPE_F32, 4, 3, 1);
    struct ggml_tensor * t = make(ggml_view_tensor(ctx, a), GGML_OP_SQR, a, NULL);
    CHECK(computes(t) && ggml_get_f32_1d(a, 5) == 36);
    t = make(ggml_view_tensor(ctx, a), GGML_OP_ADD, a, a);
    CHECK(computes(t) && ggml_get_f32_1d(a, 5) == 72);
    end();
}

TEST_MAIN(TEST(copies_take_any_source_with_as_many_elements), TEST(copies_convert_between_types),
    TEST(copies_quantize_and_dequantize), TEST(a_copy_needs_no_second_source), TEST(a_copy_to_the_same_memory_keeps_it),
    TEST(copies_of_other_counts_are_refused), TEST(copies_are_scheduled), TEST(nodes_without_a_builder_compute),
    TEST(shape_operators_made_by_hand_are_idle), TEST(results_in_place_made_by_hand))
