// plan.h - the compiled form of a list of nodes. plan.c makes it and run.c runs it. Other files use
// cpu.h.
//
// A plan has a list of jobs and a list of steps. A job is a node that is computed. A step is the
// work between two barriers:
// - one job that several threads share, or
// - a sequence of jobs that one thread does, or
// - a fused step: several jobs that are computed together (fuse/fuse.h).
//
// The unfused steps for the same jobs follow each fused step. A run uses them if fusing is not safe
// with the memory of that run.
//
// Invariant: the steps that a run executes contain each job of the plan once, in order.
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
    int n_src; // all later sources are NULL
};

struct gb_cpu_step {
    int first, count; // jobs; count > 1 only if n_tasks == 1 or fused
    int16_t n_tasks;
    uint8_t fusion;   // enum gb_fusion_kind; GB_FUSE_NOT: none
    bool apart;       // fused, but this run executes the unfused steps after it
    int n_instead;    // fused: number of unfused steps after it
    size_t work_size; // of a fused step
};

// Running means of the times of whole runs. 0: not measured yet. The caller runs a short plan alone
// if waking threads, or waiting for delayed threads, takes longer than the plan itself.
struct gb_cpu_plan_times {
    int64_t woken_ns, alone_ns; // with threads that slept; by the caller alone
    int n_woken;                // runs in woken_ns, at most 2; the first run finds its memory cold
    unsigned n_rested;          // runs whose threads slept, with the team or alone
    int64_t ended_ns;           // gb_time_ns() when the last run by the caller alone ended
    unsigned alone_left;        // remaining runs by the caller alone, after threads delayed it
    unsigned alone_next;        // next initial value of alone_left
};

// The lists follow the struct in one allocation (plan.c). A run changes only `times`, and `apart`
// of steps.
struct gb_cpu_plan {
    struct ggml_tensor ** nodes; // all of the list, views too
    struct gb_cpu_job * jobs;
    struct gb_cpu_step * steps;
    int n_nodes, n_jobs, n_steps;
    int sealed;    // while the plan is made: number of leading steps that take no more jobs
    int team;      // threads of the widest step
    int n_threads; // that it was made for
    bool fuses;
    bool is_part;    // of a graph: the sources of the last node are stored
    bool has_custom; // a node calls a user function with the number of threads that it requested
    struct gb_cpu_plan_times times;
    size_t work_size; // with slack for alignment
};

// Writes the nodes of jobs [first, end), at most GB_FUSE_MAX. Returns their number.
static inline int gb_cpu_plan_nodes(const struct gb_cpu_plan * plan, int first, int end,
    struct ggml_tensor * nodes[GB_FUSE_MAX]) {
    const int n = GB_MIN(end - first, GB_FUSE_MAX);
    for (int i = 0; i < n; i++) {
        nodes[i] = plan->jobs[first + i].node;
    }
    return n;
}

#endif // GB_CPU_PLAN_H
