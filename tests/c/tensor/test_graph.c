// Graphs: order, growth, fixed memory, undone failed builds, copies, views, printing. Nodes are
// connected by hand, so only the graph is tested. A recursive walk is the oracle for the order.
#define _POSIX_C_SOURCE 200809L // mkstemp, dup2
#include <unistd.h>

#include "base/mem.h"
#include "tensor/tensor.h"
#include "test.h"

#include "ggml-alloc.h"

static struct ggml_context * own(void) { return ggml_init((struct ggml_init_params){ 1000, NULL, true }); }

static struct ggml_tensor * leaf(struct ggml_context * ctx) { return ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4); }

static struct ggml_tensor * node(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    struct ggml_tensor * t = leaf(ctx);
    if (t != NULL) {
        t->op = GGML_OP_ADD;
        t->src[0] = a;
        t->src[1] = b;
    }
    return t;
}

// --------------------------------------------------------------------------------------------------------------- order

struct walk {
    struct ggml_tensor * seen[500];
    struct ggml_tensor * nodes[500];
    struct ggml_tensor * leafs[500];
    int n_seen, n_nodes, n_leafs;
};

static void recurse(struct walk * w, struct ggml_tensor * t, bool backwards) {
    for (int i = 0; i < w->n_seen; i++) {
        if (w->seen[i] == t) {
            return;
        }
    }
    w->seen[w->n_seen++] = t;
    for (int k = 0; k < GGML_MAX_SRC; k++) {
        struct ggml_tensor * src = t->src[backwards ? GGML_MAX_SRC - 1 - k : k];
        if (src != NULL) {
            recurse(w, src, backwards);
        }
    }
    if (t->op == GGML_OP_NONE && t->grad == NULL) {
        w->leafs[w->n_leafs++] = t;
    } else {
        w->nodes[w->n_nodes++] = t;
    }
}

static void same_order_as_recursion(void) {
    for (int round = 0; round < 200; round++) {
        struct ggml_context * ctx = own();
        struct ggml_tensor * t[120];
        const int n = (int) test_random_int(1, 120);
        const bool backwards = round % 2 == 1;
        for (int i = 0; i < n; i++) {
            t[i] = leaf(ctx);
            const int kind = (int) test_random_int(0, 9);
            if (i > 0 && kind > 1) {
                t[i]->op = GGML_OP_MAP_CUSTOM3;
                for (int k = 0; k < GGML_MAX_SRC; k++) { // with gaps, duplicates, and itself
                    if (test_random_int(0, 3) == 0) {
                        t[i]->src[k] = t[test_random_int(0, i)];
                    }
                }
            } else if (kind == 0) {
                t[i]->grad = leaf(ctx); // a tensor without operator is a node if it has a gradient
            }
        }
        static struct walk w;
        memset(&w, 0, sizeof(w));
        struct ggml_cgraph * g = ggml_new_graph_custom(ctx, 500, round % 3 == 0);
        g->order = backwards ? GGML_CGRAPH_EVAL_ORDER_RIGHT_TO_LEFT : GGML_CGRAPH_EVAL_ORDER_LEFT_TO_RIGHT;
        for (int k = 0; k < 3; k++) {
            struct ggml_tensor * root = t[test_random_int(0, n - 1)];
            const int n_nodes = g->n_nodes;
            recurse(&w, root, backwards);
            CHECK_INT(ggml_build_forward_expand(g, root), GGML_STATUS_SUCCESS);
            if (g->n_nodes > n_nodes) {
                CHECK(g->nodes[g->n_nodes - 1] == root);
            }
        }
        CHECK_INT(g->n_nodes, w.n_nodes);
        CHECK_INT(g->n_leafs, w.n_leafs);
        for (int i = 0; i < w.n_nodes; i++) {
            CHECK(g->nodes[i] == w.nodes[i]);
            if (g->grads != NULL) {
                CHECK(g->grads[i] == w.nodes[i]->grad);
            }
        }
        for (int i = 0; i < w.n_leafs; i++) {
            CHECK(g->leafs[i] == w.leafs[i]);
        }
        ggml_free(ctx);
    }
}

