// bind.c - gives the user's tensors the places of a plan, and the plan's own tensors theirs.
//
// All or nothing: what was written is put back when something fails. Leafs that have content elsewhere (the user moved
// them to another backend, or they are results of the graph before) take it along.
#include "sched/sched.h"

#include <string.h>

struct old_place {
    struct ggml_backend_buffer * buffer;
    void *                       data;
    void *                       extra;
};

struct binding {
    struct ggml_backend_sched * sched;
    struct gb_sched_plan *      plan;
    struct old_place *          old; // owned; per id
    GB_VEC(int32_t) moved;           // leafs whose content comes from their old place
};

// -------------------------------------------------------------------------------------------------------------- memory

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

void gb_sched_unbind(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    release(s, &p->mems);
    release(s, &p->leaf_mems);
    release(s, &p->shared);
    p->bound = false;
}

// One store for each leaf entry of the plan's chunks, in their order. A plan that is bound again keeps its own.
bool gb_sched_take_stores(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    size_t k = 0;
    for (size_t i = 0; i < p->chunks.n; i++) {
        const struct gb_chunk_need * need = &p->chunks.data[i];
        if (!need->leafs || k++ < p->leaf_mems.n) {
            continue;
        }
        if (!gb_vec_reserve(&p->leaf_mems, p->leaf_mems.n + 1)) {
            return false;
        }
        struct gb_mem * mem = gb_sched_take_store(s, need->backend, need->size);
        if (mem == NULL) {
            return false;
        }
        p->leaf_mems.data[p->leaf_mems.n++] = mem; // the ref came with it
    }
    return true;
}

// Refs on the chunks in use now, and on the stores of other plans.
static bool hold_memory(struct ggml_backend_sched * s, struct gb_sched_plan * p, gb_mem_list * arenas,
    gb_mem_list * shared) {
    bool ok = gb_sched_take_stores(s, p);
    for (size_t i = 0; ok && i < p->chunks.n; i++) {
        const struct gb_chunk_need * need = &p->chunks.data[i];
        ok = need->leafs || hold(arenas, s->devices[need->backend].arena.data[need->chunk]);
    }
    for (int i = 0; ok && i < p->n_ids; i++) {
        const struct gb_id * id = &p->ids.data[i];
        ok                      = id->home != GB_HOME_SHARED || hold(shared, gb_sched_mem_of(s, id->tensor->buffer));
    }
    return ok;
}

// ------------------------------------------------------------------------------------------------------------- tensors

static enum ggml_status put(struct ggml_tensor * t, ggml_backend_buffer_t buffer, void * data) {
    gb_tensor_put(t, buffer, data);
    return buffer ? ggml_backend_buffer_init_tensor(buffer, t) : GGML_STATUS_SUCCESS;
}

static enum ggml_status put_at(struct ggml_tensor * t, const struct gb_mem * mem, const struct gb_item * item) {
    void * data = mem->base + item->offset;
    return t->buffer == mem->buffer && t->data == data ? GGML_STATUS_SUCCESS : put(t, mem->buffer, data);
}

