// Forks at any time, while other threads of the parent compute, load or log. In the child new
// objects work, and old ones work or report an error. No call hangs, and pending work is never read
// as a result.
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/current.h"
#include "base/env.h"
#include "base/status.h"
#include "base/thread.h"
#include "cpu/cpu.h"
#include "ggml-alloc.h"
#include "ggml-backend-impl.h"
#include "sim/sim.h"

#if defined(__SANITIZE_THREAD__)
#    define UNDER_TSAN 1
#else
#    define UNDER_TSAN 0
#endif

#define SKIP_UNDER_TSAN()                                                          \
    do {                                                                           \
        if (UNDER_TSAN)                                                            \
            SKIP("the thread sanitizer cannot follow a fork that starts threads"); \
    } while (0)

#if defined(__SANITIZE_ADDRESS__)
#    define UNDER_ASAN 1
#else
#    define UNDER_ASAN 0
#endif

enum { N = 4096 };

struct job { // y = (x + x)^2, on a scheduler
    ggml_backend_t backends[2];
    int n;
    ggml_backend_sched_t sched;
    struct ggml_context * ctx;
    struct ggml_tensor *x, *y;
    struct ggml_cgraph * graph;
};

static bool job_open(struct job * j, const char * first, const char * second) {
    *j = (struct job){ .n = second != NULL ? 2 : 1 };
    j->backends[0] = ggml_backend_reg_init_backend_from_str(first);
    j->backends[1] = second != NULL ? ggml_backend_reg_init_backend_from_str(second) : NULL;
    j->ctx = ggml_init((struct ggml_init_params){ 1u << 18, NULL, true });
    j->sched = ggml_backend_sched_new(j->backends, NULL, j->n, 0);
    if (j->sched == NULL || j->ctx == NULL) {
        return false;
    }
    j->x = ggml_new_tensor_1d(j->ctx, GGML_TYPE_F32, N);
    j->y = ggml_sqr(j->ctx, ggml_add(j->ctx, j->x, j->x));
    j->graph = ggml_new_graph(j->ctx);
    ggml_build_forward_expand(j->graph, j->y);
    ggml_backend_sched_set_node_backend(j->sched, j->y, j->backends[j->n - 1]);
    return true;
}

static void job_close(struct job * j) {
    ggml_backend_sched_free(j->sched);
    ggml_free(j->ctx);
    for (int i = 0; i < j->n; i++) {
        ggml_backend_free(j->backends[i]);
    }
}

static enum ggml_status job_start(struct job * j, float value, bool wait) {
    float x[N];
    for (int i = 0; i < N; i++) {
        x[i] = value;
    }
    const enum ggml_status status = ggml_backend_sched_alloc_graph(j->sched, j->graph);
    if (status != GGML_STATUS_SUCCESS || ggml_backend_tensor_set(j->x, x, 0, sizeof(x)) != GGML_STATUS_SUCCESS) {
        return ggml_last_status();
    }
    return wait ? ggml_backend_sched_graph_compute(j->sched, j->graph)
                : ggml_backend_sched_graph_compute_async(j->sched, j->graph);
}

static bool job_is_right(struct job * j, float value) {
    float y[N];
    if (ggml_backend_tensor_get(j->y, y, 0, sizeof(y)) != GGML_STATUS_SUCCESS) {
        return false;
    }
    for (int i = 0; i < N; i++) {
        if (y[i] != 4 * value * value) {
            return false;
        }
    }
    return true;
}

