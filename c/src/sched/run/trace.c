// trace.c - records the times of steps, for ggml_backend_sched_set_trace.
//
// The host times its own steps by its clock. A step in a queue is between two events that record
// when the queue reached them, so the record shows how steps of several devices overlap. The times
// are read when the run is complete. A queue without such events is waited for after each of its
// steps. If there is no memory for the record, entries are missing, but the run succeeds.
#include <string.h>

#include "backend/backend.h"
#include "backend/profile.h"
#include "base/env.h"
#include "sched/assign/assign.h"
#include "sched/input/input.h"
#include "sched/layout/layout.h"
#include "sched/memory/memory.h"
#include "sched/program/program.h"
#include "sched/run/run.h"
#include "sched/sched.h"

struct clock_pair { // around a step in a queue
    ggml_backend_event_t begin, end;
};

struct queue_clock { // of one backend; pairs are reused in each run
    GB_VEC(struct clock_pair) pairs;
    size_t n_used; // in this run
};

struct pending { // an entry whose times are not known yet
    size_t entry;
    int backend;
    size_t pair;
};

// A record, and the state of the run that is being recorded. Entries are in the order of issue.
struct gb_trace {
    bool on;
    uint64_t n_runs;
    GB_VEC(struct ggml_backend_sched_trace_event) entries;
    size_t run_begin; // index of this run's first entry
    GB_VEC(struct pending) pending;
    GB_VEC(size_t) live; // per step of the run: maximum of the bytes alive in the arena of its backend
    const struct gb_sched_assigned * assigned; // of this run
    const struct gb_sched_binding * run; // of this run
    int n_backends;
    struct queue_clock * queues;               // owned, per backend
    struct ggml_backend_sched_trace_event now; // the entry of the current step
    size_t now_pair;                           // its pair + 1; 0: none
    uint64_t profiled; // number of records in the thread's profile before the step
};

// Events are freed while their backend still works.
static void free_queue(struct queue_clock * q) {
    for (size_t k = 0; k < q->pairs.n; k++) {
        ggml_backend_event_free(q->pairs.data[k].begin);
        ggml_backend_event_free(q->pairs.data[k].end);
    }
    gb_vec_free(&q->pairs);
}

void gb_trace_disarm(struct gb_trace * trace) {
    if (trace == NULL) {
        return;
    }
    for (int b = 0; trace->queues && b < trace->n_backends; b++) {
        free_queue(&trace->queues[b]);
    }
    trace->pending.n = 0;
    trace->now_pair = 0;
}

void gb_trace_free(struct gb_trace * trace) {
    if (trace == NULL) {
        return;
    }
    gb_trace_disarm(trace);
    gb_free(trace->queues);
    gb_vec_free(&trace->entries);
    gb_vec_free(&trace->pending);
    gb_vec_free(&trace->live);
    gb_free(trace);
}

void gb_trace_stop(struct gb_trace * trace) {
    if (trace) {
        trace->on = false;
    }
}

// A stopped record can still be read.
bool gb_sched_is_traced(const struct ggml_backend_sched * s) { return s->trace && s->trace->on; }

