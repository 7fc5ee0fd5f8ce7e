// match.c - decides whether a graph matches a kept plan.
//
// The graph is compared field by field with the records of the plan. Hashes, node counts and
// addresses prove nothing. After a mismatch the next plan is tried, or a new one is made.
#include "sched/plan.h"

#include <string.h>

// True if the graph's nodes and leafs are the tensors of the plan, in the same order.
static bool same_lists(const struct gb_sched_plan * p, const struct ggml_cgraph * graph) {
    return p->in.n_nodes == graph->n_nodes && p->in.n_leafs == graph->n_leafs &&
           (p->in.n_nodes == 0 ||
               memcmp(p->in.nodes, graph->nodes, (size_t) p->in.n_nodes * sizeof(*p->in.nodes)) == 0) &&
           (p->in.n_leafs == 0 ||
               memcmp(p->in.leafs, graph->leafs, (size_t) p->in.n_leafs * sizeof(*p->in.leafs)) == 0);
}

// True if the tensors are unchanged since the plan was bound. Each tensor is referred to by an
// earlier tensor, which is already compared (collect.c). So every pointer that is followed is in
// the graph.
static bool is_as_bound(const struct gb_sched_plan * p) {
    for (int i = 0; i < p->in.n_ids; i++) {
        const struct ggml_tensor * t = p->in.nodes[i];
        const struct gb_key * key = gb_key_of(&p->in.keys, i);
        if (t->data != key->data || t->buffer != key->buffer || !gb_key_is_like(key, t)) {
            return false;
        }
    }
    return true;
}

// True if the user's buffers are unchanged. A buffer of another scheduler may have been retired. A
// user's buffer may have been freed and another one allocated at its address.
static bool has_same_buffers(const struct gb_sched_plan * p) {
    for (int i = 0; i < p->in.n_ids; i++) {
        const struct ggml_backend_buffer * buffer =
            p->in.ids.data[i].location == GB_LOCATION_USER ? gb_key_of(&p->in.keys, i)->buffer : NULL;
        if (buffer == NULL) {
            continue;
        }
        const enum ggml_backend_buffer_usage usage = GB_READ_RELAXED(buffer->usage);
        if ((usage == GB_USAGE_SCHED && buffer->size == 0) || buffer->buft != p->in.ids.data[i].buft ||
            p->in.weight[i] != (usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS)) {
            return false;
        }
    }
    return true;
}

// Only choices for the graph's own tensors count. Most programs make none.
static bool has_same_users(const struct ggml_backend_sched * s, const struct gb_sched_plan * p) {
    for (int i = 0; i < p->in.n_ids && (s->chosen.n > 0 || p->in.has_chosen); i++) {
        if (gb_sched_chosen_for(s, p->in.nodes[i]) != p->in.chosen[i]) {
            return false;
        }
    }
    return true;
}

// An arena that has grown has other chunks than the plan is bound to.
static bool arenas_are_current(const struct ggml_backend_sched * s, const struct gb_sched_plan * p) {
    size_t k = 0;
    for (size_t i = 0; i < p->layout.chunks.n; i++) {
        const struct gb_chunk_need * need = &p->layout.chunks.data[i];
        if (!need->leafs && p->binding.arenas.data[k++] != s->devices[need->backend].arena.data[need->chunk]) {
            return false;
        }
    }
    return true;
}

// True if each root would get its present location, and memory of other owners is unchanged.
static bool has_same_locations(struct ggml_backend_sched * s, const struct gb_sched_plan * p) {
    for (int i = 0; i < p->in.n_ids; i++) {
        const struct gb_id * id = &p->in.ids.data[i];
        enum gb_location location;
        const struct gb_mem * mem = p->binding.mem[i];
        const struct gb_key * key = gb_key_of(&p->in.keys, i);
        if (id->root != i) {
            continue;
        }
        if (!gb_sched_find_location(s, id->tensor, id->computes, p->in.chosen[i], &location)) {
            return false; // the error is reported when the plan is made
        }
        // A leaf that this plan placed, and that is still there.
        const bool own = id->location == GB_LOCATION_LEAF && location == GB_LOCATION_SHARED && mem &&
                         mem->buffer == id->tensor->buffer && key->data == id->tensor->data;
        if (location != id->location && !own) {
            return false;
        }
        if (location >= GB_LOCATION_SHARED && !own &&
            (id->tensor->buffer != key->buffer || id->tensor->data != key->data)) {
            return false;
        }
    }
    return true;
}

static bool is_structure_of(const struct gb_sched_plan * p, const struct ggml_cgraph * graph) {
    if (!same_lists(p, graph)) {
        return false;
    }
    for (int i = 0; i < p->in.n_ids; i++) {
        if (!gb_key_is_like(gb_key_of(&p->in.keys, i), p->in.nodes[i])) {
            return false;
        }
    }
    return true;
}

bool gb_sched_fits_as_it_is(const struct ggml_backend_sched * s, const struct gb_sched_plan * p,
    const struct ggml_cgraph * graph) {
    return p->binding.is_bound && !p->binding.stale && p->in.policy == s->policy && p->in.n_copies == s->n_copies &&
           same_lists(p, graph) && is_as_bound(p) && has_same_users(s, p) && has_same_buffers(p) &&
           arenas_are_current(s, p);
}

bool gb_sched_fits_when_bound(struct ggml_backend_sched * s, const struct gb_sched_plan * p,
    const struct ggml_cgraph * graph) {
    return p->in.policy == s->policy && p->in.n_copies == s->n_copies && is_structure_of(p, graph) &&
           has_same_users(s, p) && has_same_locations(s, p) && has_same_buffers(p);
}
