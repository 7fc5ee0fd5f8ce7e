// objects.c - strong and weak references, the order of freeing, and the objects that need nothing else (objects.h).
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include "objects.h"

#include <string.h>

#include "extension.h"
#include "world.h"

// ---------------------------------------------------------------------------------------------------------- references

struct gbpy_object * gbpy_object_new(enum gbpy_kind kind) {
    static atomic_llong last_serial;
    struct gbpy_object * o = GB_NEW(struct gbpy_object);
    if (o != NULL) {
        o->serial = atomic_fetch_add(&last_serial, 1) + 1;
        o->kind = kind;
        o->epoch = o->checked = o->computed = -1;
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
    gbpy_visited(o->handles.n);
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
            gbpy_visited(i);
            list->data[i] = list->data[--list->n];
            return;
        }
    }
    gbpy_visited(list->n);
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
        case GBPY_PROFILE: ggml_profile_free(o->ptr); break;
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

void gbpy_give(struct gbpy_object * o, struct gbpy_object ** dead) {
    if (o != NULL && atomic_fetch_sub(&o->refs, 1) == 1) {
        o->next_dead = *dead;
        *dead = o;
    }
}

static void destroy(struct gbpy_object * o, struct gbpy_object ** dead) {
    gbpy_visited(1 + o->needs.n + o->placed_in.n);
    if (o->kind == GBPY_CONTEXT) {
        drop_keeps(o, dead);
    }
    if (o->handles.n > 0) {
        gbpy_note_move(); // who knows it as the owner of memory looks again
    }
    free_ptr(o);
    gbpy_drop_profile(o, dead);
    let_go_of_python(o);
    for (size_t i = 0; i < o->needs.n; i++) {
        gbpy_give(o->needs.data[i], dead);
    }
    for (size_t i = 0; i < o->placed_in.n; i++) {
        gbpy_weak_unref(o->placed_in.data[i]);
    }
    for (struct gbpy_constant *c = atomic_load(&o->constants), *next; c != NULL; c = next) {
        next = c->next;
        gb_free(c->value);
        gb_free(c->path);
        gb_free(c);
    }
    gbpy_give(o->graph, dead);
    gb_vec_free(&o->needs);
    gb_vec_free(&o->placed_in);
    gb_vec_free(&o->keepers);
    gb_vec_free(&o->owners);
    gb_vec_free(&o->results);
    gb_vec_free(&o->written);
    gb_free(o->contexts);
    gbpy_weak_unref(o);
}

// A chain of a million objects is given back in a loop, not by recursion. It may be the collector that gives them back,
// between a failure and the code that reads what failed: that stays.
void gbpy_destroy_all(struct gbpy_object * dead) {
    if (dead == NULL || gbpy_is_ending()) {
        return;
    }
    struct gb_failure failure;
    gb_failure_save(&failure);
    const struct gbpy_quiet before = gbpy_begin_quiet();
    while (dead != NULL) {
        struct gbpy_object * o = dead;
        dead = o->next_dead;
        destroy(o, &dead);
    }
    gbpy_end_quiet(before);
    gb_failure_restore(&failure);
}

void gbpy_unref(struct gbpy_object * o) { // NULL is fine
    struct gbpy_object * dead = NULL;
    gbpy_give(o, &dead);
    gbpy_destroy_all(dead);
}

// The buffers that were given to a context are the context's no more.
static void drop_keeps(struct gbpy_object * context, struct gbpy_object ** dead) {
    gbpy_mutex_lock();
    gbpy_objects keeps = context->keeps;
    gbpy_visited(keeps.n);
    memset(&context->keeps, 0, sizeof(context->keeps));
    for (size_t i = 0; i < keeps.n; i++) {
        remove_object(&keeps.data[i]->keepers, context);
    }
    gbpy_mutex_unlock();
    for (size_t i = 0; i < keeps.n; i++) {
        gbpy_give(keeps.data[i], dead);
    }
    gb_vec_free(&keeps);
    gbpy_note_move();
}

// ------------------------------------------------------------------------------------------------------------- handles

