// Queries about the plan of a graph, against the graph and the allocated memory.
#include "base/mem.h"
#include "base/thread.h"
#include "sched/sched.h"
#include "test_place.h"

#define MAX 256

// Blocks of one chunk that overlap in time and address must share a root. No block is above the
// peak. The bound holds.
static void check_arena(struct place * p, int b, const struct ggml_backend_sched_block * blocks, int n) {
    struct ggml_backend_sched_arena arena;
    OK(ggml_backend_sched_get_arena(p->sched, p->backends[b], &arena));
    size_t top = 0, sum = 0, most = 0;
    for (int i = 0; i < n; i++) {
        const struct ggml_backend_sched_block * x = &blocks[i];
        if (x->backend != p->backends[b]) {
            continue;
        }
        CHECK(x->lower < x->upper && x->size > 0 && x->tensor != NULL && x->root >= 0 && x->root <= i);
        top = x->offset + x->size > top ? x->offset + x->size : top;
        sum += x->size;
        size_t live = 0; // the load when this block begins
        for (int j = 0; j < n; j++) {
            const struct ggml_backend_sched_block * y = &blocks[j];
            if (y->backend != x->backend || y->chunk != x->chunk) {
                continue;
            }
            const bool together = x->lower < y->upper && y->lower < x->upper;
            const bool touch = x->offset < y->offset + y->size && y->offset < x->offset + x->size;
            CHECK(!together || !touch || x->root == y->root);
            live += y->root == j && y->lower <= x->lower && x->lower < y->upper ? y->size : 0;
        }
        most = live > most ? live : most;
    }
    CHECK(top <= arena.peak);
    CHECK(most <= arena.bound && arena.bound <= arena.peak && arena.peak <= arena.no_reuse);
    CHECK(sum <= arena.no_reuse);
    CHECK(!arena.proved || arena.peak == arena.bound || arena.peak == 0);
    size_t peak, no_reuse;
    OK(ggml_backend_sched_get_memory(p->sched, p->backends[b], &peak, &no_reuse));
    CHECK(peak == arena.peak + arena.leafs + arena.replicas);
}

// A matrix is in the user's memory on the last device, and read on the first one. The report
// mentions it only without the usage WEIGHTS. Another node in an earlier split may have caused its
// copy.
static void unmarked_weights(void) {
    for (int way = 0; way < 4; way++) {
        const int usage = way & 1;
        OPEN(p, "SIM CPU");
        struct ggml_tensor *w = leaf(&p, "w", 8, 8), *x = leaf(&p, "x", 8, 3), *y = ggml_mul_mat(p.ctx, w, x),
                           *z = ggml_add(p.ctx, y, y);
        put(&p, w, p.n - 1, usage == 1);
        ggml_backend_sched_set_node_backend(p.sched, y, p.backends[0]);
        if (way & 2) {
            struct ggml_tensor *first = ggml_relu(p.ctx, w), *second = ggml_relu(p.ctx, first);
            ggml_backend_sched_set_node_backend(p.sched, first, p.backends[0]);
            ggml_backend_sched_set_node_backend(p.sched, second, p.backends[p.n - 1]);
            expand(&p, second);
        }
        expand(&p, z);
        OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
        int n = 0;
        for (int i = 0; i < ggml_backend_sched_get_n_transfers(p.sched); i++) {
            struct ggml_backend_sched_transfer t;
            OK(ggml_backend_sched_get_transfer(p.sched, i, &t));
            CHECK(!t.is_unmarked || (t.tensor == w && t.source == p.backends[p.n - 1] && t.target == p.backends[0]));
            n += t.is_unmarked;
        }
        CHECK_INT(n, usage == 0);
        close_place(&p);
    }
}

