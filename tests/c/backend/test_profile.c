// The records of a profile, against the computed graph and the times measured around it.
#include <pthread.h>
#include <stdatomic.h>
#ifndef _WIN32
#    include <sys/wait.h>
#    include <unistd.h>
#endif

#include "base/env.h"
#include "base/mem.h"
#include "cpu/cpu.h"
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "test_place.h"

enum { MAX = 4096 };

static struct ggml_profile_record records[MAX];
static struct ggml_profile_step steps[64];
static struct ggml_profile_run runs[MAX];
static size_t n_records, n_steps, n_runs;

static void take(ggml_profile_t p) {
    n_records = (size_t) ggml_profile_get_records(p, records, 0, MAX);
    n_steps = (size_t) ggml_profile_get_steps(p, steps, 0, 64);
    n_runs = (size_t) ggml_profile_get_runs(p, runs, 0, MAX);
    CHECK(n_records <= MAX && n_steps <= 64 && n_runs <= MAX);
}

// Checks that the records of each run follow one another inside the run, and name existing steps
// and runs.
static void check_order(void) {
    int64_t end[MAX] = { 0 };
    for (size_t i = 0; i < n_records; i++) {
        const struct ggml_profile_record * r = &records[i];
        REQUIRE(r->step < n_steps && r->run < n_runs);
        CHECK(r->start_ns >= runs[r->run].start_ns && r->start_ns <= r->end_ns);
        CHECK(runs[r->run].end_ns == 0 || r->end_ns <= runs[r->run].end_ns);
        CHECK(r->start_ns >= end[r->run]);
        CHECK(r->waiting_ns >= 0 && r->waiting_ns <= r->n_threads * (r->end_ns - r->start_ns));
        CHECK(r->n_tasks >= 1 && r->n_tasks <= r->n_threads);
        end[r->run] = r->end_ns;
    }
}

// ------------------------------------------------------------------------------------------------------------ a graph

struct work {
    struct ggml_context * ctx;
    struct ggml_cgraph * graph;
    ggml_backend_t cpu;
};

static struct ggml_tensor * floats(struct work * w, const char * name, int64_t n0, int64_t n1) {
    struct ggml_tensor * t = ggml_set_name(ggml_new_tensor_2d(w->ctx, GGML_TYPE_F32, n0, n1), name);
    for (int64_t i = 0; i < ggml_nelements(t); i++) {
        ((float *) t->data)[i] = (float) (i % 7) - 3.0f;
    }
    return t;
}

// A product and its readers (one fused step with fusion), a norm, and a sum.
static bool open_work(struct work * w, int n_threads) {
    w->ctx = ggml_init((struct ggml_init_params){ 16 << 20, NULL, false });
    w->cpu = ggml_backend_cpu_init();
    w->graph = w->ctx != NULL ? ggml_new_graph(w->ctx) : NULL;
    if (w->graph == NULL || w->cpu == NULL) {
        return false;
    }
    ggml_backend_cpu_set_n_threads(w->cpu, n_threads);
    struct ggml_tensor * y = ggml_mul_mat(w->ctx, floats(w, "w", 256, 512), floats(w, "x", 256, 64));
    y = ggml_set_name(ggml_relu(w->ctx, ggml_set_name(y, "product")), "active");
    y = ggml_set_name(ggml_rms_norm(w->ctx, y, 1e-6f), "norm");
    y = ggml_set_name(ggml_sum(w->ctx, y), "sum");
    return ggml_build_forward_expand(w->graph, y) == GGML_STATUS_SUCCESS;
}

static void close_work(struct work * w) {
    ggml_free(w->ctx);
    ggml_backend_free(w->cpu);
}

#define OPEN_WORK(w, n_threads) \
    struct work w;              \
    REQUIRE(open_work(&w, n_threads))

static const struct ggml_profile_step * step_named(const char * name) {
    for (size_t i = 0; i < n_steps; i++) {
        for (int k = 0; k < GB_MIN(steps[i].n_nodes, GGML_PROFILE_MAX_NODES); k++) {
            if (strcmp(steps[i].nodes[k].name, name) == 0) {
                return &steps[i];
            }
        }
    }
    return NULL;
}

static const struct ggml_profile_record * record_of(const struct ggml_profile_step * step) {
    for (size_t i = 0; i < n_records; i++) {
        if (records[i].step == step - steps) {
            return &records[i];
        }
    }
    return NULL;
}

