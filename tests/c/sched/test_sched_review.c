// test_sched_review.c - attempts to break the scheduler: callbacks that meddle, memory of the user that goes away and
// comes back at the same address, contexts that are used again, devices with little memory, settings that change
// between runs.
#include "base/mem.h"
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "sched/plan.h"
#include "test.h"
#include "test_alloc.h"
#include "test_place.h"
#include "test_queue.h"

// ----------------------------------------------------------------------------------------------------------- callbacks

struct meddler {
    struct place * place;
    struct ggml_tensor * at;
    int n_calls;
    void (*act)(struct place * p);
};

static bool meddle(struct ggml_tensor * t, bool ask, void * user_data) {
    struct meddler * m = user_data;
    m->n_calls++;
    if (!ask && t == m->at) {
        m->act(m->place);
    }
    return !ask || t == m->at;
}

static void take_back(struct place * p) { OK(ggml_backend_sched_set_eval_callback(p->sched, NULL, NULL)); }

static void wait_for_all(struct place * p) { OK(ggml_backend_sched_synchronize(p->sched)); }

static void free_it(struct place * p) {
    ggml_backend_sched_free(p->sched);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "ggml_backend_sched_free");
}

// x squared three times, on a device; the callback acts after the first.
static enum ggml_status compute_meddled(struct place * p, void (*act)(struct place * p), struct meddler * m,
    struct ggml_tensor ** last) {
    struct ggml_tensor *x = leaf(p, "x", 4, 1), *a = ggml_sqr(p->ctx, x), *b = ggml_scale(p->ctx, a, 2),
                       *c = ggml_soft_max(p->ctx, b);
    expand(p, c);
    OK(ggml_backend_sched_alloc_graph(p->sched, p->graph));
    fill(x, 2, 0);
    *m = (struct meddler){ p, a, 0, act };
    *last = c;
    OK(ggml_backend_sched_set_eval_callback(p->sched, meddle, m));
    return ggml_backend_sched_graph_compute(p->sched, p->graph);
}

static void callback_ends_itself(void) {
    OPEN(p, "SIM CPU");
    struct meddler m;
    struct ggml_tensor * last;
    CHECK_INT(compute_meddled(&p, take_back, &m, &last), GGML_STATUS_SUCCESS);
    CHECK_INT(m.n_calls, 2); // asked about and shown the first node, then never again
    CHECK_AT(last, 3, 0.25f);
    close_place(&p);
}

// What runs after the callback is waited for even if the callback waited itself: its failure is seen.
static void callback_waits(void) {
    OPEN(p, "SIM:delay=2ms,fail_op=soft_max CPU");
    struct meddler m;
    struct ggml_tensor * last;
    CHECK_INT(compute_meddled(&p, wait_for_all, &m, &last), GGML_STATUS_DEVICE_ERROR);
    close_place(&p);
}

static void callback_frees_the_scheduler(void) {
    OPEN(p, "CPU");
    struct meddler m;
    struct ggml_tensor * last;
    CHECK_INT(compute_meddled(&p, free_it, &m, &last), GGML_STATUS_SUCCESS);
    CHECK_AT(last, 3, 0.25f);
    close_place(&p);
}

static int to_be_freed;

static void free_a_backend(struct place * p) {
    ggml_backend_free(p->backends[to_be_freed]);
    p->backends[to_be_freed] = NULL;
}

// The one that computes, another one, the last one: the run ends there, checked and traced as well.
static void callback_frees_a_backend(void) {
    for (int k = 0; k < 3 * 3; k++) {
        OPEN(p, "SIM:name=A SIM:name=B CPU");
        struct meddler m;
        struct ggml_tensor * last;
        to_be_freed = k % 3;
        OK(ggml_backend_sched_set_check(p.sched, k / 3 == 1));
        OK(ggml_backend_sched_set_trace(p.sched, k / 3 == 2));
        ggml_clear_error();
        CHECK_INT(compute_meddled(&p, free_a_backend, &m, &last), GGML_STATUS_INVALID_STATE);
        CHECK_ERROR(GGML_STATUS_INVALID_STATE, "was freed");
        CHECK_INT(ggml_backend_sched_graph_compute(p.sched, p.graph), GGML_STATUS_INVALID_STATE);
        OK(ggml_backend_sched_reset(p.sched));
        close_place(&p);
    }
}

