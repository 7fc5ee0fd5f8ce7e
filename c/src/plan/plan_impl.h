// plan_impl.h - what the parts of the planner share.
//
//   plan.c           the driver, and the public functions
//   plan_part.c      what is tried for parts, in which order, and how long
//   plan_apart.c     parts that a few long buffers hold together, each planned on its own above these
//   plan_bounds.c    from items to parts: rounding, sections, independent parts, loads
//   plan_order.c     orders of buffers, by keys
//   plan_inorder.c   best fit, buffer by buffer in the order of births, as an allocator does it
//   plan_pairs.c     sorted pairs of numbers: the free blocks of best fit
//   plan_firstfit.c  each buffer in turn into the first (or smallest) gap, for an order given by a key
//   plan_fit.c       several orders of first fit, on one thread or more
//   plan_index.c     what is placed, by time and offset, to find gaps fast
//   plan_sets.c      unions of intervals of offsets, for that
//   plan_lists.c     the buffers that begin or end within a block of sections, for that
//   plan_skyline.c   the lowest valley of the skyline filled with the best buffer that fits between its walls
//   plan_improve.c   first fit in orders that the plans before have taught
//   plan_critical.c  the buffers alive where most bytes are, as a problem of their own
//   plan_window.c    plans anew what lies around the highest peak, again and again
//   plan_eject.c     makes room for what lies highest, and for what was in its way
//   plan_near.c      who is placed and alive with a buffer, for that
//   plan_search.c    search at several capacities
//   plan_exact.c     depth-first search at a capacity: finds a plan, or proves that there is none, or gives up
//   plan_chunks.c    the driver for memory in chunks of limited size
//   plan_budget.c    how much searching may still cost
//   plan_validator.c says whether a plan is valid; shares nothing with the above
//
// Time is cut into sections, one for each largest set of buffers alive together: a new one opens at a birth that
// follows a death. Two buffers are alive together exactly when they share a section. Times themselves only matter to
// some orders of the search.
#ifndef GB_PLAN_IMPL_H
#define GB_PLAN_IMPL_H

#include <stdatomic.h>

#include "plan/plan.h"
#include "base/vec.h"

struct gb_plan_buffer {
    uint32_t first, last; // alive in the sections [first, last) of its part; first < last
    uint32_t item;        // index among the items
    size_t size;          // bytes, rounded up, > 0
    uint64_t span;        // in the time of the item; > 0
};

// Buffers that no other buffer ever meets: a problem of its own. The peak of a plan is the largest of its parts.
struct gb_plan_part {
    struct gb_plan_buffer * buffers; // borrowed; in order of birth
    size_t * offsets;                // borrowed; the best plan so far, by buffer
    size_t * trial;                  // borrowed; the plan being made
    uint32_t n, n_sections;
    uint32_t n_fixed; // buffers behind the n, which first fit leaves where `trial` says
    size_t * crowd;   // borrowed; by buffer: the largest load of its sections; if has_crowds
    uint32_t busiest; // the first section with the largest load; if has_crowds
    bool has_crowds;
    const size_t * load; // borrowed; by section: bytes alive
    // borrowed; by section: buffers with first <= section, all of which come first in `buffers`
    const uint32_t * born;
    uint64_t n_pairs; // of buffers alive together
    size_t bound;     // no plan of this part is smaller: the largest load, or what search has proved
    size_t peak;      // of the best plan so far
    bool unfinished;  // more turns would probably help
    int best_key;     // enum gb_plan_key: the order that gave the best plan by first fit
    size_t chunk;     // for first fit: no buffer may lie across a multiple of it; 0: none
    // Offsets begin at 0, above `floor` bytes of other buffers, which count for what the part needs; of these, `below`
    // bytes are alive throughout the part, so that no plan of all is smaller than below + bound.
    size_t floor, below;
    double had; // steps to be improved, the last time
};

