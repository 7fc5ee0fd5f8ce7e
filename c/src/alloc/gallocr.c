// gallocr.c - a graph allocator: gives every tensor of a graph memory, reusing that of tensors no longer needed.
//
// Two phases. The first walks the graph and only decides: it takes and gives back bytes of the pools and writes down,
// as a list of events, what is bound where. Tensors are looked at, never touched, so measuring is the same walk and
// takes the same decisions. The second phase carries the events out in their order (for a measure allocator that is a
// note in its table). When anything fails the pools are put back as they were and tensors bound by this call are
// unplaced again.
//
// Per tensor the walk counts readers (source slots of nodes, every slot counts, a node's own does not) and views. Bytes
// go back when both are used up; those of a view's source when it was the last view. What nobody reads is never counted
// down, so it stays: outputs need no rule of their own.
#include "alloc/alloc.h"
#include "alloc/liveness.h"
#include "base/mem.h"
#include "base/vec.h"

struct ggml_gallocr {
    GB_VEC(int) parse_seq; // node indices in execution order, BARRIER between them; empty: node order, one after each
};

enum { NONE = -1, BARRIER = -1 };

struct info { // of a tensor
    struct ggml_tensor * tensor;
    ggml_tallocr_t       talloc;   // NULL: none was given
    int64_t              root;     // id of the tensor that owns the memory: its own, or its source's for a view
    int64_t              block;    // bytes taken in this call; NONE
    int                  position; // in the execution order; NONE: no node
    int                  n_readers, n_views; // left
    bool                 placed;             // before this call, or in it
    bool                 input, keep;
    bool                 hidden; // a view of it is read that is no node
    bool                 once;   // exactly one reader, and nobody looks at it afterwards
};

struct block { // bytes taken in this call
    ggml_tallocr_t talloc;
    size_t         offset, size;
    int64_t        owner; // tensor id: the last one that took the bytes over
};

enum event_kind { EVENT_BIND, EVENT_VIEW, EVENT_RELEASE };

struct event {
    enum event_kind       kind;
    int64_t               id;
    size_t                offset;   // BIND
    void *                old_data; // VIEW, for the undo
    ggml_backend_buffer_t old_buffer;
};

struct pool_of { // a tensor allocator of this call, and how it was before
    ggml_tallocr_t        talloc;
    struct gb_offset_pool before;
};

struct job { // one call
    struct ggml_cgraph * graph;
    ggml_tallocr_t       talloc; // of every tensor, or NULL: look it up in
    struct ggml_hash_set set;
    ggml_tallocr_t *     by_slot;
    bool                 measuring; // some allocator measures
    struct gb_ptrmap     ids;
    GB_VEC(struct info) infos;
    GB_VEC(struct block) blocks;
    GB_VEC(struct event) events;
    GB_VEC(struct pool_of) pools;
    GB_VEC(int) order; // node indices and barriers, the last one a barrier
};

// ------------------------------------------------------------------------------------------------------------- handles

ggml_gallocr_t ggml_gallocr_new(void) { return GB_NEW(struct ggml_gallocr); }

void ggml_gallocr_free(ggml_gallocr_t galloc) {
    if (galloc) {
        gb_vec_free(&galloc->parse_seq);
        gb_free(galloc);
    }
}

