// test_sched.c - random graphs, spread over CUDA devices and the CPU by the scheduler, against the CPU alone.
//
// The same seed builds the same graph and input twice. Nodes are placed at random, or by the scheduler.
// GGML_TEST_RANDOM_GRAPHS sets the number of graphs.
#include "cuda_test.h"
#include "ggml-cpu.h"

enum { MAX_NODES = 24, MAX_LEAVES = 6 };

struct random_graph {
    struct ggml_context * ctx;
    struct ggml_cgraph * graph;
    struct ggml_tensor * leaf[MAX_LEAVES];
    int n_leaves;
    struct ggml_tensor * value[MAX_NODES + MAX_LEAVES]; // all f32, contiguous matrices
    int n_values;
};

static struct ggml_tensor * pick(const struct random_graph * g) {
    return g->value[test_random_int(0, g->n_values - 1)];
}

static struct ggml_tensor * leaf(struct random_graph * g, enum ggml_type type, int64_t ne0, int64_t ne1) {
    if (g->n_leaves == MAX_LEAVES) {
        return NULL;
    }
    return g->leaf[g->n_leaves++] = ggml_new_tensor_2d(g->ctx, type, ne0, ne1);
}

static struct ggml_tensor * random_node(struct random_graph * g) {
    struct ggml_tensor * x = pick(g);
    struct ggml_tensor * y = pick(g);
    struct ggml_tensor * w;
    switch (test_random_int(0, 10)) {
        case 0: return ggml_scale(g->ctx, x, 0.5f);
        case 1: return ggml_are_same_shape(x, y) ? ggml_add(g->ctx, x, y) : ggml_silu(g->ctx, x);
        case 2: return ggml_are_same_shape(x, y) ? ggml_mul(g->ctx, x, y) : ggml_gelu(g->ctx, x);
        case 3: return ggml_rms_norm(g->ctx, x, 1e-5f);
        case 4: return ggml_soft_max(g->ctx, x);
        case 5: return ggml_cont(g->ctx, ggml_transpose(g->ctx, x));
        case 6:
            w = leaf(g, GGML_TYPE_F16, x->ne[0], test_random_int(1, 40));
            return w ? ggml_mul_mat(g->ctx, w, x) : ggml_sqr(g->ctx, x);
        case 7:
            w = leaf(g, GGML_TYPE_F32, x->ne[0], test_random_int(1, 40));
            return w ? ggml_mul_mat(g->ctx, w, x) : ggml_relu(g->ctx, x);
        case 8:
            return x->ne[1] > 2 ? ggml_cont(g->ctx, ggml_view_2d(g->ctx, x, x->ne[0], x->ne[1] - 2, x->nb[1], x->nb[1]))
                                : ggml_neg(g->ctx, x);
        case 9: return x->ne[1] <= 64 ? ggml_mul_mat(g->ctx, x, x) : ggml_tanh(g->ctx, x);
        default: return ggml_norm(g->ctx, x, 1e-5f);
    }
}

static struct random_graph build(uint64_t seed) {
    struct random_graph g = { 0 };
    test_seed = seed;
    g.ctx =
        ggml_init((struct ggml_init_params){ 256 * ggml_tensor_overhead() + 2 * ggml_graph_overhead(), NULL, true });
    g.value[g.n_values++] = leaf(&g, GGML_TYPE_F32, test_random_int(1, 70), test_random_int(1, 20));
    if (test_random_int(0, 1)) {
        g.value[g.n_values++] = leaf(&g, GGML_TYPE_F32, g.value[0]->ne[0], g.value[0]->ne[1]);
    }
    const int n = (int) test_random_int(2, MAX_NODES);
    for (int i = 0; i < n; i++) {
        struct ggml_tensor * t = random_node(&g);
        ggml_format_name(t, "n%d", i);
        g.value[g.n_values++] = t;
    }
    for (int i = 0; i < g.n_leaves; i++) {
        ggml_format_name(g.leaf[i], "leaf%d", i);
        ggml_set_input(g.leaf[i]);
    }
    g.graph = ggml_new_graph(g.ctx);
    ggml_build_forward_expand(g.graph, g.value[g.n_values - 1]);
    return g;
}

static void fill(struct random_graph * g, uint64_t seed) {
    static char bytes[1 << 16];
    test_seed = seed;
    for (int i = 0; i < g->n_leaves; i++) {
        struct ggml_tensor * t = g->leaf[i];
        const int64_t n = ggml_nelements(t);
        for (int64_t k = 0; k < n; k++) {
            const float x = test_random_float(-1, 1);
            if (t->type == GGML_TYPE_F16) {
                ((ggml_fp16_t *) bytes)[k] = ggml_fp32_to_fp16(x);
            } else {
                ((float *) bytes)[k] = x;
            }
        }
        if (t->buffer != NULL || t->data != NULL) { // leaves that the result does not need have no memory
            CHECK_INT(ggml_backend_tensor_set(t, bytes, 0, ggml_nbytes(t)), GGML_STATUS_SUCCESS);
        }
    }
}

static void result_of(const struct random_graph * g, float * to) {
    const struct ggml_tensor * y = g->value[g->n_values - 1];
    CHECK_INT(ggml_backend_tensor_get(y, to, 0, ggml_nbytes(y)), GGML_STATUS_SUCCESS);
}

