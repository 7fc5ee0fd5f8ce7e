// compare.c - runs one graph on two backends, node by node.
//
// The second backend runs a copy. The first backend runs the given graph, so afterwards its tensors
// hold the results of backend1, as after ggml_backend_graph_compute. The copy is made before
// anything runs, so both graphs start from the same data.
#include "backend/backend.h"

// Computes node i alone and waits for it.
static enum ggml_status compute_node(ggml_backend_t backend, struct ggml_cgraph * graph, int i) {
    struct ggml_cgraph view = ggml_graph_view(graph, i, i + 1);
    if (!ggml_backend_graph_compute(backend, &view)) {
        return ggml_last_status();
    }
    return ggml_backend_synchronize(backend);
}

// True if every node ran or the callback stopped the comparison. False on an error.
bool ggml_backend_compare_graph_backend(ggml_backend_t backend1, ggml_backend_t backend2, struct ggml_cgraph * graph,
    ggml_backend_eval_callback callback, void * user_data) {
    GB_CHECK_ARG_RETURNING(backend1, false);
    GB_CHECK_ARG_RETURNING(backend2, false);
    GB_CHECK_ARG_RETURNING(graph, false);
    GB_CHECK_ARG_RETURNING(callback, false);
    struct ggml_backend_graph_copy copy = ggml_backend_graph_copy(backend2, graph);
    if (copy.graph == NULL) {
        return false;
    }
    bool ok = true;
    for (int i = 0; ok && i < graph->n_nodes; i++) {
        struct ggml_tensor * t1 = graph->nodes[i];
        struct ggml_tensor * t2 = copy.graph->nodes[i];
        if (!gb_op_computes(t1->op)) {
            continue;
        }
        ok = compute_node(backend1, graph, i) == GGML_STATUS_SUCCESS &&
             compute_node(backend2, copy.graph, i) == GGML_STATUS_SUCCESS;
        if (ok && !callback(i, t1, t2, user_data)) {
            break;
        }
    }
    ggml_backend_graph_copy_free(copy);
    return ok;
}
