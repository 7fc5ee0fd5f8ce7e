// reader.c - a gguf_context from bytes that nobody vouches for.
//
// A cursor walks over the mapped file. Every read goes through take(), which knows how much is left, so no count or
// length is believed before the bytes for it are there: memory use stays proportional to the file. A failure is
// IO_ERROR and names the field and its offset.
#include <limits.h>
#include <stdarg.h>
#include <string.h>

#include "base/file.h"
#include "gguf/gguf_impl.h"
#include "tensor/tensor.h"

// The place in the file; at <= size always.
struct cursor {
    const uint8_t * data;
    size_t          size;
    size_t          at;
};

// The fewest bytes that a pair and a tensor's record can have: they bound the counts in the header.
enum { MIN_KV_SIZE = 8 + 1 + 4 + 1, MIN_TENSOR_SIZE = 8 + 1 + 4 + 8 + 4 + 8 };

// Reports what is wrong with the field at this offset, and returns from the calling function.
#define BAD(ret, at, ...)             \
    do {                              \
        bad_field((at), __VA_ARGS__); \
        return ret;                   \
    } while (0)

// Reports a failure of the file at a byte offset.
GGML_ATTRIBUTE_FORMAT(2, 3) static void bad_field(size_t at, const char * fmt, ...) {
    char    what[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    gb_fail(GGML_STATUS_IO_ERROR, "gguf: at offset %zu: %s", at, what);
}

// Bytes behind the cursor.
static size_t left(const struct cursor * c) { return c->size - c->at; }

// Reads n bytes of a field; false, reported, if the file has fewer.
static bool take(struct cursor * c, void * to, size_t n, const char * field) {
    if (n > left(c)) {
        BAD(false, c->at, "%s needs %zu bytes, the file has %zu more", field, n, left(c));
    }
    memcpy(to, c->data + c->at, n);
    c->at += n;
    return true;
}

// Reads a string; `bytes` points into the file and has no terminator.
static bool take_string(struct cursor * c, const char ** bytes, uint64_t * length, const char * field) {
    const size_t at = c->at;
    if (!take(c, length, sizeof(*length), field)) {
        return false;
    }
    if (*length > left(c)) {
        BAD(false, at, "%s has a length of %llu bytes, the file has %zu more", field, (unsigned long long) *length,
            left(c));
    }
    *bytes = (const char *) c->data + c->at;
    c->at += (size_t) *length;
    return true;
}

// A NUL-terminated copy that the caller owns; NULL when memory is out.
static char * copy_string(const char * bytes, uint64_t length) {
    char * copy = gb_malloc((size_t) length + 1);
    if (copy) {
        memcpy(copy, bytes, (size_t) length);
        copy[length] = '\0';
    }
    return copy;
}

// Reads a key or a tensor's name: not empty, of bounded length, without NUL. The caller owns the copy; NULL on failure
// (reported).
static char * take_name(struct cursor * c, const char * field) {
    const size_t at = c->at;
    const char * bytes;
    uint64_t     length;
    if (!take_string(c, &bytes, &length, field)) {
        return NULL;
    }
    if (length == 0 || length > GB_GGUF_MAX_KEY) {
        BAD(NULL, at, "%s has a length of %llu bytes, allowed are 1 .. %d", field, (unsigned long long) length,
            GB_GGUF_MAX_KEY);
    }
    if (memchr(bytes, '\0', (size_t) length) != NULL) {
        BAD(NULL, at, "%s contains a NUL byte", field);
    }
    return copy_string(bytes, length);
}

// -------------------------------------------------------------------------------------------------------------- values

// Two passes over the strings: memory is taken only when all of them are known to be in the file.
static bool take_string_array(struct cursor * c, struct gb_gguf_value * v) {
    // First pass: sizes, nothing allocated. The strings then lie in one block.
    struct cursor scan   = *c;
    size_t        total  = 0;
    const char *  bytes  = NULL;
    uint64_t      length = 0;
    for (uint64_t i = 0; i < v->n; i++) {
        if (!take_string(&scan, &bytes, &length, "a string of an array")) {
            return false;
        }
        total += (size_t) length + 1;
    }
    v->data    = gb_malloc(total);
    v->strs    = gb_calloc((size_t) v->n, sizeof(*v->strs));
    v->lengths = gb_calloc((size_t) v->n, sizeof(*v->lengths));
    if (v->data == NULL || v->strs == NULL || v->lengths == NULL) {
        return false;
    }
    char * to = v->data;
    for (uint64_t i = 0; i < v->n; i++) {
        const size_t at = c->at;
        if (!take_string(c, &bytes, &length, "a string of an array")) {
            return false;
        }
        if (length >= total) { // another process writes to the file meanwhile
            BAD(false, at, "a string of an array has changed while it was read");
        }
        total -= (size_t) length + 1;
        memcpy(to, bytes, (size_t) length);
        to[length]    = '\0';
        v->strs[i]    = to;
        v->lengths[i] = length;
        to += length + 1;
    }
    return true;
}

// The length is checked against what is left before memory for it is taken. Bytes of bools become 0 or 1.
static bool take_array(struct cursor * c, struct gb_gguf_value * v) {
    const size_t at = c->at;
    uint32_t     type;
    if (!take(c, &type, sizeof(type), "an array's element type") ||
        !take(c, &v->n, sizeof(v->n), "an array's length")) {
        return false;
    }
    if (type >= GGUF_TYPE_COUNT || type == GGUF_TYPE_ARRAY) {
        BAD(false, at, "an array has element type %u%s", type,
            type == GGUF_TYPE_ARRAY ? ": nested arrays are not supported" : "");
    }
    v->arr_type          = (enum gguf_type) type;
    const size_t element = type == GGUF_TYPE_STRING ? sizeof(uint64_t) : gb_gguf_type_size(v->arr_type);
    if (v->n > left(c) / element || v->n > INT_MAX) {
        BAD(false, at, "an array of %s has a length of %llu, the file has %zu more bytes", gguf_type_name(v->arr_type),
            (unsigned long long) v->n, left(c));
    }
    if (type == GGUF_TYPE_STRING) {
        return take_string_array(c, v);
    }
    v->data = gb_calloc((size_t) v->n, element);
    if (v->data == NULL || !take(c, v->data, (size_t) v->n * element, "an array")) {
        return false;
    }
    for (uint64_t i = 0; type == GGUF_TYPE_BOOL && i < v->n; i++) {
        ((uint8_t *) v->data)[i] = ((uint8_t *) v->data)[i] != 0;
    }
    return true;
}

// Reads the type and then a value of it; what it owns is freed by the caller on failure.
static bool take_value(struct cursor * c, struct gb_gguf_value * v, const char * key) {
    const size_t at = c->at;
    uint32_t     type;
    if (!take(c, &type, sizeof(type), "a value's type")) {
        return false;
    }
    if (type >= GGUF_TYPE_COUNT) {
        BAD(false, at, "key '%.200s' has value type %u, known are 0 .. %d", key, type, GGUF_TYPE_COUNT - 1);
    }
    v->type = (enum gguf_type) type;
    if (v->type == GGUF_TYPE_ARRAY) {
        return take_array(c, v);
    }
    if (v->type == GGUF_TYPE_STRING) {
        const char * bytes;
        if (!take_string(c, &bytes, &v->n, "a string value")) {
            return false;
        }
        v->str = copy_string(bytes, v->n);
        return v->str != NULL;
    }
    if (v->type == GGUF_TYPE_BOOL) {
        uint8_t    byte = 0;
        const bool ok   = take(c, &byte, 1, "a bool value");
        v->scalar.b     = byte != 0;
        return ok;
    }
    return take(c, &v->scalar, gb_gguf_type_size(v->type), "a value");
}

// The same rules as for a program that sets the pair, but the failure names the file's offset.
static bool check_alignment(size_t at, const char * key, const struct gb_gguf_value * v) {
    if (strcmp(key, GB_GGUF_ALIGNMENT_KEY) != 0) {
        return true;
    }
    if (v->type != GGUF_TYPE_UINT32) {
        BAD(false, at, "%s must be of type u32, not %s", key, gguf_type_name(v->type));
    }
    if (!gb_gguf_alignment_is_valid(v->scalar.u32)) {
        BAD(false, at, "%s is %u, must be a power of two up to %llu", key, v->scalar.u32,
            (unsigned long long) GB_GGUF_MAX_ALIGNMENT);
    }
    return true;
}

// Reads a pair into the context; a key that occurs twice is an error.
static bool take_kv(struct cursor * c, struct gguf_context * ctx) {
    const size_t at  = c->at;
    char *       key = take_name(c, "a key");
    if (key == NULL) {
        return false;
    }
    struct gb_gguf_value value = { 0 };
    bool                 ok    = take_value(c, &value, key);
    if (ok && gb_strmap_get(&ctx->key_index, key) != GB_STRMAP_ABSENT) {
        bad_field(at, "key '%.200s' occurs twice", key);
        ok = false;
    }
    ok = ok && check_alignment(at, key, &value);
    if (ok) {
        ok = gb_gguf_put(ctx, key, &value) == GGML_STATUS_SUCCESS;
    } else {
        gb_gguf_value_free(&value);
    }
    gb_free(key);
    return ok;
}

// ------------------------------------------------------------------------------------------------------------- tensors

// Everything of the record behind the name. A tensor of a type that this library does not know yet is opaque: its shape
// is checked, its size follows from the next offset.
static bool take_tensor_shape(struct cursor * c, struct gb_gguf_tensor * t) {
    const size_t at = c->at;
    uint32_t     n_dims, type;
    if (!take(c, &n_dims, sizeof(n_dims), "a tensor's number of dimensions")) {
        return false;
    }
    if (n_dims < 1 || n_dims > GGML_MAX_DIMS) {
        BAD(false, at, "tensor '%.200s' has %u dimensions, allowed are 1 .. %d", t->name, n_dims, GGML_MAX_DIMS);
    }
    t->n_dims = (int) n_dims;
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        t->ne[i] = 1;
        if (i < t->n_dims && !take(c, &t->ne[i], sizeof(t->ne[i]), "a tensor's dimensions")) {
            return false;
        }
    }
    if (!take(c, &type, sizeof(type), "a tensor's type") ||
        !take(c, &t->offset, sizeof(t->offset), "a tensor's offset")) {
        return false;
    }
    char what[300];
    snprintf(what, sizeof(what), "gguf: at offset %zu: tensor '%.200s'", at, t->name);
    int64_t count;
    t->opaque     = type <= GB_GGUF_MAX_TYPE && !gb_type_is_valid((enum ggml_type) type);
    const bool ok = t->opaque ? gb_gguf_check_shape(what, GGML_MAX_DIMS, t->ne, &count)
                              : gb_gguf_tensor_size(what, type, GGML_MAX_DIMS, t->ne, &t->size);
    if (!ok) {
        // the same message as a failure of the file, not of the caller
        gb_fail_quietly(GGML_STATUS_IO_ERROR, ggml_last_error());
        return false;
    }
    t->type = (enum ggml_type) type;
    return true;
}

