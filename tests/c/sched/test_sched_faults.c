// Runs that end early: stopped by the callback at each node, aborted at each poll, or failed by a
// device at any point. Afterwards the scheduler works and graphs are unchanged.
#include "ggml-cpu.h"
#include "test_place.h"
#include "tensor/marks.h"

enum { N = 13, WIDTH = 4 };

// A chain of `n` nodes. Node i runs on device i mod the number of devices. The test allocates
// the memory of each result.
struct chain {
    struct place p;
    struct ggml_tensor * x;
    struct ggml_tensor * node[N];
    ggml_backend_buffer_t home[4];
};

static struct ggml_tensor * next_node(struct chain * c, int i, struct ggml_tensor * t) {
    switch (i % 4) {
        case 0: return ggml_add(c->p.ctx, t, c->x);
        case 1: return ggml_scale(c->p.ctx, t, 2);
        case 2: return ggml_mul(c->p.ctx, t, c->x);
        default: return ggml_sub(c->p.ctx, t, c->x);
    }
}

static float expected(int i) { // x is 1
    float v = 1;
    for (int k = 0; k <= i; k++) {
        v = k % 4 == 0 ? v + 1 : k % 4 == 1 ? v * 2 : k % 4 == 2 ? v : v - 1;
    }
    return v;
}

static bool open_chain(struct chain * c, const char * devices) {
    memset(c, 0, sizeof(*c));
    ggml_clear_error();
    if (!open_place(&c->p, devices)) {
        return false;
    }
    c->x = put(&c->p, leaf(&c->p, "x", WIDTH, 1), 0, false);
    struct ggml_tensor * t = c->x;
    for (int b = 0; b < c->p.n; b++) {
        c->home[b] = c->p.buffers[c->p.n_buffers++] = ggml_backend_alloc_buffer(c->p.backends[b], N * 128);
    }
    for (int i = 0; i < N; i++) {
        const int b = i % c->p.n;
        t = next_node(c, i, t);
        OK(ggml_backend_tensor_alloc(c->home[b], t, (char *) ggml_backend_buffer_get_base(c->home[b]) + i * 128));
        OK(ggml_backend_sched_set_node_backend(c->p.sched, t, c->p.backends[b]));
        c->node[i] = t;
    }
    expand(&c->p, t);
    fill(c->x, 1, 0);
    return ggml_last_status() == GGML_STATUS_SUCCESS && c->p.graph->n_nodes == N;
}

static void forget_results(struct chain * c) {
    for (int b = 0; b < c->p.n; b++) {
        OK(ggml_backend_buffer_clear(c->home[b], 0xff));
    }
}

// Nodes up to `last` have their results. The others are unchanged.
static void check_ran_up_to(struct chain * c, int last) {
    for (int i = 0; i < N; i++) {
        const float value = at(c->node[i], 0);
        CHECK_MSG(i <= last ? value == expected(i) : value != value, "up to %d: node %d is %g", last, i,
            (double) value);
    }
}

static void check_works(struct chain * c) {
    OK(ggml_backend_sched_set_eval_callback(c->p.sched, NULL, NULL));
    forget_results(c);
    OK(ggml_backend_sched_graph_compute(c->p.sched, c->p.graph));
    check_ran_up_to(c, N - 1);
}

// ------------------------------------------------------------------------------------------------------------ callback

struct stop {
    struct chain * c;
    int every, phase, at; // requests nodes i with i % every == phase, stops at the one with index `at`
    int n_after;          // calls after that
    bool stopped;
};

static bool stop_there(struct ggml_tensor * t, bool ask, void * user_data) {
    struct stop * s = user_data;
    int i = 0;
    while (s->c->node[i] != t) {
        i++;
    }
    s->n_after += s->stopped;
    if (ask) {
        return i % s->every == s->phase;
    }
    check_ran_up_to(s->c, i); // shown results are complete, and no later node has begun
    s->stopped = i == s->at;
    return !s->stopped;
}

