// dense.h - contracts of the kernels that multiply matrices of floats, dense or packed into panels, and weigh rows.
//
// Outputs overlap no inputs. Elements are aligned to their type, and panels to floats.
#ifndef GB_CPU_KERNELS_CONTRACTS_DENSE_H
#define GB_CPU_KERNELS_CONTRACTS_DENSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Limits of all levels, for array sizes: rows and columns of a tile and its panels, columns of dots_*, and rows of
// rows_columns_*. The columns of a tile divide GB_GEMM_NR_MAX. A tile has at least GB_GEMM_MR_MIN rows.
#define GB_GEMM_MR_MIN 4
#define GB_GEMM_MR_MAX 16
#define GB_GEMM_NR_MAX 64
#define GB_BF16_MR_MAX 32 // rows of gemm_tile_bf16
#define GB_BF16_STEP 16 // a multiple of every bf16_step
#define GB_DOTS_W_MAX 4
#define GB_ROWS_X_MAX 8
#define GB_ROWS_X_NARROW 2 // rows_x of levels with few registers
#define GB_ROWS_W 4 // columns that rows_columns_* take, at every level

// A tile of a matrix product: c[m][n] = or += the sum over k of a[k][m] b[k][n], for mr rows by nr
// columns.
//
// a is a k-major panel with the rows of the level's tile, or (gemm_tile_f32 only) mr rows read in
// place. b is a panel with the columns of the tile. Rows from mr on and columns from nr on may hold
// any values, but subnormal values are slow. Only mr x nr results are stored. Each result is one
// chain of products in the order of k. It does not depend on mr, nr and lda.
struct gb_tile {
    int64_t k;       // terms; of gemm_tile_bf16 pairs of them
    const float * a; // k * gemm_mr floats of a panel, or row 0
    int64_t lda;     // floats from one row of a to the next; 0: a is a panel
    const float * b; // k * gemm_nr floats
    float * c;
    int64_t ldc; // floats from one row of c to the next
    int mr, nr;
    bool accumulate; // add to c; else c need not be initialized
    // gemm_tile_bf16 prefetches this many cache lines at each step, from this address on
    const char * ahead;
    int ahead_lines;
};

// gemm_tile_bf16 takes pairs of bfloat16, each in the bits of a float. With the instruction
// (has_bf16_dots), subnormal numbers count as 0, and processors differ in whether they round
// between the products of a pair.
//
// Its tile is bf16_mr by bf16_nr. A panel of a interleaves bf16_step pairs of each row, in the
// order [k / bf16_step][bf16_mr][bf16_step]. k is a multiple of bf16_step. A panel of b is k-major
// as for floats. A thread calls enter_tiles before its first call and leave_tiles after the last.
// Between them it calls only kernels, because some processors prepare registers.
typedef void gb_kernel_tile(const struct gb_tile * t);

// Rounds k floats of a row for a panel of pairs to the nearest bfloat16. Subnormal floats may
// become 0. `together` values, a multiple of 32 or all, are contiguous. The next group begins
// `stride` values after the first. With `limited`, values that bytes cannot represent
// (GB_LARGEST_ACTIVATION) become NaN.
struct gb_round_bf16 {
    int64_t k, together, stride;
    bool limited;
    uint16_t * y;
    const float * x;
};

typedef void gb_kernel_round_bf16(const struct gb_round_bf16 * p);

// Packs rows x[0 .. rows), of k elements each, into a panel: y[j * width + i] = x[i][j], and 0 for rows <= i < width
typedef void gb_kernel_pack(int64_t k, int rows, int width, float * y, const void * const * x);

// Packs rows whose elements of one term are adjacent: y[j * width + i] = x[j * ldx + i], and 0 for rows <= i < width.
// Term j is the `rows` floats from x + j * ldx on.
typedef void gb_kernel_pack_terms(int64_t k, int rows, int width, float * y, const float * x, int64_t ldx);

// y[i] = w[i] . x for nw <= dots_w columns w[i] of k elements; fastest for dots_w. Prefetches
// `ahead` bytes after the weights.
typedef void gb_kernel_dots(int64_t k, int nw, float * y, const void * const * w, const float * x, size_t ahead);

// A few rows times a few columns of weights, both read in place: y[j * ldy + i] = or += w_i . x_j.
// A result depends on k alone, not on the other rows and columns.
struct gb_rows_columns {
    int64_t k;
    int nw, nx;      // columns, at most GB_ROWS_W; rows, at most rows_x
    const void * w;  // column 0
    size_t nb_w;     // bytes from one column to the next
    const float * x; // row 0
    size_t ldx;      // floats from one row to the next
    float * y;
    int64_t ldy;
    bool accumulate;
    const char * const * next; // GB_ROWS_W columns to prefetch, as many bytes of each as a column of w has; NULL: none
};

typedef void gb_kernel_rows_columns(const struct gb_rows_columns * p);

// Adds n rows, read in place, to nx rows of floats: y[j * ldy + i] += the sum over c, in order, of
// w[j * ldw + c] times element i of row c. A row with the weight 0 adds nothing, whatever it holds.
// A result depends neither on k nor on nx. The rows are floats, or blocks of Q8_0, which have no
// alignment, with k a multiple of 32.
struct gb_weigh {
    int64_t k, n;
    int nx;
    const void * x;
    size_t nb_x; // bytes from one row to the next
    const float * w;
    int64_t ldw;
    float * y;
    int64_t ldy;
};

typedef void gb_kernel_weigh(const struct gb_weigh * p);

#endif // GB_CPU_KERNELS_CONTRACTS_DENSE_H
