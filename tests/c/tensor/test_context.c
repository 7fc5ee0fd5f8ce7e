// Contexts: growing memory of their own, fixed memory of the caller, scratch, iteration, threads,
// failing allocations.
#include "base/mem.h"
#include "base/thread.h"
#include "tensor/tensor.h"
#include "test.h"

#ifndef _WIN32
#    include <sys/wait.h>
#    include <unistd.h>
#endif

// Tests request absurd sizes. The sanitizer must return NULL, as malloc does.
__attribute__((visibility("default"))) const char * __asan_default_options(void);
const char * __asan_default_options(void) { return "allocator_may_return_null=1"; }

__attribute__((visibility("default"))) const char * __tsan_default_options(void);
const char * __tsan_default_options(void) { return "allocator_may_return_null=1"; }

static struct ggml_context * own(size_t size) { return ggml_init((struct ggml_init_params){ size, NULL, false }); }

static void struct_sizes(void) {
    CHECK_INT(sizeof(struct ggml_object), 32);
    CHECK_INT(sizeof(struct ggml_tensor), 368);
    CHECK_INT(sizeof(struct ggml_cgraph), 80);
    CHECK_INT(ggml_tensor_overhead(), 400);
    CHECK_INT(offsetof(struct ggml_tensor, view_src), 264);
    CHECK_INT(offsetof(struct ggml_tensor, name), 288);
}

static void grows(void) {
    struct ggml_context * ctx = own(0);
    REQUIRE(ctx != NULL);
    enum { N = 2000 };
    static struct ggml_tensor * t[N];
    size_t data = 0;
    for (int i = 0; i < N; i++) {
        const int64_t n = i % 100 == 7 ? 100000 : i % 37;
        t[i] = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n);
        REQUIRE(t[i] != NULL && ((uintptr_t) t[i]->data % 16) == 0);
        data += (size_t) (n * 4 + 15) / 16 * 16;
        for (int64_t k = 0; k < n; k++) {
            ((int32_t *) t[i]->data)[k] = i;
        }
    }
    CHECK_INT(ggml_used_mem(ctx), data + N * 400);
    CHECK(ggml_get_mem_size(ctx) >= ggml_used_mem(ctx));
    CHECK(ggml_get_mem_size(ctx) < 3 * ggml_used_mem(ctx));
    int i = 0;
    for (struct ggml_tensor * at = ggml_get_first_tensor(ctx); at != NULL; at = ggml_get_next_tensor(ctx, at), i++) {
        CHECK(i < N && at == t[i]);
        for (int64_t k = 0; k < at->ne[0]; k++) {
            if (((int32_t *) at->data)[k] != i) {
                test_fail(__FILE__, __LINE__, "tensor %d was overwritten", i);
            }
        }
    }
    CHECK_INT(i, N);
    CHECK_INT(ggml_get_max_tensor_size(ctx), 400000);
    ggml_free(ctx);
    ggml_free(NULL);
}

static void own_memory_is_one_region_at_first(void) {
    struct ggml_context * ctx = own(100000);
    CHECK_INT(ggml_get_mem_size(ctx), 100000);
    char * base = ggml_get_mem_buffer(ctx);
    REQUIRE(base != NULL);
    struct ggml_tensor * a = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
    struct ggml_tensor * b = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
    CHECK((char *) a == base + 32);
    CHECK((char *) a->data == base + 400);
    CHECK((char *) b == base + 400 + 16 + 32);
    CHECK_INT(ggml_get_mem_size(ctx), 100000);
    ggml_free(ctx);
}

// Exactly n * overhead bytes hold n tensors without data.
static void exact_weight_context(void) {
    enum { N = 13 };
    static _Alignas(16) char memory[N * 400];
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ N * ggml_tensor_overhead(), memory, true });
    REQUIRE(ctx != NULL);
    for (int i = 0; i < N; i++) {
        struct ggml_tensor * t = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 1000, 1000);
        REQUIRE(t != NULL);
        CHECK(t->data == NULL);
    }
    CHECK(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "needs 400 bytes, has 0 of 5200");
    CHECK_INT(ggml_used_mem(ctx), N * 400);
    ggml_free(ctx);
}

