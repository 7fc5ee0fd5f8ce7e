// GGUF files: what is written is read back; what is broken is refused with a message, whatever is broken.
#include "test.h"

#include "base/mem.h"
#include "gguf.h"

static const char * const path = "test_gguf.tmp.gguf";

static struct gguf_context * sample(struct ggml_context ** ctx) {
    struct ggml_init_params params = { 1 << 16, NULL, false };
    *ctx                           = ggml_init(params);
    struct gguf_context * g        = gguf_init_empty();
    if (*ctx == NULL || g == NULL) {
        gguf_free(g);
        return NULL;
    }
    const int16_t        numbers[3] = { -1, 2, 300 };
    const char *         words[3]   = { "", "z\xc3\xbcrich", "end" };
    struct ggml_tensor * a          = ggml_new_tensor_2d(*ctx, GGML_TYPE_F32, 5, 3);
    struct ggml_tensor * b          = ggml_new_tensor_1d(*ctx, GGML_TYPE_F16, 7);
    bool ok = a && b && gguf_set_val_u8(g, "k.u8", 200) == 0 && gguf_set_val_i8(g, "k.i8", -100) == 0 &&
              gguf_set_val_u16(g, "k.u16", 60000) == 0 && gguf_set_val_i16(g, "k.i16", -30000) == 0 &&
              gguf_set_val_u32(g, "k.u32", 4000000000u) == 0 && gguf_set_val_i32(g, "k.i32", -5) == 0 &&
              gguf_set_val_f32(g, "k.f32", 1.5f) == 0 && gguf_set_val_u64(g, "k.u64", UINT64_MAX) == 0 &&
              gguf_set_val_i64(g, "k.i64", INT64_MIN) == 0 && gguf_set_val_f64(g, "k.f64", 0.1) == 0 &&
              gguf_set_val_bool(g, "k.bool", true) == 0 && gguf_set_val_str(g, "k.str", "text") == 0 &&
              gguf_set_arr_data(g, "k.arr", GGUF_TYPE_INT16, numbers, 3) == 0 &&
              gguf_set_arr_str(g, "k.strs", words, 3) == 0;
    for (int i = 0; ok && i < 15; i++) {
        ggml_set_f32_1d(a, i, (float) i);
    }
    for (int i = 0; ok && i < 7; i++) {
        ggml_set_f32_1d(b, i, (float) -i);
    }
    ok =
        ok && gguf_add_tensor(g, ggml_set_name(a, "first")) == 0 && gguf_add_tensor(g, ggml_set_name(b, "second")) == 0;
    if (!ok) {
        gguf_free(g);
        return NULL;
    }
    return g;
}

