// POOL_1D and POOL_2D against loops over each window.
#include "test_cpu_ops.h"

static double want_pool(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor * a = node->src[0];
    const int32_t * p = node->op_params;
    const bool one = node->op == GGML_OP_POOL_1D, max = p[0] == GGML_OP_POOL_MAX;
    const int64_t kx = p[1], ky = one ? 1 : p[2], sx = one ? p[2] : p[3], sy = one ? 1 : p[4], px = one ? p[3] : p[5],
                  py = one ? 0 : p[6];
    double v = max ? -INFINITY : 0;
    for (int64_t y = i[1] * sy - py; y < i[1] * sy - py + ky; y++) {
        for (int64_t x = i[0] * sx - px; x < i[0] * sx - px + kx; x++) {
            if (x >= 0 && x < a->ne[0] && y >= 0 && y < a->ne[1]) {
                const double e = at(a, x, y, i[2], i[3]);
                v = max ? (isnan(v) || isnan(e) ? NAN : fmax(v, e)) : v + e / (double) (kx * ky);
            }
        }
    }
    return v;
}

static void pool_1d(void) {
    for (int op = 0; op < GGML_OP_POOL_COUNT; op++) {
        for (int k = 1; k <= 5; k += 2) {
            FOR_LAYOUTS(layout) {
                FOR_FLOATS(type) {
                    begin();
                    struct ggml_tensor * node =
                        ggml_pool_1d(ctx, stand_in(23, 4, 1, 1), (enum ggml_op_pool) op, k, k, 0);
                    CHECK_NODE(reading(node, 0, random_tensor(type, layout, 23, 4, 1, 1)), want_pool, 1e-6);
                    end();
                }
            }
        }
    }
}

static void pool_2d(void) {
    static const int params[][6] = { { 2, 2, 2, 2, 0, 0 }, { 3, 2, 1, 2, 1, 1 }, { 5, 1, 3, 1, 2, 0 },
        { 1, 4, 2, 3, 0, 2 } };
    for (int op = 0; op < GGML_OP_POOL_COUNT; op++) {
        for (int s = 0; s < 4; s++) {
            const int * p = params[s];
            FOR_LAYOUTS(layout) {
                FOR_FLOATS(type) {
                    begin();
                    struct ggml_tensor * node = ggml_pool_2d(ctx, stand_in(13, 9, 3, 1), (enum ggml_op_pool) op, p[0],
                        p[1], p[2], p[3], (float) p[4], (float) p[5]);
                    CHECK_NODE(reading(node, 0, random_tensor(type, layout, 13, 9, 3, 1)), want_pool, 1e-6);
                    end();
                }
            }
        }
    }
    begin();
    struct ggml_tensor * node =
        ggml_pool_2d(ctx, random_tensor(GGML_TYPE_F32, DENSE, 101, 103, 4, 1), GGML_OP_POOL_AVG, 2, 3, 2, 2, 0, 1);
    CHECK(is_shared(node));
    CHECK_NODE(node, want_pool, 1e-6);
    end();
}

// a window with NaN gives NaN; the maximum of -inf or of padding alone is -inf
static void strange_values(void) {
    static const float values[] = { NAN, INFINITY, -INFINITY, -3.4e38f, -0.0f, 2 };
    for (int op = 0; op < GGML_OP_POOL_COUNT; op++) {
        for (int few = 0; few < 6; few++) {
            begin();
            struct ggml_tensor * a = tensor(GGML_TYPE_F32, DENSE, 9, 7, 2, 1);
            FOR_ELEMENTS(a, i) {
                write_value(a->type, address(a, i),
                    few == 5                 ? -INFINITY
                    : test_random() % 8 == 0 ? values[few]
                                             : values[test_random() % 4 + 2]);
            }
            CHECK_NODE(ggml_pool_2d(ctx, a, (enum ggml_op_pool) op, 2, 3, 1, 2, 3, 4), want_pool, 1e-6);
            CHECK_NODE(ggml_pool_1d(ctx, ggml_view_2d(ctx, a, 9, 7, a->nb[1], 0), (enum ggml_op_pool) op, 3, 3, 0),
                want_pool, 1e-6);
            end();
        }
    }
}

static int pick(int low, int high) { return (int) test_random_int(low, high); }

// Windows of every kind: narrow, wide, tall, with large strides, mostly padding, as large as the
// input; several bands.
static void random_windows(void) {
    for (int pass = 0; pass < 300; pass++) {
        begin();
        const enum ggml_op_pool op = pass % 2 == 0 ? GGML_OP_POOL_MAX : GGML_OP_POOL_AVG;
        const enum ggml_type type = pass % 3 == 0 ? float_types[pick(0, 2)] : GGML_TYPE_F32;
        const int layout = pass % 4 == 0 ? pick(0, N_LAYOUTS - 1) : DENSE;
        int w = pick(1, 60), h = pick(1, 40), k[2] = { pick(1, 7), pick(1, 7) }, s[2] = { pick(1, 5), pick(1, 5) };
        int p[2] = { pick(0, 3), pick(0, 3) };
        const int kind = pick(0, 7);
        if (kind == 0) { // the whole input
            k[0] = w;
            k[1] = h;
            p[0] = p[1] = 0;
        } else if (kind == 1) { // wide and tall
            k[0] = pick(30, 36);
            k[1] = pick(15, 34);
            p[0] = p[1] = 20;
        } else if (kind == 2) { // large strides
            s[0] = pick(1, 3000);
            p[0] = 2000;
        } else if (kind == 3) { // several bands
            w = pick(1900, 5000);
            h = pick(1, 5);
            p[1] = 3;
        }
        if (w + 2 * p[0] < k[0] || h + 2 * p[1] < k[1]) {
            end();
            continue;
        }
        struct ggml_tensor * node =
            ggml_pool_2d(ctx, stand_in(w, h, 2, 1), op, k[0], k[1], s[0], s[1], (float) p[0], (float) p[1]);
        CHECK_NODE(reading(node, 0, random_tensor(type, layout, w, h, 2, 1)), want_pool, 2e-6);
        end();
    }
}

TEST_MAIN(TEST(pool_1d), TEST(pool_2d), TEST(strange_values), TEST(random_windows))
