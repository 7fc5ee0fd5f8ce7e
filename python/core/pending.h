// pending.h - runs in flight: a scheduler has started them, and nobody has waited for them yet.
//
// They are users of all that they need until they have landed. A user that enters one of these objects in a way that
// conflicts lands the run first, that is, waits for it; only inputs that were staged may be set meanwhile.
#ifndef GBPY_PENDING_H
#define GBPY_PENDING_H

#include "scheds.h"

// cdef: begin

// The outcome of a run in flight. Python owns the memory; the run and its Pending keep it alive.
struct gbpy_run_outcome {
    int state;         // 0: in flight, 1: complete, negative: failed; under the lock
    int status;        // of the failure, until it was reported; 0: it was, or the run was stopped
    char message[512]; // of the failure
    uint32_t starter;  // thread that has started it (gb_thread_number)
    bool held;         // by a Pending, which will report its failure
};

// n results, each fetched to its own memory behind the run. `object`: kept until the run is complete. It keeps the
// outcome and the run.
int gbpy_sched_start(struct gbpy_handle * sched, struct gbpy_handle * graph, struct gbpy_run * run, uintptr_t object,
    struct ggml_tensor ** results, void ** to, int n, struct gbpy_run_outcome * outcome, int * how);
// Waits for this run, and returns its failure. NULL: waits for all runs, and returns a failure that no Pending will
// report.
int gbpy_sched_wait(struct gbpy_handle * sched, struct gbpy_run_outcome * outcome);
int gbpy_run_state(const struct gbpy_run_outcome * outcome);
// Waits for all runs and keeps a failure for gbpy_sched_wait. The caller holds the scheduler and its backends.
int gbpy_sched_finish(struct gbpy_handle * sched);
void gbpy_finish_all_runs(void); // the interpreter ends: waits for all runs in flight

// cdef: end

#endif // GBPY_PENDING_H