static void naming(void) {
    struct ggml_context * ctx = own();
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    struct ggml_tensor * a = leaf(ctx);
    struct ggml_tensor * b = ggml_set_name(leaf(ctx), "b");
    struct ggml_tensor * c = node(ctx, b, a);
    struct ggml_tensor * d = ggml_set_name(node(ctx, c, NULL), "out");
    ggml_build_forward_expand(g, d);
    CHECK_STR(a->name, "leaf_1");
    CHECK_STR(b->name, "b");
    CHECK_STR(c->name, "node_0");
    CHECK_STR(d->name, "out");
    CHECK(ggml_graph_get_tensor(g, "node_0") == c && ggml_graph_get_tensor(g, "leaf_1") == a);
    CHECK(ggml_graph_get_tensor(g, "nobody") == NULL);
    ggml_set_name(a, "out");
    CHECK(ggml_graph_get_tensor(g, "out") == a); // leafs come first
    CHECK_INT(g->size, 2048);
    CHECK(g->grads == NULL && g->order == GGML_CGRAPH_EVAL_ORDER_LEFT_TO_RIGHT);
    ggml_free(ctx);
}

// Automatic names of tensors are unique in a graph, whatever graphs the tensors were in before.
static void automatic_names_are_unique(void) {
    struct ggml_context * ctx = own();
    struct ggml_context * other = own();
    struct ggml_tensor * far = leaf(other);
    struct ggml_cgraph * first = ggml_new_graph(ctx);
    struct ggml_cgraph * second = ggml_new_graph(ctx);
    struct ggml_cgraph * third = ggml_new_graph(ctx);
    struct ggml_tensor * a = node(ctx, leaf(ctx), leaf(ctx));
    struct ggml_tensor * b = node(ctx, leaf(ctx), NULL);
    struct ggml_tensor * c = node(ctx, node(ctx, far, a), node(ctx, b, leaf(ctx)));
    ggml_set_name(far, "leaf_3");
    ggml_set_name(b, "node_12345678901234567890");
    CHECK_INT(ggml_build_forward_expand(first, a), GGML_STATUS_SUCCESS);
    CHECK_STR(a->src[1]->name, "leaf_1");
    CHECK_STR(a->name, "node_0");
    CHECK_INT(ggml_build_forward_expand(second, b), GGML_STATUS_SUCCESS);
    CHECK_STR(b->src[0]->name, "leaf_2");
    CHECK_INT(ggml_build_forward_expand(third, c), GGML_STATUS_SUCCESS);
    for (int i = 0; i < third->n_leafs + third->n_nodes; i++) {
        const struct ggml_tensor * t = i < third->n_leafs ? third->leafs[i] : third->nodes[i - third->n_leafs];
        CHECK(t->name[0] != '\0' && ggml_graph_get_tensor(third, t->name) == t);
    }
    ggml_free(ctx);
    ggml_free(other);
}

// One million nodes in a chain: no recursion, and growth from a small graph.
static void long_chain(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, true });
    struct ggml_cgraph * g = ggml_new_graph_custom(ctx, 10, false);
    enum { N = 1000000 };
    struct ggml_tensor * t = leaf(ctx);
    for (int i = 0; i < N; i++) {
        t = node(ctx, t, NULL);
        REQUIRE(t != NULL);
    }
    const size_t before = ggml_used_mem(ctx);
    CHECK_INT(ggml_build_forward_expand(g, t), GGML_STATUS_SUCCESS);
    CHECK_INT(g->n_nodes, N);
    CHECK_INT(g->n_leafs, 1);
    for (int i = 1; i < N; i++) {
        if (g->nodes[i]->src[0] != g->nodes[i - 1]) {
            test_fail(__FILE__, __LINE__, "node %d is out of order", i);
        }
    }
    CHECK_STR(g->nodes[999999]->name, "node_999999");
    CHECK(ggml_used_mem(ctx) - before < (size_t) 200 * N); // growth is geometric
    CHECK_INT(ggml_build_forward_expand(g, t), GGML_STATUS_SUCCESS);
    CHECK_INT(g->n_nodes, N);
    ggml_free(ctx);
}

// -------------------------------------------------------------------------------------------------------------- memory