struct gbpy_object * gbpy_object_of(const struct gbpy_handle * handle, const char * what) {
    struct gbpy_object * o = handle != NULL ? handle->object : NULL;
    if (o == NULL) {
        gb_fail(GGML_STATUS_INVALID_STATE, "%s: the object is closed", what);
    }
    return o;
}

void gbpy_release(struct gbpy_handle * handle) {
    struct gbpy_object * o = handle != NULL ? handle->object : NULL;
    struct gbpy_object * dead = NULL;
    if (o == NULL || gbpy_is_ending()) {
        return;
    }
    handle->object = NULL;
    if (handle->keeps && atomic_fetch_sub(&o->n_keeping, 1) == 1) {
        drop_keeps(o, &dead);
    }
    gbpy_give(o, &dead);
    gbpy_destroy_all(dead);
}

void gbpy_share(struct gbpy_handle * handle, const struct gbpy_handle * other, bool keeps) {
    if (handle != NULL && handle->object == NULL && other != NULL && other->object != NULL) {
        gbpy_ref(other->object);
        if (keeps) {
            atomic_fetch_add(&other->object->n_keeping, 1);
        }
        handle->keeps = keeps;
        handle->object = other->object;
    }
}

static struct gbpy_object * find_context(struct gbpy_object * o, const struct ggml_tensor * t, int depth) {
    if (o->kind == GBPY_CONTEXT && o->ptr != NULL && gb_context_has(o->ptr, t)) {
        return o;
    }
    struct gbpy_object * found = NULL;
    for (size_t i = 0; depth > 0 && found == NULL && i < o->needs.n; i++) {
        found = o->needs.data[i]->kind == GBPY_CONTEXT ? find_context(o->needs.data[i], t, depth - 1) : NULL;
    }
    return found;
}

void gbpy_share_context(struct gbpy_handle * to, const struct gbpy_handle * handle, const struct ggml_tensor * t) {
    if (handle == NULL || handle->object == NULL) {
        return;
    }
    struct gbpy_handle found = *handle;
    gbpy_mutex_lock();
    // a graph's contexts are all that its tensors are of
    struct gbpy_object * context = find_context(handle->object, t, 2);
    found.object = context != NULL ? context : handle->object;
    gbpy_ref(found.object);
    gbpy_mutex_unlock();
    gbpy_share(to, &found, false);
    gbpy_unref(found.object);
}

void * gbpy_ptr(const struct gbpy_handle * handle) {
    return handle != NULL && handle->object != NULL ? handle->object->ptr : NULL;
}

int gbpy_kind_of(const struct gbpy_handle * handle) {
    return handle != NULL && handle->object != NULL ? (int) handle->object->kind : -1;
}

bool gbpy_same(const struct gbpy_handle * a, const struct gbpy_handle * b) {
    return a != NULL && b != NULL && a->object == b->object;
}

static bool has_object(const gbpy_objects * list, const struct gbpy_object * o) {
    size_t i = list->n;
    while (i > 0 && list->data[i - 1] != o) { // what was added last is asked for most
        i--;
    }
    gbpy_visited(list->n - i);
    return i > 0;
}

bool gbpy_add_need(struct gbpy_object * object, struct gbpy_object * other) {
    gbpy_mutex_lock();
    const bool has = object == other || has_object(&object->needs, other);
    const bool ok = has || gb_vec_push(&object->needs, other);
    if (ok && !has) {
        gbpy_ref(other);
    }
    gbpy_mutex_unlock();
    return ok;
}

bool gbpy_need(struct gbpy_handle * handle, const struct gbpy_handle * other) {
    struct gbpy_object *o = gbpy_object_of(handle, "need"), *needed = gbpy_object_of(other, "need");
    return o != NULL && needed != NULL && gbpy_add_need(o, needed);
}

