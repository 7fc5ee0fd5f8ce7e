// plan_parts.c - plans all parts of a problem: heuristics for each part, then the search for the
// highest part.
//
// 1. Each part gets the plan of in-order best fit. It is the fallback: no result may be worse.
// 2. First fit runs in several orders, then skyline, until the part reaches the goal.
// 3. The search improves the highest part, again and again. Lower parts do not matter until the highest
//   has become lower.
#include "plan/plan_impl.h"

#include "base/mem.h"
#include "base/status.h"
#include "plan/plan_search.h"

#define STEPS_ORDERS 2000 // per buffer, for the best orders

// ---------------------------------------------------------------------------------------------------------- heuristics

static enum ggml_status try_skylines(struct gb_plan_part * part, size_t goal, struct gb_plan_budget * budget) {
    static const enum gb_plan_key keys[] = { GB_PLAN_BY_WIDTH, GB_PLAN_BY_SIZE, GB_PLAN_BY_AREA };
    for (size_t k = 0; k < GB_ARRAY_LEN(keys) && part->peak > goal && budget->steps > 0; k++) {
        size_t peak;
        GB_TRY(gb_plan_skyline(part, keys[k], budget, &peak));
        gb_plan_keep(part, peak);
    }
    return GGML_STATUS_SUCCESS;
}

// Steps that the orders may cost: a half to a sixth of the budget, in very large parts all of it.
// Dense parts get at least STEPS_ORDERS per buffer, because orders help them most.
static uint64_t steps_for_orders(const struct gb_plan_part * part, uint64_t steps) {
    if (part->n > GB_PLAN_MAX_PROMISED) {
        return steps;
    }
    const uint64_t least = gb_plan_is_sparse(part) ? 0 : (uint64_t) part->n * STEPS_ORDERS;
    return GB_MAX(steps / (part->n <= GB_PLAN_MANY ? 2 : part->n <= GB_PLAN_VERY_MANY ? 3 : 6), least);
}

// A part with groups gets one order for all buffers together, then a plan by groups.
static enum ggml_status fit_part(struct gb_plan_part * part, size_t goal, size_t unit, struct gb_plan_costs * costs) {
    const bool all = costs->whole && part->n <= GB_PLAN_MANY;
    const bool has_groups = costs->whole && gb_plan_has_groups(part, GB_PLAN_THROUGHOUT);
    struct gb_plan_budget share = gb_plan_share(&costs->heuristic, steps_for_orders(part, costs->heuristic.steps));
    const enum gb_plan_orders orders = has_groups ? GB_PLAN_SIZE_ORDER : all ? GB_PLAN_ALL_ORDERS : GB_PLAN_BEST_ORDERS;
    enum ggml_status status = gb_plan_try_orders(part, goal, orders, costs->n_threads, &share);
    if (status == GGML_STATUS_SUCCESS && part->n <= GB_PLAN_MANY && !has_groups) {
        status = try_skylines(part, goal, &share);
    }
    gb_plan_give_back(&costs->heuristic, &share);
    part->unfinished = part->peak > goal;
    if (status == GGML_STATUS_SUCCESS && has_groups && part->peak > goal && !costs->heuristic.aborted) {
        struct gb_plan_costs heuristics = *costs;
        heuristics.search_part = NULL;
        status = gb_plan_by_groups(part, GB_PLAN_THROUGHOUT, goal, unit, &heuristics);
        costs->heuristic = heuristics.heuristic;
    }
    return status;
}

// ----------------------------------------------------------------------------------------------------------- all parts

static size_t top_of(const struct gb_plan_part * part) { return part->floor + part->peak; }

// The goal of a part: the common goal less the floor, but at least the part's bound.
static size_t goal_of(const struct gb_plan_part * part, size_t goal) {
    return GB_MAX(goal > part->floor ? goal - part->floor : 0, part->bound);
}

// The costs with the capacity above the part's floor. A capacity of 0 means none, so a used-up one becomes 1.
static struct gb_plan_costs costs_of(const struct gb_plan_part * part, const struct gb_plan_costs * costs) {
    struct gb_plan_costs above = *costs;
    above.capacity = costs->capacity > part->floor ? costs->capacity - part->floor : GB_MIN(costs->capacity, 1);
    return above;
}

static enum ggml_status status_of(const struct gb_plan_costs * costs) {
    return costs->heuristic.aborted || costs->search.aborted ? GGML_STATUS_ABORTED : GGML_STATUS_SUCCESS;
}

