// Damaged tensor structs: one field of one tensor of a valid graph, for every operator, passed to
// everything that plans, computes, copies or writes graphs. Errors and results are both fine. The
// test looks for crashes, endless loops and stray accesses, so run it under the sanitizers.
//
// GGML_TEST_DAMAGE_ALL=1 tries every damage of each tensor, GGML_TEST_DAMAGE_ONLY=NAME does so for
// one builder. GGML_TEST_DAMAGE=N also makes N random pairs of damages. GGML_TEST_DAMAGE_FORK=1
// runs each damage in its own process and lists the failures.
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "builders.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "tensor/tensor.h"
#include "test.h"

__attribute__((visibility("default"))) const char * __asan_default_options(void);
const char * __asan_default_options(void) {
    return "allocator_may_return_null=1"; // damaged sizes request any amount
}

// -------------------------------------------------------------------------------------------------------------- graphs

// Copies the sources first and scales the result, so that nodes come before and after.
static struct ggml_cgraph * new_graph(struct ggml_context * ctx, const struct builder * b) {
    struct ggml_tensor * x[MAX_IN];
    for (int n = 0; n < MAX_IN && b->in[n].used; n++) {
        struct ggml_tensor * leaf = ggml_new_tensor(ctx, b->in[n].type, 4, b->in[n].ne);
        if (leaf->data != NULL) {
            memset(leaf->data, 0, ggml_nbytes(leaf));
        }
        const bool copied = leaf->type == GGML_TYPE_F32;
        x[n] = copied ? ggml_dup(ctx, leaf) : leaf;
    }
    struct ggml_tensor * y = b->make(ctx, x);
    struct ggml_cgraph * graph = ggml_new_graph_custom(ctx, 64, false);
    if (y == NULL || ggml_build_forward_expand(graph,
                         y->type == GGML_TYPE_F32 ? ggml_scale(ctx, ggml_cont(ctx, y), 2) : y) != GGML_STATUS_SUCCESS) {
        return NULL;
    }
    return graph;
}

static int n_tensors(const struct ggml_cgraph * graph) { return graph->n_nodes + graph->n_leafs; }

static struct ggml_tensor * tensor_at(const struct ggml_cgraph * graph, int i) {
    return i < graph->n_nodes ? graph->nodes[i] : graph->leafs[i - graph->n_nodes];
}

// ------------------------------------------------------------------------------------------------------------- damages

enum {
    NE = 0,
    NE_VALUES = 11,
    NB = NE + 4 * NE_VALUES,
    NB_VALUES = 2,
    TYPE = NB + 4 * NB_VALUES,
    OP = TYPE + 8,
    VIEW = OP + 6,
    OFFS = VIEW + 4,
    SRC = OFFS + 4,
    DATA = SRC + 5 * 2,
    N_DAMAGES = DATA + 1
};

// False if the field cannot have this value, or has it already.
static bool set_field(struct ggml_tensor * t, const struct ggml_cgraph * graph, int what) {
    if (what < NB) {
        const int64_t old = t->ne[what % 4], values[NE_VALUES] = { -1, 0, 1, (int64_t) ((uint64_t) old + 1),
            (int64_t) (2 * (uint64_t) old), (int64_t) ((uint64_t) old - 1), INT64_MAX, INT64_MIN, INT64_C(1) << 32,
            1 << 20, INT64_C(1) << 62 };
        t->ne[what % 4] = values[what / 4];
        return t->ne[what % 4] != old;
    }
    if (what < TYPE) {
        const size_t old = t->nb[(what - NB) % 4], values[NB_VALUES] = { 0, SIZE_MAX };
        t->nb[(what - NB) % 4] = values[(what - NB) / 4];
        return t->nb[(what - NB) % 4] != old;
    }
    if (what < OP) {
        const int values[8] = { -1, GGML_TYPE_COUNT, 1000, INT32_MIN, 4, 5, GGML_TYPE_I8, GGML_TYPE_Q4_0 };
        t->type = (enum ggml_type) values[what - TYPE];
    } else if (what < VIEW) {
        const int values[6] = { -1, GGML_OP_COUNT, INT32_MAX, GGML_OP_NONE, GGML_OP_MUL_MAT, GGML_OP_FLASH_FF };
        t->op = (enum ggml_op) values[what - OP];
    } else if (what < OFFS) {
        struct ggml_tensor * const values[4] = { t, NULL, tensor_at(graph, 0), tensor_at(graph, graph->n_nodes - 1) };
        struct ggml_tensor * old = t->view_src;
        t->view_src = values[what - VIEW];
        // a view without a source has memory of unknown size
        return old != t->view_src && (old == NULL || t->view_src != NULL);
    } else if (what < SRC) {
        const size_t values[4] = { 16, SIZE_MAX, (size_t) 1 << 40, t->view_offs + 64 };
        t->view_offs = values[what - OFFS];
        return t->view_src != NULL;
    } else if (what < DATA) {
        const int i = (what - SRC) / 5;
        struct ggml_tensor * const values[5] = { t, NULL, tensor_at(graph, graph->n_nodes - 1), tensor_at(graph, 0),
            tensor_at(graph, graph->n_nodes) };
        t->src[i] = values[(what - SRC) % 5];
    } else {
        t->data = NULL;
    }
    return true;
}

