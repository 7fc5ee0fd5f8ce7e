// test_event.c - events of backends with event hooks, with a queue but no events, and with neither.
// Also the versions of buffers, which change with each write.
#include "backend/backend.h"
#include "base/env.h"
#include "base/mem.h"
#include "test.h"
#include "test_place.h"
#include "test_queue.h"

static void unrecorded_events_are_complete(void) {
    OPEN(p, "SIM:name=A CPU");
    for (int i = 0; i < p.n; i++) {
        ggml_backend_event_t e = ggml_backend_event_new(p.backends[i]);
        REQUIRE(e != NULL);
        OK(ggml_backend_event_synchronize(e));
        OK(ggml_backend_event_wait(p.backends[1 - i], e));
        OK(ggml_backend_event_record(e));
        OK(ggml_backend_event_synchronize(e));
        ggml_backend_event_free(e);
    }
    ggml_backend_event_free(NULL);
    CHECK(ggml_backend_event_new(NULL) == NULL);
    CHECK_INT(ggml_backend_event_record(NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_event_synchronize(NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_event_wait(p.backends[0], NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_event_wait(NULL, NULL), GGML_STATUS_INVALID_ARGUMENT);
    close_place(&p);
}

// A slow device sets a tensor, and a fast device copies it. Only the event keeps the order, without
// blocking the host.
static void devices_wait_for_each_other(void) {
    OPEN(p, "SIM:name=A,copy_delay=30ms SIM:name=B");
    struct ggml_tensor *a = put(&p, leaf(&p, "a", 4, 1), 0, false), *b = put(&p, leaf(&p, "b", 4, 1), 1, false);
    const float ones[4] = { 1, 1, 1, 1 };
    ggml_backend_event_t e = ggml_backend_event_new(p.backends[0]);
    CHECK(gb_backend_waits_for(p.backends[1], p.backends[0]));
    int64_t held_up = INT64_MAX;
    for (int i = 0; i < BUSY_TRIES && held_up >= 30000000; i++) {
        const int64_t start = gb_time_ns();
        OK(ggml_backend_tensor_set_async(p.backends[0], a, ones, 0, sizeof(ones)));
        OK(ggml_backend_event_record(e));
        OK(ggml_backend_event_wait(p.backends[1], e));
        CHECK(p.backends[1]->iface.cpy_tensor_peer_async(p.backends[1], a, b));
        held_up = gb_time_ns() - start;
        OK(ggml_backend_synchronize(p.backends[1]));
        CHECK(gb_time_ns() - start >= 30000000);
        CHECK_AT(b, 3, 1);
    }
    CHECK_MSG(held_up < 30000000, "the host was held up for %lld us", (long long) held_up / 1000);
    ggml_backend_event_free(e);
    close_place(&p);
}

static void an_event_is_a_point_not_the_end(void) {
    OPEN(p, "SIM:name=A,copy_delay=20ms");
    struct ggml_tensor * a = put(&p, leaf(&p, "a", 4, 1), 0, false);
    const float ones[4] = { 1, 1, 1, 1 };
    ggml_backend_event_t e = ggml_backend_event_new(p.backends[0]);
    int64_t waited = INT64_MAX;
    for (int i = 0; i < BUSY_TRIES && waited >= 200000000; i++) {
        const int64_t start = gb_time_ns();
        OK(ggml_backend_tensor_set_async(p.backends[0], a, ones, 0, sizeof(ones)));
        OK(ggml_backend_event_record(e));
        for (int k = 0; k < 10; k++) {
            OK(ggml_backend_tensor_set_async(p.backends[0], a, ones, 0, sizeof(ones)));
        }
        OK(ggml_backend_event_synchronize(e));
        waited = gb_time_ns() - start;
        OK(ggml_backend_synchronize(p.backends[0]));
        CHECK(gb_time_ns() - start >= 220000000);
    }
    CHECK_MSG(waited < 200000000, "the event came after %lld us", (long long) waited / 1000);
    ggml_backend_event_free(e);
    close_place(&p);
}

// Without events, a wait is for the whole queue.
static void queues_without_events(void) {
    ggml_backend_t q = queue_device_new(0, 2000), sim = ggml_backend_reg_init_backend_from_str("SIM");
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 16, NULL, false });
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    struct ggml_tensor *x = ggml_set_f32(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4), 2), *y = ggml_sqr(ctx, x);
    ggml_build_forward_expand(graph, y);
    CHECK(!gb_backend_waits_for(sim, q) && !gb_backend_waits_for(q, sim));
    ggml_backend_event_t e = ggml_backend_event_new(q);
    CHECK(ggml_backend_graph_compute(q, graph));
    OK(ggml_backend_event_record(e));
    OK(ggml_backend_event_wait(sim, e));
    CHECK(ggml_get_f32_1d(y, 3) == 4);
    ggml_backend_event_free(e);
    ggml_backend_free(q);
    ggml_backend_free(sim);
    ggml_free(ctx);
}

