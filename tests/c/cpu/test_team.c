// test_team.c - dynamic sharing (gb_cpu_take): each item is taken once, even if threads come late,
// with any number of threads, in every step and after every barrier. Other threads take the items
// of late threads.
#include "test.h"

#include "base/thread.h"
#include "cpu/ops/ops.h"
#include "cpu/team.h"
#include "cpu/threadpool.h"

#define MOST 40000
#define ROUNDS 60

struct work {
    struct gb_cpu_team * team;
    int64_t n, slot;
    int late; // the thread that sleeps first; -1: none
    atomic_int wrong, others;
};

static atomic_int taken[MOST]; // smaller atomics need a library on some processors

// Takes items until none is left. Returns how many were of other threads.
static int64_t take_all(const struct gb_cpu_call * call, struct work * w, bool in_parts) {
    struct gb_cpu_taking t = gb_cpu_taking_of(call, w->n, w->slot);
    int64_t first, last, part, mine, end, of_others = 0;
    gb_cpu_share(call, w->n, &mine, &end);
    while (gb_cpu_take(&t, &first, &last, &part)) {
        if (first < 0 || last <= first || part < last || last > w->n) {
            atomic_fetch_add(&w->wrong, 1);
            return of_others;
        }
        for (int64_t i = first; i < last; i++) {
            atomic_fetch_add(&taken[i], 1);
            of_others += i < mine || i >= end;
        }
    }
    if (in_parts && of_others > 0) {
        atomic_fetch_add(&w->wrong, 1);
    }
    return of_others;
}

static void check_all(struct work * w, int times) {
    for (int64_t i = 0; i < w->n; i++) {
        if (atomic_exchange(&taken[i], 0) != times) {
            atomic_fetch_add(&w->wrong, 1);
        }
    }
}

static void thread_main(void * arg, int ith, int nth) {
    struct work * w = arg;
    for (int round = 0; round < ROUNDS; round++) {
        struct gb_cpu_pace pace = { GB_CPU_PACE, ith == 0, 0 };
        const struct gb_cpu_call call = { .ith = ith, .nth = nth, .team = w->team, .pace = &pace };
        if (ith == w->late && round % 8 == 0) {
            gb_sleep_us(300);
        }
        const int64_t of_others = take_all(&call, w, false);
        for (int i = 1; i < GB_CPU_TAKINGS; i++) {
            take_all(&call, w, false);
        }
        take_all(&call, w, true); // the next loop of a step has equal shares
        atomic_fetch_add(&w->others, of_others > 0);
        gb_cpu_barrier(&call);
        if (ith == 0) {
            check_all(w, GB_CPU_TAKINGS + 1);
        }
        gb_cpu_barrier(&call);
        take_all(&call, w, false);
        if (nth > 1) {
            gb_cpu_pool_barrier(w->team->pool, GB_CPU_BARRIER_TEAM, nth, NULL, NULL);
        }
        if (ith == 0) {
            check_all(w, 1);
        }
        if (nth > 1) {
            gb_cpu_pool_barrier(w->team->pool, GB_CPU_BARRIER_TEAM, nth, NULL, NULL);
        }
    }
}

static int run(int n_threads, int64_t n, int64_t slot, int late) {
    struct gb_cpu_pool * pool = gb_cpu_pool_new(n_threads);
    struct gb_cpu_team team = { .pool = pool };
    struct work w = { .team = &team, .n = n, .slot = slot, .late = late };
    for (int i = 0; i < 2; i++) { // numbers of the first run do not count in the second
        CHECK_INT(gb_cpu_pool_run(pool, n_threads, thread_main, NULL, NULL, &w), GGML_STATUS_SUCCESS);
    }
    CHECK_MSG(atomic_load(&w.wrong) == 0, "%d threads, %d items in slots of %d: %d wrong", n_threads, (int) n,
        (int) slot, atomic_load(&w.wrong));
    gb_cpu_pool_free(pool);
    return atomic_load(&w.others);
}

static void each_item_once(void) {
    const int64_t sizes[] = { 0, 1, 2, 7, 95, 96, 400, 4096, MOST }, slots[] = { 0, 1, 3, 96 };
    const int threads[] = { 1, 2, 3, 12 };
    for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            for (size_t s = 0; s < sizeof(slots) / sizeof(slots[0]); s++) {
                run(threads[t], sizes[i], slots[s], -1);
            }
        }
    }
}

static void parts_of_late_threads(void) {
    CHECK(run(2, MOST, 16, 1) > 0); // the other thread took the items of the sleeping one
    CHECK(run(2, MOST, 16, 0) > 0);
    CHECK(run(12, MOST, 16, 5) > 0);
}

TEST_MAIN(TEST(each_item_once), TEST(parts_of_late_threads))
