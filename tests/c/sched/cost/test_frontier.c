// test_frontier.c - the frontier search against all placements of small problems, and its bounds
// after an early end.
#include "sched/cost/frontier.h"

#include "test_cost.h"

static void equals_all_placements(void) {
    for (int round = 0; round < 500; round++) {
        const int k = (int) test_random_int(1, 4), n_ops = (int) test_random_int(1, k >= 4 ? 5 : 7),
                  n_leafs = (int) test_random_int(0, 2);
        struct instance w = random_instance(k, n_ops, n_leafs, (int) test_random_int(1, 6), round % 2 ? 3 : 1000, 25);
        const int64_t best = try_everything(&w.p);
        int32_t labels[16] = { 0 };
        struct gb_frontier_result r;
        REQUIRE(gb_frontier_solve(&w.p, INT64_MAX / 4, 1 << 20, labels, &r) == GGML_STATUS_SUCCESS);
        CHECK(r.complete && r.found);
        CHECK_INT(r.cost, best);
        CHECK_INT(r.bound, best);
        CHECK_INT(cost_of(&w.p, labels), best);
        // with a bound: finds the optimum if it is below the bound, otherwise keeps the labels
        REQUIRE(gb_frontier_solve(&w.p, best + 1, 1 << 20, labels, &r) == GGML_STATUS_SUCCESS);
        CHECK(r.complete && r.found && r.cost == best);
        labels[0] = -7;
        REQUIRE(gb_frontier_solve(&w.p, best, 1 << 20, labels, &r) == GGML_STATUS_SUCCESS);
        CHECK(r.complete && !r.found && r.bound == best && labels[0] == -7);
        close_instance(&w);
    }
}

static void cut_short_its_bound_holds(void) {
    int n_short = 0;
    for (int round = 0; round < 300; round++) {
        struct instance w = random_instance(3, 7, 1, 6, 1000, 10);
        const int64_t best = try_everything(&w.p);
        int32_t labels[16] = { 0 };
        struct gb_frontier_result r;
        REQUIRE(gb_frontier_solve(&w.p, INT64_MAX / 4, (size_t) test_random_int(0, 200), labels, &r) ==
                GGML_STATUS_SUCCESS);
        CHECK(r.bound <= best);
        CHECK(!r.found || r.cost == best);
        n_short += !r.complete;
        close_instance(&w);
    }
    CHECK(n_short > 50);
}

// Long and narrow, like networks: a chain with skips. The result must equal the cut, which is a
// proof.
static void long_graphs_equal_the_cut(void) {
    int n_complete = 0;
    for (int round = 0; round < 8; round++) {
        struct instance w = random_instance(2, 120, 2, 2, 100000, 10);
        int32_t * labels = calloc((size_t) w.p.n_items, sizeof(*labels));
        struct gb_frontier_result f;
        struct gb_cost_result c;
        REQUIRE(gb_cost_solve(&w.p, NULL, 0, labels, &c) == GGML_STATUS_SUCCESS);
        REQUIRE(gb_frontier_solve(&w.p, c.cost + 1, 1 << 20, labels, &f) == GGML_STATUS_SUCCESS);
        CHECK(f.bound <= c.cost && f.found == f.complete);
        CHECK(!f.complete || (f.cost == c.cost && cost_of(&w.p, labels) == c.cost));
        n_complete += f.complete;
        free(labels);
        close_instance(&w);
    }
    CHECK(n_complete >= 6); // some are too wide
}

static void memory_runs_out(void) {
    struct instance w = random_instance(3, 6, 2, 4, 1000, 10);
    const int64_t best = try_everything(&w.p), live = gb_test_live_allocs();
    for (int n = 1; n < 300; n++) {
        int32_t labels[16] = { 0 };
        struct gb_frontier_result r;
        gb_test_fail_alloc(n, n % 2);
        const enum ggml_status status = gb_frontier_solve(&w.p, INT64_MAX / 4, 1 << 20, labels, &r);
        const bool failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK_INT(gb_test_live_allocs(), live);
        CHECK_INT(status, failed ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_SUCCESS);
        if (!failed) {
            CHECK_INT(r.cost, best);
            CHECK(n > 10);
            close_instance(&w);
            return;
        }
    }
    CHECK(!"never succeeded");
}

TEST_MAIN(TEST(equals_all_placements), TEST(cut_short_its_bound_holds), TEST(long_graphs_equal_the_cut),
    TEST(memory_runs_out))
