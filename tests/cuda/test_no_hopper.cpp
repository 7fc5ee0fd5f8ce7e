// test_no_hopper.cpp - with GGML_CUDA_HOPPER=0 devices of compute capability 9.0 compute products by the kernels of all
// devices.
#include "device_graph.h"

#pragma push_macro("TEST_MAIN")
#undef TEST_MAIN
#define TEST_MAIN(...) [[maybe_unused]] static const struct test_case all_cases[] = { __VA_ARGS__ };
namespace products {
#include "test_products.cpp"
}
#pragma pop_macro("TEST_MAIN")

static void products_of_halves(void) {
    setenv("GGML_CUDA_HOPPER", "0", 1); // before the first backend
    CUDA_OR_SKIP();
    products::tiles_of_halves();
    products::large_tiles();
    products::broadcasts();
    products::strides();
    for (ggml_type type : { GGML_TYPE_F16, GGML_TYPE_BF16 }) {
        products::mul_mat(type, GGML_TYPE_F32, { 200, 150, 136, 2, 1, 2, 1 });
        products::mul_mat(type, GGML_TYPE_F32, { 130, 50, 1032, 1, 1, 1, 1 });
    }
#ifdef GB_CUDA_EMULATED
    CHECK_INT(gb_emu_launches_of("hopper"), 0);
    CHECK(gb_emu_launches_of("gb_gemm_halves<SOURCE, KIND, 256>") >= 4);
#endif
}

static void products_of_quantized_weights(void) {
    setenv("GGML_CUDA_HOPPER", "0", 1);
    CUDA_OR_SKIP();
    const uint64_t before = cuda_launches("gb_gemm_halves");
    for (ggml_type type : { GGML_TYPE_Q4_0, GGML_TYPE_Q6_K }) {
        products::mul_mat(type, GGML_TYPE_F32, { 140, 70, 512, 1, 1, 1, 1 });
        products::mul_mat(type, GGML_TYPE_F32, { 40, 300, 256, 1, 1, 1, 1 });
        products::mul_mat_id(type, 35, 75, 256, 2, false);
    }
    products::mul_mat_id(GGML_TYPE_F16, 35, 75, 256, 2, false);
    cuda_check_launches("gb_gemm_halves", before, 7, "quantized weights");
    products::tiles_of_all_formats();
    products::deep_tiles();
    cuda_check_launches("hopper", 0, 0, "quantized weights");
}

TEST_MAIN(TEST(products_of_halves), TEST(products_of_quantized_weights))
