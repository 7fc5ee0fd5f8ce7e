// test_blas.cpp - products by cuBLAS: only on request, correct, and recorded in graphs. The module's own
// kernels compute if it is missing or fails.
//
// In the emulation, emulation/fake_cublas.cpp stands in for it. On a device the system's library is used, if there is
// one.
#include <stdlib.h>
#ifdef GB_CUDA_EMULATED
#    include <dlfcn.h>
#endif

#include "device_graph.h"

#pragma push_macro("TEST_MAIN")
#undef TEST_MAIN
#define TEST_MAIN(...) [[maybe_unused]] static const struct test_case all_cases[] = { __VA_ARGS__ };
namespace products {
#include "test_products.cpp"
}
#pragma pop_macro("TEST_MAIN")

static void ask_for(const char * value) {
    if (value != NULL) {
        setenv("GGML_CUDA_CUBLAS", value, 1);
    } else {
        unsetenv("GGML_CUDA_CUBLAS");
    }
}

// All forms of a product: one slice and many, shared weights, rows that are converted, padded or copied, PREC_F32.
static void multiply_all(void) {
    for (ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 }) {
        products::mul_mat(type, GGML_TYPE_F32, { 70, 33, 96, 1, 1, 1, 1 });
        products::mul_mat(type, GGML_TYPE_F32, { 40, 20, 40, 2, 3, 2, 3 });
        products::mul_mat(type, GGML_TYPE_F32, { 40, 20, 40, 2, 2, 6, 2 });
        products::mul_mat(type, GGML_TYPE_F32, { 40, 20, 40, 2, 2, 4, 4 });
        products::mul_mat(type, type, { 33, 12, 64, 1, 1, 1, 1 });
        products::mul_mat(type, GGML_TYPE_F32, { 33, 12, 50, 1, 1, 1, 1 });
        products::mul_mat(type, GGML_TYPE_F32, { 33, 12, 64, 1, 1, 1, 1 }, true);
    }
}

static void cublas_is_not_used_unless_requested(void) {
    CUDA_OR_SKIP();
    for (const char * value : { (const char *) NULL, "", "0" }) {
        ask_for(value);
        ggml_backend_t cuda = cuda_open(0);
        CHECK_STR(ggml_backend_cuda_get_cublas(cuda), "");
        ggml_backend_free(cuda);
    }
    CHECK_STR(ggml_backend_cuda_get_cublas(NULL), "");
    CHECK_INT(ggml_last_status(), GGML_STATUS_INVALID_ARGUMENT);
}

#ifdef GB_CUDA_EMULATED

static struct fake { // the library, opened a second time
    void * library = NULL;
    int (*products)(void);
    int (*handles)(void);
    void (*fail)(int after, int status);
} fake;

static bool open_fake(void) {
    fake.library = fake.library != NULL ? fake.library : dlopen(FAKE_CUBLAS, RTLD_NOW | RTLD_LOCAL);
    if (fake.library == NULL) {
        test_fail(__FILE__, __LINE__, "%s", dlerror());
        return false;
    }
    fake.products = (int (*)(void)) dlsym(fake.library, "fake_cublas_products");
    fake.handles = (int (*)(void)) dlsym(fake.library, "fake_cublas_handles");
    fake.fail = (void (*)(int, int)) dlsym(fake.library, "fake_cublas_fail");
    return fake.products != NULL && fake.handles != NULL && fake.fail != NULL;
}

// What a new backend reports about the request. The backend exists in any case.
static std::string answer_to(const char * value) {
    ask_for(value);
    ggml_backend_t cuda = cuda_open(0);
    CHECK(cuda != NULL);
    const std::string answer = ggml_backend_cuda_get_cublas(cuda);
    ggml_backend_free(cuda);
    return answer;
}

static void check_answer(const char * value, const char * part) {
    const std::string answer = answer_to(value);
    CHECK_MSG(answer.find(part) != std::string::npos, "'%s' gives '%s', not '%s'", value, answer.c_str(), part);
}

