// freed.c - reacts to backends that their owner frees before the scheduler.
//
// The API forbids this order, but it happens easily. So it is an error and not a crash. While the
// backend still works, the scheduler waits for all queued work and frees its events and graph
// plans. Then a placeholder that only has a name replaces the backend. Graphs cannot be computed
// any more. Results stay valid, and the scheduler can be queried, reset and freed.
#include "sched/plan.h"

static const char * GGML_CALL name_of(ggml_backend_t backend) { return backend->context; }

// The placeholder supports no node, so a new plan fails with a message.
static bool GGML_CALL supports_nothing(ggml_backend_t backend, const struct ggml_tensor * op) {
    (void) backend;
    (void) op;
    return false;
}

// Runs while the backend still works, without locks.
static void is_freed(struct gb_backend_watch * watch) {
    struct gb_sched_device * d = (struct gb_sched_device *) ((char *) watch - offsetof(struct gb_sched_device, watch));
    struct ggml_backend_sched * s = d->sched;
    // Within a callback each step is complete before the next, and the run ends when the callback
    // returns.
    if (!s->in_callback) {
        gb_sched_wait(s); // reports failures itself
    }
    gb_sched_disarm_plans(s);
    gb_trace_disarm(s->trace);
    d->freed = d->backend;
    d->placeholder =
        (struct ggml_backend){ .iface = { .get_name = name_of, .supports_op = supports_nothing }, .context = d->name };
    d->backend = &d->placeholder;
}

void gb_sched_watch(struct ggml_backend_sched * s) {
    for (int b = 0; b < s->n_backends; b++) {
        struct gb_sched_device * d = &s->devices[b];
        d->sched = s;
        d->watch.on_free = is_freed;
        gb_backend_watch(&d->watch, d->backend);
    }
}

void gb_sched_unwatch(struct ggml_backend_sched * s) {
    for (int b = 0; b < s->n_backends; b++) {
        gb_backend_unwatch(&s->devices[b].watch);
    }
}
