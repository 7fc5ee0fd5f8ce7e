// collect.c - gives the graph's tensors dense ids: the nodes in order, the leafs, then all other
// tensors to which nodes and leafs refer.
//
// A tensor gets its id when an earlier tensor refers to it. So a kept plan can be compared with a
// graph without following a stale pointer (match.c).
#include "sched/input/input.h"

#include <string.h>

#include "base/current.h"
#include "sched/sched.h"

// The id of a tensor. A tensor without an id gets a new one. -1: no memory, or too many tensors.
static int32_t id_of(struct gb_sched_input * in, struct ggml_tensor * t) {
    const int64_t known = gb_ptrmap_get(&in->map, t);
    if (known != GB_PTRMAP_ABSENT) {
        return (int32_t) known;
    }
    GB_FAIL_IF_RETURNING(in->ids.n >= INT32_MAX, -1, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_backend_sched: the graph has too many tensors");
    const struct gb_id id = { .tensor = t, .root = -1 };
    return gb_ptrmap_set(&in->map, t, (int64_t) in->ids.n) && gb_vec_push(&in->ids, id) ? (int32_t) in->ids.n - 1 : -1;
}

// Nodes and leafs get the first ids, so that the id of a node is its position.
static enum ggml_status add_nodes(struct gb_sched_input * in, const struct ggml_cgraph * graph) {
    const size_t n = (size_t) graph->n_nodes + (size_t) graph->n_leafs;
    if (!gb_ptrmap_reserve(&in->map, n) || !gb_vec_reserve(&in->ids, n)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        struct ggml_tensor * t = graph->nodes[i];
        GB_FAIL_IF(t == NULL, GGML_STATUS_INVALID_ARGUMENT, "ggml_backend_sched: node %d of the graph is NULL", i);
        const int32_t id = id_of(in, t);
        GB_FAIL_IF(id >= 0 && id != i, GGML_STATUS_INVALID_ARGUMENT,
            "ggml_backend_sched: node %d of the graph, '%s', occurs twice", i, t->name);
        if (id < 0) {
            return ggml_last_status();
        }
    }
    for (int i = 0; i < graph->n_leafs; i++) {
        struct ggml_tensor * t = graph->leafs[i];
        GB_FAIL_IF(t == NULL, GGML_STATUS_INVALID_ARGUMENT, "ggml_backend_sched: leaf %d of the graph is NULL", i);
        if (id_of(in, t) < 0) {
            return ggml_last_status();
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Sources of the nodes in order; becomes the array `srcs`.
typedef GB_VEC(int32_t) id_list;

// All sources get ids. A node that names itself is not its own source.
static bool add_sources(struct gb_sched_input * in, struct ggml_tensor * t, id_list * list) {
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        if (t->src[s]) {
            const int32_t id = id_of(in, t->src[s]);
            if (id < 0 || (t->src[s] != t && !gb_vec_push(list, id))) {
                return false;
            }
        }
    }
    return true;
}

// Looks up the sources of nodes and the roots of all tensors once. New tensors get ids.
static bool add_reached(struct gb_sched_input * in, id_list * list) {
    for (size_t i = 0; i < in->ids.n; i++) {
        struct ggml_tensor * t = in->ids.data[i].tensor;
        if (i + GB_TENSORS_AHEAD < in->ids.n) {
            gb_tensor_prefetch(in->ids.data[i + GB_TENSORS_AHEAD].tensor);
        }
        if (i < (size_t) in->n_nodes) {
            if (!add_sources(in, t, list)) {
                return false;
            }
            in->src_begin[i + 1] = (uint32_t) list->n;
        }
        const int32_t root = t->view_src ? id_of(in, t->view_src) : (int32_t) i;
        if (root < 0) {
            return false;
        }
        in->ids.data[i].root = root;
        in->ids.data[root].keep |= gb_tensor_has_flag(t, GB_TENSOR_OUTPUT);
    }
    return true;
}

// The sources of node i are srcs[src_begin[i]] to srcs[src_begin[i + 1] - 1].
static enum ggml_status find_sources(struct gb_sched_input * in) {
    id_list list = { 0 };
    in->src_begin = gb_calloc((size_t) in->n_nodes + 1, sizeof(*in->src_begin));
    // most nodes have at most two
    const bool ok = in->src_begin != NULL && gb_vec_reserve(&list, 2 * (size_t) in->n_nodes) && add_reached(in, &list);
    in->srcs = list.data;
    in->n_ids = (int) in->ids.n;
    return ok ? GGML_STATUS_SUCCESS : ggml_last_status();
}

// Results that no node reads are outputs: their memory is kept, as is that of flagged tensors.
static enum ggml_status keep_unread(struct gb_sched_input * in) {
    uint8_t * is_read = gb_calloc((size_t) in->n_nodes, 1);
    if (is_read == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (uint32_t k = 0; k < in->src_begin[in->n_nodes]; k++) {
        if (in->srcs[k] < in->n_nodes) {
            is_read[in->srcs[k]] = 1;
        }
    }
    for (int i = 0; i < in->n_nodes; i++) {
        in->ids.data[in->ids.data[i].root].keep |= !is_read[i];
    }
    gb_free(is_read);
    return GGML_STATUS_SUCCESS;
}

// --------------------------------------------------------------------------------------------------------- what memory

// The location of a tensor. A leaf moves if the user has chosen another backend for it.
static bool find_location(const struct ggml_backend_sched * s, struct gb_sched_input * in, int i, gb_locate_fn locate) {
    struct gb_id * id = &in->ids.data[i];
    enum gb_location location = GB_LOCATION_VIEW;
    if (id->root == i && !locate(s, id->tensor, id->computes, in->chosen[i], &location)) {
        return false;
    }
    id->location = (uint8_t) location;
    if (location == GB_LOCATION_USER) {
        id->buft = id->tensor->buffer->buft;
        in->weight[i] = GB_READ_RELAXED(id->tensor->buffer->usage) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
        in->foreign = true;
    }
    return true;
}

// ---------------------------------------------------------------------------------------------------------------------

// Allocates the tables per id.
static enum ggml_status allocate_tables(struct gb_sched_input * in) {
    const size_t n = (size_t) in->n_ids;
    in->chosen = gb_calloc(n, sizeof(*in->chosen));
    in->weight = gb_calloc(n, sizeof(*in->weight));
    in->nodes = gb_calloc(n, sizeof(*in->nodes));
    if (!gb_keys_reserve(&in->keys, n) || !in->chosen || !in->weight || !in->nodes) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    return GGML_STATUS_SUCCESS;
}

// Reads each tensor once, while it is in the processor's cache: checks it, stores its record and
// finds its location.
static enum ggml_status fill_tables(const struct ggml_backend_sched * s, struct gb_sched_input * in,
    gb_locate_fn locate) {
    const bool look = !gb_tensors_are_trusted();
    for (int i = 0; i < in->n_ids; i++) {
        struct gb_id * id = &in->ids.data[i];
        struct ggml_tensor * t = id->tensor;
        if (look) {
            GB_TRY(gb_tensor_check(t, "ggml_backend_sched"));
        }
        if (look && i < in->n_nodes) {
            GB_TRY(gb_node_check(t, "ggml_backend_sched"));
        }
        if (!gb_keys_add(&in->keys, t)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
        id->computes = i < in->n_nodes && gb_op_computes(t->op);
        in->nodes[i] = t;
        in->chosen[i] = gb_sched_chosen_for(s, t);
        in->has_chosen |= in->chosen[i] >= 0;
        if (!find_location(s, in, i, locate)) {
            return ggml_last_status();
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Copies the graph's list of leafs, to compare it later.
static enum ggml_status copy_leafs(struct gb_sched_input * in, const struct ggml_cgraph * graph) {
    in->leafs = gb_calloc((size_t) graph->n_leafs, sizeof(*in->leafs));
    if (in->leafs == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (graph->n_leafs > 0) {
        memcpy(in->leafs, graph->leafs, (size_t) graph->n_leafs * sizeof(*in->leafs));
    }
    return GGML_STATUS_SUCCESS;
}

// Sources come first, because they determine the number of ids. Locations come last, because they
// depend on which nodes compute and on the user's choices.
enum ggml_status gb_sched_collect(const struct ggml_backend_sched * s, struct gb_sched_input * in,
    const struct ggml_cgraph * graph, gb_locate_fn locate) {
    in->n_nodes = graph->n_nodes;
    in->n_leafs = graph->n_leafs;
    in->n_backends = s->n_backends;
    in->policy = s->policy;
    GB_TRY(add_nodes(in, graph));
    GB_TRY(gb_check_poll());
    GB_TRY(find_sources(in));
    GB_TRY(gb_check_poll());
    GB_TRY(keep_unread(in));
    GB_TRY(allocate_tables(in));
    GB_TRY(fill_tables(s, in, locate));
    GB_TRY(gb_check_poll());
    return copy_leafs(in, graph);
}

void gb_sched_free_input(struct gb_sched_input * in) {
    gb_ptrmap_free(&in->map);
    gb_vec_free(&in->ids);
    gb_free(in->nodes);
    gb_free(in->leafs);
    gb_keys_free(&in->keys);
    gb_free(in->src_begin);
    gb_free(in->srcs);
    gb_free(in->chosen);
    gb_free(in->weight);
}
