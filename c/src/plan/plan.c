// plan.c - the public functions of the planner.
//
// They convert the caller's limits (capacity, milliseconds, threads) to budgets in steps, plan all
// parts (plan_parts.c), and write offsets only after success.
#include "plan/plan.h"

#include <string.h>

#include "plan/plan_search.h"
#include "base/current.h"
#include "base/env.h"
#include "base/mem.h"
#include "base/status.h"
#include "ggml-plan.h"

#define DEFAULT_LIMIT_NS (200 * (int64_t) 1000000) // the default steps end before, except on very slow machines
#define HEURISTIC_STEPS ((uint64_t) 1 << 22) // for heuristics after first fit by size

// ----------------------------------------------------------------------------------------------------------- the whole

// The heuristics have their own budget, which grows with that of the search.
static enum ggml_status plan_problem(struct gb_plan_problem * p, const struct gb_plan_effort * effort,
    struct gb_plan_result * result) {
    const int64_t deadline = effort->limit_ns > 0 ? gb_thread_time_ns() + effort->limit_ns : INT64_MAX;
    struct gb_plan_costs costs = { .capacity = effort->capacity,
        .heuristic = { .steps = HEURISTIC_STEPS + effort->steps / 4, .deadline = deadline },
        .search = { .steps = effort->steps, .deadline = deadline },
        .whole = true,
        .search_part = effort->steps > 0 ? gb_plan_search_part : NULL,
        .n_threads = effort->n_threads };
    return gb_plan_parts(p, GB_MAX(p->bound, effort->capacity), &costs, result);
}

// ------------------------------------------------------------------------------------------------------------- results

// Empty items, and items that are never alive, get offset 0.
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
    struct gb_plan_result found;
    enum ggml_status status = gb_plan_problem_init(&p, items, n, alignment);
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

enum ggml_status gb_plan_offsets(struct gb_plan_item * items, size_t n, size_t alignment,
    struct gb_plan_result * result) {
    const struct gb_plan_effort effort = { .steps = GB_PLAN_DEFAULT_STEPS, .limit_ns = DEFAULT_LIMIT_NS };
    return gb_plan_search(items, n, alignment, &effort, result);
}

// ---------------------------------------------------------------------------------------------------- public functions

// Raises the peak to the largest buffer that is never alive, so that programs may use the offset of
// every buffer.
static enum ggml_status hold_idle(const struct gb_plan_item * items, size_t n, size_t alignment,
    struct gb_plan_result * result) {
    size_t most = 0, padded;
    for (size_t i = 0; i < n; i++) {
        if (items[i].lower == items[i].upper) {
            GB_FAIL_IF(!gb_pad_size(items[i].size, alignment, &padded), GGML_STATUS_INVALID_ARGUMENT,
                "ggml_plan_memory: the size of buffer %zu, %zu bytes, overflows", i, items[i].size);
            most = GB_MAX(most, padded);
        }
    }
    if (most >= result->peak) {
        result->peak = most;
        result->proved = true;
    }
    result->bound = GB_MAX(result->bound, most);
    result->lower_bound = GB_MAX(result->lower_bound, most);
    result->best_fit = GB_MAX(result->best_fit, most);
    result->unfinished = result->unfinished && !result->proved;
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status plan_arrays(size_t n, const int64_t * lower, const int64_t * upper, const size_t * size,
    size_t alignment, const struct gb_plan_effort * effort, size_t * offsets, struct gb_plan_result * result) {
    struct gb_plan_item * items = gb_calloc(n + 1, sizeof(*items));
    if (items == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (size_t i = 0; i < n; i++) {
        items[i] = (struct gb_plan_item){ lower[i], upper[i], size[i], 0 };
    }
    enum ggml_status status = gb_plan_search(items, n, alignment, effort, result);
    if (status == GGML_STATUS_SUCCESS) {
        status = hold_idle(items, n, alignment, result);
    }
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
    const int64_t start = gb_time_ns();
    const int64_t ms = GB_MIN(options->budget_ms, (int64_t) 1000 * 1000 * 1000);
    const struct gb_plan_effort effort = { options->capacity, (uint64_t) ms * GB_PLAN_STEPS_PER_MS,
        options->reproducible ? 0 : ms * 1000000, options->n_threads };
    struct gb_plan_result result;
    GB_TRY(plan_arrays(n, lower, upper, size, alignment, &effort, offsets, &result));
    if (info) {
        *info = (struct ggml_plan_info){ result.peak, result.lower_bound, result.best_fit, result.proved,
            (double) (gb_time_ns() - start) / 1e6, result.bound, result.bound > result.lower_bound, result.unfinished };
    }
    GB_FAIL_IF(options->capacity > 0 && result.peak > options->capacity, GGML_STATUS_ALLOC_FAILED,
        "%s: needs %zu bytes, has %zu%s", __func__, result.peak, options->capacity,
        result.bound > options->capacity ? ": no plan fits" : "; no smaller plan was found within the budget");
    return GGML_STATUS_SUCCESS;
}

enum ggml_status ggml_plan_memory(size_t n, const int64_t * lower, const int64_t * upper, const size_t * size,
    size_t alignment, size_t capacity, int64_t budget_ms, size_t * offsets, struct ggml_plan_info * info) {
    const struct ggml_plan_options options = { .capacity = capacity, .budget_ms = budget_ms, .n_threads = 1 };
    return ggml_plan_memory_with(n, lower, upper, size, alignment, &options, offsets, info);
}
