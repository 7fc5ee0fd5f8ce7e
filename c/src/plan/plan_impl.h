// plan_impl.h - terms, structures and functions that the files of the planner share.
//
// Terms:
//
//   buffer        an item with bytes and a lifetime: a rectangle, sections wide and bytes high
//   section       a span of time; one for each maximal set of buffers alive together. A new section opens at a birth
//                 that follows a death. Two buffers are alive together exactly if they share a section
//   neighbours    buffers that are alive together
//   part          buffers without a neighbour outside: an independent problem
//   load          bytes alive in a section. The largest load is the lower bound of every plan
//   width         sections of a buffer; its area is width times size
//   peak, top     of a plan: the highest end of a buffer; of a buffer: its end
//   goal          a peak that is low enough: the lower bound, the capacity, or the peak of another part
//   unit          divides all sizes, and so all useful offsets
//   step          the unit of work: about 2 ns. A budget counts steps, so that plans do not depend on the clock
//   fixed buffer  a buffer that keeps its offset while others are placed
//
// Files, in the order in which a plan is made:
//
//   plan.c            the public functions
//   plan_bounds.c     from items to parts: rounding, sections, loads
//   plan_parts.c      runs the heuristics on each part, then the search on the highest part
//   plan_inorder.c    in-order best fit, as in an allocator; plan_pairs.c stores its free blocks
//   plan_order.c      sort keys of buffers
//   plan_firstfit.c   places buffers in an order, each into the lowest or the smallest gap
//   plan_index.c      finds these gaps; plan_sets.c and plan_lists.c are its containers
//   plan_portfolio.c  first fit in several orders, on one or more threads
//   plan_skyline.c    fills the lowest valley of the skyline
//   plan_groups.c     plans groups of buffers alone if only a few long buffers connect them
//   plan_chunks.c     plans for memory in chunks of limited size
//   plan_budget.c     counts the remaining steps of a plan
//   plan_validator.c  checks a plan; shares no code with the planner
//   search/           spends a budget on better plans, through one function pointer (plan_search.h)
#ifndef GB_PLAN_IMPL_H
#define GB_PLAN_IMPL_H

#include <stdatomic.h>

#include "plan/plan.h"
#include "base/vec.h"

// ------------------------------------------------------------------------------------------------------------- problem

struct gb_plan_buffer {
    uint32_t first, last; // alive in sections [first, last) of its part; first < last
    uint32_t item; // index of its item
    size_t size; // bytes, rounded up to the alignment; > 0
    uint64_t span; // duration in the item's time; > 0
};

struct gb_plan_part {
    struct gb_plan_buffer * buffers; // borrowed; by birth; n, then n_fixed
    size_t * offsets; // borrowed; by buffer: the best plan so far
    size_t * trial; // borrowed; by buffer: the plan being made, and the offsets of fixed buffers
    uint32_t n, n_sections;
    uint32_t n_fixed;
    size_t * max_load; // borrowed; by buffer: largest load of its sections; valid if has_max_loads
    uint32_t busiest; // first section with the largest load; valid if has_max_loads
    bool has_max_loads; // gb_plan_find_max_loads sets it
    const size_t * load; // borrowed; by section
    const uint32_t * born; // borrowed; by section: number of buffers with first <= section
    uint64_t n_pairs; // pairs of neighbours
    size_t bound; // bytes; no plan of the part has a smaller peak
    size_t peak; // bytes; of `offsets`. SIZE_MAX: no plan yet
    bool unfinished; // a larger budget would probably give a smaller peak
    int best_key; // enum gb_plan_key of the best first fit
    size_t chunk; // bytes; first fit places no buffer across a multiple of it. 0: no limit
    size_t floor; // bytes below the part, whose offset 0 is there
    size_t below; // bytes below that are alive throughout; every plan of the whole problem needs below + bound
    double last_share; // steps of the last search of this part
};

