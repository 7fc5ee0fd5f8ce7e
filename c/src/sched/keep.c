// keep.c - the list of kept plans: the latest used first, at most GB_SCHED_PLANS_MAX after a call.
//
// All plans of the list are freed here, so that no pointer to them (current, last, pending)
// remains.
#include <string.h>

#include "sched/plan.h"

void gb_sched_disarm_plans(struct ggml_backend_sched * s) {
    for (size_t k = 0; k < s->plans.n; k++) {
        gb_sched_disarm(s, s->bindings.data[k]);
    }
}

void gb_sched_free_plan(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    if (p == NULL) {
        return;
    }
    gb_sched_free_binding(s, &p->binding); // first: it uses the other parts
    gb_sched_free_report(&p->report);
    gb_sched_free_waits(&p->waits);
    gb_sched_free_layout(&p->layout);
    gb_sched_free_program(&p->program);
    gb_sched_free_assigned(&p->assigned);
    gb_sched_free_input(&p->in);
    gb_free(p);
}

// Frees a plan of the list and clears all pointers to it.
static void forget(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    s->current = s->current == &p->binding ? NULL : s->current;
    s->last = s->last == p ? NULL : s->last;
    s->pending = s->pending == &p->binding ? NULL : s->pending;
    gb_sched_free_plan(s, p);
}

void gb_sched_drop_plans(struct ggml_backend_sched * s) {
    for (size_t k = 0; k < s->plans.n; k++) {
        forget(s, s->plans.data[k]);
    }
    s->plans.n = s->bindings.n = 0;
}

void gb_sched_move_to_front(struct ggml_backend_sched * s, size_t k) {
    struct gb_sched_plan * p = s->plans.data[k];
    memmove(s->plans.data + 1, s->plans.data, k * sizeof(*s->plans.data));
    s->plans.data[0] = p;
    memmove(s->bindings.data + 1, s->bindings.data, k * sizeof(*s->bindings.data));
    s->bindings.data[0] = &p->binding;
}

enum ggml_status gb_sched_add_plan(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    if (!gb_vec_reserve(&s->plans, s->plans.n + 1) || !gb_vec_reserve(&s->bindings, s->bindings.n + 1)) {
        gb_sched_free_plan(s, p);
        return GGML_STATUS_ALLOC_FAILED;
    }
    s->plans.data[s->plans.n++] = p;
    s->bindings.data[s->bindings.n++] = &p->binding;
    gb_sched_move_to_front(s, s->plans.n - 1);
    return GGML_STATUS_SUCCESS;
}

void gb_sched_drop_first(struct ggml_backend_sched * s) {
    struct gb_sched_plan * p = s->plans.data[0];
    memmove(s->plans.data, s->plans.data + 1, --s->plans.n * sizeof(*s->plans.data));
    memmove(s->bindings.data, s->bindings.data + 1, --s->bindings.n * sizeof(*s->bindings.data));
    forget(s, p);
}

void gb_sched_drop_oldest(struct ggml_backend_sched * s) {
    while (s->plans.n > GB_SCHED_PLANS_MAX) {
        s->bindings.n--;
        forget(s, s->plans.data[--s->plans.n]);
    }
}
