// test_sched_replica.c - copies that are kept from run to run. The devices count transfers.
#include "base/mem.h"
#include "ggml-backend-impl.h"
#include "sched/plan.h"
#include "sim/sim_device.h"
#include "test.h"
#include "test_place.h"
#include "test_plan_faults.h"

static uint64_t bytes_to(const struct place * p, int device) { // transferred by that device since the last call
    struct gb_sim_device * d = p->backends[device]->context;
    return atomic_exchange(&d->bytes_transferred, 0);
}

// y = w x, with w (4 x 4) on `home` and y computed on device 0, where x is.
struct product {
    struct ggml_tensor *w, *x, *y;
    struct ggml_cgraph * graph;
};

static struct product build(struct place * p, struct ggml_tensor * w, struct ggml_tensor * x) {
    struct product r = { w, x, ggml_mul_mat(p->ctx, w, x), ggml_new_graph(p->ctx) };
    CHECK_INT(ggml_build_forward_expand(r.graph, r.y), GGML_STATUS_SUCCESS);
    OK(ggml_backend_sched_set_node_backend(p->sched, r.y, p->backends[0]));
    return r;
}

static struct product make(struct place * p, int home, bool weights) {
    struct ggml_tensor * w = put(p, leaf(p, "w", 4, 4), home, weights);
    struct product r = build(p, w, put(p, leaf(p, "x", 4, 1), 0, false));
    fill(r.w, 1, 0);
    fill(r.x, 1, 0);
    return r;
}

#define RUN(p, r, expected)                                         \
    do {                                                            \
        OK(ggml_backend_sched_graph_compute((p).sched, (r).graph)); \
        CHECK_AT((r).y, 3, expected);                               \
    } while (0)

// Without the result that was read. The device also counts the overwriting of checked runs.
#define TRANSFERRED(p, expected) CHECK(bytes_to(&(p), 0) - 4 == (expected) || test_runs_are_checked())

static void weights_are_copied_once(void) {
    OPEN(p, "SIM:name=A CPU");
    struct product r = make(&p, 1, true);
    bytes_to(&p, 0);
    RUN(p, r, 4);
    TRANSFERRED(p, 64);
    for (int i = 0; i < 5; i++) {
        RUN(p, r, 4);
        TRANSFERRED(p, 0);
    }
    CHECK_INT(p.sched->stats.weights.n, 1);
    CHECK_INT(p.sched->stats.weights.bytes, 64);
    CHECK_INT(p.sched->stats.up_to_date.n, 5);
    gb_test_fail_alloc(1, true); // also the device allocates nothing
    OK(ggml_backend_sched_graph_compute(p.sched, r.graph));
    CHECK(!gb_test_alloc_failed());
    gb_test_fail_alloc(0, false);
    fill(r.x, 2, 0); // another buffer
    bytes_to(&p, 0);
    RUN(p, r, 8);
    TRANSFERRED(p, 0);
    size_t peak;
    OK(ggml_backend_sched_get_memory(p.sched, p.backends[0], &peak, NULL));
    CHECK_INT(peak, ggml_backend_sched_get_buffer_size(p.sched, p.backends[0]));
    close_place(&p);
}

