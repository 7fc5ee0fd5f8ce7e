// Static planning. Oracles: a pairwise check, a map of single bytes, trying every order.
#include "alloc/offset_pool.h"
#include "plan/plan.h"
#include "base/mem.h"
#include "plan_items.h"
#include "pool_validator.h"
#include "test.h"

static bool spans_meet(const struct gb_plan_item * a, const struct gb_plan_item * b) {
    for (int64_t t = a->lower; t < a->upper; t++) {
        if (t >= b->lower && t < b->upper) {
            return true;
        }
    }
    return false;
}

static bool bytes_meet(const struct gb_plan_item * a, const struct gb_plan_item * b) {
    for (size_t x = a->offset; x < a->offset + a->size; x++) {
        if (x >= b->offset && x < b->offset + b->size) {
            return true;
        }
    }
    return false;
}

static bool valid_by_pairs(const struct gb_plan_item * items, size_t n) {
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < i; j++) {
            if (spans_meet(&items[i], &items[j]) && bytes_meet(&items[i], &items[j])) {
                return false;
            }
        }
    }
    return true;
}

static size_t peak_of(const struct gb_plan_item * items, size_t n, size_t alignment) {
    size_t peak = 0;
    for (size_t i = 0; i < n; i++) {
        if (items[i].lower < items[i].upper && items[i].size > 0) {
            peak = GB_MAX(peak, items[i].offset + (items[i].size + alignment - 1) / alignment * alignment);
        }
    }
    return peak;
}

static size_t most_alive(const struct gb_plan_item * items, size_t n, size_t alignment) {
    size_t most = 0;
    for (int64_t t = 0; t < 64; t++) {
        size_t alive = 0;
        for (size_t i = 0; i < n; i++) {
            if (items[i].lower <= t && t < items[i].upper) {
                alive += (items[i].size + alignment - 1) / alignment * alignment;
            }
        }
        most = GB_MAX(most, alive);
    }
    return most;
}

static void random_items(struct gb_plan_item * items, size_t n, int64_t end, size_t max_size) {
    for (size_t i = 0; i < n; i++) {
        items[i].lower = test_random_int(0, end - 1);
        items[i].upper =
            test_random_int(0, 9) ? test_random_int(items[i].lower, end) : items[i].lower; // some never live
        items[i].size = (size_t) test_random_int(0, (int64_t) max_size);
        items[i].offset = 12345;
    }
}

// What an allocator that keeps a map of bytes would need: smallest gap that fits, the tail only when none does.
static size_t best_fit_peak(const struct gb_plan_item * items, size_t n) {
    enum { SPACE = 4096 };
    static int64_t free_at[SPACE]; // the time at which a byte is free again
    memset(free_at, 0, sizeof(free_at));
    size_t peak = 0;
    for (int64_t t = 0; t < 64; t++) {
        for (size_t i = 0; i < n; i++) {
            if (items[i].lower != t || items[i].upper <= t || items[i].size == 0) {
                continue;
            }
            size_t best = SPACE, best_size = SPACE, at = 0;
            while (at < SPACE) {
                size_t size = 0;
                while (at + size < SPACE && free_at[at + size] <= t) {
                    size++;
                }
                const bool tail = at + size == SPACE;
                if (size >= items[i].size && (tail ? best == SPACE : size < best_size)) {
                    best = at;
                    best_size = size;
                }
                at += size ? size : 1;
            }
            for (size_t b = 0; b < items[i].size; b++) {
                free_at[best + b] = items[i].upper;
            }
            peak = GB_MAX(peak, best + items[i].size);
        }
    }
    return peak;
}

// Lowest possible offset, in the given order of placing.
static size_t first_fit_peak(const struct gb_plan_item * items, size_t n, const size_t * order) {
    struct gb_plan_item placed[64];
    size_t peak = 0;
    for (size_t k = 0; k < n; k++) {
        struct gb_plan_item item = items[order[k]];
        bool ok = false;
        for (item.offset = 0; !ok; item.offset += !ok) {
            ok = true;
            for (size_t j = 0; ok && j < k; j++) {
                ok = !(spans_meet(&item, &placed[j]) && bytes_meet(&item, &placed[j]));
            }
            if (ok) {
                break;
            }
        }
        placed[k] = item;
        if (item.lower < item.upper) {
            peak = GB_MAX(peak, item.offset + item.size);
        }
    }
    return peak;
}

