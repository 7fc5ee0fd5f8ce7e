// test_layout.c - arenas of irregular graphs are never larger than best fit for the same lifetimes,
// with and without results in place. Results equal those with separate memory for each tensor. On
// most graphs a plan with results in place needs only the bytes alive at once. The seeds below give
// exceptions.
#include "alloc/liveness.h"
#include "plan/plan.h"
#include "base/hash.h"
#include "ggml-backend.h"
#include "ggml-alloc.h"
#include "one_arena.h"
#include "test_alloc.h"

struct scene {
    struct ggml_context * ctx;
    struct ggml_cgraph * graph;
    struct ggml_tensor * all[RANDOM_MAX];
    int n;
};

enum { LEAFS = 4 };

static struct ggml_tensor * front(struct ggml_context * ctx, struct ggml_tensor * a, int64_t n) {
    return ggml_view_1d(ctx, a, n, 0);
}

static struct ggml_tensor * pick(struct scene * w) { return w->all[test_random_int(GB_MAX(0, w->n - 40), w->n - 1)]; }

static struct ggml_tensor * make_node(struct scene * w) {
    struct ggml_tensor *a = pick(w), *b = pick(w);
    const int64_t half = GB_MAX(8, a->ne[0] / 16 * 8), least = GB_MIN(a->ne[0], b->ne[0]);
    switch (test_random_int(0, 4)) {
        case 0: return ggml_sqr(w->ctx, a);
        case 1: return ggml_pad(w->ctx, a, 8 * (int) test_random_int(1, 60), 0, 0, 0);
        case 2: return ggml_cont(w->ctx, front(w->ctx, a, half));
        case 3: return ggml_neg(w->ctx, front(w->ctx, a, half));
        default: return ggml_add(w->ctx, front(w->ctx, a, least), front(w->ctx, b, least));
    }
}

static void make_scene(struct scene * w, uint64_t seed) {
    test_seed = seed;
    *w = (struct scene){ .ctx = ggml_init((struct ggml_init_params){ 1 << 18, NULL, true }) };
    const int n = (int) test_random_int(60, 250);
    while (w->n < LEAFS) {
        struct ggml_tensor * leaf = w->all[w->n++] =
            ggml_new_tensor_1d(w->ctx, GGML_TYPE_F32, 8 * test_random_int(1, 120));
        ggml_set_input(leaf);
    }
    while (w->n < n) {
        struct ggml_tensor * t = make_node(w);
        if (t && t->ne[0] < 4000) {
            w->all[w->n++] = t;
        }
    }
    w->graph = ggml_new_graph(w->ctx);
    for (int i = LEAFS; i < w->n; i++) {
        ggml_build_forward_expand(w->graph, w->all[i]);
    }
    for (int i = 0; i < w->graph->n_nodes; i++) {
        bool read = false;
        for (int j = i; j < w->graph->n_nodes && !read; j++) {
            for (int s = 0; s < 2; s++) {
                read = read || w->graph->nodes[j]->src[s] == w->graph->nodes[i];
            }
        }
        if (!read) {
            ggml_set_output(w->graph->nodes[i]);
        }
    }
}

static void set_leafs(const struct scene * w) {
    float values[1000];
    for (int i = 0; i < LEAFS; i++) {
        for (int k = 0; k < w->all[i]->ne[0]; k++) {
            values[k] = (float) ((k * 7 + i) % 11) * 0.01f;
        }
        if (w->all[i]->data) {
            CHECK_INT(ggml_backend_tensor_set(w->all[i], values, 0, ggml_nbytes(w->all[i])), GGML_STATUS_SUCCESS);
        }
    }
}

// A hash of the bits of all outputs, in order.
static uint64_t results_of(const struct scene * w) {
    uint64_t sum = 0;
    float values[4000];
    for (int i = 0; i < w->graph->n_nodes; i++) {
        const struct ggml_tensor * t = w->graph->nodes[i];
        if (ggml_is_output(t)) {
            CHECK_INT(ggml_backend_tensor_get(t, values, 0, ggml_nbytes(t)), GGML_STATUS_SUCCESS);
            for (int64_t k = 0; k < t->ne[0]; k++) {
                uint32_t bits;
                memcpy(&bits, &values[k], sizeof(bits));
                sum = (sum ^ bits) * 0x100000001b3u;
            }
        }
    }
    return sum;
}

// ----------------------------------------------------------------------------------------------------------- two plans

static size_t best_fit(const struct scene * w, bool apart, size_t alignment) {
    struct gb_ptrmap ids = { 0 };
    struct gb_liveness l;
    struct gb_plan_item items[2 * RANDOM_MAX];
    struct gb_plan_result result = { 0 };
    for (int i = 0; i < w->graph->n_nodes; i++) {
        const struct ggml_tensor * root = gb_root(w->graph->nodes[i]);
        if (gb_ptrmap_get(&ids, root) == GB_PTRMAP_ABSENT) {
            gb_ptrmap_set(&ids, root, (int64_t) ids.n);
        }
    }
    const struct gb_liveness_input in = { .nodes = w->graph->nodes,
        .n_nodes = w->graph->n_nodes,
        .user_data = &ids,
        .id_of = id_of,
        .n_ids = (int64_t) ids.n,
        .arena_of = arena_of,
        .size_of = size_of,
        .no_join = apart };
    if (gb_liveness_compute(&in, &l) == GGML_STATUS_SUCCESS) {
        for (size_t i = 0; i < l.n_items; i++) {
            items[i] = (struct gb_plan_item){ l.items[i].lower, l.items[i].upper, l.items[i].size, 0 };
        }
        const struct gb_plan_effort none = { 0 };
        CHECK_INT(gb_plan_search(items, l.n_items, alignment, &none, &result), GGML_STATUS_SUCCESS);
        gb_liveness_free(&l);
    }
    gb_ptrmap_free(&ids);
    return result.best_fit;
}

