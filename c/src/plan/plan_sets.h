// plan_sets.h - unions of intervals of offsets, and what is known of the gaps between them.
//
// Invariant: the intervals of a set are sorted and do not touch each other. Intervals are only ever added, so a gap
// becomes smaller or goes away, and what does not fit into it never will: a set may carry a note for the gap below each
// interval, which the gaps keep that it is split into. All memory lies in an arena that belongs to the sets together.
#ifndef GB_PLAN_SETS_H
#define GB_PLAN_SETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gb_plan_interval {
    size_t start, end;
};

// Nothing of `size` bytes or more fits into the gap that is alive in the sections [first, last), and maybe in others.
struct gb_plan_gap_limit {
    uint32_t first, last;
    size_t size;
};
#define GB_PLAN_NO_LIMIT ((struct gb_plan_gap_limit) { 0, UINT32_MAX, SIZE_MAX })

// Few intervals are one array, many an array of runs, so that one more moves few. Where there are notes, they follow
// the array of intervals, whatever that has room for: note k is for the gap below interval k.
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
    uint32_t cap : 31; // > GB_PLAN_SET_RUN: of runs, so many more
    uint32_t has_limits : 1;
};

// Memory of sets: blocks that are freed together; what a set has outgrown serves others of that size.
#define GB_PLAN_CLASSES 28
struct gb_plan_arena {
    char * block; // the newest; begins with a pointer to the one before
    size_t used, size;
    void * freed[GB_PLAN_CLASSES]; // by log2 of the capacity; linked through their first bytes
};
void gb_plan_arena_reset(struct gb_plan_arena * a); // nothing is taken; keeps its newest block
void gb_plan_arena_free(struct gb_plan_arena * a);

// Joins what the interval touches. NOTHING_NEW: all of it is in the set already.
enum gb_plan_added { GB_PLAN_NOTHING_NEW, GB_PLAN_ADDED, GB_PLAN_FULL, GB_PLAN_SET_FAILED };
enum gb_plan_added gb_plan_set_add(struct gb_plan_arena * a, struct gb_plan_set * s, size_t start, size_t end);
// From now on the set has notes, none so far. False: no memory.
bool gb_plan_set_add_limits(struct gb_plan_arena * a, struct gb_plan_set * s);

// A place in a set: what ends at or below the offset reached lies behind it.
struct gb_plan_cursor {
    const struct gb_plan_interval *at, *end;
    const struct gb_plan_run *next, *last; // what follows
};
static inline struct gb_plan_cursor gb_plan_set_begin(const struct gb_plan_set * s) {
    if (s->cap > GB_PLAN_SET_RUN) {
        return (struct gb_plan_cursor) { s->runs->data, s->runs->data + s->runs->n, s->runs + 1, s->runs + s->n };
    }
    return (struct gb_plan_cursor) { s->flat, s->flat + s->n, NULL, NULL };
}
// The note of the interval at the cursor, of a set that has notes.
static inline struct gb_plan_gap_limit * gb_plan_gap_limit_of(const struct gb_plan_set * s,
    const struct gb_plan_cursor * c) {
    const bool runs = s->cap > GB_PLAN_SET_RUN;
    struct gb_plan_interval * const data = runs ? c->next[-1].data : s->flat;
    return (struct gb_plan_gap_limit *) (data + (runs ? GB_PLAN_SET_RUN : s->cap)) + (c->at - data);
}

#endif // GB_PLAN_SETS_H
