// ggml-backend-impl.h - the structures to implement for a backend.
//
// Fields have the order of ggml of February 2024, because backends use positional initialisers.
// Newer, optional hooks follow them. A missing hook is NULL.
//
// Errors of hooks
//   A hook that fails calls ggml_report_error once, where it knows the operator, the tensors and the numbers. Then it
//   returns NULL, false or 0, or just returns if it has no result. It never aborts, exits or prints, and leaves no
//   half-done work that its caller cannot see.
//   Each thread counts its reports. The library reads the count before and after a hook. If it has grown, the hook
//   failed with the status and message of the last report, for any result. So a hook that recovers from a failed
//   attempt must not report the attempt. False or NULL without a report means "I cannot do that", if the hook's
//   comment allows it. Otherwise it is a failure without a reason.
//   The count belongs to the calling thread. If work fails later, on a queue or a thread of the backend, the backend
//   keeps the failure. The next hook that waits for the work reports it: synchronize, event_synchronize.
#ifndef GGML_BACKEND_IMPL_H
#define GGML_BACKEND_IMPL_H

#include "ggml-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void * ggml_backend_buffer_type_context_t;
typedef void * ggml_backend_buffer_context_t;
typedef void * ggml_backend_context_t;

struct ggml_backend_buffer_type_i {
    const char * (*GGML_CALL get_name)(ggml_backend_buffer_type_t buft);
    ggml_backend_buffer_t (*GGML_CALL alloc_buffer)(ggml_backend_buffer_type_t buft, size_t size);
    size_t (*GGML_CALL get_alignment)(ggml_backend_buffer_type_t buft);
    // optional
    size_t (*GGML_CALL get_max_size)(ggml_backend_buffer_type_t buft);
    // optional
    size_t (*GGML_CALL get_alloc_size)(ggml_backend_buffer_type_t buft, const struct ggml_tensor * tensor);
    bool (*GGML_CALL supports_backend)(ggml_backend_buffer_type_t buft, ggml_backend_t backend);
    // optional
    bool (*GGML_CALL is_host)(ggml_backend_buffer_type_t buft);
};

struct ggml_backend_buffer_type {
    struct ggml_backend_buffer_type_i iface;
    ggml_backend_buffer_type_context_t context;
};

struct ggml_backend_buffer_i {
    const char * (*GGML_CALL get_name)(ggml_backend_buffer_t buffer);
    void (*GGML_CALL free_buffer)(ggml_backend_buffer_t buffer); // optional
    void * (*GGML_CALL get_base)(ggml_backend_buffer_t buffer);
    void (*GGML_CALL init_tensor)(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor); // optional
    void (*GGML_CALL set_tensor)(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor, const void * data,
        size_t offset, size_t size);
    void (*GGML_CALL get_tensor)(ggml_backend_buffer_t buffer, const struct ggml_tensor * tensor, void * data,
        size_t offset, size_t size);
    // optional; dst is in buffer
    bool (*GGML_CALL cpy_tensor)(ggml_backend_buffer_t buffer, const struct ggml_tensor * src,
        struct ggml_tensor * dst);
    void (*GGML_CALL clear)(ggml_backend_buffer_t buffer, uint8_t value);
    void (*GGML_CALL reset)(ggml_backend_buffer_t buffer); // optional
    // newer, optional
    // before an allocator frees the memory
    void (*GGML_CALL free_tensor)(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor);
    // src is in buffer
    bool (*GGML_CALL cpy_tensor_to)(ggml_backend_buffer_t buffer, const struct ggml_tensor * src,
        struct ggml_tensor * dst);

    // The device reads a file itself, perhaps on another host (ggml_backend_fill_from_files). A
    // backend has both hooks or neither. file_begin starts to read a part whose digest is known,
    // and returns a request without waiting. NULL without an error: the backend cannot read the
    // part. The part lives as long as the request.
    void * (*GGML_CALL file_begin)(ggml_backend_buffer_t buffer, const struct ggml_backend_file_fill * part);
    // Called once for each request, in order of the requests. Frees the request after the last
    // write for it. If `wanted` is true, the hook waits for the bytes, and returns true if they are
    // complete. False without an error: there is no such file. A file with another digest is an
    // error (IO_ERROR). If `wanted` is false, the caller ignores the outcome.
    bool (*GGML_CALL file_end)(ggml_backend_buffer_t buffer, void * request, bool wanted);
    // optional; called after file_end was false and the bytes were set. The device may store the
    // bytes under their digest.
    void (*GGML_CALL file_keep)(ggml_backend_buffer_t buffer, const struct ggml_backend_file_fill * part);
};

struct ggml_backend_buffer {
    struct ggml_backend_buffer_i iface;
    ggml_backend_buffer_type_t buft;
    ggml_backend_buffer_context_t context;
    size_t size;
    enum ggml_backend_buffer_usage usage;
    // newer; set by the library
    // unique in the process; changes with each write that the library knows of
    uint64_t version;
    bool replicated;  // a scheduler keeps copies of its content
    bool arena; // a graph allocator or a scheduler placed results in it
    bool retired;  // its memory was freed; the struct stays for tensors that point to it
    int32_t n_holds;  // holds by language bindings; above 0, freeing only retires the buffer
    void * binding;  // for language bindings
};

// NULL on failure. The caller then still owns the context.
GGML_API GGML_CALL ggml_backend_buffer_t ggml_backend_buffer_init(ggml_backend_buffer_type_t buft,
    struct ggml_backend_buffer_i iface, ggml_backend_buffer_context_t context, size_t size);

// Tries the hooks of both buffers. Returns false if neither could copy.
GGML_API bool ggml_backend_buffer_copy_tensor(const struct ggml_tensor * src, struct ggml_tensor * dst);

