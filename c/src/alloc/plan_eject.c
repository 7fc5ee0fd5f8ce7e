// plan_eject.c - lowers a plan by making room: what lies above a target is taken out and put where least is in the way,
// that is taken out in turn, until nothing is left outside.
//
// What is in the way costs its size times its life, and more each time that it was taken out, so that a chain of moves
// does not go in circles. A move costs as much as finding who is alive with the buffer (plan_near.c), not as much as
// a plan, so thousands of them fit where a few plans would. A chain that does not end, or with ever more outside, is
// dropped, and the target is set closer to the plan; where none is reached, what was learned of the costs is forgotten
// in part.
//
// Random numbers are drawn in the order of births.
#include "alloc/plan_impl.h"

#include "base/mem.h"
#include "base/status.h"

#define FINEST       6   // targets are half of the gap below the plan, or down to this power of two of it
#define FIRST_MOVES  200 // of a chain, and
#define MOVES_A_MISS 30  // for each buffer that is outside at first
#define MOST_MOVES   20000
#define MOST_OUTSIDE 4 // times as many as at first
#define FORGET       4
#define MANY         4096
#define COST_BITS    30
#define MAX_TIMES    1023

struct gb_plan_ejector {
    struct gb_plan_part *  part;    // borrowed
    struct gb_plan_near *  near;    // owned: what is placed
    const size_t *         offsets; // borrowed: its offsets
    uint64_t *             cost;    // by buffer
    uint16_t *             times;   // by buffer: taken out so often
    uint32_t *             outside; // buffers
    uint32_t               n_outside;
    struct gb_plan_keyed * ends;   // of these, sorted; twice the buffers
    size_t                 target; // of the chain
    size_t                 peak;   // of the plan from which it began
    uint64_t               moves;  // that it may still have; 0: there is none
    uint32_t               most;   // outside
    unsigned               fine;   // the next target
    uint32_t               more;   // rounds of targets of which none was reached
    uint64_t               random;
};

void gb_plan_ejector_free(struct gb_plan_ejector * x) {
    if (x) {
        gb_plan_near_free(x->near);
        gb_free(x->cost);
        gb_free(x->times);
        gb_free(x->outside);
        gb_free(x->ends);
        gb_free(x);
    }
}

// Size times life, in sections; the largest is scaled to COST_BITS, so that sums stay within 64 bits.
static void find_costs(struct gb_plan_ejector * x) {
    const struct gb_plan_part * part  = x->part;
    unsigned                    shift = 0;
    uint64_t                    most  = 0;
    for (uint32_t b = 0; b < part->n; b++) {
        const uint64_t width = part->buffers[b].last - part->buffers[b].first, size = part->buffers[b].size;
        x->cost[b] = size > UINT64_MAX / width ? UINT64_MAX : size * width;
        most       = GB_MAX(most, x->cost[b]);
    }
    while (most >> shift >= (uint64_t) 1 << COST_BITS) {
        shift++;
    }
    for (uint32_t b = 0; b < part->n; b++) {
        x->cost[b] = (x->cost[b] >> shift) + 1;
    }
}

struct gb_plan_ejector * gb_plan_ejector_new(struct gb_plan_part * part) {
    struct gb_plan_ejector * x = GB_NEW(struct gb_plan_ejector);
    if (x == NULL) {
        return NULL;
    }
    const size_t n = part->n;
    x->part        = part;
    x->fine        = n > MANY ? 3 : 1; // long chains: sooner something than later more
    x->random      = UINT64_C(0x9E3779B97F4A7C15) ^ n;
    x->near        = gb_plan_near_new(part);
    x->cost        = gb_calloc(n, sizeof(*x->cost));
    x->times       = gb_calloc(n, sizeof(*x->times));
    x->outside     = gb_calloc(n, sizeof(*x->outside));
    x->ends        = gb_calloc(2 * n, sizeof(*x->ends));
    if (!x->near || !x->cost || !x->times || !x->outside || !x->ends) {
        gb_plan_ejector_free(x);
        return NULL;
    }
    x->offsets = gb_plan_near_offsets(x->near);
    find_costs(x);
    return x;
}

static size_t end_of(const struct gb_plan_ejector * x, uint32_t b) { return x->offsets[b] + x->part->buffers[b].size; }

static uint64_t cost_of(const struct gb_plan_ejector * x, uint32_t b) { return x->cost[b] * (1 + x->times[b]); }

static void take_out(struct gb_plan_ejector * x, uint32_t b) {
    x->times[b]                = (uint16_t) (x->times[b] + (x->times[b] < MAX_TIMES));
    x->outside[x->n_outside++] = b;
}

// A chain from the plan of the part, without what ends above the target.
static void begin(struct gb_plan_ejector * x, size_t target) {
    const struct gb_plan_part * part = x->part;
    x->n_outside                     = 0;
    gb_plan_near_clear(x->near);
    for (uint32_t b = 0; b < part->n; b++) {
        x->ends[b] = (struct gb_plan_keyed){ part->offsets[b], b };
    }
    gb_plan_sort(x->ends, x->ends + part->n, part->n);
    for (uint32_t k = 0; k < part->n; k++) {
        const uint32_t b = x->ends[k].buffer;
        if (part->offsets[b] + part->buffers[b].size > target) {
            take_out(x, b);
        } else {
            gb_plan_near_put(x->near, b, part->offsets[b]);
        }
    }
    const uint64_t moves = (FIRST_MOVES + (uint64_t) MOVES_A_MISS * x->n_outside) * (1 + x->more);
    x->target            = target;
    x->moves             = GB_MIN(moves, MOST_MOVES);
    x->most              = MOST_OUTSIDE * (x->n_outside + 8);
}

