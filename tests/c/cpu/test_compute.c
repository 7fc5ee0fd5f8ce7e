// The engine: nodes see the effects of earlier nodes, for any number of threads. Failures and
// callbacks stop all threads. Invalid plans are refused.
#include "test.h"

#include "ggml-cpu.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "base/thread.h"
#include "cpu/cpu.h"
#include "cpu/plan.h"
#include "cpu/threadpool.h"
#include "ggml-backend.h"
#include "tensor/tensor.h"

static struct ggml_context * new_context(bool no_alloc) {
    return ggml_init((struct ggml_init_params){ 16u << 20, NULL, no_alloc });
}

static struct ggml_tensor * new_vector(struct ggml_context * ctx, int64_t n, float value) {
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, n);
    return t != NULL ? ggml_set_f32(t, value) : NULL;
}

static struct ggml_cgraph * graph_of(struct ggml_context * ctx, struct ggml_tensor * t) {
    struct ggml_cgraph * graph = ggml_new_graph_custom(ctx, 4096, false);
    ggml_build_forward_expand(graph, t);
    return graph;
}

// Checks that every element equals v. Elementwise checks find a share that no thread computed.
static bool all_equal(const struct ggml_tensor * t, float v) {
    const float * x = ggml_get_data_f32(t);
    for (int64_t i = 0; i < ggml_nelements(t); i++) {
        if (x[i] != v) {
            return false;
        }
    }
    return true;
}

static const int thread_counts[] = { 1, 2, 3, 4, 8, 16 };
#define FOR_THREADS(n) for (int i_ = 0, n; i_ < 6 && (n = thread_counts[i_], true); i_++)

// ------------------------------------------------------------------------------------------------------------- results

static void chain_of_large_and_small_nodes(void) {
    FOR_THREADS(n) {
        struct ggml_context * ctx = new_context(false);
        REQUIRE(ctx != NULL);
        struct ggml_tensor * large = new_vector(ctx, 100003, 1);
        struct ggml_tensor * small = new_vector(ctx, 1, 2);
        float v = 1, w = 2;
        for (int i = 0; i < 40; i++) { // small integers: exact
            small = ggml_add(ctx, small, small);
            w = w + w;
            if (i % 8 == 7) {
                small = ggml_scale(ctx, small, 1.0f / 256);
                w = w / 256;
            }
            large = i % 3 == 0 ? ggml_add1(ctx, large, small) : ggml_add(ctx, large, large);
            v = i % 3 == 0 ? v + w : v + v;
            if (v > 65536) {
                large = ggml_scale(ctx, large, 1.0f / 65536);
                v = v / 65536;
            }
        }
        CHECK_INT(ggml_graph_compute_with_ctx(ctx, graph_of(ctx, large), n), GGML_STATUS_SUCCESS);
        CHECK_MSG(all_equal(large, v), "with %d threads: %g, expected %g", n, (double) ggml_get_f32_1d(large, 0),
            (double) v);
        ggml_free(ctx);
    }
}

static void in_place_nodes_run_in_order(void) {
    FOR_THREADS(n) {
        struct ggml_context * ctx = new_context(false);
        REQUIRE(ctx != NULL);
        struct ggml_tensor * a = new_vector(ctx, 50000, 3);
        struct ggml_tensor * x = a;
        for (int i = 0; i < 20; i++) {
            x = ggml_scale_inplace(ctx, x, i % 2 == 0 ? 2.0f : 0.5f);
        }
        x = ggml_scale_inplace(ctx, x, 4);
        CHECK_INT(ggml_graph_compute_with_ctx(ctx, graph_of(ctx, x), n), GGML_STATUS_SUCCESS);
        CHECK(all_equal(a, 12));
        ggml_free(ctx);
    }
}

static void views_are_no_work(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_tensor * a = new_vector(ctx, 64, 5);
    struct ggml_tensor * v = ggml_transpose(ctx, ggml_reshape_2d(ctx, ggml_view_1d(ctx, a, 32, 64), 8, 4));
    struct ggml_cgraph * g = graph_of(ctx, v);
    CHECK_INT(g->n_nodes, 3);
    struct ggml_cplan plan = ggml_graph_plan(g, 4);
    CHECK_INT(plan.work_size, 0);
    CHECK_INT(ggml_graph_compute(g, &plan), 0);
    CHECK(all_equal(a, 5));
    ggml_free(ctx);
}

