// template.c - reuses the offsets of an earlier plan for a graph of the same structure with tensors
// that are no larger: a shorter prompt, a smaller batch. The earlier plan is the template.
// A template is found by comparing both plans step by step. Correctness does not depend on that
// comparison, because the lifetimes of the new plan are computed as usual. Each alias group must be
// inside one alias group of the template, in time and in bytes, and no two groups inside the same
// one. The template's groups do not overlap, so the new groups do not either. If a group does not
// fit, the plan is laid out normally.
#include "sched/assign/assign.h"
#include "sched/input/input.h"
#include "sched/layout/layout.h"
#include "sched/program/program.h"

#include <string.h>

#include "alloc/liveness.h"

// ----------------------------------------------------------------------------------------------------------- structure

// Compares the records of tensors, because the template's tensors may be freed.
static bool same_ids(const struct gb_sched_parts * p, const struct gb_sched_parts * tmpl) {
    for (int i = 0; i < p->in->n_ids; i++) {
        const struct gb_key *a = gb_key_of(&p->in->keys, i), *b = gb_key_of(&tmpl->in->keys, i);
        const struct gb_id *x = &p->in->ids.data[i], *y = &tmpl->in->ids.data[i];
        if (a->op != b->op || a->type != b->type || a->state != b->state || x->root != y->root || x->keep != y->keep ||
            (x->location == GB_LOCATION_ARENA) != (y->location == GB_LOCATION_ARENA) ||
            p->assigned->to[i].backend != tmpl->assigned->to[i].backend || p->in->chosen[i] != tmpl->in->chosen[i]) {
            return false;
        }
    }
    return true;
}

// True if the same nodes read the same ids in the same order.
static bool same_sources(const struct gb_sched_parts * p, const struct gb_sched_parts * tmpl) {
    const size_t n = p->in->src_begin[p->in->n_nodes];
    return memcmp(p->in->src_begin, tmpl->in->src_begin, ((size_t) p->in->n_nodes + 1) * sizeof(*p->in->src_begin)) ==
               0 &&
           (n == 0 || memcmp(p->in->srcs, tmpl->in->srcs, n * sizeof(*p->in->srcs)) == 0);
}

// Compares splits, copies and steps. Sizes may differ.
static bool same_program(const struct gb_sched_parts * p, const struct gb_sched_parts * tmpl) {
    bool same = p->program->splits.n == tmpl->program->splits.n && p->program->copies.n == tmpl->program->copies.n &&
                p->program->backs.n == tmpl->program->backs.n && p->program->steps.n == tmpl->program->steps.n &&
                p->program->exec.n == tmpl->program->exec.n;
    for (size_t k = 0; same && k < p->program->splits.n; k++) {
        const struct gb_split *a = &p->program->splits.data[k], *b = &tmpl->program->splits.data[k];
        same = a->start == b->start && a->end == b->end && a->exec_begin == b->exec_begin && a->exec_end == b->exec_end;
    }
    for (size_t k = 0; same && k < p->program->copies.n; k++) {
        const struct gb_copy *a = &p->program->copies.data[k], *b = &tmpl->program->copies.data[k];
        same = a->root == b->root && a->backend == b->backend && a->split == b->split && a->kept == b->kept &&
               a->fill == b->fill && a->merged == b->merged;
    }
    for (size_t k = 0; same && k < p->program->steps.n; k++) {
        const struct gb_step *a = &p->program->steps.data[k], *b = &tmpl->program->steps.data[k];
        same = a->kind == b->kind && a->index == b->index && a->issuer == b->issuer;
    }
    return same;
}

// Compares the parts that exist before the program is made.
static bool is_built_like(const struct gb_sched_parts * p, const struct gb_sched_parts * tmpl) {
    return p->in->n_nodes == tmpl->in->n_nodes && p->in->n_leafs == tmpl->in->n_leafs &&
           p->in->n_ids == tmpl->in->n_ids && p->in->n_backends == tmpl->in->n_backends &&
           p->in->minimal == tmpl->in->minimal && p->in->n_copies == tmpl->in->n_copies && same_sources(p, tmpl) &&
           same_ids(p, tmpl);
}

bool gb_sched_is_like(const struct gb_sched_parts * p, const struct gb_sched_parts * tmpl) {
    return is_built_like(p, tmpl) && same_program(p, tmpl);
}

// True if each tensor, and each copy of a whole tensor, fits the capacity of its counterpart. Other
// copies are not known yet.
static bool fits(const struct gb_sched_parts * p, const struct gb_sched_parts * tmpl) {
    bool fits = true;
    for (int i = 0; fits && i < p->in->n_ids; i++) {
        const struct gb_item * item = gb_sched_arena_item(tmpl->layout, i);
        fits = item == NULL || gb_key_nbytes(gb_key_of(&p->in->keys, i)) <= item->capacity;
    }
    for (size_t c = 0; fits && c < tmpl->program->copies.n; c++) {
        const struct gb_copy * copy = &tmpl->program->copies.data[c];
        const struct gb_item * item = gb_sched_arena_item(tmpl->layout, tmpl->in->n_ids + (int64_t) c);
        fits = item == NULL || !copy->whole || gb_key_nbytes(gb_key_of(&p->in->keys, copy->root)) <= item->capacity;
    }
    return fits;
}

bool gb_sched_may_fit(const struct gb_sched_parts * p, const struct gb_sched_parts * tmpl) {
    return is_built_like(p, tmpl) && fits(p, tmpl);
}

// -------------------------------------------------------------------------------------------------------- alias groups

// State while alias groups get places of the template.
struct taking {
    const struct gb_sched_parts * tmpl;
    const struct gb_liveness * live;
    const size_t * size_of; // per id
    struct gb_item * at; // per alias group: its place and size
    int64_t * taken;        // owned; per alias group of the template: the group in it + 1
};

// Places one storage id inside its counterpart, if no other alias group has taken that place.
static bool take_place(struct taking * r, int64_t id) {
    const int64_t group = r->live->item_of[id];
    const struct gb_item * place = gb_sched_arena_item(r->tmpl->layout, id);
    const struct gb_live_item * live = &r->live->items[group];
    struct gb_item * at = &r->at[group];
    const size_t size = r->size_of[id];
    if (place == NULL || size > place->capacity || live->arena != place->backend || live->lower < place->lower ||
        live->upper > place->upper || r->taken[place->group] != (at->valid ? group + 1 : 0)) {
        return false;
    }
    r->taken[place->group] = group + 1;
    *at = (struct gb_item){ .backend = place->backend,
        .chunk = place->chunk,
        .offset = place->offset,
        .size = GB_MAX(at->size, size),
        .valid = true,
        .lower = live->lower,
        .upper = live->upper,
        .group = -1 };
    return true;
}

bool gb_sched_take_offsets(const struct gb_sched_parts * tmpl, const struct gb_liveness * live, const size_t * size_of,
    struct gb_item * at) {
    const int64_t n_ids =
        (int64_t) tmpl->in->n_ids + (int64_t) tmpl->program->copies.n; // upper bound of the number of alias groups
    struct taking r = { tmpl, live, size_of, at, gb_calloc((size_t) n_ids, sizeof(*r.taken)) };
    bool fits = r.taken != NULL;
    for (int64_t id = 0; fits && id < n_ids; id++) {
        fits = live->item_of[id] < 0 || take_place(&r, id);
    }
    for (size_t k = 0; fits && k < live->n_items; k++) {
        fits = at[k].valid;
    }
    gb_free(r.taken);
    return fits;
}
