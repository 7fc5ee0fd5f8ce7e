// test_sched_graphs.c - unusual graphs, and random graphs with failures before right results.
#include "base/mem.h"
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "sched/plan.h"
#include "test.h"
#include "test_alloc.h"
#include "test_place.h"
#include "test_queue.h"

// ------------------------------------------------------------------------------------------------------ strange graphs

static void nodes_out_of_order(void) {
    OPEN(p, "SIM CPU");
    struct ggml_tensor *x = leaf(&p, "x", 4, 1), *a = ggml_sqr(p.ctx, x), *b = ggml_scale(p.ctx, a, 2);
    expand(&p, b);
    p.graph->nodes[0] = b;
    p.graph->nodes[1] = a;
    CHECK_INT(ggml_backend_sched_graph_compute(p.sched, p.graph), GGML_STATUS_INVALID_ARGUMENT);
    CHECK(a->data == NULL && b->data == NULL && x->data == NULL);
    p.graph->nodes[0] = a;
    p.graph->nodes[1] = b;
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    close_place(&p);
}

// A cache in plain weights memory of one device. Another device writes it through a view, in one
// graph or two, and it is read whole after each write.
static void cache_between_devices(void) {
    OPEN(p, "SIM:name=A,delay=1ms SIM:name=B CPU");
    struct ggml_tensor *cache = put(&p, leaf(&p, "cache", 4, 3), 0, true), *x = leaf(&p, "x", 4, 1);
    fill(cache, 1, 0);
    struct ggml_tensor * row1 = ggml_view_1d(p.ctx, cache, 4, cache->nb[1]);
    struct ggml_tensor * row2 = ggml_view_1d(p.ctx, cache, 4, 2 * cache->nb[1]);
    struct ggml_tensor * w1 = ggml_cpy(p.ctx, x, row1);
    struct ggml_tensor * read1 = ggml_scale(p.ctx, cache, 10);
    struct ggml_tensor * w2 = ggml_cpy(p.ctx, ggml_sqr(p.ctx, x), row2);
    struct ggml_tensor * read2 = ggml_scale(p.ctx, cache, 100);
    struct ggml_tensor * order[] = { w1, read1, w2, read2 };
    for (int i = 0; i < 4; i++) {
        expand(&p, order[i]);
        OK(ggml_backend_sched_set_node_backend(p.sched, order[i], p.backends[i % 2 ? 2 : 1]));
    }
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    for (int run = 0; run < 2; run++) {
        fill(x, 3 + (float) run, 0);
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        const float v = 3 + (float) run, old = run ? 9 : 1;
        CHECK_AT(read1, 0, 10);
        CHECK_AT(read1, 4, 10 * v);
        CHECK_AT(read1, 8, 10 * old);
        CHECK_AT(read2, 0, 100);
        CHECK_AT(read2, 4, 100 * v);
        CHECK_AT(read2, 8, 100 * v * v);
        CHECK_AT(cache, 8, v * v);
    }
    close_place(&p);
}

// A result is written back to memory that another queue still reads.
static void write_back_waits_for_readers(void) {
    OPEN(p, "SIM CPU");
    const ggml_backend_t queue = queue_device_new(0, 20000);
    ggml_backend_t list[] = { queue, p.backends[0], p.backends[1] };
    const ggml_backend_sched_t sched = ggml_backend_sched_new(list, NULL, 3, 0);
    struct ggml_tensor * r = leaf(&p, "r", 4, 1);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_buffer(queue, 64);
    OK(ggml_backend_tensor_alloc(buffer, r, ggml_backend_buffer_get_base(buffer)));
    struct ggml_tensor *y = ggml_sqr(p.ctx, r), *z = ggml_scale_inplace(p.ctx, r, 2);
    expand(&p, y);
    expand(&p, z);
    OK(ggml_backend_sched_set_node_backend(sched, y, queue));
    OK(ggml_backend_sched_set_node_backend(sched, z, p.backends[0]));
    for (int run = 0; run < 5; run++) {
        fill(r, 3, 0);
        OK(ggml_backend_sched_graph_compute(sched, p.graph));
        CHECK_AT(y, 3, 9);
        CHECK_AT(z, 3, 6);
    }
    ggml_backend_sched_free(sched);
    ggml_backend_buffer_free(buffer);
    ggml_backend_free(queue);
    close_place(&p);
}

// Schedulers run the same graph one after another.
static void scheduler_is_replaced(void) {
    OPEN(p, "SIM CPU");
    struct ggml_tensor *x = put(&p, leaf(&p, "x", 4, 1), 1, false), *y = ggml_sqr(p.ctx, x),
                       *v = ggml_reshape_2d(p.ctx, y, 2, 2);
    struct ggml_tensor * z = ggml_scale(p.ctx, v, 2);
    expand(&p, z);
    fill(x, 3, 0);
    for (int i = 0; i < 3; i++) {
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        CHECK_AT(z, 0, 18);
        ggml_backend_sched_free(p.sched);
        struct ggml_tensor * placed[] = { y, v, z };
        for (int k = 0; k < 3; k++) {
            placed[k]->buffer = NULL;
            placed[k]->data = NULL;
        }
        p.sched = ggml_backend_sched_new(p.backends, NULL, p.n, 0);
        REQUIRE(p.sched);
    }
    close_place(&p);
}

