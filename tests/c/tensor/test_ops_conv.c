// test_ops_conv.c - convolutions composed of operators match their formulas, also for several
// images. Values are small integers, so every sum is exact in f16 and f32, and results must be
// equal.
#include "in_context.h"
#include "test.h"

static struct ggml_context * ctx;

static struct ggml_tensor * random_tensor(enum ggml_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    struct ggml_tensor * t = ggml_new_tensor_4d(ctx, type, ne0, ne1, ne2, ne3);
    for (int64_t i = 0; i < ne0 * ne1 * ne2 * ne3; i++) {
        ggml_set_f32_1d(t, (int) i, (float) test_random_int(-3, 3));
    }
    return t;
}

static bool compute(struct ggml_tensor * r) {
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, r);
    const bool ok = ggml_graph_compute_with_ctx(ctx, graph, 2) == GGML_STATUS_SUCCESS;
    CHECK_MSG(ok, "%s", ggml_last_error());
    return ok;
}

// x at (i, j), 0 outside
static double at(const struct ggml_tensor * x, int64_t i, int64_t j, int64_t k, int64_t l) {
    const bool inside = i >= 0 && i < x->ne[0] && j >= 0 && j < x->ne[1];
    return inside ? (double) ggml_get_f32_nd(x, (int) i, (int) j, (int) k, (int) l) : 0;
}

struct conv {
    int s0, s1, p0, p1, d0, d1;
};

// out[x, y, oc, n]. depthwise: kernels have one channel, and each serves as many adjacent channels.
static double expected_2d(const struct ggml_tensor * k, const struct ggml_tensor * b, const struct conv * c, int x,
    int y, int oc, int n, bool depthwise) {
    double sum = 0;
    for (int ic = 0; ic < (depthwise ? 1 : b->ne[2]); ic++) {
        for (int kh = 0; kh < k->ne[1]; kh++) {
            for (int kw = 0; kw < k->ne[0]; kw++) {
                const int i = x * c->s0 + kw * c->d0 - c->p0;
                const int j = y * c->s1 + kh * c->d1 - c->p1;
                const int kernel = depthwise ? oc / (int) (b->ne[2] / k->ne[3]) : oc;
                const double w = (double) ggml_get_f32_nd(k, kw, kh, depthwise ? 0 : ic, kernel);
                sum += w * at(b, i, j, depthwise ? oc : ic, n);
            }
        }
    }
    return sum;
}

static void check_2d(const char * what, struct ggml_tensor * r, const struct ggml_tensor * k,
    const struct ggml_tensor * b, const struct conv * c, bool depthwise) {
    CHECK_MSG(r != NULL && ggml_is_contiguous(r), "%s: %s", what, ggml_last_error());
    if (r == NULL || !compute(r)) {
        return;
    }
    for (int64_t i = 0; i < ggml_nelements(r); i++) {
        int64_t x, y, oc, n;
        ggml_unravel_index(r, i, &x, &y, &oc, &n);
        const double e = expected_2d(k, b, c, (int) x, (int) y, (int) oc, (int) n, depthwise);
        const double v = (double) ggml_get_f32_nd(r, (int) x, (int) y, (int) oc, (int) n);
        CHECK_MSG(v == e, "%s: [%d, %d, %d, %d] is %g, expected %g", what, (int) x, (int) y, (int) oc, (int) n, v, e);
    }
}

static void conv_2d(void) {
    for (int f32 = 0; f32 < 2; f32++) {
        for (int n = 1; n <= 3; n++) {
            struct ggml_tensor * k = random_tensor(f32 ? GGML_TYPE_F32 : GGML_TYPE_F16, 3, 2, 4, 5);
            struct ggml_tensor * b = random_tensor(GGML_TYPE_F32, 7, 6, 4, n);
            const struct conv c = { 2, 1, 1, 2, 1, 2 };
            struct ggml_tensor * r = ggml_conv_2d(ctx, k, b, 2, 1, 1, 2, 1, 2);
            CHECK(r != NULL && r->ne[0] == 4 && r->ne[1] == 8 && r->ne[2] == 5 && r->ne[3] == n);
            check_2d("conv_2d", r, k, b, &c, false);
            check_2d("conv_2d_sk_p0", ggml_conv_2d_sk_p0(ctx, k, b), k, b, &(const struct conv){ 3, 2, 0, 0, 1, 1 },
                false);
            check_2d("conv_2d_s1_ph", ggml_conv_2d_s1_ph(ctx, k, b), k, b, &(const struct conv){ 1, 1, 1, 1, 1, 1 },
                false);
        }
    }
}

static void conv_depthwise(void) {
    for (int f32 = 0; f32 < 2; f32++) {
        for (int n = 1; n <= 3; n++) {
            for (int kernels = 2; kernels <= 4; kernels += 2) {
                struct ggml_tensor * k = random_tensor(f32 ? GGML_TYPE_F32 : GGML_TYPE_F16, 3, 2, 1, kernels);
                struct ggml_tensor * b = random_tensor(GGML_TYPE_F32, 7, 6, 4, n);
                const struct conv c = { 2, 1, 1, 0, 1, 2 };
                check_2d("conv_depthwise_2d", ggml_conv_depthwise_2d(ctx, k, b, 2, 1, 1, 0, 1, 2), k, b, &c, true);
            }
        }
    }
}

