// plan_learn.c - first fit in orders learned from earlier plans (local search over orders).
//
// After each plan, buffers that end above the goal move towards the front of the order: by a random
// part of the distance, at most half of it. The other buffers keep their order. Soon the buffers
// that are hard to place come first. After PATIENCE rounds without a better plan it restarts: from
// several sort keys, then from the best order so far, every second time with random changes.
#include "plan/search/plan_methods.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"

#define PATIENCE 15 // rounds without a better plan
#define UNIT 1024 // of one position in the order
#define DISORDER (2 * UNIT)
#define SORTING_STEPS 40 // per buffer

struct gb_plan_learner {
    struct gb_plan_part * part; // borrowed
    struct gb_plan_placer * placer; // owned, as all arrays here
    uint32_t * order; // the next order
    uint32_t * best; // the order of the best plan
    struct gb_plan_keyed * moved; // scratch; 2 n
    size_t least, least_here; // peaks: of `best`; since the last restart
    uint64_t random;
    int starts, rounds; // restarts so far; rounds since the last better plan
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

// A random number below n, which is small (xorshift64*).
static uint64_t draw(struct gb_plan_learner * x, uint64_t n) {
    x->random ^= x->random >> 12;
    x->random ^= x->random << 25;
    x->random ^= x->random >> 27;
    return (x->random * UINT64_C(0x2545F4914F6CDD1D) >> 33) % n;
}

enum { N_KEYS = 5 };

// Restarts: from the sort keys, the best one first, then from the best order.
static enum ggml_status start(struct gb_plan_learner * x) {
    static const enum gb_plan_key keys[N_KEYS] = { GB_PLAN_BY_SIZE, GB_PLAN_BY_AREA, GB_PLAN_BY_LOAD,
        GB_PLAN_BY_LOAD_AREA_WIDTH, GB_PLAN_BY_WIDTH };
    const enum gb_plan_key first = (enum gb_plan_key) x->part->best_key;
    x->rounds = 0;
    x->least_here = SIZE_MAX;
    if (x->starts >= N_KEYS) {
        if (x->part->peak < x->least) { // another method found it
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

// Moves the buffers that end above the target towards the front.
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

// Makes one plan, and the order of the next plan. *going: false if the budget ended it.
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
