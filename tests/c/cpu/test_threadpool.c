// Thread pool: every share is done exactly once, every waiting thread wakes up, pools are
// independent, and forks are safe.
#define _GNU_SOURCE // masks of processors
#include "test.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/env.h"
#include "base/mem.h"
#include "base/thread.h"
#include "cpu/threadpool.h"

#if defined(__SANITIZE_THREAD__)
#    define UNDER_TSAN 1
#    define UNDER_SANITIZER 1
#elif defined(__SANITIZE_ADDRESS__)
#    define UNDER_TSAN 0
#    define UNDER_SANITIZER 1
#else
#    define UNDER_TSAN 0
#    define UNDER_SANITIZER 0
#endif

#define MAX_THREADS 16

struct tally {
    atomic_int calls[MAX_THREADS];
    atomic_int wrong_nth;
    int expected_nth;
};

static void count(void * arg, int ith, int nth) {
    struct tally * t = arg;
    atomic_fetch_add(&t->calls[ith], 1);
    if (nth != t->expected_nth) {
        atomic_fetch_add(&t->wrong_nth, 1);
    }
}

static void runs_every_share_once(void) {
    for (int n = 1; n <= MAX_THREADS; n++) {
        struct gb_cpu_pool * pool = gb_cpu_pool_new(n);
        REQUIRE(pool != NULL);
        CHECK_INT(gb_cpu_pool_n_threads(pool), n);
        for (int used = 1; used <= n; used++) {
            struct tally t = { .expected_nth = used };
            const int runs = UNDER_TSAN ? 20 : 100;
            for (int r = 0; r < runs; r++) {
                CHECK_INT(gb_cpu_pool_run(pool, used, count, NULL, NULL, &t), GGML_STATUS_SUCCESS);
            }
            for (int i = 0; i < MAX_THREADS; i++) {
                CHECK_INT(t.calls[i], i < used ? runs : 0);
            }
            CHECK_INT(t.wrong_nth, 0);
        }
        gb_cpu_pool_free(pool);
    }
}

static void a_run_has_at_most_the_threads_of_its_pool(void) {
    struct gb_cpu_pool * pool = gb_cpu_pool_new(2);
    REQUIRE(pool != NULL);
    struct tally t = { .expected_nth = 2 };
    CHECK_INT(gb_cpu_pool_run(pool, 7, count, NULL, NULL, &t), GGML_STATUS_SUCCESS);
    CHECK_INT(t.wrong_nth, 0);
    CHECK_INT(t.calls[0] + t.calls[1], 2);
    gb_cpu_pool_free(pool);
}

// Runs n threads, or fewer if `rest` allows it. Returns their number. Checks that each ran once.
static int threads_of(struct gb_cpu_pool * pool, int n, struct gb_cpu_rest * rest) {
    struct tally t = { .expected_nth = n };
    CHECK_INT(gb_cpu_pool_run(pool, n, count, NULL, rest, &t), GGML_STATUS_SUCCESS);
    int used = 0;
    for (int i = 0; i < MAX_THREADS; i++) {
        CHECK(t.calls[i] == 0 || t.calls[i] == 1);
        used += t.calls[i];
    }
    CHECK_INT(t.wrong_nth, used == n ? 0 : used);
    return used;
}

// The caller runs alone if this is allowed and a thread sleeps, unless the last run ended a moment
// ago.
static void the_caller_may_leave_sleeping_workers_asleep(void) {
    struct gb_cpu_pool * pool = gb_cpu_pool_new(3);
    REQUIRE(pool != NULL);
    struct gb_cpu_rest rest = { .may_be_alone = true };
    CHECK_INT(threads_of(pool, 3, &rest), 3);  // no worker has started
    CHECK(!rest.slept);
    int slept = 0;
    for (int i = 0; i < 200; i++) {
        rest = (struct gb_cpu_rest){ .may_be_alone = i % 2 == 0, .start_ns = gb_time_ns() };
        const int used = threads_of(pool, 3, &rest);
        CHECK_INT(used, rest.slept && rest.may_be_alone ? 1 : 3);
        CHECK(!rest.slept || rest.alone == (used == 1));
        slept += rest.slept;
        gb_sleep_us(i % 4 * 500);
    }
    CHECK(slept > 0);
    rest = (struct gb_cpu_rest){ .may_be_alone = true, .ended_ns = gb_time_ns() + 1000000000 };
    CHECK_INT(threads_of(pool, 3, &rest), 3); // the last run ended a moment ago
    CHECK_INT(threads_of(pool, 1, &rest), 1);
    CHECK(!rest.slept);
    gb_cpu_pool_free(pool);
}

