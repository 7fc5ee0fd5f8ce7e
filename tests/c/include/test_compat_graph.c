// test_compat_graph.c - programs of early 2024 beyond allocate-and-compute: comparing two backends,
// copying a graph, one handle for several buffers, the program's memory as a buffer, backends by
// name, graph plans.
#include "compat.h"

#include "ggml-backend-impl.h"

struct placed { // the model and its graph, all on one backend
    ggml_backend_t backend;
    struct model model;
    struct ggml_context * ctx;
    ggml_backend_buffer_t weights, compute;
    struct ggml_cgraph * gf;
    struct ggml_tensor * x;
    struct ggml_tensor * y;
    float x_data[N_IN * 3];
};

static bool placed_new(struct placed * p, const char * backend) {
    memset(p, 0, sizeof(*p));
    p->backend = ggml_backend_reg_init_backend_from_str(backend);
    if (p->backend == NULL || !model_new(&p->model)) {
        return false;
    }
    p->weights = ggml_backend_alloc_ctx_tensors(p->model.ctx, p->backend);
    model_upload(&p->model);
    struct ggml_init_params params = { 64 * ggml_tensor_overhead() + ggml_graph_overhead(), NULL, true };
    p->ctx = ggml_init(params);
    p->gf = ggml_new_graph(p->ctx);
    p->x = ggml_new_tensor_2d(p->ctx, GGML_TYPE_F32, N_IN, 3);
    p->y = model_build(p->ctx, &p->model, p->x);
    ggml_build_forward_expand(p->gf, p->y);
    p->compute = ggml_backend_alloc_ctx_tensors(p->ctx, p->backend); // every tensor has its own memory
    model_random(p->x_data, N_IN * 3);
    ggml_backend_tensor_set(p->x, p->x_data, 0, ggml_nbytes(p->x));
    return p->weights != NULL && p->compute != NULL;
}

static void placed_free(struct placed * p) {
    ggml_free(p->ctx);
    ggml_backend_buffer_free(p->compute);
    ggml_backend_buffer_free(p->weights);
    ggml_free(p->model.ctx);
    ggml_backend_free(p->backend);
}

// ----------------------------------------------------------------------------------------------------------- comparing

struct seen {
    int n, last_index, stop_at;
    double max_error;
    bool saw_view;
};

static bool compare(int node_index, struct ggml_tensor * t1, struct ggml_tensor * t2, void * user_data) {
    struct seen * seen = user_data;
    float a[N_HIDDEN * 3], b[N_HIDDEN * 3];
    CHECK(t1->op == t2->op && ggml_are_same_shape(t1, t2) && ggml_nbytes(t1) <= sizeof(a));
    CHECK(node_index > seen->last_index);
    ggml_backend_tensor_get(t1, a, 0, ggml_nbytes(t1));
    ggml_backend_tensor_get(t2, b, 0, ggml_nbytes(t2));
    for (int64_t i = 0; i < ggml_nelements(t1); i++) {
        seen->max_error = fmax(seen->max_error, fabs((double) a[i] - (double) b[i]));
    }
    seen->saw_view = seen->saw_view || t1->op == GGML_OP_VIEW;
    seen->last_index = node_index;
    seen->n++;
    return seen->n != seen->stop_at;
}

static void compare_backends(void) {
    struct placed p;
    REQUIRE(placed_new(&p, "CPU"));
    ggml_backend_t device = ggml_backend_reg_init_backend_from_str("SIM:mem=16M");
    REQUIRE(device != NULL);
    struct seen seen = { .last_index = -1 };
    CHECK(ggml_backend_compare_graph_backend(p.backend, device, p.gf, compare, &seen));
    int computed = 0;
    for (int i = 0; i < p.gf->n_nodes; i++) {
        computed += p.gf->nodes[i]->op != GGML_OP_VIEW && p.gf->nodes[i]->op != GGML_OP_NONE;
    }
    CHECK_INT(seen.n, computed);
    CHECK(!seen.saw_view && seen.max_error < 1e-6);
    seen = (struct seen){ .last_index = -1, .stop_at = 2 };
    ggml_backend_compare_graph_backend(p.backend, device, p.gf, compare, &seen);
    CHECK_INT(seen.n, 2);
    ggml_backend_free(device);
    placed_free(&p);
}

