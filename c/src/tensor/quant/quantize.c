// quantize.c - the public functions that quantize: they check arguments, call the format's row
// function, and report numbers that it cannot hold.
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "tensor/quant/bits.h"
#include "tensor/quant/check.h"
#include "tensor/quant/importance.h"
#include "tensor/quant/quant.h"
#include "tensor/tensor.h"

// Codebook formats search constant tables, so there is nothing to set up or free.
void ggml_quantize_init(enum ggml_type type) { (void) type; }

void ggml_quantize_free(void) {}

bool ggml_quantize_requires_imatrix(enum ggml_type type) {
    const struct gb_quant_format * format = gb_quant_format_of(type);
    return format != NULL && format->use == GB_USE_IMPORTANCE;
}

// False and reported for the public function, unless the rows are whole blocks and their bytes do
// not overflow.
static bool check_rows(const char * func, enum ggml_type type, const float * src, const void * dst, int64_t n_rows,
    int64_t n_per_row) {
    GB_FAIL_IF_RETURNING(src == NULL || dst == NULL, false, GGML_STATUS_INVALID_ARGUMENT, "%s: argument '%s' is NULL",
        func, src ? "dst" : "src");
    GB_FAIL_IF_RETURNING(!gb_type_is_valid(type), false, GGML_STATUS_INVALID_ARGUMENT, "%s: %d is not a type", func,
        (int) type);
    GB_FAIL_IF_RETURNING(n_rows < 0 || n_per_row < 0 || n_per_row % ggml_blck_size(type) != 0, false,
        GGML_STATUS_INVALID_ARGUMENT, "%s: %lld rows of %lld elements: rows must be whole %s blocks of %d", func,
        (long long) n_rows, (long long) n_per_row, ggml_type_name(type), ggml_blck_size(type));
    int64_t bytes;
    GB_FAIL_IF_RETURNING(!gb_mul_i64(n_rows, n_per_row, &bytes) || !gb_mul_i64(bytes, 8, &bytes), false,
        GGML_STATUS_INVALID_ARGUMENT, "%s: %lld rows of %lld elements overflow", func, (long long) n_rows,
        (long long) n_per_row);
    return true;
}

// The arguments of a public function, once they are checked.
struct rows {
    const char * func;
    enum ggml_type type;
    const float * src;
    void * dst;
    int64_t first, n_rows, n_per_row; // first: of the rows, in the array that they are part of
    const float * importance;
    int64_t * hist;
    enum ggml_on_invalid on_invalid;
};

// Reports row and column in the caller's array. `at` counts in r->src.
static void report_invalid(const struct rows * r, int64_t at) {
    const long long row = (long long) (r->first + at / r->n_per_row), column = (long long) (at % r->n_per_row);
    const double value = (double) r->src[at];
    if (isfinite(value)) {
        gb_fail(GGML_STATUS_INVALID_ARGUMENT, "%s: row %lld, column %lld: %g is too large for %s", r->func, row, column,
            value, ggml_type_name(r->type));
    } else {
        gb_fail(GGML_STATUS_INVALID_ARGUMENT, "%s: row %lld, column %lld: %s cannot be stored as %s", r->func, row,
            column,
            isnan(value) ? "NaN"
            : value > 0  ? "inf"
                         : "-inf",
            ggml_type_name(r->type));
    }
}

// Applies on_invalid to 16-bit numbers that became infinite although the float is not. Returns the
// first one if that is an error, else -1.
static int64_t mend_halves(const struct rows * r, int64_t begin, int64_t end) {
    const uint16_t infinite = r->type == GGML_TYPE_F16 ? 0x7c00 : 0x7f80;
    for (int64_t i = begin; i < end; i++) {
        uint8_t * at = (uint8_t *) r->dst + 2 * i;
        const uint16_t bits = gb_load_u16(at);
        if ((bits & 0x7fff) != infinite || isinf(r->src[i])) {
            continue;
        }
        if (r->on_invalid == GGML_ON_INVALID_ERROR) {
            return i;
        }
        gb_store_u16(at, r->on_invalid == GGML_ON_INVALID_CLIP ? bits - 1u : bits); // the largest finite number
    }
    return -1;
}

// F32, F16, BF16: NaN and infinities are values. Returns the index of a finite number that would become infinite, or
// -1.
static int64_t convert_rows(const struct rows * r) {
    enum { STRETCH = 4096 };
    const int64_t n = r->n_rows * r->n_per_row;
    const ggml_type_traits_t traits = ggml_internal_get_type_traits(r->type);
    const float limit = r->type == GGML_TYPE_F16 ? GB_F16_MAX : 0x1.fep127f;  // finite for certain
    int64_t at = -1;
    if (r->type == GGML_TYPE_F32) {
        memcpy(r->dst, r->src, (size_t) n * sizeof(float));
        return -1;
    }
    for (int64_t i = 0; i < n && at < 0; i += STRETCH) {
        const int part = (int) GB_MIN(n - i, STRETCH);
        traits.from_float(r->src + i, (char *) r->dst + 2 * i, part);
        at = gb_any_above(r->src + i, part, limit) ? mend_halves(r, i, i + part) : -1;
    }
    return at;
}

