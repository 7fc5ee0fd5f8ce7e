// test_cost.c - the solver of placements against all placements of small problems, and by
// certificates on large ones. Then the policy in a scheduler: predictions computed by hand,
// constraints, memory limits, invalid tables.
#include "sched/cost/frontier.h"
#include "flow_validator.h"
#include "test_cost.h"
#include "test_place.h"

static void two_backends_equal_all_placements(void) {
    for (int round = 0; round < 800; round++) {
        struct instance w = random_instance(2, (int) test_random_int(1, 10), (int) test_random_int(0, 4),
            (int) test_random_int(1, 9), round % 2 ? 3 : 1000, 25);
        int32_t labels[16] = { 0 };
        struct gb_cost_result r;
        REQUIRE(gb_cost_solve(&w.p, NULL, 0, labels, &r) == GGML_STATUS_SUCCESS);
        CHECK_INT(r.cost, try_everything(&w.p));
        CHECK_INT(cost_of(&w.p, labels), r.cost);
        CHECK(r.proved && r.bound == r.cost && r.method == GB_COST_CUT);
        close_instance(&w);
    }
}

// These problems are too large to try all placements. No labels cost less than a flow carries, so labels
// that cost as much as the flow are optimal.
static void large_ones_have_a_certificate(void) {
    for (int round = 0; round < 5; round++) {
        struct instance w = random_instance(2, 3000, 30, 5, 1 << 20, 10);
        int32_t *zeros = calloc((size_t) w.p.n_items, sizeof(*zeros)),
                *labels = calloc((size_t) w.p.n_items, sizeof(*labels));
        struct gb_flow net = { 0 };
        struct gb_cost_result r;
        REQUIRE(gb_cost_network(&w.p, zeros, 1, &net));
        REQUIRE(gb_flow_solve(&net, w.p.n_items, w.p.n_items + 1) == GGML_STATUS_SUCCESS);
        const char * wrong = flow_problem(&net, w.p.n_items, w.p.n_items + 1);
        CHECK_MSG(wrong == NULL, "%s", wrong);
        REQUIRE(gb_cost_solve(&w.p, NULL, 0, labels, &r) == GGML_STATUS_SUCCESS);
        CHECK_INT(r.cost, net.value);
        CHECK_INT(cost_of(&w.p, labels), net.value);
        gb_flow_free(&net);
        free(zeros);
        free(labels);
        close_instance(&w);
    }
}

static void more_backends_equal_all_placements(void) {
    int n_moves_optimal = 0, n = 0;
    for (int round = 0; round < 400; round++) {
        const int k = (int) test_random_int(3, 4);
        struct instance w = random_instance(k, (int) test_random_int(1, 6), (int) test_random_int(0, 1),
            (int) test_random_int(1, 5), round % 2 ? 3 : 1000, 20);
        int32_t labels[16] = { 0 }, start[16];
        struct gb_cost_result r;
        const int64_t best = try_everything(&w.p);
        REQUIRE(gb_cost_solve(&w.p, NULL, 1 << 20, labels, &r) == GGML_STATUS_SUCCESS);
        CHECK_INT(r.cost, best);
        CHECK_INT(cost_of(&w.p, labels), best);
        CHECK(r.proved && r.bound == best);
        // without the search: never better than the optimum, never worse than the start, and the bound holds
        for (int i = 0; i < w.p.n_items; i++) {
            start[i] = (int32_t) test_random_int(0, k - 1);
        }
        REQUIRE(gb_cost_solve(&w.p, start, 0, labels, &r) == GGML_STATUS_SUCCESS);
        CHECK(r.cost >= best && r.cost <= cost_of(&w.p, start) && r.bound <= best);
        CHECK(!r.proved || r.cost == best);
        CHECK_INT(cost_of(&w.p, labels), r.cost);
        n_moves_optimal += r.cost == best;
        n++;
        close_instance(&w);
    }
    CHECK_MSG(n_moves_optimal > n * 9 / 10, "expansion moves found %d of %d optima", n_moves_optimal, n);
}

