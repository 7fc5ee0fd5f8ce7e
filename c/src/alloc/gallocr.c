// gallocr.c - the graph allocator: places every tensor of a graph and reuses the memory of dead
// tensors.
//
// 1. Lifetimes: how long each tensor needs its memory, and which nodes overwrite a source (liveness.h).
// 2. Decisions: a walk in execution order takes bytes from the pools, returns them, and lists the binds
//   as events.
// 3. Events are carried out in order. Tensors change only here, so measuring makes the same decisions.
//
// A failure restores the pools and undoes the binds of this call. A tensor that no node reads keeps
// its memory, so outputs need no rule of their own.
#include "alloc/alloc.h"
#include "alloc/liveness.h"
#include "base/mem.h"
#include "base/vec.h"

struct ggml_gallocr {
    GB_VEC(int)
    parse_seq; // node indices in execution order, with BARRIERs; empty: node order, a barrier after each node
};

enum { NONE = -1, BARRIER = -1, OWN = GGML_MAX_SRC }; // OWN: the slot of the node itself

struct info { // of a tensor
    struct ggml_tensor * tensor;
    ggml_tallocr_t talloc; // borrowed; NULL: none was given
    int64_t root; // id of the tensor that owns the memory: for a view, of its source
    int64_t block; // index in blocks; NONE: no bytes taken in this call
    struct gb_tallocr_size size; // only if it needs its own memory
    int position; // in the execution order; NONE: a leaf
    int n_readers, n_views; // source slots of other nodes; views seen
    bool placed; // before this call, or in it
    bool input, keep; // flags of the tensor or of its views
    bool lasts; // no node reads it or one of its views
    bool hidden; // a node reads a view of it that is no node
    bool once; // exactly one reader, and no use afterwards
};

struct block { // bytes taken in this call
    ggml_tallocr_t talloc;
    size_t offset, size;
    int64_t owner; // id of the last tensor in these bytes; NONE: returned to the pool
};

enum event_kind { EVENT_BIND, EVENT_VIEW, EVENT_RELEASE };

struct event {
    enum event_kind kind;
    int64_t id;
    size_t offset; // BIND
    void * old_data; // VIEW; for undo
    ggml_backend_buffer_t old_buffer;
};

struct pool_of { // a tensor allocator of this call, and a copy of its pool for undo
    ggml_tallocr_t talloc;
    struct gb_offset_pool before;
};

