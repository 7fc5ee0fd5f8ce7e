// bind.c - binds a plan: gives the tensors of the user and of the plan their buffer and data.
//
// Binding is all or nothing: after a failure the tensors have what they had before. If the content
// of a leaf is elsewhere, it is copied to the new place: the user moved the leaf to another
// backend, or the leaf is a result of another graph.
//
// Binding writes only to unplaced tensors and their views, and only buffer, data, extra and the
// mark "read once".
#include "sched/input/input.h"
#include "sched/layout/layout.h"
#include "sched/memory/memory.h"
#include "sched/program/program.h"
#include "sched/sched.h"

#include <string.h>

struct old_binding {
    struct ggml_backend_buffer * buffer;
    void * data;
    void * extra;
};

struct binder {
    struct ggml_backend_sched * sched;
    struct gb_sched_binding * binding;
    struct old_binding * old; // owned; per id
    GB_VEC(int32_t) moved; // leafs whose content must be copied from their old place
};

// -------------------------------------------------------------------------------------------------------------- memory

// Adds a reference to the buffer. False: no memory, and no reference.
static bool hold(gb_mem_list * list, struct gb_mem * mem) {
    if (!gb_vec_push(list, mem)) {
        return false;
    }
    gb_sched_mem_ref(mem);
    return true;
}

static void release(struct ggml_backend_sched * s, gb_mem_list * list) {
    for (size_t i = 0; i < list->n; i++) {
        gb_sched_mem_unref(s, list->data[i]);
    }
    gb_vec_free(list);
}

static void unbind(struct ggml_backend_sched * s, struct gb_sched_binding * binding) {
    release(s, &binding->arenas);
    release(s, &binding->leafs);
    release(s, &binding->shared);
    binding->is_bound = false;
}

// Takes one store for each leaf entry of the plan's chunks, in their order. A plan that is bound
// again keeps its stores.
bool gb_sched_take_stores(struct ggml_backend_sched * s, struct gb_sched_binding * binding) {
    size_t k = 0;
    for (size_t i = 0; i < binding->layout->chunks.n; i++) {
        const struct gb_chunk_need * need = &binding->layout->chunks.data[i];
        if (!need->leafs || k++ < binding->leafs.n) {
            continue;
        }
        if (!gb_vec_reserve(&binding->leafs, binding->leafs.n + 1)) {
            return false;
        }
        struct gb_mem * mem = gb_sched_take_store(s, need->backend, need->size);
        if (mem == NULL) {
            return false;
        }
        binding->leafs.data[binding->leafs.n++] = mem; // with its reference
    }
    return true;
}

// Adds references to the current chunks, and to the stores of other plans.
static bool hold_memory(struct ggml_backend_sched * s, struct gb_sched_binding * binding, gb_mem_list * arenas,
    gb_mem_list * shared) {
    bool ok = gb_sched_take_stores(s, binding);
    for (size_t i = 0; ok && i < binding->layout->chunks.n; i++) {
        const struct gb_chunk_need * need = &binding->layout->chunks.data[i];
        ok = need->leafs || hold(arenas, s->devices[need->backend].arena.data[need->chunk]);
    }
    for (int i = 0; ok && i < binding->in->n_ids; i++) {
        const struct gb_id * id = &binding->in->ids.data[i];
        ok = id->location != GB_LOCATION_SHARED || hold(shared, gb_sched_mem_of(s, id->tensor->buffer));
    }
    return ok;
}

// ------------------------------------------------------------------------------------------------------------- tensors

// Calls the buffer's init_tensor, which must see each tensor.
static enum ggml_status put(struct ggml_tensor * t, ggml_backend_buffer_t buffer, void * data) {
    gb_tensor_put(t, buffer, data);
    return buffer ? ggml_backend_buffer_init_tensor(buffer, t) : GGML_STATUS_SUCCESS;
}

