// test_compat_alloc.c - programs of early 2024 with the older allocator: a measure allocator finds
// the size for a graph. Then the graph is built again, allocated in a buffer of that size, and
// computed. On plain memory and on backends, on the CPU and a device.
#include "compat.h"

static struct model model;

// Builds the graph as programs do: in its own context, with the input allocated during the build,
// and set only if it has memory.
static struct ggml_cgraph * build(struct ggml_context * ctx, ggml_allocr_t allocr, const float * x, int n) {
    struct ggml_cgraph * gf = ggml_new_graph(ctx);
    struct ggml_tensor * input = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, N_IN, n);
    ggml_allocr_alloc(allocr, input);
    if (!ggml_allocr_is_measure(allocr)) {
        ggml_backend_tensor_set(input, x, 0, ggml_nbytes(input));
    }
    ggml_build_forward_expand(gf, model_build(ctx, &model, input));
    return gf;
}

static struct ggml_context * graph_context(char * memory, size_t size) {
    struct ggml_init_params params = { size, memory, true };
    return ggml_init(params);
}

static void with_backend(const char * name) {
    ggml_backend_t backend = ggml_backend_reg_init_backend_from_str(name);
    REQUIRE(backend != NULL && model_new(&model));
    ggml_backend_buffer_t weights = ggml_backend_alloc_ctx_tensors(model.ctx, backend);
    REQUIRE(weights != NULL);
    model_upload(&model);

    static _Alignas(16) char memory[1 << 20];
    const size_t memory_size = ggml_tensor_overhead() * GGML_DEFAULT_GRAPH_SIZE / 8 + ggml_graph_overhead();
    REQUIRE(memory_size <= sizeof(memory));

    ggml_allocr_t measure = ggml_allocr_new_measure_from_backend(backend);
    struct ggml_context * ctx = graph_context(memory, memory_size);
    const size_t mem_size = ggml_allocr_alloc_graph(measure, build(ctx, measure, NULL, N_BATCH_MAX));
    ggml_free(ctx);
    ggml_allocr_free(measure);
    CHECK(mem_size > N_BATCH_MAX * N_HIDDEN * sizeof(float));
    CHECK(mem_size < 20 * N_BATCH_MAX * N_HIDDEN * sizeof(float)); // the memory is used again

    ggml_backend_buffer_t buffer = ggml_backend_alloc_buffer(backend, mem_size);
    ggml_allocr_t allocr = ggml_allocr_new_from_buffer(buffer);
    REQUIRE(allocr != NULL);
    for (int n = 1; n <= N_BATCH_MAX; n++) {
        float x[N_IN * N_BATCH_MAX];
        model_random(x, N_IN * n);
        ggml_allocr_reset(allocr);
        ctx = graph_context(memory, memory_size);
        struct ggml_cgraph * gf = build(ctx, allocr, x, n);
        CHECK(ggml_allocr_alloc_graph(allocr, gf) <= mem_size);
        if (ggml_backend_is_cpu(backend)) {
            ggml_backend_cpu_set_n_threads(backend, 2);
        }
        CHECK(ggml_backend_graph_compute(backend, gf));
        MODEL_CHECK(&model, x, n, gf->nodes[gf->n_nodes - 1]);
        ggml_free(ctx);
    }
    ggml_allocr_free(allocr);
    ggml_backend_buffer_free(buffer);
    ggml_backend_buffer_free(weights);
    ggml_free(model.ctx);
    ggml_backend_free(backend);
    CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS);
}

static void on_cpu(void) { with_backend("CPU"); }

static void on_device(void) { with_backend("SIM"); }

// Without backends: a data array, ggml_graph_plan and ggml_graph_compute.
static void on_plain_memory(void) {
    REQUIRE(model_new(&model));
    model.w1->data = model.w1_data;
    model.b1->data = model.b1_data;
    model.w2->data = model.w2_data;
    float x[N_IN * N_BATCH_MAX];
    model_random(x, N_IN * N_BATCH_MAX);

    const size_t tensor_alignment = 32;
    size_t data_size = 0;
    char * data = NULL;
    for (int pass = 0; pass < 2; pass++) {
        ggml_allocr_t allocr =
            pass == 0 ? ggml_allocr_new_measure(tensor_alignment) : ggml_allocr_new(data, data_size, tensor_alignment);
        struct ggml_init_params params = { ggml_tensor_overhead() * 64 + ggml_graph_overhead(), NULL, true };
        struct ggml_context * ctx = ggml_init(params);
        struct ggml_cgraph * gf = ggml_new_graph(ctx);
        struct ggml_tensor * input = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, N_IN, 3);
        ggml_allocr_alloc(allocr, input);
        if (!ggml_allocr_is_measure(allocr)) {
            CHECK(input->data == data && (uintptr_t) input->data % tensor_alignment == 0);
            memcpy(input->data, x, ggml_nbytes(input));
        }
        struct ggml_tensor * y = model_build(ctx, &model, input);
        ggml_build_forward_expand(gf, y);
        const size_t used = ggml_allocr_alloc_graph(allocr, gf);
        CHECK(used > 0);
        if (pass == 0) {
            data_size = used + tensor_alignment;
            data = aligned_alloc(tensor_alignment, GGML_PAD(data_size, tensor_alignment));
        } else {
            struct ggml_cplan plan = ggml_graph_plan(gf, 2);
            plan.work_data = plan.work_size > 0 ? malloc(plan.work_size) : NULL;
            CHECK_INT(ggml_graph_compute(gf, &plan), GGML_EXIT_SUCCESS);
            free(plan.work_data);
            double expected[3 * N_OUT];
            model_expected(&model, x, 3, expected);
            for (int i = 0; i < 3 * N_OUT; i++) {
                CHECK(fabs((double) ((const float *) y->data)[i] - expected[i]) < 1e-5);
            }
        }
        ggml_allocr_free(allocr);
        ggml_free(ctx);
    }
    free(data);
    ggml_free(model.ctx);
}

// The oldest style: everything in one context with its own memory.
static void in_one_context(void) {
    REQUIRE(model_new(&model));
    struct ggml_init_params params = { 16 * 1024 * 1024, NULL, false };
    struct ggml_context * ctx = ggml_init(params);
    struct ggml_tensor * x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1);
    ggml_set_param(ctx, x);
    struct ggml_tensor * a = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1);
    struct ggml_tensor * b = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1);
    struct ggml_tensor * x2 = ggml_mul(ctx, x, x);
    struct ggml_tensor * f = ggml_add(ctx, ggml_mul(ctx, a, x2), b);
    struct ggml_cgraph * gf = ggml_new_graph(ctx);
    ggml_build_forward_expand(gf, f);
    ggml_set_f32(x, 2.0f);
    ggml_set_f32(a, 3.0f);
    ggml_set_f32(b, 4.0f);
    CHECK_INT(ggml_graph_compute_with_ctx(ctx, gf, 1), GGML_STATUS_SUCCESS);
    CHECK(ggml_get_f32_1d(f, 0) == 16.0f);
    ggml_free(ctx);
    ggml_free(model.ctx);
}

TEST_MAIN(TEST(on_cpu), TEST(on_device), TEST(on_plain_memory), TEST(in_one_context))
