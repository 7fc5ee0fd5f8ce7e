// packing.h - panels, the packed operands of products of many rows (blocked.c), and the tile that
// multiplies them.
//
// A panel holds the rows of x, or the columns of w, of one tile, with terms outermost, as the tile
// reads them. Its elements are floats, bytes for quantized weights (bytes.h), or pairs of bfloat16.
// Both operands are packed for a stretch of terms at a time. Packing converts weights into a copy.
#ifndef GB_CPU_OPS_PRODUCT_PACKING_H
#define GB_CPU_OPS_PRODUCT_PACKING_H

#include "cpu/ops/product/algorithm.h"

#define GB_PACKED_ROWS_MAX GB_BF16_MR_MAX // of a panel, at all levels
#define GB_PACKED_COLUMNS_MAX GB_GEMM_NR_MAX

enum gb_packed { GB_PACKED_FLOATS, GB_PACKED_BYTES, GB_PACKED_PAIRS };

struct gb_packing {
    const struct gb_kernels * kernels;
    enum gb_packed as;
    struct gb_unpack unpack; // of quantized weights that become bytes or pairs
    int mr, nr; // of a tile
    int step; // pairs: consecutive pairs of a row
    int64_t stretch; // terms; whole blocks
    int columns; // of a chunk
};

struct gb_packing gb_packing_floats(const struct gb_kernels * kernels, const struct gb_gemm * p);
struct gb_packing gb_packing_bytes(const struct gb_kernels * kernels, const struct gb_gemm * p);
// For weights of bfloat16, and for quantized weights, which are converted to bfloat16. x is rounded
// to bfloat16.
struct gb_packing gb_packing_pairs(const struct gb_kernels * kernels, const struct gb_gemm * p);

// The largest sizes that any packing of the product needs at any level of this processor. The level
// of a run is not known when its plan is made.
struct gb_packing_limits {
    int rows; // of a panel
    int64_t row; // floats of a row of x in a panel
    int64_t stretch; // terms: the minimum
    int columns; // of a chunk
    size_t chunk; // floats of a packed stretch of a chunk
    size_t buffer; // floats of temporary memory
};

struct gb_packing_limits gb_packing_limits_of(const struct gb_gemm * p);

// The floats of k terms of a row of x in a panel, and of a column of w.
int64_t gb_packed_row_floats(const struct gb_packing * packing, int64_t k);
int64_t gb_packed_column_floats(const struct gb_packing * packing, int64_t k);

// Packs k terms, at most a stretch, of n rows of x or columns of w into the panel y. All columns
// are of one matrix. If blocks run across columns (gb_gemm_operand), whole chunks are packed
// instead. buffer: gb_packing_limits.buffer floats.
void gb_pack_rows(const struct gb_packing * packing, const struct gb_gemm_operand * x, int64_t k, int n, float * y,
    const void * const * rows, float * buffer);
void gb_pack_columns(const struct gb_packing * packing, const struct gb_gemm_operand * w, int64_t k, int n, float * y,
    const void ** columns, float * buffer);

// Packs columns [first, first + n), whose blocks run across columns, into consecutive panels of
// floats. data: term 0 of column 0 of the matrix. nb: bytes from one block of columns to the next.
void gb_pack_columns_across(const struct gb_packing * packing, const struct gb_gemm_operand * w, int64_t k,
    int64_t first, int n, float * y, const char * data, size_t nb, float * buffer);

// The value of gb_tile.k for panels of k terms, and the tile.
int64_t gb_packed_tile_terms(const struct gb_packing * packing, int64_t k);
void gb_packed_tile(const struct gb_packing * packing, const struct gb_tile * t);

#endif // GB_CPU_OPS_PRODUCT_PACKING_H
