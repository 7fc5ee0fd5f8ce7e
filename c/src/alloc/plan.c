// plan.c - the driver of the planner: what is tried, in which order, and when it is enough.
//
// In-order best fit first, as nothing may be worse; then first fit by several keys, skylines, and at last the search.
// Parts are buffers that no other buffer ever meets, and each is planned on its own, the one with the highest bound
// first. Each stage ends when the plan of the part needs no more than the goal: the lower bound of all parts, the
// capacity that is asked for, or the peak that another part needs anyway. Offsets are written only when all went well.
#include "alloc/plan.h"

#include <string.h>

#include "alloc/plan_impl.h"
#include "base/current.h"
#include "base/env.h"
#include "base/mem.h"
#include "base/status.h"
#include "ggml-alloc.h"

#define STEPS_PER_MS       300000 // about half of what an ordinary processor does
#define MAX_STEPS_BY_SIZE  ((uint64_t) 1 << 27)
#define HEURISTIC_STEPS    ((uint64_t) 1 << 24) // for what comes after first fit by size
#define MAX_SEARCH_BUFFERS 4096
#define MAX_SEARCH_PAIRS   ((uint64_t) 1 << 22)

// The trial becomes the plan of the part if it is smaller.
static void keep_if_smaller(struct gb_plan_part * part, size_t peak) {
    if (peak < part->peak) {
        part->peak = peak;
        memcpy(part->offsets, part->trial, part->n * sizeof(*part->offsets));
    }
}

// ------------------------------------------------------------------------------------------------------ the heuristics

// First fit by eight keys, then smallest gap by the same eight. The first, by size, is tried in any case, since
// gb_plan_offsets promises it, unless it alone would take too long. The others are paid from the budget.
static enum ggml_status fit_gaps(struct gb_plan_part * part, size_t goal, struct gb_plan_budget * budget) {
    static const enum gb_plan_key keys[] = { GB_PLAN_BY_SIZE, GB_PLAN_BY_AREA, GB_PLAN_BY_WIDTH, GB_PLAN_BY_LOAD,
        GB_PLAN_BY_BIRTH, GB_PLAN_BY_DEATH, GB_PLAN_BY_WIDTH_AREA_LOAD, GB_PLAN_BY_LOAD_AREA_WIDTH };
    for (size_t k = 0; k < 2 * GB_ARRAY_LEN(keys) && part->peak > goal && (k == 0 || budget->steps > 0); k++) {
        size_t peak;
        GB_TRY(gb_plan_first_fit(part, keys[k % GB_ARRAY_LEN(keys)], k >= GB_ARRAY_LEN(keys), k > 0 ? budget : NULL,
            &peak));
        keep_if_smaller(part, peak);
    }
    return GGML_STATUS_SUCCESS;
}

// Skylines by three keys, while there is something to gain and to spend.
static enum ggml_status fill_valleys(struct gb_plan_part * part, size_t goal, struct gb_plan_budget * budget) {
    static const enum gb_plan_key keys[] = { GB_PLAN_BY_WIDTH, GB_PLAN_BY_SIZE, GB_PLAN_BY_AREA };
    for (size_t k = 0; k < GB_ARRAY_LEN(keys) && part->peak > goal && budget->steps > 0; k++) {
        size_t peak;
        GB_TRY(gb_plan_skyline(part, keys[k], budget, &peak));
        keep_if_smaller(part, peak);
    }
    return GGML_STATUS_SUCCESS;
}

// ---------------------------------------------------------------------------------------------------------- the search

// One search of a part, at several capacities with more and more nodes.
struct search {
    struct gb_plan_part *   part;
    struct gb_plan_exact *  exact;
    struct gb_plan_budget * budget;
    size_t                  goal, unit;
};

// Tries several ranks in turn: each finds at once what others look for in vain, so that a little of each is worth more
// than much of one. A proof that nothing fits raises the bound of the part by one unit.
static enum gb_plan_outcome try_capacity(struct search * s, size_t capacity, uint64_t nodes) {
    static const struct {
        enum gb_plan_key key;
        bool             rerank;
    } ranks[]                    = { { GB_PLAN_BY_LOAD_SPAN, true }, { GB_PLAN_BY_LOAD_AREA_WIDTH, true },
        { GB_PLAN_BY_LOAD_WIDTH_AREA, true }, { GB_PLAN_BY_LOAD_SPAN, false }, { GB_PLAN_BY_DEATH_SPAN, true },
        { GB_PLAN_BY_BIRTH_LOAD_SPAN, true }, { GB_PLAN_BY_AREA_WIDTH_LOAD, true },
        { GB_PLAN_BY_WIDTH_AREA_LOAD, true }, { GB_PLAN_BY_BIRTH, true }, { GB_PLAN_BY_DEATH_LOAD_WIDTH, true },
        { GB_PLAN_BY_BIRTH_LOAD_WIDTH, true }, { GB_PLAN_BY_LOAD_WIDTH_AREA, false }, { GB_PLAN_BY_DEATH_NARROW, true },
        { GB_PLAN_BY_LATE_BIRTH_LOAD_WIDTH, true } };
    enum gb_plan_outcome outcome = GB_PLAN_GAVE_UP;
    for (size_t k = 0; k < GB_ARRAY_LEN(ranks) && outcome == GB_PLAN_GAVE_UP && s->budget->steps > 0; k++) {
        outcome = gb_plan_exact_run(s->exact, capacity, ranks[k].key, ranks[k].rerank, nodes, s->budget);
    }
    struct gb_plan_part * part = s->part;
    if (outcome == GB_PLAN_FOUND) {
        size_t peak = 0;
        for (uint32_t b = 0; b < part->n; b++) {
            peak = GB_MAX(peak, part->trial[b] + part->buffers[b].size);
        }
        keep_if_smaller(part, peak);
    } else if (outcome == GB_PLAN_INFEASIBLE) {
        part->bound = GB_MAX(part->bound, capacity + s->unit);
        s->goal     = GB_MAX(s->goal, part->bound);
    }
    return outcome;
}

