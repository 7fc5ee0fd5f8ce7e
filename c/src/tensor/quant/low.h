// low.h - the common part of Q1_0 and Q2_0: one f16 scale d for 64 or 128 small levels, y = d level. Their partner in
// products is Q8_0. Importance is ignored.
#ifndef GB_TENSOR_QUANT_LOW_H
#define GB_TENSOR_QUANT_LOW_H

#include "base/mem.h"
#include "tensor/quant/bits.h"
#include "tensor/quant/check.h"
#include "tensor/quant/quant.h"

// The dot product of levels with blocks of Q8_0, times their scales. n: whole blocks of 32.
static inline float gb_low_dot(int n, const int8_t * levels, const uint8_t * y) {
    float total = 0;
    for (int e = 0; e < n; e += GB_ELEMENTS(q8_0), y += GB_BYTES(q8_0)) {
        const int8_t * q = (const int8_t *) y + GB_AT(q8_0, qs);
        int32_t sum = 0;
        for (int i = 0; i < GB_ELEMENTS(q8_0); i++) {
            sum += levels[e + i] * q[i];
        }
        total += gb_load_f16(y + GB_AT(q8_0, d)) * (float) sum;
    }
    return total;
}

// Defines the constant of a format from its two block functions, `static void quantize_block(const float * x, uint8_t *
// block)` and `static void unpack_block(const uint8_t * block, int8_t * levels)`.
#define GB_LOW_FORMAT(stem)                                                                                          \
    static_assert(GB_PARTNER(stem) == GGML_TYPE_Q8_0, "see gb_low_dot");                                             \
    static void to_float(const void * x, float * y, int k) {                                                         \
        const uint8_t * block = x;                                                                                   \
        for (int i = 0; i < k; i += GB_ELEMENTS(stem), block += GB_BYTES(stem)) {                                    \
            int8_t levels[GB_ELEMENTS(stem)];                                                                        \
            const float d = gb_load_f16(block + GB_AT(stem, d));                                                     \
            unpack_block(block, levels);                                                                             \
            for (int e = 0; e < GB_ELEMENTS(stem); e++) {                                                            \
                y[i + e] = d * (float) levels[e];                                                                    \
            }                                                                                                        \
        }                                                                                                            \
    }                                                                                                                \
    GB_QUANT_ROWS(stem)                                                                                              \
    static void vec_dot(const int n, float * s, const void * x, const void * y) {                                    \
        const uint8_t *block = x, *partner = y;                                                                      \
        float total = 0;                                                                                             \
        for (int i = 0; i < n; i += GB_ELEMENTS(stem), block += GB_BYTES(stem)) {                                    \
            int8_t levels[GB_ELEMENTS(stem)];                                                                        \
            unpack_block(block, levels);                                                                             \
            total += gb_load_f16(block + GB_AT(stem, d)) * gb_low_dot(GB_ELEMENTS(stem), levels, partner);           \
            partner += GB_ELEMENTS(stem) / GB_ELEMENTS(q8_0) * GB_BYTES(q8_0);                                       \
        }                                                                                                            \
        *s = total;                                                                                                  \
    }                                                                                                                \
    static void quantize(const float * src, void * dst, int64_t n_rows, int64_t n_per_row, const float * importance, \
        int64_t * hist) {                                                                                            \
        uint8_t * block = dst;                                                                                       \
        (void) importance;                                                                                           \
        (void) hist;                                                                                                 \
        for (int64_t i = 0; i < n_rows * n_per_row; i += GB_ELEMENTS(stem), block += GB_BYTES(stem)) {               \
            quantize_block(src + i, block);                                                                          \
        }                                                                                                            \
    }                                                                                                                \
    const struct gb_quant_format gb_quant_##stem = {                                                                 \
        GB_MEMBERS_OF_ROW(stem),                                                                                     \
        .limit = GB_F16_MAX,                                                                                         \
        .nan = GB_NAN_F16,                                                                                           \
        .nan_at = GB_AT(stem, d),                                                                                    \
        .to_float = to_float,                                                                                        \
        .vec_dot = vec_dot,                                                                                          \
        .from_float = from_float,                                                                                    \
        .from_float_reference = from_float,                                                                          \
        .quantize = quantize,                                                                                        \
    };

#endif // GB_TENSOR_QUANT_LOW_H
