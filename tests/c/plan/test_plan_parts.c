// Parts and groups of buffers, and the contract of the search (plan/plan_search.h): plans without a
// search, and the arguments and effects of a search of the test's own.
#include "plan/plan_search.h"
#include "base/mem.h"
#include "base/status.h"
#include "test.h"

enum { MAX_ITEMS = 900 };
static struct gb_plan_item items[MAX_ITEMS];

static bool valid(const struct gb_plan_item * of, size_t n) {
    size_t a, b;
    return gb_plan_validate(of, n, 1, &a, &b) == NULL;
}

// Checks the peak of the part, and writes its offsets to the items.
static void take_offsets(const struct gb_plan_part * part, struct gb_plan_item * into) {
    size_t highest = 0;
    for (uint32_t b = 0; b < part->n; b++) {
        into[part->buffers[b].item].offset = part->floor + part->offsets[b];
        highest = GB_MAX(highest, part->offsets[b] + part->buffers[b].size);
    }
    CHECK_INT(part->peak, highest);
}

// n items in three parts. wide: the first item is alive throughout, so all are one part with
// groups.
static void random_items(size_t n, bool wide) {
    for (size_t i = 0; i < n; i++) {
        const int64_t begin = 2000 * (int64_t) (i % 3), at = begin + test_random_int(0, 990);
        items[i] = (struct gb_plan_item){ at, at + test_random_int(1, 500), (size_t) test_random_int(1, 5000), 0 };
    }
    if (wide) {
        items[0].lower = 0;
        items[0].upper = 6000;
    }
}

static struct gb_plan_costs costs_with(gb_plan_search_fn search) {
    return (struct gb_plan_costs){ .heuristic = { .steps = 3000000, .deadline = INT64_MAX },
        .search = { .steps = 3000000, .deadline = INT64_MAX },
        .whole = true,
        .search_part = search };
}

// Plans n items with a search.
static enum ggml_status plan_with(gb_plan_search_fn search, size_t n, struct gb_plan_result * result) {
    struct gb_plan_problem p;
    struct gb_plan_costs costs = costs_with(search);
    enum ggml_status status = gb_plan_problem_init(&p, items, n, 1);
    status = status == GGML_STATUS_SUCCESS ? gb_plan_parts(&p, p.bound, &costs, result) : status;
    for (size_t k = 0; status == GGML_STATUS_SUCCESS && k < p.n_parts; k++) {
        take_offsets(&p.parts[k], items);
    }
    gb_plan_problem_free(&p);
    return status;
}

// -------------------------------------------------------------------------------------------------------------- search

static void without_a_search_plans_are_valid(void) {
    int n_above = 0;
    for (int round = 0; round < 60; round++) {
        struct gb_plan_result none, full;
        const size_t n = (size_t) test_random_int(1, round % 10 ? 120 : MAX_ITEMS);
        random_items(n, round % 2);
        REQUIRE(plan_with(NULL, n, &none) == GGML_STATUS_SUCCESS);
        CHECK(valid(items, n));
        CHECK(none.peak >= none.bound && none.peak <= none.best_fit && none.proved == (none.peak == none.bound));
        REQUIRE(plan_with(gb_plan_search_part, n, &full) == GGML_STATUS_SUCCESS);
        CHECK(valid(items, n));
        CHECK(full.peak <= none.peak && full.lower_bound == none.lower_bound && full.best_fit == none.best_fit);
        n_above += none.peak > full.peak;
    }
    CHECK_MSG(n_above > 0, "the search found no smaller plan");
}

static int n_calls;
static enum ggml_status answer;

// Gets a part whose plan misses the goal, and spends its budget without an improvement.
static enum ggml_status search_in_vain(struct gb_plan_part * part, size_t goal, size_t unit,
    struct gb_plan_costs * costs) {
    n_calls++;
    CHECK(part->n > 0 && part->peak < SIZE_MAX && part->peak > goal && goal >= part->bound && unit > 0);
    CHECK(costs->heuristic.steps + costs->search.steps > 0);
    for (uint32_t b = 0; b < part->n; b++) {
        part->trial[b] = SIZE_MAX; // scratch
    }
    while (gb_plan_spend(&costs->heuristic, 1000)) {
    }
    costs->search.steps = 0;
    if (answer == GGML_STATUS_ALLOC_FAILED) {
        (void) gb_fail(answer, "no memory");
    }
    costs->heuristic.aborted = answer == GGML_STATUS_ABORTED;
    return answer == GGML_STATUS_ALLOC_FAILED ? answer : GGML_STATUS_SUCCESS;
}

// Items whose plan by heuristics misses the bound.
static size_t hard_items(struct gb_plan_result * result) {
    do {
        random_items(120, false);
    } while (plan_with(NULL, 120, result) == GGML_STATUS_SUCCESS && result->proved);
    return 120;
}

static void a_search_in_vain_keeps_the_plan(void) {
    struct gb_plan_result heuristic, result;
    const size_t n = hard_items(&heuristic);
    static const enum ggml_status answers[] = { GGML_STATUS_SUCCESS, GGML_STATUS_ALLOC_FAILED };
    for (size_t k = 0; k < GB_ARRAY_LEN(answers); k++) {
        const uint64_t failures = gb_fail_count();
        answer = answers[k];
        n_calls = 0;
        REQUIRE(plan_with(search_in_vain, n, &result) == GGML_STATUS_SUCCESS);
        CHECK(valid(items, n) && n_calls > 0);
        CHECK_INT(result.peak, heuristic.peak);
        CHECK(gb_fail_count() == failures); // out of memory ends the search, not the plan
    }
}