static enum ggml_status fit(struct gb_plan_problem * p, struct gb_plan_part * part, size_t goal,
    struct gb_plan_costs * costs, size_t * best_fit) {
    part->peak = SIZE_MAX;
    if (part->n == 1) { // fast path: a chain has many such parts
        part->offsets[0] = 0;
        *best_fit = part->buffers[0].size;
        part->peak = *best_fit;
        return GGML_STATUS_SUCCESS;
    }
    GB_TRY(gb_plan_in_order(part, best_fit));
    gb_plan_keep(part, *best_fit);
    if (!gb_plan_can_search_exact(part)) { // the heuristics get the share of exact search
        const struct gb_plan_budget more =
            gb_plan_share(&costs->search, (uint64_t) ((double) costs->search.steps * part->n / (double) p->n));
        gb_plan_give_back(&costs->heuristic, &more);
    }
    struct gb_plan_costs above = costs_of(part, costs);
    GB_TRY(fit_part(part, goal_of(part, goal), p->unit, &above));
    costs->heuristic = above.heuristic;
    return status_of(costs);
}

// Searches a part with a fraction of both budgets.
static enum ggml_status search(struct gb_plan_problem * p, struct gb_plan_part * part, size_t goal, double fraction,
    struct gb_plan_costs * costs) {
    struct gb_plan_costs share = costs_of(part, costs);
    share.heuristic = gb_plan_share(&costs->heuristic, (uint64_t) (fraction * (double) costs->heuristic.steps));
    share.search = gb_plan_share(&costs->search, (uint64_t) (fraction * (double) costs->search.steps));
    const enum ggml_status status = costs->search_part(part, goal_of(part, goal), p->unit, &share);
    gb_plan_give_back(&costs->heuristic, &share.heuristic);
    gb_plan_give_back(&costs->search, &share.search);
    GB_TRY(status);
    return status_of(costs);
}

// Among equal parts, the part with the larger bound, which comes first.
static struct gb_plan_part * highest_of(struct gb_plan_problem * p) {
    struct gb_plan_part * best = &p->parts[0];
    for (size_t k = 1; k < p->n_parts; k++) {
        best = top_of(&p->parts[k]) > top_of(best) ? &p->parts[k] : best;
    }
    return best;
}

// Searches the highest part until the goal is reached or the budget is used up. If n parts are
// above the goal, its first share is 1/n of the budget. Each further share of the same part is at
// least twice the previous one.
static enum ggml_status search_all(struct gb_plan_problem * p, size_t goal, struct gb_plan_costs * costs) {
    for (;;) {
        struct gb_plan_part * part = highest_of(p);
        const double left = (double) costs->heuristic.steps + (double) costs->search.steps;
        size_t n = 0, bound = 0;
        if (top_of(part) <= goal || part->floor + goal_of(part, goal) >= top_of(part)) {
            return GGML_STATUS_SUCCESS;
        }
        for (size_t k = 0; k < p->n_parts; k++) {
            n += top_of(&p->parts[k]) > goal;
            bound = GB_MAX(bound, p->parts[k].below + p->parts[k].bound);
        }
        if (costs->capacity > 0 && bound > costs->capacity && part->last_share > 0) { // proved: no plan fits
            return GGML_STATUS_SUCCESS;
        }
        const double share = n > 1 ? GB_MAX(left / (double) n, 2 * part->last_share) : left;
        if (left < part->last_share || left == 0) {
            return GGML_STATUS_SUCCESS;
        }
        part->last_share = GB_MIN(share, left);
        if (!gb_plan_spend(&costs->heuristic, p->n_parts)) { // for the loop over all parts
            (void) gb_plan_spend(&costs->search, p->n_parts);
        }
        GB_TRY(search(p, part, goal, part->last_share / left, costs));
        if (n == 1) { // the part had the whole budget
            return GGML_STATUS_SUCCESS;
        }
    }
}

enum ggml_status gb_plan_parts(struct gb_plan_problem * p, size_t goal, struct gb_plan_costs * costs,
    struct gb_plan_result * result) {
    *result = (struct gb_plan_result){ .lower_bound = p->bound };
    for (size_t k = 0; k < p->n_parts; k++) {
        size_t best_fit;
        GB_TRY(fit(p, &p->parts[k], goal, costs, &best_fit));
        result->best_fit = GB_MAX(result->best_fit, best_fit);
    }
    if (p->n_parts > 0 && costs->search_part) {
        const uint64_t before = gb_fail_count();
        const enum ggml_status status = search_all(p, goal, costs);
        if (status != GGML_STATUS_ALLOC_FAILED) {
            GB_TRY(status);
        } else { // every part still has a valid plan
            gb_forget_failures_since(before);
            costs->heuristic.steps = costs->search.steps = 0;
        }
    }
    for (size_t k = 0; k < p->n_parts; k++) {
        const struct gb_plan_part * part = &p->parts[k];
        const size_t top = top_of(part);
        result->unfinished =
            top > result->peak ? part->unfinished : result->unfinished || (part->unfinished && top == result->peak);
        result->peak = GB_MAX(result->peak, top);
        result->bound = GB_MAX(result->bound, part->below + part->bound);
    }
    result->proved = result->peak <= result->bound;
    result->unfinished = result->unfinished && !result->proved && result->peak > costs->capacity;
    return GGML_STATUS_SUCCESS;
}
