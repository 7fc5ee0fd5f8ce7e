// What the plan of a graph is said to be, against the graph and against what is allocated for it.
#include "test_place.h"

#define MAX 256

// Blocks of one chunk whose times and addresses overlap are of one line; nothing lies above the peak; the bound is one.
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
        size_t live = 0; // at the moment when this one comes
        for (int j = 0; j < n; j++) {
            const struct ggml_backend_sched_block * y = &blocks[j];
            if (y->backend != x->backend || y->chunk != x->chunk) {
                continue;
            }
            const bool together = x->lower < y->upper && y->lower < x->upper;
            const bool touch    = x->offset < y->offset + y->size && y->offset < x->offset + x->size;
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

static void describes(const char * devices, bool weights_elsewhere) {
    OPEN(p, devices);
    struct ggml_tensor *w = leaf(&p, "w", 8, 8), *x = leaf(&p, "x", 8, 3);
    if (weights_elsewhere) {
        put(&p, w, p.n - 1, true);
    }
    struct ggml_tensor * y = x;
    for (int i = 0; i < 6; i++) {
        struct ggml_tensor * wy = ggml_mul_mat(p.ctx, w, y);
        y                       = ggml_add(p.ctx, wy, i % 2 ? ggml_sqr(p.ctx, y) : y);
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
    CHECK_INT(ggml_backend_sched_get_blocks(p.sched, &first, 1), n); // no more is written than there is room for
    CHECK(first.tensor == blocks[0].tensor);
    CHECK_INT(ggml_backend_sched_get_blocks(p.sched, NULL, 1), -1);
    for (int b = 0; b < p.n; b++) {
        struct ggml_backend_sched_arena arena;
        OK(ggml_backend_sched_get_arena(p.sched, p.backends[b], &arena));
        CHECK_INT(arena.peak, before[b]); // what is said before is what is allocated
        check_arena(&p, b, blocks, n);
    }

    int64_t last = 0, lower, upper;
    for (int k = 0; k < ggml_backend_sched_get_n_splits(p.sched); k++) {
        struct ggml_backend_sched_split_info info;
        OK(ggml_backend_sched_get_split(p.sched, k, &info));
        OK(ggml_backend_sched_get_split_span(p.sched, k, &lower, &upper));
        CHECK(lower >= last && upper - lower == info.i_end - info.i_start); // no view among the nodes
        last = upper;
    }
    CHECK(ggml_backend_sched_get_split_span(p.sched, -1, &lower, &upper) == GGML_STATUS_INVALID_ARGUMENT);

    int n_in = 0, n_kept = 0;
    const int n_transfers = ggml_backend_sched_get_n_transfers(p.sched);
    for (int i = 0; i < n_transfers; i++) {
        struct ggml_backend_sched_transfer t;
        OK(ggml_backend_sched_get_transfer(p.sched, i, &t));
        CHECK(t.tensor != NULL && t.size > 0 && t.source != t.target && t.split >= 0 && t.split < ggml_backend_sched_get_n_splits(p.sched));
        n_in += !t.is_write_back;
        n_kept += t.is_kept;
        CHECK(!t.is_kept || t.tensor == w);
    }
    int inputs = 0;
    for (int k = 0; k < ggml_backend_sched_get_n_splits(p.sched); k++) {
        struct ggml_backend_sched_split_info info;
        OK(ggml_backend_sched_get_split(p.sched, k, &info));
        inputs += info.n_inputs;
    }
    CHECK_INT(n_in, inputs);
    CHECK_INT(n_kept > 0, p.n > 1); // placed by the scheduler it is on the first device, without a pointer for the host
    struct ggml_backend_sched_transfer none;
    CHECK(ggml_backend_sched_get_transfer(p.sched, n_transfers, &none) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK(ggml_backend_sched_get_transfer(p.sched, -1, &none) == GGML_STATUS_INVALID_ARGUMENT);
    struct ggml_backend_sched_arena arena;
    CHECK(ggml_backend_sched_get_arena(p.sched, NULL, &arena) == GGML_STATUS_INVALID_ARGUMENT);
    close_place(&p);
}

static void one_device(void) {
    describes("CPU", false);
}

static void two_devices(void) {
    describes("SIM CPU", false);
    describes("SIM CPU", true);
}

static void three_devices(void) {
    describes("SIM SIM CPU", true);
}

// Splits of one backend share it, so the most that a split needs: what ggml_graph_plan says of each product by itself, with the same threads.
static void scratch_memory(void) {
    OPEN(p, "SIM:name=A,noops=mul_mat CPU");
    ggml_backend_cpu_set_n_threads(p.backends[1], 2);
    CHECK_INT(ggml_backend_sched_get_work_size(p.sched, p.backends[1]), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "no graph was given yet");
    struct ggml_tensor * x      = leaf(&p, "x", 64, 3);
    size_t               expect = 0;
    for (int i = 0; i < 3; i++) {
        struct ggml_tensor * w = ggml_new_tensor_2d(p.ctx, i == 1 ? GGML_TYPE_Q4_0 : GGML_TYPE_F16, 64, 64);
        x                      = ggml_mul_mat(p.ctx, w, ggml_sqr(p.ctx, x));
        struct ggml_cgraph one = { .n_nodes = 1, .size = 1, .nodes = &x };
        const size_t       size = ggml_graph_plan(&one, 2).work_size;
        expect                  = size > expect ? size : expect;
    }
    expand(&p, x);
    OK(ggml_backend_sched_reserve(p.sched, p.graph));
    CHECK(ggml_backend_sched_get_n_splits(p.sched) >= 5 && expect > 0);
    CHECK_INT(ggml_backend_sched_get_work_size(p.sched, p.backends[1]), expect);
    CHECK_INT(ggml_backend_sched_get_work_size(p.sched, p.backends[0]), 0); // does not tell
    ggml_clear_error();
    CHECK_INT(ggml_backend_sched_get_work_size(p.sched, NULL), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'backend'");
    CHECK_INT(ggml_backend_sched_get_work_size(NULL, p.backends[0]), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'sched'");
    close_place(&p);
}

TEST_MAIN(TEST(scratch_memory), TEST(one_device), TEST(two_devices), TEST(three_devices))
