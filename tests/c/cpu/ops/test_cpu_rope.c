// ROPE and ROPE_BACK against the formulas of the three layouts, element by element. Angles come
// from repeated multiplication.
#include "test_cpu_ops.h"

static const double pi = 3.14159265358979323846;

static double number(const struct ggml_tensor * node, int k) {
    float f;
    memcpy(&f, &node->op_params[k], sizeof(f));
    return (double) f;
}

// The angle and magnitude of a pair, from its unscaled angle and its even index i.
static void yarn(const struct ggml_tensor * node, double unscaled, int i, double * angle, double * magnitude) {
    const int n_dims = node->op_params[1], n_orig = node->op_params[4];
    const double base = number(node, 5), scale = number(node, 6), ext = number(node, 7), attn = number(node, 8);
    *angle = scale * unscaled;
    *magnitude = attn;
    if (ext != 0) {
        const double lo = fmax(0, floor(n_dims * log(n_orig / (2 * pi * number(node, 9))) / (2 * log(base))));
        const double hi = fmin(n_dims - 1, ceil(n_dims * log(n_orig / (2 * pi * number(node, 10))) / (2 * log(base))));
        const double mix = ext * (1 - fmin(1, fmax(0, (i / 2 - lo) / fmax(0.001, hi - lo))));
        *angle = scale * unscaled * (1 - mix) + unscaled * mix;
        *magnitude = attn * (1 + 0.1 * log(1 / scale));
    }
}

static double theta(const struct ggml_tensor * node, double p, int64_t j) {
    double t = p;
    for (int64_t k = 0; k < j; k++) {
        t *= pow(number(node, 5), -2.0 / node->op_params[1]);
    }
    return t;
}

static double want_rope(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor * a = node->src[0];
    const int n_dims = node->op_params[1], mode = node->op_params[2], n_ctx = node->op_params[3];
    const double p = at(node->src[1], i[2], 0, 0, 0);
    int64_t first, second; // elements of the pair
    double angle, magnitude = 1;
    if (mode & GGML_ROPE_EXACT) { // j is the pair. Its angle is the same in both layouts.
        const int64_t j = mode & 2 ? i[0] % (n_dims / 2) : i[0] / 2;
        if (i[0] >= n_dims) {
            return at(a, i[0], i[1], i[2], i[3]);
        }
        first = mode & 2 ? j : 2 * j;
        second = mode & 2 ? j + n_dims / 2 : 2 * j + 1;
        yarn(node, theta(node, p, j), (int) (2 * j), &angle, &magnitude);
    } else if (mode & 4) {
        const int64_t in = i[0] % n_dims, j = in % (n_dims / 2);
        first = i[0] - in + j;
        second = first + n_dims / 2;
        angle = theta(node, i[0] < n_dims ? fmin(p, n_ctx - 2) : fmax(p - (n_ctx - 2), 0), j);
    } else if (mode & 2) {
        if (i[0] >= n_dims) {
            return at(a, i[0], i[1], i[2], i[3]);
        }
        first = i[0] % (n_dims / 2);
        second = first + n_dims / 2;
        yarn(node, p * number(node, 6) * theta(node, 1, first), 0, &angle, &magnitude);
    } else {
        if (i[0] == a->ne[0] - 1 && a->ne[0] % 2 == 1) {
            return at(a, i[0], i[1], i[2], i[3]); // without a partner
        }
        first = i[0] - i[0] % 2;
        second = first + 1;
        yarn(node, theta(node, p, first / 2), (int) first, &angle, &magnitude);
        if (number(node, 11) != 0 && node->type == GGML_TYPE_F32) {
            const double n = (double) a->ne[0],
                         zeta = pow(((double) first + 0.4 * n) / (1.4 * n), p / number(node, 11));
            magnitude *= (node->op_params[12] & 0xff) ? 1 / zeta : zeta;
        }
    }
    const double x0 = at(a, first, i[1], i[2], i[3]), x1 = at(a, second, i[1], i[2], i[3]);
    const double c = magnitude * cos(angle), s = magnitude * sin(angle) * (node->op == GGML_OP_ROPE_BACK ? -1 : 1);
    return i[0] == first ? x0 * c - x1 * s : x0 * s + x1 * c;
}

static struct ggml_tensor * positions(int64_t n, int low, int high) {
    return fill_int(tensor(GGML_TYPE_I32, DENSE, n, 1, 1, 1), low, high);
}

static void modes(void) {
    static const int dims[][2] = { { 32, 32 }, { 32, 20 }, { 2, 2 } }; // row, n_dims
    for (int s = 0; s < 3; s++) {
        for (int mode = 0; mode < 8; mode++) {
            const int n = dims[s][0], n_dims = mode & 4 ? n / 2 : dims[s][1];
            if (n_dims % 2 != 0) {
                continue;
            }
            FOR_LAYOUTS(layout) {
                FOR_FLOATS(type) {
                    begin();
                    struct ggml_tensor *a = random_tensor(type, layout, n, 3, 5, 2), *b = positions(5, 0, 300);
                    CHECK_NODE(reading(typed(ggml_rope(ctx, stand_in(n, 3, 5, 2), b, n_dims, mode, 100), type), 0, a),
                        want_rope, 2e-6);
                    CHECK_NODE(onto(reading(typed(ggml_rope(ctx, stand_in(n, 3, 5, 2), b, n_dims, mode, 100), type), 0,
                                        a),
                                   0),
                        want_rope, 2e-6);
                    end();
                }
            }
        }
    }
}