static void stop_everywhere(const char * devices) {
    struct chain c;
    REQUIRE(open_chain(&c, devices));
    for (int every = 1; every <= 4; every++) {
        for (int at = 0; at < N; at++) {
            struct stop s = { .c = &c, .every = every, .phase = at % every, .at = at };
            OK(ggml_backend_sched_set_eval_callback(c.p.sched, stop_there, &s));
            forget_results(&c);
            CHECK_INT(ggml_backend_sched_graph_compute(c.p.sched, c.p.graph), GGML_STATUS_ABORTED);
            CHECK(s.stopped && s.n_after == 0);
            check_ran_up_to(&c, at);
            if (at % 5 == every % 5) {
                check_works(&c);
            }
        }
    }
    check_works(&c);
    close_place(&c.p);
}

static void callbacks_stop_at_each_node(void) {
    stop_everywhere("CPU");
    stop_everywhere("SIM:name=A CPU");
    stop_everywhere("SIM:name=A,delay=100us SIM:name=B CPU");
}

// --------------------------------------------------------------------------------------------------------------- abort

static int polls_left;

static bool abort_now(void * data) {
    (void) data;
    return polls_left-- <= 0;
}

static void abort_everywhere(const char * devices) {
    struct chain c;
    REQUIRE(open_chain(&c, devices));
    const ggml_backend_t cpu = c.p.backends[c.p.n - 1];
    OK(ggml_backend_cpu_set_abort_callback(cpu, abort_now, NULL));
    int n = 0;
    for (enum ggml_status status = GGML_STATUS_ABORTED; status != GGML_STATUS_SUCCESS && n < 1000; n++) {
        polls_left = n;
        forget_results(&c);
        status = ggml_backend_sched_graph_compute(c.p.sched, c.p.graph);
        CHECK(status == GGML_STATUS_SUCCESS || status == GGML_STATUS_ABORTED);
        int last = N - 1;
        while (last >= 0 && at(c.node[last], 0) != at(c.node[last], 0)) {
            last--;
        }
        check_ran_up_to(&c, last);
        CHECK((status == GGML_STATUS_SUCCESS) == (last == N - 1));
    }
    CHECK(n > 2 && n < 1000);
    OK(ggml_backend_cpu_set_abort_callback(cpu, NULL, NULL));
    check_works(&c);
    close_place(&c.p);
}

static void aborts_at_each_poll(void) {
    abort_everywhere("CPU");
    abort_everywhere("SIM:name=A CPU");
}

// ------------------------------------------------------------------------------------------------------------- devices

static void failed_operators_can_run_elsewhere(void) {
    static const char * const ops[] = { "add", "scale", "mul", "sub" };
    for (int k = 0; k < 4; k++) {
        char devices[64];
        snprintf(devices, sizeof(devices), "SIM:name=A,fail_op=%s SIM:name=B CPU", ops[k]);
        struct chain c;
        REQUIRE(open_chain(&c, devices));
        forget_results(&c);
        CHECK_INT(ggml_backend_sched_graph_compute(c.p.sched, c.p.graph), GGML_STATUS_DEVICE_ERROR);
        CHECK_MSG(strstr(ggml_last_error(), "as parameter fail_op says") != NULL, "%s", ggml_last_error());
        for (int i = 0; i < N; i++) { // nodes of A move, and their results stay on A
            OK(ggml_backend_sched_set_node_backend(c.p.sched, c.node[i], c.p.backends[i % 3 == 0 ? 1 : i % 3]));
        }
        check_works(&c);
        close_place(&c.p);
    }
}

