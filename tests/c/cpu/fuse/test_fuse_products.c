// Products of the same row, with the norm before them: every readable result has the same bits as
// node by node. For all formats and levels, in the graph's own memory and in arenas, for one thread
// and several. Also tests the barriers of a decoder's layer, and which memory is safe.
#include "test_fuse.h"

enum { ARENA = 8 << 20, MOST = 16 };

struct net {
    struct ggml_context * in; // with memory
    struct ggml_context * ctx;
    struct ggml_cgraph * graph;
    struct ggml_tensor * watched[MOST];
    int n_watched;
    ggml_tallocr_t talloc; // NULL: all nodes have their own memory
};

static struct ggml_tensor * input(struct net * l, enum ggml_type type, int64_t n0, int64_t n1) {
    return random_input(l->in, type, n0, n1, 1);
}

static void allocate(struct net * l, bool arena) {
    if (arena) {
        ggml_gallocr_t galloc = ggml_gallocr_new();
        l->talloc = ggml_tallocr_new_from_buft(ggml_backend_cpu_buffer_type(), ARENA);
        CHECK(ggml_gallocr_alloc_graph(galloc, l->talloc, l->graph) > 0);
        ggml_gallocr_free(galloc);
    }
}

static struct net net_of(bool arena) {
    return (struct net){ .in = ggml_init((struct ggml_init_params){ (size_t) 24 << 20, NULL, false }),
        .ctx = ggml_init((struct ggml_init_params){ (size_t) (arena ? 1 : 8) << 20, NULL, arena }) };
}

static void net_free(struct net * l) {
    ggml_tallocr_free(l->talloc);
    ggml_free(l->ctx);
    ggml_free(l->in);
}

static struct ggml_tensor * random_norm(struct net * l, struct ggml_tensor * x) {
    struct ggml_context * c = l->ctx;
    struct ggml_tensor *w = input(l, GGML_TYPE_F32, x->ne[0], 1), *b = input(l, GGML_TYPE_F32, x->ne[0], 1);
    switch (test_random_int(0, 6)) {
        case 0: return x;
        case 1: return ggml_rms_norm(c, x, 1e-5f);
        case 2: return ggml_mul(c, ggml_norm(c, x, 1e-5f), w);
        case 3: return ggml_add_inplace(c, ggml_mul_inplace(c, ggml_norm(c, x, 1e-5f), w), b);
        case 4: return ggml_add(c, ggml_mul(c, ggml_norm(c, x, 1e-5f), w), b);
        default: return ggml_mul_inplace(c, ggml_rms_norm(c, x, 1e-5f), w);
    }
}

// `others`: ends of earlier products of the same row.
static struct ggml_tensor * random_stage(struct net * l, struct ggml_tensor * y, struct ggml_tensor ** others, int n) {
    struct ggml_context * c = l->ctx;
    struct ggml_tensor * other = n > 0 ? others[test_random_int(0, n - 1)] : NULL;
    const int64_t m = y->ne[0];
    if (other != NULL && other->ne[0] == m && test_random() % 2 == 0) {
        return test_random() % 2 == 0 ? ggml_mul(c, other, y) : ggml_add(c, y, other);
    }
    switch (test_random_int(0, 4)) {
        case 0: return ggml_add(c, y, input(l, GGML_TYPE_F32, m, 1));
        case 1: return ggml_silu(c, y);
        case 2: return ggml_gelu(c, y);
        case 3: return ggml_scale(c, y, 0.7f);
        default: return ggml_add_inplace(c, y, input(l, GGML_TYPE_F32, m, 1));
    }
}

