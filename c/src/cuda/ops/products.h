// products.h - MUL_MAT, MUL_MAT_ID, MUL_MAT_EXPERTS and OUT_PROD as one task:
// dst[row, column] = sum over k of a[column, k] b[row, k].
//
//   product.cu           which products are possible; a product as numbers and addresses
//   products.cu          the table of algorithms: chooses and runs      gb_product_choose, gb_product_run
//   product_rows.cu      the rows of b, converted for the algorithm     kernels/rows.cuh, rows_in_order.cuh, panels.cuh
//   product_steps.cu     sorts rows by expert, adds parts               kernels/product_steps.cuh
//   product_vectors.cu   few rows: streams the weights                  kernels/matvec.cuh, matvec_quick.cuh
//   product_few.cu       2 to 16 rows on tensor cores, in bytes         kernels/few_rows.cuh
//   product_tiles.cu     many rows on tensor cores                      kernels/gemm.cuh
//   product_hopper.cu    many rows on 9.0                               kernels/gemm_hopper.cuh
//   product_packed_hopper.cu  the same, with quantized weights          kernels/gemm_packed_hopper.cuh
//   product_float.cu     many rows of F32, in float                     kernels/gemm_floats.cuh
//   product_exact.cu     everything else, in float                      kernels/gemm.cuh
//   product_blas.cu      cuBLAS
//   product_group.cu     products of one row with the nodes after them
//   mul_mat.cu, mul_mat_id.cu (experts) and out_prod.cu have the operators.
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
    size_t nb_k; // bytes from element to element of the weights along the sum
    bool across; // quantized blocks are along the columns of dst, not along the sum
    bool exact; // GGML_PREC_F32: only sums are rounded
    int64_t m, k, rows, slices; // columns of dst, depth, rows of a slice, slices of dst
    gb_make_rows b; // addresses of the rows of b, by number over all slices; y is not set
    bool b_dense;
    const ggml_tensor * b_tensor;
    float * dst;
    const float * add; // NULL, or added to the results; only for algorithms with `run_group`
};

enum {
    GB_PRODUCT_FEW_ROWS = 8, // most rows that matvec.cuh takes
    GB_MAX_GRID = 65535, // blocks along y and z
    GB_PART_DEPTH = 256, // parts of the depth are multiples of it
};

// An algorithm. The first of the table (products.cu) that does not decline computes the product.
struct gb_product_algorithm {
    const char * name; // for people; unique
    // NULL: it can compute the product. Else the reason why not, a static string.
    const char * (*declines)(const gb_cuda_backend & b, const gb_product & p);
    gb_row_kind (*rows)(const gb_product & p); // the layout of the rows of b
    // Queues the work. A dry run of it measures its scratch memory. UNSUPPORTED without a report:
    // the next algorithm that does not decline computes the product.
    enum ggml_status (*run)(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind);
    // Optional: n products, at most GB_MATVEC_PARTS, that differ in weights, columns and dst.
    enum ggml_status (*run_group)(gb_cuda_backend & b, const gb_product * p, int n, gb_row_kind kind);
};

static inline bool gb_is_format(int type) { return ggml_is_quantized((enum ggml_type) type); }

// ---- product.cu

// NULL: the product is possible. Else the reason why not. dim: the dimension of the sum, 0 or 1.
const char * gb_product_unsupported(const ggml_tensor * a, const ggml_tensor * b, const ggml_tensor * dst, int dim);

// Describes a node of these operators.
void gb_product_of(gb_product & p, const ggml_tensor * dst);
void gb_product_describe(gb_product & p, const ggml_tensor * a, const ggml_tensor * b, const ggml_tensor * dst,
    int dim);
bool gb_product_is_along(const gb_product & p); // the sum goes along adjacent elements of the weights
bool gb_product_is_aligned(const gb_product & p); // rows of weights can be copied 16 bytes at a time

static inline gb_row_kind gb_product_halves(const gb_product & p) {
    return p.type == GGML_TYPE_F16 ? GB_ROWS_F16 : GB_ROWS_BF16;
}

// ---- products.cu

