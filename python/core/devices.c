// devices.c - the hooks of backends written in Python, and the data about them that C keeps (devices.h).
#include "devices.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "extension.h"
#include "ggml-backend-impl-ext.h"
#include "ggml-cpu.h"
#include "later.h"
#include "objects.h"
#include "world.h"

enum { TEXT = 1024 };

struct device {
    struct ggml_backend backend;
    struct ggml_backend_buffer_type type; // of memory that the device owns
    struct gbpy_device_info info;
    void * handle;
    atomic_int refs; // the backend holds one, and each buffer
};

struct memory {
    struct device * device;
    void * handle;
    char * base;
    size_t size;
    uint64_t number;
};

static const struct gbpy_device_hooks * python;
static _Thread_local char said[TEXT];
static _Thread_local bool was_interrupted;
static _Thread_local int depth; // nested calls of bounded devices on this thread

void gbpy_set_device_hooks(const struct gbpy_device_hooks * hooks) { python = hooks; }

void gbpy_device_interrupted(void) { was_interrupted = true; }

bool gbpy_in_device(void) { return depth > 0; }

bool gbpy_device_given_up(void) { return gbpy_is_interrupted(); }

void gbpy_device_say(const char * text) { snprintf(said, sizeof(said), "%s", text); }

bool gbpy_computes(const struct ggml_tensor * t) { return t != NULL && gb_op_computes(t->op); }

struct gbpy_op_facts gbpy_op_facts(int op) {
    return (struct gbpy_op_facts){
        .elementwise = ggml_backend_cost_class_of((enum ggml_op) op) == GGML_BACKEND_COST_ELEMENTS,
        .inplace = (int) gb_op_inplace_sources((enum ggml_op) op),
    };
}

bool gbpy_device_may_leave_out(const struct ggml_tensor * node) { return ggml_backend_may_leave_out(node); }

