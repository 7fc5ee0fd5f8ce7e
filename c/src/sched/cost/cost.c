// cost.c - the cost of labels, and how to minimize it. For two backends one minimum cut is enough.
// For more backends, expansion moves (each a cut) give a start for the frontier search, and the
// result if the graph is too wide for that search.
//
// An expansion move lets each item keep its label or take alpha. All its terms are cuts except one:
// a copy that gets cheaper because its producer moves to alpha while a consumer stays. That copy
// counts with the higher price, so a move saves at least what the cut promises. A move is accepted
// only if the exact cost decreases. With two backends and all labels 0 this case does not occur,
// and the cut is exact.
#include "sched/cost/cost.h"

#include <string.h>

#include "base/status.h"
#include "sched/cost/frontier.h"

// The price of one copy of a value; 0 if the backend has the value already.
static int64_t price(const struct gb_cost_problem * p, int value, int from, int to) {
    const size_t k = (size_t) p->n_backends;
    return from == to ? 0 : p->copy[((size_t) value * k + (size_t) from) * k + (size_t) to];
}

static int64_t cost_at(const struct gb_cost_problem * p, int item, int backend) {
    return p->cost[(size_t) item * (size_t) p->n_backends + (size_t) backend];
}

// True if consumer c of the value is the first with its label.
static bool is_first_there(const struct gb_cost_problem * p, const struct gb_cost_value * v, uint32_t c,
    const int32_t * labels) {
    for (uint32_t d = v->begin; d < c; d++) {
        if (labels[p->consumers[d]] == labels[p->consumers[c]]) {
            return false;
        }
    }
    return true;
}

// The cost of a value's copies: one for each backend of a consumer, except the producer's backend.
// A word has a bit for each of the first 64 backends. For further backends, consumers are compared
// with earlier consumers.
static int64_t copies_of(const struct gb_cost_problem * p, int value, const int32_t * labels) {
    const struct gb_cost_value * v = &p->values[value];
    const int home = labels[v->producer];
    int64_t sum = 0;
    if (p->n_backends <= 64) {
        uint64_t seen = UINT64_C(1) << home;
        for (uint32_t c = v->begin; c < v->end; c++) {
            const int b = labels[p->consumers[c]];
            sum += seen >> b & 1 ? 0 : price(p, value, home, b);
            seen |= UINT64_C(1) << b;
        }
        return sum;
    }
    for (uint32_t c = v->begin; c < v->end; c++) {
        sum += is_first_there(p, v, c, labels) ? price(p, value, home, labels[p->consumers[c]]) : 0;
    }
    return sum;
}

int64_t gb_cost_of(const struct gb_cost_problem * p, const int32_t * labels) {
    int64_t sum = 0;
    for (int i = 0; i < p->n_items; i++) {
        if (cost_at(p, i, labels[i]) >= GB_COST_INF) {
            return GB_COST_INF;
        }
        sum += cost_at(p, i, labels[i]);
    }
    for (int v = 0; v < p->n_values; v++) {
        sum += copies_of(p, v, labels);
    }
    for (int i = 0; i + 1 < p->n_order; i++) {
        sum += labels[p->order[i]] != labels[p->order[i + 1]] ? p->split : 0;
    }
    return sum;
}

// ------------------------------------------------------------------------------------------------------ expansion move

// State while the network of a move is built. A node on the source side keeps its label. A node on
// the sink side takes alpha. The cut pays for arcs from the source side to the sink side.
struct move {
    const struct gb_cost_problem * p;
    const int32_t * labels;
    int32_t alpha, source, sink;
    int64_t inf;
    struct gb_flow * net;
    bool ok;
};

// `inf` is the largest capacity: more than all finite costs together.
static void arc(struct move * m, int32_t from, int32_t to, int64_t cap) {
    m->ok = m->ok && gb_flow_add(m->net, from, to, GB_MIN(cap, m->inf), 0);
}

// The cut pays cap if the item takes alpha (from = source) or keeps its label (to = sink).
static void add_items(struct move * m) {
    for (int32_t i = 0; i < m->p->n_items; i++) {
        arc(m, m->source, i, cost_at(m->p, i, m->alpha));
        if (m->labels[i] != m->alpha) {
            arc(m, i, m->sink, cost_at(m->p, i, m->labels[i]));
        }
    }
}

