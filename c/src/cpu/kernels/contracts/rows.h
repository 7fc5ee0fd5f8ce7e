// rows.h - contracts of the kernels for operators that work on whole rows: norms, soft_max, rotations.
//
// Rows have n >= 0 elements, dense and aligned to their elements. y may be exactly x, or a mask. Otherwise outputs do
// not overlap inputs.
#ifndef GB_CPU_KERNELS_CONTRACTS_ROWS_H
#define GB_CPU_KERNELS_CONTRACTS_ROWS_H

#include <stdint.h>

// y[i] = (x[i] - mean) scale
typedef void gb_kernel_norm_apply(int64_t n, float * y, const float * x, float mean, float scale);

// y[i] = x[i] scale + mask[i], rounded as mad_f32 does; mask: NULL for none
typedef void gb_kernel_scale_mask(int64_t n, float * y, const float * x, float scale, const float * mask);

// The smallest argument whose exponential is not subnormal
#define GB_EXP_LEAST (-0x1.5d589ep+6f)

// y[i] = exp(x[i] - max), or 0 if x[i] - max < least. least >= GB_EXP_LEAST. Returns their sum, in
// double after two additions in float. No x[i] is more than 80 above max.
typedef double gb_kernel_exp_sum(int64_t n, float * y, const float * x, float max, float least);

// y = (x - mean of x) / sqrt(variance of x + eps), times w, plus b; w and b: NULL for none, b only with w
typedef void gb_kernel_norm_row(int64_t n, float * y, const float * x, float eps, const float * w, const float * b);

// y = x / sqrt(mean of x^2 + eps), times w; w: NULL for none
typedef void gb_kernel_rms_norm_row(int64_t n, float * y, const float * x, float eps, const float * w);

// y = softmax(x scale + mask). mask: NULL for none. A row of -inf gives zeros. A NaN or +inf makes the whole row NaN.
typedef void gb_kernel_soft_max_row(int64_t n, float * y, const float * x, float scale, const float * mask);

// z = y (dy - sum of y dy), the derivative of soft_max_row_f32, whose result is y. z may be y or dy.
typedef void gb_kernel_soft_max_back_row(int64_t n, float * z, const float * y, const float * dy);

// c[i], s[i] = cosine, sine of angle[i], within 1 ulp for angles below 2^20
typedef void gb_kernel_sincos(int64_t n, float * c, float * s, const double * angle);

// Rotates pairs of elements. c and s are the cosine and sine of the angles.
//
// rope_halves_f32: 2 n elements; the pairs are elements i and i + n. rope_pairs_f32: n elements, n
// even; the pairs are elements i and i + 1 for even i. c and s have n entries. s[i] is negated for
// even i.
typedef void gb_kernel_rope(int64_t n, float * y, const float * x, const float * c, const float * s);

// y[i] = the sum over t < taps of w[t n + i] x[at[t n + i]]; w NULL: x[at[i]] with the same bits, taps is 1. x has
// `length` elements. Places ascend with i and with t.
typedef void gb_kernel_resample(int64_t n, float * y, int64_t length, const float * x, int taps, const int32_t * at,
    const float * w);

// y[i] = the sum over t < taps of w[t] x[t][i], plus y[i] if `add`. `far`: stores bypass the caches if
// the processor has such stores, as those of stream_f32. Other threads may then read y only after a
// call of stream_f32 with `last`. Prefetches n_next floats from `next` on, at most 2 n, which need not exist.
#define GB_COMBINE_ROWS 8
struct gb_combine {
    int64_t n, n_next;
    float * y;
    const float * const * x;
    const float *w, *next;
    int taps; // 1 to GB_COMBINE_ROWS
    bool add, far;
};

typedef void gb_kernel_combine(const struct gb_combine * p);

#endif // GB_CPU_KERNELS_CONTRACTS_ROWS_H
