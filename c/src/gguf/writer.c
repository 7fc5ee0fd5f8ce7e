// writer.c - writes a gguf_context as bytes. The same functions count and write the bytes of the
// metadata, so count and bytes agree. Tensor data are written without a copy.
#include <string.h>

#include "base/file.h"
#include "gguf/gguf_impl.h"
#include "tensor/tensor.h"

// Receives the metadata.
struct sink {
    uint8_t * out; // with space for all bytes; NULL: only count them
    size_t n;
};

// Counts the bytes, and copies them unless `out` is NULL.
static void put_bytes(struct sink * s, const void * data, size_t size) {
    if (s->out != NULL && size > 0) {
        memcpy(s->out + s->n, data, size);
    }
    s->n += size;
}

// Numbers have the byte order of the machine.
static void put_u32(struct sink * s, uint32_t v) { put_bytes(s, &v, sizeof(v)); }

static void put_u64(struct sink * s, uint64_t v) { put_bytes(s, &v, sizeof(v)); }

// The length precedes a string, which has no terminator.
static void put_string(struct sink * s, const char * text, uint64_t length) {
    put_u64(s, length);
    put_bytes(s, text, (size_t) length);
}

// Writes the type, then the value in the format that take_value of reader.c reads.
static void put_value(struct sink * s, const struct gb_gguf_value * v) {
    put_u32(s, (uint32_t) v->type);
    if (v->type == GGUF_TYPE_BOOL) {
        const uint8_t byte = v->scalar.b ? 1 : 0;
        put_bytes(s, &byte, 1);
    } else if (v->type == GGUF_TYPE_STRING) {
        put_string(s, v->str, v->n);
    } else if (v->type != GGUF_TYPE_ARRAY) {
        put_bytes(s, &v->scalar, gb_gguf_type_size(v->type));
    } else {
        put_u32(s, (uint32_t) v->arr_type);
        put_u64(s, v->n);
        if (v->arr_type != GGUF_TYPE_STRING) {
            put_bytes(s, v->data, v->size);
        }
        for (uint64_t i = 0; v->arr_type == GGUF_TYPE_STRING && i < v->n; i++) {
            put_string(s, v->strs[i], v->lengths[i]);
        }
    }
}

// The record of a tensor. Dimensions beyond n_dims are 1 and not written.
static void put_tensor(struct sink * s, const struct gb_gguf_tensor * t) {
    put_string(s, t->name, strlen(t->name));
    put_u32(s, (uint32_t) t->n_dims);
    int n;
    const int64_t * ne = gb_gguf_tensor_ne(t, &n);
    for (int i = 0; i < t->n_dims; i++) {
        put_u64(s, (uint64_t) ne[i]);
    }
    put_u32(s, (uint32_t) t->type);
    put_u64(s, t->offset);
}

// Writes everything before the data section, with its padding.
static void put_meta(struct sink * s, const struct gguf_context * ctx) {
    put_bytes(s, GGUF_MAGIC, 4);
    put_u32(s, GGUF_VERSION);
    put_u64(s, ctx->tensors.n);
    put_u64(s, ctx->kv.n);
    for (size_t i = 0; i < ctx->kv.n; i++) {
        put_string(s, ctx->kv.data[i].key, strlen(ctx->kv.data[i].key));
        put_value(s, &ctx->kv.data[i].value);
    }
    for (size_t i = 0; i < ctx->tensors.n; i++) {
        put_tensor(s, &ctx->tensors.data[i]);
    }
    static const uint8_t zero;
    while (s->n % ctx->alignment != 0) {
        put_bytes(s, &zero, 1);
    }
}

// Counts by writing without an output.
size_t gguf_get_meta_size(const struct gguf_context * ctx) {
    GB_CHECK_ARG_RETURNING(ctx, 0);
    struct sink s = { NULL, 0 };
    put_meta(&s, ctx);
    return s.n;
}

// `data` has gguf_get_meta_size bytes.
enum ggml_status gguf_get_meta_data(const struct gguf_context * ctx, void * data) {
    GB_CHECK_ARG(ctx);
    GB_CHECK_ARG(data);
    struct sink s = { data, 0 };
    put_meta(&s, ctx);
    return GGML_STATUS_SUCCESS;
}

// Checks that the bytes of each tensor are known and that their number matches the type.
static enum ggml_status check_tensors(const struct gguf_context * ctx, bool only_meta) {
    for (size_t i = 0; i < ctx->tensors.n; i++) {
        const struct gb_gguf_tensor * t = &ctx->tensors.data[i];
        size_t size = t->size;
        int n;
        const int64_t * ne = gb_gguf_tensor_ne(t, &n);
        if (gb_type_is_valid(t->type) && !gb_gguf_tensor_size("gguf_write_to_file", (uint32_t) t->type, n, ne, &size)) {
            return GGML_STATUS_INVALID_ARGUMENT;
        }
        GB_FAIL_IF(size != t->size, GGML_STATUS_INVALID_STATE,
            "gguf_write_to_file: tensor '%.200s' has %zu bytes, its type %s needs %zu "
            "(call gguf_set_tensor_data after gguf_set_tensor_type)",
            t->name, t->size, ggml_type_name(t->type), size);
        GB_FAIL_IF(!only_meta && t->data == NULL && t->size > 0, GGML_STATUS_INVALID_STATE,
            "gguf_write_to_file: tensor '%.200s' has no data in host memory (set it by gguf_set_tensor_data)", t->name);
    }
    return GGML_STATUS_SUCCESS;
}

// Makes the metadata in memory first, because it is small compared with the data.
static enum ggml_status write_meta(const struct gguf_context * ctx, struct gb_file_writer * w) {
    const size_t size = gguf_get_meta_size(ctx);
    void * meta = gb_malloc(size);
    if (meta == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    gguf_get_meta_data(ctx, meta);
    const enum ggml_status status = gb_file_writer_write(w, meta, size);
    gb_free(meta);
    return status;
}

// Writes the bytes of each tensor, padded to the alignment as in gb_gguf_layout.
static enum ggml_status write_data(const struct gguf_context * ctx, struct gb_file_writer * w) {
    for (size_t i = 0; i < ctx->tensors.n; i++) {
        const struct gb_gguf_tensor * t = &ctx->tensors.data[i];
        const size_t end = t->size % ctx->alignment;
        GB_TRY(gb_file_writer_write(w, t->data, t->size));
        GB_TRY(gb_file_writer_zeros(w, end ? ctx->alignment - end : 0));
    }
    return GGML_STATUS_SUCCESS;
}

// Checks everything before it opens the file. A failed write leaves the old file in place.
enum ggml_status gguf_write_to_file(const struct gguf_context * ctx, const char * fname, bool only_meta) {
    GB_CHECK_ARG(ctx);
    GB_CHECK_ARG(fname);
    GB_TRY(check_tensors(ctx, only_meta));
    struct gb_file_writer w;
    GB_TRY(gb_file_writer_open(&w, fname));
    enum ggml_status status = write_meta(ctx, &w);
    if (status == GGML_STATUS_SUCCESS && !only_meta) {
        status = write_data(ctx, &w);
    }
    if (status != GGML_STATUS_SUCCESS) {
        gb_file_writer_abandon(&w);
        return status;
    }
    return gb_file_writer_commit(&w);
}
