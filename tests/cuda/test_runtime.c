// test_runtime.c - the CUDA backend without most kernels: memory, streams, events, copies, errors, graphs. SCALE stands
// for all operators.
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE // MAP_ANONYMOUS
#endif
#include <pthread.h>
#include <sys/mman.h>

#include "cuda_test.h"
#include "ggml-backend-impl.h"

// Scales x n times, in memory of the backend.
struct chain {
    struct ggml_context * ctx;
    struct ggml_tensor * x;
    struct ggml_tensor * y;
    struct ggml_cgraph * graph;
    ggml_backend_buffer_t buffer;
};

static struct chain chain_new(ggml_backend_t backend, int64_t n, int n_nodes, float factor) {
    struct chain c = { 0 };
    c.ctx = ggml_init((struct ggml_init_params){
        ggml_tensor_overhead() * (size_t) (n_nodes + 8) + ggml_graph_overhead(), NULL, true });
    c.x = ggml_new_tensor_1d(c.ctx, GGML_TYPE_F32, n);
    c.y = c.x;
    for (int i = 0; i < n_nodes; i++) {
        c.y = ggml_scale(c.ctx, c.y, factor);
    }
    c.graph = ggml_new_graph(c.ctx);
    ggml_build_forward_expand(c.graph, c.y);
    c.buffer = ggml_backend_alloc_ctx_tensors(c.ctx, backend);
    return c;
}

static void chain_free(struct chain * c) {
    ggml_backend_buffer_free(c->buffer);
    ggml_free(c->ctx);
}

enum { N = 1000 };

static void set_ramp(struct ggml_tensor * t, float first) {
    float values[N];
    for (int i = 0; i < N; i++) {
        values[i] = first + (float) i;
    }
    CHECK_INT(ggml_backend_tensor_set(t, values, 0, sizeof(values)), GGML_STATUS_SUCCESS);
}

static int n_wrong(const struct ggml_tensor * t, float first, float factor) {
    float values[N];
    int wrong = 0;
    CHECK_INT(ggml_backend_tensor_get(t, values, 0, sizeof(values)), GGML_STATUS_SUCCESS);
    for (int i = 0; i < N; i++) {
        wrong += values[i] != (first + (float) i) * factor;
    }
    return wrong;
}

// ------------------------------------------------------------------------------------------------------------ registry

static void is_in_the_registry(void) {
    CUDA_OR_SKIP();
    const size_t i = ggml_backend_reg_find_by_name("CUDA0");
    REQUIRE(i < ggml_backend_reg_get_count());
    ggml_backend_t backend = ggml_backend_reg_init_backend(i, NULL);
    REQUIRE(backend != NULL);
    CHECK_STR(ggml_backend_name(backend), "CUDA0");
    CHECK(ggml_backend_is_cuda(backend));
    CHECK(ggml_backend_get_default_buffer_type(backend) == ggml_backend_cuda_buffer_type(0));
    CHECK(ggml_backend_reg_get_default_buffer_type(i) == ggml_backend_cuda_buffer_type(0));
    ggml_backend_free(backend);
    CHECK(ggml_backend_reg_init_backend(i, "x=1") == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "params");
    const size_t n = ggml_backend_reg_get_count();
    CHECK_INT(gb_cuda_register_linked(), GGML_STATUS_SUCCESS); // a second call adds nothing
    CHECK_INT(ggml_backend_reg_get_count(), n);
    ggml_backend_t cpu = ggml_backend_cpu_init();
    CHECK(!ggml_backend_is_cuda(cpu));
    ggml_backend_free(cpu);
}

static void devices_by_number(void) {
    CUDA_OR_SKIP();
    const int n = ggml_backend_cuda_get_device_count();
    CHECK(n >= 1);
    char text[64];
    ggml_backend_cuda_get_device_description(0, text, sizeof(text));
    CHECK(strlen(text) > 0);
    size_t memory = 0, total = 0;
    CHECK_INT(ggml_backend_cuda_get_device_memory(0, &memory, &total), GGML_STATUS_SUCCESS);
    CHECK(memory > 0 && memory <= total);
    for (int bad = -1; bad <= n; bad += n + 1) {
        CHECK(ggml_backend_cuda_init(bad) == NULL);
        CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "device");
        CHECK(ggml_backend_cuda_buffer_type(bad) == NULL);
        CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "device");
        CHECK_INT(ggml_backend_cuda_get_device_memory(bad, &memory, &total), GGML_STATUS_INVALID_ARGUMENT);
        CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "device");
    }
}

