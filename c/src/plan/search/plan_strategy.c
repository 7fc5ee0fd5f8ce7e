// plan_part.c - planning parts, one after the other: what is tried, in which order, and how long.
//
// In-order best fit first, as nothing may be worse; then first fit by several keys and skylines. What is then above the
// goal is planned apart where long buffers hold it together, then gets turns: complete search, which finds plans
// without a gap and proves that there is none where parts are small; the peaks planned anew; the critical buffers
// alone; room made for what lies highest; first fit in orders that are learned, which comes close. Nothing says
// beforehand which will do: a turn is as long as a pass of the search, or twice the one before, and what helps has
// another at once.
#include "plan/plan_impl.h"

#include "base/mem.h"
#include "base/status.h"

#define FEW 512
#define FIRST_ROUNDS 8 // of first fit, in the first turn
#define LEAST_STEPS 10000 // of a turn: one of none would never end
#define LEAST_ROUNDS 4
#define MAX_TURNS 4 // one after the other
#define LEAST_ROOM 64 // buffers to make room among
#define FIRST_PASSES 2 // of the search among few, which do not get all that is left
#define STEPS_A_BUFFER 400 // of first fit, where there are many
#define STEPS_ORDERS 2000 // a buffer, for a few orders
#define STEPS_CRITICAL 2500 // to plan those that decide and then all
#define STEPS_ALL 20000 // for turns of everything
#define LEAST_PASS 16000000

// ---------------------------------------------------------------------------------------------------------- heuristics

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

// --------------------------------------------------------------------------------------------------------------- turns

enum method { LOWER_PEAKS, FEW_CRITICAL, MANY_CRITICAL, MAKE_ROOM, LEARN, N_METHODS };

struct turns {
    struct gb_plan_part * part; // borrowed
    struct gb_plan_searcher * searcher; // owned; NULL: the part is too large
    struct gb_plan_improver * improver; // owned; made when its turn comes, as the next
    struct gb_plan_ejector * ejector; // owned
    size_t goal, unit, capacity;
};

static enum ggml_status make_room(struct turns * t, struct gb_plan_budget * budget) {
    t->ejector = t->ejector ? t->ejector : gb_plan_ejector_new(t->part);
    return t->ejector ? gb_plan_eject(t->ejector, t->goal, t->unit, budget) : GGML_STATUS_ALLOC_FAILED;
}

static enum ggml_status run(struct turns * t, enum method m, struct gb_plan_budget * budget) {
    const uint32_t n = t->part->n;
    switch (m) {
        case MAKE_ROOM: return gb_plan_can_eject(t->part) ? make_room(t, budget) : GGML_STATUS_SUCCESS;
        case LOWER_PEAKS: return gb_plan_lower_peaks(t->part, t->goal, budget);
        case FEW_CRITICAL:
            return gb_plan_from_critical(t->part, GB_MIN(n / 16, 1024), t->goal, t->unit, t->capacity, budget);
        case MANY_CRITICAL:
            return gb_plan_from_critical(t->part, GB_MIN(n / 4, 4096), t->goal, t->unit, t->capacity, budget);
        default: break;
    }
    t->improver = t->improver ? t->improver : gb_plan_improver_new(t->part);
    return t->improver ? gb_plan_improve(t->improver, t->goal, budget) : GGML_STATUS_ALLOC_FAILED;
}

