// plan_skyline.c - the skyline heuristic: plans from the bottom up.
//
// The skyline is, by section, the lowest offset above all placed buffers: a linked list of plateaus
// of different height. The lowest valley gets the first buffer, by rank, whose lifetime is between
// the valley's walls. If no buffer fits, the valley is filled up to its lower wall. Gaps below the
// skyline are never used, so a step only examines plateaus and unplaced buffers.
#include "plan/plan_impl.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/status.h"

#define NONE UINT32_MAX

struct plateau { // indexed by its first section
    size_t height;
    uint32_t before, next; // first sections of the neighbours; NONE at the ends
    uint32_t end; // one past its last section
};

struct skyline {
    struct plateau * plateaus; // owned
    struct gb_plan_ranked * order; // owned; by rank; the unplaced ones are a list through `next`
    // owned; next[0] is the first, next[k + 1] the one after order[k]; NONE at the end
    uint32_t * next;
};

// Splits the plateau at `start`, so that one of the same height begins at `section`.
static void split_at(struct skyline * sky, uint32_t start, uint32_t section) { // section inside the plateau
    struct plateau * left = &sky->plateaus[start];
    if (section <= start || section >= left->end) {
        return;
    }
    sky->plateaus[section] = (struct plateau){ left->height, start, left->next, left->end };
    if (left->next != NONE) {
        sky->plateaus[left->next].before = section;
    }
    left->next = section;
    left->end = section;
}

// Joins the plateau with the next one if both have the same height.
static void join(struct skyline * sky, uint32_t start) {
    struct plateau * left = &sky->plateaus[start];
    if (left->next == NONE || sky->plateaus[left->next].height != left->height) {
        return;
    }
    const struct plateau right = sky->plateaus[left->next];
    left->end = right.end;
    left->next = right.next;
    if (right.next != NONE) {
        sky->plateaus[right.next].before = start;
    }
}

static void raise(struct skyline * sky, uint32_t start, size_t height) {
    const uint32_t before = sky->plateaus[start].before;
    sky->plateaus[start].height = height;
    join(sky, start);
    if (before != NONE) {
        join(sky, before);
    }
}

// The first section of the lowest plateau, ties leftmost. Counts the plateaus that it passes.
static uint32_t lowest(const struct skyline * sky, uint64_t * steps) {
    uint32_t best = 0;
    for (uint32_t s = 0; s != NONE; s = sky->plateaus[s].next, ++*steps) {
        if (sky->plateaus[s].height < sky->plateaus[best].height) {
            best = s;
        }
    }
    return best;
}

// Places the first buffer, by rank, whose lifetime is between the walls of the valley. False: no
// buffer fits.
static bool fill(struct skyline * sky, struct gb_plan_part * part, uint32_t valley, size_t * peak, uint64_t * steps) {
    const struct plateau v = sky->plateaus[valley];
    uint32_t * link = &sky->next[0];
    while (*link != NONE && (sky->order[*link].first < valley || sky->order[*link].last > v.end)) {
        link = &sky->next[*link + 1];
        ++*steps;
    }
    if (*link == NONE) {
        return false;
    }
    const struct gb_plan_ranked * r = &sky->order[*link];
    *link = sky->next[*link + 1];
    part->trial[r->buffer] = v.height;
    *peak = GB_MAX(*peak, v.height + r->size);
    split_at(sky, valley, r->last);
    split_at(sky, valley, r->first);
    raise(sky, r->first, v.height + r->size);
    return true;
}

// Raises the valley to its lower wall, which it then joins.
static void fill_up(struct skyline * sky, uint32_t valley) {
    const struct plateau * v = &sky->plateaus[valley];
    size_t wall = SIZE_MAX;
    wall = v->before != NONE ? GB_MIN(wall, sky->plateaus[v->before].height) : wall;
    wall = v->next != NONE ? GB_MIN(wall, sky->plateaus[v->next].height) : wall;
    raise(sky, valley, wall);
}

// Every step places a buffer or removes a plateau, so the loop ends.
static void run(struct skyline * sky, struct gb_plan_part * part, struct gb_plan_budget * budget, size_t * peak) {
    sky->plateaus[0] = (struct plateau){ 0, NONE, NONE, part->n_sections };
    *peak = 0;
    for (uint32_t k = 0; k <= part->n; k++) {
        sky->next[k] = k < part->n ? k : NONE;
    }
    while (sky->next[0] != NONE) {
        uint64_t steps = 0;
        const uint32_t valley = lowest(sky, &steps);
        if (!fill(sky, part, valley, peak, &steps)) {
            fill_up(sky, valley); // it has a wall, because without walls every buffer fits
        }
        if (!gb_plan_spend(budget, steps)) {
            *peak = SIZE_MAX;
            return;
        }
    }
}

enum ggml_status gb_plan_skyline(struct gb_plan_part * part, enum gb_plan_key key, struct gb_plan_budget * budget,
    size_t * peak) {
    struct skyline sky = { 0 };
    sky.plateaus = gb_calloc(part->n_sections, sizeof(*sky.plateaus));
    sky.order = gb_calloc(part->n, sizeof(*sky.order));
    sky.next = gb_calloc((size_t) part->n + 1, sizeof(*sky.next));
    const bool ok = sky.plateaus && sky.order && sky.next;
    if (ok) {
        for (uint32_t i = 0; i < part->n; i++) {
            const size_t max_load = gb_plan_needs_max_load(key) ? gb_plan_max_load(&part->buffers[i], part->load) : 0;
            sky.order[i] = gb_plan_rank(part, i, key, max_load);
        }
        qsort(sky.order, part->n, sizeof(*sky.order), gb_plan_by_rank);
        run(&sky, part, budget, peak);
    }
    gb_free(sky.plateaus);
    gb_free(sky.order);
    gb_free(sky.next);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}
