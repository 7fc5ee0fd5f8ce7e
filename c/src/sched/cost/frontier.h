// frontier.h - exact placement for a few backends, if the graph is narrow. Pure.
//
// The time depends on the width of the graph: the search keeps one state for each combination of
// labels that later terms depend on. A search that stops early still gives a bound.
#ifndef GB_SCHED_COST_FRONTIER_H
#define GB_SCHED_COST_FRONTIER_H

#include "sched/cost/cost.h"

// The bits of a byte are the backends that a value was copied to.
enum { GB_FRONTIER_BACKENDS_MAX = 8 };

struct gb_frontier_result {
    bool complete; // the search did not stop early
    bool found; // labels of cost `cost` < upper were found. If it is false and `complete` is true, there are none
    int64_t cost;
    int64_t bound;   // no labels are cheaper than this
    size_t n_states; // number of states visited
    size_t widest; // maximum number of states at one time
};

// Searches for the cheapest labels below `upper`. It keeps at most max_states states, over all
// steps. The problem has at most GB_FRONTIER_BACKENDS_MAX backends. labels[n_items] is written only
// if labels were found. ALLOC_FAILED: no memory; ABORTED: the thread's poll cancelled. A search
// that used all its states succeeds with `complete` false and a bound.
enum ggml_status gb_frontier_solve(const struct gb_cost_problem * p, int64_t upper, size_t max_states, int32_t * labels,
    struct gb_frontier_result * result);

#endif // GB_SCHED_COST_FRONTIER_H
