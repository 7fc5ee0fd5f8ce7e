// Operators with a user's function: its arguments, its number of calls, and its threads.
#include <stdatomic.h>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "test_cpu_ops.h"

#if defined(__GNUC__)
#    pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif

static void add_ten(const int n, float * y, const float * x) {
    for (int i = 0; i < n; i++) {
        y[i] = x[i] + 10;
    }
}

static void subtract(const int n, float * z, const float * x, const float * y) {
    for (int i = 0; i < n; i++) {
        z[i] = x[i] - y[i];
    }
}

static double want_rows(const struct ggml_tensor * node, const int64_t i[4]) {
    const double x = at(node->src[0], i[0], i[1], i[2], i[3]);
    return node->op == GGML_OP_MAP_UNARY ? x + 10 : x - at(node->src[1], i[0], i[1], i[2], i[3]);
}

static void by_rows(void) {
    for (int layout = DENSE; layout <= SWAPPED; layout++) { // rows are contiguous
        begin();
        struct ggml_tensor *a = random_tensor(GGML_TYPE_F32, layout, 7, 3, 2, 2),
                           *b = random_tensor(GGML_TYPE_F32, layout, 7, 3, 2, 2);
        CHECK_NODE(ggml_map_unary_f32(ctx, a, add_ten), want_rows, 1e-6);
        CHECK_NODE(ggml_map_unary_inplace_f32(ctx, a, add_ten), want_rows, 1e-6);
        CHECK_NODE(ggml_map_binary_f32(ctx, a, b, subtract), want_rows, 1e-6);
        CHECK_NODE(ggml_map_binary_inplace_f32(ctx, a, b, subtract), want_rows, 1e-6);
        end();
    }
    begin();
    struct ggml_tensor * node = reading(ggml_map_unary_f32(ctx, stand_in(7, 3, 1, 1), add_ten), 0,
        tensor(GGML_TYPE_F32, TRANSPOSED, 7, 3, 1, 1));
    give_memory(node);
    CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_UNSUPPORTED);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "rows must be contiguous");
    end();
}

static int calls;

static void whole1(struct ggml_tensor * dst, const struct ggml_tensor * a) {
    calls++;
    ((float *) dst->data)[0] = ((float *) a->data)[0] + 1;
}

static void whole2(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b) {
    calls++;
    ((float *) dst->data)[0] = ((float *) a->data)[0] + 10 * ((float *) b->data)[0];
}

static void whole3(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b,
    const struct ggml_tensor * c) {
    calls++;
    ((float *) dst->data)[0] = ((float *) a->data)[0] + 10 * ((float *) b->data)[0] + 100 * ((float *) c->data)[0];
}

static struct ggml_tensor * one(float v) {
    struct ggml_tensor * t = tensor(GGML_TYPE_F32, DENSE, 1, 1, 1, 1);
    memcpy(t->data, &v, sizeof(v));
    return t;
}

static void whole_tensors(void) {
    begin();
    struct ggml_tensor * nodes[] = { ggml_map_custom1_f32(ctx, one(1), whole1),
        ggml_map_custom2_f32(ctx, one(1), one(2), whole2), ggml_map_custom3_f32(ctx, one(1), one(2), one(3), whole3) };
    const float wants[] = { 2, 21, 321 };
    for (int k = 0; k < 3; k++) {
        give_memory(nodes[k]);
        calls = 0;
        CHECK(run_node(nodes[k], 5, gb_kernels_default()) == GGML_STATUS_SUCCESS);
        CHECK_INT(calls, 1);
        CHECK(*(float *) nodes[k]->data == wants[k]);
    }
    end();
}

struct seen {
    atomic_int calls[8]; // calls with each ith
    atomic_int nth;
    int n_sources;
};

static void note(struct seen * s, int ith, int nth, int n_sources) {
    atomic_fetch_add(&s->calls[ith], 1);
    atomic_store(&s->nth, nth);
    if (ith == 0) {
        s->n_sources = n_sources;
    }
}

static void on_threads1(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * userdata) {
    note(userdata, ith, nth, 1);
    CHECK(dst->src[0] == a);
}

static void on_threads2(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b, int ith,
    int nth, void * userdata) {
    note(userdata, ith, nth, 2);
    CHECK(dst->src[0] == a && dst->src[1] == b);
}

