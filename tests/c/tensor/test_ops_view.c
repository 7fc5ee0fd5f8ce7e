// test_ops_view.c - views: shapes and strides byte by byte, offsets, and the roots of views of
// views.
#include "test.h"

static struct ggml_context * new_ctx(bool no_alloc) {
    const struct ggml_init_params params = { 0, NULL, no_alloc };
    return ggml_init(params);
}

static void check_layout(int line, const struct ggml_tensor * t, const int64_t ne[4], const size_t nb[4]) {
    if (t == NULL) {
        test_fail(__FILE__, line, "no view: %s", ggml_last_error());
        return;
    }
    for (int d = 0; d < 4; d++) {
        if (t->ne[d] != ne[d] || t->nb[d] != nb[d]) {
            test_fail(__FILE__, line, "dimension %d: ne %lld nb %zu, expected %lld and %zu", d, (long long) t->ne[d],
                t->nb[d], (long long) ne[d], nb[d]);
        }
    }
}

#define L(...) { __VA_ARGS__ }
#define LAYOUT(t, ne, nb) check_layout(__LINE__, t, (const int64_t[4]) ne, (const size_t[4]) nb)

static void layouts(void) {
    struct ggml_context * ctx = new_ctx(true);
    struct ggml_tensor * a = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, 5, 4, 3, 2); // nb 2, 10, 40, 120
    LAYOUT(ggml_reshape_2d(ctx, a, 20, 6), L(20, 6, 1, 1), L(2, 40, 240, 240));
    LAYOUT(ggml_view_1d(ctx, a, 7, 4), L(7, 1, 1, 1), L(2, 14, 14, 14));
    LAYOUT(ggml_view_2d(ctx, a, 3, 4, 20, 4), L(3, 4, 1, 1), L(2, 20, 80, 80));
    LAYOUT(ggml_view_3d(ctx, a, 3, 2, 2, 20, 120, 4), L(3, 2, 2, 1), L(2, 20, 120, 240));
    LAYOUT(ggml_view_4d(ctx, a, 3, 2, 2, 2, 6, 40, 120, 4), L(3, 2, 2, 2), L(2, 6, 40, 120));
    LAYOUT(ggml_permute(ctx, a, 2, 0, 3, 1), L(4, 2, 5, 3), L(10, 120, 2, 40)); // dimension d becomes dimension axis_d
    LAYOUT(ggml_permute(ctx, a, 0, 1, 2, 3), L(5, 4, 3, 2), L(2, 10, 40, 120));
    LAYOUT(ggml_transpose(ctx, a), L(4, 5, 3, 2), L(10, 2, 40, 120));
    // sizes beyond 32 bits; no memory is allocated
    const int64_t n = (int64_t) 1 << 33;
    struct ggml_tensor * large = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n, 3);
    LAYOUT(ggml_permute(ctx, large, 1, 0, 2, 3), L(3, n, 1, 1), L(4 * (size_t) n, 4, 12 * (size_t) n, 12 * (size_t) n));
    const struct ggml_tensor * far = ggml_view_1d(ctx, large, n, 8 * (size_t) n);
    CHECK(far != NULL && far->view_offs == 8 * (size_t) n);
    ggml_free(ctx);
}

static void offsets(void) {
    struct ggml_context * ctx = new_ctx(false);
    struct ggml_tensor * a = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 8, 4);
    struct ggml_tensor * v = ggml_view_2d(ctx, a, 4, 3, 32, 36);
    struct ggml_tensor * w = ggml_view_1d(ctx, v, 2, 40);
    struct ggml_tensor * t = ggml_transpose(ctx, v);
    size_t kept;
    CHECK(v->view_src == a && v->src[0] == a && v->view_offs == 36 && v->data == (char *) a->data + 36);
    memcpy(&kept, v->op_params, sizeof(kept));
    CHECK_INT(kept, 36);
    CHECK(w->view_src == a && w->src[0] == v && w->view_offs == 76 && w->data == (char *) a->data + 76);
    memcpy(&kept, w->op_params, sizeof(kept)); // relative to its direct source
    CHECK_INT(kept, 40);
    CHECK(t->view_src == a && t->src[0] == v && t->view_offs == 36 && t->data == v->data);
    CHECK_INT(t->op_params[0], 0);
    const struct ggml_tensor * p = ggml_permute(ctx, a, 1, 0, 3, 2);
    CHECK(p->op_params[0] == 1 && p->op_params[1] == 0 && p->op_params[2] == 3 && p->op_params[3] == 2 &&
          p->op_params[4] == 0);
    ((float *) a->data)[9 + 2 * 8 + 3] = 42; // element (3, 2) of v
    CHECK(ggml_get_f32_nd(v, 3, 2, 0, 0) == 42 && ggml_get_f32_nd(t, 2, 3, 0, 0) == 42);
    CHECK(ggml_view_1d(ctx, v, 22, 4) != NULL); // exactly up to the last byte of a
    CHECK(ggml_view_1d(ctx, v, 24, 4) == NULL); // beyond it
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "ggml_view_1d");
    ggml_free(ctx);
}

// A view of memory that is not allocated yet has no address, and no data of its own in any context.
static void unplaced(void) {
    struct ggml_context * ctx = new_ctx(true);
    struct ggml_context * views = new_ctx(false);
    struct ggml_tensor * a = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 8, 4);
    const size_t before = ggml_used_mem(views);
    struct ggml_tensor * v = ggml_view_2d(views, a, 4, 3, 32, 36);
    CHECK(v != NULL && v->data == NULL && v->buffer == NULL);
    CHECK_INT(ggml_used_mem(views) - before, ggml_tensor_overhead());
    struct ggml_tensor * r = ggml_relu_inplace(views, a);
    CHECK(r != NULL && r->data == NULL && r->view_src == a);
    ggml_free(views);
    ggml_free(ctx);
}

static void quantized(void) {
    struct ggml_context * ctx = new_ctx(true);
    struct ggml_tensor * q = ggml_new_tensor_2d(ctx, GGML_TYPE_Q4_0, 64, 4); // rows of 2 blocks of 18 bytes
    LAYOUT(ggml_view_2d(ctx, q, 32, 4, 36, 18), L(32, 4, 1, 1), L(18, 36, 144, 144));
    LAYOUT(ggml_view_1d(ctx, q, 64, 36), L(64, 1, 1, 1), L(18, 36, 36, 36));
    LAYOUT(ggml_reshape_3d(ctx, q, 32, 2, 4), L(32, 2, 4, 1), L(18, 18, 36, 144));
    LAYOUT(ggml_permute(ctx, q, 0, 2, 1, 3), L(64, 1, 4, 1), L(18, 144, 36, 144));
    CHECK(ggml_view_1d(ctx, q, 33, 0) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "ggml_view_1d");
    CHECK(ggml_view_2d(ctx, q, 64, 4, 36, 18) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "144");
    ggml_free(ctx);
}

TEST_MAIN(TEST(layouts), TEST(offsets), TEST(unplaced), TEST(quantized))
