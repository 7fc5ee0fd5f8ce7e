// types.c - the element formats. types.def has their sizes and names. This file has the functions
// of the plain formats, quant/ has those of the quantized formats. The public half-precision
// conversions are also here. All tables are constants, so nothing needs initialisation.
#include "tensor.h"

#include "base/fp16.h"
#include "tensor/quant/quant.h"

// The facts of each valid type. Rows of retired types are zero.
struct type_info {
    const char * name;
    int blck_size; // elements a block
    size_t type_size; // bytes a block
    bool is_quantized;
};

#define GB_TYPE(id, name, blck, bytes, quantized) [GGML_TYPE_##id] = { name, blck, bytes, quantized },
static const struct type_info types[GGML_TYPE_COUNT] = {
#include "tensor/types.def"
};
#undef GB_TYPE

// NULL for an invalid number. The switch has no `default`, so the compiler names an enumerator
// without a row.
static const struct type_info * info_of(enum ggml_type type) {
    switch (type) {
#define GB_TYPE(id, ...) case GGML_TYPE_##id:
#include "tensor/types.def"
#undef GB_TYPE
        return &types[type];
        case GGML_TYPE_COUNT: break;
    }
    return NULL;
}

// ------------------------------------------------------------------------------------------------------------- queries

// 0 for an invalid number, also in the next functions.
int ggml_blck_size(enum ggml_type type) {
    const struct type_info * info = info_of(type);
    return info ? info->blck_size : 0;
}

// Bytes of a block, or of an element of a plain type.
size_t ggml_type_size(enum ggml_type type) {
    const struct type_info * info = info_of(type);
    return info ? info->type_size : 0;
}

double ggml_type_sizef(enum ggml_type type) {
    const struct type_info * info = info_of(type);
    return info ? (double) info->type_size / info->blck_size : 0.0;
}

const char * ggml_type_name(enum ggml_type type) {
    const struct type_info * info = info_of(type);
    return info ? info->name : NULL;
}

bool ggml_is_quantized(enum ggml_type type) {
    const struct type_info * info = info_of(type);
    return info != NULL && info->is_quantized;
}

// A row of a blocked type has whole blocks.
size_t ggml_row_size(enum ggml_type type, int64_t ne) {
    const struct type_info * info = info_of(type);
    GB_FAIL_IF_RETURNING(info == NULL, 0, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'type': %d is not a valid type",
        __func__, (int) type);
    GB_FAIL_IF_RETURNING(ne < 0 || ne % info->blck_size != 0, 0, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'ne': needs a multiple of %d (the block size of %s), has %lld", __func__, info->blck_size,
        info->name, (long long) ne);
    size_t size;
    GB_FAIL_IF_RETURNING(!gb_mul_size(info->type_size, (size_t) (ne / info->blck_size), &size), 0,
        GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'ne': %lld elements of %s overflow", __func__, (long long) ne,
        info->name);
    return size;
}

