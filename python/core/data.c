// data.c - the memory of tensors: see data.h.
#include "data.h"

#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "base/hash.h"
#include "base/mapped.h"
#include "base/mem.h"
#include "base/status.h"
#include "tensor/tensor.h"

// Bit 7 of padding[0]: the user's buffer in which the tensor lay is gone: then nobody may take it for one that was never placed.
enum { LOST = 0x80 };

atomic_llong gbpy_sets;

int (*gbpy_check_sched)(const struct gbpy_object * sched, const struct ggml_tensor * t, bool reading, const char * what);

void gbpy_describe(const struct ggml_tensor * t, char * text, size_t size) {
    if (t->op == GGML_OP_NONE) {
        snprintf(text, size, "'%s'", t->name);
    } else {
        snprintf(text, size, "'%s' (%s)", t->name, ggml_op_desc(t));
    }
}

struct gbpy_object * gbpy_owner_of(const struct ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    return buffer != NULL ? buffer->binding : NULL;
}

static bool is_gone(const struct ggml_backend_buffer * buffer) {
    const struct gbpy_object * owner = buffer->binding;
    return gb_buffer_is_retired(buffer) || (owner != NULL && (atomic_load(&owner->closed) || atomic_load(&owner->refs) == 0));
}

bool gbpy_has_lost(const struct ggml_tensor * t) {
    const struct ggml_tensor *  root   = gb_root(t);
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    if (buffer != NULL && is_gone(buffer)) {
        return true;
    }
    return root->data == NULL && (root->padding[0] & LOST);
}

void gbpy_unplace_lost(struct ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    if (buffer == NULL || !is_gone(buffer)) {
        return;
    }
    const struct gbpy_object * owner = buffer->binding;
    const bool                 lost  = owner != NULL && !owner->scratch && t->op == GGML_OP_NONE && t->view_src == NULL;
    t->buffer     = NULL;
    t->data       = NULL;
    t->extra      = NULL;
    t->padding[0] = (char) ((t->padding[0] & ~LOST) | (lost ? LOST : 0));
}

