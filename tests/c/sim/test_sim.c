// Simulated device: the host cannot access its memory, its queue keeps order and reports failures
// at the right time, limits and filters work, and objects may be freed in any order.
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/current.h"
#include "base/env.h"
#include "base/mem.h"
#include "base/thread.h"
#include "ggml-backend-impl.h"
#include "test_memory.h"
#include "sim/sim.h"

#if defined(__SANITIZE_THREAD__)
#    define UNDER_TSAN 1
#else
#    define UNDER_TSAN 0
#endif

// A device with some tensors in its memory.
struct rig {
    ggml_backend_t backend;
    ggml_backend_buffer_t buffer;
    struct ggml_context * ctx;
    size_t used;
};

static bool rig_open(struct rig * r, const char * params) {
    *r = (struct rig){ 0 };
    r->backend = gb_sim_reg_init(params, NULL);
    r->ctx = ggml_init((struct ggml_init_params){ 1u << 20, NULL, true });
    r->buffer = r->backend != NULL ? ggml_backend_alloc_buffer(r->backend, 1u << 20) : NULL;
    return r->buffer != NULL && r->ctx != NULL;
}

static void rig_close(struct rig * r) {
    ggml_backend_buffer_free(r->buffer);
    ggml_free(r->ctx);
    ggml_backend_free(r->backend);
}

static struct ggml_tensor * place(struct rig * r, struct ggml_tensor * t) {
    if (t == NULL || (t->view_src != NULL && ggml_backend_view_init(r->buffer, t) != GGML_STATUS_SUCCESS)) {
        return NULL;
    }
    if (t->view_src == NULL) {
        char * base = ggml_backend_buffer_get_base(r->buffer);
        if (ggml_backend_tensor_alloc(r->buffer, t, base + r->used) != GGML_STATUS_SUCCESS) {
            return NULL;
        }
        r->used += (ggml_nbytes(t) + 127) / 128 * 128;
    }
    return t;
}

static struct ggml_tensor * vector(struct rig * r, int64_t n) {
    return place(r, ggml_new_tensor_1d(r->ctx, GGML_TYPE_F32, n));
}

static void fill(struct ggml_tensor * t, float v) {
    const int64_t n = ggml_nelements(t);
    float * x = malloc((size_t) n * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        x[i] = v;
    }
    ggml_backend_tensor_set(t, x, 0, (size_t) n * sizeof(float));
    free(x);
}

static float last(const struct ggml_tensor * t) {
    float v = -12345;
    ggml_backend_tensor_get(t, &v, ((size_t) ggml_nelements(t) - 1) * sizeof(float), sizeof(float));
    return v;
}

static struct ggml_cgraph * graph_of(struct rig * r, struct ggml_tensor * t) {
    struct ggml_cgraph * g = ggml_new_graph(r->ctx);
    ggml_build_forward_expand(g, t);
    return g;
}

// --------------------------------------------------------------------------------------------- waits that are given up

static bool enough(void * data) { return --*(int *) data <= 0; }

#define PATIENTLY(times, call)                                                                 \
    do {                                                                                       \
        int left_ = (times);                                                                   \
        const int64_t start_ = gb_time_ns();                                                   \
        gb_set_poll(enough, &left_);                                                           \
        CHECK_INT(call, GGML_STATUS_ABORTED);                                                  \
        gb_set_poll(NULL, NULL);                                                               \
        CHECK_MSG(gb_time_ns() - start_ < 10 * (int64_t) 1000000000, "%s took %lld ms", #call, \
            (long long) (gb_time_ns() - start_) / 1000000);                                    \
        CHECK(strstr(ggml_last_error(), "was interrupted") != NULL);                           \
        ggml_clear_error();                                                                    \
    } while (0)

// A device that takes minutes for everything.
static void waits_are_given_up(void) {
    struct rig r;
    REQUIRE(rig_open(&r, "delay=100s"));
    struct ggml_tensor * x = vector(&r, 1000);
    struct ggml_tensor * y = place(&r, ggml_sqr(r.ctx, x));
    struct ggml_cgraph * g = graph_of(&r, y);
    fill(x, 3);
    for (int i = 0; i < 3; i++) { // usable again each time
        CHECK(ggml_backend_graph_compute(r.backend, g));
        CHECK(ggml_backend_graph_compute(r.backend, g));
        PATIENTLY(2, ggml_backend_synchronize(r.backend));
        CHECK(last(x) == 3);
        CHECK_INT(ggml_backend_synchronize(r.backend), GGML_STATUS_SUCCESS);
    }
    ggml_backend_event_t event = ggml_backend_event_new(r.backend);
    CHECK(ggml_backend_graph_compute(r.backend, g));
    CHECK_INT(ggml_backend_event_record(event), GGML_STATUS_SUCCESS);
    PATIENTLY(1, ggml_backend_event_synchronize(event));
    ggml_backend_event_free(event);
    // the caller that queued the graph gets the failure, once
    CHECK_INT(ggml_backend_synchronize(r.backend), GGML_STATUS_ABORTED);
    CHECK_INT(ggml_backend_synchronize(r.backend), GGML_STATUS_SUCCESS);
    float v;
    CHECK(ggml_backend_graph_compute(r.backend, g));
    PATIENTLY(1, ggml_backend_tensor_get(x, &v, 0, sizeof(v)));
    PATIENTLY(1, ggml_backend_tensor_get(x, &v, 0, sizeof(v))); // a failure that no call reported
    CHECK_INT(ggml_backend_synchronize(r.backend), GGML_STATUS_ABORTED);
    CHECK(last(x) == 3);
    int one = 1; // freeing does not wait for minutes either
    CHECK(ggml_backend_graph_compute(r.backend, g));
    gb_set_poll(enough, &one);
    rig_close(&r);
    gb_set_poll(NULL, NULL);
    ggml_clear_error();
}

