// The whole planner: against brute force on few items, on published instances and on graphs of
// models. test_plan.c tests gb_plan_validate, which checks the plans here. GGML_TEST_LONG=1: more
// rounds.
#include "plan/plan.h"
#include "base/env.h"
#include "base/mem.h"
#include "ggml-alloc.h"
#include "plan_items.h"
#include "test.h"

enum { MAX_ITEMS = 2000 };
static struct gb_plan_item items[MAX_ITEMS];

static const struct gb_plan_effort thorough = { .steps = (uint64_t) 1 << 31 };
// Like gb_plan_offsets, without the clock: a plan depends on the items only, also under sanitizers.
static const struct gb_plan_effort standard = { .steps = GB_PLAN_DEFAULT_STEPS };

static bool valid(const struct gb_plan_item * of, size_t n, size_t alignment) {
    size_t a, b;
    return gb_plan_validate(of, n, alignment, &a, &b) == NULL;
}

// ----------------------------------------------------------------------------------------------------------- few items

// The smallest peak of all plans. Some optimal plan is a first fit, so this tries all orders of
// first fit.
static size_t smallest_peak(struct gb_plan_item * all, size_t n, size_t placed, size_t peak, size_t best) {
    if (placed == n || peak >= best) {
        return GB_MIN(peak, best);
    }
    for (size_t i = placed; i < n; i++) {
        const struct gb_plan_item swap = all[placed];
        all[placed] = all[i];
        all[i] = swap;
        struct gb_plan_item * one = &all[placed];
        one->offset = 0;
        for (size_t j = 0; j < placed; j++) {
            const bool together = one->lower < all[j].upper && all[j].lower < one->upper;
            if (together && one->offset < all[j].offset + all[j].size && all[j].offset < one->offset + one->size) {
                one->offset = all[j].offset + all[j].size;
                j = (size_t) -1;
            }
        }
        best = smallest_peak(all, n, placed + 1, GB_MAX(peak, one->offset + one->size), best);
        const struct gb_plan_item back = all[placed];
        all[placed] = all[i];
        all[i] = back;
    }
    return best;
}

static void random_items(struct gb_plan_item * into, size_t n, int64_t end, int64_t max_size) {
    for (size_t i = 0; i < n; i++) {
        const int64_t lower = test_random_int(0, end - 1);
        into[i] =
            (struct gb_plan_item){ lower, test_random_int(lower + 1, end), (size_t) test_random_int(1, max_size), 0 };
    }
}

static void plans_are_as_small_as_brute_force(void) {
    const int rounds = gb_env_get("GGML_TEST_LONG") ? 20000 : 1500;
    for (int round = 0; round < rounds; round++) {
        struct gb_plan_item some[8], copy[8];
        struct gb_plan_result result;
        const size_t n = (size_t) test_random_int(1, 8);
        random_items(some, n, test_random_int(2, 8), test_random_int(1, 9));
        memcpy(copy, some, sizeof(copy));
        REQUIRE(gb_plan_search(some, n, 1, &thorough, &result) == GGML_STATUS_SUCCESS);
        const size_t best = smallest_peak(copy, n, 0, 0, SIZE_MAX);
        CHECK(valid(some, n, 1));
        CHECK_MSG(result.proved, "round %d: not proved", round);
        CHECK_MSG(result.peak == best, "round %d: %zu, best %zu", round, result.peak, best);
    }
}

// Rare instances: no plan reaches the lower bound.
static const struct gb_plan_item rare[][8] = {
    { { 1, 2, 4, 0 }, { 5, 9, 1, 0 }, { 3, 8, 3, 0 }, { 4, 6, 2, 0 }, { 9, 12, 2, 0 }, { 11, 12, 2, 0 },
        { 7, 12, 4, 0 }, { 0, 5, 3, 0 } },
    { { 8, 11, 2, 0 }, { 4, 9, 2, 0 }, { 6, 7, 3, 0 }, { 9, 10, 3, 0 }, { 3, 5, 2, 0 }, { 0, 2, 3, 0 }, { 5, 10, 1, 0 },
        { 1, 6, 2, 0 } },
    { { 6, 8, 2, 0 }, { 7, 8, 4, 0 }, { 4, 7, 3, 0 }, { 1, 4, 4, 0 }, { 3, 8, 4, 0 }, { 4, 6, 1, 0 }, { 1, 5, 2, 0 },
        { 5, 7, 1, 0 } },
};

