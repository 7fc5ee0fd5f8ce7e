// test_sched_callbacks.c - evaluation callbacks that change the scheduler or free what it uses, and settings
// that change between runs.
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

static void undo_build(struct place * p) { OK(ggml_backend_sched_set_eval_callback(p->sched, NULL, NULL)); }

static void wait_for_all(struct place * p) { OK(ggml_backend_sched_synchronize(p->sched)); }

static void free_it(struct place * p) {
    ggml_backend_sched_free(p->sched);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "ggml_backend_sched_free");
}

// x squared three times on a device. The callback acts after the first square.
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
    CHECK_INT(compute_meddled(&p, undo_build, &m, &last), GGML_STATUS_SUCCESS);
    CHECK_INT(m.n_calls, 2); // called for the first node only
    CHECK_AT(last, 3, 0.25f);
    close_place(&p);
}

// The scheduler waits for work after the callback, even if the callback waited itself, and reports
// its failure.
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

// Frees the computing backend, another one, or the last one. The run ends there, also if checked or
// traced.
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

// ------------------------------------------------------------------------------------------- settings between the runs

static int widest; // size of the team that a custom op saw

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

// The same graph, except that its view shows another row.
static void views_move(void) {
    OPEN(p, "SIM CPU");
    struct ggml_tensor * rows = put(&p, leaf(&p, "rows", 4, 3), 1, false);
    struct ggml_tensor *v = ggml_view_1d(p.ctx, rows, 4, 0), *y = ggml_scale(p.ctx, v, 2);
    expand(&p, y);
    OK(ggml_backend_sched_set_node_backend(p.sched, y, p.backends[0]));
    fill(rows, 0, 1);
    for (int i = 0; i < 6; i++) {
        v->view_offs = (size_t) (i % 3) * rows->nb[1]; // and no other change
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        CHECK_AT(y, 1, (float) (2 * (4 * (i % 3) + 1)));
    }
    close_place(&p);
}

// The same graph, except that the user reads another result.
static void outputs_are_added(void) {
    OPEN(p, "SIM CPU");
    struct ggml_tensor *x = put(&p, leaf(&p, "x", 4, 1), 0, false), *a = ggml_sqr(p.ctx, x),
                       *b = ggml_soft_max(p.ctx, a);
    struct ggml_tensor * c = ggml_sqr(p.ctx, ggml_scale(p.ctx, b, 2));
    expand(&p, c);
    fill(x, 3, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(c, 0, 0.25f);
    CHECK(at(a, 0) != 9); // its memory was reused
    ggml_set_output(a);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(c, 0, 0.25f);
    CHECK_AT(a, 0, 9);
    close_place(&p);
}

TEST_MAIN(TEST(callback_ends_itself), TEST(callback_waits), TEST(callback_frees_the_scheduler),
    TEST(callback_frees_a_backend), TEST(stopping_says_so), TEST(thread_count_changes), TEST(abort_callback_changes),
    TEST(views_move), TEST(outputs_are_added))