static void check_sample(const struct gguf_context * g) {
    CHECK_INT(gguf_get_version(g), 3);
    CHECK_INT(gguf_get_n_kv(g), 14);
    CHECK_INT(gguf_get_val_u8(g, gguf_find_key(g, "k.u8")), 200);
    CHECK_INT(gguf_get_val_i8(g, gguf_find_key(g, "k.i8")), -100);
    CHECK_INT(gguf_get_val_u16(g, gguf_find_key(g, "k.u16")), 60000);
    CHECK_INT(gguf_get_val_i16(g, gguf_find_key(g, "k.i16")), -30000);
    CHECK_INT(gguf_get_val_u32(g, gguf_find_key(g, "k.u32")), 4000000000u);
    CHECK_INT(gguf_get_val_i32(g, gguf_find_key(g, "k.i32")), -5);
    CHECK(gguf_get_val_f32(g, gguf_find_key(g, "k.f32")) == 1.5f);
    CHECK(gguf_get_val_u64(g, gguf_find_key(g, "k.u64")) == UINT64_MAX);
    CHECK(gguf_get_val_i64(g, gguf_find_key(g, "k.i64")) == INT64_MIN);
    CHECK(gguf_get_val_f64(g, gguf_find_key(g, "k.f64")) == 0.1);
    CHECK(gguf_get_val_bool(g, gguf_find_key(g, "k.bool")));
    CHECK_STR(gguf_get_val_str(g, gguf_find_key(g, "k.str")), "text");
    CHECK(*(const uint16_t *) gguf_get_val_data(g, gguf_find_key(g, "k.u16")) == 60000);
    const int arr = gguf_find_key(g, "k.arr"), strs = gguf_find_key(g, "k.strs");
    CHECK_INT(gguf_get_kv_type(g, arr), GGUF_TYPE_ARRAY);
    CHECK_INT(gguf_get_arr_type(g, arr), GGUF_TYPE_INT16);
    CHECK_INT(gguf_get_arr_n(g, arr), 3);
    CHECK_INT(((const int16_t *) gguf_get_arr_data(g, arr))[2], 300);
    CHECK_INT(gguf_get_arr_n(g, strs), 3);
    CHECK_STR(gguf_get_arr_str(g, strs, 0), "");
    CHECK_STR(gguf_get_arr_str(g, strs, 1), "z\xc3\xbcrich");
    CHECK_INT(gguf_get_n_tensors(g), 2);
    CHECK_INT(gguf_find_tensor(g, "second"), 1);
    CHECK_INT(gguf_find_tensor(g, "third"), -1);
    CHECK_STR(gguf_get_tensor_name(g, 0), "first");
    CHECK_INT(gguf_get_tensor_type(g, 1), GGML_TYPE_F16);
    CHECK_INT(gguf_get_tensor_offset(g, 0), 0);
    CHECK_INT(gguf_get_tensor_offset(g, 1), 64); // 60 bytes, padded to 32
}

static void round_trip(void) {
    struct ggml_context * ctx;
    struct gguf_context * g = sample(&ctx);
    REQUIRE(g);
    check_sample(g);
    CHECK_INT(gguf_write_to_file(g, path, false), GGML_STATUS_SUCCESS);

    struct ggml_context * loaded = NULL;
    struct gguf_context * r      = gguf_init_from_file(path, (struct gguf_init_params){ false, &loaded });
    REQUIRE(r);
    check_sample(r);
    CHECK_INT(gguf_get_data_offset(r), gguf_get_meta_size(g));
    struct ggml_tensor * a = ggml_get_tensor(loaded, "first");
    struct ggml_tensor * b = ggml_get_tensor(loaded, "second");
    REQUIRE(a && b);
    CHECK_INT(a->ne[0], 5);
    CHECK_INT(a->ne[1], 3);
    CHECK(ggml_get_f32_1d(a, 14) == 14.0f && ggml_get_f32_1d(b, 6) == -6.0f);
    CHECK((char *) a->data == (char *) gguf_get_data(r));

    struct ggml_context * shapes = NULL; // tensors without data
    struct gguf_context * m      = gguf_init_from_file(path, (struct gguf_init_params){ true, &shapes });
    REQUIRE(m);
    CHECK(ggml_get_first_tensor(shapes)->data == NULL && gguf_get_data(m) == NULL);

    struct gguf_context * e = gguf_init_empty();
    CHECK_INT(gguf_set_kv(e, r), GGML_STATUS_SUCCESS);
    CHECK_INT(gguf_get_n_kv(e), 14);
    CHECK_STR(gguf_get_arr_str(e, gguf_find_key(e, "k.strs"), 2), "end");
    gguf_free(e);
    gguf_free(m);
    gguf_free(r);
    gguf_free(g);
    ggml_free(shapes);
    ggml_free(loaded);
    ggml_free(ctx);
    remove(path);
}