static void transfers_are_given_up(void) {
    struct rig r;
    REQUIRE(rig_open(&r, "copy_delay=100s"));
    struct ggml_tensor * x = vector(&r, 1000);
    float v[1000] = { 1 };
    PATIENTLY(2, ggml_backend_tensor_set(x, v, 0, sizeof(v)));
    PATIENTLY(1, ggml_backend_tensor_get(x, v, 0, sizeof(v))); // no work of the first remains
    PATIENTLY(1, ggml_backend_buffer_clear(r.buffer, 0));
    CHECK_INT(ggml_backend_synchronize(r.backend), GGML_STATUS_SUCCESS);
    struct rig other;
    REQUIRE(rig_open(&other, NULL));
    struct ggml_tensor * y = vector(&other, 1000);
    PATIENTLY(1, ggml_backend_tensor_copy(y, x));
    PATIENTLY(1, ggml_backend_tensor_copy(x, y) == GGML_STATUS_SUCCESS ? ggml_backend_tensor_get(x, v, 0, 4)
                                                                       : ggml_last_status());
    rig_close(&other);
    rig_close(&r);
    ggml_clear_error();
}

// Cancels the wait of one queue for another queue that is busy for minutes.
static void queues_stop_waiting(void) {
    struct rig a, b;
    REQUIRE(rig_open(&a, "delay=100s") && rig_open(&b, NULL));
    struct ggml_tensor * x = vector(&a, 100);
    struct ggml_cgraph * slow = graph_of(&a, place(&a, ggml_sqr(a.ctx, x)));
    struct ggml_tensor * z = vector(&b, 100);
    struct ggml_tensor * y = place(&b, ggml_sqr(b.ctx, z));
    struct ggml_cgraph * quick = graph_of(&b, y);
    ggml_backend_event_t event = ggml_backend_event_new(a.backend);
    fill(z, 3);
    for (int i = 0; i < 5; i++) {
        CHECK(ggml_backend_graph_compute(a.backend, slow));
        CHECK_INT(ggml_backend_event_record(event), GGML_STATUS_SUCCESS);
        CHECK_INT(ggml_backend_event_wait(b.backend, event), GGML_STATUS_SUCCESS);
        CHECK(ggml_backend_graph_compute(b.backend, quick));
        PATIENTLY(1 + i % 2, ggml_backend_synchronize(b.backend));
        CHECK(last(z) == 3); // b continues, and a still has its work
        CHECK(ggml_backend_graph_compute(b.backend, quick));
        CHECK(last(y) == 9);
        PATIENTLY(1, ggml_backend_synchronize(a.backend));
    }
    CHECK(ggml_backend_graph_compute(a.backend, slow));
    ggml_backend_event_record(event);
    ggml_backend_event_wait(b.backend, event);
    ggml_backend_event_free(event);
    PATIENTLY(1, ggml_backend_synchronize(a.backend)); // which also ends the wait of b
    CHECK_INT(ggml_backend_synchronize(b.backend), GGML_STATUS_SUCCESS);
    rig_close(&b);
    rig_close(&a);
    ggml_clear_error();
}

// A long computation, not a delay.
static void computing_is_given_up(void) {
    for (int threads = 1; threads <= 2; threads++) {
        struct rig r = { 0 };
        r.backend = gb_sim_reg_init(threads == 1 ? NULL : "threads=2", NULL);
        r.ctx = ggml_init((struct ggml_init_params){ 1u << 20, NULL, true });
        r.buffer = ggml_backend_alloc_buffer(r.backend, (size_t) 200 << 20);
        REQUIRE(r.buffer != NULL);
        struct ggml_tensor * x = place(&r, ggml_new_tensor_2d(r.ctx, GGML_TYPE_F32, 2048, 2048));
        struct ggml_tensor * t = x;
        for (int i = 0; i < 8; i++) { // at least some seconds
            t = place(&r, ggml_mul_mat(r.ctx, x, t));
        }
        CHECK_INT(ggml_backend_buffer_clear(r.buffer, 0), GGML_STATUS_SUCCESS);
        CHECK(ggml_backend_graph_compute(r.backend, graph_of(&r, t)));
        PATIENTLY(1, ggml_backend_synchronize(r.backend));
        CHECK(last(x) == 0);
        rig_close(&r);
    }
}

struct other_user {
    struct ggml_tensor * x;
    atomic_bool * end;
    int wrong, aborted;
    atomic_int done;
};