// The number of tensors that are computed in the memory of another one.
static int n_in_place(ggml_backend_sched_t sched) {
    static struct ggml_backend_sched_block blocks[2 * RANDOM_MAX];
    const int n_blocks = ggml_backend_sched_get_blocks(sched, blocks, 2 * RANDOM_MAX);
    int n = 0;
    CHECK(n_blocks > 0 && n_blocks <= 2 * RANDOM_MAX);
    for (int i = 0; i < n_blocks; i++) {
        n += blocks[i].root != i;
    }
    return n;
}

// True if no node was computed in place.
static bool one_graph(ggml_backend_t cpu, uint64_t seed) {
    struct scene w;
    make_scene(&w, seed);
    ggml_backend_buffer_t own = ggml_backend_alloc_ctx_tensors(w.ctx, cpu);
    CHECK(own != NULL);
    set_leafs(&w);
    CHECK(ggml_backend_graph_compute(cpu, w.graph));
    const uint64_t expected = results_of(&w);
    ggml_backend_buffer_free(own);
    ggml_free(w.ctx);

    make_scene(&w, seed);
    const size_t alignment = ggml_backend_get_alignment(cpu);
    const size_t in_place = best_fit(&w, false, alignment), apart = best_fit(&w, true, alignment);
    const ggml_backend_sched_t sched = ggml_backend_sched_new(&cpu, NULL, 1, 0);
    struct ggml_backend_sched_arena arena;
    CHECK_INT(ggml_backend_sched_alloc_graph(sched, w.graph), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_backend_sched_get_arena(sched, cpu, &arena), GGML_STATUS_SUCCESS);
    CHECK_MSG(arena.peak <= GB_MIN(in_place, apart), "%llu: %zu bytes, %zu in place, %zu apart",
        (unsigned long long) seed, arena.peak, in_place, apart);
    CHECK_MSG(arena.bound <= arena.peak, "%llu: %zu bytes, less than the bound, %zu", (unsigned long long) seed,
        arena.peak, arena.bound);
    CHECK_INT(arena.proved, arena.peak == arena.bound);
    set_leafs(&w);
    CHECK_INT(ggml_backend_sched_graph_compute(sched, w.graph), GGML_STATUS_SUCCESS);
    CHECK_MSG(results_of(&w) == expected, "%llu: other results", (unsigned long long) seed);
    const bool none = n_in_place(sched) == 0;
    ggml_backend_sched_free(sched);
    ggml_free(w.ctx);
    return none;
}

static void irregular_graphs(void) {
    const ggml_backend_t cpu = ggml_backend_cpu_init();
    static const uint64_t hard[] = { 861, 1941, 2030, 2033 };
    int n_none = 0;
    REQUIRE(cpu);
    for (uint64_t seed = 1; seed <= 40; seed++) {
        CHECK_MSG(!one_graph(cpu, seed), "%llu: nothing in place", (unsigned long long) seed);
    }
    for (size_t i = 0; i < GB_ARRAY_LEN(hard); i++) {
        n_none += one_graph(cpu, hard[i]);
    }
    ggml_backend_free(cpu);
    CHECK_MSG(n_none > 0, "results in place everywhere");
}

// Plans the graph with the n-th allocation failing. Returns true if there were fewer allocations.
static bool plans_without(ggml_backend_t cpu, uint64_t seed, int64_t n) {
    const int64_t live = gb_test_live_allocs();
    struct scene w;
    make_scene(&w, seed);
    const ggml_backend_sched_t sched = ggml_backend_sched_new(&cpu, NULL, 1, 0);
    gb_test_fail_alloc(n, false);
    const enum ggml_status status = ggml_backend_sched_plan_graph(sched, w.graph);
    const bool failed = gb_test_alloc_failed();
    gb_test_fail_alloc(0, false);
    const bool planned = status == GGML_STATUS_SUCCESS; // also if only an optional improvement failed
    CHECK_MSG(planned || (failed && status == GGML_STATUS_ALLOC_FAILED), "allocation %d: %s", (int) n,
        ggml_status_to_string(status));
    CHECK_INT(ggml_backend_sched_get_n_splits(sched), planned ? 1 : 0);
    ggml_backend_sched_free(sched);
    ggml_free(w.ctx);
    ggml_clear_error();
    CHECK_INT(gb_test_live_allocs(), live);
    return !failed;
}

// The allocator lays out the arena a second time without results in place. Each of the last
// allocations fails, and some of the earlier ones.
static void every_allocation_fails(void) {
    const ggml_backend_t cpu = ggml_backend_cpu_init();
    const uint64_t seed = 2030;
    int64_t few = 0, many = 1;
    ggml_log_set(ggml_log_discard, NULL);
    while (!plans_without(cpu, seed, many)) {
        few = many;
        many *= 2;
    }
    while (many - few > 1) {
        const int64_t n = few + (many - few) / 2;
        *(plans_without(cpu, seed, n) ? &many : &few) = n;
    }
    CHECK(few > 50);
    for (int64_t n = 1; n < many; n += n + 40 < many ? 7 : 1) {
        CHECK(!plans_without(cpu, seed, n));
    }
    ggml_backend_free(cpu);
}

TEST_MAIN(TEST(irregular_graphs), TEST(every_allocation_fails))
