// sim_device.c - the device itself: memory accounting and the queue with its thread.
//
// The queue thread starts with the first piece of work and ends with the device. Invariant: pieces run one at a time in
// the order in which they were submitted, n_completed counts those that are over (run or skipped, and freed).
#include "sim/sim_device.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cpu/cpu.h"

// ---------------------------------------------------------------------------------------------------------- life cycle

static atomic_int device_count;

static bool init_locks(struct gb_sim_device * device) {
    if (!gb_mutex_init(&device->mutex)) {
        return false;
    }
    if (!gb_cond_init(&device->submitted)) {
        gb_mutex_destroy(&device->mutex);
        return false;
    }
    if (!gb_cond_init(&device->completed)) {
        gb_cond_destroy(&device->submitted);
        gb_mutex_destroy(&device->mutex);
        return false;
    }
    device->last        = &device->first;
    device->free_blocks = NULL;
    for (int i = 0; i < GB_SIM_BLOCKS; i++) {
        device->blocks[i].next = device->free_blocks;
        device->free_blocks    = &device->blocks[i];
    }
    return true;
}

static void name_device(struct gb_sim_device * device, const char * wanted) {
    if (wanted[0] != '\0') {
        snprintf(device->name, sizeof(device->name), "%s", wanted);
    } else {
        snprintf(device->name, sizeof(device->name), "SIM%d", atomic_fetch_add(&device_count, 1));
    }
}

struct gb_sim_device * gb_sim_device_new(const struct gb_sim_params * params) {
    struct gb_sim_device * device = GB_NEW(struct gb_sim_device);
    if (device == NULL) {
        return NULL;
    }
    if (params->n_threads > 1 && (device->pool = gb_cpu_pool_new(params->n_threads)) == NULL) {
        gb_free(device);
        return NULL;
    }
    if (!init_locks(device)) {
        gb_cpu_pool_free(device->pool);
        gb_free(device);
        return NULL;
    }
    atomic_init(&device->refs, 1);
    device->params     = *params;
    device->generation = gb_fork_generation();
    name_device(device, params->name);
    gb_sim_buffer_type_init(device);
    return device;
}

struct gb_sim_device * gb_sim_device_ref(struct gb_sim_device * device) {
    atomic_fetch_add(&device->refs, 1);
    return device;
}

// A forked child has no queue thread, and nobody who unlocks the mutex: what was queued belongs to the parent.
static void adopt_after_fork(struct gb_sim_device * device) {
    if (device->generation != gb_fork_generation()) {
        device->generation  = gb_fork_generation();
        device->running     = false;
        device->first       = NULL;
        device->n_completed = device->n_submitted;
        init_locks(device);
    }
}

static void stop_thread(struct gb_sim_device * device) {
    gb_mutex_lock(&device->mutex);
    device->exiting = true;
    gb_cond_signal(&device->submitted);
    gb_mutex_unlock(&device->mutex);
    gb_thread_join(device->thread);
}

// ------------------------------------------------------------------------------------------------------- the default device

static struct {
    struct gb_sim_device * device; // no reference: NULL when the last one goes
    bool                   claimed;
} standard; // guarded by its brief lock

static bool drop_ref(struct gb_sim_device * device) { // true: it was the last one
    if (!device->is_default) {
        return atomic_fetch_sub(&device->refs, 1) == 1;
    }
    struct gb_brief_lock * lock = gb_brief_lock_for(&standard);
    gb_brief_lock(lock);
    const bool last = atomic_fetch_sub(&device->refs, 1) == 1;
    if (last && standard.device == device) {
        standard.device = NULL;
    }
    gb_brief_unlock(lock);
    return last;
}

// The device that there is, or `fresh` as such. With a reference.
static struct gb_sim_device * get_default(struct gb_sim_device * fresh) {
    struct gb_brief_lock * lock = gb_brief_lock_for(&standard);
    gb_brief_lock(lock);
    struct gb_sim_device * device = standard.device;
    if (device != NULL) {
        gb_sim_device_ref(device);
    } else if (fresh != NULL) {
        fresh->is_default = true;
        standard.device = device = fresh;
    }
    gb_brief_unlock(lock);
    return device;
}

struct gb_sim_device * gb_sim_default_device(void) {
    struct gb_sim_device * device = get_default(NULL);
    if (device != NULL) {
        return device;
    }
    struct gb_sim_params   params;
    struct gb_sim_device * fresh = gb_sim_params_parse("", &params) == GGML_STATUS_SUCCESS ? gb_sim_device_new(&params) : NULL;
    device                       = fresh != NULL ? get_default(fresh) : NULL;
    if (device != fresh) { // another thread was faster
        gb_sim_device_unref(fresh);
    }
    return device;
}

static bool set_claimed(bool claimed) { // false: it is so already
    struct gb_brief_lock * lock = gb_brief_lock_for(&standard);
    gb_brief_lock(lock);
    const bool changes = standard.claimed != claimed;
    standard.claimed   = claimed;
    gb_brief_unlock(lock);
    return changes;
}

