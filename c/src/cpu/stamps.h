// stamps.h - when the threads of a run came to its steps and left them, for the profile that the calling thread uses
// (backend/profile.h). A run without a profile has no stamps (NULL).
//
// Invariant: while the team runs, each thread writes only what is its own; all of it is read when the run is over.
#ifndef GB_CPU_STAMPS_H
#define GB_CPU_STAMPS_H

#include <stdint.h>

#include "cpu/plan.h"

struct gb_cpu_stamps {
    int n_threads;     // there is room for
    int nth;           // of the team, as thread 0 saw it
    int64_t end;       // of the run
    int64_t * begin;   // per step of the plan: when thread 0 came to it; 0: the run did not take it
    int64_t * job_end; // per job of a step of one thread: when it was done
    int64_t * worked;  // per thread and step: nanoseconds in it, without waits for others
    int64_t * waited;  // per thread, on a cache line of its own: in barriers of the step that it is in
};

enum { GB_CPU_STAMPS_APART = 64 / sizeof(int64_t) }; // from a thread's `waited` to the next one's

// NULL: the thread uses no profile, or there is no memory, which the profile notes.
struct gb_cpu_stamps * gb_cpu_stamps_new(const struct gb_cpu_plan * plan);
// Adds what the steps took to the profile, and frees the stamps; NULL is fine. Of a run that was not complete the last
// step is left out.
void gb_cpu_stamps_end(struct gb_cpu_stamps * stamps, const struct gb_cpu_plan * plan, const struct gb_cpu_run * run,
    bool complete);

#endif // GB_CPU_STAMPS_H
