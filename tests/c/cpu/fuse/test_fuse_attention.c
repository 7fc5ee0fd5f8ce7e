// Fused attention chains of all shapes, masks, copies and memory. Every readable result equals that
// of single nodes within rounding, with the same bits for every number of threads. Results that
// other code may read are stored.
#include "test_fuse.h"

#include "tensor/tensor.h"

enum { WATCHED = 4, ARENA = 24 << 20, MAX_NODES = 64 };

struct chain {
    struct ggml_context * in; // inputs, with memory
    struct ggml_context * ctx;
    struct ggml_cgraph * graph;
    struct ggml_tensor *scores, *weights, *mixed; // nodes of the chain
    struct ggml_tensor * watched[WATCHED];        // readable results
    int n_watched;
    bool exposed; // a result inside the chain is readable
    ggml_tallocr_t talloc;
    char * arena;
};

static struct ggml_tensor * input(struct chain * c, enum ggml_type type, int64_t n0, int64_t n1, int64_t n2,
    int64_t n3) {
    struct ggml_tensor * t = ggml_new_tensor_4d(c->in, type, n0, n1, n2, n3);
    for (int64_t i = 0; i < ggml_nelements(t); i++) {
        const float x = test_random_float(-2, 2);
        if (type == GGML_TYPE_F32) {
            ((float *) t->data)[i] = x;
        } else {
            ((uint16_t *) t->data)[i] = ggml_fp32_to_fp16(x);
        }
    }
    return t;
}

// Some entries are -inf, more often at the end of rows, and sometimes a whole row.
static struct ggml_tensor * mask(struct chain * c, int64_t keys, int64_t queries, int64_t heads) {
    struct ggml_tensor * t = input(c, GGML_TYPE_F32, keys, queries, heads, 1);
    for (int64_t r = 0; r < queries * heads; r++) {
        const int64_t seen = test_random() % 16 == 0 ? 0 : test_random_int(1, keys);
        for (int64_t i = 0; i < keys; i++) {
            if (i >= seen || test_random() % 8 == 0) {
                ((float *) t->data)[r * keys + i] = -INFINITY;
            }
        }
    }
    return t;
}

static bool maybe(int one_of) { return test_random() % (uint64_t) one_of == 0; }

// A node whose memory is in the arena and ends with its last reader.
static struct ggml_tensor * computed(struct chain * c, struct ggml_tensor * t) {
    return t->type == GGML_TYPE_F32 ? ggml_scale(c->ctx, t, 0.5f) : t;
}

static struct ggml_tensor * edited(struct chain * c, struct ggml_tensor * x) {
    const int64_t keys = x->ne[0], queries = x->ne[1], heads = x->ne[2];
    const bool here = maybe(2); // in place
    if (maybe(2)) {
        x = here ? ggml_scale_inplace(c->ctx, x, 0.3f) : ggml_scale(c->ctx, x, 0.3f);
    }
    switch (test_random_int(0, 4)) {
        case 0: x = ggml_add(c->ctx, x, mask(c, keys, maybe(2) ? queries : 1, 1)); break;
        case 1: x = ggml_add(c->ctx, x, mask(c, keys, queries, heads)); break;
        case 2:
            x = here ? ggml_diag_mask_inf_inplace(c->ctx, x, (int) GB_MAX(keys - queries, 0))
                     : ggml_diag_mask_inf(c->ctx, x, 3);
            break;
        case 3:
            x = ggml_scale(c->ctx, x, 2);
            x = x->ne[3] == 1 ? ggml_add(c->ctx, mask(c, keys, queries, heads), x)
                              : ggml_add(c->ctx, x, mask(c, keys, 1, heads));
            x = ggml_diag_mask_inf(c->ctx, x, 40);
            x = ggml_scale(c->ctx, x, 0.7f);
            break;
        default: break;
    }
    c->weights = maybe(2) ? ggml_soft_max_ext(c->ctx, x, maybe(2) ? mask(c, keys, queries, 1) : NULL, 0.4f)
                 : here   ? ggml_soft_max_inplace(c->ctx, x)
                          : ggml_soft_max(c->ctx, x);
    return c->weights;
}

