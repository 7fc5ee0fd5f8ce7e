// sim_backend.c - the simulated device as a backend. Calls check their arguments, queue work and
// return. synchronize waits, and also reports failures in the queue.
#include <string.h>

#include "base/env.h"
#include "base/mem.h"
#include "cpu/cpu.h"
#include "cpu/traits.h"
#include "sim/sim.h"
#include "sim/sim_device.h"

static GGML_CALL const char * name_of(ggml_backend_t backend) {
    return ((struct gb_sim_device *) backend->context)->name;
}

// The default device's type outlives the device, so that the registry can return it without a
// device.
static GGML_CALL ggml_backend_buffer_type_t default_buffer_type(ggml_backend_t backend) {
    struct gb_sim_device * device = backend->context;
    return device->is_default ? gb_sim_default_buffer_type() : &device->buft;
}

// A backend of the default device also ends its claim on that device.
static void leave_device(struct gb_sim_device * device) {
    if (device->is_default) {
        gb_sim_default_device_leave(device);
    } else {
        gb_sim_device_unref(device);
    }
}

static GGML_CALL void backend_free(ggml_backend_t backend) {
    struct gb_sim_device * device = backend->context;
    gb_sim_drain(device, UINT64_MAX);
    gb_mutex_lock(&device->mutex);
    device->failed = GGML_STATUS_SUCCESS; // no backend can report failures any more; remaining buffers stay usable
    gb_mutex_unlock(&device->mutex);
    leave_device(device);
    gb_free(backend);
}

// ----------------------------------------------------------------------------------------------------------- transfers

// INVALID_ARGUMENT (reported) unless the tensor is in this device's memory.
static bool is_mine(const struct gb_sim_device * device, const struct ggml_tensor * tensor) {
    GB_FAIL_IF_RETURNING(gb_sim_device_of(tensor) != device, false, GGML_STATUS_INVALID_ARGUMENT,
        "%s: tensor '%s' is not in this device's memory", device->name, tensor->name);
    return true;
}

// Reports a refusal, because hooks without a result fail that way.
static GGML_CALL void set_async(ggml_backend_t backend, struct ggml_tensor * tensor, const void * data, size_t offset,
    size_t size) {
    if (is_mine(backend->context, tensor)) {
        gb_sim_queue_set(backend->context, tensor, data, offset, size, false);
    }
}

static GGML_CALL void get_async(ggml_backend_t backend, const struct ggml_tensor * tensor, void * data, size_t offset,
    size_t size) {
    if (is_mine(backend->context, tensor)) {
        gb_sim_queue_get(backend->context, tensor, data, offset, size, false);
    }
}

// Copies only inside the device. The host or another device would not know when the copy has
// accessed their memory.
static GGML_CALL bool copy_async(ggml_backend_t backend, const struct ggml_tensor * src, struct ggml_tensor * dst) {
    struct gb_sim_device * device = backend->context;
    return gb_sim_device_of(src) == device && gb_sim_device_of(dst) == device &&
           gb_sim_queue_copy(device, src, dst, false) == GGML_STATUS_SUCCESS;
}

// Copies between this device and the host or another device. The caller orders the copy with
// events.
static GGML_CALL bool copy_peer_async(ggml_backend_t backend, const struct ggml_tensor * src,
    struct ggml_tensor * dst) {
    struct gb_sim_device * device = backend->context;
    return (gb_sim_device_of(src) == device || gb_sim_device_of(dst) == device) && gb_sim_is_in_reach(src) &&
           gb_sim_is_in_reach(dst) && gb_sim_queue_copy(device, src, dst, false) == GGML_STATUS_SUCCESS;
}

static GGML_CALL void synchronize(ggml_backend_t backend) { gb_sim_wait(backend->context, true); }

// -------------------------------------------------------------------------------------------------------------- graphs

static GGML_CALL ggml_backend_graph_plan_t plan_create(ggml_backend_t backend, const struct ggml_cgraph * cgraph) {
    return gb_sim_graph_new(backend->context, cgraph);
}

static GGML_CALL void plan_free(ggml_backend_t backend, ggml_backend_graph_plan_t plan) {
    (void) backend;
    gb_sim_graph_unref(plan); // queued work has its own reference
}

static GGML_CALL void plan_compute(ggml_backend_t backend, ggml_backend_graph_plan_t plan) {
    (void) backend;
    gb_sim_graph_queue(plan); // a failure is reported, so the caller can see it
}

// A snapshot for this one computation; the queue's reference keeps it alive.
static GGML_CALL bool graph_compute(ggml_backend_t backend, struct ggml_cgraph * cgraph) {
    struct gb_sim_graph * graph = gb_sim_graph_new(backend->context, cgraph);
    if (graph == NULL) {
        return false;
    }
    const enum ggml_status status = gb_sim_graph_queue(graph);
    gb_sim_graph_unref(graph);
    return status == GGML_STATUS_SUCCESS;
}

