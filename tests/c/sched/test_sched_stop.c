// Runs that are cancelled while they wait: nothing stays pending, and the next run is right. Covers
// copies of inputs and weights, splits, write-backs, and several pending runs.
#include "test.h"

#include "base/current.h"
#include "base/env.h"
#include "ggml-alloc.h"
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "sim/sim.h"

enum { N = 12, INPUTS = 3, WEIGHTS = 3, NODES = 14, BACKENDS = 3 };

static uint32_t state;

static unsigned draw(unsigned n) {
    state = state * 1664525 + 1013904223;
    return (state >> 8) % n;
}

struct scene { // a graph and its scheduler
    ggml_backend_t backends[BACKENDS];
    int n_backends;
    ggml_backend_sched_t sched;
    struct ggml_context *ctx, *fixed;
    ggml_backend_buffer_t buffer; // of the weights
    struct ggml_tensor *inputs[INPUTS], *weights[WEIGHTS], *nodes[NODES];
    struct ggml_cgraph * graph;
};

static void build(struct scene * w, uint32_t seed) {
    const uint32_t kept = state;
    struct ggml_tensor * all[INPUTS + WEIGHTS + NODES];
    int n = 0;
    state = seed;
    w->fixed = ggml_init((struct ggml_init_params){ 1u << 16, NULL, true });
    w->ctx = ggml_init((struct ggml_init_params){ 1u << 20, NULL, true });
    for (int i = 0; i < WEIGHTS; i++) {
        all[n++] = w->weights[i] = ggml_new_tensor_2d(w->fixed, GGML_TYPE_F32, N, N);
    }
    for (int i = 0; i < INPUTS; i++) {
        all[n++] = w->inputs[i] = ggml_new_tensor_2d(w->ctx, GGML_TYPE_F32, N, N);
        ggml_set_input(w->inputs[i]); // may be set while runs are pending
    }
    for (int i = 0; i < NODES; i++) {
        struct ggml_tensor *a = all[draw((unsigned) n)], *b = all[draw((unsigned) n)];
        switch (draw(4)) {
            case 0: w->nodes[i] = ggml_add(w->ctx, a, b); break;
            case 1: w->nodes[i] = ggml_soft_max(w->ctx, a); break;
            case 2: w->nodes[i] = ggml_scale(w->ctx, ggml_mul_mat(w->ctx, a, b), 0.1f); break;
            default: w->nodes[i] = ggml_sub(w->ctx, b, a); break;
        }
        all[n++] = w->nodes[i];
    }
    w->graph = ggml_new_graph(w->ctx);
    for (int i = 0; i < NODES; i++) {
        ggml_set_output(w->nodes[i]); // all are outputs
        ggml_build_forward_expand(w->graph, w->nodes[i]);
    }
    w->buffer = ggml_backend_alloc_ctx_tensors(w->fixed, w->backends[w->n_backends - 1]);
    ggml_backend_buffer_set_usage(w->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    w->sched = ggml_backend_sched_new(w->backends, NULL, w->n_backends, 0);
    state = kept;
}

static bool open_scene(struct scene * w, const char * const * devices, int n, uint32_t seed) {
    *w = (struct scene){ .n_backends = n };
    for (int i = 0; i < n; i++) {
        w->backends[i] = ggml_backend_reg_init_backend_from_str(devices[i]);
        if (w->backends[i] == NULL) {
            return false;
        }
    }
    build(w, seed);
    return w->sched != NULL && w->buffer != NULL;
}

static void close_scene(struct scene * w) {
    ggml_backend_sched_free(w->sched);
    ggml_backend_buffer_free(w->buffer);
    ggml_free(w->ctx);
    ggml_free(w->fixed);
    for (int i = 0; i < w->n_backends; i++) {
        ggml_backend_free(w->backends[i]);
    }
}

static void spread(struct scene * w, uint32_t seed) { // some nodes are assigned to a device
    const uint32_t kept = state;
    state = seed;
    for (int i = 0; i < NODES; i++) {
        if (draw(2)) {
            ggml_backend_sched_set_node_backend(w->sched, w->nodes[i], w->backends[draw((unsigned) w->n_backends)]);
        }
    }
    state = kept;
}

static enum ggml_status set(struct ggml_tensor * t, uint32_t seed) {
    float x[N * N];
    for (int i = 0; i < N * N; i++) {
        seed = seed * 1664525 + 1013904223;
        x[i] = (float) (seed >> 8) / (1 << 24) - 0.5f;
    }
    return ggml_backend_tensor_set(t, x, 0, sizeof(x));
}

static enum ggml_status set_inputs(struct scene * w, uint32_t seed) {
    const enum ggml_status status = ggml_backend_sched_alloc_graph(w->sched, w->graph);
    enum ggml_status last = status;
    for (uint32_t i = 0; i < INPUTS && last == GGML_STATUS_SUCCESS; i++) {
        last = w->inputs[i]->buffer != NULL ? set(w->inputs[i], seed + i) : last; // not all are used
    }
    return last;
}

static enum ggml_status set_weights(struct scene * w, uint32_t seed) {
    for (uint32_t i = 0; i < WEIGHTS; i++) {
        const enum ggml_status status = set(w->weights[i], seed + 100 + i);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
    }
    return GGML_STATUS_SUCCESS;
}

static bool enough(void * data) { return --*(int *) data <= 0; } // true from the n-th poll on

static void compare(struct scene * w, struct scene * oracle, const char * what, unsigned round) {
    float x[N * N], want[N * N];
    for (int i = 0; i < NODES; i++) {
        CHECK_INT(ggml_backend_tensor_get(w->nodes[i], x, 0, sizeof(x)), GGML_STATUS_SUCCESS);
        CHECK_INT(ggml_backend_tensor_get(oracle->nodes[i], want, 0, sizeof(want)), GGML_STATUS_SUCCESS);
        CHECK_MSG(memcmp(x, want, sizeof(x)) == 0, "%s, round %u: node %d (%s) is wrong", what, round, i,
            ggml_op_desc(w->nodes[i]));
    }
}

static void check_idle(struct scene * w) { // without a poll the wait would take seconds
    for (int i = 0; i < w->n_backends; i++) {
        CHECK_INT(ggml_backend_synchronize(w->backends[i]), GGML_STATUS_SUCCESS);
    }
}

// `n_pending` graphs at a time. Aborts at a random poll.
static void give_up_often(const char * const * devices, int n, int n_pending, unsigned rounds, uint32_t seed) {
    static const char * const cpu[] = { "CPU:threads=1" };
    struct scene w, oracle;
    unsigned n_aborted = 0;
    ggml_graph_set_fusion(false); // the same bits for any placement
    REQUIRE(open_scene(&w, devices, n, seed));
    REQUIRE(open_scene(&oracle, cpu, 1, seed));
    CHECK_INT(ggml_backend_sched_set_n_copies(w.sched, n_pending), GGML_STATUS_SUCCESS);
    spread(&w, seed + 1);
    CHECK_INT(set_weights(&w, seed), GGML_STATUS_SUCCESS);
    CHECK_INT(set_weights(&oracle, seed), GGML_STATUS_SUCCESS);
    for (unsigned round = 0; round < rounds; round++) {
        const uint32_t values = draw(1u << 20);
        if (draw(3) == 0) {
            CHECK_INT(set_weights(&w, values), GGML_STATUS_SUCCESS);
            CHECK_INT(set_weights(&oracle, values), GGML_STATUS_SUCCESS);
        }
        int left = round == 0 ? 1 : 1 + (int) draw(6);
        enum ggml_status status = GGML_STATUS_SUCCESS;
        gb_set_poll(enough, &left);
        for (int k = 0; k < n_pending && status == GGML_STATUS_SUCCESS; k++) {
            status = set_inputs(&w, values + (uint32_t) k);
            if (status == GGML_STATUS_SUCCESS) {
                status = n_pending > 1 ? ggml_backend_sched_graph_compute_async(w.sched, w.graph)
                                       : ggml_backend_sched_graph_compute(w.sched, w.graph);
            }
        }
        const enum ggml_status end = ggml_backend_sched_synchronize(w.sched);
        gb_set_poll(NULL, NULL);
        status = status == GGML_STATUS_SUCCESS ? end : status;
        CHECK_MSG(status == GGML_STATUS_SUCCESS || status == GGML_STATUS_ABORTED, "%s", ggml_last_error());
        CHECK_INT(set_inputs(&oracle, values + (uint32_t) n_pending - 1), GGML_STATUS_SUCCESS);
        CHECK_INT(ggml_backend_sched_graph_compute(oracle.sched, oracle.graph), GGML_STATUS_SUCCESS);
        n_aborted += status == GGML_STATUS_ABORTED;
        if (status == GGML_STATUS_ABORTED) {
            check_idle(&w);
            CHECK_INT(ggml_backend_sched_synchronize(w.sched), GGML_STATUS_SUCCESS);
            CHECK_INT(set_inputs(&w, values + (uint32_t) n_pending - 1), GGML_STATUS_SUCCESS);
            CHECK_INT(ggml_backend_sched_graph_compute(w.sched, w.graph), GGML_STATUS_SUCCESS);
        }
        compare(&w, &oracle, devices[0], round);
        ggml_clear_error();
    }
    CHECK_MSG(n_aborted > 0, "nothing was given up in %u rounds", rounds);
    close_scene(&w);
    close_scene(&oracle);
    ggml_graph_set_fusion(true);
}

static void aborted_at_any_moment(void) {
    static const char * const two[] = { "SIM:name=A,delay=9ms,copy_delay=4ms", "CPU:threads=1" };
    static const char * const three[] = { "SIM:name=A,delay=7ms,copy_delay=3ms", "SIM:name=B,delay=12ms,copy_delay=2ms",
        "CPU:threads=2" };
    const unsigned rounds = test_runs_are_checked() ? 4 : 10;
    for (uint32_t seed = 1; seed <= 2; seed++) {
        give_up_often(two, 2, 1, rounds, seed);
        give_up_often(three, 3, 1, rounds, seed + 10);
    }
}

static void pending_graphs(void) {
    static const char * const three[] = { "SIM:name=A,delay=20ms,copy_delay=3ms",
        "SIM:name=B,delay=30ms,copy_delay=3ms", "CPU:threads=1" };
    static const char * const alone[] = { "SIM:name=A,delay=40ms" };
    const unsigned rounds = test_runs_are_checked() ? 4 : 8;
    give_up_often(three, 3, 2, rounds, 5);
    give_up_often(three, 3, 3, rounds, 6);
    give_up_often(alone, 1, 3, rounds, 7);
}

// Cancelling a run also fails earlier pending runs, and the next wait reports this.
static void earlier_runs_are_reported(void) {
    static const char * const devices[] = { "SIM:name=A,delay=100s", "CPU:threads=1" };
    SKIP_IF_CHECKED("one after the other");
    struct scene w;
    REQUIRE(open_scene(&w, devices, 2, 3));
    CHECK_INT(ggml_backend_sched_set_n_copies(w.sched, 2), GGML_STATUS_SUCCESS);
    for (int i = 0; i < INPUTS; i++) { // copied to the device, from two tensors in turn
        ggml_backend_sched_set_node_backend(w.sched, w.inputs[i], w.backends[1]);
    }
    for (int i = 0; i < NODES; i++) {
        ggml_backend_sched_set_node_backend(w.sched, w.nodes[i], w.backends[0]);
    }
    CHECK_INT(set_weights(&w, 1), GGML_STATUS_SUCCESS);
    int now = 1, runs = 0;
    const int64_t start = gb_time_ns();
    for (enum ggml_status status = GGML_STATUS_SUCCESS; runs < 5 && status == GGML_STATUS_SUCCESS; runs++) {
        CHECK_INT(set_inputs(&w, (uint32_t) runs), GGML_STATUS_SUCCESS);
        gb_set_poll(enough, &now);
        status = ggml_backend_sched_graph_compute_async(w.sched, w.graph);
        gb_set_poll(NULL, NULL);
        CHECK(status == GGML_STATUS_SUCCESS || (runs > 0 && status == GGML_STATUS_ABORTED));
    }
    CHECK(runs > 1 && runs < 5);
    CHECK_INT(ggml_backend_sched_synchronize(w.sched), GGML_STATUS_ABORTED); // the earlier ones
    CHECK_INT(ggml_backend_sched_synchronize(w.sched), GGML_STATUS_SUCCESS);
    check_idle(&w);
    CHECK_INT(ggml_backend_sched_graph_compute_async(w.sched, w.graph), GGML_STATUS_SUCCESS);
    gb_set_poll(enough, &now);
    CHECK_INT(ggml_backend_sched_synchronize(w.sched), GGML_STATUS_ABORTED);
    gb_set_poll(NULL, NULL);
    CHECK_INT(ggml_backend_sched_synchronize(w.sched), GGML_STATUS_SUCCESS);
    CHECK(gb_time_ns() - start < 20 * (int64_t) 1000000000);
    close_scene(&w);
    ggml_clear_error();
}

// One device takes minutes for each graph, another does not. Freeing and resetting can skip the
// wait for pending work.
static void ends_do_not_hang(void) {
    static const char * const devices[] = { "SIM:name=A,delay=100s,copy_delay=1ms", "SIM:name=B", "CPU:threads=1" };
    SKIP_IF_CHECKED("one after the other");
    for (int reset = 0; reset < 2; reset++) {
        struct scene w;
        REQUIRE(open_scene(&w, devices, 3, 4));
        spread(&w, 2);
        CHECK_INT(set_weights(&w, 1), GGML_STATUS_SUCCESS);
        int now = 1;
        CHECK_INT(set_inputs(&w, 1), GGML_STATUS_SUCCESS);
        gb_set_poll(enough, &now);
        ggml_backend_sched_graph_compute_async(w.sched, w.graph);
        if (reset) {
            ggml_backend_sched_reset(w.sched);
        }
        close_scene(&w);
        gb_set_poll(NULL, NULL);
    }
    ggml_clear_error();
}

TEST_MAIN(TEST(aborted_at_any_moment), TEST(pending_graphs), TEST(earlier_runs_are_reported), TEST(ends_do_not_hang))