// Computes the graph n times with a profile. Returns the nanoseconds by a clock around it.
static int64_t compute(struct work * w, ggml_profile_t p, int times) {
    const int64_t start = gb_time_ns();
    OK(ggml_profile_use(p));
    for (int i = 0; i < times; i++) {
        CHECK(ggml_backend_graph_compute(w->cpu, w->graph));
    }
    OK(ggml_profile_use(NULL));
    return gb_time_ns() - start;
}

// -------------------------------------------------------------------------------------------------------------- tests

static void every_operator_once_a_run(void) {
    const bool fuses = ggml_graph_get_fusion();
    for (int fuse = 0; fuse < 2; fuse++) {
        ggml_graph_set_fusion(fuse == 1);
        OPEN_WORK(w, 2);
        ggml_profile_t p = ggml_profile_new(0);
        const int64_t took = compute(&w, p, 3);
        take(p);
        check_order();
        int64_t sum = 0, all = 0;
        int nodes = 0;
        for (size_t i = 0; i < n_records; i++) {
            sum += records[i].end_ns - records[i].start_ns;
            nodes += steps[records[i].step].n_nodes;
            CHECK_STR(steps[records[i].step].device, "CPU");
            CHECK_STR(steps[records[i].step].level, ggml_backend_cpu_get_level(w.cpu));
        }
        for (size_t i = 0; i < n_runs; i++) {
            CHECK(runs[i].complete);
            all += runs[i].end_ns - runs[i].start_ns;
        }
        CHECK(sum <= all && all <= took);
        CHECK_INT(nodes, 3 * 4);
        CHECK_INT(n_runs, 3);
        const struct ggml_profile_step * product = step_named("product");
        REQUIRE(product != NULL && step_named("norm") != NULL && step_named("sum") != NULL);
        CHECK_INT(product == step_named("active"), fuse);
        CHECK_STR(product->fusion, fuse == 1 ? "product" : "");
        CHECK_STR(product->nodes[0].op, "MUL_MAT");
        CHECK_INT(product->source_type, GGML_TYPE_F32);
        CHECK_STR(product->source, "w");
        CHECK(product->algorithm[0] != '\0' && step_named("norm")->algorithm[0] == '\0');
        CHECK_STR(step_named("active")->nodes[fuse].op, "RELU");
        ggml_profile_free(p);
        close_work(&w);
    }
    ggml_graph_set_fusion(fuses);
}

// The bytes and operations of the product, counted by hand, with and without fusion.
static void work_of_steps(void) {
    const bool fuses = ggml_graph_get_fusion();
    for (int fuse = 0; fuse < 2; fuse++) {
        ggml_graph_set_fusion(fuse == 1);
        OPEN_WORK(w, 1);
        ggml_profile_t p = ggml_profile_new(0);
        compute(&w, p, 1);
        take(p);
        const struct ggml_profile_record * r = record_of(step_named("product"));
        REQUIRE(r != NULL);
        const double results = 512 * 64;
        CHECK(r->flops == 2.0 * 256 * results + (fuse == 1 ? results : 0));
        CHECK(r->bytes_read == 4.0 * (256 * 512 + 256 * 64));
        CHECK(r->bytes_written == 4.0 * results * (fuse == 1 ? 2 : 1)); // the program may read both
        r = record_of(step_named("sum"));
        REQUIRE(r != NULL);
        CHECK(r->bytes_read == 4.0 * results && r->bytes_written == 4.0);
        CHECK_INT(r->n_threads, 1);
        ggml_profile_free(p);
        close_work(&w);
    }
    ggml_graph_set_fusion(fuses);
}

static void algorithm_is_that_of_the_table(void) {
    OPEN_WORK(w, 2);
    ggml_profile_t p = ggml_profile_new(0);
    for (int i = 0; i < ggml_cpu_level_count(); i++) {
        if (ggml_cpu_level_usable(i)) {
            OK(ggml_backend_cpu_set_level(w.cpu, ggml_cpu_level_name(i)));
            compute(&w, p, 1);
        }
    }
    take(p);
    for (size_t i = 0; i < n_steps; i++) {
        const char *name, *why = NULL, *last = NULL;
        for (int k = 0; strcmp(steps[i].nodes[0].op, "MUL_MAT") == 0 &&
                        (name = gb_cpu_product_algorithm(w.graph->nodes[0], steps[i].level, k, &why)) != NULL;
            k++) {
            last = name;
        }
        CHECK_STR(steps[i].algorithm, last != NULL ? last : "");
    }
    ggml_profile_free(p);
    close_work(&w);
}

