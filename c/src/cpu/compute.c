// compute.c - the engine: runs a list of nodes on a team of threads.
//
// The one idea: the plan cuts the list into steps. A step is one node that several threads share, or a run of nodes
// that one thread does alone, or several nodes that are computed together (fuse.h), followed by the steps that do the
// same without that. The whole team goes through the steps together and meets after each, so a node sees all
// effects of earlier ones. Views are no work and appear in no step. A plan in which no node wants a second thread wakes
// nobody.
//
// Invariant: whether to go on after a step, or behind a barrier inside a node, is decided once, by the last thread to
// arrive, and seen by all: a failed or aborted run never leaves a thread waiting at a meeting that the others skip.
//
// Called by graph_compute.c (public graph functions), cpu_backend.c, and the simulated device.
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/mapped.h"
#include "base/mem.h"
#include "base/status.h"
#include "cpu/cpu.h"
#include "cpu/fuse/fuse.h"
#include "cpu/ops/ops.h"
#include "cpu/threadpool.h"
#include "ggml-cpu.h"
#include "tensor/tensor.h"

#define WORK_ALIGNMENT 64
#define TASK_ELEMENTS  8192 // an element-wise share below this costs less than meeting another thread

struct job { // a node that is computed
    struct ggml_tensor *     node;
    const struct gb_cpu_op * op;
    size_t                   work_size;
    int                      n_tasks;
    int                      n_src; // sources beyond this slot are NULL
};

struct step {
    int     first, count; // jobs; count > 1 only if n_tasks == 1 or fused
    int16_t n_tasks;
    uint8_t fusion;    // enum gb_fusion_kind; GB_FUSE_NOT: none
    bool    apart;     // fused, but not in this run
    int     n_instead; // fused: steps behind it that do the same
    size_t  work_size; // of a fused one
};

// at most: itself, and a share of fused steps, which have two nodes or more
enum { STEPS_A_NODE = 1 + (GB_FUSION_KINDS + 1) / 2 };

struct gb_cpu_plan {
    struct ggml_tensor ** nodes; // all of the list, views too
    struct job *          jobs;
    struct step *         steps;
    int                   n_nodes, n_jobs, n_steps;
    int                   sealed;    // while the plan is made: steps that nothing is added to
    int                   team;      // threads that the widest step wants
    int                   n_threads; // that it was made for
    bool                  fuses;
    size_t                work_size; // with room for alignment
};

struct gb_cpu_team {
    const struct gb_cpu_plan * plan;
    const struct gb_cpu_run *  run;
    struct gb_cpu_pool *       pool;    // NULL when one thread runs alone
    void *                     work;    // aligned
    atomic_int                 claimed; // a failure is being, or has been, written to status and message
    // an enum ggml_status: why not to go on; read between steps, and between pieces of long nodes
    atomic_int halted;
    bool       stop;  // halted as it was when the last thread left the step
    bool       leave; // halted as it was when the last thread came to the barrier inside the node
    char       message[GB_ERROR_SIZE];
};

// ------------------------------------------------------------------------------------------------------------ planning

int gb_cpu_default_tasks(const struct ggml_tensor * node, int n_threads) {
    int64_t n = ggml_nelements(node);
    // reductions: the input is the work; a gather reads what it writes
    if (node->src[0] != NULL && gb_op_info(node->op)->work != GB_WORK_PICK) {
        n = GB_MAX(n, ggml_nelements(node->src[0]));
    }
    return (int) GB_MIN(GB_MAX(n / TASK_ELEMENTS, 1), n_threads);
}

const char * ggml_cpu_unsupported_reason(const struct ggml_tensor * node) {
    if (node == NULL) {
        return "there is no node";
    }
    if (gb_op_is_idle(node)) {
        return NULL;
    }
    const struct gb_cpu_op * op = gb_cpu_op_of(node);
    if (op == NULL) {
        return "the operator is not implemented";
    }
    if (!gb_node_has_sources(node)) {
        return "a source is missing";
    }
    // says more than that something does not fit
    const char * reason = op->unsupported != NULL ? op->unsupported(node) : NULL;
    return reason != NULL ? reason : gb_node_mismatch(node);
}

static int count_sources(const struct ggml_tensor * node) {
    int n = GGML_MAX_SRC;
    while (n > 0 && node->src[n - 1] == NULL) {
        n--;
    }
    return n;
}

