// test_split.c - splits of node lists, against lists split by hand and properties of random lists.
#include "sched/program/program.h"

#include "test.h"

// Nodes as text: a digit is a node of that backend, '.' a node without work. Splits:
// "backend:start-end" for the nodes start <= i < end.
static void check(const char * nodes, const char * expected) {
    const int n = (int) strlen(nodes);
    int32_t backend[64];
    uint8_t computes[64];
    for (int i = 0; i < n; i++) {
        computes[i] = nodes[i] != '.';
        backend[i] = computes[i] ? nodes[i] - '0' : 7;
    }
    gb_split_list splits = { 0 };
    REQUIRE(gb_split_nodes(backend, computes, n, &splits));
    char text[512] = "";
    for (size_t k = 0; k < splits.n; k++) {
        const struct gb_split_range * s = &splits.data[k];
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%d:%d-%d", k ? " " : "", s->backend, s->start,
            s->end);
    }
    CHECK_STR(text, expected);
    gb_vec_free(&splits);
}

static void by_hand(void) {
    check("", "");
    check("0", "0:0-1");
    check("000", "0:0-3");
    check("001122", "0:0-2 1:2-4 2:4-6");
    check("0101", "0:0-1 1:1-2 0:2-3 1:3-4");
    check("..0.1..", "0:0-4 1:4-7");
    check("0..0", "0:0-4");
    check(".", "7:0-1");
    check("...", "7:0-3");
    check(".1.", "1:0-3");
}

static void random_lists(void) {
    for (int round = 0; round < 300; round++) {
        const int n = (int) test_random_int(1, 60);
        int32_t backend[64];
        uint8_t computes[64];
        for (int i = 0; i < n; i++) {
            backend[i] = (int32_t) test_random_int(0, 3);
            computes[i] = test_random_int(0, 3) > 0;
        }
        gb_split_list splits = { 0 };
        REQUIRE(gb_split_nodes(backend, computes, n, &splits));
        int at = 0;
        for (size_t k = 0; k < splits.n; k++) {
            const struct gb_split_range * s = &splits.data[k];
            CHECK_INT(s->start, at);
            CHECK(s->end > s->start);
            for (int i = s->start; i < s->end; i++) {
                CHECK(!computes[i] || backend[i] == s->backend);
            }
            CHECK(k == 0 || (computes[s->start] && splits.data[k - 1].backend != s->backend));
            at = s->end;
        }
        CHECK_INT(at, n);
        gb_vec_free(&splits);
    }
}

static void out_of_memory(void) {
    const int32_t backend[] = { 0, 1, 0 };
    const uint8_t computes[] = { 1, 1, 1 };
    gb_split_list splits = { 0 };
    gb_test_fail_alloc(1, false);
    CHECK(!gb_split_nodes(backend, computes, 3, &splits));
    gb_test_fail_alloc(0, false);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "");
    gb_vec_free(&splits);
    CHECK_INT(gb_test_live_allocs(), 0);
}

TEST_MAIN(TEST(by_hand), TEST(random_lists), TEST(out_of_memory))
