// sim_buffer.c - memory of a simulated device.
//
// A buffer has reserved addresses, to which tensors point, and private memory, which only the queue
// thread accesses. A host that dereferences a tensor's pointer faults. New memory is all ones (NaN
// as floats), so that reads of unset memory are visible.
#include <string.h>

#include "base/current.h"
#include "base/env.h"
#include "base/mem.h"
#include "cpu/cpu.h"
#include "sim/sim.h"
#include "sim/sim_device.h"
#include "tensor/tensor.h"

// ----------------------------------------------------------------------------------------------------------- transfers

// A piece of work that moves bytes. Addresses are those of private memory or of the host.
struct transfer {
    struct gb_sim_work work; // first
    char * to;
    const char * from;
    size_t size;
    struct ggml_tensor layout; // of both sides, for a copy by elements
    uint8_t value;             // for a fill
    struct gb_sim_device * device;
};

// A copy can be cancelled after each block of this many bytes.
#define PIECE ((size_t) 1 << 22)

// Moves bytes between a device and the host, which never overlap.
static enum ggml_status run_move(struct gb_sim_work * work) {
    const struct transfer * t = (struct transfer *) work;
    for (size_t at = 0; at < t->size && !gb_sim_is_cancelled(t->device); at += PIECE) {
        memcpy(t->to + at, t->from + at, GB_MIN(t->size - at, PIECE));
    }
    return GGML_STATUS_SUCCESS;
}

// Copies elements; bytes in the gaps of views stay.
static enum ggml_status run_copy(struct gb_sim_work * work) {
    const struct transfer * t = (struct transfer *) work;
    gb_cpu_copy_elements(t->to, t->from, &t->layout);
    return GGML_STATUS_SUCCESS;
}

// Sets bytes of private memory, in pieces, so that it can be cancelled.
static enum ggml_status run_fill(struct gb_sim_work * work) {
    const struct transfer * t = (struct transfer *) work;
    for (size_t at = 0; at < t->size && !gb_sim_is_cancelled(t->device); at += PIECE) {
        memset(t->to + at, t->value, GB_MIN(t->size - at, PIECE));
    }
    return GGML_STATUS_SUCCESS;
}

static void free_transfer(struct gb_sim_device * device, struct gb_sim_work * work) { gb_sim_work_free(device, work); }