// For children: exits with the line number of a failed check.
#define CHILD_NEEDS(cond)                                                                                    \
    do {                                                                                                     \
        if (!(cond)) {                                                                                       \
            fprintf(stderr, "%s:%d: in the child: %s (%s)\n", __FILE__, __LINE__, #cond, ggml_last_error()); \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

static void wait_for_child(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child %s %d",
        WIFSIGNALED(status) ? "was ended by signal" : "exited with",
        WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static pid_t fork_child(void) {
    fflush(stdout);
    fflush(stderr);
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
    }
    return pid;
}

// -------------------------------------------------------------------------------------------------------- busy parents

static atomic_bool ending;

struct busy {
    const char *first, *second;
    struct job job;
    atomic_int runs;
};

static void * compute_often(void * arg) {
    struct busy * b = arg;
    for (int i = 1; !ending; i++) {
        b->runs += job_start(&b->job, (float) (i % 100), true) == GGML_STATUS_SUCCESS;
    }
    return NULL;
}

static void * make_often(void * arg) { // schedulers watch their backends, and the registry finds them by name
    (void) arg;
    while (!ending) {
        struct job j;
        if (job_open(&j, "SIM", "CPU:threads=2")) {
            job_start(&j, 2, true);
        }
        job_close(&j);
    }
    return NULL;
}

static void * talk_often(void * arg) {
    (void) arg;
    while (!ending) {
        ggml_log_set(ggml_log_discard, NULL);
        gb_fail(GGML_STATUS_FAILED, "reported often");
        ggml_backend_reg_find_by_name("nobody");
        ggml_backend_load_count();
        ggml_backend_load("/nowhere/module.so");
    }
    return NULL;
}

static void new_objects_work(void) {
    ggml_log_set(ggml_log_discard, NULL);
    gb_fail(GGML_STATUS_FAILED, "the log is usable");
    CHILD_NEEDS(ggml_backend_load("/nowhere/module.so") != GGML_STATUS_SUCCESS);
    CHILD_NEEDS(ggml_backend_load_count() < SIZE_MAX);
    struct job j;
    CHILD_NEEDS(job_open(&j, "SIM:threads=2", "CPU:threads=2"));
    for (int i = 1; i < 4; i++) {
        CHILD_NEEDS(job_start(&j, (float) i, true) == GGML_STATUS_SUCCESS);
        CHILD_NEEDS(job_is_right(&j, (float) i));
    }
    job_close(&j);
}

// Objects that another thread of the parent was using work or report an error, and can be freed.
static void old_objects_answer(struct busy * b) {
    for (int i = 0; i < 3; i++) {
        const enum ggml_status status = job_start(&b->job, 3, true);
        CHILD_NEEDS(status == GGML_STATUS_INVALID_STATE || (status == GGML_STATUS_SUCCESS && job_is_right(&b->job, 3)));
    }
    ggml_backend_sched_synchronize(b->job.sched);
    ggml_backend_sched_free(b->job.sched);
    for (int i = 0; i < b->job.n; i++) {
        ggml_backend_synchronize(b->job.backends[i]);
    }
}

static void children_of_busy_processes(void) {
    SKIP_UNDER_TSAN();
    if (UNDER_ASAN) {
        SKIP("the address sanitizer's allocator is locked in a child whose parent's other threads were allocating");
    }
    struct busy users[] = { { .first = "CPU:threads=3" },
        { .first = "SIM:threads=2,copy_delay=20us", .second = "CPU:threads=2" }, { .first = "SIM:delay=100us" } };
    enum { USERS = 3, OTHERS = 2, CHILDREN = 150 };
    pthread_t threads[USERS + OTHERS];
    ending = false;
    ggml_log_set(ggml_log_discard, NULL);
    for (int i = 0; i < USERS; i++) {
        REQUIRE(job_open(&users[i].job, users[i].first, users[i].second));
        REQUIRE(pthread_create(&threads[i], NULL, compute_often, &users[i]) == 0);
    }
    REQUIRE(pthread_create(&threads[USERS], NULL, make_often, NULL) == 0);
    REQUIRE(pthread_create(&threads[USERS + 1], NULL, talk_often, NULL) == 0);
    for (int i = 0; i < CHILDREN; i++) {
        gb_sleep_us(i * 137 % 1000);
        const pid_t pid = fork_child();
        REQUIRE(pid >= 0);
        if (pid == 0) {
            new_objects_work();
            old_objects_answer(&users[i % USERS]);
            _exit(0);
        }
        wait_for_child(pid);
    }
    ending = true;
    for (int i = 0; i < USERS + OTHERS; i++) {
        pthread_join(threads[i], NULL);
    }
    for (int i = 0; i < USERS; i++) {
        CHECK(users[i].runs > 0);
        CHECK_INT(job_start(&users[i].job, 5, true), GGML_STATUS_SUCCESS);  // the parent still works
        CHECK(job_is_right(&users[i].job, 5));
        job_close(&users[i].job);
    }
    ggml_log_set(NULL, NULL);
    gb_cpu_pools_trim();
}

// ----------------------------------------------------------------------------------------------------- pending work

static void pending_results_are_discarded(void) {
    SKIP_UNDER_TSAN();
    SKIP_IF_CHECKED("no work is pending");
    static const char * const second[] = { NULL, "CPU:threads=2" };
    for (int k = 0; k < 4; k++) {
        struct job j;
        REQUIRE(job_open(&j, "SIM:delay=300ms", second[k % 2]));
        ggml_backend_event_t event = ggml_backend_event_new(j.backends[0]);
        REQUIRE(event != NULL);
        if (k % 2 == 1) {
            ggml_backend_sched_set_node_backend(j.sched, j.y, j.backends[0]);
        }
        CHECK_INT(job_start(&j, 3, false), GGML_STATUS_SUCCESS);
        CHECK_INT(ggml_backend_event_record(event), GGML_STATUS_SUCCESS);
        const pid_t pid = fork_child();
        REQUIRE(pid >= 0);
        if (pid == 0) {
            float y;
            ggml_log_set(ggml_log_discard, NULL);
            CHILD_NEEDS(ggml_backend_event_synchronize(event) == GGML_STATUS_INVALID_STATE);
            // its memory holds no result
            CHILD_NEEDS(ggml_backend_tensor_get(j.y, &y, 0, sizeof(y)) == GGML_STATUS_INVALID_STATE);
            if (k < 2) {
                CHILD_NEEDS(ggml_backend_sched_synchronize(j.sched) == GGML_STATUS_INVALID_STATE);
                CHILD_NEEDS(strstr(ggml_last_error(), "forked") != NULL);
                CHILD_NEEDS(ggml_backend_sched_synchronize(j.sched) == GGML_STATUS_SUCCESS);
            } else {
                CHILD_NEEDS(job_start(&j, 2, true) == GGML_STATUS_INVALID_STATE); // the next run reports it
                ggml_backend_sched_synchronize(j.sched);
            }
            CHILD_NEEDS(ggml_backend_event_synchronize(event) == GGML_STATUS_INVALID_STATE);
            CHILD_NEEDS(job_start(&j, 4, true) == GGML_STATUS_SUCCESS);
            CHILD_NEEDS(job_is_right(&j, 4));
            ggml_backend_event_free(event);
            job_close(&j);
            _exit(0);
        }
        CHECK_INT(ggml_backend_sched_synchronize(j.sched), GGML_STATUS_SUCCESS);
        CHECK(job_is_right(&j, 3));
        wait_for_child(pid);
        ggml_backend_event_free(event);
        job_close(&j);
    }
}

// ----------------------------------------------------------------------------------------------- forks inside of calls

static bool is_child;
static pid_t forked;

static void fork_on_the_first(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * data) {
    (void) data;
    for (int64_t i = ith; i < ggml_nelements(dst); i += nth) {
        ((float *) dst->data)[i] = ((const float *) a->data)[i] + 1;
    }
    if (ith == 0) {
        forked = fork_child();
        is_child = forked == 0;
    }
}

// A user's function forks while its team computes. If other threads had shares of the computation,
// it has failed in the child.
static void functions_fork(void) {
    SKIP_UNDER_TSAN();
    for (int n_tasks = 1; n_tasks <= 3; n_tasks += 2) {
        struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1u << 20, NULL, false });
        struct ggml_tensor * x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 20000);
        struct ggml_tensor * y = ggml_sqr(ctx, ggml_map_custom1(ctx, x, fork_on_the_first, n_tasks, NULL));
        struct ggml_cgraph * g = ggml_new_graph(ctx);
        ggml_set_f32(x, 2);
        ggml_build_forward_expand(g, y);
        is_child = false;
        const enum ggml_status status = ggml_graph_compute_with_ctx(ctx, g, 3);
        if (is_child) {
            ggml_log_set(ggml_log_discard, NULL);
            CHILD_NEEDS(status == GGML_STATUS_INVALID_STATE);
            new_objects_work();
            _exit(0);
        }
        CHECK_INT(status, GGML_STATUS_SUCCESS);
        CHECK(((const float *) y->data)[19999] == 9);
        wait_for_child(forked);
        ggml_free(ctx);
    }
    gb_cpu_pools_trim();
}

