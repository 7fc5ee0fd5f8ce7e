// test_assign.c - the assignment policies on small graphs written as tables, against assignments
// found by hand from the documented rules. On random graphs, against properties of every
// assignment.
#include "sched/assign/rules.h"

#include "test.h"

enum { MAX = 64, MAX_SRC = 3 };

// A scene of up to 4 backends. Backend b can use memory of kind b. All backends can use kind 8.
// Kind 9 has no memory yet.
struct scene {
    int n_backends, n_nodes, n;
    int memory[MAX]; // of roots
    int32_t root[MAX], chosen[MAX], place[MAX], srcs[MAX * MAX_SRC];
    uint32_t begin[MAX + 1];
    uint8_t computes[MAX], placed[MAX], weight[MAX];
    size_t bytes[MAX];
    bool refuses[4][MAX]; // backend, node
    struct gb_assignment out[MAX];
};

static bool runs(void * user_data, int backend, int node) {
    return !((struct scene *) user_data)->refuses[backend][node];
}

static bool reaches(void * user_data, int backend, int root) {
    const int m = ((struct scene *) user_data)->memory[root];
    return m == backend || m == 8;
}

static bool shares(void * user_data, int backend, int of_backend) {
    (void) user_data;
    return backend == of_backend;
}

static struct scene make(int n_backends, int n_nodes, int n_leafs) {
    struct scene w = { .n_backends = n_backends, .n_nodes = n_nodes, .n = n_nodes + n_leafs };
    for (int i = 0; i < w.n; i++) {
        w.root[i] = i;
        w.chosen[i] = -1;
        w.place[i] = -1;
        w.memory[i] = 9;
        w.computes[i] = i < n_nodes;
        w.bytes[i] = 100;
    }
    return w;
}

// Sources of the nodes in order. -1 ends the list of a node.
static void sources(struct scene * w, const int * list) {
    uint32_t n = 0;
    for (int i = 0; i < w->n_nodes; i++) {
        for (; *list >= 0; list++) {
            w->srcs[n++] = *list;
        }
        list++;
        w->begin[i + 1] = n;
    }
}

static void place(struct scene * w, int t, int device, bool weight) {
    w->placed[t] = 1;
    w->place[t] = device;
    w->memory[t] = device;
    w->weight[t] = weight;
}

static void view(struct scene * w, int t, int root, bool computes) {
    w->root[t] = root;
    w->computes[t] = computes;
}

static struct gb_assign_graph graph_of(struct scene * w) {
    for (int t = 0; t < w->n; t++) { // recorded per root, and views have the same
        w->place[t] = w->place[w->root[t]];
        w->placed[t] = w->placed[w->root[t]];
    }
    return (struct gb_assign_graph){
        .n_backends = w->n_backends,
        .n_tensors = w->n,
        .n_nodes = w->n_nodes,
        .root = w->root,
        .src_begin = w->begin,
        .srcs = w->srcs,
        .computes = w->computes,
        .chosen = w->chosen,
        .placed = w->placed,
        .place = w->place,
        .weight = w->weight,
        .bytes = w->bytes,
        .user_data = w,
        .runs = runs,
        .reaches = reaches,
        .shares = shares,
    };
}

static int assign(struct scene * w, enum gb_assign_policy policy) {
    const struct gb_assign_graph g = graph_of(w);
    gb_assign(&g, policy, w->out);
    return gb_assign_check(&g, w->out);
}

// The backends of all tensors as digits. '-': none.
static void expect(struct scene * w, enum gb_assign_policy policy, const char * expected) {
    char text[MAX + 1] = "";
    const int bad = assign(w, policy);
    for (int t = 0; t < w->n; t++) {
        text[t] = w->out[t].backend < 0 ? '-' : (char) ('0' + w->out[t].backend);
    }
    CHECK_STR(text, expected);
    CHECK_INT(bad, -1);
}

#define W GB_ASSIGN_WEIGHTS
#define SRC(...) ((const int[]){ __VA_ARGS__ })

