// ggml-backend-ext.h - additions to ggml's interface of February 2024: buffers, backends, modules.
// ggml-backend.h includes this header. ggml-backend-sched.h has the additions of the scheduler.
//
//   event   a point in the work of a backend, which other backends and the host can wait for
//   file    data that a device reads itself, perhaps on another host
//   module  a backend in a shared library, loaded at run time
#ifndef GGML_BACKEND_EXT_H
#define GGML_BACKEND_EXT_H

#include "ggml-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// cdef: begin

typedef struct ggml_backend_event * ggml_backend_event_t;

// ------------------------------------------------------------------------------------------------ buffers and backends

GGML_API enum ggml_backend_buffer_usage ggml_backend_buffer_get_usage(ggml_backend_buffer_t buffer);
// Call this after you change the contents of a buffer through a pointer. The scheduler then renews
// its copies. Only buffers of usage WEIGHTS in host memory need it.
GGML_API enum ggml_status ggml_backend_buffer_changed(ggml_backend_buffer_t buffer);

// The reason why ggml_backend_supports_op is false, as text. NULL if the op is supported. Valid
// until the thread's next call.
GGML_API const char * ggml_backend_unsupported_reason(ggml_backend_t backend, const struct ggml_tensor * op);

// Writes the indices in the row and the values of the k largest elements of each row, the largest
// first. The tensor is F32 with dense rows. k is at least 1 and at most ne[0]. Of equal elements,
// the first in the row comes first. NaN is smaller than every number. Rows in host memory are not
// copied.
GGML_API enum ggml_status ggml_backend_tensor_get_top(const struct ggml_tensor * tensor, int k, int32_t * ids,
    float * values);

// --------------------------------------------------------------------------------------------------------------- files

#define GGML_FILE_DIGEST_SIZE 32

// A part of a file, for bytes of a tensor.
struct ggml_backend_file_fill {
    struct ggml_tensor * tensor;
    size_t offset;     // offset in the tensor
    size_t size;       // bytes
    const char * path; // the file's path on this host
    uint64_t at;       // offset in the file
    const void * data; // the bytes on this host, for example in the mapped file

    // results
    uint8_t digest[GGML_FILE_DIGEST_SIZE]; // of the bytes: BLAKE2b without a key (RFC 7693)
    bool asked;                            // the device got a request, so `digest` is known
    bool filled;                           // the device has read the bytes itself
};

// Lets devices read parts of files themselves, if they have a file with the same content. Several
// parts may be pending at once. Afterwards the caller sets each part that is not `filled`, because
// its device reads no files or has no such file. The status is IO_ERROR, and the message names tensor
// and file, if a device has a file of that name with other content, or cannot read its file. After a
// failure some parts may be filled, and no request is pending.
GGML_API enum ggml_status ggml_backend_fill_from_files(struct ggml_backend_file_fill * fills, size_t n);
// Call this after you set a part that was `asked` and not `filled`. The device may store its bytes
// under their digest and use them for the same content later. It is no error if the device stores
// nothing.
GGML_API enum ggml_status ggml_backend_keep_file(const struct ggml_backend_file_fill * fill);

// -------------------------------------------------------------------------------------------------------------- events

// Events work with every backend. If the calls of a backend are complete when they return, its
// events are always complete. If a backend has a queue but no events, each wait is for the whole
// queue.
GGML_API ggml_backend_event_t ggml_backend_event_new(ggml_backend_t backend); // complete until it is recorded
GGML_API void ggml_backend_event_free(ggml_backend_event_t event);  // NULL is allowed
// records the event after the work that is in its backend's queue now
GGML_API enum ggml_status ggml_backend_event_record(ggml_backend_event_t event);
GGML_API enum ggml_status ggml_backend_event_synchronize(ggml_backend_event_t event); // the host waits
// Later work in the queue of `backend` waits for the event. If the backend cannot wait, the host
// waits.
GGML_API enum ggml_status ggml_backend_event_wait(ggml_backend_t backend, ggml_backend_event_t event);

// -------------------------------------------------------------------------------------------------------------- fusion

// True if backends may compute neighbouring nodes of a graph together (docs/PERFORMANCE.md for the
// CPU backend, docs/CUDA.md for CUDA). The switch is for the process and all backends, and affects
// graphs that are prepared later. Results agree within rounding. Intermediate results that a graph
// allocator or a scheduler placed may then not be stored, unless they are outputs
// (ggml_set_output). Initially on, unless the environment variable GGML_CPU_FUSE is 0.
GGML_API bool ggml_graph_get_fusion(void);
GGML_API void ggml_graph_set_fusion(bool on);

// ------------------------------------------------------------------------------------------------------------- modules

// One attempt to load a module (ggml-backend-module.h). Valid until the process ends.
struct ggml_backend_load_record {
    const char * path; // absolute; the caller's text if the file was not found
    const char * name; // of the module; "" if it has none
    enum ggml_status status;
    const char * message; // why it failed; "" on success
    size_t n_backends;    // registry entries that it added
};

// Loads a module, which registers its backends. The path must contain a directory, because no path
// is searched. The module's version and structure sizes are read from the file and checked before
// any of its code runs. Loading a loaded module again succeeds. A module without a device reports
// UNSUPPORTED. It stays loaded and registers nothing. Do not call this in a module's entry point.
GGML_API enum ggml_status ggml_backend_load(const char * path);
// The attempts to load modules so far, in order, without repetitions. NULL if i is out of range.
GGML_API size_t ggml_backend_load_count(void);
GGML_API const struct ggml_backend_load_record * ggml_backend_load_get(size_t i);

// cdef: end

#ifdef __cplusplus
}
#endif

#endif // GGML_BACKEND_EXT_H
