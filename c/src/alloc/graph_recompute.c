// graph_recompute.c - makes a graph in which some results are computed again (recompute.h chooses
// them).
//
// An entry is a node that the search places: a node that computes, a parameter, or a view that no
// node reads. Other views take no memory. They are made again for each content of their root, right
// before their first reader.
#include "alloc/alloc.h"
#include "alloc/one_arena.h"
#include "alloc/recompute.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/vec.h"
#include "tensor/work.h"

enum { NONE = -1 };

static const double work_of_a_byte = 8; // operations that take as long as reading a byte, on common processors

struct ggml_recompute {
    struct ggml_cgraph * graph;
    const bool * counted; // by node; NULL: nodes without memory
    struct gb_ptrmap placed; // root to be placed -> its id
    struct gb_ptrmap position; // node -> its index in the graph
    struct gb_liveness live; // without results in place
    bool * is_entry; // owned; by node
    int * entries; // owned; by entry: its node
    int n_entries;
    struct gb_recompute_node * nodes; // owned; by entry
    struct gb_recompute_storage * storages; // owned; by id
    struct gb_recompute_result found;
    // the new graph
    struct ggml_context * ctx;
    void * first; // the first object that was made in ctx; NULL: none
    struct ggml_tensor ** now; // owned; by node: the tensor with its current content; NULL: not made yet
    GB_VEC(struct ggml_tensor *) made; // nodes of the new graph
    GB_VEC(int32_t) origins;
    GB_VEC(int) chain;
};

static void free_recompute(struct ggml_recompute * r) {
    gb_ptrmap_free(&r->placed);
    gb_ptrmap_free(&r->position);
    gb_liveness_free(&r->live);
    gb_free(r->is_entry);
    gb_free(r->entries);
    gb_free(r->nodes);
    gb_free(r->storages);
    gb_free(r->now);
    gb_vec_free(&r->made);
    gb_vec_free(&r->origins);
    gb_vec_free(&r->chain);
    gb_recompute_free(&r->found);
}

// ----------------------------------------------------------------------------------------------------- the input

static int64_t number_of(const struct gb_ptrmap * map, const struct ggml_tensor * t) {
    const int64_t number = gb_ptrmap_get(map, t);
    return number == GB_PTRMAP_ABSENT ? NONE : number;
}

static enum ggml_status number_nodes(struct ggml_recompute * r) {
    bool ok = true;
    for (int i = 0; ok && i < r->graph->n_nodes; i++) {
        const struct ggml_tensor * node = r->graph->nodes[i];
        ok = gb_ptrmap_set(&r->position, node, i);
        const bool counts = r->counted ? r->counted[i] : node->data == NULL;
        ok = ok && (!counts || gb_one_arena_add(&r->placed, node));
    }
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

static enum ggml_status find_lifetimes(struct ggml_recompute * r) {
    struct gb_liveness_input in = gb_one_arena_input(r->graph, &r->placed);
    in.no_join = true;
    return gb_liveness_compute(&in, &r->live);
}

static void find_entries(struct ggml_recompute * r) {
    for (int i = 0; i < r->graph->n_nodes; i++) {
        r->is_entry[i] = true;
    }
    for (int i = 0; i < r->graph->n_nodes; i++) {
        const struct ggml_tensor * node = r->graph->nodes[i];
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            const int64_t at = node->src[s] && node->src[s] != node ? number_of(&r->position, node->src[s]) : NONE;
            if (at != NONE && !gb_op_computes(node->src[s]->op) && node->src[s]->op != GGML_OP_NONE) {
                r->is_entry[at] = false;
            }
        }
    }
    for (int i = 0; i < r->graph->n_nodes; i++) {
        if (r->is_entry[i]) {
            r->entries[r->n_entries++] = i;
        }
    }
}

static void add_read(struct gb_recompute_node * to, int storage, bool over) {
    for (int k = 0; k < to->n_reads; k++) {
        if (to->reads[k] == storage) {
            return;
        }
    }
    to->over[to->n_reads] = over;
    to->reads[to->n_reads++] = storage;
}