static void nothing_said(void) { // all nodes to the highest priority
    struct scene w = make(3, 3, 1);
    sources(&w, SRC(3, -1, 0, -1, 1, -1));
    expect(&w, W, "0000");
    CHECK_INT(w.out[0].cause, GB_CAUSE_PRIORITY);
    CHECK_INT(w.out[3].cause, GB_CAUSE_READER);
    CHECK_INT(w.out[3].by, 0);
}

static void weights_pull(void) {
    // layers 0..2 | 3..5 with weights 6 on device 0 and 7 on device 1 (read by nodes 1 and 4).
    // Input 8 is on device 2, the last one.
    struct scene w = make(3, 6, 3);
    sources(&w, SRC(8, -1, 6, 0, -1, 1, -1, 2, -1, 7, 3, -1, 4, -1));
    place(&w, 6, 0, true);
    place(&w, 7, 1, true);
    place(&w, 8, 2, false);
    // upward spreading is first: node 0 follows 1, and nodes 2 and 3 follow the later node 4.
    // Node 5 goes downward.
    expect(&w, W, "001111012");
    CHECK_INT(w.out[1].cause, GB_CAUSE_WEIGHT);
    CHECK_INT(w.out[1].by, 6);
    CHECK_INT(w.out[0].cause, GB_CAUSE_UP);
    CHECK_INT(w.out[0].by, 1);
    CHECK_INT(w.out[2].backend, 1);
    CHECK_INT(w.out[2].cause, GB_CAUSE_UP);
    CHECK_INT(w.out[5].cause, GB_CAUSE_DOWN);
    CHECK_INT(w.out[8].cause, GB_CAUSE_BUFFER);
}

static void fallback_is_spread_last(void) {
    // weights: node 1 -> last backend (1), node 4 -> backend 0. Spreading upward from 4 reaches
    // 2 and 3, but not beyond node 1. Node 0 gets the fallback.
    struct scene w = make(2, 6, 3);
    sources(&w, SRC(8, -1, 6, 0, -1, 1, -1, 2, -1, 7, 3, -1, 4, -1));
    place(&w, 6, 1, true);
    place(&w, 7, 0, true);
    expect(&w, W, "110000101");
    CHECK_INT(w.out[0].cause, GB_CAUSE_UP);
    CHECK_INT(w.out[2].by, 4);
}

static void views_do_not_stop_spreading(void) {
    // node 1 is a view of node 0, node 3 reads a weight on device 1
    struct scene w = make(3, 4, 2);
    sources(&w, SRC(4, -1, 0, -1, 1, -1, 2, 5, -1));
    view(&w, 1, 0, false);
    place(&w, 5, 1, true);
    expect(&w, W, "111111");
    CHECK_INT(w.out[1].cause, GB_CAUSE_VIEW);
    CHECK_INT(w.out[1].by, 0);
}

static void user_wins(void) {
    struct scene w = make(3, 4, 2);
    sources(&w, SRC(4, 5, -1, 0, -1, 1, -1, 2, -1));
    place(&w, 5, 0, true);
    w.chosen[0] = 1; // 1, although the weight of node 3 is on 0
    w.chosen[2] = 2;
    w.chosen[4] = 2; // a leaf
    expect(&w, W, "112220");
    CHECK_INT(w.out[0].cause, GB_CAUSE_USER);
    CHECK_INT(w.out[1].cause, GB_CAUSE_DOWN); // upward spreading from node 2 would give the fallback, which comes last
    CHECK_INT(w.out[3].cause, GB_CAUSE_DOWN);
}

static void unsupported_goes_on(void) {
    // the weight of node 1 is on device 0. Devices 0 and 1 do not support node 1.
    // Node 0 follows node 1.
    struct scene w = make(3, 3, 2);
    sources(&w, SRC(3, -1, 4, 0, -1, 1, 4, -1));
    place(&w, 4, 0, true);
    w.refuses[0][1] = w.refuses[1][1] = true;
    expect(&w, W, "22020");
    CHECK_INT(w.out[1].cause, GB_CAUSE_PRIORITY);
    CHECK_INT(w.out[1].wanted, 0);
    w.refuses[1][1] = false; // no other backend can use the weight, so the next in priority copies it
    expect(&w, W, "11010");
    w.memory[4] = 8; // memory that all backends can use ...
    expect(&w, W, "11010");
    w.memory[4] = 2; // ... or only device 2, which then needs no copy and precedes device 1
    expect(&w, W, "22020");
}

