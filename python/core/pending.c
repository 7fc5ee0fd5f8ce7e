// pending.c - starting runs, the list of those in flight, landing them, and what a fork does to them (pending.h).
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include "pending.h"

#include <stdio.h>
#include <string.h>

#include "extension.h"
#include "ggml-cpu.h"
#include "profiles.h"
#include "sched_impl.h"

struct gbpy_flight {
    struct gbpy_landing * landing; // of Python, kept by `object`
    int n_events;
    ggml_backend_event_t * events; // owned; behind it, in each queue
    void * object;                 // PyObject *, a reference; NULL until it is noted
    struct gbpy_run * run;         // may be NULL
    struct gbpy_run plain;         // instead of that: the queue goes on asking who computes
    struct gbpy_flight * next;     // started later
};

static struct gbpy_sched * flying; // those with runs in flight; under the lock

bool gbpy_any_flying(void) { return flying != NULL; }

// Of the run that this thread works for, if that is on its way. Under the lock.
static const struct gbpy_sched * my_flight(void) {
    const struct gbpy_run * run = gb_run();
    for (const struct gbpy_sched * s = run != NULL ? flying : NULL; s != NULL; s = s->next_flying) {
        for (const struct gbpy_flight * f = s->flights; f != NULL; f = f->next) {
            if (run == (f->run != NULL ? f->run : &f->plain)) {
                return s;
            }
        }
    }
    return NULL;
}

bool gbpy_works_for(const struct gbpy_sched * s) {
    gbpy_lock();
    const bool works = my_flight() == s;
    gbpy_unlock();
    return works;
}

bool gbpy_waits_for_my_run(const struct gbpy_use * use) {
    const struct gbpy_sched * s = my_flight();
    bool waits = false;
    for (int i = 0; s != NULL && i < s->n_members; i++) {
        waits |= gbpy_holds(use, s->members[i].object);
    }
    return waits;
}

void gbpy_lose_flights(void) {
    for (struct gbpy_sched * s = flying; s != NULL; s = s->next_flying) {
        s->object->broken = true;
        s->flying = false;
        gbpy_forget_results(s->fly_graph, 0);
    }
    flying = NULL;
}

// ------------------------------------------------------------------------------------------------------------- landing

