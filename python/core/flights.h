// flights.h - runs on their way: started by a scheduler and not waited for.
//
// They go on using what they use. Whoever enters one of these objects in a way that conflicts lands them first, that
// is, waits for them; only inputs that were staged may be set meanwhile.
#ifndef GBPY_FLIGHTS_H
#define GBPY_FLIGHTS_H

#include "scheds.h"

// cdef: begin

// n results, each fetched to its own memory behind the run. `object`: kept until the run is complete. *id: of the run.
int  gbpy_sched_start(struct gbpy_handle * sched, struct gbpy_handle * graph, struct gbpy_run * run, uintptr_t object,
    struct ggml_tensor ** results, void ** to, int n, uint64_t * id, int * how);
int  gbpy_sched_wait(struct gbpy_handle * sched, uint64_t id);  // for this run. 0: for all
int  gbpy_sched_state(struct gbpy_handle * sched, uint64_t id); // 0: on its way, 1: complete, negative: failed
void gbpy_land_all(void);                                       // the interpreter ends: waits for all runs on their way

// cdef: end

#endif // GBPY_FLIGHTS_H
