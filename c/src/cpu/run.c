// run.c - runs a plan on a team of threads.
//
// The whole team executes the steps of the plan, with a barrier after each step. So a node sees all
// effects of earlier nodes. The caller computes a plan alone if no node uses a second thread, or if
// waking or waiting for threads takes longer than the plan (struct gb_cpu_plan_times).
//
// Invariant: the last thread that arrives at a barrier decides for all whether to continue. So
// after a failure or an abort, no thread waits at a barrier that other threads skip.
#include <stdatomic.h>

#include "backend/profile.h"
#include "base/env.h"
#include "base/mapped.h"
#include "base/status.h"
#include "cpu/plan.h"
#include "cpu/stamps.h"
#include "cpu/team.h"
#include "cpu/threadpool.h"
#include "tensor/tensor.h"

// Fails unless t has memory that the host can read, inside its source if t is a view. *host caches
// the last buffer in host memory, so that most tensors of a graph need no check of their buffer.
static enum ggml_status check_placed(const struct ggml_tensor * t, const struct ggml_tensor * node,
    const void ** host) {
    if (t->data == NULL && ggml_nelements(t) > 0) {
        char text[GB_DESCRIBE_SIZE], reader[GB_DESCRIBE_SIZE];
        return gb_fail(GGML_STATUS_INVALID_STATE, "CPU: tensor %s, needed for %s %s, is not allocated",
            gb_describe(t, text), ggml_op_name(node->op), gb_describe(node, reader));
    }
    const struct ggml_tensor * root = gb_root(t);
    if (!gb_view_is_bound(t)) {
        char text[GB_DESCRIBE_SIZE];
        return gb_fail(GGML_STATUS_INVALID_STATE, "CPU: view %s is not where its source '%s' is now",
            gb_describe(t, text), root->name);
    }
    if (root->buffer == NULL || root->buffer == *host) {
        return GGML_STATUS_SUCCESS;
    }
    if (!ggml_backend_buffer_is_host(root->buffer)) {
        char text[GB_DESCRIBE_SIZE];
        return gb_fail(GGML_STATUS_INVALID_ARGUMENT, "CPU: tensor %s is in a %s buffer, which the host cannot read",
            gb_describe(t, text), ggml_backend_buffer_name(root->buffer));
    }
    *host = root->buffer;
    return GGML_STATUS_SUCCESS;
}

// Checks the memory of all nodes, including views, and of all sources of computed nodes.
static enum ggml_status check_all_placed(const struct gb_cpu_plan * plan) {
    const void * host = NULL;
    for (int i = 0; i < plan->n_nodes; i++) {
        GB_TRY(check_placed(plan->nodes[i], plan->nodes[i], &host));
    }
    for (int i = 0; i < plan->n_jobs; i++) {
        const struct gb_cpu_job * job = &plan->jobs[i];
        for (int s = 0; s < job->n_src; s++) {
            if (job->node->src[s] != NULL) {
                GB_TRY(check_placed(job->node->src[s], job->node, &host));
            }
        }
    }
    return GGML_STATUS_SUCCESS;
}

// One thread's share of one node. Thread 0, the calling thread, calls the abort callback.
static void run_job(struct gb_cpu_team * team, const struct gb_cpu_job * job, int ith, int nth) {
    struct gb_cpu_pace pace = { GB_CPU_PACE, ith == 0, 0 };
    const struct gb_cpu_call call = { ith, nth, team->work, job->work_size, team->run->kernels, team, &pace,
        team->run->traits };
    job->op->run(&call, job->node);
}

// Computes the jobs of a step of one thread. Calls the abort callback before each job except the
// first, because many small jobs may take as long as a large one.
static void run_alone(struct gb_cpu_team * team, const struct gb_cpu_step * step) {
    for (int i = step->first; i < step->first + step->count; i++) {
        if (i > step->first) {
            gb_cpu_team_poll_abort(team);
        }
        if (gb_cpu_team_is_halted(team)) {
            return;
        }
        run_job(team, &team->plan->jobs[i], 0, 1);
        if (team->stamps != NULL) {
            team->stamps->job_end[i] = gb_time_ns();
        }
    }
}