static void savings_are_differences(void) {
    for (int round = 0; round < 200; round++) {
        const int k = (int) test_random_int(2, 4);
        struct instance w = random_instance(k, (int) test_random_int(1, 8), 2, 3, 1000, 20);
        int32_t labels[16], other[16];
        int64_t saved[16];
        for (int i = 0; i < w.p.n_items; i++) {
            do {
                labels[i] = (int32_t) test_random_int(0, k - 1);
            } while (w.cost[i * k + labels[i]] >= GB_COST_INF);
        }
        const int64_t cost = cost_of(&w.p, labels);
        CHECK_INT(gb_cost_of(&w.p, labels), cost);
        REQUIRE(gb_cost_savings(&w.p, labels, saved, other) == GGML_STATUS_SUCCESS);
        for (int i = 0; i < w.p.n_items; i++) {
            const int32_t own = labels[i];
            int64_t best = INT64_MAX;
            for (labels[i] = 0; labels[i] < k; labels[i]++) {
                const int64_t there = labels[i] == own ? INT64_MAX : cost_of(&w.p, labels);
                best = there < best ? there : best;
            }
            CHECK((other[i] < 0) == (best == INT64_MAX));
            CHECK(other[i] < 0 || saved[i] == best - cost);
            labels[i] = own;
        }
        close_instance(&w);
    }
}

// ------------------------------------------------------------------------------------------------------ in a scheduler

// A cost table of up to 3 backends: one op entry, all copies.
struct table {
    struct ggml_backend_op_cost ops[8];
    struct ggml_backend_copy_cost copies[6];
    size_t max_bytes[3];
    struct ggml_backend_cost_table t;
};

static void make_table(struct table * x, int n, const double * bytes_per_us, double launch_us, double copy_us) {
    memset(x, 0, sizeof(*x));
    size_t c = 0;
    for (int b = 0; b < n; b++) {
        x->ops[b] = (struct ggml_backend_op_cost){ b, GGML_BACKEND_COST_ANY, -1, launch_us, bytes_per_us[b], INFINITY };
        for (int to = 0; to < n; to++) {
            if (to != b) {
                x->copies[c++] = (struct ggml_backend_copy_cost){ b, to, copy_us, 1000 };
            }
        }
    }
    x->t = (struct ggml_backend_cost_table){
        .ops = x->ops, .n_ops = (size_t) n, .copies = x->copies, .n_copies = c, .split_us = 1
    };
}

// Weights on both devices, used by one chain: out = w1 * (relu(w0 * x) + b).
struct chain {
    struct ggml_tensor *x, *w0, *w1, *first, *relu, *sum, *out;
};

static struct chain make_chain(struct place * p) {
    struct chain c;
    c.x = leaf(p, "x", 8, 4);
    c.w0 = put(p, leaf(p, "w0", 8, 8), 0, true);
    c.w1 = put(p, leaf(p, "w1", 8, 8), 1, true);
    c.first = ggml_set_name(ggml_mul_mat(p->ctx, c.w0, c.x), "first");
    c.relu = ggml_set_name(ggml_relu_inplace(p->ctx, c.first), "relu");
    c.sum = ggml_set_name(ggml_add(p->ctx, c.relu, c.x), "sum");
    c.out = ggml_set_name(ggml_mul_mat(p->ctx, c.w1, c.sum), "out");
    expand(p, c.out);
    return c;
}

static void without_costs_as_weights(void) {
    char expected[1024];
    for (int policy = 0; policy < 2; policy++) {
        OPEN(p, "SIM:name=A SIM:name=B CPU");
        make_chain(&p);
        OK(ggml_backend_sched_set_policy(p.sched,
            policy ? GGML_BACKEND_SCHED_POLICY_COST : GGML_BACKEND_SCHED_POLICY_WEIGHTS));
        OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
        if (policy == 0) {
            snprintf(expected, sizeof(expected), "%s", splits(&p));
        } else {
            CHECK_STR(splits(&p), expected);
            struct ggml_backend_sched_prediction prediction;
            OK(ggml_backend_sched_get_prediction(p.sched, &prediction));
            CHECK(prediction.us == -1 && prediction.weights_us == -1 && prediction.bound_us == -1 &&
                  !prediction.proved);
        }
        close_place(&p);
    }
}

