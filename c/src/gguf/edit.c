// edit.c - changes a gguf_context: pairs and tensors. A failed change leaves the context unchanged.
#include <limits.h>
#include <string.h>

#include "ggml-backend.h"
#include "gguf/gguf_impl.h"
#include "tensor/tensor.h"

bool gb_gguf_alignment_is_valid(uint64_t alignment) {
    return alignment >= 1 && alignment <= GB_GGUF_MAX_ALIGNMENT && (alignment & (alignment - 1)) == 0;
}

void gb_gguf_layout(struct gguf_context * ctx) {
    uint64_t offset = 0;
    for (size_t i = 0; i < ctx->tensors.n; i++) {
        struct gb_gguf_tensor * t = &ctx->tensors.data[i];
        t->offset = offset;
        offset += ((uint64_t) t->size + ctx->alignment - 1) & ~((uint64_t) ctx->alignment - 1);
    }
}

// --------------------------------------------------------------------------------------------------------------- pairs

// Checks that a key has an allowed length, and that readers can use general.alignment.
static enum ggml_status check_pair(const char * key, const struct gb_gguf_value * value) {
    const size_t length = strlen(key);
    GB_FAIL_IF(length == 0 || length > GB_GGUF_MAX_KEY, GGML_STATUS_INVALID_ARGUMENT,
        "gguf: a key has %zu bytes, allowed are 1 .. %d", length, GB_GGUF_MAX_KEY);
    if (strcmp(key, GB_GGUF_ALIGNMENT_KEY) == 0) {
        GB_FAIL_IF(value->type != GGUF_TYPE_UINT32, GGML_STATUS_INVALID_ARGUMENT,
            "gguf: %s must be of type u32, not %s", key, gguf_type_name(value->type));
        GB_FAIL_IF(!gb_gguf_alignment_is_valid(value->scalar.u32), GGML_STATUS_INVALID_ARGUMENT,
            "gguf: %s is %u, must be a power of two up to %llu", key, value->scalar.u32,
            (unsigned long long) GB_GGUF_MAX_ALIGNMENT);
    }
    return GGML_STATUS_SUCCESS;
}

// Allocates everything before it adds the pair, so a failure changes nothing.
static enum ggml_status append_pair(struct gguf_context * ctx, const char * key, const struct gb_gguf_value * value) {
    GB_FAIL_IF(ctx->kv.n >= INT_MAX, GGML_STATUS_INVALID_ARGUMENT, "gguf: more than %d pairs", INT_MAX);
    struct gb_gguf_kv kv = { gb_strdup(key), *value };
    if (kv.key == NULL || !gb_vec_reserve(&ctx->kv, ctx->kv.n + 1) ||
        !gb_strmap_set(&ctx->key_index, kv.key, (int64_t) ctx->kv.n)) {
        gb_free(kv.key);
        return GGML_STATUS_ALLOC_FAILED;
    }
    ctx->kv.data[ctx->kv.n++] = kv;
    return GGML_STATUS_SUCCESS;
}

// The value replaces the old one only after all checks.
enum ggml_status gb_gguf_put(struct gguf_context * ctx, const char * key, struct gb_gguf_value * value) {
    enum ggml_status status = check_pair(key, value);
    if (status == GGML_STATUS_SUCCESS) {
        const int64_t at = gb_strmap_get(&ctx->key_index, key);
        if (at == GB_STRMAP_ABSENT) {
            status = append_pair(ctx, key, value);
        } else {
            gb_gguf_value_free(&ctx->kv.data[at].value);
            ctx->kv.data[at].value = *value;
        }
    }
    if (status != GGML_STATUS_SUCCESS) {
        gb_gguf_value_free(value);
        return status;
    }
    if (strcmp(key, GB_GGUF_ALIGNMENT_KEY) == 0) {
        ctx->alignment = value->scalar.u32;
    }
    *value = (struct gb_gguf_value){ 0 };
    return GGML_STATUS_SUCCESS;
}

