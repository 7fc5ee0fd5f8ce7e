// recompute.c - the search of recompute.h: limits, rounds and choices.
//
// Bisection finds the smallest limit. Its sequence is the first choice. Then higher limits follow, up
// to the peak of the given order. The best sequence of lower limits competes with simulations that
// have several exponents and random factors. Repetitions that the limit does not need are removed from
// each of them, and the one with the least work is kept.
//
// A choice meets all higher limits, too, so the work never rises with the limit. The limits do not
// depend on the caller's limit.
#include "alloc/recompute.h"

#include <math.h>

#include "alloc/recompute_search.h"
#include "base/current.h"
#include "base/mem.h"
#include "base/status.h"

enum {
    N_LIMITS = 48,   // limits between the least and the peak of the given order
    ROUNDS_MIN = 3,  // of a limit
    ROUNDS_MAX = 60, // of a limit
    ROUNDS_IDLE = 6, // without a better sequence, after which a limit gets less time
    BISECTIONS = 24,
    PRECISION = 1024, // of the least limit: its error is at most this part of it
    N_EXPONENTS = 4,
    REPEATS_MAX = 12, // the most nodes of a sequence, relative to those of the given order
    REPEATS_OF_ROUND = 4, // the same, where a sequence is known
};

static const double exponents[N_EXPONENTS] = { 1.0, 0.5, 2.0, 0.0 };
// Budgets in steps
static const uint64_t steps_of_limit = 40000000; // of the rounds of a limit
static const uint64_t steps_if_idle = 5000000; // of the same, if the last rounds found nothing better
static const uint64_t steps_to_meet = 2000000; // to find out if a limit can be met

static void free_search(struct gb_recompute_search * s) {
    gb_free(s->resident);
    gb_free(s->held);
    gb_free(s->waiting);
    gb_free(s->expires);
    gb_free(s->tries);
    gb_free(s->next);
    gb_free(s->seen);
    gb_free(s->now);
    gb_vec_free(&s->stack);
    gb_vec_free(&s->todo);
    gb_vec_free(&s->from);
    gb_vec_free(&s->last);
    gb_vec_free(&s->skip);
    gb_vec_free(&s->level);
}

static bool init_search(struct gb_recompute_search * s, const struct gb_recompute_input * in) {
    const size_t n = (size_t) in->n_storages + 1;
    *s = (struct gb_recompute_search){ .in = in, .random = 1 };
    s->resident = gb_calloc(n, sizeof(*s->resident));
    s->held = gb_calloc(n, sizeof(*s->held));
    s->waiting = gb_calloc(n, sizeof(*s->waiting));
    s->tries = gb_calloc((size_t) in->n_nodes + 1, sizeof(*s->tries));
    s->next = gb_calloc(n, sizeof(*s->next));
    s->seen = gb_calloc(n, sizeof(*s->seen));
    s->now = gb_calloc(n, sizeof(*s->now));
    s->expires = gb_calloc((size_t) in->n_nodes + 1, sizeof(*s->expires));
    for (int i = 0; s->expires && i < in->n_storages; i++) {
        s->expires[GB_MIN(in->storages[i].valid_until, in->n_nodes)] = true;
    }
    return s->resident && s->held && s->waiting && s->expires && s->tries && s->next && s->seen && s->now;
}

// --------------------------------------------------------------------------------------------------------- the rounds

static void swap(struct gb_recompute_sequence * a, struct gb_recompute_sequence * b) {
    const struct gb_recompute_sequence c = *a;
    *a = *b;
    *b = c;
}

// Sets what a round varies, from its number.
static void begin_round(struct gb_recompute_search * s, int round, size_t limit) {
    const bool varies = round >= N_EXPONENTS;
    s->exponent = exponents[round % N_EXPONENTS];
    s->noise = varies ? 4 * gb_recompute_random(s) : 0;
    s->lazy = round / N_EXPONENTS % 3 == 1 ? gb_recompute_random(s) : 0;
    s->eager = round / N_EXPONENTS % 6 == 5 ? gb_recompute_random(s) : 0;
    s->first_read = round / N_EXPONENTS % 2 == 1 ? 1 + (int) (GB_LIVE_SLOTS * gb_recompute_random(s)) : 0;
    s->keeps_waiting = round % 3 != 2;
    s->keeps_dead = round / N_EXPONENTS % 6 == 3;
    s->limit = limit;
}

// Meets a limit with few rounds; `q` gets the sequence.
static enum ggml_status meet(struct gb_recompute_search * s, size_t limit, struct gb_recompute_sequence * q,
    bool * found) {
    const uint64_t failures = gb_fail_count();
    *found = false;
    s->steps = 0;
    s->repeats = REPEATS_MAX;
    enum ggml_status status = GGML_STATUS_SUCCESS;
    for (int round = 0; status == GGML_STATUS_SUCCESS && !*found && round < ROUNDS_MAX &&
                        (round < N_EXPONENTS || s->steps < steps_to_meet);
        round++) {
        begin_round(s, round, limit);
        *found = gb_recompute_simulate(s, q) && gb_recompute_count_all(s, q);
        status = gb_status_since(failures);
    }
    return status;
}