static void * use_and_check(void * arg) {
    struct other_user * u = arg;
    float v = 0;
    while (!*u->end) {
        const float next = v + 1;
        const enum ggml_status set = ggml_backend_tensor_set(u->x, &next, 0, sizeof(next));
        v = set == GGML_STATUS_SUCCESS ? next : v;
        float got = -1;
        const enum ggml_status status = ggml_backend_tensor_get(u->x, &got, 0, sizeof(got));
        u->aborted += set != GGML_STATUS_SUCCESS || status != GGML_STATUS_SUCCESS;
        u->done += status == GGML_STATUS_SUCCESS;
        // a cancelled set may have been executed
        u->wrong += status == GGML_STATUS_SUCCESS && got != v && got != next;
        v = status == GGML_STATUS_SUCCESS ? got : v;
    }
    ggml_clear_error();
    return NULL;
}

// One thread cancels repeatedly. Another thread reads right values or gets an error.
static void other_threads_get_errors(void) {
    struct rig r;
    REQUIRE(rig_open(&r, "delay=100s,copy_delay=20us"));
    struct ggml_tensor * x = vector(&r, 100);
    struct ggml_cgraph * g = graph_of(&r, place(&r, ggml_sqr(r.ctx, x)));
    atomic_bool end = false;
    struct other_user user = { vector(&r, 100), &end, 0, 0, 0 };
    pthread_t thread;
    fill(user.x, 0);
    REQUIRE(pthread_create(&thread, NULL, use_and_check, &user) == 0);
    for (int i = 0; i < 30; i++) {
        const int done = user.done;
        CHECK(ggml_backend_graph_compute(r.backend, g));
        PATIENTLY(1 + i % 2, ggml_backend_synchronize(r.backend));
        while (user.done == done) { // it continues
            gb_thread_yield();
        }
    }
    end = true;
    int now = 1;
    gb_set_poll(enough, &now);
    ggml_backend_synchronize(r.backend);
    gb_set_poll(NULL, NULL);
    pthread_join(thread, NULL);
    CHECK_INT(user.wrong, 0);
    CHECK(user.done > 0);
    rig_close(&r);
    ggml_clear_error();
}

// -------------------------------------------------------------------------------------------------------------- memory

static void reads(const volatile float * data) { (void) *data; }

static void writes(const volatile float * data) { *(volatile float *) (uintptr_t) data = 1; }

static void host_access_faults(void) {
    struct rig r;
    REQUIRE(rig_open(&r, NULL));
    struct ggml_tensor * x = vector(&r, 100);
    REQUIRE(x != NULL);
    fill(x, 3);
    CHECK(last(x) == 3);
    void (*const touches[])(const volatile float *) = { reads, writes };
    for (int i = 0; i < 2; i++) {
        fflush(stdout);
        const pid_t pid = fork();
        REQUIRE(pid >= 0);
        if (pid == 0) {
            alarm(20);
            fclose(stderr); // a sanitizer reports the fault
            touches[i]((const float *) x->data + 99);
            _exit(0);
        }
        int status = 0;
        waitpid(pid, &status, 0);
        CHECK_MSG(!WIFEXITED(status) || WEXITSTATUS(status) != 0, "the host could touch device memory");
    }
    CHECK(!ggml_backend_buffer_is_host(r.buffer));
    rig_close(&r);
}

static void transfers(void) {
    struct rig r;
    REQUIRE(rig_open(&r, "align=256"));
    CHECK_INT(ggml_backend_get_alignment(r.backend), 256);
    CHECK_INT((uintptr_t) ggml_backend_buffer_get_base(r.buffer) % 256, 0);
    struct ggml_tensor * x = vector(&r, 64);
    struct ggml_tensor * v = place(&r, ggml_view_1d(r.ctx, x, 16, 32 * sizeof(float)));
    REQUIRE(v != NULL);
    CHECK(isnan(last(x))); // fresh memory
    fill(x, 1);
    fill(v, 2);
    float got[64];
    CHECK_INT(ggml_backend_tensor_get(x, got, 0, sizeof(got)), GGML_STATUS_SUCCESS);
    for (int i = 0; i < 64; i++) {
        CHECK(got[i] == (i >= 32 && i < 48 ? 2.0f : 1.0f));
    }
    CHECK_INT(ggml_backend_buffer_clear(r.buffer, 0), GGML_STATUS_SUCCESS);
    CHECK(last(v) == 0);
    CHECK(ggml_backend_tensor_get(x, got, 200, 57) == GGML_STATUS_INVALID_ARGUMENT);
    rig_close(&r);
}

static void memory_is_limited(void) {
    ggml_backend_t backend = gb_sim_reg_init("mem=64K,max=48K,name=small", NULL);
    REQUIRE(backend != NULL);
    CHECK_STR(ggml_backend_name(backend), "small");
    CHECK_INT(ggml_backend_get_max_size(backend), 48 << 10);
    CHECK(ggml_backend_alloc_buffer(backend, 49 << 10) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "48.0 KiB");
    ggml_backend_buffer_t a = ggml_backend_alloc_buffer(backend, 40 << 10);
    REQUIRE(a != NULL);
    CHECK(ggml_backend_alloc_buffer(backend, 25 << 10) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "small: 40.0 KiB of 64.0 KiB in use, a buffer needs 25.0 KiB: free");
    ggml_backend_buffer_t b = ggml_backend_alloc_buffer(backend, 24 << 10);
    CHECK(b != NULL); // exactly full
    CHECK(ggml_backend_alloc_buffer(backend, 0) == NULL);
    ggml_backend_buffer_free(a);
    a = ggml_backend_alloc_buffer(backend, 30 << 10); // freed memory is available again
    CHECK(a != NULL);
    ggml_backend_buffer_free(a);
    ggml_backend_buffer_free(b);
    ggml_backend_free(backend);
    backend = gb_sim_reg_init("fail_alloc_after=2", NULL);
    a = ggml_backend_alloc_buffer(backend, 10);
    b = ggml_backend_alloc_buffer(backend, 10);
    CHECK(a != NULL && b != NULL && ggml_backend_alloc_buffer(backend, 10) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "fail_alloc_after");
    ggml_backend_buffer_free(a);
    ggml_backend_buffer_free(b);
    ggml_backend_free(backend);
}