// -------------------------------------------------------------------------------------------------------------- memory

static void buffers_hold_what_is_set(void) {
    CUDA_OR_SKIP();
    ggml_backend_t backend = cuda_open(0);
    REQUIRE(backend != NULL);
    struct chain c = chain_new(backend, N, 1, 2.0f);
    REQUIRE(c.buffer != NULL);
    CHECK(!ggml_backend_buffer_is_host(c.buffer));
    CHECK((uintptr_t) ggml_backend_buffer_get_base(c.buffer) % ggml_backend_get_alignment(backend) == 0);
    set_ramp(c.x, 5);
    CHECK_INT(n_wrong(c.x, 5, 1), 0);
    const float one = 77;
    ggml_backend_tensor_set(c.x, &one, 40, 4);
    float back[3];
    ggml_backend_tensor_get(c.x, back, 36, sizeof(back));
    CHECK(back[0] == 14 && back[1] == 77 && back[2] == 16);
    CHECK_INT(ggml_backend_buffer_clear(c.buffer, 0), GGML_STATUS_SUCCESS);
    ggml_backend_tensor_get(c.y, back, 0, sizeof(back));
    CHECK(back[0] == 0 && back[1] == 0 && back[2] == 0);
    chain_free(&c);
    ggml_backend_free(backend);
}

static void freed_buffers_are_used_again(void) {
    CUDA_OR_SKIP();
    ggml_backend_buffer_type_t buft = ggml_backend_cuda_buffer_type(0);
    ggml_backend_cuda_trim(0);
    ggml_backend_buffer_t a = ggml_backend_buft_alloc_buffer(buft, 1000000);
    void * base = ggml_backend_buffer_get_base(a);
    ggml_backend_buffer_free(a);
    a = ggml_backend_buft_alloc_buffer(buft, 900000);
    CHECK(ggml_backend_buffer_get_base(a) == base);
    CHECK_INT(ggml_backend_buffer_get_size(a), 900000);
    ggml_backend_buffer_t b = ggml_backend_buft_alloc_buffer(buft, 900000);
    CHECK(ggml_backend_buffer_get_base(b) != base);
    ggml_backend_buffer_free(a);
    ggml_backend_buffer_free(b);
    CHECK(ggml_backend_cuda_trim(0) >= 1900000);
    CHECK_INT(ggml_backend_cuda_trim(0), 0);
}

// A request that is too large fails with the figures. The device works afterwards.
static void out_of_memory_is_an_error(void) {
    CUDA_OR_SKIP();
    size_t memory = 0, total = 0;
    ggml_backend_cuda_get_device_memory(0, &memory, &total);
    ggml_backend_buffer_type_t buft = ggml_backend_cuda_buffer_type(0);
    char figure[32];
    snprintf(figure, sizeof(figure), "%zu", total);
    CHECK(ggml_backend_buft_alloc_buffer(buft, total + 1) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, figure);
    CHECK(ggml_backend_buft_alloc_buffer(buft, SIZE_MAX) == NULL);
    CHECK(ggml_last_status() == GGML_STATUS_ALLOC_FAILED);
    ggml_clear_error();
    ggml_backend_t backend = cuda_open(0);
    struct chain c = chain_new(backend, N, 3, 2.0f);
    set_ramp(c.x, 1);
    CHECK(ggml_backend_graph_compute(backend, c.graph));
    ggml_backend_synchronize(backend);
    CHECK_INT(n_wrong(c.y, 1, 8), 0);
    chain_free(&c);
    ggml_backend_free(backend);
}

static void pinned_memory_is_host_memory(void) {
    CUDA_OR_SKIP();
    ggml_backend_buffer_type_t buft = ggml_backend_cuda_host_buffer_type();
    REQUIRE(buft != NULL);
    CHECK(ggml_backend_buft_is_host(buft));
    ggml_backend_t cpu = ggml_backend_cpu_init(), cuda = cuda_open(0);
    CHECK(ggml_backend_buft_supports_backend(buft, cpu));
    CHECK(!ggml_backend_buft_supports_backend(buft, cuda));
    CHECK(ggml_backend_buft_supports_backend(ggml_backend_cuda_buffer_type(0), cuda));
    CHECK(!ggml_backend_buft_supports_backend(ggml_backend_cuda_buffer_type(0), cpu));
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(buft, 4096);
    REQUIRE(buffer != NULL);
    memset(ggml_backend_buffer_get_base(buffer), 1, 4096);
    CHECK_INT(ggml_backend_buffer_clear(buffer, 2), GGML_STATUS_SUCCESS);
    CHECK_INT(((const char *) ggml_backend_buffer_get_base(buffer))[4095], 2);
    ggml_backend_buffer_free(buffer);
    char * mine = malloc(8192);
    CHECK(ggml_backend_cuda_register_host_buffer(mine, 8192));
    CHECK(!ggml_backend_cuda_register_host_buffer(mine, 8192));
    CHECK(ggml_last_status() == GGML_STATUS_DEVICE_ERROR);
    CHECK_INT(ggml_backend_cuda_unregister_host_buffer(mine), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_backend_cuda_unregister_host_buffer(mine), GGML_STATUS_DEVICE_ERROR);
    ggml_clear_error();
    free(mine);
    ggml_backend_free(cuda);
    ggml_backend_free(cpu);
}

