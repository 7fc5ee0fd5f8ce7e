// Program files: their graphs compute what the test computes by hand, share weights and states, and
// damaged files are refused or harmless.
#define _POSIX_C_SOURCE 200809L // mkstemp

#include "base/mem.h"
#include "ggml-backend-impl.h"
#include "ggml-program.h"
#include "gguf/gguf_impl.h"
#include "tensor/nodes.h"
#include "test_damage.h"

enum { N_IN = 4, N_OUT = 3, N_GRAPHS = 2 };

static const float W[N_OUT][N_IN] = { { 1, 2, -1, 0.5f }, { -3, 0, 2, 1 }, { 0.25f, -1, 4, -2 } };
static const float B[N_OUT] = { 0.5f, -1, 2 }, S[N_OUT] = { 10, 20, 30 };

static uint8_t whole[20000], damaged[20000];

// ---------------------------------------------------------------------------------------------------------- the writer

// One graph: y = relu(w x + b) for `n` rows, and a state s that grows by the first row of w x in each
// run, whose value is the result `total`.
struct pieces {
    struct ggml_context * ctx;
    struct ggml_tensor *w, *b, *s, *x;
    struct ggml_cgraph * graph;
    struct ggml_tensor * message;
    int n;
};

static enum ggml_status find(void * context, const struct ggml_tensor * t, struct gb_nodes_place * place) {
    const struct pieces * p = context;
    const struct ggml_tensor * leafs[] = { p->w, p->b, p->s, p->x };
    for (size_t i = 0; i < GB_ARRAY_LEN(leafs); i++) {
        if (t == leafs[i]) {
            place->memory = i + 1;
        }
    }
    return GGML_STATUS_SUCCESS;
}

static struct ggml_tensor * leaf(struct ggml_context * ctx, const char * name, int64_t ne0, int64_t ne1,
    const float * data) {
    struct ggml_tensor * t = ggml_set_name(ne1 == 0 ? ggml_new_tensor_1d(ctx, GGML_TYPE_F32, ne0)
                                                    : ggml_new_tensor_2d(ctx, GGML_TYPE_F32, ne0, ne1),
        name);
    memcpy(t->data, data, ggml_nbytes(t));
    return t;
}

static struct pieces make_graph(struct ggml_context * ctx, struct pieces shared, int i) {
    static const float zeros[64] = { 0 };
    struct pieces p = shared;
    p.n = i + 1;
    p.x = leaf(ctx, "x", N_IN, p.n, zeros);
    struct ggml_tensor * product = ggml_mul_mat(ctx, p.w, p.x);
    struct ggml_tensor * y = ggml_relu(ctx, ggml_add(ctx, product, p.b));
    struct ggml_tensor * sum = ggml_add_inplace(ctx, p.s, ggml_view_1d(ctx, product, N_OUT, 0));
    struct ggml_tensor * total = ggml_cont(ctx, sum);
    p.graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(p.graph, y);
    ggml_build_forward_expand(p.graph, total);
    gb_nodes_bytes bytes = { 0 };
    CHECK_INT(gb_nodes_write(p.graph->nodes, p.graph->n_nodes, true, find, &p, &bytes), GGML_STATUS_SUCCESS);
    char name[32];
    snprintf(name, sizeof(name), "program.graph.%d", i);
    p.message = ggml_set_name(ggml_new_tensor_1d(ctx, GGML_TYPE_I8, (int64_t) bytes.n), name);
    memcpy(p.message->data, bytes.data, bytes.n);
    gb_vec_free(&bytes);
    return p;
}

static int32_t index_in(const struct ggml_cgraph * g, enum ggml_op op) {
    for (int i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i]->op == op) {
            return i;
        }
    }
    return -1;
}

static const char * tensor_names[] = { "w", "b", "s" };

