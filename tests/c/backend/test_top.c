// The largest elements of rows, against a sort: any k, ties, NaN, infinities, strides, any address,
// memory of a device. Also tests bad arguments.
#include "test_fake.h"

struct element {
    float value;
    int32_t id;
};

static int by_value(const void * a, const void * b) { // NaN last, then the first of equal ones first
    const struct element *x = a, *y = b;
    const bool x_nan = isnan(x->value), y_nan = isnan(y->value);
    if (x_nan != y_nan) {
        return x_nan ? 1 : -1;
    }
    if (!x_nan && x->value != y->value) {
        return x->value > y->value ? -1 : 1;
    }
    return x->id < y->id ? -1 : 1;
}

static float random_value(int kind) {
    static const float special[] = { NAN, INFINITY, -INFINITY, 0.0f, -0.0f };
    if (kind > 1 && test_random_int(0, 9) < kind) {
        return special[test_random_int(0, 4)];
    }
    return kind > 0 ? (float) test_random_int(-3, 3) : test_random_float(-5, 5);
}

static void check_rows(const struct ggml_tensor * t, const float * data, int64_t stride, int k) {
    const int64_t n = t->ne[0], rows = ggml_nrows(t);
    struct element * sorted = malloc((size_t) n * sizeof(*sorted));
    int32_t * ids = malloc((size_t) (rows * k) * sizeof(*ids));
    float * values = malloc((size_t) (rows * k) * sizeof(*values));
    CHECK_INT(ggml_backend_tensor_get_top(t, k, ids, values), GGML_STATUS_SUCCESS);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < n; i++) {
            sorted[i] = (struct element){ data[r * stride + i], (int32_t) i };
        }
        qsort(sorted, (size_t) n, sizeof(*sorted), by_value);
        int wrong = 0;
        for (int i = 0; i < k; i++) {
            wrong += ids[r * k + i] != sorted[i].id || memcmp(&values[r * k + i], &sorted[i].value, sizeof(float)) != 0;
        }
        CHECK_MSG(wrong == 0, "row %d of %d, %d of %d: %d are wrong", (int) r, (int) rows, k, (int) n, wrong);
    }
    free(sorted);
    free(ids);
    free(values);
}

static void as_a_sort(void) {
    for (int seed = 1; seed <= 300; seed++) {
        test_seed = (uint64_t) seed * 1000;
        struct ggml_context * ctx = ggml_init((struct ggml_init_params){ (size_t) 1 << 20, NULL, false });
        const int64_t n = seed % 4 == 0 ? test_random_int(1, 5) : test_random_int(1, 700), rows = test_random_int(1, 3);
        const int64_t gap = seed % 3 == 0 ? test_random_int(1, 9) : 0;
        struct ggml_tensor * whole = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n + gap, rows);
        struct ggml_tensor * t = gap > 0 ? ggml_view_2d(ctx, whole, n, rows, whole->nb[1], 0) : whole;
        const int kind = (int) test_random_int(0, 3);
        for (int64_t i = 0; i < ggml_nelements(whole); i++) {
            ((float *) whole->data)[i] = random_value(kind);
        }
        check_rows(t, whole->data, n + gap, (int) test_random_int(1, n));
        check_rows(t, whole->data, n + gap, (int) n);
        check_rows(t, whole->data, n + gap, 1);
        ggml_free(ctx);
    }
}

static void in_memory_of_a_device(void) {
    struct fake f;
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 10000, NULL, true });
    struct ggml_tensor * t = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 100, 3);
    float data[300];
    fake_new(&f);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors_from_buft(ctx, &f.buft);
    for (int i = 0; i < 300; i++) {
        data[i] = test_random_float(-1, 1);
    }
    CHECK_INT(ggml_backend_tensor_set(t, data, 0, sizeof(data)), GGML_STATUS_SUCCESS);
    check_rows(t, data, 100, 7);
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

static void at_any_address(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 10000, NULL, true });
    struct ggml_tensor * t = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 100, 3);
    float data[300];
    _Alignas(float) char memory[sizeof(data) + 1];
    for (int i = 0; i < 300; i++) {
        data[i] = test_random_float(-1, 1);
    }
    memcpy(memory + 1, data, sizeof(data));
    t->data = memory + 1;
    check_rows(t, data, 100, 7);
    ggml_free(ctx);
}

static void errors(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 10000, NULL, false });
    struct ggml_tensor *t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 10),
                       *half = ggml_new_tensor_1d(ctx, GGML_TYPE_F16, 10),
                       *matrix = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 4, 5), *across = ggml_transpose(ctx, matrix),
                       *empty = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 3, 0);
    int32_t ids[10];
    float values[10];
    CHECK_INT(ggml_backend_tensor_get_top(NULL, 1, ids, values), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_tensor_get_top(t, 1, NULL, values), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_tensor_get_top(t, 1, ids, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_tensor_get_top(t, 0, ids, values), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_tensor_get_top(t, -1, ids, values), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_tensor_get_top(t, 11, ids, values), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "1 to 10");
    CHECK_INT(ggml_backend_tensor_get_top(half, 1, ids, values), GGML_STATUS_UNSUPPORTED);
    CHECK_INT(ggml_backend_tensor_get_top(across, 1, ids, values), GGML_STATUS_UNSUPPORTED);
    CHECK_INT(ggml_backend_tensor_get_top(empty, 1, ids, values), GGML_STATUS_SUCCESS);
    struct ggml_context * no_alloc = ggml_init((struct ggml_init_params){ 10000, NULL, true });
    struct ggml_tensor * wide = ggml_new_tensor_1d(no_alloc, GGML_TYPE_F32, (int64_t) INT32_MAX + 1);
    CHECK_INT(ggml_backend_tensor_get_top(wide, 1, ids, values), GGML_STATUS_UNSUPPORTED);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "has 2147483648 elements, but ids are int32");
    ggml_free(no_alloc);
    t->data = NULL;
    CHECK(ggml_backend_tensor_get_top(t, 1, ids, values) != GGML_STATUS_SUCCESS);
    ggml_free(ctx);
}

TEST_MAIN(TEST(as_a_sort), TEST(in_memory_of_a_device), TEST(at_any_address), TEST(errors))