static void no_backend_runs_a_node(void) {
    struct scene w = make(2, 2, 1);
    sources(&w, SRC(2, -1, 0, -1));
    w.refuses[0][1] = w.refuses[1][1] = true;
    CHECK_INT(assign(&w, W), 1);
    CHECK_INT(w.out[1].backend, -1);
}

static void user_cannot(void) {
    struct scene w = make(2, 2, 1);
    sources(&w, SRC(2, -1, 0, -1));
    w.chosen[1] = 0;
    w.refuses[0][1] = true;
    CHECK_INT(assign(&w, W), 1);
    CHECK_INT(w.out[1].backend, 0); // assigned nodes do not move
    w.chosen[1] = -1;
    w.chosen[2] = 0;
    place(&w, 2, 1, false); // a leaf in memory elsewhere
    CHECK_INT(assign(&w, W), 2);
    w.memory[2] = 8;
    CHECK_INT(assign(&w, W), -1);
}

static void results_follow_their_memory(void) {
    // node 1 writes into a cache (leaf 3) on device 2. Node 2 reads a weight on device 0.
    // Node 0 follows by spreading.
    struct scene w = make(3, 3, 3);
    sources(&w, SRC(4, -1, 0, 3, -1, 0, 5, -1));
    view(&w, 1, 3, true);
    place(&w, 3, 2, false);
    place(&w, 5, 0, true);
    expect(&w, W, "220220"); // only node 1, of the fallback, comes after node 0
    CHECK_INT(w.out[1].cause, GB_CAUSE_BUFFER);
    CHECK_INT(w.out[1].by, 3);
    w.refuses[2][1] = true; // no other backend can write there, so the next one computes on a copy
    expect(&w, W, "000200");
    CHECK_INT(w.out[1].wanted, 2);
    w.memory[3] = 8;
    expect(&w, W, "000200");
}

static void in_place_stays_with_its_source(void) {
    // node 1 works in place on node 0, whose weight (4) is on 0. Node 1 reads a weight (5) on 1.
    struct scene w = make(3, 3, 3);
    sources(&w, SRC(3, 4, -1, 0, 5, -1, 1, -1));
    view(&w, 1, 0, true);
    place(&w, 4, 0, true);
    place(&w, 5, 1, true);
    expect(&w, W, "000001");
    w.refuses[0][1] = true; // then the backend of the weight computes on a copy, which is written back
    expect(&w, W, "011001");
}

static void leafs_follow_readers_through_views(void) {
    // node 2 reads leaf 4 through its view, node 1. Node 2 reads a weight on device 1, node 0
    // one on device 0.
    struct scene w = make(2, 4, 4);
    sources(&w, SRC(5, -1, 4, -1, 1, 6, -1, 2, -1));
    view(&w, 1, 4, false);
    place(&w, 5, 0, true);
    place(&w, 6, 1, true);
    expect(&w, W, "01111011"); // 7 is unused: the fallback
    CHECK_INT(w.out[4].cause, GB_CAUSE_READER);
    CHECK_INT(w.out[4].by, 2);
    CHECK_INT(w.out[7].cause, GB_CAUSE_UNUSED);
}

