// Element access: every type, any strides, every index checked. The oracle is a plain array with
// the same values.
#include "ggml-backend-impl.h"
#include "tensor/tensor.h"
#include "test.h"

static const enum ggml_type accessible[] = { GGML_TYPE_I8, GGML_TYPE_I16, GGML_TYPE_I32, GGML_TYPE_F16, GGML_TYPE_BF16,
    GGML_TYPE_F32 };

static void every_type_round_trips(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, false });
    for (int k = 0; k < 6; k++) {
        struct ggml_tensor * t = ggml_new_tensor_3d(ctx, accessible[k], 5, 3, 2);
        for (int i = 0; i < 30; i++) {
            CHECK_INT(ggml_set_i32_1d(t, i, i * 4 - 60), GGML_STATUS_SUCCESS);
        }
        for (int i = 0; i < 30; i++) {
            CHECK_INT(ggml_get_i32_1d(t, i), i * 4 - 60);
            CHECK(ggml_get_f32_1d(t, i) == (float) (i * 4 - 60));
            CHECK_INT(ggml_get_i32_nd(t, i % 5, i / 5 % 3, i / 15, 0), i * 4 - 60);
            CHECK(ggml_get_f32_nd(t, i % 5, i / 5 % 3, i / 15, 0) == (float) (i * 4 - 60));
        }
        CHECK_INT(ggml_set_f32_nd(t, 4, 2, 1, 0, -2.75f), GGML_STATUS_SUCCESS);
        CHECK(ggml_get_f32_1d(t, 29) == (k < 3 ? -2.0f : -2.75f));
        CHECK_INT(ggml_get_i32_1d(t, 29), -2); // rounded towards zero
        CHECK_INT(ggml_set_i32_nd(t, 0, 1, 0, 0, 77), GGML_STATUS_SUCCESS);
        CHECK_INT(ggml_get_i32_1d(t, 5), 77);

        CHECK(ggml_set_f32(t, 1.5f) == t);
        for (int i = 0; i < 30; i++) {
            CHECK(ggml_get_f32_1d(t, i) == (k < 3 ? 1.0f : 1.5f));
        }
        CHECK(ggml_set_i32(t, -9) == t);
        for (int i = 0; i < 30; i++) {
            CHECK_INT(ggml_get_i32_1d(t, i), -9);
        }
        CHECK(ggml_set_zero(t) == t);
        for (int i = 0; i < 30; i++) {
            CHECK_INT(ggml_get_i32_1d(t, i), 0);
        }
    }
    ggml_free(ctx);
}

static void limits(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, false });
    struct ggml_tensor * i32 = ggml_new_i32(ctx, INT32_MIN);
    struct ggml_tensor * f32 = ggml_new_f32(ctx, 0);
    struct ggml_tensor * i8 = ggml_new_tensor_1d(ctx, GGML_TYPE_I8, 1);
    CHECK_INT(ggml_get_i32_1d(i32, 0), INT32_MIN);
    ggml_set_i32_1d(i32, 0, INT32_MAX);
    CHECK_INT(ggml_get_i32_1d(i32, 0), INT32_MAX);
    ggml_set_f32_1d(i32, 0, 1e20f);
    CHECK_INT(ggml_get_i32_1d(i32, 0), INT32_MAX);
    ggml_set_f32_1d(f32, 0, -INFINITY);
    CHECK(ggml_get_f32_1d(f32, 0) == -INFINITY);
    CHECK_INT(ggml_get_i32_1d(f32, 0), INT32_MIN);
    ggml_set_f32_1d(f32, 0, NAN);
    CHECK(isnan(ggml_get_f32_1d(f32, 0)));
    CHECK_INT(ggml_get_i32_1d(f32, 0), 0);
    ggml_set_i32_1d(i8, 0, 1000);
    CHECK_INT(ggml_get_i32_1d(i8, 0), 127);
    ggml_free(ctx);
}

