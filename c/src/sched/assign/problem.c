// problem.c - groups tensors into items, and finds where each item may be and what must be copied.
//
// An item is a root with the ops that write its memory. If no backend can both run such an op and
// reach the memory, the op and the root are two items, and the result is copied back. Existing
// memory is an item that cannot move. Ops that write it should run on a backend that can reach it.
// Every write begins a new value of its root, because earlier copies are stale. Memory that no node
// computes and that has no place yet (inputs) may be on any backend.
#include "sched/assign/problem.h"

#include "base/status.h"

struct use { // an item that needs a value
    int32_t value, item;
};

struct value { // one state of a root's memory
    int32_t root;
    size_t bytes; // bytes of the largest part that a node reads
    bool back; // a result that must be copied to its memory
    int32_t producer;
};

// State while the problem is built. Sets of backends are bit masks.
struct build {
    struct gb_cost_model * m;
    const struct gb_assign_graph * g;
    const struct gb_cost_prices * prices;
    int32_t * leader; // per tensor: union-find
    uint64_t * allowed; // per leader: mask of backends
    int32_t * current; // per root: its current value; -1: not read yet
    GB_VEC(struct value) values;
    GB_VEC(struct use) uses;
    int64_t * cost;
    double limit; // limit of a single price
};

// The leader of the tensor's item.
static int32_t find(const struct build * b, int32_t t) {
    while (b->leader[t] != t) {
        b->leader[t] = b->leader[b->leader[t]];
        t = b->leader[t];
    }
    return t;
}

static bool computes(const struct build * b, int t) { return t < b->g->n_nodes && b->g->computes[t]; }

// The mask of all backends. A shift by the width of the word is undefined.
static uint64_t everybody(const struct build * b) {
    return b->g->n_backends == GB_COST_BACKENDS_MAX ? UINT64_MAX : (UINT64_C(1) << b->g->n_backends) - 1;
}

// The backends that can use the memory of a placed root.
static uint64_t reaching(const struct build * b, int root) {
    uint64_t set = 0;
    for (int k = 0; k < b->g->n_backends; k++) {
        set |= b->g->reaches(b->g->user_data, k, root) ? UINT64_C(1) << k : 0;
    }
    return set;
}

// The backends that can run the node and write its result in place. If there are none, the backends
// that can run it, and the result is copied back.
static uint64_t allowed_for_node(const struct build * b, int node) {
    const struct gb_assign_graph * g = b->g;
    uint64_t set = 0;
    for (int k = 0; k < g->n_backends; k++) {
        set |= g->runs(g->user_data, k, node) ? UINT64_C(1) << k : 0;
    }
    set = set == 0 ? everybody(b) : set; // no backend can run it; the check of the assignment reports that
    const uint64_t writes = g->placed[g->root[node]] ? reaching(b, g->root[node]) : everybody(b);
    return set & writes ? set & writes : set;
}

// Where a tensor may be. A user's choice is final. Existing memory cannot move; memory that no
// backend owns counts as the last backend's. The rest may be anywhere.
static uint64_t allowed_for(const struct build * b, int t) {
    const struct gb_assign_graph * g = b->g;
    if (g->chosen[t] >= 0) {
        return UINT64_C(1) << g->chosen[t];
    }
    if (computes(b, t)) {
        return allowed_for_node(b, t);
    }
    if (g->placed[g->root[t]]) {
        return UINT64_C(1) << (g->place[g->root[t]] >= 0 ? g->place[g->root[t]] : g->n_backends - 1);
    }
    return everybody(b);
}

// Adds the roots first, because nodes that write them join their items.
static void join_items(struct build * b) {
    const struct gb_assign_graph * g = b->g;
    for (int t = 0; t < g->n_tensors; t++) {
        b->leader[t] = t;
        b->allowed[t] = allowed_for(b, t);
        b->current[t] = -1;
    }
    for (int t = 0; t < g->n_tensors; t++) {
        const int32_t root = g->root[t];
        const int32_t at = find(b, root);
        if (root == t || (computes(b, t) && (g->placed[root] || (b->allowed[t] & b->allowed[at]) == 0))) {
            continue;
        }
        b->allowed[at] &= computes(b, t) ? b->allowed[t] : UINT64_MAX; // views follow their roots
        b->leader[t] = at;
    }
}

