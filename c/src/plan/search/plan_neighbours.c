// plan_neighbours.c - finds the placed neighbours of a buffer, sorted by offset and by end.
//
// Windows of several lengths cover the time. At a level with length L, windows of 2 L sections
// begin at all multiples of L, so a lifetime of at most L sections is within one window. L doubles
// from level to level, from about the average lifetime, or more where buffers are few, to the
// longest. A window lists the placed buffers alive in it twice: sorted by offset and by end. So one
// window has all neighbours of a buffer, sorted, with few other buffers.
#include "plan/search/plan_methods.h"

#include <string.h>

#include "base/mem.h"

#define BUFFERS_PER_WINDOW 32 // about as many or more begin, on average, in half a window of the first level
#define MAX_LEVELS 33
#define PUT_STEPS 20 // to enter a buffer into one window or remove it

struct window {
    struct gb_plan_pairs begins, ends; // pairs (offset, buffer) and (end, buffer)
};

struct level {
    unsigned shift; // L is 1 << shift
    uint32_t n; // number of windows
    struct window * windows; // borrowed
};

struct lifetime {
    uint32_t first, last;
};

struct gb_plan_neighbours {
    const struct gb_plan_part * part; // borrowed
    size_t * offsets; // by buffer; owned, as all arrays here
    struct lifetime * lifetimes; // by buffer
    struct window * windows; // of all levels
    size_t n_windows;
    struct level levels[MAX_LEVELS];
    unsigned n_levels;
    struct gb_plan_neighbour_list found; // result of the last find
    struct gb_plan_keyed * sorted; // scratch; 2 n
};

void gb_plan_neighbours_free(struct gb_plan_neighbours * x) {
    if (x) {
        for (size_t k = 0; x->windows && k < x->n_windows; k++) {
            gb_plan_pairs_free(&x->windows[k].begins);
            gb_plan_pairs_free(&x->windows[k].ends);
        }
        gb_free(x->windows);
        gb_free(x->offsets);
        gb_free(x->lifetimes);
        gb_free(x->found.by_offset);
        gb_free(x->found.by_end);
        gb_free(x->sorted);
        gb_free(x);
    }
}

// Chooses the levels and counts their windows.
static void choose_levels(struct gb_plan_neighbours * x) {
    uint64_t widths = 0, longest = 1;
    for (uint32_t b = 0; b < x->part->n; b++) {
        const uint64_t width = x->lifetimes[b].last - x->lifetimes[b].first;
        widths += width;
        longest = GB_MAX(longest, width);
    }
    const uint64_t least =
        GB_MAX(widths / x->part->n, (uint64_t) x->part->n_sections * BUFFERS_PER_WINDOW / x->part->n);
    unsigned shift = 0;
    while (shift < 31 && (uint64_t) 1 << (shift + 1) <= least) {
        shift++;
    }
    for (bool enough = false; !enough; shift++) {
        const uint32_t n = ((x->part->n_sections - 1) >> shift) + 1;
        x->levels[x->n_levels++] = (struct level){ shift, n, NULL };
        x->n_windows += n;
        enough = (uint64_t) 1 << shift >= longest;
    }
}

struct gb_plan_neighbours * gb_plan_neighbours_new(const struct gb_plan_part * part) {
    struct gb_plan_neighbours * x = GB_NEW(struct gb_plan_neighbours);
    if (x == NULL) {
        return NULL;
    }
    const size_t n = part->n;
    x->part = part;
    x->offsets = gb_calloc(n, sizeof(*x->offsets));
    x->lifetimes = gb_calloc(n, sizeof(*x->lifetimes));
    x->found.by_offset = gb_calloc(n + 1, sizeof(*x->found.by_offset));
    x->found.by_end = gb_calloc(n + 1, sizeof(*x->found.by_end));
    x->sorted = gb_calloc(2 * n, sizeof(*x->sorted));
    if (!x->offsets || !x->lifetimes || !x->found.by_offset || !x->found.by_end || !x->sorted) {
        gb_plan_neighbours_free(x);
        return NULL;
    }
    for (uint32_t b = 0; b < n; b++) {
        x->offsets[b] = GB_PLAN_NOT_PLACED;
        x->lifetimes[b] = (struct lifetime){ part->buffers[b].first, part->buffers[b].last };
    }
    choose_levels(x);
    x->windows = gb_calloc(x->n_windows, sizeof(*x->windows));
    if (x->windows == NULL) {
        gb_plan_neighbours_free(x);
        return NULL;
    }
    struct window * next = x->windows;
    for (unsigned k = 0; k < x->n_levels; k++) {
        x->levels[k].windows = next;
        next += x->levels[k].n;
    }
    return x;
}

const size_t * gb_plan_neighbours_offsets(const struct gb_plan_neighbours * x) { return x->offsets; }

static size_t end_of(const struct gb_plan_neighbours * x, uint32_t b) {
    return x->offsets[b] + x->part->buffers[b].size;
}

// The windows of a level in which b is alive: [*from, result).
static uint32_t windows_of(const struct level * level, struct lifetime b, uint32_t * from) {
    const uint32_t at = b.first >> level->shift;
    *from = at > 0 ? at - 1 : 0;
    return ((b.last - 1) >> level->shift) + 1;
}

