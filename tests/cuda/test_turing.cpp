// test_turing.cpp - products and attention on emulated devices of compute capability 7.5: tensor cores without bf16, 64
// KiB of shared memory.
#include "products_and_attention.h"

static void use_turing(void) {
    static bool done = false; // before the first call that finds the devices
    if (!done) {
        gb_emu_set_capability(7, 5);
        done = true;
    }
}

static void tiles_fit_small_shared_memory(void) {
    use_turing();
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q4_0, GGML_TYPE_Q6_K }) {
        products::mul_mat(type, GGML_TYPE_F32, { 130, 70, 512, 1, 1, 1, 1 });
        products::mul_mat(type, GGML_TYPE_F32, { 20, 12, 256, 1, 1, 1, 1 });
        products::mul_mat(type, GGML_TYPE_F32, { 20, 3, 256, 1, 1, 1, 1 });
        products::mul_mat(type, GGML_TYPE_F32, { 40, 17, 1792, 1, 1, 1, 1 });
    }
}

static void attention_fits_small_shared_memory(void) {
    use_turing();
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_F16, GGML_TYPE_BF16 }) {
        attentions::check({ type, 64, 20, 136, 2, 1, 1, 1, true, false });
        attentions::check({ type, 128, 20, 136, 2, 1, 1, 1, true, false });
        attentions::check({ type, 256, 20, 72, 1, 1, 1, 1, true, false });
    }
}

TEST_MAIN(TEST(tiles_fit_small_shared_memory), TEST(attention_fits_small_shared_memory))
