// The engine: nodes see the effects of earlier nodes, for any number of threads. Failures and
// callbacks stop all threads. Invalid plans are refused.
#include "test_compute.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "base/thread.h"
#include "cpu/threadpool.h"

static const int thread_counts[] = { 1, 2, 3, 4, 8, 16 };
#define FOR_THREADS(n) for (int i_ = 0, n; i_ < 6 && (n = thread_counts[i_], true); i_++)

// ------------------------------------------------------------------------------------------------------------- results

static void chain_of_large_and_small_nodes(void) {
    FOR_THREADS(n) {
        struct ggml_context * ctx = new_context(false);
        REQUIRE(ctx != NULL);
        struct ggml_tensor * large = new_vector(ctx, 100003, 1);
        struct ggml_tensor * small = new_vector(ctx, 1, 2);
        float v = 1, w = 2;
        for (int i = 0; i < 40; i++) { // small integers: exact
            small = ggml_add(ctx, small, small);
            w = w + w;
            if (i % 8 == 7) {
                small = ggml_scale(ctx, small, 1.0f / 256);
                w = w / 256;
            }
            large = i % 3 == 0 ? ggml_add1(ctx, large, small) : ggml_add(ctx, large, large);
            v = i % 3 == 0 ? v + w : v + v;
            if (v > 65536) {
                large = ggml_scale(ctx, large, 1.0f / 65536);
                v = v / 65536;
            }
        }
        CHECK_INT(ggml_graph_compute_with_ctx(ctx, graph_of(ctx, large), n), GGML_STATUS_SUCCESS);
        CHECK_MSG(all_equal(large, v), "with %d threads: %g, expected %g", n, (double) ggml_get_f32_1d(large, 0),
            (double) v);
        ggml_free(ctx);
    }
}

static void in_place_nodes_run_in_order(void) {
    FOR_THREADS(n) {
        struct ggml_context * ctx = new_context(false);
        REQUIRE(ctx != NULL);
        struct ggml_tensor * a = new_vector(ctx, 50000, 3);
        struct ggml_tensor * x = a;
        for (int i = 0; i < 20; i++) {
            x = ggml_scale_inplace(ctx, x, i % 2 == 0 ? 2.0f : 0.5f);
        }
        x = ggml_scale_inplace(ctx, x, 4);
        CHECK_INT(ggml_graph_compute_with_ctx(ctx, graph_of(ctx, x), n), GGML_STATUS_SUCCESS);
        CHECK(all_equal(a, 12));
        ggml_free(ctx);
    }
}

static void views_are_no_work(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_tensor * a = new_vector(ctx, 64, 5);
    struct ggml_tensor * v = ggml_transpose(ctx, ggml_reshape_2d(ctx, ggml_view_1d(ctx, a, 32, 64), 8, 4));
    struct ggml_cgraph * g = graph_of(ctx, v);
    CHECK_INT(g->n_nodes, 3);
    struct ggml_cplan plan = ggml_graph_plan(g, 4);
    CHECK_INT(plan.work_size, 0);
    CHECK_INT(ggml_graph_compute(g, &plan), 0);
    CHECK(all_equal(a, 5));
    ggml_free(ctx);
}

static void empty_graph_and_empty_tensors(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    struct ggml_cplan plan = ggml_graph_plan(g, 0);
    CHECK_INT(plan.n_threads, GGML_DEFAULT_N_THREADS);
    CHECK_INT(ggml_graph_compute(g, &plan), 0);
    struct ggml_tensor * nothing = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 0, 3);
    struct ggml_tensor * sum = ggml_add(ctx, nothing, nothing);
    REQUIRE(sum != NULL);
    CHECK_INT(ggml_graph_compute_with_ctx(ctx, graph_of(ctx, sum), 2), GGML_STATUS_SUCCESS);
    ggml_free(ctx);
}

static void counts_runs(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_tensor * a = new_vector(ctx, 4, 1);
    struct ggml_tensor * b = ggml_reshape_2d(ctx, ggml_sqr(ctx, a), 2, 2);
    struct ggml_cgraph * g = graph_of(ctx, b);
    for (int i = 0; i < 3; i++) {
        ggml_graph_compute_with_ctx(ctx, g, 1);
    }
    CHECK_INT(g->perf_runs, 3);
    CHECK_INT(g->nodes[0]->perf_runs, 3);
    CHECK_INT(b->perf_runs, 3);
    CHECK_INT(a->perf_runs, 0);
    ggml_free(ctx);
}

// -------------------------------------------------------------------------------------------------------- custom nodes

