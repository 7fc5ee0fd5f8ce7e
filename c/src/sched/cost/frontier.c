// frontier.c - exact placement by dynamic programming over the frontier.
//
// Items get their labels one after the other: ops in order of execution, and memory that no op
// computes just before its first reader. After each step a state has only the facts that later
// terms depend on: labels of items, and for each value with several consumers the set of backends
// that have it. A state has a few bytes in fixed slots. Equal states are merged, and the cheapest
// is kept. Graphs of networks are narrow, so there are few states at a time.
#include "sched/cost/frontier.h"

#include <string.h>

#include "base/current.h"
#include "base/status.h"

enum { NO_SLOT = -1, ASK = 256 }; // states between two calls of the thread's poll

struct term { // value >= 0: consumer `a` of that value; else `a` and `b` are neighbours
    int32_t step, value, a, b;
};

struct origin { // the origin of a state; the chain of origins gives the labels
    uint32_t parent;
    uint8_t label;
};

// The states after a step.
struct layer {
    GB_VEC(uint8_t) bytes; // `width` for each state
    GB_VEC(int64_t) cost;
    size_t first; // index of its first state in `history`
};

// One search. A state is `width` bytes: an item's slot has its label, a value's slot the set of
// backends that have it. Unused slots are zero, so that equal states have equal bytes.
struct search {
    const struct gb_cost_problem * p;
    int64_t upper;
    size_t max_states;
    int32_t * item; // per step: its item
    int32_t * when; // per item: its step
    int64_t * togo; // per step, n + 1 entries: lower bound of the cost of later items
    int32_t *item_slot, *value_slot; // its slot in a state; NO_SLOT: no later term needs it
    int32_t *item_last, *value_last; // the last step with a term of it; -1: none
    int32_t * value_first;
    GB_VEC(struct term) terms; // by step
    uint32_t * term_begin; // per step, n + 1 entries
    GB_VEC(int32_t) free_slots;
    int32_t * dying; // slots that no later step needs, by step
    uint32_t * dying_begin; // per step, n + 1 entries
    int n_slots;
    size_t width;
    GB_VEC(struct origin) history;
    struct layer now, next;
    uint32_t * table; // of `next`: index of a state + 1
    size_t table_size;
    uint8_t * trial; // one state
};

static void free_search(struct search * s) {
    gb_free(s->item);
    gb_free(s->when);
    gb_free(s->togo);
    gb_free(s->item_slot);
    gb_free(s->value_slot);
    gb_free(s->item_last);
    gb_free(s->value_last);
    gb_free(s->value_first);
    gb_vec_free(&s->terms);
    gb_free(s->term_begin);
    gb_vec_free(&s->free_slots);
    gb_free(s->dying);
    gb_free(s->dying_begin);
    gb_vec_free(&s->history);
    gb_vec_free(&s->now.bytes);
    gb_vec_free(&s->now.cost);
    gb_vec_free(&s->next.bytes);
    gb_vec_free(&s->next.cost);
    gb_free(s->table);
    gb_free(s->trial);
}

static bool allocate(struct search * s) {
    const size_t n = (size_t) s->p->n_items, v = (size_t) s->p->n_values;
    s->item = gb_calloc(n, sizeof(*s->item));
    s->when = gb_calloc(n, sizeof(*s->when));
    s->togo = gb_calloc(n + 1, sizeof(*s->togo));
    s->item_slot = gb_calloc(n, sizeof(*s->item_slot));
    s->item_last = gb_calloc(n, sizeof(*s->item_last));
    s->value_slot = gb_calloc(v, sizeof(*s->value_slot));
    s->value_last = gb_calloc(v, sizeof(*s->value_last));
    s->value_first = gb_calloc(v, sizeof(*s->value_first));
    s->term_begin = gb_calloc(n + 1, sizeof(*s->term_begin));
    s->dying = gb_calloc(n + v, sizeof(*s->dying));
    s->dying_begin = gb_calloc(n + 1, sizeof(*s->dying_begin));
    return s->item && s->when && s->togo && s->item_slot && s->item_last && s->value_slot && s->value_last &&
           s->value_first && s->term_begin && s->dying && s->dying_begin;
}

