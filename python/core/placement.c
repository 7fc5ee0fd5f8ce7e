// placement.c - each call locks contexts, gives their tensors memory, and writes constants (placement.h).
#include "placement.h"

#include <string.h>

#include "extension.h"

// ----------------------------------------------------------------------------------------------------------- constants

enum {
    LEAST = 8192
}; // bytes; a device is asked to read only larger constants itself, because asking costs as much as sending less

// Constants to write, with the file that each was taken from.
typedef GB_VEC(struct ggml_backend_file_fill) fills;

static bool add_fills(fills * all, struct gbpy_context * context, const struct gbpy_memory * owner,
    const struct ggml_tensor * only) {
    for (const struct gbpy_constant * c = atomic_load(&context->constants); c != NULL; c = c->next) {
        if ((only == NULL || c->tensor == only) && c->size > 0 && gbpy_owner_of(c->tensor) == owner &&
            gbpy_is_own(owner, c->tensor)) {
            const struct ggml_backend_file_fill fill = { c->tensor, 0, c->size, c->path, c->at, c->value, { 0 }, false,
                false };
            if (!gb_vec_push(all, fill)) {
                return false;
            }
        }
    }
    return true;
}

// Moves constants of files to the front, so that one call asks for all of them.
static void sort_fills(fills * all, size_t * n_files) {
    *n_files = 0;
    for (size_t i = 0; i < all->n; i++) {
        if (all->data[i].path != NULL && all->data[i].size >= LEAST) {
            const struct ggml_backend_file_fill fill = all->data[i];
            all->data[i] = all->data[*n_files];
            all->data[(*n_files)++] = fill;
        }
    }
}

static int write_constant(const struct ggml_backend_file_fill * fill) {
    if (!fill->filled) {
        GB_TRY(ggml_backend_tensor_set(fill->tensor, fill->data, 0, fill->size));
    }
    gbpy_set_stamp(fill->tensor, 1);
    return fill->asked && !fill->filled ? (int) ggml_backend_keep_file(fill) : GGML_STATUS_SUCCESS;
}

int gbpy_upload_constants(struct gbpy_context * context, const struct gbpy_memory * owner,
    const struct ggml_tensor * only) {
    fills all = { 0 };
    size_t n_files;
    int status = add_fills(&all, context, owner, only) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    for (size_t i = 0; i < all.n; i++) {
        gbpy_set_stamp(all.data[i].tensor, 0); // if the write fails, it has no content
    }
    sort_fills(&all, &n_files);
    if (status == GGML_STATUS_SUCCESS && n_files > 0) {
        status = ggml_backend_fill_from_files(all.data, n_files);
    }
    for (size_t i = 0; i < all.n && status == GGML_STATUS_SUCCESS; i++) {
        status = write_constant(&all.data[i]);
    }
    gb_vec_free(&all);
    return status;
}

// Another thread may place all tensors of the context after the tensor was made and before it became a constant.
static int write_if_placed(struct gbpy_context * c, struct ggml_tensor * t) {
    struct gbpy_request held[1];
    struct gbpy_locks locks = { .held = held, .capacity = 1, .borrowed = true };
    struct gbpy_memory * owner = NULL;
    int status = GGML_STATUS_SUCCESS;
    gbpy_mutex_lock();
    while (status == GGML_STATUS_SUCCESS && !locks.active) {
        status = gbpy_wait_for_placement(&c, 1, "constant");
        owner = gbpy_owner_of(t);
        if (status != GGML_STATUS_SUCCESS || owner == NULL || owner->head.closed || gbpy_has_lost_memory(t)) {
            break;
        }
        const struct gbpy_request memory = { .object = &owner->head, .write = true };
        status = gbpy_take_or_wait(&locks, "constant", &memory, 1, true, NULL);
    }
    gbpy_mutex_unlock();
    if (locks.active && owner->readonly) {
        status = gb_fail(GGML_STATUS_INVALID_STATE,
            "constant: another thread placed the tensor in a read-only buffer, so its value cannot be written");
    } else if (locks.active) {
        status = gbpy_upload_constants(c, owner, t);
    }
    if (status != GGML_STATUS_SUCCESS) {
        gbpy_set_stamp(t, 0); // it has no content
    }
    gbpy_unlock(&locks);
    return status;
}

