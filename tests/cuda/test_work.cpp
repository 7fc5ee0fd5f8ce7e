// test_work.cpp - scratch memory: reported before tensors have memory, allocated at once, replaced for a
// larger graph. A graph fails if there is no memory for it.
//
// The tests of all operators also compare the reported with the allocated size (cuda_check_work_size).
#include "device_graph.h"

// y = (w x)^2 with enough rows for the tensor cores, so that x is converted to halves.
struct product {
    ggml_context * ctx;
    ggml_tensor *w, *x, *y;
    ggml_cgraph * graph;
    ggml_backend_buffer_t buffer;
};

static product build(int64_t k, int64_t rows) {
    product p;
    p.ctx = ggml_init({ 1 << 16, NULL, true });
    p.w = ggml_new_tensor_2d(p.ctx, GGML_TYPE_F16, k, 8);
    p.x = ggml_new_tensor_2d(p.ctx, GGML_TYPE_F32, k, rows);
    p.y = ggml_sqr(p.ctx, ggml_neg(p.ctx, ggml_mul_mat(p.ctx, p.w, p.x)));
    p.graph = ggml_new_graph(p.ctx);
    p.buffer = NULL;
    ggml_build_forward_expand(p.graph, p.y);
    return p;
}

static void fill(const product & p) {
    std::vector<ggml_fp16_t> w((size_t) ggml_nelements(p.w), ggml_fp32_to_fp16(0.5f));
    std::vector<float> x((size_t) ggml_nelements(p.x), 2.0f);
    ggml_backend_tensor_set(p.w, w.data(), 0, ggml_nbytes(p.w));
    ggml_backend_tensor_set(p.x, x.data(), 0, ggml_nbytes(p.x));
}

static void place(product & p, ggml_backend_t cuda) {
    p.buffer = ggml_backend_alloc_ctx_tensors(p.ctx, cuda);
    fill(p);
}

static void release(product & p) {
    ggml_backend_buffer_free(p.buffer);
    ggml_free(p.ctx);
}

static void check_result(ggml_backend_t cuda, const product & p) {
    std::vector<float> y((size_t) ggml_nelements(p.y));
    CHECK_INT(ggml_backend_synchronize(cuda), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_backend_tensor_get(p.y, y.data(), 0, ggml_nbytes(p.y)), GGML_STATUS_SUCCESS);
    const float want = (float) (p.x->ne[0] * p.x->ne[0]);
    for (float v : y) {
        if (v != want) {
            CHECK_MSG(false, "%g instead of %g", (double) v, (double) want);
            break;
        }
    }
    CHECK_INT(ggml_backend_buffer_clear(p.buffer, 0), GGML_STATUS_SUCCESS);
}

static void size_is_reported_without_memory(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0);
    product p = build(64, 40);
    const size_t reported = cuda_work_size(cuda, p.graph);
    CHECK(reported >= 64 * 40 * sizeof(ggml_fp16_t)); // at least the rows as halves
    CHECK(p.y->data == NULL && p.w->data == NULL);
    place(p, cuda);
    CHECK_INT(cuda_work_size(cuda, p.graph), reported);
    const struct ggml_cgraph elementwise = ggml_graph_view(p.graph, 1, 3);
    CHECK_INT(cuda_work_size(cuda, &elementwise), 0);
    const struct ggml_cgraph nothing = ggml_graph_view(p.graph, 0, 0);
    CHECK_INT(cuda_work_size(cuda, &nothing), 0);
    release(p);
    ggml_backend_free(cuda);
}

// The scheduler reports the same size for the device.
static void the_scheduler_reports_the_size(void) {
    CUDA_OR_SKIP();
    ggml_backend_t backends[2] = { cuda_open(0), ggml_backend_cpu_init() };
    ggml_backend_sched_t sched = ggml_backend_sched_new(backends, NULL, 2, 64);
    product p = build(64, 40);
    const size_t reported = cuda_work_size(backends[0], p.graph);
    for (int i = 0; i < p.graph->n_nodes; i++) {
        ggml_backend_sched_set_node_backend(sched, p.graph->nodes[i], backends[0]);
    }
    CHECK_INT(ggml_backend_sched_plan_graph(sched, p.graph), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_backend_sched_get_work_size(sched, backends[0]), reported);
    ggml_backend_sched_free(sched);
    ggml_free(p.ctx);
    ggml_backend_free(backends[0]);
    ggml_backend_free(backends[1]);
}