// A graph that runs on the CPU with data of the CPU.
static void check_cpu_works(struct place * p) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 14, NULL, true });
    struct ggml_cgraph * graph = ggml_new_graph_custom(ctx, 8, false);
    struct ggml_tensor *x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4), *y = ggml_sqr(ctx, x);
    OK(ggml_build_forward_expand(graph, y));
    OK(ggml_backend_sched_set_node_backend(p->sched, y, p->backends[p->n - 1]));
    OK(ggml_backend_sched_set_node_backend(p->sched, x, p->backends[p->n - 1]));
    OK(ggml_backend_sched_alloc_graph(p->sched, graph));
    fill(x, 3, 0);
    OK(ggml_backend_sched_graph_compute(p->sched, graph));
    CHECK_AT(y, 2, 9);
    ggml_free(ctx);
}

static struct ggml_tensor * two_devices_graph(struct place * p, struct ggml_tensor * x) {
    struct ggml_tensor * t = x;
    for (int i = 0; i < 6; i++) {
        t = i % 2 ? ggml_scale(p->ctx, ggml_add(p->ctx, t, x), 0.5f) : ggml_add(p->ctx, t, x);
        OK(ggml_backend_sched_set_node_backend(p->sched, t, p->backends[i / 2 % p->n]));
    }
    expand(p, t);
    return t;
}

// True after success. Then the result is right.
static bool works_with(const char * devices) {
    struct place p;
    if (!open_place(&p, devices)) {
        test_fail(__FILE__, __LINE__, "cannot open %s", devices);
        return true;
    }
    struct ggml_tensor * x = put(&p, leaf(&p, "x", 16, 1), p.n - 1, false);
    struct ggml_tensor * t = two_devices_graph(&p, x);
    fill(x, 1, 0);
    enum ggml_status status = ggml_backend_sched_graph_compute(p.sched, p.graph);
    CHECK_MSG(status == GGML_STATUS_SUCCESS || status == GGML_STATUS_ALLOC_FAILED, "%s", ggml_last_error());
    if (status == GGML_STATUS_SUCCESS) {
        CHECK_AT(t, 15, 1.875f); // 2, 1.5, 2.5, 1.75, 2.75, 1.875
    } else {
        check_cpu_works(&p);
        ggml_clear_error();
    }
    close_place(&p);
    return status == GGML_STATUS_SUCCESS;
}

static void runs_fit_or_fail_at_each_size(void) {
    bool worked = false;
    int first = -1;
    for (int size = 0; size <= 4096; size += 64) {
        char devices[64];
        snprintf(devices, sizeof(devices), "SIM:name=A,align=64,mem=%d CPU", size + 1);
        const bool works = works_with(devices);
        CHECK_MSG(works || !worked, "works with %d bytes, but not with %d", first, size);
        first = works && !worked ? size : first;
        worked = works;
    }
    CHECK(first > 64 && first < 1024);
}

static void failed_device_allocations_are_reported(void) {
    int n = 0;
    for (bool works = false; !works && n < 50; n++) {
        char devices[64];
        snprintf(devices, sizeof(devices), "SIM:name=A,fail_alloc_after=%d CPU", n);
        works = works_with(devices);
    }
    CHECK(n >= 2 && n < 50);
}

// ------------------------------------------------------------------------------------------------ backends freed early

static void free_device(struct chain * c, int b) {
    ggml_backend_free(c->p.backends[b]);
    c->p.backends[b] = NULL;
}