// The tensor space of a pool can also hold a larger graph.
static void larger_graph_in_tensor_space(void) {
    for (size_t n = 2048; n <= 65536; n *= 2) {
        const size_t size = n * ggml_tensor_overhead() + ggml_graph_overhead();
        void * memory = gb_aligned_alloc(16, size);
        REQUIRE(memory != NULL);
        struct ggml_context * ctx = ggml_init((struct ggml_init_params){ size, memory, true });
        struct ggml_cgraph * g = ggml_new_graph_custom(ctx, n, false);
        CHECK(g != NULL);
        for (size_t i = 0; i < n * 8 / 10; i++) {
            CHECK(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1) != NULL);
        }
        ggml_free(ctx);
        gb_aligned_free(memory);
    }
}

// Tensors and graphs in the caller's memory outlive the context.
static void tensors_outlive_context(void) {
    static _Alignas(16) char memory[200000];
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ sizeof(memory), memory, false });
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 8);
    struct ggml_tensor * v = ggml_view_tensor(ctx, t);
    struct ggml_cgraph * g = ggml_new_graph_custom(ctx, 16, false);
    v->op = GGML_OP_SQR;
    v->src[0] = t;
    ggml_set_f32(t, 3.0f);
    ggml_free(ctx);
    CHECK(ggml_get_f32_1d(v, 7) == 3.0f);
    CHECK_INT(ggml_build_forward_expand(g, v), GGML_STATUS_SUCCESS);
    CHECK(g->n_nodes == 1 && g->nodes[0] == v && g->n_leafs == 1);

    struct ggml_context * other = own(1000);
    struct ggml_tensor * view = ggml_view_tensor(other, v);
    CHECK(view != NULL && view->view_src == t && view->data == t->data);
    ggml_free(other);
}

// Three tensors with data and a graph fit exactly into the sum of the sizes that functions return.
static void exact_benchmark_pool(void) {
    const size_t sizes[3] = { 64 * 32 * 4, 32 * 16 * 4, 64 * 16 * 4 };
    const size_t size = sizes[0] + sizes[1] + sizes[2] + 3 * ggml_tensor_overhead() + ggml_graph_overhead();
    char * memory = gb_aligned_alloc(64, size + 16);
    REQUIRE(memory != NULL);
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ size, memory + 16, false }); // aligned to 16
    REQUIRE(ctx != NULL);
    CHECK(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 32) != NULL);
    CHECK(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 32, 16) != NULL);
    CHECK(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 16) != NULL);
    CHECK(ggml_new_graph(ctx) != NULL);
    CHECK_INT(ggml_used_mem(ctx), size);
    ggml_free(ctx);
    gb_aligned_free(memory);
}

static void caller_memory(void) {
    static _Alignas(16) char memory[1000];
    CHECK(ggml_init((struct ggml_init_params){ 900, memory + 8, false }) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "aligned to 16");
    memset(memory, 0x5a, sizeof(memory));
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 900, memory, false });
    CHECK(ggml_get_mem_buffer(ctx) == memory);
    CHECK_INT(ggml_get_mem_size(ctx), 900);
    CHECK(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 126) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "needs 912 bytes, has 900 of 900");
    CHECK_INT(ggml_used_mem(ctx), 0);
    CHECK(ggml_get_first_tensor(ctx) == NULL);
    CHECK(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 120) != NULL); // 400 + 480
    CHECK(ggml_new_graph_custom(ctx, 1, false) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "has 20 of 900");
    CHECK_INT(ggml_used_mem(ctx), 880);
    CHECK(memory[880] == 0x5a && memory[999] == 0x5a);
    ggml_free(ctx);

    ctx = ggml_init((struct ggml_init_params){ 0, memory, false }); // zero bytes: nothing may be written
    CHECK(ctx != NULL);
    CHECK(ggml_new_i32(ctx, 1) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "of 0 available");
    ggml_free(ctx);
}

static void huge_sizes(void) {
    CHECK(own(SIZE_MAX) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "overflow");
    CHECK(own(SIZE_MAX / 4) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "");
    struct ggml_context * ctx = own(1000);
    CHECK(gb_context_alloc(ctx, GGML_OBJECT_WORK_BUFFER, SIZE_MAX - 8) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "overflow");
    CHECK(ggml_new_tensor_1d(ctx, GGML_TYPE_I8, PTRDIFF_MAX - 10) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "");
    CHECK_INT(ggml_used_mem(ctx), 0);
    CHECK(ggml_new_i32(ctx, 1) != NULL);
    ggml_free(ctx);
}

