// test_sched_threads.c - the scheduler with devices that run at the same time, also for the thread
// sanitizer.
//
// Devices of test_queue.h share memory and never wait. So the scheduler must make every order that
// results depend on.
#include "ggml-backend.h"
#include "sched/plan.h"
#include "test.h"
#include "test_queue.h"

enum { N = 24 };

#define OK(call) CHECK_MSG((call) == GGML_STATUS_SUCCESS, "%s: %s", #call, ggml_last_error())

static struct ggml_context * new_context(void) { return ggml_init((struct ggml_init_params){ 1 << 16, NULL, true }); }

// A chain that changes the device at each node. Each node also reads the node three before it, and
// a shared accumulator is updated in place in between. All values are integers, so the test
// computes the expected ones.
static void chains(ggml_backend_t * devices, int n_devices, int rounds) {
    ggml_backend_sched_t sched = ggml_backend_sched_new(devices, NULL, n_devices, 0);
    struct ggml_context * ctx = new_context();
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    struct ggml_tensor *x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 64),
                       *total = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 64), *t[N];
    REQUIRE(sched && graph);
    for (int i = 0; i < N; i++) {
        struct ggml_tensor * last = i ? t[i - 1] : x;
        t[i] = i % 4 == 3 ? ggml_add_inplace(ctx, total, last) : ggml_add(ctx, last, i > 2 ? t[i - 3] : x);
        ggml_build_forward_expand(graph, t[i]);
        OK(ggml_backend_sched_set_node_backend(sched, t[i], devices[i * 7 % n_devices]));
    }
    OK(ggml_backend_sched_alloc_graph(sched, graph));
    float sum = 0;
    for (int round = 0; round < rounds; round++) {
        float in[64], zero[64], value[N], accumulated = sum;
        for (int k = 0; k < 64; k++) {
            in[k] = (float) (round % 5);
            zero[k] = sum;
        }
        // t[i] for i % 4 == 3 is the accumulator. Its value changes later, so readers come
        // before that.
        for (int i = 0; i < N; i++) {
            const float last = i ? (i - 1) % 4 == 3 ? accumulated : value[i - 1] : in[0];
            const float back = i > 2 ? (i - 3) % 4 == 3 ? accumulated : value[i - 3] : in[0];
            if (i % 4 == 3) {
                accumulated += last;
            } else {
                value[i] = last + back;
            }
        }
        OK(ggml_backend_tensor_set(x, in, 0, sizeof(in)));
        OK(ggml_backend_tensor_set(total, zero, 0, sizeof(zero)));
        OK(ggml_backend_sched_graph_compute_async(sched, graph));
        OK(ggml_backend_sched_synchronize(sched));
        float out[64];
        OK(ggml_backend_tensor_get(total, out, 0, sizeof(out)));
        for (int k = 0; k < 64; k++) {
            CHECK_MSG(out[k] == accumulated, "round %d: %g, expected %g", round, (double) out[k], (double) accumulated);
        }
        sum = (float) (round % 3);
    }
    ggml_backend_sched_free(sched);
    ggml_free(ctx);
    for (int i = 0; i < n_devices; i++) {
        ggml_backend_free(devices[i]);
    }
}

static void shared_memory(void) {
    ggml_backend_t devices[] = { queue_device_new(0, 300), queue_device_new(1, 0), queue_device_new(2, 100),
        ggml_backend_cpu_init() };
    chains(devices, 4, 30);
}

static void shared_memory_without_cpu(void) {
    ggml_backend_t devices[] = { queue_device_new(0, 200), queue_device_new(1, 0) };
    chains(devices, 2, 30);
}

static void simulated_devices(void) {
    ggml_backend_t devices[] = { ggml_backend_reg_init_backend_from_str("SIM:name=A,delay=100us"),
        ggml_backend_reg_init_backend_from_str("SIM:name=B,copy_delay=50us"), queue_device_new(2, 100),
        ggml_backend_cpu_init() };
    chains(devices, 4, 15);
}