static struct ggml_tensor * copied(struct chain * c, struct ggml_tensor * x) {
    struct ggml_tensor * p = ggml_permute(c->ctx, x, 0, 2, 1, 3);
    switch (test_random_int(0, 3)) {
        case 0: return ggml_cont(c->ctx, p);
        case 1: return ggml_cont_2d(c->ctx, p, x->ne[0] * x->ne[2], x->ne[1] * x->ne[3]);
        case 2:
            return ggml_cpy(c->ctx, p,
                input(c, maybe(2) ? GGML_TYPE_F16 : GGML_TYPE_F32, x->ne[0], x->ne[2], x->ne[1], x->ne[3]));
        default: return x;
    }
}

static void watch(struct chain * c, struct ggml_tensor * t) {
    c->watched[c->n_watched++] = t;
    ggml_build_forward_expand(c->graph, t);
}

static struct chain begin_chain(uint64_t seed) {
    test_seed = seed;
    struct chain c = { .in = ggml_init((struct ggml_init_params){ (size_t) 32 << 20, NULL, false }),
        .ctx = ggml_init((struct ggml_init_params){ (size_t) 1 << 20, NULL, true }),
        .talloc = ggml_tallocr_new_from_buft(ggml_backend_cpu_buffer_type(), ARENA) };
    c.graph = ggml_new_graph(c.ctx);
    return c;
}

static struct chain allocate_chain(struct chain c) {
    ggml_gallocr_t galloc = ggml_gallocr_new();
    CHECK(ggml_gallocr_alloc_graph(galloc, c.talloc, c.graph) > 0);
    ggml_gallocr_free(galloc);
    c.arena = ggml_backend_buffer_get_base(ggml_tallocr_get_buffer(c.talloc));
    return c;
}

// The same graph for the same seed. Some have more keys than a block holds.
static struct chain chain_new(uint64_t seed, bool expose) {
    struct chain c = begin_chain(seed);
    const enum ggml_type type = maybe(2) ? GGML_TYPE_F16 : GGML_TYPE_F32;
    const int64_t d = test_random_int(1, 5) * 8, dv = maybe(2) ? d : 24, batch = maybe(3) ? 2 : 1;
    const int64_t queries = maybe(4) ? test_random_int(190, 200) : test_random_int(8, 60);
    const int64_t keys = maybe(4) ? test_random_int(513, 700) : test_random_int(16, 90);
    const int64_t shared = test_random_int(1, 2), heads = shared * test_random_int(1, 2);
    struct ggml_tensor * q =
        maybe(2) ? ggml_permute(c.ctx, computed(&c, input(&c, GGML_TYPE_F32, d, heads, queries, batch)), 0, 2, 1, 3)
                 : computed(&c, input(&c, GGML_TYPE_F32, d, queries, heads, batch));
    struct ggml_tensor * k =
        maybe(2) ? ggml_permute(c.ctx, computed(&c, input(&c, type, d, heads / shared, keys, batch)), 0, 2, 1, 3)
                 : computed(&c, input(&c, type, d, keys, heads / shared, batch));
    struct ggml_tensor * v =
        maybe(2) ? ggml_cont(c.ctx, ggml_transpose(c.ctx, input(&c, type, dv, keys, heads / shared, batch)))
                 : computed(&c, input(&c, type, keys, dv, heads / shared, batch));
    ggml_build_forward_expand(c.graph, v);
    c.scores = ggml_mul_mat(c.ctx, k, q);
    c.mixed = ggml_mul_mat(c.ctx, v, edited(&c, c.scores));
    struct ggml_tensor * y = copied(&c, c.mixed);
    c.exposed = expose;
    if (expose) {
        switch (test_random_int(0, 3)) {
            case 0:
                ggml_set_output(c.weights);
                c.watched[c.n_watched++] = c.weights;
                break;
            case 1:
                ggml_set_output(c.scores->src[0]);
                ggml_set_output(c.mixed);
                c.watched[c.n_watched++] = c.mixed;
                break;
            case 2: watch(&c, ggml_sqr(c.ctx, c.weights)); break;
            default: watch(&c, ggml_sqr(c.ctx, ggml_reshape_1d(c.ctx, c.mixed, ggml_nelements(c.mixed)))); break;
        }
    }
    watch(&c, y->type == GGML_TYPE_F32 ? ggml_relu(c.ctx, y) : y);
    watch(&c, ggml_sqr(c.ctx, input(&c, GGML_TYPE_F32, 1, 1, 1, 1))); // a node after the chain
    return allocate_chain(c);
}