static void sort_by_size(const struct gb_plan_item * items, size_t n, size_t * order) {
    for (size_t i = 0; i < n; i++) {
        order[i] = i;
    }
    for (size_t i = 1; i < n; i++) {
        for (size_t j = i; j > 0; j--) {
            const struct gb_plan_item *a = &items[order[j - 1]], *b = &items[order[j]];
            if (a->size > b->size ||
                (a->size == b->size && (a->lower < b->lower || (a->lower == b->lower && order[j - 1] < order[j])))) {
                break;
            }
            const size_t x = order[j];
            order[j] = order[j - 1];
            order[j - 1] = x;
        }
    }
}

static void random_plans(void) {
    for (int round = 0; round < 2000; round++) {
        struct gb_plan_item items[40];
        struct gb_plan_result result;
        const size_t n = (size_t) test_random_int(0, 40);
        const size_t alignment = (size_t) 1 << test_random_int(0, 5);
        size_t a, b;
        random_items(items, n, 30, 60);
        CHECK_INT(gb_plan_offsets(items, n, alignment, &result), GGML_STATUS_SUCCESS);
        CHECK(valid_by_pairs(items, n));
        CHECK(gb_plan_validate(items, n, alignment, &a, &b) == NULL);
        CHECK_INT(result.peak, peak_of(items, n, alignment));
        CHECK_INT(result.lower_bound, most_alive(items, n, alignment));
        CHECK(result.peak >= result.lower_bound);
    }
}

static void never_worse_than_either(void) {
    int better = 0;
    for (int round = 0; round < 300; round++) {
        struct gb_plan_item items[30];
        struct gb_plan_result result;
        size_t order[30];
        const size_t n = (size_t) test_random_int(1, 30);
        random_items(items, n, 20, 50);
        CHECK_INT(gb_plan_offsets(items, n, 1, &result), GGML_STATUS_SUCCESS);
        sort_by_size(items, n, order);
        const size_t best_fit = best_fit_peak(items, n), first_fit = first_fit_peak(items, n, order);
        CHECK_MSG(result.peak <= best_fit, "peak %zu, best fit %zu", result.peak, best_fit);
        CHECK_MSG(result.peak <= first_fit, "peak %zu, first fit %zu", result.peak, first_fit);
        better += result.peak < best_fit;
    }
    CHECK(better > 0);
}

// For few items: no order of placing gives less than the lower bound says, and ours is close to the best of all orders.
static void against_every_order(void) {
    int optimal = 0;
    const int rounds = 200;
    for (int round = 0; round < rounds; round++) {
        struct gb_plan_item items[5];
        struct gb_plan_result result;
        size_t best = SIZE_MAX;
        random_items(items, 5, 8, 9);
        CHECK_INT(gb_plan_offsets(items, 5, 1, &result), GGML_STATUS_SUCCESS);
        for (int code = 0; code < 5 * 5 * 5 * 5 * 5; code++) {
            size_t order[5];
            int seen = 0, rest = code;
            for (int i = 0; i < 5; i++, rest /= 5) {
                order[i] = (size_t) (rest % 5);
                seen |= 1 << order[i];
            }
            if (seen == 31) {
                best = GB_MIN(best, first_fit_peak(items, 5, order));
            }
        }
        CHECK(result.peak >= best);
        CHECK(best >= result.lower_bound);
        optimal += result.peak == best;
    }
    CHECK_MSG(optimal >= rounds * 9 / 10, "optimal in %d of %d", optimal, rounds);
}

