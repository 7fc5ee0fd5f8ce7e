// test_sched_memory.c - buffers and contexts whose addresses are reused, and devices with little memory.
#include "base/mem.h"
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "sched/plan.h"
#include "test.h"
#include "test_alloc.h"
#include "test_place.h"
#include "test_queue.h"

// ------------------------------------------------------------------------------------------- addresses that are reused

// Frees the buffer of w and puts a new one behind the same handle, as if the allocator had returned
// the old addresses. Places w in it again.
static void place_again(struct place * p, struct ggml_tensor * w, int device, float value) {
    ggml_backend_buffer_t handle = p->buffers[0];
    handle->iface.free_buffer(handle);
    ggml_backend_buffer_t next = ggml_backend_alloc_buffer(p->backends[device], ggml_nbytes(w));
    *handle = *next;
    next->iface.free_buffer = NULL;
    ggml_backend_buffer_free(next);
    ggml_backend_buffer_set_usage(handle, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    w->buffer = NULL;
    w->data = NULL;
    OK(ggml_backend_tensor_alloc(handle, w, ggml_backend_buffer_get_base(handle)));
    fill(w, value, 0);
}

// Weights are freed and allocated again, each time with other values.
static void weights_are_replaced(void) {
    OPEN(p, "SIM:name=A SIM:name=B CPU");
    struct ggml_tensor *w = put(&p, leaf(&p, "w", 256, 1), 0, true), *x = leaf(&p, "x", 256, 1),
                       *y = ggml_mul(p.ctx, w, x);
    expand(&p, y);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 3, 0);
    fill(w, 1, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(y, 255, 3);
    for (int i = 0; i < 30; i++) {
        place_again(&p, w, i % 3 == 2 ? 2 : 0, (float) i);
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        CHECK_AT(y, 255, 3 * (float) i);
    }
    close_place(&p);
}

// The device of the weights changes, but handle and address stay the same, as when memory is mapped
// again.
static void weights_change_their_device(void) {
    OPEN(p, "SIM:name=A CPU");
    struct ggml_tensor *w = put(&p, leaf(&p, "w", 4, 1), 1, true), *x = leaf(&p, "x", 4, 1), *y = ggml_mul(p.ctx, w, x);
    expand(&p, y);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 3, 0);
    fill(w, 2, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK(ggml_backend_sched_get_node_backend(p.sched, y) == p.backends[1]);
    ggml_backend_buffer_t other = ggml_backend_alloc_buffer(p.backends[0], 16);
    struct ggml_backend_buffer mine = *p.buffers[0];
    *p.buffers[0] = *other; // the same handle now belongs to the device
    w->data = ggml_backend_buffer_get_base(p.buffers[0]);
    // the plan has this address, too, as if the memory was there before
    gb_key_of(&p.sched->plans.data[0]->in.keys, gb_ptrmap_get(&p.sched->plans.data[0]->in.map, w))->data = w->data;
    fill(w, 5, 0);
    p.buffers[0]->usage = GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK(ggml_backend_sched_get_node_backend(p.sched, y) == p.backends[0]);
    CHECK_AT(y, 3, 15);
    *p.buffers[0] = mine;
    ggml_backend_buffer_free(other);
    close_place(&p);
}

// The CPU with a simulated queue: its last graph counts as pending until a wait.
static struct {
    struct ggml_backend_i real;
    bool busy;
    int n_freed;
} lazy;

static GGML_CALL void lazy_compute(ggml_backend_t backend, ggml_backend_graph_plan_t plan) {
    lazy.busy = true;
    lazy.real.graph_plan_compute(backend, plan);
}

static GGML_CALL void lazy_synchronize(ggml_backend_t backend) {
    (void) backend;
    lazy.busy = false;
}

static GGML_CALL void lazy_free(ggml_backend_t backend, ggml_backend_graph_plan_t plan) {
    CHECK(!lazy.busy);
    lazy.n_freed++;
    lazy.real.graph_plan_free(backend, plan);
}

// A backend's prepared objects stay valid until the end of a run.
static void buffers_are_freed_during_a_run(void) {
    SKIP_IF_CHECKED("no run is left pending");
    OPEN(p, "CPU");
    struct ggml_backend backend = *p.backends[0];
    ggml_backend_t backends[1] = { &backend };
    lazy.real = backend.iface;
    backend.iface.graph_plan_compute = lazy_compute;
    backend.iface.graph_plan_free = lazy_free;
    backend.iface.synchronize = lazy_synchronize;
    const ggml_backend_sched_t sched = ggml_backend_sched_new(backends, NULL, 1, 0);
    struct ggml_tensor *w = put(&p, leaf(&p, "w", 4, 1), 0, true), *y = ggml_sqr(p.ctx, w);
    expand(&p, y);
    fill(w, 3, 0);
    for (int i = 0; i < 3; i++) {
        OK(ggml_backend_sched_graph_compute_async(sched, p.graph));
        CHECK(lazy.busy);
        ggml_backend_buffer_free(ggml_backend_alloc_buffer(&backend, 64));
    }
    CHECK(lazy.n_freed >= 2);
    OK(ggml_backend_sched_synchronize(sched));
    CHECK_AT(y, 0, 9);
    ggml_backend_sched_free(sched);
    close_place(&p);
}

// One block of memory holds one context after another. Tensors of all kinds are at the addresses of
// earlier ones.
static void contexts_reuse_their_memory(const char * devices) {
    OPEN(p, devices);
    static _Alignas(16) char memory[1 << 16];
    for (int i = 0; i < 60; i++) {
        struct ggml_context * ctx = ggml_init((struct ggml_init_params){ sizeof(memory), memory, true });
        struct ggml_cgraph * graph = ggml_new_graph_custom(ctx, 16, false);
        const int64_t n = 1 + test_random_int(0, 3);
        const int op = (int) test_random_int(0, 2);
        const float f = (float) test_random_int(1, 3);
        struct ggml_tensor * x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4 * n);
        struct ggml_tensor * y = op == 0 ? ggml_scale(ctx, x, f) : op == 1 ? ggml_sqr(ctx, x) : ggml_neg(ctx, x);
        struct ggml_tensor * v = ggml_view_1d(ctx, y, 4, (size_t) (4 * (n - 1)) * sizeof(float));
        struct ggml_tensor * z = ggml_add(ctx, v, v);
        ggml_build_forward_expand(graph, z);
        if (i % 4 == 3) {
            OK(ggml_backend_sched_reset(p.sched));
        }
        if (i % 3 == 0) {
            OK(ggml_backend_sched_reserve(p.sched, graph));
        }
        OK(ggml_backend_sched_alloc_graph(p.sched, graph));
        for (int run = 0; run < 2; run++) {
            fill(x, (float) (i + run), 0);
            OK(ggml_backend_sched_graph_compute(p.sched, graph));
            const float a = (float) (i + run);
            CHECK_AT(z, 3, 2 * (op == 0 ? a * f : op == 1 ? a * a : -a));
        }
        ggml_free(ctx);
    }
    close_place(&p);
}

