// The poll of a thread, waits that call it, and the run that pools and queues pass on.
#include "test.h"

#include <stdatomic.h>

#include "base/current.h"
#include "base/env.h"
#include "base/thread.h"
#include "cpu/threadpool.h"
#include "ggml-backend.h"
#include "sim/sim_device.h"

static gb_mutex mutex;
static gb_cond cond;

static bool init_locks(void) { return gb_mutex_init(&mutex) && gb_cond_init(&cond); }

static void destroy_locks(void) {
    gb_cond_destroy(&cond);
    gb_mutex_destroy(&mutex);
}

// --------------------------------------------------------------------------------------------------------------- polls

struct asked {
    int times, stop_at; // returns true from this call on; 0: never
    bool nested;        // calls gb_poll itself
    int inner;          // the results of these calls
};

static bool ask(void * data) {
    struct asked * a = data;
    a->times++;
    if (a->nested) {
        a->inner += gb_poll();
    }
    gb_mutex_lock(&mutex); // succeeds, because polls hold no lock
    gb_mutex_unlock(&mutex);
    return a->stop_at > 0 && a->times >= a->stop_at;
}

static void elsewhere(void * arg) { *(bool *) arg = gb_get_poll(NULL) != NULL || gb_poll() || gb_run() != NULL; }

static void the_poll_is_the_threads(void) {
    struct asked a = { .stop_at = 2, .nested = true };
    void * data;
    REQUIRE(init_locks());
    CHECK(!gb_poll());
    gb_set_poll(ask, &a);
    gb_set_run(&a);
    CHECK(gb_get_poll(&data) == ask && data == &a);
    CHECK(!gb_poll());
    CHECK(gb_poll());
    CHECK_INT(a.times, 2); // a poll within a poll is not called
    CHECK_INT(a.inner, 0);
    bool theirs = true;
    gb_thread thread;
    REQUIRE(gb_thread_start(&thread, elsewhere, &theirs));
    gb_thread_join(thread);
    CHECK(!theirs);
    gb_set_poll(NULL, NULL);
    gb_set_run(NULL);
    CHECK(!gb_poll());
    destroy_locks();
}

static void timed_waits_end(void) {
    REQUIRE(init_locks());
    gb_mutex_lock(&mutex);
    const int64_t start = gb_time_ns();
    while (gb_cond_wait_for(&cond, &mutex, 3000000)) { // spurious wake-ups
    }
    CHECK(gb_time_ns() - start >= 3000000);
    while (gb_cond_wait_for(&cond, &mutex, -5)) {
    }
    gb_mutex_unlock(&mutex);
    destroy_locks();
}

static void waits_poll_until_they_are_stopped(void) {
    struct asked a = { .stop_at = 3 };
    REQUIRE(init_locks());
    gb_set_poll(ask, &a);
    gb_mutex_lock(&mutex);
    const int64_t start = gb_time_ns();
    while (!gb_cond_wait_polled(&cond, &mutex)) {
    }
    gb_mutex_unlock(&mutex);
    gb_set_poll(NULL, NULL);
    CHECK_INT(a.times, 3);
    CHECK(gb_time_ns() - start >= 2 * (int64_t) GB_POLL_NS);
    destroy_locks();
}

struct waker {
    atomic_bool end;
    atomic_int turns;
};

static void wake_often(void * arg) {
    struct waker * w = arg;
    while (!w->end) {
        gb_mutex_lock(&mutex);
        gb_cond_broadcast(&cond);
        gb_mutex_unlock(&mutex);
        w->turns++;
        gb_sleep_us(1000);
    }
}

// A thread that wakes up often still polls, but not at each wake-up.
static void wakeups_do_not_keep_it_from_asking(void) {
    struct asked a = { .stop_at = 4 };
    struct waker w = { false, 0 };
    gb_thread thread;
    REQUIRE(init_locks());
    REQUIRE(gb_thread_start(&thread, wake_often, &w));
    gb_set_poll(ask, &a);
    gb_mutex_lock(&mutex);
    while (!gb_cond_wait_polled(&cond, &mutex)) {
    }
    gb_mutex_unlock(&mutex);
    gb_set_poll(NULL, NULL);
    w.end = true;
    gb_thread_join(thread);
    CHECK_INT(a.times, 4);
    CHECK_MSG(w.turns >= 8, "%d turns", w.turns);
    destroy_locks();
}

