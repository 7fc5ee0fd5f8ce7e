// Graphs of one structure and different sizes: which offsets they reuse. The validator checks plans.
// Results must equal those of a CPU with separate memory for each tensor. Checked runs must succeed.
#include "plan/plan.h"
#include "base/mem.h"
#include "ggml-cpu.h"
#include "test_place.h"

// side by side for the validator
enum { D = 8, TOKENS = 24, MAX_VALUES = 40, MAX_BLOCKS = 512, CHUNK = 1 << 20 };

enum kind { PROJECT, ADD, MUL, TANH, SOFT_MAX, RMS_NORM, HALF, ATTEND, SCALE_INPLACE, STORE, KINDS };

struct recipe { // values 0 and 1 are inputs of D x tokens
    int n;
    enum kind kind[MAX_VALUES];
    int a[MAX_VALUES], b[MAX_VALUES], user[MAX_VALUES];
    bool output[MAX_VALUES];
};

struct built {
    struct ggml_context * ctx;
    struct ggml_cgraph * graph;
    struct ggml_tensor * inputs[2];
    struct ggml_tensor * values[MAX_VALUES];
};

static struct recipe random_recipe(int n_devices) {
    struct recipe r = { .n = 2 + (int) test_random_int(4, MAX_VALUES - 3) };
    for (int i = 2; i < r.n; i++) {
        r.kind[i] = (enum kind) test_random_int(0, KINDS - 1);
        r.a[i] = (int) test_random_int(i > 6 ? i - 5 : 0, i - 1);
        r.b[i] = (int) test_random_int(0, i - 1);
        r.user[i] = test_random_int(0, 2) == 0 ? (int) test_random_int(0, n_devices - 1) : -1;
        r.output[i] = test_random_int(0, 9) == 0;
    }
    return r;
}

static struct ggml_tensor * make_value(struct ggml_context * ctx, struct ggml_tensor * w, struct ggml_tensor * cache,
    const struct recipe * r, int i, struct ggml_tensor * const * v) {
    struct ggml_tensor *a = v[r->a[i]], *b = v[r->b[i]];
    switch (r->kind[i]) {
        case PROJECT: return ggml_mul_mat(ctx, w, a);
        case ADD: return ggml_add(ctx, a, b);
        case MUL: return ggml_mul(ctx, a, b);
        case TANH: return ggml_tanh(ctx, a);
        case SOFT_MAX: return ggml_soft_max(ctx, a);
        case RMS_NORM: return ggml_rms_norm(ctx, a, 1e-5f);
        case HALF: return ggml_repeat(ctx, ggml_view_2d(ctx, a, D / 2, a->ne[1], a->nb[1], D / 2 * sizeof(float)), a);
        case ATTEND: {
            struct ggml_tensor * scores = ggml_soft_max(ctx, ggml_mul_mat(ctx, a, b));
            return ggml_mul_mat(ctx, ggml_cont(ctx, ggml_transpose(ctx, a)), scores);
        }
        case SCALE_INPLACE: return ggml_scale_inplace(ctx, ggml_add(ctx, a, b), 0.5f);
        // at another address for each size, and aligned for every device, because copies of it may be overwritten
        case STORE: {
            const size_t at = (size_t) ((r->b[i] + TOKENS - a->ne[1]) / 2 % 4 * 8) * cache->nb[1];
            return ggml_scale(ctx, ggml_cpy(ctx, a, ggml_view_2d(ctx, cache, D, a->ne[1], cache->nb[1], at)), 2);
        }
        case KINDS: break;
    }
    return NULL;
}

static struct built build(const struct recipe * r, struct ggml_tensor * w, int tokens, bool no_alloc,
    ggml_backend_sched_t sched, const ggml_backend_t * devices) {
    struct built g = { .ctx = ggml_init((struct ggml_init_params){ 1 << 20, NULL, no_alloc }) };
    g.graph = ggml_new_graph(g.ctx);
    struct ggml_tensor * cache = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, D, 2 * TOKENS);
    for (int i = 0; i < r->n; i++) {
        if (i < 2) {
            g.values[i] = g.inputs[i] = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, D, tokens);
            ggml_set_input(g.values[i]);
            continue;
        }
        g.values[i] = make_value(g.ctx, w, cache, r, i, g.values);
        if (r->output[i]) {
            ggml_set_output(g.values[i]);
        }
        if (sched && r->user[i] >= 0) {
            OK(ggml_backend_sched_set_node_backend(sched, g.values[i], devices[r->user[i]]));
        }
    }
    for (int i = 2; i < r->n; i++) {
        OK(ggml_build_forward_expand(g.graph, g.values[i]));
    }
    return g;
}

