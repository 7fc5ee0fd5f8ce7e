// ggml-alloc.h - giving tensors memory.
//
//   tallocr  places tensors, one by one, in one buffer: best fit among free blocks kept sorted by address
//   gallocr  places the tensors of a graph, reusing the memory of those no longer needed
//   allocr   the older interface: one of each
//
// A measure allocator has no memory behind it: it finds out how much is needed and leaves the tensors untouched.
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
typedef struct ggml_allocr *  ggml_allocr_t;

// Legacy interface.
GGML_API ggml_allocr_t ggml_allocr_new(void * data, size_t size, size_t alignment); // memory stays the caller's
GGML_API ggml_allocr_t ggml_allocr_new_measure(size_t alignment);
// buffer stays the caller's
GGML_API ggml_allocr_t ggml_allocr_new_from_buffer(struct ggml_backend_buffer * buffer);
GGML_API ggml_allocr_t ggml_allocr_new_from_backend(struct ggml_backend * backend, size_t size); // owns its buffer
GGML_API ggml_allocr_t ggml_allocr_new_measure_from_backend(struct ggml_backend * backend);
GGML_API struct ggml_backend_buffer * ggml_allocr_get_buffer(ggml_allocr_t alloc);
// list: node indices in execution order, -1 = barrier; memory is given back only at barriers. Copied.
GGML_API enum ggml_status ggml_allocr_set_parse_seq(ggml_allocr_t alloc, const int * list, int n);
GGML_API void             ggml_allocr_free(ggml_allocr_t alloc);
GGML_API bool             ggml_allocr_is_measure(ggml_allocr_t alloc);
GGML_API enum ggml_status ggml_allocr_reset(ggml_allocr_t alloc);
GGML_API enum ggml_status ggml_allocr_alloc(ggml_allocr_t alloc, struct ggml_tensor * tensor);
GGML_API size_t           ggml_allocr_max_size(ggml_allocr_t alloc);
// max_size; 0 on failure
GGML_API size_t ggml_allocr_alloc_graph(ggml_allocr_t alloc, struct ggml_cgraph * graph);

// Tensor allocator.
GGML_API ggml_tallocr_t ggml_tallocr_new(void * data, size_t size, size_t alignment);
GGML_API ggml_tallocr_t ggml_tallocr_new_measure(size_t alignment);
// owns its buffer
GGML_API ggml_tallocr_t ggml_tallocr_new_from_buft(struct ggml_backend_buffer_type * buft, size_t size);
// owns its buffer
GGML_API ggml_tallocr_t               ggml_tallocr_new_from_backend(struct ggml_backend * backend, size_t size);
GGML_API ggml_tallocr_t               ggml_tallocr_new_from_buffer(struct ggml_backend_buffer * buffer);
GGML_API ggml_tallocr_t               ggml_tallocr_new_measure_from_buft(struct ggml_backend_buffer_type * buft);
GGML_API ggml_tallocr_t               ggml_tallocr_new_measure_from_backend(struct ggml_backend * backend);
GGML_API struct ggml_backend_buffer * ggml_tallocr_get_buffer(ggml_tallocr_t talloc);
GGML_API void                         ggml_tallocr_free(ggml_tallocr_t talloc);
GGML_API bool                         ggml_tallocr_is_measure(ggml_tallocr_t talloc);
GGML_API enum ggml_status ggml_tallocr_reset(ggml_tallocr_t talloc); // forget all placements; max_size stays
GGML_API enum ggml_status ggml_tallocr_alloc(ggml_tallocr_t talloc, struct ggml_tensor * tensor);
GGML_API size_t           ggml_tallocr_max_size(ggml_tallocr_t talloc); // high-water mark plus a tenth