// Numbers items in the order of their leaders, and gives each tensor the number of its item.
static bool number_items(struct build * b) {
    int n = 0;
    for (int t = 0; t < b->g->n_tensors; t++) {
        if (find(b, t) == t) {
            b->m->item[t] = n++;
        }
    }
    for (int t = 0; t < b->g->n_tensors; t++) {
        b->m->item[t] = b->m->item[find(b, t)];
    }
    b->m->p.n_items = n;
    b->cost = gb_calloc((size_t) n, (size_t) b->g->n_backends * sizeof(*b->cost));
    b->m->p.cost = b->cost;
    return b->cost != NULL;
}

// Rounds a price to a whole number from 0 to the limit, so that sums cannot overflow.
static int64_t whole(const struct build * b, double units) {
    return units >= b->limit ? (int64_t) b->limit : units > 0 ? (int64_t) (units + 0.5) : 0;
}

// The cost of an item is the cost of its nodes, plus the bytes of its root if memory has a price.
static void price_items(struct build * b) {
    const struct gb_assign_graph * g = b->g;
    const size_t n = (size_t) g->n_backends;
    for (int t = 0; t < g->n_tensors; t++) {
        int64_t * cost = b->cost + (size_t) b->m->item[t] * n;
        const uint64_t allowed = b->allowed[find(b, t)];
        for (size_t k = 0; k < n; k++) {
            if (!(allowed >> k & 1)) {
                cost[k] = GB_COST_INF;
                continue;
            }
            cost[k] += computes(b, t) ? whole(b, b->prices->node[(size_t) t * n + k]) : 0;
            cost[k] += b->prices->memory_per_byte && g->root[t] == t && !g->placed[t]
                           ? whole(b, b->prices->memory_per_byte[k] * (double) g->bytes[t])
                           : 0;
        }
    }
}

// -------------------------------------------------------------------------------------------------------------- values

// The item reads the root's current value, which is created on the first read. Reading its own
// result costs nothing.
static bool add_use(struct build * b, int32_t root, int32_t item, size_t bytes) {
    if (b->m->item[root] == item) {
        return true;
    }
    if (b->current[root] < 0) {
        b->current[root] = (int32_t) b->values.n;
        if (!gb_vec_push(&b->values, ((struct value){ root, 0, false, b->m->item[root] }))) {
            return false;
        }
    }
    struct value * v = &b->values.data[b->current[root]];
    v->bytes = GB_MAX(v->bytes, bytes);
    return gb_vec_push(&b->uses, ((struct use){ b->current[root], item }));
}

// Later readers of the root need a new value. If the node and its root are different items, the
// result is a value that is copied to the root.
static bool add_write(struct build * b, int node) {
    const struct gb_assign_graph * g = b->g;
    const int32_t root = g->root[node];
    if (root == node) {
        return true;
    }
    b->current[root] = -1;
    const struct value back = { root, g->bytes[node], true, b->m->item[node] };
    return b->m->item[root] == b->m->item[node] ||
           (gb_vec_push(&b->values, back) &&
               gb_vec_push(&b->uses, ((struct use){ (int32_t) b->values.n - 1, b->m->item[root] })));
}

// Reads and writes of all nodes, in order of execution.
static bool list_uses(struct build * b) {
    const struct gb_assign_graph * g = b->g;
    bool ok = true;
    for (int i = 0; ok && i < g->n_nodes; i++) {
        if (!g->computes[i]) {
            continue;
        }
        for (uint32_t k = g->src_begin[i]; ok && k < g->src_begin[i + 1]; k++) {
            ok = add_use(b, g->root[g->srcs[k]], b->m->item[i], g->bytes[g->srcs[k]]);
        }
        ok = ok && add_write(b, i);
    }
    return ok;
}

// True if `to` can use the root's memory without a copy. The memory is placed, or will be on
// `from`.
static bool is_in_reach(const struct build * b, int32_t root, int from, int to) {
    return b->g->placed[root] ? b->g->reaches(b->g->user_data, to, root) : b->g->shares(b->g->user_data, to, from);
}

// A copy costs nothing if the memory is reachable. A weight is copied once for many runs, so a run
// pays a part of that transfer. The transfer is of all of the weight's memory.
static void price_copies(const struct build * b, const struct value * v, int64_t * copy) {
    const int n = b->g->n_backends;
    const double runs = b->g->weight[v->root] ? b->prices->weight_runs : 1;
    for (int from = 0; from < n; from++) {
        for (int to = 0; to < n; to++) {
            const int at = from * n + to;
            const double units = (b->prices->copy[at] + b->prices->copy_per_byte[at] * (double) v->bytes) / runs;
            const double there = b->prices->memory_per_byte ? b->prices->memory_per_byte[to] * (double) v->bytes : 0;
            const bool free =
                from == to || v->bytes == 0 || is_in_reach(b, v->root, v->back ? to : from, v->back ? from : to);
            copy[at] = free ? 0 : whole(b, units + there);
        }
    }
}

