// graph_reorder.c - copies a graph with its nodes in an order that needs less memory (reorder.h
// finds it).
//
// Only memory that an allocator will give counts: results of nodes that have no memory yet.
#include "alloc/alloc.h"
#include "alloc/one_arena.h"
#include "alloc/reorder.h"
#include "base/mem.h"
#include "base/status.h"

static bool add_nodes(struct gb_ptrmap * ids, const struct ggml_cgraph * graph) {
    bool ok = true;
    for (int i = 0; ok && i < graph->n_nodes; i++) {
        ok = graph->nodes[i]->data != NULL || gb_one_arena_add(ids, graph->nodes[i]);
    }
    return ok;
}

static enum ggml_status find_order(struct gb_ptrmap * ids, const struct ggml_cgraph * graph, int * order) {
    struct gb_reorder_result result;
    if (order == NULL || !add_nodes(ids, graph)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    const struct gb_liveness_input in = gb_one_arena_input(graph, ids);
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
    struct gb_ptrmap ids = { 0 };
    int * order = gb_calloc((size_t) cgraph->n_nodes + 1, sizeof(*order));
    struct ggml_cgraph * copy =
        find_order(&ids, cgraph, order) == GGML_STATUS_SUCCESS ? copy_in_order(ctx, cgraph, order) : NULL;
    gb_ptrmap_free(&ids);
    gb_free(order);
    return copy;
}
