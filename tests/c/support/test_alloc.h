// test_alloc.h - for tests of allocators: random graphs, and a simulation that finds each value
// that is overwritten too early.
//
// The simulation is the oracle. It runs a node list on two memories at once. In the ideal memory,
// each storage (a tensor that is not a view) has its own bytes. In the real memory, it has the
// allocator's address. Every write puts a new stamp into both memories. Every read compares the
// bytes of both. A different stamp means that the value was overwritten while a node still needed
// it.
#ifndef GB_TESTS_TEST_ALLOC_H
#define GB_TESTS_TEST_ALLOC_H

#include "tensor/tensor.h"
#include "test.h"

// ------------------------------------------------------------------------------------------------------- random graphs

struct random_graph_params {
    int n_nodes; // number of operations; those that no result depends on are not in the graph
    bool inplace; // in-place operations, and copies into views
    bool flag_leafs; // every leaf is an input
    bool outputs; // some intermediate results are outputs
};

enum { RANDOM_MAX = 400, RANDOM_ROWS = 8, RANDOM_COLUMNS = 16 }; // 512 bytes

struct random_graph {
    struct ggml_context * ctx;
    struct ggml_cgraph * graph;
    struct ggml_tensor * all[RANDOM_MAX];
    int n;
    struct ggml_tensor * leafs[16];
    int n_leafs;
};

static inline struct ggml_tensor * random_pick(struct random_graph * g) { // mostly recent ones
    const int64_t oldest = test_random_int(0, 3) ? GB_MAX(0, g->n - 6) : 0;
    return g->all[test_random_int(oldest, g->n - 1)];
}

static inline struct ggml_tensor * random_pick_like(struct random_graph * g, const struct ggml_tensor * t) {
    for (int tries = 0; tries < 20; tries++) {
        struct ggml_tensor * u = random_pick(g);
        if (ggml_are_same_shape(t, u)) {
            return u;
        }
    }
    return NULL;
}

static inline struct ggml_tensor * random_view(struct random_graph * g, struct ggml_tensor * a) {
    struct ggml_context * ctx = g->ctx;
    const int64_t rows = a->ne[1];
    switch (test_random_int(0, 3)) {
        case 0: return ggml_is_contiguous(a) ? ggml_reshape_2d(ctx, a, a->ne[0], rows) : NULL;
        case 1: return ggml_view_2d(ctx, a, a->ne[0], rows, a->nb[1], 0);
        case 2:
            return rows > 1 ? ggml_view_2d(ctx, a, a->ne[0], rows / 2, a->nb[1],
                                  (size_t) test_random_int(0, 1) * (size_t) (rows / 2) * a->nb[1])
                            : NULL;
        default: return ggml_permute(ctx, a, 0, 2, 1, 3);
    }
}

static inline struct ggml_tensor * random_inplace(struct random_graph * g, struct ggml_tensor * a) {
    struct ggml_tensor * b = random_pick_like(g, a);
    switch (test_random_int(0, 3)) {
        case 0: return ggml_scale_inplace(g->ctx, a, 0.5f);
        case 1: return ggml_relu_inplace(g->ctx, a);
        case 2: return b ? ggml_add_inplace(g->ctx, a, b) : NULL;
        default: return b && b != a ? ggml_cpy(g->ctx, b, a) : NULL;
    }
}

static inline struct ggml_tensor * random_op(struct random_graph * g, struct ggml_tensor * a) {
    struct ggml_context * ctx = g->ctx;
    struct ggml_tensor * b = random_pick_like(g, a);
    switch (test_random_int(0, 16)) {
        case 10: return ggml_norm(ctx, a, 1e-5f);
        case 11: return ggml_group_norm(ctx, a, 1);
        case 12: return ggml_leaky_relu(ctx, a, 0.1f, false);
        case 13: return ggml_dup(ctx, a);
        case 14: return b ? ggml_silu_back(ctx, a, b) : NULL;
        case 15: return b ? ggml_soft_max_back(ctx, a, b) : NULL;
        case 16:
            return b && a->ne[1] > 1 && ggml_is_contiguous(a)
                       ? ggml_set_1d(ctx, a, ggml_view_1d(ctx, b, a->ne[0], 0), a->nb[1])
                       : NULL;
        case 0: return b ? ggml_add(ctx, a, b) : NULL;
        case 1: return b ? ggml_mul(ctx, a, b) : NULL;
        case 2: return b ? ggml_sub(ctx, a, b) : NULL;
        case 3: return ggml_scale(ctx, a, 1.5f);
        case 4: return ggml_relu(ctx, a);
        case 5: return ggml_rms_norm(ctx, a, 1e-5f);
        case 6: return ggml_soft_max(ctx, a);
        case 7: return ggml_cont(ctx, a);
        case 8: return b && a->ne[2] == 1 ? ggml_mul_mat(ctx, a, b) : NULL; // b's rows against a's: not elementwise
        default: return ggml_sqr(ctx, a);
    }
}