const void * gbpy_device_weights(const struct ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = t != NULL ? gb_tensor_buffer(t) : NULL;
    return buffer != NULL && ggml_backend_buffer_get_usage(buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS ? buffer : NULL;
}

int gbpy_graph_work_size(struct ggml_backend * backend, struct ggml_cgraph * graph, size_t * size) {
    const uint64_t before = gb_fail_count();
    *size = backend->iface.graph_work_size != NULL ? backend->iface.graph_work_size(backend, graph) : 0;
    return (int) gb_status_since(before);
}

uint64_t gbpy_device_version(const void * buffer) { return gb_buffer_version(buffer); }

void * gbpy_device_current_run(void) { return gb_run(); }

void gbpy_device_set_current_run(void * run) { gb_set_run(run); }

// ------------------------------------------------------------------------------------------------------ calling Python

// Surrounds a call of Python, which may do anything, such as fail and recover.
struct call {
    bool trust;
    bool bounded;
    uint64_t failures;
};

static bool begin(struct call * call, const struct device * d) {
    if (gbpy_is_ending()) {
        gb_fail_quietly(GGML_STATUS_INVALID_STATE, "the interpreter ends");
        return false;
    }
    *call = (struct call){ gb_trust_tensors(false), d != NULL && d->info.bounded, gb_fail_count() };
    said[0] = '\0';
    depth += call->bounded;
    return true;
}

// An interrupt takes precedence over the status of the function.
static enum ggml_status end(const struct call * call, const struct device * d, int status) {
    gb_trust_tensors(call->trust);
    gb_forget_failures_since(call->failures);
    if (call->bounded && --depth == 0) {
        gbpy_arm_interrupt_again();
    }
    if (was_interrupted) {
        was_interrupted = false;
        gbpy_note_interrupt();
        return gb_fail_quietly(GGML_STATUS_ABORTED, "interrupted in a function of a device");
    }
    if (status == GGML_STATUS_SUCCESS) {
        return GGML_STATUS_SUCCESS;
    }
    return gb_fail((enum ggml_status) status, "%s: %s", d->info.name, said[0] != '\0' ? said : "failed");
}

// CALL(device, status, call of Python): sets `status`, and reports a failure.
#define CALL(device, status, call_)                          \
    do {                                                     \
        struct call python_call;                             \
        (status) = GGML_STATUS_INVALID_STATE;                \
        if (begin(&python_call, (device))) {                 \
            (status) = end(&python_call, (device), (call_)); \
        }                                                    \
    } while (0)

// For calls that cannot fail. The garbage collector may make such a call in the middle of another one, to free memory
// of a device. So the text and the failure of the outer call stay. When the interpreter ends, nothing is freed.
#define CALL_QUIETLY(call_)                                                                      \
    do {                                                                                         \
        struct call python_call;                                                                 \
        struct gb_failure failure;                                                               \
        char before[TEXT];                                                                       \
        gb_failure_save(&failure);                                                               \
        memcpy(before, said, sizeof(said));                                                      \
        if (!gbpy_is_ending() && begin(&python_call, NULL)) {                                    \
            call_;                                                                               \
            if (end(&python_call, NULL, GGML_STATUS_SUCCESS) == GGML_STATUS_SUCCESS) {           \
                gb_failure_restore(&failure); /* an interrupt is left as the thread's failure */ \
            }                                                                                    \
        }                                                                                        \
        memcpy(said, before, sizeof(said));                                                      \
    } while (0)

static void unref(struct device * d) {
    if (atomic_fetch_sub(&d->refs, 1) == 1) {
        gb_free(d);
    }
}

// -------------------------------------------------------------------------------------------------------------- memory

static GGML_CALL const char * buffer_name(ggml_backend_buffer_t buffer) {
    return ((const struct memory *) buffer->context)->device->info.name;
}

// The number of addresses that a buffer of `size` bytes reserves. An empty buffer has an address, too.
static size_t n_addresses(size_t size) { return size > 0 ? size : 1; }

static GGML_CALL void buffer_free(ggml_backend_buffer_t buffer) {
    struct memory * m = buffer->context;
    CALL_QUIETLY(python->free(m->handle));
    if (!m->device->info.host) {
        gb_addresses_release(m->base, n_addresses(m->size));
    }
    unref(m->device);
    gb_free(m);
}

static GGML_CALL void * buffer_base(ggml_backend_buffer_t buffer) {
    return ((const struct memory *) buffer->context)->base;
}

// The memory behind a buffer of a device written in Python; NULL: another buffer. The hook identifies such buffers.
static struct memory * memory_of(ggml_backend_buffer_t buffer) {
    return buffer != NULL && buffer->iface.free_buffer == buffer_free ? buffer->context : NULL;
}

// The memory that contains the whole tensor; NULL: none.
static const struct memory * place_of(const struct ggml_tensor * t, size_t * offset) {
    const struct memory * m = t != NULL ? memory_of(gb_tensor_buffer(t)) : NULL;
    if (m == NULL || t->data == NULL) {
        return NULL;
    }
    const uintptr_t at = (uintptr_t) t->data, base = (uintptr_t) m->base;
    *offset = (size_t) (at - base);
    return at >= base && *offset <= m->size && ggml_nbytes(t) <= m->size - *offset ? m : NULL;
}

bool gbpy_device_place(const struct ggml_tensor * t, void ** memory, size_t * offset) {
    const struct memory * m = place_of(t, offset);
    *memory = m != NULL ? m->handle : NULL;
    return m != NULL;
}

bool gbpy_device_memory(const struct ggml_tensor * t, void ** device, uint64_t * number, size_t * offset) {
    const struct memory * m = place_of(t, offset);
    *device = m != NULL ? m->device->handle : NULL;
    *number = m != NULL ? m->number : 0;
    return m != NULL;
}

static size_t offset_of(const struct memory * m, const struct ggml_tensor * t) {
    return (size_t) ((const char *) t->data - m->base);
}

bool gbpy_device_is_on_host(const struct ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = t != NULL ? gb_tensor_buffer(t) : NULL;
    return t != NULL && t->data != NULL && (buffer == NULL || ggml_backend_buffer_is_host(buffer));
}

// Waits for the queue, which may still write the memory.
static bool settle(ggml_backend_buffer_t buffer) {
    const struct device * d = ((const struct memory *) buffer->context)->device;
    int status = GGML_STATUS_SUCCESS;
    if (d->info.queue) {
        CALL(d, status, python->settle(((const struct memory *) buffer->context)->handle));
    }
    return status == GGML_STATUS_SUCCESS;
}

static GGML_CALL void host_set(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor, const void * data,
    size_t offset, size_t size) {
    if (settle(buffer)) {
        memmove((char *) tensor->data + offset, data, size);
    }
}

static GGML_CALL void host_get(ggml_backend_buffer_t buffer, const struct ggml_tensor * tensor, void * data,
    size_t offset, size_t size) {
    if (settle(buffer)) {
        memmove(data, (const char *) tensor->data + offset, size);
    }
}

static GGML_CALL void host_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    (void) (settle(buffer) && gb_fill(buffer_base(buffer), value, buffer->size)); // reports an interrupt
}