// The same graph for the same seed. `wide`: threads take columns from each other.
static struct net net_new(uint64_t seed, bool arena, bool wide) {
    static const enum ggml_type types[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0,
        GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL };
    static const enum ggml_prec precs[] = { GGML_PREC_DEFAULT, GGML_PREC_F32, GGML_PREC_F16 };
    test_seed = seed;
    struct net l = net_of(arena);
    const int64_t k = wide ? 1024 : 256 * test_random_int(1, 3), m = wide ? 2500 : test_random_int(200, 700);
    const enum ggml_type type = wide ? GGML_TYPE_Q4_0 : types[test_random_int(0, 8)];
    const enum ggml_prec prec = precs[test_random_int(0, 2)];
    struct ggml_tensor * source = ggml_scale(l.ctx, input(&l, GGML_TYPE_F32, k, 1), 0.9f);
    struct ggml_tensor *x = random_norm(&l, source), *ends[4];
    const int n = (int) test_random_int(1, 4);
    l.graph = ggml_new_graph(l.ctx);
    for (int i = 0; i < n; i++) {
        const bool other = test_random() % 5 == 0;
        struct ggml_tensor * y = ggml_mul_mat(l.ctx,
            input(&l, other ? types[test_random_int(0, 8)] : type, k, test_random() % 3 ? m : m / 2), x);
        ggml_mul_mat_set_prec(y, prec);
        for (int s = (int) test_random_int(0, 2); s > 0; s--) {
            y = random_stage(&l, y, ends, i);
        }
        ends[i] = y;
        if (arena) {
            ggml_set_output(y);
        }
        ggml_build_forward_expand(l.graph, y);
    }
    if (test_random() % 2 == 0) {
        ggml_build_forward_expand(l.graph, ggml_add(l.ctx, source, x)); // reads the source and the row again
    }
    for (int i = 0; i < l.graph->n_nodes && l.n_watched < MOST; i++) {
        struct ggml_tensor * t = l.graph->nodes[i];
        bool overwritten = false; // by an operator in place
        for (int j = i + 1; j < l.graph->n_nodes; j++) {
            const struct ggml_tensor * over = l.graph->nodes[j]->view_src;
            overwritten |= over != NULL && over == (t->view_src != NULL ? t->view_src : t);
        }
        if (!overwritten && (!arena || ggml_is_output(t) || i == l.graph->n_nodes - 1)) {
            l.watched[l.n_watched++] = t;
        }
    }
    allocate(&l, arena);
    return l;
}

// Returns the number of barriers.
static int run(struct net * l, int threads, bool fuse, const struct gb_level * level) {
    spoil_results(l->graph, l->talloc);
    return run_nodes(l->graph->nodes, l->graph->n_nodes, threads, fuse, level->kernels);
}

static void compare(const struct net * plain, const struct net * fused, int seed, int threads, const char * level) {
    for (int w = 0; w < plain->n_watched; w++) {
        const struct ggml_tensor *a = plain->watched[w], *b = fused->watched[w];
        CHECK_MSG(memcmp(a->data, b->data, ggml_nbytes(a)) == 0, "seed %d, %d threads, %s: result %d (%s) differs",
            seed, threads, level, w, ggml_op_desc(a));
    }
}

// The first fused step of products in the graph. Returns its length.
static int find(const struct net * l, struct ggml_tensor * nodes[GB_FUSE_MAX]) {
    for (int i = 0; i < l->graph->n_nodes; i++) {
        int n = 0;
        for (int j = i; j < l->graph->n_nodes && n < GB_FUSE_MAX; j++) {
            nodes[n++] = l->graph->nodes[j];
        }
        const int length = gb_fuse_may_begin(GB_FUSE_PRODUCTS, nodes[0]) ? gb_fusion_products.length(nodes, n) : 0;
        if (length > 0) {
            return length;
        }
    }
    return 0;
}

static void random_nets(bool arena, int seeds) {
    int n_safe = 0;
    for (int seed = 1; seed <= seeds; seed++) {
        const struct gb_level * level = level_of(seed);
        struct net plain = net_new((uint64_t) seed * 1000, arena, false),
                   fused = net_new((uint64_t) seed * 1000, arena, false);
        struct ggml_tensor * nodes[GB_FUSE_MAX];
        const int length = find(&fused, nodes);
        n_safe += length > 0 && gb_fusion_products.is_safe(nodes, length);
        run(&plain, 1, false, level);
        for (int threads = 1; threads <= 3; threads++) {
            run(&fused, threads, true, level);
            compare(&plain, &fused, seed, threads, level->name);
        }
        net_free(&plain);
        net_free(&fused);
    }
    // other graphs have one product, or store their norms
    CHECK_MSG(n_safe * 2 > seeds, "%d of %d", n_safe, seeds);
    ggml_graph_set_fusion(true);
}

static void in_arenas(void) { random_nets(true, 90); }

static void in_memory_of_their_own(void) { random_nets(false, 60); }

static void threads_take_columns_from_each_other(void) {
    for (int seed = 1; seed <= 12; seed++) {
        struct net plain = net_new((uint64_t) seed * 77, true, true), fused = net_new((uint64_t) seed * 77, true, true);
        const struct gb_level * level = gb_level_default();
        run(&plain, 1, false, level);
        run(&fused, 2 + seed % 2 * 3, true, level);
        compare(&plain, &fused, seed, 2 + seed % 2 * 3, level->name);
        net_free(&plain);
        net_free(&fused);
    }
    ggml_graph_set_fusion(true);
}

