// sim_device.c - the device itself: memory accounting, and the queue with its thread.
//
// The queue thread starts with the first piece of work and ends with the device. Invariants: pieces
// run one at a time, in the order of submission. n_completed counts pieces that ended: they ran or
// were skipped, and were freed. No thread holds the mutexes of two devices.
#include "sim/sim_device.h"

#include <stdio.h>
#include <string.h>

#include "base/current.h"
#include "base/env.h"
#include "base/mem.h"
#include "base/text.h"
#include "cpu/cpu.h"

// ---------------------------------------------------------------------------------------------------------- life cycle

#define ADOPTING UINT32_MAX // value of `generation` while a thread of a forked child repairs the device

static atomic_int device_count;

// Makes the locks, also again in a child. There queued work is gone, so the store of blocks and the
// queue start empty.
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
    device->last = &device->first;
    device->free_blocks = NULL;
    for (int i = 0; i < GB_SIM_BLOCKS; i++) {
        device->blocks[i].next = device->free_blocks;
        device->free_blocks = &device->blocks[i];
    }
    return true;
}

// Devices without a name are numbered in this process.
static void name_device(struct gb_sim_device * device, const char * wanted) {
    if (wanted[0] != '\0') {
        snprintf(device->name, sizeof(device->name), "%s", wanted);
    } else {
        snprintf(device->name, sizeof(device->name), "SIM%d", atomic_fetch_add(&device_count, 1));
    }
}

// Does not start the queue thread, because a device that only holds buffers needs none.
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
    atomic_init(&device->cancelled, 0);
    atomic_init(&device->generation, gb_fork_generation());
    device->params = *params;
    name_device(device, params->name);
    gb_sim_buffer_type_init(device);
    return device;
}

struct gb_sim_device * gb_sim_device_ref(struct gb_sim_device * device) {
    atomic_fetch_add(&device->refs, 1);
    return device;
}

// A forked child has no queue thread, and no thread that would unlock the mutex. The parent does
// the queued work. In the child the work counts as failed, so that the memory's content is not
// taken for results.
static void lose_work(struct gb_sim_device * device) {
    if (device->n_completed < device->n_submitted) {
        device->failed = GGML_STATUS_INVALID_STATE;
        device->lost_after = device->n_completed;
        device->lost_until = device->n_submitted;
        snprintf(device->message, sizeof(device->message),
            "%s: was computing when the process was forked; the results are in the parent process", device->name);
    }
    device->running = false;
    device->waits_for = NULL;
    device->first = NULL;
    device->n_completed = device->n_submitted;
}

// Repairs the device in a child after a fork. Every entry point calls this first. If several
// threads of the child call it at the same time, one does the work and the others wait.
static void adopt_after_fork(struct gb_sim_device * device) {
    const unsigned now = gb_fork_generation();
    unsigned last = atomic_load(&device->generation);
    if (last == now) {
        return;
    }
    if (last != ADOPTING && atomic_compare_exchange_strong(&device->generation, &last, ADOPTING)) {
        lose_work(device);
        init_locks(device);
        atomic_store(&device->generation, now);
    }
    while (atomic_load(&device->generation) != now) {
        gb_thread_yield();
    }
}

// Cancels all queued work. The mutex is held on entry. If the queue waits for another device, the
// mutex is released for a moment, to wake up that wait.
static void cancel(struct gb_sim_device * device) {
    struct gb_sim_device * const other = device->waits_for != NULL ? gb_sim_device_ref(device->waits_for) : NULL;
    atomic_store(&device->cancelled, device->n_submitted);
    device->n_cancels++;
    gb_cond_broadcast(&device->submitted);
    if (other != NULL) {
        gb_mutex_unlock(&device->mutex);
        adopt_after_fork(other);
        gb_mutex_lock(&other->mutex);
        gb_cond_broadcast(&other->completed);
        gb_mutex_unlock(&other->mutex);
        gb_sim_device_unref(other);
        gb_mutex_lock(&device->mutex);
    }
}

