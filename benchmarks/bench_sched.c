// bench_sched.c - measures what the scheduler adds to the computation: the overhead of a run, the time of new plans, of
// plans for other sizes and of checks of tensors, and the copies and allocations of a second run.
//
// The graph has 1,000 nodes: layers of a small transformer with matrices of 8 x 8, on one thread. Its computation is
// short, so the overhead is visible. The overhead of a run is the shortest run through the scheduler minus the shortest
// run of the prepared graph by the backend alone. The two alternate, so a busy machine affects both.
//
//     bench_sched                  measures all of these, and fails if one exceeds its limit
//     bench_sched nodes [N...]     plans graphs of N nodes (1,000, 30,000 and 1,000,000), in which each layer has its
//                                  own weights: microseconds a node, the median of five plans
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "tensor/tensor.h"
#include "timing.h"

enum { D = 8, LAYERS = 50, TOKENS = 4, ROUNDS = 400 };

struct model {
    struct ggml_context * ctx;
    struct ggml_tensor * w[LAYERS][4];
    ggml_backend_buffer_t buffer;
};

struct net {
    struct ggml_context * ctx;
    struct ggml_cgraph * graph;
    struct ggml_tensor * x;
};

static void need(bool ok, const char * what) {
    if (!ok) {
        fprintf(stderr, "%s: %s\n", what, ggml_last_error());
        exit(1);
    }
}

static struct model new_model(ggml_backend_t backend) {
    struct model m = { .ctx = ggml_init((struct ggml_init_params){ 1 << 20, NULL, true }) };
    need(m.ctx != NULL, "context");
    for (int i = 0; i < LAYERS * 4; i++) {
        m.w[i / 4][i % 4] = ggml_new_tensor_2d(m.ctx, GGML_TYPE_F32, D, D);
    }
    m.buffer = ggml_backend_alloc_ctx_tensors(m.ctx, backend);
    need(m.buffer != NULL, "weights");
    ggml_backend_buffer_set_usage(m.buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_clear(m.buffer, 0);
    return m;
}

static void free_model(struct model * m) {
    ggml_backend_buffer_free(m->buffer);
    ggml_free(m->ctx);
}

// Adds a layer of 20 nodes.
static struct ggml_tensor * layer(struct ggml_context * ctx, struct ggml_tensor * const * w, struct ggml_tensor * x) {
    struct ggml_tensor *h = ggml_rms_norm(ctx, x, 1e-5f), *q = ggml_mul_mat(ctx, w[0], h),
                       *k = ggml_mul_mat(ctx, w[1], h);
    struct ggml_tensor * v = ggml_cont(ctx, ggml_transpose(ctx, ggml_mul_mat(ctx, w[2], h)));
    struct ggml_tensor * a = ggml_soft_max(ctx, ggml_scale(ctx, ggml_mul_mat(ctx, k, q), 0.3f));
    struct ggml_tensor * y = ggml_add(ctx, ggml_mul_mat(ctx, w[3], ggml_mul_mat(ctx, v, a)), x);
    struct ggml_tensor *g = ggml_rms_norm(ctx, y, 1e-5f),
                       *f = ggml_mul(ctx, ggml_silu(ctx, ggml_mul_mat(ctx, w[0], g)), ggml_mul_mat(ctx, w[1], g));
    return ggml_add(ctx, ggml_scale(ctx, ggml_mul_mat(ctx, w[2], f), 0.5f), y);
}

static struct net new_net(const struct model * m, int tokens) {
    struct net n = { .ctx = ggml_init((struct ggml_init_params){ 1 << 20, NULL, true }) };
    n.graph = ggml_new_graph(n.ctx);
    n.x = ggml_new_tensor_2d(n.ctx, GGML_TYPE_F32, D, tokens);
    struct ggml_tensor * x = n.x;
    for (int i = 0; i < LAYERS; i++) {
        x = layer(n.ctx, m->w[i], x);
    }
    need(ggml_build_forward_expand(n.graph, x) == GGML_STATUS_SUCCESS, "graph");
    return n;
}

static void set_input(const struct net * n) {
    const float values[D * TOKENS] = { 1, 2, 3 };
    need(ggml_backend_tensor_set(n->x, values, 0, ggml_nbytes(n->x)) == GGML_STATUS_SUCCESS, "input");
}

static void since(struct bench_shortest * best, double start) { bench_add(best, bench_now(1) - start); }

// Measures the overhead of a run: the scheduler, and the backend with a graph that is placed and prepared.
static bool bench_run(void) {
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, 1);
    struct model m = new_model(backend);
    struct net n = new_net(&m, TOKENS);
    ggml_backend_sched_t sched = ggml_backend_sched_new(&backend, NULL, 1, 0);
    need(ggml_backend_sched_alloc_graph(sched, n.graph) == GGML_STATUS_SUCCESS, "alloc");
    set_input(&n);
    ggml_backend_graph_plan_t plan = ggml_backend_graph_plan_create(backend, n.graph);
    struct bench_shortest alone = { 0 }, with = { 0 };
    for (int i = 0; i < ROUNDS; i++) {
        double start = bench_now(1);
        need(ggml_backend_graph_plan_compute(backend, plan) == GGML_STATUS_SUCCESS, "plan");
        since(&alone, start);
        start = bench_now(1);
        need(ggml_backend_sched_graph_compute(sched, n.graph) == GGML_STATUS_SUCCESS, "compute");
        since(&with, start);
    }
    const double overhead = (with.seconds - alone.seconds) * 1e6;
    printf("run: %d nodes, backend alone %.1f us, scheduler %.1f us: overhead %.1f us (limit 20)\n", n.graph->n_nodes,
        alone.seconds * 1e6, with.seconds * 1e6, overhead);
    ggml_backend_graph_plan_free(backend, plan);
    ggml_backend_sched_free(sched);
    ggml_free(n.ctx);
    free_model(&m);
    ggml_backend_free(backend);
    return overhead < 20;
}