static void each_write_is_noticed(void) {
    OPEN(p, "SIM:name=A SIM:name=B CPU");
    for (int home = 1; home <= 2; home++) {
        struct product r = make(&p, home, true);
        struct ggml_tensor * other = put(&p, leaf(&p, "other", 4, 4), home, true);
        fill(other, 3, 0);
        RUN(p, r, 4);
        fill(r.w, 2, 0);
        RUN(p, r, 8);
        OK(ggml_backend_tensor_copy(other, r.w));
        RUN(p, r, 12);
        OK(ggml_backend_buffer_clear(r.w->buffer, 0));
        RUN(p, r, 0);
        OK(ggml_backend_tensor_copy_async(p.backends[home], other, r.w));
        OK(ggml_backend_synchronize(p.backends[home]));
        RUN(p, r, 12);
        // written by a graph without the scheduler, by another graph of the scheduler, by
        // another scheduler
        struct ggml_cgraph * writer = ggml_new_graph(p.ctx);
        struct ggml_tensor * twice = ggml_scale_inplace(p.ctx, r.w, 2);
        OK(ggml_backend_view_init(r.w->buffer, twice));
        ggml_build_forward_expand(writer, twice);
        CHECK(ggml_backend_graph_compute(p.backends[home], writer));
        OK(ggml_backend_synchronize(p.backends[home]));
        RUN(p, r, 24);
        OK(ggml_backend_sched_graph_compute(p.sched, writer));
        RUN(p, r, 48);
        ggml_backend_sched_t s = ggml_backend_sched_new(p.backends, NULL, p.n, 0);
        OK(ggml_backend_sched_graph_compute(s, writer));
        ggml_backend_sched_free(s);
        RUN(p, r, 96);
        if (home == 2) {
            for (int i = 0; i < 16; i++) {
                ((float *) r.w->data)[i] = 1;
            }
            OK(ggml_backend_buffer_changed(r.w->buffer));
            RUN(p, r, 4);
        }
    }
    close_place(&p);
}

// A graph that writes a weight itself, and one that writes another tensor of the same buffer.
static void written_in_the_graph(void) {
    OPEN(p, "SIM:name=A CPU");
    struct ggml_tensor *w = leaf(&p, "w", 4, 4), *n = leaf(&p, "neighbour", 4, 4),
                       *x = put(&p, leaf(&p, "x", 4, 1), 0, false);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_buffer(p.backends[1], 256);
    p.buffers[p.n_buffers++] = buffer;
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    OK(ggml_backend_tensor_alloc(buffer, w, ggml_backend_buffer_get_base(buffer)));
    OK(ggml_backend_tensor_alloc(buffer, n, (char *) ggml_backend_buffer_get_base(buffer) + 64));
    fill(w, 1, 0);
    fill(n, 1, 0);
    fill(x, 1, 0);
    struct product r = build(&p, w, x);
    ggml_build_forward_expand(r.graph, ggml_scale_inplace(p.ctx, n, 2));
    RUN(p, r, 4);
    RUN(p, r, 4);
    RUN(p, r, 4);
    CHECK_AT(n, 0, 8);
    CHECK_INT(p.sched->stats.weights.n, 1); // writes of the run to other tensors of the buffer
    struct product s = build(&p, w, x);
    ggml_build_forward_expand(s.graph, ggml_scale_inplace(p.ctx, w, 2));
    RUN(p, s, 4);
    RUN(p, s, 8);
    RUN(p, s, 16);
    CHECK_AT(w, 0, 8);
    RUN(p, r, 32);
    close_place(&p);
}

static void which_copies_are_kept(void) {
    OPEN(p, "SIM:name=A SIM:name=B CPU");
    struct product on_device = make(&p, 1, false); // every write is noticed
    RUN(p, on_device, 4);
    bytes_to(&p, 0);
    RUN(p, on_device, 4);
    TRANSFERRED(p, 0);
    struct product on_host = make(&p, 2, false); // a write through a pointer could be missed
    RUN(p, on_host, 4);
    bytes_to(&p, 0);
    ((float *) on_host.w->data)[12] = 5;
    RUN(p, on_host, 8);
    TRANSFERRED(p, 64);
    close_place(&p);
}

static struct ggml_tensor * placed_by_us(struct place * p, const char * name, int64_t ne1, int device) {
    struct ggml_tensor * t = leaf(p, name, 4, ne1);
    OK(ggml_backend_sched_set_node_backend(p->sched, t, p->backends[device]));
    return t;
}