static void empty_graph_and_empty_tensors(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    struct ggml_cplan plan = ggml_graph_plan(g, 0);
    CHECK_INT(plan.n_threads, GGML_DEFAULT_N_THREADS);
    CHECK_INT(ggml_graph_compute(g, &plan), 0);
    struct ggml_tensor * nothing = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 0, 3);
    struct ggml_tensor * sum = ggml_add(ctx, nothing, nothing);
    REQUIRE(sum != NULL);
    CHECK_INT(ggml_graph_compute_with_ctx(ctx, graph_of(ctx, sum), 2), GGML_STATUS_SUCCESS);
    ggml_free(ctx);
}

static void counts_runs(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_tensor * a = new_vector(ctx, 4, 1);
    struct ggml_tensor * b = ggml_reshape_2d(ctx, ggml_sqr(ctx, a), 2, 2);
    struct ggml_cgraph * g = graph_of(ctx, b);
    for (int i = 0; i < 3; i++) {
        ggml_graph_compute_with_ctx(ctx, g, 1);
    }
    CHECK_INT(g->perf_runs, 3);
    CHECK_INT(g->nodes[0]->perf_runs, 3);
    CHECK_INT(b->perf_runs, 3);
    CHECK_INT(a->perf_runs, 0);
    ggml_free(ctx);
}

// -------------------------------------------------------------------------------------------------------- custom nodes

struct witness {
    atomic_int calls[16], nth_sum, at_once, most_at_once;
};

static void look(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * user) {
    struct witness * w = user;
    atomic_fetch_add(&w->calls[ith], 1);
    const int now = atomic_fetch_add(&w->at_once, 1) + 1;
    atomic_fetch_add(&w->nth_sum, nth); // after at_once, so a waiting thread counts as present
    // Threads wait for each other, even if a busy machine delays the second one.
    for (int64_t end = ggml_time_us() + 60000000;
        nth > 1 && atomic_load(&w->nth_sum) < 2 * nth && ggml_time_us() < end;) {
        gb_thread_yield();
    }
    int most = atomic_load(&w->most_at_once);
    while (now > most && !atomic_compare_exchange_weak(&w->most_at_once, &most, now)) {
    }
    const int64_t rows = ggml_nelements(a) / nth, first = rows * ith;
    for (int64_t i = first; i < (ith == nth - 1 ? ggml_nelements(a) : first + rows); i++) {
        ((float *) dst->data)[i] = 2 * ((const float *) a->data)[i];
    }
    atomic_fetch_sub(&w->at_once, 1);
}

static void custom_nodes_get_their_tasks(void) {
    static const struct {
        int wanted, threads, nth;
    } cases[] = {
        { GGML_N_TASKS_MAX, 1, 1 },
        { GGML_N_TASKS_MAX, 4, 4 },
        { 1, 4, 1 },
        { 3, 4, 3 },
        { 9, 4, 4 },
        { 2, 16, 2 },
        { -1, 16, 16 },
    };
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct ggml_context * ctx = new_context(false);
        REQUIRE(ctx != NULL);
        struct witness w = { 0 };
        struct ggml_tensor * x = new_vector(ctx, 1000, 1);
        struct ggml_tensor * y =
            ggml_scale(ctx, ggml_map_custom1(ctx, ggml_scale(ctx, x, 3), look, cases[c].wanted, &w), 5);
        REQUIRE(y != NULL);
        CHECK_INT(ggml_graph_compute_with_ctx(ctx, graph_of(ctx, y), cases[c].threads), GGML_STATUS_SUCCESS);
        CHECK(all_equal(y, 30));
        for (int i = 0; i < 16; i++) {
            CHECK_INT(w.calls[i], i < cases[c].nth ? 1 : 0);
        }
        CHECK_INT(w.nth_sum, cases[c].nth * cases[c].nth);
        CHECK(cases[c].nth == 1 || w.most_at_once > 1); // the threads ran at the same time
        ggml_free(ctx);
    }
}

// Runs a plan repeatedly until the caller computes a run alone, because its threads slept. Returns
// the number of runs, 0 if none was alone. Each run calls check(arg). Every other run begins with
// unknown times. The others begin with times that say that waking threads is slow. *woken: runs
// with unknown times that woke threads.
static int runs_until_alone(struct gb_cpu_plan * plan, int n, void (*check)(void * arg), void * arg, int * woken) {
    const struct gb_cpu_plan_times unknown = { 0 }, long_ones = { .n_woken = 2, .woken_ns = 100000, .alone_ns = 1 };
    struct gb_cpu_pool * pool = gb_cpu_pool_new(n);
    const struct gb_cpu_run run = { .kernels = gb_kernels_default(), .work = malloc(plan->work_size + 1) };
    int found = 0;
    CHECK(pool != NULL && run.work != NULL);
    for (int i = 0; pool != NULL && run.work != NULL && i < 500 && found == 0; i++) {
        CHECK_INT(gb_cpu_plan_run(plan, pool, &run), GGML_STATUS_SUCCESS);
        check(arg);
        found = plan->times.ended_ns != 0 ? i + 1 : 0;
        *woken += i % 2 == 0 && plan->times.n_woken > 0;
        plan->times = i % 2 == 0 ? long_ones : unknown;
        gb_sleep_us(1000);
    }
    gb_cpu_pool_free(pool);
    free(run.work);
    return found;
}

