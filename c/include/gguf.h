// gguf.h - GGUF model files: metadata key-value pairs and named tensors.
//
// A gguf_context holds everything of a file except its tensor data, which you get only on request.
// The reader trusts nothing in the file: it checks every count, length, offset and type. A bad
// value is an error (NULL) whose message names the field and its offset. If a file ends early, the
// message says how many bytes it needs.
//
// Tensors may have no axes (one element, n_dims 0), an axis of 0 (no bytes), and data in any order.
// Two tensors may share all of their bytes, as tied weights do. Partial overlap is an error.
//
// Some values are opaque: arrays of arrays, tensors of unknown types (ids up to 1023), and tensors
// of more than GGML_MAX_DIMS axes. You can read their descriptions and write their bytes again. A
// tensor of an unknown type ends where the next one begins. A file with opaque tensors is an error
// only if you ask for ggml tensors with params.ctx: GGML_STATUS_UNSUPPORTED.
//
// The reader reads one file. If the file is a part of a split model (keys split.no, split.count and
// split.tensors.count), the program must read the other parts. (gguf.open of the Python package
// does.)
//
// A getter with an index or a type that does not match returns 0, NULL or the _COUNT value and sets
// the error.
#ifndef GGUF_H
#define GGUF_H

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// cdef: begin

enum gguf_type {
    GGUF_TYPE_UINT8 = 0,
    GGUF_TYPE_INT8 = 1,
    GGUF_TYPE_UINT16 = 2,
    GGUF_TYPE_INT16 = 3,
    GGUF_TYPE_UINT32 = 4,
    GGUF_TYPE_INT32 = 5,
    GGUF_TYPE_FLOAT32 = 6,
    GGUF_TYPE_BOOL = 7,
    GGUF_TYPE_STRING = 8,
    GGUF_TYPE_ARRAY = 9,
    GGUF_TYPE_UINT64 = 10,
    GGUF_TYPE_INT64 = 11,
    GGUF_TYPE_FLOAT64 = 12,
    GGUF_TYPE_COUNT = 13,
};

struct gguf_init_params {
    bool no_alloc; // with ctx: tensors get no data
    // NULL: metadata only; else receives a context with all tensors, owned by the caller (an error if one is opaque)
    struct ggml_context ** ctx;
};

GGML_API struct gguf_context * gguf_init_empty(void);
GGML_API struct gguf_context * gguf_init_from_file(const char * fname, struct gguf_init_params params);
GGML_API void gguf_free(struct gguf_context * ctx); // NULL is allowed; does not free *params.ctx

GGML_API const char * gguf_type_name(enum gguf_type type); // NULL for an invalid type
GGML_API int gguf_get_version(const struct gguf_context * ctx);
GGML_API size_t gguf_get_alignment(const struct gguf_context * ctx);
GGML_API size_t gguf_get_data_offset(const struct gguf_context * ctx); // in the file
GGML_API void * gguf_get_data(const struct gguf_context * ctx);

GGML_API int gguf_get_n_kv(const struct gguf_context * ctx);
GGML_API int gguf_find_key(const struct gguf_context * ctx, const char * key); // -1 if absent
GGML_API const char * gguf_get_key(const struct gguf_context * ctx, int key_id);
GGML_API enum gguf_type gguf_get_kv_type(const struct gguf_context * ctx, int key_id);
GGML_API enum gguf_type gguf_get_arr_type(const struct gguf_context * ctx, int key_id);

