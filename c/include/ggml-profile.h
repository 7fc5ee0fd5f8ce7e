// ggml-profile.h - how long each operator of a graph takes, and what it had to do: a record of what is computed.
// ggml-backend.h includes this header.
//
//     ggml_profile_t p = ggml_profile_new(0);
//     ggml_profile_use(p);
//     ggml_backend_sched_graph_compute(sched, graph); // or any other function that computes
//     ggml_profile_use(NULL);
//
// A profile belongs to no backend and no scheduler: what a thread computes while it uses one is recorded there.
//
//   step    what is computed at once: an operator, or several that the CPU backend fuses; a whole split where a device
//           does not tell more. The same operators of the same names, computed in the same way, are the same step
//   record  one time that a step was computed
//   run     one call that computes a graph
//
// The CPU backend records its steps. The records of a run follow one another: where one ends the next begins. Of every
// other device a scheduler records its splits, and ggml_backend_graph_compute the graph; while a thread uses a profile,
// such calls wait until the device is done.
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

#define GGML_PROFILE_MAX_NODES 8 // of a step that are described; the CPU backend fuses no more

struct ggml_profile_node {
    int type; // enum ggml_type
    int ndim; // dimensions that it was made with
    int64_t ne[4]; // of the result, when the step was first computed: it may differ from run to run
    char op[24]; // "MUL_MAT"; of UNARY the function: "GELU"
    char name[64]; // of the tensor
};

struct ggml_profile_step {
    char device[64]; // as the scheduler names it; else the backend's own name
    char fusion[16]; // "attention", "product", "rope", "rows": what was fused; "split": a split; "": one operator
    char algorithm[32]; // of a product or a fused attention ("blocked_f32"); "" if there is only one
    char level[16]; // of the kernels; "" where that means nothing
    // The matrix of the first product; where there is none, what the first node reads first.
    char source[64]; // its name
    int source_type; // enum ggml_type; -1: nothing is read
    int n_nodes; // all that it computes, also those that are not described
    struct ggml_profile_node nodes[GGML_PROFILE_MAX_NODES]; // in order
};

struct ggml_profile_record {
    uint32_t step, run; // by number
    int64_t start_ns, end_ns; // on the clock of ggml_backend_sched_trace_event
    // Of all threads of the team together: waiting for others, in the step or at its end, and without a part in it.
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
