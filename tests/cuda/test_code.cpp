// test_code.cpp - code that was compiled for another compute capability than the device has: for an older one, which
// the driver compiles again but which lacks what came later, and for a newer one, which does not run.
#include "products_and_attention.h"

static void set_code(int major, int minor) { gb_emu_set_code(major, minor); }

// First: what is found out about a device stays.
static void newer_code(void) {
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

static void older_code(void) {
    CUDA_OR_SKIP();
    set_code(7, 5);
    for (ggml_type type : { GGML_TYPE_BF16, GGML_TYPE_F16, GGML_TYPE_Q4_0 }) { // products of bf16 tiles began with 8.0
        products::mul_mat(type, GGML_TYPE_F32, { 130, 70, 512, 1, 1, 1, 1 });
    }
    for (ggml_type type : { GGML_TYPE_BF16, GGML_TYPE_F16 }) {
        attentions::check({ type, 64, 20, 136, 2, 1, 1, 1, true, false });
    }
}

TEST_MAIN(TEST(newer_code), TEST(older_code))
