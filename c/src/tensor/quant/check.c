// check.c - quantizes rows in parts, finds numbers that the format cannot hold, and handles them
// block by block (check.h).
//
// Invariant: parts are whole blocks. So without importances a bad number affects only its own
// block.
#include "tensor/quant/check.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/fp16.h"
#include "base/mem.h"
#include "tensor/quant/bits.h"
#include "tensor/quant/importance.h"

enum { STRETCH = 1024, MAX_ELEMENTS = 256, MAX_BYTES = 512 };

#define GB_FORMAT(id, stem, name, elements, bytes, ...) \
    static_assert(STRETCH % (elements) == 0 && (elements) <= MAX_ELEMENTS && (bytes) <= MAX_BYTES, name);
#include "tensor/quant/formats.def"
#undef GB_FORMAT

// Data shared by all rows of a call. suspect: invalid_in checks blocks with larger magnitudes
// exactly.
struct job {
    const struct gb_quant_format * f;
    const float * importance;
    int64_t * hist;
    enum ggml_on_invalid on_invalid;
    float suspect;
};

// As integers, positive floats keep their order, with NaN above all others. The offset is the
// distance of the limit from the largest integer. Adding it sets the highest bit of all values
// above the limit. Compilers vectorize the simple loops.
bool gb_any_above(const float * x, int64_t n, float limit) {
    enum { STEP = 64 };
    const uint32_t distance = 0x7fffffffu - gb_f32_bits(limit);
    uint32_t any = 0;
    int64_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        for (int k = 0; k < STEP; k++) {
            any |= (gb_f32_bits(x[i + k]) & 0x7fffffffu) + distance;
        }
    }
    for (; i < n; i++) {
        any |= (gb_f32_bits(x[i]) & 0x7fffffffu) + distance;
    }
    return any >> 31 != 0;
}

// True if a block of finite numbers has about the same size after dequantizing.
static bool block_holds(const struct gb_quant_format * f, const float * x, int largest) {
    float y[MAX_ELEMENTS];
    uint8_t block[MAX_BYTES];
    f->quantize(x, block, 1, f->elements, NULL, NULL);
    f->to_float(block, y, f->elements);
    for (int i = 0; i < f->elements; i++) {
        if (!isfinite(y[i])) {
            return false;
        }
    }
    return fabsf(y[largest] - x[largest]) <= fabsf(x[largest]) / 2;
}

// True if the block at element i of a row has importances.
static bool is_weighted(const struct job * job, int64_t i) { return gb_importance_of(job->importance, i) != NULL; }

// Importances change the scale, so only half of the limit is safe (quant.h).
static float limit_of(const struct job * job, int64_t i) {
    return is_weighted(job, i) && !job->f->saturates ? job->f->limit / 2 : job->f->limit;
}

// The index of the first element that the block at element i of a row cannot hold. If numbers are
// too large, the index of the largest. -1: the block holds all.
static int invalid_in(const struct job * job, const float * x, int64_t i) {
    const struct gb_quant_format * f = job->f;
    int largest = 0;
    x += i;
    if (!gb_any_above(x, f->elements, limit_of(job, i))) {
        return -1;
    }
    for (int k = 0; k < f->elements; k++) {
        if (!isfinite(x[k])) {
            return k;
        }
        largest = fabsf(x[k]) > fabsf(x[largest]) ? k : largest;
    }
    return f->saturates || is_weighted(job, i) || !block_holds(f, x, largest) ? largest : -1;
}

// The index in x of the first number that its block cannot hold. -1: there is none.
static int64_t first_invalid(const struct job * job, const float * x, int64_t n) {
    for (int64_t i = 0; i < n; i += job->f->elements) {
        const int at = invalid_in(job, x, i);
        if (at >= 0) {
            return i + at;
        }
    }
    return -1;
}

// True if a bad block becomes NaN and the format has NaN. Otherwise it is clipped.
static bool becomes_nan(const struct job * job) {
    return job->on_invalid == GGML_ON_INVALID_NAN && job->f->nan != GB_NAN_NONE;
}

// A copy that the format can hold: NaN becomes 0, too large numbers the limit. Blocks that will
// become NaN are zeros.
static void mend(const struct job * job, const float * x, int64_t n, float * out) {
    const int size = job->f->elements;
    for (int64_t i = 0; i < n; i += size) {
        memcpy(out + i, x + i, (size_t) size * sizeof(float));
        if (invalid_in(job, x, i) < 0) {
            continue;
        }
        const float limit = limit_of(job, i);
        for (int64_t k = i; k < i + size; k++) {
            const float kept = x[k] > limit ? limit : x[k] < -limit ? -limit : x[k];
            out[k] = becomes_nan(job) || kept != kept ? 0 : kept;
        }
    }
}

// A block of zeros, except that the scale's field holds NaN.
static void put_nan(const struct gb_quant_format * f, uint8_t * block) {
    const float nan = NAN;
    memset(block, 0, (size_t) f->bytes);
    if (f->nan == GB_NAN_F32) {
        memcpy(block + f->nan_at, &nan, sizeof(nan));
    } else if (f->nan == GB_NAN_F16) {
        gb_store_f16(block + f->nan_at, nan);
    } else {
        for (int i = 0; i < 4; i++) {
            gb_store_u16(block + f->nan_at + 2 * i, ((uint32_t) gb_f32_to_f16(nan) >> 4 * i & 15) << 12);
        }
    }
}

