// importance.c - a power of two for each block of importances (importance.h).
#include "tensor/quant/importance.h"

#include <float.h>
#include <math.h>

// If a format needs importances, a block without importances gets equal ones.
static void normalize_block(const struct gb_quant_format * f, const float * importance, float * out) {
    float largest = 0;
    for (int i = 0; i < f->elements; i++) {
        largest = importance[i] > largest ? importance[i] : largest;
    }
    largest = largest < FLT_MAX ? largest : FLT_MAX;
    if (largest == 0) {
        for (int i = 0; i < f->elements; i++) {
            out[i] = f->use == GB_USE_IMPORTANCE ? 1 : 0;
        }
        return;
    }
    const double factor = ldexp(1, -ilogbf(largest));  // in f64, which does not round these products
    for (int i = 0; i < f->elements; i++) {
        const double scaled = factor * (importance[i] > FLT_MAX ? FLT_MAX : importance[i]);
        out[i] = (float) (scaled > 0x1p-32 ? scaled : 0x1p-32); // NaN: the least
    }
}

void gb_importance_normalize(const struct gb_quant_format * f, const float * importance, int64_t n, float * out) {
    for (int64_t i = 0; i < n; i += f->elements) {
        normalize_block(f, importance + i, out + i);
    }
}
