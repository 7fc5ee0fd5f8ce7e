// bytes.h - contracts of the kernels that multiply quantized weights with activations in bytes.
//
// A weight is d u + m: a level u, an unsigned byte, with a scale d and a minimum m for each group of 16 or 32 terms. An
// activation is D q, with a scale D for each 32 terms and q in -127 .. 127; S is D times the sum of the q of a group.
// Sums of products of bytes are exact. Numbers of terms are multiples of 32, of whole blocks of a format. Outputs
// overlap no inputs, and nothing is aligned to more than its elements.
#ifndef GB_CPU_KERNELS_CONTRACTS_BYTES_H
#define GB_CPU_KERNELS_CONTRACTS_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GB_UNPACK_MAX 4096 // terms that an unpack kernel takes per call
#define GB_PACK_COLUMNS_MAX 512 // terms that pack_columns_q8 takes per call
#define GB_DOT_Q8_ROWS 4 // rows that dot_q8 takes per call
#define GB_Q8_0_ROWS_MAX 16 // maximum rows of dots_q8_0 at all levels

// The kinds of unpacked weights: flags.
enum {
    GB_BYTES_HALVES = 1, // groups of 16 terms, else of 32
    GB_BYTES_WIDE = 2, // levels up to 255, else up to 127
    GB_BYTES_CENTERED = 4, // no minima: 0 has the same level in all groups (panels only)
};

// The kind of a format's weights, from its row in tensor/quant/formats.def
#define GB_BYTES_KIND(group, top) (((group) == 16 ? GB_BYTES_HALVES : 0) | ((top) > 127 ? GB_BYTES_WIDE : 0))

// Unpacks k <= GB_UNPACK_MAX terms of a column to levels u, and d and m of each group
typedef void gb_kernel_unpack(int64_t k, uint8_t * u, float * d, float * m, const void * x);

// Rounds a row of k activations to bytes: a separate row, or a row of a panel.
struct gb_quantize_q8 {
    int64_t k;
    int kind; // of the weights in the same product
    int zero; // 0, or the level of 0: then sums are int32_t, -zero times the sum of a group
    int64_t step; // 1, or the rows of the panel: the factor of the distances between groups of 32 q, D and S
    int8_t * q;
    float * d;
    float * s; // S, or with `zero` the sums
    const float * x;
};

typedef void gb_kernel_quantize_q8(const struct gb_quantize_q8 * p);

// Packs n columns of weights of a type (enum ggml_type), of k <= GB_PACK_COLUMNS_MAX terms, into a
// panel. False, with y unchanged, if unpacking followed by packing is as fast
typedef bool gb_kernel_pack_columns_q8(int type, int64_t k, bool centered, int n, float * y, const void * const * x);

// Converts a panel of bytes (int8.tpl.h) of k terms to a panel for gemm_tile_bf16 with as many columns: d u + m,
// rounded to the nearest bfloat16. The error is at most 2^-8 of the value, plus 2^-126.
struct gb_bytes_to_bf16 {
    int64_t k;
    int kind; // with GB_BYTES_CENTERED: m is -zero times d
    int zero;
    const float * x; // columns of the panel: gemm_q8_nr
    float * y; // k / 2 times gemm_q8_nr floats
};

typedef void gb_kernel_bytes_to_bf16(const struct gb_bytes_to_bf16 * p);

// One unpacked column times n <= GB_DOT_Q8_ROWS rows: y[j] += the sum over its terms
struct gb_dot_q8 {
    int64_t k;
    int kind;
    int n;
    float * y;
    const uint8_t * u; // of the column
    const float * d;
    const float * m;
    const int8_t * const * q; // of each row
    const float * const * dx;
    const float * const * s;
};

typedef void gb_kernel_dot_q8(const struct gb_dot_q8 * p);

// Columns of a type (enum ggml_type), read in place, times n <= GB_DOT_Q8_ROWS rows: y[r][i] for row r, column i.
// A result depends on k alone. False, with y unchanged, if the level has no kernel for the type
struct gb_dot_columns_q8 {
    int64_t k, columns;
    int n;
    const void * w;
    size_t nb_w; // bytes from one column to the next
    float * const * y;
    const int8_t * const * q; // of each row, by quantize_q8
    const float * const * dx;
    const float * const * s;
};

typedef bool gb_kernel_dot_columns_q8(int type, const struct gb_dot_columns_q8 * p);

// n columns of Q8_0, read in place, times nx <= GB_Q8_0_ROWS_MAX rows: y[j * ldy + i] for row j,
// column i. A result depends on k alone. At levels without this kernel (q8_0_rows is 0) it does
// nothing and returns false.
struct gb_dots_q8_0 {
    int64_t k, n;
    int nx;
    const void * w;
    size_t nb_w; // bytes from one column to the next
    const int8_t * const * q; // of each row, by quantize_q8
    const float * const * dx;
    float * y;
    int64_t ldy;
};

typedef bool gb_kernel_dots_q8_0(const struct gb_dots_q8_0 * p);

// struct gb_tile (dense.h) of at most gemm_q8_mr x gemm_q8_nr results, on panels of bytes (int8.tpl.h). kind has
// GB_BYTES_CENTERED if the panels have no minima
struct gb_tile;
typedef void gb_kernel_tile_q8(int kind, const struct gb_tile * t);

#endif // GB_CPU_KERNELS_CONTRACTS_BYTES_H
