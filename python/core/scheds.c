// scheds.c - schedulers: owning their buffers, choices of backends, planning, computing, resetting (scheds.h).
#include "scheds.h"

#include <string.h>

#include "data.h"
#include "extension.h"
#include "placement.h"
#include "profiles.h"
#include "sched_impl.h"

struct gbpy_sched * gbpy_sched_of(const struct gbpy_handle * handle, const char * what) {
    return (struct gbpy_sched *) gbpy_object_of(handle, what);
}

int gbpy_lock_sched(struct gbpy_locks * locks, struct gbpy_sched * s, const char * what) {
    return gbpy_lock_all(locks, what, s->members, s->n_members, false);
}

// ---------------------------------------------------------------------------------------------------- opening, freeing

bool gbpy_own_new(struct gbpy_sched * s) {
    for (ggml_backend_buffer_t buffer; (buffer = gb_sched_buffer_at(s->memory.head.ptr, s->n_handles)) != NULL;) {
        if (!gbpy_own(&s->memory, buffer)) {
            return false;
        }
        s->n_handles++;
    }
    return true;
}

static void forget_choices(struct gbpy_sched * s) {
    for (size_t i = 0; i < s->choices.n; i++) {
        gbpy_weak_unref(&s->choices.data[i].context->memory.head);
    }
    s->choices.n = 0;
}

static void forget_plan(struct gbpy_sched * s) {
    struct gbpy_graph * graph = s->graph;
    gbpy_requests owners = s->owners;
    s->graph = NULL;
    s->dirty = true;
    s->dirty_choices = false;
    s->ran = false;
    s->inputs_are_set = false;
    memset(&s->owners, 0, sizeof(s->owners));
    for (size_t i = 0; i < owners.n; i++) {
        gbpy_unref(owners.data[i].object);
    }
    gb_vec_free(&owners);
    if (graph != NULL) {
        gbpy_unref(&graph->head);
    }
}

// Does not free the C scheduler if tensors may point to buffer handles that could not be kept.
void gbpy_free_sched(struct gbpy_object * o, struct gbpy_object ** dead) {
    struct gbpy_sched * s = (struct gbpy_sched *) o;
    if (!o->broken && o->ptr != NULL) {
        gbpy_finish_runs(s);
    }
    if (!o->broken && (o->ptr == NULL || gbpy_own_new(s))) {
        if (o->ptr != NULL) {
            ggml_clear_error();
            ggml_backend_sched_free(o->ptr);
        }
        forget_plan(s);
        forget_choices(s);
        gb_vec_free(&s->choices);
        gb_free(s->members);
    }
    gbpy_drop_profile(&s->profile, dead);
}

int gbpy_open_sched(struct gbpy_handle * handle, struct gbpy_handle ** backends,
    struct ggml_backend_buffer_type ** bufts, int n) {
    struct gbpy_sched * s = gbpy_object_new(GBPY_SCHED);
    ggml_backend_t * raw = gb_calloc((size_t) n, sizeof(*raw));
    if (s == NULL || raw == NULL || (s->members = gb_calloc((size_t) n + 1, sizeof(*s->members))) == NULL) {
        gb_free(raw);
        gbpy_unref((struct gbpy_object *) s);
        return GGML_STATUS_ALLOC_FAILED;
    }
    struct gbpy_object * o = &s->memory.head;
    int status = GGML_STATUS_SUCCESS;
    s->memory.scratch = s->memory.blank = true;
    s->n_copies = 1;
    s->dirty = true;
    s->members[s->n_members++] = (struct gbpy_request){ .object = o, .write = true };
    for (int i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
        struct gbpy_object * b = gbpy_object_of(backends[i], "Scheduler");
        if (b == NULL || !gbpy_add_need(o, b)) {
            status = b == NULL ? GGML_STATUS_INVALID_STATE : GGML_STATUS_ALLOC_FAILED;
            break;
        }
        s->members[s->n_members++] = (struct gbpy_request){ .object = b, .write = true };
        raw[i] = b->ptr;
    }
    if (status == GGML_STATUS_SUCCESS) {
        o->ptr = ggml_backend_sched_new(raw, bufts, n, GGML_DEFAULT_GRAPH_SIZE);
        status = o->ptr != NULL ? GGML_STATUS_SUCCESS : (int) ggml_last_status();
    }
    gb_free(raw);
    if (status != GGML_STATUS_SUCCESS) {
        gbpy_unref(o);
        return status;
    }
    handle->object = o;
    return GGML_STATUS_SUCCESS;
}

