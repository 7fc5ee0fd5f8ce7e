// cuda_test.h - opens the devices that a test runs on: emulated (GB_CUDA_EMULATED) or real ones.
//
//     static void test(void) { CUDA_OR_SKIP(); ggml_backend_t cuda = cuda_open(0); ... ggml_backend_free(cuda); }
#ifndef GB_TESTS_CUDA_TEST_H
#define GB_TESTS_CUDA_TEST_H

#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml-cuda.h"
#include "test.h"
#ifdef __cplusplus
extern "C" {
#endif
#include "tensor/quant/quant.h" // traits omit functions that some formats have
#ifdef __cplusplus
}
#endif

#ifdef GB_CUDA_EMULATED
#    include "emulation.h"
#endif

#ifdef __cplusplus
extern "C"
#endif
    enum ggml_status gb_cuda_register_linked(void); // registers the backend that is linked in

#define CUDA_OR_SKIP()                                          \
    do {                                                        \
        if (gb_cuda_register_linked() != GGML_STATUS_SUCCESS) { \
            SKIP("%s", ggml_last_error());                      \
        }                                                       \
    } while (0)

static inline ggml_backend_t cuda_open(int device) { return ggml_backend_cuda_init(device); }

// Free bytes of a device, after the pool has released its unused blocks.
static inline size_t cuda_free_memory(int device) {
    size_t free_bytes = 0, total = 0;
    ggml_backend_cuda_trim(device);
    CHECK_INT(ggml_backend_cuda_get_device_memory(device, &free_bytes, &total), GGML_STATUS_SUCCESS);
    return free_bytes;
}

// Number of launched kernels with `part` in their names, which the emulation counts; 0 on a device.
static inline uint64_t cuda_launches(const char * part) {
#ifdef GB_CUDA_EMULATED
    return gb_emu_launches_of(part);
#else
    (void) part;
    return 0;
#endif
}

// Checks the number of launches since `before`; passes on a device.
static inline void cuda_check_launches(const char * part, uint64_t before, uint64_t expected, const char * what) {
#ifdef GB_CUDA_EMULATED
    const uint64_t n = cuda_launches(part) - before;
    CHECK_MSG(n == expected, "%s: %d launches of %s, not %d", what, (int) n, part, (int) expected);
#else
    (void) part, (void) before, (void) expected, (void) what;
#endif
}

// True if graphs are replayed, so that a test can count them. False with GGML_CUDA_GRAPHS=0, which tools/check_cuda.sh
// sets under compute-sanitizer; the test then prints what it does not check.
static inline bool cuda_replays(void) {
    const char * graphs = getenv("GGML_CUDA_GRAPHS");
    const bool off = graphs != NULL && strcmp(graphs, "0") == 0;
    static bool said = false;
    if (off && !said) {
        printf("not checked: how often graphs are replayed, as GGML_CUDA_GRAPHS is 0\n");
        said = true;
    }
    return !off;
}

// Scratch memory that the backend reports for a graph.
static inline size_t cuda_work_size(ggml_backend_t backend, const struct ggml_cgraph * graph) {
    return backend->iface.graph_work_size(backend, graph);
}

// Checks the bytes that a backend took for scratch memory. `reported`: the largest size that it reported. Up to a
// quarter of a block from the pool may be unused. Nodes that share memory may need less. On a device it checks nothing:
// the driver allocates in large pieces, and loads kernels.
enum cuda_work { CUDA_WORK_EXACT, CUDA_WORK_POOLED, CUDA_WORK_AT_MOST };

static inline void cuda_check_work_size(const char * what, size_t taken, size_t reported, enum cuda_work how) {
#ifdef GB_CUDA_EMULATED
    const size_t rounded = (reported + 511) / 512 * 512;
    const bool right = how == CUDA_WORK_EXACT    ? taken == rounded
                       : how == CUDA_WORK_POOLED ? taken >= reported && taken <= rounded + rounded / 3
                                                 : taken <= rounded;
    CHECK_MSG(right, "%s: took %zu bytes of scratch memory, reported %zu", what, taken, reported);
#else
    (void) what, (void) taken, (void) reported, (void) how;
#endif
}

#endif // GB_TESTS_CUDA_TEST_H