static void contexts_reuse_memory_on_cpu(void) { contexts_reuse_their_memory("CPU"); }

static void contexts_reuse_memory_on_devices(void) { contexts_reuse_their_memory("SIM:noops=add SIM:noops=sqr CPU"); }

// ------------------------------------------------------------------------------------------------------- little memory

static struct ggml_cgraph * squares_of(struct place * p, int64_t n, struct ggml_tensor * x, struct ggml_tensor ** y) {
    struct ggml_cgraph * graph = ggml_new_graph_custom(p->ctx, 8, false);
    *y = ggml_sqr(p->ctx, ggml_repeat(p->ctx, x, leaf(p, "shape", 4, n)));
    ggml_build_forward_expand(graph, *y);
    return graph;
}

// Each graph needs slightly more than the previous one. The device has memory for the largest, but
// not for all kept graphs.
static void growing_graphs_fit(void) {
    OPEN(p, "SIM:mem=256k CPU");
    struct ggml_tensor * x = put(&p, leaf(&p, "x", 4, 1), 0, false);
    fill(x, 3, 0);
    for (int64_t n = 1000; n <= 3600; n += 200) { // 16000 to 57600 bytes, twice: a source and a result
        struct ggml_tensor * y;
        struct ggml_cgraph * graph = squares_of(&p, n, x, &y);
        ggml_backend_sched_set_node_backend(p.sched, y, p.backends[0]);
        ggml_backend_sched_set_node_backend(p.sched, y->src[0], p.backends[0]);
        OK(ggml_backend_sched_graph_compute(p.sched, graph));
        CHECK_AT(y, 0, 9);
    }
    close_place(&p);
}