static void free_flight(struct gbpy_flight * f) {
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

static void set_flying(struct gbpy_sched * s, bool on) { // under the lock
    struct gbpy_sched ** link = &flying;
    s->flying = on;
    while (*link != NULL && *link != s) {
        link = &(*link)->next_flying;
        gbpy_visited(1);
    }
    if (on && *link == NULL) {
        s->next_flying = NULL;
        *link = s;
    } else if (!on && *link != NULL) {
        *link = s->next_flying;
    }
}

// True if the caller reports a failure of the run. Otherwise the thread that holds its Pending does.
static bool is_mine(const struct gbpy_landing * l) { return !l->held || l->starter == gb_thread_number(); }

// Keeps a failure for the thread that holds the run. Under the lock.
static void keep_failure(struct gbpy_landing * l, int status, const char * message) {
    if (status != GGML_STATUS_SUCCESS && status != GGML_STATUS_ABORTED && !is_mine(l)) {
        l->status = status;
        snprintf(l->message, sizeof(l->message), "%s", message);
    }
}

// Sets the outcome of a flight after all backends were waited for, with this status. True if it failed and the caller
// reports that. Under the lock.
static bool decide(struct gbpy_flight * f, int status) {
    struct gbpy_landing * l = f->landing;
    const bool stopped = f->run != NULL && f->run->stopped != 0;
    keep_failure(l, status, ggml_last_error());
    l->state = l->state < 0 || stopped || (l->state == 0 && status != GGML_STATUS_SUCCESS) ? -1 : 1;
    return l->state < 0 && is_mine(l);
}

int gbpy_land_inside(struct gbpy_sched * s) {
    if (!s->flying) {
        return GGML_STATUS_SUCCESS;
    }
    int status = ggml_backend_sched_synchronize(s->object->ptr);
    for (int i = 0; i < gbpy_n_backends(s); i++) {
        gbpy_end_stop(gbpy_backend_at(s, i));
    }
    gbpy_lock();
    set_flying(s, false); // at once with what became of the runs, or who asks between would take one for failed
    struct gbpy_flight * flights = s->flights;
    struct gbpy_object * graph = s->fly_graph;
    gbpy_wants wants = s->fly_wants;
    bool all_good = true, mine = false;
    s->flights = NULL;
    s->fly_graph = NULL;
    memset(&s->fly_wants, 0, sizeof(s->fly_wants));
    for (struct gbpy_flight * f = flights; f != NULL; f = f->next) {
        mine |= decide(f, status);
        all_good &= f->landing->state > 0;
    }
    s->ran = s->ran && all_good;
    gbpy_unlock();
    if (!all_good && graph != NULL) {
        gbpy_forget_results_now(graph);
    }
    while (flights != NULL) {
        struct gbpy_flight * next = flights->next;
        free_flight(flights);
        flights = next;
    }
    for (size_t i = 1; i < wants.n; i++) {
        gbpy_unref(wants.data[i].object);
    }
    gb_vec_free(&wants);
    gbpy_unref(graph);
    if (!all_good && !mine) { // whoever holds the runs that failed reports it
        ggml_clear_error();
        status = GGML_STATUS_SUCCESS;
    }
    return gbpy_outcome(status);
}

int gbpy_land_earlier(struct gbpy_sched * s) {
    const int status = gbpy_land_inside(s);
    return status == GGML_STATUS_ABORTED ? GGML_STATUS_SUCCESS : status;
}

// Waits for all runs. Keeps a failure for the next synchronize(). Reading a result that is missing raises an error.
static int land_quietly(struct gbpy_sched * s) {
    const int status = gbpy_land_inside(s);
    if (status == GGML_STATUS_SUCCESS || status == GBPY_INTERRUPTED) {
        return status;
    }
    s->kept_status = status;
    snprintf(s->kept_message, sizeof(s->kept_message), "%s", ggml_last_error());
    return GGML_STATUS_SUCCESS;
}

int gbpy_sched_land(struct gbpy_handle * sched) {
    struct gbpy_sched * s = gbpy_sched_of(sched, "Scheduler");
    if (s == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_FAIL_IF(!gbpy_is_mine(sched), GGML_STATUS_INVALID_STATE, "Scheduler: the caller must use it");
    return land_quietly(s);
}

static int land(struct gbpy_sched * s) {
    struct gbpy_use use = { 0 };
    int status = gbpy_enter_sched(&use, s, "Scheduler");
    if (status == GGML_STATUS_SUCCESS) {
        status = land_quietly(s);
        gbpy_leave(&use);
        // it was landed and closed meanwhile, or is being
    } else if (status != GBPY_INTERRUPTED && (!s->flying || atomic_load(&s->object->closed))) {
        ggml_clear_error();
        status = GGML_STATUS_SUCCESS;
    }
    return status;
}

static bool share(const struct gbpy_want * want, const gbpy_wants * others) { // one object, and one of them writes
    for (size_t k = 0; k < others->n; k++) {
        if (others->data[k].object == want->object && (others->data[k].write || want->write)) {
            return true;
        }
    }
    return false;
}

// Under the lock: a run in flight that conflicts.
static struct gbpy_sched * find_flight(const struct gbpy_want * wants, int n) {
    for (struct gbpy_sched * s = flying; s != NULL; s = s->next_flying) {
        bool own = false, conflict = false;
        for (int i = 0; i < n; i++) {
            own |= wants[i].object == s->object && wants[i].write;
            conflict |= !wants[i].beside_runs && share(&wants[i], &s->fly_wants);
        }
        if (conflict && !own) {
            return s;
        }
    }
    return NULL;
}

// The content of inputs that were staged was taken when the run was issued.
static bool is_staged(const struct gbpy_sched * s, const struct ggml_tensor * t) {
    const struct ggml_tensor * root = gb_root(t);
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    if (s->n_copies < 2 || !ggml_is_input(root) || buffer == NULL || !ggml_backend_buffer_is_host(buffer)) {
        return false;
    }
    const struct ggml_cgraph * graph = s->fly_graph->ptr;
    for (int i = 0; i < graph->n_nodes; i++) {
        if (gb_root(graph->nodes[i]) == root && gb_op_computes(graph->nodes[i]->op)) {
            return false; // a node writes it
        }
    }
    return true;
}

// On a thread of a device, in a log function: it would wait for itself. Who has started the run, and is still at it,
// finds that otherwise.
static bool wants_my_run(const struct gbpy_want * wants, int n) {
    const struct gbpy_sched * s = my_flight();
    bool any = false;
    for (int i = 0; s != NULL && !(s->object->writer != NULL && s->object->writer->who == gbpy_me()) && i < n; i++) {
        any |= share(&wants[i], &s->fly_wants);
    }
    return any;
}

bool gbpy_land_conflicts(const struct gbpy_want * wants, int n, const struct ggml_tensor * staged, int * status) {
    if (wants_my_run(wants, n)) {
        *status = gb_fail(GGML_STATUS_INVALID_STATE,
            "called from a callback of a computation, it would wait for that computation");
        return true;
    }
    struct gbpy_sched * s = flying != NULL ? find_flight(wants, n) : NULL;
    if (s == NULL || (staged != NULL && is_staged(s, staged))) {
        return false;
    }
    struct gbpy_object * o = s->object;
    const bool lives = gbpy_try_ref(o);
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

void gbpy_land_all(void) {
    int status = GGML_STATUS_SUCCESS;
    while (status == GGML_STATUS_SUCCESS) {
        gbpy_lock();
        struct gbpy_object * o = flying != NULL ? flying->object : NULL;
        const bool lives = o != NULL && gbpy_try_ref(o);
        gbpy_unlock();
        if (!lives) {
            break;
        }
        status = land(o->sched);
        gbpy_unref(o);
    }
}

// ------------------------------------------------------------------------------------------------------------ starting

// The backend that computes a result which may be fetched: one whose memory is its own to the end of the graph. NULL
// and reported.
static ggml_backend_t computes_result(const struct gbpy_sched * s, struct ggml_tensor * t) {
    const ggml_backend_t backend = ggml_backend_sched_get_node_backend(s->object->ptr, t);
    char text[160];
    gbpy_describe(t, text, sizeof(text));
    GB_FAIL_IF_RETURNING(backend == NULL, NULL, GGML_STATUS_INVALID_ARGUMENT, "compute_async: %s is not in the graph",
        text);
    GB_FAIL_IF_RETURNING(!ggml_is_output(t) && !(t->view_src != NULL && ggml_is_output(t->view_src)), NULL,
        GGML_STATUS_INVALID_ARGUMENT, "compute_async: %s is no output of the graph: ctx.graph(..., keep=[it]) keeps it",
        text);
    return backend;
}

static void set_state(struct gbpy_landing * landing, int state) {
    gbpy_lock();
    landing->state = state;
    gbpy_unlock();
}

static int wait_flight(struct gbpy_sched * s, const struct gbpy_flight * f) {
    struct gbpy_landing * landing = f->landing;
    int status = GGML_STATUS_SUCCESS;
    for (int i = 0; i < f->n_events && status == GGML_STATUS_SUCCESS && landing->state == 0; i++) {
        status = ggml_backend_event_synchronize(f->events[i]);
    }
    if (status == GGML_STATUS_SUCCESS) {
        if (landing->state == 0) {
            set_state(landing, 1);
        }
        return GGML_STATUS_SUCCESS;
    }
    char message[GB_ERROR_SIZE / 2];
    snprintf(message, sizeof(message), "%s", ggml_last_error());
    set_state(landing, -1);
    const int complete = gbpy_land_inside(s); // reports the same, and makes the scheduler usable again
    if (complete != GGML_STATUS_SUCCESS) {
        return complete;
    }
    if (is_mine(landing)) {
        return gb_fail_quietly((enum ggml_status) status, message);
    }
    gbpy_lock();
    if (landing->status == GGML_STATUS_SUCCESS) {
        keep_failure(landing, status, message);
    }
    gbpy_unlock();
    return GGML_STATUS_SUCCESS;
}

// Before another run: waits until there may be one more.
static int make_way(struct gbpy_sched * s, const struct gbpy_object * g, const struct gbpy_run * run) {
    if (!s->flying) {
        return GGML_STATUS_SUCCESS;
    }
    if (s->n_copies < 2 || run != NULL || s->fly_graph != g || !gbpy_is_planned(s, g)) {
        return gbpy_land_earlier(s);
    }
    int n = 0;
    for (const struct gbpy_flight * f = s->flights; f != NULL; f = f->next) {
        n += f->run != NULL ? s->n_copies : 1;
    }
    for (; n >= s->n_copies && s->flying; n--) {
        struct gbpy_flight * f = s->flights;
        const int status = wait_flight(s, f);
        if (status != GGML_STATUS_SUCCESS || !s->flying) {
            return gbpy_outcome(status == GGML_STATUS_ABORTED ? GGML_STATUS_SUCCESS : status);
        }
        if (f->next == NULL) {
            return gbpy_land_earlier(s);
        }
        gbpy_lock();
        s->flights = f->next;
        gbpy_unlock();
        free_flight(f);
    }
    return GGML_STATUS_SUCCESS;
}

static struct gbpy_flight * new_flight(struct gbpy_sched * s, struct gbpy_run * run, struct gbpy_landing * landing) {
    struct gbpy_flight * f = GB_NEW(struct gbpy_flight);
    if (f == NULL || (f->events = gb_calloc((size_t) gbpy_n_backends(s), sizeof(*f->events))) == NULL) {
        gb_free(f);
        return NULL;
    }
    f->run = run;
    f->landing = landing;
    landing->starter = gb_thread_number();
    for (int i = 0; i < gbpy_n_backends(s); i++) {
        if (ggml_backend_is_cpu(gbpy_backend_at(s, i)->ptr)) {
            continue;
        }
        f->events[f->n_events] = ggml_backend_event_new(gbpy_backend_at(s, i)->ptr);
        if (f->events[f->n_events] == NULL) {
            free_flight(f);
            return NULL;
        }
        f->n_events++;
    }
    return f;
}

static bool note_flight(struct gbpy_sched * s, struct gbpy_object * g, struct gbpy_flight * f, uintptr_t object) {
    if (!s->flying) {
        if (!gb_vec_reserve(&s->fly_wants, s->owners.n + (size_t) s->n_members)) {
            return false;
        }
        for (int i = 0; i < s->n_members; i++) {
            s->fly_wants.data[s->fly_wants.n++] = s->members[i];
        }
        for (size_t i = 0; i < s->owners.n; i++) {
            s->fly_wants.data[s->fly_wants.n++] = s->owners.data[i];
        }
        for (size_t i = 1; i < s->fly_wants.n; i++) { // itself it must not keep
            gbpy_ref(s->fly_wants.data[i].object);
        }
        gbpy_ref(g);
        s->fly_graph = g;
    }
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_IncRef((PyObject *) object);
    PyGILState_Release(state);
    f->object = (void *) object;
    gbpy_lock();
    struct gbpy_flight ** last = &s->flights;
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
    *queued = buffer != NULL && ggml_backend_buft_supports_backend(ggml_backend_buffer_get_type(buffer), backend);
    return *queued && ggml_nbytes(t) > 0 ? (int) ggml_backend_tensor_get_async(backend, t, to, 0, ggml_nbytes(t))
                                         : GGML_STATUS_SUCCESS;
}

static int issue(struct gbpy_sched * s, struct gbpy_object * g, struct gbpy_flight * f, struct gbpy_run * run,
    struct ggml_tensor ** results, void ** to, int n) {
    void * outer = gb_run();
    bool all_queued = true, is_kept = true; // is_kept: there still is a run, which the flight may have had
    run = run != NULL ? run : &f->plain;
    run->who = gbpy_me();
    struct gbpy_recording recording;
    gbpy_begin_recording(&recording, s->object, g);
    gb_set_run(run);
    int status = ggml_backend_sched_graph_compute_async(s->object->ptr, g->ptr);
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
    if (status == GGML_STATUS_SUCCESS && !all_queued) { // no queue can bring them
        is_kept = run != &f->plain;
        status = gbpy_land_inside(s); // frees the flight
        for (int i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
            status = ggml_nbytes(results[i]) > 0
                         ? (int) ggml_backend_tensor_get(results[i], to[i], 0, ggml_nbytes(results[i]))
                         : GGML_STATUS_SUCCESS;
        }
    }
    // from now on the devices' threads are nobody else: who started it goes on beside them
    if (is_kept) {
        GB_WRITE_RELAXED(run->who, run);
    }
    return status;
}

// Lands what conflicts with another run of the scheduler; an error if a backend computes none of the results.
static int prepare_start(struct gbpy_sched * s, struct gbpy_object * g, struct gbpy_run * run,
    struct ggml_tensor ** results, int n) {
    int status = GGML_STATUS_SUCCESS;
    for (int i = 0; i < gbpy_n_backends(s) && status == GGML_STATUS_SUCCESS; i++) {
        // runs that were cancelled are known as such
        status = gbpy_may_be_cancelled(gbpy_backend_at(s, i)) ? gbpy_land_earlier(s) : status;
    }
    status = status == GGML_STATUS_SUCCESS ? make_way(s, g, run) : status;
    for (int i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
        status = computes_result(s, results[i]) != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_INVALID_ARGUMENT;
    }
    return status;
}

// A run that could not be issued whole: lands the scheduler's runs and keeps the status and message of the failure,
// unless landing was interrupted. The flight may have landed and be freed already, but its gbpy_landing still exists.
static int give_up(struct gbpy_sched * s, struct gbpy_object * g, struct gbpy_landing * landing, int status) {
    char message[GB_ERROR_SIZE / 2];
    snprintf(message, sizeof(message), "%s", ggml_last_error());
    set_state(landing, -1);
    const int landed = gbpy_land_inside(s);
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

// Issues a flight that is noted. The results of the graph are those of this run; a failure takes that back.
static int take_off(struct gbpy_sched * s, struct gbpy_object * g, struct gbpy_flight * f, struct gbpy_run * run,
    struct ggml_tensor ** results, void ** to, int n) {
    struct gbpy_landing * landing = f->landing;
    const long long version = atomic_load(&gbpy_sets);
    s->ran = true; // when it has landed
    s->replaced = false;
    s->version = version;
    for (int i = 0; i < gbpy_n_backends(s); i++) {
        gbpy_begin_stop(gbpy_backend_at(s, i));
    }
    gbpy_lock();
    set_flying(s, true);
    gbpy_note_results(g, version);
    gbpy_unlock();
    int status = issue(s, g, f, run, results, to, n);
    if (status != GGML_STATUS_SUCCESS) {
        status = give_up(s, g, landing, status);
    } else if (atomic_load(&s->object->closed)) { // by a callback: nobody can wait for it later
        status = gbpy_land_inside(s);
    }
    return gbpy_outcome_of(run, status);
}

int gbpy_sched_start(struct gbpy_handle * sched, struct gbpy_handle * graph, struct gbpy_run * run, uintptr_t object,
    struct ggml_tensor ** results, void ** to, int n, struct gbpy_landing * landing, int * how) {
    static const char what[] = "Scheduler.compute_async";
    struct gbpy_use use = { 0 };
    struct gbpy_sched * s = gbpy_sched_of(sched, what);
    struct gbpy_object * g = gbpy_object_of(graph, what);
    if (s == NULL || g == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(gbpy_enter_planned(&use, s, g, false, true, what, how));
    int status = prepare_start(s, g, run, results, n);
    struct gbpy_flight * f = status == GGML_STATUS_SUCCESS ? new_flight(s, run, landing) : NULL;
    if (f != NULL && note_flight(s, g, f, object)) {
        status = take_off(s, g, f, run, results, to, n);
    } else if (status == GGML_STATUS_SUCCESS) {
        status = GGML_STATUS_ALLOC_FAILED;
        if (f != NULL) {
            free_flight(f);
        }
    }
    gbpy_leave(&use);
    return status;
}

// ------------------------------------------------------------------------------------------------------------- waiting

int gbpy_landing_state(const struct gbpy_landing * landing) {
    gbpy_lock();
    const int state = landing->state;
    gbpy_unlock();
    return state;
}

// Reports the failure of a run that is no longer in flight, with its reason the first time.
static int report(struct gbpy_landing * l) {
    gbpy_lock();
    const int status = l->status;
    const bool good = l->state > 0;
    l->status = GGML_STATUS_SUCCESS;
    gbpy_unlock();
    GB_FAIL_IF(!good && status == GGML_STATUS_SUCCESS, GGML_STATUS_INVALID_STATE,
        "Pending: the computation failed, or was stopped");
    return good ? GGML_STATUS_SUCCESS : gb_fail_quietly((enum ggml_status) status, l->message);
}

// By the user of the scheduler: for one run, or for all (NULL).
static int wait_inside(struct gbpy_sched * s, struct gbpy_landing * landing) {
    if (landing == NULL) {
        const int status = gbpy_land_inside(s);
        if (status != GGML_STATUS_SUCCESS || s->kept_status == GGML_STATUS_SUCCESS) {
            return status;
        }
        const int kept = gb_fail_quietly((enum ggml_status) s->kept_status, s->kept_message);
        s->kept_status = GGML_STATUS_SUCCESS;
        return kept;
    }
    struct gbpy_flight * f = s->flights;
    while (f != NULL && f->landing != landing) {
        f = f->next;
    }
    int status = GGML_STATUS_SUCCESS;
    if (f != NULL) {
        status = f->n_events > 0 ? wait_flight(s, f) : gbpy_land_inside(s);
        if (s->flying && s->flights == f && f->next == NULL && status == GGML_STATUS_SUCCESS) {
            status = gbpy_land_inside(s); // the last one: nothing is on its way any more
        }
    }
    return status != GGML_STATUS_SUCCESS ? status : report(landing);
}

int gbpy_sched_wait(struct gbpy_handle * sched, struct gbpy_landing * landing) {
    static const char what[] = "Scheduler.synchronize";
    struct gbpy_use use = { 0 };
    struct gbpy_sched * s = gbpy_sched_of(sched, what);
    if (s == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    gbpy_lock();
    const bool on_its_way = s->flying, broken = s->object->broken;
    gbpy_unlock();
    GB_FAIL_IF(broken, GGML_STATUS_INVALID_STATE,
        "the computation was on its way when the process was forked: it goes on in the other process only");
    if (landing != NULL && (!on_its_way || gbpy_landing_state(landing) < 0)) { // the scheduler may be closed
        return report(landing);
    }
    GB_TRY(gbpy_enter_sched(&use, s, what));
    const int status = wait_inside(s, landing);
    gbpy_leave(&use);
    return gbpy_outcome(status);
}