// Also false for a valid tensor that became larger than its memory of the program. Only the program
// knows the size of that memory.
static bool damage(struct ggml_tensor * t, const struct ggml_cgraph * graph, int what) {
    const size_t before = ggml_nbytes(t);
    const bool tried = set_field(t, graph, what);
    const bool grown = tried && t->view_src == NULL && t->data != NULL &&
                       gb_tensor_check(t, __func__) == GGML_STATUS_SUCCESS && ggml_nbytes(t) > before;
    ggml_clear_error();
    return tried && !grown;
}

// ---------------------------------------------------------------------------------------------------------------- uses

static ggml_backend_t cpu, sim;

static bool ignore(int index, struct ggml_tensor * a, struct ggml_tensor * b, void * user_data) {
    (void) index, (void) a, (void) b, (void) user_data;
    return true;
}

static bool go_on(void * data) {
    (void) data;
    return false;
}

enum mode { GALLOCR, COMPUTE, SCHED, N_MODES }; // COMPUTE: the context holds all data

static void use(struct ggml_cgraph * graph, enum mode mode) {
    if (mode == COMPUTE) {
        struct ggml_cplan plan = ggml_graph_plan(graph, 1);
        if (plan.work_size < (size_t) 1 << 26) {
            plan.work_data = plan.work_size ? malloc(plan.work_size) : NULL;
            plan.abort_callback = go_on;
            ggml_graph_compute(graph, &plan);
            free(plan.work_data);
        }
        ggml_backend_graph_compute(cpu, graph);
        ggml_graph_export(graph, "/dev/null");
        struct ggml_backend_graph_copy copy = ggml_backend_graph_copy(cpu, graph);
        ggml_backend_graph_copy_free(copy);
        ggml_backend_compare_graph_backend(cpu, cpu, graph, ignore, NULL);
    } else if (mode == GALLOCR) {
        ggml_tallocr_t talloc = ggml_tallocr_new_from_backend(cpu, 1 << 20);
        ggml_gallocr_t galloc = ggml_gallocr_new();
        ggml_gallocr_alloc_graph(galloc, talloc, graph);
        ggml_gallocr_free(galloc);
        ggml_tallocr_free(talloc);
        return;
    }
    ggml_backend_t list[2] = { sim, cpu };
    ggml_backend_sched_t sched = ggml_backend_sched_new(list, NULL, 2, 0);
    if (ggml_backend_sched_graph_compute(sched, graph) == GGML_STATUS_SUCCESS) {
        ggml_backend_sched_graph_compute(sched, graph);
    }
    ggml_backend_sched_free(sched);
}

static const char * const modes[] = { "gallocr", "compute", "sched" };
static int n_tried;

// Makes a graph, damages it (twice if i2 >= 0) and uses it. False if it has no tensor i.
static bool try_one(const struct builder * b, enum mode mode, int i, int what, int i2, int what2) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 16, NULL, mode != COMPUTE });
    struct ggml_cgraph * graph = new_graph(ctx, b);
    bool tried = graph != NULL && i < n_tensors(graph) && damage(tensor_at(graph, i), graph, what);
    if (tried && i2 >= 0) {
        tried = damage(tensor_at(graph, i2 % n_tensors(graph)), graph, what2);
    }
    if (tried) {
        n_tried++;
        use(graph, mode);
    }
    const bool more = graph != NULL && i < n_tensors(graph);
    ggml_free(ctx);
    return more;
}

