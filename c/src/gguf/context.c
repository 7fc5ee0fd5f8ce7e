// context.c - makes, frees and queries a gguf_context. A getter whose index or type does not match
// reports that and returns 0, NULL or GGUF_TYPE_COUNT.
#include <limits.h>
#include <string.h>

#include "gguf/gguf_impl.h"
#include "tensor/tensor.h"

// Name and size of each value type. Strings and arrays have no fixed size.
static const struct {
    const char * name;
    size_t size;
} types[GGUF_TYPE_COUNT] = {
    [GGUF_TYPE_UINT8] = { "u8", 1 },
    [GGUF_TYPE_INT8] = { "i8", 1 },
    [GGUF_TYPE_UINT16] = { "u16", 2 },
    [GGUF_TYPE_INT16] = { "i16", 2 },
    [GGUF_TYPE_UINT32] = { "u32", 4 },
    [GGUF_TYPE_INT32] = { "i32", 4 },
    [GGUF_TYPE_FLOAT32] = { "f32", 4 },
    [GGUF_TYPE_BOOL] = { "bool", 1 },
    [GGUF_TYPE_STRING] = { "str", 0 },
    [GGUF_TYPE_ARRAY] = { "arr", 0 },
    [GGUF_TYPE_UINT64] = { "u64", 8 },
    [GGUF_TYPE_INT64] = { "i64", 8 },
    [GGUF_TYPE_FLOAT64] = { "f64", 8 },
};

// NULL if the number is not a type.
const char * gguf_type_name(enum gguf_type type) { return (unsigned) type < GGUF_TYPE_COUNT ? types[type].name : NULL; }

size_t gb_gguf_type_size(enum gguf_type type) { return (unsigned) type < GGUF_TYPE_COUNT ? types[type].size : 0; }

struct gguf_context * gguf_init_empty(void) {
    struct gguf_context * ctx = GB_NEW(struct gguf_context);
    if (ctx) {
        ctx->version = GGUF_VERSION;
        ctx->alignment = GGUF_DEFAULT_ALIGNMENT;
    }
    return ctx;
}

// Members that the type does not use are NULL.
void gb_gguf_value_free(struct gb_gguf_value * value) {
    gb_free(value->str);
    gb_free(value->data);
    gb_free(value->strs);
    gb_free(value->lengths);
    *value = (struct gb_gguf_value){ 0 };
}

// Tensor data are borrowed and not freed, nor is the ggml context that reading has made.
void gguf_free(struct gguf_context * ctx) {
    if (ctx == NULL) {
        return;
    }
    for (size_t i = 0; i < ctx->kv.n; i++) {
        gb_free(ctx->kv.data[i].key);
        gb_gguf_value_free(&ctx->kv.data[i].value);
    }
    for (size_t i = 0; i < ctx->tensors.n; i++) {
        gb_gguf_tensor_free(&ctx->tensors.data[i]);
    }
    gb_vec_free(&ctx->kv);
    gb_vec_free(&ctx->tensors);
    gb_strmap_free(&ctx->key_index);
    gb_strmap_free(&ctx->tensor_index);
    gb_free(ctx);
}

void gb_gguf_tensor_free(struct gb_gguf_tensor * t) {
    gb_free(t->name);
    gb_free(t->all_ne);
    t->name = NULL, t->all_ne = NULL;
}

const int64_t * gb_gguf_tensor_ne(const struct gb_gguf_tensor * t, int * n) {
    *n = GB_MAX(t->n_dims, GGML_MAX_DIMS);
    return t->all_ne ? t->all_ne : t->ne;
}

bool gb_gguf_tensor_is_opaque(const struct gb_gguf_tensor * t) {
    return t->n_dims > GGML_MAX_DIMS || !gb_type_is_valid(t->type);
}

// The rule of ggml tensors: if one axis is 0, the others may have any size.
bool gb_gguf_check_shape(const char * what, int n_dims, const int64_t * ne, int64_t * count) {
    *count = 1;
    for (int i = 0; i < n_dims; i++) {
        GB_FAIL_IF_RETURNING(ne[i] < 0 || !gb_mul_i64(*count, ne[i], count), false, GGML_STATUS_INVALID_ARGUMENT,
            "%s: dimension %d is %lld: dimensions must not be negative and their product must be below 2^63", what, i,
            (long long) ne[i]);
    }
    return true;
}

// Keeps sizes below half of the address space, so that a size plus an alignment cannot overflow.
// The same holds for a single row, because its bytes are a stride of the ggml tensor.
bool gb_gguf_tensor_size(const char * what, uint32_t type, int n_dims, const int64_t * ne, size_t * size) {
    GB_FAIL_IF_RETURNING(type > INT_MAX || !gb_type_is_valid((enum ggml_type) type), false,
        GGML_STATUS_INVALID_ARGUMENT, "%s: %u is not a tensor type", what, type);
    const int64_t block = ggml_blck_size((enum ggml_type) type);
    int64_t count;
    if (!gb_gguf_check_shape(what, n_dims, ne, &count)) {
        return false;
    }
    GB_FAIL_IF_RETURNING(ne[0] % block != 0, false, GGML_STATUS_INVALID_ARGUMENT,
        "%s: rows of %lld elements do not divide into %s blocks of %lld", what, (long long) ne[0],
        ggml_type_name((enum ggml_type) type), (long long) block);
    *size = ggml_type_size((enum ggml_type) type);
    for (int i = 0; i < n_dims; i++) {
        GB_FAIL_IF_RETURNING(!gb_mul_size(*size, (size_t) (i == 0 ? ne[0] / block : ne[i]), size) ||
                                 *size > SIZE_MAX / 2,
            false, GGML_STATUS_INVALID_ARGUMENT, "%s: the size of %lld elements overflows", what, (long long) count);
    }
    return true;
}