// One thread's share of a fused step. The scratch memory is sized for the step, not for its nodes.
static void run_fused(struct gb_cpu_team * team, const struct gb_cpu_step * step, int ith, int nth) {
    struct ggml_tensor * nodes[GB_FUSE_MAX];
    const int n = gb_cpu_plan_nodes(team->plan, step->first, step->first + step->count, nodes);
    struct gb_cpu_pace pace = { GB_CPU_PACE, ith == 0, 0 };
    const struct gb_cpu_call call = { ith, nth, team->work, step->work_size, team->run->kernels, team, &pace,
        team->run->traits };
    gb_fusion_of((enum gb_fusion_kind) step->fusion)->run(&call, nodes, n);
}

// A thread without a task in the step goes directly to the barrier.
static void run_step(struct gb_cpu_team * team, const struct gb_cpu_step * step, int ith, int nth) {
    const int n_tasks = GB_MIN(step->n_tasks, nth);
    if (ith >= n_tasks) {
        return;
    }
    if (step->fusion != GB_FUSE_NOT) {
        run_fused(team, step, ith, n_tasks);
    } else if (n_tasks == 1) {
        run_alone(team, step);
    } else {
        run_job(team, &team->plan->jobs[step->first], ith, n_tasks);
    }
}

// Runs a step and records its times.
static void run_stamped(struct gb_cpu_team * team, int i, int ith, int nth) {
    struct gb_cpu_stamps * stamps = team->stamps;
    int64_t * waited = &stamps->waited[ith * GB_CPU_STAMPS_APART];
    const int64_t begin = gb_time_ns();
    *waited = 0;
    if (ith == 0) {
        stamps->begin[i] = begin;
        stamps->nth = GB_MAX(stamps->nth, nth);  // the caller may continue alone
    }
    run_step(team, &team->plan->steps[i], ith, nth);
    stamps->worked[ith * team->plan->n_steps + i] = gb_time_ns() - begin - *waited;
}

// The last thread that arrives at the barrier calls this while the other threads wait. All threads
// read the decision after the barrier.
static void decide(void * arg) {
    struct gb_cpu_team * team = arg;
    team->stop = gb_cpu_team_is_halted(team);
    team->solo = team->held_up;
}

static void poll_while_waiting(void * arg) { // workers may have long tasks or call user functions
    if (!gb_cpu_team_is_halted(arg)) {
        gb_cpu_team_poll_abort(arg);
    }
}

// Threads have delayed the caller only if it waited longer than 1 ms and longer than an eighth of a
// run by the caller alone. If the time of such a run is unknown, the limit is 10 ms.
#define HELD_UP_NS 1000000
#define HELD_UP_PART 8
#define HELD_UP_UNKNOWN_NS 10000000

static int64_t patience_ns(const struct gb_cpu_plan_times * t) {
    return t->alone_ns == 0 ? HELD_UP_UNKNOWN_NS : GB_MAX(HELD_UP_NS, t->alone_ns / HELD_UP_PART);
}

// True if the caller alone would have computed the steps so far in less time. The estimate assumes
// that each thread has as much work as the caller. If another process runs on the processor of a
// thread for milliseconds, the whole team waits at the next barrier.
static bool is_held_up(const struct gb_cpu_team * team, int nth) {
    const int64_t waited = gb_cpu_pool_waited_ns();
    if (waited < patience_ns(&team->plan->times) || team->plan->has_custom) {
        return false;
    }
    const int64_t took = gb_time_ns() - team->start_ns;
    return (took - waited) * nth < took;
}

