// plan_firstfit.c - places buffers in an order, each into the lowest or the smallest gap between
// its placed neighbours.
//
// The order decides the quality of the plan. If large and long buffers come first, small buffers
// fill the gaps.
//
// The index (plan_index.c) finds the gaps. A dense part of few buffers uses a list of all placed
// buffers, sorted by offset, which is faster there.
//
// In some instances the index needs as many probes per buffer as buffers are placed. If the budget
// ends first fit, gb_plan_place_all places the remaining buffers by hints, in a bounded number of
// steps each.
#include "plan/plan_impl.h"

#include <string.h>

#include "base/current.h"
#include "base/mem.h"
#include "base/status.h"

#define MAX_LISTED 4096

struct placed {
    size_t offset, end;
    uint32_t first, last;
};

struct gb_plan_placer {
    const struct gb_plan_part * part; // borrowed
    struct gb_plan_index * index; // owned; NULL if `list` is used
    struct placed * list; // owned; sorted by offset
    uint32_t n_listed;
};

// The list costs one step per placed buffer. The index costs more steps, but for fewer buffers.
static bool is_listed(const struct gb_plan_part * part) {
    const uint64_t n = part->n + part->n_fixed;
    return n <= MAX_LISTED && part->n_pairs > n * n / 32;
}

struct gb_plan_placer * gb_plan_placer_new(const struct gb_plan_part * part) {
    struct gb_plan_placer * p = GB_NEW(struct gb_plan_placer);
    if (p == NULL) {
        return NULL;
    }
    p->part = part;
    if (is_listed(part)) {
        p->list = gb_calloc((size_t) part->n + part->n_fixed, sizeof(*p->list));
    } else {
        p->index = gb_plan_index_new(part);
    }
    if (!p->list && !p->index) {
        gb_plan_placer_free(p);
        return NULL;
    }
    return p;
}

void gb_plan_placer_free(struct gb_plan_placer * p) {
    if (p) {
        gb_plan_index_free(p->index);
        gb_free(p->list);
        gb_free(p);
    }
}

size_t gb_plan_within_chunk(size_t at, size_t size, size_t chunk) {
    const size_t used = chunk > 0 ? at % chunk : 0;
    return chunk > 0 && size > chunk - used ? at + (chunk - used) : at;
}

// The offset of the lowest or smallest gap between neighbours in the list, or above all of them. A
// gap of exactly the size ends the search for the smallest.
static size_t find_gap(const struct gb_plan_placer * p, const struct gb_plan_buffer * b, size_t chunk, bool smallest) {
    const struct placed * const placed = p->list;
    size_t at = 0, best = SIZE_MAX, best_size = SIZE_MAX;
    for (uint32_t i = 0; i < p->n_listed; i++) {
        if (placed[i].last <= b->first || placed[i].first >= b->last) {
            continue;
        }
        if (placed[i].offset > at) {
            const size_t from = gb_plan_within_chunk(at, b->size, chunk);
            const size_t size = placed[i].offset > from ? placed[i].offset - from : 0;
            if (size >= b->size && size < best_size) {
                if (!smallest || size == b->size) {
                    return from;
                }
                best = from;
                best_size = size;
            }
        }
        at = GB_MAX(at, placed[i].end);
    }
    return best != SIZE_MAX ? best : gb_plan_within_chunk(at, b->size, chunk);
}

