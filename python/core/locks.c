// locks.c - the list of held locks, the search for deadlocks, locking and unlocking (locks.h).
#include "locks.h"

#include "extension.h"

#ifndef _WIN32
#    include <pthread.h>
#endif

// All of this is under the mutex.
static struct gbpy_locks * all_locks; // those that are held
static int n_waiters;

struct waiter { // an owner that waits, and its requests
    const void * owner;
    const struct gbpy_request * requests;
    int n;
    struct waiter * next;
    unsigned searched; // number of the last search that visited it
};
static struct waiter * waiters;
static unsigned n_searches;

static void end_lock(const struct gbpy_request * request) {
    if (request->nested) {
        return;
    }
    if (request->write) {
        request->object->writer = NULL;
    } else {
        request->object->n_readers--;
    }
}

static void unlink_locks(struct gbpy_locks * locks) {
    *(locks->previous != NULL ? &locks->previous->next : &all_locks) = locks->next;
    if (locks->next != NULL) {
        locks->next->previous = locks->previous;
    }
    locks->active = false;
}

// --------------------------------------------------------------------------------------------------------------- forks

#ifndef _WIN32
// Only the thread that called fork survives in the child. Objects that other threads were writing are in an unknown
// state.
static void in_child(void) {
    for (struct gbpy_locks *locks = all_locks, *next; locks != NULL; locks = next) {
        next = locks->next;
        if (locks->owner == gbpy_thread()) {
            continue;
        }
        for (int i = 0; i < locks->n; i++) {
            locks->held[i].object->broken |= locks->held[i].write && !locks->held[i].nested;
            end_lock(&locks->held[i]);
        }
        unlink_locks(locks);
        locks->n = 0; // its references are never dropped: only the thread that is gone could do that
    }
    gbpy_break_pending_runs();
    waiters = NULL;
    n_waiters = 0;
    gbpy_renew();
    gbpy_mutex_unlock();
}
#endif

static void prepare(void) {
    gbpy_renew();
    gb_fork_generation(); // registers its handler before ours
#ifndef _WIN32
    pthread_atfork(gbpy_mutex_lock, gbpy_mutex_unlock, in_child);
#endif
}

void gbpy_begin(void) {
    static gb_once once = GB_ONCE_INIT;
    gb_call_once(&once, prepare);
}

// ----------------------------------------------------------------------------------------------------------- conflicts

// The number of read locks that `me` holds on the object.
static int reads_of(const struct gbpy_object * o, const void * me) {
    int n = 0;
    for (const struct gbpy_locks * locks = all_locks; locks != NULL; locks = locks->next) {
        for (int i = 0; locks->owner == me && i < locks->n; i++) {
            n += locks->held[i].object == o && !locks->held[i].write && !locks->held[i].nested;
        }
    }
    return n;
}

// The index of the first request that has to wait; -1: none. `nested`: locks that `me` holds are no conflict.
static int find_conflict(const struct gbpy_request * requests, int n, const void * me, bool nested) {
    for (int i = 0; i < n; i++) {
        const struct gbpy_object * o = requests[i].object;
        if (o->writer != NULL && !(nested && o->writer->owner == me)) {
            return i;
        }
        if (requests[i].write && o->n_readers > 0 && !(nested && reads_of(o, me) == o->n_readers)) {
            return i;
        }
    }
    return -1;
}

bool gbpy_holds(const struct gbpy_locks * locks, const struct gbpy_object * o) {
    for (int i = 0; i < locks->n; i++) {
        if (locks->held[i].object == o) {
            return true;
        }
    }
    return false;
}