// Cancels what is queued, ends the thread and waits for it.
static void stop_thread(struct gb_sim_device * device) {
    gb_mutex_lock(&device->mutex);
    device->exiting = true;
    cancel(device); // no caller is left to see results
    gb_mutex_unlock(&device->mutex);
    gb_thread_join(device->thread);
}

// -------------------------------------------------------------------------------------------------- the default device

static struct {
    struct gb_sim_device * device; // no reference: NULL after the last one is dropped
    bool claimed;
} standard; // guarded by its spin lock

// Drops a reference. True: it was the last one. The default device is found through a pointer
// without a reference, so its last reference is dropped under the lock.
static bool drop_ref(struct gb_sim_device * device) {
    if (!device->is_default) {
        return atomic_fetch_sub(&device->refs, 1) == 1;
    }
    struct gb_spin_lock * lock = gb_spin_lock_for(&standard);
    gb_spin_lock(lock);
    const bool last = atomic_fetch_sub(&device->refs, 1) == 1;
    if (last && standard.device == device) {
        standard.device = NULL;
    }
    gb_spin_unlock(lock);
    return last;
}

// The default device with a reference. If there is none, `fresh` becomes the default device and
// keeps its reference. NULL: there is none, and `fresh` is NULL.
static struct gb_sim_device * get_default(struct gb_sim_device * fresh) {
    struct gb_spin_lock * lock = gb_spin_lock_for(&standard);
    gb_spin_lock(lock);
    struct gb_sim_device * device = standard.device;
    if (device != NULL) {
        gb_sim_device_ref(device);
    } else if (fresh != NULL) {
        fresh->is_default = true;
        standard.device = device = fresh;
    }
    gb_spin_unlock(lock);
    return device;
}

// A new device is made without the lock, so two threads may make one. The second thread drops its
// own.
struct gb_sim_device * gb_sim_default_device(void) {
    struct gb_sim_device * device = get_default(NULL);
    if (device != NULL) {
        return device;
    }
    struct gb_sim_params params;
    struct gb_sim_device * fresh =
        gb_sim_params_parse("", &params) == GGML_STATUS_SUCCESS ? gb_sim_device_new(&params) : NULL;
    device = fresh != NULL ? get_default(fresh) : NULL;
    if (device != fresh) { // another thread was faster
        gb_sim_device_unref(fresh);
    }
    return device;
}

