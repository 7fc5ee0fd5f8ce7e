// data.c - reading, writing and copying. Each call locks the owner of the tensor's memory and checks the content.
#include "data.h"

#include <stdio.h>
#include <string.h>

#include "extension.h"
#include "sched_impl.h"

// ------------------------------------------------------------------------------------------------------------- locking

// Under the mutex: finds the owner of the tensor's memory. Memory that a context gave its own tensors is the
// context's.
static int find_owner(struct gbpy_context * context, const struct ggml_tensor * t, const char * what,
    struct gbpy_memory ** owner) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    *owner = buffer != NULL ? buffer->binding : GB_READ_RELAXED(gb_root(t)->data) != NULL ? &context->memory : NULL;
    return *owner == NULL || gbpy_has_lost_memory(t) ? gbpy_fail_no_memory(t, what) : GGML_STATUS_SUCCESS;
}

// Locks the memory of n tensors, the first n_written for writing. A callback may lock what its computation has
// locked.
static int lock_tensors(struct gbpy_locks * locks, struct gbpy_context ** contexts, struct ggml_tensor ** tensors,
    int n, int n_written, const char * what, struct gbpy_memory ** owners) {
    enum { MOST = 2 };
    struct gbpy_request requests[MOST];
    int status = gbpy_reserve_locks(locks, MOST) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    gbpy_mutex_lock();
    while (status == GGML_STATUS_SUCCESS && !locks->active) {
        status = gbpy_wait_for_placement(contexts, n, what);
        for (int i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
            status = find_owner(contexts[i], tensors[i], what, &owners[i]);
            requests[i] = (struct gbpy_request){ .object = (struct gbpy_object *) owners[i], .write = i < n_written };
        }
        if (status == GGML_STATUS_SUCCESS) {
            // if both lie in the same memory, the request to write, which is the first, serves both
            const int m = n == 2 && owners[0] == owners[1] ? 1 : n;
            status = gbpy_take_or_wait(locks, what, requests, m, true, n_written > 0 ? tensors[0] : NULL);
        }
    }
    gbpy_mutex_unlock();
    return status;
}

// Locks the tensor's memory to write all of it or a part.
static int lock_to_write(struct gbpy_locks * locks, const struct gbpy_handle * context, struct ggml_tensor * t,
    const char * what, struct gbpy_memory ** owner) {
    struct gbpy_context * c = gbpy_context_of(context, what);
    int status = c != NULL ? lock_tensors(locks, &c, &t, 1, 1, what, owner) : GGML_STATUS_INVALID_STATE;
    status = status == GGML_STATUS_SUCCESS ? gbpy_prepare_write(*owner, t, what) : status;
    if (status != GGML_STATUS_SUCCESS) {
        gbpy_unlock(locks);
    }
    return status;
}

// Locks the tensor's memory to read it, or (content: false) only to find where it lies.
static int lock_to_read(struct gbpy_locks * locks, const struct gbpy_handle * context, struct ggml_tensor * t,
    bool content, const char * what, struct gbpy_memory ** owner) {
    struct gbpy_context * c = gbpy_context_of(context, what);
    int status = c != NULL ? lock_tensors(locks, &c, &t, 1, 0, what, owner) : GGML_STATUS_INVALID_STATE;
    if (status == GGML_STATUS_SUCCESS) {
        status = content ? gbpy_check_readable(*owner, t, what) : gbpy_check_own(*owner, t, what);
    }
    status = status == GGML_STATUS_SUCCESS ? gbpy_refresh(t, what) : status;
    if (status != GGML_STATUS_SUCCESS) {
        gbpy_unlock(locks);
    }
    return status;
}

// A copy of an input that was never set is a mistake. (A view of one is filled with zeros instead: fill_blank.)
static int check_set(const struct gbpy_memory * owner, const struct ggml_tensor * t, const char * what) {
    return gbpy_is_unset(owner, t)
               ? gb_fail(GGML_STATUS_INVALID_STATE, "%s was not set since it was given memory", what)
               : GGML_STATUS_SUCCESS;
}

static bool is_host(const struct ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    return buffer == NULL || gb_buffer_is_host(buffer);
}

// ------------------------------------------------------------------------------------------------------------- viewing

// An unset input in host memory that an array over it may write.
static bool is_blank(const struct gbpy_memory * owner, const struct ggml_tensor * t) {
    return is_host(t) && !owner->readonly && !gbpy_is_constant(t) && gbpy_is_unset(owner, t);
}

// Fills an unset input with zeros, which count as set. With a write lock, so that no other thread sees a part of the
// zeros or loses what it wrote.
static int fill_blank(const struct gbpy_handle * context, struct ggml_tensor * t, const char * what) {
    struct gbpy_request held[2];
    struct gbpy_locks locks = { .held = held, .capacity = 2, .borrowed = true };
    struct gbpy_memory * owner;
    GB_TRY(lock_to_write(&locks, context, t, what, &owner));
    if (is_blank(owner, t)) { // else another thread has filled it
        struct ggml_tensor * root = gb_root(t);
        memset(root->data, 0, ggml_nbytes(root));
        gb_buffer_changed(gb_tensor_buffer(root));
        gbpy_set_stamp(root, 1);
    }
    gbpy_unlock(&locks);
    return GGML_STATUS_SUCCESS;
}

