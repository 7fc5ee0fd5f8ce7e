// IM2COL, IM2COL_BACK and the transposed convolutions against their sums.
#include "cpu/ops/conv/transposed.h"
#include "test_cpu_ops.h"

static double inside(const struct ggml_tensor * b, int64_t x, int64_t y, int64_t c, int64_t n, bool is_2d) {
    if (x < 0 || x >= b->ne[0] || y < 0 || (is_2d && y >= b->ne[1])) {
        return 0;
    }
    return is_2d ? at(b, x, y, c, n) : at(b, x, c, n, 0);
}

static double want_im2col(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const int32_t * p = node->op_params; // s0, s1, p0, p1, d0, d1, is_2d
    const int64_t kw = a->ne[0], kh = p[6] ? a->ne[1] : 1;
    const int64_t k = i[0] % kw, l = i[0] / kw % kh, c = i[0] / (kw * kh);
    if (p[6]) {
        return inside(b, i[1] * p[0] + k * p[4] - p[2], i[2] * p[1] + l * p[5] - p[3], c, i[3], true);
    }
    return inside(b, i[1] * p[0] + k * p[4] - p[2], 0, c, i[2], false);
}

// The output position of the window whose element k covers place x; -1: none.
static int64_t window_at(int64_t x, int64_t k, int stride, int padding, int dilation, int64_t n) {
    const int64_t from = x + padding - k * dilation;
    return from >= 0 && from % stride == 0 && from / stride < n ? from / stride : -1;
}

static double want_im2col_back(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const int32_t * p = node->op_params; // s0, s1, p0, p1, d0, d1, is_2d
    const int64_t kw = a->ne[0], kh = p[6] ? a->ne[1] : 1, c = p[6] ? i[2] : i[1];
    double s = 0;
    for (int64_t l = 0; l < kh; l++) {
        const int64_t y = p[6] ? window_at(i[1], l, p[1], p[3], p[5], b->ne[2]) : 0;
        for (int64_t k = 0; k < kw && y >= 0; k++) {
            const int64_t x = window_at(i[0], k, p[0], p[2], p[4], b->ne[1]), column = (c * kh + l) * kw + k;
            s += x < 0 ? 0 : p[6] ? at(b, column, x, y, i[3]) : at(b, column, x, i[2], 0);
        }
    }
    return s;
}

static double want_transposed_1d(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    double s = 0;
    for (int64_t l = 0; l < b->ne[0]; l++) {
        const int64_t k = i[0] - l * node->op_params[0];
        for (int64_t ic = 0; ic < b->ne[1] && k >= 0 && k < a->ne[0]; ic++) {
            s += at(b, l, ic, 0, 0) * at(a, k, i[1], ic, 0);
        }
    }
    return s;
}

static double want_transposed_2d(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const int64_t stride = node->op_params[0];
    double s = 0;
    for (int64_t h = 0; h < b->ne[1]; h++) {
        for (int64_t w = 0; w < b->ne[0]; w++) {
            const int64_t kw = i[0] - w * stride, kh = i[1] - h * stride;
            for (int64_t ic = 0; ic < b->ne[2] && kw >= 0 && kw < a->ne[0] && kh >= 0 && kh < a->ne[1]; ic++) {
                s += at(b, w, h, ic, i[3]) * at(a, kw, kh, i[2], ic);
            }
        }
    }
    return s;
}

static const int params[][6] = { { 1, 1, 0, 0, 1, 1 }, { 2, 3, 1, 2, 1, 1 }, { 1, 2, 3, 1, 2, 3 } };

static void im2col(void) {
    for (int s = 0; s < 3; s++) {
        const int * p = params[s];
        FOR_LAYOUTS(layout) {
            FOR_FLOATS(type) {
                begin();
                struct ggml_tensor * b = random_tensor(type, layout, 13, 11, 3, 2);
                struct ggml_tensor * node = ggml_im2col(ctx, tensor(GGML_TYPE_F16, DENSE, 3, 2, 3, 4),
                    stand_in(13, 11, 3, 2), p[0], p[1], p[2], p[3], p[4], p[5], true);
                CHECK_NODE(reading(node, 1, b), want_im2col, 0);
                struct ggml_tensor * line = random_tensor(type, layout, 21, 3, 2, 1);
                node = ggml_im2col(ctx, tensor(GGML_TYPE_F16, DENSE, 3, 3, 4, 1), stand_in(21, 3, 2, 1), p[0], 0, p[2],
                    0, p[4], 0, false);
                CHECK_NODE(reading(node, 1, line), want_im2col, 0);
                end();
            }
        }
    }
    begin();
    struct ggml_tensor * node = ggml_im2col(ctx, tensor(GGML_TYPE_F16, DENSE, 3, 3, 6, 4),
        random_tensor(GGML_TYPE_F32, DENSE, 30, 31, 6, 1), 1, 1, 1, 1, 1, 1, true);
    CHECK(is_shared(node));
    CHECK_NODE(node, want_im2col, 0);
    end();
}

