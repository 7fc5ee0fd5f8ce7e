// test_chain.cpp - products with a softmax between them become attention only if no other code can
// read the scores. Results agree with those of the single operators.
#include <cmath>
#include <functional>
#include <string>

#include "device_graph.h"
#include "ggml-alloc.h"
#include "ggml-cpu.h"

enum edit { NO_MASK, CAUSAL, ADDED, ADDED_BY_HEAD, ADDED_FIRST, IN_SOFT_MAX, CAUSAL_AND_ADDED, N_EDITS, WITH_SLOPES };

struct shape {
    ggml_type type; // of keys and values
    int64_t d, n, m, heads, k_heads, batch, k_batch;
};

struct chain {
    ggml_context * ctx;
    ggml_tensor *q, *k, *v, *mask, *scores, *scaled, *probabilities, *result;
    std::vector<ggml_tensor *> inputs;
    ggml_cgraph * graph;
    ggml_allocr_t memory;
    int64_t hidden;
};

struct options {
    enum edit edit = NO_MASK;
    bool inplace = false;
    bool computed_q = false; // its memory is free after the first product
    bool half_mask = false;
    bool exact = false;
    float times = 1;    // factor of the usual scale
    int64_t hidden = 0; // in every second row, number of first keys whose mask is minus infinity
    // Readers of intermediate results.
    bool output = false, second_reader = false, view_of_it = false;
};

static ggml_tensor * input(chain & c, ggml_type type, int64_t a, int64_t b = 1, int64_t h = 1, int64_t batch = 1) {
    ggml_tensor * t = ggml_new_tensor_4d(c.ctx, type, a, b, h, batch);
    ggml_set_input(t);
    c.inputs.push_back(t);
    return t;
}

static ggml_tensor * edited(chain & c, const options & o, const shape & s, ggml_tensor * t) {
    const float scale = o.times / sqrtf((float) s.d);
    const ggml_type type = o.half_mask ? GGML_TYPE_F16 : GGML_TYPE_F32;
    auto scaled = [&](ggml_tensor * x) {
        return o.inplace ? ggml_scale_inplace(c.ctx, x, scale) : ggml_scale(c.ctx, x, scale);
    };
    auto causal = [&](ggml_tensor * x) {
        const int past = (int) (s.m - s.n);
        return o.inplace ? ggml_diag_mask_inf_inplace(c.ctx, x, past) : ggml_diag_mask_inf(c.ctx, x, past);
    };
    auto added = [&](ggml_tensor * x) {
        return o.inplace ? ggml_add_inplace(c.ctx, x, c.mask) : ggml_add(c.ctx, x, c.mask);
    };
    c.mask = o.edit == NO_MASK || o.edit == CAUSAL
                 ? NULL
                 : input(c, type, s.m, s.n, o.edit == ADDED_BY_HEAD || o.edit == ADDED_FIRST ? s.heads : 1,
                       o.edit == ADDED_FIRST ? s.batch : 1);
    switch (o.edit) {
        case NO_MASK: return ggml_soft_max_ext(c.ctx, t, NULL, scale);
        case CAUSAL: return ggml_soft_max(c.ctx, causal(scaled(t)));
        case ADDED:
        case ADDED_BY_HEAD: return ggml_soft_max(c.ctx, added(scaled(t)));
        case ADDED_FIRST: t = scaled(t); return ggml_soft_max(c.ctx, ggml_add(c.ctx, c.mask, t));
        case IN_SOFT_MAX: return ggml_soft_max_ext(c.ctx, t, c.mask, scale);
        case WITH_SLOPES: return ggml_soft_max_bias(c.ctx, t, c.mask, scale, 8);
        default: return ggml_soft_max(c.ctx, added(causal(scaled(t))));
    }
}

