// mem.h - allocation of all host memory of the library, and checked arithmetic for sizes.
//
// A failed allocation reports GGML_STATUS_ALLOC_FAILED and returns NULL. In a test build
// (GB_TEST_HOOKS), tests choose allocations that fail. Sizes are in bytes. Alignments are powers of
// two.
#ifndef GB_BASE_MEM_H
#define GB_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Free the results of these functions with gb_free.
void * gb_malloc(size_t size); // of size 0: a pointer to nothing, not NULL
// Zeroed memory for `count` objects. An overflow of the product is a failed allocation.
void * gb_calloc(size_t count, size_t size);
void * gb_realloc(void * ptr, size_t count, size_t size); // on failure ptr stays valid
void gb_free(void * ptr);                                 // NULL is allowed
// A copy of the text, owned by the caller.
char * gb_strdup(const char * text);

// Memory at a multiple of `alignment`, which is at least sizeof(void *). Free it with
// gb_aligned_free, never with gb_free.
void * gb_aligned_alloc(size_t alignment, size_t size);
void gb_aligned_free(void * ptr); // NULL is allowed

// Like gb_aligned_alloc. From GB_HUGE_MIN bytes on, requests huge pages (Linux: MADV_HUGEPAGE).
// They save TLB misses and page faults. The system may ignore the request. The environment variable
// GGML_CPU_HUGE_PAGES=0 turns the request off.
#define GB_HUGE_MIN ((size_t) 4 << 20)
void * gb_large_alloc(size_t alignment, size_t size);

// One zeroed object. NULL if memory runs out (reported).
#define GB_NEW(type) ((type *) gb_calloc(1, sizeof(type)))

// Checked arithmetic: false on overflow, and *r is then unspecified.
static inline bool gb_add_size(size_t a, size_t b, size_t * r) {
    *r = a + b;
    return *r >= a;
}

static inline bool gb_mul_size(size_t a, size_t b, size_t * r) {
#if defined(__GNUC__)
    // Avoids a division, because making a tensor computes several such products.
    return !__builtin_mul_overflow(a, b, r);
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

// Evaluates its arguments twice.
#define GB_MIN(a, b) ((a) < (b) ? (a) : (b))
#define GB_MAX(a, b) ((a) > (b) ? (a) : (b))
#define GB_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#ifdef GB_TEST_HOOKS
// The n-th allocation from now on fails (1 = the next). With `onwards` all later ones fail, too. If
// n <= 0, none fails.
void gb_test_fail_alloc(int64_t n, bool onwards);
bool gb_test_alloc_failed(void);   // true if the chosen allocation has failed
int64_t gb_test_live_allocs(void); // blocks that are not freed yet, to find leaks
#endif

#endif // GB_BASE_MEM_H
