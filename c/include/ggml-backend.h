// ggml-backend.h - memory of devices, backends that compute, and the scheduler that runs one graph
// on several of them.
//
//   buffer type (buft)  knows how to allocate on a device
//   buffer              one allocation
//   backend             a device with a queue of work
//   registry            the backends that can be made by name; "CPU" is always entry 0
//   scheduler           assigns the nodes of a graph to backends, divides it into splits, copies tensors between
//                       them, and runs it
//
// Threads: different backends may be used at once. Only one thread at a time may use a backend,
// scheduler or buffer.
#ifndef GGML_BACKEND_H
#define GGML_BACKEND_H

#include "ggml-alloc.h"
#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// cdef: begin

typedef struct ggml_backend_buffer_type * ggml_backend_buffer_type_t;
typedef struct ggml_backend_buffer * ggml_backend_buffer_t;
typedef struct ggml_backend * ggml_backend_t;
typedef void * ggml_backend_graph_plan_t;
typedef struct ggml_backend_sched * ggml_backend_sched_t;

enum ggml_backend_buffer_usage { GGML_BACKEND_BUFFER_USAGE_ANY = 0, GGML_BACKEND_BUFFER_USAGE_WEIGHTS = 1 };

// -------------------------------------------------------------------------------------------------------- buffer types

GGML_API const char * ggml_backend_buft_name(ggml_backend_buffer_type_t buft);
GGML_API GGML_CALL ggml_backend_buffer_t ggml_backend_buft_alloc_buffer(ggml_backend_buffer_type_t buft, size_t size);
GGML_API size_t ggml_backend_buft_get_alignment(ggml_backend_buffer_type_t buft); // a power of two
GGML_API size_t ggml_backend_buft_get_max_size(ggml_backend_buffer_type_t buft);
GGML_API GGML_CALL size_t ggml_backend_buft_get_alloc_size(ggml_backend_buffer_type_t buft,
    struct ggml_tensor * tensor);
GGML_API bool ggml_backend_buft_supports_backend(ggml_backend_buffer_type_t buft, ggml_backend_t backend);
GGML_API bool ggml_backend_buft_is_host(ggml_backend_buffer_type_t buft);

// ------------------------------------------------------------------------------------------------------------- buffers

GGML_API const char * ggml_backend_buffer_name(ggml_backend_buffer_t buffer);
GGML_API void ggml_backend_buffer_free(ggml_backend_buffer_t buffer); // NULL is allowed
GGML_API void * ggml_backend_buffer_get_base(ggml_backend_buffer_t buffer);
GGML_API size_t ggml_backend_buffer_get_size(ggml_backend_buffer_t buffer);
GGML_API GGML_CALL enum ggml_status ggml_backend_buffer_init_tensor(ggml_backend_buffer_t buffer,
    struct ggml_tensor * tensor);
GGML_API size_t ggml_backend_buffer_get_alignment(ggml_backend_buffer_t buffer);
GGML_API size_t ggml_backend_buffer_get_max_size(ggml_backend_buffer_t buffer);
GGML_API size_t ggml_backend_buffer_get_alloc_size(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor);
GGML_API enum ggml_status ggml_backend_buffer_clear(ggml_backend_buffer_t buffer, uint8_t value);
GGML_API bool ggml_backend_buffer_is_host(ggml_backend_buffer_t buffer);
GGML_API enum ggml_status ggml_backend_buffer_set_usage(ggml_backend_buffer_t buffer,
    enum ggml_backend_buffer_usage usage);
GGML_API ggml_backend_buffer_type_t ggml_backend_buffer_get_type(ggml_backend_buffer_t buffer);
GGML_API enum ggml_status ggml_backend_buffer_reset(ggml_backend_buffer_t buffer);

// ------------------------------------------------------------------------------------------------------------ backends

GGML_API const char * ggml_backend_name(ggml_backend_t backend); // "NULL" for NULL
GGML_API void ggml_backend_free(ggml_backend_t backend); // NULL is allowed

GGML_API ggml_backend_buffer_type_t ggml_backend_get_default_buffer_type(ggml_backend_t backend);
GGML_API ggml_backend_buffer_t ggml_backend_alloc_buffer(ggml_backend_t backend, size_t size);
GGML_API size_t ggml_backend_get_alignment(ggml_backend_t backend);
GGML_API size_t ggml_backend_get_max_size(ggml_backend_t backend);

