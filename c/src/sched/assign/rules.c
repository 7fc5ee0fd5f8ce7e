// rules.c - the policies that assign nodes to backends. Pure.
//
// "weights" takes, in this order: the user's choices; memory and weights that exist; the backends of neighbours, spread
// in node order; the highest priority for what is left. A backend takes a node only if it can run it and can write
// where the result must go. A node that no backend takes that way goes to the next one in priority that can run it, at
// worst on a copy, which is then written back.
// "sources" sends each op to the backend of its best source and spreads nothing. "cost" puts the labels that a solver
// found (problem.c, cost/) right after the user's choices.
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

// `wanted` is kept only where the node went elsewhere.
static void set(struct pass * p, int tensor, int backend, enum gb_cause cause, int by, int wanted) {
    p->out[tensor] = (struct gb_assignment){
        .backend = backend, .by = by, .wanted = wanted == backend ? -1 : wanted, .cause = (int32_t) cause
    };
}

static bool is_assigned(const struct pass * p, int tensor) { return p->out[tensor].backend >= 0; }

static bool runs(const struct pass * p, int backend, int node) {
    return p->graph->runs(p->graph->user_data, backend, node);
}

// The result goes where the backend can write: its own memory, unless it is placed already or part of another tensor.
static bool can_write(const struct pass * p, int backend, int node) {
    const int root = p->graph->root[node];
    return (root == node && !p->graph->placed[root]) || gb_assign_reaches(p->graph, p->out, backend, root);
}

// The backend can run the node and write its result in place.
static bool takes(const struct pass * p, int backend, int node) {
    return runs(p, backend, node) && can_write(p, backend, node);
}

// The node can run there without a copy of a source that is placed already.
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

// The backend for a node that `wanted` should have: itself if it takes the node; else, from the next in priority on and
// around, the best that can run it: without any copy, then with copies of sources, then with the result written back.
// -1: nobody can run it.
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

// The cause and `by` hold only if the node went where it was wanted; elsewhere the cause is its priority.
static void assign_next_best(struct pass * p, int wanted, int node, enum gb_cause cause, int by) {
    const int b = next_best(p, wanted, node);
    if (b >= 0) {
        set(p, node, b, b == wanted ? cause : GB_CAUSE_PRIORITY, b == wanted ? by : -1, wanted);
    }
}

// -------------------------------------------------------------------------------------------------------------- step 1

// The user's choices stand, even those that cannot run: gb_assign_check names them.
static void assign_users(struct pass * p) {
    for (int t = 0; t < p->graph->n_tensors; t++) {
        if (p->graph->chosen[t] >= 0) {
            set(p, t, p->graph->chosen[t], GB_CAUSE_USER, -1, -1);
        }
    }
}

// Memory that exists: leafs and unread roots belong where they are; nodes that compute go where their result must be.
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

static bool is_open(const struct pass * p, int node) { // a node that computes and is not assigned yet
    return p->graph->computes[node] && !is_assigned(p, node);
}

// Nodes that read a weight go where the weight is.
static void assign_weights(struct pass * p) {
    for (int i = 0; i < p->graph->n_nodes; i++) {
        if (is_open(p, i)) {
            assign_by_weight(p, i);
        }
    }
}

// -------------------------------------------------------------------------------------------------------------- step 2

// Walks the nodes up (against their order) or down, giving each open node the backend of the assigned one seen last.
// With `fallback` false the last backend is not spread: it ends a run.
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

// What spreading could not give away: a node wants the backend of the last node before it that the rules placed, and
// without one the highest priority; nodes that this function moved aside do not pull others after them.
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

// Best source: of higher priority and not smaller than what was seen so far. `placed`: only sources with memory count.
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

// Placed sources first; then those that the first round has assigned.
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

// Only nodes that the user left open, and only where the label can run them.
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

// A root without memory that no node computes and nobody has assigned: its first user may have it.
static bool is_open_leaf(const struct pass * p, int root) {
    const struct gb_assign_graph * g = p->graph;
    return !is_assigned(p, root) && !g->placed[root] && !(root < g->n_nodes && g->computes[root]);
}

// Memory that is not placed and not computed goes to the first node that uses it, through whatever view.
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

// A node whose result is part of another tensor moves to where that tensor is, if somebody who can write there can run
// it.
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

// What is left computes nothing. Unused roots go to the last backend, views to where their root is.
static void assign_views(struct pass * p) {
    const struct gb_assign_graph * g = p->graph;
    for (int t = 0; t < g->n_tensors; t++) { // roots first: views only look at roots
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
