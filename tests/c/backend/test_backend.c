// Backends on a fake device: forwarding, ordering, plans, and every kind of copy.
#include "test_fake.h"

static struct ggml_context * context(void) { return ggml_init((struct ggml_init_params){ 20000, NULL, true }); }

static struct ggml_tensor * placed(struct fake * f, struct ggml_context * ctx, int64_t ne0, int64_t ne1,
    ggml_backend_buffer_t * b) {
    struct ggml_tensor * t = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, ne0, ne1);
    *b = ggml_backend_buft_alloc_buffer(&f->buft, ggml_nbytes(t));
    ggml_backend_tensor_alloc(*b, t, ggml_backend_buffer_get_base(*b));
    return t;
}

static void fill(struct ggml_tensor * t, uint32_t seed) {
    for (size_t i = 0; i < ggml_nbytes(t) / 4; i++) {
        ((uint32_t *) t->data)[i] = seed + (uint32_t) i;
    }
}

static void nothing_crashes_on_null(void) {
    CHECK_STR(ggml_backend_name(NULL), "NULL");
    ggml_backend_free(NULL);
    CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_get_default_buffer_type(NULL) == NULL);
    CHECK(ggml_backend_alloc_buffer(NULL, 1) == NULL);
    CHECK_INT(ggml_backend_get_alignment(NULL), 0);
    CHECK_INT(ggml_backend_get_max_size(NULL), 0);
    CHECK_INT(ggml_backend_tensor_set_async(NULL, NULL, NULL, 0, 0), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_tensor_get_async(NULL, NULL, NULL, 0, 0), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_synchronize(NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK(ggml_backend_graph_plan_create(NULL, NULL) == NULL);
    ggml_backend_graph_plan_free(NULL, NULL);
    CHECK_INT(ggml_backend_graph_plan_compute(NULL, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK(!ggml_backend_graph_compute(NULL, NULL));
    CHECK(!ggml_backend_supports_op(NULL, NULL));
    CHECK(ggml_backend_unsupported_reason(NULL, NULL) != NULL);
    CHECK_INT(ggml_backend_tensor_copy(NULL, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_tensor_copy_async(NULL, NULL, NULL), GGML_STATUS_INVALID_ARGUMENT);
}

static void forwarding(void) {
    struct fake f;
    fake_new(&f);
    CHECK_STR(ggml_backend_name(&f.backend), "FAKE");
    CHECK(ggml_backend_get_default_buffer_type(&f.backend) == &f.buft);
    CHECK_INT(ggml_backend_get_alignment(&f.backend), 32);
    CHECK(ggml_backend_get_max_size(&f.backend) == SIZE_MAX);
    const ggml_backend_buffer_t b = ggml_backend_alloc_buffer(&f.backend, 10);
    CHECK(b && f.n_buffers == 1);
    ggml_backend_buffer_free(b);
    struct ggml_context * ctx = context();
    struct ggml_tensor * x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
    CHECK(ggml_backend_supports_op(&f.backend, ggml_add(ctx, x, x)));
    CHECK(ggml_backend_unsupported_reason(&f.backend, ggml_add(ctx, x, x)) == NULL);
    CHECK(!ggml_backend_supports_op(&f.backend, ggml_mul(ctx, x, x)));
    CHECK_STR(ggml_backend_unsupported_reason(&f.backend, ggml_mul(ctx, x, x)), "the backend gives no reason");
    f.backend.iface.get_default_buffer_type = NULL;
    CHECK(ggml_backend_alloc_buffer(&f.backend, 10) == NULL);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "FAKE");
    ggml_free(ctx);
}

static void hook_set_async(ggml_backend_t backend, struct ggml_tensor * t, const void * data, size_t offset,
    size_t size) {
    fake_device(backend)->n_async++;
    memcpy((char *) t->data + offset, data, size);
}

static void hook_get_async(ggml_backend_t backend, const struct ggml_tensor * t, void * data, size_t offset,
    size_t size) {
    fake_device(backend)->n_async++;
    memcpy(data, (const char *) t->data + offset, size);
}

static bool hook_copy_async(ggml_backend_t backend, const struct ggml_tensor * src, struct ggml_tensor * dst) {
    fake_device(backend)->n_async++;
    memcpy(dst->data, src->data, ggml_nbytes(dst));
    return true;
}

static void queued_access(void) {
    struct fake f, g;
    ggml_backend_buffer_t bt, bu;
    struct ggml_context * ctx = context();
    fake_new(&f);
    fake_new(&g);
    struct ggml_tensor * t = placed(&f, ctx, 4, 1, &bt);
    struct ggml_tensor * u = placed(&g, ctx, 4, 1, &bu); // memory of another device
    const float x[4] = { 1, 2, 3, 4 };
    float y[4];
    CHECK_INT(ggml_backend_tensor_set_async(&f.backend, t, x, 0, 16), GGML_STATUS_SUCCESS);
    CHECK(f.n_sync == 1 && f.n_set == 1); // without a hook the call waits for earlier work
    CHECK_INT(ggml_backend_tensor_get_async(&f.backend, t, y, 0, 16), GGML_STATUS_SUCCESS);
    CHECK(f.n_sync == 2 && y[3] == 4);
    f.backend.iface.set_tensor_async = hook_set_async;
    f.backend.iface.get_tensor_async = hook_get_async;
    CHECK_INT(ggml_backend_tensor_set_async(&f.backend, t, x, 4, 8), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_backend_tensor_get_async(&f.backend, t, y, 4, 8), GGML_STATUS_SUCCESS);
    CHECK(f.n_async == 2 && f.n_sync == 2 && y[0] == 1);
    CHECK_INT(ggml_backend_tensor_set_async(&f.backend, u, x, 0, 16), GGML_STATUS_SUCCESS);
    CHECK(f.n_async == 2 && g.n_set == 1);
    CHECK_INT(ggml_backend_tensor_set_async(&f.backend, t, x, 8, 9), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_tensor_get_async(&f.backend, t, NULL, 8, 4), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_tensor_get_async(&f.backend, ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1), y, 0, 4),
        GGML_STATUS_INVALID_STATE);
    f.backend.iface.synchronize = NULL;
    CHECK_INT(ggml_backend_synchronize(&f.backend), GGML_STATUS_SUCCESS);
    ggml_backend_buffer_free(bt);
    ggml_backend_buffer_free(bu);
    ggml_free(ctx);
}

static void computing_and_plans(void) {
    struct fake f;
    struct ggml_context * ctx = context();
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
    fake_new(&f);
    for (int i = 0; i < 13; i++) {
        t = ggml_sqr(ctx, t);
    }
    ggml_build_forward_expand(graph, t);
    CHECK(!ggml_backend_graph_compute(&f.backend, graph));
    CHECK_ERROR(GGML_STATUS_FAILED, "FAKE could not compute");
    const ggml_backend_graph_plan_t plan = ggml_backend_graph_plan_create(&f.backend, graph);
    REQUIRE(plan);
    CHECK_INT(ggml_backend_graph_plan_compute(&f.backend, plan), GGML_STATUS_FAILED);
    graph->n_nodes = 0; // the plan has its own list of nodes
    CHECK_INT(ggml_backend_graph_plan_compute(&f.backend, plan), GGML_STATUS_FAILED);
    CHECK_INT(f.n_compute, 3);
    ggml_clear_error();
    ggml_backend_graph_plan_free(&f.backend, plan);
    CHECK(ggml_backend_graph_compute(&f.backend, graph));
    graph->n_nodes = 1;
    graph->nodes[0] = NULL;
    CHECK(!ggml_backend_graph_compute(&f.backend, graph));
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "node 0");
    CHECK_INT(f.n_compute, 4);
    f.backend.iface.graph_compute = NULL;
    CHECK(!ggml_backend_graph_compute(&f.backend, graph));
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "FAKE");
    ggml_free(ctx);
}