static enum ggml_status plan_job(struct job * job, struct ggml_tensor * node, int n_threads) {
    const char * reason = ggml_cpu_unsupported_reason(node);
    if (reason != NULL) {
        char text[GB_ERROR_SIZE / 2];
        return gb_fail(GGML_STATUS_UNSUPPORTED, "CPU: cannot compute %s: %s",
            gb_describe_node(node, text, sizeof(text)), reason);
    }
    const struct gb_cpu_op * op = gb_cpu_op_of(node);
    const int n_tasks = op->n_tasks != NULL ? op->n_tasks(node, n_threads) : gb_cpu_default_tasks(node, n_threads);
    job->node         = node;
    job->op           = op;
    job->n_tasks      = GB_MAX(1, GB_MIN(n_tasks, n_threads));
    job->work_size    = op->work_size != NULL ? op->work_size(node, job->n_tasks) : 0;
    job->n_src        = count_sources(node);
    return GGML_STATUS_SUCCESS;
}

static int nodes_of(const struct gb_cpu_plan * plan, int first, int end, struct ggml_tensor * nodes[GB_FUSE_MAX]) {
    const int n = GB_MIN(end - first, GB_FUSE_MAX);
    for (int i = 0; i < n; i++) {
        nodes[i] = plan->jobs[first + i].node;
    }
    return n;
}

static void add_plain(struct gb_cpu_plan * plan, int i_job) {
    const int     n_tasks = plan->jobs[i_job].n_tasks;
    struct step * last    = plan->n_steps > plan->sealed ? &plan->steps[plan->n_steps - 1] : NULL;
    if (last != NULL && n_tasks == 1 && last->n_tasks == 1) {
        last->count++;
    } else {
        plan->steps[plan->n_steps++] =
            (struct step){ .first = i_job, .count = 1, .n_tasks = (int16_t) n_tasks, .fusion = GB_FUSE_NOT };
    }
    plan->team = GB_MAX(plan->team, n_tasks);
}

// The first kind from `kind` on in which jobs [i, end) can begin a fused step of *n; GB_FUSE_NOT: none.
static int find_fusion(const struct gb_cpu_plan * plan, int i, int end, int kind, int * n) {
    struct ggml_tensor * nodes[GB_FUSE_MAX];
    for (; kind < GB_FUSION_KINDS && end - i > 1; kind++) {
        if (gb_fuse_may_begin((enum gb_fusion_kind) kind, plan->jobs[i].node)) {
            *n = gb_fusion_of((enum gb_fusion_kind) kind)->length(nodes, nodes_of(plan, i, end, nodes));
            if (*n > 0) {
                return kind;
            }
        }
    }
    return GB_FUSE_NOT;
}

static void add_fused(struct gb_cpu_plan * plan, int first, int count, enum gb_fusion_kind kind) {
    struct ggml_tensor *     nodes[GB_FUSE_MAX];
    const int                n       = nodes_of(plan, first, first + count, nodes);
    const struct gb_fusion * fusion  = gb_fusion_of(kind);
    const int                n_tasks = GB_MAX(1, GB_MIN(fusion->n_tasks(nodes, n, plan->n_threads), plan->n_threads));
    const size_t             work    = fusion->work_size(nodes, n, n_tasks);
    plan->steps[plan->n_steps++]     = (struct step){ first, count, (int16_t) n_tasks, (uint8_t) kind, false, 0, work };
    plan->sealed                     = plan->n_steps;
    plan->team                       = GB_MAX(plan->team, n_tasks);
    plan->work_size                  = GB_MAX(plan->work_size, work);
}

// Steps for jobs [i, end), fused in ways from `kind` on. Calls itself, for what is to be done instead, as often as
// there are kinds.
static void add_steps(struct gb_cpu_plan * plan, int i, int end, int kind) {
    for (int n = 1; i < end; i += n) {
        const int found = plan->fuses ? find_fusion(plan, i, end, kind, &n) : GB_FUSE_NOT;
        if (found == GB_FUSE_NOT) {
            n = 1;
            add_plain(plan, i);
            continue;
        }
        const int at = plan->n_steps;
        add_fused(plan, i, n, (enum gb_fusion_kind) found);
        add_steps(plan, i, i + n, found + 1);
        plan->steps[at].n_instead = plan->n_steps - at - 1;
        plan->sealed              = plan->n_steps;
    }
}

