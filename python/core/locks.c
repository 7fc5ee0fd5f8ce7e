// locks.c - the lists of uses, the search for cycles of waiting users, and entering and leaving (locks.h).
#include "locks.h"

#include "extension.h"

#ifndef _WIN32
#    include <pthread.h>
#endif

// All of this is under the lock.
static struct gbpy_use * uses; // the active ones
static int n_waiters;

struct waiter { // who waits, and for what
    const void * who;
    const struct gbpy_want * wants;
    int n;
    struct waiter * next;
    unsigned searched; // the number of the last search that came by
};
static struct waiter * waiters;
static unsigned n_searches;

static void end_want(const struct gbpy_want * want) {
    if (want->nested) {
        return;
    }
    if (want->write) {
        want->object->writer = NULL;
    } else {
        want->object->n_readers--;
    }
}

static void unlink_use(struct gbpy_use * use) {
    *(use->previous != NULL ? &use->previous->next : &uses) = use->next;
    if (use->next != NULL) {
        use->next->previous = use->previous;
    }
    use->active = false;
}

// --------------------------------------------------------------------------------------------------------------- forks

#ifndef _WIN32
// Threads do not survive a fork, but for the one that called it. What others were writing is in no known state.
static void in_child(void) {
    for (struct gbpy_use *use = uses, *next; use != NULL; use = next) {
        next = use->next;
        if (use->who == gbpy_thread()) {
            continue;
        }
        for (int i = 0; i < use->n; i++) {
            use->wants[i].object->broken |= use->wants[i].write && !use->wants[i].nested;
            end_want(&use->wants[i]);
        }
        unlink_use(use);
        use->n = 0; // its references are never given back: that is for the thread which is gone
    }
    gbpy_lose_flights();
    waiters = NULL;
    n_waiters = 0;
    gbpy_renew();
    gbpy_unlock();
}
#endif

static void prepare(void) {
    gbpy_renew();
    gb_fork_generation(); // its handler is registered before ours
#ifndef _WIN32
    pthread_atfork(gbpy_lock, gbpy_unlock, in_child);
#endif
}

void gbpy_begin(void) {
    static gb_once once = GB_ONCE_INIT;
    gb_call_once(&once, prepare);
}

// ---------------------------------------------------------------------------------------------- what stands in the way

// Reads that `me` holds on the object, in any of its uses.
static int reads_of(const struct gbpy_object * o, const void * me) {
    int n = 0;
    for (const struct gbpy_use * use = uses; use != NULL; use = use->next) {
        for (int i = 0; use->who == me && i < use->n; i++) {
            n += use->wants[i].object == o && !use->wants[i].write && !use->wants[i].nested;
        }
    }
    return n;
}

// The first want that has to wait, -1: none. `nested`: what `me` uses already does not count.
static int find_conflict(const struct gbpy_want * wants, int n, const void * me, bool nested) {
    for (int i = 0; i < n; i++) {
        const struct gbpy_object * o = wants[i].object;
        if (o->writer != NULL && !(nested && o->writer->who == me)) {
            return i;
        }
        if (wants[i].write && o->n_readers > 0 && !(nested && reads_of(o, me) == o->n_readers)) {
            return i;
        }
    }
    return -1;
}

bool gbpy_holds(const struct gbpy_use * use, const struct gbpy_object * o) {
    for (int i = 0; i < use->n; i++) {
        if (use->wants[i].object == o) {
            return true;
        }
    }
    return false;
}