static void chain_free(struct chain * c) {
    ggml_tallocr_free(c->talloc);
    ggml_free(c->ctx);
    ggml_free(c->in);
}

static void run(struct chain * c, int threads, bool fuse, const char * level) {
    spoil_results(c->graph, c->talloc);
    run_nodes(c->graph->nodes, c->graph->n_nodes, threads, fuse, gb_level_find(level)->kernels);
}

static float value(const struct ggml_tensor * t, int64_t i) {
    return t->type == GGML_TYPE_F32 ? ((const float *) t->data)[i]
                                    : ggml_fp16_to_fp32(((const ggml_fp16_t *) t->data)[i]);
}

static void compare(const struct chain * plain, const struct chain * fused, int seed, int threads, double tolerance) {
    for (int w = 0; w < plain->n_watched; w++) {
        const struct ggml_tensor *a = plain->watched[w], *b = fused->watched[w];
        double worst = 0;
        for (int64_t i = 0; i < ggml_nelements(a); i++) {
            const double x = (double) value(a, i), y = (double) value(b, i), d = fabs(x - y) / (1 + fabs(x));
            worst = x == y ? worst : d <= worst ? worst : isnan(d) ? INFINITY : d;
        }
        CHECK_MSG(worst <= tolerance * (a->type == GGML_TYPE_F16 ? 2000 : 1), "seed %d, %d threads: %s differs by %g",
            seed, threads, ggml_op_desc(a), worst);
    }
}

// The nodes of the chain without views, as the plan sees them.
static int nodes_of(const struct chain * c, struct ggml_tensor * nodes[GB_FUSE_MAX]) {
    int n = 0;
    for (int i = 0; i < c->graph->n_nodes && n < GB_FUSE_MAX; i++) {
        if (gb_op_computes(c->graph->nodes[i]->op) && (n > 0 || c->graph->nodes[i] == c->scores)) {
            nodes[n++] = c->graph->nodes[i];
        }
    }
    return n;
}

static void random_chains(void) {
    int n_taken = 0;
    for (int seed = 1; seed <= 40; seed++) {
        struct chain plain = chain_new((uint64_t) seed * 1000, false), fused = chain_new((uint64_t) seed * 1000, false);
        struct ggml_tensor * nodes[GB_FUSE_MAX];
        const int length = gb_fusion_attention.length(nodes, nodes_of(&fused, nodes));
        n_taken += length > 0 && gb_fusion_attention.is_safe(nodes, length);
        run(&plain, 1, false, "scalar");
        for (int l = 0; l < gb_level_count(); l++) {
            if (!gb_level_at(l)->usable()) {
                continue; // a level of another processor
            }
            run(&fused, 1 + seed % 3, true, gb_level_at(l)->name);
            compare(&plain, &fused, seed, 1 + seed % 3, 4e-6);
        }
        chain_free(&plain);
        chain_free(&fused);
    }
    CHECK_INT(n_taken, 40);
    ggml_graph_set_fusion(true);
}

static void readable_results_are_stored(void) {
    for (int seed = 1; seed <= 40; seed++) {
        struct chain plain = chain_new((uint64_t) seed * 1000, true), fused = chain_new((uint64_t) seed * 1000, true);
        run(&plain, 1, false, "scalar");
        run(&fused, 2, true, "scalar");
        compare(&plain, &fused, seed, 2, 4e-6);
        chain_free(&plain);
        chain_free(&fused);
    }
    ggml_graph_set_fusion(true);
}

