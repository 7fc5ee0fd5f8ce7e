// CONV_2D, CONV_2D_DW, CONV_3D: each algorithm, on random shapes, against sums in double precision.
#include "cpu/ops/conv/conv.h"
#include "test_cpu_ops.h"

static double want_planes(const struct ggml_tensor * node, const int64_t i[4], int axes, int64_t channel, int64_t image,
    int64_t in, int64_t out, int64_t groups) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const int32_t * p = node->op_params; // strides, paddings, dilations
    const int64_t per = in / groups, group = channel / (out / groups), depth = axes == 3 ? a->ne[2] : 1;
    double s = 0;
    for (int64_t c = 0; c < per; c++) {
        for (int64_t k = 0; k < depth * a->ne[1] * a->ne[0]; k++) {
            const int64_t kx = k % a->ne[0], ky = k / a->ne[0] % a->ne[1], kz = k / a->ne[0] / a->ne[1];
            const int64_t x = i[0] * p[0] + kx * p[2 * axes] - p[axes];
            const int64_t y = i[1] * p[1] + ky * p[2 * axes + 1] - p[axes + 1];
            const int64_t z = axes == 3 ? i[2] * p[2] + kz * p[8] - p[5] : 0;
            if (x < 0 || x >= b->ne[0] || y < 0 || y >= b->ne[1] || z < 0 || (axes == 3 && z >= b->ne[2])) {
                continue;
            }
            s += axes == 3 ? at(a, kx, ky, kz, c + per * channel) * at(b, x, y, z, group * per + c + in * image)
                           : at(a, kx, ky, c, channel) * at(b, x, y, group * per + c, image);
        }
    }
    return s;
}

static double want_2d(const struct ggml_tensor * node, const int64_t i[4]) {
    const int64_t groups = node->op == GGML_OP_CONV_2D_DW ? node->src[1]->ne[2] : node->op_params[6];
    return want_planes(node, i, 2, i[2], i[3], node->src[1]->ne[2], node->ne[2], groups);
}

static double want_3d(const struct ggml_tensor * node, const int64_t i[4]) {
    const int32_t * p = node->op_params;
    return want_planes(node, i, 3, i[3] % p[11], i[3] / p[11], p[9], p[11], p[12]);
}

static int pick(int low, int high) { return (int) test_random_int(low, high); }

struct shape {
    int w, h, n, ic, oc, groups, kw, kh, s[2], p[2], d[2];
};

// Cuts the kernel so that it fits into the padded input.
static struct ggml_tensor * node_of(struct shape v, enum ggml_type kernel, enum ggml_type data, int layout) {
    v.kw = GB_MAX(GB_MIN(v.kw, (v.w + 2 * v.p[0] - 1) / v.d[0] + 1), 1);
    v.kh = GB_MAX(GB_MIN(v.kh, (v.h + 2 * v.p[1] - 1) / v.d[1] + 1), 1);
    struct ggml_tensor * a = random_tensor(kernel, DENSE, v.kw, v.kh, v.ic, v.oc * v.groups);
    struct ggml_tensor * b = random_tensor(data, layout, v.w, v.h, v.ic * v.groups, v.n);
    return v.ic == 1 && v.oc == 1 && pick(0, 1)
               ? ggml_conv_2d_dw_direct(ctx, a, b, v.s[0], v.s[1], v.p[0], v.p[1], v.d[0], v.d[1])
               : ggml_conv_2d_grouped(ctx, a, b, v.s[0], v.s[1], v.p[0], v.p[1], v.d[0], v.d[1], v.groups);
}