// Bisects the smallest peak that the first rounds reach. `least` has the given order at first. A limit that cannot be
// met takes most of the time, so the last bytes are not searched.
static enum ggml_status find_least(struct gb_recompute_search * s, size_t lower, struct gb_recompute_sequence * least) {
    struct gb_recompute_sequence q = { 0 };
    enum ggml_status status = GGML_STATUS_SUCCESS;
    for (int i = 0; status == GGML_STATUS_SUCCESS && i < BISECTIONS && lower + least->peak / PRECISION < least->peak;
        i++) {
        const size_t limit = i == 0 ? lower : lower + (least->peak - lower) / 2;
        bool found;
        status = meet(s, limit, &q, &found);
        if (found) {
            gb_recompute_compact(s, &q);
            swap(least, &q);
        } else {
            lower = limit + 1;
        }
    }
    gb_recompute_free_sequence(&q);
    return status;
}

// The bytes that any sequence has alive when a node runs: what it reads and makes, and what must stay.
static size_t lower_bound_of(struct gb_recompute_search * s) {
    const struct gb_recompute_input * in = s->in;
    size_t most = 0, stays = 0; // stays: outputs
    for (int i = 0; i < in->n_storages; i++) {
        stays += in->storages[i].maker == GB_RECOMPUTE_NONE && in->storages[i].to_end ? in->storages[i].size : 0;
    }
    for (int v = 0; v < in->n_nodes; v++) {
        const struct gb_recompute_node * node = &in->nodes[v];
        const size_t size = node->makes == GB_RECOMPUTE_NONE ? 0 : in->storages[node->makes].size;
        size_t bytes = stays + size, over = 0;
        for (int k = 0; k < node->n_reads; k++) {
            const struct gb_recompute_storage * read = &in->storages[node->reads[k]];
            bytes += read->to_end ? 0 : read->size;
            over = node->over[k] && !read->to_end && read->size == size ? size : over;
        }
        most = GB_MAX(most, bytes - over);
        stays += node->makes != GB_RECOMPUTE_NONE && in->storages[node->makes].to_end ? size : 0;
    }
    return most;
}

// -------------------------------------------------------------------------------------------------------- the choices

// Limits from the least to below the peak of the given order, and the best sequence of each. A
// sequence is at the lowest limit that it meets.
struct ladder {
    int n;
    size_t limits[N_LIMITS];
    struct gb_recompute_sequence best[N_LIMITS]; // owned; without nodes: none
    double work; // of the given order
};

