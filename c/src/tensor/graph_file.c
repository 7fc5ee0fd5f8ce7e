// graph_file.c - graphs as files (GGML_FILE_VERSION 1).
//
//   header  u32 magic, version, n_leafs, n_nodes; u64 bytes of all nodes' data
//   leaf    a record (record.h), and the data
//   node    a record and its sources: -1, a leaf's number, or n_leafs + a node's number
//
// All numbers have the byte order of the machine, without padding. Files are untrusted: every number
// is checked before use, and nodes get at most as much memory as the header says. Shape operators
// become views again. Other nodes get memory.
#include <limits.h>
#include <stdarg.h>

#include "base/file.h"
#include "base/hash.h"
#include "tensor/record.h"

enum { NODE_SIZE = GB_RECORD_SIZE + GB_SOURCES_SIZE };

// -------------------------------------------------------------------------------------------------------------- export

// Numbers leafs and nodes as in the file: leafs first, in the order of the graph. False: memory ran
// out.
static bool number_tensors(const struct ggml_cgraph * graph, struct gb_ptrmap * numbers) {
    for (int i = 0; i < graph->n_leafs; i++) {
        if (!gb_ptrmap_set(numbers, graph->leafs[i], i)) {
            return false;
        }
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        if (!gb_ptrmap_set(numbers, graph->nodes[i], (int64_t) graph->n_leafs + i)) {
            return false;
        }
    }
    return true;
}

// Checks that a file can hold the graph: leafs have data on the host, no node calls a function of
// the program, and sources come before their nodes.
static enum ggml_status check_exportable(const struct ggml_cgraph * graph, const struct gb_ptrmap * numbers) {
    char text[GB_DESCRIBE_SIZE];
    int64_t sources[GGML_MAX_SRC];
    for (int i = 0; i < graph->n_leafs; i++) {
        const struct ggml_tensor * t = graph->leafs[i];
        GB_FAIL_IF(!gb_tensor_is_host(t), GGML_STATUS_INVALID_STATE,
            "ggml_graph_export: leaf %s has no data in host memory", gb_describe(t, text));
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        const struct ggml_tensor * t = graph->nodes[i];
        GB_FAIL_IF(!gb_record_holds(t), GGML_STATUS_UNSUPPORTED,
            "ggml_graph_export: node %s calls a function of this program", gb_describe(t, text));
        gb_sources_find(t, numbers, sources);
        const int k = gb_sources_misfit(t->op, sources, (int64_t) graph->n_leafs + i);
        GB_FAIL_IF(k >= 0, GGML_STATUS_INVALID_ARGUMENT,
            "ggml_graph_export: source %d of node %s does not come before it in the graph", k, gb_describe(t, text));
    }
    return GGML_STATUS_SUCCESS;
}

// The file does not hold node data. Their size lets a reader compute the memory of a run.
static enum ggml_status write_header(struct gb_file_writer * w, const struct ggml_cgraph * graph) {
    const uint32_t words[4] = { GGML_FILE_MAGIC, GGML_FILE_VERSION, (uint32_t) graph->n_leafs,
        (uint32_t) graph->n_nodes };
    uint64_t size_eval = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        size_eval += ggml_nbytes_pad(graph->nodes[i]);
    }
    GB_TRY(gb_file_writer_write(w, words, sizeof(words)));
    return gb_file_writer_write(w, &size_eval, sizeof(size_eval));
}

static enum ggml_status write_record(struct gb_file_writer * w, const struct ggml_tensor * t) {
    uint8_t record[GB_RECORD_SIZE];
    gb_record_write(t, false, true, record);
    return gb_file_writer_write(w, record, sizeof(record));
}