// The work of each thread: the steps of this run, with a barrier after each except the last. A run
// computes either a fused step or its unfused steps. A caller whose threads are delayed dismisses
// them and continues alone.
static void team_main(void * arg, int ith, int nth) {
    struct gb_cpu_team * team = arg;
    const struct gb_cpu_plan * plan = team->plan;
    for (int i = 0; i < plan->n_steps && !team->stop;) {
        const struct gb_cpu_step * step = &plan->steps[i];
        const int now = i;
        i += 1 + (step->apart ? 0 : step->n_instead);
        if (step->apart) {
            continue;
        }
        if (team->stamps == NULL) {
            run_step(team, step, ith, nth);
        } else {
            run_stamped(team, now, ith, nth);
        }
        if (i == plan->n_steps) {
            return; // after the last step the pool waits for all threads
        }
        if (ith == 0) {
            gb_cpu_team_poll_abort(team);
        }
        if (nth == 1) { // dismissed threads may still read `solo`, but not `stop`
            team->stop = gb_cpu_team_is_halted(team);
            continue;
        }
        if (ith == 0) {
            team->held_up = is_held_up(team, nth);
        }
        gb_cpu_pool_barrier(team->pool, GB_CPU_BARRIER_TEAM, nth, decide, team);
        if (team->solo && ith > 0) {
            return;
        }
        nth = team->solo ? 1 : nth;
    }
}

// The plan's work size has slack for this.
static void * align_work(void * work) {
    return (void *) (((uintptr_t) work + GB_CPU_WORK_ALIGNMENT - 1) & ~(uintptr_t) (GB_CPU_WORK_ALIGNMENT - 1));
}

// The run's status. Failures are kept per thread, so the calling thread reports the failure of any
// thread of the team.
static enum ggml_status outcome(struct gb_cpu_team * team) {
    const enum ggml_status status = (enum ggml_status) atomic_load(&team->halted);
    if (status == GGML_STATUS_ABORTED && atomic_load(&team->claimed) == 0) {
        return gb_fail_quietly(status, "CPU: stopped by the abort callback"); // not logged
    }
    return status == GGML_STATUS_SUCCESS ? status : gb_fail(status, "%s", team->message);
}

// Programs of early 2024 read perf_runs. It wraps around without undefined behaviour.
static void count_runs(const struct gb_cpu_plan * plan) {
    for (int i = 0; i < plan->n_nodes; i++) {
        plan->nodes[i]->perf_runs = (int) ((unsigned) plan->nodes[i]->perf_runs + 1u);
    }
}

// Chooses the fused steps of this run. Each run chooses again because the tensors may have moved. A
// fused step that leaves results out must not end a part of a graph. It may end a whole graph only
// if its kind has `may_end`.
static void choose_steps(struct gb_cpu_plan * plan) {
    for (int i = 0; i < plan->n_steps && plan->fuses; i++) {
        struct gb_cpu_step * step = &plan->steps[i];
        if (step->fusion != GB_FUSE_NOT) {
            struct ggml_tensor * nodes[GB_FUSE_MAX];
            const struct gb_fusion * fusion = gb_fusion_of((enum gb_fusion_kind) step->fusion);
            const int n = gb_cpu_plan_nodes(plan, step->first, step->first + step->count, nodes);
            const bool ends = step->first + step->count == plan->n_jobs && (plan->is_part || !fusion->may_end);
            step->apart =
                !fusion->is_safe(nodes, n) || (ends && fusion->leaves_out != NULL && fusion->leaves_out(nodes, n));
        }
    }
}

// The caller computes longer runs alone only after threads delayed it.
#define SHORT_NS 200000
// One run in this many uses the slower choice, to measure it again.
#define RETRY_EVERY 32
// Limits of the number of runs that a caller computes alone after threads delayed it. A run of more
// than ALONE_LEAST_NS always tries the team, because a delay costs it little (HELD_UP_PART).
#define ALONE_LEAST 8
#define ALONE_LEAST_NS 16000000
#define ALONE_MOST 4096
#define ALONE_MOST_NS 2000000000

// The mean moves by a quarter of the difference. A run counts at most twice the mean, because it
// may have been interrupted.
static int64_t mean_with(int64_t mean, int64_t took) { return GB_MAX(mean + (GB_MIN(took, 2 * mean) - mean) / 4, 1); }

