// plan_methods.h - the methods of the search; plan_strategy.c chooses among them.
//
//   plan_strategy.c    chooses which methods run on a part, and for how long
//   plan_passes.c      passes of exact search at several capacities, with growing numbers of nodes
//   plan_exact.c       exact depth-first search at one capacity: finds a plan, proves that there is none, or gives up
//   plan_critical.c    plans the buffers of the busiest sections as a separate problem, then adds the others
//   plan_window.c      plans the buffers around the peak in time again
//   plan_eject.c       ejection chains: moves the highest buffers down, then the buffers in their way
//   plan_neighbours.c  the placed neighbours of a buffer, for ejection chains
//   plan_learn.c       first fit in orders learned from earlier plans
//
// Each method works on the plan of a part until it reaches the goal or the budget is used up. It
// keeps a plan only if it is better.
#ifndef GB_PLAN_METHODS_H
#define GB_PLAN_METHODS_H

#include "plan/plan_impl.h"
#include "plan/plan_search.h"

// First fit in learned orders (plan_learn.c). A later call continues.
struct gb_plan_learner;
struct gb_plan_learner * gb_plan_learner_new(struct gb_plan_part * part); // NULL: no memory
void gb_plan_learner_free(struct gb_plan_learner * learner);
enum ggml_status gb_plan_learn(struct gb_plan_learner * learner, size_t goal, struct gb_plan_budget * budget);
// Starts from an order, and ends when that order gives no further improvement.
enum ggml_status gb_plan_learn_from(struct gb_plan_learner * learner, const uint32_t * order, size_t goal,
    struct gb_plan_budget * budget);

// Starts from a plan of the critical buffers (plan_critical.c): about `limit` buffers of the
// busiest sections, more if the busiest section alone has more. A bound of these is a bound of the
// part.
enum ggml_status gb_plan_from_critical(struct gb_plan_part * part, uint32_t limit, size_t goal, size_t unit,
    size_t capacity, struct gb_plan_budget * budget);

// Plans the buffers around the highest buffers in time again, as long as that lowers them
// (plan_window.c).
enum ggml_status gb_plan_lower_peaks(struct gb_plan_part * part, size_t goal, struct gb_plan_budget * budget);

// The placed neighbours of a buffer (plan_neighbours.c). Invariant: offsets[b] is the offset of b,
// or GB_PLAN_NOT_PLACED. The result of `find` and its order depend on the placed buffers alone.
// After false (no memory) only free it.
#define GB_PLAN_NOT_PLACED SIZE_MAX
struct gb_plan_neighbours;
struct gb_plan_neighbour_list {
    struct gb_plan_pair * by_offset; // n pairs (offset, buffer), sorted
    struct gb_plan_pair * by_end;    // the same buffers as pairs (offset + size, buffer), sorted
    uint32_t n;
};
struct gb_plan_neighbours * gb_plan_neighbours_new(const struct gb_plan_part * part); // empty; NULL: no memory
void gb_plan_neighbours_free(struct gb_plan_neighbours * neighbours);
const size_t * gb_plan_neighbours_offsets(const struct gb_plan_neighbours * neighbours); // by buffer; borrowed
bool gb_plan_neighbours_place(struct gb_plan_neighbours * neighbours, uint32_t b, size_t offset); // not placed before
void gb_plan_neighbours_remove(struct gb_plan_neighbours * neighbours, uint32_t b);               // placed before
// Sets all offsets, by buffer. Costs as much as the buffers that change.
bool gb_plan_neighbours_set(struct gb_plan_neighbours * neighbours, const size_t * offsets);
uint64_t gb_plan_neighbours_cost(const struct gb_plan_neighbours * neighbours); // steps of the first call of set
// The placed neighbours of b, which is not placed. Valid until the next call. *steps: of this call
// and of placing b.
const struct gb_plan_neighbour_list * gb_plan_neighbours_find(struct gb_plan_neighbours * neighbours, uint32_t b,
    uint64_t * steps);

// Ejection chains (plan_eject.c). A later call continues.
#define GB_PLAN_MAX_EJECT_SPARSE 200000 // buffers of a sparse part; of other parts GB_PLAN_VERY_MANY
struct gb_plan_ejector;
bool gb_plan_can_eject(const struct gb_plan_part * part); // small enough, no chunks, no fixed buffers
struct gb_plan_ejector * gb_plan_ejector_new(struct gb_plan_part * part); // NULL: no memory
void gb_plan_ejector_free(struct gb_plan_ejector * ejector);
enum ggml_status gb_plan_eject(struct gb_plan_ejector * ejector, size_t goal, size_t unit,
    struct gb_plan_budget * budget);

// Exact search at several capacities (plan_passes.c). Each pass has four times the nodes of the
// previous one.
struct gb_plan_passes;
struct gb_plan_passes * gb_plan_passes_new(struct gb_plan_part * part, size_t goal, size_t capacity,
    size_t unit); // NULL: no memory
void gb_plan_passes_free(struct gb_plan_passes * passes);
enum ggml_status gb_plan_run_pass(struct gb_plan_passes * passes, struct gb_plan_budget * budget, size_t * goal);

// Exact search at one capacity (plan_exact.c).
enum gb_plan_outcome { GB_PLAN_FOUND, GB_PLAN_INFEASIBLE, GB_PLAN_GAVE_UP, GB_PLAN_NO_MEMORY };
struct gb_plan_exact;
struct gb_plan_exact * gb_plan_exact_new(struct gb_plan_part * part); // NULL: no memory
void gb_plan_exact_free(struct gb_plan_exact * exact);
// Finds a plan of at most `capacity` and stores it in part->trial. rerank: sort the buffers of each
// independent subproblem again.
enum gb_plan_outcome gb_plan_exact_run(struct gb_plan_exact * exact, size_t capacity, enum gb_plan_key key, bool rerank,
    uint64_t max_nodes, struct gb_plan_budget * budget);

#endif // GB_PLAN_METHODS_H
