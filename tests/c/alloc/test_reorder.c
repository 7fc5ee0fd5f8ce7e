// Orders that need less memory: by hand, and on random graphs against every order that respects the
// dependences. Oracles are a count of live bytes at each position, the simulation of test_alloc.h,
// and the computed results.
#include "alloc/reorder.h"
#include "plan/plan.h"
#include "base/hash.h"
#include "base/mem.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "one_arena.h"
#include "test_alloc.h"

enum { NODES_MAX = 600 };

static int arena_of_two(void * user, int64_t id, const struct ggml_tensor * t) {
    (void) user;
    return t->op == GGML_OP_NONE ? -1 : (int) (id % 2);
}

static struct gb_liveness_input input_of(struct gb_ptrmap * ids, const struct ggml_cgraph * graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        for (int s = -1; s < GGML_MAX_SRC; s++) {
            const struct ggml_tensor * t = s < 0 ? graph->nodes[i] : graph->nodes[i]->src[s];
            if (t && gb_ptrmap_get(ids, gb_root(t)) == GB_PTRMAP_ABSENT) {
                gb_ptrmap_set(ids, gb_root(t), (int64_t) ids->n);
            }
        }
    }
    return (struct gb_liveness_input){ .nodes = graph->nodes,
        .n_nodes = graph->n_nodes,
        .user_data = ids,
        .id_of = id_of,
        .n_ids = (int64_t) ids->n,
        .arena_of = arena_of,
        .size_of = size_of };
}

// The maximum loads of the arenas, added up.
static size_t load_of(const struct gb_liveness_input * in, const int * order) {
    struct ggml_tensor * nodes[NODES_MAX];
    struct gb_liveness_input other = *in;
    struct gb_liveness l;
    size_t most[2] = { 0, 0 };
    for (int k = 0; k < in->n_nodes; k++) {
        nodes[k] = in->nodes[order ? order[k] : k];
    }
    other.nodes = nodes;
    if (gb_liveness_compute(&other, &l) != GGML_STATUS_SUCCESS) {
        test_fail(__FILE__, __LINE__, "%s", ggml_last_error());
        ggml_clear_error();
        return 0;
    }
    for (int64_t t = 0; t < in->n_nodes; t++) {
        size_t sum[2] = { 0, 0 };
        for (size_t i = 0; i < l.n_items; i++) {
            sum[l.items[i].arena] += l.items[i].lower <= t && t < l.items[i].upper ? l.items[i].size : 0;
        }
        most[0] = GB_MAX(most[0], sum[0]);
        most[1] = GB_MAX(most[1], sum[1]);
    }
    gb_liveness_free(&l);
    return most[0] + most[1];
}

static const char * fault_of(const struct ggml_cgraph * graph, const int * order) {
    int at[NODES_MAX];
    for (int i = 0; i < graph->n_nodes; i++) {
        at[i] = -1;
    }
    for (int k = 0; k < graph->n_nodes; k++) {
        if (order[k] < 0 || order[k] >= graph->n_nodes || at[order[k]] >= 0) {
            return "no permutation";
        }
        at[order[k]] = k;
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        for (int j = 0; j < i; j++) {
            if (random_must_follow(graph->nodes[i], graph->nodes[j]) && at[i] < at[j]) {
                return "a node before one that it must follow";
            }
        }
    }
    return NULL;
}

// ------------------------------------------------------------------------------------------------------------- by hand

struct scene {
    struct ggml_context * ctx;
    struct ggml_cgraph * graph;
    struct gb_ptrmap ids;
};

static struct scene scene(void) {
    struct scene w = { .ctx = ggml_init((struct ggml_init_params){ 200000, NULL, true }) };
    w.graph = ggml_new_graph_custom(w.ctx, 1024, false);
    return w;
}

static void free_scene(struct scene * w) {
    gb_ptrmap_free(&w->ids);
    ggml_free(w->ctx);
}

