// test_attention.cpp - FLASH_ATTN and FLASH_FF on a CUDA device, or in the emulation, against the formulas in double
// precision.
#include "device_graph.h"

struct attention {
    ggml_type type;
    int64_t d, n, m, heads, k_heads, v_heads, batch;
    bool masked;
    bool views; // k and v are parts of a longer cache, q is permuted
};

static void fill(ggml_tensor * t) {
    const int64_t n = ggml_nelements(t);
    for (int64_t i = 0; i < n; i++) {
        const float x = test_random_float(-1.5f, 1.5f);
        switch (t->type) {
            case GGML_TYPE_F32: ((float *) t->data)[i] = x; break;
            case GGML_TYPE_F16: ((ggml_fp16_t *) t->data)[i] = ggml_fp32_to_fp16(x); break;
            default: ((ggml_bf16_t *) t->data)[i] = ggml_fp32_to_bf16(x); break;
        }
    }
}

static double element(const ggml_tensor * t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const char * p = (const char *) t->data + i0 * (int64_t) t->nb[0] + i1 * (int64_t) t->nb[1] +
                     i2 * (int64_t) t->nb[2] + i3 * (int64_t) t->nb[3];
    switch (t->type) {
        case GGML_TYPE_F32: return *(const float *) p;
        case GGML_TYPE_F16: return ggml_fp16_to_fp32(*(const ggml_fp16_t *) p);
        default: return ggml_bf16_to_fp32(*(const ggml_bf16_t *) p);
    }
}

// Probabilities may be rounded to the type of v. The bound is `relative` times the sum of the values' magnitudes.
static int wrong_of_row(const attention & s, const ggml_tensor * q, const ggml_tensor * k, const ggml_tensor * v,
    int64_t i1, int64_t i2, int64_t i3, const float * got, double * worst) {
    const double relative = s.type == GGML_TYPE_F32 ? 2e-6 : s.type == GGML_TYPE_F16 ? 1.1 / 2048 : 1.1 / 256;
    const int64_t seen = s.masked ? s.m - s.n + i1 + 1 : s.m;
    std::vector<double> p((size_t) seen);
    double largest = -INFINITY, sum = 0;
    for (int64_t c = 0; c < seen; c++) {
        double score = 0;
        for (int64_t d = 0; d < s.d; d++) {
            score += element(q, d, i1, i2, i3) * element(k, d, c, i2 % s.k_heads, i3);
        }
        p[(size_t) c] = score / sqrt((double) s.d);
        largest = fmax(largest, p[(size_t) c]);
    }
    for (double & x : p) {
        x = exp(x - largest);
        sum += x;
    }
    int wrong = 0;
    for (int64_t d = 0; d < s.d; d++) {
        double expected = 0, magnitude = 0;
        for (int64_t c = 0; c < seen; c++) {
            const double x = p[(size_t) c] / sum * element(v, c, d, i2 % s.v_heads, i3);
            expected += x;
            magnitude += fabs(x);
        }
        const double error = fabs(got[d] - expected);
        *worst = fmax(*worst, error / magnitude);
        wrong += !(error <= magnitude * (relative + 4e-6));
    }
    return wrong;
}

static void check(const attention & s) {
    device_graph g;
    const int64_t extra = s.views ? 16 : 0;
    ggml_tensor * q_root = s.views ? ggml_new_tensor_4d(g.ctx, s.type, s.d, s.heads, s.n, s.batch)
                                   : ggml_new_tensor_4d(g.ctx, s.type, s.d, s.n, s.heads, s.batch);
    ggml_tensor * k_root = ggml_new_tensor_4d(g.ctx, s.type, s.d, s.m + extra, s.k_heads, s.batch);
    ggml_tensor * v_root = ggml_new_tensor_4d(g.ctx, s.type, s.m + extra, s.d, s.v_heads, s.batch);
    ggml_tensor * q = s.views ? ggml_permute(g.ctx, q_root, 0, 2, 1, 3) : q_root;
    ggml_tensor * k =
        ggml_view_4d(g.ctx, k_root, s.d, s.m, s.k_heads, s.batch, k_root->nb[1], k_root->nb[2], k_root->nb[3], 0);
    ggml_tensor * v =
        ggml_view_4d(g.ctx, v_root, s.m, s.d, s.v_heads, s.batch, v_root->nb[1], v_root->nb[2], v_root->nb[3], 0);
    ggml_tensor * dst = ggml_flash_attn(g.ctx, q, k, v, s.masked);
    REQUIRE(dst != NULL);
    fill(q_root);
    fill(k_root);
    fill(v_root);
    REQUIRE(g.compute(dst));
    int64_t wrong = 0, row = 0;
    double worst = 0;
    for (int64_t i3 = 0; i3 < s.batch; i3++) {
        for (int64_t i2 = 0; i2 < s.heads; i2++) {
            for (int64_t i1 = 0; i1 < s.n; i1++, row++) {
                wrong += wrong_of_row(s, q, k, v, i1, i2, i3, g.result.data() + row * s.d, &worst);
            }
        }
    }
    CHECK_MSG(wrong == 0, "%s d %d n %d m %d heads %d/%d/%d batch %d%s: %d of %d wrong, by %g", ggml_type_name(s.type),
        (int) s.d, (int) s.n, (int) s.m, (int) s.heads, (int) s.k_heads, (int) s.v_heads, (int) s.batch,
        s.masked ? " masked" : "", (int) wrong, (int) (row * s.d), worst);
}

