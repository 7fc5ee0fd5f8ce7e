// test_conv.cpp - CONV_2D, CONV_2D_DW and CONV_3D in every pair of: operator and channels, types, layout of the data,
// sizes, kernels, strides, paddings, dilations, images. Against sums in double.
//
// GGML_TEST_CONVOLUTIONS=5000 computes that many random combinations instead.
#include <cmath>

#include "device_graph.h"
#include "pairs.h"

enum layout { DENSE, GAPS, N_LAYOUTS };

struct channels { // of all groups
    ggml_op op;
    int ic, oc, groups;
};

static const channels all_channels[] = { { GGML_OP_CONV_2D, 1, 1, 1 }, { GGML_OP_CONV_2D, 3, 33, 1 },
    { GGML_OP_CONV_2D, 16, 5, 1 }, { GGML_OP_CONV_2D, 8, 70, 1 }, { GGML_OP_CONV_2D, 5, 130, 1 },
    { GGML_OP_CONV_2D, 6, 9, 3 }, { GGML_OP_CONV_2D, 4, 8, 4 }, { GGML_OP_CONV_2D, 2, 20, 2 },
    { GGML_OP_CONV_2D, 80, 12, 1 }, { GGML_OP_CONV_2D_DW, 7, 7, 7 }, { GGML_OP_CONV_2D_DW, 1, 1, 1 },
    { GGML_OP_CONV_3D, 3, 6, 1 }, { GGML_OP_CONV_3D, 4, 10, 2 }, { GGML_OP_CONV_3D, 6, 6, 6 } };
static const ggml_type kernel_types[] = { GGML_TYPE_F16, GGML_TYPE_F32 };
static const ggml_type data_types[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 };
static const int sizes[][3] = { { 1, 1, 1 }, { 11, 9, 4 }, { 40, 7, 3 }, { 13, 1, 5 }, { 5, 33, 2 } };
static const int kernels[][3] = { { 1, 1, 1 }, { 3, 3, 3 }, { 5, 1, 2 }, { 2, 4, 1 }, { 7, 7, 1 } };
static const int strides[][3] = { { 1, 1, 1 }, { 2, 2, 2 }, { 3, 1, 2 } };
static const int paddings[][3] = { { 0, 0, 0 }, { 1, 1, 1 }, { 3, 3, 1 }, { 20, 2, 0 } };
static const int dilations[][3] = { { 1, 1, 1 }, { 2, 3, 1 } };
static const int images[] = { 1, 2, 5 };

template <class T, size_t N> static int count_of(const T (&)[N]) { return (int) N; }

static const std::vector<int> counts = { count_of(all_channels), count_of(kernel_types), count_of(data_types),
    N_LAYOUTS, count_of(sizes), count_of(kernels), count_of(strides), count_of(paddings), count_of(dilations),
    count_of(images) };

struct conv_case {
    combination value;
    const channels & c() const { return all_channels[value[0]]; }
    ggml_type kernel_type() const { return kernel_types[value[1]]; }
    ggml_type data_type() const { return data_types[value[2]]; }
    int axes() const { return c().op == GGML_OP_CONV_3D ? 3 : 2; }
    int axis(const int (&of)[3], int d, int none) const { return d < axes() ? of[d] : none; }
    int size(int d) const { return axis(sizes[value[4]], d, 1); }
    int pad(int d) const { return axis(paddings[value[7]], d, 0); }
    int stride(int d) const { return axis(strides[value[6]], d, 1); }
    int dilation(int d) const { return axis(dilations[value[8]], d, 1); }
    // Not larger than the padded data.
    int kernel(int d) const {
        return std::min(axis(kernels[value[5]], d, 1), (size(d) + 2 * pad(d) - 1) / dilation(d) + 1);
    }
    int out(int d) const { return (size(d) + 2 * pad(d) - 1 - (kernel(d) - 1) * dilation(d)) / stride(d) + 1; }
    int n_images() const { return images[value[9]]; }
};

// Random values, and the same as doubles.
static std::vector<double> fill(ggml_tensor * t) {
    std::vector<float> v((size_t) ggml_nelements(t));
    for (float & x : v) {
        x = test_random_float(-1, 1);
    }
    if (t->type == GGML_TYPE_F16) {
        ggml_fp32_to_fp16_row(v.data(), (ggml_fp16_t *) t->data, (int) v.size());
        ggml_fp16_to_fp32_row((const ggml_fp16_t *) t->data, v.data(), (int) v.size());
    } else if (t->type == GGML_TYPE_BF16) {
        ggml_fp32_to_bf16_row(v.data(), (ggml_bf16_t *) t->data, (int64_t) v.size());
        ggml_bf16_to_fp32_row((const ggml_bf16_t *) t->data, v.data(), (int64_t) v.size());
    } else {
        memcpy(t->data, v.data(), v.size() * sizeof(float));
    }
    return std::vector<double>(v.begin(), v.end());
}

