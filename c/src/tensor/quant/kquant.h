// kquant.h - the common part of the formats with super-blocks of 256 elements: bit positions of
// elements, sub-block scales, rows.
//
// A super-block is integers and one or two floats (struct gb_super). A format defines how to unpack
// and quantize it. Dequantizing and dot products follow from that. Products of a scale and a level
// are exact in f32, so the order of the factors of an element does not matter.
#ifndef GB_TENSOR_QUANT_KQUANT_H
#define GB_TENSOR_QUANT_KQUANT_H

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/quant/bits.h"
#include "tensor/quant/check.h"
#include "tensor/quant/fit.h"
#include "tensor/quant/importance.h"
#include "tensor/quant/quant.h"
#include "tensor/quant/small.h"

enum { GB_SUPER = 256 };

struct gb_super { // element e is d scale[e / 16] level[e] - (affine ? dmin min[e / 16] : 0)
    float d, dmin;
    bool affine;
    int16_t scale[16], min[16];
    int8_t level[GB_SUPER];
};

// Two bits of an element in qs[64]: bits 2g of byte 32 h + l.
static inline void gb_k_pack2(const uint8_t * levels, uint8_t * qs) {
    for (int h = 0; h < 2; h++) {
        for (int l = 0; l < 32; l++) {
            const uint8_t * e = levels + 128 * h + l;
            qs[32 * h + l] = (uint8_t) ((e[0] & 3) | (e[32] & 3) << 2 | (e[64] & 3) << 4 | (e[96] & 3) << 6);
        }
    }
}

// Compilers vectorize these loops, as all unpacking.
static inline void gb_k_unpack2(const uint8_t * qs, int8_t * levels) {
    for (int h = 0; h < 2; h++) {
        for (int g = 0; g < 4; g++) {
            for (int l = 0; l < 32; l++) {
                levels[128 * h + 32 * g + l] = qs[32 * h + l] >> 2 * g & 3;
            }
        }
    }
}

// Four bits in qs[128]: byte 32 c + l. The low half is for the first 32 elements of a chunk, the
// high half for the last 32.
static inline void gb_k_pack4(const uint8_t * levels, uint8_t * qs) {
    for (int c = 0; c < 4; c++) {
        for (int l = 0; l < 32; l++) {
            qs[32 * c + l] = (uint8_t) ((levels[64 * c + l] & 15) | (levels[64 * c + 32 + l] & 15) << 4);
        }
    }
}

// The reverse of gb_k_pack4: levels 0 .. 15.
static inline void gb_k_unpack4(const uint8_t * qs, int8_t * levels) {
    for (int c = 0; c < 4; c++) {
        for (int l = 0; l < 32; l++) {
            levels[64 * c + l] = qs[32 * c + l] & 15;
            levels[64 * c + 32 + l] = qs[32 * c + l] >> 4;
        }
    }
}

// Eight 6-bit scales and eight 6-bit minima in 12 bytes.
static inline void gb_k_pack_scales(const uint8_t * sc, const uint8_t * mn, uint8_t * scales) {
    for (int s = 0; s < 4; s++) {
        scales[s] = (uint8_t) (sc[s] | (sc[s + 4] >> 4) << 6);
        scales[s + 4] = (uint8_t) (mn[s] | (mn[s + 4] >> 4) << 6);
        scales[s + 8] = (uint8_t) ((sc[s + 4] & 15) | (mn[s + 4] & 15) << 4);
    }
}

// The reverse: sc and mn of 8 sub-blocks each.
static inline void gb_k_unpack_scales(const uint8_t * scales, uint8_t * sc, uint8_t * mn) {
    for (int s = 0; s < 4; s++) {
        sc[s] = scales[s] & 63;
        mn[s] = scales[s + 4] & 63;
        sc[s + 4] = (uint8_t) ((scales[s + 8] & 15) | (scales[s] >> 6) << 4);
        mn[s + 4] = (uint8_t) ((scales[s + 8] >> 4) | (scales[s + 4] >> 6) << 4);
    }
}

static inline float gb_k_max(int n, const float * x) {  // at least 0, never -0
    float max = 0;
    for (int i = 0; i < n; i++) {
        max = x[i] > max ? x[i] : max;
    }
    return max;
}

