// run.c - executes a plan: issues its steps in order, and before each the waits that were found for it.
//
// Rules of ordering (docs/SCHEDULER.md has them at length). A queue does what it is given in order. With several
// backends a run begins when all of them are idle: the user, too, may have queued work. Between queues nothing is in
// order but by the waits of the plan. What the host does itself (nodes of backends without a queue, copies that no
// queue can make) is done when the step was issued. With a callback, or when the run is checked, each step is complete
// before the next one begins.
// After a failure everything is waited for, so the scheduler can go on with the next call. A wait that is given up
// (base/current.h) is such a failure: what is queued on all backends is cancelled then.
#include "sched/sched.h"

#include <string.h>

#include "backend/backend.h"
#include "base/env.h"
#include "base/thread.h"

struct run {
    struct ggml_backend_sched * sched;
    struct gb_sched_plan *      plan;
    bool                        behind;  // earlier runs, whose end nobody has waited for, may be on their way
    bool                        watched; // there was a callback, which may do anything
    bool                        serial;  // one step after the other
    bool                        again;   // right behind a run of the same plan
    bool                        traced;
};

static ggml_backend_t backend_of(const struct run * r, int backend) { return r->sched->devices[backend].backend; }

static bool is_left_out(const struct run * r, enum gb_mutation what) {
    return r->sched->leaves_out && r->sched->leaves_out(what);
}

// --------------------------------------------------------------------------------------------------------------- waits

static enum ggml_status wait_for(struct run * r, const struct gb_step * step, const struct gb_wait * wait) {
    const struct gb_sched_plan * p  = r->plan;
    const struct gb_step *       on = &p->steps.data[wait->step];
    if (is_left_out(r, GB_DROP_WAIT)) {
        return GGML_STATUS_SUCCESS;
    }
    const ggml_backend_event_t event = p->events.data[on->event];
    if (r->sched->check) {
        gb_check_wait(r->sched, step, wait);
    }
    if (wait->by_host) {
        const int64_t          start  = gb_time_ns();
        const enum ggml_status status = ggml_backend_event_synchronize(event);
        r->sched->stats.n_waits_host++;
        r->sched->stats.wait_ns += (uint64_t) (gb_time_ns() - start);
        if (r->traced) {
            gb_trace_wait(r->sched, on, start);
        }
        return status;
    }
    r->sched->stats.n_waits_queue++;
    return ggml_backend_event_wait(backend_of(r, step->actor), event);
}

static enum ggml_status wait_for_needs(struct run * r, const struct gb_step * step) {
    const size_t end = r->again ? step->again_end : step->waits_end;
    for (size_t w = r->again ? step->again_begin : step->waits_begin; w < end; w++) {
        GB_TRY(wait_for(r, step, &r->plan->waits.data[w]));
    }
    return GGML_STATUS_SUCCESS;
}

// -------------------------------------------------------------------------------------------------------------- copies

// In the actor's queue, where it takes it; else the host copies, when the queue has come to where the copy would have
// been.
static enum ggml_status transfer(struct run * r, const struct gb_step * step, struct ggml_tensor * src,
    struct ggml_tensor * dst) {
    if (step->actor == r->plan->n_backends) {
        return ggml_backend_tensor_copy(src, dst);
    }
    const ggml_backend_t backend = backend_of(r, step->actor);
    const uint64_t       before  = gb_fail_count();
    if (ggml_nbytes(dst) == 0) {
        return GGML_STATUS_SUCCESS;
    }
    gb_buffer_changed(gb_tensor_buffer(dst));
    const bool queued = backend->iface.cpy_tensor_peer_async(backend, src, dst);
    GB_TRY(gb_status_since(before));
    if (queued) {
        return GGML_STATUS_SUCCESS;
    }
    GB_TRY(ggml_backend_synchronize(backend));
    return ggml_backend_tensor_copy(src, dst);
}

// Has to be made in this run, and is not one that a test leaves out.
static bool is_to_be_made(const struct run * r, const struct gb_step * step) {
    if (step->kind == GB_STEP_COMPUTE) {
        return true;
    }
    const struct gb_copy * copy = step->kind == GB_STEP_COPY ? &r->plan->copies.data[step->index] : NULL;
    return (copy == NULL || (copy->fill && (!copy->kept || copy->due))) && !is_left_out(r, GB_DROP_COPY);
}