struct witness {
    atomic_int calls[16], nth_sum, at_once, most_at_once;
};

static void look(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * user) {
    struct witness * w = user;
    atomic_fetch_add(&w->calls[ith], 1);
    const int now = atomic_fetch_add(&w->at_once, 1) + 1;
    atomic_fetch_add(&w->nth_sum, nth); // after at_once, so a waiting thread counts as present
    // Threads wait for each other, even if a busy machine delays the second one.
    for (int64_t end = ggml_time_us() + 60000000;
        nth > 1 && atomic_load(&w->nth_sum) < 2 * nth && ggml_time_us() < end;) {
        gb_thread_yield();
    }
    int most = atomic_load(&w->most_at_once);
    while (now > most && !atomic_compare_exchange_weak(&w->most_at_once, &most, now)) {
    }
    const int64_t rows = ggml_nelements(a) / nth, first = rows * ith;
    for (int64_t i = first; i < (ith == nth - 1 ? ggml_nelements(a) : first + rows); i++) {
        ((float *) dst->data)[i] = 2 * ((const float *) a->data)[i];
    }
    atomic_fetch_sub(&w->at_once, 1);
}

static void custom_nodes_get_their_tasks(void) {
    static const struct {
        int wanted, threads, nth;
    } cases[] = {
        { GGML_N_TASKS_MAX, 1, 1 },
        { GGML_N_TASKS_MAX, 4, 4 },
        { 1, 4, 1 },
        { 3, 4, 3 },
        { 9, 4, 4 },
        { 2, 16, 2 },
        { -1, 16, 16 },
    };
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct ggml_context * ctx = new_context(false);
        REQUIRE(ctx != NULL);
        struct witness w = { 0 };
        struct ggml_tensor * x = new_vector(ctx, 1000, 1);
        struct ggml_tensor * y =
            ggml_scale(ctx, ggml_map_custom1(ctx, ggml_scale(ctx, x, 3), look, cases[c].wanted, &w), 5);
        REQUIRE(y != NULL);
        CHECK_INT(ggml_graph_compute_with_ctx(ctx, graph_of(ctx, y), cases[c].threads), GGML_STATUS_SUCCESS);
        CHECK(all_equal(y, 30));
        for (int i = 0; i < 16; i++) {
            CHECK_INT(w.calls[i], i < cases[c].nth ? 1 : 0);
        }
        CHECK_INT(w.nth_sum, cases[c].nth * cases[c].nth);
        CHECK(cases[c].nth == 1 || w.most_at_once > 1); // the threads ran at the same time
        ggml_free(ctx);
    }
}

static void compute_inside(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * user) {
    (void) nth;
    (void) user;
    if (ith == 0) { // another graph, with its own threads
        struct ggml_context * ctx = new_context(false);
        struct ggml_tensor * y = ggml_scale(ctx, new_vector(ctx, 50000, ((const float *) a->data)[0]), 2);
        ggml_graph_compute_with_ctx(ctx, graph_of(ctx, y), 2);
        ((float *) dst->data)[0] = ((const float *) y->data)[49999];
        ggml_free(ctx);
    }
}

static void a_node_may_compute_a_graph(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_tensor * y = ggml_map_custom1(ctx, new_vector(ctx, 1, 21), compute_inside, 2, NULL);
    CHECK_INT(ggml_graph_compute_with_ctx(ctx, graph_of(ctx, y), 2), GGML_STATUS_SUCCESS);
    CHECK(all_equal(y, 42));
    ggml_free(ctx);
}

// -------------------------------------------------------------------------------------------------------------- errors

