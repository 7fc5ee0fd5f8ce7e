// test_index.cpp - an index out of range gives the CPU's error once, at the next wait. The device works on.
#include <cmath>
#include <functional>

#include "device_graph.h"

struct lookup { // rows of `table`, or products with experts, by `ids`
    ggml_context * ctx;
    ggml_tensor *ids, *y;
    ggml_cgraph * graph;
    ggml_backend_buffer_t buffer;
};

enum { N_IDS = 12, LIMIT = 7, WIDTH = 64 };
enum kind {
    ROWS,
    QUANTIZED_ROWS,
    WRITTEN_ROWS,
    QUANTIZED_WRITTEN_ROWS,
    BIASES,
    STATES,
    STACK_FEW,
    STACK_MANY,
    FEW_TOKENS,
    MANY_TOKENS,
    N_KINDS
};

// The operator, and how its messages say where the index stands.
static const struct {
    const char *op, *place;
} words[N_KINDS] = {
    { "GET_ROWS", "index %d at [%d] is" },
    { "GET_ROWS", "index %d at [%d] is" },
    { "SET_ROWS", "index %d at [%d] is" },
    { "SET_ROWS", "index %d at [%d] is" },
    { "ADD_ID", "index %d at [0, %d] is" },
    { "SSM_SCAN", "index %d at [%d] of ids is" },
    { "MUL_MAT_EXPERTS", "expert %d at [0, %d] of ids is" },
    { "MUL_MAT_EXPERTS", "expert %d at [0, %d] of ids is" },
    { "MUL_MAT_ID", NULL },
    { "MUL_MAT_ID", NULL },
};

static ggml_tensor * f32(ggml_context * ctx, int64_t a, int64_t b = 1, int64_t c = 1, int64_t d = 1) {
    return ggml_new_tensor_4d(ctx, GGML_TYPE_F32, a, b, c, d);
}

static ggml_tensor * by_expert(ggml_context * ctx, ggml_tensor * ids, int64_t n) {
    ggml_tensor * experts[LIMIT];
    for (ggml_tensor *& e : experts) {
        e = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, WIDTH, 40);
    }
    return ggml_mul_mat_id(ctx, experts, LIMIT, ggml_reshape_2d(ctx, ids, 1, n), 0, f32(ctx, WIDTH, n));
}

static ggml_tensor * look_up(ggml_context * ctx, kind k, ggml_tensor * ids, int64_t n) {
    const bool quantized = k == QUANTIZED_ROWS || k == QUANTIZED_WRITTEN_ROWS;
    ggml_tensor * table = ggml_new_tensor_2d(ctx, quantized ? GGML_TYPE_Q8_0 : GGML_TYPE_F32, WIDTH, LIMIT);
    ggml_tensor * of_tokens = ggml_reshape_2d(ctx, ids, 1, n);
    switch (k) {
        case ROWS:
        case QUANTIZED_ROWS: return ggml_get_rows(ctx, table, ids);
        case WRITTEN_ROWS:
        case QUANTIZED_WRITTEN_ROWS: return ggml_set_rows(ctx, table, f32(ctx, WIDTH, n), ids);
        case BIASES: return ggml_add_id(ctx, f32(ctx, WIDTH, 1, n), table, of_tokens);
        case STATES:
            return ggml_ssm_scan(ctx, f32(ctx, WIDTH, 2, 3, LIMIT), f32(ctx, 2, 3, 4, n), f32(ctx, 3, 4, n),
                f32(ctx, 1, 3), f32(ctx, WIDTH, 1, 4, n), f32(ctx, WIDTH, 1, 4, n), ids, 1);
        case STACK_FEW:
        case STACK_MANY:
            return ggml_mul_mat_experts(ctx, ggml_new_tensor_3d(ctx, GGML_TYPE_F16, WIDTH, 40, LIMIT),
                f32(ctx, WIDTH, 1, n), of_tokens);
        default: return by_expert(ctx, ids, n);
    }
}

// Bytes from the beginning of the result to a value that depends on the fifth index; -1: none, the row is not written.
static int64_t place_of_fifth(const lookup & l, kind k) {
    return k == WRITTEN_ROWS || k == QUANTIZED_WRITTEN_ROWS   ? -1
           : k == STATES                                      ? (int64_t) (4 * (2 * 3 * 4) * sizeof(float))
           : k == BIASES || k == STACK_FEW || k == STACK_MANY ? (int64_t) l.y->nb[2] * 4
                                                              : (int64_t) l.y->nb[1] * 4;
}

static lookup build(ggml_backend_t backend, kind k) {
    lookup l;
    l.ctx = ggml_init({ 1 << 18, NULL, true });
    const int64_t n = k == MANY_TOKENS || k == STACK_MANY ? N_IDS : 5;
    l.ids = ggml_new_tensor_1d(l.ctx, GGML_TYPE_I32, n);
    l.y = look_up(l.ctx, k, l.ids, n);
    ggml_set_name(l.y, "the lookup");
    // nodes after the lookup read floats
    ggml_tensor * floats = k == QUANTIZED_WRITTEN_ROWS ? ggml_cpy(l.ctx, l.y, f32(l.ctx, WIDTH, LIMIT)) : l.y;
    ggml_tensor * end = ggml_sqr(l.ctx, ggml_neg(l.ctx, floats)); // enough nodes to be recorded
    l.graph = ggml_new_graph(l.ctx);
    ggml_build_forward_expand(l.graph, end);
    l.buffer = ggml_backend_alloc_ctx_tensors(l.ctx, backend);
    ggml_backend_buffer_clear(l.buffer, 0);
    return l;
}