static void threads_give_the_same_bits(void) {
    for (int seed = 1; seed <= 12; seed++) {
        struct chain one = chain_new((uint64_t) seed * 1000, false);
        run(&one, 1, true, "scalar");
        for (int threads = 2; threads <= 16; threads *= 2) {
            struct chain many = chain_new((uint64_t) seed * 1000, false);
            run(&many, threads, true, "scalar");
            for (int w = 0; w < one.n_watched; w++) {
                CHECK_MSG(memcmp(one.watched[w]->data, many.watched[w]->data, ggml_nbytes(one.watched[w])) == 0,
                    "seed %d, %d threads", seed, threads);
            }
            chain_free(&many);
        }
        chain_free(&one);
    }
}

// Only the final results are stored, and the rest of the arena is unchanged.
static void scores_are_not_stored(void) {
    struct chain c = chain_new(1000, false);
    struct ggml_tensor * nodes[GB_FUSE_MAX];
    REQUIRE(gb_fusion_attention.length(nodes, nodes_of(&c, nodes)) > 0);
    const uint32_t * scores = c.scores->data;
    bool touched = false;
    run(&c, 2, false, "scalar");
    for (int64_t i = 0; i < ggml_nelements(c.scores); i++) {
        touched |= scores[i] != 0xffffffffu;
    }
    CHECK(touched);
    run(&c, 2, true, "scalar");
    int64_t stored = 0;
    for (int64_t i = 0; i < ggml_nelements(c.scores); i++) {
        stored += scores[i] != 0xffffffffu;
    }
    CHECK_MSG(stored < ggml_nelements(c.scores), "%d of %d scores", (int) stored, (int) ggml_nelements(c.scores));
    chain_free(&c);
}

// All tensors with their own memory are stored.
static void context_memory(void) {
    test_seed = 7;
    struct chain c = { .in = ggml_init((struct ggml_init_params){ (size_t) 8 << 20, NULL, false }) };
    struct ggml_tensor * x =
        ggml_mul_mat(c.in, input(&c, GGML_TYPE_F32, 16, 40, 2, 1), input(&c, GGML_TYPE_F32, 16, 20, 2, 1));
    struct ggml_tensor * w = ggml_soft_max(c.in, x);
    struct ggml_tensor * y = ggml_relu(c.in, ggml_mul_mat(c.in, input(&c, GGML_TYPE_F32, 40, 16, 2, 1), w));
    struct ggml_cgraph * g = ggml_new_graph(c.in);
    ggml_build_forward_expand(g, y);
    memset(x->data, 0xff, ggml_nbytes(x));
    memset(w->data, 0xff, ggml_nbytes(w));
    CHECK_INT(ggml_graph_compute_with_ctx(c.in, g, 2), GGML_STATUS_SUCCESS);
    for (int64_t i = 0; i < ggml_nelements(w); i++) {
        CHECK(!isnan(((float *) x->data)[i]) && !isnan(((float *) w->data)[i]));
    }
    ggml_free(c.in);
}

// --------------------------------------------------------------------------------------------- what masks do not hide

struct strange {
    float mask;       // replaces -inf for a hidden key
    float key, value; // an element of a key or value that few queries see
};

// Query i sees keys 0 .. i + 4. Heads are longer than a panel.
static struct chain strange_chain(const struct strange * s) {
    enum { D = 72, QUERIES = 60, KEYS = 70 };
    struct chain c = begin_chain(11);
    struct ggml_tensor * q = input(&c, GGML_TYPE_F32, D, QUERIES, 2, 1);
    struct ggml_tensor * k = input(&c, GGML_TYPE_F32, D, KEYS, 2, 1);
    struct ggml_tensor * v = input(&c, GGML_TYPE_F32, KEYS, D, 2, 1);
    struct ggml_tensor * m = input(&c, GGML_TYPE_F32, KEYS, QUERIES, 1, 1);
    for (int i = 0; i < QUERIES; i++) {
        for (int j = i + 5; j < KEYS; j++) {
            ((float *) m->data)[i * KEYS + j] = j == 66 && i % 3 == 0 ? s->mask : -INFINITY;
        }
    }
    ((float *) k->data)[D * 50 + 7] += s->key;
    ((float *) v->data)[KEYS * 9 + 55] += s->value;
    c.scores = ggml_mul_mat(c.ctx, k, q);
    c.mixed = ggml_mul_mat(c.ctx, v, ggml_soft_max_ext(c.ctx, c.scores, m, 0.1f));
    watch(&c, ggml_cont(c.ctx, ggml_permute(c.ctx, c.mixed, 0, 2, 1, 3)));
    watch(&c, ggml_sqr(c.ctx, input(&c, GGML_TYPE_F32, 1, 1, 1, 1)));
    return allocate_chain(c);
}