// True if waiting for these requests would deadlock: an owner of a conflicting lock is `me`, or waits, directly or
// not, for a lock of `me`. Each search has a number, so that it visits each waiter once.
static bool leads_to(const struct gbpy_request * requests, int n, const void * me, unsigned search) {
    for (const struct gbpy_locks * locks = all_locks; locks != NULL; locks = locks->next) {
        bool stands_in_the_way = false;
        for (int i = 0; i < n && !stands_in_the_way; i++) {
            const struct gbpy_object * o = requests[i].object;
            stands_in_the_way = gbpy_holds(locks, o) && (o->writer == locks || (requests[i].write && o->n_readers > 0));
        }
        if (!stands_in_the_way) {
            continue;
        }
        if (locks->owner == me || gbpy_waits_for_my_run(locks)) {
            return true;
        }
        for (struct waiter * w = waiters; w != NULL; w = w->next) {
            if (w->owner == locks->owner && w->searched != search) {
                w->searched = search;
                if (leads_to(w->requests, w->n, me, search)) {
                    return true;
                }
            }
        }
    }
    return false;
}

// Waits for a change. Fails if the caller would wait for itself, or was interrupted.
static int wait_for(const char * what, const struct gbpy_request * requests, int n, int conflict) {
    const void * me = gbpy_caller();
    const struct gbpy_object * o = requests[conflict].object;
    if ((o->writer != NULL && o->writer->owner == me) || reads_of(o, me) > 0) {
        return gb_fail(GGML_STATUS_INVALID_STATE, "%s: is computing, and was called from one of its own callbacks",
            what);
    }
    if (leads_to(requests, n, me, ++n_searches)) {
        return gb_fail(GGML_STATUS_INVALID_STATE,
            "%s: called from a callback of a computation, it would wait for a call that waits for that computation",
            what);
    }
    struct waiter self = { .owner = me, .requests = requests, .n = n, .next = waiters };
    waiters = &self;
    n_waiters++;
    const unsigned generation = gb_fork_generation();
    const bool stop = gbpy_wait();
    if (generation == gb_fork_generation()) { // in a forked child no thread waits
        struct waiter ** link = &waiters;
        while (*link != &self) {
            link = &(*link)->next;
        }
        *link = self.next;
        n_waiters--;
    }
    return stop ? gbpy_outcome(GBPY_INTERRUPTED) : GGML_STATUS_SUCCESS;
}

static int check_usable(const char * what, const struct gbpy_request * requests, int n) {
    for (int i = 0; i < n; i++) {
        const struct gbpy_object * o = requests[i].object;
        GB_FAIL_IF(o->broken, GGML_STATUS_INVALID_STATE,
            "%s: another thread was using the %s when the process was forked: make a new one", what,
            gbpy_kind_name(o->kind));
        GB_FAIL_IF(o->closed && !gbpy_can_lock_when_closed(o) && !requests[i].closed_too, GGML_STATUS_INVALID_STATE,
            "%s: the %s is closed", what, gbpy_kind_name(o->kind));
    }
    return GGML_STATUS_SUCCESS;
}

// ------------------------------------------------------------------------------------------------------------ entering

bool gbpy_reserve_locks(struct gbpy_locks * locks, int n) {
    if (locks->capacity >= n) {
        return true;
    }
    struct gbpy_request * requests = gb_calloc((size_t) n, sizeof(*requests));
    if (requests == NULL) {
        return false;
    }
    if (!locks->borrowed) {
        gb_free(locks->held);
    }
    locks->held = requests;
    locks->capacity = n;
    locks->borrowed = false;
    return true;
}

// Takes locks that do not conflict. False: an object is being freed, and the mutex was released meanwhile.
static bool take(struct gbpy_locks * locks, const struct gbpy_request * requests, int n) {
    int k = 0;
    while (k < n && gbpy_try_ref(requests[k].object)) {
        k++;
    }
    if (k < n) {
        gbpy_note_move(); // graphs that have cached it as the owner of memory look again
        gbpy_mutex_unlock();
        while (k-- > 0) {
            gbpy_unref(requests[k].object);
        }
        gbpy_mutex_lock();
        return false;
    }
    locks->owner = gbpy_caller();
    locks->n = n;
    for (int i = 0; i < n; i++) {
        struct gbpy_object * o = requests[i].object;
        locks->held[i] = requests[i];
        locks->held[i].nested = o->writer != NULL; // a lock of the same owner
        if (locks->held[i].nested) {
            continue;
        }
        if (requests[i].write) {
            o->writer = locks;
        } else {
            o->n_readers++;
        }
    }
    locks->active = true;
    locks->previous = NULL;
    locks->next = all_locks;
    if (all_locks != NULL) {
        all_locks->previous = locks;
    }
    all_locks = locks;
    return true;
}