// Describes an entry, and the storage that begins with it.
static void describe(struct ggml_recompute * r, int entry) {
    const int i = r->entries[entry];
    const struct ggml_tensor * node = r->graph->nodes[i];
    const int32_t * ids = r->live.ids + (size_t) i * GB_LIVE_SLOTS;
    const int32_t own = ids[GGML_MAX_SRC];
    const struct gb_live_item * item = own >= 0 ? &r->live.items[r->live.item_of[own]] : NULL;
    const bool begins = item && item->tensor == node && !item->from_start && gb_op_computes(node->op);
    const struct gb_work work = gb_work_of(node);
    struct gb_recompute_node * to = &r->nodes[entry];
    *to = (struct gb_recompute_node){ .makes = begins ? own : GB_RECOMPUTE_NONE };
    to->work = work.flops + work_of_a_byte * (work.read + work.written);
    for (int s = 0; s < GB_LIVE_SLOTS; s++) {
        if (ids[s] >= 0 && ids[s] != to->makes) {
            const bool over =
                s < GGML_MAX_SRC && gb_plan_can_write_over(node, s) && gb_live_reads_in_place(node, ids, ids[s]);
            add_read(to, ids[s], over);
        }
    }
    if (begins) {
        r->storages[own].maker = entry;
        r->storages[own].may_repeat = !gb_op_is_custom(node->op) && !gb_tensor_has_flag(node, GB_TENSOR_INPUT);
    }
}

static void describe_storages(struct ggml_recompute * r) {
    for (size_t id = 0; id < r->placed.n; id++) {
        const int64_t item = r->live.item_of[id];
        struct gb_recompute_storage * to = &r->storages[id];
        *to = (struct gb_recompute_storage){ .maker = GB_RECOMPUTE_NONE, .valid_until = r->n_entries };
        if (item >= 0) {
            to->size = r->live.items[item].size;
            to->to_end = r->live.items[item].to_end;
        }
    }
}

// Goes through the entries from last to first, so that `written` has the next write to each root.
static bool find_writes(struct ggml_recompute * r, struct gb_ptrmap * written) {
    bool ok = true;
    for (int e = r->n_entries - 1; ok && e >= 0; e--) {
        const struct ggml_tensor * node = r->graph->nodes[r->entries[e]];
        const int made = r->nodes[e].makes;
        for (int s = 0; made != GB_RECOMPUTE_NONE && s < GGML_MAX_SRC; s++) {
            const int64_t at = node->src[s] ? gb_ptrmap_get(written, gb_root(node->src[s])) : GB_PTRMAP_ABSENT;
            if (at != GB_PTRMAP_ABSENT) {
                r->storages[made].valid_until = GB_MIN(r->storages[made].valid_until, (int) at);
            }
        }
        if (node->view_src && gb_op_computes(node->op)) {
            const int64_t id = number_of(&r->placed, node->view_src);
            ok = gb_ptrmap_set(written, node->view_src, e);
            if (id != NONE) {
                r->storages[id].may_repeat = false;
            }
        }
    }
    return ok;
}