int gbpy_set_constant(struct gbpy_handle * context, struct ggml_tensor * t, const void * value, size_t size,
    const void * source) {
    struct gbpy_context * c = gbpy_context_of(context, "constant");
    if (c == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    struct gbpy_constant * k = GB_NEW(struct gbpy_constant);
    if (k == NULL || (k->value = gb_malloc(size)) == NULL) {
        gb_free(k);
        return GGML_STATUS_ALLOC_FAILED;
    }
    k->tensor = t;
    k->size = size;
    memcpy(k->value, value, size);
    if (source != NULL && !gb_mapped_place(source, size, &k->path, &k->at)) {
        k->path = NULL; // no known file
    }
    gbpy_set_constant_flag(t);
    gbpy_set_stamp(t, 1);
    gbpy_mutex_lock();
    k->next = atomic_load(&c->constants);
    atomic_store(&c->constants, k);
    gbpy_mutex_unlock();
    if (!ggml_get_no_alloc(c->memory.head.ptr) && t->data != NULL) { // the context itself owns the memory
        memcpy(t->data, value, size);
        return GGML_STATUS_SUCCESS;
    }
    return write_if_placed(c, t);
}

// ------------------------------------------------------------------------------------------------------------- buffers

static int new_owner(struct gbpy_handle * handle, struct gbpy_buffer * b, ggml_backend_buffer_t buffer, int usage) {
    struct gbpy_object * o = &b->memory.head;
    o->ptr = buffer;
    int status = buffer != NULL ? (int) ggml_backend_buffer_set_usage(buffer, (enum ggml_backend_buffer_usage) usage)
                                : (int) ggml_last_status();
    if (status == GGML_STATUS_SUCCESS && !gbpy_own(&b->memory, buffer)) {
        status = GGML_STATUS_ALLOC_FAILED;
    }
    if (status != GGML_STATUS_SUCCESS) {
        gbpy_unref(o);
        return status;
    }
    handle->object = o;
    return GGML_STATUS_SUCCESS;
}

static int begin_buffer(struct gbpy_handle * handle, const struct gbpy_handle * parent, struct gbpy_buffer ** b) {
    struct gbpy_object * p = parent != NULL ? gbpy_object_of(parent, "Buffer") : NULL;
    while (p != NULL &&
           p->kind ==
               GBPY_BUFFER) { // made for the type of another buffer: needs what that buffer needs, but not its memory
        p = p->needs.n > 0 ? p->needs.data[0] : NULL;
    }
    GB_FAIL_IF(handle == NULL || handle->object != NULL, GGML_STATUS_INVALID_STATE, "Buffer: the handle is not empty");
    if (parent != NULL && parent->object == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    *b = gbpy_object_new(GBPY_BUFFER);
    if (*b == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    (*b)->memory.blank = true;
    if (p != NULL && !gbpy_add_need(&(*b)->memory.head, p)) {
        gbpy_unref(&(*b)->memory.head);
        return GGML_STATUS_ALLOC_FAILED;
    }
    return GGML_STATUS_SUCCESS;
}

int gbpy_open_buffer(struct gbpy_handle * handle, struct ggml_backend_buffer_type * buft, size_t size, int usage,
    const struct gbpy_handle * parent) {
    struct gbpy_buffer * b;
    GB_TRY(begin_buffer(handle, parent, &b));
    return new_owner(handle, b, ggml_backend_buft_alloc_buffer(buft, size), usage);
}

int gbpy_open_host_buffer(struct gbpy_handle * handle, void * data, size_t size, int usage, bool readonly,
    uintptr_t object) {
    struct gbpy_buffer * b;
    GB_TRY(begin_buffer(handle, NULL, &b));
    b->memory.readonly = readonly;
    b->memory.blank = false;
    const int status = new_owner(handle, b, ggml_backend_cpu_buffer_from_ptr(data, size), usage);
    return status != GGML_STATUS_SUCCESS || gbpy_keep(handle, object) ? status : GGML_STATUS_ALLOC_FAILED;
}

// Locks the buffer for writing, and contexts with constants there, so that nobody places their tensors meanwhile.
static int lock_to_clear(struct gbpy_locks * locks, struct gbpy_buffer * b) {
    gbpy_requests requests = { 0 };
    int status = GGML_STATUS_SUCCESS;
    gbpy_mutex_lock();
    while (status == GGML_STATUS_SUCCESS && !locks->active) {
        gbpy_begin_requests(&requests);
        bool ok = gbpy_add_request(&requests, &b->memory.head, true);
        for (size_t i = 0; ok && i < b->memory.kept_by.n; i++) {
            struct gbpy_object * o = b->memory.kept_by.data[i];
            ok = atomic_load(&((struct gbpy_context *) o)->constants) == NULL || o->broken ||
                 gbpy_add_request(&requests, o, false);
        }
        ok = ok && gbpy_reserve_locks(locks, (int) requests.n);
        status = ok ? gbpy_take_or_wait(locks, "Buffer.clear", requests.data, (int) requests.n, false, NULL)
                    : GGML_STATUS_ALLOC_FAILED;
    }
    gbpy_mutex_unlock();
    gb_vec_free(&requests);
    return status;
}

int gbpy_clear(struct gbpy_handle * buffer, uint8_t value) {
    struct gbpy_buffer * b = gbpy_buffer_of(buffer, "Buffer.clear");
    struct gbpy_locks locks = { 0 };
    if (b == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(lock_to_clear(&locks, b));
    int status = GGML_STATUS_INVALID_STATE;
    if (b->memory.readonly) {
        gb_fail(GGML_STATUS_INVALID_STATE, "Buffer.clear: the buffer is read-only");
    } else {
        status = ggml_backend_buffer_clear(b->memory.head.ptr, value);
        b->memory.blank &= status != GGML_STATUS_SUCCESS;
        gbpy_note_clear(&b->memory); // also after a failure, because the content is then unknown
    }
    const struct gbpy_quiet before = gbpy_begin_quiet(); // writes the constants also if an interrupt ended the clear
    for (int i = 1; i < locks.n && !b->memory.readonly; i++) { // the first lock is that of the buffer
        const int written = gbpy_upload_constants((struct gbpy_context *) locks.held[i].object, &b->memory, NULL);
        status = status == GGML_STATUS_SUCCESS ? written : status;
    }
    gbpy_end_quiet(before);
    gbpy_unlock(&locks);
    return status;
}

bool gbpy_buffer_is_readonly(const struct gbpy_handle * buffer) {
    return buffer != NULL && buffer->object != NULL && ((const struct gbpy_memory *) buffer->object)->readonly;
}

// ------------------------------------------------------------------------------------------------ tensors of a context

// Fails unless the tensor may be placed in the buffer (NULL: it is only measured).
static int check_place(const struct gbpy_context * c, const struct gbpy_buffer * b, const struct ggml_tensor * t,
    const char * what) {
    GB_FAIL_IF(b != NULL && b->memory.readonly && gbpy_is_constant(t), GGML_STATUS_INVALID_STATE,
        "%s: '%s' is a constant, whose value is written when it is placed; the buffer is read-only", what, t->name);
    GB_FAIL_IF(c->memory.head.kind != GBPY_CONTEXT, GGML_STATUS_INVALID_STATE,
        "%s: the tensor belongs to a copy, or to no context", what);
    return GGML_STATUS_SUCCESS;
}

// Notes that tensors of the context lie in memory of the owner, and keeps the owner.
static int join(struct gbpy_context * context, struct gbpy_memory * owner) {
    return gbpy_note_memory(context, owner) && gbpy_keep_memory(context, owner) ? GGML_STATUS_SUCCESS
                                                                                : GGML_STATUS_ALLOC_FAILED;
}

static bool is_part_of(ggml_backend_buffer_t buffer, ggml_backend_buffer_t whole) {
    ggml_backend_buffer_t part;
    bool is = buffer == whole;
    for (size_t i = 0; !is && (part = gb_multi_buffer_part(whole, i)) != NULL; i++) {
        is = is_part_of(buffer, part);
    }
    return is;
}

// Before a buffer without an owner is freed. Views find the buffer through their sources.
static void unplace_all_in(struct ggml_context * ctx, ggml_backend_buffer_t buffer) {
    for (struct ggml_tensor * t = ggml_get_first_tensor(ctx); t != NULL; t = ggml_get_next_tensor(ctx, t)) {
        if (t->buffer != NULL && is_part_of(t->buffer, buffer)) {
            gbpy_unplace(t);
        }
    }
}

int gbpy_open_context_buffer(struct gbpy_handle * handle, struct gbpy_handle * context,
    struct ggml_backend_buffer_type * buft, int usage, const struct gbpy_handle * parent) {
    static const char what[] = "Context.allocate";
    struct gbpy_context * c = gbpy_context_of(context, what);
    struct gbpy_buffer * b = NULL;
    struct gbpy_locks locks = { 0 };
    if (c == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_FAIL_IF(c->memory.head.kind != GBPY_CONTEXT, GGML_STATUS_INVALID_STATE,
        "%s: the tensors of a copied graph have their memory", what);
    GB_TRY(gbpy_lock_to_place(&locks, what, NULL, 0, &c, 1));
    int status = begin_buffer(handle, parent, &b);
    if (status == GGML_STATUS_SUCCESS && !gbpy_note_memory(c, &b->memory)) {
        gbpy_unref(&b->memory.head);
        status = GGML_STATUS_ALLOC_FAILED;
    }
    if (status == GGML_STATUS_SUCCESS) {
        ggml_clear_error();
        gbpy_unplace_all_lost(c->memory.head.ptr);
        const ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors_from_buft(c->memory.head.ptr, buft);
        b->memory.head.ptr = buffer;
        if (buffer == NULL) {
            status = ggml_last_status() != GGML_STATUS_SUCCESS ? (int) ggml_last_status() : GGML_STATUS_INVALID_STATE;
        } else if (!gbpy_own(&b->memory, buffer)) {
            unplace_all_in(c->memory.head.ptr, buffer);
            status = GGML_STATUS_ALLOC_FAILED;
        } else {
            status = ggml_backend_buffer_set_usage(buffer, (enum ggml_backend_buffer_usage) usage);
        }
        if (status != GGML_STATUS_SUCCESS) {
            gbpy_unref(&b->memory.head);
        }
    }
    if (status == GGML_STATUS_SUCCESS) {
        handle->object = &b->memory.head;
        status =
            gbpy_keep_memory(c, &b->memory) ? gbpy_upload_constants(c, &b->memory, NULL) : GGML_STATUS_ALLOC_FAILED;
    }
    gbpy_note_move();
    gbpy_unlock(&locks);
    return status;
}

int gbpy_place(struct gbpy_handle * buffer, struct gbpy_handle * context, struct ggml_tensor * t, size_t offset) {
    struct gbpy_buffer * b = gbpy_buffer_of(buffer, "Buffer.place");
    struct gbpy_context * c = gbpy_context_of(context, "Buffer.place");
    struct gbpy_locks locks = { 0 };
    if (b == NULL || c == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    const struct gbpy_request memory = { .object = &b->memory.head, .write = gbpy_is_constant(t) };
    GB_TRY(check_place(c, b, t, "Buffer.place"));
    GB_TRY(gbpy_lock_to_place(&locks, "Buffer.place", &memory, 1, &c, 1));
    gbpy_unplace_lost(t);
    char * base = ggml_backend_buffer_get_base(b->memory.head.ptr);
    int status = base != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_INVALID_STATE;
    if (status == GGML_STATUS_SUCCESS) {
        status = join(c, &b->memory);
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = ggml_backend_tensor_alloc(b->memory.head.ptr, t, base + offset);
    }
    if (status == GGML_STATUS_SUCCESS && memory.write) {
        status = gbpy_upload_constants(c, &b->memory, t);
    }
    gbpy_note_move();
    gbpy_unlock(&locks);
    return status;
}

// ---------------------------------------------------------------------------------------------------------- allocators

int gbpy_tallocr_alloc(struct gbpy_handle * allocator, struct gbpy_handle * buffer, struct gbpy_handle * context,
    struct ggml_tensor * t) {
    struct gbpy_object * a = gbpy_object_of(allocator, "TensorAllocator.alloc");
    struct gbpy_context * c = gbpy_context_of(context, "TensorAllocator.alloc");
    struct gbpy_buffer * b = buffer != NULL ? gbpy_buffer_of(buffer, "TensorAllocator.alloc") : NULL;
    struct gbpy_locks locks = { 0 };
    if (a == NULL || c == NULL || (buffer != NULL && b == NULL)) {
        return GGML_STATUS_INVALID_STATE;
    }
    const struct gbpy_request requests[2] = { { .object = a, .write = true },
        { .object = b != NULL ? &b->memory.head : NULL, .write = gbpy_is_constant(t) } };
    GB_TRY(check_place(c, b, t, "TensorAllocator.alloc"));
    GB_TRY(gbpy_lock_to_place(&locks, "TensorAllocator.alloc", requests, b != NULL ? 2 : 1, &c, 1));
    int status = GGML_STATUS_SUCCESS;
    if (b != NULL) {
        gbpy_unplace_lost(t);
        status = join(c, &b->memory);
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = ggml_tallocr_alloc(a->ptr, t);
    }
    if (status == GGML_STATUS_SUCCESS && b != NULL && requests[1].write) {
        status = gbpy_upload_constants(c, &b->memory, t);
    }
    gbpy_note_move();
    gbpy_unlock(&locks);
    return status;
}

static void unplace_tensor_of(struct ggml_tensor * t, const struct gbpy_buffer * buffer) {
    if (t != NULL && gbpy_owner_of(t) == &buffer->memory) {
        gbpy_unplace(t);
    }
}

// Takes the memory of the graph that the buffer held before. Views come first, because they find the buffer through
// their sources.
static void unplace_graph(const struct ggml_cgraph * graph, const struct gbpy_buffer * buffer) {
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
    for (int i = 0; i < graph->n_nodes; i++) { // sources of views may be in neither list
        unplace_tensor_of(graph->nodes[i]->view_src, buffer);
    }
}

// Locks the allocator, the buffer, and the contexts of both graphs. Each may be NULL.
static int lock_allocator(struct gbpy_locks * locks, const char * what, struct gbpy_object * a, struct gbpy_buffer * b,
    const struct gbpy_graph * g, const struct gbpy_graph * old) {
    struct gbpy_request requests[2];
    const struct gbpy_graph * graphs[2] = { g, old };
    GB_VEC(struct gbpy_context *) contexts = { 0 };
    int n = 0;
    bool ok = true;
    if (a != NULL) {
        requests[n++] = (struct gbpy_request){ .object = a, .write = true };
    }
    if (b != NULL) {
        requests[n++] = (struct gbpy_request){ .object = &b->memory.head, .write = true };
    }
    for (int k = 0; k < 2; k++) {
        for (int i = 0; ok && graphs[k] != NULL && i < graphs[k]->n_contexts; i++) {
            ok = gb_vec_push(&contexts, graphs[k]->contexts[i]);
        }
    }
    const int status =
        ok ? gbpy_lock_to_place(locks, what, requests, n, contexts.data, (int) contexts.n) : GGML_STATUS_ALLOC_FAILED;
    gb_vec_free(&contexts);
    return status;
}

// The graph that an allocator placed in the buffer, with a reference; NULL: none.
static struct gbpy_graph * graph_in(struct gbpy_buffer * b) {
    gbpy_mutex_lock();
    struct gbpy_graph * graph = b->graph;
    if (graph != NULL) {
        gbpy_ref(&graph->head);
    }
    gbpy_mutex_unlock();
    return graph;
}

// With a write lock on the buffer.
static void set_graph_in(struct gbpy_buffer * b, struct gbpy_graph * graph) {
    if (graph != NULL) {
        gbpy_ref(&graph->head);
    }
    gbpy_mutex_lock();
    struct gbpy_graph * old = b->graph;
    b->graph = graph;
    if (graph != NULL) {
        graph->computed = -1;
    }
    gbpy_mutex_unlock();
    gbpy_note_move();
    if (old != NULL) {
        gbpy_unref(&old->head);
    }
}

// As lock_allocator, and takes the memory of the graph in the buffer. `a` and `g` may be NULL.
static int lock_and_clear(struct gbpy_locks * locks, const char * what, struct gbpy_object * a, struct gbpy_buffer * b,
    const struct gbpy_graph * g) {
    bool cleared = false;
    while (!cleared) {
        struct gbpy_graph * old = graph_in(b);
        const int status = lock_allocator(locks, what, a, b, g, old);
        // another thread may have placed a graph meanwhile
        cleared = status == GGML_STATUS_SUCCESS && b->graph == old;
        if (cleared && old != NULL) {
            unplace_graph(old->head.ptr, b);
            set_graph_in(b, NULL);
        } else if (!cleared) {
            gbpy_unlock(locks);
        }
        if (old != NULL) {
            gbpy_unref(&old->head);
        }
        GB_TRY(status);
    }
    return GGML_STATUS_SUCCESS;
}

int gbpy_unplace_graph(struct gbpy_handle * buffer) {
    static const char what[] = "GraphAllocator.allocate";
    struct gbpy_buffer * b = gbpy_buffer_of(buffer, what);
    struct gbpy_locks locks = { 0 };
    if (b == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    const int status = lock_and_clear(&locks, what, NULL, b, NULL);
    gbpy_unlock(&locks);
    return status;
}

int gbpy_gallocr_measure(struct gbpy_handle * allocator, struct ggml_backend_buffer_type * buft,
    struct gbpy_handle * graph, size_t * size) {
    struct gbpy_object * a = gbpy_object_of(allocator, "GraphAllocator.measure");
    struct gbpy_graph * g = gbpy_graph_of(graph, "GraphAllocator.measure");
    struct gbpy_locks locks = { 0 };
    if (a == NULL || g == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(lock_allocator(&locks, "GraphAllocator.measure", a, NULL, g, NULL));
    ggml_clear_error();
    ggml_tallocr_t measuring = ggml_tallocr_new_measure_from_buft(buft);
    *size = measuring != NULL ? ggml_gallocr_alloc_graph(a->ptr, measuring, g->head.ptr) : 0;
    int status = *size == 0 ? (int) ggml_last_status() : GGML_STATUS_SUCCESS;
    ggml_tallocr_free(measuring);
    gbpy_unlock(&locks);
    return status;
}

static int allocate_graph(struct gbpy_object * a, struct gbpy_buffer * b, struct gbpy_graph * g) {
    for (int i = 0; i < g->n_contexts; i++) {
        const struct gbpy_object * c = &g->contexts[i]->memory.head;
        if (c->kind == GBPY_CONTEXT) {
            gbpy_unplace_all_lost(c->ptr);
        }
        GB_TRY(join(g->contexts[i], &b->memory));
    }
    const ggml_tallocr_t placing = ggml_tallocr_new_from_buffer(b->memory.head.ptr);
    if (placing == NULL) {
        return ggml_last_status();
    }
    ggml_clear_error();
    const bool ok =
        ggml_gallocr_alloc_graph(a->ptr, placing, g->head.ptr) != 0 || ggml_last_status() == GGML_STATUS_SUCCESS;
    ggml_tallocr_free(placing);
    if (!ok) {
        return ggml_last_status();
    }
    for (int i = 0; i < g->n_contexts; i++) {
        GB_TRY(gbpy_upload_constants(g->contexts[i], &b->memory, NULL));
    }
    return GGML_STATUS_SUCCESS;
}

int gbpy_gallocr_alloc(struct gbpy_handle * allocator, struct gbpy_handle * buffer, struct gbpy_handle * graph) {
    static const char what[] = "GraphAllocator.allocate";
    struct gbpy_object * a = gbpy_object_of(allocator, what);
    struct gbpy_buffer * b = gbpy_buffer_of(buffer, what);
    struct gbpy_graph * g = gbpy_graph_of(graph, what);
    struct gbpy_locks locks = { 0 };
    if (a == NULL || b == NULL || g == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(lock_and_clear(&locks, what, a, b, g));
    b->memory.scratch = b->memory.blank = true;
    const int status = allocate_graph(a, b, g);
    set_graph_in(b, g); // also after a failure, because some tensors may lie there
    gbpy_unlock(&locks);
    return status;
}