static void copy_graph(void) {
    const char * routes[][2] = { { "CPU", "CPU" }, { "CPU", "SIM" }, { "SIM", "CPU" }, { "SIM", "SIM" } };
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        struct placed p;
        REQUIRE(placed_new(&p, routes[i][0]));
        ggml_backend_t other = ggml_backend_reg_init_backend_from_str(routes[i][1]);
        struct ggml_backend_graph_copy copy = ggml_backend_graph_copy(other, p.gf);
        REQUIRE(copy.buffer != NULL && copy.graph != NULL && copy.ctx_allocated != NULL &&
                copy.ctx_unallocated != NULL);
        CHECK_INT(copy.graph->n_nodes, p.gf->n_nodes);
        ggml_backend_tensor_set(p.x, p.model.w1_data, 0, ggml_nbytes(p.x)); // the copy has its own data
        CHECK(ggml_backend_graph_compute(other, copy.graph));
        ggml_backend_synchronize(other);
        const struct ggml_tensor * y = copy.graph->nodes[copy.graph->n_nodes - 1];
        CHECK_STR(y->name, "y");
        CHECK(y != p.y);
        MODEL_CHECK(&p.model, p.x_data, 3, y);
        ggml_backend_graph_copy_free(copy);
        ggml_backend_free(other);
        placed_free(&p);
    }
}

// --------------------------------------------------------------------------------------------------------------- plans

static void graph_plans(void) {
    const char * names[] = { "CPU", "SIM" };
    for (int i = 0; i < 2; i++) {
        struct placed p;
        REQUIRE(placed_new(&p, names[i]));
        ggml_backend_graph_plan_t plan = ggml_backend_graph_plan_create(p.backend, p.gf);
        REQUIRE(plan != NULL);
        for (int pass = 0; pass < 3; pass++) {
            model_random(p.x_data, N_IN * 3);
            ggml_backend_tensor_set_async(p.backend, p.x, p.x_data, 0, ggml_nbytes(p.x));
            ggml_backend_graph_plan_compute(p.backend, plan);
            float y[N_OUT * 3];
            ggml_backend_tensor_get_async(p.backend, p.y, y, 0, ggml_nbytes(p.y));
            ggml_backend_synchronize(p.backend);
            MODEL_CHECK(&p.model, p.x_data, 3, p.y);
            float again[N_OUT * 3];
            ggml_backend_tensor_get(p.y, again, 0, sizeof(again));
            CHECK(memcmp(y, again, sizeof(y)) == 0);
        }
        ggml_backend_graph_plan_free(p.backend, plan);
        placed_free(&p);
    }
}

// ------------------------------------------------------------------------------------------------------------- buffers

static void multi_buffer(void) {
    ggml_backend_buffer_t parts[3] = { ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), 100),
        ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), 200),
        ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), 300) };
    uint8_t * base[3];
    size_t size[3], total = 0;
    for (int i = 0; i < 3; i++) {
        REQUIRE(parts[i] != NULL);
        base[i] = ggml_backend_buffer_get_base(parts[i]);
        size[i] = ggml_backend_buffer_get_size(parts[i]);
        total += size[i];
    }
    ggml_backend_buffer_t multi = ggml_backend_multi_buffer_alloc_buffer(parts, 3);
    REQUIRE(multi != NULL);
    CHECK(ggml_backend_buffer_is_multi_buffer(multi) && !ggml_backend_buffer_is_multi_buffer(parts[0]));
    CHECK_INT(ggml_backend_buffer_get_size(multi), total);
    CHECK_STR(ggml_backend_buffer_name(multi), ggml_backend_buffer_name(parts[0]));
    ggml_backend_buffer_clear(multi, 0x5a);
    for (int i = 0; i < 3; i++) {
        CHECK(base[i][0] == 0x5a && base[i][size[i] - 1] == 0x5a);
    }
    ggml_backend_buffer_set_usage(multi, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    CHECK_INT(parts[2]->usage, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_free(multi);
}

// A context whose tensors exceed the largest allocation of the device.
static void context_in_several_buffers(void) {
    ggml_backend_t backend = ggml_backend_reg_init_backend_from_str("SIM:mem=1M,max=4096");
    struct ggml_init_params params = { 16 * ggml_tensor_overhead(), NULL, true };
    struct ggml_context * ctx = ggml_init(params);
    struct ggml_tensor * t[6];
    for (int i = 0; i < 6; i++) {
        t[i] = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 600);
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    REQUIRE(buffer != NULL);
    CHECK(ggml_backend_buffer_is_multi_buffer(buffer));
    CHECK(ggml_backend_buffer_get_size(buffer) >= 6 * 2400);
    for (int i = 0; i < 6; i++) {
        float data[600];
        for (int j = 0; j < 600; j++) {
            data[j] = (float) (1000 * i + j);
        }
        ggml_backend_tensor_set(t[i], data, 0, sizeof(data));
    }
    for (int i = 0; i < 6; i++) {
        float last;
        ggml_backend_tensor_get(t[i], &last, 599 * sizeof(float), sizeof(last));
        CHECK(last == (float) (1000 * i + 599));
    }
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    ggml_backend_free(backend);
}

// Weights stay in memory of the program: an array or a mapped file.
static void buffer_from_pointer(void) {
    static _Alignas(64) float data[3 * 64];
    for (int i = 0; i < 3 * 64; i++) {
        data[i] = (float) i;
    }
    ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(data, sizeof(data));
    REQUIRE(buffer != NULL);
    CHECK(ggml_backend_buffer_get_base(buffer) == data);
    CHECK_INT(ggml_backend_buffer_get_size(buffer), sizeof(data));
    CHECK(ggml_backend_buffer_is_host(buffer));
    struct ggml_init_params params = { 8 * ggml_tensor_overhead() + ggml_graph_overhead(), NULL, true };
    struct ggml_context * ctx = ggml_init(params);
    struct ggml_tensor * a = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 64);
    struct ggml_tensor * b = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 64);
    struct ggml_tensor * c = ggml_add(ctx, a, b);
    ggml_backend_tensor_alloc(buffer, a, data);
    ggml_backend_tensor_alloc(buffer, b, data + 64);
    ggml_backend_tensor_alloc(buffer, c, data + 128);
    struct ggml_cgraph * gf = ggml_new_graph(ctx);
    ggml_build_forward_expand(gf, c);
    ggml_backend_t cpu = ggml_backend_cpu_init();
    CHECK(ggml_backend_graph_compute(cpu, gf));
    for (int i = 0; i < 64; i++) {
        CHECK(data[128 + i] == (float) (2 * i + 64));
    }
    ggml_backend_free(cpu);
    ggml_free(ctx);
    ggml_backend_buffer_free(buffer);
    CHECK(data[1] == 1); // the program still owns it
}