struct gb_sim_device * gb_sim_default_device_claim(void) {
    if (!set_claimed(true)) {
        return NULL;
    }
    struct gb_sim_device * device = gb_sim_default_device();
    if (device == NULL) {
        set_claimed(false);
    }
    return device;
}

void gb_sim_default_device_leave(struct gb_sim_device * device) {
    gb_sim_device_unref(device);
    set_claimed(false);
}

void gb_sim_device_unref(struct gb_sim_device * device) {
    if (device == NULL || !drop_ref(device)) {
        return;
    }
    adopt_after_fork(device);
    if (device->running) {
        stop_thread(device);
    }
    gb_cond_destroy(&device->submitted);
    gb_cond_destroy(&device->completed);
    gb_mutex_destroy(&device->mutex);
    gb_cpu_pool_free(device->pool);
    gb_free(device);
}

// --------------------------------------------------------------------------------------------------------------- queue

static struct gb_sim_work * take_work(struct gb_sim_device * device) { // with the mutex held; NULL: the device ends
    while (device->first == NULL && !device->exiting) {
        gb_cond_wait(&device->submitted, &device->mutex);
    }
    struct gb_sim_work * work = device->first;
    if (work != NULL) {
        device->first = work->next;
        device->last  = work->next != NULL ? device->last : &device->first;
    }
    return work;
}

static enum ggml_status do_work(struct gb_sim_work * work) {
    if (work->delay_ns > 0) {
        gb_sleep_us((work->delay_ns + 999) / 1000);
    }
    return work->run(work);
}

static void queue_main(void * arg) {
    struct gb_sim_device * device = arg;
    struct gb_sim_work *   work;
    gb_mutex_lock(&device->mutex);
    while ((work = take_work(device)) != NULL) {
        const bool skip = device->failed != GGML_STATUS_SUCCESS;
        gb_mutex_unlock(&device->mutex);
        const enum ggml_status status = skip ? GGML_STATUS_SUCCESS : do_work(work);
        work->free(device, work);
        gb_mutex_lock(&device->mutex);
        if (status != GGML_STATUS_SUCCESS) {
            device->failed = status;
            snprintf(device->message, sizeof(device->message), "%s", ggml_last_error());
        }
        device->n_completed++;
        gb_cond_broadcast(&device->completed);
    }
    gb_mutex_unlock(&device->mutex);
}

