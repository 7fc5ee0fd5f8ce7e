// plan.c - finds or makes the plan of a graph, and prepares it.
//
// If the graph's tensors have exactly the places of a kept plan, the plan runs at once. If they
// differ only in places that the scheduler assigns, the plan is bound again. Otherwise a new plan
// is made. The scheduler keeps the latest GB_SCHED_PLANS_MAX plans.
#include "sched/plan.h"

#include "backend/backend.h"
#include "base/env.h"

// Counts how the plan was made. Its template counts as used and moves to the front of the list.
static void note_template(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    s->stats.n_plans_made += p->layout.tmpl == NULL;
    s->stats.n_plans_replayed += p->layout.tmpl != NULL;
    for (size_t k = 0; p->layout.tmpl && k < s->plans.n; k++) {
        if (&s->plans.data[k]->layout == p->layout.tmpl) {
            gb_sched_move_to_front(s, k);
            break;
        }
    }
    p->layout.tmpl = NULL;
}

// Finds or makes the plan of the graph, and moves it to the front of the list.
static enum ggml_status find_or_make(struct ggml_backend_sched * s, struct ggml_cgraph * graph,
    struct gb_sched_plan ** plan) {
    for (size_t k = 0; k < s->plans.n; k++) {
        if (gb_sched_fits_when_bound(s, s->plans.data[k], graph)) {
            gb_sched_move_to_front(s, k);
            *plan = s->plans.data[0];
            s->stats.n_plans_bound++;
            return GGML_STATUS_SUCCESS;
        }
    }
    GB_TRY(gb_sched_make_plan(s, graph, false, plan));
    note_template(s, *plan);
    return gb_sched_add_plan(s, *plan);
}

// Fails for a leaf whose content is gone because the plan that had placed it was discarded. After a
// reset the user expects that.
static enum ggml_status check_contents(const struct ggml_backend_sched * s, const struct gb_sched_plan * p) {
    for (int i = 0; i < p->in.n_ids; i++) {
        const struct ggml_tensor * t = p->in.nodes[i];
        const struct gb_mem * mem =
            p->in.ids.data[i].location == GB_LOCATION_LEAF ? gb_sched_mem_of(s, t->buffer) : NULL;
        GB_FAIL_IF(mem && mem->kind == GB_MEM_LEAFS && mem->resets_before == s->n_resets &&
                       !gb_sched_leaf_is_bound(s, t),
            GGML_STATUS_INVALID_STATE,
            "ggml_backend_sched: tensor '%s' has lost its content, "
            "because %d other graphs were given to the scheduler since: "
            "allocate the graph again and set it, or place it in a buffer of its own",
            t->name, GB_SCHED_PLANS_MAX);
    }
    return GGML_STATUS_SUCCESS;
}

// Prepared graphs may contain addresses. A freed buffer's address may belong to another buffer now.
static enum ggml_status renew_prepared(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    const unsigned n_freed = gb_buffers_freed();
    if (p->in.foreign && p->binding.n_freed != n_freed) {
        GB_TRY(gb_sched_wait_first(s)); // a run may be using them
        gb_sched_drop_prepared(s, &p->binding);
    }
    p->binding.n_freed = n_freed;
    return GGML_STATUS_SUCCESS;
}

// The fast path: only compares the graph. NULL: no kept plan is bound to it.
static struct gb_sched_plan * find_as_it_is(struct ggml_backend_sched * s, const struct ggml_cgraph * graph) {
    for (size_t k = 0; k < s->plans.n; k++) {
        if (gb_sched_fits_as_it_is(s, s->plans.data[k], graph)) {
            gb_sched_move_to_front(s, k);
            return s->plans.data[0];
        }
    }
    return NULL;
}

// Makes the missing events: one for each step that another step waits for, numbered in the order of
// the steps.
static enum ggml_status make_events(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    struct gb_sched_binding * binding = &p->binding;
    for (size_t k = 0; k < p->program.steps.n && binding->events.n < p->waits.n_events; k++) {
        const int32_t number = p->waits.of[k].event;
        if (number < 0 || (size_t) number < binding->events.n) {
            continue;
        }
        const ggml_backend_t backend = s->devices[p->program.steps.data[k].issuer].backend;
        ggml_backend_event_t event =
            gb_vec_reserve(&binding->events, p->waits.n_events) ? ggml_backend_event_new(backend) : NULL;
        if (event == NULL) {
            return ggml_last_status();
        }
        binding->events.data[binding->events.n++] = event;
    }
    return GGML_STATUS_SUCCESS;
}

