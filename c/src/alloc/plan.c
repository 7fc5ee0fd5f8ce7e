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

#define STEPS_PER_MS    300000 // about half of what an ordinary processor does
#define HEURISTIC_STEPS ((uint64_t) 1 << 24) // for what comes after first fit by size
#define MANY            4096                 // buffers
#define FEW             256

void gb_plan_keep(struct gb_plan_part * part, size_t peak) {
    if (peak < part->peak) {
        part->peak = peak;
        memcpy(part->offsets, part->trial, part->n * sizeof(*part->offsets));
    }
}

// ------------------------------------------------------------------------------------------------------ the heuristics

// First fit by eight keys, then smallest gap by the same eight. The first, by size, is tried in any case up to
// GB_PLAN_ALWAYS buffers, since gb_plan_offsets promises it. The others are paid from the budget. Where there are many
// buffers those come first that do best there.
static enum ggml_status fit_gaps(struct gb_plan_part * part, size_t goal, struct gb_plan_budget * budget) {
    enum { N = 8 };
    static const enum gb_plan_key keys[2][N] = { { GB_PLAN_BY_SIZE, GB_PLAN_BY_AREA, GB_PLAN_BY_WIDTH, GB_PLAN_BY_LOAD,
                                                     GB_PLAN_BY_BIRTH, GB_PLAN_BY_DEATH, GB_PLAN_BY_WIDTH_AREA_LOAD,
                                                     GB_PLAN_BY_LOAD_AREA_WIDTH },
        { GB_PLAN_BY_SIZE, GB_PLAN_BY_LOAD, GB_PLAN_BY_DEATH, GB_PLAN_BY_AREA, GB_PLAN_BY_LOAD_AREA_WIDTH,
            GB_PLAN_BY_WIDTH, GB_PLAN_BY_BIRTH, GB_PLAN_BY_WIDTH_AREA_LOAD } };
    const bool                    many       = part->n > MANY;
    for (int k = 0; k < 2 * N && part->peak > goal; k++) {
        const bool free = k == 0 && part->n <= GB_PLAN_ALWAYS;
        size_t     peak;
        if (!free && budget->steps == 0) {
            break;
        }
        GB_TRY(gb_plan_first_fit(part, keys[many][k % N], k >= N, free ? NULL : budget, &peak));
        part->best_key = peak < part->peak ? (int) keys[many][k % N] : part->best_key;
        gb_plan_keep(part, peak);
    }
    return GGML_STATUS_SUCCESS;
}

// Skylines by three keys, while there is something to gain and to spend.
static enum ggml_status fill_valleys(struct gb_plan_part * part, size_t goal, struct gb_plan_budget * budget) {
    static const enum gb_plan_key keys[] = { GB_PLAN_BY_WIDTH, GB_PLAN_BY_SIZE, GB_PLAN_BY_AREA };
    for (size_t k = 0; k < GB_ARRAY_LEN(keys) && part->peak > goal && budget->steps > 0; k++) {
        size_t peak;
        GB_TRY(gb_plan_skyline(part, keys[k], budget, &peak));
        gb_plan_keep(part, peak);
    }
    return GGML_STATUS_SUCCESS;
}

// ----------------------------------------------------------------------------------------------------------- the whole

// What planning a problem may cost.
struct costs {
    size_t                capacity; // as that of the effort
    struct gb_plan_budget heuristic, search;
    bool                  whole; // not the critical buffers of another
};

static enum ggml_status plan_parts(struct gb_plan_problem * p, struct costs * costs, struct gb_plan_result * result);

// The critical buffers of the part as a problem of their own. What is proved of them holds for the part.
static enum ggml_status plan_critical(struct gb_plan_part * part, struct gb_plan_critical * c, size_t capacity,
    struct gb_plan_budget * budget, size_t * offsets, size_t * peak) {
    struct gb_plan_problem p;
    struct gb_plan_result  result;
    struct costs           costs  = { .capacity = capacity };
    costs.heuristic               = gb_plan_share(budget, budget->steps / 4);
    costs.search                  = gb_plan_share(budget, budget->steps * 2 / 3);
    enum ggml_status status       = gb_plan_problem_init(&p, c->items, c->n, 1);
    status                        = status == GGML_STATUS_SUCCESS ? plan_parts(&p, &costs, &result) : status;
    for (size_t i = 0; status == GGML_STATUS_SUCCESS && i < p.n; i++) {
        offsets[p.buffers[i].item] = p.offsets[i];
    }
    if (status == GGML_STATUS_SUCCESS) {
        part->bound = GB_MAX(part->bound, result.bound);
        *peak       = result.peak;
    }
    gb_plan_problem_free(&p);
    gb_plan_give_back(budget, &costs.heuristic);
    gb_plan_give_back(budget, &costs.search);
    return status;
}

