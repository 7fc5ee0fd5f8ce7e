// Placed neighbours of a buffer against a scan of all buffers, after random changes, in sparse and
// dense parts.
#include "plan/search/plan_methods.h"
#include "base/mem.h"
#include "test.h"

enum { MAX_ITEMS = 3000, MOVES = 400 };
static struct gb_plan_item items[MAX_ITEMS];
static size_t expected[MAX_ITEMS]; // by buffer: where it is placed

static bool meet(const struct gb_plan_buffer * a, const struct gb_plan_buffer * b) {
    return a->first < b->last && b->first < a->last;
}

static bool in_order(const struct gb_plan_pair * a, const struct gb_plan_pair * b) {
    return a->a != b->a ? a->a < b->a : a->b < b->b;
}

// Checks the result against all buffers.
static void check_found(const struct gb_plan_part * part, const struct gb_plan_buffer * b,
    const struct gb_plan_neighbour_list * found) {
    uint32_t all = 0;
    for (uint32_t k = 0; k < part->n; k++) {
        all += expected[k] != GB_PLAN_NOT_PLACED && meet(&part->buffers[k], b);
    }
    CHECK_INT(found->n, all);
    for (uint32_t k = 0; k < found->n; k++) {
        const struct gb_plan_pair begin = found->by_offset[k], end = found->by_end[k];
        REQUIRE(begin.b < part->n && end.b < part->n);
        CHECK(begin.a == expected[begin.b] && meet(&part->buffers[begin.b], b));
        CHECK(end.a == expected[end.b] + part->buffers[end.b].size && meet(&part->buffers[end.b], b));
        CHECK(k == 0 || in_order(&found->by_offset[k - 1], &begin)); // sorted, without duplicates
        CHECK(k == 0 || in_order(&found->by_end[k - 1], &end));
    }
}

// Removes some of the neighbours.
static void remove_some(struct gb_plan_neighbours * neighbours, const struct gb_plan_neighbour_list * found) {
    for (uint32_t k = 0; k < found->n; k++) {
        const uint32_t one = (uint32_t) found->by_offset[k].b;
        if (test_random_int(0, 3) == 0) {
            expected[one] = GB_PLAN_NOT_PLACED;
            gb_plan_neighbours_remove(neighbours, one);
        }
    }
}

static void move_around(const struct gb_plan_part * part, struct gb_plan_neighbours * neighbours) {
    const size_t * offsets = gb_plan_neighbours_offsets(neighbours);
    for (int move = 0; move < MOVES; move++) {
        const uint32_t b = (uint32_t) test_random_int(0, part->n - 1);
        uint64_t steps;
        if (expected[b] != GB_PLAN_NOT_PLACED) {
            expected[b] = GB_PLAN_NOT_PLACED;
            gb_plan_neighbours_remove(neighbours, b);
        }
        const struct gb_plan_neighbour_list * found = gb_plan_neighbours_find(neighbours, b, &steps);
        check_found(part, &part->buffers[b], found);
        remove_some(neighbours, found);
        for (int k = 0; k < 8; k++) {
            const uint32_t one = (uint32_t) test_random_int(0, part->n - 1);
            if (expected[one] == GB_PLAN_NOT_PLACED) {
                expected[one] = (size_t) test_random_int(0, 50);
                REQUIRE(gb_plan_neighbours_place(neighbours, one, expected[one]));
            }
        }
        for (uint32_t k = 0; k < part->n; k++) {
            REQUIRE(offsets[k] == expected[k]);
        }
    }
}

// Moves or removes each buffer with probability 1 / in.
static void set_other(const struct gb_plan_part * part, struct gb_plan_neighbours * neighbours, int in) {
    for (uint32_t b = 0; b < part->n; b++) {
        if (test_random_int(1, in) == 1) {
            expected[b] = test_random_int(0, 2) == 0 ? GB_PLAN_NOT_PLACED : (size_t) test_random_int(0, 50);
        }
    }
    REQUIRE(gb_plan_neighbours_set(neighbours, expected));
}

static void check_part(size_t n, int64_t longest, bool sparse) {
    struct gb_plan_problem p;
    for (size_t i = 0; i < n; i++) {
        const int64_t at = test_random_int(0, (int64_t) n);
        items[i] = (struct gb_plan_item){ at, at + test_random_int(1, longest), 8 * (size_t) test_random_int(1, 9), 0 };
    }
    items[0] = (struct gb_plan_item){ 0, 2 * (int64_t) n, 8, 0 }; // one part
    REQUIRE(gb_plan_problem_init(&p, items, n, 8) == GGML_STATUS_SUCCESS);
    CHECK_INT(p.n_parts, 1);
    CHECK_INT(gb_plan_is_sparse(&p.parts[0]), sparse);
    struct gb_plan_neighbours * neighbours = gb_plan_neighbours_new(&p.parts[0]);
    REQUIRE(neighbours != NULL);
    for (uint32_t b = 0; b < p.parts[0].n; b++) {
        expected[b] = GB_PLAN_NOT_PLACED;
    }
    move_around(&p.parts[0], neighbours);
    set_other(&p.parts[0], neighbours, 10);
    move_around(&p.parts[0], neighbours);
    for (uint32_t b = 0; b < p.parts[0].n; b++) {
        expected[b] = GB_PLAN_NOT_PLACED;
    }
    REQUIRE(gb_plan_neighbours_set(neighbours, expected)); // removes all
    set_other(&p.parts[0], neighbours, 1);           // all at once
    move_around(&p.parts[0], neighbours);
    gb_plan_neighbours_free(neighbours);
    gb_plan_problem_free(&p);
}

static void dense_parts_find_all_neighbours(void) {
    check_part(300, 100, false);
    check_part(2000, 1500, false);
}

static void sparse_parts_find_all_neighbours(void) {
    check_part(MAX_ITEMS, 40, true);
    check_part(1500, 3, true);
}

static void each_failed_allocation_is_reported(void) {
    struct gb_plan_problem p;
    const int64_t live = gb_test_live_allocs();
    for (int kind = 0; kind < 2; kind++) {
        const uint32_t n = kind ? 1500 : 100;
        for (size_t i = 0; i < n; i++) {
            items[i] = (struct gb_plan_item){ (int64_t) i, (int64_t) i + 2, 8, 0 };
        }
        REQUIRE(gb_plan_problem_init(&p, items, n, 8) == GGML_STATUS_SUCCESS);
        int fail = 1;
        for (bool failed = true; failed; fail++) {
            gb_test_fail_alloc(fail, false);
            struct gb_plan_neighbours * neighbours = gb_plan_neighbours_new(&p.parts[0]);
            bool ok = neighbours != NULL;
            for (uint32_t b = 0; ok && b < p.parts[0].n; b += n / 20) {
                ok = gb_plan_neighbours_place(neighbours, b, b);
            }
            failed = gb_test_alloc_failed();
            gb_test_fail_alloc(0, false);
            CHECK(ok == !failed);
            gb_plan_neighbours_free(neighbours);
        }
        CHECK(fail > 5);
        gb_plan_problem_free(&p);
    }
    CHECK_INT(gb_test_live_allocs(), live);
}

TEST_MAIN(TEST(dense_parts_find_all_neighbours), TEST(sparse_parts_find_all_neighbours),
    TEST(each_failed_allocation_is_reported))