// Importances may fit a few elements with a scale much larger than the largest element needs. If
// that makes the scale infinite, the block is quantized without importances.
static void keep_finite(const struct job * job, const float * x, uint8_t * dst, int64_t n) {
    enum { REACH = 64 }; // a fit enlarges a scale by less than this factor
    const struct gb_quant_format * f = job->f;
    float y[MAX_ELEMENTS];
    if (job->importance == NULL || f->saturates || !gb_any_above(x, n, f->limit / REACH)) {
        return;
    }
    for (int64_t i = 0; i < n; i += f->elements, dst += f->bytes) {
        if (gb_any_above(x + i, f->elements, f->limit / REACH)) {
            f->to_float(dst, y, f->elements);
            if (gb_any_above(y, f->elements, FLT_MAX)) {
                f->quantize(x + i, dst, 1, f->elements, NULL, NULL);
            }
        }
    }
}

// Quantizes whole rows, or part of a row without importances. scratch: as many floats. Checks after
// quantizing, because the numbers are then in the cache.
static int64_t quantize_stretch(const struct job * job, const float * x, uint8_t * dst, int64_t n_rows,
    int64_t n_per_row, float * scratch) {
    const struct gb_quant_format * f = job->f;
    const int64_t n = n_rows * n_per_row;
    f->quantize(x, dst, n_rows, n_per_row, job->importance, job->hist);
    keep_finite(job, x, dst, n);
    if (!gb_any_above(x, n, job->suspect)) {
        return -1;
    }
    if (job->on_invalid == GGML_ON_INVALID_ERROR) {
        return first_invalid(job, x, n);
    }
    mend(job, x, n, scratch);
    f->quantize(scratch, dst, n_rows, n_per_row, job->importance, NULL);
    keep_finite(job, scratch, dst, n);
    for (int64_t i = 0; becomes_nan(job) && i < n / f->elements; i++) {
        if (invalid_in(job, x, i * f->elements) >= 0) {
            put_nan(f, dst + i * f->bytes);
        }
    }
    return -1;
}

// Without importances, row boundaries do not matter.
static int64_t quantize_plain(const struct job * job, const float * src, uint8_t * dst, int64_t n) {
    float scratch[STRETCH];
    int64_t at = -1;
    for (int64_t i = 0; i < n && at < 0; i += STRETCH) {
        at = quantize_stretch(job, src + i, dst + i / job->f->elements * job->f->bytes, 1, GB_MIN(STRETCH, n - i),
            scratch);
        at += at >= 0 ? i : 0;
    }
    return at;
}

// With importances a row is quantized as a whole, because the weights may depend on its mean
// square. scratch: a row, or NULL if no block is changed.
static int64_t quantize_weighted(const struct job * job, const float * src, uint8_t * dst, int64_t n_rows,
    int64_t n_per_row, float * scratch) {
    int64_t at = -1;
    for (int64_t r = 0; r < n_rows && at < 0; r++) {
        const int64_t i = r * n_per_row;
        at = quantize_stretch(job, src + i, dst + i / job->f->elements * job->f->bytes, 1, n_per_row, scratch);
        at += at >= 0 ? i : 0;
    }
    return at;
}

// Adds to the caller's histogram only after all rows were quantized.
bool gb_quantize_checked(const struct gb_quant_format * f, const float * src, void * dst, int64_t n_rows,
    int64_t n_per_row, const float * importance, int64_t * hist, enum ggml_on_invalid on_invalid, int64_t * invalid) {
    int64_t counts[16] = { 0 };
    const struct job job = { .f = f,
        .importance = importance,
        .hist = hist != NULL ? counts : NULL,
        .on_invalid = on_invalid,
        .suspect = importance != NULL ? f->limit / 2 : f->limit };
    *invalid = -1;
    if (importance == NULL) {
        *invalid = quantize_plain(&job, src, dst, n_rows * n_per_row);
    } else {
        float * scratch = on_invalid == GGML_ON_INVALID_ERROR ? NULL : gb_malloc((size_t) n_per_row * sizeof(float));
        if (scratch == NULL && on_invalid != GGML_ON_INVALID_ERROR) {
            return false;
        }
        *invalid = quantize_weighted(&job, src, dst, n_rows, n_per_row, scratch);
        gb_free(scratch);
    }
    for (int i = 0; i < 16 && hist != NULL && *invalid < 0; i++) {
        hist[i] += counts[i];
    }
    return *invalid < 0;
}

// from_float cannot fail, so a bad block becomes NaN, or is clipped in formats without NaN.
void gb_quantize_row(const struct gb_quant_format * f, const float * x, void * y, int64_t k) {
    const struct job job = { .f = f, .on_invalid = GGML_ON_INVALID_NAN, .suspect = f->limit };
    quantize_plain(&job, x, y, k);
}
