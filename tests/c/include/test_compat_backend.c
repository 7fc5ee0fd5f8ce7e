// test_compat_backend.c - a third-party backend as written in early 2024: only public headers, and
// positional initialisers without newer fields. Its device stores every byte inverted, so access
// without the hooks is detected. It computes ADD and MUL of F32. The CPU computes the rest.
#include "compat.h"

#include "ggml-backend-impl.h"

#if defined(__GNUC__)
#    pragma GCC diagnostic ignored "-Wmissing-field-initializers" // later hooks are missing
#endif

static int n_buffers, n_backends, n_computed;

// ------------------------------------------------------------------------------------------------------------- buffers

static const char * inv_buffer_name(ggml_backend_buffer_t buffer) {
    GGML_UNUSED(buffer);
    return "INV_Buffer";
}

static void inv_buffer_free(ggml_backend_buffer_t buffer) {
    free(buffer->context);
    n_buffers--;
}

static void * inv_buffer_base(ggml_backend_buffer_t buffer) { return buffer->context; }

static void invert(uint8_t * to, const uint8_t * from, size_t size) {
    for (size_t i = 0; i < size; i++) {
        to[i] = (uint8_t) ~from[i];
    }
}

static void inv_set_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor, const void * data, size_t offset,
    size_t size) {
    GGML_UNUSED(buffer);
    invert((uint8_t *) tensor->data + offset, data, size);
}

static void inv_get_tensor(ggml_backend_buffer_t buffer, const struct ggml_tensor * tensor, void * data, size_t offset,
    size_t size) {
    GGML_UNUSED(buffer);
    invert(data, (const uint8_t *) tensor->data + offset, size);
}

static void inv_clear(ggml_backend_buffer_t buffer, uint8_t value) { memset(buffer->context, ~value, buffer->size); }

static const struct ggml_backend_buffer_i inv_buffer_i = {
    /* .get_name    = */ inv_buffer_name,
    /* .free_buffer = */ inv_buffer_free,
    /* .get_base    = */ inv_buffer_base,
    /* .init_tensor = */ NULL,
    /* .set_tensor  = */ inv_set_tensor,
    /* .get_tensor  = */ inv_get_tensor,
    /* .cpy_tensor  = */ NULL,
    /* .clear       = */ inv_clear,
    /* .reset       = */ NULL,
};

static const char * inv_buft_name(ggml_backend_buffer_type_t buft) {
    GGML_UNUSED(buft);
    return "INV";
}

static ggml_backend_buffer_t inv_buft_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    void * memory = aligned_alloc(64, GGML_PAD(size + 64, 64));
    if (memory == NULL) {
        return NULL;
    }
    n_buffers++;
    return ggml_backend_buffer_init(buft, inv_buffer_i, memory, size);
}

static size_t inv_buft_alignment(ggml_backend_buffer_type_t buft) {
    GGML_UNUSED(buft);
    return 64;
}

static const char * inv_name(ggml_backend_t backend);

static bool inv_buft_supports(ggml_backend_buffer_type_t buft, ggml_backend_t backend) {
    GGML_UNUSED(buft);
    return backend->iface.get_name == inv_name;
}

static ggml_backend_buffer_type_t inv_buffer_type(void) {
    static struct ggml_backend_buffer_type buft = {
        /* .iface = */ {
            /* .get_name         = */ inv_buft_name,
            /* .alloc_buffer     = */ inv_buft_alloc,
            /* .get_alignment    = */ inv_buft_alignment,
            /* .get_max_size     = */ NULL,
            /* .get_alloc_size   = */ NULL,
            /* .supports_backend = */ inv_buft_supports,
            /* .is_host          = */ NULL,
        },
        /* .context = */ NULL,
    };
    return &buft;
}

// ------------------------------------------------------------------------------------------------------------- backend

static const char * inv_name(ggml_backend_t backend) {
    GGML_UNUSED(backend);
    return "INV";
}

static void inv_free(ggml_backend_t backend) {
    free(backend);
    n_backends--;
}