static void check_im2col_back(const int * p, enum ggml_type type, int layout, bool is_2d) {
    begin();
    const int64_t ne[4] = { 13, is_2d ? 11 : 3, is_2d ? 3 : 2, is_2d ? 2 : 1 };
    const int s1 = is_2d ? p[1] : 0, p1 = is_2d ? p[3] : 0, d1 = is_2d ? p[5] : 0;
    struct ggml_tensor * kernel = tensor(GGML_TYPE_F16, DENSE, 3, is_2d ? 2 : 3, is_2d ? 3 : 4, is_2d ? 4 : 1);
    const int64_t * rows =
        ggml_im2col(ctx, kernel, stand_in(ne[0], ne[1], ne[2], ne[3]), p[0], s1, p[2], p1, p[4], d1, is_2d)->ne;
    struct ggml_tensor * node = ggml_im2col_back(ctx, kernel, stand_in(rows[0], rows[1], rows[2], rows[3]), ne, p[0],
        s1, p[2], p1, p[4], d1, is_2d);
    struct ggml_tensor * b = random_tensor(type, layout, rows[0], rows[1], rows[2], rows[3]);
    CHECK_NODE(reading(node, 1, b), want_im2col_back, 5e-6);
    end();
}

static void im2col_back(void) {
    for (int s = 0; s < 3; s++) {
        FOR_LAYOUTS(layout) {
            FOR_FLOATS(type) {
                check_im2col_back(params[s], (enum ggml_type) type, layout, true);
                check_im2col_back(params[s], (enum ggml_type) type, layout, false);
            }
        }
    }
    begin();
    const int64_t ne[4] = { 30, 31, 6, 1 };
    struct ggml_tensor * node = ggml_im2col_back(ctx, tensor(GGML_TYPE_F16, DENSE, 3, 3, 6, 4),
        random_tensor(GGML_TYPE_F32, DENSE, 54, 30, 31, 1), ne, 1, 1, 1, 1, 1, 1, true);
    CHECK(is_shared(node));
    CHECK_NODE(node, want_im2col_back, 5e-6);
    end();
}

static void transposed_1d(void) {
    for (int stride = 1; stride <= 4; stride += 3) {
        FOR_LAYOUTS(layout) {
            FOR_FLOATS(type) {
                begin();
                struct ggml_tensor *a = random_tensor(type, layout, 3, 4, 5, 1),
                                   *b = random_tensor(GGML_TYPE_F32, layout, 9, 5, 1, 1);
                struct ggml_tensor * node =
                    ggml_conv_transpose_1d(ctx, stand_in(3, 4, 5, 1), stand_in(9, 5, 1, 1), stride, 0, 1);
                CHECK_NODE(reading(reading(node, 0, a), 1, b), want_transposed_1d, 3e-6);
                end();
            }
        }
    }
    begin();
    struct ggml_tensor * node = ggml_conv_transpose_1d(ctx, random_tensor(GGML_TYPE_F16, DENSE, 9, 32, 5, 1),
        random_tensor(GGML_TYPE_F32, DENSE, 200, 5, 1, 1), 2, 0, 1);
    CHECK(is_shared(node));
    CHECK_NODE(node, want_transposed_1d, 3e-6);
    end();
    begin(); // one channel, as at the end of a vocoder
    node = ggml_conv_transpose_1d(ctx, random_tensor(GGML_TYPE_F32, DENSE, 4, 1, 8, 1),
        random_tensor(GGML_TYPE_F32, DENSE, 40000, 8, 1, 1), 2, 0, 1);
    CHECK(is_shared(node));
    end();
}

