// rules.c - the policies that assign nodes to backends. Pure.
//
// "weights" applies, in this order: the user's choices; existing memory and weights; the backends
// of neighbours, in node order; the highest priority for the remaining nodes. A backend gets a node
// only if it can run the node and write its result in place. Otherwise the next backend by priority
// that can run the node gets it. That backend may write the result to a copy, which is then written
// back. "sources" assigns each op to the backend of its best source, and ignores neighbours. "cost"
// applies the labels of a solver (problem.c, cost/) right after the user's choices.
#include "sched/assign/rules.h"

#include <limits.h>

struct pass {
    const struct gb_assign_graph * graph;
    struct gb_assignment * out;
};

bool gb_assign_reaches(const struct gb_assign_graph * graph, const struct gb_assignment * out, int backend, int root) {
    if (graph->placed[root]) {
        return graph->reaches(graph->user_data, backend, root);
    }
    const int owner = out[root].backend;
    return owner < 0 || owner == backend || graph->shares(graph->user_data, backend, owner);
}

// `wanted` is kept only if the node was assigned elsewhere.
static void set(struct pass * p, int tensor, int backend, enum gb_cause cause, int by, int wanted) {
    p->out[tensor] = (struct gb_assignment){
        .backend = backend, .by = by, .wanted = wanted == backend ? -1 : wanted, .cause = (int32_t) cause
    };
}

static bool is_assigned(const struct pass * p, int tensor) { return p->out[tensor].backend >= 0; }

static bool runs(const struct pass * p, int backend, int node) {
    return p->graph->runs(p->graph->user_data, backend, node);
}

// True if the backend can write the result. It always can if the result goes to its own memory: the
// result has no place yet and is not part of another tensor.
static bool can_write(const struct pass * p, int backend, int node) {
    const int root = p->graph->root[node];
    return (root == node && !p->graph->placed[root]) || gb_assign_reaches(p->graph, p->out, backend, root);
}

// True if the backend can run the node and write its result in place.
static bool takes(const struct pass * p, int backend, int node) {
    return runs(p, backend, node) && can_write(p, backend, node);
}

// True if the node can run on the backend without copying a placed source.
static bool reads_all_placed(const struct pass * p, int backend, int node) {
    const struct gb_assign_graph * g = p->graph;
    for (uint32_t k = g->src_begin[node]; k < g->src_begin[node + 1]; k++) {
        const int root = g->root[g->srcs[k]];
        if (g->placed[root] && !g->reaches(g->user_data, backend, root)) {
            return false;
        }
    }
    return true;
}

// The backend for a node whose preferred backend is `wanted`: `wanted` if it can run the node, else
// the best other backend. Best is without copies, then with copies of sources, then with a
// write-back, each by priority. -1 if no backend can run the node.
static int next_best(const struct pass * p, int wanted, int node) {
    const int n = p->graph->n_backends;
    const int first = wanted < 0 ? 0 : wanted;
    if (wanted >= 0 && takes(p, wanted, node)) {
        return wanted;
    }
    int best[3] = { -1, -1, -1 };
    for (int k = 0; k < n; k++) {
        const int b = (first + k) % n;
        if (!runs(p, b, node)) {
            continue;
        }
        const int rank = !can_write(p, b, node) ? 2 : !reads_all_placed(p, b, node) ? 1 : 0;
        if (best[rank] < 0) {
            best[rank] = b;
        }
    }
    return best[0] >= 0 ? best[0] : best[1] >= 0 ? best[1] : best[2];
}

// The cause and `by` hold only if the node got the preferred backend; else the cause is priority.
static void assign_next_best(struct pass * p, int wanted, int node, enum gb_cause cause, int by) {
    const int b = next_best(p, wanted, node);
    if (b >= 0) {
        set(p, node, b, b == wanted ? cause : GB_CAUSE_PRIORITY, b == wanted ? by : -1, wanted);
    }
}

// -------------------------------------------------------------------------------------------------------------- step 1

// The user's choices are final, even those that cannot run: gb_assign_check reports them.
static void assign_users(struct pass * p) {
    for (int t = 0; t < p->graph->n_tensors; t++) {
        if (p->graph->chosen[t] >= 0) {
            set(p, t, p->graph->chosen[t], GB_CAUSE_USER, -1, -1);
        }
    }
}