// A graph is recorded. A larger one then moves the scratch memory that the record refers to.
static void growth_drops_recorded_graphs(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0);
    product small = build(64, 20);
    place(small, cuda);
    for (int64_t rows = 40; rows < 400; rows *= 2) {
        for (int i = 0; i < 3; i++) {
            CHECK(ggml_backend_graph_compute(cuda, small.graph));
            check_result(cuda, small);
            fill(small);
        }
        product large = build(128, rows);
        place(large, cuda);
        CHECK(ggml_backend_graph_compute(cuda, large.graph));
        check_result(cuda, large);
        release(large);
    }
    release(small);
    ggml_backend_free(cuda);
}

// Without scratch memory, a graph fails with the figures and has no result. Later it works.
static void no_memory_is_an_error(void) {
    CUDA_OR_SKIP();
#ifdef GB_CUDA_EMULATED
    ggml_backend_t cuda = cuda_open(0);
    product p = build(64, 40);
    place(p, cuda);
    ggml_backend_cuda_trim(0);
    char figure[48];
    snprintf(figure, sizeof(figure), "%zu bytes wanted", cuda_work_size(cuda, p.graph));
    gb_emu_fail("cudaMalloc", 0, GB_EMU_OUT_OF_MEMORY);
    CHECK(!ggml_backend_graph_compute(cuda, p.graph));
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, figure);
    gb_emu_fail(NULL, 0, 0);
    CHECK(ggml_backend_graph_compute(cuda, p.graph));
    check_result(cuda, p);
    release(p);
    ggml_backend_free(cuda);
#else
    SKIP("a device has memory");
#endif
}

// No supported operator has a launch larger than a grid. To report the scratch memory, the backend checks each launch,
// here for tensors without memory at the limits of size.
static void large_shapes_are_launched_or_refused(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0);
    const int64_t deep = (int64_t) 1 << 25, tall = (int64_t) 65535 * 64;
    int computed = 0, refused = 0;
    for (ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q4_0, GGML_TYPE_Q6_K }) {
        for (int64_t k : { (int64_t) 256, deep }) {
            for (int64_t rows : { (int64_t) 1, (int64_t) 8, (int64_t) 40, tall - 700, tall - 600, tall, tall + 64 }) {
                for (int experts = 0; experts < 2; experts++) {
                    ggml_context * ctx = ggml_init({ 1 << 16, NULL, true });
                    ggml_tensor * w[8];
                    for (ggml_tensor *& t : w) {
                        t = ggml_new_tensor_2d(ctx, type, k, 8);
                    }
                    ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, k, rows);
                    ggml_tensor * ids = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 1, rows);
                    ggml_tensor * y = experts ? ggml_mul_mat_id(ctx, w, 8, ids, 0, x) : ggml_mul_mat(ctx, w[0], x);
                    y->op_params[experts ? 2 : 0] = GGML_PREC_F32;
                    ggml_cgraph * graph = ggml_new_graph(ctx);
                    ggml_build_forward_expand(graph, y);
                    ggml_clear_error();
                    if (ggml_backend_supports_op(cuda, y)) {
                        (void) cuda_work_size(cuda, graph);
                        CHECK_MSG(ggml_last_status() == GGML_STATUS_SUCCESS, "%s k=%lld rows=%lld: %s",
                            ggml_type_name(type), (long long) k, (long long) rows, ggml_last_error());
                        computed++;
                    } else {
                        refused++;
                    }
                    ggml_free(ctx);
                }
            }
        }
    }
    CHECK(computed >= 60 && refused >= 16);
    ggml_backend_free(cuda);
}

// A tile has the rows of one expert, so many experts need many tiles.
static void many_experts_are_launched_or_refused(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0);
    for (int64_t experts : { 32767, 32768, 60000 }) {
        for (int64_t tokens : { 40, 30000 }) {
            const int64_t used = tokens == 40 ? 1 : 32;
            ggml_context * ctx = ggml_init({ 1 << 16, NULL, true });
            ggml_tensor * stack = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, 64, 8, experts);
            ggml_tensor * x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 64, 1, tokens);
            ggml_tensor * ids = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, used, tokens);
            ggml_tensor * y = ggml_mul_mat_experts(ctx, stack, x, ids);
            ggml_cgraph * graph = ggml_new_graph(ctx);
            ggml_build_forward_expand(graph, y);
            const bool fits = tokens == 40 || experts == 32767, supported = ggml_backend_supports_op(cuda, y);
            CHECK_MSG(supported == fits, "%lld experts, %lld tokens", (long long) experts, (long long) tokens);
            ggml_clear_error();
            if (supported) {
                (void) cuda_work_size(cuda, graph);
                CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS);
            }
            ggml_free(ctx);
        }
    }
    ggml_backend_free(cuda);
}

TEST_MAIN(TEST(large_shapes_are_launched_or_refused), TEST(many_experts_are_launched_or_refused),
    TEST(size_is_reported_without_memory), TEST(the_scheduler_reports_the_size), TEST(growth_drops_recorded_graphs),
    TEST(no_memory_is_an_error))