struct gb_plan_problem {
    struct gb_plan_buffer * buffers; // owned, as all arrays here; the parts borrow from them
    size_t * offsets;
    size_t * trial;
    size_t * max_load;
    size_t * load;
    uint32_t * born;
    struct gb_plan_part * parts; // by falling bound
    size_t n, n_parts;
    size_t unit;
    size_t bound; // largest load of all
};

// Invalid items and missing memory are failures. Call gb_plan_problem_free also after a failure.
enum ggml_status gb_plan_problem_init(struct gb_plan_problem * p, const struct gb_plan_item * items, size_t n,
    size_t alignment);
void gb_plan_problem_free(struct gb_plan_problem * p);

// Makes the trial the plan of the part if `peak` is smaller.
void gb_plan_keep(struct gb_plan_part * part, size_t peak);

enum {
    GB_PLAN_MANY = 4096, // larger parts get no exact search, few orders, and long ejection chains
    GB_PLAN_VERY_MANY = 20000, // larger parts get ejection chains only if they are sparse
    GB_PLAN_MAX_PROMISED = 100000, // up to here first fit by size runs with any budget
    GB_PLAN_PROMISED_STEPS = 10000 // steps per buffer of that first fit; then it places the others by hints
};
bool gb_plan_is_sparse(const struct gb_plan_part * part); // few pairs of its buffers are neighbours
bool gb_plan_can_search_exact(const struct gb_plan_part * part); // small enough for exact search

// -------------------------------------------------------------------------------------------------------------- budget

struct gb_plan_budget {
    uint64_t steps; // left
    int64_t deadline; // by gb_thread_time_ns, so that other processes change no plan; INT64_MAX: none
    uint64_t unchecked; // steps since the last look at the clock
    bool aborted; // the thread's poll asked to stop: no steps are left
    bool timed_out; // the deadline has passed: no steps are left
    const atomic_bool * stop; // borrowed, or NULL; set by another thread to end this one's work
};

// In-order fit and first fit without a budget call the thread's poll once per this many buffers.
enum { GB_PLAN_POLL = 256 };
#define GB_PLAN_CHECK_STEPS ((uint64_t) 1 << 16)

// Reads the clock and the poll. Removes all steps if either asks to stop.
void gb_plan_check_clock(struct gb_plan_budget * budget);

// Moves up to `steps` into a budget for one stage. give_back returns the unused steps.
struct gb_plan_budget gb_plan_share(struct gb_plan_budget * from, uint64_t steps);
void gb_plan_give_back(struct gb_plan_budget * to, const struct gb_plan_budget * share);

// False if the budget is used up. Inline: callers spend a few steps at a time.
static inline bool gb_plan_spend(struct gb_plan_budget * budget, uint64_t steps) {
    budget->unchecked += steps;
    if (budget->unchecked >= GB_PLAN_CHECK_STEPS) {
        gb_plan_check_clock(budget);
    }
    const bool enough = steps <= budget->steps;
    budget->steps -= enough ? steps : budget->steps;
    return enough;
}

// -------------------------------------------------------------------------------------------------------------- orders

// Buffers are sorted by falling key. "Load" is the buffer's max_load.
enum gb_plan_key {
    GB_PLAN_BY_SIZE,
    GB_PLAN_BY_AREA,
    GB_PLAN_BY_WIDTH,
    GB_PLAN_BY_LOAD,
    GB_PLAN_BY_BIRTH, // early first
    GB_PLAN_BY_DEATH, // late first
    // for first fit of many buffers
    GB_PLAN_BY_LOADED_SIZE, // size * load^8
    GB_PLAN_BY_LOADED_WIDTH, // size * load^8 * width^(1/4)
    GB_PLAN_BY_PEAK, // buffers of the busiest section by width, then the others by size, load and width
    // for exact search: ties of the first key are broken by the next keys
    GB_PLAN_BY_WIDTH_AREA_LOAD,
    GB_PLAN_BY_LOAD_AREA_WIDTH,
    GB_PLAN_BY_LOAD_WIDTH_AREA,
    GB_PLAN_BY_AREA_WIDTH_LOAD,
    GB_PLAN_BY_BIRTH_LOAD_WIDTH,
    GB_PLAN_BY_DEATH_LOAD_WIDTH,
    GB_PLAN_BY_LATE_BIRTH_LOAD_WIDTH,
    GB_PLAN_BY_DEATH_NARROW,
    // the same with durations in time in place of sections
    GB_PLAN_BY_LOAD_SPAN,
    GB_PLAN_BY_BIRTH_LOAD_SPAN,
    GB_PLAN_BY_DEATH_SPAN,
};