static bool refuse(struct ggml_tensor * t, bool ask, void * user_data) {
    (void) t;
    (void) user_data;
    return ask;
}

static void stopping_says_so(void) {
    OPEN(p, "CPU");
    struct ggml_tensor *x = leaf(&p, "x", 4, 1), *y = ggml_sqr(p.ctx, x);
    expand(&p, y);
    OK(ggml_backend_sched_set_eval_callback(p.sched, refuse, NULL));
    ggml_clear_error();
    CHECK_INT(ggml_backend_sched_graph_compute(p.sched, p.graph), GGML_STATUS_ABORTED);
    CHECK_ERROR(GGML_STATUS_ABORTED, "callback");
    close_place(&p);
}

// ------------------------------------------------------------------------------------ the same addresses, other things

// A new buffer takes the place of the one that w is in. Its handle has the old address, as it happens without a
// checking allocator, and so has its memory, mostly.
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

// Weights are freed and made again, each time with other values.
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

// The device of the weights changes while their handle and their address stay: as it happens when memory is mapped
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
    *p.buffers[0] = *other; // the same handle now is one of the device
    w->data = ggml_backend_buffer_get_base(p.buffers[0]);
    // and had this address then
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

// The CPU, pretending that what it was given last is still running until somebody waits for it.
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

// What a backend prepared is not taken away from under a run that is not over.
static void buffers_are_freed_during_a_run(void) {
    SKIP_IF_CHECKED("none is left running");
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

// One block of memory holds one context after another: tensors of all kinds come to lie at the addresses of earlier
// ones.
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

// Each graph needs a little more than the one before it. The device has room for the largest, not for all that are
// remembered.
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

// Results of the graph before, read by one for which the arena must grow while there is no room for two: kept, or
// refused, never lost.
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

// Graphs that cannot be placed are not remembered, and do not push out those that can.
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

// ------------------------------------------------------------------------------------------- settings between the runs

static int widest; // team that a custom op saw

static void note_team(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * user_data) {
    (void) dst;
    (void) a;
    (void) user_data;
    if (ith == 0) {
        widest = nth;
    }
}

static void thread_count_changes(void) {
    OPEN(p, "CPU");
    struct ggml_tensor *x = leaf(&p, "x", 4, 1), *y = ggml_map_custom1(p.ctx, x, note_team, GGML_N_TASKS_MAX, NULL);
    expand(&p, y);
    static const int counts[] = { 1, 3, 2, 1 };
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        OK(ggml_backend_cpu_set_n_threads(p.backends[0], counts[i]));
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        CHECK_INT(widest, counts[i]);
    }
    close_place(&p);
}

static bool always(void * data) { return data == NULL; }

static void abort_callback_changes(void) {
    OPEN(p, "CPU");
    struct ggml_tensor *x = leaf(&p, "x", 4, 1), *y = ggml_sqr(p.ctx, x);
    expand(&p, y);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 3, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    OK(ggml_backend_cpu_set_abort_callback(p.backends[0], always, NULL));
    CHECK_INT(ggml_backend_sched_graph_compute(p.sched, p.graph), GGML_STATUS_ABORTED);
    OK(ggml_backend_cpu_set_abort_callback(p.backends[0], NULL, NULL));
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(y, 0, 9);
    close_place(&p);
}

// The same graph, but its view now shows another row.
static void views_move(void) {
    OPEN(p, "SIM CPU");
    struct ggml_tensor * rows = put(&p, leaf(&p, "rows", 4, 3), 1, false);
    struct ggml_tensor *v = ggml_view_1d(p.ctx, rows, 4, 0), *y = ggml_scale(p.ctx, v, 2);
    expand(&p, y);
    OK(ggml_backend_sched_set_node_backend(p.sched, y, p.backends[0]));
    fill(rows, 0, 1);
    for (int i = 0; i < 6; i++) {
        v->view_offs = (size_t) (i % 3) * rows->nb[1]; // and nothing else
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        CHECK_AT(y, 1, (float) (2 * (4 * (i % 3) + 1)));
    }
    close_place(&p);
}

