// Products with the elementwise operators after them: every readable result has the same bits as
// node by node. For all algorithms of products, in the graph's own memory and in arenas, for one
// thread and several.
#include "test_fuse.h"

enum { ARENA = 8 << 20, MAX_NODES = 16 };

struct line {
    struct ggml_context * in; // with memory
    struct ggml_context * ctx;
    struct ggml_cgraph * graph;
    struct ggml_tensor * nodes[MAX_NODES]; // the product and the nodes after it
    int n;
    struct ggml_tensor * watched[MAX_NODES];
    int n_watched;
    ggml_tallocr_t talloc; // NULL: all nodes have their own memory
};

static struct ggml_tensor * input(struct line * l, enum ggml_type type, int64_t n0, int64_t n1, int64_t n2) {
    return random_input(l->in, type, n0, n1, n2);
}

static struct ggml_tensor * random_node(struct line * l, struct ggml_tensor * x) {
    struct ggml_context * c = l->ctx;
    struct ggml_tensor *same = input(l, GGML_TYPE_F32, x->ne[0], x->ne[1], x->ne[2]),
                       *row = input(l, GGML_TYPE_F32, x->ne[0], 1, 1);
    switch (test_random_int(0, 15)) {
        case 0: return ggml_add(c, x, row);
        case 1: return ggml_add(c, x, same);
        case 2: return ggml_add(c, same, x);
        case 3: return ggml_mul(c, x, row);
        case 4: return ggml_sub(c, same, x);
        case 5: return ggml_gelu(c, x);
        case 6: return ggml_silu(c, x);
        case 7: return ggml_scale(c, x, 0.7f);
        case 8: return ggml_add_inplace(c, x, row);
        // sometimes x itself, which ends no step
        case 9: return ggml_mul(c, x, l->nodes[test_random_int(0, l->n - 1)]);
        case 10: return ggml_add(c, ggml_scale(c, same, 0.5f), x); // another node before it
        case 11: return ggml_gelu_erf(c, x);
        case 12: return ggml_silu_inplace(c, x);
        case 13: return ggml_dup(c, x);
        case 14: return ggml_dup_inplace(c, x);
        default: return ggml_clamp(c, x, -0.5f, 0.5f);
    }
}

// The same graph for the same seed.
static struct line line_new(uint64_t seed, bool arena) {
    static const enum ggml_type types[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0,
        GGML_TYPE_Q4_K };
    static const int rows[] = { 1, 2, 3, 5, 8, 20, 60, 600 };
    test_seed = seed;
    struct line l = { .in = ggml_init((struct ggml_init_params){ (size_t) 48 << 20, NULL, false }),
        .ctx = ggml_init((struct ggml_init_params){ (size_t) 8 << 20, NULL, arena }) };
    if (!arena) {
        ggml_free(l.ctx);
        l.ctx = ggml_init((struct ggml_init_params){ (size_t) 48 << 20, NULL, false });
    }
    const enum ggml_type type = types[test_random_int(0, 4)];
    const int64_t k = 256 * test_random_int(1, 3), n = rows[test_random_int(0, 7)],
                  m = test_random_int(1, n > 20 ? 40 : 300);
    const int64_t slices = test_random() % 4 == 0 && n < 100 ? 2 : 1;
    struct ggml_tensor * x = ggml_scale(l.ctx, input(&l, GGML_TYPE_F32, k, n, slices), 0.9f);
    l.graph = ggml_new_graph(l.ctx);
    l.nodes[l.n++] = ggml_mul_mat(l.ctx, input(&l, type, k, m, test_random() % 2 ? slices : 1), x);
    for (int length = (int) test_random_int(1, 5); l.n <= length;) {
        l.nodes[l.n] = random_node(&l, l.nodes[l.n - 1]);
        l.n++;
    }
    if (arena && test_random() % 3 == 0) {
        struct ggml_tensor * t = l.nodes[test_random_int(0, l.n - 1)];
        if (t->view_src == NULL && (t == l.nodes[l.n - 1] || t->op != GGML_OP_MUL_MAT)) {
            ggml_set_output(t);
        }
    }
    ggml_build_forward_expand(l.graph, l.nodes[l.n - 1]);
    if (test_random() % 2 == 0) {
        ggml_build_forward_expand(l.graph, ggml_sqr(l.ctx, l.nodes[l.n - 1])); // more nodes after the chain
    }
    for (int i = 0; i < l.graph->n_nodes && l.n_watched < MAX_NODES; i++) {
        struct ggml_tensor * t = l.graph->nodes[i];
        bool overwritten = false; // by an operator in place
        for (int j = i + 1; j < l.graph->n_nodes; j++) {
            overwritten |= l.graph->nodes[j]->view_src != NULL &&
                           l.graph->nodes[j]->view_src == (t->view_src != NULL ? t->view_src : t);
        }
        if (!overwritten && (!arena || ggml_is_output(t) || i == l.graph->n_nodes - 1)) {
            l.watched[l.n_watched++] = t;
        }
    }
    if (arena) {
        ggml_gallocr_t galloc = ggml_gallocr_new();
        l.talloc = ggml_tallocr_new_from_buft(ggml_backend_cpu_buffer_type(), ARENA);
        CHECK(ggml_gallocr_alloc_graph(galloc, l.talloc, l.graph) > 0);
        ggml_gallocr_free(galloc);
    }
    return l;
}