static void many_contexts(void) {
    static struct ggml_context * ctx[500];
    for (int i = 0; i < 500; i++) {
        ctx[i] = own(64);
        CHECK(ctx[i] != NULL && ggml_new_i32(ctx[i], i) != NULL);
    }
    for (int i = 0; i < 500; i++) {
        CHECK_INT(ggml_get_i32_1d(ggml_get_first_tensor(ctx[i]), 0), i);
        ggml_free(ctx[i]);
    }
}

static void scratch(void) {
    static _Alignas(16) char memory[100];
    struct ggml_context * ctx = own(10000);
    CHECK_INT(ggml_set_scratch(ctx, (struct ggml_scratch){ 4, 64, memory }), 0);
    struct ggml_tensor * a = ggml_new_tensor_1d(ctx, GGML_TYPE_F16, 3);
    CHECK(a->data == memory + 4);
    struct ggml_tensor * b = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 2); // elements are aligned
    CHECK(b->data == memory + 12);
    struct ggml_tensor * i = ggml_new_i32(ctx, 5); // never in scratch
    CHECK(i->data == i + 1);
    const size_t used = ggml_used_mem(ctx);
    CHECK_INT(used, 400 + 400 + 400 + 16);
    CHECK(ggml_new_tensor_1d(ctx, GGML_TYPE_I8, 45) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "45 bytes at offset 20, has 64");
    CHECK_INT(ggml_used_mem(ctx), used);
    CHECK(ggml_new_tensor_1d(ctx, GGML_TYPE_I8, 44) != NULL); // exactly full
    struct ggml_tensor * v = ggml_view_tensor(ctx, a);
    CHECK(v != NULL && v->data == a->data);
    CHECK_INT(ggml_set_scratch(ctx, (struct ggml_scratch){ 0, 0, NULL }), 64);
    struct ggml_tensor * c = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 2);
    CHECK(c->data == c + 1);
    CHECK_INT(ggml_set_scratch(ctx, (struct ggml_scratch){ 0, 64, memory }), 0);

    ggml_set_no_alloc(ctx, true); // has priority over scratch
    CHECK(ggml_get_no_alloc(ctx));
    CHECK(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 2)->data == NULL);
    struct ggml_tensor * f = ggml_new_f32(ctx, 2.5f);
    CHECK(f->data == f + 1 && *(float *) f->data == 2.5f);
    ggml_free(ctx);
}

static void finding_tensors(void) {
    struct ggml_context * ctx = own(1000);
    CHECK(ggml_get_first_tensor(ctx) == NULL);
    CHECK(ggml_new_graph_custom(ctx, 4, false) != NULL); // skipped
    struct ggml_tensor * a = ggml_set_name(ggml_new_i32(ctx, 1), "a");
    CHECK(gb_context_alloc(ctx, GGML_OBJECT_WORK_BUFFER, 100) != NULL); // skipped
    struct ggml_tensor * b = ggml_set_name(ggml_new_i32(ctx, 2), "b");
    CHECK(ggml_get_first_tensor(ctx) == a && ggml_get_next_tensor(ctx, a) == b && ggml_get_next_tensor(ctx, b) == NULL);
    CHECK(ggml_get_tensor(ctx, "b") == b && ggml_get_tensor(ctx, "c") == NULL);
    CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS);
    ggml_free(ctx);
}