struct gb_plan_problem {
    struct gb_plan_buffer * buffers; // owned, as all arrays here
    size_t * offsets;
    size_t * trial;
    size_t * crowd;
    size_t * load;
    uint32_t * born;
    struct gb_plan_part * parts; // by falling bound
    size_t n, n_parts;
    size_t unit; // divides all sizes, so also the offsets of a plan worth considering
    size_t bound; // largest load
};

// Parts of more buffers than this are many: they are not searched, few orders are tried, chains are long.
enum { GB_PLAN_MANY = 4096 };

// What may still be spent (plan_budget.c). In-order and first fit, which spend nothing meanwhile, ask the thread's poll
// themselves, every GB_PLAN_POLL buffers.
enum { GB_PLAN_POLL = 256 };
// Buffers up to which first fit by size is tried whatever the budget, and the steps for each that it may cost then:
// what is left after them is placed by hints (plan_firstfit.c).
enum { GB_PLAN_ALWAYS = 100000, GB_PLAN_ALWAYS_STEPS = 10000 };
struct gb_plan_budget {
    uint64_t steps; // left
    int64_t deadline; // gb_thread_time_ns, so that other work changes no plan; INT64_MAX: none
    uint64_t unread; // steps since the clock was read
    bool gave_up; // the thread's poll said so: nothing is left
    bool late; // the clock said so
    // borrowed, or NULL: another thread says that nothing is left
    const atomic_bool * stop;
};

#define GB_PLAN_LOOK_STEPS ((uint64_t) 1 << 16)
void gb_plan_look(struct gb_plan_budget * budget); // at the clock and the poll: nothing is left if one says so

// A part of the budget for a stage of its own, and what that has left.
struct gb_plan_budget gb_plan_share(struct gb_plan_budget * from, uint64_t steps);
void gb_plan_give_back(struct gb_plan_budget * to, const struct gb_plan_budget * share);

// False when the budget is used up. Inline: the search spends a few steps at a time.
static inline bool gb_plan_spend(struct gb_plan_budget * budget, uint64_t steps) {
    budget->unread += steps;
    if (budget->unread >= GB_PLAN_LOOK_STEPS) {
        gb_plan_look(budget);
    }
    const bool enough = steps <= budget->steps;
    budget->steps -= enough ? steps : budget->steps;
    return enough;
}

enum gb_plan_key {
    GB_PLAN_BY_SIZE,
    GB_PLAN_BY_AREA,
    GB_PLAN_BY_WIDTH,
    GB_PLAN_BY_LOAD,
    GB_PLAN_BY_BIRTH,
    GB_PLAN_BY_DEATH,
    // for first fit of many: what is large and lives where much else does (plan_order.c)
    GB_PLAN_BY_CROWDED_SIZE,
    GB_PLAN_BY_CROWDED_WIDTH,
    GB_PLAN_BY_PEAK,
    // for the search
    GB_PLAN_BY_WIDTH_AREA_LOAD,
    GB_PLAN_BY_LOAD_AREA_WIDTH,
    GB_PLAN_BY_LOAD_WIDTH_AREA,
    GB_PLAN_BY_AREA_WIDTH_LOAD,
    GB_PLAN_BY_BIRTH_LOAD_WIDTH,
    GB_PLAN_BY_DEATH_LOAD_WIDTH,
    GB_PLAN_BY_LATE_BIRTH_LOAD_WIDTH,
    GB_PLAN_BY_DEATH_NARROW,
    // width and area in time instead of sections
    GB_PLAN_BY_LOAD_SPAN,
    GB_PLAN_BY_BIRTH_LOAD_SPAN,
    GB_PLAN_BY_DEATH_SPAN,
};

