// collect.c - a graph's tensors as dense ids: the nodes in order, the leafs, then whatever else they refer to; and what
// memory each has.
//
// Ids are found from tensors already found, so walking the ids in order meets a tensor only after one that leads to it:
// a kept plan can be compared with a graph without ever following a stale pointer (plan.c).
#include "sched/sched.h"

#include <string.h>

#include "base/current.h"

// The id of a tensor, which gets one now if it has none. -1: no memory, or too many.
static int32_t id_of(struct gb_sched_plan * p, struct ggml_tensor * t) {
    const int64_t known = gb_ptrmap_get(&p->map, t);
    if (known != GB_PTRMAP_ABSENT) {
        return (int32_t) known;
    }
    GB_FAIL_IF_RETURNING(p->ids.n >= INT32_MAX, -1, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_backend_sched: the graph has too many tensors");
    const struct gb_id id = { .tensor = t, .root = -1 };
    return gb_ptrmap_set(&p->map, t, (int64_t) p->ids.n) && gb_vec_push(&p->ids, id) ? (int32_t) p->ids.n - 1 : -1;
}

static enum ggml_status add_nodes(struct gb_sched_plan * p, const struct ggml_cgraph * graph) {
    const size_t n = (size_t) graph->n_nodes + (size_t) graph->n_leafs;
    if (!gb_ptrmap_reserve(&p->map, n) || !gb_vec_reserve(&p->ids, n)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        struct ggml_tensor * t = graph->nodes[i];
        GB_FAIL_IF(t == NULL, GGML_STATUS_INVALID_ARGUMENT, "ggml_backend_sched: node %d of the graph is NULL", i);
        const int32_t id = id_of(p, t);
        GB_FAIL_IF(id >= 0 && id != i, GGML_STATUS_INVALID_ARGUMENT,
            "ggml_backend_sched: node %d of the graph, '%s', occurs twice", i, t->name);
        if (id < 0) {
            return ggml_last_status();
        }
    }
    for (int i = 0; i < graph->n_leafs; i++) {
        struct ggml_tensor * t = graph->leafs[i];
        GB_FAIL_IF(t == NULL, GGML_STATUS_INVALID_ARGUMENT, "ggml_backend_sched: leaf %d of the graph is NULL", i);
        if (id_of(p, t) < 0) {
            return ggml_last_status();
        }
    }
    return GGML_STATUS_SUCCESS;
}

typedef GB_VEC(int32_t) id_list;

static bool add_sources(struct gb_sched_plan * p, struct ggml_tensor * t, id_list * list) {
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        if (t->src[s]) {
            const int32_t id = id_of(p, t->src[s]);
            if (id < 0 || (t->src[s] != t && !gb_vec_push(list, id))) {
                return false;
            }
        }
    }
    return true;
}

// Sources of nodes, and roots of everything: each is looked up once, and gets an id where it is met first.
static bool add_reached(struct gb_sched_plan * p, id_list * list) {
    for (size_t i = 0; i < p->ids.n; i++) {
        struct ggml_tensor * t = p->ids.data[i].tensor;
        if (i < (size_t) p->n_nodes) {
            if (!add_sources(p, t, list)) {
                return false;
            }
            p->src_begin[i + 1] = (uint32_t) list->n;
        }
        const int32_t root = t->view_src ? id_of(p, t->view_src) : (int32_t) i;
        if (root < 0) {
            return false;
        }
        p->ids.data[i].root = root;
    }
    return true;
}

static enum ggml_status find_sources(struct gb_sched_plan * p) {
    id_list list  = { 0 };
    p->src_begin  = gb_calloc((size_t) p->n_nodes + 1, sizeof(*p->src_begin));
    const bool ok = p->src_begin != NULL && add_reached(p, &list);
    p->srcs       = list.data; // NULL when there are none
    p->n_ids      = (int) p->ids.n;
    return ok ? GGML_STATUS_SUCCESS : ggml_last_status();
}