static void an_aborted_search_aborts_the_plan(void) {
    struct gb_plan_result heuristic, result;
    const size_t n = hard_items(&heuristic);
    answer = GGML_STATUS_ABORTED;
    CHECK_INT(plan_with(search_in_vain, n, &result), GGML_STATUS_ABORTED);
}

static void a_plan_at_the_bound_is_not_searched(void) {
    struct gb_plan_result result;
    for (int64_t i = 0; i < 50; i++) {
        items[i] = (struct gb_plan_item){ i, i + 2, 100, 0 };
    }
    answer = GGML_STATUS_SUCCESS;
    n_calls = 0;
    REQUIRE(plan_with(search_in_vain, 50, &result) == GGML_STATUS_SUCCESS);
    CHECK(result.proved && n_calls == 0);
}

// -------------------------------------------------------------------------------------------------------------- groups

// The plan by groups is valid and no higher than before. No bound exceeds it.
static void groups_are_planned_apart(void) {
    enum { N = 60 };
    int n_grouped[2] = { 0 };
    for (int round = 0; round < 200; round++) {
        struct gb_plan_problem p;
        const int n_long = round % 4;
        for (int i = 0; i < N; i++) {
            const int64_t begin = 100 * (int64_t) (i / 15), at = test_random_int(0, 80);
            const int64_t life = test_random_int(1, 20);
            items[i] = (struct gb_plan_item){ begin + at, begin + at + life, (size_t) test_random_int(1, 50), 0 };
            if (i < n_long) {
                items[i].lower = test_random_int(0, 1) * test_random_int(0, 90);
                items[i].upper = 400 - test_random_int(0, 1) * test_random_int(0, 150);
            } else if (i == 3) {
                items[i].lower = 0;
                items[i].upper = 400;
            }
        }
        REQUIRE(gb_plan_problem_init(&p, items, N, 1) == GGML_STATUS_SUCCESS);
        for (size_t k = 0; k < p.n_parts; k++) {
            struct gb_plan_part * part = &p.parts[k];
            size_t peak;
            part->peak = SIZE_MAX;
            REQUIRE(gb_plan_first_fit(part, GB_PLAN_BY_BIRTH, false, NULL, &peak) == GGML_STATUS_SUCCESS);
            gb_plan_keep(part, peak);
            for (int by = 0; by < 2; by++) {
                struct gb_plan_costs costs = { .heuristic = { .steps = 1000000, .deadline = INT64_MAX },
                    .search = { .steps = 1000000, .deadline = INT64_MAX },
                    .whole = true,
                    .search_part = gb_plan_search_part };
                const enum gb_plan_bridges bridges = by == 0 ? GB_PLAN_THROUGHOUT : GB_PLAN_LONG;
                n_grouped[by] += gb_plan_has_groups(part, bridges);
                REQUIRE(gb_plan_by_groups(part, bridges, part->bound, p.unit, &costs) == GGML_STATUS_SUCCESS);
                CHECK(part->peak <= peak && part->bound <= part->peak);
            }
            take_offsets(part, items);
        }
        CHECK(valid(items, N));
        gb_plan_problem_free(&p);
    }
    CHECK_MSG(n_grouped[0] > 20 && n_grouped[1] > 20, "%d, %d", n_grouped[0], n_grouped[1]);
}

// Nested lifetimes: without the outermost buffer nearly all others are one group again, and each
// level would plan them again. So such parts have no groups.
static void nested_lifetimes_are_no_groups(void) {
    enum { DEPTH = 50, CORE = 300, N = 2 * DEPTH + CORE };
    for (int small_groups = 0; small_groups < 2; small_groups++) {
        struct gb_plan_problem p;
        for (int i = 0; i < N; i++) {
            const int64_t at = 2 * DEPTH + test_random_int(0, 398);
            items[i] = (struct gb_plan_item){ at, at + 1, (size_t) test_random_int(1, 50), 0 };
            const int64_t all = 2 * DEPTH + 400, level = i / 2 * 2;
            if (i < 2 * DEPTH && small_groups == 0) {
                items[i].lower = level;
                items[i].upper = i % 2 == 0 ? all : level + 1;
            } else if (i == 0) {
                items[i].lower = 2 * DEPTH;
                items[i].upper = all;
            }
        }
        REQUIRE(gb_plan_problem_init(&p, items, N, 1) == GGML_STATUS_SUCCESS && p.n_parts > 0);
        CHECK_INT(p.n_parts, 1);
        CHECK_INT(gb_plan_has_groups(&p.parts[0], GB_PLAN_THROUGHOUT), small_groups);
        gb_plan_problem_free(&p);
    }
}

TEST_MAIN(TEST(without_a_search_plans_are_valid), TEST(a_search_in_vain_keeps_the_plan),
    TEST(an_aborted_search_aborts_the_plan), TEST(a_plan_at_the_bound_is_not_searched), TEST(groups_are_planned_apart),
    TEST(nested_lifetimes_are_no_groups))
