// plan_critical.c - plans the critical buffers, those of the busiest sections, then places the
// other buffers around them.
//
// A plan of fewer buffers needs no more memory than a plan of all, so a bound of the critical
// buffers is a bound of the part. First fit in the order of their plan places none of them higher
// than that plan. The other buffers mostly fit around them.
#include "plan/search/plan_methods.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

struct critical {
    struct gb_plan_item * items; // owned; lifetimes in sections
    uint32_t * buffers; // owned; by item: the buffer of the part
    uint32_t n;
};

static int falling(const void * pa, const void * pb) {
    const size_t a = *(const size_t *) pa, b = *(const size_t *) pb;
    return a > b ? -1 : a < b;
}

// Finds the load that makes a section critical, so that about `limit` buffers are critical. *n:
// their number.
static enum ggml_status find_threshold(struct gb_plan_part * part, uint32_t limit, size_t * threshold, uint32_t * n) {
    size_t * max_loads = gb_calloc(part->n, sizeof(*max_loads));
    if (max_loads == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    memcpy(max_loads, part->max_load, part->n * sizeof(*max_loads));
    qsort(max_loads, part->n, sizeof(*max_loads), falling);
    uint32_t k = GB_MIN(limit, part->n);
    while (k > 0 && k < part->n && max_loads[k] == max_loads[k - 1]) {
        k--; // all sections of one load, or none
    }
    if (k == 0) { // all sections of the highest load
        while (k < part->n && max_loads[k] == max_loads[0]) {
            k++;
        }
    }
    *threshold = max_loads[k - 1];
    *n = k;
    gb_free(max_loads);
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status find_critical(struct gb_plan_part * part, uint32_t limit, struct critical * c) {
    size_t threshold;
    *c = (struct critical){ 0 };
    GB_TRY(gb_plan_find_max_loads(part));
    GB_TRY(find_threshold(part, limit, &threshold, &c->n));
    c->items = gb_calloc(c->n, sizeof(*c->items));
    c->buffers = gb_calloc(c->n, sizeof(*c->buffers));
    if (!c->items || !c->buffers) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    uint32_t k = 0;
    for (uint32_t b = 0; b < part->n; b++) {
        if (part->max_load[b] >= threshold) {
            const struct gb_plan_buffer * one = &part->buffers[b];
            c->items[k] = (struct gb_plan_item){ one->first, one->last, one->size, 0 };
            c->buffers[k++] = b;
        }
    }
    return GGML_STATUS_SUCCESS;
}

static void free_critical(struct critical * c) {
    gb_free(c->items);
    gb_free(c->buffers);
}

// The order with the critical buffers first, by offset.
static enum ggml_status move_to_front(struct gb_plan_part * part, const struct critical * c, const size_t * offsets,
    uint32_t * order) {
    size_t * at = gb_calloc(part->n, sizeof(*at));
    enum ggml_status status = at ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    for (uint32_t b = 0; at && b < part->n; b++) {
        at[b] = SIZE_MAX;
    }
    for (uint32_t k = 0; at && k < c->n; k++) {
        at[c->buffers[k]] = offsets[k];
    }
    status = at ? gb_plan_order_by_offset(part, at, order) : status;
    gb_free(at);
    return status;
}

// Plans the critical buffers as a problem of their own.
static enum ggml_status plan_critical(struct gb_plan_part * part, struct critical * c, size_t capacity,
    struct gb_plan_budget * budget, size_t * offsets, size_t * peak) {
    struct gb_plan_problem p;
    struct gb_plan_result result;
    struct gb_plan_costs costs = { .search_part = gb_plan_search_part, .capacity = capacity };
    costs.heuristic = gb_plan_share(budget, budget->steps / 3);
    costs.search = gb_plan_share(budget, budget->steps / 2);
    enum ggml_status status = gb_plan_problem_init(&p, c->items, c->n, 1);
    status = status == GGML_STATUS_SUCCESS ? gb_plan_parts(&p, GB_MAX(p.bound, capacity), &costs, &result) : status;
    for (size_t i = 0; status == GGML_STATUS_SUCCESS && i < p.n; i++) {
        offsets[p.buffers[i].item] = p.offsets[i];
    }
    if (status == GGML_STATUS_SUCCESS) {
        part->bound = GB_MAX(part->bound, result.bound);
        *peak = result.peak;
    }
    gb_plan_problem_free(&p);
    gb_plan_give_back(budget, &costs.heuristic);
    gb_plan_give_back(budget, &costs.search);
    return status;
}

// Extends a plan of the critical buffers to all buffers: first fit with the critical buffers first,
// then, among many buffers, ejection chains.
static enum ggml_status extend_critical(struct gb_plan_part * part, const struct critical * c, const size_t * offsets,
    size_t goal, size_t unit, struct gb_plan_budget * budget) {
    uint32_t * order = gb_calloc(part->n, sizeof(*order));
    struct gb_plan_learner * learner = gb_plan_learner_new(part);
    struct gb_plan_ejector * ejector = NULL;
    enum ggml_status status = order && learner ? move_to_front(part, c, offsets, order) : GGML_STATUS_ALLOC_FAILED;
    if (status == GGML_STATUS_SUCCESS) {
        struct gb_plan_budget share = gb_plan_share(budget, budget->steps / (part->n > GB_PLAN_MANY ? 3 : 1));
        status = gb_plan_learn_from(learner, order, goal, &share);
        gb_plan_give_back(budget, &share);
    }
    const bool more = part->n > GB_PLAN_MANY && part->peak > goal && part->peak < SIZE_MAX && gb_plan_can_eject(part);
    if (status == GGML_STATUS_SUCCESS && more) {
        ejector = gb_plan_ejector_new(part);
        status = ejector ? gb_plan_eject(ejector, goal, unit, budget) : GGML_STATUS_ALLOC_FAILED;
    }
    gb_plan_ejector_free(ejector);
    gb_plan_learner_free(learner);
    gb_free(order);
    return status;
}

// Among many buffers this starts from an empty plan, because a plan that starts higher may end
// lower. The better plan is kept.
static enum ggml_status extend_aside(struct gb_plan_part * part, const struct critical * c, const size_t * offsets,
    size_t goal, size_t unit, struct gb_plan_budget * budget) {
    const size_t peak = part->peak;
    size_t * const before = gb_calloc(part->n, sizeof(*before));
    if (before == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    memcpy(before, part->offsets, part->n * sizeof(*before));
    part->peak = part->n > GB_PLAN_MANY ? SIZE_MAX : peak;
    const enum ggml_status status = extend_critical(part, c, offsets, goal, unit, budget);
    if (part->peak >= peak) {
        memcpy(part->offsets, before, part->n * sizeof(*before));
        part->peak = peak;
    }
    gb_free(before);
    return status;
}

enum ggml_status gb_plan_from_critical(struct gb_plan_part * part, uint32_t limit, size_t goal, size_t unit,
    size_t capacity, struct gb_plan_budget * budget) {
    struct critical c = { 0 };
    size_t peak = 0;
    size_t * offsets = NULL;
    enum ggml_status status = find_critical(part, limit, &c);
    if (status == GGML_STATUS_SUCCESS && c.n <= part->n / 4 * 3) {
        offsets = gb_calloc(c.n, sizeof(*offsets));
        status = offsets ? plan_critical(part, &c, capacity, budget, offsets, &peak) : GGML_STATUS_ALLOC_FAILED;
        if (status == GGML_STATUS_SUCCESS && peak < part->peak && budget->steps > 0) {
            status = extend_aside(part, &c, offsets, GB_MAX(goal, peak), unit, budget);
        }
    }
    gb_free(offsets);
    free_critical(&c);
    return status;
}
