// small.h - quantizes blocks of values so small that f16 cannot hold their scale.
//
// The smallest step of f16 is 2^-24. Rounding a scale of a few such steps has a large relative
// error, or gives zero. The levels that were chosen for the exact scale then represent wrong
// values. In that case (gb_scale_is_inexact) a format chooses scales that f16 holds, and levels for
// them, by the least squared error. The error is never larger than that of zeros. Blocks with
// larger scales do not use these functions.
#ifndef GB_TENSOR_QUANT_SMALL_H
#define GB_TENSOR_QUANT_SMALL_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

// True if rounding a small scale d to f16 moves level n, up to 127, times d by more than half a
// level. From 2^-14 on f16 has 11 bits.
static inline bool gb_scale_is_inexact(float d, float stored, int n) {
    return fabsf(d) < 0x1p-14f && 2 * (float) n * fabsf(stored - d) > fabsf(d);
}

// n for formats that find their levels again for the stored scale: only the range matters.
enum { GB_REFITTED = 8 };

// The level nearest to a quotient, as its value.
typedef int (*gb_nearest_t)(float v);

// x ~ d level + m for n values and a given m. w: weights, or NULL. Returns the better of the f16
// numbers on both sides of d, with its levels.
float gb_small_fit(int n, const float * x, const float * w, gb_nearest_t nearest, float d, float m, int8_t * levels);

// A super-block: x ~ d scale[s] level - dmin min[s] in sub-blocks of `size`. Scales are between
// scale_low and scale_high, minima up to min_high.
struct gb_small_super {
    int n_sub, size, scale_low, scale_high, min_high; // min_high 0: none
    gb_nearest_t nearest;
    float d, dmin;  // in: exact, with sign; out: f16 numbers
    int8_t scale[16], min[16];
    int8_t level[256];
};

// scales and mins: exact values of the sub-blocks. Each gets the pair of integers near these, or
// zeros, with the least error.
void gb_small_super_fit(struct gb_small_super * b, const float * x, const float * w, const float * scales,
    const float * mins);

// The f16 numbers next to v: towards zero and away from it.
float gb_f16_inward(float v);
float gb_f16_outward(float v);

#endif // GB_TENSOR_QUANT_SMALL_H