static enum ggml_status write_tensors(struct gb_file_writer * w, const struct ggml_cgraph * graph,
    const struct gb_ptrmap * numbers) {
    GB_TRY(write_header(w, graph));
    for (int i = 0; i < graph->n_leafs; i++) {
        GB_TRY(write_record(w, graph->leafs[i]));
        GB_TRY(gb_file_writer_write(w, graph->leafs[i]->data, ggml_nbytes(graph->leafs[i])));
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        int64_t sources[GGML_MAX_SRC];
        uint8_t bytes[GB_SOURCES_SIZE];
        gb_sources_find(graph->nodes[i], numbers, sources);
        gb_sources_write(sources, bytes);
        GB_TRY(write_record(w, graph->nodes[i]));
        GB_TRY(gb_file_writer_write(w, bytes, sizeof(bytes)));
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status write_file(const char * fname, const struct ggml_cgraph * graph,
    const struct gb_ptrmap * numbers) {
    struct gb_file_writer w;
    GB_TRY(gb_file_writer_open(&w, fname));
    const enum ggml_status status = write_tensors(&w, graph, numbers);
    if (status != GGML_STATUS_SUCCESS) {
        gb_file_writer_abandon(&w);
        return status;
    }
    return gb_file_writer_commit(&w);
}

enum ggml_status ggml_graph_export(const struct ggml_cgraph * cgraph, const char * fname) {
    GB_TRY(gb_graph_check(cgraph, "cgraph", __func__));
    GB_TRY(gb_graph_check_tensors(cgraph, __func__));
    GB_CHECK_ARG(fname);
    struct gb_ptrmap numbers = { 0 };
    enum ggml_status status = number_tensors(cgraph, &numbers) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    if (status == GGML_STATUS_SUCCESS) {
        status = check_exportable(cgraph, &numbers);
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = write_file(fname, cgraph, &numbers);
    }
    gb_ptrmap_free(&numbers);
    return status;
}

// -------------------------------------------------------------------------------------------------------------- import

// The state of one import. The caller gets the contexts on success. On failure they are freed.
struct import {
    const char * fname;
    char * data; // the file's content, in ctx_data
    size_t size; // bytes of it
    size_t at;   // bytes read
    uint32_t n_leafs, n_nodes;
    uint64_t size_eval;  // announced bytes of node data that are not read yet
    struct ggml_context * ctx_data;
    struct ggml_context * ctx_eval;
    struct ggml_cgraph * graph;
};

// Reports the fault and its offset in the file. Returns false.
GGML_ATTRIBUTE_FORMAT(2, 3) static bool malformed(const struct import * in, const char * fmt, ...) {
    char what[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    gb_fail(GGML_STATUS_IO_ERROR, "ggml_graph_import: '%s' at byte %zu: %s", in->fname, in->at, what);
    return false;
}

// Copies the next bytes of the file. False if it has fewer (reported).
static bool read_bytes(struct import * in, void * to, size_t size) {
    if (size > in->size - in->at) {
        return malformed(in, "needs %zu bytes more, the file has %zu", size, in->size - in->at);
    }
    memcpy(to, in->data + in->at, size);
    in->at += size;
    return true;
}

// Checks that the file can hold this many leafs and nodes before memory for them is allocated.
static bool read_header(struct import * in) {
    uint32_t words[4];
    if (!read_bytes(in, words, sizeof(words)) || !read_bytes(in, &in->size_eval, sizeof(in->size_eval))) {
        return false;
    }
    if (words[0] != GGML_FILE_MAGIC || words[1] != GGML_FILE_VERSION) {
        return malformed(in, "magic 0x%08x, version %u: needs 0x%08x, %d", words[0], words[1],
            (unsigned) GGML_FILE_MAGIC, GGML_FILE_VERSION);
    }
    in->n_leafs = words[2];
    in->n_nodes = words[3];
    const uint64_t least = (uint64_t) in->n_leafs * GB_RECORD_SIZE + (uint64_t) in->n_nodes * NODE_SIZE;
    if (least > in->size - in->at || in->n_leafs > INT_MAX / 8 || in->n_nodes > INT_MAX / 8) {
        return malformed(in, "%u leafs and %u nodes do not fit in %zu bytes", in->n_leafs, in->n_nodes,
            in->size - in->at);
    }
    return true;
}

// Reads a record into a struct that is not a tensor of a context yet. After success its element
// count and extent can be computed.
static bool read_record(struct import * in, struct ggml_tensor * t) {
    uint8_t record[GB_RECORD_SIZE];
    char wrong[GB_RECORD_WRONG_SIZE];
    memset(t, 0, sizeof(*t));
    return read_bytes(in, record, sizeof(record)) && (gb_record_read(record, t, wrong) || malformed(in, "%s", wrong));
}

// Reports that a described tensor cannot be made, unless memory ran out. Returns false.
static bool not_made(const struct import * in, const struct ggml_tensor * record) {
    return ggml_last_status() == GGML_STATUS_ALLOC_FAILED
               ? false
               : malformed(in, "tensor '%s': %s", record->name, gb_last_message());
}

// A node with its own memory. It has the record's strides, which must stay inside that memory. NULL
// on failure (reported).
static struct ggml_tensor * make_tensor(struct import * in, const struct ggml_tensor * record) {
    const size_t size = ggml_nbytes_pad(record);
    if (size > in->size_eval) {
        malformed(in, "tensor '%s' needs %zu bytes, more than the header says", record->name, size);
        return NULL;
    }
    struct ggml_tensor * t = gb_tensor_new(in->ctx_eval, record->type, GGML_MAX_DIMS, record->ne);
    size_t extent;
    if (t == NULL) {
        not_made(in, record);
        return NULL;
    }
    if (!gb_bytes_needed(record, &extent) || extent > ggml_nbytes(t)) {
        malformed(in, "the strides of tensor '%s' lead outside of it", record->name);
        return NULL;
    }
    memcpy(t->nb, record->nb, sizeof(t->nb));
    return t;
}

// Sets operator, name and parameters from the record.
static void take_over(struct ggml_tensor * t, const struct ggml_tensor * record) {
    t->op = record->op;
    memcpy(t->name, record->name, sizeof(t->name));
    memcpy(t->op_params, record->op_params, sizeof(t->op_params));
    gb_tensor_set_ndim(t, gb_tensor_knows_ndim(record) ? gb_tensor_ndim(record) : -1);
}

// True if a graph may have the tensor. False and reported otherwise.
static bool is_sound(const struct import * in, const struct ggml_tensor * t) {
    return (gb_tensor_check(t, "damaged") == GGML_STATUS_SUCCESS &&
               gb_node_check(t, "damaged") == GGML_STATUS_SUCCESS) ||
           not_made(in, t);
}

// Reads a leaf. Its data stay in the file's content, but move down over the leaf's record to an
// aligned address.
static bool read_leaf(struct import * in) {
    struct ggml_tensor record;
    if (!read_record(in, &record)) {
        return false;
    }
    if (record.op != GGML_OP_NONE) {
        return malformed(in, "leaf '%s' has operator %s", record.name, gb_op_name(record.op));
    }
    size_t bytes;
    gb_bytes_needed(&record, &bytes);
    if (bytes > in->size - in->at) {
        return malformed(in, "leaf '%s' needs %zu bytes of data, the file has %zu", record.name, bytes,
            in->size - in->at);
    }
    if (bytes != ggml_nbytes(&record)) {
        return malformed(in, "leaf '%s' has permuted blocks", record.name);
    }
    ggml_set_no_alloc(in->ctx_eval, true);
    struct ggml_tensor * t = gb_tensor_new(in->ctx_eval, record.type, GGML_MAX_DIMS, record.ne);
    ggml_set_no_alloc(in->ctx_eval, false);
    if (t == NULL) {
        return not_made(in, &record);
    }
    memcpy(t->nb, record.nb, sizeof(t->nb));
    take_over(t, &record);
    t->data = in->data + in->at / GGML_MEM_ALIGN * GGML_MEM_ALIGN;
    memmove(t->data, in->data + in->at, bytes);
    in->at += bytes;
    in->graph->leafs[in->graph->n_leafs++] = t;
    return is_sound(in, t);
}

// Sets src[] of the record from the numbers. If a CPY names itself, the address of the record
// stands for the node.
static bool read_sources(struct import * in, struct ggml_tensor * record) {
    uint8_t bytes[GB_SOURCES_SIZE];
    int64_t numbers[GGML_MAX_SRC];
    if (!read_bytes(in, bytes, sizeof(bytes))) {
        return false;
    }
    const int64_t n_leafs = in->graph->n_leafs, n_known = n_leafs + in->graph->n_nodes;
    gb_sources_read(bytes, numbers);
    const int misfit = gb_sources_misfit(record->op, numbers, n_known);
    if (misfit >= 0) {
        return malformed(in, "source %d of node '%s' is number %lld of %lld", misfit, record->name,
            (long long) numbers[misfit], (long long) n_known);
    }
    for (int k = 0; k < GGML_MAX_SRC; k++) {
        const int64_t i = numbers[k];
        record->src[k] = i < 0         ? NULL
                         : i < n_leafs ? in->graph->leafs[i]
                         : i < n_known ? in->graph->nodes[i - n_leafs]
                                       : record;
    }
    return true;
}

// Makes a shape operator a view of its source again. gb_tensor_view checks that the view stays
// inside the source.
static struct ggml_tensor * make_view(struct import * in, const struct ggml_tensor * record) {
    struct ggml_tensor * src = record->src[0];
    size_t offset = 0;
    if (src == NULL || src->type != record->type) {
        malformed(in, "view '%s' has no source of its type", record->name);
        return NULL;
    }
    if (record->op == GGML_OP_VIEW) {
        memcpy(&offset, record->op_params, sizeof(offset));
    }
    struct ggml_tensor * t =
        gb_tensor_view(in->ctx_eval, src, GGML_MAX_DIMS, record->ne, record->nb, offset, "ggml_graph_import");
    if (t == NULL) {
        not_made(in, record);
    }
    return t;
}

// Reads a node. Its sources are leafs and nodes read before.
static bool read_node(struct import * in) {
    struct ggml_tensor record;
    if (!read_record(in, &record) || !read_sources(in, &record)) {
        return false;
    }
    const bool is_view = record.op != GGML_OP_NONE && !gb_op_computes(record.op);
    struct ggml_tensor * t = is_view ? make_view(in, &record) : make_tensor(in, &record);
    if (t == NULL) {
        return false;
    }
    in->size_eval -= GB_MIN(in->size_eval, ggml_nbytes_pad(t));
    take_over(t, &record);
    for (int k = 0; k < GGML_MAX_SRC; k++) {
        t->src[k] = record.src[k] == &record ? t : record.src[k];
    }
    in->graph->nodes[in->graph->n_nodes++] = t;
    return is_sound(in, t);
}

// Header, leafs, nodes, then the end of the file.
static bool read_graph(struct import * in) {
    if (!read_header(in)) {
        return false;
    }
    in->graph = ggml_new_graph_custom(in->ctx_eval, GB_MAX(in->n_leafs, in->n_nodes), false);
    bool ok = in->graph != NULL;
    for (uint32_t i = 0; i < in->n_leafs && ok; i++) {
        ok = read_leaf(in);
    }
    for (uint32_t i = 0; i < in->n_nodes && ok; i++) {
        ok = read_node(in);
    }
    if (ok && in->at != in->size) {
        return malformed(in, "%zu bytes follow the graph", in->size - in->at);
    }
    if (ok) {
        gb_graph_mark_listed(in->graph);
    }
    return ok;
}

// Copies the whole file into a tensor of ctx_data, because leafs keep their data there.
static bool load_content(struct import * in) {
    struct gb_file_map map;
    if (gb_file_map_open(&map, in->fname) != GGML_STATUS_SUCCESS) {
        return false;
    }
    in->ctx_data = ggml_init((struct ggml_init_params){ map.size + ggml_tensor_overhead(), NULL, false });
    in->ctx_eval = ggml_init((struct ggml_init_params){ 0, NULL, false });
    struct ggml_tensor * blob =
        in->ctx_data && in->ctx_eval ? ggml_new_tensor_1d(in->ctx_data, GGML_TYPE_I8, (int64_t) map.size) : NULL;
    if (blob != NULL && map.size > 0) {
        memcpy(blob->data, map.data, map.size);
    }
    in->data = blob ? blob->data : NULL;
    in->size = map.size;
    return gb_file_map_close(&map) == GGML_STATUS_SUCCESS && blob != NULL;
}

struct ggml_cgraph * ggml_graph_import(const char * fname, struct ggml_context ** ctx_data,
    struct ggml_context ** ctx_eval) {
    GB_CHECK_ARG_RETURNING(ctx_data, NULL);
    GB_CHECK_ARG_RETURNING(ctx_eval, NULL);
    *ctx_data = NULL;
    *ctx_eval = NULL;
    GB_CHECK_ARG_RETURNING(fname, NULL);
    struct import in = { .fname = fname };
    if (!load_content(&in) || !read_graph(&in)) {
        ggml_free(in.ctx_data);
        ggml_free(in.ctx_eval);
        return NULL;
    }
    *ctx_data = in.ctx_data;
    *ctx_eval = in.ctx_eval;
    return in.graph;
}
