// shadow.c - the plan's own tensors: they live in blocks that never move, because nodes point to each other.
//
// A shadow is a clone of a tensor of the graph with its memory and its flags removed; who makes it sets what differs.
#include "sched/sched.h"

#include <string.h>

enum { BLOCK = 64 };

struct gb_shadow_block {
    struct gb_shadow_block * next;
    int                      n;
    struct gb_shadow         items[BLOCK];
};

struct gb_shadow * gb_sched_new_shadow(struct gb_sched_plan * p, int origin, int copy) {
    struct gb_shadow_block * block = p->shadows;
    if (block == NULL || block->n == BLOCK) {
        block = GB_NEW(struct gb_shadow_block);
        if (block == NULL) {
            return NULL;
        }
        block->next = p->shadows;
        p->shadows  = block;
    }
    struct gb_shadow * shadow = &block->items[block->n++];
    shadow->tensor            = *p->ids.data[origin].tensor;
    shadow->tensor.buffer     = NULL;
    shadow->tensor.data       = NULL;
    shadow->tensor.extra      = NULL;
    shadow->tensor.grad       = NULL;
    // no input or output, and not read once: the original is
    gb_tensor_clear_marks(&shadow->tensor);
    gb_tensor_set_ndim(&shadow->tensor, gb_tensor_ndim(p->ids.data[origin].tensor));
    shadow->origin = origin;
    shadow->copy   = copy;
    return shadow;
}

struct gb_shadow * gb_sched_next_shadow(const struct gb_sched_plan * p, struct gb_shadow_iter * it) {
    if (!it->started) {
        *it = (struct gb_shadow_iter){ p->shadows, 0, true };
    }
    if (it->block && it->next == it->block->n) {
        it->block = it->block->next; // blocks are never empty
        it->next  = 0;
    }
    return it->block ? &it->block->items[it->next++] : NULL;
}

void gb_sched_free_shadows(struct gb_sched_plan * p) {
    while (p->shadows) {
        struct gb_shadow_block * next = p->shadows->next;
        gb_free(p->shadows);
        p->shadows = next;
    }
}

bool gb_sched_map_storage(const struct gb_sched_plan * p, struct gb_ptrmap * map) {
    for (int i = 0; i < p->n_ids; i++) {
        if (p->ids.data[i].root == i && !gb_ptrmap_set(map, p->ids.data[i].tensor, i)) {
            return false;
        }
    }
    struct gb_shadow_iter it = { 0 };
    for (struct gb_shadow * sh = gb_sched_next_shadow(p, &it); sh; sh = gb_sched_next_shadow(p, &it)) {
        const int64_t id = sh->copy >= 0 ? (int64_t) p->n_ids + sh->copy : sh->origin;
        if (sh->tensor.view_src == NULL && !gb_ptrmap_set(map, &sh->tensor, id)) {
            return false;
        }
    }
    return true;
}