static GGML_CALL void own_set(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor, const void * data,
    size_t offset, size_t size) {
    const struct memory * m = buffer->context;
    int status;
    CALL(m->device, status, python->write(m->handle, offset_of(m, tensor) + offset, data, size));
    (void) status; // reported
}

static GGML_CALL void own_get(ggml_backend_buffer_t buffer, const struct ggml_tensor * tensor, void * data,
    size_t offset, size_t size) {
    const struct memory * m = buffer->context;
    int status;
    CALL(m->device, status, python->read(m->handle, offset_of(m, tensor) + offset, data, size));
    (void) status;
}

static GGML_CALL void own_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    const struct memory * m = buffer->context;
    int status;
    CALL(m->device, status, python->fill(m->handle, value, m->size));
    (void) status;
}

// False: the caller finds another method. This hook copies only if both tensors are contiguous.
static GGML_CALL bool own_copy(ggml_backend_buffer_t buffer, const struct ggml_tensor * src, struct ggml_tensor * dst) {
    const struct memory *to = buffer->context, *from = memory_of(gb_tensor_buffer(src));
    bool done = false;
    int status;
    if (from == NULL || !ggml_is_contiguous(src) || !ggml_is_contiguous(dst)) {
        return false;
    }
    CALL(to->device, status,
        python->copy(to->handle, offset_of(to, dst), from->handle, offset_of(from, src), ggml_nbytes(dst), &done));
    return status == GGML_STATUS_SUCCESS && done;
}

// The tensor of `part` lies in the buffer.
static size_t part_offset(const struct memory * m, const struct ggml_backend_file_fill * part) {
    return offset_of(m, part->tensor) + part->offset;
}

static GGML_CALL void * own_file_begin(ggml_backend_buffer_t buffer, const struct ggml_backend_file_fill * part) {
    const struct memory * m = buffer->context;
    void * request = NULL;
    int status;
    CALL(m->device, status, python->file_begin(m->handle, part_offset(m, part), part, &request));
    return status == GGML_STATUS_SUCCESS ? request : NULL;
}

static GGML_CALL bool own_file_end(ggml_backend_buffer_t buffer, void * request, bool wanted) {
    const struct memory * m = buffer->context;
    bool found = false;
    int status;
    CALL(m->device, status, python->file_end(request, wanted, &found));
    return status == GGML_STATUS_SUCCESS && found;
}

static GGML_CALL void own_file_keep(ggml_backend_buffer_t buffer, const struct ggml_backend_file_fill * part) {
    const struct memory * m = buffer->context;
    int status;
    CALL(m->device, status, python->file_keep(m->handle, part_offset(m, part), part));
    (void) status; // reported
}

static struct ggml_backend_buffer_i buffer_hooks(bool host, bool files) {
    struct ggml_backend_buffer_i hooks = {
        .get_name = buffer_name, .free_buffer = buffer_free, .get_base = buffer_base
    };
    hooks.set_tensor = host ? host_set : own_set;
    hooks.get_tensor = host ? host_get : own_get;
    hooks.clear = host ? host_clear : own_clear;
    hooks.cpy_tensor = host ? NULL : own_copy;
    if (!host && files) {
        hooks.file_begin = own_file_begin;
        hooks.file_end = own_file_end;
        hooks.file_keep = own_file_keep;
    }
    return hooks;
}

// -------------------------------------------------------------------------------------------------------- buffer types

static GGML_CALL const char * backend_name(ggml_backend_t backend);

static struct device * device_of(ggml_backend_t backend) {
    return backend != NULL && backend->iface.get_name == backend_name ? backend->context : NULL;
}

static struct device * device_of_type(ggml_backend_buffer_type_t type) { return type->context; }

static bool give_base(struct memory * m, const struct gbpy_memory_info * info) {
    const struct device * d = m->device;
    if (!d->info.host) {
        m->base = gb_addresses_reserve(n_addresses(m->size));
        return m->base != NULL;
    }
    m->base = info->base;
    if (m->base == NULL || (uintptr_t) m->base % d->info.alignment != 0) {
        gb_fail(GGML_STATUS_DEVICE_ERROR, "%s: alloc gave no memory of %zu bytes at a multiple of %zu", d->info.name,
            m->size, d->info.alignment);
        return false;
    }
    return true;
}