static ggml_backend_buffer_type_t inv_default_buffer_type(ggml_backend_t backend) {
    GGML_UNUSED(backend);
    return inv_buffer_type();
}

static float inv_load(const struct ggml_tensor * t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const size_t offset =
        (size_t) i0 * t->nb[0] + (size_t) i1 * t->nb[1] + (size_t) i2 * t->nb[2] + (size_t) i3 * t->nb[3];
    float f;
    invert((uint8_t *) &f, (const uint8_t *) t->data + offset, sizeof(f));
    return f;
}

static bool inv_compute(ggml_backend_t backend, struct ggml_cgraph * cgraph) {
    GGML_UNUSED(backend);
    for (int i = 0; i < cgraph->n_nodes; i++) {
        struct ggml_tensor * dst = cgraph->nodes[i];
        if (dst->op != GGML_OP_ADD && dst->op != GGML_OP_MUL) {
            continue; // views
        }
        const struct ggml_tensor *src0 = dst->src[0], *src1 = dst->src[1];
        n_computed++;
        for (int64_t k = 0; k < ggml_nelements(dst); k++) {
            int64_t i0, i1, i2, i3;
            ggml_unravel_index(dst, k, &i0, &i1, &i2, &i3);
            const float a = inv_load(src0, i0, i1, i2, i3);
            const float b = inv_load(src1, i0 % src1->ne[0], i1 % src1->ne[1], i2 % src1->ne[2], i3 % src1->ne[3]);
            const float c = dst->op == GGML_OP_ADD ? a + b : a * b;
            invert((uint8_t *) dst->data + (size_t) i0 * dst->nb[0] + (size_t) i1 * dst->nb[1] +
                       (size_t) i2 * dst->nb[2] + (size_t) i3 * dst->nb[3],
                (const uint8_t *) &c, sizeof(c));
        }
    }
    return true;
}

static bool inv_supports(ggml_backend_t backend, const struct ggml_tensor * op) {
    GGML_UNUSED(backend);
    switch (op->op) {
        case GGML_OP_NONE:
        case GGML_OP_RESHAPE:
        case GGML_OP_VIEW:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE: return true;
        case GGML_OP_ADD:
        case GGML_OP_MUL:
            return op->type == GGML_TYPE_F32 && op->src[0]->type == GGML_TYPE_F32 && op->src[1]->type == GGML_TYPE_F32;
        default: return false;
    }
}

static const struct ggml_backend_i inv_i = {
    /* .get_name                = */ inv_name,
    /* .free                    = */ inv_free,
    /* .get_default_buffer_type = */ inv_default_buffer_type,
    /* .set_tensor_async        = */ NULL,
    /* .get_tensor_async        = */ NULL,
    /* .cpy_tensor_async        = */ NULL,
    /* .synchronize             = */ NULL,
    /* .graph_plan_create       = */ NULL,
    /* .graph_plan_free         = */ NULL,
    /* .graph_plan_compute      = */ NULL,
    /* .graph_compute           = */ inv_compute,
    /* .supports_op             = */ inv_supports,
};

static char params_seen[64];

static ggml_backend_t inv_init(const char * params, void * user_data) {
    snprintf(params_seen, sizeof(params_seen), "%s", params ? params : "(none)");
    CHECK(user_data == params_seen);
    ggml_backend_t backend = malloc(sizeof(struct ggml_backend));
    *backend = (struct ggml_backend){
        /* .interface = */ inv_i,
        /* .context   = */ NULL,
    };
    n_backends++;
    return backend;
}

static bool registered(void) {
    if (ggml_backend_reg_find_by_name("INV") == SIZE_MAX) {
        ggml_backend_register("INV", inv_init, inv_buffer_type(), params_seen);
    }
    return ggml_backend_reg_find_by_name("INV") != SIZE_MAX;
}

// --------------------------------------------------------------------------------------------------------------- tests

