// event.c - events in the queue of a backend, which the host and other backends can wait for.
//
// A backend may have its own events. For backends without events: without a synchronize hook, every
// call is complete when it returns, so an event is always complete. With a queue, waiting for an
// event waits for the whole queue, which may be longer than needed.
#include "backend/backend.h"
#include "base/mem.h"

// A backend that lacks one of the hooks counts as having no events.
static bool has_events(const struct ggml_backend * backend) {
    const struct ggml_backend_i * hooks = &backend->iface;
    return hooks->event_new && hooks->event_free && hooks->event_record && hooks->event_wait &&
           hooks->event_synchronize;
}

// Both backends must be of one kind, because the hook reads the other's event.
bool gb_backend_waits_for(ggml_backend_t backend, ggml_backend_t other) {
    return has_events(backend) && has_events(other) && backend->iface.event_wait == other->iface.event_wait;
}

// True if the work of `backend` runs after all earlier work of `other` anyway, so it need not wait.
bool gb_backend_comes_behind(ggml_backend_t backend, ggml_backend_t other) {
    return gb_backend_waits_for(backend, other) && backend->iface.comes_behind &&
           backend->iface.comes_behind(backend, other);
}

// Without the hooks, the event of a backend is only the struct: it names the backend to wait for.
ggml_backend_event_t ggml_backend_event_new(ggml_backend_t backend) {
    GB_CHECK_ARG_RETURNING(backend, NULL);
    if (!has_events(backend)) {
        ggml_backend_event_t event = GB_NEW(struct ggml_backend_event);
        if (event) {
            event->backend = backend;
        }
        return event;
    }
    const uint64_t before = gb_fail_count();
    const ggml_backend_event_t event = backend->iface.event_new(backend);
    if (event == NULL && gb_fail_count() == before) {
        gb_fail(GGML_STATUS_FAILED, "%s: backend %s gives no event", __func__, ggml_backend_name(backend));
    }
    return event;
}

void ggml_backend_event_free(ggml_backend_event_t event) {
    if (event == NULL) {
        return;
    }
    if (has_events(event->backend)) {
        event->backend->iface.event_free(event);
    } else {
        gb_free(event);
    }
}

// Without hooks nothing is recorded, because waiting waits for the whole queue.
enum ggml_status ggml_backend_event_record(ggml_backend_event_t event) {
    GB_CHECK_ARG(event);
    const uint64_t before = gb_fail_count();
    if (has_events(event->backend)) {
        event->backend->iface.event_record(event);
    }
    return gb_status_since(before);
}

enum ggml_status ggml_backend_event_synchronize(ggml_backend_event_t event) {
    GB_CHECK_ARG(event);
    if (!has_events(event->backend)) {
        return ggml_backend_synchronize(event->backend);
    }
    const uint64_t before = gb_fail_count();
    event->backend->iface.event_synchronize(event);
    return gb_status_since(before);
}

// If backends cannot wait for each other, the host waits.
enum ggml_status ggml_backend_event_wait(ggml_backend_t backend, ggml_backend_event_t event) {
    GB_CHECK_ARG(backend);
    GB_CHECK_ARG(event);
    if (backend == event->backend) {
        return GGML_STATUS_SUCCESS;  // a queue keeps its order
    }
    if (!gb_backend_waits_for(backend, event->backend)) {
        return ggml_backend_event_synchronize(event);
    }
    if (gb_backend_comes_behind(backend, event->backend)) {
        return GGML_STATUS_SUCCESS;
    }
    const uint64_t before = gb_fail_count();
    backend->iface.event_wait(backend, event);
    return gb_status_since(before);
}
