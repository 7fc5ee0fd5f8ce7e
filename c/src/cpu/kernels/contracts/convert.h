// convert.h - contracts of the kernels that change the type or the order of elements.
//
// Numbers are rounded to nearest, ties to even. Outputs do not overlap inputs. Elements are aligned to their
// type. Blocks have no alignment.
#ifndef GB_CPU_KERNELS_CONTRACTS_CONVERT_H
#define GB_CPU_KERNELS_CONTRACTS_CONVERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// n elements of f16 or bf16 to f32, and back
typedef void gb_kernel_widen(int64_t n, float * y, const uint16_t * x);
typedef void gb_kernel_narrow(int64_t n, uint16_t * y, const float * x);

// n elements, a multiple of 32, to blocks of a quantized format and back, with the same bytes as tensor/quant
typedef void gb_kernel_to_blocks(int64_t n, void * y, const float * x);
typedef void gb_kernel_from_blocks(int64_t n, float * y, const void * x);

// Element (r, c) of x, at x + r nb_x + c elements, becomes element (c, r) of y; nb_*: bytes from one row to the next
typedef void gb_kernel_transpose_32(int64_t rows, int64_t columns, uint32_t * y, size_t nb_y, const uint32_t * x,
    size_t nb_x);
typedef void gb_kernel_transpose_16(int64_t rows, int64_t columns, uint16_t * y, size_t nb_y, const uint16_t * x,
    size_t nb_x);

// y[i] = x[i], with stores that bypass the caches if the processor has them, for results larger
// than the caches. Prefetches n floats from `next` on, which need not exist. Other threads may read
// y only after a call with `last`, which may have n = 0.
typedef void gb_kernel_stream(int64_t n, float * y, const float * x, const float * next, bool last);

#endif // GB_CPU_KERNELS_CONTRACTS_CONVERT_H