// Like the mapped file of a model: read-only pages.
static void pages_that_may_only_be_read(void) {
    CUDA_OR_SKIP();
    enum { SIZE = 1 << 16 };
    float * pages = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(pages != MAP_FAILED);
    for (int i = 0; i < N; i++) {
        pages[i] = (float) i + 3;
    }
    REQUIRE(mprotect(pages, SIZE, PROT_READ) == 0);
    CHECK_MSG(ggml_backend_cuda_register_host_buffer(pages, SIZE), "%s", ggml_last_error());
    ggml_backend_t backend = cuda_open(0);
    struct chain c = chain_new(backend, N, 1, 2.0f);
    CHECK_INT(ggml_backend_tensor_set_async(backend, c.x, pages, 0, N * sizeof(float)), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_backend_synchronize(backend), GGML_STATUS_SUCCESS);
    CHECK_INT(n_wrong(c.x, 3, 1), 0);
    CHECK_INT(ggml_backend_cuda_unregister_host_buffer(pages), GGML_STATUS_SUCCESS);
    chain_free(&c);
    ggml_backend_free(backend);
    munmap(pages, SIZE);
}

// Another device still copies from memory that is freed. The memory stays until the copy has ended.
static void freed_memory_is_read_by_another_device(void) {
    CUDA_OR_SKIP();
    const int last = ggml_backend_cuda_get_device_count() - 1;
    for (int pinned = 0; pinned < 2; pinned++) {
        ggml_backend_t b = cuda_open(last);
        ggml_backend_buffer_type_t buft =
            pinned ? ggml_backend_cuda_host_buffer_type() : ggml_backend_cuda_buffer_type(0);
        struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 12, NULL, true });
        struct ggml_tensor * x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, N);
        ggml_backend_buffer_t from = ggml_backend_alloc_ctx_tensors_from_buft(ctx, buft);
        struct chain c = chain_new(b, N, 1, 2.0f);
        set_ramp(x, 5);
        CHECK(b->iface.cpy_tensor_peer_async(b, x, c.x)); // queued
        ggml_backend_buffer_free(from);
        ggml_backend_buffer_t next =
            ggml_backend_buft_alloc_buffer(buft, N * sizeof(float)); // the same memory, if free
        CHECK_INT(ggml_backend_buffer_clear(next, 0), GGML_STATUS_SUCCESS);
        CHECK_INT(ggml_backend_synchronize(b), GGML_STATUS_SUCCESS);
        CHECK_INT(n_wrong(c.x, 5, 1), 0);
        ggml_backend_buffer_free(next);
        chain_free(&c);
        ggml_free(ctx);
        ggml_backend_free(b);
    }
}

// -------------------------------------------------------------------------------------------------------------- copies

