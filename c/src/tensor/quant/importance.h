// importance.h - normalizes importances for the formats.
//
// Only the ratios of importances within a block matter, because the sums of a fit are linear in
// them. So every block gets its own power of two, which brings its largest importance into [1, 2).
// An importance below 2^-32 counts as 2^-32. So sums of products and their squares stay within f32,
// and an element of importance 0 still gets the nearest level. A block whose importances are all 0
// is quantized without importances. A negative or NaN importance counts as 0, an infinite one as
// the largest number.
#ifndef GB_TENSOR_QUANT_IMPORTANCE_H
#define GB_TENSOR_QUANT_IMPORTANCE_H

#include "tensor/quant/quant.h"

// Writes n importances, whole blocks of f.
void gb_importance_normalize(const struct gb_quant_format * f, const float * importance, int64_t n, float * out);

// The importances of the block that begins at element i of a row. NULL: quantize the block without
// importances.
static inline const float * gb_importance_of(const float * importance, int64_t i) {
    return importance != NULL && importance[i] > 0 ? importance + i : NULL;
}

#endif // GB_TENSOR_QUANT_IMPORTANCE_H
