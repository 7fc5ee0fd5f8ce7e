// Runs of the caller alone: a short plan does not wake sleeping threads, and a delayed caller does not
// wait for its threads again. Results have the same bits. Also tests which times a plan keeps.
#include "test_compute.h"

#include <stdatomic.h>

#include "base/thread.h"
#include "cpu/cpu.h"
#include "cpu/plan.h"
#include "cpu/threadpool.h"

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

// A delay that is short compared with the run does not lead to runs alone. A run without delay halves
// the number of runs alone, even if the threads slept when it began.
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
    plan->has_custom = false; // the caller always waits in plans with the program's functions
    plan->times.alone_ns = 3600000000000; // an hour, so the delay by copy_slowly is short
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

static void add_threads(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * sum) {
    (void) dst;
    (void) a;
    (void) ith;
    atomic_fetch_add((atomic_int *) sum, nth);
}

static void three_were_called(void * arg) {
    atomic_int * sum = arg;
    CHECK_INT(*sum, 3 * 3);
    *sum = 0;
}

// The program's functions get the requested threads, even if threads slept.
static void custom_nodes_are_never_run_alone(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    atomic_int sum = 0;
    struct ggml_tensor * y = ggml_map_custom1(ctx, new_vector(ctx, 1000, 1), add_threads, 3, &sum);
    struct gb_cpu_plan * plan = gb_cpu_plan_of_graph(graph_of(ctx, y), 3);
    REQUIRE(plan != NULL);
    int woken = 0;
    CHECK_INT(runs_until_alone(plan, 3, three_were_called, &sum, &woken), 0);
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

TEST_MAIN(TEST(the_caller_alone_computes_the_same), TEST(the_slower_choice_is_tried_again),
    TEST(long_runs_alone_are_remembered), TEST(a_caller_that_was_held_up_goes_alone),
    TEST(a_caller_does_not_wait_for_a_stopped_thread_again), TEST(short_delays_are_forgiven),
    TEST(custom_nodes_are_never_run_alone), TEST(stopped_runs_are_not_measured))
