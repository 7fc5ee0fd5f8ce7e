// Sort keys against their formula: size times powers of load and width, computed as logarithms in
// long double.
#include <math.h>

#include "plan/plan_impl.h"
#include "base/mem.h"
#include "test.h"

enum { MAX_ITEMS = 2000 };
static struct gb_plan_item items[MAX_ITEMS];
static uint32_t order[MAX_ITEMS];

static void random_part(struct gb_plan_problem * p, size_t n, int64_t longest, size_t largest) {
    for (size_t i = 0; i < n; i++) {
        const int64_t at = test_random_int(0, (int64_t) n);
        items[i] = (struct gb_plan_item){ at, at + test_random_int(1, longest),
            1 + (size_t) test_random_int(0, 1000) * (largest / 1001), 0 };
    }
    items[0] = (struct gb_plan_item){ 0, 2 * (int64_t) n, 1, 0 }; // one part
    REQUIRE(gb_plan_problem_init(p, items, n, 1) == GGML_STATUS_SUCCESS);
    REQUIRE(p->n_parts == 1);
}

static size_t max_load_of(const struct gb_plan_part * part, uint32_t b) {
    size_t most = 0;
    for (uint32_t s = part->buffers[b].first; s < part->buffers[b].last; s++) {
        size_t load = 0;
        for (uint32_t k = 0; k < part->n; k++) {
            load += part->buffers[k].first <= s && part->buffers[k].last > s ? part->buffers[k].size : 0;
        }
        most = load > most ? load : most;
    }
    return most;
}

static long double weight_of(const struct gb_plan_part * part, uint32_t b, int power, long double root) {
    const struct gb_plan_buffer * one = &part->buffers[b];
    return logl((long double) one->size) + power * logl((long double) max_load_of(part, b)) +
           root * logl((long double) (one->last - one->first));
}

// Checks that each buffer occurs once, and that weights fall from `from` on, up to rounding.
static void check_order(const struct gb_plan_part * part, const long double * weights, uint32_t from) {
    static bool seen[MAX_ITEMS];
    for (uint32_t k = 0; k < part->n; k++) {
        seen[k] = false;
    }
    for (uint32_t k = 0; k < part->n; k++) {
        REQUIRE(order[k] < part->n && !seen[order[k]]);
        seen[order[k]] = true;
        CHECK(k <= from || weights[order[k]] <= weights[order[k - 1]] + 1e-12L);
    }
}

static void by_weights(size_t n, int64_t longest, size_t largest) {
    static long double weights[MAX_ITEMS];
    static const struct {
        enum gb_plan_key key;
        int power;
        long double root;
    } keys[] = { { GB_PLAN_BY_LOADED_SIZE, 8, 0 }, { GB_PLAN_BY_LOADED_WIDTH, 8, 0.25L },
        { GB_PLAN_BY_PEAK, 16, 0.25L } };
    struct gb_plan_problem p;
    random_part(&p, n, longest, largest);
    struct gb_plan_part * part = &p.parts[0];
    for (size_t m = 0; m < sizeof(keys) / sizeof(*keys); m++) {
        REQUIRE(gb_plan_order(part, keys[m].key, order) == GGML_STATUS_SUCCESS);
        uint32_t peak = 0, n_first = 0;
        for (uint32_t s = 0; s < part->n_sections; s++) {
            peak = part->load[s] > part->load[peak] ? s : peak;
        }
        for (uint32_t b = 0; b < part->n; b++) {
            weights[b] = weight_of(part, b, keys[m].power, keys[m].root);
        }
        if (keys[m].key == GB_PLAN_BY_PEAK) { // buffers of the section with the highest load first, by width
            while (n_first < part->n && part->buffers[order[n_first]].first <= peak &&
                   part->buffers[order[n_first]].last > peak) {
                const struct gb_plan_buffer * one = &part->buffers[order[n_first]];
                weights[order[n_first]] = one->last - one->first;
                CHECK(n_first == 0 || weights[order[n_first]] <= weights[order[n_first - 1]]);
                n_first++;
            }
            for (uint32_t k = n_first; k < part->n; k++) {
                CHECK(part->buffers[order[k]].first > peak || part->buffers[order[k]].last <= peak);
            }
            CHECK(n_first > 0);
        }
        check_order(part, weights, n_first);
    }
    gb_plan_problem_free(&p);
}

static void orders_follow_the_formula(void) { by_weights(300, 60, 1000000); }

static void sizes_near_the_largest_do_not_overflow(void) { by_weights(200, 40, SIZE_MAX / 400); }

static void equal_sizes_follow_the_formula(void) { by_weights(300, 100, 0); }

static void the_order_of_items_does_not_matter(void) {
    static struct gb_plan_buffer before[MAX_ITEMS];
    struct gb_plan_problem p;
    random_part(&p, 400, 50, 5000);
    for (int key = GB_PLAN_BY_LOADED_SIZE; key <= GB_PLAN_BY_PEAK; key++) {
        REQUIRE(gb_plan_order(&p.parts[0], (enum gb_plan_key) key, order) == GGML_STATUS_SUCCESS);
        for (uint32_t k = 0; k < p.parts[0].n; k++) {
            before[k] = p.parts[0].buffers[order[k]];
        }
        for (size_t i = 0; i < 200; i++) { // the items from the last to the first
            const struct gb_plan_item swap = items[i];
            items[i] = items[399 - i];
            items[399 - i] = swap;
        }
        struct gb_plan_problem q;
        REQUIRE(gb_plan_problem_init(&q, items, 400, 1) == GGML_STATUS_SUCCESS);
        REQUIRE(gb_plan_order(&q.parts[0], (enum gb_plan_key) key, order) == GGML_STATUS_SUCCESS);
        for (uint32_t k = 0; k < q.parts[0].n; k++) {
            const struct gb_plan_buffer * one = &q.parts[0].buffers[order[k]];
            CHECK(one->first == before[k].first && one->last == before[k].last && one->size == before[k].size);
        }
        gb_plan_problem_free(&q);
    }
    gb_plan_problem_free(&p);
}

TEST_MAIN(TEST(orders_follow_the_formula), TEST(sizes_near_the_largest_do_not_overflow),
    TEST(equal_sizes_follow_the_formula), TEST(the_order_of_items_does_not_matter))