// A buffer sees a tensor only once per place.
static enum ggml_status put_at(struct ggml_tensor * t, const struct gb_mem * mem, const struct gb_item * item) {
    void * data = mem->base + item->offset;
    return t->buffer == mem->buffer && t->data == data ? GGML_STATUS_SUCCESS : put(t, mem->buffer, data);
}

// Binds roots first, because all other tensors are in a root.
static enum ggml_status bind_roots(struct binder * b) {
    struct gb_sched_binding * binding = b->binding;
    for (int i = 0; i < binding->in->n_ids; i++) {
        const struct gb_id * id = &binding->in->ids.data[i];
        const struct gb_item * item = &binding->layout->items.data[i];
        struct ggml_tensor * t = id->tensor;
        if (id->location == GB_LOCATION_SHARED) {
            binding->mem[i] = gb_sched_mem_of(b->sched, t->buffer);
        }
        if (!item->valid) {
            continue;
        }
        const bool leaf = id->location == GB_LOCATION_LEAF;
        const bool content =
            leaf && t->buffer && (gb_sched_leaf_is_bound(b->sched, t) || gb_sched_result_is_alive(b->sched, t));
        struct gb_mem * mem = gb_sched_mem_of_item(b->sched, binding, item);
        binding->mem[i] = mem;
        if (content && t->data != mem->base + item->offset && !gb_vec_push(&b->moved, i)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
        GB_TRY(put_at(t, mem, item));
    }
    return GGML_STATUS_SUCCESS;
}

// Binds views to the buffer of their root, which may have any owner.
static enum ggml_status bind_views(struct gb_sched_binding * binding) {
    for (int i = 0; i < binding->in->n_ids; i++) {
        const struct gb_id * id = &binding->in->ids.data[i];
        struct ggml_tensor * t = id->tensor;
        const struct ggml_tensor * root = t->view_src;
        if (root == NULL) {
            continue;
        }
        void * data = root->data ? (char *) root->data + t->view_offs : NULL;
        if (t->data != data || t->buffer != root->buffer) {
            GB_TRY(put(t, root->buffer, data));
        }
    }
    return GGML_STATUS_SUCCESS;
}

// A merged copy is in the bytes of another copy and needs no place.
static enum ggml_status bind_copies(struct binder * b) {
    struct gb_sched_binding * binding = b->binding;
    for (size_t c = 0; c < binding->program->copies.n; c++) {
        const struct gb_copy * copy = &binding->program->copies.data[c];
        if (copy->merged >= 0) {
            continue;
        }
        if (copy->kept) {
            const struct gb_replica * replica = binding->copies[c].replica;
            const struct gb_item at = { .offset = replica->offset };
            GB_TRY(put_at(&copy->dst->tensor, replica->mem, &at));
            continue;
        }
        const struct gb_item * item = &binding->layout->items.data[binding->in->n_ids + (int) c];
        GB_TRY(put_at(&copy->dst->tensor, gb_sched_mem_of_item(b->sched, binding, item), item));
    }
    return GGML_STATUS_SUCCESS;
}

// Binds shadows after their roots. A shadow in the memory of the original shares the original's
// buffer data.
static enum ggml_status bind_shadows(struct gb_sched_binding * binding) {
    struct gb_shadow_iter it = { 0 };
    for (struct gb_shadow * sh = gb_sched_next_shadow(binding->program, &it); sh;
        sh = gb_sched_next_shadow(binding->program, &it)) {
        struct ggml_tensor * t = &sh->tensor;
        const struct ggml_tensor * root = t->view_src;
        const struct ggml_tensor * original = binding->in->ids.data[sh->origin].tensor;
        if (sh->copy < 0 && root != original) { // not a range of it
            gb_tensor_put(t, original->buffer, original->data);
            t->extra = original->extra;
            gb_tensor_set_read_once(t, gb_tensor_is_read_once(original));
        } else if (root) {
            GB_TRY(put(t, root->buffer, (char *) root->data + t->view_offs));
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Marks results that a backend need not store if it fuses them with their only reader
// (tensor/marks.h). A view that is not a node may have other readers.
static bool mark_read_once(struct gb_sched_binding * binding) {
    const struct gb_sched_input * in = binding->in;
    uint8_t * readers = gb_calloc((size_t) in->n_ids, 1); // per tensor: 0, 1, or 2 for more
    uint8_t * hidden = gb_calloc((size_t) in->n_ids, 1);  // per root: 1 if it has a view that is not a node
    const bool ok = readers && hidden;
    for (uint32_t k = 0; ok && k < in->src_begin[in->n_nodes]; k++) {
        readers[in->srcs[k]] = (uint8_t) GB_MIN(readers[in->srcs[k]] + 1, 2);
    }
    for (int i = in->n_nodes; ok && i < in->n_ids; i++) {
        hidden[in->ids.data[i].root] = 1;
    }
    for (int i = 0; ok && i < in->n_ids; i++) {
        const int r = in->ids.data[i].root;
        const struct gb_id * root = &in->ids.data[r];
        const bool once = readers[i] == 1 && i < in->n_nodes && root->location == GB_LOCATION_ARENA && !root->keep &&
                          !hidden[r] && !gb_tensor_has_flag(root->tensor, GB_TENSOR_INPUT) &&
                          !gb_tensor_has_flag(in->ids.data[i].tensor, GB_TENSOR_INPUT);
        gb_tensor_set_read_once(in->ids.data[i].tensor, once);
    }
    gb_free(readers);
    gb_free(hidden);
    return ok;
}

// ------------------------------------------------------------------------------------------------------------ contents

// Copies the content of leafs from their old places.
static enum ggml_status move_contents(struct binder * b) {
    for (size_t k = 0; k < b->moved.n; k++) {
        const int id = b->moved.data[k];
        struct ggml_tensor * t = b->binding->in->ids.data[id].tensor;
        struct ggml_tensor was = *t;
        was.buffer = b->old[id].buffer;
        was.data = b->old[id].data;
        was.extra = b->old[id].extra;
        GB_TRY(ggml_backend_tensor_copy(&was, t));
    }
    return GGML_STATUS_SUCCESS;
}

// Copies content last, when all tensors have their new addresses.
static enum ggml_status bind_all(struct binder * b) {
    GB_TRY(bind_roots(b));
    GB_TRY(bind_views(b->binding));
    if (!mark_read_once(b->binding)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_TRY(bind_copies(b));
    GB_TRY(bind_shadows(b->binding));
    return move_contents(b);
}

// Notes the old places for undo.
static bool note_old(struct binder * b) {
    const struct gb_sched_binding * binding = b->binding;
    const struct gb_sched_input * in = binding->in;
    b->old = gb_calloc((size_t) in->n_ids, sizeof(*b->old));
    for (int i = 0; b->old && i < in->n_ids; i++) {
        const struct ggml_tensor * t = in->ids.data[i].tensor;
        b->old[i] = (struct old_binding){ t->buffer, t->data, t->extra };
    }
    return b->old != NULL;
}

// Restores the old places. Buffers have seen the tensors there and need no call.
static void put_back(struct binder * b) {
    for (int i = 0; b->old && i < b->binding->in->n_ids; i++) {
        struct ggml_tensor * t = b->binding->in->ids.data[i].tensor;
        gb_tensor_put(t, b->old[i].buffer, b->old[i].data);
        t->extra = b->old[i].extra;
    }
}

// If the plan was bound before, it stays bound, but its own tensors must be bound again.
static void undo(struct binder * b, bool was_bound) {
    struct gb_sched_binding * binding = b->binding;
    put_back(b);
    binding->stale = true;
    if (!was_bound) {
        gb_sched_release_replicas(binding); // also those of leafs in stores that are released
        unbind(b->sched, binding);
    }
    for (int i = 0; i < binding->in->n_ids; i++) {
        binding->mem[i] = was_bound ? gb_sched_mem_of(b->sched, gb_key_of(&binding->in->keys, i)->buffer) : NULL;
    }
}

// Updates the plan's names, because tensors may have been renamed. False: no memory, and nothing
// has changed.
static bool renew_names(struct gb_sched_binding * binding) {
    struct gb_sched_input * in = binding->in;
    const size_t n = (size_t) in->n_ids;
    bool same = true;
    for (size_t i = 0; i < n && same; i++) {
        const struct ggml_tensor * t = in->ids.data[i].tensor;
        same = strncmp(gb_sched_name_of(binding->in, (int64_t) i), t->name, sizeof(t->name) - 1) == 0;
    }
    if (same) {
        return true;
    }
    struct gb_keys keys = { 0 };
    bool ok = gb_keys_reserve(&keys, n);
    for (size_t i = 0; i < n && ok; i++) {
        ok = gb_keys_add(&keys, in->ids.data[i].tensor);
    }
    if (!ok) {
        gb_keys_free(&keys);
        return false;
    }
    gb_keys_free(&in->keys);
    in->keys = keys;
    return true;
}

// Notes in `keys` where each tensor is. From now on the plan's leafs are valid.
static void commit(struct binder * b, gb_mem_list arenas, gb_mem_list shared) {
    struct gb_sched_binding * binding = b->binding;
    const struct gb_sched_input * in = binding->in;
    release(b->sched, &binding->arenas);
    release(b->sched, &binding->shared);
    binding->arenas = arenas;
    binding->shared = shared;
    binding->is_bound = true;
    binding->stale = false;
    for (int i = 0; i < in->n_ids; i++) {
        const struct ggml_tensor * t = in->ids.data[i].tensor;
        struct gb_key * key = gb_key_of(&in->keys, i);
        key->buffer = t->buffer;
        key->data = t->data;
        key->state = gb_tensor_state(t);
    }
}

enum ggml_status gb_sched_bind(struct ggml_backend_sched * s, struct gb_sched_binding * binding) {
    struct binder b = { .sched = s, .binding = binding };
    const bool was_bound = binding->is_bound;
    gb_mem_list arenas = { 0 }, shared = { 0 };
    gb_sched_drop_prepared(s, binding);
    enum ggml_status status =
        note_old(&b) && hold_memory(s, binding, &arenas, &shared) ? bind_all(&b) : GGML_STATUS_ALLOC_FAILED;
    if (status == GGML_STATUS_SUCCESS && !renew_names(binding)) {
        status = GGML_STATUS_ALLOC_FAILED;
    }
    if (status == GGML_STATUS_SUCCESS) {
        commit(&b, arenas, shared);
    } else {
        release(s, &arenas);
        release(s, &shared);
        undo(&b, was_bound);
    }
    gb_free(b.old);
    gb_vec_free(&b.moved);
    return status;
}

// ---------------------------------------------------------------------------------------------------------------------

enum ggml_status gb_sched_init_binding(struct gb_sched_input * in, const struct gb_sched_program * program,
    const struct gb_sched_layout * layout, struct gb_sched_binding * binding) {
    binding->in = in;
    binding->program = program;
    binding->layout = layout;
    binding->mem = gb_calloc((size_t) in->n_ids, sizeof(*binding->mem));
    binding->copies = gb_calloc(program->copies.n, sizeof(*binding->copies));
    binding->splits = gb_calloc(program->splits.n, sizeof(*binding->splits));
    return binding->mem && binding->copies && binding->splits ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

// If making a plan failed, the binding may be missing or incomplete, and then it holds nothing.
void gb_sched_free_binding(struct ggml_backend_sched * s, struct gb_sched_binding * binding) {
    if (binding->copies && binding->splits) {
        gb_sched_disarm(s, binding);
        gb_sched_release_replicas(binding);
    }
    unbind(s, binding);
    gb_free(binding->mem);
    gb_free(binding->copies);
    gb_free(binding->splits);
}