static void bad_plans_are_refused(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_cgraph * g = graph_of(ctx, ggml_sqr(ctx, new_vector(ctx, 4, 2)));
    struct ggml_cplan plan = ggml_graph_plan(g, 2);
    CHECK(ggml_graph_compute(NULL, &plan) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "cgraph");
    CHECK(ggml_graph_compute(g, NULL) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "cplan");
    plan.n_threads = 0;
    CHECK(ggml_graph_compute(g, &plan) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "n_threads");
    plan.n_threads = 2;
    plan.work_size = 100;
    CHECK(ggml_graph_compute(g, &plan) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "work_data");
    CHECK_INT(g->perf_runs, 0);
    CHECK(ggml_graph_compute_with_ctx(NULL, g, 1) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK(ggml_graph_compute_with_ctx(ctx, NULL, 1) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_graph_plan(NULL, 3).work_size, 0);
    CHECK_INT(ggml_graph_plan(g, 100000).n_threads, GB_CPU_MAX_THREADS);
    ggml_free(ctx);
}

static void work_memory_is_asked_for_and_needed(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_tensor * a = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 48);
    struct ggml_tensor * b = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 40);
    ggml_set_f32(a, 1);
    ggml_set_f32(b, 2);
    struct ggml_tensor * y = ggml_mul_mat(ctx, a, b);
    struct ggml_cgraph * g = graph_of(ctx, y);
    struct ggml_cplan plan = ggml_graph_plan(g, 3);
    if (plan.work_size == 0) {
        ggml_free(ctx);
        SKIP("the product needs no work memory");
    }
    CHECK_INT(ggml_graph_plan(g, 3).work_size, plan.work_size);
    char * block = malloc(plan.work_size + 1);
    plan.work_data = (uint8_t *) block + 1; // any alignment; a sanitizer finds writes beyond the end
    CHECK_INT(ggml_graph_compute(g, &plan), 0);
    CHECK(all_equal(y, 128));
    plan.work_size--;
    CHECK(ggml_graph_compute(g, &plan) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "bytes of work memory");
    free(block);
    ggml_free(ctx);
}

// A result of resizing with antialiasing depends on all elements, with an index and a weight for each. Two rows of
// elements are beside them.
static void work_memory_grows_with_the_length_of_rows(void) {
    struct ggml_context * ctx = new_context(true);
    REQUIRE(ctx != NULL);
    for (int bits = 20; bits <= (sizeof(size_t) > 4 ? 31 : 27); bits++) {
        const int64_t n = ((int64_t) 1 << bits) - 1;
        struct ggml_tensor * row = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, n);
        struct ggml_tensor * y =
            ggml_interpolate(ctx, row, 1, 1, 1, 1, GGML_SCALE_MODE_BILINEAR | GGML_SCALE_FLAG_ANTIALIAS);
        REQUIRE(row != NULL && y != NULL);
        const double size = (double) ggml_graph_plan(graph_of(ctx, y), 1).work_size, least = 8.0 * (double) n;
        CHECK_MSG(size >= least && size <= 2 * least + 4096, "rows of %g elements: %g bytes", (double) n, size);
    }
    ggml_free(ctx);
}

static void the_message_names_unallocated_tensors(void) {
    struct ggml_context * ctx = new_context(false);
    struct ggml_context * bare = new_context(true);
    REQUIRE(ctx != NULL && bare != NULL);
    struct ggml_tensor * here = ggml_set_name(new_vector(ctx, 4, 1), "here");
    struct ggml_tensor * absent = ggml_set_name(ggml_new_tensor_1d(bare, GGML_TYPE_F32, 4), "absent");
    struct ggml_tensor * first = ggml_scale(ctx, here, 3);
    struct ggml_tensor * sum = ggml_add(ctx, first, absent);
    ggml_set_f32(first, -1);
    CHECK(ggml_graph_compute_with_ctx(ctx, graph_of(ctx, sum), 2) == GGML_STATUS_INVALID_STATE);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "'absent' f32 [4]");
    CHECK(all_equal(first, -1)); // no node ran
    struct ggml_tensor * node = ggml_set_name(ggml_sqr(bare, here), "result");
    CHECK(ggml_graph_compute_with_ctx(ctx, graph_of(ctx, node), 1) == GGML_STATUS_INVALID_STATE);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "'result'");
    ggml_free(ctx);
    ggml_free(bare);
}

static void unsupported_nodes_are_explained(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_tensor * ints = ggml_set_name(ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 4), "ints");
    struct ggml_tensor * y = ggml_set_name(ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 4), "y");
    y->op = GGML_OP_SOFT_MAX; // no builder makes this node
    y->src[0] = ints;
    struct ggml_cgraph * g = graph_of(ctx, y);
    CHECK_INT(ggml_graph_plan(g, 1).work_size, 0);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "SOFT_MAX");
    CHECK(ggml_graph_compute_with_ctx(ctx, g, 1) == GGML_STATUS_UNSUPPORTED);
    CHECK(strstr(ggml_last_error(), "'ints' i32 [4]") != NULL && strstr(ggml_last_error(), "'y' i32 [4]") != NULL);
    y->op = (enum ggml_op) 4000;
    CHECK(ggml_graph_compute_with_ctx(ctx, g, 1) == GGML_STATUS_INVALID_ARGUMENT);
    ggml_free(ctx);
}