// Records beyond the limit are counted, and runs continue.
static void full(void) {
    OPEN_WORK(w, 2);
    ggml_profile_t p = ggml_profile_new(5);
    compute(&w, p, 3);
    take(p);
    CHECK_INT(n_records, 5);
    check_order();
    CHECK(ggml_profile_n_dropped(p) > 0);
    const uint64_t dropped = ggml_profile_n_dropped(p);
    compute(&w, p, 4);
    take(p);
    CHECK_INT(n_records, 5);
    CHECK_INT(n_runs, 5);
    CHECK(ggml_profile_n_dropped(p) > dropped);
    ggml_profile_free(p);
    close_work(&w);
}

static void wrong_calls(void) {
    CHECK(ggml_profile_new((size_t) 1 << 33) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "max_records");
    CHECK_INT(ggml_profile_get_steps(NULL, NULL, 0, 0), -1);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "profile");
    ggml_profile_t p = ggml_profile_new(4);
    CHECK_INT(ggml_profile_get_records(p, NULL, 0, 1), -1);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "1 entries");
    CHECK_INT(ggml_profile_get_runs(p, NULL, 0, 1), -1);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "1 entries");
    CHECK_INT(ggml_profile_get_runs(p, runs, 7, 3), 0);
    CHECK(ggml_profile_in_use() == NULL);
    OK(ggml_profile_use(p));
    ggml_profile_free(p); // the thread keeps its profile
    CHECK(ggml_profile_in_use() == p);
    CHECK_INT(ggml_profile_get_records(p, NULL, 0, 0), 0);
    OK(ggml_profile_use(NULL));
    ggml_profile_free(NULL);
}

// If memory for a profile, or for the times of a run, is missing, records are lost and results are
// not.
static void without_memory(void) {
    OPEN_WORK(w, 2);
    for (int i = 1; i <= 6; i++) {
        gb_test_fail_alloc(i, false);
        ggml_profile_t none = ggml_profile_new(8);
        gb_test_fail_alloc(0, false);
        CHECK_INT(none == NULL, 1);
        ggml_clear_error();
    }
    ggml_profile_t p = ggml_profile_new(0);
    compute(&w, p, 1); // makes threads and scratch memory first
    for (int i = 1; i <= 8; i++) {
        OK(ggml_profile_use(p));
        gb_test_fail_alloc(i, false);
        const bool ok = ggml_backend_graph_compute(w.cpu, w.graph);
        gb_test_fail_alloc(0, false);
        OK(ggml_profile_use(NULL));
        CHECK(ok || ggml_last_status() == GGML_STATUS_ALLOC_FAILED);
        ggml_clear_error();
    }
    take(p);
    check_order();
    CHECK(ggml_profile_n_dropped(p) > 0 && n_records > 0);
    ggml_profile_free(p);
    close_work(&w);
}

// ------------------------------------------------------------------------------------------- stopped, inside, at once

static atomic_int asked;

static bool stop_later(void * data) {
    (void) data;
    return atomic_fetch_add(&asked, 1) >= 2;
}

static void stopped_runs(void) {
    OPEN_WORK(w, 2);
    ggml_profile_t p = ggml_profile_new(0);
    OK(ggml_backend_cpu_set_abort_callback(w.cpu, stop_later, NULL));
    OK(ggml_profile_use(p));
    CHECK(!ggml_backend_graph_compute(w.cpu, w.graph));
    CHECK_ERROR(GGML_STATUS_ABORTED, "stopped");
    OK(ggml_profile_use(NULL));
    take(p);
    check_order();
    REQUIRE(n_runs == 1);
    CHECK(!runs[0].complete && runs[0].end_ns > 0);
    for (size_t i = 0; i < n_records; i++) {
        CHECK(strcmp(steps[records[i].step].nodes[0].name, "sum") != 0);
    }
    OK(ggml_backend_cpu_set_abort_callback(w.cpu, NULL, NULL));
    compute(&w, p, 1);
    take(p);
    CHECK(n_runs == 2 && runs[1].complete && step_named("sum") != NULL);
    ggml_profile_free(p);
    close_work(&w);
}

static struct work * inner;

static void compute_inner(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * data) {
    (void) nth;
    (void) data;
    memcpy(dst->data, a->data, ggml_nbytes(a));
    if (ith == 0 && inner != NULL) {
        struct work * w = inner;
        inner = NULL;
        CHECK(ggml_backend_graph_compute(w->cpu, w->graph));
        CHECK(ggml_profile_in_use() == NULL);
    }
}

