// ggml_grad: which tensors get a gradient, its errors, and what it leaves unchanged. test_derivatives.c compares the
// gradients of all operators with differences.
#include "base/mem.h"
#include "ggml-ext.h"
#include "test.h"

static struct ggml_context * new_ctx(void) { return ggml_init((struct ggml_init_params){ 0, NULL, false }); }

static struct ggml_tensor * vector(struct ggml_context * ctx, const char * name, int n, const float * values) {
    struct ggml_tensor * t = ggml_set_name(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, n), name);
    for (int i = 0; i < n; i++) {
        ggml_set_f32_1d(t, i, values != NULL ? values[i] : (float) (i + 1));
    }
    return t;
}

static void compute(struct ggml_context * ctx, struct ggml_tensor * t) {
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    CHECK_INT(ggml_build_forward_expand(graph, t), GGML_STATUS_SUCCESS);
    CHECK_MSG(ggml_graph_compute_with_ctx(ctx, graph, 1) == GGML_STATUS_SUCCESS, "%s", ggml_last_error());
}

#define CHECK_VALUES(t, ...)                                                                                           \
    do {                                                                                                               \
        const float want_[] = { __VA_ARGS__ };                                                                         \
        compute(ctx, t);                                                                                               \
        for (int i_ = 0; i_ < (int) (sizeof(want_) / sizeof(want_[0])); i_++) {                                        \
            const float got_ = ggml_get_f32_1d(t, i_);                                                                 \
            CHECK_MSG(fabsf(got_ - want_[i_]) <= 1e-5f * (1 + fabsf(want_[i_])), "%s [%d] is %g, expected %g", #t, i_, \
                (double) got_, (double) want_[i_]);                                                                    \
        }                                                                                                              \
    } while (0)

// loss = sum(x^2 w): dx = 2 x w, dw = x^2, and that of the node x^2 is w.
static void leafs_and_nodes(void) {
    struct ggml_context * ctx = new_ctx();
    struct ggml_tensor *x = vector(ctx, "x", 3, NULL), *w = vector(ctx, "w", 3, (float[]){ 5, -1, 2 });
    struct ggml_tensor * square = ggml_sqr(ctx, x);
    struct ggml_tensor * loss = ggml_sum(ctx, ggml_mul(ctx, square, w));
    struct ggml_tensor *params[] = { x, w, square, x, loss }, *grads[5] = { NULL };
    CHECK_INT(ggml_grad(ctx, loss, params, 5, grads), GGML_STATUS_SUCCESS);
    for (int i = 0; i < 5; i++) {
        REQUIRE(grads[i] != NULL);
        CHECK(grads[i]->type == GGML_TYPE_F32 && ggml_are_same_shape(grads[i], params[i]));
        CHECK(params[i]->grad == NULL && grads[i]->grad == NULL && ggml_is_contiguous(grads[i]));
    }
    CHECK_STR(grads[0]->name, "x (grad)");
    CHECK_VALUES(grads[0], 10, -4, 12);
    CHECK_VALUES(grads[1], 1, 4, 9);
    CHECK_VALUES(grads[2], 5, -1, 2);
    CHECK(grads[3] == grads[0]);
    CHECK_VALUES(grads[4], 1);
    ggml_free(ctx);
}

// A tensor outside of the graph has no gradient. If the loss depends on a tensor only through a step, its gradient is
// zeros.
static void unreached(void) {
    struct ggml_context * ctx = new_ctx();
    struct ggml_tensor *x = vector(ctx, "x", 3, NULL), *other = vector(ctx, "other", 3, NULL);
    struct ggml_tensor * y = vector(ctx, "y", 3, NULL);
    struct ggml_tensor * loss = ggml_sum(ctx, ggml_mul(ctx, ggml_step(ctx, x), y));
    struct ggml_tensor *params[] = { x, other, y }, *grads[3] = { y, y, y };
    CHECK_INT(ggml_grad(ctx, loss, params, 3, grads), GGML_STATUS_SUCCESS);
    REQUIRE(grads[0] != NULL && grads[2] != NULL);
    CHECK_VALUES(grads[0], 0, 0, 0);
    CHECK(grads[1] == NULL);
    CHECK_VALUES(grads[2], 1, 1, 1);
    CHECK_INT(ggml_grad(ctx, loss, &other, 1, grads), GGML_STATUS_SUCCESS);
    CHECK(grads[0] == NULL);
    CHECK_INT(ggml_grad(ctx, loss, NULL, 0, NULL), GGML_STATUS_SUCCESS);
    ggml_free(ctx);
}