bool gbpy_keep(struct gbpy_handle * handle, uintptr_t object) {
    struct gbpy_object * o = gbpy_object_of(handle, "keep");
    if (o == NULL || object == 0) {
        return false;
    }
    const PyGILState_STATE state = PyGILState_Ensure();
    gbpy_mutex_lock();
    const bool ok = gb_vec_push(&o->python, (void *) object);
    gbpy_mutex_unlock();
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
    struct gbpy_object * o = handle != NULL ? handle->object : NULL;
    struct gbpy_object * dead = NULL;
    if (o == NULL) {
        return;
    }
    gbpy_mutex_lock();
    atomic_store(&o->closed, true);
    const gbpy_objects keepers = o->keepers;
    gbpy_visited(keepers.n);
    memset(&o->keepers, 0, sizeof(o->keepers));
    for (size_t i = 0; i < keepers.n; i++) {
        remove_object(&keepers.data[i]->keeps, o);
    }
    gbpy_wake_waiters(); // who waits for it has waited long enough
    gbpy_mutex_unlock();
    gbpy_note_move();
    for (size_t i = 0; i < keepers.n; i++) {
        gbpy_give(o, &dead); // the handle still has one
    }
    gb_free(keepers.data);
    gbpy_destroy_all(dead);
}

bool gbpy_is_closed(const struct gbpy_handle * handle) {
    if (handle == NULL || handle->object == NULL) {
        return true;
    }
    gbpy_mutex_lock();
    const bool closed = handle->object->closed;
    gbpy_mutex_unlock();
    return closed;
}

// ---------------------------------------------------------------------------------------------------- owners of memory

static size_t count_handles(ggml_backend_buffer_t buffer) {
    size_t n = 1;
    ggml_backend_buffer_t part;
    for (size_t i = 0; (part = gb_multi_buffer_part(buffer, i)) != NULL; i++) {
        n += count_handles(part);
    }
    return n;
}

static void own_handles(struct gbpy_object * owner, ggml_backend_buffer_t buffer) {
    ggml_backend_buffer_t part;
    for (size_t i = 0; (part = gb_multi_buffer_part(buffer, i)) != NULL; i++) {
        own_handles(owner, part);
    }
    if (buffer->binding != owner) {
        owner->handles.data[owner->handles.n++] = buffer;
        gb_buffer_hold(buffer);
        buffer->binding = owner;
    }
}

bool gbpy_own(struct gbpy_object * owner, ggml_backend_buffer_t buffer) {
    const size_t n = count_handles(buffer);
    gbpy_mutex_lock();
    const bool ok = gb_vec_reserve(&owner->handles, owner->handles.n + n);
    if (ok) {
        own_handles(owner, buffer);
    }
    gbpy_mutex_unlock();
    return ok;
}

int gbpy_n_owned(const struct gbpy_handle * owner) {
    return owner != NULL && owner->object != NULL ? (int) owner->object->handles.n : 0;
}

struct ggml_backend_buffer * gbpy_owned(const struct gbpy_handle * owner, int i) {
    return i >= 0 && i < gbpy_n_owned(owner) ? owner->object->handles.data[i] : NULL;
}

// Under the lock. False: no memory, or the owner is closed.
static bool push_keeper(struct gbpy_object * context, struct gbpy_object * owner) {
    if (owner->closed || !gb_vec_reserve(&context->keeps, context->keeps.n + 1) ||
        !gb_vec_reserve(&owner->keepers, owner->keepers.n + 1)) {
        return false;
    }
    context->keeps.data[context->keeps.n++] = owner;
    owner->keepers.data[owner->keepers.n++] = context;
    gbpy_ref(owner);
    return true;
}

bool gbpy_keep_owner(struct gbpy_object * context, struct gbpy_object * owner) {
    gbpy_mutex_lock();
    const bool ok = has_object(&context->keeps, owner) || push_keeper(context, owner);
    gbpy_mutex_unlock();
    return ok;
}

