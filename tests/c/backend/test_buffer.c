// Buffer types, buffers, tensor access, placing by hand, on a fake device that counts calls and fails on request.
#include "test_fake.h"

static struct ggml_context * context(void) { return ggml_init((struct ggml_init_params){ 10000, NULL, true }); }

static void types(void) {
    struct fake f;
    struct ggml_context * ctx = context();
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 10);
    fake_new(&f);
    CHECK_STR(ggml_backend_buft_name(&f.buft), "FAKE");
    CHECK_INT(ggml_backend_buft_get_alignment(&f.buft), 32);
    CHECK(ggml_backend_buft_get_max_size(&f.buft) == SIZE_MAX);
    CHECK_INT(ggml_backend_buft_get_alloc_size(&f.buft, t), 40);
    f.extra = 7;
    CHECK_INT(ggml_backend_buft_get_alloc_size(&f.buft, t), 47);
    f.extra = (size_t) -8; // a faulty hook that requests less than the tensor needs
    CHECK_INT(ggml_backend_buft_get_alloc_size(&f.buft, t), 40);
    CHECK(!ggml_backend_buft_is_host(&f.buft));
    f.host = true;
    CHECK(ggml_backend_buft_is_host(&f.buft));
    CHECK(ggml_backend_buft_supports_backend(&f.buft, &f.backend));
    f.buft.iface.is_host = NULL;
    f.buft.iface.get_max_size = NULL;
    f.buft.iface.get_alloc_size = NULL;
    CHECK(!ggml_backend_buft_is_host(&f.buft));
    CHECK(ggml_backend_buft_get_max_size(&f.buft) == SIZE_MAX);
    CHECK_INT(ggml_backend_buft_get_alloc_size(&f.buft, t), 40);
    CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS);
    f.alignment = 48;
    CHECK_INT(ggml_backend_buft_get_alignment(&f.buft), 0);
    CHECK_ERROR(GGML_STATUS_DEVICE_ERROR, "48");
    f.buft.iface.get_alignment = NULL;
    CHECK_INT(ggml_backend_buft_get_alignment(&f.buft), 0);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "get_alignment");
    CHECK(ggml_backend_buft_alloc_buffer(&f.buft, (size_t) 1 << 41) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "FAKE cannot allocate 2.0 TiB");
    f.buft.iface.get_max_size = fake_max_size;
    f.max_size = 100;
    CHECK(ggml_backend_buft_alloc_buffer(&f.buft, 101) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "101");
    ggml_free(ctx);
}

static GGML_CALL bool yes(ggml_backend_t backend) {
    (void) backend;
    return true;
}

static void host_memory_is_for_backends_that_compute_on_it(void) {
    struct fake f;
    const ggml_backend_buffer_type_t cpu = ggml_backend_cpu_buffer_type();
    fake_new(&f);
    CHECK(!ggml_backend_buft_supports_backend(cpu, &f.backend));
    f.backend.iface.computes_on_host = yes;
    CHECK(ggml_backend_buft_supports_backend(cpu, &f.backend));
    CHECK(!ggml_backend_buft_supports_backend(cpu, NULL));
    ggml_clear_error();
}