int gbpy_take_or_wait(struct gbpy_locks * locks, const char * what, const struct gbpy_request * requests, int n,
    bool nested, const struct ggml_tensor * staged) {
    int status = check_usable(what, requests, n);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    const int conflict = find_conflict(requests, n, gbpy_caller(), nested);
    if (conflict >= 0) {
        return wait_for(what, requests, n, conflict);
    }
    if (!gbpy_wait_for_conflicting_run(requests, n, staged, &status)) {
        take(locks, requests, n);
    }
    return status;
}

int gbpy_wait_for_placement(struct gbpy_context * const * contexts, int n, const char * what) {
    int status = GGML_STATUS_SUCCESS;
    for (int i = 0; i < n && status == GGML_STATUS_SUCCESS;) {
        const struct gbpy_request place = { .object = &contexts[i]->memory.head };
        if (find_conflict(&place, 1, gbpy_caller(), true) < 0) {
            i++;
        } else {
            status = wait_for(what, &place, 1, 0);
            i = 0; // the other contexts may have changed meanwhile
        }
    }
    return status;
}

bool gbpy_try_take(struct gbpy_locks * locks, const struct gbpy_request * requests, int n) {
    for (int i = 0; i < n; i++) {
        if (requests[i].object->broken ||
            (requests[i].object->closed && !gbpy_can_lock_when_closed(requests[i].object))) {
            return false;
        }
    }
    return locks->capacity >= n && find_conflict(requests, n, gbpy_caller(), false) < 0 && take(locks, requests, n);
}

static long long gathering; // number of lists that were begun

void gbpy_begin_requests(gbpy_requests * requests) {
    requests->n = 0;
    gathering++;
}

static struct gbpy_request * find_request(const gbpy_requests * requests, const struct gbpy_object * o) {
    return o->gathered == gathering ? &requests->data[o->at] : NULL;
}

static bool push_request(gbpy_requests * requests, struct gbpy_request request) {
    request.object->gathered = gathering;
    request.object->at = requests->n;
    if (!gb_vec_push(requests, request)) {
        request.object->gathered = 0;
        return false;
    }
    return true;
}

static bool add(gbpy_requests * requests, struct gbpy_request request) {
    struct gbpy_request * known = find_request(requests, request.object);
    if (known != NULL) {
        known->write |= request.write;
        return true;
    }
    return push_request(requests, request);
}

bool gbpy_add_request(gbpy_requests * requests, struct gbpy_object * o, bool write) {
    return add(requests, (struct gbpy_request){ .object = o, .write = write });
}

bool gbpy_is_locked(const struct gbpy_object * o) { return o->writer != NULL || o->n_readers > 0; }

bool gbpy_add_placement(gbpy_requests * requests, struct gbpy_context * context) {
    bool ok = gbpy_add_request(requests, &context->memory.head, true);
    for (size_t i = 0; ok && i < context->placed_in.n; i++) {
        struct gbpy_object * owner = context->placed_in.data[i];
        if (owner->closed && gbpy_is_locked(owner) && find_request(requests, owner) == NULL) {
            ok = push_request(requests, (struct gbpy_request){ .object = owner, .write = true, .closed_too = true });
        }
    }
    return ok;
}

static int lock_in_one_step(struct gbpy_locks * locks, const char * what, const struct gbpy_request * requests, int n,
    struct gbpy_context * const * contexts, int n_contexts, bool nested) {
    gbpy_requests all = { 0 };
    int status = GGML_STATUS_SUCCESS;
    gbpy_mutex_lock();
    while (status == GGML_STATUS_SUCCESS && !locks->active) {
        bool ok = true;
        gbpy_begin_requests(&all);
        for (int i = 0; ok && i < n; i++) {
            ok = add(&all, requests[i]);
        }
        for (int i = 0; ok && i < n_contexts; i++) {
            ok = gbpy_add_placement(&all, contexts[i]);
        }
        ok = ok && gbpy_reserve_locks(locks, (int) all.n);
        status = ok ? gbpy_take_or_wait(locks, what, all.data, (int) all.n, nested, NULL) : GGML_STATUS_ALLOC_FAILED;
    }
    gbpy_mutex_unlock();
    gb_vec_free(&all);
    return status;
}