static chain build(ggml_backend_t cuda, const shape & s, const options & o) {
    chain c = {};
    c.ctx = ggml_init({ 1 << 18, NULL, true });
    c.hidden = o.hidden;
    c.k = input(c, s.type, s.d, s.m + 8, s.k_heads, s.k_batch);
    c.v = input(c, s.type, s.m + 8, s.d, s.k_heads, s.k_batch);
    ggml_tensor * k = ggml_view_4d(c.ctx, c.k, s.d, s.m, s.k_heads, s.k_batch, c.k->nb[1], c.k->nb[2], c.k->nb[3], 0);
    ggml_tensor * v = ggml_view_4d(c.ctx, c.v, s.m, s.d, s.k_heads, s.k_batch, c.v->nb[1], c.v->nb[2], c.v->nb[3], 0);
    c.q = input(c, GGML_TYPE_F32, s.d, s.heads, s.n, s.batch);
    ggml_tensor * q = o.computed_q ? ggml_scale(c.ctx, c.q, 1.5f) : c.q;
    c.scores = ggml_mul_mat(c.ctx, k, ggml_permute(c.ctx, q, 0, 2, 1, 3));
    c.probabilities = edited(c, o, s, c.scores);
    c.result = ggml_mul_mat(c.ctx, v, c.probabilities);
    c.scores->op_params[0] = c.result->op_params[0] = o.exact ? GGML_PREC_F32 : GGML_PREC_DEFAULT;
    ggml_set_output(c.result);
    if (o.output) {
        ggml_set_output(c.probabilities);
    }
    c.graph = ggml_new_graph(c.ctx);
    ggml_build_forward_expand(c.graph, c.result);
    if (o.second_reader || o.view_of_it) {
        ggml_tensor * seen = o.view_of_it ? ggml_view_1d(c.ctx, c.scores, 8, 0) : c.probabilities;
        ggml_tensor * sum = ggml_sum(c.ctx, seen);
        ggml_set_output(sum);
        ggml_build_forward_expand(c.graph, sum);
    }
    c.memory = ggml_allocr_new_from_backend(cuda, (size_t) 16 << 20);
    CHECK(ggml_allocr_alloc_graph(c.memory, c.graph) > 0);
    return c;
}

static void release(chain & c) {
    ggml_allocr_free(c.memory);
    ggml_free(c.ctx);
}

// Mask: some entries are minus infinity, but not all of a row.
static void fill(const chain & c) {
    test_seed = 11;
    for (ggml_tensor * t : c.inputs) {
        const size_t n = (size_t) ggml_nelements(t);
        std::vector<float> x(n);
        for (size_t i = 0; i < n; i++) {
            const int64_t key = (int64_t) i % t->ne[0], row = (int64_t) i / t->ne[0];
            const bool out = i % 5 == 3 || (row % 2 != 0 && key < c.hidden);
            x[i] = t == c.mask && out ? -INFINITY : test_random_float(-1, 1);
        }
        std::vector<uint16_t> halves(n);
        if (t->type == GGML_TYPE_F16) {
            ggml_fp32_to_fp16_row(x.data(), (ggml_fp16_t *) halves.data(), (int) n);
        } else if (t->type == GGML_TYPE_BF16) {
            ggml_fp32_to_bf16_row(x.data(), (ggml_bf16_t *) halves.data(), (int64_t) n);
        }
        CHECK_INT(ggml_backend_tensor_set(t, t->type == GGML_TYPE_F32 ? (const void *) x.data() : halves.data(), 0,
                      ggml_nbytes(t)),
            GGML_STATUS_SUCCESS);
    }
}

static uint64_t attentions(void) {
    return cuda_launches("gb_attention_halves") + cuda_launches("gb_attention_tall") +
           cuda_launches("gb_attention_floats");
}

// n_expected: launches; -1: any number.
static std::vector<float> compute(ggml_backend_t cuda, const chain & c, bool together, int n_expected) {
    std::vector<float> y((size_t) ggml_nelements(c.result));
    const uint64_t before = attentions();
    ggml_graph_set_fusion(together);
    fill(c);
    CHECK(ggml_backend_graph_compute(cuda, c.graph));
    CHECK_INT(ggml_backend_synchronize(cuda), GGML_STATUS_SUCCESS);
    ggml_graph_set_fusion(true);
#ifdef GB_CUDA_EMULATED
    CHECK(n_expected < 0 || attentions() - before == (uint64_t) n_expected);
#else
    (void) before, (void) n_expected;
#endif
    ggml_backend_tensor_get(c.result, y.data(), 0, y.size() * sizeof(float));
    return y;
}