// The same graph, but the user wants to see one more result.
static void outputs_are_added(void) {
    OPEN(p, "SIM CPU");
    struct ggml_tensor *x = put(&p, leaf(&p, "x", 4, 1), 0, false), *a = ggml_sqr(p.ctx, x),
                       *b = ggml_soft_max(p.ctx, a);
    struct ggml_tensor * c = ggml_sqr(p.ctx, ggml_scale(p.ctx, b, 2));
    expand(&p, c);
    fill(x, 3, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(c, 0, 0.25f);
    CHECK(at(a, 0) != 9); // its memory serves others
    ggml_set_output(a);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(c, 0, 0.25f);
    CHECK_AT(a, 0, 9);
    close_place(&p);
}

// ------------------------------------------------------------------------------------------------------ strange graphs

static void nodes_out_of_order(void) {
    OPEN(p, "SIM CPU");
    struct ggml_tensor *x = leaf(&p, "x", 4, 1), *a = ggml_sqr(p.ctx, x), *b = ggml_scale(p.ctx, a, 2);
    expand(&p, b);
    p.graph->nodes[0] = b;
    p.graph->nodes[1] = a;
    CHECK_INT(ggml_backend_sched_graph_compute(p.sched, p.graph), GGML_STATUS_INVALID_ARGUMENT);
    CHECK(a->data == NULL && b->data == NULL && x->data == NULL);
    p.graph->nodes[0] = a;
    p.graph->nodes[1] = b;
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    close_place(&p);
}

// A cache in plain weights memory of one device, written through a view by another in one graph, read whole, written
// again, read again.
static void cache_between_devices(void) {
    OPEN(p, "SIM:name=A,delay=1ms SIM:name=B CPU");
    struct ggml_tensor *cache = put(&p, leaf(&p, "cache", 4, 3), 0, true), *x = leaf(&p, "x", 4, 1);
    fill(cache, 1, 0);
    struct ggml_tensor * row1 = ggml_view_1d(p.ctx, cache, 4, cache->nb[1]);
    struct ggml_tensor * row2 = ggml_view_1d(p.ctx, cache, 4, 2 * cache->nb[1]);
    struct ggml_tensor * w1 = ggml_cpy(p.ctx, x, row1);
    struct ggml_tensor * read1 = ggml_scale(p.ctx, cache, 10);
    struct ggml_tensor * w2 = ggml_cpy(p.ctx, ggml_sqr(p.ctx, x), row2);
    struct ggml_tensor * read2 = ggml_scale(p.ctx, cache, 100);
    struct ggml_tensor * order[] = { w1, read1, w2, read2 };
    for (int i = 0; i < 4; i++) {
        expand(&p, order[i]);
        OK(ggml_backend_sched_set_node_backend(p.sched, order[i], p.backends[i % 2 ? 2 : 1]));
    }
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    for (int run = 0; run < 2; run++) {
        fill(x, 3 + (float) run, 0);
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        const float v = 3 + (float) run, old = run ? 9 : 1;
        CHECK_AT(read1, 0, 10);
        CHECK_AT(read1, 4, 10 * v);
        CHECK_AT(read1, 8, 10 * old);
        CHECK_AT(read2, 0, 100);
        CHECK_AT(read2, 4, 100 * v);
        CHECK_AT(read2, 8, 100 * v * v);
        CHECK_AT(cache, 8, v * v);
    }
    close_place(&p);
}

// A result goes home to memory that another queue still reads.
static void write_back_waits_for_readers(void) {
    OPEN(p, "SIM CPU");
    const ggml_backend_t queue = queue_device_new(0, 20000);
    ggml_backend_t list[] = { queue, p.backends[0], p.backends[1] };
    const ggml_backend_sched_t sched = ggml_backend_sched_new(list, NULL, 3, 0);
    struct ggml_tensor * r = leaf(&p, "r", 4, 1);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_buffer(queue, 64);
    OK(ggml_backend_tensor_alloc(buffer, r, ggml_backend_buffer_get_base(buffer)));
    struct ggml_tensor *y = ggml_sqr(p.ctx, r), *z = ggml_scale_inplace(p.ctx, r, 2);
    expand(&p, y);
    expand(&p, z);
    OK(ggml_backend_sched_set_node_backend(sched, y, queue));
    OK(ggml_backend_sched_set_node_backend(sched, z, p.backends[0]));
    for (int run = 0; run < 5; run++) {
        fill(r, 3, 0);
        OK(ggml_backend_sched_graph_compute(sched, p.graph));
        CHECK_AT(y, 3, 9);
        CHECK_AT(z, 3, 6);
    }
    ggml_backend_sched_free(sched);
    ggml_backend_buffer_free(buffer);
    ggml_backend_free(queue);
    close_place(&p);
}

// One scheduler after another runs the same graph.
static void scheduler_is_replaced(void) {
    OPEN(p, "SIM CPU");
    struct ggml_tensor *x = put(&p, leaf(&p, "x", 4, 1), 1, false), *y = ggml_sqr(p.ctx, x),
                       *v = ggml_reshape_2d(p.ctx, y, 2, 2);
    struct ggml_tensor * z = ggml_scale(p.ctx, v, 2);
    expand(&p, z);
    fill(x, 3, 0);
    for (int i = 0; i < 3; i++) {
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        CHECK_AT(z, 0, 18);
        ggml_backend_sched_free(p.sched);
        struct ggml_tensor * placed[] = { y, v, z };
        for (int k = 0; k < 3; k++) {
            placed[k]->buffer = NULL;
            placed[k]->data = NULL;
        }
        p.sched = ggml_backend_sched_new(p.backends, NULL, p.n, 0);
        REQUIRE(p.sched);
    }
    close_place(&p);
}

// Blocks of a quantized type may be stored in another form by a device: a copy of some rows is a copy of all.
static void quantized_rows_between_devices(void) {
    OPEN(p, "SIM:name=A,noops=mul_mat+get_rows SIM:name=B CPU");
    enum { COLUMNS = 64, ROWS = 8 };
    struct ggml_tensor * w = put(&p, ggml_new_tensor_2d(p.ctx, GGML_TYPE_Q8_0, COLUMNS, ROWS), 0, true);
    struct ggml_tensor * x = leaf(&p, "x", COLUMNS, 1);
    struct ggml_tensor * some = ggml_mul_mat(p.ctx, ggml_view_2d(p.ctx, w, COLUMNS, 3, w->nb[1], 4 * w->nb[1]), x);
    struct ggml_tensor * all = ggml_mul_mat(p.ctx, w, x);
    float values[COLUMNS * ROWS];
    char blocks[COLUMNS * ROWS * 2];
    for (int i = 0; i < COLUMNS * ROWS; i++) {
        values[i] = (float) (i / COLUMNS) * 127; // a row of one value: exact
    }
    REQUIRE(ggml_quantize_chunk(GGML_TYPE_Q8_0, values, blocks, 0, ROWS, COLUMNS, NULL, NULL) == ggml_nbytes(w));
    OK(ggml_backend_tensor_set(w, blocks, 0, ggml_nbytes(w)));
    expand(&p, some);
    expand(&p, all);
    OK(ggml_backend_sched_set_node_backend(p.sched, some, p.backends[1]));
    OK(ggml_backend_sched_set_node_backend(p.sched, all, p.backends[2]));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 1, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    struct ggml_backend_sched_split_info split;
    OK(ggml_backend_sched_get_split(p.sched, 0, &split));
    CHECK(split.backend == p.backends[1]);
    CHECK(split.input_bytes >= ggml_nbytes(w));
    for (int i = 0; i < ROWS; i++) {
        CHECK(fabsf(at(all, i) - (float) i * 127 * COLUMNS) <= 1e-3f * (float) i * 127 * COLUMNS);
    }
    for (int i = 0; i < 3; i++) {
        CHECK(at(some, i) > 0 && at(some, i) == at(all, 4 + i));
    }
    close_place(&p);
}

// Weights that one buffer cannot hold are in several behind one handle.
static void weights_in_a_multi_buffer(void) {
    OPEN(p, "SIM:name=A,max=1k CPU");
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 4096, NULL, true });
    struct ggml_tensor * w[5];
    for (int i = 0; i < 5; i++) {
        w[i] = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 100, 1);
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, p.backends[0]);
    REQUIRE(buffer);
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    struct ggml_tensor *x = leaf(&p, "x", 100, 1), *y = x;
    for (int i = 0; i < 5; i++) {
        fill(w[i], (float) i, 0);
        y = ggml_add(p.ctx, y, w[i]);
    }
    expand(&p, y);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 1, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(y, 99, 11);
    CHECK_STR(splits(&p), "A:0-5");
    for (int i = 0; i < p.graph->n_nodes; i++) {
        CHECK(strstr(ggml_backend_sched_explain(p.sched, p.graph->nodes[i]), "weight") != NULL);
    }
    ggml_free(ctx);
    ggml_backend_buffer_free(buffer);
    close_place(&p);
}