// Reads a record into the context; the alignment is known, since pairs come before tensors.
static bool take_tensor(struct cursor * c, struct gguf_context * ctx) {
    const size_t          at = c->at;
    struct gb_gguf_tensor t  = { .name = take_name(c, "a tensor's name"), .at = at };
    if (t.name == NULL) {
        return false;
    }
    if (!take_tensor_shape(c, &t)) {
        gb_free(t.name);
        return false;
    }
    bool ok = true;
    if (t.offset % ctx->alignment != 0) {
        bad_field(at, "the offset of tensor '%.200s' is %llu, not a multiple of the alignment %zu", t.name,
            (unsigned long long) t.offset, ctx->alignment);
        ok = false;
    } else if (gb_strmap_get(&ctx->tensor_index, t.name) != GB_STRMAP_ABSENT) {
        bad_field(at, "tensor name '%.200s' occurs twice", t.name);
        ok = false;
    }
    if (!ok) {
        gb_free(t.name);
        return false;
    }
    return gb_gguf_append_tensor(ctx, &t) == GGML_STATUS_SUCCESS;
}

// Only the file tells how large a tensor of an unknown type is: it ends where the next one begins.
static bool size_opaque(const struct gguf_context * ctx, size_t i, size_t data_size, size_t * size) {
    const struct gb_gguf_tensor * t   = &ctx->tensors.data[i];
    const uint64_t                end = i + 1 < ctx->tensors.n ? GB_MIN(t[1].offset, data_size) : data_size;
    if (t->offset >= end) {
        BAD(false, t->at,
            "the offset of tensor '%.200s' (of unknown type %d) is %llu: "
            "no bytes before the next one or the end at %llu",
            t->name, (int) t->type, (unsigned long long) t->offset, (unsigned long long) end);
    }
    *size = (size_t) (end - t->offset);
    return true;
}