// A graph reads results of the previous one. The arena must grow, but cannot hold both. The results
// are kept or the run is refused, never overwritten.
static enum ggml_status grow_and_read(int kilobytes) {
    char devices[64];
    snprintf(devices, sizeof(devices), "SIM:mem=%dk CPU", kilobytes);
    struct place p;
    CHECK(open_place(&p, devices));
    struct ggml_tensor *x = put(&p, leaf(&p, "x", 4, 1), 0, false), *y;
    fill(x, 3, 0);
    struct ggml_cgraph * all = squares_of(&p, 1500, x, &y);
    struct ggml_tensor * sum = ggml_add(p.ctx, ggml_repeat(p.ctx, x, leaf(&p, "shape", 4, 3000)),
        ggml_repeat(p.ctx, y, leaf(&p, "shape2", 4, 3000)));
    ggml_build_forward_expand(all, sum);
    for (int i = 0; i < all->n_nodes; i++) {
        ggml_backend_sched_set_node_backend(p.sched, all->nodes[i], p.backends[0]);
    }
    struct ggml_cgraph first = ggml_graph_view(all, 0, 2), second = ggml_graph_view(all, 2, all->n_nodes),
                       *graph = &first, *next = &second;
    OK(ggml_backend_sched_graph_compute(p.sched, graph));
    const enum ggml_status status = ggml_backend_sched_graph_compute(p.sched, next);
    if (status == GGML_STATUS_SUCCESS) {
        CHECK_AT(sum, 0, 12);
    } else {
        CHECK_INT(status, GGML_STATUS_ALLOC_FAILED);
        CHECK_AT(y, 0, 9);
    }
    OK(ggml_backend_sched_graph_compute(p.sched, graph));
    CHECK_AT(y, 0, 9);
    close_place(&p);
    return status;
}

static void growing_keeps_what_is_read(void) {
    int n_refused = 0, n = 0;
    for (int kilobytes = 60; kilobytes < 240; kilobytes += 6, n++) {
        n_refused += grow_and_read(kilobytes) != GGML_STATUS_SUCCESS;
    }
    CHECK(n_refused > 0 && n_refused < n);
}

// Graphs that cannot be allocated are not kept, and do not replace others.
static void failures_are_not_kept(void) {
    OPEN(p, "SIM:mem=64k");
    struct ggml_tensor *x = leaf(&p, "x", 4, 1), *y = ggml_sqr(p.ctx, x);
    expand(&p, y);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 3, 0);
    for (int i = 0; i < 2 * GB_SCHED_PLANS_MAX; i++) {
        struct ggml_cgraph * graph = ggml_new_graph_custom(p.ctx, 8, false);
        ggml_build_forward_expand(graph, ggml_sqr(p.ctx, leaf(&p, "large", 1000, 100)));
        CHECK_INT(ggml_backend_sched_alloc_graph(p.sched, graph), GGML_STATUS_ALLOC_FAILED);
    }
    CHECK_INT(p.sched->plans.n, 1);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(y, 0, 9);
    close_place(&p);
}

TEST_MAIN(TEST(weights_are_replaced), TEST(weights_change_their_device), TEST(buffers_are_freed_during_a_run),
    TEST(contexts_reuse_memory_on_cpu), TEST(contexts_reuse_memory_on_devices), TEST(growing_graphs_fit),
    TEST(growing_keeps_what_is_read), TEST(failures_are_not_kept))
