// gguf_impl.h - what a gguf_context holds: all of a file but its tensor data.
//
// context.c makes, frees and queries it, edit.c changes it, reader.c fills it from a file, writer.c turns it into
// bytes. Invariants: keys and tensor names are unique and without embedded NUL; `alignment` is a power of two and
// agrees with the pair general.alignment if there is one; tensor offsets are the running sum of padded sizes, unless
// read from a file.
#ifndef GB_GGUF_GGUF_IMPL_H
#define GB_GGUF_GGUF_IMPL_H

#include "base/mem.h"
#include "base/status.h"
#include "base/strmap.h"
#include "base/vec.h"
#include "gguf.h"
#include "gguf/exact.h"

#define GB_GGUF_ALIGNMENT_KEY "general.alignment"
#define GB_GGUF_MAX_ALIGNMENT ((uint64_t) 1 << 20)
#define GB_GGUF_MAX_KEY       65535 // bytes
#define GB_GGUF_MAX_TYPE      1023  // ids of tensor types above are errors, no types of the future

struct gb_gguf_value {
    enum gguf_type type;
    enum gguf_type arr_type; // of an array's elements
    uint64_t       n;        // elements of an array; bytes of a string
    union {
        uint8_t  u8;
        int8_t   i8;
        uint16_t u16;
        int16_t  i16;
        uint32_t u32;
        int32_t  i32;
        float    f32;
        uint64_t u64;
        int64_t  i64;
        double   f64;
        bool     b;
    } scalar;
    char *     str;     // owned: a string, NUL-terminated
    void *     data;    // owned: array elements; or, for strings, all of them one after another, each NUL-terminated
    char **    strs;    // owned: addresses in data
    uint64_t * lengths; // owned: bytes of each string (they may contain NUL)
};

struct gb_gguf_kv {
    char *               key; // owned
    struct gb_gguf_value value;
};

struct gb_gguf_tensor {
    char *         name; // owned
    enum ggml_type type;
    int            n_dims;
    int64_t        ne[GGML_MAX_DIMS];
    uint64_t       offset; // in the data section
    size_t         size;   // bytes, without padding
    const void *   data;   // borrowed, NULL if unknown: what a writer writes
    size_t         at;     // of its record in the file it was read from
    bool           opaque; // of a type that is not known here: bytes up to the next tensor, passed on as they are
};

struct gguf_context {
    uint32_t version;
    size_t   alignment;
    size_t   data_offset; // in the file, 0 for a context that was not read
    void *   data;        // borrowed from *params.ctx: the data section

    GB_VEC(struct gb_gguf_kv) kv;
    GB_VEC(struct gb_gguf_tensor) tensors;
    struct gb_strmap key_index;
    struct gb_strmap tensor_index;
};

size_t gb_gguf_type_size(enum gguf_type type); // of a scalar; 0 for strings, arrays and invalid types
void   gb_gguf_value_free(struct gb_gguf_value * value);

// Takes over the value (freed on failure too). Replaces an existing key at its place. Checks and follows
// general.alignment.
enum ggml_status gb_gguf_put(struct gguf_context * ctx, const char * key, struct gb_gguf_value * value);

// Says that there is a tensor like number i of src, opaque or not.
enum ggml_status gb_gguf_copy_tensor(struct gguf_context * ctx, const struct gguf_context * src, size_t i,
    const char * name);

// Takes over t->name (freed on failure too).
enum ggml_status gb_gguf_append_tensor(struct gguf_context * ctx, struct gb_gguf_tensor * t);

// False and reported (with `what` in front) unless all sizes are at least 1 and their product fits.
bool gb_gguf_check_shape(const char * what, int n_dims, const int64_t * ne, int64_t * count);

// Bytes of a tensor of this type and shape; false and reported (with `what` in front) when the type or shape is not
// valid.
bool gb_gguf_tensor_size(const char * what, uint32_t type, int n_dims, const int64_t * ne, size_t * size);

bool gb_gguf_alignment_is_valid(uint64_t alignment);

#endif // GB_GGUF_GGUF_IMPL_H