static void validator_agrees_with_pairs(void) {
    int bad = 0;
    for (int round = 0; round < 3000; round++) {
        struct gb_plan_item items[12];
        size_t a = 99, b = 99;
        const size_t n = (size_t) test_random_int(1, 12);
        random_items(items, n, 12, 8);
        for (size_t i = 0; i < n; i++) {
            items[i].offset = (size_t) test_random_int(0, 40);
        }
        const bool valid = valid_by_pairs(items, n);
        CHECK_INT(gb_plan_validate(items, n, 1, &a, &b) == NULL, valid);
        if (!valid) {
            bad++;
            CHECK(spans_meet(&items[a], &items[b]) && bytes_meet(&items[a], &items[b]));
        }
    }
    CHECK(bad > 100 && bad < 2900);
    struct gb_plan_item item = { 0, 1, 4, 12 };
    size_t a, b;
    CHECK(gb_plan_validate(&item, 1, 8, &a, &b) != NULL); // unaligned
    item.offset = SIZE_MAX - 3;
    CHECK(gb_plan_validate(&item, 1, 4, &a, &b) != NULL); // beyond the end
}

static void model_graphs(void) {
    static const char * const names[] = { "plan_whisper_base_enc.csv", "plan_unet.csv" };
    for (size_t k = 0; k < GB_ARRAY_LEN(names); k++) {
        static struct gb_plan_item items[1000];
        struct gb_plan_result result;
        size_t a, b;
        const size_t n = plan_items_load(names[k], items, 1000);
        REQUIRE(n > 50);
        size_t sum = 0;
        for (size_t i = 0; i < n; i++) {
            sum += items[i].size;
        }
        CHECK_INT(gb_plan_offsets(items, n, 64, &result), GGML_STATUS_SUCCESS);
        CHECK(gb_plan_validate(items, n, 64, &a, &b) == NULL);
        CHECK(result.peak >= result.lower_bound && result.peak <= sum / 2);
        CHECK_MSG(result.peak <= result.lower_bound + result.lower_bound / 5, "%s: %zu, at least %zu", names[k],
            result.peak, result.lower_bound);
        CHECK_INT(result.peak, peak_of(items, n, 64));
    }
}

static void large_chain(void) {
    const size_t n = 300000;
    struct gb_plan_item * items = gb_calloc(n, sizeof(*items));
    struct gb_plan_result result;
    size_t a, b;
    REQUIRE(items);
    for (size_t i = 0; i < n; i++) {
        items[i] = (struct gb_plan_item){ (int64_t) i, i % 1000 ? (int64_t) i + 2 : (int64_t) n, 100 + i % 7, 0 };
    }
    CHECK_INT(gb_plan_offsets(items, n, 64, &result), GGML_STATUS_SUCCESS);
    CHECK(gb_plan_validate(items, n, 64, &a, &b) == NULL);
    CHECK(result.peak >= result.lower_bound && result.peak <= result.lower_bound + 4096);
    gb_free(items);
}