// A mask does not hide NaN, infinity or huge numbers of the mask, keys or values. They reach the
// results of single nodes, so they must reach those of fused steps.
static void strange_numbers_are_not_hidden(void) {
    static const struct strange cases[] = { { -INFINITY, 0, 0 }, { NAN, 0, 0 }, { INFINITY, 0, 0 }, { 2e38f, 0, 0 },
        { -1e30f, 0, 0 }, { -INFINITY, NAN, 0 }, { -INFINITY, INFINITY, 0 }, { -INFINITY, 1e37f, 0 },
        { -INFINITY, 0, NAN }, { -INFINITY, 0, INFINITY } };
    for (size_t i = 0; i < GB_ARRAY_LEN(cases); i++) {
        struct chain plain = strange_chain(&cases[i]), fused = strange_chain(&cases[i]);
        struct ggml_tensor * nodes[GB_FUSE_MAX];
        const int length = gb_fusion_attention.length(nodes, nodes_of(&fused, nodes));
        CHECK(length > 0 && gb_fusion_attention.is_safe(nodes, length));
        run(&plain, 1, false, "scalar");
        for (int l = 0; l < gb_level_count(); l++) {
            if (!gb_level_at(l)->usable()) {
                continue; // a level of another processor
            }
            run(&fused, 2, true, gb_level_at(l)->name);
            int64_t wrong = 0;
            for (int64_t j = 0; j < ggml_nelements(plain.watched[0]); j++) {
                const float x = value(plain.watched[0], j), y = value(fused.watched[0], j);
                wrong += isnan(x) ? !isnan(y) : !(x == y || fabsf(x - y) <= 4e-6f * (1 + fabsf(x)));
            }
            CHECK_MSG(wrong == 0, "case %d at %s: %d results", (int) i, gb_level_at(l)->name, (int) wrong);
        }
        chain_free(&plain);
        chain_free(&fused);
    }
    ggml_graph_set_fusion(true);
}

struct huge {
    float queries, keys; // element sizes
    float scale;         // SCALE after the product
    float in_soft_max;   // the scale of SOFT_MAX
    bool masked;
};

static struct chain huge_chain(const struct huge * h) {
    enum { D = 16, QUERIES = 20, KEYS = 40 };
    struct chain c = begin_chain(3);
    struct ggml_tensor * q = input(&c, GGML_TYPE_F32, D, QUERIES, 2, 1);
    struct ggml_tensor * k = input(&c, GGML_TYPE_F32, D, KEYS, 2, 1);
    struct ggml_tensor * v = input(&c, GGML_TYPE_F32, KEYS, D, 2, 1);
    for (int64_t i = 0; i < ggml_nelements(q); i++) {
        ((float *) q->data)[i] *= h->queries;
    }
    for (int64_t i = 0; i < ggml_nelements(k); i++) {
        ((float *) k->data)[i] *= h->keys;
    }
    struct ggml_tensor * x = ggml_mul_mat(c.ctx, k, q);
    c.scores = x;
    x = h->scale != 1 ? ggml_scale(c.ctx, x, h->scale) : x;
    x = ggml_soft_max_ext(c.ctx, x, h->masked ? mask(&c, KEYS, QUERIES, 1) : NULL, h->in_soft_max);
    c.mixed = ggml_mul_mat(c.ctx, v, x);
    watch(&c, ggml_relu(c.ctx, c.mixed));
    return allocate_chain(c);
}