enum { WIDTH = 576, HEADS = 9, KV_HEADS = 3, HEAD = WIDTH / HEADS, FF = 1536, CELLS = 256, LAYERS = 3 };

struct cache {
    struct ggml_tensor *k, *v, *rows, *positions, *mask;
};

static struct ggml_tensor * normed(struct net * l, struct ggml_tensor * x) {
    return ggml_mul(l->ctx, ggml_rms_norm(l->ctx, x, 1e-5f), input(l, GGML_TYPE_F32, WIDTH, 1));
}

static struct ggml_tensor * cached(struct net * l, struct ggml_tensor * cells, struct ggml_tensor * rows,
    struct ggml_tensor * x) {
    struct ggml_tensor * all = ggml_set_rows(l->ctx, cells, ggml_reshape_2d(l->ctx, x, HEAD * KV_HEADS, 1), rows);
    return ggml_permute(l->ctx, ggml_reshape_3d(l->ctx, all, HEAD, KV_HEADS, CELLS), 0, 2, 1, 3);
}

static struct ggml_tensor * attention(struct net * l, const struct cache * c, struct ggml_tensor * x) {
    struct ggml_context * ctx = l->ctx;
    struct ggml_tensor *q = ggml_mul_mat(ctx, input(l, GGML_TYPE_Q4_1, WIDTH, WIDTH), x),
                       *k = ggml_mul_mat(ctx, input(l, GGML_TYPE_Q4_1, WIDTH, HEAD * KV_HEADS), x),
                       *v = ggml_mul_mat(ctx, input(l, GGML_TYPE_Q4_1, WIDTH, HEAD * KV_HEADS), x);
    ggml_build_forward_expand(l->graph, q);
    ggml_build_forward_expand(l->graph, k);
    ggml_build_forward_expand(l->graph, v);
    q = ggml_rope(ctx, ggml_reshape_3d(ctx, q, HEAD, HEADS, 1), c->positions, HEAD, 0, 0);
    k = ggml_rope(ctx, ggml_reshape_3d(ctx, k, HEAD, KV_HEADS, 1), c->positions, HEAD, 0, 0);
    struct ggml_tensor * mixed = ggml_flash_attn_ext(ctx, ggml_permute(ctx, q, 0, 2, 1, 3), cached(l, c->k, c->rows, k),
        cached(l, c->v, c->rows, v), c->mask, 0.125f, 0, 0);
    return ggml_mul_mat(ctx, input(l, GGML_TYPE_Q4_1, WIDTH, WIDTH), ggml_reshape_2d(ctx, mixed, WIDTH, 1));
}

static struct ggml_tensor * feed_forward(struct net * l, struct ggml_tensor * x) {
    struct ggml_context * ctx = l->ctx;
    struct ggml_tensor *gate = ggml_mul_mat(ctx, input(l, GGML_TYPE_Q4_1, WIDTH, FF), x),
                       *up = ggml_mul_mat(ctx, input(l, GGML_TYPE_Q4_1, WIDTH, FF), x);
    return ggml_mul_mat(ctx, input(l, GGML_TYPE_Q4_1, FF, WIDTH), ggml_mul(ctx, ggml_silu(ctx, gate), up));
}

// One token through a decoder of SmolLM2's widths.
static struct net decoder_new(void) {
    test_seed = 3;
    struct net l = net_of(true);
    l.graph = ggml_new_graph(l.ctx);
    struct ggml_tensor * x = input(&l, GGML_TYPE_F32, WIDTH, 1);
    for (int i = 0; i < LAYERS; i++) {
        const struct cache c = { input(&l, GGML_TYPE_F16, HEAD * KV_HEADS, CELLS),
            input(&l, GGML_TYPE_F16, HEAD * KV_HEADS, CELLS), ggml_new_tensor_1d(l.in, GGML_TYPE_I32, 1),
            ggml_new_tensor_1d(l.in, GGML_TYPE_I32, 1), input(&l, GGML_TYPE_F16, CELLS, 1) };
        *(int32_t *) c.rows->data = 7;
        *(int32_t *) c.positions->data = 5;
        x = ggml_add(l.ctx, x, attention(&l, &c, normed(&l, x)));
        x = ggml_add(l.ctx, x, feed_forward(&l, normed(&l, x)));
    }
    ggml_set_output(x);
    ggml_build_forward_expand(l.graph, x);
    l.watched[l.n_watched++] = x;
    allocate(&l, true);
    return l;
}

