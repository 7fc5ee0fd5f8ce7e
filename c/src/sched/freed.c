// freed.c - backends that their owner frees before the scheduler.
//
// That is against the rules of the API, and easily done: so it is no crash but an error. While the backend still works,
// everything queued is waited for and what holds on to it (events, prepared graphs) is given back; then an object that
// can only say its name stands in its place. Graphs cannot be computed any more; results are there, and everything may
// be asked, reset and freed.
#include "sched/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"

static const char * GGML_CALL name_of(ggml_backend_t backend) { return backend->context; }

static bool GGML_CALL supports_nothing(ggml_backend_t backend, const struct ggml_tensor * op) {
    (void) backend;
    (void) op;
    return false;
}

static void is_gone(struct gb_backend_watch * watch) {
    struct gb_sched_device * d = (struct gb_sched_device *) ((char *) watch - offsetof(struct gb_sched_device, watch));
    struct ggml_backend_sched * s = d->sched;
    // then each step is complete before the next, and the run ends when the callback returns
    if (!s->in_callback) {
        gb_sched_wait(s); // a failure has been reported
    }
    gb_sched_disarm_plans(s);
    gb_trace_disarm(s->trace);
    d->freed = d->backend;
    d->placeholder =
        (struct ggml_backend){ .iface = { .get_name = name_of, .supports_op = supports_nothing }, .context = d->name };
    d->backend = &d->placeholder;
}

static bool is_taken(const struct ggml_backend_sched * s, int b, const char * name) {
    for (int i = 0; i < s->n_backends; i++) {
        if (i != b && strcmp(name, i < b ? s->devices[i].name : ggml_backend_name(s->devices[i].backend)) == 0) {
            return true;
        }
    }
    return false;
}

static void name_device(struct ggml_backend_sched * s, int b) {
    struct gb_sched_device * d     = &s->devices[b];
    const char *             own   = ggml_backend_name(d->backend);
    bool                     first = true;
    snprintf(d->name, sizeof(d->name), "%s", own);
    for (int i = 0; i < b && first; i++) {
        first = strcmp(d->name, s->devices[i].name) != 0;
    }
    for (int n = 1; !first && is_taken(s, b, d->name); n++) { // at most once for each device
        snprintf(d->name, sizeof(d->name), "%.*s%d", (int) sizeof(d->name) - 12, own, n);
    }
}

void gb_sched_watch(struct ggml_backend_sched * s) {
    for (int b = 0; b < s->n_backends; b++) {
        struct gb_sched_device * d = &s->devices[b];
        d->sched                   = s;
        d->watch.gone              = is_gone;
        name_device(s, b);
        gb_backend_watch(&d->watch, d->backend);
    }
}

void gb_sched_unwatch(struct ggml_backend_sched * s) {
    for (int b = 0; b < s->n_backends; b++) {
        gb_backend_unwatch(&s->devices[b].watch);
    }
}