// Relative to the size of the whole result, because norms of values that almost cancel are inexact.
static double distance(const float * a, const float * b, int64_t n) {
    double d = 0, s = 0;
    for (int64_t i = 0; i < n; i++) {
        d += ((double) a[i] - b[i]) * ((double) a[i] - b[i]);
        s += (double) a[i] * a[i];
    }
    return sqrt(d) / (sqrt(s) + 1e-9);
}

static size_t most_reported[2]; // scratch memory of the devices that any plan reported

static void compare(uint64_t seed, ggml_backend_t * backends, int n_backends) {
    static float wanted[1 << 14], got[1 << 14];
    struct random_graph a = build(seed), b = build(seed);
    ggml_backend_sched_t alone = ggml_backend_sched_new(&backends[n_backends - 1], NULL, 1, 256);
    ggml_backend_sched_t spread = ggml_backend_sched_new(backends, NULL, n_backends, 256);
    const int64_t n = ggml_nelements(a.value[a.n_values - 1]);
    REQUIRE(n <= 1 << 14);
    test_seed = seed + 1;
    for (int i = 0; seed % 3 != 0 && i < b.graph->n_nodes; i++) {
        struct ggml_tensor * node = b.graph->nodes[i];
        const int k = (int) test_random_int(0, n_backends - 1);
        if (ggml_backend_supports_op(backends[k], node)) {
            ggml_backend_sched_set_node_backend(spread, node, backends[k]);
        }
    }
    CHECK_INT(ggml_backend_sched_alloc_graph(alone, a.graph), GGML_STATUS_SUCCESS);
    for (int run = 0; run < 4; run++) { // launched, recorded, replayed
        CHECK_INT(ggml_backend_sched_alloc_graph(spread, b.graph), GGML_STATUS_SUCCESS);
        fill(&a, seed + 10 + (uint64_t) run);
        fill(&b, seed + 10 + (uint64_t) run);
        CHECK_INT(ggml_backend_sched_graph_compute(alone, a.graph), GGML_STATUS_SUCCESS);
        CHECK_INT(ggml_backend_sched_graph_compute(spread, b.graph), GGML_STATUS_SUCCESS);
        result_of(&a, wanted);
        result_of(&b, got);
        const double d = distance(wanted, got, n);
        CHECK_MSG(d < 2e-3, "graph %llu, run %d: distance %g", (unsigned long long) seed, run, d);
    }
    for (int k = 0; k < n_backends - 1; k++) {
        const size_t reported = ggml_backend_sched_get_work_size(spread, backends[k]);
        size_t * most = &most_reported[k + 3 - n_backends];
        *most = reported > *most ? reported : *most;
    }
    ggml_backend_sched_free(alone);
    ggml_backend_sched_free(spread);
    ggml_free(a.ctx);
    ggml_free(b.ctx);
}

static void random_graphs_agree_with_the_cpu(void) {
    CUDA_OR_SKIP();
    const char * given = getenv("GGML_TEST_RANDOM_GRAPHS");
#ifdef GB_CUDA_EMULATED
    const int n = given ? atoi(given) : 60;
#else
    const int n = given ? atoi(given) : 500;
#endif
    const int last = ggml_backend_cuda_get_device_count() - 1;
    ggml_backend_t backends[3] = { cuda_open(0), cuda_open(last), ggml_backend_cpu_init() };
    const size_t before[2] = { cuda_free_memory(0), cuda_free_memory(last) };
    for (int i = 1; i <= n && test_failures < 5; i++) {
        compare((uint64_t) i * 100, backends, 3);
        compare((uint64_t) i * 100 + 50, backends + 1, 2);
    }
    struct ggml_backend_cuda_graph_stats s = { 0 };
    CHECK_INT(ggml_backend_cuda_get_graph_stats(backends[0], &s), GGML_STATUS_SUCCESS);
    CHECK(n < 5 || s.n_eager > 0); // the devices had work
    CHECK(n < 5 || !cuda_replays() || (s.n_captured > 0 && s.n_replayed > 0));
    for (int k = 0; k < 2 && last > 0; k++) {
        cuda_check_work_size("random graphs", before[k] - cuda_free_memory(k == 0 ? 0 : last), most_reported[k],
            CUDA_WORK_POOLED);
        CHECK(n < 5 || most_reported[k] > 0);
    }
    for (int i = 0; i < 3; i++) {
        ggml_backend_free(backends[i]);
    }
}

// In the emulation, draws the order of all work again.
static void every_order_of_work_agrees(void) {
    CUDA_OR_SKIP();
#ifdef GB_CUDA_EMULATED
    ggml_backend_t backends[3] = { cuda_open(0), cuda_open(1), ggml_backend_cpu_init() };
    for (uint64_t seed = 1; seed <= 20 && test_failures < 5; seed++) {
        gb_emu_set_seed(seed);
        compare(700, backends, 3);
    }
    for (int i = 0; i < 3; i++) {
        ggml_backend_free(backends[i]);
    }
#else
    SKIP("the order of a device is its own");
#endif
}

TEST_MAIN(TEST(random_graphs_agree_with_the_cpu), TEST(every_order_of_work_agrees))
