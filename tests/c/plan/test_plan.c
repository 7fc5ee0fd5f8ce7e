// Plans of up to 40 items, against a check of all pairs and a map of bytes.
#include "plan/plan.h"
#include "base/mem.h"
#include "test.h"

static bool alive_together(const struct gb_plan_item * a, const struct gb_plan_item * b) {
    for (int64_t t = a->lower; t < a->upper; t++) {
        if (t >= b->lower && t < b->upper) {
            return true;
        }
    }
    return false;
}

static bool share_bytes(const struct gb_plan_item * a, const struct gb_plan_item * b) {
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
            if (alive_together(&items[i], &items[j]) && share_bytes(&items[i], &items[j])) {
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
            test_random_int(0, 9) ? test_random_int(items[i].lower, end) : items[i].lower; // some are never alive
        items[i].size = (size_t) test_random_int(0, (int64_t) max_size);
        items[i].offset = 12345;
    }
}

// The peak of in-order best fit on a map of bytes: the smallest gap that fits, otherwise the end.
static size_t best_fit_peak(const struct gb_plan_item * items, size_t n) {
    enum { SPACE = 4096 };
    static int64_t free_at[SPACE]; // when each byte becomes free
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

// The peak of first fit in an order.
static size_t first_fit_peak(const struct gb_plan_item * items, size_t n, const size_t * order) {
    struct gb_plan_item placed[64];
    size_t peak = 0;
    for (size_t k = 0; k < n; k++) {
        struct gb_plan_item item = items[order[k]];
        bool ok = false;
        for (item.offset = 0; !ok; item.offset += !ok) {
            ok = true;
            for (size_t j = 0; ok && j < k; j++) {
                ok = !(alive_together(&item, &placed[j]) && share_bytes(&item, &placed[j]));
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

static void plans_are_valid(void) {
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

static void no_plan_is_worse_than_best_fit_or_first_fit(void) {
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
            CHECK(alive_together(&items[a], &items[b]) && share_bytes(&items[a], &items[b]));
        }
    }
    CHECK(bad > 100 && bad < 2900);
    struct gb_plan_item item = { 0, 1, 4, 12 };
    size_t a, b;
    CHECK(gb_plan_validate(&item, 1, 8, &a, &b) != NULL); // an unaligned offset
    item.offset = SIZE_MAX - 3;
    CHECK(gb_plan_validate(&item, 1, 4, &a, &b) != NULL); // beyond the end
}

static void a_chain_of_300000_items_has_a_small_plan(void) {
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

static void bad_arguments_are_refused(void) {
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
    CHECK(items[0].offset == 7 && result.peak == 5); // unchanged
    CHECK_INT(gb_plan_offsets(NULL, 0, 8, &result), GGML_STATUS_SUCCESS);
    CHECK(result.peak == 0 && result.lower_bound == 0);
}

TEST_MAIN(TEST(plans_are_valid), TEST(no_plan_is_worse_than_best_fit_or_first_fit), TEST(validator_agrees_with_pairs),
    TEST(a_chain_of_300000_items_has_a_small_plan), TEST(bad_arguments_are_refused))