// Several buffers behind one handle, which owns them. On failure the caller still owns the parts.
GGML_API GGML_CALL ggml_backend_buffer_t ggml_backend_multi_buffer_alloc_buffer(ggml_backend_buffer_t * buffers,
    size_t n_buffers);
GGML_API GGML_CALL bool ggml_backend_buffer_is_multi_buffer(ggml_backend_buffer_t buffer);
GGML_API GGML_CALL enum ggml_status ggml_backend_multi_buffer_set_usage(ggml_backend_buffer_t buffer,
    enum ggml_backend_buffer_usage usage);

struct ggml_backend_i {
    const char * (*GGML_CALL get_name)(ggml_backend_t backend);
    void (*GGML_CALL free)(ggml_backend_t backend);
    ggml_backend_buffer_type_t (*GGML_CALL get_default_buffer_type)(ggml_backend_t backend);

    // optional
    void (*GGML_CALL set_tensor_async)(ggml_backend_t backend, struct ggml_tensor * tensor, const void * data,
        size_t offset, size_t size);
    // optional
    void (*GGML_CALL get_tensor_async)(ggml_backend_t backend, const struct ggml_tensor * tensor, void * data,
        size_t offset, size_t size);
    // optional
    bool (*GGML_CALL cpy_tensor_async)(ggml_backend_t backend, const struct ggml_tensor * src,
        struct ggml_tensor * dst);
    // optional
    void (*GGML_CALL synchronize)(ggml_backend_t backend);

    // optional; a backend has all three or none
    ggml_backend_graph_plan_t (*GGML_CALL graph_plan_create)(ggml_backend_t backend, const struct ggml_cgraph * cgraph);
    void (*GGML_CALL graph_plan_free)(ggml_backend_t backend, ggml_backend_graph_plan_t plan);
    void (*GGML_CALL graph_plan_compute)(ggml_backend_t backend, ggml_backend_graph_plan_t plan);
    bool (*GGML_CALL graph_compute)(ggml_backend_t backend, struct ggml_cgraph * cgraph);
    bool (*GGML_CALL supports_op)(ggml_backend_t backend, const struct ggml_tensor * op);
    // newer, optional
    // a static or per-thread string
    const char * (*GGML_CALL unsupported_reason)(ggml_backend_t backend, const struct ggml_tensor * op);

    // Events: a backend has all five hooks or none. event_wait gets events of backends that have
    // the same hook. Later work in the queue of `backend` then waits for them. An event that was
    // never recorded is complete.
    ggml_backend_event_t (*GGML_CALL event_new)(ggml_backend_t backend);
    void (*GGML_CALL event_free)(ggml_backend_event_t event);
    void (*GGML_CALL event_record)(ggml_backend_event_t event);
    void (*GGML_CALL event_wait)(ggml_backend_t backend, ggml_backend_event_t event);
    void (*GGML_CALL event_synchronize)(ggml_backend_event_t event);
    // Queues a copy of the elements of src into dst, which has the same layout. One of the two
    // tensors is in memory of this backend. The other tensor is there too, on the host, or in
    // memory of another device. The caller orders the copy against other work with events, and
    // keeps both tensors until it is done. False without an error: the backend cannot copy them.
    bool (*GGML_CALL cpy_tensor_peer_async)(ggml_backend_t backend, const struct ggml_tensor * src,
        struct ggml_tensor * dst);

    // Events that record the time when the queue reaches them, for traces. A backend with these two
    // hooks has the five above, too. event_time returns the time of the last record, in nanoseconds
    // on the system's monotonic clock. The library calls event_time when the event is complete.
    ggml_backend_event_t (*GGML_CALL event_new_timed)(ggml_backend_t backend);
    int64_t (*GGML_CALL event_time)(ggml_backend_event_t event);

    // Bytes of scratch memory that computing the graph needs beside its tensors, which may be
    // unplaced. Graphs that are computed one after another share it. A failure is reported.
    size_t (*GGML_CALL graph_work_size)(ggml_backend_t backend, const struct ggml_cgraph * cgraph);

    // True if the backend computes on any host memory, not only on buffers of its own type. The
    // backend then uses buffers of the CPU backend without copies. Its default buffer type is also
    // on the host.
    bool (*GGML_CALL computes_on_host)(ggml_backend_t backend);

    // True if later work in the queue of `backend` runs after earlier work in the queue of `other`,
    // without an event. The scheduler then neither records an event nor calls event_wait. The two
    // backends have the same event_wait. The answer for a pair never changes.
    bool (*GGML_CALL comes_behind)(ggml_backend_t backend, ggml_backend_t other);

    // The name of the i-th algorithm that the backend tries for a node, counted from 0. *why: the
    // reason why the algorithm declines, NULL if it computes the node. Returns NULL after that
    // algorithm, and for nodes that have only one. Both strings are static.
    const char * (*GGML_CALL algorithm)(ggml_backend_t backend, const struct ggml_tensor * node, int i,
        const char ** why);
};

struct ggml_backend {
    struct ggml_backend_i iface;
    ggml_backend_context_t context;
};

typedef ggml_backend_t (*GGML_CALL ggml_backend_init_fn)(const char * params, void * user_data);

// Adds an entry to the registry. Copies `name`. An existing name is an error.
GGML_API GGML_CALL enum ggml_status ggml_backend_register(const char * name, ggml_backend_init_fn init_fn,
    ggml_backend_buffer_type_t default_buffer_type, void * user_data);

#ifdef __cplusplus
}
#endif

#include "ggml-backend-impl-ext.h"

#endif // GGML_BACKEND_IMPL_H