static void compare(const std::string & what, ggml_type type, const std::vector<float> & a,
    const std::vector<float> & b) {
    // Values are below 1, and weights add up to 1.
    const double tolerance = type == GGML_TYPE_F32 ? 2e-6 : type == GGML_TYPE_F16 ? 1.5e-3 : 1.2e-2;
    double worst = 0;
    for (size_t i = 0; i < a.size(); i++) {
        worst = std::isnan(a[i]) || std::isnan(b[i]) ? INFINITY : fmax(worst, fabs((double) a[i] - (double) b[i]));
    }
    CHECK_MSG(worst < tolerance, "%s: differs by %g", what.c_str(), worst);
}

static void on_and_off(ggml_backend_t cuda, const shape & s, const options & o, int n_expected = 1) {
    char what[160];
    snprintf(what, sizeof(what), "%s d %d n %d m %d heads %d/%d batch %d/%d, edit %d%s%s%s%s", ggml_type_name(s.type),
        (int) s.d, (int) s.n, (int) s.m, (int) s.heads, (int) s.k_heads, (int) s.batch, (int) s.k_batch, o.edit,
        o.inplace ? " in place" : "", o.computed_q ? " computed" : "", o.half_mask ? " half" : "",
        o.exact ? " exact" : "");
    chain c = build(cuda, s, o);
    compare(what, o.exact ? GGML_TYPE_F32 : s.type, compute(cuda, c, true, n_expected), compute(cuda, c, false, 0));
    release(c);
}

static ggml_backend_t open(void) {
    ggml_backend_t cuda = cuda_open(0);
    ggml_backend_cuda_set_graphs(cuda, false);
    return cuda;
}

static void halves(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = open();
    for (int e = 0; e < N_EDITS; e++) {
        options o;
        o.edit = (enum edit) e;
        o.half_mask = e == ADDED_BY_HEAD;
        o.inplace = e % 2 == 1;
        o.computed_q = e % 3 == 0;
        on_and_off(cuda, { GGML_TYPE_F16, 64, 20, 72, 4, 4, 1, 1 }, o);
        on_and_off(cuda, { GGML_TYPE_F16, 40, 70, 80, 6, 2, 2, 1 }, o); // heads and batches that share keys
        on_and_off(cuda, { GGML_TYPE_BF16, 128, 9, 40, 2, 1, 2, 2 }, o);
    }
    on_and_off(cuda, { GGML_TYPE_F16, 32, 12, 1032, 2, 1, 1, 1 }, options()); // keys in parts
    for (float times : { -6.0f, 0.0f, 6.0f }) {                               // the smallest score may weigh most
        options o;
        o.times = times;
        on_and_off(cuda, { GGML_TYPE_F16, 64, 20, 1032, 2, 2, 1, 1 }, o);
        o.edit = ADDED;
        on_and_off(cuda, { GGML_TYPE_BF16, 128, 9, 72, 2, 1, 1, 1 }, o);
    }
    ggml_backend_free(cuda);
}

// The scores exceed the device's cache, which is 256 KiB in the emulation.
static void floats(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = open();
#ifdef GB_CUDA_EMULATED
    const int once = 1;
#else
    const int once = 0;
#endif
    for (enum edit e : { NO_MASK, CAUSAL, ADDED_BY_HEAD, IN_SOFT_MAX }) {
        options o;
        o.edit = e;
        o.computed_q = e == CAUSAL;
        on_and_off(cuda, { GGML_TYPE_F32, 20, 130, 136, 4, 2, 1, 1 }, o, once);
    }
    options exact;
    exact.edit = ADDED;
    exact.exact = true;
    on_and_off(cuda, { GGML_TYPE_F16, 24, 130, 136, 4, 2, 1, 1 }, exact, once);
    on_and_off(cuda, { GGML_TYPE_F32, 20, 26, 136, 4, 2, 1, 1 }, options(), 0); // fits the cache
    ggml_backend_free(cuda);
}

