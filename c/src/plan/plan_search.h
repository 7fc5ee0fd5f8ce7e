// plan_search.h - the contract between the planner (c/src/plan) and its search (c/src/plan/search).
//
// The planner first makes a plan of each part by heuristics, each of which runs once. Then it calls
// the search for the highest part through gb_plan_costs.search_part, again and again, with growing
// shares of the budget. Only plan.c names the search of this library. Without a search (NULL) the
// plan of the heuristics is the result.
//
// A search gets
//   part   with a valid plan in `offsets` and its `peak`
//   goal   a peak that is low enough; at least part->bound
//   unit   a divisor of all sizes
//   costs  the budgets and the capacity above the part's floor
//
// It may
//   - replace the plan by one with a smaller peak (gb_plan_keep)
//   - raise part->bound to a bound that it has proved, and set part->unfinished
//   - use part->trial as scratch, and fill in max_load
//   - call gb_plan_parts and gb_plan_by_groups with the same costs, or shares of them
//
// It must return soon after both budgets have no steps left. gb_plan_spend removes all steps when
// the deadline has passed or the thread's poll asks to stop. In the second case `aborted` is set
// and the caller reports ABORTED. After ALLOC_FAILED the part must still have a valid plan: the
// caller uses it and ends the search.
#ifndef GB_PLAN_SEARCH_H
#define GB_PLAN_SEARCH_H

#include "plan/plan_impl.h"

typedef enum ggml_status (*gb_plan_search_fn)(struct gb_plan_part * part, size_t goal, size_t unit,
    struct gb_plan_costs * costs);

struct gb_plan_costs {
    size_t capacity; // as in gb_plan_effort
    struct gb_plan_budget heuristic; // for heuristics, and for the methods of the search that improve a plan
    struct gb_plan_budget search; // for exact search
    gb_plan_search_fn search_part; // NULL: heuristics only
    bool whole; // false for the critical buffers of another problem
    int n_threads;
};

// The search of plan/search (plan_strategy.c).
enum ggml_status gb_plan_search_part(struct gb_plan_part * part, size_t goal, size_t unit,
    struct gb_plan_costs * costs);

#endif // GB_PLAN_SEARCH_H