static void set_keys(struct gguf_context * file, const struct pieces * p, int i) {
    const char *inputs[] = { "x" }, *outputs[] = { "y", "total" }, *axes[] = { "rows" };
    const int32_t nodes[] = { index_in(p->graph, GGML_OP_UNARY), p->graph->n_nodes - 1 };
    const int64_t sizes[] = { p->n };
    char key[64];
#define KEY(property) (snprintf(key, sizeof(key), "program.graph.%d." property, i), key)
    gguf_set_arr_str(file, KEY("tensors"), tensor_names, 3);
    gguf_set_arr_str(file, KEY("inputs"), inputs, 1);
    gguf_set_arr_str(file, KEY("outputs"), outputs, 2);
    gguf_set_arr_data(file, KEY("output_nodes"), GGUF_TYPE_INT32, nodes, 2);
    gguf_set_arr_str(file, KEY("axes"), axes, 1);
    gguf_set_arr_data(file, KEY("sizes"), GGUF_TYPE_INT64, sizes, 1);
}

typedef void (*edit)(struct gguf_context * file, struct pieces * p);

// Writes a file of two graphs. `change` changes what is written.
static void write_file(edit change) {
    new_path();
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, false });
    struct gguf_context * file = gguf_init_empty();
    const struct pieces shared = { .ctx = ctx,
        .w = leaf(ctx, "w", N_IN, N_OUT, &W[0][0]),
        .b = leaf(ctx, "b", N_OUT, 0, B),
        .s = leaf(ctx, "s", N_OUT, 0, S) };
    struct pieces graphs[N_GRAPHS];
    gguf_set_val_u32(file, "program.version", 1);
    gguf_set_val_u32(file, "program.graphs", N_GRAPHS);
    gguf_add_tensor(file, shared.w);
    gguf_add_tensor(file, shared.b);
    gguf_add_tensor(file, shared.s);
    for (int i = 0; i < N_GRAPHS; i++) {
        graphs[i] = make_graph(ctx, shared, i);
        set_keys(file, &graphs[i], i);
    }
    if (change != NULL) {
        change(file, &graphs[0]);
    }
    for (int i = 0; i < N_GRAPHS; i++) {
        if (graphs[i].message != NULL) {
            gguf_add_tensor(file, graphs[i].message);
        }
    }
    CHECK_INT(gguf_write_to_file(file, path, false), GGML_STATUS_SUCCESS);
    gguf_free(file);
    ggml_free(ctx);
}

// --------------------------------------------------------------------------------------------------------- the results

// Runs graph i with x = 1, 2, ... Checks y, and that the state is `start` plus `runs` times the first
// row.
static void check_run(ggml_program_t program, ggml_backend_sched_t sched, int i, int runs) {
    float x[2 * N_IN], y[2 * N_OUT], total[N_OUT];
    const int n = i + 1;
    struct ggml_cgraph * graph = ggml_program_graph(program, i);
    REQUIRE(graph != NULL && ggml_backend_sched_alloc_graph(sched, graph) == GGML_STATUS_SUCCESS);
    for (int k = 0; k < n * N_IN; k++) {
        x[k] = (float) (k + 1);
    }
    ggml_backend_tensor_set(ggml_program_input(program, i, "x"), x, 0, (size_t) n * N_IN * sizeof(float));
    REQUIRE(ggml_backend_sched_graph_compute(sched, graph) == GGML_STATUS_SUCCESS);
    ggml_backend_tensor_get(ggml_program_output(program, i, "y"), y, 0, (size_t) n * N_OUT * sizeof(float));
    ggml_backend_tensor_get(ggml_program_output(program, i, "total"), total, 0, sizeof(total));
    for (int row = 0; row < n; row++) {
        for (int r = 0; r < N_OUT; r++) {
            float sum = 0;
            for (int k = 0; k < N_IN; k++) {
                sum += W[r][k] * x[row * N_IN + k];
            }
            CHECK(y[row * N_OUT + r] == fmaxf(sum + B[r], 0));
            CHECK_MSG(row > 0 || total[r] == S[r] + (float) runs * sum, "state %d is %g", r, (double) total[r]);
        }
    }
}