static void null_arguments(void) {
    CHECK(ggml_new_tensor_1d(NULL, GGML_TYPE_F32, 1) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "ggml_new_tensor_1d: argument 'ctx' is NULL");
    CHECK(ggml_new_i32(NULL, 1) == NULL && ggml_new_f32(NULL, 1) == NULL);
    CHECK(ggml_get_first_tensor(NULL) == NULL && ggml_get_tensor(NULL, "x") == NULL);
    CHECK(ggml_used_mem(NULL) == 0 && ggml_get_mem_size(NULL) == 0 && ggml_get_mem_buffer(NULL) == NULL);
    CHECK(!ggml_get_no_alloc(NULL) && ggml_get_max_tensor_size(NULL) == 0);
    ggml_set_no_alloc(NULL, true);
    CHECK_INT(ggml_set_scratch(NULL, (struct ggml_scratch){ 0 }), 0);
    ggml_print_objects(NULL);
    ggml_print_object(NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'obj' is NULL");
}

static void work(void * arg) {
    int * wrong = arg;
    for (int round = 0; round < 50; round++) {
        struct ggml_context * ctx = own(100);
        for (int i = 0; i < 100; i++) {
            struct ggml_tensor * t = ggml_new_i32(ctx, i);
            *wrong += t == NULL || ggml_get_i32_1d(t, 0) != i;
        }
        *wrong += ggml_new_tensor_1d(ctx, GGML_TYPE_F32, -1) != NULL || strstr(ggml_last_error(), "negative") == NULL;
        ggml_free(ctx);
    }
}

static void threads(void) {
    gb_thread thread[4];
    int wrong[4] = { 0 };
    for (int i = 0; i < 4; i++) {
        REQUIRE(gb_thread_start(&thread[i], work, &wrong[i]));
    }
    for (int i = 0; i < 4; i++) {
        gb_thread_join(thread[i]);
        CHECK_INT(wrong[i], 0);
    }
}

// ---------------------------------------------------------------------------------------------- threads in one context

enum { BUILDERS = 8, ROUNDS = 300 };

struct team {
    struct ggml_context * ctx;
    struct ggml_tensor * shared;
    atomic_int next, n_done, wrong;
    atomic_bool stop;
    int rounds;
};

// The steps of a builder of several objects whose last one fails.
static void begin_and_give_up(struct ggml_context * ctx) {
    struct ggml_tensor * first = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 16);
    if (first != NULL && ggml_set_name(first, "given up") != NULL &&
        ggml_new_tensor_1d(ctx, GGML_TYPE_F32, -1) == NULL) {
        ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 3);
        gb_context_drop(ctx, first);
    }
}

static void build(void * arg) {
    struct team * team = arg;
    const int me = atomic_fetch_add(&team->next, 1);
    for (int i = 0; i < team->rounds; i++) {
        struct ggml_tensor * t = ggml_new_i32(team->ctx, me * ROUNDS + i);
        struct ggml_tensor * v = ggml_view_1d(team->ctx, team->shared, 4, (size_t) (i % 4) * 4);
        struct ggml_tensor * s = v ? ggml_add(team->ctx, v, v) : NULL;
        struct ggml_tensor * large = i % 50 == 0 ? ggml_new_tensor_1d(team->ctx, GGML_TYPE_I8, 30000) : t;
        atomic_fetch_add(&team->wrong, t == NULL || v == NULL || s == NULL || large == NULL);
        if (t != NULL) {
            ggml_format_name(t, "t %d %d", me, i);
        }
        if (i % 3 == 0) {
            begin_and_give_up(team->ctx);
        }
        if (large != NULL && large != t) {
            memset(large->data, me, 30000);
        }
    }
    atomic_fetch_add(&team->n_done, 1);
}

// Reads the list while others append to it.
static void look(void * arg) {
    struct team * team = arg;
    size_t used = 0;
    while (atomic_load(&team->n_done) < BUILDERS) {
        const size_t now = ggml_used_mem(team->ctx);
        atomic_fetch_add(&team->wrong,
            now > ggml_get_mem_size(team->ctx) || ggml_get_tensor(team->ctx, "shared") != team->shared);
        used = GB_MAX(used, now);
        size_t bytes = 0;
        for (struct ggml_tensor * t = ggml_get_first_tensor(team->ctx); t != NULL;
            t = ggml_get_next_tensor(team->ctx, t)) {
            bytes += ggml_nbytes(t);
        }
        atomic_fetch_add(&team->wrong, bytes < ggml_nbytes(team->shared));
    }
}