// A user's function that computes a graph is one node.
static void runs_inside_of_nodes(void) {
    OPEN_WORK(w, 1);
    OPEN_WORK(v, 1);
    struct ggml_cgraph * graph = ggml_new_graph(w.ctx);
    struct ggml_tensor * y = ggml_map_custom1(w.ctx, floats(&w, "z", 8, 1), compute_inner, 1, NULL);
    OK(ggml_build_forward_expand(graph, ggml_set_name(y, "mapped")));
    ggml_profile_t p = ggml_profile_new(0);
    inner = &v;
    OK(ggml_profile_use(p));
    CHECK(ggml_backend_graph_compute(w.cpu, graph));
    OK(ggml_profile_use(NULL));
    take(p);
    CHECK_INT(n_records, 1);
    CHECK_INT(n_runs, 1);
    CHECK_STR(steps[0].nodes[0].name, "mapped");
    ggml_profile_free(p);
    close_work(&w);
    close_work(&v);
}

enum { AT_ONCE = 4, TIMES = 40 };

static void * compute_often(void * data) {
    ggml_profile_t p = data;
    struct work w;
    if (open_work(&w, 2)) {
        compute(&w, p, TIMES);
        close_work(&w);
    }
    return NULL;
}

// Several threads record in one profile, and another thread reads it.
static void threads_at_once(void) {
    ggml_profile_t p = ggml_profile_new(0);
    pthread_t threads[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) {
        REQUIRE(pthread_create(&threads[i], NULL, compute_often, p) == 0);
    }
    for (int i = 0; i < 100; i++) {
        take(p);
        check_order();
    }
    for (int i = 0; i < AT_ONCE; i++) {
        pthread_join(threads[i], NULL);
    }
    take(p);
    check_order();
    CHECK_INT(n_runs, AT_ONCE * TIMES);
    int nodes = 0;
    for (size_t i = 0; i < n_records; i++) {
        nodes += steps[records[i].step].n_nodes;
    }
    CHECK_INT(nodes, AT_ONCE * TIMES * 4);
    CHECK_INT(ggml_profile_n_dropped(p), 0);
    ggml_profile_free(p);
}

#if !defined(_WIN32) && !defined(__SANITIZE_THREAD__)
static void in_a_child(void) {
    OPEN_WORK(w, 2);
    ggml_profile_t p = ggml_profile_new(0);
    compute(&w, p, 1);
    take(p);
    const size_t before = n_records;
    const pid_t child = fork();
    if (child == 0) {
        compute(&w, p, 1);
        take(p);
        check_order();
        _exit(n_records == 2 * before && n_runs == 2 && test_failures == 0 ? 0 : 1);
    }
    int status = -1;
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    take(p);
    CHECK_INT(n_records, before);
    ggml_profile_free(p);
    close_work(&w);
}
#else
static void in_a_child(void) { SKIP("there is no fork that the thread sanitizer can follow"); }
#endif

// --------------------------------------------------------------------------------------------------------- schedulers

// The CPU reports its operators. For devices with a queue, with or without a clock, splits are
// timed.
static void splits_of_devices(void) {
    static const char * const devices[] = { "SIM CPU", "SIM CPU", "CPU CPU" };
    for (int d = 0; d < 3; d++) {
        struct place q;
        REQUIRE(open_place(&q, devices[d]));
        if (d == 1) {
            q.backends[0]->iface.event_new_timed = NULL; // a queue without a clock
        }
        struct ggml_tensor * x = put(&q, leaf(&q, "x", 8, 2), q.n - 1, false);
        struct ggml_tensor * w = put(&q, leaf(&q, "w", 8, 8), q.n - 1, true);
        fill(x, 1, 0);
        fill(w, 1, 0);
        struct ggml_tensor * y = ggml_set_name(ggml_mul_mat(q.ctx, w, x), "first");
        OK(ggml_backend_sched_set_node_backend(q.sched, y, q.backends[0]));
        struct ggml_tensor * z = ggml_set_name(ggml_sqr(q.ctx, y), "second");
        OK(ggml_backend_sched_set_node_backend(q.sched, z, q.backends[1]));
        expand(&q, z);
        ggml_profile_t p = ggml_profile_new(0);
        OK(ggml_profile_use(p));
        OK(ggml_backend_sched_graph_compute(q.sched, q.graph));
        OK(ggml_backend_sched_graph_compute_async(q.sched, q.graph));
        OK(ggml_backend_sched_synchronize(q.sched));
        OK(ggml_profile_use(NULL));
        CHECK_AT(z, 0, 64);
        take(p);
        CHECK_INT(n_runs, 2);
        CHECK_INT(n_records, 4);
        const struct ggml_profile_step *first = step_named("first"), *second = step_named("second");
        REQUIRE(first != NULL && second != NULL);
        CHECK_STR(first->device, ggml_backend_name(q.backends[0]));
        CHECK_STR(first->fusion, d == 2 ? "" : "split");
        CHECK_STR(second->device, d == 2 ? "CPU1" : "CPU");
        CHECK_STR(second->fusion, "");
        CHECK(record_of(first)->flops == 2.0 * 8 * 16 && record_of(second)->flops == 16);
        CHECK_INT(ggml_backend_sched_get_n_trace_events(q.sched), 0);
        ggml_profile_free(p);
        close_place(&q);
    }
}

