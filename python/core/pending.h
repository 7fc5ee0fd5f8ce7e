// pending.h - pending runs: a scheduler has started them, and nobody has waited for them yet.
//
// A pending run keeps its locks until it is finished. A call whose locks conflict waits for the run first. Only
// staged inputs may be set while it is pending.
#ifndef GBPY_PENDING_H
#define GBPY_PENDING_H

#include "scheds.h"

// cdef: begin

// The outcome of a run. Python owns the memory; the run and its Pending keep it alive.
struct gbpy_run_outcome {
    int state;         // 0: pending, 1: complete, negative: failed; under the mutex
    int status;        // of a failure that was not reported yet; 0: it was reported, or the run was stopped
    char message[512]; // of the failure
    uint32_t starter;  // thread that started it (gb_thread_number)
    bool held;         // a Pending holds it and will report its failure
};

// Starts a run. Fetches n results, each to its own memory, after the run. `object` (its id) keeps the outcome and the
// run and is itself kept until the run is complete.
int gbpy_sched_start(struct gbpy_handle * sched, struct gbpy_handle * graph, struct gbpy_run * run, uintptr_t object,
    struct ggml_tensor ** results, void ** to, int n, struct gbpy_run_outcome * outcome, int * how);
// Waits for this run and returns its failure. NULL: waits for all runs and returns a failure that no Pending will
// report.
int gbpy_sched_wait(struct gbpy_handle * sched, struct gbpy_run_outcome * outcome);
int gbpy_run_state(const struct gbpy_run_outcome * outcome);
// Waits for all runs and keeps a failure for gbpy_sched_wait. The caller has locked the scheduler and its backends.
int gbpy_sched_finish(struct gbpy_handle * sched);
void gbpy_finish_all_runs(void); // of all schedulers, when the interpreter ends

// cdef: end

#endif // GBPY_PENDING_H
