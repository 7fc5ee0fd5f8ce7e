// data.c - each call enters the tensor's context and the owner of its memory, checks the content, and touches bytes.
#include "data.h"

#include <stdio.h>
#include <string.h>

#include "extension.h"
#include "sched_impl.h"

enum { ASK = 1024 }; // elements between two questions of the thread's poll: each may be the first of a huge page

// ------------------------------------------------------------------------------------------------------------ entering

// Under the lock: the owner of the tensor's memory. Memory that a context gave its tensors itself is the context's.
static int find_owner(struct gbpy_object * context, const struct ggml_tensor * t, const char * what,
    struct gbpy_object ** owner) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    *owner = buffer != NULL ? buffer->binding : GB_READ_RELAXED(gb_root(t)->data) != NULL ? context : NULL;
    if (*owner == NULL || gbpy_has_lost(t)) {
        return gbpy_fail_lost(t, what);
    }
    return GGML_STATUS_SUCCESS;
}

// A use of the memory of n tensors, the first n_written to write. Who uses it already, and calls from a callback, has
// it.
static int lock_tensors(struct gbpy_locks * locks, struct gbpy_object ** contexts, struct ggml_tensor ** tensors, int n,
    int n_written, const char * what, struct gbpy_object ** owners) {
    enum { MOST = 2 };
    struct gbpy_request requests[MOST];
    int status = gbpy_reserve_locks(locks, MOST) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    gbpy_mutex_lock();
    while (status == GGML_STATUS_SUCCESS && !locks->active) {
        status = gbpy_wait_for_placement(contexts, n, what);
        for (int i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
            status = find_owner(contexts[i], tensors[i], what, &owners[i]);
            requests[i] = (struct gbpy_request){ .object = owners[i], .write = i < n_written };
        }
        if (status == GGML_STATUS_SUCCESS) {
            const int m = n == 2 && requests[0].object == requests[1].object ? 1 : n; // the one to write is the first
            status = gbpy_take_or_wait(locks, what, requests, m, true, n_written > 0 ? tensors[0] : NULL);
        }
    }
    gbpy_mutex_unlock();
    return status;
}

// A view made before its source was placed, or placed elsewhere, gets its place. By who uses the owner of the memory.
static int refresh(struct ggml_tensor * t) {
    struct ggml_tensor * root = gb_root(t);
    char * data = (char *) root->data + (t == root ? 0 : t->view_offs);
    if (t->data == data && t->buffer == root->buffer) {
        return GGML_STATUS_SUCCESS;
    }
    t->data = root->buffer ? NULL : data;
    t->buffer = NULL;
    return root->buffer ? ggml_backend_view_init(root->buffer, t) : GGML_STATUS_SUCCESS;
}

// An array over an input is for setting it, too, and begins with zeros (fill_blank); a copy of one that was never set
// is a mistake.
static int check_set(const struct gbpy_object * owner, const struct ggml_tensor * t, const char * what) {
    return gbpy_is_unset(owner, t)
               ? gb_fail(GGML_STATUS_INVALID_STATE, "%s was not set since it was given memory", what)
               : GGML_STATUS_SUCCESS;
}

// What a node computes is not for the user to write, but for a callback while the graph runs.
static int check_writable(const struct gbpy_object * owner, const struct ggml_tensor * t, const char * what) {
    GB_FAIL_IF(gb_root(t)->op != GGML_OP_NONE && !(owner->kind == GBPY_SCHED && owner->sched->running),
        GGML_STATUS_INVALID_STATE,
        "%s is a result, which only a computation writes (a callback may while it runs): set an input", what);
    GB_FAIL_IF(gbpy_is_constant(t), GGML_STATUS_INVALID_STATE,
        "%s is a constant; ctx.tensor(shape) makes an input whose data changes", what);
    return GGML_STATUS_SUCCESS;
}

