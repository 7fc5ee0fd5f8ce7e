// objects.c - references, and uses of objects: see objects.h.
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include "objects.h"

#include <string.h>

#include "backend/backend.h"
#include "base/current.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"

#ifndef _WIN32
#    include <pthread.h>
#endif

static gb_mutex          world = GB_MUTEX_INIT;
static gb_cond           changed; // a use ended
static gb_once           prepared = GB_ONCE_INIT;
static struct gbpy_use * uses;    // all active ones
static int               n_waiting;
static atomic_bool       ending;

atomic_llong gbpy_epochs;
atomic_int   gbpy_cancels;

static _Thread_local bool interrupted; // the poll said so, and nobody was told

bool (*gbpy_land_conflicts)(const struct gbpy_want * wants, int n, const struct ggml_tensor * staged, int * status);
void (*gbpy_free_sched)(struct gbpy_object * sched);

// Who waits, and for what: under the lock.
struct waiter {
    const void *             who;
    const struct gbpy_want * wants;
    int                      n;
    struct waiter *          next;
};
static struct waiter * waiters;

// ---------------------------------------------------------------------------------------------------------------------- the lock

static _Thread_local char mine; // its address is the thread's name

#ifndef _WIN32
static void before_fork(void) { gb_mutex_lock(&world); }
static void after_fork(void) { gb_mutex_unlock(&world); }

// Threads do not survive a fork, but for the one that called it. What others were writing is in no known state.
static void in_child(void) {
    struct gbpy_use ** link = &uses;
    while (*link != NULL) {
        struct gbpy_use * use = *link;
        if (use->who == &mine) {
            link = &use->next;
            continue;
        }
        for (int i = 0; i < use->n; i++) {
            struct gbpy_object * o = use->wants[i].object;
            if (use->wants[i].write && !use->wants[i].nested) {
                o->writer = NULL;
                o->broken = true;
            } else if (!use->wants[i].nested) {
                o->n_readers--;
            }
        }
        use->active = false; // its references are never given back: that is for the thread which is gone
        use->n      = 0;
        *link       = use->next;
        if (use->next != NULL) {
            use->next->previous = use->previous;
        }
    }
    waiters   = NULL;
    n_waiting = 0;
    gb_cond_init(&changed);
    gb_mutex_unlock(&world);
}
#endif

static void prepare(void) {
    gb_cond_init(&changed);
    gb_fork_generation(); // its handler is registered before ours
#ifndef _WIN32
    pthread_atfork(before_fork, after_fork, in_child);
#endif
}

#if defined(__GNUC__) || defined(__clang__)
__attribute__((constructor)) // when the module is loaded
#endif
static void
prepare_once(void) {
    gb_call_once(&prepared, prepare);
}

void gbpy_lock(void) { gb_mutex_lock(&world); }

void gbpy_unlock(void) { gb_mutex_unlock(&world); }

const void * gbpy_me(void) {
    const void * run = gb_run();
    return run != NULL ? *(const void * const *) run : (const void *) &mine; // a run begins with who started it
}

static bool (*signal_poll)(void * data);

static bool poll_signals(void * data) {
    if (!interrupted && signal_poll(data)) {
        interrupted = true;
        atomic_fetch_add(&gbpy_cancels, 1);
    }
    return interrupted;
}

void gbpy_watch_signals(bool (*poll)(void * data)) {
    signal_poll = poll;
    gb_set_poll(poll_signals, NULL);
}

int gbpy_outcome(int status) {
    if (!interrupted) {
        return status;
    }
    interrupted = false;
    return GBPY_INTERRUPTED;
}

void gbpy_end(void) {
    atomic_store(&ending, true);
    gb_set_poll(NULL, NULL);
}

// -------------------------------------------------------------------------------------------------------------------- references

struct gbpy_object * gbpy_object_new(enum gbpy_kind kind) {
    static atomic_llong  last_serial;
    struct gbpy_object * o = GB_NEW(struct gbpy_object);
    if (o != NULL) {
        o->serial = atomic_fetch_add(&last_serial, 1) + 1;
        o->kind  = kind;
        o->epoch = o->computed = -1;
        atomic_init(&o->refs, 1);
        atomic_init(&o->weak, 1);
    }
    return o;
}