// Locks a tensor to view its data. Fills it first if it is an unset input.
static int lock_to_look(struct gbpy_locks * locks, const struct gbpy_handle * context, struct ggml_tensor * t,
    const char * what, struct gbpy_memory ** owner) {
    GB_TRY(lock_to_read(locks, context, t, true, what, owner));
    while (is_blank(*owner, t)) {
        gbpy_unlock(locks);
        GB_TRY(fill_blank(context, t, what));
        GB_TRY(lock_to_read(locks, context, t, true, what, owner));
    }
    return GGML_STATUS_SUCCESS;
}

int gbpy_look(struct gbpy_handle * pin, const struct gbpy_handle * context, struct ggml_tensor * t,
    struct gbpy_view * view, const char * what) {
    struct gbpy_request held[2];
    struct gbpy_locks locks = { .held = held, .capacity = 2, .borrowed = true };
    struct gbpy_memory * owner;
    GB_TRY(lock_to_look(&locks, context, t, what, &owner));
    view->host = is_host(t);
    view->readonly = owner->readonly || gbpy_is_constant(t);
    view->data = t->data;
    view->nbytes = ggml_nbytes(t);
    if (view->host) {
        struct ggml_tensor * root = gb_root(t);
        gbpy_ref(&owner->head);
        atomic_fetch_add(&owner->head.n_pins, 1);
        pin->object = &owner->head;
        if (root->op == GGML_OP_NONE && !view->readonly && gbpy_stamp(root) == 0) {
            gbpy_set_stamp(root, 1); // the user may set the input through the array
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
    struct gbpy_memory * owner = gbpy_owner_of(t);
    struct gbpy_object * o = owner != NULL ? &owner->head : otherwise != NULL ? otherwise->object : NULL;
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
    struct gbpy_memory * owner;
    const int status = lock_to_read(&locks, context, t, false, "is_placed", &owner);
    gbpy_unlock(&locks);
    return status;
}

// Sets *owner, with a new reference, and *buffer, without a lock on them.
static int peek(const struct gbpy_handle * context, const struct ggml_tensor * t, struct gbpy_object ** owner,
    ggml_backend_buffer_t * buffer) {
    struct gbpy_context * c = gbpy_context_of(context, "the tensor");
    struct gbpy_memory * found = NULL;
    if (c == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    gbpy_mutex_lock();
    int status = gbpy_wait_for_placement(&c, 1, "the tensor");
    status = status == GGML_STATUS_SUCCESS ? find_owner(c, t, "it", &found) : status;
    *buffer = gb_tensor_buffer(t);
    if (status == GGML_STATUS_SUCCESS && !gbpy_try_ref(&found->head)) {
        status = gbpy_fail_no_memory(t, "it");
    }
    gbpy_mutex_unlock();
    if (status == GGML_STATUS_SUCCESS) {
        *owner = &found->head;
    }
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
    *host = buffer == NULL || gb_buffer_is_host(buffer);
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
    struct gbpy_memory * owner;
    GB_TRY(lock_to_read(&locks, context, (struct ggml_tensor *) (uintptr_t) t, true, what, &owner));
    int status = check_set(owner, t, what);
    if (status == GGML_STATUS_SUCCESS && size > 0) {
        status = size <= ggml_nbytes(t)
                     ? (int) ggml_backend_tensor_get(t, data, 0, size)
                     : gb_fail(GGML_STATUS_INVALID_ARGUMENT, "%s has %zu bytes, not %zu", what, ggml_nbytes(t), size);
    }
    gbpy_unlock(&locks);
    return status;
}

int gbpy_read_top(const struct gbpy_handle * context, struct ggml_tensor * t, int k, int32_t * ids, float * values,
    const char * what) {
    struct gbpy_request held[2];
    struct gbpy_locks locks = { .held = held, .capacity = 2, .borrowed = true };
    struct gbpy_memory * owner;
    GB_TRY(lock_to_read(&locks, context, t, true, what, &owner));
    int status = check_set(owner, t, what);
    status = status == GGML_STATUS_SUCCESS ? (int) ggml_backend_tensor_get_top(t, k, ids, values) : status;
    gbpy_unlock(&locks);
    return status;
}

// After a write. An interrupted write may have written a part, so the input counts as never set.
static void note_set(struct ggml_tensor * t, int status) {
    if (status == GGML_STATUS_SUCCESS) {
        gbpy_set_stamp(gb_root(t), atomic_fetch_add(&gbpy_sets, 1) + 1);
    } else if (status == GGML_STATUS_ABORTED) {
        gbpy_set_stamp(gb_root(t), 0);
        gbpy_note_move(); // graphs check their inputs again
    }
}

int gbpy_write(const struct gbpy_handle * context, struct ggml_tensor * t, const void * data, size_t offset,
    size_t size, const char * what) {
    struct gbpy_request held[2];
    struct gbpy_locks locks = { .held = held, .capacity = 2, .borrowed = true };
    struct gbpy_memory * owner;
    GB_TRY(lock_to_write(&locks, context, t, what, &owner));
    int status = size > 0 ? (int) ggml_backend_tensor_set(t, data, offset, size) : GGML_STATUS_SUCCESS;
    note_set(t, status);
    gbpy_unlock(&locks);
    return status;
}

int gbpy_write_all(const struct gbpy_handle * context, struct ggml_tensor * t, const void * data, size_t size,
    const char * what) {
    struct gbpy_request held[2];
    struct gbpy_locks locks = { .held = held, .capacity = 2, .borrowed = true };
    struct gbpy_memory * owner;
    const size_t needs = (size_t) (ggml_nelements(t) / ggml_blck_size(t->type)) * ggml_type_size(t->type);
    if (size != needs) {
        return gb_fail(GGML_STATUS_INVALID_ARGUMENT, "%s takes %zu bytes, not %zu", what, needs, size);
    }
    int status = lock_to_write(&locks, context, t, what, &owner);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    if (size > 0) {
        status = (int) (ggml_is_contiguous(t) ? gb_tensor_write(t, data, 0, size) : gb_tensor_scatter(t, data));
    }
    note_set(t, status);
    gbpy_unlock(&locks);
    return status;
}

// Locks all memory that the tensors of the parts lie in, for writing.
static int lock_parts(struct gbpy_locks * locks, struct gbpy_context * c, const struct ggml_backend_file_fill * fills,
    size_t n, const char * what) {
    gbpy_requests requests = { 0 };
    int status = GGML_STATUS_SUCCESS;
    struct gbpy_memory * owner;
    gbpy_mutex_lock();
    while (status == GGML_STATUS_SUCCESS && !locks->active) {
        status = gbpy_wait_for_placement(&c, 1, what);
        gbpy_begin_requests(&requests);
        for (size_t i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
            status = find_owner(c, fills[i].tensor, what, &owner);
            if (status == GGML_STATUS_SUCCESS && !gbpy_add_request(&requests, &owner->head, true)) {
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
    struct gbpy_context * c = gbpy_context_of(context, what);
    struct gbpy_locks locks = { 0 };
    int status;
    if (c == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(lock_parts(&locks, c, fills, n, what));
    status = GGML_STATUS_SUCCESS;
    for (size_t i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
        const ggml_backend_buffer_t buffer = gb_tensor_buffer(fills[i].tensor);
        status = gbpy_prepare_write(buffer != NULL ? buffer->binding : &c->memory, fills[i].tensor, what);
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
    struct gbpy_memory * owner;
    GB_TRY(lock_to_read(&locks, context, fill->tensor, true, what, &owner));
    const int status = (int) ggml_backend_keep_file(fill);
    gbpy_unlock(&locks);
    return status;
}

int gbpy_copy(const struct gbpy_handle * to_context, struct ggml_tensor * to, const struct gbpy_handle * from_context,
    struct ggml_tensor * from, const char * what) {
    struct gbpy_request held[2];
    struct gbpy_locks locks = { .held = held, .capacity = 2, .borrowed = true };
    struct gbpy_context * contexts[2] = { gbpy_context_of(to_context, what), gbpy_context_of(from_context, what) };
    struct gbpy_memory * owners[2];
    struct ggml_tensor * tensors[2] = { to, from };
    if (contexts[0] == NULL || contexts[1] == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(lock_tensors(&locks, contexts, tensors, 2, 1, what, owners));
    int status = gbpy_check_own(owners[0], to, what);
    status = status == GGML_STATUS_SUCCESS ? gbpy_check_readable(owners[1], from, what) : status;
    status = status == GGML_STATUS_SUCCESS ? check_set(owners[1], from, what) : status;
    if (status == GGML_STATUS_SUCCESS && owners[0]->readonly) {
        status = gb_fail(GGML_STATUS_INVALID_STATE, "%s: it is in a read-only buffer", what);
    }
    status = status == GGML_STATUS_SUCCESS ? gbpy_check_writable(owners[0], to, what) : status;
    status = status == GGML_STATUS_SUCCESS ? gbpy_refresh(to, what) : status;
    status = status == GGML_STATUS_SUCCESS ? gbpy_refresh(from, what) : status;
    status = status == GGML_STATUS_SUCCESS ? (int) ggml_backend_tensor_copy(from, to) : status;
    note_set(to, status);
    gbpy_unlock(&locks);
    return status;
}
