// The number of dimensions is passed on: by builders and their hidden nodes, graph copies, files,
// the scheduler's copies.
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include "tensor/tensor.h"
#include "test.h"
#include "test_place.h"

#include <unistd.h>

enum { MAX_NODES = 64 };

// The reported dimensions include all elements. All other dimensions are 1.
static void check_ndim(const struct ggml_tensor * t, const char * what) {
    const int ndim = gb_tensor_ndim(t);
    int64_t product = 1;
    bool whole = ndim >= 0 && ndim <= GGML_MAX_DIMS;
    for (int d = 0; whole && d < GGML_MAX_DIMS; d++) {
        product *= d < ndim ? t->ne[d] : 1;
        whole = d < ndim || t->ne[d] == 1;
    }
    CHECK_MSG(whole && product == ggml_nelements(t), "%s: %s reports %d dimensions of [%lld, %lld, %lld, %lld]", what,
        t->name, ndim, (long long) t->ne[0], (long long) t->ne[1], (long long) t->ne[2], (long long) t->ne[3]);
}

// All shapes of sizes 0, 1 and 3, with any stored number of dimensions, none, or an invalid one.
static void never_more_than_there_is(void) {
    for (int shape = 0; shape < 81; shape++) {
        for (int ndim = -1; ndim <= 6; ndim++) {
            static const int64_t sizes[3] = { 0, 1, 3 };
            struct ggml_tensor t = { .ne = { sizes[shape % 3], sizes[shape / 3 % 3], sizes[shape / 9 % 3],
                                         sizes[shape / 27] } };
            gb_tensor_set_flag(&t, GB_TENSOR_INPUT);
            gb_tensor_set_flag(&t, GB_TENSOR_OUTPUT);
            gb_tensor_set_ndim(&t, ndim);
            check_ndim(&t, "any");
            CHECK(gb_tensor_has_flag(&t, GB_TENSOR_INPUT) && gb_tensor_has_flag(&t, GB_TENSOR_OUTPUT));
            const int need = t.ne[3] != 1 ? 4 : t.ne[2] != 1 ? 3 : t.ne[1] != 1 ? 2 : t.ne[0] != 1 ? 1 : 0;
            if (ndim >= need && ndim <= 4) {
                CHECK_INT(gb_tensor_ndim(&t), ndim);
            }
        }
    }
}

static void made_by_the_library(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, true });
    const int64_t ne[4] = { 8, 1, 1, 1 }, empty[4] = { 5, 3, 0, 1 };
    for (int n = 1; n <= 4; n++) {
        struct ggml_tensor * t = ggml_new_tensor(ctx, GGML_TYPE_F32, n, ne);
        CHECK_INT(gb_tensor_ndim(t), n);
        CHECK_INT(ggml_n_dims(t), 1); // its meaning in early 2024
        CHECK_INT(gb_tensor_ndim(ggml_dup_tensor(ctx, t)), n);
        CHECK_INT(gb_tensor_ndim(ggml_view_tensor(ctx, t)), n);
        CHECK_INT(gb_tensor_ndim(ggml_relu(ctx, t)), n);
        CHECK_INT(gb_tensor_ndim(ggml_scale_inplace(ctx, t, 2)), n);
        CHECK_INT(gb_tensor_ndim(ggml_cast(ctx, t, GGML_TYPE_F16)), n);
        CHECK_INT(gb_tensor_ndim(ggml_add(ctx, ggml_new_tensor(ctx, GGML_TYPE_F32, 1, ne), t)), n);
        CHECK_INT(gb_tensor_ndim(ggml_reshape(ctx, ggml_new_tensor(ctx, GGML_TYPE_F32, 1, ne), t)), n);
        CHECK_INT(ggml_set_param(ctx, t), GGML_STATUS_SUCCESS);
        CHECK_INT(gb_tensor_ndim(t->grad), n);
        CHECK_INT(gb_tensor_ndim(ggml_relu(ctx, t)->grad), n);
    }
    struct ggml_tensor * t = ggml_new_tensor(ctx, GGML_TYPE_F32, 3, empty);
    CHECK_INT(gb_tensor_ndim(ggml_relu(ctx, t)), 3);
    CHECK_INT(gb_tensor_ndim(ggml_reshape_1d(ctx, t, 0)), 1);
    CHECK_INT(gb_tensor_ndim(ggml_reshape_4d(ctx, t, 0, 7, 1, 1)), 4);
    CHECK_INT(gb_tensor_ndim(ggml_view_2d(ctx, t, 5, 0, 20, 0)), 2);
    CHECK_INT(gb_tensor_ndim(ggml_permute(ctx, t, 0, 2, 1, 3)), 3);
    CHECK_INT(gb_tensor_ndim(ggml_new_i32(ctx, 1)), 1);
    ggml_free(ctx);
}