static void prediction_by_hand(void) {
    OPEN(p, "SIM:name=A SIM:name=B");
    struct chain c = make_chain(&p);
    struct table x;
    make_table(&x, 2, (double[]){ 64, 64 }, 0, 4); // bytes / 64 us; copies 4 us + bytes / 1000; split 1 us
    OK(ggml_backend_sched_set_policy(p.sched, GGML_BACKEND_SCHED_POLICY_COST));
    OK(ggml_backend_sched_set_costs(p.sched, &x.t));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    // A weight has 256 bytes. x and each result have 128. The nodes read and write 512, 256, 384 and 512
    // bytes, which takes 26 us. The weights are on different devices. Copying a weight takes 4.256 us.
    // Copying the sum takes 4.128 us and needs one more split.
    struct ggml_backend_sched_prediction got;
    OK(ggml_backend_sched_get_prediction(p.sched, &got));
    CHECK_MSG(fabs(got.us - 30.256) < 0.02, "%g", got.us);
    CHECK(got.proved && got.bound_us == got.us && got.us <= got.weights_us);
    CHECK(ggml_backend_sched_get_node_backend(p.sched, c.first) == p.backends[0]);
    CHECK(ggml_backend_sched_get_node_backend(p.sched, c.out) == p.backends[0]);
    CHECK_INT(ggml_backend_sched_get_n_splits(p.sched), 1);
    CHECK_MSG(fabs(got.weights_us - 31.128) < 0.02, "%g", got.weights_us);
    // a fast second device runs everything with copied weights, and copies that many runs share are cheap
    make_table(&x, 2, (double[]){ 8, 512 }, 0, 1);
    x.t.weight_runs = 100;
    OK(ggml_backend_sched_set_costs(p.sched, &x.t));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    CHECK(ggml_backend_sched_get_node_backend(p.sched, c.first) == p.backends[1]);
    CHECK_MSG(strstr(ggml_backend_sched_explain(p.sched, c.first), "runs on B, because that saves ") != NULL, "%s",
        ggml_backend_sched_explain(p.sched, c.first));
    CHECK(strstr(ggml_backend_sched_explain(p.sched, c.first), " us against A") != NULL);
    OK(ggml_backend_sched_get_prediction(p.sched, &got));
    CHECK_MSG(fabs(got.us - (26 * 64.0 / 512 + 1.256 / 100)) < 0.02, "%g", got.us);
    close_place(&p);
}

// Two tokens read at most two of four experts. The indices are read whole.
static void experts_by_hand(void) {
    OPEN(p, "SIM:name=A SIM:name=B");
    struct ggml_tensor *ids = ggml_new_tensor_2d(p.ctx, GGML_TYPE_I32, 1, 2), *b = leaf(&p, "b", 8, 2), *experts[4];
    for (int i = 0; i < 4; i++) {
        experts[i] = put(&p, leaf(&p, "expert", 8, 8), 0, true);
    }
    expand(&p, ggml_mul_mat_id(p.ctx, experts, 4, ids, 0, b));
    struct table x;
    make_table(&x, 2, (double[]){ 64, 64 }, 0, 4);
    OK(ggml_backend_sched_set_policy(p.sched, GGML_BACKEND_SCHED_POLICY_COST));
    struct ggml_backend_sched_prediction got;
    OK(ggml_backend_sched_set_costs(p.sched, &x.t));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    OK(ggml_backend_sched_get_prediction(p.sched, &got));
    // indices 8 bytes, activations and result 64 each, experts 256 each
    CHECK_MSG(fabs(got.us - (8 + 64 + 64 + 2 * 256) / 64.0) < 0.02, "%g", got.us);
    for (size_t k = 0; k < x.t.n_ops; k++) {
        x.ops[k].flops_per_us = 1; // 2 x 8 for each of 16 results
    }
    OK(ggml_backend_sched_set_costs(p.sched, &x.t));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    OK(ggml_backend_sched_get_prediction(p.sched, &got));
    CHECK_MSG(fabs(got.us - 2 * 8 * 16) < 0.02, "%g", got.us);
    close_place(&p);
}