// ---------------------------------------------------------------------------------------------------------------- runs

static int run_a, run_b;

struct seen {
    void * expected;
    atomic_int right, wrong;
};

static void look(void * arg, int ith, int nth) {
    struct seen * s = arg;
    (void) ith;
    (void) nth;
    atomic_fetch_add(gb_run() == s->expected ? &s->right : &s->wrong, 1);
}

struct caller {
    struct gb_cpu_pool * pool;
    void * run;
    struct seen seen;
};

static void call_often(void * arg) {
    struct caller * c = arg;
    gb_set_run(c->run);
    c->seen.expected = c->run;
    for (int i = 0; i < 200; i++) {
        gb_cpu_pool_run(c->pool, 3, look, NULL, NULL, &c->seen);
    }
    gb_set_run(NULL);
}

// Two threads share a pool. The workers see the run of the thread that they work for.
static void pools_carry_the_run(void) {
    struct gb_cpu_pool * pool = gb_cpu_pool_new(3);
    REQUIRE(pool != NULL);
    struct caller callers[3] = { { .pool = pool, .run = &run_a }, { .pool = pool, .run = &run_b }, { .pool = pool } };
    gb_thread threads[3];
    for (int i = 0; i < 3; i++) {
        REQUIRE(gb_thread_start(&threads[i], call_often, &callers[i]));
    }
    for (int i = 0; i < 3; i++) {
        gb_thread_join(threads[i]);
        CHECK_INT(callers[i].seen.right, 600);
        CHECK_INT(callers[i].seen.wrong, 0);
    }
    gb_cpu_pool_free(pool);
}

struct look_work {
    struct gb_sim_work work; // first
    struct seen * seen;
    bool team;
};

static enum ggml_status run_look(struct gb_sim_work * work) {
    const struct look_work * w = (struct look_work *) work;
    look(w->seen, 0, 1);
    struct gb_cpu_pool * pool = w->team ? gb_cpu_pool_borrow(2) : NULL;
    if (pool != NULL) {
        gb_cpu_pool_run(pool, 2, look, NULL, NULL, w->seen);
        gb_cpu_pool_give_back(pool);
    }
    return GGML_STATUS_SUCCESS;
}

static void free_look(struct gb_sim_device * device, struct gb_sim_work * work) { gb_sim_work_free(device, work); }

static void queues_carry_the_run(void) {
    struct gb_sim_params params;
    REQUIRE(gb_sim_params_parse("", &params) == GGML_STATUS_SUCCESS);
    struct gb_sim_device * device = gb_sim_device_new(&params);
    REQUIRE(device != NULL);
    struct seen seen[3] = { { .expected = &run_a }, { .expected = &run_b }, { .expected = NULL } };
    const int n = 60;
    for (int i = 0; i < n; i++) {
        struct look_work * w = gb_sim_work_new(device, sizeof(*w));
        REQUIRE(w != NULL);
        w->work = (struct gb_sim_work){ .run = run_look, .free = free_look };
        w->seen = &seen[i % 3];
        w->team = true;
        gb_set_run(seen[i % 3].expected);
        CHECK_INT(gb_sim_submit(device, &w->work), GGML_STATUS_SUCCESS);
    }
    gb_set_run(NULL);
    CHECK_INT(gb_sim_wait(device, true), GGML_STATUS_SUCCESS);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(seen[i].right, n);
        CHECK_INT(seen[i].wrong, 0);
    }
    gb_sim_device_unref(device);
    gb_cpu_pools_trim();
}

TEST_MAIN(TEST(the_poll_is_the_threads), TEST(timed_waits_end), TEST(waits_poll_until_they_are_stopped),
    TEST(wakeups_do_not_keep_it_from_asking), TEST(pools_carry_the_run), TEST(queues_carry_the_run))
