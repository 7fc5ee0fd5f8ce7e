// template.c - the offsets of an earlier plan for a graph of the same structure whose tensors are no larger: a prompt of
// another length, a batch of fewer. The earlier plan is called the model.
//
// That a plan looks like a model is found by comparing what both do, step by step. Whether its offsets may be taken
// does not rest on that: the lifetimes of the new plan are computed as ever, and each line (what shares memory in
// place) must lie within one line of the model, in time and in bytes, and no two in the same. As the model's lines do
// not meet, these do not either. Else the plan is laid out anew.
#include "sched/sched.h"

#include <string.h>

#include "alloc/liveness.h"

const struct gb_item * gb_sched_arena_item(const struct gb_sched_plan * p, int64_t id) {
    if (id >= p->n_ids) {
        const struct gb_copy * copy = &p->copies.data[id - p->n_ids];
        return copy->item.valid && !copy->kept ? &copy->item : NULL;
    }
    const struct gb_id * t = &p->ids.data[id];
    return t->root == id && t->home == GB_HOME_ARENA && t->item.valid ? &t->item : NULL;
}

// ----------------------------------------------------------------------------------------------------------- structure

// From the plans' own copies of tensors: those that the model was made from may be gone.
static bool same_ids(const struct gb_sched_plan * p, const struct gb_sched_plan * model) {
    for (int i = 0; i < p->n_ids; i++) {
        const struct ggml_tensor *a = &p->key[i], *b = &model->key[i];
        const struct gb_id *      x = &p->ids.data[i], *y = &model->ids.data[i];
        if (a->op != b->op || a->type != b->type || gb_tensor_state(a) != gb_tensor_state(b) || x->root != y->root ||
            x->keep != y->keep || (x->home == GB_HOME_ARENA) != (y->home == GB_HOME_ARENA) ||
            p->assignment[i].backend != model->assignment[i].backend || p->user[i] != model->user[i]) {
            return false;
        }
    }
    return true;
}

static bool same_sources(const struct gb_sched_plan * p, const struct gb_sched_plan * model) {
    const size_t n = p->src_begin[p->n_nodes];
    return memcmp(p->src_begin, model->src_begin, ((size_t) p->n_nodes + 1) * sizeof(*p->src_begin)) == 0 &&
           (n == 0 || memcmp(p->srcs, model->srcs, n * sizeof(*p->srcs)) == 0);
}

static bool same_program(const struct gb_sched_plan * p, const struct gb_sched_plan * model) {
    bool same = p->splits.n == model->splits.n && p->copies.n == model->copies.n && p->backs.n == model->backs.n &&
                p->steps.n == model->steps.n && p->exec.n == model->exec.n;
    for (size_t k = 0; same && k < p->splits.n; k++) {
        const struct gb_split *a = &p->splits.data[k], *b = &model->splits.data[k];
        same = a->start == b->start && a->end == b->end && a->exec_begin == b->exec_begin && a->exec_end == b->exec_end;
    }
    for (size_t k = 0; same && k < p->copies.n; k++) {
        const struct gb_copy *a = &p->copies.data[k], *b = &model->copies.data[k];
        same = a->root == b->root && a->backend == b->backend && a->split == b->split && a->kept == b->kept &&
               a->fill == b->fill && a->merged == b->merged;
    }
    for (size_t k = 0; same && k < p->steps.n; k++) {
        const struct gb_step *a = &p->steps.data[k], *b = &model->steps.data[k];
        same = a->kind == b->kind && a->index == b->index && a->actor == b->actor;
    }
    return same;
}

static bool is_built_like(const struct gb_sched_plan * p, const struct gb_sched_plan * model) {
    return p->n_nodes == model->n_nodes && p->n_leafs == model->n_leafs && p->n_ids == model->n_ids &&
           p->n_backends == model->n_backends && p->lean == model->lean && p->n_copies == model->n_copies &&
           same_sources(p, model) && same_ids(p, model);
}

bool gb_sched_is_like(const struct gb_sched_plan * p, const struct gb_sched_plan * model) {
    return is_built_like(p, model) && same_program(p, model);
}

// As far as it is known before copies are made: has each tensor, and each copy of a whole one, room where the model has
// it?
static bool has_room(const struct gb_sched_plan * p, const struct gb_sched_plan * model) {
    bool fits = true;
    for (int i = 0; fits && i < p->n_ids; i++) {
        const struct gb_item * item = gb_sched_arena_item(model, i);
        fits                        = item == NULL || ggml_nbytes(&p->key[i]) <= item->room;
    }
    for (size_t c = 0; fits && c < model->copies.n; c++) {
        const struct gb_copy * copy = &model->copies.data[c];
        const struct gb_item * item = gb_sched_arena_item(model, model->n_ids + (int64_t) c);
        fits                        = item == NULL || !copy->whole || ggml_nbytes(&p->key[copy->root]) <= item->room;
    }
    return fits;
}

const struct gb_sched_plan * gb_sched_find_guide(const struct ggml_backend_sched * s, const struct gb_sched_plan * p) {
    for (size_t k = 0; k < s->plans.n; k++) {
        const struct gb_sched_plan * other = s->plans.data[k];
        if (!other->draft && is_built_like(p, other) && has_room(p, other)) {
            return other;
        }
    }
    return NULL;
}

// --------------------------------------------------------------------------------------------------------------- lines

struct replay {
    const struct gb_sched_plan * model;
    const struct gb_liveness *   live;
    const size_t *               size_of; // per id
    struct gb_item *             at;      // per line: its place, and how much it takes
    int64_t *                    taken;   // owned; per line of the model: the line in it + 1
};

static bool take(struct replay * r, int64_t id) {
    const int64_t               line = r->live->item_of[id];
    const struct gb_item *      room = gb_sched_arena_item(r->model, id);
    const struct gb_live_item * live = &r->live->items[line];
    struct gb_item *            at   = &r->at[line];
    const size_t                size = r->size_of[id];
    if (room == NULL || size > room->room || live->arena != room->backend || live->lower < room->lower ||
        live->upper > room->upper || r->taken[room->line] != (at->valid ? line + 1 : 0)) {
        return false;
    }
    r->taken[room->line] = line + 1;
    *at                  = (struct gb_item){ .backend = room->backend,
                         .chunk                       = room->chunk,
                         .offset                      = room->offset,
                         .size                        = GB_MAX(at->size, size),
                         .valid                       = true,
                         .lower                       = live->lower,
                         .upper                       = live->upper,
                         .line                        = -1 };
    return true;
}

bool gb_sched_take_offsets(const struct gb_sched_plan * model, const struct gb_liveness * live, const size_t * size_of,
    struct gb_item * at) {
    const int64_t n_ids = (int64_t) model->n_ids + (int64_t) model->copies.n; // there are no more lines
    struct replay r     = { model, live, size_of, at, gb_calloc((size_t) n_ids, sizeof(*r.taken)) };
    bool          fits  = r.taken != NULL;
    for (int64_t id = 0; fits && id < n_ids; id++) {
        fits = live->item_of[id] < 0 || take(&r, id);
    }
    for (size_t k = 0; fits && k < live->n_items; k++) {
        fits = at[k].valid;
    }
    gb_free(r.taken);
    return fits;
}
