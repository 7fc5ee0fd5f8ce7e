// blas.h - cuBLAS as an alternative to our own kernels of large products of floats: loaded at run time, only when
// asked for, never needed.
//
// GGML_CUDA_CUBLAS=1 takes the library that the system's loader finds (or that is in the process already), an absolute
// path that file. A backend opens it for itself, with a workspace of its own, so that products can be recorded;
// whatever fails leaves our kernels to compute.
#ifndef GB_CUDA_BLAS_H
#define GB_CUDA_BLAS_H

#include "cuda/backend.h"

// Of each slice z: dst[row, column] = sum over k of w[column, k] x[row, k]; rows are dense
struct gb_cuda_blas_product {
    int type; // of w and x: F32, F16, BF16
    const void * w;
    const void * x;
    float * dst;
    int64_t m, k, rows;     // columns of dst, depth, rows of dst
    int64_t w_row, x_row;   // elements from row to row
    int64_t w_next, slices; // elements from slice to slice of w; those of x and dst lie one after the other
};

// NULL: not asked for, or not there. `text`, which has room for 256, says what is used, or why nothing is; "" when
// nobody asked.
gb_cuda_blas * gb_cuda_blas_new(gb_cuda_device * device, cudaStream_t stream, char * text);
void gb_cuda_blas_free(gb_cuda_blas * blas); // when the stream is idle; NULL is fine

// Queues the product. False: it did not, another kernel must; after an error that stays so, and the backend's text says
// why. listed: work is captured, which somebody else may have broken, so that an error there says nothing.
bool gb_cuda_blas_run(gb_cuda_blas * blas, const gb_cuda_blas_product & p, bool listed);

#endif // GB_CUDA_BLAS_H
