// graphs.h - computing graphs on one backend, and what every computation needs.
//
// A computation is one call: it enters what it uses (locks.h), plans if it has to, computes, and leaves, whatever
// happens. Its state is its own (gbpy_run), and is found by callbacks on whatever thread they are called: gb_run goes
// along (base/current.h). So a custom operator may be in graphs that several backends and threads compute at once.
//
// What a graph's tensors lie in is looked up under the lock while nobody places tensors of its contexts, and is
// remembered until tensors may have moved anywhere (gbpy_epoch_now). A user of these owners finds the tensors where
// they were seen: nobody places what somebody uses.
#ifndef GBPY_GRAPHS_H
#define GBPY_GRAPHS_H

#include "content.h"

// cdef: begin

struct gbpy_stop {
    int stop;      // set by anybody: the computation ends before its next node
    void * handle; // NULL, or what `ask` is called with
    bool (*ask)(void * handle);
    unsigned asked, stride; // how often the poll was skipped since the clock was read; only the computing thread counts
    int64_t looked_ns, polled_ns; // when the clock was read, and the poll called
};

// A computation. In memory of Python (ffi.new) that lives as long as it.
struct gbpy_run {
    const void * owner; // the first field: set by who computes; of a run in flight, once it is issued, the run itself
    void * handle; // of the Python object
    int stopped; // 1: by an exception of a callback, 2: because a callback wanted it
};
void * gbpy_run_handle(void); // of the computation that this thread works for; NULL: none

// the stop flag lives as long as the backend
int gbpy_open_backend(struct gbpy_handle * handle, const char * spec, struct gbpy_stop * stop);
void gbpy_stop(struct gbpy_handle * backend); // ends what it computes, if it does
int gbpy_open_copy(struct gbpy_handle * handle, struct gbpy_handle * graph, struct gbpy_handle * backend);
// The contexts of a copy's tensors: of those that own memory, and of all others; NULL: there are none.
struct ggml_context * gbpy_copy_context(const struct gbpy_handle * copy, bool owners);

int gbpy_graph_compute(struct gbpy_handle * graph, struct gbpy_handle * backend, struct gbpy_run * run);
// Does all that the graph's tensors lie in belong to what the backend can compute on?
int gbpy_graph_is_within_reach(struct gbpy_handle * graph, struct gbpy_handle * backend, bool * reach);
// Node by node on two backends; `see` is told of each pair of results.
int gbpy_graph_compare(struct gbpy_handle * graph, struct gbpy_handle * first, struct gbpy_handle * second,
    struct gbpy_run * run, bool (*see)(int, struct ggml_tensor *, struct ggml_tensor *, void *), void * data);

int gbpy_graph_dump_dot(struct gbpy_handle * graph, const char * path); // Graphviz, with the values of small leafs

// cdef: end

// Enters `first` and what the graph's tensors lie in; with `places` also its contexts, to give tensors memory, else it
// is an error if one has none.
int gbpy_lock_graph(struct gbpy_locks * locks, struct gbpy_graph * graph, const struct gbpy_request * first, int n,
    bool places, const char * what);
// Under the lock. The usual case: owners that were seen as of `epoch`, that nobody else uses now. False:
// gbpy_lock_graph does it.
bool gbpy_try_lock_graph(struct gbpy_locks * locks, const struct gbpy_request * first, int n,
    const gbpy_requests * owners, long long epoch);
// Under the lock, while nobody places tensors of the graph's contexts.
int gbpy_look_at_graph(struct gbpy_graph * graph, const char * what);
// By a user of the owners: an error if an input in memory that was given for this graph was not set.
int gbpy_check_inputs(const struct ggml_cgraph * graph, const char * what);

// The beginning and the end of a computation, by the user of the backend.
void gbpy_begin_stop(struct gbpy_backend * backend);
void gbpy_end_stop(struct gbpy_backend * backend);
bool gbpy_may_be_cancelled(const struct gbpy_backend * backend); // work in its queue, by an interrupt
int gbpy_outcome_of(const struct gbpy_run * run, int status);

// The results of a graph are those of a run that began with this version of the inputs, or nobody's. The first two
// under the lock.
void gbpy_note_results(struct gbpy_graph * graph, long long version);
void gbpy_forget_results(struct gbpy_graph * graph, long long unused);
void gbpy_forget_results_now(struct gbpy_graph * graph);

#endif // GBPY_GRAPHS_H
