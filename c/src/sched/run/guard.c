// guard.c - decides whether a call may use the scheduler now. No call may use it in the child of a
// fork that happened while another thread was inside, nor from the scheduler's own callback. After
// a backend was freed, the scheduler may not compute.
#include "base/thread.h"
#include "sched/run/run.h"
#include "sched/sched.h"

// In the child, data that another thread was changing is incomplete.
enum ggml_status gb_sched_check_whole(const struct ggml_backend_sched * s, const char * func) {
    GB_FAIL_IF(s->user_thread != 0 && s->user_thread != gb_thread_number() &&
                   s->user_fork_generation != gb_fork_generation(),
        GGML_STATUS_INVALID_STATE,
        "%s: another thread used the scheduler when the process was forked: only the parent process can use it", func);
    return GGML_STATUS_SUCCESS;
}

// Calls may nest: a callback may query the scheduler that runs it.
struct gb_visit gb_sched_enter(struct ggml_backend_sched * s) {
    const struct gb_visit before = { s->user_thread, s->user_fork_generation };
    s->user_fork_generation = gb_fork_generation();
    s->user_thread = gb_thread_number();
    return before;
}

enum ggml_status gb_sched_leave(struct ggml_backend_sched * s, struct gb_visit before, enum ggml_status status) {
    s->user_thread = before.outer;
    s->user_fork_generation = before.fork_generation;
    return status;
}

enum ggml_status gb_sched_check_idle(const struct ggml_backend_sched * s, const char * func) {
    GB_TRY(gb_sched_check_whole(s, func));
    GB_FAIL_IF(s->in_callback, GGML_STATUS_INVALID_STATE, "%s: called from the scheduler's own callback", func);
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_sched_check_backends(const struct ggml_backend_sched * s, const char * func) {
    for (int b = 0; b < s->n_backends; b++) {
        GB_FAIL_IF(s->devices[b].freed, GGML_STATUS_INVALID_STATE, "%s: backend %s was freed before its scheduler",
            func, s->devices[b].name);
    }
    return GGML_STATUS_SUCCESS;
}