// Neighbours pay for a split if their labels differ after the move.
static void add_neighbours(struct move * m) {
    const struct gb_cost_problem * p = m->p;
    for (int k = 0; k + 1 < p->n_order; k++) {
        const int32_t i = p->order[k], j = p->order[k + 1];
        const bool i_there = m->labels[i] == m->alpha, j_there = m->labels[j] == m->alpha;
        if (i == j || (i_there && j_there)) {
            continue;
        }
        if (i_there || j_there) { // one has alpha already: a split if the other item keeps its label
            arc(m, i_there ? j : i, m->sink, p->split);
        } else if (m->labels[i] == m->labels[j]) {
            m->ok = m->ok && gb_flow_add(m->net, i, j, p->split, p->split);
        } else { // a split unless both items move: an extra node takes alpha only if both do
            const int32_t w = m->net->n_nodes;
            arc(m, w, m->sink, p->split);
            arc(m, i, w, m->inf);
            arc(m, j, w, m->inf);
        }
    }
}

// The cut pays cap if `producer` is on the source side and a consumer labelled `group` on the sink
// side; with `reverse`, if the producer is on the sink side and the consumer on the source side.
static void add_group(struct move * m, const struct gb_cost_value * v, int group, int64_t cap, bool reverse) {
    int32_t only = -1;
    int n = 0;
    for (uint32_t c = v->begin; c < v->end; c++) {
        const int32_t i = m->p->consumers[c];
        if (group < 0 || m->labels[i] == group) {
            only = i;
            n++;
        }
    }
    if (n == 1) {
        arc(m, reverse ? only : v->producer, reverse ? v->producer : only, cap);
    }
    if (n <= 1 || cap == 0) {
        return;
    }
    const int32_t w = m->net->n_nodes;
    arc(m, reverse ? w : v->producer, reverse ? v->producer : w, cap);
    for (uint32_t c = v->begin; c < v->end; c++) {
        const int32_t i = m->p->consumers[c];
        if (group < 0 || m->labels[i] == group) {
            arc(m, reverse ? i : w, reverse ? w : i, m->inf);
        }
    }
}

// The cut pays cap if an item of the group keeps its label, wherever the producer is.
static void add_group_stays(struct move * m, const struct gb_cost_value * v, int group, int64_t cap) {
    if (cap == 0) {
        return;
    }
    const int32_t w = m->net->n_nodes;
    arc(m, w, m->sink, cap);
    for (uint32_t c = v->begin; c < v->end; c++) {
        if (m->labels[m->p->consumers[c]] == group) {
            arc(m, m->p->consumers[c], w, m->inf);
        }
    }
}

// The copies of one value. Consumers are grouped by label, because a backend gets a value once. A
// group that stays pays for its copy from the producer's current backend, plus the difference if
// the producer moves to alpha. Consumers that move to alpha need a copy there unless the producer
// moves, too.
static void add_value(struct move * m, int value) {
    const struct gb_cost_problem * p = m->p;
    const struct gb_cost_value * v = &p->values[value];
    const int home = m->labels[v->producer], alpha = m->alpha;
    bool there = false; // a consumer has alpha already
    for (uint32_t c = v->begin; c < v->end; c++) {
        const int b = m->labels[p->consumers[c]];
        there |= b == alpha;
        if (b == alpha || !is_first_there(p, v, c, m->labels)) {
            continue;
        }
        const int64_t stays = home == alpha ? price(p, value, alpha, b) : price(p, value, home, b);
        add_group_stays(m, v, b, stays);
        if (home != alpha) { // extra price if the producer moves and the consumers stay
            add_group(m, v, b, GB_MAX(price(p, value, alpha, b) - stays, 0), true);
        }
    }
    if (home != alpha) {
        if (there) {
            arc(m, v->producer, m->sink, price(p, value, home, alpha));
        } else {
            add_group(m, v, -1, price(p, value, home, alpha), false);
        }
    }
}

// Labels that an item cannot have add nothing to a sum of finite costs.
static int64_t finite(int64_t cost) { return cost >= GB_COST_INF ? 0 : cost; }

// A number greater than the sum of all finite costs.
static int64_t infinity_of(const struct gb_cost_problem * p) {
    int64_t sum = 1 + p->split * p->n_order;
    for (size_t k = 0; k < (size_t) p->n_items * (size_t) p->n_backends; k++) {
        sum += finite(p->cost[k]);
    }
    for (size_t k = 0; k < (size_t) p->n_values * (size_t) p->n_backends * (size_t) p->n_backends; k++) {
        sum += p->copy[k];
    }
    return sum;
}

