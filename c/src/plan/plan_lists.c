// plan_lists.c - the buffers that begin or end within a block of sections, sorted by offset.
#include "plan/plan_lists.h"

#include <string.h>

#include "base/mem.h"

#define NEAR 8 // entries tried before the binary search

bool gb_plan_lists_init(struct gb_plan_lists * l, uint32_t * capacity, size_t n_blocks, size_t total) {
    l->n = capacity;
    l->n_blocks = n_blocks;
    l->begin = gb_calloc(n_blocks, sizeof(*l->begin));
    l->entries = gb_calloc(total + 1, sizeof(*l->entries));
    l->tops = gb_calloc(total + 1, sizeof(*l->tops));
    if (!l->begin || !l->entries || !l->tops) {
        return false;
    }
    for (size_t k = 1; k < n_blocks; k++) {
        l->begin[k] = l->begin[k - 1] + capacity[k - 1];
    }
    gb_plan_lists_reset(l);
    return true;
}

void gb_plan_lists_free(struct gb_plan_lists * l) {
    gb_free(l->entries);
    gb_free(l->tops);
    gb_free(l->begin);
    gb_free(l->n);
}

void gb_plan_lists_reset(struct gb_plan_lists * l) {
    if (l->n_blocks > 0) {
        memset(l->n, 0, l->n_blocks * sizeof(*l->n));
    }
}

// The number of entries that begin at or below the offset.
static uint32_t count_below(const struct gb_plan_entry * list, uint32_t n, size_t offset) {
    uint32_t low = 0;
    while (n > 0) {
        const uint32_t half = n / 2;
        if (list[low + half].at.start <= offset) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return low;
}

void gb_plan_lists_enter(struct gb_plan_lists * l, size_t block, const struct gb_plan_buffer * b, size_t offset) {
    struct gb_plan_entry * const list = l->entries + l->begin[block];
    size_t * const tops = l->tops + l->begin[block];
    const size_t end = offset + b->size;
    const uint32_t n = l->n[block]++;
    const uint32_t at = count_below(list, n, offset);
    memmove(list + at + 1, list + at, (n - at) * sizeof(*list));
    memmove(tops + at + 1, tops + at, (n - at) * sizeof(*tops));
    list[at] = (struct gb_plan_entry){ { offset, end }, b->first, b->last };
    tops[at] = at > 0 ? GB_MAX(tops[at - 1], end) : end;
    for (uint32_t k = at + 1; k <= n && tops[k] < end; k++) {
        tops[k] = end;
    }
}

uint64_t gb_plan_list_seek(const struct gb_plan_lists * l, struct gb_plan_cursor * c, const struct gb_plan_buffer * b,
    size_t at) {
    const struct gb_plan_entry * const from = (const struct gb_plan_entry *) c->at;
    const size_t * tops = l->tops + (from - l->entries);
    size_t low = 0, n = (size_t) ((const struct gb_plan_entry *) c->end - from);
    if (n > NEAR && tops[NEAR - 1] > at) {
        n = NEAR;
    }
    while (n > 1) {
        const size_t half = n / 2;
        low += half & (0 - (size_t) (tops[low + half - 1] <= at)); // no branch
        n -= half;
    }
    c->at = &from[low].at;
    return gb_plan_list_step(c, b, at);
}