// The reported size covers both algorithms. It exceeds the larger one by at most the size of the result.
static void reported_scratch_covers_both_algorithms(void) {
    CUDA_OR_SKIP();
#ifdef GB_CUDA_EMULATED
    for (const shape & s : { shape{ GGML_TYPE_F16, 64, 20, 72, 4, 2, 1, 1 },
             shape{ GGML_TYPE_F16, 64, 200, 16, 4, 4, 1, 1 }, shape{ GGML_TYPE_F16, 32, 12, 1032, 2, 1, 1, 1 } }) {
        for (int computed = 0; computed < 2; computed++) {
            options o;
            o.edit = ADDED;
            o.computed_q = computed != 0;
            size_t taken[2] = { 0, 0 }, reported = 0;
            for (int together = 0; together < 2; together++) {
                ggml_backend_t cuda = cuda_open(0);
                chain c = build(cuda, s, o);
                reported = cuda_work_size(cuda, c.graph);
                const size_t before = cuda_free_memory(0);
                compute(cuda, c, together != 0, together);
                taken[together] = before - cuda_free_memory(0);
                CHECK_MSG(taken[together] <= (reported + 511) / 512 * 512, "took %zu bytes, reported %zu",
                    taken[together], reported);
                release(c);
                ggml_backend_free(cuda);
            }
            const size_t most = taken[0] > taken[1] ? taken[0] : taken[1],
                         result = (size_t) (s.d * s.n * s.heads * s.batch) * sizeof(float);
            CHECK_MSG(reported <= most + result, "reported %zu, took %zu and %zu", reported, taken[0], taken[1]);
        }
    }
#else
    SKIP("a device gives memory in large pieces");
#endif
}

// Another node reads an intermediate result, or the chain differs: operators run one by one.
static void other_chains_run_node_by_node(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = open();
    const shape s = { GGML_TYPE_F16, 64, 20, 72, 2, 2, 1, 1 };
    options o;
    CHECK(!ggml_backend_may_leave_out(NULL));
    o.output = true;
    on_and_off(cuda, s, o, 0);
    o = options();
    o.second_reader = true;
    on_and_off(cuda, s, o, 0);
    o = options();
    o.view_of_it = true;
    on_and_off(cuda, s, o, 0);
    on_and_off(cuda, { GGML_TYPE_F16, 64, 8, 72, 2, 2, 1, 1 }, options(), 0); // few rows are exact
    // Heads that the tensor cores do not take.
    on_and_off(cuda, { GGML_TYPE_F16, 36, 20, 72, 2, 2, 1, 1 }, options(), 0);
    o = options();
    o.edit = WITH_SLOPES;
    on_and_off(cuda, s, o, 0);
    // Memory without a plan: all results may be read.
    chain c = build(cuda, s, options());
    chain d = {};
    ggml_backend_buffer_t buffer = NULL;
    d.ctx = ggml_init({ 1 << 18, NULL, true });
    d.k = input(d, s.type, s.d, s.m, s.k_heads);
    d.v = input(d, s.type, s.m, s.d, s.k_heads);
    d.q = input(d, GGML_TYPE_F32, s.d, s.n, s.heads);
    d.scores = ggml_mul_mat(d.ctx, d.k, d.q);
    d.result = ggml_mul_mat(d.ctx, d.v, ggml_soft_max(d.ctx, d.scores));
    d.graph = ggml_new_graph(d.ctx);
    ggml_build_forward_expand(d.graph, d.result);
    buffer = ggml_backend_alloc_ctx_tensors(d.ctx, cuda);
    compute(cuda, d, true, 0);
    ggml_backend_buffer_free(buffer);
    ggml_free(d.ctx);
    release(c);
    ggml_backend_free(cuda);
}

// The switch of fusion makes another recorded graph.
static void fused_and_single_graphs_are_replayed(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0);
    chain c = build(cuda, { GGML_TYPE_F16, 64, 20, 72, 2, 2, 1, 1 }, options());
    const auto first = compute(cuda, c, true, 1);
    for (int i = 0; i < 4; i++) {
        compare("replayed", GGML_TYPE_F16, compute(cuda, c, true, -1), first);
        compare("one by one", GGML_TYPE_F16, compute(cuda, c, false, i == 0 ? 0 : -1), first);
    }
    struct ggml_backend_cuda_graph_stats stats = {};
    CHECK_INT(ggml_backend_cuda_get_graph_stats(cuda, &stats), GGML_STATUS_SUCCESS);
    if (cuda_replays()) {
        CHECK_INT(stats.n_captured, 2); // one with fusion, one without
        CHECK_INT(stats.n_replayed, 6); // the second is recorded at once, because its shape was seen
    }
    release(c);
    ggml_backend_free(cuda);
}

