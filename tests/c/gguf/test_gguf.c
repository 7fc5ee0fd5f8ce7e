// GGUF files: written values are read back, and every kind of damage is refused with a message.
#include "test.h"

#include "base/mem.h"
#include "gguf.h"

static const char * const path = "test_gguf.tmp.gguf";

static struct gguf_context * sample(struct ggml_context ** ctx) {
    struct ggml_init_params params = { 1 << 16, NULL, false };
    *ctx = ggml_init(params);
    struct gguf_context * g = gguf_init_empty();
    if (*ctx == NULL || g == NULL) {
        gguf_free(g);
        return NULL;
    }
    const int16_t numbers[3] = { -1, 2, 300 };
    const char * words[3] = { "", "z\xc3\xbcrich", "end" };
    struct ggml_tensor * a = ggml_new_tensor_2d(*ctx, GGML_TYPE_F32, 5, 3);
    struct ggml_tensor * b = ggml_new_tensor_1d(*ctx, GGML_TYPE_F16, 7);
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
    struct gguf_context * r = gguf_init_from_file(path, (struct gguf_init_params){ false, &loaded });
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
    struct gguf_context * m = gguf_init_from_file(path, (struct gguf_init_params){ true, &shapes });
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
    struct gguf_context * r = gguf_init_from_file(path, (struct gguf_init_params){ false, &loaded });
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
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'key_id' is 99, there are");
    CHECK_INT(gguf_get_val_u8(g, gguf_find_key(g, "k.str")), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'k.str' is of type str");
    CHECK(gguf_get_arr_str(g, gguf_find_key(g, "k.strs"), 3) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'i' is 3, there are 3 strings");
    CHECK(gguf_get_arr_data(g, gguf_find_key(g, "k.strs")) == NULL);
    CHECK(gguf_get_tensor_name(g, -1) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'i' is -1, there are");
    CHECK(gguf_get_key(NULL, 0) == NULL && gguf_get_n_kv(NULL) == 0);
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
    remove(path); // closing a file that was truncated waits for the disk (ext4)
    FILE * f = fopen(path, "wb");
    bool ok = f && fwrite(bytes, 1, n, f) == n;
    return f && fclose(f) == 0 && ok;
}

static struct gguf_context * load(struct ggml_context ** ctx) {
    return gguf_init_from_file(path, (struct gguf_init_params){ false, ctx });
}

static uint8_t * sample_bytes(size_t * size, size_t * meta_size) {
    struct ggml_context * ctx;
    struct gguf_context * g = sample(&ctx);
    *meta_size = gguf_get_meta_size(g);
    gguf_write_to_file(g, path, false);
    gguf_free(g);
    ggml_free(ctx);
    FILE * f = fopen(path, "rb");
    fseek(f, 0, SEEK_END);
    *size = (size_t) ftell(f);
    uint8_t * bytes = malloc(*size);
    rewind(f);
    *size = fread(bytes, 1, *size, f);
    fclose(f);
    return bytes;
}

static void truncated_anywhere(void) {
    size_t size, meta_size;
    uint8_t * bytes = sample_bytes(&size, &meta_size);
    for (size_t n = 0; n < size; n++) {
        REQUIRE(write_bytes(bytes, n));
        struct ggml_context * ctx = NULL;
        struct gguf_context * g = load(&ctx);
        // Only the padding after the last tensor (14 of 32 bytes) may be missing.
        CHECK_MSG((g == NULL) == (n < size - 18), "a file cut to %zu of %zu bytes was %s", n, size,
            g ? "accepted" : "refused");
        CHECK(g != NULL || (ctx == NULL && ggml_last_status() == GGML_STATUS_IO_ERROR));
        gguf_free(g);
        ggml_free(ctx);
    }
    free(bytes);
    remove(path);
}

// Replaces 1, 4 or 8 bytes anywhere in the metadata by hostile values. The file is refused, or can
// be read.
static void overwritten_anywhere(void) {
    static const uint64_t values[] = { 0, 1, 3, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, INT64_MAX,
        0x8000000000000000u, UINT64_MAX };
    size_t size, meta_size;
    uint8_t * bytes = sample_bytes(&size, &meta_size);
    uint8_t * broken = malloc(size);
    const int64_t live = gb_test_live_allocs();
    int refused = 0;
    for (size_t at = 0; at < meta_size; at++) {
        for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
            for (size_t width = 1; width <= 8 && at + width <= size; width = width == 1 ? 4 : width * 2) {
                memcpy(broken, bytes, size);
                memcpy(broken + at, &values[v], width);
                REQUIRE(write_bytes(broken, size));
                struct ggml_context * ctx = NULL;
                struct gguf_context * g = load(&ctx);
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

// A file in memory is read like one on disk, and its tensors can be queried without a ggml context.
static void from_a_buffer(void) {
    size_t size, meta_size;
    uint8_t * bytes = sample_bytes(&size, &meta_size);
    remove(path);
    struct ggml_context * ctx = NULL;
    struct gguf_context * g = gguf_init_from_buffer(bytes, size, (struct gguf_init_params){ false, &ctx });
    memset(bytes, 0xee, size); // the reader keeps no pointer into it
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
    size_t size, meta_size;
    uint8_t * bytes = sample_bytes(&size, &meta_size);
    REQUIRE(write_bytes(bytes, size));
    free(bytes);
    const int64_t live = gb_test_live_allocs();
    for (int n = 1;; n++) {
        gb_test_fail_alloc(n, false);
        struct ggml_context * ctx = NULL;
        struct gguf_context * g = load(&ctx);
        const bool hit = gb_test_alloc_failed();
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
        struct gguf_context * g = sample(&ctx);
        const bool ok = g != NULL && gguf_write_to_file(g, path, false) == GGML_STATUS_SUCCESS;
        const bool hit = gb_test_alloc_failed();
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

// A file by hand: three tensors, the first and last of unknown types, with their bytes.
static size_t unknown_types(uint8_t * out, uint32_t first_type, uint64_t second_offset) {
    static const char names[3] = { 'u', 't', 'v' };
    const uint32_t types[3] = { first_type, GGML_TYPE_F32, 40 + 900 };
    const uint64_t offsets[3] = { 0, second_offset, 128 }, one = 1, ne = 5, counts[2] = { 3, 0 };
    const uint32_t version = 3, dims = 1;
    size_t n = 0;
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

// Ids, shapes and sizes of unknown types can be read, and their bytes copied. No ggml tensor can
// have such a type.
static void types_of_the_future(void) {
    static const uint32_t types[] = { 4, 5, 31, 33, 36, 38, 255, 1023 };
    static uint8_t bytes[1024], again[1024];
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        const size_t size = unknown_types(bytes, types[i], 96);
        struct ggml_context * ctx = NULL;
        CHECK(gguf_init_from_buffer(bytes, size, (struct gguf_init_params){ false, &ctx }) == NULL && ctx == NULL);
        CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "at offset 24: tensor 'u' is of type");
        struct gguf_context * g = gguf_init_from_buffer(bytes, size, (struct gguf_init_params){ true, NULL });
        REQUIRE(g);
        CHECK_INT(gguf_get_tensor_type(g, 0), types[i]);
        CHECK_INT(gguf_get_tensor_size(g, 0), 96); // up to the next tensor
        CHECK_INT(gguf_get_tensor_size(g, 1), 20);
        CHECK_INT(gguf_get_tensor_type(g, 2), 940);
        CHECK_INT(gguf_get_tensor_size(g, 2), 64); // up to the end of the file
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
        CHECK_INT(gguf_set_tensor_type(g, "u", GGML_TYPE_F32), GGML_STATUS_SUCCESS); // now the type is known
        CHECK(gguf_write_to_file(g, path, false) != GGML_STATUS_SUCCESS);
        CHECK_ERROR(GGML_STATUS_INVALID_STATE, "'u' has 96 bytes, its type f32 needs 20");
        gguf_free(g);
    }
    static const uint64_t offsets[] = { 0, 16, 128, 256, 1ull << 63, UINT64_MAX - 31 };
    static const char * const wrong[] = { "'u' overlaps tensor 't'", "not a multiple", "'v' overlaps tensor 't'",
        "the file is incomplete", "the offset of tensor 't'", "the offset of tensor 't'" };
    for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
        const size_t size = unknown_types(bytes, 4, offsets[i]);
        CHECK(gguf_init_from_buffer(bytes, size, (struct gguf_init_params){ true, NULL }) == NULL);
        CHECK_ERROR(GGML_STATUS_IO_ERROR, wrong[i]);
    }
    const size_t size = unknown_types(bytes, 1024, 96);
    CHECK(gguf_init_from_buffer(bytes, size, (struct gguf_init_params){ true, NULL }) == NULL);
    CHECK_ERROR(GGML_STATUS_IO_ERROR, "1024 is not a tensor type");
    remove(path);
}

// The record of a tensor.
struct record {
    const char * name;
    uint32_t n_dims;
    int64_t ne[6];
    uint32_t type;
    uint64_t offset;
};

// Makes a file by hand: a pair as raw bytes (NULL: none), records, and `data` bytes that count up.
static size_t file_of(uint8_t * out, const void * pair, size_t pair_size, const struct record * records, size_t n,
    size_t data) {
    const uint64_t counts[2] = { n, pair ? 1 : 0 };
    const uint32_t version = 3;
    size_t at = 0;
#define PUT(p, size) (memcpy(out + at, (p), (size)), at += (size))
    PUT("GGUF", 4), PUT(&version, 4), PUT(counts, 16);
    if (pair) {
        PUT(pair, pair_size);
    }
    for (size_t i = 0; i < n; i++) {
        const uint64_t length = strlen(records[i].name);
        PUT(&length, 8), PUT(records[i].name, length), PUT(&records[i].n_dims, 4);
        PUT(records[i].ne, 8 * records[i].n_dims), PUT(&records[i].type, 4), PUT(&records[i].offset, 8);
    }
#undef PUT
    for (; n > 0 && at % 32 != 0; at++) {
        out[at] = 0;
    }
    for (size_t i = 0; i < data; i++) {
        out[at++] = (uint8_t) i;
    }
    return at;
}

// A tensor of one element, one of none, shared bytes, and data in another order than the records.
static const struct record unusual[] = {
    { "late", 2, { 4, 2 }, GGML_TYPE_F32, 64 },
    { "scalar", 0, { 0 }, GGML_TYPE_F32, 32 },
    { "mark", 1, { 0 }, GGML_TYPE_F32, 32 },
    { "early", 1, { 3 }, GGML_TYPE_I32, 0 },
    { "tied", 2, { 4, 2 }, GGML_TYPE_F32, 64 },
    { "none", 3, { 32, 0, 5 }, GGML_TYPE_Q4_0, 96 },
    { "beyond", 2, { 0, 7 }, GGML_TYPE_F16, 1 << 20 },
};

// Reads all of `unusual` as a program of 2024 does. This library wrote `copy`, in the order of the
// records.
static void check_unusual(const struct gguf_context * g, struct ggml_context * ctx, const uint8_t * data) {
    static const size_t sizes[] = { 32, 4, 0, 12, 32, 0, 0 }, at[] = { 64, 32, 0, 0, 64, 0, 0 };
    for (int i = 0; i < 7; i++) {
        const struct ggml_tensor * t = ggml_get_tensor(ctx, unusual[i].name);
        REQUIRE(t);
        CHECK_INT(gguf_find_tensor(g, unusual[i].name), i);
        CHECK_INT(gguf_get_tensor_n_dims(g, i), unusual[i].n_dims);
        CHECK_INT(gguf_get_tensor_size(g, i), sizes[i]);
        CHECK_INT(ggml_nbytes(t), sizes[i]);
        for (uint32_t d = 0; d < 4; d++) {
            CHECK_INT(t->ne[d], d < unusual[i].n_dims ? unusual[i].ne[d] : 1);
            CHECK_INT(gguf_get_tensor_ne(g, i)[d], t->ne[d]);
        }
        CHECK(memcmp(t->data, data + at[i], sizes[i]) == 0);
    }
}

// These files are read with and without their data, written, and read again.
static void degenerate_shapes_and_any_order(void) {
    static uint8_t bytes[2048];
    const size_t size = file_of(bytes, NULL, 0, unusual, 7, 96);
    struct ggml_context * ctx = NULL;
    REQUIRE(write_bytes(bytes, size));
    struct gguf_context * g = load(&ctx);
    REQUIRE(g);
    const uint8_t * data = bytes + gguf_get_data_offset(g);
    check_unusual(g, ctx, data);
    CHECK(ggml_get_tensor(ctx, "tied")->data == ggml_get_tensor(ctx, "late")->data);
    for (int i = 0; i < 7; i++) {
        const struct ggml_tensor * t = ggml_get_tensor(ctx, unusual[i].name);
        CHECK_INT(gguf_set_tensor_data(g, unusual[i].name, t->data, ggml_nbytes(t)), GGML_STATUS_SUCCESS);
    }
    CHECK_INT(gguf_write_to_file(g, path, false), GGML_STATUS_SUCCESS);
    struct ggml_context * ctx2 = NULL;
    struct gguf_context * g2 = load(&ctx2);
    REQUIRE(g2);
    check_unusual(g2, ctx2, data);
    struct gguf_context * g3 = gguf_init_empty(); // as tensors of a program, which lose trailing sizes of 1
    for (int i = 0; i < 7; i++) {
        CHECK_INT(gguf_add_tensor(g3, ggml_get_tensor(ctx2, unusual[i].name)), GGML_STATUS_SUCCESS);
    }
    CHECK_INT(gguf_write_to_file(g3, path, false), GGML_STATUS_SUCCESS);
    gguf_free(g), gguf_free(g2), gguf_free(g3), ggml_free(ctx), ggml_free(ctx2);
    g = gguf_init_from_file(path, (struct gguf_init_params){ true, &ctx });
    REQUIRE(g);
    CHECK_INT(ggml_nbytes(ggml_get_tensor(ctx, "scalar")), 4);
    CHECK_INT(ggml_nbytes(ggml_get_tensor(ctx, "none")), 0);
    gguf_free(g), ggml_free(ctx);
    remove(path);
}

// Two tensors share all of their bytes or none. The message names both, in any order in the file.
static void overlaps_are_refused(void) {
    static const struct record pairs[][2] = {
        { { "a", 1, { 16 }, GGML_TYPE_F32, 0 }, { "b", 1, { 8 }, GGML_TYPE_F32, 32 } },
        { { "a", 1, { 8 }, GGML_TYPE_F32, 32 }, { "b", 1, { 16 }, GGML_TYPE_F32, 0 } },
        { { "a", 1, { 16 }, GGML_TYPE_F32, 0 }, { "b", 1, { 8 }, GGML_TYPE_F32, 0 } },
        { { "a", 1, { 24 }, GGML_TYPE_F32, 0 }, { "b", 1, { 4 }, GGML_TYPE_F32, 32 } },
    };
    static uint8_t bytes[1024];
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        const size_t size = file_of(bytes, NULL, 0, pairs[i], 2, 96);
        CHECK(gguf_init_from_buffer(bytes, size, (struct gguf_init_params){ true, NULL }) == NULL);
        CHECK(strstr(ggml_last_error(), "'a'") && strstr(ggml_last_error(), "'b'"));
        CHECK_ERROR(GGML_STATUS_IO_ERROR, "overlaps tensor");
    }
}

// A tensor of five axes is copied with its shape and bytes, and cannot become a ggml tensor.
static void five_axes_are_opaque(void) {
    static const struct record records[] = {
        { "five", 5, { 4, 1, 2, 1, 3 }, GGML_TYPE_F16, 32 },
        { "one", 1, { 8 }, GGML_TYPE_F32, 0 },
        { "six", 6, { 2, 0, 1, 1, 1, 9 }, GGML_TYPE_F32, 0 },
    };
    static uint8_t bytes[1024], again[1024];
    const size_t size = file_of(bytes, NULL, 0, records, 3, 96);
    struct ggml_context * ctx = NULL;
    CHECK(gguf_init_from_buffer(bytes, size, (struct gguf_init_params){ false, &ctx }) == NULL && ctx == NULL);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "tensor 'five' has 5 axes");
    struct gguf_context * g = gguf_init_from_buffer(bytes, size, (struct gguf_init_params){ true, NULL });
    REQUIRE(g);
    CHECK_INT(gguf_get_tensor_n_dims(g, 0), 5);
    CHECK_INT(gguf_get_tensor_ne(g, 0)[4], 3);
    CHECK_INT(gguf_get_tensor_size(g, 0), 48);
    CHECK_INT(gguf_get_tensor_ne(g, 2)[5], 9);
    CHECK_INT(gguf_get_tensor_size(g, 2), 0);
    CHECK_INT(gguf_get_meta_size(g), gguf_get_data_offset(g));
    CHECK_INT(gguf_get_meta_data(g, again), GGML_STATUS_SUCCESS);
    CHECK(memcmp(bytes, again, gguf_get_data_offset(g)) == 0);
    CHECK_INT(gguf_set_tensor_type(g, "five", GGML_TYPE_F32), GGML_STATUS_SUCCESS);
    CHECK(gguf_write_to_file(g, path, false) != GGML_STATUS_SUCCESS);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "'five' has 48 bytes, its type f32 needs 96");
    gguf_free(g);
}

// The key "n", and an array of `depth` levels around an array of one u8.
static size_t nested_pair(uint8_t * out, int depth) {
    const uint64_t length = 1, one = 1;
    const uint32_t array = GGUF_TYPE_ARRAY, u8 = GGUF_TYPE_UINT8;
    size_t at = 0;
#define PUT(p, size) (memcpy(out + at, (p), (size)), at += (size))
    PUT(&length, 8), PUT("n", 1), PUT(&array, 4);
    for (int i = 0; i < depth; i++) {
        PUT(&array, 4), PUT(&one, 8);
    }
    PUT(&u8, 4), PUT(&one, 8), PUT("\7", 1);
#undef PUT
    return at;
}

// An array of arrays keeps its bytes. The number of levels is limited.
static void nested_arrays_are_opaque(void) {
    static uint8_t pair[1 << 16], bytes[1 << 17], again[1 << 17];
    for (int depth = 1; depth <= 5000; depth = depth < 70 ? depth + 1 : depth * 3) {
        const size_t n = nested_pair(pair, depth);
        const size_t size = file_of(bytes, pair, n, unusual, 7, 96);
        struct ggml_context * ctx = NULL;
        struct gguf_context * g = gguf_init_from_buffer(bytes, size, (struct gguf_init_params){ false, &ctx });
        if (depth > 64) {
            CHECK(g == NULL);
            CHECK_ERROR(GGML_STATUS_IO_ERROR, "nested more than 64 levels deep");
            continue;
        }
        REQUIRE(g);
        CHECK_INT(gguf_get_kv_type(g, 0), GGUF_TYPE_ARRAY);
        CHECK_INT(gguf_get_arr_type(g, 0), GGUF_TYPE_ARRAY);
        CHECK_INT(gguf_get_arr_n(g, 0), 1);
        CHECK(gguf_get_arr_data(g, 0) == NULL);
        CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "'n' is an array of arrays");
        struct gguf_context * copy = gguf_init_empty();
        CHECK_INT(gguf_set_kv(copy, g), GGML_STATUS_SUCCESS);
        CHECK_INT(gguf_get_meta_data(copy, again), GGML_STATUS_SUCCESS);
        CHECK(memcmp(again + 24, pair, n) == 0);
        gguf_free(copy), gguf_free(g), ggml_free(ctx);
    }
}

// A file that is cut anywhere is reported as incomplete, with its length.
static void cut_files_are_incomplete(void) {
    size_t size, meta_size;
    char has[64];
    uint8_t * bytes = sample_bytes(&size, &meta_size);
    for (size_t n = 1; n < size - 18; n++) {
        CHECK(gguf_init_from_buffer(bytes, n, (struct gguf_init_params){ true, NULL }) == NULL);
        snprintf(has, sizeof(has), "has %zu bytes", n);
        CHECK_MSG(strstr(ggml_last_error(), has), "%s", ggml_last_error());
        CHECK_ERROR(GGML_STATUS_IO_ERROR, "the file is incomplete");
    }
    snprintf(has, sizeof(has), "needs %zu.", size - 18);
    CHECK(gguf_init_from_buffer(bytes, meta_size, (struct gguf_init_params){ true, NULL }) == NULL);
    CHECK_MSG(strstr(ggml_last_error(), has), "%s", ggml_last_error());
    CHECK(gguf_init_from_buffer(bytes, 0, (struct gguf_init_params){ true, NULL }) == NULL);
    CHECK_ERROR(GGML_STATUS_IO_ERROR, "the file is empty");
    free(bytes);
    remove(path);
}

// If any allocation fails while these files are read, nothing leaks.
static void no_memory_for_opaque_values(void) {
    static const struct record five[] = { { "five", 5, { 4, 1, 2, 1, 3 }, GGML_TYPE_F16, 0 } };
    static uint8_t pair[256], bytes[1024];
    const size_t size = file_of(bytes, pair, nested_pair(pair, 3), five, 1, 96);
    const int64_t live = gb_test_live_allocs();
    for (int n = 1;; n++) {
        gb_test_fail_alloc(n, false);
        struct gguf_context * g = gguf_init_from_buffer(bytes, size, (struct gguf_init_params){ true, NULL });
        struct gguf_context * copy = g ? gguf_init_empty() : NULL;
        const bool ok = copy && gguf_set_kv(copy, g) == GGML_STATUS_SUCCESS;
        const bool hit = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK(ok != hit);
        gguf_free(copy), gguf_free(g);
        CHECK_INT(gb_test_live_allocs(), live);
        if (!hit) {
            break;
        }
    }
}

// The message names the kind of other files.
static void other_files_are_named(void) {
    static const struct {
        const char * bytes;
        size_t n;
        const char * word;
    } files[] = {
        { "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n", 66, "a Git LFS pointer" },
        { "\n <!DOCTYPE HTML>\n<html>", 24, "an HTML or XML page" },
        { "PK\3\4aaaa", 8, "a ZIP file" },
        { "\37\213\10\0aaaa", 8, "a gzip file" },
        { "tjgg\1\0\0\0", 8, "a model in a format older than GGUF" },
        { "lmgg\1\0\0\0", 8, "a model in a format older than GGUF" },
        { "\200\2}q\0aaa", 8, "a pickle" },
        { "\2\0\0\0\0\0\0\0{}", 10, "a safetensors file" },
        { "\37\213\0\0\0\0\0\0{\"a\"", 12, "a safetensors file" }, // its length begins like a gzip file
        { "GGUF\0\0\0\3aaaaaaaaaaaaaaaa", 24, "the other byte order" },
        { "Entry not found", 15, "text, which begins 'Entry not found'" },
        { "\0\0\0\0\0\0\0\0", 8, "an unfinished download" },
        { "GG", 2, "the file is incomplete" },
        { "\1\2", 2, "it begins with 01 02" },
    };
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        CHECK(gguf_init_from_buffer(files[i].bytes, files[i].n, (struct gguf_init_params){ true, NULL }) == NULL);
        CHECK_ERROR(GGML_STATUS_IO_ERROR, files[i].word);
    }
}

// Copying pairs allocates everything before it changes anything.
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
        const bool hit = gb_test_alloc_failed();
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
    TEST(overwritten_anywhere), TEST(from_a_buffer), TEST(types_of_the_future), TEST(degenerate_shapes_and_any_order),
    TEST(overlaps_are_refused), TEST(five_axes_are_opaque), TEST(nested_arrays_are_opaque),
    TEST(cut_files_are_incomplete), TEST(other_files_are_named), TEST(no_memory_for_opaque_values),
    TEST(copying_pairs_is_all_or_nothing), TEST(no_memory))
