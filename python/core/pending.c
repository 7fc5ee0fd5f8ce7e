// pending.c - starting runs, the list of pending runs, finishing them, and what a fork does to them (pending.h).
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include "pending.h"

#include <stdio.h>
#include <string.h>

#include "extension.h"
#include "ggml-cpu.h"
#include "profiles.h"
#include "sched_impl.h"

struct gbpy_pending_run {
    struct gbpy_run_outcome * outcome; // borrowed; `object` keeps it
    int n_events;
    ggml_backend_event_t * events; // owned; recorded after the run in each queue
    void * object; // PyObject *, strong; NULL until note_run
    struct gbpy_run * run;         // may be NULL
    struct gbpy_run plain; // used without `run`, because the queue still asks for the owner of the run
    struct gbpy_pending_run * next; // the run that was started next
};

static struct gbpy_sched * pending_scheds; // those with pending runs; under the mutex

bool gbpy_any_pending(void) { return pending_scheds != NULL; }

// The scheduler of the pending run that this thread works for; NULL: none. Under the mutex.
static const struct gbpy_sched * my_pending_run(void) {
    const struct gbpy_run * run = gb_run();
    for (const struct gbpy_sched * s = run != NULL ? pending_scheds : NULL; s != NULL; s = s->next_pending) {
        for (const struct gbpy_pending_run * f = s->runs; f != NULL; f = f->next) {
            if (run == (f->run != NULL ? f->run : &f->plain)) {
                return s;
            }
        }
    }
    return NULL;
}

bool gbpy_works_for(const struct gbpy_sched * s) {
    gbpy_mutex_lock();
    const bool works = my_pending_run() == s;
    gbpy_mutex_unlock();
    return works;
}

bool gbpy_waits_for_my_run(const struct gbpy_locks * locks) {
    const struct gbpy_sched * s = my_pending_run();
    bool waits = false;
    for (int i = 0; s != NULL && i < s->n_members; i++) {
        waits |= gbpy_holds(locks, s->members[i].object);
    }
    return waits;
}

void gbpy_break_pending_runs(void) {
    for (struct gbpy_sched * s = pending_scheds; s != NULL; s = s->next_pending) {
        s->memory.head.broken = true;
        s->has_pending_runs = false;
        gbpy_forget_results(s->pending_graph, 0);
    }
    pending_scheds = NULL;
}

// ------------------------------------------------------------------------------------------------------------- outcome

