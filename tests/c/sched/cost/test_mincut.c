// test_mincut.c - minimum cuts against all cuts of small networks, and by their certificate on
// large ones. Invalid certificates test the validator itself.
#include "sched/cost/mincut.h"

#include "base/mem.h"
#include "flow_validator.h"
#include "test.h"

static struct gb_flow random_network(int n, int n_arcs, int64_t max_cap, bool both) {
    struct gb_flow net = { .n_nodes = n };
    for (int k = 0; k < n_arcs; k++) {
        const int32_t from = (int32_t) test_random_int(0, n - 1), to = (int32_t) test_random_int(0, n - 1);
        gb_flow_add(&net, from, to, test_random_int(0, max_cap), both ? test_random_int(0, max_cap) : 0);
    }
    return net;
}

static int64_t cut_of(const struct gb_flow * net, uint32_t set) {
    int64_t sum = 0;
    for (size_t e = 0; e < net->arcs.n; e++) {
        const bool from = set >> net->arcs.data[e].from & 1, to = set >> net->arcs.data[e].to & 1;
        sum += from && !to ? net->arcs.data[e].cap : to && !from ? net->arcs.data[e].back : 0;
    }
    return sum;
}

// All sets with node 0 and without node n - 1.
static void smallest_of_all_cuts(void) {
    for (int round = 0; round < 600; round++) {
        const int n = (int) test_random_int(2, 9);
        struct gb_flow net = random_network(n, (int) test_random_int(0, 3 * n), round % 3 == 0 ? 2 : 1000, round % 2);
        int64_t best = INT64_MAX;
        int most = 0;
        for (uint32_t set = 1; set < 1u << (n - 1); set += 2) {
            const int64_t cut = cut_of(&net, set);
            most = cut < best || (cut == best && __builtin_popcount(set) > most) ? __builtin_popcount(set) : most;
            best = cut < best ? cut : best;
        }
        REQUIRE(gb_flow_solve(&net, 0, n - 1) == GGML_STATUS_SUCCESS);
        CHECK_INT(net.value, best);
        const char * wrong = flow_problem(&net, 0, n - 1);
        CHECK_MSG(wrong == NULL, "round %d: %s", round, wrong);
        int size = 0;
        for (int v = 0; v < n; v++) {
            size += net.side[v];
        }
        CHECK_INT(size, most); // ties go to the source's side
        gb_flow_free(&net);
    }
}

static void large_networks(void) {
    for (int round = 0; round < 6; round++) {
        const int n = 20000;
        struct gb_flow net = random_network(n, 60000, INT64_C(1) << 40, round % 2);
        for (int v = 1; v < n - 1; v++) { // as in placements: every node has arcs to both ends and to the next node
            gb_flow_add(&net, 0, v, test_random_int(0, 1 << 20), 0);
            gb_flow_add(&net, v, n - 1, test_random_int(0, 1 << 20), 0);
            gb_flow_add(&net, v, v + 1, 5000, 5000);
        }
        REQUIRE(gb_flow_solve(&net, 0, n - 1) == GGML_STATUS_SUCCESS);
        const char * wrong = flow_problem(&net, 0, n - 1);
        CHECK_MSG(wrong == NULL, "round %d: %s", round, wrong);
        gb_flow_free(&net);
    }
}

// A path of 100,000 arcs, the deepest case.
static void long_path(void) {
    struct gb_flow net = { 0 };
    for (int32_t v = 0; v < 100000; v++) {
        gb_flow_add(&net, v, v + 1, 7 + v % 3, 0);
    }
    REQUIRE(gb_flow_solve(&net, 0, 100000) == GGML_STATUS_SUCCESS);
    CHECK_INT(net.value, 7);
    CHECK(flow_problem(&net, 0, 100000) == NULL);
    gb_flow_free(&net);
}

static void no_path(void) {
    struct gb_flow net = { .n_nodes = 3 };
    gb_flow_add(&net, 0, 1, 5, 0);
    gb_flow_add(&net, 2, 1, 5, 0);
    REQUIRE(gb_flow_solve(&net, 0, 2) == GGML_STATUS_SUCCESS);
    CHECK_INT(net.value, 0);
    CHECK(flow_problem(&net, 0, 2) == NULL);
    gb_flow_free(&net);
}

static void validator_sees_faults(void) {
    struct gb_flow net = { 0 };
    gb_flow_add(&net, 0, 1, 5, 0);
    gb_flow_add(&net, 1, 2, 3, 0);
    REQUIRE(gb_flow_solve(&net, 0, 2) == GGML_STATUS_SUCCESS);
    CHECK(flow_problem(&net, 0, 2) == NULL);
    net.value++;
    CHECK(flow_problem(&net, 0, 2) != NULL);
    net.value--;
    net.flow[0]++;
    CHECK(flow_problem(&net, 0, 2) != NULL);
    net.flow[0] = 6;
    CHECK_STR(flow_problem(&net, 0, 2), "an arc carries more than its capacity");
    net.flow[0] = 3;
    net.side[1] = 0;
    CHECK_STR(flow_problem(&net, 0, 2), "an arc across the cut is not full");
    net.side[1] = 1;
    net.side[2] = 1;
    CHECK_STR(flow_problem(&net, 0, 2), "the cut does not separate source and sink");
    gb_flow_free(&net);
}

static void memory_runs_out(void) {
    const int64_t live = gb_test_live_allocs();
    for (int n = 1; n < 100; n++) {
        struct gb_flow net = { 0 };
        gb_test_fail_alloc(n, false);
        const bool ok = gb_flow_add(&net, 0, 1, 3, 0) && gb_flow_add(&net, 1, 2, 2, 0) &&
                        gb_flow_solve(&net, 0, 2) == GGML_STATUS_SUCCESS;
        const bool failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK(ok != failed);
        CHECK(!ok || net.value == 2);
        gb_flow_free(&net);
        CHECK_INT(gb_test_live_allocs(), live);
        if (!failed) {
            return;
        }
        CHECK_INT(ggml_last_status(), GGML_STATUS_ALLOC_FAILED);
    }
    CHECK(!"never succeeded");
}

TEST_MAIN(TEST(smallest_of_all_cuts), TEST(large_networks), TEST(long_path), TEST(no_path), TEST(validator_sees_faults),
    TEST(memory_runs_out))