static void describes(const char * devices, bool weights_elsewhere) {
    OPEN(p, devices);
    struct ggml_tensor *w = leaf(&p, "w", 8, 8), *x = leaf(&p, "x", 8, 3);
    if (weights_elsewhere) {
        put(&p, w, p.n - 1, true);
    }
    struct ggml_tensor * y = x;
    for (int i = 0; i < 6; i++) {
        struct ggml_tensor * wy = ggml_mul_mat(p.ctx, w, y);
        y = ggml_add(p.ctx, wy, i % 2 ? ggml_sqr(p.ctx, y) : y);
        if (p.n > 1) {
            ggml_backend_sched_set_node_backend(p.sched, wy, p.backends[i % p.n]);
            ggml_backend_sched_set_node_backend(p.sched, y, p.backends[i % p.n]);
        }
    }
    expand(&p, y);
    CHECK_INT(ggml_backend_sched_get_blocks(p.sched, NULL, 0), -1); // no graph yet
    OK(ggml_backend_sched_reserve(p.sched, p.graph));
    size_t before[8];
    for (int b = 0; b < p.n; b++) {
        struct ggml_backend_sched_arena arena;
        OK(ggml_backend_sched_get_arena(p.sched, p.backends[b], &arena));
        before[b] = arena.peak;
    }
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));

    static struct ggml_backend_sched_block blocks[MAX];
    const int n = ggml_backend_sched_get_blocks(p.sched, blocks, MAX);
    REQUIRE(n > 0 && n <= MAX);
    struct ggml_backend_sched_block first;
    CHECK_INT(ggml_backend_sched_get_blocks(p.sched, &first, 1), n); // writes at most n blocks
    CHECK(first.tensor == blocks[0].tensor);
    CHECK_INT(ggml_backend_sched_get_blocks(p.sched, NULL, 1), -1);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'blocks' is NULL");
    CHECK_INT(ggml_backend_sched_get_blocks(p.sched, blocks, -1), -1);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'n' must be >= 0, is -1");
    for (int b = 0; b < p.n; b++) {
        struct ggml_backend_sched_arena arena;
        OK(ggml_backend_sched_get_arena(p.sched, p.backends[b], &arena));
        CHECK_INT(arena.peak, before[b]); // predicted sizes equal allocated sizes
        check_arena(&p, b, blocks, n);
    }

    int64_t last = 0, lower, upper;
    for (int k = 0; k < ggml_backend_sched_get_n_splits(p.sched); k++) {
        struct ggml_backend_sched_split_info info;
        OK(ggml_backend_sched_get_split(p.sched, k, &info));
        OK(ggml_backend_sched_get_split_span(p.sched, k, &lower, &upper));
        CHECK(lower >= last && upper - lower == info.i_end - info.i_start); // no view is among the nodes
        last = upper;
    }
    CHECK(ggml_backend_sched_get_split_span(p.sched, -1, &lower, &upper) == GGML_STATUS_INVALID_ARGUMENT);

    int n_in = 0, n_kept = 0;
    const int n_transfers = ggml_backend_sched_get_n_transfers(p.sched);
    for (int i = 0; i < n_transfers; i++) {
        struct ggml_backend_sched_transfer t;
        OK(ggml_backend_sched_get_transfer(p.sched, i, &t));
        CHECK(t.tensor != NULL && t.size > 0 && t.source != t.target && t.split >= 0 &&
              t.split < ggml_backend_sched_get_n_splits(p.sched));
        n_in += !t.is_write_back;
        n_kept += t.is_kept;
        CHECK(!t.is_kept || t.tensor == w);
        CHECK(!t.is_unmarked); // the scheduler allocated it, or its usage is WEIGHTS
    }
    int inputs = 0;
    for (int k = 0; k < ggml_backend_sched_get_n_splits(p.sched); k++) {
        struct ggml_backend_sched_split_info info;
        OK(ggml_backend_sched_get_split(p.sched, k, &info));
        inputs += info.n_inputs;
    }
    CHECK_INT(n_in, inputs);
    CHECK_INT(n_kept > 0, p.n > 1); // the scheduler allocated it on the first device, without a pointer for the host
    struct ggml_backend_sched_transfer none;
    CHECK(ggml_backend_sched_get_transfer(p.sched, n_transfers, &none) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK(ggml_backend_sched_get_transfer(p.sched, -1, &none) == GGML_STATUS_INVALID_ARGUMENT);
    struct ggml_backend_sched_arena arena;
    CHECK(ggml_backend_sched_get_arena(p.sched, NULL, &arena) == GGML_STATUS_INVALID_ARGUMENT);
    close_place(&p);
}

