// test_contexts.cpp - work on one device makes no context on others until their memory is used.
//
// A context takes hundreds of megabytes. From CUDA 12 on, making a device current creates one. All checks are in one
// test, because contexts stay for the life of the process.
#include <cuda_runtime.h>

#include "device_graph.h"


static void compute(int device) {
    ggml_backend_t cuda = cuda_open(device);
    REQUIRE(cuda != NULL);
    ggml_context * ctx = ggml_init({ 1 << 16, NULL, true });
    ggml_tensor * x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 100);
    ggml_cgraph * g = ggml_new_graph(ctx);
    ggml_build_forward_expand(g, ggml_scale(ctx, ggml_sqr(ctx, ggml_neg(ctx, x)), 2));
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, cuda);
    ggml_backend_buffer_t pinned = ggml_backend_buft_alloc_buffer(ggml_backend_cuda_host_buffer_type(), 4096);
    std::vector<float> page(4096, 3);
    CHECK(ggml_backend_cuda_register_host_buffer(page.data(), page.size() * sizeof(float)));
    for (int i = 0; i < 3; i++) {
        CHECK_INT(ggml_backend_tensor_set_async(cuda, x, page.data(), 0, ggml_nbytes(x)), GGML_STATUS_SUCCESS);
        CHECK(ggml_backend_graph_compute(cuda, g));
        CHECK_INT(ggml_backend_synchronize(cuda), GGML_STATUS_SUCCESS);
    }
    CHECK_INT(ggml_backend_cuda_unregister_host_buffer(page.data()), GGML_STATUS_SUCCESS);
    size_t memory, total;
    CHECK_INT(ggml_backend_cuda_get_device_memory(device, &memory, &total), GGML_STATUS_SUCCESS);
    ggml_backend_buffer_free(pinned);
    ggml_backend_buffer_free(buffer);
    ggml_backend_cuda_trim(device);
    ggml_free(ctx);
    ggml_backend_free(cuda);
}

static ggml_tensor * tensor_on(int device, ggml_context * ctx, ggml_backend_buffer_t * buffer) {
    ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 100);
    *buffer = ggml_backend_alloc_ctx_tensors_from_buft(ctx, ggml_backend_cuda_buffer_type(device));
    return t;
}

static void unused_devices_get_no_context(void) {
    CUDA_OR_SKIP();
    REQUIRE(ggml_backend_cuda_get_device_count() == 2);
    char text[64];
    ggml_backend_cuda_get_device_description(0, text, sizeof(text));
    CHECK(!gb_emu_has_context(0) && !gb_emu_has_context(1)); // listing devices makes no context
    compute(1);
    CHECK(gb_emu_has_context(1));
    CHECK(!gb_emu_has_context(0));
    int now = -1; // the thread's device was 0, without a context: it does not come back
    CHECK_INT(cudaGetDevice(&now), cudaSuccess);
    CHECK_INT(now, 1);
    CHECK(!gb_emu_has_context(0));
    CHECK_INT(cudaSetDevice(0), cudaSuccess);  // other code uses device 0, which stays current
    compute(1);
    CHECK_INT(cudaGetDevice(&now), cudaSuccess);
    CHECK_INT(now, 0);
    // Both devices have contexts. The first copy between them maps their memory.
    CHECK(!gb_emu_has_peer(0, 1) && !gb_emu_has_peer(1, 0));
    ggml_context * ctx[2] = { ggml_init({ 1 << 12, NULL, true }), ggml_init({ 1 << 12, NULL, true }) };
    ggml_backend_buffer_t buffer[2];
    ggml_tensor * t[2] = { tensor_on(0, ctx[0], &buffer[0]), tensor_on(1, ctx[1], &buffer[1]) };
    CHECK(!gb_emu_has_peer(0, 1) && !gb_emu_has_peer(1, 0));
    CHECK_INT(ggml_backend_tensor_copy(t[0], t[1]), GGML_STATUS_SUCCESS);
    CHECK(gb_emu_has_peer(0, 1) && gb_emu_has_peer(1, 0));
    for (int i = 0; i < 2; i++) {
        ggml_backend_buffer_free(buffer[i]);
        ggml_free(ctx[i]);
    }
}


TEST_MAIN(TEST(unused_devices_get_no_context))