static void bad_arguments(void) {
    struct gb_plan_item items[2] = { { 0, 1, 8, 7 }, { 0, 1, SIZE_MAX - 7, 7 } };
    struct gb_plan_result result = { .peak = 5, .lower_bound = 5 };
    CHECK_INT(gb_plan_offsets(NULL, 1, 8, &result), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'items'");
    CHECK_INT(gb_plan_offsets(items, 1, 8, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(gb_plan_offsets(items, 1, 12, &result), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "12");
    CHECK_INT(gb_plan_offsets(items, 2, 8, &result), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "overflow");
    items[1] = (struct gb_plan_item){ 3, 2, 8, 7 };
    CHECK_INT(gb_plan_offsets(items, 2, 8, &result), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "item 1");
    CHECK(items[0].offset == 7 && result.peak == 5); // untouched
    CHECK_INT(gb_plan_offsets(NULL, 0, 8, &result), GGML_STATUS_SUCCESS);
    CHECK(result.peak == 0 && result.lower_bound == 0);
}

static void out_of_memory(void) {
    struct gb_plan_item items[20];
    random_items(items, 20, 20, 50);
    const int64_t live = gb_test_live_allocs();
    for (int n = 1;; n++) {
        struct gb_plan_result result;
        gb_test_fail_alloc(n, false);
        const enum ggml_status status = gb_plan_offsets(items, 20, 8, &result);
        const bool failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK_INT(gb_test_live_allocs(), live);
        if (!failed) {
            CHECK_INT(status, GGML_STATUS_SUCCESS);
            CHECK(n > 5);
            return;
        }
        size_t a, b;
        if (status == GGML_STATUS_SUCCESS) { // without what only improves a plan
            CHECK(gb_plan_validate(items, 20, 8, &a, &b) == NULL);
            items[3].offset = 12345;
        }
        CHECK(status == GGML_STATUS_SUCCESS || status == GGML_STATUS_ALLOC_FAILED);
        CHECK(items[3].offset == 12345);
    }
}

// ------------------------------------------------------------------------------------------------------------ the pool

// Against a map of bytes.
static void pool_random(void) {
    enum { SPACE = 300, PIECES = 60 };
    for (int round = 0; round < 200; round++) {
        struct gb_offset_pool pool;
        bool used[SPACE] = { 0 };
        struct gb_free_block pieces[PIECES];
        int n = 0;
        const size_t start = (size_t) test_random_int(0, 20);
        REQUIRE(gb_pool_init(&pool, start, SPACE));
        for (int step = 0; step < 300; step++) {
            if (n < PIECES && test_random_int(0, 2)) {
                size_t offset;
                const size_t size = (size_t) test_random_int(0, 20);
                size_t largest = 0, run = 0;
                for (size_t i = start; i < SPACE; i++) {
                    run = used[i] ? 0 : run + 1;
                    largest = GB_MAX(largest, run);
                }
                CHECK_INT(gb_pool_largest_free(&pool), largest);
                const enum gb_pool_result result = gb_pool_take(&pool, size, &offset);
                CHECK_INT(result, size <= largest ? GB_POOL_OK : GB_POOL_FULL);
                if (result == GB_POOL_OK && size > 0) {
                    for (size_t i = offset; i < offset + size; i++) {
                        CHECK(i >= start && i < SPACE && !used[i]);
                        used[i] = true;
                    }
                    pieces[n++] = (struct gb_free_block){ offset, size };
                }
            } else if (n > 0) {
                const int i = (int) test_random_int(0, n - 1);
                gb_pool_give_back(&pool, pieces[i].offset, pieces[i].size);
                memset(used + pieces[i].offset, 0, pieces[i].size);
                pieces[i] = pieces[--n];
            }
            CHECK(pool_is_valid(&pool));
        }
        gb_pool_free(&pool);
    }
}

static void pool_prefers_holes(void) {
    struct gb_offset_pool pool;
    size_t a, b, c, d, e, x;
    REQUIRE(gb_pool_init(&pool, 0, 1000));
    gb_pool_take(&pool, 100, &a);
    gb_pool_take(&pool, 10, &b);
    gb_pool_take(&pool, 50, &c);
    gb_pool_take(&pool, 10, &d);
    gb_pool_take(&pool, 100, &e);
    gb_pool_give_back(&pool, a, 100);
    gb_pool_give_back(&pool, c, 50);
    CHECK(gb_pool_take(&pool, 40, &x) == GB_POOL_OK && x == c); // the smaller hole
    CHECK(gb_pool_take(&pool, 60, &x) == GB_POOL_OK && x == a);
    CHECK(gb_pool_take(&pool, 50, &x) == GB_POOL_OK && x == 270); // only the tail fits
    CHECK_INT(pool.high, 320);
    gb_pool_reset(&pool);
    CHECK_INT(pool.high, 320);
    CHECK(gb_pool_take(&pool, 1000, &x) == GB_POOL_OK && x == 0);
    CHECK(gb_pool_take(&pool, 1, &x) == GB_POOL_FULL);
    CHECK(gb_pool_take(&pool, 0, &x) == GB_POOL_OK);
    gb_pool_free(&pool);
}

TEST_MAIN(TEST(random_plans), TEST(never_worse_than_either), TEST(against_every_order),
    TEST(validator_agrees_with_pairs), TEST(model_graphs), TEST(large_chain), TEST(bad_arguments), TEST(out_of_memory),
    TEST(pool_random), TEST(pool_prefers_holes))
