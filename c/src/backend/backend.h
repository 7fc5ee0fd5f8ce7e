// backend.h - what the files of this layer, the allocators and the scheduler share about buffers and backends.
//
//   buffer.c        buffer types, buffers, tensor access and placing by hand
//   multi_buffer.c  several buffers behind one handle
//   event.c         marks in the work of a device, for others to wait for
//   fusion.c        whether backends compute neighbouring nodes together
//   backend.c       devices: queued access, computing, copies between tensors
//   registry.c      backends by name; the only file that names concrete ones
//   ctx_tensors.c   memory for all tensors of a context;  hash_set.c: the public sets of tensor addresses
//   graph_copy.c    deep copies of graphs;  compare.c runs one graph on two backends
//
// Whether a hook failed: ggml-backend-impl.h, "Errors of hooks". gb_fail_count before the call, gb_status_since after.
#ifndef GB_BACKEND_BACKEND_H
#define GB_BACKEND_BACKEND_H

#include "base/status.h"
#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "tensor/tensor.h"

// How many buffers were freed in this process, modulo 2^32: as long as it stays the same, no address was given to
// another buffer.
unsigned gb_buffers_freed(void);
unsigned gb_replicated_buffers_freed(void); // of them, those with `replicated` set

// What memory of the host without a buffer counts as: the CPU backend's type.
ggml_backend_buffer_type_t gb_plain_host_buffer_type(void);

// A buffer of that type around memory that stays the caller's. NULL and reported on failure.
ggml_backend_buffer_t gb_plain_host_buffer(void * ptr, size_t size);

// Storage versions. Who writes into a buffer, by whatever way, calls gb_buffer_changed before it returns; NULL is fine.
// To mark several buffers at once: one new version for all.
uint64_t gb_new_version(void);

// Several threads may compute into one buffer, and others ask for its version meanwhile.
static inline uint64_t gb_buffer_version(const struct ggml_backend_buffer * buffer) {
    return GB_READ_RELAXED(buffer->version);
}

static inline void gb_buffer_set_version(struct ggml_backend_buffer * buffer, uint64_t version) {
    GB_WRITE_RELAXED(buffer->version, version);
}
void gb_buffer_changed(ggml_backend_buffer_t buffer);

// For language bindings, whose tensors may go on pointing to a buffer that was freed: while a buffer is held, freeing
// it gives back its memory and leaves a retired struct without hooks behind. The last unhold frees that. Not to be
// called while others hold, unhold or free it.
void gb_buffer_hold(ggml_backend_buffer_t buffer);
void gb_buffer_unhold(ggml_backend_buffer_t buffer);

static inline bool gb_buffer_is_retired(const struct ggml_backend_buffer * buffer) { // by any thread
    return __atomic_load_n(&buffer->retired, __ATOMIC_ACQUIRE);
}

// The buffer that holds the tensor's bytes: a view's is its source's. NULL: unplaced, or plain host memory.
ggml_backend_buffer_t gb_tensor_buffer(const struct ggml_tensor * t);

// INVALID_STATE with a message of `func` unless the tensor has memory. Tensors without bytes always pass.
enum ggml_status gb_tensor_check_placed(const char * func, const struct ggml_tensor * t);

// Placed, `data` not NULL, and offset + size within its bytes: what every read and write of tensor bytes needs.
enum ggml_status gb_tensor_check_access(const char * func, const struct ggml_tensor * tensor, const void * data,
    size_t offset, size_t size);

// The bytes of the tensor leave gaps (a strided view): writing its whole extent would overwrite what is not its own.
bool gb_tensor_has_gaps(const struct ggml_tensor * t);

// What is queued on `backend` can wait for events of `other` without the host.
bool gb_backend_waits_for(ggml_backend_t backend, ggml_backend_t other);

// Who keeps a backend that it does not own is told before it is freed. Both are the watcher's own until `gone` was
// called or it stops watching.
struct gb_backend_watch {
    ggml_backend_t            backend; // NULL: not watching
    struct gb_backend_watch * next;
    void (*gone)(struct gb_backend_watch * watch); // no lock is held; the backend still works
};
void gb_backend_watch(struct gb_backend_watch * watch, ggml_backend_t backend);
void gb_backend_unwatch(struct gb_backend_watch * watch);

// Part i of a multi-buffer; NULL behind the last one, and for other buffers.
ggml_backend_buffer_t gb_multi_buffer_part(ggml_backend_buffer_t buffer, size_t i);

#endif // GB_BACKEND_BACKEND_H
