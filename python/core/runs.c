// runs.c - computing: see runs.h.
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include "runs.h"

#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "base/current.h"
#include "base/env.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "ggml-cpu.h"
#include "sched/sched.h"
#include "tensor/tensor.h"

struct flight { // a run on its way
    uint64_t               id;
    int                    state; // as of gbpy_sched_state
    int                    n_events;
    bool                   failed;
    ggml_backend_event_t * events; // owned; behind it, in each queue
    void *                 object; // PyObject *, a reference; may be NULL
    struct gbpy_run *      run;    // may be NULL
    struct flight *        next;   // started later
};

struct assigned { // a choice of the user
    struct ggml_tensor * node;
    struct gbpy_object * context; // a weak reference: without it the address may serve another tensor
};

struct gbpy_sched {
    struct gbpy_object *  object;
    struct gbpy_object ** backends; // part of the object's needs
    int                   n_backends;
    size_t                n_handles; // of the scheduler's buffers that are owned by the object
    GB_VEC(struct assigned) assigned;

    // the planned graph
    struct gbpy_object * graph;   // strong; NULL: none
    gbpy_wants           owners;  // of memory of others that it uses; strong
    int                  n_nodes;
    long long            epoch;   // as of which that is so
    bool                 dirty;
    bool                 dirty_choices; // the user chose backends for nodes since
    long long            about; // serial number of the graph that questions are about; 0: none
    bool                 inputs_are_set; // all that were placed here
    bool                 running; // in gbpy_sched_compute
    const struct ggml_tensor * shown; // to an eval callback: computed just now; NULL: none
    bool                 ran;     // what its results hold is from a complete run ...
    long long            version; // ... that began with this version of the inputs
    int                  n_copies;
    bool                 keep_all;

    // runs on their way
    bool                 flying; // under the lock
    unsigned             generation; // of forks, in which they were started
    struct gbpy_object * fly_graph; // strong
    gbpy_wants           fly_wants; // all that they use; strong
    struct flight *      flights;
    uint64_t             last_id;
    GB_VEC(uint64_t)     failed;
    uint64_t             n_reported; // plans, of those that were made
    int                  kept_status; // of a run that others waited for: not told yet
    char                 kept_message[512];
    struct gbpy_sched *  next_flying; // under the lock
};

static struct gbpy_sched * flying; // under the lock

void * gbpy_run_handle(void) {
    const struct gbpy_run * run = gb_run();
    return run != NULL ? run->handle : NULL;
}

// ----------------------------------------------------------------------------------------------------------------------- stopping

enum { POLL_NS = 10000000, MOST_UNASKED = 64 };

// The clock is looked at every so many times, so that it costs nothing beside small nodes. Long nodes ask often enough.
static bool is_time_to_poll(struct gbpy_stop * s) {
    if (gb_get_poll(NULL) == NULL || ++s->asked < s->stride) {
        return false;
    }
    const int64_t now = gb_time_ns(), passed = now - s->last_ns;
    s->asked  = 0;
    s->stride = passed < POLL_NS / 20 ? GB_MIN(2 * s->stride, (unsigned) MOST_UNASKED) : GB_MAX(s->stride / 4, 1u);
    if (passed < POLL_NS) {
        return false;
    }
    s->last_ns = now;
    return true;
}

static bool wants_to_stop(void * data) {
    struct gbpy_stop * s = data;
    return __atomic_load_n(&s->stop, __ATOMIC_RELAXED) != 0 || (s->handle != NULL && s->ask(s->handle)) || (is_time_to_poll(s) && gb_poll());
}

static bool may_be_cancelled(const struct gbpy_object * backend) { return backend->cancels != atomic_load(&gbpy_cancels); }

// What an interrupt cancelled in a queue is over: nobody waits for it any more, and the next computation has nothing to do with it.
static void forget_cancelled(struct gbpy_object * backend) {
    if (may_be_cancelled(backend)) {
        backend->cancels = atomic_load(&gbpy_cancels);
        ggml_backend_synchronize(backend->ptr);
        ggml_clear_error();
    }
}

static void begin_stop(struct gbpy_object * backend) {
    struct gbpy_stop * s = backend->stop;
    forget_cancelled(backend);
    __atomic_store_n(&s->stop, 0, __ATOMIC_RELAXED);
    s->asked  = 0;
    s->stride = 1;
}

static void end_stop(struct gbpy_object * backend) { __atomic_store_n(&backend->stop->stop, 0, __ATOMIC_RELAXED); }

void gbpy_stop(struct gbpy_handle * backend) {
    struct gbpy_object * b = gbpy_object_of(backend, "Backend.stop");
    if (b == NULL) {
        ggml_clear_error();
        return;
    }
    gbpy_lock();
    if (b->writer != NULL) { // else it computes nothing
        __atomic_store_n(&b->stop->stop, 1, __ATOMIC_RELAXED);
    }
    gbpy_unlock();
}