static void overhead_is_exact(void) {
    const size_t sizes[] = { 0, 1, 2, 7, 100, 2048, 4096, 5000, 65536 };
    for (int k = 0; k < 18; k++) {
        struct ggml_context * ctx = own();
        const size_t n = sizes[k / 2];
        struct ggml_cgraph * g = ggml_new_graph_custom(ctx, n, k % 2);
        REQUIRE(g != NULL);
        CHECK_INT(ggml_used_mem(ctx), ggml_graph_overhead_custom(n, k % 2));
        CHECK(g->visited_hash_table.size >= 2 * n && g->size == (int) n && (g->grads != NULL) == (k % 2 == 1));
        CHECK(ggml_graph_overhead_custom(n, k % 2) <= 400 + 60 * (n + 1)); // far less than 400 a node
        ggml_free(ctx);
    }
    CHECK_INT(ggml_graph_overhead(), ggml_graph_overhead_custom(2048, false));
    CHECK_INT(ggml_graph_overhead_custom(SIZE_MAX / 2, false), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "size");
}

static void fixed_graph_is_filled_to_the_brim(void) {
    struct ggml_context * ctx = own();
    enum { N = 40 };
    const size_t size = ggml_graph_overhead_custom(N, false);
    void * memory = gb_aligned_alloc(16, size);
    struct ggml_context * fixed = ggml_init((struct ggml_init_params){ size, memory, true });
    struct ggml_cgraph * g = ggml_new_graph_custom(fixed, N, false);
    REQUIRE(g != NULL);
    ggml_free(fixed);
    struct ggml_tensor * last = NULL;
    for (int i = 0; i < N; i++) { // N nodes and N leafs: the maximum
        last = node(ctx, last, leaf(ctx));
        CHECK_INT(ggml_build_forward_expand(g, last), GGML_STATUS_SUCCESS);
    }
    CHECK(g->n_nodes == N && g->n_leafs == N);
    static char copy[1 << 16];
    REQUIRE(size < sizeof(copy));
    memcpy(copy, memory, size);
    struct ggml_tensor * more = node(ctx, last, NULL);
    CHECK_INT(ggml_build_forward_expand(g, more), GGML_STATUS_ALLOC_FAILED);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "space for 40 nodes");
    CHECK_INT(ggml_build_forward_expand(g, leaf(ctx)), GGML_STATUS_ALLOC_FAILED);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "ggml_new_graph_custom");
    CHECK(memcmp(copy, memory, size) == 0);
    gb_aligned_free(memory);
    ggml_free(ctx);
}

// A build that fails in the middle leaves graph and names unchanged. A later build that fits
// succeeds.
static void failed_build_is_taken_back(void) {
    struct ggml_context * ctx = own();
    for (int n = 1; n < 30; n++) {
        const size_t size = ggml_graph_overhead_custom((size_t) n, true);
        void * memory = gb_aligned_alloc(16, size);
        struct ggml_context * fixed = ggml_init((struct ggml_init_params){ size, memory, true });
        struct ggml_cgraph * g = ggml_new_graph_custom(fixed, (size_t) n, true);
        ggml_free(fixed);
        struct ggml_tensor * first = node(ctx, leaf(ctx), NULL);
        CHECK_INT(ggml_build_forward_expand(g, first), GGML_STATUS_SUCCESS);
        void * copy = gb_malloc(size);
        memcpy(copy, memory, size);

        struct ggml_tensor * t[60] = { first };
        for (int i = 1; i < 60; i++) {
            t[i] = node(ctx, t[i - 1], i % 3 ? t[test_random_int(0, i - 1)] : leaf(ctx));
        }
        CHECK_INT(ggml_build_forward_expand(g, t[59]), GGML_STATUS_ALLOC_FAILED);
        CHECK(memcmp((char *) copy + sizeof(struct ggml_object), g, sizeof(*g)) == 0);
        CHECK(g->n_nodes == 1 && g->n_leafs == 1 && g->nodes[0] == first);
        const size_t marks = g->visited_hash_table.size * sizeof(void *);
        CHECK(memcmp((char *) copy + ((char *) g->visited_hash_table.keys - (char *) memory),
                  g->visited_hash_table.keys, marks) == 0);
        for (int i = 1; i < 60; i++) {
            CHECK_STR(t[i]->name, "");
        }
        if (n > 1) {
            struct ggml_tensor * fits = node(ctx, t[0], NULL);
            CHECK_INT(ggml_build_forward_expand(g, fits), GGML_STATUS_SUCCESS);
            CHECK(g->n_nodes == 2 && g->nodes[1] == fits);
        }
        gb_free(copy);
        gb_aligned_free(memory);
    }
    ggml_free(ctx);
}