static void halves(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_F16, GGML_TYPE_BF16 }) {
        for (int masked = 0; masked < 2; masked++) {
            check({ type, 64, 1, 8, 1, 1, 1, 1, masked != 0, false });
            check({ type, 64, 70, 136, 2, 2, 2, 1, masked != 0, false });
            check({ type, 40, 17, 72, 3, 1, 1, 2, masked != 0, true });
            check({ type, 128, 5, 64, 4, 2, 2, 1, masked != 0, true });
            check({ type, 128, 70, 200, 2, 1, 1, 1, masked != 0, false });
            check({ type, 256, 3, 40, 2, 1, 1, 1, masked != 0, false });
        }
    }
}

static void heads_that_share_keys(void) {
    CUDA_OR_SKIP();
    check({ GGML_TYPE_F16, 32, 1, 64, 12, 3, 3, 1, true, true });
    check({ GGML_TYPE_F16, 32, 20, 32, 8, 2, 2, 2, true, false });
    check({ GGML_TYPE_F16, 32, 9, 32, 6, 3, 2, 1, false, false }); // keys and values have other heads
}

static void keys_in_parts(void) {
    CUDA_OR_SKIP();
    check({ GGML_TYPE_F16, 64, 1, 1032, 4, 1, 1, 1, true, false });
    check({ GGML_TYPE_F16, 64, 3, 1024, 2, 2, 2, 1, false, true });
    check({ GGML_TYPE_BF16, 128, 600, 600, 1, 1, 1, 1, true, false }); // parts that some rows do not see
}

static void floats_and_odd_shapes(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16 }) {
        check({ type, 20, 7, 33, 2, 1, 1, 1, true, true });
        check({ type, 3, 5, 5, 1, 1, 1, 2, false, false });
        check({ type, 64, 1, 100, 4, 2, 1, 1, false, false });
        check({ type, 300, 2, 9, 1, 1, 1, 1, true, false });
    }
}

static void tiles_of_floats(void) {
    CUDA_OR_SKIP();
    for (int masked = 0; masked < 2; masked++) {
        check({ GGML_TYPE_F32, 64, 70, 136, 2, 1, 1, 1, masked != 0, false });
        check({ GGML_TYPE_F32, 33, 65, 90, 3, 1, 3, 2, masked != 0, true });
        check({ GGML_TYPE_F32, 128, 40, 50, 1, 1, 1, 1, masked != 0, true });
        check({ GGML_TYPE_F32, 100, 33, 33, 2, 2, 1, 1, masked != 0, false });
        check({ GGML_TYPE_F32, 256, 9, 40, 1, 1, 1, 1, masked != 0, false });  // long heads: by rows
        check({ GGML_TYPE_BF16, 17, 20, 31, 1, 1, 1, 1, masked != 0, false }); // rows at odd addresses
    }
#ifdef GB_CUDA_EMULATED
    CHECK(gb_emu_launches_of("gb_attention_floats") >= 10);
#endif
}

// The hidden rows are rounded to halves if the product rounds.
static void check_feed_forward(ggml_type type, int64_t d, int64_t n, int64_t hidden, int64_t slices) {
    device_graph g;
    ggml_tensor * a = ggml_new_tensor_3d(g.ctx, type, d, n, slices);
    ggml_tensor * b0 = ggml_new_tensor_3d(g.ctx, type, d, hidden, slices);
    ggml_tensor * b1 = ggml_new_tensor_1d(g.ctx, GGML_TYPE_F32, hidden);
    ggml_tensor * c0 = ggml_new_tensor_3d(g.ctx, type, hidden, d, slices);
    ggml_tensor * c1 = ggml_new_tensor_1d(g.ctx, GGML_TYPE_F32, d);
    ggml_tensor * dst = ggml_flash_ff(g.ctx, a, b0, b1, c0, c1);
    REQUIRE(dst != NULL);
    for (ggml_tensor * t : { a, b0, b1, c0, c1 }) {
        fill(t);
    }
    REQUIRE(g.compute(dst));
    int wrong = 0;
    for (int64_t row = 0; row < n * slices; row++) {
        std::vector<double> h((size_t) hidden);
        for (int64_t j = 0; j < hidden; j++) {
            double x = element(b1, j, 0, 0, 0);
            for (int64_t i = 0; i < d; i++) {
                x += element(b0, i, j, row / n, 0) * element(a, i, row % n, row / n, 0);
            }
            h[(size_t) j] = 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * x * (1 + 0.044715 * x * x)));
        }
        for (int64_t i = 0; i < d; i++) {
            double expected = element(c1, i, 0, 0, 0), magnitude = fabs(expected);
            for (int64_t j = 0; j < hidden; j++) {
                expected += element(c0, j, i, row / n, 0) * h[(size_t) j];
                magnitude += fabs(element(c0, j, i, row / n, 0) * h[(size_t) j]);
            }
            wrong += !(fabs(g.result[(size_t) (row * d + i)] - expected) <=
                       magnitude * ((type == GGML_TYPE_F16 ? 1.0 / 1024 : 0) + 1e-5));
        }
    }
    CHECK_MSG(wrong == 0, "flash_ff %s d %d n %d hidden %d: %d wrong", ggml_type_name(type), (int) d, (int) n,
        (int) hidden, wrong);
}

static void feed_forward(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16 }) {
        check_feed_forward(type, 32, 1, 64, 1);
        check_feed_forward(type, 24, 20, 40, 2);
    }
}

TEST_MAIN(TEST(halves), TEST(heads_that_share_keys), TEST(keys_in_parts), TEST(floats_and_odd_shapes),
    TEST(tiles_of_floats), TEST(feed_forward))