// Claims the default device for a backend, or ends the claim. False: no change.
static bool set_claimed(bool claimed) {
    struct gb_spin_lock * lock = gb_spin_lock_for(&standard);
    gb_spin_lock(lock);
    const bool changes = standard.claimed != claimed;
    standard.claimed = claimed;
    gb_spin_unlock(lock);
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

// Drops the reference before it ends the claim. So the next backend finds this device only if a
// buffer keeps it.
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

// The next piece of work. Waits for one with the mutex held. NULL: the device ends.
static struct gb_sim_work * take_work(struct gb_sim_device * device) {
    while (device->first == NULL && !device->exiting) {
        gb_cond_wait(&device->submitted, &device->mutex);
    }
    struct gb_sim_work * work = device->first;
    if (work != NULL) {
        device->first = work->next;
        device->last = work->next != NULL ? device->last : &device->first;
    }
    return work;
}

bool gb_sim_is_cancelled(void * device) {
    struct gb_sim_device * d = device;
    return atomic_load_explicit(&d->cancelled, memory_order_relaxed) >
           d->n_completed; // only the queue thread changes n_completed
}

// The failure of cancelled work.
static enum ggml_status fail_cancelled(const struct gb_sim_device * device) {
    char message[128];
    snprintf(message, sizeof(message), "%s: queued work was cancelled, because the waiting call was interrupted",
        device->name);
    return gb_fail_quietly(GGML_STATUS_ABORTED, message); // the program cancelled, so nothing is logged
}

// Sleeps unless the work is cancelled, which ends the sleep early.
static void sleep_for(struct gb_sim_device * device, int64_t delay_ns) {
    const int64_t end = gb_time_ns() + delay_ns;
    gb_mutex_lock(&device->mutex);
    for (int64_t left = delay_ns; left > 0 && !gb_sim_is_cancelled(device); left = end - gb_time_ns()) {
        gb_cond_wait_for(&device->submitted, &device->mutex, left);
    }
    gb_mutex_unlock(&device->mutex);
}

// Runs one piece on the queue thread, for the computation (gb_run) of the thread that submitted it.
static enum ggml_status do_work(struct gb_sim_device * device, struct gb_sim_work * work) {
    if (work->delay_ns > 0) {
        sleep_for(device, work->delay_ns);
    }
    gb_set_run(work->tag);
    const enum ggml_status status = gb_sim_is_cancelled(device) ? GGML_STATUS_SUCCESS : work->run(work);
    gb_set_run(NULL);
    return gb_sim_is_cancelled(device) ? fail_cancelled(device) : status;
}

// Records the end of a piece that ran, or was skipped because of an earlier failure (`skipped`).
// The mutex is held.
static void close_work(struct gb_sim_device * device, enum ggml_status skipped, enum ggml_status status,
    enum ggml_status * outcome) {
    if (outcome != NULL) {
        *outcome = skipped != GGML_STATUS_SUCCESS ? skipped : status;
    }
    const bool reported =
        outcome != NULL &&
        status == GGML_STATUS_ABORTED; // the thread that waits for this piece reports it; the device has not failed
    if (status != GGML_STATUS_SUCCESS && !reported && device->failed == GGML_STATUS_SUCCESS) {
        device->failed = status;
        snprintf(device->message, sizeof(device->message), "%s", gb_last_message());
    }
    device->n_completed++;
    gb_cond_broadcast(&device->completed);
}

// The queue thread. It holds the mutex except while it works on a piece.
static void queue_main(void * arg) {
    struct gb_sim_device * device = arg;
    struct gb_sim_work * work;
    gb_mutex_lock(&device->mutex);
    while ((work = take_work(device)) != NULL) {
        // Read before the piece runs: a thread may synchronize, and so clear the failure, before it
        // ends.
        const enum ggml_status skipped = device->failed;
        enum ggml_status * const outcome = work->outcome;
        gb_mutex_unlock(&device->mutex);
        const enum ggml_status status = skipped != GGML_STATUS_SUCCESS ? GGML_STATUS_SUCCESS : do_work(device, work);
        work->free(device, work);
        gb_mutex_lock(&device->mutex);
        close_work(device, skipped, status, outcome);
    }
    gb_mutex_unlock(&device->mutex);
}

// Starts the queue thread unless it runs; called with the mutex held.
static enum ggml_status ensure_thread(struct gb_sim_device * device) {
    if (!device->running) {
        device->main = (struct gb_thread_main){ queue_main, device };
        device->running = gb_thread_try_start(&device->thread, &device->main);
        GB_FAIL_IF(!device->running, GGML_STATUS_FAILED, "%s: the system cannot start a thread for the queue",
            device->name);
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_sim_submit(struct gb_sim_device * device, struct gb_sim_work * work) {
    adopt_after_fork(device);
    gb_mutex_lock(&device->mutex);
    const enum ggml_status status = ensure_thread(device);
    if (status == GGML_STATUS_SUCCESS) {
        work->next = NULL;
        work->tag = gb_run();
        *device->last = work;
        device->last = &work->next;
        device->n_submitted++;
        gb_cond_broadcast(&device->submitted); // only the queue thread waits there, for work or for the end of a delay
    }
    gb_mutex_unlock(&device->mutex);
    if (status != GGML_STATUS_SUCCESS) {
        work->free(device, work);
    }
    return status;
}

// A block of the store if the piece fits and one is free, else memory of the host.
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
    block->next = device->free_blocks;
    device->free_blocks = block;
    gb_mutex_unlock(&device->mutex);
}

enum wait_end { COMPLETE, GIVEN_UP_BY_OTHERS, GIVEN_UP };

// Waits until `target` pieces are completed, with the mutex held. If the thread's poll cancels, all
// queued work is cancelled, and the queue becomes empty soon. Returns GIVEN_UP also if nothing was
// left to cancel, so that a series of short waits is cancelled as well, and in a child that the
// poll has forked.
static enum wait_end wait_locked(struct gb_sim_device * device, uint64_t target) {
    const uint64_t n_cancels = device->n_cancels;
    bool gave_up = false;
    while (device->n_completed < target) {
        if (gave_up) {
            gb_cond_wait(&device->completed, &device->mutex);
            continue;
        }
        gave_up = gb_cond_wait_polled(&device->completed, &device->mutex);
        if (atomic_load(&device->generation) != gb_fork_generation()) {
            gb_mutex_unlock(&device->mutex);
            adopt_after_fork(device);
            gb_mutex_lock(&device->mutex);
            return GIVEN_UP;
        }
        if (gave_up && device->n_completed < target) {
            target = device->n_submitted;
            cancel(device);
        }
    }
    return gave_up ? GIVEN_UP : device->n_cancels != n_cancels ? GIVEN_UP_BY_OTHERS : COMPLETE;
}

// Called before anything is freed that queued work may use.
void gb_sim_drain(struct gb_sim_device * device, uint64_t ticket) {
    adopt_after_fork(device);
    gb_mutex_lock(&device->mutex);
    wait_locked(device, GB_MIN(ticket, device->n_submitted));
    gb_mutex_unlock(&device->mutex);
}

// Unlocks the mutex. Reports the pending failure if `report`, otherwise that the wait was
// cancelled. `forget` clears the pending failure.
static enum ggml_status end_wait(struct gb_sim_device * device, bool complete, bool report, bool forget) {
    char message[GB_ERROR_SIZE];
    const enum ggml_status failed = report ? device->failed : GGML_STATUS_SUCCESS;
    if (failed != GGML_STATUS_SUCCESS) {
        memcpy(message, device->message, sizeof(message));
    }
    if (forget) {
        device->failed = GGML_STATUS_SUCCESS;
    }
    gb_mutex_unlock(&device->mutex);
    if (failed != GGML_STATUS_SUCCESS) {
        return gb_fail_quietly(failed, message); // logged when it happened
    }
    return complete ? GGML_STATUS_SUCCESS : fail_cancelled(device);
}

enum ggml_status gb_sim_wait(struct gb_sim_device * device, bool forget) {
    adopt_after_fork(device);
    gb_mutex_lock(&device->mutex);
    const bool complete = wait_locked(device, device->n_submitted) == COMPLETE;
    return end_wait(device, complete, true, forget);
}

// Returns the piece's own status. After a failure of an earlier piece it is "skipped", and the
// failure stays pending for the backend.
enum ggml_status gb_sim_submit_and_wait(struct gb_sim_device * device, struct gb_sim_work * work) {
    enum ggml_status outcome = GGML_STATUS_INVALID_STATE; // stays so in a child, because the parent has the queue
    work->outcome = &outcome;
    GB_TRY(gb_sim_submit(device, work));
    gb_mutex_lock(&device->mutex);
    if (wait_locked(device, device->n_submitted) == GIVEN_UP && outcome == GGML_STATUS_SUCCESS) { // it was done already
        outcome = GGML_STATUS_ABORTED;
    }
    if (outcome == GGML_STATUS_SUCCESS) {
        gb_mutex_unlock(&device->mutex);
        return outcome;
    }
    const enum ggml_status pending = end_wait(device, outcome == GGML_STATUS_ABORTED, device->failed == outcome, false);
    if (pending != GGML_STATUS_SUCCESS) {
        return pending;
    }
    return outcome == GGML_STATUS_ABORTED ? fail_cancelled(device)
                                          : gb_fail(outcome, "%s: work queued before had failed", device->name);
}

// -------------------------------------------------------------------------------------------------------------- events

uint64_t gb_sim_ticket(struct gb_sim_device * device) {
    adopt_after_fork(device);
    gb_mutex_lock(&device->mutex);
    const uint64_t ticket = device->n_submitted;
    gb_mutex_unlock(&device->mutex);
    return ticket;
}

enum ggml_status gb_sim_wait_for(struct gb_sim_device * device, uint64_t ticket) {
    adopt_after_fork(device);
    gb_mutex_lock(&device->mutex);
    if (ticket > device->lost_after && ticket <= device->lost_until) { // even if the failure was reported before
        gb_mutex_unlock(&device->mutex);
        return gb_fail(GGML_STATUS_INVALID_STATE,
            "%s: the work before the event was pending when the process was forked", device->name);
    }
    const bool complete = wait_locked(device, ticket) == COMPLETE;
    return end_wait(device, complete, true, false);
}

// A piece of work that waits for a ticket of another device.
struct wait_work {
    struct gb_sim_work work; // first
    struct gb_sim_device * device; // whose queue waits
    struct gb_sim_device * other; // a reference
    uint64_t ticket;
};

static void set_waits_for(struct gb_sim_device * device, struct gb_sim_device * other) {
    gb_mutex_lock(&device->mutex);
    device->waits_for = other;
    gb_mutex_unlock(&device->mutex);
}

// The other device reports its own failure. cancel() ends this wait through `waits_for`.
static enum ggml_status run_wait(struct gb_sim_work * work) {
    const struct wait_work * w = (struct wait_work *) work;
    adopt_after_fork(w->other);
    set_waits_for(w->device, w->other);
    gb_mutex_lock(&w->other->mutex);
    while (w->other->n_completed < w->ticket && !gb_sim_is_cancelled(w->device)) {
        gb_cond_wait(&w->other->completed, &w->other->mutex);
    }
    gb_mutex_unlock(&w->other->mutex);
    set_waits_for(w->device, NULL);
    return GGML_STATUS_SUCCESS;
}

// Runs always, so that the reference to the other device is dropped.
static void free_wait(struct gb_sim_device * device, struct gb_sim_work * work) {
    gb_sim_device_unref(((struct wait_work *) work)->other);
    gb_sim_work_free(device, work);
}

// A queue must not wait for itself: it would wait forever, and its work is in order anyway.
enum ggml_status gb_sim_queue_wait(struct gb_sim_device * device, struct gb_sim_device * other, uint64_t ticket) {
    if (device == other) {
        return GGML_STATUS_SUCCESS;
    }
    struct wait_work * w = gb_sim_work_new(device, sizeof(*w));
    if (w == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    w->work = (struct gb_sim_work){ .run = run_wait, .free = free_wait };
    w->device = device;
    w->other = gb_sim_device_ref(other);
    w->ticket = ticket;
    return gb_sim_submit(device, &w->work);
}

// -------------------------------------------------------------------------------------------------------------- memory

// Changes the counters with the mutex held, and makes messages without it.
enum ggml_status gb_sim_take_memory(struct gb_sim_device * device, size_t size) {
    adopt_after_fork(device);
    const struct gb_sim_params * params = &device->params;
    gb_mutex_lock(&device->mutex);
    const size_t used = device->used;
    const bool fits = size <= params->max_size && size <= params->mem_size - used;
    const bool faulty = params->fail_alloc_after >= 0 && device->n_allocs >= params->fail_alloc_after;
    if (fits && !faulty) {
        device->used += size;
        device->n_allocs++;
    }
    gb_mutex_unlock(&device->mutex);
    char needs[32], in_use[32], limit[32];
    GB_FAIL_IF(size > params->max_size, GGML_STATUS_ALLOC_FAILED, "%s: a buffer needs %s, the largest has %s",
        device->name, gb_size_text(size, needs), gb_size_text(params->max_size, limit));
    GB_FAIL_IF(!fits, GGML_STATUS_ALLOC_FAILED,
        "%s: %s of %s in use, a buffer needs %s: free buffers, or give the device more (mem)", device->name,
        gb_size_text(used, in_use), gb_size_text(params->mem_size, limit), gb_size_text(size, needs));
    GB_FAIL_IF(faulty, GGML_STATUS_ALLOC_FAILED, "%s: the allocation of %s fails, as parameter fail_alloc_after says",
        device->name, gb_size_text(size, needs));
    return GGML_STATUS_SUCCESS;
}

void gb_sim_give_memory(struct gb_sim_device * device, size_t size) {
    gb_mutex_lock(&device->mutex);
    device->used -= size;
    gb_mutex_unlock(&device->mutex);
}