static void devices_are_disjoint(void) {
    struct rig a, b;
    REQUIRE(rig_open(&a, NULL) && rig_open(&b, NULL));
    ggml_backend_buffer_type_t ta = ggml_backend_get_default_buffer_type(a.backend);
    ggml_backend_buffer_type_t tb = ggml_backend_get_default_buffer_type(b.backend);
    CHECK(ta != tb && strcmp(ggml_backend_name(a.backend), ggml_backend_name(b.backend)) != 0);
    CHECK(strncmp(ggml_backend_name(a.backend), "SIM", 3) == 0);
    CHECK(ggml_backend_buft_supports_backend(ta, a.backend) && !ggml_backend_buft_supports_backend(ta, b.backend));
    ggml_backend_t cpu = ggml_backend_cpu_init();
    CHECK(!ggml_backend_buft_supports_backend(ta, cpu));
    CHECK(!ggml_backend_buft_supports_backend(ggml_backend_cpu_buffer_type(), a.backend));
    struct ggml_tensor * x = vector(&a, 4);
    struct ggml_tensor * y = place(&b, ggml_sqr(b.ctx, x)); // reads the other device's memory
    REQUIRE(y != NULL);
    CHECK(!ggml_backend_graph_compute(b.backend, graph_of(&b, y)));
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "not in this device's");
    ggml_backend_free(cpu);
    rig_close(&a);
    rig_close(&b);
}

// ----------------------------------------------------------------------------------------------------------- computing

static void computes_what_the_cpu_computes(void) {
    const char * const params[] = { "", "threads=3", "delay=1ms" };
    for (int p = 0; p < 3; p++) {
        struct rig r;
        REQUIRE(rig_open(&r, params[p]));
        ggml_backend_t cpu = ggml_backend_cpu_init();
        struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1u << 20, NULL, false });
        struct ggml_tensor * results[2];
        for (int side = 0; side < 2; side++) {
            struct ggml_context * c = side == 0 ? r.ctx : ctx;
            struct ggml_tensor * w = ggml_new_tensor_2d(c, GGML_TYPE_F32, 48, 33);
            struct ggml_tensor * x = ggml_new_tensor_2d(c, GGML_TYPE_F32, 48, 7);
            struct ggml_tensor * m = ggml_mul_mat(c, w, x);
            struct ggml_tensor * v = ggml_view_2d(c, m, 20, 7, m->nb[1], 8);
            results[side] = ggml_soft_max(c, ggml_gelu(c, ggml_cont(c, v)));
            struct ggml_cgraph * g = ggml_new_graph(c);
            ggml_build_forward_expand(g, results[side]);
            if (side == 0) {
                REQUIRE(place(&r, w) != NULL && place(&r, x) != NULL);
                for (int i = 0; i < g->n_nodes; i++) {
                    REQUIRE(place(&r, g->nodes[i]) != NULL);
                }
            }
            float data[48 * 33];
            test_seed = 5;
            for (int i = 0; i < 48 * 33; i++) {
                data[i] = test_random_float(-1, 1);
            }
            ggml_backend_tensor_set(w, data, 0, ggml_nbytes(w));
            ggml_backend_tensor_set(x, data + 100, 0, ggml_nbytes(x));
            CHECK(ggml_backend_graph_compute(side == 0 ? r.backend : cpu, g));
        }
        float a[140], b[140];
        REQUIRE(ggml_nbytes(results[0]) == sizeof(a));
        ggml_backend_tensor_get(results[0], a, 0, sizeof(a));
        ggml_backend_tensor_get(results[1], b, 0, sizeof(b));
        CHECK(memcmp(a, b, sizeof(a)) == 0);
        CHECK_INT(ggml_backend_synchronize(r.backend), GGML_STATUS_SUCCESS);
        ggml_free(ctx);
        ggml_backend_free(cpu);
        rig_close(&r);
    }
}

