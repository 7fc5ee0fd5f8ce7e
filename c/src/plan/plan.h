// plan.h - static memory planning, pure: lifetimes and sizes in, offsets out. Knows nothing of tensors.
//
// Invariant of a result: two items whose spans [lower, upper) overlap do not overlap in [offset, offset + size), and
// every offset is a multiple of the alignment. gb_plan_validate, which shares no code with the planner, judges that.
//
// The most bytes alive at once bound every plan from below; a plan that needs no more is optimal, and most are.
#ifndef GB_PLAN_H
#define GB_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ggml.h"

struct gb_plan_item {
    int64_t lower, upper; // live from lower up to, not including, upper
    size_t size;          // bytes; 0 is allowed
    size_t offset;        // result
};

// How much searching a plan is worth. Work is counted in steps, so that the same items give the same plan on any
// machine; the clock only ends what takes far longer than expected.
struct gb_plan_effort {
    size_t capacity;  // a plan that needs no more than this is good enough; 0: as small as can be
    uint64_t steps;   // of search beyond the heuristics; 0: none
    int64_t limit_ns; // of time for search; 0: none
    int n_threads;    // that try several orders at once; 0 and 1: the caller's alone. The plan is the same
};

struct gb_plan_result {
    size_t peak;        // max of offset + size (size rounded up to the alignment)
    size_t lower_bound; // max over time of the sum of live sizes: no plan can be smaller
    size_t bound;       // no plan can be smaller either: the lower bound, or more when the search has proved more
    size_t best_fit;    // the peak that in-order best fit gives, for comparison; never less than peak
    bool proved;        // no plan has a smaller peak
    bool unfinished;    // neither proved nor good enough, and more effort would probably give a smaller peak
};

// Never worse than in-order best fit or, up to 100,000 items, first fit by size where that takes no more than 10,000
// steps an item (plan_fit.c). Searches as much as a plan made while a program runs may. alignment a power of two. On
// failure no offset is written.
enum ggml_status gb_plan_offsets(struct gb_plan_item * items, size_t n, size_t alignment,
    struct gb_plan_result * result);
enum ggml_status gb_plan_search(struct gb_plan_item * items, size_t n, size_t alignment,
    const struct gb_plan_effort * effort, struct gb_plan_result * result);

// gb_plan_effort.limit_ns of gb_plan_offsets. Tests set it to 0: then a plan, and the allocations made to find it,
// depend on the items alone.
extern int64_t gb_plan_limit_ns;

// The same for memory that comes in chunks: item i lies wholly in chunk chunk_of[i], at items[i].offset of it. `chunk`
// is the largest size of one; rounded down to the alignment, and no item may be larger. The sum of what the chunks need
// is what counts.
struct gb_plan_chunks {
    struct gb_plan_result one; // if there were no limit
    size_t total;              // bytes of all chunks: sum of the largest offset + size in each; not below one.bound
    size_t bound;              // no plan needs fewer bytes: one.bound
    size_t n;                  // chunks used
    size_t n_bound;            // no plan has fewer: loads over chunk size, and items larger than half a chunk
    bool proved;               // total == bound
};
enum ggml_status gb_plan_in_chunks(struct gb_plan_item * items, size_t n, size_t alignment, size_t chunk,
    int * chunk_of, struct gb_plan_chunks * result);

// NULL when the plan is valid, else what is wrong (static string) and the two items concerned.
const char * gb_plan_validate(const struct gb_plan_item * items, size_t n, size_t alignment, size_t * item_a,
    size_t * item_b);
const char * gb_plan_validate_chunks(const struct gb_plan_item * items, size_t n, size_t alignment, size_t chunk,
    const int * chunk_of, size_t * item_a, size_t * item_b);

#endif // GB_PLAN_H