static enum ggml_status describe_graph(struct ggml_recompute * r) {
    const size_t n = (size_t) r->graph->n_nodes + 1;
    GB_TRY(number_nodes(r));
    GB_TRY(find_lifetimes(r));
    r->is_entry = gb_calloc(n, sizeof(*r->is_entry));
    r->entries = gb_calloc(n, sizeof(*r->entries));
    r->nodes = gb_calloc(n, sizeof(*r->nodes));
    r->storages = gb_calloc(r->placed.n + 1, sizeof(*r->storages));
    r->now = gb_calloc(n, sizeof(*r->now));
    if (!r->is_entry || !r->entries || !r->nodes || !r->storages || !r->now) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    find_entries(r);
    describe_storages(r);
    for (int e = 0; e < r->n_entries; e++) {
        describe(r, e);
    }
    struct gb_ptrmap written = { 0 };
    const bool ok = find_writes(r, &written);
    gb_ptrmap_free(&written);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

// ------------------------------------------------------------------------------------------------------- the new graph

// The tensor that has the current content of t. Leafs, NULL and t itself stay.
static struct ggml_tensor * current(const struct ggml_recompute * r, const struct ggml_tensor * node,
    struct ggml_tensor * t) {
    const int64_t at = t && t != node ? number_of(&r->position, t) : NONE;
    return at == NONE ? t : r->now[at];
}

// True if a tensor has the node's operator on the current contents.
static bool is_current(const struct ggml_recompute * r, const struct ggml_tensor * node, const struct ggml_tensor * t) {
    bool same = t != NULL && t->view_src == current(r, node, node->view_src);
    for (int s = 0; same && s < GGML_MAX_SRC; s++) {
        const bool is_own = node->src[s] == node;
        same = is_own ? t->src[s] == t : t->src[s] == current(r, node, node->src[s]);
    }
    return same;
}

static struct ggml_tensor * make_clone(struct ggml_recompute * r, const struct ggml_tensor * node, bool again) {
    struct ggml_tensor * root = current(r, node, node->view_src);
    struct ggml_tensor * copy =
        root ? gb_tensor_view(r->ctx, root, GGML_MAX_DIMS, node->ne, node->nb, node->view_offs, "ggml_graph_recompute")
             : ggml_dup_tensor(r->ctx, node);
    if (copy == NULL) {
        return NULL;
    }
    r->first = r->first ? r->first : copy;
    gb_tensor_copy_state(copy, node);
    copy->op = node->op;
    copy->backend = node->backend;
    copy->extra = node->extra;
    memcpy(copy->op_params, node->op_params, sizeof(copy->op_params));
    memcpy(copy->name, node->name, sizeof(copy->name));
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        copy->src[s] = node->src[s] == node ? copy : current(r, node, node->src[s]);
    }
    return again ? gb_tensor_name_after(copy, node, "again", NULL) : copy;
}

// Adds the node to the new graph: itself if it reads nothing but tensors of the old one, else a
// clone.
static bool add_node(struct ggml_recompute * r, int i, bool again) {
    struct ggml_tensor * node = r->graph->nodes[i];
    struct ggml_tensor * t = !again && is_current(r, node, node) ? node : make_clone(r, node, again);
    r->now[i] = t;
    return t && gb_vec_push(&r->made, t) && gb_vec_push(&r->origins, i);
}

// Adds the views between a source and its storage, unless they show the current content already.
static bool add_views(struct ggml_recompute * r, const struct ggml_tensor * node, int s) {
    bool ok = true;
    r->chain.n = 0;
    for (struct ggml_tensor * t = node->src[s]; ok && t && t != node;) {
        const int64_t at = number_of(&r->position, t);
        if (at == NONE || r->is_entry[at]) {
            break;
        }
        ok = gb_vec_push(&r->chain, (int) at);
        t = t->src[0];
    }
    while (ok && r->chain.n > 0) {
        const int i = r->chain.data[--r->chain.n];
        ok = is_current(r, r->graph->nodes[i], r->now[i]) || add_node(r, i, r->now[i] != NULL);
    }
    return ok;
}

static bool add_entries(struct ggml_recompute * r, const struct gb_recompute_choice * choice) {
    bool ok = true;
    for (int k = 0; ok && k < choice->n; k++) {
        const int i = r->entries[choice->sequence[k]];
        const struct ggml_tensor * node = r->graph->nodes[i];
        for (int s = 0; ok && s < GGML_MAX_SRC; s++) {
            ok = add_views(r, node, s);
        }
        ok = ok && add_node(r, i, r->now[i] != NULL);
    }
    return ok;
}

