// reader.c - makes a gguf_context from untrusted bytes.
//
// A cursor walks over the mapped file. Every read uses take(), which knows how many bytes are left.
// The reader trusts a count or length only if the file has the bytes for it. So memory and work
// stay proportional to the file. A failure is IO_ERROR and names the field and its offset. If bytes
// are missing, the message says how many bytes the file has and how many it needs.
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "gguf/gguf_impl.h"
#include "tensor/tensor.h"

// The position in the file; always at <= size.
struct cursor {
    const uint8_t * data;
    size_t size;
    size_t at;
};

// The minimum bytes of a pair, of a tensor's record and of an array. They bound counts.
enum { MIN_KV_SIZE = 8 + 1 + 4 + 1, MIN_TENSOR_SIZE = 8 + 1 + 4 + 4 + 8, MIN_ARRAY_SIZE = 4 + 8 };

// Reports what is wrong with the field at this offset, and returns from the calling function.
#define BAD(ret, at, ...)             \
    do {                              \
        bad_field((at), __VA_ARGS__); \
        return ret;                   \
    } while (0)

// Reports a failure of the file at a byte offset.
GGML_ATTRIBUTE_FORMAT(2, 3) static void bad_field(size_t at, const char * fmt, ...) {
    char what[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    gb_fail(GGML_STATUS_IO_ERROR, "gguf: at offset %zu: %s", at, what);
}

// Bytes after the cursor.
static size_t left(const struct cursor * c) { return c->size - c->at; }

// True if n times `size` bytes are left. False is reported. `what` names the bytes in the message.
static bool has(const struct cursor * c, uint64_t n, size_t size, const char * what) {
    if (n <= left(c) / size) {
        return true;
    }
    char needed[64];
    if (n <= (SIZE_MAX - c->at) / size) {
        snprintf(needed, sizeof(needed), "at least %llu", (unsigned long long) (c->at + n * size));
    } else {
        snprintf(needed, sizeof(needed), "more than any file has");
    }
    BAD(false, c->at,
        "%s needs %llu bytes, the file has %zu more: the file is incomplete or damaged. It has %zu bytes and needs %s. "
        "Download or copy it again",
        what, n <= UINT64_MAX / size ? (unsigned long long) (n * size) : ULLONG_MAX, left(c), c->size, needed);
}

// Reads n bytes of a field; false, reported, if the file has fewer.
static bool take(struct cursor * c, void * to, size_t n, const char * field) {
    if (!has(c, n, 1, field)) {
        return false;
    }
    if (n > 0) {
        memcpy(to, c->data + c->at, n);
    }
    c->at += n;
    return true;
}

// Steps over n elements of `size` bytes; false, reported, if the file has fewer.
static bool skip(struct cursor * c, uint64_t n, size_t size, const char * what) {
    if (!has(c, n, size, what)) {
        return false;
    }
    c->at += (size_t) n * size;
    return true;
}

// Reads a string; `bytes` points into the file and has no terminator.
static bool take_string(struct cursor * c, const char ** bytes, uint64_t * length, const char * field) {
    if (!take(c, length, sizeof(*length), field)) {
        return false;
    }
    *bytes = (const char *) c->data + c->at;
    return skip(c, *length, 1, field);
}

// A NUL-terminated copy that the caller owns. NULL if memory runs out.
static char * copy_string(const char * bytes, uint64_t length) {
    char * copy = gb_malloc((size_t) length + 1);
    if (copy) {
        memcpy(copy, bytes, (size_t) length);
        copy[length] = '\0';
    }
    return copy;
}

// Reads a key or a tensor's name: not empty, of bounded length, without NUL. The caller owns the
// copy. NULL on failure (reported).
static char * take_name(struct cursor * c, const char * field) {
    const size_t at = c->at;
    const char * bytes;
    uint64_t length;
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

// Reads strings in two passes, so that memory is allocated only if all of them are in the file.
static bool take_string_array(struct cursor * c, struct gb_gguf_value * v) {
    // The first pass adds up the sizes and allocates nothing. One block will hold all strings.
    struct cursor scan = *c;
    size_t total = 0;
    const char * bytes = NULL;
    uint64_t length = 0;
    for (uint64_t i = 0; i < v->n; i++) {
        if (!take_string(&scan, &bytes, &length, "a string of an array")) {
            return false;
        }
        total += (size_t) length + 1;
    }
    v->data = gb_malloc(total);
    v->strs = gb_calloc((size_t) v->n, sizeof(*v->strs));
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
        if (length >= total) { // another process writes to the file
            BAD(false, at, "a string of an array has changed while it was read");
        }
        total -= (size_t) length + 1;
        memcpy(to, bytes, (size_t) length);
        to[length] = '\0';
        v->strs[i] = to;
        v->lengths[i] = length;
        to += length + 1;
    }
    return true;
}

// Reads the element type and the length of an array. The number of bytes left bounds the length.
static bool take_array_head(struct cursor * c, enum gguf_type * element, uint64_t * n) {
    const size_t at = c->at;
    uint32_t type;
    if (!take(c, &type, sizeof(type), "an array's element type") || !take(c, n, sizeof(*n), "an array's length")) {
        return false;
    }
    if (type >= GGUF_TYPE_COUNT) {
        BAD(false, at, "an array has element type %u, known are 0 .. %d", type, GGUF_TYPE_COUNT - 1);
    }
    *element = (enum gguf_type) type;
    char what[64];
    snprintf(what, sizeof(what), "an array of %llu %s", (unsigned long long) *n, gguf_type_name(*element));
    const size_t least = type == GGUF_TYPE_STRING  ? sizeof(uint64_t)
                         : type == GGUF_TYPE_ARRAY ? (size_t) MIN_ARRAY_SIZE
                                                   : gb_gguf_type_size(*element);
    if (!has(c, *n, least, what)) {
        return false;
    }
    if (*n > INT_MAX) {
        BAD(false, at, "an array has a length of %llu, at most %d are possible", (unsigned long long) *n, INT_MAX);
    }
    return true;
}

// Steps over the elements of one array without nested arrays.
static bool skip_elements(struct cursor * c, enum gguf_type element, uint64_t n) {
    if (element != GGUF_TYPE_STRING) {
        return skip(c, n, gb_gguf_type_size(element), "an array");
    }
    const char * bytes;
    uint64_t length;
    for (uint64_t i = 0; i < n; i++) {
        if (!take_string(c, &bytes, &length, "a string of an array")) {
            return false;
        }
    }
    return true;
}

// Steps over n arrays without recursion. Nesting deeper than GB_GGUF_MAX_DEPTH is an error.
static bool skip_arrays(struct cursor * c, uint64_t n) {
    uint64_t to_come[GB_GGUF_MAX_DEPTH] = { n };  // arrays left at each level
    int depth = 0;
    while (depth >= 0) {
        if (to_come[depth] == 0) {
            depth--;
            continue;
        }
        to_come[depth]--;
        const size_t at = c->at;
        enum gguf_type element;
        uint64_t count;
        if (!take_array_head(c, &element, &count)) {
            return false;
        }
        if (element != GGUF_TYPE_ARRAY) {
            if (!skip_elements(c, element, count)) {
                return false;
            }
        } else if (++depth < GB_GGUF_MAX_DEPTH) {
            to_come[depth] = count;
        } else {
            BAD(false, at, "arrays are nested more than %d levels deep", GB_GGUF_MAX_DEPTH);
        }
    }
    return true;
}

bool gb_gguf_check_nested(const void * data, size_t size, uint64_t n) {
    struct cursor c = { data, size, 0 };
    if (n > INT_MAX || !skip_arrays(&c, n) || c.at != size) {
        gb_fail(GGML_STATUS_INVALID_ARGUMENT, "gguf: %zu bytes are not %llu arrays as a file holds them", size,
            (unsigned long long) n);
        return false;
    }
    return true;
}

// Checks that the bytes exist before it allocates. Bools become 0 or 1. Arrays of arrays stay
// bytes.
static bool take_array(struct cursor * c, struct gb_gguf_value * v) {
    if (!take_array_head(c, &v->arr_type, &v->n)) {
        return false;
    }
    if (v->arr_type == GGUF_TYPE_STRING) {
        return take_string_array(c, v);
    }
    struct cursor end = *c;
    if (!(v->arr_type == GGUF_TYPE_ARRAY ? skip_arrays(&end, v->n) : skip_elements(&end, v->arr_type, v->n))) {
        return false;
    }
    v->size = end.at - c->at;
    v->data = gb_malloc(v->size);
    if (v->data == NULL || !take(c, v->data, v->size, "an array")) {
        return false;
    }
    for (uint64_t i = 0; v->arr_type == GGUF_TYPE_BOOL && i < v->n; i++) {
        ((uint8_t *) v->data)[i] = ((uint8_t *) v->data)[i] != 0;
    }
    return true;
}

// Reads the type and then a value of this type. On failure the caller frees what the value owns.
static bool take_value(struct cursor * c, struct gb_gguf_value * v, const char * key) {
    const size_t at = c->at;
    uint32_t type;
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
        uint8_t byte = 0;
        const bool ok = take(c, &byte, 1, "a bool value");
        v->scalar.b = byte != 0;
        return ok;
    }
    return take(c, &v->scalar, gb_gguf_type_size(v->type), "a value");
}

