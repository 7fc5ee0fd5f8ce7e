// custom.h - users' functions that do nothing, for every kind of custom operator.
#ifndef TESTS_CUSTOM_H
#define TESTS_CUSTOM_H

#include "ggml.h"

static inline void rows_1(const int n, float * y, const float * x) { (void) n, (void) y, (void) x; }

static inline void rows_2(const int n, float * z, const float * x, const float * y) {
    (void) n, (void) z, (void) x, (void) y;
}

static inline void whole_1(struct ggml_tensor * dst, const struct ggml_tensor * a) { (void) dst, (void) a; }

static inline void whole_2(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b) {
    (void) dst, (void) a, (void) b;
}

static inline void whole_3(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b,
    const struct ggml_tensor * c) {
    (void) dst, (void) a, (void) b, (void) c;
}

static inline void task_1(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * userdata) {
    (void) dst, (void) a, (void) ith, (void) nth, (void) userdata;
}

static inline void task_2(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b, int ith,
    int nth, void * userdata) {
    (void) dst, (void) a, (void) b, (void) ith, (void) nth, (void) userdata;
}

static inline void task_3(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b,
    const struct ggml_tensor * c, int ith, int nth, void * userdata) {
    (void) dst, (void) a, (void) b, (void) c, (void) ith, (void) nth, (void) userdata;
}

static inline void task_any(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    (void) dst, (void) ith, (void) nth, (void) userdata;
}

#endif // TESTS_CUSTOM_H