// Parts of a tensor in five layouts, between all backends. Elements that are not in the part stay zero.
static void copies_keep_layouts(void) {
    CUDA_OR_SKIP();
    ggml_backend_t backends[3] = { ggml_backend_cpu_init(), cuda_open(0),
        cuda_open(ggml_backend_cuda_get_device_count() - 1) };
    for (int from = 0; from < 3; from++) {
        for (int to = 0; to < 3; to++) {
            for (int layout = 0; layout < 5; layout++) {
                struct ggml_context * ctx[2];
                struct ggml_tensor *whole[2], *part[2];
                ggml_backend_buffer_t buffer[2];
                for (int i = 0; i < 2; i++) {
                    ctx[i] = ggml_init((struct ggml_init_params){ 1 << 16, NULL, true });
                    whole[i] = ggml_new_tensor_4d(ctx[i], GGML_TYPE_F32, 12, 7, 5, 3);
                    const size_t * nb = whole[i]->nb;
                    part[i] = layout == 0   ? ggml_view_tensor(ctx[i], whole[i])
                              : layout == 1 ? ggml_view_4d(ctx[i], whole[i], 5, 7, 5, 3, nb[1], nb[2], nb[3], 8)
                              : layout == 2 ? ggml_view_4d(ctx[i], whole[i], 5, 4, 2, 3, nb[1], nb[2], nb[3], 96)
                              : layout == 3
                                  ? ggml_permute(ctx[i],
                                        ggml_view_4d(ctx[i], whole[i], 5, 4, 2, 3, nb[1], nb[2], nb[3], 96), 2, 0, 1, 3)
                                  : ggml_view_2d(ctx[i], whole[i], 12, 3, nb[2], 4 * 12);
                    buffer[i] = ggml_backend_alloc_ctx_tensors(ctx[i], backends[i == 0 ? from : to]);
                    REQUIRE(buffer[i] != NULL);
                }
                float source[12 * 7 * 5 * 3], result[12 * 7 * 5 * 3];
                for (int i = 0; i < 12 * 7 * 5 * 3; i++) {
                    source[i] = (float) i;
                }
                ggml_backend_tensor_set(whole[0], source, 0, sizeof(source));
                ggml_backend_buffer_clear(buffer[1], 0);
                CHECK_INT(ggml_backend_tensor_copy(part[0], part[1]), GGML_STATUS_SUCCESS);
                ggml_backend_tensor_get(whole[1], result, 0, sizeof(result));
                const size_t offset = (size_t) ((char *) part[1]->data - (char *) whole[1]->data);
                float wanted[12 * 7 * 5 * 3] = { 0 };
                const int64_t * ne = part[0]->ne;
                for (int64_t i = 0; i < ggml_nelements(part[0]); i++) {
                    const size_t at = offset + (size_t) (i % ne[0]) * part[0]->nb[0] +
                                      (size_t) (i / ne[0] % ne[1]) * part[0]->nb[1] +
                                      (size_t) (i / ne[0] / ne[1] % ne[2]) * part[0]->nb[2] +
                                      (size_t) (i / ne[0] / ne[1] / ne[2]) * part[0]->nb[3];
                    wanted[at / 4] = source[at / 4];
                }
                CHECK_MSG(memcmp(wanted, result, sizeof(wanted)) == 0, "from %d to %d, layout %d", from, to, layout);
                for (int i = 0; i < 2; i++) {
                    ggml_backend_buffer_free(buffer[i]);
                    ggml_free(ctx[i]);
                }
            }
        }
    }
    for (int i = 0; i < 3; i++) {
        ggml_backend_free(backends[i]);
    }
}

// Queues set, compute and get, and waits once.
static void queued_work_is_in_order(void) {
    CUDA_OR_SKIP();
    ggml_backend_t backend = cuda_open(0);
    struct chain c = chain_new(backend, N, 4, 0.5f);
    ggml_backend_buffer_t pinned =
        ggml_backend_buft_alloc_buffer(ggml_backend_cuda_host_buffer_type(), 2 * N * sizeof(float));
    float * in = ggml_backend_buffer_get_base(pinned);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < N; i++) {
            in[i] = (float) (i + 100 * round);
        }
        CHECK_INT(ggml_backend_tensor_set_async(backend, c.x, in, 0, N * sizeof(float)), GGML_STATUS_SUCCESS);
        CHECK(ggml_backend_graph_compute(backend, c.graph));
        CHECK_INT(ggml_backend_tensor_get_async(backend, c.y, in + N, 0, N * sizeof(float)), GGML_STATUS_SUCCESS);
        CHECK_INT(ggml_backend_synchronize(backend), GGML_STATUS_SUCCESS);
        for (int i = 0; i < N; i += 37) {
            CHECK(in[N + i] == in[i] / 16);
        }
    }
    ggml_backend_buffer_free(pinned);
    chain_free(&c);
    ggml_backend_free(backend);
}