struct operands {
    ggml_tensor *w, *x, *node;
    std::vector<double> w_values, x_values; // of the tensors that w and x show
    int64_t wide; // places of a row of x's memory
};

static operands make(ggml_context * ctx, const conv_case & k) {
    operands o;
    const channels & c = k.c();
    const int64_t per = c.ic / c.groups, batch = k.n_images();
    o.wide = k.size(0) + (k.value[3] == GAPS ? 3 : 0);
    ggml_tensor * root;
    if (k.axes() == 3) {
        o.w = ggml_new_tensor_4d(ctx, k.kernel_type(), k.kernel(0), k.kernel(1), k.kernel(2), per * c.oc);
        root = ggml_new_tensor_4d(ctx, k.data_type(), o.wide, k.size(1), k.size(2), c.ic * batch);
    } else {
        o.w = ggml_new_tensor_4d(ctx, k.kernel_type(), k.kernel(0), k.kernel(1), per, c.oc);
        root = ggml_new_tensor_4d(ctx, k.data_type(), o.wide, k.size(1), c.ic, batch);
    }
    o.w_values = fill(o.w);
    o.x_values = fill(root);
    o.x = ggml_view_4d(ctx, root, k.size(0), root->ne[1], root->ne[2], root->ne[3], root->nb[1], root->nb[2],
        root->nb[3], 0);
    const int s0 = k.stride(0), s1 = k.stride(1), p0 = k.pad(0), p1 = k.pad(1), d0 = k.dilation(0), d1 = k.dilation(1);
    o.node = c.op == GGML_OP_CONV_3D ? ggml_conv_3d_grouped(ctx, o.w, o.x, s0, s1, k.stride(2), p0, p1, k.pad(2), d0,
                                           d1, k.dilation(2), c.ic, (int) batch, c.oc, c.groups)
             : c.op == GGML_OP_CONV_2D_DW ? ggml_conv_2d_dw_direct(ctx, o.w, o.x, s0, s1, p0, p1, d0, d1)
                                          : ggml_conv_2d_grouped(ctx, o.w, o.x, s0, s1, p0, p1, d0, d1, c.groups);
    return o;
}

// The result at a place, and the sum of magnitudes.
static double sum_at(const conv_case & k, const operands & o, int image, int channel, const int (&at)[3],
    double & magnitude) {
    const channels & c = k.c();
    const int per = c.ic / c.groups, group = channel / (c.oc / c.groups);
    double sum = 0;
    size_t term = (size_t) (channel * per * k.kernel(0) * k.kernel(1) * k.kernel(2));
    magnitude = 0;
    for (int i = 0; i < per; i++) {
        for (int z = 0; z < k.kernel(2); z++) {
            for (int y = 0; y < k.kernel(1); y++) {
                for (int x = 0; x < k.kernel(0); x++, term++) {
                    const int in[3] = { at[0] * k.stride(0) + x * k.dilation(0) - k.pad(0),
                        at[1] * k.stride(1) + y * k.dilation(1) - k.pad(1),
                        at[2] * k.stride(2) + z * k.dilation(2) - k.pad(2) };
                    bool inside = true;
                    for (int d = 0; d < 3; d++) {
                        inside = inside && in[d] >= 0 && in[d] < k.size(d);
                    }
                    if (inside) {
                        const int64_t row =
                            ((int64_t) (image * c.ic + group * per + i) * k.size(2) + in[2]) * k.size(1);
                        const double v = o.w_values[term] * o.x_values[(size_t) ((row + in[1]) * o.wide + in[0])];
                        sum += v;
                        magnitude += fabs(v);
                    }
                }
            }
        }
    }
    return sum;
}

static void check(const conv_case & k) {
    device_graph g;
    const operands o = make(g.ctx, k);
    REQUIRE(o.node != NULL);
    REQUIRE(g.compute(o.node));
    // Tensor cores round the data to F16. All sums are in float.
    const bool depthwise = k.c().ic == k.c().groups && k.c().oc / k.c().groups <= 4;
    const bool halves = !depthwise && k.kernel_type() == GGML_TYPE_F16 && k.data_type() != GGML_TYPE_F16;
    size_t i = 0;
    int wrong = 0;
    double worst = 0, magnitude;
    for (int image = 0; image < k.n_images(); image++) {
        for (int channel = 0; channel < k.c().oc; channel++) {
            int at[3];
            for (at[2] = 0; at[2] < k.out(2); at[2]++) {
                for (at[1] = 0; at[1] < k.out(1); at[1]++) {
                    for (at[0] = 0; at[0] < k.out(0); at[0]++, i++) {
                        const double error = fabs(g.result[i] - sum_at(k, o, image, channel, at, magnitude));
                        wrong += !(error <= magnitude * (halves ? 1.0 / 2048 : 0) + magnitude * 2e-6 + 1e-7);
                        worst = fmax(worst, error);
                    }
                }
            }
        }
    }
    CHECK_INT(i, g.result.size());
    CHECK_MSG(wrong == 0,
        "%s, channels %d %d groups %d, kernel %s %d x %d x %d, data %s %d x %d x %d, %d images%s, "
        "stride %d %d %d, padding %d %d %d, dilation %d %d %d: %d of %zu wrong, largest error %g",
        ggml_op_name(k.c().op), k.c().ic, k.c().oc, k.c().groups, ggml_type_name(k.kernel_type()), k.kernel(0),
        k.kernel(1), k.kernel(2), ggml_type_name(k.data_type()), k.size(0), k.size(1), k.size(2), k.n_images(),
        k.value[3] == GAPS ? " with gaps" : "", k.stride(0), k.stride(1), k.stride(2), k.pad(0), k.pad(1), k.pad(2),
        k.dilation(0), k.dilation(1), k.dilation(2), wrong, i, worst);
}

