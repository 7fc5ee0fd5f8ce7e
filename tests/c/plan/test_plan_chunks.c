// Plans in chunks: each against a check of all pairs, and few items against brute force.
#include "plan/plan.h"
#include "base/mem.h"
#include "test.h"

enum { MAX_ITEMS = 3000 };
static struct gb_plan_item items[MAX_ITEMS];
static int chunk_of[MAX_ITEMS];

static void random_items(size_t n, int64_t end, int64_t max_size) {
    for (size_t i = 0; i < n; i++) {
        const int64_t lower = test_random_int(0, end - 1);
        items[i] =
            (struct gb_plan_item){ lower, test_random_int(lower, end), (size_t) test_random_int(0, max_size), 0 };
    }
}

// Checks all items and pairs. *total: bytes of all chunks.
static bool is_valid(size_t n, size_t alignment, size_t chunk, size_t * total) {
    static size_t peaks[MAX_ITEMS];
    memset(peaks, 0, sizeof(peaks));
    *total = 0;
    for (size_t i = 0; i < n; i++) {
        const struct gb_plan_item * a = &items[i];
        if (chunk_of[i] < 0 || (size_t) chunk_of[i] >= n || a->offset % alignment != 0 || a->offset + a->size > chunk) {
            return false;
        }
        for (size_t j = 0; j < i; j++) {
            const struct gb_plan_item * b = &items[j];
            const bool live = a->lower < a->upper && b->lower < b->upper;
            if (live && chunk_of[i] == chunk_of[j] && a->lower < b->upper && b->lower < a->upper &&
                a->offset < b->offset + b->size && b->offset < a->offset + a->size) {
                return false;
            }
        }
        if (a->size > 0 && a->lower < a->upper) {
            peaks[chunk_of[i]] = GB_MAX(peaks[chunk_of[i]], GGML_PAD(a->offset + a->size, alignment));
        }
    }
    for (size_t i = 0; i < n; i++) {
        *total += peaks[i];
    }
    return true;
}

static void plans_are_valid(void) {
    for (int round = 0; round < 1500; round++) {
        const size_t n = (size_t) test_random_int(0, round % 50 == 0 ? 300 : 30),
                     alignment = (size_t) 1 << test_random_int(0, 4);
        const int64_t most = test_random_int(1, 200);
        const size_t chunk = GGML_PAD((size_t) most, alignment) + (size_t) test_random_int(0, 300);
        struct gb_plan_chunks result;
        size_t total, a, b;
        random_items(n, test_random_int(1, 40), most);
        REQUIRE(gb_plan_in_chunks(items, n, alignment, chunk, chunk_of, &result) == GGML_STATUS_SUCCESS);
        CHECK(is_valid(n, alignment, chunk - chunk % alignment, &total));
        CHECK(gb_plan_validate_chunks(items, n, alignment, chunk, chunk_of, &a, &b) == NULL);
        CHECK_INT(result.total, total);
        CHECK(result.total >= result.bound && result.n >= result.n_bound &&
              result.proved == (result.total == result.bound));
        CHECK(result.one.peak > chunk || (result.n <= 1 && result.total == result.one.peak));
    }
}

// The fewest bytes, by brute force: first fit of the items into all chunks in all orders.
static size_t fewest(struct gb_plan_item * all, int * of, size_t n, size_t placed, size_t chunk, size_t best) {
    size_t peaks[8] = { 0 }, total = 0, n_chunks = 0;
    for (size_t i = 0; i < placed; i++) {
        peaks[of[i]] = GB_MAX(peaks[of[i]], all[i].offset + all[i].size);
        n_chunks = GB_MAX(n_chunks, (size_t) of[i] + 1);
    }
    for (size_t k = 0; k < 8; k++) {
        total += peaks[k];
    }
    if (total >= best || placed == n) {
        return GB_MIN(total, best);
    }
    for (size_t i = placed; i < n; i++) {
        for (int k = 0; k <= (int) n_chunks; k++) {
            const struct gb_plan_item one = all[i], swap = all[placed];
            all[i] = swap;
            all[placed] = one;
            size_t at = 0;
            for (size_t j = 0; j < placed; j++) {
                if (of[j] == k && one.lower < all[j].upper && all[j].lower < one.upper &&
                    at < all[j].offset + all[j].size && all[j].offset < at + one.size) {
                    at = all[j].offset + all[j].size;
                    j = (size_t) -1;
                }
            }
            all[placed].offset = at;
            of[placed] = k;
            best = at + one.size <= chunk ? fewest(all, of, n, placed + 1, chunk, best) : best;
            all[i] = one;
            all[placed] = swap;
        }
    }
    return best;
}