// --------------------------------------------------------------------------------------------------------------- names

static void registry(void) {
    CHECK(ggml_backend_reg_get_count() >= 2);
    CHECK_STR(ggml_backend_reg_get_name(0), "CPU");
    CHECK_INT(ggml_backend_reg_find_by_name("CPU"), 0);
    CHECK(ggml_backend_reg_find_by_name("cpu") == 0);
    CHECK(ggml_backend_reg_find_by_name("no such backend") == SIZE_MAX);
    const size_t sim = ggml_backend_reg_find_by_name("SIM");
    REQUIRE(sim < ggml_backend_reg_get_count());
    for (size_t i = 0; i < ggml_backend_reg_get_count(); i++) {
        ggml_backend_t backend = ggml_backend_reg_init_backend(i, NULL);
        ggml_backend_buffer_t buffer = ggml_backend_reg_alloc_buffer(i, 1000);
        CHECK_MSG(backend != NULL && buffer != NULL, "%s: %s", ggml_backend_reg_get_name(i), ggml_last_error());
        CHECK(ggml_backend_buffer_get_size(buffer) >= 1000);
        CHECK(ggml_backend_reg_get_default_buffer_type(i) != NULL);
        CHECK(ggml_backend_buft_supports_backend(ggml_backend_get_default_buffer_type(backend), backend));
        ggml_backend_buffer_free(buffer);
        ggml_backend_free(backend);
    }
    CHECK(ggml_backend_is_cpu(NULL) == false);
    ggml_backend_t cpu = ggml_backend_reg_init_backend_from_str("CPU");
    CHECK(ggml_backend_is_cpu(cpu));
    CHECK_STR(ggml_backend_name(cpu), "CPU");
    ggml_backend_free(cpu);
    ggml_backend_t device = ggml_backend_reg_init_backend_from_str("sim:mem=64M,ops=mul_mat+add");
    REQUIRE(device != NULL);
    CHECK(!ggml_backend_is_cpu(device));
    ggml_backend_free(device);
    CHECK(ggml_backend_reg_init_backend_from_str("no such backend") == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "no such backend");
    CHECK(ggml_backend_reg_init_backend_from_str("SIM:what=is that") == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "what");
    CHECK(ggml_backend_reg_init_backend_from_str(NULL) == NULL);
    ggml_clear_error();
}

TEST_MAIN(TEST(compare_backends), TEST(copy_graph), TEST(graph_plans), TEST(multi_buffer),
    TEST(context_in_several_buffers), TEST(buffer_from_pointer), TEST(registry))