static struct shape random_shape(int pass) {
    struct shape v = { pick(1, 40), pick(1, 20), pick(1, 3), pick(1, 5), pick(1, 14), pick(1, 3), pick(1, 5),
        pick(1, 5), { pick(1, 3), pick(1, 3) }, { pick(0, 3), pick(0, 3) }, { pick(1, 3), pick(1, 3) } };
    if (pass % 3 == 0) { // depthwise, square
        v.groups = pick(1, 9);
        v.ic = 1;
        v.oc = pick(1, 2);
        v.kw = v.kh = pick(1, 3) * 2 + 1;
        v.d[0] = v.d[1] = pick(1, 4) == 1 ? 2 : 1;
        v.s[0] = v.s[1] = pick(1, 2);
    } else if (pass % 7 == 1) { // 1 x 1
        v = (struct shape){ v.w, v.h, v.n, pick(1, 40), pick(1, 40), v.groups, 1, 1, { 1, 1 }, { 0, 0 }, { 1, 1 } };
    } else if (pass % 11 == 2) { // mostly padding
        v.p[0] = pick(0, 60);
        v.p[1] = pick(0, 20);
        v.d[0] = pick(1, 40);
        v.s[1] = pick(1, 20);
    }
    return v;
}

static void random_shapes(void) {
    for (int pass = 0; pass < 260; pass++) {
        begin();
        const struct shape v = random_shape(pass);
        const enum ggml_type data = float_types[pass % 5 < 3 ? 0 : pass % 5 - 2];
        struct ggml_tensor * node =
            node_of(v, float_types[pass % 2], data, pass % 4 == 0 ? (int) test_random_int(0, N_LAYOUTS - 1) : DENSE);
        gb_conv_prefer(pick(-1, 5)); // -1: the chosen algorithm
        CHECK_NODE(node, want_2d, 1e-5);
        gb_conv_prefer(-1);
        end();
    }
}

// Larger shapes: several bands, several tiles, and each algorithm for shapes that select it.
static void chosen(void) {
    static const struct {
        struct shape v;
        const char * algorithm;
    } cases[] = {
        { { 56, 56, 1, 24, 40, 1, 3, 3, { 1, 1 }, { 1, 1 }, { 1, 1 } }, "tiles" },
        { { 7, 7, 2, 70, 33, 1, 3, 3, { 1, 1 }, { 1, 1 }, { 1, 1 } }, "tiles" },
        { { 40, 33, 1, 3, 24, 1, 7, 7, { 2, 2 }, { 3, 3 }, { 1, 1 } }, "tiles" },
        { { 3000, 1, 1, 40, 16, 1, 3, 1, { 2, 1 }, { 1, 0 }, { 1, 1 } }, "tiles" },
        { { 56, 30, 1, 24, 100, 1, 3, 3, { 2, 2 }, { 1, 1 }, { 1, 1 } }, "columns" },
        { { 14, 14, 2, 50, 130, 1, 3, 3, { 1, 1 }, { 1, 1 }, { 1, 1 } }, "columns" },
        { { 13, 40, 1, 30, 99, 2, 1, 3, { 2, 1 }, { 0, 2 }, { 1, 2 } }, "columns" },
        { { 57, 31, 1, 50, 30, 1, 1, 1, { 1, 1 }, { 0, 0 }, { 1, 1 } }, "pointwise" },
        { { 57, 31, 1, 20, 30, 1, 1, 1, { 2, 2 }, { 0, 0 }, { 1, 1 } }, "tiles" },
        { { 112, 90, 1, 1, 1, 5, 3, 3, { 1, 1 }, { 1, 1 }, { 1, 1 } }, "rows" },
        { { 112, 90, 1, 1, 1, 5, 5, 5, { 2, 2 }, { 2, 2 }, { 1, 1 } }, "planes" },
        { { 251, 180, 1, 1, 1, 3, 3, 3, { 2, 2 }, { 1, 1 }, { 1, 1 } }, "planes" },
        { { 14, 15, 2, 1, 1, 31, 5, 5, { 2, 2 }, { 2, 2 }, { 1, 1 } }, "planes" },
        { { 40, 33, 1, 1, 1, 6, 3, 3, { 2, 1 }, { 1, 1 }, { 1, 1 } }, "rows" },
        { { 7, 7, 2, 1, 1, 40, 5, 5, { 1, 1 }, { 2, 2 }, { 1, 1 } }, "planes" },
        { { 7, 7, 2, 1, 1, 40, 5, 5, { 1, 1 }, { 2, 2 }, { 2, 2 } }, "rows" },
        { { 30, 700, 1, 1, 2, 3, 7, 7, { 1, 1 }, { 3, 3 }, { 1, 1 } }, "planes" },
        { { 13, 211, 2, 19, 5, 2, 1, 1, { 1, 1 }, { 0, 0 }, { 1, 1 } }, "pointwise" },
        { { 5, 11, 1, 1300, 7, 1, 1, 1, { 1, 1 }, { 0, 0 }, { 1, 1 } }, "pointwise" },
        { { 7, 7, 1, 40, 50, 1, 1, 1, { 1, 1 }, { 0, 0 }, { 1, 1 } }, "pointwise" },
        { { 999, 1, 1, 1, 1, 12, 31, 1, { 1, 1 }, { 15, 0 }, { 1, 1 } }, "rows" },
        { { 5, 5, 1, 2, 3, 1, 3, 3, { 1, 1 }, { 1 << 14, 1 << 14 }, { 1 << 14, 1 << 14 } }, "gathered" },
        { { 5, 5, 1, 2, 3, 1, 3, 3, { 1 << 28, 1 << 28 }, { 1 << 28, 1 << 28 }, { 1 << 28, 1 << 28 } }, "tiles" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int kernel = 0; kernel < 2; kernel++) {
            begin();
            struct ggml_tensor * node = node_of(cases[i].v, float_types[kernel], GGML_TYPE_F32, DENSE);
            const struct gb_conv_job j = gb_conv_job_of(node);
            const char *why = NULL, *name = NULL;
            int c = 0;
            do {
                name = gb_conv_candidate(&j, c++, &why);
            } while (name != NULL && why != NULL);
            CHECK(name != NULL && strcmp(name, cases[i].algorithm) == 0);
            CHECK_NODE(node, want_2d, 2e-6 * (double) gb_conv_terms(&j)); // values are up to 4
            end();
        }
    }
}