static void graphs_compute_with_shared_weights_and_states(void) {
    const int64_t before = gb_test_live_allocs();
    write_file(NULL);
    ggml_backend_t cpu = ggml_backend_cpu_init();
    ggml_program_t program = ggml_program_load(path, NULL);
    REQUIRE(program != NULL);
    unlink(path);
    ggml_backend_sched_t sched = ggml_backend_sched_new(&cpu, NULL, 1, 64);
    CHECK_INT(ggml_program_n_graphs(program), N_GRAPHS);
    check_run(program, sched, 0, 1);
    check_run(program, sched, 1, 2); // the state of both graphs is one
    check_run(program, sched, 0, 3);
    const struct ggml_tensor *a = ggml_graph_get_tensor(ggml_program_graph(program, 0), "w"),
                             *b = ggml_graph_get_tensor(ggml_program_graph(program, 1), "w");
    CHECK(a != NULL && b != NULL && a != b && a->data == b->data && a->buffer == b->buffer);
    ggml_backend_sched_free(sched);
    ggml_program_free(program);
    ggml_backend_free(cpu);
    CHECK_INT(gb_test_live_allocs(), before);
}

// The weights of a device are a copy in its memory.
static void weights_of_a_device_are_in_its_memory(void) {
    write_file(NULL);
    ggml_backend_t devices[] = { ggml_backend_reg_init_backend_from_str("SIM"), ggml_backend_cpu_init() };
    ggml_program_t program = ggml_program_load(path, devices[0]);
    REQUIRE(program != NULL);
    unlink(path);
    ggml_backend_sched_t sched = ggml_backend_sched_new(devices, NULL, 2, 64);
    const struct ggml_tensor * w = ggml_graph_get_tensor(ggml_program_graph(program, 0), "w");
    CHECK(w != NULL && !ggml_backend_buffer_is_host(w->buffer));
    check_run(program, sched, 0, 1);
    check_run(program, sched, 1, 2);
    ggml_backend_sched_free(sched);
    ggml_program_free(program);
    ggml_backend_free(devices[0]);
    ggml_backend_free(devices[1]);
}

static void names_and_sizes(void) {
    write_file(NULL);
    ggml_program_t p = ggml_program_load(path, NULL);
    REQUIRE(p != NULL);
    unlink(path);
    CHECK(ggml_program_n_inputs(p, 0) == 1 && ggml_program_n_outputs(p, 1) == 2);
    CHECK_STR(ggml_program_input_name(p, 0, 0), "x");
    CHECK_STR(ggml_program_output_name(p, 1, 1), "total");
    CHECK_INT(ggml_program_size(p, 0, "rows"), 1);
    CHECK_INT(ggml_program_size(p, 1, "rows"), 2);
    const char * axes[] = { "rows", NULL };
    const int64_t sizes[] = { 2, 1 };
    CHECK_INT(ggml_program_find(p, axes, sizes, 1), 1);
    CHECK_INT(ggml_program_find(p, NULL, NULL, 0), 0);
    const int64_t other[] = { 7 }, negative[] = { -1 };
    CHECK_INT(ggml_program_find(p, axes, other, 1), -1);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "no graph has rows 7 (graph 0: rows 1; graph 1: rows 2)");
    const char * unknown[] = { "columns" };
    CHECK_INT(ggml_program_find(p, unknown, negative, 1), -1);
    CHECK_INT(ggml_program_find(p, axes, sizes, 2), -1);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "axes[k]");
    CHECK_INT(ggml_program_find(p, axes, sizes, -1), -1);
    CHECK_INT(ggml_program_size(p, 0, "columns"), -1);
    CHECK(ggml_program_input(p, 0, "y") == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "there is no 'y' (there are: x)");
    CHECK(ggml_program_output(p, 0, NULL) == NULL && ggml_program_input(p, 2, "x") == NULL);
    CHECK(ggml_program_graph(p, -1) == NULL && ggml_program_graph(p, 2) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'graph' is 2, there are 2 graphs");
    CHECK(ggml_program_input_name(p, 0, 1) == NULL && ggml_program_output_name(p, 0, -1) == NULL);
    ggml_program_free(p);
    ggml_clear_error();
    CHECK(ggml_program_load(NULL, NULL) == NULL && ggml_program_n_graphs(NULL) == 0);
    CHECK(ggml_program_graph(NULL, 0) == NULL && ggml_program_size(NULL, 0, "rows") == -1);
    CHECK(ggml_program_find(NULL, axes, sizes, 1) == -1 && ggml_program_n_inputs(NULL, 0) == 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "NULL");
    ggml_program_free(NULL);
}

