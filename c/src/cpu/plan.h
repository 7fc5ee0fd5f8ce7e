// plan.h - what a list of nodes is compiled into (plan.c) and run from (run.c). Nobody else looks inside: cpu.h is the
// door.
//
// A plan is a list of jobs, the nodes that are computed, in order, and a list of steps over them. A step is what all
// threads do between two barriers: one job that several threads share, or a run of jobs that one thread does alone, or
// a fused step: several jobs that are computed together (fuse/fuse.h). A fused step is followed by the steps that do
// the same without it, because only a run knows the memory and can tell whether fusing is safe there.
//
// Invariant: the jobs of the steps that a run takes are all jobs of the plan, each once, in order.
#ifndef GB_CPU_PLAN_H
#define GB_CPU_PLAN_H

#include "cpu/cpu.h"
#include "cpu/fuse/fuse.h"
#include "cpu/ops/ops.h"

#define GB_CPU_WORK_ALIGNMENT 64 // of the scratch memory that operators get: a cache line

struct gb_cpu_job { // a node that is computed
    struct ggml_tensor * node;
    const struct gb_cpu_op * op;
    size_t work_size;
    int n_tasks;
    int n_src; // sources beyond this slot are NULL
};

struct gb_cpu_step {
    int first, count; // jobs; count > 1 only if n_tasks == 1 or fused
    int16_t n_tasks;
    uint8_t fusion;   // enum gb_fusion_kind; GB_FUSE_NOT: none
    bool apart;       // fused, but not in this run: the steps behind it are taken instead
    int n_instead;    // fused: steps behind it that do the same
    size_t work_size; // of a fused one
};

// How long whole runs take: running means; 0: there was none. A short plan is not worth waking threads for, nor waiting
// for threads whose processors others use; what is short, only measuring tells.
struct gb_cpu_plan_times {
    int64_t woken_ns, alone_ns; // with threads that slept; by the caller alone
    int n_woken;                // so often; it counts up to 2, since the first run finds its memory cold
    unsigned n_rested;          // runs of both kinds whose threads slept
    int64_t ended_ns;           // gb_time_ns() when the last run alone ended
    unsigned alone_left; // so many runs the caller still does alone, because it had waited for longer than one takes
    unsigned alone_next; // of so many it was last time
};

// The lists lie behind the struct in one allocation (plan.c). A run changes only `apart` of steps, and `times`; all
// else is fixed.
struct gb_cpu_plan {
    struct ggml_tensor ** nodes; // all of the list, views too
    struct gb_cpu_job * jobs;
    struct gb_cpu_step * steps;
    int n_nodes, n_jobs, n_steps;
    int sealed;    // while the plan is made: no job is added to the first so many steps
    int team;      // threads that the widest step wants
    int n_threads; // that it was made for
    bool fuses;
    bool is_part;    // of a graph: what the last node reads is stored
    bool has_custom; // a function of the program's is called with as many threads as it asked for
    struct gb_cpu_plan_times times;
    size_t work_size; // with slack for alignment
};

// The nodes of jobs [first, end), at most GB_FUSE_MAX of them; how many.
static inline int gb_cpu_plan_nodes(const struct gb_cpu_plan * plan, int first, int end,
    struct ggml_tensor * nodes[GB_FUSE_MAX]) {
    const int n = GB_MIN(end - first, GB_FUSE_MAX);
    for (int i = 0; i < n; i++) {
        nodes[i] = plan->jobs[first + i].node;
    }
    return n;
}

#endif // GB_CPU_PLAN_H