static void copies_of_the_struct(void) {
    struct ggml_context * ctx = own();
    struct ggml_cgraph * g = ggml_new_graph_custom(ctx, 4, true);
    struct ggml_tensor * t = leaf(ctx);
    for (int i = 0; i < 3; i++) {
        t = node(ctx, t, NULL);
    }
    ggml_build_forward_expand(g, t);
    struct ggml_cgraph by_value = *g;
    for (int i = 0; i < 100; i++) {
        t = node(ctx, t, leaf(ctx));
    }
    CHECK_INT(ggml_build_forward_expand(&by_value, t), GGML_STATUS_SUCCESS); // only the copy grows
    CHECK_INT(by_value.n_nodes, 103);
    CHECK(by_value.size >= 103 && by_value.nodes[102] == t);
    CHECK(g->size == 4 && g->n_nodes == 3 && g->n_leafs == 1);
    CHECK(g->nodes[2] == by_value.nodes[2]);
    ggml_free(ctx);

    // uses the program's own arrays up to their size
    struct ggml_tensor * nodes[2];
    struct ggml_tensor * leafs[2];
    struct ggml_tensor * keys[5] = { NULL };
    struct ggml_cgraph made = { .size = 2, .nodes = nodes, .leafs = leafs, .visited_hash_table = { 5, keys } };
    ctx = own();
    t = node(ctx, leaf(ctx), leaf(ctx));
    CHECK_INT(ggml_build_forward_expand(&made, t), GGML_STATUS_SUCCESS);
    CHECK(made.n_nodes == 1 && made.n_leafs == 2);
    CHECK_INT(ggml_build_forward_expand(&made, node(ctx, t, leaf(ctx))), GGML_STATUS_ALLOC_FAILED);
    CHECK(made.n_nodes == 1 && made.n_leafs == 2);
    CHECK_INT(ggml_build_forward_expand(&made, node(ctx, t, NULL)), GGML_STATUS_SUCCESS);
    CHECK_INT(made.n_nodes, 2);
    ggml_free(ctx);
}

static void views(void) {
    struct ggml_context * ctx = own();
    struct ggml_cgraph * g = ggml_new_graph_custom(ctx, 16, true);
    struct ggml_tensor * t = leaf(ctx);
    for (int i = 0; i < 10; i++) {
        t = node(ctx, t, NULL);
    }
    ggml_build_forward_expand(g, t);
    struct ggml_cgraph view = ggml_graph_view(g, 3, 7);
    CHECK(view.n_nodes == 4 && view.nodes == g->nodes + 3 && view.grads == g->grads + 3);
    CHECK(view.size == 0 && view.n_leafs == 0 && view.leafs == NULL && view.visited_hash_table.size == 0);
    CHECK_INT(ggml_build_forward_expand(&view, t), GGML_STATUS_INVALID_STATE);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "ggml_graph_view");
    CHECK_INT(ggml_graph_cpy(g, &view), GGML_STATUS_INVALID_STATE);
    CHECK_INT(ggml_graph_view(g, 10, 10).n_nodes, 0);
    const int bad[][2] = { { -1, 3 }, { 4, 3 }, { 0, 11 } };
    for (int i = 0; i < 3; i++) {
        CHECK(ggml_graph_view(g, bad[i][0], bad[i][1]).nodes == NULL);
        CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "a part of [0, 10)");
    }
    struct ggml_cgraph * dup = ggml_graph_dup(ctx, &view);
    REQUIRE(dup != NULL);
    CHECK(dup->n_nodes == 4 && dup->nodes != view.nodes && dup->nodes[3] == g->nodes[6]);
    CHECK_INT(ggml_build_forward_expand(dup, g->nodes[5]), GGML_STATUS_SUCCESS);
    CHECK_INT(dup->n_nodes, 4); // its nodes count as visited
    ggml_free(ctx);
}