// Applies the rules for a program that sets the pair, but the message names the file's offset.
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

// Reads a pair into the context. A repeated key is an error.
static bool take_kv(struct cursor * c, struct gguf_context * ctx) {
    const size_t at = c->at;
    char * key = take_name(c, "a key");
    if (key == NULL) {
        return false;
    }
    struct gb_gguf_value value = { 0 };
    bool ok = take_value(c, &value, key);
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

// Reads the sizes of the axes. More than GGML_MAX_DIMS sizes go to all_ne.
static bool take_axes(struct cursor * c, struct gb_gguf_tensor * t) {
    uint32_t n_dims;
    if (!take(c, &n_dims, sizeof(n_dims), "a tensor's number of dimensions") ||
        !has(c, n_dims, sizeof(int64_t), "a tensor's dimensions")) {
        return false;
    }
    if (n_dims > INT_MAX) {
        BAD(false, c->at, "tensor '%.200s' has %u dimensions", t->name, n_dims);
    }
    t->n_dims = (int) n_dims;
    const bool many = n_dims > GGML_MAX_DIMS;
    t->all_ne = many ? gb_calloc(n_dims, sizeof(*t->all_ne)) : NULL;
    if (many && t->all_ne == NULL) {
        return false;
    }
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        t->ne[i] = 1;
    }
    if (!take(c, many ? t->all_ne : t->ne, n_dims * sizeof(int64_t), "a tensor's dimensions")) {
        return false;
    }
    if (many) {
        memcpy(t->ne, t->all_ne, sizeof(t->ne));
    }
    return true;
}

