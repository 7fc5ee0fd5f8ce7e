// ggml-profile.h - profiles record the time and the work of each operator. ggml-backend.h includes this header.
//
//     ggml_profile_t p = ggml_profile_new(0);
//     ggml_profile_use(p);
//     ggml_backend_sched_graph_compute(sched, graph); // or any other function that computes
//     ggml_profile_use(NULL);
//
// A profile belongs to no backend or scheduler. It records what a thread computes while the thread uses it.
//
//   step    a unit of work: an operator, several operators that the CPU backend fuses, or a whole split of a device
//           without finer records. Equal operators with equal names and algorithms are one step
//   record  one execution of a step
//   run     one call that computes a graph
//
// The CPU backend records its steps. Each record of a run begins where the one before it ends. For other devices a
// scheduler records splits, and ggml_backend_graph_compute the whole graph. While a thread uses a profile, these calls
// wait for the device.
//
// Invariant: a profile takes all memory when it is made. Records beyond it are counted and dropped. A computation never
// fails because of its profile.
#ifndef GGML_PROFILE_H
#define GGML_PROFILE_H

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// cdef: begin

typedef struct ggml_profile * ggml_profile_t;

#define GGML_PROFILE_MAX_NODES 8 // described nodes of a step; the CPU backend fuses no more

struct ggml_profile_node {
    int type; // enum ggml_type
    int ndim; // number of dimensions
    int64_t ne[4]; // shape of the result in the first run; it may differ in later runs
    char op[24]; // "MUL_MAT"; of UNARY the function: "GELU"
    char name[64]; // of the tensor
};

struct ggml_profile_step {
    char device[64]; // name in the scheduler, or else of the backend
    char fusion[16]; // "attention", "product", "rope", "rows": what was fused; "split": a split; "": one operator
    char algorithm[32]; // of a product or a fused attention ("blocked_f32"); "" if there is only one
    char level[16]; // level of the kernels; "" on devices without levels
    // The matrix of the first product; without a product, the first source of the first node.
    char source[64]; // its name
    int source_type; // enum ggml_type; -1: nothing is read
    int n_nodes; // number of nodes, described or not
    struct ggml_profile_node nodes[GGML_PROFILE_MAX_NODES]; // in order
};

struct ggml_profile_record {
    uint32_t step, run; // by number
    int64_t start_ns, end_ns; // on the clock of ggml_backend_sched_trace_event
    // Sums over all threads of the team: waiting in the step or at its end, and time without work in it.
    int64_t waiting_ns;
    // Lower bounds, from shapes and types. A multiplication and an addition are two operations, an element of any other
    // result is one. Each source is read once. Results that only the step itself reads do not count.
    double flops, bytes_read, bytes_written;
    int32_t n_threads; // of the team that computed the graph
    int32_t n_tasks; // threads among these that had a part in the step
};

struct ggml_profile_run {
    int64_t start_ns, end_ns; // end_ns 0: not over yet
    uint32_t thread; // a number of the thread that called
    bool complete; // it did not fail and was not stopped
};

// Room for max_records records; 0: a million, which take 100 MB of addresses, and memory as they come. NULL and
// reported: no memory, or more than 2^26.
GGML_API ggml_profile_t ggml_profile_new(size_t max_records);
// Threads that use it keep it until they use another or none. NULL is fine.
GGML_API void ggml_profile_free(ggml_profile_t profile);
// From now on the calling thread records what it computes; NULL: nothing. Not what functions of the user's compute in a
// node that is being recorded: their time is the node's. A thread uses none any more before it ends.
GGML_API enum ggml_status ggml_profile_use(ggml_profile_t profile);
GGML_API ggml_profile_t ggml_profile_in_use(void); // by the calling thread; NULL: none

// What was recorded so far. Any thread may ask, at any time. Each function writes at most n of them (they may be NULL
// if n is 0) from `first` on and returns how many there are in all; -1 on failure.
GGML_API int64_t ggml_profile_get_steps(ggml_profile_t profile, struct ggml_profile_step * steps, size_t first,
    size_t n);
GGML_API int64_t ggml_profile_get_records(ggml_profile_t profile, struct ggml_profile_record * records, size_t first,
    size_t n);
GGML_API int64_t ggml_profile_get_runs(ggml_profile_t profile, struct ggml_profile_run * runs, size_t first, size_t n);
// Records that found no place.
GGML_API uint64_t ggml_profile_n_dropped(ggml_profile_t profile);

// cdef: end

#ifdef __cplusplus
}
#endif

#endif // GGML_PROFILE_H
