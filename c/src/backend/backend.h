// backend.h - functions on buffers and backends for this folder, the allocators and the scheduler.
//
//   buffer.c        buffer types, buffers, tensor access, and placement by the user
//   multi_buffer.c  several buffers behind one handle
//   top.c           the largest elements of rows
//   event.c         events in the queue of a device
//   file_fill.c     bytes of tensors that devices read from files themselves
//   fusion.c        whether backends compute neighbouring nodes together
//   profile.c       records of what threads compute (profile.h)
//   backend.c       devices: queued access, computing, copies between tensors
//   registry.c      backends by name; with cuda.c the only file that names concrete backends
//   module.c        loads backends from shared libraries
//   cuda.c          ggml-cuda.h, forwarded to the module of that backend
//   ctx_tensors.c   memory for all tensors of a context
//   hash_set.c      the public sets of tensor addresses
//   graph_copy.c    deep copies of graphs
//   compare.c       runs one graph on two backends
//
// To learn whether a hook failed, call gb_fail_count before the hook, and gb_status_since after it
// (ggml-backend-impl.h, "Errors of hooks").
#ifndef GB_BACKEND_BACKEND_H
#define GB_BACKEND_BACKEND_H

#include "base/status.h"
#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "tensor/tensor.h"

// How many buffers were freed in this process, modulo 2^32. While the number is the same, no
// address of a buffer was reused.
unsigned gb_buffers_freed(void);
// The number of freed buffers that had `replicated` set.
unsigned gb_replicated_buffers_freed(void);

// The buffer type of host memory without a buffer: that of the CPU backend.
ggml_backend_buffer_type_t gb_plain_host_buffer_type(void);

// A buffer of that type around memory that the caller owns. NULL on failure (reported).
ggml_backend_buffer_t gb_plain_host_buffer(void * ptr, size_t size);

// Storage versions. Code that writes into a buffer calls gb_buffer_changed before it returns. A
// copy of the content is stale when its version differs from the buffer's. gb_new_version marks
// several buffers with the same new version.
uint64_t gb_new_version(void);

// Relaxed, because several threads may compute into one buffer while others read its version.
static inline uint64_t gb_buffer_version(const struct ggml_backend_buffer * buffer) {
    return GB_READ_RELAXED(buffer->version);
}

static inline void gb_buffer_set_version(struct ggml_backend_buffer * buffer, uint64_t version) {
    GB_WRITE_RELAXED(buffer->version, version);
}
// Gives the buffer a new version. NULL is allowed.
void gb_buffer_changed(ggml_backend_buffer_t buffer);

// For language bindings, whose tensors may point to a buffer after it was freed. Freeing a held
// buffer releases its memory and leaves a retired struct without hooks. The last unhold frees the
// struct. The caller makes sure that no other thread holds, unholds or frees the buffer at the same
// time.
void gb_buffer_hold(ggml_backend_buffer_t buffer);
void gb_buffer_unhold(ggml_backend_buffer_t buffer);

// True if the buffer was freed while it was held. Any thread may call this.
static inline bool gb_buffer_is_retired(const struct ggml_backend_buffer * buffer) {
    return GB_READ_ACQUIRE(buffer->retired);
}

// The buffer that holds the tensor's bytes. For a view, the buffer of its source. NULL if the
// tensor is not placed, or in plain host memory.
ggml_backend_buffer_t gb_tensor_buffer(const struct ggml_tensor * t);

// INVALID_STATE with a message of `func` unless the tensor has memory. Tensors without bytes always pass.
enum ggml_status gb_tensor_check_placed(const char * func, const struct ggml_tensor * t);

// INVALID_STATE or INVALID_ARGUMENT unless the tensor is placed, `data` is not NULL, and [offset,
// offset + size) lies within its bytes. Every read and write of tensor bytes needs this.
enum ggml_status gb_tensor_check_access(const char * func, const struct ggml_tensor * tensor, const void * data,
    size_t offset, size_t size);

// Like ggml_backend_buffer_is_host, for a buffer that is not NULL.
static inline bool gb_buffer_is_host(const struct ggml_backend_buffer * buffer) {
    const ggml_backend_buffer_type_t type = buffer->buft;
    return type->iface.is_host != NULL && type->iface.is_host(type);
}

// Binds a view to the memory of its source, which must be in a buffer.
enum ggml_status gb_view_bind(struct ggml_tensor * view);

// ggml_backend_tensor_set after its checks: the tensor is placed and the bytes lie within it.
enum ggml_status gb_tensor_write(struct ggml_tensor * tensor, const void * data, size_t offset, size_t size);

// Writes all elements of a placed tensor with gaps. `data` has no gaps. Bytes in the gaps stay.
enum ggml_status gb_tensor_scatter(struct ggml_tensor * t, const void * data);

// True if the bytes of the tensor leave gaps (a strided view). Writing its whole extent would then
// overwrite other tensors.
bool gb_tensor_has_gaps(const struct ggml_tensor * t);

// The i-th algorithm that the backend tries for a node (ggml_backend_i::algorithm). NULL if the backend names none.
const char * gb_backend_algorithm(ggml_backend_t backend, const struct ggml_tensor * node, int i, const char ** why);
// The names of the algorithms that compute the nodes, for profiles: "tiles", or "vectors_quick and
// 2 more". "" if none has a name.
enum { GB_ALGORITHMS_SIZE = 64 };
void gb_backend_name_algorithms(ggml_backend_t backend, struct ggml_tensor * const * nodes, int n,
    char (*text)[GB_ALGORITHMS_SIZE]);

// True if work that is queued on `backend` can wait for events of `other` without stopping the host.
bool gb_backend_waits_for(ggml_backend_t backend, ggml_backend_t other);

// True if later work on `backend` runs after earlier work in the queue of `other`, without an
// event.
bool gb_backend_comes_behind(ggml_backend_t backend, ggml_backend_t other);

// For an object that refers to a backend without owning it. The backend calls `on_free` before it
// is freed. The struct and the backend are safe to use until then, or until the watch ends.
struct gb_backend_watch {
    ggml_backend_t backend; // NULL: not watching
    struct gb_backend_watch * next;
    // called once; no lock is held, and the backend still works
    void (*on_free)(struct gb_backend_watch * watch);
};
void gb_backend_watch(struct gb_backend_watch * watch, ggml_backend_t backend);
// Ends the watch, unless it has ended. `on_free` is not called afterwards.
void gb_backend_unwatch(struct gb_backend_watch * watch);

// Part i of a multi-buffer. NULL after the last part, and for any other buffer.
ggml_backend_buffer_t gb_multi_buffer_part(ggml_backend_buffer_t buffer, size_t i);

#endif // GB_BACKEND_BACKEND_H
