// today.h - shared by the test_compat_today_* programs. They use ggml's interface of 2026 and
// compare their graphs with plain loops in double. Weights are kept twice: in a tensor, and as the
// numbers that it holds.
#ifndef GB_TESTS_TODAY_H
#define GB_TESTS_TODAY_H

#include "ggml-today.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "test.h"

enum { MAX_WEIGHTS = 32 };

struct weights {
    struct ggml_context * ctx; // owned
    ggml_backend_buffer_t buffer; // owned
    int n;
    struct ggml_tensor * t[MAX_WEIGHTS];
    double * v[MAX_WEIGHTS]; // owned: the numbers that t[i] holds
};

static inline void weights_new(struct weights * w) {
    memset(w, 0, sizeof(*w));
    struct ggml_init_params params = { MAX_WEIGHTS * ggml_tensor_overhead(), NULL, true };
    w->ctx = ggml_init(params);
}

// Adds a tensor of F32 or F16 with random numbers, and returns its number.
static inline int weight(struct weights * w, enum ggml_type type, float low, float high, int64_t ne0, int64_t ne1,
    int64_t ne2, int64_t ne3) {
    struct ggml_tensor * t = ggml_new_tensor_4d(w->ctx, type, ne0, ne1, ne2, ne3);
    double * v = malloc((size_t) ggml_nelements(t) * sizeof(*v));
    for (int64_t i = 0; i < ggml_nelements(t); i++) {
        const float x = test_random_float(low, high);
        v[i] = (double) (type == GGML_TYPE_F16 ? ggml_fp16_to_fp32(ggml_fp32_to_fp16(x)) : x);
    }
    w->t[w->n] = t;
    w->v[w->n] = v;
    return w->n++;
}

// Allocates all weights on the backend and sets them.
static inline bool weights_place(struct weights * w, ggml_backend_t backend) {
    w->buffer = ggml_backend_alloc_ctx_tensors(w->ctx, backend);
    for (int i = 0; i < w->n && w->buffer != NULL; i++) {
        const int64_t n = ggml_nelements(w->t[i]);
        float * f = malloc((size_t) n * sizeof(*f));
        for (int64_t k = 0; k < n; k++) {
            f[k] = (float) w->v[i][k];
        }
        if (w->t[i]->type == GGML_TYPE_F16) {
            ggml_fp16_t * h = (ggml_fp16_t *) (void *) f; // in place: each narrower number is before all unread ones
            for (int64_t k = 0; k < n; k++) {
                const ggml_fp16_t x = ggml_fp32_to_fp16(f[k]);
                memcpy(&h[k], &x, sizeof(x));
            }
        }
        ggml_backend_tensor_set(w->t[i], f, 0, ggml_nbytes(w->t[i]));
        free(f);
    }
    return w->buffer != NULL;
}

static inline void weights_free(struct weights * w) {
    for (int i = 0; i < w->n; i++) {
        free(w->v[i]);
    }
    ggml_backend_buffer_free(w->buffer);
    ggml_free(w->ctx);
}

// y[m] = sum of w[k, m] x[k]
static inline void product(const double * w, int k, int m, const double * x, double * y) {
    for (int i = 0; i < m; i++) {
        y[i] = 0;
        for (int j = 0; j < k; j++) {
            y[i] += w[i * k + j] * x[j];
        }
    }
}

static inline void rms(const double * x, int n, double eps, double * y) {
    double squares = 0;
    for (int i = 0; i < n; i++) {
        squares += x[i] * x[i];
    }
    for (int i = 0; i < n; i++) {
        y[i] = x[i] / sqrt(squares / n + eps);
    }
}

// x becomes its softmax with one more score `sink` in the sum (-INFINITY: none).
static inline void softmax(double * x, int n, double sink) {
    double top = sink, sum = 0;
    for (int i = 0; i < n; i++) {
        top = fmax(top, x[i]);
    }
    for (int i = 0; i < n; i++) {
        x[i] = exp(x[i] - top);
        sum += x[i];
    }
    for (int i = 0; i < n; i++) {
        x[i] /= sum + exp(sink - top);
    }
}

static inline double sigmoid(double x) { return 1 / (1 + exp(-x)); }

// The tensor holds these numbers, up to `tolerance` times the largest one.
static inline void check_numbers(int line, const struct ggml_tensor * t, const double * want, int64_t n,
    double tolerance) {
    if (t == NULL || ggml_nelements(t) != n || t->type != GGML_TYPE_F32) {
        test_fail(__FILE__, line, "no such result: %s", ggml_last_error());
        return;
    }
    float * got = malloc((size_t) n * sizeof(*got));
    double largest = 0;
    ggml_backend_tensor_get(t, got, 0, (size_t) n * sizeof(*got));
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs(want[i]));
    }
    for (int64_t i = 0; i < n; i++) {
        if (!(fabs((double) got[i] - want[i]) <= tolerance * largest)) {
            test_fail(__FILE__, line, "%s[%d] is %g, expected %g", ggml_get_name(t), (int) i, (double) got[i], want[i]);
            break;
        }
    }
    free(got);
}

#define CHECK_NUMBERS(t, want, n, tolerance) check_numbers(__LINE__, t, want, n, tolerance)

#endif // GB_TESTS_TODAY_H