// Reads the record after the name. size_unknown finds the size of a tensor of an unknown type
// later.
static bool take_tensor_shape(struct cursor * c, struct gb_gguf_tensor * t) {
    const size_t at = c->at;
    uint32_t type;
    if (!take_axes(c, t) || !take(c, &type, sizeof(type), "a tensor's type") ||
        !take(c, &t->offset, sizeof(t->offset), "a tensor's offset")) {
        return false;
    }
    char what[300];
    snprintf(what, sizeof(what), "gguf: at offset %zu: tensor '%.200s'", at, t->name);
    int n;
    const int64_t * ne = gb_gguf_tensor_ne(t, &n);
    int64_t count;
    const bool unknown = type <= GB_GGUF_MAX_TYPE && !gb_type_is_valid((enum ggml_type) type);
    if (!(unknown ? gb_gguf_check_shape(what, n, ne, &count) : gb_gguf_tensor_size(what, type, n, ne, &t->size))) {
        // The same message as gb_gguf_tensor_size, but as a failure of the file.
        gb_fail_quietly(GGML_STATUS_IO_ERROR, gb_last_message());
        return false;
    }
    t->type = (enum ggml_type) type;
    return true;
}

// Reads a record into the context. The alignment is known here, because pairs come before tensors.
static bool take_tensor(struct cursor * c, struct gguf_context * ctx) {
    const size_t at = c->at;
    struct gb_gguf_tensor t = { .name = take_name(c, "a tensor's name"), .at = at };
    if (t.name == NULL) {
        return false;
    }
    if (!take_tensor_shape(c, &t)) {
        gb_gguf_tensor_free(&t);
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
        gb_gguf_tensor_free(&t);
        return false;
    }
    return gb_gguf_append_tensor(ctx, &t) == GGML_STATUS_SUCCESS;
}

