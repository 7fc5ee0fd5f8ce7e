// Who is placed and alive with a buffer, against looking at all: in parts where few are alive with each and in others,
// after random puts and takes.
#include "alloc/plan_impl.h"
#include "base/mem.h"
#include "test.h"

enum { MAX_ITEMS = 3000, MOVES = 400 };
static struct gb_plan_item items[MAX_ITEMS];
static size_t              expected[MAX_ITEMS]; // by buffer: where it is placed

static bool meet(const struct gb_plan_buffer * a, const struct gb_plan_buffer * b) {
    return a->first < b->last && b->first < a->last;
}

// Found are exactly those that looking at all finds, by rising offset.
static void check_found(const struct gb_plan_part * part, const struct gb_plan_buffer * b, const uint32_t * met,
    uint32_t n) {
    uint32_t all = 0;
    for (uint32_t k = 0; k < part->n; k++) {
        all += expected[k] != GB_PLAN_NOT_PLACED && meet(&part->buffers[k], b);
    }
    CHECK_INT(n, all);
    for (uint32_t k = 0; k < n; k++) {
        CHECK(expected[met[k]] != GB_PLAN_NOT_PLACED && meet(&part->buffers[met[k]], b));
        CHECK(k == 0 || expected[met[k - 1]] <= expected[met[k]]);
        for (uint32_t j = 0; j < k && expected[met[j]] == expected[met[k]]; j++) {
            CHECK(met[j] != met[k]);
        }
    }
}

static void move_around(const struct gb_plan_part * part, struct gb_plan_near * near) {
    const size_t * offsets = gb_plan_near_offsets(near);
    for (uint32_t b = 0; b < part->n; b++) {
        expected[b] = GB_PLAN_NOT_PLACED;
    }
    for (int move = 0; move < MOVES; move++) {
        const uint32_t   b = (uint32_t) test_random_int(0, part->n - 1);
        const uint32_t * met;
        uint64_t         steps;
        const uint32_t   n = gb_plan_near_find(near, &part->buffers[b], &met, &steps);
        check_found(part, &part->buffers[b], met, n);
        for (uint32_t k = 0; k < n; k++) {
            if (test_random_int(0, 3) == 0) {
                expected[met[k]] = GB_PLAN_NOT_PLACED;
                gb_plan_near_take(near, k);
            }
        }
        for (int k = 0; k < 8; k++) {
            const uint32_t one = (uint32_t) test_random_int(0, part->n - 1);
            if (expected[one] == GB_PLAN_NOT_PLACED) {
                expected[one] = (size_t) test_random_int(0, 50);
                gb_plan_near_put(near, one, expected[one]);
            }
        }
        for (uint32_t k = 0; k < part->n; k++) {
            REQUIRE(offsets[k] == expected[k]);
        }
    }
}

static void like_looking_at_all(size_t n, int64_t longest, bool few) {
    struct gb_plan_problem p;
    for (size_t i = 0; i < n; i++) {
        const int64_t at = test_random_int(0, (int64_t) n);
        items[i]         = (struct gb_plan_item){ at, at + test_random_int(1, longest), 8, 0 };
    }
    items[0] = (struct gb_plan_item){ 0, 2 * (int64_t) n, 8, 0 }; // one part
    REQUIRE(gb_plan_problem_init(&p, items, n, 8) == GGML_STATUS_SUCCESS);
    CHECK_INT(p.n_parts, 1);
    CHECK_INT(gb_plan_is_ejecting_cheap(&p.parts[0]), few);
    struct gb_plan_near * near = gb_plan_near_new(&p.parts[0]);
    REQUIRE(near != NULL);
    move_around(&p.parts[0], near);
    gb_plan_near_clear(near);
    move_around(&p.parts[0], near);
    gb_plan_near_free(near);
    gb_plan_problem_free(&p);
}

static void listed(void) {
    like_looking_at_all(300, 100, false);
    like_looking_at_all(2000, 1500, false);
}

static void gathered(void) {
    like_looking_at_all(MAX_ITEMS, 40, true);
    like_looking_at_all(1500, 3, true);
}

static void out_of_memory(void) {
    struct gb_plan_problem p;
    const int64_t          live = gb_test_live_allocs();
    for (int kind = 0; kind < 2; kind++) {
        const size_t n = kind ? 1500 : 100;
        for (size_t i = 0; i < n; i++) {
            items[i] = (struct gb_plan_item){ (int64_t) i, (int64_t) i + 2, 8, 0 };
        }
        REQUIRE(gb_plan_problem_init(&p, items, n, 8) == GGML_STATUS_SUCCESS);
        int fail = 1;
        for (bool failed = true; failed; fail++) {
            gb_test_fail_alloc(fail, false);
            struct gb_plan_near * near = gb_plan_near_new(&p.parts[0]);
            failed                     = gb_test_alloc_failed();
            gb_test_fail_alloc(0, false);
            CHECK((near == NULL) == failed);
            gb_plan_near_free(near);
        }
        CHECK(fail > 5);
        gb_plan_problem_free(&p);
    }
    CHECK_INT(gb_test_live_allocs(), live);
}

TEST_MAIN(TEST(listed), TEST(gathered), TEST(out_of_memory))
