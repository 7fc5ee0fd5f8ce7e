// Nodes that a faster backend does not support: which ones are reported, with which copies, and
// which are heavy.
#include "base/mem.h"
#include "test_place.h"

static struct ggml_backend_sched_fallback fallback_at(struct place * p, int i) {
    struct ggml_backend_sched_fallback f;
    memset(&f, 0, sizeof(f));
    OK(ggml_backend_sched_get_fallback(p->sched, i, &f));
    return f;
}

static bool explains(struct place * p, struct ggml_tensor * t, const char * text) {
    return strstr(ggml_backend_sched_explain(p->sched, t), text) != NULL;
}

static void between_nodes_of_the_better_backend(void) {
    OPEN(p, "SIM:name=A,noops=tanh CPU");
    struct ggml_tensor *w = put(&p, leaf(&p, "w", 8, 8), 0, true), *x = put(&p, leaf(&p, "x", 8, 4), 0, false);
    struct ggml_tensor *a = ggml_mul_mat(p.ctx, w, x), *t = ggml_tanh(p.ctx, a), *y = ggml_mul_mat(p.ctx, w, t);
    ggml_set_name(t, "t");
    expand(&p, y);
    OK(ggml_backend_sched_reserve(p.sched, p.graph));
    CHECK_STR(splits(&p), "A:0-1 CPU:1-2(1) A:2-3(1)");
    CHECK_INT(ggml_backend_sched_get_n_fallbacks(p.sched), 1);
    const struct ggml_backend_sched_fallback f = fallback_at(&p, 0);
    CHECK(f.tensor == t && f.node == 1 && f.op == GGML_OP_UNARY && f.backend == p.backends[1] &&
          f.refused_by == p.backends[0]);
    CHECK_INT(f.n_copies, 2); // to the fallback and back
    CHECK_INT(f.copied_bytes, 2 * 8 * 4 * 4);
    CHECK(f.flops >= 8 * 4 && f.flops < 8 * 4 * 100 && !f.is_heavy);
    CHECK_STR(f.name, "t");
    CHECK_STR(f.reason, ggml_backend_unsupported_reason(p.backends[0], t));
    CHECK_MSG(explains(&p, t, "; not on A: ") && explains(&p, t, "; that costs copies of 2 tensors, 256 bytes"), "%s",
        ggml_backend_sched_explain(p.sched, t));
    CHECK(!explains(&p, y, "costs"));
    struct ggml_backend_sched_fallback none;
    CHECK_INT(ggml_backend_sched_get_fallback(p.sched, 1, &none), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "fallback 1: the last graph has 1");
    CHECK_INT(ggml_backend_sched_get_fallback(p.sched, -1, &none), GGML_STATUS_INVALID_ARGUMENT);
    close_place(&p);
}

// Placement by the user, by a weight or by memory is no fallback.
static void not_where_it_belongs_there(void) {
    OPEN(p, "SIM:name=A,noops=tanh+mul_mat CPU");
    struct ggml_tensor *x = leaf(&p, "x", 8, 4), *a = ggml_sqr(p.ctx, x), *t = ggml_tanh(p.ctx, a);
    struct ggml_tensor * w = put(&p, leaf(&p, "w", 8, 8), 1, true);
    struct ggml_tensor * y = ggml_mul_mat(p.ctx, w, t);
    OK(ggml_backend_sched_set_node_backend(p.sched, a, p.backends[0]));
    OK(ggml_backend_sched_set_node_backend(p.sched, t, p.backends[1]));
    expand(&p, y);
    OK(ggml_backend_sched_reserve(p.sched, p.graph));
    CHECK_INT(ggml_backend_sched_get_n_fallbacks(p.sched), 0);
    OK(ggml_backend_sched_set_node_backend(p.sched, t, NULL)); // now the weight is on A
    OK(ggml_backend_sched_reserve(p.sched, p.graph));
    CHECK_INT(ggml_backend_sched_get_n_fallbacks(p.sched), 1);
    CHECK(fallback_at(&p, 0).tensor == t);
    close_place(&p);
}

static void one_backend_has_none(void) {
    OPEN(p, "CPU");
    expand(&p, ggml_tanh(p.ctx, leaf(&p, "x", 8, 4)));
    OK(ggml_backend_sched_reserve(p.sched, p.graph));
    CHECK_INT(ggml_backend_sched_get_n_fallbacks(p.sched), 0);
    close_place(&p);
}

// Nodes a and z are on the first backend. The nodes between them are the only fallback.
static struct ggml_backend_sched_fallback fallback_between(struct place * p, struct ggml_tensor * a,
    struct ggml_tensor * z) {
    OK(ggml_backend_sched_set_node_backend(p->sched, a, p->backends[0]));
    OK(ggml_backend_sched_set_node_backend(p->sched, z, p->backends[0]));
    expand(p, z);
    OK(ggml_backend_sched_reserve(p->sched, p->graph));
    CHECK_INT(ggml_backend_sched_get_n_fallbacks(p->sched), 1);
    return fallback_at(p, 0);
}