static float input_value(int input, int i) { return (float) ((i * 7 + input * 3) % 11 - 5) / 8.0f; }

static void set_inputs(const struct built * g, bool by_pointer) {
    float values[D * TOKENS];
    for (int k = 0; k < 2; k++) {
        const int n = (int) ggml_nelements(g->inputs[k]);
        for (int i = 0; i < n; i++) {
            values[i] = input_value(k, i);
        }
        if (by_pointer) {
            memcpy(g->inputs[k]->data, values, (size_t) n * sizeof(float));
        } else if (g->inputs[k]->buffer) { // the graph reads it
            OK(ggml_backend_tensor_set(g->inputs[k], values, 0, (size_t) n * sizeof(float)));
        }
    }
}

static struct ggml_backend_sched_stats stats_of(ggml_backend_sched_t sched) {
    struct ggml_backend_sched_stats stats;
    memset(&stats, 0, sizeof(stats));
    OK(ggml_backend_sched_get_stats(sched, &stats));
    return stats;
}

// Checks the lines of each chunk with the validator, and the reported peak.
static void check_offsets(struct place * p) {
    static struct ggml_backend_sched_block blocks[MAX_BLOCKS];
    static struct gb_plan_item lines[MAX_BLOCKS];
    const int n = ggml_backend_sched_get_blocks(p->sched, blocks, MAX_BLOCKS);
    REQUIRE(n > 0 && n <= MAX_BLOCKS);
    for (int b = 0; b < p->n; b++) {
        size_t n_lines = 0, peak = 0, bad_a, bad_b;
        struct ggml_backend_sched_arena arena;
        OK(ggml_backend_sched_get_arena(p->sched, p->backends[b], &arena));
        for (int i = 0; i < n; i++) {
            if (blocks[i].backend != p->backends[b] || blocks[i].root != i) {
                continue;
            }
            struct gb_plan_item * line = &lines[n_lines++];
            *line = (struct gb_plan_item){ blocks[i].lower, blocks[i].upper, blocks[i].size,
                blocks[i].offset + (size_t) blocks[i].chunk * CHUNK };
            for (int j = i; j < n; j++) {
                if (blocks[j].root == i) {
                    CHECK_INT(blocks[j].offset + (size_t) blocks[j].chunk * CHUNK, line->offset);
                    line->size = blocks[j].size > line->size ? blocks[j].size : line->size;
                }
            }
            peak = blocks[i].chunk == 0 && line->offset + line->size > peak ? line->offset + line->size : peak;
        }
        const char * problem = gb_plan_validate(lines, n_lines,
            ggml_backend_buft_get_alignment(ggml_backend_get_default_buffer_type(p->backends[b])), &bad_a, &bad_b);
        CHECK_MSG(problem == NULL, "%s", problem);
        CHECK(peak <= arena.peak && arena.bound <= arena.peak);
        CHECK(!arena.proved || arena.peak == arena.bound);
    }
}

static void check_results(const struct recipe * r, const struct built * g, const struct built * reference) {
    static float got[D * TOKENS];
    for (int i = 2; i < r->n; i++) {
        const struct ggml_tensor * t = reference->values[i];
        bool read = false;
        for (int j = i + 1; j < r->n; j++) {
            read |= r->a[j] == i || r->b[j] == i;
        }
        if (read && !r->output[i]) {
            continue;
        }
        OK(ggml_backend_tensor_get(g->values[i], got, 0, ggml_nbytes(t)));
        CHECK_MSG(memcmp(got, t->data, ggml_nbytes(t)) == 0, "value %d differs", i);
    }
}

