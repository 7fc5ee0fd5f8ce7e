// program.c - loads the graphs of a program file, and binds their weights (ggml-program.h).
//
//   program.graphs                 u32: the number of graphs. For each graph i:
//   program.graph.<i>              a tensor of I8: the graph as a message of nodes (tensor/nodes.h)
//   program.graph.<i>.tensors      strings: the tensors that the graph reads. Memory k of the message is
//                                  number k - 1 of these.
//   program.graph.<i>.inputs       strings: memories after those of the tensors. They are not in the file.
//   program.graph.<i>.outputs      strings, and .output_nodes, i32: the nodes of the results
//   program.graph.<i>.axes         strings, and .sizes, i64: named sizes of the graph
//
// A key of an empty list may be absent. A message has the byte order of the machine that wrote it.
//
// Steps: read all messages; find the tensors that graphs write (states); give states, and the
// weights of a backend, memory of their own; bind.
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "base/file.h"
#include "base/text.h"
#include "gguf/gguf_impl.h"
#include "ggml-alloc.h"
#include "ggml-program.h"
#include "tensor/nodes.h"

enum { KEY_SIZE = 64 };

// A list of strings in the file. No key: an empty list.
struct names {
    int key, n;
};

struct program_graph {
    struct gb_nodes * nodes;       // owned; the tensors of the graph
    struct ggml_cgraph * graph;    // in the program's context
    struct ggml_tensor ** inputs;  // owned; in the order of input_names
    struct names tensors, input_names, output_names, axes;
    const int32_t * output_nodes;
    const int64_t * sizes;
};

struct ggml_program {
    const char * path; // during loading, for messages
    struct gb_file_map map;
    struct gguf_context * file;
    struct ggml_context * ctx;     // graphs, and tensors of `own`
    struct program_graph * graphs; // owned
    int n_graphs;
    // by number of a tensor in the file
    bool *read, *written;        // owned; by a graph
    struct ggml_tensor ** own;     // owned; a copy with memory of its own, or NULL
    ggml_backend_buffer_t mapped;  // the data section of the file; NULL: there is none
    ggml_backend_buffer_t copies;  // memory of `own`; NULL: there is none
};

// The last failure becomes the reason why the file cannot be loaded.
static enum ggml_status damaged_because(const struct ggml_program * p, int i) {
    if (ggml_last_status() == GGML_STATUS_ALLOC_FAILED) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    char why[GB_ERROR_SIZE / 2];
    snprintf(why, sizeof(why), "%.1000s", gb_last_message());
    return gb_fail(GGML_STATUS_IO_ERROR, "ggml_program_load: '%s': graph %d is damaged: %s", p->path, i, why);
}

#define DAMAGED_IF(cond, p, i, ...)                                                                                \
    do {                                                                                                           \
        if (cond) {                                                                                                \
            char what[256];                                                                                        \
            snprintf(what, sizeof(what), __VA_ARGS__);                                                             \
            return gb_fail(GGML_STATUS_IO_ERROR, "ggml_program_load: '%s': graph %d is damaged: %s", (p)->path, i, \
                what);                                                                                             \
        }                                                                                                          \
    } while (0)

// ------------------------------------------------------------------------------------------------------------ the file

// The key of a graph's property. -1: it is absent.
static int find_key(const struct ggml_program * p, int i, const char * property) {
    char key[KEY_SIZE];
    snprintf(key, sizeof(key), "program.graph.%d.%s", i, property);
    return gguf_find_key(p->file, key);
}

static bool is_array(const struct ggml_program * p, int key, enum gguf_type type) {
    return gguf_get_kv_type(p->file, key) == GGUF_TYPE_ARRAY && gguf_get_arr_type(p->file, key) == type;
}

static enum ggml_status find_names(const struct ggml_program * p, int i, const char * property, struct names * names) {
    const int key = find_key(p, i, property);
    DAMAGED_IF(key >= 0 && !is_array(p, key, GGUF_TYPE_STRING), p, i, "%s is no list of strings", property);
    *names = (struct names){ key, key < 0 ? 0 : gguf_get_arr_n(p->file, key) };
    return GGML_STATUS_SUCCESS;
}