static void by_name(void) {
    const size_t before = ggml_backend_reg_get_count();
    REQUIRE(registered());
    const size_t i = ggml_backend_reg_find_by_name("inv");
    CHECK(i == before && ggml_backend_reg_get_count() == before + 1);
    CHECK_STR(ggml_backend_reg_get_name(i), "INV");
    CHECK(ggml_backend_reg_get_default_buffer_type(i) == inv_buffer_type());
    ggml_backend_t backend = ggml_backend_reg_init_backend_from_str("INV:some=thing");
    REQUIRE(backend != NULL);
    CHECK_STR(params_seen, "some=thing");
    CHECK_STR(ggml_backend_name(backend), "INV");
    CHECK_INT(ggml_backend_get_alignment(backend), 64);
    CHECK(ggml_backend_get_max_size(backend) == SIZE_MAX);
    ggml_backend_free(backend);
    ggml_backend_buffer_t buffer = ggml_backend_reg_alloc_buffer(i, 100);
    REQUIRE(buffer != NULL);
    CHECK_STR(ggml_backend_buffer_name(buffer), "INV_Buffer");
    CHECK(!ggml_backend_buffer_is_host(buffer));
    ggml_backend_buffer_clear(buffer, 0x0f);
    CHECK_INT(*(uint8_t *) ggml_backend_buffer_get_base(buffer), 0xf0);
    ggml_backend_buffer_free(buffer);
    CHECK(n_buffers == 0 && n_backends == 0);
}

static void tensors_and_copies(void) {
    REQUIRE(registered());
    ggml_backend_t inv = ggml_backend_reg_init_backend_from_str("INV");
    ggml_backend_t cpu = ggml_backend_cpu_init();
    struct ggml_init_params params = { 8 * ggml_tensor_overhead(), NULL, true };
    struct ggml_context * ctx_a = ggml_init(params);
    struct ggml_context * ctx_b = ggml_init(params);
    struct ggml_tensor * a = ggml_new_tensor_2d(ctx_a, GGML_TYPE_F32, 5, 3);
    struct ggml_tensor * a2 = ggml_new_tensor_2d(ctx_a, GGML_TYPE_F32, 5, 3);
    struct ggml_tensor * b = ggml_new_tensor_2d(ctx_b, GGML_TYPE_F32, 5, 3);
    ggml_backend_buffer_t on_inv = ggml_backend_alloc_ctx_tensors(ctx_a, inv);
    ggml_backend_buffer_t on_cpu = ggml_backend_alloc_ctx_tensors(ctx_b, cpu);
    REQUIRE(on_inv != NULL && on_cpu != NULL);
    float data[15], back[15];
    model_random(data, 15);
    ggml_backend_tensor_set(b, data, 0, sizeof(data));
    ggml_backend_tensor_copy(b, a); // host to device
    ggml_backend_tensor_copy(a, a2); // within the device, which has no hook for it
    ggml_backend_buffer_clear(on_cpu, 0);
    ggml_backend_tensor_copy_async(inv, a2, b); // device to host; synchronous, because there is no hook
    ggml_backend_synchronize(inv);
    ggml_backend_tensor_get(b, back, 0, sizeof(back));
    CHECK(memcmp(data, back, sizeof(data)) == 0);
    ggml_backend_tensor_get_async(inv, a2, back, 20, 20); // a row
    CHECK(memcmp(data + 5, back, 20) == 0);
    ggml_free(ctx_a);
    ggml_free(ctx_b);
    ggml_backend_buffer_free(on_inv);
    ggml_backend_buffer_free(on_cpu);
    ggml_backend_free(inv);
    ggml_backend_free(cpu);
    CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS);
}