struct product { // a matrix times itself
    struct ggml_tensor * y;
    float first[64 * 64];
    int runs;
};

static void same_bits(void * arg) {
    struct product * p = arg;
    if (p->runs++ == 0) {
        memcpy(p->first, p->y->data, sizeof(p->first));
    }
    CHECK(memcmp(p->first, p->y->data, sizeof(p->first)) == 0);
    memset(p->y->data, 0xff, sizeof(p->first));
}

// The caller may compute short plans alone while its threads sleep. The bits are the same.
static void the_caller_alone_computes_the_same(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_tensor * a = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 200, 64);
    for (int64_t i = 0; i < ggml_nelements(a); i++) {
        ((float *) a->data)[i] = (float) (i * 7919 % 2003 - 1001) / 250.0f;
    }
    struct product p = { .y = ggml_mul_mat(ctx, a, a) };
    struct gb_cpu_plan * plan = gb_cpu_plan_of_graph(graph_of(ctx, p.y), 3);
    REQUIRE(plan != NULL && plan->team == 3);
    int woken = 0;
    CHECK(runs_until_alone(plan, 3, same_bits, &p, &woken) > 1);
    double sum = 0; // the first column times itself
    for (int64_t i = 0; i < 200; i++) {
        sum += (double) ((float *) a->data)[i] * ((float *) a->data)[i];
    }
    CHECK(fabs(p.first[0] - sum) < 1e-3 * sum);
    gb_cpu_plan_free(plan);
    ggml_free(ctx);
}

// One run in 32 makes the slower choice. It moves the mean of that choice by at most a quarter of
// the difference.
static void the_slower_choice_is_tried_again(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct gb_cpu_plan * plan = gb_cpu_plan_of_graph(graph_of(ctx, ggml_scale(ctx, new_vector(ctx, 100000, 1), 2)), 3);
    struct gb_cpu_pool * pool = gb_cpu_pool_new(3);
    const struct gb_cpu_run run = { .kernels = gb_kernels_default() };
    REQUIRE(plan != NULL && pool != NULL && plan->team == 3);
    CHECK_INT(gb_cpu_plan_run(plan, pool, &run), GGML_STATUS_SUCCESS); // starts the threads
    for (int way = 0; way < 2; way++) { // the slower choice: 0 wakes threads, 1 is alone
        const struct gb_cpu_plan_times slow = {
            .n_woken = 2, .woken_ns = 100000 + !way, .alone_ns = 100000 + way, .n_rested = 31
        };
        for (int i = 0; i < 1000 && (i == 0 || plan->times.n_rested == 31); i++) { // until threads sleep
            plan->times = slow;
            gb_sleep_us(1000);
            CHECK_INT(gb_cpu_plan_run(plan, pool, &run), GGML_STATUS_SUCCESS);
        }
        const int64_t mean = way == 0 ? plan->times.woken_ns : plan->times.alone_ns;
        CHECK((plan->times.ended_ns != 0) == (way == 1));
        // a very long run alone resets all times
        CHECK(plan->times.n_woken == 0 || (plan->times.n_rested == 32 && mean > 74000 && mean < 126000));
    }
    gb_cpu_pool_free(pool);
    gb_cpu_plan_free(plan);
    ggml_free(ctx);
}

// Runs the plan with these times until the caller computes a run alone, which requires sleeping
// threads. False if no run was alone.
static bool run_alone_once(struct gb_cpu_plan * plan, struct gb_cpu_pool * pool, const struct gb_cpu_plan_times * t) {
    const struct gb_cpu_run run = { .kernels = gb_kernels_default() };
    for (int i = 0; i < 500; i++) {
        plan->times = *t;
        CHECK_INT(gb_cpu_plan_run(plan, pool, &run), GGML_STATUS_SUCCESS);
        if (plan->times.ended_ns != 0) {
            return true;
        }
        gb_sleep_us(1000);
    }
    return false;
}