// -------------------------------------------------------------------------------------------------------------- damage

// True if the file is refused. Otherwise computes its graphs, which must not crash.
static bool is_refused(void) {
    ggml_program_t p = ggml_program_load(path, NULL);
    if (p == NULL) {
        CHECK(ggml_last_status() != GGML_STATUS_SUCCESS && ggml_last_error()[0] != '\0');
        ggml_clear_error();
        return true;
    }
    ggml_backend_t cpu = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(cpu, 1);
    for (int i = 0; i < ggml_program_n_graphs(p); i++) {
        struct ggml_cgraph * graph = ggml_program_graph(p, i);
        size_t size = 0;
        for (int k = 0; k < graph->n_nodes; k++) {
            size = GB_MAX(size, ggml_nbytes(graph->nodes[k]));
        }
        ggml_backend_sched_t sched = ggml_backend_sched_new(&cpu, NULL, 1, 64);
        if (size < 1 << 20 && ggml_backend_sched_alloc_graph(sched, graph) == GGML_STATUS_SUCCESS) {
            for (int k = 0; k < graph->n_leafs; k++) {
                if (ggml_is_input(graph->leafs[k]) && graph->leafs[k]->data != NULL) {
                    memset(graph->leafs[k]->data, 0, ggml_nbytes(graph->leafs[k]));
                }
            }
            ggml_backend_sched_graph_compute(sched, graph); // may fail
        }
        ggml_backend_sched_free(sched);
    }
    ggml_program_free(p);
    ggml_backend_free(cpu);
    ggml_clear_error();
    return false;
}

static void truncated_at_every_byte(void) {
    const int64_t before = gb_test_live_allocs();
    write_file(NULL);
    const size_t size = read_bytes(whole, sizeof(whole));
    REQUIRE(size > 3000 && size < sizeof(whole));
    for (size_t n = 0; n + 32 < size; n++) { // the last bytes may be padding
        write_bytes(whole, n);
        CHECK_MSG(is_refused(), "cut at byte %zu of %zu", n, size);
    }
    write_bytes(whole, size);
    CHECK(!is_refused());
    unlink(path);
    CHECK(is_refused()); // does not exist
    CHECK_INT(gb_test_live_allocs(), before);
}

static void random_damage(void) {
    const int64_t before = gb_test_live_allocs();
    write_file(NULL);
    const size_t size = read_bytes(whole, sizeof(whole));
    int refused = 0;
    for (int round = 0; round < 3000; round++) {
        memcpy(damaged, whole, size);
        for (int64_t n = test_random_int(1, 4); n > 0; n--) {
            const size_t at = (size_t) test_random_int(0, (int64_t) size - 1);
            damaged[at] = test_random_int(0, 1) ? (uint8_t) test_random()
                                                : (uint8_t) (damaged[at] ^ (1u << test_random_int(0, 7)));
        }
        write_bytes(damaged, size);
        refused += is_refused();
    }
    unlink(path);
    CHECK_MSG(refused > 300 && refused < 3000, "%d", refused);
    CHECK_INT(gb_test_live_allocs(), before);
}

static uint8_t * record(struct pieces * p, int i) {
    return (uint8_t *) p->message->data + GB_NODES_HEAD_SIZE + i * GB_NODES_TENSOR_SIZE;
}

// The number of a leaf in the message.
static int number_of(struct pieces * p, const char * name) {
    for (int i = 0;; i++) {
        if (strcmp((char *) record(p, i) + 8 + GGML_MAX_DIMS * 16, name) == 0) {
            return i;
        }
    }
}

static void set_place(struct pieces * p, const char * name, uint64_t memory, uint64_t offset) {
    uint8_t * at = record(p, number_of(p, name)) + GB_RECORD_SIZE + GB_SOURCES_SIZE + 16;
    memcpy(at, &memory, 8);
    memcpy(at + 8, &offset, 8);
}

#define EDIT(name) static void name(struct gguf_context * file, struct pieces * p)

