// plan_eject.c - ejection chains. A chain removes the buffers that end above a target. It places
// each of them where the overlapping buffers are cheapest, ejects those, and places them next,
// until no buffer is left outside.
//
// The price of a buffer is its area, times one more than the number of its ejections, so that
// chains do not cycle. A move costs as much as finding the neighbours of one buffer
// (plan_neighbours.c), so thousands of moves cost as much as a few plans. A chain that does not
// end, or that has ever more buffers outside, is dropped. The next target is then closer to the
// plan. If no target is reached, the numbers of ejections decay.
//
// Random numbers are drawn in the order of births.
#include "plan/search/plan_methods.h"

#include "base/mem.h"
#include "base/status.h"

#define FINEST 6 // the target is below the plan by gap >> fine, with fine from 1 to this
#define FIRST_MOVES 200 // of a chain
#define MOVES_PER_EJECTED 30 // further moves per buffer that is outside at first
#define MAX_MOVES 20000
#define MAX_OUTSIDE 4 // times the number of buffers outside at first
#define DECAY 4 // divides the numbers of ejections
#define MOVE_STEPS 700 // to eject or place a buffer
#define COST_BITS 30 // of the largest area
#define MAX_TIMES 1023

struct gb_plan_ejector {
    struct gb_plan_part * part; // borrowed
    struct gb_plan_neighbours * neighbours; // owned; the placed buffers
    const size_t * offsets; // borrowed from `neighbours`
    uint64_t * cost; // by buffer
    uint64_t * price; // by buffer: cost * (1 + times)
    uint16_t * times; // by buffer: number of ejections
    uint32_t * outside; // buffers not placed
    uint32_t n_outside;
    size_t * from; // by buffer: the plan at the start of the chain
    size_t target; // of the chain
    size_t peak; // of the plan at the start of the chain
    uint64_t moves; // remaining; 0: there is no chain
    uint32_t most; // maximum number of buffers outside; above it the chain is dropped
    unsigned fine; // of the next target
    uint32_t more; // rounds in which no target was reached
    uint64_t random;
    bool is_filled; // `neighbours` has been filled
};

void gb_plan_ejector_free(struct gb_plan_ejector * x) {
    if (x) {
        gb_plan_neighbours_free(x->neighbours);
        gb_free(x->cost);
        gb_free(x->price);
        gb_free(x->times);
        gb_free(x->outside);
        gb_free(x->from);
        gb_free(x);
    }
}

// Areas, scaled to COST_BITS so that sums stay within 64 bits.
static void find_costs(struct gb_plan_ejector * x) {
    const struct gb_plan_part * part = x->part;
    unsigned shift = 0;
    uint64_t most = 0;
    for (uint32_t b = 0; b < part->n; b++) {
        const uint64_t width = part->buffers[b].last - part->buffers[b].first, size = part->buffers[b].size;
        x->cost[b] = size > UINT64_MAX / width ? UINT64_MAX : size * width;
        most = GB_MAX(most, x->cost[b]);
    }
    while (most >> shift >= (uint64_t) 1 << COST_BITS) {
        shift++;
    }
    for (uint32_t b = 0; b < part->n; b++) {
        x->cost[b] = (x->cost[b] >> shift) + 1;
        x->price[b] = x->cost[b];
    }
}

struct gb_plan_ejector * gb_plan_ejector_new(struct gb_plan_part * part) {
    struct gb_plan_ejector * x = GB_NEW(struct gb_plan_ejector);
    if (x == NULL) {
        return NULL;
    }
    const size_t n = part->n;
    x->part = part;
    x->fine = n > GB_PLAN_MANY ? 3 : 1; // chains are long, so small gains first
    x->random = UINT64_C(0x9E3779B97F4A7C15) ^ n;
    x->neighbours = gb_plan_neighbours_new(part);
    x->cost = gb_calloc(n, sizeof(*x->cost));
    x->price = gb_calloc(n, sizeof(*x->price));
    x->times = gb_calloc(n, sizeof(*x->times));
    x->outside = gb_calloc(n, sizeof(*x->outside));
    x->from = gb_calloc(n, sizeof(*x->from));
    if (!x->neighbours || !x->cost || !x->price || !x->times || !x->outside || !x->from) {
        gb_plan_ejector_free(x);
        return NULL;
    }
    x->offsets = gb_plan_neighbours_offsets(x->neighbours);
    find_costs(x);
    return x;
}

