// The work of nodes, counted by hand: operations, and bytes read and written.
#include "tensor/marks.h"
#include "tensor/tensor.h"
#include "tensor/work.h"
#include "test.h"

#define CHECK_WORK(w, flops_, read_, written_)                                                                      \
    do {                                                                                                            \
        const struct gb_work w_ = (w);                                                                              \
        CHECK_MSG(w_.flops == (flops_) && w_.read == (read_) && w_.written == (written_),                           \
            "%s: %g operations, %g bytes read, %g written; expected %g, %g, %g", #w, w_.flops, w_.read, w_.written, \
            (double) (flops_), (double) (read_), (double) (written_));                                              \
    } while (0)

static struct ggml_context * open_context(void) { return ggml_init((struct ggml_init_params){ 1 << 20, NULL, true }); }

static void single_nodes(void) {
    struct ggml_context * ctx = open_context();
    struct ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 10);
    struct ggml_tensor * w = ggml_new_tensor_2d(ctx, GGML_TYPE_Q8_0, 64, 30);
    struct ggml_tensor * row = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 64);
    struct ggml_tensor * ids = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 3);
    struct ggml_tensor * y16 = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, 64, 10);
    CHECK_WORK(gb_work_of(ggml_mul_mat(ctx, w, x)), 2 * 300 * 64, 30 * 68 + 640 * 4, 300 * 4);
    CHECK_WORK(gb_work_of(ggml_add(ctx, x, row)), 640, 640 * 4 + 64 * 4, 640 * 4);
    CHECK_WORK(gb_work_of(ggml_mul(ctx, x, x)), 640, 640 * 4, 640 * 4);
    CHECK_WORK(gb_work_of(ggml_get_rows(ctx, w, ids)), 3 * 64, 3 * 68 + 3 * 4, 3 * 64 * 4);
    CHECK_WORK(gb_work_of(ggml_cpy(ctx, x, y16)), 640, 640 * 4, 640 * 2); // does not read its target
    struct ggml_tensor * few = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 3);
    CHECK_WORK(gb_work_of(ggml_set_rows(ctx, y16, few, ids)), 192, 192 * 4 + 3 * 4, 192 * 2); // does not read y16
    CHECK_WORK(gb_work_of(ggml_transpose(ctx, x)), 0, 0, 0);
    CHECK_WORK(gb_work_of(x), 0, 0, 0);
    struct ggml_tensor * part = ggml_view_2d(ctx, x, 16, 10, x->nb[1], 0);
    CHECK_WORK(gb_work_of(ggml_relu(ctx, part)), 160, 160 * 4, 160 * 4); // without the gaps
    CHECK_WORK(gb_work_of(ggml_out_prod(ctx, x, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 5, 10))), 2 * 64 * 5 * 10,
        (640 + 50) * 4, 320 * 4);
    struct ggml_tensor * kernels = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, 3, 3, 2, 6);
    struct ggml_tensor * image = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, 5, 4, 4, 1);
    CHECK_WORK(gb_work_of(ggml_conv_2d_grouped(ctx, kernels, image, 1, 1, 1, 1, 1, 1, 2)), 2 * 120 * 18,
        108 * 2 + 80 * 4, 120 * 4); // 18 terms for each of 6 planes of 20 positions
    ggml_free(ctx);
}

// Results that only the step reads do not count. Results that others may read count as written.
static void steps(void) {
    struct ggml_context * ctx = open_context();
    struct ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 8, 4);
    struct ggml_tensor * b = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 8);
    struct ggml_tensor * sum = ggml_add(ctx, x, b);
    struct ggml_tensor * square = ggml_sqr(ctx, sum);
    struct ggml_tensor * product = ggml_mul(ctx, square, x); // x was read before
    struct ggml_tensor * inplace = ggml_relu_inplace(ctx, product);
    struct ggml_tensor * nodes[4] = { sum, square, product, inplace };
    CHECK_WORK(gb_work_of_nodes(nodes, 4), 4 * 32, (32 + 8 + 32 + 64 + 32) * 4, 4 * 32 * 4);
    CHECK_WORK(gb_work_of_step(nodes, 4), 4 * 32, (32 + 8) * 4, 3 * 32 * 4); // the product is overwritten
    gb_tensor_set_read_once(sum, true);
    CHECK_WORK(gb_work_of_step(nodes, 4), 4 * 32, (32 + 8) * 4, 2 * 32 * 4);
    CHECK_WORK(gb_work_of_step(nodes, 1), 32, (32 + 8) * 4, 32 * 4); // its reader is outside of the step
    ggml_free(ctx);
}

// Two tokens can select at most two of eight matrices.
static void experts(void) {
    struct ggml_context * ctx = open_context();
    struct ggml_tensor * as[8];
    for (int i = 0; i < 8; i++) {
        as[i] = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 16, 4);
    }
    struct ggml_tensor * ids = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 1, 2);
    struct ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 16, 2);
    struct ggml_tensor * stack = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 16, 4, 8);
    struct ggml_tensor * one = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 16, 1, 2);
    CHECK_WORK(gb_work_of(ggml_mul_mat_experts(ctx, stack, one, ids)), 2 * 8 * 16, 2 * 4 + 32 * 4 + 2 * 64 * 4, 8 * 4);
    struct ggml_tensor * y = ggml_mul_mat_id(ctx, as, 8, ids, 0, x);
    CHECK_WORK(gb_work_of(y), 2 * 8 * 16, 2 * 4 + 32 * 4 + 2 * 64 * 4, 8 * 4);
    ggml_free(ctx);
}

TEST_MAIN(TEST(single_nodes), TEST(steps), TEST(experts))