// ---------------------------------------------------------------------------------------------------------- properties

int gguf_get_version(const struct gguf_context * ctx) {
    GB_CHECK_ARG_RETURNING(ctx, 0);
    return (int) ctx->version;
}

size_t gguf_get_alignment(const struct gguf_context * ctx) {
    GB_CHECK_ARG_RETURNING(ctx, 0);
    return ctx->alignment;
}

// 0 for a context that was not read from a file.
size_t gguf_get_data_offset(const struct gguf_context * ctx) {
    GB_CHECK_ARG_RETURNING(ctx, 0);
    return ctx->data_offset;
}

void * gguf_get_data(const struct gguf_context * ctx) {
    GB_CHECK_ARG_RETURNING(ctx, NULL);
    return ctx->data;
}

// --------------------------------------------------------------------------------------------------------------- pairs

int gguf_get_n_kv(const struct gguf_context * ctx) {
    GB_CHECK_ARG_RETURNING(ctx, 0);
    return (int) ctx->kv.n;
}

// -1 is not an error, because programs use this to test for a key.
int gguf_find_key(const struct gguf_context * ctx, const char * key) {
    GB_CHECK_ARG_RETURNING(ctx, -1);
    GB_CHECK_ARG_RETURNING(key, -1);
    return (int) gb_strmap_get(&ctx->key_index, key);
}