// A context that many schedulers come and go with does not collect what is left of them: when the list has doubled, and
// is long beside the context itself, one walk over its tensors finds those that no tensor points to any more. By who
// uses the context to place, with the lock.
static void forget_unused_owners(struct gbpy_object * context) {
    gbpy_visited(context->placed_in.n);
    size_t n = 0;
    for (size_t i = 0; i < context->placed_in.n; i++) {
        context->placed_in.data[i]->marked = atomic_load(&context->placed_in.data[i]->refs) > 0;
    }
    for (struct ggml_tensor * t = ggml_get_first_tensor(context->ptr); t != NULL;
        t = ggml_get_next_tensor(context->ptr, t)) {
        struct gbpy_object * owner = t->buffer != NULL ? t->buffer->binding : NULL;
        if (owner != NULL) {
            owner->marked = true;
        }
        n++;
    }
    gbpy_visited(n);
    n = 0;
    for (size_t i = 0; i < context->placed_in.n; i++) {
        struct gbpy_object * owner = context->placed_in.data[i];
        if (owner->marked) {
            context->placed_in.data[n++] = owner;
        } else {
            gbpy_weak_unref(owner);
        }
    }
    context->placed_in.n = n;
}

// Under the lock. False: no memory.
static bool push_placed_in(struct gbpy_object * context, struct gbpy_object * owner) {
    enum { FEW = 8, BYTES = 64 * 1024 }; // of tensors that are looked at for one owner
    if (context->kind == GBPY_CONTEXT && context->placed_in.n >= context->placed_in_limit) {
        if (context->placed_in_limit > 0) {
            forget_unused_owners(context);
        }
        context->placed_in_limit = 2 * context->placed_in.n + FEW + ggml_used_mem(context->ptr) / BYTES;
    }
    const bool ok = gb_vec_push(&context->placed_in, owner);
    if (ok) {
        atomic_fetch_add(&owner->weak, 1);
    }
    return ok;
}

bool gbpy_note_owner(struct gbpy_object * context, struct gbpy_object * owner) {
    gbpy_mutex_lock();
    const bool ok = has_object(&context->placed_in, owner) || push_placed_in(context, owner);
    gbpy_mutex_unlock();
    return ok;
}

bool gbpy_add_owner(struct gbpy_object * context, struct gbpy_object * owner) {
    gbpy_mutex_lock();
    const bool ok = push_placed_in(context, owner) && push_keeper(context, owner);
    gbpy_mutex_unlock();
    return ok;
}

// ------------------------------------------------------------------------------------------------------------- opening

static int open_object(struct gbpy_handle * handle, enum gbpy_kind kind, struct gbpy_object ** o) {
    GB_FAIL_IF(handle == NULL || handle->object != NULL, GGML_STATUS_INVALID_STATE, "open: the handle is not empty");
    *o = gbpy_object_new(kind);
    return *o != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

static int finish_open(struct gbpy_handle * handle, struct gbpy_object * o) {
    if (o->ptr == NULL) {
        const int status = ggml_last_status();
        gbpy_unref(o);
        return status != GGML_STATUS_SUCCESS ? status : GGML_STATUS_FAILED;
    }
    handle->object = o;
    return GGML_STATUS_SUCCESS;
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
    o->ptr = graph;
    o->contexts = gb_calloc((size_t) n, sizeof(*o->contexts));
    bool ok = o->contexts != NULL;
    for (int i = 0; i < n && ok; i++) {
        o->contexts[o->n_contexts] = gbpy_object_of(contexts[i], "graph");
        ok = o->contexts[o->n_contexts] != NULL && gbpy_add_need(o, o->contexts[o->n_contexts]);
        o->n_contexts += ok;
    }
    if (!ok) {
        gbpy_unref(o);
        return GGML_STATUS_ALLOC_FAILED;
    }
    return finish_open(handle, o);
}

int gbpy_open_event(struct gbpy_handle * handle, const struct gbpy_handle * backend) {
    struct gbpy_object *o, *b = gbpy_object_of(backend, "Event");
    if (b == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(open_object(handle, GBPY_EVENT, &o));
    o->ptr = gbpy_add_need(o, b) ? ggml_backend_event_new(b->ptr) : NULL;
    return finish_open(handle, o);
}

int gbpy_open_tallocr(struct gbpy_handle * handle, const struct gbpy_handle * buffer,
    struct ggml_backend_buffer_type * buft, const struct gbpy_handle * parent) {
    struct gbpy_object * o;
    const struct gbpy_handle * needed = buffer != NULL ? buffer : parent;
    struct gbpy_object * b = needed != NULL ? gbpy_object_of(needed, "TensorAllocator") : NULL;
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
