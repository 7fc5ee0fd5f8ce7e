// plan_strategy.c - chooses which methods of the search run on a part, and for how long.
//
// 1. If long-lived buffers separate the other buffers into independent groups, each group is planned alone.
// 2. If the plan still misses the goal, the methods run round-robin until the budget is spent: exact
//   search, new plans around the peaks, plans of the critical buffers, ejection chains, first fit in
//   learned orders.
//
// The methods alternate because no cheap test predicts which method will help. Each round doubles
// the budget of a turn, or follows the cost of the last pass of exact search. A method that
// improved the plan runs again at once.
#include "plan/search/plan_methods.h"

#include "base/mem.h"
#include "base/status.h"

#define FEW 512             // buffers; for smaller parts exact search is the best method
#define FIRST_PLACEMENTS 8  // runs of first fit that the first turn is worth
#define MIN_STEPS 10000     // of a turn, because turns of no steps would never end
#define MIN_PLACEMENTS 4    // runs of first fit that a turn of learning needs
#define MAX_TURNS 4         // of one method in a row
#define MIN_EJECT 64        // buffers; ejection chains need several to move
#define FIRST_PASSES 2      // of exact search among few buffers that get a quarter of the budget
#define STEPS_PER_BUFFER 400 // of first fit among many
#define STEPS_CRITICAL 2500 // per buffer, to plan the critical buffers, then all
#define STEPS_ALL 20000     // per buffer, for a turn of each method
#define MIN_PASS 16000000   // steps of a pass of exact search

// --------------------------------------------------------------------------------------------------------------- turns

enum method { LOWER_PEAKS, FEW_CRITICAL, MANY_CRITICAL, EJECT, LEARN, N_METHODS };

// State that methods keep from turn to turn.
struct state {
    struct gb_plan_part * part; // borrowed
    struct gb_plan_passes * passes; // owned; NULL: the part is too large for exact search
    struct gb_plan_learner * learner; // owned; made in its first turn
    struct gb_plan_ejector * ejector; // owned; made in its first turn
    size_t goal, unit, capacity;
};

static enum ggml_status eject(struct state * t, struct gb_plan_budget * budget) {
    t->ejector = t->ejector ? t->ejector : gb_plan_ejector_new(t->part);
    return t->ejector ? gb_plan_eject(t->ejector, t->goal, t->unit, budget) : GGML_STATUS_ALLOC_FAILED;
}

static enum ggml_status run(struct state * t, enum method m, struct gb_plan_budget * budget) {
    const uint32_t n = t->part->n;
    switch (m) {
        case EJECT: return gb_plan_can_eject(t->part) ? eject(t, budget) : GGML_STATUS_SUCCESS;
        case LOWER_PEAKS: return gb_plan_lower_peaks(t->part, t->goal, budget);
        case FEW_CRITICAL:
            return gb_plan_from_critical(t->part, GB_MIN(n / 16, 1024), t->goal, t->unit, t->capacity, budget);
        case MANY_CRITICAL:
            return gb_plan_from_critical(t->part, GB_MIN(n / 4, 4096), t->goal, t->unit, t->capacity, budget);
        default: break;
    }
    t->learner = t->learner ? t->learner : gb_plan_learner_new(t->part);
    return t->learner ? gb_plan_learn(t->learner, t->goal, budget) : GGML_STATUS_ALLOC_FAILED;
}

// Runs a method for a turn, and for more turns as long as each improves the plan.
static enum ggml_status take_turns(struct state * t, enum method m, uint64_t steps, struct gb_plan_budget * budget) {
    bool lower = true;
    for (int k = 0; k < MAX_TURNS && lower && t->part->peak > t->goal && budget->steps > 0; k++) {
        const size_t before = t->part->peak;
        struct gb_plan_budget turn = gb_plan_share(budget, steps);
        const enum ggml_status status = run(t, m, &turn);
        gb_plan_give_back(budget, &turn);
        GB_TRY(status);
        t->goal = GB_MAX(t->goal, t->part->bound);
        lower = t->part->peak < before;
    }
    return GGML_STATUS_SUCCESS;
}

static uint64_t steps_of_first_turn(const struct gb_plan_part * part) {
    const uint64_t n = part->n;
    return FIRST_PLACEMENTS * (n * 200 + GB_MIN(part->n_pairs, n * n / 4));
}