static size_t end_of(const struct gb_plan_ejector * x, uint32_t b) { return x->offsets[b] + x->part->buffers[b].size; }

static void set_times(struct gb_plan_ejector * x, uint32_t b, uint16_t times) {
    x->times[b] = times;
    x->price[b] = x->cost[b] * (1 + (uint64_t) times);
}

static void eject(struct gb_plan_ejector * x, uint32_t b) {
    set_times(x, b, (uint16_t) (x->times[b] + (x->times[b] < MAX_TIMES)));
    x->outside[x->n_outside++] = b;
}

// Starts a chain: the plan of the part without the buffers that end above the target. False: no memory.
static bool begin(struct gb_plan_ejector * x, size_t target) {
    const struct gb_plan_part * part = x->part;
    x->n_outside = 0;
    for (uint32_t b = 0; b < part->n; b++) {
        const bool above = part->offsets[b] + part->buffers[b].size > target;
        x->from[b] = above ? GB_PLAN_NOT_PLACED : part->offsets[b];
        if (above) {
            eject(x, b);
        }
    }
    const uint64_t moves = (FIRST_MOVES + (uint64_t) MOVES_PER_EJECTED * x->n_outside) * (1 + x->more);
    x->target = target;
    x->moves = GB_MIN(moves, MAX_MOVES);
    x->most = MAX_OUTSIDE * (x->n_outside + 8);
    return gb_plan_neighbours_set(x->neighbours, x->from);
}

// The offset where the buffers that overlap b are cheapest, ties lowest: 0 or the end of a
// neighbour. A sweep goes over both orders of the neighbours. It adds the next neighbour that
// begins below the top of b, or else subtracts the next one that ends, and tries that end. The
// sequence is unpredictable, so the loop has no branch for it.
static size_t cheapest(const struct gb_plan_ejector * x, const struct gb_plan_buffer * b,
    const struct gb_plan_neighbour_list * met) {
    const struct gb_plan_pair *begin = met->by_offset, *end = met->by_end;
    const uint64_t * const price = x->price;
    const size_t size = b->size, most = x->target - size;
    const struct gb_plan_pair * const last = begin + met->n;
    uint64_t least = 0;
    size_t best = 0;
    for (; begin < last && begin->a < size; begin++) {
        least += price[begin->b];
    }
    uint64_t cost = least;
    for (const struct gb_plan_pair * const stop = end + met->n; least > 0 && end < stop && end->a <= most;) {
        const size_t at = end->a;
        const bool more = (begin < last) & (begin->a < at + size);
        const uint64_t one = price[(more ? begin : end)->b], sign = (uint64_t) more - 1; // all ones: subtract
        cost += (one ^ sign) - sign;
        begin += more;
        end += !more;
        if (!more & (cost < least)) {
            least = cost;
            best = at;
        }
    }
    return best;
}

// Ejects the neighbours that overlap b at the offset. Returns their number.
static uint32_t eject_in_the_way(struct gb_plan_ejector * x, const struct gb_plan_buffer * b,
    const struct gb_plan_neighbour_list * met, size_t offset) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < met->n; k++) {
        const uint32_t other = (uint32_t) met->by_offset[k].b;
        if (met->by_offset[k].a >= offset + b->size) {
            break;
        }
        if (end_of(x, other) > offset) {
            eject(x, other);
            gb_plan_neighbours_remove(x->neighbours, other);
            n++;
        }
    }
    return n;
}