EDIT(no_version) {
    (void) p;
    struct gguf_context * other = gguf_init_empty();
    gguf_set_val_u32(other, "program.graphs", 2);
    for (size_t i = 0; i < file->kv.n; i++) {
        gb_free(file->kv.data[i].key);
        gb_gguf_value_free(&file->kv.data[i].value);
    }
    file->kv.n = 0;
    gb_strmap_free(&file->key_index);
    gguf_set_kv(file, other);
    gguf_free(other);
}
EDIT(no_graphs) { (void) p, gguf_set_val_u32(file, "program.graphs", 0); }
EDIT(many_graphs) { (void) p, gguf_set_val_u32(file, "program.graphs", UINT32_MAX); }
EDIT(graphs_of_text) { (void) p, gguf_set_val_str(file, "program.graphs", "2"); }
EDIT(no_message) { (void) file, p->message = NULL; }
EDIT(message_of_floats) {
    (void) file, p->message = ggml_set_name(ggml_new_tensor_1d(p->ctx, GGML_TYPE_F32, 9), "program.graph.0");
}
EDIT(names_of_numbers) { (void) p, gguf_set_val_u32(file, "program.graph.0.inputs", 3); }
EDIT(unknown_tensor) {
    const char * names[] = { "w", "b", "none" };
    (void) p, gguf_set_arr_str(file, "program.graph.0.tensors", names, 3);
}
EDIT(other_size) {
    const char * names[] = { "w", "w", "s" };
    (void) p, gguf_set_arr_str(file, "program.graph.0.tensors", names, 3);
}
EDIT(no_tensors) { (void) p, gguf_set_arr_str(file, "program.graph.0.tensors", tensor_names, 0); }
EDIT(two_inputs) {
    const char * names[] = { "x", "z" };
    (void) p, gguf_set_arr_str(file, "program.graph.0.inputs", names, 2);
}
EDIT(no_input) { (void) file, set_place(p, "x", 0, 0); }
EDIT(input_twice) { (void) file, set_place(p, "b", 4, 0); }
EDIT(far_memory) { (void) file, set_place(p, "b", UINT64_MAX, 0); }
EDIT(offset_in_tensor) { (void) file, set_place(p, "b", 2, 4); }
EDIT(large_offset) { (void) file, set_place(p, "w", 1, UINT64_MAX - 3); }
EDIT(result_with_memory) {
    (void) file;
    const uint64_t memory = 1;
    for (int i = 0;; i++) { // the product
        uint32_t op;
        memcpy(&op, record(p, i) + 4, 4);
        if (op == GGML_OP_MUL_MAT) {
            memcpy(record(p, i) + GB_RECORD_SIZE + GB_SOURCES_SIZE + 16, &memory, 8);
            return;
        }
    }
}
EDIT(integers_as_input) {
    (void) file;
    const uint32_t type = GGML_TYPE_I32;
    memcpy(record(p, number_of(p, "x")), &type, 4);
}
EDIT(unknown_type) {
    (void) file;
    const uint32_t type = 4;
    memcpy(record(p, number_of(p, "w")), &type, 4);
}
EDIT(huge_size) {
    (void) file;
    const uint64_t ne = INT64_MAX;
    memcpy(record(p, number_of(p, "w")) + 8, &ne, 8);
}
EDIT(nodes_swapped) {
    (void) file;
    uint8_t * numbers = (uint8_t *) p->message->data + p->message->ne[0] - 8;
    uint8_t last[4];
    memcpy(last, numbers + 4, 4);
    memmove(numbers + 4, numbers, 4);
    memcpy(numbers, last, 4);
}
EDIT(node_twice) {
    (void) file;
    uint8_t * numbers = (uint8_t *) p->message->data + p->message->ne[0] - 8;
    memcpy(numbers + 4, numbers, 4);
}
EDIT(many_tensors) {
    (void) file;
    memset(p->message->data, 0xff, 4);
}
EDIT(output_without_node) {
    const int32_t nodes[] = { 0, 100 };
    (void) p, gguf_set_arr_data(file, "program.graph.0.output_nodes", GGUF_TYPE_INT32, nodes, 2);
}
EDIT(negative_output) {
    const int32_t nodes[] = { 0, -1 };
    (void) p, gguf_set_arr_data(file, "program.graph.0.output_nodes", GGUF_TYPE_INT32, nodes, 2);
}
EDIT(few_outputs) {
    const int32_t nodes[] = { 0 };
    (void) p, gguf_set_arr_data(file, "program.graph.0.output_nodes", GGUF_TYPE_INT32, nodes, 1);
}
EDIT(outputs_of_i64) {
    const int64_t nodes[] = { 0, 1 };
    (void) p, gguf_set_arr_data(file, "program.graph.0.output_nodes", GGUF_TYPE_INT64, nodes, 2);
}
EDIT(many_sizes) {
    const int64_t sizes[] = { 1, 2 };
    (void) p, gguf_set_arr_data(file, "program.graph.0.sizes", GGUF_TYPE_INT64, sizes, 2);
}

