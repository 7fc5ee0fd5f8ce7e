// plan_search.c - complete search at several capacities, in turns with first fit in orders that are learned.
//
// The search alone finds plans without a gap, and proves that there is none, where parts are small; learning is better
// at coming close. Neither knows which it will be: each gets a turn that is longer than the one before. Turns of
// learning that bring nothing are shortened.
#include "alloc/plan_impl.h"

#include "base/mem.h"
#include "base/status.h"

#define MAX_SEARCH_BUFFERS 4096
#define MAX_SEARCH_PAIRS   ((uint64_t) 1 << 22)
#define FIRST_ROUNDS       8 // of learning, before anything else

// One search of a part, at several capacities with more and more nodes.
struct search {
    struct gb_plan_part *   part;
    struct gb_plan_exact *  exact;
    struct gb_plan_budget * budget;
    size_t                  goal, unit;
    int                     learning; // how often its turn brought nothing, at last
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
        gb_plan_keep(part, peak);
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

// What some rounds of first fit cost in a small part.
static uint64_t first_turn(const struct gb_plan_part * part) {
    return (uint64_t) FIRST_ROUNDS * (part->n * (uint64_t) 200 + GB_MIN(part->n_pairs, (uint64_t) part->n * part->n / 4));
}

// A turn of learning: as long as the search has taken since the last one.
static enum ggml_status learn(struct search * s, struct gb_plan_improver * improver, uint64_t steps) {
    const size_t          before = s->part->peak;
    struct gb_plan_budget turn   = gb_plan_share(s->budget, s->learning > 0 ? steps >> (s->learning - 1) : steps);
    const enum ggml_status status = gb_plan_improve(improver, s->goal, &turn);
    gb_plan_give_back(s->budget, &turn);
    s->learning = s->part->peak < before ? 0 : GB_MIN(s->learning + 1, 4);
    return status;
}

// Asks for the goal with ever more nodes, and in between for what lies half way. With a capacity asked for, only that
// matters: there is no reason to bisect.
static enum ggml_status search_in_turns(struct search * s, struct gb_plan_improver * improver, size_t capacity) {
    enum gb_plan_outcome outcome = GB_PLAN_GAVE_UP;
    uint64_t             nodes   = (uint64_t) 4 * s->part->n;
    while (outcome != GB_PLAN_NO_MEMORY && s->part->peak > s->goal && s->budget->steps > 0) {
        const uint64_t before = s->budget->steps;
        outcome               = try_capacity(s, s->goal, nodes);
        if (outcome == GB_PLAN_INFEASIBLE && capacity > 0) {
            break; // nothing fits
        }
        if (outcome == GB_PLAN_GAVE_UP) {
            outcome = capacity > 0 ? outcome : bisect(s, nodes / 4);
            nodes *= 4;
            GB_TRY(learn(s, improver, before - s->budget->steps));
        }
    }
    return outcome == GB_PLAN_NO_MEMORY ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_SUCCESS;
}

// Large parts are only learned: the cost of a node of the search grows with the part.
enum ggml_status gb_plan_search_part(struct gb_plan_part * part, size_t goal, size_t capacity, size_t unit,
    struct gb_plan_budget * budget) {
    struct search s     = { part, NULL, budget, goal, unit, 0 };
    const bool    large = part->n > MAX_SEARCH_BUFFERS || part->n_pairs > MAX_SEARCH_PAIRS;
    if (part->peak <= goal || budget->steps == 0) {
        return GGML_STATUS_SUCCESS;
    }
    struct gb_plan_improver * improver = gb_plan_improver_new(part);
    struct gb_plan_budget     first    = gb_plan_share(budget, large ? budget->steps : first_turn(part));
    enum ggml_status          status   = GGML_STATUS_ALLOC_FAILED;
    if (improver) {
        status = gb_plan_improve(improver, goal, &first);
    }
    gb_plan_give_back(budget, &first);
    if (status == GGML_STATUS_SUCCESS && !large && part->peak > goal && budget->steps > 0) {
        s.exact = gb_plan_exact_new(part);
        status  = s.exact ? search_in_turns(&s, improver, capacity) : GGML_STATUS_ALLOC_FAILED;
    }
    gb_plan_exact_free(s.exact);
    gb_plan_improver_free(improver);
    return status;
}
