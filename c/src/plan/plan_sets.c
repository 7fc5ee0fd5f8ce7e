// plan_sets.c - sets of offsets, as unions of intervals.
//
// The array of a small set doubles when it is full. A set with more intervals than fit into a run
// becomes an array of runs. A full run is split in halves.
#include "plan/plan_sets.h"

#include <string.h>

#include "base/env.h"
#include "base/mem.h"

#define RUN GB_PLAN_SET_RUN
#define BLOCK_HEADER 16
// A limit is at most as large as an interval, or as two intervals with pointers of 32 bits.
#define LIMIT_CLASSES (sizeof(struct gb_plan_gap_limit) <= sizeof(struct gb_plan_interval) ? 1u : 2u)

// --------------------------------------------------------------------------------------------------------------- arena

static void * arena_take(struct gb_plan_arena * a, unsigned class) {
    if (a->freed[class]) {
        void * const one = a->freed[class];
        memcpy(&a->freed[class], one, sizeof(a->freed[class]));
        return one;
    }
    const size_t bytes = sizeof(struct gb_plan_interval) << class;
    if (a->used + bytes > a->size) {
        const size_t size =
            GB_MAX(GB_MIN(GB_MAX(2 * a->size, (size_t) 1 << 12), (size_t) 1 << 22), bytes + BLOCK_HEADER);
        char * const block = gb_malloc(size);
        if (block == NULL) {
            return NULL;
        }
        memcpy(block, &a->block, sizeof(a->block));
        a->block = block;
        a->size = size;
        a->used = BLOCK_HEADER;
    }
    void * const one = a->block + a->used;
    a->used += bytes;
    return one;
}

void gb_plan_arena_reset(struct gb_plan_arena * a) {
    for (char * older = NULL; a->block; older = NULL) {
        memcpy(&older, a->block, sizeof(older));
        if (older == NULL) {
            break;
        }
        char * before;
        memcpy(&before, older, sizeof(before));
        memcpy(a->block, &before, sizeof(before));
        gb_free(older);
    }
    memset(a->freed, 0, sizeof(a->freed));
    a->used = a->block ? BLOCK_HEADER : 0;
}

void gb_plan_arena_free(struct gb_plan_arena * a) {
    while (a->block) {
        char * const block = a->block;
        memcpy(&a->block, block, sizeof(a->block));
        gb_free(block);
    }
}

// The smallest power of two, by its exponent, that is at least n.
static unsigned class_of(uint32_t n) {
    unsigned class = 0;
    while ((uint32_t) 1 << class < n) {
        class++;
    }
    return class;
}

static void arena_give_back(struct gb_plan_arena * a, void * one, unsigned class) {
    memcpy(one, &a->freed[class], sizeof(a->freed[class]));
    a->freed[class] = one;
}

// Doubles the capacity for runs, which are as large as intervals.
static bool grow_runs(struct gb_plan_arena * a, struct gb_plan_set * s) {
    const unsigned class = class_of(s->cap - RUN) + 1;
    struct gb_plan_run * const runs = arena_take(a, class);
    if (runs == NULL) {
        return false;
    }
    memcpy(runs, s->runs, s->n * sizeof(*runs));
    arena_give_back(a, s->runs, class - 1);
    s->runs = runs;
    s->cap = (RUN + ((uint32_t) 1 << class)) & INT32_MAX;
    return true;
}

// -------------------------------------------------------------------------------------------------------------- limits

// The limits of an array with capacity for `cap` intervals.
static struct gb_plan_gap_limit * limits_at(struct gb_plan_interval * data, uint32_t cap) {
    return (struct gb_plan_gap_limit *) (data + cap);
}

static unsigned class_of_array(uint32_t cap, bool has_limits) {
    return class_of(cap) + (has_limits ? LIMIT_CLASSES : 0);
}

// Moves n intervals to an array of another capacity, with limits if has_limits.
static struct gb_plan_interval * moved(struct gb_plan_arena * a, struct gb_plan_interval * old, uint32_t n,
    uint32_t old_cap, bool had_limits, uint32_t cap, bool has_limits) {
    struct gb_plan_interval * const data = arena_take(a, class_of_array(cap, has_limits));
    if (data == NULL) {
        return NULL;
    }
    if (old_cap > 0) {
        memcpy(data, old, n * sizeof(*data));
        if (had_limits) {
            memcpy(limits_at(data, cap), limits_at(old, old_cap), n * sizeof(struct gb_plan_gap_limit));
        }
        arena_give_back(a, old, class_of_array(old_cap, had_limits));
    }
    for (uint32_t k = 0; has_limits && !had_limits && k < n; k++) {
        limits_at(data, cap)[k] = GB_PLAN_NO_LIMIT;
    }
    return data;
}

