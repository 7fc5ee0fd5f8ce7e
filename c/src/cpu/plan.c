// plan.c - compiles a list of nodes for a number of threads. It checks each node, gets the number
// of threads and the scratch memory from its operator, and cuts the list into steps (plan.h).
//
// Views compute nothing, so no job contains them. A plan works with all kernel levels. It depends
// only on the structure of the graph. The run checks where tensors are (run.c).
#include "cpu/plan.h"

#include "base/mem.h"
#include "base/status.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "tensor/tensor.h"

// A list of n nodes has at most STEPS_A_NODE * n steps: n plain steps, and for each kind n / 2
// fused steps, because a fused step has at least two nodes.
enum { STEPS_A_NODE = 1 + (GB_FUSION_KINDS + 1) / 2 };

// If both the operator and the builder's rule refuse a node, the result is the operator's reason,
// because it says more.
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
    const char * reason = op->unsupported != NULL ? op->unsupported(node) : NULL;
    return reason != NULL ? reason : gb_node_mismatch(node);
}

// One past the last slot in use: slots before it may be NULL.
static int count_sources(const struct ggml_tensor * node) {
    int n = GGML_MAX_SRC;
    while (n > 0 && node->src[n - 1] == NULL) {
        n--;
    }
    return n;
}

// Queries the operator once. The answers hold for every run of the plan.
static enum ggml_status plan_job(struct gb_cpu_job * job, struct ggml_tensor * node, int n_threads) {
    const char * reason = ggml_cpu_unsupported_reason(node);
    if (reason != NULL) {
        char text[GB_ERROR_SIZE / 2];
        gb_fail(GGML_STATUS_UNSUPPORTED, "CPU: cannot compute %s: %s", gb_describe_node(node, text, sizeof(text)),
            reason);
        gb_set_fault(&(struct gb_fault){ .kind = GB_FAULT_NODE_REFUSED, .op = node->op });
        return GGML_STATUS_UNSUPPORTED;
    }
    const struct gb_cpu_op * op = gb_cpu_op_of(node);
    const int n_tasks = op->n_tasks != NULL ? op->n_tasks(node, n_threads) : gb_cpu_default_tasks(node, n_threads);
    job->node = node;
    job->op = op;
    job->n_tasks = GB_MAX(1, GB_MIN(n_tasks, n_threads));
    job->work_size = op->work_size != NULL ? op->work_size(node, job->n_tasks) : 0;
    job->n_src = count_sources(node);
    return GGML_STATUS_SUCCESS;
}

// Consecutive jobs of one thread share a step, because a barrier would cost more than most of them.
static void add_plain(struct gb_cpu_plan * plan, int i_job) {
    const int n_tasks = plan->jobs[i_job].n_tasks;
    struct gb_cpu_step * last = plan->n_steps > plan->sealed ? &plan->steps[plan->n_steps - 1] : NULL;
    if (last != NULL && n_tasks == 1 && last->n_tasks == 1) {
        last->count++;
    } else {
        plan->steps[plan->n_steps++] =
            (struct gb_cpu_step){ .first = i_job, .count = 1, .n_tasks = (int16_t) n_tasks, .fusion = GB_FUSE_NOT };
    }
    plan->team = GB_MAX(plan->team, n_tasks);
}

// The first kind, from `kind` on, of a fused step that jobs [i, end) can begin, with *n jobs.
// GB_FUSE_NOT if no kind fits.
static int find_fusion(const struct gb_cpu_plan * plan, int i, int end, int kind, int * n) {
    struct ggml_tensor * nodes[GB_FUSE_MAX];
    for (; kind < GB_FUSION_KINDS && end - i > 1; kind++) {
        if (kind == GB_FUSE_PRODUCTS && plan->n_threads == 1) {
            continue; // it saves only barriers
        }
        if (gb_fuse_may_begin((enum gb_fusion_kind) kind, plan->jobs[i].node)) {
            *n = gb_fusion_of((enum gb_fusion_kind) kind)->length(nodes, gb_cpu_plan_nodes(plan, i, end, nodes));
            if (*n > 0) {
                return kind;
            }
        }
    }
    return GB_FUSE_NOT;
}

