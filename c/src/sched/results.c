// results.c - which results are still in memory.
//
// The arenas hold the results of the current plan. A leaf is valid if any kept plan is bound to it,
// a result only if the current plan is.
#include "sched/results.h"

#include "base/hash.h"
#include "sched/plan.h"

// The id of a root in the current plan. GB_PTRMAP_ABSENT: there is no plan, or the root is not in
// it.
static int64_t id_of(const struct ggml_backend_sched * s, const struct ggml_tensor * root) {
    return s->current != NULL ? gb_ptrmap_get(&s->current->in->map, root) : GB_PTRMAP_ABSENT;
}

static bool has_placed(const struct ggml_backend_sched * s, const struct ggml_tensor * root, int64_t id, bool bound) {
    const struct gb_sched_binding * p = s->current;
    return (id != GB_PTRMAP_ABSENT && gb_key_of(&p->in->keys, id)->data == root->data &&
               gb_key_of(&p->in->keys, id)->buffer == root->buffer) ||
           bound;
}

bool gb_sched_has_placed(const struct ggml_backend_sched * s, const struct ggml_tensor * root) {
    return has_placed(s, root, id_of(s, root), false) || gb_sched_leaf_is_bound(s, root);
}

// The name of a tensor that has overwritten bytes of the root when `last` is computed, or at the
// end for GB_PTRMAP_ABSENT. "": a copy did; NULL: nothing did. Nodes are computed in the order of
// their ids, and items of the arena live from `lower` on. So such a tensor has a greater `lower`,
// and bytes in common with the root.
static const char * overwritten_by(const struct gb_sched_binding * p, int64_t id, int64_t last) {
    if (!p->layout->items.data[id].valid || p->in->ids.data[id].keep) {
        return NULL;
    }
    int64_t until = INT64_MAX;
    if (last != GB_PTRMAP_ABSENT) {
        const int computed = p->in->ids.data[last].root;
        const struct gb_item * now = &p->layout->items.data[computed];
        if (computed == id) {
            return NULL;
        }
        until = now->valid ? now->lower : INT64_MAX;
    }
    const struct gb_item * mine = &p->layout->items.data[id];
    for (int64_t i = 0; i < p->in->n_ids + (int64_t) p->program->copies.n; i++) {
        const struct gb_item * other = i == id ? NULL : gb_sched_arena_item(p->layout, i);
        if (other != NULL && other->backend == mine->backend && other->chunk == mine->chunk &&
            other->lower > mine->lower && other->lower <= until && other->offset < mine->offset + mine->size &&
            mine->offset < other->offset + other->size) {
            return i < p->in->n_ids ? p->in->nodes[i]->name : "";
        }
    }
    return NULL;
}

enum gb_content_state gb_content_state(const struct ggml_backend_sched * s, const struct ggml_tensor * root,
    const struct ggml_tensor * node, const char ** by) {
    const struct gb_sched_binding * p = s->current;
    const int64_t id = id_of(s, root);
    const bool bound = gb_sched_leaf_is_bound(s, root);
    if (!has_placed(s, root, id, bound)) {
        return GB_CONTENT_GONE;
    }
    if (bound || id == GB_PTRMAP_ABSENT || p->in->ids.data[id].location != GB_LOCATION_ARENA) {
        return GB_CONTENT_STAYS;
    }
    const int64_t last = node != NULL ? id_of(s, node) : GB_PTRMAP_ABSENT;
    // The id of a node is its index in the order of execution. Tensors that no node computes have
    // greater ids.
    if (node != NULL && (last == GB_PTRMAP_ABSENT || last >= p->in->n_nodes || id > last)) {
        return GB_CONTENT_NOT_COMPUTED;
    }
    *by = overwritten_by(p, id, last);
    if (*by != NULL) {
        return GB_CONTENT_OVERWRITTEN;
    }
    return gb_tensor_is_read_once(root) && !p->in->ids.data[id].keep ? GB_CONTENT_NOT_STORED : GB_CONTENT_VALID;
}

ggml_backend_buffer_t gb_sched_buffer_at(const struct ggml_backend_sched * s, size_t i) {
    return i < s->mems.n ? s->mems.data[i]->buffer : NULL;
}

// Plans that were made and plans that were replayed both cost planning time. A replayed plan uses
// the offsets of an earlier one.
uint64_t gb_sched_n_plans_made(const struct ggml_backend_sched * s) {
    return s->stats.n_plans_made + s->stats.n_plans_replayed;
}

uint64_t gb_sched_n_plans_bound(const struct ggml_backend_sched * s) { return s->stats.n_plans_bound; }

const char * gb_sched_device_name(const struct ggml_backend_sched * s, int i) { return s->devices[i].name; }

// Threads call this without a lock on the scheduler, so the flag is written only if it changes.
void gb_sched_hold_for_readers(struct ggml_backend_sched * s) {
    if (!GB_READ_RELAXED(s->hold)) {
        GB_WRITE_RELAXED(s->hold, true);
    }
}
