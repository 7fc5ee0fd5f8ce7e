// placement.h - giving tensors memory: in buffers, in one buffer for all tensors of a context, by allocators.
// Constants are written whenever they get memory. For schedulers see scheds.h.
#ifndef GBPY_PLACEMENT_H
#define GBPY_PLACEMENT_H

#include "content.h"

// cdef: begin

int gbpy_open_buffer(struct gbpy_handle * handle, struct ggml_backend_buffer_type * buft, size_t size, int usage,
    const struct gbpy_handle * parent);
// Makes a buffer over memory of `object` (its id), and keeps the object.
int gbpy_open_host_buffer(struct gbpy_handle * handle, void * data, size_t size, int usage, bool readonly,
    uintptr_t object);
// Makes a buffer for all tensors of the context without memory. INVALID_STATE without a message: there are none.
int gbpy_open_context_buffer(struct gbpy_handle * handle, struct gbpy_handle * context,
    struct ggml_backend_buffer_type * buft, int usage, const struct gbpy_handle * parent);
int gbpy_place(struct gbpy_handle * buffer, struct gbpy_handle * context, struct ggml_tensor * t, size_t offset);
int gbpy_clear(struct gbpy_handle * buffer, uint8_t value);
// Copies the value. `source`: where the value came from; if that is a mapped file, devices may read it themselves.
// May be NULL.
int gbpy_set_constant(struct gbpy_handle * context, struct ggml_tensor * t, const void * value, size_t size,
    const void * source);

int gbpy_tallocr_alloc(struct gbpy_handle * allocator, struct gbpy_handle * buffer, struct gbpy_handle * context,
    struct ggml_tensor * t);
int gbpy_gallocr_alloc(struct gbpy_handle * allocator, struct gbpy_handle * buffer, struct gbpy_handle * graph);
int gbpy_unplace_graph(struct gbpy_handle * buffer); // takes the memory of the graph that an allocator placed there
int gbpy_gallocr_measure(struct gbpy_handle * allocator, struct ggml_backend_buffer_type * buft,
    struct gbpy_handle * graph, size_t * size);

bool gbpy_buffer_is_readonly(const struct gbpy_handle * buffer);

// cdef: end

// Writes the constants of the context that lie in memory of the owner, or `only` that one (NULL: all). Call it with
// locks on both, after the tensors were placed or the memory was overwritten.
int gbpy_upload_constants(struct gbpy_context * context, const struct gbpy_memory * owner,
    const struct ggml_tensor * only);

#endif // GBPY_PLACEMENT_H
