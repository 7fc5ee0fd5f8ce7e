// frontier.h - exact placement for any number of backends, as long as the graph is narrow. Pure.
#ifndef GB_SCHED_COST_FRONTIER_H
#define GB_SCHED_COST_FRONTIER_H

#include "sched/cost/cost.h"

enum { GB_FRONTIER_BACKENDS_MAX = 8 };

struct gb_frontier_result {
    bool    complete; // the search was not cut short
    bool    found;    // labels of cost `cost` < upper were found; else, when complete, there are none
    int64_t cost;
    int64_t bound;    // no labels are cheaper than this
    size_t  n_states; // looked at
    size_t  widest;   // states at once
};

// Looks for the cheapest labels below `upper`. At most max_states states are kept, over all steps.
enum ggml_status gb_frontier_solve(const struct gb_cost_problem * p, int64_t upper, size_t max_states, int32_t * labels,
    struct gb_frontier_result * result);

#endif // GB_SCHED_COST_FRONTIER_H
