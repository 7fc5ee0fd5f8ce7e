// problem.h - from a graph with prices to a placement problem, and back. Pure.
//
// The rules of rules.h say where a tensor may be; the problem says what it costs there. Labels of its items are
// backends of tensors: that of tensor t is labels[item[t]].
#ifndef GB_SCHED_ASSIGN_PROBLEM_H
#define GB_SCHED_ASSIGN_PROBLEM_H

#include "sched/assign/rules.h"
#include "sched/cost/cost.h"

// The prices of a graph, borrowed, in the units of cost.h.
struct gb_cost_prices {
    const double * node;            // n_nodes x n_backends; what a backend cannot run may have any price
    const double * copy;            // n_backends (from) x n_backends (to): of any copy
    const double * copy_per_byte;   // the same
    const double * memory_per_byte; // per backend: of a byte of memory there; NULL: none
    double split, weight_runs;
};

// The problem of a graph, with all that it points to.
struct gb_cost_model {
    struct gb_cost_problem p;
    int32_t * item; // per tensor; owned, as are the arrays of p
};

// At most GB_COST_BACKENDS_MAX backends. gb_cost_model_free in any case. It fails with ALLOC_FAILED only. A node that
// no backend can run is no failure here: it may be anywhere, and the check of the assignment reports it.
enum ggml_status gb_cost_model_init(struct gb_cost_model * m, const struct gb_assign_graph * graph,
    const struct gb_cost_prices * prices);
void gb_cost_model_free(struct gb_cost_model * m);

// Fills labels[n_items] of a model of the same graph so that no backend holds much more than `share` (0 to 1) of its
// max_bytes (0: no limit), if they have room for that in the order of execution; else somewhere. Each label is one that
// the item may have, if it has any. ALLOC_FAILED: no memory. fill.c
enum ggml_status gb_cost_fill(const struct gb_cost_model * m, const struct gb_assign_graph * graph,
    const size_t * max_bytes, double share, int32_t * labels);

#endif // GB_SCHED_ASSIGN_PROBLEM_H