static void nothing_crashes_on_null(void) {
    CHECK_STR(ggml_backend_buft_name(NULL), "NULL");
    CHECK(ggml_backend_buft_alloc_buffer(NULL, 1) == NULL);
    CHECK_INT(ggml_backend_buft_get_alignment(NULL), 0);
    CHECK_INT(ggml_backend_buft_get_max_size(NULL), 0);
    CHECK_INT(ggml_backend_buft_get_alloc_size(NULL, NULL), 0);
    CHECK(!ggml_backend_buft_supports_backend(NULL, NULL));
    CHECK(!ggml_backend_buft_is_host(NULL));
    CHECK_STR(ggml_backend_buffer_name(NULL), "NULL");
    ggml_clear_error();
    ggml_backend_buffer_free(NULL);
    CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_buffer_get_base(NULL) == NULL);
    CHECK_INT(ggml_backend_buffer_get_size(NULL), 0);
    CHECK_INT(ggml_backend_buffer_init_tensor(NULL, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_buffer_get_alignment(NULL), 0);
    CHECK_INT(ggml_backend_buffer_get_max_size(NULL), 0);
    CHECK_INT(ggml_backend_buffer_get_alloc_size(NULL, NULL), 0);
    CHECK_INT(ggml_backend_buffer_clear(NULL, 0), GGML_STATUS_INVALID_ARGUMENT);
    CHECK(!ggml_backend_buffer_is_host(NULL));
    CHECK_INT(ggml_backend_buffer_set_usage(NULL, GGML_BACKEND_BUFFER_USAGE_ANY), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_buffer_get_usage(NULL), 0);
    CHECK(ggml_backend_buffer_get_type(NULL) == NULL);
    CHECK_INT(ggml_backend_buffer_reset(NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_tensor_set(NULL, NULL, 0, 1), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_tensor_get(NULL, NULL, 0, 1), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_tensor_alloc(NULL, NULL, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_view_init(NULL, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK(!ggml_backend_buffer_copy_tensor(NULL, NULL));
    CHECK(ggml_backend_buffer_init(NULL, (struct ggml_backend_buffer_i){ 0 }, NULL, 0) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'buft' is NULL");
}

static void buffers(void) {
    struct fake f;
    fake_new(&f);
    const ggml_backend_buffer_t b = ggml_backend_buft_alloc_buffer(&f.buft, 1000);
    REQUIRE(b);
    CHECK_STR(ggml_backend_buffer_name(b), "FAKE");
    CHECK_INT(ggml_backend_buffer_get_size(b), 1000);
    CHECK(ggml_backend_buffer_get_base(b) == b->context);
    CHECK_INT(ggml_backend_buffer_get_alignment(b), 32);
    CHECK(ggml_backend_buffer_get_max_size(b) == SIZE_MAX);
    CHECK(ggml_backend_buffer_get_type(b) == &f.buft);
    CHECK_INT(ggml_backend_buffer_clear(b, 0xab), GGML_STATUS_SUCCESS);
    CHECK_INT(((uint8_t *) b->context)[999], 0xab);
    CHECK_INT(ggml_backend_buffer_get_usage(b), GGML_BACKEND_BUFFER_USAGE_ANY);
    CHECK_INT(ggml_backend_buffer_set_usage(b, GGML_BACKEND_BUFFER_USAGE_WEIGHTS), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_backend_buffer_set_usage(b, (enum ggml_backend_buffer_usage) 7), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "7");
    CHECK_INT(ggml_backend_buffer_get_usage(b), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    CHECK_INT(ggml_backend_buffer_reset(b), GGML_STATUS_SUCCESS);
    CHECK_INT(f.n_reset, 1);
    b->iface.reset = NULL;
    b->iface.clear = NULL;
    CHECK_INT(ggml_backend_buffer_reset(b), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_backend_buffer_clear(b, 0), GGML_STATUS_UNSUPPORTED);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "'clear'");
    ggml_backend_buffer_free(b);
    CHECK_INT(f.n_buffers, 0);
}

static void placing(void) {
    struct fake f;
    struct ggml_context * ctx = context();
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 16);
    struct ggml_tensor * v = ggml_view_1d(ctx, t, 4, 8);
    fake_new(&f);
    ggml_set_name(t, "weights");
    ggml_set_name(v, "window");
    const ggml_backend_buffer_t b = ggml_backend_buft_alloc_buffer(&f.buft, 128);
    char * const base = ggml_backend_buffer_get_base(b);
    CHECK_INT(ggml_backend_view_init(b, v), GGML_STATUS_INVALID_STATE);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "'window' is a view of 'weights', which is in no buffer");
    CHECK_INT(ggml_backend_tensor_alloc(b, t, base + 65), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'weights': 64 bytes at");
    CHECK_INT(ggml_backend_tensor_alloc(b, t, base - 1), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_tensor_alloc(b, t, base + 200), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_tensor_alloc(b, t, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_tensor_alloc(b, v, base), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'window' is a view");
    f.extra = 1;
    CHECK_INT(ggml_backend_tensor_alloc(b, t, base + 64), GGML_STATUS_INVALID_ARGUMENT); // get_alloc_size adds padding
    f.extra = 0;
    f.fail_init = 1;
    CHECK_INT(ggml_backend_tensor_alloc(b, t, base + 64), GGML_STATUS_DEVICE_ERROR);
    CHECK_ERROR(GGML_STATUS_DEVICE_ERROR, "cannot set up 'weights'");
    CHECK(t->data == NULL && t->buffer == NULL);
    CHECK_INT(ggml_backend_tensor_alloc(b, t, base + 64), GGML_STATUS_SUCCESS);
    CHECK(t->data == base + 64 && t->buffer == b && f.n_init == 2);
    CHECK_INT(ggml_backend_tensor_alloc(b, t, base), GGML_STATUS_INVALID_STATE);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "placed already");
    CHECK_INT(ggml_backend_view_init(b, t), GGML_STATUS_INVALID_ARGUMENT);
    f.fail_init = 1;
    CHECK_INT(ggml_backend_view_init(b, v), GGML_STATUS_DEVICE_ERROR);
    CHECK(v->data == NULL && v->buffer == NULL);
    ggml_clear_error();
    CHECK_INT(ggml_backend_view_init(b, v), GGML_STATUS_SUCCESS);
    CHECK(v->data == base + 72 && v->buffer == b && f.n_init == 4);
    CHECK_INT(ggml_backend_view_init(b, v), GGML_STATUS_INVALID_STATE);
    const ggml_backend_buffer_t other = ggml_backend_buft_alloc_buffer(&f.buft, 128);
    struct ggml_tensor * w = ggml_view_1d(ctx, t, 4, 8);
    w->data = NULL;
    CHECK_INT(ggml_backend_view_init(other, w), GGML_STATUS_INVALID_ARGUMENT); // its source is in another buffer
    ggml_backend_buffer_free(b);
    ggml_backend_buffer_free(other);
    ggml_free(ctx);
}

static void access_through_buffers(void) {
    struct fake f;
    struct ggml_context * ctx = context();
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
    struct ggml_tensor * v = ggml_view_1d(ctx, t, 2, 8);
    const float in[4] = { 1, 2, 3, 4 };
    float out[4] = { 0 };
    fake_new(&f);
    ggml_set_name(t, "k");
    ggml_set_name(v, "part");
    CHECK_INT(ggml_backend_tensor_set(t, in, 0, 16), GGML_STATUS_INVALID_STATE);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "tensor 'k' is not allocated");
    CHECK_INT(ggml_backend_tensor_get(v, out, 0, 4), GGML_STATUS_INVALID_STATE);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "'part'");
    CHECK_INT(ggml_backend_tensor_set(t, in, 0, 0), GGML_STATUS_SUCCESS); // zero bytes: no hook is called
    const ggml_backend_buffer_t b = ggml_backend_buft_alloc_buffer(&f.buft, 64);
    REQUIRE(ggml_backend_tensor_alloc(b, t, ggml_backend_buffer_get_base(b)) == GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_backend_tensor_get(v, out, 0, 4), GGML_STATUS_INVALID_STATE);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "view of 'k' that was not bound");
    REQUIRE(ggml_backend_view_init(b, v) == GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_backend_tensor_set(t, in, 0, 16), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_backend_tensor_get(v, out, 4, 4), GGML_STATUS_SUCCESS);
    CHECK(out[0] == 4 && f.n_set == 1 && f.n_get == 1);
    const size_t bad[][2] = { { 0, 17 }, { 16, 1 }, { 17, 1 }, { SIZE_MAX, 2 }, { 1, SIZE_MAX } };
    for (size_t i = 0; i < GB_ARRAY_LEN(bad); i++) {
        CHECK_INT(ggml_backend_tensor_set(t, in, bad[i][0], bad[i][1]), GGML_STATUS_INVALID_ARGUMENT);
        CHECK_INT(ggml_backend_tensor_get(t, out, bad[i][0], bad[i][1]), GGML_STATUS_INVALID_ARGUMENT);
        CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "its 16 bytes");
    }
    CHECK_INT(ggml_backend_tensor_set(t, NULL, 0, 4), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'data' is NULL");
    f.fail_get = 1;
    CHECK_INT(ggml_backend_tensor_get(t, out, 0, 4), GGML_STATUS_DEVICE_ERROR);
    b->iface.get_tensor = NULL;
    CHECK_INT(ggml_backend_tensor_get(t, out, 0, 4), GGML_STATUS_UNSUPPORTED);
    ggml_backend_buffer_free(b);
    ggml_free(ctx);
}

static void plain_host_memory(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 10000, NULL, false });
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
    const float in[2] = { 5, 6 };
    float out = 0;
    REQUIRE(t && t->data && !t->buffer);
    CHECK_INT(ggml_backend_tensor_set(t, in, 8, 8), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_backend_tensor_get(t, &out, 12, 4), GGML_STATUS_SUCCESS);
    CHECK(out == 6 && ggml_get_data_f32(t)[2] == 5);
    CHECK_INT(ggml_backend_tensor_get(t, &out, 16, 4), GGML_STATUS_INVALID_ARGUMENT);
    ggml_free(ctx);
}

TEST_MAIN(TEST(types), TEST(host_memory_is_for_backends_that_compute_on_it), TEST(nothing_crashes_on_null),
    TEST(buffers), TEST(placing), TEST(access_through_buffers), TEST(plain_host_memory))