// The type of most tensors in a file of this kind.
enum ggml_type ggml_ftype_to_ggml_type(enum ggml_ftype ftype) {
    switch (ftype) {
        case GGML_FTYPE_ALL_F32: return GGML_TYPE_F32;
        case GGML_FTYPE_MOSTLY_F16: return GGML_TYPE_F16;
        case GGML_FTYPE_MOSTLY_Q4_0: return GGML_TYPE_Q4_0;
        case GGML_FTYPE_MOSTLY_Q4_1: return GGML_TYPE_Q4_1;
        case GGML_FTYPE_MOSTLY_Q5_0: return GGML_TYPE_Q5_0;
        case GGML_FTYPE_MOSTLY_Q5_1: return GGML_TYPE_Q5_1;
        case GGML_FTYPE_MOSTLY_Q8_0: return GGML_TYPE_Q8_0;
        case GGML_FTYPE_MOSTLY_Q2_K: return GGML_TYPE_Q2_K;
        case GGML_FTYPE_MOSTLY_Q3_K: return GGML_TYPE_Q3_K;
        case GGML_FTYPE_MOSTLY_Q4_K: return GGML_TYPE_Q4_K;
        case GGML_FTYPE_MOSTLY_Q5_K: return GGML_TYPE_Q5_K;
        case GGML_FTYPE_MOSTLY_Q6_K: return GGML_TYPE_Q6_K;
        case GGML_FTYPE_MOSTLY_IQ2_XXS: return GGML_TYPE_IQ2_XXS;
        case GGML_FTYPE_MOSTLY_IQ2_XS: return GGML_TYPE_IQ2_XS;
        case GGML_FTYPE_MOSTLY_IQ3_XXS: return GGML_TYPE_IQ3_XXS;
        case GGML_FTYPE_MOSTLY_IQ1_S: return GGML_TYPE_IQ1_S;
        case GGML_FTYPE_MOSTLY_IQ4_NL: return GGML_TYPE_IQ4_NL;
        case GGML_FTYPE_MOSTLY_IQ3_S: return GGML_TYPE_IQ3_S;
        case GGML_FTYPE_MOSTLY_IQ2_S: return GGML_TYPE_IQ2_S;
        case GGML_FTYPE_MOSTLY_IQ4_XS: return GGML_TYPE_IQ4_XS;
        case GGML_FTYPE_MOSTLY_IQ1_M: return GGML_TYPE_IQ1_M;
        case GGML_FTYPE_MOSTLY_BF16: return GGML_TYPE_BF16;
        case GGML_FTYPE_MOSTLY_MXFP4: return GGML_TYPE_MXFP4;
        case GGML_FTYPE_MOSTLY_NVFP4: return GGML_TYPE_NVFP4;
        case GGML_FTYPE_MOSTLY_Q1_0: return GGML_TYPE_Q1_0;
        case GGML_FTYPE_MOSTLY_Q2_0: return GGML_TYPE_Q2_0;
        case GGML_FTYPE_UNKNOWN:
        case GGML_FTYPE_MOSTLY_Q4_1_SOME_F16: break; // no single type
    }
    gb_fail(GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'ftype': %d does not mean a single tensor type", __func__,
        (int) ftype);
    return GGML_TYPE_COUNT;
}

// ------------------------------------------------------------------------------------------------------ half precision

float ggml_fp16_to_fp32(ggml_fp16_t x) { return gb_f16_to_f32(x); }

ggml_fp16_t ggml_fp32_to_fp16(float x) { return gb_f32_to_f16(x); }

