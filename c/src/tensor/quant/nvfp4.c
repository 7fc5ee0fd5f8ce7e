// nvfp4.c - 64 elements in 36 bytes: y = scale / 2 times twice the e2m1 value of the nibble. For
// each 16 elements: a scale, which is a float of 8 bits (4 bits of exponent, 3 of mantissa, no
// sign), then their nibbles. Byte j has the nibbles of elements j and j + 8.
#include <math.h>

#include "base/mem.h"
#include "tensor/quant/bits.h"
#include "tensor/quant/check.h"
#include "tensor/quant/fit.h"
#include "tensor/quant/importance.h"
#include "tensor/quant/quant.h"

enum { BLOCK = GB_ELEMENTS(nvfp4), SUB = 16, N_SUB = 4, BYTES = GB_BYTES(nvfp4), LARGEST_SCALE = 0x7e };

static const int8_t values[16] = { GB_VALUES_E2M1(GB_VALUE) };

// Half the scale. The code of NaN counts as 0.
static float half_scale(uint8_t code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    if (code == 0x7f) {
        return 0;
    }
    return exponent == 0 ? ldexpf((float) mantissa, -10) : ldexpf((float) (8 + mantissa), exponent - 11);
}

// The largest code whose half scale is not above d.
static int code_below(float d) {
    int low = 0;
    for (int step = 64; step > 0; step /= 2) {
        if (low + step <= LARGEST_SCALE && half_scale((uint8_t) (low + step)) <= d) {
            low += step;
        }
    }
    return low;
}

// The index of the value nearest to v, the first of equals; NaN: 0.
static uint8_t nearest(float v) {
    const float magnitude = fabsf(v);
    uint8_t i = 0;
    while (i < 7 && 2 * magnitude > (float) (values[i] + values[i + 1])) {
        i++;
    }
    return (uint8_t) (v < 0 && i > 0 ? i + 8 : i);
}

// The weighted squared error of 16 elements with half scale d and their nearest values.
static float error_of(const float * x, const float * w, float d) {
    float error = 0;
    for (int i = 0; i < SUB; i++) {
        const float e = x[i] - d * (float) values[nearest(d > 0 ? x[i] / d : 0)];
        error += (w != NULL ? w[i] : 1) * e * e;
    }
    return error;
}

// The best scale near the scale that maps the largest magnitude to the largest value.
static uint8_t fit_scale(const float * x, const float * w) {
    const int start = code_below(fabsf(gb_fit_extreme(SUB, x)) / 12);
    int best = start;
    float least = error_of(x, w, half_scale((uint8_t) start));
    for (int code = GB_MAX(start - 1, 0); code <= GB_MIN(start + 4, LARGEST_SCALE); code++) {
        const float error = code == start ? least : error_of(x, w, half_scale((uint8_t) code));
        if (error < least) {
            least = error;
            best = code;
        }
    }
    return (uint8_t) best;
}

// Sub-blocks are independent. Each gets the best scale near that of its largest magnitude.
static void quantize_block(const float * x, const float * w, uint8_t * block) {
    for (int s = 0; s < N_SUB; s++, x += SUB) {
        uint8_t levels[SUB];
        block[GB_AT(nvfp4, scales) + s] = fit_scale(x, w != NULL ? w + SUB * s : NULL);
        const float d = half_scale(block[GB_AT(nvfp4, scales) + s]);
        for (int i = 0; i < SUB; i++) {
            levels[i] = nearest(d > 0 ? x[i] / d : 0);
        }
        for (int j = 0; j < SUB / 2; j++) {
            block[GB_AT(nvfp4, qs) + SUB / 2 * s + j] = (uint8_t) (levels[j] | levels[j + SUB / 2] << 4);
        }
    }
}

// The e2m1 values, times 2, of all 64 elements.
static void unpack(const uint8_t * block, int8_t * levels) {
    for (int s = 0; s < N_SUB; s++) {
        for (int j = 0; j < SUB / 2; j++) {
            const uint8_t byte = block[GB_AT(nvfp4, qs) + SUB / 2 * s + j];
            levels[SUB * s + j] = values[byte & 15];
            levels[SUB * s + j + SUB / 2] = values[byte >> 4];
        }
    }
}

static void to_float(const void * x, float * y, int k) {
    const uint8_t * block = x;
    for (int i = 0; i < k; i += BLOCK, block += BYTES) {
        int8_t levels[BLOCK];
        unpack(block, levels);
        for (int sub = 0; sub < N_SUB; sub++) {
            const float d = half_scale(block[GB_AT(nvfp4, scales) + sub]);
            for (int e = SUB * sub; e < SUB * (sub + 1); e++) {
                y[i + e] = d * (float) levels[e];
            }
        }
    }
}

GB_QUANT_ROWS(nvfp4)

// The dot product with two blocks of Q8_0.
static void vec_dot(const int n, float * s, const void * x, const void * y) {
    const uint8_t *block = x, *q8 = y;
    float total = 0;
    for (int i = 0; i < n; i += BLOCK, block += BYTES) {
        int8_t levels[BLOCK];
        unpack(block, levels);
        for (int sub = 0; sub < N_SUB; sub++) {
            const uint8_t * partner = q8 + (size_t) (2 * (i / BLOCK) + sub / 2) * GB_BYTES(q8_0);
            const int8_t * q = (const int8_t *) partner + GB_AT(q8_0, qs) + SUB * (sub % 2);
            int32_t sum = 0;
            for (int j = 0; j < SUB; j++) {
                sum += levels[SUB * sub + j] * q[j];
            }
            total +=
                half_scale(block[GB_AT(nvfp4, scales) + sub]) * gb_load_f16(partner + GB_AT(q8_0, d)) * (float) sum;
        }
    }
    *s = total;
}

// Uses the importance of each element as given, without its magnitude.
static void quantize(const float * src, void * dst, int64_t n_rows, int64_t n_per_row, const float * importance,
    int64_t * hist) {
    uint8_t * block = dst;
    (void) hist;
    for (int64_t r = 0; r < n_rows; r++, src += n_per_row) {
        for (int64_t i = 0; i < n_per_row; i += BLOCK, block += BYTES) {
            quantize_block(src + i, gb_importance_of(importance, i), block);
        }
    }
}

// Writes no NaN, because a scale code of NaN counts as 0. The largest number is 448 times 6.
const struct gb_quant_format gb_quant_nvfp4 = {
    GB_MEMBERS_OF_ROW(nvfp4),
    .to_float = to_float,
    .from_float = from_float,
    .from_float_reference = from_float,
    .vec_dot = vec_dot,
    .limit = 448 * 6,
    .saturates = true,
    .quantize = quantize,
};