// Existing memory: what computes nothing belongs to the backend of its memory. Nodes that compute
// run where their result is stored.
static void assign_placed(struct pass * p) {
    const struct gb_assign_graph * g = p->graph;
    for (int t = 0; t < g->n_tensors; t++) {
        const int root = g->root[t];
        if (is_assigned(p, t) || g->place[root] < 0) {
            continue;
        }
        if (t < g->n_nodes && g->computes[t]) {
            assign_next_best(p, g->place[root], t, GB_CAUSE_BUFFER, root == t ? -1 : root);
        } else {
            set(p, t, g->place[root], GB_CAUSE_BUFFER, root == t ? -1 : root, -1);
        }
    }
}

// The first source that is a weight decides.
static void assign_by_weight(struct pass * p, int node) {
    const struct gb_assign_graph * g = p->graph;
    for (uint32_t k = g->src_begin[node]; k < g->src_begin[node + 1]; k++) {
        const int root = g->root[g->srcs[k]];
        if (g->weight[root] && g->place[root] >= 0) {
            assign_next_best(p, g->place[root], node, GB_CAUSE_WEIGHT, g->srcs[k]);
            return;
        }
    }
}

static bool is_open(const struct pass * p, int node) { // true for a node that computes and is not assigned yet
    return p->graph->computes[node] && !is_assigned(p, node);
}

// Nodes that read a weight run where the weight is.
static void assign_weights(struct pass * p) {
    for (int i = 0; i < p->graph->n_nodes; i++) {
        if (is_open(p, i)) {
            assign_by_weight(p, i);
        }
    }
}

// -------------------------------------------------------------------------------------------------------------- step 2

// Walks the nodes up (against their order) or down. Each open node gets the backend of the last
// assigned node. If `fallback` is false, the last backend is not spread: a node on it ends a group.
static void spread(struct pass * p, bool up, bool fallback) {
    const struct gb_assign_graph * g = p->graph;
    int from = -1;
    for (int k = 0; k < g->n_nodes; k++) {
        const int i = up ? g->n_nodes - 1 - k : k;
        if (!g->computes[i]) {
            continue;
        }
        if (is_assigned(p, i)) {
            from = fallback || p->out[i].backend != g->n_backends - 1 ? i : -1;
        } else if (from >= 0 && takes(p, p->out[from].backend, i)) {
            set(p, i, p->out[from].backend, up ? GB_CAUSE_UP : GB_CAUSE_DOWN, from, -1);
        }
    }
}

// Assigns nodes without an assigned neighbour. Each prefers the backend of the last node before it
// that the rules assigned, or the highest priority. Nodes that this function assigned to another
// backend do not attract later nodes.
static void assign_rest_by_priority(struct pass * p) {
    const struct gb_assign_graph * g = p->graph;
    int last = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        if (!g->computes[i]) {
            continue;
        }
        if (is_assigned(p, i)) {
            last = p->out[i].backend;
        } else {
            assign_next_best(p, last, i, GB_CAUSE_PRIORITY, -1);
        }
    }
}

// ---------------------------------------------------------------------------------------------------- policy "sources"

// A later source is better if its backend has a higher priority and the source is not smaller.
// `placed`: consider only sources with memory.
static void assign_by_source(struct pass * p, int node, bool placed) {
    const struct gb_assign_graph * g = p->graph;
    int best = INT_MAX, by = -1;
    size_t bytes = 0;
    for (uint32_t k = g->src_begin[node]; k < g->src_begin[node + 1]; k++) {
        const int s = g->srcs[k];
        const int b = placed                   ? g->place[g->root[s]]
                      : p->out[s].backend >= 0 ? p->out[s].backend
                                               : p->out[g->root[s]].backend;
        if (b >= 0 && b < best && g->bytes[s] >= bytes) {
            best = b;
            bytes = g->bytes[s];
            by = s;
        }
    }
    if (by >= 0) {
        assign_next_best(p, best, node, GB_CAUSE_SOURCE, by);
    }
}

