// First fit and smallest gap: each offset against a search of all pairs.
#include "plan/plan_impl.h"
#include "base/env.h"
#include "base/mem.h"
#include "test.h"
#include "test_memory.h"

enum { MAX_ITEMS = 3000 };
static struct gb_plan_item items[MAX_ITEMS];

struct taken {
    size_t offset, end;
};

static int by_offset(const void * pa, const void * pb) {
    const struct taken *a = pa, *b = pb;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

static size_t in_chunk(size_t at, size_t size, size_t chunk) {
    return chunk > 0 && at / chunk != (at + size - 1) / chunk ? (at / chunk + 1) * chunk : at;
}

// The right offset of b, from the gaps between its placed neighbours.
static size_t oracle_place(const struct gb_plan_part * part, const uint32_t * order, uint32_t k, bool smallest,
    const size_t * offsets) {
    static struct taken taken[MAX_ITEMS];
    const struct gb_plan_buffer * b = &part->buffers[order[k]];
    size_t n = 0, at = 0, best = SIZE_MAX, least = SIZE_MAX;
    for (uint32_t j = 0; j < k; j++) {
        const struct gb_plan_buffer * other = &part->buffers[order[j]];
        if (other->first < b->last && b->first < other->last) {
            taken[n++] = (struct taken){ offsets[order[j]], offsets[order[j]] + other->size };
        }
    }
    qsort(taken, n, sizeof(*taken), by_offset);
    for (size_t j = 0; j < n; j++) {
        const size_t from = in_chunk(at, b->size, part->chunk);
        if (taken[j].offset >= from && taken[j].offset - from >= b->size && taken[j].offset - from < least) {
            best = from;
            least = smallest ? taken[j].offset - from : 0;
        }
        at = GB_MAX(at, taken[j].end);
    }
    return best != SIZE_MAX ? best : in_chunk(at, b->size, part->chunk);
}

static void random_items(size_t n, int64_t end, int64_t width, int64_t max_size, int64_t unit) {
    for (size_t i = 0; i < n; i++) {
        const int64_t lower = test_random_int(0, end - 1);
        const int64_t share = test_random_int(0, 9) ? width : end; // one in ten has a long lifetime
        items[i] = (struct gb_plan_item){ lower, GB_MIN(end, lower + test_random_int(1, share)),
            (size_t) (unit * test_random_int(1, max_size)), 0 };
    }
}

// Uses the index, even where the planner would use a list.
static void by_index(const struct gb_plan_part * part, const uint32_t * order, bool smallest, size_t * offsets) {
    struct gb_plan_index * x = gb_plan_index_new(part);
    uint64_t steps = 0;
    REQUIRE(x);
    for (int round = 0; round < 2; round++) { // once more after a reset
        for (uint32_t k = 0; k < part->n; k++) {
            const struct gb_plan_buffer * b = &part->buffers[order[k]];
            const size_t at = smallest ? gb_plan_index_smallest(x, b, part->chunk, &steps)
                                       : gb_plan_index_lowest(x, b, part->chunk, &steps);
            CHECK(round == 0 || at == offsets[order[k]]);
            offsets[order[k]] = at;
            REQUIRE(gb_plan_index_add(x, b, at));
        }
        gb_plan_index_reset(x);
    }
    CHECK(steps >= part->n);
    gb_plan_index_free(x);
}

static void check_part(struct gb_plan_part * part, enum gb_plan_key key, bool smallest) {
    static size_t found[MAX_ITEMS], other[MAX_ITEMS];
    static uint32_t order[MAX_ITEMS];
    size_t peak, most = 0;
    REQUIRE(gb_plan_order(part, key, order) == GGML_STATUS_SUCCESS);
    struct gb_plan_placer * placer = gb_plan_placer_new(part);
    REQUIRE(placer);
    REQUIRE(gb_plan_place(placer, order, part->n, smallest, NULL, found, &peak) == GGML_STATUS_SUCCESS);
    by_index(part, order, smallest, other);
    for (uint32_t k = 0; k < part->n; k++) {
        const size_t at = oracle_place(part, order, k, smallest, found);
        CHECK_MSG(found[order[k]] == at, "buffer %u of %u: %zu, must be %zu", k, part->n, found[order[k]], at);
        CHECK_MSG(other[order[k]] == at, "by index: buffer %u of %u: %zu, must be %zu", k, part->n, other[order[k]],
            at);
        if (found[order[k]] != at || other[order[k]] != at) {
            break; // causes later faults
        }
        most = GB_MAX(most, at + part->buffers[order[k]].size);
    }
    CHECK_INT(peak, most);
    gb_plan_placer_free(placer);
}

static void check_items(size_t n, size_t chunk) {
    struct gb_plan_problem p;
    REQUIRE(gb_plan_problem_init(&p, items, n, 1) == GGML_STATUS_SUCCESS);
    for (size_t k = 0; k < p.n_parts; k++) {
        p.parts[k].chunk = chunk;
        for (int key = GB_PLAN_BY_SIZE; key <= GB_PLAN_BY_LOAD_AREA_WIDTH; key++) {
            check_part(&p.parts[k], key, false);
            check_part(&p.parts[k], key, true);
        }
    }
    gb_plan_problem_free(&p);
}

static void few_buffers_get_the_right_gaps(void) {
    const int rounds = gb_env_get("GGML_TEST_LONG") ? 3000 : 200;
    for (int round = 0; round < rounds; round++) {
        const size_t n = (size_t) test_random_int(1, 60);
        const int64_t most = test_random_int(1, 30);
        random_items(n, test_random_int(1, 40), test_random_int(1, 20), most, 1);
        check_items(n, round % 3 ? 0 : (size_t) (most + test_random_int(0, 50)));
    }
}

static void many_buffers_get_the_right_gaps(void) {
    static const int64_t cases[][4] = { { 3, 2, 1000000, 1 }, { 3000, 20, 1000000, 1 }, { 6000, 6000, 1000, 64 },
        { 100000, 30, 7, 1 << 20 }, { 500, 400, 100000, 1 } };
    for (size_t k = 0; k < GB_ARRAY_LEN(cases); k++) {
        random_items(1500, cases[k][0], cases[k][1], cases[k][2], cases[k][3]);
        check_items(1500, k == 2 ? 1 << 20 : 0);
    }
}

// Lifetimes with long overlaps, so that searches scan: nested, staircase, long and short in turn,
// equal, all until the end. Sizes: equal, powers of two, up to the address space. Some items are
// empty or never alive.
static void hard_items(size_t n, int lifetimes, int sizes) {
    const int64_t end = 4 * (int64_t) n;
    for (size_t i = 0; i < n; i++) {
        const int64_t at = (int64_t) i;
        int64_t lower = test_random_int(0, end - 1), upper = end;
        switch (lifetimes) {
            case 0: lower = 2 * at, upper = 2 * end - 2 * at; break;
            case 1: lower = at, upper = at + end / 4; break;
            case 2: upper = i % 2 ? lower + end / 8 + test_random_int(0, 9) : lower + 1; break;
            case 3: upper = lower + end / 10; break;
            case 4: break;
            default: upper = i == 0 ? end : lower + test_random_int(1, end / 3); lower = i == 0 ? 0 : lower;
        }
        const size_t size = sizes == 0   ? 64
                            : sizes == 1 ? (size_t) 1 << test_random_int(0, 22)
                            : sizes == 2 ? (size_t) test_random_int(1, INT64_MAX / MAX_ITEMS)
                                         : (size_t) test_random_int(1, 1000);
        items[i] = (struct gb_plan_item){ lower, i % 97 == 96 ? lower : upper, i % 89 == 88 ? 0 : size, 0 };
    }
}

static void long_overlaps_get_the_right_gaps(void) {
    const int rounds = gb_env_get("GGML_TEST_LONG") ? 10 : 1;
    for (int round = 0; round < rounds; round++) {
        for (int lifetimes = 0; lifetimes < 6; lifetimes++) {
            for (int sizes = 0; sizes < 4; sizes++) {
                const size_t n = (size_t) test_random_int(300, 900);
                hard_items(n, lifetimes, sizes);
                check_items(n, 0);
            }
        }
    }
}

// Limits of gaps learned from large buffers must not hide gaps for smaller ones.
static void limits_hide_no_gap_from_smaller_buffers(void) {
    enum { N = MAX_ITEMS };
    const int rounds = gb_env_get("GGML_TEST_LONG") ? 20 : 2;
    for (int round = 0; round < rounds; round++) {
        for (size_t i = 0; i < N; i++) {
            const int64_t lower = test_random_int(0, 2 * N - 1), width = round % 2 ? N / 3 : N;
            items[i] = (struct gb_plan_item){ lower, lower + test_random_int(1, width),
                (size_t) test_random_int(1, 1 << 12) << test_random_int(0, 10), 0 };
        }
        struct gb_plan_problem p;
        REQUIRE(gb_plan_problem_init(&p, items, N, 1) == GGML_STATUS_SUCCESS);
        for (size_t k = 0; k < p.n_parts; k++) {
            check_part(&p.parts[k], GB_PLAN_BY_SIZE, false);
        }
        gb_plan_problem_free(&p);
    }
}

// A set of so many intervals that it has runs. It is filled from either end and at random, then
// joined.
static void large_sets_find_the_lowest_gap(void) {
    enum { N = 40000 };
    struct gb_plan_buffer lives[] = { { 2, 5, 0, 1, 3 }, { 3, 4, 0, 1, 1 }, { 0, 8, 0, 1, 8 }, { 5, 8, 0, 1, 3 } };
    const struct gb_plan_part part = { .buffers = lives, .n = 4, .n_sections = 8 };
    struct gb_plan_index * x = gb_plan_index_new(&part);
    bool * used = gb_calloc(3 * N, sizeof(*used));
    uint64_t steps = 0;
    REQUIRE(x && used);
    for (int filling = 0; filling < 4; filling++) {
        gb_plan_index_reset(x);
        memset(used, 0, 3 * N * sizeof(*used));
        for (int64_t i = 0; i < N; i++) {
            const int64_t slot = filling == 0 ? i : filling == 1 ? N - 1 - i : test_random_int(0, N - 1);
            const struct gb_plan_buffer one = { 2, 5, 0, 1 + (filling == 3), 3 };
            if (!used[2 * slot] && !used[2 * slot + 1]) {
                used[2 * slot] = true;
                used[2 * slot + 1] = used[2 * slot + 1] || filling == 3;
                REQUIRE(gb_plan_index_add(x, &one, (size_t) (2 * slot)));
            }
        }
        for (size_t size = 1; size < 40; size += 3) { // the lowest free run of that length
            const struct gb_plan_buffer one = { 3, 4, 0, size, 1 };
            size_t run = 0, at = 0;
            while (run < size) {
                run = used[at++] ? 0 : run + 1;
            }
            CHECK_INT(gb_plan_index_lowest(x, &one, 0, &steps), at - size);
        }
        const struct gb_plan_buffer all = { 0, 8, 0, 2 * N, 8 }, late = { 5, 8, 0, 1, 3 };
        CHECK_INT(gb_plan_index_lowest(x, &late, 0, &steps), 0);
        REQUIRE(gb_plan_index_add(x, &all, 0)); // joins everything
        CHECK_INT(gb_plan_index_lowest(x, &late, 0, &steps), 2 * N);
    }
    gb_free(used);
    gb_plan_index_free(x);
}

// Probes skip gaps without learning their limits. A later scan must still find them. Two more
// intervals alternate below the interval of the primary set: gaps of 10 at the bottom, which the
// probes skip, then of 5, and of 3 at the top.
static void gaps_skipped_by_probes_are_found_later(void) {
    enum { PERIODS = 14, WIDE = 5, PERIOD = 110, TOP = PERIODS * PERIOD - 5 + 3 };
    struct gb_plan_buffer lives[] = { { 1, 8, 0, 50, 7 }, { 1, 2, 0, 40, 1 }, { 2, 4, 0, 60, 2 }, { 4, 8, 0, 9, 4 } };
    const struct gb_plan_part part = { .buffers = lives, .n = 4, .n_sections = 8 };
    struct gb_plan_index * x = gb_plan_index_new(&part);
    uint64_t steps = 0;
    REQUIRE(x);
    REQUIRE(gb_plan_index_add(x, &lives[3], TOP));
    for (size_t k = 0; k < PERIODS; k++) {
        const size_t gap = k < WIDE ? 10 : 5, at = k * PERIOD;
        const struct gb_plan_buffer one = { 1, 2, 0, 40, 1 }, other = { 2, 4, 0, 70 - 2 * gap, 2 };
        REQUIRE(gb_plan_index_add(x, &one, at) && gb_plan_index_add(x, &other, at + 40 + gap));
    }
    for (size_t size = 50; size > 5; size -= 7) { // 50 skips all gaps, 8 fits into the lowest
        const struct gb_plan_buffer b = { 1, 8, 0, size, 7 };
        CHECK_INT(gb_plan_index_lowest(x, &b, 0, &steps), size > 10 ? TOP + 9 : 40);
    }
    gb_plan_index_free(x);
}

// Offsets within the budget are those of first fit. The others are valid.
static void a_used_up_budget_still_gives_a_valid_plan(void) {
    enum { N = 3000 };
    static size_t found[N], whole[N];
    static uint32_t order[N];
    for (int round = 0; round < 12; round++) {
        struct gb_plan_problem p;
        const size_t n = N / (size_t) (1 + round % 3);
        random_items(n, test_random_int(3, 4 * N), test_random_int(2, N), 1000000, 1);
        REQUIRE(gb_plan_problem_init(&p, items, n, 1) == GGML_STATUS_SUCCESS);
        for (size_t k = 0; k < p.n_parts; k++) {
            struct gb_plan_part * part = &p.parts[k];
            struct gb_plan_budget budget = { .steps = (uint64_t) part->n * 500, .deadline = INT64_MAX };
            struct gb_plan_placer * placer = NULL;
            size_t peak, right, most = 0;
            part->n_pairs = 0; // enough items for an index
            part->chunk = round % 4 == 3 ? (size_t) 1 << 21 : 0;
            placer = gb_plan_placer_new(part);
            REQUIRE(placer && gb_plan_order(part, GB_PLAN_BY_SIZE, order) == GGML_STATUS_SUCCESS);
            REQUIRE(gb_plan_place(placer, order, part->n, false, NULL, whole, &right) == GGML_STATUS_SUCCESS);
            budget.steps = round == 0 ? UINT64_MAX : round == 1 ? 0 : budget.steps;
            REQUIRE(gb_plan_place_all(placer, order, &budget, found, &peak) == GGML_STATUS_SUCCESS);
            uint32_t same = 0;
            while (same < part->n && found[order[same]] == whole[order[same]]) {
                same++;
            }
            CHECK_MSG(round != 0 || same == part->n, "%u of %u", same, part->n);
            for (uint32_t b = 0; b < part->n; b++) {
                items[part->buffers[b].item].offset = found[b];
                most = GB_MAX(most, found[b] + part->buffers[b].size);
                CHECK(part->chunk == 0 || in_chunk(found[b], part->buffers[b].size, part->chunk) == found[b]);
            }
            CHECK_INT(peak, most);
            gb_plan_placer_free(placer);
        }
        size_t a, b;
        const char * problem = gb_plan_validate(items, n, 1, &a, &b);
        CHECK_MSG(problem == NULL, "%s: %zu and %zu", problem, a, b);
        gb_plan_problem_free(&p);
    }
}

// Allocates limits, runs, and limits of runs.
static bool place_with_limits(void) {
    enum { N = 2000 };
    static uint32_t order[N];
    static size_t offsets[N];
    struct gb_plan_problem p;
    size_t peak;
    for (size_t i = 0; i < N; i++) { // every third lifetime is short and large, so that gaps remain
        const int64_t lower = (int64_t) (i * 7919 % (2 * N)), width = i % 3 ? N + (int64_t) (i * 31 % 500) : 40;
        items[i] = (struct gb_plan_item){ lower, lower + width, 1 + i * 104729 % (i % 3 ? 1000 : 100000), 0 };
    }
    bool ok = gb_plan_problem_init(&p, items, N, 1) == GGML_STATUS_SUCCESS;
    for (size_t k = 0; ok && k < p.n_parts; k++) {
        struct gb_plan_part * part = &p.parts[k];
        part->n_pairs = 0; // enough items for an index
        ok = gb_plan_order(part, GB_PLAN_BY_SIZE, order) == GGML_STATUS_SUCCESS;
        struct gb_plan_placer * const placer = ok ? gb_plan_placer_new(part) : NULL;
        ok = placer && gb_plan_place(placer, order, part->n, false, NULL, offsets, &peak) == GGML_STATUS_SUCCESS;
        gb_plan_placer_free(placer);
    }
    gb_plan_problem_free(&p);
    return ok;
}

static void each_failed_allocation_is_reported(void) { test_each_allocation_fails(place_with_limits, 200); }

TEST_MAIN(TEST(few_buffers_get_the_right_gaps), TEST(many_buffers_get_the_right_gaps),
    TEST(long_overlaps_get_the_right_gaps), TEST(limits_hide_no_gap_from_smaller_buffers),
    TEST(large_sets_find_the_lowest_gap), TEST(gaps_skipped_by_probes_are_found_later),
    TEST(a_used_up_budget_still_gives_a_valid_plan), TEST(each_failed_allocation_is_reported))