// Is somebody who uses what `wants` asks for `me`, or waiting, through others perhaps, for what `me` uses? A search,
// which has a number, looks at each of those who wait once.
static bool leads_to(const struct gbpy_want * wants, int n, const void * me, unsigned search) {
    for (const struct gbpy_use * use = uses; use != NULL; use = use->next) {
        bool stands_in_the_way = false;
        for (int i = 0; i < n && !stands_in_the_way; i++) {
            const struct gbpy_object * o = wants[i].object;
            stands_in_the_way = gbpy_holds(use, o) && (o->writer == use || (wants[i].write && o->n_readers > 0));
        }
        if (!stands_in_the_way) {
            continue;
        }
        if (use->who == me || gbpy_waits_for_my_run(use)) {
            return true;
        }
        for (struct waiter * w = waiters; w != NULL; w = w->next) {
            if (w->who == use->who && w->searched != search) {
                w->searched = search;
                if (leads_to(w->wants, w->n, me, search)) {
                    return true;
                }
            }
        }
    }
    return false;
}

// Waits for a change. A status if who asks would wait for himself, or was interrupted.
static int wait_for(const char * what, const struct gbpy_want * wants, int n, int conflict) {
    const void * me = gbpy_me();
    const struct gbpy_object * o = wants[conflict].object;
    if ((o->writer != NULL && o->writer->who == me) || reads_of(o, me) > 0) {
        return gb_fail(GGML_STATUS_INVALID_STATE, "%s: is computing, and was called from one of its own callbacks",
            what);
    }
    if (leads_to(wants, n, me, ++n_searches)) {
        return gb_fail(GGML_STATUS_INVALID_STATE,
            "%s: called from a callback of a computation, it would wait for somebody who waits for that computation",
            what);
    }
    struct waiter self = { .who = me, .wants = wants, .n = n, .next = waiters };
    waiters = &self;
    n_waiters++;
    const unsigned generation = gb_fork_generation();
    const bool stop = gbpy_wait();
    if (generation == gb_fork_generation()) { // else nobody waits in the child
        struct waiter ** link = &waiters;
        while (*link != &self) {
            link = &(*link)->next;
        }
        *link = self.next;
        n_waiters--;
    }
    return stop ? gbpy_outcome(GBPY_INTERRUPTED) : GGML_STATUS_SUCCESS;
}

static int check_usable(const char * what, const struct gbpy_want * wants, int n) {
    static const char * const names[] = { "context", "graph", "buffer", "copy of a graph", "scheduler", "backend",
        "event", "allocator", "allocator" };
    for (int i = 0; i < n; i++) {
        const struct gbpy_object * o = wants[i].object;
        GB_FAIL_IF(o->broken, GGML_STATUS_INVALID_STATE,
            "%s: the %s was in use by another thread when the process was forked: make a new one", what,
            names[o->kind]);
        GB_FAIL_IF(o->closed && o->kind != GBPY_BACKEND && !wants[i].closed_too, GGML_STATUS_INVALID_STATE,
            "%s: the %s is closed", what, names[o->kind]);
    }
    return GGML_STATUS_SUCCESS;
}

// ------------------------------------------------------------------------------------------------------------ entering

bool gbpy_reserve_use(struct gbpy_use * use, int n) {
    if (use->capacity >= n) {
        return true;
    }
    struct gbpy_want * wants = gb_calloc((size_t) n, sizeof(*wants));
    if (wants == NULL) {
        return false;
    }
    if (!use->borrowed) {
        gb_free(use->wants);
    }
    use->wants = wants;
    use->capacity = n;
    use->borrowed = false;
    return true;
}

// Without conflict. False: one of them is being freed; the lock was given up.
static bool take(struct gbpy_use * use, const struct gbpy_want * wants, int n) {
    int k = 0;
    while (k < n && gbpy_try_ref(wants[k].object)) {
        k++;
    }
    if (k < n) {
        gbpy_note_move(); // who knows it as an owner of memory looks again
        gbpy_unlock();
        while (k-- > 0) {
            gbpy_unref(wants[k].object);
        }
        gbpy_lock();
        return false;
    }
    use->who = gbpy_me();
    use->n = n;
    for (int i = 0; i < n; i++) {
        struct gbpy_object * o = wants[i].object;
        use->wants[i] = wants[i];
        use->wants[i].nested = o->writer != NULL; // ours
        if (use->wants[i].nested) {
            continue;
        }
        if (wants[i].write) {
            o->writer = use;
        } else {
            o->n_readers++;
        }
    }
    use->active = true;
    use->previous = NULL;
    use->next = uses;
    if (uses != NULL) {
        uses->previous = use;
    }
    uses = use;
    return true;
}

