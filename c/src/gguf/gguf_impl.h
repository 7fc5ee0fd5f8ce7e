// gguf_impl.h - the content of a gguf_context: a whole file except its tensor data.
//
// context.c makes, frees and queries it. edit.c changes it, exact.c beyond the limits of gguf.h.
// reader.c fills it from a file. writer.c writes it as bytes. foreign.c recognizes other files.
//
// Invariants: keys and tensor names are unique and hold no NUL. `alignment` is a power of two and agrees with the pair
// general.alignment if there is one. Tensor offsets are the running sum of padded sizes, unless they were read from a
// file: then tensors may lie in any order, and two tensors share all of their bytes or none.
//
// Arrays of arrays are opaque. So are tensors that no ggml tensor can describe: those of an unknown
// type, or of more than GGML_MAX_DIMS axes. Their bytes are kept and written unchanged.
#ifndef GB_GGUF_GGUF_IMPL_H
#define GB_GGUF_GGUF_IMPL_H

#include "base/status.h"
#include "base/strmap.h"
#include "base/vec.h"
#include "gguf.h"
#include "gguf/exact.h"

#define GB_GGUF_ALIGNMENT_KEY "general.alignment"
#define GB_GGUF_MAX_ALIGNMENT ((uint64_t) 1 << 20)
#define GB_GGUF_MAX_KEY 65535 // bytes
// Larger ids of tensor types are errors. Ids up to this value may be types of the future.
#define GB_GGUF_MAX_TYPE 1023
// Arrays may be nested up to this many levels.
#define GB_GGUF_MAX_DEPTH 64

// The value of a pair. `type` decides which members are valid. The others are 0.
struct gb_gguf_value {
    enum gguf_type type;
    enum gguf_type arr_type; // of an array's elements
    uint64_t n; // elements of an array; bytes of a string
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        float f32;
        uint64_t u64;
        int64_t i64;
        double f64;
        bool b;
    } scalar;
    char * str; // owned: a string, NUL-terminated
    void * data;  // owned: array elements, or all strings one after another, each NUL-terminated
    size_t size;  // bytes of data, for arrays of numbers and of arrays (as in the file)
    char ** strs; // owned: addresses in data
    uint64_t * lengths; // owned: bytes of each string (they may contain NUL)
};

// A pair of the metadata.
struct gb_gguf_kv {
    char * key; // owned
    struct gb_gguf_value value;
};

// The description of a tensor, without its bytes.
struct gb_gguf_tensor {
    char * name; // owned
    enum ggml_type type;
    int n_dims; // 0: one element
    int64_t ne[GGML_MAX_DIMS]; // 1 beyond n_dims
    int64_t * all_ne; // owned; n_dims sizes if there are more than GGML_MAX_DIMS, else NULL
    uint64_t offset; // from the start of the data section
    size_t size; // bytes, without padding
    const void * data; // borrowed; written to the file; NULL if unknown
    size_t at; // offset of its record in the file that it was read from, for messages
};

// The indices map keys and names to positions in the two vectors, and borrow their texts.
struct gguf_context {
    uint32_t version;
    size_t alignment;
    size_t data_offset; // in the file, 0 for a context that was not read
    void * data; // borrowed from *params.ctx: the data section

    GB_VEC(struct gb_gguf_kv) kv;
    GB_VEC(struct gb_gguf_tensor) tensors;
    struct gb_strmap key_index;
    struct gb_strmap tensor_index;
};

// Bytes of a scalar of this type; 0 for strings, arrays and invalid types.
size_t gb_gguf_type_size(enum gguf_type type);
// Frees the memory that the value owns, and zeroes it.
void gb_gguf_value_free(struct gb_gguf_value * value);

// Sets a pair. An existing key keeps its place. Takes ownership of the value, on failure too, and
// zeroes *value. Checks general.alignment and applies it.
enum ggml_status gb_gguf_put(struct gguf_context * ctx, const char * key, struct gb_gguf_value * value);

// Adds a tensor like number i of src, opaque or not, without its data.
enum ggml_status gb_gguf_copy_tensor(struct gguf_context * ctx, const struct gguf_context * src, size_t i,
    const char * name);

// Appends a tensor's description. Takes ownership of the memory of t. A failure frees it.
enum ggml_status gb_gguf_append_tensor(struct gguf_context * ctx, struct gb_gguf_tensor * t);

// Frees what the description owns.
void gb_gguf_tensor_free(struct gb_gguf_tensor * t);

// The sizes of all axes, at least GGML_MAX_DIMS. Sizes beyond n_dims are 1. *n is their number.
const int64_t * gb_gguf_tensor_ne(const struct gb_gguf_tensor * t, int * n);

// True if no ggml tensor can describe it.
bool gb_gguf_tensor_is_opaque(const struct gb_gguf_tensor * t);

// True if no size is negative and the product of the sizes, *count, fits. Reports a failure with a
// message that begins with `what`.
bool gb_gguf_check_shape(const char * what, int n_dims, const int64_t * ne, int64_t * count);

// Computes the bytes of a tensor. False if the type or the shape is not valid, reported with a
// message that begins with `what`.
bool gb_gguf_tensor_size(const char * what, uint32_t type, int n_dims, const int64_t * ne, size_t * size);

// True if the bytes are exactly n arrays in the layout of a file. Otherwise false and reported.
bool gb_gguf_check_nested(const void * data, size_t size, uint64_t n);

// For a file that does not begin with the magic: the kind of the file and what to do, as the end of
// the message "not a GGUF file but ...". NULL: unknown.
const char * gb_gguf_foreign(const uint8_t * data, size_t size);

// A power of two up to GB_GGUF_MAX_ALIGNMENT.
bool gb_gguf_alignment_is_valid(uint64_t alignment);

#endif // GB_GGUF_GGUF_IMPL_H