void gbpy_ref(struct gbpy_object * o) { atomic_fetch_add(&o->refs, 1); }

bool gbpy_try_ref(struct gbpy_object * o) {
    int refs = atomic_load(&o->refs);
    while (refs > 0 && !atomic_compare_exchange_weak(&o->refs, &refs, refs + 1)) {
    }
    return refs > 0;
}

static void free_handles(struct gbpy_object * o) {
    for (size_t i = 0; i < o->handles.n; i++) {
        gb_buffer_unhold(o->handles.data[i]);
    }
    gb_vec_free(&o->handles);
}

void gbpy_weak_unref(struct gbpy_object * o) {
    if (atomic_fetch_sub(&o->weak, 1) == 1) {
        free_handles(o);
        gb_free(o);
    }
}

static void remove_object(gbpy_objects * list, const struct gbpy_object * o) {
    for (size_t i = 0; i < list->n; i++) {
        if (list->data[i] == o) {
            list->data[i] = list->data[--list->n];
            return;
        }
    }
}

// The C object. Nobody refers to `o` strongly any more, so nobody else looks at these fields.
static void free_ptr(struct gbpy_object * o) {
    if (o->broken) {
        return; // in a forked child: the thread that was at it is gone, and its locks are held by nobody
    }
    switch (o->kind) {
        case GBPY_CONTEXT: ggml_free(o->ptr); break;
        case GBPY_GRAPH: break; // memory of its context
        case GBPY_BUFFER: ggml_backend_buffer_free(o->ptr); break;
        case GBPY_COPY: ggml_backend_graph_copy_free(o->copy); break;
        case GBPY_SCHED: gbpy_free_sched(o); break;
        case GBPY_BACKEND: ggml_backend_free(o->ptr); break;
        case GBPY_EVENT: ggml_backend_event_free(o->ptr); break;
        case GBPY_TALLOCR: ggml_tallocr_free(o->ptr); break;
        case GBPY_GALLOCR: ggml_gallocr_free(o->ptr); break;
    }
}

static void let_go_of_python(struct gbpy_object * o) {
    if (o->python.n > 0) {
        const PyGILState_STATE state = PyGILState_Ensure();
        for (size_t i = o->python.n; i-- > 0;) {
            Py_DecRef((PyObject *) o->python.data[i]);
        }
        PyGILState_Release(state);
    }
    gb_vec_free(&o->python);
}

static void drop_keeps(struct gbpy_object * context, struct gbpy_object ** dead);

static void give(struct gbpy_object * o, struct gbpy_object ** dead) {
    if (o != NULL && atomic_fetch_sub(&o->refs, 1) == 1) {
        o->next_dead = *dead;
        *dead        = o;
    }
}

static void destroy(struct gbpy_object * o, struct gbpy_object ** dead) {
    if (o->kind == GBPY_CONTEXT) {
        drop_keeps(o, dead);
    }
    if (o->handles.n > 0) {
        gbpy_note_move(); // who knows it as the owner of memory looks again
    }
    free_ptr(o);
    let_go_of_python(o);
    for (size_t i = 0; i < o->needs.n; i++) {
        give(o->needs.data[i], dead);
    }
    for (size_t i = 0; i < o->homes.n; i++) {
        gbpy_weak_unref(o->homes.data[i]);
    }
    for (size_t i = 0; i < o->constants.n; i++) {
        gb_free(o->constants.data[i].value);
    }
    give(o->graph, dead);
    gb_vec_free(&o->needs);
    gb_vec_free(&o->homes);
    gb_vec_free(&o->constants);
    gb_vec_free(&o->keepers);
    gb_vec_free(&o->owners);
    gb_vec_free(&o->results);
    gb_free(o->contexts);
    gbpy_weak_unref(o);
}

