// One graph on two backends: which nodes the callback gets, what ends the comparison, and what
// remains.
#include "test_alloc.h"
#include "test_fake.h"

struct seen {
    int nodes[RANDOM_MAX];
    int n, stop_at;
    bool equal;
};

static bool look(int i, struct ggml_tensor * t1, struct ggml_tensor * t2, void * user_data) {
    struct seen * seen = user_data;
    seen->nodes[seen->n++] = i;
    const size_t n = ggml_nbytes(t1);
    char *a = malloc(n), *b = malloc(n);
    CHECK(t1 != t2 && t1->op == t2->op && ggml_nbytes(t2) == n);
    ggml_backend_tensor_get(t1, a, 0, n);
    ggml_backend_tensor_get(t2, b, 0, n);
    seen->equal = seen->equal && memcmp(a, b, n) == 0;
    free(a);
    free(b);
    return seen->n != seen->stop_at;
}

// The graph is on a, the copy is on b.
static void compare_random(ggml_backend_t a, ggml_backend_t b, bool inplace) {
    for (int round = 0; round < 20; round++) {
        struct random_graph g;
        REQUIRE(a && b && random_graph_make(&g, (struct random_graph_params){ 40, inplace, true, true }));
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(g.ctx, a);
        for (int i = 0; i < g.n_leafs; i++) {
            float values[RANDOM_COLUMNS * RANDOM_ROWS];
            for (size_t k = 0; k < GB_ARRAY_LEN(values); k++) {
                values[k] = test_random_float(-1, 1);
            }
            CHECK_INT(ggml_backend_tensor_set(g.leafs[i], values, 0, ggml_nbytes(g.leafs[i])), GGML_STATUS_SUCCESS);
        }
        struct seen seen = { .equal = true };
        CHECK(ggml_backend_compare_graph_backend(a, b, g.graph, look, &seen));
        CHECK(seen.equal);
        int n = 0; // every node that computes, in order
        for (int i = 0; i < g.graph->n_nodes; i++) {
            if (gb_op_computes(g.graph->nodes[i]->op)) {
                CHECK(n < seen.n && seen.nodes[n] == i);
                n++;
            }
        }
        CHECK_INT(seen.n, n);
        ggml_backend_buffer_free(buffer);
        random_graph_free(&g);
    }
    ggml_backend_free(a);
    ggml_backend_free(b);
}

static void same_results(void) {
    compare_random(ggml_backend_cpu_init(), ggml_backend_reg_init_backend_from_str("CPU:threads=1"), true);
}

static void between_devices(void) {
    compare_random(ggml_backend_cpu_init(), ggml_backend_reg_init_backend_from_str("SIM"), true);
    compare_random(ggml_backend_reg_init_backend_from_str("SIM:mem=1M"), ggml_backend_cpu_init(), true);
    compare_random(ggml_backend_reg_init_backend_from_str("SIM"), ggml_backend_reg_init_backend_from_str("SIM:max=4K"),
        true);
}

static void stops_and_fails(void) {
    struct fake f, h;
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1000, NULL, true });
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
    fake_new(&f);
    fake_new(&h);
    for (int i = 0; i < 4; i++) {
        t = ggml_sqr(ctx, t);
    }
    ggml_build_forward_expand(graph, t);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, &f.backend);
    struct seen seen = { .stop_at = 2 };
    CHECK(ggml_backend_compare_graph_backend(&f.backend, &h.backend, graph, look, &seen));
    CHECK(seen.n == 2 && f.n_compute == 2 && h.n_compute == 2 && h.n_buffers == 0);
    h.backend.iface.graph_compute = NULL;
    CHECK(!ggml_backend_compare_graph_backend(&f.backend, &h.backend, graph, look, &seen));
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "cannot compute");
    CHECK(seen.n == 2 && h.n_buffers == 0);
    f.fail_get = 1;
    CHECK(!ggml_backend_compare_graph_backend(&f.backend, &f.backend, graph, look, &seen));
    CHECK_ERROR(GGML_STATUS_DEVICE_ERROR, "cannot read");
    CHECK(!ggml_backend_compare_graph_backend(NULL, &h.backend, graph, look, &seen));
    CHECK(!ggml_backend_compare_graph_backend(&f.backend, NULL, graph, look, &seen));
    CHECK(!ggml_backend_compare_graph_backend(&f.backend, &h.backend, NULL, look, &seen));
    CHECK(!ggml_backend_compare_graph_backend(&f.backend, &h.backend, graph, NULL, &seen));
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'callback'");
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

TEST_MAIN(TEST(same_results), TEST(between_devices), TEST(stops_and_fails))
