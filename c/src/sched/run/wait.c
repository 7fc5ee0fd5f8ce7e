// wait.c - waits until no backend has work of the scheduler, and returns the status of the pending
// run.
//
// The wait finds failures of the run, failures of files that devices copied from, and a fork during
// the run. A cancelled wait (base/current.h) is a failure, too, and makes all backends drop their
// queued work.
#include <string.h>

#include "base/current.h"
#include "base/env.h"
#include "base/mapped.h"
#include "base/thread.h"
#include "sched/input/input.h"
#include "sched/memory/memory.h"
#include "sched/program/program.h"
#include "sched/run/run.h"
#include "sched/sched.h"

// Fails if a mapped file was cut short while devices copied from it. Reads of the host are checked
// by the backends.
enum ggml_status gb_sched_check_files(const struct gb_sched_binding * run) {
    for (size_t i = 0; gb_mapped_any() && i < run->program->copies.n; i++) {
        const struct ggml_tensor * source = run->in->ids.data[run->program->copies.data[i].root].tensor;
        if (run->program->copies.data[i].fill && source->data) {
            GB_TRY(gb_mapped_check_at("ggml_backend_sched", source->data));
        }
    }
    return GGML_STATUS_SUCCESS;
}

// A poll that always cancels.
static bool always(void * data) {
    (void) data;
    return true;
}

// A backend calls the thread's poll while it waits. So a poll that returns true cancels the
// backend's work.
enum ggml_status gb_sched_wait_for_backend(ggml_backend_t backend, bool cancel) {
    void * data;
    const gb_poll_fn poll = gb_get_poll(&data);
    if (cancel) {
        gb_set_poll(always, NULL);
    }
    const enum ggml_status status = ggml_backend_synchronize(backend);
    gb_set_poll(poll, data);
    return status;
}

// After a fork only the parent has the queues of devices, so the child does not get their results.
static enum ggml_status fail_after_fork(const struct ggml_backend_sched * s) {
    for (int b = 0; b < s->n_backends; b++) {
        GB_FAIL_IF(gb_sched_has_queue(s, b), GGML_STATUS_INVALID_STATE,
            "ggml_backend_sched: a run was pending when the process was forked; only the parent gets its results");
    }
    return GGML_STATUS_SUCCESS; // calls without a queue were complete when they returned
}

// Waits for all backends, even after a failure, so that the memory is unused afterwards. Returns
// the first failure; its message is saved before later backends overwrite it.
enum ggml_status gb_sched_wait(struct ggml_backend_sched * s) {
    if (!s->running) {
        const enum ggml_status earlier = s->earlier_failure;
        s->earlier_failure = GGML_STATUS_SUCCESS;
        return earlier == GGML_STATUS_SUCCESS ? earlier
               : earlier == GGML_STATUS_ABORTED
                   ? gb_fail_quietly(earlier, "ggml_backend_sched: the run was cancelled with a later one")
                   : gb_fail_quietly(earlier, "ggml_backend_sched: the run may be incomplete: "
                                              "another call reported a failure");
    }
    const int64_t start = s->n_backends > 1 || gb_sched_has_queue(s, 0) ? gb_time_ns() : 0;
    enum ggml_status first = GGML_STATUS_SUCCESS;
    int failing = 0;
    char message[GB_ERROR_SIZE / 2];
    for (int b = 0; b < s->n_backends; b++) {
        const enum ggml_status status = gb_sched_wait_for_backend(s->devices[b].backend, first == GGML_STATUS_ABORTED);
        if (status != GGML_STATUS_SUCCESS && first == GGML_STATUS_SUCCESS) {
            const size_t size = strlen(gb_last_message());
            memcpy(message, gb_last_message(), GB_MIN(size + 1, sizeof(message)));
            message[sizeof(message) - 1] = '\0';
            first = status;
            failing = b;
        }
    }
    if (first == GGML_STATUS_ABORTED) { // the user cancelled, so nothing is logged
        gb_fail_quietly(first, message);
    } else if (first != GGML_STATUS_SUCCESS) {
        gb_fail(first, "ggml_backend_sched: backend %s: %s", s->devices[failing].name, message);
    } else if (s->fork_generation != gb_fork_generation()) {
        first = fail_after_fork(s);
    }
    s->stats.wait_ns += start ? (uint64_t) (gb_time_ns() - start) : 0;
    if (first == GGML_STATUS_SUCCESS && s->pending) {
        first = gb_sched_check_files(s->pending);
    }
    s->running = false;
    s->pending = NULL;
    if (first != GGML_STATUS_SUCCESS) {
        gb_sched_forget_replicas(s);
    }
    return first;
}

// Callers may queue work of their own after a run, for example with ggml_backend_tensor_get_async.
// So this waits for the backends even if no run is pending.
enum ggml_status gb_sched_wait_for_callers(struct ggml_backend_sched * s) {
    const bool running = s->running;
    enum ggml_status first = gb_sched_wait(s);
    for (int b = 0; b < s->n_backends && !running; b++) {
        if (!s->devices[b].freed && gb_sched_has_queue(s, b)) {
            const enum ggml_status status = gb_sched_wait_for_backend(s->devices[b].backend, false);
            first = first == GGML_STATUS_SUCCESS ? status : first;
        }
    }
    return first;
}

// This call and the next wait both report the failure.
enum ggml_status gb_sched_wait_first(struct ggml_backend_sched * s) {
    if (!s->running) {
        return GGML_STATUS_SUCCESS;
    }
    const enum ggml_status status = gb_sched_wait(s);
    s->earlier_failure = status; // the caller who issued the run waits later
    return status;
}