// A chain of a million objects is given back in a loop, not by recursion.
static void destroy_all(struct gbpy_object * dead) {
    void *           data;
    const gb_poll_fn poll = gb_get_poll(&data);
    if (dead == NULL || atomic_load(&ending)) {
        return;
    }
    const bool was_interrupted = interrupted;
    gb_set_poll(NULL, NULL); // what is freed waits for its device: nobody could be told of an interrupt
    while (dead != NULL) {
        struct gbpy_object * o = dead;
        dead                   = o->next_dead;
        destroy(o, &dead);
    }
    gb_set_poll(poll, data);
    interrupted = was_interrupted;
}

void gbpy_unref(struct gbpy_object * o) { // NULL is fine
    struct gbpy_object * dead = NULL;
    give(o, &dead);
    destroy_all(dead);
}

// The buffers that were given to a context are the context's no more.
static void drop_keeps(struct gbpy_object * context, struct gbpy_object ** dead) {
    gbpy_lock();
    gbpy_objects keeps = context->keeps;
    memset(&context->keeps, 0, sizeof(context->keeps));
    for (size_t i = 0; i < keeps.n; i++) {
        remove_object(&keeps.data[i]->keepers, context);
    }
    gbpy_unlock();
    for (size_t i = 0; i < keeps.n; i++) {
        give(keeps.data[i], dead);
    }
    gb_vec_free(&keeps);
    gbpy_note_move();
}

// ----------------------------------------------------------------------------------------------------------------------- handles

struct gbpy_object * gbpy_object_of(const struct gbpy_handle * handle, const char * what) {
    struct gbpy_object * o = handle != NULL ? handle->object : NULL;
    if (o == NULL) {
        gb_fail(GGML_STATUS_INVALID_STATE, "%s: the object is closed", what);
    }
    return o;
}

int gbpy_fill(struct gbpy_handle * handle, struct gbpy_object * object) {
    handle->object = object;
    return GGML_STATUS_SUCCESS;
}

void gbpy_release(struct gbpy_handle * handle) {
    struct gbpy_object * o    = handle != NULL ? handle->object : NULL;
    struct gbpy_object * dead = NULL;
    if (o == NULL || atomic_load(&ending)) {
        return;
    }
    handle->object = NULL;
    if (handle->keeps && atomic_fetch_sub(&o->n_keeping, 1) == 1) {
        drop_keeps(o, &dead);
    }
    give(o, &dead);
    destroy_all(dead);
}

void gbpy_share(struct gbpy_handle * handle, const struct gbpy_handle * other, bool keeps) {
    if (handle != NULL && handle->object == NULL && other != NULL && other->object != NULL) {
        gbpy_ref(other->object);
        if (keeps) {
            atomic_fetch_add(&other->object->n_keeping, 1);
        }
        handle->keeps  = keeps;
        handle->object = other->object;
    }
}

void * gbpy_ptr(const struct gbpy_handle * handle) { return handle != NULL && handle->object != NULL ? handle->object->ptr : NULL; }

int gbpy_kind_of(const struct gbpy_handle * handle) { return handle != NULL && handle->object != NULL ? (int) handle->object->kind : -1; }

bool gbpy_same(const struct gbpy_handle * a, const struct gbpy_handle * b) { return a != NULL && b != NULL && a->object == b->object; }

static bool has_object(const gbpy_objects * list, const struct gbpy_object * o) {
    for (size_t i = list->n; i-- > 0;) { // what was added last is asked for most
        if (list->data[i] == o) {
            return true;
        }
    }
    return false;
}

bool gbpy_add_need(struct gbpy_object * object, struct gbpy_object * other) {
    gbpy_lock();
    const bool has = object == other || has_object(&object->needs, other);
    const bool ok  = has || gb_vec_push(&object->needs, other);
    if (ok && !has) {
        gbpy_ref(other);
    }
    gbpy_unlock();
    return ok;
}

void gbpy_need(struct gbpy_handle * handle, const struct gbpy_handle * other) {
    if (handle != NULL && handle->object != NULL && other != NULL && other->object != NULL) {
        gbpy_add_need(handle->object, other->object);
    }
}

bool gbpy_keep(struct gbpy_handle * handle, uintptr_t object) {
    struct gbpy_object * o = gbpy_object_of(handle, "keep");
    if (o == NULL || object == 0) {
        return false;
    }
    const PyGILState_STATE state = PyGILState_Ensure();
    gbpy_lock();
    const bool ok = gb_vec_push(&o->python, (void *) object);
    gbpy_unlock();
    if (ok) {
        Py_IncRef((PyObject *) object);
    }
    PyGILState_Release(state);
    return ok;
}

