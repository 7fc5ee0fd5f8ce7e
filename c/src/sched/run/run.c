// run.c - executes a plan: issues its steps in order, each after its waits.
//
// Order of execution (docs/design/scheduler.md explains it). A queue is in order. With several
// backends a run begins when all are idle, because the user may have queued work. Only the waits of
// the plan order different queues. Steps of the host are complete when their call returns: nodes of
// backends without a queue, and copies that no queue can make. With a callback or the validator
// each step is complete before the next one begins.
//
// After a failure the run waits for everything queued (wait.c), so the next call can use the
// scheduler.
#include "sched/input/input.h"
#include "sched/memory/memory.h"
#include "sched/program/program.h"
#include "sched/run/run.h"
#include "sched/sched.h"

#include <string.h>

#include "backend/backend.h"
#include "backend/profile.h"
#include "base/env.h"
#include "base/thread.h"

// One run while its steps are issued.
struct run {
    struct ggml_backend_sched * sched;
    const struct gb_sched_input * in;
    const struct gb_sched_assigned * assigned;
    const struct gb_sched_program * program;
    const struct gb_sched_waits * waits;
    struct gb_sched_binding * binding;
    bool behind; // earlier runs may be pending
    bool watched; // there was a callback, which may change any buffer
    bool serial; // each step is complete before the next
    bool again; // the previous run is pending and of the same plan
    bool traced;
};

static ggml_backend_t backend_of(const struct run * r, int backend) { return r->sched->devices[backend].backend; }

// --------------------------------------------------------------------------------------------------------------- waits

// Waits for a step. The host waits if the queue does not support the event.
static enum ggml_status wait_for(struct run * r, const struct gb_step * step, const struct gb_wait * wait) {
    const struct gb_step * on = &r->program->steps.data[wait->step];
    if (r->sched->validator) {
        gb_validator_wait(r->sched, step, wait);
    }
    if (wait->implied) {
        return GGML_STATUS_SUCCESS;
    }
    const ggml_backend_event_t event = r->binding->events.data[r->waits->of[wait->step].event];
    if (wait->by_host) {
        const int64_t start = gb_time_ns();
        const enum ggml_status status = ggml_backend_event_synchronize(event);
        r->sched->stats.n_waits_host++;
        r->sched->stats.wait_ns += (uint64_t) (gb_time_ns() - start);
        if (r->traced) {
            gb_trace_wait(r->sched, on, start);
        }
        return status;
    }
    r->sched->stats.n_waits_queue++;
    return ggml_backend_event_wait(backend_of(r, step->issuer), event);
}

// If the previous run is pending and of the same plan, uses the waits of "again".
static enum ggml_status wait_for_needs(struct run * r, const struct gb_step * step) {
    const struct gb_step_waits * of = &r->waits->of[step - r->program->steps.data];
    const size_t end = r->again ? of->again_end : of->end;
    for (size_t w = r->again ? of->again_begin : of->begin; w < end; w++) {
        GB_TRY(wait_for(r, step, &r->waits->list.data[w]));
    }
    return GGML_STATUS_SUCCESS;
}

// -------------------------------------------------------------------------------------------------------------- copies