// Makes all queries. Errors are fine. Freed objects must not be accessed.
static void make_all_queries(struct chain * c) {
    ggml_backend_sched_t sched = c->p.sched;
    struct ggml_backend_sched_split_info split;
    struct ggml_backend_sched_transfer transfer;
    struct ggml_backend_sched_stats stats;
    struct ggml_backend_sched_trace_event event;
    for (int i = 0; i < ggml_backend_sched_get_n_splits(sched); i++) {
        OK(ggml_backend_sched_get_split(sched, i, &split));
        CHECK(ggml_backend_name(split.backend)[0] != '\0');
    }
    for (int i = 0; i < ggml_backend_sched_get_n_transfers(sched); i++) {
        OK(ggml_backend_sched_get_transfer(sched, i, &transfer));
    }
    for (size_t i = 0; i < ggml_backend_sched_get_n_trace_events(sched); i++) {
        OK(ggml_backend_sched_get_trace_event(sched, i, &event));
    }
    for (int i = 0; i < c->p.n; i++) {
        CHECK(ggml_backend_name(ggml_backend_sched_get_backend(sched, i))[0] != '\0');
        if (c->p.backends[i]) {
            CHECK(ggml_backend_sched_get_backend(sched, i) == c->p.backends[i]);
            ggml_backend_sched_get_buffer_size(sched, c->p.backends[i]);
        }
    }
    for (int i = 0; i < N; i++) {
        ggml_backend_sched_explain(sched, c->node[i]);
        ggml_backend_sched_get_node_backend(sched, c->node[i]);
    }
    OK(ggml_backend_sched_get_stats(sched, &stats));
    OK(ggml_backend_sched_synchronize(sched));
}

static void check_names_freed(struct chain * c, const char * name) {
    typedef enum ggml_status (*act)(ggml_backend_sched_t, struct ggml_cgraph *);
    const act acts[] = { ggml_backend_sched_graph_compute, ggml_backend_sched_graph_compute_async,
        ggml_backend_sched_alloc_graph, ggml_backend_sched_reserve, ggml_backend_sched_plan_graph,
        ggml_backend_sched_init_measure };
    for (size_t i = 0; i < sizeof(acts) / sizeof(acts[0]); i++) {
        ggml_clear_error();
        CHECK_INT(acts[i](c->p.sched, c->p.graph), GGML_STATUS_INVALID_STATE);
        CHECK_MSG(strstr(ggml_last_error(), name) && strstr(ggml_last_error(), "was freed"), "%s", ggml_last_error());
    }
}

// Frees each device at each stage. Runs fail with its name, finished results can be read, and the
// scheduler can be queried, reset and freed.
static void freed_backends_are_named(void) {
    static const char * const names[] = { "A", "B", "CPU" };
    for (int k = 0; k < 3 * 6; k++) {
        const int b = k % 3, stage = k / 3;
        struct chain c;
        REQUIRE(open_chain(&c, "SIM:name=A,delay=2ms SIM:name=B CPU"));
        OK(ggml_backend_sched_set_n_copies(c.p.sched, stage == 3 ? 3 : 1));
        OK(ggml_backend_sched_set_trace(c.p.sched, stage == 4));
        OK(ggml_backend_sched_set_check(c.p.sched, stage == 5));
        ggml_backend_sched_t others =
            ggml_backend_sched_new((ggml_backend_t[]){ c.p.backends[(b + 1) % 3], c.p.backends[(b + 2) % 3] }, NULL, 2,
                0);
        forget_results(&c);
        for (int i = 0; i < (stage == 0 ? 0 : stage == 3 ? 2 : 1); i++) {
            OK(ggml_backend_sched_graph_compute_async(c.p.sched, c.p.graph));
        }
        if (stage != 2 && stage != 3) { // the run is pending
            OK(ggml_backend_sched_synchronize(c.p.sched));
        }
        free_device(&c, b);
        check_names_freed(&c, names[b]);
        make_all_queries(&c);
        if (stage > 0) {
            check_ran_up_to(&c, N - 1);
        }
        if (stage % 2) {
            OK(ggml_backend_sched_reset(c.p.sched));
            check_names_freed(&c, names[b]);
            free_device(&c, (b + 1) % 3);
            make_all_queries(&c);
        }
        ggml_clear_error();
        ggml_backend_sched_free(others);
        close_place(&c.p);
    }
}

