// sched.c - public functions of the scheduler: each checks its arguments and forwards. query.c has
// the functions that describe a plan.
#include "sched/plan.h"

enum { PLAN_BUDGET_MAX_MS = 60000 };

// ------------------------------------------------------------------------------------------------------ life and death

ggml_backend_sched_t ggml_backend_sched_new(ggml_backend_t * backends, ggml_backend_buffer_type_t * bufts,
    int n_backends, size_t graph_size) {
    (void) graph_size; // everything grows
    GB_CHECK_ARG_RETURNING(backends, NULL);
    GB_FAIL_IF_RETURNING(n_backends <= 0, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'n_backends': needs at least 1, has %d", __func__, n_backends);
    return gb_sched_new(backends, bufts, n_backends);
}

void ggml_backend_sched_free(ggml_backend_sched_t sched) {
    if (sched != NULL && gb_sched_check_idle(sched, __func__) == GGML_STATUS_SUCCESS) {
        gb_sched_free(sched);
    }
}

enum ggml_status ggml_backend_sched_reset(ggml_backend_sched_t sched) {
    GB_CHECK_ARG(sched);
    GB_TRY(gb_sched_check_idle(sched, __func__));
    const struct gb_visit visit = gb_sched_enter(sched);
    return gb_sched_leave(sched, visit, gb_sched_reset(sched));
}

// ------------------------------------------------------------------------------------------------------------- queries

int ggml_backend_sched_get_n_backends(ggml_backend_sched_t sched) {
    GB_CHECK_ARG_RETURNING(sched, 0);
    return sched->n_backends;
}

ggml_backend_t ggml_backend_sched_get_backend(ggml_backend_sched_t sched, int i) {
    GB_CHECK_ARG_RETURNING(sched, NULL);
    GB_FAIL_IF_RETURNING(i < 0 || i >= sched->n_backends, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'i': needs 0 to %d, has %d", __func__, sched->n_backends - 1, i);
    return sched->devices[i].backend;
}

ggml_tallocr_t ggml_backend_sched_get_tallocr(ggml_backend_sched_t sched, ggml_backend_t backend) {
    GB_CHECK_ARG_RETURNING(sched, NULL);
    const int b = gb_sched_index_of(sched, backend, __func__);
    return b < 0 ? NULL : gb_sched_inputs(sched, b);
}

ggml_backend_buffer_t ggml_backend_sched_get_buffer(ggml_backend_sched_t sched, ggml_backend_t backend) {
    GB_CHECK_ARG_RETURNING(sched, NULL);
    const int b = gb_sched_index_of(sched, backend, __func__);
    if (b < 0) {
        return NULL;
    }
    const struct gb_sched_device * d = &sched->devices[b];
    if (sched->measured && (d->arena.n == 0 || d->arena.data[0] == NULL)) {
        // programs ask every backend for its size and do not expect NULL
        gb_sched_reserve_arena(sched, b, d->alignment);
    }
    return d->arena.n > 0 && d->arena.data[0] ? d->arena.data[0]->buffer : NULL;
}

size_t ggml_backend_sched_get_buffer_size(ggml_backend_sched_t sched, ggml_backend_t backend) {
    GB_CHECK_ARG_RETURNING(sched, 0);
    const int b = gb_sched_index_of(sched, backend, __func__);
    size_t size = 0;
    for (size_t i = 0; b >= 0 && i < sched->mems.n; i++) {
        size += sched->mems.data[i]->backend == b ? sched->mems.data[i]->size : 0;
    }
    return size;
}

enum ggml_status ggml_backend_sched_get_memory(ggml_backend_sched_t sched, ggml_backend_t backend, size_t * peak,
    size_t * no_reuse) {
    GB_CHECK_ARG(sched);
    const int b = gb_sched_index_of(sched, backend, __func__);
    if (b < 0) {
        return GGML_STATUS_INVALID_ARGUMENT;
    }
    const struct gb_sched_plan * p = gb_sched_last_plan(sched, __func__);
    if (p == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    const struct gb_backend_need * need = &p->layout.need[b];
    if (peak) {
        *peak = need->peak + need->leafs + need->replicas;
    }
    if (no_reuse) {
        *no_reuse = need->no_reuse + need->leafs + need->replicas;
    }
    return GGML_STATUS_SUCCESS;
}

// The id of a tensor in the last plan. -1: it is not in the plan, or the scheduler cannot be used.
static int id_in_last(const struct ggml_backend_sched * s, const struct ggml_tensor * t) {
    if (gb_sched_check_whole(s, "ggml_backend_sched") != GGML_STATUS_SUCCESS) {
        return -1;
    }
    const int64_t id = s->last ? gb_ptrmap_get(&s->last->in.map, t) : GB_PTRMAP_ABSENT;
    return id == GB_PTRMAP_ABSENT ? -1 : (int) id;
}

const char * ggml_backend_sched_explain(ggml_backend_sched_t sched, struct ggml_tensor * node) {
    GB_CHECK_ARG_RETURNING(sched, "");
    GB_CHECK_ARG_RETURNING(node, "");
    const int id = id_in_last(sched, node);
    const struct gb_sched_plan * p = sched->last;
    return id < 0 ? "" : gb_sched_explain(sched, &p->in, &p->assigned, &p->program, &p->report, id);
}

// --------------------------------------------------------------------------------------------------------- assignments

enum ggml_status ggml_backend_sched_set_node_backend(ggml_backend_sched_t sched, struct ggml_tensor * node,
    ggml_backend_t backend) {
    GB_CHECK_ARG(sched);
    GB_CHECK_ARG(node);
    if (backend == NULL) {
        const bool known = gb_ptrmap_get(&sched->chosen, node) != GB_PTRMAP_ABSENT;
        return !known || gb_ptrmap_set(&sched->chosen, node, -1) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    const int b = gb_sched_index_of(sched, backend, __func__);
    if (b < 0) {
        return GGML_STATUS_INVALID_ARGUMENT;
    }
    return gb_ptrmap_set(&sched->chosen, node, b) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

ggml_backend_t ggml_backend_sched_get_node_backend(ggml_backend_sched_t sched, struct ggml_tensor * node) {
    GB_CHECK_ARG_RETURNING(sched, NULL);
    GB_CHECK_ARG_RETURNING(node, NULL);
    int b = gb_sched_chosen_for(sched, node);
    if (b < 0) {
        const int id = id_in_last(sched, node);
        b = id < 0 ? -1 : sched->last->assigned.to[id].backend;
    }
    return b < 0 ? NULL : sched->devices[b].backend;
}

enum ggml_status ggml_backend_sched_set_policy(ggml_backend_sched_t sched, enum ggml_backend_sched_policy policy) {
    GB_CHECK_ARG(sched);
    GB_FAIL_IF((int) policy < GGML_BACKEND_SCHED_POLICY_WEIGHTS || policy > GGML_BACKEND_SCHED_POLICY_COST,
        GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'policy': %d is neither WEIGHTS (0) nor SOURCES (1) nor COST (2)",
        __func__, (int) policy);
    sched->policy = policy == GGML_BACKEND_SCHED_POLICY_SOURCES ? GB_ASSIGN_SOURCES
                    : policy == GGML_BACKEND_SCHED_POLICY_COST  ? GB_ASSIGN_COST
                                                                : GB_ASSIGN_WEIGHTS;
    return GGML_STATUS_SUCCESS;
}

enum ggml_status ggml_backend_sched_set_eval_callback(ggml_backend_sched_t sched,
    ggml_backend_sched_eval_callback callback, void * user_data) {
    GB_CHECK_ARG(sched);
    sched->callback = callback;
    sched->callback_data = user_data;
    return GGML_STATUS_SUCCESS;
}

enum ggml_status ggml_backend_sched_set_n_copies(ggml_backend_sched_t sched, int n) {
    enum { MAX = 64 };
    GB_CHECK_ARG(sched);
    GB_FAIL_IF(n < 1 || n > MAX, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'n': needs 1 to %d, has %d", __func__, MAX,
        n);
    GB_TRY(gb_sched_check_idle(sched, __func__));
    sched->n_copies = n;
    return GGML_STATUS_SUCCESS;
}

int ggml_backend_sched_get_n_copies(ggml_backend_sched_t sched) {
    GB_CHECK_ARG_RETURNING(sched, 0);
    return sched->n_copies;
}

enum ggml_status ggml_backend_sched_set_costs(ggml_backend_sched_t sched,
    const struct ggml_backend_cost_table * table) {
    GB_CHECK_ARG(sched);
    GB_FAIL_IF(sched->in_callback, GGML_STATUS_INVALID_STATE, "%s: called from the scheduler's own callback", __func__);
    struct gb_costs * costs = NULL;
    if (table) {
        GB_TRY(gb_costs_new(sched, table, &costs));
    }
    const enum ggml_status status = gb_sched_wait(sched);
    gb_sched_drop_plans(sched);
    sched->n_resets++;
    gb_costs_free(sched->costs);
    sched->costs = costs;
    return status;
}

enum ggml_status ggml_backend_sched_set_trace(ggml_backend_sched_t sched, bool trace) {
    GB_CHECK_ARG(sched);
    GB_FAIL_IF(sched->in_callback, GGML_STATUS_INVALID_STATE, "%s: called from the scheduler's own callback", __func__);
    if (!trace) {
        gb_trace_stop(sched->trace);
        return GGML_STATUS_SUCCESS;
    }
    struct gb_trace * fresh = gb_trace_new(sched->n_backends, true);
    if (fresh == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    const enum ggml_status status = gb_sched_wait(sched);
    gb_trace_free(sched->trace);
    sched->trace = fresh;
    return status;
}

enum ggml_status ggml_backend_sched_set_check(ggml_backend_sched_t sched, bool check) {
    GB_CHECK_ARG(sched);
    GB_TRY(gb_sched_check_idle(sched, __func__));
    GB_TRY(gb_sched_wait(sched));
    return gb_sched_set_validator(sched, check);
}

enum ggml_status ggml_backend_sched_set_plan_budget(ggml_backend_sched_t sched, int64_t budget_ms) {
    GB_CHECK_ARG(sched);
    GB_FAIL_IF(budget_ms < 0 || budget_ms > PLAN_BUDGET_MAX_MS, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'budget_ms': %lld is not between 0 and %d", __func__, (long long) budget_ms,
        (int) PLAN_BUDGET_MAX_MS);
    GB_TRY(gb_sched_check_idle(sched, __func__));
    sched->plan_budget_ms = budget_ms;
    return GGML_STATUS_SUCCESS;
}

// -------------------------------------------------------------------------------------------------------------- graphs

// Checks the arguments of all functions that take a graph, and prepares the plan.
static enum ggml_status prepare(ggml_backend_sched_t sched, struct ggml_cgraph * graph, enum gb_prepare what,
    const char * func, struct gb_sched_plan ** plan) {
    GB_FAIL_IF(sched == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'sched' is NULL", func);
    GB_FAIL_IF(graph == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'graph' is NULL", func);
    GB_TRY(gb_sched_check_idle(sched, func));
    GB_TRY(gb_sched_check_backends(sched, func));
    GB_FAIL_IF(graph->n_nodes < 0 || graph->n_leafs < 0 || (graph->n_nodes > 0 && graph->nodes == NULL) ||
                   (graph->n_leafs > 0 && graph->leafs == NULL),
        GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'graph': has %d nodes and %d leafs", func, graph->n_nodes,
        graph->n_leafs);
    const struct gb_visit visit = gb_sched_enter(sched);
    return gb_sched_leave(sched, visit, gb_sched_prepare(sched, graph, what, plan));
}

// Prepares the plan of the graph, issues a run, and waits for it if `wait` is true.
static enum ggml_status run(ggml_backend_sched_t sched, struct ggml_cgraph * graph, bool wait, const char * func) {
    struct gb_sched_plan * plan;
    GB_TRY(prepare(sched, graph, GB_PREPARE_COMPUTE, func, &plan));
    const struct gb_visit visit = gb_sched_enter(sched);
    const enum ggml_status status = gb_sched_run(sched, &plan->assigned, &plan->waits, &plan->binding, func);
    return gb_sched_leave(sched, visit, status == GGML_STATUS_SUCCESS && wait ? gb_sched_wait(sched) : status);
}

// Notes how much memory programs will need from get_tallocr: what they placed while measuring, or
// the leafs without memory.
static void note_inputs_need(struct ggml_backend_sched * s, const struct gb_sched_plan * p) {
    for (int b = 0; b < s->n_backends; b++) {
        struct gb_sched_device * d = &s->devices[b];
        const size_t seen = d->measure ? ggml_tallocr_max_size(d->measure) : 0;
        d->inputs_need = GB_MAX(d->inputs_need, GB_MAX(seen, p->layout.need[b].leafs));
    }
    s->measured = true;
}

enum ggml_status ggml_backend_sched_reserve(ggml_backend_sched_t sched, struct ggml_cgraph * measure_graph) {
    struct gb_sched_plan * plan;
    GB_TRY(prepare(sched, measure_graph, GB_PREPARE_RESERVE, __func__, &plan));
    note_inputs_need(sched, plan);
    return plan->binding.is_bound ? GGML_STATUS_SUCCESS
                                  : gb_sched_reserve_stores(sched, &plan->binding); // a bound plan has them
}

// Programs that measure place inputs with ggml_backend_sched_get_tallocr, so this reserves no
// memory for inputs.
enum ggml_status ggml_backend_sched_init_measure(ggml_backend_sched_t sched, struct ggml_cgraph * measure_graph) {
    struct gb_sched_plan * plan;
    GB_TRY(prepare(sched, measure_graph, GB_PREPARE_RESERVE, __func__, &plan));
    note_inputs_need(sched, plan);
    return GGML_STATUS_SUCCESS;
}

enum ggml_status ggml_backend_sched_plan_graph(ggml_backend_sched_t sched, struct ggml_cgraph * graph) {
    struct gb_sched_plan * plan;
    return prepare(sched, graph, GB_PREPARE_PLAN, __func__, &plan);
}

enum ggml_status ggml_backend_sched_alloc_graph(ggml_backend_sched_t sched, struct ggml_cgraph * graph) {
    struct gb_sched_plan * plan;
    return prepare(sched, graph, GB_PREPARE_BIND, __func__, &plan);
}

enum ggml_status ggml_backend_sched_graph_compute_async(ggml_backend_sched_t sched, struct ggml_cgraph * graph) {
    return run(sched, graph, false, __func__);
}

enum ggml_status ggml_backend_sched_graph_compute(ggml_backend_sched_t sched, struct ggml_cgraph * graph) {
    return run(sched, graph, true, __func__);
}

enum ggml_status ggml_backend_sched_synchronize(ggml_backend_sched_t sched) {
    GB_CHECK_ARG(sched);
    GB_TRY(gb_sched_check_whole(sched, __func__));
    const struct gb_visit visit = gb_sched_enter(sched);
    return gb_sched_leave(sched, visit, gb_sched_wait_for_callers(sched));
}