static uint64_t count_windows(const struct gb_plan_neighbours * x, uint32_t b) {
    uint64_t n = 0;
    for (unsigned k = 0; k < x->n_levels; k++) {
        uint32_t from;
        const uint32_t to = windows_of(&x->levels[k], x->lifetimes[b], &from);
        n += to - from;
    }
    return n;
}

uint64_t gb_plan_neighbours_cost(const struct gb_plan_neighbours * x) {
    uint64_t n = 0;
    for (uint32_t b = 0; b < x->part->n; b++) {
        n += count_windows(x, b);
    }
    return n * 4 + (uint64_t) x->part->n * 20;
}

// Enters b into its windows, by offset or by end.
static bool insert(struct gb_plan_neighbours * x, uint32_t b, bool by_end) {
    const struct gb_plan_pair one = { by_end ? end_of(x, b) : x->offsets[b], b };
    for (unsigned k = 0; k < x->n_levels; k++) {
        uint32_t from;
        const uint32_t to = windows_of(&x->levels[k], x->lifetimes[b], &from);
        for (uint32_t w = from; w < to; w++) {
            struct window * const window = &x->levels[k].windows[w];
            if (!gb_plan_pairs_insert(by_end ? &window->ends : &window->begins, one)) {
                return false;
            }
        }
    }
    return true;
}

bool gb_plan_neighbours_place(struct gb_plan_neighbours * x, uint32_t b, size_t offset) {
    x->offsets[b] = offset;
    return insert(x, b, false) && insert(x, b, true);
}

void gb_plan_neighbours_remove(struct gb_plan_neighbours * x, uint32_t b) {
    const struct gb_plan_pair begin = { x->offsets[b], b }, end = { end_of(x, b), b };
    for (unsigned k = 0; k < x->n_levels; k++) {
        uint32_t from;
        const uint32_t to = windows_of(&x->levels[k], x->lifetimes[b], &from);
        for (uint32_t w = from; w < to; w++) {
            gb_plan_pairs_remove(&x->levels[k].windows[w].begins, begin);
            gb_plan_pairs_remove(&x->levels[k].windows[w].ends, end);
        }
    }
    x->offsets[b] = GB_PLAN_NOT_PLACED;
}

// Places all buffers in the order by offset or by end, so that each insertion is at the end.
static bool put_sorted(struct gb_plan_neighbours * x, const size_t * offsets, bool by_end) {
    uint32_t n = 0;
    for (uint32_t b = 0; b < x->part->n; b++) {
        if (offsets[b] != GB_PLAN_NOT_PLACED) {
            x->offsets[b] = offsets[b];
            x->sorted[n++] = (struct gb_plan_keyed){ by_end ? end_of(x, b) : offsets[b], b };
        }
    }
    gb_plan_sort(x->sorted, x->sorted + n, n);
    for (uint32_t k = 0; k < n; k++) {
        if (!insert(x, x->sorted[k].buffer, by_end)) {
            return false;
        }
    }
    return true;
}

bool gb_plan_neighbours_set(struct gb_plan_neighbours * x, const size_t * offsets) {
    uint32_t n_placed = 0;
    for (uint32_t b = 0; b < x->part->n; b++) {
        if (x->offsets[b] != GB_PLAN_NOT_PLACED && x->offsets[b] != offsets[b]) {
            gb_plan_neighbours_remove(x, b);
        }
        n_placed += x->offsets[b] != GB_PLAN_NOT_PLACED;
    }
    if (n_placed == 0) {
        return put_sorted(x, offsets, false) && put_sorted(x, offsets, true);
    }
    for (uint32_t b = 0; b < x->part->n; b++) {
        if (offsets[b] != x->offsets[b] && !gb_plan_neighbours_place(x, b, offsets[b])) {
            return false;
        }
    }
    return true;
}

// Copies the pairs of buffers alive with b.
static uint32_t filter(const struct gb_plan_neighbours * x, const struct gb_plan_pairs * all, struct lifetime b,
    struct gb_plan_pair * found, uint64_t * steps) {
    const struct lifetime * const lifetimes = x->lifetimes;
    uint32_t n = 0;
    for (size_t r = 0; r < all->runs.n; r++) {
        const struct gb_plan_pairs_run run = all->runs.data[r];
        for (uint32_t k = 0; k < run.n; k++) {
            const struct lifetime one = lifetimes[run.pairs[k].b];
            found[n] = run.pairs[k];
            n += (uint32_t) ((one.first < b.last) & (one.last > b.first));
        }
        *steps += run.n;
    }
    return n;
}

const struct gb_plan_neighbour_list * gb_plan_neighbours_find(struct gb_plan_neighbours * x, uint32_t b,
    uint64_t * steps) {
    const struct lifetime lifetime = x->lifetimes[b];
    unsigned k = 0;
    while (((lifetime.last - lifetime.first - 1) >> x->levels[k].shift) > 0) {
        k++;
    }
    const struct window * const window = &x->levels[k].windows[lifetime.first >> x->levels[k].shift];
    *steps = PUT_STEPS * count_windows(x, b);
    x->found.n = filter(x, &window->begins, lifetime, x->found.by_offset, steps);
    (void) filter(x, &window->ends, lifetime, x->found.by_end, steps);
    return &x->found;
}
