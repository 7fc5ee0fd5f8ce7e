// graphs.c - the memory of a graph's tensors, stop flags, and computing, copying and comparing graphs (graphs.h).
#include "graphs.h"

#include <stdio.h>
#include <string.h>

#include "extension.h"
#include "ggml-cpu.h"
#include "profiles.h"

void * gbpy_run_handle(void) {
    const struct gbpy_run * run = gb_run();
    return run != NULL ? run->handle : NULL;
}

int gbpy_outcome_of(const struct gbpy_run * run, int status) {
    if (run != NULL && run->stopped != 0 && status >= 0) {
        status = GGML_STATUS_ABORTED;
    }
    return gbpy_outcome(status);
}

// ------------------------------------------------------------------------------------------------------------ stopping

enum { POLL_NS = 10000000, LOOK_NS = POLL_NS / 20, MOST_UNASKED = 64, MOST_AT_BEGIN = 8 };

// Reads the clock after `stride` calls, about every LOOK_NS, so that small nodes do not pay for it. Long nodes poll
// often.
static bool is_time_to_poll(struct gbpy_stop * s) {
    if (gb_get_poll(NULL) == NULL || ++s->asked < s->stride) {
        return false;
    }
    const int64_t now = gb_time_ns();
    s->stride =
        now - s->looked_ns < LOOK_NS ? GB_MIN(2 * s->stride, (unsigned) MOST_UNASKED) : GB_MAX(s->stride / 4, 1u);
    s->asked = 0;
    s->looked_ns = now;
    if (now - s->polled_ns < POLL_NS) {
        return false;
    }
    s->polled_ns = now;
    return true;
}

static bool wants_to_stop(void * data) {
    struct gbpy_stop * s = data;
    return __atomic_load_n(&s->stop, __ATOMIC_RELAXED) != 0 || (s->handle != NULL && s->ask(s->handle)) ||
           (is_time_to_poll(s) && gb_poll());
}

bool gbpy_may_be_cancelled(const struct gbpy_backend * backend) {
    return backend->cancels != atomic_load(&gbpy_cancels);
}

// Clears the failure of work that an interrupt has cancelled in a queue. Nobody waits for it, and it is not a failure
// of the next computation.
static void forget_cancelled(struct gbpy_backend * backend) {
    if (gbpy_may_be_cancelled(backend)) {
        backend->cancels = atomic_load(&gbpy_cancels);
        ggml_backend_synchronize(backend->head.ptr);
        ggml_clear_error();
    }
}

void gbpy_begin_stop(struct gbpy_backend * backend) {
    struct gbpy_stop * s = backend->stop;
    forget_cancelled(backend);
    __atomic_store_n(&s->stop, 0, __ATOMIC_RELAXED);
    s->stride = GB_MAX(GB_MIN(s->stride, (unsigned) MOST_AT_BEGIN),
        1u); // nodes of this graph may take longer than those of the last graph
}

void gbpy_end_stop(struct gbpy_backend * backend) { __atomic_store_n(&backend->stop->stop, 0, __ATOMIC_RELAXED); }

void gbpy_stop(struct gbpy_handle * backend) {
    struct gbpy_backend * b = gbpy_backend_of(backend, "Backend.stop");
    if (b == NULL) {
        ggml_clear_error();
        return;
    }
    gbpy_mutex_lock();
    if (b->head.writer != NULL) { // otherwise it computes nothing
        __atomic_store_n(&b->stop->stop, 1, __ATOMIC_RELAXED);
    }
    gbpy_mutex_unlock();
}

