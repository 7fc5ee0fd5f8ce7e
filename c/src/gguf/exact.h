// exact.h - model files without the limits of gguf.h: strings that contain NUL, arrays of arrays,
// names longer than those of ggml tensors, unknown types of tensors. The Python extension needs
// this.
//
// The functions trust their indices, because the caller has checked them.
#ifndef GB_GGUF_EXACT_H
#define GB_GGUF_EXACT_H

#include "gguf.h"

// gb_gguf_str returns the bytes of a string. gb_gguf_strs returns those of all strings of an array,
// one after another, each followed by a NUL. The caller has checked the type of the value. Bytes
// and lengths belong to the context until the key is set again.
const char * gb_gguf_str(const struct gguf_context * ctx, int key_id, uint64_t * length);
const char * gb_gguf_strs(const struct gguf_context * ctx, int key_id, const uint64_t ** lengths);

// Sets such values from bytes of the same layout, and copies them. Offsets of tensors do not move.
enum ggml_status gb_gguf_set_str(struct gguf_context * ctx, const char * key, const char * bytes, uint64_t length);
enum ggml_status gb_gguf_set_strs(struct gguf_context * ctx, const char * key, const char * bytes,
    const uint64_t * lengths, uint64_t n);

// Gets and sets the elements of an array of arrays, in the layout of a file. Fails if the bytes are
// not exactly n arrays.
const char * gb_gguf_nested(const struct gguf_context * ctx, int key_id, uint64_t * size);
enum ggml_status gb_gguf_set_nested(struct gguf_context * ctx, const char * key, const char * bytes, uint64_t size,
    uint64_t n);

// Copies pair i of src, with its exact type and bytes. An existing key gets the new value.
enum ggml_status gb_gguf_copy_pair(struct gguf_context * ctx, const struct gguf_context * src, size_t i);

// Adds a tensor's description: of this type and shape, or like tensor i of src, opaque or not.
// gb_gguf_layout sets its offset.
enum ggml_status gb_gguf_add_named(struct gguf_context * ctx, const char * name, enum ggml_type type, int n_dims,
    const int64_t * ne);
enum ggml_status gb_gguf_copy_named(struct gguf_context * ctx, const struct gguf_context * src, size_t i,
    const char * name);

// Sets the offsets of the tensors in order: the running sum of sizes, each padded to the alignment.
void gb_gguf_layout(struct gguf_context * ctx);

#endif // GB_GGUF_EXACT_H