static void insert(struct gb_plan_placer * p, const struct gb_plan_buffer * b, size_t offset) {
    uint32_t low = 0, high = p->n_listed;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (p->list[middle].offset < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    memmove(p->list + low + 1, p->list + low, (p->n_listed - low) * sizeof(*p->list));
    p->list[low] = (struct placed){ offset, offset + b->size, b->first, b->last };
    p->n_listed++;
}

static bool add(struct gb_plan_placer * p, const struct gb_plan_buffer * b, size_t offset) {
    if (p->list) {
        insert(p, b, offset);
        return true;
    }
    return gb_plan_index_add(p->index, b, offset);
}

// Places b. Adds the cost to *steps. False: no memory.
static bool put(struct gb_plan_placer * p, const struct gb_plan_buffer * b, bool smallest, size_t * offset,
    uint64_t * steps) {
    const size_t chunk = p->part->chunk;
    if (p->list) {
        *offset = find_gap(p, b, chunk, smallest);
        *steps += p->n_listed;
    } else {
        *offset = smallest ? gb_plan_index_smallest(p->index, b, chunk, steps)
                           : gb_plan_index_lowest(p->index, b, chunk, steps);
    }
    return add(p, b, *offset);
}

// Removes all buffers but the fixed ones.
static enum ggml_status begin(struct gb_plan_placer * p, const size_t * offsets) {
    p->n_listed = 0;
    if (p->index) {
        gb_plan_index_reset(p->index);
    }
    for (uint32_t b = p->part->n; b < p->part->n + p->part->n_fixed; b++) {
        if (!add(p, &p->part->buffers[b], offsets[b])) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Places buffers from order[*k] on. *over: the budget ended it before order[*k].
static enum ggml_status place_from(struct gb_plan_placer * p, const uint32_t * order, uint32_t n, bool smallest_gap,
    struct gb_plan_budget * budget, size_t * offsets, uint32_t * k, bool * over) {
    uint64_t steps = (uint64_t) p->part->n_fixed * 100;
    *over = false;
    while (*k < n && !*over) {
        const uint32_t b = order[(*k)++];
        if (!put(p, &p->part->buffers[b], smallest_gap, &offsets[b], &steps)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
        if (*k % GB_PLAN_POLL == 0 || *k == n || steps >= GB_PLAN_CHECK_STEPS) {
            GB_TRY(budget ? GGML_STATUS_SUCCESS : gb_check_poll());
            *over = budget && !gb_plan_spend(budget, steps);
            steps = 0;
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Only an index can use up so many steps that buffers remain, so p->index exists.
static enum ggml_status place_by_hints(struct gb_plan_placer * p, const uint32_t * order, uint32_t k, uint32_t n,
    size_t * offsets) {
    uint64_t steps = 0; // not counted
    for (; k < n; k++) {
        const struct gb_plan_buffer * b = &p->part->buffers[order[k]];
        if (!gb_plan_index_hinted(p->index, b, p->part->chunk, &offsets[order[k]], &steps) ||
            !gb_plan_index_add(p->index, b, offsets[order[k]])) {
            return GGML_STATUS_ALLOC_FAILED;
        }
        if (k % GB_PLAN_POLL == 0) {
            GB_TRY(gb_check_poll());
        }
    }
    return GGML_STATUS_SUCCESS;
}

static size_t peak_of(const struct gb_plan_part * part, const uint32_t * order, uint32_t n, const size_t * offsets) {
    size_t peak = 0;
    for (uint32_t k = 0; k < n; k++) {
        peak = GB_MAX(peak, offsets[order[k]] + part->buffers[order[k]].size);
    }
    return peak;
}

enum ggml_status gb_plan_place(struct gb_plan_placer * p, const uint32_t * order, uint32_t n, bool smallest_gap,
    struct gb_plan_budget * budget, size_t * offsets, size_t * peak) {
    uint32_t k = 0;
    bool over;
    GB_TRY(begin(p, offsets));
    GB_TRY(place_from(p, order, n, smallest_gap, budget, offsets, &k, &over));
    *peak = over ? SIZE_MAX : peak_of(p->part, order, n, offsets);
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_plan_place_all(struct gb_plan_placer * p, const uint32_t * order, struct gb_plan_budget * budget,
    size_t * offsets, size_t * peak) {
    const uint32_t n = p->part->n;
    uint32_t k = 0;
    bool over;
    *peak = SIZE_MAX;
    GB_TRY(begin(p, offsets));
    GB_TRY(place_from(p, order, n, false, budget, offsets, &k, &over));
    if (!budget->aborted) {
        GB_TRY(place_by_hints(p, order, k, n, offsets));
        *peak = peak_of(p->part, order, n, offsets);
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_plan_first_fit(struct gb_plan_part * part, enum gb_plan_key key, bool smallest_gap,
    struct gb_plan_budget * budget, size_t * peak) {
    uint32_t * order = gb_calloc(part->n, sizeof(*order));
    struct gb_plan_placer * placer = gb_plan_placer_new(part);
    enum ggml_status status = order && placer ? gb_plan_order(part, key, order) : GGML_STATUS_ALLOC_FAILED;
    if (status == GGML_STATUS_SUCCESS) {
        status = gb_plan_place(placer, order, part->n, smallest_gap, budget, part->trial, peak);
    }
    gb_plan_placer_free(placer);
    gb_free(order);
    return status;
}
