// test_mem.c - large pieces of memory of base/mem.h. test_base.c tests the rest.
#include "test.h"

#include <stdio.h>

#include "base/mem.h"
#include "ggml-backend.h"

// Tests request absurd sizes. The sanitizer must return NULL, as malloc does.
__attribute__((visibility("default"))) const char * __asan_default_options(void);
const char * __asan_default_options(void) { return "allocator_may_return_null=1"; }

__attribute__((visibility("default"))) const char * __tsan_default_options(void);
const char * __tsan_default_options(void) { return "allocator_may_return_null=1"; }

// The kernel's flags of the pages at an address: true if the flags of the mapping include "hg"
// (huge pages requested). -1: unknown.
static int is_advised(const void * address) {
    FILE * file = fopen("/proc/self/smaps", "r");
    if (file == NULL) {
        return -1;
    }
    char line[4096];
    bool inside = false;
    int found = -1;
    while (fgets(line, sizeof(line), file) != NULL) {
        unsigned long long lower, upper;
        if (sscanf(line, "%llx-%llx ", &lower, &upper) == 2) {
            inside = lower <= (uintptr_t) address && (uintptr_t) address < upper;
        } else if (inside && strncmp(line, "VmFlags:", 8) == 0) {
            found = strstr(line, " hg") != NULL;
        }
    }
    fclose(file);
    return found;
}

static bool has_huge_pages(void) {
    FILE * file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (file != NULL) {
        fclose(file);
    }
    return file != NULL;
}

static void large_memory_is_memory(void) {
    const size_t sizes[] = { 0, 1, GB_HUGE_MIN - 1, GB_HUGE_MIN, GB_HUGE_MIN + 12345 };
    for (size_t i = 0; i < GB_ARRAY_LEN(sizes); i++) {
        const int64_t live = gb_test_live_allocs();
        char * p = gb_large_alloc(64, sizes[i]);
        REQUIRE(p != NULL);
        CHECK_INT((uintptr_t) p % 64, 0);
        memset(p, 0x5a, sizes[i]);
        CHECK_INT(gb_test_live_allocs(), live + 1);
        gb_aligned_free(p);
        CHECK_INT(gb_test_live_allocs(), live);
    }
}

static void failures_are_reported(void) {
    gb_test_fail_alloc(1, false);
    CHECK(gb_large_alloc(64, GB_HUGE_MIN) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "cannot allocate");
    CHECK(gb_large_alloc(64, SIZE_MAX / 2) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "cannot allocate");
}

static void huge_pages_are_asked_for(void) {
    if (!has_huge_pages()) {
        SKIP("this system has no transparent huge pages");
    }
    char * p = gb_large_alloc(64, 2 * GB_HUGE_MIN);
    REQUIRE(p != NULL);
    const int advised = is_advised(p + GB_HUGE_MIN);
    gb_aligned_free(p);
    if (advised < 0) {
        SKIP("the system does not show the flags of memory");
    }
    CHECK_INT(advised, 1);
}

static void large_buffers_have_them(void) {
    if (!has_huge_pages()) {
        SKIP("this system has no transparent huge pages");
    }
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), 2 * GB_HUGE_MIN);
    REQUIRE(buffer != NULL);
    CHECK(is_advised((char *) ggml_backend_buffer_get_base(buffer) + GB_HUGE_MIN) != 0);
    ggml_backend_buffer_free(buffer);
}

TEST_MAIN(TEST(large_memory_is_memory), TEST(failures_are_reported), TEST(huge_pages_are_asked_for),
    TEST(large_buffers_have_them))