static void copying(void) {
    struct ggml_context * ctx = own();
    struct ggml_cgraph * g = ggml_new_graph_custom(ctx, 64, false);
    struct ggml_tensor * t = leaf(ctx);
    for (int i = 0; i < 20; i++) {
        t = node(ctx, t, leaf(ctx));
    }
    g->order = GGML_CGRAPH_EVAL_ORDER_RIGHT_TO_LEFT;
    ggml_build_forward_expand(g, t);

    struct ggml_cgraph * dup = ggml_graph_dup(ctx, g);
    CHECK(dup->size == 64 && dup->n_nodes == 20 && dup->n_leafs == 21 && dup->order == g->order && dup->grads == NULL);
    CHECK(memcmp(dup->nodes, g->nodes, 20 * sizeof(void *)) == 0 &&
          memcmp(dup->leafs, g->leafs, 21 * sizeof(void *)) == 0);
    struct ggml_tensor * more = node(ctx, t, g->leafs[0]);
    ggml_build_forward_expand(dup, more);
    CHECK(dup->n_nodes == 21 && dup->n_leafs == 21 && g->n_nodes == 20);

    struct ggml_cgraph * small = ggml_new_graph_custom(ctx, 2, true); // grows
    ggml_build_forward_expand(small, node(ctx, leaf(ctx), NULL));     // is replaced
    CHECK_INT(ggml_graph_cpy(g, small), GGML_STATUS_SUCCESS);
    CHECK(small->n_nodes == 20 && small->n_leafs == 21 && small->nodes[19] == t && small->grads[19] == NULL);
    CHECK_INT(ggml_build_forward_expand(small, more), GGML_STATUS_SUCCESS);
    CHECK_INT(small->n_nodes, 21);
    CHECK_INT(ggml_graph_cpy(small, g), GGML_STATUS_INVALID_ARGUMENT); // would lose gradients
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "gradients");
    CHECK_INT(ggml_graph_cpy(g, g), GGML_STATUS_SUCCESS);

    static _Alignas(16) char memory[4096];
    struct ggml_context * fixed_ctx = ggml_init((struct ggml_init_params){ sizeof(memory), memory, true });
    struct ggml_cgraph * fixed = ggml_new_graph_custom(fixed_ctx, 20, false);
    CHECK_INT(ggml_graph_cpy(g, fixed), GGML_STATUS_ALLOC_FAILED);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "space for 20 nodes and 20 leafs");
    CHECK(fixed->n_nodes == 0 && fixed->n_leafs == 0);
    ggml_free(fixed_ctx);

    CHECK_INT(ggml_graph_clear(g), GGML_STATUS_SUCCESS);
    CHECK(g->n_nodes == 0 && g->n_leafs == 0 && g->size == 64);
    CHECK_INT(ggml_build_forward_expand(g, t), GGML_STATUS_SUCCESS);
    CHECK_INT(g->n_nodes, 20);
    ggml_free(ctx);
}

