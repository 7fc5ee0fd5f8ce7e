// report.h - describes the decisions of a plan.
//
// The answers are about a plan, not about its last run. They are available before the first run,
// and after a backend was freed.
#ifndef GB_SCHED_REPORT_REPORT_H
#define GB_SCHED_REPORT_REPORT_H

#include "base/vec.h"
#include "ggml.h"

struct ggml_backend_sched;
struct gb_sched_assigned;
struct gb_sched_input;
struct gb_sched_program;

struct gb_copied {
    size_t n, bytes;
};

// Copies that the node's split makes of the node's sources, and copies of its result for later
// splits.
struct gb_node_copies {
    struct gb_copied in, of_result;
};

// `reason` is a copy of the backend's answer when the plan was made. It may contain shapes of
// tensors that are freed.
struct gb_fallback { // a node that a backend of higher priority cannot run
    int32_t node, refused_by;
    double flops;
    struct gb_copied copied;
    char reason[192];
};

typedef GB_VEC(struct gb_fallback) gb_fallback_list;
typedef GB_VEC(struct gb_node_copies) gb_node_copies_list;

// Owned by the plan; empty with one backend.
struct gb_sched_report {
    gb_fallback_list fallbacks; // in the order of nodes
    gb_node_copies_list copied; // per node
};

// fallback.c
// Counts the copies of each node and lists the fallbacks, once per plan. With one backend there are
// none. ALLOC_FAILED: no memory; ABORTED: the thread's poll cancelled.
enum ggml_status gb_sched_find_fallbacks(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, const struct gb_sched_program * program,
    struct gb_sched_report * report);
// NULL: the node did not fall back
const struct gb_fallback * gb_sched_fallback_of(const struct gb_sched_report * report, int node);
// The copies of the node's sources, and with `of_result` also the copies of its result.
struct gb_copied gb_sched_copies_of(const struct gb_sched_report * report, int node, bool of_result);
void gb_sched_free_report(struct gb_sched_report * report);

// explain.c
// One line of English: why tensor `id` is on its backend. The scheduler owns the text, until the
// next call. "" for a tensor without a backend, or if there is no memory.
const char * gb_sched_explain(struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, const struct gb_sched_program * program,
    const struct gb_sched_report * report, int id);

#endif // GB_SCHED_REPORT_REPORT_H