// v[i] ~ step out[i] with out 0 .. n_levels. Returns the step (0 if all are 0).
static inline float gb_k_quantize_scales(int n, int n_levels, const float * v, uint8_t * out) {
    const float max = gb_k_max(n, v);
    const float factor = max > 0 ? (float) n_levels / max : 0;
    for (int i = 0; i < n; i++) {
        out[i] = (uint8_t) gb_fit_round(factor * v[i], 0, n_levels);
    }
    return max / (float) n_levels;
}

// The levels of affine sub-blocks for the stored scales: x ~ d sc level - dmin mn. If d sc is 0,
// the fitted levels stay.
static inline void gb_k_requantize_affine(int n_sub, int size, int n_levels, const float * x, float d, float dmin,
    const uint8_t * sc, const uint8_t * mn, uint8_t * levels) {
    for (int s = 0; s < n_sub; s++) {
        const float scale = d * (float) sc[s], min = dmin * (float) mn[s];
        for (int i = s * size; scale != 0 && i < (s + 1) * size; i++) {
            levels[i] = (uint8_t) gb_fit_round((x[i] + min) / scale, 0, n_levels);
        }
    }
}

// True if rounding discards a scale of an affine super-block because it is small. Discarding a
// minimum does no harm if its scale stays.
static inline bool gb_k_affine_is_small(float d, float dmin) {
    const float stored = gb_f16_to_f32(gb_f32_to_f16(d)), stored_min = gb_f16_to_f32(gb_f32_to_f16(dmin));
    return d < 0x1p-20f &&
           (gb_scale_is_inexact(d, stored, GB_REFITTED) || gb_scale_is_inexact(dmin, stored_min, GB_REFITTED));
}

// Chooses d, dmin, the scales and minima of sub-blocks and the levels of such a super-block.
static inline void gb_k_affine_small(int n_sub, int size, int n_scales, gb_nearest_t nearest, const float * x,
    const float * w, const float * scales, const float * mins, float * d, float * dmin, uint8_t * sc, uint8_t * mn,
    uint8_t * levels) {
    struct gb_small_super b = { .n_sub = n_sub,
        .size = size,
        .scale_high = n_scales,
        .min_high = n_scales,
        .nearest = nearest,
        .d = *d,
        .dmin = *dmin };
    gb_small_super_fit(&b, x, w, scales, mins);
    *d = b.d;
    *dmin = b.dmin;
    memcpy(sc, b.scale, (size_t) n_sub);
    memcpy(mn, b.min, (size_t) n_sub);
    memcpy(levels, b.level, sizeof(b.level));
}

// Weights of a whole super-block from an importance matrix. sigma2 is `factor` times its mean
// square.
static inline void gb_k_importance(const float * x, const float * importance, float factor, float * w) {
    gb_fit_importance(GB_SUPER, x, importance, factor * gb_fit_mean_square(GB_SUPER, x), w);
}

static const struct gb_fit_search gb_k_importance_search = { -0.9f, 0.05f, 36, false };

// One super-block; importance: NULL or 256 weights.
typedef void (*gb_k_quantize_t)(const float * x, const float * importance, uint8_t * block);

// Quantizes super-blocks one after another. At a row boundary only the importances start again.
static inline void gb_k_quantize_rows(const float * src, uint8_t * dst, int64_t n_rows, int64_t n_per_row,
    size_t block_size, gb_k_quantize_t quantize, const float * importance) {
    for (int64_t r = 0; r < n_rows; r++) {
        for (int64_t i = 0; i < n_per_row; i += GB_SUPER, dst += block_size) {
            quantize(src + r * n_per_row + i, gb_importance_of(importance, i), dst);
        }
    }
}

// Writes 256 floats by the formula of struct gb_super.
static inline void gb_k_dequantize(const struct gb_super * b, float * y) {
    for (int s = 0; s < 16; s++) {
        const float scale = b->d * (float) b->scale[s];
        for (int e = 16 * s; e < 16 * (s + 1); e++) {
            y[e] = scale * (float) b->level[e];
        }
        for (int e = 16 * s; b->affine && e < 16 * (s + 1); e++) {
            y[e] -= b->dmin * (float) b->min[s];
        }
    }
}