static void a_layer_needs_six_barriers(void) {
    for (int i = 0; i < gb_level_count(); i++) {
        const struct gb_level * level = gb_level_at(i);
        if (level->usable()) {
            struct net plain = decoder_new(), fused = decoder_new();
            const int before = run(&plain, 2, false, level), barriers = run(&fused, 2, true, level);
            CHECK_MSG(barriers + 1 <= 6 * LAYERS && before > 2 * barriers,
                "%s: %d barriers for %d layers, not fused %d", level->name, barriers, LAYERS, before);
            compare(&plain, &fused, i, 2, level->name);
            net_free(&plain);
            net_free(&fused);
        }
    }
    ggml_graph_set_fusion(true);
}

static void matching(void) {
    struct net l = net_of(false);
    struct ggml_context * c = l.in;
    struct ggml_tensor *x = input(&l, GGML_TYPE_F32, 256, 1), *w = input(&l, GGML_TYPE_F32, 256, 1),
                       *a = input(&l, GGML_TYPE_F16, 256, 300), *b = input(&l, GGML_TYPE_F16, 256, 300);
    struct ggml_tensor *norm = ggml_rms_norm(c, x, 1e-5f), *scaled = ggml_mul_inplace(c, norm, w),
                       *gate = ggml_mul_mat(c, a, scaled), *silu = ggml_silu(c, gate), *up = ggml_mul_mat(c, b, scaled),
                       *both = ggml_mul(c, silu, up);
    struct ggml_tensor * nodes[] = { norm, scaled, gate, silu, up, both, ggml_mul_mat(c, a, x) };
    CHECK_INT(gb_fusion_products.length(nodes, 7), 6);
    CHECK_INT(gb_fusion_products.length(nodes, 5), 5);
    CHECK_INT(gb_fusion_products.length(nodes, 2), 0);
    CHECK_INT(gb_fusion_products.length(nodes + 2, 5), 4);
    CHECK_INT(gb_fusion_products.length(nodes + 2, 2), 0); // one product: product.c
    CHECK(gb_fusion_products.is_safe(nodes, 6) && !gb_fusion_products.leaves_out(nodes, 6));
    void * mine = both->data;
    both->data = up->data; // in place
    CHECK(gb_fusion_products.is_safe(nodes, 6));
    both->data = (char *) up->data + 16; // columns of another thread
    CHECK(!gb_fusion_products.is_safe(nodes, 6));
    both->data = x->data; // other threads still normalize it
    CHECK(!gb_fusion_products.is_safe(nodes, 6));
    both->data = w->data;
    CHECK(!gb_fusion_products.is_safe(nodes, 6));
    both->data = scaled->data; // thread 0 still stores it
    CHECK(!gb_fusion_products.is_safe(nodes, 6));
    both->data = mine;
    scaled->data = w->data; // the norm and its scaled row are in different memory
    CHECK(!gb_fusion_products.is_safe(nodes, 6));
    scaled->data = norm->data;
    // The residual is the norm, which only thread 0 stores.
    struct ggml_tensor * square = input(&l, GGML_TYPE_F16, 256, 256);
    struct ggml_tensor * y = ggml_mul_mat(c, square, scaled);
    struct ggml_tensor * residual[] = { norm, scaled, y, ggml_add(c, y, scaled) };
    CHECK_INT(gb_fusion_products.length(residual, 4), 4);
    CHECK(!gb_fusion_products.is_safe(residual, 4));
    // An operator reads a product of another shape's set, whose columns other threads compute.
    struct ggml_tensor *q = ggml_mul_mat(c, input(&l, GGML_TYPE_F32, 256, 300), x), *v = ggml_mul_mat(c, a, x);
    struct ggml_tensor * mixed[] = { q, v, ggml_mul(c, v, q) };
    CHECK_INT(gb_fusion_products.length(mixed, 3), 3);
    CHECK(!gb_fusion_products.is_safe(mixed, 3) && gb_fusion_products.is_safe(mixed, 2));
    // Several rows, and small products.
    struct ggml_tensor * rows = input(&l, GGML_TYPE_F32, 256, 2);
    struct ggml_tensor * many[] = { ggml_mul_mat(c, a, rows), ggml_mul_mat(c, b, rows) };
    CHECK_INT(gb_fusion_products.length(many, 2), 0);
    struct ggml_tensor * small = input(&l, GGML_TYPE_F16, 256, 20);
    struct ggml_tensor * little[] = { ggml_mul_mat(c, small, x), ggml_mul_mat(c, small, x) };
    CHECK_INT(gb_fusion_products.length(little, 2), 0);
    net_free(&l);
}

TEST_MAIN(TEST(in_arenas), TEST(in_memory_of_their_own), TEST(threads_take_columns_from_each_other),
    TEST(a_layer_needs_six_barriers), TEST(matching))