static enum ggml_status plan_nodes(struct gb_cpu_plan * plan, struct ggml_tensor * const * nodes, int n_nodes,
    int n_threads) {
    GB_TRY(gb_tensors_check(nodes, n_nodes, "CPU"));
    for (int i = 0; i < n_nodes; i++) {
        plan->nodes[plan->n_nodes++] = nodes[i];
        if (gb_op_is_idle(nodes[i])) {
            continue;
        }
        GB_TRY(plan_job(&plan->jobs[plan->n_jobs], nodes[i], n_threads));
        plan->work_size = GB_MAX(plan->work_size, plan->jobs[plan->n_jobs].work_size);
        plan->n_jobs++;
    }
    add_steps(plan, 0, plan->n_jobs, 0);
    GB_FAIL_IF(plan->work_size > SIZE_MAX - WORK_ALIGNMENT, GGML_STATUS_INVALID_ARGUMENT,
        "CPU: the size of the work memory overflows");
    plan->work_size = plan->work_size > 0 ? plan->work_size + WORK_ALIGNMENT - 1 : 0;
    return GGML_STATUS_SUCCESS;
}

// With its lists behind it, in one piece: small graphs are planned for each run.
static struct gb_cpu_plan * empty_plan(size_t n_nodes) {
    struct gb_cpu_plan * plan = NULL;
    const size_t         each = sizeof(*plan->nodes) + sizeof(*plan->jobs) + STEPS_A_NODE * sizeof(*plan->steps);
    GB_FAIL_IF_RETURNING(n_nodes > (SIZE_MAX - sizeof(*plan)) / each, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "CPU: the size of the plan overflows");
    plan = gb_malloc(sizeof(*plan) + n_nodes * each);
    if (plan != NULL) {
        *plan       = (struct gb_cpu_plan){ 0 };
        plan->jobs  = (struct job *) (void *) (plan + 1);
        plan->steps = (struct step *) (void *) (plan->jobs + n_nodes);
        plan->nodes = (struct ggml_tensor **) (void *) (plan->steps + STEPS_A_NODE * n_nodes);
    }
    return plan;
}

struct gb_cpu_plan * gb_cpu_plan_new(struct ggml_tensor * const * nodes, int n_nodes, int n_threads) {
    GB_FAIL_IF_RETURNING(n_nodes < 0 || (nodes == NULL && n_nodes > 0), NULL, GGML_STATUS_INVALID_ARGUMENT,
        "CPU: the graph has no node list");
    GB_FAIL_IF_RETURNING(n_threads < 1 || n_threads > GB_CPU_MAX_THREADS, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "CPU: needs 1 to %d threads, has %d", GB_CPU_MAX_THREADS, n_threads);
    struct gb_cpu_plan * plan = empty_plan((size_t) n_nodes);
    if (plan == NULL) {
        return NULL;
    }
    plan->team      = 1;
    plan->n_threads = n_threads;
    plan->fuses     = gb_fuse_is_on();
    if (plan_nodes(plan, nodes, n_nodes, n_threads) != GGML_STATUS_SUCCESS) {
        gb_cpu_plan_free(plan);
        return NULL;
    }
    return plan;
}

struct gb_cpu_plan * gb_cpu_plan_again(const struct gb_cpu_plan * plan, int n_threads) {
    return gb_cpu_plan_new(plan->nodes, plan->n_nodes, n_threads);
}

void gb_cpu_plan_free(struct gb_cpu_plan * plan) { gb_free(plan); }

size_t gb_cpu_plan_work_size(const struct gb_cpu_plan * plan) { return plan->work_size; }

int gb_cpu_plan_n_threads(const struct gb_cpu_plan * plan) { return plan->team; }

// ----------------------------------------------------------------------------------------------- for ops, during a run

static bool is_halted(struct gb_cpu_team * team) {
    return atomic_load_explicit(&team->halted, memory_order_relaxed) != GGML_STATUS_SUCCESS;
}

static void poll_abort(struct gb_cpu_team * team) {
    const struct gb_cpu_run * run   = team->run;
    int                       going = GGML_STATUS_SUCCESS;
    if (run->abort_callback == NULL) {
        return;
    }
    const uint64_t before = gb_fail_count();
    const bool     abort  = run->abort_callback(run->abort_data);
    gb_forget_failures_since(before);
    if (abort) {
        atomic_compare_exchange_strong(&team->halted, &going, GGML_STATUS_ABORTED);
    }
}

