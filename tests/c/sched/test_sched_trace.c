// Counters and traces of the scheduler, against the devices and the plan.
#include "base/mem.h"
#include "test_place.h"

enum { MAX = 512 };

static struct ggml_backend_sched_trace_event events[MAX];

static size_t take_events(struct place * p) {
    const size_t n = ggml_backend_sched_get_n_trace_events(p->sched);
    CHECK(n <= MAX);
    for (size_t i = 0; i < n; i++) {
        OK(ggml_backend_sched_get_trace_event(p->sched, i, &events[i]));
        CHECK(events[i].start_ns > 0 && events[i].start_ns <= events[i].end_ns);
        CHECK(events[i].name[sizeof(events[i].name) - 1] == '\0');
    }
    return n;
}

static int index_of(const struct place * p, ggml_backend_t backend) {
    for (int b = 0; b < p->n; b++) {
        if (p->backends[b] == backend) {
            return b;
        }
    }
    return -1;
}

// w (weights on the last backend) x input, then from device to device, and written back to a cache
// of the last one.
static struct ggml_tensor * chain(struct place * p, int n) {
    struct ggml_tensor * w = put(p, leaf(p, "w", 8, 8), p->n - 1, true);
    struct ggml_tensor * x = put(p, leaf(p, "x", 8, 2), p->n - 1, false);
    fill(w, 1, 0);
    fill(x, 1, 0);
    struct ggml_tensor * y = x;
    for (int i = 0; i < n; i++) {
        y = i % 2 ? ggml_sqr(p->ctx, y) : ggml_mul_mat(p->ctx, w, y);
        OK(ggml_backend_sched_set_node_backend(p->sched, y, p->backends[i % p->n]));
    }
    expand(p, y);
    return y;
}

// For each run: each split once and in order, each copy between its writer and its reader.
static void check_run(struct place * p, size_t n, uint64_t run) {
    int n_computed = 0;
    int64_t ends[MAX] = { 0 };
    for (size_t i = 0; i < n; i++) {
        if (events[i].run == run && events[i].kind == GGML_BACKEND_SCHED_TRACE_COMPUTE) {
            REQUIRE(events[i].split >= 0 && events[i].split < MAX && ends[events[i].split] == 0);
            ends[events[i].split] = events[i].end_ns;
            struct ggml_backend_sched_split_info split;
            OK(ggml_backend_sched_get_split(p->sched, events[i].split, &split));
            CHECK_INT(events[i].backend, index_of(p, split.backend));
            CHECK_INT(events[i].node, split.i_start);
            CHECK_INT(events[i].n_nodes, split.i_end - split.i_start);
            n_computed++;
        }
    }
    CHECK_INT(n_computed, ggml_backend_sched_get_n_splits(p->sched));
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) {
            const struct ggml_backend_sched_trace_event *copy = &events[i], *split = &events[j];
            if (copy->run == run && split->run == run && copy->kind == GGML_BACKEND_SCHED_TRACE_COPY &&
                split->kind == GGML_BACKEND_SCHED_TRACE_COMPUTE) {
                CHECK(copy->split != split->split || copy->end_ns <= split->start_ns);
                CHECK(copy->reason != GGML_BACKEND_SCHED_REASON_RESULT || copy->split - 1 != split->split ||
                      split->end_ns <= copy->start_ns);
            }
        }
    }
}

static void check_bytes(struct place * p, size_t n) {
    struct ggml_backend_sched_traffic sum[4] = { { 0, 0 } };
    struct ggml_backend_sched_stats stats;
    OK(ggml_backend_sched_get_stats(p->sched, &stats));
    for (size_t i = 0; i < n; i++) {
        CHECK(events[i].live_bytes <= events[i].arena_bytes);
        if (events[i].kind == GGML_BACKEND_SCHED_TRACE_COPY) {
            sum[events[i].reason].n++;
            sum[events[i].reason].bytes += events[i].bytes;
        }
    }
    CHECK_INT(sum[GGML_BACKEND_SCHED_REASON_WEIGHT].n, stats.weights.n);
    CHECK_INT(sum[GGML_BACKEND_SCHED_REASON_WEIGHT].bytes, stats.weights.bytes);
    CHECK_INT(sum[GGML_BACKEND_SCHED_REASON_INPUT].bytes, stats.inputs.bytes);
    CHECK_INT(sum[GGML_BACKEND_SCHED_REASON_RESULT].bytes, stats.results.bytes);
    CHECK_INT(sum[GGML_BACKEND_SCHED_REASON_RESULT].n, stats.results.n);
}

