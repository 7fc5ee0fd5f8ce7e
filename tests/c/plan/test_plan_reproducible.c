// Reproducible plans: the clock, the load of the machine and the number of threads change nothing,
// and an interrupt ends the search. The thread's poll simulates a slow processor: its first call,
// before any search, spends more processor time than the budget.
#include <stdatomic.h>

#include "plan/plan.h"
#include "base/current.h"
#include "base/env.h"
#include "base/mem.h"
#include "base/thread.h"
#include "ggml-alloc.h"
#include "test.h"

enum { MOST = 5000, N_BUSY = 2 };

struct instance {
    size_t n;
    int64_t lower[MOST], upper[MOST];
    size_t size[MOST];
};

struct plan {
    enum ggml_status status;
    struct ggml_plan_info info;
    size_t offsets[MOST];
};

// n buffers with lifetimes of up to 1 / part of the time.
static void make(struct instance * x, size_t n, int64_t part) {
    x->n = n;
    for (size_t i = 0; i < n; i++) {
        x->lower[i] = test_random_int(0, 2 * (int64_t) n);
        x->upper[i] = x->lower[i] + test_random_int(1, 2 * (int64_t) n / part);
        x->size[i] = (size_t) test_random_int(1, 1 << 20);
    }
}

// With budgets of a few milliseconds, each search ends by its budget.
static const struct {
    size_t n;
    int64_t part, budget_ms;
} kinds[] = { { 300, 1, 1 }, { 700, 10, 5 }, { 1000, 1, 1 }, { 1500, 3, 2 }, { 3000, 30, 2 }, { 5000, 30, 1 } };

static void plan_with(const struct instance * x, const struct ggml_plan_options * options, struct plan * plan) {
    *plan = (struct plan){ 0 };
    plan->status = ggml_plan_memory_with(x->n, x->lower, x->upper, x->size, 1, options, plan->offsets, &plan->info);
}

static bool is_valid(const struct instance * x, const struct plan * plan) {
    struct gb_plan_item * items = gb_calloc(x->n, sizeof(*items));
    size_t a, b, peak = 0;
    for (size_t i = 0; items && i < x->n; i++) {
        items[i] = (struct gb_plan_item){ x->lower[i], x->upper[i], x->size[i], plan->offsets[i] };
        peak = plan->offsets[i] + x->size[i] > peak ? plan->offsets[i] + x->size[i] : peak;
    }
    const bool valid = items && gb_plan_validate(items, x->n, 1, &a, &b) == NULL && peak == plan->info.peak;
    gb_free(items);
    return valid;
}

static void check_equal(const struct plan * a, const struct plan * b, const char * what) {
    CHECK_MSG(memcmp(a->offsets, b->offsets, sizeof(a->offsets)) == 0, "%s: other offsets", what);
    CHECK_INT(b->status, a->status);
    CHECK_INT(b->info.peak, a->info.peak);
    CHECK_INT(b->info.bound, a->info.bound);
    CHECK_INT(b->info.best_fit, a->info.best_fit);
    CHECK(b->info.proved == a->info.proved && b->info.unfinished == a->info.unfinished);
}

// -------------------------------------------------------------------------------------------------------- a slow clock

struct burn {
    int64_t ns; // of this thread, for each call
    int times;
};

static bool burns(void * data) {
    struct burn * const burn = data;
    const int64_t end = gb_thread_time_ns() + burn->ns;
    while (gb_thread_time_ns() < end) {
    }
    burn->times++;
    return false;
}

// Plans as on a processor so slow that the heuristics exceed the budget.
static void plan_slowly(const struct instance * x, const struct ggml_plan_options * options, struct plan * plan) {
    struct burn burn = { .ns = options->budget_ms * 2000000 };
    gb_set_poll(burns, &burn);
    while (!gb_poll_is_due()) { // the planner polls before anything else
    }
    plan_with(x, options, plan);
    gb_set_poll(NULL, NULL);
    CHECK(burn.times > 0);
}

static atomic_bool all_done;

static void keeps_busy(void * arg) {
    volatile uint64_t * const count = arg;
    while (!atomic_load(&all_done)) {
        ++*count;
    }
}

static struct instance one;
static struct plan first, other;
static volatile uint64_t counts[N_BUSY];