// Leafs have no memory. False if the builders ran out of memory.
static inline bool random_graph_make(struct random_graph * g, struct random_graph_params params) {
    *g = (struct random_graph) { 0 };
    g->ctx = ggml_init((struct ggml_init_params) { 64 * 1024, NULL, true });
    if (g->ctx == NULL) {
        return false;
    }
    g->n_leafs = (int) test_random_int(1, 5);
    for (int i = 0; i < g->n_leafs; i++) {
        struct ggml_tensor * leaf =
            ggml_new_tensor_2d(g->ctx, GGML_TYPE_F32, RANDOM_COLUMNS, i % 2 ? RANDOM_ROWS / 2 : RANDOM_ROWS);
        if (leaf == NULL) {
            return false;
        }
        ggml_format_name(leaf, "leaf%d", i);
        if (params.flag_leafs) {
            ggml_set_input(leaf);
        }
        g->leafs[i] = g->all[g->n++] = leaf;
    }
    while (g->n < g->n_leafs + params.n_nodes && g->n < RANDOM_MAX) {
        struct ggml_tensor * a = random_pick(g);
        const int kind = (int) test_random_int(0, 9);
        struct ggml_tensor * t = kind < 3                      ? random_view(g, a)
                                 : kind == 3 && params.inplace ? random_inplace(g, a)
                                                               : random_op(g, a);
        if (t != NULL && t->ne[0] == RANDOM_COLUMNS) { // products of other widths are left out
            if (params.outputs && test_random_int(0, 15) == 0) {
                ggml_set_output(t);
            }
            g->all[g->n++] = t;
        }
    }
    g->graph = ggml_new_graph(g->ctx);
    for (int i = (int) test_random_int(1, GB_MIN(3, g->n)); g->graph && i > 0; i--) {
        ggml_build_forward_expand(g->graph, g->all[g->n - i]);
    }
    return g->graph != NULL;
}

static inline void random_graph_free(struct random_graph * g) { ggml_free(g->ctx); }

static inline bool random_reads(const struct ggml_tensor * node, const struct ggml_tensor * root) {
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        if (node->src[s] && gb_root(node->src[s]) == root) {
            return true;
        }
    }
    return false;
}

static inline bool random_writes(const struct ggml_tensor * node, const struct ggml_tensor * root) {
    return gb_op_computes(node->op) && gb_root(node) == root;
}

// True if node b must run after the earlier node a: it uses what a writes, or writes what a uses. A
// view comes after its source.
static inline bool random_must_follow(const struct ggml_tensor * b, const struct ggml_tensor * a) {
    const struct ggml_tensor * root = gb_root(a);
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        if (b->src[s] == a) {
            return true;
        }
    }
    return (random_writes(a, root) && (random_reads(b, root) || random_writes(b, root))) ||
           (gb_op_computes(b->op) && random_reads(a, gb_root(b)));
}

// ---------------------------------------------------------------------------------------------------------- simulation

struct memory_sim {
    int64_t (*address_of)(void * user,
        struct ggml_tensor * storage); // in the real memory; negative: outside, never checked
    void * user;
    uint32_t * real; // stamps, by address
    size_t size;
    struct {
        struct ggml_tensor * storage;
        uint32_t * ideal;
    } storages[2 * RANDOM_MAX];
    int n_storages;
    uint32_t next_stamp;
    char problem[300];
};

static inline uint32_t * sim_ideal(struct memory_sim * s, struct ggml_tensor * storage) {
    for (int i = 0; i < s->n_storages; i++) {
        if (s->storages[i].storage == storage) {
            return s->storages[i].ideal;
        }
    }
    s->storages[s->n_storages].storage = storage;
    return s->storages[s->n_storages++].ideal = calloc(ggml_nbytes(storage) + 1, sizeof(uint32_t));
}

static inline void sim_problem(struct memory_sim * s, const char * what, const struct ggml_tensor * t,
    const struct ggml_tensor * in) {
    if (s->problem[0] == '\0') {
        snprintf(s->problem, sizeof(s->problem), "%s: '%s' (%s) at '%s' (%s)", what, t->name, ggml_op_name(t->op),
            in->name, ggml_op_name(in->op));
    }
}

