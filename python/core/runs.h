// runs.h - computing: graphs on one backend, graphs by a scheduler, and runs on their way.
//
// A computation is one call: it enters what it uses (objects.h), plans if it has to, computes, and leaves, whatever happens. Its state is its own
// (gbpy_run), and is found by callbacks on whatever thread they are called: gb_run goes along (base/current.h). So a custom operator may be
// in graphs that several backends and threads compute at once.
//
// A run on its way (started and not waited for) goes on using what it uses. Whoever enters one of these objects in a way that conflicts lands
// it first, that is, waits for it; only inputs that were staged may be set meanwhile.
#ifndef GBPY_RUNS_H
#define GBPY_RUNS_H

#include "data.h"

// cdef: begin

struct gbpy_stop {
    int    stop;   // set by anybody: the computation ends before its next node
    void * handle; // NULL, or what `ask` is called with
    bool (*ask)(void * handle);
    unsigned asked, stride; // how often the poll was not asked since the clock was looked at; only by who computes
    int64_t  last_ns;
};

// A computation. In memory of Python (ffi.new) that lives as long as it.
struct gbpy_run {
    const void * who;    // set by who computes
    void *       handle; // of the Python object
    int          stopped; // 1: by an exception of a callback, 2: because a callback wanted it
};
void * gbpy_run_handle(void); // of the computation that this thread works for; NULL: none

int  gbpy_open_backend(struct gbpy_handle * handle, const char * spec, struct gbpy_stop * stop); // the stop flag lives as long as the backend
void gbpy_stop(struct gbpy_handle * backend); // ends what it computes, if it does
int  gbpy_open_sched(struct gbpy_handle * handle, struct gbpy_handle ** backends, struct ggml_backend_buffer_type ** bufts, int n);
int  gbpy_open_copy(struct gbpy_handle * handle, struct gbpy_handle * graph, struct gbpy_handle * backend);

int gbpy_graph_compute(struct gbpy_handle * graph, struct gbpy_handle * backend, struct gbpy_run * run);
// Does all that the graph's tensors lie in belong to what the backend can compute on?
bool gbpy_graph_is_within_reach(struct gbpy_handle * graph, struct gbpy_handle * backend);
// Node by node on two backends; `see` is told of each pair of results.
int gbpy_graph_compare(struct gbpy_handle * graph, struct gbpy_handle * first, struct gbpy_handle * second, struct gbpy_run * run, bool (*see)(int, struct ggml_tensor *, struct ggml_tensor *, void *), void * data);

enum { GBPY_PLANNED = 1, GBPY_QUIET = 2 }; // bits of *how: plans were made since who asked was told last; it is not to be told now

// Gives tensors memory. GBPY_PLAN_ONLY: none, only decides.
enum gbpy_plan_how { GBPY_PLAN_ALLOCATE, GBPY_PLAN_ONLY, GBPY_PLAN_RESERVE };
int gbpy_sched_plan(struct gbpy_handle * sched, struct gbpy_handle * graph, int what, int * how);
int gbpy_sched_compute(struct gbpy_handle * sched, struct gbpy_handle * graph, struct gbpy_run * run, bool (*eval)(struct ggml_tensor *, bool, void *), void * eval_data, int * how);
// n results, each fetched to its own memory behind the run. `object`: kept until the run is complete. *id: of the run.
int gbpy_sched_start(struct gbpy_handle * sched, struct gbpy_handle * graph, struct gbpy_run * run, uintptr_t object, struct ggml_tensor ** results, void ** to, int n, uint64_t * id, int * how);
int gbpy_sched_wait(struct gbpy_handle * sched, uint64_t id); // for this run. 0: for all
int gbpy_sched_state(struct gbpy_handle * sched, uint64_t id); // 0: on its way, 1: complete, negative: failed
int gbpy_sched_reset_stats(struct gbpy_handle * sched);
int gbpy_sched_reset(struct gbpy_handle * sched);
int gbpy_sched_close(struct gbpy_handle * sched); // gives memory back that nobody looks into; then as gbpy_close
int gbpy_sched_set_backend(struct gbpy_handle * sched, struct gbpy_handle * context, struct ggml_tensor * node, struct gbpy_handle * backend); // NULL: none
int gbpy_sched_set_n_copies(struct gbpy_handle * sched, int n);
void gbpy_sched_keep_all(struct gbpy_handle * sched, bool keep); // all results of graphs that are planned from now on
void gbpy_land_all(void); // the interpreter ends: waits for all runs on their way
bool gbpy_sched_is_flying(const struct gbpy_handle * sched);
// For callbacks, while the computation goes on: keeps the memory in which `t` lies, or that of `otherwise`, for an array.
void gbpy_pin(struct gbpy_handle * pin, const struct ggml_tensor * t, const struct gbpy_handle * otherwise);
bool gbpy_sched_is_about(const struct gbpy_handle * sched, const struct gbpy_handle * graph); // its last plan; by who uses the scheduler

// cdef: end

#endif // GBPY_RUNS_H
