// kquant.h - what the formats with super-blocks of 256 elements share: where the bits of an element lie, sub-block scales, rows.
//
// Levels of a super-block are uint8_t[256]. Element e: half h = e / 128, group g = e % 128 / 32, l = e % 32; chunk c = e / 64.
#ifndef GB_TENSOR_QUANT_KQUANT_H
#define GB_TENSOR_QUANT_KQUANT_H

#include <math.h>
#include <string.h>

#include "base/fp16.h"
#include "base/mem.h"
#include "tensor/quant/fit.h"
#include "tensor/quant/quant.h"

enum { GB_SUPER = 256 };

static inline float gb_k_load_f16(const uint8_t * p) {
    uint16_t h;
    memcpy(&h, p, sizeof(h));
    return gb_f16_to_f32(h);
}

// Returns the value as stored.
static inline float gb_k_store_f16(uint8_t * p, float f) {
    const uint16_t h = gb_f32_to_f16(f);
    memcpy(p, &h, sizeof(h));
    return gb_f16_to_f32(h);
}

// Two bits of an element in qs[64]: bits 2g of byte 32 h + l.
static inline void gb_k_pack2(const uint8_t * levels, uint8_t * qs) {
    memset(qs, 0, 64);
    for (int e = 0; e < GB_SUPER; e++) {
        qs[32 * (e / 128) + e % 32] |= (uint8_t) ((levels[e] & 3) << 2 * (e % 128 / 32));
    }
}

static inline void gb_k_unpack2(const uint8_t * qs, uint8_t * levels) {
    for (int e = 0; e < GB_SUPER; e++) {
        levels[e] = qs[32 * (e / 128) + e % 32] >> 2 * (e % 128 / 32) & 3;
    }
}

// Four bits in qs[128]: byte 32 c + l, low half for the first 32 elements of a chunk, high half for the others.
static inline void gb_k_pack4(const uint8_t * levels, uint8_t * qs) {
    for (int c = 0; c < 4; c++) {
        for (int l = 0; l < 32; l++) {
            qs[32 * c + l] = (uint8_t) ((levels[64 * c + l] & 15) | (levels[64 * c + 32 + l] & 15) << 4);
        }
    }
}

static inline void gb_k_unpack4(const uint8_t * qs, uint8_t * levels) {
    for (int c = 0; c < 4; c++) {
        for (int l = 0; l < 32; l++) {
            levels[64 * c + l]      = qs[32 * c + l] & 15;
            levels[64 * c + 32 + l] = qs[32 * c + l] >> 4;
        }
    }
}

// Eight 6-bit scales and eight 6-bit minima in 12 bytes.
static inline void gb_k_pack_scales(const uint8_t * sc, const uint8_t * mn, uint8_t * scales) {
    for (int s = 0; s < 4; s++) {
        scales[s]     = (uint8_t) (sc[s] | (sc[s + 4] >> 4) << 6);
        scales[s + 4] = (uint8_t) (mn[s] | (mn[s + 4] >> 4) << 6);
        scales[s + 8] = (uint8_t) ((sc[s + 4] & 15) | (mn[s + 4] & 15) << 4);
    }
}

static inline void gb_k_unpack_scales(const uint8_t * scales, uint8_t * sc, uint8_t * mn) {
    for (int s = 0; s < 4; s++) {
        sc[s]     = scales[s] & 63;
        mn[s]     = scales[s + 4] & 63;
        sc[s + 4] = (uint8_t) ((scales[s + 8] & 15) | (scales[s] >> 6) << 4);
        mn[s + 4] = (uint8_t) ((scales[s + 8] >> 4) | (scales[s + 4] >> 6) << 4);
    }
}

static inline float gb_k_max(int n, const float * x) { // not below 0
    float max = 0;
    for (int i = 0; i < n; i++) {
        max = GB_MAX(max, x[i]);
    }
    return max;
}

// v[i] ~ step out[i] with out 0 .. n_levels; returns the step (0 when all are 0).
static inline float gb_k_quantize_scales(int n, int n_levels, const float * v, uint8_t * out) {
    const float max    = gb_k_max(n, v);
    const float factor = max > 0 ? (float) n_levels / max : 0;
    for (int i = 0; i < n; i++) {
        out[i] = (uint8_t) gb_fit_round(factor * v[i], 0, n_levels);
    }
    return max / (float) n_levels;
}

// The levels of affine sub-blocks for the scales as stored: x ~ d sc level - dmin mn. Where d sc is 0 the fitted levels stay.
static inline void gb_k_requantize_affine(int n_sub, int size, int n_levels, const float * x, float d, float dmin, const uint8_t * sc,
                                          const uint8_t * mn, uint8_t * levels) {
    for (int s = 0; s < n_sub; s++) {
        const float scale = d * (float) sc[s], min = dmin * (float) mn[s];
        for (int i = s * size; scale != 0 && i < (s + 1) * size; i++) {
            levels[i] = (uint8_t) gb_fit_round((x[i] + min) / scale, 0, n_levels);
        }
    }
}

// Weights of a whole super-block from an importance matrix; sigma2 is `factor` times its mean square.
static inline void gb_k_importance(const float * x, const float * importance, float factor, float * w) {
    gb_fit_importance(GB_SUPER, x, importance, factor * gb_fit_mean_square(GB_SUPER, x), w);
}

static const struct gb_fit_search gb_k_importance_search = { -0.9f, 0.05f, 36, false };

// One super-block; importance: NULL or 256 weights.
typedef void (*gb_k_quantize_t)(const float * x, const float * importance, uint8_t * block);

static inline bool gb_k_quantize_rows(const float * src, uint8_t * dst, int64_t n_rows, int64_t n_per_row, size_t block_size,
                                      gb_k_quantize_t quantize, const float * importance) {
    for (int64_t r = 0; r < n_rows; r++) {
        for (int64_t i = 0; i < n_per_row; i += GB_SUPER, dst += block_size) {
            quantize(src + r * n_per_row + i, importance ? importance + i : NULL, dst);
        }
    }
    return true;
}

// Defines the constant of a format from its two block functions `quantize_block` and `dequantize_block`.
#define GB_K_FORMAT(stem, block_size)                                                                                  \
    static void to_float(const void * x, float * y, int k) {                                                           \
        for (int i = 0; i < k; i += GB_SUPER) {                                                                        \
            dequantize_block((const uint8_t *) x + (size_t) (i / GB_SUPER) * (block_size), y + i);                     \
        }                                                                                                              \
    }                                                                                                                  \
    static void from_float(const float * x, void * y, int k) {                                                         \
        gb_k_quantize_rows(x, y, 1, k, (block_size), quantize_block, NULL);                                            \
    }                                                                                                                  \
    static bool quantize(const float * src, void * dst, int64_t n_rows, int64_t n_per_row, const float * importance, int64_t * hist) { \
        (void) hist;                                                                                                   \
        return gb_k_quantize_rows(src, dst, n_rows, n_per_row, (block_size), quantize_block, importance);              \
    }                                                                                                                  \
    const struct gb_quant_format gb_quant_##stem = { to_float, from_float, from_float, NULL, GGML_TYPE_Q8_K, quantize };

#endif // GB_TENSOR_QUANT_KQUANT_H