// Notes a run by the caller alone. If a run is long and earlier runs were short, the work has
// grown, and the measurements start again.
static void remember_alone(struct gb_cpu_plan_times * t, int64_t took, int64_t now) {
    if (t->alone_ns > 0 && t->alone_ns < SHORT_NS && took >= SHORT_NS) {
        *t = (struct gb_cpu_plan_times){ 0 };
    } else {
        t->alone_ns = t->alone_ns == 0 ? took : mean_with(t->alone_ns, took);
    }
    t->ended_ns = now;
}

// The caller is delayed if waiting makes a run with the team slower than a run alone. It then
// computes some runs alone, for ALONE_MOST_NS at most. Each further delay doubles the number of
// runs. A run of the team without delay halves it.
static void note_waiting(struct gb_cpu_plan_times * t, const struct gb_cpu_rest * rest, int64_t took, bool solo) {
    const bool is_short = took - rest->waited_ns < SHORT_NS && t->alone_ns < SHORT_NS;
    const bool held_up =
        is_short ? rest->waited_ns > t->alone_ns : t->alone_ns > 0 && took > t->alone_ns && rest->waited_ns > took / 4;
    if (!held_up && !solo) {
        t->alone_next /= 2;
        return;
    }
    if (t->alone_ns == 0 && solo) { // most of this run was computed alone
        t->alone_ns = GB_MAX(took - rest->waited_ns, 1);
    }
    const int64_t alone_ns = GB_MAX(t->alone_ns, 1);
    const int64_t least = GB_MIN(ALONE_LEAST_NS / alone_ns, ALONE_LEAST);
    const int64_t most = GB_MIN(ALONE_MOST_NS / alone_ns, ALONE_MOST);
    t->alone_next = (unsigned) GB_MAX(GB_MIN(2 * (int64_t) t->alone_next, most), least);
    t->alone_left = t->alone_next;
}

// Updates the times that decide about the next runs.
static void remember(struct gb_cpu_plan * plan, const struct gb_cpu_rest * rest, bool solo) {
    struct gb_cpu_plan_times * t = &plan->times;
    if (!rest->slept && !rest->alone && rest->waited_ns == 0) { // most runs
        t->alone_next /= 2;
        return;
    }
    const int64_t now = gb_time_ns(), took = GB_MAX(now - rest->start_ns, 1);
    t->alone_left -= rest->must_be_alone;
    t->n_rested += rest->slept;
    if (rest->alone) {
        remember_alone(t, took, now);
        return;
    }
    if (rest->slept) {
        t->woken_ns = t->n_woken < 2 ? took : mean_with(t->woken_ns, took);
        t->n_woken = GB_MIN(t->n_woken + 1, 2);
    }
    if (!plan->has_custom) {
        note_waiting(t, rest, took, solo);
    }
}

// If the threads sleep, the team runs a short plan twice, then the caller runs it once alone. After
// that the choice that is faster on average is used. One run in RETRY_EVERY uses the other choice,
// to notice a change.
static bool is_better_alone(const struct gb_cpu_plan * plan) {
    const struct gb_cpu_plan_times * t = &plan->times;
    const bool is_short = t->n_woken == 2 && t->woken_ns < SHORT_NS;
    const bool other = t->n_rested % RETRY_EVERY == RETRY_EVERY - 1;
    return is_short && !plan->has_custom && (t->alone_ns == 0 || (t->alone_ns < t->woken_ns) != other);
}