static void bad_arguments(void) {
    struct ggml_context * ctx = own();
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    CHECK_INT(ggml_build_forward_expand(g, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'tensor' is NULL");
    CHECK(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, -3) == NULL);
    CHECK_INT(ggml_build_forward_expand(g, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "[-3]"); // the first message stays
    CHECK_INT(ggml_build_forward_expand(NULL, leaf(ctx)), GGML_STATUS_INVALID_ARGUMENT);
    CHECK(ggml_new_graph(NULL) == NULL && ggml_graph_dup(NULL, g) == NULL && ggml_graph_dup(ctx, NULL) == NULL);
    CHECK(ggml_new_graph_custom(ctx, SIZE_MAX / 8, false) == NULL);
    CHECK_INT(ggml_graph_clear(NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_graph_cpy(NULL, g), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_graph_cpy(g, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK(ggml_graph_get_tensor(NULL, "x") == NULL && ggml_graph_get_tensor(g, NULL) == NULL);
    CHECK(ggml_graph_view(NULL, 0, 0).nodes == NULL);
    ggml_graph_print(NULL);
    CHECK_INT(ggml_graph_dump_dot(NULL, NULL, "x"), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_graph_dump_dot(g, NULL, NULL), GGML_STATUS_INVALID_ARGUMENT);
    ggml_free(ctx);
}

// ------------------------------------------------------------------------------------------------------------ printing

static char * read_file(const char * name) {
    static char text[20000];
    FILE * file = fopen(name, "r");
    if (file == NULL) {
        return NULL;
    }
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    return text;
}

static void dot(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, false });
    struct ggml_cgraph * g = ggml_new_graph_custom(ctx, 16, true);
    struct ggml_tensor * a = ggml_set_name(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 2), "we\"ird|<name>{\\}\nx");
    ggml_set_f32(a, 1.5f);
    struct ggml_tensor * b = node(ctx, a, NULL);
    b->op = GGML_OP_CPY;
    struct ggml_tensor * c = node(ctx, b, a);
    c->grad = node(ctx, b, NULL);
    c->is_param = true;
    ggml_build_forward_expand(g, c);
    ggml_build_forward_expand(g, c->grad);
    char path[] = "/tmp/gb_dot_XXXXXX";
    REQUIRE(mkstemp(path) >= 0);
    CHECK_INT(ggml_graph_dump_dot(g, g, path), GGML_STATUS_SUCCESS);
    char * text = read_file(path);
    REQUIRE(text != NULL);
    CHECK(strncmp(text, "digraph", 7) == 0 && strstr(text, "}\n") != NULL);
    CHECK(strstr(text, "we\\\"ird\\|\\<name\\>\\{\\\\\\}\\\\x0ax (f32)") != NULL);
    CHECK(strstr(text, "|(1.5, 1.5)\"") != NULL);
    CHECK(strstr(text, "|<x>x-\\>y\"") != NULL); // the symbol of CPY is escaped once
    CHECK(strstr(text, "fillcolor=yellow") != NULL && strstr(text, "fillcolor=pink") != NULL);
    CHECK(strstr(text, "|<g>x+y") != NULL && strstr(text, ":g [") != NULL);
    int edges = 0;
    for (const char * at = text; (at = strstr(at, " -> ")) != NULL; at++) {
        edges++;
    }
    CHECK_INT(edges, 1 + 2 + 1);
    unlink(path);
    CHECK_INT(ggml_graph_dump_dot(g, NULL, "/nonexistent/dir/x.dot"), GGML_STATUS_IO_ERROR);
    CHECK_ERROR(GGML_STATUS_IO_ERROR, "/nonexistent/dir/x.dot");
    CHECK_INT(ggml_graph_dump_dot(g, NULL, "/dev/full"), GGML_STATUS_IO_ERROR);
    ggml_free(ctx);
}

static void listing(void) {
    struct ggml_context * ctx = own();
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    struct ggml_tensor * t = ggml_set_name(node(ctx, leaf(ctx), NULL), "the result");
    ggml_build_forward_expand(g, t);
    char path[] = "/tmp/gb_print_XXXXXX";
    const int fd = mkstemp(path), out = dup(1);
    REQUIRE(fd >= 0 && out >= 0);
    fflush(stdout);
    dup2(fd, 1);
    ggml_graph_print(g);
    ggml_print_objects(ctx);
    fflush(stdout);
    dup2(out, 1);
    close(out);
    close(fd);
    const char * text = read_file(path);
    CHECK(strstr(text, "1 nodes") && strstr(text, "1 leafs") && strstr(text, "ADD") && strstr(text, "the result"));
    CHECK(strstr(text, "leaf_0") && strstr(text, "graph   at") && strstr(text, "tensor  at"));
    unlink(path);
    ggml_free(ctx);
}

// ----------------------------------------------------------------------------------------------------------- no memory

static bool scenario(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 16, NULL, true });
    struct ggml_cgraph * g = ctx ? ggml_new_graph_custom(ctx, 4, true) : NULL;
    struct ggml_tensor * t = g ? leaf(ctx) : NULL;
    bool ok = t != NULL && ggml_build_forward_expand(g, node(ctx, t, NULL)) == GGML_STATUS_SUCCESS;
    if (ok) {
        const struct ggml_cgraph before = *g;
        struct ggml_tensor * first = g->nodes[0];
        for (int i = 0; i < 100 && t != NULL; i++) {
            struct ggml_tensor * b = leaf(ctx);
            t = b ? node(ctx, t, b) : NULL;
        }
        struct ggml_tensor * last = t;
        ok = last != NULL && ggml_build_forward_expand(g, last) == GGML_STATUS_SUCCESS;
        if (!ok) {
            CHECK(memcmp(&before, g, sizeof(before)) == 0);
            CHECK(g->nodes[0] == first);
            int marks = 0;
            for (size_t i = 0; i < g->visited_hash_table.size; i++) {
                marks += g->visited_hash_table.keys[i] != NULL;
            }
            CHECK_INT(marks, g->n_nodes + g->n_leafs);
            if (last != NULL) {
                CHECK_STR(last->name, "");
            }
            gb_test_fail_alloc(0, false);
            if (last != NULL) {
                CHECK_INT(ggml_build_forward_expand(g, last), GGML_STATUS_SUCCESS);
            }
        } else {
            CHECK_INT(g->n_nodes, 101);
            ok = ggml_graph_dup(ctx, g) != NULL;
            struct ggml_cgraph * other = ok ? ggml_new_graph_custom(ctx, 1, true) : NULL;
            ok = other != NULL && ggml_graph_cpy(g, other) == GGML_STATUS_SUCCESS;
            if (other != NULL) {
                CHECK_INT(other->n_nodes, ok ? 101 : 0);
            }
            CHECK_INT(g->n_nodes, 101);
        }
    }
    ggml_free(ctx);
    return ok;
}