static void under_the_scheduler(void) {
    REQUIRE(registered());
    ggml_backend_t backends[3] = { ggml_backend_reg_init_backend_from_str("INV"),
        ggml_backend_reg_init_backend_from_str("SIM"), ggml_backend_cpu_init() };
    ggml_backend_sched_t sched = ggml_backend_sched_new(backends, NULL, 3, GGML_DEFAULT_GRAPH_SIZE);
    struct model model;
    REQUIRE(sched != NULL && model_new(&model));
    ggml_backend_buffer_t bias = ggml_backend_alloc_buffer(backends[0], 1024); // bias on INV, matrices on the CPU
    ggml_backend_buffer_set_usage(bias, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_tallocr_t alloc = ggml_tallocr_new_from_buffer(bias);
    ggml_tallocr_alloc(alloc, model.b1);
    ggml_tallocr_free(alloc);
    ggml_backend_buffer_t matrices = ggml_backend_alloc_ctx_tensors(model.ctx, backends[2]);
    REQUIRE(bias != NULL && matrices != NULL);
    ggml_backend_buffer_set_usage(matrices, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    model_upload(&model);

    struct ggml_init_params params = { 64 * ggml_tensor_overhead() + ggml_graph_overhead(), NULL, true };
    struct ggml_context * ctx = ggml_init(params);
    struct ggml_cgraph * gf = ggml_new_graph(ctx);
    struct ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, N_IN, 3);
    ggml_set_input(x);
    struct ggml_tensor * y = model_build(ctx, &model, x);
    ggml_build_forward_expand(gf, y);
    REQUIRE(ggml_backend_sched_alloc_graph(sched, gf) == GGML_STATUS_SUCCESS);
    n_computed = 0;
    for (int pass = 0; pass < 2; pass++) {
        float x_data[N_IN * 3];
        model_random(x_data, N_IN * 3);
        ggml_backend_tensor_set(x, x_data, 0, ggml_nbytes(x));
        CHECK_INT(ggml_backend_sched_graph_compute(sched, gf), GGML_STATUS_SUCCESS);
        MODEL_CHECK(&model, x_data, 3, y);
    }
    CHECK(n_computed >= 2); // it added the bias at least
    ggml_backend_sched_free(sched);
    ggml_free(ctx);
    ggml_free(model.ctx);
    ggml_backend_buffer_free(bias);
    ggml_backend_buffer_free(matrices);
    for (int i = 0; i < 3; i++) {
        ggml_backend_free(backends[i]);
    }
    CHECK(n_buffers == 0 && n_backends == 0);
    CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS);
}

static void hooks_it_lacks(void) {
    REQUIRE(registered());
    ggml_backend_t inv = ggml_backend_reg_init_backend_from_str("INV");
    struct ggml_init_params params = { 16 * ggml_tensor_overhead() + ggml_graph_overhead(), NULL, true };
    struct ggml_context * ctx = ggml_init(params);
    struct ggml_tensor * a = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
    CHECK(ggml_backend_supports_op(inv, ggml_add(ctx, a, a)));
    CHECK(!ggml_backend_supports_op(inv, ggml_relu(ctx, a)));
    CHECK(ggml_backend_unsupported_reason(inv, ggml_relu(ctx, a)) != NULL);
    // without plan hooks, the library keeps the graph
    struct ggml_cgraph * gf = ggml_new_graph(ctx);
    struct ggml_tensor * sum = ggml_add(ctx, a, a);
    ggml_build_forward_expand(gf, sum);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, inv);
    ggml_backend_graph_plan_t plan = ggml_backend_graph_plan_create(inv, gf);
    REQUIRE(buffer != NULL && plan != NULL);
    ggml_graph_clear(gf);
    const float in[4] = { 1, 2, 3, 4 };
    float out[4];
    ggml_backend_tensor_set(a, in, 0, sizeof(in));
    CHECK_INT(ggml_backend_graph_plan_compute(inv, plan), GGML_STATUS_SUCCESS);
    ggml_backend_tensor_get(sum, out, 0, sizeof(out));
    CHECK(out[0] == 2 && out[3] == 8);
    ggml_backend_graph_plan_free(inv, plan);
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    ggml_backend_free(inv);
}

TEST_MAIN(TEST(by_name), TEST(tensors_and_copies), TEST(under_the_scheduler), TEST(hooks_it_lacks))
