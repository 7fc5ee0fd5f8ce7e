// Fused nodes: random graphs of row operators give the same bits in every tensor with and without
// fusion, for any number of threads and any sharing of memory. Also tests which nodes join a group.
#include "test_fuse.h"

enum { NODES = 12, MAX_BYTES = 1 << 18 };

struct graph {
    struct ggml_context * ctx;
    struct ggml_tensor * nodes[NODES];
    int n;
};

static struct ggml_tensor * filled(struct ggml_context * ctx, int64_t a, int64_t b, int64_t c) {
    struct ggml_tensor * t = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, a, b, c);
    for (int64_t i = 0; i < ggml_nelements(t); i++) {
        ((float *) t->data)[i] = test_random_float(-2, 2);
    }
    return t;
}

static struct ggml_tensor * random_node(struct ggml_context * c, struct ggml_tensor * x, struct ggml_tensor * other,
    struct ggml_tensor * row, struct ggml_tensor * plane) {
    struct ggml_tensor * const repeats[] = { other, row, plane };
    struct ggml_tensor * b = repeats[test_random_int(0, 2)];
    switch (test_random_int(0, 15)) {
        case 0: return ggml_add(c, x, b);
        case 1: return ggml_mul(c, x, b);
        case 2: return ggml_sub(c, x, b);
        case 3: return ggml_norm(c, x, 1e-5f);
        case 4: return ggml_rms_norm(c, x, 1e-5f);
        case 5: return ggml_gelu(c, x);
        case 6: return ggml_silu(c, x);
        case 7: return ggml_scale(c, x, 0.7f);
        case 8: return ggml_soft_max(c, x);
        case 9: return ggml_soft_max_ext(c, x, plane, 0.3f);
        case 10: return ggml_add_inplace(c, x, b);
        case 11: return ggml_mul_inplace(c, x, b);
        case 12: return ggml_diag_mask_inf(c, x, (int) test_random_int(0, 140));
        case 13: return ggml_diag_mask_zero(c, x, (int) test_random_int(0, 140));
        case 14: return ggml_diag_mask_zero_inplace(c, x, (int) test_random_int(0, 140));
        default: return ggml_add(c, other, x);
    }
}

// True if the node's own source does not overlap its result. An overlap would be wrong without
// fusion as well.
static bool is_free_of(const char * place, size_t size, const struct ggml_tensor * node) {
    for (int s = 0; s < 2; s++) {
        const char * p = node->src[s] != NULL ? node->src[s]->data : NULL;
        if (p != NULL && p < place + size && place < p + ggml_nbytes(node->src[s])) {
            return false;
        }
    }
    return true;
}

// The same graph for the same seed. Some results are in the memory of their first source, or at an
// offset in the memory of an older node.
static struct graph random_graph(uint64_t seed) {
    test_seed = seed;
    struct graph g = { ggml_init((struct ggml_init_params){ (size_t) 16 << 20, NULL, false }), { NULL }, 0 };
    const int64_t a = test_random_int(1, 4) * 33, b = test_random_int(40, 70), d = test_random_int(4, 6);
    struct ggml_tensor *x = filled(g.ctx, a, b, d), *other = filled(g.ctx, a, b, d), *row = filled(g.ctx, a, 1, 1),
                       *plane = filled(g.ctx, a, b, 1);
    char * pool = filled(g.ctx, a, b, d + 4)->data; // of results that share memory
    for (; g.n < NODES; g.n++) {
        struct ggml_tensor * y =
            random_node(g.ctx, x, test_random() % 4 && g.n > 1 ? g.nodes[g.n - 2] : other, row, plane);
        const int where = (int) test_random_int(0, 5);
        if (y->view_src == NULL && where == 0 && !(y->op == GGML_OP_SOFT_MAX && y->src[1] != NULL)) {
            y->data = y->src[0]->data;
        } else if (y->view_src == NULL && where == 1) {
            char * const place = pool + (size_t) test_random_int(0, 3) * (size_t) a * sizeof(float);
            y->data = is_free_of(place, ggml_nbytes(y), y) ? place : y->data;
        }
        g.nodes[g.n] = x = y;
    }
    return g;
}

