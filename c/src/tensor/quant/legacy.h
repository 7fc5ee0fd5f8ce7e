// legacy.h - the common part of the formats with blocks of 32 elements: packing of 4- and 5-bit
// levels, rows, histograms.
//
// A block is integers and one or two floats (struct gb_block). A format defines how to unpack and
// quantize it. Dequantizing and dot products follow from that. Nibbles (qs): element j is in the
// low half of byte j, element j + 16 in the high half. Fifth bits (qh): the fifth bit of element i
// is bit i of a little-endian word.
#ifndef GB_TENSOR_QUANT_LEGACY_H
#define GB_TENSOR_QUANT_LEGACY_H

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/quant/bits.h"
#include "tensor/quant/check.h"
#include "tensor/quant/fit.h"
#include "tensor/quant/importance.h"
#include "tensor/quant/quant.h"
#include "tensor/quant/small.h"

enum { GB_BLOCK = 32 };

struct gb_block { // element i is d level[i] + m
    float d, m;
    int8_t level[GB_BLOCK];
};

// Levels 0 .. 15, or of 5-bit levels the lower four bits.
static inline void gb_pack_nibbles(const uint8_t * levels, uint8_t * qs) {
    for (int j = 0; j < GB_BLOCK / 2; j++) {
        qs[j] = (uint8_t) ((levels[j] & 15) | (levels[j + 16] << 4));
    }
}

// The reverse: levels 0 .. 15.
static inline void gb_unpack_nibbles(const uint8_t * qs, int8_t * levels) {
    for (int j = 0; j < GB_BLOCK / 2; j++) {
        levels[j] = qs[j] & 15;
        levels[j + 16] = qs[j] >> 4;
    }
}

// The fifth bits of 32 levels.
static inline void gb_pack_fifth(const uint8_t * levels, uint8_t * qh) {
    memset(qh, 0, 4);
    for (int i = 0; i < GB_BLOCK; i++) {
        qh[i / 8] |= (uint8_t) ((levels[i] >> 4 & 1) << i % 8);
    }
}

// Adds 16 to the levels whose fifth bit is set. The lower four bits must be set already.
static inline void gb_unpack_fifth(const uint8_t * qh, int8_t * levels) {
    for (int i = 0; i < 4; i++) {
        uint64_t eight;
        memcpy(&eight, levels + 8 * i, sizeof(eight));
        eight |= gb_spread_bits(qh[i]) << 4;
        memcpy(levels + 8 * i, &eight, sizeof(eight));
    }
}

// The minimum and the maximum of a block.
static inline void gb_block_range(const float * x, float * low, float * high) {
    *low = *high = x[0];
    for (int i = 1; i < GB_BLOCK; i++) {
        *low = x[i] < *low ? x[i] : *low;
        *high = x[i] > *high ? x[i] : *high;
    }
}

// v cut to 0 .. max, also if it is infinite. NaN: 0.
static inline uint8_t gb_level(float v, int max) {
    if (!(v > 0)) {
        return 0;
    }
    return v >= (float) max ? (uint8_t) max : (uint8_t) v;
}

static inline float gb_block_largest(const float * x) { // magnitude; NaN does not count
    float lanes[4] = { 0 }, largest = 0;
    for (int i = 0; i < GB_BLOCK; i += 4) {
        for (int k = 0; k < 4; k++) {
            const float magnitude = fabsf(x[i + k]);
            lanes[k] = magnitude > lanes[k] ? magnitude : lanes[k];
        }
    }
    for (int k = 0; k < 4; k++) {
        largest = lanes[k] > largest ? lanes[k] : largest;
    }
    return largest;
}