static void alignment_is_honoured(void) {
    struct ggml_context * ctx;
    struct gguf_context * g = sample(&ctx);
    REQUIRE(g);
    CHECK_INT(gguf_set_val_u32(g, "general.alignment", 256), GGML_STATUS_SUCCESS);
    CHECK_INT(gguf_get_alignment(g), 256);
    CHECK_INT(gguf_get_tensor_offset(g, 1), 256);
    CHECK_INT(gguf_get_meta_size(g) % 256, 0);
    const uint32_t bad[] = { 0, 3, 48, 1u << 21, UINT32_MAX };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CHECK(gguf_set_val_u32(g, "general.alignment", bad[i]) != GGML_STATUS_SUCCESS);
        CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "general.alignment");
    }
    CHECK(gguf_set_val_u64(g, "general.alignment", 64) != GGML_STATUS_SUCCESS);
    CHECK_INT(gguf_get_alignment(g), 256);
    CHECK_INT(gguf_write_to_file(g, path, false), GGML_STATUS_SUCCESS);
    struct ggml_context * loaded = NULL;
    struct gguf_context * r      = gguf_init_from_file(path, (struct gguf_init_params){ false, &loaded });
    REQUIRE(r);
    CHECK_INT(gguf_get_alignment(r), 256);
    CHECK(ggml_get_f32_1d(ggml_get_tensor(loaded, "second"), 3) == -3.0f);
    gguf_free(r);
    gguf_free(g);
    ggml_free(loaded);
    ggml_free(ctx);
    remove(path);
}

static void wrong_use(void) {
    struct ggml_context * ctx;
    struct gguf_context * g = sample(&ctx);
    REQUIRE(g);
    CHECK_INT(gguf_get_val_u8(g, 99), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "out of range");
    CHECK_INT(gguf_get_val_u8(g, gguf_find_key(g, "k.str")), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'k.str' is of type str");
    CHECK(gguf_get_arr_str(g, gguf_find_key(g, "k.strs"), 3) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "index 3");
    CHECK(gguf_get_arr_data(g, gguf_find_key(g, "k.strs")) == NULL);
    CHECK(gguf_get_tensor_name(g, -1) == NULL && gguf_get_key(NULL, 0) == NULL && gguf_get_n_kv(NULL) == 0);
    CHECK(gguf_set_arr_data(g, "x", GGUF_TYPE_STRING, "abc", 1) != GGML_STATUS_SUCCESS);
    CHECK(gguf_set_val_str(g, "", "x") != GGML_STATUS_SUCCESS);
    CHECK(gguf_add_tensor(g, ggml_get_tensor(ctx, "first")) != GGML_STATUS_SUCCESS);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "named 'first' already");
    CHECK(gguf_set_tensor_type(g, "absent", GGML_TYPE_F16) != GGML_STATUS_SUCCESS);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'absent'");
    CHECK_INT(gguf_set_tensor_type(g, "first", GGML_TYPE_F16), GGML_STATUS_SUCCESS);
    CHECK(gguf_write_to_file(g, path, false) != GGML_STATUS_SUCCESS);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "'first' has 60 bytes, its type f16 needs 30");
    CHECK(gguf_write_to_file(g, "/no/such/folder/x.gguf", true) != GGML_STATUS_SUCCESS);
    CHECK(gguf_init_from_file("/no/such/file", (struct gguf_init_params){ true, NULL }) == NULL);
    CHECK_ERROR(GGML_STATUS_IO_ERROR, "/no/such/file");
    gguf_free(g);
    ggml_free(ctx);
}

static bool write_bytes(const uint8_t * bytes, size_t n) {
    FILE * f  = fopen(path, "wb");
    bool   ok = f && fwrite(bytes, 1, n, f) == n;
    return f && fclose(f) == 0 && ok;
}

static struct gguf_context * load(struct ggml_context ** ctx) {
    return gguf_init_from_file(path, (struct gguf_init_params){ false, ctx });
}

static uint8_t * sample_bytes(size_t * size, size_t * meta_size) {
    struct ggml_context * ctx;
    struct gguf_context * g = sample(&ctx);
    *meta_size              = gguf_get_meta_size(g);
    gguf_write_to_file(g, path, false);
    gguf_free(g);
    ggml_free(ctx);
    FILE * f = fopen(path, "rb");
    fseek(f, 0, SEEK_END);
    *size           = (size_t) ftell(f);
    uint8_t * bytes = malloc(*size);
    rewind(f);
    *size = fread(bytes, 1, *size, f);
    fclose(f);
    return bytes;
}

