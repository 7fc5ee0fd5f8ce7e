// test_sched_hazards.c - waits between steps: small programs with waits counted by hand, programs
// that fail without their waits, and the time of waits.
#include "base/env.h"
#include "base/mem.h"
#include "ggml-backend-impl.h"
#include "sched/plan.h"
#include "test.h"
#include "test_place.h"
#include "test_plan_faults.h"
#include "test_queue.h"

static int n_waits(const struct place * p, bool by_host, bool hazard) {
    int n = 0;
    for (size_t i = 0; i < p->sched->last->waits.list.n; i++) {
        const struct gb_wait * w = &p->sched->last->waits.list.data[i];
        n += w->by_host == by_host && w->hazard == hazard;
    }
    return n;
}

// "0:copy@A 1:A ...": the steps, each with its waits in brackets.
static const char * steps(const struct place * p) {
    static char text[2048];
    const struct gb_sched_plan * plan = p->sched->last;
    size_t n = 0;
    text[0] = '\0';
    for (size_t k = 0; k < plan->program.steps.n; k++) {
        static const char * kinds[] = { "copy", "compute", "back" };
        const struct gb_step * s = &plan->program.steps.data[k];
        n += (size_t) snprintf(text + n, sizeof(text) - n, "%s%s@%s", k ? " " : "", kinds[s->kind],
            s->issuer < p->n ? ggml_backend_name(p->backends[s->issuer]) : "host");
        for (size_t w = plan->waits.of[k].begin; w < plan->waits.of[k].end; w++) {
            n += (size_t) snprintf(text + n, sizeof(text) - n, "%c%d", plan->waits.list.data[w].by_host ? '!' : '<',
                plan->waits.list.data[w].step);
        }
    }
    return text;
}

static struct ggml_tensor * on(struct place * p, struct ggml_tensor * t, int device) {
    OK(ggml_backend_sched_set_node_backend(p->sched, t, p->backends[device]));
    return t;
}

