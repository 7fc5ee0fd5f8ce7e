// fit.h - least-squares fits of a scale (and an offset) to a block of floats, for formats where
// dividing by the maximum is not good enough.
//
// Each function returns the scale and writes unsigned levels. x: n values, w: n weights >= 0. All
// arithmetic is in f32. The first index wins ties.
#ifndef GB_TENSOR_QUANT_FIT_H
#define GB_TENSOR_QUANT_FIT_H

#include <stdbool.h>
#include <stdint.h>

// x ~ scale (level - n_levels): symmetric, levels 0 .. 2 n_levels - 1. Tries 19 scales around -n_levels / extreme.
float gb_fit_symmetric(int n, int n_levels, const float * x, const float * w, uint8_t * levels);

// The same with weights x^2 and coordinate descent, which moves each level to fit the scale of the
// other levels.
float gb_fit_symmetric_descent(int n, int n_levels, const float * x, uint8_t * levels);

// x ~ scale level with x >= 0, levels 0 .. n_levels.
float gb_fit_positive(int n, int n_levels, const float * x, const float * w, uint8_t * levels);

// The candidates of gb_fit_affine: scales (start + step t + n_levels) / range for t = 0 .. steps.
// error: squares, or absolute values.
struct gb_fit_search {
    float start, step;
    int steps;
    bool absolute;
};

// x ~ scale level - *minimum, *minimum >= 0, levels 0 .. n_levels.
float gb_fit_affine(int n, int n_levels, const float * x, const float * w, const struct gb_fit_search * search,
    uint8_t * levels, float * minimum);

// Weights: importance[i] sqrt(sigma2 + x[i]^2), where sigma2 is the mean square of the row or
// super-block. They are divided by a power of two near sqrt(sigma2), so that squares of sums stay
// within f32. importance NULL: sqrt(sigma2 + x[i]^2).
void gb_fit_importance(int n, const float * x, const float * importance, float sigma2, float * w);

// 0 for n = 0.
float gb_fit_mean_square(int64_t n, const float * x);

// The element of largest magnitude, with its sign. 0 for n = 0.
float gb_fit_extreme(int n, const float * x);

// Rounds to nearest, ties to even, within [low, high]. NaN gives low.
int gb_fit_round(float v, int low, int high);

#endif // GB_TENSOR_QUANT_FIT_H