static void queue_keeps_order(void) {
    struct rig r;
    REQUIRE(rig_open(&r, "delay=30ms,copy_delay=2ms"));
    struct ggml_tensor * x = vector(&r, 1000);
    struct ggml_tensor * y = place(&r, ggml_scale(r.ctx, x, 2));
    struct ggml_tensor * z = vector(&r, 1000);
    struct ggml_cgraph * g = graph_of(&r, y);
    static float in[5][1000], out[5];
    const int64_t start = ggml_time_us();
    for (int i = 0; i < 5; i++) { // each set must wait for the earlier compute, and precede the later one
        for (int j = 0; j < 1000; j++) {
            in[i][j] = (float) (i + 1);
        }
        CHECK_INT(ggml_backend_tensor_set_async(r.backend, x, in[i], 0, sizeof(in[i])), GGML_STATUS_SUCCESS);
        CHECK(ggml_backend_graph_compute(r.backend, g));
        CHECK_INT(ggml_backend_tensor_copy_async(r.backend, y, z), GGML_STATUS_SUCCESS);
        CHECK_INT(ggml_backend_tensor_get_async(r.backend, z, &out[i], 999 * sizeof(float), sizeof(float)),
            GGML_STATUS_SUCCESS);
    }
    const int64_t queued = ggml_time_us() - start;
    CHECK_INT(ggml_backend_synchronize(r.backend), GGML_STATUS_SUCCESS);
    const int64_t done = ggml_time_us() - start;
    for (int i = 0; i < 5; i++) {
        CHECK_MSG(out[i] == (float) (2 * (i + 1)), "round %d gave %g", i, (double) out[i]);
    }
    CHECK_MSG(done >= 5 * (30 + 3 * 2) * 1000, "180 ms of delays took %lld us", (long long) done);
    CHECK_MSG(queued < done - 10000, "queuing took %lld of %lld us", (long long) queued, (long long) done);
    rig_close(&r);
}

// Each node and byte takes its time: 2 nodes of 10 ms, and 4000 bytes in each direction at 100,000
// a second.
static void work_takes_its_time(void) {
    struct rig r;
    REQUIRE(rig_open(&r, "op_delay=10ms,copy_bw=100000"));
    struct ggml_tensor * x = vector(&r, 1000);
    struct ggml_tensor * y = place(&r, ggml_scale(r.ctx, x, 2));
    struct ggml_tensor * z = place(&r, ggml_scale(r.ctx, y, 2));
    struct ggml_cgraph * g = graph_of(&r, z);
    static float in[1000] = { 1 }, out[1000];
    int64_t start = ggml_time_us();
    ggml_backend_tensor_set(x, in, 0, sizeof(in));
    CHECK(ggml_time_us() - start >= 40000);
    start = ggml_time_us();
    CHECK(ggml_backend_graph_compute(r.backend, g));
    CHECK_INT(ggml_backend_synchronize(r.backend), GGML_STATUS_SUCCESS);
    CHECK(ggml_time_us() - start >= 20000);
    start = ggml_time_us();
    ggml_backend_tensor_get(z, out, 0, sizeof(out));
    CHECK(ggml_time_us() - start >= 40000);
    CHECK(out[0] == 4);
    rig_close(&r);
}

// A queued set reads its source when the queue executes it. It makes no hidden copy.
static void a_queued_set_reads_late(void) {
    struct rig r;
    REQUIRE(rig_open(&r, "copy_delay=50ms"));
    struct ggml_tensor * x = vector(&r, 1);
    float * data = malloc(sizeof(float));
    *data = 1;
    CHECK_INT(ggml_backend_tensor_set_async(r.backend, x, data, 0, sizeof(float)), GGML_STATUS_SUCCESS);
    if (!UNDER_TSAN) { // a data race, on purpose
        *data = 2;
    }
    CHECK(last(x) == (UNDER_TSAN ? 1.0f : 2.0f));
    free(data);
    rig_close(&r);
}

static void a_queued_graph_is_a_snapshot(void) {
    struct rig r;
    REQUIRE(rig_open(&r, "delay=30ms"));
    struct ggml_tensor * x = vector(&r, 10);
    struct ggml_tensor * y = place(&r, ggml_scale(r.ctx, x, 3));
    struct ggml_tensor * z = vector(&r, 10);
    fill(x, 2);
    fill(z, 7);
    struct ggml_cgraph * g = graph_of(&r, y);
    CHECK(ggml_backend_graph_compute(r.backend, g));
    ggml_graph_clear(g); // while it is queued
    y->op_params[0] = 0;
    y->src[0] = z;
    CHECK(last(y) == 6);
    rig_close(&r);
}

static void plans(void) {
    struct rig r;
    REQUIRE(rig_open(&r, "delay=1ms,threads=2"));
    struct ggml_tensor * x = vector(&r, 30000);
    struct ggml_tensor * y = place(&r, ggml_scale_inplace(r.ctx, x, 2));
    REQUIRE(y != NULL);
    fill(x, 1);
    struct ggml_cgraph * g = graph_of(&r, y);
    ggml_backend_graph_plan_t plan = ggml_backend_graph_plan_create(r.backend, g);
    REQUIRE(plan != NULL);
    ggml_graph_clear(g);
    for (int i = 0; i < 10; i++) {
        CHECK_INT(ggml_backend_graph_plan_compute(r.backend, plan), GGML_STATUS_SUCCESS);
    }
    ggml_backend_graph_plan_free(r.backend, plan); // with queued work that uses it
    CHECK_INT(ggml_backend_synchronize(r.backend), GGML_STATUS_SUCCESS);
    CHECK(last(x) == 1024);
    rig_close(&r);
}