// False after a failure. The failure is reported, unless it is a number that the format cannot
// hold.
static bool quantize_blocks(const struct rows * r, const struct gb_quant_format * format, int64_t * invalid) {
    if (r->importance == NULL || r->n_per_row == 0) {
        return gb_quantize_checked(format, r->src, r->dst, r->n_rows, r->n_per_row, NULL, r->hist, r->on_invalid,
            invalid);
    }
    float * importance = gb_malloc((size_t) r->n_per_row * sizeof(float));
    if (importance == NULL) {
        return false;
    }
    gb_importance_normalize(format, r->importance, r->n_per_row, importance);
    const bool done = gb_quantize_checked(format, r->src, r->dst, r->n_rows, r->n_per_row, importance, r->hist,
        r->on_invalid, invalid);
    gb_free(importance);
    return done;
}

// Returns the bytes written. 0 after a failure (reported). *invalid: the first number that the
// format cannot hold, or -1.
static size_t quantize_rows(const struct rows * r, int64_t * invalid) {
    const struct gb_quant_format * format = gb_quant_format_of(r->type);
    *invalid = -1;
    if (r->type == GGML_TYPE_F32 || r->type == GGML_TYPE_F16 || r->type == GGML_TYPE_BF16) {
        *invalid = convert_rows(r);
    } else {
        GB_FAIL_IF_RETURNING(format == NULL || format->quantize == NULL, 0, GGML_STATUS_UNSUPPORTED,
            "%s: quantizing to %s is not implemented", r->func, ggml_type_name(r->type));
        if (!quantize_blocks(r, format, invalid) && *invalid < 0) {
            return 0;
        }
    }
    if (*invalid >= 0) {
        report_invalid(r, *invalid);
        return 0;
    }
    return (size_t) r->n_rows * ggml_row_size(r->type, r->n_per_row);
}

// The old entry points: n elements in rows of k, without importances.
static size_t quantize_whole(const char * func, enum ggml_type type, const float * src, void * dst, int n, int k,
    int64_t * hist) {
    int64_t invalid;
    GB_FAIL_IF_RETURNING(k <= 0 || n < 0 || n % k != 0, 0, GGML_STATUS_INVALID_ARGUMENT,
        "%s: %d elements are not whole rows of %d", func, n, k);
    if (!check_rows(func, type, src, dst, n / k, k)) {
        return 0;
    }
    const struct rows r = {
        .func = func, .type = type, .src = src, .dst = dst, .n_rows = n / k, .n_per_row = k, .hist = hist
    };
    return quantize_rows(&r, &invalid);
}

// One function for each type that early programs quantize to.
#define QUANTIZE(stem, TYPE)                                                                   \
    size_t ggml_quantize_##stem(const float * src, void * dst, int n, int k, int64_t * hist) { \
        return quantize_whole(__func__, GGML_TYPE_##TYPE, src, dst, n, k, hist);               \
    }

QUANTIZE(q4_0, Q4_0)
QUANTIZE(q4_1, Q4_1)
QUANTIZE(q5_0, Q5_0)
QUANTIZE(q5_1, Q5_1)
QUANTIZE(q8_0, Q8_0)
QUANTIZE(q2_K, Q2_K)
QUANTIZE(q3_K, Q3_K)
QUANTIZE(q4_K, Q4_K)
QUANTIZE(q5_K, Q5_K)
QUANTIZE(q6_K, Q6_K)

// False (reported) if a format needs an importance matrix and there is none.
static bool has_weights(const char * func, enum ggml_type type, const float * imatrix) {
    GB_FAIL_IF_RETURNING(imatrix == NULL && ggml_quantize_requires_imatrix(type), false, GGML_STATUS_INVALID_ARGUMENT,
        "%s: type %s needs an importance matrix", func, ggml_type_name(type));
    return true;
}

// dst is the begin of the whole array. The rows go to row start / n_per_row of it.
size_t ggml_quantize_chunk(enum ggml_type type, const float * src, void * dst, int start, int nrows, int n_per_row,
    int64_t * hist, const float * imatrix) {
    int64_t invalid;
    if (!check_rows(__func__, type, src, dst, nrows, n_per_row)) {
        return 0;
    }
    GB_FAIL_IF_RETURNING(start < 0 || (n_per_row > 0 && start % n_per_row != 0), 0, GGML_STATUS_INVALID_ARGUMENT,
        "%s: start %d is not a multiple of the row length %d", __func__, start, n_per_row);
    if (!has_weights(__func__, type, imatrix)) {
        return 0;
    }
    const struct rows r = { .func = __func__,
        .type = type,
        .src = src + start,
        .dst = (char *) dst + ggml_row_size(type, start),
        .first = n_per_row > 0 ? start / n_per_row : 0,
        .n_rows = nrows,
        .n_per_row = n_per_row,
        .importance = imatrix,
        .hist = hist };
    return quantize_rows(&r, &invalid);
}

size_t ggml_quantize_rows(enum ggml_type type, const float * src, void * dst, int64_t n_rows, int64_t n_per_row,
    const float * imatrix, enum ggml_on_invalid on_invalid, int64_t * invalid) {
    int64_t ignored;
    invalid = invalid != NULL ? invalid : &ignored;
    *invalid = -1;
    if (!check_rows(__func__, type, src, dst, n_rows, n_per_row) || !has_weights(__func__, type, imatrix)) {
        return 0;
    }
    GB_FAIL_IF_RETURNING((int) on_invalid < GGML_ON_INVALID_ERROR || on_invalid > GGML_ON_INVALID_NAN, 0,
        GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'on_invalid': %d is not one of enum ggml_on_invalid", __func__,
        (int) on_invalid);
    const struct rows r = { .func = __func__,
        .type = type,
        .src = src,
        .dst = dst,
        .n_rows = n_rows,
        .n_per_row = n_per_row,
        .importance = imatrix,
        .on_invalid = on_invalid };
    return quantize_rows(&r, invalid);
}