// If the marked work fails, a wait on the host for the event reports it. The next synchronize of
// its device reports it, too.
static void failures(void) {
    OPEN(p, "SIM:name=A,fail_op=sqr SIM:name=B");
    struct ggml_tensor *x = put(&p, leaf(&p, "x", 4, 1), 0, false), *y = ggml_sqr(p.ctx, x);
    put(&p, y, 0, false);
    expand(&p, y);
    ggml_backend_event_t e = ggml_backend_event_new(p.backends[0]);
    CHECK(ggml_backend_graph_compute(p.backends[0], p.graph));
    OK(ggml_backend_event_record(e));
    OK(ggml_backend_event_wait(p.backends[1], e));
    OK(ggml_backend_synchronize(p.backends[1]));
    CHECK_INT(ggml_backend_event_synchronize(e), GGML_STATUS_DEVICE_ERROR);
    CHECK_INT(ggml_backend_synchronize(p.backends[0]), GGML_STATUS_DEVICE_ERROR);
    OK(ggml_backend_event_synchronize(e));
    gb_test_fail_alloc(1, false);
    CHECK(ggml_backend_event_new(p.backends[0]) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "");
    gb_test_fail_alloc(1, false);
    CHECK(ggml_backend_event_new(p.backends[1]) == NULL);
    gb_test_fail_alloc(0, false);
    ggml_backend_event_free(e);
    close_place(&p);
}

// A queued wait outlives the event and the event's device.
static void waits_outlive_the_event_and_its_device(void) {
    ggml_backend_t a = ggml_backend_reg_init_backend_from_str("SIM"), b = ggml_backend_reg_init_backend_from_str("SIM");
    ggml_backend_event_t e = ggml_backend_event_new(a);
    OK(ggml_backend_event_record(e));
    OK(ggml_backend_event_wait(b, e));
    ggml_backend_event_free(e);
    ggml_backend_free(a);
    OK(ggml_backend_synchronize(b));
    ggml_backend_free(b);
}

#define CHANGES(buffer, call)                                                   \
    do {                                                                        \
        const uint64_t before_ = (buffer)->version;                             \
        call;                                                                   \
        CHECK_MSG((buffer)->version > before_, "%s leaves the version", #call); \
    } while (0)

#define LEAVES(buffer, call)                                                      \
    do {                                                                          \
        const uint64_t before_ = (buffer)->version;                               \
        call;                                                                     \
        CHECK_MSG((buffer)->version == before_, "%s changes the version", #call); \
    } while (0)

static void every_write_changes_the_version(void) {
    OPEN(p, "SIM:name=A CPU");
    for (int i = 0; i < 2; i++) {
        struct ggml_cgraph * graph = ggml_new_graph(p.ctx);
        struct ggml_tensor *x = put(&p, leaf(&p, "x", 4, 1), i, false), *y = put(&p, leaf(&p, "y", 4, 1), i, false),
                           *z = ggml_sqr(p.ctx, x), *v;
        const float f[4] = { 1, 2, 3, 4 };
        float g[4];
        put(&p, z, i, false);
        v = ggml_view_1d(p.ctx, x, 2, 4);
        OK(ggml_backend_view_init(x->buffer, v));
        ggml_build_forward_expand(graph, z);
        CHECK(x->buffer->version != y->buffer->version);
        CHANGES(x->buffer, OK(ggml_backend_tensor_set(x, f, 0, 16)));
        CHANGES(x->buffer, OK(ggml_backend_tensor_set(v, f, 0, 8)));
        CHANGES(x->buffer, OK(ggml_backend_tensor_set_async(p.backends[i], x, f, 0, 16)));
        CHANGES(x->buffer, OK(ggml_backend_tensor_copy(y, x)));
        CHANGES(x->buffer, OK(ggml_backend_tensor_copy_async(p.backends[i], y, x)));
        CHANGES(x->buffer, CHECK(ggml_backend_buffer_copy_tensor(y, x)));
        CHANGES(x->buffer, OK(ggml_backend_buffer_clear(x->buffer, 0)));
        CHANGES(x->buffer, OK(ggml_backend_buffer_reset(x->buffer)));
        CHANGES(x->buffer, OK(ggml_backend_buffer_set_usage(x->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS)));
        CHANGES(x->buffer, OK(ggml_backend_buffer_changed(x->buffer)));
        CHANGES(z->buffer, CHECK(ggml_backend_graph_compute(p.backends[i], graph)));
        LEAVES(x->buffer, CHECK(ggml_backend_graph_compute(p.backends[i], graph)));
        ggml_backend_graph_plan_t plan = ggml_backend_graph_plan_create(p.backends[i], graph);
        CHANGES(z->buffer, OK(ggml_backend_graph_plan_compute(p.backends[i], plan)));
        LEAVES(x->buffer, OK(ggml_backend_graph_plan_compute(p.backends[i], plan)));
        LEAVES(x->buffer, OK(ggml_backend_tensor_get(x, g, 0, 16)));
        LEAVES(y->buffer, OK(ggml_backend_tensor_copy(y, x)));
        OK(ggml_backend_synchronize(p.backends[i]));
        ggml_backend_graph_plan_free(p.backends[i], plan);
    }
    ggml_backend_buffer_t parts[] = { ggml_backend_alloc_buffer(p.backends[0], 64),
        ggml_backend_alloc_buffer(p.backends[1], 64) };
    ggml_backend_buffer_t multi = ggml_backend_multi_buffer_alloc_buffer(parts, 2);
    CHANGES(parts[1], OK(ggml_backend_buffer_changed(multi)));
    CHANGES(parts[0], OK(ggml_backend_buffer_clear(multi, 0)));
    ggml_backend_buffer_free(multi);
    CHECK_INT(ggml_backend_buffer_changed(NULL), GGML_STATUS_INVALID_ARGUMENT);
    close_place(&p);
}

TEST_MAIN(TEST(unrecorded_events_are_complete), TEST(devices_wait_for_each_other),
    TEST(an_event_is_a_point_not_the_end), TEST(queues_without_events), TEST(failures),
    TEST(waits_outlive_the_event_and_its_device), TEST(every_write_changes_the_version))
