// graphs.h - computing graphs on one backend, and what every computation needs.
//
// A computation is one call. It takes locks (locks.h), plans if necessary, computes, and unlocks on every path. Each
// computation has its own state (gbpy_run). Callbacks find it on whatever thread they are called, because worker
// threads inherit gb_run (base/current.h). So several backends and threads may compute graphs with the same custom
// operator at once.
//
// The memory of a graph's tensors is found under the mutex, while no thread places tensors of its contexts. The
// result is cached until any tensor may have moved (gbpy_epoch_now). With locks on the owners of this memory, the
// tensors stay where they were seen.
#ifndef GBPY_GRAPHS_H
#define GBPY_GRAPHS_H

#include "content.h"

// cdef: begin

struct gbpy_stop {
    int stop;      // any thread may set it: the computation ends before its next node
    void * handle; // argument of `ask`; NULL: there is no `ask`
    bool (*ask)(void * handle);
    unsigned asked, stride; // polls skipped since the clock was read, and how many to skip; for the computing thread
    int64_t looked_ns, polled_ns; // when the clock was read last, and when the poll was called last
};

// A computation. Python owns the memory (ffi.new) and keeps it alive.
struct gbpy_run {
    const void * owner; // of its locks; must be the first field. A pending run that was issued owns its locks itself
    void * handle; // of the Python object
    int stopped; // 1: a callback raised an exception, 2: a callback asked to stop
};
void * gbpy_run_handle(void); // of the computation that this thread works for; NULL: none

// The stop flag must live as long as the backend.
int gbpy_open_backend(struct gbpy_handle * handle, const char * spec, struct gbpy_stop * stop);
void gbpy_stop(struct gbpy_handle * backend); // ends the computation that runs on it, if there is one
int gbpy_open_copy(struct gbpy_handle * handle, struct gbpy_handle * graph, struct gbpy_handle * backend);
// The C context of a copy's tensors that own memory, or that of its other tensors; NULL: there are none.
struct ggml_context * gbpy_copy_context(const struct gbpy_handle * copy, bool owners);

int gbpy_graph_compute(struct gbpy_handle * graph, struct gbpy_handle * backend, struct gbpy_run * run);
// Fails unless these tensors may be those of gbpy_graph_compute_in. Sets written[i]: the graph writes tensor i.
int gbpy_graph_check_lent(struct gbpy_handle * graph, struct ggml_tensor ** tensors, bool * written, int n);
// Computes while tensors without memory of their own lie in memory of the caller: tensor i at data[i]. The tensors
// passed gbpy_graph_check_lent, and the memory has their size. Afterwards they have no memory again.
int gbpy_graph_compute_in(struct gbpy_handle * graph, struct gbpy_handle * backend, struct ggml_tensor ** tensors,
    void ** data, int n);
// Sets *reach to whether the backend can compute on all memory that the graph uses.
int gbpy_graph_is_within_reach(struct gbpy_handle * graph, struct gbpy_handle * backend, bool * reach);
// Computes node by node on two backends, and calls `see` with each pair of results.
int gbpy_graph_compare(struct gbpy_handle * graph, struct gbpy_handle * first, struct gbpy_handle * second,
    struct gbpy_run * run, bool (*see)(int, struct ggml_tensor *, struct ggml_tensor *, void *), void * data);

int gbpy_graph_dump_dot(struct gbpy_handle * graph, const char * path); // Graphviz, with the values of small leafs

// cdef: end

// Locks `first` and the memory of the graph's tensors. `places`: also locks its contexts to place tensors. Otherwise
// it is an error if a tensor has no memory.
int gbpy_lock_graph(struct gbpy_locks * locks, struct gbpy_graph * graph, const struct gbpy_request * first, int n,
    bool places, const char * what);
// Under the mutex: the fast path of gbpy_lock_graph, for memory that was found as of `epoch`. False: a lock
// conflicts, or tensors may have moved. Then call gbpy_lock_graph.
bool gbpy_try_lock_graph(struct gbpy_locks * locks, const struct gbpy_request * first, int n,
    const gbpy_requests * owners, long long epoch);
// Under the mutex, while nobody places tensors of the graph's contexts: finds the memory of its tensors.
int gbpy_look_at_graph(struct gbpy_graph * graph, const char * what);
// With locks on the memory: an error if an input in memory that was allocated for this graph was not set.
int gbpy_check_inputs(const struct ggml_cgraph * graph, const char * what);

// Call these two around a computation, with a lock on the backend.
void gbpy_begin_stop(struct gbpy_backend * backend);
void gbpy_end_stop(struct gbpy_backend * backend);
bool gbpy_may_be_cancelled(const struct gbpy_backend * backend); // an interrupt may have cancelled work in its queue
int gbpy_outcome_of(const struct gbpy_run * run, int status);

// Notes that a run that began with this version of the inputs has computed the graph, or that its results are
// invalid. Call the first two under the mutex.
void gbpy_note_results(struct gbpy_graph * graph, long long version);
void gbpy_forget_results(struct gbpy_graph * graph, long long unused);
void gbpy_forget_results_now(struct gbpy_graph * graph);

#endif // GBPY_GRAPHS_H