static void check_numbers(struct ggml_context * ctx, int rounds) {
    static char seen[BUILDERS * ROUNDS];
    memset(seen, 0, sizeof(seen));
    int n = 0;
    for (struct ggml_tensor * t = ggml_get_first_tensor(ctx); t != NULL; t = ggml_get_next_tensor(ctx, t)) {
        int me, i;
        CHECK_MSG(strcmp(t->name, "given up") != 0, "a tensor that was taken back is there");
        if (sscanf(t->name, "t %d %d", &me, &i) == 2 && me >= 0 && me < BUILDERS && i >= 0 && i < rounds) {
            CHECK_INT(ggml_get_i32_1d(t, 0), me * ROUNDS + i);
            CHECK(!seen[me * ROUNDS + i]);
            seen[me * ROUNDS + i] = 1;
            n++;
        } else if (t->type == GGML_TYPE_I8) {
            const char * data = t->data;
            for (int k = 0; k < 30000; k++) {
                CHECK(data[k] == data[0]);
            }
        }
    }
    CHECK_INT(n, BUILDERS * rounds);
}

static struct team new_team(struct ggml_context * ctx, int rounds) {
    struct team team = { .ctx = ctx, .rounds = rounds };
    team.shared = ggml_set_name(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 8), "shared");
    CHECK(team.shared != NULL);
    return team;
}

static void run_team(struct team * team, bool looked_at) {
    gb_thread thread[BUILDERS], looker;
    for (int i = 0; i < BUILDERS; i++) {
        REQUIRE(gb_thread_start(&thread[i], build, team));
    }
    if (looked_at) {
        REQUIRE(gb_thread_start(&looker, look, team));
    }
    for (int i = 0; i < BUILDERS; i++) {
        gb_thread_join(thread[i]);
    }
    if (looked_at) {
        gb_thread_join(looker);
    }
    CHECK_INT(team->wrong, 0);
    check_numbers(team->ctx, team->rounds);
}

static void threads_in_one_context(void) {
    for (int looked_at = 0; looked_at < 2; looked_at++) {
        struct team team = new_team(own(1000), ROUNDS);
        run_team(&team, looked_at);
        ggml_free(team.ctx);
    }
}

static void threads_in_memory_of_the_caller(void) {
    enum { SIZE = 40 << 20 };
    void * memory = gb_aligned_alloc(16, SIZE);
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ SIZE, memory, false });
    struct team team = new_team(ctx, ROUNDS);
    run_team(&team, true);
    struct ggml_tensor * last = ggml_new_i32(ctx, 5);
    ggml_free(ctx);
    CHECK_INT(ggml_get_i32_1d(last, 0), 5); // the caller's memory still has the tensors
    CHECK_INT(ggml_nelements(team.shared), 8);
    gb_aligned_free(memory);
}

struct two {
    struct ggml_context * ctx;
    struct ggml_tensor * theirs;
};

static void make_one(void * arg) {
    struct two * two = arg;
    two->theirs = ggml_set_name(ggml_new_i32(two->ctx, 7), "theirs");
}

// A failing builder removes only its own tensors, not those that another thread made meanwhile.
static void taking_back_beside_others(void) {
    struct two two = { own(10000), NULL };
    struct ggml_tensor * a = ggml_set_name(ggml_new_i32(two.ctx, 1), "a");
    const size_t before = ggml_used_mem(two.ctx);
    struct ggml_tensor * first = ggml_set_name(ggml_new_i32(two.ctx, 2), "first");
    gb_thread thread;
    REQUIRE(gb_thread_start(&thread, make_one, &two));
    gb_thread_join(thread);
    ggml_new_i32(two.ctx, 3);
    gb_context_drop(two.ctx, first);
    CHECK(ggml_get_first_tensor(two.ctx) == a && ggml_get_next_tensor(two.ctx, a) == two.theirs);
    CHECK(ggml_get_next_tensor(two.ctx, two.theirs) == NULL && ggml_get_tensor(two.ctx, "first") == NULL);
    struct ggml_tensor * later = ggml_new_i32(two.ctx, 4);
    CHECK_INT(ggml_get_i32_1d(two.theirs, 0), 7);
    CHECK(ggml_get_next_tensor(two.ctx, two.theirs) == later);
    ggml_free(two.ctx);

    two.ctx = own(10000); // with a single thread everything is unchanged
    ggml_new_i32(two.ctx, 1);
    first = ggml_new_i32(two.ctx, 2);
    ggml_new_i32(two.ctx, 3);
    gb_context_drop(two.ctx, first);
    CHECK_INT(ggml_used_mem(two.ctx), before);
    CHECK(ggml_new_i32(two.ctx, 4) == first);
    ggml_free(two.ctx);
}

