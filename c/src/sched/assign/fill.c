// fill.c - labels that respect memory limits, for problems that prices of bytes cannot solve. Pure.
//
// Prices cannot separate equal layers on equal backends: either all layers are cheaper elsewhere,
// or none. So backends are filled one after the other, the fastest first, in the order of
// execution. Each backend takes nodes until unplaced leafs and the largest memory of a single node
// use a share of its limit. So there are as few splits as backends in use. The memory planner then
// decides whether the plan fits.
#include "sched/assign/problem.h"

#include "base/mem.h"

struct fill {
    const struct gb_cost_model * m;
    const struct gb_assign_graph * g;
    const size_t * max_bytes;
    double share;
    int32_t * labels; // -1: none yet
    size_t * leafs;   // per backend: bytes
    size_t * most; // per backend: bytes of results that one node reads or writes
    int32_t * turn; // backends in the order in which they are filled, the fastest first
};

static bool may_be(const struct fill * f, int32_t item, int backend) {
    return f->m->p.cost[(size_t) item * (size_t) f->g->n_backends + (size_t) backend] < GB_COST_INF;
}

static bool is_result(const struct fill * f, int root) { return root < f->g->n_nodes && f->g->computes[root]; }

// The memory that a node adds: unplaced leafs, and results.
static void needs_of(const struct fill * f, int node, size_t * leafs, size_t * results) {
    const struct gb_assign_graph * g = f->g;
    *leafs = 0;
    *results = g->root[node] == node ? g->bytes[node] : 0;
    for (uint32_t k = g->src_begin[node]; k < g->src_begin[node + 1]; k++) {
        const int32_t root = g->root[g->srcs[k]];
        if (is_result(f, root)) {
            *results += g->bytes[root];
        } else if (!g->placed[root] && f->labels[f->m->item[root]] < 0) {
            *leafs += g->bytes[root];
        }
    }
}

static bool has_room(const struct fill * f, int backend, size_t leafs, size_t results) {
    const size_t limit = f->max_bytes[backend];
    const size_t most = GB_MAX(f->most[backend], results);
    return limit == 0 || (double) (f->leafs[backend] + leafs + most) <= f->share * (double) limit;
}

// The index in `turn` of the backend for a node: that of the previous node, else the next one with
// enough memory, else the first that can run it.
static int next_for(const struct fill * f, int at, int32_t item, size_t leafs, size_t results) {
    const int n = f->g->n_backends;
    for (int pass = 0; pass < 2; pass++) {
        for (int k = 0; k < n; k++) {
            const int backend = f->turn[(at + k) % n];
            if (may_be(f, item, backend) && (pass == 1 || has_room(f, backend, leafs, results))) {
                return (at + k) % n;
            }
        }
    }
    return at;
}

// Labels the node's item, and the leafs that it reads first.
static void take(struct fill * f, int node, int backend, size_t leafs, size_t results) {
    const struct gb_assign_graph * g = f->g;
    f->labels[f->m->item[node]] = backend;
    f->leafs[backend] += leafs;
    f->most[backend] = GB_MAX(f->most[backend], results);
    for (uint32_t k = g->src_begin[node]; k < g->src_begin[node + 1]; k++) {
        const int32_t item = f->m->item[g->root[g->srcs[k]]];
        if (f->labels[item] < 0 && may_be(f, item, backend)) {
            f->labels[item] = backend;
        }
    }
}

static void walk(struct fill * f) {
    const struct gb_assign_graph * g = f->g;
    int at = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        const int32_t item = f->m->item[i];
        if (!g->computes[i]) {
            continue;
        }
        size_t leafs, results;
        needs_of(f, i, &leafs, &results);
        if (f->labels[item] < 0) {
            at = next_for(f, at, item, leafs, results);
            take(f, i, f->turn[at], leafs, results);
        } else {
            take(f, i, f->labels[item], leafs, results);
        }
    }
}

// Sorts the backends by the sum of the costs of all items that they can run.
static void take_turns(struct fill * f, int64_t * total) {
    const int n = f->g->n_backends;
    for (int b = 0; b < n; b++) {
        for (int32_t item = 0; item < f->m->p.n_items; item++) {
            total[b] += may_be(f, item, b) ? f->m->p.cost[(size_t) item * (size_t) n + (size_t) b] : 0;
        }
        int k = b;
        for (; k > 0 && total[f->turn[k - 1]] > total[b]; k--) {
            f->turn[k] = f->turn[k - 1];
        }
        f->turn[k] = b;
    }
}

// Labels the remaining items with any backend that can run them.
static void label_rest(const struct fill * f) {
    for (int32_t item = 0; item < f->m->p.n_items; item++) {
        for (int b = 0; f->labels[item] < 0 && b < f->g->n_backends; b++) {
            f->labels[item] = may_be(f, item, b) ? b : -1;
        }
    }
}

enum ggml_status gb_cost_fill(const struct gb_cost_model * m, const struct gb_assign_graph * graph,
    const size_t * max_bytes, double share, int32_t * labels) {
    const size_t n = (size_t) graph->n_backends;
    int64_t * total = gb_calloc(n, sizeof(*total));
    struct fill f = { .m = m, .g = graph, .max_bytes = max_bytes, .share = share, .labels = labels };
    f.leafs = gb_calloc(n, sizeof(*f.leafs));
    f.most = gb_calloc(n, sizeof(*f.most));
    f.turn = gb_calloc(n, sizeof(*f.turn));
    const bool ok = total && f.leafs && f.most && f.turn;
    for (int32_t item = 0; item < m->p.n_items; item++) {
        labels[item] = -1;
    }
    if (ok) {
        take_turns(&f, total);
        walk(&f);
        label_rest(&f);
    }
    gb_free(total);
    gb_free(f.leafs);
    gb_free(f.most);
    gb_free(f.turn);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}
