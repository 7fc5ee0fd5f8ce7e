// test_no_dependent.cpp - with GGML_CUDA_DEPENDENT=0 no kernel may begin early, queued or in graphs.
#include "device_graph.h"

// Three nodes and more are replayed from the second time on.
static std::vector<float> compute_some(int times) {
    ggml_backend_t cuda = cuda_open(0);
    ggml_context * ctx = ggml_init({ 1 << 16, NULL, true });
    ggml_tensor * x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 300);
    ggml_tensor * y = ggml_add(ctx, ggml_relu(ctx, ggml_scale(ctx, ggml_sqr(ctx, x), 2)), x);
    ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_backend_buffer_t buffer = NULL;
    std::vector<float> v(300, 3.0f);
    ggml_build_forward_expand(graph, y);
    buffer = ggml_backend_alloc_ctx_tensors(ctx, cuda);
    CHECK(buffer != NULL);
    for (int i = 0; i < times; i++) {
        ggml_backend_tensor_set(x, std::vector<float>(300, 3.0f).data(), 0, ggml_nbytes(x));
        CHECK_MSG(ggml_backend_graph_compute(cuda, graph), "%s", ggml_last_error());
        ggml_backend_tensor_get(y, v.data(), 0, ggml_nbytes(y));
    }
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    ggml_backend_free(cuda);
    return v;
}

static void no_kernel_begins_early(void) {
    setenv("GGML_CUDA_DEPENDENT", "0", 1); // read for the first backend of a device
    CUDA_OR_SKIP();
    for (float x : compute_some(4)) {
        CHECK(x == 21);
    }
#ifdef GB_CUDA_EMULATED
    CHECK_INT(gb_emu_count().dependent, 0);
    CHECK(gb_emu_count().launches > 0 && gb_emu_count().graph_launches == 3);
    unsetenv("GGML_CUDA_DEPENDENT");
    ggml_backend_t other = cuda_open(1); // another device
    CHECK(other != NULL);
    ggml_context * ctx = ggml_init({ 1 << 16, NULL, true });
    ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_tensor * x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 300);
    ggml_build_forward_expand(graph, ggml_sqr(ctx, ggml_scale(ctx, ggml_sqr(ctx, x), 2)));
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, other);
    CHECK(buffer != NULL);
    ggml_backend_tensor_set(x, std::vector<float>(300, 3.0f).data(), 0, ggml_nbytes(x));
    for (int i = 1; i <= 3; i++) { // queued, then as a graph: the first kernel waits in the queue
        CHECK_MSG(ggml_backend_graph_compute(other, graph), "%s", ggml_last_error());
        ggml_backend_synchronize(other);
        CHECK_INT(gb_emu_count().dependent, 2 * i);
    }
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    ggml_backend_free(other);
#endif
}

TEST_MAIN(TEST(no_kernel_begins_early))