void gbpy_untrack(uintptr_t object) {
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject_GC_UnTrack((void *) object);
    PyGILState_Release(state);
}

void gbpy_close(struct gbpy_handle * handle) {
    struct gbpy_object * o    = handle != NULL ? handle->object : NULL;
    struct gbpy_object * dead = NULL;
    if (o == NULL) {
        return;
    }
    gbpy_lock();
    atomic_store(&o->closed, true);
    const gbpy_objects keepers = o->keepers;
    memset(&o->keepers, 0, sizeof(o->keepers));
    for (size_t i = 0; i < keepers.n; i++) {
        remove_object(&keepers.data[i]->keeps, o);
    }
    gb_cond_broadcast(&changed); // who waits for it has waited long enough
    gbpy_unlock();
    gbpy_note_move();
    for (size_t i = 0; i < keepers.n; i++) {
        give(o, &dead); // the handle still has one
    }
    gb_free(keepers.data);
    destroy_all(dead);
}

bool gbpy_is_closed(const struct gbpy_handle * handle) {
    if (handle == NULL || handle->object == NULL) {
        return true;
    }
    gbpy_lock();
    const bool closed = handle->object->closed;
    gbpy_unlock();
    return closed;
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

// -------------------------------------------------------------------------------------------------------------- owners of memory

bool gbpy_own(struct gbpy_object * owner, ggml_backend_buffer_t buffer) {
    ggml_backend_buffer_t part;
    if (buffer->binding == owner) {
        return true;
    }
    for (size_t i = 0; (part = gb_multi_buffer_part(buffer, i)) != NULL; i++) {
        if (!gbpy_own(owner, part)) {
            return false;
        }
    }
    gbpy_lock();
    const bool ok = gb_vec_push(&owner->handles, buffer);
    if (ok) {
        gb_buffer_hold(buffer);
        buffer->binding = owner;
    }
    gbpy_unlock();
    return ok;
}

int gbpy_n_owned(const struct gbpy_handle * owner) { return owner != NULL && owner->object != NULL ? (int) owner->object->handles.n : 0; }

struct ggml_backend_buffer * gbpy_owned(const struct gbpy_handle * owner, int i) {
    return i >= 0 && i < gbpy_n_owned(owner) ? owner->object->handles.data[i] : NULL;
}

bool gbpy_keep_owner(struct gbpy_object * context, struct gbpy_object * owner) {
    gbpy_lock();
    bool ok = has_object(&context->keeps, owner);
    if (!ok && !owner->closed && gb_vec_reserve(&context->keeps, context->keeps.n + 1) && gb_vec_reserve(&owner->keepers, owner->keepers.n + 1)) {
        context->keeps.data[context->keeps.n++]   = owner;
        owner->keepers.data[owner->keepers.n++] = context;
        gbpy_ref(owner);
        ok = true;
    }
    gbpy_unlock();
    return ok;
}

static bool uses_handle_of(struct ggml_context * ctx, const struct gbpy_object * owner) {
    for (struct ggml_tensor * t = ggml_get_first_tensor(ctx); t != NULL; t = ggml_get_next_tensor(ctx, t)) {
        if (t->buffer != NULL && t->buffer->binding == owner) {
            return true;
        }
    }
    return false;
}

// A context that many schedulers come and go with does not collect what is left of them: when the list has doubled, those that no
// tensor points to any more are let go. Called by who uses the context to place, with the lock.
static void prune_homes(struct gbpy_object * context) {
    size_t n = 0;
    for (size_t i = 0; i < context->homes.n; i++) {
        struct gbpy_object * home = context->homes.data[i];
        if (atomic_load(&home->refs) > 0 || uses_handle_of(context->ptr, home)) {
            context->homes.data[n++] = home;
        } else {
            gbpy_weak_unref(home);
        }
    }
    context->homes.n = n;
}

bool gbpy_add_home(struct gbpy_object * context, struct gbpy_object * owner) {
    enum { FEW = 8 };
    gbpy_lock();
    bool ok = has_object(&context->homes, owner);
    if (!ok) {
        if (context->kind == GBPY_CONTEXT && context->homes.n >= FEW && context->homes.n == context->homes.cap) {
            prune_homes(context);
        }
        const size_t room = context->homes.n + context->homes.n / 2 + FEW;
        ok = (context->homes.n < context->homes.cap || gb_vec_reserve(&context->homes, room)) && gb_vec_push(&context->homes, owner);
        if (ok) {
            atomic_fetch_add(&owner->weak, 1);
        }
    }
    gbpy_unlock();
    return ok;
}

// -------------------------------------------------------------------------------------------------------------------------- uses

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

int gbpy_find_conflict(const struct gbpy_want * wants, int n, const void * me, bool mine_too) {
    for (int i = 0; i < n; i++) {
        const struct gbpy_object * o = wants[i].object;
        if (o->writer != NULL && !(mine_too && o->writer->who == me)) {
            return i;
        }
        if (wants[i].write && o->n_readers > 0 && !(mine_too && reads_of(o, me) == o->n_readers)) {
            return i;
        }
    }
    return -1;
}

static bool holds(const struct gbpy_use * use, const struct gbpy_object * o) {
    for (int i = 0; i < use->n; i++) {
        if (use->wants[i].object == o) {
            return true;
        }
    }
    return false;
}

// Is somebody who uses what `wants` asks for `me`, or waiting, through others perhaps, for what `me` uses? Depth is bounded by the number of
// those who wait.
static bool leads_to(const struct gbpy_want * wants, int n, const void * me, int depth) {
    for (const struct gbpy_use * use = uses; use != NULL; use = use->next) {
        bool stands_in_the_way = false;
        for (int i = 0; i < n && !stands_in_the_way; i++) {
            const struct gbpy_object * o = wants[i].object;
            stands_in_the_way = holds(use, o) && (o->writer == use || (wants[i].write && o->n_readers > 0));
        }
        if (!stands_in_the_way) {
            continue;
        }
        if (use->who == me) {
            return true;
        }
        for (const struct waiter * w = waiters; w != NULL && depth > 0; w = w->next) {
            if (w->who == use->who && leads_to(w->wants, w->n, me, depth - 1)) {
                return true;
            }
        }
    }
    return false;
}

int gbpy_wait_for(const char * what, const struct gbpy_want * wants, int n, int conflict) {
    const void *               me = gbpy_me();
    const struct gbpy_object * o  = wants[conflict].object;
    if ((o->writer != NULL && o->writer->who == me) || reads_of(o, me) > 0) {
        return gb_fail(GGML_STATUS_INVALID_STATE, "%s: is computing, and was called from one of its own callbacks", what);
    }
    if (leads_to(wants, n, me, n_waiting)) {
        gb_fail(GGML_STATUS_INVALID_STATE, "%s: called from a callback of one computation, it would wait for another computation whose callback waits for "
                "the first", what);
        return GGML_STATUS_INVALID_STATE;
    }
    struct waiter self = { me, wants, n, waiters };
    waiters            = &self;
    n_waiting++;
    const unsigned generation = gb_fork_generation();
    const bool     stop       = gb_cond_wait_polled(&changed, &world);
    if (generation == gb_fork_generation()) {
        struct waiter ** link = &waiters;
        while (*link != &self) {
            link = &(*link)->next;
        }
        *link = self.next;
        n_waiting--;
    }
    return stop ? gbpy_outcome(GBPY_INTERRUPTED) : GGML_STATUS_SUCCESS;
}

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
    use->wants    = wants;
    use->capacity = n;
    use->borrowed = false;
    return true;
}