// --------------------------------------------------------------------------------------------------------------- order

struct reads { // values by consumer
    uint32_t * begin;
    int32_t * value;
};

// The values that item i reads are value[begin[i]] to value[begin[i + 1] - 1].
static bool list_reads(const struct gb_cost_problem * p, struct reads * r) {
    size_t n = 0;
    for (int v = 0; v < p->n_values; v++) {
        n += p->values[v].end - p->values[v].begin;
    }
    r->begin = gb_calloc((size_t) p->n_items + 2, sizeof(*r->begin));
    r->value = gb_calloc(n, sizeof(*r->value));
    if (!r->begin || !r->value) {
        return false;
    }
    for (int v = 0; v < p->n_values; v++) {
        for (uint32_t c = p->values[v].begin; c < p->values[v].end; c++) {
            r->begin[p->consumers[c] + 2]++;
        }
    }
    for (int i = 0; i < p->n_items; i++) {
        r->begin[i + 2] += r->begin[i + 1];
    }
    for (int v = 0; v < p->n_values; v++) {
        for (uint32_t c = p->values[v].begin; c < p->values[v].end; c++) {
            r->value[r->begin[p->consumers[c] + 1]++] = v;
        }
    }
    return true;
}

// The item is labelled in step *n.
static void put(struct search * s, int32_t item, int * n) {
    s->when[item] = *n;
    s->item[(*n)++] = item;
}

// Fills item[] and when[]. Until then when[] is -1 for items of `order` without a step, and -2 for
// other items. Memory that no op computes comes right before its first reader. Items that are not
// in `order` come last.
static void order_items(struct search * s, const struct reads * r) {
    const struct gb_cost_problem * p = s->p;
    int n = 0;
    for (int i = 0; i < p->n_items; i++) {
        s->when[i] = -2;
    }
    for (int k = 0; k < p->n_order; k++) {
        s->when[p->order[k]] = -1;
    }
    for (int k = 0; k < p->n_order; k++) {
        const int32_t i = p->order[k];
        for (uint32_t q = r->begin[i]; q < r->begin[i + 1] && s->when[i] == -1; q++) {
            const int32_t producer = p->values[r->value[q]].producer;
            if (s->when[producer] == -2) {
                put(s, producer, &n);
            }
        }
        if (s->when[i] == -1) {
            put(s, i, &n);
        }
    }
    for (int i = 0; i < p->n_items; i++) {
        if (s->when[i] < 0) {
            put(s, i, &n);
        }
    }
}