// The dot product with a block of Q8_K. Sums of integers are exact.
static inline float gb_k_dot(const struct gb_super * b, const uint8_t * y) {
    const int8_t * q = (const int8_t *) y + GB_AT(q8_k, qs);
    int32_t sum = 0, mins = 0;
    float d;
    int16_t sums[16];
    memcpy(&d, y + GB_AT(q8_k, d), sizeof(d));
    memcpy(sums, y + GB_AT(q8_k, sums), sizeof(sums));
    for (int s = 0; s < 16; s++) {
        int32_t part = 0;
        for (int e = 16 * s; e < 16 * (s + 1); e++) {
            part += b->level[e] * q[e];
        }
        sum += b->scale[s] * part;
        mins += b->affine ? b->min[s] * sums[s] : 0;
    }
    const float product = b->d * d * (float) sum;
    return b->affine ? product - b->dmin * d * (float) mins : product;
}

// Defines the constant of a format from its two block functions, `quantize_block` and `static void
// unpack_block(const uint8_t * block, struct gb_super * b)`. unpack_block sets affine, dmin and min
// only if affine is true. Formats that need an importance matrix get no from_float. The other
// arguments are fields of the constant.
#define GB_SUPER_FORMAT(stem, limit_, saturates_, nan_, nan_at_)                                                     \
    static_assert(GB_ELEMENTS(stem) == GB_SUPER && GB_PARTNER(stem) == GGML_TYPE_Q8_K, "a super-block");             \
    static void to_float(const void * x, float * y, int k) {                                                         \
        for (int i = 0; i < k / GB_SUPER; i++) {                                                                     \
            struct gb_super b;                                                                                       \
            b.affine = false;                                                                                        \
            unpack_block((const uint8_t *) x + (size_t) i * GB_BYTES(stem), &b);                                     \
            gb_k_dequantize(&b, y + i * GB_SUPER);                                                                   \
        }                                                                                                            \
    }                                                                                                                \
    static void vec_dot(const int n, float * s, const void * x, const void * y) {                                    \
        float sum = 0;                                                                                               \
        for (int i = 0; i < n / GB_SUPER; i++) {                                                                     \
            struct gb_super b;                                                                                       \
            b.affine = false;                                                                                        \
            unpack_block((const uint8_t *) x + (size_t) i * GB_BYTES(stem), &b);                                     \
            sum += gb_k_dot(&b, (const uint8_t *) y + (size_t) i * GB_BYTES(q8_k));                                  \
        }                                                                                                            \
        *s = sum;                                                                                                    \
    }                                                                                                                \
    static void quantize(const float * src, void * dst, int64_t n_rows, int64_t n_per_row, const float * importance, \
        int64_t * hist) {                                                                                            \
        (void) hist;                                                                                                 \
        gb_k_quantize_rows(src, dst, n_rows, n_per_row, GB_BYTES(stem), quantize_block, importance);                 \
    }                                                                                                                \
    GB_QUANT_ROWS(stem)                                                                                              \
    const struct gb_quant_format gb_quant_##stem = {                                                                 \
        GB_MEMBERS_OF_ROW(stem),                                                                                     \
        .to_float = to_float,                                                                                        \
        .from_float = GB_HAS_FROM_FLOAT(stem) ? from_float : NULL,                                                   \
        .from_float_reference = GB_HAS_FROM_FLOAT(stem) ? from_float : NULL,                                         \
        .vec_dot = vec_dot,                                                                                          \
        .limit = (limit_),                                                                                           \
        .saturates = (saturates_),                                                                                   \
        .nan = (nan_),                                                                                               \
        .nan_at = (nan_at_),                                                                                         \
        .quantize = quantize,                                                                                        \
    };
#define GB_HAS_FROM_FLOAT(stem) ((int) gb_use_of_##stem != (int) GB_USE_IMPORTANCE)

#define GB_K_FORMAT(stem, limit) GB_SUPER_FORMAT(stem, limit, false, GB_NAN_F16, GB_AT(stem, d))

#endif // GB_TENSOR_QUANT_KQUANT_H
