// location.c - finds the memory that a tensor of the user has, and whether its content is valid.
//
// Tensors keep handles of the scheduler after their plan was dropped. So a handle proves nothing.
// The tensor is placed only while a kept plan is bound to its address.
#include "sched/input/input.h"
#include "sched/memory/memory.h"
#include "sched/sched.h"

// Leafs that other plans placed count, because a plan that shares a store holds a reference.
bool gb_sched_leaf_is_bound(const struct ggml_backend_sched * s, const struct ggml_tensor * t) {
    for (size_t k = 0; k < s->bindings.n; k++) {
        const struct gb_sched_binding * binding = s->bindings.data[k];
        const int64_t at = binding->is_bound ? gb_ptrmap_get(&binding->in->map, t) : GB_PTRMAP_ABSENT;
        if (at == GB_PTRMAP_ABSENT) {
            continue;
        }
        const struct gb_id * id = &binding->in->ids.data[at];
        const struct gb_mem * mem = binding->mem[at];
        if ((id->location == GB_LOCATION_LEAF || id->location == GB_LOCATION_SHARED) && mem &&
            mem->buffer == t->buffer && gb_key_of(&binding->in->keys, at)->data == t->data) {
            return true;
        }
    }
    return false;
}

// Only results that are kept to the end of the graph are alive, because other memory of the arena
// may be reused.
bool gb_sched_result_is_alive(const struct ggml_backend_sched * s, const struct ggml_tensor * t) {
    const struct gb_sched_binding * binding = s->current;
    const int64_t at = binding ? gb_ptrmap_get(&binding->in->map, t) : GB_PTRMAP_ABSENT;
    if (at == GB_PTRMAP_ABSENT) {
        return false;
    }
    const struct gb_id * id = &binding->in->ids.data[at];
    const struct gb_mem * mem = binding->mem[at];
    return id->location == GB_LOCATION_ARENA && id->keep && mem && mem->buffer == t->buffer &&
           gb_key_of(&binding->in->keys, at)->data == t->data;
}

// True for a retired handle of any scheduler.
static bool is_retired(const struct ggml_backend_buffer * buffer) {
    return GB_READ_RELAXED(buffer->usage) == GB_USAGE_SCHED && buffer->size == 0;
}

// The location of another graph's result.
static bool find_location_of_result(const struct ggml_backend_sched * s, const struct ggml_tensor * t,
    enum gb_location * location) {
    const struct gb_mem * mem = t->buffer ? gb_sched_mem_of(s, t->buffer) : NULL;
    const bool ok = mem == NULL
                        ? t->data != NULL && !(t->buffer && is_retired(t->buffer))
                        : mem->kind == GB_MEM_INPUTS || gb_sched_result_is_alive(s, t) || gb_sched_leaf_is_bound(s, t);
    if (!ok) {
        char text[GB_DESCRIBE_SIZE];
        gb_fail(GGML_STATUS_INVALID_STATE,
            "ggml_backend_sched: the graph reads %s, the result of %s in another graph, "
            "which is not in memory any more: compute it in the same graph, or give it memory of its own",
            gb_describe(t, text), ggml_op_name(t->op));
        return false;
    }
    if (mem == NULL) {
        *location = t->buffer ? GB_LOCATION_USER : GB_LOCATION_HOST;
    } else {
        *location = mem->kind == GB_MEM_INPUTS     ? GB_LOCATION_USER
                    : gb_sched_leaf_is_bound(s, t) ? GB_LOCATION_SHARED
                                                   : GB_LOCATION_LEAF;
    }
    return true;
}

// A leaf of the scheduler keeps its place, unless the user has chosen a backend that cannot use
// that memory.
static enum gb_location location_of_leaf(const struct ggml_backend_sched * s, const struct ggml_tensor * t,
    int chosen) {
    const struct gb_mem * mem = gb_sched_mem_of(s, t->buffer);
    if (mem == NULL) {
        return is_retired(t->buffer) ? GB_LOCATION_LEAF : GB_LOCATION_USER;
    }
    if (mem->kind == GB_MEM_INPUTS) {
        return GB_LOCATION_USER;
    }
    const bool stays =
        gb_sched_leaf_is_bound(s, t) &&
        (chosen < 0 || ggml_backend_buft_supports_backend(s->devices[mem->backend].buft, s->devices[chosen].backend));
    return stays ? GB_LOCATION_SHARED : GB_LOCATION_LEAF;
}

// If this graph computes a tensor, its content does not matter and its memory may be replaced. A
// leaf, or a result of another graph, may have content that must be kept.
bool gb_sched_find_location(const struct ggml_backend_sched * s, const struct ggml_tensor * t, bool computed,
    int chosen, enum gb_location * location) {
    if (computed) {
        const struct gb_mem * mem = t->buffer ? gb_sched_mem_of(s, t->buffer) : NULL;
        const bool ours = t->buffer && GB_READ_RELAXED(t->buffer->usage) == GB_USAGE_SCHED &&
                          (mem == NULL || mem->kind != GB_MEM_INPUTS);
        *location = ours || (t->buffer == NULL && t->data == NULL) ? GB_LOCATION_ARENA
                    : t->buffer                                    ? GB_LOCATION_USER
                                                                   : GB_LOCATION_HOST;
        return true;
    }
    if (gb_op_computes(t->op)) {
        return find_location_of_result(s, t, location);
    }
    if (t->buffer == NULL) {
        *location = t->data ? GB_LOCATION_HOST : GB_LOCATION_LEAF;
    } else {
        *location = location_of_leaf(s, t, chosen);
    }
    return true;
}