// Copies of leafs that the scheduler places, in several graphs and after a reset.
static void leafs_of_the_scheduler(void) {
    OPEN(p, "SIM:name=A SIM:name=B CPU");
    struct ggml_tensor * x = placed_by_us(&p, "x", 1, 1);
    OK(ggml_set_input(x));
    struct product r = build(&p, placed_by_us(&p, "c", 4, 1), x);
    OK(ggml_backend_sched_reserve(p.sched, r.graph));
    OK(ggml_backend_sched_alloc_graph(p.sched, r.graph));
    fill(r.w, 1, 0);
    fill(x, 1, 0);
    bytes_to(&p, 0);
    RUN(p, r, 4);
    TRANSFERRED(p, 64 + 16);
    for (int i = 0; i < 3; i++) { // setting the input does not change the other leaf
        fill(x, (float) i, 0);
        RUN(p, r, (float) i * 4);
        TRANSFERRED(p, 16);
    }
    fill(r.w, 2, 0);
    RUN(p, r, 16);
    TRANSFERRED(p, 64 + 16);
    struct product again = build(&p, r.w, x); // another graph: leafs and copy keep their memory
    RUN(p, again, 16);
    TRANSFERRED(p, 16);
    RUN(p, r, 16);
    TRANSFERRED(p, 16);
    OK(ggml_backend_sched_reset(p.sched)); // other tensors may reuse the memory
    struct product other = build(&p, placed_by_us(&p, "d", 4, 1), x);
    OK(ggml_backend_sched_alloc_graph(p.sched, other.graph));
    fill(other.w, 5, 0);
    fill(x, 1, 0);
    RUN(p, other, 20);
    close_place(&p);
}

static void leafs_of_the_scheduler_on_the_host(void) {
    OPEN(p, "SIM:name=A CPU");
    struct product r = build(&p, placed_by_us(&p, "c", 4, 1), put(&p, leaf(&p, "x", 4, 1), 0, false));
    fill(r.x, 1, 0);
    OK(ggml_backend_sched_alloc_graph(p.sched, r.graph));
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 16; k++) {
            ((float *) r.w->data)[k] = (float) i; // not noticed
        }
        RUN(p, r, (float) i * 4);
    }
    close_place(&p);
}

static void graphs_come_and_go(void) {
    OPEN(p, "SIM:name=A CPU");
    struct product r = make(&p, 1, true);
    RUN(p, r, 4);
    bytes_to(&p, 0);
    for (int i = 0; i < 40; i++) {
        if (i % 3 == 0) {
            OK(ggml_backend_sched_reset(p.sched));
        }
        struct product again = build(&p, r.w, r.x);
        RUN(p, again, 4);
        TRANSFERRED(p, 0);
    }
    CHECK_INT(p.sched->replicas.n, 1);
    close_place(&p);
}

// Another buffer at the same address, with the same tensor.
static void buffers_come_and_go(void) {
    OPEN(p, "SIM:name=A CPU");
    struct product r = make(&p, 1, true);
    RUN(p, r, 4);
    for (int i = 2; i < 20; i++) {
        ggml_backend_buffer_free(p.buffers[0]);
        p.buffers[0] = ggml_backend_alloc_buffer(p.backends[1], 64);
        OK(ggml_backend_buffer_set_usage(p.buffers[0], GGML_BACKEND_BUFFER_USAGE_WEIGHTS));
        r.w->buffer = NULL;
        r.w->data = NULL;
        OK(ggml_backend_tensor_alloc(p.buffers[0], r.w, ggml_backend_buffer_get_base(p.buffers[0])));
        fill(r.w, (float) i, 0);
        if (i % 2) {
            OK(ggml_backend_sched_reset(p.sched));
            OK(ggml_backend_sched_set_node_backend(p.sched, r.y, p.backends[0]));
        }
        RUN(p, r, 4 * (float) i);
    }
    OK(ggml_backend_sched_reset(p.sched));
    struct product last = build(&p, r.w, r.x);
    RUN(p, last, 76);
    CHECK(p.sched->replicas.n <= 2); // replicas of freed buffers are freed, too
    close_place(&p);
}