static void exact_entries_go_first(void) {
    OPEN(p, "SIM:name=A SIM:name=B");
    struct chain c = make_chain(&p);
    struct table x;
    make_table(&x, 2, (double[]){ 64, 64 }, 0, 0.001);
    x.t.split_us = 0;
    x.ops[x.t.n_ops++] = (struct ggml_backend_op_cost){ 1, GGML_BACKEND_COST_ELEMENTS, -1, 0, 1e6, INFINITY };
    x.ops[x.t.n_ops++] = (struct ggml_backend_op_cost){ 0, GGML_BACKEND_COST_MATMUL, GGML_TYPE_F32, 0, 1e6, INFINITY };
    x.ops[x.t.n_ops++] = (struct ggml_backend_op_cost){ 0, GGML_BACKEND_COST_MATMUL, -1, 1e6, 1e-3, INFINITY };
    OK(ggml_backend_sched_set_policy(p.sched, GGML_BACKEND_SCHED_POLICY_COST));
    OK(ggml_backend_sched_set_costs(p.sched, &x.t));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    CHECK(ggml_backend_sched_get_node_backend(p.sched, c.sum) == p.backends[1]);
    CHECK(ggml_backend_sched_get_node_backend(p.sched, c.out) == p.backends[0]);
    // one memory
    CHECK(ggml_backend_sched_get_node_backend(p.sched, c.relu) ==
          ggml_backend_sched_get_node_backend(p.sched, c.first));
    close_place(&p);
}

static void constraints_hold(void) {
    OPEN(p, "SIM:name=A,noops=add SIM:name=B");
    struct chain c = make_chain(&p);
    struct ggml_tensor * cache = put(&p, leaf(&p, "cache", 8, 4), 1, false);
    struct ggml_tensor * write = ggml_set_name(ggml_cpy(p.ctx, c.first, cache), "write");
    expand(&p, write);
    struct table x;
    make_table(&x, 2, (double[]){ 1e6, 0.1 }, 0, 0.001); // A runs all nodes that it supports
    OK(ggml_backend_sched_set_policy(p.sched, GGML_BACKEND_SCHED_POLICY_COST));
    OK(ggml_backend_sched_set_costs(p.sched, &x.t));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    CHECK(ggml_backend_sched_get_node_backend(p.sched, c.first) == p.backends[0]);
    CHECK(ggml_backend_sched_get_node_backend(p.sched, c.sum) == p.backends[1]); // A has no add
    CHECK(ggml_backend_sched_get_node_backend(p.sched, c.out) == p.backends[0]);
    CHECK(ggml_backend_sched_get_node_backend(p.sched, write) == p.backends[1]); // the cache is on B
    CHECK(strstr(ggml_backend_sched_explain(p.sched, c.sum), "because no other device can take it") != NULL);
    OK(ggml_backend_sched_reset(p.sched));
    OK(ggml_backend_sched_set_node_backend(p.sched, c.out, p.backends[1]));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    CHECK(ggml_backend_sched_get_node_backend(p.sched, c.out) == p.backends[1]);
    CHECK_MSG(strstr(ggml_backend_sched_explain(p.sched, c.out), "as you assigned it") != NULL, "%s",
        ggml_backend_sched_explain(p.sched, c.out));
    close_place(&p);
}

static void results_are_the_same(void) {
    float expected = NAN;
    for (int round = 0; round < 4; round++) {
        OPEN(p, "SIM:name=A SIM:name=B CPU");
        struct chain c = make_chain(&p);
        struct table x;
        make_table(&x, 3, (double[][3]){ { 1, 1, 1 }, { 100, 1, 1 }, { 1, 100, 1 }, { 1, 1, 100 } }[round], 0, 0.1);
        OK(ggml_backend_sched_set_check(p.sched, true));
        OK(ggml_backend_sched_set_policy(p.sched, GGML_BACKEND_SCHED_POLICY_COST));
        OK(ggml_backend_sched_set_costs(p.sched, &x.t));
        OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
        fill(c.x, -1, 0.125f);
        fill(c.w0, -2, 0.0625f);
        fill(c.w1, 1, -0.03125f);
        OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
        expected = round == 0 ? at(c.out, 11) : expected;
        CHECK_AT(c.out, 11, expected);
        CHECK(round == 0 || ggml_backend_sched_get_node_backend(p.sched, c.out) == p.backends[round - 1]);
        close_place(&p);
    }
}