// Threads that are awake take part unless they delayed the caller. The times of a stopped run are
// ignored.
static enum ggml_status run_on_pool(struct gb_cpu_plan * plan, struct gb_cpu_pool * pool, struct gb_cpu_team * team) {
    struct gb_cpu_rest rest = { .may_be_alone = is_better_alone(plan),
        .must_be_alone = plan->times.alone_left > 0,
        .ended_ns = plan->times.ended_ns,
        .start_ns = gb_time_ns() };
    team->start_ns = rest.start_ns;
    GB_TRY(gb_cpu_pool_run(pool, plan->team, team_main, team->run->abort_callback != NULL ? poll_while_waiting : NULL,
        &rest, team));
    if (!gb_cpu_team_is_halted(team)) {
        remember(plan, &rest, team->solo);
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status run_team(struct gb_cpu_plan * plan, struct gb_cpu_pool * pool, struct gb_cpu_team * team) {
    if (team->pool != NULL) {
        return run_on_pool(plan, pool, team);
    }
    team_main(team, 0, 1);
    return GGML_STATUS_SUCCESS;
}

// Runs the team and records the run in the profile of the calling thread. User functions in the
// graph and the abort callback record nothing.
static enum ggml_status run_profiled(struct gb_cpu_plan * plan, struct gb_cpu_pool * pool, struct gb_cpu_team * team) {
    const bool begun = gb_profile_begin_run();
    team->stamps = gb_cpu_stamps_new(plan);
    const struct gb_profile_scope before = gb_profile_enter(NULL);
    const enum ggml_status status = run_team(plan, pool, team);
    gb_profile_leave(before);
    const bool complete = status == GGML_STATUS_SUCCESS && !gb_cpu_team_is_halted(team);
    if (team->stamps != NULL) {
        team->stamps->end = gb_time_ns();
    }
    gb_cpu_stamps_end(team->stamps, plan, team->run, complete);
    team->stamps = NULL;
    gb_profile_end_run(begun, complete);
    return status;
}

// Calls the abort callback once before the first step, so that an aborted run computes nothing.
static enum ggml_status run_plan(struct gb_cpu_plan * plan, struct gb_cpu_pool * pool, const struct gb_cpu_run * run) {
    GB_FAIL_IF(plan->work_size > 0 && run->work == NULL, GGML_STATUS_INVALID_ARGUMENT,
        "CPU: the graph needs %zu bytes of work memory, has none", plan->work_size);
    GB_TRY(check_all_placed(plan));
    choose_steps(plan);
    struct gb_cpu_team team;
    team.plan = plan;
    team.run = run;
    team.pool = plan->team > 1 ? pool : NULL;
    team.work = plan->work_size > 0 ? align_work(run->work) : NULL;
    team.stop = false;
    team.held_up = team.solo = false;
    team.stamps = NULL;
    atomic_init(&team.claimed, 0);
    atomic_init(&team.halted, GGML_STATUS_SUCCESS);
    gb_cpu_team_poll_abort(&team);
    decide(&team);
    GB_TRY(gb_profile_is_on() ? run_profiled(plan, pool, &team) : run_team(plan, pool, &team));
    GB_TRY(outcome(&team));
    count_runs(plan);
    return GGML_STATUS_SUCCESS;
}

// Fails if a mapped file was truncated while the run read it, because its missing pages read as
// zeros. Most tensors are in few buffers and files, so the function remembers the last ones.
static enum ggml_status check_files(const struct gb_cpu_plan * plan) {
    enum { SEEN = 4 };
    ggml_backend_buffer_t other = NULL;       // a buffer without a mapped file
    struct gb_mapped * seen[SEEN] = { NULL }; // checked last
    int n_seen = 0;
    for (int i = 0; i < plan->n_nodes; i++) {
        for (int k = 0; k < GGML_MAX_SRC; k++) {
            const struct ggml_tensor * t = plan->nodes[i]->src[k];
            if (t == NULL || t->data == NULL || (t->buffer != NULL && t->buffer == other)) {
                continue;
            }
            struct gb_mapped * mapped = gb_mapped_find(t->data);
            if (mapped == NULL) {
                other = t->buffer;
                continue;
            }
            bool known = false;
            for (int s = 0; s < SEEN; s++) {
                known |= seen[s] == mapped;
            }
            if (!known) {
                GB_TRY(gb_mapped_check("CPU", mapped));
                seen[n_seen++ % SEEN] = mapped;
            }
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Guards mapped files during the run. Checks them only after a run that succeeded.
enum ggml_status gb_cpu_plan_run(struct gb_cpu_plan * plan, struct gb_cpu_pool * pool, const struct gb_cpu_run * run) {
    gb_mapped_enter();
    const enum ggml_status status = run_plan(plan, pool, run);
    gb_mapped_leave();
    GB_TRY(status);
    return gb_mapped_any() ? check_files(plan) : GGML_STATUS_SUCCESS;
}