static enum ggml_status find_order(struct search * s) {
    struct reads r = { 0 };
    const bool ok = list_reads(s->p, &r);
    if (ok) {
        order_items(s, &r);
    }
    gb_free(r.begin);
    gb_free(r.value);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

static int64_t cost_at(const struct gb_cost_problem * p, int item, int backend) {
    return p->cost[(size_t) item * (size_t) p->n_backends + (size_t) backend];
}

// The lower bound from each step on: items at their cheapest, without copies and splits.
static void estimate(struct search * s) {
    for (int step = s->p->n_items; step-- > 0;) {
        int64_t least = GB_COST_INF;
        for (int b = 0; b < s->p->n_backends; b++) {
            least = GB_MIN(least, cost_at(s->p, s->item[step], b));
        }
        s->togo[step] = s->togo[step + 1] + (least >= GB_COST_INF ? 0 : least);
    }
}

// --------------------------------------------------------------------------------------------------------------- terms

// Visits every term of the sum in a fixed order: each value with each consumer, then each pair of
// neighbours. Stops and returns false if a visit returns false.
static bool each_term(const struct search * s, bool (*visit)(struct search *, struct term), struct search * out) {
    const struct gb_cost_problem * p = s->p;
    for (int v = 0; v < p->n_values; v++) {
        for (uint32_t c = p->values[v].begin; c < p->values[v].end; c++) {
            const int32_t a = p->consumers[c], b = p->values[v].producer;
            if (!visit(out, (struct term){ GB_MAX(s->when[a], s->when[b]), v, a, b })) {
                return false;
            }
        }
    }
    for (int k = 0; k + 1 < p->n_order; k++) {
        const int32_t a = p->order[k], b = p->order[k + 1];
        if (a != b && !visit(out, (struct term){ GB_MAX(s->when[a], s->when[b]), -1, a, b })) {
            return false;
        }
    }
    return true;
}

// Counts the terms of each step, and finds the last steps of items and values.
static bool count_term(struct search * s, struct term t) {
    s->term_begin[t.step + 1]++;
    s->item_last[t.a] = GB_MAX(s->item_last[t.a], t.step);
    s->item_last[t.b] = GB_MAX(s->item_last[t.b], t.step);
    if (t.value >= 0) {
        s->value_last[t.value] = GB_MAX(s->value_last[t.value], t.step);
        s->value_first[t.value] = GB_MIN(s->value_first[t.value], t.step);
    }
    return true;
}

// Each term advances the begin of its step. list_terms moves it back.
static bool store_term(struct search * s, struct term t) {
    s->terms.data[s->term_begin[t.step]++] = t;
    return true;
}

// Sorts the terms by step, in two visits: the first counts, the second stores.
static enum ggml_status list_terms(struct search * s) {
    const int n = s->p->n_items;
    for (int i = 0; i < n; i++) {
        s->item_last[i] = -1;
    }
    for (int v = 0; v < s->p->n_values; v++) {
        s->value_last[v] = -1;
        s->value_first[v] = n;
    }
    each_term(s, count_term, s);
    for (int i = 0; i < n; i++) {
        s->term_begin[i + 1] += s->term_begin[i];
    }
    if (!gb_vec_resize_zero(&s->terms, (size_t) s->term_begin[n])) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    each_term(s, store_term, s);
    for (int i = n; i > 0; i--) {
        s->term_begin[i] = s->term_begin[i - 1];
    }
    s->term_begin[0] = 0;
    return GGML_STATUS_SUCCESS;
}

// --------------------------------------------------------------------------------------------------------------- slots

// The slot that was freed last, or a new one.
static int32_t take_slot(struct search * s) {
    return s->free_slots.n > 0 ? s->free_slots.data[--s->free_slots.n] : s->n_slots++;
}

// If a value has several consumers, the set of backends that have it must be stored from the first
// consumer on, also within one step.
static bool is_shared(const struct search * s, int value) {
    return s->p->values[value].end - s->p->values[value].begin > 1;
}

// Frees the slots of items and values in the step's terms that no later step needs.
static bool end_slots(struct search * s, int step, uint32_t * n_dying) {
    const int32_t own = s->item[step];
    if (s->item_last[own] < step) { // it has no terms
        s->item_last[own] = step;
    }
    for (int64_t k = (int64_t) s->term_begin[step] - 1; k < (int64_t) s->term_begin[step + 1]; k++) {
        const bool first = k < (int64_t) s->term_begin[step];
        const struct term t = first ? (struct term){ step, -1, own, own } : s->terms.data[k];
        int32_t * slot[3] = { &s->item_last[t.a], &s->item_last[t.b], t.value >= 0 ? &s->value_last[t.value] : NULL };
        const int32_t index[3] = { s->item_slot[t.a], s->item_slot[t.b],
            t.value >= 0 ? s->value_slot[t.value] : NO_SLOT };
        for (int j = 0; j < 3; j++) {
            if (slot[j] == NULL || *slot[j] != step || index[j] == NO_SLOT) {
                continue;
            }
            *slot[j] = -1; // only once
            s->dying[(*n_dying)++] = index[j];
            if (!gb_vec_push(&s->free_slots, index[j])) {
                return false;
            }
        }
    }
    s->dying_begin[step + 1] = *n_dying;
    return true;
}

// An item has a slot from its step on, a value with several consumers from its first term on. Each
// slot is reused after the last step that needs it.
static enum ggml_status assign_slots(struct search * s) {
    uint32_t n_dying = 0;
    for (int v = 0; v < s->p->n_values; v++) {
        s->value_slot[v] = NO_SLOT;
    }
    for (int step = 0; step < s->p->n_items; step++) {
        s->item_slot[s->item[step]] = take_slot(s);
        for (uint32_t k = s->term_begin[step]; k < s->term_begin[step + 1]; k++) {
            const int32_t v = s->terms.data[k].value;
            if (v >= 0 && is_shared(s, v) && s->value_slot[v] == NO_SLOT) {
                s->value_slot[v] = take_slot(s);
            }
        }
        if (!end_slots(s, step, &n_dying)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    s->width = (size_t) GB_MAX(s->n_slots, 1);
    s->trial = gb_calloc(s->width, 1);
    return s->trial ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

// -------------------------------------------------------------------------------------------------------------- states

// The cost of the step's terms in the trial state, where all its items have labels. Marks the
// copies that the cost includes.
static int64_t count_terms(struct search * s, int step) {
    const struct gb_cost_problem * p = s->p;
    const size_t k = (size_t) p->n_backends;
    int64_t sum = 0;
    for (uint32_t n = s->term_begin[step]; n < s->term_begin[step + 1]; n++) {
        const struct term * t = &s->terms.data[n];
        const int a = s->trial[s->item_slot[t->a]], b = s->trial[s->item_slot[t->b]];
        uint8_t unshared = 0;
        uint8_t * paid =
            t->value >= 0 && s->value_slot[t->value] != NO_SLOT ? &s->trial[s->value_slot[t->value]] : &unshared;
        if (a == b) {
            continue;
        }
        if (t->value < 0) {
            sum += p->split;
        } else if (!(*paid >> a & 1)) {
            sum += p->copy[((size_t) t->value * k + (size_t) b) * k + (size_t) a];
            *paid = (uint8_t) (*paid | 1u << a);
        }
    }
    return sum;
}

static uint64_t hash_of(const uint8_t * bytes, size_t n) { // FNV-1a
    uint64_t h = UINT64_C(14695981039346656037);
    for (size_t k = 0; k < n; k++) {
        h = (h ^ bytes[k]) * UINT64_C(1099511628211);
    }
    return h ^ h >> 32;
}

// A table for the next layer, with memory for four times as many states. An old table that is large
// enough is reused.
static bool grow_table(struct search * s) {
    const size_t want = GB_MAX((size_t) 1024, 4 * s->next.cost.n);
    if (want > s->table_size || s->table == NULL) {
        uint32_t * table = gb_calloc(want, sizeof(*table));
        if (table == NULL) {
            return false;
        }
        gb_free(s->table);
        s->table = table;
        s->table_size = want;
    } else {
        memset(s->table, 0, s->table_size * sizeof(*s->table));
    }
    for (size_t k = 0; k < s->next.cost.n; k++) {
        size_t at = hash_of(s->next.bytes.data + k * s->width, s->width) % s->table_size;
        while (s->table[at] != 0) {
            at = (at + 1) % s->table_size;
        }
        s->table[at] = (uint32_t) k + 1;
    }
    return true;
}

// Adds the trial state to the next layer, or lowers the cost of the equal state there. False: no
// memory. Open addressing; the table has indices into the layer and is at most half full.
static bool merge(struct search * s, int64_t cost, struct origin origin) {
    if (2 * s->next.cost.n >= s->table_size && !grow_table(s)) {
        return false;
    }
    size_t at = hash_of(s->trial, s->width) % s->table_size;
    for (; s->table[at] != 0; at = (at + 1) % s->table_size) {
        const size_t k = s->table[at] - 1;
        if (memcmp(s->next.bytes.data + k * s->width, s->trial, s->width) != 0) {
            continue;
        }
        if (cost < s->next.cost.data[k]) {
            s->next.cost.data[k] = cost;
            s->history.data[s->next.first + k] = origin;
        }
        return true;
    }
    const size_t n = s->next.cost.n;
    if (!gb_vec_reserve(&s->next.bytes, (n + 1) * s->width) || !gb_vec_push(&s->next.cost, cost) ||
        !gb_vec_push(&s->history, origin)) {
        return false;
    }
    memcpy(s->next.bytes.data + n * s->width, s->trial, s->width);
    s->table[at] = (uint32_t) n + 1;
    return true;
}

// Tries all labels of the step's item after state k.
static bool branch(struct search * s, int step, size_t k) {
    const int32_t item = s->item[step];
    for (int b = 0; b < s->p->n_backends; b++) {
        int64_t cost = cost_at(s->p, item, b);
        if (cost >= GB_COST_INF) {
            continue;
        }
        memcpy(s->trial, s->now.bytes.data + k * s->width, s->width);
        s->trial[s->item_slot[item]] = (uint8_t) b;
        cost += s->now.cost.data[k] + count_terms(s, step);
        if (cost + s->togo[step + 1] >= s->upper) {
            continue;
        }
        for (uint32_t d = s->dying_begin[step]; d < s->dying_begin[step + 1]; d++) {
            s->trial[s->dying[d]] = 0;
        }
        if (!merge(s, cost, (struct origin){ (uint32_t) (s->now.first + k), (uint8_t) b })) {
            return false;
        }
    }
    return true;
}

// Makes the states after the step. The step stays incomplete if the budget is used up.
static enum ggml_status take_step(struct search * s, int step) {
    s->next.cost.n = 0;
    s->next.first = s->history.n;
    if (!grow_table(s)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (size_t k = 0; k < s->now.cost.n && s->history.n <= s->max_states; k++) {
        if (k % ASK == 0) {
            GB_TRY(gb_check_poll());
        }
        if (!branch(s, step, k)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    return GGML_STATUS_SUCCESS;
}

// The lower bound of a search that stopped: each placement continues one of these states, or costs
// `upper` or more.
static int64_t least_estimate(const struct search * s, int step) { // over the states before the step
    int64_t least = INT64_MAX;
    for (size_t k = 0; k < s->now.cost.n; k++) {
        least = GB_MIN(least, s->now.cost.data[k] + s->togo[step]);
    }
    return GB_MIN(least, s->upper);
}

// Follows the origins from the last step to the first.
static void read_labels(const struct search * s, size_t state, int32_t * labels) {
    for (int step = s->p->n_items; step-- > 0;) {
        labels[s->item[step]] = s->history.data[state].label;
        state = s->history.data[state].parent;
    }
}

// The first state: nothing is decided.
static bool begin(struct search * s) {
    return gb_vec_resize_zero(&s->now.bytes, s->width) && gb_vec_push(&s->now.cost, 0) &&
           gb_vec_push(&s->history, ((struct origin){ 0, 0 }));
}

// The last layer has at most one state, because no later term needs anything.
static enum ggml_status run(struct search * s, int32_t * labels, struct gb_frontier_result * r) {
    if (!begin(s)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (int step = 0; step < s->p->n_items; step++) {
        GB_TRY(take_step(s, step));
        if (s->history.n > s->max_states) {
            r->bound = least_estimate(s, step);
            return GGML_STATUS_SUCCESS;
        }
        const struct layer done = s->now;
        s->now = s->next;
        s->next = done;
        r->widest = GB_MAX(r->widest, s->now.cost.n);
    }
    r->complete = true;
    r->found = s->now.cost.n > 0;
    r->cost = r->found ? s->now.cost.data[0] : s->upper;
    r->bound = r->cost;
    if (r->found) {
        read_labels(s, s->now.first, labels);
    }
    return GGML_STATUS_SUCCESS;
}

// Prepares everything that does not depend on states: order of items, terms of each step, slots.
static enum ggml_status prepare(struct search * s) {
    if (!allocate(s)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_TRY(find_order(s));
    estimate(s);
    GB_TRY(list_terms(s));
    return assign_slots(s);
}

enum ggml_status gb_frontier_solve(const struct gb_cost_problem * p, int64_t upper, size_t max_states, int32_t * labels,
    struct gb_frontier_result * result) {
    struct search s = { .p = p, .upper = upper, .max_states = GB_MIN(max_states, (size_t) UINT32_MAX / 2) };
    *result = (struct gb_frontier_result){ 0 };
    enum ggml_status status = prepare(&s);
    if (status == GGML_STATUS_SUCCESS) {
        status = run(&s, labels, result);
    }
    result->n_states = s.history.n;
    free_search(&s);
    return status;
}