gb_cuda_choice gb_product_choose(const gb_cuda_backend & b, const gb_product & p);
bool gb_product_may_group(gb_cuda_choice choice); // the algorithm has run_group
enum ggml_status gb_product_run_group(gb_cuda_backend & b, const gb_product * p, int n, gb_cuda_choice choice);
// The hooks of gb_cuda_op for these operators.
gb_cuda_choice gb_product_choose_of(const gb_cuda_backend & b, const ggml_tensor * dst);
const char * gb_product_candidate_of(const gb_cuda_backend & b, const ggml_tensor * dst, int i, const char ** why);
enum ggml_status gb_product_run(gb_cuda_backend & b, const gb_product & p, gb_cuda_choice choice);

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

// Converts the rows of b, unless the tensor has such rows or a previous product of the graph made
// them. shared: keeps the rows for other products.
enum ggml_status gb_product_make_rows(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind,
    const gb_row_sources & from, bool shared, gb_ready_rows * out);

// Lets the kernel that computes `t` also convert rows for the next product: reserves memory for them,
// and sets *kind and *q. The nodes from the current one to `last` compute `t`. The caller sets `made`
// when it has made the rows. NULL: no product needs converted rows, or the product must make them. k:
// elements of a row.
gb_cuda_kept * gb_rows_ahead(gb_cuda_backend & b, const ggml_tensor * t, int last, int64_t k, gb_row_kind * kind,
    gb_make_panels * q);

gb_make_panels gb_panels_of(const gb_product & p, size_t * bytes);

// ---- product_steps.cu

// With experts: sorts the rows of dst by expert, for tiles of nt rows. Nothing for other products.
enum ggml_status gb_product_route(gb_cuda_backend & b, const gb_product & p, int nt, gb_routed_rows & out);
// Cuts the depth into parts if `tiles` leave some of the `places` for blocks empty. With parts, q.dst is scratch memory
// for their results. Else q does not change.
enum ggml_status gb_product_cut_depth(gb_cuda_backend & b, const gb_product & p, int64_t tiles, int64_t places,
    gb_gemm & q);
// dst = the sum of `parts` results at `part`, of so many elements each.
enum ggml_status gb_add_parts(gb_cuda_backend & b, float * dst, int64_t elements, const float * part, int parts);
// The same for p.dst.
enum ggml_status gb_product_add_parts(gb_cuda_backend & b, const gb_product & p, const float * part, int parts);
gb_gemm gb_product_gemm(const gb_product & p, const gb_ready_rows & x);
// Most tiles of nt rows. Each expert may have a tile that is not full.
int64_t gb_product_tiles_of_rows(const gb_product & p, int nt);

// ---- the algorithms, for products.cu; each is defined in the file of its kernels

#define GB_PRODUCT_ALGORITHM(name)                                                      \
    const char * gb_##name##_declines(const gb_cuda_backend & b, const gb_product & p); \
    gb_row_kind gb_##name##_rows(const gb_product & p);                                 \
    enum ggml_status gb_##name##_run(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind)

GB_PRODUCT_ALGORITHM(blas);
GB_PRODUCT_ALGORITHM(few_rows);
GB_PRODUCT_ALGORITHM(vectors_quick);
GB_PRODUCT_ALGORITHM(vectors_bytes);
GB_PRODUCT_ALGORITHM(vectors_float);
GB_PRODUCT_ALGORITHM(hopper);
GB_PRODUCT_ALGORITHM(tiles);
GB_PRODUCT_ALGORITHM(tiles_tf32);
GB_PRODUCT_ALGORITHM(tiles_float);
GB_PRODUCT_ALGORITHM(exact);
#undef GB_PRODUCT_ALGORITHM
enum ggml_status gb_vectors_quick_group(gb_cuda_backend & b, const gb_product * p, int n, gb_row_kind kind);
enum ggml_status gb_vectors_bytes_group(gb_cuda_backend & b, const gb_product * p, int n, gb_row_kind kind);
enum ggml_status gb_vectors_float_group(gb_cuda_backend & b, const gb_product * p, int n, gb_row_kind kind);

// ---- product_group.cu

// Queues the product at node i with nodes around it. Number of nodes; 0: none are taken together; -1: failed.
int gb_product_fuse(gb_cuda_backend & b, int i);

#endif // GB_CUDA_OPS_PRODUCTS_H