static void dawdle(void * arg, int ith, int nth) {
    (void) nth;
    if (ith == *(int *) arg) {
        gb_sleep_us(2000);
    }
}

// A run that must be alone is alone, even if no thread sleeps. It reports how long the caller
// waited.
static void a_delayed_caller_runs_alone(void) {
    struct gb_cpu_pool * pool = gb_cpu_pool_new(3);
    REQUIRE(pool != NULL);
    for (int who = 0; who < 3; who++) {
        struct gb_cpu_rest rest = { 0 };
        int64_t waited = -1;
        for (int tries = 0; tries < 50 && waited < (who > 0 ? 1000000 : 0); tries++) { // the system may stop the caller
            rest = (struct gb_cpu_rest){ .start_ns = gb_time_ns() };
            CHECK_INT(gb_cpu_pool_run(pool, 3, dawdle, NULL, &rest, &who), GGML_STATUS_SUCCESS);
            CHECK(!rest.alone && rest.waited_ns >= 0 && rest.waited_ns <= gb_time_ns() - rest.start_ns);
            waited = rest.waited_ns;
        }
        CHECK(who == 0 || waited >= 1000000); // a worker sleeps twice as long
        rest = (struct gb_cpu_rest){ .must_be_alone = true };
        CHECK_INT(threads_of(pool, 3, &rest), 1);
        CHECK(rest.alone && !rest.slept && rest.waited_ns == 0);
    }
    gb_cpu_pool_free(pool);
}

static void refuses_bad_sizes(void) {
    CHECK(gb_cpu_pool_new(0) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "has 0");
    CHECK(gb_cpu_pool_new(GB_CPU_MAX_THREADS + 1) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "513");
    gb_cpu_pool_free(NULL);
    gb_cpu_pool_give_back(NULL);
}

static void thousands_of_tiny_runs(void) {
    struct gb_cpu_pool * pool = gb_cpu_pool_new(4);
    REQUIRE(pool != NULL);
    struct tally t = { .expected_nth = 4 };
    const int runs = UNDER_TSAN ? 500 : 5000;
    for (int r = 0; r < runs; r++) {
        gb_cpu_pool_run(pool, 4, count, NULL, NULL, &t);
        if (r % 1000 == 999) {
            gb_sleep_us(2000); // until the workers sleep
        }
    }
    CHECK_INT(t.calls[0] + t.calls[1] + t.calls[2] + t.calls[3], 4 * runs);
    gb_cpu_pool_free(pool);
}

// ------------------------------------------------------------------------------------------------------------ barriers

#define ROUNDS (UNDER_TSAN ? 40 : 400)

struct march {
    struct gb_cpu_pool * pool;
    int position[MAX_THREADS]; // not atomic: barriers order the accesses
    int decisions;
    bool odd; // only the last thread to arrive writes it
    atomic_int out_of_step, disagreements;
};

static void decide(void * arg) {
    struct march * m = arg;
    m->decisions++;
    m->odd = m->decisions % 2 != 0;
}

static void marcher(void * arg, int ith, int nth) {
    struct march * m = arg;
    for (int r = 0; r < ROUNDS; r++) {
        m->position[ith] = r;
        gb_cpu_pool_barrier(m->pool, GB_CPU_BARRIER_TEAM, nth, decide, m);
        for (int i = 0; i < nth; i++) {
            if (m->position[i] != r) {
                atomic_fetch_add(&m->out_of_step, 1);
            }
        }
        if (m->odd != (r % 2 == 0)) {
            atomic_fetch_add(&m->disagreements, 1);
        }
        const int half = (nth + 1) / 2; // a part of the team has another barrier in between
        if (ith < half) {
            gb_cpu_pool_barrier(m->pool, GB_CPU_BARRIER_NODE, half, NULL, NULL);
        }
        gb_cpu_pool_barrier(m->pool, GB_CPU_BARRIER_TEAM, nth, NULL, NULL);
    }
}

static void barriers_keep_threads_in_step(void) {
    const int sizes[] = { 1, 2, 3, 4, 7, 16 };
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        struct march m = { .pool = gb_cpu_pool_new(sizes[s]) };
        REQUIRE(m.pool != NULL);
        CHECK_INT(gb_cpu_pool_run(m.pool, sizes[s], marcher, NULL, NULL, &m), GGML_STATUS_SUCCESS);
        CHECK_INT(m.decisions, ROUNDS);
        CHECK_INT(m.out_of_step, 0);
        CHECK_INT(m.disagreements, 0);
        gb_cpu_pool_free(m.pool);
    }
}