// Narrows the gap between the goal, which was not reached, and the plan, by halves, down to a 512th of the bound: what
// is finer is not worth the search. A capacity at which the search gave up counts as out of reach here, but not as
// proved.
static enum gb_plan_outcome bisect(struct search * s, uint64_t nodes) {
    enum gb_plan_outcome outcome   = GB_PLAN_GAVE_UP;
    size_t               low       = s->goal;
    const size_t         precision = GB_MAX(s->unit, s->part->bound / 512);
    while (s->part->peak > low && s->part->peak - low > precision && outcome != GB_PLAN_NO_MEMORY &&
           s->budget->steps > 0) {
        const size_t half   = (s->part->peak - low) / 2;
        const size_t middle = low + GB_MAX(half - half % s->unit, s->unit);
        if (middle >= s->part->peak) {
            break;
        }
        outcome = try_capacity(s, middle, nodes);
        low     = outcome == GB_PLAN_FOUND ? low : middle;
    }
    return outcome;
}

// Asks for the goal with ever more nodes, and in between for what lies half way. With a capacity asked for, only that
// matters: there is no reason to bisect. Large parts are left out: the cost of a node grows with the part.
static enum ggml_status search_part(struct gb_plan_part * part, size_t goal, size_t capacity, size_t unit,
    struct gb_plan_budget * budget) {
    struct search s = { part, NULL, budget, goal, unit };
    if (part->peak <= goal || budget->steps == 0 || part->n > MAX_SEARCH_BUFFERS || part->n_pairs > MAX_SEARCH_PAIRS) {
        return GGML_STATUS_SUCCESS;
    }
    s.exact                      = gb_plan_exact_new(part);
    enum gb_plan_outcome outcome = s.exact ? GB_PLAN_GAVE_UP : GB_PLAN_NO_MEMORY;
    uint64_t             nodes   = (uint64_t) 4 * part->n;
    while (outcome != GB_PLAN_NO_MEMORY && part->peak > s.goal && budget->steps > 0) {
        outcome = try_capacity(&s, s.goal, nodes);
        if (outcome == GB_PLAN_INFEASIBLE && capacity > 0) {
            break; // nothing fits
        }
        if (outcome == GB_PLAN_GAVE_UP) {
            outcome = capacity > 0 ? outcome : bisect(&s, nodes / 4);
            nodes *= 4;
        }
    }
    gb_plan_exact_free(s.exact);
    return outcome == GB_PLAN_NO_MEMORY ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_SUCCESS;
}

// ----------------------------------------------------------------------------------------------------------- the whole

// All stages for all parts. The heuristics have steps of their own, and more of them where the search has more.
static enum ggml_status plan_parts(struct gb_plan_problem * p, const struct gb_plan_effort * effort,
    struct gb_plan_result * result) {
    const int64_t         deadline  = effort->limit_ns > 0 ? gb_time_ns() + effort->limit_ns : INT64_MAX;
    struct gb_plan_budget heuristic = { .steps = HEURISTIC_STEPS + effort->steps / 2, .deadline = deadline };
    struct gb_plan_budget search    = { .steps = effort->steps, .deadline = deadline };
    size_t                goal      = GB_MAX(p->bound, effort->capacity);
    *result                         = (struct gb_plan_result){ .lower_bound = p->bound, .bound = p->bound };
    for (size_t k = 0; k < p->n_parts; k++) {
        struct gb_plan_part * part = &p->parts[k];
        size_t                peak;
        part->peak = SIZE_MAX;
        GB_TRY(gb_plan_in_order(part, &peak));
        keep_if_smaller(part, peak);
        result->best_fit = GB_MAX(result->best_fit, peak);
        GB_TRY(fit_gaps(part, goal, &heuristic));
        GB_TRY(fill_valleys(part, goal, &heuristic));
        GB_TRY(search_part(part, goal, effort->capacity, p->unit, &search));
        if (heuristic.gave_up || search.gave_up) {
            return GGML_STATUS_ABORTED;
        }
        result->peak  = GB_MAX(result->peak, part->peak);
        result->bound = GB_MAX(result->bound, part->bound);
        goal          = GB_MAX(goal, part->peak); // the others need not be smaller
    }
    result->proved = result->peak <= result->bound;
    return GGML_STATUS_SUCCESS;
}