// Graph allocator.
GGML_API ggml_gallocr_t   ggml_gallocr_new(void);
GGML_API void             ggml_gallocr_free(ggml_gallocr_t galloc);
GGML_API enum ggml_status ggml_gallocr_set_parse_seq(ggml_gallocr_t galloc, const int * list, int n);
GGML_API size_t ggml_gallocr_alloc_graph(ggml_gallocr_t galloc, ggml_tallocr_t talloc, struct ggml_cgraph * graph);
// Several allocators in one pass: the allocator of a tensor is hash_node_talloc[slot of the tensor in hash_set].
GGML_API enum ggml_status ggml_gallocr_alloc_graph_n(ggml_gallocr_t galloc, struct ggml_cgraph * graph,
    struct ggml_hash_set hash_set, ggml_tallocr_t * hash_node_talloc);

// A graph of the same nodes in an order in which fewer bytes are alive at once, if one is found, else in the same
// order. It refers to the tensors of cgraph, which is not changed; the copy lives in ctx. Each node comes after all
// that it needs, writes into memory that others use included, so results are the same bits. To be called before the
// graph gets memory: tensors that have some do not count. NULL on failure.
GGML_API struct ggml_cgraph * ggml_graph_reorder(struct ggml_context * ctx, struct ggml_cgraph * cgraph);

// Hash sets of tensor addresses: open addressing, linear probing. FULL = SIZE_MAX, ALREADY_EXISTS = SIZE_MAX - 1.
GGML_API struct ggml_hash_set ggml_hash_set_new(size_t min_size); // keys NULL on failure
GGML_API void                 ggml_hash_set_free(struct ggml_hash_set hash_set);
GGML_API size_t               ggml_hash_find(const struct ggml_hash_set hash_set, struct ggml_tensor * key);
GGML_API bool                 ggml_hash_contains(const struct ggml_hash_set hash_set, struct ggml_tensor * key);
GGML_API size_t               ggml_hash_insert(struct ggml_hash_set hash_set, struct ggml_tensor * key);
GGML_API size_t               ggml_hash_find_or_insert(struct ggml_hash_set hash_set, struct ggml_tensor * key);

// Whole contexts: every unplaced tensor of a no_alloc context in one buffer (several behind one handle when the type's
// maximum size demands it). NULL: nothing to place (ggml_last_status() unchanged) or an error; then no tensor was
// touched.
GGML_API struct ggml_backend_buffer * ggml_backend_alloc_ctx_tensors_from_buft(struct ggml_context * ctx,
    struct ggml_backend_buffer_type *                                                                buft);
GGML_API struct ggml_backend_buffer * ggml_backend_alloc_ctx_tensors(struct ggml_context * ctx,
    struct ggml_backend *                                                                  backend);

// Static memory planning without tensors: offsets for n buffers of which buffer i is alive from lower[i] up to, not
// including, upper[i], so that no two alive together overlap and peak is small: never more than in-order best fit
// gives. alignment: a power of two.
//   capacity   0: as small as can be. Else a plan of at most so many bytes is good enough; if none is found,
//              ALLOC_FAILED, and offsets and info hold the smallest that was
//   budget_ms  for search where heuristics do not reach the lower bound; 0: none. It is spent in steps, not by the
//              clock, which only ends what takes longer than it: the same input gives the same plan on any machine that
//              is fast enough
struct ggml_plan_info {
    size_t peak;         // bytes; sizes count rounded up to the alignment
    size_t lower_bound;  // most bytes alive at once: no plan has a smaller peak
    size_t best_fit;     // the peak of in-order best fit, for comparison
    bool   proved;       // no plan has a smaller peak than this one
    double milliseconds; // that it took
};
GGML_API enum ggml_status ggml_plan_memory(size_t n, const int64_t * lower, const int64_t * upper, const size_t * size,
    size_t alignment, size_t capacity, int64_t budget_ms, size_t * offsets, struct ggml_plan_info * info);

// cdef: end

#define GGML_HASHTABLE_FULL           ((size_t) -1)
#define GGML_HASHTABLE_ALREADY_EXISTS ((size_t) -2)

#ifdef __cplusplus
}
#endif

#endif // GGML_ALLOC_H