// Checks that every tensor lies inside the data section, and that none begins before the end of the one before it,
// which is how writers lay them out.
static bool check_data(struct gguf_context * ctx, size_t file_size) {
    const size_t data_size = file_size > ctx->data_offset ? file_size - ctx->data_offset : 0;
    uint64_t     end       = 0;
    for (size_t i = 0; i < ctx->tensors.n; i++) {
        struct gb_gguf_tensor * t = &ctx->tensors.data[i];
        if (t->offset < end) {
            BAD(false, t->at,
                "the offset of tensor '%.200s' is %llu: it overlaps the one before it, which ends at %llu", t->name,
                (unsigned long long) t->offset, (unsigned long long) end);
        }
        if (t->opaque && !size_opaque(ctx, i, data_size, &t->size)) {
            return false;
        }
        if (t->offset > data_size || t->size > data_size - t->offset) {
            BAD(false, t->at,
                "the offset of tensor '%.200s' is %llu: its %zu bytes end after the data section (%zu bytes)", t->name,
                (unsigned long long) t->offset, t->size, data_size);
        }
        end = t->offset + t->size;
    }
    return true;
}

// ---------------------------------------------------------------------------------------------------------------- file

// Checks the magic, the version and that the counts are possible in a file of this size.
static bool take_header(struct cursor * c, struct gguf_context * ctx, uint64_t * n_tensors, uint64_t * n_kv) {
    char magic[4];
    if (!take(c, magic, sizeof(magic), "the magic")) {
        return false;
    }
    if (memcmp(magic, GGUF_MAGIC, sizeof(magic)) != 0) {
        BAD(false, 0, "not a GGUF file: it begins with %02x %02x %02x %02x", (unsigned char) magic[0],
            (unsigned char) magic[1], (unsigned char) magic[2], (unsigned char) magic[3]);
    }
    if (!take(c, &ctx->version, sizeof(ctx->version), "the version")) {
        return false;
    }
    if ((ctx->version & 0xffff) == 0 && ctx->version != 0) {
        BAD(false, 4,
            "the file is in the other byte order (version field 0x%08x): "
            "gguf-convert-endian of the Python package gguf converts it",
            ctx->version);
    }
    if (ctx->version != 2 && ctx->version != 3) {
        BAD(false, 4, "version %u is not supported, only 2 and 3", ctx->version);
    }
    if (!take(c, n_tensors, sizeof(*n_tensors), "the number of tensors") ||
        !take(c, n_kv, sizeof(*n_kv), "the number of pairs")) {
        return false;
    }
    if (*n_tensors > left(c) / MIN_TENSOR_SIZE || *n_tensors > INT_MAX) {
        BAD(false, 8, "the number of tensors is %llu, the file has %zu more bytes", (unsigned long long) *n_tensors,
            left(c));
    }
    if (*n_kv > left(c) / MIN_KV_SIZE || *n_kv > INT_MAX) {
        BAD(false, 16, "the number of pairs is %llu, the file has %zu more bytes", (unsigned long long) *n_kv, left(c));
    }
    return true;
}

