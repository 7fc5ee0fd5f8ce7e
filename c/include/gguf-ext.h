// gguf-ext.h - additions to the GGUF functions of February 2024. gguf.h includes this header.
#ifndef GGUF_EXT_H
#define GGUF_EXT_H

#include "gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

// cdef: begin

// does not keep a reference to data
GGML_API struct gguf_context * gguf_init_from_buffer(const void * data, size_t size, struct gguf_init_params params);

// bytes, without padding (for unknown types with padding)
GGML_API size_t gguf_get_tensor_size(const struct gguf_context * ctx, int i);
GGML_API int gguf_get_tensor_n_dims(const struct gguf_context * ctx, int i); // as in the file: 0, 1, ...
// at least GGML_MAX_DIMS sizes, 1 beyond n_dims
GGML_API const int64_t * gguf_get_tensor_ne(const struct gguf_context * ctx, int i);

// cdef: end

#ifdef __cplusplus
}
#endif

#endif // GGUF_EXT_H
