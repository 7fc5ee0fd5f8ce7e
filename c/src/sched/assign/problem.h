// problem.h - converts a graph with prices to a placement problem, and back. Pure.
//
// rules.h says where a tensor may be. The problem adds the cost of each place. The label of an item
// is the backend of its tensors: tensor t has labels[item[t]].
#ifndef GB_SCHED_ASSIGN_PROBLEM_H
#define GB_SCHED_ASSIGN_PROBLEM_H

#include "sched/assign/rules.h"
#include "sched/cost/cost.h"

// The prices of a graph, borrowed, in the units of cost.h.
struct gb_cost_prices {
    const double * node; // n_nodes x n_backends; any value where the backend cannot run the node
    const double * copy; // n_backends (from) x n_backends (to): of each copy
    const double * copy_per_byte; // the same, per byte
    const double * memory_per_byte; // per backend and byte of memory there; NULL: none
    double split, weight_runs;
};

// The problem of a graph, with everything that it points to.
struct gb_cost_model {
    struct gb_cost_problem p;
    int32_t * item; // per tensor; owned, as are the arrays of p
};

// At most GB_COST_BACKENDS_MAX backends. Call gb_cost_model_free also after a failure. The only
// failure is ALLOC_FAILED. A node that no backend can run may have any label; the check of the
// assignment reports it.
enum ggml_status gb_cost_model_init(struct gb_cost_model * m, const struct gb_assign_graph * graph,
    const struct gb_cost_prices * prices);
void gb_cost_model_free(struct gb_cost_model * m);

// fill.c
// Fills labels[n_items] of a model of the same graph, in the order of execution. No backend gets
// much more than `share` (0 to 1) of its max_bytes (0: no limit) if the rest fits elsewhere. An
// item gets only a label that it may have, if it may have any. ALLOC_FAILED: no memory.
enum ggml_status gb_cost_fill(const struct gb_cost_model * m, const struct gb_assign_graph * graph,
    const size_t * max_bytes, double share, int32_t * labels);

#endif // GB_SCHED_ASSIGN_PROBLEM_H