// Results that nobody reads are what the user wants: their memory is kept, as is what was flagged.
static enum ggml_status find_outputs(struct gb_sched_plan * p) {
    uint8_t * is_read = gb_calloc((size_t) p->n_ids, 1);
    if (is_read == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (uint32_t k = 0; k < p->src_begin[p->n_nodes]; k++) {
        is_read[p->srcs[k]] = 1;
    }
    for (int i = 0; i < p->n_ids; i++) {
        const struct gb_id * id = &p->ids.data[i];
        if ((i < p->n_nodes && !is_read[i]) || gb_tensor_has_flag(id->tensor, GB_TENSOR_OUTPUT)) {
            p->ids.data[id->root].keep = true;
        }
    }
    gb_free(is_read);
    return GGML_STATUS_SUCCESS;
}

// --------------------------------------------------------------------------------------------------------- what memory

static enum ggml_status find_homes(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    for (int i = 0; i < p->n_ids; i++) {
        struct gb_id * id   = &p->ids.data[i];
        enum gb_home   home = GB_HOME_VIEW;
        if (id->root == i && !gb_sched_find_home(s, id->tensor, id->computes, p->user[i], &home)) {
            return ggml_last_status();
        }
        id->home = (uint8_t) home;
        id->buft = home == GB_HOME_USER ? id->tensor->buffer->buft : NULL;
        p->weight[i] =
            home == GB_HOME_USER && GB_READ_RELAXED(id->tensor->buffer->usage) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
        p->foreign |= home == GB_HOME_USER;
    }
    return GGML_STATUS_SUCCESS;
}

// ---------------------------------------------------------------------------------------------------------------------

static enum ggml_status allocate_tables(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    const size_t n = (size_t) p->n_ids;
    p->key         = gb_calloc(n, sizeof(*p->key));
    p->assignment  = gb_calloc(n, sizeof(*p->assignment));
    p->user        = gb_calloc(n, sizeof(*p->user));
    p->weight      = gb_calloc(n, sizeof(*p->weight));
    p->supports    = gb_calloc((size_t) p->n_nodes, (size_t) s->n_backends);
    p->nodes       = gb_calloc(n, sizeof(*p->nodes));
    p->need        = gb_calloc((size_t) s->n_backends, sizeof(*p->need));
    if (!p->key || !p->assignment || !p->user || !p->weight || !p->supports || !p->nodes || !p->need) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    return GGML_STATUS_SUCCESS;
}

// What a plan is found by again is a copy of each tensor, which is looked at while it is at hand.
static enum ggml_status fill_tables(const struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    const bool look = !gb_tensors_are_trusted();
    for (int i = 0; i < p->n_ids; i++) {
        struct gb_id *       id = &p->ids.data[i];
        struct ggml_tensor * t  = id->tensor;
        memcpy(&p->key[i], t, sizeof(*p->key));
        if (look) {
            GB_TRY(gb_tensor_check(t, "ggml_backend_sched"));
        }
        if (look && i < p->n_nodes) {
            GB_TRY(gb_node_check(t, "ggml_backend_sched"));
        }
        id->computes = i < p->n_nodes && !gb_op_is_view(t->op);
        p->nodes[i]  = t;
        p->user[i]   = gb_sched_user_of(s, t);
        p->has_users |= p->user[i] >= 0;
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status copy_leafs(struct gb_sched_plan * p, const struct ggml_cgraph * graph) {
    p->leafs = gb_calloc((size_t) graph->n_leafs, sizeof(*p->leafs));
    if (p->leafs == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (graph->n_leafs > 0) {
        memcpy(p->leafs, graph->leafs, (size_t) graph->n_leafs * sizeof(*p->leafs));
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_sched_collect(struct ggml_backend_sched * s, struct gb_sched_plan * p,
    const struct ggml_cgraph * graph) {
    p->n_nodes    = graph->n_nodes;
    p->n_leafs    = graph->n_leafs;
    p->n_backends = s->n_backends;
    p->policy     = s->policy;
    GB_TRY(add_nodes(p, graph));
    GB_TRY(gb_go_on());
    GB_TRY(find_sources(p));
    GB_TRY(gb_go_on());
    GB_TRY(find_outputs(p));
    GB_TRY(allocate_tables(s, p));
    GB_TRY(fill_tables(s, p));
    GB_TRY(gb_go_on());
    GB_TRY(copy_leafs(p, graph));
    return find_homes(s, p);
}