GGML_API uint8_t gguf_get_val_u8(const struct gguf_context * ctx, int key_id);
GGML_API int8_t gguf_get_val_i8(const struct gguf_context * ctx, int key_id);
GGML_API uint16_t gguf_get_val_u16(const struct gguf_context * ctx, int key_id);
GGML_API int16_t gguf_get_val_i16(const struct gguf_context * ctx, int key_id);
GGML_API uint32_t gguf_get_val_u32(const struct gguf_context * ctx, int key_id);
GGML_API int32_t gguf_get_val_i32(const struct gguf_context * ctx, int key_id);
GGML_API float gguf_get_val_f32(const struct gguf_context * ctx, int key_id);
GGML_API uint64_t gguf_get_val_u64(const struct gguf_context * ctx, int key_id);
GGML_API int64_t gguf_get_val_i64(const struct gguf_context * ctx, int key_id);
GGML_API double gguf_get_val_f64(const struct gguf_context * ctx, int key_id);
GGML_API bool gguf_get_val_bool(const struct gguf_context * ctx, int key_id);
GGML_API const char * gguf_get_val_str(const struct gguf_context * ctx, int key_id);
GGML_API const void * gguf_get_val_data(const struct gguf_context * ctx, int key_id);
GGML_API int gguf_get_arr_n(const struct gguf_context * ctx, int key_id);
GGML_API const void * gguf_get_arr_data(const struct gguf_context * ctx, int key_id); // of numbers only
GGML_API const char * gguf_get_arr_str(const struct gguf_context * ctx, int key_id, int i);

GGML_API int gguf_get_n_tensors(const struct gguf_context * ctx);
GGML_API int gguf_find_tensor(const struct gguf_context * ctx, const char * name); // -1 if absent
GGML_API size_t gguf_get_tensor_offset(const struct gguf_context * ctx, int i); // in the data section
GGML_API char * gguf_get_tensor_name(const struct gguf_context * ctx, int i);
GGML_API enum ggml_type gguf_get_tensor_type(const struct gguf_context * ctx, int i);

// Setters replace or append, and copy their arguments.
GGML_API enum ggml_status gguf_set_val_u8(struct gguf_context * ctx, const char * key, uint8_t val);
GGML_API enum ggml_status gguf_set_val_i8(struct gguf_context * ctx, const char * key, int8_t val);
GGML_API enum ggml_status gguf_set_val_u16(struct gguf_context * ctx, const char * key, uint16_t val);
GGML_API enum ggml_status gguf_set_val_i16(struct gguf_context * ctx, const char * key, int16_t val);
GGML_API enum ggml_status gguf_set_val_u32(struct gguf_context * ctx, const char * key, uint32_t val);
GGML_API enum ggml_status gguf_set_val_i32(struct gguf_context * ctx, const char * key, int32_t val);
GGML_API enum ggml_status gguf_set_val_f32(struct gguf_context * ctx, const char * key, float val);
GGML_API enum ggml_status gguf_set_val_u64(struct gguf_context * ctx, const char * key, uint64_t val);
GGML_API enum ggml_status gguf_set_val_i64(struct gguf_context * ctx, const char * key, int64_t val);
GGML_API enum ggml_status gguf_set_val_f64(struct gguf_context * ctx, const char * key, double val);
GGML_API enum ggml_status gguf_set_val_bool(struct gguf_context * ctx, const char * key, bool val);
GGML_API enum ggml_status gguf_set_val_str(struct gguf_context * ctx, const char * key, const char * val);
GGML_API enum ggml_status gguf_set_arr_data(struct gguf_context * ctx, const char * key, enum gguf_type type,
    const void * data, int n);
GGML_API enum ggml_status gguf_set_arr_str(struct gguf_context * ctx, const char * key, const char ** data, int n);
GGML_API enum ggml_status gguf_set_kv(struct gguf_context * ctx, struct gguf_context * src); // copies all pairs of src

// Stores the address of the tensor's data, which are read when the file is written.
GGML_API enum ggml_status gguf_add_tensor(struct gguf_context * ctx, const struct ggml_tensor * tensor);
GGML_API enum ggml_status gguf_set_tensor_type(struct gguf_context * ctx, const char * name, enum ggml_type type);
GGML_API enum ggml_status gguf_set_tensor_data(struct gguf_context * ctx, const char * name, const void * data,
    size_t size);

GGML_API enum ggml_status gguf_write_to_file(const struct gguf_context * ctx, const char * fname, bool only_meta);
GGML_API size_t gguf_get_meta_size(const struct gguf_context * ctx); // with its padding
GGML_API enum ggml_status gguf_get_meta_data(const struct gguf_context * ctx, void * data);

// cdef: end

#ifdef __cplusplus
}
#endif

#include "gguf-ext.h"

#endif // GGUF_H