static void copies_between_memories(void) {
    struct rig a, b;
    REQUIRE(rig_open(&a, "copy_delay=1ms") && rig_open(&b, "delay=1ms"));
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1u << 20, NULL, false });
    struct ggml_tensor * host = ggml_set_f32(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 100), 4);
    struct ggml_tensor * back = ggml_set_f32(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 100), 0);
    struct ggml_tensor *x = vector(&a, 100), *x2 = vector(&a, 100);
    struct ggml_tensor *y = vector(&b, 100), *z = place(&b, ggml_sqr(b.ctx, y));
    CHECK_INT(ggml_backend_tensor_copy(host, x), GGML_STATUS_SUCCESS);                  // host -> device
    CHECK_INT(ggml_backend_tensor_copy(x, x2), GGML_STATUS_SUCCESS);                    // inside
    CHECK_INT(ggml_backend_tensor_copy(x2, y), GGML_STATUS_SUCCESS);                    // to another device
    CHECK(ggml_backend_graph_compute(b.backend, graph_of(&b, z)));                      // queued, and visible to
    CHECK_INT(ggml_backend_tensor_copy(z, x), GGML_STATUS_SUCCESS);                     // the copy back
    CHECK_INT(ggml_backend_tensor_copy_async(a.backend, x, back), GGML_STATUS_SUCCESS); // device -> host
    CHECK_INT(ggml_backend_synchronize(a.backend), GGML_STATUS_SUCCESS);
    CHECK(ggml_get_f32_1d(back, 0) == 16 && ggml_get_f32_1d(back, 99) == 16);
    // the hooks themselves: both directions, and nothing else
    fill(x, 5);
    CHECK(ggml_backend_buffer_copy_tensor(x, y) && last(y) == 5);
    CHECK(a.buffer->iface.cpy_tensor_to(a.buffer, x, back) && ggml_get_f32_1d(back, 99) == 5);
    CHECK(b.buffer->iface.cpy_tensor(b.buffer, host, y) && last(y) == 4);
    // strided: gaps stay unchanged
    struct ggml_tensor * s = place(&a, ggml_view_2d(a.ctx, x, 2, 10, 10 * sizeof(float), 0));
    struct ggml_tensor * h = ggml_view_2d(ctx, host, 2, 10, 10 * sizeof(float), 0);
    CHECK_INT(ggml_backend_tensor_copy(h, s), GGML_STATUS_SUCCESS);
    float got[100];
    ggml_backend_tensor_get(x, got, 0, sizeof(got));
    for (int i = 0; i < 100; i++) {
        CHECK(got[i] == (i % 10 < 2 ? 4.0f : 5.0f));
    }
    ggml_free(ctx);
    rig_close(&a);
    rig_close(&b);
}

// ------------------------------------------------------------------------------------------------------------- filters

static void identity(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * user) {
    (void) dst, (void) a, (void) ith, (void) nth, (void) user;
}

static void anything(struct ggml_tensor * dst, int ith, int nth, void * user) {
    (void) dst, (void) ith, (void) nth, (void) user;
}

static void op_filter(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1u << 20, NULL, true });
    struct ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 8, 8);
    struct ggml_tensor * ops[] = { ggml_mul_mat(ctx, x, x), ggml_add(ctx, x, x), ggml_gelu(ctx, x), ggml_relu(ctx, x),
        ggml_soft_max(ctx, x), ggml_transpose(ctx, x), ggml_reshape_1d(ctx, x, 64), x,
        ggml_map_custom1(ctx, x, identity, 1, NULL),
        ggml_custom(ctx, GGML_TYPE_I8, x->ne, 1, NULL, 0, anything, 1, NULL) };
    static const struct {
        const char * params;
        const char * yes;
    } cases[] = {
        { NULL, "1111111100" },
        { "ops=mul_mat+add", "1100011100" },
        { "ops=MUL_MAT+Gelu", "1010011100" },
        { "ops=unary", "0011011100" },
        { "noops=soft_max", "1111011100" },
        { "noops=gelu", "1101111100" },
        { "noops=unary", "1100111100" },
        { "noops=relu,ops=unary+add", "0110011100" },
        { "ops=", "0000011100" },
    };
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        ggml_backend_t backend = gb_sim_reg_init(cases[c].params, NULL);
        REQUIRE(backend != NULL);
        for (int i = 0; i < 10; i++) {
            const bool expected = cases[c].yes[i] == '1';
            CHECK_MSG(ggml_backend_supports_op(backend, ops[i]) == expected, "%s: %s", cases[c].params,
                ggml_op_desc(ops[i]));
            const char * reason = ggml_backend_unsupported_reason(backend, ops[i]);
            CHECK((reason == NULL) == expected);
        }
        ggml_backend_free(backend);
    }
    ggml_free(ctx);
    struct rig r;
    REQUIRE(rig_open(&r, "noops=sqr,name=dev"));
    struct ggml_tensor * y = place(&r, ggml_sqr(r.ctx, vector(&r, 4)));
    CHECK(!ggml_backend_graph_compute(r.backend, graph_of(&r, y)));
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "dev: cannot compute SQR");
    rig_close(&r);
}