static void release(lookup & l) {
    ggml_backend_buffer_free(l.buffer);
    ggml_free(l.ctx);
}

static void set_ids(const lookup & l, int64_t at, int32_t id) { // all others are in range
    std::vector<int32_t> v((size_t) ggml_nelements(l.ids));
    for (size_t i = 0; i < v.size(); i++) {
        v[i] = (int64_t) i == at ? id : (int32_t) (i % LIMIT);
    }
    CHECK_INT(ggml_backend_tensor_set(l.ids, v.data(), 0, ggml_nbytes(l.ids)), GGML_STATUS_SUCCESS);
}

static enum ggml_status run(ggml_backend_t cuda, const lookup & l) {
    CHECK(ggml_backend_graph_compute(cuda, l.graph));
    return ggml_backend_synchronize(cuda);
}

// The message describes the node and has the numbers.
static void check_message(kind k, int64_t at, int32_t id) {
    char number[24], place[64], limit[24];
    snprintf(number, sizeof(number), "%d", id);
    if (words[k].place != NULL) {
        snprintf(place, sizeof(place), words[k].place, (int) id, (int) at);
    } else {
        snprintf(place, sizeof(place), "row %d", (int) at);
    }
    snprintf(limit, sizeof(limit), "%d", LIMIT - 1);
    const char * node = k == QUANTIZED_WRITTEN_ROWS ? "'the lookup' q8_0 [" : "'the lookup' f32 [";
    for (const char * part : { node, words[k].op, (const char *) number, (const char *) place, (const char *) limit }) {
        CHECK_MSG(strstr(ggml_last_error(), part) != NULL, "'%s' is not in '%s'", part, ggml_last_error());
    }
    CHECK(ggml_last_status() == GGML_STATUS_INVALID_ARGUMENT);
    ggml_clear_error();
}

static void each_kind(const std::function<void(ggml_backend_t, kind, const lookup &)> & check) {
    ggml_backend_t cuda = cuda_open(0);
    for (int k = 0; k < N_KINDS; k++) {
        lookup l = build(cuda, (kind) k);
        check(cuda, (kind) k, l);
        release(l);
    }
    ggml_backend_free(cuda);
}

static void waiting_reports_it_once(void) {
    CUDA_OR_SKIP();
    each_kind([](ggml_backend_t cuda, kind k, const lookup & l) {
        for (int i = 0; i < 8; i++) { // launched, recorded, replayed, wrong and correct
            const int32_t id = i % 2 ? 3 : i % 4 == 0 ? LIMIT : -2;
            set_ids(l, 4, id);
            CHECK_INT(run(cuda, l), i % 2 ? GGML_STATUS_SUCCESS : GGML_STATUS_INVALID_ARGUMENT);
            if (i % 2 == 0) {
                check_message(k, 4, id);
            }
            CHECK_INT(ggml_backend_synchronize(cuda), GGML_STATUS_SUCCESS); // reported already
        }
    });
}

static void messages_of_the_cpu_have_the_same_parts(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cpu = ggml_backend_cpu_init();
    for (int k = 0; k < N_KINDS; k++) {
        lookup l = build(cpu, (kind) k);
        set_ids(l, 4, LIMIT + 90);
        CHECK(!ggml_backend_graph_compute(cpu, l.graph));
        check_message((kind) k, 4, LIMIT + 90);
        release(l);
    }
    ggml_backend_free(cpu);
}

static void reading_the_result_reports_it(void) {
    CUDA_OR_SKIP();
    each_kind([](ggml_backend_t cuda, kind k, const lookup & l) {
        float one = 0;
        set_ids(l, 4, 1000000);
        CHECK(ggml_backend_graph_compute(cuda, l.graph));
        CHECK_INT(ggml_backend_tensor_get(l.y, &one, 0, sizeof(one)), GGML_STATUS_INVALID_ARGUMENT);
        check_message(k, 4, 1000000);
        const int64_t fifth = place_of_fifth(l, k);
        CHECK_INT(ggml_backend_tensor_get(l.y, &one, fifth >= 0 ? (size_t) fifth : 0, sizeof(one)),
            GGML_STATUS_SUCCESS); // reports once
        CHECK(std::isnan(one) == (fifth >= 0));
        set_ids(l, 4, 0);
        CHECK_INT(run(cuda, l), GGML_STATUS_SUCCESS);
    });
}