static void poll_while_waiting(void * arg) { // the others may have long pieces of a node, or functions of the user's
    if (!is_halted(arg)) {
        poll_abort(arg);
    }
}

bool gb_cpu_look(const struct gb_cpu_call * call) {
    if (call->pace->asks && !is_halted(call->team)) {
        poll_abort(call->team);
    }
    const bool halted = is_halted(call->team);
    call->pace->left  = halted ? -1 : GB_CPU_PACE;
    return halted;
}

static void decide_in_node(void * arg) {
    struct gb_cpu_team * team = arg;
    team->leave               = is_halted(team);
}

bool gb_cpu_barrier(const struct gb_cpu_call * call) {
    if (call->nth == 1) {
        return !is_halted(call->team);
    }
    gb_cpu_pool_meet(call->team->pool, GB_CPU_MEET_NODE, call->nth, decide_in_node, call->team);
    return !call->team->leave;
}

void gb_cpu_fail(const struct gb_cpu_call * call, const struct ggml_tensor * node, enum ggml_status status,
    const char * fmt, ...) {
    struct gb_cpu_team * team  = call->team;
    int                  first = 0;
    if (!atomic_compare_exchange_strong(&team->claimed, &first, 1)) {
        return;
    }
    char    text[GB_ERROR_SIZE / 2], what[GB_ERROR_SIZE / 2];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    snprintf(team->message, sizeof(team->message), "CPU: %s: %s", gb_describe_node(node, text, sizeof(text)), what);
    atomic_store(&team->halted, status != GGML_STATUS_SUCCESS ? status : GGML_STATUS_FAILED);
}