// A device may store blocks of a quantized type differently. So a copy of some rows copies all.
static void quantized_rows_between_devices(void) {
    OPEN(p, "SIM:name=A,noops=mul_mat+get_rows SIM:name=B CPU");
    enum { COLUMNS = 64, ROWS = 8 };
    struct ggml_tensor * w = put(&p, ggml_new_tensor_2d(p.ctx, GGML_TYPE_Q8_0, COLUMNS, ROWS), 0, true);
    struct ggml_tensor * x = leaf(&p, "x", COLUMNS, 1);
    struct ggml_tensor * some = ggml_mul_mat(p.ctx, ggml_view_2d(p.ctx, w, COLUMNS, 3, w->nb[1], 4 * w->nb[1]), x);
    struct ggml_tensor * all = ggml_mul_mat(p.ctx, w, x);
    float values[COLUMNS * ROWS];
    char blocks[COLUMNS * ROWS * 2];
    for (int i = 0; i < COLUMNS * ROWS; i++) {
        values[i] = (float) (i / COLUMNS) * 127; // a row of one value: exact
    }
    REQUIRE(ggml_quantize_chunk(GGML_TYPE_Q8_0, values, blocks, 0, ROWS, COLUMNS, NULL, NULL) == ggml_nbytes(w));
    OK(ggml_backend_tensor_set(w, blocks, 0, ggml_nbytes(w)));
    expand(&p, some);
    expand(&p, all);
    OK(ggml_backend_sched_set_node_backend(p.sched, some, p.backends[1]));
    OK(ggml_backend_sched_set_node_backend(p.sched, all, p.backends[2]));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 1, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    struct ggml_backend_sched_split_info split;
    OK(ggml_backend_sched_get_split(p.sched, 0, &split));
    CHECK(split.backend == p.backends[1]);
    CHECK(split.input_bytes >= ggml_nbytes(w));
    for (int i = 0; i < ROWS; i++) {
        CHECK(fabsf(at(all, i) - (float) i * 127 * COLUMNS) <= 1e-3f * (float) i * 127 * COLUMNS);
    }
    for (int i = 0; i < 3; i++) {
        CHECK(at(some, i) > 0 && at(some, i) == at(all, 4 + i));
    }
    close_place(&p);
}

// Weights larger than one buffer are in several, behind one handle.
static void weights_in_a_multi_buffer(void) {
    OPEN(p, "SIM:name=A,max=1k CPU");
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 4096, NULL, true });
    struct ggml_tensor * w[5];
    for (int i = 0; i < 5; i++) {
        w[i] = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 100, 1);
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, p.backends[0]);
    REQUIRE(buffer);
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    struct ggml_tensor *x = leaf(&p, "x", 100, 1), *y = x;
    for (int i = 0; i < 5; i++) {
        fill(w[i], (float) i, 0);
        y = ggml_add(p.ctx, y, w[i]);
    }
    expand(&p, y);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 1, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(y, 99, 11);
    CHECK_STR(splits(&p), "A:0-5");
    for (int i = 0; i < p.graph->n_nodes; i++) {
        CHECK(strstr(ggml_backend_sched_explain(p.sched, p.graph->nodes[i]), "weight") != NULL);
    }
    ggml_free(ctx);
    ggml_backend_buffer_free(buffer);
    close_place(&p);
}

// Two backends share one kind of memory: several splits, no copies.
static void two_cpus_share_memory(void) {
    OPEN(p, "CPU CPU");
    struct ggml_tensor *x = leaf(&p, "x", 4, 1), *a = ggml_sqr(p.ctx, x), *b = ggml_scale_inplace(p.ctx, a, 2),
                       *c = ggml_sqr(p.ctx, b);
    expand(&p, c);
    OK(ggml_backend_sched_set_node_backend(p.sched, a, p.backends[0]));
    OK(ggml_backend_sched_set_node_backend(p.sched, b, p.backends[1]));
    OK(ggml_backend_sched_set_node_backend(p.sched, c, p.backends[0]));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 3, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_STR(splits(&p), "CPU:0-1 CPU:1-2 CPU:2-3");
    CHECK_AT(c, 3, 324);
    close_place(&p);
}

// ----------------------------------------------------------------------------------- failures at random, results right

enum { GRAPHS = 6, ACTIONS = 60 };

struct trial {
    struct random_graph g;
    float expected[RANDOM_MAX]; // the first value of each result
};

