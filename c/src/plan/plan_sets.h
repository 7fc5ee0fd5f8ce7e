// plan_sets.h - sets of offsets, as unions of intervals, with limits of the gaps between them.
//
// Invariant: the intervals of a set are sorted and do not touch each other.
//
// Intervals are only added, so gaps only shrink. A buffer that does not fit into a gap never will.
// So a set may store a limit for the gap below each interval. When a gap is split, both halves
// inherit its limit. All memory is in an arena that the sets share.
#ifndef GB_PLAN_SETS_H
#define GB_PLAN_SETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gb_plan_interval {
    size_t start, end;
};

// No buffer of `size` bytes or more whose lifetime contains the sections [first, last) fits into the gap.
struct gb_plan_gap_limit {
    uint32_t first, last;
    size_t size;
};
#define GB_PLAN_NO_LIMIT ((struct gb_plan_gap_limit) { 0, UINT32_MAX, SIZE_MAX })

// A small set is one array of intervals. A large set is an array of runs, so that an insertion
// moves few intervals. The limits follow the array, after its capacity: limit k is for the gap
// below interval k.
#define GB_PLAN_SET_RUN ((uint32_t) 256)
struct gb_plan_run {
    struct gb_plan_interval * data;
    uint32_t n; // 1 .. GB_PLAN_SET_RUN
};
struct gb_plan_set {
    union {
        struct gb_plan_interval * flat;
        struct gb_plan_run * runs;
    };
    uint32_t n;
    uint32_t cap : 31; // capacity in intervals; above GB_PLAN_SET_RUN: of runs, plus GB_PLAN_SET_RUN
    uint32_t has_limits : 1;
};

// Memory of sets: blocks that are freed together. Arrays that a set has outgrown are reused.
#define GB_PLAN_CLASSES 28
struct gb_plan_arena {
    char * block; // the newest; begins with a pointer to the block before
    size_t used, size;
    void * freed[GB_PLAN_CLASSES]; // by log2 of the capacity; linked lists through the first bytes
};
void gb_plan_arena_reset(struct gb_plan_arena * a); // frees all arrays; keeps the newest block
void gb_plan_arena_free(struct gb_plan_arena * a);

// Adds an interval and joins it with intervals that it touches. NOTHING_NEW: the set has all of it
// already.
enum gb_plan_added { GB_PLAN_NOTHING_NEW, GB_PLAN_ADDED, GB_PLAN_FULL, GB_PLAN_SET_FAILED };
enum gb_plan_added gb_plan_set_add(struct gb_plan_arena * a, struct gb_plan_set * s, size_t start, size_t end);
// Gives the set limits, all GB_PLAN_NO_LIMIT. False: no memory.
bool gb_plan_set_add_limits(struct gb_plan_arena * a, struct gb_plan_set * s);

// A position in a set, or in a list of plan_lists.h.
struct gb_plan_cursor {
    const struct gb_plan_interval *at, *end;
    const struct gb_plan_run *next, *last; // the runs that follow
};
static inline struct gb_plan_cursor gb_plan_set_begin(const struct gb_plan_set * s) {
    if (s->cap > GB_PLAN_SET_RUN) {
        return (struct gb_plan_cursor) { s->runs->data, s->runs->data + s->runs->n, s->runs + 1, s->runs + s->n };
    }
    return (struct gb_plan_cursor) { s->flat, s->flat + s->n, NULL, NULL };
}
// The limit of the gap below the interval at the cursor, of a set that has limits.
static inline struct gb_plan_gap_limit * gb_plan_gap_limit_of(const struct gb_plan_set * s,
    const struct gb_plan_cursor * c) {
    const bool runs = s->cap > GB_PLAN_SET_RUN;
    struct gb_plan_interval * const data = runs ? c->next[-1].data : s->flat;
    return (struct gb_plan_gap_limit *) (data + (runs ? GB_PLAN_SET_RUN : s->cap)) + (c->at - data);
}

#endif // GB_PLAN_SETS_H
