// The base layer: errors, checked arithmetic, failing allocations, maps, vectors, half precision.
#include "test.h"

#include "base/env.h"
#include "base/fp16.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "base/vec.h"

static void error_state(void) {
    CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS);
    CHECK_STR(ggml_last_error(), "");
    const uint64_t before = gb_fail_count();
    CHECK_INT(gb_fail(GGML_STATUS_UNSUPPORTED, "op %d", 7), GGML_STATUS_UNSUPPORTED);
    CHECK_INT(gb_status_since(before), GGML_STATUS_UNSUPPORTED);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "op 7");
    gb_fail(GGML_STATUS_FAILED, "first");
    gb_fail_null("f", "x"); // the first message stays
    CHECK_ERROR(GGML_STATUS_FAILED, "first");
    gb_fail_null("f", "x");
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "f: argument 'x' is NULL");
    char text[2 * GB_ERROR_SIZE];
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    gb_fail(GGML_STATUS_FAILED, "%s", text);
    CHECK_INT(strlen(ggml_last_error()), GB_ERROR_SIZE - 1);
    CHECK_STR(ggml_last_error() + GB_ERROR_SIZE - 4, "...");
    gb_fail(GGML_STATUS_FAILED, "again: %s", ggml_last_error()); // the new message may contain the old one
    CHECK(strncmp(ggml_last_error(), "again: aaa", 10) == 0);
}

static void other_thread(void * arg) {
    *(enum ggml_status *) arg = ggml_last_status();
    gb_fail(GGML_STATUS_DEVICE_ERROR, "elsewhere");
}

static void errors_are_per_thread(void) {
    gb_fail(GGML_STATUS_FAILED, "here");
    enum ggml_status seen = GGML_STATUS_ABORTED;
    gb_thread t;
    REQUIRE(gb_thread_start(&t, other_thread, &seen));
    gb_thread_join(t);
    CHECK_INT(seen, GGML_STATUS_SUCCESS);
    CHECK_STR(ggml_last_error(), "here");
}

static void checked_arithmetic(void) {
    size_t r;
    CHECK(gb_mul_size(SIZE_MAX / 2, 2, &r) && r == SIZE_MAX - 1);
    CHECK(!gb_mul_size(SIZE_MAX / 2 + 1, 2, &r));
    CHECK(gb_mul_size(0, SIZE_MAX, &r) && r == 0);
    CHECK(!gb_add_size(SIZE_MAX, 1, &r));
    CHECK(gb_pad_size(33, 32, &r) && r == 64);
    CHECK(!gb_pad_size(SIZE_MAX - 3, 32, &r));
    int64_t i;
    CHECK(!gb_mul_i64(INT64_MAX / 2 + 1, 2, &i));
    CHECK(gb_calloc(SIZE_MAX / 2, 4) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "overflows");
}

static void failing_allocations(void) {
    const int64_t live = gb_test_live_allocs();
    gb_test_fail_alloc(2, false);
    void * a = gb_malloc(10);
    void * b = gb_malloc(10);
    CHECK(a != NULL && b == NULL && gb_test_alloc_failed());
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "10 bytes");
    void * c = gb_aligned_alloc(64, 100);
    CHECK(c != NULL && (uintptr_t) c % 64 == 0);
    CHECK_INT(gb_test_live_allocs() - live, 2);
    gb_free(a);
    gb_aligned_free(c);
    gb_test_fail_alloc(0, false);
    CHECK_INT(gb_test_live_allocs(), live);
}

static void pointer_map(void) {
    struct gb_ptrmap map = { 0 };
    static char keys[5000];
    CHECK_INT(gb_ptrmap_get(&map, keys), GB_PTRMAP_ABSENT);
    for (int i = 0; i < 5000; i++) {
        CHECK(gb_ptrmap_set(&map, keys + i, i));
    }
    for (int i = 0; i < 5000; i++) {
        CHECK_INT(gb_ptrmap_get(&map, keys + i), i);
    }
    CHECK(gb_ptrmap_set(&map, keys, -5));
    CHECK_INT(gb_ptrmap_get(&map, keys), -5);
    CHECK_INT(map.n, 5000);
    gb_ptrmap_clear(&map);
    CHECK_INT(gb_ptrmap_get(&map, keys + 1), GB_PTRMAP_ABSENT);
    gb_ptrmap_free(&map);
}

