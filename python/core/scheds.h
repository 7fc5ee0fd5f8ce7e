// scheds.h - schedulers: planning and computing graphs, and their settings.
#ifndef GBPY_SCHEDS_H
#define GBPY_SCHEDS_H

#include "graphs.h"

// cdef: begin

int gbpy_open_sched(struct gbpy_handle * handle, struct gbpy_handle ** backends,
    struct ggml_backend_buffer_type ** bufts, int n);

// Bits of *how. PLANNED (out): plans were made since the last call that reported them. QUIET (in): do not report now.
enum { GBPY_PLANNED = 1, GBPY_QUIET = 2 };

// Gives tensors memory. GBPY_PLAN_ONLY: none, only decides.
enum gbpy_plan_how { GBPY_PLAN_ALLOCATE, GBPY_PLAN_ONLY, GBPY_PLAN_RESERVE };
int gbpy_sched_plan(struct gbpy_handle * sched, struct gbpy_handle * graph, int what, int * how);
int gbpy_sched_compute(struct gbpy_handle * sched, struct gbpy_handle * graph, struct gbpy_run * run,
    bool (*eval)(struct ggml_tensor *, bool, void *), void * eval_data, int * how);
int gbpy_sched_reset_stats(struct gbpy_handle * sched);
int gbpy_sched_reset(struct gbpy_handle * sched);
int gbpy_sched_close(struct gbpy_handle * sched); // gives memory back that nobody looks into; then as gbpy_close
// NULL: none
int gbpy_sched_set_backend(struct gbpy_handle * sched, struct gbpy_handle * context, struct ggml_tensor * node,
    struct gbpy_handle * backend);
int gbpy_sched_set_n_copies(struct gbpy_handle * sched, int n);
const char * gbpy_sched_device_name(const struct gbpy_handle * sched, int i); // as users see it: no two are the same
void gbpy_sched_keep_all(struct gbpy_handle * sched, bool keep); // all results of graphs that are planned from now on
// By the user of the scheduler: is its last plan the graph's? The second: and would it be planned again in the same
// way?
bool gbpy_sched_has_splits_of(const struct gbpy_handle * sched, const struct gbpy_handle * graph);
bool gbpy_sched_is_about(const struct gbpy_handle * sched, const struct gbpy_handle * graph);

// cdef: end

#endif // GBPY_SCHEDS_H