static ggml_backend_buffer_t alloc(ggml_backend_buffer_type_t type, struct device * d, size_t size) {
    struct gbpy_memory_info info = { NULL, 0 };
    struct memory * m = GB_NEW(struct memory);
    int status;
    if (m == NULL) {
        return NULL;
    }
    *m = (struct memory){ .device = d, .size = size };
    CALL(d, status, python->alloc(d->handle, size, &info, &m->handle));
    if (status != GGML_STATUS_SUCCESS) {
        gb_free(m);
        return NULL;
    }
    m->number = info.number;
    ggml_backend_buffer_t buffer =
        give_base(m, &info) ? ggml_backend_buffer_init(type, buffer_hooks(d->info.host, d->info.files), m, size) : NULL;
    if (buffer == NULL) {
        CALL_QUIETLY(python->free(m->handle));
        if (!d->info.host) {
            gb_addresses_release(m->base, n_addresses(size));
        }
        gb_free(m);
        return NULL;
    }
    atomic_fetch_add(&d->refs, 1);
    return buffer;
}

static GGML_CALL const char * type_name(ggml_backend_buffer_type_t type) { return device_of_type(type)->info.name; }

static GGML_CALL ggml_backend_buffer_t type_alloc(ggml_backend_buffer_type_t type, size_t size) {
    return alloc(type, device_of_type(type), size);
}

static GGML_CALL size_t type_alignment(ggml_backend_buffer_type_t type) { return device_of_type(type)->info.alignment; }

static GGML_CALL size_t type_max_size(ggml_backend_buffer_type_t type) { return device_of_type(type)->info.max_size; }

static GGML_CALL bool type_is_host(ggml_backend_buffer_type_t type) { return device_of_type(type)->info.host; }

// Only the device can use memory that is not on the host. The CPU and all devices on the host can use host memory.
static GGML_CALL bool type_supports(ggml_backend_buffer_type_t type, ggml_backend_t backend) {
    const struct device *d = device_of_type(type), *other = device_of(backend);
    if (d == other) {
        return true;
    }
    return d->info.host && (other != NULL ? other->info.host : ggml_backend_is_cpu(backend));
}

static const struct ggml_backend_buffer_type_i type_hooks = {
    .get_name = type_name,
    .alloc_buffer = type_alloc,
    .get_alignment = type_alignment,
    .get_max_size = type_max_size,
    .supports_backend = type_supports,
    .is_host = type_is_host,
};

// ------------------------------------------------------------------------------------------------------------- backend

static GGML_CALL const char * backend_name(ggml_backend_t backend) {
    return ((const struct device *) backend->context)->info.name;
}

static GGML_CALL void backend_free(ggml_backend_t backend) {
    struct device * d = backend->context;
    CALL_QUIETLY(python->close(d->handle));
    unref(d);
}

static GGML_CALL bool computes_on_host(ggml_backend_t backend) {
    return ((const struct device *) backend->context)->info.host;
}

static GGML_CALL ggml_backend_buffer_type_t backend_type(ggml_backend_t backend) {
    return &((struct device *) backend->context)->type;
}

static const char * refusal(ggml_backend_t backend, const struct ggml_tensor * node) {
    const struct device * d = backend->context;
    bool refuses = true;
    int status;
    if (!gb_op_computes(node->op)) {
        return NULL;
    }
    CALL(d, status, python->refuses(d->handle, node, &refuses));
    return status == GGML_STATUS_SUCCESS && !refuses ? NULL : said;
}

static GGML_CALL bool backend_supports(ggml_backend_t backend, const struct ggml_tensor * node) {
    return refusal(backend, node) == NULL;
}

static GGML_CALL ggml_backend_graph_plan_t plan_create(ggml_backend_t backend, const struct ggml_cgraph * graph) {
    struct device * d = backend->context;
    void * compiled = NULL;
    int status;
    CALL(d, status,
        (compiled = python->compile(d->handle, (struct ggml_cgraph *) graph)) != NULL ? 0 : GGML_STATUS_ALLOC_FAILED);
    (void) status;
    return compiled;
}

static GGML_CALL size_t graph_work_size(ggml_backend_t backend, const struct ggml_cgraph * graph) {
    struct device * d = backend->context;
    size_t size = 0;
    int status;
    CALL(d, status, python->work_size(d->handle, (struct ggml_cgraph *) graph, &size));
    return status == GGML_STATUS_SUCCESS ? size : 0;
}

static GGML_CALL void plan_free(ggml_backend_t backend, ggml_backend_graph_plan_t plan) {
    (void) backend;
    CALL_QUIETLY(python->forget(plan));
}