int gbpy_take_or_wait(struct gbpy_use * use, const char * what, const struct gbpy_want * wants, int n, bool nested,
    const struct ggml_tensor * staged) {
    int status = check_usable(what, wants, n);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    const int conflict = find_conflict(wants, n, gbpy_me(), nested);
    if (conflict >= 0) {
        return wait_for(what, wants, n, conflict);
    }
    if (!gbpy_land_conflicts(wants, n, staged, &status)) {
        take(use, wants, n);
    }
    return status;
}

int gbpy_await_placing(struct gbpy_object * const * contexts, int n, const char * what) {
    int status = GGML_STATUS_SUCCESS;
    for (int i = 0; i < n && status == GGML_STATUS_SUCCESS;) {
        const struct gbpy_want place = { .object = contexts[i] };
        if (find_conflict(&place, 1, gbpy_me(), true) < 0) {
            i++;
        } else {
            status = wait_for(what, &place, 1, 0);
            i = 0; // the others may have changed meanwhile
        }
    }
    return status;
}

bool gbpy_try_take(struct gbpy_use * use, const struct gbpy_want * wants, int n) {
    for (int i = 0; i < n; i++) {
        if (wants[i].object->broken || (wants[i].object->closed && wants[i].object->kind != GBPY_BACKEND)) {
            return false;
        }
    }
    return use->capacity >= n && find_conflict(wants, n, gbpy_me(), false) < 0 && take(use, wants, n);
}

static long long gathering; // lists that were begun

void gbpy_begin_wants(gbpy_wants * wants) {
    wants->n = 0;
    gathering++;
}

static struct gbpy_want * find_want(const gbpy_wants * wants, const struct gbpy_object * o) {
    return o->gathered == gathering ? &wants->data[o->at] : NULL;
}

static bool push_want(gbpy_wants * wants, struct gbpy_want want) {
    want.object->gathered = gathering;
    want.object->at = wants->n;
    if (!gb_vec_push(wants, want)) {
        want.object->gathered = 0;
        return false;
    }
    return true;
}

static bool add(gbpy_wants * wants, struct gbpy_want want) {
    struct gbpy_want * known = find_want(wants, want.object);
    if (known != NULL) {
        known->write |= want.write;
        return true;
    }
    return push_want(wants, want);
}

bool gbpy_add_want(gbpy_wants * wants, struct gbpy_object * o, bool write) {
    return add(wants, (struct gbpy_want){ .object = o, .write = write });
}

bool gbpy_is_used(const struct gbpy_object * o) { return o->writer != NULL || o->n_readers > 0; }

bool gbpy_add_place(gbpy_wants * wants, struct gbpy_object * context) {
    bool ok = gbpy_add_want(wants, context, true);
    for (size_t i = 0; ok && i < context->placed_in.n; i++) {
        struct gbpy_object * owner = context->placed_in.data[i];
        if (owner->closed && gbpy_is_used(owner) && find_want(wants, owner) == NULL) {
            ok = push_want(wants, (struct gbpy_want){ .object = owner, .write = true, .closed_too = true });
        }
    }
    return ok;
}

static int enter(struct gbpy_use * use, const char * what, const struct gbpy_want * wants, int n,
    struct gbpy_object * const * contexts, int n_contexts, bool nested) {
    gbpy_wants all = { 0 };
    int status = GGML_STATUS_SUCCESS;
    gbpy_lock();
    while (status == GGML_STATUS_SUCCESS && !use->active) {
        bool ok = true;
        gbpy_begin_wants(&all);
        for (int i = 0; ok && i < n; i++) {
            ok = add(&all, wants[i]);
        }
        for (int i = 0; ok && i < n_contexts; i++) {
            ok = gbpy_add_place(&all, contexts[i]);
        }
        ok = ok && gbpy_reserve_use(use, (int) all.n);
        status = ok ? gbpy_take_or_wait(use, what, all.data, (int) all.n, nested, NULL) : GGML_STATUS_ALLOC_FAILED;
    }
    gbpy_unlock();
    gb_vec_free(&all);
    return status;
}

