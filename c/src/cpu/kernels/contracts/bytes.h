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

#define GB_UNPACK_MAX 4096 // terms that an unpack kernel takes at a time
#define GB_PACK_COLUMNS_MAX 512 // terms that pack_columns_q8 takes at a time
#define GB_DOT_Q8_ROWS 4 // rows that dot_q8 takes at a time
#define GB_Q8_0_ROWS_MAX 16 // rows that dots_q8_0 may be given, at most, by any level

// The kind of unpacked weights.
enum {
    GB_BYTES_HALVES = 1, // groups of 16 terms, else of 32
    GB_BYTES_WIDE = 2, // levels up to 255, else up to 127
    GB_BYTES_CENTERED = 4, // no minima: the same level stands for 0 in all groups (panels only)
};

// The kind of a format's weights, from its row in tensor/quant/formats.def
#define GB_BYTES_KIND(group, top) (((group) == 16 ? GB_BYTES_HALVES : 0) | ((top) > 127 ? GB_BYTES_WIDE : 0))

// k terms of a column, at most GB_UNPACK_MAX, to levels u and the d and m of each group
typedef void gb_kernel_unpack(int64_t k, uint8_t * u, float * d, float * m, const void * x);

// Rounds a row of k activations to bytes, as a row of its own or as one of the rows of a panel.
struct gb_quantize_q8 {
    int64_t k;
    int kind; // of the weights that it is for
    int zero; // 0, or the level that stands for 0: then sums are int32_t, -zero times the sum of a group
    int64_t step; // 1, or the rows of the panel: groups of 32 q, D and S then lie so many times as far apart
    int8_t * q;
    float * d;
    float * s; // S, or with `zero` the sums
    const float * x;
};

typedef void gb_kernel_quantize_q8(const struct gb_quantize_q8 * p);

// n columns of weights of a type (enum ggml_type), of k <= GB_PACK_COLUMNS_MAX terms, to a panel. False, with y
// unchanged: unpacking and packing them is as fast
typedef bool gb_kernel_pack_columns_q8(int type, int64_t k, bool centered, int n, float * y, const void * const * x);

// Columns of weights of k terms, from a panel of bytes (int8.tpl.h) to one of as many columns for gemm_tile_bf16: d u
// + m to the nearest bfloat16, within 2^-8 of it and 2^-126.
struct gb_bytes_to_bf16 {
    int64_t k;
    int kind; // with GB_BYTES_CENTERED: m is -zero times d
    int zero;
    const float * x; // columns of the panel: gemm_q8_nr
    float * y; // k / 2 gemm_q8_nr floats
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

// n columns of Q8_0 as they lie, times nx <= GB_Q8_0_ROWS_MAX rows: y[j * ldy + i] of row j, column i. A result
// depends on k alone. Levels without it (q8_0_rows is 0) do nothing and return false.
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

// struct gb_tile (dense.h) of at most gemm_q8_mr x gemm_q8_nr results on panels of bytes (int8.tpl.h); kind: with
// GB_BYTES_CENTERED where minima are left out
struct gb_tile;
typedef void gb_kernel_tile_q8(int kind, const struct gb_tile * t);

#endif // GB_CPU_KERNELS_CONTRACTS_BYTES_H
