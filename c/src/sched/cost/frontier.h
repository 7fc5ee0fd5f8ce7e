// frontier.h - exact placement for a few backends, as long as the graph is narrow. Pure.
//
// How wide a graph is decides the time: the search keeps one state for each combination of labels that later terms
// still ask for. A search that is cut short still gives a bound.
#ifndef GB_SCHED_COST_FRONTIER_H
#define GB_SCHED_COST_FRONTIER_H

#include "sched/cost/cost.h"

// The backends that a value was copied to are the bits of a byte.
enum { GB_FRONTIER_BACKENDS_MAX = 8 };

struct gb_frontier_result {
    bool complete; // the search was not cut short
    bool found;    // labels of cost `cost` < upper were found; else, when complete, there are none
    int64_t cost;
    int64_t bound;   // no labels are cheaper than this
    size_t n_states; // looked at
    size_t widest;   // states at once
};

// Looks for the cheapest labels below `upper`. At most max_states states are kept, over all steps. The problem has at
// most GB_FRONTIER_BACKENDS_MAX backends. labels[n_items] is written only when labels were found. ALLOC_FAILED: no
// memory; ABORTED: the thread's poll gave up. A search that used up its states is a success, with `complete` false and
// a bound.
enum ggml_status gb_frontier_solve(const struct gb_cost_problem * p, int64_t upper, size_t max_states, int32_t * labels,
    struct gb_frontier_result * result);

#endif // GB_SCHED_COST_FRONTIER_H