// Makes what is missing: memory, replicas, events, and the host copies of pending inputs (stages).
// Binding is last because it writes to the user's tensors.
static enum ggml_status make_ready(struct ggml_backend_sched * s, struct gb_sched_plan * p, enum gb_prepare what) {
    if (what == GB_PREPARE_PLAN) {
        return GGML_STATUS_SUCCESS;
    }
    if (what == GB_PREPARE_COMPUTE) {
        GB_TRY(check_contents(s, p));
    }
    GB_TRY(gb_sched_reserve_arenas(s, &p->binding));
    p->draft = false;
    if (what != GB_PREPARE_RESERVE && !gb_sched_take_stores(s, &p->binding)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_TRY(gb_sched_take_replicas(s, &p->binding));
    GB_TRY(make_events(s, p));
    GB_TRY(gb_sched_make_stages(s, &p->binding));
    return what == GB_PREPARE_RESERVE ? GGML_STATUS_SUCCESS : gb_sched_bind(s, &p->binding);
}

// Finds or makes the plan of a graph, and prepares it. On failure, drops a plan that was made for
// this call.
static enum ggml_status get_ready(struct ggml_backend_sched * s, struct ggml_cgraph * graph, enum gb_prepare what,
    struct gb_sched_plan ** plan) {
    const size_t n_plans = s->plans.n;
    gb_sched_drop_orphans(s);
    GB_TRY(find_or_make(s, graph, plan));
    (*plan)->draft |= what == GB_PREPARE_PLAN && s->plans.n > n_plans;
    enum ggml_status status = make_ready(s, *plan, what);
    if (status == GGML_STATUS_ALLOC_FAILED && !(*plan)->in.minimal && (*plan)->program.copies.n > 0) {
        // the plan may fit without replicas and early copies
        gb_sched_release_replicas(&(*plan)->binding);
        (*plan)->binding.stale = true;
        if (s->plans.n > n_plans) {
            gb_sched_drop_first(s);
        }
        struct gb_sched_plan * minimal;
        GB_TRY(gb_sched_make_plan(s, graph, true, &minimal));
        minimal->layout.tmpl = NULL; // do not count it twice
        GB_TRY(gb_sched_add_plan(s, minimal));
        *plan = minimal;
        status = make_ready(s, minimal, what);
    }
    if (status != GGML_STATUS_SUCCESS && s->plans.n > n_plans) { // the list keeps its older plans instead
        gb_sched_drop_first(s);
    }
    return status;
}

// How the plan was found: a word for the trace.
static const char * how_found(const struct ggml_backend_sched_stats * before,
    const struct ggml_backend_sched_stats * now) {
    return now->n_plans_made > before->n_plans_made           ? "made"
           : now->n_plans_replayed > before->n_plans_replayed ? "replayed"
           : now->n_plans_bound > before->n_plans_bound       ? "bound"
                                                              : "found";
}

// Waits for a pending run, unless it is a run of the same plan.
static enum ggml_status find_or_get_ready(struct ggml_backend_sched * s, struct ggml_cgraph * graph,
    enum gb_prepare what, struct gb_sched_plan ** plan) {
    struct gb_sched_plan * p = find_as_it_is(s, graph);
    s->stats.n_plans_found += p != NULL;
    if (p == NULL || &p->binding != s->current) {
        GB_TRY(gb_sched_wait_first(s));
    }
    if (p == NULL) {
        GB_TRY(get_ready(s, graph, what, &p));
        gb_sched_drop_oldest(s);
    }
    GB_TRY(renew_prepared(s, p));
    s->current = what <= GB_PREPARE_RESERVE ? s->current : &p->binding;
    s->last = p;
    *plan = p;
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_sched_prepare(struct ggml_backend_sched * s, struct ggml_cgraph * graph, enum gb_prepare what,
    struct gb_sched_plan ** plan) {
    const struct ggml_backend_sched_stats before = s->stats;
    const int64_t start = gb_time_ns();
    const enum ggml_status status = find_or_get_ready(s, graph, what, plan);
    s->stats.plan_ns += (uint64_t) (gb_time_ns() - start) - (s->stats.wait_ns - before.wait_ns);
    if (status == GGML_STATUS_SUCCESS && gb_sched_is_traced(s)) {
        gb_trace_plan(s, start, how_found(&before, &s->stats));
    }
    return status;
}
