// bytes.h - products of quantized weights with activations that are quantized to bytes, for all algorithms that do so.
//
// Weights are used as they are stored. Activations are rounded to one of 255 levels, in groups of
// 32. The scale of a group is its largest magnitude / 127. So the error of a result is at most the
// sum over groups of (max |x| / 254) sum |w|, plus the rounding of a float sum. Not used with
// GGML_PREC_F32.
#ifndef GB_CPU_OPS_PRODUCT_BYTES_H
#define GB_CPU_OPS_PRODUCT_BYTES_H

#include "cpu/ops/product/product.h"

struct gb_unpack {
    gb_kernel_unpack * fn; // NULL: the format has none
    int kind; // GB_BYTES_*
    int zero; // the level that stands for 0 in all groups; 0: minima differ
};

struct gb_unpack gb_unpack_of(const struct gb_kernels * k, enum ggml_type type);

// NULL: activations may be rounded to bytes, at every level. Else the reason, a static text.
const char * gb_bytes_decline(const struct gb_gemm * p);

static inline int64_t gb_bytes_group(int kind) { return kind & GB_BYTES_HALVES ? 16 : 32; }

// Floats that one row (activations) or column (weights) of k terms takes in a panel.
static inline int64_t gb_bytes_row_floats(int64_t k, int kind) { return k / 4 + k / 32 + k / gb_bytes_group(kind); }
static inline int64_t gb_bytes_column_floats(int64_t k, const struct gb_unpack * unpack) {
    return k / 4 + (unpack->zero != 0 ? 1 : 2) * (k / gb_bytes_group(unpack->kind));
}

// Panels of n rows or columns of `width`; the rest of the rows is anything, that of the columns whatever may be
// multiplied. k at most GB_UNPACK_MAX; buf: n times what a column takes.
void gb_bytes_pack_rows(const struct gb_kernels * kernels, const struct gb_unpack * unpack, int64_t k, int n, int width,
    float * y, const void * const * x);
void gb_bytes_pack_columns(const struct gb_kernels * kernels, const struct gb_unpack * unpack, enum ggml_type type,
    int64_t k, int n, int width, float * y, const void * const * x, float * buf);

// The kind of panel, as the tile takes it.
static inline int gb_bytes_tile_kind(const struct gb_unpack * unpack) {
    return unpack->kind | (unpack->zero != 0 ? GB_BYTES_CENTERED : 0);
}

// Rows of activations one after the other, for dot products.
size_t gb_bytes_row_size(int64_t k, int kind);
void gb_bytes_quantize_rows(const struct gb_cpu_call * call, const struct gb_gemm * p, int kind, char * rows);
// dst[j] of n rows, at most GB_BYTE_DOTS_ROWS, from one column of weights. row: quantized.
void gb_bytes_dots(const struct gb_kernels * kernels, const struct gb_unpack * unpack, enum ggml_type type, int64_t k,
    const char * w, int n, const char * row, float * const * dst, int64_t j);

#endif // GB_CPU_OPS_PRODUCT_BYTES_H
