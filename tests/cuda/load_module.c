// load_module.c - loads the CUDA module from its file (GGML_CUDA_MODULE) as a program does: devices compute, or there
// is a reason why not. With GB_EXPECT_DEVICES in the environment there must be devices.
#include <stdlib.h>

#include "ggml-backend.h"
#include "ggml-cuda.h"
#include "test.h"

// y = w x + x, by a scheduler of the device and the CPU, which must place the sum on the device.
static void compute(ggml_backend_t backend) {
    enum { N = 32, ROWS = 12 };
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 65536, NULL, true });
    struct ggml_tensor * w = ggml_new_tensor_2d(ctx, GGML_TYPE_Q8_0, N, N);
    struct ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, N, ROWS);
    struct ggml_tensor * y = ggml_add(ctx, ggml_mul_mat(ctx, w, x), x);
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    float data[N * N] = { 0 }, got[N * ROWS];
    uint8_t blocks[N * N / 32 * 34];
    ggml_build_forward_expand(g, y);
    ggml_backend_t list[] = { backend, ggml_backend_cpu_init() };
    ggml_backend_sched_t sched = ggml_backend_sched_new(list, NULL, 2, 16);
    REQUIRE(sched != NULL && ggml_backend_sched_alloc_graph(sched, g) == GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_sched_get_node_backend(sched, y) == backend);
    for (int i = 0; i < N; i++) {
        data[i * N + i] = 127; // exactly representable
    }
    ggml_internal_get_type_traits(GGML_TYPE_Q8_0).from_float(data, blocks, N * N);
    CHECK_INT(ggml_backend_tensor_set(w, blocks, 0, sizeof(blocks)), GGML_STATUS_SUCCESS);
    for (int i = 0; i < N * ROWS; i++) {
        got[i] = (float) (i % 7);
    }
    CHECK_INT(ggml_backend_tensor_set(x, got, 0, sizeof(got)), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_backend_sched_graph_compute(sched, g), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_backend_tensor_get(y, got, 0, sizeof(got)), GGML_STATUS_SUCCESS);
    int wrong = 0;
    for (int i = 0; i < N * ROWS; i++) {
        wrong += got[i] != 128 * (float) (i % 7);
    }
    CHECK_INT(wrong, 0);
    ggml_backend_sched_free(sched);
    ggml_backend_free(list[1]);
    ggml_free(ctx);
}

// Errors of the module reach the library that loads it.
static void report(ggml_backend_t backend) {
    CHECK(ggml_backend_alloc_buffer(backend, (size_t) 1 << 50) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "CUDA0: out of memory: 1125899906842624 bytes wanted");
    CHECK(ggml_backend_reg_init_backend_from_str("CUDA0:x=1") == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "has 'x=1'");
    CHECK_STR(ggml_backend_cuda_get_cublas(backend), "");
}

static void loads_or_says_why(void) {
    const enum ggml_status status = ggml_backend_cuda_load();
    REQUIRE(ggml_backend_load_count() == 1);
    const struct ggml_backend_load_record * record = ggml_backend_load_get(0);
    CHECK_STR(record->name, "cuda");
    if (status == GGML_STATUS_SUCCESS) {
        CHECK_INT(record->n_backends, ggml_backend_cuda_get_device_count());
        CHECK(ggml_backend_reg_find_by_name("CUDA0") < ggml_backend_reg_get_count());
        ggml_backend_t backend = ggml_backend_cuda_init(0);
        CHECK(ggml_backend_is_cuda(backend));
        compute(backend);
        report(backend);
        ggml_backend_free(backend);
        CHECK_INT(ggml_backend_cuda_load(), GGML_STATUS_SUCCESS); // again: nothing new
        CHECK_INT(ggml_backend_load_count(), 1);
        return;
    }
    CHECK(getenv("GB_EXPECT_DEVICES") == NULL);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "CUDA: no device: ");
    CHECK(strstr(record->message, "CUDA: no device: ") != NULL);
    CHECK_INT(record->n_backends, 0);
    CHECK_INT(ggml_backend_cuda_get_device_count(), 0);
    CHECK(ggml_backend_cuda_init(0) == NULL);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "no device");
    CHECK(ggml_backend_cuda_buffer_type(0) == NULL && ggml_backend_cuda_host_buffer_type() == NULL);
    CHECK(ggml_backend_reg_find_by_name("CUDA0") >= ggml_backend_reg_get_count());
    ggml_backend_t cpu = ggml_backend_cpu_init(); // everything else works
    CHECK(cpu != NULL && !ggml_backend_is_cuda(cpu));
    ggml_backend_free(cpu);
}

TEST_MAIN(TEST(loads_or_says_why))