// Header, pairs, tensors, then where the data begin: the alignment is known only after the pairs.
static bool parse(struct gguf_context * ctx, const struct gb_file_map * map) {
    struct cursor c = { map->data, map->size, 0 };
    uint64_t      n_tensors, n_kv;
    if (!take_header(&c, ctx, &n_tensors, &n_kv)) {
        return false;
    }
    for (uint64_t i = 0; i < n_kv; i++) {
        if (!take_kv(&c, ctx)) {
            return false;
        }
    }
    for (uint64_t i = 0; i < n_tensors; i++) {
        if (!take_tensor(&c, ctx)) {
            return false;
        }
    }
    // A file without tensors may end before the padding.
    if (!gb_pad_size(c.at, ctx->alignment, &ctx->data_offset) || (n_tensors > 0 && ctx->data_offset > map->size)) {
        BAD(false, c.at, "the data section would start at %zu, the file has %zu bytes", ctx->data_offset, map->size);
    }
    return check_data(ctx, map->size);
}

// ------------------------------------------------------------------------------------------------------------- tensors

// One tensor of bytes that holds the whole data section; the others point into it.
static struct ggml_tensor * add_blob(struct ggml_context * out, const struct gguf_context * ctx,
    const struct gb_file_map * map) {
    const size_t         size = map->size > ctx->data_offset ? map->size - ctx->data_offset : 0;
    struct ggml_tensor * blob = ggml_new_tensor_1d(out, GGML_TYPE_I8, (int64_t) size);
    if (blob && size > 0) {
        memcpy(blob->data, map->data + ctx->data_offset, size);
    }
    return blob;
}

