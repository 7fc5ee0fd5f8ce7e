// graph_copy.c - a deep copy of a graph, with its data, on a backend.
//
// Every tensor that the graph reaches through sources (all slots) and view sources is copied once,
// into one of two contexts. The first context has the tensors that own memory, in one buffer. The
// second context has views and unplaced tensors. A map from old to new tensors rebuilds the
// structure. No function recurses, and a tensor may be its own source.
#include <string.h>

#include "backend/backend.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/vec.h"
#include "ggml-alloc.h"

// The state of one copy. If a step fails, the result is freed as a whole.
struct copier {
    struct ggml_cgraph * graph;
    struct gb_ptrmap ids;                  // old tensor -> index
    GB_VEC(struct ggml_tensor *) old;      // in order of discovery
    struct ggml_tensor ** copies;          // owned, by index
    struct ggml_backend_graph_copy result; // owned until handed out
};

// Gives a tensor the next index unless it has one. NULL is allowed.
static enum ggml_status discover(struct copier * c, struct ggml_tensor * t) {
    if (t == NULL || gb_ptrmap_get(&c->ids, t) != GB_PTRMAP_ABSENT) {
        return GGML_STATUS_SUCCESS;
    }
    const bool ok = gb_ptrmap_set(&c->ids, t, (int64_t) c->old.n) && gb_vec_push(&c->old, t);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

// Breadth first, with the list of found tensors as the queue. Then checks tensors and nodes unless
// they are trusted.
static enum ggml_status discover_all(struct copier * c) {
    const struct ggml_cgraph * graph = c->graph;
    for (int i = 0; i < graph->n_leafs; i++) {
        GB_TRY(discover(c, graph->leafs[i]));
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        GB_TRY(discover(c, graph->nodes[i]));
        if (graph->grads) {
            GB_TRY(discover(c, graph->grads[i]));
        }
    }
    for (size_t i = 0; i < c->old.n; i++) { // the list grows while it is read
        struct ggml_tensor * t = c->old.data[i];
        GB_TRY(discover(c, t->view_src));
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            GB_TRY(discover(c, t->src[s]));
        }
    }
    if (gb_tensors_are_trusted()) {
        return GGML_STATUS_SUCCESS;
    }
    for (size_t i = 0; i < c->old.n; i++) {
        GB_TRY(gb_tensor_check(c->old.data[i], "ggml_backend_graph_copy"));
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        GB_TRY(gb_node_check(graph->nodes[i], "ggml_backend_graph_copy"));
    }
    return GGML_STATUS_SUCCESS;
}

// The copy of a tensor. NULL for NULL, and for a tensor that the graph does not reach, such as a
// gradient.
static struct ggml_tensor * copy_of(const struct copier * c, const struct ggml_tensor * t) {
    const int64_t id = t ? gb_ptrmap_get(&c->ids, t) : GB_PTRMAP_ABSENT;
    return id == GB_PTRMAP_ABSENT ? NULL : c->copies[id];
}

// These tensors get memory on the backend. A view gets the memory of its source.
static bool owns_memory(const struct ggml_tensor * t) { return t->view_src == NULL && t->data != NULL; }

// The sizes are estimates, because contexts grow.
static enum ggml_status make_contexts(struct copier * c) {
    size_t n_owners = 0;
    for (size_t i = 0; i < c->old.n; i++) {
        n_owners += owns_memory(c->old.data[i]);
    }
    // the contexts hold descriptions only: their data lives in the backend's buffer
    const size_t overhead = ggml_tensor_overhead();
    const struct ggml_init_params allocated = { n_owners * overhead + ggml_graph_overhead(), NULL, true };
    const struct ggml_init_params unallocated = { (c->old.n - n_owners) * overhead + 1, NULL, true };
    c->result.ctx_allocated = ggml_init(allocated);
    c->result.ctx_unallocated = c->result.ctx_allocated ? ggml_init(unallocated) : NULL;
    return c->result.ctx_unallocated ? GGML_STATUS_SUCCESS : ggml_last_status();
}

// Copies the tensor itself. Pointers to other tensors are set when all copies exist.
static struct ggml_tensor * copy_tensor(struct copier * c, const struct ggml_tensor * t) {
    struct ggml_context * ctx = owns_memory(t) ? c->result.ctx_allocated : c->result.ctx_unallocated;
    struct ggml_tensor * copy = ggml_new_tensor(ctx, t->type, GGML_MAX_DIMS, t->ne);
    if (copy == NULL) {
        return NULL;
    }
    memcpy(copy->nb, t->nb, sizeof(copy->nb));
    memcpy(copy->op_params, t->op_params, sizeof(copy->op_params));
    memcpy(copy->name, t->name, sizeof(copy->name));
    copy->op = t->op;
    copy->is_param = t->is_param;
    copy->view_offs = t->view_offs;
    gb_tensor_copy_state(copy, t);
    return copy;
}

