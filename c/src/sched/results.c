// results.c - which results are still in memory.
//
// The arenas hold the results of the current plan. A leaf is valid if any kept plan is bound to it,
// a result only if the current plan is.
#include "sched/results.h"

#include "base/hash.h"
#include "sched/plan.h"

// The id of a root in the current plan; GB_PTRMAP_ABSENT: no plan, or not in it.
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

// Node ids are in the order of execution. All other tensors have greater ids.
bool gb_sched_is_computed_by(const struct ggml_backend_sched * s, const struct ggml_tensor * root,
    const struct ggml_tensor * node) {
    const int64_t id = id_of(s, root), last = node != NULL ? id_of(s, node) : GB_PTRMAP_ABSENT;
    return last != GB_PTRMAP_ABSENT && last < s->current->in->n_nodes && id <= last;
}

// Nodes run in the order of their ids, and items of the arena live from `lower` on. So an item that
// reused memory of the root has a greater `lower` and overlaps it.
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

// Made and replayed plans both cost planning time; a replayed plan took over the offsets of an
// earlier one.
uint64_t gb_sched_n_plans_made(const struct ggml_backend_sched * s) {
    return s->stats.n_plans_made + s->stats.n_plans_replayed;
}

uint64_t gb_sched_n_plans_bound(const struct ggml_backend_sched * s) { return s->stats.n_plans_bound; }

const char * gb_sched_device_name(const struct ggml_backend_sched * s, int i) { return s->devices[i].name; }

// Threads without a lock on the scheduler call it, so the flag is written only if it changes.
void gb_sched_hold_for_readers(struct ggml_backend_sched * s) {
    if (!GB_READ_RELAXED(s->hold)) {
        GB_WRITE_RELAXED(s->hold, true);
    }
}