// The plan keeps the times of a run that is long for the caller alone and short with threads. If a
// run alone becomes long, all times are measured again.
static void long_runs_alone_are_remembered(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ (size_t) 64 << 20, NULL, false });
    REQUIRE(ctx != NULL);
    struct ggml_tensor * y = ggml_gelu(ctx, ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4000000)); // above 200 us
    struct gb_cpu_plan * plan = gb_cpu_plan_of_graph(graph_of(ctx, y), 3);
    struct gb_cpu_pool * pool = gb_cpu_pool_new(3);
    REQUIRE(plan != NULL && pool != NULL && plan->team == 3);
    memset(y->src[0]->data, 0, ggml_nbytes(y->src[0]));
    const struct gb_cpu_plan_times not_tried = { .n_woken = 2, .woken_ns = 100000 };
    CHECK(run_alone_once(plan, pool, &not_tried));
    CHECK(plan->times.n_woken == 2 && plan->times.woken_ns == 100000 && plan->times.alone_ns >= 200000);
    const struct gb_cpu_plan_times was_short = { .n_woken = 2, .woken_ns = 100000, .alone_ns = 1000 };
    CHECK(run_alone_once(plan, pool, &was_short));
    CHECK(plan->times.n_woken == 0 && plan->times.woken_ns == 0 && plan->times.alone_ns == 0);
    gb_cpu_pool_free(pool);
    gb_cpu_plan_free(plan);
    ggml_free(ctx);
}

// After a delay the caller computes a number of runs alone, even if no thread sleeps. The results
// are the same.
static void a_caller_that_was_held_up_goes_alone(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_tensor * y = ggml_scale(ctx, new_vector(ctx, 100000, 1), 2);
    struct gb_cpu_plan * plan = gb_cpu_plan_of_graph(graph_of(ctx, y), 3);
    struct gb_cpu_pool * pool = gb_cpu_pool_new(3);
    const struct gb_cpu_run run = { .kernels = gb_kernels_default() };
    REQUIRE(plan != NULL && pool != NULL && plan->team == 3);
    plan->times.alone_left = plan->times.alone_next = 16;
    for (unsigned left = 16; left > 0; left--) {
        CHECK_INT(plan->times.alone_left, left);
        memset(y->data, 0xff, ggml_nbytes(y));
        CHECK_INT(gb_cpu_plan_run(plan, pool, &run), GGML_STATUS_SUCCESS);
        CHECK(all_equal(y, 2));
        CHECK_INT(plan->times.n_rested, 0);
        if (plan->times.alone_left == 0 && left > 1) {
            break; // a very long run reset all times
        }
    }
    CHECK_INT(plan->times.alone_left, 0);
    CHECK(plan->times.ended_ns != 0);
    gb_cpu_pool_free(pool);
    gb_cpu_plan_free(plan);
    ggml_free(ctx);
}

// A copy in which the second thread is slow, as if another process used its processor.
static void copy_slowly(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * data) {
    (void) data;
    if (ith == 1) {
        gb_sleep_us(300000);
    }
    const size_t part = ggml_nbytes(a) / (size_t) nth, at = part * (size_t) ith;
    memcpy((char *) dst->data + at, (const char *) a->data + at, part);
}

// After a long wait the caller computes the remaining steps and the next runs alone, with the same
// results. This includes plans that are too long for other runs alone.
static void a_caller_does_not_wait_for_a_stopped_thread_again(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ (size_t) 64 << 20, NULL, false });
    REQUIRE(ctx != NULL);
    struct ggml_tensor * y = ggml_map_custom1(ctx, new_vector(ctx, 100000, 1), copy_slowly, 2, NULL);
    for (int i = 0; i < 20; i++) { // several steps, with far less work than the sleep
        y = ggml_scale(ctx, y, i % 2 == 0 ? 2.0f : 0.5f);
    }
    struct gb_cpu_plan * plan = gb_cpu_plan_of_graph(graph_of(ctx, y), 2);
    struct gb_cpu_pool * pool = gb_cpu_pool_new(2);
    const struct gb_cpu_run run = { .kernels = gb_kernels_default() };
    REQUIRE(plan != NULL && pool != NULL && plan->team == 2 && plan->n_steps > 2);
    plan->has_custom = false; // the caller always waits in plans with the program's functions
    CHECK_INT(gb_cpu_plan_run(plan, pool, &run), GGML_STATUS_SUCCESS);
    CHECK(all_equal(y, 1));
    CHECK(plan->times.alone_left >= 1 || plan->times.alone_ns > 16000000); // long plans always try
    for (unsigned left = plan->times.alone_left; left > 0; left--) {
        memset(y->data, 0xff, ggml_nbytes(y));
        CHECK_INT(gb_cpu_plan_run(plan, pool, &run), GGML_STATUS_SUCCESS);
        CHECK(all_equal(y, 1));
        if (plan->times.alone_left == 0) {
            break; // the last run, or a very long run reset all times
        }
        CHECK_INT(plan->times.alone_left, left - 1);
    }
    CHECK_INT(plan->times.alone_left, 0);
    gb_cpu_pool_free(pool);
    gb_cpu_plan_free(plan);
    ggml_free(ctx);
}