// Two devices or hosts, each with a tensor of the same shape.
struct pair {
    struct fake f, g;
    ggml_backend_buffer_t bs, bd;
    struct ggml_context * ctx;
    struct ggml_tensor * src; // on f
    struct ggml_tensor * dst; // on g
};

// hosts: bit 0 makes f a host, bit 1 makes g one.
static void pair_new(struct pair * p, int hosts, int64_t ne0, int64_t ne1) {
    p->ctx = context();
    fake_new(&p->f);
    fake_new(&p->g);
    p->f.host = hosts & 1;
    p->g.host = hosts & 2;
    p->src = placed(&p->f, p->ctx, ne0, ne1, &p->bs);
    p->dst = placed(&p->g, p->ctx, ne0, ne1, &p->bd);
}

static void pair_free(struct pair * p) {
    ggml_backend_buffer_free(p->bs);
    ggml_backend_buffer_free(p->bd);
    ggml_free(p->ctx);
}

// Every combination of a host and a device, with and without hooks.
static void copies(void) {
    for (int way = 0; way < 16; way++) {
        struct pair p;
        pair_new(&p, way & 3, 1000, 700); // larger than one staging step
        p.f.copies_out = way & 4;
        p.g.copies_in = way & 8;
        fill(p.src, 17);
        CHECK_INT(ggml_backend_tensor_copy(p.src, p.dst), GGML_STATUS_SUCCESS);
        CHECK(memcmp(p.src->data, p.dst->data, ggml_nbytes(p.src)) == 0);
        CHECK_INT(p.g.n_copy_in, p.f.host || p.g.host ? 0 : 1);
        CHECK_INT(p.f.n_copy_out, p.f.host || p.g.host || p.g.copies_in ? 0 : 1);
        CHECK_INT(p.f.n_get, way == 0 ? 3 : p.g.host && !p.f.host ? 1 : 0);
        CHECK_INT(p.g.n_set, way == 0 ? 3 : p.f.host ? 1 : 0);
        CHECK(way != 0 || p.f.largest_get <= 1 << 20);
        CHECK_INT(ggml_backend_tensor_copy(p.src, p.src), GGML_STATUS_SUCCESS);
        pair_free(&p);
    }
}