// The buffer with the highest price is placed next. Ties are broken by birth.
static uint32_t next_of(struct gb_plan_ejector * x) {
    uint32_t best = 0;
    for (uint32_t k = 1; k < x->n_outside; k++) {
        const uint64_t cost = x->price[x->outside[k]], most = x->price[x->outside[best]];
        best = cost > most || (cost == most && x->outside[k] < x->outside[best]) ? k : best;
    }
    const uint32_t b = x->outside[best];
    x->outside[best] = x->outside[--x->n_outside];
    return b;
}

// Moves until no buffer is outside or the chain is dropped. *going: false if the budget is used up.
static enum ggml_status run_chain(struct gb_plan_ejector * x, struct gb_plan_budget * budget, bool * going) {
    for (*going = true; x->moves > 0 && x->n_outside > 0 && x->n_outside <= x->most; x->moves--) {
        if (!gb_plan_spend(budget, MOVE_STEPS + 4 * (uint64_t) x->n_outside)) {
            *going = false;
            return GGML_STATUS_SUCCESS;
        }
        const uint32_t b = next_of(x);
        const struct gb_plan_buffer * one = &x->part->buffers[b];
        uint64_t steps;
        const struct gb_plan_neighbour_list * met = gb_plan_neighbours_find(x->neighbours, b, &steps);
        const size_t at = cheapest(x, one, met);
        const uint32_t out = eject_in_the_way(x, one, met, at);
        (void) gb_plan_spend(budget, steps + 4 * (uint64_t) met->n + MOVE_STEPS * (uint64_t) out);
        if (!gb_plan_neighbours_place(x->neighbours, b, at)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    x->moves = 0;
    return GGML_STATUS_SUCCESS;
}

static void decay(struct gb_plan_ejector * x) {
    for (uint32_t b = 0; b < x->part->n; b++) {
        x->random ^= x->random << 13;
        x->random ^= x->random >> 7;
        x->random ^= x->random << 17;
        set_times(x, b, (uint16_t) (x->times[b] / DECAY + (x->random >> 33) % DECAY));
    }
    x->more++;
}

bool gb_plan_can_eject(const struct gb_plan_part * part) {
    return part->chunk == 0 && part->n_fixed == 0 &&
           part->n <= (gb_plan_is_sparse(part) ? GB_PLAN_MAX_EJECT_SPARSE : GB_PLAN_VERY_MANY);
}

enum ggml_status gb_plan_eject(struct gb_plan_ejector * x, size_t goal, size_t unit, struct gb_plan_budget * budget) {
    struct gb_plan_part * part = x->part;
    if (!x->is_filled && !gb_plan_spend(budget, gb_plan_neighbours_cost(x->neighbours))) {
        return GGML_STATUS_SUCCESS;
    }
    x->is_filled = true;
    while (part->peak > goal && budget->steps > 0) {
        if (x->moves == 0 || x->target >= part->peak || (gb_plan_is_sparse(part) && x->peak != part->peak)) {
            x->peak = part->peak;
            const size_t lower = GB_MAX((part->peak - goal) >> x->fine, unit);
            (void) gb_plan_spend(budget, (uint64_t) part->n * 10);
            if (!begin(x, part->peak - GB_MIN(lower, part->peak - goal))) {
                return GGML_STATUS_ALLOC_FAILED;
            }
        }
        bool going;
        GB_TRY(run_chain(x, budget, &going));
        if (!going) {
            break;
        }
        if (x->n_outside == 0) {
            size_t peak = 0;
            for (uint32_t b = 0; b < part->n; b++) {
                part->trial[b] = x->offsets[b];
                peak = GB_MAX(peak, end_of(x, b));
            }
            gb_plan_keep(part, peak);
            x->peak = part->peak;
            x->fine -= x->fine > 1;
        } else if (x->fine < FINEST) {
            x->fine++;
        } else {
            decay(x);
            x->fine = 1;
        }
    }
    return GGML_STATUS_SUCCESS;
}
