// ggml-backend-ext.h - what this library adds to the buffers, backends and the registry of February 2024's
// ggml-backend.h, which includes this header. The scheduler's additions are in ggml-backend-sched.h.
//
//   event   a mark in the work of a backend, which others and the host can wait for
//   file    what a device reads itself, perhaps on another host, instead of being sent it
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
// Call this after you change the contents of a buffer through a pointer. The scheduler then renews the copies that it
// keeps. Only buffers of usage WEIGHTS in host memory need it.
GGML_API enum ggml_status ggml_backend_buffer_changed(ggml_backend_buffer_t buffer);

// Why ggml_backend_supports_op says no, in words; NULL when the op is supported. Valid until the thread's next
// call.
GGML_API const char * ggml_backend_unsupported_reason(ggml_backend_t backend, const struct ggml_tensor * op);

// --------------------------------------------------------------------------------------------------------------- files

#define GGML_FILE_DIGEST_SIZE 32

// A part of a file, which is to fill bytes of a tensor.
struct ggml_backend_file_fill {
    struct ggml_tensor * tensor;
    size_t offset;     // in the tensor
    size_t size;       // bytes, from there on and from `at` on
    const char * path; // the file, as this host calls it
    uint64_t at;       // in the file
    const void * data; // the bytes as they are here, in the mapped file, say

    // results
    uint8_t digest[GGML_FILE_DIGEST_SIZE]; // of the bytes: BLAKE2b without a key (RFC 7693)
    bool asked;                            // the device was asked, and `digest` is known
    bool filled;                           // the device has read the bytes itself
};

// Lets devices read parts of files themselves, if they have a file with the same content. Several parts may be pending
// at once. The caller sets each part that is not `filled` afterwards: its device reads no files, or has no such file.
// IO_ERROR, with tensor and file: a device has a file of that name with other content, or cannot read it.
// After a failure some parts may be filled, and no request is pending.
GGML_API enum ggml_status ggml_backend_fill_from_files(struct ggml_backend_file_fill * fills, size_t n);
// The bytes of a part that was asked for and not filled were set otherwise: the device may keep them under their digest
// and take them for the same content the next time. Success, too, where it keeps nothing.
GGML_API enum ggml_status ggml_backend_keep_file(const struct ggml_backend_file_fill * fill);

// -------------------------------------------------------------------------------------------------------------- events

// Events work with every backend: one
// whose calls are done when they return has nothing to wait for, and one that has a queue but no events is waited for
// as a whole.
GGML_API ggml_backend_event_t ggml_backend_event_new(ggml_backend_t backend); // complete until it is recorded
GGML_API void ggml_backend_event_free(ggml_backend_event_t event);            // NULL is fine
// after what is queued on its backend now
GGML_API enum ggml_status ggml_backend_event_record(ggml_backend_event_t event);
GGML_API enum ggml_status ggml_backend_event_synchronize(ggml_backend_event_t event); // the host waits
// Work that is queued on `backend` from now on waits for the event. If the backend cannot wait, the host does.
GGML_API enum ggml_status ggml_backend_event_wait(ggml_backend_t backend, ggml_backend_event_t event);

// -------------------------------------------------------------------------------------------------------------- fusion

// True if backends compute neighbouring nodes of a graph together, where they can (the CPU backend:
// docs/PERFORMANCE.md, attention, products with what follows them, normalisations, softmax and elementwise operators;
// CUDA: docs/CUDA.md). For the process and all backends; counts for graphs that are prepared from now on. Results agree
// within rounding. Intermediate results that a graph allocator or a scheduler placed, and that are no outputs
// (ggml_set_output), may then not be stored. At first on, unless the environment variable GGML_CPU_FUSE is 0.
GGML_API bool ggml_graph_get_fusion(void);
GGML_API void ggml_graph_set_fusion(bool on);

// ------------------------------------------------------------------------------------------------------------- modules

// One attempt to load a module (ggml-backend-module.h). Valid until the process ends.
struct ggml_backend_load_record {
    const char * path; // as resolved; as given where that failed
    const char * name; // the module's own; "" when it has none
    enum ggml_status status;
    const char * message; // why it failed; "" on success
    size_t n_backends;    // registry entries that it added
};

// Loads a module, which registers its backends. The path is explicit: it has a directory, and nothing is searched for.
// The module's version and structure sizes are read from the file and checked before any code of it runs. A module that
// is loaded already is a success. A module without a device reports UNSUPPORTED; it stays loaded and nothing is
// registered. Not from within a module's entry point.
GGML_API enum ggml_status ggml_backend_load(const char * path);
// The attempts to load a backend so far, in order, without repetitions. NULL if i is out of range.
GGML_API size_t ggml_backend_load_count(void);
GGML_API const struct ggml_backend_load_record * ggml_backend_load_get(size_t i);

// cdef: end

#ifdef __cplusplus
}
#endif

#endif // GGML_BACKEND_EXT_H