int gbpy_enter_wants(struct gbpy_use * use, const char * what, const struct gbpy_want * wants, int n, bool nested) {
    return enter(use, what, wants, n, NULL, 0, nested);
}

int gbpy_enter_to_place(struct gbpy_use * use, const char * what, const struct gbpy_want * wants, int n,
    struct gbpy_object * const * contexts, int n_contexts) {
    return enter(use, what, wants, n, contexts, n_contexts, false);
}

int gbpy_enter(struct gbpy_use * use, const char * what, struct gbpy_handle ** handles, int n, int n_written,
    bool nested, bool beside_runs) {
    GB_FAIL_IF(use->active, GGML_STATUS_INVALID_STATE, "%s: the use has begun already", what);
    struct gbpy_want few[8];
    struct gbpy_want * wants = n <= 8 ? few : gb_calloc((size_t) n, sizeof(*wants));
    int status = wants != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    for (int i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
        wants[i] = (struct gbpy_want){
            .object = gbpy_object_of(handles[i], what), .write = i < n_written, .beside_runs = beside_runs
        };
        status = wants[i].object != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_INVALID_STATE;
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = gbpy_enter_wants(use, what, wants, n, nested);
    }
    if (wants != few) {
        gb_free(wants);
    }
    return status;
}

// ------------------------------------------------------------------------------------------------------------- leaving

void gbpy_let_go(struct gbpy_use * use, struct gbpy_object * o) {
    int found = -1;
    gbpy_lock();
    for (int i = 0; i < use->n; i++) {
        if (use->wants[i].object == o) {
            found = i;
        }
    }
    if (found >= 0) {
        end_want(&use->wants[found]);
        use->wants[found] = use->wants[--use->n];
        gbpy_changed();
    }
    gbpy_unlock();
    if (found >= 0) {
        gbpy_unref(o);
    }
}

void gbpy_leave(struct gbpy_use * use) { gbpy_leave_after(use, NULL, NULL, 0); }

void gbpy_leave_after(struct gbpy_use * use, void (*last)(struct gbpy_object * object, long long number),
    struct gbpy_object * object, long long number) {
    struct gbpy_object * dead = NULL;
    if (use == NULL) {
        return;
    }
    if (use->active) {
        gbpy_lock();
        if (last != NULL) {
            last(object, number);
        }
        if (use->active) { // else a fork ended it
            for (int i = 0; i < use->n; i++) {
                end_want(&use->wants[i]);
            }
            unlink_use(use);
            gbpy_changed();
        }
        gbpy_unlock();
        for (int i = 0; i < use->n; i++) {
            gbpy_give(use->wants[i].object, &dead);
        }
        use->n = 0;
    }
    if (!use->borrowed && use->wants != NULL) {
        gb_free(use->wants);
    }
    use->wants = NULL;
    use->capacity = 0;
    use->borrowed = false;
    gbpy_destroy_all(dead);
}

bool gbpy_is_busy(const struct gbpy_handle * handle) {
    if (handle == NULL || handle->object == NULL) {
        return false;
    }
    gbpy_lock();
    const bool busy = handle->object->writer != NULL;
    gbpy_unlock();
    return busy;
}

bool gbpy_is_mine(const struct gbpy_handle * handle) {
    if (handle == NULL || handle->object == NULL) {
        return false;
    }
    gbpy_lock();
    const bool is_mine = handle->object->writer != NULL && handle->object->writer->who == gbpy_me();
    gbpy_unlock();
    return is_mine;
}
