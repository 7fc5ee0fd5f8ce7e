// plan_eject.c - lowers a plan by making room: what lies above a target is taken out and put where least is in the way,
// that is taken out in turn, until nothing is left outside.
//
// What is in the way costs its size times its life, and more each time that it was taken out, so that a chain of moves
// does not go in circles. A move costs as much as reading the list of what is placed, not as much as a plan, so
// thousands of them fit where a few plans would. Where few of all are alive with a buffer, it costs only as much as
// sorting these: they follow in the order of births, or are in a list of what is alive at a section. A chain that does
// not end, or with ever more outside, is dropped, and the target is set closer to the plan; where none is reached, what
// was learned of the costs is forgotten in part.
//
// Random numbers are drawn in the order of births.
#include "alloc/plan_impl.h"

#include <string.h>

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
#define LEAST_NEAR   1024 // buffers
#define FEW_MET      16   // one of so many, on average

struct gb_plan_ejector {
    struct gb_plan_part * part; // borrowed
    // what is placed, by offset, of equal ones in the sequence in which they came; owned, as what follows
    uint32_t *             first;
    uint32_t *             last;
    uint32_t *             placed;  // buffers
    size_t *               offsets; // by buffer
    uint32_t               n_placed;
    uint64_t *             cost;    // by buffer
    uint16_t *             times;   // by buffer: taken out so often
    uint32_t *             outside; // buffers
    uint32_t               n_outside;
    uint32_t *             met;  // places in the list of those that are alive with a buffer
    struct gb_plan_keyed * ends; // of these, sorted; twice the buffers
    // Where few are alive with a buffer, instead of the list of what is placed and `met`; NULL: else.
    struct gb_plan_keyed * begins; // those alive with a buffer, by offset; twice the buffers
    uint32_t *             alive;  // at section k * stride, born before: from alive_at[k] up to alive_at[k + 1]
    uint32_t *             alive_at;
    uint32_t               stride;
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
        gb_free(x->first);
        gb_free(x->last);
        gb_free(x->placed);
        gb_free(x->offsets);
        gb_free(x->cost);
        gb_free(x->times);
        gb_free(x->outside);
        gb_free(x->met);
        gb_free(x->ends);
        gb_free(x->begins);
        gb_free(x->alive);
        gb_free(x->alive_at);
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

// True where reading a list of all costs more than sorting those that are alive with a buffer.
bool gb_plan_is_ejecting_cheap(const struct gb_plan_part * part) {
    return part->n >= LEAST_NEAR && part->n_pairs < (uint64_t) part->n * part->n / 2 / FEW_MET;
}

// Lists of what is alive at some sections, as many as make some twice the buffers in all.
static bool list_alive(struct gb_plan_ejector * x) {
    const struct gb_plan_part * part   = x->part;
    uint64_t                    widths = 0;
    for (uint32_t b = 0; b < part->n; b++) {
        widths += part->buffers[b].last - part->buffers[b].first;
    }
    x->stride            = (uint32_t) GB_MIN(widths / part->n / 2 + 1, part->n_sections);
    const size_t n_lists = part->n_sections / x->stride + 1;
    x->begins            = gb_calloc(2 * (size_t) part->n, sizeof(*x->begins));
    x->alive_at          = gb_calloc(n_lists + 2, sizeof(*x->alive_at));
    if (!x->begins || !x->alive_at) {
        return false;
    }
    for (int fill = 0; fill < 2; fill++) {
        for (uint32_t b = 0; b < part->n; b++) {
            const uint32_t to = (part->buffers[b].last - 1) / x->stride;
            for (uint32_t k = part->buffers[b].first / x->stride + 1; k <= to; k++) {
                if (fill) {
                    x->alive[x->alive_at[k + 1]++] = b;
                } else {
                    x->alive_at[k + 2]++;
                }
            }
        }
        for (size_t k = 2; !fill && k < n_lists + 2; k++) { // where each begins, one place behind its own
            x->alive_at[k] += x->alive_at[k - 1];
        }
        if (!fill) {
            x->alive = gb_calloc((size_t) x->alive_at[n_lists + 1] + 1, sizeof(*x->alive));
            if (x->alive == NULL) {
                return false;
            }
        }
    }
    return true;
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
    x->first       = gb_calloc(n, sizeof(*x->first));
    x->last        = gb_calloc(n, sizeof(*x->last));
    x->placed      = gb_calloc(n, sizeof(*x->placed));
    x->offsets     = gb_calloc(n, sizeof(*x->offsets));
    x->cost        = gb_calloc(n, sizeof(*x->cost));
    x->times       = gb_calloc(n, sizeof(*x->times));
    x->outside     = gb_calloc(n, sizeof(*x->outside));
    x->met         = gb_calloc(n + 1, sizeof(*x->met));
    x->ends        = gb_calloc(2 * n, sizeof(*x->ends));
    if (!x->first || !x->last || !x->placed || !x->offsets || !x->cost || !x->times || !x->outside || !x->met ||
        !x->ends) {
        gb_plan_ejector_free(x);
        return NULL;
    }
    if (gb_plan_is_ejecting_cheap(part) && !list_alive(x)) {
        gb_plan_ejector_free(x);
        return NULL;
    }
    find_costs(x);
    return x;
}

static size_t end_of(const struct gb_plan_ejector * x, uint32_t b) { return x->offsets[b] + x->part->buffers[b].size; }

static uint64_t cost_of(const struct gb_plan_ejector * x, uint32_t b) { return x->cost[b] * (1 + x->times[b]); }

#define NOT_PLACED SIZE_MAX // an offset

static void take_out(struct gb_plan_ejector * x, uint32_t b) {
    x->offsets[b]              = NOT_PLACED;
    x->times[b]                = (uint16_t) (x->times[b] + (x->times[b] < MAX_TIMES));
    x->outside[x->n_outside++] = b;
}

static void put_in(struct gb_plan_ejector * x, uint32_t b, size_t offset) {
    uint32_t low = 0, high = x->n_placed;
    if (x->begins) {
        x->offsets[b] = offset;
        x->n_placed++;
        return;
    }
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (x->offsets[x->placed[middle]] <= offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const size_t moved = (x->n_placed - low) * sizeof(uint32_t);
    memmove(x->first + low + 1, x->first + low, moved);
    memmove(x->last + low + 1, x->last + low, moved);
    memmove(x->placed + low + 1, x->placed + low, moved);
    x->first[low]  = x->part->buffers[b].first;
    x->last[low]   = x->part->buffers[b].last;
    x->placed[low] = b;
    x->offsets[b]  = offset;
    x->n_placed++;
}

// A chain from the plan of the part, without what ends above the target.
static void begin(struct gb_plan_ejector * x, size_t target) {
    const struct gb_plan_part * part = x->part;
    x->n_placed = x->n_outside = 0;
    for (uint32_t b = 0; b < part->n; b++) {
        x->ends[b] = (struct gb_plan_keyed){ part->offsets[b], b };
    }
    gb_plan_sort(x->ends, x->ends + part->n, part->n);
    for (uint32_t k = 0; k < part->n; k++) {
        const uint32_t b = x->ends[k].buffer;
        x->offsets[b]    = part->offsets[b];
        if (end_of(x, b) > target) {
            take_out(x, b);
            continue;
        }
        x->first[x->n_placed]    = part->buffers[b].first;
        x->last[x->n_placed]     = part->buffers[b].last;
        x->placed[x->n_placed++] = b;
    }
    const uint64_t moves = (FIRST_MOVES + (uint64_t) MOVES_A_MISS * x->n_outside) * (1 + x->more);
    x->target            = target;
    x->moves             = GB_MIN(moves, MOST_MOVES);
    x->most              = MOST_OUTSIDE * (x->n_outside + 8);
}

// Those alive with b, by offset. They are among *looked_at: what is alive at the last section with a list that is not
// behind b's birth, and what is born from there on, before b is dead, which has indices in between.
static uint32_t find_near(struct gb_plan_ejector * x, const struct gb_plan_buffer * b, uint64_t * looked_at) {
    const struct gb_plan_part * part   = x->part;
    const uint32_t              k      = b->first / x->stride;
    const uint32_t *            list   = x->alive + x->alive_at[k];
    const uint32_t              n_list = x->alive_at[k + 1] - x->alive_at[k];
    const uint32_t              from = k > 0 ? part->born[k * x->stride - 1] : 0, to = part->born[b->last - 1];
    uint32_t                    n = 0;
    for (uint32_t j = 0; j < n_list; j++) {
        x->begins[n] = (struct gb_plan_keyed){ x->offsets[list[j]], list[j] };
        n += (uint32_t) ((part->buffers[list[j]].last > b->first) & (x->offsets[list[j]] != NOT_PLACED));
    }
    for (uint32_t j = from; j < to; j++) {
        x->begins[n] = (struct gb_plan_keyed){ x->offsets[j], j };
        n += (uint32_t) ((part->buffers[j].last > b->first) & (x->offsets[j] != NOT_PLACED));
    }
    *looked_at = n_list + (to - from);
    gb_plan_sort(x->begins, x->begins + n, n);
    return n;
}

// The places in the list of those alive with b; or themselves.
static uint32_t find_met(struct gb_plan_ejector * x, const struct gb_plan_buffer * b, uint64_t * looked_at) {
    uint32_t n = 0;
    if (x->begins) {
        return find_near(x, b, looked_at);
    }
    *looked_at = x->n_placed;
    for (uint32_t k = 0; k < x->n_placed; k++) {
        x->met[n] = k; // kept if it is alive with b
        n += (uint32_t) ((x->first[k] < b->last) & (x->last[k] > b->first));
    }
    return n;
}

static uint32_t met_at(const struct gb_plan_ejector * x, uint32_t k) {
    return x->begins ? x->begins[k].buffer : x->placed[x->met[k]];
}

// The offset where what is in the way of b costs least, the lowest of several: at the bottom, or on something.
static size_t cheapest(struct gb_plan_ejector * x, const struct gb_plan_buffer * b, uint32_t n, size_t target) {
    const size_t * const offsets = x->offsets;
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t other = met_at(x, k);
        x->ends[k]           = (struct gb_plan_keyed){ end_of(x, other), other };
    }
    gb_plan_sort(x->ends, x->ends + n, n);
    uint64_t cost = 0, least = UINT64_MAX;
    size_t   best = 0, at = 0;
    for (uint32_t begun = 0, ended = 0; at <= target - b->size; at = x->ends[ended].key) {
        while (ended < n && x->ends[ended].key <= at) {
            cost -= cost_of(x, x->ends[ended++].buffer); // unsigned: its beginning follows below
        }
        while (begun < n && offsets[met_at(x, begun)] < at + b->size) {
            cost += cost_of(x, met_at(x, begun++));
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
static void make_room(struct gb_plan_ejector * x, const struct gb_plan_buffer * b, size_t offset, uint32_t n) {
    uint32_t kept = x->n_placed, from = x->n_placed;
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t other = met_at(x, k);
        if (x->offsets[other] < offset + b->size && end_of(x, other) > offset) {
            take_out(x, other);
            if (x->begins) {
                x->n_placed--;
                continue;
            }
            x->placed[x->met[k]] = UINT32_MAX;
            from                 = GB_MIN(from, x->met[k]);
        }
    }
    if (x->begins) {
        return;
    }
    for (uint32_t k = kept = from; k < x->n_placed; k++) {
        x->first[kept]  = x->first[k];
        x->last[kept]   = x->last[k];
        x->placed[kept] = x->placed[k];
        kept += x->placed[k] != UINT32_MAX;
    }
    x->n_placed = kept;
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
        if (!gb_plan_spend(budget, (x->begins ? 0 : x->n_placed / 2) + 4 * (uint64_t) x->n_outside)) {
            return false;
        }
        const uint32_t                b   = next_of(x);
        const struct gb_plan_buffer * one = &x->part->buffers[b];
        uint64_t                      looked_at;
        const uint32_t                n  = find_met(x, one, &looked_at);
        const size_t                  at = cheapest(x, one, n, x->target);
        (void) gb_plan_spend(budget, x->begins ? looked_at + 20 * (uint64_t) n : 10 * (uint64_t) n);
        make_room(x, one, at, n);
        put_in(x, b, at);
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
        if (x->moves == 0 || x->target >= part->peak || (x->begins && x->peak != part->peak)) {
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
