// test_compute.h - vectors and graphs of the tests of the engine.
#ifndef GB_TESTS_TEST_COMPUTE_H
#define GB_TESTS_TEST_COMPUTE_H

#include "test.h"

#include "ggml-cpu.h"

static inline struct ggml_context * new_context(bool no_alloc) {
    return ggml_init((struct ggml_init_params) { 16u << 20, NULL, no_alloc });
}

static inline struct ggml_tensor * new_vector(struct ggml_context * ctx, int64_t n, float value) {
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, n);
    return t != NULL ? ggml_set_f32(t, value) : NULL;
}

static inline struct ggml_cgraph * graph_of(struct ggml_context * ctx, struct ggml_tensor * t) {
    struct ggml_cgraph * graph = ggml_new_graph_custom(ctx, 4096, false);
    ggml_build_forward_expand(graph, t);
    return graph;
}

// Checks that every element equals v. Elementwise checks find a share that no thread computed.
static inline bool all_equal(const struct ggml_tensor * t, float v) {
    const float * x = ggml_get_data_f32(t);
    for (int64_t i = 0; i < ggml_nelements(t); i++) {
        if (x[i] != v) {
            return false;
        }
    }
    return true;
}

#endif // GB_TESTS_TEST_COMPUTE_H