static void in_several_buffers(void) {
    OPEN(p, "SIM:name=A,max=128,align=16 CPU");
    struct ggml_tensor *sum = NULL, *x = put(&p, leaf(&p, "x", 4, 4), 0, false);
    fill(x, 1, 0);
    for (int i = 0; i < 7; i++) {
        struct ggml_tensor * w = put(&p, leaf(&p, "w", 4, 4), 1, true);
        fill(w, (float) i, 0);
        sum = ggml_add(p.ctx, sum ? sum : x, w);
        OK(ggml_backend_sched_set_node_backend(p.sched, sum, p.backends[0]));
    }
    expand(&p, sum);
    for (int i = 0; i < 3; i++) {
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        CHECK_AT(sum, 15, 22);
    }
    CHECK_INT(p.sched->stats.weights.n, 7);
    close_place(&p);
}

// A weight that does not fit is copied each time, after replicas of other graphs were freed.
static void memory_is_short(void) {
    OPEN(p, "SIM:name=A,mem=2K,align=16 CPU");
    struct ggml_tensor *x = put(&p, leaf(&p, "x", 8, 8), 0, false), *w[4], *t = x; // 256 bytes each
    fill(x, 1, 0);
    for (int i = 0; i < 4; i++) { // five copies would need all
        w[i] = put(&p, leaf(&p, "w", 8, 8), 1, true);
        fill(w[i], 1, 0);
        t = ggml_add(p.ctx, t, w[i]);
        OK(ggml_backend_sched_set_node_backend(p.sched, t, p.backends[0]));
    }
    expand(&p, t);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(t, 63, 5);
    CHECK_INT(p.sched->stats.weights.n, 4);
    // another graph, which needs 1.5K
    struct ggml_cgraph * other = ggml_new_graph(p.ctx);
    struct ggml_tensor * big = ggml_repeat(p.ctx, x, leaf(&p, "shape", 8, 48));
    ggml_build_forward_expand(other, big);
    OK(ggml_backend_sched_set_node_backend(p.sched, big, p.backends[0]));
    for (int i = 0; i < 3; i++) {
        OK(ggml_backend_sched_graph_compute(p.sched, other));
        CHECK_AT(big, 383, 1);
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        CHECK_AT(t, 63, 5);
    }
    close_place(&p);
}

static void too_large_to_keep(void) {
    OPEN(p, "SIM:name=A,mem=1408,align=16 SIM:name=B CPU");
    struct ggml_tensor *x = put(&p, leaf(&p, "x", 8, 8), 0, false), *t = x;
    fill(x, 1, 0);
    for (int i = 0; i < 6; i++) { // each weight in its own split, so the arena holds one at a time
        struct ggml_tensor * w = put(&p, leaf(&p, "w", 8, 8), 2, true);
        fill(w, 1, 0);
        t = ggml_add(p.ctx, t, w);
        OK(ggml_backend_sched_set_node_backend(p.sched, t, p.backends[0]));
        t = ggml_scale(p.ctx, t, 1);
        OK(ggml_backend_sched_set_node_backend(p.sched, t, p.backends[1]));
    }
    expand(&p, t);
    for (int i = 0; i < 3; i++) {
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        CHECK_AT(t, 63, 7);
    }
    CHECK_INT(p.sched->stats.weights.n, 0);
    CHECK(p.sched->last->in.minimal);
    close_place(&p);
}