// Random chains with branches, results in place and a cache written through a view, on three
// devices with random costs. Two runs of one seed differ only in `policy`. The scheduler's
// validator checks each run.
static int random_run(uint64_t seed, enum ggml_backend_sched_policy policy, float * out) {
    test_seed = seed;
    struct place p;
    char devices[128];
    snprintf(devices, sizeof(devices), "SIM:name=A%s SIM:name=B%s CPU", test_random_int(0, 2) ? "" : ",noops=mul",
        test_random_int(0, 2) ? "" : ",noops=relu");
    if (!open_place(&p, devices)) {
        return 0;
    }
    const double rates[] = { test_random_float(1, 99), test_random_float(1, 99), test_random_float(1, 99) };
    struct table x;
    make_table(&x, 3, rates, test_random_float(0, 1), test_random_float(0, 4));
    struct ggml_tensor * t[40] = { leaf(&p, "x", 8, 4), leaf(&p, "y", 8, 4) };
    struct ggml_tensor * cache = put(&p, leaf(&p, "cache", 8, 16), (int) test_random_int(0, 2), false);
    int n = 3;
    expand(&p, t[2] = ggml_add(p.ctx, t[0], t[1]));
    while (n < 24) {
        struct ggml_tensor *a = t[test_random_int(n > 6 ? n - 6 : 0, n - 1)], *b = t[test_random_int(0, n - 1)];
        struct ggml_tensor * part =
            ggml_view_2d(p.ctx, cache, 8, 4, cache->nb[1], (size_t) test_random_int(0, 3) * 4 * cache->nb[1]);
        switch (test_random_int(0, 5)) {
            case 0: t[n] = ggml_add(p.ctx, a, b); break;
            case 1: t[n] = ggml_mul(p.ctx, a, b); break;
            case 2: t[n] = ggml_relu(p.ctx, a); break;
            case 3: t[n] = ggml_scale(p.ctx, a, 0.5f); break;
            case 4: t[n] = ggml_add_inplace(p.ctx, ggml_scale(p.ctx, a, 2), b); break;
            default: t[n] = ggml_cpy(p.ctx, a, part); break;
        }
        expand(&p, t[n]);
        if (test_random_int(0, 9) == 0 && t[n]->op == GGML_OP_ADD) {
            ggml_backend_sched_set_node_backend(p.sched, t[n], p.backends[test_random_int(0, 2)]);
        }
        n++;
    }
    OK(ggml_backend_sched_set_check(p.sched, true));
    OK(ggml_backend_sched_set_policy(p.sched, policy));
    OK(ggml_backend_sched_set_costs(p.sched, &x.t));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    struct ggml_backend_sched_prediction got;
    OK(ggml_backend_sched_get_prediction(p.sched, &got));
    CHECK(policy != GGML_BACKEND_SCHED_POLICY_COST || (got.proved && got.us > 0));
    fill(t[0], -1, 0.0625f);
    fill(t[1], 1, -0.03125f);
    fill(cache, 0.5f, 0.125f);
    OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
    OK(ggml_backend_tensor_get(t[n - 1], out, 0, 32 * sizeof(float)));
    OK(ggml_backend_tensor_get(cache, out + 32, 0, 128 * sizeof(float)));
    close_place(&p);
    return 1;
}

static void random_graphs_compute_the_same(void) {
    for (uint64_t seed = 1; seed <= 150; seed++) {
        float by_weights[160] = { 0 }, by_cost[160] = { 0 };
        REQUIRE(random_run(seed, GGML_BACKEND_SCHED_POLICY_WEIGHTS, by_weights) &&
                random_run(seed, GGML_BACKEND_SCHED_POLICY_COST, by_cost));
        CHECK_MSG(memcmp(by_weights, by_cost, sizeof(by_cost)) == 0, "seed %d differs", (int) seed);
    }
}