// Just heavy, and just not: 2 K N M operations.
static void heavy(int64_t n, bool expected) {
    OPEN(p, "SIM:name=A,noops=mul_mat CPU");
    struct ggml_tensor *x = leaf(&p, "x", 100, 100), *a = ggml_sqr(p.ctx, x),
                       *y = ggml_mul_mat(p.ctx, leaf(&p, "b", 100, n), a), *z = ggml_sqr(p.ctx, y);
    const struct ggml_backend_sched_fallback f = fallback_between(&p, a, z);
    CHECK(f.tensor == y && f.flops == 2.0 * 100 * 100 * (double) n);
    CHECK_INT(f.is_heavy, expected);
    close_place(&p);
}

static void heavy_by_operations(void) {
    heavy(499, false);
    heavy(500, true);
}

// 2 K operations for each result, as with one matrix, for any number of indices.
static void experts_are_products(void) {
    OPEN(p, "SIM:name=A,noops=mul_mat_id CPU");
    struct ggml_tensor *a = ggml_sqr(p.ctx, leaf(&p, "x", 100, 500)), *experts[2];
    struct ggml_tensor * ids = ggml_new_tensor_2d(p.ctx, GGML_TYPE_I32, 1, 500);
    for (int i = 0; i < 2; i++) {
        experts[i] = leaf(&p, "expert", 100, 100);
    }
    struct ggml_tensor *y = ggml_mul_mat_id(p.ctx, experts, 2, ids, 0, a), *z = ggml_sqr(p.ctx, y);
    const struct ggml_backend_sched_fallback f = fallback_between(&p, a, z);
    CHECK_MSG(f.tensor == y && f.flops == 2.0 * 100 * 100 * 500 && f.is_heavy, "%g", f.flops);
    close_place(&p);
}

static void heavy_by_copies(void) {
    for (int k = 0; k < 2; k++) {
        OPEN(p, "SIM:name=A,noops=tanh CPU");
        const int64_t n = GGML_BACKEND_SCHED_HEAVY_BYTES / 8 - (k == 0);
        struct ggml_tensor *a = ggml_sqr(p.ctx, leaf(&p, "x", n, 1)), *z = ggml_sqr(p.ctx, ggml_tanh(p.ctx, a));
        OK(ggml_backend_sched_set_node_backend(p.sched, a, p.backends[0]));
        OK(ggml_backend_sched_set_node_backend(p.sched, z, p.backends[0]));
        expand(&p, z);
        OK(ggml_backend_sched_reserve(p.sched, p.graph));
        CHECK_INT(fallback_at(&p, 0).copied_bytes, 8 * n);
        CHECK_INT(fallback_at(&p, 0).is_heavy, k == 1);
        close_place(&p);
    }
}

// Reports use the plan: the graph may be freed.
static void outlives_the_graph(void) {
    OPEN(p, "SIM:name=A,noops=tanh CPU");
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 16, NULL, true });
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    struct ggml_tensor * a = ggml_sqr(ctx, ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 8));
    OK(ggml_build_forward_expand(graph, ggml_sqr(ctx, ggml_set_name(ggml_tanh(ctx, a), "here"))));
    OK(ggml_backend_sched_reserve(p.sched, graph));
    ggml_free(ctx);
    CHECK_INT(ggml_backend_sched_get_n_fallbacks(p.sched), 1);
    CHECK_STR(fallback_at(&p, 0).name, "here");
    close_place(&p);
}

// Reports use the new name of a renamed tensor.
static void renamed(void) {
    char name[GGML_MAX_NAME];
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = 0;
    OPEN(p, "SIM:name=A,noops=tanh CPU");
    struct ggml_tensor *x = leaf(&p, "x", 8, 1), *here = ggml_set_name(ggml_tanh(p.ctx, ggml_sqr(p.ctx, x)), "here");
    expand(&p, ggml_sqr(p.ctx, here));
    OK(ggml_backend_sched_reserve(p.sched, p.graph));
    CHECK_STR(fallback_at(&p, 0).name, "here");
    ggml_set_name(here, name);
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    CHECK_STR(fallback_at(&p, 0).name, name);
    ggml_set_name(here, "");
    ggml_set_name(x, "y");
    OK(ggml_backend_sched_reset(p.sched));
    OK(ggml_backend_sched_alloc_graph(p.sched, p.graph));
    CHECK_STR(fallback_at(&p, 0).name, here->name);
    close_place(&p);
}

TEST_MAIN(TEST(between_nodes_of_the_better_backend), TEST(not_where_it_belongs_there), TEST(one_backend_has_none),
    TEST(heavy_by_operations), TEST(experts_are_products), TEST(heavy_by_copies), TEST(outlives_the_graph),
    TEST(renamed))
