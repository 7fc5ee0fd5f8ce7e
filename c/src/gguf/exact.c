// exact.c - strings with their lengths, and tensors of any name and type. The functions exceed the
// limits of gguf.h but keep its checks, so their results can be written and read again.
#include "gguf/exact.h"

#include <string.h>

#include "gguf/gguf_impl.h"

// Returns the value's own bytes, without a copy.
const char * gb_gguf_str(const struct gguf_context * ctx, int key_id, uint64_t * length) {
    const struct gb_gguf_value * v = &ctx->kv.data[key_id].value;
    *length = v->n;
    return v->str;
}

const char * gb_gguf_strs(const struct gguf_context * ctx, int key_id, const uint64_t ** lengths) {
    const struct gb_gguf_value * v = &ctx->kv.data[key_id].value;
    *lengths = v->lengths;
    return v->data;
}

// A NUL is added, for callers of gguf_get_val_str.
enum ggml_status gb_gguf_set_str(struct gguf_context * ctx, const char * key, const char * bytes, uint64_t length) {
    struct gb_gguf_value value = { .type = GGUF_TYPE_STRING, .n = length };
    value.str = gb_malloc((size_t) length + 1);
    if (value.str == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    memcpy(value.str, bytes, (size_t) length);
    value.str[length] = '\0';
    return gb_gguf_put(ctx, key, &value);
}

// Incoming bytes have the layout of the context's block, so one copy suffices.
enum ggml_status gb_gguf_set_strs(struct gguf_context * ctx, const char * key, const char * bytes,
    const uint64_t * lengths, uint64_t n) {
    struct gb_gguf_value value = { .type = GGUF_TYPE_ARRAY, .arr_type = GGUF_TYPE_STRING, .n = n };
    size_t total = 0;
    for (uint64_t i = 0; i < n; i++) {
        total += (size_t) lengths[i] + 1;
    }
    char * data = gb_malloc(total);
    value.data = data;
    value.strs = gb_calloc((size_t) n, sizeof(*value.strs));
    value.lengths = gb_calloc((size_t) n, sizeof(*value.lengths));
    if (data == NULL || value.strs == NULL || value.lengths == NULL) {
        gb_gguf_value_free(&value);
        return GGML_STATUS_ALLOC_FAILED;
    }
    memcpy(data, bytes, total);
    for (uint64_t i = 0; i < n; i++) {
        value.lengths[i] = lengths[i];
        value.strs[i] = data;
        data += lengths[i] + 1;
    }
    return gb_gguf_put(ctx, key, &value);
}

const char * gb_gguf_nested(const struct gguf_context * ctx, int key_id, uint64_t * size) {
    const struct gb_gguf_value * v = &ctx->kv.data[key_id].value;
    *size = v->size;
    return v->data;
}

// Checks the bytes before it copies them, because any caller may have made them.
enum ggml_status gb_gguf_set_nested(struct gguf_context * ctx, const char * key, const char * bytes, uint64_t size,
    uint64_t n) {
    if (!gb_gguf_check_nested(bytes, (size_t) size, n)) {
        return GGML_STATUS_INVALID_ARGUMENT;
    }
    struct gb_gguf_value value = { .type = GGUF_TYPE_ARRAY, .arr_type = GGUF_TYPE_ARRAY, .n = n };
    value.size = (size_t) size;
    value.data = gb_malloc(value.size);
    if (value.data == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    memcpy(value.data, bytes, value.size);
    return gb_gguf_put(ctx, key, &value);
}

// The limit of names in files. A ggml tensor's shorter limit does not apply.
static enum ggml_status check_name(const char * name) {
    const size_t length = strlen(name);
    GB_FAIL_IF(length == 0 || length > GB_GGUF_MAX_KEY, GGML_STATUS_INVALID_ARGUMENT,
        "a tensor's name has %zu bytes, allowed are 1 .. %d", length, GB_GGUF_MAX_KEY);
    return GGML_STATUS_SUCCESS;
}

// Like gguf_add_tensor, but without a ggml tensor.
enum ggml_status gb_gguf_add_named(struct gguf_context * ctx, const char * name, enum ggml_type type, int n_dims,
    const int64_t * ne) {
    struct gb_gguf_tensor t = { .type = type, .n_dims = n_dims };
    GB_TRY(check_name(name));
    memcpy(t.ne, ne, sizeof(t.ne));
    if (!gb_gguf_tensor_size("gguf_add_tensor", (uint32_t) type, GGML_MAX_DIMS, t.ne, &t.size)) {
        return GGML_STATUS_INVALID_ARGUMENT;
    }
    t.name = gb_strdup(name);
    return t.name ? gb_gguf_append_tensor(ctx, &t) : GGML_STATUS_ALLOC_FAILED;
}

enum ggml_status gb_gguf_copy_named(struct gguf_context * ctx, const struct gguf_context * src, size_t i,
    const char * name) {
    GB_TRY(check_name(name));
    return gb_gguf_copy_tensor(ctx, src, i, name);
}