// 6 results of 64 KiB are alive at once. A is faster and has memory for 2 of them.
static void memory_limits(void) {
    for (int round = 0; round < 3; round++) {
        OPEN(p, "SIM:name=A SIM:name=B");
        struct ggml_tensor *x = leaf(&p, "x", 128, 128), *sum = NULL, *kept[6];
        for (int i = 0; i < 6; i++) {
            kept[i] = ggml_scale(p.ctx, x, (float) i);
        }
        for (int i = 0; i < 6; i++) {
            sum = sum ? ggml_add(p.ctx, sum, kept[5 - i]) : kept[5];
        }
        for (int i = 0; i < 6; i++) {
            expand(&p, kept[i]);
        }
        expand(&p, sum);
        struct table t;
        make_table(&t, 2, (double[]){ 1000, 500 }, 0, 1);
        t.max_bytes[0] = round == 0 ? 0 : 3 * 65536;
        t.max_bytes[1] = round == 2 ? 3 * 65536 : 0;
        t.t.max_bytes = t.max_bytes;
        OK(ggml_backend_sched_set_policy(p.sched, GGML_BACKEND_SCHED_POLICY_COST));
        OK(ggml_backend_sched_set_costs(p.sched, &t.t));
        const enum ggml_status status = ggml_backend_sched_alloc_graph(p.sched, p.graph);
        struct ggml_backend_sched_prediction got = { 0 };
        if (round == 2) {
            CHECK_INT(status, GGML_STATUS_ALLOC_FAILED);
            CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "196608 are allowed");
        } else {
            CHECK_INT(status, GGML_STATUS_SUCCESS);
            OK(ggml_backend_sched_get_prediction(p.sched, &got));
            CHECK(got.proved == (round == 0) && got.bound_us <= got.us);
            const size_t size = ggml_backend_sched_get_buffer_size(p.sched, p.backends[0]);
            CHECK(round == 0 ? size > 6 * 65536 : size <= 3 * 65536);
        }
        close_place(&p);
    }
}

// Six layers of two leafs of 64 KiB each, on three equal backends. Prices on bytes cannot
// distinguish them.
static void make_equals(struct place * p, struct table * t, size_t limit) {
    struct ggml_tensor * sum = leaf(p, "x", 16, 1);
    for (int i = 0; i < 6; i++) {
        char name[8];
        snprintf(name, sizeof(name), "w%d", i);
        sum = ggml_mul_mat(p->ctx, leaf(p, name, 16, 1024), sum);
        sum = ggml_mul_mat(p->ctx, leaf(p, "back", 1024, 16), sum);
    }
    expand(p, sum);
    make_table(t, 3, (double[]){ 1000, 1000, 1000 }, 1, 1);
    for (int b = 0; b < 3; b++) {
        t->max_bytes[b] = limit;
    }
    t->t.max_bytes = t->max_bytes;
}

static void equals_are_filled_in_turn(void) {
    const size_t two = 4 * 65536 + 3 * 4096; // layers, and results
    for (int round = 0; round < 3; round++) {
        OPEN(p, "SIM:name=A SIM:name=B SIM:name=C");
        struct table t;
        make_equals(&p, &t, round == 0 ? 0 : round == 1 ? two : two / 2);
        OK(ggml_backend_sched_set_policy(p.sched, GGML_BACKEND_SCHED_POLICY_COST));
        OK(ggml_backend_sched_set_costs(p.sched, &t.t));
        const enum ggml_status status = ggml_backend_sched_alloc_graph(p.sched, p.graph);
        struct ggml_backend_sched_prediction got = { 0 };
        if (round == 2) {
            CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "no placement found needs less");
            CHECK_INT(status, GGML_STATUS_ALLOC_FAILED);
        } else {
            CHECK_INT(status, GGML_STATUS_SUCCESS);
            CHECK_INT(ggml_backend_sched_get_n_splits(p.sched), round == 0 ? 1 : 3);
            OK(ggml_backend_sched_get_prediction(p.sched, &got));
            CHECK(got.proved == (round == 0) && got.bound_us <= got.us);
            for (int b = 0; round == 1 && b < 3; b++) {
                CHECK(ggml_backend_sched_get_buffer_size(p.sched, p.backends[b]) <= two);
            }
        }
        close_place(&p);
    }
}