// f = sum(x^4): the rows of its Hessian by the gradients of single elements of the gradient, and the third derivative.
static void gradients_of_gradients(void) {
    struct ggml_context * ctx = new_ctx();
    struct ggml_tensor *x = vector(ctx, "x", 2, (float[]){ 2, -1 }), *d = NULL, *dd = NULL, *ddd = NULL;
    CHECK_INT(ggml_grad(ctx, ggml_sum(ctx, ggml_sqr(ctx, ggml_sqr(ctx, x))), &x, 1, &d), GGML_STATUS_SUCCESS);
    struct ggml_tensor * first = ggml_view_1d(ctx, d, 1, 0);
    CHECK_INT(ggml_grad(ctx, first, &x, 1, &dd), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_grad(ctx, ggml_sum(ctx, dd), &x, 1, &ddd), GGML_STATUS_SUCCESS);
    REQUIRE(d != NULL && dd != NULL && ddd != NULL);
    CHECK_VALUES(d, 32, -4);
    CHECK_VALUES(dd, 48, 0);
    CHECK_VALUES(ddd, 48, 0);
    ggml_free(ctx);
}

// F16 weights have F32 gradients. A quantized tensor has none, but gradients pass its products.
static void types(void) {
    struct ggml_context * ctx = new_ctx();
    struct ggml_tensor *w = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, 32, 2), *x = vector(ctx, "x", 32, NULL), *grads[2];
    for (int i = 0; i < 64; i++) {
        ggml_set_f32_1d(w, i, (float) (i % 5));
    }
    struct ggml_tensor * params[] = { w, x };
    CHECK_INT(ggml_grad(ctx, ggml_sum(ctx, ggml_mul_mat(ctx, w, x)), params, 2, grads), GGML_STATUS_SUCCESS);
    CHECK(grads[0]->type == GGML_TYPE_F32 && grads[1]->type == GGML_TYPE_F32);
    CHECK_VALUES(grads[0], 1, 2, 3);
    CHECK_VALUES(grads[1], 2, 4, 6, 3, 5);
    struct ggml_tensor * q = ggml_set_name(ggml_new_tensor_2d(ctx, GGML_TYPE_Q8_0, 32, 2), "q");
    memset(q->data, 0, ggml_nbytes(q));
    struct ggml_tensor * frozen = ggml_sum(ctx, ggml_mul_mat(ctx, q, x));
    CHECK_INT(ggml_grad(ctx, frozen, &x, 1, grads), GGML_STATUS_SUCCESS);
    CHECK_VALUES(grads[0], 0, 0, 0);
    params[0] = x, params[1] = q;
    CHECK_INT(ggml_grad(ctx, frozen, params, 2, grads), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "ggml_grad: params[1] 'q' q8_0 [32, 2] has no gradient");

    // u sigmoid(u) (w + 1) with u = 1 and w = 2
    struct ggml_tensor *u = ggml_set_f32(ggml_new_tensor_1d(ctx, GGML_TYPE_F16, 1), 1), *halves[] = { u, NULL };
    halves[1] = ggml_set_f32(ggml_new_tensor_1d(ctx, GGML_TYPE_F16, 1), 2);
    struct ggml_tensor * gate = ggml_cast(ctx, ggml_swiglu_oai(ctx, u, halves[1], 1, 7), GGML_TYPE_F32);
    CHECK_INT(ggml_grad(ctx, gate, halves, 2, grads), GGML_STATUS_SUCCESS);
    CHECK_VALUES(grads[0], 2.783012f);
    CHECK_VALUES(grads[1], 0.7310586f);
    ggml_free(ctx);
}

// The field grad of other code stays, and the builders of the rules do not see it.
static void fields_stay(void) {
    struct ggml_context * ctx = new_ctx();
    struct ggml_tensor *x = vector(ctx, "x", 3, NULL), *w = vector(ctx, "w", 3, NULL), *grads[1];
    CHECK_INT(ggml_set_param(ctx, x), GGML_STATUS_SUCCESS);
    struct ggml_tensor *field = x->grad, *y = ggml_mul(ctx, x, w), *loss = ggml_sum(ctx, ggml_exp(ctx, y));
    struct ggml_tensor * of_y = y->grad;
    CHECK_INT(ggml_grad(ctx, loss, &w, 1, grads), GGML_STATUS_SUCCESS);
    CHECK(x->grad == field && y->grad == of_y && field != NULL && of_y != NULL && loss->grad != NULL);
    for (struct ggml_tensor * t = grads[0]; t != NULL; t = t->src[0]) {
        CHECK(t == loss || t == y || t == x || t->op == GGML_OP_UNARY || t->op == GGML_OP_SUM || t->grad == NULL);
    }
    ggml_free(ctx);
}

#define CHECK_UNCHANGED(expected, text)                              \
    do {                                                             \
        const size_t used_ = ggml_used_mem(ctx);                     \
        struct ggml_tensor * kept_ = grads[0];                       \
        CHECK_INT(ggml_grad(ctx, loss, params, n, grads), expected); \
        CHECK_ERROR(expected, text);                                 \
        CHECK(grads[0] == kept_);                                    \
        CHECK_INT(ggml_used_mem(ctx), used_);                        \
    } while (0)