static void strided_views(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, false });
    struct ggml_tensor * base = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 6, 5);
    for (int i = 0; i < 30; i++) {
        ggml_set_f32_1d(base, i, (float) i);
    }
    // rows 1..3, columns 2..4, transposed: element (a, b) is base(row 1 + a, column 2 + b)
    const int64_t ne[] = { 3, 3 };
    const size_t nb[] = { 24, 4, 72, 72 };
    struct ggml_tensor * v = gb_tensor_view(ctx, base, 2, ne, nb, 24 + 8, "test");
    REQUIRE(v != NULL);
    for (int a = 0; a < 3; a++) {
        for (int b = 0; b < 3; b++) {
            CHECK(ggml_get_f32_nd(v, a, b, 0, 0) == (float) ((1 + a) * 6 + 2 + b));
            CHECK(ggml_get_f32_1d(v, a + 3 * b) == (float) ((1 + a) * 6 + 2 + b));
        }
    }
    ggml_set_zero(v);
    for (int i = 0; i < 30; i++) {
        const bool inside = i / 6 >= 1 && i / 6 <= 3 && i % 6 >= 2 && i % 6 <= 4;
        CHECK(ggml_get_f32_1d(base, i) == (inside ? 0.0f : (float) i));
    }
    ggml_set_f32(v, -1);
    for (int i = 0; i < 30; i++) {
        const bool inside = i / 6 >= 1 && i / 6 <= 3 && i % 6 >= 2 && i % 6 <= 4;
        CHECK(ggml_get_f32_1d(base, i) == (inside ? -1.0f : (float) i));
    }
    // at an odd address
    struct ggml_tensor * bytes = ggml_new_tensor_1d(ctx, GGML_TYPE_I8, 64);
    struct ggml_tensor odd = *ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
    odd.data = (char *) bytes->data + 3;
    ggml_set_f32(&odd, 2.5f);
    CHECK(ggml_get_f32_1d(&odd, 3) == 2.5f);

    // quantized tensors can be set to zero, as a whole or by rows
    struct ggml_tensor * q = ggml_new_tensor_2d(ctx, GGML_TYPE_Q4_0, 64, 4);
    memset(q->data, 1, ggml_nbytes(q));
    const int64_t half[] = { 32, 4 };
    const size_t rows[] = { 18, 36, 144, 144 };
    struct ggml_tensor * left = gb_tensor_view(ctx, q, 2, half, rows, 0, "test");
    CHECK(ggml_set_zero(left) == left);
    for (int i = 0; i < 144; i++) {
        CHECK_INT(((char *) q->data)[i], i % 36 >= 18);
    }
    CHECK(ggml_set_zero(q) == q);
    for (int i = 0; i < 144; i++) {
        CHECK_INT(((char *) q->data)[i], 0);
    }
    ggml_free(ctx);
}

static void unravel(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, true });
    struct ggml_tensor * t = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, 3, 4, 5, 6);
    int64_t flat = 0;
    for (int64_t d = 0; d < 6; d++) {
        for (int64_t c = 0; c < 5; c++) {
            for (int64_t b = 0; b < 4; b++) {
                for (int64_t a = 0; a < 3; a++, flat++) {
                    int64_t i0 = -1, i1 = -1, i2 = -1, i3 = -1;
                    ggml_unravel_index(t, flat, &i0, &i1, &i2, &i3);
                    CHECK(i0 == a && i1 == b && i2 == c && i3 == d);
                }
            }
        }
    }
    int64_t i2 = -1;
    ggml_unravel_index(t, 359, NULL, NULL, &i2, NULL);
    CHECK_INT(i2, 4);
    ggml_unravel_index(t, 360, NULL, NULL, &i2, NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "360 is out of range");
    CHECK_INT(i2, 4);
    ggml_unravel_index(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 0), 0, &i2, NULL, NULL, NULL); // no division by zero
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "out of range");
    ggml_free(ctx);
}