// As long as it helps, up to some turns.
static enum ggml_status take_turns(struct turns * t, enum method m, uint64_t steps, struct gb_plan_budget * budget) {
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

// What some rounds of first fit cost.
static uint64_t first_turn(const struct gb_plan_part * part) {
    const uint64_t n = part->n;
    return FIRST_ROUNDS * (n * 200 + GB_MIN(part->n_pairs, n * n / 4));
}

// The sequence of turns. Those alive where most bytes are decide, and room for the others is soon made, for a good plan
// of these above all: so they come first, where there is enough for both. Where few of many are alive with each, or
// there are too many, room comes first if little is left, since it costs little then.
static const enum method * sequence_of(const struct gb_plan_part * part, uint64_t steps) {
    static const enum method usual[] = { LOWER_PEAKS, FEW_CRITICAL, MANY_CRITICAL, MAKE_ROOM, LEARN };
    static const enum method decided[] = { FEW_CRITICAL, MANY_CRITICAL, MAKE_ROOM, LOWER_PEAKS, LEARN };
    static const enum method crowded[] = { MANY_CRITICAL, MAKE_ROOM, LOWER_PEAKS, FEW_CRITICAL, LEARN };
    static const enum method tight[] = { MAKE_ROOM, FEW_CRITICAL, MANY_CRITICAL, LOWER_PEAKS, LEARN };
    static const enum method vast[] = { MAKE_ROOM, LOWER_PEAKS, FEW_CRITICAL, MANY_CRITICAL, LEARN };
    const uint64_t n = part->n;
    if (n <= GB_PLAN_MANY) {
        return steps > n * STEPS_ALL ? decided : usual;
    }
    if (!gb_plan_few_meet(part)) {
        return crowded;
    }
    if (n > GB_PLAN_MAX_EJECT) {
        return vast;
    }
    return steps / 2 < n * STEPS_CRITICAL ? tight : decided;
}

// How many steps a turn has at least: a chain of moves is long where buffers are many, and critical buffers are of use
// only if they and all others are planned to the end.
static uint64_t least_of(const struct gb_plan_part * part, enum method m, uint64_t steps) {
    const bool few_meet = gb_plan_few_meet(part);
    if (part->n <= GB_PLAN_MANY) {
        return 0;
    }
    if (few_meet) {
        return m == FEW_CRITICAL ? GB_MIN(steps / 2, (uint64_t) part->n * STEPS_CRITICAL) : 0;
    }
    return m == MANY_CRITICAL ? steps / 3 : m == MAKE_ROOM ? steps / 4 : 0;
}

// A turn of each method but the search, none longer than a share of what is left. Few buffers are all critical.
static enum ggml_status take_all(struct turns * t, uint64_t steps, struct gb_plan_costs * costs) {
    if (!costs->whole || t->part->n < FEW) {
        if (t->part->n >= FEW) {
            GB_TRY(take_turns(t, MAKE_ROOM, GB_MAX(steps, costs->heuristic.steps / 4), &costs->heuristic));
        }
        GB_TRY(take_turns(t, LEARN, steps, &costs->heuristic));
        return t->part->n < FEW && t->part->n >= LEAST_ROOM ? take_turns(t, MAKE_ROOM, steps / 2, &costs->heuristic)
                                                            : GGML_STATUS_SUCCESS;
    }
    const uint64_t share = GB_MIN(steps, costs->heuristic.steps / N_METHODS + LEAST_STEPS);
    const bool few = share < (uint64_t) LEAST_ROUNDS * t->part->n * STEPS_A_BUFFER; // to learn from
    const enum method * methods = sequence_of(t->part, costs->heuristic.steps);
    for (int k = 0; k < N_METHODS; k++) {
        if (methods[k] != LEARN || !few) {
            const uint64_t least = least_of(t->part, methods[k], costs->heuristic.steps);
            GB_TRY(take_turns(t, methods[k], GB_MAX(share, least), &costs->heuristic));
        }
    }
    return GGML_STATUS_SUCCESS;
}

// A pass of the search. One in vain must leave something for what may help: among more than a few buffers each has half
// of what is left, among few the first ones have a quarter, unless that is little.
static enum ggml_status search(struct turns * t, int rounds, struct gb_plan_budget * budget) {
    const uint64_t of_left = t->part->n >= FEW ? 2 : rounds < FIRST_PASSES ? 4 : 1;
    struct gb_plan_budget pass = gb_plan_share(budget, GB_MAX(budget->steps / of_left, LEAST_PASS));
    const enum ggml_status status = gb_plan_search_pass(t->searcher, &pass, &t->goal);
    gb_plan_give_back(budget, &pass);
    return status;
}

// Whether the capacity is known to be too small: then there is nothing to look for.
static bool is_hopeless(const struct turns * t) { return t->capacity > 0 && t->part->bound > t->capacity; }

// Rounds of turns until the goal is reached or the budget used up. Then more would probably help if it did in the later
// half, or if there was no whole round.
static enum ggml_status all_turns(struct turns * t, struct gb_plan_costs * costs) {
    struct gb_plan_part * part = t->part;
    const uint64_t all = costs->heuristic.steps + costs->search.steps;
    size_t halfway = SIZE_MAX;
    uint64_t steps = GB_MIN(first_turn(part), costs->heuristic.steps / 10 + LEAST_STEPS);
    int rounds = 0;
    GB_TRY(take_all(t, steps, costs));
    while (part->peak > t->goal && !is_hopeless(t) && costs->heuristic.steps + costs->search.steps > 0) {
        const uint64_t before = costs->search.steps, left = before + costs->heuristic.steps;
        halfway = left > all / 2 ? part->peak : halfway;
        if (t->searcher && before > 0) {
            GB_TRY(search(t, rounds, &costs->search));
            if (is_hopeless(t)) {
                break;
            }
            steps = GB_MAX(steps, (before - costs->search.steps) / (part->n < FEW ? 4 : 1)); // few: the search does it
        } else if (costs->heuristic.steps == 0) {
            break;
        } else if (rounds == 0) {
            steps *= 2; // the same again would bring the same
        }
        rounds += costs->heuristic.steps > 0;
        GB_TRY(take_all(t, steps, costs));
        steps *= 2;
        if (costs->heuristic.steps + costs->search.steps == left) {
            break; // a round that costs nothing brings nothing
        }
    }
    part->unfinished = part->peak > t->goal && (rounds < 2 || part->peak < halfway);
    return GGML_STATUS_SUCCESS;
}

// The search and what is learned are kept from turn to turn.
static enum ggml_status take_all_turns(struct gb_plan_part * part, size_t goal, size_t unit,
    struct gb_plan_costs * costs) {
    struct turns t = { .part = part, .goal = GB_MAX(goal, part->bound), .unit = unit, .capacity = costs->capacity };
    enum ggml_status status = GGML_STATUS_SUCCESS;
    if (gb_plan_can_search(part)) {
        t.searcher = gb_plan_searcher_new(part, t.goal, costs->capacity, unit);
        status = t.searcher ? status : GGML_STATUS_ALLOC_FAILED;
    }
    if (part->n >= FEW) { // the others do more
        const struct gb_plan_budget more = gb_plan_share(&costs->search, costs->search.steps / 2);
        gb_plan_give_back(&costs->heuristic, &more);
    }
    status = status == GGML_STATUS_SUCCESS ? all_turns(&t, costs) : status;
    gb_plan_searcher_free(t.searcher);
    gb_plan_improver_free(t.improver);
    gb_plan_ejector_free(t.ejector);
    return status;
}

// How much of the budget orders may cost: a half or a third, at least what a few need where many are alive together,
// since they do most there.
static uint64_t orders_may_cost(const struct gb_plan_part * part, uint64_t steps) {
    if (part->n > GB_PLAN_ALWAYS) {
        return steps;
    }
    const uint64_t least = gb_plan_few_meet(part) ? 0 : (uint64_t) part->n * STEPS_ORDERS;
    return GB_MAX(steps / (part->n <= GB_PLAN_MANY ? 2 : part->n <= GB_PLAN_MAX_EJECT ? 3 : 6), least);
}

// Where buffers alive throughout hold parts together, only what is promised is tried for all at once.
static enum ggml_status fit_part(struct gb_plan_part * part, size_t goal, size_t unit, struct gb_plan_costs * costs) {
    const bool all = costs->whole && part->n <= GB_PLAN_MANY;
    const bool held = costs->whole && gb_plan_is_held(part, GB_PLAN_THROUGHOUT);
    struct gb_plan_budget share = gb_plan_share(&costs->heuristic, orders_may_cost(part, costs->heuristic.steps));
    enum ggml_status status = gb_plan_fit_gaps(part, goal,
        held  ? GB_PLAN_PROMISED
        : all ? GB_PLAN_EVERY
              : GB_PLAN_SOME,
        costs->n_threads, &share);
    if (status == GGML_STATUS_SUCCESS && part->n <= GB_PLAN_MANY && !held) {
        status = fill_valleys(part, goal, &share);
    }
    gb_plan_give_back(&costs->heuristic, &share);
    part->unfinished = part->peak > goal;
    if (status == GGML_STATUS_SUCCESS && held && part->peak > goal && !costs->heuristic.gave_up) {
        struct gb_plan_costs some = *costs;
        some.turns = false;
        status = gb_plan_apart(part, GB_PLAN_THROUGHOUT, goal, unit, &some);
        costs->heuristic = some.heuristic;
    }
    return status;
}

// What long buffers hold together first, with half of the costs, since some plans are worse with these at the bottom.
static enum ggml_status improve_part(struct gb_plan_part * part, size_t goal, size_t unit,
    struct gb_plan_costs * costs) {
    if (costs->whole && gb_plan_is_held(part, GB_PLAN_THROUGHOUT)) {
        return gb_plan_apart(part, GB_PLAN_THROUGHOUT, goal, unit, costs);
    }
    if (costs->whole && gb_plan_is_held(part, GB_PLAN_LONG)) {
        struct gb_plan_costs half = *costs;
        half.heuristic = gb_plan_share(&costs->heuristic, costs->heuristic.steps / 2);
        half.search = gb_plan_share(&costs->search, costs->search.steps / 2);
        GB_TRY(gb_plan_apart(part, GB_PLAN_LONG, goal, unit, &half));
        gb_plan_give_back(&costs->heuristic, &half.heuristic);
        gb_plan_give_back(&costs->search, &half.search);
    }
    if (!gb_plan_can_search(part)) { // the others may have all of it
        gb_plan_give_back(&costs->heuristic, &costs->search);
        costs->search.steps = 0;
    }
    return part->peak > GB_MAX(goal, part->bound) ? take_all_turns(part, goal, unit, costs) : GGML_STATUS_SUCCESS;
}

// ----------------------------------------------------------------------------------------------------------- all parts

static size_t top_of(const struct gb_plan_part * part) { return part->floor + part->peak; }

// What a part may need of the goal of all, above its floor. Less than its bound it does need.
static size_t goal_of(const struct gb_plan_part * part, size_t goal) {
    return GB_MAX(goal > part->floor ? goal - part->floor : 0, part->bound);
}

// The costs with a capacity above the floor.
static struct gb_plan_costs costs_of(const struct gb_plan_part * part, const struct gb_plan_costs * costs) {
    struct gb_plan_costs above = *costs;
    above.capacity = costs->capacity > part->floor ? costs->capacity - part->floor : GB_MIN(costs->capacity, 1);
    return above;
}

static enum ggml_status stopped(const struct gb_plan_costs * costs) {
    return costs->heuristic.gave_up || costs->search.gave_up ? GGML_STATUS_ABORTED : GGML_STATUS_SUCCESS;
}

static enum ggml_status fit(struct gb_plan_problem * p, struct gb_plan_part * part, size_t goal,
    struct gb_plan_costs * costs, size_t * best_fit) {
    part->peak = SIZE_MAX;
    if (part->n == 1) { // as the many parts of a chain are
        part->offsets[0] = 0;
        *best_fit = part->buffers[0].size;
        part->peak = *best_fit;
        return GGML_STATUS_SUCCESS;
    }
    GB_TRY(gb_plan_in_order(part, best_fit));
    gb_plan_keep(part, *best_fit);
    if (!gb_plan_can_search(part)) { // others may have its share
        const struct gb_plan_budget more =
            gb_plan_share(&costs->search, (uint64_t) ((double) costs->search.steps * part->n / (double) p->n));
        gb_plan_give_back(&costs->heuristic, &more);
    }
    struct gb_plan_costs some = costs_of(part, costs);
    GB_TRY(fit_part(part, goal_of(part, goal), p->unit, &some));
    costs->heuristic = some.heuristic;
    return stopped(costs);
}

// So much of what is left.
static enum ggml_status improve(struct gb_plan_problem * p, struct gb_plan_part * part, size_t goal, double of_left,
    struct gb_plan_costs * costs) {
    struct gb_plan_costs share = costs_of(part, costs);
    share.heuristic = gb_plan_share(&costs->heuristic, (uint64_t) (of_left * (double) costs->heuristic.steps));
    share.search = gb_plan_share(&costs->search, (uint64_t) (of_left * (double) costs->search.steps));
    const enum ggml_status status = improve_part(part, goal_of(part, goal), p->unit, &share);
    gb_plan_give_back(&costs->heuristic, &share.heuristic);
    gb_plan_give_back(&costs->search, &share.search);
    GB_TRY(status);
    return stopped(costs);
}

// Of equal ones the first, since these are sorted by bound.
static struct gb_plan_part * highest_of(struct gb_plan_problem * p) {
    struct gb_plan_part * best = &p->parts[0];
    for (size_t k = 1; k < p->n_parts; k++) {
        best = top_of(&p->parts[k]) > top_of(best) ? &p->parts[k] : best;
    }
    return best;
}

// The highest part is improved, again and again: the others only matter when it has become lower. Of n parts above the
// goal it has a share of what is left at first, then twice as much as before, as long as that is left.
static enum ggml_status improve_all(struct gb_plan_problem * p, size_t goal, struct gb_plan_costs * costs) {
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
        if (costs->capacity > 0 && bound > costs->capacity && part->had > 0) { // proved to be too small
            return GGML_STATUS_SUCCESS;
        }
        const double share = n > 1 ? GB_MAX(left / (double) n, 2 * part->had) : left;
        if (left < part->had || left == 0) {
            return GGML_STATUS_SUCCESS;
        }
        part->had = GB_MIN(share, left);
        if (!gb_plan_spend(&costs->heuristic, p->n_parts)) { // to look at all parts
            (void) gb_plan_spend(&costs->search, p->n_parts);
        }
        GB_TRY(improve(p, part, goal, part->had / left, costs));
        if (n == 1) { // it had all
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
    if (p->n_parts > 0 && costs->turns) {
        const uint64_t before = gb_fail_count();
        const enum ggml_status status = improve_all(p, goal, costs);
        if (status != GGML_STATUS_ALLOC_FAILED) {
            GB_TRY(status);
        } else { // there is a plan already, and nothing has changed it for a worse one
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
