// test_ops_small.c - every operator with each size of 0 or 1 that its builder accepts: all planners
// and backends accept the node. builders.def has the calls.
#include "builders.h"
#include "ggml-backend.h"
#include "test.h"

static ggml_backend_t cpu, sim;

static void devices(void) {
    cpu = ggml_backend_cpu_init();
    sim = ggml_backend_reg_init_backend_from_str("SIM");
    REQUIRE(cpu != NULL && sim != NULL);
    ggml_backend_cpu_set_n_threads(cpu, 1);
}

struct change { // of one size of one input
    int in, d;
    int64_t ne;
};

// NULL: the builder refuses these sizes.
static struct ggml_cgraph * new_graph(struct ggml_context * ctx, const struct builder * b,
    const struct change * changes, int n) {
    struct ggml_tensor * x[MAX_IN];
    for (int i = 0; i < MAX_IN && b->in[i].used; i++) {
        int64_t ne[4];
        memcpy(ne, b->in[i].ne, sizeof(ne));
        for (int c = 0; c < n; c++) {
            if (changes[c].in == i || changes[c].in < 0) {
                ne[changes[c].d] = changes[c].ne;
            }
        }
        x[i] = ggml_new_tensor(ctx, b->in[i].type, 4, ne);
        if (x[i] == NULL) {
            return NULL; // blocks of a quantized type
        }
        if (x[i]->data != NULL) {
            memset(x[i]->data, 0, ggml_nbytes(x[i]));
        }
    }
    struct ggml_tensor * y = b->make(ctx, x);
    struct ggml_cgraph * graph = ggml_new_graph_custom(ctx, 64, false);
    return y != NULL && ggml_build_forward_expand(graph, y) == GGML_STATUS_SUCCESS ? graph : NULL;
}

static enum ggml_status run(ggml_backend_sched_t sched, struct ggml_cgraph * graph) {
    enum ggml_status status = ggml_backend_sched_plan_graph(sched, graph);
    if (status == GGML_STATUS_SUCCESS) {
        status = ggml_backend_sched_alloc_graph(sched, graph);
    }
    for (int i = 0; i < graph->n_leafs && status == GGML_STATUS_SUCCESS; i++) {
        static const int32_t zeros[1024];
        const size_t bytes = ggml_nbytes(graph->leafs[i]);
        if (graph->leafs[i]->type == GGML_TYPE_I32 && bytes <= sizeof(zeros)) {
            status = ggml_backend_tensor_set(graph->leafs[i], zeros, 0, bytes);
        }
    }
    return status == GGML_STATUS_SUCCESS ? ggml_backend_sched_graph_compute(sched, graph) : status;
}

// Succeeds, or fails as the values require: a tensor without rows has no row 0.
static bool use(struct ggml_cgraph * graph, bool has_data) {
    ggml_clear_error();
    bool ok = !has_data || ggml_backend_graph_compute(cpu, graph);
    if (ok) {
        ggml_backend_t list[2] = { sim, cpu };
        ggml_backend_sched_t sched = ggml_backend_sched_new(list, NULL, 2, 0);
        ok = run(sched, graph) == GGML_STATUS_SUCCESS;
        ggml_backend_sched_free(sched);
    }
    return ok || strstr(ggml_last_error(), "out of range 0..-1") != NULL;
}

static int n_tried;

static void try_one(const struct builder * b, const struct change * changes, int n) {
    for (int has_data = 0; has_data < 2; has_data++) {
        struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, !has_data });
        struct ggml_cgraph * graph = new_graph(ctx, b, changes, n);
        if (graph != NULL) {
            n_tried++;
            CHECK_MSG(use(graph, has_data != 0), "%s in[%d].ne[%d] = %d, in[%d].ne[%d] = %d: %s", b->name,
                changes[0].in, changes[0].d, (int) changes[0].ne, changes[n - 1].in, changes[n - 1].d,
                (int) changes[n - 1].ne, ggml_last_error());
        }
        ggml_free(ctx);
        ggml_clear_error();
    }
}

// Changes one size of one input (or, with -1, of all), then two.
static void one_size(void) {
    n_tried = 0;
    for (int k = 0; k < N_BUILDERS; k++) {
        for (int i = -1; i < MAX_IN && (i < 0 || builders[k].in[i].used); i++) {
            for (int what = 0; what < 8; what++) {
                try_one(&builders[k], &(struct change){ i, what % 4, what / 4 }, 1);
            }
        }
    }
    printf("%d graphs\n", n_tried);
    CHECK(n_tried > 1000);
}

static void two_sizes(void) {
    n_tried = 0;
    for (int k = 0; k < N_BUILDERS; k++) {
        const struct builder * b = &builders[k];
        for (int i = 0; i < MAX_IN && b->in[i].used; i++) {
            for (int j = i; j < MAX_IN && b->in[j].used; j++) {
                for (int what = 0; what < 64; what++) {
                    const struct change two[2] = { { i, what % 4, what / 16 % 2 }, { j, what / 4 % 4, what / 32 } };
                    if (i != j || two[0].d < two[1].d) {
                        try_one(b, two, 2);
                    }
                }
            }
        }
    }
    printf("%d graphs\n", n_tried);
    CHECK(n_tried > 1000);
}

TEST_MAIN(TEST(devices), TEST(one_size), TEST(two_sizes))
