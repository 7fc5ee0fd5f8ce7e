// ggml-profile.h - records how long each operator of a graph takes, and how much work it is.
// ggml-backend.h includes this header.
//
//     ggml_profile_t p = ggml_profile_new(0);
//     ggml_profile_use(p);
//     ggml_backend_sched_graph_compute(sched, graph); // or any other function that computes
//     ggml_profile_use(NULL);
//
// A profile belongs to no backend and no scheduler. It records what a thread computes while the
// thread uses it.
//
//   step    a unit of recording: an operator, several operators that the CPU backend fuses, or a whole split of a
//           device that reports no details. The same operators with the same names, computed in the same way, are
//           the same step
//   record  one computation of a step
//   run     one call that computes a graph
//
// The CPU backend records its steps. The records of a run follow one another without gaps. For
// other devices, a scheduler records its splits, and ggml_backend_graph_compute the graph. Such
// calls wait for the device while the thread uses a profile.
//
// Invariant: a profile takes all memory when it is made. Records beyond it are counted and dropped.
// A computation never fails because of its profile.
#ifndef GGML_PROFILE_H
#define GGML_PROFILE_H

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// cdef: begin

typedef struct ggml_profile * ggml_profile_t;

#define GGML_PROFILE_MAX_NODES 8  // described nodes of a step; the CPU backend fuses at most as many

struct ggml_profile_node {
    int type; // enum ggml_type
    int ndim;  // dimensions of the tensor
    int64_t ne[4];  // of the result at the first computation; it may differ from run to run
    char op[24]; // "MUL_MAT"; of UNARY the function: "GELU"
    char name[64]; // of the tensor
};

struct ggml_profile_step {
    char device[64];  // the scheduler's name for the device, or else the backend's own name
    // what was fused: "attention", "products", "product", "columns", "convolution", "rope", "rows";
    // "split": a split; "": one operator
    char fusion[16];
    char algorithm[32]; // of a product or a fused attention ("blocked_f32"); "" if there is only one
    char level[16];  // of the kernels; "" if not applicable
    // The matrix of the first product, or the first source of the first node if there is no
    // product.
    char source[64]; // its name
    int source_type; // enum ggml_type; -1: no source
    int n_nodes;  // all computed nodes, also those without a description
    struct ggml_profile_node nodes[GGML_PROFILE_MAX_NODES]; // in order
};

struct ggml_profile_record {
    uint32_t step, run; // numbers of the step and the run
    int64_t start_ns, end_ns; // on the clock of ggml_backend_sched_trace_event
    // Sums over all threads of the team: time spent waiting within the step or at its end, and time
    // of threads without a task in it.
    int64_t waiting_ns;
    // Lower bounds, from shapes and types. A multiplication and an addition are two operations; any
    // other result counts one operation per element. Each source is read once. Results that only
    // the step reads do not count.
    double flops, bytes_read, bytes_written;
    int32_t n_threads; // of the team that computed the graph
    int32_t n_tasks;  // threads with a task in the step
};

struct ggml_profile_run {
    int64_t start_ns, end_ns;  // end_ns 0: not over yet
    uint32_t thread;  // a number of the calling thread
    bool complete; // it did not fail and was not stopped
};

// Makes a profile with space for max_records records. 0: a million, which reserves 100 MB of addresses and uses memory
// only as records come. Returns NULL, with an error, if memory ran out or max_records is above 2^26.
GGML_API ggml_profile_t ggml_profile_new(size_t max_records);
// Threads that use the profile keep it until they use another one or none. NULL is allowed.
GGML_API void ggml_profile_free(ggml_profile_t profile);
// From now on the calling thread records its computations in this profile, or nowhere if profile is
// NULL. Computations of a user's function inside a recorded node are not recorded, because their time
// counts for the node. A thread must call this with NULL before it ends.
GGML_API enum ggml_status ggml_profile_use(ggml_profile_t profile);
GGML_API ggml_profile_t ggml_profile_in_use(void); // by the calling thread; NULL: none

// The entries so far. Any thread may call these at any time. Each function writes at most n entries
// (the array may be NULL if n is 0) from `first` on and returns their total number. -1 on failure.
GGML_API int64_t ggml_profile_get_steps(ggml_profile_t profile, struct ggml_profile_step * steps, size_t first,
    size_t n);
GGML_API int64_t ggml_profile_get_records(ggml_profile_t profile, struct ggml_profile_record * records, size_t first,
    size_t n);
GGML_API int64_t ggml_profile_get_runs(ggml_profile_t profile, struct ggml_profile_run * runs, size_t first, size_t n);
// Records that were dropped because the profile was full.
GGML_API uint64_t ggml_profile_n_dropped(ggml_profile_t profile);

// cdef: end

#ifdef __cplusplus
}
#endif

#endif // GGML_PROFILE_H
