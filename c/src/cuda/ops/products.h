// products.h - MUL_MAT, MUL_MAT_ID and OUT_PROD as one task: dst[row, column] = sum over k of a[column, k] b[row, k].
//
//   product.cu           which products are possible; a product as numbers and addresses
//   product_choice.cu    which algorithm computes a product
//   product_rows.cu      the rows of b, converted for the algorithm     kernels/rows.cuh, rows_in_order.cuh, panels.cuh
//   products.cu          runs the algorithm                             gb_product_run
//   product_vectors.cu   few rows: streams the weights                  kernels/matvec.cuh
//   product_few.cu       2 to 16 rows on tensor cores, in bytes         kernels/few_rows.cuh
//   product_tiles.cu     many rows on tensor cores                      kernels/gemm.cuh
//   product_hopper.cu    the same on 9.0                                kernels/gemm_hopper.cuh, gemm_packed_hopper.cuh
//   product_blas.cu      cuBLAS
//   mul_mat.cu, mul_mat_id.cu and out_prod.cu have the operators.
//
// Consecutive slices of dst that share a matrix count as one slice with more rows, if the broadcast allows that.
#ifndef GB_CUDA_OPS_PRODUCTS_H
#define GB_CUDA_OPS_PRODUCTS_H

#include "cuda/kernels/gemm.cuh"
#include "cuda/kernels/matvec_quick.cuh"
#include "cuda/kernels/panels.cuh"
#include "cuda/op.h"

struct gb_product {
    gb_weights w;
    int type; // of the weights
    size_t nb_k; // bytes along the sum; if quantized across it: distance of k and k + 1
    bool across; // quantized, blocks lie along the columns
    bool exact; // GGML_PREC_F32: only sums are rounded
    int64_t m, k, rows, slices;
    gb_make_rows b; // addresses of the rows of b, by number over all slices; y is not set
    bool b_dense;
    const ggml_tensor * b_tensor;
    float * dst;
};

enum {
    GB_PRODUCT_FEW_ROWS = 8, // most rows that matvec.cuh takes
    GB_MAX_GRID = 65535, // blocks along y and z
};

// Algorithms, in the order in which they are tried.
enum gb_product_algorithm {
    GB_PRODUCT_NO_DEPTH, // nothing to add up: zeros
    GB_PRODUCT_FEW, // 2 to 16 rows of common formats on tensor cores, in bytes (few_rows.cuh)
    GB_PRODUCT_VECTORS, // up to 8 rows: streams the weights (matvec.cuh); with quantized weights, rows become bytes
    GB_PRODUCT_HOPPER, // more than 32 rows of 16-bit floats or quantized weights on 9.0 (gemm_hopper.cuh)
    GB_PRODUCT_TILES, // the same elsewhere (gemm.cuh); cuts the depth into parts if tiles alone leave the device idle
    GB_PRODUCT_EXACT, // everything else, in float: F32, GGML_PREC_F32, OUT_PROD, odd strides
};

static inline bool gb_is_format(int type) { return ggml_is_quantized((enum ggml_type) type); }

// ---- product.cu

// Why the product is not possible; NULL: it is. dim: the dimension of the sum, 0 or 1.
const char * gb_product_unsupported(const ggml_tensor * a, const ggml_tensor * b, const ggml_tensor * dst, int dim);

// Describes a MUL_MAT or MUL_MAT_ID.
void gb_product_of(gb_product & p, const ggml_tensor * dst);
void gb_product_describe(gb_product & p, const ggml_tensor * a, const ggml_tensor * b, const ggml_tensor * dst,
    int dim);
bool gb_product_is_along(const gb_product & p); // the sum goes along elements of the weights that lie side by side
bool gb_product_is_aligned(const gb_product & p); // rows of weights can be copied 16 bytes at a time

static inline gb_row_kind gb_product_halves(const gb_product & p) {
    return p.type == GGML_TYPE_F16 ? GB_ROWS_F16 : GB_ROWS_BF16;
}

// ---- products.cu

enum ggml_status gb_product_run(gb_cuda_backend & b, const gb_product & p);

// ---- product_choice.cu

struct gb_product_choice {
    gb_product_algorithm algorithm;
    gb_row_kind kind; // how the rows of b must lie
};

gb_product_choice gb_product_choose(const gb_cuda_device & d, const gb_product & p);

// ---- product_blas.cu

// *done: queued. Else one of our kernels must compute the product. Fails only without memory for rows.
enum ggml_status gb_product_run_blas(gb_cuda_backend & b, const gb_product & p, bool * done);

// ---- product_rows.cu

// Scratch memory for rows of b, shared by products with the same rows. *there: the rows are made already.
void * gb_rows_memory(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind, size_t bytes, bool * there);

// Converted rows of b. x_row: distance of rows, in elements, or in stretches for rows of bytes.
struct gb_ready_rows {
    const void * x;
    int64_t x_row;
};

// For GB_ROWS_SORTED, on the device: the row of b that each row is made of, and the number of rows.
struct gb_row_sources {
    const int * row;
    const int * n;
};

// Converts the rows of b, unless the tensor has such rows or another product of the graph made them. shared: with other
// products.
enum ggml_status gb_product_make_rows(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind,
    const gb_row_sources & from, bool shared, gb_ready_rows * out);

// Rows that the kernel which computes `t` can convert for the next product: sets kind and q, with q->y. The nodes from
// the current one to `last` compute `t`. Reserves the memory in any case. NULL: no product needs converted rows, or the
// product must make them. The caller sets `made` when it has made the rows.
gb_cuda_kept * gb_rows_ahead(gb_cuda_backend & b, const ggml_tensor * t, int last, gb_row_kind * kind,
    gb_make_panels * q);

gb_make_panels gb_panels_of(const gb_product & p, size_t * bytes);

// ---- the algorithms, for products.cu

bool gb_vectors_are_quick(const gb_product & p, const gb_matvec & q); // matvec_quick.cuh takes them
cudaError_t gb_launch_vectors_quantized(const gb_product & p, gb_matvec q, const gb_queue & queue);
cudaError_t gb_launch_vectors_float(const gb_product & p, gb_matvec q, const gb_queue & queue);
enum ggml_status gb_run_few_rows(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind);
size_t gb_raw_bytes(int source); // shared memory for the bytes of quantized weights
// source: a type, or GB_HALVES
cudaError_t gb_launch_tiles(int source, int kind, int nt, dim3 grid, const gb_gemm & q, const gb_queue & queue);

#endif // GB_CUDA_OPS_PRODUCTS_H
