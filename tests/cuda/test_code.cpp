// test_code.cpp - code for another compute capability than the device's. The driver compiles code for an older one
// again, but that lacks newer features. Code for a newer one does not run.
#include "products_and_attention.h"

static void set_code(int major, int minor) { gb_emu_set_code(major, minor); }

// This must run first: facts about a device are kept.
static void newer_code_is_refused(void) {
    CUDA_OR_SKIP();
    set_code(10, 0);
    ggml_backend_t cuda = cuda_open(0);
    CHECK(cuda == NULL);
    CHECK_INT(ggml_last_status(), GGML_STATUS_DEVICE_ERROR);
    CHECK_MSG(strstr(ggml_last_error(), "CUDA0") != NULL &&
                  strstr(ggml_last_error(), "code for compute capability 9.0") != NULL,
        "%s", ggml_last_error());
    ggml_backend_free(cuda);
}

static void older_code_runs_without_newer_features(void) {
    CUDA_OR_SKIP();
    set_code(7, 5);
    for (ggml_type type : { GGML_TYPE_BF16, GGML_TYPE_F16, GGML_TYPE_Q4_0 }) { // tiles of bf16 need code for 8.0
        products::mul_mat(type, GGML_TYPE_F32, { 130, 70, 512, 1, 1, 1, 1 });
    }
    for (ggml_type type : { GGML_TYPE_BF16, GGML_TYPE_F16 }) {
        attentions::check({ type, 64, 20, 136, 2, 1, 1, 1, true, false });
    }
}

TEST_MAIN(TEST(newer_code_is_refused), TEST(older_code_runs_without_newer_features))