// Delays that are short beside the run do not dismiss the threads, and a run without delay halves the number of runs
// alone, also if the threads slept when it began.
static void short_delays_are_forgiven(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_tensor * y = ggml_map_custom1(ctx, new_vector(ctx, 1000, 1), copy_slowly, 2, NULL);
    for (int i = 0; i < 4; i++) {
        y = ggml_scale(ctx, y, 1);
    }
    struct gb_cpu_plan * plan = gb_cpu_plan_of_graph(graph_of(ctx, y), 2);
    struct gb_cpu_pool * pool = gb_cpu_pool_new(2);
    const struct gb_cpu_run run = { .kernels = gb_kernels_default() };
    REQUIRE(plan != NULL && pool != NULL && plan->team == 2);
    plan->has_custom = false;               // plans with functions of the program's always wait
    plan->times.alone_ns = 3600000000000;   // an hour: the delay of 0.3 s is short beside it
    plan->times.alone_next = 64;
    for (unsigned next = 32; next > 4; next /= 2) {
        CHECK_INT(gb_cpu_plan_run(plan, pool, &run), GGML_STATUS_SUCCESS);
        CHECK_INT(plan->times.alone_left, 0);
        CHECK_INT(plan->times.alone_next, next);
        gb_sleep_us(1000);
    }
    CHECK(all_equal(y, 1));
    gb_cpu_pool_free(pool);
    gb_cpu_plan_free(plan);
    ggml_free(ctx);
}

static void three_looked(void * arg) {
    struct witness * w = arg;
    CHECK_INT(w->nth_sum, 3 * 3);
    w->nth_sum = 0;
}

// The program's functions get the requested threads, even if threads slept.
static void custom_nodes_are_never_run_alone(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct witness w = { 0 };
    struct ggml_tensor * y = ggml_map_custom1(ctx, new_vector(ctx, 1000, 1), look, 3, &w);
    struct gb_cpu_plan * plan = gb_cpu_plan_of_graph(graph_of(ctx, y), 3);
    REQUIRE(plan != NULL);
    int woken = 0;
    CHECK_INT(runs_until_alone(plan, 3, three_looked, &w, &woken), 0);
    CHECK(woken > 0);
    gb_cpu_plan_free(plan);
    ggml_free(ctx);
}

static bool stop_at_once(void * data) {
    (void) data;
    return true;
}

// Stopped runs do not change the times of a plan.
static void stopped_runs_are_not_measured(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_tensor * y = ggml_scale(ctx, new_vector(ctx, 100000, 1), 2);
    struct gb_cpu_plan * plan = gb_cpu_plan_of_graph(graph_of(ctx, y), 3);
    struct gb_cpu_pool * pool = gb_cpu_pool_new(3);
    REQUIRE(plan != NULL && pool != NULL);
    struct gb_cpu_run run = { .kernels = gb_kernels_default() };
    int64_t alone_ns = 0; // after the first run
    for (int i = 0; i < 1000 && plan->times.n_woken == 0; i++) { // until a run begins with sleeping threads
        run.abort_callback = i > 0 && i < 8 ? stop_at_once : NULL; // the first run starts the threads
        CHECK_INT(gb_cpu_plan_run(plan, pool, &run),
            run.abort_callback != NULL ? GGML_STATUS_ABORTED : GGML_STATUS_SUCCESS);
        alone_ns = i == 0 ? plan->times.alone_ns : alone_ns;
        CHECK(i >= 8 || (plan->times.n_woken == 0 && plan->times.alone_ns == alone_ns));
        gb_sleep_us(1000);
    }
    CHECK(plan->times.n_woken > 0 && plan->times.woken_ns > 0);
    CHECK(all_equal(y, 2));
    gb_cpu_pool_free(pool);
    gb_cpu_plan_free(plan);
    ggml_free(ctx);
}

static void compute_inside(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * user) {
    (void) nth;
    (void) user;
    if (ith == 0) { // another graph, with its own threads
        struct ggml_context * ctx = new_context(false);
        struct ggml_tensor * y = ggml_scale(ctx, new_vector(ctx, 50000, ((const float *) a->data)[0]), 2);
        ggml_graph_compute_with_ctx(ctx, graph_of(ctx, y), 2);
        ((float *) dst->data)[0] = ((const float *) y->data)[49999];
        ggml_free(ctx);
    }
}