// A buffer with its sort keys. Ties are broken by size and lifetime, so that the order of the items
// does not matter.
struct gb_plan_ranked {
    uint64_t key[3];
    uint32_t first, last;
    size_t size;
    uint32_t buffer;
};
// max_load: of the buffer, if gb_plan_needs_max_load. GB_PLAN_BY_PEAK needs gb_plan_find_max_loads.
struct gb_plan_ranked gb_plan_rank(const struct gb_plan_part * part, uint32_t b, enum gb_plan_key key, size_t max_load);
int gb_plan_by_rank(const void * a, const void * b);
bool gb_plan_needs_max_load(enum gb_plan_key key);
size_t gb_plan_max_load(const struct gb_plan_buffer * b, const size_t * load);
enum ggml_status gb_plan_find_max_loads(struct gb_plan_part * part);

// Sorts by rising key. Stable. scratch: space for n.
struct gb_plan_keyed {
    uint64_t key;
    uint32_t buffer;
};
void gb_plan_sort(struct gb_plan_keyed * all, struct gb_plan_keyed * scratch, uint32_t n);

enum ggml_status gb_plan_order(struct gb_plan_part * part, enum gb_plan_key key, uint32_t * order);
// By rising offset, ties by best_key. First fit in this order places no buffer above its offset.
enum ggml_status gb_plan_order_by_offset(struct gb_plan_part * part, const size_t * offsets, uint32_t * order);

// ---------------------------------------------------------------------------------------------------------- containers

// A sorted set of pairs, by a, then b (plan_pairs.c). All zero: empty.
#define GB_PLAN_RUN 128
struct gb_plan_pair {
    size_t a, b;
};
struct gb_plan_pairs_run {
    struct gb_plan_pair * pairs; // owned
    uint32_t n; // > 0
    uint32_t capacity; // doubles when full, up to GB_PLAN_RUN
};
struct gb_plan_pairs {
    GB_VEC(struct gb_plan_pairs_run) runs;
};
void gb_plan_pairs_free(struct gb_plan_pairs * p);
bool gb_plan_pairs_insert(struct gb_plan_pairs * p, struct gb_plan_pair x); // false: no memory
void gb_plan_pairs_remove(struct gb_plan_pairs * p, struct gb_plan_pair x); // x must be in the set
// The first pair that is not less than x, and the pair before it, or NULL. Valid until the next change.
const struct gb_plan_pair * gb_plan_pairs_from(const struct gb_plan_pairs * p, struct gb_plan_pair x,
    const struct gb_plan_pair ** before);

// Placed buffers, by time and offset (plan_index.c). Finds gaps. Each search adds its cost to *steps.
struct gb_plan_index;
struct gb_plan_index * gb_plan_index_new(const struct gb_plan_part * part); // empty; NULL: no memory
void gb_plan_index_free(struct gb_plan_index * index);
void gb_plan_index_reset(struct gb_plan_index * index); // removes all buffers
// Adds a buffer with the lifetime of one of the part's. False: no memory.
bool gb_plan_index_add(struct gb_plan_index * index, const struct gb_plan_buffer * b, size_t offset);
// The offset of the lowest, or smallest, gap for b. If b fits into no gap, the offset above all
// neighbours. chunk: as in the part.
size_t gb_plan_index_lowest(struct gb_plan_index * index, const struct gb_plan_buffer * b, size_t chunk,
    uint64_t * steps);