bool gbpy_take(struct gbpy_use * use, const struct gbpy_want * wants, int n) {
    int k = 0;
    while (k < n && gbpy_try_ref(wants[k].object)) {
        k++;
    }
    if (k < n) {
        gbpy_unlock();
        while (k-- > 0) {
            gbpy_unref(wants[k].object);
        }
        gbpy_lock();
        return false;
    }
    use->who = gbpy_me();
    use->n   = n;
    for (int i = 0; i < n; i++) {
        struct gbpy_object * o = wants[i].object;
        use->wants[i]          = wants[i];
        use->wants[i].nested   = o->writer != NULL; // ours
        if (use->wants[i].nested) {
            continue;
        }
        if (wants[i].write) {
            o->writer = use;
        } else {
            o->n_readers++;
        }
    }
    use->active   = true;
    use->previous = NULL;
    use->next     = uses;
    if (uses != NULL) {
        uses->previous = use;
    }
    uses = use;
    return true;
}

static int check_open(const char * what, const struct gbpy_want * wants, int n) {
    static const char * const names[] = { "context", "graph", "buffer", "copy of a graph", "scheduler", "backend", "event", "allocator", "allocator" };
    for (int i = 0; i < n; i++) {
        const struct gbpy_object * o = wants[i].object;
        GB_FAIL_IF(o->broken, GGML_STATUS_INVALID_STATE, GGML_STATUS_INVALID_STATE,
                   "%s: the %s was in use by another thread when the process was forked: make a new one", what, names[o->kind]);
        GB_FAIL_IF(o->closed && o->kind != GBPY_BACKEND, GGML_STATUS_INVALID_STATE, GGML_STATUS_INVALID_STATE, "%s: the %s is closed", what, names[o->kind]);
    }
    return GGML_STATUS_SUCCESS;
}