static void plans_above_the_load_are_proved(void) {
    for (size_t k = 0; k < GB_ARRAY_LEN(rare); k++) {
        struct gb_plan_item some[8], copy[8];
        struct gb_plan_result result;
        memcpy(some, rare[k], sizeof(some));
        memcpy(copy, rare[k], sizeof(copy));
        REQUIRE(gb_plan_search(some, 8, 1, &thorough, &result) == GGML_STATUS_SUCCESS);
        CHECK(valid(some, 8, 1));
        CHECK_INT(result.peak, smallest_peak(copy, 8, 0, 0, SIZE_MAX));
        CHECK(result.proved && result.peak == result.lower_bound + 1 && result.bound == result.peak);
    }
}

static void a_capacity_is_met_exactly_if_some_plan_meets_it(void) {
    for (int round = 0; round < 300; round++) {
        struct gb_plan_item some[7];
        struct gb_plan_result result;
        random_items(some, 7, 6, 6);
        struct gb_plan_item copy[7];
        memcpy(copy, some, sizeof(copy));
        const size_t best = smallest_peak(copy, 7, 0, 0, SIZE_MAX);
        for (size_t capacity = best - 1; capacity <= best + 2; capacity++) {
            const struct gb_plan_effort effort = { .capacity = capacity, .steps = 1 << 24 };
            REQUIRE(gb_plan_search(some, 7, 1, &effort, &result) == GGML_STATUS_SUCCESS);
            CHECK(valid(some, 7, 1));
            CHECK(capacity == 0 || (result.peak <= capacity) == (best <= capacity));
            CHECK(capacity == 0 || best <= capacity || result.bound > capacity); // the bound proves a failure
        }
    }
}

// No bound exceeds the smallest peak, also for capacities that are no multiple of the unit.
static void no_bound_is_above_the_smallest_peak(void) {
    for (size_t k = 0; k < GB_ARRAY_LEN(rare); k++) {
        struct gb_plan_item some[8], copy[8];
        struct gb_plan_result result;
        memcpy(some, rare[k], sizeof(some));
        for (int i = 0; i < 8; i++) {
            some[i].size *= 8;
        }
        memcpy(copy, some, sizeof(copy));
        const size_t best = smallest_peak(copy, 8, 0, 0, SIZE_MAX);
        for (size_t capacity = best - 20; capacity <= best + 9; capacity++) {
            const struct gb_plan_effort effort = { .capacity = capacity, .steps = 1 << 24 };
            REQUIRE(gb_plan_search(some, 8, capacity % 3 ? 8 : 1, &effort, &result) == GGML_STATUS_SUCCESS);
            CHECK(valid(some, 8, 1));
            CHECK_MSG(result.bound <= best, "capacity %zu: bound %zu, best %zu", capacity, result.bound, best);
            CHECK((result.peak <= capacity) == (best <= capacity) && (!result.proved || result.peak == best));
        }
    }
}

// ---------------------------------------------------------------------------------------------------------- properties

static void order_of_items_and_scale_of_time_change_no_peak(void) {
    for (int round = 0; round < 60; round++) {
        const size_t n = (size_t) test_random_int(20, 120);
        struct gb_plan_result first, other;
        for (size_t i = 0; i < n; i++) { // no two begin at once, so best fit has a single order
            const int64_t lower = 7 * (int64_t) i;
            items[i] =
                (struct gb_plan_item){ lower, lower + test_random_int(1, 200), (size_t) test_random_int(1, 5000), 0 };
        }
        REQUIRE(gb_plan_search(items, n, 16, &standard, &first) == GGML_STATUS_SUCCESS);
        CHECK(valid(items, n, 16));
        plan_items_shuffle(items, n);
        const int64_t scale = test_random_int(1, 1000), start = test_random_int(-100000, 100000);
        for (size_t i = 0; i < n; i++) {
            items[i].lower = items[i].lower * scale + start;
            items[i].upper = items[i].upper * scale + start;
        }
        REQUIRE(gb_plan_search(items, n, 16, &standard, &other) == GGML_STATUS_SUCCESS);
        CHECK(valid(items, n, 16));
        CHECK_INT(other.peak, first.peak);
        CHECK_INT(other.proved, first.proved);
    }
}

static void a_plan_stays_valid_for_smaller_sizes(void) {
    struct gb_plan_result result;
    random_items(items, 200, 100, 1000);
    REQUIRE(gb_plan_offsets(items, 200, 8, &result) == GGML_STATUS_SUCCESS);
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < 200; i++) {
            items[i].size -= (size_t) test_random_int(0, (int64_t) items[i].size);
        }
        CHECK(valid(items, 200, 8));
    }
}