// A graph of the nodes made, with the leafs of the old one.
static struct ggml_cgraph * new_graph(struct ggml_recompute * r, struct ggml_recompute_info * info) {
    const size_t n = r->made.n, n_leafs = (size_t) r->graph->n_leafs;
    int32_t * origins = gb_context_alloc(r->ctx, GGML_OBJECT_WORK_BUFFER, (n + 1) * sizeof(*origins));
    r->first = r->first ? r->first : origins;
    struct ggml_cgraph * graph = origins ? ggml_new_graph_custom(r->ctx, GB_MAX(n, n_leafs) + 1, false) : NULL;
    if (graph == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < n_leafs; i++) {
        graph->leafs[i] = r->graph->leafs[i];
    }
    for (size_t k = 0; k < n; k++) {
        graph->nodes[k] = r->made.data[k];
        origins[k] = r->origins.data[k];
    }
    graph->n_leafs = (int) n_leafs;
    graph->n_nodes = (int) n;
    gb_graph_mark_listed(graph);
    info->origins = origins;
    return graph;
}

// Forgets the graph that was made last.
static void begin_graph(struct ggml_recompute * r, struct ggml_context * ctx) {
    r->ctx = ctx;
    r->first = NULL;
    r->made.n = r->origins.n = 0;
    for (int i = 0; i < r->graph->n_nodes; i++) {
        r->now[i] = NULL;
    }
}

struct ggml_recompute * ggml_recompute_new(struct ggml_cgraph * cgraph, const bool * counted) {
    if (gb_graph_check(cgraph, "cgraph", __func__) != GGML_STATUS_SUCCESS) {
        return NULL;
    }
    struct ggml_recompute * r = gb_calloc(1, sizeof(*r));
    if (r == NULL) {
        return NULL;
    }
    *r = (struct ggml_recompute){ .graph = cgraph, .counted = counted };
    bool ok = describe_graph(r) == GGML_STATUS_SUCCESS;
    if (ok) {
        const struct gb_recompute_input in = { r->nodes, r->n_entries, r->storages, (int) r->placed.n };
        ok = gb_recompute(&in, &r->found) == GGML_STATUS_SUCCESS;
    }
    r->counted = NULL;
    if (!ok) {
        ggml_recompute_free(r);
        return NULL;
    }
    return r;
}

struct ggml_cgraph * ggml_recompute_graph(struct ggml_recompute * search, struct ggml_context * ctx, size_t max_bytes,
    struct ggml_recompute_info * info) {
    GB_CHECK_ARG_RETURNING(search, NULL);
    GB_CHECK_ARG_RETURNING(ctx, NULL);
    GB_CHECK_ARG_RETURNING(info, NULL);
    struct ggml_recompute * r = search;
    const struct gb_recompute_result * found = &r->found;
    const struct gb_recompute_choice * choice = gb_recompute_choose(found, max_bytes);
    *info = (struct ggml_recompute_info){
        .before = found->before, .least = found->least, .lower_bound = found->lower_bound, .work = found->work
    };
    if (choice == NULL) {
        gb_fail(GGML_STATUS_ALLOC_FAILED,
            "ggml_graph_recompute: argument 'max_bytes': %zu bytes are too few: the least that was found is %zu bytes, "
            "and no choice needs less than %zu",
            max_bytes, found->least, found->lower_bound);
        return NULL;
    }
    info->after = choice->peak;
    info->again = choice->again;
    info->n_again = choice->n - r->n_entries;
    begin_graph(r, ctx);
    struct ggml_cgraph * graph = add_entries(r, choice) ? new_graph(r, info) : NULL;
    if (graph == NULL && r->first != NULL) {
        gb_context_drop(ctx, r->first);
    }
    return graph;
}

void ggml_recompute_free(struct ggml_recompute * search) {
    if (search != NULL) {
        free_recompute(search);
        gb_free(search);
    }
}

struct ggml_cgraph * ggml_graph_recompute(struct ggml_context * ctx, struct ggml_cgraph * cgraph, size_t max_bytes,
    const bool * counted, struct ggml_recompute_info * info) {
    GB_CHECK_ARG_RETURNING(ctx, NULL);
    GB_CHECK_ARG_RETURNING(info, NULL);
    *info = (struct ggml_recompute_info){ 0 };
    struct ggml_recompute * r = ggml_recompute_new(cgraph, counted);
    struct ggml_cgraph * graph = r ? ggml_recompute_graph(r, ctx, max_bytes, info) : NULL;
    ggml_recompute_free(r);
    return graph;
}