// A graph with hidden nodes, trailing dimensions of 1 and sizes of 0, over (n, 1, 1, ...).
static struct ggml_cgraph * sample(struct ggml_context * ctx, int64_t n) {
    struct ggml_tensor * x = ggml_set_name(ggml_new_tensor_4d(ctx, GGML_TYPE_F32, 12, 10, 3, n), "x");
    struct ggml_tensor * kernel = ggml_set_name(ggml_new_tensor_4d(ctx, GGML_TYPE_F16, 3, 3, 3, 4), "kernel");
    struct ggml_tensor * row = ggml_set_name(ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 8, 1, 1), "row");
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, ggml_conv_2d(ctx, kernel, x, 1, 1, 0, 0, 1, 1));
    ggml_build_forward_expand(graph, ggml_relu(ctx, row));
    ggml_build_forward_expand(graph, ggml_relu(ctx, ggml_view_2d(ctx, row, 5, 1, row->nb[1], 4)));
    return graph;
}

static void check_same(const struct ggml_cgraph * a, const struct ggml_cgraph * b, const char * what) {
    CHECK(a->n_nodes == b->n_nodes && a->n_leafs == b->n_leafs);
    for (int i = 0; i < a->n_nodes; i++) {
        check_ndim(a->nodes[i], "sample");
        CHECK_MSG(gb_tensor_knows_ndim(b->nodes[i]) && gb_tensor_ndim(a->nodes[i]) == gb_tensor_ndim(b->nodes[i]),
            "%s: node %d", what, i);
    }
    for (int i = 0; i < a->n_leafs; i++) {
        CHECK_MSG(gb_tensor_knows_ndim(b->leafs[i]) && gb_tensor_ndim(a->leafs[i]) == gb_tensor_ndim(b->leafs[i]),
            "%s: leaf %d", what, i);
    }
}

static void copied(void) {
    for (int64_t n = 0; n < 3; n++) {
        OPEN(p, "CPU");
        struct ggml_cgraph * graph = sample(p.ctx, n);
        OK(ggml_backend_sched_alloc_graph(p.sched, graph));
        struct ggml_backend_graph_copy copy = ggml_backend_graph_copy(p.backends[0], graph);
        REQUIRE(copy.graph != NULL);
        check_same(graph, copy.graph, "copy");
        ggml_backend_graph_copy_free(copy);
        close_place(&p);
    }
}

static void filed(void) {
    char path[] = "/tmp/gb_ndim_XXXXXX";
    close(mkstemp(path));
    for (int64_t n = 0; n < 3; n++) {
        struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, false });
        struct ggml_cgraph * graph = sample(ctx, n);
        for (int i = 0; i < graph->n_leafs; i++) {
            memset(graph->leafs[i]->data, 0, ggml_nbytes(graph->leafs[i]));
        }
        struct ggml_context *data, *eval;
        OK(ggml_graph_export(graph, path));
        struct ggml_cgraph * read = ggml_graph_import(path, &data, &eval);
        REQUIRE(read != NULL);
        check_same(graph, read, "file");
        for (int i = 0; i < graph->n_nodes; i++) {
            CHECK_STR(read->nodes[i]->name, graph->nodes[i]->name);
        }
        ggml_free(data);
        ggml_free(eval);
        ggml_free(ctx);
    }
    unlink(path);
}

static int seen[16], n_seen;

static void look(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * userdata) {
    (void) nth, (void) userdata;
    if (ith == 0 && n_seen + 2 <= 16) {
        seen[n_seen++] = gb_tensor_ndim(dst);
        seen[n_seen++] = gb_tensor_ndim(a);
        check_ndim(dst, "custom");
        check_ndim(a, "custom");
    }
}

// A user's function gets the user's tensors, even if the scheduler copies them.
static void shown_to_functions(void) {
    static const int64_t shapes[][4] = { { 8, 1, 1, 1 }, { 512, 512, 0, 1 }, { 1, 1, 1, 1 }, { 0, 1, 1, 1 },
        { 5, 0, 1, 1 } };
    for (int i = 0; i < 5; i++) {
        for (int ndim = 1; ndim <= 4; ndim++) {
            for (int devices = 0; devices < 2; devices++) {
                OPEN(p, devices ? "SIM CPU" : "CPU");
                struct ggml_tensor * x = ggml_new_tensor(p.ctx, GGML_TYPE_F32, 4, shapes[i]);
                gb_tensor_set_ndim(x, ndim);
                const int expected = gb_tensor_ndim(x);
                expand(&p, ggml_map_custom1(p.ctx, ggml_relu(p.ctx, x), look, 1, NULL));
                n_seen = 0;
                OK(ggml_backend_sched_graph_compute(p.sched, p.graph));
                CHECK_INT(n_seen, 2);
                CHECK(seen[0] == expected && seen[1] == expected);
                close_place(&p);
            }
        }
    }
}

TEST_MAIN(TEST(never_more_than_there_is), TEST(made_by_the_library), TEST(copied), TEST(filed),
    TEST(shown_to_functions))
