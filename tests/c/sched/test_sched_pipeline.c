// test_sched_pipeline.c - pending runs of one graph, while inputs are set again.
#include "base/env.h"
#include "base/mem.h"
#include "ggml-backend-impl.h"
#include "sched/plan.h"
#include "test.h"
#include "test_place.h"
#include "test_queue.h"

enum { N = 24 };

static struct ggml_tensor * on(struct place * p, struct ggml_tensor * t, int device) {
    OK(ggml_backend_sched_set_node_backend(p->sched, t, p->backends[device]));
    return t;
}

// Two stages: A squares, B adds. Results of all runs are read in B's queue.
static void run_stages(const char * devices, int n_copies, int n_runs, int64_t * time_ns) {
    OPEN(p, devices);
    struct ggml_tensor * x = leaf(&p, "x", 64, 1);
    ggml_set_input(x);
    struct ggml_tensor *a = on(&p, ggml_sqr(p.ctx, x), 0), *b = on(&p, ggml_add(p.ctx, a, x), 1);
    ggml_set_output(b);
    expand(&p, b);
    OK(ggml_backend_sched_set_n_copies(p.sched, n_copies));
    CHECK_INT(ggml_backend_sched_get_n_copies(p.sched), n_copies);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    CHECK(n_copies == 1 || ggml_backend_buffer_is_host(x->buffer));
    fill(x, 0, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    float out[N][64];
    const int64_t start = gb_time_ns();
    for (int i = 0; i < n_runs; i++) {
        fill(x, (float) i, 1);
        OK(ggml_backend_sched_graph_compute_async(p.sched, p.graph));
        OK(ggml_backend_tensor_get_async(p.backends[1], b, out[i], 0, sizeof(out[i])));
        if (n_copies == 1) {
            OK(ggml_backend_sched_synchronize(p.sched));
        }
    }
    OK(ggml_backend_sched_synchronize(p.sched));
    *time_ns = gb_time_ns() - start;
    for (int i = 0; i < n_runs; i++) {
        for (int k = 0; k < 64; k++) {
            const float v = (float) (i + k);
            CHECK_MSG(out[i][k] == v * v + v, "run %d: [%d] is %g, expected %g", i, k, (double) out[i][k],
                (double) (v * v + v));
        }
    }
    close_place(&p);
}

static void stages_overlap(void) {
    SKIP_IF_CHECKED("the host waits for each step");
    int64_t one, three = INT64_MAX;
    run_stages("SIM:name=A,delay=20ms SIM:name=B,delay=20ms CPU", 1, 8, &one);
    CHECK_MSG(one >= 8 * 40000000LL, "one after the other: %g ms", (double) one / 1e6);
    for (int i = 0; i < BUSY_TRIES && three >= one - 40000000; i++) {
        run_stages("SIM:name=A,delay=20ms SIM:name=B,delay=20ms CPU", 3, 8, &three);
    }
    CHECK_MSG(three < one - 40000000, "%g ms, one after the other %g ms", (double) three / 1e6, (double) one / 1e6);
}

// A caller queues a read after a run that has ended, because the caller or a trace waited for it.
static void synchronize_waits_for_reads_behind_an_ended_run(void) {
    for (int traced = 0; traced < 2; traced++) {
        OPEN(p, "SIM:name=A,copy_delay=40ms CPU");
        struct ggml_tensor * x = leaf(&p, "x", 64, 1);
        ggml_set_input(x);
        struct ggml_tensor * y = on(&p, ggml_sqr(p.ctx, x), 0);
        ggml_set_output(y);
        expand(&p, y);
        OK(ggml_backend_sched_set_trace(p.sched, traced == 1));
        OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
        fill(x, 3, 0);
        OK(traced ? ggml_backend_sched_graph_compute_async(p.sched, p.graph)
                  : ggml_backend_sched_graph_compute(p.sched, p.graph));
        float out[64] = { 0 };
        OK(ggml_backend_tensor_get_async(p.backends[0], y, out, 0, sizeof(out)));
        OK(ggml_backend_sched_synchronize(p.sched));
        CHECK(out[0] == 9 && out[63] == 9);
        close_place(&p);
    }
}

static void slow_copies(void) {
    int64_t ns;
    run_stages("SIM:name=A,copy_delay=3ms SIM:name=B,delay=1ms,copy_delay=1ms CPU", 2, N, &ns);
    run_stages("SIM:name=A,delay=2ms SIM:name=B,copy_delay=5ms CPU", 5, N, &ns);
    run_stages("SIM:name=A SIM:name=B CPU", 64, N, &ns);
}

// The CPU as the middle stage, results that feed back into a state on a device, and reused memory.
static void with_state(void) {
    OPEN(p, "SIM:name=A,delay=2ms SIM:name=B,copy_delay=1ms CPU");
    struct ggml_tensor *x = leaf(&p, "x", 16, 1), *state = put(&p, leaf(&p, "state", 16, 1), 0, false);
    ggml_set_input(x);
    struct ggml_tensor *a = on(&p, ggml_add_inplace(p.ctx, state, x), 0), *b = on(&p, ggml_scale(p.ctx, a, 2), 2);
    struct ggml_tensor *c = on(&p, ggml_sqr(p.ctx, b), 1), *d = on(&p, ggml_scale(p.ctx, c, 0.5f), 2),
                       *e = on(&p, ggml_add(p.ctx, d, x), 1);
    ggml_set_output(e);
    expand(&p, e);
    OK(ggml_backend_sched_set_n_copies(p.sched, 3));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(state, 0, 0);
    float out[N][16], sum = 0;
    for (int i = 0; i < N; i++) {
        fill(x, (float) (i % 7), 0);
        OK(ggml_backend_sched_graph_compute_async(p.sched, p.graph));
        OK(ggml_backend_tensor_get_async(p.backends[1], e, out[i], 0, sizeof(out[i])));
    }
    OK(ggml_backend_sched_synchronize(p.sched));
    for (int i = 0; i < N; i++) {
        sum += (float) (i % 7);
        CHECK_MSG(out[i][15] == 2 * sum * sum + (float) (i % 7), "run %d: %g", i, (double) out[i][15]);
    }
    close_place(&p);
}

// Devices that can read the host's memory still get copies.
static void shared_memory(void) {
    OPEN(p, "CPU");
    ggml_backend_t q[] = { queue_device_new(0, 2000), queue_device_new(1, 500), p.backends[0] };
    ggml_backend_sched_t s = ggml_backend_sched_new(q, NULL, 3, 0);
    struct ggml_tensor * x = leaf(&p, "x", 16, 1);
    ggml_set_input(x);
    struct ggml_tensor *a = ggml_sqr(p.ctx, x), *b = ggml_add(p.ctx, a, x);
    expand(&p, b);
    OK(ggml_backend_sched_set_node_backend(s, a, q[0]));
    OK(ggml_backend_sched_set_node_backend(s, b, q[1]));
    OK(ggml_backend_sched_set_n_copies(s, 2));
    OK(ggml_backend_sched_alloc_graph(s, p.graph));
    for (int i = 0; i < N; i++) {
        fill(x, (float) i, 0);
        OK(ggml_backend_sched_graph_compute_async(s, p.graph));
        fill(x, -1, 0);
        OK(ggml_backend_sched_synchronize(s));
        CHECK_AT(b, 5, (float) (i * i + i));
    }
    ggml_backend_sched_free(s);
    ggml_backend_free(q[0]);
    ggml_backend_free(q[1]);
    close_place(&p);
}

// The number of copies changes, other graphs run in between, runs repeat without new inputs, and
// the validator is on.
static void settings_change_between_runs(void) {
    OPEN(p, "SIM:name=A,delay=1ms SIM:name=B CPU");
    struct ggml_tensor * x = leaf(&p, "x", 16, 1);
    ggml_set_input(x);
    struct ggml_tensor *a = on(&p, ggml_sqr(p.ctx, x), 0), *b = on(&p, ggml_add(p.ctx, a, x), 1),
                       *other = ggml_scale(p.ctx, x, 3);
    expand(&p, b);
    struct ggml_cgraph * graph = ggml_new_graph(p.ctx);
    ggml_build_forward_expand(graph, on(&p, other, 1));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    for (int i = 0; i < N; i++) {
        OK(ggml_backend_sched_set_n_copies(p.sched, 1 + i % 3));
        OK(ggml_backend_sched_set_check(p.sched, i % 5 == 4));
        OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
        fill(x, (float) i, 0);
        for (int k = 0; k < 3; k++) {
            OK(ggml_backend_sched_graph_compute_async(p.sched, p.graph));
        }
        OK(ggml_backend_sched_synchronize(p.sched));
        CHECK_AT(b, 0, (float) (i * i + i));
        OK(ggml_backend_sched_graph_compute(p.sched, graph));
        CHECK_AT(other, 0, (float) (3 * i));
    }
    CHECK_INT(ggml_backend_sched_set_n_copies(p.sched, 0), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_sched_set_n_copies(p.sched, 65), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_sched_set_n_copies(NULL, 2), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_sched_get_n_copies(NULL), 0);
    close_place(&p);
}

static void failures(void) {
    OPEN(p, "SIM:name=A,delay=1ms SIM:name=B,fail_op=sqr CPU");
    struct ggml_tensor * x = leaf(&p, "x", 16, 1);
    ggml_set_input(x);
    struct ggml_tensor *a = on(&p, ggml_scale(p.ctx, x, 2), 0), *b = on(&p, ggml_sqr(p.ctx, a), 1);
    expand(&p, b);
    OK(ggml_backend_sched_set_n_copies(p.sched, 2));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 3, 0);
    enum ggml_status status = GGML_STATUS_SUCCESS;
    for (int i = 0; i < 4; i++) {
        status = ggml_backend_sched_graph_compute_async(p.sched, p.graph);
    }
    if (!test_runs_are_checked()) { // then each call waits and reports the failure
        status = ggml_backend_sched_synchronize(p.sched);
    }
    CHECK_INT(status, GGML_STATUS_DEVICE_ERROR);
    on(&p, b, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(b, 0, 36);
    close_place(&p);
}

static void second_run_allocates_nothing(void) {
    OPEN(p, "SIM:name=A SIM:name=B CPU");
    struct ggml_tensor *x = leaf(&p, "x", 16, 1), *w = put(&p, leaf(&p, "w", 16, 16), 2, true);
    ggml_set_input(x);
    struct ggml_tensor *a = on(&p, ggml_mul_mat(p.ctx, w, x), 0), *b = on(&p, ggml_add(p.ctx, a, x), 1),
                       *c = on(&p, ggml_scale(p.ctx, b, 2), 2);
    expand(&p, c);
    for (int n = 1; n <= 2; n++) {
        OK(ggml_backend_sched_set_n_copies(p.sched, n));
        OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
        fill(w, 1, 0);
        fill(x, 1, 0);
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        gb_test_fail_alloc(1, true);
        for (int i = 0; i < 5; i++) {
            OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        }
        OK(ggml_backend_sched_graph_compute_async(p.sched, p.graph));
        OK(ggml_backend_sched_graph_compute_async(p.sched, p.graph));
        OK(ggml_backend_sched_synchronize(p.sched));
        CHECK(!gb_test_alloc_failed());
        gb_test_fail_alloc(0, false);
        CHECK_AT(c, 0, 34);
    }
    close_place(&p);
}

static void every_allocation_fails(void) {
    OPEN(p, "SIM:name=A SIM:name=B CPU");
    struct ggml_tensor * x = leaf(&p, "x", 4, 1);
    ggml_set_input(x);
    struct ggml_tensor *a = ggml_sqr(p.ctx, x), *b = ggml_add(p.ctx, a, x);
    expand(&p, b);
    ggml_backend_sched_free(p.sched);
    bool done = false;
    for (int n = 1; !done && n < 1000; n++) {
        const int64_t live = gb_test_live_allocs();
        gb_test_fail_alloc(n, false);
        p.sched = ggml_backend_sched_new(p.backends, NULL, p.n, 0);
        bool ok = p.sched && ggml_backend_sched_set_n_copies(p.sched, 2) == GGML_STATUS_SUCCESS &&
                  ggml_backend_sched_set_node_backend(p.sched, a, p.backends[0]) == GGML_STATUS_SUCCESS &&
                  ggml_backend_sched_set_node_backend(p.sched, b, p.backends[1]) == GGML_STATUS_SUCCESS &&
                  ggml_backend_sched_alloc_graph(p.sched, p.graph) == GGML_STATUS_SUCCESS;
        const float ones[] = { 1, 1, 1, 1 };
        for (int i = 0; ok && i < 3; i++) {
            ok = ggml_backend_tensor_set(x, ones, 0, sizeof(ones)) == GGML_STATUS_SUCCESS &&
                 ggml_backend_sched_graph_compute_async(p.sched, p.graph) == GGML_STATUS_SUCCESS;
        }
        ok = ok && ggml_backend_sched_synchronize(p.sched) == GGML_STATUS_SUCCESS;
        done = !gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK(ok || !done);
        if (p.sched) {
            OK(ggml_backend_sched_set_n_copies(p.sched, 2));
            on(&p, a, 0);
            on(&p, b, 1);
            OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
            fill(x, 2, 0);
            OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
            CHECK_AT(b, 3, 6);
        }
        ggml_backend_sched_free(p.sched);
        struct ggml_tensor * all[] = { x, a, b };
        for (int i = 0; i < 3; i++) {
            all[i]->buffer = NULL;
            all[i]->data = NULL;
        }
        CHECK_INT(gb_test_live_allocs(), live);
    }
    CHECK(done);
    p.sched = NULL;
    close_place(&p);
}

TEST_MAIN(TEST(stages_overlap), TEST(synchronize_waits_for_reads_behind_an_ended_run), TEST(slow_copies),
    TEST(with_state), TEST(shared_memory), TEST(settings_change_between_runs), TEST(failures),
    TEST(second_run_allocates_nothing), TEST(every_allocation_fails))