static enum ggml_status bind_roots(struct binding * b) {
    struct gb_sched_plan * p = b->plan;
    for (int i = 0; i < p->n_ids; i++) {
        struct gb_id *       id = &p->ids.data[i];
        struct ggml_tensor * t  = id->tensor;
        if (id->home == GB_HOME_SHARED) {
            id->mem = gb_sched_mem_of(b->sched, t->buffer);
        }
        if (!id->item.valid) {
            continue;
        }
        const bool leaf = id->home == GB_HOME_LEAF;
        const bool content =
            leaf && t->buffer && (gb_sched_leaf_is_bound(b->sched, t) || gb_sched_result_is_alive(b->sched, t));
        id->mem = gb_sched_mem_of_item(b->sched, p, &id->item, leaf);
        if (content && t->data != id->mem->base + id->item.offset && !gb_vec_push(&b->moved, i)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
        GB_TRY(put_at(t, id->mem, &id->item));
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status bind_views(struct gb_sched_plan * p) {
    for (int i = 0; i < p->n_ids; i++) {
        const struct gb_id *       id   = &p->ids.data[i];
        struct ggml_tensor *       t    = id->tensor;
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

static enum ggml_status bind_copies(struct binding * b) {
    struct gb_sched_plan * p = b->plan;
    for (size_t c = 0; c < p->copies.n; c++) {
        const struct gb_copy * copy = &p->copies.data[c];
        if (copy->merged >= 0) {
            continue;
        }
        if (copy->kept) {
            const struct gb_item at = { .offset = copy->replica->offset };
            GB_TRY(put_at(&copy->dst->tensor, copy->replica->mem, &at));
            continue;
        }
        GB_TRY(put_at(&copy->dst->tensor, gb_sched_mem_of_item(b->sched, p, &copy->item, false), &copy->item));
    }
    return GGML_STATUS_SUCCESS;
}

// After the roots they lie in. Those in memory of the original use what its buffer made of the original.
static enum ggml_status bind_shadows(struct gb_sched_plan * p) {
    struct gb_shadow_iter it = { 0 };
    for (struct gb_shadow * sh = gb_sched_next_shadow(p, &it); sh; sh = gb_sched_next_shadow(p, &it)) {
        struct ggml_tensor *       t        = &sh->tensor;
        const struct ggml_tensor * root     = t->view_src;
        const struct ggml_tensor * original = p->ids.data[sh->origin].tensor;
        if (sh->copy < 0 && root == original->view_src) {
            gb_tensor_put(t, original->buffer, original->data);
            t->extra = original->extra;
        } else if (root) {
            GB_TRY(put(t, root->buffer, (char *) root->data + t->view_offs));
        }
    }
    return GGML_STATUS_SUCCESS;
}

// What a backend need not store when it computes the one reader together with it (tensor/tensor.h). A view that is no
// node hides readers.
static bool mark_read_once(struct gb_sched_plan * p) {
    uint8_t *  readers = gb_calloc((size_t) p->n_ids, 1); // of each tensor: 0, 1, 2 for more
    uint8_t *  hidden  = gb_calloc((size_t) p->n_ids, 1); // of roots
    const bool ok      = readers && hidden;
    for (uint32_t k = 0; ok && k < p->src_begin[p->n_nodes]; k++) {
        readers[p->srcs[k]] = (uint8_t) GB_MIN(readers[p->srcs[k]] + 1, 2);
    }
    for (int i = p->n_nodes; ok && i < p->n_ids; i++) {
        hidden[p->ids.data[i].root] = 1;
    }
    for (int i = 0; ok && i < p->n_ids; i++) {
        const int            r    = p->ids.data[i].root;
        const struct gb_id * root = &p->ids.data[r];
        const bool           once = readers[i] == 1 && i < p->n_nodes && root->home == GB_HOME_ARENA && !root->keep &&
                                    !hidden[r] && !gb_tensor_has_flag(root->tensor, GB_TENSOR_INPUT) &&
                                    !gb_tensor_has_flag(p->ids.data[i].tensor, GB_TENSOR_INPUT);
        gb_tensor_set_read_once(p->ids.data[i].tensor, once);
    }
    gb_free(readers);
    gb_free(hidden);
    return ok;
}

// ------------------------------------------------------------------------------------------------------------ contents

// After the plan's tensors are in place: content of leafs, from where they were.
static enum ggml_status move_contents(struct binding * b) {
    for (size_t k = 0; k < b->moved.n; k++) {
        const int            id  = b->moved.data[k];
        struct ggml_tensor * t   = b->plan->ids.data[id].tensor;
        struct ggml_tensor   was = *t;
        was.buffer               = b->old[id].buffer;
        was.data                 = b->old[id].data;
        was.extra                = b->old[id].extra;
        GB_TRY(ggml_backend_tensor_copy(&was, t));
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status bind_all(struct binding * b) {
    GB_TRY(bind_roots(b));
    GB_TRY(bind_views(b->plan));
    if (!mark_read_once(b->plan)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_TRY(bind_copies(b));
    GB_TRY(bind_shadows(b->plan));
    return move_contents(b);
}

static bool note_old(struct binding * b) {
    const struct gb_sched_plan * p = b->plan;
    b->old                         = gb_calloc((size_t) p->n_ids, sizeof(*b->old));
    for (int i = 0; b->old && i < p->n_ids; i++) {
        const struct ggml_tensor * t = p->ids.data[i].tensor;
        b->old[i]                    = (struct old_place){ t->buffer, t->data, t->extra };
    }
    return b->old != NULL;
}

static void put_back(struct binding * b) {
    for (int i = 0; b->old && i < b->plan->n_ids; i++) {
        struct ggml_tensor * t = b->plan->ids.data[i].tensor;
        gb_tensor_put(t, b->old[i].buffer, b->old[i].data);
        t->extra = b->old[i].extra;
    }
}

// Where the plan was bound before, it still is, but its own tensors have to be bound again.
static void undo(struct binding * b, bool was_bound) {
    struct gb_sched_plan * p = b->plan;
    put_back(b);
    p->stale = true;
    if (!was_bound) {
        gb_sched_release_replicas(p); // of leafs in stores that go, too
        gb_sched_unbind(b->sched, p);
    }
    for (int i = 0; i < p->n_ids; i++) {
        p->ids.data[i].mem = was_bound ? gb_sched_mem_of(b->sched, p->key[i].buffer) : NULL;
    }
}

static void commit(struct binding * b, gb_mem_list arenas, gb_mem_list shared) {
    struct gb_sched_plan * p = b->plan;
    release(b->sched, &p->mems);
    release(b->sched, &p->shared);
    p->mems   = arenas;
    p->shared = shared;
    p->bound  = true;
    p->stale  = false;
    for (int i = 0; i < p->n_ids; i++) {
        memcpy(&p->key[i], p->ids.data[i].tensor, sizeof(*p->key));
    }
}

enum ggml_status gb_sched_bind(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    struct binding b         = { .sched = s, .plan = p };
    const bool     was_bound = p->bound;
    gb_mem_list    arenas = { 0 }, shared = { 0 };
    gb_sched_drop_prepared(s, p);
    const enum ggml_status status =
        note_old(&b) && hold_memory(s, p, &arenas, &shared) ? bind_all(&b) : GGML_STATUS_ALLOC_FAILED;
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
