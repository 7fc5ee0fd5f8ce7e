// plan_pairs.c - a sorted set of pairs of numbers.
//
// The set is an array of runs. A run is a short sorted array, so an insertion moves few pairs. A small set is one run
// and as fast as a plain array.
#include <string.h>

#include "plan/plan_impl.h"
#include "base/mem.h"

void gb_plan_pairs_free(struct gb_plan_pairs * p) {
    for (size_t k = 0; k < p->runs.n; k++) {
        gb_free(p->runs.data[k].pairs);
    }
    gb_vec_free(&p->runs);
}

static bool less(struct gb_plan_pair x, struct gb_plan_pair y) { return x.a != y.a ? x.a < y.a : x.b < y.b; }

// The first run whose last pair is not less than x, else the last run.
static size_t find_run(const struct gb_plan_pairs * p, struct gb_plan_pair x) {
    size_t low = 0, high = p->runs.n - 1;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        const struct gb_plan_pairs_run * r = &p->runs.data[middle];
        if (less(r->pairs[r->n - 1], x)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static uint32_t find_in(const struct gb_plan_pairs_run * r, struct gb_plan_pair x) {
    uint32_t low = 0, high = r->n;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (less(r->pairs[middle], x)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

const struct gb_plan_pair * gb_plan_pairs_from(const struct gb_plan_pairs * p, struct gb_plan_pair x,
    const struct gb_plan_pair ** before) {
    if (before) {
        *before = NULL;
    }
    if (p->runs.n == 0) {
        return NULL;
    }
    const size_t k = find_run(p, x);
    const struct gb_plan_pairs_run * r = &p->runs.data[k];
    const uint32_t at = find_in(r, x);
    if (before && at > 0) {
        *before = &r->pairs[at - 1];
    } else if (before && k > 0) {
        *before = &p->runs.data[k - 1].pairs[p->runs.data[k - 1].n - 1];
    }
    return at < r->n ? &r->pairs[at] : NULL;
}

#define FIRST_CAPACITY 8

// Inserts an empty run at k. False: no memory.
static bool new_run(struct gb_plan_pairs * p, size_t k, uint32_t capacity) {
    struct gb_plan_pair * pairs = gb_calloc(capacity, sizeof(*pairs));
    if (pairs == NULL || !gb_vec_reserve(&p->runs, p->runs.n + 1)) {
        gb_free(pairs);
        return false;
    }
    memmove(p->runs.data + k + 1, p->runs.data + k, (p->runs.n - k) * sizeof(*p->runs.data));
    p->runs.data[k] = (struct gb_plan_pairs_run){ pairs, 0, capacity };
    p->runs.n++;
    return true;
}

// Grows a run, if needed, for one more pair. The run has fewer than GB_PLAN_RUN. False: no memory.
static bool reserve(struct gb_plan_pairs_run * r) {
    if (r->n < r->capacity) {
        return true;
    }
    const uint32_t capacity = GB_MIN(2 * r->capacity, GB_PLAN_RUN);
    struct gb_plan_pair * pairs = gb_realloc(r->pairs, capacity, sizeof(*pairs));
    if (pairs == NULL) {
        return false;
    }
    r->pairs = pairs;
    r->capacity = capacity;
    return true;
}

bool gb_plan_pairs_insert(struct gb_plan_pairs * p, struct gb_plan_pair x) {
    if (p->runs.n == 0 && !new_run(p, 0, FIRST_CAPACITY)) {
        return false;
    }
    struct gb_plan_pairs_run * const end = &p->runs.data[p->runs.n - 1];
    if (end->n > 0 && end->n < GB_PLAN_RUN && less(end->pairs[end->n - 1], x)) { // fast path for sorted input
        if (!reserve(end)) {
            return false;
        }
        end->pairs[end->n++] = x;
        return true;
    }
    size_t k = find_run(p, x);
    if (p->runs.data[k].n == GB_PLAN_RUN) {
        if (!new_run(p, k + 1, GB_PLAN_RUN)) {
            return false;
        }
        struct gb_plan_pairs_run * const full = &p->runs.data[k];
        memcpy(full[1].pairs, full->pairs + GB_PLAN_RUN / 2, GB_PLAN_RUN / 2 * sizeof(*full->pairs));
        full[0].n = full[1].n = GB_PLAN_RUN / 2;
        k = find_run(p, x);
    }
    struct gb_plan_pairs_run * const r = &p->runs.data[k];
    if (!reserve(r)) {
        return false;
    }
    const uint32_t at = find_in(r, x);
    memmove(r->pairs + at + 1, r->pairs + at, (r->n - at) * sizeof(*r->pairs));
    r->pairs[at] = x;
    r->n++;
    return true;
}

void gb_plan_pairs_remove(struct gb_plan_pairs * p, struct gb_plan_pair x) {
    const size_t k = find_run(p, x);
    struct gb_plan_pairs_run * const r = &p->runs.data[k];
    const uint32_t at = find_in(r, x);
    memmove(r->pairs + at, r->pairs + at + 1, (r->n - at - 1) * sizeof(*r->pairs));
    if (--r->n == 0) {
        gb_free(r->pairs);
        memmove(r, r + 1, (p->runs.n - k - 1) * sizeof(*r));
        p->runs.n--;
    }
}