// With factors above 1, queries and scores overflow only if they do so node by node.
static void large_factors(void) {
    static const struct huge cases[] = { { 1e10f, 1e10f, 1, 1e20f, false }, { 1e10f, 1e10f, 1, 1e20f, true },
        { 1e30f, 1e-30f, 1e10f, 1, false }, { 1e30f, 1e-30f, 1e10f, 1, true }, { 1e30f, 1e-30f, -1e10f, 1, false },
        { 1, 1, 3, 0.5f, true }, { 1, 1, 0.5f, 3, true }, { 1, 1, -0.5f, 1, true } };
    for (size_t i = 0; i < GB_ARRAY_LEN(cases); i++) {
        struct chain plain = huge_chain(&cases[i]), fused = huge_chain(&cases[i]);
        run(&plain, 1, false, "scalar");
        for (int l = 0; l < gb_level_count(); l++) {
            if (!gb_level_at(l)->usable()) {
                continue; // a level of another processor
            }
            run(&fused, 2, true, gb_level_at(l)->name);
            compare(&plain, &fused, (int) i, 2, 4e-6);
        }
        chain_free(&plain);
        chain_free(&fused);
    }
    ggml_graph_set_fusion(true);
}

// ----------------------------------------------------------------------------------------------------------- scheduler

enum { VALUES = 2 * 40 * 20 * 2 };

struct seen {
    struct ggml_tensor * want;
    float * values; // copies of the node; after it, copies of its source
};

static bool look(struct ggml_tensor * t, bool ask, void * user) {
    struct seen * s = user;
    if (ask) {
        return t == s->want;
    }
    ggml_backend_tensor_get(t, s->values, 0, ggml_nbytes(t));
    if (t->src[0] != NULL && ggml_is_contiguous(t->src[0])) {
        ggml_backend_tensor_get(t->src[0], s->values + ggml_nelements(t), 0, ggml_nbytes(t->src[0]));
    } else if (t->src[0] != NULL && t->src[0]->view_src != NULL) {
        const struct ggml_tensor * root = t->src[0]->view_src;
        ggml_backend_tensor_get(root, s->values + ggml_nelements(t), 0, ggml_nbytes(root));
    }
    return true;
}

// A node follows the chain, or the chain ends the graph.
static struct ggml_cgraph * chain_for_scheduler(struct ggml_context * ctx, struct ggml_tensor * inputs[3],
    struct ggml_tensor ** y, bool followed) {
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    for (int i = 0; i < 3; i++) {
        inputs[i] = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, i == 2 ? 40 : 16, i == 0 ? 20 : i == 1 ? 40 : 16, 2);
    }
    struct ggml_tensor * x = ggml_scale(ctx, ggml_mul_mat(ctx, inputs[1], inputs[0]), 0.25f);
    x = ggml_mul_mat(ctx, inputs[2], ggml_soft_max(ctx, x));
    x = ggml_cont(ctx, ggml_permute(ctx, x, 0, 2, 1, 3));
    *y = followed ? ggml_relu(ctx, x) : x;
    ggml_build_forward_expand(g, *y);
    return g;
}

static void set_inputs(struct ggml_tensor * inputs[3]) {
    float values[40 * 40];
    test_seed = 5;
    for (int i = 0; i < 3; i++) {
        for (int64_t k = 0; k < ggml_nelements(inputs[i]); k++) {
            values[k] = test_random_float(-1, 1);
        }
        CHECK_INT(ggml_backend_tensor_set(inputs[i], values, 0, ggml_nbytes(inputs[i])), GGML_STATUS_SUCCESS);
    }
}