static size_t memory_of(struct place * p) {
    size_t sum = 0;
    for (int b = 0; b < p->n; b++) {
        sum += ggml_backend_sched_get_buffer_size(p->sched, p->backends[b]);
    }
    return sum;
}

static struct ggml_tensor * new_weight(struct place * p, float * values) {
    struct ggml_tensor * w = put(p, leaf(p, "w", D, D), p->n - 1, true);
    for (int i = 0; i < D * D; i++) {
        values[i] = (float) (i % 5 - 2) / 4.0f;
    }
    OK(ggml_backend_tensor_set(w, values, 0, D * D * sizeof(float)));
    return w;
}

static struct built build_reference(const struct recipe * r, const float * weight, int tokens) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 16, NULL, false });
    struct ggml_tensor * w = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, D, D);
    memcpy(w->data, weight, D * D * sizeof(float));
    struct built g = build(r, w, tokens, false, NULL, NULL);
    set_inputs(&g, true);
    OK(ggml_graph_compute_with_ctx(g.ctx, g.graph, 1));
    ggml_free(ctx);
    return g;
}

static int n_runs, n_replays;

// A graph of `tokens`. A graph of TOKENS was reserved before.
static void run_smaller(struct place * p, const struct recipe * r, struct ggml_tensor * w, const float * weight,
    int tokens) {
    const struct ggml_backend_sched_stats before = stats_of(p->sched);
    const size_t memory = memory_of(p);
    struct built g = build(r, w, tokens, true, p->sched, p->backends), reference = build_reference(r, weight, tokens);
    OK(ggml_backend_sched_alloc_graph(p->sched, g.graph));
    const struct ggml_backend_sched_stats after = stats_of(p->sched);
    // the scheduler may know a graph at the addresses of a freed one
    CHECK_INT(after.n_plans_made + after.n_plans_replayed + after.n_plans_bound + after.n_plans_found,
        before.n_plans_made + before.n_plans_replayed + before.n_plans_bound + before.n_plans_found + 1);
    n_runs++;
    n_replays += after.n_plans_made == before.n_plans_made;
    check_offsets(p);
    set_inputs(&g, false);
    OK(ggml_backend_sched_graph_compute(p->sched, g.graph));
    check_results(r, &g, &reference);
    CHECK_INT(stats_of(p->sched).n_plans_found, after.n_plans_found + 1);
    // the first graph has the reserved memory for inputs; others have their own
    if (after.n_plans_replayed == 1 && after.n_plans_made == 1) {
        CHECK_INT(memory_of(p), memory);
    }
    ggml_free(g.ctx);
    ggml_free(reference.ctx);
}

static void random_scene(const char * devices, bool check) {
    OPEN(p, devices);
    float weight[D * D];
    struct ggml_tensor * w = new_weight(&p, weight);
    const struct recipe r = random_recipe(p.n);
    OK(ggml_backend_sched_set_check(p.sched, check));
    struct built big = build(&r, w, TOKENS, true, p.sched, p.backends);
    OK(ggml_backend_sched_reserve(p.sched, big.graph));
    CHECK_INT(stats_of(p.sched).n_plans_made, 1);
    for (int i = 0; i < 3; i++) {
        run_smaller(&p, &r, w, weight, i == 1 ? 1 : (int) test_random_int(1, TOKENS));
    }
    ggml_free(big.ctx); // its tensors are freed, its plan remains
    run_smaller(&p, &r, w, weight, (int) test_random_int(1, TOKENS));
    close_place(&p);
}

static void random_graphs_take_smaller_sizes(void) {
    static const char * const devices[] = { "CPU", "SIM:name=A CPU", "SIM:name=A SIM:name=B CPU",
        "SIM:name=A,max=3K SIM:name=B,align=64 CPU" };
    ggml_graph_set_fusion(false); // results have the bits of graphs without planned memory
    for (int k = 0; k < 120 && test_failures == 0; k++) {
        test_seed = (uint64_t) k * 1000 + 1;
        random_scene(devices[k % 4], k % 3 == 0);
        CHECK_MSG(test_failures == 0, "seed %d, devices %s", k, devices[k % 4]);
    }
    ggml_graph_set_fusion(true);
    // the others join copies that the large graph makes separately, or vice versa
    printf("%d of %d graphs reused the offsets of the large one\n", n_replays, n_runs);
    CHECK(n_replays * 100 >= n_runs * 97);
}