// True for a tensor without elements, of any type.
static bool is_empty(const struct gb_gguf_tensor * t) {
    int n;
    const int64_t * ne = gb_gguf_tensor_ne(t, &n);
    for (int i = 0; i < n; i++) {
        if (ne[i] == 0) {
            return true;
        }
    }
    return false;
}

// Sorts by offset, then by size, then by the order in the file.
static int by_offset(const void * a, const void * b) {
    const struct gb_gguf_tensor * x = *(struct gb_gguf_tensor * const *) a;
    const struct gb_gguf_tensor * y = *(struct gb_gguf_tensor * const *) b;
    if (x->offset != y->offset) {
        return x->offset < y->offset ? -1 : 1;
    }
    if (x->size != y->size) {
        return x->size < y->size ? -1 : 1;
    }
    return x->at < y->at ? -1 : x->at > y->at;
}

// Sets the size of tensors of an unknown type: each ends where the next tensor begins, or at the end of the data.
static bool size_unknown(struct gb_gguf_tensor ** order, size_t n, size_t data_size) {
    uint64_t end = data_size, begin = UINT64_MAX;  // begin of the next tensor; begin of the last one seen
    for (size_t i = n; i-- > 0;) {
        struct gb_gguf_tensor * t = order[i];
        if (begin > t->offset && begin < end) {
            end = begin;
        }
        begin = t->offset;
        if (gb_type_is_valid(t->type)) {
            continue;
        }
        if (t->offset >= end) {
            BAD(false, t->at,
                "the offset of tensor '%.200s' (of unknown type %d) is %llu, the data section has %zu bytes: "
                "the file is incomplete or damaged. Download or copy it again",
                t->name, (int) t->type, (unsigned long long) t->offset, data_size);
        }
        t->size = (size_t) (end - t->offset);
    }
    return true;
}

// The data of every tensor must be in the file. The last end is the required length of the file.
static bool check_ends(struct gb_gguf_tensor ** order, size_t n, size_t data_offset, size_t file_size) {
    const struct gb_gguf_tensor * last = NULL;
    for (size_t i = 0; i < n; i++) {
        const struct gb_gguf_tensor * t = order[i];
        if (t->offset > SIZE_MAX / 2 - data_offset) {
            BAD(false, t->at, "the offset of tensor '%.200s' is %llu: no file is as large", t->name,
                (unsigned long long) t->offset);
        }
        if (last == NULL || t->offset + t->size > last->offset + last->size) {
            last = t;
        }
    }
    if (last && data_offset + last->offset + last->size > file_size) {
        BAD(false, last->at,
            "the data of tensor '%.200s' (%zu bytes) ends behind the end of the file: the file is incomplete. "
            "It has %zu bytes and needs %llu. Download or copy it again",
            last->name, last->size, file_size, (unsigned long long) (data_offset + last->offset + last->size));
    }
    return true;
}