// Two branches in the listed order. Each is large in the middle and small at the end.
static void branches(struct scene * w, struct ggml_tensor * nodes[7]) {
    struct ggml_tensor * x = ggml_new_tensor_1d(w->ctx, GGML_TYPE_F32, 16);
    for (int b = 0; b < 2; b++) {
        nodes[b] = ggml_repeat(w->ctx, x, ggml_new_tensor_2d(w->ctx, GGML_TYPE_F32, 16, 10)); // 640 bytes
        nodes[2 + b] = ggml_sum_rows(w->ctx, nodes[b]); // 40 bytes
        nodes[4 + b] = ggml_cont(w->ctx, nodes[2 + b]);
    }
    nodes[6] = ggml_add(w->ctx, nodes[4], nodes[5]);
    for (int i = 0; i < 7; i++) {
        w->graph->nodes[w->graph->n_nodes++] = nodes[i];
    }
}

static void one_branch_after_the_other(void) {
    struct scene w = scene();
    struct ggml_tensor * nodes[7];
    int order[7];
    branches(&w, nodes);
    struct gb_liveness_input in = input_of(&w.ids, w.graph);
    struct gb_reorder_result result;
    REQUIRE(gb_reorder(&in, order, &result) == GGML_STATUS_SUCCESS);
    CHECK(result.changed);
    CHECK_INT(result.before, 2 * 640 + 40);
    CHECK_INT(result.after, 640 + 40 + 40); // end of the first branch; large tensor and end of the second
    CHECK(fault_of(w.graph, order) == NULL);
    CHECK_INT(load_of(&in, order), result.after);
    free_scene(&w);
}