// Keys are addresses of objects of one size, side by side. The map finds all of them, and no
// address in between.
static void keys_at_any_distance(void) {
    static const uintptr_t distances[] = { 2, 16, 100, 256, 368, 4096, 5000, 65536, 1 << 20 };
    for (int d = 0; d < 9; d++) {
        struct gb_ptrmap map = { 0 };
        const uintptr_t begin = (uintptr_t) test_random_int(1, 1 << 20);
        for (int i = 0; i < 3000; i++) {
            CHECK(gb_ptrmap_set(&map, (const void *) (begin + (uintptr_t) i * distances[d]), i));
        }
        for (int i = 0; i < 3000; i++) {
            const uintptr_t key = begin + (uintptr_t) i * distances[d];
            CHECK_INT(gb_ptrmap_get(&map, (const void *) key), i);
            CHECK_INT(gb_ptrmap_get(&map, (const void *) (key + 1)), GB_PTRMAP_ABSENT);
        }
        gb_ptrmap_free(&map);
    }
}

static void vectors(void) {
    GB_VEC(int) v = { 0 };
    for (int i = 0; i < 1000; i++) {
        CHECK(gb_vec_push(&v, i));
    }
    CHECK_INT(v.n, 1000);
    CHECK_INT(v.data[999], 999);
    CHECK(gb_vec_resize_zero(&v, 2000));
    CHECK_INT(v.data[1999], 0);
    gb_vec_free(&v);
}

static void half_precision(void) {
    // widening then narrowing is the identity, except that NaN becomes quiet
    for (uint32_t h = 0; h < 65536; h++) {
        const float f = gb_f16_to_f32((uint16_t) h);
        const bool nan = (h & 0x7fff) > 0x7c00;
        CHECK(isnan(f) == nan);
        if (!nan) {
            CHECK_INT(gb_f32_to_f16(f), h);
            const int e = (int) (h >> 10) & 31;
            const double m = (double) (h & 1023);
            const double v = e == 31 ? INFINITY : e == 0 ? ldexp(m, -24) : ldexp(m + 1024, e - 25);
            CHECK((double) f == (h & 0x8000 ? -v : v));
        }
    }
    for (uint32_t h = 0; h < 0x7bff; h++) { // a tie goes to the even neighbour
        const float mid = 0.5f * (gb_f16_to_f32((uint16_t) h) + gb_f16_to_f32((uint16_t) (h + 1)));
        CHECK_INT(gb_f32_to_f16(mid), h + (h & 1));
        CHECK_INT(gb_f32_to_f16(nextafterf(mid, 0)), h);
        CHECK_INT(gb_f32_to_f16(nextafterf(mid, INFINITY)), h + 1);
    }
    CHECK_INT(gb_f32_to_f16(65519.996f), 0x7bff);
    CHECK_INT(gb_f32_to_f16(65520.0f), 0x7c00);
    CHECK_INT(gb_f32_to_f16(-INFINITY), 0xfc00);
    CHECK_INT(gb_f32_to_bf16(1.0f), 0x3f80);
    CHECK_INT(gb_f32_to_bf16(gb_f32_from_bits(0x3f808000u)), 0x3f80);
    CHECK_INT(gb_f32_to_bf16(gb_f32_from_bits(0x3f818000u)), 0x3f82);
    CHECK(isnan(gb_bf16_to_f32(gb_f32_to_bf16(gb_f32_from_bits(0x7f800001u)))));
}

static void environment(void) {
    CHECK(gb_n_processors() >= 1);
    const int64_t t = gb_time_ns();
    gb_sleep_us(1000);
    CHECK(gb_time_ns() - t >= 1000000);
    void * reserved = gb_addresses_reserve((size_t) 1 << 30);
    CHECK(reserved != NULL);
    gb_addresses_release(reserved, (size_t) 1 << 30);
}

TEST_MAIN(TEST(error_state), TEST(errors_are_per_thread), TEST(checked_arithmetic), TEST(failing_allocations),
    TEST(pointer_map), TEST(keys_at_any_distance), TEST(vectors), TEST(half_precision), TEST(environment))