// Copies a part of a graph to the graph itself, so the lists overlap.
static void copying_onto_itself(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 16, NULL, true });
    struct ggml_cgraph * graph = ggml_new_graph_custom(ctx, 16, false);
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
    for (int i = 0; i < 6; i++) {
        t = ggml_sqr(ctx, t);
    }
    REQUIRE(ggml_build_forward_expand(graph, t) == GGML_STATUS_SUCCESS);
    struct ggml_tensor * nodes[6];
    memcpy(nodes, graph->nodes, sizeof(nodes));
    struct ggml_cgraph part = ggml_graph_view(graph, 2, 5);
    CHECK_INT(ggml_graph_cpy(&part, graph), GGML_STATUS_SUCCESS);
    CHECK_INT(graph->n_nodes, 3);
    CHECK(memcmp(graph->nodes, nodes + 2, 3 * sizeof(nodes[0])) == 0);
    for (int i = 0; i < 6; i++) { // exactly the listed tensors are visited
        CHECK_INT(ggml_hash_contains(graph->visited_hash_table, nodes[i]), i >= 2 && i < 5);
    }
    ggml_graph_clear(graph);
    part = ggml_graph_view(graph, 0, 0);
    CHECK_INT(ggml_graph_cpy(graph, &part), GGML_STATUS_INVALID_STATE); // a view accepts no nodes, not even zero
    ggml_free(ctx);
}

static void failing_allocations(void) {
    const int64_t before = gb_test_live_allocs();
    for (int onwards = 0; onwards < 2; onwards++) {
        int n = 1;
        bool ok = false;
        for (; !ok && n < 1000; n++) {
            gb_test_fail_alloc(n, onwards);
            ok = scenario();
            gb_test_fail_alloc(0, false);
            CHECK_INT(gb_test_live_allocs(), before);
        }
        CHECK(ok);
        CHECK_MSG(n > 10, "only %d allocations", n - 2);
    }
}

TEST_MAIN(TEST(same_order_as_recursion), TEST(naming), TEST(automatic_names_are_unique), TEST(long_chain),
    TEST(overhead_is_exact), TEST(fixed_graph_is_filled_to_the_brim), TEST(failed_build_is_taken_back),
    TEST(copies_of_the_struct), TEST(views), TEST(copying), TEST(copying_onto_itself), TEST(bad_arguments), TEST(dot),
    TEST(listing), TEST(failing_allocations))