static void nothing_to_gain(void) {
    struct scene w = scene();
    struct ggml_tensor * x = ggml_new_tensor_1d(w.ctx, GGML_TYPE_F32, 16);
    for (int i = 0; i < 50; i++) {
        x = i % 3 ? ggml_sqr(w.ctx, x) : ggml_cont(w.ctx, x);
    }
    ggml_build_forward_expand(w.graph, x);
    struct gb_liveness_input in = input_of(&w.ids, w.graph);
    struct gb_reorder_result result;
    int order[50];
    REQUIRE(gb_reorder(&in, order, &result) == GGML_STATUS_SUCCESS);
    CHECK(!result.changed && result.after == result.before);
    for (int i = 0; i < 50; i++) {
        CHECK_INT(order[i], i);
    }
    in.n_nodes = 0;
    CHECK_INT(gb_reorder(&in, order, &result), GGML_STATUS_SUCCESS);
    CHECK(!result.changed && result.after == 0);
    CHECK_INT(gb_reorder(NULL, order, &result), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(gb_reorder(&in, NULL, &result), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(gb_reorder(&in, order, NULL), GGML_STATUS_INVALID_ARGUMENT);
    free_scene(&w);
}

static void custom(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * user) {
    (void) dst, (void) a, (void) ith, (void) nth, (void) user;
}

// Unknown operators, and nodes that write memory of other readers, keep their places.
static void side_effects(void) {
    struct scene w = scene();
    struct ggml_tensor * nodes[7];
    int order[16], at[16];
    branches(&w, nodes);
    struct ggml_tensor * cache = ggml_new_tensor_2d(w.ctx, GGML_TYPE_F32, 1, 10);
    struct ggml_tensor * first = ggml_map_custom1(w.ctx, nodes[1], custom, 1, NULL);
    struct ggml_tensor * write = ggml_cpy(w.ctx, nodes[3], ggml_view_2d(w.ctx, cache, 1, 10, 4, 0));
    struct ggml_tensor * read = ggml_cont(w.ctx, cache);
    struct ggml_tensor * later = ggml_cpy(w.ctx, nodes[2], ggml_view_2d(w.ctx, cache, 1, 10, 4, 0));
    struct ggml_tensor * last = ggml_map_custom1(w.ctx, nodes[0], custom, 1, NULL);
    // the graph has nodes already; this adds only the last one with its views
    ggml_build_forward_expand(w.graph, first);
    w.graph->n_nodes = 7;
    struct ggml_tensor * more[] = { first, write->src[1], write, read, later->src[1], later, last };
    for (int i = 0; i < 7; i++) {
        w.graph->nodes[w.graph->n_nodes++] = more[i];
    }
    struct gb_liveness_input in = input_of(&w.ids, w.graph);
    struct gb_reorder_result result;
    REQUIRE(gb_reorder(&in, order, &result) == GGML_STATUS_SUCCESS);
    CHECK(fault_of(w.graph, order) == NULL);
    for (int k = 0; k < 14; k++) {
        at[order[k]] = k;
    }
    CHECK(at[7] < at[13]); // first, last
    CHECK(at[9] < at[10] && at[10] < at[12]); // write, read, later
    free_scene(&w);
}

// SET_ROWS writes a storage that other nodes read before and after it.
static void writes_of_rows_keep_their_places(void) {
    struct scene w = scene();
    struct ggml_tensor * nodes[7];
    int order[16], at[16];
    branches(&w, nodes);
    struct ggml_tensor * cache = ggml_new_tensor_2d(w.ctx, GGML_TYPE_F32, 1, 10);
    struct ggml_tensor * places = ggml_new_tensor_1d(w.ctx, GGML_TYPE_I32, nodes[3]->ne[1]);
    struct ggml_tensor * before = ggml_sqr(w.ctx, cache);
    struct ggml_tensor * write = ggml_set_rows(w.ctx, cache, nodes[3], places);
    struct ggml_tensor * read = ggml_cont(w.ctx, cache); // reads the storage, not the result
    struct ggml_tensor * later = ggml_set_rows(w.ctx, cache, nodes[2], places);
    REQUIRE(write != NULL && later != NULL);
    w.graph->n_nodes = 7;
    struct ggml_tensor * more[] = { before, write, read, later };
    for (int i = 0; i < 4; i++) {
        w.graph->nodes[w.graph->n_nodes++] = more[i];
    }
    struct gb_liveness_input in = input_of(&w.ids, w.graph);
    struct gb_reorder_result result;
    REQUIRE(gb_reorder(&in, order, &result) == GGML_STATUS_SUCCESS);
    CHECK(fault_of(w.graph, order) == NULL);
    for (int k = 0; k < w.graph->n_nodes; k++) {
        at[order[k]] = k;
    }
    CHECK(at[7] < at[8] && at[8] < at[9] && at[9] < at[10]);
    free_scene(&w);
}

static void wide_graph(void) { // more simultaneous nodes than a state can hold
    struct scene w = scene();
    struct ggml_tensor * x = ggml_new_tensor_1d(w.ctx, GGML_TYPE_F32, 16);
    struct ggml_tensor * sum = NULL;
    struct ggml_tensor * large[150];
    for (int i = 0; i < 150; i++) {
        large[i] = w.graph->nodes[w.graph->n_nodes++] =
            ggml_repeat(w.ctx, x, ggml_new_tensor_2d(w.ctx, GGML_TYPE_F32, 16, 10));
    }
    for (int i = 0; i < 150; i++) {
        struct ggml_tensor * small = w.graph->nodes[w.graph->n_nodes++] = ggml_sum_rows(w.ctx, large[i]);
        if (sum) {
            sum = w.graph->nodes[w.graph->n_nodes++] = ggml_add(w.ctx, sum, small);
        } else {
            sum = small;
        }
    }
    struct gb_liveness_input in = input_of(&w.ids, w.graph);
    struct gb_reorder_result result;
    int order[NODES_MAX];
    REQUIRE(gb_reorder(&in, order, &result) == GGML_STATUS_SUCCESS);
    CHECK(fault_of(w.graph, order) == NULL);
    CHECK_INT(result.before, 150 * 640 + 40);
    CHECK_INT(load_of(&in, order), result.after);
    CHECK_MSG(result.after < 6 * 640, "%zu", result.after);
    free_scene(&w);
}

// ------------------------------------------------------------------------------------------------------- random graphs

// The lowest load of all valid orders, by depth-first search.
static size_t lowest_load(const struct gb_liveness_input * in, const struct ggml_cgraph * graph) {
    int order[16], next[16] = { 0 }, depth = 0;
    unsigned done = 0;
    size_t best = SIZE_MAX;
    while (depth >= 0) {
        if (depth == graph->n_nodes) {
            best = GB_MIN(best, load_of(in, order));
        }
        bool went = false;
        for (; depth < graph->n_nodes && next[depth] < graph->n_nodes && !went; next[depth]++) {
            const int i = next[depth];
            bool ok = !(done >> i & 1);
            for (int j = 0; j < i && ok; j++) {
                ok = (done >> j & 1) || !random_must_follow(graph->nodes[i], graph->nodes[j]);
            }
            if (ok) {
                order[depth] = i;
                went = true;
            }
        }
        if (went) {
            done |= 1u << order[depth++];
            next[depth < 16 ? depth : 15] = 0;
        } else if (--depth >= 0) {
            done &= ~(1u << order[depth]);
        }
    }
    return best;
}

static void against_every_order(void) {
    int n_lower = 0, n_best = 0, n = 0, n_possible = 0;
    for (int round = 0; round < 400; round++) {
        struct random_graph g;
        struct gb_ptrmap ids = { 0 };
        int order[RANDOM_MAX];
        REQUIRE(random_graph_make(&g,
            (struct random_graph_params){ (int) test_random_int(4, 20), round % 3 == 0, false, round % 4 == 0 }));
        struct gb_liveness_input in = input_of(&ids, g.graph);
        if (g.graph->n_nodes <= 8) {
            struct gb_reorder_result result;
            REQUIRE(gb_reorder(&in, order, &result) == GGML_STATUS_SUCCESS);
            const size_t before = load_of(&in, NULL), lowest = lowest_load(&in, g.graph);
            CHECK_MSG(fault_of(g.graph, order) == NULL, "round %d: %s", round, fault_of(g.graph, order));
            CHECK_INT(result.before, before);
            CHECK_INT(result.after, load_of(&in, order));
            CHECK(result.after >= lowest && result.changed == (result.after < before));
            n++;
            n_possible += lowest < before;
            n_lower += result.changed;
            n_best += result.after == lowest;
        }
        gb_ptrmap_free(&ids);
        random_graph_free(&g);
    }
    CHECK_MSG(n > 150 && n_possible > 10 && n_lower * 10 >= n_possible * 8 && n_best * 100 >= n * 97,
        "%d graphs: less is possible in %d, found in %d; the least in %d", n, n_possible, n_lower, n_best);
}

struct placed {
    struct gb_ptrmap * ids;
    struct gb_liveness * l;
    size_t * offsets; // by item
};

static int64_t address_of(void * user, struct ggml_tensor * t) {
    struct placed * p = user;
    const int64_t id = gb_ptrmap_get(p->ids, t);
    const int64_t item = id == GB_PTRMAP_ABSENT ? -1 : p->l->item_of[id];
    return item < 0 ? -1 : (int64_t) p->offsets[item];
}

static void values_survive(void) {
    int n_changed = 0;
    for (int round = 0; round < 300; round++) {
        struct random_graph g;
        struct gb_ptrmap ids = { 0 };
        int order[RANDOM_MAX];
        REQUIRE(random_graph_make(&g,
            (struct random_graph_params){ (int) test_random_int(1, 90), round % 2 == 0, false, round % 4 == 0 }));
        struct gb_liveness_input in = input_of(&ids, g.graph);
        struct gb_reorder_result result;
        REQUIRE(gb_reorder(&in, order, &result) == GGML_STATUS_SUCCESS);
        CHECK_MSG(fault_of(g.graph, order) == NULL, "round %d: %s", round, fault_of(g.graph, order));
        CHECK_INT(result.after, load_of(&in, order));
        n_changed += result.changed;
        struct ggml_tensor * nodes[RANDOM_MAX];
        struct gb_liveness l;
        struct gb_plan_item items[RANDOM_MAX];
        size_t offsets[RANDOM_MAX];
        for (int k = 0; k < in.n_nodes; k++) {
            nodes[k] = in.nodes[order[k]];
        }
        in.nodes = nodes;
        REQUIRE(gb_liveness_compute(&in, &l) == GGML_STATUS_SUCCESS);
        for (size_t i = 0; i < l.n_items; i++) {
            items[i] = (struct gb_plan_item){ l.items[i].lower, l.items[i].upper, l.items[i].size, 0 };
        }
        struct gb_plan_result plan;
        REQUIRE(gb_plan_offsets(items, l.n_items, 4, &plan) == GGML_STATUS_SUCCESS);
        for (size_t i = 0; i < l.n_items; i++) {
            offsets[i] = items[i].offset;
        }
        struct placed placed = { &ids, &l, offsets };
        struct memory_sim sim = { .address_of = address_of, .user = &placed, .size = plan.peak };
        CHECK_MSG(sim_run(&sim, g.graph, order), "round %d: %s", round, sim.problem);
        gb_liveness_free(&l);
        // memory of two kinds
        int other[RANDOM_MAX];
        in = input_of(&ids, g.graph);
        in.arena_of = arena_of_two;
        REQUIRE(gb_reorder(&in, other, &result) == GGML_STATUS_SUCCESS);
        CHECK(fault_of(g.graph, other) == NULL && result.after == load_of(&in, other) &&
              result.after <= load_of(&in, NULL));
        gb_ptrmap_free(&ids);
        random_graph_free(&g);
    }
    CHECK_MSG(n_changed > 50, "%d graphs of 300 changed", n_changed);
}

// ------------------------------------------------------------------------------------------------- the public function

static void as_a_graph(void) {
    struct scene w = scene();
    struct ggml_tensor * nodes[7];
    branches(&w, nodes);
    struct ggml_cgraph * better = ggml_graph_reorder(w.ctx, w.graph);
    REQUIRE(better && better->n_nodes == 7 && better != w.graph);
    CHECK(better->nodes[1]->src[0] == better->nodes[0] && better->nodes[6] == nodes[6]);
    for (int i = 0; i < 7; i++) {
        CHECK(w.graph->nodes[i] == nodes[i]);
    }
    const ggml_backend_t cpu = ggml_backend_cpu_init();
    size_t size[2];
    for (int i = 0; i < 2; i++) {
        ggml_tallocr_t measure = ggml_tallocr_new_measure_from_backend(cpu);
        ggml_gallocr_t galloc = ggml_gallocr_new();
        size[i] = ggml_gallocr_alloc_graph(galloc, measure, i ? better : w.graph);
        ggml_gallocr_free(galloc);
        ggml_tallocr_free(measure);
    }
    CHECK(size[1] < size[0]);
    ggml_backend_free(cpu);
    CHECK(ggml_graph_reorder(NULL, w.graph) == NULL);
    CHECK(ggml_graph_reorder(w.ctx, NULL) == NULL);
    w.graph->nodes[0] = nodes[6]; // so that it comes before its source
    w.graph->nodes[6] = nodes[0];
    CHECK(ggml_graph_reorder(w.ctx, w.graph) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "computed later");
    free_scene(&w);
}

static void out_of_memory(void) {
    struct scene w = scene();
    struct ggml_tensor * nodes[7];
    branches(&w, nodes);
    const int64_t live = gb_test_live_allocs();
    for (int n = 1;; n++) {
        gb_test_fail_alloc(n, false);
        struct ggml_cgraph * better = ggml_graph_reorder(w.ctx, w.graph);
        const bool failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK((better == NULL) == failed);
        if (!failed) {
            CHECK(n > 10);
            break;
        }
        CHECK_INT(ggml_last_status(), GGML_STATUS_ALLOC_FAILED);
        CHECK_INT(gb_test_live_allocs(), live);
        ggml_clear_error();
    }
    free_scene(&w);
}

TEST_MAIN(TEST(one_branch_after_the_other), TEST(nothing_to_gain), TEST(side_effects),
    TEST(writes_of_rows_keep_their_places), TEST(wide_graph), TEST(against_every_order), TEST(values_survive),
    TEST(as_a_graph), TEST(out_of_memory))
