// ggml-alloc.h - allocators for tensors.
//
//   tallocr  tensor allocator: places tensors one by one in one buffer (best fit)
//   gallocr  graph allocator: places the tensors of a graph and reuses the memory of dead ones
//   allocr   the older interface: one of each
//
// A measure allocator has no memory. It computes the needed size and does not change tensors.
#ifndef GGML_ALLOC_H
#define GGML_ALLOC_H

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// cdef: begin

struct ggml_backend;
struct ggml_backend_buffer;
struct ggml_backend_buffer_type;

typedef struct ggml_tallocr * ggml_tallocr_t;
typedef struct ggml_gallocr * ggml_gallocr_t;
typedef struct ggml_allocr * ggml_allocr_t;

// Legacy interface.
GGML_API ggml_allocr_t ggml_allocr_new(void * data, size_t size, size_t alignment); // the caller owns the memory
GGML_API ggml_allocr_t ggml_allocr_new_measure(size_t alignment);
// the caller owns the buffer
GGML_API ggml_allocr_t ggml_allocr_new_from_buffer(struct ggml_backend_buffer * buffer);
GGML_API ggml_allocr_t ggml_allocr_new_from_backend(struct ggml_backend * backend, size_t size); // owns its buffer
GGML_API ggml_allocr_t ggml_allocr_new_measure_from_backend(struct ggml_backend * backend);
GGML_API struct ggml_backend_buffer * ggml_allocr_get_buffer(ggml_allocr_t alloc);
// list: node indices in execution order. -1 is a barrier. Memory is freed only at barriers. The list is copied.
GGML_API enum ggml_status ggml_allocr_set_parse_seq(ggml_allocr_t alloc, const int * list, int n);
GGML_API void ggml_allocr_free(ggml_allocr_t alloc);
GGML_API bool ggml_allocr_is_measure(ggml_allocr_t alloc);
GGML_API enum ggml_status ggml_allocr_reset(ggml_allocr_t alloc);
GGML_API enum ggml_status ggml_allocr_alloc(ggml_allocr_t alloc, struct ggml_tensor * tensor);
GGML_API size_t ggml_allocr_max_size(ggml_allocr_t alloc);
// Returns max_size, or 0 on failure.
GGML_API size_t ggml_allocr_alloc_graph(ggml_allocr_t alloc, struct ggml_cgraph * graph);

// Tensor allocator.
GGML_API ggml_tallocr_t ggml_tallocr_new(void * data, size_t size, size_t alignment);
GGML_API ggml_tallocr_t ggml_tallocr_new_measure(size_t alignment);
// owns its buffer
GGML_API ggml_tallocr_t ggml_tallocr_new_from_buft(struct ggml_backend_buffer_type * buft, size_t size);
// owns its buffer
GGML_API ggml_tallocr_t ggml_tallocr_new_from_backend(struct ggml_backend * backend, size_t size);
GGML_API ggml_tallocr_t ggml_tallocr_new_from_buffer(struct ggml_backend_buffer * buffer);
GGML_API ggml_tallocr_t ggml_tallocr_new_measure_from_buft(struct ggml_backend_buffer_type * buft);
GGML_API ggml_tallocr_t ggml_tallocr_new_measure_from_backend(struct ggml_backend * backend);
GGML_API struct ggml_backend_buffer * ggml_tallocr_get_buffer(ggml_tallocr_t talloc);
GGML_API void ggml_tallocr_free(ggml_tallocr_t talloc);
GGML_API bool ggml_tallocr_is_measure(ggml_tallocr_t talloc);
GGML_API enum ggml_status ggml_tallocr_reset(ggml_tallocr_t talloc); // forgets all placements; max_size stays
GGML_API enum ggml_status ggml_tallocr_alloc(ggml_tallocr_t talloc, struct ggml_tensor * tensor);
GGML_API size_t ggml_tallocr_max_size(ggml_tallocr_t talloc); // high-water mark plus a tenth

// Graph allocator.
GGML_API ggml_gallocr_t ggml_gallocr_new(void);
GGML_API void ggml_gallocr_free(ggml_gallocr_t galloc);
GGML_API enum ggml_status ggml_gallocr_set_parse_seq(ggml_gallocr_t galloc, const int * list, int n);
GGML_API size_t ggml_gallocr_alloc_graph(ggml_gallocr_t galloc, ggml_tallocr_t talloc, struct ggml_cgraph * graph);
// Uses several allocators in one pass. The allocator of a tensor is hash_node_talloc[slot of the tensor in hash_set].
GGML_API enum ggml_status ggml_gallocr_alloc_graph_n(ggml_gallocr_t galloc, struct ggml_cgraph * graph,
    struct ggml_hash_set hash_set, ggml_tallocr_t * hash_node_talloc);

// Places every unplaced tensor of a no_alloc context in one buffer. If the type's maximum size
// requires it, there are several buffers behind one handle. Returns NULL if there is nothing to
// place (ggml_last_status() is unchanged), or on an error, which changes no tensor. The caller frees
// the buffer with ggml_backend_buffer_free, which also frees all buffers behind the handle.
GGML_API struct ggml_backend_buffer * ggml_backend_alloc_ctx_tensors_from_buft(struct ggml_context * ctx,
    struct ggml_backend_buffer_type * buft);
GGML_API struct ggml_backend_buffer * ggml_backend_alloc_ctx_tensors(struct ggml_context * ctx,
    struct ggml_backend * backend);

// cdef: end

#ifdef __cplusplus
}
#endif

#include "ggml-hash-set.h"
#include "ggml-plan.h"

#endif // GGML_ALLOC_H