// Two tensors may share all of their bytes, as tied weights do. Partial overlap is an error.
static bool check_overlaps(struct gb_gguf_tensor ** order, size_t n) {
    for (size_t i = 1; i < n; i++) {
        const struct gb_gguf_tensor *a = order[i - 1], *b = order[i];
        if (b->offset < a->offset + a->size && (a->offset != b->offset || a->size != b->size)) {
            BAD(false, b->at,
                "tensor '%.200s' overlaps tensor '%.200s': their bytes in the data section are %llu .. %llu and "
                "%llu .. %llu. Tensors may share all of their bytes or none",
                b->name, a->name, (unsigned long long) b->offset, (unsigned long long) (b->offset + b->size),
                (unsigned long long) a->offset, (unsigned long long) (a->offset + a->size));
        }
    }
    return true;
}

// Checks the ranges of tensors in the order of their data, which may differ from the order of their
// records. An empty tensor has no range, so an offset beyond the end becomes 0.
static bool check_data(struct gguf_context * ctx, size_t file_size) {
    const size_t data_size = file_size > ctx->data_offset ? file_size - ctx->data_offset : 0;
    struct gb_gguf_tensor ** order = gb_calloc(ctx->tensors.n, sizeof(*order));
    size_t n = 0;
    if (order == NULL) {
        return false;
    }
    for (size_t i = 0; i < ctx->tensors.n; i++) {
        struct gb_gguf_tensor * t = &ctx->tensors.data[i];
        if (!is_empty(t)) {
            order[n++] = t;
        } else if (t->offset > data_size) {
            t->offset = 0;
        }
    }
    qsort(order, n, sizeof(*order), by_offset);
    bool ok = check_ends(order, n, ctx->data_offset, file_size) && size_unknown(order, n, data_size);
    if (ok) {
        qsort(order, n, sizeof(*order), by_offset);  // all sizes are known now
        ok = check_overlaps(order, n);
    }
    gb_free(order);
    return ok;
}

// ---------------------------------------------------------------------------------------------------------------- file

// The number of bytes at the beginning that are printable ASCII, at most 60.
static int text_length(const struct cursor * c) {
    int n = 0;
    while ((size_t) n < c->size && n < 60 && c->data[n] >= ' ' && c->data[n] <= '~') {
        n++;
    }
    return n;
}

// Reports the kind of a file that does not begin with the magic.
static bool check_magic(struct cursor * c) {
    char magic[4];
    const size_t known = GB_MIN(c->size, sizeof(magic));  // a file that ends within the magic may be truncated
    const char * foreign = gb_gguf_foreign(c->data, c->size);
    const int text = text_length(c);
    if (c->size == 0) {
        BAD(false, 0, "the magic needs 4 bytes: the file is empty. Download or copy it again");
    }
    if (memcmp(c->data, GGUF_MAGIC, known) == 0) {
        return take(c, magic, sizeof(magic), "the magic");
    }
    if (foreign) {
        BAD(false, 0, "not a GGUF file but %s", foreign);
    }
    if (text >= 8 || (size_t) text == c->size) {
        BAD(false, 0, "not a GGUF file but text, which begins '%.*s'", text, (const char *) c->data);
    }
    char hex[3 * sizeof(magic) + 1] = { 0 };
    for (size_t i = 0; i < known; i++) {
        snprintf(hex + 3 * i, 4, " %02x", c->data[i]);
    }
    BAD(false, 0, "not a GGUF file: it begins with%s", hex);
}