static size_t divisor_of(size_t a, size_t b) { // the greatest common one
    while (b > 0) {
        const size_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

// Each limit is higher than the one before by the same ratio, because the work falls fast above the
// least. Distances are multiples of the greatest common divisor of all sizes, so small graphs have a
// limit for each peak.
static void make_ladder(const struct gb_recompute_input * in, size_t least, size_t before, struct ladder * l) {
    size_t unit = 0;
    for (int i = 0; i < in->n_storages; i++) {
        unit = divisor_of(in->storages[i].size, unit);
    }
    unit = GB_MAX(unit, (size_t) 1);
    const bool has_all = (before - least) / unit <= N_LIMITS;
    const double ratio = has_all || least == 0 ? 1 : pow((double) before / (double) least, 1.0 / N_LIMITS);
    const size_t even = has_all || least > 0 ? 1 : before / N_LIMITS;
    for (size_t limit = least; limit < before && l->n < N_LIMITS; l->n++) {
        l->limits[l->n] = limit;
        const size_t distance = GB_MAX((size_t) ((double) limit * (ratio - 1)), even);
        limit += (distance + unit - 1) / unit * unit;
    }
}

// Replaces the sequence of the lowest limit that `q` meets, if q has less work. True if it has.
static bool keep(struct ladder * l, struct gb_recompute_sequence * q) {
    int k = 0;
    while (k < l->n && l->limits[k] < q->peak) {
        k++;
    }
    const bool is_better = k < l->n && (l->best[k].nodes.n == 0 || q->work < l->best[k].work);
    if (is_better) {
        swap(&l->best[k], q);
    }
    return is_better;
}

// The least work of the limits up to this one; the given order's work is the least of all.
static const struct gb_recompute_sequence * best_until(const struct ladder * l, int last) {
    const struct gb_recompute_sequence * best = NULL;
    for (int k = 0; k <= last; k++) {
        if (l->best[k].nodes.n > 0 && (best == NULL || l->best[k].work < best->work)) {
            best = &l->best[k];
        }
    }
    return best;
}

// False: the rounds of limit k are over, or no sequence can be better.
static bool is_round_left(const struct gb_recompute_search * s, const struct ladder * l, int k, int round, int idle) {
    const uint64_t most = idle < ROUNDS_IDLE ? steps_of_limit : steps_if_idle;
    return best_until(l, k)->work > l->work && round < ROUNDS_MAX && (round < ROUNDS_MIN || s->steps < most);
}

// Searches sequences for one limit of the ladder.
static enum ggml_status find_best(struct gb_recompute_search * s, struct ladder * l, int k) {
    struct gb_recompute_sequence q = { 0 };
    const size_t limit = l->limits[k];
    const struct gb_recompute_sequence * before = best_until(l, k);
    enum ggml_status status = GGML_STATUS_ALLOC_FAILED;
    if (before && gb_recompute_copy(&q, before)) {
        const uint64_t failures = gb_fail_count();
        if (gb_recompute_remove(s, &q, limit)) {
            keep(l, &q);
        }
        status = gb_status_since(failures);
    }
    s->steps = 0;
    s->repeats = REPEATS_OF_ROUND;
    for (int round = 0, idle = 0; status == GGML_STATUS_SUCCESS && is_round_left(s, l, k, round, idle); round++) {
        const uint64_t failures = gb_fail_count();
        begin_round(s, round, limit);
        idle = gb_recompute_simulate(s, &q) && gb_recompute_remove(s, &q, limit) && keep(l, &q) ? 0 : idle + 1;
        status = gb_status_since(failures);
    }
    gb_recompute_free_sequence(&q);
    return status;
}

static void add_choice(struct gb_recompute_result * result, struct gb_recompute_sequence * q) {
    struct gb_recompute_choice * to = &result->choices[result->n_choices++];
    *to = (struct gb_recompute_choice){ q->nodes.data, (int) q->nodes.n, q->peak, q->work - result->work };
    q->nodes.data = NULL;
    q->nodes.n = q->nodes.cap = 0;
}

// Moves the sequences with less work than all with lower peaks to the result. The given order is the
// last one. False: memory ran out.
static bool take_choices(struct ladder * l, struct gb_recompute_sequence * given, struct gb_recompute_result * result) {
    result->choices = gb_calloc((size_t) l->n + 1, sizeof(*result->choices));
    if (result->choices == NULL) {
        return false;
    }
    double work = INFINITY;
    for (int k = 0; k < l->n; k++) {
        if (l->best[k].nodes.n > 0 && l->best[k].work < work) {
            work = l->best[k].work;
            add_choice(result, &l->best[k]);
        }
    }
    add_choice(result, given);
    result->least = result->choices[0].peak;
    return true;
}

static enum ggml_status search(struct gb_recompute_search * s, struct ladder * l, struct gb_recompute_sequence * given,
    struct gb_recompute_result * result) {
    for (int v = 0; v < s->in->n_nodes; v++) {
        result->work += s->in->nodes[v].work;
        if (!gb_vec_push(&given->nodes, v)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    struct gb_recompute_sequence least = { 0 };
    if (!gb_recompute_count_all(s, given) || !gb_recompute_copy(&least, given)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    result->before = given->peak;
    result->lower_bound = lower_bound_of(s);
    enum ggml_status status = find_least(s, result->lower_bound, &least);
    l->work = given->work;
    make_ladder(s->in, least.peak, given->peak, l);
    keep(l, &least);
    gb_recompute_free_sequence(&least);
    for (int k = 0; status == GGML_STATUS_SUCCESS && k < l->n; k++) {
        status = find_best(s, l, k);
    }
    return status == GGML_STATUS_SUCCESS && !take_choices(l, given, result) ? GGML_STATUS_ALLOC_FAILED : status;
}

enum ggml_status gb_recompute(const struct gb_recompute_input * in, struct gb_recompute_result * result) {
    GB_CHECK_ARG(in);
    GB_CHECK_ARG(result);
    *result = (struct gb_recompute_result){ 0 };
    struct gb_recompute_search s;
    struct ladder ladder = { 0 };
    struct gb_recompute_sequence given = { 0 };
    enum ggml_status status = GGML_STATUS_ALLOC_FAILED;
    if (init_search(&s, in) && gb_vec_reserve(&given.nodes, 1)) { // an empty sequence has an address, too
        status = search(&s, &ladder, &given, result);
    }
    free_search(&s);
    gb_recompute_free_sequence(&given);
    for (int k = 0; k < N_LIMITS; k++) {
        gb_recompute_free_sequence(&ladder.best[k]);
    }
    return status;
}

const struct gb_recompute_choice * gb_recompute_choose(const struct gb_recompute_result * result, size_t limit) {
    const struct gb_recompute_choice * best = NULL;
    for (int k = 0; k < result->n_choices && result->choices[k].peak <= limit; k++) {
        best = &result->choices[k];
    }
    return best;
}

void gb_recompute_free(struct gb_recompute_result * result) {
    for (int k = 0; k < result->n_choices; k++) {
        gb_free(result->choices[k].sequence);
    }
    gb_free(result->choices);
    *result = (struct gb_recompute_result){ 0 };
}