size_t gb_plan_index_smallest(const struct gb_plan_index * index, const struct gb_plan_buffer * b, size_t chunk,
    uint64_t * steps);
// The offset of some gap, in a bounded number of steps: 64 probes from the end of the last such
// search for this time, then the offset above all neighbours. False: no memory.
bool gb_plan_index_hinted(struct gb_plan_index * index, const struct gb_plan_buffer * b, size_t chunk, size_t * offset,
    uint64_t * steps);
// The first offset from `at` on where `size` bytes lie within one chunk.
size_t gb_plan_within_chunk(size_t at, size_t size, size_t chunk);

// ---------------------------------------------------------------------------------------------------------- heuristics

// Each makes a plan of the part and sets *peak. If *peak is SIZE_MAX, the budget ended it and there
// is no plan. Budget NULL: no limit. Statuses: SUCCESS, ALLOC_FAILED, or ABORTED if the thread's
// poll asked to stop.
enum ggml_status gb_plan_in_order(struct gb_plan_part * part, size_t * peak); // into part->trial
enum ggml_status gb_plan_first_fit(struct gb_plan_part * part, enum gb_plan_key key, bool smallest_gap,
    struct gb_plan_budget * budget, size_t * peak); // into part->trial
enum ggml_status gb_plan_skyline(struct gb_plan_part * part, enum gb_plan_key key, struct gb_plan_budget * budget,
    size_t * peak); // into part->trial

// First fit in any number of orders, with one set of containers. Places the n buffers of `order`.
struct gb_plan_placer;
struct gb_plan_placer * gb_plan_placer_new(const struct gb_plan_part * part); // NULL: no memory
void gb_plan_placer_free(struct gb_plan_placer * placer);
enum ggml_status gb_plan_place(struct gb_plan_placer * placer, const uint32_t * order, uint32_t n, bool smallest_gap,
    struct gb_plan_budget * budget, size_t * offsets, size_t * peak);
// Always gives a plan unless the poll aborts it. When the budget is used up, the remaining buffers
// are placed by hints.
enum ggml_status gb_plan_place_all(struct gb_plan_placer * placer, const uint32_t * order,
    struct gb_plan_budget * budget, size_t * offsets, size_t * peak);

// First fit in several orders, down to the goal (plan_portfolio.c). Keeps the best plan.
enum gb_plan_orders { GB_PLAN_ALL_ORDERS, GB_PLAN_BEST_ORDERS, GB_PLAN_SIZE_ORDER };
enum ggml_status gb_plan_try_orders(struct gb_plan_part * part, size_t goal, enum gb_plan_orders which, int n_threads,
    struct gb_plan_budget * budget);

// Plans all parts down to the goal (plan_parts.c). costs: plan_search.h.
struct gb_plan_costs;
enum ggml_status gb_plan_parts(struct gb_plan_problem * p, size_t goal, struct gb_plan_costs * costs,
    struct gb_plan_result * result);

// Bridges are long buffers without which the remaining buffers form several groups (plan_groups.c):
// all buffers alive throughout the part, or these and up to 16 that are alive for at least an
// eighth of its sections.
enum gb_plan_bridges { GB_PLAN_THROUGHOUT, GB_PLAN_LONG };
bool gb_plan_has_groups(const struct gb_plan_part * part, enum gb_plan_bridges by);
// Plans each group alone, above the bridges. Keeps a smaller plan and raises the part's bound.
enum ggml_status gb_plan_by_groups(struct gb_plan_part * part, enum gb_plan_bridges by, size_t goal, size_t unit,
    struct gb_plan_costs * costs);

#endif // GB_PLAN_IMPL_H
