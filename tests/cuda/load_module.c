// load_module.c - the CUDA module from its file (GGML_CUDA_MODULE), as a program meets it: devices that compute, or a reason why there are none.
#include "ggml-backend.h"
#include "ggml-cuda.h"
#include "test.h"

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
        ggml_backend_free(backend);
        return;
    }
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