// ------------------------------------------------------------------------------------------------------------ planning

// Drops choices for nodes whose context was freed, because another tensor may have the address by now.
static int drop_dead_choices(struct gbpy_sched * s) {
    size_t n = 0;
    int status = GGML_STATUS_SUCCESS;
    for (size_t i = 0; i < s->choices.n; i++) {
        const struct gbpy_choice a = s->choices.data[i];
        if (atomic_load(&a.context->memory.head.refs) > 0) {
            s->choices.data[n++] = a;
            continue;
        }
        const int one = ggml_backend_sched_set_node_backend(s->memory.head.ptr, a.node, NULL);
        status = status == GGML_STATUS_SUCCESS ? one : status;
        gbpy_weak_unref(&a.context->memory.head);
    }
    s->choices.n = n;
    return status;
}

static bool has_lost_content(const struct gbpy_sched * s, const struct ggml_tensor * leaf) {
    if (leaf->op != GGML_OP_NONE || leaf->view_src != NULL || leaf->buffer == NULL || gbpy_stamp(leaf) == 0 ||
        ggml_nelements(leaf) == 0) {
        return false;
    }
    if (gbpy_has_lost_memory(leaf)) {
        return true;
    }
    const struct gbpy_memory * owner = leaf->buffer->binding;
    if (owner == NULL || owner->head.kind != GBPY_SCHED) {
        return false;
    }
    return owner == &s->memory
               ? !gb_sched_leaf_is_bound(owner->head.ptr, leaf) && !gb_sched_result_is_alive(owner->head.ptr, leaf)
               : !gbpy_is_own(owner, leaf);
}

// The memory was freed, or belongs to another scheduler that has used it for another graph. The caller has locked
// that scheduler.
static void unplace_foreign(const struct gbpy_sched * s, struct ggml_tensor * t) {
    const struct gbpy_memory * owner = gbpy_owner_of(t);
    if (owner != NULL && owner->head.kind == GBPY_SCHED && owner != &s->memory && !gbpy_has_lost_memory(t) &&
        !gbpy_is_own(owner, t)) {
        gbpy_unplace(t);
    } else {
        gbpy_unplace_lost(t);
    }
}

// Inputs that lost their memory must be set again. Computing with them is an error; allocating takes them as unset.
static int settle_lost_inputs(const struct gbpy_sched * s, const struct gbpy_graph * g, bool computes,
    const char * what) {
    const struct ggml_cgraph * graph = g->head.ptr;
    for (int i = 0; i < graph->n_leafs; i++) {
        struct ggml_tensor * leaf = graph->leafs[i];
        if (!has_lost_content(s, leaf)) {
            continue;
        }
        if (gbpy_is_constant(leaf)) {
            continue; // written again when it gets memory
        }
        GB_FAIL_IF(computes, GGML_STATUS_INVALID_STATE,
            "%s: the input '%s' was set, but its memory was given to other graphs since (a scheduler remembers the "
            "last %d), or the scheduler was reset: allocate the graph, set "
            "it again and compute, or give it memory of its own (Context.allocate)",
            what, leaf->name, GB_SCHED_PLANS_MAX);
        gbpy_set_stamp(leaf, 0);
    }
    for (int v = 1; v >= 0; v--) {
        for (int i = 0; i < graph->n_leafs + graph->n_nodes; i++) {
            struct ggml_tensor * t = i < graph->n_leafs ? graph->leafs[i] : graph->nodes[i - graph->n_leafs];
            if ((t->view_src != NULL) == (v == 1)) { // a view finds its buffer through its source
                unplace_foreign(s, t);
            }
            if (v == 0 && t->view_src != NULL) {
                unplace_foreign(s, t->view_src);
            }
        }
    }
    return GGML_STATUS_SUCCESS;
}