// Two passes, because a source may come later in the list than its reader.
static enum ggml_status copy_structure(struct copier * c) {
    c->copies = gb_calloc(c->old.n, sizeof(*c->copies));
    if (c->copies == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (size_t i = 0; i < c->old.n; i++) {
        c->copies[i] = copy_tensor(c, c->old.data[i]);
        if (c->copies[i] == NULL) {
            return ggml_last_status();
        }
    }
    for (size_t i = 0; i < c->old.n; i++) {
        c->copies[i]->view_src = copy_of(c, c->old.data[i]->view_src);
        c->copies[i]->grad = copy_of(c, c->old.data[i]->grad);
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            c->copies[i]->src[s] = copy_of(c, c->old.data[i]->src[s]);
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Places sources of views before it binds views, and binds views before it copies data.
static enum ggml_status copy_data(struct copier * c, ggml_backend_t backend) {
    const uint64_t before = gb_fail_count();
    c->result.buffer = ggml_backend_alloc_ctx_tensors(c->result.ctx_allocated, backend);
    GB_TRY(gb_status_since(before));  // no buffer and no failure: nothing to place
    for (size_t i = 0; i < c->old.n; i++) {
        struct ggml_tensor * t = c->old.data[i];
        struct ggml_tensor * copy = c->copies[i];
        if (owns_memory(t)) {
            GB_TRY(ggml_backend_tensor_copy(t, copy));
        } else if (copy->view_src && copy->view_src->data) {
            GB_TRY(ggml_backend_view_init(copy->view_src->buffer, copy));
        }
    }
    return GGML_STATUS_SUCCESS;
}

// The copy has the same order of nodes and leafs, so index i is the same node in both.
static enum ggml_status copy_graph(struct copier * c) {
    const struct ggml_cgraph * graph = c->graph;
    const size_t size = (size_t) GB_MAX(GB_MAX(graph->n_nodes, graph->n_leafs), 1);
    struct ggml_cgraph * copy = ggml_new_graph_custom(c->result.ctx_allocated, size, graph->grads != NULL);
    if (copy == NULL) {
        return ggml_last_status();
    }
    for (int i = 0; i < graph->n_leafs; i++) {
        copy->leafs[i] = copy_of(c, graph->leafs[i]);
        ggml_hash_insert(copy->visited_hash_table, copy->leafs[i]);
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        copy->nodes[i] = copy_of(c, graph->nodes[i]);
        ggml_hash_insert(copy->visited_hash_table, copy->nodes[i]);
        if (copy->grads) {
            copy->grads[i] = copy_of(c, graph->grads[i]);
        }
    }
    copy->n_leafs = graph->n_leafs;
    copy->n_nodes = graph->n_nodes;
    copy->order = graph->order;
    c->result.graph = copy;
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status copy_all(struct copier * c, ggml_backend_t backend) {
    GB_TRY(gb_graph_check(c->graph, "graph", "ggml_backend_graph_copy"));
    GB_TRY(discover_all(c));
    GB_TRY(make_contexts(c));
    GB_TRY(copy_structure(c));
    GB_TRY(copy_graph(c));
    return copy_data(c, backend);
}

// If other backends have queued work on the graph's tensors, the caller waits for it.
struct ggml_backend_graph_copy ggml_backend_graph_copy(ggml_backend_t backend, struct ggml_cgraph * graph) {
    struct copier c = { .graph = graph };
    GB_CHECK_ARG_RETURNING(backend, c.result);
    GB_CHECK_ARG_RETURNING(graph, c.result);
    if (copy_all(&c, backend) != GGML_STATUS_SUCCESS) {
        ggml_backend_graph_copy_free(c.result);
        c.result = (struct ggml_backend_graph_copy){ 0 };
    }
    gb_ptrmap_free(&c.ids);
    gb_vec_free(&c.old);
    gb_free(c.copies);
    return c.result;
}

// Members may be NULL, as after a failed copy.
void ggml_backend_graph_copy_free(struct ggml_backend_graph_copy copy) {
    ggml_backend_buffer_free(copy.buffer);
    ggml_free(copy.ctx_allocated);
    ggml_free(copy.ctx_unallocated);
}