static void truncated_anywhere(void) {
    size_t    size, meta_size;
    uint8_t * bytes = sample_bytes(&size, &meta_size);
    for (size_t n = 0; n < size; n++) {
        REQUIRE(write_bytes(bytes, n));
        struct ggml_context * ctx = NULL;
        struct gguf_context * g   = load(&ctx);
        // Only the padding after the last tensor (14 bytes of 32) may be missing.
        CHECK_MSG((g == NULL) == (n < size - 18), "a file cut to %zu of %zu bytes was %s", n, size,
            g ? "accepted" : "refused");
        CHECK(g != NULL || (ctx == NULL && ggml_last_status() == GGML_STATUS_IO_ERROR));
        gguf_free(g);
        ggml_free(ctx);
    }
    free(bytes);
    remove(path);
}

// Any 1, 4 or 8 bytes of the metadata replaced by hostile values: refused, or harmless.
static void overwritten_anywhere(void) {
    static const uint64_t values[] = { 0, 1, 3, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, INT64_MAX,
        0x8000000000000000u, UINT64_MAX };
    size_t                size, meta_size;
    uint8_t *             bytes   = sample_bytes(&size, &meta_size);
    uint8_t *             broken  = malloc(size);
    const int64_t         live    = gb_test_live_allocs();
    int                   refused = 0;
    for (size_t at = 0; at < meta_size; at++) {
        for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
            for (size_t width = 1; width <= 8 && at + width <= size; width = width == 1 ? 4 : width * 2) {
                memcpy(broken, bytes, size);
                memcpy(broken + at, &values[v], width);
                REQUIRE(write_bytes(broken, size));
                struct ggml_context * ctx = NULL;
                struct gguf_context * g   = load(&ctx);
                refused += g == NULL;
                CHECK(g != NULL || ctx == NULL);
                gguf_free(g);
                ggml_free(ctx);
            }
        }
    }
    CHECK(refused > 1000);
    CHECK_INT(gb_test_live_allocs(), live);
    free(broken);
    free(bytes);
    remove(path);
}