// A plan of all from one of the critical buffers: these come first, the others in the order that did best.
static enum ggml_status extend_critical(struct gb_plan_part * part, const struct gb_plan_critical * c,
    const size_t * offsets, size_t goal, struct gb_plan_budget * budget) {
    uint32_t *                order    = gb_calloc(part->n, sizeof(*order));
    struct gb_plan_improver * improver = gb_plan_improver_new(part);
    enum ggml_status          status =
        order && improver ? gb_plan_order(part, (enum gb_plan_key) part->best_key, order) : GGML_STATUS_ALLOC_FAILED;
    status = status == GGML_STATUS_SUCCESS ? gb_plan_critical_order(part, c, offsets, order) : status;
    status = status == GGML_STATUS_SUCCESS ? gb_plan_improve_from(improver, order, goal, budget) : status;
    gb_plan_improver_free(improver);
    gb_free(order);
    return status;
}

// With about `limit` critical buffers; *n: how many there were the last time, which must be more now.
static enum ggml_status try_critical(struct gb_plan_part * part, uint32_t limit, size_t goal, size_t capacity,
    struct gb_plan_budget * budget, uint32_t * n) {
    struct gb_plan_critical c       = { 0 };
    size_t                  peak    = 0;
    size_t *                offsets = NULL;
    enum ggml_status        status  = gb_plan_critical_find(part, limit, &c);
    if (status == GGML_STATUS_SUCCESS && c.n > *n && c.n <= part->n / 4 * 3) {
        *n      = c.n;
        offsets = gb_calloc(c.n, sizeof(*offsets));
        status  = offsets ? plan_critical(part, &c, capacity, budget, offsets, &peak) : GGML_STATUS_ALLOC_FAILED;
        if (status == GGML_STATUS_SUCCESS && peak < part->peak) {
            status = extend_critical(part, &c, offsets, GB_MAX(goal, peak), budget);
        }
    }
    gb_free(offsets);
    gb_plan_critical_free(&c);
    return status;
}

// A sixteenth of the buffers, then a quarter: each has a quarter of the budget.
static enum ggml_status plan_from_critical(struct gb_plan_part * part, size_t goal, size_t capacity,
    struct gb_plan_budget * budget) {
    const uint64_t quarter = budget->steps / 4;
    uint32_t       n       = 0;
    for (int k = 0; k < 2 && part->peak > GB_MAX(goal, part->bound); k++) {
        struct gb_plan_budget  share  = gb_plan_share(budget, quarter);
        const uint32_t         limit  = k == 0 ? GB_MIN(part->n / 16, 1024) : GB_MIN(part->n / 4, 4096);
        const enum ggml_status status = try_critical(part, limit, goal, capacity, &share, &n);
        gb_plan_give_back(budget, &share);
        GB_TRY(status);
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status plan_part(struct gb_plan_part * part, size_t goal, size_t unit, struct costs * costs) {
    GB_TRY(fit_gaps(part, goal, &costs->heuristic));
    if (part->n <= MANY) {
        GB_TRY(fill_valleys(part, goal, &costs->heuristic));
    }
    if (costs->whole && part->n >= FEW && part->peak > goal && costs->search.steps > 0) {
        GB_TRY(plan_from_critical(part, goal, costs->capacity, &costs->search));
    }
    return gb_plan_search_part(part, GB_MAX(goal, part->bound), costs->capacity, unit, &costs->search);
}

// All stages for all parts.
static enum ggml_status plan_parts(struct gb_plan_problem * p, struct costs * costs, struct gb_plan_result * result) {
    size_t goal = GB_MAX(p->bound, costs->capacity);
    *result     = (struct gb_plan_result){ .lower_bound = p->bound, .bound = p->bound };
    for (size_t k = 0; k < p->n_parts; k++) {
        struct gb_plan_part * part = &p->parts[k];
        size_t                peak;
        part->peak = SIZE_MAX;
        GB_TRY(gb_plan_in_order(part, &peak));
        gb_plan_keep(part, peak);
        result->best_fit = GB_MAX(result->best_fit, peak);
        GB_TRY(plan_part(part, goal, p->unit, costs));
        if (costs->heuristic.gave_up || costs->search.gave_up) {
            return GGML_STATUS_ABORTED;
        }
        result->peak  = GB_MAX(result->peak, part->peak);
        result->bound = GB_MAX(result->bound, part->bound);
        goal          = GB_MAX(goal, part->peak); // the others need not be smaller
    }
    result->proved = result->peak <= result->bound;
    return GGML_STATUS_SUCCESS;
}

// The heuristics have steps of their own, and more of them where the search has more.
static enum ggml_status plan_problem(struct gb_plan_problem * p, const struct gb_plan_effort * effort,
    struct gb_plan_result * result) {
    const int64_t deadline = effort->limit_ns > 0 ? gb_time_ns() + effort->limit_ns : INT64_MAX;
    struct costs  costs    = { .capacity = effort->capacity,
            .heuristic   = { .steps = HEURISTIC_STEPS + effort->steps / 2, .deadline = deadline },
            .search      = { .steps = effort->steps, .deadline = deadline },
            .whole       = true };
    return plan_parts(p, &costs, result);
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
        status = plan_problem(&p, effort, &found);
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