// A chain over two queues, back and forth, ordered by events alone.
static void events_order_queues(void) {
    CUDA_OR_SKIP();
    const int last = ggml_backend_cuda_get_device_count() - 1;
    ggml_backend_t a = cuda_open(0), b = cuda_open(last);
    struct chain ca = chain_new(a, N, 2, 2.0f), cb = chain_new(b, N, 3, 2.0f);
    ggml_backend_event_t a_done = a->iface.event_new(a), b_done = b->iface.event_new(b);
    REQUIRE(a_done != NULL && b_done != NULL);
    a->iface.event_synchronize(a_done); // an event without a record is complete
    a->iface.event_wait(b, a_done);
    for (int round = 0; round < 10; round++) {
        set_ramp(ca.x, (float) round);
        CHECK(ggml_backend_graph_compute(a, ca.graph));
        CHECK(a->iface.cpy_tensor_peer_async(a, ca.y, cb.x));
        a->iface.event_record(a_done);
        b->iface.event_wait(b, a_done);
        CHECK(ggml_backend_graph_compute(b, cb.graph));
        CHECK(b->iface.cpy_tensor_peer_async(b, cb.y, ca.x));
        b->iface.event_record(b_done);
        a->iface.event_wait(a, b_done);
        CHECK(ggml_backend_graph_compute(a, ca.graph));
        CHECK_INT(ggml_backend_synchronize(a), GGML_STATUS_SUCCESS);
        CHECK_INT(n_wrong(ca.y, (float) round, 128), 0);
    }
    a->iface.event_free(a_done);
    b->iface.event_free(b_done);
    chain_free(&ca);
    chain_free(&cb);
    ggml_backend_free(a);
    ggml_backend_free(b);
}

static void timed_events_grow(void) {
    CUDA_OR_SKIP();
    ggml_backend_t backend = cuda_open(0);
    struct chain c = chain_new(backend, N, 2, 2.0f);
    ggml_backend_event_t e[3];
    set_ramp(c.x, 0);
    const int64_t before = ggml_time_us();
    for (int i = 0; i < 3; i++) {
        e[i] = backend->iface.event_new_timed(backend);
        REQUIRE(e[i] != NULL);
        backend->iface.event_record(e[i]);
        CHECK(ggml_backend_graph_compute(backend, c.graph));
    }
    ggml_backend_synchronize(backend);
    const int64_t after = ggml_time_us();
    const int64_t t0 = backend->iface.event_time(e[0]), t1 = backend->iface.event_time(e[1]),
                  t2 = backend->iface.event_time(e[2]);
    CHECK(t0 < t1 && t1 < t2);
    CHECK(t2 - t0 <= (after - before) * 1000);
    for (int i = 0; i < 3; i++) {
        backend->iface.event_free(e[i]);
    }
    chain_free(&c);
    ggml_backend_free(backend);
}

// -------------------------------------------------------------------------------------------------------------- graphs

static struct ggml_backend_cuda_graph_stats stats_of(ggml_backend_t backend) {
    struct ggml_backend_cuda_graph_stats s = { 0 };
    CHECK_INT(ggml_backend_cuda_get_graph_stats(backend, &s), GGML_STATUS_SUCCESS);
    return s;
}

static void run_chain(ggml_backend_t backend, struct chain * c, float first, float factor) {
    set_ramp(c->x, first);
    CHECK(ggml_backend_graph_compute(backend, c->graph));
    CHECK_INT(ggml_backend_synchronize(backend), GGML_STATUS_SUCCESS);
    CHECK_INT(n_wrong(c->y, first, factor), 0);
}

static void the_same_graph_is_replayed(void) {
    CUDA_OR_SKIP();
    ggml_backend_t backend = cuda_open(0);
    struct chain c = chain_new(backend, N, 5, 2.0f);
    for (int i = 0; i < 5; i++) {
        run_chain(backend, &c, (float) i, 32);
    }
    const struct ggml_backend_cuda_graph_stats s = stats_of(backend);
    if (cuda_replays()) {
        CHECK_INT(s.n_eager, 1);
        CHECK_INT(s.n_captured, 1);
        CHECK_INT(s.n_updated, 0);
        CHECK_INT(s.n_replayed, 3);
    }
    chain_free(&c);
    ggml_backend_free(backend);
}

// Other memory and factors update the graph, and give correct results. The second graph of a shape is recorded, even if
// it differs from the first.
static void changed_graphs_are_updated(void) {
    CUDA_OR_SKIP();
    ggml_backend_t backend = cuda_open(0);
    struct chain c[30];
    for (int i = 0; i < 30; i++) {
        c[i] = chain_new(backend, N, 3, (float) (1 << (i % 4)));
    }
    for (int i = 0; i < 30; i++) {
        const float f = (float) (1 << (i % 4));
        run_chain(backend, &c[i], (float) i, f * f * f);
    }
    const struct ggml_backend_cuda_graph_stats s = stats_of(backend);
    if (cuda_replays()) {
        CHECK_INT(s.n_eager, 1);
        CHECK_INT(s.n_captured, 1);
        CHECK_INT(s.n_updated, 28);
    }
    for (int i = 0; i < 100; i++) { // in any order, more graphs than are remembered
        const int k = (int) test_random_int(0, 29);
        const float f = (float) (1 << (k % 4));
        run_chain(backend, &c[k], (float) i, f * f * f);
    }
    for (int i = 0; i < 30; i++) {
        chain_free(&c[i]);
    }
    ggml_backend_free(backend);
}