// A buffer and what it is sorted by: the larger key comes first, at a tie what the buffer itself is, so that the order
// of items does not matter.
struct gb_plan_ranked {
    uint64_t key[3];
    uint32_t first, last;
    size_t size;
    uint32_t buffer;
};
// crowd: the largest load of the buffer's sections, gb_plan_crowd, which only some keys need; GB_PLAN_BY_PEAK needs
// gb_plan_find_crowds.
struct gb_plan_ranked gb_plan_rank(const struct gb_plan_part * part, uint32_t b, enum gb_plan_key key, size_t crowd);
int gb_plan_by_rank(const void * a, const void * b);
bool gb_plan_needs_crowd(enum gb_plan_key key);
size_t gb_plan_crowd(const struct gb_plan_buffer * b, const size_t * load);
enum ggml_status gb_plan_find_crowds(struct gb_plan_part * part);
// Sorts by rising key; what is level keeps its sequence. scratch: room for n.
struct gb_plan_keyed {
    uint64_t key;
    uint32_t buffer;
};
void gb_plan_sort(struct gb_plan_keyed * all, struct gb_plan_keyed * scratch, uint32_t n);
// All buffers of the part by rank.
enum ggml_status gb_plan_order(struct gb_plan_part * part, enum gb_plan_key key, uint32_t * order);
// By rising offset; first fit in this order puts no buffer higher than it is. Level ones in the order that did best.
enum ggml_status gb_plan_order_by_offset(struct gb_plan_part * part, const size_t * offsets, uint32_t * order);

// A failure is the caller's mistake or lack of memory, reported. free also after a failure.
enum ggml_status gb_plan_problem_init(struct gb_plan_problem * p, const struct gb_plan_item * items, size_t n,
    size_t alignment);
void gb_plan_problem_free(struct gb_plan_problem * p);

// Pairs of numbers, sorted by a, level ones by b (plan_pairs.c). All zero: none.
#define GB_PLAN_RUN 128
struct gb_plan_pair {
    size_t a, b;
};
struct gb_plan_pairs_run {
    struct gb_plan_pair * pairs; // owned
    uint32_t n; // > 0
    uint32_t room; // doubled when it is full, up to GB_PLAN_RUN
};
struct gb_plan_pairs {
    GB_VEC(struct gb_plan_pairs_run) runs;
};
void gb_plan_pairs_free(struct gb_plan_pairs * p);
bool gb_plan_pairs_insert(struct gb_plan_pairs * p, struct gb_plan_pair x); // false: no memory
void gb_plan_pairs_remove(struct gb_plan_pairs * p, struct gb_plan_pair x); // is there
// The first pair that is not less than x, and the one before it; NULL: none. Valid until the next change.
const struct gb_plan_pair * gb_plan_pairs_from(const struct gb_plan_pairs * p, struct gb_plan_pair x,
    const struct gb_plan_pair ** before);

// What is placed, by time and offset (plan_index.c).
struct gb_plan_index;
// For buffers whose lives are those of the part's n. NULL: no memory.
struct gb_plan_index * gb_plan_index_new(const struct gb_plan_part * part);
void gb_plan_index_free(struct gb_plan_index * index);
void gb_plan_index_reset(struct gb_plan_index * index); // nothing is placed
bool gb_plan_index_add(struct gb_plan_index * index, const struct gb_plan_buffer * b,
    size_t offset); // false: no memory
// The offset of the lowest gap for b, or of the smallest; above all else if there is none. What that cost is added to
// *steps. chunk: see gb_plan_part.
size_t gb_plan_index_lowest(struct gb_plan_index * index, const struct gb_plan_buffer * b, size_t chunk,
    uint64_t * steps);
size_t gb_plan_index_smallest(const struct gb_plan_index * index, const struct gb_plan_buffer * b, size_t chunk,
    uint64_t * steps);
// The same in a bounded number of steps: a gap where a search with 64 leaps finds one, which begins where the one
// before for about the same time has ended; else above all. False: no memory.
bool gb_plan_index_hinted(struct gb_plan_index * index, const struct gb_plan_buffer * b, size_t chunk, size_t * offset,
    uint64_t * steps);
// The first offset at or above `at` where `size` bytes do not cross the end of a chunk.
size_t gb_plan_within_chunk(size_t at, size_t size, size_t chunk);

// Each gives a plan of the part and its peak. The statuses are SUCCESS, ALLOC_FAILED and ABORTED (the poll said so). A
// peak of SIZE_MAX: the budget ended it, and there is no plan. Without a budget all is done.
enum ggml_status gb_plan_in_order(struct gb_plan_part * part, size_t * peak); // into part->trial
enum ggml_status gb_plan_first_fit(struct gb_plan_part * part, enum gb_plan_key key, bool smallest_gap,
    struct gb_plan_budget * budget, size_t * peak); // into part->trial