// Sets a pair for the user. A new alignment moves the tensors.
static enum ggml_status put(struct gguf_context * ctx, const char * key, struct gb_gguf_value * value) {
    const size_t alignment = ctx->alignment;
    GB_TRY(gb_gguf_put(ctx, key, value));
    if (ctx->alignment != alignment) {
        gb_gguf_layout(ctx);
    }
    return GGML_STATUS_SUCCESS;
}

// gguf_set_val_<suffix> of gguf.h.
#define SCALAR_SETTER(suffix, ctype, TYPE, member)                                                   \
    enum ggml_status gguf_set_val_##suffix(struct gguf_context * ctx, const char * key, ctype val) { \
        GB_CHECK_ARG(ctx);                                                                           \
        GB_CHECK_ARG(key);                                                                           \
        struct gb_gguf_value value = { .type = GGUF_TYPE_##TYPE };                                   \
        value.scalar.member = val;                                                                   \
        return put(ctx, key, &value);                                                                \
    }

SCALAR_SETTER(u8, uint8_t, UINT8, u8)
SCALAR_SETTER(i8, int8_t, INT8, i8)
SCALAR_SETTER(u16, uint16_t, UINT16, u16)
SCALAR_SETTER(i16, int16_t, INT16, i16)
SCALAR_SETTER(u32, uint32_t, UINT32, u32)
SCALAR_SETTER(i32, int32_t, INT32, i32)
SCALAR_SETTER(f32, float, FLOAT32, f32)
SCALAR_SETTER(u64, uint64_t, UINT64, u64)
SCALAR_SETTER(i64, int64_t, INT64, i64)
SCALAR_SETTER(f64, double, FLOAT64, f64)
SCALAR_SETTER(bool, bool, BOOL, b)

// The text ends at its NUL; gb_gguf_set_str takes any bytes.
enum ggml_status gguf_set_val_str(struct gguf_context * ctx, const char * key, const char * val) {
    GB_CHECK_ARG(ctx);
    GB_CHECK_ARG(key);
    GB_CHECK_ARG(val);
    struct gb_gguf_value value = { .type = GGUF_TYPE_STRING, .n = strlen(val), .str = gb_strdup(val) };
    return value.str ? put(ctx, key, &value) : GGML_STATUS_ALLOC_FAILED;
}

// Copies the elements. n may be 0.
enum ggml_status gguf_set_arr_data(struct gguf_context * ctx, const char * key, enum gguf_type type, const void * data,
    int n) {
    GB_CHECK_ARG(ctx);
    GB_CHECK_ARG(key);
    const size_t element = gb_gguf_type_size(type);
    GB_FAIL_IF(element == 0, GGML_STATUS_INVALID_ARGUMENT,
        "gguf_set_arr_data: key '%s': type %d is not a scalar type (for strings: gguf_set_arr_str)", key, (int) type);
    GB_FAIL_IF(n < 0 || (n > 0 && data == NULL), GGML_STATUS_INVALID_ARGUMENT,
        "gguf_set_arr_data: key '%s': %d elements at address %p cannot be read", key, n, data);
    struct gb_gguf_value value = { .type = GGUF_TYPE_ARRAY, .arr_type = type, .n = (uint64_t) n };
    value.data = gb_calloc((size_t) n, element);
    if (value.data == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    value.size = (size_t) n * element;
    if (n > 0) {
        memcpy(value.data, data, value.size);
    }
    return put(ctx, key, &value);
}

// Copies strings of the given lengths into one block of a value, each followed by a NUL. False:
// memory ran out, and the caller frees the value.
static bool copy_strings(struct gb_gguf_value * value, const char * const * strings, const uint64_t * lengths,
    size_t n) {
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        total += (size_t) lengths[i] + 1;
    }
    value->n = n;
    value->data = gb_malloc(total);
    value->strs = gb_calloc(n, sizeof(*value->strs));
    value->lengths = gb_calloc(n, sizeof(*value->lengths));
    if (value->data == NULL || value->strs == NULL || value->lengths == NULL) {
        return false;
    }
    char * to = value->data;
    for (size_t i = 0; i < n; i++) {
        memcpy(to, strings[i], (size_t) lengths[i]);
        to[lengths[i]] = '\0';
        value->strs[i] = to;
        value->lengths[i] = lengths[i];
        to += lengths[i] + 1;
    }
    return true;
}