static bool forks(void) { return getenv("GGML_TEST_DAMAGE_FORK") != NULL; }

static bool run_one(const struct builder * b, enum mode mode, int i, int what, int i2, int what2) {
    if (!forks()) {
        return try_one(b, mode, i, what, i2, what2);
    }
    const pid_t child = fork();
    if (child == 0) {
        if (getenv("GGML_TEST_DAMAGE_SHOW") == NULL && freopen("/dev/null", "w", stderr) == NULL) {
            _exit(3);
        }
        alarm(20);
        _exit(try_one(b, mode, i, what, i2, what2) ? 0 : 42);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 42) {
        return false;
    }
    n_tried++;
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s %s: tensor %d damage %d (and %d, %d): status %#x",
        b->name, modes[mode], i, what, i2, what2, (unsigned) status);
    return true;
}

static void devices(void) {
    cpu = ggml_backend_cpu_init();
    // the device would fill gigabytes of damaged sizes
    sim = ggml_backend_reg_init_backend_from_str("SIM:mem=256M");
    REQUIRE(cpu != NULL && sim != NULL);
    ggml_backend_cpu_set_n_threads(cpu, 1);
}

static bool is_chosen(const char * name) {
    const char * only = getenv("GGML_TEST_DAMAGE_ONLY");
    return only == NULL || strcmp(only, name) == 0;
}

// Every eleventh damage of each tensor, from another one on for each tensor, or all on request.
// Eleven has no common factor with the 4 dimensions.
static void each_field(void) {
    const int step = getenv("GGML_TEST_DAMAGE_ALL") != NULL || getenv("GGML_TEST_DAMAGE_ONLY") != NULL ? 1 : 11;
    for (int k = 0; k < N_BUILDERS; k++) {
        if (!is_chosen(builders[k].name)) {
            continue;
        }
        for (int mode = 0; mode < N_MODES; mode++) {
            bool more = true;
            for (int i = 0; more; i++) {
                for (int what = (k + i) % step; what < N_DAMAGES && more; what += step) {
                    more = run_one(&builders[k], (enum mode) mode, i, what, -1, 0);
                }
            }
        }
    }
    printf("%d damaged graphs\n", n_tried);
    CHECK(n_tried > 400 || step == 1);
}

static void random_pairs(void) {
    const char * text = getenv("GGML_TEST_DAMAGE");
    if (text == NULL) {
        SKIP("GGML_TEST_DAMAGE is not set");
    }
    for (long n = atol(text); n > 0; n--) {
        const struct builder * b = &builders[test_random_int(0, N_BUILDERS - 1)];
        const enum mode mode = (enum mode) test_random_int(0, N_MODES - 1);
        const int i = (int) test_random_int(0, 5), i2 = (int) test_random_int(0, 5);
        const int what = (int) test_random_int(0, N_DAMAGES - 1), what2 = (int) test_random_int(0, N_DAMAGES - 1);
        run_one(b, mode, i, what, i2, what2);
    }
}

// INT64_MIN / -1 overflows. A query whether an operator is supported accepts any node.
static void least_size_by_minus_one(void) {
    for (int k = 0; k < N_BUILDERS; k++) {
        for (int i = 0; i < 2; i++) {
            struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 16, NULL, true });
            struct ggml_cgraph * graph = new_graph(ctx, &builders[k]);
            for (int n = 0; graph != NULL && n < graph->n_nodes; n++) {
                for (int d = 0; d < 4; d++) {
                    struct ggml_tensor * t = graph->nodes[n];
                    if (t->src[0] != NULL) {
                        t->src[0]->ne[d] = i == 0 ? INT64_MIN : -1;
                    }
                    if (t->src[1] != NULL) {
                        t->src[1]->ne[d] = i == 0 ? -1 : INT64_MIN;
                    }
                    t->ne[d] = INT64_MIN;
                    ggml_backend_supports_op(cpu, t);
                    ggml_backend_supports_op(sim, t);
                }
            }
            ggml_free(ctx);
        }
    }
}