enum ggml_status gb_plan_skyline(struct gb_plan_part * part, enum gb_plan_key key, struct gb_plan_budget * budget,
    size_t * peak); // into part->trial

// By many keys, or some, or by size alone, on as many threads; keeps what is smaller than the plan of
// the part (plan_fit.c).
enum gb_plan_orders { GB_PLAN_EVERY, GB_PLAN_SOME, GB_PLAN_PROMISED };
enum ggml_status gb_plan_fit_gaps(struct gb_plan_part * part, size_t goal, enum gb_plan_orders which, int n_threads,
    struct gb_plan_budget * budget);

// The same for an order, again and again: places n buffers of the part into an empty space, each into the first gap or
// into the smallest.
struct gb_plan_placer;
struct gb_plan_placer * gb_plan_placer_new(const struct gb_plan_part * part); // NULL: no memory
void gb_plan_placer_free(struct gb_plan_placer * placer);
enum ggml_status gb_plan_place(struct gb_plan_placer * placer, const uint32_t * order, uint32_t n, bool smallest_gap,
    struct gb_plan_budget * budget, size_t * offsets, size_t * peak);
// The same, into the first gap; where the budget is used up before the end, the others get places that cost little, not
// the first. There is a plan unless the poll has ended it.
enum ggml_status gb_plan_place_all(struct gb_plan_placer * placer, const uint32_t * order,
    struct gb_plan_budget * budget, size_t * offsets, size_t * peak);

// The trial becomes the plan of the part if it is smaller.
void gb_plan_keep(struct gb_plan_part * part, size_t peak);

// First fit in orders that earlier plans have taught (plan_improve.c). Keeps what is smaller than the plan of the part.
struct gb_plan_improver;
struct gb_plan_improver * gb_plan_improver_new(struct gb_plan_part * part); // NULL: no memory
void gb_plan_improver_free(struct gb_plan_improver * improver);
// Until the peak is the goal, or the budget is used up; then it can go on later.
enum ggml_status gb_plan_improve(struct gb_plan_improver * improver, size_t goal, struct gb_plan_budget * budget);
// The same from an order, until that is learned.
enum ggml_status gb_plan_improve_from(struct gb_plan_improver * improver, const uint32_t * order, size_t goal,
    struct gb_plan_budget * budget);

// From a plan of the buffers that are alive where most bytes are (plan_critical.c): about `limit` of them, more if more
// are alive in the busiest section. What that proves of them is proved of the part.
enum ggml_status gb_plan_from_critical(struct gb_plan_part * part, uint32_t limit, size_t goal, size_t unit,
    size_t capacity, struct gb_plan_budget * budget);

// Plans anew what lies around the highest buffers, as long as that lowers them (plan_window.c).
enum ggml_status gb_plan_lower_peaks(struct gb_plan_part * part, size_t goal, struct gb_plan_budget * budget);

// Who is placed, and alive with a buffer (plan_near.c). Invariant: offsets[b] is where b was put last, or
// GB_PLAN_NOT_PLACED after take; find gives exactly those placed that share a section with b, which is not placed. What
// it finds, and in which sequence, depends on what is placed alone. After false, for want of memory, only free.
#define GB_PLAN_NOT_PLACED SIZE_MAX
struct gb_plan_near;
struct gb_plan_met {
    struct gb_plan_pair * by_offset; // n pairs of offset and buffer, sorted
    struct gb_plan_pair * by_end; // of the same buffers, offset + size and buffer, sorted
    uint32_t n;
};
struct gb_plan_near * gb_plan_near_new(const struct gb_plan_part * part); // nothing is placed; NULL: no memory
void gb_plan_near_free(struct gb_plan_near * near);
const size_t * gb_plan_near_offsets(const struct gb_plan_near * near); // by buffer; valid as long as `near` is
bool gb_plan_near_put(struct gb_plan_near * near, uint32_t b, size_t offset); // is not placed
void gb_plan_near_take(struct gb_plan_near * near, uint32_t b); // is placed
// All offsets at once, by buffer. It costs as much as what differs.
bool gb_plan_near_set(struct gb_plan_near * near, const size_t * offsets);
// Steps to put all in at once, which is what the first call of set costs.
uint64_t gb_plan_near_all(const struct gb_plan_near * near);
// Valid until the next call of find. *steps: buffers that were looked at, and what it costs to put b in.
const struct gb_plan_met * gb_plan_near_find(struct gb_plan_near * near, uint32_t b, uint64_t * steps);