// What the user has set is taken now, into host memory that the copy before the last n_copies has left.
static enum ggml_status copy_staged(struct run * r, const struct gb_step * step, const struct gb_copy * copy) {
    struct gb_stage *          stage = &copy->stages[r->plan->turn % (unsigned) r->plan->n_copies];
    const struct ggml_tensor * src   = copy->range ? &copy->range->tensor : r->plan->ids.data[copy->root].tensor;
    GB_TRY(ggml_backend_event_synchronize(stage->event));
    memcpy(stage->tensor.data, src->data, ggml_nbytes(src));
    GB_TRY(transfer(r, step, &stage->tensor, &copy->dst->tensor));
    return ggml_backend_event_record(stage->event);
}

static enum ggml_status copy_in(struct run * r, const struct gb_step * step, bool make) {
    struct gb_copy * copy = &r->plan->copies.data[step->index];
    if (copy->kept) {
        copy->replica->version = copy->seen;
    }
    if (make || (copy->kept && !copy->due)) {
        gb_sched_count_copy(r->sched, copy);
    }
    if (!make) {
        return GGML_STATUS_SUCCESS;
    }
    if (copy->stages) {
        return copy_staged(r, step, copy);
    }
    return transfer(r, step, copy->range ? &copy->range->tensor : r->plan->ids.data[copy->root].tensor,
        &copy->dst->tensor);
}

// The result goes home.
static enum ggml_status copy_back(struct run * r, const struct gb_step * step) {
    const struct gb_write_back * back = &r->plan->backs.data[step->index];
    gb_sched_count_back(r->sched, back);
    return transfer(r, step, &back->from->tensor, r->plan->ids.data[back->node].tensor);
}

// ----------------------------------------------------------------------------------------------------------- computing

static bool has_plans(ggml_backend_t backend) {
    return backend->iface.graph_plan_create && backend->iface.graph_plan_free && backend->iface.graph_plan_compute;
}

static struct ggml_cgraph part(struct run * r, size_t begin, size_t end) {
    struct ggml_cgraph graph = { 0 };
    graph.n_nodes            = (int) (end - begin);
    graph.size               = graph.n_nodes;
    graph.nodes              = r->plan->exec.data + begin;
    return graph;
}

static enum ggml_status compute_part(struct run * r, int backend, size_t begin, size_t end) {
    if (begin == end) {
        return GGML_STATUS_SUCCESS;
    }
    struct ggml_cgraph graph  = part(r, begin, end);
    const uint64_t     before = gb_fail_count();
    if (ggml_backend_graph_compute(backend_of(r, backend), &graph)) {
        return GGML_STATUS_SUCCESS;
    }
    const enum ggml_status status = gb_status_since(before);
    return status == GGML_STATUS_SUCCESS ? GGML_STATUS_FAILED : status;
}

static void prepare(struct run * r, struct gb_split * split, ggml_backend_t backend) {
    struct ggml_cgraph graph = part(r, split->exec_begin, split->exec_end);
    // they are what they were when collecting looked at them: the plan was found by that
    const bool trust = gb_trust_tensors(true);
    split->prepared  = has_plans(backend) ? ggml_backend_graph_plan_create(backend, &graph) : NULL;
    split->no_plan   = split->prepared == NULL;
    gb_trust_tensors(trust);
}

// A split is prepared by its backend once and then run many times, where the backend can do that.
static enum ggml_status compute_split(struct run * r, struct gb_split * split) {
    const ggml_backend_t backend = backend_of(r, split->backend);
    if (split->prepared == NULL && !split->no_plan && split->exec_end > split->exec_begin) {
        prepare(r, split, backend);
    }
    return split->prepared ? ggml_backend_graph_plan_compute(backend, split->prepared)
                           : compute_part(r, split->backend, split->exec_begin, split->exec_end);
}