// A trace beside a profile keeps its events.
static void beside_a_trace(void) {
    OPEN(q, "SIM CPU");
    struct ggml_tensor * x = put(&q, leaf(&q, "x", 8, 2), 1, false);
    fill(x, 1, 0);
    struct ggml_tensor * y = ggml_set_name(ggml_sqr(q.ctx, x), "square");
    OK(ggml_backend_sched_set_node_backend(q.sched, y, q.backends[0]));
    expand(&q, y);
    ggml_profile_t p = ggml_profile_new(0);
    OK(ggml_backend_sched_set_trace(q.sched, true));
    OK(ggml_backend_sched_graph_compute(q.sched, q.graph));
    OK(ggml_profile_use(p));
    OK(ggml_backend_sched_graph_compute(q.sched, q.graph));
    const size_t n = ggml_backend_sched_get_n_trace_events(q.sched);
    OK(ggml_backend_sched_set_trace(q.sched, false));
    OK(ggml_backend_sched_graph_compute(q.sched, q.graph));
    OK(ggml_profile_use(NULL));
    CHECK_INT(ggml_backend_sched_get_n_trace_events(q.sched), n);
    take(p);
    CHECK_INT(n_records, 2);
    CHECK_INT(n_runs, 2);
    ggml_profile_free(p);
    close_place(&q);
}

static void failing_devices(void) {
    OPEN(q, "SIM:fail_op=SQR CPU");
    struct ggml_tensor * x = put(&q, leaf(&q, "x", 8, 2), 1, false);
    fill(x, 1, 0);
    struct ggml_tensor * y = ggml_sqr(q.ctx, x);
    OK(ggml_backend_sched_set_node_backend(q.sched, y, q.backends[0]));
    expand(&q, y);
    ggml_profile_t p = ggml_profile_new(0);
    OK(ggml_profile_use(p));
    CHECK(ggml_backend_sched_graph_compute(q.sched, q.graph) != GGML_STATUS_SUCCESS);
    ggml_clear_error();
    OK(ggml_profile_use(NULL));
    take(p);
    CHECK_INT(n_records, 0);
    CHECK(n_runs == 1 && !runs[0].complete && runs[0].end_ns > 0);
    ggml_profile_free(p);
    close_place(&q);
}

// A graph on one device, without a scheduler.
static void graph_of_a_device(void) {
    OPEN(q, "SIM");
    struct ggml_tensor * x = put(&q, leaf(&q, "x", 8, 2), 0, false);
    fill(x, 2, 0);
    struct ggml_tensor * y = put(&q, ggml_set_name(ggml_sqr(q.ctx, x), "square"), 0, false);
    expand(&q, y);
    ggml_profile_t p = ggml_profile_new(0);
    OK(ggml_profile_use(p));
    CHECK(ggml_backend_graph_compute(q.backends[0], q.graph));
    OK(ggml_profile_use(NULL));
    CHECK_AT(y, 0, 4);
    take(p);
    REQUIRE(n_records == 1 && n_steps == 1 && n_runs == 1);
    CHECK_STR(steps[0].device, ggml_backend_name(q.backends[0]));
    CHECK_STR(steps[0].fusion, "split");
    CHECK(runs[0].complete && records[0].bytes_read == 64);
    ggml_profile_free(p);
    close_place(&q);
}

TEST_MAIN(TEST(every_operator_once_a_run), TEST(work_of_steps), TEST(algorithm_is_that_of_the_table), TEST(full),
    TEST(wrong_calls), TEST(without_memory), TEST(stopped_runs), TEST(runs_inside_of_nodes), TEST(threads_at_once),
    TEST(in_a_child), TEST(splits_of_devices), TEST(beside_a_trace), TEST(failing_devices), TEST(graph_of_a_device))
