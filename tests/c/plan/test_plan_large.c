// Plans of thousands to a million items: never worse than two simple heuristics, equal for any
// order of the items and any number of threads, and quick on hard shapes. test_plan.c tests
// gb_plan_validate, which checks the plans here.
#include "plan/plan.h"
#include "plan/search/plan_methods.h"
#include "base/mem.h"
#include "base/status.h"
#include "ggml-alloc.h"
#include "plan_items.h"
#include "test.h"

static bool valid(const struct gb_plan_item * of, size_t n, size_t alignment) {
    size_t a, b;
    return gb_plan_validate(of, n, alignment, &a, &b) == NULL;
}

static struct gb_plan_item * new_items(size_t n) {
    struct gb_plan_item * items = gb_calloc(n + 1, sizeof(*items));
    CHECK(items != NULL);
    return items;
}

// A training step: most activations live until the backward pass, with short temporaries between.
// No two begin at once.
static void training_step(struct gb_plan_item * items, size_t n) {
    const int64_t end = 4 * (int64_t) n;
    for (size_t i = 0; i < n; i++) {
        const int64_t at = 2 * (int64_t) i;
        const bool kept = i < n / 2 && test_random_int(0, 2) > 0;
        items[i] = (struct gb_plan_item){ at, kept ? end - at : at + test_random_int(1, 30),
            (size_t) (test_random_int(0, 3) ? 4096 << test_random_int(0, 4) : test_random_int(1, 100000)), 0 };
    }
}

// Lifetimes of up to 2 % of the time. No two begin at once.
static void random_lives(struct gb_plan_item * items, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const int64_t at = 3 * (int64_t) i;
        items[i] = (struct gb_plan_item){ at, at + test_random_int(1, 3 * (int64_t) n / 50),
            (size_t) test_random_int(1, 1 << 20), 0 };
    }
}

// --------------------------------------------------------------------------------------------------- simple heuristics

static int by_size(const void * pa, const void * pb) {
    const struct gb_plan_item *a = pa, *b = pb;
    if (a->size != b->size) {
        return a->size > b->size ? -1 : 1;
    }
    return a->lower != b->lower ? (a->lower < b->lower ? -1 : 1) : (a->upper < b->upper) - (a->upper > b->upper);
}