// Pending runs of one graph. Each reads the accumulator of the previous run.
static void runs_in_a_row(void) {
    ggml_backend_t devices[] = { queue_device_new(0, 200), queue_device_new(1, 0), ggml_backend_cpu_init() };
    ggml_backend_sched_t sched = ggml_backend_sched_new(devices, NULL, 3, 0);
    struct ggml_context * ctx = new_context();
    struct ggml_cgraph *graph = ggml_new_graph(ctx), *other = ggml_new_graph(ctx);
    struct ggml_tensor *x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 8),
                       *total = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 8);
    struct ggml_tensor *a = ggml_scale(ctx, x, 2), *b = ggml_add_inplace(ctx, total, a),
                       *c = ggml_add_inplace(ctx, total, x);
    ggml_build_forward_expand(graph, b);
    ggml_build_forward_expand(other, c);
    OK(ggml_backend_sched_set_node_backend(sched, a, devices[0]));
    OK(ggml_backend_sched_set_node_backend(sched, b, devices[1]));
    OK(ggml_backend_sched_set_node_backend(sched, c, devices[0]));
    OK(ggml_backend_sched_alloc_graph(sched, graph));
    OK(ggml_backend_sched_alloc_graph(sched, other));
    const float one[8] = { 1, 1, 1, 1, 1, 1, 1, 1 }, zero[8] = { 0 };
    OK(ggml_backend_tensor_set(x, one, 0, sizeof(one)));
    OK(ggml_backend_tensor_set(total, zero, 0, sizeof(zero)));
    for (int i = 0; i < 50; i++) {
        OK(ggml_backend_sched_graph_compute_async(sched, i % 3 ? graph : other));
    }
    OK(ggml_backend_sched_synchronize(sched));
    float out[8];
    OK(ggml_backend_tensor_get(total, out, 0, sizeof(out)));
    CHECK(out[7] == 33 * 2 + 17);
    ggml_backend_sched_free(sched);
    ggml_free(ctx);
    for (int i = 0; i < 3; i++) {
        ggml_backend_free(devices[i]);
    }
}

// Independent splits of different devices run at the same time, and the call returns before they
// end.
static void independent_splits_overlap(void) {
    SKIP_IF_CHECKED("the host waits for each step");
    ggml_backend_t devices[] = { ggml_backend_reg_init_backend_from_str("SIM:name=A,delay=150ms"),
        ggml_backend_reg_init_backend_from_str("SIM:name=B,delay=150ms"), ggml_backend_cpu_init() };
    ggml_backend_sched_t sched = ggml_backend_sched_new(devices, NULL, 3, 0);
    struct ggml_context * ctx = new_context();
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    struct ggml_tensor *x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 8), *y = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 8);
    struct ggml_tensor *a = ggml_sqr(ctx, x), *b = ggml_sqr(ctx, y);
    ggml_build_forward_expand(graph, a);
    ggml_build_forward_expand(graph, b);
    OK(ggml_backend_sched_set_node_backend(sched, a, devices[0]));
    OK(ggml_backend_sched_set_node_backend(sched, b, devices[1]));
    OK(ggml_backend_sched_alloc_graph(sched, graph));
    int64_t best_call = INT64_MAX, best_all = INT64_MAX;
    for (int i = 0; i < BUSY_TRIES && best_all > 250000; i++) {
        const int64_t start = ggml_time_us();
        OK(ggml_backend_sched_graph_compute_async(sched, graph));
        const int64_t called = ggml_time_us() - start;
        OK(ggml_backend_sched_synchronize(sched));
        const int64_t all = ggml_time_us() - start;
        best_call = called < best_call ? called : best_call;
        best_all = all < best_all ? all : best_all;
    }
    CHECK_MSG(best_call < 100000, "the call took %lld us", (long long) best_call);
    CHECK_MSG(best_all < 280000, "both took %lld us", (long long) best_all);
    ggml_backend_sched_free(sched);
    ggml_free(ctx);
    for (int i = 0; i < 3; i++) {
        ggml_backend_free(devices[i]);
    }
}

// Schedulers of several threads, each with its own devices.
static void * own_scheduler(void * arg) {
    ggml_backend_t devices[] = { ggml_backend_reg_init_backend_from_str("SIM:threads=1"), queue_device_new(0, 50) };
    chains(devices, 2, *(int *) arg);
    return NULL;
}

static void several_threads(void) {
    pthread_t threads[3];
    int rounds = 10;
    for (int i = 0; i < 3; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, own_scheduler, &rounds), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
    }
}

// --------------------------------------------------------------------------- what threads look at in each other's work

struct looked_at {
    struct ggml_tensor * x;
    ggml_backend_buffer_t buffer;
    atomic_bool stop;
    atomic_int wrong;
};

static void build_views(void * arg) {
    struct looked_at * at = arg;
    while (!atomic_load(&at->stop)) {
        struct ggml_context * ctx = new_context();
        for (int i = 0; i < 20; i++) {
            struct ggml_tensor * v = ggml_view_1d(ctx, at->x, 8, 32);
            atomic_fetch_add(&at->wrong, v == NULL || v->data == (void *) 32 || ggml_relu(ctx, v) == NULL);
        }
        ggml_free(ctx);
    }
}

