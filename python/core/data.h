// data.h - reading, writing and copying tensors.
#ifndef GBPY_DATA_H
#define GBPY_DATA_H

#include "content.h"

// cdef: begin

struct gbpy_view { // the bytes of a tensor in host memory, `nbytes` as ggml_nbytes counts them
    char * data;
    size_t nbytes;
    bool host;
    bool readonly;
};

// In all of these functions `context` is the tensor's context, and the message of a failure begins with `what`.
// Describes the memory of a tensor to be read. For host memory, `pin`, an empty handle with gbpy_unpin as its
// destructor, keeps the memory from then on.
int gbpy_look(struct gbpy_handle * pin, const struct gbpy_handle * context, struct ggml_tensor * t,
    struct gbpy_view * view, const char * what);
void gbpy_unpin(struct gbpy_handle * pin);
bool gbpy_is_pinned(const struct gbpy_handle * owner); // arrays view its memory

// INVALID_STATE: the tensor has no memory of its own.
int gbpy_find_place(const struct gbpy_handle * context, struct ggml_tensor * t);
int gbpy_is_on_host(const struct gbpy_handle * context, const struct ggml_tensor * t, bool * host);
// Fills an empty handle with the owner of the memory.
int gbpy_find_owner(const struct gbpy_handle * context, const struct ggml_tensor * t, struct gbpy_handle * owner);
// The name of its buffer; "": it has none.
int gbpy_location(const struct gbpy_handle * context, const struct ggml_tensor * t, char * name, size_t size);

// Reads all bytes of the tensor, gaps included.
int gbpy_read(const struct gbpy_handle * context, const struct ggml_tensor * t, void * data, size_t size,
    const char * what);
// ggml_backend_tensor_get_top
int gbpy_read_top(const struct gbpy_handle * context, struct ggml_tensor * t, int k, int32_t * ids, float * values,
    const char * what);
// Writes bytes at an offset of a contiguous tensor. All other bytes keep their content.
int gbpy_write(const struct gbpy_handle * context, struct ggml_tensor * t, const void * data, size_t offset,
    size_t size, const char * what);
// Writes all elements to a tensor of any strides. In `data` they lie one after the other.
int gbpy_write_all(const struct gbpy_handle * context, struct ggml_tensor * t, const void * data, size_t size,
    const char * what);
int gbpy_copy(const struct gbpy_handle * to_context, struct ggml_tensor * to, const struct gbpy_handle * from_context,
    struct ggml_tensor * from, const char * what);

// Lets devices read parts of files into tensors of the context (ggml_backend_fill_from_files).
int gbpy_fill_from_files(const struct gbpy_handle * context, struct ggml_backend_file_fill * fills, size_t n,
    const char * what);
// Call it after the bytes of one part were written (ggml_backend_keep_file).
int gbpy_keep_file(const struct gbpy_handle * context, const struct ggml_backend_file_fill * fill, const char * what);

// For callbacks, while the computation runs: keeps the memory of `t` for an array, or that of `otherwise` if `t` has
// no buffer.
void gbpy_pin(struct gbpy_handle * pin, const struct ggml_tensor * t, const struct gbpy_handle * otherwise);

// cdef: end

#endif // GBPY_DATA_H