static void transposed_2d(void) {
    for (int stride = 1; stride <= 3; stride++) {
        FOR_LAYOUTS(layout) {
            FOR_FLOATS(type) {
                begin();
                struct ggml_tensor *a = random_tensor(type, layout, 3, 2, 4, 3),
                                   *b = random_tensor(GGML_TYPE_F32, layout, 6, 5, 3, 2);
                struct ggml_tensor * node = ggml_conv_transpose_2d_p0(ctx,
                    random_tensor(GGML_TYPE_F16, DENSE, 3, 2, 4, 3), stand_in(6, 5, 3, 2), stride);
                CHECK_NODE(reading(reading(node, 0, a), 1, b), want_transposed_2d, 3e-6); // all batches
                end();
            }
        }
    }
    begin();
    struct ggml_tensor * node = ggml_conv_transpose_2d_p0(ctx, random_tensor(GGML_TYPE_F16, DENSE, 3, 3, 9, 4),
        random_tensor(GGML_TYPE_F32, DENSE, 22, 24, 4, 2), 2);
    CHECK(is_shared(node));
    CHECK_NODE(node, want_transposed_2d, 3e-6);
    end();
}

static int pick(int low, int high) { return (int) test_random_int(low, high); }

// Both algorithms: strides above and below the kernel size, one input position, several bands and
// blocks of channels.
static void transposed_random(void) {
    for (int pass = 0; pass < 160; pass++) {
        begin();
        const enum ggml_type kernel = float_types[pass % 3], data = float_types[pass % 5 < 3 ? 0 : pass % 5 - 2];
        const int layout = pass % 4 == 0 ? pick(0, N_LAYOUTS - 1) : DENSE, stride = pick(1, 9);
        const int k0 = pick(1, 2) == 1 ? pick(1, 12) : 2 * stride, ic = pick(1, 40), oc = pick(1, 30);
        gb_transposed_prefer_spread(pass % 3 == 0);
        if (pass % 2 == 0) {
            const int length = pass % 8 == 0 ? pick(300, 700) : pick(1, 40);
            struct ggml_tensor * node =
                ggml_conv_transpose_1d(ctx, stand_in(k0, oc, ic, 1), stand_in(length, ic, 1, 1), stride, 0, 1);
            reading(node, 0, random_tensor(kernel, layout, k0, oc, ic, 1));
            CHECK_NODE(reading(node, 1, random_tensor(data, layout, length, ic, 1, 1)), want_transposed_1d,
                1e-5 + 1e-6 * ic * k0); // values are up to 4
        } else {
            const int w = pick(1, 14), h = pick(1, 9), n = pick(1, 2), k1 = pick(1, 5), few = GB_MIN(oc, 14);
            struct ggml_tensor * node = ggml_conv_transpose_2d_p0(ctx,
                random_tensor(GGML_TYPE_F16, DENSE, k0, k1, few, ic), stand_in(w, h, ic, n), GB_MIN(stride, 4));
            reading(node, 0, random_tensor(kernel, layout, k0, k1, few, ic));
            CHECK_NODE(reading(node, 1, random_tensor(data, layout, w, h, ic, n)), want_transposed_2d,
                1e-5 + 1e-6 * ic * k0 * k1);
        }
        gb_transposed_prefer_spread(false);
        end();
    }
}

// Larger shapes: several bands, which threads share, and both sides of the limits of the algorithm.
static void transposed_large(void) {
    static const struct {
        int w, h, ic, oc, k0, k1, stride;
        bool woven;
    } cases[] = { { 600, 1, 70, 33, 16, 0, 8, true }, { 40, 30, 64, 13, 2, 2, 2, true }, { 9, 9, 3, 5, 4, 3, 2, true },
        { 5, 4, 2, 3, 3, 5, 4, false }, { 3, 3, 2, 2, 17, 17, 17, false } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        begin();
        struct ggml_tensor * node = NULL;
        if (cases[i].k1 == 0) {
            node = ggml_conv_transpose_1d(ctx,
                random_tensor(GGML_TYPE_F32, DENSE, cases[i].k0, cases[i].oc, cases[i].ic, 1),
                random_tensor(GGML_TYPE_F32, DENSE, cases[i].w, cases[i].ic, 1, 1), cases[i].stride, 0, 1);
        } else {
            node = ggml_conv_transpose_2d_p0(ctx,
                random_tensor(GGML_TYPE_F16, DENSE, cases[i].k0, cases[i].k1, cases[i].oc, cases[i].ic),
                random_tensor(GGML_TYPE_F32, DENSE, cases[i].w, cases[i].h, cases[i].ic, 2), cases[i].stride);
        }
        const struct gb_transposed t = gb_transposed_of(node);
        CHECK((gb_woven_cannot(&t) == NULL) == cases[i].woven);
        CHECK_NODE(node, cases[i].k1 == 0 ? want_transposed_1d : want_transposed_2d, 3e-5); // 144 terms up to 4
        end();
    }
}

TEST_MAIN(TEST(im2col), TEST(im2col_back), TEST(transposed_1d), TEST(transposed_2d), TEST(transposed_random),
    TEST(transposed_large))
