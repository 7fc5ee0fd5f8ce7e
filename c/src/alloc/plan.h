// plan.h - static memory planning, pure: lifetimes and sizes in, offsets out. Knows nothing of tensors.
//
// Invariant of a result: two items whose spans [lower, upper) overlap do not overlap in [offset, offset + size), and
// every offset is a multiple of the alignment. gb_plan_check, which shares no code with the planner, judges that.
#ifndef GB_ALLOC_PLAN_H
#define GB_ALLOC_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ggml.h"

struct gb_plan_item {
    int64_t lower, upper; // live from lower up to, not including, upper
    size_t  size;         // bytes; 0 is allowed
    size_t  offset;       // result
};

struct gb_plan_result {
    size_t peak;        // max of offset + size (size rounded up to the alignment)
    size_t lower_bound; // max over time of the sum of live sizes: no plan can be smaller
};

// Best of in-order best fit and first fit by size: never worse than either. alignment a power of two. Beyond 2^24 pairs
// of items alive together only the first is tried. On failure no offset is written.
enum ggml_status gb_plan_offsets(struct gb_plan_item * items, size_t n, size_t alignment,
                                 struct gb_plan_result * result);

// NULL when the plan is valid, else what is wrong (static string) and the two items concerned.
const char * gb_plan_check(const struct gb_plan_item * items, size_t n, size_t alignment, size_t * item_a,
                           size_t * item_b);

#endif // GB_ALLOC_PLAN_H