static void records(const char * devices) {
    enum { RUNS = 3, NODES = 7 };
    OPEN(p, devices);
    struct ggml_tensor * y = chain(&p, NODES);
    OK(ggml_backend_sched_set_trace(p.sched, true));
    for (int i = 0; i < RUNS; i++) {
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    }
    const float value = at(y, 3);
    const size_t n = take_events(&p);
    for (uint64_t run = 0; run < RUNS; run++) {
        check_run(&p, n, run);
    }
    check_bytes(&p, n);
    struct ggml_backend_sched_stats stats;
    OK(ggml_backend_sched_get_stats(p.sched, &stats));
    CHECK_INT(stats.n_runs, RUNS);
    CHECK_INT(stats.n_plans_made, 1);
    CHECK_INT(stats.n_plans_found, RUNS - 1);
    CHECK(stats.run_ns > 0 && stats.plan_ns > 0);
    for (int k = 0; k < ggml_backend_sched_get_n_splits(p.sched); k++) {
        uint64_t n_runs, total, seen = 0;
        OK(ggml_backend_sched_get_split_time(p.sched, k, &n_runs, &total));
        CHECK_INT(n_runs, RUNS);
        for (size_t i = 0; i < n; i++) {
            seen += events[i].kind == GGML_BACKEND_SCHED_TRACE_COMPUTE && events[i].split == k
                        ? (uint64_t) (events[i].end_ns - events[i].start_ns)
                        : 0;
        }
        CHECK_INT(total, seen);
    }
    OK(ggml_backend_sched_set_trace(p.sched, false)); // keeps the trace and adds nothing
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_INT(ggml_backend_sched_get_n_trace_events(p.sched), n);
    CHECK_AT(y, 3, value);
    OK(ggml_backend_sched_set_trace(p.sched, true));
    CHECK_INT(ggml_backend_sched_get_n_trace_events(p.sched), 0);
    CHECK(ggml_backend_sched_get_trace_event(p.sched, 0, &events[0]) == GGML_STATUS_INVALID_ARGUMENT);
    OK(ggml_backend_sched_reset_stats(p.sched));
    OK(ggml_backend_sched_get_stats(p.sched, &stats));
    CHECK(stats.n_runs == 0 && stats.results.bytes == 0 && stats.plan_ns == 0);
    close_place(&p);
}

static void traces_match_the_plan(void) {
    records("SIM:name=A SIM:name=B CPU");
    records("SIM:name=A,copy_delay=1ms CPU");
    records("SIM:name=A,op_delay=200us SIM:name=B,delay=1ms CPU");
    records("CPU");
}

// Two independent devices work at the same time, and the trace shows it.
static void devices_overlap_in_the_record(void) {
    OPEN(p, "SIM:name=A,delay=60ms SIM:name=B,delay=60ms CPU");
    struct ggml_tensor *a = put(&p, leaf(&p, "a", 8, 2), 0, false), *b = put(&p, leaf(&p, "b", 8, 2), 1, false);
    struct ggml_tensor *ya = ggml_sqr(p.ctx, a), *yb = ggml_sqr(p.ctx, b);
    OK(ggml_backend_sched_set_node_backend(p.sched, ya, p.backends[0]));
    OK(ggml_backend_sched_set_node_backend(p.sched, yb, p.backends[1]));
    expand(&p, ya);
    expand(&p, yb);
    OK(ggml_backend_sched_set_check(p.sched, false)); // a checked run executes one step at a time
    OK(ggml_backend_sched_set_trace(p.sched, true));
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    const struct ggml_backend_sched_trace_event * of[2] = { NULL, NULL };
    const size_t n = take_events(&p);
    for (size_t i = 0; i < n; i++) {
        if (events[i].kind == GGML_BACKEND_SCHED_TRACE_COMPUTE) {
            of[events[i].backend] = &events[i];
            CHECK(!events[i].by_host && events[i].end_ns - events[i].start_ns >= 60 * 1000 * 1000);
        }
    }
    REQUIRE(of[0] && of[1]);
    CHECK(of[0]->start_ns < of[1]->end_ns && of[1]->start_ns < of[0]->end_ns);
    close_place(&p);
}

// If memory for a trace is missing, the run is unaffected. A trace that cannot start reports this.
static void without_memory(void) {
    for (int i = 1; i < 60; i++) {
        OPEN(p, "SIM:name=A SIM:name=B CPU");
        struct ggml_tensor * y = chain(&p, 6);
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        const float value = at(y, 0);
        gb_test_fail_alloc(i, false);
        const enum ggml_status on = ggml_backend_sched_set_trace(p.sched, true);
        CHECK(on == GGML_STATUS_SUCCESS || i <= 3);
        const enum ggml_status ran = ggml_backend_sched_graph_compute(p.sched, p.graph);
        gb_test_fail_alloc(0, false);
        CHECK(ran == GGML_STATUS_SUCCESS || ran == GGML_STATUS_ALLOC_FAILED); // devices allocate as well
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        CHECK_AT(y, 0, value);
        close_place(&p);
    }
}

static void a_failed_run_leaves_no_half_record(void) {
    OPEN(p, "SIM:name=A,fail_op=mul_mat CPU");
    chain(&p, 6);
    OK(ggml_backend_sched_set_trace(p.sched, true));
    CHECK(ggml_backend_sched_graph_compute(p.sched, p.graph) != GGML_STATUS_SUCCESS);
    const size_t n = take_events(&p);
    for (size_t i = 0; i < n; i++) {
        CHECK(events[i].kind == GGML_BACKEND_SCHED_TRACE_PLAN);
    }
    close_place(&p);
}

TEST_MAIN(TEST(traces_match_the_plan), TEST(devices_overlap_in_the_record), TEST(without_memory),
    TEST(a_failed_run_leaves_no_half_record))