// Queues a copy with the delay of the device's parameters. The addresses are NULL after a failed
// translation, which is reported already.
static enum ggml_status queue_transfer(struct gb_sim_device * device, enum ggml_status (*run)(struct gb_sim_work *),
    struct transfer what, bool wait) {
    if (what.to == NULL || (what.from == NULL && run != run_fill)) {
        return ggml_last_status(); // the translation has failed and reported
    }
    struct transfer * t = gb_sim_work_new(device, sizeof(*t));
    if (t == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    atomic_fetch_add(&device->n_transfers, 1);
    const size_t size = run == run_copy ? ggml_nbytes(&what.layout) : what.size;
    atomic_fetch_add(&device->bytes_transferred, size);
    const double rate = (double) device->params.copy_bw;
    const double delay = (double) device->params.copy_delay_ns + (rate > 0 ? (double) size / rate * 1e9 : 0);
    *t = what;
    t->device = device;
    t->work = (struct gb_sim_work){
        .run = run, .free = free_transfer, .delay_ns = delay < 1e18 ? (int64_t) delay : (int64_t) 1e18
    };
    return wait ? gb_sim_submit_and_wait(device, &t->work) : gb_sim_submit(device, &t->work);
}

// The address is translated now, because the tensor may move before the queue reaches the copy.
enum ggml_status gb_sim_queue_set(struct gb_sim_device * device, struct ggml_tensor * tensor, const void * host,
    size_t offset, size_t size, bool wait) {
    char * to = gb_sim_translate(tensor, offset, size);
    return queue_transfer(device, run_move, (struct transfer){ .to = to, .from = host, .size = size }, wait);
}

enum ggml_status gb_sim_queue_get(struct gb_sim_device * device, const struct ggml_tensor * tensor, void * host,
    size_t offset, size_t size, bool wait) {
    const char * from = gb_sim_translate(tensor, offset, size);
    return queue_transfer(device, run_move, (struct transfer){ .to = host, .from = from, .size = size }, wait);
}

// The address of a tensor's bytes, on a simulated device or on the host.
static char * real_address(const struct ggml_tensor * t) {
    return gb_sim_device_of(t) != NULL ? gb_sim_translate(t, 0, ggml_nbytes(t)) : t->data;
}

enum ggml_status gb_sim_queue_copy(struct gb_sim_device * device, const struct ggml_tensor * src,
    struct ggml_tensor * dst, bool wait) {
    const struct transfer what = { .to = real_address(dst), .from = real_address(src), .layout = *dst };
    return queue_transfer(device, run_copy, what, wait);
}

// ----------------------------------------------------------------------------------------------------------- addresses

static GGML_CALL void buffer_free(ggml_backend_buffer_t buffer);

// True for a buffer of any simulated device, which its hook identifies.
static bool is_sim_buffer(ggml_backend_buffer_t buffer) {
    return buffer != NULL && buffer->iface.free_buffer == buffer_free;
}

struct gb_sim_device * gb_sim_device_of(const struct ggml_tensor * tensor) {
    const ggml_backend_buffer_t buffer = gb_root(tensor)->buffer;
    return is_sim_buffer(buffer) ? ((struct gb_sim_buffer *) buffer->context)->device : NULL;
}

// Tensors keep reserved addresses. Their offset in the buffer is valid in private memory, too.
char * gb_sim_translate(const struct ggml_tensor * tensor, size_t offset, size_t size) {
    const struct gb_sim_buffer * b = gb_root(tensor)->buffer->context;
    const size_t from = (uintptr_t) tensor->data - (uintptr_t) b->addresses;
    char text[GB_DESCRIBE_SIZE];
    GB_FAIL_IF_RETURNING(tensor->data == NULL, NULL, GGML_STATUS_INVALID_STATE, "%s: tensor %s is not allocated",
        b->device->name, gb_describe(tensor, text));
    GB_FAIL_IF_RETURNING(from > b->size || offset > b->size - from || size > b->size - from - offset, NULL,
        GGML_STATUS_INVALID_ARGUMENT, "%s: tensor %s: bytes %zu to %zu are not inside its buffer", b->device->name,
        gb_describe(tensor, text), offset, offset + size);
    return b->memory + from + offset;
}

// -------------------------------------------------------------------------------------------------------- buffer hooks

static GGML_CALL const char * buffer_name(ggml_backend_buffer_t buffer) {
    return ((struct gb_sim_buffer *) buffer->context)->device->name;
}

static GGML_CALL void * buffer_base(ggml_backend_buffer_t buffer) {
    return ((struct gb_sim_buffer *) buffer->context)->addresses;
}

// The caller has made sure that no queued work uses the memory.
static void destroy(struct gb_sim_buffer * b) {
    gb_addresses_release(b->addresses, b->size);
    gb_aligned_free(b->memory);
    gb_sim_give_memory(b->device, b->size);
    gb_sim_device_unref(b->device);
    gb_free(b);
}

static GGML_CALL void buffer_free(ggml_backend_buffer_t buffer) {
    struct gb_sim_buffer * b = buffer->context;
    gb_sim_drain(b->device, UINT64_MAX); // queued work may still use the memory
    destroy(b);
}

static GGML_CALL void buffer_set(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor, const void * data,
    size_t offset, size_t size) {
    gb_sim_queue_set(((struct gb_sim_buffer *) buffer->context)->device, tensor, data, offset, size, true);
}

static GGML_CALL void buffer_get(ggml_backend_buffer_t buffer, const struct ggml_tensor * tensor, void * data,
    size_t offset, size_t size) {
    gb_sim_queue_get(((struct gb_sim_buffer *) buffer->context)->device, tensor, data, offset, size, true);
}

// Clears all bytes of the buffer, in the order of the queue.
static GGML_CALL void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    struct gb_sim_buffer * b = buffer->context;
    const struct transfer what = { .to = b->memory, .size = b->size, .value = value };
    queue_transfer(b->device, run_fill, what, true);
}

// A host tensor of another backend is in reach only if the host can access its memory.
bool gb_sim_is_in_reach(const struct ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = gb_root(t)->buffer;
    return is_sim_buffer(buffer) || (t->data != NULL && (buffer == NULL || ggml_backend_buffer_is_host(buffer)));
}

// Copies with source or destination on a simulated device, in the queue of dst's device (else of
// src's), after all work queued on both devices.
static bool copy_and_wait(const struct ggml_tensor * src, struct ggml_tensor * dst) {
    if (!gb_sim_is_in_reach(src) || !gb_sim_is_in_reach(dst)) {
        return false;
    }
    struct gb_sim_device * from = gb_sim_device_of(src);
    struct gb_sim_device * to = gb_sim_device_of(dst);
    if (from != NULL && from != to && gb_sim_wait(from, false) != GGML_STATUS_SUCCESS) {
        return false;
    }
    struct gb_sim_device * device = to != NULL ? to : from;
    return gb_sim_queue_copy(device, src, dst, true) == GGML_STATUS_SUCCESS;
}

static GGML_CALL bool buffer_copy(ggml_backend_buffer_t buffer, const struct ggml_tensor * src,
    struct ggml_tensor * dst) {
    (void) buffer;
    return copy_and_wait(src, dst);
}