static int by_offset(const void * pa, const void * pb) {
    const struct gb_plan_item *a = pa, *b = pb;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

// First fit by falling size, in quadratic time.
static size_t greedy_peak(const struct gb_plan_item * items, size_t n) {
    struct gb_plan_item * all = new_items(n);
    struct gb_plan_item * neighbours = new_items(n);
    size_t peak = 0;
    memcpy(all, items, n * sizeof(*all));
    qsort(all, n, sizeof(*all), by_size);
    for (size_t i = 0; i < n; i++) {
        size_t n_neighbours = 0;
        for (size_t j = 0; j < i; j++) {
            if (all[j].lower < all[i].upper && all[i].lower < all[j].upper) {
                neighbours[n_neighbours++] = all[j];
            }
        }
        qsort(neighbours, n_neighbours, sizeof(*neighbours), by_offset);
        all[i].offset = 0;
        for (size_t j = 0; j < n_neighbours; j++) {
            if (neighbours[j].offset >= all[i].offset && neighbours[j].offset - all[i].offset >= all[i].size) {
                break;
            }
            all[i].offset = GB_MAX(all[i].offset, neighbours[j].offset + neighbours[j].size);
        }
        peak = GB_MAX(peak, all[i].offset + all[i].size);
    }
    gb_free(all);
    gb_free(neighbours);
    return peak;
}

// Writes the offsets of a part to its items, and checks its peak.
static void take_offsets(const struct gb_plan_part * part, struct gb_plan_item * items) {
    size_t highest = 0;
    for (uint32_t b = 0; b < part->n; b++) {
        items[part->buffers[b].item].offset = part->offsets[b];
        highest = GB_MAX(highest, part->offsets[b] + part->buffers[b].size);
    }
    CHECK_INT(part->peak, highest);
}

static void plans_are_never_worse_than_simple_heuristics(void) {
    const size_t n = 3000;
    struct gb_plan_item * items = new_items(n);
    for (int round = 0; round < 6; round++) {
        const struct gb_plan_effort effort = { .steps = round < 3 ? 0 : 20000000 };
        struct gb_plan_result result;
        if (round % 2) {
            random_lives(items, n);
        } else {
            training_step(items, n);
        }
        REQUIRE(gb_plan_search(items, n, 1, &effort, &result) == GGML_STATUS_SUCCESS);
        CHECK(valid(items, n, 1));
        const size_t greedy = greedy_peak(items, n);
        CHECK_MSG(result.peak <= greedy && result.peak <= result.best_fit, "%zu, greedy %zu, best fit %zu", result.peak,
            greedy, result.best_fit);
        CHECK(result.bound >= result.lower_bound && result.peak >= result.bound);
        CHECK(result.proved == (result.peak == result.bound) && !(result.proved && result.unfinished));
    }
    gb_free(items);
}

// -------------------------------------------------------------------------------------------------------- independence

static int by_lower(const void * pa, const void * pb) {
    const struct gb_plan_item *a = pa, *b = pb;
    return a->lower < b->lower ? -1 : a->lower > b->lower;
}

static void order_of_items_and_threads_change_no_plan(void) {
    static const size_t counts[] = { 900, 2500, 6000 };
    for (size_t k = 0; k < 2 * GB_ARRAY_LEN(counts); k++) {
        const size_t n = counts[k / 2];
        struct gb_plan_item * items = new_items(n);
        struct gb_plan_item * others = new_items(n);
        const struct gb_plan_effort effort = { .steps = 20000000 };
        struct gb_plan_result first, other;
        if (k % 2) {
            random_lives(items, n);
        } else {
            training_step(items, n);
        }
        memcpy(others, items, n * sizeof(*items));
        REQUIRE(gb_plan_search(items, n, 16, &effort, &first) == GGML_STATUS_SUCCESS);
        CHECK(valid(items, n, 16));
        for (int threads = 1; threads <= 5; threads += 2) {
            struct gb_plan_effort on = effort;
            on.n_threads = threads;
            plan_items_shuffle(others, n);
            REQUIRE(gb_plan_search(others, n, 16, &on, &other) == GGML_STATUS_SUCCESS);
            qsort(others, n, sizeof(*others), by_lower);
            CHECK_INT(other.peak, first.peak);
            CHECK(other.proved == first.proved && other.bound == first.bound && other.unfinished == first.unfinished);
            for (size_t i = 0; i < n; i++) {
                REQUIRE(others[i].offset == items[i].offset);
            }
        }
        gb_free(items);
        gb_free(others);
    }
}

// -------------------------------------------------------------------------------------------------------------- bounds

// Eight items whose best plan exceeds their load (test_plan_exact.c), a thousand that are alive at
// other times, and two that are alive throughout. A bound of the eight is a bound of all.
static void a_bound_of_few_items_is_a_bound_of_all(void) {
    static const int64_t few[8][3] = { { 1, 2, 4 }, { 5, 9, 1 }, { 3, 8, 3 }, { 4, 6, 2 }, { 9, 12, 2 }, { 11, 12, 2 },
        { 7, 12, 4 }, { 0, 5, 3 } };
    enum { N = 1010 };
    struct gb_plan_item * items = new_items(N);
    for (int i = 0; i < 8; i++) {
        items[i] = (struct gb_plan_item){ few[i][0], few[i][1], 100000 * (size_t) few[i][2], 0 };
    }
    items[8] = items[9] = (struct gb_plan_item){ 0, 5000, 50, 0 };
    for (int i = 10; i < N; i++) {
        const int64_t at = test_random_int(20, 4000);
        items[i] = (struct gb_plan_item){ at, at + test_random_int(1, 300), (size_t) test_random_int(1, 6000), 0 };
    }
    const struct gb_plan_effort effort = { .steps = 200000000 };
    struct gb_plan_result result;
    REQUIRE(gb_plan_search(items, N, 1, &effort, &result) == GGML_STATUS_SUCCESS);
    CHECK(valid(items, N, 1));
    CHECK_MSG(result.proved && result.bound > result.lower_bound, "%zu, bound %zu, load %zu", result.peak, result.bound,
        result.lower_bound);
    CHECK_INT(result.peak, result.lower_bound + 100000);
    gb_free(items);
}

// Easy groups one after another, and a buffer that is alive nearly throughout: it begins in the
// first group or ends in the last. With that buffer at the bottom the plan reaches the load.
static void long_items_connect_groups_at_no_cost(void) {
    enum { PROBLEMS = 12, EACH = 200, N = PROBLEMS * EACH + 2 };
    struct gb_plan_item * items = new_items(N);
    const struct gb_plan_effort effort = { .steps = 100000000 };
    for (int shape = 0; shape < 4; shape++) {
        struct gb_plan_result result;
        const int64_t last = 1000 * (PROBLEMS - 1);
        for (int i = 0; i < PROBLEMS * EACH; i++) {
            const int64_t begin = 1000 * (int64_t) (i / EACH), at = test_random_int(0, 990);
            const int64_t life = test_random_int(1, 100);
            items[i] = (struct gb_plan_item){ begin + at, begin + GB_MIN(at + life, 1000),
                (size_t) test_random_int(1, 4000), 0 };
        }
        items[N - 2] = (struct gb_plan_item){ shape % 2 ? 500 : 0, shape / 2 ? last + 500 : last + 1000, 700000, 0 };
        items[N - 1] = (struct gb_plan_item){ 2 * 1000, last - 2 * 1000, 30000, 0 };
        REQUIRE(gb_plan_search(items, N, 1, &effort, &result) == GGML_STATUS_SUCCESS);
        CHECK(valid(items, N, 1));
        CHECK_MSG(result.proved, "shape %d: %zu, load %zu", shape, result.peak, result.lower_bound);
        CHECK(result.peak <= greedy_peak(items, N) && result.peak <= result.best_fit);
    }
    gb_free(items);
}

// Lowers the plan of the part, by windows or by ejection chains.
static void lower(struct gb_plan_part * part, size_t unit, bool eject) {
    struct gb_plan_budget budget = { .steps = 100000000, .deadline = INT64_MAX };
    if (!eject) {
        REQUIRE(gb_plan_lower_peaks(part, part->bound, &budget) == GGML_STATUS_SUCCESS);
        return;
    }
    struct gb_plan_ejector * x = gb_plan_ejector_new(part);
    REQUIRE(x && gb_plan_can_eject(part));
    for (int k = 0; k < 40; k++) { // a later turn continues the chain, also after the plan improved
        struct gb_plan_budget turn = gb_plan_share(&budget, k < 30 ? 20000 : 5000000);
        REQUIRE(gb_plan_eject(x, part->bound, unit, &turn) == GGML_STATUS_SUCCESS);
        if (k == 20) {
            lower(part, unit, false);
        }
    }
    gb_plan_ejector_free(x);
}

// Starts from a bad plan. The peak falls and the plan stays valid.
static void check_lowered(size_t n, bool eject) {
    struct gb_plan_item * items = new_items(n);
    struct gb_plan_problem p;
    random_lives(items, n);
    REQUIRE(gb_plan_problem_init(&p, items, n, 1) == GGML_STATUS_SUCCESS);
    for (size_t k = 0; k < p.n_parts; k++) {
        struct gb_plan_part * part = &p.parts[k];
        size_t peak;
        REQUIRE(gb_plan_first_fit(part, GB_PLAN_BY_BIRTH, false, NULL, &peak) == GGML_STATUS_SUCCESS);
        part->peak = SIZE_MAX;
        gb_plan_keep(part, peak);
        lower(part, p.unit, eject);
        CHECK_MSG(part->n < 100 || part->peak < peak, "%zu as before", peak);
        take_offsets(part, items);
    }
    CHECK(valid(items, n, 1));
    gb_plan_problem_free(&p);
    gb_free(items);
}

static void windows_and_ejection_lower_the_peak(void) {
    check_lowered(4000, false);
    check_lowered(300, true);
    check_lowered(4000, true);
    check_lowered(9000, true);
}

// --------------------------------------------------------------------------------------------------------- hard shapes

enum shape { EQUAL, AT_ONCE, NESTED, STAIRCASE, EQUAL_STEPS, EMPTY, NEVER, CHAIN, HOLES, COMB, N_SHAPES };

static struct gb_plan_item item_of(enum shape shape, int64_t i, int64_t n) {
    const size_t random = (size_t) test_random_int(1, 1 << 20);
    switch (shape) {
        case EQUAL: return (struct gb_plan_item){ 0, 5, 64, 0 };
        case AT_ONCE: return (struct gb_plan_item){ 0, 5, random, 0 };
        case NESTED: return (struct gb_plan_item){ i, 2 * n - i, random, 0 };
        case STAIRCASE: return (struct gb_plan_item){ i, i + 200, random, 0 };
        case EQUAL_STEPS: return (struct gb_plan_item){ i, i + 1000, 4096, 0 };
        case EMPTY: return (struct gb_plan_item){ 0, 5, 0, 0 };
        case NEVER: return (struct gb_plan_item){ 3, 3, random, 0 };
        case CHAIN: return (struct gb_plan_item){ i, i + 1, random, 0 };
        // small long-lived items between large short-lived ones, so best fit has as many
        // gaps as items
        case HOLES: return (struct gb_plan_item){ i, i % 2 ? i + 500 : 2 * n, i % 2 ? 1024 : 8, 0 };
        default: return (struct gb_plan_item){ i, i % 2 ? i + 2 : 2 * n - i / 2, i % 2 ? 1000 + (size_t) i : 7, 0 };
    }
}

static void hard_shapes_are_planned_well(void) {
    for (int shape = 0; shape < N_SHAPES; shape++) {
        const size_t n = shape == EMPTY || shape == EQUAL || shape == CHAIN ? 1000000 : 100000;
        struct gb_plan_item * items = new_items(n);
        struct gb_plan_result result;
        for (size_t i = 0; i < n; i++) {
            items[i] = item_of((enum shape) shape, (int64_t) i, (int64_t) n);
        }
        CHECK_INT(gb_plan_offsets(items, n, 64, &result), GGML_STATUS_SUCCESS);
        CHECK(valid(items, n, 64));
        CHECK(result.peak >= result.lower_bound && result.peak <= result.best_fit);
        CHECK_MSG(shape == STAIRCASE || result.proved, "shape %d: %zu, at least %zu", shape, result.peak,
            result.lower_bound);
        gb_free(items);
    }
}

static void sizes_up_to_the_address_space_are_planned(void) {
    struct gb_plan_item items[600];
    struct gb_plan_result result;
    const size_t half = (size_t) 1 << 63;
    for (size_t i = 0; i < 600; i++) { // one item at a time
        items[i] = (struct gb_plan_item){ (int64_t) i, (int64_t) i + 1, half / 1024, 0 };
    }
    CHECK_INT(gb_plan_offsets(items, 600, 1, &result), GGML_STATUS_SUCCESS);
    CHECK(result.peak == half / 1024 && result.proved);
    items[0] = (struct gb_plan_item){ 0, 9, half - 2, 0 };
    items[1] = (struct gb_plan_item){ 8, 20, half, 0 };
    CHECK_INT(gb_plan_offsets(items, 2, 1, &result), GGML_STATUS_SUCCESS);
    CHECK(result.peak == SIZE_MAX - 1 && result.proved && valid(items, 2, 1));
    items[0].size = half - 1;
    CHECK_INT(gb_plan_offsets(items, 2, 1, &result), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "overflow");
    for (size_t i = 0; i < 600; i++) {
        items[i] = (struct gb_plan_item){ (int64_t) i / 2, (int64_t) i / 2 + 9, i + 1, 0 };
    }
    CHECK_INT(gb_plan_offsets(items, 600, (size_t) 1 << 40, &result), GGML_STATUS_SUCCESS);
    CHECK(result.peak % ((size_t) 1 << 40) == 0 && result.proved && valid(items, 600, (size_t) 1 << 40));
    CHECK_INT(gb_plan_offsets(items, 600, half, &result), GGML_STATUS_INVALID_ARGUMENT);
    int chunk_of[3];
    struct gb_plan_chunks chunks;
    for (size_t i = 0; i < 3; i++) { // a chunk holds one item only; all chunks together exceed the address space
        items[i] = (struct gb_plan_item){ 0, 1, half / 2 + 1, 0 };
    }
    CHECK_INT(gb_plan_in_chunks(items, 3, 1, half - 1, chunk_of, &chunks), GGML_STATUS_SUCCESS);
    CHECK(chunks.n == 3 && chunks.total == 3 * (half / 2 + 1));
}

static void the_validator_finds_one_mistake_among_many_items(void) {
    const size_t n = 200000;
    struct gb_plan_item * items = new_items(n);
    struct gb_plan_result result;
    for (size_t i = 0; i < n; i++) {
        items[i] = (struct gb_plan_item){ (int64_t) i, (int64_t) (i + n / 4), 64, 0 };
    }
    REQUIRE(gb_plan_offsets(items, n, 64, &result) == GGML_STATUS_SUCCESS);
    CHECK(valid(items, n, 64) && result.proved);
    for (int round = 0; round < 5; round++) {
        size_t a, b;
        const size_t i = (size_t) test_random_int(0, (int64_t) n - 1), right = items[i].offset;
        items[i].offset = items[i < n / 2 ? i + 1 : i - 1].offset;
        const char * problem = gb_plan_validate(items, n, 64, &a, &b);
        CHECK(problem && (a == i || b == i));
        items[i].offset = right;
    }
    gb_free(items);
}

// ---------------------------------------------------------------------------------------------------- public functions

static void public_functions_agree_and_check_arguments(void) {
    enum { N = 3000 };
    static int64_t lower[N], upper[N];
    static size_t size[N], offsets[N], others[N];
    struct ggml_plan_info info = { 0 }, other = { 0 };
    struct ggml_plan_options options = { .budget_ms = 0, .n_threads = 1 };
    for (size_t i = 0; i < N; i++) {
        lower[i] = test_random_int(0, 2 * N);
        upper[i] = lower[i] + test_random_int(1, N / 5);
        size[i] = (size_t) test_random_int(1, 1 << 20);
    }
    CHECK_INT(ggml_plan_memory_with(N, lower, upper, size, 1, &options, offsets, &info), GGML_STATUS_SUCCESS);
    CHECK(info.bound >= info.lower_bound && info.searched == (info.bound > info.lower_bound));
    CHECK(info.proved || info.unfinished); // no search
    options.n_threads = 3;
    CHECK_INT(ggml_plan_memory_with(N, lower, upper, size, 1, &options, others, &other), GGML_STATUS_SUCCESS);
    CHECK(other.peak == info.peak && memcmp(offsets, others, sizeof(offsets)) == 0);
    CHECK_INT(ggml_plan_memory(N, lower, upper, size, 1, 0, 0, others, &other), GGML_STATUS_SUCCESS);
    CHECK(other.peak == info.peak && memcmp(offsets, others, sizeof(offsets)) == 0);
    options.n_threads = -1;
    CHECK_INT(ggml_plan_memory_with(N, lower, upper, size, 1, &options, others, &other), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "n_threads");
    CHECK_INT(ggml_plan_memory_with(N, lower, upper, size, 1, NULL, others, &other), GGML_STATUS_INVALID_ARGUMENT);
}

// Groups that share only items which are alive throughout: the last n_bridges. Returns the bytes of
// these.
static size_t random_groups(struct gb_plan_item * items, size_t n_groups, size_t per, size_t n_bridges) {
    const size_t n = n_groups * per;
    const int64_t end = 1000 * (int64_t) n_groups;
    size_t bridged = 0;
    for (size_t i = 0; i < n; i++) {
        const int64_t at = 1000 * (int64_t) (i / per) + 2 * (int64_t) (i % per);
        items[i] =
            (struct gb_plan_item){ at, at + test_random_int(1, 60), (size_t) test_random_int(1, 1 << 16) * 16, 0 };
    }
    for (size_t i = n; i < n + n_bridges; i++) {
        items[i] = (struct gb_plan_item){ -(int64_t) i, end, (size_t) test_random_int(1, 1 << 16) * 16, 0 };
        bridged += items[i].size;
    }
    return bridged;
}

// Items that are alive throughout cost only their bytes.
static void items_alive_throughout_cost_only_their_bytes(void) {
    enum { N_GROUPS = 12, PER = 40, N = N_GROUPS * PER };
    struct gb_plan_item * items = new_items(N + 3);
    struct gb_plan_item * alone = new_items(N);
    int more = 0;
    for (int round = 0; round < 24; round++) {
        const size_t n_bridges = 1 + (size_t) round % 3;
        const size_t bridged = random_groups(items, N_GROUPS, PER, n_bridges);
        struct gb_plan_effort effort = { .steps = round % 4 == 0 ? 0 : 2000000 };
        struct gb_plan_result with, without;
        memcpy(alone, items, N * sizeof(*alone));
        REQUIRE(gb_plan_search(alone, N, 16, &effort, &without) == GGML_STATUS_SUCCESS);
        REQUIRE(gb_plan_search(items, N + n_bridges, 16, &effort, &with) == GGML_STATUS_SUCCESS);
        CHECK(valid(items, N + n_bridges, 16));
        CHECK_INT(with.lower_bound, bridged + without.lower_bound);
        CHECK_INT(with.bound, bridged + without.bound);
        CHECK(with.peak <= bridged + without.peak && with.peak >= with.bound && with.peak <= with.best_fit);
        CHECK(with.peak <= greedy_peak(items, N + n_bridges));
        CHECK(with.proved == (with.peak == with.bound));
        more += with.peak > with.lower_bound;
        effort.capacity = with.best_fit; // good enough
        REQUIRE(gb_plan_search(items, N + n_bridges, 16, &effort, &with) == GGML_STATUS_SUCCESS);
        CHECK(valid(items, N + n_bridges, 16) && with.peak <= effort.capacity && !with.unfinished);
        effort.capacity = bridged; // too small
        REQUIRE(gb_plan_search(items, N + n_bridges, 16, &effort, &with) == GGML_STATUS_SUCCESS);
        CHECK(valid(items, N + n_bridges, 16) && with.peak > bridged);
    }
    CHECK_MSG(more > 0, "no plan was above the load"); // so the search has to choose
    gb_free(items);
    gb_free(alone);
}

// Without memory there is an error and nothing is written. If only the search failed, there is a
// valid plan and no error: then true.
static bool check_outcome(const struct gb_plan_item * items, size_t n, enum ggml_status status, bool failed,
    uint64_t fail_count) {
    if (status == GGML_STATUS_SUCCESS) {
        CHECK(valid(items, n, 8));
        CHECK(gb_fail_count() == fail_count);
        return failed;
    }
    CHECK_INT(status, GGML_STATUS_ALLOC_FAILED);
    CHECK(failed && items[3].offset == 12345 && gb_fail_count() > fail_count);
    return false;
}

static void groups_survive_each_failed_allocation(void) {
    struct gb_plan_item * items = new_items(162);
    const int64_t live = gb_test_live_allocs();
    const struct gb_plan_effort effort = { .steps = 100000 };
    bool failed = true;
    random_groups(items, 4, 40, 2);
    for (int fail = 1; failed; fail++) {
        struct gb_plan_result result;
        const uint64_t before = gb_fail_count();
        items[3].offset = 12345;
        gb_test_fail_alloc(fail, false);
        const enum ggml_status status = gb_plan_search(items, 162, 8, &effort, &result);
        failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        check_outcome(items, 162, status, failed, before);
        CHECK_INT(gb_test_live_allocs(), live);
    }
    gb_free(items);
}

// Each allocation fails in turn. All methods of the search run.
static void each_failed_allocation_leaves_a_plan_or_an_error(void) {
    const size_t n = 700;
    struct gb_plan_item * items = new_items(n);
    const int64_t live = gb_test_live_allocs();
    const struct gb_plan_effort effort = { .steps = 3000000 };
    random_lives(items, n);
    for (size_t i = 0; i < n; i++) {
        items[i].upper = items[i].lower + 1 + (items[i].upper - items[i].lower) * 10;
    }
    bool failed = true;
    int fail = 1, planned = 0;
    for (; failed; fail += fail < 200 ? 1 : 1 + fail / 20) {
        struct gb_plan_result result;
        const uint64_t before = gb_fail_count();
        items[3].offset = 12345;
        gb_test_fail_alloc(fail, false);
        const enum ggml_status status = gb_plan_search(items, n, 8, &effort, &result);
        failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        planned += check_outcome(items, n, status, failed, before);
        CHECK_INT(gb_test_live_allocs(), live);
    }
    CHECK_MSG(fail > 200, "%d", fail);
    CHECK(planned > 50);
    gb_free(items);
}

TEST_MAIN(TEST(plans_are_never_worse_than_simple_heuristics), TEST(order_of_items_and_threads_change_no_plan),
    TEST(a_bound_of_few_items_is_a_bound_of_all), TEST(long_items_connect_groups_at_no_cost),
    TEST(windows_and_ejection_lower_the_peak), TEST(hard_shapes_are_planned_well),
    TEST(sizes_up_to_the_address_space_are_planned), TEST(the_validator_finds_one_mistake_among_many_items),
    TEST(public_functions_agree_and_check_arguments), TEST(items_alive_throughout_cost_only_their_bytes),
    TEST(groups_survive_each_failed_allocation), TEST(each_failed_allocation_leaves_a_plan_or_an_error))
