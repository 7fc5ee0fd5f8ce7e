// products.h - MUL_MAT, MUL_MAT_ID and OUT_PROD as one thing: dst[row, column] = sum over k of a[column, k] b[row, k].
//
//   products.cu          which algorithm                                        gb_product_run
//   product_rows.cu      the rows of b made ready for it                        kernels/rows.cuh, rows_in_order.cuh
//   product_vectors.cu   few rows: weights are streamed                         kernels/matvec.cuh
//   product_few.cu       2 to 16 rows, five formats: tensor cores, in bytes      kernels/few_rows.cuh
//   product_tiles.cu     many rows: tensor cores                                kernels/gemm.cuh
//   product_hopper.cu    the same on 9.0                   kernels/gemm_hopper.cuh, gemm_packed_hopper.cuh
//   mul_mat.cu, mul_mat_id.cu, out_prod.cu describe the operators.
//
// Slices of dst that share a matrix lie one after the other and count as one with more rows, where the broadcast allows
// it.
#ifndef GB_CUDA_OPS_PRODUCTS_H
#define GB_CUDA_OPS_PRODUCTS_H

#include "cuda/cuda.h"
#include "cuda/kernels/gemm.cuh"
#include "cuda/kernels/matvec_quick.cuh"
#include "cuda/kernels/panels.cuh"

struct gb_product {
    gb_weights w;
    int type; // of the weights
    size_t nb_k; // bytes along the sum; quantized across it: from one k to the next
    bool across; // quantized, the blocks lie along the columns
    bool exact; // GGML_PREC_F32: nothing is rounded but sums
    int64_t m, k, rows, slices;
    gb_make_rows b; // where the rows of b lie, by number over all slices; y is not set
    bool b_dense;
    const ggml_tensor * b_tensor;
    float * dst;
};

// Which products are possible: dim is the dimension of the sum, 0 or 1.
const char * gb_product_unsupported(const ggml_tensor * a, const ggml_tensor * b, const ggml_tensor * dst, int dim);

// of a MUL_MAT or MUL_MAT_ID
void gb_product_of(gb_product & p, const ggml_tensor * dst);
void gb_product_describe(gb_product & p, const ggml_tensor * a, const ggml_tensor * b, const ggml_tensor * dst,
    int dim);
enum ggml_status gb_product_run(gb_cuda_backend & b, const gb_product & p);

// How the algorithm that computes the product wants the rows of b.
gb_row_kind gb_product_row_kind(const gb_cuda_device & d, const gb_product & p);

// ---- product_rows.cu

// Scratch memory for rows of b, which products with the same rows share: *there, they are made already.
void * gb_rows_memory(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind, size_t bytes, bool * there);

// Rows of b, ready at x: of the kind, from one to the next x_row elements, or stretches of bytes.
struct gb_ready_rows {
    const void * x;
    int64_t x_row;
};

// For GB_ROWS_SORTED: which row of b each is made of, and how many there are. Both lie on the device.
struct gb_row_sources {
    const int * row;
    const int * n;
};

// Makes the rows, unless the tensor has them or another product of the graph made them. shared: with other products.
enum ggml_status gb_product_make_rows(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind,
    const gb_row_sources & from, bool shared, gb_ready_rows * out);

// Rows that the kernel which computes them may make ready as well: kind, and y is set. Nodes up to `last` compute `t`,
// beginning with the one that is being queued; memory for what the first product after them wants is kept in any case.
// NULL: nobody wants anything of it, or the product must make it. Who makes it sets `made`.
gb_cuda_kept * gb_rows_ahead(gb_cuda_backend & b, const ggml_tensor * t, int last, gb_row_kind * kind,
    gb_make_panels * q);

// ---- for products.cu and product_rows.cu

gb_make_panels gb_panels_of(const gb_product & p, size_t * bytes);
bool gb_product_is_aligned(const gb_product & p);
bool gb_vectors_are_quick(const gb_product & p, const gb_matvec & q); // the kernel of matvec_quick.cuh takes them
cudaError_t gb_launch_vectors_quantized(const gb_product & p, gb_matvec q, const gb_queue & queue);
cudaError_t gb_launch_vectors_float(const gb_product & p, gb_matvec q, const gb_queue & queue);
bool gb_few_rows_suit(const gb_cuda_device & d, const gb_product & p); // the kernel of few_rows.cuh takes the product
enum ggml_status gb_run_few_rows(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind);
size_t gb_raw_bytes(int source); // shared memory for the bytes of quantized weights
// source: a type, or GB_HALVES
cudaError_t gb_launch_tiles(int source, int kind, int nt, dim3 grid, const gb_gemm & q, const gb_queue & queue);

#endif // GB_CUDA_OPS_PRODUCTS_H
