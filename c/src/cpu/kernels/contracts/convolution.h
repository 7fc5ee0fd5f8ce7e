// convolution.h - contracts of the kernels that compute convolutions.
//
// The caller copies the input into a slab: zero-padded planes in which the values under one kernel
// element, for consecutive output positions, are contiguous. So each term of a sum is at a constant
// distance, an offset, from its output position. Floats need only the alignment of their type.
// Outputs overlap no inputs.
#ifndef GB_CPU_KERNELS_CONTRACTS_CONVOLUTION_H
#define GB_CPU_KERNELS_CONTRACTS_CONVOLUTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Kernels read whole vectors of x: up to this many floats after the last one that is used. Their
// values do not matter.
#define GB_CONV_SLACK 64

// A tile of results: c[m][n] = the sum over k of a[m][k] x[offsets[k] + n], for mr rows (output
// channels) and nr columns (positions). Each result is one chain of products in the order of k, for
// any mr and nr.
struct gb_conv_tile {
    int64_t k;       // terms
    const float * a; // row 0 of the weights
    int64_t lda;     // floats from one row to the next
    const float * x;
    const int64_t * offsets; // k floats
    float * c;
    int64_t ldc;
    int mr, nr; // at most gemm_mr, gemm_nr
};

typedef void gb_kernel_conv_tile(const struct gb_conv_tile * t);

// Rows of one output channel: y[r][i] = the sum over k of w[k] x[offsets[k] + r pitch + i], in the order of k.
struct gb_conv_rows {
    int64_t k;
    const float * w;
    const float * x;
    const int64_t * offsets;
    int64_t pitch; // floats from a row of x to the next
    float * y;
    int64_t ldy;
    int64_t rows, n;
    int square; // s: k is s s, and offsets[k + s] is offsets[k] + pitch; 0: any offsets
};

typedef void gb_kernel_conv_rows(const struct gb_conv_rows * p);

// A plane of one channel, with zeros around it and dilation 1: y[r][i] = the sum over ky, kx of
// w[ky][kx] x[r stride + ky - pad_h][i stride + kx - pad_w], in this order. Only elements inside are read.
struct gb_conv_plane {
    int side; // of the kernel: 3, 5 or 7
    int stride; // 1 or 2, along both axes
    const float * w;
    const float * x;
    int64_t ldx; // floats from one row of x to the next
    int64_t in_w, in_h, pad_w, pad_h;
    float * y;
    int64_t ldy, out_w, out_h;
};

typedef void gb_kernel_conv_plane(const struct gb_conv_plane * p);

// y[i ways + f] = x[f ldx + i] for f < ways, i < n
typedef void gb_kernel_weave(int64_t n, int64_t ways, float * y, const float * x, int64_t ldx);

// y[i] = x[i * stride], stride >= 1
typedef void gb_kernel_every(int64_t n, float * y, const float * x, int64_t stride);

#endif // GB_CPU_KERNELS_CONTRACTS_CONVOLUTION_H