static void three_axes(void) {
    for (int pass = 0; pass < 60; pass++) {
        begin();
        const int groups = pick(1, 2), ic = pick(1, 3), oc = pick(1, 5), n = pick(1, 2);
        const int k[3] = { pick(1, 3), pick(1, 3), pick(1, 3) };
        struct ggml_tensor * a = random_tensor(float_types[pass % 2], DENSE, k[0], k[1], k[2], ic * oc * groups);
        struct ggml_tensor * b = random_tensor(GGML_TYPE_F32, pass % 3 == 0 ? PADDED : DENSE, pick(5, 12), pick(5, 9),
            pick(5, 7), ic * groups * n);
        struct ggml_tensor * node = ggml_conv_3d_grouped(ctx, a, b, pick(1, 2), pick(1, 2), pick(1, 2), pick(0, 2),
            pick(0, 2), pick(0, 2), pick(1, 2), pick(1, 2), pick(1, 2), ic * groups, n, oc * groups, groups);
        gb_conv_prefer(pick(-1, 5));
        CHECK_NODE(node, want_3d, 1e-5);
        gb_conv_prefer(-1);
        end();
    }
}

// Sound is an image of height 1, for any strides.
static void one_axis(void) {
    FOR_LAYOUTS(layout) {
        begin();
        struct ggml_tensor * b = random_tensor(GGML_TYPE_F32, layout, 33, 6, 2, 1);
        struct ggml_tensor * node =
            ggml_conv_1d_grouped(ctx, random_tensor(GGML_TYPE_F32, DENSE, 3, 3, 4, 1), b, 2, 1, 2, 2);
        CHECK(node != NULL && node->ne[0] == 16 && node->ne[1] == 4 && node->ne[2] == 2 && node->ne[3] == 1);
        CHECK(node->src[0]->op == GGML_OP_CONV_2D);
        CHECK_NODE(node->src[0], want_2d, 1e-5);
        end();
    }
}

TEST_MAIN(TEST(random_shapes), TEST(chosen), TEST(three_axes), TEST(one_axis))