// Writing wins where an object occurs twice: those are moved to the front, and reads of the same left out.
static int without_repeats(struct gbpy_want * to, const struct gbpy_want * wants, int n) {
    int k = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n; i++) {
            bool known = wants[i].write != (pass == 0);
            for (int j = 0; j < k && !known; j++) {
                known = to[j].object == wants[i].object;
            }
            if (!known) {
                to[k++] = wants[i];
            }
        }
    }
    return k;
}

int gbpy_enter_wants(struct gbpy_use * use, const char * what, const struct gbpy_want * wants, int n, bool nested) {
    if (!gbpy_reserve_use(use, n)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    struct gbpy_want   few[8];
    struct gbpy_want * list = n <= 8 ? few : gb_calloc((size_t) n, sizeof(*list));
    if (list == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    n          = without_repeats(list, wants, n);
    int status = GGML_STATUS_SUCCESS;
    gbpy_lock();
    while (status == GGML_STATUS_SUCCESS) {
        status = check_open(what, list, n);
        if (status != GGML_STATUS_SUCCESS) {
            break;
        }
        const int conflict = gbpy_find_conflict(list, n, gbpy_me(), nested);
        if (conflict >= 0) {
            status = gbpy_wait_for(what, list, n, conflict);
            continue;
        }
        if (!gbpy_land_conflicts(list, n, NULL, &status) && gbpy_take(use, list, n)) {
            break;
        }
    }
    gbpy_unlock();
    if (list != few) {
        gb_free(list);
    }
    return status;
}

int gbpy_enter(struct gbpy_use * use, const char * what, struct gbpy_handle ** handles, int n, int n_written, bool nested) {
    struct gbpy_want   few[8];
    struct gbpy_want * wants = n <= 8 ? few : gb_calloc((size_t) n, sizeof(*wants));
    int                status = wants != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    GB_FAIL_IF(use->active, GGML_STATUS_INVALID_STATE, GGML_STATUS_INVALID_STATE, "%s: the use has begun already", what);
    for (int i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
        wants[i] = (struct gbpy_want){ .object = gbpy_object_of(handles[i], what), .write = i < n_written };
        status   = wants[i].object != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_INVALID_STATE;
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = gbpy_enter_wants(use, what, wants, n, nested);
    }
    if (wants != few) {
        gb_free(wants);
    }
    return status;
}

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
        gb_cond_broadcast(&changed);
    }
    gbpy_unlock();
    if (found >= 0) {
        gbpy_unref(o);
    }
}

void gbpy_leave(struct gbpy_use * use) { gbpy_leave_after(use, NULL, NULL, 0); }