// ----------------------------------------------------------------------------------------------------- several callers

struct shared_pool {
    struct gb_cpu_pool * pool;
    atomic_int inside; // active runs: at most one
    atomic_int overlaps, total;
};

static void one_at_a_time(void * arg, int ith, int nth) {
    struct shared_pool * s = arg;
    if (ith == 0 && atomic_fetch_add(&s->inside, 1) != 0) {
        atomic_fetch_add(&s->overlaps, 1);
    }
    atomic_fetch_add(&s->total, 1);
    gb_cpu_pool_barrier(s->pool, GB_CPU_BARRIER_TEAM, nth, NULL, NULL);
    if (ith == 0) {
        atomic_fetch_sub(&s->inside, 1);
    }
}

static void * call_often(void * arg) {
    struct shared_pool * s = arg;
    for (int r = 0; r < 200; r++) {
        gb_cpu_pool_run(s->pool, 1 + r % 3, one_at_a_time, NULL, NULL, s);
    }
    return NULL;
}

static void concurrent_callers_queue(void) {
    struct shared_pool s = { .pool = gb_cpu_pool_new(3) };
    REQUIRE(s.pool != NULL);
    pthread_t callers[4];
    for (int i = 0; i < 4; i++) {
        REQUIRE(pthread_create(&callers[i], NULL, call_often, &s) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(callers[i], NULL);
    }
    int per_caller = 0;
    for (int r = 0; r < 200; r++) {
        per_caller += 1 + r % 3;
    }
    CHECK_INT(s.total, 4 * per_caller);
    CHECK_INT(s.overlaps, 0);
    gb_cpu_pool_free(s.pool);
}

static void * borrow_often(void * arg) {
    atomic_int * total = arg;
    for (int r = 0; r < 100; r++) {
        struct gb_cpu_pool * pool = gb_cpu_pool_borrow(2 + r % 4);
        if (pool == NULL) {
            return NULL;
        }
        struct tally t = { .expected_nth = 2 + r % 4 };
        gb_cpu_pool_run(pool, 2 + r % 4, count, NULL, NULL, &t);
        for (int i = 0; i < MAX_THREADS; i++) {
            atomic_fetch_add(total, t.calls[i]);
        }
        gb_cpu_pool_give_back(pool);
    }
    return NULL;
}

static void borrowed_pools_are_exclusive_and_few(void) {
    gb_cpu_pools_trim();
    const int64_t before = gb_test_live_allocs();
    pthread_t callers[4];
    atomic_int total = 0;
    for (int i = 0; i < 4; i++) {
        REQUIRE(pthread_create(&callers[i], NULL, borrow_often, &total) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(callers[i], NULL);
    }
    CHECK_INT(total, 4 * 25 * (2 + 3 + 4 + 5));
    CHECK(gb_test_live_allocs() - before <= 4);
    gb_cpu_pools_trim();
    CHECK_INT(gb_test_live_allocs(), before);
}

struct nested {
    struct gb_cpu_pool *pool, *other;
    enum ggml_status same_status, other_status;
};

static void call_again(void * arg, int ith, int nth) {
    (void) nth;
    struct nested * n = arg;
    if (ith == 0) {
        struct tally t = { .expected_nth = 2 };
        n->same_status = gb_cpu_pool_run(n->pool, 2, count, NULL, NULL, &t);
        n->other_status = gb_cpu_pool_run(n->other, 2, count, NULL, NULL, &t);
    }
}

static void a_run_inside_a_run_is_refused(void) {
    struct nested n = { .pool = gb_cpu_pool_new(2), .other = gb_cpu_pool_new(2) };
    REQUIRE(n.pool != NULL && n.other != NULL);
    CHECK_INT(gb_cpu_pool_run(n.pool, 2, call_again, NULL, NULL, &n), GGML_STATUS_SUCCESS);
    CHECK_INT(n.same_status, GGML_STATUS_INVALID_STATE);
    CHECK_INT(n.other_status, GGML_STATUS_SUCCESS);
    gb_cpu_pool_free(n.pool);
    gb_cpu_pool_free(n.other);
}

// ---------------------------------------------------------------------------------------------------------- processors

#ifdef __linux__

struct masks {
    cpu_set_t expected;
    atomic_int wrong, runs;
};

static void compare_mask(void * arg, int ith, int nth) {
    struct masks * m = arg;
    (void) nth;
    cpu_set_t mask;
    CPU_ZERO(&mask);
    if (ith > 0 && (sched_getaffinity(0, sizeof(mask), &mask) != 0 || !CPU_EQUAL(&mask, &m->expected))) {
        atomic_fetch_add(&m->wrong, 1);
    }
    atomic_fetch_add(&m->runs, 1);
}

// Wakes sleeping workers with the caller on one processor, then on the other, so a worker starts on
// each.
static void run_beside(struct gb_cpu_pool * pool, const cpu_set_t * of_workers) {
    struct masks m = { .expected = *of_workers };
    for (int r = 0; r < 200; r++) {
        const int cpu = r / 10 % CPU_SETSIZE;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        if (CPU_ISSET(cpu, of_workers)) {
            CHECK_INT(sched_setaffinity(0, sizeof(one), &one), 0);
        }
        gb_cpu_pool_run(pool, gb_cpu_pool_n_threads(pool), compare_mask, NULL, NULL, &m);
        gb_sleep_us(r % 4 * 200);
    }
    CHECK_INT(m.runs, 200 * gb_cpu_pool_n_threads(pool));
    CHECK_INT(m.wrong, 0);
}

// Workers keep the mask of the thread that starts them. The test changes the mask of its own
// thread.
static void * with_a_mask(void * arg) {
    const cpu_set_t * mask = arg;
    struct gb_cpu_pool * pool = gb_cpu_pool_new(GB_MAX(2, GB_MIN(gb_n_processors(), 4)));
    if (pool == NULL) {
        return "no pool";
    }
    CHECK_INT(sched_setaffinity(0, sizeof(*mask), mask), 0);
    struct masks m = { .expected = *mask };
    CHECK_INT(gb_cpu_pool_run(pool, gb_cpu_pool_n_threads(pool), compare_mask, NULL, NULL, &m), GGML_STATUS_SUCCESS);
    CHECK_INT(m.wrong, 0);
    run_beside(pool, mask);
    gb_cpu_pool_free(pool);
    return NULL;
}

static void workers_keep_their_mask(void) {
    cpu_set_t all, one;
    CPU_ZERO(&all);
    CPU_ZERO(&one);
    REQUIRE(sched_getaffinity(0, sizeof(all), &all) == 0);
    int first = 0;
    while (!CPU_ISSET(first, &all)) {
        first++;
    }
    CPU_SET(first, &one);
    cpu_set_t masks[] = { all, one };
    for (int i = 0; i < 2; i++) {
        pthread_t t;
        void * failed = NULL;
        REQUIRE(pthread_create(&t, NULL, with_a_mask, &masks[i]) == 0);
        pthread_join(t, &failed);
        CHECK(failed == NULL);
    }
}

#else

static void workers_keep_their_mask(void) { SKIP("only Linux reports the mask of a thread"); }

#endif

// ---------------------------------------------------------------------------------------------------------------- fork

static int in_child(struct gb_cpu_pool * pool) {
    alarm(20); // a hang ends with a signal
    struct tally t = { .expected_nth = 3 };
    for (int r = 0; r < 50; r++) {
        gb_cpu_pool_run(pool, 3, count, NULL, NULL, &t);
    }
    gb_cpu_pool_free(pool);
    return t.calls[0] == 50 && t.calls[1] == 50 && t.calls[2] == 50 && t.wrong_nth == 0 ? 0 : 1;
}

static void check_child(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %#x", (unsigned) status);
}

static void a_child_starts_its_own_workers(void) {
    if (UNDER_TSAN) {
        SKIP("the thread sanitizer cannot follow a fork that starts threads");
    }
    struct gb_cpu_pool * pool = gb_cpu_pool_new(3);
    REQUIRE(pool != NULL);
    struct tally t = { .expected_nth = 3 };
    gb_cpu_pool_run(pool, 3, count, NULL, NULL, &t);
    for (int attempt = 0; attempt < 10; attempt++) { // workers spin first, and sleep later
        gb_sleep_us(attempt % 2 == 0 ? 0 : 1000);
        const pid_t pid = fork();
        REQUIRE(pid >= 0);
        if (pid == 0) {
            _exit(in_child(pool));
        }
        check_child(pid);
        gb_cpu_pool_run(pool, 3, count, NULL, NULL, &t); // the parent's pool works
    }
    CHECK_INT(t.calls[2], 11);
    gb_cpu_pool_free(pool);
}

struct busy {
    struct gb_cpu_pool * pool;
    atomic_bool stop;
};

static void * keep_busy(void * arg) {
    struct busy * b = arg;
    struct tally t = { .expected_nth = 3 };
    while (!atomic_load(&b->stop)) {
        gb_cpu_pool_run(b->pool, 3, count, NULL, NULL, &t);
    }
    return NULL;
}

// The fork happens during a run of another thread, while the pool's locks are held.
static void a_child_of_a_busy_process(void) {
    if (UNDER_TSAN) {
        SKIP("the thread sanitizer cannot follow a fork that starts threads");
    }
    struct busy b = { .pool = gb_cpu_pool_new(3) };
    REQUIRE(b.pool != NULL);
    pthread_t other;
    REQUIRE(pthread_create(&other, NULL, keep_busy, &b) == 0);
    for (int attempt = 0; attempt < 20; attempt++) {
        gb_sleep_us(300 + attempt * 37);
        const pid_t pid = fork();
        if (pid == 0) {
            _exit(in_child(b.pool));
        }
        check_child(pid);
    }
    atomic_store(&b.stop, true);
    pthread_join(other, NULL);
    gb_cpu_pool_free(b.pool);
}

static void exit_with_a_live_pool(void) {
    if (UNDER_TSAN) {
        SKIP("the thread sanitizer cannot follow a fork that starts threads");
    }
    fflush(stdout); // otherwise the child would print it again
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        alarm(20);
        static struct gb_cpu_pool * pool; // still referenced, so no leak
        pool = gb_cpu_pool_new(4);
        struct tally t = { .expected_nth = 4 };
        gb_cpu_pool_run(pool, 4, count, NULL, NULL, &t);
        exit(0);
    }
    check_child(pid);
}

static void count_warnings(enum ggml_log_level level, const char * text, void * user_data) {
    (void) text;
    *(int *) user_data += level == GGML_LOG_LEVEL_WARN;
}

// The stacks of 16 threads exceed the address space. The threads that started do all the work.
static int with_too_few_threads(void) {
    alarm(20);
    int warnings = 0;
    ggml_log_set(count_warnings, &warnings);
    const struct rlimit limit = { 60u << 20, 60u << 20 };
    struct gb_cpu_pool * pool = gb_cpu_pool_new(16);
    if (pool == NULL || setrlimit(RLIMIT_AS, &limit) != 0) {
        return 2;
    }
    struct tally t = { .expected_nth = 16 };
    for (int r = 0; r < 10; r++) {
        if (gb_cpu_pool_run(pool, 16, count, NULL, NULL, &t) != GGML_STATUS_SUCCESS) {
            return 3;
        }
    }
    int used = 0;
    for (int i = 0; i < MAX_THREADS; i++) {
        used += t.calls[i] == 10;
    }
    const bool all_there = t.wrong_nth == 10 * used; // every call got the actual, smaller number
    gb_cpu_pool_free(pool);
    return used >= 1 && used < 16 && all_there && warnings == 1 && ggml_last_status() == GGML_STATUS_SUCCESS ? 0 : 4;
}

static void fewer_threads_do_the_work(void) {
    if (UNDER_SANITIZER) {
        SKIP("a sanitizer needs all of the address space");
    }
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        _exit(with_too_few_threads());
    }
    check_child(pid);
}

static void out_of_memory(void) {
    const int64_t before = gb_test_live_allocs();
    gb_test_fail_alloc(1, false);
    CHECK(gb_cpu_pool_new(4) == NULL);
    CHECK(gb_test_alloc_failed());
    gb_test_fail_alloc(0, false);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "");
    CHECK_INT(gb_test_live_allocs(), before);
}

TEST_MAIN(TEST(runs_every_share_once), TEST(a_run_has_at_most_the_threads_of_its_pool),
    TEST(the_caller_may_leave_sleeping_workers_asleep), TEST(a_delayed_caller_runs_alone), TEST(refuses_bad_sizes),
    TEST(thousands_of_tiny_runs), TEST(barriers_keep_threads_in_step), TEST(concurrent_callers_queue),
    TEST(borrowed_pools_are_exclusive_and_few), TEST(a_run_inside_a_run_is_refused), TEST(workers_keep_their_mask),
    TEST(a_child_starts_its_own_workers), TEST(a_child_of_a_busy_process), TEST(exit_with_a_live_pool),
    TEST(fewer_threads_do_the_work), TEST(out_of_memory))