static enum ggml_status ensure_thread(struct gb_sim_device * device) { // with the mutex held
    if (!device->running) {
        device->main    = (struct gb_thread_main){ queue_main, device };
        device->running = gb_thread_try_start(&device->thread, &device->main);
        GB_FAIL_IF(!device->running, GGML_STATUS_FAILED, GGML_STATUS_FAILED,
                   "%s: the system gives no thread for the queue", device->name);
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_sim_submit(struct gb_sim_device * device, struct gb_sim_work * work) {
    adopt_after_fork(device);
    gb_mutex_lock(&device->mutex);
    const enum ggml_status status = ensure_thread(device);
    if (status == GGML_STATUS_SUCCESS) {
        work->next    = NULL;
        *device->last = work;
        device->last  = &work->next;
        device->n_submitted++;
        gb_cond_signal(&device->submitted);
    }
    gb_mutex_unlock(&device->mutex);
    if (status != GGML_STATUS_SUCCESS) {
        work->free(device, work);
    }
    return status;
}

void * gb_sim_work_new(struct gb_sim_device * device, size_t size) {
    union gb_sim_block * block = NULL;
    adopt_after_fork(device);
    if (size <= sizeof(*block)) {
        gb_mutex_lock(&device->mutex);
        block = device->free_blocks;
        if (block) {
            device->free_blocks = block->next;
        }
        gb_mutex_unlock(&device->mutex);
    }
    if (block == NULL) {
        return gb_calloc(1, size);
    }
    memset(block, 0, sizeof(*block));
    return block;
}

void gb_sim_work_free(struct gb_sim_device * device, void * work) {
    union gb_sim_block * block = work;
    if (block < device->blocks || block >= device->blocks + GB_SIM_BLOCKS) {
        gb_free(work);
        return;
    }
    gb_mutex_lock(&device->mutex);
    block->next         = device->free_blocks;
    device->free_blocks = block;
    gb_mutex_unlock(&device->mutex);
}

static void wait_locked(struct gb_sim_device * device) {
    for (const uint64_t target = device->n_submitted; device->n_completed < target;) {
        gb_cond_wait(&device->completed, &device->mutex);
    }
}

void gb_sim_drain(struct gb_sim_device * device) {
    adopt_after_fork(device);
    gb_mutex_lock(&device->mutex);
    wait_locked(device);
    gb_mutex_unlock(&device->mutex);
}

enum ggml_status gb_sim_wait(struct gb_sim_device * device, bool forget) {
    char message[GB_ERROR_SIZE];
    adopt_after_fork(device);
    gb_mutex_lock(&device->mutex);
    wait_locked(device);
    const enum ggml_status failed = device->failed;
    if (failed != GGML_STATUS_SUCCESS) {
        memcpy(message, device->message, sizeof(message));
    }
    if (forget) {
        device->failed = GGML_STATUS_SUCCESS;
    }
    gb_mutex_unlock(&device->mutex);
    return failed == GGML_STATUS_SUCCESS ? failed : gb_fail_quietly(failed, message); // logged where it happened
}

// -------------------------------------------------------------------------------------------------------------- events

uint64_t gb_sim_ticket(struct gb_sim_device * device) {
    adopt_after_fork(device);
    gb_mutex_lock(&device->mutex);
    const uint64_t ticket = device->n_submitted;
    gb_mutex_unlock(&device->mutex);
    return ticket;
}

enum ggml_status gb_sim_wait_for(struct gb_sim_device * device, uint64_t ticket, bool report) {
    char message[GB_ERROR_SIZE];
    adopt_after_fork(device);
    gb_mutex_lock(&device->mutex);
    while (device->n_completed < ticket) {
        gb_cond_wait(&device->completed, &device->mutex);
    }
    const enum ggml_status failed = report ? device->failed : GGML_STATUS_SUCCESS;
    if (failed != GGML_STATUS_SUCCESS) {
        memcpy(message, device->message, sizeof(message));
    }
    gb_mutex_unlock(&device->mutex);
    return failed == GGML_STATUS_SUCCESS ? failed : gb_fail_quietly(failed, message);
}

struct wait_work {
    struct gb_sim_work     work; // first
    struct gb_sim_device * other; // a reference
    uint64_t               ticket;
};

// A failure over there is reported over there.
static enum ggml_status run_wait(struct gb_sim_work * work) {
    const struct wait_work * w = (struct wait_work *) work;
    return gb_sim_wait_for(w->other, w->ticket, false);
}

static void free_wait(struct gb_sim_device * device, struct gb_sim_work * work) {
    gb_sim_device_unref(((struct wait_work *) work)->other);
    gb_sim_work_free(device, work);
}

enum ggml_status gb_sim_queue_wait(struct gb_sim_device * device, struct gb_sim_device * other, uint64_t ticket) {
    if (device == other) {
        return GGML_STATUS_SUCCESS;
    }
    struct wait_work * w = gb_sim_work_new(device, sizeof(*w));
    if (w == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    w->work   = (struct gb_sim_work){ .run = run_wait, .free = free_wait };
    w->other  = gb_sim_device_ref(other);
    w->ticket = ticket;
    return gb_sim_submit(device, &w->work);
}

// -------------------------------------------------------------------------------------------------------------- memory

static const char * size_text(size_t size, char buf[32]) {
    if (size < 1024) {
        snprintf(buf, 32, "%zu bytes", size);
    } else if (size < 1024 * 1024) {
        snprintf(buf, 32, "%.1f KiB", (double) size / 1024);
    } else {
        snprintf(buf, 32, "%.1f MiB", (double) size / (1024 * 1024));
    }
    return buf;
}

enum ggml_status gb_sim_take_memory(struct gb_sim_device * device, size_t size) {
    adopt_after_fork(device);
    const struct gb_sim_params * params = &device->params;
    gb_mutex_lock(&device->mutex);
    const size_t used   = device->used;
    const bool   fits   = size <= params->max_size && size <= params->mem_size - used;
    const bool   faulty = params->fail_alloc_after >= 0 && device->n_allocs >= params->fail_alloc_after;
    if (fits && !faulty) {
        device->used += size;
        device->n_allocs++;
    }
    gb_mutex_unlock(&device->mutex);
    char needs[32], in_use[32], limit[32];
    GB_FAIL_IF(size > params->max_size, GGML_STATUS_ALLOC_FAILED, GGML_STATUS_ALLOC_FAILED,
               "%s: a buffer needs %s, the largest has %s",
               device->name, size_text(size, needs), size_text(params->max_size, limit));
    GB_FAIL_IF(!fits, GGML_STATUS_ALLOC_FAILED, GGML_STATUS_ALLOC_FAILED, "%s: %s of %s in use, a buffer needs %s",
               device->name,
               size_text(used, in_use), size_text(params->mem_size, limit), size_text(size, needs));
    GB_FAIL_IF(faulty, GGML_STATUS_ALLOC_FAILED, GGML_STATUS_ALLOC_FAILED,
               "%s: the allocation of %s fails as asked for (fail_alloc_after)",
               device->name, size_text(size, needs));
    return GGML_STATUS_SUCCESS;
}

void gb_sim_give_memory(struct gb_sim_device * device, size_t size) {
    gb_mutex_lock(&device->mutex);
    device->used -= size;
    gb_mutex_unlock(&device->mutex);
}
