// mincut.c - Dinic's method. Each round computes the distance of each node to the sink, then pushes
// as much flow as fits along arcs that lead one step closer. There is no recursion: the path is a
// stack of half arcs.
#include "sched/cost/mincut.h"

#include "base/current.h"
#include "base/status.h"

enum { ASK = 4096 }; // arcs between two calls of the thread's poll

bool gb_flow_add(struct gb_flow * net, int32_t from, int32_t to, int64_t cap, int64_t back) {
    net->n_nodes = GB_MAX(net->n_nodes, GB_MAX(from, to) + 1);
    return (cap == 0 && back == 0) || from == to ||
           gb_vec_push(&net->arcs, ((struct gb_flow_arc){ from, to, cap, back }));
}

void gb_flow_free(struct gb_flow * net) {
    gb_vec_free(&net->arcs);
    gb_free(net->flow);
    gb_free(net->side);
    *net = (struct gb_flow){ 0 };
}

// State of a solution: remaining capacities, and the distances of this round.
struct solver {
    const struct gb_flow * net;
    int32_t source, sink;
    int64_t * rest;   // per half arc
    uint32_t * begin; // per node, n + 1 entries: its half arcs in `half`
    uint32_t * half;
    uint32_t * next; // per node: the first half arc that was not rejected in this round
    int32_t * distance; // per node: number of arcs to the sink, -1: unreachable
    int32_t * queue;
    uint32_t * path;
};

// Half arc h is from its tail to its head; h ^ 1 is the same arc backward.
static int32_t tail_of(const struct solver * s, uint32_t h) {
    const struct gb_flow_arc * a = &s->net->arcs.data[h / 2];
    return h % 2 ? a->to : a->from;
}

static int32_t head_of(const struct solver * s, uint32_t h) { return tail_of(s, h ^ 1); }

static void free_solver(struct solver * s) {
    gb_free(s->rest);
    gb_free(s->begin);
    gb_free(s->half);
    gb_free(s->next);
    gb_free(s->distance);
    gb_free(s->queue);
    gb_free(s->path);
}

// Sorts the half arcs by their tails; `next` is the insertion index per node. Every arc starts
// empty.
static bool make_solver(struct solver * s) {
    const size_t n = (size_t) s->net->n_nodes, m = 2 * s->net->arcs.n;
    s->rest = gb_calloc(m, sizeof(*s->rest));
    s->begin = gb_calloc(n + 1, sizeof(*s->begin));
    s->half = gb_calloc(m, sizeof(*s->half));
    s->next = gb_calloc(n, sizeof(*s->next));
    s->distance = gb_calloc(n, sizeof(*s->distance));
    s->queue = gb_calloc(n, sizeof(*s->queue));
    s->path = gb_calloc(n, sizeof(*s->path));
    if (!s->rest || !s->begin || !s->half || !s->next || !s->distance || !s->queue || !s->path) {
        return false;
    }
    for (uint32_t h = 0; h < m; h++) {
        s->rest[h] = h % 2 ? s->net->arcs.data[h / 2].back : s->net->arcs.data[h / 2].cap;
        s->begin[tail_of(s, h) + 1]++;
    }
    for (size_t v = 0; v < n; v++) {
        s->begin[v + 1] += s->begin[v];
        s->next[v] = s->begin[v];
    }
    for (uint32_t h = 0; h < m; h++) {
        s->half[s->next[tail_of(s, h)]++] = h;
    }
    return true;
}

// Distances to the sink through arcs with remaining capacity. True if the source reaches it.
static bool find_distances(struct solver * s) {
    for (int32_t v = 0; v < s->net->n_nodes; v++) {
        s->distance[v] = -1;
        s->next[v] = s->begin[v];
    }
    size_t first = 0, last = 0;
    s->distance[s->sink] = 0;
    s->queue[last++] = s->sink;
    while (first < last) {
        const int32_t v = s->queue[first++];
        for (uint32_t k = s->begin[v]; k < s->begin[v + 1]; k++) {
            const int32_t u = head_of(s, s->half[k]);
            if (s->distance[u] < 0 && s->rest[s->half[k] ^ 1] > 0) {
                s->distance[u] = s->distance[v] + 1;
                s->queue[last++] = u;
            }
        }
    }
    return s->distance[s->source] >= 0;
}

// The next half arc of `v` with remaining capacity that leads one step closer; false: none.
// Rejected half arcs are skipped for the rest of the round.
static bool advance(struct solver * s, int32_t v, uint32_t * h) {
    for (; s->next[v] < s->begin[v + 1]; s->next[v]++) {
        *h = s->half[s->next[v]];
        if (s->rest[*h] > 0 && s->distance[head_of(s, *h)] == s->distance[v] - 1) {
            return true;
        }
    }
    return false;
}

// Fills the path. Returns the index of its first full half arc.
static size_t push(struct solver * s, size_t depth) {
    int64_t amount = s->rest[s->path[0]];
    for (size_t k = 1; k < depth; k++) {
        amount = GB_MIN(amount, s->rest[s->path[k]]);
    }
    size_t full = depth;
    for (size_t k = depth; k-- > 0;) {
        s->rest[s->path[k]] -= amount;
        s->rest[s->path[k] ^ 1] += amount;
        full = s->rest[s->path[k]] == 0 ? k : full;
    }
    return full;
}

// Pushes flow along shortest paths until none is left. The path grows by one half arc, or retreats
// from a dead end. After a push it continues from the first full half arc.
static enum ggml_status fill_paths(struct solver * s) {
    size_t depth = 0;
    int32_t v = s->source;
    for (unsigned n = 0;; n++) {
        uint32_t h;
        if (n % ASK == 0) {
            GB_TRY(gb_check_poll());
        }
        if (v == s->sink) {
            depth = push(s, depth);
            v = tail_of(s, s->path[depth]);
        } else if (advance(s, v, &h)) {
            s->path[depth++] = h;
            v = head_of(s, h);
        } else if (v == s->source) {
            return GGML_STATUS_SUCCESS;
        } else {
            s->distance[v] = -1; // a dead end
            v = tail_of(s, s->path[--depth]);
        }
    }
}

// If no path is left, the nodes that reach the sink are its side of the cut.
enum ggml_status gb_flow_solve(struct gb_flow * net, int32_t source, int32_t sink) {
    net->n_nodes = GB_MAX(net->n_nodes, GB_MAX(source, sink) + 1);
    struct solver s = { .net = net, .source = source, .sink = sink };
    gb_free(net->flow);
    gb_free(net->side);
    net->flow = gb_calloc(net->arcs.n, sizeof(*net->flow));
    net->side = gb_calloc((size_t) net->n_nodes, sizeof(*net->side));
    if (!net->flow || !net->side || !make_solver(&s)) {
        free_solver(&s);
        return GGML_STATUS_ALLOC_FAILED;
    }
    while (find_distances(&s)) {
        const enum ggml_status status = fill_paths(&s);
        if (status != GGML_STATUS_SUCCESS) {
            free_solver(&s);
            return status;
        }
    }
    net->value = 0;
    for (size_t e = 0; e < net->arcs.n; e++) {
        net->flow[e] = net->arcs.data[e].cap - s.rest[2 * e];
        net->value += net->arcs.data[e].from == source ? net->flow[e]
                      : net->arcs.data[e].to == source ? -net->flow[e]
                                                       : 0;
    }
    for (int32_t v = 0; v < net->n_nodes; v++) {
        net->side[v] = s.distance[v] < 0;
    }
    free_solver(&s);
    return GGML_STATUS_SUCCESS;
}