static ggml_backend_sched_t new_sched(ggml_backend_t * backends, int n) {
    ggml_backend_sched_t sched = ggml_backend_sched_new(backends, NULL, n, 0);
    need(sched != NULL, "scheduler");
    return sched;
}

// Measures plans of a new structure, and of a smaller graph with the same structure.
static bool bench_plan(const char * name, ggml_backend_t * backends, int n_backends, double limit_ms) {
    struct model m = new_model(backends[n_backends - 1]);
    struct net large = new_net(&m, TOKENS), small = new_net(&m, TOKENS - 1);
    ggml_backend_sched_t sched = new_sched(backends, n_backends);
    struct bench_shortest made = { 0 }, replayed = { 0 };
    for (int i = 0; i < ROUNDS / 4; i++) {
        struct ggml_backend_sched_stats stats;
        need(ggml_backend_sched_reset(sched) == GGML_STATUS_SUCCESS &&
                 ggml_backend_sched_reset_stats(sched) == GGML_STATUS_SUCCESS,
            "reset");
        double start = bench_now(1);
        need(ggml_backend_sched_reserve(sched, large.graph) == GGML_STATUS_SUCCESS, "reserve");
        since(&made, start);
        start = bench_now(1);
        need(ggml_backend_sched_reserve(sched, small.graph) == GGML_STATUS_SUCCESS, "reserve");
        since(&replayed, start);
        need(ggml_backend_sched_get_stats(sched, &stats) == GGML_STATUS_SUCCESS && stats.n_plans_made == 1 &&
                 stats.n_plans_replayed == 1,
            "plans");
    }
    printf("plan on %s: %d nodes, new %.3f ms (limit %.0f), other sizes %.3f ms\n", name, large.graph->n_nodes,
        made.seconds * 1e3, limit_ms, replayed.seconds * 1e3);
    ggml_backend_sched_free(sched);
    ggml_free(large.ctx);
    ggml_free(small.ctx);
    free_model(&m);
    return made.seconds * 1e3 < limit_ms;
}

