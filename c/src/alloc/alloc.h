// alloc.h - declarations that tallocr.c, gallocr.c and allocr.c share. The files of this folder:
//
//   offset_pool.c    free list of offsets
//   tallocr.c        tensor allocator: places tensors one by one in one buffer
//   gallocr.c        graph allocator: places the tensors of a graph
//   allocr.c         the older interface: one of each; today.c: that of ggml-today.h
//   liveness.c       lifetimes of the tensors of a node list
//   inplace.c        operators that may overwrite a source
//   reorder.c        finds an order of nodes that needs less memory; graph_reorder.c makes it public
//   recompute.c      finds results to compute again; graph_recompute.c makes the graph
//
// A tensor is placed if it has data. There is one exception. After a reset of its allocator the
// tensor still has its old data, but counts as unplaced for that allocator, so that a graph can be
// allocated again. Reset cannot clear the tensors, because their context may be freed. So each
// placement stamps the tensor with the allocator's number and generation (tensor/marks.h). A tensor
// is stale if it is in the allocator's buffer and has its number but another generation. Measure
// allocators never touch tensors. Their placements are in a table, which reset empties.
#ifndef GB_ALLOC_ALLOC_H
#define GB_ALLOC_ALLOC_H

#include "alloc/offset_pool.h"
#include "backend/backend.h"
#include "base/hash.h"
#include "ggml-alloc.h"

struct ggml_tallocr {
    ggml_backend_buffer_type_t buft; // of the buffer, or the type to measure for; NULL: measures for plain host memory
    ggml_backend_buffer_t buffer; // NULL: measuring
    bool owns_buffer;
    char * base; // of the buffer; NULL: measuring
    size_t size; // of the buffer; measuring: half the address space
    size_t alignment; // power of two
    struct gb_offset_pool pool; // offsets from base
    struct gb_ptrmap measured; // measuring: the tensors placed since the last reset
    uint32_t id; // stamp
    uint32_t generation;
};

struct gb_tallocr_size {
    size_t bytes; // bytes that the buffer type needs for the tensor
    size_t padded; // rounded up to the alignment; taken from the pool
};

// The size of a tensor in the buffer type. False and reported: the size overflows.
bool gb_tallocr_size_of(struct ggml_tallocr * talloc, struct ggml_tensor * tensor, struct gb_tallocr_size * size);

// Takes bytes from the pool. Failures are reported, with the name of the tensor.
enum ggml_status gb_tallocr_take(struct ggml_tallocr * talloc, const struct ggml_tensor * tensor,
    const struct gb_tallocr_size * size, const char * func, size_t * offset);

// True if the tensor is placed for this allocator. talloc may be NULL.
bool gb_tallocr_is_placed(const struct ggml_tallocr * talloc, const struct ggml_tensor * tensor);

// Binds the tensor to bytes taken before, initializes it in the buffer and stamps it. A measure
// allocator records it. A failure changes nothing.
enum ggml_status gb_tallocr_bind(struct ggml_tallocr * talloc, struct ggml_tensor * tensor, size_t offset);

// Undoes a successful bind.
void gb_tallocr_unbind(struct ggml_tallocr * talloc, struct ggml_tensor * tensor);

// Calls the buffer's free_tensor hook before the bytes are used again. Does not undo the bind.
enum ggml_status gb_tallocr_release(struct ggml_tallocr * talloc, struct ggml_tensor * tensor);

#endif // GB_ALLOC_ALLOC_H