static void bounds_hold_and_plans_repeat(void) {
    for (int round = 0; round < 150; round++) {
        const size_t n = (size_t) test_random_int(2, 150);
        const struct gb_plan_effort nothing = { 0 };
        struct gb_plan_result heuristic, searched, again;
        random_items(items, n, test_random_int(2, 100), 500);
        REQUIRE(gb_plan_search(items, n, 4, &nothing, &heuristic) == GGML_STATUS_SUCCESS);
        CHECK(valid(items, n, 4));
        REQUIRE(gb_plan_search(items, n, 4, &standard, &searched) == GGML_STATUS_SUCCESS);
        CHECK(valid(items, n, 4));
        static size_t offsets[150];
        for (size_t i = 0; i < n; i++) {
            offsets[i] = items[i].offset;
        }
        CHECK(heuristic.lower_bound == searched.lower_bound && heuristic.best_fit == searched.best_fit);
        CHECK(heuristic.lower_bound <= searched.bound && searched.bound <= searched.peak);
        CHECK(searched.peak <= heuristic.peak && heuristic.peak <= heuristic.best_fit);
        CHECK(searched.proved == (searched.peak == searched.bound));
        REQUIRE(gb_plan_search(items, n, 4, &standard, &again) == GGML_STATUS_SUCCESS);
        for (size_t i = 0; i < n; i++) {
            CHECK(items[i].offset == offsets[i]); // reproducible
        }
    }
}

static void independent_parts_are_proved(void) { // the middle one decides; the others are far smaller
    struct gb_plan_result result;
    size_t n = 0;
    for (int part = 0; part < 5; part++) {
        for (int i = 0; i < 12; i++) {
            const int64_t lower = part * 1000 + test_random_int(0, 20);
            items[n++] = (struct gb_plan_item){ lower, lower + test_random_int(1, 20),
                (size_t) test_random_int(1, part == 2 ? 99 : 30), 0 };
        }
    }
    REQUIRE(gb_plan_search(items, n, 1, &thorough, &result) == GGML_STATUS_SUCCESS);
    CHECK(valid(items, n, 1));
    CHECK(result.proved);
}

// ----------------------------------------------------------------------------------------------------------- instances

static void check_instance(const char * letter, bool at_bound) {
    char name[100];
    snprintf(name, sizeof(name), "minimalloc/%s.1048576.csv", letter);
    const size_t n = plan_items_load(name, items, MAX_ITEMS);
    struct gb_plan_result result;
    REQUIRE(n > 100);
    const struct gb_plan_effort fit = { .capacity = at_bound ? 0 : 1048576, .steps = thorough.steps };
    REQUIRE(gb_plan_search(items, n, 1, &fit, &result) == GGML_STATUS_SUCCESS);
    CHECK(valid(items, n, 1));
    CHECK_MSG(result.peak <= 1048576, "%s: %zu", letter, result.peak);
    CHECK_MSG(!at_bound || (result.peak == result.lower_bound && result.proved), "%s: %zu, at least %zu", letter,
        result.peak, result.lower_bound);
}

static void published_instances_reach_the_known_peaks(void) {
    check_instance("A", true);
    check_instance("B", true);
    check_instance("C", true);
    check_instance("E", true);
    check_instance("F", true);
    check_instance("G", true);
    check_instance("H", true);
    check_instance("I", true);
    check_instance("D", false);
    check_instance("J", false);
    check_instance("K", true);
}

static void graphs_of_models_reach_the_load(void) {
    static const char * const names[] = {
        "GPT2_train_T128",
        "SD1.5_UNet_64x64",
        "UNet_no-attn_128",
        "llama70b-ish_T2048_kv2048",
        "llama7b_T1_kv2048",
        "llama7b_T512_kv2048",
        "llama7b_T64_kv512",
        "llama8b-gqa_T512_kv8192",
        "mixtral_T32_kv512",
        "rand300_00",
        "rand60_00",
        "whisper_base_enc",
        "whisper_large_enc",
    };
    for (size_t k = 0; k < GB_ARRAY_LEN(names); k++) {
        char path[200];
        struct gb_plan_result result;
        snprintf(path, sizeof(path), "model-graphs/%s.csv", names[k]);
        const size_t n = plan_items_load(path, items, MAX_ITEMS);
        REQUIRE(n > 30);
        REQUIRE(gb_plan_offsets(items, n, 1, &result) == GGML_STATUS_SUCCESS);
        CHECK(valid(items, n, 1));
        CHECK_MSG(result.proved && result.peak == result.lower_bound, "%s: %zu, at least %zu", names[k], result.peak,
            result.lower_bound);
    }
}