// Converts reads, listed per node, to values with consumers. Each item occurs once per value.
static bool fill_values(struct build * b) {
    const size_t n_values = b->values.n, k = (size_t) b->g->n_backends;
    struct gb_cost_value * values = gb_calloc(n_values, sizeof(*values));
    int32_t * consumers = gb_calloc(b->uses.n, sizeof(*consumers));
    int64_t * copy = gb_calloc(n_values, k * k * sizeof(*copy));
    int32_t * seen = gb_calloc((size_t) b->m->p.n_items, sizeof(*seen));
    struct gb_cost_problem * p = &b->m->p;
    p->values = values;
    p->consumers = consumers;
    p->copy = copy;
    if (!values || !consumers || !copy || !seen) {
        gb_free(seen);
        return false;
    }
    p->n_values = (int) n_values;
    for (size_t u = 0; u < b->uses.n; u++) {
        values[b->uses.data[u].value].end++;
    }
    for (size_t v = 0, begin = 0; v < n_values; v++) {
        const size_t n = values[v].end;
        values[v].producer = b->values.data[v].producer;
        values[v].begin = values[v].end = (uint32_t) begin;
        begin += n;
        price_copies(b, &b->values.data[v], copy + v * k * k);
    }
    for (size_t u = 0; u < b->uses.n; u++) {
        const struct use use = b->uses.data[u];
        bool new = seen[use.item] != use.value + 1;
        for (uint32_t c = values[use.value].begin; new && seen[use.item] != 0 && c < values[use.value].end; c++) {
            new = consumers[c] != use.item;
        }
        if (new) {
            consumers[values[use.value].end++] = use.item;
        }
        seen[use.item] = use.value + 1;
    }
    gb_free(seen);
    return true;
}

// The items of the nodes that compute, in order of execution.
static bool fill_order(struct build * b) {
    int32_t * order = gb_calloc((size_t) b->g->n_nodes, sizeof(*order));
    b->m->p.order = order;
    for (int i = 0; order && i < b->g->n_nodes; i++) {
        if (b->g->computes[i]) {
            order[b->m->p.n_order++] = b->m->item[i];
        }
    }
    return order != NULL;
}

// The limit of a single price keeps the sum of all prices below GB_COST_SUM_MAX.
static bool build(struct build * b) {
    const size_t n = (size_t) b->g->n_tensors;
    b->leader = gb_calloc(n, sizeof(*b->leader));
    b->allowed = gb_calloc(n, sizeof(*b->allowed));
    b->current = gb_calloc(n, sizeof(*b->current));
    b->m->item = gb_calloc(n, sizeof(*b->m->item));
    if (!b->leader || !b->allowed || !b->current || !b->m->item) {
        return false;
    }
    join_items(b);
    if (!number_items(b) || !list_uses(b)) {
        return false;
    }
    const double k = b->g->n_backends;
    const double terms = ((double) n + b->g->n_nodes) * 2 * k + (double) b->values.n * k * k + 1;
    b->limit = (double) GB_COST_SUM_MAX / terms;
    b->m->p.split = GB_MAX(whole(b, b->prices->split), 1); // breaks ties in favour of fewer splits
    price_items(b);
    return fill_values(b) && fill_order(b);
}

enum ggml_status gb_cost_model_init(struct gb_cost_model * m, const struct gb_assign_graph * graph,
    const struct gb_cost_prices * prices) {
    *m = (struct gb_cost_model){ .p.n_backends = graph->n_backends };
    struct build b = { .m = m, .g = graph, .prices = prices };
    const bool ok = build(&b);
    gb_free(b.leader);
    gb_free(b.allowed);
    gb_free(b.current);
    gb_vec_free(&b.values);
    gb_vec_free(&b.uses);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

void gb_cost_model_free(struct gb_cost_model * m) {
    gb_free((void *) m->p.cost);
    gb_free((void *) m->p.order);
    gb_free((void *) m->p.values);
    gb_free((void *) m->p.consumers);
    gb_free((void *) m->p.copy);
    gb_free(m->item);
    *m = (struct gb_cost_model){ 0 };
}