static void every_pair_of_properties_gives_the_sums(void) {
    CUDA_OR_SKIP();
    const char * wanted = getenv("GGML_TEST_CONVOLUTIONS");
    if (wanted == NULL) {
        const std::vector<combination> all = covering_array(counts);
        printf("%d combinations\n", (int) all.size());
        for (const combination & x : all) {
            check({ x });
        }
        return;
    }
    for (int i = atoi(wanted); i > 0; i--) {
        check({ random_combination(counts) });
    }
}

// Many terms and few positions: the terms are cut into parts.
static void long_sums_are_cut_into_parts(void) {
    CUDA_OR_SKIP();
#ifdef GB_CUDA_EMULATED
    const uint64_t before = gb_emu_launches_of("gb_gemm_add_parts");
#endif
    for (int type = 0; type < 2; type++) { // 80 input channels, a kernel of 3 x 3
        check({ { 8, type, 0, DENSE, 1, 1, 0, 1, 0, 0 } });
    }
#ifdef GB_CUDA_EMULATED
    CHECK_INT(gb_emu_launches_of("gb_gemm_add_parts") - before, 2);
#endif
}

static void each_convolution_has_its_algorithm(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0);
    ggml_context * c = ggml_init({ 1 << 16, NULL, true });
    ggml_tensor * x = ggml_new_tensor_4d(c, GGML_TYPE_F32, 9, 9, 8, 1);
    ggml_tensor * nodes[] = { ggml_conv_2d_direct(c, ggml_new_tensor_4d(c, GGML_TYPE_F16, 3, 3, 8, 16), x, 1, 1, 1, 1,
                                  1, 1),
        ggml_conv_2d_direct(c, ggml_new_tensor_4d(c, GGML_TYPE_F32, 3, 3, 8, 16), x, 1, 1, 1, 1, 1, 1),
        ggml_conv_2d_dw_direct(c, ggml_new_tensor_4d(c, GGML_TYPE_F16, 3, 3, 1, 8), x, 1, 1, 1, 1, 1, 1) };
    const char * names[] = { "conv_tensor_cores", "conv_tiles", "conv_depthwise" };
    for (int i = 0; i < 3; i++) {
        const char *name, *why = "", *last = NULL;
        for (int j = 0; (name = cuda->iface.algorithm(cuda, nodes[i], j, &why)) != NULL; j++) {
            CHECK((why == NULL) == (strcmp(name, names[i]) == 0));
            last = name;
        }
        CHECK_STR(last, names[i]);
    }
    ggml_free(c);
    ggml_backend_free(cuda);
}

// Kernels count the positions of all images in 31 bits.
static void too_many_positions_are_refused(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0);
    ggml_context * c = ggml_init({ 1 << 16, NULL, true });
    ggml_tensor * w = ggml_new_tensor_4d(c, GGML_TYPE_F16, 1, 1, 1, 1);
    for (int n = 1; n <= 4; n += 3) {
        ggml_tensor * x = ggml_new_tensor_4d(c, GGML_TYPE_F16, 1 << 15, 1 << 15, 1, n);
        ggml_tensor * nodes[] = { ggml_conv_2d_direct(c, w, x, 1, 1, 0, 0, 1, 1),
            ggml_conv_2d_dw_direct(c, w, x, 1, 1, 0, 0, 1, 1),
            ggml_conv_3d_direct(c, w, x, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, n, 1) };
        for (ggml_tensor * node : nodes) {
            REQUIRE(node != NULL);
            CHECK_MSG(ggml_backend_supports_op(cuda, node) == (n == 1), "%s, %d images", ggml_op_name(node->op), n);
        }
    }
    ggml_free(c);
    ggml_backend_free(cuda);
}

TEST_MAIN(TEST(every_pair_of_properties_gives_the_sums), TEST(long_sums_are_cut_into_parts),
    TEST(each_convolution_has_its_algorithm), TEST(too_many_positions_are_refused))
