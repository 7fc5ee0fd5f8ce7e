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

#define STEPS_PER_MS    500000 // what an ordinary processor does, or somewhat less
#define DEFAULT_STEPS   ((uint64_t) 6000000)
#define HEURISTIC_STEPS ((uint64_t) 1 << 22) // for what comes after first fit by size

// ----------------------------------------------------------------------------------------------------------- the whole

// All stages for all parts.
enum ggml_status gb_plan_parts(struct gb_plan_problem * p, struct gb_plan_costs * costs,
    struct gb_plan_result * result) {
    size_t goal = GB_MAX(p->bound, costs->capacity);
    *result     = (struct gb_plan_result){ .lower_bound = p->bound, .bound = p->bound };
    for (size_t k = 0; k < p->n_parts; k++) {
        struct gb_plan_part * part = &p->parts[k];
        size_t                peak;
        part->peak = SIZE_MAX;
        if (part->n == 1) { // as the many parts of a chain are
            part->offsets[0] = 0;
            part->peak       = part->buffers[0].size;
            result->best_fit = GB_MAX(result->best_fit, part->peak);
            result->peak     = GB_MAX(result->peak, part->peak);
            continue;
        }
        GB_TRY(gb_plan_in_order(part, &peak));
        gb_plan_keep(part, peak);
        result->best_fit = GB_MAX(result->best_fit, peak);
        GB_TRY(gb_plan_part(part, goal, p->unit, costs));
        if (costs->heuristic.gave_up || costs->search.gave_up) {
            return GGML_STATUS_ABORTED;
        }
        result->unfinished = part->peak > result->peak
                                 ? part->unfinished
                                 : result->unfinished || (part->unfinished && part->peak == result->peak);
        result->peak       = GB_MAX(result->peak, part->peak);
        result->bound      = GB_MAX(result->bound, part->bound);
        goal               = GB_MAX(goal, part->peak); // the others need not be smaller
    }
    result->proved     = result->peak <= result->bound;
    result->unfinished = result->unfinished && !result->proved && result->peak > costs->capacity;
    return GGML_STATUS_SUCCESS;
}

// The heuristics have steps of their own, and more of them where the search has more.
static enum ggml_status plan_problem(struct gb_plan_problem * p, const struct gb_plan_effort * effort,
    struct gb_plan_result * result) {
    const int64_t        deadline = effort->limit_ns > 0 ? gb_thread_time_ns() + effort->limit_ns : INT64_MAX;
    struct gb_plan_costs costs    = { .capacity = effort->capacity,
        .heuristic                           = { .steps = HEURISTIC_STEPS + effort->steps / 4, .deadline = deadline },
        .search                              = { .steps = effort->steps, .deadline = deadline },
        .whole                               = true,
        .turns                               = effort->steps > 0,
        .n_threads                           = effort->n_threads };
    return gb_plan_parts(p, &costs, result);
}

// --------------------------------------------------------------------------------------- what is alive throughout

// A buffer that meets all others may lie at the bottom of a plan: every plan can be changed into one like that, by
// moving down what lies above. Taken out, it holds no parts together that are independent without it.
static bool is_throughout(const struct gb_plan_part * part, uint32_t b) {
    return part->buffers[b].first == 0 && part->buffers[b].last == part->n_sections;
}

// True if the others are several parts. Else taking out gains nothing.
static bool holds_parts(const struct gb_plan_problem * p) {
    const struct gb_plan_part * part  = p->parts;
    uint32_t                    reach = 0; // the section at which those so far are dead
    for (uint32_t b = 0; p->n_parts == 1 && b < part->n; b++) {
        if (!is_throughout(part, b)) {
            if (reach > 0 && part->buffers[b].first >= reach) {
                return true;
            }
            reach = GB_MAX(reach, part->buffers[b].last);
        }
    }
    return false;
}

// The only part of p, for a floor: in-order best fit alone where the others have the best plan there is.
static enum ggml_status plan_floor(struct gb_plan_problem * p, const struct gb_plan_effort * effort, bool proved,
    struct gb_plan_result * floor) {
    const struct gb_plan_effort least = { effort->capacity, 0, effort->limit_ns, effort->n_threads };
    if (!proved) {
        return plan_problem(p, &least, floor);
    }
    p->parts[0].peak = SIZE_MAX;
    GB_TRY(gb_plan_in_order(p->parts, &floor->best_fit));
    gb_plan_keep(p->parts, floor->best_fit);
    floor->peak = floor->best_fit;
    return GGML_STATUS_SUCCESS;
}

// Offsets of p from those of the others: what is alive throughout lies below, by falling size.
static enum ggml_status join(struct gb_plan_problem * p, const struct gb_plan_problem * others, size_t below) {
    const struct gb_plan_part * part  = p->parts;
    uint32_t *                  order = gb_calloc(part->n, sizeof(*order));
    enum ggml_status status = order ? gb_plan_order(p->parts, GB_PLAN_BY_SIZE, order) : GGML_STATUS_ALLOC_FAILED;
    size_t           at     = 0;
    for (uint32_t k = 0; status == GGML_STATUS_SUCCESS && k < part->n; k++) {
        if (is_throughout(part, order[k])) {
            part->offsets[order[k]] = at;
            at += part->buffers[order[k]].size;
        }
    }
    for (size_t k = 0; status == GGML_STATUS_SUCCESS && k < others->n; k++) {
        part->offsets[others->buffers[k].item] = below + others->offsets[k];
    }
    gb_free(order);
    return status;
}

