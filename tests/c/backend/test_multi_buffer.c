// Several buffers behind one handle.
#include "test_fake.h"

static void speaks_for_its_parts(void) {
    struct fake f;
    fake_new(&f);
    f.buft.context = (void *) "first";
    ggml_backend_buffer_t parts[] = { ggml_backend_buft_alloc_buffer(&f.buft, 100),
        ggml_backend_buft_alloc_buffer(&f.buft, 50) };
    ggml_backend_buffer_t second = parts[1];
    ggml_backend_buffer_t multi = ggml_backend_multi_buffer_alloc_buffer(parts, 2);
    REQUIRE(multi);
    parts[1] = NULL; // the multi-buffer has its own array
    CHECK(ggml_backend_buffer_is_multi_buffer(multi) && !ggml_backend_buffer_is_multi_buffer(parts[0]));
    CHECK_INT(ggml_backend_buffer_get_size(multi), 150);
    CHECK_STR(ggml_backend_buffer_name(multi), "first");
    CHECK(ggml_backend_buffer_get_type(multi) == &f.buft);
    CHECK(ggml_backend_buffer_get_base(multi) == NULL);
    CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_backend_buffer_clear(multi, 7), GGML_STATUS_SUCCESS);
    CHECK(f.n_clear == 2 && ((char *) second->context)[49] == 7);
    CHECK_INT(ggml_backend_buffer_reset(multi), GGML_STATUS_SUCCESS);
    CHECK_INT(f.n_reset, 2);
    CHECK_INT(ggml_backend_buffer_set_usage(multi, GGML_BACKEND_BUFFER_USAGE_WEIGHTS), GGML_STATUS_SUCCESS);
    CHECK_INT(second->usage, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    CHECK_INT(ggml_backend_multi_buffer_set_usage(multi, GGML_BACKEND_BUFFER_USAGE_ANY), GGML_STATUS_SUCCESS);
    CHECK(second->usage == GGML_BACKEND_BUFFER_USAGE_ANY && multi->usage == GGML_BACKEND_BUFFER_USAGE_ANY);
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1000, NULL, true });
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
    CHECK_INT(ggml_backend_tensor_alloc(multi, t, second->context), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "multi-buffer");
    CHECK(t->data == NULL);
    ggml_free(ctx);
    ggml_backend_buffer_free(multi);
    CHECK_INT(f.n_buffers, 0);
}

static void bad_arguments(void) {
    struct fake f;
    fake_new(&f);
    ggml_backend_buffer_t parts[] = { ggml_backend_buft_alloc_buffer(&f.buft, 100), NULL };
    CHECK(ggml_backend_multi_buffer_alloc_buffer(NULL, 1) == NULL);
    CHECK(ggml_backend_multi_buffer_alloc_buffer(parts, 0) == NULL);
    CHECK(ggml_backend_multi_buffer_alloc_buffer(parts, 2) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "buffers[1] is NULL");
    CHECK(!ggml_backend_buffer_is_multi_buffer(NULL));
    CHECK_INT(ggml_backend_multi_buffer_set_usage(parts[0], GGML_BACKEND_BUFFER_USAGE_ANY),
        GGML_STATUS_INVALID_ARGUMENT);
    parts[1] = ggml_backend_buft_alloc_buffer(&f.buft, 100);
    parts[1]->size = SIZE_MAX;
    CHECK(ggml_backend_multi_buffer_alloc_buffer(parts, 2) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "overflow");
    CHECK_INT(f.n_buffers, 2); // failed calls do not take the buffers
    ggml_backend_buffer_free(parts[0]);
    ggml_backend_buffer_free(parts[1]);
}

static void out_of_memory(void) {
    struct fake f;
    fake_new(&f);
    ggml_backend_buffer_t part = ggml_backend_buft_alloc_buffer(&f.buft, 100);
    const int64_t live = gb_test_live_allocs();
    for (int n = 1; n <= 2; n++) {
        gb_test_fail_alloc(n, false);
        CHECK(ggml_backend_multi_buffer_alloc_buffer(&part, 1) == NULL);
        CHECK(gb_test_alloc_failed());
        CHECK_INT(gb_test_live_allocs(), live);
    }
    gb_test_fail_alloc(0, false);
    ggml_backend_buffer_free(part);
}

TEST_MAIN(TEST(speaks_for_its_parts), TEST(bad_arguments), TEST(out_of_memory))