// If a callback requests a node, that node and its sources are complete. Without a callback the
// result is the same within rounding.
static void callbacks_of(bool followed) {
    static float want[VALUES], got[VALUES], result[2][16 * 20 * 2];
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ (size_t) 1 << 20, NULL, true });
    struct ggml_tensor *inputs[3], *y;
    struct ggml_cgraph * g = chain_for_scheduler(ctx, inputs, &y, followed);
    ggml_backend_t cpu = ggml_backend_cpu_init();
    for (int node = -1; node < g->n_nodes; node++) {
        for (int fuse = 0; fuse < 2; fuse++) {
            ggml_backend_sched_t sched = ggml_backend_sched_new(&cpu, NULL, 1, 64);
            struct seen seen = { node < 0 ? NULL : g->nodes[node], fuse ? got : want };
            memset(seen.values, 0, sizeof(want));
            ggml_graph_set_fusion(fuse != 0);
            REQUIRE(ggml_backend_sched_alloc_graph(sched, g) == GGML_STATUS_SUCCESS);
            set_inputs(inputs);
            if (node >= 0) {
                CHECK_INT(ggml_backend_sched_set_eval_callback(sched, look, &seen), GGML_STATUS_SUCCESS);
            }
            CHECK_INT(ggml_backend_sched_graph_compute(sched, g), GGML_STATUS_SUCCESS);
            CHECK_INT(ggml_backend_tensor_get(y, result[fuse], 0, ggml_nbytes(y)), GGML_STATUS_SUCCESS);
            ggml_backend_sched_free(sched);
            for (int i = 0; i < g->n_nodes; i++) {
                g->nodes[i]->buffer = NULL;
                g->nodes[i]->data = NULL;
            }
            for (int i = 0; i < 3; i++) {
                inputs[i]->buffer = NULL;
                inputs[i]->data = NULL;
            }
        }
        for (int64_t i = 0; i < ggml_nelements(y); i++) {
            CHECK_MSG(fabsf(result[0][i] - result[1][i]) <= 1e-6f, "node %d, result %d", node, (int) i);
        }
        for (int64_t i = 0; node >= 0 && i < VALUES; i++) {
            CHECK_MSG(fabsf(want[i] - got[i]) <= 1e-6f, "node %d, value %d: %g, %g", node, (int) i, (double) want[i],
                (double) got[i]);
        }
    }
    ggml_graph_set_fusion(true);
    ggml_backend_free(cpu);
    ggml_free(ctx);
}

static void callbacks(void) {
    callbacks_of(true);
    callbacks_of(false);
}

// How many scores are stored if the backend computes the graph, whole or as a view.
static int64_t scores_stored(bool view) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ (size_t) 1 << 20, NULL, true });
    struct ggml_tensor *inputs[3], *y;
    struct ggml_cgraph * g = chain_for_scheduler(ctx, inputs, &y, false);
    ggml_backend_t cpu = ggml_backend_cpu_init();
    ggml_tallocr_t talloc = ggml_tallocr_new_from_buft(ggml_backend_cpu_buffer_type(), ARENA);
    ggml_gallocr_t galloc = ggml_gallocr_new();
    struct ggml_cgraph all = ggml_graph_view(g, 0, g->n_nodes);
    CHECK(ggml_gallocr_alloc_graph(galloc, talloc, g) > 0);
    for (int i = 0; i < 3; i++) {
        memset(inputs[i]->data, 0, ggml_nbytes(inputs[i]));
    }
    memset(g->nodes[0]->data, 0xff, ggml_nbytes(g->nodes[0]));
    CHECK(ggml_backend_graph_compute(cpu, view ? &all : g));
    int64_t stored = 0;
    for (int64_t i = 0; i < ggml_nelements(g->nodes[0]); i++) {
        stored += !isnan(((const float *) g->nodes[0]->data)[i]);
    }
    ggml_gallocr_free(galloc);
    ggml_tallocr_free(talloc);
    ggml_backend_free(cpu);
    ggml_free(ctx);
    return stored;
}

// A chain may end a graph. At the end of a graph view, all sources of the last node are stored.
static void where_a_graph_ends(void) {
    CHECK_INT(scores_stored(true), 40 * 20 * 2);
    CHECK(scores_stored(false) < 40 * 20 * 2);
}

TEST_MAIN(TEST(random_chains), TEST(readable_results_are_stored), TEST(threads_give_the_same_bits),
    TEST(scores_are_not_stored), TEST(context_memory), TEST(strange_numbers_are_not_hidden), TEST(large_factors),
    TEST(callbacks), TEST(where_a_graph_ends))
