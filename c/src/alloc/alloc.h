// alloc.h - the inside of the allocators, shared by tallocr.c, gallocr.c and allocr.c; and what else is in this folder.
//
//   offset_pool.c   free list of offsets       tallocr.c        tensors, one by one, into one buffer
//   liveness.c      lifetimes of a node list   gallocr.c        the tensors of a graph
//   inplace.c       ops that write over        allocr.c         one of each, the older interface
//                   sources                    reorder.c        an order that needs less (reorder.h);
//   plan*.c         offsets for known          graph_reorder.c  it as a public function
//                   lifetimes (plan.h)
//
// What is placed where. A tensor is placed when it has data. The one exception: a tensor placed by a tensor allocator
// that was reset since then has old data, and counts as unplaced for that allocator, so that one graph can be allocated
// again. Reset cannot clear such tensors itself (their context may be gone), so each placement stamps the tensor with
// the allocator's number and generation (tensor/marks.h); a tensor is stale when it lies in the allocator's buffer,
// bears its number, and another generation. A fresh tensor has no stamp. Measure allocators never touch tensors: what
// they placed is in their own table, which reset empties.
#ifndef GB_ALLOC_ALLOC_H
#define GB_ALLOC_ALLOC_H

#include "alloc/offset_pool.h"
#include "backend/backend.h"
#include "base/hash.h"
#include "ggml-alloc.h"

struct ggml_tallocr {
    ggml_backend_buffer_type_t buft; // of the buffer, or of the one measured for; NULL: measuring for plain memory
    ggml_backend_buffer_t buffer; // NULL: measuring
    bool owns_buffer;
    char * base; // of the buffer; NULL: measuring
    size_t size; // of the buffer; measuring: as good as without limit
    size_t alignment; // power of two
    struct gb_offset_pool pool; // offsets from base
    struct gb_ptrmap measured; // measuring: tensor -> 1 if placed since the last reset
    uint32_t id; // stamp
    uint32_t generation;
};

struct gb_tallocr_size {
    size_t bytes; // what the buffer type wants for the tensor
    size_t padded; // rounded up to the alignment: what is taken from the pool
};

// The size of a tensor, for which the buffer type is asked; false and reported on overflow.
bool gb_tallocr_size_of(struct ggml_tallocr * talloc, struct ggml_tensor * tensor, struct gb_tallocr_size * size);

// Takes the bytes from the pool; the tensor is only named, when that fails, which is reported.
enum ggml_status gb_tallocr_take(struct ggml_tallocr * talloc, const struct ggml_tensor * tensor,
    const struct gb_tallocr_size * size, const char * func, size_t * offset);

// Placed as far as this allocator can tell (it may be NULL: no allocator was given for the tensor).
bool gb_tallocr_is_placed(const struct ggml_tallocr * talloc, const struct ggml_tensor * tensor);

// Binds the tensor to bytes taken before, sets it up in the buffer and stamps it; measuring: notes it. Fails without
// traces.
enum ggml_status gb_tallocr_bind(struct ggml_tallocr * talloc, struct ggml_tensor * tensor, size_t offset);

// Takes a successful bind back: the tensor is unplaced.
void gb_tallocr_unbind(struct ggml_tallocr * talloc, struct ggml_tensor * tensor);

// The buffer's free_tensor hook, before the tensor's bytes serve another. Not an undo.
enum ggml_status gb_tallocr_release(struct ggml_tallocr * talloc, struct ggml_tensor * tensor);

#endif // GB_ALLOC_ALLOC_H
