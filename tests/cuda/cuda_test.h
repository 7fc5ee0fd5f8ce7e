// cuda_test.h - the devices that a test of the CUDA backend runs on: emulated ones (GB_CUDA_EMULATED) or real ones.
//
//     static void test(void) { CUDA_OR_SKIP(); ggml_backend_t cuda = cuda_open(0); ... ggml_backend_free(cuda); }
#ifndef GB_TESTS_CUDA_TEST_H
#define GB_TESTS_CUDA_TEST_H

#include "ggml-backend.h"
#include "ggml-cuda.h"
#include "test.h"

#ifdef GB_CUDA_EMULATED
#    include "emulation.h"
#endif

#ifdef __cplusplus
extern "C"
#endif
enum ggml_status gb_cuda_register_linked(void); // of the backend that is linked in

#define CUDA_OR_SKIP()                                          \
    do {                                                        \
        if (gb_cuda_register_linked() != GGML_STATUS_SUCCESS) { \
            SKIP("%s", ggml_last_error());                      \
        }                                                       \
    } while (0)

static inline ggml_backend_t cuda_open(int device) {
    return ggml_backend_cuda_init(device);
}

#endif // GB_TESTS_CUDA_TEST_H