// The others, which are items by their index in the part, then the floor; the smaller plan counts.
static enum ggml_status plan_both(struct gb_plan_problem * p, struct gb_plan_problem * others, size_t below,
    const struct gb_plan_effort * effort, struct gb_plan_result * result) {
    struct gb_plan_effort above = *effort;
    struct gb_plan_result floor, found;
    above.capacity = effort->capacity > below ? effort->capacity - below : GB_MIN(effort->capacity, 1);
    GB_TRY(plan_problem(others, &above, &found));
    GB_TRY(plan_floor(p, effort, found.proved, &floor));
    if (below + found.peak <= floor.peak) {
        GB_TRY(join(p, others, below));
    }
    result->peak        = GB_MIN(below + found.peak, floor.peak);
    result->lower_bound = p->bound;
    result->bound       = below + found.bound;
    result->best_fit    = floor.best_fit;
    result->proved      = result->peak <= result->bound;
    result->unfinished  = found.unfinished && !result->proved && result->peak > effort->capacity;
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status plan_apart(struct gb_plan_problem * p, const struct gb_plan_item * items,
    const struct gb_plan_effort * effort, struct gb_plan_result * result) {
    const struct gb_plan_part * part   = p->parts;
    struct gb_plan_problem      others = { 0 };
    struct gb_plan_item *       some   = gb_calloc(part->n, sizeof(*some)); // empty: alive throughout
    size_t                      below  = 0;
    for (uint32_t b = 0; some && b < part->n; b++) {
        if (is_throughout(part, b)) {
            below += part->buffers[b].size;
        } else {
            const struct gb_plan_item * item = &items[part->buffers[b].item];
            some[b] = (struct gb_plan_item){ item->lower, item->upper, part->buffers[b].size, 0 };
        }
    }
    enum ggml_status status = some ? gb_plan_problem_init(&others, some, part->n, 1) : GGML_STATUS_ALLOC_FAILED;
    if (status == GGML_STATUS_SUCCESS) {
        status = plan_both(p, &others, below, effort, result);
    }
    gb_plan_problem_free(&others);
    gb_free(some);
    return status;
}

// ----------------------------------------------------------------------------------------------------------- results

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
        status = holds_parts(&p) ? plan_apart(&p, items, effort, &found) : plan_problem(&p, effort, &found);
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
    const struct gb_plan_effort effort = { .steps = DEFAULT_STEPS, .limit_ns = gb_plan_limit_ns };
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

enum ggml_status ggml_plan_memory_with(size_t n, const int64_t * lower, const int64_t * upper, const size_t * size,
    size_t alignment, const struct ggml_plan_options * options, size_t * offsets, struct ggml_plan_info * info) {
    GB_CHECK_ARG(options);
    GB_FAIL_IF(n > 0 && (!lower || !upper || !size || !offsets), GGML_STATUS_INVALID_ARGUMENT, "%s: an array is NULL",
        __func__);
    GB_FAIL_IF(n > INT32_MAX, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'n': %zu, at most %d", __func__, n,
        INT32_MAX);
    GB_FAIL_IF(options->budget_ms < 0, GGML_STATUS_INVALID_ARGUMENT, "%s: 'budget_ms': %lld is negative", __func__,
        (long long) options->budget_ms);
    GB_FAIL_IF(options->n_threads < 0, GGML_STATUS_INVALID_ARGUMENT, "%s: 'n_threads': %d is negative", __func__,
        options->n_threads);
    const int64_t               start  = gb_time_ns();
    const int64_t               ms     = GB_MIN(options->budget_ms, (int64_t) 1000 * 1000 * 1000);
    const struct gb_plan_effort effort = { options->capacity, (uint64_t) ms * STEPS_PER_MS, ms * 1000000,
        options->n_threads };
    struct gb_plan_result       result;
    GB_TRY(plan_arrays(n, lower, upper, size, alignment, &effort, offsets, &result));
    if (info) {
        *info = (struct ggml_plan_info){ result.peak, result.lower_bound, result.best_fit, result.proved,
            (double) (gb_time_ns() - start) / 1e6, result.bound, result.bound > result.lower_bound, result.unfinished };
    }
    GB_FAIL_IF(options->capacity > 0 && result.peak > options->capacity, GGML_STATUS_ALLOC_FAILED,
        "%s: needs %zu bytes, has %zu%s", __func__, result.peak, options->capacity,
        result.bound > options->capacity ? ": no plan fits" : "; none smaller was found within the budget");
    return GGML_STATUS_SUCCESS;
}

enum ggml_status ggml_plan_memory(size_t n, const int64_t * lower, const int64_t * upper, const size_t * size,
    size_t alignment, size_t capacity, int64_t budget_ms, size_t * offsets, struct ggml_plan_info * info) {
    const struct ggml_plan_options options = { capacity, budget_ms, 1 };
    return ggml_plan_memory_with(n, lower, upper, size, alignment, &options, offsets, info);
}