// Nodes with placed sources first, then nodes whose sources the first round assigned.
static void assign_sources(struct pass * p) {
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < p->graph->n_nodes; i++) {
            if (is_open(p, i)) {
                assign_by_source(p, i, round == 0);
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------------- policy "cost"

// Applies a label only to a node without a user's choice, and only if the backend can run the node.
static void assign_labels(struct pass * p) {
    const struct gb_assign_graph * g = p->graph;
    for (int t = 0; g->label && t < g->n_tensors; t++) {
        const bool computed = t < g->n_nodes && g->computes[t];
        if (g->label[t] >= 0 && !is_assigned(p, t) && (!computed || runs(p, g->label[t], t))) {
            set(p, t, g->label[t], GB_CAUSE_COST, -1, -1);
        }
    }
}

// -------------------------------------------------------------------------------------------------------------- step 3

// True for a root without memory that no node computes and that is not assigned: its first reader
// decides.
static bool is_open_leaf(const struct pass * p, int root) {
    const struct gb_assign_graph * g = p->graph;
    return !is_assigned(p, root) && !g->placed[root] && !(root < g->n_nodes && g->computes[root]);
}

// Memory that is neither placed nor computed goes to the backend of the first node that reads it,
// also through a view.
static void assign_leafs(struct pass * p) {
    const struct gb_assign_graph * g = p->graph;
    for (int i = 0; i < g->n_nodes; i++) {
        if (!g->computes[i] || !is_assigned(p, i)) {
            continue;
        }
        for (uint32_t k = g->src_begin[i]; k < g->src_begin[i + 1]; k++) {
            const int root = g->root[g->srcs[k]];
            if (is_open_leaf(p, root)) {
                set(p, root, p->out[i].backend, GB_CAUSE_READER, i, -1);
            }
        }
        if (is_open_leaf(p, g->root[i])) {
            set(p, g->root[i], p->out[i].backend, GB_CAUSE_READER, i, -1);
        }
    }
}

// A node whose result is part of another tensor moves to that tensor's backend, or to another
// backend that can run the node and write there.
static void follow_aliases(struct pass * p) {
    const struct gb_assign_graph * g = p->graph;
    for (int i = 0; i < g->n_nodes; i++) {
        const int root = g->root[i];
        if (!g->computes[i] || !is_assigned(p, i) || p->out[i].cause == GB_CAUSE_USER ||
            can_write(p, p->out[i].backend, i)) {
            continue;
        }
        const int owner = p->out[root].backend;
        const int b = next_best(p, owner, i);
        if (b >= 0 && can_write(p, b, i)) {
            set(p, i, b, b == owner ? GB_CAUSE_ALIAS : GB_CAUSE_PRIORITY, b == owner ? root : -1, owner);
        }
    }
}

// The remaining tensors compute nothing. Unused roots go to the last backend, views to the backend
// of their root.
static void assign_views(struct pass * p) {
    const struct gb_assign_graph * g = p->graph;
    for (int t = 0; t < g->n_tensors; t++) { // roots first: views depend on roots
        const bool computed = t < g->n_nodes && g->computes[t];
        if (g->root[t] == t && !computed && !is_assigned(p, t)) {
            set(p, t, g->n_backends - 1, GB_CAUSE_UNUSED, -1, -1);
        }
    }
    for (int t = 0; t < g->n_tensors; t++) {
        const bool computed = t < g->n_nodes && g->computes[t];
        if (!computed && !is_assigned(p, t)) {
            set(p, t, p->out[g->root[t]].backend, GB_CAUSE_VIEW, g->root[t], -1);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------

void gb_assign(const struct gb_assign_graph * graph, enum gb_assign_policy policy, struct gb_assignment * out) {
    struct pass p = { graph, out };
    for (int t = 0; t < graph->n_tensors; t++) {
        set(&p, t, -1, GB_CAUSE_NONE, -1, -1);
    }
    assign_users(&p);
    if (policy == GB_ASSIGN_COST) {
        assign_labels(&p);
    }
    assign_placed(&p);
    if (policy == GB_ASSIGN_SOURCES) {
        assign_sources(&p);
    } else {
        assign_weights(&p);
        spread(&p, true, false);
        spread(&p, false, false);
        spread(&p, true, true);
        spread(&p, false, true);
    }
    assign_rest_by_priority(&p);
    assign_leafs(&p);
    follow_aliases(&p);
    assign_views(&p);
}

int gb_assign_check(const struct gb_assign_graph * g, const struct gb_assignment * out) {
    for (int t = 0; t < g->n_tensors; t++) {
        if (t < g->n_nodes && g->computes[t]) {
            if (out[t].backend < 0 || !g->runs(g->user_data, out[t].backend, t)) {
                return t;
            }
        } else if (out[t].cause == GB_CAUSE_USER && g->root[t] == t && g->placed[t] &&
                   !g->reaches(g->user_data, out[t].backend, t)) {
            return t;
        }
    }
    return -1;
}