static void tell_of_writes(void * arg) {
    struct looked_at * at = arg;
    while (!atomic_load(&at->stop)) {
        ggml_backend_buffer_changed(at->buffer);
        gb_thread_yield();
    }
}

static void compute_in_place(void * arg) {
    struct looked_at * at = arg;
    struct ggml_context * ctx = new_context();
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_backend_t backend = ggml_backend_cpu_init();
    struct ggml_tensor * y = ggml_sqr(ctx, at->x);
    ggml_build_forward_expand(graph, y);
    ggml_backend_buffer_t own = ggml_backend_alloc_ctx_tensors(ctx, backend);
    for (int i = 0; i < 200; i++) {
        atomic_fetch_add(&at->wrong, !ggml_backend_graph_compute(backend, graph));
    }
    ggml_backend_buffer_free(own);
    ggml_backend_free(backend);
    ggml_free(ctx);
}

// Threads build views of a tensor while a scheduler allocates it repeatedly.
static void views_of_a_tensor_that_is_being_placed(void) {
    struct looked_at at = { 0 };
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_sched_t sched = ggml_backend_sched_new(&backend, NULL, 1, 0);
    struct ggml_context * ctx = new_context();
    struct ggml_cgraph * graphs[2] = { ggml_new_graph(ctx), ggml_new_graph(ctx) };
    at.x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 64);
    ggml_build_forward_expand(graphs[0], ggml_sqr(ctx, at.x));
    ggml_build_forward_expand(graphs[1], ggml_add(ctx, ggml_sqr(ctx, ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4096)),
                                             ggml_repeat(ctx, at.x, ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4096))));
    gb_thread threads[2];
    for (int i = 0; i < 2; i++) {
        REQUIRE(gb_thread_start(&threads[i], build_views, &at));
    }
    for (int i = 0; i < 100; i++) {
        OK(ggml_backend_sched_graph_compute(sched, graphs[i % 2]));
        if (i % 5 == 0) {
            OK(ggml_backend_sched_reset(sched));
        }
    }
    atomic_store(&at.stop, true);
    for (int i = 0; i < 2; i++) {
        gb_thread_join(threads[i]);
    }
    CHECK_INT(at.wrong, 0);
    ggml_backend_sched_free(sched);
    ggml_backend_free(backend);
    ggml_free(ctx);
}

// Two threads read weights, a third reports writes to them, and schedulers check whether their
// copies are valid.
static void writes_that_others_tell_of(void) {
    struct looked_at at = { 0 };
    ggml_backend_t list[2] = { ggml_backend_reg_init_backend_from_str("SIM:name=A"), ggml_backend_cpu_init() };
    ggml_backend_sched_t sched = ggml_backend_sched_new(list, NULL, 2, 0);
    struct ggml_context * weights = new_context();
    struct ggml_context * ctx = new_context();
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    at.x = ggml_new_tensor_1d(weights, GGML_TYPE_F32, 64);
    at.buffer = ggml_backend_alloc_ctx_tensors(weights, list[1]);
    ggml_backend_buffer_set_usage(at.buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_clear(at.buffer, 0);
    struct ggml_tensor * y = ggml_sqr(ctx, at.x);
    ggml_build_forward_expand(graph, y);
    OK(ggml_backend_sched_set_node_backend(sched, y, list[0]));
    gb_thread threads[3];
    REQUIRE(gb_thread_start(&threads[0], tell_of_writes, &at));
    for (int i = 1; i < 3; i++) {
        REQUIRE(gb_thread_start(&threads[i], compute_in_place, &at));
    }
    for (int i = 0; i < 100; i++) {
        OK(ggml_backend_sched_graph_compute(sched, graph));
    }
    for (int i = 1; i < 3; i++) {
        gb_thread_join(threads[i]);
    }
    atomic_store(&at.stop, true);
    gb_thread_join(threads[0]);
    CHECK_INT(at.wrong, 0);
    ggml_backend_sched_free(sched);
    ggml_backend_buffer_free(at.buffer);
    for (int i = 0; i < 2; i++) {
        ggml_backend_free(list[i]);
    }
    ggml_free(weights);
    ggml_free(ctx);
}

TEST_MAIN(TEST(views_of_a_tensor_that_is_being_placed), TEST(writes_that_others_tell_of), TEST(shared_memory),
    TEST(shared_memory_without_cpu), TEST(simulated_devices), TEST(runs_in_a_row), TEST(independent_splits_overlap),
    TEST(several_threads))
