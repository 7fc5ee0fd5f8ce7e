// types.h - the types that several folders of the scheduler share.
#ifndef GB_SCHED_TYPES_H
#define GB_SCHED_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// How nodes are assigned to backends. COST follows `label` of the graph, and WEIGHTS if there are no labels.
enum gb_assign_policy { GB_ASSIGN_WEIGHTS = 0, GB_ASSIGN_SOURCES = 1, GB_ASSIGN_COST = 2 };

// The rule that assigned a tensor; `by` is the tensor that the rule names.
enum gb_cause {
    GB_CAUSE_NONE = 0,
    GB_CAUSE_USER,     // the user assigned it
    GB_CAUSE_BUFFER,   // its memory is on the backend
    GB_CAUSE_WEIGHT,   // its weight `by` is on the backend
    GB_CAUSE_SOURCE,   // its best source `by` is on the backend (policy "sources")
    GB_CAUSE_UP,       // the next assigned node `by` runs there
    GB_CAUSE_DOWN,     // the previous assigned node `by` runs there
    GB_CAUSE_PRIORITY, // the first backend by priority that supports it
    GB_CAUSE_ALIAS,    // its result is in the memory of `by`
    GB_CAUSE_VIEW,     // a view of `by`
    GB_CAUSE_READER,   // `by` reads it first
    GB_CAUSE_UNUSED,   // no node reads it: the fallback
    GB_CAUSE_COST,     // part of the cheapest placement
};

// The place of a root or copy in an arena or a leaf store.
struct gb_item {
    int backend;
    int chunk;
    size_t offset, size;  // bytes
    bool valid;           // the plan places it
    bool leaf;            // in a leaf store; else in an arena
    int64_t lower, upper; // in an arena: its lifetime, as positions in the program (layout.c), half-open
    // In an arena: its alias group, named by the storage id of the first member. Members use one
    // place one after the other.
    int64_t group;
    // In an arena: bytes that a plan of the same structure may use at this place (template.c).
    size_t capacity;
};

// What a plan needs of one backend, in bytes.
struct gb_backend_need {
    size_t replicas; // copies of weights; other plans may share them
    size_t peak;     // of the arena, all chunks
    size_t leafs;    // leafs that this plan places
    size_t no_reuse; // of results and copies, if none shared memory
    size_t load;     // maximum of the bytes alive at one time
    size_t bound;    // lower bound of the arena's size
    size_t work;     // scratch memory of the backend itself
    bool proved;     // no arena layout has a peak below `peak`
};

#endif // GB_SCHED_TYPES_H