// ---------------------------------------------------------------------------------------------------------------------

static struct ggml_tensor * chain(struct ggml_context * ctx, struct ggml_cgraph * graph, int64_t n, enum ggml_op op,
    bool flag) {
    struct ggml_tensor *x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, n), *y = ggml_sqr(ctx, x);
    y = op == GGML_OP_ADD ? ggml_add(ctx, ggml_sqrt(ctx, y), x) : ggml_mul(ctx, ggml_sqrt(ctx, y), x);
    if (flag) {
        ggml_set_output(y->src[0]);
    }
    OK(ggml_build_forward_expand(graph, ggml_sqr(ctx, y)));
    return x;
}

static void alloc_chain(struct place * p, int64_t n, enum ggml_op op, bool flag) {
    struct ggml_cgraph * graph = ggml_new_graph_custom(p->ctx, 16, false);
    chain(p->ctx, graph, n, op, flag);
    OK(ggml_backend_sched_alloc_graph(p->sched, graph));
}

static void plans_anew_what_is_larger_or_different(void) {
    OPEN(p, "SIM:name=A CPU");
    alloc_chain(&p, 100, GGML_OP_ADD, false);
    CHECK_INT(stats_of(p.sched).n_plans_made, 1);
    alloc_chain(&p, 100, GGML_OP_ADD, false); // new tensors, same sizes
    CHECK_INT(stats_of(p.sched).n_plans_replayed, 1);
    alloc_chain(&p, 40, GGML_OP_ADD, false);
    CHECK_INT(stats_of(p.sched).n_plans_replayed, 2);
    alloc_chain(&p, 400, GGML_OP_ADD, false); // too large
    CHECK_INT(stats_of(p.sched).n_plans_made, 2);
    alloc_chain(&p, 40, GGML_OP_MUL, false); // another operator
    CHECK_INT(stats_of(p.sched).n_plans_made, 3);
    alloc_chain(&p, 40, GGML_OP_ADD, true); // another flag, another lifetime
    CHECK_INT(stats_of(p.sched).n_plans_made, 4);
    alloc_chain(&p, 400, GGML_OP_ADD, true);
    CHECK_INT(stats_of(p.sched).n_plans_made, 5);
    CHECK_INT(stats_of(p.sched).n_plans_replayed, 2);
    close_place(&p);
}

static void prompt_and_step_stay_side_by_side(void) {
    OPEN(p, "SIM:name=A CPU");
    float weight[D * D];
    struct ggml_tensor * w = new_weight(&p, weight);
    test_seed = 5;
    const struct recipe r = random_recipe(p.n);
    struct built big = build(&r, w, TOKENS, true, p.sched, p.backends),
                 small = build(&r, w, 1, true, p.sched, p.backends);
    struct built big_reference = build_reference(&r, weight, TOKENS), small_reference = build_reference(&r, weight, 1);
    OK(ggml_backend_sched_reserve(p.sched, big.graph));
    for (int i = 0; i < 4; i++) {
        struct built * g = i % 2 ? &small : &big;
        OK(ggml_backend_sched_alloc_graph(p.sched, g->graph));
        set_inputs(g, false);
        OK(ggml_backend_sched_graph_compute(p.sched, g->graph));
        check_results(&r, g, i % 2 ? &small_reference : &big_reference);
    }
    const struct ggml_backend_sched_stats stats = stats_of(p.sched);
    CHECK_INT(stats.n_plans_made, 1);
    CHECK_INT(stats.n_plans_replayed, 1);
    CHECK_INT(stats.n_plans_bound, 1); // the reserved graph, once
    CHECK_INT(stats.n_plans_found, 6);
    ggml_free(big.ctx);
    ggml_free(small.ctx);
    ggml_free(big_reference.ctx);
    ggml_free(small_reference.ctx);
    close_place(&p);
}