static void plans_are_close_to_brute_force(void) {
    int more = 0, proved = 0;
    for (int round = 0; round < 300; round++) {
        struct gb_plan_item copy[16];
        struct gb_plan_chunks result;
        int of[16];
        const size_t n = (size_t) test_random_int(1, 5), chunk = (size_t) test_random_int(6, 12);
        random_items(n, 5, 6);
        memcpy(copy, items, n * sizeof(*copy));
        REQUIRE(gb_plan_in_chunks(items, n, 1, chunk, chunk_of, &result) == GGML_STATUS_SUCCESS);
        size_t kept = 0;
        for (size_t i = 0; i < n; i++) {
            if (copy[i].lower < copy[i].upper) {
                copy[kept++] = copy[i];
            }
        }
        const size_t best = fewest(copy, of, kept, 0, chunk, SIZE_MAX);
        CHECK_MSG(result.bound <= best && result.total >= best, "round %d: bound %zu, best %zu, total %zu", round,
            result.bound, best, result.total);
        more += result.total > best;
        proved += result.proved;
    }
    CHECK_MSG(more <= 30 && proved > 150, "%d of 300 larger than needed, %d proved", more, proved);
}

static void the_validator_finds_each_mistake(void) {
    size_t a, b;
    items[0] = (struct gb_plan_item){ 0, 2, 10, 0 };
    items[1] = (struct gb_plan_item){ 1, 3, 10, 4 };
    chunk_of[0] = chunk_of[1] = 0;
    CHECK(gb_plan_validate_chunks(items, 2, 1, 16, chunk_of, &a, &b) != NULL);
    chunk_of[1] = 1;
    CHECK(gb_plan_validate_chunks(items, 2, 1, 16, chunk_of, &a, &b) == NULL);
    CHECK_STR(gb_plan_validate_chunks(items, 2, 1, 13, chunk_of, &a, &b), "an item reaches past the end of its chunk");
    CHECK_STR(gb_plan_validate_chunks(items, 2, 8, 16, chunk_of, &a, &b), "an offset is not aligned");
    chunk_of[1] = -1;
    CHECK_STR(gb_plan_validate_chunks(items, 2, 1, 16, chunk_of, &a, &b), "an item is in no chunk");
}

// Many items, which the validator sorts by radix sort: it accepts a valid plan, and refuses it
// after one item moves.
static void the_validator_finds_a_mistake_among_many_items(void) {
    enum { N = 2000, CHUNKS = 40, SIZE = 16, EACH = N / CHUNKS };
    for (int round = 0; round < 40; round++) {
        size_t a, b, total;
        for (int i = 0; i < N; i++) {
            items[i] = (struct gb_plan_item){ 0, 9, SIZE, (size_t) (i / CHUNKS) * SIZE };
            chunk_of[i] = i % CHUNKS * EACH;
        }
        for (int i = N - 1; i > 0; i--) {
            const int64_t other = test_random_int(0, i);
            const struct gb_plan_item item = items[i];
            const int chunk = chunk_of[i];
            items[i] = items[other], chunk_of[i] = chunk_of[other];
            items[other] = item, chunk_of[other] = chunk;
        }
        REQUIRE(is_valid(N, 1, (size_t) EACH * SIZE, &total));
        CHECK(gb_plan_validate_chunks(items, N, 1, (size_t) EACH * SIZE, chunk_of, &a, &b) == NULL);
        const int64_t one = test_random_int(0, N - 1);
        items[one].offset = items[one].offset >= SIZE ? items[one].offset - 1 : items[one].offset + 1;
        CHECK(!is_valid(N, 1, (size_t) EACH * SIZE, &total));
        CHECK_STR(gb_plan_validate_chunks(items, N, 1, (size_t) EACH * SIZE, chunk_of, &a, &b),
            "two items alive at the same time overlap");
        CHECK((int64_t) a == one || (int64_t) b == one);
    }
}