static int by_size(const void * a, const void * b) {
    const double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

// Measures a new plan and its first run, with and without the check of fields that programs may have written. Both
// alternate; the median of the ratios counts.
static bool bench_look(const char * name, ggml_backend_t * backends, int n_backends, double limit_percent) {
    enum { ROUNDS_OF_TWO = 2 * ROUNDS, OF_EACH = 4 };
    static double more[ROUNDS_OF_TWO];
    struct model m = new_model(backends[n_backends - 1]);
    struct net n = new_net(&m, TOKENS);
    ggml_backend_sched_t sched = new_sched(backends, n_backends);
    for (int i = 0; i < ROUNDS_OF_TWO; i++) {
        struct bench_shortest took[2] = { { 0 }, { 0 } };
        for (int k = 0; k < 2 * OF_EACH; k++) {
            const bool trust = (k + i) % 2 != 0;
            need(ggml_backend_sched_reset(sched) == GGML_STATUS_SUCCESS, "reset");
            gb_trust_tensors(trust);
            const double start = bench_now(1);
            need(ggml_backend_sched_graph_compute(sched, n.graph) == GGML_STATUS_SUCCESS, "run");
            since(&took[trust], start);
            gb_trust_tensors(false);
        }
        more[i] = 100 * (took[false].seconds / took[true].seconds - 1);
    }
    qsort(more, ROUNDS_OF_TWO, sizeof(*more), by_size);
    printf("checking the tensors of a new plan on %s: %.2f %% of the plan and its first run (limit %.0f; half of the "
           "rounds %.2f to %.2f)\n",
        name, more[ROUNDS_OF_TWO / 2], limit_percent, more[ROUNDS_OF_TWO / 4], more[ROUNDS_OF_TWO * 3 / 4]);
    ggml_backend_sched_free(sched);
    ggml_free(n.ctx);
    free_model(&m);
    return more[ROUNDS_OF_TWO / 2] < limit_percent;
}

// A simulated device computes all nodes, and the weights are in the CPU's memory. Checks that the second run copies no
// weights and allocates nothing.
static bool bench_second_run(ggml_backend_t * backends) {
    struct model m = new_model(backends[1]);
    struct net n = new_net(&m, TOKENS);
    ggml_backend_sched_t sched = new_sched(backends, 2);
    for (int i = 0; i < n.graph->n_nodes; i++) {
        need(ggml_backend_sched_set_node_backend(sched, n.graph->nodes[i], backends[0]) == GGML_STATUS_SUCCESS,
            "assignment");
    }
    need(ggml_backend_sched_alloc_graph(sched, n.graph) == GGML_STATUS_SUCCESS, "alloc");
    set_input(&n);
    struct ggml_backend_sched_stats first, second;
    need(ggml_backend_sched_graph_compute(sched, n.graph) == GGML_STATUS_SUCCESS &&
             ggml_backend_sched_get_stats(sched, &first) == GGML_STATUS_SUCCESS,
        "first run");
    ggml_backend_sched_reset_stats(sched);
    gb_test_fail_alloc(1, true); // every allocation fails from now on, and is noticed
    const enum ggml_status status = ggml_backend_sched_graph_compute(sched, n.graph);
    const bool asked = gb_test_alloc_failed();
    gb_test_fail_alloc(0, false);
    need(status == GGML_STATUS_SUCCESS && ggml_backend_sched_get_stats(sched, &second) == GGML_STATUS_SUCCESS,
        "second run");
    printf("first run: %llu bytes of weights copied; second run: %llu, memory allocated: %s\n",
        (unsigned long long) first.weights.bytes, (unsigned long long) second.weights.bytes, asked ? "yes" : "no");
    ggml_backend_sched_free(sched);
    ggml_free(n.ctx);
    free_model(&m);
    return second.weights.bytes == 0 && first.weights.bytes > 0 && !asked;
}

// Measures a new plan of a graph with about n nodes. Each layer has its own weights, and one buffer has all weights.
static void bench_nodes(ggml_backend_t backend, size_t n) {
    enum { NODES_A_LAYER = 20, TENSORS_A_LAYER = 24, TIMES = 5 };
    const size_t layers = GB_MAX(n / NODES_A_LAYER, 1);
    const struct ggml_init_params params = { (layers + 1) * TENSORS_A_LAYER * 2 * ggml_tensor_overhead(), NULL, true };
    struct ggml_context *of_weights = ggml_init(params), *ctx = ggml_init(params);
    struct ggml_tensor *(*w)[4] = gb_calloc(layers, sizeof(*w));
    need(of_weights && ctx && w, "contexts");
    for (size_t i = 0; i < layers * 4; i++) {
        w[i / 4][i % 4] = ggml_new_tensor_2d(of_weights, GGML_TYPE_F32, D, D);
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(of_weights, backend);
    struct ggml_cgraph * graph = ggml_new_graph_custom(ctx, layers * TENSORS_A_LAYER + 1, false);
    struct ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, D, TOKENS);
    need(buffer && graph && x, "graph");
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (size_t i = 0; i < layers; i++) {
        x = layer(ctx, w[i], x);
    }
    need(ggml_build_forward_expand(graph, x) == GGML_STATUS_SUCCESS, "graph");
    ggml_backend_sched_t sched = new_sched(&backend, 1);
    double took[TIMES];
    for (int i = 0; i < TIMES; i++) {
        need(ggml_backend_sched_reset(sched) == GGML_STATUS_SUCCESS, "reset");
        const double start = bench_now(1);
        need(ggml_backend_sched_reserve(sched, graph) == GGML_STATUS_SUCCESS, "reserve");
        took[i] = 1e6 * (bench_now(1) - start) / graph->n_nodes;
    }
    qsort(took, TIMES, sizeof(*took), by_size);
    printf("plan of %d nodes on CPU: %.3f us a node (%.3f to %.3f)\n", graph->n_nodes, took[TIMES / 2], took[0],
        took[TIMES - 1]);
    ggml_backend_sched_free(sched);
    ggml_free(ctx);
    ggml_backend_buffer_free(buffer);
    ggml_free(of_weights);
    gb_free(w);
}

static int bench_all_nodes(int n, char ** numbers) {
    static const size_t usual[] = { 1000, 30000, 1000000 };
    ggml_backend_t backend = ggml_backend_cpu_init();
    need(backend != NULL, "device");
    for (int k = 0; k < (n > 0 ? n : (int) GB_ARRAY_LEN(usual)); k++) {
        bench_nodes(backend, n > 0 ? (size_t) strtoull(numbers[k], NULL, 10) : usual[k]);
    }
    ggml_backend_free(backend);
    return 0;
}

int main(int argc, char ** argv) {
    if (argc > 1 && strcmp(argv[1], "nodes") == 0) {
        return bench_all_nodes(argc - 2, argv + 2);
    }
    ggml_backend_t backends[2] = { ggml_backend_reg_init_backend_from_str("SIM"), ggml_backend_cpu_init() };
    need(backends[0] && backends[1], "devices");
    ggml_backend_cpu_set_n_threads(backends[1], 1);
    bool ok = bench_run();
    ok &= bench_plan("CPU", backends + 1, 1, 2);
    ok &= bench_plan("SIM and CPU", backends, 2, 2);
    ok &= bench_look("CPU", backends + 1, 1, 2);
    ok &= bench_look("SIM and CPU", backends, 2, 2);
    ok &= bench_second_run(backends);
    ggml_backend_free(backends[0]);
    ggml_backend_free(backends[1]);
    printf("%s\n", ok ? "all within their limits" : "NOT within the limits");
    return ok ? 0 : 1;
}