// The nodes are the items, source and sink, and one node for each group that pays once.
bool gb_cost_network(const struct gb_cost_problem * p, const int32_t * labels, int alpha, struct gb_flow * net) {
    struct move m = {
        .p = p,
        .labels = labels,
        .alpha = alpha,
        .source = p->n_items,
        .sink = p->n_items + 1,
        .inf = infinity_of(p),
        .net = net,
        .ok = true,
    };
    net->n_nodes = p->n_items + 2;
    add_items(&m);
    add_neighbours(&m);
    for (int v = 0; v < p->n_values; v++) {
        add_value(&m, v);
    }
    return m.ok;
}

// ------------------------------------------------------------------------------------------------------------- solving

// Makes one move; *cost decreases or stays. `trial`: memory for the labels.
static enum ggml_status expand(const struct gb_cost_problem * p, int alpha, int32_t * labels, int32_t * trial,
    int64_t * cost) {
    struct gb_flow net = { 0 };
    enum ggml_status status = GGML_STATUS_ALLOC_FAILED;
    if (gb_cost_network(p, labels, alpha, &net)) {
        status = gb_flow_solve(&net, p->n_items, p->n_items + 1);
    }
    if (status == GGML_STATUS_SUCCESS) {
        for (int i = 0; i < p->n_items; i++) {
            trial[i] = net.side[i] ? labels[i] : alpha;
        }
        const int64_t now = gb_cost_of(p, trial);
        if (now < *cost) {
            memcpy(labels, trial, (size_t) p->n_items * sizeof(*labels));
            *cost = now;
        }
    }
    gb_flow_free(&net);
    return status;
}

// A start for the moves: each item on its cheapest backend, without copies.
static void cheapest_alone(const struct gb_cost_problem * p, int32_t * labels) {
    for (int i = 0; i < p->n_items; i++) {
        labels[i] = 0;
        for (int b = 1; b < p->n_backends; b++) {
            labels[i] = cost_at(p, i, b) < cost_at(p, i, labels[i]) ? b : labels[i];
        }
    }
}

// Lower bound: each item at its cheapest, without copies and splits.
static int64_t sum_of_cheapest(const struct gb_cost_problem * p) {
    int64_t sum = 0;
    for (int i = 0; i < p->n_items; i++) {
        int64_t least = GB_COST_INF;
        for (int b = 0; b < p->n_backends; b++) {
            least = GB_MIN(least, cost_at(p, i, b));
        }
        sum += finite(least);
    }
    return sum;
}

// Repeats moves until no backend as alpha improves the labels.
static enum ggml_status descend(const struct gb_cost_problem * p, int32_t * labels, int32_t * trial, int64_t * cost) {
    for (int alpha = 0, idle = 0; idle < p->n_backends; alpha = (alpha + 1) % p->n_backends) {
        const int64_t before = *cost;
        GB_TRY(expand(p, alpha, labels, trial, cost));
        idle = *cost < before ? 0 : idle + 1;
    }
    return GGML_STATUS_SUCCESS;
}

// Starts from the given labels, from each item's cheapest, and from everything on one backend
// (where possible).
static enum ggml_status moves(const struct gb_cost_problem * p, const int32_t * start, int32_t * labels,
    int32_t * scratch, struct gb_cost_result * r) {
    int32_t *at = scratch, *trial = scratch + p->n_items;
    for (int s = start ? -2 : -1; s < p->n_backends; s++) {
        cheapest_alone(p, at);
        for (int i = 0; i < p->n_items; i++) {
            at[i] = s == -2 ? start[i] : s >= 0 && cost_at(p, i, s) < GB_COST_INF ? s : at[i];
        }
        int64_t cost = gb_cost_of(p, at);
        GB_TRY(descend(p, at, trial, &cost));
        if (cost < r->cost) {
            memcpy(labels, at, (size_t) p->n_items * sizeof(*labels));
            r->cost = cost;
        }
    }
    return GGML_STATUS_SUCCESS;
}

// For three or more backends, or one. Moves find a good placement. With few backends, the frontier
// search looks for a better one and proves the optimum or gives a bound.
static enum ggml_status solve_many(const struct gb_cost_problem * p, const int32_t * start, size_t max_states,
    int32_t * labels, int32_t * scratch, struct gb_cost_result * r) {
    GB_TRY(moves(p, start, labels, scratch, r));
    r->method = GB_COST_MOVES;
    r->bound = sum_of_cheapest(p);
    if (p->n_backends <= GB_FRONTIER_BACKENDS_MAX && r->bound < r->cost) {
        struct gb_frontier_result f;
        GB_TRY(gb_frontier_solve(p, r->cost, max_states, labels, &f));
        r->n_states = f.n_states;
        r->cost = f.found ? f.cost : r->cost;
        r->method = f.complete ? GB_COST_FRONTIER : GB_COST_MOVES;
        r->bound = f.complete ? r->cost : GB_MAX(r->bound, f.bound);
    }
    r->proved = r->bound == r->cost;
    return GGML_STATUS_SUCCESS;
}