static void chunks_together_may_exceed_the_address_space(void) {
    size_t a, b;
    const size_t most = (size_t) -1, half = most / 2 + 1;
    items[0] = (struct gb_plan_item){ 0, 2, most, 0 };
    items[1] = (struct gb_plan_item){ 1, 3, most - 8, 8 };
    chunk_of[0] = 0;
    chunk_of[1] = INT32_MAX;
    CHECK(gb_plan_validate_chunks(items, 2, 1, most, chunk_of, &a, &b) == NULL);
    chunk_of[1] = 0;
    CHECK_STR(gb_plan_validate_chunks(items, 2, 1, most, chunk_of, &a, &b), "two items alive at the same time overlap");
    items[1] = (struct gb_plan_item){ 1, 3, 9, most - 8 };
    CHECK_STR(gb_plan_validate_chunks(items, 2, 1, most, chunk_of, &a, &b),
        "an item reaches past the end of its chunk");
    items[0] = (struct gb_plan_item){ 0, 2, half - 1, 0 };
    items[1] = (struct gb_plan_item){ 1, 3, half - 1, 0 };
    struct gb_plan_chunks result;
    REQUIRE(gb_plan_in_chunks(items, 2, 1, half, chunk_of, &result) == GGML_STATUS_SUCCESS);
    CHECK(chunk_of[0] != chunk_of[1]);
    CHECK_INT(result.n, 2);
    CHECK(gb_plan_validate_chunks(items, 2, 1, half, chunk_of, &a, &b) == NULL);
    CHECK(gb_plan_validate_chunks(items, 0, 1, 0, NULL, &a, &b) == NULL);
    chunk_of[0] = 0;
    CHECK_STR(gb_plan_validate_chunks(items, 1, 1, 0, chunk_of, &a, &b), "an item reaches past the end of its chunk");
}

// The sum of all sizes is up to half of the address space.
static void sizes_up_to_the_address_space_are_planned(void) {
    for (int round = 0; round < 300; round++) {
        const size_t n = (size_t) test_random_int(1, 30);
        const size_t alignment = (size_t) 1 << test_random_int(0, 6);
        const size_t chunk = ((size_t) 1 << test_random_int(60, 63)) - (size_t) test_random_int(0, 99);
        const size_t largest = (size_t) -1 / n / 2;
        struct gb_plan_chunks result;
        size_t a, b;
        random_items(n, test_random_int(1, 40), 1 << 20);
        for (size_t i = 0; i < n; i++) {
            items[i].size = GB_MIN(largest / (1 << 20) * items[i].size, chunk - 2 * alignment);
        }
        REQUIRE(gb_plan_in_chunks(items, n, alignment, chunk, chunk_of, &result) == GGML_STATUS_SUCCESS);
        CHECK(gb_plan_validate_chunks(items, n, alignment, chunk, chunk_of, &a, &b) == NULL);
    }
}

static void a_plan_without_crossing_items_is_cut_at_no_cost(void) {
    struct gb_plan_chunks result;
    for (size_t i = 0; i < 8; i++) {
        items[i] = (struct gb_plan_item){ 0, 9, 50, 0 };
    }
    REQUIRE(gb_plan_in_chunks(items, 8, 1, 120, chunk_of, &result) == GGML_STATUS_SUCCESS);
    CHECK_INT(result.total, 400);
    CHECK_INT(result.n, 4);
    CHECK_INT(result.n_bound, 4);
    CHECK(result.proved);
}

static void bad_arguments_are_refused(void) {
    struct gb_plan_chunks result;
    items[0] = (struct gb_plan_item){ 0, 9, 50, 77 };
    CHECK_INT(gb_plan_in_chunks(items, 1, 1, 49, chunk_of, &result), GGML_STATUS_ALLOC_FAILED);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "exceeds a chunk");
    CHECK_INT(items[0].offset, 77);
    CHECK_INT(gb_plan_in_chunks(items, 1, 64, 32, chunk_of, &result), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(gb_plan_in_chunks(NULL, 1, 1, 32, chunk_of, &result), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(gb_plan_in_chunks(items, 1, 1, 64, chunk_of, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(gb_plan_in_chunks(NULL, 0, 1, 64, NULL, &result), GGML_STATUS_SUCCESS);
    CHECK(result.total == 0 && result.n == 0 && result.proved);
}

static void each_failed_allocation_is_reported(void) {
    const int64_t live = gb_test_live_allocs();
    int fail = 1;
    for (bool failed = true; failed; fail++) {
        struct gb_plan_chunks result;
        test_seed = 7;
        random_items(40, 20, 60);
        items[3].offset = 12345;
        gb_test_fail_alloc(fail, false);
        const enum ggml_status status = gb_plan_in_chunks(items, 40, 8, 128, chunk_of, &result);
        failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK_INT(status, failed ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_SUCCESS);
        CHECK(!failed || items[3].offset == 12345);
        CHECK_INT(gb_test_live_allocs(), live);
    }
    CHECK(fail > 30);
}

TEST_MAIN(TEST(plans_are_valid), TEST(plans_are_close_to_brute_force), TEST(the_validator_finds_each_mistake),
    TEST(the_validator_finds_a_mistake_among_many_items), TEST(chunks_together_may_exceed_the_address_space),
    TEST(sizes_up_to_the_address_space_are_planned), TEST(a_plan_without_crossing_items_is_cut_at_no_cost),
    TEST(bad_arguments_are_refused), TEST(each_failed_allocation_is_reported))