// Reads the probabilities, and keeps the sum of their first row.
static bool look(ggml_tensor * t, bool ask, void * seen) {
    if (!ask && t->op == GGML_OP_SOFT_MAX) {
        std::vector<float> p((size_t) ggml_nelements(t));
        ggml_backend_tensor_get(t, p.data(), 0, p.size() * sizeof(float));
        double sum = 0;
        for (int64_t i = 0; i < t->ne[0]; i++) {
            sum += p[(size_t) i];
        }
        *(double *) seen = sum;
    }
    return true;
}

// A scheduler fuses the chain, unless a callback reads every node.
static void schedulers_fuse_chains_that_no_callback_reads(void) {
    CUDA_OR_SKIP();
    ggml_backend_t backends[2] = { open(), ggml_backend_cpu_init() };
    ggml_backend_sched_t sched = ggml_backend_sched_new(backends, NULL, 2, 64);
    chain c = build(backends[0], { GGML_TYPE_F16, 64, 20, 72, 2, 2, 1, 1 }, options());
    for (ggml_tensor * t = ggml_get_first_tensor(c.ctx); t != NULL; t = ggml_get_next_tensor(c.ctx, t)) {
        t->buffer = NULL; // the scheduler places them again
        t->data = NULL;
    }
    for (int i = 0; i < c.graph->n_nodes; i++) {
        ggml_backend_sched_set_node_backend(sched, c.graph->nodes[i], backends[0]);
    }
    std::vector<float> y[2];
    double sum = 0;
    for (int watched = 0; watched < 2; watched++) {
        const uint64_t before = attentions();
        ggml_backend_sched_set_eval_callback(sched, watched ? look : NULL, &sum);
        CHECK_INT(ggml_backend_sched_alloc_graph(sched, c.graph), GGML_STATUS_SUCCESS);
        fill(c);
        CHECK_INT(ggml_backend_sched_graph_compute(sched, c.graph), GGML_STATUS_SUCCESS);
        y[watched].resize((size_t) ggml_nelements(c.result));
        ggml_backend_tensor_get(c.result, y[watched].data(), 0, y[watched].size() * sizeof(float));
#ifdef GB_CUDA_EMULATED
        CHECK_INT(attentions() - before, watched ? 0 : 1);
#else
        (void) before;
#endif
    }
    CHECK_MSG(fabs(sum - 1) < 1e-5, "probabilities add up to %g", sum);
    compare("watched", GGML_TYPE_F16, y[0], y[1]);
    ggml_backend_sched_free(sched);
    release(c);
    ggml_backend_free(backends[0]);
    ggml_backend_free(backends[1]);
}

// Keys are rotated and copied into their cache, in its type: the same bits, with one launch less.
struct cache {
    ggml_context * ctx;
    ggml_tensor *x, *positions, *rotated, *keys, *copy;
    ggml_cgraph * graph;
    ggml_allocr_t memory;
};

enum into { FLAT, SAME_SHAPE, RESHAPED, CONTINUOUS, N_INTO };