static GGML_CALL const char * unsupported_reason(ggml_backend_t backend, const struct ggml_tensor * op) {
    return gb_sim_unsupported_reason(backend->context, op);
}

static GGML_CALL bool supports_op(ggml_backend_t backend, const struct ggml_tensor * op) {
    return unsupported_reason(backend, op) == NULL;
}

// -------------------------------------------------------------------------------------------------------------- events

// A ticket of the device's queue. A timed event also queues a piece of work that reads the clock.
struct sim_event {
    struct ggml_backend_event event; // first
    struct gb_sim_device * device;   // a reference
    uint64_t ticket;
    bool timed;
    _Atomic int64_t time_ns; // time when the queue reached a timed event
};

static GGML_CALL ggml_backend_event_t event_new(ggml_backend_t backend) {
    struct sim_event * e = GB_NEW(struct sim_event);
    if (e == NULL) {
        return NULL;
    }
    e->device = gb_sim_device_ref(backend->context);
    e->event = (struct ggml_backend_event){ backend, e };
    return &e->event;
}

static GGML_CALL ggml_backend_event_t event_new_timed(ggml_backend_t backend) {
    const ggml_backend_event_t event = event_new(backend);
    if (event) {
        ((struct sim_event *) event->context)->timed = true;
    }
    return event;
}

static GGML_CALL int64_t event_time(ggml_backend_event_t event) {
    return ((struct sim_event *) event->context)->time_ns;
}

struct stamp_work {
    struct gb_sim_work work;  // first
    struct sim_event * event; // it is freed only after this piece ends (event_free)
};

static enum ggml_status run_stamp(struct gb_sim_work * work) {
    ((struct stamp_work *) work)->event->time_ns = gb_time_ns();
    return GGML_STATUS_SUCCESS;
}

static void free_stamp(struct gb_sim_device * device, struct gb_sim_work * work) { gb_sim_work_free(device, work); }

// If there is no memory, the event keeps its old time.
static void queue_stamp(struct sim_event * e) {
    struct stamp_work * w = gb_sim_work_new(e->device, sizeof(*w));
    if (w != NULL) {
        w->work = (struct gb_sim_work){ .run = run_stamp, .free = free_stamp };
        w->event = e;
        gb_sim_submit(e->device, &w->work); // a failure is reported
    }
}

// An untimed event can be freed at once: the queue does not refer to it.
static GGML_CALL void event_free(ggml_backend_event_t event) {
    struct sim_event * e = event->context;
    if (e->timed) {
        gb_sim_drain(e->device, e->ticket); // the queue may still write its time
    }
    gb_sim_device_unref(e->device);
    gb_free(e);
}

// The ticket includes the stamp, if there is one.
static GGML_CALL void event_record(ggml_backend_event_t event) {
    struct sim_event * e = event->context;
    if (e->timed) {
        queue_stamp(e);
    }
    e->ticket = gb_sim_ticket(e->device);
}

static GGML_CALL void event_wait(ggml_backend_t backend, ggml_backend_event_t event) {
    const struct sim_event * e = event->context;
    gb_sim_queue_wait(backend->context, e->device, e->ticket); // a failure is reported
}

static GGML_CALL void event_synchronize(ggml_backend_event_t event) {
    const struct sim_event * e = event->context;
    gb_sim_wait_for(e->device, e->ticket);
}

// ------------------------------------------------------------------------------------------------------------ registry

static const struct ggml_backend_i hooks = {
    .get_name = name_of,
    .free = backend_free,
    .get_default_buffer_type = default_buffer_type,
    .set_tensor_async = set_async,
    .get_tensor_async = get_async,
    .cpy_tensor_async = copy_async,
    .synchronize = synchronize,
    .graph_plan_create = plan_create,
    .graph_plan_free = plan_free,
    .graph_plan_compute = plan_compute,
    .graph_compute = graph_compute,
    .supports_op = supports_op,
    .unsupported_reason = unsupported_reason,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_synchronize = event_synchronize,
    .cpy_tensor_peer_async = copy_peer_async,
    .event_new_timed = event_new_timed,
    .event_time = event_time,
};

// The parameters are read before anything is made.
GGML_CALL ggml_backend_t gb_sim_reg_init(const char * params, void * user_data) {
    (void) user_data;
    struct gb_sim_params parsed;
    if (gb_sim_params_parse(params, &parsed) != GGML_STATUS_SUCCESS || gb_kernels_default() == NULL ||
        !gb_cpu_traits_check()) {
        return NULL;
    }
    ggml_backend_t backend = GB_NEW(struct ggml_backend);
    if (backend == NULL) {
        return NULL;
    }
    const bool plain = params == NULL || params[0] == '\0';
    struct gb_sim_device * device = plain ? gb_sim_default_device_claim() : NULL;
    if (device == NULL) { // with parameters, or another backend uses the default device
        device = gb_sim_device_new(&parsed);
    }
    if (device == NULL) {
        gb_free(backend);
        return NULL;
    }
    *backend = (struct ggml_backend){ hooks, device };
    return backend;
}
