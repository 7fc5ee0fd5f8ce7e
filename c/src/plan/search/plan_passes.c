// plan_passes.c - passes of exact search at several capacities, each with four times the nodes of
// the previous one.
#include "plan/search/plan_methods.h"

#include "base/mem.h"
#include "base/status.h"

struct gb_plan_passes {
    struct gb_plan_part * part;   // borrowed
    struct gb_plan_exact * exact; // owned
    struct gb_plan_budget * budget;
    size_t goal, unit;
    size_t capacity;
    uint64_t nodes; // of the next pass
};

// Tries several sort keys, each with few nodes, because one key often finds a plan quickly when the
// others fail. A proof that no plan fits raises the bound to the next multiple of the unit.
static enum gb_plan_outcome try_capacity(struct gb_plan_passes * s, size_t capacity, uint64_t nodes) {
    static const struct {
        enum gb_plan_key key;
        bool rerank;
    } ranks[] = { { GB_PLAN_BY_LOAD_SPAN, true }, { GB_PLAN_BY_LOAD_AREA_WIDTH, true },
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
        part->bound = GB_MAX(part->bound, capacity - capacity % s->unit + s->unit);
        s->goal = GB_MAX(s->goal, part->bound);
    }
    return outcome;
}

// Bisects between the goal, which was not reached, and the plan, down to a 512th of the bound. A
// capacity where the search gave up counts as infeasible here, but proves nothing.
static enum gb_plan_outcome bisect(struct gb_plan_passes * s, uint64_t nodes) {
    enum gb_plan_outcome outcome = GB_PLAN_GAVE_UP;
    size_t low = s->goal;
    const size_t precision = GB_MAX(s->unit, s->part->bound / 512);
    while (s->part->peak > low && s->part->peak - low > precision && outcome != GB_PLAN_NO_MEMORY &&
           s->budget->steps > 0) {
        const size_t half = (s->part->peak - low) / 2;
        const size_t middle = low + GB_MAX(half - half % s->unit, s->unit);
        if (middle >= s->part->peak) {
            break;
        }
        outcome = try_capacity(s, middle, nodes);
        low = outcome == GB_PLAN_FOUND ? low : middle;
    }
    return outcome;
}

struct gb_plan_passes * gb_plan_passes_new(struct gb_plan_part * part, size_t goal, size_t capacity, size_t unit) {
    struct gb_plan_passes * s = GB_NEW(struct gb_plan_passes);
    if (s == NULL) {
        return NULL;
    }
    *s = (struct gb_plan_passes){
        .part = part, .goal = goal, .unit = unit, .capacity = capacity, .nodes = (uint64_t) 4 * part->n
    };
    s->exact = gb_plan_exact_new(part);
    if (s->exact == NULL) {
        gb_free(s);
        return NULL;
    }
    return s;
}

void gb_plan_passes_free(struct gb_plan_passes * s) {
    if (s) {
        gb_plan_exact_free(s->exact);
        gb_free(s);
    }
}

// If the caller gave a capacity, tries only that.
enum ggml_status gb_plan_run_pass(struct gb_plan_passes * s, struct gb_plan_budget * budget, size_t * goal) {
    s->budget = budget;
    enum gb_plan_outcome outcome = GB_PLAN_INFEASIBLE;
    if (s->part->peak > s->goal) {
        do {
            outcome = try_capacity(s, s->goal, s->nodes);
        } while (outcome == GB_PLAN_INFEASIBLE && s->capacity == 0 && s->part->peak > s->goal && budget->steps > 0);
    }
    if (outcome == GB_PLAN_GAVE_UP) {
        outcome = s->capacity > 0 ? outcome : bisect(s, s->nodes / 4);
        s->nodes *= 4;
    }
    *goal = s->goal;
    return outcome == GB_PLAN_NO_MEMORY ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_SUCCESS;
}