// The offset where what is in the way of b costs least, the lowest of several: at the bottom, or on something.
static size_t cheapest(struct gb_plan_ejector * x, const struct gb_plan_buffer * b, const uint32_t * met, uint32_t n,
    size_t target) {
    const size_t * const offsets = x->offsets;
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t other = met[k];
        x->ends[k]           = (struct gb_plan_keyed){ end_of(x, other), other };
    }
    gb_plan_sort(x->ends, x->ends + n, n);
    uint64_t cost = 0, least = UINT64_MAX;
    size_t   best = 0, at = 0;
    for (uint32_t begun = 0, ended = 0; at <= target - b->size; at = x->ends[ended].key) {
        while (ended < n && x->ends[ended].key <= at) {
            cost -= cost_of(x, x->ends[ended++].buffer); // unsigned: its beginning follows below
        }
        while (begun < n && offsets[met[begun]] < at + b->size) {
            cost += cost_of(x, met[begun++]);
        }
        if (cost < least) {
            least = cost;
            best  = at;
        }
        if (least == 0 || ended == n) {
            break;
        }
    }
    return best;
}

// Takes out what is in the way of b at the offset.
static void make_room(struct gb_plan_ejector * x, const struct gb_plan_buffer * b, const uint32_t * met, uint32_t n,
    size_t offset) {
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t other = met[k];
        if (x->offsets[other] < offset + b->size && end_of(x, other) > offset) {
            take_out(x, other);
            gb_plan_near_take(x->near, k);
        }
    }
}

// What costs most is placed next; of equal ones the first by birth, then by index.
static uint32_t next_of(struct gb_plan_ejector * x) {
    uint32_t best = 0;
    for (uint32_t k = 1; k < x->n_outside; k++) {
        const uint64_t cost = cost_of(x, x->outside[k]), most = cost_of(x, x->outside[best]);
        best = cost > most || (cost == most && x->outside[k] < x->outside[best]) ? k : best;
    }
    const uint32_t b = x->outside[best];
    x->outside[best] = x->outside[--x->n_outside];
    return b;
}

// Until nothing is outside, or the chain is dropped, or the budget is used up, which is said by false.
static bool go_on(struct gb_plan_ejector * x, struct gb_plan_budget * budget) {
    for (; x->moves > 0 && x->n_outside > 0 && x->n_outside <= x->most; x->moves--) {
        if (!gb_plan_spend(budget, gb_plan_near_steps(x->near) + 4 * (uint64_t) x->n_outside)) {
            return false;
        }
        const uint32_t                b   = next_of(x);
        const struct gb_plan_buffer * one = &x->part->buffers[b];
        const uint32_t *              met;
        uint64_t                      steps;
        const uint32_t                n  = gb_plan_near_find(x->near, one, &met, &steps);
        const size_t                  at = cheapest(x, one, met, n, x->target);
        (void) gb_plan_spend(budget, steps);
        make_room(x, one, met, n, at);
        gb_plan_near_put(x->near, b, at);
    }
    x->moves = 0;
    return true;
}

static void forget(struct gb_plan_ejector * x) {
    for (uint32_t b = 0; b < x->part->n; b++) {
        x->random ^= x->random << 13;
        x->random ^= x->random >> 7;
        x->random ^= x->random << 17;
        x->times[b] = (uint16_t) (x->times[b] / FORGET + (x->random >> 33) % FORGET);
    }
    x->more++;
}

bool gb_plan_can_eject(const struct gb_plan_part * part) {
    return part->chunk == 0 && part->n_fixed == 0 &&
           part->n <= (gb_plan_is_ejecting_cheap(part) ? GB_PLAN_MAX_EJECT_NEAR : GB_PLAN_MAX_EJECT);
}

enum ggml_status gb_plan_eject(struct gb_plan_ejector * x, size_t goal, size_t unit, struct gb_plan_budget * budget) {
    struct gb_plan_part * part = x->part;
    while (part->peak > goal && budget->steps > 0) {
        if (x->moves == 0 || x->target >= part->peak || (gb_plan_is_ejecting_cheap(part) && x->peak != part->peak)) {
            x->peak            = part->peak;
            const size_t lower = GB_MAX((part->peak - goal) >> x->fine, unit);
            (void) gb_plan_spend(budget, (uint64_t) part->n * 10);
            begin(x, part->peak - GB_MIN(lower, part->peak - goal));
        }
        if (!go_on(x, budget)) {
            break;
        }
        if (x->n_outside == 0) {
            size_t peak = 0;
            for (uint32_t b = 0; b < part->n; b++) {
                part->trial[b] = x->offsets[b];
                peak           = GB_MAX(peak, end_of(x, b));
            }
            gb_plan_keep(part, peak);
            x->peak = part->peak;
            x->fine -= x->fine > 1;
        } else if (x->fine < FINEST) {
            x->fine++;
        } else {
            forget(x);
            x->fine = 1;
        }
    }
    return GGML_STATUS_SUCCESS;
}