static void line_free(struct line * l) {
    ggml_tallocr_free(l->talloc);
    ggml_free(l->ctx);
    ggml_free(l->in);
}

static void run(struct line * l, int threads, bool fuse, const char * level) {
    spoil_results(l->graph, l->talloc);
    run_nodes(l->graph->nodes, l->graph->n_nodes, threads, fuse, gb_level_find(level)->kernels);
}

static void compare(const struct line * plain, const struct line * fused, int seed, int threads, const char * level) {
    for (int w = 0; w < plain->n_watched; w++) {
        const struct ggml_tensor *a = plain->watched[w], *b = fused->watched[w];
        CHECK_MSG(memcmp(a->data, b->data, ggml_nbytes(a)) == 0,
            "seed %d, %d threads, %s: node %d (%s) of %s [%d, %d, %d] differs", seed, threads, level, w,
            ggml_op_desc(a), ggml_type_name(plain->nodes[0]->src[0]->type), (int) a->ne[0], (int) a->ne[1],
            (int) a->ne[2]);
    }
}

static void random_lines(bool arena, int seeds) {
    int n_taken = 0;
    for (int seed = 1; seed <= seeds; seed++) {
        const char * level = level_of(seed)->name;
        struct line plain = line_new((uint64_t) seed * 1000, arena), fused = line_new((uint64_t) seed * 1000, arena);
        const int length = gb_fusion_product.length(fused.nodes, fused.n);
        n_taken += length > 1 && gb_fusion_product.is_safe(fused.nodes, length);
        run(&plain, 1, false, level);
        for (int threads = 1; threads <= 3; threads++) {
            run(&fused, threads, true, level);
            compare(&plain, &fused, seed, threads, level);
        }
        line_free(&plain);
        line_free(&fused);
    }
    // sometimes another node is first, or the only follower reads the product twice
    CHECK_MSG(n_taken * 2 > seeds, "%d of %d", n_taken, seeds);
    ggml_graph_set_fusion(true);
}

static void in_arenas(void) { random_lines(true, 64); }

static void in_memory_of_their_own(void) { random_lines(false, 48); }

static void many_threads(void) {
    for (int seed = 1; seed <= 10; seed++) {
        struct line plain = line_new((uint64_t) seed * 77, true), fused = line_new((uint64_t) seed * 77, true);
        run(&plain, 1, false, "scalar");
        run(&fused, 16, true, "scalar");
        compare(&plain, &fused, seed, 16, "scalar");
        line_free(&plain);
        line_free(&fused);
    }
}