// A query whether a node is supported reports a missing source.
static void missing_sources(void) {
    int n_asked = 0;
    for (int k = 0; k < N_BUILDERS; k++) {
        struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 16, NULL, true });
        struct ggml_cgraph * graph = new_graph(ctx, &builders[k]);
        for (int n = 0; graph != NULL && n < graph->n_nodes; n++) {
            struct ggml_tensor * t = graph->nodes[n];
            for (int i = 0; i < GGML_MAX_SRC; i++) {
                struct ggml_tensor * source = t->src[i];
                // required sources; the others are optional, such as masks, sinks
                // and factors
                const int needed = t->op == GGML_OP_SOFT_MAX || t->op == GGML_OP_GLU || t->op == GGML_OP_CPY ? 1
                                   : t->op == GGML_OP_ROPE || t->op == GGML_OP_ROPE_BACK                     ? 2
                                   : t->op == GGML_OP_FLASH_ATTN_EXT ? 3
                                                                     : GGML_MAX_SRC;
                if (source == NULL || !gb_op_computes(t->op) || i >= needed) {
                    continue;
                }
                t->src[i] = NULL;
                n_asked++;
                CHECK_STR(ggml_cpu_unsupported_reason(t), "a source is missing");
                CHECK(!ggml_backend_supports_op(cpu, t) && !ggml_backend_supports_op(sim, t));
                t->src[i] = source;
            }
        }
        ggml_free(ctx);
    }
    CHECK(n_asked > 200);
}

// A query names the source whose type is wrong, whatever its number.
static void types_of_sources(void) {
    static const enum ggml_type types[] = { GGML_TYPE_F16, GGML_TYPE_I8, GGML_TYPE_I32, GGML_TYPE_Q4_0,
        GGML_TYPE_Q4_K };
    int n_refused = 0, highest = -1;
    for (int k = 0; k < N_BUILDERS; k++) {
        struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 16, NULL, true });
        struct ggml_cgraph * graph = new_graph(ctx, &builders[k]);
        for (int n = 0; graph != NULL && n < graph->n_nodes; n++) {
            const struct ggml_tensor * t = graph->nodes[n];
            for (int i = 0; i < GGML_MAX_SRC && t->src[i] != NULL; i++) {
                for (size_t j = 0; j < sizeof(types) / sizeof(*types); j++) {
                    const enum ggml_type type = t->src[i]->type;
                    t->src[i]->type = types[j];
                    const char * why = ggml_cpu_unsupported_reason(t);
                    ggml_backend_supports_op(sim, t);
                    t->src[i]->type = type;
                    const char * at = why == NULL ? NULL : strstr(why, "source ");
                    n_refused += why != NULL && strlen(why) > 8;
                    if (at != NULL && at[7] >= '0' && at[7] <= '9') {
                        CHECK_MSG(t->src[at[7] - '0'] != NULL, "%s: %s", builders[k].name, why);
                        highest = GB_MAX(highest, at[7] - '0');
                    }
                }
            }
        }
        ggml_free(ctx);
    }
    CHECK(n_refused > 400);
    CHECK(highest >= 5); // SSM_SCAN has seven sources
}

// Builders and planners find longer cycles. Nodes computed in a given order never follow them.
static void a_node_that_reads_itself(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 16, NULL, false });
    struct ggml_tensor *x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4), *y = ggml_relu(ctx, x);
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    memset(x->data, 0, ggml_nbytes(x));
    CHECK(ggml_build_forward_expand(graph, y) == GGML_STATUS_SUCCESS && ggml_backend_graph_compute(cpu, graph));
    y->src[0] = y;
    CHECK(!ggml_backend_graph_compute(cpu, graph));
    CHECK(strstr(ggml_last_error(), "it is its own source") != NULL);
    ggml_backend_sched_t sched = ggml_backend_sched_new((ggml_backend_t[]){ sim, cpu }, NULL, 2, 0);
    CHECK(ggml_backend_sched_graph_compute(sched, graph) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(ggml_last_error(), "it is its own source") != NULL);
    ggml_backend_sched_free(sched);
    ggml_free(ctx);
}

TEST_MAIN(TEST(devices), TEST(a_node_that_reads_itself), TEST(missing_sources), TEST(types_of_sources),
    TEST(least_size_by_minus_one), TEST(each_field), TEST(random_pairs))
