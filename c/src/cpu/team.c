// team.c - what operators need of a run: barriers, whether the run is over, and a place for the first failure.
//
// Invariant: whether to go on behind a barrier is decided once, by the last thread to arrive, and seen by all: a failed
// or aborted run never leaves a thread waiting at a barrier that the others skip.
#include "cpu/team.h"

#include <stdarg.h>
#include <stdio.h>

#include "cpu/threadpool.h"
#include "tensor/tensor.h"

// A first failure stays: abortion counts only if the run was going on. What the callback itself let fail is forgotten.
void gb_cpu_team_ask(struct gb_cpu_team * team) {
    int            going  = GGML_STATUS_SUCCESS;
    const uint64_t before = gb_fail_count();
    const bool     abort  = team->run->abort_callback(team->run->abort_data);
    gb_forget_failures_since(before);
    if (abort) {
        atomic_compare_exchange_strong(&team->halted, &going, GGML_STATUS_ABORTED);
    }
}

// The slow path of gb_cpu_stopped, once in about GB_CPU_PACE nanoseconds of work.
bool gb_cpu_look(const struct gb_cpu_call * call) {
    if (call->pace->asks && !gb_cpu_team_is_halted(call->team)) {
        gb_cpu_team_poll_abort(call->team);
    }
    const bool halted = gb_cpu_team_is_halted(call->team);
    call->pace->left  = halted ? -1 : GB_CPU_PACE;
    return halted;
}

// Called by the last thread to arrive at a barrier inside a node, while the others wait.
static void decide_in_node(void * arg) {
    struct gb_cpu_team * team = arg;
    team->leave               = gb_cpu_team_is_halted(team);
}

bool gb_cpu_barrier(const struct gb_cpu_call * call) {
    if (call->nth == 1) {
        return !gb_cpu_team_is_halted(call->team);
    }
    gb_cpu_pool_meet(call->team->pool, GB_CPU_MEET_NODE, call->nth, decide_in_node, call->team);
    return !call->team->leave;
}

// The exchange of `claimed` makes one thread the owner of `message`; `halted` is set after it, so that who reads the
// message after the run finds it whole.
void gb_cpu_fail(const struct gb_cpu_call * call, const struct ggml_tensor * node, enum ggml_status status,
    const char * fmt, ...) {
    struct gb_cpu_team * team  = call->team;
    int                  first = 0;
    if (!atomic_compare_exchange_strong(&team->claimed, &first, 1)) {
        return;
    }
    char    text[GB_ERROR_SIZE / 2], what[GB_ERROR_SIZE / 2];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    snprintf(team->message, sizeof(team->message), "CPU: %s: %s", gb_describe_node(node, text, sizeof(text)), what);
    atomic_store(&team->halted, status != GGML_STATUS_SUCCESS ? status : GGML_STATUS_FAILED);
}