// Signed bytes, rounded half away from zero, 0 for NaN. Returns the scale. Compilers vectorize the
// simple loops.
static inline float gb_quantize_bytes(const float * x, int8_t * q) {
    const float d = gb_block_largest(x) / 127;
    const float id = d >= 0x1p-126f ? 1 / d : 0; // below, 1 / d is infinite: zeros
    float v[GB_BLOCK];
    int32_t whole[GB_BLOCK];
    for (int i = 0; i < GB_BLOCK; i++) {
        const float product = x[i] * id;
        v[i] = product == product ? product : 0;
    }
    for (int i = 0; i < GB_BLOCK; i++) {
        v[i] = v[i] > -127 ? v[i] : -127;
    }
    for (int i = 0; i < GB_BLOCK; i++) {
        v[i] = v[i] < 127 ? v[i] : 127;
    }
    for (int i = 0; i < GB_BLOCK; i++) {
        whole[i] = (int32_t) v[i];
    }
    for (int i = 0; i < GB_BLOCK; i++) {
        const float rest = v[i] - (float) whole[i]; // exact
        whole[i] += (rest >= 0.5f) - (rest <= -0.5f);
    }
    for (int i = 0; i < GB_BLOCK; i++) {
        q[i] = (int8_t) whole[i];
    }
    return d;
}

// gb_store_symmetric and gb_store_affine store the result for a block: d, and m if the format has
// one. If f16 cannot hold d, they choose another d with its levels. `zero` is the level of 0.
static_assert(GB_AT(q4_0, d) == 0 && GB_AT(q5_0, d) == 0, "where gb_store_symmetric writes");
static_assert(GB_AT(q5_1, d) == GB_AT(q4_1, d) && GB_AT(q5_1, m) == GB_AT(q4_1, m), "where gb_store_affine writes");

static inline void gb_store_symmetric(uint8_t * block, float d, const float * x, const float * w, gb_nearest_t nearest,
    int zero, uint8_t * levels) {
    if (gb_scale_is_inexact(d, gb_store_f16(block, d), zero)) {
        int8_t chosen[GB_BLOCK];
        gb_store_f16(block, gb_small_fit(GB_BLOCK, x, w, nearest, d, 0, chosen));
        for (int i = 0; i < GB_BLOCK; i++) {
            levels[i] = (uint8_t) (chosen[i] + zero);
        }
    }
}

// Finds the levels for the stored m. n_levels is the highest level.
static inline void gb_store_affine(uint8_t * block, float d, float m, const float * x, const float * w,
    gb_nearest_t nearest, int n_levels, uint8_t * levels) {
    uint8_t * const scale = block + GB_AT(q4_1, d);
    const float offset = gb_store_f16(block + GB_AT(q4_1, m), m);
    if (gb_scale_is_inexact(d, gb_store_f16(scale, d), n_levels)) {
        gb_store_f16(scale, gb_small_fit(GB_BLOCK, x, w, nearest, d, offset, (int8_t *) levels));
    }
}

static const struct gb_fit_search gb_legacy_search = { -0.9f, 0.05f, 36, false };

// Quantizes one block: x and, with an importance matrix, its weights (else NULL). Writes the block,
// and levels for the histogram.
typedef void (*gb_quantize_block_t)(const float * x, const float * w, uint8_t * block, uint8_t * levels);

// Quantizes block by block. With importances the weights of a block depend on the mean square of
// its row.
static inline void gb_quantize_rows(const float * src, uint8_t * dst, int64_t n_rows, int64_t n_per_row,
    size_t block_size, gb_quantize_block_t quantize, const float * importance, int hist_shift, int64_t * hist) {
    uint8_t levels[GB_BLOCK];
    float w[GB_BLOCK];
    for (int64_t r = 0; r < n_rows; r++) {
        const float * row = src + r * n_per_row;
        const float sigma2 = importance ? gb_fit_mean_square(n_per_row, row) : 0;
        for (int64_t i = 0; i < n_per_row; i += GB_BLOCK, dst += block_size) {
            const float * given = gb_importance_of(importance, i);
            if (given != NULL) {
                gb_fit_importance(GB_BLOCK, row + i, given, sigma2, w);
            }
            quantize(row + i, given != NULL ? w : NULL, dst, levels);
            for (int j = 0; hist && j < GB_BLOCK; j++) {
                hist[levels[j] >> hist_shift]++;
            }
        }
    }
}