static void flag_all(struct ggml_cgraph * graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        ggml_set_output(gb_root(graph->nodes[i]));
    }
}

static uint64_t plans_of(const struct ggml_backend_sched * sched) {
    return gb_sched_n_plans_made(sched) + gb_sched_n_plans_bound(sched);
}

// Keeps references to the other owners of memory that the planned graph uses. Under the mutex.
static bool hold_owners(struct gbpy_sched * s, const struct gbpy_graph * g) {
    if (!gb_vec_reserve(&s->owners, g->memory.n)) {
        return false;
    }
    for (size_t i = 0; i < g->memory.n; i++) {
        if (g->memory.data[i].object != &s->memory.head) { // the scheduler must not keep itself
            gbpy_ref(g->memory.data[i].object);
            s->owners.data[s->owners.n++] = g->memory.data[i];
        }
    }
    return true;
}

// Sets GBPY_PLANNED if plans were made since the last report.
static void report_plans(struct gbpy_sched * s, int * how) {
    const uint64_t made = gb_sched_n_plans_made(s->memory.head.ptr);
    if (*how & GBPY_QUIET) {
        return;
    }
    *how |= made != s->n_reported ? GBPY_PLANNED : 0;
    s->n_reported = made;
}

// Calls the C scheduler to plan, in one of three forms.
static int call_planner(struct gbpy_sched * s, struct gbpy_graph * g, enum gbpy_plan_how kind) {
    struct ggml_backend_sched * sched = s->memory.head.ptr;
    if (!gbpy_own_new(s)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (int i = 0; i < g->n_contexts; i++) { // before their tensors point to buffer handles of this scheduler
        if (!gbpy_note_memory(g->contexts[i], &s->memory)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    if (s->keep_all) {
        flag_all(g->head.ptr);
    }
    gb_sched_hold(sched, atomic_load(&s->memory.head.n_pins) > 0);
    int status = drop_dead_choices(s);
    if (status == GGML_STATUS_SUCCESS) {
        status = kind == GBPY_PLAN_ALLOCATE ? ggml_backend_sched_alloc_graph(sched, g->head.ptr)
                 : kind == GBPY_PLAN_ONLY   ? ggml_backend_sched_plan_graph(sched, g->head.ptr)
                                            : ggml_backend_sched_reserve(sched, g->head.ptr);
    }
    if (!gbpy_own_new(s) && status == GGML_STATUS_SUCCESS) {
        status = GGML_STATUS_ALLOC_FAILED;
    }
    return status;
}

// Makes g the planned graph: all its tensors then have memory. With locks on all memory that it uses, and on its
// contexts to place tensors.
static int plan_inside(struct gbpy_sched * s, struct gbpy_graph * g, bool computes, const char * what, int * how) {
    const uint64_t before = plans_of(s->memory.head.ptr);
    const bool same = s->graph == g && !s->dirty;
    const bool was_set = s->inputs_are_set, had_run = s->ran;
    const long long version = s->version;
    GB_TRY(settle_lost_inputs(s, g, computes, what));
    gbpy_ref(&g->head);
    forget_plan(s);
    s->about = 0;
    int status = call_planner(s, g, GBPY_PLAN_ALLOCATE);
    const bool moved = status != GGML_STATUS_SUCCESS || plans_of(s->memory.head.ptr) != before;
    if (moved) {
        gbpy_note_move();
    }
    for (int i = 0; status == GGML_STATUS_SUCCESS && (moved || !same) && i < g->n_contexts; i++) {
        status = gbpy_upload_constants(g->contexts[i], &s->memory, NULL);
    }
    if (status == GGML_STATUS_SUCCESS) {
        gbpy_mutex_lock();
        status = gbpy_look_at_graph(g, what);
        if (status == GGML_STATUS_SUCCESS && !hold_owners(s, g)) {
            status = GGML_STATUS_ALLOC_FAILED;
        }
        s->epoch = g->epoch;
        gbpy_mutex_unlock();
    }
    if (status != GGML_STATUS_SUCCESS) {
        gbpy_unref(&g->head);
        return status;
    }
    s->graph = g;
    s->about = g->serial;
    s->n_nodes = ((struct ggml_cgraph *) g->head.ptr)->n_nodes;
    s->dirty = false;
    if (had_run && (!same || moved)) {
        s->replaced = true;
    }
    if (same && !moved) {
        s->ran = had_run;
        s->version = version;
        s->inputs_are_set = was_set;
    }
    report_plans(s, how);
    return GGML_STATUS_SUCCESS;
}

bool gbpy_is_planned(const struct gbpy_sched * s, const struct gbpy_graph * g) {
    return s->graph == g && !s->dirty && s->n_nodes == ((const struct ggml_cgraph *) g->head.ptr)->n_nodes &&
           s->epoch == gbpy_epoch_now();
}

// The context itself owns memory that the graph uses.
static bool holds_memory(const struct gbpy_graph * g, const struct gbpy_object * context) {
    for (size_t i = 0; i < g->memory.n; i++) {
        if (g->memory.data[i].object == context) {
            return true;
        }
    }
    return false;
}

int gbpy_lock_planned(struct gbpy_locks * locks, struct gbpy_sched * s, struct gbpy_graph * g, bool waits,
    bool computes, const char * what, int * how) {
    // These fields are read without a lock on the scheduler. A thread that changes them holds a lock, so taking the
    // locks would fail.
    gbpy_mutex_lock();
    const bool entered = s->memory.head.writer == NULL && gbpy_is_planned(s, g) &&
                         (computes || s->about == g->serial) &&
                         gbpy_try_lock_graph(locks, s->members, s->n_members, &s->owners, s->epoch);
    gbpy_mutex_unlock();
    int status = GGML_STATUS_SUCCESS;
    if (!entered) {
        status = gbpy_lock_graph(locks, g, s->members, s->n_members, true, what);
        if (status == GGML_STATUS_SUCCESS && (waits || !gbpy_is_planned(s, g))) {
            status = gbpy_finish_earlier_runs(s);
        }
        if (status == GGML_STATUS_SUCCESS && !s->has_pending_runs) {
            status = plan_inside(s, g, computes, what, how);
        }
        for (int i = 0; status == GGML_STATUS_SUCCESS && i < g->n_contexts; i++) {
            struct gbpy_object * c = &g->contexts[i]->memory.head;
            if (!holds_memory(g, c)) {
                gbpy_unlock_one(locks, c);
            }
        }
    }
    if (status == GGML_STATUS_SUCCESS && computes && !s->inputs_are_set) {
        status = gbpy_check_inputs(s->graph->head.ptr, what);
        s->inputs_are_set = status == GGML_STATUS_SUCCESS;
    }
    if (status != GGML_STATUS_SUCCESS) {
        gbpy_unlock(locks);
    }
    return status;
}

int gbpy_sched_plan(struct gbpy_handle * sched, struct gbpy_handle * graph, int kind, int * how) {
    static const char * const names[] = { "Scheduler.allocate", "Scheduler.prepare", "Scheduler.reserve" };
    const char * what = names[kind];
    struct gbpy_sched * s = gbpy_sched_of(sched, what);
    struct gbpy_graph * g = gbpy_graph_of(graph, what);
    struct gbpy_locks locks = { 0 };
    if (s == NULL || g == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    if (kind == GBPY_PLAN_ALLOCATE) {
        const int status = gbpy_lock_planned(&locks, s, g, true, false, what, how);
        gbpy_unlock(&locks);
        return status;
    }
    GB_TRY(gbpy_lock_graph(&locks, g, s->members, s->n_members, true, what));
    int status = gbpy_finish_earlier_runs(s);
    if (status == GGML_STATUS_SUCCESS && !(kind == GBPY_PLAN_ONLY && gbpy_is_planned(s, g) && s->about == g->serial)) {
        if (kind == GBPY_PLAN_RESERVE) {
            forget_plan(s);
        }
        s->about = 0;
        status = settle_lost_inputs(s, g, false, what);
        status = status == GGML_STATUS_SUCCESS ? call_planner(s, g, (enum gbpy_plan_how) kind) : status;
        s->about = status == GGML_STATUS_SUCCESS ? g->serial : 0;
        if (kind == GBPY_PLAN_RESERVE) {
            gbpy_note_move();
        }
        s->dirty_choices = false;
        report_plans(s, how);
    }
    gbpy_unlock(&locks);
    return status;
}

// ----------------------------------------------------------------------------------------------------------- computing

struct eval_shim {
    struct gbpy_sched * sched;
    bool (*eval)(struct ggml_tensor *, bool, void *);
    void * data;
    bool no_memory; // it ended the run, because memory ran out
};

// The run may have planned again, because a later graph made a node an output. The new buffers have no owner then.
static bool show(struct ggml_tensor * t, bool ask, void * data) {
    struct eval_shim * shim = data;
    if (!ask && !gbpy_own_new(shim->sched)) {
        shim->no_memory = true;
        return false;
    }
    shim->sched->shown = ask ? NULL : t;
    const bool answer = shim->eval(t, ask, shim->data);
    shim->sched->shown = NULL;
    return answer;
}

int gbpy_sched_compute(struct gbpy_handle * sched, struct gbpy_handle * graph, struct gbpy_run * run,
    bool (*eval)(struct ggml_tensor *, bool, void *), void * eval_data, int * how) {
    static const char what[] = "Scheduler.compute";
    struct gbpy_request held[8];
    struct gbpy_locks locks = { .held = held, .capacity = 8, .borrowed = true };
    struct gbpy_sched * s = gbpy_sched_of(sched, what);
    struct gbpy_graph * g = gbpy_graph_of(graph, what);
    if (s == NULL || g == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    int status = gbpy_lock_planned(&locks, s, g, true, true, what, how);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    struct ggml_backend_sched * raw = s->memory.head.ptr;
    const long long version = atomic_load(&gbpy_sets);
    void * outer = gb_run();
    struct gbpy_run plain = { .owner = locks.owner };
    run = run != NULL ? run : &plain;
    run->owner = locks.owner;
    s->ran = false;
    s->about = g->serial;
    for (int i = 0; i < gbpy_n_backends(s); i++) {
        gbpy_begin_stop(gbpy_backend_at(s, i));
    }
    struct eval_shim shim = { s, eval, eval_data, false };
    if (eval != NULL) {
        ggml_backend_sched_set_eval_callback(raw, show, &shim);
    }
    if (run != &plain) {
        gbpy_forget_results_now(g); // callbacks may read results
    }
    s->running = true;
    struct gbpy_recording recording;
    gbpy_begin_recording(&recording, s, g);
    gb_set_run(run);
    status = ggml_backend_sched_graph_compute(raw, g->head.ptr);
    gb_set_run(outer);
    gbpy_end_recording(&recording, run->stopped == 0);
    s->running = false;
    if (eval != NULL) {
        ggml_backend_sched_set_eval_callback(raw, NULL, NULL);
    }
    for (int i = 0; i < gbpy_n_backends(s); i++) {
        gbpy_end_stop(gbpy_backend_at(s, i));
    }
    const bool owned = gbpy_own_new(s);
    status = gbpy_outcome_of(run, status);
    if (shim.no_memory && status == GGML_STATUS_ABORTED) {
        status = gb_fail(GGML_STATUS_ALLOC_FAILED, "%s: memory ran out before a callback could read a result", what);
    }
    if (status == GGML_STATUS_SUCCESS) {
        s->ran = true;
        s->replaced = false;
        s->version = version;
        status = owned ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    gbpy_unlock_after(&locks, status == GGML_STATUS_SUCCESS ? gbpy_note_results : gbpy_forget_results, g, version);
    return status;
}

int gbpy_sched_step(struct gbpy_handle * sched, struct gbpy_handle * graph, struct gbpy_run * run,
    const struct gbpy_step * step, int * how) {
    int planned = *how;
    GB_TRY(gbpy_sched_plan(sched, graph, GBPY_PLAN_ALLOCATE, &planned));
    for (int i = 0; i < step->n_inputs; i++) {
        const struct gbpy_input * in = &step->inputs[i];
        GB_TRY(gbpy_write_all(in->context, in->tensor, in->data, in->size, in->tensor->name));
    }
    const int status = gbpy_sched_compute(sched, graph, run, NULL, NULL, how);
    *how |= planned;
    GB_TRY(status);
    return step->k == 0 ? GGML_STATUS_SUCCESS
                        : gbpy_read_top(step->context, step->result, step->k, step->ids, step->values, "the result");
}

// ------------------------------------------------------------------------------------------------------------ the rest

int gbpy_sched_reset(struct gbpy_handle * sched) {
    struct gbpy_locks locks = { 0 };
    struct gbpy_sched * s = gbpy_sched_of(sched, "Scheduler.reset");
    if (s == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(gbpy_lock_sched(&locks, s, "Scheduler.reset"));
    int status = gbpy_finish_runs(s);
    if (status != GBPY_INTERRUPTED && !gbpy_own_new(s)) {
        status = GGML_STATUS_ALLOC_FAILED;
    } else if (status != GBPY_INTERRUPTED) {
        const int reset = ggml_backend_sched_reset(s->memory.head.ptr);
        // the interrupt has already reported that runs were cancelled
        status = status == GGML_STATUS_SUCCESS && reset != GGML_STATUS_ABORTED ? reset : status;
        forget_plan(s);
        forget_choices(s);
        s->about = 0;
        gbpy_note_move();
    }
    gbpy_unlock(&locks);
    return status;
}

int gbpy_sched_close(struct gbpy_handle * sched) {
    struct gbpy_locks locks = { 0 };
    struct gbpy_sched * s = sched != NULL ? (struct gbpy_sched *) sched->object : NULL;
    if (s == NULL) {
        return GGML_STATUS_SUCCESS;
    }
    int status = GGML_STATUS_SUCCESS;
    // otherwise one of its own callbacks closes it, and its memory is freed when the computation ends
    if (!gbpy_is_mine(sched)) {
        status = gbpy_lock_sched(&locks, s, "Scheduler.close");
        if (status == GBPY_INTERRUPTED || (status != GGML_STATUS_SUCCESS && gbpy_works_for(s))) {
            return status; // not closed yet
        }
        if (status == GGML_STATUS_SUCCESS) {
            status = gbpy_finish_runs(s);
            if (gbpy_own_new(s)) {
                ggml_backend_sched_reset(s->memory.head.ptr);
            }
            forget_plan(s);
        } else {
            ggml_clear_error();
            status = GGML_STATUS_SUCCESS;
        }
    }
    gbpy_close(sched); // before another thread can start a run that nobody would wait for
    gbpy_unlock(&locks);
    return status;
}

int gbpy_sched_set_backend(struct gbpy_handle * sched, struct gbpy_handle * context, struct ggml_tensor * node,
    struct gbpy_handle * backend) {
    static const char what[] = "Scheduler.set_backend";
    struct gbpy_locks locks = { 0 };
    struct gbpy_sched * s = gbpy_sched_of(sched, what);
    struct gbpy_context * c = gbpy_context_of(context, what);
    struct gbpy_object * b = backend != NULL ? gbpy_object_of(backend, what) : NULL;
    if (s == NULL || c == NULL || (backend != NULL && b == NULL)) {
        return GGML_STATUS_INVALID_STATE;
    }
    int status = gbpy_lock_sched(&locks, s, what);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    status = gbpy_finish_earlier_runs(s);
    if (status == GGML_STATUS_SUCCESS && b != NULL && !gb_vec_reserve(&s->choices, s->choices.n + 1)) {
        status = GGML_STATUS_ALLOC_FAILED;
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = ggml_backend_sched_set_node_backend(s->memory.head.ptr, node, b != NULL ? b->ptr : NULL);
    }
    if (status == GGML_STATUS_SUCCESS) {
        bool known = false;
        for (size_t i = 0; i < s->choices.n && !known; i++) {
            known = s->choices.data[i].node == node && s->choices.data[i].context == c;
        }
        if (b != NULL && !known) {
            gbpy_weak_ref(&c->memory.head);
            s->choices.data[s->choices.n++] = (struct gbpy_choice){ node, c };
        }
        s->dirty = s->dirty_choices = true;
    }
    gbpy_unlock(&locks);
    return status;
}

int gbpy_sched_set_n_copies(struct gbpy_handle * sched, int n) {
    struct gbpy_locks locks = { 0 };
    struct gbpy_sched * s = gbpy_sched_of(sched, "Scheduler.n_copies");
    if (s == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    int status = gbpy_lock_sched(&locks, s, "Scheduler.n_copies");
    if (status == GGML_STATUS_SUCCESS) {
        status = gbpy_finish_earlier_runs(s);
        status = status == GGML_STATUS_SUCCESS ? (int) ggml_backend_sched_set_n_copies(s->memory.head.ptr, n) : status;
        if (status == GGML_STATUS_SUCCESS) {
            s->n_copies = n;
            s->dirty = s->dirty_choices = true;
        }
        gbpy_unlock(&locks);
    }
    return status;
}

const char * gbpy_sched_device_name(const struct gbpy_handle * sched, int i) {
    return gb_sched_device_name(sched->object->ptr, i);
}

void gbpy_sched_keep_all(struct gbpy_handle * sched, bool keep) {
    struct gbpy_sched * s = gbpy_sched_of(sched, "Scheduler");
    if (s != NULL) {
        s->keep_all = keep;
    }
}

int gbpy_sched_reset_stats(struct gbpy_handle * sched) {
    struct gbpy_locks locks = { 0 };
    struct gbpy_sched * s = gbpy_sched_of(sched, "Scheduler.reset_stats");
    const struct gbpy_request request = { .object = (struct gbpy_object *) s, .write = true };
    if (s == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    int status = gbpy_lock_all(&locks, "Scheduler.reset_stats", &request, 1, true);
    if (status == GGML_STATUS_SUCCESS) {
        status = ggml_backend_sched_reset_stats(s->memory.head.ptr);
        s->n_reported = 0;
        gbpy_unlock(&locks);
    }
    return status;
}

bool gbpy_sched_has_splits_of(const struct gbpy_handle * sched, const struct gbpy_handle * graph) {
    const struct gbpy_graph * g = graph != NULL ? (const struct gbpy_graph *) graph->object : NULL;
    const struct gbpy_sched * s = sched != NULL ? (const struct gbpy_sched *) sched->object : NULL;
    return g != NULL && s != NULL && s->about == g->serial;
}

bool gbpy_sched_is_about(const struct gbpy_handle * sched, const struct gbpy_handle * graph) {
    return gbpy_sched_has_splits_of(sched, graph) && !((const struct gbpy_sched *) sched->object)->dirty_choices;
}