static void damaged_fields_are_named(void) {
    const struct {
        edit change;
        const char * message;
    } cases[] = {
        { no_version, "holds no program" },
        { no_graphs, "program.graphs is 0" },
        { many_graphs, "program.graphs is 4294967295" },
        { graphs_of_text, "program.graphs is 0" },
        { no_message, "there is no tensor 'program.graph.0' of i8" },
        { message_of_floats, "there is no tensor 'program.graph.0' of i8" },
        { names_of_numbers, "inputs is no list of strings" },
        { unknown_tensor, "reads memory 3, which is not in the file" },
        { other_size, "does not fit 'w' of the file" },
        { no_tensors, "which is not in the file" },
        { two_inputs, "input 1 has no tensor" },
        { no_input, "reads memory 0" },
        { input_twice, "is no input of floats, or the second one" },
        { far_memory, "which is not in the file" },
        { offset_in_tensor, "does not fit 'b' of the file" },
        { large_offset, "does not fit 'w' of the file" },
        { result_with_memory, "has a memory" },
        { integers_as_input, "graph 0 is damaged" },
        { unknown_type, "4 is no tensor type" },
        { huge_size, "overflows" },
        { nodes_swapped, "is not node" },
        { node_twice, "is not node" },
        { many_tensors, "do not make" },
        { output_without_node, "output 1 is node 100" },
        { negative_output, "output 1 is node -1" },
        { few_outputs, "output_nodes has 1 numbers instead of 2" },
        { outputs_of_i64, "output_nodes is no list of i32" },
        { many_sizes, "sizes has 2 numbers instead of 1" },
    };
    for (size_t i = 0; i < GB_ARRAY_LEN(cases); i++) {
        write_file(cases[i].change);
        CHECK_MSG(ggml_program_load(path, NULL) == NULL, "case %zu", i);
        CHECK_MSG(ggml_last_status() == GGML_STATUS_IO_ERROR, "case %zu: %s", i, ggml_last_error());
        CHECK_ERROR(GGML_STATUS_IO_ERROR, cases[i].message);
        unlink(path);
    }
    new_path();
    struct gguf_context * file = gguf_init_empty();
    gguf_set_val_u32(file, "program.version", 1);
    gguf_write_to_file(file, path, false);
    gguf_free(file);
    CHECK(ggml_program_load(path, NULL) == NULL);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "has no graphs");
    write_bytes("GGML", 4);
    CHECK(ggml_program_load(path, NULL) == NULL);
    CHECK_ERROR(GGML_STATUS_IO_ERROR, path);
    unlink(path);
}

static void failing_allocations(void) {
    write_file(NULL);
    const int64_t before = gb_test_live_allocs();
    bool ok = false;
    int n = 1;
    for (; !ok && n < 2000; n++) {
        gb_test_fail_alloc(n, false);
        ggml_program_t p = ggml_program_load(path, NULL);
        gb_test_fail_alloc(0, false);
        ok = p != NULL;
        CHECK(ok || ggml_last_status() == GGML_STATUS_ALLOC_FAILED);
        ggml_program_free(p);
        CHECK_INT(gb_test_live_allocs(), before);
    }
    CHECK(ok && n > 20);
    unlink(path);
}

TEST_MAIN(TEST(graphs_compute_with_shared_weights_and_states), TEST(weights_of_a_device_are_in_its_memory),
    TEST(names_and_sizes), TEST(truncated_at_every_byte), TEST(random_damage), TEST(damaged_fields_are_named),
    TEST(failing_allocations))