enum ggml_status ggml_gallocr_set_parse_seq(ggml_gallocr_t galloc, const int * list, int n) {
    GB_CHECK_ARG(galloc);
    GB_FAIL_IF(n < 0 || (n > 0 && list == NULL), GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'list': %d entries at %p",
        __func__, n, (const void *) list);
    for (int i = 0; i < n; i++) {
        GB_FAIL_IF(list[i] < BARRIER, GGML_STATUS_INVALID_ARGUMENT,
            "%s: argument 'list': entry %d is %d, neither a node index nor -1", __func__, i, list[i]);
    }
    if (!gb_vec_reserve(&galloc->parse_seq, (size_t) n)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (n > 0) {
        memcpy(galloc->parse_seq.data, list, (size_t) n * sizeof(*list));
    }
    galloc->parse_seq.n = (size_t) n;
    return GGML_STATUS_SUCCESS;
}

// ------------------------------------------------------------------------------------------------------- what is there

static ggml_tallocr_t look_up(const struct job * job, struct ggml_tensor * t) {
    if (job->talloc) {
        return job->talloc;
    }
    const size_t slot = ggml_hash_find(job->set, t);
    return slot != GGML_HASHTABLE_FULL && job->set.keys[slot] == t ? job->by_slot[slot] : NULL;
}

static enum ggml_status remember_pool(struct job * job, ggml_tallocr_t talloc) {
    for (size_t i = 0; i < job->pools.n; i++) {
        if (job->pools.data[i].talloc == talloc) {
            return GGML_STATUS_SUCCESS;
        }
    }
    struct pool_of pool = { .talloc = talloc };
    if (!gb_vec_reserve(&job->pools, job->pools.n + 1) || !gb_pool_copy(&pool.before, &talloc->pool)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    job->pools.data[job->pools.n++] = pool;
    job->measuring |= ggml_tallocr_is_measure(talloc);
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status add_event(struct job * job, enum event_kind kind, int64_t id, size_t offset) {
    const struct event event = { .kind = kind, .id = id, .offset = offset };
    return gb_vec_push(&job->events, event) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

static enum ggml_status add_tensor(struct job * job, struct ggml_tensor * t, int64_t root, int64_t * id) {
    const struct info info = {
        .tensor   = t,
        .talloc   = look_up(job, t),
        .root     = root == NONE ? (int64_t) job->infos.n : root,
        .block    = NONE,
        .position = NONE,
        .input    = gb_tensor_has_flag(t, GB_TENSOR_INPUT),
        .keep     = gb_tensor_has_flag(t, GB_TENSOR_OUTPUT),
    };
    if (info.talloc) {
        GB_TRY(remember_pool(job, info.talloc));
    }
    *id = (int64_t) job->infos.n;
    if (!gb_vec_push(&job->infos, info) || !gb_ptrmap_set(&job->ids, t, *id)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (root == NONE) {
        job->infos.data[*id].placed = gb_tallocr_is_placed(info.talloc, t);
    } else {
        job->infos.data[root].n_views++;
        job->infos.data[root].input |= info.input;
        job->infos.data[root].keep |= info.keep;
    }
    return GGML_STATUS_SUCCESS;
}

// The id of a tensor, which is added when it is new; a view's source comes before it.
static enum ggml_status id_of(struct job * job, struct ggml_tensor * t, int64_t * id) {
    *id = gb_ptrmap_get(&job->ids, t);
    if (*id != GB_PTRMAP_ABSENT) {
        return GGML_STATUS_SUCCESS;
    }
    int64_t root = NONE;
    if (t->view_src) {
        GB_FAIL_IF(t->view_src->view_src != NULL, GGML_STATUS_INVALID_ARGUMENT,
            "ggml_gallocr_alloc_graph: '%s' is a view of '%s', which is a view itself", t->name, t->view_src->name);
        root = gb_ptrmap_get(&job->ids, t->view_src);
        if (root == GB_PTRMAP_ABSENT) {
            GB_TRY(add_tensor(job, t->view_src, NONE, &root));
        }
    }
    return add_tensor(job, t, root, id);
}

static struct info * info_at(struct job * job, int64_t id) { return &job->infos.data[id]; }

// Of a tensor that was added.
static int64_t known_id(const struct job * job, const struct ggml_tensor * t) { return gb_ptrmap_get(&job->ids, t); }

static enum ggml_status add_nodes(struct job * job) {
    const struct ggml_cgraph * graph = job->graph;
    int64_t                    id;
    for (int i = 0; i < graph->n_nodes; i++) {
        struct ggml_tensor * node = graph->nodes[i];
        GB_TRY(id_of(job, node, &id));
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            if (node->src[s] && node->src[s] != node) {
                GB_TRY(id_of(job, node->src[s], &id));
                info_at(job, id)->n_readers++;
            }
        }
    }
    for (int i = 0; i < graph->n_leafs; i++) {
        GB_TRY(id_of(job, graph->leafs[i], &id));
    }
    return GGML_STATUS_SUCCESS;
}

// The execution order, and each node's position in it. Every node once, after the nodes that it reads.
static enum ggml_status make_order(struct job * job, const struct ggml_gallocr * galloc) {
    const int  n_nodes = job->graph->n_nodes;
    const bool given   = galloc->parse_seq.n > 0;
    const int  n_seq   = given ? (int) galloc->parse_seq.n : n_nodes;
    int        n_found = 0;
    if (!gb_vec_reserve(&job->order, 2 * (size_t) n_seq + 1)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (int k = 0; k < n_seq; k++) {
        const int i = given ? galloc->parse_seq.data[k] : k;
        if (i != BARRIER) {
            GB_FAIL_IF(i >= n_nodes, GGML_STATUS_INVALID_ARGUMENT,
                "ggml_gallocr_alloc_graph: the parse sequence names node %d, the graph has %d", i, n_nodes);
            struct info * info = info_at(job, known_id(job, job->graph->nodes[i]));
            GB_FAIL_IF(info->position != NONE, GGML_STATUS_INVALID_ARGUMENT,
                "ggml_gallocr_alloc_graph: node %d, '%s', occurs twice", i, info->tensor->name);
            info->position = n_found++;
        }
        job->order.data[job->order.n++] = i;
        if (!given) {
            job->order.data[job->order.n++] = BARRIER;
        }
    }
    job->order.data[job->order.n++] = BARRIER;
    GB_FAIL_IF(n_found != n_nodes, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_gallocr_alloc_graph: the parse sequence lists %d nodes, the graph has %d", n_found, n_nodes);
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status check_order(struct job * job) {
    for (int i = 0; i < job->graph->n_nodes; i++) {
        const struct ggml_tensor * node = job->graph->nodes[i];
        const int                  at   = info_at(job, known_id(job, node))->position;
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            const struct info * src = node->src[s] ? info_at(job, known_id(job, node->src[s])) : NULL;
            GB_FAIL_IF(src && src->position > at, GGML_STATUS_INVALID_ARGUMENT,
                "ggml_gallocr_alloc_graph: '%s' reads '%s', which is computed later", node->name, src->tensor->name);
        }
    }
    return GGML_STATUS_SUCCESS;
}

// What is computed here, has one reader and is wanted by nobody else. The readers of a view are not those of its
// source: a view that is a node reads its source, and one that is none hides who does.
static void find_read_once(struct job * job) {
    for (size_t id = 0; id < job->infos.n; id++) {
        const struct info * info = info_at(job, (int64_t) id);
        if (info->root != (int64_t) id && info->position == NONE) {
            info_at(job, info->root)->hidden = true;
        }
    }
    for (size_t id = 0; id < job->infos.n; id++) {
        struct info *       info = info_at(job, (int64_t) id);
        const struct info * root = info_at(job, info->root);
        info->once = info->n_readers == 1 && info->position != NONE && root->position != NONE && !root->placed &&
                     !root->keep && !root->input && !root->hidden;
    }
}

// ------------------------------------------------------------------------------------------------------------ deciding

// The bytes of a source that `node` may compute into; NONE if there are none.
static int64_t block_to_take_over(struct job * job, int64_t node_id, size_t size) {
    const struct info * node = info_at(job, node_id);
    if (node->input) {
        return NONE;
    }
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        struct ggml_tensor * src = node->tensor->src[s];
        if (src == NULL || src == node->tensor || !gb_can_take_over(node->tensor, src)) {
            continue;
        }
        const struct info *  info  = info_at(job, known_id(job, src));
        const struct info *  root  = info_at(job, info->root);
        const struct block * block = root->block == NONE ? NULL : &job->blocks.data[root->block];
        const bool           last =
            src->view_src ? root->n_views == 1 && root->n_readers == 0 && src->view_offs == 0 : root->n_views == 0;
        if (block && last && info->n_readers == 1 && !root->keep && block->owner == info->root &&
            block->talloc == node->talloc && size <= block->size) {
            return root->block;
        }
    }
    return NONE;
}

// Memory for a tensor that owns its own.
static enum ggml_status place_owner(struct job * job, int64_t id) {
    struct info * info = info_at(job, id);
    GB_FAIL_IF(info->talloc == NULL, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_gallocr_alloc_graph: tensor '%s' is not placed and has no allocator", info->tensor->name);
    size_t size;
    if (!gb_tallocr_size_of(info->talloc, info->tensor, &size)) {
        return GGML_STATUS_INVALID_ARGUMENT;
    }
    info->block = block_to_take_over(job, id, size);
    if (info->block != NONE) {
        job->blocks.data[info->block].owner = id;
    } else {
        struct block block = { .talloc = info->talloc, .owner = id };
        if (!gb_vec_reserve(&job->blocks, job->blocks.n + 1)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
        GB_TRY(gb_tallocr_take(info->talloc, info->tensor, "ggml_gallocr_alloc_graph", &block.offset, &block.size));
        info->block                       = (int64_t) job->blocks.n;
        job->blocks.data[job->blocks.n++] = block;
    }
    info->placed = true;
    return add_event(job, EVENT_BIND, id, job->blocks.data[info->block].offset);
}

// A view whose source was placed beforehand may be bound already; one placed in this call never is.
static bool needs_binding(const struct job * job, const struct info * view, const struct info * root) {
    if (root->block != NONE) {
        return true;
    }
    return !job->measuring && root->tensor->data != NULL &&
           (view->tensor->buffer != root->tensor->buffer ||
               view->tensor->data != (char *) root->tensor->data + view->tensor->view_offs);
}

static enum ggml_status place(struct job * job, int64_t id) {
    struct info * info = info_at(job, id);
    if (info->placed) {
        return GGML_STATUS_SUCCESS;
    }
    if (info->root == id) {
        return place_owner(job, id);
    }
    if (!info_at(job, info->root)->placed) {
        GB_TRY(place_owner(job, info->root));
    }
    info->placed = true;
    return needs_binding(job, info, info_at(job, info->root)) ? add_event(job, EVENT_VIEW, id, 0) : GGML_STATUS_SUCCESS;
}

// Gives the bytes back when nobody needs them any more; a view takes its source along.
static enum ggml_status release_unused(struct job * job, int64_t id) {
    struct info * info = info_at(job, id);
    while (info->n_readers == 0 && info->n_views == 0 && !info->keep) {
        if (info->root != id) {
            id   = info->root;
            info = info_at(job, id);
            info->n_views--;
            continue;
        }
        if (info->block != NONE && job->blocks.data[info->block].owner == id) {
            struct block * block = &job->blocks.data[info->block];
            gb_pool_give_back(&block->talloc->pool, block->offset, block->size);
            block->owner = NONE;
            return add_event(job, EVENT_RELEASE, id, 0);
        }
        break;
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status release_sources(struct job * job, const struct ggml_tensor * node) {
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        if (node->src[s] && node->src[s] != node) {
            const int64_t id = known_id(job, node->src[s]);
            info_at(job, id)->n_readers--;
            GB_TRY(release_unused(job, id));
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Views of what was placed beforehand; inputs; and leafs that are results themselves.
static enum ggml_status place_first(struct job * job) {
    for (size_t id = 0; id < job->infos.n; id++) {
        const struct info * info           = info_at(job, (int64_t) id);
        const bool          view_of_placed = info->root != (int64_t) id && info_at(job, info->root)->placed;
        const bool          unread_leaf =
            info->root == (int64_t) id && info->position == NONE && info->n_readers == 0 && info->n_views == 0;
        if (view_of_placed || unread_leaf || (info->input && info->root == (int64_t) id)) {
            GB_TRY(place(job, (int64_t) id));
        }
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status place_node(struct job * job, const struct ggml_tensor * node) {
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        if (node->src[s] && node->src[s] != node) {
            GB_TRY(place(job, known_id(job, node->src[s])));
        }
    }
    return place(job, known_id(job, node));
}

static enum ggml_status walk(struct job * job) {
    GB_TRY(place_first(job));
    size_t released = 0; // sources of the nodes before this place in the order were given back
    for (size_t k = 0; k < job->order.n; k++) {
        if (job->order.data[k] != BARRIER) {
            GB_TRY(place_node(job, job->graph->nodes[job->order.data[k]]));
            continue;
        }
        for (; released < k; released++) {
            if (job->order.data[released] != BARRIER) {
                GB_TRY(release_sources(job, job->graph->nodes[job->order.data[released]]));
            }
        }
    }
    return GGML_STATUS_SUCCESS;
}

// -------------------------------------------------------------------------------------------------------- carrying out

static enum ggml_status bind_view(struct job * job, struct event * event) {
    const struct info *  info = info_at(job, event->id);
    const struct info *  root = info_at(job, info->root);
    struct ggml_tensor * view = info->tensor;
    event->old_data           = view->data;
    event->old_buffer         = view->buffer;
    if (root->block != NONE && ggml_tallocr_is_measure(root->talloc)) {
        return GGML_STATUS_SUCCESS;
    }
    gb_tensor_put(view, root->tensor->buffer, (char *) root->tensor->data + view->view_offs);
    return view->buffer ? ggml_backend_buffer_init_tensor(view->buffer, view) : GGML_STATUS_SUCCESS;
}

static enum ggml_status carry_out(struct job * job, struct event * event) {
    const struct info * info = info_at(job, event->id);
    switch (event->kind) {
        case EVENT_BIND:
            if (info->talloc->buffer) {
                info->talloc->buffer->arena = true;
            }
            return gb_tallocr_bind(info->talloc, info->tensor, event->offset);
        case EVENT_VIEW: return bind_view(job, event);
        case EVENT_RELEASE: break;
    }
    return gb_tallocr_release(info->talloc, info->tensor);
}

// Takes back the first n events.
static void undo(struct job * job, size_t n) {
    while (n-- > 0) {
        const struct event * event = &job->events.data[n];
        const struct info *  info  = info_at(job, event->id);
        if (event->kind == EVENT_BIND) {
            gb_tallocr_unbind(info->talloc, info->tensor);
        } else if (event->kind == EVENT_VIEW) {
            const bool ours = info_at(job, info->root)->block != NONE;
            gb_tensor_put(info->tensor, ours ? NULL : event->old_buffer, ours ? NULL : event->old_data);
        }
    }
}

static enum ggml_status carry_out_all(struct job * job) {
    for (size_t i = 0; i < job->events.n; i++) {
        const enum ggml_status status = carry_out(job, &job->events.data[i]);
        if (status != GGML_STATUS_SUCCESS) {
            // a bind that failed left nothing; a view that failed is bound
            undo(job, job->events.data[i].kind == EVENT_VIEW ? i + 1 : i);
            return status;
        }
    }
    return GGML_STATUS_SUCCESS;
}

static void mark_read_once(struct job * job) {
    for (size_t id = 0; id < job->infos.n && !job->measuring; id++) {
        const struct info * info = info_at(job, (int64_t) id);
        gb_tensor_set_read_once(info->tensor, info->once);
    }
}

static enum ggml_status run(struct job * job, const struct ggml_gallocr * galloc) {
    GB_TRY(gb_graph_check(job->graph, "graph", "ggml_gallocr_alloc_graph"));
    GB_TRY(gb_graph_check_tensors(job->graph, "ggml_gallocr_alloc_graph"));
    GB_TRY(add_nodes(job));
    GB_TRY(make_order(job, galloc));
    GB_TRY(check_order(job));
    find_read_once(job);
    GB_TRY(walk(job));
    GB_TRY(carry_out_all(job));
    mark_read_once(job);
    return GGML_STATUS_SUCCESS;
}

// Ends the job; after a failure the pools are as they were.
static enum ggml_status finish(struct job * job, enum ggml_status status) {
    for (size_t i = 0; i < job->pools.n; i++) {
        struct pool_of * pool = &job->pools.data[i];
        if (status == GGML_STATUS_SUCCESS) {
            gb_pool_free(&pool->before);
        } else {
            gb_pool_free(&pool->talloc->pool);
            pool->talloc->pool = pool->before;
        }
    }
    gb_vec_free(&job->infos);
    gb_vec_free(&job->blocks);
    gb_vec_free(&job->events);
    gb_vec_free(&job->pools);
    gb_vec_free(&job->order);
    gb_ptrmap_free(&job->ids);
    return status;
}

size_t ggml_gallocr_alloc_graph(ggml_gallocr_t galloc, ggml_tallocr_t talloc, struct ggml_cgraph * graph) {
    GB_CHECK_ARG_RETURNING(galloc, 0);
    GB_CHECK_ARG_RETURNING(talloc, 0);
    GB_CHECK_ARG_RETURNING(graph, 0);
    struct job job = { .graph = graph, .talloc = talloc };
    return finish(&job, run(&job, galloc)) == GGML_STATUS_SUCCESS ? ggml_tallocr_max_size(talloc) : 0;
}

enum ggml_status ggml_gallocr_alloc_graph_n(ggml_gallocr_t galloc, struct ggml_cgraph * graph,
    struct ggml_hash_set hash_set, ggml_tallocr_t * hash_node_talloc) {
    GB_CHECK_ARG(galloc);
    GB_CHECK_ARG(graph);
    GB_CHECK_ARG(hash_node_talloc);
    GB_FAIL_IF(hash_set.keys == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'hash_set' has no keys", __func__);
    struct job job = { .graph = graph, .set = hash_set, .by_slot = hash_node_talloc };
    return finish(&job, run(&job, galloc));
}