// Like every_allocation_fails, for some allocations in the rounds that fill backends.
static void allocations_fail_while_filling(void) {
    bool failed = true;
    for (int n = 1, k = 0; failed; n += 1 + 37 * k++) {
        OPEN(p, "SIM:name=A SIM:name=B SIM:name=C");
        struct table t;
        make_equals(&p, &t, 4 * 65536 + 3 * 4096);
        OK(ggml_backend_sched_set_policy(p.sched, GGML_BACKEND_SCHED_POLICY_COST));
        OK(ggml_backend_sched_set_costs(p.sched, &t.t));
        gb_test_fail_alloc(n, false);
        const enum ggml_status status = ggml_backend_sched_alloc_graph(p.sched, p.graph);
        failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK(status == GGML_STATUS_SUCCESS || (failed && status == GGML_STATUS_ALLOC_FAILED));
        OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
        CHECK(failed || n > 1000);
        close_place(&p);
    }
}

static void bad_tables(void) {
    OPEN(p, "SIM:name=A SIM:name=B");
    struct table x;
#define BAD(change, text)                                                                 \
    make_table(&x, 2, (double[]){ 1, 1 }, 0, 0);                                          \
    change;                                                                               \
    CHECK_INT(ggml_backend_sched_set_costs(p.sched, &x.t), GGML_STATUS_INVALID_ARGUMENT); \
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, text)
    BAD(x.t.n_ops = 1, "backend 1, B, has no entry");
    BAD(x.ops[1].type = 0, "has no entry");
    BAD(x.ops[1].type = 1000, "ops[1]");
    BAD(x.ops[0].backend = 2, "ops[0]: backend 2 of 2");
    BAD(x.ops[0].op_class = 99, "class 99");
    BAD(x.ops[0].bytes_per_us = 0, "rates above 0");
    BAD(x.ops[0].flops_per_us = NAN, "rates above 0");
    BAD(x.ops[0].launch_us = -1, "launch -1 us");
    BAD(x.t.n_copies = 1, "copies from backend 1 to 0");
    BAD(x.copies[0].bytes_per_us = -1, "copies from backend 0 to 1");
    BAD(x.t.split_us = INFINITY, "split_us");
    BAD(x.t.weight_runs = 0.5, "weight_runs");
    BAD(x.t.ops = NULL, "entries are NULL");
    OK(ggml_backend_sched_set_costs(p.sched, NULL));
    close_place(&p);
}

static void every_allocation_fails(void) {
    for (int n = 1; n < 2000; n++) {
        OPEN(p, "SIM:name=A SIM:name=B SIM:name=C");
        make_chain(&p);
        struct table x;
        make_table(&x, 3, (double[]){ 3, 5, 4 }, 1, 0.1);
        OK(ggml_backend_sched_set_policy(p.sched, GGML_BACKEND_SCHED_POLICY_COST));
        gb_test_fail_alloc(n, false);
        enum ggml_status status = ggml_backend_sched_set_costs(p.sched, &x.t);
        status = status == GGML_STATUS_SUCCESS ? ggml_backend_sched_alloc_graph(p.sched, p.graph) : status;
        const bool failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK(status == GGML_STATUS_SUCCESS || (failed && status == GGML_STATUS_ALLOC_FAILED));
        OK(ggml_backend_sched_set_costs(p.sched, &x.t)); // afterwards it works
        OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
        close_place(&p);
        if (!failed) {
            CHECK(n > 50);
            return;
        }
    }
    CHECK(!"never succeeded");
}

TEST_MAIN(TEST(two_backends_equal_all_placements), TEST(large_ones_have_a_certificate),
    TEST(more_backends_equal_all_placements), TEST(savings_are_differences), TEST(without_costs_as_weights),
    TEST(prediction_by_hand), TEST(experts_by_hand), TEST(exact_entries_go_first), TEST(constraints_hold),
    TEST(results_are_the_same), TEST(random_graphs_compute_the_same), TEST(memory_limits),
    TEST(equals_are_filled_in_turn), TEST(allocations_fail_while_filling), TEST(bad_tables),
    TEST(every_allocation_fails))