static void set_leafs(const struct random_graph * g, int salt) {
    for (int i = 0; i < g->n_leafs; i++) {
        float values[RANDOM_COLUMNS * RANDOM_ROWS];
        const int n = (int) ggml_nelements(g->leafs[i]);
        for (int k = 0; k < n; k++) {
            values[k] = (float) ((i * 31 + k * 7 + salt) % 19 - 9) / 8;
        }
        if (g->leafs[i]->data) { // otherwise the graph does not use it
            OK(ggml_backend_tensor_set(g->leafs[i], values, 0, ggml_nbytes(g->leafs[i])));
        }
    }
}

static bool make_trial(struct trial * t, ggml_backend_t cpu) {
    const struct random_graph_params params = { (int) test_random_int(1, 60), true, false, true };
    const uint64_t seed = test_random();
    struct random_graph r;
    test_seed = seed;
    if (!random_graph_make(&r, params)) {
        return false;
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(r.ctx, cpu);
    set_leafs(&r, 5);
    CHECK(ggml_backend_graph_compute(cpu, r.graph));
    for (int i = 0; i < r.graph->n_nodes; i++) {
        t->expected[i] = at(r.graph->nodes[i], 0);
    }
    ggml_backend_buffer_free(buffer);
    random_graph_free(&r);
    test_seed = seed;
    return random_graph_make(&t->g, params);
}

static bool is_kept(const struct ggml_cgraph * graph, const struct ggml_tensor * t) {
    for (int j = 0; j < graph->n_nodes; j++) {
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            if (graph->nodes[j]->src[s] == t && !ggml_is_output(t)) {
                return false;
            }
        }
    }
    return true;
}

static void compare(const struct trial * t) {
    for (int i = 0; i < t->g.graph->n_nodes; i++) {
        if (is_kept(t->g.graph, t->g.graph->nodes[i])) {
            const float value = at(t->g.graph->nodes[i], 0);
            CHECK_MSG(memcmp(&value, &t->expected[i], sizeof(value)) == 0, "node %d is %g, expected %g", i,
                (double) value, (double) t->expected[i]);
        }
    }
}

static void start_trouble(void) { // from here on some allocation may fail
    gb_test_fail_alloc(test_random_int(0, 2) ? 0 : test_random_int(1, 60), false);
}

static bool end_trouble(enum ggml_status status, const char * call) {
    gb_test_fail_alloc(0, false);
    CHECK_MSG(status == GGML_STATUS_SUCCESS || status == GGML_STATUS_ALLOC_FAILED, "%s: %s", call, ggml_last_error());
    return status == GGML_STATUS_SUCCESS;
}

#define DISTURBED(call) (start_trouble(), end_trouble((call), #call))

// A random action on the graph. True if the graph was computed.
static bool disturb(struct place * p, const struct trial * t) {
    const int64_t what = test_random_int(0, 9);
    if (what == 0) {
        OK(ggml_backend_sched_reset(p->sched));
    } else if (what == 1 && t->g.graph->n_nodes > 0) {
        struct ggml_tensor * node = t->g.graph->nodes[test_random_int(0, t->g.graph->n_nodes - 1)];
        const ggml_backend_t device = p->backends[test_random_int(0, p->n - 1)];
        if (ggml_backend_supports_op(device, node)) {
            (void) DISTURBED(ggml_backend_sched_set_node_backend(p->sched, node, device));
        }
    } else if (what == 2) {
        (void) DISTURBED(ggml_backend_sched_reserve(p->sched, t->g.graph));
    }
    if (!DISTURBED(ggml_backend_sched_alloc_graph(p->sched, t->g.graph))) {
        return false;
    }
    set_leafs(&t->g, 5);
    if (!DISTURBED(ggml_backend_sched_graph_compute(p->sched, t->g.graph))) {
        return false;
    }
    compare(t);
    return true;
}

static void failures_at_random(void) {
    int n_computed = 0, n_refused = 0;
    for (int round = 0; round < 20; round++) {
        char devices[256];
        snprintf(devices, sizeof(devices),
            "SIM:name=A,mem=%dk,noops=mul_mat SIM:name=B,mem=%dk,align=256,noops=soft_max+scale CPU",
            8 << test_random_int(0, 4), 8 << test_random_int(0, 4));
        OPEN(p, devices);
        static struct trial trials[GRAPHS];
        for (int i = 0; i < GRAPHS; i++) {
            REQUIRE(make_trial(&trials[i], p.backends[2]));
        }
        for (int k = 0; k < ACTIONS; k++) {
            if (disturb(&p, &trials[test_random_int(0, GRAPHS - 1)])) {
                n_computed++;
            } else {
                n_refused++;
            }
        }
        for (int i = 0; i < GRAPHS; i++) {
            random_graph_free(&trials[i].g);
        }
        close_place(&p);
    }
    CHECK(n_computed > 300);
    CHECK(n_refused > 100);
}

TEST_MAIN(TEST(nodes_out_of_order), TEST(cache_between_devices), TEST(write_back_waits_for_readers),
    TEST(scheduler_is_replaced), TEST(quantized_rows_between_devices), TEST(weights_in_a_multi_buffer),
    TEST(two_cpus_share_memory), TEST(failures_at_random))