// With two backends one cut gives and proves the optimum.
static enum ggml_status solve_two(const struct gb_cost_problem * p, int32_t * labels, int32_t * scratch,
    struct gb_cost_result * r) {
    memset(labels, 0, (size_t) p->n_items * sizeof(*labels));
    r->cost = INT64_MAX;
    GB_TRY(expand(p, 1, labels, scratch, &r->cost));
    r->bound = r->cost;
    r->method = GB_COST_CUT;
    r->proved = r->cost < GB_COST_INF;
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_cost_solve(const struct gb_cost_problem * p, const int32_t * start, size_t max_states,
    int32_t * labels, struct gb_cost_result * result) {
    int32_t * scratch = gb_calloc(2 * (size_t) p->n_items, sizeof(*scratch));
    if (scratch == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    *result = (struct gb_cost_result){ .cost = INT64_MAX };
    const enum ggml_status status = p->n_backends == 2 ? solve_two(p, labels, scratch, result)
                                                       : solve_many(p, start, max_states, labels, scratch, result);
    gb_free(scratch);
    return status;
}

// ------------------------------------------------------------------------------------------------------------- savings

// Adds to at[item * n_backends + b] the terms of the item if only this item moved to b.
static void add_values_of(const struct gb_cost_problem * p, int32_t * labels, int64_t * at) {
    const size_t k = (size_t) p->n_backends;
    for (int v = 0; v < p->n_values; v++) {
        const struct gb_cost_value * value = &p->values[v];
        for (int64_t c = (int64_t) value->begin - 1; c < (int64_t) value->end; c++) {
            const int32_t i = c < (int64_t) value->begin ? value->producer : p->consumers[c];
            const int32_t own = labels[i];
            for (int b = 0; b < p->n_backends; b++) {
                labels[i] = b;
                at[(size_t) i * k + (size_t) b] += copies_of(p, v, labels);
            }
            labels[i] = own;
        }
    }
}

// The same for neighbours: one item of the pair moves to b, the other item keeps its label.
static void add_splits_of(const struct gb_cost_problem * p, const int32_t * labels, int64_t * at) {
    for (int n = 0; n + 1 < p->n_order; n++) {
        const int32_t i = p->order[n], j = p->order[n + 1];
        for (int b = 0; b < p->n_backends && i != j; b++) {
            at[(size_t) i * (size_t) p->n_backends + (size_t) b] += b != labels[j] ? p->split : 0;
            at[(size_t) j * (size_t) p->n_backends + (size_t) b] += b != labels[i] ? p->split : 0;
        }
    }
}

// Moving one item changes only its own terms, so one walk over values and neighbours prices all
// moves.
enum ggml_status gb_cost_savings(const struct gb_cost_problem * p, const int32_t * labels, int64_t * saved,
    int32_t * other) {
    const size_t n = (size_t) p->n_items, k = (size_t) p->n_backends;
    int64_t * at = gb_calloc(n * k, sizeof(*at));
    int32_t * own = gb_calloc(n, sizeof(*own));
    if (!at || !own) {
        gb_free(at);
        gb_free(own);
        return GGML_STATUS_ALLOC_FAILED;
    }
    memcpy(own, labels, n * sizeof(*own));
    add_values_of(p, own, at);
    add_splits_of(p, labels, at);
    for (size_t i = 0; i < n; i++) {
        other[i] = -1;
        saved[i] = 0;
        for (int b = 0; b < p->n_backends; b++) {
            const int64_t more = cost_at(p, (int) i, b) + at[i * k + (size_t) b] - cost_at(p, (int) i, labels[i]) -
                                 at[i * k + (size_t) labels[i]];
            if (b != labels[i] && cost_at(p, (int) i, b) < GB_COST_INF && (other[i] < 0 || more < saved[i])) {
                saved[i] = more;
                other[i] = b;
            }
        }
    }
    gb_free(at);
    gb_free(own);
    return GGML_STATUS_SUCCESS;
}