static void bad_parameters(void) {
    static const char * const bad[] = { "speed=3", "mem", "mem=", "mem=12Q", "mem=-5", "max=x", "delay=5", "delay=2h",
        "threads=0", "align=100", "ops=mulmat", "noops=add+nothing", "noops=", "fail_op=what", "fail_alloc_after=-1",
        "name=", "name=abcdefghijklmnopqrstuvwxyz0123456789", ",", "mem=1M,,max=1M" };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ggml_clear_error();
        CHECK_MSG(gb_sim_reg_init(bad[i], NULL) == NULL, "accepted '%s'", bad[i]);
        CHECK_INT(ggml_last_status(), GGML_STATUS_INVALID_ARGUMENT);
    }
    gb_sim_reg_init("speed=3", NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "copy_delay=<time>");
    gb_sim_reg_init("ops=mulmat", NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'mulmat'");
    ggml_backend_t backend = ggml_backend_reg_init_backend_from_str("sim:mem=64M,ops=mul_mat+add,delay=2ms");
    CHECK(backend != NULL);
    ggml_backend_free(backend);
}

// -------------------------------------------------------------------------------------------------------------- errors

static void failures_wait_for_synchronize(void) {
    struct rig r;
    REQUIRE(rig_open(&r, "fail_op=sqr,delay=1ms"));
    struct ggml_tensor * x = vector(&r, 8);
    struct ggml_tensor * y = place(&r, ggml_sqr(r.ctx, x));
    struct ggml_tensor * z = place(&r, ggml_scale(r.ctx, x, 2));
    struct ggml_cgraph * gy = graph_of(&r, y);
    struct ggml_cgraph * gz = graph_of(&r, z);
    fill(x, 1);
    fill(z, 9);
    float v = 5;
    CHECK(ggml_backend_graph_compute(r.backend, gy)); // queued; fails later
    CHECK(ggml_backend_graph_compute(r.backend, gz)); // skipped
    CHECK_INT(ggml_backend_tensor_get_async(r.backend, z, &v, 0, sizeof(v)), GGML_STATUS_SUCCESS); // skipped
    ggml_clear_error();
    CHECK(ggml_backend_tensor_get(z, &v, 0, sizeof(v)) == GGML_STATUS_DEVICE_ERROR); // waits, so it reports
    CHECK_ERROR(GGML_STATUS_DEVICE_ERROR, "SQR");
    CHECK(ggml_backend_synchronize(r.backend) == GGML_STATUS_DEVICE_ERROR);
    CHECK_ERROR(GGML_STATUS_DEVICE_ERROR, "fail_op");
    CHECK(v == 5);
    CHECK_INT(ggml_backend_synchronize(r.backend), GGML_STATUS_SUCCESS); // reported once
    CHECK(last(z) == 9);
    CHECK(ggml_backend_graph_compute(r.backend, gz)); // and the device works again
    CHECK_INT(ggml_backend_synchronize(r.backend), GGML_STATUS_SUCCESS);
    CHECK(last(z) == 2);
    rig_close(&r);
}

static void failures_inside_nodes(void) {
    struct rig r;
    REQUIRE(rig_open(&r, "threads=2"));
    struct ggml_tensor * rows = place(&r, ggml_new_tensor_2d(r.ctx, GGML_TYPE_F32, 4, 3));
    struct ggml_tensor * ids = place(&r, ggml_new_tensor_1d(r.ctx, GGML_TYPE_I32, 2));
    struct ggml_tensor * y = place(&r, ggml_get_rows(r.ctx, rows, ids));
    const int32_t bad[2] = { 0, 33 };
    ggml_backend_tensor_set(ids, bad, 0, sizeof(bad));
    CHECK(ggml_backend_graph_compute(r.backend, graph_of(&r, y)));
    CHECK(ggml_backend_synchronize(r.backend) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "33");
    struct ggml_tensor * loose = ggml_set_name(ggml_new_tensor_1d(r.ctx, GGML_TYPE_F32, 4), "loose");
    struct ggml_tensor * z = place(&r, ggml_sqr(r.ctx, loose));
    CHECK(!ggml_backend_graph_compute(r.backend, graph_of(&r, z))); // seen when it is queued
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "'loose'");
    rig_close(&r);
}

// ---------------------------------------------------------------------------------------------------------- life cycle

static void ends_in_any_order(void) {
    const int64_t before = gb_test_live_allocs();
    for (int order = 0; order < 2; order++) {
        struct rig r;
        REQUIRE(rig_open(&r, "delay=5ms,name=passing"));
        struct ggml_tensor * x = vector(&r, 16);
        fill(x, 2);
        struct ggml_tensor * y = place(&r, ggml_sqr(r.ctx, x));
        CHECK(ggml_backend_graph_compute(r.backend, graph_of(&r, y)));
        if (order == 0) { // the buffer outlives its backend, and is usable
            ggml_backend_free(r.backend);
            CHECK(last(y) == 4);
            CHECK_STR(ggml_backend_buffer_name(r.buffer), "passing");
            ggml_backend_buffer_free(r.buffer);
        } else {
            ggml_backend_buffer_free(r.buffer); // with queued work that uses it
            ggml_backend_free(r.backend);
        }
        ggml_free(r.ctx);
    }
    struct rig r; // a backend that is freed with an unreported failure
    REQUIRE(rig_open(&r, "fail_op=sqr"));
    struct ggml_tensor * x = vector(&r, 16);
    CHECK(ggml_backend_graph_compute(r.backend, graph_of(&r, place(&r, ggml_sqr(r.ctx, x)))));
    ggml_backend_free(r.backend);
    fill(x, 3);
    CHECK(last(x) == 3);
    ggml_backend_buffer_free(r.buffer);
    ggml_free(r.ctx);
    ggml_backend_buffer_type_t buft = gb_sim_default_buffer_type();
    CHECK(buft == gb_sim_default_buffer_type() && !ggml_backend_buft_is_host(buft));
    ggml_backend_buffer_t lone = ggml_backend_buft_alloc_buffer(buft, 100);
    CHECK(lone != NULL && ggml_backend_buffer_clear(lone, 1) == GGML_STATUS_SUCCESS);
    ggml_backend_buffer_free(lone);
    CHECK_INT(gb_test_live_allocs(), before);
}

