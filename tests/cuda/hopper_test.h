// hopper_test.h - shared by the tests of the dialect of hopper.cuh.
#ifndef GB_TESTS_HOPPER_TEST_H
#define GB_TESTS_HOPPER_TEST_H

#include "cuda/hopper.cuh"
#include "kernel_test.h"

GB_KERNEL nothing(int *) {}

#define HOPPER_OR_SKIP()                                 \
    do {                                                 \
        CUDA_OR_SKIP();                                  \
        if (!gb_has_hopper_code(nothing)) {              \
            SKIP("no code for compute capability 9.0a"); \
        }                                                \
    } while (0)

#endif // GB_TESTS_HOPPER_TEST_H