// The n numbers of a list.
static enum ggml_status find_numbers(const struct ggml_program * p, int i, const char * property, enum gguf_type type,
    int n, const void ** numbers) {
    const int key = find_key(p, i, property);
    DAMAGED_IF(key >= 0 && !is_array(p, key, type), p, i, "%s is no list of %s", property, gguf_type_name(type));
    const int found = key < 0 ? 0 : gguf_get_arr_n(p->file, key);
    DAMAGED_IF(found != n, p, i, "%s has %d numbers instead of %d", property, found, n);
    *numbers = n > 0 ? gguf_get_arr_data(p->file, key) : NULL;
    return GGML_STATUS_SUCCESS;
}

static const char * name_at(const struct ggml_program * p, struct names names, int i) {
    return gguf_get_arr_str(p->file, names.key, i);
}

static int find_name(const struct ggml_program * p, struct names names, const char * name) {
    for (int i = 0; i < names.n; i++) {
        if (strcmp(name_at(p, names, i), name) == 0) {
            return i;
        }
    }
    return -1;
}

static const uint8_t * bytes_of(const struct ggml_program * p, int tensor) {
    return p->map.data + gguf_get_data_offset(p->file) + gguf_get_tensor_offset(p->file, tensor);
}

// Maps the file and reads its keys.
static enum ggml_status open_file(struct ggml_program * p, const char * path) {
    GB_TRY(gb_file_map_open(&p->map, path));
    p->file = gguf_init_from_buffer(p->map.data, p->map.size, (struct gguf_init_params){ true, NULL });
    if (p->file == NULL) {
        if (ggml_last_status() == GGML_STATUS_ALLOC_FAILED) {
            return GGML_STATUS_ALLOC_FAILED;
        }
        char why[GB_ERROR_SIZE / 2];
        snprintf(why, sizeof(why), "%.1000s", gb_last_message());
        return gb_fail(GGML_STATUS_IO_ERROR, "ggml_program_load: '%s': %s", path, why);
    }
    GB_FAIL_IF(gguf_find_key(p->file, "program.version") < 0, GGML_STATUS_IO_ERROR,
        "ggml_program_load: '%s' holds no program; program.save of the Python package writes such files", path);
    const int key = gguf_find_key(p->file, "program.graphs");
    GB_FAIL_IF(key < 0, GGML_STATUS_UNSUPPORTED,
        "ggml_program_load: '%s' has no graphs; load it in Python, call the program, and save it again", path);
    const uint32_t n = gguf_get_kv_type(p->file, key) == GGUF_TYPE_UINT32 ? gguf_get_val_u32(p->file, key) : 0;
    const int n_tensors = gguf_get_n_tensors(p->file);
    GB_FAIL_IF(n == 0 || n > (uint32_t) n_tensors, GGML_STATUS_IO_ERROR,
        "ggml_program_load: '%s' is damaged: program.graphs is %u, and the file has %d tensors", path, n, n_tensors);
    p->graphs = gb_calloc(n, sizeof(*p->graphs));
    p->read = gb_calloc((size_t) n_tensors, sizeof(*p->read));
    p->written = gb_calloc((size_t) n_tensors, sizeof(*p->written));
    p->own = gb_calloc((size_t) n_tensors, sizeof(struct ggml_tensor *));
    p->ctx = ggml_init((struct ggml_init_params){ 0, NULL, true });
    p->n_graphs = p->graphs != NULL ? (int) n : 0;
    return p->graphs && p->read && p->written && p->own && p->ctx ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

// --------------------------------------------------------------------------------------------------------- one graph

// The number of a tensor in the file that memory k of the graph is. -1: there is none.
static int tensor_of(const struct ggml_program * p, const struct program_graph * g, uint64_t k) {
    if (k == 0 || k > (uint64_t) g->tensors.n) {
        return -1;
    }
    return gguf_find_tensor(p->file, name_at(p, g->tensors, (int) k - 1));
}

static uint64_t memory_of(const struct gb_nodes * nodes, int tensor) {
    const int m = nodes->memory_of[tensor];
    return m < 0 ? 0 : nodes->memories[m].number;
}

// Checks the tensor in the file that a leaf reads, and notes that it is read.
static enum ggml_status check_weight(struct ggml_program * p, int i, int at) {
    const struct program_graph * g = &p->graphs[i];
    const struct ggml_tensor * t = &g->nodes->tensors[at];
    const uint64_t k = memory_of(g->nodes, at);
    const int found = tensor_of(p, g, k);
    DAMAGED_IF(found < 0, p, i, "tensor %d reads memory %llu, which is not in the file", at, (unsigned long long) k);
    const char * name = gguf_get_tensor_name(p->file, found);
    const enum ggml_type type = gguf_get_tensor_type(p->file, found);
    const size_t size = gguf_get_tensor_size(p->file, found);
    DAMAGED_IF(type != t->type || size != ggml_nbytes(t) || g->nodes->offsets[at] != 0, p, i,
        "tensor %d does not fit '%.100s' of the file: %zu bytes of type %d, not %zu of type %d", at, name,
        ggml_nbytes(t), (int) t->type, size, (int) type);
    DAMAGED_IF((uintptr_t) bytes_of(p, found) % gb_type_alignment(type) != 0, p, i,
        "the bytes of '%.100s' are not aligned", name);
    p->read[found] = true;
    return GGML_STATUS_SUCCESS;
}

// Checks a leaf: an input, or a tensor of the file.
static enum ggml_status check_leaf(struct ggml_program * p, int i, int at) {
    struct program_graph * g = &p->graphs[i];
    struct ggml_tensor * t = &g->nodes->tensors[at];
    if (t->view_src != NULL) {
        DAMAGED_IF(gb_root(t)->op != GGML_OP_NONE, p, i, "tensor %d is a view of a result", at);
        return GGML_STATUS_SUCCESS;
    }
    const uint64_t k = memory_of(g->nodes, at), first = (uint64_t) g->tensors.n + 1;
    if (k < first || k - first >= (uint64_t) g->input_names.n) {
        return check_weight(p, i, at);
    }
    DAMAGED_IF(g->inputs[k - first] != NULL || t->type != GGML_TYPE_F32 || !ggml_is_contiguous(t), p, i,
        "tensor %d is no input of floats, or the second one with its name", at);
    g->inputs[k - first] = t;
    g->nodes->memory_of[at] = -1;
    return ggml_set_input(t);
}

// Checks that the nodes are all tensors with an operator, in the order of the message, and makes the
// graph.
static enum ggml_status list_nodes(struct ggml_program * p, int i) {
    struct program_graph * g = &p->graphs[i];
    const struct ggml_cgraph * found = &g->nodes->graph;
    int n_leafs = 0, n_nodes = 0;
    g->graph = ggml_new_graph_custom(p->ctx, (size_t) GB_MAX(g->nodes->n_tensors, 1), false);
    if (g->graph == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (int at = 0; at < g->nodes->n_tensors; at++) {
        struct ggml_tensor * t = &g->nodes->tensors[at];
        gb_tensor_set_surely_read_once(t, false);
        if (t->op == GGML_OP_NONE) {
            GB_TRY(check_leaf(p, i, at));
            g->graph->leafs[n_leafs++] = t;
            continue;
        }
        DAMAGED_IF(n_nodes >= found->n_nodes || found->nodes[n_nodes] != t, p, i, "tensor %d is not node %d", at,
            n_nodes);
        DAMAGED_IF(g->nodes->memory_of[at] >= 0, p, i, "node %d has a memory", n_nodes);
        g->graph->nodes[n_nodes++] = t;
    }
    DAMAGED_IF(n_nodes != found->n_nodes || n_nodes == 0, p, i, "it has %d nodes, and lists %d", n_nodes,
        found->n_nodes);
    g->graph->n_leafs = n_leafs;
    g->graph->n_nodes = n_nodes;
    gb_graph_mark_listed(g->graph);
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status mark_outputs(struct ggml_program * p, int i) {
    struct program_graph * g = &p->graphs[i];
    for (int k = 0; k < g->input_names.n; k++) {
        DAMAGED_IF(g->inputs[k] == NULL, p, i, "input %d has no tensor", k);
    }
    for (int k = 0; k < g->output_names.n; k++) {
        const int32_t at = g->output_nodes[k];
        DAMAGED_IF(at < 0 || at >= g->graph->n_nodes, p, i, "output %d is node %d of %d", k, (int) at,
            g->graph->n_nodes);
        struct ggml_tensor * t = g->graph->nodes[at];
        DAMAGED_IF(t->type != GGML_TYPE_F32 || !ggml_is_contiguous(t), p, i, "output %d is no tensor of floats", k);
        GB_TRY(ggml_set_output(t));
    }
    return GGML_STATUS_SUCCESS;
}

// Notes the tensors of the file that a node writes. Such a node is a view of what it writes.
static void find_states(struct ggml_program * p, struct program_graph * g) {
    for (int k = 0; k < g->graph->n_nodes; k++) {
        const struct ggml_tensor * t = g->graph->nodes[k];
        const struct ggml_tensor * root = gb_root(t);
        if (root != t && gb_op_computes(t->op)) {
            const int state = tensor_of(p, g, memory_of(g->nodes, (int) (root - g->nodes->tensors)));
            if (state >= 0) {
                p->written[state] = true;
            }
        }
    }
}

static enum ggml_status read_graph(struct ggml_program * p, int i) {
    struct program_graph * g = &p->graphs[i];
    char name[KEY_SIZE];
    const void * numbers;
    snprintf(name, sizeof(name), "program.graph.%d", i);
    const int message = gguf_find_tensor(p->file, name);
    DAMAGED_IF(message < 0 || gguf_get_tensor_type(p->file, message) != GGML_TYPE_I8, p, i,
        "there is no tensor '%s' of i8", name);
    GB_TRY(find_names(p, i, "tensors", &g->tensors));
    GB_TRY(find_names(p, i, "inputs", &g->input_names));
    GB_TRY(find_names(p, i, "outputs", &g->output_names));
    GB_TRY(find_names(p, i, "axes", &g->axes));
    GB_TRY(find_numbers(p, i, "output_nodes", GGUF_TYPE_INT32, g->output_names.n, &numbers));
    g->output_nodes = numbers;
    GB_TRY(find_numbers(p, i, "sizes", GGUF_TYPE_INT64, g->axes.n, &numbers));
    g->sizes = numbers;
    g->inputs = gb_calloc((size_t) g->input_names.n, sizeof(struct ggml_tensor *));
    if (g->inputs == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    g->nodes = gb_nodes_read(bytes_of(p, message), gguf_get_tensor_size(p->file, message));
    if (g->nodes == NULL) {
        return damaged_because(p, i);
    }
    GB_TRY(list_nodes(p, i));
    GB_TRY(mark_outputs(p, i));
    find_states(p, g);
    return GGML_STATUS_SUCCESS;
}

// -------------------------------------------------------------------------------------------------------------- memory

// Gives states, and the weights of a backend, memory of their own with the bytes of the file.
static enum ggml_status copy_tensors(struct ggml_program * p, ggml_backend_t backend) {
    const int n = gguf_get_n_tensors(p->file);
    bool any = false;
    for (int t = 0; t < n; t++) {
        if (p->written[t] || (backend != NULL && p->read[t])) {
            p->own[t] = ggml_new_tensor(p->ctx, gguf_get_tensor_type(p->file, t), GGML_MAX_DIMS,
                gguf_get_tensor_ne(p->file, t));
            if (p->own[t] == NULL) {
                return ggml_last_status();
            }
            any = any || ggml_nbytes(p->own[t]) > 0;
        }
    }
    if (!any) {
        return GGML_STATUS_SUCCESS;
    }
    p->copies = backend != NULL ? ggml_backend_alloc_ctx_tensors(p->ctx, backend)
                                : ggml_backend_alloc_ctx_tensors_from_buft(p->ctx, ggml_backend_cpu_buffer_type());
    if (p->copies == NULL) {
        return ggml_last_status();
    }
    for (int t = 0; t < n; t++) {
        if (p->own[t] != NULL && ggml_nbytes(p->own[t]) > 0) {
            GB_TRY(ggml_backend_tensor_set(p->own[t], bytes_of(p, t), 0, ggml_nbytes(p->own[t])));
        }
    }
    return GGML_STATUS_SUCCESS;
}

// A buffer over the data section, for weights that stay in the file.
static enum ggml_status map_weights(struct ggml_program * p) {
    const size_t begin = gguf_get_data_offset(p->file);
    if (begin >= p->map.size) {
        return GGML_STATUS_SUCCESS;
    }
    // the buffer is never written: nodes write only states, which have memory of their own
    void * data = (void *) (uintptr_t) (p->map.data + begin);
    p->mapped = ggml_backend_cpu_buffer_from_ptr(data, p->map.size - begin);
    return p->mapped != NULL ? ggml_backend_buffer_set_usage(p->mapped, GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
                             : ggml_last_status();
}

// Sets the memories of a graph. Inputs and results get memory from the scheduler.
static enum ggml_status bind_graph(struct ggml_program * p, int i) {
    struct program_graph * g = &p->graphs[i];
    for (int m = 0; m < g->nodes->n_memories; m++) {
        struct gb_nodes_memory * memory = &g->nodes->memories[m];
        const int t = tensor_of(p, g, memory->number);
        if (t < 0) {
            continue; // an input
        }
        const struct ggml_tensor * own = p->own[t];
        memory->buffer = own != NULL ? own->buffer : p->mapped;
        memory->base = own != NULL ? own->data : (char *) (uintptr_t) bytes_of(p, t);
        memory->size = gguf_get_tensor_size(p->file, t);
    }
    return gb_nodes_bind(g->nodes) == GGML_STATUS_SUCCESS ? GGML_STATUS_SUCCESS : damaged_because(p, i);
}

static enum ggml_status load(struct ggml_program * p, const char * path, ggml_backend_t backend) {
    p->path = path;
    GB_TRY(open_file(p, path));
    for (int i = 0; i < p->n_graphs; i++) {
        GB_TRY(read_graph(p, i));
    }
    GB_TRY(copy_tensors(p, backend));
    GB_TRY(map_weights(p));
    for (int i = 0; i < p->n_graphs; i++) {
        GB_TRY(bind_graph(p, i));
    }
    p->path = NULL;
    return gb_mapped_check("ggml_program_load", p->map.watch);
}

ggml_program_t ggml_program_load(const char * path, ggml_backend_t backend) {
    GB_CHECK_ARG_RETURNING(path, NULL);
    struct ggml_program * p = GB_NEW(struct ggml_program);
    if (p == NULL) {
        return NULL;
    }
    const enum ggml_status status = load(p, path, backend);
    if (p->map.watch != NULL) {
        gb_mapped_leave(); // functions that compute enter again
    }
    if (status != GGML_STATUS_SUCCESS) {
        struct gb_failure failure;
        gb_failure_save(&failure);
        ggml_program_free(p);
        gb_failure_restore(&failure);
        return NULL;
    }
    return p;
}

void ggml_program_free(ggml_program_t program) {
    if (program == NULL) {
        return;
    }
    for (int i = 0; i < program->n_graphs; i++) {
        gb_nodes_free(program->graphs[i].nodes);
        gb_free(program->graphs[i].inputs);
    }
    ggml_backend_buffer_free(program->mapped);
    ggml_backend_buffer_free(program->copies);
    ggml_free(program->ctx);
    gguf_free(program->file);
    gb_free(program->graphs);
    gb_free(program->read);
    gb_free(program->written);
    gb_free(program->own);
    if (program->map.watch != NULL) {
        gb_mapped_enter(); // closing leaves
    }
    gb_file_map_close(&program->map);
    gb_free(program);
}

// ------------------------------------------------------------------------------------------------------------- queries

// Graph i. NULL: there is none (reported for the function `func`).
static const struct program_graph * graph_at(const char * func, ggml_program_t program, int i) {
    GB_FAIL_IF_RETURNING(program == NULL, NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'program' is NULL", func);
    GB_FAIL_IF_RETURNING(i < 0 || i >= program->n_graphs, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'graph' is %d, there are %d graphs", func, i, program->n_graphs);
    return &program->graphs[i];
}

int ggml_program_n_graphs(ggml_program_t program) {
    GB_CHECK_ARG_RETURNING(program, 0);
    return program->n_graphs;
}

struct ggml_cgraph * ggml_program_graph(ggml_program_t program, int graph) {
    const struct program_graph * g = graph_at(__func__, program, graph);
    return g != NULL ? g->graph : NULL;
}

// The size of an axis. -1: the graph does not have it.
static int64_t size_of(const struct ggml_program * p, const struct program_graph * g, const char * axis) {
    const int i = find_name(p, g->axes, axis);
    return i < 0 ? -1 : g->sizes[i];
}

int64_t ggml_program_size(ggml_program_t program, int graph, const char * axis) {
    const struct program_graph * g = graph_at(__func__, program, graph);
    if (g == NULL) {
        return -1;
    }
    GB_CHECK_ARG_RETURNING(axis, -1);
    const int64_t size = size_of(program, g, axis);
    GB_FAIL_IF_RETURNING(size < 0, -1, GGML_STATUS_INVALID_ARGUMENT, "%s: graph %d has no axis '%s'", __func__, graph,
        axis);
    return size;
}

// Reports that no graph has the sizes, with those that there are.
static int no_graph(const struct ggml_program * p, const char * const * axes, const int64_t * sizes, int n) {
    char wanted[256], known[1024];
    struct gb_text text = { wanted, sizeof(wanted) };
    wanted[0] = known[0] = '\0';
    for (int k = 0; k < n; k++) {
        gb_text_append(&text, "%s%s %lld", k > 0 ? ", " : "", axes[k], (long long) sizes[k]);
    }
    text = (struct gb_text){ known, sizeof(known) };
    for (int i = 0; i < p->n_graphs; i++) {
        gb_text_append(&text, "%sgraph %d:", i > 0 ? "; " : "", i);
        for (int k = 0; k < p->graphs[i].axes.n; k++) {
            gb_text_append(&text, " %s %lld", name_at(p, p->graphs[i].axes, k), (long long) p->graphs[i].sizes[k]);
        }
    }
    gb_fail(GGML_STATUS_INVALID_ARGUMENT, "ggml_program_find: no graph has %s (%s)", wanted, known);
    return -1;
}

int ggml_program_find(ggml_program_t program, const char * const * axes, const int64_t * sizes, int n) {
    GB_CHECK_ARG_RETURNING(program, -1);
    GB_FAIL_IF_RETURNING(n < 0, -1, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'n' is %d", __func__, n);
    if (n > 0) {
        GB_CHECK_ARG_RETURNING(axes, -1);
        GB_CHECK_ARG_RETURNING(sizes, -1);
    }
    for (int k = 0; k < n; k++) {
        GB_CHECK_ARG_RETURNING(axes[k], -1);
    }
    for (int i = 0; i < program->n_graphs; i++) {
        int k = 0;
        while (k < n && sizes[k] >= 0 && size_of(program, &program->graphs[i], axes[k]) == sizes[k]) {
            k++;
        }
        if (k == n) {
            return i;
        }
    }
    return no_graph(program, axes, sizes, n);
}

int ggml_program_n_inputs(ggml_program_t program, int graph) {
    const struct program_graph * g = graph_at(__func__, program, graph);
    return g != NULL ? g->input_names.n : 0;
}

int ggml_program_n_outputs(ggml_program_t program, int graph) {
    const struct program_graph * g = graph_at(__func__, program, graph);
    return g != NULL ? g->output_names.n : 0;
}

// Name i of a list.
static const char * listed(const char * func, const struct ggml_program * p, struct names names, int i) {
    GB_FAIL_IF_RETURNING(i < 0 || i >= names.n, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'i' is %d, there are %d", func, i, names.n);
    return name_at(p, names, i);
}

const char * ggml_program_input_name(ggml_program_t program, int graph, int i) {
    const struct program_graph * g = graph_at(__func__, program, graph);
    return g != NULL ? listed(__func__, program, g->input_names, i) : NULL;
}

const char * ggml_program_output_name(ggml_program_t program, int graph, int i) {
    const struct program_graph * g = graph_at(__func__, program, graph);
    return g != NULL ? listed(__func__, program, g->output_names, i) : NULL;
}

// The number of a name, or -1, reported with the names that there are.
static int known_name(const char * func, const struct ggml_program * p, struct names names, const char * name) {
    GB_FAIL_IF_RETURNING(name == NULL, -1, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'name' is NULL", func);
    const int i = find_name(p, names, name);
    if (i < 0) {
        char known[1024];
        struct gb_text text = { known, sizeof(known) };
        known[0] = '\0';
        for (int k = 0; k < names.n; k++) {
            gb_text_append(&text, "%s%s", k > 0 ? ", " : "", name_at(p, names, k));
        }
        gb_fail(GGML_STATUS_INVALID_ARGUMENT, "%s: there is no '%s' (there are: %s)", func, name, known);
    }
    return i;
}

struct ggml_tensor * ggml_program_input(ggml_program_t program, int graph, const char * name) {
    const struct program_graph * g = graph_at(__func__, program, graph);
    const int i = g != NULL ? known_name(__func__, program, g->input_names, name) : -1;
    return i >= 0 ? g->inputs[i] : NULL;
}

struct ggml_tensor * ggml_program_output(ggml_program_t program, int graph, const char * name) {
    const struct program_graph * g = graph_at(__func__, program, graph);
    const int i = g != NULL ? known_name(__func__, program, g->output_names, name) : -1;
    return i >= 0 ? g->graph->nodes[g->output_nodes[i]] : NULL;
}