// An error names its cause, the list of gradients stays, and the context has no new tensors.
static void errors(void) {
    struct ggml_context * ctx = new_ctx();
    struct ggml_tensor * x = ggml_set_name(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 4, 1), "x");
    struct ggml_tensor *params[] = { x, NULL }, *grads[2] = { x, x }, *loss = x;
    int n = 1;
    CHECK_UNCHANGED(GGML_STATUS_INVALID_ARGUMENT, "loss must be a scalar, but dimension 0 is 4");
    loss = ggml_cast(ctx, ggml_sum(ctx, x), GGML_TYPE_F16);
    CHECK_UNCHANGED(GGML_STATUS_INVALID_ARGUMENT, "loss must be f32, is f16");
    loss = ggml_sum(ctx, ggml_exp(ctx, ggml_set_name(ggml_diag(ctx, ggml_sqr(ctx, x)), "y")));
    CHECK_UNCHANGED(GGML_STATUS_UNSUPPORTED, "ggml_grad: DIAG 'y' f32 [4, 4] of 'node_0' f32 [4");
    n = 2;
    CHECK_UNCHANGED(GGML_STATUS_INVALID_ARGUMENT, "params[1] is NULL");
    n = -1;
    CHECK_UNCHANGED(GGML_STATUS_INVALID_ARGUMENT, "needs at least 0, has -1");
    CHECK_INT(ggml_grad(NULL, loss, params, 1, grads), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'ctx' is NULL");
    CHECK_INT(ggml_grad(ctx, NULL, params, 1, grads), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "NULL");
    CHECK_INT(ggml_grad(ctx, loss, NULL, 1, grads), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'params' is NULL");
    CHECK_INT(ggml_grad(ctx, loss, params, 1, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'grads' is NULL");
    ggml_free(ctx);
}

// Gradients may read a result in place, but not what it overwrites.
static void overwritten(void) {
    struct ggml_context * ctx = new_ctx();
    struct ggml_tensor *x = vector(ctx, "x", 3, (float[]){ 1, 2, 3 }), *params[] = { x }, *grads[1] = { x };
    struct ggml_tensor * loss = ggml_sum(ctx, ggml_sqr(ctx, ggml_scale_inplace(ctx, ggml_neg(ctx, x), 2)));
    CHECK_INT(ggml_grad(ctx, loss, params, 1, grads), GGML_STATUS_SUCCESS);
    CHECK_VALUES(grads[0], 8, 16, 24);

    struct ggml_tensor * e = ggml_set_name(ggml_exp(ctx, x), "e");
    loss = ggml_sum(ctx, ggml_set_name(ggml_scale_inplace(ctx, e, 2), "twice"));
    int n = 1;
    CHECK_UNCHANGED(GGML_STATUS_UNSUPPORTED,
        "the gradients need 'e' f32 [3], which SCALE 'twice' f32 [3] of 'e' f32 [3] overwrites");

    // the gradient of written rows goes to their source, that of the other rows to the table
    struct ggml_tensor * table = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 3, 2);
    ggml_set_f32(table, 0.5f);
    struct ggml_tensor * at = ggml_set_i32(ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 1), 1);
    struct ggml_tensor *both[] = { x, table }, *found[2];
    loss = ggml_sum(ctx, ggml_sqr(ctx, ggml_set_rows(ctx, table, x, at)));
    CHECK_INT(ggml_grad(ctx, loss, both, 2, found), GGML_STATUS_SUCCESS);
    CHECK_VALUES(found[0], 2, 4, 6);
    CHECK_VALUES(found[1], 1, 1, 1, 0, 0, 0);
    ggml_free(ctx);
}

// If any allocation fails, the call fails, nothing has changed, and nothing leaks.
static void no_memory(void) {
    const int64_t live = gb_test_live_allocs();
    struct ggml_context * ctx = new_ctx();
    struct ggml_tensor *x = vector(ctx, "x", 3, NULL), *grads[1];
    struct ggml_tensor * loss = ggml_sum(ctx, ggml_scale_inplace(ctx, ggml_neg(ctx, ggml_sqr(ctx, x)), 2));
    bool hit = true;
    for (int n = 1; n < 1000 && hit; n++) {
        grads[0] = NULL;
        gb_test_fail_alloc(n, false);
        const enum ggml_status status = ggml_grad(ctx, loss, &x, 1, grads);
        hit = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK(status == (hit ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_SUCCESS));
        CHECK((grads[0] == NULL) == hit && x->grad == NULL);
    }
    CHECK(!hit);
    CHECK_VALUES(grads[0], -4, -8, -12);
    ggml_free(ctx);
    CHECK_INT(gb_test_live_allocs(), live);
}

TEST_MAIN(TEST(leafs_and_nodes), TEST(unreached), TEST(gradients_of_gradients), TEST(types), TEST(fields_stay),
    TEST(errors), TEST(overwritten), TEST(no_memory))
