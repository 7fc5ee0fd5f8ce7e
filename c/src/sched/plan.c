// plan.c - plans: made from a graph, found again, given up.
//
// A plan is found again by comparing the graph with what the plan was made from, field by field: no hash that could
// collide, no node count or address taken as proof. A graph whose tensors carry exactly the places that the plan gave
// them runs at once; one that differs only in places that are ours to give is bound again; anything else is another
// graph. The most recent GB_SCHED_PLANS_MAX plans are kept.
#include "sched/sched.h"

#include <string.h>

#include "backend/backend.h"
#include "base/current.h"
#include "base/env.h"

// -------------------------------------------------------------------------------------------------------------- making

static enum ggml_status cut(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    (void) s;
    int32_t *     backend  = gb_calloc((size_t) p->n_nodes, sizeof(*backend));
    uint8_t *     computes = gb_calloc((size_t) p->n_nodes, sizeof(*computes));
    gb_split_list ranges   = { 0 };
    bool          ok       = backend && computes;
    for (int i = 0; ok && i < p->n_nodes; i++) {
        backend[i]  = p->assignment[i].backend;
        computes[i] = p->ids.data[i].computes;
    }
    ok = ok && gb_split_nodes(backend, computes, p->n_nodes, &ranges);
    for (size_t k = 0; ok && k < ranges.n; k++) {
        const struct gb_split_range * r = &ranges.data[k];
        ok = gb_vec_push(&p->splits, ((struct gb_split){ .backend = r->backend, .start = r->start, .end = r->end }));
    }
    gb_free(backend);
    gb_free(computes);
    gb_vec_free(&ranges);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

static enum ggml_status find_guide(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    p->guide = gb_sched_find_guide(s, p);
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status judge(struct ggml_backend_sched * s, struct gb_sched_plan * p) { return gb_sched_judge(s, p); }

// What the backends need for themselves: the most of any split.
static enum ggml_status measure_work(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    const uint64_t before = gb_fail_count();
    for (size_t k = 0; k < p->splits.n; k++) {
        const struct gb_split * split   = &p->splits.data[k];
        const ggml_backend_t    backend = s->devices[split->backend].backend;
        struct ggml_cgraph      graph   = { .n_nodes = (int) (split->exec_end - split->exec_begin),
            .nodes                                 = p->exec.data + split->exec_begin };
        graph.size                      = graph.n_nodes;
        if (backend->iface.graph_work_size && graph.n_nodes > 0) {
            p->need[split->backend].work =
                GB_MAX(p->need[split->backend].work, backend->iface.graph_work_size(backend, &graph));
        }
    }
    return gb_status_since(before);
}

// Between two steps, and within those that walk the graph several times, the thread's poll is asked.
static enum ggml_status fill_collected(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    static enum ggml_status (*const steps[])(struct ggml_backend_sched *, struct gb_sched_plan *) = {
        gb_sched_assign_plan,
        cut,
        gb_sched_lay_out_leafs,
        find_guide,
        gb_sched_make_program,
        gb_sched_order_steps,
        gb_sched_lay_out,
        judge,
        measure_work,
        gb_sched_find_fallbacks,
        gb_sched_find_hazards,
    };
    for (size_t i = 0; i < GB_ARRAY_LEN(steps); i++) {
        GB_TRY(steps[i](s, p));
        GB_TRY(gb_go_on());
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status fill(struct ggml_backend_sched * s, struct gb_sched_plan * p,
    const struct ggml_cgraph * graph) {
    GB_TRY(gb_sched_collect(s, p, graph));
    const bool             trust  = gb_trust_tensors(true); // collecting has looked at them
    const enum ggml_status status = fill_collected(s, p);
    gb_trust_tensors(trust);
    return status;
}

static enum ggml_status make_relieved(struct ggml_backend_sched * s, const struct ggml_cgraph * graph, bool lean,
    const struct gb_sched_relief * relief, struct gb_sched_plan ** plan) {
    struct gb_sched_plan * p = GB_NEW(struct gb_sched_plan);
    if (p == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    p->lean                       = lean;
    p->n_copies                   = s->n_copies;
    p->relief                     = relief;
    const enum ggml_status status = fill(s, p, graph);
    p->relief                     = NULL;
    p->guide                      = NULL;
    if (status != GGML_STATUS_SUCCESS) {
        gb_sched_free_plan(s, p);
        return status;
    }
    *plan = p;
    return GGML_STATUS_SUCCESS;
}

// Made again as long as it needs more memory than the costs allow.
static enum ggml_status make_plan(struct ggml_backend_sched * s, const struct ggml_cgraph * graph, bool lean,
    struct gb_sched_plan ** plan) {
    struct gb_sched_relief relief = { .rounds = 0 };
    for (;;) {
        bool                   again = false;
        struct gb_sched_plan * p;
        GB_TRY(make_relieved(s, graph, lean, &relief, &p));
        const enum ggml_status status = gb_sched_relieve(s, p, &relief, &again);
        if (status == GGML_STATUS_SUCCESS && !again) {
            *plan = p;
            return GGML_STATUS_SUCCESS;
        }
        gb_sched_free_plan(s, p);
        GB_TRY(status);
    }
}

// ----------------------------------------------------------------------------------------------------------- comparing

static bool same_lists(const struct gb_sched_plan * p, const struct ggml_cgraph * graph) {
    return p->n_nodes == graph->n_nodes && p->n_leafs == graph->n_leafs &&
           (p->n_nodes == 0 || memcmp(p->nodes, graph->nodes, (size_t) p->n_nodes * sizeof(*p->nodes)) == 0) &&
           (p->n_leafs == 0 || memcmp(p->leafs, graph->leafs, (size_t) p->n_leafs * sizeof(*p->leafs)) == 0);
}

// Two parts of the struct are compared as bytes: they are copies of the same bytes unless somebody wrote to the tensor.
static bool same_bytes(const struct ggml_tensor * a, const struct ggml_tensor * b, size_t from, size_t to) {
    return memcmp((const char *) a + from, (const char *) b + from, to - from) == 0;
}

static bool same_structure(const struct ggml_tensor * a, const struct ggml_tensor * b) {
    return a->type == b->type &&
           same_bytes(a, b, offsetof(struct ggml_tensor, ne), offsetof(struct ggml_tensor, is_param)) &&
           same_bytes(a, b, offsetof(struct ggml_tensor, src), offsetof(struct ggml_tensor, perf_runs)) &&
           a->view_src == b->view_src && a->view_offs == b->view_offs && gb_tensor_state(a) == gb_tensor_state(b);
}

// Each tensor is led to by one that was compared before it (collect.c), so no pointer is followed that the graph does
// not hold.
static bool is_as_bound(const struct gb_sched_plan * p) {
    for (int i = 0; i < p->n_ids; i++) {
        const struct ggml_tensor * t = p->nodes[i];
        if (t->data != p->key[i].data || t->buffer != p->key[i].buffer || !same_structure(t, &p->key[i])) {
            return false;
        }
    }
    return true;
}

// The user's buffers still are what they were. (A buffer of another scheduler may have been retired; one of the user's
// may have been freed and another one made at its address.)
static bool has_same_buffers(const struct gb_sched_plan * p) {
    for (int i = 0; i < p->n_ids; i++) {
        const struct ggml_backend_buffer * buffer = p->ids.data[i].home == GB_HOME_USER ? p->key[i].buffer : NULL;
        if (buffer == NULL) {
            continue;
        }
        const enum ggml_backend_buffer_usage usage = GB_READ_RELAXED(buffer->usage);
        if ((usage == GB_USAGE_SCHED && buffer->size == 0) || buffer->buft != p->ids.data[i].buft ||
            p->weight[i] != (usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS)) {
            return false;
        }
    }
    return true;
}

static bool has_same_users(const struct ggml_backend_sched * s, const struct gb_sched_plan * p) {
    for (int i = 0; i < p->n_ids && (s->user.n > 0 || p->has_users); i++) {
        if (gb_sched_user_of(s, p->nodes[i]) != p->user[i]) {
            return false;
        }
    }
    return true;
}

static bool arenas_are_current(const struct ggml_backend_sched * s, const struct gb_sched_plan * p) {
    size_t k = 0;
    for (size_t i = 0; i < p->chunks.n; i++) {
        const struct gb_chunk_need * need = &p->chunks.data[i];
        if (!need->leafs && p->mems.data[k++] != s->devices[need->backend].arena.data[need->chunk]) {
            return false;
        }
    }
    return true;
}

static bool has_same_homes(struct ggml_backend_sched * s, const struct gb_sched_plan * p) {
    for (int i = 0; i < p->n_ids; i++) {
        const struct gb_id * id = &p->ids.data[i];
        enum gb_home         home;
        if (id->root != i) {
            continue;
        }
        if (!gb_sched_find_home(s, id->tensor, id->computes, p->user[i], &home)) {
            return false; // making a plan reports it again, and better once than not at all
        }
        // A leaf of this very plan that is where the plan put it.
        const bool own = id->home == GB_HOME_LEAF && home == GB_HOME_SHARED && id->mem &&
                         id->mem->buffer == id->tensor->buffer && p->key[i].data == id->tensor->data;
        if (home != id->home && !own) {
            return false;
        }
        if (home >= GB_HOME_SHARED && !own &&
            (id->tensor->buffer != p->key[i].buffer || id->tensor->data != p->key[i].data)) {
            return false;
        }
    }
    return true;
}

static bool is_structure_of(const struct gb_sched_plan * p, const struct ggml_cgraph * graph) {
    if (!same_lists(p, graph)) {
        return false;
    }
    for (int i = 0; i < p->n_ids; i++) {
        if (!same_structure(p->nodes[i], &p->key[i])) {
            return false;
        }
    }
    return true;
}

static bool fits_as_it_is(const struct ggml_backend_sched * s, const struct gb_sched_plan * p,
    const struct ggml_cgraph * graph) {
    return p->bound && !p->stale && p->policy == s->policy && p->n_copies == s->n_copies && same_lists(p, graph) &&
           is_as_bound(p) && has_same_users(s, p) && has_same_buffers(p) && arenas_are_current(s, p);
}

static bool fits_when_bound(struct ggml_backend_sched * s, const struct gb_sched_plan * p,
    const struct ggml_cgraph * graph) {
    return p->policy == s->policy && p->n_copies == s->n_copies && is_structure_of(p, graph) && has_same_users(s, p) &&
           has_same_homes(s, p) && has_same_buffers(p);
}

// A plan that others take their offsets from is in use, too.
static void note_model(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    s->stats.n_plans_made += p->model == NULL;
    s->stats.n_plans_replayed += p->model != NULL;
    for (size_t k = 0; p->model && k < s->plans.n; k++) {
        if (s->plans.data[k] == p->model) {
            gb_sched_move_to_front(s, k);
            break;
        }
    }
    p->model = NULL;
}

// The plan of the graph, made if there is none; at the front of the list.
static enum ggml_status find_or_make(struct ggml_backend_sched * s, struct ggml_cgraph * graph,
    struct gb_sched_plan ** plan) {
    for (size_t k = 0; k < s->plans.n; k++) {
        if (fits_when_bound(s, s->plans.data[k], graph)) {
            gb_sched_move_to_front(s, k);
            *plan = s->plans.data[0];
            s->stats.n_plans_bound++;
            return GGML_STATUS_SUCCESS;
        }
    }
    GB_TRY(make_plan(s, graph, false, plan));
    note_model(s, *plan);
    return gb_sched_add_plan(s, *plan);
}

// A leaf that the scheduler placed for a plan that it gave up since. (After a reset that is what the user asked for.)
static enum ggml_status check_contents(const struct ggml_backend_sched * s, const struct gb_sched_plan * p) {
    for (int i = 0; i < p->n_ids; i++) {
        const struct ggml_tensor * t   = p->nodes[i];
        const struct gb_mem *      mem = p->ids.data[i].home == GB_HOME_LEAF ? gb_sched_mem_of(s, t->buffer) : NULL;
        GB_FAIL_IF(mem && mem->kind == GB_MEM_LEAFS && mem->epoch == s->n_resets && !gb_sched_leaf_is_bound(s, t),
            GGML_STATUS_INVALID_STATE,
            "ggml_backend_sched: tensor '%s' has lost its content, because %d other graphs were given to the scheduler "
            "since: allocate the graph "
            "again and set it, or place it in a buffer of its own",
            t->name, GB_SCHED_PLANS_MAX);
    }
    return GGML_STATUS_SUCCESS;
}

// What a backend prepared may have looked behind addresses. Where a buffer was freed since, another one may have them
// now.
static enum ggml_status renew_prepared(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    const unsigned n_freed = gb_buffers_freed();
    if (p->foreign && p->n_freed != n_freed) {
        GB_TRY(gb_sched_wait_first(s)); // it may be running
        gb_sched_drop_prepared(s, p);
    }
    p->n_freed = n_freed;
    return GGML_STATUS_SUCCESS;
}

static struct gb_sched_plan * find_as_it_is(struct ggml_backend_sched * s, const struct ggml_cgraph * graph) {
    for (size_t k = 0; k < s->plans.n; k++) {
        if (fits_as_it_is(s, s->plans.data[k], graph)) {
            gb_sched_move_to_front(s, k);
            return s->plans.data[0];
        }
    }
    return NULL;
}

static enum ggml_status make_ready(struct ggml_backend_sched * s, struct gb_sched_plan * p, enum gb_prepare what) {
    if (what == GB_PREPARE_PLAN) {
        return GGML_STATUS_SUCCESS;
    }
    if (what == GB_PREPARE_COMPUTE) {
        GB_TRY(check_contents(s, p));
    }
    GB_TRY(gb_sched_reserve_arenas(s, p));
    p->draft = false;
    if (what != GB_PREPARE_RESERVE && !gb_sched_take_stores(s, p)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_TRY(gb_sched_take_replicas(s, p));
    GB_TRY(gb_sched_make_events(s, p));
    GB_TRY(gb_sched_make_stages(s, p));
    return what == GB_PREPARE_RESERVE ? GGML_STATUS_SUCCESS : gb_sched_bind(s, p);
}

// The plan of a graph that is not bound as it is.
static enum ggml_status get_ready(struct ggml_backend_sched * s, struct ggml_cgraph * graph, enum gb_prepare what,
    struct gb_sched_plan ** plan) {
    const size_t n_plans = s->plans.n;
    gb_sched_drop_orphans(s);
    GB_TRY(find_or_make(s, graph, plan));
    (*plan)->draft |= what == GB_PREPARE_PLAN && s->plans.n > n_plans;
    enum ggml_status status = make_ready(s, *plan, what);
    if (status == GGML_STATUS_ALLOC_FAILED && !(*plan)->lean && (*plan)->copies.n > 0) { // with less comfort it may fit
        gb_sched_release_replicas(*plan);
        (*plan)->stale = true;
        if (s->plans.n > n_plans) {
            gb_sched_drop_first(s);
        }
        struct gb_sched_plan * lean;
        GB_TRY(make_plan(s, graph, true, &lean));
        lean->model = NULL; // not counted a second time
        GB_TRY(gb_sched_add_plan(s, lean));
        *plan  = lean;
        status = make_ready(s, lean, what);
    }
    if (status != GGML_STATUS_SUCCESS && s->plans.n > n_plans) { // not worth pushing out others
        gb_sched_drop_first(s);
    }
    return status;
}

static const char * how_found(const struct ggml_backend_sched_stats * before,
    const struct ggml_backend_sched_stats *                           now) {
    return now->n_plans_made > before->n_plans_made           ? "made"
           : now->n_plans_replayed > before->n_plans_replayed ? "replayed"
           : now->n_plans_bound > before->n_plans_bound       ? "bound"
                                                              : "found";
}

static enum ggml_status find_or_get_ready(struct ggml_backend_sched * s, struct ggml_cgraph * graph,
    enum gb_prepare what, struct gb_sched_plan ** plan) {
    struct gb_sched_plan * p = find_as_it_is(s, graph);
    s->stats.n_plans_found += p != NULL;
    if (p == NULL || p != s->current) {
        GB_TRY(gb_sched_wait_first(s));
    }
    if (p == NULL) {
        GB_TRY(get_ready(s, graph, what, &p));
        gb_sched_drop_oldest(s);
    }
    GB_TRY(renew_prepared(s, p));
    s->current = what <= GB_PREPARE_RESERVE ? s->current : p;
    s->last    = p;
    *plan      = p;
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_sched_prepare(struct ggml_backend_sched * s, struct ggml_cgraph * graph, enum gb_prepare what,
    struct gb_sched_plan ** plan) {
    const struct ggml_backend_sched_stats before = s->stats;
    const int64_t                         start  = gb_time_ns();
    const enum ggml_status                status = find_or_get_ready(s, graph, what, plan);
    s->stats.plan_ns += (uint64_t) (gb_time_ns() - start) - (s->stats.wait_ns - before.wait_ns);
    if (status == GGML_STATUS_SUCCESS && gb_sched_is_traced(s)) {
        gb_trace_plan(s, start, how_found(&before, &s->stats));
    }
    return status;
}