// An empty row needs no memory. Otherwise a NULL pointer is an error (reported).
static bool check_row(const char * func, const void * x, const void * y, int64_t n) {
    GB_FAIL_IF_RETURNING(n > 0 && (x == NULL || y == NULL), false, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument '%s' is NULL", func, x == NULL ? "x" : "y");
    return true;
}

void ggml_fp16_to_fp32_row(const ggml_fp16_t * x, float * y, int n) {
    if (!check_row(__func__, x, y, n)) {
        return;
    }
    for (int i = 0; i < n; i++) {
        y[i] = gb_f16_to_f32(x[i]);
    }
}

void ggml_fp32_to_fp16_row(const float * x, ggml_fp16_t * y, int n) {
    if (!check_row(__func__, x, y, n)) {
        return;
    }
    for (int i = 0; i < n; i++) {
        y[i] = gb_f32_to_f16(x[i]);
    }
}

float ggml_bf16_to_fp32(ggml_bf16_t x) { return gb_bf16_to_f32(x.bits); }

ggml_bf16_t ggml_fp32_to_bf16(float x) { return (ggml_bf16_t){ gb_f32_to_bf16(x) }; }

void ggml_bf16_to_fp32_row(const ggml_bf16_t * x, float * y, int64_t n) {
    if (!check_row(__func__, x, y, n)) {
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        y[i] = gb_bf16_to_f32(x[i].bits);
    }
}

void ggml_fp32_to_bf16_row(const float * x, ggml_bf16_t * y, int64_t n) {
    if (!check_row(__func__, x, y, n)) {
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        y[i].bits = gb_f32_to_bf16(x[i]);
    }
}

// -------------------------------------------------------------------------------------------------------------- traits

static void f16_to_float(const void * restrict x, float * restrict y, int k) { ggml_fp16_to_fp32_row(x, y, k); }

static void f16_from_float(const float * restrict x, void * restrict y, int k) { ggml_fp32_to_fp16_row(x, y, k); }

static void bf16_to_float(const void * restrict x, float * restrict y, int k) { ggml_bf16_to_fp32_row(x, y, k); }

static void bf16_from_float(const float * restrict x, void * restrict y, int k) { ggml_fp32_to_bf16_row(x, y, k); }

// These products follow the definition and sum in double. They are references. The kernel tables
// have the fast products.
static void f32_vec_dot(const int n, float * restrict s, const void * restrict x, const void * restrict y) {
    const float *a = x, *b = y;
    double sum = 0;
    for (int i = 0; i < n; i++) {
        sum += (double) a[i] * (double) b[i];
    }
    *s = (float) sum;
}

static void f16_vec_dot(const int n, float * restrict s, const void * restrict x, const void * restrict y) {
    const uint16_t *a = x, *b = y;
    double sum = 0;
    for (int i = 0; i < n; i++) {
        sum += (double) gb_f16_to_f32(a[i]) * (double) gb_f16_to_f32(b[i]);
    }
    *s = (float) sum;
}

static void bf16_vec_dot(const int n, float * restrict s, const void * restrict x, const void * restrict y) {
    const uint16_t *a = x, *b = y;
    double sum = 0;
    for (int i = 0; i < n; i++) {
        sum += (double) gb_bf16_to_f32(a[i]) * (double) gb_bf16_to_f32(b[i]);
    }
    *s = (float) sum;
}

static const struct gb_quant_format f32_format = { .vec_dot = f32_vec_dot, .vec_dot_type = GGML_TYPE_F32 };
static const struct gb_quant_format f16_format = { .to_float = f16_to_float,
    .from_float = f16_from_float,
    .from_float_reference = f16_from_float,
    .vec_dot = f16_vec_dot,
    .vec_dot_type = GGML_TYPE_F16 };
static const struct gb_quant_format bf16_format = { .to_float = bf16_to_float,
    .from_float = bf16_from_float,
    .from_float_reference = bf16_from_float,
    .vec_dot = bf16_vec_dot,
    .vec_dot_type = GGML_TYPE_BF16 };

#define GB_FORMAT(id, stem, ...) [GGML_TYPE_##id] = &gb_quant_##stem,
// NULL for types without conversions (integers and F64).
static const struct gb_quant_format * const formats[GGML_TYPE_COUNT] = {
    [GGML_TYPE_F32] = &f32_format,
    [GGML_TYPE_F16] = &f16_format,
    [GGML_TYPE_BF16] = &bf16_format,
#include "tensor/quant/formats.def"
};
#undef GB_FORMAT

const struct gb_quant_format * gb_quant_format_of(enum ggml_type type) {
    return ggml_is_quantized(type) ? formats[type] : NULL;
}

// F32 has a format without to_float, because floats need no conversion.
ggml_to_float_t gb_to_float_of(enum ggml_type type) {
    return gb_type_is_valid(type) && formats[type] != NULL ? formats[type]->to_float : NULL;
}

ggml_type_traits_t ggml_internal_get_type_traits(enum ggml_type type) {
    const struct type_info * info = info_of(type);
    ggml_type_traits_t traits = { 0 };
    if (info == NULL) {
        return traits;
    }
    traits.type_name = info->name;
    traits.blck_size = info->blck_size;
    traits.type_size = info->type_size;
    traits.is_quantized = info->is_quantized;

    // Programs take a type with from_float and to_float for a type of weights, and call its other
    // functions. So the formats of activations have no to_float there. Programs also expect an
    // error that suits the size of such a type. A coarse format cannot promise that for all floats,
    // so it has no from_float.
    const struct gb_quant_format * format = formats[type];
    if (format != NULL) {
        traits.to_float = format->use == GB_USE_ACTIVATIONS ? NULL : format->to_float;
        traits.from_float = format->use == GB_USE_COARSE ? NULL : format->from_float;
        traits.from_float_reference = format->use == GB_USE_COARSE ? NULL : format->from_float_reference;
        traits.vec_dot = format->vec_dot;
        traits.vec_dot_type = format->vec_dot_type;
    }
    return traits;
}