// A file in memory is read like one on disk; what its tensors are is told without a ggml context.
static void from_a_buffer(void) {
    size_t    size, meta_size;
    uint8_t * bytes = sample_bytes(&size, &meta_size);
    remove(path);
    struct ggml_context * ctx = NULL;
    struct gguf_context * g   = gguf_init_from_buffer(bytes, size, (struct gguf_init_params){ false, &ctx });
    memset(bytes, 0xee, size); // nothing of it is kept
    free(bytes);
    REQUIRE(g);
    check_sample(g);
    CHECK(ggml_get_f32_1d(ggml_get_tensor(ctx, "first"), 14) == 14.0f);
    const int64_t * ne = gguf_get_tensor_ne(g, 0);
    REQUIRE(ne);
    CHECK(ne[0] == 5 && ne[1] == 3 && ne[2] == 1 && ne[3] == 1);
    CHECK_INT(gguf_get_tensor_n_dims(g, 0), 2);
    CHECK_INT(gguf_get_tensor_n_dims(g, 1), 1);
    CHECK_INT(gguf_get_tensor_size(g, 0), 60);
    CHECK_INT(gguf_get_tensor_size(g, 1), 14);
    CHECK(gguf_get_tensor_ne(g, 2) == NULL && gguf_get_tensor_size(NULL, 0) == 0 && gguf_get_tensor_n_dims(g, -1) == 0);
    CHECK(gguf_init_from_buffer(NULL, 0, (struct gguf_init_params){ true, NULL }) == NULL);
    CHECK_ERROR(GGML_STATUS_IO_ERROR, "at offset 0: the magic");
    CHECK(gguf_init_from_buffer(NULL, 5, (struct gguf_init_params){ true, NULL }) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'data' is NULL");
    gguf_free(g);
    ggml_free(ctx);
}

static void no_memory(void) {
    size_t    size, meta_size;
    uint8_t * bytes = sample_bytes(&size, &meta_size);
    REQUIRE(write_bytes(bytes, size));
    free(bytes);
    const int64_t live = gb_test_live_allocs();
    for (int n = 1;; n++) {
        gb_test_fail_alloc(n, false);
        struct ggml_context * ctx = NULL;
        struct gguf_context * g   = load(&ctx);
        const bool            hit = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK((g == NULL) == hit);
        gguf_free(g);
        ggml_free(ctx);
        CHECK_INT(gb_test_live_allocs(), live);
        if (!hit) {
            break;
        }
    }
    for (int n = 1;; n++) {
        gb_test_fail_alloc(n, false);
        struct ggml_context * ctx;
        struct gguf_context * g   = sample(&ctx);
        const bool            ok  = g != NULL && gguf_write_to_file(g, path, false) == GGML_STATUS_SUCCESS;
        const bool            hit = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK(ok != hit);
        gguf_free(g);
        ggml_free(ctx);
        CHECK_INT(gb_test_live_allocs(), live);
        if (!hit) {
            break;
        }
    }
    remove(path);
}

// One file by hand: three tensors, the first and the last of types that nobody knows here, and their bytes.
static size_t unknown_types(uint8_t * out, uint32_t first_type, uint64_t second_offset) {
    static const char names[3]   = { 'u', 't', 'v' };
    const uint32_t    types[3]   = { first_type, GGML_TYPE_F32, 40 + 900 };
    const uint64_t    offsets[3] = { 0, second_offset, 128 }, one = 1, ne = 5, counts[2] = { 3, 0 };
    const uint32_t    version = 3, dims = 1;
    size_t            n = 0;
#define PUT(p, size) (memcpy(out + n, (p), (size)), n += (size))
    PUT("GGUF", 4), PUT(&version, 4), PUT(counts, 16);
    for (int i = 0; i < 3; i++) {
        PUT(&one, 8), PUT(&names[i], 1), PUT(&dims, 4), PUT(&ne, 8), PUT(&types[i], 4), PUT(&offsets[i], 8);
    }
#undef PUT
    for (; n % 32 != 0; n++) {
        out[n] = 0;
    }
    for (int i = 0; i < 128 + 64; i++) {
        out[n++] = (uint8_t) (i * 7 + 1);
    }
    return n;
}

// Their ids, shapes and sizes are told, their bytes can be written again; tensors cannot be made of them.
static void types_of_the_future(void) {
    static const uint32_t types[] = { 4, 5, 31, 33, 36, 38, 255, 1023 };
    static uint8_t        bytes[1024], again[1024];
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        const size_t          size = unknown_types(bytes, types[i], 96);
        struct ggml_context * ctx  = NULL;
        CHECK(gguf_init_from_buffer(bytes, size, (struct gguf_init_params){ false, &ctx }) == NULL && ctx == NULL);
        CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "at offset 24: tensor 'u' is of type");
        struct gguf_context * g = gguf_init_from_buffer(bytes, size, (struct gguf_init_params){ true, NULL });
        REQUIRE(g);
        CHECK_INT(gguf_get_tensor_type(g, 0), types[i]);
        CHECK_INT(gguf_get_tensor_size(g, 0), 96); // up to the next one
        CHECK_INT(gguf_get_tensor_size(g, 1), 20);
        CHECK_INT(gguf_get_tensor_type(g, 2), 940);
        CHECK_INT(gguf_get_tensor_size(g, 2), 64); // up to the end
        CHECK_INT(gguf_get_tensor_ne(g, 2)[0], 5);
        CHECK(gguf_write_to_file(g, path, false) != GGML_STATUS_SUCCESS);
        CHECK_ERROR(GGML_STATUS_INVALID_STATE, "'u' has no data");
        const uint8_t * data = bytes + gguf_get_data_offset(g);
        CHECK_INT(gguf_set_tensor_data(g, "u", data, 96), GGML_STATUS_SUCCESS);
        CHECK_INT(gguf_set_tensor_data(g, "t", data + 96, 20), GGML_STATUS_SUCCESS);
        CHECK_INT(gguf_set_tensor_data(g, "v", data + 128, 64), GGML_STATUS_SUCCESS);
        memset(bytes + gguf_get_data_offset(g) + 116, 0, 12); // the padding after t, which writers fill with zeros
        CHECK_INT(gguf_write_to_file(g, path, false), GGML_STATUS_SUCCESS);
        FILE * f = fopen(path, "rb");
        REQUIRE(f);
        CHECK_INT(fread(again, 1, sizeof(again), f), size);
        fclose(f);
        CHECK(memcmp(bytes, again, size) == 0);
        CHECK_INT(gguf_set_tensor_type(g, "u", GGML_TYPE_F32), GGML_STATUS_SUCCESS); // known from now on
        CHECK(gguf_write_to_file(g, path, false) != GGML_STATUS_SUCCESS);
        CHECK_ERROR(GGML_STATUS_INVALID_STATE, "'u' has 96 bytes, its type f32 needs 20");
        gguf_free(g);
    }
    static const uint64_t offsets[] = { 0, 16, 128, 256, 1ull << 63, UINT64_MAX - 31 };
    for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
        const size_t size = unknown_types(bytes, 4, offsets[i]);
        CHECK(gguf_init_from_buffer(bytes, size, (struct gguf_init_params){ true, NULL }) == NULL);
        CHECK_ERROR(GGML_STATUS_IO_ERROR, "the offset of tensor '");
    }
    const size_t size = unknown_types(bytes, 1024, 96);
    CHECK(gguf_init_from_buffer(bytes, size, (struct gguf_init_params){ true, NULL }) == NULL);
    CHECK_ERROR(GGML_STATUS_IO_ERROR, "1024 is not a tensor type");
    remove(path);
}