// Items that are empty or never live lie at 0.
static void write_offsets(const struct gb_plan_problem * p, struct gb_plan_item * items, size_t n) {
    for (size_t i = 0; i < n; i++) {
        items[i].offset = 0;
    }
    for (size_t i = 0; i < p->n; i++) {
        items[p->buffers[i].item].offset = p->offsets[i];
    }
}

enum ggml_status gb_plan_search(struct gb_plan_item * items, size_t n, size_t alignment,
    const struct gb_plan_effort * effort, struct gb_plan_result * result) {
    GB_CHECK_ARG(result);
    GB_FAIL_IF(n > 0 && items == NULL, GGML_STATUS_INVALID_ARGUMENT, "gb_plan_offsets: argument 'items' is NULL");
    GB_FAIL_IF(alignment == 0 || (alignment & (alignment - 1)) != 0, GGML_STATUS_INVALID_ARGUMENT,
        "gb_plan_offsets: argument 'alignment': %zu is no power of two", alignment);
    struct gb_plan_problem p;
    struct gb_plan_result  found;
    enum ggml_status       status = gb_plan_problem_init(&p, items, n, alignment);
    if (status == GGML_STATUS_SUCCESS) {
        status = plan_parts(&p, effort, &found);
    }
    if (status == GGML_STATUS_SUCCESS) {
        write_offsets(&p, items, n);
        *result = found;
    }
    gb_plan_problem_free(&p);
    return status;
}

// The clock is there for machines that are ten times slower: where it ends the search plans are still valid, only not
// always the same.
int64_t gb_plan_limit_ns = 200 * (int64_t) 1000000;

enum ggml_status gb_plan_offsets(struct gb_plan_item * items, size_t n, size_t alignment,
    struct gb_plan_result * result) {
    const struct gb_plan_effort effort = { .steps = 20 * STEPS_PER_MS, .limit_ns = gb_plan_limit_ns };
    return gb_plan_search(items, n, alignment, &effort, result);
}

// -------------------------------------------------------------------------------------------------------- for programs

// The arrays of the public function as items.
static enum ggml_status plan_arrays(size_t n, const int64_t * lower, const int64_t * upper, const size_t * size,
    size_t alignment, const struct gb_plan_effort * effort, size_t * offsets, struct gb_plan_result * result) {
    struct gb_plan_item * items = gb_calloc(n + 1, sizeof(*items));
    if (items == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (size_t i = 0; i < n; i++) {
        items[i] = (struct gb_plan_item){ lower[i], upper[i], size[i], 0 };
    }
    const enum ggml_status status = gb_plan_search(items, n, alignment, effort, result);
    for (size_t i = 0; status == GGML_STATUS_SUCCESS && i < n; i++) {
        offsets[i] = items[i].offset;
    }
    gb_free(items);
    return status;
}

enum ggml_status ggml_plan_memory(size_t n, const int64_t * lower, const int64_t * upper, const size_t * size,
    size_t alignment, size_t capacity, int64_t budget_ms, size_t * offsets, struct ggml_plan_info * info) {
    GB_FAIL_IF(n > 0 && (!lower || !upper || !size || !offsets), GGML_STATUS_INVALID_ARGUMENT, "%s: an array is NULL",
        __func__);
    GB_FAIL_IF(n > INT32_MAX, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'n': %zu, at most %d", __func__, n,
        INT32_MAX);
    GB_FAIL_IF(budget_ms < 0, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'budget_ms': %lld is negative", __func__,
        (long long) budget_ms);
    const int64_t               start  = gb_time_ns();
    const int64_t               ms     = GB_MIN(budget_ms, (int64_t) 1000 * 1000 * 1000);
    const struct gb_plan_effort effort = { capacity, (uint64_t) ms * STEPS_PER_MS, ms * 1000000 };
    struct gb_plan_result       result;
    GB_TRY(plan_arrays(n, lower, upper, size, alignment, &effort, offsets, &result));
    if (info) {
        *info = (struct ggml_plan_info){ result.peak, result.lower_bound, result.best_fit, result.proved,
            (double) (gb_time_ns() - start) / 1e6 };
    }
    GB_FAIL_IF(capacity > 0 && result.peak > capacity, GGML_STATUS_ALLOC_FAILED, "%s: needs %zu bytes, has %zu%s",
        __func__, result.peak, capacity,
        result.bound > capacity ? ": no plan fits" : "; none smaller was found within the budget");
    return GGML_STATUS_SUCCESS;
}