// A recorded graph has the name as a parameter: the same graph with another name does not reuse it.
static void a_replayed_graph_reports_the_new_name(void) {
    CUDA_OR_SKIP();
    each_kind([](ggml_backend_t cuda, kind k, const lookup & l) {
        struct ggml_backend_cuda_graph_stats before = {}, after = {};
        CHECK_INT(ggml_backend_cuda_get_graph_stats(cuda, &before), GGML_STATUS_SUCCESS);
        ggml_set_name(l.y, "old");
        set_ids(l, 4, 0);
        for (int i = 0; i < 3; i++) { // launched, recorded, replayed
            CHECK_INT(run(cuda, l), GGML_STATUS_SUCCESS);
        }
        CHECK_INT(ggml_backend_cuda_get_graph_stats(cuda, &after), GGML_STATUS_SUCCESS);
        CHECK(!cuda_replays() || after.n_replayed > before.n_replayed);
        ggml_set_name(l.y, "the lookup");
        set_ids(l, 4, LIMIT);
        CHECK_INT(run(cuda, l), GGML_STATUS_INVALID_ARGUMENT);
        check_message(k, 4, LIMIT);
    });
}

// Other memory and other backends report nothing.
static void other_memory_reports_nothing(void) {
    CUDA_OR_SKIP();
    each_kind([](ggml_backend_t cuda, kind k, const lookup & l) {
        ggml_backend_t other = cuda_open(0);
        lookup mine = build(other, k);
        float one = 0;
        set_ids(mine, 0, 0);
        set_ids(l, 2, -1);
        CHECK(ggml_backend_graph_compute(cuda, l.graph));
        CHECK_INT(run(other, mine), GGML_STATUS_SUCCESS);
        CHECK_INT(ggml_backend_tensor_get(mine.y, &one, 0, sizeof(one)), GGML_STATUS_SUCCESS);
        CHECK_INT(ggml_backend_synchronize(cuda), GGML_STATUS_INVALID_ARGUMENT);
        check_message(k, 2, -1);
        release(mine);
        ggml_backend_free(other);
    });
}

// Without a wait, the next graph reports it.
static void the_next_graph_reports_it(void) {
    CUDA_OR_SKIP();
    each_kind([](ggml_backend_t cuda, kind k, const lookup & l) {
        ggml_backend_t other = cuda_open(0);
        lookup away = build(other, k);
        float one = 0;
        set_ids(l, 1, LIMIT);
        CHECK(ggml_backend_graph_compute(cuda, l.graph));
        CHECK_INT(ggml_backend_tensor_get(away.y, &one, 0, sizeof(one)), GGML_STATUS_SUCCESS); // waits for the device
        CHECK(!ggml_backend_graph_compute(cuda, l.graph));
        check_message(k, 1, LIMIT);
        set_ids(l, 1, 0);
        CHECK_INT(run(cuda, l), GGML_STATUS_SUCCESS);
        release(away);
        ggml_backend_free(other);
    });
}

// A scheduler over a device and the CPU, whose node reads the wrong row.
static void the_scheduler_reports_it(void) {
    CUDA_OR_SKIP();
    ggml_backend_t backends[2] = { cuda_open(0), ggml_backend_cpu_init() };
    ggml_backend_sched_t sched = ggml_backend_sched_new(backends, NULL, 2, 64);
    ggml_context * ctx = ggml_init({ 1 << 18, NULL, true });
    ggml_tensor *table = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, LIMIT),
                *ids = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 3);
    ggml_tensor *rows = ggml_get_rows(ctx, table, ids), *end = ggml_neg(ctx, rows);
    ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_set_input(table);
    ggml_set_input(ids);
    ggml_set_name(rows, "the lookup");
    ggml_build_forward_expand(graph, end);
    ggml_backend_sched_set_node_backend(sched, rows, backends[0]);
    ggml_backend_sched_set_node_backend(sched, end, backends[1]);
    const std::vector<float> zeros(64 * LIMIT, 0.0f);
    for (int i = 0; i < 4; i++) {
        const int32_t id[3] = { 1, i % 2 == 0 ? LIMIT : 2, 0 };
        CHECK_INT(ggml_backend_sched_alloc_graph(sched, graph), GGML_STATUS_SUCCESS);
        ggml_backend_tensor_set(table, zeros.data(), 0, ggml_nbytes(table));
        ggml_backend_tensor_set(ids, id, 0, sizeof(id));
        const enum ggml_status status = ggml_backend_sched_graph_compute(sched, graph);
        CHECK_INT(status, i % 2 == 0 ? GGML_STATUS_INVALID_ARGUMENT : GGML_STATUS_SUCCESS);
        if (i % 2 == 0) {
            check_message(ROWS, 1, LIMIT);
        }
    }
    ggml_backend_sched_free(sched);
    ggml_free(ctx);
    ggml_backend_free(backends[0]);
    ggml_backend_free(backends[1]);
}

TEST_MAIN(TEST(the_scheduler_reports_it), TEST(waiting_reports_it_once), TEST(messages_of_the_cpu_have_the_same_parts),
    TEST(reading_the_result_reports_it), TEST(other_memory_reports_nothing), TEST(the_next_graph_reports_it),
    TEST(a_replayed_graph_reports_the_new_name))