static void refused(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, false });
    struct ggml_tensor * t = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 3, 2);
    ggml_set_f32(t, 5);
    CHECK(ggml_get_f32_1d(t, 6) == 0.0f);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "index 6 is out of range");
    CHECK(ggml_get_i32_1d(t, -1) == 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "index -1");
    CHECK_INT(ggml_set_f32_1d(t, 6, 1), GGML_STATUS_INVALID_ARGUMENT);
    CHECK(ggml_get_f32_nd(t, 0, 2, 0, 0) == 0.0f);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "[0, 2, 0, 0] is out of range in dimension 1");
    CHECK_INT(ggml_set_i32_nd(t, 0, 0, 0, 1, 1), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_set_f32_nd(t, -1, 0, 0, 0, 1), GGML_STATUS_INVALID_ARGUMENT);
    for (int i = 0; i < 6; i++) {
        CHECK(ggml_get_f32_1d(t, i) == 5.0f);
    }

    const enum ggml_type others[] = { GGML_TYPE_Q4_0, GGML_TYPE_I64, GGML_TYPE_F64 };
    for (int i = 0; i < 3; i++) {
        struct ggml_tensor * o = ggml_new_tensor_1d(ctx, others[i], 32);
        CHECK(ggml_get_f32_1d(o, 0) == 0.0f);
        CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, ggml_type_name(others[i]));
        CHECK(ggml_set_f32(o, 1) == NULL && ggml_set_i32(o, 1) == NULL);
        CHECK_INT(ggml_set_i32_1d(o, 0, 1), GGML_STATUS_INVALID_ARGUMENT);
    }
    ggml_set_no_alloc(ctx, true);
    struct ggml_tensor * n = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
    CHECK(ggml_get_f32_1d(n, 0) == 0.0f);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "no data");
    CHECK(ggml_set_zero(n) == NULL && ggml_set_f32(n, 1) == NULL);
    CHECK_INT(ggml_set_f32_1d(n, 0, 1), GGML_STATUS_INVALID_STATE);
    CHECK(ggml_get_f32_1d(NULL, 0) == 0.0f && ggml_set_zero(NULL) == NULL);
    ggml_clear_error();
    CHECK_INT(ggml_set_i32_1d(NULL, 0, 1), GGML_STATUS_INVALID_ARGUMENT);

    CHECK(ggml_get_data(t) == t->data && ggml_get_data_f32(t) == t->data && ggml_get_data(NULL) == NULL);
    ggml_clear_error();
    CHECK(ggml_get_data_f32(ggml_new_i32(ctx, 1)) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "needs type f32, has i32");
    ggml_free(ctx);
}

static GGML_CALL bool yes(ggml_backend_buffer_type_t buft) {
    (void) buft;
    return true;
}

static GGML_CALL bool no(ggml_backend_buffer_type_t buft) {
    (void) buft;
    return false;
}

static GGML_CALL void * base_of(ggml_backend_buffer_t buffer) { return buffer; }

static void device_memory(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, false });
    struct ggml_tensor * t = ggml_set_name(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4), "w");
    struct ggml_tensor * v = ggml_view_tensor(ctx, t);
    ggml_set_f32(t, 3);
    struct ggml_backend_buffer_type buft = { .iface = { .is_host = NULL } };
    struct ggml_backend_buffer buffer = { .iface = { .get_base = base_of }, .buft = &buft };
    t->buffer = &buffer;
    CHECK(ggml_get_f32_1d(t, 0) == 0.0f);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "'w' is not in host memory");
    CHECK(ggml_get_f32_1d(v, 0) == 0.0f); // a view is in the memory of its root
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "not in host memory");
    buft.iface.is_host = no;
    CHECK(ggml_set_zero(t) == NULL && ggml_set_f32(t, 1) == NULL);
    buft.iface.is_host = yes;
    CHECK(ggml_get_f32_1d(t, 0) == 3.0f && ggml_get_f32_1d(v, 0) == 3.0f);
    buffer.iface.get_base = NULL; // its memory was freed
    CHECK(ggml_get_f32_1d(t, 0) == 0.0f);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "'w' is not in host memory");
    buffer.iface.get_base = base_of;
    float elsewhere[4] = { 7, 7, 7, 7 };
    t->data = elsewhere; // v has its old address
    CHECK(ggml_get_f32_1d(t, 0) == 7.0f && ggml_get_f32_1d(v, 0) == 0.0f);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "is a view of 'w', which has moved");
    ggml_free(ctx);
}

TEST_MAIN(TEST(every_type_round_trips), TEST(limits), TEST(strided_views), TEST(unravel), TEST(refused),
    TEST(device_memory))