// Gives limits to all runs, or to none if memory runs out.
static bool add_limits_to_runs(struct gb_plan_arena * a, struct gb_plan_set * s) {
    struct gb_plan_interval ** const old = gb_calloc(s->n, sizeof(*old));
    uint32_t k = 0;
    for (; old && k < s->n; k++) {
        struct gb_plan_run * const r = &s->runs[k];
        struct gb_plan_interval * const data = arena_take(a, class_of_array(RUN, true));
        if (data == NULL) {
            break;
        }
        memcpy(data, r->data, r->n * sizeof(*data));
        for (uint32_t i = 0; i < r->n; i++) {
            limits_at(data, RUN)[i] = GB_PLAN_NO_LIMIT;
        }
        old[k] = r->data;
        r->data = data;
    }
    const bool ok = old && k == s->n;
    while (k > 0) {
        struct gb_plan_run * const r = &s->runs[--k];
        arena_give_back(a, ok ? old[k] : r->data, class_of_array(RUN, !ok));
        r->data = ok ? r->data : old[k];
    }
    gb_free(old);
    return ok;
}

bool gb_plan_set_add_limits(struct gb_plan_arena * a, struct gb_plan_set * s) {
    if (s->has_limits || s->cap == 0) {
        s->has_limits = 1;
        return true;
    }
    if (s->cap > RUN) {
        s->has_limits = add_limits_to_runs(a, s);
    } else {
        struct gb_plan_interval * const data = moved(a, s->flat, s->n, s->cap, false, s->cap, true);
        s->flat = data ? data : s->flat;
        s->has_limits = data != NULL;
    }
    return s->has_limits;
}

// ---------------------------------------------------------------------------------------------------------------- sets

