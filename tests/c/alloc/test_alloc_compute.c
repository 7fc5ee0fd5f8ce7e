// test_alloc_compute.c - random graphs with views, in-place operations and shared sources give the
// same bits in any memory: separate for each tensor, shared in node order, shared in another order
// of execution (parse_seq), by a scheduler on one backend, and by a scheduler over devices in
// random placements.
#include "test_alloc.h"

#include "ggml-backend.h"

struct results { // of the nodes whose results must be intact at the end
    void * data[RANDOM_MAX];
    size_t size[RANDOM_MAX];
};

static void set_leafs(const struct random_graph * g, uint64_t seed) {
    const uint64_t before = test_seed;
    test_seed = seed;
    for (int i = 0; i < g->n_leafs; i++) {
        float values[RANDOM_COLUMNS * RANDOM_ROWS];
        const size_t size = ggml_nbytes(g->leafs[i]);
        for (size_t k = 0; k < size / 4; k++) {
            values[k] = test_random_float(-2, 2);
        }
        if (g->leafs[i]->data) { // leafs without memory are not in the graph
            CHECK_INT(ggml_backend_tensor_set(g->leafs[i], values, 0, size), GGML_STATUS_SUCCESS);
        }
    }
    test_seed = before;
}

static bool is_result(const struct ggml_cgraph * graph, const struct ggml_tensor * t) {
    for (int j = 0; j < graph->n_nodes; j++) {
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            if (graph->nodes[j]->src[s] == t) {
                return ggml_is_output(t);
            }
        }
    }
    return true;
}

static void keep_results(const struct ggml_cgraph * graph, struct results * r) {
    for (int i = 0; i < graph->n_nodes; i++) {
        r->data[i] = NULL;
        if (is_result(graph, graph->nodes[i])) {
            r->size[i] = ggml_nbytes(graph->nodes[i]);
            r->data[i] = malloc(r->size[i]);
            CHECK_INT(ggml_backend_tensor_get(graph->nodes[i], r->data[i], 0, r->size[i]), GGML_STATUS_SUCCESS);
        }
    }
}

static int compare_results(const struct ggml_cgraph * graph, const struct results * r) {
    int different = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        if (r->data[i]) {
            void * data = malloc(r->size[i]);
            CHECK_INT(ggml_backend_tensor_get(graph->nodes[i], data, 0, r->size[i]), GGML_STATUS_SUCCESS);
            different += memcmp(data, r->data[i], r->size[i]) != 0;
            free(data);
        }
    }
    return different;
}

static void free_results(struct results * r, int n) {
    for (int i = 0; i < n; i++) {
        free(r->data[i]);
    }
}

static void reference(ggml_backend_t cpu, struct random_graph_params params, uint64_t leafs, struct results * r) {
    struct random_graph g;
    REQUIRE(random_graph_make(&g, params));
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(g.ctx, cpu);
    set_leafs(&g, leafs);
    CHECK(ggml_backend_graph_compute(cpu, g.graph));
    keep_results(g.graph, r);
    ggml_backend_buffer_free(buffer);
    random_graph_free(&g);
}

// Makes a sequence of groups. Each node is in the earliest possible group. `order`: the nodes of
// each group, shuffled.
static int make_sequence(const struct ggml_cgraph * graph, int * seq, int * order) {
    int group[RANDOM_MAX], n = 0, n_order = 0;
    int last = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        group[i] = 0;
        for (int j = 0; j < i; j++) {
            if (random_must_follow(graph->nodes[i], graph->nodes[j])) {
                group[i] = GB_MAX(group[i], group[j] + 1);
            }
        }
        last = GB_MAX(last, group[i]);
    }
    for (int g = 0; g <= last; g++) {
        const int start = n_order;
        for (int i = 0; i < graph->n_nodes; i++) {
            if (group[i] == g) {
                seq[n++] = order[n_order++] = i;
            }
        }
        for (int k = start; k < n_order; k++) { // nodes of a group are independent, so any order is valid
            const int other = (int) test_random_int(start, n_order - 1);
            const int x = order[k];
            order[k] = order[other];
            order[other] = x;
        }
        seq[n++] = -1;
    }
    return n;
}

static void one_round(ggml_backend_t cpu, struct random_graph_params params, bool sequence) {
    const uint64_t seed = test_random(), leafs = test_random();
    struct results expected;
    struct random_graph g;
    test_seed = seed;
    reference(cpu, params, leafs, &expected);
    test_seed = seed;
    REQUIRE(random_graph_make(&g, params));
    for (int i = 0; i < g.n_leafs; i++) {
        ggml_set_input(g.leafs[i]);
    }
    ggml_gallocr_t galloc = ggml_gallocr_new();
    ggml_tallocr_t measure = ggml_tallocr_new_measure_from_backend(cpu);
    int seq[2 * RANDOM_MAX], order[RANDOM_MAX];
    struct ggml_tensor * nodes[RANDOM_MAX];
    struct ggml_cgraph run = *g.graph;
    if (sequence) {
        const int n = make_sequence(g.graph, seq, order);
        REQUIRE(ggml_gallocr_set_parse_seq(galloc, seq, n) == GGML_STATUS_SUCCESS);
        for (int i = 0; i < run.n_nodes; i++) {
            nodes[i] = g.graph->nodes[order[i]];
        }
        run.nodes = nodes;
    }
    const size_t size = ggml_gallocr_alloc_graph(galloc, measure, g.graph);
    ggml_tallocr_t talloc = ggml_tallocr_new_from_backend(cpu, size - size / 11); // removes the margin of a tenth
    for (int again = 0; again < 2; again++) {
        CHECK(ggml_gallocr_alloc_graph(galloc, talloc, g.graph) == size);
        set_leafs(&g, leafs);
        CHECK(ggml_backend_graph_compute(cpu, &run));
        CHECK_INT(compare_results(g.graph, &expected), 0);
        CHECK_INT(ggml_tallocr_reset(talloc), GGML_STATUS_SUCCESS);
    }
    free_results(&expected, g.graph->n_nodes);
    ggml_gallocr_free(galloc);
    ggml_tallocr_free(measure);
    ggml_tallocr_free(talloc);
    random_graph_free(&g);
}