// Counts the lengths first, so that one block can hold all strings.
enum ggml_status gguf_set_arr_str(struct gguf_context * ctx, const char * key, const char ** data, int n) {
    GB_CHECK_ARG(ctx);
    GB_CHECK_ARG(key);
    GB_FAIL_IF(n < 0 || (n > 0 && data == NULL), GGML_STATUS_INVALID_ARGUMENT,
        "gguf_set_arr_str: key '%s': %d strings at address %p cannot be read", key, n, (const void *) data);
    uint64_t * lengths = gb_calloc((size_t) n, sizeof(*lengths));
    if (lengths == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (int i = 0; i < n; i++) {
        if (data[i] == NULL) {
            gb_free(lengths);
            return gb_fail(GGML_STATUS_INVALID_ARGUMENT, "gguf_set_arr_str: key '%s': string %d is NULL", key, i);
        }
        lengths[i] = strlen(data[i]);
    }
    struct gb_gguf_value value = { .type = GGUF_TYPE_ARRAY, .arr_type = GGUF_TYPE_STRING };
    const bool copied = copy_strings(&value, data, lengths, (size_t) n);
    gb_free(lengths);
    if (!copied) {
        gb_gguf_value_free(&value);
        return GGML_STATUS_ALLOC_FAILED;
    }
    return put(ctx, key, &value);
}

// A deep copy. False: memory ran out, and the caller frees `to`.
static bool copy_value(struct gb_gguf_value * to, const struct gb_gguf_value * from) {
    *to = *from;
    to->str = NULL, to->data = NULL, to->strs = NULL, to->lengths = NULL;
    if (from->type == GGUF_TYPE_STRING) {
        to->str = gb_malloc((size_t) from->n + 1);
        return to->str != NULL && memcpy(to->str, from->str, (size_t) from->n + 1) != NULL;
    }
    if (from->type != GGUF_TYPE_ARRAY) {
        return true;
    }
    if (from->arr_type == GGUF_TYPE_STRING) {
        return copy_strings(to, (const char * const *) from->strs, from->lengths, (size_t) from->n);
    }
    to->data = gb_malloc(from->size);
    return to->data != NULL && memcpy(to->data, from->data, from->size) != NULL;
}

// A new general.alignment moves the tensors of ctx.
enum ggml_status gb_gguf_copy_pair(struct gguf_context * ctx, const struct gguf_context * src, size_t i) {
    struct gb_gguf_value value;
    if (!copy_value(&value, &src->kv.data[i].value)) {
        gb_gguf_value_free(&value);
        return GGML_STATUS_ALLOC_FAILED;
    }
    return put(ctx, src->kv.data[i].key, &value);
}

// Moves pairs into ctx, which has reserved space for them. Leaves the values to be freed in
// `pairs`. Cannot fail.
static void merge_pairs(struct gguf_context * ctx, struct gb_gguf_kv * pairs, size_t n) {
    const size_t alignment = ctx->alignment;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(pairs[i].key, GB_GGUF_ALIGNMENT_KEY) == 0) {
            ctx->alignment = pairs[i].value.scalar.u32;
        }
        const int64_t at = gb_strmap_get(&ctx->key_index, pairs[i].key);
        if (at != GB_STRMAP_ABSENT) {
            const struct gb_gguf_value old = ctx->kv.data[at].value;
            ctx->kv.data[at].value = pairs[i].value;
            pairs[i].value = old;
        } else {
            gb_strmap_set(&ctx->key_index, pairs[i].key, (int64_t) ctx->kv.n); // the space is reserved
            ctx->kv.data[ctx->kv.n++] = pairs[i];
            pairs[i] = (struct gb_gguf_kv){ 0 };
        }
    }
    if (ctx->alignment != alignment) {
        gb_gguf_layout(ctx);
    }
}