// ------------------------------------------------------------------------------------------------------------- running

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
        return gb_fail(GGML_STATUS_INVALID_STATE, "CPU: view %s does not lie where its source '%s' is now",
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
    *host = root->buffer; // most tensors of a graph share one
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status check_all_placed(const struct gb_cpu_plan * plan) {
    const void * host = NULL;
    for (int i = 0; i < plan->n_nodes; i++) {
        GB_TRY(check_placed(plan->nodes[i], plan->nodes[i], &host));
    }
    for (int i = 0; i < plan->n_jobs; i++) {
        const struct job * job = &plan->jobs[i];
        for (int s = 0; s < job->n_src; s++) {
            if (job->node->src[s] != NULL) {
                GB_TRY(check_placed(job->node->src[s], job->node, &host));
            }
        }
    }
    return GGML_STATUS_SUCCESS;
}

static void run_job(struct gb_cpu_team * team, const struct job * job, int ith, int nth) {
    struct gb_cpu_pace       pace = { GB_CPU_PACE, ith == 0 };
    const struct gb_cpu_call call = { ith, nth, team->work, job->work_size, team->run->kernels, team, &pace };
    job->op->run(&call, job->node);
}

static void run_alone(struct gb_cpu_team * team, const struct step * step) {
    for (int i = step->first; i < step->first + step->count; i++) {
        if (i > step->first) {
            poll_abort(team);
        }
        if (is_halted(team)) {
            return;
        }
        run_job(team, &team->plan->jobs[i], 0, 1);
    }
}

static void run_fused(struct gb_cpu_team * team, const struct step * step, int ith, int nth) {
    struct ggml_tensor *     nodes[GB_FUSE_MAX];
    const int                n    = nodes_of(team->plan, step->first, step->first + step->count, nodes);
    struct gb_cpu_pace       pace = { GB_CPU_PACE, ith == 0 };
    const struct gb_cpu_call call = { ith, nth, team->work, step->work_size, team->run->kernels, team, &pace };
    gb_fusion_of((enum gb_fusion_kind) step->fusion)->run(&call, nodes, n);
}

static void run_step(struct gb_cpu_team * team, const struct step * step, int ith, int nth) {
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

static void decide(void * arg) {
    struct gb_cpu_team * team = arg;
    team->stop                = is_halted(team);
}

static void team_main(void * arg, int ith, int nth) {
    struct gb_cpu_team *       team = arg;
    const struct gb_cpu_plan * plan = team->plan;
    for (int i = 0; i < plan->n_steps && !team->stop;) {
        const struct step * step = &plan->steps[i];
        i += 1 + (step->apart ? 0 : step->n_instead);
        if (step->apart) {
            continue;
        }
        run_step(team, step, ith, nth);
        if (i == plan->n_steps) {
            return; // after the last step the pool waits for all
        }
        if (ith == 0) {
            poll_abort(team);
        }
        if (nth > 1) {
            gb_cpu_pool_meet(team->pool, GB_CPU_MEET_TEAM, nth, decide, team);
        } else {
            decide(team);
        }
    }
}

static void * align_work(void * work) {
    return (void *) (((uintptr_t) work + WORK_ALIGNMENT - 1) & ~(uintptr_t) (WORK_ALIGNMENT - 1));
}

static enum ggml_status outcome(struct gb_cpu_team * team) {
    const enum ggml_status status = (enum ggml_status) atomic_load(&team->halted);
    if (status == GGML_STATUS_ABORTED && atomic_load(&team->claimed) == 0) {
        return gb_fail_quietly(status, "CPU: stopped by the abort callback"); // wanted: nothing for the log
    }
    return status == GGML_STATUS_SUCCESS ? status : gb_fail(status, "%s", team->message);
}

static void count_runs(const struct gb_cpu_plan * plan) {
    for (int i = 0; i < plan->n_nodes; i++) {
        plan->nodes[i]->perf_runs = (int) ((unsigned) plan->nodes[i]->perf_runs + 1u);
    }
}

// Which fused steps this run takes: memory may be another than last time. What leaves results out must not hold the
// last node.
static void choose_steps(struct gb_cpu_plan * plan) {
    for (int i = 0; i < plan->n_steps && plan->fuses; i++) {
        struct step * step = &plan->steps[i];
        if (step->fusion != GB_FUSE_NOT) {
            struct ggml_tensor *     nodes[GB_FUSE_MAX];
            const struct gb_fusion * fusion = gb_fusion_of((enum gb_fusion_kind) step->fusion);
            const int                n      = nodes_of(plan, step->first, step->first + step->count, nodes);
            const bool               ends   = step->first + step->count == plan->n_jobs;
            step->apart =
                !fusion->is_safe(nodes, n) || (ends && fusion->leaves_out != NULL && fusion->leaves_out(nodes, n));
        }
    }
}

static enum ggml_status run_plan(struct gb_cpu_plan * plan, struct gb_cpu_pool * pool, const struct gb_cpu_run * run) {
    GB_FAIL_IF(plan->work_size > 0 && run->work == NULL, GGML_STATUS_INVALID_ARGUMENT,
        "CPU: the graph needs %zu bytes of work memory, has none", plan->work_size);
    GB_TRY(check_all_placed(plan));
    choose_steps(plan);
    struct gb_cpu_team team;
    team.plan = plan;
    team.run  = run;
    team.pool = plan->team > 1 ? pool : NULL;
    team.work = plan->work_size > 0 ? align_work(run->work) : NULL;
    team.stop = false;
    atomic_init(&team.claimed, 0);
    atomic_init(&team.halted, GGML_STATUS_SUCCESS);
    poll_abort(&team);
    decide(&team);
    if (team.pool != NULL) {
        GB_TRY(gb_cpu_pool_run(pool, plan->team, team_main, run->abort_callback != NULL ? poll_while_waiting : NULL,
            &team));
    } else {
        team_main(&team, 0, 1);
    }
    GB_TRY(outcome(&team));
    count_runs(plan);
    return GGML_STATUS_SUCCESS;
}

// What was read of files that are mapped was there.
static enum ggml_status check_files(const struct gb_cpu_plan * plan) {
    enum { SEEN = 4 };
    ggml_backend_buffer_t other      = NULL;     // a buffer that is no file's
    struct gb_mapped *    seen[SEEN] = { NULL }; // checked last
    int                   n_seen     = 0;
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

enum ggml_status gb_cpu_plan_run(struct gb_cpu_plan * plan, struct gb_cpu_pool * pool, const struct gb_cpu_run * run) {
    gb_mapped_enter();
    const enum ggml_status status = run_plan(plan, pool, run);
    gb_mapped_leave();
    GB_TRY(status);
    return gb_mapped_any() ? check_files(plan) : GGML_STATUS_SUCCESS;
}