// An iteration may be at a tensor that its builder removes. It continues with the next one.
static void dropping_tensors_that_a_walk_has_returned(void) {
    struct ggml_context * ctx = own(10000);
    struct ggml_tensor * a = ggml_new_i32(ctx, 1);
    struct ggml_tensor * first = ggml_new_i32(ctx, 2);
    CHECK(ggml_get_next_tensor(ctx, ggml_get_first_tensor(ctx)) == first);
    gb_context_drop(ctx, first);
    struct ggml_tensor * b = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 100, 3);
    CHECK(b != first && ggml_get_next_tensor(ctx, first) == b && ggml_get_next_tensor(ctx, a) == b);
    ggml_free(ctx);
}

#ifndef _WIN32
static void build_until_stopped(void * arg) {
    struct team * team = arg;
    while (!atomic_load(&team->stop)) {
        ggml_new_i32(team->ctx, 1);
        begin_and_give_up(team->ctx);
    }
}

static int in_child(struct ggml_context * ctx) {
    const size_t used = ggml_used_mem(ctx);
    size_t n = 0;
    for (int i = 0; i < 50; i++) {
        if (ggml_new_i32(ctx, i) == NULL) {
            return 1;
        }
    }
    for (struct ggml_tensor * t = ggml_get_first_tensor(ctx); t != NULL; t = ggml_get_next_tensor(ctx, t)) {
        n++;
    }
    return n >= 50 && ggml_used_mem(ctx) == used + 50 * 416 ? 0 : 2;
}

// After a fork at any time the child finds every context complete and usable.
static void fork_while_threads_build(void) {
    struct team team = new_team(own(1000), 0);
    gb_thread thread[2];
    for (int i = 0; i < 2; i++) {
        REQUIRE(gb_thread_start(&thread[i], build_until_stopped, &team));
    }
    for (int i = 0; i < 60; i++) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(60); // instead of waiting forever
            _exit(in_child(team.ctx));
        }
        int status = -1;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child %d: status %#x", i, (unsigned) status);
    }
    atomic_store(&team.stop, true);
    for (int i = 0; i < 2; i++) {
        gb_thread_join(thread[i]);
    }
    ggml_free(team.ctx);
}
#else
static void fork_while_threads_build(void) {}
#endif

// A scenario with objects of every kind. False if something failed.
static bool scenario(void) {
    struct ggml_context * ctx = own(16);
    bool ok = ctx != NULL;
    for (int i = 0; ok && i < 100; i++) {
        struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, i == 50 ? 100000 : 10);
        struct ggml_tensor * v = t ? ggml_view_tensor(ctx, t) : NULL;
        ok = v != NULL;
    }
    if (ctx != NULL && !ok) { // usable for objects that fit
        CHECK_INT(ggml_last_status(), GGML_STATUS_ALLOC_FAILED);
        int n = 0;
        for (struct ggml_tensor * t = ggml_get_first_tensor(ctx); t != NULL; t = ggml_get_next_tensor(ctx, t)) {
            n++;
        }
        CHECK(n <= 200);
        gb_test_fail_alloc(0, false);
        CHECK(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 50000) != NULL);
    }
    ggml_free(ctx);
    return ok;
}

static void failing_allocations(void) {
    const int64_t before = gb_test_live_allocs();
    int n = 1;
    for (bool ok = false; !ok; n++) {
        gb_test_fail_alloc(n, false);
        ok = scenario();
        CHECK(!ok || !gb_test_alloc_failed());
        gb_test_fail_alloc(0, false);
        CHECK_INT(gb_test_live_allocs(), before);
        REQUIRE(n < 1000);
    }
    CHECK(n > 4);
}

TEST_MAIN(TEST(struct_sizes), TEST(grows), TEST(own_memory_is_one_region_at_first), TEST(exact_weight_context),
    TEST(larger_graph_in_tensor_space), TEST(tensors_outlive_context), TEST(exact_benchmark_pool), TEST(caller_memory),
    TEST(huge_sizes), TEST(many_contexts), TEST(scratch), TEST(finding_tensors), TEST(null_arguments), TEST(threads),
    TEST(threads_in_one_context), TEST(threads_in_memory_of_the_caller), TEST(taking_back_beside_others),
    TEST(dropping_tensors_that_a_walk_has_returned), TEST(fork_while_threads_build), TEST(failing_allocations))