// The product is in the memory of its follower, which a node after the step also reads. That memory
// must hold the follower, not the product. A view of the follower changes nothing.
static struct line read_later(bool through_view) {
    test_seed = 5;
    struct line l = { .in = ggml_init((struct ggml_init_params){ (size_t) 1 << 20, NULL, false }),
        .ctx = ggml_init((struct ggml_init_params){ (size_t) 1 << 20, NULL, true }) };
    l.nodes[0] = ggml_mul_mat(l.ctx, input(&l, GGML_TYPE_F32, 32, 16, 1), input(&l, GGML_TYPE_F32, 32, 4, 1));
    l.nodes[1] = ggml_silu(l.ctx, l.nodes[0]);
    l.nodes[2] = ggml_scale(l.ctx, l.nodes[1], 0.7f);
    l.nodes[3] = ggml_silu(l.ctx, l.nodes[2]);
    l.n = 4;
    struct ggml_tensor * again =
        through_view ? ggml_view_2d(l.ctx, l.nodes[1], 16, 2, l.nodes[1]->nb[1], l.nodes[1]->nb[2] / 2) : l.nodes[1];
    l.watched[l.n_watched++] = l.nodes[3];
    l.watched[l.n_watched++] = ggml_neg(l.ctx, again);
    l.graph = ggml_new_graph(l.ctx);
    for (int i = 0; i < l.n_watched; i++) {
        ggml_set_output(l.watched[i]);
        ggml_build_forward_expand(l.graph, l.watched[i]);
    }
    ggml_gallocr_t galloc = ggml_gallocr_new();
    l.talloc = ggml_tallocr_new_from_buft(ggml_backend_cpu_buffer_type(), ARENA);
    CHECK(ggml_gallocr_alloc_graph(galloc, l.talloc, l.graph) > 0);
    ggml_gallocr_free(galloc);
    return l;
}

static void stored_over_the_product(void) {
    for (int view = 0; view < 2; view++) {
        struct line plain = read_later(view > 0), fused = read_later(view > 0);
        CHECK(fused.nodes[1]->data == fused.nodes[0]->data);
        CHECK(gb_fusion_product.is_safe(fused.nodes, fused.n));
        run(&plain, 1, false, "scalar");
        run(&fused, 1, true, "scalar");
        compare(&plain, &fused, view, 1, "scalar");
        line_free(&plain);
        line_free(&fused);
    }
    ggml_graph_set_fusion(true);
}

static void matching(void) {
    struct line l = { .in = ggml_init((struct ggml_init_params){ (size_t) 1 << 20, NULL, false }) };
    l.ctx = l.in;
    struct ggml_tensor *w = input(&l, GGML_TYPE_F32, 32, 16, 1), *x = input(&l, GGML_TYPE_F32, 32, 4, 1),
                       *row = input(&l, GGML_TYPE_F32, 16, 1, 1);
    struct ggml_tensor *y = ggml_mul_mat(l.in, w, x), *z = ggml_add(l.in, y, row), *u = ggml_silu(l.in, z);
    struct ggml_tensor * nodes[] = { y, z, u, ggml_sum_rows(l.in, u) };
    CHECK_INT(gb_fusion_product.length(nodes, 4), 3);
    CHECK_INT(gb_fusion_product.length(nodes, 2), 2);
    CHECK_INT(gb_fusion_product.length(nodes, 1), 0);
    CHECK_INT(gb_fusion_product.length(nodes + 1, 2), 0);
    struct ggml_tensor * copy = ggml_dup(l.in, y);
    struct ggml_tensor * copied[] = { y, copy, ggml_silu_inplace(l.in, copy) };
    CHECK_INT(gb_fusion_product.length(copied, 3), 3);
    CHECK(gb_fusion_product.is_safe(copied, 3));
    CHECK(gb_fusion_product.is_safe(nodes, 3) && !gb_fusion_product.leaves_out(nodes, 3));
    void * mine = z->data;
    z->data = y->data; // in place
    CHECK(gb_fusion_product.is_safe(nodes, 3));
    z->data = x->data; // overwrites a source of the product
    CHECK(!gb_fusion_product.is_safe(nodes, 3));
    z->data = (char *) y->data + 16; // has elements that are not complete yet
    CHECK(!gb_fusion_product.is_safe(nodes, 3));
    z->data = mine;
    u->data = row->data; // overwrites the repeated row
    CHECK(!gb_fusion_product.is_safe(nodes, 3));
    nodes[1] = ggml_add(l.in, y, y);
    CHECK_INT(gb_fusion_product.length(nodes, 2), 0);
    ggml_free(l.in);
}

TEST_MAIN(TEST(in_arenas), TEST(in_memory_of_their_own), TEST(many_threads), TEST(stored_over_the_product),
    TEST(matching))