// The issuer's queue copies if it can. Otherwise the host waits for the queue and copies.
static enum ggml_status transfer(struct run * r, const struct gb_step * step, struct ggml_tensor * src,
    struct ggml_tensor * dst) {
    if (step->issuer == r->in->n_backends) {
        return ggml_backend_tensor_copy(src, dst);
    }
    const ggml_backend_t backend = backend_of(r, step->issuer);
    const uint64_t before = gb_fail_count();
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

// True unless the copy is up to date.
static bool is_to_be_made(const struct run * r, const struct gb_step * step) {
    if (step->kind == GB_STEP_COMPUTE) {
        return true;
    }
    const struct gb_copy * copy = step->kind == GB_STEP_COPY ? &r->program->copies.data[step->index] : NULL;
    return copy == NULL || (copy->fill && (!copy->kept || r->binding->copies[step->index].due));
}

// Copies the user's input now, into the host memory that the run n_copies runs ago used.
static enum ggml_status copy_staged(struct run * r, const struct gb_step * step, const struct gb_copy * copy) {
    struct gb_stage * stage = &r->binding->copies[step->index].stages[r->binding->turn % (unsigned) r->in->n_copies];
    const struct ggml_tensor * src = copy->range ? &copy->range->tensor : r->in->ids.data[copy->root].tensor;
    GB_TRY(ggml_backend_event_synchronize(stage->event));
    memcpy(stage->tensor.data, src->data, ggml_nbytes(src));
    GB_TRY(transfer(r, step, &stage->tensor, &copy->dst->tensor));
    return ggml_backend_event_record(stage->event);
}

// A replica that is up to date is counted and not copied.
static enum ggml_status copy_in(struct run * r, const struct gb_step * step, bool make) {
    const struct gb_copy * copy = &r->program->copies.data[step->index];
    const struct gb_bound_copy * bound = &r->binding->copies[step->index];
    if (copy->kept) {
        bound->replica->version = bound->seen;
    }
    if (make || (copy->kept && !bound->due)) {
        gb_sched_count_copy(r->sched, copy, bound->due);
    }
    if (!make) {
        return GGML_STATUS_SUCCESS;
    }
    if (bound->stages) {
        return copy_staged(r, step, copy);
    }
    return transfer(r, step, copy->range ? &copy->range->tensor : r->in->ids.data[copy->root].tensor,
        &copy->dst->tensor);
}

// Writes the result to its own memory.
static enum ggml_status copy_back(struct run * r, const struct gb_step * step) {
    const struct gb_write_back * back = &r->program->backs.data[step->index];
    gb_sched_count_back(r->sched, back);
    return transfer(r, step, &back->from->tensor, r->in->ids.data[back->node].tensor);
}

// ----------------------------------------------------------------------------------------------------------- computing

// True if the backend can prepare a graph for many runs.
static bool has_plans(ggml_backend_t backend) {
    return backend->iface.graph_plan_create && backend->iface.graph_plan_free && backend->iface.graph_plan_compute;
}

// Computes exec[begin, end). `seen`: the callback looks at the last node and its sources before the
// next part, so the graph is marked as a view by size 0.
static enum ggml_status compute_part(struct run * r, int backend, size_t begin, size_t end, bool seen) {
    if (begin == end) {
        return GGML_STATUS_SUCCESS;
    }
    struct ggml_cgraph graph = gb_program_part(r->program, begin, end);
    const uint64_t before = gb_fail_count();
    graph.size = seen ? 0 : graph.size;
    if (ggml_backend_graph_compute(backend_of(r, backend), &graph)) {
        return GGML_STATUS_SUCCESS;
    }
    const enum ggml_status status = gb_status_since(before);
    return status == GGML_STATUS_SUCCESS ? GGML_STATUS_FAILED : status;
}

// If a backend has prepared nothing once, does not try again.
static void prepare(struct run * r, const struct gb_split * split, struct gb_bound_split * bound,
    ggml_backend_t backend) {
    struct ggml_cgraph graph = gb_program_part(r->program, split->exec_begin, split->exec_end);
    // the tensors equal those that were checked, because the plan was found by comparing them
    const bool trust = gb_trust_tensors(true);
    bound->prepared = has_plans(backend) ? ggml_backend_graph_plan_create(backend, &graph) : NULL;
    bound->no_plan = bound->prepared == NULL;
    gb_trust_tensors(trust);
}

// Prepares a split once and runs it many times, if the backend supports that. It stays prepared
// until the plan is bound again, or a buffer was freed whose address it may contain.
static enum ggml_status compute_split(struct run * r, int k) {
    const struct gb_split * split = &r->program->splits.data[k];
    struct gb_bound_split * bound = &r->binding->splits[k];
    const ggml_backend_t backend = backend_of(r, split->backend);
    if (bound->prepared == NULL && !bound->no_plan && split->exec_end > split->exec_begin) {
        prepare(r, split, bound, backend);
    }
    return bound->prepared ? ggml_backend_graph_plan_compute(backend, bound->prepared)
                           : compute_part(r, split->backend, split->exec_begin, split->exec_end, false);
}

// The callback may query the scheduler, wait for it and remove itself. It may not run, reset or
// free the scheduler.
static bool call_back(struct ggml_backend_sched * s, struct ggml_tensor * t, bool ask) {
    if (s->callback == NULL) {
        return !ask;
    }
    s->in_callback = true;
    const uint64_t before = gb_fail_count();
    // Nodes that the callback computes are no steps of the run
    const struct gb_profile_scope profile = gb_profile_enter(NULL);
    const bool answer = s->callback(t, ask, s->callback_data);
    gb_profile_leave(profile);
    gb_forget_failures_since(before);
    s->in_callback = false;
    s->running = true; // even if the callback has waited: more steps follow
    return answer;
}

// The end of the nodes from i on that are computed together: after the first node that the callback
// wants to see, or at the end of the split.
static int end_of_unseen(struct run * r, const struct gb_split * split, int i, bool * wanted) {
    *wanted = false;
    while (i < split->end && !*wanted) {
        *wanted = call_back(r->sched, r->in->ids.data[i].tensor, true);
        i++;
    }
    return i;
}

// Writes results on copies to their own memory now, because the callback reads them there. Their
// step writes them again.
static enum ggml_status show_result(struct run * r, const struct gb_split * split, size_t begin, size_t end) {
    for (size_t w = split->backs_begin; w < split->backs_end && begin < end; w++) {
        const struct gb_write_back * back = &r->program->backs.data[w];
        if (back->node >= r->program->exec_node.data[begin] && back->node <= r->program->exec_node.data[end - 1]) {
            GB_TRY(ggml_backend_tensor_copy(&back->from->tensor, r->in->ids.data[back->node].tensor));
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Each call of the backend computes the nodes up to the next one that the callback wants to see.
// Nothing is prepared, because these parts differ from run to run.
static enum ggml_status run_with_callback(struct run * r, const struct gb_split * split) {
    size_t exec = split->exec_begin;
    for (int i = split->start; i < split->end;) {
        bool wanted;
        const int end = end_of_unseen(r, split, i, &wanted);
        const size_t begin = exec;
        GB_TRY(gb_sched_check_backends(r->sched, "ggml_backend_sched"));
        while (exec < split->exec_end && r->program->exec_node.data[exec] < end) {
            exec++;
        }
        GB_TRY(compute_part(r, split->backend, begin, exec, true));
        if (wanted) {
            GB_TRY(ggml_backend_synchronize(backend_of(r, split->backend)));
            GB_TRY(show_result(r, split, split->exec_begin, exec));
            if (!call_back(r->sched, r->in->ids.data[end - 1].tensor, false)) {
                // The callback stops the run, which is no failure to log.
                return gb_fail_quietly(GGML_STATUS_ABORTED, "ggml_backend_sched: stopped by the evaluation callback");
            }
            GB_TRY(gb_sched_check_backends(r->sched, "ggml_backend_sched"));
        }
        i = end;
    }
    return GGML_STATUS_SUCCESS;
}

// Copies that are up to date (`make` is false) are not issued.
static enum ggml_status issue(struct run * r, const struct gb_step * step, bool make) {
    switch ((enum gb_step_kind) step->kind) {
        case GB_STEP_COPY: return copy_in(r, step, make);
        case GB_STEP_BACK: return make ? copy_back(r, step) : GGML_STATUS_SUCCESS;
        case GB_STEP_COMPUTE: break;
    }
    return r->sched->callback ? run_with_callback(r, &r->program->splits.data[step->index])
                              : compute_split(r, step->index);
}

// Executes the waits, the step, and its event. Waiting for the event waits for the whole step.
static enum ggml_status run_step(struct run * r, const struct gb_step * step) {
    struct ggml_backend_sched * s = r->sched;
    GB_TRY(wait_for_needs(r, step));
    const bool make = is_to_be_made(r, step);
    if (s->validator) {
        GB_TRY(gb_validator_step(s, step, make));
    }
    if (r->traced) {
        gb_trace_begin_step(s, step);
    }
    GB_TRY(issue(r, step, make));
    const bool alone = r->traced && gb_trace_end_step(s, step, make);
    const int32_t event = r->waits->of[step - r->program->steps.data].event;
    if (event >= 0) {
        GB_TRY(ggml_backend_event_record(r->binding->events.data[event]));
    }
    if ((r->serial || alone) && step->issuer < r->in->n_backends) {
        GB_TRY(ggml_backend_synchronize(backend_of(r, step->issuer)));
    }
    if (alone) {
        gb_trace_step_is_done(s);
    }
    return s->validator ? gb_validator_done(s, step) : GGML_STATUS_SUCCESS;
}

// Waits for everything still queued, and reports the failure with the name of its split.
static enum ggml_status fail_in_step(struct run * r, const struct gb_step * step, enum ggml_status status,
    const char * func) {
    char message[GB_ERROR_SIZE - 256];
    const char * text = gb_last_message();
    const int at = step->kind == GB_STEP_COMPUTE ? step->index
                   : step->kind == GB_STEP_COPY  ? r->program->copies.data[step->index].split
                                                 : gb_sched_split_of_back(r->program, (size_t) step->index);
    const struct gb_split * split = &r->program->splits.data[at];
    const char * name = ggml_backend_name(backend_of(r, split->backend));
    const size_t known = strlen(name);
    if (strncmp(text, name, known) == 0 && strncmp(text + known, ": ", 2) == 0) {
        text += known + 2; // the message names the backend anyway
    }
    const size_t size = strlen(text) + 1;
    memcpy(message, text, GB_MIN(size, sizeof(message)));
    message[sizeof(message) - 1] = '\0';
    for (int b = 0; b < r->in->n_backends; b++) {
        gb_sched_wait_for_backend(backend_of(r, b), status == GGML_STATUS_ABORTED);
    }
    r->sched->earlier_failure = r->behind ? status : GGML_STATUS_SUCCESS;
    r->sched->running = false;
    r->sched->pending = NULL;
    gb_sched_forget_replicas(r->sched);
    if (status == GGML_STATUS_ABORTED) {
        return gb_fail_quietly(status, message);
    }
    return gb_fail(status, "%s: split %d (nodes %d to %d) on backend %s: %s", func, at, split->start, split->end - 1,
        r->sched->devices[split->backend].name, message);
}

// If there are several backends, all must be idle, unless the previous run is of the same plan and
// has staged inputs. The user can set staged inputs while the previous run computes, and the plan
// has the waits for a second run in a row.
static enum ggml_status begin(struct run * r) {
    struct ggml_backend_sched * s = r->sched;
    r->behind = s->running;
    s->fork_generation = r->behind ? s->fork_generation : gb_fork_generation();
    s->running = true;
    s->stats.n_runs++;
    r->binding->turn++;
    r->again = s->pending == r->binding && r->program->n_staged > 0 && !r->serial;
    const bool forked = r->behind && s->fork_generation != gb_fork_generation();
    // Pending work of the parent process is an error, which is reported once.
    if ((r->in->n_backends > 1 && !r->again) || forked) {
        GB_TRY(gb_sched_wait_first(s));
        s->running = true;
        r->behind = false;
    }
    s->pending = NULL;
    s->earlier_failure = GGML_STATUS_SUCCESS;
    s->fork_generation = gb_fork_generation();
    gb_sched_look_at_replicas(r->binding);
    if (r->traced) {
        gb_trace_begin_run(s, r->assigned, r->binding);
    }
    return s->validator ? gb_validator_begin(s, r->binding) : GGML_STATUS_SUCCESS;
}

// The first failure ends the run.
static enum ggml_status run_steps(struct run * r, const char * func) {
    GB_TRY(begin(r));
    for (size_t k = 0; k < r->program->steps.n; k++) {
        const enum ggml_status status = run_step(r, &r->program->steps.data[k]);
        if (status != GGML_STATUS_SUCCESS) {
            return fail_in_step(r, &r->program->steps.data[k], status, func);
        }
    }
    return GGML_STATUS_SUCCESS;
}

// True if a trace, or the profile of the calling thread, needs the times of splits.
static bool is_timed(struct ggml_backend_sched * s, bool profiled) {
    if (profiled && s->trace == NULL) {
        const uint64_t before = gb_fail_count();
        s->trace = gb_trace_new(s->n_backends, false);
        gb_forget_failures_since(before); // without memory the profile has only what backends record
    }
    return gb_sched_is_traced(s) || (profiled && s->trace != NULL);
}

// A callback may have changed any buffer, so replicas count as stale afterwards. A traced run is
// waited for, because its times are read at the end.
enum ggml_status gb_sched_run(struct ggml_backend_sched * s, const struct gb_sched_assigned * assigned,
    const struct gb_sched_waits * waits, struct gb_sched_binding * binding, const char * func) {
    const bool profiled = gb_profile_is_on();
    struct run r = { .sched = s,
        .in = binding->in,
        .assigned = assigned,
        .program = binding->program,
        .waits = waits,
        .binding = binding,
        .watched = s->callback != NULL,
        .serial = s->callback != NULL || s->validator != NULL,
        .traced = is_timed(s, profiled) };
    const bool begun = profiled && gb_profile_begin_run();
    const char * device = profiled ? gb_profile_set_device(NULL) : NULL;
    const int64_t start = gb_time_ns();
    enum ggml_status status = run_steps(&r, func);
    s->stats.run_ns += (uint64_t) (gb_time_ns() - start);
    if (r.traced) {
        status = status == GGML_STATUS_SUCCESS ? gb_sched_wait(s) : status;
        gb_trace_end_run(s, status == GGML_STATUS_SUCCESS);
    }
    if (profiled) {
        gb_profile_set_device(device);
        gb_profile_end_run(begun, status == GGML_STATUS_SUCCESS);
    }
    GB_TRY(status);
    if (!r.watched) {
        gb_sched_keep_replicas(binding);
    }
    s->pending = r.serial || r.traced ? NULL : binding;
    if (s->pending == NULL) {
        GB_TRY(gb_sched_check_files(binding));
    }
    return s->validator ? gb_validator_end(s) : GGML_STATUS_SUCCESS;
}