// The function may read mapped files, which may shrink meanwhile.
static int run(const struct device * d, void * plan) {
    int status;
    gb_mapped_enter();
    CALL(d, status, python->run(plan));
    gb_mapped_leave();
    return status;
}

static GGML_CALL void plan_compute(ggml_backend_t backend, ggml_backend_graph_plan_t plan) {
    (void) run(backend->context, plan); // reported
}

static GGML_CALL bool graph_compute(ggml_backend_t backend, struct ggml_cgraph * graph) {
    const struct device * d = backend->context;
    const ggml_backend_graph_plan_t plan = plan_create(backend, graph);
    int status = GGML_STATUS_ALLOC_FAILED;
    if (plan != NULL) {
        status = run(d, plan);
        plan_free(backend, plan);
    }
    return status == GGML_STATUS_SUCCESS;
}

// An interrupt may end the function while it still uses memory that the caller frees after the wait. So the function
// is called again. It returns at once, because the call is now cancelled.
static GGML_CALL void backend_synchronize(ggml_backend_t backend) {
    const struct device * d = backend->context;
    int status;
    do {
        CALL(d, status, python->synchronize(d->handle));
    } while (status == GGML_STATUS_ABORTED && d->info.bounded && gbpy_is_interrupted());
}

// ------------------------------------------------------------------------------------------------------ queued copies

// Describes the bytes of a tensor from `offset` on. False: they are neither on the host nor in memory of such a
// device.
static bool piece_of(const struct ggml_tensor * t, size_t offset, struct gbpy_piece * piece) {
    const struct memory * m = memory_of(gb_tensor_buffer(t));
    *piece = (struct gbpy_piece){ NULL, 0, NULL };
    if (m != NULL && !m->device->info.host) {
        piece->memory = m->handle;
        piece->offset = offset_of(m, t) + offset;
        return true;
    }
    piece->host = gbpy_device_is_on_host(t) ? (char *) t->data + offset : NULL;
    return piece->host != NULL;
}

// False: the device cannot copy these, or it failed and has reported that.
static bool transfer(const struct device * d, const struct gbpy_piece * to, const struct gbpy_piece * from,
    size_t size) {
    bool done = false;
    int status;
    CALL(d, status, python->transfer(d->handle, to, from, size, &done));
    return status == GGML_STATUS_SUCCESS && done;
}

static GGML_CALL bool copy_async(ggml_backend_t backend, const struct ggml_tensor * src, struct ggml_tensor * dst) {
    struct gbpy_piece to, from;
    return ggml_is_contiguous(src) && ggml_is_contiguous(dst) && piece_of(dst, 0, &to) && piece_of(src, 0, &from) &&
           transfer(backend->context, &to, &from, ggml_nbytes(dst));
}

// If the device cannot queue the transfer, it is done after all queued work.
static GGML_CALL void set_async(ggml_backend_t backend, struct ggml_tensor * tensor, const void * data, size_t offset,
    size_t size) {
    const struct gbpy_piece from = { .host = (void *) (uintptr_t) data };
    const uint64_t before = gb_fail_count();
    struct gbpy_piece to;
    const bool queued = piece_of(tensor, offset, &to) && transfer(backend->context, &to, &from, size);
    if (!queued && gb_fail_count() == before) {
        ggml_backend_tensor_set(tensor, data, offset, size);
    }
}

static GGML_CALL void get_async(ggml_backend_t backend, const struct ggml_tensor * tensor, void * data, size_t offset,
    size_t size) {
    const struct gbpy_piece to = { .host = data };
    const uint64_t before = gb_fail_count();
    struct gbpy_piece from;
    const bool queued = piece_of(tensor, offset, &from) && transfer(backend->context, &to, &from, size);
    if (!queued && gb_fail_count() == before) {
        ggml_backend_tensor_get(tensor, data, offset, size);
    }
}

// -------------------------------------------------------------------------------------------------------------- events

static ggml_backend_event_t new_event(ggml_backend_t backend, bool timed) {
    struct device * d = backend->context;
    struct ggml_backend_event * event = GB_NEW(struct ggml_backend_event);
    int status;
    if (event == NULL) {
        return NULL;
    }
    event->backend = backend;
    CALL(d, status, (event->context = python->event_new(d->handle, timed)) != NULL ? 0 : GGML_STATUS_DEVICE_ERROR);
    if (status != GGML_STATUS_SUCCESS) {
        gb_free(event);
        return NULL;
    }
    return event;
}