int gbpy_open_backend(struct gbpy_handle * handle, const char * spec, struct gbpy_stop * stop) {
    struct gbpy_object * o = gbpy_object_new(GBPY_BACKEND);
    if (o == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    o->stop    = stop;
    o->ptr     = ggml_backend_reg_init_backend_from_str(spec);
    int status = o->ptr != NULL ? GGML_STATUS_SUCCESS : (int) ggml_last_status();
    if (status == GGML_STATUS_SUCCESS && ggml_backend_is_cpu(o->ptr)) {
        status = ggml_backend_cpu_set_abort_callback(o->ptr, wants_to_stop, stop);
    }
    if (status != GGML_STATUS_SUCCESS) {
        gbpy_unref(o);
        return status;
    }
    return gbpy_fill(handle, o);
}

// ------------------------------------------------------------------------------------------------------------------------- graphs

static bool add_want(gbpy_wants * wants, struct gbpy_object * o, bool write) {
    for (size_t i = 0; i < wants->n; i++) {
        if (wants->data[i].object == o) {
            wants->data[i].write |= write;
            return true;
        }
    }
    return gb_vec_push(wants, ((struct gbpy_want){ .object = o, .write = write }));
}

static int fail_use(const struct ggml_tensor * t, const char * what) {
    char text[160];
    gbpy_describe(t, text, sizeof(text));
    return gb_fail(GGML_STATUS_INVALID_STATE, "%s: the graph uses %s, whose memory was freed", what, text);
}

// One tensor of the graph; `computed`: by a node of it.
static int look_at_tensor(struct gbpy_object * g, struct ggml_tensor * t, bool computed, const char * what) {
    struct ggml_tensor *  root   = gb_root(t);
    struct gbpy_object *  owner  = gbpy_owner_of(t);
    const bool            writes = computed && !gb_op_is_view(t->op);
    if (gbpy_has_lost(t)) {
        const bool may_be_placed_again = owner != NULL && owner->scratch;
        return (root->op == GGML_OP_NONE || !computed) && !may_be_placed_again ? fail_use(root, what) : GGML_STATUS_SUCCESS;
    }
    if (owner == NULL) {
        bool ok = true;
        for (int i = 0; i < g->n_contexts && root->data != NULL && ok; i++) { // memory of one of its contexts: which, nobody knows
            ok = add_want(&g->owners, g->contexts[i], writes);
        }
        if (ok && writes && root->data != NULL && root->op != GGML_OP_NONE) {
            ok = gb_vec_push(&g->results, root);
        }
        return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    if (writes && owner->readonly) {
        char text[160];
        gbpy_describe(t, text, sizeof(text));
        return gb_fail(GGML_STATUS_INVALID_STATE, "%s: the node %s would write to a read-only buffer", what, text);
    }
    bool ok = add_want(&g->owners, owner, writes);
    if (ok && writes && owner->kind != GBPY_SCHED && root->op != GGML_OP_NONE) {
        ok = gb_vec_push(&g->results, root);
    }
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

// Under the lock, while nobody places tensors of the graph's contexts: whose memory it uses.
static int look_at_graph(struct gbpy_object * g, const char * what) {
    const struct ggml_cgraph * graph = g->ptr;
    const long long            now   = gbpy_epoch_now();
    int                        status = GGML_STATUS_SUCCESS;
    if (g->epoch == now) {
        return status;
    }
    g->epoch     = -1;
    g->complete  = false;
    g->owners.n  = 0;
    g->results.n = 0;
    for (int i = 0; i < graph->n_leafs && status == GGML_STATUS_SUCCESS; i++) {
        status = look_at_tensor(g, graph->leafs[i], false, what);
    }
    for (int i = 0; i < graph->n_nodes && status == GGML_STATUS_SUCCESS; i++) {
        status = look_at_tensor(g, graph->nodes[i], true, what);
    }
    if (status == GGML_STATUS_SUCCESS) {
        g->epoch = now;
    }
    return status;
}

// Under the lock: waits until nobody else places tensors of these contexts.
static int await_contexts(const struct gbpy_object * g, const char * what) {
    for (int i = 0; i < g->n_contexts;) {
        const struct gbpy_want place = { .object = g->contexts[i] };
        if (gbpy_find_conflict(&place, 1, gbpy_me(), true) < 0) {
            i++;
            continue;
        }
        const int status = gbpy_wait_for(what, &place, 1, 0);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
        i = 0; // the others may have changed meanwhile
    }
    return GGML_STATUS_SUCCESS;
}

static int check_usable(const struct gbpy_object * o, const char * what) {
    GB_FAIL_IF(o->broken, GGML_STATUS_INVALID_STATE, GGML_STATUS_INVALID_STATE,
               "%s: a %s that it uses was in use by another thread when the process was forked: make a new one", what,
               o->kind == GBPY_BACKEND ? "backend" : o->kind == GBPY_SCHED ? "scheduler" : "buffer");
    GB_FAIL_IF(o->closed && o->kind != GBPY_BACKEND, GGML_STATUS_INVALID_STATE, GGML_STATUS_INVALID_STATE, "%s: a %s that it uses is closed", what,
               o->kind == GBPY_SCHED ? "scheduler" : "buffer");
    return GGML_STATUS_SUCCESS;
}

// Enters `first`, n of them to write, and what the graph's tensors lie in; with `places` also its contexts, to give tensors memory. `self`,
// one of the first, is the scheduler that may have placed them. *fresh: the graph was looked at anew.
static int enter_graph(struct gbpy_use * use, struct gbpy_object * g, struct gbpy_object * const * first, int n, const struct gbpy_object * self, bool places,
                       const char * what, bool * fresh) {
    gbpy_wants wants  = { 0 };
    int        status = GGML_STATUS_SUCCESS;
    *fresh            = false;
    gbpy_lock();
    while (status == GGML_STATUS_SUCCESS) {
        if (g->epoch != gbpy_epoch_now()) {
            status = await_contexts(g, what);
            status = status == GGML_STATUS_SUCCESS ? look_at_graph(g, what) : status;
            *fresh = true;
        }
        wants.n = 0;
        bool ok = status == GGML_STATUS_SUCCESS;
        for (int i = 0; ok && i < n; i++) {
            ok = add_want(&wants, first[i], true);
        }
        for (size_t i = 0; ok && i < g->owners.n; i++) {
            ok = g->owners.data[i].object == self || add_want(&wants, g->owners.data[i].object, g->owners.data[i].write);
        }
        for (int i = 0; ok && places && i < g->n_contexts; i++) {
            ok = add_want(&wants, g->contexts[i], true);
        }
        status = ok || status != GGML_STATUS_SUCCESS ? status : GGML_STATUS_ALLOC_FAILED;
        for (size_t i = 0; i < wants.n && status == GGML_STATUS_SUCCESS; i++) {
            status = check_usable(wants.data[i].object, what);
        }
        if (status == GGML_STATUS_SUCCESS && !gbpy_reserve_use(use, (int) wants.n)) {
            status = GGML_STATUS_ALLOC_FAILED;
        }
        if (status != GGML_STATUS_SUCCESS) {
            break;
        }
        const int conflict = gbpy_find_conflict(wants.data, (int) wants.n, gbpy_me(), false);
        if (conflict >= 0) {
            status = gbpy_wait_for(what, wants.data, (int) wants.n, conflict);
            continue;
        }
        if (!gbpy_land_conflicts(wants.data, (int) wants.n, NULL, &status)) {
            if (gbpy_take(use, wants.data, (int) wants.n)) {
                break;
            }
            g->epoch = -1;
        }
    }
    gbpy_unlock();
    gb_vec_free(&wants);
    return status;
}

// The usual case, without memory: a graph that was looked at, of few owners, that nobody else uses now. False: enter_graph is to do it.
static bool enter_at_once(struct gbpy_use * use, struct gbpy_object * const * first, int n, const struct gbpy_want * owners, int n_owners,
                          long long epoch) {
    enum { MOST = 8 };
    struct gbpy_want wants[MOST];
    bool             ok = n + n_owners <= MOST && use->capacity >= n + n_owners;
    int              k  = 0;
    for (int i = 0; ok && i < n; i++) {
        wants[k++] = (struct gbpy_want){ .object = first[i], .write = true };
        ok         = !first[i]->broken;
    }
    for (int i = 0; ok && i < n_owners; i++) {
        wants[k++] = owners[i];
        ok         = !owners[i].object->broken && !owners[i].object->closed;
    }
    return ok && epoch == gbpy_epoch_now() && gbpy_find_conflict(wants, k, gbpy_me(), false) < 0 && flying == NULL && gbpy_take(use, wants, k);
}

static bool is_held(const struct gbpy_use * use, const struct gbpy_object * o) {
    for (int i = 0; i < use->n; i++) {
        if (use->wants[i].object == o) {
            return true;
        }
    }
    return false;
}

static bool is_written(const struct ggml_cgraph * graph, const struct ggml_tensor * leaf) {
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->nodes[i]->view_src == leaf && !gb_op_is_view(graph->nodes[i]->op)) {
            return true;
        }
    }
    return false;
}

// Does the input have data, or get some from a node?
static bool is_set(const struct ggml_cgraph * graph, const struct ggml_tensor * leaf) {
    return leaf->op != GGML_OP_NONE || gbpy_stamp(leaf) != 0 || ggml_nelements(leaf) == 0 || is_written(graph, leaf);
}

enum { LOOK_AGAIN = 2000 }; // a status of these functions only

// By who uses what the graph was seen to lie in: all of it has memory, there, and what schedulers placed is its own. LOOK_AGAIN: another thread
// placed some of it meanwhile.
static int check_placed(struct gbpy_object * g, const struct gbpy_use * use, bool computes, const char * what) {
    const struct ggml_cgraph * graph  = g->ptr;
    int                        status = GGML_STATUS_SUCCESS;
    for (int i = 0; i < graph->n_leafs + graph->n_nodes && status == GGML_STATUS_SUCCESS; i++) {
        const struct ggml_tensor * t    = i < graph->n_leafs ? graph->leafs[i] : graph->nodes[i - graph->n_leafs];
        const struct ggml_tensor * root = gb_root(t);
        char                       text[256], name[160];
        gbpy_lock();
        const ggml_backend_buffer_t buffer  = gb_tensor_buffer(t);
        struct gbpy_object *        owner   = buffer != NULL ? buffer->binding : NULL;
        const bool                  lost    = gbpy_has_lost(t);
        const bool                  nowhere = lost || (buffer == NULL && root->data == NULL);
        gbpy_unlock();
        if (nowhere && (lost || ggml_nelements(t) > 0)) {
            gbpy_describe(root, name, sizeof(name));
            return gb_fail(GGML_STATUS_INVALID_STATE, "%s: %s has no memory%s", what, name, lost ? " any more" : "; allocate the graph");
        }
        if (owner != NULL && !is_held(use, owner)) {
            return LOOK_AGAIN;
        }
        if (owner != NULL && owner->kind == GBPY_SCHED) {
            gbpy_describe(root, name, sizeof(name));
            snprintf(text, sizeof(text), "%s: %s", what, name);
            status = gbpy_check_sched(owner, t, false, text);
        }
    }
    for (int i = 0; i < graph->n_leafs && computes && status == GGML_STATUS_SUCCESS; i++) {
        const struct ggml_tensor * leaf  = gb_root(graph->leafs[i]);
        const struct gbpy_object * owner = gbpy_owner_of(leaf);
        if (owner != NULL && owner->scratch && !is_set(graph, leaf)) {
            return gb_fail(GGML_STATUS_INVALID_STATE, "%s: the input '%s' was not set: give it data with set() after allocating the graph, before computing it", what, leaf->name);
        }
    }
    g->complete = computes && status == GGML_STATUS_SUCCESS;
    return status;
}

// enter_graph, for who computes where the tensors lie.
static int enter_placed(struct gbpy_use * use, struct gbpy_object * g, struct gbpy_object * const * first, int n, bool computes, const char * what) {
    int status = LOOK_AGAIN;
    while (status == LOOK_AGAIN) {
        bool fresh = false;
        status     = enter_graph(use, g, first, n, NULL, false, what, &fresh);
        if (status == GGML_STATUS_SUCCESS && (fresh || !g->complete)) {
            status = check_placed(g, use, computes, what);
        }
        if (status != GGML_STATUS_SUCCESS) {
            gbpy_leave(use);
        }
        if (status == LOOK_AGAIN) {
            gbpy_note_move();
        }
    }
    return status;
}

// Under the lock, since another thread may look at the graph anew: its results are those of a run that began with this version of the inputs.
static void note_results(struct gbpy_object * g, long long version) {
    for (size_t i = 0; i < g->results.n; i++) {
        gbpy_set_stamp(g->results.data[i], version + 1);
    }
    g->computed = version;
}

static void forget_results(struct gbpy_object * g, long long unused) {
    (void) unused;
    for (size_t i = 0; i < g->results.n; i++) {
        gbpy_set_stamp(g->results.data[i], 0);
    }
    g->computed = -1;
}

static void forget_results_now(struct gbpy_object * g) {
    gbpy_lock();
    forget_results(g, 0);
    gbpy_unlock();
}

static int outcome_of(const struct gbpy_run * run, int status) {
    if (run != NULL && run->stopped != 0 && status >= 0) {
        status = GGML_STATUS_ABORTED;
    }
    return gbpy_outcome(status);
}

int gbpy_graph_compute(struct gbpy_handle * graph, struct gbpy_handle * backend, struct gbpy_run * run) {
    static const char    what[] = "Graph.compute";
    struct gbpy_want     wants[8];
    struct gbpy_use      use   = { .wants = wants, .capacity = 8, .borrowed = true };
    struct gbpy_object * g     = gbpy_object_of(graph, what), * b = gbpy_object_of(backend, what);
    if (g == NULL || b == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    gbpy_lock();
    const bool entered = g->complete && enter_at_once(&use, &b, 1, g->owners.data, (int) g->owners.n, g->epoch);
    gbpy_unlock();
    int status = entered ? GGML_STATUS_SUCCESS : enter_placed(&use, g, &b, 1, true, what);
    if (status == GGML_STATUS_SUCCESS) {
        const long long version = atomic_load(&gbpy_sets);
        void *          outer   = gb_run();
        struct gbpy_run plain   = { .who = use.who };
        run                     = run != NULL ? run : &plain;
        run->who                = use.who;
        begin_stop(b);
        if (run != &plain) {
            forget_results_now(g); // callbacks may look at them
        }
        gb_set_run(run);
        gb_trust_tensors(true);
        if (ggml_backend_graph_compute(b->ptr, g->ptr)) {
            status = ggml_backend_synchronize(b->ptr);
        } else {
            status = ggml_last_status() != GGML_STATUS_SUCCESS ? (int) ggml_last_status() : GGML_STATUS_FAILED;
        }
        gb_trust_tensors(false);
        gb_set_run(outer);
        end_stop(b);
        status = outcome_of(run, status);
        gbpy_leave_after(&use, status == GGML_STATUS_SUCCESS ? note_results : forget_results, g, version);
    }
    return status;
}

bool gbpy_graph_is_within_reach(struct gbpy_handle * graph, struct gbpy_handle * backend) {
    struct gbpy_object * g = gbpy_object_of(graph, "Graph.compare"), * b = gbpy_object_of(backend, "Graph.compare");
    bool                 reach = g != NULL && b != NULL;
    gbpy_lock();
    const struct ggml_cgraph * c = reach && await_contexts(g, "Graph.compare") == GGML_STATUS_SUCCESS ? g->ptr : NULL;
    for (int i = 0; c != NULL && reach && i < c->n_leafs + c->n_nodes; i++) {
        const ggml_backend_buffer_t buffer = gb_tensor_buffer(i < c->n_leafs ? c->leafs[i] : c->nodes[i - c->n_leafs]);
        reach = buffer == NULL || gb_buffer_is_retired(buffer) || ggml_backend_buft_supports_backend(buffer->buft, b->ptr);
    }
    gbpy_unlock();
    return reach;
}

int gbpy_graph_compare(struct gbpy_handle * graph, struct gbpy_handle * first, struct gbpy_handle * second, struct gbpy_run * run, bool (*see)(int, struct ggml_tensor *, struct ggml_tensor *, void *), void * data) {
    static const char    what[] = "Graph.compare";
    struct gbpy_object * g = gbpy_object_of(graph, what), * both[2] = { gbpy_object_of(first, what), gbpy_object_of(second, what) };
    struct gbpy_use      use = { 0 };
    if (g == NULL || both[0] == NULL || both[1] == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    int status = enter_placed(&use, g, both, both[0] == both[1] ? 1 : 2, true, what);
    if (status == GGML_STATUS_SUCCESS) {
        const long long version = atomic_load(&gbpy_sets);
        void *          outer   = gb_run();
        run->who                = use.who;
        begin_stop(both[0]);
        begin_stop(both[1]);
        gb_set_run(run);
        const bool ok = ggml_backend_compare_graph_backend(both[0]->ptr, both[1]->ptr, g->ptr, see, data);
        gb_set_run(outer);
        end_stop(both[0]);
        end_stop(both[1]);
        status = gbpy_outcome(ok ? GGML_STATUS_SUCCESS : (int) ggml_last_status());
        gbpy_leave_after(&use, ok && status == GGML_STATUS_SUCCESS ? note_results : forget_results, g, version);
        status = !ok && status == GGML_STATUS_SUCCESS ? GGML_STATUS_ABORTED : status;
    }
    gbpy_leave(&use);
    return status;
}

int gbpy_open_copy(struct gbpy_handle * handle, struct gbpy_handle * graph, struct gbpy_handle * backend) {
    static const char    what[] = "Graph.copy";
    struct gbpy_object * g = gbpy_object_of(graph, what), * b = gbpy_object_of(backend, what), * o;
    struct gbpy_use      use = { 0 };
    if (g == NULL || b == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    int status = enter_placed(&use, g, &b, 1, false, what);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    o = gbpy_object_new(GBPY_COPY);
    if (status == GGML_STATUS_SUCCESS) {
        status = o != NULL && gbpy_add_need(o, b) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    if (status == GGML_STATUS_SUCCESS) {
        o->copy = ggml_backend_graph_copy(b->ptr, g->ptr);
        o->ptr  = o->copy.graph;
        status  = o->ptr != NULL ? GGML_STATUS_SUCCESS : (int) ggml_last_status();
    }
    if (status == GGML_STATUS_SUCCESS && o->copy.buffer != NULL && !gbpy_own(o, o->copy.buffer)) {
        status = GGML_STATUS_ALLOC_FAILED;
    }
    for (int i = 0; status == GGML_STATUS_SUCCESS && i < o->copy.graph->n_nodes; i++) { // what was computed there is computed here
        const struct ggml_cgraph * from = g->ptr;
        gbpy_set_stamp(gb_root(o->copy.graph->nodes[i]), GB_MAX(gbpy_stamp(gb_root(from->nodes[i])), 1));
    }
    if (status != GGML_STATUS_SUCCESS) {
        gbpy_unref(o);
    } else {
        gbpy_fill(handle, o);
    }
    gbpy_leave(&use);
    return status;
}

// --------------------------------------------------------------------------------------------------------------------- schedulers

static void forget_plan(struct gbpy_sched * s) {
    struct gbpy_object * graph = s->graph;
    gbpy_wants           owners = s->owners;
    s->graph          = NULL;
    s->dirty          = true;
    s->dirty_choices  = false;
    s->ran            = false;
    s->inputs_are_set = false;
    memset(&s->owners, 0, sizeof(s->owners));
    for (size_t i = 0; i < owners.n; i++) {
        gbpy_unref(owners.data[i].object);
    }
    gb_vec_free(&owners);
    gbpy_unref(graph);
}

static void free_flight(struct flight * f) {
    for (int i = 0; i < f->n_events; i++) {
        ggml_backend_event_free(f->events[i]);
    }
    gb_free(f->events);
    if (f->object != NULL) {
        const PyGILState_STATE state = PyGILState_Ensure();
        Py_DecRef(f->object);
        PyGILState_Release(state);
    }
    gb_free(f);
}

static void set_flying(struct gbpy_sched * s, bool on) {
    struct gbpy_sched ** link = &flying;
    gbpy_lock();
    s->flying = on;
    while (*link != NULL && *link != s) {
        link = &(*link)->next_flying;
    }
    if (on && *link == NULL) {
        s->next_flying = NULL;
        *link          = s;
    } else if (!on && *link != NULL) {
        *link = s->next_flying;
    }
    gbpy_unlock();
}

// Waits for all runs. Called by who uses the scheduler and its backends.
static int land_inside(struct gbpy_sched * s) {
    if (!s->flying) {
        return GGML_STATUS_SUCCESS;
    }
    int status;
    if (s->generation != gb_fork_generation()) {
        status = gb_fail(GGML_STATUS_INVALID_STATE, "the computation was on its way when the process was forked: it goes on in the other process only");
        gbpy_lock();
        s->object->broken = true;
        gbpy_unlock();
    } else {
        status = ggml_backend_sched_synchronize(s->object->ptr);
    }
    for (int i = 0; i < s->n_backends; i++) {
        end_stop(s->backends[i]);
    }
    set_flying(s, false);
    gbpy_lock();
    struct flight *      flights = s->flights;
    struct gbpy_object * graph   = s->fly_graph;
    gbpy_wants           wants   = s->fly_wants;
    s->flights   = NULL;
    s->fly_graph = NULL;
    memset(&s->fly_wants, 0, sizeof(s->fly_wants));
    for (struct flight * f = flights; f != NULL; f = f->next) {
        f->failed = f->state < 0 || (f->run != NULL && f->run->stopped) || (f->state == 0 && status != GGML_STATUS_SUCCESS);
        if (f->failed) {
            gb_vec_push(&s->failed, f->id);
            s->ran = false;
        }
    }
    gbpy_unlock();
    while (flights != NULL) {
        struct flight * next = flights->next;
        if (flights->failed && graph != NULL) {
            forget_results_now(graph);
        }
        free_flight(flights);
        flights = next;
    }
    for (size_t i = 1; i < wants.n; i++) {
        gbpy_unref(wants.data[i].object);
    }
    gb_vec_free(&wants);
    gbpy_unref(graph);
    return gbpy_outcome(status);
}

// Before another run: that earlier ones were stopped is told to who waits for them.
static int land_earlier(struct gbpy_sched * s) {
    const int status = land_inside(s);
    return status == GGML_STATUS_ABORTED ? GGML_STATUS_SUCCESS : status;
}

static int enter_sched(struct gbpy_use * use, struct gbpy_sched * s, const char * what) {
    gbpy_wants wants  = { 0 };
    bool       ok     = add_want(&wants, s->object, true);
    for (int i = 0; ok && i < s->n_backends; i++) {
        ok = add_want(&wants, s->backends[i], true);
    }
    const int status = ok ? gbpy_enter_wants(use, what, wants.data, (int) wants.n, false) : GGML_STATUS_ALLOC_FAILED;
    gb_vec_free(&wants);
    return status;
}

static int land(struct gbpy_sched * s) {
    struct gbpy_use use    = { 0 };
    int             status = enter_sched(&use, s, "Scheduler");
    if (status == GGML_STATUS_SUCCESS) {
        status = land_inside(s);
        if (status != GGML_STATUS_SUCCESS && status != GBPY_INTERRUPTED) { // told to who synchronizes; results that are not there raise when they are asked for
            s->kept_status = status;
            snprintf(s->kept_message, sizeof(s->kept_message), "%s", ggml_last_error());
            status = GGML_STATUS_SUCCESS;
        }
        gbpy_leave(&use);
    } else if (status != GBPY_INTERRUPTED && (!s->flying || atomic_load(&s->object->closed))) { // it was landed and closed meanwhile, or is being
        ggml_clear_error();
        status = GGML_STATUS_SUCCESS;
    }
    return status;
}

// Under the lock: a run on its way that conflicts.
static struct gbpy_sched * find_flight(const struct gbpy_want * wants, int n) {
    for (struct gbpy_sched * s = flying; s != NULL; s = s->next_flying) {
        bool own = false, conflict = false;
        for (int i = 0; i < n; i++) {
            own |= wants[i].object == s->object && wants[i].write;
            for (size_t k = 0; k < s->fly_wants.n && !conflict; k++) {
                conflict = s->fly_wants.data[k].object == wants[i].object && (s->fly_wants.data[k].write || wants[i].write);
            }
        }
        if (conflict && !own) {
            return s;
        }
    }
    return NULL;
}

// The content of inputs that were staged was taken when the run was issued.
static bool is_staged(const struct gbpy_sched * s, const struct ggml_tensor * t) {
    const struct ggml_tensor *  root   = gb_root(t);
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    if (s->n_copies < 2 || !ggml_is_input(root) || buffer == NULL || !ggml_backend_buffer_is_host(buffer)) {
        return false;
    }
    const struct ggml_cgraph * graph = s->fly_graph->ptr;
    for (int i = 0; i < graph->n_nodes; i++) {
        if (gb_root(graph->nodes[i]) == root && !gb_op_is_view(graph->nodes[i]->op)) {
            return false; // a node writes it
        }
    }
    return true;
}

static bool land_conflicts(const struct gbpy_want * wants, int n, const struct ggml_tensor * staged, int * status) {
    struct gbpy_sched * s = flying != NULL ? find_flight(wants, n) : NULL;
    if (s == NULL || (staged != NULL && is_staged(s, staged))) {
        return false;
    }
    struct gbpy_object * o     = s->object;
    const bool           lives = gbpy_try_ref(o);
    gbpy_unlock();
    if (lives) {
        *status = land(s);
        gbpy_unref(o);
    } else {
        gb_sleep_us(100); // somebody frees it, and waits for it
    }
    gbpy_lock();
    return true;
}

static void free_sched(struct gbpy_object * o) {
    struct gbpy_sched * s = o->sched;
    if (s == NULL) {
        return;
    }
    if (s->flying && s->generation != gb_fork_generation()) {
        return; // the work is another process's: nothing can be waited for
    }
    if (o->ptr != NULL) {
        land_inside(s);
        ggml_clear_error();
        ggml_backend_sched_free(o->ptr);
    }
    forget_plan(s);
    for (size_t i = 0; i < s->assigned.n; i++) {
        gbpy_weak_unref(s->assigned.data[i].context);
    }
    gb_vec_free(&s->assigned);
    gb_vec_free(&s->failed);
    gb_free(s->backends);
    gb_free(s);
    o->sched = NULL;
}

static int check_sched(const struct gbpy_object * o, const struct ggml_tensor * t, bool reading, const char * what);

static void prepare_hooks(void) {
    gbpy_land_conflicts = land_conflicts;
    gbpy_free_sched     = free_sched;
    gbpy_check_sched    = check_sched;
}

int gbpy_open_sched(struct gbpy_handle * handle, struct gbpy_handle ** backends, struct ggml_backend_buffer_type ** bufts, int n) {
    struct gbpy_object * o = gbpy_object_new(GBPY_SCHED);
    ggml_backend_t *     raw = gb_calloc((size_t) n, sizeof(*raw));
    struct gbpy_sched *  s   = o != NULL && raw != NULL ? GB_NEW(struct gbpy_sched) : NULL;
    int                  status = s != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    if (s != NULL) {
        o->sched    = s;
        o->scratch  = true;
        s->object   = o;
        s->n_copies = 1;
        s->dirty    = true;
        s->backends = gb_calloc((size_t) n, sizeof(*s->backends));
        status      = s->backends != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    for (int i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
        struct gbpy_object * b = gbpy_object_of(backends[i], "Scheduler");
        if (b == NULL || !gbpy_add_need(o, b)) {
            status = b == NULL ? GGML_STATUS_INVALID_STATE : GGML_STATUS_ALLOC_FAILED;
            break;
        }
        s->backends[s->n_backends++] = b;
        raw[i]                       = b->ptr;
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
    return gbpy_fill(handle, o);
}

// The buffers that the scheduler has made meanwhile.
static bool own_new(struct gbpy_sched * s) {
    const struct ggml_backend_sched * sched = s->object->ptr;
    while (s->n_handles < sched->mems.n) {
        if (!gbpy_own(s->object, sched->mems.data[s->n_handles]->buffer)) {
            return false;
        }
        s->n_handles++;
    }
    return true;
}

// Choices for nodes whose context is gone: the address may serve another tensor by now.
static int drop_dead_choices(struct gbpy_sched * s) {
    size_t n      = 0;
    int    status = GGML_STATUS_SUCCESS;
    for (size_t i = 0; i < s->assigned.n; i++) {
        const struct assigned a = s->assigned.data[i];
        if (atomic_load(&a.context->refs) > 0) {
            s->assigned.data[n++] = a;
            continue;
        }
        const int one = ggml_backend_sched_set_node_backend(s->object->ptr, a.node, NULL);
        status        = status == GGML_STATUS_SUCCESS ? one : status;
        gbpy_weak_unref(a.context);
    }
    s->assigned.n = n;
    return status;
}

static bool has_lost_content(const struct gbpy_sched * s, const struct ggml_tensor * leaf) {
    if (leaf->op != GGML_OP_NONE || leaf->view_src != NULL || leaf->buffer == NULL || gbpy_stamp(leaf) == 0 || ggml_nelements(leaf) == 0) {
        return false;
    }
    if (gbpy_has_lost(leaf)) {
        return true;
    }
    const struct gbpy_object * owner = leaf->buffer->binding;
    if (owner == NULL || owner->kind != GBPY_SCHED) {
        return false;
    }
    return owner == s->object && !gb_sched_leaf_is_bound(owner->ptr, leaf) && !gb_sched_result_is_alive(owner->ptr, leaf);
}

static bool is_constant(const struct gbpy_object * g, const struct ggml_tensor * t) {
    for (int c = 0; c < g->n_contexts; c++) {
        for (size_t i = 0; i < g->contexts[c]->constants.n; i++) {
            if (g->contexts[c]->constants.data[i].tensor == t) {
                return true;
            }
        }
    }
    return false;
}

// Inputs whose memory was taken away must be set again: computing with them is an error, allocating begins anew.
static int settle_lost_inputs(const struct gbpy_sched * s, const struct gbpy_object * g, bool computes, const char * what) {
    const struct ggml_cgraph * graph = g->ptr;
    for (int i = 0; i < graph->n_leafs; i++) {
        struct ggml_tensor * leaf = graph->leafs[i];
        if (!has_lost_content(s, leaf)) {
            continue;
        }
        if (is_constant(g, leaf)) {
            continue; // written again with its new place
        }
        GB_FAIL_IF(computes, GGML_STATUS_INVALID_STATE, GGML_STATUS_INVALID_STATE,
                   "%s: the input '%s' was set, but its memory was given to other graphs since (a scheduler remembers the last %d): allocate the graph, set "
                   "it again and compute, or give it memory of its own (Context.allocate)", what, leaf->name, GB_SCHED_PLANS_MAX);
        gbpy_set_stamp(leaf, 0);
    }
    for (int v = 1; v >= 0; v--) {
        for (int i = 0; i < graph->n_leafs + graph->n_nodes; i++) {
            struct ggml_tensor * t = i < graph->n_leafs ? graph->leafs[i] : graph->nodes[i - graph->n_leafs];
            if ((t->view_src != NULL) == (v == 1)) {
                gbpy_unplace_lost(t);
            }
            if (v == 0 && t->view_src != NULL) {
                gbpy_unplace_lost(t->view_src);
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
    return sched->stats.n_plans_made + sched->stats.n_plans_replayed + sched->stats.n_plans_bound;
}

// Copies who else's memory the planned graph uses.
static bool hold_owners(struct gbpy_sched * s, const struct gbpy_object * g) {
    if (!gb_vec_reserve(&s->owners, g->owners.n)) {
        return false;
    }
    for (size_t i = 0; i < g->owners.n; i++) {
        if (g->owners.data[i].object != s->object && g->owners.data[i].object->kind != GBPY_CONTEXT) {
            gbpy_ref(g->owners.data[i].object);
            s->owners.data[s->owners.n++] = g->owners.data[i];
        } else if (g->owners.data[i].object->kind == GBPY_CONTEXT) {
            gbpy_ref(g->owners.data[i].object);
            s->owners.data[s->owners.n++] = g->owners.data[i];
        }
    }
    return true;
}

// Tells who asks that plans were made since he was told last.
static void report_plans(struct gbpy_sched * s, int * how) {
    const struct ggml_backend_sched * sched = s->object->ptr;
    const uint64_t                    made  = sched->stats.n_plans_made + sched->stats.n_plans_replayed;
    if (*how & GBPY_QUIET) {
        return;
    }
    *how |= made != s->n_reported ? GBPY_PLANNED : 0;
    s->n_reported = made;
}

// Makes g the planned graph: all its tensors have memory afterwards. By who uses all of that, and its contexts to place.
static int plan_inside(struct gbpy_sched * s, struct gbpy_object * g, bool computes, const char * what, int * how) {
    struct ggml_backend_sched * sched  = s->object->ptr;
    const uint64_t              before = plans_of(sched);
    const bool                  same   = s->graph == g && !s->dirty;
    const bool                  was_ok = s->inputs_are_set, had_run = s->ran;
    const long long             version = s->version;
    int                         status = settle_lost_inputs(s, g, computes, what);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    gbpy_ref(g);
    forget_plan(s);
    if (s->keep_all) {
        flag_all(g->ptr);
    }
    gb_sched_hold(sched, atomic_load(&s->object->n_pins) > 0);
    status = drop_dead_choices(s);
    status = status == GGML_STATUS_SUCCESS ? (int) ggml_backend_sched_alloc_graph(sched, g->ptr) : status;
    const bool moved = status != GGML_STATUS_SUCCESS || plans_of(sched) != before;
    bool       ok    = own_new(s);
    for (int i = 0; ok && i < g->n_contexts; i++) {
        ok = gbpy_add_home(g->contexts[i], s->object);
    }
    if (moved) {
        gbpy_note_move();
    }
    for (int i = 0; ok && status == GGML_STATUS_SUCCESS && (moved || !same) && i < g->n_contexts; i++) {
        status = gbpy_upload_constants(g->contexts[i]);
    }
    if (status == GGML_STATUS_SUCCESS) {
        gbpy_lock();
        status = look_at_graph(g, what);
        ok     = ok && status == GGML_STATUS_SUCCESS && hold_owners(s, g);
        s->epoch = g->epoch;
        gbpy_unlock();
    }
    if (status != GGML_STATUS_SUCCESS || !ok) {
        gbpy_unref(g);
        return status != GGML_STATUS_SUCCESS ? status : GGML_STATUS_ALLOC_FAILED;
    }
    s->graph   = g;
    s->about   = g->serial;
    s->n_nodes = ((struct ggml_cgraph *) g->ptr)->n_nodes;
    s->dirty   = false;
    if (same && !moved) {
        s->ran            = had_run;
        s->version        = version;
        s->inputs_are_set = was_ok;
    }
    report_plans(s, how);
    return GGML_STATUS_SUCCESS;
}

static int check_inputs(struct gbpy_sched * s, const char * what) {
    const struct ggml_cgraph * graph = s->graph->ptr;
    for (int i = 0; i < graph->n_leafs && !s->inputs_are_set; i++) {
        const struct ggml_tensor * leaf  = gb_root(graph->leafs[i]);
        const struct gbpy_object * owner = gbpy_owner_of(leaf);
        if (owner != NULL && owner->kind == GBPY_SCHED && !is_set(graph, leaf)) {
            return gb_fail(GGML_STATUS_INVALID_STATE, "%s: the input '%s' was not set: give it data with set() after allocating the graph, before computing it", what, leaf->name);
        }
    }
    s->inputs_are_set = true;
    return GGML_STATUS_SUCCESS;
}

static bool is_planned(const struct gbpy_sched * s, const struct gbpy_object * g) {
    return s->graph == g && !s->dirty && s->n_nodes == ((const struct ggml_cgraph *) g->ptr)->n_nodes && s->epoch == gbpy_epoch_now();
}

// Enters all, and plans if that is not done. `lands`: runs on their way are waited for first.
static int enter_planned(struct gbpy_use * use, struct gbpy_sched * s, struct gbpy_object * g, bool lands, bool computes, const char * what, int * how) {
    enum { FEW = 6 };
    struct gbpy_object *  few[FEW];
    struct gbpy_object ** first = s->n_backends < FEW ? few : gb_calloc((size_t) s->n_backends + 1, sizeof(*first));
    bool                  fresh = false;
    if (first == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    first[0] = s->object;
    for (int i = 0; i < s->n_backends; i++) {
        first[i + 1] = s->backends[i];
    }
    gbpy_lock();
    // The planned graph's fields are read without a use of the scheduler: whoever changes them has it, and is a conflict.
    bool entered = s->object->writer == NULL && !s->object->closed && is_planned(s, g) && (computes || s->about == g->serial) &&
                   enter_at_once(use, first, 1 + s->n_backends, s->owners.data, (int) s->owners.n, s->epoch);
    gbpy_unlock();
    int status = GGML_STATUS_SUCCESS;
    if (!entered) {
        status = enter_graph(use, g, first, 1 + s->n_backends, s->object, true, what, &fresh);
        if (status == GGML_STATUS_SUCCESS && lands) {
            status = land_earlier(s);
        }
        if (status == GGML_STATUS_SUCCESS && !(is_planned(s, g) && s->flying)) {
            status = s->flying ? land_earlier(s) : GGML_STATUS_SUCCESS;
            status = status == GGML_STATUS_SUCCESS ? plan_inside(s, g, computes, what, how) : status;
        }
        for (int i = 0; status == GGML_STATUS_SUCCESS && i < g->n_contexts; i++) {
            bool is_memory = false; // of tensors that the context placed itself
            for (size_t k = 0; k < g->owners.n; k++) {
                is_memory |= g->owners.data[k].object == g->contexts[i];
            }
            if (!is_memory) {
                gbpy_let_go(use, g->contexts[i]);
            }
        }
    } else if (lands) {
        status = land_earlier(s);
    }
    if (status == GGML_STATUS_SUCCESS && computes) {
        status = check_inputs(s, what);
    }
    if (first != few) {
        gb_free(first);
    }
    if (status != GGML_STATUS_SUCCESS) {
        gbpy_leave(use);
    }
    return status;
}

static struct gbpy_sched * sched_of(const struct gbpy_handle * handle, const char * what) {
    struct gbpy_object * o = gbpy_object_of(handle, what);
    return o != NULL ? o->sched : NULL;
}

int gbpy_sched_plan(struct gbpy_handle * sched, struct gbpy_handle * graph, int kind, int * how) {
    static const char * const names[] = { "Scheduler.allocate", "Scheduler.prepare", "Scheduler.reserve" };
    const char *              what    = names[kind];
    struct gbpy_sched *       s       = sched_of(sched, what);
    struct gbpy_object *      g       = gbpy_object_of(graph, what);
    struct gbpy_use           use     = { 0 };
    if (s == NULL || g == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    if (kind == GBPY_PLAN_ALLOCATE) {
        const int status = enter_planned(&use, s, g, true, false, what, how);
        gbpy_leave(&use);
        return status;
    }
    bool                  fresh;
    struct gbpy_object ** first = gb_calloc((size_t) s->n_backends + 1, sizeof(*first));
    if (first == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    first[0] = s->object;
    memcpy(first + 1, s->backends, (size_t) s->n_backends * sizeof(*first));
    int status = enter_graph(&use, g, first, 1 + s->n_backends, s->object, true, what, &fresh);
    gb_free(first);
    if (status == GGML_STATUS_SUCCESS) {
        status = land_earlier(s);
    }
    if (status == GGML_STATUS_SUCCESS && !(kind == GBPY_PLAN_ONLY && is_planned(s, g) && s->about == g->serial)) {
        struct ggml_backend_sched * raw = s->object->ptr;
        if (kind == GBPY_PLAN_RESERVE) {
            forget_plan(s);
        }
        s->about = 0;
        settle_lost_inputs(s, g, false, what);
        if (s->keep_all) {
            flag_all(g->ptr);
        }
        gb_sched_hold(raw, atomic_load(&s->object->n_pins) > 0);
        status = drop_dead_choices(s);
        if (status == GGML_STATUS_SUCCESS) {
            status = kind == GBPY_PLAN_ONLY ? ggml_backend_sched_plan_graph(raw, g->ptr) : ggml_backend_sched_reserve(raw, g->ptr);
        }
        if (!own_new(s) && status == GGML_STATUS_SUCCESS) {
            status = GGML_STATUS_ALLOC_FAILED;
        }
        s->about = status == GGML_STATUS_SUCCESS ? g->serial : 0;
        if (kind == GBPY_PLAN_RESERVE) {
            gbpy_note_move();
        }
        s->dirty_choices = false;
        report_plans(s, how);
    }
    gbpy_leave(&use);
    return status;
}

struct eval_shim {
    struct gbpy_sched * sched;
    bool (*eval)(struct ggml_tensor *, bool, void *);
    void * data;
};

static bool show(struct ggml_tensor * t, bool ask, void * data) {
    struct eval_shim * shim = data;
    shim->sched->shown      = ask ? NULL : t;
    const bool answer       = shim->eval(t, ask, shim->data);
    shim->sched->shown      = NULL;
    return answer;
}

int gbpy_sched_compute(struct gbpy_handle * sched, struct gbpy_handle * graph, struct gbpy_run * run, bool (*eval)(struct ggml_tensor *, bool, void *), void * eval_data, int * how) {
    static const char    what[] = "Scheduler.compute";
    struct gbpy_want     wants[8];
    struct gbpy_use      use = { .wants = wants, .capacity = 8, .borrowed = true };
    struct gbpy_sched *  s   = sched_of(sched, what);
    struct gbpy_object * g   = gbpy_object_of(graph, what);
    if (s == NULL || g == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    int status = enter_planned(&use, s, g, true, true, what, how);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    struct ggml_backend_sched * raw     = s->object->ptr;
    const long long             version = atomic_load(&gbpy_sets);
    void *                      outer   = gb_run();
    struct gbpy_run             plain   = { .who = use.who };
    run                                 = run != NULL ? run : &plain;
    run->who                            = use.who;
    s->ran                              = false;
    s->about                            = g->serial;
    for (int i = 0; i < s->n_backends; i++) {
        begin_stop(s->backends[i]);
    }
    struct eval_shim shim = { s, eval, eval_data };
    if (eval != NULL) {
        ggml_backend_sched_set_eval_callback(raw, show, &shim);
    }
    if (run != &plain) {
        forget_results_now(g); // callbacks may look at them
    }
    s->running = true;
    gb_set_run(run);
    status = ggml_backend_sched_graph_compute(raw, g->ptr);
    gb_set_run(outer);
    s->running = false;
    if (eval != NULL) {
        ggml_backend_sched_set_eval_callback(raw, NULL, NULL);
    }
    for (int i = 0; i < s->n_backends; i++) {
        end_stop(s->backends[i]);
    }
    const bool owned = own_new(s);
    status           = outcome_of(run, status);
    if (status == GGML_STATUS_SUCCESS) {
        s->ran     = true;
        s->version = version;
        status     = owned ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    gbpy_leave_after(&use, status == GGML_STATUS_SUCCESS ? note_results : forget_results, g, version);
    return status;
}

// --------------------------------------------------------------------------------------------------------------- runs on their way

// The backend that computes a result which may be fetched: one whose memory is its own to the end of the graph. NULL and reported.
static ggml_backend_t computes_result(const struct gbpy_sched * s, struct ggml_tensor * t) {
    const ggml_backend_t backend = ggml_backend_sched_get_node_backend(s->object->ptr, t);
    char                 text[160];
    gbpy_describe(t, text, sizeof(text));
    GB_FAIL_IF(backend == NULL, NULL, GGML_STATUS_INVALID_ARGUMENT, "compute_async: %s is not in the graph", text);
    GB_FAIL_IF(!ggml_is_output(t) && !(t->view_src != NULL && ggml_is_output(t->view_src)), NULL, GGML_STATUS_INVALID_ARGUMENT,
               "compute_async: %s is no output of the graph; call set_output() on it before", text);
    return backend;
}

static int wait_flight(struct gbpy_sched * s, struct flight * f) {
    int status = GGML_STATUS_SUCCESS;
    for (int i = 0; i < f->n_events && status == GGML_STATUS_SUCCESS && f->state == 0; i++) {
        status = ggml_backend_event_synchronize(f->events[i]);
    }
    if (status != GGML_STATUS_SUCCESS) {
        f->state           = status < 0 ? status : -1;
        const int complete = land_inside(s); // reports the same, and makes the scheduler usable again
        return complete != GGML_STATUS_SUCCESS ? complete : status;
    }
    f->state = f->state == 0 ? 1 : f->state;
    return GGML_STATUS_SUCCESS;
}

// Before another run: waits until there may be one more.
static int make_way(struct gbpy_sched * s, const struct gbpy_object * g, const struct gbpy_run * run) {
    if (!s->flying) {
        return GGML_STATUS_SUCCESS;
    }
    if (s->n_copies < 2 || run != NULL || s->fly_graph != g || !is_planned(s, g) || s->generation != gb_fork_generation()) {
        return land_earlier(s);
    }
    int n = 0;
    for (const struct flight * f = s->flights; f != NULL; f = f->next) {
        n += f->run != NULL ? s->n_copies : 1;
    }
    for (; n >= s->n_copies && s->flying; n--) {
        struct flight * f      = s->flights;
        const int       status = wait_flight(s, f);
        if (status != GGML_STATUS_SUCCESS || !s->flying) {
            return gbpy_outcome(status == GGML_STATUS_ABORTED ? GGML_STATUS_SUCCESS : status);
        }
        if (f->next == NULL) {
            return land_earlier(s);
        }
        gbpy_lock();
        s->flights = f->next;
        gbpy_unlock();
        free_flight(f);
    }
    return GGML_STATUS_SUCCESS;
}

static struct flight * new_flight(struct gbpy_sched * s, struct gbpy_run * run) {
    struct flight * f = GB_NEW(struct flight);
    if (f == NULL || (f->events = gb_calloc((size_t) s->n_backends, sizeof(*f->events))) == NULL) {
        gb_free(f);
        return NULL;
    }
    f->run = run;
    for (int i = 0; i < s->n_backends; i++) {
        if (ggml_backend_is_cpu(s->backends[i]->ptr)) {
            continue;
        }
        f->events[f->n_events] = ggml_backend_event_new(s->backends[i]->ptr);
        if (f->events[f->n_events] == NULL) {
            free_flight(f);
            return NULL;
        }
        f->n_events++;
    }
    return f;
}

static bool note_flight(struct gbpy_sched * s, struct gbpy_object * g, struct flight * f, uintptr_t object) {
    if (!s->flying) {
        bool ok = gb_vec_reserve(&s->fly_wants, s->owners.n + 1 + (size_t) s->n_backends);
        if (!ok) {
            return false;
        }
        s->fly_wants.data[s->fly_wants.n++] = (struct gbpy_want){ .object = s->object, .write = true };
        for (int i = 0; i < s->n_backends; i++) {
            s->fly_wants.data[s->fly_wants.n++] = (struct gbpy_want){ .object = s->backends[i], .write = true };
        }
        for (size_t i = 0; i < s->owners.n; i++) {
            s->fly_wants.data[s->fly_wants.n++] = s->owners.data[i];
        }
        for (size_t i = 1; i < s->fly_wants.n; i++) { // itself it must not keep
            gbpy_ref(s->fly_wants.data[i].object);
        }
        gbpy_ref(g);
        s->fly_graph  = g;
        s->generation = gb_fork_generation();
    }
    if (object != 0) {
        const PyGILState_STATE state = PyGILState_Ensure();
        Py_IncRef((PyObject *) object);
        PyGILState_Release(state);
        f->object = (void *) object;
    }
    gbpy_lock();
    f->id                 = ++s->last_id;
    struct flight ** last = &s->flights;
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = f;
    gbpy_unlock();
    return true;
}

// Behind the work of the backend that computes it; false if only the host can fetch it, when all is done.
static int fetch(ggml_backend_t backend, struct ggml_tensor * t, void * to, bool * queued) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    *queued                            = buffer != NULL && ggml_backend_buft_supports_backend(ggml_backend_buffer_get_type(buffer), backend);
    return *queued && ggml_nbytes(t) > 0 ? (int) ggml_backend_tensor_get_async(backend, t, to, 0, ggml_nbytes(t)) : GGML_STATUS_SUCCESS;
}

static int issue(struct gbpy_sched * s, struct gbpy_object * g, struct flight * f, struct gbpy_run * run, struct ggml_tensor ** results, void ** to, int n) {
    struct gbpy_run plain = { .who = gbpy_me() };
    void *          outer = gb_run();
    bool            all_queued = true;
    if (run != NULL) {
        run->who = plain.who;
    }
    gb_set_run(run != NULL ? run : &plain);
    int status = ggml_backend_sched_graph_compute_async(s->object->ptr, g->ptr);
    gb_set_run(outer);
    if (status == GGML_STATUS_SUCCESS && !own_new(s)) {
        status = GGML_STATUS_ALLOC_FAILED;
    }
    for (int i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
        bool                 queued  = false;
        const ggml_backend_t backend = computes_result(s, results[i]);
        status     = backend != NULL ? fetch(backend, results[i], to[i], &queued) : GGML_STATUS_INVALID_ARGUMENT;
        all_queued = all_queued && queued;
    }
    for (int i = 0; i < f->n_events && status == GGML_STATUS_SUCCESS && all_queued; i++) {
        status = ggml_backend_event_record(f->events[i]);
    }
    if (status == GGML_STATUS_SUCCESS && !all_queued) { // no queue can bring them
        status   = land_inside(s);
        for (int i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
            status = ggml_nbytes(results[i]) > 0 ? (int) ggml_backend_tensor_get(results[i], to[i], 0, ggml_nbytes(results[i])) : GGML_STATUS_SUCCESS;
        }
    }
    return status;
}

int gbpy_sched_start(struct gbpy_handle * sched, struct gbpy_handle * graph, struct gbpy_run * run, uintptr_t object, struct ggml_tensor ** results, void ** to, int n, uint64_t * id, int * how) {
    static const char    what[] = "Scheduler.compute_async";
    struct gbpy_use      use = { 0 };
    struct gbpy_sched *  s   = sched_of(sched, what);
    struct gbpy_object * g   = gbpy_object_of(graph, what);
    if (s == NULL || g == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    // Twice: a plan that is to be made needs all runs to be complete.
    int status = enter_planned(&use, s, g, false, true, what, how);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    for (int i = 0; i < s->n_backends && status == GGML_STATUS_SUCCESS; i++) {
        status = may_be_cancelled(s->backends[i]) ? land_earlier(s) : status; // runs that were cancelled are known as such
    }
    status = status == GGML_STATUS_SUCCESS ? make_way(s, g, run) : status;
    struct flight * f = NULL;
    for (int i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
        status = computes_result(s, results[i]) != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_INVALID_ARGUMENT;
    }
    if (status == GGML_STATUS_SUCCESS) {
        f      = new_flight(s, run);
        status = f != NULL && note_flight(s, g, f, object) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
        if (status != GGML_STATUS_SUCCESS && f != NULL) {
            free_flight(f);
        }
    }
    if (status == GGML_STATUS_SUCCESS) {
        const long long version = atomic_load(&gbpy_sets);
        *id                     = f->id;
        s->ran                  = true; // when it has landed; a failure takes it back
        s->version              = version;
        for (int i = 0; i < s->n_backends; i++) {
            begin_stop(s->backends[i]);
        }
        set_flying(s, true);
        gbpy_lock();
        note_results(g, version);
        gbpy_unlock();
        status = issue(s, g, f, run, results, to, n);
        if (status != GGML_STATUS_SUCCESS) {
            char message[GB_ERROR_SIZE / 2];
            snprintf(message, sizeof(message), "%s", ggml_last_error());
            for (struct flight * a = s->flights; a != NULL; a = a->next) {
                a->state = a->id == *id ? -1 : a->state;
            }
            const int landed = land_inside(s);
            s->ran           = false;
            forget_results_now(g);
            if (landed == GBPY_INTERRUPTED) {
                status = landed;
            } else if (message[0] != '\0') {
                gb_fail_quietly((enum ggml_status) status, message);
            }
        }
        status = outcome_of(run, status);
    }
    gbpy_leave(&use);
    return status;
}

int gbpy_sched_state(struct gbpy_handle * sched, uint64_t id) {
    const struct gbpy_sched * s     = sched != NULL && sched->object != NULL ? sched->object->sched : NULL;
    int                       state = 1;
    if (s == NULL) {
        return -1;
    }
    gbpy_lock();
    for (size_t i = 0; i < s->failed.n; i++) {
        state = s->failed.data[i] == id ? -1 : state;
    }
    for (const struct flight * f = s->flights; f != NULL; f = f->next) {
        state = f->id == id ? f->state : state;
    }
    gbpy_unlock();
    return state;
}

int gbpy_sched_wait(struct gbpy_handle * sched, uint64_t id) {
    static const char   what[] = "Scheduler.synchronize";
    struct gbpy_use     use    = { 0 };
    struct gbpy_sched * s      = sched_of(sched, what);
    if (s == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    if (id != 0 && !gbpy_sched_is_flying(sched)) { // it may be closed
        return gbpy_sched_state(sched, id) > 0 ? GGML_STATUS_SUCCESS : gb_fail(GGML_STATUS_INVALID_STATE, "Pending: the computation failed, or was stopped");
    }
    int status = enter_sched(&use, s, what);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    if (id == 0) {
        status = land_inside(s);
        if (status == GGML_STATUS_SUCCESS && s->kept_status != GGML_STATUS_SUCCESS) {
            status         = gb_fail_quietly((enum ggml_status) s->kept_status, s->kept_message);
            s->kept_status = GGML_STATUS_SUCCESS;
        }
    } else {
        struct flight * f = s->flights;
        while (f != NULL && f->id != id) {
            f = f->next;
        }
        if (f != NULL && s->generation != gb_fork_generation()) {
            status = land_inside(s);
        } else if (f != NULL) {
            const bool plain = f->n_events > 0;
            status = plain ? wait_flight(s, f) : land_inside(s);
            if (s->flying && f->next == NULL && s->flights == f && status == GGML_STATUS_SUCCESS) {
                status = land_inside(s); // the last one: nothing is on its way any more
            }
        }
        for (size_t i = 0; i < s->failed.n && status == GGML_STATUS_SUCCESS; i++) {
            if (s->failed.data[i] == id) {
                status = gb_fail(GGML_STATUS_INVALID_STATE, "Pending: the computation failed, or was stopped");
            }
        }
    }
    gbpy_leave(&use);
    return gbpy_outcome(status);
}

void gbpy_land_all(void) {
    int status = GGML_STATUS_SUCCESS;
    while (status == GGML_STATUS_SUCCESS) {
        gbpy_lock();
        struct gbpy_object * o     = flying != NULL ? flying->object : NULL;
        const bool           lives = o != NULL && gbpy_try_ref(o);
        gbpy_unlock();
        if (!lives) {
            break;
        }
        status = land(o->sched);
        gbpy_unref(o);
    }
}

bool gbpy_sched_is_flying(const struct gbpy_handle * sched) {
    bool on = false;
    if (sched != NULL && sched->object != NULL && sched->object->sched != NULL) {
        gbpy_lock();
        on = sched->object->sched->flying;
        gbpy_unlock();
    }
    return on;
}

// -------------------------------------------------------------------------------------------------------------------------- other

int gbpy_sched_reset(struct gbpy_handle * sched) {
    struct gbpy_use     use = { 0 };
    struct gbpy_sched * s   = sched_of(sched, "Scheduler.reset");
    if (s == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    int status = enter_sched(&use, s, "Scheduler.reset");
    if (status == GGML_STATUS_SUCCESS) {
        status = land_inside(s);
        if (status != GBPY_INTERRUPTED) {
            const int reset = ggml_backend_sched_reset(s->object->ptr);
            status          = status == GGML_STATUS_SUCCESS ? reset : status;
            forget_plan(s);
            s->about = 0;
            for (size_t i = 0; i < s->assigned.n; i++) {
                gbpy_weak_unref(s->assigned.data[i].context);
            }
            s->assigned.n = 0;
            gbpy_note_move();
        }
        gbpy_leave(&use);
    }
    return status;
}

int gbpy_sched_close(struct gbpy_handle * sched) {
    struct gbpy_use     use = { 0 };
    struct gbpy_sched * s   = sched != NULL && sched->object != NULL ? sched->object->sched : NULL;
    if (s == NULL) {
        return GGML_STATUS_SUCCESS;
    }
    int status = GGML_STATUS_SUCCESS;
    if (!gbpy_is_mine(sched)) { // else it is closed from one of its own callbacks, and what it has is freed when the computation ends
        status = enter_sched(&use, s, "Scheduler.close");
        if (status == GBPY_INTERRUPTED) {
            return status; // not closed yet
        }
        if (status == GGML_STATUS_SUCCESS) {
            status = land_inside(s);
            ggml_backend_sched_reset(s->object->ptr);
            forget_plan(s);
            gbpy_leave(&use);
        } else {
            ggml_clear_error();
            status = GGML_STATUS_SUCCESS;
        }
    }
    gbpy_close(sched);
    return status;
}

int gbpy_sched_set_backend(struct gbpy_handle * sched, struct gbpy_handle * context, struct ggml_tensor * node, struct gbpy_handle * backend) {
    static const char    what[] = "Scheduler.set_backend";
    struct gbpy_use      use    = { 0 };
    struct gbpy_sched *  s      = sched_of(sched, what);
    struct gbpy_object * c      = gbpy_object_of(context, what);
    struct gbpy_object * b      = backend != NULL ? gbpy_object_of(backend, what) : NULL;
    if (s == NULL || c == NULL || (backend != NULL && b == NULL)) {
        return GGML_STATUS_INVALID_STATE;
    }
    int status = enter_sched(&use, s, what);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    status = land_earlier(s);
    if (status == GGML_STATUS_SUCCESS && b != NULL && !gb_vec_reserve(&s->assigned, s->assigned.n + 1)) {
        status = GGML_STATUS_ALLOC_FAILED;
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = ggml_backend_sched_set_node_backend(s->object->ptr, node, b != NULL ? b->ptr : NULL);
    }
    if (status == GGML_STATUS_SUCCESS) {
        bool known = false;
        for (size_t i = 0; i < s->assigned.n && !known; i++) {
            known = s->assigned.data[i].node == node && s->assigned.data[i].context == c;
        }
        if (b != NULL && !known) {
            atomic_fetch_add(&c->weak, 1);
            s->assigned.data[s->assigned.n++] = (struct assigned){ node, c };
        }
        s->dirty = s->dirty_choices = true;
    }
    gbpy_leave(&use);
    return status;
}

int gbpy_sched_set_n_copies(struct gbpy_handle * sched, int n) {
    struct gbpy_use     use = { 0 };
    struct gbpy_sched * s   = sched_of(sched, "Scheduler.n_copies");
    if (s == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    int status = enter_sched(&use, s, "Scheduler.n_copies");
    if (status == GGML_STATUS_SUCCESS) {
        status = land_earlier(s);
        status = status == GGML_STATUS_SUCCESS ? (int) ggml_backend_sched_set_n_copies(s->object->ptr, n) : status;
        if (status == GGML_STATUS_SUCCESS) {
            s->n_copies = n;
            s->dirty    = s->dirty_choices = true;
        }
        gbpy_leave(&use);
    }
    return status;
}

void gbpy_sched_keep_all(struct gbpy_handle * sched, bool keep) {
    struct gbpy_sched * s = sched_of(sched, "Scheduler");
    if (s != NULL) {
        s->keep_all = keep;
    }
}

int gbpy_sched_reset_stats(struct gbpy_handle * sched) {
    struct gbpy_use     use = { 0 };
    struct gbpy_sched * s   = sched_of(sched, "Scheduler.reset_stats");
    const struct gbpy_want want = { .object = s != NULL ? s->object : NULL, .write = true };
    if (s == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    int status = gbpy_enter_wants(&use, "Scheduler.reset_stats", &want, 1, true);
    if (status == GGML_STATUS_SUCCESS) {
        status        = ggml_backend_sched_reset_stats(s->object->ptr);
        s->n_reported = 0;
        gbpy_leave(&use);
    }
    return status;
}

bool gbpy_sched_is_about(const struct gbpy_handle * sched, const struct gbpy_handle * graph) {
    const struct gbpy_object * g = graph != NULL ? graph->object : NULL;
    return g != NULL && sched != NULL && sched->object != NULL && sched->object->sched->about == g->serial && !sched->object->sched->dirty_choices;
}

void gbpy_pin(struct gbpy_handle * pin, const struct ggml_tensor * t, const struct gbpy_handle * otherwise) {
    struct gbpy_object * o = gbpy_owner_of(t);
    o                      = o != NULL ? o : otherwise != NULL ? otherwise->object : NULL;
    if (o == NULL || (o->kind != GBPY_SCHED && o->kind != GBPY_BUFFER && o->kind != GBPY_COPY)) {
        return;
    }
    if (o->kind == GBPY_SCHED) {
        gb_sched_hold(o->ptr, true);
    }
    gbpy_ref(o);
    atomic_fetch_add(&o->n_pins, 1);
    pin->object = o;
}

// ------------------------------------------------------------------------------------------------------------------------ content

// Who was given memory of root `id` after it, in the current plan, up to position `until` of its program: a tensor's name, "" for a copy
// without one; NULL: nobody.
static const char * overwritten_by(const struct gb_sched_plan * p, int id, int64_t until) {
    const struct gb_item * mine = &p->ids.data[id].item;
    if (!mine->valid || p->ids.data[id].keep) {
        return NULL;
    }
    for (int64_t i = 0; i < p->n_ids + (int64_t) p->copies.n; i++) {
        const struct gb_item * other = i == id ? NULL : gb_sched_arena_item(p, i);
        if (other != NULL && other->valid && other->backend == mine->backend && other->chunk == mine->chunk && other->lower > mine->lower && other->lower <= until &&
            other->offset < mine->offset + mine->size && mine->offset < other->offset + other->size) {
            return i < p->n_ids ? p->nodes[i]->name : "";
        }
    }
    return NULL;
}

// While the graph runs and a callback looks at it: what was computed so far.
static int check_running(const struct gbpy_sched * s, const struct gb_sched_plan * p, int id, const char * what) {
    const int64_t shown = s->shown != NULL ? gb_ptrmap_get(&p->map, s->shown) : GB_PTRMAP_ABSENT;
    if (shown == GB_PTRMAP_ABSENT || shown >= p->n_nodes || id > shown) {
        return gb_fail(GGML_STATUS_INVALID_STATE, "%s is not computed yet: the graph is running", what);
    }
    const struct gb_item * now = &p->ids.data[p->ids.data[shown].root].item;
    if (id != p->ids.data[shown].root && overwritten_by(p, id, now->valid ? now->lower : INT64_MAX) != NULL) {
        return gb_fail(GGML_STATUS_INVALID_STATE, "%s is not there any more: its memory was used again. To keep it: ctx.graph(..., keep=[it])", what);
    }
    return GGML_STATUS_SUCCESS;
}

static int check_sched(const struct gbpy_object * o, const struct ggml_tensor * t, bool reading, const char * what) {
    struct ggml_backend_sched *  raw  = o->ptr;
    const struct gbpy_sched *    s    = o->sched;
    const struct ggml_tensor *   root = gb_root(t);
    const struct gb_sched_plan * p    = raw->current;
    if (reading && !__atomic_load_n(&raw->hold, __ATOMIC_RELAXED)) {
        __atomic_store_n(&raw->hold, true, __ATOMIC_RELAXED); // from now on memory must stay while arrays look into it, even if the scheduler has no more use for it
    }
    if (gb_sched_leaf_is_bound(raw, root)) {
        return GGML_STATUS_SUCCESS;
    }
    const int64_t id = p != NULL ? gb_ptrmap_get(&p->map, root) : GB_PTRMAP_ABSENT;
    if (id == GB_PTRMAP_ABSENT || p->key[id].data != root->data || p->key[id].buffer != root->buffer) {
        return gb_fail(GGML_STATUS_INVALID_STATE, "%s is not there any more: the scheduler has used the memory for another graph, or was reset", what);
    }
    if (!reading || p->ids.data[id].home != GB_HOME_ARENA || ggml_nelements(root) == 0) {
        return GGML_STATUS_SUCCESS;
    }
    if (s->running) {
        return check_running(s, p, (int) id, what);
    }
    GB_FAIL_IF(!s->ran || s->graph == NULL, GGML_STATUS_INVALID_STATE, GGML_STATUS_INVALID_STATE,
               "%s was not computed: the graph did not run yet, or its last run failed or was stopped", what);
    const struct ggml_tensor * newer = s->version == atomic_load(&gbpy_sets) ? NULL : gbpy_newer_input(root, s->version + 1);
    GB_FAIL_IF(newer != NULL, GGML_STATUS_INVALID_STATE, GGML_STATUS_INVALID_STATE,
               "%s is out of date: the input '%s' was set after the last computation; compute again", what, newer != NULL ? newer->name : "");
    const char * by = overwritten_by(p, (int) id, INT64_MAX);
    GB_FAIL_IF(by != NULL, GGML_STATUS_INVALID_STATE, GGML_STATUS_INVALID_STATE,
               "%s is not there any more: its memory was used again for %s%s%s while the graph ran. To keep it: ctx.graph(..., keep=[it]), or "
               "Scheduler(..., keep_all=True) for all results", what, by != NULL && by[0] != '\0' ? "'" : "", by != NULL && by[0] != '\0' ? by : "another result",
               by != NULL && by[0] != '\0' ? "'" : "");
    GB_FAIL_IF(gb_tensor_is_read_once(root) && !p->ids.data[id].keep, GGML_STATUS_INVALID_STATE, GGML_STATUS_INVALID_STATE,
               "%s was computed together with what reads it, and not stored. To keep it: ctx.graph(..., keep=[it]), or Scheduler(..., keep_all=True) for "
               "all results", what);
    return GGML_STATUS_SUCCESS;
}

#if defined(__GNUC__) || defined(__clang__)
__attribute__((constructor))
#endif
static void install_hooks(void) { prepare_hooks(); }