// Two backends with one kind of memory: splits, but nothing to copy.
static void two_cpus_share_memory(void) {
    OPEN(p, "CPU CPU");
    struct ggml_tensor *x = leaf(&p, "x", 4, 1), *a = ggml_sqr(p.ctx, x), *b = ggml_scale_inplace(p.ctx, a, 2),
                       *c = ggml_sqr(p.ctx, b);
    expand(&p, c);
    OK(ggml_backend_sched_set_node_backend(p.sched, a, p.backends[0]));
    OK(ggml_backend_sched_set_node_backend(p.sched, b, p.backends[1]));
    OK(ggml_backend_sched_set_node_backend(p.sched, c, p.backends[0]));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    fill(x, 3, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_STR(splits(&p), "CPU:0-1 CPU:1-2 CPU:2-3");
    CHECK_AT(c, 3, 324);
    close_place(&p);
}

// ----------------------------------------------------------------------------------- failures at random, results right

enum { GRAPHS = 6, ACTIONS = 60 };

struct trial {
    struct random_graph g;
    float expected[RANDOM_MAX]; // the first value of each result
};

static void set_leafs(const struct random_graph * g, int salt) {
    for (int i = 0; i < g->n_leafs; i++) {
        float values[RANDOM_COLUMNS * RANDOM_ROWS];
        const int n = (int) ggml_nelements(g->leafs[i]);
        for (int k = 0; k < n; k++) {
            values[k] = (float) ((i * 31 + k * 7 + salt) % 19 - 9) / 8;
        }
        if (g->leafs[i]->data) { // else the graph does not use it
            OK(ggml_backend_tensor_set(g->leafs[i], values, 0, ggml_nbytes(g->leafs[i])));
        }
    }
}

static bool make_trial(struct trial * t, ggml_backend_t cpu) {
    const struct random_graph_params params = { (int) test_random_int(1, 60), true, false, true };
    const uint64_t seed = test_random();
    struct random_graph r;
    test_seed = seed;
    if (!random_graph_make(&r, params)) {
        return false;
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(r.ctx, cpu);
    set_leafs(&r, 5);
    CHECK(ggml_backend_graph_compute(cpu, r.graph));
    for (int i = 0; i < r.graph->n_nodes; i++) {
        t->expected[i] = at(r.graph->nodes[i], 0);
    }
    ggml_backend_buffer_free(buffer);
    random_graph_free(&r);
    test_seed = seed;
    return random_graph_make(&t->g, params);
}

static bool is_kept(const struct ggml_cgraph * graph, const struct ggml_tensor * t) {
    for (int j = 0; j < graph->n_nodes; j++) {
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            if (graph->nodes[j]->src[s] == t && !ggml_is_output(t)) {
                return false;
            }
        }
    }
    return true;
}

static void compare(const struct trial * t) {
    for (int i = 0; i < t->g.graph->n_nodes; i++) {
        if (is_kept(t->g.graph, t->g.graph->nodes[i])) {
            const float value = at(t->g.graph->nodes[i], 0);
            CHECK_MSG(memcmp(&value, &t->expected[i], sizeof(value)) == 0, "node %d is %g, expected %g", i,
                (double) value, (double) t->expected[i]);
        }
    }
}

static void start_trouble(void) { // maybe some allocation fails from here on
    gb_test_fail_alloc(test_random_int(0, 2) ? 0 : test_random_int(1, 60), false);
}

static bool end_trouble(enum ggml_status status, const char * call) {
    gb_test_fail_alloc(0, false);
    CHECK_MSG(status == GGML_STATUS_SUCCESS || status == GGML_STATUS_ALLOC_FAILED, "%s: %s", call, ggml_last_error());
    return status == GGML_STATUS_SUCCESS;
}

#define DISTURBED(call) (start_trouble(), end_trouble((call), #call))

// A random action on the graph; true if it was computed.
static bool disturb(struct place * p, const struct trial * t) {
    const int64_t what = test_random_int(0, 9);
    if (what == 0) {
        OK(ggml_backend_sched_reset(p->sched));
    } else if (what == 1 && t->g.graph->n_nodes > 0) {
        struct ggml_tensor * node = t->g.graph->nodes[test_random_int(0, t->g.graph->n_nodes - 1)];
        const ggml_backend_t device = p->backends[test_random_int(0, p->n - 1)];
        if (ggml_backend_supports_op(device, node)) {
            (void) DISTURBED(ggml_backend_sched_set_node_backend(p->sched, node, device));
        }
    } else if (what == 2) {
        (void) DISTURBED(ggml_backend_sched_reserve(p->sched, t->g.graph));
    }
    if (!DISTURBED(ggml_backend_sched_alloc_graph(p->sched, t->g.graph))) {
        return false;
    }
    set_leafs(&t->g, 5);
    if (!DISTURBED(ggml_backend_sched_graph_compute(p->sched, t->g.graph))) {
        return false;
    }
    compare(t);
    return true;
}

static void failures_at_random(void) {
    int n_computed = 0, n_refused = 0;
    for (int round = 0; round < 20; round++) {
        char devices[256];
        snprintf(devices, sizeof(devices),
            "SIM:name=A,mem=%dk,noops=mul_mat SIM:name=B,mem=%dk,align=256,noops=soft_max+scale CPU",
            8 << test_random_int(0, 4), 8 << test_random_int(0, 4));
        OPEN(p, devices);
        static struct trial trials[GRAPHS];
        for (int i = 0; i < GRAPHS; i++) {
            REQUIRE(make_trial(&trials[i], p.backends[2]));
        }
        for (int k = 0; k < ACTIONS; k++) {
            if (disturb(&p, &trials[test_random_int(0, GRAPHS - 1)])) {
                n_computed++;
            } else {
                n_refused++;
            }
        }
        for (int i = 0; i < GRAPHS; i++) {
            random_graph_free(&trials[i].g);
        }
        close_place(&p);
    }
    CHECK(n_computed > 300);
    CHECK(n_refused > 100);
}

TEST_MAIN(TEST(callback_ends_itself), TEST(callback_waits), TEST(callback_frees_the_scheduler),
    TEST(callback_frees_a_backend), TEST(stopping_says_so), TEST(weights_are_replaced),
    TEST(weights_change_their_device), TEST(buffers_are_freed_during_a_run), TEST(contexts_reuse_memory_on_cpu),
    TEST(contexts_reuse_memory_on_devices), TEST(growing_graphs_fit), TEST(growing_keeps_what_is_read),
    TEST(failures_are_not_kept), TEST(thread_count_changes), TEST(abort_callback_changes), TEST(views_move),
    TEST(outputs_are_added), TEST(nodes_out_of_order), TEST(cache_between_devices), TEST(write_back_waits_for_readers),
    TEST(scheduler_is_replaced), TEST(quantized_rows_between_devices), TEST(weights_in_a_multi_buffer),
    TEST(two_cpus_share_memory), TEST(failures_at_random))