static GGML_CALL ggml_backend_event_t event_new(ggml_backend_t backend) { return new_event(backend, false); }

static GGML_CALL ggml_backend_event_t event_new_timed(ggml_backend_t backend) { return new_event(backend, true); }

static GGML_CALL int64_t event_time(ggml_backend_event_t event) {
    int64_t ns = 0;
    int status;
    CALL((struct device *) event->backend->context, status, python->event_time(event->context, &ns));
    return status == GGML_STATUS_SUCCESS ? ns : 0;
}

static GGML_CALL void event_free(ggml_backend_event_t event) {
    CALL_QUIETLY(python->event_free(event->context));
    gb_free(event);
}

static GGML_CALL void event_record(ggml_backend_event_t event) {
    int status;
    CALL((struct device *) event->backend->context, status, python->event_record(event->context));
    (void) status;
}

static GGML_CALL bool comes_behind(ggml_backend_t backend, ggml_backend_t other) {
    return ((const struct device *) backend->context)->info.ordered &&
           ((const struct device *) other->context)->info.ordered;
}

static GGML_CALL void event_wait(ggml_backend_t backend, ggml_backend_event_t event) {
    struct device * d = backend->context;
    int status;
    CALL(d, status, python->event_wait(d->handle, event->context));
    (void) status;
}

static GGML_CALL void event_synchronize(ggml_backend_event_t event) {
    int status;
    CALL((struct device *) event->backend->context, status, python->event_synchronize(event->context));
    (void) status;
}

// ------------------------------------------------------------------------------------------------------------ registry

static void set_hooks(struct device * d) {
    struct ggml_backend_i * hooks = &d->backend.iface;
    *hooks = (struct ggml_backend_i){
        .get_name = backend_name,
        .free = backend_free,
        .get_default_buffer_type = backend_type,
        .graph_plan_create = plan_create,
        .graph_plan_free = plan_free,
        .graph_plan_compute = plan_compute,
        .graph_compute = graph_compute,
        .supports_op = backend_supports,
        .unsupported_reason = refusal,
        .computes_on_host = computes_on_host,
    };
    if (d->info.work) {
        hooks->graph_work_size = graph_work_size;
    }
    if (d->info.queue) {
        hooks->synchronize = backend_synchronize;
    }
    if (d->info.queue && d->info.events) {
        hooks->event_new = event_new;
        hooks->event_free = event_free;
        hooks->event_record = event_record;
        hooks->event_wait = event_wait;
        hooks->event_synchronize = event_synchronize;
        hooks->event_new_timed = d->info.timed ? event_new_timed : NULL;
        hooks->event_time = d->info.timed ? event_time : NULL;
        hooks->comes_behind = comes_behind;
    }
    if (d->info.queue && d->info.transfers) {
        hooks->set_tensor_async = set_async;
        hooks->get_tensor_async = get_async;
        hooks->cpy_tensor_peer_async = copy_async;
    }
}

static GGML_CALL ggml_backend_t open_device(const char * params, void * entry) {
    struct device * d = GB_NEW(struct device);
    int status;
    if (d == NULL) {
        return NULL;
    }
    atomic_init(&d->refs, 1);
    d->info = (struct gbpy_device_info){ .name = "a device", .alignment = 64, .max_size = SIZE_MAX };
    CALL(d, status, python->open(entry, params != NULL ? params : "", &d->info, &d->handle));
    if (status != GGML_STATUS_SUCCESS) {
        gb_free(d);
        return NULL;
    }
    d->info.name[sizeof(d->info.name) - 1] = '\0';
    d->type = (struct ggml_backend_buffer_type){ type_hooks, d };
    d->backend.context = d;
    set_hooks(d);
    return &d->backend;
}

int gbpy_register_device(const char * name, void * entry) {
    return ggml_backend_register(name, open_device, NULL, entry);
}

struct ggml_backend_buffer_type * gbpy_device_host_type(const struct gbpy_handle * backend) {
    struct device * d = gbpy_kind_of(backend) == GBPY_BACKEND ? device_of(gbpy_ptr(backend)) : NULL;
    return d != NULL && d->info.host ? &d->type : NULL;
}

void * gbpy_device_of(const struct gbpy_handle * backend) {
    const struct device * d = gbpy_kind_of(backend) == GBPY_BACKEND ? device_of(gbpy_ptr(backend)) : NULL;
    return d != NULL ? d->handle : NULL;
}