static void replay_can_be_off(void) {
    CUDA_OR_SKIP();
    ggml_backend_t backend = cuda_open(0);
    struct chain c = chain_new(backend, N, 5, 2.0f);
    CHECK_INT(ggml_backend_cuda_set_graphs(backend, false), GGML_STATUS_SUCCESS);
    for (int i = 0; i < 4; i++) {
        run_chain(backend, &c, (float) i, 32);
    }
    CHECK_INT(stats_of(backend).n_eager, 4);
    CHECK_INT(stats_of(backend).n_captured, 0);
    chain_free(&c);
    ggml_backend_free(backend);
    CHECK_INT(ggml_backend_cuda_set_graphs(NULL, true), GGML_STATUS_INVALID_ARGUMENT);
    ggml_clear_error();
}

// Threads with a backend each share a device. One records graphs while the others set tensors, which waits for the
// device.
static void * compute_often(void * arg) {
    ggml_backend_t backend = cuda_open(0);
    for (int i = 0; i < 12; i++) {
        struct chain c = chain_new(backend, N, 3 + i % 3, 2.0f);
        for (int k = 0; k < 4; k++) {
            float values[N], back[N] = { 0 };
            for (int j = 0; j < N; j++) {
                values[j] = (float) (i + j + k);
            }
            const float factor = (float) (8 << (i % 3));
            const bool ok = ggml_backend_tensor_set(c.x, values, 0, sizeof(values)) == GGML_STATUS_SUCCESS &&
                            ggml_backend_graph_compute(backend, c.graph) &&
                            ggml_backend_synchronize(backend) == GGML_STATUS_SUCCESS &&
                            ggml_backend_tensor_get(c.y, back, 0, sizeof(back)) == GGML_STATUS_SUCCESS;
            *(int *) arg += !ok || back[7] != values[7] * factor || back[N - 1] != values[N - 1] * factor;
        }
        chain_free(&c);
    }
    ggml_backend_free(backend);
    return NULL;
}

static void threads_share_a_device(void) {
    CUDA_OR_SKIP();
    enum { THREADS = 4 };
    pthread_t thread[THREADS];
    int wrong[THREADS] = { 0 };
    for (int i = 0; i < THREADS; i++) {
        REQUIRE(pthread_create(&thread[i], NULL, compute_often, &wrong[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        CHECK_INT(wrong[i], 0);
    }
}

// -------------------------------------------------------------------------------------------------------------- errors

static void unsupported_nodes_are_named(void) {
    CUDA_OR_SKIP();
    ggml_backend_t backend = cuda_open(0);
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 20, NULL, true });
    struct ggml_tensor * x = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 8);
    struct ggml_tensor * y = ggml_scale(ctx, ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 8), 2.0f);
    y->src[0] = x; // no builder makes this node
    CHECK(!ggml_backend_supports_op(backend, y));
    CHECK(ggml_backend_unsupported_reason(backend, y) != NULL);
    ggml_free(ctx);
    // tensors that are elsewhere
    ggml_backend_t cpu = ggml_backend_cpu_init();
    struct chain c = chain_new(cpu, N, 3, 2.0f);
    CHECK(!ggml_backend_graph_compute(backend, c.graph));
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "not in this device's memory");
    CHECK_INT(ggml_backend_synchronize(backend), GGML_STATUS_SUCCESS);
    chain_free(&c);
    ggml_backend_free(cpu);
    ggml_backend_free(backend);
}

#ifdef GB_CUDA_EMULATED

