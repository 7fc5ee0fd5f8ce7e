// elements.h - contracts of the kernels that compute a row element by element.
//
// Rows have n >= 0 elements, dense and aligned to their elements. An output may be exactly one of
// its inputs. Otherwise they do not overlap.
#ifndef GB_CPU_KERNELS_CONTRACTS_ELEMENTS_H
#define GB_CPU_KERNELS_CONTRACTS_ELEMENTS_H

#include <stdint.h>

// y[i] = f(x[i])
typedef void gb_kernel_map(int64_t n, float * y, const float * x);

// z[i] = f(x[i], y[i])
typedef void gb_kernel_binary(int64_t n, float * z, const float * x, const float * y);

// z[i] = c[i] != 0 ? x[i] : y[i], with the same bits
typedef void gb_kernel_select(int64_t n, float * z, const float * c, const float * x, const float * y);

// y[i] = f(x[i], v). mad_f32: y[i] += x[i] v. leaky_relu_f32: v is the slope below 0
typedef void gb_kernel_map_scalar(int64_t n, float * y, const float * x, float v);

// y[i] is x[i], at least min and at most max
typedef void gb_kernel_clamp(int64_t n, float * y, const float * x, float min, float max);

// y[i] = s x[i] + b
typedef void gb_kernel_scale_bias(int64_t n, float * y, const float * x, float s, float b);

// y[i] is x[i] + v, then + z[i] unless z is NULL, at least min and at most max
typedef void gb_kernel_shift_clamp(int64_t n, float * y, const float * x, const float * z, float v, float min,
    float max);

// z[i] = a x[i] + b y[i]
typedef void gb_kernel_blend(int64_t n, float * z, const float * x, const float * y, float a, float b);

// y[i] = x[i] > 0 ? p x^2 + beta x : (e^min(x, eps) - 1 - x) m + beta x
typedef void gb_kernel_xielu(int64_t n, float * y, const float * x, float m, float p, float beta, float eps);

// With u = min(x[i], limit) and w = y[i] cut to [-limit, limit]: z[i] = u sigmoid(alpha u) (w + 1)
typedef void gb_kernel_swiglu_oai(int64_t n, float * z, const float * x, const float * y, float alpha, float limit);

#endif // GB_CPU_KERNELS_CONTRACTS_ELEMENTS_H