// A plan stays while others use its offsets.
static void a_reserved_plan_lasts(void) {
    OPEN(p, "CPU");
    alloc_chain(&p, 64, GGML_OP_ADD, false);
    for (int i = 0; i < 40; i++) {
        alloc_chain(&p, 1 + i, GGML_OP_ADD, false);
    }
    CHECK_INT(stats_of(p.sched).n_plans_made, 1);
    CHECK_INT(stats_of(p.sched).n_plans_replayed, 40);
    close_place(&p);
}

static void reserves_memory_of_inputs(void) {
    OPEN(p, "SIM:name=A CPU");
    struct ggml_cgraph * graph = ggml_new_graph_custom(p.ctx, 16, false);
    chain(p.ctx, graph, 300, GGML_OP_ADD, false);
    OK(ggml_backend_sched_reserve(p.sched, graph));
    size_t said = 0, peak;
    for (int b = 0; b < p.n; b++) {
        OK(ggml_backend_sched_get_memory(p.sched, p.backends[b], &peak, NULL));
        said += peak;
    }
    const size_t memory = memory_of(&p);
    CHECK_INT(memory, said);
    alloc_chain(&p, 200, GGML_OP_ADD, false);
    CHECK_INT(memory_of(&p), memory);
    OK(ggml_backend_sched_reset(p.sched));
    alloc_chain(&p, 300, GGML_OP_ADD, false);
    CHECK_INT(memory_of(&p), memory);
    close_place(&p);
}

// The sum is in `b` if both have one shape. If b is repeated, b and the sum are two tensors, and
// the memory of one is too small.
static void sum_with(struct place * p, int64_t rows) {
    struct ggml_cgraph * graph = ggml_new_graph_custom(p->ctx, 16, false);
    struct ggml_tensor * a = ggml_sqr(p->ctx, ggml_new_tensor_2d(p->ctx, GGML_TYPE_F32, 8, 4));
    struct ggml_tensor * b = ggml_sqr(p->ctx, ggml_new_tensor_2d(p->ctx, GGML_TYPE_F32, 8, rows));
    OK(ggml_build_forward_expand(graph, a));
    OK(ggml_build_forward_expand(graph, ggml_mul(p->ctx, ggml_add(p->ctx, a, b), a)));
    OK(ggml_backend_sched_alloc_graph(p->sched, graph));
    check_offsets(p);
}

static void not_where_less_is_computed_in_place(void) {
    OPEN(p, "CPU");
    sum_with(&p, 4);
    static struct ggml_backend_sched_block blocks[8];
    const int n = ggml_backend_sched_get_blocks(p.sched, blocks, 8);
    int n_joined = 0;
    for (int i = 0; i < n; i++) {
        n_joined += blocks[i].root != i;
    }
    CHECK(n_joined >= 1);
    sum_with(&p, 4);
    CHECK_INT(stats_of(p.sched).n_plans_replayed, 1);
    sum_with(&p, 1);
    CHECK_INT(stats_of(p.sched).n_plans_replayed, 1);
    CHECK_INT(stats_of(p.sched).n_plans_made, 2);
    close_place(&p);
}

// A sum of inputs of several shapes on device 0, with `n` tokens. If a buffer is given, the caller
// allocates the inputs there.
struct inputs {
    struct ggml_context * ctx;
    struct ggml_tensor * in[4];
    struct ggml_tensor * sum;
    struct ggml_cgraph * graph;
    ggml_backend_buffer_t buffer; // in the user's memory
};

static struct inputs sum_of_inputs(struct place * p, int64_t n, bool placed) {
    struct inputs g = { .ctx = ggml_init((struct ggml_init_params){ 1 << 16, NULL, true }) };
    const int64_t width[] = { 40, 40, 1, 40 };
    for (int i = 0; i < 4; i++) {
        g.in[i] = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, width[i], n);
        ggml_set_input(g.in[i]);
    }
    g.buffer = placed ? ggml_backend_alloc_ctx_tensors(g.ctx, p->backends[p->n - 1]) : NULL;
    g.graph = ggml_new_graph_custom(g.ctx, 16, false);
    g.sum = g.in[0];
    for (int i = 1; i < 4; i++) {
        g.sum = ggml_add(g.ctx, g.sum, g.in[i]);
        OK(ggml_backend_sched_set_node_backend(p->sched, g.sum, p->backends[0]));
    }
    OK(ggml_build_forward_expand(g.graph, g.sum));
    return g;
}

