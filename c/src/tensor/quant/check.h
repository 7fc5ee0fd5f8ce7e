// check.h - finds numbers that a format cannot hold: NaN, infinities, and numbers too large for its scales.
//
// One such number damages its whole block. Rows are checked in parts, right after each part was
// quantized, while it is in the cache. Nearly all parts have no number above the limit of the
// format. Checking these costs one pass of integer arithmetic.
#ifndef GB_TENSOR_QUANT_CHECK_H
#define GB_TENSOR_QUANT_CHECK_H

#include "tensor/quant/quant.h"

// True if a magnitude is above the limit or NaN.
bool gb_any_above(const float * x, int64_t n, float limit);

// n_rows rows of n_per_row floats, whole blocks. importance: NULL, or normalized (importance.h).
// hist: NULL, or 16 counters, which are incremented on success. It needs GGML_ON_INVALID_ERROR.
// GGML_ON_INVALID_ERROR stops at the first number that a block cannot hold, writes its index to
// *invalid, and returns false without a report. *invalid is -1 in all other cases. False and -1:
// memory ran out (reported).
bool gb_quantize_checked(const struct gb_quant_format * f, const float * src, void * dst, int64_t n_rows,
    int64_t n_per_row, const float * importance, int64_t * hist, enum ggml_on_invalid on_invalid, int64_t * invalid);

// Quantizes a row of k whole blocks. A block with a number that it cannot hold becomes NaN, or is
// clipped in formats without NaN.
void gb_quantize_row(const struct gb_quant_format * f, const float * x, void * y, int64_t k);

// Defines the row function of a format, from_float.
#define GB_QUANT_ROWS(stem) \
    static void from_float(const float * x, void * y, int k) { gb_quantize_row(&gb_quant_##stem, x, y, k); }

// Defines a format for activations, used only in products, from `to_float` and `quantize`.
// reference: from_float, or NULL if the specification has no such algorithm.
#define GB_ACTIVATION_FORMAT(stem, reference)        \
    GB_QUANT_ROWS(stem)                              \
    const struct gb_quant_format gb_quant_##stem = { \
        GB_MEMBERS_OF_ROW(stem),                     \
        .to_float = to_float,                        \
        .from_float = from_float,                    \
        .from_float_reference = reference,           \
        .limit = 1e38f, /* 127 d is finite */        \
        .nan = GB_NAN_F32,                           \
        .nan_at = GB_AT(stem, d),                    \
        .quantize = quantize,                        \
    };

#endif // GB_TENSOR_QUANT_CHECK_H