// The state of one call. Indices are tensor ids, nodes of the graph, or positions in the execution order.
struct job {
    struct ggml_cgraph * graph;
    ggml_tallocr_t talloc; // allocator of every tensor; NULL: look it up in
    struct ggml_hash_set set;
    ggml_tallocr_t * by_slot;
    bool measuring; // the allocators measure
    struct gb_ptrmap ids; // tensor -> id: its index in `infos`
    GB_VEC(struct info) infos;
    GB_VEC(struct block) blocks;
    GB_VEC(struct event) events;
    GB_VEC(struct pool_of) pools;
    int32_t * slots; // owned; GB_LIVE_SLOTS per node: ids of its sources, then its own; NONE
    int * order; // owned; node index by position; NULL: node order
    // By position:
    struct ggml_tensor ** nodes; // owned; NULL: the graph's
    int * released; // owned; position where memory that dies here is returned; NULL: at once
    int32_t * roots; // owned; as `slots`, with ids of the tensors that own the memory
    struct gb_liveness live; // ids: of roots
    int64_t * block_of; // owned; by item of `live`: its block; NONE: not taken yet
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

// ------------------------------------------------------------------------------------------------------------- tensors

// The allocator that the caller gave for the tensor. NULL if there is none, which is an error only
// if the tensor has no memory.
static ggml_tallocr_t look_up(const struct job * job, struct ggml_tensor * t) {
    if (job->talloc) {
        return job->talloc;
    }
    const size_t slot = ggml_hash_find(job->set, t);
    return slot != GGML_HASHTABLE_FULL && job->set.keys[slot] == t ? job->by_slot[slot] : NULL;
}

// Copies the pool of each allocator once, for undo.
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

// root: the id of a view's source; NONE: not a view. Flags of a view count for its source.
static enum ggml_status add_tensor(struct job * job, struct ggml_tensor * t, int64_t root, int64_t * id) {
    const struct info info = {
        .tensor = t,
        .talloc = look_up(job, t),
        .root = root == NONE ? (int64_t) job->infos.n : root,
        .block = NONE,
        .position = NONE,
        .input = gb_tensor_has_flag(t, GB_TENSOR_INPUT),
        .keep = gb_tensor_has_flag(t, GB_TENSOR_OUTPUT),
    };
    if (info.talloc) {
        GB_TRY(remember_pool(job, info.talloc));
    }
    *id = (int64_t) job->infos.n;
    GB_FAIL_IF(*id >= INT32_MAX, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_gallocr_alloc_graph: the graph has too many tensors");
    if (!gb_vec_push(&job->infos, info) || !gb_ptrmap_set(&job->ids, t, *id)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (root == NONE) {
        struct info * own = &job->infos.data[*id];
        own->placed = gb_tallocr_is_placed(info.talloc, t);
        if (!own->placed && info.talloc && !gb_tallocr_size_of(info.talloc, t, &own->size)) {
            return GGML_STATUS_INVALID_ARGUMENT;
        }
    } else {
        job->infos.data[root].n_views++;
        job->infos.data[root].input |= info.input;
        job->infos.data[root].keep |= info.keep;
    }
    return GGML_STATUS_SUCCESS;
}

// The id of a tensor. Adds new tensors; a view comes after its source.
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

// Adds the node, then its sources. If the node reads itself, that slot counts as no reader.
static enum ggml_status add_node(struct job * job, struct ggml_tensor * node, int32_t * slots) {
    int64_t id;
    GB_TRY(id_of(job, node, &id));
    slots[OWN] = (int32_t) id;
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        if (node->src[s] == NULL || node->src[s] == node) {
            slots[s] = node->src[s] ? slots[OWN] : NONE;
            continue;
        }
        GB_TRY(id_of(job, node->src[s], &id));
        info_at(job, id)->n_readers++;
        slots[s] = (int32_t) id;
    }
    return GGML_STATUS_SUCCESS;
}

// Adds all tensors of the graph once. Leafs come last, because most have their ids by then.
static enum ggml_status add_tensors(struct job * job) {
    const struct ggml_cgraph * graph = job->graph;
    job->slots = gb_calloc((size_t) graph->n_nodes + 1, GB_LIVE_SLOTS * sizeof(*job->slots));
    if (job->slots == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        GB_TRY(add_node(job, graph->nodes[i], job->slots + (size_t) i * GB_LIVE_SLOTS));
    }
    for (int i = 0; i < graph->n_leafs; i++) {
        int64_t id;
        GB_TRY(id_of(job, graph->leafs[i], &id));
    }
    return GGML_STATUS_SUCCESS;
}

// --------------------------------------------------------------------------------------------------------------- order

static const int32_t * slots_of(const struct job * job, int position) {
    return job->slots + (size_t) (job->order ? job->order[position] : position) * GB_LIVE_SLOTS;
}

// Makes node i the next one, at `position`.
static enum ggml_status add_to_order(struct job * job, int i, int position) {
    GB_FAIL_IF(i >= job->graph->n_nodes, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_gallocr_alloc_graph: the parse sequence names node %d, the graph has %d", i, job->graph->n_nodes);
    struct info * info = info_at(job, job->slots[(size_t) i * GB_LIVE_SLOTS + OWN]);
    GB_FAIL_IF(info->position != NONE, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_gallocr_alloc_graph: node %d, '%s', occurs twice", i, info->tensor->name);
    info->position = position;
    if (job->order) {
        job->order[position] = i;
        job->nodes[position] = info->tensor;
    }
    return GGML_STATUS_SUCCESS;
}

// Follows the caller's order. Nodes between two barriers may run in any order, so memory that dies
// there is returned at the second barrier. The end is a barrier.
static enum ggml_status follow_sequence(struct job * job, const int * seq, int n_seq) {
    const int n_nodes = job->graph->n_nodes;
    int n = 0, pending = 0; // positions so far; the first one since the last barrier
    for (int k = 0; k <= n_seq; k++) {
        const int i = k < n_seq ? seq[k] : BARRIER;
        if (i != BARRIER) {
            GB_TRY(add_to_order(job, i, n++));
        }
        for (; i == BARRIER && pending < n; pending++) {
            job->released[pending] = n;
        }
    }
    GB_FAIL_IF(n != n_nodes, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_gallocr_alloc_graph: the parse sequence lists %d nodes, the graph has %d", n, n_nodes);
    return GGML_STATUS_SUCCESS;
}

// The execution order: every node once.
static enum ggml_status make_order(struct job * job, const struct ggml_gallocr * galloc) {
    const size_t n = (size_t) job->graph->n_nodes;
    if (galloc->parse_seq.n == 0) {
        for (int i = 0; i < job->graph->n_nodes; i++) {
            GB_TRY(add_to_order(job, i, i));
        }
        return GGML_STATUS_SUCCESS;
    }
    job->order = gb_calloc(n + 1, sizeof(*job->order));
    job->nodes = gb_calloc(n + 1, sizeof(*job->nodes));
    job->released = gb_calloc(n + 1, sizeof(*job->released));
    return job->order && job->nodes && job->released
               ? follow_sequence(job, galloc->parse_seq.data, (int) galloc->parse_seq.n)
               : GGML_STATUS_ALLOC_FAILED;
}

// Finds the storage that each node reads and writes. Checks that each node comes after the nodes that it reads.
static enum ggml_status find_roots(struct job * job) {
    job->roots = gb_calloc((size_t) job->graph->n_nodes + 1, GB_LIVE_SLOTS * sizeof(*job->roots));
    if (job->roots == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (int at = 0; at < job->graph->n_nodes; at++) {
        const int32_t * slots = slots_of(job, at);
        int32_t * roots = job->roots + (size_t) at * GB_LIVE_SLOTS;
        for (int s = 0; s < GB_LIVE_SLOTS; s++) {
            const struct info * info = slots[s] == NONE ? NULL : info_at(job, slots[s]);
            roots[s] = info ? (int32_t) info->root : NONE;
            GB_FAIL_IF(info && info->position > at, GGML_STATUS_INVALID_ARGUMENT,
                "ggml_gallocr_alloc_graph: '%s' reads '%s', which is computed later",
                info_at(job, slots[OWN])->tensor->name, info->tensor->name);
        }
    }
    return GGML_STATUS_SUCCESS;
}

// ----------------------------------------------------------------------------------------------------------- lifetimes

// Finds results with one reader and no other use. A reader of a view does not count for its source:
// if the view is a node it reads the source itself, and if not, it hides its readers.
static void find_read_once(struct job * job) {
    for (size_t id = 0; id < job->infos.n; id++) {
        const struct info * info = info_at(job, (int64_t) id);
        if (info->root != (int64_t) id && info->position == NONE) {
            info_at(job, info->root)->hidden = true;
        }
    }
    for (size_t id = 0; id < job->infos.n; id++) {
        struct info * info = info_at(job, (int64_t) id);
        const struct info * root = info_at(job, info->root);
        info->once = info->n_readers == 1 && info->position != NONE && root->position != NONE && !root->placed &&
                     !root->keep && !root->input && !root->hidden;
    }
}

// A tensor without readers keeps its memory. A view without readers keeps the memory of its source.
static void find_unread(struct job * job) {
    for (size_t id = 0; id < job->infos.n; id++) {
        const struct info * info = info_at(job, (int64_t) id);
        info_at(job, info->root)->lasts |= info->n_readers == 0 && info->n_views == 0;
    }
}

// One arena per allocator.
static int arena_of(void * user_data, int64_t id, const struct ggml_tensor * t) {
    const struct job * job = user_data;
    const struct info * info = &job->infos.data[id];
    (void) t;
    for (size_t i = 0; !info->placed && i < job->pools.n; i++) {
        if (job->pools.data[i].talloc == info->talloc) {
            return (int) i;
        }
    }
    return NONE;
}

static size_t size_of(void * user_data, int64_t id, const struct ggml_tensor * t) {
    (void) t;
    return info_at(user_data, id)->size.padded;
}

static bool keep(void * user_data, int64_t id, const struct ggml_tensor * t) {
    const struct info * info = info_at(user_data, id);
    (void) t;
    return info->keep || info->lasts;
}

// An input needs its memory from the start, so it cannot reuse the memory of a source.
static bool may_join(void * user_data, int64_t id, int64_t source) {
    (void) source;
    return !info_at(user_data, id)->input;
}

// Lifetimes decide which tensors share bytes. The walk decides the offsets of these bytes.
static enum ggml_status find_lifetimes(struct job * job) {
    find_unread(job);
    const struct gb_liveness_input in = {
        .nodes = job->nodes ? job->nodes : job->graph->nodes,
        .n_nodes = job->graph->n_nodes,
        .user_data = job,
        .ids = job->roots,
        .n_ids = (int64_t) job->infos.n,
        .arena_of = arena_of,
        .size_of = size_of,
        .keep = keep,
        .drop_unread = true,
        .may_join = may_join,
        .rule = GB_LIVE_ALLOCATOR,
        .released = job->released,
    };
    GB_TRY(gb_liveness_compute(&in, &job->live));
    job->block_of = gb_calloc(job->live.n_items + 1, sizeof(*job->block_of));
    if (job->block_of == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (size_t k = 0; k < job->live.n_items; k++) {
        job->block_of[k] = NONE;
    }
    return GGML_STATUS_SUCCESS;
}

// ----------------------------------------------------------------------------------------------------------- decisions

// Takes new bytes from the pool of the tensor's allocator.
static enum ggml_status take_block(struct job * job, int64_t id) {
    const struct info * info = info_at(job, id);
    struct block block = { .talloc = info->talloc, .size = info->size.padded, .owner = id };
    if (!gb_vec_reserve(&job->blocks, job->blocks.n + 1)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_TRY(gb_tallocr_take(info->talloc, info->tensor, &info->size, "ggml_gallocr_alloc_graph", &block.offset));
    job->blocks.data[job->blocks.n++] = block;
    return GGML_STATUS_SUCCESS;
}

// Gives a tensor that is not a view the block of its item, which a source had before, or new bytes.
static enum ggml_status place_owner(struct job * job, int64_t id) {
    struct info * info = info_at(job, id);
    GB_FAIL_IF(info->talloc == NULL, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_gallocr_alloc_graph: tensor '%s' is not placed and has no allocator", info->tensor->name);
    const int64_t item = job->live.item_of[id]; // negative: no node uses it
    info->block = item >= 0 ? job->block_of[item] : NONE;
    if (info->block != NONE) {
        job->blocks.data[info->block].owner = id;
    } else {
        info->block = (int64_t) job->blocks.n;
        GB_TRY(take_block(job, id));
        if (item >= 0) {
            job->block_of[item] = info->block;
        }
    }
    info->placed = true;
    return add_event(job, EVENT_BIND, id, job->blocks.data[info->block].offset);
}

// True if a view must be bound. That is possible only if its source was placed before this call.
static bool needs_binding(const struct job * job, const struct info * view, const struct info * root) {
    if (root->block != NONE) {
        return true;
    }
    return !job->measuring && root->tensor->data != NULL &&
           (view->tensor->buffer != root->tensor->buffer ||
               view->tensor->data != (char *) root->tensor->data + view->tensor->view_offs);
}

// Gives a tensor memory if it has none. For a view, places the source first.
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

// Returns the blocks that die at this position.
static enum ggml_status release_sources(struct job * job, int at) {
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        const int32_t root = job->roots[(size_t) at * GB_LIVE_SLOTS + (size_t) s];
        const int64_t item = root == NONE ? NONE : job->live.item_of[root];
        if (item == NONE || job->live.items[item].to_end ||
            job->live.items[item].upper != gb_live_released_at(job->released, at)) {
            continue;
        }
        struct block * block = &job->blocks.data[job->block_of[item]];
        if (block->owner != NONE) {
            gb_pool_give_back(&block->talloc->pool, block->offset, block->size);
            GB_TRY(add_event(job, EVENT_RELEASE, block->owner, 0));
            block->owner = NONE;
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Places before the first node: views of placed tensors, inputs, and leafs that are results.
static enum ggml_status place_first(struct job * job) {
    for (size_t id = 0; id < job->infos.n; id++) {
        const struct info * info = info_at(job, (int64_t) id);
        const bool view_of_placed = info->root != (int64_t) id && info_at(job, info->root)->placed;
        const bool unread_leaf =
            info->root == (int64_t) id && info->position == NONE && info->n_readers == 0 && info->n_views == 0;
        if (view_of_placed || unread_leaf || (info->input && info->root == (int64_t) id)) {
            GB_TRY(place(job, (int64_t) id));
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Places the sources that no node computes, then the node.
static enum ggml_status place_node(struct job * job, int at) {
    const int32_t * slots = slots_of(job, at);
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        if (slots[s] != NONE && slots[s] != slots[OWN]) {
            GB_TRY(place(job, slots[s]));
        }
    }
    return place(job, slots[OWN]);
}

static enum ggml_status walk(struct job * job) {
    GB_TRY(place_first(job));
    int pending = 0; // memory that dies from this position on is not given back yet
    for (int at = 0; at < job->graph->n_nodes; at++) {
        GB_TRY(place_node(job, at));
        for (; gb_live_released_at(job->released, at) == at + 1 && pending <= at; pending++) {
            GB_TRY(release_sources(job, pending));
        }
    }
    return GGML_STATUS_SUCCESS;
}

// -------------------------------------------------------------------------------------------------------------- events

// Binds a view. When measuring, its source has no address, so the view gets none. Stores the old
// address for undo.
static enum ggml_status bind_view(struct job * job, struct event * event) {
    const struct info * info = info_at(job, event->id);
    const struct info * root = info_at(job, info->root);
    struct ggml_tensor * view = info->tensor;
    event->old_data = view->data;
    event->old_buffer = view->buffer;
    if (root->block != NONE && ggml_tallocr_is_measure(root->talloc)) {
        return GGML_STATUS_SUCCESS;
    }
    gb_tensor_put(view, root->tensor->buffer, (char *) root->tensor->data + view->view_offs);
    return view->buffer ? ggml_backend_buffer_init_tensor(view->buffer, view) : GGML_STATUS_SUCCESS;
}

// Carries out one event. Marks the buffer as an arena, where backends need not store results that
// are read once.
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

// Undoes the first n events.
static void undo(struct job * job, size_t n) {
    while (n-- > 0) {
        const struct event * event = &job->events.data[n];
        const struct info * info = info_at(job, event->id);
        if (event->kind == EVENT_BIND) {
            gb_tallocr_unbind(info->talloc, info->tensor);
        } else if (event->kind == EVENT_VIEW) {
            const bool ours = info_at(job, info->root)->block != NONE;
            gb_tensor_put(info->tensor, ours ? NULL : event->old_buffer, ours ? NULL : event->old_data);
        }
    }
}

// Carries out all events. A failure undoes the earlier ones.
static enum ggml_status carry_out_all(struct job * job) {
    for (size_t i = 0; i < job->events.n; i++) {
        const enum ggml_status status = carry_out(job, &job->events.data[i]);
        if (status != GGML_STATUS_SUCCESS) {
            // A failed bind changed nothing. A failed view is already bound.
            undo(job, job->events.data[i].kind == EVENT_VIEW ? i + 1 : i);
            return status;
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Sets the marks of this placement, last, when nothing can fail any more.
static void mark_read_once(struct job * job) {
    for (size_t id = 0; id < job->infos.n && !job->measuring; id++) {
        const struct info * info = info_at(job, (int64_t) id);
        gb_tensor_set_read_once(info->tensor, info->once);
    }
}

static enum ggml_status run(struct job * job, const struct ggml_gallocr * galloc) {
    GB_TRY(gb_graph_check(job->graph, "graph", "ggml_gallocr_alloc_graph"));
    GB_TRY(gb_graph_check_tensors(job->graph, "ggml_gallocr_alloc_graph"));
    GB_TRY(add_tensors(job));
    GB_TRY(make_order(job, galloc));
    GB_TRY(find_roots(job));
    find_read_once(job);
    GB_TRY(find_lifetimes(job));
    GB_TRY(walk(job));
    GB_TRY(carry_out_all(job));
    mark_read_once(job);
    return GGML_STATUS_SUCCESS;
}

// Ends the call. A failure restores the pools.
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
    gb_liveness_free(&job->live);
    gb_free(job->slots);
    gb_free(job->order);
    gb_free(job->nodes);
    gb_free(job->roots);
    gb_free(job->released);
    gb_free(job->block_of);
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