static void on_threads3(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b,
    const struct ggml_tensor * c, int ith, int nth, void * userdata) {
    note(userdata, ith, nth, 3);
    CHECK(dst->src[0] == a && dst->src[1] == b && dst->src[2] == c);
}

static void on_threads_any(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    int n = 0;
    while (n < GGML_MAX_SRC && dst->src[n] != NULL) {
        n++;
    }
    note(userdata, ith, nth, n);
    CHECK(dst->type == GGML_TYPE_I64 && dst->ne[0] == nth);
    ((int64_t *) dst->data)[ith] = 100 * n + ith;
}

// Each thread of the node computes one number.
static void any_sources(void) {
    for (int n = 0; n <= GGML_MAX_SRC; n++) {
        for (int n_threads = 1; n_threads <= 5; n_threads += 2) {
            begin();
            static struct seen s;
            const int64_t ne[] = { n_threads };
            struct ggml_tensor * sources[GGML_MAX_SRC];
            memset(&s, 0, sizeof(s));
            for (int i = 0; i < n; i++) {
                sources[i] = i % 2 == 0 ? one(1) : tensor(GGML_TYPE_Q4_0, DENSE, 64, 2, 1, 1);
            }
            struct ggml_tensor * node = ggml_custom(ctx, GGML_TYPE_I64, ne, 1, sources, n, on_threads_any,
                n_threads == 1 ? 1 : GGML_N_TASKS_MAX, &s);
            give_memory(node);
            CHECK(run_node(node, n_threads, gb_kernels_default()) == GGML_STATUS_SUCCESS);
            CHECK_INT(s.nth, n_threads);
            CHECK_INT(s.n_sources, n);
            for (int ith = 0; ith < n_threads; ith++) {
                CHECK_INT(((int64_t *) node->data)[ith], 100 * n + ith);
            }
            if (n > 1) { // a node that no builder makes
                node->src[0] = NULL;
                CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_UNSUPPORTED);
                CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "a source is missing");
                node->src[0] = node->src[1];
                node->op_params[GB_CUSTOM_N_SRC] = GGML_MAX_SRC + 1;
                CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_UNSUPPORTED);
            }
            end();
        }
    }
}

static void on_threads(void) {
    static const int tasks[][3] = { { GGML_N_TASKS_MAX, 5, 5 }, { 3, 5, 3 }, { 7, 2, 2 },
        { 1, 5, 1 } }; // n_tasks, threads, calls
    for (int t = 0; t < 4; t++) {
        for (int n = 1; n <= 3; n++) {
            begin();
            static struct seen s;
            memset(&s, 0, sizeof(s));
            struct ggml_tensor * node =
                n == 1   ? ggml_map_custom1(ctx, one(1), on_threads1, tasks[t][0], &s)
                : n == 2 ? ggml_map_custom2(ctx, one(1), one(2), on_threads2, tasks[t][0], &s)
                         : ggml_map_custom3(ctx, one(1), one(2), one(3), on_threads3, tasks[t][0], &s);
            give_memory(node);
            CHECK(run_node(node, tasks[t][1], gb_kernels_default()) == GGML_STATUS_SUCCESS);
            CHECK_INT(s.nth, tasks[t][2]);
            CHECK_INT(s.n_sources, n);
            for (int ith = 0; ith < 8; ith++) {
                CHECK_INT(s.calls[ith], ith < tasks[t][2]);
            }
            end();
        }
    }
}

static void fail_in_vain(void) {
    CHECK(ggml_new_tensor_1d(NULL, GGML_TYPE_F32, 1) == NULL);
    CHECK(ggml_last_status() == GGML_STATUS_INVALID_ARGUMENT);
}

static void failing_row(const int n, float * y, const float * x) {
    fail_in_vain();
    add_ten(n, y, x);
}

static void failing_rows(const int n, float * z, const float * x, const float * y) {
    fail_in_vain();
    subtract(n, z, x, y);
}

static void failing1(struct ggml_tensor * dst, const struct ggml_tensor * a) {
    fail_in_vain();
    whole1(dst, a);
}

static void failing2(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b) {
    fail_in_vain();
    whole2(dst, a, b);
}