// Other schedulers still work, and a freed scheduler gets no calls.
static void other_schedulers_work_after_a_backend_is_freed(void) {
    struct chain c;
    REQUIRE(open_chain(&c, "SIM:name=A SIM:name=B CPU"));
    ggml_backend_t extra = ggml_backend_reg_init_backend_from_str("SIM:name=extra");
    ggml_backend_t both[] = { extra, c.p.backends[2] };
    ggml_backend_sched_t second = ggml_backend_sched_new(both, NULL, 2, 0),
                         third = ggml_backend_sched_new(both, NULL, 2, 0);
    ggml_backend_sched_free(third);
    ggml_backend_free(extra);
    check_works(&c);
    CHECK_INT(ggml_backend_sched_graph_compute(second, c.p.graph), GGML_STATUS_INVALID_STATE);
    check_works(&c);
    ggml_backend_sched_free(second);
    check_works(&c);
    close_place(&c.p);
}

// -------------------------------------------------------------------------------------------------------------- graphs

static uint64_t hash(uint64_t h, const void * data, size_t size) { // FNV-1a
    for (size_t i = 0; i < size; i++) {
        h = (h ^ ((const unsigned char *) data)[i]) * UINT64_C(0x100000001b3);
    }
    return h;
}

// All of the structs except time counters. Without the allocator's fields (address and owner of
// each tensor), unless requested.
static uint64_t hash_of(const struct ggml_cgraph * graph, bool places) {
    uint64_t h = hash(UINT64_C(0xcbf29ce484222325), graph->nodes, (size_t) graph->n_nodes * sizeof(*graph->nodes));
    h = hash(h, graph->leafs, (size_t) graph->n_leafs * sizeof(*graph->leafs));
    h = hash(h, &graph->n_nodes, sizeof(graph->n_nodes));
    for (int i = 0; i < graph->n_nodes + graph->n_leafs; i++) {
        struct ggml_tensor t;
        memcpy(&t, i < graph->n_nodes ? graph->nodes[i] : graph->leafs[i - graph->n_nodes], sizeof(t));
        t.perf_runs = 0;
        t.perf_cycles = t.perf_time_us = 0;
        if (!places) {
            t.data = NULL;
            t.buffer = NULL;
            t.extra = NULL;
            gb_tensor_set_stamp(&t, 0, 0);
        }
        h = hash(h, &t, sizeof(t));
    }
    return h;
}

static void two_schedulers_alternate_on_a_graph(void) {
    OPEN(p, "SIM:name=A SIM:name=B CPU");
    ggml_backend_t other_devices[] = { p.backends[1], p.backends[2] };
    ggml_backend_sched_t scheds[] = { p.sched, ggml_backend_sched_new(other_devices, NULL, 2, 0) };
    struct ggml_tensor * x = put(&p, leaf(&p, "x", 16, 1), 2, false);
    struct ggml_tensor * t = two_devices_graph(&p, x);
    const uint64_t before = hash_of(p.graph, false);
    for (int i = 0; i < 24; i++) {
        const ggml_backend_sched_t sched = scheds[i % 2];
        fill(x, (float) i, 0);
        if (i % 7 == 3) {
            OK(ggml_backend_sched_reset(sched));
        }
        if (i % 3 == 0) {
            OK(ggml_backend_sched_alloc_graph(sched, p.graph));
            const uint64_t placed = hash_of(p.graph, true);
            OK(ggml_backend_sched_graph_compute(sched, p.graph));
            CHECK(hash_of(p.graph, true) == placed);
        }
        OK(ggml_backend_sched_graph_compute(sched, p.graph));
        CHECK_AT(t, 7, 1.875f * (float) i);
        CHECK(hash_of(p.graph, false) == before);
    }
    ggml_backend_sched_free(scheds[1]);
    close_place(&p);
}

TEST_MAIN(TEST(callbacks_stop_at_each_node), TEST(aborts_at_each_poll), TEST(failed_operators_can_run_elsewhere),
    TEST(runs_fit_or_fail_at_each_size), TEST(failed_device_allocations_are_reported), TEST(freed_backends_are_named),
    TEST(other_schedulers_work_after_a_backend_is_freed), TEST(two_schedulers_alternate_on_a_graph))