// The sequence of methods. Critical buffers come first if the budget is large enough for them and
// for the others after them, because a good plan of them makes ejection easy. Ejection comes first
// in very large sparse parts, and if the budget is small, because it is cheap there.
static const enum method * sequence_of(const struct gb_plan_part * part, uint64_t steps) {
    static const enum method usual[] = { LOWER_PEAKS, FEW_CRITICAL, MANY_CRITICAL, EJECT, LEARN };
    static const enum method critical[] = { FEW_CRITICAL, MANY_CRITICAL, EJECT, LOWER_PEAKS, LEARN };
    static const enum method dense[] = { MANY_CRITICAL, EJECT, LOWER_PEAKS, FEW_CRITICAL, LEARN };
    static const enum method small_budget[] = { EJECT, FEW_CRITICAL, MANY_CRITICAL, LOWER_PEAKS, LEARN };
    static const enum method very_many[] = { EJECT, LOWER_PEAKS, FEW_CRITICAL, MANY_CRITICAL, LEARN };
    const uint64_t n = part->n;
    if (n <= GB_PLAN_MANY) {
        return steps > n * STEPS_ALL ? critical : usual;
    }
    if (!gb_plan_is_sparse(part)) {
        return dense;
    }
    if (n > GB_PLAN_VERY_MANY) {
        return very_many;
    }
    return steps / 2 < n * STEPS_CRITICAL ? small_budget : critical;
}

// The minimum number of steps of a turn. Ejection chains are long among many buffers. Critical
// buffers only help if first they and then all others are planned to the end.
static uint64_t min_steps_of(const struct gb_plan_part * part, enum method m, uint64_t steps) {
    const bool sparse = gb_plan_is_sparse(part);
    if (part->n <= GB_PLAN_MANY) {
        return 0;
    }
    if (sparse) {
        return m == FEW_CRITICAL ? GB_MIN(steps / 2, (uint64_t) part->n * STEPS_CRITICAL) : 0;
    }
    return m == MANY_CRITICAL ? steps / 3 : m == EJECT ? steps / 4 : 0;
}

// -------------------------------------------------------------------------------------------------------------- rounds

// Turns of ejection and learning only, because all buffers of a small part, and of a subproblem,
// are critical.
static enum ggml_status take_few_turns(struct state * t, uint64_t steps, struct gb_plan_budget * budget) {
    const uint32_t n = t->part->n;
    if (n >= FEW) {
        GB_TRY(take_turns(t, EJECT, GB_MAX(steps, budget->steps / 4), budget));
    }
    GB_TRY(take_turns(t, LEARN, steps, budget));
    return n < FEW && n >= MIN_EJECT ? take_turns(t, EJECT, steps / 2, budget) : GGML_STATUS_SUCCESS;
}

// Turns of each method except exact search, each with a share of the budget.
static enum ggml_status take_all_turns(struct state * t, uint64_t steps, struct gb_plan_costs * costs) {
    if (!costs->whole || t->part->n < FEW) {
        return take_few_turns(t, steps, &costs->heuristic);
    }
    const uint64_t share = GB_MIN(steps, costs->heuristic.steps / N_METHODS + MIN_STEPS);
    const bool too_short = share < (uint64_t) MIN_PLACEMENTS * t->part->n * STEPS_PER_BUFFER; // to learn from
    const enum method * methods = sequence_of(t->part, costs->heuristic.steps);
    for (int k = 0; k < N_METHODS; k++) {
        if (methods[k] != LEARN || !too_short) {
            const uint64_t least = min_steps_of(t->part, methods[k], costs->heuristic.steps);
            GB_TRY(take_turns(t, methods[k], GB_MAX(share, least), &costs->heuristic));
        }
    }
    return GGML_STATUS_SUCCESS;
}

// A pass of exact search. It gets half of the remaining budget, so that a failed pass leaves steps
// for other methods. Among few buffers the first passes get a quarter, later passes all of it.
static enum ggml_status search_exact(struct state * t, int rounds, struct gb_plan_budget * budget) {
    const uint64_t divisor = t->part->n >= FEW ? 2 : rounds < FIRST_PASSES ? 4 : 1;
    struct gb_plan_budget pass = gb_plan_share(budget, GB_MAX(budget->steps / divisor, MIN_PASS));
    const enum ggml_status status = gb_plan_run_pass(t->passes, &pass, &t->goal);
    gb_plan_give_back(budget, &pass);
    return status;
}