static void a_node_may_compute_a_graph(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_tensor * y = ggml_map_custom1(ctx, new_vector(ctx, 1, 21), compute_inside, 2, NULL);
    CHECK_INT(ggml_graph_compute_with_ctx(ctx, graph_of(ctx, y), 2), GGML_STATUS_SUCCESS);
    CHECK(all_equal(y, 42));
    ggml_free(ctx);
}

// -------------------------------------------------------------------------------------------------------------- errors

static void bad_plans_are_refused(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_cgraph * g = graph_of(ctx, ggml_sqr(ctx, new_vector(ctx, 4, 2)));
    struct ggml_cplan plan = ggml_graph_plan(g, 2);
    CHECK(ggml_graph_compute(NULL, &plan) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "cgraph");
    CHECK(ggml_graph_compute(g, NULL) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "cplan");
    plan.n_threads = 0;
    CHECK(ggml_graph_compute(g, &plan) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "n_threads");
    plan.n_threads = 2;
    plan.work_size = 100;
    CHECK(ggml_graph_compute(g, &plan) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "work_data");
    CHECK_INT(g->perf_runs, 0);
    CHECK(ggml_graph_compute_with_ctx(NULL, g, 1) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK(ggml_graph_compute_with_ctx(ctx, NULL, 1) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_graph_plan(NULL, 3).work_size, 0);
    CHECK_INT(ggml_graph_plan(g, 100000).n_threads, GB_CPU_MAX_THREADS);
    ggml_free(ctx);
}

static void work_memory_is_asked_for_and_needed(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_tensor * a = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 48);
    struct ggml_tensor * b = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 40);
    ggml_set_f32(a, 1);
    ggml_set_f32(b, 2);
    struct ggml_tensor * y = ggml_mul_mat(ctx, a, b);
    struct ggml_cgraph * g = graph_of(ctx, y);
    struct ggml_cplan plan = ggml_graph_plan(g, 3);
    if (plan.work_size == 0) {
        ggml_free(ctx);
        SKIP("the product needs no work memory");
    }
    CHECK_INT(ggml_graph_plan(g, 3).work_size, plan.work_size);
    char * block = malloc(plan.work_size + 1);
    plan.work_data = (uint8_t *) block + 1; // any alignment; a sanitizer finds writes beyond the end
    CHECK_INT(ggml_graph_compute(g, &plan), 0);
    CHECK(all_equal(y, 128));
    plan.work_size--;
    CHECK(ggml_graph_compute(g, &plan) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "bytes of work memory");
    free(block);
    ggml_free(ctx);
}

static void the_message_names_unallocated_tensors(void) {
    struct ggml_context * ctx = new_context(false);
    struct ggml_context * bare = new_context(true);
    REQUIRE(ctx != NULL && bare != NULL);
    struct ggml_tensor * here = ggml_set_name(new_vector(ctx, 4, 1), "here");
    struct ggml_tensor * absent = ggml_set_name(ggml_new_tensor_1d(bare, GGML_TYPE_F32, 4), "absent");
    struct ggml_tensor * first = ggml_scale(ctx, here, 3);
    struct ggml_tensor * sum = ggml_add(ctx, first, absent);
    ggml_set_f32(first, -1);
    CHECK(ggml_graph_compute_with_ctx(ctx, graph_of(ctx, sum), 2) == GGML_STATUS_INVALID_STATE);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "'absent' f32 [4]");
    CHECK(all_equal(first, -1)); // no node ran
    struct ggml_tensor * node = ggml_set_name(ggml_sqr(bare, here), "result");
    CHECK(ggml_graph_compute_with_ctx(ctx, graph_of(ctx, node), 1) == GGML_STATUS_INVALID_STATE);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "'result'");
    ggml_free(ctx);
    ggml_free(bare);
}

static void unsupported_nodes_are_explained(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_tensor * ints = ggml_set_name(ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 4), "ints");
    struct ggml_tensor * y = ggml_set_name(ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 4), "y");
    y->op = GGML_OP_SOFT_MAX; // no builder makes this node
    y->src[0] = ints;
    struct ggml_cgraph * g = graph_of(ctx, y);
    CHECK_INT(ggml_graph_plan(g, 1).work_size, 0);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "SOFT_MAX");
    CHECK(ggml_graph_compute_with_ctx(ctx, g, 1) == GGML_STATUS_UNSUPPORTED);
    CHECK(strstr(ggml_last_error(), "'ints' i32 [4]") != NULL && strstr(ggml_last_error(), "'y' i32 [4]") != NULL);
    y->op = (enum ggml_op) 4000;
    CHECK(ggml_graph_compute_with_ctx(ctx, g, 1) == GGML_STATUS_INVALID_ARGUMENT);
    ggml_free(ctx);
}

