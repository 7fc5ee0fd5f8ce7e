// shadow.c - the plan's own tensors.
//
// A shadow is a clone of a graph's tensor without memory and marks; the caller sets what differs.
// Shadows are in blocks that never move, because nodes point to each other. They are freed with the
// program.
#include "sched/input/input.h"
#include "sched/program/program.h"

enum { BLOCK = 64 };

struct gb_shadow_block {
    struct gb_shadow_block * next;
    int n;
    struct gb_shadow items[BLOCK];
};

// The newest block is the first of the list. Older blocks are full.
struct gb_shadow * gb_sched_new_shadow(struct gb_sched_program * program, const struct gb_sched_input * in, int origin,
    int copy) {
    struct gb_shadow_block * block = program->shadows;
    if (block == NULL || block->n == BLOCK) {
        block = GB_NEW(struct gb_shadow_block);
        if (block == NULL) {
            return NULL;
        }
        block->next = program->shadows;
        program->shadows = block;
    }
    struct gb_shadow * shadow = &block->items[block->n++];
    shadow->tensor = *in->ids.data[origin].tensor;
    shadow->tensor.buffer = NULL;
    shadow->tensor.data = NULL;
    shadow->tensor.extra = NULL;
    shadow->tensor.grad = NULL;
    // A shadow is no input or output. Binding copies the mark "read once" from the original.
    gb_tensor_clear_marks(&shadow->tensor);
    gb_tensor_set_ndim(&shadow->tensor, gb_tensor_ndim(in->ids.data[origin].tensor));
    shadow->origin = origin;
    shadow->copy = copy;
    return shadow;
}

struct gb_shadow * gb_sched_next_shadow(const struct gb_sched_program * program, struct gb_shadow_iter * it) {
    if (!it->started) {
        *it = (struct gb_shadow_iter){ program->shadows, 0, true };
    }
    if (it->block && it->next == it->block->n) {
        it->block = it->block->next; // blocks are never empty
        it->next = 0;
    }
    return it->block ? &it->block->items[it->next++] : NULL;
}

void gb_sched_free_program(struct gb_sched_program * program) {
    while (program->shadows) {
        struct gb_shadow_block * next = program->shadows->next;
        gb_free(program->shadows);
        program->shadows = next;
    }
    gb_vec_free(&program->splits);
    gb_vec_free(&program->copies);
    gb_vec_free(&program->transfers);
    gb_vec_free(&program->exec);
    gb_vec_free(&program->exec_node);
    gb_vec_free(&program->backs);
    gb_vec_free(&program->steps);
}

bool gb_sched_map_storage(const struct gb_sched_input * in, const struct gb_sched_program * program,
    struct gb_ptrmap * map) {
    for (int i = 0; i < in->n_ids; i++) {
        if (in->ids.data[i].root == i && !gb_ptrmap_set(map, in->ids.data[i].tensor, i)) {
            return false;
        }
    }
    struct gb_shadow_iter it = { 0 };
    for (struct gb_shadow * sh = gb_sched_next_shadow(program, &it); sh; sh = gb_sched_next_shadow(program, &it)) {
        const int64_t id = sh->copy >= 0 ? (int64_t) in->n_ids + sh->copy : sh->origin;
        if (sh->tensor.view_src == NULL && !gb_ptrmap_set(map, &sh->tensor, id)) {
            return false;
        }
    }
    return true;
}