static bool fork_and_stop(void * data) {
    (void) data;
    if (!is_child && forked == -1) {
        forked = fork_child();
        is_child = forked == 0;
    }
    return false;
}

// The poll of a wait forks. The wait ends in the child and continues in the parent.
static void polls_fork(void) {
    SKIP_UNDER_TSAN();
    SKIP_IF_CHECKED("waits are elsewhere");
    struct job j;
    REQUIRE(job_open(&j, "SIM:delay=200ms", NULL));
    is_child = false;
    forked = -1;
    CHECK_INT(job_start(&j, 3, false), GGML_STATUS_SUCCESS);
    gb_set_poll(fork_and_stop, NULL);
    const enum ggml_status status = ggml_backend_sched_synchronize(j.sched);
    gb_set_poll(NULL, NULL);
    if (is_child) {
        CHILD_NEEDS(status == GGML_STATUS_INVALID_STATE);
        new_objects_work();
        CHILD_NEEDS(job_start(&j, 4, true) == GGML_STATUS_SUCCESS && job_is_right(&j, 4));
        _exit(0);
    }
    CHECK_INT(status, GGML_STATUS_SUCCESS);
    CHECK(job_is_right(&j, 3));
    REQUIRE(forked > 0);
    wait_for_child(forked);
    job_close(&j);
}

TEST_MAIN(TEST(children_of_busy_processes), TEST(pending_results_are_discarded), TEST(functions_fork), TEST(polls_fork))
