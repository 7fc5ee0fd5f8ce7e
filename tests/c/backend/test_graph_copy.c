// Deep copies of graphs: structure, data, views, tensors without memory, size, failures.
#include "test_alloc.h"
#include "test_fake.h"

// Tensor b is a copy of a: the same fields and content in other memory.
static void check_same(struct ggml_tensor * a, struct ggml_tensor * b) {
    CHECK(a != b && strcmp(a->name, b->name) == 0 && a->type == b->type && a->op == b->op);
    CHECK(memcmp(a->ne, b->ne, sizeof(a->ne)) == 0 && memcmp(a->nb, b->nb, sizeof(a->nb)) == 0);
    CHECK(memcmp(a->op_params, b->op_params, sizeof(a->op_params)) == 0);
    CHECK(ggml_is_output(a) == ggml_is_output(b) && ggml_is_input(a) == ggml_is_input(b) && a->is_param == b->is_param);
    CHECK((a->view_src == NULL) == (b->view_src == NULL) && a->view_offs == b->view_offs);
    CHECK((a->data == NULL) == (b->data == NULL));
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        CHECK((a->src[s] == NULL) == (b->src[s] == NULL));
        CHECK(a->src[s] == NULL || strcmp(a->src[s]->name, b->src[s]->name) == 0);
    }
    if (a->data && b->data) {
        CHECK(a->data != b->data && memcmp(a->data, b->data, ggml_nbytes(a)) == 0);
        CHECK(b->view_src == NULL || b->data == (char *) b->view_src->data + b->view_offs);
    }
}

static void check_same_graph(struct ggml_cgraph * a, struct ggml_cgraph * b) {
    REQUIRE(a->n_nodes == b->n_nodes && a->n_leafs == b->n_leafs);
    for (int i = 0; i < a->n_nodes; i++) {
        check_same(a->nodes[i], b->nodes[i]);
        for (int s = 0; s < GGML_MAX_SRC; s++) { // a source is a node in the copy if it is one in the graph
            for (int j = 0; a->nodes[i]->src[s] && j < a->n_nodes; j++) {
                CHECK((a->nodes[i]->src[s] == a->nodes[j]) == (b->nodes[i]->src[s] == b->nodes[j]));
            }
        }
    }
    for (int i = 0; i < a->n_leafs; i++) {
        check_same(a->leafs[i], b->leafs[i]);
    }
}

static void random_graphs(void) {
    for (int round = 0; round < 100; round++) {
        struct random_graph g;
        struct fake f, h;
        fake_new(&f);
        fake_new(&h);
        h.max_size = round % 3 ? SIZE_MAX : 2000;
        REQUIRE(random_graph_make(&g,
            (struct random_graph_params){ (int) test_random_int(1, 60), true, round % 2 == 0, true }));
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(g.ctx, &f.backend);
        REQUIRE(buffer);
        for (int i = 0; i < g.n; i++) {
            for (size_t k = 0; g.all[i]->view_src == NULL && k < ggml_nbytes(g.all[i]); k++) {
                ((uint8_t *) g.all[i]->data)[k] = (uint8_t) test_random();
            }
        }
        struct ggml_backend_graph_copy copy = ggml_backend_graph_copy(&h.backend, g.graph);
        REQUIRE(copy.graph && copy.buffer && copy.ctx_allocated && copy.ctx_unallocated);
        check_same_graph(g.graph, copy.graph);
        for (int i = 0; i < copy.graph->n_nodes; i++) {
            CHECK(copy.graph->nodes[i]->buffer && copy.graph->nodes[i]->buffer->buft == &h.buft);
        }
        const int n_nodes = copy.graph->n_nodes;
        CHECK_INT(ggml_build_forward_expand(copy.graph, copy.graph->nodes[n_nodes - 1]), GGML_STATUS_SUCCESS);
        CHECK_INT(copy.graph->n_nodes, n_nodes); // the copy lists its nodes as visited
        ggml_backend_graph_copy_free(copy);
        CHECK_INT(h.n_buffers, 0);
        ggml_backend_buffer_free(buffer);
        random_graph_free(&g);
    }
}

