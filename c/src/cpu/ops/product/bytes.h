// bytes.h - products of quantized weights with activations that are rounded to bytes. All
// algorithms that round activations to bytes use it.
//
// Weights are used as they are stored. Activations are rounded to one of 255 levels, in groups of
// 32. The scale of a group is its largest magnitude / 127. So the error of a result is at most the
// sum over groups of (max |x| / 254) sum |w|, plus the rounding of a float sum. Nodes with
// GGML_PREC_F32 do not round. Nodes with GGML_PREC_F16 round twice (two_bytes.c).
#ifndef GB_CPU_OPS_PRODUCT_BYTES_H
#define GB_CPU_OPS_PRODUCT_BYTES_H

#include "cpu/ops/product/product.h"

struct gb_unpack {
    gb_kernel_unpack * fn; // NULL: the format has none
    int kind; // GB_BYTES_*
    int zero; // the level of 0 in all groups; 0: groups have minima
};

struct gb_unpack gb_unpack_of(const struct gb_kernels * k, enum ggml_type type);

// NULL if activations may be rounded to bytes, at every level. Otherwise the reason, a static text.
const char * gb_bytes_decline(const struct gb_gemm * p);

static inline int64_t gb_bytes_group(int kind) { return kind & GB_BYTES_HALVES ? 16 : 32; }

// The floats of one row (activations) or column (weights) of k terms in a panel.
static inline int64_t gb_bytes_row_floats(int64_t k, int kind) { return k / 4 + k / 32 + k / gb_bytes_group(kind); }
static inline int64_t gb_bytes_column_floats(int64_t k, const struct gb_unpack * unpack) {
    return k / 4 + (unpack->zero != 0 ? 1 : 2) * (k / gb_bytes_group(unpack->kind));
}

// Packs n rows or columns into panels of `width`. Unused rows of a panel have undefined values,
// unused columns any finite values. k is at most GB_UNPACK_MAX. buf: n times the floats of a
// column.
void gb_bytes_pack_rows(const struct gb_kernels * kernels, const struct gb_unpack * unpack, int64_t k, int n, int width,
    float * y, const void * const * x);
void gb_bytes_pack_columns(const struct gb_kernels * kernels, const struct gb_unpack * unpack, enum ggml_type type,
    int64_t k, int n, int width, float * y, const void * const * x, float * buf);

// The kind of panel, for the tile.
static inline int gb_bytes_tile_kind(const struct gb_unpack * unpack) {
    return unpack->kind | (unpack->zero != 0 ? GB_BYTES_CENTERED : 0);
}

// Consecutive rows of activations for dot products.
size_t gb_bytes_row_size(int64_t k, int kind);
void gb_bytes_quantize_rows(const struct gb_cpu_call * call, const struct gb_gemm * p, int kind, char * rows);

// Consecutive columns of weights.
struct gb_bytes_columns {
    const char * data;
    size_t nb; // bytes from one to the next
    int64_t n;
};

// Computes dst[r][j] of n <= GB_BYTE_DOTS_ROWS rows and column j. row: the first of the quantized rows.
void gb_bytes_dots(const struct gb_kernels * kernels, const struct gb_unpack * unpack, enum ggml_type type, int64_t k,
    const struct gb_bytes_columns * w, int n, const char * row, float * const * dst);

#endif // GB_CPU_OPS_PRODUCT_BYTES_H