void gbpy_leave_after(struct gbpy_use * use, void (*last)(struct gbpy_object * object, long long number), struct gbpy_object * object, long long number) {
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
            *(use->previous != NULL ? &use->previous->next : &uses) = use->next;
            if (use->next != NULL) {
                use->next->previous = use->previous;
            }
            use->active = false;
            if (n_waiting > 0) {
                gb_cond_broadcast(&changed);
            }
        }
        gbpy_unlock();
        for (int i = 0; i < use->n; i++) {
            give(use->wants[i].object, &dead);
        }
        use->n = 0;
    }
    if (!use->borrowed && use->wants != NULL) {
        gb_free(use->wants);
    }
    use->wants    = NULL;
    use->capacity = 0;
    use->borrowed = false;
    destroy_all(dead);
}

// ----------------------------------------------------------------------------------------------------------------------- opening

static int open_object(struct gbpy_handle * handle, enum gbpy_kind kind, struct gbpy_object ** o) {
    GB_FAIL_IF(handle == NULL || handle->object != NULL, GGML_STATUS_INVALID_STATE, GGML_STATUS_INVALID_STATE, "open: the handle is not empty");
    *o = gbpy_object_new(kind);
    return *o != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

static int finish_open(struct gbpy_handle * handle, struct gbpy_object * o) {
    if (o->ptr == NULL) {
        const int status = ggml_last_status();
        gbpy_unref(o);
        return status != GGML_STATUS_SUCCESS ? status : GGML_STATUS_FAILED;
    }
    return gbpy_fill(handle, o);
}

int gbpy_open_context(struct gbpy_handle * handle, size_t mem_size, bool no_alloc) {
    struct gbpy_object * o;
    GB_TRY(open_object(handle, GBPY_CONTEXT, &o));
    o->ptr = ggml_init((struct ggml_init_params){ .mem_size = mem_size, .no_alloc = no_alloc });
    return finish_open(handle, o);
}

int gbpy_open_graph(struct gbpy_handle * handle, struct ggml_cgraph * graph, struct gbpy_handle ** contexts, int n) {
    struct gbpy_object * o;
    GB_TRY(open_object(handle, GBPY_GRAPH, &o));
    o->ptr      = graph;
    o->contexts = gb_calloc((size_t) n, sizeof(*o->contexts));
    bool ok     = o->contexts != NULL;
    for (int i = 0; i < n && ok; i++) {
        o->contexts[o->n_contexts] = gbpy_object_of(contexts[i], "graph");
        ok                         = o->contexts[o->n_contexts] != NULL && gbpy_add_need(o, o->contexts[o->n_contexts]);
        o->n_contexts += ok;
    }
    if (!ok) {
        gbpy_unref(o);
        return GGML_STATUS_ALLOC_FAILED;
    }
    return finish_open(handle, o);
}

int gbpy_open_event(struct gbpy_handle * handle, const struct gbpy_handle * backend) {
    struct gbpy_object * o, * b = gbpy_object_of(backend, "Event");
    if (b == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(open_object(handle, GBPY_EVENT, &o));
    o->ptr = gbpy_add_need(o, b) ? ggml_backend_event_new(b->ptr) : NULL;
    return finish_open(handle, o);
}

int gbpy_open_tallocr(struct gbpy_handle * handle, const struct gbpy_handle * buffer, struct ggml_backend_buffer_type * buft, const struct gbpy_handle * parent) {
    struct gbpy_object *       o;
    const struct gbpy_handle * needed = buffer != NULL ? buffer : parent;
    struct gbpy_object *       b      = needed != NULL ? gbpy_object_of(needed, "TensorAllocator") : NULL;
    if (needed != NULL && b == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(open_object(handle, GBPY_TALLOCR, &o));
    if (b == NULL || gbpy_add_need(o, b)) {
        o->ptr = buffer != NULL ? ggml_tallocr_new_from_buffer(b->ptr) : ggml_tallocr_new_measure_from_buft(buft);
    }
    return finish_open(handle, o);
}

int gbpy_open_gallocr(struct gbpy_handle * handle) {
    struct gbpy_object * o;
    GB_TRY(open_object(handle, GBPY_GALLOCR, &o));
    o->ptr = ggml_gallocr_new();
    return finish_open(handle, o);
}