// Pair key_id. NULL if there is none (reported for the function `func`).
static const struct gb_gguf_kv * kv_at(const char * func, const struct gguf_context * ctx, int key_id) {
    GB_FAIL_IF_RETURNING(ctx == NULL, NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'ctx' is NULL", func);
    GB_FAIL_IF_RETURNING(key_id < 0 || (size_t) key_id >= ctx->kv.n, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'key_id' is %d, there are %zu pairs", func, key_id, ctx->kv.n);
    return &ctx->kv.data[key_id];
}

// The value of pair key_id; NULL unless it is of this type (reported).
static const struct gb_gguf_value * value_at(const char * func, const struct gguf_context * ctx, int key_id,
    enum gguf_type type) {
    const struct gb_gguf_kv * kv = kv_at(func, ctx, key_id);
    GB_FAIL_IF_RETURNING(kv != NULL && kv->value.type != type, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: key '%s' is of type %s, not %s", func, kv->key, gguf_type_name(kv->value.type), gguf_type_name(type));
    return kv ? &kv->value : NULL;
}

const char * gguf_get_key(const struct gguf_context * ctx, int key_id) {
    const struct gb_gguf_kv * kv = kv_at(__func__, ctx, key_id);
    return kv ? kv->key : NULL;
}

enum gguf_type gguf_get_kv_type(const struct gguf_context * ctx, int key_id) {
    const struct gb_gguf_kv * kv = kv_at(__func__, ctx, key_id);
    return kv ? kv->value.type : GGUF_TYPE_COUNT;
}

enum gguf_type gguf_get_arr_type(const struct gguf_context * ctx, int key_id) {
    const struct gb_gguf_value * v = value_at(__func__, ctx, key_id, GGUF_TYPE_ARRAY);
    return v ? v->arr_type : GGUF_TYPE_COUNT;
}

// gguf_get_val_<suffix> of gguf.h; 0 on failure.
#define SCALAR_GETTER(suffix, ctype, TYPE, member)                                          \
    ctype gguf_get_val_##suffix(const struct gguf_context * ctx, int key_id) {              \
        const struct gb_gguf_value * v = value_at(__func__, ctx, key_id, GGUF_TYPE_##TYPE); \
        return v ? v->scalar.member : (ctype) 0;                                            \
    }

SCALAR_GETTER(u8, uint8_t, UINT8, u8)
SCALAR_GETTER(i8, int8_t, INT8, i8)
SCALAR_GETTER(u16, uint16_t, UINT16, u16)
SCALAR_GETTER(i16, int16_t, INT16, i16)
SCALAR_GETTER(u32, uint32_t, UINT32, u32)
SCALAR_GETTER(i32, int32_t, INT32, i32)
SCALAR_GETTER(f32, float, FLOAT32, f32)
SCALAR_GETTER(u64, uint64_t, UINT64, u64)
SCALAR_GETTER(i64, int64_t, INT64, i64)
SCALAR_GETTER(f64, double, FLOAT64, f64)
SCALAR_GETTER(bool, bool, BOOL, b)

const char * gguf_get_val_str(const struct gguf_context * ctx, int key_id) {
    const struct gb_gguf_value * v = value_at(__func__, ctx, key_id, GGUF_TYPE_STRING);
    return v ? v->str : NULL;
}

// The bytes of a scalar of any type, in the union.
const void * gguf_get_val_data(const struct gguf_context * ctx, int key_id) {
    const struct gb_gguf_kv * kv = kv_at(__func__, ctx, key_id);
    GB_FAIL_IF_RETURNING(kv != NULL && gb_gguf_type_size(kv->value.type) == 0, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: key '%s' is of type %s, not a scalar", __func__, kv->key, gguf_type_name(kv->value.type));
    return kv ? &kv->value.scalar : NULL;
}

// Readers and setters allow at most INT_MAX elements.
int gguf_get_arr_n(const struct gguf_context * ctx, int key_id) {
    const struct gb_gguf_value * v = value_at(__func__, ctx, key_id, GGUF_TYPE_ARRAY);
    return v ? (int) v->n : 0;
}

// Elements as in the file. Bools have one byte each.
const void * gguf_get_arr_data(const struct gguf_context * ctx, int key_id) {
    const struct gb_gguf_value * v = value_at(__func__, ctx, key_id, GGUF_TYPE_ARRAY);
    GB_FAIL_IF_RETURNING(v != NULL && v->arr_type == GGUF_TYPE_STRING, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: key '%s' is an array of strings: use gguf_get_arr_str", __func__, ctx->kv.data[key_id].key);
    GB_FAIL_IF_RETURNING(v != NULL && v->arr_type == GGUF_TYPE_ARRAY, NULL, GGML_STATUS_UNSUPPORTED,
        "%s: key '%s' is an array of arrays, which can only be copied", __func__, ctx->kv.data[key_id].key);
    return v ? v->data : NULL;
}

// The text ends at its first NUL for callers of this function. gb_gguf_strs gives all bytes.
const char * gguf_get_arr_str(const struct gguf_context * ctx, int key_id, int i) {
    const struct gb_gguf_value * v = value_at(__func__, ctx, key_id, GGUF_TYPE_ARRAY);
    if (v == NULL) {
        return NULL;
    }
    GB_FAIL_IF_RETURNING(v->arr_type != GGUF_TYPE_STRING, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: key '%s' is an array of %s, not of strings", __func__, ctx->kv.data[key_id].key,
        gguf_type_name(v->arr_type));
    GB_FAIL_IF_RETURNING(i < 0 || (uint64_t) i >= v->n, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: key '%s': argument 'i' is %d, there are %llu strings", __func__, ctx->kv.data[key_id].key, i,
        (unsigned long long) v->n);
    return v->strs[i];
}

// ------------------------------------------------------------------------------------------------------------- tensors

int gguf_get_n_tensors(const struct gguf_context * ctx) {
    GB_CHECK_ARG_RETURNING(ctx, 0);
    return (int) ctx->tensors.n;
}

// -1 is no error here either.
int gguf_find_tensor(const struct gguf_context * ctx, const char * name) {
    GB_CHECK_ARG_RETURNING(ctx, -1);
    GB_CHECK_ARG_RETURNING(name, -1);
    return (int) gb_strmap_get(&ctx->tensor_index, name);
}

// Tensor i. NULL if there is none (reported for the function `func`).
static const struct gb_gguf_tensor * tensor_at(const char * func, const struct gguf_context * ctx, int i) {
    GB_FAIL_IF_RETURNING(ctx == NULL, NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'ctx' is NULL", func);
    GB_FAIL_IF_RETURNING(i < 0 || (size_t) i >= ctx->tensors.n, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'i' is %d, there are %zu tensors", func, i, ctx->tensors.n);
    return &ctx->tensors.data[i];
}

size_t gguf_get_tensor_offset(const struct gguf_context * ctx, int i) {
    const struct gb_gguf_tensor * t = tensor_at(__func__, ctx, i);
    return t ? (size_t) t->offset : 0;
}

char * gguf_get_tensor_name(const struct gguf_context * ctx, int i) {
    const struct gb_gguf_tensor * t = tensor_at(__func__, ctx, i);
    return t ? t->name : NULL;
}

enum ggml_type gguf_get_tensor_type(const struct gguf_context * ctx, int i) {
    const struct gb_gguf_tensor * t = tensor_at(__func__, ctx, i);
    return t ? t->type : GGML_TYPE_COUNT;
}

size_t gguf_get_tensor_size(const struct gguf_context * ctx, int i) {
    const struct gb_gguf_tensor * t = tensor_at(__func__, ctx, i);
    return t ? t->size : 0;
}

int gguf_get_tensor_n_dims(const struct gguf_context * ctx, int i) {
    const struct gb_gguf_tensor * t = tensor_at(__func__, ctx, i);
    return t ? t->n_dims : 0;
}

const int64_t * gguf_get_tensor_ne(const struct gguf_context * ctx, int i) {
    const struct gb_gguf_tensor * t = tensor_at(__func__, ctx, i);
    int n;
    return t ? gb_gguf_tensor_ne(t, &n) : NULL;
}