static inline void sim_write(struct memory_sim * s, struct ggml_tensor * t) {
    struct ggml_tensor * root = gb_root(t);
    uint32_t * ideal = sim_ideal(s, root);
    const int64_t at = s->address_of(s->user, root);
    const size_t offs = t->view_src ? t->view_offs : 0;
    s->next_stamp++;
    for (size_t b = 0; b < ggml_nbytes(t); b++) {
        ideal[offs + b] = s->next_stamp;
        if (at >= 0 && (size_t) at + offs + b < s->size) {
            s->real[(size_t) at + offs + b] = s->next_stamp;
        } else if (at >= 0) {
            sim_problem(s, "beyond the end", t, t);
        }
    }
}

static inline void sim_read(struct memory_sim * s, struct ggml_tensor * t, struct ggml_tensor * reader) {
    struct ggml_tensor * root = gb_root(t);
    const uint32_t * ideal = sim_ideal(s, root);
    const int64_t at = s->address_of(s->user, root);
    const size_t offs = t->view_src ? t->view_offs : 0;
    for (size_t b = 0; at >= 0 && b < ggml_nbytes(t); b++) {
        if ((size_t) at + offs + b >= s->size || s->real[(size_t) at + offs + b] != ideal[offs + b]) {
            sim_problem(s, "value lost", t, reader);
            return;
        }
    }
}

// A node may share bytes with a source that it does not view only in place: same start, same
// layout, a suitable operator.
static inline void sim_check_sharing(struct memory_sim * s, struct ggml_tensor * node, struct ggml_tensor * src) {
    if (gb_root(src) == gb_root(node)) {
        return;
    }
    const int64_t a = s->address_of(s->user, gb_root(node)), b = s->address_of(s->user, gb_root(src));
    if (a < 0 || b < 0) {
        return;
    }
    const int64_t a0 = a + (int64_t) node->view_offs, b0 = b + (int64_t) src->view_offs;
    if (a0 < b0 + (int64_t) ggml_nbytes(src) && b0 < a0 + (int64_t) ggml_nbytes(node)) {
        bool layout = a0 == b0 && node->type == src->type;
        for (int d = 0; d < GGML_MAX_DIMS; d++) {
            layout = layout && node->ne[d] == src->ne[d] && (node->nb[d] == src->nb[d] || node->ne[d] == 1);
        }
        static const enum ggml_op can[] = { GGML_OP_SCALE, GGML_OP_ADD, GGML_OP_SUB, GGML_OP_MUL, GGML_OP_DIV,
            GGML_OP_SQR, GGML_OP_UNARY, GGML_OP_RMS_NORM, GGML_OP_SOFT_MAX, GGML_OP_NORM, GGML_OP_GROUP_NORM,
            GGML_OP_LEAKY_RELU, GGML_OP_DUP, GGML_OP_SILU_BACK, GGML_OP_SOFT_MAX_BACK, GGML_OP_SET };
        bool op = false;
        for (size_t i = 0; i < GB_ARRAY_LEN(can); i++) {
            op = op || can[i] == node->op;
        }
        if (!layout || !op) {
            sim_problem(s, "overlaps a source", src, node);
        }
    }
}

// Runs the nodes in the given order (NULL: of the graph). True if every value was intact when it
// was read, and all outputs and unread results are intact at the end.
static inline bool sim_run(struct memory_sim * s, struct ggml_cgraph * graph, const int * order) {
    struct ggml_tensor ** nodes = graph->nodes;
    s->real = calloc(s->size + 1, sizeof(uint32_t));
    for (int i = 0; i < graph->n_leafs; i++) { // content from outside
        if (graph->leafs[i]->view_src == NULL) {
            sim_write(s, graph->leafs[i]);
        }
    }
    for (int k = 0; k < graph->n_nodes; k++) {
        struct ggml_tensor * node = nodes[order ? order[k] : k];
        for (int i = 0; i < GGML_MAX_SRC; i++) {
            if (node->src[i] && !(node->op == GGML_OP_CPY && i == 1)) {
                sim_read(s, node->src[i], node);
                if (gb_op_computes(node->op)) {
                    sim_check_sharing(s, node, node->src[i]);
                }
            }
        }
        if (gb_op_computes(node->op)) {
            sim_write(s, node);
        }
    }
    for (int k = 0; k < graph->n_nodes; k++) {
        bool read = false;
        for (int j = 0; j < graph->n_nodes; j++) {
            for (int i = 0; i < GGML_MAX_SRC; i++) {
                read = read || nodes[j]->src[i] == nodes[k];
            }
        }
        if (!read || ggml_is_output(nodes[k])) {
            sim_read(s, nodes[k], nodes[k]);
        }
    }
    for (int i = 0; i < s->n_storages; i++) {
        free(s->storages[i].ideal);
    }
    free(s->real);
    s->real = NULL;
    s->n_storages = 0;
    return s->problem[0] == '\0';
}

#endif // GB_TESTS_TEST_ALLOC_H
