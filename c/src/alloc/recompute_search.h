// recompute_search.h - the state of the search of recompute.h, for its files:
//
//   recompute.c            the public functions; limits, rounds and choices
//   recompute_simulate.c   finds a sequence within a limit
//   recompute_remove.c     removes repetitions that are not needed
//   recompute_sequence.c   counts the peak and the work of a sequence
//
// Each file uses only files below it. A step is the unit of work: a nanosecond or two. Budgets count
// steps, so equal inputs give equal results.
#ifndef GB_ALLOC_RECOMPUTE_SEARCH_H
#define GB_ALLOC_RECOMPUTE_SEARCH_H

#include "alloc/recompute.h"
#include "base/hash.h"
#include "base/vec.h"

// A sequence and what is known about it.
struct gb_recompute_sequence {
    GB_VEC(int) nodes; // owned
    size_t peak;
    double work;
};

struct gb_recompute_search {
    const struct gb_recompute_input * in;
    uint64_t steps, random;
    // what a round varies
    size_t limit;
    double exponent, noise; // of the price of a storage to drop
    double lazy;  // share of the nodes that run right before their first reader
    double eager; // share of the nodes before which a storage is computed again early
    int first_read; // the source to compute first; 0: the most expensive one
    int repeats; // the most nodes of a sequence, relative to those of the given order
    bool keeps_waiting; // what waiting nodes read is dropped last
    bool keeps_dead; // storages without a next use compete, too: others may be computed from them
    // the simulation; all owned, by storage
    bool * resident;
    bool * held; // the node that runs reads it
    int * waiting; // nodes on the stack that read it
    int * next; // the node for which it is needed next
    unsigned * seen;
    // owned, by node
    bool * expires; // some storage cannot be computed again after it
    int * tries; // its sources that ran again while it waits on the stack
    unsigned stamp;
    size_t live;
    GB_VEC(int) stack; // nodes to run; each waits for those above it
    GB_VEC(int) todo;
    // the count of a sequence; a content is a position, or the length of the sequence plus a storage
    GB_VEC(int) from; // per position and read: the content
    GB_VEC(int) last; // per content: the last position that reads it
    int * now; // owned; by storage: its content
    GB_VEC(bool) skip; // per position: removed, or without readers
    GB_VEC(size_t) level; // per position: bytes alive while its node runs
};

// SplitMix64, with 53 bits: 0 <= x < 1.
static inline double gb_recompute_random(struct gb_recompute_search * s) {
    const uint64_t bits = gb_hash_u64(s->random);
    s->random += 0x9e3779b97f4a7c15u;
    return (double) (bits >> 11) / 9007199254740992.0;
}

// Runs the nodes in order within the limit of the round. False: the limit cannot be met, memory ran
// out, or the poll asked to stop. The caller checks the thread's status.
bool gb_recompute_simulate(struct gb_recompute_search * s, struct gb_recompute_sequence * q);

void gb_recompute_free_sequence(struct gb_recompute_sequence * q);
bool gb_recompute_copy(struct gb_recompute_sequence * to, const struct gb_recompute_sequence * from);
// Counts the peak and the work of the sequence without the positions in `skip`, which must have its
// length. Adds positions without readers to `skip`. The peak is SIZE_MAX if a node would read a
// storage before its maker. False: memory ran out.
bool gb_recompute_count(struct gb_recompute_search * s, struct gb_recompute_sequence * q);
bool gb_recompute_count_all(struct gb_recompute_search * s, struct gb_recompute_sequence * q); // skips none at first
// Drops the positions in `skip` from the sequence.
void gb_recompute_compact(const struct gb_recompute_search * s, struct gb_recompute_sequence * q);

// Removes repetitions as long as the peak is within the limit: the most expensive first. Their
// readers use the earlier content, which lives longer. False: memory ran out, or the poll asked to
// stop.
bool gb_recompute_remove(struct gb_recompute_search * s, struct gb_recompute_sequence * q, size_t limit);

#endif // GB_ALLOC_RECOMPUTE_SEARCH_H