static void * use_a_device(void * arg) {
    struct rig r;
    if (!rig_open(&r, arg)) {
        return "no device";
    }
    struct ggml_tensor * x = vector(&r, 20000);
    struct ggml_tensor * y = place(&r, ggml_scale_inplace(r.ctx, x, 2));
    struct ggml_cgraph * g = graph_of(&r, y);
    const char * ok = NULL;
    for (int i = 0; i < 20 && ok == NULL; i++) {
        fill(x, 1);
        for (int j = 0; j < 5; j++) {
            ok = ggml_backend_graph_compute(r.backend, g) ? ok : "compute";
        }
        ok = ggml_backend_synchronize(r.backend) == GGML_STATUS_SUCCESS && last(x) == 32 ? ok : "result";
    }
    rig_close(&r);
    return (void *) (uintptr_t) ok;
}

static void devices_at_once(void) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        REQUIRE(pthread_create(&threads[i], NULL, use_a_device, i % 2 == 0 ? "threads=2" : "delay=100us") == 0);
    }
    for (int i = 0; i < 4; i++) {
        void * wrong = NULL;
        pthread_join(threads[i], &wrong);
        CHECK_MSG(wrong == NULL, "%s", (const char *) wrong);
    }
}

static void survives_a_fork(void) {
    if (UNDER_TSAN) {
        SKIP("the thread sanitizer cannot follow a fork that starts threads");
    }
    struct rig r;
    REQUIRE(rig_open(&r, "threads=2"));
    struct ggml_tensor * x = vector(&r, 20000);
    struct ggml_tensor * y = place(&r, ggml_scale(r.ctx, x, 2));
    fill(x, 1);
    fflush(stdout);
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        alarm(20);
        const bool ok = ggml_backend_graph_compute(r.backend, graph_of(&r, y)) &&
                        ggml_backend_synchronize(r.backend) == GGML_STATUS_SUCCESS && last(y) == 2;
        rig_close(&r);
        _exit(ok ? 0 : 1);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %#x", (unsigned) status);
    CHECK(last(x) == 1);
    rig_close(&r);
}

static bool scenario(void) {
    struct rig r;
    bool ok = rig_open(&r, "mem=2M,threads=2,delay=1us");
    if (ok) {
        struct ggml_tensor * x = vector(&r, 20000);
        struct ggml_tensor * y = place(&r, ggml_scale(r.ctx, x, 2));
        struct ggml_cgraph * g = y != NULL ? ggml_new_graph(r.ctx) : NULL;
        ggml_backend_graph_plan_t plan = NULL;
        float v = 2;
        ok = g != NULL && ggml_build_forward_expand(g, y) == GGML_STATUS_SUCCESS;
        ok = ok && ggml_backend_tensor_set_async(r.backend, x, &v, 0, 4) == GGML_STATUS_SUCCESS;
        ok = ok && ggml_backend_tensor_copy_async(r.backend, x, x) == GGML_STATUS_SUCCESS;
        ok = ok && ggml_backend_graph_compute(r.backend, g);
        ok = ok && (plan = ggml_backend_graph_plan_create(r.backend, g)) != NULL;
        ok = ok && ggml_backend_graph_plan_compute(r.backend, plan) == GGML_STATUS_SUCCESS;
        ok = ok && ggml_backend_tensor_get(y, &v, 0, 4) == GGML_STATUS_SUCCESS;
        ok = ok && ggml_backend_buffer_clear(r.buffer, 1) == GGML_STATUS_SUCCESS && v == 4;
        ok = ggml_backend_synchronize(r.backend != NULL ? r.backend : NULL) == GGML_STATUS_SUCCESS && ok;
        ggml_backend_graph_plan_free(r.backend, plan);
    }
    rig_close(&r);
    return ok;
}

static void out_of_memory(void) { test_each_allocation_fails(scenario, 300); }

TEST_MAIN(TEST(host_access_faults), TEST(transfers), TEST(memory_is_limited), TEST(devices_are_disjoint),
    TEST(computes_what_the_cpu_computes), TEST(queue_keeps_order), TEST(work_takes_its_time),
    TEST(a_queued_set_reads_late), TEST(a_queued_graph_is_a_snapshot), TEST(plans), TEST(copies_between_memories),
    TEST(op_filter), TEST(bad_parameters), TEST(failures_wait_for_synchronize), TEST(failures_inside_nodes),
    TEST(ends_in_any_order), TEST(devices_at_once), TEST(survives_a_fork), TEST(out_of_memory),
    TEST(waits_are_given_up), TEST(transfers_are_given_up), TEST(queues_stop_waiting), TEST(computing_is_given_up),
    TEST(other_threads_get_errors))
