// iq4.h - the common part of IQ4_NL and IQ4_XS: 16 levels that are closer together near 0, where most weights are.
//
// A nibble is an index into a fixed table of signed bytes. The boundaries between levels are halves
// of integers. So a table with one entry for each integer part of twice the quotient finds the
// nearest level in searches.
#ifndef GB_TENSOR_QUANT_IQ4_H
#define GB_TENSOR_QUANT_IQ4_H

#include <math.h>
#include <string.h>

#include "tensor/quant/blocks.h"
#include "tensor/quant/fit.h"

static const int8_t gb_iq4_values[16] = { GB_VALUES_IQ4(GB_VALUE) };

// The index of the nearest value. 0 for NaN.
static inline uint8_t gb_iq4_nearest(float v) {
    int low = 0;
    for (int step = 8; step > 0; step /= 2) { // the last index whose boundary to its predecessor is not above v
        const int i = low + step;
        if (2 * v >= (float) (gb_iq4_values[i - 1] + gb_iq4_values[i])) {
            low = i;
        }
    }
    return (uint8_t) low;
}

// The nearest value itself, for gb_small_fit (small.h).
static inline int gb_iq4_nearest_value(float v) { return gb_iq4_values[gb_iq4_nearest(v)]; }

// The value for each integer part of twice a quotient. A boundary, half the sum of two values, is
// then an integer.
enum { GB_IQ4_FLOOR = -232, GB_IQ4_ROOF = 202, GB_IQ4_RANGE = GB_IQ4_ROOF - GB_IQ4_FLOOR + 1 };

// value: GB_IQ4_RANGE floats, one for each integer from GB_IQ4_FLOOR on.
static inline void gb_iq4_table(float * value) {
    int begin = GB_IQ4_FLOOR;
    for (int k = 0; k < 16; k++) {
        const int end = k < 15 ? gb_iq4_values[k] + gb_iq4_values[k + 1] : GB_IQ4_ROOF + 1;
        for (int i = begin; i < end; i++) {
            value[i - GB_IQ4_FLOOR] = gb_iq4_values[k];
        }
        begin = end;
    }
}

// The weighted sums of x v and v v over the values nearest to x / scale. w x is given. Compilers
// vectorize the simple loops.
static inline void gb_iq4_sums(const float * value, const float * x, const float * w, const float * wx, float scale,
    float * wxv, float * wvv) {
    const float inverse = 2 / scale;
    int32_t cut[32];
    float twice[32], v[32], p[4] = { 0 }, q[4] = { 0 };
    for (int i = 0; i < 32; i++) {
        const float t = x[i] * inverse;
        twice[i] = t > GB_IQ4_FLOOR ? t : GB_IQ4_FLOOR; // NaN: the first value
    }
    for (int i = 0; i < 32; i++) {
        twice[i] = twice[i] < GB_IQ4_ROOF ? twice[i] : GB_IQ4_ROOF;
    }
    for (int i = 0; i < 32; i++) {
        cut[i] = (int32_t) twice[i];
    }
    for (int i = 0; i < 32; i++) {
        cut[i] -= twice[i] < (float) cut[i];
    }
    for (int i = 0; i < 32; i++) {
        v[i] = value[cut[i] - GB_IQ4_FLOOR];
    }
    for (int i = 0; i < 32; i += 4) {
        for (int k = 0; k < 4; k++) {
            p[k] += wx[i + k] * v[i + k];
            q[k] += w[i + k] * v[i + k] * v[i + k];
        }
    }
    *wxv = p[0] + p[1] + p[2] + p[3];
    *wvv = q[0] + q[1] + q[2] + q[3];
}

// The scale of 32 elements: least squares for the values of the best of several trial scales. 0 for
// zeros.
static inline float gb_iq4_fit(const float * x, const float * w) {
    const float extreme = gb_fit_extreme(32, x);
    float scale = 0, best = 0;
    if (!(fabsf(extreme) > 1e-30f) || isinf(extreme)) {
        return 0;
    }
    float value[GB_IQ4_RANGE], wx[32];
    gb_iq4_table(value);
    for (int i = 0; i < 32; i++) {
        wx[i] = w[i] * x[i];
    }
    for (int t = 0; t < 2 * 19; t++) {  // maps the extreme near either end of the values
        const float end = t % 2 ? -127 : 113;
        float wxv, wvv;
        gb_iq4_sums(value, x, w, wx, extreme / (end * (0.82f + 0.02f * (float) (t / 2))), &wxv, &wvv);
        if (wvv > 0 && wxv * wxv > best * wvv) {
            scale = wxv / wvv;
            best = scale * wxv;
        }
    }
    return scale;
}

#endif // GB_TENSOR_QUANT_IQ4_H