static void failures_inside_nodes_stop_the_run(void) {
    FOR_THREADS(n) {
        struct ggml_context * ctx = new_context(false);
        REQUIRE(ctx != NULL);
        struct ggml_tensor * rows = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 512, 10);
        struct ggml_tensor * ids = ggml_set_name(ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 400), "ids");
        ggml_set_f32(rows, 1);
        ggml_set_i32(ids, 0);
        ggml_set_i32_1d(ids, 399, 10); // in the share of the last thread
        struct ggml_tensor * got = ggml_get_rows(ctx, rows, ids);
        struct ggml_tensor * after = ggml_scale(ctx, got, 2);
        ggml_set_f32(after, -7);
        struct ggml_cgraph * g = graph_of(ctx, after);
        CHECK(ggml_graph_compute_with_ctx(ctx, g, n) == GGML_STATUS_INVALID_ARGUMENT);
        CHECK(strstr(ggml_last_error(), "GET_ROWS") != NULL && strstr(ggml_last_error(), "10") != NULL);
        CHECK(all_equal(after, -7));
        CHECK_INT(g->perf_runs, 0);
        ggml_set_i32_1d(ids, 399, 9); // then the graph works again
        CHECK_INT(ggml_graph_compute_with_ctx(ctx, g, n), GGML_STATUS_SUCCESS);
        CHECK(all_equal(after, 2));
        ggml_free(ctx);
    }
}

static bool stop_after(void * data) { return --*(int *) data < 0; }

// Computes with n threads. The callback stops the run when it is called for the (allowed + 1)-th
// time.
static int compute_allowed(struct ggml_cgraph * g, int n, int allowed) {
    struct ggml_cplan plan = ggml_graph_plan(g, n);
    plan.abort_callback = stop_after;
    plan.abort_callback_data = &allowed;
    return ggml_graph_compute(g, &plan);
}

static int times_doubled(float v) {
    int n = 0;
    for (; v > 1; v /= 2) {
        n++;
    }
    return n;
}

// Returns how many of ten nodes ran with n threads. The callback allows some of them.
static int nodes_before_abort(int n, int allowed) {
    struct ggml_context * ctx = new_context(false);
    struct ggml_tensor * x = new_vector(ctx, 20000, 1); // several threads share it
    struct ggml_tensor * s = new_vector(ctx, 3, 1); // one thread computes it
    for (int i = 0; i < 5; i++) {
        x = ggml_scale_inplace(ctx, x, 2);
        s = ggml_scale_inplace(ctx, s, 2);
    }
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    ggml_build_forward_expand(g, s);
    ggml_build_forward_expand(g, x);
    const int status = compute_allowed(g, n, allowed);
    const int ran = times_doubled(ggml_get_f32_1d(s, 0)) + times_doubled(ggml_get_f32_1d(x, 19999));
    CHECK(ran <= allowed);
    CHECK_INT(status, ran < 10 ? GGML_STATUS_ABORTED : GGML_STATUS_SUCCESS);
    CHECK_INT(g->perf_runs, ran == 10);
    ggml_free(ctx);
    return ran;
}

// The callback is called before each node, so `allowed` nodes run. Long nodes and stopped threads
// cause more calls, so a busy machine gets more tries.
static void aborts_between_nodes(void) {
    ggml_graph_set_fusion(false); // aborts_between_groups tests groups
    FOR_THREADS(n) {
        for (int allowed = 0; allowed <= 12; allowed++) {
            const int wanted = GB_MIN(allowed, 10);
            int ran = -1;
            for (int tries = 0; tries < 50 && ran != wanted; tries++) {
                ran = nodes_before_abort(n, allowed);
            }
            CHECK_INT(ran, wanted);
        }
    }
    ggml_graph_set_fusion(true);
}

// Ten nodes that may be fused. Checks that all elements passed the same number of nodes, and
// returns it.
static int grouped_before_abort(int n, int allowed) {
    struct ggml_context * ctx = new_context(false);
    struct ggml_tensor * x = new_vector(ctx, 20000, 1);
    for (int i = 0; i < 10; i++) {
        x = ggml_scale_inplace(ctx, x, 2);
    }
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    ggml_build_forward_expand(g, x);
    const int status = compute_allowed(g, n, allowed);
    const int ran = times_doubled(ggml_get_f32_1d(x, 19999));
    CHECK(all_equal(x, (float) (1 << ran)));
    CHECK_INT(status, ran == 10 ? GGML_STATUS_SUCCESS : GGML_STATUS_ABORTED);
    CHECK(allowed > 0 || ran == 0);
    ggml_free(ctx);
    return ran;
}