static void failures_inside_nodes_stop_the_run(void) {
    FOR_THREADS(n) {
        struct ggml_context * ctx = new_context(false);
        REQUIRE(ctx != NULL);
        struct ggml_tensor * rows = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 512, 10);
        struct ggml_tensor * ids = ggml_set_name(ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 400), "ids");
        ggml_set_f32(rows, 1);
        ggml_set_i32(ids, 0);
        ggml_set_i32_1d(ids, 399, 10); // in the share of the last thread
        struct ggml_tensor * got = ggml_get_rows(ctx, rows, ids);
        struct ggml_tensor * after = ggml_scale(ctx, got, 2);
        ggml_set_f32(after, -7);
        struct ggml_cgraph * g = graph_of(ctx, after);
        CHECK(ggml_graph_compute_with_ctx(ctx, g, n) == GGML_STATUS_INVALID_ARGUMENT);
        CHECK(strstr(ggml_last_error(), "GET_ROWS") != NULL && strstr(ggml_last_error(), "10") != NULL);
        CHECK(all_equal(after, -7));
        CHECK_INT(g->perf_runs, 0);
        ggml_set_i32_1d(ids, 399, 9); // then the graph works again
        CHECK_INT(ggml_graph_compute_with_ctx(ctx, g, n), GGML_STATUS_SUCCESS);
        CHECK(all_equal(after, 2));
        ggml_free(ctx);
    }
}

static bool stop_after(void * data) { return --*(int *) data < 0; }

// Computes with n threads. The callback stops the run when it is called for the (allowed + 1)-th
// time.
static int compute_allowed(struct ggml_cgraph * g, int n, int allowed) {
    struct ggml_cplan plan = ggml_graph_plan(g, n);
    plan.abort_callback = stop_after;
    plan.abort_callback_data = &allowed;
    return ggml_graph_compute(g, &plan);
}

static int times_doubled(float v) {
    int n = 0;
    for (; v > 1; v /= 2) {
        n++;
    }
    return n;
}

// Returns how many of ten nodes ran with n threads. The callback allows some of them.
static int nodes_before_abort(int n, int allowed) {
    struct ggml_context * ctx = new_context(false);
    struct ggml_tensor * x = new_vector(ctx, 20000, 1); // several threads share it
    struct ggml_tensor * s = new_vector(ctx, 3, 1); // one thread computes it
    for (int i = 0; i < 5; i++) {
        x = ggml_scale_inplace(ctx, x, 2);
        s = ggml_scale_inplace(ctx, s, 2);
    }
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    ggml_build_forward_expand(g, s);
    ggml_build_forward_expand(g, x);
    const int status = compute_allowed(g, n, allowed);
    const int ran = times_doubled(ggml_get_f32_1d(s, 0)) + times_doubled(ggml_get_f32_1d(x, 19999));
    CHECK(ran <= allowed);
    CHECK_INT(status, ran < 10 ? GGML_STATUS_ABORTED : GGML_STATUS_SUCCESS);
    CHECK_INT(g->perf_runs, ran == 10);
    ggml_free(ctx);
    return ran;
}

// The callback is called before each node, so `allowed` nodes run. Long nodes and stopped threads
// cause more calls, so a busy machine gets more tries.
static void aborts_between_nodes(void) {
    ggml_graph_set_fusion(false); // aborts_between_groups tests groups
    FOR_THREADS(n) {
        for (int allowed = 0; allowed <= 12; allowed++) {
            const int wanted = GB_MIN(allowed, 10);
            int ran = -1;
            for (int tries = 0; tries < 50 && ran != wanted; tries++) {
                ran = nodes_before_abort(n, allowed);
            }
            CHECK_INT(ran, wanted);
        }
    }
    ggml_graph_set_fusion(true);
}

// Ten nodes that may be fused. Checks that all elements passed the same number of nodes, and
// returns it.
static int grouped_before_abort(int n, int allowed) {
    struct ggml_context * ctx = new_context(false);
    struct ggml_tensor * x = new_vector(ctx, 20000, 1);
    for (int i = 0; i < 10; i++) {
        x = ggml_scale_inplace(ctx, x, 2);
    }
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    ggml_build_forward_expand(g, x);
    const int status = compute_allowed(g, n, allowed);
    const int ran = times_doubled(ggml_get_f32_1d(x, 19999));
    CHECK(all_equal(x, (float) (1 << ran)));
    CHECK_INT(status, ran == 10 ? GGML_STATUS_SUCCESS : GGML_STATUS_ABORTED);
    CHECK(allowed > 0 || ran == 0);
    ggml_free(ctx);
    return ran;
}