static void a_chain(void) {
    OPEN(p, "SIM:name=A SIM:name=B CPU");
    struct ggml_tensor * x = put(&p, leaf(&p, "x", 4, 1), 0, false);
    struct ggml_tensor *a = on(&p, ggml_sqr(p.ctx, x), 0), *b = on(&p, ggml_soft_max(p.ctx, a), 1),
                       *c = on(&p, ggml_sqr(p.ctx, b), 0);
    struct ggml_tensor * d = on(&p, ggml_scale(p.ctx, c, 16), 2);
    expand(&p, d);
    fill(x, 1, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(d, 3, 1);
    // the receiver copies. The CPU has no queue, so the sender copies, and the host waits only
    // for that copy.
    CHECK_STR(steps(&p), "compute@A copy@B<0 compute@B copy@A<2 compute@A copy@A compute@host!5");
    CHECK_INT(n_waits(&p, false, false), 2);
    CHECK_INT(n_waits(&p, true, false), 1);
    close_place(&p);
}

// A reader of two results of one queue waits once. Waits that follow from other waits are left out.
static void no_wait_too_many(void) {
    OPEN(p, "SIM:name=A SIM:name=B SIM:name=C");
    struct ggml_tensor * x = put(&p, leaf(&p, "x", 4, 1), 0, false);
    struct ggml_tensor *a = on(&p, ggml_sqr(p.ctx, x), 0), *a2 = on(&p, ggml_soft_max(p.ctx, a), 0);
    struct ggml_tensor *b = on(&p, ggml_add(p.ctx, a, a2), 1),
                       *c = on(&p, ggml_mul(p.ctx, ggml_add(p.ctx, b, a), a2), 2);
    expand(&p, c);
    on(&p, c->src[0], 2);
    fill(x, 1, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(c, 0, 0.5625f);
    CHECK_STR(steps(&p), "compute@A copy@B<0 copy@B copy@C<0 copy@C compute@B copy@C<5 compute@C");
    close_place(&p);
}

static void no_thread_waits_alone(void) {
    OPEN(p, "SIM:name=A CPU");
    struct ggml_tensor *x = put(&p, leaf(&p, "x", 4, 1), 0, false), *a = ggml_sqr(p.ctx, ggml_soft_max(p.ctx, x));
    expand(&p, a);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_STR(steps(&p), "compute@A");
    CHECK_INT(p.sched->last->waits.n_events, 0);
    close_place(&p);
}

static GGML_CALL bool yes(ggml_backend_t backend, ggml_backend_t other) { return backend != other; }

static GGML_CALL bool no(ggml_backend_t backend, ggml_backend_t other) { return backend == other; }

static int n_event_waits;
static GGML_CALL void count_event_wait(ggml_backend_t backend, ggml_backend_event_t event) {
    (void) backend, (void) event;
    n_event_waits++;
}

// Among queues that keep one order only the host waits, by events. The test only plans, because
// simulated queues keep no common order.
static void queues_that_keep_one_order(void) {
    bool (*GGML_CALL const answers[])(ggml_backend_t, ggml_backend_t) = { NULL, no, yes };
    for (int i = 0; i < 3; i++) {
        OPEN(p, "SIM:name=A SIM:name=B CPU");
        p.backends[0]->iface.comes_behind = p.backends[1]->iface.comes_behind = answers[i];
        p.backends[0]->iface.event_wait = p.backends[1]->iface.event_wait = count_event_wait;
        struct ggml_tensor * x = put(&p, leaf(&p, "x", 4, 1), 0, false);
        struct ggml_tensor *a = on(&p, ggml_sqr(p.ctx, x), 0), *b = on(&p, ggml_soft_max(p.ctx, a), 1),
                           *c = on(&p, ggml_sqr(p.ctx, b), 0);
        expand(&p, on(&p, ggml_scale(p.ctx, c, 16), 2));
        OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
        CHECK_STR(steps(&p), "compute@A copy@B<0 compute@B copy@A<2 compute@A copy@A compute@host!5");
        CHECK_INT(n_waits(&p, false, false), 2);
        CHECK_INT(p.sched->last->waits.n_events, answers[i] == yes ? 1 : 3);
        for (size_t w = 0; w < p.sched->last->waits.list.n; w++) {
            const struct gb_wait * wait = &p.sched->last->waits.list.data[w];
            CHECK_INT(wait->implied, answers[i] == yes && !wait->by_host);
            CHECK_INT(p.sched->last->waits.of[wait->step].event >= 0, !wait->implied);
        }
        ggml_backend_event_t event = ggml_backend_event_new(p.backends[0]);
        n_event_waits = 0;
        OK(ggml_backend_event_wait(p.backends[1], event));
        CHECK_INT(n_event_waits, answers[i] == yes ? 0 : 1);
        ggml_backend_event_free(event);
        close_place(&p);
    }
}

// A queue reuses memory of its dead tensor while another queue may still read it. The queues share
// memory, so there are no copies.
static void memory_is_reused_across_queues(void) {
    OPEN(p, "CPU");
    ggml_backend_t q[] = { queue_device_new(0, 0), queue_device_new(1, 3000), p.backends[0] };
    ggml_backend_sched_t s = ggml_backend_sched_new(q, NULL, 3, 0);
    struct ggml_tensor *x = leaf(&p, "x", 64, 1), *sum = NULL, *t = x;
    for (int i = 0; i < 12; i++) {
        struct ggml_tensor * fresh = ggml_scale(p.ctx, x, (float) i); // repeatedly in the same memory
        struct ggml_tensor * r = sum ? ggml_add(p.ctx, sum, fresh) : ggml_sqr(p.ctx, fresh);
        expand(&p, fresh);
        expand(&p, r);
        OK(ggml_backend_sched_set_node_backend(s, fresh, q[0]));
        OK(ggml_backend_sched_set_node_backend(s, r, q[1]));
        sum = r;
    }
    (void) t;
    OK(ggml_backend_sched_alloc_graph(s, p.graph));
    fill(x, 1, 0);
    int n_hazards = 0;
    for (size_t i = 0; i < s->last->waits.list.n; i++) {
        n_hazards += s->last->waits.list.data[i].hazard;
    }
    CHECK(n_hazards > 0);
    for (int i = 0; i < 10; i++) {
        OK(ggml_backend_sched_graph_compute(s, p.graph));
        CHECK_AT(sum, 63, 66);
    }
    ggml_backend_sched_free(s);
    ggml_backend_free(q[0]);
    ggml_backend_free(q[1]);
    close_place(&p);
}

// Inputs of the next split are copied while this split computes. Inputs come before results.
static void copies_come_ahead(void) {
    OPEN(p, "SIM:name=A SIM:name=B CPU");
    struct ggml_tensor *x = put(&p, leaf(&p, "x", 4, 1), 2, false), *y = put(&p, leaf(&p, "y", 4, 1), 2, false);
    struct ggml_tensor *a = on(&p, ggml_soft_max(p.ctx, x), 0), *b = on(&p, ggml_add(p.ctx, a, y), 1);
    expand(&p, b);
    fill(x, 1, 0);
    fill(y, 1, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(b, 0, 1.25f);
    CHECK_STR(steps(&p), "copy@A copy@B compute@A copy@B<2 compute@B"); // y goes to B before A computes
    const struct gb_sched_plan * plan = p.sched->last;
    CHECK(plan->in.nodes[plan->program.copies.data[plan->program.steps.data[1].index].root] == y);
    close_place(&p);
}

// Copies come further ahead if the receiver is idle until then: when the source is complete, but
// after earlier work of the receiver.
static void copies_come_far_ahead(void) {
    OPEN(p, "SIM:name=A SIM:name=B SIM:name=C CPU");
    struct ggml_tensor * in[4];
    for (int i = 0; i < 4; i++) {
        in[i] = put(&p, leaf(&p, "in", 4, 1), 3, false);
        fill(in[i], (float) i, 0);
    }
    struct ggml_tensor *a = on(&p, ggml_soft_max(p.ctx, in[0]), 0), *b = on(&p, ggml_sqr(p.ctx, a), 1);
    struct ggml_tensor *c = on(&p, ggml_add(p.ctx, b, in[1]), 2), *d = on(&p, ggml_add(p.ctx, c, in[2]), 0),
                       *e = on(&p, ggml_mul(p.ctx, d, a), 1);
    struct ggml_tensor * f = on(&p, ggml_add(p.ctx, ggml_mul(p.ctx, e, in[3]), b), 2);
    on(&p, f->src[0], 2);
    expand(&p, f);
    for (int i = 0; i < 3; i++) {
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        CHECK_AT(f, 0, (0.0625f + 1 + 2) * 0.25f * 3 + 0.0625f);
        OK(ggml_backend_sched_set_check(p.sched, i == 0));
    }
    // C gets in[1] at once. A gets in[2] after A's earlier work, and C gets in[3] after C's earlier work. The
    // copies of in[2] and in[3] overwrite a result that another device copies, so they wait for that copy.
    CHECK_STR(steps(&p), "copy@A copy@C compute@A copy@B<2 copy@A<3 compute@B copy@C<5 compute@C copy@A<7 copy@C<8 "
                         "compute@A copy@B<10 compute@B copy@C<12 compute@C");
    close_place(&p);
}

// A device sends before it waits for its own input: B sends b to the host before it waits for A.
static void copies_do_not_hold_up_others(void) {
    OPEN(p, "SIM:name=A SIM:name=B SIM:name=C CPU");
    struct ggml_tensor * x = put(&p, leaf(&p, "x", 4, 1), 1, false);
    struct ggml_tensor *b = on(&p, ggml_soft_max(p.ctx, x), 1), *a = on(&p, ggml_sqr(p.ctx, b), 0),
                       *c = on(&p, ggml_sqr(p.ctx, b), 2);
    struct ggml_tensor *h = on(&p, ggml_scale(p.ctx, b, 2), 3), *d = on(&p, ggml_add(p.ctx, a, b), 1);
    expand(&p, b);
    expand(&p, a);
    expand(&p, c);
    expand(&p, h);
    expand(&p, d);
    fill(x, 1, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(d, 0, 0.3125f);
    CHECK_AT(h, 0, 0.5f);
    CHECK_STR(steps(&p), "compute@B copy@A<0 copy@C<0 compute@A copy@B compute@C copy@B<3 compute@host!4 compute@B");
    close_place(&p);
}

// Adjacent inputs are copied together.
static void inputs_travel_together(void) {
    OPEN(p, "SIM:name=A,align=16 CPU");
    ggml_backend_buffer_t buffer = ggml_backend_alloc_buffer(p.backends[1], 512);
    p.buffers[p.n_buffers++] = buffer;
    struct ggml_tensor *in[4], *sum = NULL;
    for (int i = 0; i < 4; i++) { // 48 bytes each; the last one is not adjacent
        in[i] = leaf(&p, "in", 12, 1);
        OK(ggml_backend_tensor_alloc(buffer, in[i],
            (char *) ggml_backend_buffer_get_base(buffer) + (i < 3 ? 64 * i : 448)));
        fill(in[i], (float) i, 1);
        sum = sum ? ggml_add(p.ctx, sum, in[i]) : ggml_sqr(p.ctx, in[i]);
        on(&p, sum, 0);
    }
    expand(&p, sum);
    for (int i = 0; i < 3; i++) {
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        CHECK_AT(sum, 0, 6);
        CHECK_AT(sum, 11, 121 + 3 * 11 + 6);
        fill(in[0], 0, 1);
        OK(ggml_backend_sched_set_check(p.sched, i == 0));
    }
    CHECK_STR(steps(&p), "copy@A copy@A compute@A");
    struct ggml_backend_sched_split_info info;
    OK(ggml_backend_sched_get_split(p.sched, 0, &info));
    CHECK_INT(info.n_inputs, 4);
    CHECK_INT(info.input_bytes, 4 * 48);
    CHECK(ggml_backend_sched_get_split_input(p.sched, 0, 0) == in[0] &&
          ggml_backend_sched_get_split_input(p.sched, 0, 2) == in[2]);
    CHECK_INT(p.sched->stats.inputs.n + p.sched->stats.results.n, 2 * 3);
    CHECK_INT(p.sched->stats.inputs.bytes + p.sched->stats.results.bytes, (2 * 64 + 48 + 48) * 3);
    close_place(&p);
}

// The host issues everything at once. A device that is independent of the slow one does not wait
// for it.
static void the_host_is_not_held_up(void) {
    SKIP_IF_CHECKED("the host waits for each step");
    OPEN(p, "SIM:name=A,delay=150ms SIM:name=B SIM:name=C,delay=150ms CPU");
    struct ggml_tensor *x = put(&p, leaf(&p, "x", 4, 1), 0, false), *z = put(&p, leaf(&p, "z", 4, 1), 2, false);
    struct ggml_tensor *a = on(&p, ggml_sqr(p.ctx, x), 0), *b = on(&p, ggml_soft_max(p.ctx, a), 1),
                       *c = on(&p, ggml_sqr(p.ctx, z), 2);
    expand(&p, b);
    expand(&p, c);
    fill(x, 1, 0);
    fill(z, 2, 0);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph)); // makes the plans
    int64_t issued = INT64_MAX, done = INT64_MAX;
    for (int i = 0; i < BUSY_TRIES && (issued >= 100000000 || done >= 290000000); i++) {
        const int64_t start = gb_time_ns();
        OK(ggml_backend_sched_graph_compute_async(p.sched, p.graph));
        issued = GB_MIN(issued, gb_time_ns() - start);
        OK(ggml_backend_sched_synchronize(p.sched));
        done = GB_MIN(done, gb_time_ns() - start);
    }
    CHECK_MSG(issued < 100000000, "issuing took %g ms", (double) issued / 1e6);
    CHECK_MSG(done < 290000000, "all took %g ms", (double) done / 1e6);
    CHECK_AT(b, 0, 0.25f);
    CHECK_AT(c, 0, 4);
    close_place(&p);
}

// A device fails while others wait for it. The failure is reported once, and the next run works.
static void failures_while_others_wait(void) {
    OPEN(p, "SIM:name=A,fail_op=sqr,delay=5ms SIM:name=B CPU");
    struct ggml_tensor *x = put(&p, leaf(&p, "x", 4, 1), 0, false), *a = on(&p, ggml_sqr(p.ctx, x), 0);
    struct ggml_tensor *b = on(&p, ggml_soft_max(p.ctx, a), 1), *c = on(&p, ggml_scale(p.ctx, b, 2), 0);
    expand(&p, c);
    fill(x, 1, 0);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(ggml_backend_sched_graph_compute(p.sched, p.graph), GGML_STATUS_DEVICE_ERROR);
        CHECK(strstr(ggml_last_error(), "backend A") != NULL);
    }
    OK(ggml_backend_sched_set_node_backend(p.sched, a, p.backends[2]));
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(c, 0, 0.5f);
    close_place(&p);
}

// Runs without the first wait, or the first copy, of the plan.
static enum ggml_status run_without(struct place * p, enum plan_fault_kind kind) {
    const struct plan_fault fault = plan_inject(p->sched->last, kind, 0);
    const enum ggml_status status = ggml_backend_sched_graph_compute(p->sched, p->graph);
    plan_repair(&fault);
    return status;
}

// The validator's message names both steps.
static void the_validator_names_both(void) {
    OPEN(p, "SIM:name=A SIM:name=B CPU");
    struct ggml_tensor *x = put(&p, leaf(&p, "x", 4, 1), 0, false),
                       *a = ggml_set_name(on(&p, ggml_sqr(p.ctx, x), 0), "a");
    struct ggml_tensor * b = on(&p, ggml_soft_max(p.ctx, a), 1);
    expand(&p, b);
    fill(x, 1, 0);
    OK(ggml_backend_sched_set_check(p.sched, true));
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    CHECK_AT(b, 0, 0.25f);
    CHECK_INT(run_without(&p, FAULT_WAIT), GGML_STATUS_FAILED);
    CHECK_ERROR(GGML_STATUS_FAILED, "step 1 (the copy 'B#a') reads 'a', which step 0 (nodes 0 to 0 on A) may still be "
                                    "writing: no wait orders the two");
    CHECK_INT(run_without(&p, FAULT_COPY), GGML_STATUS_FAILED);
    CHECK_ERROR(GGML_STATUS_FAILED, "reads 'B#a', but the memory holds nothing");
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    close_place(&p);
}

static enum ggml_status validate(const struct ggml_backend_sched * s) {
    const struct gb_sched_plan * p = s->last;
    return gb_sched_validate_layout(s, &p->in, &p->program, &p->layout);
}

// Blocks that overlap in time and bytes, unaligned blocks, blocks beyond the end, and alias groups
// in pieces.
static void the_validator_of_places_fires(void) {
    OPEN(p, "SIM:name=A CPU");
    struct ggml_tensor *x = put(&p, leaf(&p, "x", 16, 1), 0, false), *sum = ggml_sqr(p.ctx, x);
    for (int i = 0; i < 6; i++) {
        sum = ggml_add(p.ctx, ggml_repeat(p.ctx, sum, leaf(&p, "shape", 16, 2 + i)),
            ggml_repeat(p.ctx, x, leaf(&p, "shape", 16, 2 + i)));
        sum = ggml_sum_rows(p.ctx, sum);
        sum = ggml_repeat(p.ctx, ggml_view_1d(p.ctx, sum, 1, 0), x);
    }
    expand(&p, sum);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    struct gb_sched_plan * plan = p.sched->last;
    OK(validate(p.sched));
    int n_met = 0, n_joined = 0;
    for (int i = 0; i < plan->in.n_ids; i++) {
        struct gb_item * a = (struct gb_item *) gb_sched_arena_item(&plan->layout, i);
        if (a == NULL) {
            continue;
        }
        const struct gb_item kept = *a;
        a->offset += 1;
        CHECK_INT(validate(p.sched), GGML_STATUS_FAILED);
        a->offset = kept.offset;
        a->chunk = -1;
        CHECK_INT(validate(p.sched), GGML_STATUS_FAILED);
        *a = kept;
        for (int j = 0; j < plan->in.n_ids; j++) {
            const struct gb_item * b = gb_sched_arena_item(&plan->layout, j);
            if (b && b->group != kept.group && b->backend == kept.backend && b->lower < kept.upper &&
                kept.lower < b->upper) {
                for (int k = 0; k < plan->in.n_ids; k++) { // the whole alias group, otherwise it is in pieces
                    struct gb_item * of = (struct gb_item *) gb_sched_arena_item(&plan->layout, k);
                    if (of && of->group == kept.group) {
                        of->offset = b->offset;
                    }
                }
                n_met++;
                CHECK_INT(validate(p.sched), GGML_STATUS_FAILED);
                CHECK_MSG(strstr(ggml_last_error(), "overlap") != NULL, "%s", ggml_last_error());
                for (int k = 0; k < plan->in.n_ids; k++) {
                    struct gb_item * of = (struct gb_item *) gb_sched_arena_item(&plan->layout, k);
                    if (of && of->group == kept.group) {
                        of->offset = kept.offset;
                    }
                }
            }
        }
        if (kept.group != i) {
            n_joined++;
            a->offset += 4096;
            CHECK_INT(validate(p.sched), GGML_STATUS_FAILED);
            CHECK_MSG(strstr(ggml_last_error(), "computed in") != NULL, "%s", ggml_last_error());
            *a = kept;
        }
    }
    OK(validate(p.sched));
    CHECK(n_met > 0 && n_joined > 0);
    ggml_clear_error();
    close_place(&p);
}

TEST_MAIN(TEST(a_chain), TEST(no_wait_too_many), TEST(no_thread_waits_alone), TEST(queues_that_keep_one_order),
    TEST(memory_is_reused_across_queues), TEST(copies_come_ahead), TEST(copies_come_far_ahead),
    TEST(copies_do_not_hold_up_others), TEST(inputs_travel_together), TEST(the_host_is_not_held_up),
    TEST(failures_while_others_wait), TEST(the_validator_names_both), TEST(the_validator_of_places_fires))