// A fused group runs completely or not at all. The callback is called before each group, so each
// allowed call lets at least one more node run. Busy machines cause more calls, so they get more
// tries.
static void aborts_between_groups(void) {
    FOR_THREADS(n) {
        int before = -1;
        for (int allowed = 0; before < 10 && !test_failures; allowed++) {
            int ran = -1;
            for (int tries = 0; tries < 50 && ran <= before; tries++) {
                ran = grouped_before_abort(n, allowed);
            }
            CHECK(ran > before);
            before = ran;
        }
    }
}

// --------------------------------------------------------------------------------------------------------- concurrency

static void * compute_own_graphs(void * arg) {
    const int n = *(int *) arg;
    for (int r = 0; r < 10; r++) {
        struct ggml_context * ctx = new_context(false);
        struct ggml_tensor * x = ctx != NULL ? new_vector(ctx, 30000, 1) : NULL;
        for (int i = 0; i < 10; i++) {
            x = ggml_add(ctx, x, x);
        }
        if (x == NULL || ggml_graph_compute_with_ctx(ctx, graph_of(ctx, x), n) != GGML_STATUS_SUCCESS ||
            !all_equal(x, 1024)) {
            return "wrong";
        }
        ggml_free(ctx);
    }
    return NULL;
}

static void graphs_at_once(void) {
    pthread_t threads[6];
    int n[6];
    for (int i = 0; i < 6; i++) {
        n[i] = 1 + i % 4;
        REQUIRE(pthread_create(&threads[i], NULL, compute_own_graphs, &n[i]) == 0);
    }
    for (int i = 0; i < 6; i++) {
        void * wrong = NULL;
        pthread_join(threads[i], &wrong);
        CHECK(wrong == NULL);
    }
}

static void a_million_nodes(void) {
    const int length = 1000000;
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, true });
    REQUIRE(ctx != NULL);
    float one = 0;
    struct ggml_tensor * x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1);
    x->data = &one;
    struct ggml_tensor * y = x;
    for (int i = 0; i < length && y != NULL; i++) {
        y = ggml_scale_inplace(ctx, y, 1);
    }
    REQUIRE(y != NULL);
    struct ggml_cgraph * g = ggml_new_graph_custom(ctx, (size_t) length, false);
    REQUIRE(g != NULL);
    ggml_build_forward_expand(g, y);
    CHECK_INT(g->n_nodes, length);
    struct ggml_cplan plan = ggml_graph_plan(g, 1);
    const int64_t start = ggml_time_us();
    CHECK_INT(ggml_graph_compute(g, &plan), 0);
    printf("     %.0f ns a node\n", (double) (ggml_time_us() - start) * 1e3 / length);
    ggml_free(ctx);
}

// -------------------------------------------------------------------------------------------------------------- memory

static void out_of_memory(void) {
    struct ggml_context * ctx = new_context(false);
    REQUIRE(ctx != NULL);
    struct ggml_tensor * x = new_vector(ctx, 30000, 1);
    struct ggml_cgraph * g = graph_of(ctx, ggml_add(ctx, ggml_scale(ctx, x, 2), x));
    gb_cpu_pools_trim();
    const int64_t before = gb_test_live_allocs();
    bool done = false;
    for (int n = 1; n < 100 && !done; n++) {
        struct ggml_cplan plan = ggml_graph_plan(g, 3);
        gb_test_fail_alloc(n, false);
        const int status = ggml_graph_compute(g, &plan);
        done = !gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK_INT(status, done ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED);
        gb_cpu_pools_trim();
        CHECK_INT(gb_test_live_allocs(), before);
    }
    CHECK(done);
    CHECK(all_equal(g->nodes[1], 3));
    ggml_free(ctx);
}

TEST_MAIN(TEST(chain_of_large_and_small_nodes), TEST(in_place_nodes_run_in_order), TEST(views_are_no_work),
    TEST(empty_graph_and_empty_tensors), TEST(counts_runs), TEST(custom_nodes_get_their_tasks),
    TEST(a_node_may_compute_a_graph), TEST(bad_plans_are_refused), TEST(work_memory_is_asked_for_and_needed),
    TEST(work_memory_grows_with_the_length_of_rows), TEST(the_message_names_unallocated_tensors),
    TEST(unsupported_nodes_are_explained), TEST(failures_inside_nodes_stop_the_run), TEST(aborts_between_nodes),
    TEST(aborts_between_groups), TEST(graphs_at_once), TEST(a_million_nodes), TEST(out_of_memory))
