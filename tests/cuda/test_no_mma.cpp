// test_no_mma.cpp - products and attention on emulated devices that have no products of tiles, as those that hipcc
// compiles for (docs/CUDA.md, ROCm): the kernels in float serve, and no other is launched.
#include "products_and_attention.h"

static void use_none(void) {
    gb_emu_set_capability(7, 5); // before the first call that finds the devices
    gb_emu_set_mma(0);
}

static void products_in_float(void) {
    use_none();
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q4_0, GGML_TYPE_Q8_0,
             GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_XS }) {
        for (int64_t rows : { 1, 3, 8, 9, 16, 70 }) {
            products::mul_mat(type, GGML_TYPE_F32, { 70, rows, 512, 1, 1, 1, 1 });
        }
    }
    products::broadcasts();
    products::strides();
}

static void attention_in_float(void) {
    use_none();
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 }) {
        for (int64_t d : { 64, 128, 256 }) {
            attentions::check({ type, d, 20, 136, 2, 1, 1, 1, true, false });
            attentions::check({ type, d, 1, 136, 2, 1, 1, 1, true, true });
        }
    }
}

static void no_kernel_of_tiles(void) {
    for (const char * kernel : { "gb_gemm_halves", "gb_few_rows", "gb_attention_halves", "gb_rows_of_panels" }) {
        CHECK_INT(gb_emu_launches_of(kernel), 0);
    }
    for (const char * kernel : { "gb_gemm_exact", "gb_matvec", "gb_attention_floats", "gb_attention_exact" }) {
        CHECK(gb_emu_launches_of(kernel) > 0);
    }
}

TEST_MAIN(TEST(products_in_float), TEST(attention_in_float), TEST(no_kernel_of_tiles))