static void free_run(struct gbpy_pending_run * f) {
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

static void set_pending(struct gbpy_sched * s, bool on) { // under the mutex
    struct gbpy_sched ** link = &pending_scheds;
    s->has_pending_runs = on;
    while (*link != NULL && *link != s) {
        link = &(*link)->next_pending;
    }
    if (on && *link == NULL) {
        s->next_pending = NULL;
        *link = s;
    } else if (!on && *link != NULL) {
        *link = s->next_pending;
    }
}

// True if the caller reports a failure of the run. Otherwise the thread that holds its Pending does.
static bool is_mine(const struct gbpy_run_outcome * l) { return !l->held || l->starter == gb_thread_number(); }

// Keeps a failure for the thread that holds the run. Under the mutex.
static void keep_failure(struct gbpy_run_outcome * l, int status, const char * message) {
    if (status != GGML_STATUS_SUCCESS && status != GGML_STATUS_ABORTED && !is_mine(l)) {
        l->status = status;
        snprintf(l->message, sizeof(l->message), "%s", message);
    }
}

// Sets the outcome of a run after all backends were waited for, with this status. True if the run failed and the
// caller reports that. Under the mutex.
static bool decide(struct gbpy_pending_run * f, int status) {
    struct gbpy_run_outcome * l = f->outcome;
    const bool stopped = f->run != NULL && f->run->stopped != 0;
    keep_failure(l, status, gb_last_message());
    l->state = l->state < 0 || stopped || (l->state == 0 && status != GGML_STATUS_SUCCESS) ? -1 : 1;
    return l->state < 0 && is_mine(l);
}

int gbpy_finish_runs(struct gbpy_sched * s) {
    if (!s->has_pending_runs) {
        return GGML_STATUS_SUCCESS;
    }
    int status = ggml_backend_sched_synchronize(s->memory.head.ptr);
    for (int i = 0; i < gbpy_n_backends(s); i++) {
        gbpy_end_stop(gbpy_backend_at(s, i));
    }
    gbpy_mutex_lock();
    set_pending(s, false); // in the same critical section as the outcomes, or another thread would see a failed run
    struct gbpy_pending_run * runs = s->runs;
    struct gbpy_graph * graph = s->pending_graph;
    gbpy_requests requests = s->pending_locks;
    bool all_good = true, mine = false;
    s->runs = NULL;
    s->pending_graph = NULL;
    memset(&s->pending_locks, 0, sizeof(s->pending_locks));
    for (struct gbpy_pending_run * f = runs; f != NULL; f = f->next) {
        mine |= decide(f, status);
        all_good &= f->outcome->state > 0;
    }
    s->ran = s->ran && all_good;
    gbpy_mutex_unlock();
    if (!all_good && graph != NULL) {
        gbpy_forget_results_now(graph);
    }
    while (runs != NULL) {
        struct gbpy_pending_run * next = runs->next;
        free_run(runs);
        runs = next;
    }
    for (size_t i = 1; i < requests.n; i++) {
        gbpy_unref(requests.data[i].object);
    }
    gb_vec_free(&requests);
    if (graph != NULL) {
        gbpy_unref(&graph->head);
    }
    if (!all_good && !mine) { // the threads that hold the failed runs report it
        ggml_clear_error();
        status = GGML_STATUS_SUCCESS;
    }
    return gbpy_outcome(status);
}

int gbpy_finish_earlier_runs(struct gbpy_sched * s) {
    const int status = gbpy_finish_runs(s);
    return status == GGML_STATUS_ABORTED ? GGML_STATUS_SUCCESS : status;
}

// Waits for all runs and keeps a failure for the next synchronize(). Reading a result that is missing raises an
// error.
static int finish_quietly(struct gbpy_sched * s) {
    const int status = gbpy_finish_runs(s);
    if (status == GGML_STATUS_SUCCESS || status == GBPY_INTERRUPTED) {
        return status;
    }
    s->kept_status = status;
    snprintf(s->kept_message, sizeof(s->kept_message), "%s", gb_last_message());
    return GGML_STATUS_SUCCESS;
}

int gbpy_sched_finish(struct gbpy_handle * sched) {
    struct gbpy_sched * s = gbpy_sched_of(sched, "Scheduler");
    if (s == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_FAIL_IF(!gbpy_is_mine(sched), GGML_STATUS_INVALID_STATE, "Scheduler: the caller must lock it");
    return finish_quietly(s);
}

static int finish_runs_of(struct gbpy_sched * s) {
    struct gbpy_locks locks = { 0 };
    int status = gbpy_lock_sched(&locks, s, "Scheduler");
    if (status == GGML_STATUS_SUCCESS) {
        status = finish_quietly(s);
        gbpy_unlock(&locks);
        // another thread has finished the runs, or closes the scheduler
    } else if (status != GBPY_INTERRUPTED && (!s->has_pending_runs || atomic_load(&s->memory.head.closed))) {
        ggml_clear_error();
        status = GGML_STATUS_SUCCESS;
    }
    return status;
}

static bool share(const struct gbpy_request * request,
    const gbpy_requests * others) { // both have the same object, and one writes it
    for (size_t k = 0; k < others->n; k++) {
        if (others->data[k].object == request->object && (others->data[k].write || request->write)) {
            return true;
        }
    }
    return false;
}

// Under the mutex: a scheduler with a pending run that conflicts; NULL: none.
static struct gbpy_sched * find_conflicting_run(const struct gbpy_request * requests, int n) {
    for (struct gbpy_sched * s = pending_scheds; s != NULL; s = s->next_pending) {
        bool own = false, conflict = false;
        for (int i = 0; i < n; i++) {
            own |= requests[i].object == &s->memory.head && requests[i].write;
            conflict |= !requests[i].beside_runs && share(&requests[i], &s->pending_locks);
        }
        if (conflict && !own) {
            return s;
        }
    }
    return NULL;
}

// The run took the content of staged inputs when it was issued, so they may be set.
static bool is_staged(const struct gbpy_sched * s, const struct ggml_tensor * t) {
    const struct ggml_tensor * root = gb_root(t);
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    if (s->n_copies < 2 || !ggml_is_input(root) || buffer == NULL || !gb_buffer_is_host(buffer)) {
        return false;
    }
    const struct ggml_cgraph * graph = s->pending_graph->head.ptr;
    for (int i = 0; i < graph->n_nodes; i++) {
        if (gb_root(graph->nodes[i]) == root && gb_op_computes(graph->nodes[i]->op)) {
            return false; // a node writes it
        }
    }
    return true;
}

// On a thread that works for a pending run, as in a log function of a device: it would wait for its own run. If the
// thread that started the run is still in that call, the search for deadlocks finds this case.
static bool requests_my_run(const struct gbpy_request * requests, int n) {
    const struct gbpy_sched * s = my_pending_run();
    bool any = false;
    for (int i = 0;
        s != NULL && !(s->memory.head.writer != NULL && s->memory.head.writer->owner == gbpy_caller()) && i < n; i++) {
        any |= share(&requests[i], &s->pending_locks);
    }
    return any;
}

bool gbpy_wait_for_conflicting_run(const struct gbpy_request * requests, int n, const struct ggml_tensor * staged,
    int * status) {
    if (requests_my_run(requests, n)) {
        *status = gb_fail(GGML_STATUS_INVALID_STATE,
            "called from a callback of a computation, it would wait for that computation");
        return true;
    }
    struct gbpy_sched * s = pending_scheds != NULL ? find_conflicting_run(requests, n) : NULL;
    if (s == NULL || (staged != NULL && is_staged(s, staged))) {
        return false;
    }
    struct gbpy_object * o = &s->memory.head;
    const bool lives = gbpy_try_ref(o);
    gbpy_mutex_unlock();
    if (lives) {
        *status = finish_runs_of(s);
        gbpy_unref(o);
    } else {
        gb_sleep_us(100); // another thread frees the scheduler, and waits for the run
    }
    gbpy_mutex_lock();
    return true;
}

void gbpy_finish_all_runs(void) {
    int status = GGML_STATUS_SUCCESS;
    while (status == GGML_STATUS_SUCCESS) {
        gbpy_mutex_lock();
        struct gbpy_object * o = pending_scheds != NULL ? &pending_scheds->memory.head : NULL;
        const bool lives = o != NULL && gbpy_try_ref(o);
        gbpy_mutex_unlock();
        if (!lives) {
            break;
        }
        status = finish_runs_of((struct gbpy_sched *) o);
        gbpy_unref(o);
    }
}

// ------------------------------------------------------------------------------------------------------------ starting

// The backend that computes a result that may be fetched. The result must be an output, so that it keeps its memory
// to the end of the graph. NULL and reported: it cannot be fetched.
static ggml_backend_t computes_result(const struct gbpy_sched * s, struct ggml_tensor * t) {
    const ggml_backend_t backend = ggml_backend_sched_get_node_backend(s->memory.head.ptr, t);
    char text[160];
    gbpy_describe(t, text, sizeof(text));
    GB_FAIL_IF_RETURNING(backend == NULL, NULL, GGML_STATUS_INVALID_ARGUMENT, "compute_async: %s is not in the graph",
        text);
    GB_FAIL_IF_RETURNING(!ggml_is_output(t) && !(t->view_src != NULL && ggml_is_output(t->view_src)), NULL,
        GGML_STATUS_INVALID_ARGUMENT, "compute_async: %s is no output of the graph: ctx.graph(..., keep=[it]) keeps it",
        text);
    return backend;
}

static void set_state(struct gbpy_run_outcome * outcome, int state) {
    gbpy_mutex_lock();
    outcome->state = state;
    gbpy_mutex_unlock();
}

static int wait_for_run(struct gbpy_sched * s, const struct gbpy_pending_run * f) {
    struct gbpy_run_outcome * outcome = f->outcome;
    int status = GGML_STATUS_SUCCESS;
    for (int i = 0; i < f->n_events && status == GGML_STATUS_SUCCESS && outcome->state == 0; i++) {
        status = ggml_backend_event_synchronize(f->events[i]);
    }
    if (status == GGML_STATUS_SUCCESS) {
        if (outcome->state == 0) {
            set_state(outcome, 1);
        }
        return GGML_STATUS_SUCCESS;
    }
    char message[GB_ERROR_SIZE / 2];
    snprintf(message, sizeof(message), "%s", gb_last_message());
    set_state(outcome, -1);
    const int complete = gbpy_finish_runs(s); // reports the same failure, and makes the scheduler usable again
    if (complete != GGML_STATUS_SUCCESS) {
        return complete;
    }
    if (is_mine(outcome)) {
        return gb_fail_quietly((enum ggml_status) status, message);
    }
    gbpy_mutex_lock();
    if (outcome->status == GGML_STATUS_SUCCESS) {
        keep_failure(outcome, status, message);
    }
    gbpy_mutex_unlock();
    return GGML_STATUS_SUCCESS;
}

// Waits until another run may be started.
static int make_room_for_run(struct gbpy_sched * s, const struct gbpy_graph * g, const struct gbpy_run * run) {
    if (!s->has_pending_runs) {
        return GGML_STATUS_SUCCESS;
    }
    if (s->n_copies < 2 || run != NULL || s->pending_graph != g || !gbpy_is_planned(s, g)) {
        return gbpy_finish_earlier_runs(s);
    }
    int n = 0;
    for (const struct gbpy_pending_run * f = s->runs; f != NULL; f = f->next) {
        n += f->run != NULL ? s->n_copies : 1;
    }
    for (; n >= s->n_copies && s->has_pending_runs; n--) {
        struct gbpy_pending_run * f = s->runs;
        const int status = wait_for_run(s, f);
        if (status != GGML_STATUS_SUCCESS || !s->has_pending_runs) {
            return gbpy_outcome(status == GGML_STATUS_ABORTED ? GGML_STATUS_SUCCESS : status);
        }
        if (f->next == NULL) {
            return gbpy_finish_earlier_runs(s);
        }
        gbpy_mutex_lock();
        s->runs = f->next;
        gbpy_mutex_unlock();
        free_run(f);
    }
    return GGML_STATUS_SUCCESS;
}

static struct gbpy_pending_run * new_run(struct gbpy_sched * s, struct gbpy_run * run,
    struct gbpy_run_outcome * outcome) {
    struct gbpy_pending_run * f = GB_NEW(struct gbpy_pending_run);
    if (f == NULL || (f->events = gb_calloc((size_t) gbpy_n_backends(s), sizeof(*f->events))) == NULL) {
        gb_free(f);
        return NULL;
    }
    f->run = run;
    f->outcome = outcome;
    outcome->starter = gb_thread_number();
    for (int i = 0; i < gbpy_n_backends(s); i++) {
        if (ggml_backend_is_cpu(gbpy_backend_at(s, i)->head.ptr)) {
            continue;
        }
        f->events[f->n_events] = ggml_backend_event_new(gbpy_backend_at(s, i)->head.ptr);
        if (f->events[f->n_events] == NULL) {
            free_run(f);
            return NULL;
        }
        f->n_events++;
    }
    return f;
}

static bool note_run(struct gbpy_sched * s, struct gbpy_graph * g, struct gbpy_pending_run * f, uintptr_t object) {
    if (!s->has_pending_runs) {
        if (!gb_vec_reserve(&s->pending_locks, s->owners.n + (size_t) s->n_members)) {
            return false;
        }
        for (int i = 0; i < s->n_members; i++) {
            s->pending_locks.data[s->pending_locks.n++] = s->members[i];
        }
        for (size_t i = 0; i < s->owners.n; i++) {
            s->pending_locks.data[s->pending_locks.n++] = s->owners.data[i];
        }
        for (size_t i = 1; i < s->pending_locks.n; i++) { // the scheduler must not keep itself
            gbpy_ref(s->pending_locks.data[i].object);
        }
        gbpy_ref(&g->head);
        s->pending_graph = g;
    }
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_IncRef((PyObject *) object);
    PyGILState_Release(state);
    f->object = (void *) object;
    gbpy_mutex_lock();
    struct gbpy_pending_run ** last = &s->runs;
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = f;
    gbpy_mutex_unlock();
    return true;
}

// Queues the transfer of a result behind the work of its backend. *queued: false if only the host can fetch it, after
// the run.
static int fetch(ggml_backend_t backend, struct ggml_tensor * t, void * to, bool * queued) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    *queued = buffer != NULL && ggml_backend_buft_supports_backend(ggml_backend_buffer_get_type(buffer), backend);
    return *queued && ggml_nbytes(t) > 0 ? (int) ggml_backend_tensor_get_async(backend, t, to, 0, ggml_nbytes(t))
                                         : GGML_STATUS_SUCCESS;
}

static int issue(struct gbpy_sched * s, struct gbpy_graph * g, struct gbpy_pending_run * f, struct gbpy_run * run,
    struct ggml_tensor ** results, void ** to, int n) {
    void * outer = gb_run();
    bool all_queued = true, is_kept = true; // is_kept: the run still exists
    run = run != NULL ? run : &f->plain;
    run->owner = gbpy_caller();
    struct gbpy_recording recording;
    gbpy_begin_recording(&recording, s, g);
    gb_set_run(run);
    int status = ggml_backend_sched_graph_compute_async(s->memory.head.ptr, g->head.ptr);
    gb_set_run(outer);
    gbpy_end_recording(&recording, run->stopped == 0);
    if (status == GGML_STATUS_SUCCESS && !gbpy_own_new(s)) {
        status = GGML_STATUS_ALLOC_FAILED;
    }
    for (int i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
        bool queued = false;
        const ggml_backend_t backend = computes_result(s, results[i]);
        status = backend != NULL ? fetch(backend, results[i], to[i], &queued) : GGML_STATUS_INVALID_ARGUMENT;
        all_queued = all_queued && queued;
    }
    for (int i = 0; i < f->n_events && status == GGML_STATUS_SUCCESS && all_queued; i++) {
        status = ggml_backend_event_record(f->events[i]);
    }
    if (status == GGML_STATUS_SUCCESS && !all_queued) { // wait, and let the host fetch them
        is_kept = run != &f->plain;
        status = gbpy_finish_runs(s); // frees the pending run
        for (int i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
            status = ggml_nbytes(results[i]) > 0
                         ? (int) ggml_backend_tensor_get(results[i], to[i], 0, ggml_nbytes(results[i]))
                         : GGML_STATUS_SUCCESS;
        }
    }
    // From now on the run itself owns its locks, so the thread that started it does not share them.
    if (is_kept) {
        GB_WRITE_RELAXED(run->owner, run);
    }
    return status;
}

// Finishes runs that conflict with another run of the scheduler. Fails if no backend computes one of the results.
static int prepare_start(struct gbpy_sched * s, struct gbpy_graph * g, struct gbpy_run * run,
    struct ggml_tensor ** results, int n) {
    int status = GGML_STATUS_SUCCESS;
    for (int i = 0; i < gbpy_n_backends(s) && status == GGML_STATUS_SUCCESS; i++) {
        // so that cancelled runs are known as such
        status = gbpy_may_be_cancelled(gbpy_backend_at(s, i)) ? gbpy_finish_earlier_runs(s) : status;
    }
    status = status == GGML_STATUS_SUCCESS ? make_room_for_run(s, g, run) : status;
    for (int i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
        status = computes_result(s, results[i]) != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_INVALID_ARGUMENT;
    }
    return status;
}

// After a run that could not be issued as a whole: finishes the runs of the scheduler, and keeps the status and
// message of the failure unless the wait was interrupted. The pending run may be freed by then, but its outcome still
// exists.
static int give_up(struct gbpy_sched * s, struct gbpy_graph * g, struct gbpy_run_outcome * outcome, int status) {
    char message[GB_ERROR_SIZE / 2];
    snprintf(message, sizeof(message), "%s", gb_last_message());
    set_state(outcome, -1);
    const int landed = gbpy_finish_runs(s);
    s->ran = false;
    gbpy_forget_results_now(g);
    if (landed == GBPY_INTERRUPTED) {
        return landed;
    }
    if (message[0] != '\0') {
        gb_fail_quietly((enum ggml_status) status, message);
    }
    return status;
}

// Issues a run that was noted. The results of the graph are those of this run, unless it fails.
static int start(struct gbpy_sched * s, struct gbpy_graph * g, struct gbpy_pending_run * f, struct gbpy_run * run,
    struct ggml_tensor ** results, void ** to, int n) {
    struct gbpy_run_outcome * outcome = f->outcome;
    const long long version = atomic_load(&gbpy_sets);
    s->ran = true; // when it is finished
    s->replaced = false;
    s->version = version;
    for (int i = 0; i < gbpy_n_backends(s); i++) {
        gbpy_begin_stop(gbpy_backend_at(s, i));
    }
    gbpy_mutex_lock();
    set_pending(s, true);
    gbpy_note_results(g, version);
    gbpy_mutex_unlock();
    int status = issue(s, g, f, run, results, to, n);
    if (status != GGML_STATUS_SUCCESS) {
        status = give_up(s, g, outcome, status);
    } else if (atomic_load(&s->memory.head.closed)) { // a callback has closed it, so nobody can wait for the run later
        status = gbpy_finish_runs(s);
    }
    return gbpy_outcome_of(run, status);
}

int gbpy_sched_start(struct gbpy_handle * sched, struct gbpy_handle * graph, struct gbpy_run * run, uintptr_t object,
    struct ggml_tensor ** results, void ** to, int n, struct gbpy_run_outcome * outcome, int * how) {
    static const char what[] = "Scheduler.compute_async";
    struct gbpy_locks locks = { 0 };
    struct gbpy_sched * s = gbpy_sched_of(sched, what);
    struct gbpy_graph * g = gbpy_graph_of(graph, what);
    if (s == NULL || g == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(gbpy_lock_planned(&locks, s, g, false, true, what, how));
    int status = prepare_start(s, g, run, results, n);
    struct gbpy_pending_run * f = status == GGML_STATUS_SUCCESS ? new_run(s, run, outcome) : NULL;
    if (f != NULL && note_run(s, g, f, object)) {
        status = start(s, g, f, run, results, to, n);
    } else if (status == GGML_STATUS_SUCCESS) {
        status = GGML_STATUS_ALLOC_FAILED;
        if (f != NULL) {
            free_run(f);
        }
    }
    gbpy_unlock(&locks);
    return status;
}

// ------------------------------------------------------------------------------------------------------------- waiting

int gbpy_run_state(const struct gbpy_run_outcome * outcome) {
    gbpy_mutex_lock();
    const int state = outcome->state;
    gbpy_mutex_unlock();
    return state;
}

// Reports the failure of a finished run, the first time with its reason.
static int report(struct gbpy_run_outcome * l) {
    gbpy_mutex_lock();
    const int status = l->status;
    const bool good = l->state > 0;
    l->status = GGML_STATUS_SUCCESS;
    gbpy_mutex_unlock();
    GB_FAIL_IF(!good && status == GGML_STATUS_SUCCESS, GGML_STATUS_INVALID_STATE,
        "Pending: the computation failed, or was stopped");
    return good ? GGML_STATUS_SUCCESS : gb_fail_quietly((enum ggml_status) status, l->message);
}

// With a lock on the scheduler: waits for one run, or for all (NULL).
static int wait_inside(struct gbpy_sched * s, struct gbpy_run_outcome * outcome) {
    if (outcome == NULL) {
        const int status = gbpy_finish_runs(s);
        if (status != GGML_STATUS_SUCCESS || s->kept_status == GGML_STATUS_SUCCESS) {
            return status;
        }
        const int kept = gb_fail_quietly((enum ggml_status) s->kept_status, s->kept_message);
        s->kept_status = GGML_STATUS_SUCCESS;
        return kept;
    }
    struct gbpy_pending_run * f = s->runs;
    while (f != NULL && f->outcome != outcome) {
        f = f->next;
    }
    int status = GGML_STATUS_SUCCESS;
    if (f != NULL) {
        status = f->n_events > 0 ? wait_for_run(s, f) : gbpy_finish_runs(s);
        if (s->has_pending_runs && s->runs == f && f->next == NULL && status == GGML_STATUS_SUCCESS) {
            status = gbpy_finish_runs(s); // it was the last pending run
        }
    }
    return status != GGML_STATUS_SUCCESS ? status : report(outcome);
}

int gbpy_sched_wait(struct gbpy_handle * sched, struct gbpy_run_outcome * outcome) {
    static const char what[] = "Scheduler.synchronize";
    struct gbpy_locks locks = { 0 };
    struct gbpy_sched * s = gbpy_sched_of(sched, what);
    if (s == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    gbpy_mutex_lock();
    const bool is_pending = s->has_pending_runs, broken = s->memory.head.broken;
    gbpy_mutex_unlock();
    GB_FAIL_IF(broken, GGML_STATUS_INVALID_STATE,
        "the computation was pending when the process was forked: it continues in the parent process only");
    if (outcome != NULL && (!is_pending || gbpy_run_state(outcome) < 0)) { // the scheduler may be closed
        return report(outcome);
    }
    GB_TRY(gbpy_lock_sched(&locks, s, what));
    const int status = wait_inside(s, outcome);
    gbpy_unlock(&locks);
    return gbpy_outcome(status);
}
