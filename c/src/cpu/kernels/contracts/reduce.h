// reduce.h - contracts of the kernels that reduce one row, or two rows, to a number.
//
// Rows have n >= 0 elements, dense and aligned to their elements. The sum of 0 elements is 0. Kernels that return
// double add in double at every level. The order of the terms depends on n alone.
#ifndef GB_CPU_KERNELS_CONTRACTS_REDUCE_H
#define GB_CPU_KERNELS_CONTRACTS_REDUCE_H

#include <stdint.h>

// The sum of x[i]; sum_sqr_f32: of x[i]^2
typedef double gb_kernel_sum(int64_t n, const float * x);

// The sum of (x[i] - mean)^2
typedef double gb_kernel_sum_deviations(int64_t n, const float * x, float mean);

// The largest element. NaN if any element is NaN, -inf for n = 0, +0 if the largest element is -0
typedef float gb_kernel_max(int64_t n, const float * x);

// The sum of x[i] y[i], of f32 or of 16-bit floats (f16 or bf16)
typedef float gb_kernel_dot(int64_t n, const float * x, const float * y);
typedef float gb_kernel_dot_16(int64_t n, const uint16_t * x, const uint16_t * y);
typedef float gb_kernel_dot_16_f32(int64_t n, const uint16_t * x, const float * y);

#endif // GB_CPU_KERNELS_CONTRACTS_REDUCE_H