// Takes out what lies highest and makes room for it, and for what was in its way, move by move (plan_eject.c).
#define GB_PLAN_MAX_EJECT 20000 // buffers
#define GB_PLAN_MAX_EJECT_NEAR 200000 // where few are alive with each
struct gb_plan_ejector;
bool gb_plan_can_eject(const struct gb_plan_part * part); // it is small enough, and one space
bool gb_plan_few_meet(const struct gb_plan_part * part); // few are alive with each
struct gb_plan_ejector * gb_plan_ejector_new(struct gb_plan_part * part); // NULL: no memory
void gb_plan_ejector_free(struct gb_plan_ejector * ejector);
// Until the peak is the goal, or the budget is used up; then it can go on later.
enum ggml_status gb_plan_eject(struct gb_plan_ejector * ejector, size_t goal, size_t unit,
    struct gb_plan_budget * budget);

// Complete search at several capacities (plan_search.c), in passes with ever more nodes.
struct gb_plan_searcher;
bool gb_plan_can_search(const struct gb_plan_part * part); // it is small enough
struct gb_plan_searcher * gb_plan_searcher_new(struct gb_plan_part * part, size_t goal, size_t capacity,
    size_t unit); // NULL: no memory
void gb_plan_searcher_free(struct gb_plan_searcher * searcher);
enum ggml_status gb_plan_search_pass(struct gb_plan_searcher * searcher, struct gb_plan_budget * budget, size_t * goal);

// What planning a problem may cost.
struct gb_plan_costs {
    size_t capacity; // as that of the effort
    struct gb_plan_budget heuristic, search;
    bool whole; // not the critical buffers of another
    bool turns; // more than heuristics
    int n_threads;
};
// All parts, down to the goal: in-order best fit and first fit for each, then more for the highest, again and again
// (plan_part.c).
enum ggml_status gb_plan_parts(struct gb_plan_problem * p, size_t goal, struct gb_plan_costs * costs,
    struct gb_plan_result * result);

// Buffers that hold others together: those alive throughout the part, any number; or a few that are alive for an eighth
// of its sections or more. Without them the others are several parts, which can be planned one by one above them.
enum gb_plan_holders { GB_PLAN_THROUGHOUT, GB_PLAN_LONG };
bool gb_plan_is_held(const struct gb_plan_part * part, enum gb_plan_holders by);
// Does so, as far as the costs go, and keeps the plan if it is smaller. What this proves is proved of the part.
enum ggml_status gb_plan_apart(struct gb_plan_part * part, enum gb_plan_holders by, size_t goal, size_t unit,
    struct gb_plan_costs * costs);

enum gb_plan_outcome { GB_PLAN_FOUND, GB_PLAN_INFEASIBLE, GB_PLAN_GAVE_UP, GB_PLAN_NO_MEMORY };

struct gb_plan_exact; // all that search needs, made once for a part
struct gb_plan_exact * gb_plan_exact_new(struct gb_plan_part * part); // NULL: no memory
void gb_plan_exact_free(struct gb_plan_exact * exact);
// A plan of at most `capacity`, into part->trial. rerank: order buffers anew in each independent remainder.
enum gb_plan_outcome gb_plan_exact_run(struct gb_plan_exact * exact, size_t capacity, enum gb_plan_key key, bool rerank,
    uint64_t max_nodes, struct gb_plan_budget * budget);

#endif // GB_PLAN_IMPL_H