// A fused step is sealed: later jobs begin a new step.
static void add_fused(struct gb_cpu_plan * plan, int first, int count, enum gb_fusion_kind kind) {
    struct ggml_tensor * nodes[GB_FUSE_MAX];
    const int n = gb_cpu_plan_nodes(plan, first, first + count, nodes);
    const struct gb_fusion * fusion = gb_fusion_of(kind);
    const int n_tasks = GB_MAX(1, GB_MIN(fusion->n_tasks(nodes, n, plan->n_threads), plan->n_threads));
    const size_t work = fusion->work_size(nodes, n, n_tasks);
    plan->steps[plan->n_steps++] =
        (struct gb_cpu_step){ first, count, (int16_t) n_tasks, (uint8_t) kind, false, 0, work };
    plan->sealed = plan->n_steps;
    plan->team = GB_MAX(plan->team, n_tasks);
    plan->work_size = GB_MAX(plan->work_size, work);
}

// Adds steps for jobs [i, end), with fusions of `kind` and later kinds. Recurses for the unfused
// steps. The depth is at most the number of kinds.
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
        plan->sealed = plan->n_steps;
    }
}

// Fills the plan's lists. Views get no job, but stay in `nodes`, because a run checks their memory.
static enum ggml_status plan_nodes(struct gb_cpu_plan * plan, struct ggml_tensor * const * nodes, int n_nodes,
    int n_threads) {
    GB_TRY(gb_tensors_check(nodes, n_nodes, "CPU"));
    for (int i = 0; i < n_nodes; i++) {
        gb_tensor_prefetch_ahead(nodes, (size_t) n_nodes, (size_t) i);
        plan->nodes[plan->n_nodes++] = nodes[i];
        if (gb_op_is_idle(nodes[i])) {
            continue;
        }
        GB_TRY(plan_job(&plan->jobs[plan->n_jobs], nodes[i], n_threads));
        plan->work_size = GB_MAX(plan->work_size, plan->jobs[plan->n_jobs].work_size);
        plan->has_custom = plan->has_custom || gb_op_is_custom(nodes[i]->op);
        plan->n_jobs++;
    }
    add_steps(plan, 0, plan->n_jobs, 0);
    GB_FAIL_IF(plan->work_size > SIZE_MAX - GB_CPU_WORK_ALIGNMENT, GGML_STATUS_INVALID_ARGUMENT,
        "CPU: the size of the work memory overflows");
    plan->work_size = plan->work_size > 0 ? plan->work_size + GB_CPU_WORK_ALIGNMENT - 1 : 0;
    return GGML_STATUS_SUCCESS;
}

// One allocation holds the plan and its lists, because small graphs are planned for each run.
static struct gb_cpu_plan * empty_plan(size_t n_nodes) {
    struct gb_cpu_plan * plan = NULL;
    const size_t each = sizeof(*plan->nodes) + sizeof(*plan->jobs) + STEPS_A_NODE * sizeof(*plan->steps);
    GB_FAIL_IF_RETURNING(n_nodes > (SIZE_MAX - sizeof(*plan)) / each, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "CPU: the size of the plan overflows");
    plan = gb_malloc(sizeof(*plan) + n_nodes * each);
    if (plan != NULL) {
        *plan = (struct gb_cpu_plan){ 0 };
        plan->jobs = (struct gb_cpu_job *) (void *) (plan + 1);
        plan->steps = (struct gb_cpu_step *) (void *) (plan->jobs + n_nodes);
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
    plan->team = 1;
    plan->n_threads = n_threads;
    plan->fuses = ggml_graph_get_fusion();
    if (plan_nodes(plan, nodes, n_nodes, n_threads) != GGML_STATUS_SUCCESS) {
        gb_cpu_plan_free(plan);
        return NULL;
    }
    return plan;
}

struct gb_cpu_plan * gb_cpu_plan_of_graph(const struct ggml_cgraph * cgraph, int n_threads) {
    struct gb_cpu_plan * plan = gb_cpu_plan_new(cgraph->nodes, cgraph->n_nodes, n_threads);
    if (plan != NULL) {
        plan->is_part = cgraph->size == 0;
    }
    return plan;
}

struct gb_cpu_plan * gb_cpu_plan_again(const struct gb_cpu_plan * plan, int n_threads) {
    struct gb_cpu_plan * again = gb_cpu_plan_new(plan->nodes, plan->n_nodes, n_threads);
    if (again != NULL) {
        again->is_part = plan->is_part;
    }
    return again;
}

void gb_cpu_plan_free(struct gb_cpu_plan * plan) { gb_free(plan); }

size_t gb_cpu_plan_work_size(const struct gb_cpu_plan * plan) { return plan->work_size; }

int gb_cpu_plan_n_threads(const struct gb_cpu_plan * plan) { return plan->team; }
