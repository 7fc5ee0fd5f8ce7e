// graph_reorder.c - copies a graph with its nodes in an order that needs less memory (reorder.h
// finds it).
//
// Only memory that an allocator will give counts: results of nodes that have no memory yet.
#include "alloc/alloc.h"
#include "alloc/reorder.h"
#include "base/mem.h"
#include "base/status.h"

enum { ALIGNMENT = 32 };

struct numbers {
    struct gb_ptrmap map; // node to be placed -> its id
};

// -1: the tensor is a leaf, or has memory.
static int64_t id_of(void * user_data, const struct ggml_tensor * t) {
    const int64_t id = gb_ptrmap_get(&((struct numbers *) user_data)->map, t);
    return id == GB_PTRMAP_ABSENT ? -1 : id;
}

static int arena_of(void * user_data, int64_t id, const struct ggml_tensor * t) {
    (void) user_data;
    (void) id;
    (void) t;
    return 0;
}

static size_t size_of(void * user_data, int64_t id, const struct ggml_tensor * t) {
    (void) user_data;
    (void) id;
    return GGML_PAD(ggml_nbytes(t), ALIGNMENT);
}

static bool number_nodes(struct numbers * numbers, const struct ggml_cgraph * graph) {
    bool ok = true;
    for (int i = 0; ok && i < graph->n_nodes; i++) {
        const struct ggml_tensor * node = graph->nodes[i];
        if (node->view_src == NULL && node->data == NULL && gb_ptrmap_get(&numbers->map, node) == GB_PTRMAP_ABSENT) {
            ok = gb_ptrmap_set(&numbers->map, node, (int64_t) numbers->map.n);
        }
    }
    return ok;
}

static enum ggml_status find_order(struct numbers * numbers, const struct ggml_cgraph * graph, int * order) {
    struct gb_reorder_result result;
    if (order == NULL || !number_nodes(numbers, graph)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    const struct gb_liveness_input in = {
        .nodes = graph->nodes,
        .n_nodes = graph->n_nodes,
        .user_data = numbers,
        .id_of = id_of,
        .n_ids = (int64_t) numbers->map.n,
        .arena_of = arena_of,
        .size_of = size_of,
    };
    return gb_reorder(&in, order, &result);
}

// Gradients move with their nodes.
static struct ggml_cgraph * copy_in_order(struct ggml_context * ctx, struct ggml_cgraph * graph, const int * order) {
    struct ggml_cgraph * copy = ggml_graph_dup(ctx, graph);
    for (int k = 0; copy && k < graph->n_nodes; k++) {
        copy->nodes[k] = graph->nodes[order[k]];
        if (graph->grads) {
            copy->grads[k] = graph->grads[order[k]];
        }
    }
    return copy;
}

struct ggml_cgraph * ggml_graph_reorder(struct ggml_context * ctx, struct ggml_cgraph * cgraph) {
    GB_CHECK_ARG_RETURNING(ctx, NULL);
    if (gb_graph_check(cgraph, "cgraph", __func__) != GGML_STATUS_SUCCESS) {
        return NULL;
    }
    struct numbers numbers = { { 0 } };
    int * order = gb_calloc((size_t) cgraph->n_nodes + 1, sizeof(*order));
    struct ggml_cgraph * copy =
        find_order(&numbers, cgraph, order) == GGML_STATUS_SUCCESS ? copy_in_order(ctx, cgraph, order) : NULL;
    gb_ptrmap_free(&numbers.map);
    gb_free(order);
    return copy;
}
