// objects.c - references, the order of freeing, the table of kinds, and objects that need nothing else (objects.h).
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include "objects.h"

#include <string.h>

#include "extension.h"
#include "sched_impl.h"
#include "world.h"

// --------------------------------------------------------------------------------------------------------------- kinds

static void remove_object(gbpy_objects * list, const void * o) {
    for (size_t i = 0; i < list->n; i++) {
        if (list->data[i] == o) {
            list->data[i] = list->data[--list->n];
            return;
        }
    }
}

static void drop_kept_memory(struct gbpy_context * context, struct gbpy_object ** dead) {
    gbpy_mutex_lock();
    gbpy_objects kept = context->kept;
    memset(&context->kept, 0, sizeof(context->kept));
    for (size_t i = 0; i < kept.n; i++) {
        remove_object(&((struct gbpy_memory *) kept.data[i])->kept_by, context);
    }
    gbpy_mutex_unlock();
    for (size_t i = 0; i < kept.n; i++) {
        gbpy_give(kept.data[i], dead);
    }
    gb_vec_free(&kept);
    gbpy_note_move();
}

// Frees what a context and a copied graph have beside the C object.
static void free_context_fields(struct gbpy_context * c) {
    for (size_t i = 0; i < c->placed_in.n; i++) {
        gbpy_weak_unref(c->placed_in.data[i]);
    }
    gb_vec_free(&c->placed_in);
    for (struct gbpy_constant *k = atomic_load(&c->constants), *next; k != NULL; k = next) {
        next = k->next;
        gb_free(k->value);
        gb_free(k->path);
        gb_free(k);
    }
}

static void free_context(struct gbpy_object * o, struct gbpy_object ** dead) {
    struct gbpy_context * c = (struct gbpy_context *) o;
    drop_kept_memory(c, dead);
    if (!o->broken) {
        ggml_free(o->ptr);
    }
    free_context_fields(c);
}

static void free_copy(struct gbpy_object * o, struct gbpy_object ** dead) {
    struct gbpy_copy * c = (struct gbpy_copy *) o;
    drop_kept_memory(&c->context, dead);
    if (!o->broken) {
        ggml_backend_graph_copy_free(c->copy);
    }
    free_context_fields(&c->context);
}

static void free_graph(struct gbpy_object * o, struct gbpy_object ** dead) { // the C graph is memory of its context
    struct gbpy_graph * g = (struct gbpy_graph *) o;
    gbpy_drop_profile(&g->profile, dead);
    gb_vec_free(&g->memory);
    gb_vec_free(&g->results);
    gb_vec_free(&g->written);
    gb_free(g->contexts);
}

static void free_buffer(struct gbpy_object * o, struct gbpy_object ** dead) {
    struct gbpy_buffer * b = (struct gbpy_buffer *) o;
    if (!o->broken) {
        ggml_backend_buffer_free(o->ptr);
    }
    if (b->graph != NULL) {
        gbpy_give(&b->graph->head, dead);
    }
}

// The kinds whose C object is all that they have.
#define FREE(name, free_)                                                  \
    static void name(struct gbpy_object * o, struct gbpy_object ** dead) { \
        (void) dead;                                                       \
        if (!o->broken) {                                                  \
            free_(o->ptr);                                                 \
        }                                                                  \
    }
FREE(free_backend, ggml_backend_free)
FREE(free_event, ggml_backend_event_free)
FREE(free_tallocr, ggml_tallocr_free)
FREE(free_gallocr, ggml_gallocr_free)
FREE(free_profile, ggml_profile_free)

// `free` frees the C object and the fields of the kind. No strong reference is left, so no other thread reads them.
// It leaves the C object of a broken object alone: in a forked child, the thread that was writing the object is gone.
static const struct {
    const char * name; // in messages
    size_t size;       // of its struct
    void (*free)(struct gbpy_object * o, struct gbpy_object ** dead);
    bool owns_memory;          // its struct begins with a gbpy_memory
    bool can_lock_when_closed; // schedulers go on using it
} kinds[] = {
    [GBPY_CONTEXT] = { "context", sizeof(struct gbpy_context), free_context, true, false },
    [GBPY_GRAPH] = { "graph", sizeof(struct gbpy_graph), free_graph, false, false },
    [GBPY_BUFFER] = { "buffer", sizeof(struct gbpy_buffer), free_buffer, true, false },
    [GBPY_COPY] = { "copy of a graph", sizeof(struct gbpy_copy), free_copy, true, false },
    [GBPY_SCHED] = { "scheduler", sizeof(struct gbpy_sched), gbpy_free_sched, true, false },
    [GBPY_BACKEND] = { "backend", sizeof(struct gbpy_backend), free_backend, false, true },
    [GBPY_EVENT] = { "event", sizeof(struct gbpy_object), free_event, false, false },
    [GBPY_TALLOCR] = { "allocator", sizeof(struct gbpy_object), free_tallocr, false, false },
    [GBPY_GALLOCR] = { "allocator", sizeof(struct gbpy_object), free_gallocr, false, false },
    [GBPY_PROFILE] = { "profile", sizeof(struct gbpy_profile), free_profile, false, false },
};
_Static_assert(sizeof(kinds) / sizeof(kinds[0]) == GBPY_N_KINDS, "every kind has a row");

