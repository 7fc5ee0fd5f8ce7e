// stamps.h - the times at which the threads of a run start and end its steps. They go into the
// profile of the calling thread (backend/profile.h). A run without a profile has no stamps (NULL).
//
// Invariant: each thread writes only its own stamps. They are read after the run.
#ifndef GB_CPU_STAMPS_H
#define GB_CPU_STAMPS_H

#include <stdint.h>

#include "cpu/plan.h"

struct gb_cpu_stamps {
    int n_threads;     // capacity
    int nth;           // threads of the team, as thread 0 saw it
    int64_t end;       // of the run
    int64_t * begin;   // per step: time when thread 0 began it; 0: the run did not execute it
    int64_t * job_end; // per job of a step of one thread: time when it ended
    int64_t * worked;  // per thread and step: nanoseconds in it, without waits for other threads
    int64_t * waited;  // per thread, on separate cache lines: ns in barriers of the current step
};

enum { GB_CPU_STAMPS_APART = 64 / sizeof(int64_t) }; // from a thread's `waited` to the next one's

// NULL if the thread uses no profile, or if memory runs out. In the second case the profile counts
// the lost records.
struct gb_cpu_stamps * gb_cpu_stamps_new(const struct gb_cpu_plan * plan);
// Adds the times of the steps to the profile, and frees the stamps. NULL is allowed. If the run was
// not complete, its last step is left out.
void gb_cpu_stamps_end(struct gb_cpu_stamps * stamps, const struct gb_cpu_plan * plan, const struct gb_cpu_run * run,
    bool complete);

#endif // GB_CPU_STAMPS_H
