// quant.h - the functions of a quantized format, which pack rows of floats into blocks and unpack
// them. formats.def has the numbers of each format.
//
//   formats.def, blocks.h     the numbers and the fields of each format, as a table and as constants
//   <stem>.c                  the arithmetic of one format;  bits.h: fields at any address
//   legacy.h, kquant.h, q45_k.h, iq4.h, grid.h, ternary.h, low.h   the common part of a family of formats
//   fit.c, small.c            the choice of scales: least squares; scales with few values
//   grid.c, grids.c           codebooks, and their rows (tools/gen_grids.py)
//   importance.c              importances in the form that formats use
//   check.c, quantize.c       numbers that a format cannot hold; the public functions
//
// Each format is one constant of this struct, gb_quant_<stem>. types.c makes a table of them from
// formats.def. Rows are whole blocks. A function that a format does not have is NULL.
#ifndef GB_TENSOR_QUANT_QUANT_H
#define GB_TENSOR_QUANT_QUANT_H

#include <stdbool.h>
#include <stdint.h>

#include "ggml.h"
#include "tensor/quant/blocks.h"

// Where a block stores NaN in its scale. All its elements are then NaN.
enum gb_quant_nan {
    GB_NAN_NONE, // formats that have no NaN
    GB_NAN_F16,
    GB_NAN_F32,
    GB_NAN_SPREAD, // an f16, split into the upper four bits of each of four words of 16 bits
};

#define GB_F16_MAX 65504.0f

struct gb_quant_format {
    ggml_to_float_t to_float;
    ggml_from_float_t from_float; // rows without checks and reports; numbers that do not fit become NaN (check.h)
    ggml_from_float_t from_float_reference; // the algorithm of the specification, bit for bit
    ggml_vec_dot_t vec_dot;

    // From the row: the use of the format, and facts of a block.
    enum gb_use use;
    enum ggml_type vec_dot_type; // of vec_dot's second operand
    int elements, bytes;

    // Any block holds numbers up to `limit` in magnitude, a block with weights up to half of it. If
    // `saturates`, no block holds more. Otherwise larger numbers depend on the block (check.h).
    float limit;
    bool saturates;
    enum gb_quant_nan nan;
    int nan_at; // byte

    // Quantizes n_rows rows of n_per_row floats. A number that the format cannot hold (NaN,
    // infinities) spoils only its block, and check.h finds it afterwards. importance: NULL, or
    // n_per_row importances, normalized by importance.h and the same for every row. hist: NULL, or
    // 16 counters that are incremented.
    void (*quantize)(const float * src, void * dst, int64_t n_rows, int64_t n_per_row, const float * importance,
        int64_t * hist);
};

// The members from the row.
#define GB_MEMBERS_OF_ROW(stem)                                                                             \
    .use = (enum gb_use) gb_use_of_##stem, .vec_dot_type = GB_PARTNER(stem), .elements = GB_ELEMENTS(stem), \
    .bytes = GB_BYTES(stem)

// The format of a type, a constant. NULL for an invalid number, and for a format that only has a
// size.
const struct gb_quant_format * gb_quant_format_of(enum ggml_type type);

#define GB_FORMAT(id, stem, ...) extern const struct gb_quant_format gb_quant_##stem;
#include "tensor/quant/formats.def"
#undef GB_FORMAT

#endif // GB_TENSOR_QUANT_QUANT_H
