// nodes.c - finds where tensors of devices lie, for messages of nodes (nodes.h).
#include "nodes.h"

#include "extension.h"
#include "ggml-backend-impl-ext.h"

void gbpy_bytes_free(struct gbpy_bytes * bytes) {
    if (bytes != NULL) {
        gb_free(bytes->data);
        *bytes = (struct gbpy_bytes){ NULL, 0 };
    }
}

static void find_flags(const struct ggml_tensor * t, struct gb_nodes_place * place) {
    place->weights = gbpy_device_weights(t) != NULL;
    place->may_leave_out = ggml_backend_may_leave_out(t);
}

static enum ggml_status find_nothing(void * context, const struct ggml_tensor * t, struct gb_nodes_place * place) {
    (void) context;
    find_flags(t, place);
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status find_place(void * device, const struct ggml_tensor * t, struct gb_nodes_place * place) {
    void * owner;
    size_t offset;
    find_flags(t, place);
    if (t->view_src != NULL || t->data == NULL) {
        return GGML_STATUS_SUCCESS;
    }
    if (gbpy_device_memory(t, &owner, &place->memory, &offset) && owner == device) {
        place->offset = offset;
        return GGML_STATUS_SUCCESS;
    }
    place->memory = 0;
    return ggml_nbytes(t) == 0
               ? GGML_STATUS_SUCCESS
               : gb_fail(GGML_STATUS_INVALID_ARGUMENT,
                     "'%.63s' does not lie in memory of the device: allocate it there, or let a Scheduler copy it",
                     t->name);
}

int gbpy_nodes_write(void * device, struct ggml_tensor ** nodes, int n, struct gbpy_bytes * bytes) {
    gb_nodes_bytes made = { 0 };
    const enum ggml_status status =
        gb_nodes_write(nodes, n, device != NULL, device != NULL ? find_place : find_nothing, device, &made);
    *bytes = (struct gbpy_bytes){ made.data, made.n };
    return (int) status;
}

// The number of a leaf in a list. Results and views have no place.
static enum ggml_status find_listed(void * numbers, const struct ggml_tensor * t, struct gb_nodes_place * place) {
    const int64_t number = gb_ptrmap_get(numbers, t);
    place->memory = number > 0 ? (uint64_t) number : 0;
    return GGML_STATUS_SUCCESS;
}

int gbpy_graph_write(struct ggml_tensor ** nodes, int n, struct ggml_tensor ** leafs, int n_leafs,
    struct gbpy_bytes * bytes) {
    struct gb_ptrmap numbers = { 0 };
    gb_nodes_bytes made = { 0 };
    enum ggml_status status = GGML_STATUS_SUCCESS;
    for (int i = 0; i < n_leafs && status == GGML_STATUS_SUCCESS; i++) {
        status = gb_ptrmap_set(&numbers, leafs[i], i + 1) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = gb_nodes_write(nodes, n, true, find_listed, &numbers, &made);
    }
    gb_ptrmap_free(&numbers);
    *bytes = (struct gbpy_bytes){ made.data, made.n };
    return (int) status;
}

struct gb_nodes * gbpy_nodes_read(const void * bytes, size_t size) { return gb_nodes_read(bytes, size); }

void gbpy_nodes_free(struct gb_nodes * nodes) { gb_nodes_free(nodes); }

struct ggml_cgraph * gbpy_nodes_graph(struct gb_nodes * nodes) { return &nodes->graph; }

int gbpy_nodes_n_memories(const struct gb_nodes * nodes) { return nodes->n_memories; }

uint64_t gbpy_nodes_memory(const struct gb_nodes * nodes, int i, bool * weights) {
    *weights = nodes->memories[i].weights;
    return nodes->memories[i].number;
}

void gbpy_nodes_set_memory(struct gb_nodes * nodes, int i, struct ggml_backend_buffer * buffer, void * base,
    size_t size) {
    struct gb_nodes_memory * m = &nodes->memories[i];
    m->buffer = buffer;
    m->base = base;
    m->size = size;
}

int gbpy_nodes_bind(struct gb_nodes * nodes) { return (int) gb_nodes_bind(nodes); }