static cache build_cache(ggml_backend_t cuda, ggml_type type, enum into how, bool seen) {
    enum { D = 32, HEADS = 3, N = 5 };
    cache c = {};
    c.ctx = ggml_init({ 1 << 18, NULL, true });
    c.x = ggml_new_tensor_3d(c.ctx, GGML_TYPE_F32, D, HEADS, N);
    c.positions = ggml_new_tensor_1d(c.ctx, GGML_TYPE_I32, N);
    c.keys = ggml_new_tensor_3d(c.ctx, type, D, HEADS + 1, 2 * N);
    for (ggml_tensor * t : { c.x, c.positions, c.keys }) {
        ggml_set_input(t);
    }
    c.rotated = ggml_rope(c.ctx, c.x, c.positions, D, how == SAME_SHAPE ? 2 : 0, 0);
    switch (how) {
        case FLAT:
            c.copy = ggml_cpy(c.ctx, c.rotated, ggml_view_1d(c.ctx, c.keys, D * HEADS * N, 7 * ggml_type_size(type)));
            break;
        case SAME_SHAPE:
            c.copy = ggml_cpy(c.ctx, c.rotated,
                ggml_view_3d(c.ctx, c.keys, D, HEADS, N, c.keys->nb[1], c.keys->nb[2], c.keys->nb[1]));
            break;
        case RESHAPED:
            c.copy = ggml_cpy(c.ctx, ggml_reshape_2d(c.ctx, c.rotated, D * HEADS, N),
                ggml_view_2d(c.ctx, c.keys, D * HEADS, N, D * HEADS * ggml_type_size(type), 0));
            break;
        default: c.copy = ggml_cont(c.ctx, c.rotated); break;
    }
    ggml_set_output(c.copy);
    ggml_set_output(c.x); // its memory is not the copy's
    if (seen) {
        ggml_set_output(c.rotated);
    }
    c.graph = ggml_new_graph(c.ctx);
    ggml_build_forward_expand(c.graph, c.copy);
    c.memory = ggml_allocr_new_from_backend(cuda, 1 << 20);
    CHECK(ggml_allocr_alloc_graph(c.memory, c.graph) > 0);
    return c;
}

static std::vector<char> rotate(ggml_backend_t cuda, const cache & c, bool together, int n_copies) {
    const ggml_tensor * y = c.copy->view_src != NULL ? c.keys : c.copy;
    std::vector<char> bytes(ggml_nbytes(y), 7);
    std::vector<float> x((size_t) ggml_nelements(c.x));
    std::vector<int32_t> positions((size_t) ggml_nelements(c.positions));
    test_seed = 5;
    for (float & v : x) {
        v = test_random_float(-3, 3);
    }
    for (size_t i = 0; i < positions.size(); i++) {
        positions[i] = (int32_t) (3 * i + 1);
    }
    ggml_backend_tensor_set(c.x, x.data(), 0, ggml_nbytes(c.x));
    ggml_backend_tensor_set(c.positions, positions.data(), 0, ggml_nbytes(c.positions));
    if (y == c.keys) {
        ggml_backend_tensor_set(c.keys, bytes.data(), 0, bytes.size());
    }
    ggml_graph_set_fusion(together);
#ifdef GB_CUDA_EMULATED
    const struct gb_emu_counts before = gb_emu_count();
    CHECK(ggml_backend_graph_compute(cuda, c.graph));
    ggml_backend_synchronize(cuda);
    // a table, a rotation
    CHECK_INT(gb_emu_count().launches + gb_emu_count().copies - before.launches - before.copies, 2 + n_copies);
#else
    (void) n_copies;
    CHECK(ggml_backend_graph_compute(cuda, c.graph));
#endif
    ggml_graph_set_fusion(true);
    ggml_backend_tensor_get(y, bytes.data(), 0, bytes.size());
    return bytes;
}

static void rotations_write_into_a_cache(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = open();
    for (ggml_type type : { GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F32 }) {
        for (int how = 0; how < N_INTO; how++) {
            for (int seen = 0; seen < 2; seen++) {
                if (how == CONTINUOUS && type != GGML_TYPE_F32) {
                    continue; // it keeps the type
                }
                cache c = build_cache(cuda, type, (enum into) how, seen != 0);
                CHECK_MSG(rotate(cuda, c, true, seen) == rotate(cuda, c, false, 1), "%s, case %d, seen %d",
                    ggml_type_name(type), how, seen);
                ggml_allocr_free(c.memory);
                ggml_free(c.ctx);
            }
        }
    }
    ggml_backend_free(cuda);
}

TEST_MAIN(TEST(rotations_write_into_a_cache), TEST(halves), TEST(floats), TEST(reported_scratch_covers_both_algorithms),
    TEST(other_chains_run_node_by_node), TEST(fused_and_single_graphs_are_replayed),
    TEST(schedulers_fuse_chains_that_no_callback_reads))
