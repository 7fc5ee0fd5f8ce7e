// team.h - the threads of one run and their shared state: the status of the run and its first
// failure. run.c sets up a team. Operators reach it through their gb_cpu_call (gb_cpu_barrier,
// gb_cpu_look and gb_cpu_fail in ops/ops.h).
#ifndef GB_CPU_TEAM_H
#define GB_CPU_TEAM_H

#include <stdatomic.h>

#include "base/status.h"
#include "cpu/cpu.h"
#include "cpu/ops/ops.h"

// Exists on the stack of the calling thread during one run. While the team has several threads,
// only the last one that arrives at a barrier writes `stop`, `leave` and `solo`. Threads read them
// only after the barrier.
struct gb_cpu_team {
    const struct gb_cpu_plan * plan; // the plan that run.c runs
    const struct gb_cpu_run * run;
    struct gb_cpu_pool * pool; // NULL when one thread runs alone
    void * work;               // aligned
    atomic_int claimed;        // a failure is being, or has been, written to halted and message
    // an enum ggml_status: the reason to stop; read between steps, and between pieces of long nodes
    atomic_int halted;
    bool stop;        // whether the run was halted when the last thread left the step
    bool leave;       // whether it was halted when the last thread reached the barrier in the node
    bool solo;        // from here on the caller computes alone
    bool held_up;     // the caller requests `solo`
    int64_t start_ns; // gb_time_ns() when the run began
    char message[GB_ERROR_SIZE];
    struct gb_cpu_stamps * stamps; // NULL: no profile
};

// Relaxed order is enough. Barriers order all decisions of the team. A thread between barriers that
// sees a halt late only does unneeded work.
static inline bool gb_cpu_team_is_halted(struct gb_cpu_team * team) {
    return atomic_load_explicit(&team->halted, memory_order_relaxed) != GGML_STATUS_SUCCESS;
}

// Calls the abort callback, which must not be NULL. Halts the run if the callback returns true.
void gb_cpu_team_ask(struct gb_cpu_team * team);

// The same if the run has an abort callback. One thread at a time may call it.
static inline void gb_cpu_team_poll_abort(struct gb_cpu_team * team) {
    if (team->run->abort_callback != NULL) {
        gb_cpu_team_ask(team);
    }
}

#endif // GB_CPU_TEAM_H