static void run_sum(struct place * p, struct inputs * g) {
    for (int i = 0; i < 4; i++) {
        static float values[40 * 64];
        for (int64_t k = 0; k < ggml_nelements(g->in[i]); k++) {
            values[k] = (float) (k % g->in[i]->ne[0] + i * 100);
        }
        OK(ggml_backend_tensor_set(g->in[i], values, 0, ggml_nbytes(g->in[i])));
    }
    OK(ggml_backend_sched_graph_compute(p->sched, g->graph));
    CHECK_AT(g->sum, (int) (ggml_nelements(g->sum) - 1), 39 * 3 + 600);
    CHECK_AT(g->sum, 0, 600);
    ggml_free(g->ctx);
    ggml_backend_buffer_free(g->buffer);
}

// Adjacent inputs that are copied together in one size are copied together in every size.
static void inputs_travel_as_in_the_large_one(void) {
    static const char * const devices[] = { "SIM:name=A CPU", "SIM:name=A,align=256 CPU",
        "SIM:name=A,align=512 SIM:name=B,align=16 CPU" };
    for (int k = 0; k < 3 * 4; k++) {
        const bool placed = k / 3 % 2, pipelined = k / 6;
        OPEN(p, devices[k % 3]);
        OK(ggml_backend_sched_set_n_copies(p.sched, pipelined ? 2 : 1));
        // in the user's memory: in this size no two are adjacent, in other sizes some could be
        struct inputs large = sum_of_inputs(&p, 41, placed);
        OK(ggml_backend_sched_reserve(p.sched, large.graph));
        for (int64_t n = 1; n <= 41; n++) {
            struct inputs g = sum_of_inputs(&p, n, placed);
            OK(ggml_backend_sched_alloc_graph(p.sched, g.graph));
            run_sum(&p, &g);
        }
        CHECK_MSG(stats_of(p.sched).n_plans_made == 1, "%d plans made, %s, %d", (int) stats_of(p.sched).n_plans_made,
            devices[k % 3], k);
        ggml_free(large.ctx);
        ggml_backend_buffer_free(large.buffer);
        close_place(&p);
    }
}

static void every_allocation_fails(void) {
    const int64_t live = gb_test_live_allocs();
    OPEN(p, "SIM:name=A SIM:name=B CPU");
    float weight[D * D];
    struct ggml_tensor * w = new_weight(&p, weight);
    test_seed = 11;
    const struct recipe r = random_recipe(p.n);
    struct built big = build(&r, w, TOKENS, true, p.sched, p.backends),
                 small = build(&r, w, 3, true, p.sched, p.backends), reference = build_reference(&r, weight, 3);
    OK(ggml_backend_sched_reserve(p.sched, big.graph));
    int64_t n = 0;
    for (enum ggml_status status = GGML_STATUS_ALLOC_FAILED; status != GGML_STATUS_SUCCESS && n < 10000;) {
        gb_test_fail_alloc(++n, false);
        status = ggml_backend_sched_alloc_graph(p.sched, small.graph);
        gb_test_fail_alloc(0, false);
        CHECK(status == GGML_STATUS_SUCCESS || status == GGML_STATUS_ALLOC_FAILED);
        CHECK(status == GGML_STATUS_SUCCESS || small.inputs[0]->data == NULL);
    }
    CHECK(n > 20 && n < 10000);
    set_inputs(&small, false);
    OK(ggml_backend_sched_graph_compute(p.sched, small.graph));
    check_results(&r, &small, &reference);
    ggml_free(big.ctx);
    ggml_free(small.ctx);
    ggml_free(reference.ctx);
    close_place(&p);
    CHECK_INT(gb_test_live_allocs(), live);
}

TEST_MAIN(TEST(every_allocation_fails), TEST(not_where_less_is_computed_in_place),
    TEST(random_graphs_take_smaller_sizes), TEST(plans_anew_what_is_larger_or_different),
    TEST(prompt_and_step_stay_side_by_side), TEST(a_reserved_plan_lasts), TEST(inputs_travel_as_in_the_large_one),
    TEST(reserves_memory_of_inputs))
