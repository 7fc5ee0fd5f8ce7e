// quant.h - what a quantized format is, beyond its size: how to pack rows of floats into blocks and back.
//
// One constant of this struct per format, listed in formats.def; types.c turns the list into a table. Rows are whole
// blocks. A function that a format does not have is NULL.
#ifndef GB_TENSOR_QUANT_QUANT_H
#define GB_TENSOR_QUANT_QUANT_H

#include <stdbool.h>
#include <stdint.h>

#include "ggml.h"

// Where a block holds a number that can be NaN, and with it all that comes back: the scale.
enum gb_quant_nan {
    GB_NAN_NONE, // formats that have no NaN
    GB_NAN_F16,
    GB_NAN_F32,
    GB_NAN_SPREAD, // an f16, four bits in each of four words of 16 bits, in the upper ones
};

#define GB_F16_MAX 65504.0f

struct gb_quant_format {
    ggml_to_float_t   to_float;
    ggml_from_float_t from_float; // rows without checks and reports: what cannot be held becomes NaN (check.h)
    ggml_from_float_t from_float_reference; // the algorithm of the specification, bit for bit
    ggml_vec_dot_t    vec_dot;
    enum ggml_type    vec_dot_type; // of vec_dot's second operand

    // Of a block. Any block holds numbers up to `limit` in magnitude, one with weights up to half of it; `saturates`:
    // none holds more. Beyond that it depends on the others in the block (check.h).
    int               elements, bytes;
    float             limit;
    bool              saturates;
    enum gb_quant_nan nan;
    int               nan_at; // byte

    // n_rows rows of n_per_row floats. What the format cannot hold, NaN and infinities among it, makes blocks of no
    // meaning, no more: check.h comes after it. importance: NULL, or n_per_row weights used for every row. hist: NULL,
    // or 16 counters that are incremented.
    void (*quantize)(const float * src, void * dst, int64_t n_rows, int64_t n_per_row, const float * importance,
        int64_t * hist);

    // k values as unsigned bytes, for products: value i is d[i / 16] u[i] + m[i / 16]. Super-blocks only.
    void (*to_bytes)(const void * x, int64_t k, uint8_t * u, float * d, float * m);
};

// NULL: no such format, or one that only has a size.
const struct gb_quant_format * gb_quant_format_of(enum ggml_type type);

#define GB_QUANT_FORMAT(id, stem) extern const struct gb_quant_format gb_quant_##stem;
#include "formats.def"
#undef GB_QUANT_FORMAT

#endif // GB_TENSOR_QUANT_QUANT_H
