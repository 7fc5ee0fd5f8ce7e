// mem.h - all host memory of the library comes from here, and sizes are computed with checks.
//
// A failed allocation reports GGML_STATUS_ALLOC_FAILED and returns NULL. In a test build (GB_TEST_HOOKS) chosen
// allocations fail.
#ifndef GB_BASE_MEM_H
#define GB_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void * gb_malloc(size_t size); // size 0 gives a valid pointer
void * gb_calloc(size_t count, size_t size);
void * gb_realloc(void * ptr, size_t count, size_t size); // on failure ptr stays valid
void   gb_free(void * ptr);                               // NULL is fine
char * gb_strdup(const char * text);

void * gb_aligned_alloc(size_t alignment, size_t size); // alignment a power of two >= sizeof(void *)
void   gb_aligned_free(void * ptr);                     // NULL is fine

// As gb_aligned_alloc. From GB_HUGE_MIN bytes on, the system is asked for huge pages where it has them (Linux:
// MADV_HUGEPAGE, which the setting "madvise" of transparent huge pages waits for): fewer misses in the table of
// addresses, and fewer page faults. Whether there are any is up to the system; nothing else changes.
// GGML_CPU_HUGE_PAGES=0 in the environment turns it off.
#define GB_HUGE_MIN ((size_t) 4 << 20)
void * gb_large_alloc(size_t alignment, size_t size);

#define GB_NEW(type) ((type *) gb_calloc(1, sizeof(type)))

// Checked arithmetic: false on overflow, *r is then unspecified.
static inline bool gb_add_size(size_t a, size_t b, size_t * r) {
    *r = a + b;
    return *r >= a;
}

static inline bool gb_mul_size(size_t a, size_t b, size_t * r) {
#if defined(__GNUC__)
    return !__builtin_mul_overflow(a, b, r); // no division: every tensor that is made or looked at needs some of these
#else
    if (a != 0 && b > SIZE_MAX / a) {
        return false;
    }
    *r = a * b;
    return true;
#endif
}

static inline bool gb_pad_size(size_t a, size_t alignment, size_t * r) { // alignment a power of two
    if (!gb_add_size(a, alignment - 1, r)) {
        return false;
    }
    *r &= ~(alignment - 1);
    return true;
}

static inline bool gb_mul_i64(int64_t a, int64_t b, int64_t * r) { // a, b >= 0
#if defined(__GNUC__)
    return !__builtin_mul_overflow(a, b, r);
#else
    if (a != 0 && b > INT64_MAX / a) {
        return false;
    }
    *r = a * b;
    return true;
#endif
}

#define GB_MIN(a, b)    ((a) < (b) ? (a) : (b))
#define GB_MAX(a, b)    ((a) > (b) ? (a) : (b))
#define GB_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#ifdef GB_TEST_HOOKS
// The n-th allocation from now on (1 = the next) fails, and, if `onwards`, all after it; n <= 0: none.
void    gb_test_fail_alloc(int64_t n, bool onwards);
bool    gb_test_alloc_failed(void); // did the chosen one come up
int64_t gb_test_live_allocs(void);  // blocks not freed yet: a leak check
#endif

#endif // GB_BASE_MEM_H
