// compat.h - the model of the test_compat_* programs: y = softmax(w2 relu(w1 x + b1)), with a
// residual branch and a view. The expected output is computed in double with plain loops.
#ifndef GB_TESTS_COMPAT_H
#define GB_TESTS_COMPAT_H

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "test.h"

enum { N_IN = 24, N_HIDDEN = 40, N_OUT = 8, N_BATCH_MAX = 7 };

struct model {
    struct ggml_context * ctx; // owned
    struct ggml_tensor * w1;   // [N_IN, N_HIDDEN]
    struct ggml_tensor * b1;   // [N_HIDDEN]
    struct ggml_tensor * w2;   // [N_HIDDEN, N_OUT]
    float w1_data[N_HIDDEN * N_IN], b1_data[N_HIDDEN], w2_data[N_OUT * N_HIDDEN];
};

static inline void model_random(float * x, int n) {
    for (int i = 0; i < n; i++) {
        x[i] = test_random_float(-1, 1);
    }
}

static inline bool model_new(struct model * m) {
    struct ggml_init_params params = { 16 * ggml_tensor_overhead(), NULL, true };
    m->ctx = ggml_init(params);
    if (m->ctx == NULL) {
        return false;
    }
    m->w1 = ggml_set_name(ggml_new_tensor_2d(m->ctx, GGML_TYPE_F32, N_IN, N_HIDDEN), "w1");
    m->b1 = ggml_set_name(ggml_new_tensor_1d(m->ctx, GGML_TYPE_F32, N_HIDDEN), "b1");
    m->w2 = ggml_set_name(ggml_new_tensor_2d(m->ctx, GGML_TYPE_F32, N_HIDDEN, N_OUT), "w2");
    model_random(m->w1_data, N_HIDDEN * N_IN);
    model_random(m->b1_data, N_HIDDEN);
    model_random(m->w2_data, N_OUT * N_HIDDEN);
    return true;
}

static inline void model_upload(struct model * m) { // requires memory
    ggml_backend_tensor_set(m->w1, m->w1_data, 0, ggml_nbytes(m->w1));
    ggml_backend_tensor_set(m->b1, m->b1_data, 0, ggml_nbytes(m->b1));
    ggml_backend_tensor_set(m->w2, m->w2_data, 0, ggml_nbytes(m->w2));
}

// x [N_IN, n] -> [N_OUT, n], named "y". The hidden layer is named "hidden". A view adds its second
// half again.
static inline struct ggml_tensor * model_build(struct ggml_context * ctx, const struct model * m,
    struct ggml_tensor * x) {
    struct ggml_tensor * h = ggml_add(ctx, ggml_mul_mat(ctx, m->w1, x), m->b1);
    h = ggml_set_name(ggml_relu(ctx, h), "hidden");
    struct ggml_tensor * half = ggml_view_2d(ctx, h, N_HIDDEN / 2, x->ne[1], h->nb[1], h->nb[1] / 2);
    h = ggml_scale(ctx, ggml_add(ctx, h, half), 0.5f);
    return ggml_set_name(ggml_soft_max(ctx, ggml_mul_mat(ctx, m->w2, h)), "y");
}

static inline void model_expected(const struct model * m, const float * x, int n, double * y) {
    for (int t = 0; t < n; t++) {
        double h[N_HIDDEN], g[N_HIDDEN], sum = 0;
        for (int i = 0; i < N_HIDDEN; i++) {
            h[i] = (double) m->b1_data[i];
            for (int k = 0; k < N_IN; k++) {
                h[i] += (double) m->w1_data[i * N_IN + k] * (double) x[t * N_IN + k];
            }
            h[i] = h[i] > 0 ? h[i] : 0;
        }
        for (int i = 0; i < N_HIDDEN; i++) {
            g[i] = 0.5 * (h[i] + h[N_HIDDEN / 2 + i % (N_HIDDEN / 2)]);
        }
        for (int o = 0; o < N_OUT; o++) {
            double s = 0;
            for (int i = 0; i < N_HIDDEN; i++) {
                s += (double) m->w2_data[o * N_HIDDEN + i] * g[i];
            }
            y[t * N_OUT + o] = exp(s);
            sum += exp(s);
        }
        for (int o = 0; o < N_OUT; o++) {
            y[t * N_OUT + o] /= sum;
        }
    }
}

// Reads y from its device and compares.
static inline void model_check(int line, const struct model * m, const float * x, int n, const struct ggml_tensor * y) {
    float got[N_OUT * N_BATCH_MAX];
    double expected[N_OUT * N_BATCH_MAX];
    if (y == NULL || ggml_nelements(y) != (int64_t) n * N_OUT) {
        test_fail(__FILE__, line, "no result: %s", ggml_last_error());
        return;
    }
    memset(got, 0xff, sizeof(got));
    ggml_backend_tensor_get(y, got, 0, ggml_nbytes(y));
    model_expected(m, x, n, expected);
    for (int i = 0; i < n * N_OUT; i++) {
        if (!(fabs((double) got[i] - expected[i]) < 1e-5)) {
            test_fail(__FILE__, line, "y[%d] is %g, expected %g (%s)", i, (double) got[i], expected[i],
                ggml_last_error());
            return;
        }
    }
}

#define MODEL_CHECK(m, x, n, y) model_check(__LINE__, m, x, n, y)

#endif // GB_TESTS_COMPAT_H
