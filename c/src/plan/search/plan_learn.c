// plan_improve.c - first fit again and again, each time in an order that the last plan has taught: what stuck out comes
// earlier.
//
// A buffer whose top is above the target moves a random part of the way, at least half of it, to the front; the others
// keep their order, or nearly so. What has been in the way of a good plan is thus placed while there is room, and soon
// the order has those few buffers in front that are hard to place. After some rounds without a better plan it starts
// anew: from the orders by several keys first, then from the best order so far, every other time with some disorder.
//
// Random numbers are drawn in the sequence of the order, never of the items, so that equal items give equal plans.
#include "plan/search/plan_methods.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"

#define PATIENCE 15 // rounds without a better plan
#define UNIT 1024 // of a place in the order
#define DISORDER (2 * UNIT)
#define SORTING_STEPS 40 // a buffer

struct gb_plan_learner {
    struct gb_plan_part * part; // borrowed
    struct gb_plan_placer * placer; // owned, as what follows
    uint32_t * order; // to be placed next
    uint32_t * best; // that gave the best plan here
    struct gb_plan_keyed * moved; // scratch, twice the buffers
    size_t least, least_here; // peaks: of best; since the last start
    uint64_t random;
    int starts, rounds; // so far; since the plan got better
};

void gb_plan_learner_free(struct gb_plan_learner * x) {
    if (x) {
        gb_plan_placer_free(x->placer);
        gb_free(x->order);
        gb_free(x->best);
        gb_free(x->moved);
        gb_free(x);
    }
}

struct gb_plan_learner * gb_plan_learner_new(struct gb_plan_part * part) {
    struct gb_plan_learner * x = GB_NEW(struct gb_plan_learner);
    if (x == NULL) {
        return NULL;
    }
    x->part = part;
    x->placer = gb_plan_placer_new(part);
    x->order = gb_calloc(part->n, sizeof(*x->order));
    x->best = gb_calloc(part->n, sizeof(*x->best));
    x->moved = gb_calloc((size_t) part->n * 2, sizeof(*x->moved));
    x->least = SIZE_MAX;
    x->rounds = PATIENCE;
    x->random = UINT64_C(0x9E3779B97F4A7C15) ^ part->n;
    if (!x->placer || !x->order || !x->best || !x->moved) {
        gb_plan_learner_free(x);
        return NULL;
    }
    return x;
}

// Below n, which is small. xorshift64*.
static uint64_t draw(struct gb_plan_learner * x, uint64_t n) {
    x->random ^= x->random >> 12;
    x->random ^= x->random << 25;
    x->random ^= x->random >> 27;
    return (x->random * UINT64_C(0x2545F4914F6CDD1D) >> 33) % n;
}

enum { N_KEYS = 5 };

// The next start: by the keys, what was best before first; then from the best order, every other time with disorder.
static enum ggml_status start(struct gb_plan_learner * x) {
    static const enum gb_plan_key keys[N_KEYS] = { GB_PLAN_BY_SIZE, GB_PLAN_BY_AREA, GB_PLAN_BY_LOAD,
        GB_PLAN_BY_LOAD_AREA_WIDTH, GB_PLAN_BY_WIDTH };
    const enum gb_plan_key first = (enum gb_plan_key) x->part->best_key;
    x->rounds = 0;
    x->least_here = SIZE_MAX;
    if (x->starts >= N_KEYS) {
        if (x->part->peak < x->least) { // others have found it
            x->least = x->part->peak;
            GB_TRY(gb_plan_order_by_offset(x->part, x->part->offsets, x->best));
        }
        memcpy(x->order, x->best, x->part->n * sizeof(*x->order));
        x->starts += x->starts == N_KEYS ? 1 : -1;
        return GGML_STATUS_SUCCESS;
    }
    enum gb_plan_key key = x->starts == 0 ? first : keys[x->starts];
    key = x->starts > 0 && key == first ? keys[0] : key;
    x->starts++;
    return gb_plan_order(x->part, key, x->order);
}

// What is above the target comes earlier.
static void reorder(struct gb_plan_learner * x, size_t target) {
    const struct gb_plan_part * part = x->part;
    const bool disorder = x->starts == N_KEYS + 1;
    for (uint32_t k = 0; k < part->n; k++) {
        const uint32_t b = x->order[k];
        uint64_t key = (uint64_t) (k + 2) * UNIT;
        if (part->trial[b] + part->buffers[b].size > target) {
            key = key * (UNIT / 2 + draw(x, UNIT / 2)) / UNIT - UNIT / 2;
        } else if (disorder) {
            key += draw(x, DISORDER);
            key -= DISORDER / 2;
        }
        x->moved[k] = (struct gb_plan_keyed){ key, b };
    }
    gb_plan_sort(x->moved, x->moved + part->n, part->n);
    for (uint32_t k = 0; k < part->n; k++) {
        x->order[k] = x->moved[k].buffer;
    }
}

// One plan, and the order for the next one. False in *going: the budget ended it.
static enum ggml_status round_of(struct gb_plan_learner * x, size_t goal, struct gb_plan_budget * budget,
    bool * going) {
    struct gb_plan_part * part = x->part;
    size_t peak;
    GB_TRY(gb_plan_place(x->placer, x->order, part->n, false, budget, part->trial, &peak));
    *going = peak != SIZE_MAX && gb_plan_spend(budget, (uint64_t) part->n * SORTING_STEPS);
    if (peak == SIZE_MAX) {
        return GGML_STATUS_SUCCESS;
    }
    x->rounds = peak < x->least_here ? 0 : x->rounds + 1;
    x->least_here = GB_MIN(x->least_here, peak);
    if (peak < x->least) {
        x->least = peak;
        memcpy(x->best, x->order, part->n * sizeof(*x->best));
    }
    gb_plan_keep(part, peak);
    reorder(x, goal);
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_plan_learn(struct gb_plan_learner * x, size_t goal, struct gb_plan_budget * budget) {
    for (bool going = budget->steps > 0; going && x->part->peak > goal;) {
        if (x->rounds >= PATIENCE) {
            GB_TRY(start(x));
        }
        GB_TRY(round_of(x, goal, budget, &going));
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_plan_learn_from(struct gb_plan_learner * x, const uint32_t * order, size_t goal,
    struct gb_plan_budget * budget) {
    memcpy(x->order, order, x->part->n * sizeof(*x->order));
    x->rounds = 0;
    x->least_here = SIZE_MAX;
    for (bool going = budget->steps > 0; going && x->part->peak > goal && x->rounds < PATIENCE;) {
        GB_TRY(round_of(x, goal, budget, &going));
    }
    return GGML_STATUS_SUCCESS;
}