// Checks the magic, the version, and that a file of this size can hold the counts.
static bool take_header(struct cursor * c, struct gguf_context * ctx, uint64_t * n_tensors, uint64_t * n_kv) {
    if (!check_magic(c) || !take(c, &ctx->version, sizeof(ctx->version), "the version")) {
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
    // Both bounds are for the bytes after the cursor, which is at the first pair.
    if (!has(c, *n_tensors, MIN_TENSOR_SIZE, "the number of tensors") ||
        !has(c, *n_kv, MIN_KV_SIZE, "the number of pairs")) {
        return false;
    }
    if (*n_tensors > INT_MAX || *n_kv > INT_MAX) {
        BAD(false, 8, "the number of tensors is %llu and of pairs %llu, at most %d are possible",
            (unsigned long long) *n_tensors, (unsigned long long) *n_kv, INT_MAX);
    }
    return true;
}

// Header, pairs, tensors, then the begin of the data, which depends on the alignment in the pairs.
static bool parse(struct gguf_context * ctx, const struct gb_file_map * map) {
    struct cursor c = { map->data, map->size, 0 };
    uint64_t n_tensors, n_kv;
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
    // If no tensor has bytes, the file may end before the padding.
    if (!gb_pad_size(c.at, ctx->alignment, &ctx->data_offset)) {
        BAD(false, c.at, "the offset of the data section overflows after %zu bytes", c.at);
    }
    return check_data(ctx, map->size);
}

// ------------------------------------------------------------------------------------------------------------- tensors

// One tensor of bytes holds the whole data section. The other tensors point into it.
static struct ggml_tensor * add_blob(struct ggml_context * out, const struct gguf_context * ctx,
    const struct gb_file_map * map) {
    const size_t size = map->size > ctx->data_offset ? map->size - ctx->data_offset : 0;
    struct ggml_tensor * blob = ggml_new_tensor_1d(out, GGML_TYPE_I8, (int64_t) size);
    if (blob && size > 0) {
        memcpy(blob->data, map->data + ctx->data_offset, size);
    }
    return blob;
}

// Makes the tensors of the file in `out`. With no_alloc they have no data. The context itself
// allocates nothing for them.
static bool add_tensors(struct ggml_context * out, struct gguf_context * ctx, const struct gb_file_map * map,
    bool no_alloc) {
    struct ggml_tensor * blob = no_alloc ? NULL : add_blob(out, ctx, map);
    if (!no_alloc && blob == NULL) {
        return false;
    }
    ggml_set_no_alloc(out, true);
    for (size_t i = 0; i < ctx->tensors.n; i++) {
        const struct gb_gguf_tensor * info = &ctx->tensors.data[i];
        struct ggml_tensor * t = ggml_new_tensor(out, info->type, GB_MAX(info->n_dims, 1), info->ne);
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

// UNSUPPORTED if a tensor is opaque. A program could neither compute with it nor notice that it is
// missing.
static bool all_known(const struct gguf_context * ctx) {
    for (size_t i = 0; i < ctx->tensors.n; i++) {
        const struct gb_gguf_tensor * t = &ctx->tensors.data[i];
        GB_FAIL_IF_RETURNING(!gb_type_is_valid(t->type), false, GGML_STATUS_UNSUPPORTED,
            "gguf: at offset %zu: tensor '%.200s' is of type %d, which is not known: "
            "read without params.ctx, its bytes can only be copied",
            t->at, t->name, (int) t->type);
        GB_FAIL_IF_RETURNING(t->n_dims > GGML_MAX_DIMS, false, GGML_STATUS_UNSUPPORTED,
            "gguf: at offset %zu: tensor '%.200s' has %d axes, a ggml tensor at most %d: "
            "read without params.ctx, its bytes can only be copied",
            t->at, t->name, t->n_dims, GGML_MAX_DIMS);
    }
    return true;
}

// The ggml tensors for params.ctx, in a context that the caller will own.
static bool make_tensors(struct gguf_context * ctx, const struct gb_file_map * map, struct gguf_init_params params) {
    if (!all_known(ctx)) {
        return false;
    }
    const size_t size = (ctx->tensors.n + 1) * ggml_tensor_overhead();
    const struct ggml_init_params init = { .mem_size = size, .mem_buffer = NULL, .no_alloc = params.no_alloc };
    struct ggml_context * out = ggml_init(init);
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

// Frees the result of read_from for a file that shrank while it was read.
static void free_read(struct gguf_context * ctx, struct gguf_init_params params) {
    if (params.ctx != NULL) {
        ggml_free(*params.ctx);
        *params.ctx = NULL;
    }
    gguf_free(ctx);
}

// If the file shrinks while it is read, the values read are wrong. Closing the map reports that.
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