static void the_clock_changes_nothing(void) {
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        struct ggml_plan_options options = { .budget_ms = kinds[k].budget_ms, .reproducible = true };
        make(&one, kinds[k].n, kinds[k].part);
        plan_with(&one, &options, &first);
        CHECK_INT(first.status, GGML_STATUS_SUCCESS);
        CHECK(is_valid(&one, &first));
        plan_slowly(&one, &options, &other);
        check_equal(&first, &other, "slowly");
        options.reproducible = false; // the clock ends the search at once
        plan_slowly(&one, &options, &other);
        CHECK_INT(other.status, GGML_STATUS_SUCCESS);
        CHECK(is_valid(&one, &other));
        CHECK_MSG(other.info.peak > first.info.peak, "%zu buffers: %zu by the clock, %zu reproducible", one.n,
            other.info.peak, first.info.peak);
    }
}

static void threads_and_load_change_nothing(void) {
    static const int counts_of_threads[] = { 1, 2, 4, 1 };
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        struct ggml_plan_options options = { .budget_ms = kinds[k].budget_ms, .n_threads = 1, .reproducible = true };
        gb_thread busy[N_BUSY];
        int n_busy = 0;
        make(&one, kinds[k].n, kinds[k].part);
        plan_with(&one, &options, &first);
        atomic_store(&all_done, false);
        while (n_busy < N_BUSY && gb_thread_start(&busy[n_busy], keeps_busy, (void *) &counts[n_busy])) {
            n_busy++;
        }
        for (size_t t = 0; t < sizeof(counts_of_threads) / sizeof(counts_of_threads[0]); t++) {
            options.n_threads = counts_of_threads[t];
            plan_with(&one, &options, &other);
            check_equal(&first, &other, "beside busy threads");
        }
        plan_slowly(&one, &options, &other);
        check_equal(&first, &other, "slowly, beside busy threads");
        options.n_threads = 3;
        plan_slowly(&one, &options, &other);
        check_equal(&first, &other, "slowly, on three threads");
        atomic_store(&all_done, true);
        for (int i = 0; i < n_busy; i++) {
            gb_thread_join(busy[i]);
        }
    }
}

// The search ends when a plan is within the capacity. A capacity that no plan reaches is an error
// with the smallest found plan.
static void plans_with_a_capacity_are_reproducible(void) {
    struct ggml_plan_options options = { .budget_ms = 2, .reproducible = true };
    make(&one, 1000, 1);
    plan_with(&one, &options, &first);
    CHECK(is_valid(&one, &first) && !first.info.proved);
    for (int k = 0; k < 2; k++) {
        options.capacity = k == 0 ? (first.info.peak + first.info.best_fit) / 2 : first.info.lower_bound;
        plan_with(&one, &options, &first);
        CHECK_INT(first.status, k == 0 ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED);
        CHECK(is_valid(&one, &first) && (k == 1 || first.info.peak <= options.capacity));
        plan_slowly(&one, &options, &other);
        check_equal(&first, &other, "with a capacity");
        options.n_threads = 4;
        plan_with(&one, &options, &other);
        check_equal(&first, &other, "with a capacity, on threads");
    }
}

static void without_a_budget_the_option_changes_nothing(void) {
    struct ggml_plan_options options = { .n_threads = 2 };
    make(&one, 2000, 10);
    plan_with(&one, &options, &first);
    options.reproducible = true;
    plan_slowly(&one, &options, &other);
    check_equal(&first, &other, "without a budget");
}

// ---------------------------------------------------------------------------------------------------------- interrupts

static bool the_third_time(void * data) { return ++*(int *) data >= 3; }

// The budget is years.
static void an_interrupt_ends_the_search(void) {
    for (int threads = 1; threads <= 4; threads += 3) {
        const struct ggml_plan_options options = { .budget_ms = INT64_MAX, .n_threads = threads, .reproducible = true };
        int times = 0;
        make(&one, 3000, 10);
        other = (struct plan){ .info = { .peak = 123 } };
        memset(other.offsets, 7, sizeof(other.offsets));
        first = other;
        gb_set_poll(the_third_time, &times);
        const enum ggml_status status =
            ggml_plan_memory_with(one.n, one.lower, one.upper, one.size, 1, &options, other.offsets, &other.info);
        gb_set_poll(NULL, NULL);
        CHECK_INT(status, GGML_STATUS_ABORTED);
        CHECK_INT(times, 3);
        CHECK(memcmp(&first, &other, sizeof(first)) == 0); // nothing was written
        ggml_clear_error();
    }
}

TEST_MAIN(TEST(the_clock_changes_nothing), TEST(threads_and_load_change_nothing),
    TEST(plans_with_a_capacity_are_reproducible), TEST(without_a_budget_the_option_changes_nothing),
    TEST(an_interrupt_ends_the_search))