static void check_1d(const char * what, struct ggml_tensor * r, const struct ggml_tensor * k,
    const struct ggml_tensor * b, int s, int p, int d) {
    CHECK_MSG(r != NULL && ggml_is_contiguous(r), "%s: %s", what, ggml_last_error());
    if (r == NULL || !compute(r)) {
        return;
    }
    for (int64_t i = 0; i < ggml_nelements(r); i++) {
        int64_t x, oc, n, one;
        ggml_unravel_index(r, i, &x, &oc, &n, &one);
        double e = 0;
        for (int ic = 0; ic < b->ne[1]; ic++) {
            for (int j = 0; j < k->ne[0]; j++) {
                e += (double) ggml_get_f32_nd(k, j, ic, (int) oc, 0) * at(b, x * s + j * d - p, ic, n, 0);
            }
        }
        const double v = (double) ggml_get_f32_nd(r, (int) x, (int) oc, (int) n, 0);
        CHECK_MSG(v == e, "%s: [%d, %d, %d] is %g, expected %g", what, (int) x, (int) oc, (int) n, v, e);
    }
}

static void conv_1d(void) {
    for (int f32 = 0; f32 < 2; f32++) {
        for (int n = 1; n <= 3; n++) {
            struct ggml_tensor * k = random_tensor(f32 ? GGML_TYPE_F32 : GGML_TYPE_F16, 3, 4, 5, 1);
            struct ggml_tensor * b = random_tensor(GGML_TYPE_F32, 9, 4, n, 1);
            struct ggml_tensor * r = ggml_conv_1d(ctx, k, b, 2, 3, 2);
            CHECK(r != NULL && r->ne[0] == 6 && r->ne[1] == 5 && r->ne[2] == n && r->ne[3] == 1);
            check_1d("conv_1d", r, k, b, 2, 3, 2);
            check_1d("conv_1d_ph", ggml_conv_1d_ph(ctx, k, b, 1, 1), k, b, 1, 1, 1);
        }
    }
}

// f32 data are never rounded, for any type of the kernel. Values that f16 would round or make
// infinite stay exact.
static void windows_of_f32_are_not_rounded(void) {
    for (int f32 = 0; f32 < 2; f32++) {
        const enum ggml_type type = f32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
        struct ggml_tensor * k = random_tensor(type, 3, 2, 4, 5);
        struct ggml_tensor * b = random_tensor(GGML_TYPE_F32, 7, 6, 4, 2);
        struct ggml_tensor * each = random_tensor(type, 3, 2, 1, 2);
        struct ggml_tensor * k1 = random_tensor(type, 3, 4, 5, 1);
        struct ggml_tensor * b1 = random_tensor(GGML_TYPE_F32, 9, 4, 2, 1);
        for (int64_t i = 0; i < ggml_nelements(b); i++) {
            ggml_set_f32_1d(b, (int) i, (float) test_random_int(-100001, 100001));
        }
        for (int64_t i = 0; i < ggml_nelements(b1); i++) {
            ggml_set_f32_1d(b1, (int) i, (float) test_random_int(-100001, 100001));
        }
        const struct conv c = { 2, 1, 1, 2, 1, 2 };
        check_2d("conv_2d_as", ggml_conv_2d_as(ctx, k, b, 2, 1, 1, 2, 1, 2, GGML_TYPE_F32), k, b, &c, false);
        check_2d("conv_depthwise_2d_as", ggml_conv_depthwise_2d_as(ctx, each, b, 2, 1, 1, 2, 1, 2, GGML_TYPE_F32), each,
            b, &c, true);
        check_1d("conv_1d_as", ggml_conv_1d_as(ctx, k1, b1, 2, 3, 2, GGML_TYPE_F32), k1, b1, 2, 3, 2);
    }
}

static void other_types_of_rows_are_refused(void) {
    struct ggml_tensor * k = random_tensor(GGML_TYPE_F16, 3, 2, 4, 5);
    struct ggml_tensor * b = random_tensor(GGML_TYPE_F32, 7, 6, 4, 1);
    CHECK(ggml_conv_2d_as(ctx, k, b, 1, 1, 0, 0, 1, 1, GGML_TYPE_Q4_0) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "argument 'type' must be f32 or f16");
    CHECK(ggml_im2col_as(ctx, k, b, 1, 1, 0, 0, 1, 1, true, GGML_TYPE_I32) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "argument 'type' must be f32 or f16");
}

// The graph for one image is the documented one: unrolled rows times kernels, without a copy.
static void one_image(void) {
    struct ggml_tensor * k = random_tensor(GGML_TYPE_F16, 3, 2, 4, 5);
    struct ggml_tensor * b = random_tensor(GGML_TYPE_F32, 7, 6, 4, 1);
    struct ggml_tensor * r = ggml_conv_2d(ctx, k, b, 1, 1, 0, 0, 1, 1);
    CHECK_INT(r->op, GGML_OP_RESHAPE);
    const struct ggml_tensor * product = r->src[0];
    CHECK_INT(product->op, GGML_OP_MUL_MAT);
    CHECK(product->src[0]->op == GGML_OP_RESHAPE && product->src[1]->op == GGML_OP_RESHAPE);
    CHECK(product->src[0]->src[0]->op == GGML_OP_IM2COL && product->src[1]->src[0] == k);
    CHECK(product->src[0]->src[0]->src[0] == k && product->src[0]->src[0]->src[1] == b);
}

IN_CONTEXT(conv_2d, false)
IN_CONTEXT(conv_depthwise, false)
IN_CONTEXT(conv_1d, false)
IN_CONTEXT(windows_of_f32_are_not_rounded, false)
IN_CONTEXT(other_types_of_rows_are_refused, false)
IN_CONTEXT(one_image, false)

TEST_MAIN(RUN(conv_2d), RUN(conv_depthwise), RUN(conv_1d), RUN(windows_of_f32_are_not_rounded),
    RUN(other_types_of_rows_are_refused), RUN(one_image))
