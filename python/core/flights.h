// flights.h - runs in flight: a scheduler has started them, and nobody has waited for them yet.
//
// They are users of all that they need until they have landed. A user that enters one of these objects in a way that
// conflicts lands the run first, that is, waits for it; only inputs that were staged may be set meanwhile.
#ifndef GBPY_FLIGHTS_H
#define GBPY_FLIGHTS_H

#include "scheds.h"

// cdef: begin

// n results, each fetched to its own memory behind the run. `object`: kept until the run is complete. *id: of the run.
int  gbpy_sched_start(struct gbpy_handle * sched, struct gbpy_handle * graph, struct gbpy_run * run, uintptr_t object,
    struct ggml_tensor ** results, void ** to, int n, uint64_t * id, int * how);
int  gbpy_sched_wait(struct gbpy_handle * sched, uint64_t id);  // for this run. 0: for all
int  gbpy_sched_state(struct gbpy_handle * sched, uint64_t id); // 0: in flight, 1: complete, negative: failed
void gbpy_land_all(void);                                       // the interpreter ends: waits for all runs in flight

// cdef: end

#endif // GBPY_FLIGHTS_H