// The block's part of a dot product: with Q8_0 if m is always 0, else (affine) with Q8_1. The sum
// of integers is exact.
static inline float gb_block_dot(const struct gb_block * b, const uint8_t * y, bool affine) {
    const int8_t * q = (const int8_t *) y + (affine ? GB_AT(q8_1, qs) : GB_AT(q8_0, qs));
    int32_t sum = 0;
    for (int i = 0; i < GB_BLOCK; i++) {
        sum += b->level[i] * q[i];
    }
    if (!affine) {
        return b->d * gb_load_f16(y + GB_AT(q8_0, d)) * (float) sum;
    }
    float d, s;
    memcpy(&d, y + GB_AT(q8_1, d), sizeof(d));
    memcpy(&s, y + GB_AT(q8_1, sum), sizeof(s));
    return b->d * d * (float) sum + b->m * s;
}

// Defines the constant of a format from its two block functions, `quantize_block` and `static void
// unpack_block(const uint8_t * block, struct gb_block * b)`. unpack_block may leave m unset if it
// is always 0. hist_shift: bits of a level that its histogram leaves out. limit_: see quant.h.
// Without NaN, the limit of these formats holds for any block.
#define GB_BLOCK_FORMAT(stem, hist_shift, limit_, nan_)                                                                \
    static_assert(GB_PARTNER(stem) == GGML_TYPE_Q8_0 || GB_PARTNER(stem) == GGML_TYPE_Q8_1, "see gb_block_dot");       \
    enum { IS_AFFINE = GB_PARTNER(stem) == GGML_TYPE_Q8_1 };                                                           \
    static void to_float(const void * x, float * y, int k) {                                                           \
        for (int i = 0; i < k; i += GB_BLOCK) {                                                                        \
            struct gb_block b = { .m = 0 };                                                                            \
            unpack_block((const uint8_t *) x + (size_t) (i / GB_BLOCK) * GB_BYTES(stem), &b);                          \
            for (int j = 0; j < GB_BLOCK; j++) {                                                                       \
                y[i + j] = IS_AFFINE ? (float) b.level[j] * b.d + b.m : (float) b.level[j] * b.d;                      \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    GB_QUANT_ROWS(stem)                                                                                                \
    static void vec_dot(const int n, float * s, const void * x, const void * y) {                                      \
        const size_t partner_bytes = IS_AFFINE ? GB_BYTES(q8_1) : GB_BYTES(q8_0);                                      \
        float sum = 0;                                                                                                 \
        for (int i = 0; i < n / GB_BLOCK; i++) {                                                                       \
            struct gb_block b = { .m = 0 };                                                                            \
            unpack_block((const uint8_t *) x + (size_t) i * GB_BYTES(stem), &b);                                       \
            sum += gb_block_dot(&b, (const uint8_t *) y + (size_t) i * partner_bytes, IS_AFFINE);                      \
        }                                                                                                              \
        *s = sum;                                                                                                      \
    }                                                                                                                  \
    static void quantize(const float * src, void * dst, int64_t n_rows, int64_t n_per_row, const float * importance,   \
        int64_t * hist) {                                                                                              \
        gb_quantize_rows(src, dst, n_rows, n_per_row, GB_BYTES(stem), quantize_block, importance, (hist_shift), hist); \
    }                                                                                                                  \
    const struct gb_quant_format gb_quant_##stem = {                                                                   \
        GB_MEMBERS_OF_ROW(stem),                                                                                       \
        .to_float = to_float,                                                                                          \
        .from_float = from_float,                                                                                      \
        .from_float_reference = from_float,                                                                            \
        .vec_dot = vec_dot,                                                                                            \
        .limit = (limit_),                                                                                             \
        .saturates = (nan_) == GB_NAN_NONE,                                                                            \
        .nan = (nan_),                                                                                                 \
        .nan_at = 0,                                                                                                   \
        .quantize = quantize,                                                                                          \
    };

// Without an offset, the limit is a level times the largest f16, so each format gives its own.
#define GB_SYMMETRIC_FORMAT(stem, hist_shift, limit) GB_BLOCK_FORMAT(stem, hist_shift, limit, GB_NAN_F16)
#define GB_AFFINE_FORMAT(stem, hist_shift) GB_BLOCK_FORMAT(stem, hist_shift, GB_F16_MAX, GB_NAN_F16)

#endif // GB_TENSOR_QUANT_LEGACY_H