static void one_device(void) { describes("CPU", false); }

static void two_devices(void) {
    describes("SIM CPU", false);
    describes("SIM CPU", true);
}

static void three_devices(void) { describes("SIM SIM CPU", true); }

// Splits of one backend share scratch memory, so its size is the maximum over splits. The oracle is
// ggml_graph_plan for each product alone, with the same threads.
static void scratch_memory(void) {
    OPEN(p, "SIM:name=A,noops=mul_mat CPU");
    ggml_backend_cpu_set_n_threads(p.backends[1], 2);
    CHECK_INT(ggml_backend_sched_get_work_size(p.sched, p.backends[1]), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "no graph was given yet");
    struct ggml_tensor * x = leaf(&p, "x", 64, 3);
    size_t expect = 0;
    for (int i = 0; i < 3; i++) {
        struct ggml_tensor * w = ggml_new_tensor_2d(p.ctx, i == 1 ? GGML_TYPE_Q4_0 : GGML_TYPE_F16, 64, 64);
        x = ggml_mul_mat(p.ctx, w, ggml_sqr(p.ctx, x));
        struct ggml_cgraph one = { .n_nodes = 1, .size = 1, .nodes = &x };
        const size_t size = ggml_graph_plan(&one, 2).work_size;
        expect = size > expect ? size : expect;
    }
    expand(&p, x);
    OK(ggml_backend_sched_reserve(p.sched, p.graph));
    CHECK(ggml_backend_sched_get_n_splits(p.sched) >= 5 && expect > 0);
    CHECK_INT(ggml_backend_sched_get_work_size(p.sched, p.backends[1]), expect);
    CHECK_INT(ggml_backend_sched_get_work_size(p.sched, p.backends[0]), 0); // reports no scratch memory
    ggml_clear_error();
    CHECK_INT(ggml_backend_sched_get_work_size(p.sched, NULL), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'backend'");
    CHECK_INT(ggml_backend_sched_get_work_size(NULL, p.backends[0]), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'sched'");
    close_place(&p);
}

static size_t held(struct place * p) {
    size_t n = 0;
    for (int b = 0; b < p->n; b++) {
        n += ggml_backend_sched_get_buffer_size(p->sched, p->backends[b]);
    }
    return n;
}

static size_t said(struct place * p) {
    size_t n = 0, peak = 0;
    for (int b = 0; b < p->n; b++) {
        OK(ggml_backend_sched_get_memory(p->sched, p->backends[b], &peak, NULL));
        n += peak;
    }
    return n;
}

static struct ggml_tensor * layers(struct place * p, struct ggml_cgraph * graph, struct ggml_tensor * w, int64_t rows) {
    struct ggml_tensor * y = ggml_new_tensor_2d(p->ctx, GGML_TYPE_F32, 16, rows);
    for (int i = 0; i < 5; i++) {
        y = ggml_add(p->ctx, ggml_mul_mat(p->ctx, w, y), ggml_sqr(p->ctx, y));
    }
    OK(ggml_build_forward_expand(graph, y));
    return y;
}

// An object that another thread was changing during the fork is not read.
static void half_done_says_nothing(void) {
    OPEN(p, "SIM:name=A,noops=mul_mat CPU");
    struct ggml_tensor * w = put(&p, leaf(&p, "w", 16, 16), 0, true);
    fill(w, 0, 0.125f);
    layers(&p, p.graph, w, 3);
    OK(ggml_backend_sched_plan_graph(p.sched, p.graph));
    p.sched->user_thread = gb_thread_number() + 1;
    p.sched->user_fork_generation = gb_fork_generation() + 1;
    struct ggml_backend_sched_arena arena;
    struct ggml_backend_sched_split_info split;
    struct ggml_backend_sched_transfer transfer;
    struct ggml_backend_sched_fallback fallback;
    struct ggml_backend_sched_prediction prediction;
    size_t peak;
    int64_t lower, upper;
#define REFUSED(call, answer)                                                  \
    do {                                                                       \
        ggml_clear_error();                                                    \
        CHECK_INT(call, answer);                                               \
        CHECK_ERROR(GGML_STATUS_INVALID_STATE, "when the process was forked"); \
    } while (0)
    REFUSED(ggml_backend_sched_get_arena(p.sched, p.backends[0], &arena), GGML_STATUS_INVALID_STATE);
    REFUSED(ggml_backend_sched_get_memory(p.sched, p.backends[0], &peak, NULL), GGML_STATUS_INVALID_STATE);
    REFUSED(ggml_backend_sched_get_work_size(p.sched, p.backends[1]), 0);
    REFUSED(ggml_backend_sched_get_blocks(p.sched, NULL, 0), -1);
    REFUSED(ggml_backend_sched_get_n_splits(p.sched), 0);
    REFUSED(ggml_backend_sched_get_split(p.sched, 0, &split), GGML_STATUS_INVALID_STATE);
    REFUSED(ggml_backend_sched_get_split_span(p.sched, 0, &lower, &upper), GGML_STATUS_INVALID_STATE);
    REFUSED(ggml_backend_sched_get_split_input(p.sched, 0, 0) == NULL, true);
    REFUSED(ggml_backend_sched_get_n_transfers(p.sched), 0);
    REFUSED(ggml_backend_sched_get_transfer(p.sched, 0, &transfer), GGML_STATUS_INVALID_STATE);
    REFUSED(ggml_backend_sched_get_n_fallbacks(p.sched), 0);
    REFUSED(ggml_backend_sched_get_fallback(p.sched, 0, &fallback), GGML_STATUS_INVALID_STATE);
    REFUSED(ggml_backend_sched_get_prediction(p.sched, &prediction), GGML_STATUS_INVALID_STATE);
    p.sched->user_thread = 0;
    CHECK(ggml_backend_sched_get_n_splits(p.sched) > 0);
    OK(ggml_backend_sched_get_arena(p.sched, p.backends[0], &arena));
    CHECK_INT(ggml_backend_sched_get_split(p.sched, -1, &split), GGML_STATUS_INVALID_ARGUMENT);
    close_place(&p);
}

// Planning allocates nothing. Later allocations equal the plan.
static void before_anything_is_allocated(void) {
    static const char * const devices[] = { "CPU", "SIM:name=A CPU",
        "SIM:name=A,noops=mul_mat SIM:name=B,align=256,max=2048 CPU" };
    for (size_t k = 0; k < 3; k++) {
        OPEN(p, devices[k]);
        struct ggml_tensor * w = put(&p, leaf(&p, "w", 16, 16), p.n - 1, true);
        fill(w, 0, 0.125f);
        struct ggml_tensor * y = layers(&p, p.graph, w, 5);
        OK(ggml_backend_sched_plan_graph(p.sched, p.graph));
        const size_t before = said(&p);
        CHECK(before > 0 && held(&p) == 0 && y->data == NULL && y->buffer == NULL);
        CHECK(ggml_backend_sched_get_n_splits(p.sched) >= 1 && ggml_backend_sched_explain(p.sched, y)[0] != '\0');
        OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
        CHECK(held(&p) == before && said(&p) == before);
        OK(ggml_backend_sched_plan_graph(p.sched, p.graph)); // for an allocated graph: nothing changes
        CHECK(held(&p) == before && said(&p) == before && y->data != NULL);
        struct ggml_backend_sched_stats stats;
        OK(ggml_backend_sched_get_stats(p.sched, &stats));
        CHECK(stats.n_plans_made == 1 && stats.n_plans_bound == 1 && stats.n_plans_found == 1);
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        close_place(&p);
    }
}

// A device that is too small: the plan has the required size.
static void before_it_does_not_fit(void) {
    OPEN(p, "SIM:name=A,mem=64 CPU");
    struct ggml_tensor * x = leaf(&p, "x", 16, 4);
    struct ggml_tensor * y = ggml_sqr(p.ctx, x);
    OK(ggml_backend_sched_set_node_backend(p.sched, y, p.backends[0]));
    expand(&p, y);
    OK(ggml_backend_sched_plan_graph(p.sched, p.graph));
    CHECK(said(&p) >= 256 && held(&p) == 0);
    CHECK_INT(ggml_backend_sched_alloc_graph(p.sched, p.graph), GGML_STATUS_ALLOC_FAILED);
    ggml_clear_error();
    close_place(&p);
}

// A plan without allocation does not change later plans: a smaller graph uses its offsets only
// after they are reserved.
static void a_look_at_a_large_one(void) {
    OPEN(p, "SIM:name=A CPU");
    struct ggml_cgraph *large = ggml_new_graph(p.ctx), *small = ggml_new_graph(p.ctx), *smaller = ggml_new_graph(p.ctx);
    struct ggml_tensor * w = put(&p, leaf(&p, "w", 16, 16), 1, true);
    fill(w, 0, 0.125f);
    layers(&p, large, w, 12);
    layers(&p, small, w, 3);
    layers(&p, smaller, w, 2);
    OK(ggml_backend_sched_plan_graph(p.sched, small));
    const size_t alone = said(&p);
    ggml_backend_sched_reset(p.sched);
    OK(ggml_backend_sched_plan_graph(p.sched, large));
    CHECK(said(&p) > alone);
    OK(ggml_backend_sched_alloc_graph(p.sched, small));
    CHECK(held(&p) == alone);
    OK(ggml_backend_sched_reserve(p.sched, large));
    struct ggml_backend_sched_stats stats;
    OK(ggml_backend_sched_get_stats(p.sched, &stats));
    const uint64_t n = stats.n_plans_replayed;
    OK(ggml_backend_sched_alloc_graph(p.sched, smaller));
    OK(ggml_backend_sched_get_stats(p.sched, &stats));
    CHECK(stats.n_plans_replayed == n + 1);
    close_place(&p);
}

static void every_allocation_of_planning_fails(void) {
    bool done = false;
    for (int n = 1; !done && n < 1000; n++) {
        OPEN(p, "SIM:name=A,noops=mul_mat CPU");
        struct ggml_tensor * w = put(&p, leaf(&p, "w", 16, 16), 0, true);
        fill(w, 0, 0.125f);
        struct ggml_tensor * y = layers(&p, p.graph, w, 3);
        gb_test_fail_alloc(n, false);
        const enum ggml_status status = ggml_backend_sched_plan_graph(p.sched, p.graph);
        done = !gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK(status == GGML_STATUS_SUCCESS || (!done && status == GGML_STATUS_ALLOC_FAILED));
        CHECK(held(&p) == 0 && y->data == NULL);
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        close_place(&p);
    }
    CHECK(done);
}

static void a_plan_budget_has_limits(void) {
    OPEN(p, "CPU");
    struct ggml_tensor *x = leaf(&p, "x", 64, 1), *y = ggml_add(p.ctx, ggml_relu(p.ctx, x), ggml_sqr(p.ctx, x));
    expand(&p, y);
    CHECK_INT(ggml_backend_sched_set_plan_budget(p.sched, -1), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'budget_ms': -1 is not between 0 and 60000");
    CHECK_INT(ggml_backend_sched_set_plan_budget(p.sched, 60001), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_sched_set_plan_budget(NULL, 1), GGML_STATUS_INVALID_ARGUMENT);
    ggml_clear_error();
    OK(ggml_backend_sched_set_plan_budget(p.sched, 60000));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 3, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(y, 63, 12);
    OK(ggml_backend_sched_set_plan_budget(p.sched, 0));
    close_place(&p);
}

TEST_MAIN(TEST(a_plan_budget_has_limits), TEST(before_anything_is_allocated), TEST(unmarked_weights),
    TEST(before_it_does_not_fit), TEST(a_look_at_a_large_one), TEST(every_allocation_of_planning_fails),
    TEST(scratch_memory), TEST(half_done_says_nothing), TEST(one_device), TEST(two_devices), TEST(three_devices))