// This test must run before the process loads the library.
static void a_missing_library_is_reported(void) {
    CUDA_OR_SKIP();
    check_answer("1", "cuBLAS: the system's loader finds none");
    check_answer("libcublas.so.13", "is 0, 1 or a full path");
    check_answer("./libcublas.so.13", "is 0, 1 or a full path");
    check_answer("/no/such/libcublas.so.13", "/no/such/libcublas.so.13");
    check_answer(POOR_CUBLAS, "has no cublasGemmStridedBatchedEx");
    for (const char * list : { ":/usr/lib", "/usr/lib:", "/usr/lib::/lib", "lib", "/usr/lib:lib", ".", "/usr/lib;" }) {
        setenv("LD_LIBRARY_PATH", list, 1);
        check_answer("1", "LD_LIBRARY_PATH");
    }
    for (const char * list : { "", "/nowhere", "/nowhere:/nowhere/else" }) {
        setenv("LD_LIBRARY_PATH", list, 1);
        check_answer("1", "finds none");
    }
    unsetenv("LD_LIBRARY_PATH");
    ask_for(POOR_CUBLAS);
    multiply_all();
}

static void products_are_right(void) {
    CUDA_OR_SKIP();
    ask_for(FAKE_CUBLAS);
    REQUIRE(open_fake());
    check_answer(FAKE_CUBLAS, "libcublas.so.13, version 130099");
    const int before = fake.products();
    multiply_all();
    CHECK(fake.products() >= before + 3 * 6); // at least one for each product, except PREC_F32 of halves
    products::strides();
    products::outer_products();
    const int after = fake.products();
    products::mul_mat(GGML_TYPE_F16, GGML_TYPE_F32, { 70, 8, 96, 1, 1, 1, 1 });   // few rows
    products::mul_mat(GGML_TYPE_Q8_0, GGML_TYPE_F32, { 70, 33, 96, 1, 1, 1, 1 }); // blocks
    products::mul_mat(GGML_TYPE_F16, GGML_TYPE_F32, { 70, 33, 96, 1, 1, 1, 1 }, true);
    products::mul_mat_id(GGML_TYPE_F16, 40, 30, 64, 3, false);
    ask_for("0");
    multiply_all();
    CHECK_INT(fake.products(), after);
    CHECK_INT(fake.handles(), 0);
}

static void the_library_is_found_by_name(void) { // the process has loaded it by now
    CUDA_OR_SKIP();
    REQUIRE(open_fake());
    setenv("LD_LIBRARY_PATH", ".", 1); // ignored
    check_answer("1", "libcublas.so.13, version 130099");
    unsetenv("LD_LIBRARY_PATH");
}

static void a_failure_leaves_our_kernels(void) {
    CUDA_OR_SKIP();
    REQUIRE(open_fake());
    const char * const calls[] = { "cublasCreate_v2", "cublasSetStream_v2", "cublasSetWorkspace_v2",
        "cublasGetVersion_v2" };
    for (int i = 0; i < 4; i++) {
        fake.fail(i, 3);
        const std::string answer = answer_to(FAKE_CUBLAS);
        CHECK_MSG(answer == std::string("cuBLAS: ") + calls[i] + ": status 3", "%s", answer.c_str());
        CHECK_INT(fake.handles(), 0);
    }
    gb_emu_fail("cudaMalloc", 0, GB_EMU_OUT_OF_MEMORY);
    ggml_backend_cuda_trim(0);
    const std::string answer = answer_to(FAKE_CUBLAS);
    CHECK_MSG(answer.find("no device memory") != std::string::npos, "%s", answer.c_str());
    fake.fail(4, 13); // of the product; the module's kernel computes it
    const int before = fake.products();
    products::mul_mat(GGML_TYPE_F16, GGML_TYPE_F32, { 70, 33, 96, 1, 1, 1, 1 });
    CHECK_INT(fake.products(), before);
    fake.fail(-1, 0);
}