int gbpy_lock_all(struct gbpy_locks * locks, const char * what, const struct gbpy_request * requests, int n,
    bool nested) {
    return lock_in_one_step(locks, what, requests, n, NULL, 0, nested);
}

int gbpy_lock_to_place(struct gbpy_locks * locks, const char * what, const struct gbpy_request * requests, int n,
    struct gbpy_context * const * contexts, int n_contexts) {
    return lock_in_one_step(locks, what, requests, n, contexts, n_contexts, false);
}

int gbpy_lock(struct gbpy_locks * locks, const char * what, struct gbpy_handle ** handles, int n, int n_written,
    bool nested, bool beside_runs) {
    GB_FAIL_IF(locks->active, GGML_STATUS_INVALID_STATE, "%s: the locks are already held", what);
    struct gbpy_request few[8];
    struct gbpy_request * requests = n <= 8 ? few : gb_calloc((size_t) n, sizeof(*requests));
    int status = requests != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    for (int i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
        requests[i] = (struct gbpy_request){
            .object = gbpy_object_of(handles[i], what), .write = i < n_written, .beside_runs = beside_runs
        };
        status = requests[i].object != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_INVALID_STATE;
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = gbpy_lock_all(locks, what, requests, n, nested);
    }
    if (requests != few) {
        gb_free(requests);
    }
    return status;
}

// ------------------------------------------------------------------------------------------------------------- leaving

void gbpy_unlock_one(struct gbpy_locks * locks, struct gbpy_object * o) {
    int found = -1;
    gbpy_mutex_lock();
    for (int i = 0; i < locks->n; i++) {
        if (locks->held[i].object == o) {
            found = i;
        }
    }
    if (found >= 0) {
        end_lock(&locks->held[found]);
        locks->held[found] = locks->held[--locks->n];
        gbpy_wake_waiters();
    }
    gbpy_mutex_unlock();
    if (found >= 0) {
        gbpy_unref(o);
    }
}

void gbpy_unlock(struct gbpy_locks * locks) { gbpy_unlock_after(locks, NULL, NULL, 0); }

void gbpy_unlock_after(struct gbpy_locks * locks, void (*last)(struct gbpy_graph * graph, long long number),
    struct gbpy_graph * graph, long long number) {
    struct gbpy_object * dead = NULL;
    if (locks == NULL) {
        return;
    }
    if (locks->active) {
        gbpy_mutex_lock();
        if (last != NULL) {
            last(graph, number);
        }
        if (locks->active) { // a fork may have released it
            for (int i = 0; i < locks->n; i++) {
                end_lock(&locks->held[i]);
            }
            unlink_locks(locks);
            gbpy_wake_waiters();
        }
        gbpy_mutex_unlock();
        for (int i = 0; i < locks->n; i++) {
            gbpy_give(locks->held[i].object, &dead);
        }
        locks->n = 0;
    }
    if (!locks->borrowed && locks->held != NULL) {
        gb_free(locks->held);
    }
    locks->held = NULL;
    locks->capacity = 0;
    locks->borrowed = false;
    gbpy_destroy_all(dead);
}

bool gbpy_is_busy(const struct gbpy_handle * handle) {
    if (handle == NULL || handle->object == NULL) {
        return false;
    }
    gbpy_mutex_lock();
    const bool busy = handle->object->writer != NULL;
    gbpy_mutex_unlock();
    return busy;
}

bool gbpy_is_mine(const struct gbpy_handle * handle) {
    if (handle == NULL || handle->object == NULL) {
        return false;
    }
    gbpy_mutex_lock();
    const bool is_mine = handle->object->writer != NULL && handle->object->writer->owner == gbpy_caller();
    gbpy_mutex_unlock();
    return is_mine;
}
