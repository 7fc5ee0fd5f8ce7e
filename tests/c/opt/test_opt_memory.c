// The optimizers when allocations fail: every failure is reported, and nothing leaks.
#include "base/mem.h"
#include "test.h"

static bool scenario(enum ggml_opt_type type, bool private_pool) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, false });
    struct ggml_tensor * x = ctx ? ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4) : NULL;
    bool ok = false;
    if (x != NULL && ggml_set_f32(x, 2.0f) != NULL && ggml_set_param(ctx, x) == GGML_STATUS_SUCCESS) {
        struct ggml_tensor * square = ggml_sqr(ctx, x);
        struct ggml_tensor * loss = square ? ggml_sum(ctx, square) : NULL;
        struct ggml_opt_params params = ggml_opt_default_params(type);
        params.print_forward_graph = params.print_backward_graph = false;
        params.past = 2;
        params.adam.n_iter = params.lbfgs.n_iter = 2;
        ggml_clear_error();
        const struct ggml_tensor * grad = x->grad;
        if (loss != NULL) {
            const enum ggml_opt_result result = ggml_opt(private_pool ? NULL : ctx, params, loss);
            ok = result == GGML_OPT_OK || result == GGML_OPT_DID_NOT_CONVERGE;
            CHECK_MSG(ok || ggml_last_status() == GGML_STATUS_ALLOC_FAILED, "result %d: %s", (int) result,
                ggml_last_error());
            CHECK(!private_pool || x->grad == grad);
        }
    }
    ggml_free(ctx);
    return ok;
}

static void failing_allocations(void) {
    const int64_t before = gb_test_live_allocs();
    for (int variant = 0; variant < 4; variant++) {
        bool ok = false;
        int n = 1;
        for (; !ok && n < 2000; n++) {
            gb_test_fail_alloc(n, false);
            ok = scenario((enum ggml_opt_type)(variant % 2), variant >= 2);
            gb_test_fail_alloc(0, false);
            CHECK_INT(gb_test_live_allocs(), before);
        }
        CHECK_MSG(ok && n > 10, "variant %d: %d allocations", variant, n - 2);
    }
}

TEST_MAIN(TEST(failing_allocations))