// Copying pairs takes all memory before it changes anything, wherever memory ends.
static void copying_pairs_is_all_or_nothing(void) {
    struct ggml_context * ctx;
    struct gguf_context * src = sample(&ctx);
    REQUIRE(src);
    CHECK_INT(gguf_set_val_u32(src, "general.alignment", 128), GGML_STATUS_SUCCESS);
    const int64_t live = gb_test_live_allocs();
    for (int n = 1;; n++) {
        struct gguf_context * g = gguf_init_empty();
        REQUIRE(g && gguf_set_val_str(g, "own", "mine") == 0 && gguf_set_val_str(g, "k.arr", "replaced") == 0);
        REQUIRE(gguf_add_tensor(g, ggml_get_tensor(ctx, "second")) == 0 &&
                gguf_add_tensor(g, ggml_get_tensor(ctx, "first")) == 0);
        gb_test_fail_alloc(n, false);
        const enum ggml_status status = gguf_set_kv(g, src);
        const bool             hit    = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK_INT(status, hit ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_SUCCESS);
        CHECK_INT(gguf_get_n_kv(g), hit ? 2 : 16);
        CHECK_INT(gguf_get_alignment(g), hit ? 32 : 128);
        CHECK_INT(gguf_get_tensor_offset(g, 1), hit ? 32 : 128);
        CHECK_STR(gguf_get_val_str(g, gguf_find_key(g, "own")), "mine");
        CHECK_INT(gguf_find_key(g, "k.arr"), 1);
        CHECK_INT(gguf_get_kv_type(g, 1), hit ? GGUF_TYPE_STRING : GGUF_TYPE_ARRAY);
        CHECK_INT(gguf_find_key(g, "k.strs") == -1, hit);
        if (!hit) {
            CHECK_STR(gguf_get_arr_str(g, gguf_find_key(g, "k.strs"), 1), "z\xc3\xbcrich");
            CHECK_INT(gguf_get_arr_n(g, 1), 3);
        }
        gguf_free(g);
        CHECK_INT(gb_test_live_allocs(), live);
        if (!hit) {
            break;
        }
    }
    gguf_free(src);
    ggml_free(ctx);
}

TEST_MAIN(TEST(round_trip), TEST(alignment_is_honoured), TEST(wrong_use), TEST(truncated_anywhere),
    TEST(overwritten_anywhere), TEST(from_a_buffer), TEST(types_of_the_future), TEST(copying_pairs_is_all_or_nothing),
    TEST(no_memory))