// True if the capacity is proved to be too small.
static bool is_hopeless(const struct state * t) { return t->capacity > 0 && t->part->bound > t->capacity; }

// Rounds until the goal is reached or the budget is used up. A larger budget would probably help if
// the second half of this budget helped, or if no round was completed.
static enum ggml_status run_rounds(struct state * t, struct gb_plan_costs * costs) {
    struct gb_plan_part * part = t->part;
    const uint64_t all = costs->heuristic.steps + costs->search.steps;
    size_t halfway = SIZE_MAX;
    uint64_t steps = GB_MIN(steps_of_first_turn(part), costs->heuristic.steps / 10 + MIN_STEPS);
    int rounds = 0;
    GB_TRY(take_all_turns(t, steps, costs));
    while (part->peak > t->goal && !is_hopeless(t) && costs->heuristic.steps + costs->search.steps > 0) {
        const uint64_t before = costs->search.steps, left = before + costs->heuristic.steps;
        halfway = left > all / 2 ? part->peak : halfway;
        if (t->passes && before > 0) {
            GB_TRY(search_exact(t, rounds, &costs->search));
            if (is_hopeless(t)) {
                break;
            }
            // As long as the pass. Among few buffers a quarter of it, because exact search helps
            // most there.
            steps = GB_MAX(steps, (before - costs->search.steps) / (part->n < FEW ? 4 : 1));
        } else if (costs->heuristic.steps == 0) {
            break;
        } else if (rounds == 0) {
            steps *= 2; // the same steps would give the same plan
        }
        rounds += costs->heuristic.steps > 0;
        GB_TRY(take_all_turns(t, steps, costs));
        steps *= 2;
        if (costs->heuristic.steps + costs->search.steps == left) {
            break; // no method could do anything
        }
    }
    part->unfinished = part->peak > t->goal && (rounds < 2 || part->peak < halfway);
    return GGML_STATUS_SUCCESS;
}

// -------------------------------------------------------------------------------------------------------------- search

static enum ggml_status search_together(struct gb_plan_part * part, size_t goal, size_t unit,
    struct gb_plan_costs * costs) {
    struct state t = { .part = part, .goal = GB_MAX(goal, part->bound), .unit = unit, .capacity = costs->capacity };
    enum ggml_status status = GGML_STATUS_SUCCESS;
    if (gb_plan_can_search_exact(part)) {
        t.passes = gb_plan_passes_new(part, t.goal, costs->capacity, unit);
        status = t.passes ? status : GGML_STATUS_ALLOC_FAILED;
    }
    if (part->n >= FEW) { // the other methods help more
        const struct gb_plan_budget more = gb_plan_share(&costs->search, costs->search.steps / 2);
        gb_plan_give_back(&costs->heuristic, &more);
    }
    status = status == GGML_STATUS_SUCCESS ? run_rounds(&t, costs) : status;
    gb_plan_passes_free(t.passes);
    gb_plan_learner_free(t.learner);
    gb_plan_ejector_free(t.ejector);
    return status;
}

// Buffers alive throughout can be at the bottom of a best plan. Other long buffers perhaps cannot,
// so the plan that puts them there gets only half of the budget.
enum ggml_status gb_plan_search_part(struct gb_plan_part * part, size_t goal, size_t unit,
    struct gb_plan_costs * costs) {
    if (costs->whole && gb_plan_has_groups(part, GB_PLAN_THROUGHOUT)) {
        return gb_plan_by_groups(part, GB_PLAN_THROUGHOUT, goal, unit, costs);
    }
    if (costs->whole && gb_plan_has_groups(part, GB_PLAN_LONG)) {
        struct gb_plan_costs half = *costs;
        half.heuristic = gb_plan_share(&costs->heuristic, costs->heuristic.steps / 2);
        half.search = gb_plan_share(&costs->search, costs->search.steps / 2);
        GB_TRY(gb_plan_by_groups(part, GB_PLAN_LONG, goal, unit, &half));
        gb_plan_give_back(&costs->heuristic, &half.heuristic);
        gb_plan_give_back(&costs->search, &half.search);
    }
    if (!gb_plan_can_search_exact(part)) { // the other methods get the share of exact search
        gb_plan_give_back(&costs->heuristic, &costs->search);
        costs->search.steps = 0;
    }
    return part->peak > GB_MAX(goal, part->bound) ? search_together(part, goal, unit, costs) : GGML_STATUS_SUCCESS;
}