int gbpy_open_backend(struct gbpy_handle * handle, const char * spec, struct gbpy_stop * stop) {
    struct gbpy_backend * b = gbpy_object_new(GBPY_BACKEND);
    if (b == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    struct gbpy_object * o = &b->head;
    b->stop = stop;
    o->ptr = ggml_backend_reg_init_backend_from_str(spec);
    int status = o->ptr != NULL ? GGML_STATUS_SUCCESS : (int) ggml_last_status();
    if (status == GGML_STATUS_SUCCESS && ggml_backend_is_cpu(o->ptr)) {
        status = ggml_backend_cpu_set_abort_callback(o->ptr, wants_to_stop, stop);
    }
    if (status != GGML_STATUS_SUCCESS) {
        gbpy_unref(o);
        return status;
    }
    handle->object = o;
    return GGML_STATUS_SUCCESS;
}

// --------------------------------------------------------------------------------------------------- what a graph uses

static int fail_freed(const struct ggml_tensor * t, const char * what) {
    char text[160];
    gbpy_describe(t, text, sizeof(text));
    return gb_fail(GGML_STATUS_INVALID_STATE, "%s: the graph uses %s, whose memory was freed", what, text);
}

static int fail_write(const struct ggml_tensor * node, const char * where, const char * what) {
    char text[160];
    gbpy_describe(node, text, sizeof(text));
    return gb_fail(GGML_STATUS_INVALID_STATE, "%s: the node %s would write to %s", what, text, where);
}

// Notes what a node writes: a result, or an input, which then has content.
static bool note_result(struct gbpy_graph * g, struct ggml_tensor * root) {
    return root->op != GGML_OP_NONE ? gb_vec_push(&g->results, root) : gb_vec_push(&g->written, root);
}

// `computed`: a node of the graph computes the tensor.
static int look_at_tensor(struct gbpy_graph * g, struct ggml_tensor * t, bool computed, const char * what) {
    struct ggml_tensor * root = gb_root(t);
    struct gbpy_memory * owner = gbpy_owner_of(t);
    const bool writes = computed && gb_op_computes(t->op);
    const bool lost = gbpy_has_lost_memory(t);
    if (writes && gbpy_is_constant(t)) {
        return fail_write(t, "a constant", what);
    }
    if (g->unplaced == NULL && (lost || (owner == NULL && root->data == NULL && ggml_nelements(t) > 0))) {
        g->unplaced = t;
    }
    if (lost) {
        const bool may_be_placed_again = owner != NULL && owner->scratch;
        return (root->op == GGML_OP_NONE || !computed) && !may_be_placed_again ? fail_freed(root, what)
                                                                               : GGML_STATUS_SUCCESS;
    }
    if (owner == NULL) {
        bool ok = true;
        // one of the contexts owns the memory, but it is unknown which
        for (int i = 0; i < g->n_contexts && root->data != NULL && ok; i++) {
            ok = gbpy_add_request(&g->memory, &g->contexts[i]->memory.head, writes);
        }
        ok = ok && (!writes || root->data == NULL || note_result(g, root));
        return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    if (writes && owner->readonly) {
        return fail_write(t, "a read-only buffer", what);
    }
    bool ok = gbpy_add_request(&g->memory, &owner->head, writes);
    if (ok && writes && (owner->head.kind != GBPY_SCHED || root->op == GGML_OP_NONE)) {
        ok = note_result(g, root);
    }
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

int gbpy_look_at_graph(struct gbpy_graph * g, const char * what) {
    const struct ggml_cgraph * graph = g->head.ptr;
    const long long now = gbpy_epoch_now();
    int status = GGML_STATUS_SUCCESS;
    if (g->epoch == now) {
        return status;
    }
    g->epoch = -1;
    g->unplaced = NULL;
    gbpy_begin_requests(&g->memory);
    g->results.n = 0;
    g->written.n = 0;
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

static int fail_unplaced(const struct ggml_tensor * t, const char * what) {
    const bool lost = gbpy_has_lost_memory(t);
    char text[160];
    gbpy_describe(gb_root(t), text, sizeof(text));
    return gb_fail(GGML_STATUS_INVALID_STATE, "%s: %s has no memory%s", what, text,
        lost ? " any more" : "; allocate the graph");
}

int gbpy_lock_graph(struct gbpy_locks * locks, struct gbpy_graph * g, const struct gbpy_request * first, int n,
    bool places, const char * what) {
    gbpy_requests requests = { 0 };
    int status = GGML_STATUS_SUCCESS;
    gbpy_mutex_lock();
    while (status == GGML_STATUS_SUCCESS && !locks->active) {
        if (g->epoch != gbpy_epoch_now() || (!places && g->unplaced != NULL)) {
            status = gbpy_wait_for_placement(g->contexts, g->n_contexts, what);
            status = status == GGML_STATUS_SUCCESS ? gbpy_look_at_graph(g, what) : status;
            if (status == GGML_STATUS_SUCCESS && !places && g->unplaced != NULL) {
                status = fail_unplaced(g->unplaced, what);
            }
        }
        bool ok = status == GGML_STATUS_SUCCESS;
        gbpy_begin_requests(&requests);
        for (int i = 0; ok && i < n; i++) {
            ok = gbpy_add_request(&requests, first[i].object, first[i].write);
        }
        for (size_t i = 0; ok && i < g->memory.n; i++) {
            ok = gbpy_add_request(&requests, g->memory.data[i].object, g->memory.data[i].write);
        }
        for (int i = 0; ok && places && i < g->n_contexts; i++) {
            ok = gbpy_add_placement(&requests, g->contexts[i]);
        }
        ok = ok && gbpy_reserve_locks(locks, (int) requests.n);
        if (status == GGML_STATUS_SUCCESS) {
            status = ok ? gbpy_take_or_wait(locks, what, requests.data, (int) requests.n, false, NULL)
                        : GGML_STATUS_ALLOC_FAILED;
        }
    }
    gbpy_mutex_unlock();
    gb_vec_free(&requests);
    return status;
}

bool gbpy_try_lock_graph(struct gbpy_locks * locks, const struct gbpy_request * first, int n,
    const gbpy_requests * owners, long long epoch) {
    enum { FEW = 8 };
    struct gbpy_request few[FEW], *requests = few;
    const size_t all = (size_t) n + owners->n;
    if (epoch != gbpy_epoch_now() || gbpy_any_pending()) {
        return false;
    }
    if (all > FEW &&
        ((requests = gb_calloc(all, sizeof(*requests))) == NULL || !gbpy_reserve_locks(locks, (int) all))) {
        gb_free(requests);
        return false;
    }
    memcpy(requests, first, (size_t) n * sizeof(*requests));
    for (size_t i = 0; i < owners->n; i++) {
        requests[(size_t) n + i] = owners->data[i];
    }
    const bool taken = gbpy_try_take(locks, requests, (int) all);
    if (requests != few) {
        gb_free(requests);
    }
    return taken;
}

static bool is_written(const struct ggml_cgraph * graph, const struct ggml_tensor * leaf) {
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->nodes[i]->view_src == leaf && gb_op_computes(graph->nodes[i]->op)) {
            return true;
        }
    }
    return false;
}

int gbpy_check_inputs(const struct ggml_cgraph * graph, const char * what) {
    for (int i = 0; i < graph->n_leafs; i++) {
        const struct ggml_tensor * leaf = gb_root(graph->leafs[i]);
        const struct gbpy_memory * owner = gbpy_owner_of(leaf);
        if (gbpy_is_unset(owner, leaf) && !is_written(graph, leaf)) {
            return gb_fail(GGML_STATUS_INVALID_STATE,
                "%s: the input '%s' was not set: give it data with set() once it has memory, before computing", what,
                leaf->name);
        }
    }
    return GGML_STATUS_SUCCESS;
}

// The leafs, then the nodes.
static struct ggml_tensor * tensor_at(const struct ggml_cgraph * c, int i) {
    return i < c->n_leafs ? c->leafs[i] : c->nodes[i - c->n_leafs];
}

// With locks on the memory: fails unless memory of schedulers still belongs to the graph and all inputs are set.
static int check_content(struct gbpy_graph * g, bool computes, const char * what) {
    const struct ggml_cgraph * graph = g->head.ptr;
    for (int i = 0; i < graph->n_leafs + graph->n_nodes; i++) {
        const struct ggml_tensor * t = tensor_at(graph, i);
        const struct gbpy_memory * owner = gbpy_owner_of(t);
        if (owner != NULL && owner->head.kind == GBPY_SCHED) {
            char text[256], name[160];
            gbpy_describe(gb_root(t), name, sizeof(name));
            snprintf(text, sizeof(text), "%s: %s", what, name);
            GB_TRY(gbpy_check_own(owner, t, text));
        }
    }
    return computes ? gbpy_check_inputs(graph, what) : GGML_STATUS_SUCCESS;
}

// check_content, unless the graph passed it since any tensor was placed.
static int check_ready(struct gbpy_graph * g, bool computes, const char * what) {
    gbpy_mutex_lock();
    const long long epoch = g->epoch;
    const bool ready = g->checked == epoch;
    gbpy_mutex_unlock();
    if (ready) {
        return GGML_STATUS_SUCCESS;
    }
    GB_TRY(check_content(g, computes, what));
    gbpy_mutex_lock();
    if (computes && g->epoch == epoch) {
        g->checked = epoch;
    }
    gbpy_mutex_unlock();
    return GGML_STATUS_SUCCESS;
}

// gbpy_lock_graph for a computation in the memory that the tensors have.
static int lock_placed(struct gbpy_locks * locks, struct gbpy_graph * g, const struct gbpy_request * first, int n,
    bool computes, const char * what) {
    int status = gbpy_lock_graph(locks, g, first, n, false, what);
    if (status == GGML_STATUS_SUCCESS) {
        status = check_ready(g, computes, what);
    }
    if (status != GGML_STATUS_SUCCESS) {
        gbpy_unlock(locks);
    }
    return status;
}

// ----------------------------------------------------------------------------------------------------------- computing

void gbpy_note_results(struct gbpy_graph * g, long long version) {
    for (size_t i = 0; i < g->results.n; i++) {
        gbpy_set_stamp(g->results.data[i], version + 1);
    }
    for (size_t i = 0; i < g->written.n; i++) {
        if (gbpy_stamp(g->written.data[i]) == 0) {
            gbpy_set_stamp(g->written.data[i], 1);
        }
    }
    g->computed = version;
}

void gbpy_forget_results(struct gbpy_graph * g, long long unused) {
    (void) unused;
    for (size_t i = 0; i < g->results.n; i++) {
        gbpy_set_stamp(g->results.data[i], 0);
    }
    g->computed = -1;
}

void gbpy_forget_results_now(struct gbpy_graph * g) {
    gbpy_mutex_lock();
    gbpy_forget_results(g, 0);
    gbpy_mutex_unlock();
}

// With locks on the backend and on the memory of the graph. `trusts`: no callback can change the tensors meanwhile.
static int compute_locked(struct gbpy_graph * g, struct gbpy_backend * b, struct gbpy_run * run, bool trusts) {
    int status = GGML_STATUS_SUCCESS;
    void * outer = gb_run();
    struct gbpy_recording recording;
    gbpy_begin_stop(b);
    gbpy_begin_recording(&recording, NULL, g);
    gb_set_run(run);
    const bool trust = gb_trust_tensors(trusts);
    if (ggml_backend_graph_compute(b->head.ptr, g->head.ptr)) {
        status = ggml_backend_synchronize(b->head.ptr);
    } else {
        status = ggml_last_status() != GGML_STATUS_SUCCESS ? (int) ggml_last_status() : GGML_STATUS_FAILED;
    }
    gb_trust_tensors(trust);
    gb_set_run(outer);
    gbpy_end_recording(&recording, run->stopped == 0);
    gbpy_end_stop(b);
    return gbpy_outcome_of(run, status);
}

int gbpy_graph_compute(struct gbpy_handle * graph, struct gbpy_handle * backend, struct gbpy_run * run) {
    static const char what[] = "Graph.compute";
    struct gbpy_request held[8];
    struct gbpy_locks locks = { .held = held, .capacity = 8, .borrowed = true };
    struct gbpy_graph * g = gbpy_graph_of(graph, what);
    struct gbpy_backend * b = gbpy_backend_of(backend, what);
    if (g == NULL || b == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    const struct gbpy_request device = { .object = &b->head, .write = true };
    gbpy_mutex_lock();
    const bool entered = g->checked == g->epoch && gbpy_try_lock_graph(&locks, &device, 1, &g->memory, g->epoch);
    gbpy_mutex_unlock();
    int status = entered ? GGML_STATUS_SUCCESS : lock_placed(&locks, g, &device, 1, true, what);
    if (status == GGML_STATUS_SUCCESS) {
        const long long version = atomic_load(&gbpy_sets);
        const bool calls_back = run != NULL;
        struct gbpy_run plain = { 0 };
        if (calls_back) {
            gbpy_forget_results_now(g); // callbacks may read results
        } else {
            run = &plain;
        }
        run->owner = locks.owner;
        status = compute_locked(g, b, run, !calls_back);
        gbpy_unlock_after(&locks, status == GGML_STATUS_SUCCESS ? gbpy_note_results : gbpy_forget_results, g, version);
    }
    return status;
}

// -------------------------------------------------------------------------------------------- in memory of the caller

static const char in_memory[] = "Graph.function";

static bool is_among(const struct ggml_tensor * t, struct ggml_tensor * const * tensors, int n) {
    for (int i = 0; i < n; i++) {
        if (tensors[i] == t) {
            return true;
        }
    }
    return false;
}

int gbpy_graph_check_lent(struct gbpy_handle * graph, struct ggml_tensor ** tensors, bool * written, int n) {
    const struct gbpy_graph * g = gbpy_graph_of(graph, in_memory);
    if (g == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    const struct ggml_cgraph * c = g->head.ptr;
    for (int i = 0; i < n; i++) {
        const struct ggml_tensor * t = tensors[i];
        char name[160];
        gbpy_describe(t, name, sizeof(name));
        const char * why = is_among(t, tensors, i) ? "occurs twice"
                           : t->view_src != NULL   ? "is a view: give the tensor that it views"
                           : gbpy_is_constant(t)   ? "is a constant, which has its own memory"
                           : !is_among(t, c->leafs, c->n_leafs) && !is_among(t, c->nodes, c->n_nodes)
                               ? "is not in the graph"
                               : NULL;
        GB_FAIL_IF(why != NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: %s %s", in_memory, name, why);
        written[i] = t->op != GGML_OP_NONE || is_written(c, t);
    }
    return GGML_STATUS_SUCCESS;
}

static int check_addresses(struct ggml_tensor * const * tensors, void * const * data, int n) {
    for (int i = 0; i < n; i++) {
        const size_t unit = tensors[i]->nb[0], alignment = GB_MIN(unit & (~unit + 1), (size_t) 8);
        if (tensors[i]->data == NULL && (uintptr_t) data[i] % alignment == 0) {
            continue;
        }
        char name[160];
        gbpy_describe(tensors[i], name, sizeof(name));
        GB_FAIL_IF(tensors[i]->data != NULL, GGML_STATUS_INVALID_STATE,
            "%s: %s has its own memory: a function takes arrays of tensors without memory", in_memory, name);
        return gb_fail(GGML_STATUS_INVALID_ARGUMENT,
            "%s: the address of the array of %s must be a multiple of %zu bytes", in_memory, name, alignment);
    }
    return GGML_STATUS_SUCCESS;
}

// With the locks for placing tensors of the graph's contexts, after check_addresses. Views follow their sources.
static int lend(const struct ggml_cgraph * c, struct ggml_tensor ** tensors, void ** data, int n) {
    for (int i = 0; i < n; i++) {
        gb_tensor_put(tensors[i], NULL, data[i]);
        gbpy_set_stamp(tensors[i], 1); // it has content
    }
    for (int i = 0; i < c->n_leafs + c->n_nodes; i++) {
        struct ggml_tensor * t = tensor_at(c, i);
        const struct ggml_tensor * root = gb_root(t);
        GB_FAIL_IF(gbpy_has_lost_memory(t) || (root->data == NULL && ggml_nelements(t) > 0), GGML_STATUS_INVALID_STATE,
            "%s: '%s' has no memory: allocate it, or let the function take an array for it", in_memory, root->name);
        if (t != root) {
            GB_TRY(gbpy_refresh(t, in_memory));
        }
    }
    return GGML_STATUS_SUCCESS;
}

static void take_back(const struct ggml_cgraph * c, struct ggml_tensor ** tensors, int n) {
    for (int i = 0; i < c->n_leafs + c->n_nodes; i++) {
        struct ggml_tensor * t = tensor_at(c, i);
        if (t->view_src != NULL && is_among(gb_root(t), tensors, n)) {
            gbpy_unplace(t);
        }
    }
    for (int i = 0; i < n; i++) {
        gbpy_unplace(tensors[i]);
    }
}

int gbpy_graph_compute_in(struct gbpy_handle * graph, struct gbpy_handle * backend, struct ggml_tensor ** tensors,
    void ** data, int n) {
    struct gbpy_locks locks = { 0 };
    struct gbpy_graph * g = gbpy_graph_of(graph, in_memory);
    struct gbpy_backend * b = gbpy_backend_of(backend, in_memory);
    if (g == NULL || b == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    const struct gbpy_request device = { .object = &b->head, .write = true };
    GB_TRY(gbpy_lock_graph(&locks, g, &device, 1, true, in_memory));
    const long long version = atomic_load(&gbpy_sets);
    struct gbpy_run run = { .owner = locks.owner };
    int status = b->stop->handle == NULL ? check_addresses(tensors, data, n)
                                         : gb_fail(GGML_STATUS_INVALID_STATE,
                                               "%s: the backend has an abort callback; remove it", in_memory);
    if (status == GGML_STATUS_SUCCESS) {
        status = lend(g->head.ptr, tensors, data, n);
        status = status == GGML_STATUS_SUCCESS ? check_content(g, true, in_memory) : status;
        status = status == GGML_STATUS_SUCCESS ? compute_locked(g, b, &run, true) : status;
        take_back(g->head.ptr, tensors, n);
    }
    gbpy_unlock_after(&locks, status == GGML_STATUS_SUCCESS ? gbpy_note_results : gbpy_forget_results, g, version);
    return status;
}

int gbpy_graph_is_within_reach(struct gbpy_handle * graph, struct gbpy_handle * backend, bool * reach) {
    static const char what[] = "Graph.compare";
    struct gbpy_graph * g = gbpy_graph_of(graph, what);
    struct gbpy_backend * b = gbpy_backend_of(backend, what);
    struct gbpy_locks locks = { 0 };
    if (g == NULL || b == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(gbpy_lock_graph(&locks, g, NULL, 0, false, what));
    const struct ggml_cgraph * c = g->head.ptr;
    *reach = true;
    for (int i = 0; *reach && i < c->n_leafs + c->n_nodes; i++) {
        const ggml_backend_buffer_t buffer = gb_tensor_buffer(tensor_at(c, i));
        *reach = buffer == NULL || ggml_backend_buft_supports_backend(buffer->buft, b->head.ptr);
    }
    gbpy_unlock(&locks);
    return GGML_STATUS_SUCCESS;
}

int gbpy_graph_compare(struct gbpy_handle * graph, struct gbpy_handle * first, struct gbpy_handle * second,
    struct gbpy_run * run, bool (*see)(int, struct ggml_tensor *, struct ggml_tensor *, void *), void * data) {
    static const char what[] = "Graph.compare";
    struct gbpy_graph * g = gbpy_graph_of(graph, what);
    struct gbpy_backend * both[2] = { gbpy_backend_of(first, what), gbpy_backend_of(second, what) };
    struct gbpy_locks locks = { 0 };
    if (g == NULL || both[0] == NULL || both[1] == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    const struct gbpy_request devices[2] = { { .object = &both[0]->head, .write = true },
        { .object = &both[1]->head, .write = true } };
    int status = lock_placed(&locks, g, devices, 2, true, what);
    if (status == GGML_STATUS_SUCCESS) {
        const long long version = atomic_load(&gbpy_sets);
        void * outer = gb_run();
        run->owner = locks.owner;
        gbpy_begin_stop(both[0]);
        gbpy_begin_stop(both[1]);
        gb_set_run(run);
        const bool ok =
            ggml_backend_compare_graph_backend(both[0]->head.ptr, both[1]->head.ptr, g->head.ptr, see, data);
        gb_set_run(outer);
        gbpy_end_stop(both[0]);
        gbpy_end_stop(both[1]);
        status = gbpy_outcome(ok ? GGML_STATUS_SUCCESS : (int) ggml_last_status());
        gbpy_unlock_after(&locks, ok && status == GGML_STATUS_SUCCESS ? gbpy_note_results : gbpy_forget_results, g,
            version);
        status = !ok && status == GGML_STATUS_SUCCESS ? GGML_STATUS_ABORTED : status;
    }
    gbpy_unlock(&locks);
    return status;
}

static bool may_read(const struct ggml_tensor * leaf, void * data) {
    const struct gbpy_locks * locks = data;
    const struct gbpy_memory * owner = gbpy_owner_of(leaf);
    bool held = owner == NULL && gb_tensor_buffer(leaf) == NULL;
    for (int i = 0; i < locks->n; i++) {
        held |= owner != NULL && locks->held[i].object == &owner->head;
    }
    return held;
}

// Locks the contexts for reading, so that nobody places their tensors meanwhile, and the memory of leafs.
int gbpy_graph_dump_dot(struct gbpy_handle * graph, const char * path) {
    static const char what[] = "Graph.to_dot";
    struct gbpy_graph * g = gbpy_graph_of(graph, what);
    struct gbpy_locks locks = { 0 };
    gbpy_requests requests = { 0 };
    int status = g != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_INVALID_STATE;
    gbpy_mutex_lock();
    while (status == GGML_STATUS_SUCCESS && !locks.active) {
        const struct ggml_cgraph * drawn = g->head.ptr;
        bool ok = true;
        gbpy_begin_requests(&requests);
        for (int i = 0; ok && i < g->n_contexts; i++) {
            struct gbpy_object * c = &g->contexts[i]->memory.head;
            ok = c->closed || c->broken || gbpy_add_request(&requests, c, false);
        }
        for (int i = 0; ok && i < drawn->n_leafs; i++) {
            struct gbpy_memory * owner = gbpy_owner_of(drawn->leafs[i]);
            ok = owner == NULL || owner->head.broken || gbpy_has_lost_memory(drawn->leafs[i]) ||
                 gbpy_add_request(&requests, &owner->head, false);
        }
        ok = ok && gbpy_reserve_locks(&locks, (int) requests.n);
        status = ok ? gbpy_take_or_wait(&locks, what, requests.data, (int) requests.n, true, NULL)
                    : GGML_STATUS_ALLOC_FAILED;
    }
    gbpy_mutex_unlock();
    gb_vec_free(&requests);
    if (status == GGML_STATUS_SUCCESS) {
        status = (int) gb_graph_dump_dot(g->head.ptr, NULL, path, may_read, &locks);
    }
    gbpy_unlock(&locks);
    return status;
}

int gbpy_graph_export(struct gbpy_handle * graph, const char * path) {
    static const char what[] = "Graph.export";
    struct gbpy_graph * g = gbpy_graph_of(graph, what);
    struct gbpy_locks locks = { 0 };
    if (g == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(lock_placed(&locks, g, NULL, 0, false, what));
    const int status = (int) ggml_graph_export(g->head.ptr, path);
    gbpy_unlock(&locks);
    return status;
}

int gbpy_open_copy(struct gbpy_handle * handle, struct gbpy_handle * graph, struct gbpy_handle * backend) {
    static const char what[] = "Graph.copy";
    struct gbpy_graph * g = gbpy_graph_of(graph, what);
    struct gbpy_backend * b = gbpy_backend_of(backend, what);
    struct gbpy_locks locks = { 0 };
    if (g == NULL || b == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    const struct gbpy_request device = { .object = &b->head, .write = true };
    GB_TRY(lock_placed(&locks, g, &device, 1, false, what));
    struct gbpy_copy * c = gbpy_object_new(GBPY_COPY);
    struct gbpy_object * o = (struct gbpy_object *) c;
    int status = c != NULL && gbpy_add_need(o, &b->head) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    if (status == GGML_STATUS_SUCCESS) {
        c->copy = ggml_backend_graph_copy(b->head.ptr, g->head.ptr);
        o->ptr = c->copy.graph;
        status = o->ptr != NULL ? GGML_STATUS_SUCCESS : (int) ggml_last_status();
    }
    if (status == GGML_STATUS_SUCCESS && ((c->copy.buffer != NULL && !gbpy_own(&c->context.memory, c->copy.buffer)) ||
                                             !gbpy_copy_content(g->head.ptr, c->copy.graph))) {
        status = GGML_STATUS_ALLOC_FAILED;
    }
    if (status == GGML_STATUS_SUCCESS) {
        handle->object = o;
    } else {
        gbpy_unref(o);
    }
    gbpy_unlock(&locks);
    return status;
}

struct ggml_context * gbpy_copy_context(const struct gbpy_handle * copy, bool owners) {
    if (copy == NULL || copy->object == NULL || copy->object->kind != GBPY_COPY) {
        return NULL;
    }
    const struct gbpy_copy * c = (const struct gbpy_copy *) copy->object;
    return owners ? c->copy.ctx_allocated : c->copy.ctx_unallocated;
}