static GGML_CALL bool buffer_copy_to(ggml_backend_buffer_t buffer, const struct ggml_tensor * src,
    struct ggml_tensor * dst) {
    (void) buffer;
    return copy_and_wait(src, dst);
}

static const struct ggml_backend_buffer_i buffer_hooks = {
    .get_name = buffer_name,
    .free_buffer = buffer_free,
    .get_base = buffer_base,
    .set_tensor = buffer_set,
    .get_tensor = buffer_get,
    .cpy_tensor = buffer_copy,
    .clear = buffer_clear,
    .cpy_tensor_to = buffer_copy_to,
};

// ---------------------------------------------------------------------------------------------------------- allocation

// Private memory and addresses of the same size; NULL on failure (reported).
static struct gb_sim_buffer * reserve(struct gb_sim_device * device, size_t size) {
    struct gb_sim_buffer * b = GB_NEW(struct gb_sim_buffer);
    if (b == NULL) {
        return NULL;
    }
    b->size = size;
    b->memory = gb_aligned_alloc(64, size);
    b->addresses = b->memory != NULL ? gb_addresses_reserve(size) : NULL;
    if (b->addresses == NULL) {
        gb_aligned_free(b->memory);
        gb_free(b);
        return NULL;
    }
    b->device = gb_sim_device_ref(device);
    return b;
}

// The size is padded, so that the last tensor may end at a multiple of the alignment.
ggml_backend_buffer_t gb_sim_buffer_new(struct gb_sim_device * device, ggml_backend_buffer_type_t buft, size_t size) {
    size_t total;
    GB_FAIL_IF_RETURNING(!gb_pad_size(GB_MAX(size, 1), device->params.alignment, &total), NULL,
        GGML_STATUS_ALLOC_FAILED, "%s: a buffer of %zu bytes is too large", device->name, size);
    if (gb_sim_take_memory(device, total) != GGML_STATUS_SUCCESS) {
        return NULL;
    }
    struct gb_sim_buffer * b = reserve(device, total);
    if (b == NULL) {
        gb_sim_give_memory(device, total);
        return NULL;
    }
    ggml_backend_buffer_t buffer = NULL;
    if (gb_fill(b->memory, 0xff, total) == GGML_STATUS_SUCCESS) { // NaN
        buffer = ggml_backend_buffer_init(buft, buffer_hooks, b, total);
    }
    if (buffer == NULL) {
        destroy(b);
    }
    return buffer;
}

// --------------------------------------------------------------------------------------------------- the device's type

static GGML_CALL const char * type_name(ggml_backend_buffer_type_t buft) {
    return ((struct gb_sim_device *) buft->context)->name;
}

static GGML_CALL ggml_backend_buffer_t type_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    return gb_sim_buffer_new(buft->context, buft, size);
}

static GGML_CALL size_t type_alignment(ggml_backend_buffer_type_t buft) {
    return ((struct gb_sim_device *) buft->context)->params.alignment;
}

static GGML_CALL size_t type_max_size(ggml_backend_buffer_type_t buft) {
    return ((struct gb_sim_device *) buft->context)->params.max_size;
}

// A backend can only use buffers of its own type.
static GGML_CALL bool type_supports(ggml_backend_buffer_type_t buft, ggml_backend_t backend) {
    return backend != NULL && ggml_backend_get_default_buffer_type(backend) == buft;
}

void gb_sim_buffer_type_init(struct gb_sim_device * device) {
    device->buft = (struct ggml_backend_buffer_type){
        .iface = { .get_name = type_name,
            .alloc_buffer = type_alloc,
            .get_alignment = type_alignment,
            .get_max_size = type_max_size,
            .supports_backend = type_supports },
        .context = device,
    };
}

// ------------------------------------------------------------------------------------- of the default device, for good

static GGML_CALL const char * default_name(ggml_backend_buffer_type_t buft) {
    (void) buft;
    return "SIM";
}

static GGML_CALL size_t default_alignment(ggml_backend_buffer_type_t buft) {
    (void) buft;
    return 128;
}

// The buffer keeps the device alive after its backend is freed.
static GGML_CALL ggml_backend_buffer_t default_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    struct gb_sim_device * device = gb_sim_default_device();
    ggml_backend_buffer_t buffer = device != NULL ? gb_sim_buffer_new(device, buft, size) : NULL;
    gb_sim_device_unref(device);
    return buffer;
}

ggml_backend_buffer_type_t gb_sim_default_buffer_type(void) {
    static struct ggml_backend_buffer_type type = {
        // never written
        .iface = { .get_name = default_name,
            .alloc_buffer = default_alloc,
            .get_alignment = default_alignment,
            .supports_backend = type_supports },
    };
    return &type;
}