// If there is no memory, the record misses the entry.
static enum ggml_status push(struct gb_trace * trace, const struct ggml_backend_sched_trace_event * e) {
    return gb_vec_push(&trace->entries, *e) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

// Truncates the name; entries begin as zeros.
static void set_name(struct ggml_backend_sched_trace_event * e, const char * name) {
    memcpy(e->name, name, GB_MIN(strlen(name), sizeof(e->name) - 1));
}

// An entry with all fields that do not depend on the step.
static struct ggml_backend_sched_trace_event entry_of(const struct gb_trace * trace,
    enum ggml_backend_sched_trace_kind kind, int64_t start) {
    return (struct ggml_backend_sched_trace_event){
        .kind = kind,
        .run = trace->n_runs,
        .start_ns = start,
        .end_ns = start,
        .backend = -1,
        .source = -1,
        .by_host = true,
        .split = -1,
        .node = -1,
    };
}

// Adds an entry from `start_ns` to now; `what`: how the plan was found.
void gb_trace_plan(struct ggml_backend_sched * s, int64_t start_ns, const char * what) {
    struct ggml_backend_sched_trace_event e = entry_of(s->trace, GGML_BACKEND_SCHED_TRACE_PLAN, start_ns);
    e.end_ns = gb_time_ns();
    set_name(&e, what);
    push(s->trace, &e);
}

// ----------------------------------------------------------------------------------------------------- bytes that live

// The positions of a step in the program, as layout.c counts them.
static void span_of(const struct gb_sched_binding * run, const struct gb_step * step, int64_t * at, int64_t * end) {
    *end = *at + 1;
    if (step->kind == GB_STEP_COMPUTE) {
        *end = *at + (int64_t) (run->program->splits.data[step->index].exec_end -
                                run->program->splits.data[step->index].exec_begin);
    }
}

// The backend whose memory the step writes.
static int backend_of_step(const struct gb_trace * trace, const struct gb_step * step) {
    const struct gb_sched_binding * run = trace->run;
    switch ((enum gb_step_kind) step->kind) {
        case GB_STEP_COPY: return run->program->copies.data[step->index].backend;
        case GB_STEP_COMPUTE: return run->program->splits.data[step->index].backend;
        case GB_STEP_BACK:
            return trace->assigned->to[run->in->ids.data[run->program->backs.data[step->index].node].root].backend;
    }
    return -1;
}

// Fills change[position] with the change of the bytes alive in the arena of one backend. Members of
// an alias group share memory: the largest counts.
static void note_changes(const struct gb_sched_binding * run, int backend, int64_t n, int64_t * change,
    size_t * of_group) {
    const int64_t n_items = run->in->n_ids + (int64_t) run->program->copies.n;
    memset(change, 0, (size_t) (n + 1) * sizeof(*change));
    memset(of_group, 0, (size_t) n_items * sizeof(*of_group));
    for (int64_t i = 0; i < n_items; i++) {
        const struct gb_item * item = gb_sched_arena_item(run->layout, i);
        if (item && item->backend == backend && item->size > of_group[item->group]) {
            change[GB_MIN(GB_MAX(item->lower, (int64_t) 0), n)] += (int64_t) (item->size - of_group[item->group]);
            change[GB_MIN(GB_MAX(item->upper, (int64_t) 0), n)] -= (int64_t) (item->size - of_group[item->group]);
            of_group[item->group] = item->size;
        }
    }
}

// Notes the maximum of the bytes alive during each step of a backend.
static void note_live_of(struct gb_trace * trace, const struct gb_sched_binding * run, int backend, int64_t n,
    int64_t * live) {
    int64_t at = 0, end;
    for (int64_t k = 1; k <= n; k++) {
        live[k] += live[k - 1];
    }
    for (size_t k = 0; k < run->program->steps.n; k++, at = end) {
        span_of(run, &run->program->steps.data[k], &at, &end);
        if (backend_of_step(trace, &run->program->steps.data[k]) == backend) {
            int64_t most = 0;
            for (int64_t i = at; i < end && i <= n; i++) {
                most = GB_MAX(most, live[i]);
            }
            trace->live.data[k] = (size_t) most;
        }
    }
}

// Notes the maximum of the bytes alive in each step, for pictures of the trace.
static void note_live(struct gb_trace * trace, const struct gb_sched_binding * run) {
    int64_t n = 0, end;
    for (size_t k = 0; k < run->program->steps.n; k++, n = end) {
        span_of(run, &run->program->steps.data[k], &n, &end);
    }
    trace->live.n = 0;
    int64_t * change = gb_calloc((size_t) n + 1, sizeof(*change));
    size_t * of_group = gb_calloc((size_t) run->in->n_ids + run->program->copies.n + 1, sizeof(*of_group));
    if (change && of_group && gb_vec_resize_zero(&trace->live, run->program->steps.n)) {
        for (int b = 0; b < run->in->n_backends; b++) {
            note_changes(run, b, n, change, of_group);
            note_live_of(trace, run, b, n, change);
        }
    }
    gb_free(change);
    gb_free(of_group);
}

// --------------------------------------------------------------------------------------------------------------- a run

// Reuses the events of earlier runs: their times have been read.
void gb_trace_begin_run(struct ggml_backend_sched * s, const struct gb_sched_assigned * assigned,
    const struct gb_sched_binding * run) {
    struct gb_trace * trace = s->trace;
    trace->run = run;
    trace->assigned = assigned;
    trace->run_begin = trace->entries.n;
    trace->pending.n = 0;
    for (int b = 0; b < trace->n_backends; b++) {
        trace->queues[b].n_used = 0;
    }
    if (trace->on) {
        note_live(trace, run);
    } else {
        trace->live.n = 0;
    }
}

// Fills the entry of a copy: reason, source, bytes.
static void describe_copy(struct ggml_backend_sched * s, const struct gb_copy * copy,
    struct ggml_backend_sched_trace_event * e) {
    const struct gb_sched_binding * run = s->trace->run;
    e->kind = GGML_BACKEND_SCHED_TRACE_COPY;
    e->reason = gb_sched_reason(copy);
    e->source = gb_sched_owner_of(s, run->in, s->trace->assigned, copy->root);
    e->split = copy->split;
    e->bytes = copy->span;
    set_name(e, gb_sched_name_of(run->in, copy->shown));
}

// A write-back is from the backend of the split to the owner of the memory.
static void describe_back(struct ggml_backend_sched * s, int back, struct ggml_backend_sched_trace_event * e) {
    const struct gb_sched_binding * run = s->trace->run;
    const int node = run->program->backs.data[back].node;
    e->kind = GGML_BACKEND_SCHED_TRACE_WRITE_BACK;
    e->reason = GGML_BACKEND_SCHED_REASON_RESULT;
    e->split = gb_sched_split_of_back(run->program, (size_t) back);
    e->source = run->program->splits.data[e->split].backend;
    e->bytes = ggml_nbytes(&run->program->backs.data[back].from->tensor);
    set_name(e, gb_sched_name_of(run->in, node));
}

// A split is named after its first node.
static void describe_split(struct ggml_backend_sched * s, int k, struct ggml_backend_sched_trace_event * e) {
    const struct gb_sched_binding * run = s->trace->run;
    const struct gb_split * split = &run->program->splits.data[k];
    e->kind = GGML_BACKEND_SCHED_TRACE_COMPUTE;
    e->split = k;
    e->node = split->start;
    e->n_nodes = split->end - split->start;
    set_name(e, gb_sched_name_of(run->in, split->start));
}

// Fills everything that is known before the step runs.
static void describe(struct ggml_backend_sched * s, const struct gb_step * step,
    struct ggml_backend_sched_trace_event * e) {
    const struct gb_sched_binding * run = s->trace->run;
    const size_t k = (size_t) (step - run->program->steps.data);
    *e = entry_of(s->trace, GGML_BACKEND_SCHED_TRACE_COPY, gb_time_ns());
    e->by_host = step->issuer == run->in->n_backends;
    e->backend = backend_of_step(s->trace, step);
    switch ((enum gb_step_kind) step->kind) {
        case GB_STEP_COPY: describe_copy(s, &run->program->copies.data[step->index], e); break;
        case GB_STEP_BACK: describe_back(s, step->index, e); break;
        case GB_STEP_COMPUTE: describe_split(s, step->index, e); break;
    }
    if (e->backend >= 0) {
        e->arena_bytes = run->layout->need[e->backend].peak;
        e->live_bytes = k < s->trace->live.n ? s->trace->live.data[k] : 0;
    }
}

// The entry describes the step that the host waited for.
void gb_trace_wait(struct ggml_backend_sched * s, const struct gb_step * on, int64_t start_ns) {
    struct ggml_backend_sched_trace_event e;
    describe(s, on, &e);
    e.kind = GGML_BACKEND_SCHED_TRACE_WAIT;
    e.reason = GGML_BACKEND_SCHED_REASON_NONE;
    e.by_host = true;
    e.bytes = 0;
    e.start_ns = start_ns;
    e.end_ns = gb_time_ns();
    push(s->trace, &e);
}

// True if the queue can note when it reaches an event.
static bool has_clock(ggml_backend_t backend) {
    return backend->iface.event_new_timed && backend->iface.event_time && backend->iface.event_record &&
           backend->iface.event_free;
}

// The next pair of a queue's events; its number + 1, or 0.
static size_t next_pair(struct gb_trace * trace, ggml_backend_t backend, int b) {
    struct queue_clock * q = &trace->queues[b];
    if (!has_clock(backend)) {
        return 0;
    }
    if (q->n_used == q->pairs.n) {
        if (!gb_vec_reserve(&q->pairs, q->pairs.n + 1)) {
            return 0;
        }
        const struct clock_pair pair = { backend->iface.event_new_timed(backend),
            backend->iface.event_new_timed(backend) };
        if (pair.begin == NULL || pair.end == NULL) {
            ggml_backend_event_free(pair.begin);
            ggml_backend_event_free(pair.end);
            return 0;
        }
        q->pairs.data[q->pairs.n++] = pair;
    }
    return ++q->n_used;
}

// Uses the host's clock for the host's steps and for queues without a clock.
void gb_trace_begin_step(struct ggml_backend_sched * s, const struct gb_step * step) {
    struct gb_trace * trace = s->trace;
    describe(s, step, &trace->now);
    if (step->kind == GB_STEP_COMPUTE && gb_profile_is_on()) {
        gb_profile_set_device(s->devices[trace->now.backend].name);
        trace->profiled = gb_profile_n_added();
    }
    trace->now_pair = trace->now.by_host ? 0 : next_pair(trace, s->devices[step->issuer].backend, step->issuer);
    if (trace->now_pair > 0) {
        ggml_backend_event_record(trace->queues[step->issuer].pairs.data[trace->now_pair - 1].begin);
    }
    trace->now.start_ns = gb_time_ns();
}

// Adds the split of an entry to the thread's profile.
static void profile_split(struct ggml_backend_sched * s, const struct ggml_backend_sched_trace_event * e) {
    const struct gb_sched_program * program = s->trace->run->program;
    if (e->kind == GGML_BACKEND_SCHED_TRACE_COMPUTE) {
        const struct gb_split * split = &program->splits.data[e->split];
        const struct ggml_cgraph part = gb_program_part(program, split->exec_begin, split->exec_end);
        char algorithms[GB_ALGORITHMS_SIZE];
        gb_backend_name_algorithms(s->devices[e->backend].backend, part.nodes, part.n_nodes, &algorithms);
        gb_profile_set_device(s->devices[e->backend].name);
        gb_profile_add(&(struct gb_profile_note){ .nodes = part.nodes,
            .n_nodes = part.n_nodes,
            .apart = true,
            .fusion = "split",
            .algorithm = algorithms,
            .start_ns = e->start_ns,
            .end_ns = e->end_ns,
            .n_threads = 1,
            .n_tasks = 1 });
    }
}

// Adds no entry for a step that was not made. If the queue has a clock, adds the entry now and its
// times later.
bool gb_trace_end_step(struct ggml_backend_sched * s, const struct gb_step * step, bool made) {
    struct gb_trace * trace = s->trace;
    trace->now.end_ns = gb_time_ns();
    if (!made) {
        return false;
    }
    if (trace->now.by_host) {
        push(trace, &trace->now);
        if (gb_profile_is_on() && gb_profile_n_added() == trace->profiled) {
            profile_split(s, &trace->now);
        }
        return false;
    }
    if (trace->now_pair == 0) {
        return true;
    }
    ggml_backend_event_record(trace->queues[step->issuer].pairs.data[trace->now_pair - 1].end);
    const struct pending waiting = { trace->entries.n, step->issuer, trace->now_pair - 1 };
    if (gb_vec_push(&trace->pending, waiting) && push(trace, &trace->now) != GGML_STATUS_SUCCESS) {
        trace->pending.n--;
    }
    return false;
}

void gb_trace_step_is_done(struct ggml_backend_sched * s) {
    s->trace->now.end_ns = gb_time_ns();
    push(s->trace, &s->trace->now);
}

// Sums up the times of splits, for ggml_backend_sched_get_split_time.
static void add_to_split(struct gb_trace * trace, const struct ggml_backend_sched_trace_event * e) {
    if (e->kind == GGML_BACKEND_SCHED_TRACE_COMPUTE) {
        struct gb_bound_split * split = &trace->run->splits[e->split];
        split->n_traced++;
        split->traced_ns += (uint64_t) (e->end_ns - e->start_ns);
    }
}

// Reads the times of the queues. A failed run leaves no entries.
void gb_trace_end_run(struct ggml_backend_sched * s, bool complete) {
    struct gb_trace * trace = s->trace;
    if (trace->run == NULL) {
        return; // the run did not begin
    }
    if (!complete) { // some of its times are unknown
        trace->entries.n = trace->run_begin;
    }
    for (size_t k = 0; complete && k < trace->pending.n; k++) {
        const struct pending * waiting = &trace->pending.data[k];
        const struct clock_pair * pair = &trace->queues[waiting->backend].pairs.data[waiting->pair];
        const struct ggml_backend_i * iface = &s->devices[waiting->backend].backend->iface;
        struct ggml_backend_sched_trace_event * e = &trace->entries.data[waiting->entry];
        e->start_ns = iface->event_time(pair->begin);
        e->end_ns = GB_MAX(e->start_ns, iface->event_time(pair->end));
    }
    for (size_t k = trace->run_begin; k < trace->entries.n; k++) {
        const struct ggml_backend_sched_trace_event * e = &trace->entries.data[k];
        if (gb_profile_is_on() && !e->by_host) {
            profile_split(s, e);
        }
        if (trace->on) {
            add_to_split(trace, e);
        }
    }
    trace->entries.n = trace->on ? trace->entries.n : trace->run_begin;
    trace->run = NULL;
    trace->n_runs += complete && trace->on;
}

// -------------------------------------------------------------------------------------------------------------- public

// A record without entries.
struct gb_trace * gb_trace_new(int n_backends, bool on) {
    struct gb_trace * trace = GB_NEW(struct gb_trace);
    if (trace) {
        trace->on = on;
        trace->n_backends = n_backends;
        trace->queues = gb_calloc((size_t) n_backends, sizeof(*trace->queues));
    }
    if (trace && trace->queues == NULL) {
        gb_free(trace);
        trace = NULL;
    }
    return trace;
}

size_t ggml_backend_sched_get_n_trace_events(ggml_backend_sched_t sched) {
    GB_CHECK_ARG_RETURNING(sched, 0);
    return sched->trace ? sched->trace->entries.n : 0;
}

enum ggml_status ggml_backend_sched_get_trace_event(ggml_backend_sched_t sched, size_t i,
    struct ggml_backend_sched_trace_event * event) {
    GB_CHECK_ARG(sched);
    GB_CHECK_ARG(event);
    const size_t n = ggml_backend_sched_get_n_trace_events(sched);
    GB_FAIL_IF(i >= n, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'i': must be below %zu, is %zu", __func__, n, i);
    *event = sched->trace->entries.data[i];
    return GGML_STATUS_SUCCESS;
}