// The first interval that ends at or above `offset`.
static uint32_t find(const struct gb_plan_interval * data, uint32_t n, size_t offset) {
    uint32_t low = 0;
    while (n > 0) {
        const uint32_t half = n / 2;
        if (data[low + half].end < offset) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return low;
}

// Adds an interval to an array of n and joins it with intervals that it touches. *at: its position.
// FULL: the array is full. limits: NULL, or the n limits of the array.
static enum gb_plan_added put(struct gb_plan_interval * data, struct gb_plan_gap_limit * limits, uint32_t * n,
    uint32_t cap, size_t start, size_t end, uint32_t * at) {
    const uint32_t from = find(data, *n, start);
    uint32_t to = from;
    *at = from;
    while (to < *n && data[to].start <= end) {
        if (data[to].start <= start && data[to].end >= end) {
            return GB_PLAN_NOTHING_NEW;
        }
        to++;
    }
    if (from == to) {
        if (*n == cap) {
            return GB_PLAN_FULL;
        }
        memmove(data + from + 1, data + from, (*n - from) * sizeof(*data));
        data[from] = (struct gb_plan_interval){ start, end };
        if (limits && from == *n) { // the gap above all has no limit
            limits[from] = GB_PLAN_NO_LIMIT;
        } else if (limits) { // both halves of a gap inherit its limit
            memmove(limits + from + 1, limits + from, (*n - from) * sizeof(*limits));
        }
        ++*n;
        return GB_PLAN_ADDED;
    }
    data[from].start = GB_MIN(data[from].start, start);
    data[from].end = GB_MAX(data[to - 1].end, end);
    if (to - from > 1) {
        memmove(data + from + 1, data + to, (*n - to) * sizeof(*data));
        if (limits) {
            memmove(limits + from + 1, limits + to, (*n - to) * sizeof(*limits));
        }
        *n -= to - from - 1;
    }
    return GB_PLAN_ADDED;
}

// Splits a full run in halves.
static bool split_run(struct gb_plan_arena * a, struct gb_plan_set * s, uint32_t k) {
    if (s->n == s->cap - RUN && !grow_runs(a, s)) {
        return false;
    }
    struct gb_plan_interval * const old = s->runs[k].data;
    struct gb_plan_interval * const data = arena_take(a, class_of_array(RUN, s->has_limits));
    if (data == NULL) {
        return false;
    }
    memmove(s->runs + k + 1, s->runs + k, (s->n - k) * sizeof(*s->runs));
    memcpy(data, old + RUN / 2, RUN / 2 * sizeof(*data));
    if (s->has_limits) {
        memcpy(limits_at(data, RUN), limits_at(old, RUN) + RUN / 2, RUN / 2 * sizeof(struct gb_plan_gap_limit));
    }
    s->runs[k].n = RUN / 2;
    s->runs[k + 1] = (struct gb_plan_run){ data, RUN / 2 };
    s->n++;
    return true;
}

// Joins the last interval of run k, which has grown, with intervals of the next runs.
static void join_behind(struct gb_plan_arena * a, struct gb_plan_set * s, uint32_t k) {
    struct gb_plan_interval * const last = &s->runs[k].data[s->runs[k].n - 1];
    while (k + 1 < s->n && s->runs[k + 1].data[0].start <= last->end) {
        struct gb_plan_run * const next = &s->runs[k + 1];
        struct gb_plan_gap_limit * const limits = limits_at(next->data, RUN);
        last->end = GB_MAX(last->end, next->data[0].end);
        memmove(next->data, next->data + 1, --next->n * sizeof(*next->data));
        if (s->has_limits) {
            memmove(limits, limits + 1, next->n * sizeof(*limits));
        }
        if (next->n == 0) {
            arena_give_back(a, next->data, class_of_array(RUN, s->has_limits));
            memmove(next, next + 1, (s->n - k - 2) * sizeof(*next));
            s->n--;
        }
    }
}

// The first run whose last interval ends at or above `offset`, else the last run.
static uint32_t find_run(const struct gb_plan_set * s, size_t offset) {
    uint32_t low = 0, n = s->n - 1;
    while (n > 0) {
        const uint32_t half = n / 2;
        const struct gb_plan_run * r = &s->runs[low + half];
        if (r->data[r->n - 1].end < offset) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return low;
}

static enum gb_plan_added put_into_run(struct gb_plan_set * s, uint32_t k, size_t start, size_t end, uint32_t * at) {
    struct gb_plan_run * const r = &s->runs[k];
    return put(r->data, s->has_limits ? limits_at(r->data, RUN) : NULL, &r->n, RUN, start, end, at);
}

static enum gb_plan_added put_long(struct gb_plan_arena * a, struct gb_plan_set * s, size_t start, size_t end) {
    uint32_t at;
    uint32_t k = find_run(s, start);
    enum gb_plan_added added = put_into_run(s, k, start, end, &at);
    if (added == GB_PLAN_FULL) {
        if (!split_run(a, s, k)) {
            return GB_PLAN_SET_FAILED;
        }
        k = find_run(s, start);
        added = put_into_run(s, k, start, end, &at);
    }
    if (added == GB_PLAN_ADDED && at + 1 == s->runs[k].n) {
        join_behind(a, s, k);
    }
    return added;
}

static enum gb_plan_added put_flat(struct gb_plan_set * s, size_t start, size_t end) {
    uint32_t at, n = s->n;
    const enum gb_plan_added added =
        put(s->flat, s->has_limits ? limits_at(s->flat, s->cap) : NULL, &n, s->cap, start, end, &at);
    s->n = n;
    return added;
}

enum gb_plan_added gb_plan_set_add(struct gb_plan_arena * a, struct gb_plan_set * s, size_t start, size_t end) {
    if (s->cap > RUN) {
        return put_long(a, s, start, end);
    }
    const enum gb_plan_added added = put_flat(s, start, end);
    if (added != GB_PLAN_FULL) {
        return added;
    }
    if (s->cap < RUN) {
        const uint32_t cap = s->cap > 0 ? 2 * s->cap : 1;
        struct gb_plan_interval * const data = moved(a, s->flat, s->n, s->cap, s->has_limits, cap, s->has_limits);
        if (data == NULL) {
            return GB_PLAN_SET_FAILED;
        }
        s->flat = data;
        s->cap = cap & INT32_MAX;
        return put_flat(s, start, end);
    }
    struct gb_plan_run * const runs = arena_take(a, 1);
    if (runs == NULL) {
        return GB_PLAN_SET_FAILED;
    }
    runs[0] = (struct gb_plan_run){ s->flat, RUN };
    s->runs = runs;
    s->n = 1;
    s->cap = RUN + 2;
    return put_long(a, s, start, end);
}