// A fused group runs completely or not at all. The callback is called before each group, so each
// allowed call lets at least one more node run. Busy machines cause more calls, so they get more
// tries.
static void aborts_between_groups(void) {
    FOR_THREADS(n) {
        int before = -1;
        for (int allowed = 0; before < 10 && !test_failures; allowed++) {
            int ran = -1;
            for (int tries = 0; tries < 50 && ran <= before; tries++) {
                ran = grouped_before_abort(n, allowed);
            }
            CHECK(ran > before);
            before = ran;
        }
    }
}

// --------------------------------------------------------------------------------------------------------- concurrency

static void * compute_own_graphs(void * arg) {
    const int n = *(int *) arg;
    for (int r = 0; r < 10; r++) {
        struct ggml_context * ctx = new_context(false);
        struct ggml_tensor * x = ctx != NULL ? new_vector(ctx, 30000, 1) : NULL;
        for (int i = 0; i < 10; i++) {
            x = ggml_add(ctx, x, x);
        }
        if (x == NULL || ggml_graph_compute_with_ctx(ctx, graph_of(ctx, x), n) != GGML_STATUS_SUCCESS ||
            !all_equal(x, 1024)) {
            return "wrong";
        }
        ggml_free(ctx);
    }
    return NULL;
}

static void graphs_at_once(void) {
    pthread_t threads[6];
    int n[6];
    for (int i = 0; i < 6; i++) {
        n[i] = 1 + i % 4;
        REQUIRE(pthread_create(&threads[i], NULL, compute_own_graphs, &n[i]) == 0);
    }
    for (int i = 0; i < 6; i++) {
        void * wrong = NULL;
        pthread_join(threads[i], &wrong);
        CHECK(wrong == NULL);
    }
}

static void a_million_nodes(void) {
    const int length = 1000000;
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, true });
    REQUIRE(ctx != NULL);
    float one = 0;
    struct ggml_tensor * x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1);
    x->data = &one;
    struct ggml_tensor * y = x;
    for (int i = 0; i < length && y != NULL; i++) {
        y = ggml_scale_inplace(ctx, y, 1);
    }
    REQUIRE(y != NULL);
    struct ggml_cgraph * g = ggml_new_graph_custom(ctx, (size_t) length, false);
    REQUIRE(g != NULL);
    ggml_build_forward_expand(g, y);
    CHECK_INT(g->n_nodes, length);
    struct ggml_cplan plan = ggml_graph_plan(g, 1);
    const int64_t start = ggml_time_us();
    CHECK_INT(ggml_graph_compute(g, &plan), 0);
    printf("     %.0f ns a node\n", (double) (ggml_time_us() - start) * 1e3 / length);
    ggml_free(ctx);
}

// -------------------------------------------------------------------------------------------------------------- memory

static void out_of_memory(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_tensor * x = new_vector(ctx, 30000, 1);
    struct ggml_cgraph * g = graph_of(ctx, ggml_add(ctx, ggml_scale(ctx, x, 2), x));
    gb_cpu_pools_trim();
    const int64_t before = gb_test_live_allocs();
    bool done = false;
    for (int n = 1; n < 100 && !done; n++) {
        struct ggml_cplan plan = ggml_graph_plan(g, 3);
        gb_test_fail_alloc(n, false);
        const int status = ggml_graph_compute(g, &plan);
        done = !gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK_INT(status, done ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED);
        gb_cpu_pools_trim();
        CHECK_INT(gb_test_live_allocs(), before);
    }
    CHECK(done);
    CHECK(all_equal(g->nodes[1], 3));
    ggml_free(ctx);
}

TEST_MAIN(TEST(chain_of_large_and_small_nodes), TEST(in_place_nodes_run_in_order), TEST(views_are_no_work),
    TEST(empty_graph_and_empty_tensors), TEST(counts_runs), TEST(custom_nodes_get_their_tasks),
    TEST(the_caller_alone_computes_the_same), TEST(the_slower_choice_is_tried_again),
    TEST(long_runs_alone_are_remembered), TEST(a_caller_that_was_held_up_goes_alone),
    TEST(a_caller_does_not_wait_for_a_stopped_thread_again), TEST(short_delays_are_forgiven),
    TEST(custom_nodes_are_never_run_alone), TEST(stopped_runs_are_not_measured), TEST(a_node_may_compute_a_graph),
    TEST(bad_plans_are_refused), TEST(work_memory_is_asked_for_and_needed), TEST(the_message_names_unallocated_tensors),
    TEST(unsupported_nodes_are_explained), TEST(failures_inside_nodes_stop_the_run), TEST(aborts_between_nodes),
    TEST(aborts_between_groups), TEST(graphs_at_once), TEST(a_million_nodes), TEST(out_of_memory))