// The callback may ask the scheduler about things and wait for it, even take itself back (then nothing is wanted any
// more), but not run, reset or free it.
static bool call_back(struct ggml_backend_sched * s, struct ggml_tensor * t, bool ask) {
    if (s->callback == NULL) {
        return !ask;
    }
    s->in_callback        = true;
    const uint64_t before = gb_fail_count();
    const bool     answer = s->callback(t, ask, s->callback_data);
    gb_forget_failures_since(before);
    s->in_callback = false;
    s->running     = true; // whatever it waited for, there is more to come
    return answer;
}

// Nodes [i, j) where j - 1 is the first whose result the callback wants, or the end of the split.
static int end_of_unseen(struct run * r, const struct gb_split * split, int i, bool * wanted) {
    *wanted = false;
    while (i < split->end && !*wanted) {
        *wanted = call_back(r->sched, r->plan->ids.data[i].tensor, true);
        i++;
    }
    return i;
}

// What a callback is shown is read where the node's result belongs, so results on copies go there at once. They go
// again in their step.
static enum ggml_status show_at_home(struct run * r, const struct gb_split * split, size_t begin, size_t end) {
    const struct gb_sched_plan * p = r->plan;
    for (size_t w = split->backs_begin; w < split->backs_end && begin < end; w++) {
        const struct gb_write_back * back = &p->backs.data[w];
        if (back->node >= p->exec_node.data[begin] && back->node <= p->exec_node.data[end - 1]) {
            GB_TRY(ggml_backend_tensor_copy(&back->from->tensor, p->ids.data[back->node].tensor));
        }
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status run_with_callback(struct run * r, const struct gb_split * split) {
    const struct gb_sched_plan * p    = r->plan;
    size_t                       exec = split->exec_begin;
    for (int i = split->start; i < split->end;) {
        bool         wanted;
        const int    end   = end_of_unseen(r, split, i, &wanted);
        const size_t begin = exec;
        GB_TRY(gb_sched_check_backends(r->sched, "ggml_backend_sched"));
        while (exec < split->exec_end && p->exec_node.data[exec] < end) {
            exec++;
        }
        GB_TRY(compute_part(r, split->backend, begin, exec));
        if (wanted) {
            GB_TRY(ggml_backend_synchronize(backend_of(r, split->backend)));
            GB_TRY(show_at_home(r, split, split->exec_begin, exec));
            if (!call_back(r->sched, p->ids.data[end - 1].tensor, false)) {
                // wanted
                return gb_fail_quietly(GGML_STATUS_ABORTED, "ggml_backend_sched: stopped by the evaluation callback");
            }
            GB_TRY(gb_sched_check_backends(r->sched, "ggml_backend_sched"));
        }
        i = end;
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status issue(struct run * r, const struct gb_step * step, bool make) {
    switch ((enum gb_step_kind) step->kind) {
        case GB_STEP_COPY: return copy_in(r, step, make);
        case GB_STEP_BACK: return make ? copy_back(r, step) : GGML_STATUS_SUCCESS;
        case GB_STEP_COMPUTE: break;
    }
    struct gb_split * split = &r->plan->splits.data[step->index];
    return r->sched->callback ? run_with_callback(r, split) : compute_split(r, split);
}

static enum ggml_status run_step(struct run * r, const struct gb_step * step) {
    struct ggml_backend_sched * s = r->sched;
    GB_TRY(wait_for_needs(r, step));
    const bool make = is_to_be_made(r, step);
    if (s->check) {
        GB_TRY(gb_check_step(s, step, make));
    }
    if (r->traced) {
        gb_trace_begin_step(s, step);
    }
    GB_TRY(issue(r, step, make));
    const bool alone = r->traced && gb_trace_end_step(s, step, make);
    if (step->event >= 0) {
        GB_TRY(ggml_backend_event_record(r->plan->events.data[step->event]));
    }
    if ((r->serial || alone) && step->actor < r->plan->n_backends) {
        GB_TRY(ggml_backend_synchronize(backend_of(r, step->actor)));
    }
    if (alone) {
        gb_trace_step_is_done(s);
    }
    return s->check ? gb_check_done(s, step) : GGML_STATUS_SUCCESS;
}

static int split_of(const struct gb_sched_plan * p, int back) {
    int k = 0;
    while ((size_t) back >= p->splits.data[k].backs_end) {
        k++;
    }
    return k;
}

// The message of the failure, with where it was; then everything still queued is waited for.
static enum ggml_status fail_in_step(struct run * r, const struct gb_step * step, enum ggml_status status,
    const char * func) {
    const struct gb_sched_plan * p = r->plan;
    char                         message[GB_ERROR_SIZE - 256];
    const char *                 text  = ggml_last_error();
    const int                    at    = step->kind == GB_STEP_COMPUTE ? step->index
                                         : step->kind == GB_STEP_COPY  ? p->copies.data[step->index].split
                                                                       : split_of(p, step->index);
    const struct gb_split *      split = &p->splits.data[at];
    const char *                 name  = ggml_backend_name(backend_of(r, split->backend));
    const size_t                 known = strlen(name);
    if (strncmp(text, name, known) == 0 && strncmp(text + known, ": ", 2) == 0) {
        text += known + 2; // the backend is named below
    }
    const size_t size = strlen(text) + 1;
    memcpy(message, text, GB_MIN(size, sizeof(message)));
    message[sizeof(message) - 1] = '\0';
    for (int b = 0; b < p->n_backends; b++) {
        gb_sched_wait_for_backend(backend_of(r, b), status == GGML_STATUS_ABORTED);
    }
    r->sched->lost      = r->behind ? status : GGML_STATUS_SUCCESS;
    r->sched->running   = false;
    r->sched->in_flight = NULL;
    gb_sched_forget_replicas(r->sched);
    if (status == GGML_STATUS_ABORTED) {
        return gb_fail_quietly(status, message);
    }
    return gb_fail(status, "%s: split %d (nodes %d to %d) on backend %s: %s", func, at, split->start, split->end - 1,
        r->sched->devices[split->backend].name, message);
}

static enum ggml_status begin(struct run * r) {
    struct ggml_backend_sched * s = r->sched;
    r->behind                     = s->running;
    s->generation                 = r->behind ? s->generation : gb_fork_generation();
    s->running                    = true;
    s->stats.n_runs++;
    r->plan->turn++;
    r->again          = s->in_flight == r->plan && r->plan->n_staged > 0 && !r->serial;
    const bool forked = r->behind && s->generation != gb_fork_generation();
    if ((r->plan->n_backends > 1 && !r->again) || forked) { // what was on its way there is an error, told once
        GB_TRY(gb_sched_wait_first(s));
        s->running = true;
        r->behind  = false;
    }
    s->in_flight  = NULL;
    s->lost       = GGML_STATUS_SUCCESS;
    s->generation = gb_fork_generation();
    gb_sched_look_at_replicas(r->plan);
    if (r->traced) {
        gb_trace_begin_run(s, r->plan);
    }
    return s->check ? gb_check_begin(s, r->plan) : GGML_STATUS_SUCCESS;
}

static enum ggml_status run_steps(struct run * r, const char * func) {
    const struct gb_sched_plan * p = r->plan;
    GB_TRY(begin(r));
    for (size_t k = 0; k < p->steps.n; k++) {
        const enum ggml_status status = run_step(r, &p->steps.data[k]);
        if (status != GGML_STATUS_SUCCESS) {
            return fail_in_step(r, &p->steps.data[k], status, func);
        }
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_sched_run(struct ggml_backend_sched * s, struct gb_sched_plan * p, const char * func) {
    struct run       r      = { s, p, false, s->callback != NULL, s->callback != NULL || s->check != NULL, false,
        gb_sched_is_traced(s) };
    const int64_t    start  = gb_time_ns();
    enum ggml_status status = run_steps(&r, func);
    s->stats.run_ns += (uint64_t) (gb_time_ns() - start);
    if (r.traced) {
        status = status == GGML_STATUS_SUCCESS ? gb_sched_wait(s) : status;
        gb_trace_end_run(s, status == GGML_STATUS_SUCCESS);
    }
    GB_TRY(status);
    if (!r.watched) {
        gb_sched_keep_replicas(p);
    }
    s->in_flight = r.serial || r.traced ? NULL : p;
    if (s->in_flight == NULL) {
        GB_TRY(gb_sched_check_files(p));
    }
    return s->check ? gb_check_end(s) : GGML_STATUS_SUCCESS;
}
