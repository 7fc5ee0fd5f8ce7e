// team.h - the threads of one run and what they agree on: whether to go on, and why not. run.c sets a team up and
// drives it; operators reach it through their gb_cpu_call (gb_cpu_barrier, gb_cpu_look, gb_cpu_fail in ops/ops.h).
#ifndef GB_CPU_TEAM_H
#define GB_CPU_TEAM_H

#include <stdatomic.h>

#include "base/status.h"
#include "cpu/cpu.h"
#include "cpu/ops/ops.h"

// Lives on the stack of the calling thread for the length of one run. `stop`, `leave` and `solo` are written only by
// the last thread to arrive at a meeting, and read only behind it.
struct gb_cpu_team {
    const struct gb_cpu_plan * plan; // of run.c
    const struct gb_cpu_run * run;
    struct gb_cpu_pool * pool; // NULL when one thread runs alone
    void * work;               // aligned
    atomic_int claimed;        // a failure is being, or has been, written to halted and message
    // an enum ggml_status: why not to go on; read between steps, and between pieces of long nodes
    atomic_int halted;
    bool stop;        // halted as it was when the last thread left the step
    bool leave;       // halted as it was when the last thread came to the barrier inside the node
    bool solo;        // from here on the caller computes alone
    bool held_up;     // the caller asks for that
    int64_t start_ns; // gb_time_ns() when the run began
    char message[GB_ERROR_SIZE];
    struct gb_cpu_stamps * stamps; // when threads come and go; NULL: nobody wants to know
};

// Relaxed is enough: the meetings order what threads must agree on; between them late news only costs work.
static inline bool gb_cpu_team_is_halted(struct gb_cpu_team * team) {
    return atomic_load_explicit(&team->halted, memory_order_relaxed) != GGML_STATUS_SUCCESS;
}

// Asks the abort callback, which the run has, whether to go on.
void gb_cpu_team_ask(struct gb_cpu_team * team);

// The same where there may be none. Called by one thread at a time.
static inline void gb_cpu_team_poll_abort(struct gb_cpu_team * team) {
    if (team->run->abort_callback != NULL) {
        gb_cpu_team_ask(team);
    }
}

#endif // GB_CPU_TEAM_H