static void stretched(void) { // scaled, with the ramp between interpolation and extrapolation
    for (int mode = 0; mode < 4; mode += 2) {
        for (int ext = 0; ext < 2; ext++) {
            FOR_FLOATS(type) {
                begin();
                struct ggml_tensor *a = random_tensor(type, DENSE, 64, 2, 5, 1), *b = positions(5, 0, 5000);
                struct ggml_tensor * node = ggml_rope_custom(ctx, stand_in(64, 2, 5, 1), b, 64, mode, 0, 2048, 5000.0f,
                    0.25f, ext ? 0.7f : 0.0f, 1.1f, 32.0f, 1.0f);
                CHECK_NODE(reading(typed(node, type), 0, a), want_rope, 2e-6);
                end();
            }
        }
    }
    begin();
    CHECK_NODE(ggml_rope_custom_inplace(ctx, random_tensor(GGML_TYPE_F32, PADDED, 64, 2, 5, 1), positions(5, 0, 99), 64,
                   0, 0, 2048, 1e4f, 0.5f, 1.0f, 1.0f, 32.0f, 1.0f),
        want_rope, 2e-6);
    end();
}

static void xpos(void) {
    for (int down = 0; down < 2; down++) {
        begin();
        CHECK_NODE(ggml_rope_xpos_inplace(ctx, random_tensor(GGML_TYPE_F32, DENSE, 64, 2, 5, 1), positions(5, 0, 500),
                       64, 512.0f, down),
            want_rope, 2e-6);
        CHECK_NODE(typed(onto(reading(ggml_rope_xpos_inplace(ctx, stand_in(64, 2, 5, 1), positions(5, 0, 500), 64,
                                          512.0f, down),
                                  0, random_tensor(GGML_TYPE_F16, DENSE, 64, 2, 5, 1)),
                             0),
                       GGML_TYPE_F16),
            want_rope, 2e-6);
        end();
    }
}

static void back(void) {
    for (int mode = 0; mode < 4; mode += 2) {
        FOR_FLOATS(type) {
            begin();
            struct ggml_tensor * node = ggml_rope_back(ctx, stand_in(64, 2, 5, 1), positions(5, 0, 5000), 32, mode, 0,
                2048, 1e4f, 0.5f, 0.5f, 1.0f, 32.0f, 1.0f, 0.0f, false);
            CHECK_NODE(reading(typed(node, type), 0, random_tensor(type, DENSE, 64, 2, 5, 1)), want_rope, 2e-6);
            end();
        }
    }
}

static void shared_work(void) {
    begin();
    struct ggml_tensor * node =
        ggml_rope(ctx, random_tensor(GGML_TYPE_F32, SWAPPED, 64, 8, 90, 1), positions(90, -5, 5), 64, 0, 0);
    CHECK(is_shared(node));
    CHECK_NODE(node, want_rope, 2e-6);
    end();
}

static void odd_rows(void) {
    begin();
    CHECK_NODE(ggml_rope(ctx, random_tensor(GGML_TYPE_F32, DENSE, 7, 3, 5, 1), positions(5, 0, 9), 6, 2, 0), want_rope,
        2e-6);
    end();
}

static void exact(void) {
    static const int dims[][2] = { { 32, 32 }, { 32, 20 }, { 2, 2 }, { 7, 6 } }; // row, n_dims
    for (int s = 0; s < 4; s++) {
        const int n = dims[s][0], n_dims = dims[s][1];
        for (int mode = 0; mode < 4; mode += 2) {
            for (int ext = 0; ext < 3; ext++) { // plain, scaled, with YaRN's ramp
                FOR_LAYOUTS(layout) {
                    FOR_FLOATS(type) {
                        begin();
                        struct ggml_tensor *a = random_tensor(type, layout, n, 3, 5, 2), *b = positions(5, 0, 5000);
                        struct ggml_tensor * node[2];
                        for (int i = 0; i < 2; i++) {
                            node[i] = typed(ggml_rope_custom(ctx, stand_in(n, 3, 5, 2), b, n_dims,
                                                mode | GGML_ROPE_EXACT, 0, 2048, 5000.0f, ext ? 0.25f : 1.0f,
                                                ext == 2 ? 0.7f : 0.0f, ext ? 1.1f : 1.0f, 32.0f, 1.0f),
                                type);
                        }
                        CHECK_NODE(reading(node[0], 0, a), want_rope, 2e-6);
                        CHECK_NODE(onto(reading(node[1], 0, a), 0), want_rope, 2e-6);
                        CHECK_NODE(reading(typed(ggml_rope_back(ctx, stand_in(n, 3, 5, 2), b, n_dims,
                                                     mode | GGML_ROPE_EXACT, 0, 2048, 1e4f, 0.5f, 0.5f, 1.0f, 32.0f,
                                                     1.0f, 0.0f, false),
                                               type),
                                       0, a),
                            want_rope, 2e-6);
                        end();
                    }
                }
            }
        }
    }
}

TEST_MAIN(TEST(exact), TEST(modes), TEST(stretched), TEST(xpos), TEST(back), TEST(shared_work), TEST(odd_rows))