static int run(struct graph * g, int threads, bool fuse, const char * level) {
    return run_nodes(g->nodes, g->n, threads, fuse, gb_level_find(level)->kernels);
}

static void random_graphs(void) {
    int barriers = 0, barriers_fused = 0; // of two threads
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct graph plain = random_graph(seed * 1000);
        barriers += run(&plain, 2, false, "scalar");
        for (int threads = 1; threads <= 3; threads++) {
            struct graph fused = random_graph(seed * 1000);
            const int n = run(&fused, threads, true, "scalar");
            barriers_fused += threads == 2 ? n : 0;
            for (int i = 0; i < NODES; i++) {
                CHECK_MSG(memcmp(plain.nodes[i]->data, fused.nodes[i]->data, ggml_nbytes(plain.nodes[i])) == 0,
                    "seed %d, %d threads: node %d (%s) differs", (int) seed, threads, i, ggml_op_desc(plain.nodes[i]));
            }
            ggml_free(fused.ctx);
        }
        ggml_free(plain.ctx);
    }
    CHECK_MSG(barriers_fused < barriers, "%d barriers with fusion, %d without", barriers_fused, barriers);
    ggml_graph_set_fusion(true);
}

static void joining(void) {
    struct ggml_context * c = ggml_init((struct ggml_init_params){ (size_t) 8 << 20, NULL, false });
    struct ggml_tensor *x = filled(c, 64, 8, 2), *row = filled(c, 64, 1, 1), *half = filled(c, 32, 8, 2);
    struct ggml_tensor *n = ggml_norm(c, x, 1e-5f), *w = ggml_mul(c, n, row), *b = ggml_add(c, w, row);
    struct ggml_tensor * group[] = { n, w };
    CHECK(gb_fuse_joins(group, 1, w) && gb_fuse_joins(group, 2, b));
    CHECK(!gb_fuse_joins(group, 1, b)); // the last node is not a source
    CHECK(gb_fuse_joins(group, 1, ggml_add(c, x, n))); // a residual
    CHECK(!gb_fuse_joins(group, 1, ggml_transpose(c, n))); // a view
    CHECK(!gb_fuse_joins(group, 1, ggml_sum_rows(c, n))); // another shape
    CHECK(!gb_fuse_joins(group, 1, ggml_repeat(c, n, n))); // another operator
    CHECK(!gb_fuse_joins(group, 1, ggml_mul_mat(c, half, half))); // a product
    CHECK(gb_fuse_joins(group, 2, ggml_diag_mask_inf(c, w, 3)));
    CHECK(!gb_fuse_joins(group, 2, ggml_diag_mask_inf(c, w, INT32_MAX - 2))); // would overflow in a window
    CHECK(gb_fusion_rows.is_safe(group, 2));
    void * const mine = w->data;
    w->data = n->data; // in place
    CHECK(gb_fusion_rows.is_safe(group, 2));
    w->data = (char *) x->data + 64 * sizeof(float); // one row further: norm still needs these rows of x
    CHECK(!gb_fusion_rows.is_safe(group, 2));
    w->data = row->data; // overwrites the repeated source
    CHECK(!gb_fusion_rows.is_safe(group, 2));
    w->data = mine;
    ggml_free(c);
}

static void the_switch(void) {
    ggml_graph_set_fusion(false);
    CHECK(!ggml_graph_get_fusion() && !ggml_cpu_get_fusion());
    ggml_cpu_set_fusion(true); // the older name of the same switch
    CHECK(ggml_graph_get_fusion() && ggml_cpu_get_fusion());
}

TEST_MAIN(TEST(random_graphs), TEST(joining), TEST(the_switch))