void gbpy_unplace_all_lost(struct ggml_context * ctx) {
    for (int views = 1; views >= 0; views--) { // a view finds its buffer through its source
        for (struct ggml_tensor * t = ggml_get_first_tensor(ctx); t != NULL; t = ggml_get_next_tensor(ctx, t)) {
            if ((t->view_src != NULL) == (views == 1)) {
                gbpy_unplace_lost(t);
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------- entering

static int fail_lost(const struct ggml_tensor * t, const char * what) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    const bool has_none = buffer == NULL && gb_root(t)->data == NULL && !(gb_root(t)->padding[0] & LOST);
    if (has_none) {
        return gb_fail(GGML_STATUS_INVALID_STATE, "%s has no memory: give it some with Context.allocate, Buffer.place or Scheduler.allocate", what);
    }
    return gb_fail(GGML_STATUS_INVALID_STATE, "%s: the memory was freed", what);
}

// Under the lock: the owner of the tensor's memory. Memory that a context gave its tensors itself is the context's.
static int find_owner(struct gbpy_object * context, const struct ggml_tensor * t, const char * what, struct gbpy_object ** owner) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    *owner                             = buffer != NULL ? buffer->binding : gb_root(t)->data != NULL ? context : NULL;
    if (*owner == NULL || gbpy_has_lost(t)) {
        return fail_lost(t, what);
    }
    return GGML_STATUS_SUCCESS;
}

// A use of the memory of n tensors, the first n_written to write. Who uses it already, and calls from a callback, has it.
static int enter_tensors(struct gbpy_use * use, struct gbpy_object ** contexts, struct ggml_tensor ** tensors, int n, int n_written, const char * what,
                         struct gbpy_object ** owners) {
    enum { MOST = 2 };
    struct gbpy_want wants[MOST], places[MOST];
    int              status = gbpy_reserve_use(use, MOST) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    const void *     me     = gbpy_me();
    gbpy_lock();
    while (status == GGML_STATUS_SUCCESS) {
        for (int i = 0; i < n; i++) {
            places[i] = (struct gbpy_want){ .object = contexts[i] };
        }
        int conflict = gbpy_find_conflict(places, n, me, true);
        if (conflict >= 0) { // somebody places tensors of this context
            status = gbpy_wait_for(what, places, n, conflict);
            continue;
        }
        for (int i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
            status   = find_owner(contexts[i], tensors[i], what, &owners[i]);
            wants[i] = (struct gbpy_want){ .object = owners[i], .write = i < n_written };
            if (status == GGML_STATUS_SUCCESS && owners[i]->broken) {
                status = gb_fail(GGML_STATUS_INVALID_STATE, "%s: its memory was in use by another thread when the process was forked", what);
            }
        }
        if (status != GGML_STATUS_SUCCESS) {
            break;
        }
        const int m = n == 2 && wants[0].object == wants[1].object ? 1 : n; // the one to write is the first
        conflict    = gbpy_find_conflict(wants, m, me, true);
        if (conflict >= 0) {
            status = gbpy_wait_for(what, wants, m, conflict);
            continue;
        }
        if (gbpy_land_conflicts(wants, m, n_written > 0 ? tensors[0] : NULL, &status)) {
            continue;
        }
        if (gbpy_take(use, wants, m)) {
            gbpy_unlock();
            return GGML_STATUS_SUCCESS;
        }
    }
    gbpy_unlock();
    return status;
}

// A view made before its source was placed, or placed elsewhere, gets its place. By who uses the owner of the memory.
static int refresh(struct ggml_tensor * t) {
    struct ggml_tensor * root = gb_root(t);
    char *               data = (char *) root->data + (t == root ? 0 : t->view_offs);
    if (t->data == data && t->buffer == root->buffer) {
        return GGML_STATUS_SUCCESS;
    }
    t->data   = root->buffer ? NULL : data;
    t->buffer = NULL;
    return root->buffer ? ggml_backend_view_init(root->buffer, t) : GGML_STATUS_SUCCESS;
}

// ----------------------------------------------------------------------------------------------------------------------- content

// Goes back from t to its inputs, each tensor once.
const struct ggml_tensor * gbpy_newer_input(const struct ggml_tensor * t, int64_t version) {
    struct gb_ptrmap seen = { 0 };
    GB_VEC(const struct ggml_tensor *) stack = { 0 };
    const struct ggml_tensor * found = NULL;
    bool                       ok    = gb_vec_push(&stack, t);
    while (ok && found == NULL && stack.n > 0) {
        const struct ggml_tensor * at   = stack.data[--stack.n];
        const struct ggml_tensor * root = gb_root(at);
        if (root->op == GGML_OP_NONE && root != t && gbpy_stamp(root) >= version) {
            found = root;
        }
        for (int i = -1; i < GGML_MAX_SRC && ok; i++) {
            const struct ggml_tensor * next = i < 0 ? at->view_src : at->src[i];
            if (next != NULL && gb_ptrmap_get(&seen, next) == GB_PTRMAP_ABSENT) {
                ok = gb_ptrmap_set(&seen, next, 1) && gb_vec_push(&stack, next);
            }
        }
    }
    gb_ptrmap_free(&seen);
    gb_vec_free(&stack);
    return found;
}

static int fail_newer(const struct ggml_tensor * newer, const char * what) {
    return gb_fail(GGML_STATUS_INVALID_STATE, "%s is out of date: the input '%s' was set after the last computation; compute again", what, newer->name);
}

// Of a tensor in memory that the user gave it.
static int check_user_content(const struct ggml_tensor * t, const char * what) {
    const struct ggml_tensor * root  = gb_root(t);
    const int64_t              stamp = gbpy_stamp(root);
    if (root->op == GGML_OP_NONE || ggml_nelements(root) == 0) {
        return GGML_STATUS_SUCCESS;
    }
    GB_FAIL_IF(stamp == 0, GGML_STATUS_INVALID_STATE, GGML_STATUS_INVALID_STATE, "%s was not computed yet: compute a graph that has it", what);
    const struct ggml_tensor * newer = stamp > atomic_load(&gbpy_sets) ? NULL : gbpy_newer_input(root, stamp);
    return newer != NULL ? fail_newer(newer, what) : GGML_STATUS_SUCCESS;
}

// Of a tensor that a graph allocator placed: nodes that come later in its graph may lie where it lay.
static int check_graph_content(const struct gbpy_object * buffer, const struct ggml_tensor * t, const char * what) {
    const struct gbpy_object * g     = buffer->graph;
    const struct ggml_cgraph * graph = g->ptr;
    const struct ggml_tensor * root  = gb_root(t);
    int                        at    = -1;
    if (root->op == GGML_OP_NONE || ggml_nelements(root) == 0) {
        return GGML_STATUS_SUCCESS;
    }
    for (int i = 0; i < graph->n_nodes && at < 0; i++) {
        at = graph->nodes[i] == root ? i : -1;
    }
    GB_FAIL_IF(at < 0, GGML_STATUS_INVALID_STATE, GGML_STATUS_INVALID_STATE, "%s: its memory was given to another graph", what);
    GB_FAIL_IF(g->computed < 0, GGML_STATUS_INVALID_STATE, GGML_STATUS_INVALID_STATE, "%s was not computed yet", what);
    const struct ggml_tensor * newer = g->computed == atomic_load(&gbpy_sets) ? NULL : gbpy_newer_input(root, g->computed + 1);
    if (newer != NULL) {
        return fail_newer(newer, what);
    }
    const char * begin = root->data, * end = begin + ggml_nbytes(root);
    for (int i = at + 1; i < graph->n_nodes; i++) {
        const struct ggml_tensor * other = graph->nodes[i];
        const char *               data  = other->data;
        if (other->view_src == NULL && other->buffer == root->buffer && !gb_op_is_view(other->op) && data < end && begin < data + ggml_nbytes(other)) {
            return gb_fail(GGML_STATUS_INVALID_STATE, "%s is not there any more: the graph used its memory for '%s'. To keep it: ctx.graph(..., keep=[it])",
                           what, other->name);
        }
    }
    GB_FAIL_IF(gb_tensor_is_read_once(t) && root->buffer->arena, GGML_STATUS_INVALID_STATE, GGML_STATUS_INVALID_STATE,
               "%s is computed together with what reads it, and not stored. To keep it: ctx.graph(..., keep=[it])", what);
    return GGML_STATUS_SUCCESS;
}

static int check_content(const struct gbpy_object * owner, const struct ggml_tensor * t, bool reading, const char * what) {
    if (owner->kind == GBPY_SCHED) {
        return gbpy_check_sched(owner, t, reading, what);
    }
    if (!reading) {
        return GGML_STATUS_SUCCESS;
    }
    return owner->graph != NULL ? check_graph_content(owner, t, what) : check_user_content(t, what);
}

// Enters, and makes sure that the data is there.
static int enter_tensor(struct gbpy_use * use, const struct gbpy_handle * context, struct ggml_tensor * t, bool writing, bool reading, const char * what,
                        struct gbpy_object ** owner) {
    struct gbpy_object * c = gbpy_object_of(context, what);
    if (c == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(enter_tensors(use, &c, &t, 1, writing, what, owner));
    int status = check_content(*owner, t, reading, what);
    if (status == GGML_STATUS_SUCCESS) {
        status = refresh(t);
    }
    if (status == GGML_STATUS_SUCCESS && t->data == NULL && ggml_nelements(t) > 0) {
        status = fail_lost(t, what);
    }
    if (status == GGML_STATUS_SUCCESS && writing && (*owner)->readonly) {
        status = gb_fail(GGML_STATUS_INVALID_STATE, "%s is in a read-only buffer", what);
    }
    if (status != GGML_STATUS_SUCCESS) {
        gbpy_leave(use);
    }
    return status;
}

static bool is_host(const struct ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    return buffer == NULL || ggml_backend_buffer_is_host(buffer);
}

// -------------------------------------------------------------------------------------------------------------- reading, writing

int gbpy_look(struct gbpy_handle * pin, const struct gbpy_handle * context, struct ggml_tensor * t, struct gbpy_view * view, const char * what) {
    struct gbpy_want     wants[2];
    struct gbpy_use      use = { .wants = wants, .capacity = 2, .borrowed = true };
    struct gbpy_object * owner;
    GB_TRY(enter_tensor(&use, context, t, false, true, what, &owner));
    view->host     = is_host(t);
    view->readonly = owner->readonly;
    view->data     = t->data;
    view->nbytes   = ggml_nbytes(t);
    if (view->host) {
        struct ggml_tensor * root = gb_root(t);
        gbpy_ref(owner);
        atomic_fetch_add(&owner->n_pins, 1);
        pin->object = owner;
        if (root->op == GGML_OP_NONE && !owner->readonly && gbpy_stamp(root) == 0) {
            gbpy_set_stamp(root, 1); // whoever has the array may set the input through it
        }
    }
    gbpy_leave(&use);
    return GGML_STATUS_SUCCESS;
}

void gbpy_unpin(struct gbpy_handle * pin) {
    if (pin != NULL && pin->object != NULL) {
        atomic_fetch_sub(&pin->object->n_pins, 1);
        gbpy_release(pin);
    }
}

bool gbpy_is_pinned(const struct gbpy_handle * owner) {
    return owner != NULL && owner->object != NULL && atomic_load(&owner->object->n_pins) > 0;
}

bool gbpy_is_placed(const struct gbpy_handle * context, struct ggml_tensor * t) {
    struct gbpy_want     wants[2];
    struct gbpy_use      use = { .wants = wants, .capacity = 2, .borrowed = true };
    struct gbpy_object * owner;
    const bool           placed = enter_tensor(&use, context, t, false, false, "is_placed", &owner) == GGML_STATUS_SUCCESS;
    gbpy_leave(&use);
    if (!placed) {
        ggml_clear_error();
    }
    return placed;
}

// The owner, with a new reference, and the buffer, without a use of them.
static int peek(const struct gbpy_handle * context, const struct ggml_tensor * t, struct gbpy_object ** owner, ggml_backend_buffer_t * buffer) {
    struct gbpy_object * c = gbpy_object_of(context, "the tensor");
    if (c == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    struct gbpy_want place  = { .object = c };
    int              status = GGML_STATUS_SUCCESS;
    gbpy_lock();
    while (status == GGML_STATUS_SUCCESS && gbpy_find_conflict(&place, 1, gbpy_me(), true) >= 0) {
        status = gbpy_wait_for("the tensor", &place, 1, 0);
    }
    status  = status == GGML_STATUS_SUCCESS ? find_owner(c, t, "it", owner) : status;
    *buffer = gb_tensor_buffer(t);
    if (status == GGML_STATUS_SUCCESS && !gbpy_try_ref(*owner)) {
        status = fail_lost(t, "it");
    }
    gbpy_unlock();
    return status;
}

bool gbpy_is_in(const struct gbpy_handle * context, const struct ggml_tensor * t, struct gbpy_handle * owner) {
    ggml_backend_buffer_t buffer;
    struct gbpy_object *  o;
    const bool            found = peek(context, t, &o, &buffer) == GGML_STATUS_SUCCESS;
    if (found) {
        owner->object = o;
    } else {
        ggml_clear_error();
    }
    return found;
}

bool gbpy_is_on_host(const struct gbpy_handle * context, const struct ggml_tensor * t, int * status) {
    ggml_backend_buffer_t buffer;
    struct gbpy_object *  o;
    *status   = peek(context, t, &o, &buffer);
    bool host = false;
    if (*status == GGML_STATUS_SUCCESS) {
        host = buffer == NULL || ggml_backend_buffer_is_host(buffer);
        gbpy_unref(o);
    }
    return host;
}

size_t gbpy_location(const struct gbpy_handle * context, const struct ggml_tensor * t, char * name, size_t size) {
    ggml_backend_buffer_t buffer;
    struct gbpy_object *  o;
    size_t                n = 0;
    if (peek(context, t, &o, &buffer) == GGML_STATUS_SUCCESS) {
        const int length = buffer != NULL ? snprintf(name, size, "%s", ggml_backend_buffer_name(buffer)) : 0;
        n                = length < 0 ? 0 : GB_MIN((size_t) length, size - 1);
        gbpy_unref(o);
    }
    ggml_clear_error();
    return n;
}

static int get_bytes(const struct ggml_tensor * t, void * data, size_t size) {
    if (gb_tensor_buffer(t) != NULL) {
        return ggml_backend_tensor_get(t, data, 0, size);
    }
    gb_mapped_enter();
    memcpy(data, t->data, size);
    gb_mapped_leave();
    return gb_mapped_check_at("reading", t->data);
}

static int put_bytes(struct ggml_tensor * t, const void * data, size_t offset, size_t size) {
    if (gb_tensor_buffer(t) != NULL) {
        return ggml_backend_tensor_set(t, data, offset, size);
    }
    gb_mapped_enter();
    memcpy((char *) t->data + offset, data, size);
    gb_mapped_leave();
    return gb_mapped_check_at("reading", data);
}

int gbpy_read(const struct gbpy_handle * context, const struct ggml_tensor * t, void * data, size_t size, const char * what) {
    struct gbpy_want     wants[2];
    struct gbpy_use      use = { .wants = wants, .capacity = 2, .borrowed = true };
    struct gbpy_object * owner;
    GB_TRY(enter_tensor(&use, context, (struct ggml_tensor *) t, false, true, what, &owner));
    int status = GGML_STATUS_SUCCESS;
    if (size > 0) {
        status = size <= ggml_nbytes(t) ? get_bytes(t, data, size) : gb_fail(GGML_STATUS_INVALID_ARGUMENT, "%s has %zu bytes, not %zu", what, ggml_nbytes(t), size);
    }
    gbpy_leave(&use);
    return status;
}

static void note_set(struct ggml_tensor * t) { gbpy_set_stamp(gb_root(t), atomic_fetch_add(&gbpy_sets, 1) + 1); }

int gbpy_write(const struct gbpy_handle * context, struct ggml_tensor * t, const void * data, size_t offset, size_t size, const char * what) {
    struct gbpy_want     wants[2];
    struct gbpy_use      use = { .wants = wants, .capacity = 2, .borrowed = true };
    struct gbpy_object * owner;
    GB_TRY(enter_tensor(&use, context, t, true, false, what, &owner));
    int status = size > 0 ? put_bytes(t, data, offset, size) : GGML_STATUS_SUCCESS;
    if (status == GGML_STATUS_SUCCESS) {
        note_set(t);
    }
    gbpy_leave(&use);
    return status;
}

// Rows of the last axis, whose elements may have gaps between them.
static void scatter(char * to, const struct ggml_tensor * t, const char * from) {
    const size_t  element = ggml_type_size(t->type);
    const int64_t blocks  = t->ne[0] / ggml_blck_size(t->type);
    gb_mapped_enter();
    for (int64_t i3 = 0; i3 < t->ne[3]; i3++) {
        for (int64_t i2 = 0; i2 < t->ne[2]; i2++) {
            for (int64_t i1 = 0; i1 < t->ne[1]; i1++) {
                char * row = to + (size_t) i1 * t->nb[1] + (size_t) i2 * t->nb[2] + (size_t) i3 * t->nb[3];
                for (int64_t i0 = 0; i0 < blocks; i0++, from += element) {
                    memcpy(row + (size_t) i0 * t->nb[0], from, element);
                }
            }
        }
    }
    gb_mapped_leave();
}

static int write_gaps(struct ggml_tensor * t, const void * data) {
    if (is_host(t)) {
        scatter(t->data, t, data);
        gb_buffer_changed(gb_tensor_buffer(t));
        return gb_mapped_check_at("reading", data);
    }
    const size_t n       = ggml_nbytes(t); // read what is there, change it, write it back
    char *       staging = gb_malloc(n);
    if (staging == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    int status = get_bytes(t, staging, n);
    if (status == GGML_STATUS_SUCCESS) {
        scatter(staging, t, data);
        status = put_bytes(t, staging, 0, n);
    }
    gb_free(staging);
    GB_TRY(gb_mapped_check_at("reading", data));
    return status;
}

int gbpy_write_all(const struct gbpy_handle * context, struct ggml_tensor * t, const void * data, size_t size, const char * what) {
    struct gbpy_want     wants[2];
    struct gbpy_use      use = { .wants = wants, .capacity = 2, .borrowed = true };
    struct gbpy_object * owner;
    const size_t         needs = (size_t) (ggml_nelements(t) / ggml_blck_size(t->type)) * ggml_type_size(t->type);
    GB_FAIL_IF(size != needs, GGML_STATUS_INVALID_ARGUMENT, GGML_STATUS_INVALID_ARGUMENT, "%s takes %zu bytes, not %zu", what, needs, size);
    GB_TRY(enter_tensor(&use, context, t, true, false, what, &owner));
    int status = GGML_STATUS_SUCCESS;
    if (size > 0) {
        status = ggml_is_contiguous(t) ? put_bytes(t, data, 0, size) : write_gaps(t, data);
    }
    if (status == GGML_STATUS_SUCCESS) {
        note_set(t);
    }
    gbpy_leave(&use);
    return status;
}

int gbpy_copy(const struct gbpy_handle * to_context, struct ggml_tensor * to, const struct gbpy_handle * from_context, struct ggml_tensor * from, const char * what) {
    struct gbpy_want     wants[2];
    struct gbpy_use      use         = { .wants = wants, .capacity = 2, .borrowed = true };
    struct gbpy_object * contexts[2] = { gbpy_object_of(to_context, what), gbpy_object_of(from_context, what) }, * owners[2];
    struct ggml_tensor * tensors[2]  = { to, from };
    if (contexts[0] == NULL || contexts[1] == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(enter_tensors(&use, contexts, tensors, 2, 1, what, owners));
    int status = check_content(owners[0], to, false, what);
    if (status == GGML_STATUS_SUCCESS) {
        status = check_content(owners[1], from, true, what);
    }
    if (status == GGML_STATUS_SUCCESS && owners[0]->readonly) {
        status = gb_fail(GGML_STATUS_INVALID_STATE, "%s: it is in a read-only buffer", what);
    }
    status = status == GGML_STATUS_SUCCESS ? refresh(to) : status;
    status = status == GGML_STATUS_SUCCESS ? refresh(from) : status;
    status = status == GGML_STATUS_SUCCESS ? (int) ggml_backend_tensor_copy(from, to) : status;
    if (status == GGML_STATUS_SUCCESS) {
        note_set(to);
    }
    gbpy_leave(&use);
    return status;
}

// ----------------------------------------------------------------------------------------------------------------------- buffers

static int new_owner(struct gbpy_handle * handle, struct gbpy_object * o, ggml_backend_buffer_t buffer, int usage) {
    o->ptr     = buffer;
    int status = buffer != NULL ? (int) ggml_backend_buffer_set_usage(buffer, (enum ggml_backend_buffer_usage) usage) : (int) ggml_last_status();
    if (status == GGML_STATUS_SUCCESS && !gbpy_own(o, buffer)) {
        status = GGML_STATUS_ALLOC_FAILED;
    }
    if (status != GGML_STATUS_SUCCESS) {
        gbpy_unref(o);
        return status;
    }
    return gbpy_fill(handle, o);
}

static int begin_buffer(struct gbpy_handle * handle, const struct gbpy_handle * parent, struct gbpy_object ** o) {
    struct gbpy_object * p = parent != NULL ? gbpy_object_of(parent, "Buffer") : NULL;
    while (p != NULL && p->kind == GBPY_BUFFER) { // of another buffer's type: what that one needs, not its memory
        p = p->needs.n > 0 ? p->needs.data[0] : NULL;
    }
    GB_FAIL_IF(handle == NULL || handle->object != NULL, GGML_STATUS_INVALID_STATE, GGML_STATUS_INVALID_STATE, "Buffer: the handle is not empty");
    if (parent != NULL && parent->object == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    *o = gbpy_object_new(GBPY_BUFFER);
    if (*o == NULL || (p != NULL && !gbpy_add_need(*o, p))) {
        gbpy_unref(*o);
        return GGML_STATUS_ALLOC_FAILED;
    }
    return GGML_STATUS_SUCCESS;
}

int gbpy_open_buffer(struct gbpy_handle * handle, struct ggml_backend_buffer_type * buft, size_t size, int usage, const struct gbpy_handle * parent) {
    struct gbpy_object * o;
    GB_TRY(begin_buffer(handle, parent, &o));
    return new_owner(handle, o, ggml_backend_buft_alloc_buffer(buft, size), usage);
}

int gbpy_open_host_buffer(struct gbpy_handle * handle, void * data, size_t size, int usage, bool readonly, uintptr_t object) {
    struct gbpy_object * o;
    GB_TRY(begin_buffer(handle, NULL, &o));
    o->readonly      = readonly;
    const int status = new_owner(handle, o, ggml_backend_cpu_buffer_from_ptr(data, size), usage);
    return status != GGML_STATUS_SUCCESS || gbpy_keep(handle, object) ? status : GGML_STATUS_ALLOC_FAILED;
}

int gbpy_upload_constants(struct gbpy_object * context) {
    for (size_t i = 0; i < context->constants.n; i++) {
        const struct gbpy_constant * c = &context->constants.data[i];
        if (c->size > 0 && gb_tensor_buffer(c->tensor) != NULL && !gbpy_has_lost(c->tensor)) {
            GB_TRY(ggml_backend_tensor_set(c->tensor, c->value, 0, c->size));
            if (gbpy_stamp(c->tensor) == 0) {
                gbpy_set_stamp(c->tensor, 1);
            }
        }
    }
    return GGML_STATUS_SUCCESS;
}

int gbpy_set_constant(struct gbpy_handle * context, struct ggml_tensor * t, const void * value, size_t size) {
    struct gbpy_object * c = gbpy_object_of(context, "constant");
    void *               v = c != NULL ? gb_malloc(size) : NULL;
    if (v == NULL) {
        return c != NULL ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_INVALID_STATE;
    }
    memcpy(v, value, size);
    gbpy_lock();
    const bool ok = gb_vec_push(&c->constants, ((struct gbpy_constant){ t, v, size }));
    gbpy_unlock();
    if (!ok) {
        gb_free(v);
        return GGML_STATUS_ALLOC_FAILED;
    }
    gbpy_set_stamp(t, 1);
    if (gb_tensor_buffer(t) == NULL && t->data != NULL) { // memory of the context itself
        memcpy(t->data, value, size);
    }
    return GGML_STATUS_SUCCESS;
}

int gbpy_open_context_buffer(struct gbpy_handle * handle, struct gbpy_handle * context, struct ggml_backend_buffer_type * buft, int usage, const struct gbpy_handle * parent) {
    struct gbpy_object * c = gbpy_object_of(context, "Context.allocate"), * o;
    struct gbpy_use      use = { 0 };
    if (c == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    const struct gbpy_want place = { .object = c, .write = true };
    GB_TRY(gbpy_enter_wants(&use, "Context.allocate", &place, 1, false));
    int status = begin_buffer(handle, parent, &o);
    if (status == GGML_STATUS_SUCCESS) {
        ggml_clear_error();
        gbpy_unplace_all_lost(c->ptr);
        const ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors_from_buft(c->ptr, buft);
        if (buffer == NULL) {
            status = ggml_last_status() == GGML_STATUS_SUCCESS ? GGML_STATUS_INVALID_STATE : (int) ggml_last_status();
            gbpy_unref(o);
        } else {
            status = new_owner(handle, o, buffer, usage);
        }
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = gbpy_add_home(c, o) && gbpy_keep_owner(c, o) ? (int) gbpy_upload_constants(c) : GGML_STATUS_ALLOC_FAILED;
    }
    gbpy_note_move();
    gbpy_leave(&use);
    return status;
}

int gbpy_place(struct gbpy_handle * buffer, struct gbpy_handle * context, struct ggml_tensor * t, size_t offset) {
    struct gbpy_object * b = gbpy_object_of(buffer, "Buffer.place"), * c = gbpy_object_of(context, "Buffer.place");
    struct gbpy_use      use = { 0 };
    if (b == NULL || c == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    const struct gbpy_want wants[2] = { { .object = c, .write = true }, { .object = b } };
    GB_TRY(gbpy_enter_wants(&use, "Buffer.place", wants, 2, false));
    gbpy_unplace_lost(t);
    char * base   = ggml_backend_buffer_get_base(b->ptr);
    int    status = base != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_INVALID_STATE;
    if (status == GGML_STATUS_SUCCESS) {
        status = gbpy_add_home(c, b) && gbpy_keep_owner(c, b) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = ggml_backend_tensor_alloc(b->ptr, t, base + offset);
    }
    gbpy_note_move();
    gbpy_leave(&use);
    return status;
}

int gbpy_clear(struct gbpy_handle * buffer, uint8_t value) {
    struct gbpy_object * b = gbpy_object_of(buffer, "Buffer.clear");
    struct gbpy_use      use = { 0 };
    if (b == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    const struct gbpy_want want = { .object = b, .write = true };
    GB_TRY(gbpy_enter_wants(&use, "Buffer.clear", &want, 1, false));
    const int status = b->readonly ? gb_fail(GGML_STATUS_INVALID_STATE, "Buffer.clear: the buffer is read-only") : (int) ggml_backend_buffer_clear(b->ptr, value);
    gbpy_leave(&use);
    return status;
}

bool gbpy_buffer_is_readonly(const struct gbpy_handle * buffer) { return buffer != NULL && buffer->object != NULL && buffer->object->readonly; }

// -------------------------------------------------------------------------------------------------------------------- allocators

int gbpy_tallocr_alloc(struct gbpy_handle * allocator, struct gbpy_handle * buffer, struct gbpy_handle * context, struct ggml_tensor * t) {
    struct gbpy_object * a = gbpy_object_of(allocator, "TensorAllocator.alloc"), * c = gbpy_object_of(context, "TensorAllocator.alloc");
    struct gbpy_object * b = buffer != NULL ? gbpy_object_of(buffer, "TensorAllocator.alloc") : NULL;
    struct gbpy_use      use = { 0 };
    if (a == NULL || c == NULL || (buffer != NULL && b == NULL)) {
        return GGML_STATUS_INVALID_STATE;
    }
    const struct gbpy_want wants[3] = { { .object = c, .write = true }, { .object = a, .write = true }, { .object = b } };
    GB_TRY(gbpy_enter_wants(&use, "TensorAllocator.alloc", wants, b != NULL ? 3 : 2, false));
    int status = GGML_STATUS_SUCCESS;
    if (b != NULL) {
        gbpy_unplace_lost(t);
        status = gbpy_add_home(c, b) && gbpy_keep_owner(c, b) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = ggml_tallocr_alloc(a->ptr, t);
    }
    gbpy_note_move();
    gbpy_leave(&use);
    return status;
}

static void unplace_tensor_of(struct ggml_tensor * t, const struct gbpy_object * buffer) {
    if (t != NULL && gbpy_owner_of(t) == buffer) {
        gbpy_set_stamp(t, 0);
        t->buffer = NULL;
        t->data   = NULL;
        t->extra  = NULL;
    }
}

// What the graph before had in the buffer loses its place: views first, which find it through their source.
static void unplace_graph(const struct ggml_cgraph * graph, const struct gbpy_object * buffer) {
    for (int views = 1; views >= 0; views--) {
        for (int i = 0; i < graph->n_nodes; i++) {
            if ((graph->nodes[i]->view_src != NULL) == (views == 1)) {
                unplace_tensor_of(graph->nodes[i], buffer);
            }
        }
        for (int i = 0; i < graph->n_leafs; i++) {
            if ((graph->leafs[i]->view_src != NULL) == (views == 1)) {
                unplace_tensor_of(graph->leafs[i], buffer);
            }
        }
    }
    for (int i = 0; i < graph->n_nodes; i++) { // sources of views that are in no list
        unplace_tensor_of(graph->nodes[i]->view_src, buffer);
    }
}

static int enter_graph(struct gbpy_use * use, const char * what, struct gbpy_object * a, struct gbpy_object * b, struct gbpy_object * g, struct gbpy_object * old) {
    gbpy_wants wants = { 0 };
    bool       ok    = gb_vec_push(&wants, ((struct gbpy_want){ .object = a, .write = true })) && (b == NULL || gb_vec_push(&wants, ((struct gbpy_want){ .object = b, .write = true })));
    for (int i = 0; ok && i < g->n_contexts; i++) {
        ok = gb_vec_push(&wants, ((struct gbpy_want){ .object = g->contexts[i], .write = true }));
    }
    for (int i = 0; ok && old != NULL && i < old->n_contexts; i++) {
        ok = gb_vec_push(&wants, ((struct gbpy_want){ .object = old->contexts[i], .write = true }));
    }
    const int status = ok ? gbpy_enter_wants(use, what, wants.data, (int) wants.n, false) : GGML_STATUS_ALLOC_FAILED;
    gb_vec_free(&wants);
    return status;
}

int gbpy_unplace_graph(struct gbpy_handle * buffer) {
    struct gbpy_object * b = gbpy_object_of(buffer, "GraphAllocator.allocate");
    struct gbpy_use      use = { 0 };
    if (b == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    gbpy_lock();
    struct gbpy_object * old = b->graph;
    if (old != NULL) {
        gbpy_ref(old);
    }
    gbpy_unlock();
    if (old == NULL) {
        return GGML_STATUS_SUCCESS;
    }
    const int status = enter_graph(&use, "GraphAllocator.allocate", b, NULL, old, NULL);
    if (status == GGML_STATUS_SUCCESS && b->graph == old) { // else another thread was faster
        unplace_graph(old->ptr, b);
        b->graph = NULL;
        gbpy_note_move();
        gbpy_unref(old);
    }
    gbpy_leave(&use);
    gbpy_unref(old);
    return status;
}

int gbpy_gallocr_measure(struct gbpy_handle * allocator, struct ggml_backend_buffer_type * buft, struct gbpy_handle * graph, size_t * size) {
    struct gbpy_object * a = gbpy_object_of(allocator, "GraphAllocator.measure"), * g = gbpy_object_of(graph, "GraphAllocator.measure");
    struct gbpy_use      use = { 0 };
    if (a == NULL || g == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(enter_graph(&use, "GraphAllocator.measure", a, NULL, g, NULL));
    ggml_tallocr_t measuring = ggml_tallocr_new_measure_from_buft(buft);
    ggml_clear_error();
    *size      = measuring != NULL ? ggml_gallocr_alloc_graph(a->ptr, measuring, g->ptr) : 0;
    int status = *size == 0 ? (int) ggml_last_status() : GGML_STATUS_SUCCESS;
    ggml_tallocr_free(measuring);
    gbpy_leave(&use);
    return status;
}

int gbpy_gallocr_alloc(struct gbpy_handle * allocator, struct gbpy_handle * buffer, struct gbpy_handle * graph) {
    struct gbpy_object * a = gbpy_object_of(allocator, "GraphAllocator.allocate"), * b = gbpy_object_of(buffer, "GraphAllocator.allocate");
    struct gbpy_object * g = gbpy_object_of(graph, "GraphAllocator.allocate");
    struct gbpy_use      use = { 0 };
    if (a == NULL || b == NULL || g == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(enter_graph(&use, "GraphAllocator.allocate", a, b, g, b->graph));
    struct gbpy_object * old = b->graph;
    if (old != NULL) {
        unplace_graph(old->ptr, b);
    }
    b->graph   = NULL;
    b->scratch = true;
    int status = GGML_STATUS_SUCCESS;
    for (int i = 0; i < g->n_contexts && status == GGML_STATUS_SUCCESS; i++) {
        if (g->contexts[i]->kind == GBPY_CONTEXT) {
            gbpy_unplace_all_lost(g->contexts[i]->ptr);
        }
        status = gbpy_add_home(g->contexts[i], b) && gbpy_keep_owner(g->contexts[i], b) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    ggml_tallocr_t placing = status == GGML_STATUS_SUCCESS ? ggml_tallocr_new_from_buffer(b->ptr) : NULL;
    if (placing != NULL) {
        ggml_clear_error();
        if (ggml_gallocr_alloc_graph(a->ptr, placing, g->ptr) == 0 && ggml_last_status() != GGML_STATUS_SUCCESS) {
            status = ggml_last_status();
        }
        ggml_tallocr_free(placing);
    } else if (status == GGML_STATUS_SUCCESS) {
        status = ggml_last_status();
    }
    for (int i = 0; i < g->n_contexts && status == GGML_STATUS_SUCCESS; i++) {
        status = gbpy_upload_constants(g->contexts[i]);
    }
    g->computed = -1;
    gbpy_ref(g);
    b->graph = g;
    gbpy_note_move();
    gbpy_leave(&use);
    gbpy_unref(old);
    return status;
}
