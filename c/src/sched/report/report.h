// report.h - what a plan decided, told in words and numbers. Nothing is decided here.
//
// Answers are about a plan and not about its last run; they can be asked before the graph was run, and after a backend
// was freed.
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

// The copies that the split of a node makes for what the node reads, and those of its result for later splits.
struct gb_node_copies {
    struct gb_copied in, of_result;
};

// The reason is a copy of what the backend said when the plan was made; it may name shapes of tensors that are freed
// since.
struct gb_fallback { // a node that a better backend refuses
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
// Counts the copies of each node and lists the fallbacks of a plan, once, while the plan is made. With one backend
// there are none. ALLOC_FAILED: no memory; ABORTED: the thread's poll asked to give up.
enum ggml_status gb_sched_find_fallbacks(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, const struct gb_sched_program * program,
    struct gb_sched_report * report);
const struct gb_fallback * gb_sched_fallback_of(const struct gb_sched_report * report, int node); // NULL: it is none
// The copies for what the node reads, and with `of_result` those of its result.
struct gb_copied gb_sched_copies_of(const struct gb_sched_report * report, int node, bool of_result);
void gb_sched_free_report(struct gb_sched_report * report);

// explain.c
// Why the tensor `id` is where it is, in one line of English. The scheduler owns the text, until the next call. It is
// empty for a tensor without a backend, or if there is no memory.
const char * gb_sched_explain(struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, const struct gb_sched_program * program,
    const struct gb_sched_report * report, int id);

#endif // GB_SCHED_REPORT_REPORT_H