static void ten_thousand_items_are_within_one_percent(void) { // the load grows with each buffer
    enum { N = 10000 };
    struct gb_plan_item * many = gb_calloc(N, sizeof(*many));
    struct gb_plan_result result;
    REQUIRE(many);
    for (int64_t i = 0; i < N; i++) {
        many[i] = (struct gb_plan_item){ i, test_random_int(i + 1, 2 * N), (size_t) test_random_int(1, 1 << 20), 0 };
    }
    REQUIRE(gb_plan_offsets(many, N, 32, &result) == GGML_STATUS_SUCCESS);
    CHECK(valid(many, N, 32));
    CHECK_MSG(result.peak - result.lower_bound <= result.lower_bound / 100, "%zu, at least %zu", result.peak,
        result.lower_bound);
    gb_free(many);
}

// ---------------------------------------------------------------------------------------------------- public functions

static void public_functions_agree_and_check_arguments(void) {
    const int64_t lower[] = { 0, 3, 0, 9 }, upper[] = { 3, 9, 9, 21 };
    const size_t size[] = { 4, 4, 4, 4 };
    size_t offsets[4] = { 0 };
    struct ggml_plan_info info = { 0 };
    CHECK_INT(ggml_plan_memory(4, lower, upper, size, 1, 0, 10, offsets, &info), GGML_STATUS_SUCCESS);
    CHECK(info.peak == 8 && info.lower_bound == 8 && info.proved && info.milliseconds >= 0.0);
    CHECK(offsets[0] != offsets[2] && offsets[1] != offsets[2] && offsets[0] == offsets[1]);
    CHECK_INT(ggml_plan_memory(4, lower, upper, size, 8, 0, 0, offsets, &info), GGML_STATUS_SUCCESS);
    CHECK_INT(info.peak, 16);
    CHECK_INT(ggml_plan_memory(4, lower, upper, size, 1, 7, 10, offsets, NULL), GGML_STATUS_ALLOC_FAILED);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "needs 8 bytes, has 7");
    CHECK_INT(ggml_plan_memory(4, NULL, upper, size, 1, 0, 0, offsets, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_plan_memory(4, lower, upper, size, 3, 0, 0, offsets, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_plan_memory(4, lower, upper, size, 1, 0, -1, offsets, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "budget_ms");
    CHECK_INT(ggml_plan_memory(4, upper, lower, size, 1, 0, 0, offsets, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_plan_memory(0, NULL, NULL, NULL, 1, 0, 0, NULL, &info), GGML_STATUS_SUCCESS);
    CHECK(info.peak == 0 && info.proved);
}

// Each allocation fails in turn, for an instance that needs the search.
static void each_failed_allocation_leaves_a_plan_or_an_error(void) {
    const size_t n = plan_items_load("minimalloc/H.1048576.csv", items, MAX_ITEMS);
    const int64_t live = gb_test_live_allocs();
    int fail = 1, planned = 0;
    REQUIRE(n > 100);
    for (bool failed = true; failed; fail++) {
        struct gb_plan_result result;
        const struct gb_plan_effort effort = { .capacity = 1048576 + 65536, .steps = 1 << 26 };
        items[3].offset = 12345;
        gb_test_fail_alloc(fail, false);
        const enum ggml_status status = gb_plan_search(items, n, 8, &effort, &result);
        failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        size_t a, b;
        if (status == GGML_STATUS_SUCCESS) { // only the search failed
            CHECK(gb_plan_validate(items, n, 8, &a, &b) == NULL);
            planned += failed;
        } else {
            CHECK_INT(status, GGML_STATUS_ALLOC_FAILED);
            CHECK(failed && items[3].offset == 12345);
        }
        CHECK_INT(gb_test_live_allocs(), live);
    }
    CHECK(fail > 60 && planned > 10);
}

TEST_MAIN(TEST(plans_are_as_small_as_brute_force), TEST(plans_above_the_load_are_proved),
    TEST(a_capacity_is_met_exactly_if_some_plan_meets_it), TEST(no_bound_is_above_the_smallest_peak),
    TEST(order_of_items_and_scale_of_time_change_no_peak), TEST(a_plan_stays_valid_for_smaller_sizes),
    TEST(bounds_hold_and_plans_repeat), TEST(independent_parts_are_proved),
    TEST(published_instances_reach_the_known_peaks), TEST(graphs_of_models_reach_the_load),
    TEST(ten_thousand_items_are_within_one_percent), TEST(public_functions_agree_and_check_arguments),
    TEST(each_failed_allocation_leaves_a_plan_or_an_error))