const char * gbpy_kind_name(enum gbpy_kind kind) { return kinds[kind].name; }

bool gbpy_can_lock_when_closed(const struct gbpy_object * o) { return kinds[o->kind].can_lock_when_closed; }

static struct gbpy_memory * as_memory(struct gbpy_object * o) { // NULL: an object of this kind owns no memory
    return kinds[o->kind].owns_memory ? (struct gbpy_memory *) o : NULL;
}

// ---------------------------------------------------------------------------------------------------------- references

void * gbpy_object_new(enum gbpy_kind kind) {
    struct gbpy_object * o = gb_calloc(1, kinds[kind].size);
    if (o != NULL) {
        o->kind = kind;
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

void gbpy_weak_ref(struct gbpy_object * o) { atomic_fetch_add(&o->weak, 1); }

void gbpy_weak_unref(struct gbpy_object * o) {
    if (atomic_fetch_sub(&o->weak, 1) == 1) {
        struct gbpy_memory * m = as_memory(o);
        for (size_t i = 0; m != NULL && i < m->handles.n; i++) {
            gb_buffer_unhold(m->handles.data[i]);
        }
        if (m != NULL) {
            gb_vec_free(&m->handles);
        }
        gb_free(o);
    }
}

static void drop_python_references(struct gbpy_object * o) {
    if (o->python.n > 0) {
        const PyGILState_STATE state = PyGILState_Ensure();
        for (size_t i = o->python.n; i-- > 0;) {
            Py_DecRef((PyObject *) o->python.data[i]);
        }
        PyGILState_Release(state);
    }
    gb_vec_free(&o->python);
}

void gbpy_give(struct gbpy_object * o, struct gbpy_object ** dead) {
    if (o != NULL && atomic_fetch_sub(&o->refs, 1) == 1) {
        o->next_dead = *dead;
        *dead = o;
    }
}

static void destroy(struct gbpy_object * o, struct gbpy_object ** dead) {
    struct gbpy_memory * m = as_memory(o);
    if (m != NULL && m->handles.n > 0) {
        gbpy_note_move(); // graphs that have cached it as the owner of memory look again
    }
    kinds[o->kind].free(o, dead);
    drop_python_references(o);
    for (size_t i = 0; i < o->needs.n; i++) {
        gbpy_give(o->needs.data[i], dead);
    }
    gb_vec_free(&o->needs);
    if (m != NULL) {
        gb_vec_free(&m->kept_by);
    }
    gbpy_weak_unref(o);
}

// Frees a chain of a million objects in a loop, not by recursion. The garbage collector may call this between a
// failure and the code that reads the failure, so the thread's failure is restored.
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

void gbpy_unref(struct gbpy_object * o) {
    struct gbpy_object * dead = NULL;
    gbpy_give(o, &dead);
    gbpy_destroy_all(dead);
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
    if (handle->keeps_memory && atomic_fetch_sub(&((struct gbpy_context *) o)->n_keeping, 1) == 1) {
        drop_kept_memory((struct gbpy_context *) o, &dead);
    }
    gbpy_give(o, &dead);
    gbpy_destroy_all(dead);
}

void gbpy_share(struct gbpy_handle * handle, const struct gbpy_handle * other, bool keeps_memory) {
    if (handle != NULL && handle->object == NULL && other != NULL && other->object != NULL) {
        gbpy_ref(other->object);
        if (keeps_memory) {
            atomic_fetch_add(&((struct gbpy_context *) other->object)->n_keeping, 1);
        }
        handle->keeps_memory = keeps_memory;
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

static bool has_object(const gbpy_objects * list, const void * o) {
    size_t i = list->n;
    while (i > 0 && list->data[i - 1] != o) { // from the end: callers mostly ask for the newest
        i--;
    }
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
    gbpy_objects keepers = { 0 };
    if (o == NULL) {
        return;
    }
    struct gbpy_memory * m = as_memory(o);
    gbpy_mutex_lock();
    atomic_store(&o->closed, true);
    if (m != NULL) {
        keepers = m->kept_by;
        memset(&m->kept_by, 0, sizeof(m->kept_by));
    }
    for (size_t i = 0; i < keepers.n; i++) {
        remove_object(&((struct gbpy_context *) keepers.data[i])->kept, o);
    }
    gbpy_wake_waiters(); // callers that wait for a closed object fail
    gbpy_mutex_unlock();
    gbpy_note_move();
    for (size_t i = 0; i < keepers.n; i++) {
        gbpy_give(o, &dead); // the handle still holds a reference
    }
    gb_vec_free(&keepers);
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

static void own_handles(struct gbpy_memory * owner, ggml_backend_buffer_t buffer) {
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

bool gbpy_own(struct gbpy_memory * owner, ggml_backend_buffer_t buffer) {
    const size_t n = count_handles(buffer);
    gbpy_mutex_lock();
    const bool ok = gb_vec_reserve(&owner->handles, owner->handles.n + n);
    if (ok) {
        own_handles(owner, buffer);
    }
    gbpy_mutex_unlock();
    return ok;
}

static const struct gbpy_memory * memory_of_handle(const struct gbpy_handle * owner) {
    return owner != NULL && owner->object != NULL ? as_memory(owner->object) : NULL;
}

int gbpy_n_owned(const struct gbpy_handle * owner) {
    const struct gbpy_memory * m = memory_of_handle(owner);
    return m != NULL ? (int) m->handles.n : 0;
}

struct ggml_backend_buffer * gbpy_owned(const struct gbpy_handle * owner, int i) {
    return i >= 0 && i < gbpy_n_owned(owner) ? memory_of_handle(owner)->handles.data[i] : NULL;
}

// Under the mutex. False: out of memory, or the owner is closed.
static bool push_kept(struct gbpy_context * context, struct gbpy_memory * owner) {
    if (owner->head.closed || !gb_vec_reserve(&context->kept, context->kept.n + 1) ||
        !gb_vec_reserve(&owner->kept_by, owner->kept_by.n + 1)) {
        return false;
    }
    context->kept.data[context->kept.n++] = &owner->head;
    owner->kept_by.data[owner->kept_by.n++] = &context->memory.head;
    gbpy_ref(&owner->head);
    return true;
}

bool gbpy_keep_memory(struct gbpy_context * context, struct gbpy_memory * owner) {
    gbpy_mutex_lock();
    const bool ok = has_object(&context->kept, owner) || push_kept(context, owner);
    gbpy_mutex_unlock();
    return ok;
}

// Drops owners that no tensor points to any more. So a context does not collect the remains of all schedulers that it
// was ever used with. Under the mutex, while the caller has locked the context for placement.
static void forget_unused_memory(struct gbpy_context * context) {
    gbpy_objects * list = &context->placed_in;
    struct ggml_context * ctx = context->memory.head.ptr;
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) {
        ((struct gbpy_memory *) list->data[i])->marked = atomic_load(&list->data[i]->refs) > 0;
    }
    for (struct ggml_tensor * t = ggml_get_first_tensor(ctx); t != NULL; t = ggml_get_next_tensor(ctx, t)) {
        struct gbpy_memory * owner = t->buffer != NULL ? t->buffer->binding : NULL;
        if (owner != NULL) {
            owner->marked = true;
        }
    }
    for (size_t i = 0; i < list->n; i++) {
        if (((struct gbpy_memory *) list->data[i])->marked) {
            list->data[n++] = list->data[i];
        } else {
            gbpy_weak_unref(list->data[i]);
        }
    }
    list->n = n;
}

// Under the mutex. False: out of memory. Searches for unused owners only when the list has doubled and is long beside
// the context itself, so that the search costs a constant time per owner.
static bool push_placed_in(struct gbpy_context * context, struct gbpy_memory * owner) {
    enum { FEW = 8, BYTES = 64 * 1024 }; // bytes of tensors that are searched for each owner
    const struct gbpy_object * c = &context->memory.head;
    if (c->kind == GBPY_CONTEXT && context->placed_in.n >= context->placed_in_limit) {
        if (context->placed_in_limit > 0) {
            forget_unused_memory(context);
        }
        context->placed_in_limit = 2 * context->placed_in.n + FEW + ggml_used_mem(c->ptr) / BYTES;
    }
    const bool ok = gb_vec_push(&context->placed_in, &owner->head);
    if (ok) {
        gbpy_weak_ref(&owner->head);
    }
    return ok;
}

bool gbpy_note_memory(struct gbpy_context * context, struct gbpy_memory * owner) {
    gbpy_mutex_lock();
    const bool ok = has_object(&context->placed_in, owner) || push_placed_in(context, owner);
    gbpy_mutex_unlock();
    return ok;
}

bool gbpy_add_memory(struct gbpy_context * context, struct gbpy_memory * owner) {
    gbpy_mutex_lock();
    const bool ok = push_placed_in(context, owner) && push_kept(context, owner);
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
    static atomic_llong last_serial;
    struct gbpy_object * o;
    GB_TRY(open_object(handle, GBPY_GRAPH, &o));
    struct gbpy_graph * g = (struct gbpy_graph *) o;
    g->serial = atomic_fetch_add(&last_serial, 1) + 1;
    g->epoch = g->checked = g->computed = -1;
    o->ptr = graph;
    g->contexts = gb_calloc((size_t) n, sizeof(*g->contexts));
    bool ok = g->contexts != NULL;
    for (int i = 0; i < n && ok; i++) {
        struct gbpy_context * c = gbpy_context_of(contexts[i], "graph");
        ok = c != NULL && gbpy_add_need(o, &c->memory.head);
        g->contexts[g->n_contexts] = c;
        g->n_contexts += ok;
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