// Makes the tensors of the file in `out`. With no_alloc they have no data. The context itself allocates nothing for
// them.
static bool add_tensors(struct ggml_context * out, struct gguf_context * ctx, const struct gb_file_map * map,
    bool no_alloc) {
    struct ggml_tensor * blob = no_alloc ? NULL : add_blob(out, ctx, map);
    if (!no_alloc && blob == NULL) {
        return false;
    }
    ggml_set_no_alloc(out, true);
    for (size_t i = 0; i < ctx->tensors.n; i++) {
        const struct gb_gguf_tensor * info = &ctx->tensors.data[i];
        struct ggml_tensor *          t    = ggml_new_tensor(out, info->type, info->n_dims, info->ne);
        if (t == NULL) {
            return false;
        }
        ggml_set_name(t, info->name);
        t->data = blob ? (char *) blob->data + info->offset : NULL;
    }
    ggml_set_no_alloc(out, no_alloc);
    ctx->data = blob ? blob->data : NULL;
    return true;
}

// UNSUPPORTED if a tensor is opaque: a program could not compute with it, nor tell that it was left out.
static bool all_known(const struct gguf_context * ctx) {
    for (size_t i = 0; i < ctx->tensors.n; i++) {
        const struct gb_gguf_tensor * t = &ctx->tensors.data[i];
        GB_FAIL_IF_RETURNING(t->opaque, false, GGML_STATUS_UNSUPPORTED,
            "gguf: at offset %zu: tensor '%.200s' is of type %d, which is not known: "
            "read without params.ctx, its bytes can only be passed on",
            t->at, t->name, (int) t->type);
    }
    return true;
}

// The ggml tensors for params.ctx, in a context that the caller will own.
static bool make_tensors(struct gguf_context * ctx, const struct gb_file_map * map, struct gguf_init_params params) {
    if (!all_known(ctx)) {
        return false;
    }
    const size_t                  size = (ctx->tensors.n + 1) * ggml_tensor_overhead();
    const struct ggml_init_params init = { .mem_size = size, .mem_buffer = NULL, .no_alloc = params.no_alloc };
    struct ggml_context *         out  = ggml_init(init);
    if (out == NULL || !add_tensors(out, ctx, map, params.no_alloc)) {
        ggml_free(out);
        return false;
    }
    *params.ctx = out;
    return true;
}

// The context, and in *params.ctx the tensors; NULL if either fails.
static struct gguf_context * read_from(const struct gb_file_map * map, struct gguf_init_params params) {
    struct gguf_context * ctx = gguf_init_empty();
    if (ctx && (!parse(ctx, map) || (params.ctx != NULL && !make_tensors(ctx, map, params)))) {
        gguf_free(ctx);
        ctx = NULL;
    }
    return ctx;
}

// Frees what read_from made of a file that shrank meanwhile.
static void free_read(struct gguf_context * ctx, struct gguf_init_params params) {
    if (params.ctx != NULL) {
        ggml_free(*params.ctx);
        *params.ctx = NULL;
    }
    gguf_free(ctx);
}

// What was read of a file that shrank meanwhile is not to be trusted: closing the map tells.
struct gguf_context * gguf_init_from_file(const char * fname, struct gguf_init_params params) {
    GB_CHECK_ARG_RETURNING(fname, NULL);
    struct gb_file_map map;
    if (gb_file_map_open(&map, fname) != GGML_STATUS_SUCCESS) {
        return NULL;
    }
    struct gguf_context * ctx = read_from(&map, params);
    if (gb_file_map_close(&map) != GGML_STATUS_SUCCESS && ctx != NULL) {
        free_read(ctx, params);
        ctx = NULL;
    }
    return ctx;
}

// The bytes may be a file that the program has mapped.
struct gguf_context * gguf_init_from_buffer(const void * data, size_t size, struct gguf_init_params params) {
    GB_FAIL_IF_RETURNING(data == NULL && size > 0, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'data' is NULL, 'size' is %zu", __func__, size);
    const struct gb_file_map map = { data, size, NULL };
    gb_mapped_enter();
    struct gguf_context * ctx = read_from(&map, params);
    gb_mapped_leave();
    if (gb_mapped_check_at(__func__, data) != GGML_STATUS_SUCCESS && ctx != NULL) {
        free_read(ctx, params);
        ctx = NULL;
    }
    return ctx;
}