static void failing3(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b,
    const struct ggml_tensor * c) {
    fail_in_vain();
    whole3(dst, a, b, c);
}

static void failing_on_threads1(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth,
    void * userdata) {
    fail_in_vain();
    on_threads1(dst, a, ith, nth, userdata);
}

static void failing_on_threads2(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b,
    int ith, int nth, void * userdata) {
    fail_in_vain();
    on_threads2(dst, a, b, ith, nth, userdata);
}

static void failing_on_threads3(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b,
    const struct ggml_tensor * c, int ith, int nth, void * userdata) {
    fail_in_vain();
    on_threads3(dst, a, b, c, ith, nth, userdata);
}

static void failing_on_threads_any(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    fail_in_vain();
    (void) dst, (void) ith, (void) nth, (void) userdata;
}

static bool failing_abort(void * data) {
    fail_in_vain();
    ++*(int *) data;
    return false;
}

static bool failing_callback(struct ggml_tensor * t, bool ask, void * data) {
    (void) t, (void) ask;
    fail_in_vain();
    ++*(int *) data;
    return true;
}

// A function that handles its own failure does not fail the node.
static void handled_failures(void) {
    static struct seen seen;
    ggml_backend_t cpu = ggml_backend_cpu_init();
    ggml_backend_sched_t sched = ggml_backend_sched_new(&cpu, NULL, 1, 0);
    int n;
    ggml_backend_cpu_set_n_threads(cpu, 1);
    for (int kind = 0; kind < 9; kind++) {
        begin();
        struct ggml_tensor *a = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4),
                           *b = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
        struct ggml_tensor * node =
            kind == 0   ? ggml_map_unary_f32(ctx, a, failing_row)
            : kind == 1 ? ggml_map_binary_f32(ctx, a, b, failing_rows)
            : kind == 2 ? ggml_map_custom1_f32(ctx, a, failing1)
            : kind == 3 ? ggml_map_custom2_f32(ctx, a, b, failing2)
            : kind == 4 ? ggml_map_custom3_f32(ctx, a, b, a, failing3)
            : kind == 5 ? ggml_map_custom1(ctx, a, failing_on_threads1, 1, &seen)
            : kind == 6 ? ggml_map_custom2(ctx, a, b, failing_on_threads2, 1, &seen)
            : kind == 7 ? ggml_map_custom3(ctx, a, b, a, failing_on_threads3, 1, &seen)
                        : ggml_custom(ctx, GGML_TYPE_F16, b->ne, 2, (struct ggml_tensor * const[]){ a, b }, 2,
                              failing_on_threads_any, 1, NULL);
        struct ggml_cgraph * graph = ggml_new_graph_custom(ctx, 8, false);
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, cpu);
        CHECK(buffer != NULL && ggml_build_forward_expand(graph, node) == GGML_STATUS_SUCCESS);
        ggml_backend_buffer_clear(buffer, 0);
        for (int watched = 0; watched < 2; watched++) {
            n = 0;
            ggml_backend_cpu_set_abort_callback(cpu, watched ? failing_abort : NULL, &n);
            ggml_backend_sched_set_eval_callback(sched, watched ? failing_callback : NULL, &n);
            CHECK(ggml_backend_graph_compute(cpu, graph));
            CHECK((n > 0) == watched);
            for (int round = 0; round < 2; round++) { // while it is planned, and from the kept plan
                CHECK_INT(ggml_backend_sched_graph_compute(sched, graph), GGML_STATUS_SUCCESS);
            }
            CHECK((n > 3) == watched);
        }
        ggml_backend_buffer_free(buffer);
        end();
    }
    ggml_backend_sched_free(sched);
    ggml_backend_free(cpu);
}

static void no_function(void) {
    begin();
    struct ggml_tensor * node = ggml_map_custom1(ctx, one(1), on_threads1, 1, NULL);
    give_memory(node);
    memset(node->op_params, 0, sizeof(node->op_params));
    CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_UNSUPPORTED);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "the function is NULL");
    end();
}

TEST_MAIN(TEST(by_rows), TEST(whole_tensors), TEST(on_threads), TEST(any_sources), TEST(handled_failures),
    TEST(no_function))
