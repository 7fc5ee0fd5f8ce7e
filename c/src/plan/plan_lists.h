// plan_lists.h - for each block of sections, a list of the buffers that begin or end within it.
//
// Invariant: a list is sorted by offset, and tops[k] is the highest end of entries 0 to k. Entries
// may overlap, because not all are alive at the same time. A binary search over the tops skips
// entries that end below an offset. A cursor (gb_plan_cursor) of a list is at an entry alive with
// the buffer for which it was made, or at the end.
#ifndef GB_PLAN_LISTS_H
#define GB_PLAN_LISTS_H

#include "plan/plan_impl.h"
#include "plan/plan_sets.h"

struct gb_plan_entry {
    struct gb_plan_interval at; // first member: cursors point to it
    uint32_t first, last;
};
// All zero: no block has a list.
struct gb_plan_lists {
    struct gb_plan_entry * entries; // owned, as all arrays here; by block
    size_t * tops; // by entry
    uint32_t * begin; // by block: its first entry
    uint32_t * n; // by block: number of entries
    size_t n_blocks;
};

// capacity: by block; total: the sum. Takes ownership of `capacity`, also after false (no memory).
bool gb_plan_lists_init(struct gb_plan_lists * l, uint32_t * capacity, size_t n_blocks, size_t total);
void gb_plan_lists_free(struct gb_plan_lists * l);
void gb_plan_lists_reset(struct gb_plan_lists * l); // empties all lists
void gb_plan_lists_enter(struct gb_plan_lists * l, size_t block, const struct gb_plan_buffer * b, size_t offset);

// Moves the cursor to the next entry that is alive with b and ends above `at`. Linear. Returns the
// number of entries read.
static inline uint64_t gb_plan_list_step(struct gb_plan_cursor * c, const struct gb_plan_buffer * b, size_t at) {
    const struct gb_plan_entry * const from = (const struct gb_plan_entry *) c->at;
    const struct gb_plan_entry * const end = (const struct gb_plan_entry *) c->end;
    const struct gb_plan_entry * e = from;
    while (e < end && ((e->at.end <= at) | (e->first >= b->last) | (e->last <= b->first))) {
        e++;
    }
    c->at = &e->at;
    return (uint64_t) (e - from) + 1;
}
// The same with a binary search first, for an `at` that may be far away.
uint64_t gb_plan_list_seek(const struct gb_plan_lists * l, struct gb_plan_cursor * c, const struct gb_plan_buffer * b,
    size_t at);
// A cursor at the first entry alive with b.
static inline struct gb_plan_cursor gb_plan_list_begin(const struct gb_plan_lists * l, size_t block,
    const struct gb_plan_buffer * b, uint64_t * steps) {
    const struct gb_plan_entry * const list = l->entries + l->begin[block];
    struct gb_plan_cursor c = { &list->at, &list[l->n[block]].at, NULL, NULL };
    *steps += gb_plan_list_step(&c, b, 0);
    return c;
}

#endif // GB_PLAN_LISTS_H