// offset + size <= ggml_nbytes(tensor). For asynchronous calls, `data` must stay valid until ggml_backend_synchronize.
GGML_API enum ggml_status ggml_backend_tensor_set_async(ggml_backend_t backend, struct ggml_tensor * tensor,
    const void * data, size_t offset, size_t size);
GGML_API enum ggml_status ggml_backend_tensor_get_async(ggml_backend_t backend, const struct ggml_tensor * tensor,
    void * data, size_t offset, size_t size);
GGML_API GGML_CALL enum ggml_status ggml_backend_tensor_set(struct ggml_tensor * tensor, const void * data,
    size_t offset, size_t size);
GGML_API GGML_CALL enum ggml_status ggml_backend_tensor_get(const struct ggml_tensor * tensor, void * data,
    size_t offset, size_t size);

// Waits for all queued work, and reports the first failure of that work.
GGML_API enum ggml_status ggml_backend_synchronize(ggml_backend_t backend);

GGML_API ggml_backend_graph_plan_t ggml_backend_graph_plan_create(ggml_backend_t backend, struct ggml_cgraph * cgraph);
GGML_API void ggml_backend_graph_plan_free(ggml_backend_t backend, ggml_backend_graph_plan_t plan);
GGML_API enum ggml_status ggml_backend_graph_plan_compute(ggml_backend_t backend, ggml_backend_graph_plan_t plan);
GGML_API bool ggml_backend_graph_compute(ggml_backend_t backend, struct ggml_cgraph * cgraph);
GGML_API bool ggml_backend_supports_op(ggml_backend_t backend, const struct ggml_tensor * op);

// Both tensors have the same type, ne and nb.
GGML_API enum ggml_status ggml_backend_tensor_copy(struct ggml_tensor * src, struct ggml_tensor * dst);
// Queues the copy on `backend` after its earlier work, if both buffers and the backend allow it.
// Otherwise copies at once and returns when the copy is complete.
GGML_API enum ggml_status ggml_backend_tensor_copy_async(ggml_backend_t backend, struct ggml_tensor * src,
    struct ggml_tensor * dst);

// --------------------------------------------------------------------------------------------------------- CPU backend

GGML_API ggml_backend_t ggml_backend_cpu_init(void); // GGML_DEFAULT_N_THREADS threads
GGML_API GGML_CALL bool ggml_backend_is_cpu(ggml_backend_t backend);
GGML_API enum ggml_status ggml_backend_cpu_set_n_threads(ggml_backend_t backend_cpu, int n_threads);
// A buffer in memory of another owner, for example a mapped file or an array, at any address. The
// library never frees that memory.
GGML_API GGML_CALL ggml_backend_buffer_t ggml_backend_cpu_buffer_from_ptr(void * ptr, size_t size);
GGML_API GGML_CALL ggml_backend_buffer_type_t ggml_backend_cpu_buffer_type(void);

// ------------------------------------------------------------------------------------------------------------ registry
// Names are compared without case. Thread-safe.

GGML_API size_t ggml_backend_reg_get_count(void);
GGML_API size_t ggml_backend_reg_find_by_name(const char * name); // SIZE_MAX if absent
// "NAME" or "NAME:params"
GGML_API ggml_backend_t ggml_backend_reg_init_backend_from_str(const char * backend_str);
GGML_API const char * ggml_backend_reg_get_name(size_t i);
GGML_API ggml_backend_t ggml_backend_reg_init_backend(size_t i, const char * params); // params may be NULL
GGML_API ggml_backend_buffer_type_t ggml_backend_reg_get_default_buffer_type(size_t i);
GGML_API ggml_backend_buffer_t ggml_backend_reg_alloc_buffer(size_t i, size_t size);

// ----------------------------------------------------------------------------------------------------------- scheduler

// If ask is true, return whether you need the result of t. If ask is false, t is complete, and you
// return whether the computation goes on.
typedef bool (*ggml_backend_sched_eval_callback)(struct ggml_tensor * t, bool ask, void * user_data);

