// test_ops_large.c - every operator on views that repeat the same bytes (strides of 0), with sizes
// whose products and sums reach the largest int64_t. Builders, devices and schedulers may refuse
// them. The test looks for arithmetic that overflows, so run it under the sanitizers. builders.def
// has the calls.
#include "builders.h"
#include "ggml-backend.h"
#include "test.h"

static ggml_backend_t cpu, sim;

static void devices(void) {
    cpu = ggml_backend_cpu_init();
    sim = ggml_backend_reg_init_backend_from_str("SIM");
    REQUIRE(cpu != NULL && sim != NULL);
}

// Makes the input of a builder with other sizes. Changed sizes have stride 0.
static struct ggml_tensor * new_view(struct ggml_context * ctx, const struct input * in, const int64_t ne[4]) {
    struct ggml_tensor * t = ggml_new_tensor(ctx, in->type, 4, in->ne);
    size_t nb[3] = { t->nb[1], t->nb[2], t->nb[3] };
    for (int d = 1; d < 4; d++) {
        if (ne[d] != in->ne[d]) {
            nb[d - 1] = 0;
        }
    }
    return ggml_view_4d(ctx, t, ne[0], ne[1], ne[2], ne[3], nb[0], nb[1], nb[2], 0);
}

static int n_built;

static void try_one(const struct builder * b, int only, const int64_t to[4]) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 16, NULL, true });
    struct ggml_tensor * x[MAX_IN];
    bool all = true;
    for (int i = 0; i < MAX_IN && b->in[i].used; i++) {
        int64_t ne[4];
        for (int d = 0; d < 4; d++) {
            ne[d] = to[d] != 0 && (only < 0 || only == i) ? to[d] : b->in[i].ne[d];
        }
        x[i] = new_view(ctx, &b->in[i], ne);
        all = all && x[i] != NULL;
    }
    struct ggml_tensor * y = all ? b->make(ctx, x) : NULL;
    if (y != NULL) {
        n_built++;
        ggml_backend_supports_op(cpu, y);
        ggml_backend_supports_op(sim, y);
        ggml_backend_t list[2] = { sim, cpu };
        ggml_backend_sched_t sched = ggml_backend_sched_new(list, NULL, 2, 0);
        struct ggml_cgraph * graph = ggml_new_graph_custom(ctx, 64, false);
        if (ggml_build_forward_expand(graph, y) == GGML_STATUS_SUCCESS) {
            ggml_backend_sched_plan_graph(sched, graph);
        }
        ggml_backend_sched_free(sched);
    }
    ggml_free(ctx);
    ggml_clear_error();
}

// Changes one to three sizes of one input, or of all (-1).
static void each_size(void) {
    for (int k = 0; k < N_BUILDERS; k++) {
        for (int only = -1; only < MAX_IN && (only < 0 || builders[k].in[only].used); only++) {
            for (int dims = 2; dims < 16; dims += 2) { // not dimension 0, because elements of a row cannot repeat
                for (int bits = 24; bits < 64; bits++) {
                    int64_t to[4] = { 0 };
                    for (int d = 1; d < 4; d++) {
                        to[d] = (dims >> d & 1) == 0 ? 0 : bits == 63 ? INT64_MAX : INT64_C(1) << bits;
                    }
                    try_one(&builders[k], only, to);
                }
            }
        }
    }
    printf("%d nodes\n", n_built);
    CHECK(n_built > 10000);
}

TEST_MAIN(TEST(devices), TEST(each_size))