// A kernel fails. The next wait finds it, with a reason. The backend then reports it for every call; a new one works.
static void sticky_errors_mark_the_backend(void) {
    CUDA_OR_SKIP();
    ggml_backend_t backend = cuda_open(0);
    struct chain c = chain_new(backend, N, 3, 2.0f);
    set_ramp(c.x, 1);
    gb_emu_fail_kernel(1);
    CHECK(ggml_backend_graph_compute(backend, c.graph)); // queued, so not found yet
    CHECK_INT(ggml_backend_synchronize(backend), GGML_STATUS_DEVICE_ERROR);
    CHECK_ERROR(GGML_STATUS_DEVICE_ERROR, "cudaErrorIllegalAddress");
    CHECK(!ggml_backend_graph_compute(backend, c.graph));
    CHECK_ERROR(GGML_STATUS_DEVICE_ERROR, "failed before");
    CHECK_INT(ggml_backend_synchronize(backend), GGML_STATUS_DEVICE_ERROR);
    CHECK_ERROR(GGML_STATUS_DEVICE_ERROR, "failed before");
    CHECK_INT(ggml_backend_tensor_set_async(backend, c.x, &c, 0, 4), GGML_STATUS_DEVICE_ERROR);
    CHECK_ERROR(GGML_STATUS_DEVICE_ERROR, "failed before");
    gb_emu_reset();
    ggml_backend_free(backend);
    backend = cuda_open(0);
    run_chain(backend, &c, 3, 8);
    chain_free(&c);
    ggml_backend_free(backend);
}

static void launches_that_fail_name_the_node(void) {
    CUDA_OR_SKIP();
    ggml_backend_t backend = cuda_open(0);
    struct chain c = chain_new(backend, N, 3, 2.0f);
    ggml_set_name(c.graph->nodes[1], "the middle");
    set_ramp(c.x, 1);
    gb_emu_fail("cudaLaunchKernel", 1, GB_EMU_INVALID_VALUE);
    CHECK(!ggml_backend_graph_compute(backend, c.graph));
    CHECK_ERROR(GGML_STATUS_DEVICE_ERROR, "'the middle'");
    run_chain(backend, &c, 2, 8); // the error was not sticky
    chain_free(&c);
    ggml_backend_free(backend);
}

// Each call of the list fails in turn. The result is an error or correct, and no device memory or object leaks.
static void every_call_may_fail(void) {
    CUDA_OR_SKIP();
    static const char * const calls[] = { "cudaMalloc", "cudaMemcpyAsync", "cudaMemsetAsync",
        "cudaStreamCreateWithFlags", "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaGraphInstantiate",
        "cudaGraphLaunch", "cudaGraphCreate", "cudaGraphAddKernelNode", "cudaGraphExecKernelNodeSetParams",
        "cudaLaunchKernel", "cudaEventCreateWithFlags", "cudaEventRecord", "cudaHostAlloc" };
    ggml_backend_cuda_trim(0);
    const struct gb_emu_counts before = gb_emu_count();
    for (size_t k = 0; k < sizeof(calls) / sizeof(calls[0]); k++) {
        for (int after = 0; after < 6; after++) {
            ggml_backend_t keep = cuda_open(0); // makes the device's own stream
            gb_emu_fail(calls[k], after,
                strcmp(calls[k], "cudaMalloc") == 0 ? GB_EMU_OUT_OF_MEMORY : GB_EMU_INVALID_VALUE);
            ggml_backend_t backend = cuda_open(0);
            if (backend != NULL) {
                struct chain c = chain_new(backend, N, 3, 2.0f);
                struct chain d = chain_new(backend, N, 3, 2.0f);
                for (int i = 0; i < 5 && c.buffer != NULL && d.buffer != NULL; i++) {
                    struct chain * x = i == 3 ? &d : &c;
                    float values[N] = { 1 }, back[N] = { 0 };
                    if (ggml_backend_tensor_set(x->x, values, 0, sizeof(values)) == GGML_STATUS_SUCCESS &&
                        ggml_backend_graph_compute(backend, x->graph) &&
                        ggml_backend_synchronize(backend) == GGML_STATUS_SUCCESS &&
                        ggml_backend_tensor_get(x->y, back, 0, sizeof(back)) == GGML_STATUS_SUCCESS) {
                        CHECK_MSG(back[0] == 8, "%s fails after %d: %g", calls[k], after, (double) back[0]);
                    } else {
                        CHECK(ggml_last_status() != GGML_STATUS_SUCCESS);
                    }
                }
                if (c.buffer != NULL && d.buffer != NULL) {
                    gb_emu_fail(NULL, 0, 0);
                    run_chain(backend, &c, 1, 8);
                }
                gb_emu_fail(NULL, 0, 0);
                chain_free(&c);
                chain_free(&d);
                ggml_backend_free(backend);
            }
            gb_emu_fail(NULL, 0, 0);
            ggml_clear_error();
            ggml_backend_free(keep);
        }
    }
    ggml_backend_cuda_trim(0);
    const struct gb_emu_counts later = gb_emu_count();
    CHECK_INT(later.live_device, before.live_device);
    CHECK_INT(later.live_objects, before.live_objects);
}