// Whether a tensor in memory that the caller uses can be read or written now.
static int check_touch(const struct gbpy_object * owner, struct ggml_tensor * t, bool writing, bool reading,
    const char * what) {
    GB_TRY(gbpy_check_content(owner, t, reading, what));
    GB_TRY(refresh(t));
    if (t->data == NULL && ggml_nelements(t) > 0) {
        return gbpy_fail_lost(t, what);
    }
    if (writing) {
        GB_TRY(check_writable(owner, t, what));
        GB_FAIL_IF(owner->readonly, GGML_STATUS_INVALID_STATE, "%s is in a read-only buffer", what);
    }
    return GGML_STATUS_SUCCESS;
}

// Enters, and makes sure that the data is there.
static int lock_tensor(struct gbpy_locks * locks, const struct gbpy_handle * context, struct ggml_tensor * t,
    bool writing, bool reading, const char * what, struct gbpy_object ** owner) {
    struct gbpy_object * c = gbpy_object_of(context, what);
    if (c == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(lock_tensors(locks, &c, &t, 1, writing, what, owner));
    const int status = check_touch(*owner, t, writing, reading, what);
    if (status != GGML_STATUS_SUCCESS) {
        gbpy_unlock(locks);
    }
    return status;
}

static bool is_host(const struct ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    return buffer == NULL || ggml_backend_buffer_is_host(buffer);
}

// ------------------------------------------------------------------------------------------------------------- looking

// Is it an input that nobody set, in memory of the host that an array over it may write?
static bool is_blank(const struct gbpy_object * owner, const struct ggml_tensor * t) {
    return is_host(t) && !owner->readonly && !gbpy_is_constant(t) && gbpy_is_unset(owner, t);
}

// Gives an input that nobody set zeros, which count as set from then on. Alone, so that no other thread sees half of it
// or loses what it wrote.
static int fill_blank(const struct gbpy_handle * context, struct ggml_tensor * t, const char * what) {
    struct gbpy_request held[2];
    struct gbpy_locks locks = { .held = held, .capacity = 2, .borrowed = true };
    struct gbpy_object * owner;
    GB_TRY(lock_tensor(&locks, context, t, true, false, what, &owner));
    if (is_blank(owner, t)) { // else another thread was faster
        struct ggml_tensor * root = gb_root(t);
        memset(root->data, 0, ggml_nbytes(root));
        gb_buffer_changed(gb_tensor_buffer(root));
        gbpy_set_stamp(root, 1);
    }
    gbpy_unlock(&locks);
    return GGML_STATUS_SUCCESS;
}

// Enters to look at the data, which inputs that nobody set have then, too.
static int lock_to_look(struct gbpy_locks * locks, const struct gbpy_handle * context, struct ggml_tensor * t,
    const char * what, struct gbpy_object ** owner) {
    GB_TRY(lock_tensor(locks, context, t, false, true, what, owner));
    while (is_blank(*owner, t)) {
        gbpy_unlock(locks);
        GB_TRY(fill_blank(context, t, what));
        GB_TRY(lock_tensor(locks, context, t, false, true, what, owner));
    }
    return GGML_STATUS_SUCCESS;
}

int gbpy_look(struct gbpy_handle * pin, const struct gbpy_handle * context, struct ggml_tensor * t,
    struct gbpy_view * view, const char * what) {
    struct gbpy_request held[2];
    struct gbpy_locks locks = { .held = held, .capacity = 2, .borrowed = true };
    struct gbpy_object * owner;
    GB_TRY(lock_to_look(&locks, context, t, what, &owner));
    view->host = is_host(t);
    view->readonly = owner->readonly || gbpy_is_constant(t);
    view->data = t->data;
    view->nbytes = ggml_nbytes(t);
    if (view->host) {
        struct ggml_tensor * root = gb_root(t);
        gbpy_ref(owner);
        atomic_fetch_add(&owner->n_pins, 1);
        pin->object = owner;
        if (root->op == GGML_OP_NONE && !view->readonly && gbpy_stamp(root) == 0) {
            gbpy_set_stamp(root, 1); // whoever has the array may set the input through it
        }
    }
    gbpy_unlock(&locks);
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

void gbpy_pin(struct gbpy_handle * pin, const struct ggml_tensor * t, const struct gbpy_handle * otherwise) {
    struct gbpy_object * o = gbpy_owner_of(t);
    // memory of a context: what needs it
    o = o != NULL ? o : otherwise != NULL ? otherwise->object : NULL;
    if (o == NULL) {
        return;
    }
    if (o->kind == GBPY_SCHED) {
        gb_sched_hold_for_readers(o->ptr);
    }
    gbpy_ref(o);
    atomic_fetch_add(&o->n_pins, 1);
    pin->object = o;
}

int gbpy_find_place(const struct gbpy_handle * context, struct ggml_tensor * t) {
    struct gbpy_request held[2];
    struct gbpy_locks locks = { .held = held, .capacity = 2, .borrowed = true };
    struct gbpy_object * owner;
    const int status = lock_tensor(&locks, context, t, false, false, "is_placed", &owner);
    gbpy_unlock(&locks);
    return status;
}

// The owner, with a new reference, and the buffer, without a use of them.
static int peek(const struct gbpy_handle * context, const struct ggml_tensor * t, struct gbpy_object ** owner,
    ggml_backend_buffer_t * buffer) {
    struct gbpy_object * c = gbpy_object_of(context, "the tensor");
    if (c == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    gbpy_mutex_lock();
    int status = gbpy_wait_for_placement(&c, 1, "the tensor");
    status = status == GGML_STATUS_SUCCESS ? find_owner(c, t, "it", owner) : status;
    *buffer = gb_tensor_buffer(t);
    if (status == GGML_STATUS_SUCCESS && !gbpy_try_ref(*owner)) {
        status = gbpy_fail_lost(t, "it");
    }
    gbpy_mutex_unlock();
    return status;
}

int gbpy_find_owner(const struct gbpy_handle * context, const struct ggml_tensor * t, struct gbpy_handle * owner) {
    ggml_backend_buffer_t buffer;
    struct gbpy_object * o;
    GB_TRY(peek(context, t, &o, &buffer));
    owner->object = o;
    return GGML_STATUS_SUCCESS;
}

int gbpy_is_on_host(const struct gbpy_handle * context, const struct ggml_tensor * t, bool * host) {
    ggml_backend_buffer_t buffer;
    struct gbpy_object * o;
    GB_TRY(peek(context, t, &o, &buffer));
    *host = buffer == NULL || ggml_backend_buffer_is_host(buffer);
    gbpy_unref(o);
    return GGML_STATUS_SUCCESS;
}

int gbpy_location(const struct gbpy_handle * context, const struct ggml_tensor * t, char * name, size_t size) {
    ggml_backend_buffer_t buffer;
    struct gbpy_object * o;
    GB_TRY(peek(context, t, &o, &buffer));
    snprintf(name, size, "%s", buffer != NULL ? ggml_backend_buffer_name(buffer) : "");
    gbpy_unref(o);
    return GGML_STATUS_SUCCESS;
}

// ------------------------------------------------------------------------------------------- reading, writing, copying

int gbpy_read(const struct gbpy_handle * context, const struct ggml_tensor * t, void * data, size_t size,
    const char * what) {
    struct gbpy_request held[2];
    struct gbpy_locks locks = { .held = held, .capacity = 2, .borrowed = true };
    struct gbpy_object * owner;
    GB_TRY(lock_tensor(&locks, context, (struct ggml_tensor *) t, false, true, what, &owner));
    int status = check_set(owner, t, what);
    if (status == GGML_STATUS_SUCCESS && size > 0) {
        status = size <= ggml_nbytes(t)
                     ? (int) ggml_backend_tensor_get(t, data, 0, size)
                     : gb_fail(GGML_STATUS_INVALID_ARGUMENT, "%s has %zu bytes, not %zu", what, ggml_nbytes(t), size);
    }
    gbpy_unlock(&locks);
    return status;
}

// After a write. One that an interrupt ended may have written a part: as if it had never been set.
static void note_set(struct ggml_tensor * t, int status) {
    if (status == GGML_STATUS_SUCCESS) {
        gbpy_set_stamp(gb_root(t), atomic_fetch_add(&gbpy_sets, 1) + 1);
    } else if (status == GGML_STATUS_ABORTED) {
        gbpy_set_stamp(gb_root(t), 0);
        gbpy_note_move(); // graphs look at their inputs again
    }
}

int gbpy_write(const struct gbpy_handle * context, struct ggml_tensor * t, const void * data, size_t offset,
    size_t size, const char * what) {
    struct gbpy_request held[2];
    struct gbpy_locks locks = { .held = held, .capacity = 2, .borrowed = true };
    struct gbpy_object * owner;
    GB_TRY(lock_tensor(&locks, context, t, true, false, what, &owner));
    int status = size > 0 ? (int) ggml_backend_tensor_set(t, data, offset, size) : GGML_STATUS_SUCCESS;
    note_set(t, status);
    gbpy_unlock(&locks);
    return status;
}

// Rows of the last axis, whose elements may have gaps between them.
static int scatter(char * to, const struct ggml_tensor * t, const char * from) {
    const size_t element = ggml_type_size(t->type);
    const int64_t blocks = t->ne[0] / ggml_blck_size(t->type);
    unsigned n = 0;
    gb_mapped_enter();
    for (int64_t i3 = 0; i3 < t->ne[3]; i3++) {
        for (int64_t i2 = 0; i2 < t->ne[2]; i2++) {
            for (int64_t i1 = 0; i1 < t->ne[1]; i1++) {
                char * row = to + (size_t) i1 * t->nb[1] + (size_t) i2 * t->nb[2] + (size_t) i3 * t->nb[3];
                for (int64_t i0 = 0; i0 < blocks; i0++, from += element) {
                    memcpy(row + (size_t) i0 * t->nb[0], from, element);
                    if (++n % ASK == 0) {
                        gb_mapped_leave();
                        GB_TRY(gb_go_on());
                        gb_mapped_enter();
                    }
                }
            }
        }
    }
    gb_mapped_leave();
    return GGML_STATUS_SUCCESS;
}

static int write_gaps(struct ggml_tensor * t, const void * data) {
    if (is_host(t)) {
        const int status = scatter(t->data, t, data);
        gb_buffer_changed(gb_tensor_buffer(t));
        return status == GGML_STATUS_SUCCESS ? (int) gb_mapped_check_at("reading", data) : status;
    }
    const size_t n = ggml_nbytes(t); // read what is there, change it, write it back
    char * staging = gb_malloc(n);
    if (staging == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    int status = ggml_backend_tensor_get(t, staging, 0, n);
    status = status == GGML_STATUS_SUCCESS ? scatter(staging, t, data) : status;
    status = status == GGML_STATUS_SUCCESS ? (int) ggml_backend_tensor_set(t, staging, 0, n) : status;
    gb_free(staging);
    GB_TRY(gb_mapped_check_at("reading", data));
    return status;
}

int gbpy_write_all(const struct gbpy_handle * context, struct ggml_tensor * t, const void * data, size_t size,
    const char * what) {
    struct gbpy_request held[2];
    struct gbpy_locks locks = { .held = held, .capacity = 2, .borrowed = true };
    struct gbpy_object * owner;
    const size_t needs = (size_t) (ggml_nelements(t) / ggml_blck_size(t->type)) * ggml_type_size(t->type);
    GB_FAIL_IF(size != needs, GGML_STATUS_INVALID_ARGUMENT, "%s takes %zu bytes, not %zu", what, needs, size);
    GB_TRY(lock_tensor(&locks, context, t, true, false, what, &owner));
    int status = GGML_STATUS_SUCCESS;
    if (size > 0) {
        status = ggml_is_contiguous(t) ? (int) ggml_backend_tensor_set(t, data, 0, size) : write_gaps(t, data);
    }
    note_set(t, status);
    gbpy_unlock(&locks);
    return status;
}

// To write all memory that the tensors of the parts lie in.
static int lock_parts(struct gbpy_locks * locks, struct gbpy_object * c, const struct ggml_backend_file_fill * fills,
    size_t n, const char * what) {
    gbpy_requests requests = { 0 };
    int status = GGML_STATUS_SUCCESS;
    struct gbpy_object * owner;
    gbpy_mutex_lock();
    while (status == GGML_STATUS_SUCCESS && !locks->active) {
        status = gbpy_wait_for_placement(&c, 1, what);
        gbpy_begin_requests(&requests);
        for (size_t i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
            status = find_owner(c, fills[i].tensor, what, &owner);
            if (status == GGML_STATUS_SUCCESS && !gbpy_add_request(&requests, owner, true)) {
                status = GGML_STATUS_ALLOC_FAILED;
            }
        }
        if (status == GGML_STATUS_SUCCESS && !gbpy_reserve_locks(locks, (int) requests.n)) {
            status = GGML_STATUS_ALLOC_FAILED;
        }
        if (status == GGML_STATUS_SUCCESS) {
            status = gbpy_take_or_wait(locks, what, requests.data, (int) requests.n, false, NULL);
        }
    }
    gbpy_mutex_unlock();
    gb_vec_free(&requests);
    return status;
}

int gbpy_fill_from_files(const struct gbpy_handle * context, struct ggml_backend_file_fill * fills, size_t n,
    const char * what) {
    struct gbpy_object * c = gbpy_object_of(context, what);
    struct gbpy_locks locks = { 0 };
    int status;
    if (c == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(lock_parts(&locks, c, fills, n, what));
    status = GGML_STATUS_SUCCESS;
    for (size_t i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
        const ggml_backend_buffer_t buffer = gb_tensor_buffer(fills[i].tensor);
        status = check_touch(buffer != NULL ? buffer->binding : c, fills[i].tensor, true, false, what);
        fills[i].asked = fills[i].filled = false;
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = ggml_backend_fill_from_files(fills, n);
        for (size_t i = 0; i < n; i++) {
            if (fills[i].filled || (fills[i].asked && status != GGML_STATUS_SUCCESS)) {
                note_set(fills[i].tensor, fills[i].filled ? GGML_STATUS_SUCCESS : GGML_STATUS_ABORTED);
            }
        }
    }
    gbpy_unlock(&locks);
    return status;
}

int gbpy_keep_file(const struct gbpy_handle * context, const struct ggml_backend_file_fill * fill, const char * what) {
    struct gbpy_request held[2];
    struct gbpy_locks locks = { .held = held, .capacity = 2, .borrowed = true };
    struct gbpy_object * owner;
    GB_TRY(lock_tensor(&locks, context, fill->tensor, false, true, what, &owner));
    const int status = (int) ggml_backend_keep_file(fill);
    gbpy_unlock(&locks);
    return status;
}

int gbpy_copy(const struct gbpy_handle * to_context, struct ggml_tensor * to, const struct gbpy_handle * from_context,
    struct ggml_tensor * from, const char * what) {
    struct gbpy_request held[2];
    struct gbpy_locks locks = { .held = held, .capacity = 2, .borrowed = true };
    struct gbpy_object *contexts[2] = { gbpy_object_of(to_context, what), gbpy_object_of(from_context, what) },
                       *owners[2];
    struct ggml_tensor * tensors[2] = { to, from };
    if (contexts[0] == NULL || contexts[1] == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(lock_tensors(&locks, contexts, tensors, 2, 1, what, owners));
    int status = gbpy_check_content(owners[0], to, false, what);
    if (status == GGML_STATUS_SUCCESS) {
        status = gbpy_check_content(owners[1], from, true, what);
    }
    status = status == GGML_STATUS_SUCCESS ? check_set(owners[1], from, what) : status;
    if (status == GGML_STATUS_SUCCESS && owners[0]->readonly) {
        status = gb_fail(GGML_STATUS_INVALID_STATE, "%s: it is in a read-only buffer", what);
    }
    status = status == GGML_STATUS_SUCCESS ? check_writable(owners[0], to, what) : status;
    status = status == GGML_STATUS_SUCCESS ? refresh(to) : status;
    status = status == GGML_STATUS_SUCCESS ? refresh(from) : status;
    status = status == GGML_STATUS_SUCCESS ? (int) ggml_backend_tensor_copy(from, to) : status;
    note_set(to, status);
    gbpy_unlock(&locks);
    return status;
}