// backends: in order of priority; the last one is the fallback. bufts: NULL for the default of each
// backend. Both arrays are copied. The caller keeps the backends and frees them after the
// scheduler. Computing with a freed backend is an error (INVALID_STATE). graph_size is ignored:
// the scheduler takes graphs of any size.
GGML_API ggml_backend_sched_t ggml_backend_sched_new(ggml_backend_t * backends, ggml_backend_buffer_type_t * bufts,
    int n_backends, size_t graph_size);
// Frees the scheduler and its memory. Tensors that it placed then have dangling pointers. Before
// you use them again, set their `buffer` and `data` to NULL. NULL is allowed.
GGML_API void ggml_backend_sched_free(ggml_backend_sched_t sched);

// Computes how much memory the graph needs, and allocates that memory. Changes no tensor. A later
// graph of the same structure (operators, types, sources, views, placements) whose tensors are no
// larger uses the offsets planned for this graph, and allocates nothing.
GGML_API enum ggml_status ggml_backend_sched_init_measure(ggml_backend_sched_t sched,
    struct ggml_cgraph * measure_graph);
GGML_API int ggml_backend_sched_get_n_splits(ggml_backend_sched_t sched); // of the last graph
GGML_API ggml_tallocr_t ggml_backend_sched_get_tallocr(ggml_backend_sched_t sched, ggml_backend_t backend);
GGML_API ggml_backend_buffer_t ggml_backend_sched_get_buffer(ggml_backend_sched_t sched, ggml_backend_t backend);

// Assigns the node. If backend is NULL, the scheduler chooses again.
GGML_API enum ggml_status ggml_backend_sched_set_node_backend(ggml_backend_sched_t sched, struct ggml_tensor * node,
    ggml_backend_t backend);
GGML_API ggml_backend_t ggml_backend_sched_get_node_backend(ggml_backend_sched_t sched, struct ggml_tensor * node);

GGML_API enum ggml_status ggml_backend_sched_graph_compute(ggml_backend_sched_t sched, struct ggml_cgraph * graph);

// Removes assignments and placements (tensors that the scheduler placed become unplaced). Keeps
// buffers.
GGML_API enum ggml_status ggml_backend_sched_reset(ggml_backend_sched_t sched);
GGML_API enum ggml_status ggml_backend_sched_set_eval_callback(ggml_backend_sched_t sched,
    ggml_backend_sched_eval_callback callback, void * user_data);

// ---------------------------------------------------------------------------------------------- graph copy and compare

struct ggml_backend_graph_copy {
    ggml_backend_buffer_t buffer;
    struct ggml_context * ctx_allocated;
    struct ggml_context * ctx_unallocated;
    struct ggml_cgraph * graph;
};

// A deep copy of a placed graph, with its data, on `backend`. All fields are NULL on failure.
GGML_API struct ggml_backend_graph_copy ggml_backend_graph_copy(ggml_backend_t backend, struct ggml_cgraph * graph);
GGML_API void ggml_backend_graph_copy_free(struct ggml_backend_graph_copy copy);

typedef bool (*ggml_backend_eval_callback)(int node_index, struct ggml_tensor * t1, struct ggml_tensor * t2,
    void * user_data);

// Runs the graph on both backends, node by node. The callback gets each pair of results, except
// those of view ops. If it returns false, the comparison stops.
GGML_API GGML_CALL bool ggml_backend_compare_graph_backend(ggml_backend_t backend1, ggml_backend_t backend2,
    struct ggml_cgraph * graph, ggml_backend_eval_callback callback, void * user_data);

// ----------------------------------------------------------------------------------------------------- placing by hand

GGML_API enum ggml_status ggml_backend_tensor_alloc(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor,
    void * addr);
GGML_API enum ggml_status ggml_backend_view_init(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor);

// cdef: end

#ifdef GGML_USE_CPU_HBM
// High-bandwidth memory through libmemkind. Returns NULL if the machine has none.
GGML_API ggml_backend_buffer_type_t ggml_backend_cpu_hbm_buffer_type(void);
#endif

#ifdef __cplusplus
}
#endif

#include "ggml-backend-ext.h"
#include "ggml-backend-sched.h"
#include "ggml-profile.h"

#endif // GGML_BACKEND_H