static void sources_policy(void) {
    // node 0 reads 3 (device 1, 100 bytes) and 4 (device 0, 10 bytes), so size decides against
    // priority: device 1. Node 1 reads 4 first, then 3, and needs the priority: device 0.
    // Node 2 reads node 0: device 1.
    struct scene w = make(3, 3, 2);
    sources(&w, SRC(3, 4, -1, 4, 3, -1, 0, -1));
    place(&w, 3, 1, false);
    place(&w, 4, 0, false);
    w.bytes[4] = 10;
    expect(&w, GB_ASSIGN_SOURCES, "10110");
    CHECK_INT(w.out[0].by, 3);
    CHECK_INT(w.out[1].by, 4);
    CHECK_INT(w.out[2].cause, GB_CAUSE_SOURCE);
    w.bytes[4] = 100; // equal sizes, so priority decides
    expect(&w, GB_ASSIGN_SOURCES, "00010");
    w.refuses[0][0] = true;
    expect(&w, GB_ASSIGN_SOURCES, "10110");
}

// For any graph: each node's backend supports it, assigned nodes stay, and leafs are assigned where
// their memory is. A node is written back only if no backend can both run it and write its memory.
static void random_graphs(void) {
    for (int round = 0; round < 2000; round++) {
        const int n_nodes = (int) test_random_int(1, 25), n_leafs = (int) test_random_int(1, 8);
        struct scene w = make((int) test_random_int(1, 4), n_nodes, n_leafs);
        int list[MAX * (MAX_SRC + 1)], n = 0;
        for (int i = 0; i < n_nodes; i++) {
            const int n_src = (int) test_random_int(1, MAX_SRC);
            for (int s = 0; s < n_src; s++) {
                const int k = (int) test_random_int(0, i + n_leafs - 1);
                list[n++] = k < i ? k : n_nodes + k - i;
            }
            list[n++] = -1;
            for (int b = 0; b < w.n_backends; b++) {
                w.refuses[b][i] = test_random_int(0, 5) == 0;
            }
            if (test_random_int(0, 4) == 0) {
                const int source = list[n - 2];
                view(&w, i, w.root[source], test_random_int(0, 1));
            }
            w.chosen[i] = test_random_int(0, 9) == 0 ? (int32_t) test_random_int(0, w.n_backends - 1) : -1;
        }
        sources(&w, list);
        for (int t = 0; t < w.n; t++) {
            if (w.root[t] == t && test_random_int(0, 2) == 0) {
                place(&w, t, (int) test_random_int(0, w.n_backends - 1), test_random_int(0, 1));
            }
        }
        const enum gb_assign_policy policy = test_random_int(0, 3) ? W : GB_ASSIGN_SOURCES;
        const int bad = assign(&w, policy);
        const struct gb_assign_graph g = graph_of(&w);
        bool impossible = false;
        for (int t = 0; t < w.n; t++) {
            const int b = w.out[t].backend;
            CHECK(w.chosen[t] < 0 || b == w.chosen[t]);
            if (t >= n_nodes || !w.computes[t]) {
                CHECK(b >= 0 || w.out[w.root[t]].backend < 0);
                CHECK(w.root[t] != t || !w.placed[t] || w.chosen[t] >= 0 || b == w.place[t]);
                continue;
            }
            int n_running = 0;
            bool writable = false;
            for (int c = 0; c < w.n_backends; c++) {
                n_running += !w.refuses[c][t];
                writable |= !w.refuses[c][t] && gb_assign_reaches(&g, w.out, c, w.root[t]);
            }
            impossible |= n_running == 0 || (w.chosen[t] >= 0 && w.refuses[w.chosen[t]][t]);
            CHECK(b >= 0 || n_running == 0);
            if (b >= 0 && w.chosen[t] < 0) {
                CHECK(!w.refuses[b][t]);
                CHECK(!writable || gb_assign_reaches(&g, w.out, b, w.root[t]));
            }
        }
        CHECK(!impossible || bad >= 0);
    }
}

TEST_MAIN(TEST(nothing_said), TEST(weights_pull), TEST(fallback_is_spread_last), TEST(views_do_not_stop_spreading),
    TEST(user_wins), TEST(unsupported_goes_on), TEST(no_backend_runs_a_node), TEST(user_cannot),
    TEST(results_follow_their_memory), TEST(in_place_stays_with_its_source), TEST(leafs_follow_readers_through_views),
    TEST(sources_policy), TEST(random_graphs))