// A graph that cannot be recorded or updated is launched node by node, or recorded again, without an error. Three
// graphs of one shape: launched, recorded, updated.
static void graphs_that_cannot_be_made(void) {
    CUDA_OR_SKIP();
    static const char * const calls[] = { "cudaGraphCreate", "cudaGraphAddKernelNode", "cudaGraphInstantiate",
        "cudaGraphExecKernelNodeSetParams" };
    for (size_t k = 0; k < sizeof(calls) / sizeof(calls[0]); k++) {
        for (int after = 0; after < 3; after++) {
            ggml_backend_t backend = cuda_open(0);
            gb_emu_fail(calls[k], after, GB_EMU_INVALID_VALUE);
            ggml_clear_error();
            struct chain c[5];
            for (int i = 0; i < 5; i++) {
                c[i] = chain_new(backend, N, 4, (float) (1 << (i % 3)));
                run_chain(backend, &c[i], (float) i, (float) (1 << 4 * (i % 3)));
                CHECK_MSG(ggml_last_status() == GGML_STATUS_SUCCESS, "%s after %d: %s", calls[k], after,
                    ggml_last_error());
            }
            const struct ggml_backend_cuda_graph_stats s = stats_of(backend);
            CHECK(!cuda_replays() || (s.n_eager <= 2 && s.n_captured >= 1));
            CHECK_INT(s.n_eager + s.n_captured + s.n_updated, 5);
            gb_emu_fail(NULL, 0, 0);
            for (int i = 0; i < 5; i++) {
                chain_free(&c[i]);
            }
            ggml_backend_free(backend);
        }
    }
}

// Another user in the process synchronizes the device at any time. Neither gets an error.
static void a_neighbour_that_synchronizes(void) {
    CUDA_OR_SKIP();
    const uint64_t errors = gb_emu_count().neighbour_errors;
    ggml_backend_t backend = cuda_open(0);
    struct chain c = chain_new(backend, N, 4, 2.0f);
    gb_emu_set_neighbour(1);
    for (int i = 0; i < 4; i++) {
        run_chain(backend, &c, (float) i, 16);
    }
    gb_emu_set_neighbour(0);
    if (cuda_replays()) {
        CHECK_INT(stats_of(backend).n_captured, 1);
        CHECK_INT(stats_of(backend).n_replayed, 2);
    }
    CHECK_INT(gb_emu_count().neighbour_errors, errors);
    CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS);
    chain_free(&c);
    ggml_backend_free(backend);
}

// Only nodes that differ are updated: here one, whose factor changed.
static void nodes_that_stay_are_not_touched(void) {
    CUDA_OR_SKIP();
    ggml_backend_t backend = cuda_open(0);
    struct chain c = chain_new(backend, N, 6, 2.0f);
    run_chain(backend, &c, 1, 64);
    run_chain(backend, &c, 2, 64);
    const uint64_t before = gb_emu_count().updates;
    const float factors[2] = { 4, 0 };
    memcpy(c.graph->nodes[2]->op_params, factors, sizeof(factors[0]));
    run_chain(backend, &c, 3, 128);
    if (cuda_replays()) {
        CHECK_INT(stats_of(backend).n_updated, 1);
        CHECK_INT(gb_emu_count().updates - before, 1);
    }
    chain_free(&c);
    ggml_backend_free(backend);
}

#define EMULATED_TESTS                                                                                         \
    , TEST(sticky_errors_mark_the_backend), TEST(launches_that_fail_name_the_node), TEST(every_call_may_fail), \
        TEST(graphs_that_cannot_be_made), TEST(a_neighbour_that_synchronizes), TEST(nodes_that_stay_are_not_touched)
#else
#define EMULATED_TESTS
#endif

TEST_MAIN(TEST(is_in_the_registry), TEST(devices_by_number), TEST(buffers_hold_what_is_set),
    TEST(freed_buffers_are_used_again), TEST(out_of_memory_is_an_error), TEST(pinned_memory_is_host_memory),
    TEST(pages_that_may_only_be_read), TEST(freed_memory_is_read_by_another_device), TEST(copies_keep_layouts),
    TEST(queued_work_is_in_order), TEST(events_order_queues), TEST(timed_events_grow), TEST(the_same_graph_is_replayed),
    TEST(changed_graphs_are_updated), TEST(replay_can_be_off), TEST(threads_share_a_device),
    TEST(unsupported_nodes_are_named) EMULATED_TESTS)
