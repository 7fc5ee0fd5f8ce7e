// quantize.c - the public entry points: argument checks, then the format's own row function.
#include <limits.h>
#include <string.h>

#include "base/status.h"
#include "tensor/quant/quant.h"
#include "tensor/tensor.h"

// The search tables of codebook formats are constants: nothing to set up or free.
void ggml_quantize_init(enum ggml_type type) {
    (void) type;
}

void ggml_quantize_free(void) {}

bool ggml_quantize_requires_imatrix(enum ggml_type type) {
    return type == GGML_TYPE_IQ2_XXS || type == GGML_TYPE_IQ2_XS || type == GGML_TYPE_IQ1_S;
}

static bool check_rows(const char * func, enum ggml_type type, const float * src, const void * dst, int64_t n_rows,
                       int64_t n_per_row) {
    GB_FAIL_IF(src == NULL || dst == NULL, false, GGML_STATUS_INVALID_ARGUMENT, "%s: argument '%s' is NULL", func,
               src ? "dst" : "src");
    GB_FAIL_IF(!gb_type_is_valid(type), false, GGML_STATUS_INVALID_ARGUMENT, "%s: %d is not a type", func, (int) type);
    GB_FAIL_IF(n_rows < 0 || n_per_row < 0 || n_per_row % ggml_blck_size(type) != 0, false,
               GGML_STATUS_INVALID_ARGUMENT, "%s: %lld rows of %lld elements: rows must be whole %s blocks of %d", func,
               (long long) n_rows, (long long) n_per_row, ggml_type_name(type), ggml_blck_size(type));
    return true;
}

static size_t quantize_rows(const char * func, enum ggml_type type, const float * src, void * dst, int64_t n_rows,
                            int64_t n_per_row, const float * importance, int64_t * hist) {
    const struct gb_quant_format * format = gb_quant_format_of(type);
    GB_FAIL_IF(format == NULL || format->quantize == NULL, 0, GGML_STATUS_UNSUPPORTED,
               "%s: quantizing to %s is not implemented", func, ggml_type_name(type));
    return format->quantize(src, dst, n_rows, n_per_row, importance, hist)
               ? (size_t) n_rows * ggml_row_size(type, n_per_row)
               : 0;
}

static size_t quantize_whole(const char * func, enum ggml_type type, const float * src, void * dst, int n, int k,
                             int64_t * hist) {
    GB_FAIL_IF(k <= 0 || n < 0 || n % k != 0, 0, GGML_STATUS_INVALID_ARGUMENT, "%s: %d elements in rows of %d", func, n,
               k);
    if (!check_rows(func, type, src, dst, n / k, k)) {
        return 0;
    }
    return quantize_rows(func, type, src, dst, n / k, k, NULL, hist);
}

#define QUANTIZE(stem, TYPE)                                                                                           \
    size_t ggml_quantize_##stem(const float * src, void * dst, int n, int k, int64_t * hist) {                         \
        return quantize_whole(__func__, GGML_TYPE_##TYPE, src, dst, n, k, hist);                                       \
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

static void convert_rows(enum ggml_type type, const float * src, void * dst, int64_t n) {
    if (type == GGML_TYPE_F32) {
        memcpy(dst, src, (size_t) n * sizeof(float));
    } else {
        const ggml_type_traits_t traits = ggml_internal_get_type_traits(type);
        for (int64_t i = 0; i < n; i += INT_MAX / 2) {
            const int part = (int) GB_MIN(n - i, INT_MAX / 2);
            traits.from_float(src + i, (char *) dst + (size_t) i * traits.type_size, part);
        }
    }
}

size_t ggml_quantize_chunk(enum ggml_type type, const float * src, void * dst, int start, int nrows, int n_per_row,
                           int64_t * hist, const float * imatrix) {
    if (!check_rows(__func__, type, src, dst, nrows, n_per_row)) {
        return 0;
    }
    GB_FAIL_IF(start < 0 || (n_per_row > 0 && start % n_per_row != 0), 0, GGML_STATUS_INVALID_ARGUMENT,
               "%s: start %d is not a multiple of the row length %d", __func__, start, n_per_row);
    GB_FAIL_IF(imatrix == NULL && ggml_quantize_requires_imatrix(type), 0, GGML_STATUS_INVALID_ARGUMENT,
               "%s: type %s needs an importance matrix", __func__, ggml_type_name(type));
    src += start;
    dst = (char *) dst + ggml_row_size(type, start);
    if (type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16) {
        convert_rows(type, src, dst, (int64_t) nrows * n_per_row);
        return (size_t) nrows * ggml_row_size(type, n_per_row);
    }
    return quantize_rows(__func__, type, src, dst, nrows, n_per_row, imatrix, hist);
}
