// The example backend linked into a program: the source that test_module.c loads as a module, unchanged.
#include "../../../examples/backend/mini.c"
#include "test.h"

static void registers_itself(void) {
    const size_t n = ggml_backend_reg_get_count();
    REQUIRE(ggml_backend_reg_find_by_name("MINI") >= n);
    CHECK(mini_register() == GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_reg_get_count() == n + 1 && ggml_backend_reg_find_by_name("MINI") == n);
    CHECK(ggml_backend_load_count() == 0); // no module was loaded
}

static void computes(void) {
    ggml_backend_t mini = ggml_backend_reg_init_backend_from_str("MINI");
    REQUIRE(mini != NULL);
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 16384, NULL, true });
    struct ggml_tensor * a = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 3);
    struct ggml_tensor * y = ggml_add(ctx, ggml_mul(ctx, a, a), a);
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    ggml_build_forward_expand(g, y);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, mini);
    REQUIRE(buffer != NULL);
    const float values[3] = { 1, -2, 5 };
    float result[3] = { 0 };
    CHECK(ggml_backend_tensor_set(a, values, 0, sizeof(values)) == GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_graph_compute(mini, g));
    CHECK(ggml_backend_tensor_get(y, result, 0, sizeof(result)) == GGML_STATUS_SUCCESS);
    CHECK(result[0] == 2 && result[1] == 2 && result[2] == 30);
    CHECK(!ggml_backend_supports_op(mini, ggml_sqrt(ctx, a)));
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    ggml_backend_free(mini);
}

TEST_MAIN(TEST(registers_itself), TEST(computes))