// Pairs of src replace pairs with the same key; other pairs are appended. All pairs or none.
enum ggml_status gguf_set_kv(struct gguf_context * ctx, struct gguf_context * src) {
    GB_CHECK_ARG(ctx);
    GB_CHECK_ARG(src);
    if (ctx == src) {
        return GGML_STATUS_SUCCESS;
    }
    GB_FAIL_IF(src->kv.n > INT_MAX - ctx->kv.n, GGML_STATUS_INVALID_ARGUMENT, "gguf: more than %d pairs", INT_MAX);
    // Takes all memory before it changes anything, so merging cannot fail.
    struct gb_gguf_kv * copies = gb_calloc(src->kv.n, sizeof(*copies));
    bool ok = copies != NULL && gb_vec_reserve(&ctx->kv, ctx->kv.n + src->kv.n) &&
              gb_strmap_reserve(&ctx->key_index, ctx->kv.n + src->kv.n);
    for (size_t i = 0; ok && i < src->kv.n; i++) {
        copies[i].key = gb_strdup(src->kv.data[i].key);
        ok = copies[i].key != NULL && copy_value(&copies[i].value, &src->kv.data[i].value);
    }
    if (ok) {
        merge_pairs(ctx, copies, src->kv.n);
    }
    for (size_t i = 0; copies != NULL && i < src->kv.n; i++) {  // replaced values, or unused copies
        gb_free(copies[i].key);
        gb_gguf_value_free(&copies[i].value);
    }
    gb_free(copies);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

// ------------------------------------------------------------------------------------------------------------- tensors

// The caller or gb_gguf_layout sets the offset.
enum ggml_status gb_gguf_append_tensor(struct gguf_context * ctx, struct gb_gguf_tensor * t) {
    enum ggml_status status = GGML_STATUS_SUCCESS;
    if (ctx->tensors.n >= INT_MAX) {
        status = gb_fail(GGML_STATUS_INVALID_ARGUMENT, "gguf: more than %d tensors", INT_MAX);
    } else if (gb_strmap_get(&ctx->tensor_index, t->name) != GB_STRMAP_ABSENT) {
        status = gb_fail(GGML_STATUS_INVALID_ARGUMENT, "gguf: there is a tensor named '%.200s' already", t->name);
    } else if (!gb_vec_reserve(&ctx->tensors, ctx->tensors.n + 1) ||
               !gb_strmap_set(&ctx->tensor_index, t->name, (int64_t) ctx->tensors.n)) {
        status = GGML_STATUS_ALLOC_FAILED;
    }
    if (status != GGML_STATUS_SUCCESS) {
        gb_gguf_tensor_free(t);
        return status;
    }
    ctx->tensors.data[ctx->tensors.n++] = *t;
    return GGML_STATUS_SUCCESS;
}

// The copy has no data, so the caller must set them before writing.
enum ggml_status gb_gguf_copy_tensor(struct gguf_context * ctx, const struct gguf_context * src, size_t i,
    const char * name) {
    const struct gb_gguf_tensor * from = &src->tensors.data[i];
    struct gb_gguf_tensor t = *from;
    const size_t size = from->all_ne ? (size_t) from->n_dims * sizeof(*t.all_ne) : 0;
    t.data = NULL;
    t.name = gb_strdup(name);
    t.all_ne = from->all_ne ? gb_malloc(size) : NULL;
    if (t.name == NULL || (size > 0 && t.all_ne == NULL)) {
        gb_gguf_tensor_free(&t);
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (size > 0) {
        memcpy(t.all_ne, from->all_ne, size);
    }
    return gb_gguf_append_tensor(ctx, &t);
}

// Borrows the data, which must live until the file is written. A device's tensor is only described.
enum ggml_status gguf_add_tensor(struct gguf_context * ctx, const struct ggml_tensor * tensor) {
    GB_CHECK_ARG(ctx);
    GB_CHECK_ARG(tensor);
    GB_FAIL_IF(tensor->name[0] == '\0', GGML_STATUS_INVALID_ARGUMENT, "gguf_add_tensor: the tensor has no name");
    struct gb_gguf_tensor t = { .type = tensor->type, .n_dims = ggml_n_dims(tensor) };
    memcpy(t.ne, tensor->ne, sizeof(t.ne));
    GB_FAIL_IF(!gb_gguf_tensor_size("gguf_add_tensor", (uint32_t) t.type, GGML_MAX_DIMS, t.ne, &t.size),
        GGML_STATUS_INVALID_ARGUMENT, "gguf_add_tensor: tensor '%s' cannot be stored: %s", tensor->name,
        gb_last_message());
    const struct ggml_tensor * root = gb_root(tensor);
    const bool host = root->buffer == NULL || ggml_backend_buffer_is_host(root->buffer);
    GB_FAIL_IF(host && tensor->data != NULL && !ggml_is_contiguous(tensor), GGML_STATUS_INVALID_ARGUMENT,
        "gguf_add_tensor: tensor '%s' is not contiguous", tensor->name);
    t.data = host ? tensor->data : NULL;  // a device's data: gguf_set_tensor_data sets them later
    t.name = gb_strdup(tensor->name);
    if (t.name == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_TRY(gb_gguf_append_tensor(ctx, &t));
    gb_gguf_layout(ctx);
    return GGML_STATUS_SUCCESS;
}

// The tensor of that name. NULL if there is none (reported for the function `func`).
static struct gb_gguf_tensor * tensor_named(const char * func, struct gguf_context * ctx, const char * name) {
    GB_FAIL_IF_RETURNING(ctx == NULL || name == NULL, NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument '%s' is NULL",
        func, ctx ? "name" : "ctx");
    const int64_t i = gb_strmap_get(&ctx->tensor_index, name);
    GB_FAIL_IF_RETURNING(i == GB_STRMAP_ABSENT, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: there is no tensor named '%.200s'", func, name);
    return &ctx->tensors.data[i];
}

// The caller sets the data of the new type next, and the writer checks that size and type agree.
enum ggml_status gguf_set_tensor_type(struct gguf_context * ctx, const char * name, enum ggml_type type) {
    struct gb_gguf_tensor * t = tensor_named(__func__, ctx, name);
    if (t == NULL) {
        return GGML_STATUS_INVALID_ARGUMENT;
    }
    size_t size;
    int n;
    const int64_t * ne = gb_gguf_tensor_ne(t, &n);
    if (!gb_gguf_tensor_size(__func__, (uint32_t) type, n, ne, &size)) {
        return GGML_STATUS_INVALID_ARGUMENT;
    }
    t->type = type;
    return GGML_STATUS_SUCCESS;
}

// Borrows the data. If the size changes, the later tensors move.
enum ggml_status gguf_set_tensor_data(struct gguf_context * ctx, const char * name, const void * data, size_t size) {
    struct gb_gguf_tensor * t = tensor_named(__func__, ctx, name);
    if (t == NULL) {
        return GGML_STATUS_INVALID_ARGUMENT;
    }
    GB_FAIL_IF(size > SIZE_MAX / 2, GGML_STATUS_INVALID_ARGUMENT,
        "gguf_set_tensor_data: tensor '%s': %zu bytes are too many", name, size);
    t->data = data;
    t->size = size;
    gb_gguf_layout(ctx);
    return GGML_STATUS_SUCCESS;
}