// The same graph four times: launched, recorded, replayed. If disturbed, never recorded.
static void compute_four_times(bool disturbed) {
    ggml_backend_t cuda = cuda_open(0);
    ggml_context * ctx = ggml_init({ 1 << 17, NULL, true });
    ggml_tensor *w = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 16, 16),
                *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 16, 12), *y = x;
    for (int i = 0; i < 4; i++) {
        y = ggml_mul_mat(ctx, w, y);
    }
    ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, y);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, cuda);
    REQUIRE(buffer != NULL);
    std::vector<float> values(16 * 16), got(16 * 12);
    for (int i = 0; i < 16; i++) {
        values[(size_t) (i * 16 + i)] = 2; // doubles its input
    }
    ggml_backend_tensor_set(w, values.data(), 0, values.size() * sizeof(float));
    int calls = 0;
    for (int round = 0; round < 4; round++) {
        const int before = fake.products();
        for (float & v : got) {
            v = (float) round + 1;
        }
        ggml_backend_tensor_set(x, got.data(), 0, got.size() * sizeof(float));
        ggml_clear_error();
        gb_emu_set_neighbour(disturbed);
        CHECK_MSG(ggml_backend_graph_compute(cuda, graph), "%s", ggml_last_error());
        gb_emu_set_neighbour(0);
        CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS);
        ggml_backend_tensor_get(y, got.data(), 0, got.size() * sizeof(float));
        for (float v : got) {
            CHECK(v == 16 * ((float) round + 1));
        }
        calls = fake.products() - before;
        if (disturbed) {
            CHECK(calls >= 4);
        } else {
            CHECK_INT(calls, round < 2 ? 4 : 0); // replays make no calls
        }
    }
    CHECK(strstr(ggml_backend_cuda_get_cublas(cuda), "version") != NULL); // it is still used
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    ggml_backend_free(cuda);
}

static void products_are_recorded(void) {
    CUDA_OR_SKIP();
    REQUIRE(open_fake());
    ask_for(FAKE_CUBLAS);
    compute_four_times(false);
}

// The work of cuBLAS is captured. If another user of the device synchronizes, the capture breaks. Then nodes are
// launched one by one, with cuBLAS.
static void a_broken_capture_launches_node_by_node(void) {
    CUDA_OR_SKIP();
    REQUIRE(open_fake());
    ask_for(FAKE_CUBLAS);
    compute_four_times(true);
}

// A closed library would leave its registrations in the process.
static void the_library_stays_open(void) {
    CUDA_OR_SKIP();
    ask_for(FAKE_CUBLAS);
    ggml_backend_free(cuda_open(0));
    void * library = dlopen(FAKE_CUBLAS, RTLD_NOW | RTLD_NOLOAD);
    CHECK(library != NULL);
    if (library != NULL) {
        dlclose(library);
    }
}

TEST_MAIN(TEST(cublas_is_not_used_unless_requested), TEST(a_missing_library_is_reported), TEST(products_are_right),
    TEST(the_library_is_found_by_name), TEST(a_failure_leaves_our_kernels), TEST(products_are_recorded),
    TEST(a_broken_capture_launches_node_by_node), TEST(the_library_stays_open))

#else

static void the_library_of_the_system_computes(void) {
    CUDA_OR_SKIP();
    ask_for("1");
    ggml_backend_t cuda = cuda_open(0);
    REQUIRE(cuda != NULL);
    const std::string answer = ggml_backend_cuda_get_cublas(cuda);
    ggml_backend_free(cuda);
    if (answer.find("version") == std::string::npos) {
        SKIP("%s", answer.c_str());
    }
    multiply_all();
}

TEST_MAIN(TEST(cublas_is_not_used_unless_requested), TEST(the_library_of_the_system_computes))

#endif
