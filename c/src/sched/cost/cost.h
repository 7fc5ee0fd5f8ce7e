// cost.h - placement by cost: the cheapest labels of items, given the cost of each item on each
// backend and the cost of copies. Pure.
//
//   cost of labels p =  sum over items      cost[i][p(i)]
//                    +  sum over values     copy[v][p(producer)][b]  for every backend b != p(producer) that has a
//                                                                    consumer of v
//                    +  sum over neighbours split                    for every two neighbours in `order` with
//                                                                    different labels
//
// An item is an op with the memory that it writes. It has one label. A value is one state of a
// tensor's memory. It is copied at most once to each backend. Costs are integers (GB_COST_UNIT a
// nanosecond), so sums are exact and a proof of optimality holds exactly.
//
//   cost.c      this sum, the expansion move, the choice of a method
//   mincut.c    the cut behind an expansion move
//   frontier.c  exact search for three or more backends
//
// assign/prices.c has the costs from the user's table, assign/problem.c makes items and values of a
// graph.
#ifndef GB_SCHED_COST_COST_H
#define GB_SCHED_COST_COST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ggml.h"
#include "sched/cost/mincut.h"

enum { GB_COST_UNIT = 256 };               // a nanosecond
enum { GB_COST_BACKENDS_MAX = 64 };        // of a placement: a set of backends is one word
#define GB_COST_INF (INT64_C(1) << 60) // of an item: the backend cannot have it
#define GB_COST_SUM_MAX (INT64_C(1) << 58) // limit for the sum of all finite costs of a problem

struct gb_cost_value {
    int32_t producer;    // item
    uint32_t begin, end; // its part of `consumers`
};

// The comment beside an array names its dimensions, the last one fastest.
struct gb_cost_problem { // borrowed
    int n_backends, n_items, n_order, n_values;
    const int64_t * cost;  // n_items x n_backends; at least one of each item is finite
    const int32_t * order; // items in order of execution; an item may occur several times
    const struct gb_cost_value * values;
    const int32_t * consumers; // items; no item twice for one value, never its producer
    const int64_t * copy;      // n_values x n_backends (from) x n_backends (to)
    int64_t split;
};

enum gb_cost_method { GB_COST_CUT, GB_COST_FRONTIER, GB_COST_MOVES };

// Quality of the labels. With `proved` no labels are cheaper; else the optimum is between `bound`
// and `cost`.
struct gb_cost_result {
    int64_t cost, bound; // bound <= the optimum <= cost
    int method; // enum gb_cost_method: the method that found or proved the labels
    bool proved;         // cost == optimum
    size_t n_states;     // of the frontier search
};

// The cost of labels[n_items], each a backend. GB_COST_INF or more if an item has a label that it
// cannot have.
int64_t gb_cost_of(const struct gb_cost_problem * p, const int32_t * labels);

// Finds the cheapest labels. Fills labels[n_items] and `result`. `start` (NULL: none) are labels
// that the result is at least as good as. max_states limits the frontier search. With two backends
// one cut is the optimum, and neither `start` nor `max_states` is used. After ALLOC_FAILED (no
// memory) and ABORTED (the thread's poll cancelled) `labels` and `result` are undefined.
enum ggml_status gb_cost_solve(const struct gb_cost_problem * p, const int32_t * start, size_t max_states,
    int32_t * labels, struct gb_cost_result * result);

// The network of an expansion move: every item keeps its label (source side) or takes `alpha` (sink
// side). Node i is item i, the source is n_items, the sink n_items + 1. For two backends the cut
// with alpha 1 and all labels 0 is the optimum. False: no memory.
bool gb_cost_network(const struct gb_cost_problem * p, const int32_t * labels, int alpha, struct gb_flow * net);

// saved[i]: the extra cost if only item i moved to its best other backend other[i] (-1: there is
// none). If an entry is negative, the move is cheaper. Both arrays have n_items entries; `saved`
// has the unit of the costs. ALLOC_FAILED: no memory.
enum ggml_status gb_cost_savings(const struct gb_cost_problem * p, const int32_t * labels, int64_t * saved,
    int32_t * other);

#endif // GB_SCHED_COST_COST_H
