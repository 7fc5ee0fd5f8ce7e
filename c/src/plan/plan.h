// plan.h - static memory planning: from lifetimes and sizes to offsets. Knows nothing of tensors.
//
// In a valid plan, items that are alive at the same time do not overlap in [offset, offset + size),
// and every offset is a multiple of the alignment. gb_plan_validate checks that and shares no code
// with the planner.
//
// No plan can be smaller than the maximum of the bytes alive at one time. A plan of that size is
// optimal, and most plans are.
#ifndef GB_PLAN_H
#define GB_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ggml.h"

struct gb_plan_item {
    int64_t lower, upper; // alive in [lower, upper)
    size_t size; // bytes; 0 is allowed
    size_t offset; // result
};

// Limits for the cost of a plan. Steps count work, so equal items give equal plans on any machine,
// unless the clock ends the work.
struct gb_plan_effort {
    size_t capacity; // bytes; a plan of at most this size is good enough. 0: as small as possible
    uint64_t steps; // of search after the heuristics. 0: no search
    int64_t limit_ns; // processor time of the calling thread. 0: no limit
    int n_threads; // for several orders at the same time; 0 means 1. Changes no plan, unless the clock ends it
};
#define GB_PLAN_DEFAULT_STEPS ((uint64_t) 6000000) // of gb_plan_offsets
#define GB_PLAN_STEPS_PER_MS 500000 // of an ordinary processor, or somewhat fewer

struct gb_plan_result {
    size_t peak; // largest offset + size, sizes rounded up to the alignment
    size_t lower_bound; // most bytes alive at once
    size_t bound; // no plan has a smaller peak: the lower bound, or more if the search has proved more
    size_t best_fit; // peak of in-order best fit, for comparison; never less than peak
    bool proved; // peak == bound
    bool unfinished; // neither proved nor within the capacity, and more steps would probably help
};

// The result is never worse than in-order best fit. For at most 100,000 items it is never worse
// than first fit by size either, unless that takes more than 10,000 steps per item. gb_plan_offsets
// uses the effort of a plan that is made during a run. alignment: a power of two. A failure writes
// no offset.
enum ggml_status gb_plan_offsets(struct gb_plan_item * items, size_t n, size_t alignment,
    struct gb_plan_result * result);
enum ggml_status gb_plan_search(struct gb_plan_item * items, size_t n, size_t alignment,
    const struct gb_plan_effort * effort, struct gb_plan_result * result);

// Plans for memory in chunks: item i is in chunk chunk_of[i], at items[i].offset. chunk: the
// maximum size of a chunk, rounded down to the alignment. A larger item is a failure. The planner
// minimizes the sum of all chunks.
struct gb_plan_chunks {
    struct gb_plan_result one; // the plan without a limit
    size_t total; // bytes of all chunks, each as large as its items need
    size_t bound; // no plan needs fewer bytes; one.bound
    size_t n; // chunks used
    size_t n_bound; // no plan has fewer chunks
    bool proved; // total == bound
};
// effort: NULL is that of gb_plan_offsets. Only the plan without a limit uses it.
enum ggml_status gb_plan_in_chunks_with(struct gb_plan_item * items, size_t n, size_t alignment, size_t chunk,
    const struct gb_plan_effort * effort, int * chunk_of, struct gb_plan_chunks * result);
enum ggml_status gb_plan_in_chunks(struct gb_plan_item * items, size_t n, size_t alignment, size_t chunk,
    int * chunk_of, struct gb_plan_chunks * result);

// NULL if the plan is valid. Otherwise a static string with the problem, and the two items
// concerned.
const char * gb_plan_validate(const struct gb_plan_item * items, size_t n, size_t alignment, size_t * item_a,
    size_t * item_b);
const char * gb_plan_validate_chunks(const struct gb_plan_item * items, size_t n, size_t alignment, size_t chunk,
    const int * chunk_of, size_t * item_a, size_t * item_b);

#endif // GB_PLAN_H
