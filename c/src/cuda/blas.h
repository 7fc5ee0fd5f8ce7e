// blas.h - large products of floats by cuBLAS, which is loaded at run time only if the user asks for it.
//
// GGML_CUDA_CUBLAS decides which library is loaded:
//
// - 1: the one that the process has loaded, or that the system's loader finds
// - an absolute path: that file
//
// Recorded graphs keep the workspace's address, so each backend has its own handle and workspace.
// After a failure the module's own kernels compute.
#ifndef GB_CUDA_BLAS_H
#define GB_CUDA_BLAS_H

#include "cuda/backend.h"

// For each slice z: dst[row, column] = sum over k of w[column, k] x[row, k]. Rows are dense.
struct gb_cuda_blas_product {
    int type; // of w and x: F32, F16, BF16
    const void * w;
    const void * x;
    float * dst;
    int64_t m, k, rows; // columns of dst, depth, rows of dst
    int64_t w_row, x_row; // elements from row to row
    int64_t w_next, slices; // distance of slices of w in elements, and their number; slices of x and dst are adjacent
};

// NULL: not requested, or not found. Writes to `text`, 256 bytes, which library is used or why none is; "" without a
// request.
gb_cuda_blas * gb_cuda_blas_new(gb_cuda_device * device, cudaStream_t stream, char * text);
void gb_cuda_blas_free(gb_cuda_blas * blas); // the stream must be idle; NULL is allowed

// Queues the product. False: another kernel must compute it. After an error the backend stops using cuBLAS, and
// `blas_text` has the reason. `listed`: the product is being captured. Other users of the device can break a capture,
// so errors are ignored then.
bool gb_cuda_blas_run(gb_cuda_blas * blas, const gb_cuda_blas_product & p, bool listed);

#endif // GB_CUDA_BLAS_H
