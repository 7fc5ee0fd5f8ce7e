// plan_validator.c - says whether a plan is valid: what is alive together lies apart, and offsets are aligned.
//
// It shares no code with the planner, so that an error there cannot hide here. A sweep over time keeps the live items
// sorted by offset. As these are disjoint, a new one can only collide with its neighbours: n log n comparisons, where
// looking at all pairs would take n squared. The scheduler runs it over its own layouts when checking is on.
#include "alloc/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

// A span of an item begins or ends.
struct sweep_event {
    int64_t time;
    bool    starts;
    size_t  item;
};

static int by_time(const void * pa, const void * pb) {
    const struct sweep_event *a = pa, *b = pb;
    if (a->time != b->time) {
        return a->time < b->time ? -1 : 1;
    }
    if (a->starts != b->starts) {
        return a->starts ? 1 : -1; // ends come first: spans are half-open
    }
    return a->item < b->item ? -1 : a->item > b->item;
}

// Position of the first live item at or behind `offset`.
static size_t live_position(const struct gb_plan_item * items, const size_t * live, size_t n_live, size_t offset) {
    size_t low = 0, high = n_live;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (items[live[middle]].offset < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// The events in order of time; live: indices of the items alive now, by offset. NULL if no two collide.
static const char * validate_sweep(const struct gb_plan_item * items, const struct sweep_event * events,
    size_t n_events, size_t * live, size_t * item_a, size_t * item_b) {
    size_t n_live = 0;
    for (size_t e = 0; e < n_events; e++) {
        const struct gb_plan_item * item = &items[events[e].item];
        const size_t                at   = live_position(items, live, n_live, item->offset);
        if (!events[e].starts) {
            memmove(live + at, live + at + 1, (n_live - at - 1) * sizeof(*live));
            n_live--;
            continue;
        }
        const size_t before = at > 0 ? live[at - 1] : SIZE_MAX;
        const size_t behind = at < n_live ? live[at] : SIZE_MAX;
        size_t       other  = SIZE_MAX;
        if (before != SIZE_MAX && items[before].offset + items[before].size > item->offset) {
            other = before;
        } else if (behind != SIZE_MAX && items[behind].offset < item->offset + item->size) {
            other = behind;
        }
        if (other != SIZE_MAX) {
            *item_a = events[e].item;
            *item_b = other;
            return "two items alive at the same time overlap";
        }
        memmove(live + at + 1, live + at, (n_live - at) * sizeof(*live));
        live[at] = events[e].item;
        n_live++;
    }
    return NULL;
}

const char * gb_plan_validate(const struct gb_plan_item * items, size_t n, size_t alignment, size_t * item_a,
    size_t * item_b) {
    struct sweep_event * events   = gb_calloc(2 * n + 1, sizeof(*events));
    size_t *             live     = gb_calloc(n + 1, sizeof(*live));
    const char *         problem  = events && live ? NULL : "no memory to check the plan";
    size_t               n_events = 0;
    for (size_t i = 0; problem == NULL && i < n; i++) {
        *item_a = *item_b = i;
        if (items[i].offset % alignment != 0) {
            problem = "an offset is not aligned";
        } else if (items[i].offset + items[i].size < items[i].offset) {
            problem = "an item reaches past the address space";
        } else if (items[i].size > 0 && items[i].lower < items[i].upper) {
            events[n_events++] = (struct sweep_event){ items[i].lower, true, i };
            events[n_events++] = (struct sweep_event){ items[i].upper, false, i };
        }
    }
    if (problem == NULL) {
        qsort(events, n_events, sizeof(*events), by_time);
        problem = validate_sweep(items, events, n_events, live, item_a, item_b);
    }
    gb_free(events);
    gb_free(live);
    return problem;
}

// Chunks side by side in one space: items in different chunks cannot meet there, those in the same one meet as in the
// chunk.
const char * gb_plan_validate_chunks(const struct gb_plan_item * items, size_t n, size_t alignment, size_t chunk,
    const int * chunk_of, size_t * item_a, size_t * item_b) {
    struct gb_plan_item * flat    = gb_calloc(n + 1, sizeof(*flat));
    const char *          problem = flat ? NULL : "no memory to check the plan";
    for (size_t i = 0; problem == NULL && i < n; i++) {
        *item_a = *item_b = i;
        if (chunk_of[i] < 0 || (size_t) chunk_of[i] >= SIZE_MAX / chunk) {
            problem = "an item is in no chunk";
        } else if (items[i].offset > chunk || items[i].size > chunk - items[i].offset) {
            problem = "an item reaches past the end of its chunk";
        } else if (items[i].offset % alignment != 0) {
            problem = "an offset is not aligned";
        } else {
            flat[i] = items[i];
            flat[i].offset += (size_t) chunk_of[i] * chunk;
        }
    }
    problem = problem ? problem : gb_plan_validate(flat, n, 1, item_a, item_b);
    gb_free(flat);
    return problem;
}