static void node_order(void) {
    const ggml_backend_t cpu = ggml_backend_cpu_init();
    REQUIRE(cpu);
    for (int round = 0; round < 150; round++) {
        ggml_backend_cpu_set_n_threads(cpu, 1 + round % 2);
        one_round(cpu, (struct random_graph_params){ (int) test_random_int(1, 60), true, false, round % 2 == 0 },
            false);
    }
    ggml_backend_free(cpu);
}

static void parse_sequences(void) {
    const ggml_backend_t cpu = ggml_backend_cpu_init();
    REQUIRE(cpu);
    for (int round = 0; round < 150; round++) {
        ggml_backend_cpu_set_n_threads(cpu, 1 + round % 2);
        one_round(cpu, (struct random_graph_params){ (int) test_random_int(1, 60), true, false, round % 2 == 0 }, true);
    }
    ggml_backend_free(cpu);
}

// ---------------------------------------------------------------------------------------------------------- schedulers

enum { DEVICES = 4 };

// Computes with a scheduler. If there are several devices, assigns nodes at random to devices that
// can run them.
static void scheduled_round(ggml_backend_t * devices, int n, struct random_graph_params params, size_t * n_splits) {
    const uint64_t seed = test_random(), leafs = test_random();
    struct results expected;
    struct random_graph g;
    test_seed = seed;
    reference(devices[n - 1], params, leafs, &expected);
    test_seed = seed;
    REQUIRE(random_graph_make(&g, params));
    const ggml_backend_sched_t sched = ggml_backend_sched_new(devices, NULL, n, 0);
    REQUIRE(sched);
    for (int i = 0; i < g.graph->n_nodes && n > 1; i++) {
        const ggml_backend_t device = devices[test_random_int(0, n - 1)];
        if (test_random_int(0, 2) && ggml_backend_supports_op(device, g.graph->nodes[i])) {
            CHECK_INT(ggml_backend_sched_set_node_backend(sched, g.graph->nodes[i], device), GGML_STATUS_SUCCESS);
        }
    }
    struct ggml_cgraph * run = test_random_int(0, 1) ? ggml_graph_reorder(g.ctx, g.graph) : g.graph;
    REQUIRE(run);
    CHECK_INT(ggml_backend_sched_alloc_graph(sched, run), GGML_STATUS_SUCCESS);
    for (int again = 0; again < 2; again++) {
        set_leafs(&g, leafs); // again, because nodes may overwrite leafs
        CHECK_INT(ggml_backend_sched_graph_compute(sched, run), GGML_STATUS_SUCCESS);
        CHECK_INT(compare_results(g.graph, &expected), 0);
    }
    *n_splits += (size_t) ggml_backend_sched_get_n_splits(sched);
    free_results(&expected, g.graph->n_nodes);
    ggml_backend_sched_free(sched);
    random_graph_free(&g);
}

static void scheduled(bool devices) {
    static const char * names[DEVICES] = { "SIM:noops=mul_mat", "SIM:delay=20us,noops=soft_max+scale,align=256",
        "SIM:copy_delay=10us,noops=add+cpy", "CPU" };
    ggml_backend_t list[DEVICES];
    size_t n_splits = 0;
    for (int i = 0; i < DEVICES; i++) {
        REQUIRE((list[i] = ggml_backend_reg_init_backend_from_str(names[i])) != NULL);
    }
    for (int round = 0; round < 150; round++) {
        const int n = devices ? (int) test_random_int(2, DEVICES) : 1;
        ggml_backend_cpu_set_n_threads(list[DEVICES - 1], 1 + round % 2);
        scheduled_round(list + DEVICES - n, n,
            (struct random_graph_params){ (int) test_random_int(1, 60), true, false, round % 2 == 0 }, &n_splits);
    }
    CHECK(devices ? n_splits > 150 * 3 : n_splits <= 150); // otherwise all placements would have been the same
    for (int i = 0; i < DEVICES; i++) {
        ggml_backend_free(list[i]);
    }
}

static void scheduled_on_one_backend(void) { scheduled(false); }

static void scheduled_over_devices(void) { scheduled(true); }

TEST_MAIN(TEST(node_order), TEST(parse_sequences), TEST(scheduled_on_one_backend), TEST(scheduled_over_devices))
