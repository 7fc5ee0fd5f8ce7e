// results.c - what of the current plan's results is still in memory.
//
// The current plan is the one whose results the arenas hold. A leaf is vouched for by any kept plan that is bound to
// it, a result by the current plan alone.
#include "sched/results.h"

#include "base/hash.h"
#include "sched/plan.h"

// The id of a root in the current plan; GB_PTRMAP_ABSENT: there is no such plan, or the root is not in it.
static int64_t id_of(const struct ggml_backend_sched * s, const struct ggml_tensor * root) {
    return s->current != NULL ? gb_ptrmap_get(&s->current->in->map, root) : GB_PTRMAP_ABSENT;
}

bool gb_sched_has_placed(const struct ggml_backend_sched * s, const struct ggml_tensor * root) {
    const struct gb_sched_binding * p = s->current;
    const int64_t id = id_of(s, root);
    return (id != GB_PTRMAP_ABSENT && gb_key_of(&p->in->keys, id)->data == root->data &&
               gb_key_of(&p->in->keys, id)->buffer == root->buffer) ||
           gb_sched_leaf_is_bound(s, root);
}

bool gb_sched_is_in_arena(const struct ggml_backend_sched * s, const struct ggml_tensor * root) {
    const int64_t id = id_of(s, root);
    return id != GB_PTRMAP_ABSENT && s->current->in->ids.data[id].location == GB_LOCATION_ARENA &&
           !gb_sched_leaf_is_bound(s, root);
}

bool gb_sched_keeps(const struct ggml_backend_sched * s, const struct ggml_tensor * root) {
    const int64_t id = id_of(s, root);
    return id != GB_PTRMAP_ABSENT && s->current->in->ids.data[id].keep;
}

// The id of a node is its place in the order of execution; what no node computes has a greater id than any node.
bool gb_sched_is_computed_by(const struct ggml_backend_sched * s, const struct ggml_tensor * root,
    const struct ggml_tensor * node) {
    const int64_t id = id_of(s, root), last = node != NULL ? id_of(s, node) : GB_PTRMAP_ABSENT;
    return last != GB_PTRMAP_ABSENT && last < s->current->in->n_nodes && id <= last;
}

// Nodes are computed in the order of their ids, and items of the arena live from `lower` on: who was given memory of a
// root afterwards has a greater `lower` and bytes in common with it.
const char * gb_sched_overwritten_by(const struct ggml_backend_sched * s, const struct ggml_tensor * root,
    const struct ggml_tensor * node) {
    const struct gb_sched_binding * p = s->current;
    const int64_t id = id_of(s, root);
    const int64_t last = node != NULL ? id_of(s, node) : GB_PTRMAP_ABSENT;
    if (id == GB_PTRMAP_ABSENT || !p->layout->items.data[id].valid || p->in->ids.data[id].keep) {
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

ggml_backend_buffer_t gb_sched_buffer_at(const struct ggml_backend_sched * s, size_t i) {
    return i < s->mems.n ? s->mems.data[i]->buffer : NULL;
}

// Both take the time of planning; a replayed plan only took its offsets from an earlier one.
uint64_t gb_sched_n_plans_made(const struct ggml_backend_sched * s) {
    return s->stats.n_plans_made + s->stats.n_plans_replayed;
}

uint64_t gb_sched_n_plans_bound(const struct ggml_backend_sched * s) { return s->stats.n_plans_bound; }

const char * gb_sched_device_name(const struct ggml_backend_sched * s, int i) { return s->devices[i].name; }

// Called by threads that do not use the scheduler: the flag is written only when it changes.
void gb_sched_hold_for_readers(struct ggml_backend_sched * s) {
    if (!GB_READ_RELAXED(s->hold)) {
        GB_WRITE_RELAXED(s->hold, true);
    }
}