// After a failure the content of replicas is undefined.
static void failures_forget(void) {
    OPEN(p, "SIM:name=A,fail_op=sqr CPU");
    struct product r = make(&p, 1, true);
    struct ggml_tensor * bad = ggml_sqr(p.ctx, r.y);
    struct ggml_cgraph * g = ggml_new_graph(p.ctx);
    ggml_build_forward_expand(g, bad);
    OK(ggml_backend_sched_set_node_backend(p.sched, bad, p.backends[0]));
    CHECK_INT(ggml_backend_sched_graph_compute(p.sched, g), GGML_STATUS_DEVICE_ERROR);
    RUN(p, r, 4);
    CHECK_INT(p.sched->stats.weights.n, 2);
    const enum ggml_status issued = ggml_backend_sched_graph_compute_async(p.sched, g);
    CHECK_INT(issued, test_runs_are_checked() ? GGML_STATUS_DEVICE_ERROR : GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_backend_sched_synchronize(p.sched),
        test_runs_are_checked() ? GGML_STATUS_SUCCESS : GGML_STATUS_DEVICE_ERROR);
    RUN(p, r, 4);
    CHECK_INT(p.sched->stats.weights.n, 3);
    close_place(&p);
}

static void every_allocation_fails(void) {
    OPEN(p, "SIM:name=A CPU");
    struct product r = make(&p, 1, true);
    ggml_backend_sched_free(p.sched);
    bool done = false;
    for (int n = 1; !done && n < 1000; n++) {
        const int64_t live = gb_test_live_allocs();
        gb_test_fail_alloc(n, false);
        p.sched = ggml_backend_sched_new(p.backends, NULL, p.n, 0);
        const bool ok = p.sched && ggml_backend_sched_set_check(p.sched, n % 2) == GGML_STATUS_SUCCESS &&
                        ggml_backend_sched_set_node_backend(p.sched, r.y, p.backends[0]) == GGML_STATUS_SUCCESS &&
                        ggml_backend_sched_graph_compute(p.sched, r.graph) == GGML_STATUS_SUCCESS;
        done = !gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK(ok || !done);
        if (p.sched) {
            OK(ggml_backend_sched_set_node_backend(p.sched, r.y, p.backends[0]));
            RUN(p, r, 4);
        }
        ggml_backend_sched_free(p.sched);
        r.y->buffer = NULL;
        r.y->data = NULL;
        CHECK_INT(gb_test_live_allocs(), live);
    }
    CHECK(done);
    p.sched = NULL;
    close_place(&p);
}

// With the validator: a replica that was not renewed is found.
static void stale_replicas_are_found(void) {
    OPEN(p, "SIM:name=A CPU");
    struct product r = make(&p, 1, true);
    RUN(p, r, 4);
    OK(ggml_backend_sched_set_check(p.sched, true));
    RUN(p, r, 4);
    RUN(p, r, 4);
    fill(r.w, 2, 0);
    struct gb_sched_plan * plan = p.sched->last;
    struct plan_fault fault = { .plan = plan };
    while (plan->program.steps.data[fault.step].kind != GB_STEP_COPY ||
           !plan->program.copies.data[plan->program.steps.data[fault.step].index].kept) {
        fault.step++;
    }
    plan_remove_copy(&fault);
    CHECK_INT(ggml_backend_sched_graph_compute(p.sched, r.graph), GGML_STATUS_FAILED);
    CHECK_ERROR(GGML_STATUS_FAILED, "older than the last write to 'w'");
    plan_repair(&fault);
    RUN(p, r, 8);
    OK(ggml_backend_sched_set_check(p.sched, false));
    RUN(p, r, 8);
    close_place(&p);
}

TEST_MAIN(TEST(weights_are_copied_once), TEST(each_write_is_noticed), TEST(written_in_the_graph),
    TEST(which_copies_are_kept), TEST(leafs_of_the_scheduler), TEST(leafs_of_the_scheduler_on_the_host),
    TEST(graphs_come_and_go), TEST(buffers_come_and_go), TEST(in_several_buffers), TEST(memory_is_short),
    TEST(too_large_to_keep), TEST(failures_forget), TEST(every_allocation_fails), TEST(stale_replicas_are_found))