static void odd_structure(void) {
    struct fake f;
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1000, NULL, true });
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    struct ggml_tensor * a = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
    struct ggml_tensor * b = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
    struct ggml_tensor * u = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
    static float memory[4] = { 1, 2, 3, 4 };
    fake_new(&f);
    struct ggml_tensor * c = ggml_sqr(ctx, a);
    struct ggml_tensor * v = ggml_view_1d(ctx, u, 2, 8);
    c->src[4] = b;    // behind empty slots
    c->src[6] = c;    // itself
    c->src[7] = v;    // a view of a tensor without memory,
    v->src[0] = NULL; // which is not a source of the view
    ggml_set_name(b, "b");
    ggml_set_name(u, "u");
    a->data = memory; // plain host memory
    ggml_build_forward_expand(graph, c);
    struct ggml_backend_graph_copy copy = ggml_backend_graph_copy(&f.backend, graph);
    REQUIRE(copy.graph);
    struct ggml_tensor * d = copy.graph->nodes[copy.graph->n_nodes - 1];
    CHECK(d->op == GGML_OP_SQR && d->src[6] == d && d->src[1] == NULL);
    CHECK(d->src[4] && strcmp(d->src[4]->name, "b") == 0 && d->src[4]->data == NULL);
    CHECK(d->src[7] && d->src[7]->view_src && strcmp(d->src[7]->view_src->name, "u") == 0 && d->src[7]->data == NULL);
    float x = 0;
    CHECK_INT(ggml_backend_tensor_get(d->src[0], &x, 8, 4), GGML_STATUS_SUCCESS);
    CHECK(x == 3 && d->src[0]->buffer == copy.buffer);
    ggml_backend_graph_copy_free(copy);
    a->data = NULL;
    copy = ggml_backend_graph_copy(&f.backend, graph); // no tensor has memory
    CHECK(copy.graph && copy.buffer == NULL);
    ggml_backend_graph_copy_free(copy);
    CHECK_INT(f.n_buffers, 0);
    ggml_free(ctx);
}

static bool is_empty(struct ggml_backend_graph_copy copy) {
    return !copy.graph && !copy.buffer && !copy.ctx_allocated && !copy.ctx_unallocated;
}

static void failures(void) {
    struct random_graph g;
    struct fake f, h;
    fake_new(&f);
    fake_new(&h);
    REQUIRE(random_graph_make(&g, (struct random_graph_params){ 30, true, true, true }));
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(g.ctx, &f.backend);
    ggml_backend_buffer_clear(buffer, 3);
    CHECK(is_empty(ggml_backend_graph_copy(NULL, g.graph)));
    CHECK(is_empty(ggml_backend_graph_copy(&h.backend, NULL)));
    ggml_backend_graph_copy_free((struct ggml_backend_graph_copy){ 0 });
    f.fail_get = 1;
    CHECK(is_empty(ggml_backend_graph_copy(&h.backend, g.graph)));
    CHECK_ERROR(GGML_STATUS_DEVICE_ERROR, "cannot read");
    h.max_size = 64;
    CHECK(is_empty(ggml_backend_graph_copy(&h.backend, g.graph)));
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "at most 64");
    h.max_size = SIZE_MAX;
    const int64_t live = gb_test_live_allocs();
    for (int n = 1;; n++) {
        gb_test_fail_alloc(n, false);
        struct ggml_backend_graph_copy copy = ggml_backend_graph_copy(&h.backend, g.graph);
        const bool failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK_INT(is_empty(copy), failed);
        ggml_backend_graph_copy_free(copy);
        CHECK_INT(gb_test_live_allocs(), live);
        CHECK_INT(h.n_buffers, 0);
        if (!failed) {
            CHECK(n > 10);
            break;
        }
    }
    ggml_backend_buffer_free(buffer);
    random_graph_free(&g);
}

static void deep(void) {
    struct fake f;
    const int n = 200000;
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 20, NULL, true });
    struct ggml_cgraph * graph = ggml_new_graph_custom(ctx, (size_t) n, false);
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1);
    fake_new(&f);
    for (int i = 0; i < n; i++) {
        t = ggml_sqr(ctx, t);
    }
    REQUIRE(ggml_build_forward_expand(graph, t) == GGML_STATUS_SUCCESS);
    struct ggml_backend_graph_copy copy = ggml_backend_graph_copy(&f.backend, graph);
    REQUIRE(copy.graph);
    CHECK(copy.graph->n_nodes == n && copy.graph->nodes[n - 1]->src[0] == copy.graph->nodes[n - 2]);
    ggml_backend_graph_copy_free(copy);
    ggml_free(ctx);
}

TEST_MAIN(TEST(random_graphs), TEST(odd_structure), TEST(failures), TEST(deep))