static void copies_that_fail(void) {
    struct pair p;
    ggml_backend_buffer_t bo;
    pair_new(&p, 0, 4, 4);
    struct ggml_tensor * other = placed(&p.g, p.ctx, 4, 5, &bo);
    struct ggml_tensor * unplaced = ggml_new_tensor_2d(p.ctx, GGML_TYPE_F32, 4, 4);
    CHECK_INT(ggml_backend_tensor_copy(p.src, other), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "[4, 5]");
    CHECK_INT(ggml_backend_tensor_copy(p.src, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_tensor_copy(p.src, unplaced), GGML_STATUS_INVALID_STATE);
    p.g.fail_copy = 1; // a failed hook is an error, not a missing hook
    CHECK_INT(ggml_backend_tensor_copy(p.src, p.dst), GGML_STATUS_DEVICE_ERROR);
    CHECK_INT(p.f.n_get, 0);
    p.f.fail_get = 1;
    CHECK_INT(ggml_backend_tensor_copy(p.src, p.dst), GGML_STATUS_DEVICE_ERROR);
    ggml_clear_error();
    const int64_t live = gb_test_live_allocs();
    gb_test_fail_alloc(1, false);
    CHECK_INT(ggml_backend_tensor_copy(p.src, p.dst), GGML_STATUS_ALLOC_FAILED);
    gb_test_fail_alloc(0, false);
    CHECK_INT(gb_test_live_allocs(), live);
    ggml_backend_buffer_free(bo);
    pair_free(&p);
}

// A copy does not overwrite bytes between the rows or elements of a view.
static void copies_of_views(void) {
    for (int way = 0; way < 8; way++) {
        struct pair p;
        pair_new(&p, way & 3, 10, 6);
        struct ggml_tensor * from = ggml_view_2d(p.ctx, p.src, 4, 5, p.src->nb[1], 8);
        struct ggml_tensor * into = ggml_view_2d(p.ctx, p.dst, 4, 5, p.dst->nb[1], 12);
        if (way & 4) { // a view whose columns are rows
            from = ggml_transpose(p.ctx, from);
            into = ggml_transpose(p.ctx, into);
        }
        if (!from->buffer) {
            REQUIRE(ggml_backend_view_init(p.bs, from) == GGML_STATUS_SUCCESS);
        }
        if (!into->buffer) {
            REQUIRE(ggml_backend_view_init(p.bd, into) == GGML_STATUS_SUCCESS);
        }
        fill(p.src, 1000);
        fill(p.dst, 5000);
        CHECK_INT(ggml_backend_tensor_copy(from, into), GGML_STATUS_SUCCESS);
        for (uint32_t row = 0; row < 6; row++) {
            for (uint32_t col = 0; col < 10; col++) {
                const bool in = row < 5 && col >= 3 && col < 7;
                const uint32_t is = ((uint32_t *) p.dst->data)[row * 10 + col];
                CHECK_INT(is, in ? 1000 + row * 10 + col - 1 : 5000 + row * 10 + col);
            }
        }
        CHECK(p.g.n_copy_in == 0);
        pair_free(&p);
    }
}

static void queued_copies(void) {
    struct fake f, g;
    ggml_backend_buffer_t bs, bd, bo;
    struct ggml_context * ctx = context();
    fake_new(&f);
    fake_new(&g);
    struct ggml_tensor * src = placed(&f, ctx, 4, 4, &bs);
    struct ggml_tensor * dst = placed(&f, ctx, 4, 4, &bd);
    struct ggml_tensor * other = placed(&g, ctx, 4, 4, &bo);
    fill(src, 3);
    CHECK_INT(ggml_backend_tensor_copy_async(&f.backend, src, dst), GGML_STATUS_SUCCESS);
    CHECK(f.n_sync == 1 && memcmp(src->data, dst->data, 64) == 0);
    f.backend.iface.cpy_tensor_async = hook_copy_async;
    fill(src, 4);
    CHECK_INT(ggml_backend_tensor_copy_async(&f.backend, src, dst), GGML_STATUS_SUCCESS);
    CHECK(f.n_sync == 1 && f.n_async == 1 && memcmp(src->data, dst->data, 64) == 0);
    CHECK_INT(ggml_backend_tensor_copy_async(&f.backend, src, other), GGML_STATUS_SUCCESS); // memory of another device
    CHECK(f.n_sync == 2 && f.n_async == 1 && memcmp(src->data, other->data, 64) == 0);
    CHECK_INT(ggml_backend_tensor_copy_async(&f.backend, src, src), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_backend_tensor_copy_async(&f.backend, src, NULL), GGML_STATUS_INVALID_ARGUMENT);
    ggml_backend_buffer_free(bs);
    ggml_backend_buffer_free(bd);
    ggml_backend_buffer_free(bo);
    ggml_free(ctx);
}

TEST_MAIN(TEST(nothing_crashes_on_null), TEST(forwarding), TEST(queued_access), TEST(computing_and_plans), TEST(copies),
    TEST(copies_that_fail), TEST(copies_of_views), TEST(queued_copies))
