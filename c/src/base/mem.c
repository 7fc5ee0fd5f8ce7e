// mem.c - host memory. Only this file calls malloc and related functions.
//
// With GB_TEST_HOOKS tests choose allocations that fail and count the blocks that are alive.
#include "mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "env.h"
#include "status.h"
#include "text.h"

#ifdef _WIN32
#    include <malloc.h>
#endif
#ifdef __linux__
#    include <sys/mman.h>
#endif

#ifdef GB_TEST_HOOKS
#    include <stdatomic.h>

static atomic_llong fail_at; // allocations left until the failing one; 0: no failure planned
static atomic_bool fail_onwards;
static atomic_bool failed;
static atomic_llong live;

void gb_test_fail_alloc(int64_t n, bool onwards) {
    atomic_store(&failed, false);
    atomic_store(&fail_onwards, onwards);
    atomic_store(&fail_at, n > 0 ? n : 0);
}

bool gb_test_alloc_failed(void) { return atomic_load(&failed); }

int64_t gb_test_live_allocs(void) { return atomic_load(&live); }

// Counts one allocation. True if this is the one that must fail. The counter is decreased
// atomically, so exactly one of several threads gets the failure.
static bool must_fail(void) {
    if (atomic_load(&fail_onwards) && atomic_load(&failed)) {
        return true;
    }
    long long left = atomic_load(&fail_at);
    while (left > 0 && !atomic_compare_exchange_weak(&fail_at, &left, left - 1)) {
    }
    if (left == 1) {
        atomic_store(&failed, true);
    }
    return left == 1;
}

static void count_live(long long change) { atomic_fetch_add(&live, change); }
#else
static inline bool must_fail(void) { return false; }

static inline void count_live(long long change) { (void) change; }
#endif

// Reports a failed allocation, or counts a successful one.
static void * checked(void * ptr, size_t size) {
    if (ptr == NULL) {
        char shown[32];
        gb_fail(GGML_STATUS_ALLOC_FAILED, "cannot allocate %s of host memory", gb_size_text(size, shown));
    } else {
        count_live(1);
    }
    return ptr;
}

void * gb_malloc(size_t size) { return checked(must_fail() ? NULL : malloc(size ? size : 1), size); }

void * gb_calloc(size_t count, size_t size) {
    size_t total;
    if (!gb_mul_size(count, size, &total)) {
        gb_fail(GGML_STATUS_ALLOC_FAILED, "cannot allocate %zu objects of %zu bytes: the size overflows", count, size);
        return NULL;
    }
    return checked(must_fail() ? NULL : calloc(1, total ? total : 1), total);
}

// A moved block is still alive, so it is not counted again.
void * gb_realloc(void * ptr, size_t count, size_t size) {
    size_t total;
    if (!gb_mul_size(count, size, &total)) {
        gb_fail(GGML_STATUS_ALLOC_FAILED, "cannot allocate %zu objects of %zu bytes: the size overflows", count, size);
        return NULL;
    }
    void * moved = must_fail() ? NULL : realloc(ptr, total ? total : 1);
    if (moved != NULL && ptr != NULL) {
        return moved;
    }
    return checked(moved, total);
}

void gb_free(void * ptr) {
    if (ptr != NULL) {
        count_live(-1);
        free(ptr);
    }
}

char * gb_strdup(const char * text) {
    const size_t size = strlen(text) + 1;
    char * copy = gb_malloc(size);
    return copy ? memcpy(copy, text, size) : NULL;
}

// Memory of size 0 gets its own address, too.
void * gb_aligned_alloc(size_t alignment, size_t size) {
    void * ptr = NULL;
    if (!must_fail()) {
#ifdef _WIN32
        ptr = _aligned_malloc(size ? size : 1, alignment);
#else
        if (posix_memalign(&ptr, alignment, size ? size : 1) != 0) {
            ptr = NULL;
        }
#endif
    }
    return checked(ptr, size);
}

#if defined(__linux__) && defined(MADV_HUGEPAGE)
#    define HUGE_PAGE ((size_t) 2 << 20)  // of x86-64, and of arm64 with 4 KiB pages; the system ignores other sizes

void * gb_large_alloc(size_t alignment, size_t size) {
    const char * wanted = gb_env_get("GGML_CPU_HUGE_PAGES");
    if (size < GB_HUGE_MIN || (wanted != NULL && strcmp(wanted, "0") == 0)) {
        return gb_aligned_alloc(alignment, size);
    }
    void * ptr = gb_aligned_alloc(GB_MAX(alignment, HUGE_PAGE), size);
    if (ptr != NULL) {
        const int error = errno;
        (void) madvise(ptr, size / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);  // a refusal changes nothing
        errno = error;
    }
    return ptr;
}
#else
void * gb_large_alloc(size_t alignment, size_t size) { return gb_aligned_alloc(alignment, size); }
#endif

// On Windows this memory does not come from gb_malloc's function, so it needs another release.
void gb_aligned_free(void * ptr) {
    if (ptr != NULL) {
        count_live(-1);
#ifdef _WIN32
        _aligned_free(ptr);
#else
        free(ptr);
#endif
    }
}
