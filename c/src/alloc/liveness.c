// liveness.c - two passes over a node list.
//
// The first pass finds the first and last use of each storage, and whether it must last. The second
// pass makes the items. A node may continue the item of a source that dies in it. The node is then
// computed in place.
//
// By the rule of plans, continuing an item of the node's own size never raises the load (the bytes
// alive at a position). A larger item keeps unused bytes alive. It is continued only if the largest
// load of its positions falls. So the largest load of an arena is never above that of a plan
// without results in place.
#include "alloc/liveness.h"

#include "base/current.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/vec.h"
#include "tensor/tensor.h"

enum { NEVER = -1, OWN = GGML_MAX_SRC }; // OWN: the slot of the node itself

// The uses of one storage, by tensor id.
struct usage {
    struct ggml_tensor * tensor; // NULL: not used yet
    int first, last; // positions that write or read it
    int n_last; // slots that read it at the last position or at the same barrier
    int arena;
    size_t size;
    bool from_start, to_end;
    bool taken; // a node continues its item
};

struct liveness {
    const struct gb_liveness_input * in;
    const int32_t * ids; // borrowed from the caller, or own_ids
    int32_t * own_ids; // owned; becomes a result
    struct usage * usages; // owned; by tensor id
    int * n_readers; // owned; by node position: slots of other nodes that read it
    struct gb_ptrmap position; // node -> position
    GB_VEC(struct gb_live_item) items;
    int64_t * item_of; // owned; becomes a result
    size_t * loads; // owned; by arena and position: bytes alive, from the decisions so far
};

static void free_state(struct liveness * l) {
    gb_free(l->own_ids);
    gb_free(l->usages);
    gb_free(l->n_readers);
    gb_ptrmap_free(&l->position);
    gb_free(l->item_of);
    gb_free(l->loads);
    gb_vec_free(&l->items);
}

static bool is_allocator(const struct liveness * l) { return l->in->rule == GB_LIVE_ALLOCATOR; }

static int released_at(const struct liveness * l, int position) {
    return gb_live_released_at(l->in->released, position);
}

// ----------------------------------------------------------------------------------------------------------------- ids

static enum ggml_status find_positions(struct liveness * l) {
    const struct gb_liveness_input * in = l->in;
    if (!gb_ptrmap_reserve(&l->position, (size_t) in->n_nodes)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (int i = 0; i < in->n_nodes; i++) {
        const struct ggml_tensor * node = in->nodes[i];
        GB_FAIL_IF(node == NULL, GGML_STATUS_INVALID_ARGUMENT, "gb_liveness_compute: node %d is NULL", i);
        GB_FAIL_IF(gb_ptrmap_get(&l->position, node) != GB_PTRMAP_ABSENT, GGML_STATUS_INVALID_ARGUMENT,
            "gb_liveness_compute: node %d, '%s', occurs twice", i, node->name);
        if (!gb_ptrmap_set(&l->position, node, i)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    return GGML_STATUS_SUCCESS;
}

static int32_t id_of(const struct liveness * l, const struct ggml_tensor * t) {
    const int64_t id = l->in->id_of(l->in->user_data, gb_root(t));
    return id >= 0 && id < l->in->n_ids ? (int32_t) id : NEVER;
}

// Looks up each slot once, because callers find ids by hashing.
static void find_ids(struct liveness * l) {
    for (int i = 0; i < l->in->n_nodes; i++) {
        const struct ggml_tensor * node = l->in->nodes[i];
        int32_t * ids = l->own_ids + (size_t) i * GB_LIVE_SLOTS;
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            ids[s] = node->src[s] ? id_of(l, node->src[s]) : NEVER;
        }
        ids[OWN] = id_of(l, node);
    }
}

static enum ggml_status init_state(struct liveness * l, const struct gb_liveness_input * in) {
    *l = (struct liveness){ .in = in, .ids = in->ids };
    l->usages = gb_calloc((size_t) in->n_ids, sizeof(*l->usages));
    l->item_of = gb_calloc((size_t) in->n_ids, sizeof(*l->item_of));
    if (!l->usages || !l->item_of) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (int64_t id = 0; id < in->n_ids; id++) {
        l->item_of[id] = NEVER;
    }
    if (in->id_of == NULL) {
        return GGML_STATUS_SUCCESS;
    }
    GB_TRY(find_positions(l));
    l->n_readers = gb_calloc((size_t) in->n_nodes, sizeof(*l->n_readers));
    l->own_ids = gb_calloc((size_t) in->n_nodes, GB_LIVE_SLOTS * sizeof(*l->own_ids));
    l->ids = l->own_ids;
    if (l->n_readers == NULL || l->own_ids == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    find_ids(l);
    return GGML_STATUS_SUCCESS;
}

// ---------------------------------------------------------------------------------------------------------------- uses

// The usage of the storage of slot s of the node at position i. NULL: not to be placed.
static struct usage * usage_at(struct liveness * l, int i, int s) {
    const int32_t id = l->ids[(size_t) i * GB_LIVE_SLOTS + (size_t) s];
    if (id < 0) {
        return NULL;
    }
    struct usage * u = &l->usages[id];
    if (u->tensor == NULL) {
        u->tensor = gb_root(s == OWN ? l->in->nodes[i] : l->in->nodes[i]->src[s]);
        u->first = u->last = i;
        u->arena = l->in->arena_of(l->in->user_data, id, u->tensor);
        u->to_end = u->arena >= 0 && l->in->keep && l->in->keep(l->in->user_data, id, u->tensor);
    }
    return u->arena < 0 ? NULL : u;
}

static void note_flags(struct usage * u, const struct ggml_tensor * t) {
    u->from_start |= gb_tensor_has_flag(t, GB_TENSOR_INPUT);
    u->to_end |= gb_tensor_has_flag(t, GB_TENSOR_OUTPUT);
}

// Records a use of the storage through t at position i. Counts the slots of the last use, because
// the allocator's rule reuses a storage only if one slot reads it last.
static void note_use(const struct liveness * l, struct usage * u, const struct ggml_tensor * t, int i, bool reads) {
    if (released_at(l, u->last) != released_at(l, i)) {
        u->n_last = 0;
    }
    u->n_last += reads;
    u->last = i;
    note_flags(u, t);
    note_flags(u, u->tensor);
}

// Counts a read of a node. It must come before its reader.
static enum ggml_status count_reader(struct liveness * l, const struct ggml_tensor * src, int i) {
    const int64_t at = gb_ptrmap_get(&l->position, src);
    GB_FAIL_IF(at != GB_PTRMAP_ABSENT && at > i, GGML_STATUS_INVALID_ARGUMENT,
        "gb_liveness_compute: node %d, '%s', reads '%s', which is computed later, as node %lld", i,
        l->in->nodes[i]->name, src->name, (long long) at);
    if (at != GB_PTRMAP_ABSENT && at < i) {
        l->n_readers[at]++;
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status note_source(struct liveness * l, int i, int s) {
    const struct ggml_tensor * node = l->in->nodes[i];
    if (l->in->id_of) {
        GB_TRY(count_reader(l, node->src[s], i));
    }
    struct usage * u = usage_at(l, i, s);
    if (u) {
        // A reader uses it first, so no node wrote it. A node that reads itself is its own writer.
        u->from_start |= !is_allocator(l) && u->first == i && node != u->tensor;
        note_use(l, u, node->src[s], i, node->src[s] != node);
    }
    return GGML_STATUS_SUCCESS;
}

// A node of operator NONE without a source is a parameter. No kernel computes it.
static bool has_source(const struct ggml_tensor * t) {
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        if (t->src[s]) {
            return true;
        }
    }
    return false;
}

static void note_node(struct liveness * l, int i) {
    const struct ggml_tensor * node = l->in->nodes[i];
    struct usage * u = usage_at(l, i, OWN);
    if (u) {
        // Content comes from outside for parameters, and if the first use is through a view.
        const bool computed = node->view_src ? gb_op_computes(node->op) : node->op != GGML_OP_NONE || has_source(node);
        u->from_start |= !is_allocator(l) && u->first == i && (!computed || node->view_src);
        note_use(l, u, node, i, false);
    }
}

// The first pass. A node that no node reads is a result and lasts, unless the caller drops it. A
// read of a view does not count for its source, so a view without readers makes its source last.
static enum ggml_status find_usages(struct liveness * l) {
    for (int i = 0; i < l->in->n_nodes; i++) {
        gb_tensor_prefetch_ahead(l->in->nodes, (size_t) l->in->n_nodes, (size_t) i);
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            if (l->in->nodes[i]->src[s]) {
                GB_TRY(note_source(l, i, s));
            }
        }
        note_node(l, i);
    }
    for (int i = 0; l->n_readers && i < l->in->n_nodes && !l->in->drop_unread; i++) {
        struct usage * u = l->n_readers[i] == 0 ? usage_at(l, i, OWN) : NULL;
        if (u) {
            u->to_end = true;
        }
    }
    return GGML_STATUS_SUCCESS;
}

// --------------------------------------------------------------------------------------------------------------- loads

// The first position of a lifetime: the start of the list if content comes from outside.
static int64_t lower_of(const struct usage * u) { return u->from_start ? 0 : u->first; }

static int64_t upper_of(const struct liveness * l, const struct usage * u) {
    return u->to_end ? l->in->n_nodes : released_at(l, u->last);
}

// One row of loads per arena.
static size_t * loads_of(const struct liveness * l, int arena) {
    return l->loads + (size_t) arena * (size_t) l->in->n_nodes;
}

// Returns the number of arenas.
static int find_sizes(struct liveness * l) {
    int n_arenas = 0;
    for (int64_t id = 0; id < l->in->n_ids; id++) {
        struct usage * u = &l->usages[id];
        if (u->tensor && u->arena >= 0) {
            u->size = l->in->size_of(l->in->user_data, id, u->tensor);
            n_arenas = GB_MAX(n_arenas, u->arena + 1);
        }
    }
    return n_arenas;
}

// Loads without results in place. Unsigned arithmetic wraps, so sums of differences are correct.
// The allocator's rule needs no loads.
static enum ggml_status find_loads(struct liveness * l) {
    const int n_arenas = find_sizes(l);
    const size_t n_nodes = (size_t) l->in->n_nodes;
    if (is_allocator(l)) {
        return GGML_STATUS_SUCCESS;
    }
    l->loads = gb_calloc((size_t) n_arenas, n_nodes * sizeof(*l->loads));
    if (l->loads == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (int64_t id = 0; id < l->in->n_ids; id++) {
        const struct usage * u = &l->usages[id];
        if (u->tensor && u->arena >= 0) {
            size_t * loads = loads_of(l, u->arena);
            loads[lower_of(u)] += u->size;
            if (upper_of(l, u) < l->in->n_nodes) {
                loads[upper_of(l, u)] -= u->size;
            }
        }
    }
    for (size_t k = 0; k < (size_t) n_arenas * n_nodes; k++) {
        l->loads[k] += k % n_nodes ? l->loads[k - 1] : 0;
    }
    return GGML_STATUS_SUCCESS;
}

// The largest load over the lifetime of `own`, from position i, if it continues a larger item that
// would end there.
static size_t load_within(const struct liveness * l, const struct usage * own, size_t wasted, int i) {
    const size_t * loads = loads_of(l, own->arena);
    size_t most = loads[i] - own->size;
    for (int64_t t = i + 1; t < upper_of(l, own); t++) {
        most = GB_MAX(most, loads[t] + wasted);
    }
    return most;
}

// The largest load of the same positions if `own` has its own memory.
static size_t load_apart(const struct liveness * l, const struct usage * own, int i) {
    const size_t * loads = loads_of(l, own->arena);
    size_t most = loads[i];
    for (int64_t t = i + 1; t < upper_of(l, own); t++) {
        most = GB_MAX(most, loads[t]);
    }
    return most;
}

// Updates the loads: `own` continues an item that is `wasted` bytes larger. Position i counted both
// items.
static void note_in_place(struct liveness * l, const struct usage * own, size_t wasted, int i) {
    size_t * loads = loads_of(l, own->arena);
    loads[i] -= own->size;
    for (int64_t t = i + 1; wasted > 0 && t < upper_of(l, own); t++) {
        loads[t] += wasted;
    }
}

// --------------------------------------------------------------------------------------------------------------- items

bool gb_live_reads_in_place(const struct ggml_tensor * node, const int32_t * ids, int32_t id) {
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        const struct ggml_tensor * src = node->src[s];
        if (src && ids[s] == id &&
            (src == node || (src->view_src && src->view_offs != 0) || !gb_plan_can_write_over(node, s))) {
            return false;
        }
    }
    return true;
}

// True if the node at position i may overwrite the storage u of its source s, provided that u dies
// there.
static bool may_write_over(const struct liveness * l, int i, int s, const struct usage * u) {
    const struct ggml_tensor *node = l->in->nodes[i], *src = node->src[s];
    if (is_allocator(l)) {
        return src != node && u->n_last == 1 && (src->view_src == NULL || src->view_offs == 0) &&
               gb_allocator_can_write_over(node, s);
    }
    const int32_t * ids = l->ids + (size_t) i * GB_LIVE_SLOTS;
    return gb_plan_can_write_over(node, s) && gb_live_reads_in_place(node, ids, ids[s]);
}

// The item of source s if it dies in node i and the node may continue it, else NEVER.
static int64_t item_of_dying(struct liveness * l, const struct usage * own, int i, int s) {
    const struct ggml_tensor * src = l->in->nodes[i]->src[s];
    struct usage * u = src ? usage_at(l, i, s) : NULL;
    if (u == NULL || u->to_end || u->taken || u->last != i || u->arena != own->arena || !may_write_over(l, i, s, u) ||
        (l->in->may_join && !l->in->may_join(l->in->user_data, own - l->usages, u - l->usages))) {
        return NEVER;
    }
    const int64_t item = l->item_of[u - l->usages];
    return item != NEVER && own->size <= l->items.data[item].size ? item : NEVER;
}

// The source whose item node i continues. The allocator's rule takes the first source that dies in
// it. The rule of plans takes the smallest, which gives the lowest load. NEVER: none.
static int source_to_continue(struct liveness * l, const struct usage * own, int i) {
    int best = NEVER;
    size_t wasted = 0;
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        const int64_t item = item_of_dying(l, own, i, s);
        if (item == NEVER) {
            continue;
        }
        if (is_allocator(l)) {
            return s;
        }
        const size_t here = l->items.data[item].size - own->size;
        if ((best == NEVER || here < wasted) && (here == 0 || load_within(l, own, here, i) < load_apart(l, own, i))) {
            best = s;
            wasted = here;
        }
    }
    if (best != NEVER) {
        note_in_place(l, own, wasted, i);
    }
    return best;
}

// Continues the item of a source with the storage of node i.
static bool continue_item(struct liveness * l, struct usage * own, int i) {
    const int s = own->from_start || l->in->no_join ? NEVER : source_to_continue(l, own, i);
    if (s == NEVER) {
        return false;
    }
    struct usage * source = usage_at(l, i, s);
    const int64_t old = l->item_of[source - l->usages];
    struct gb_live_item * item = &l->items.data[old];
    source->taken = true;
    item->upper = GB_MAX(item->upper, upper_of(l, own));
    item->to_end = own->to_end;
    l->item_of[own - l->usages] = old;
    return true;
}

// Makes an item for the storage of slot s at its first use, or continues the item of a source.
static enum ggml_status make_item(struct liveness * l, int i, int s) {
    struct usage * u = usage_at(l, i, s);
    if (u == NULL || l->item_of[u - l->usages] != NEVER || (u->tensor == l->in->nodes[i] && continue_item(l, u, i))) {
        return GGML_STATUS_SUCCESS;
    }
    const struct gb_live_item item = { u->tensor, u->arena, u->size, lower_of(u), upper_of(l, u), u->from_start,
        u->to_end };
    if (!gb_vec_push(&l->items, item)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    l->item_of[u - l->usages] = (int64_t) l->items.n - 1;
    return GGML_STATUS_SUCCESS;
}

// The second pass. It follows the order in which memory is needed: first sources that no node
// computed, then the node.
static enum ggml_status make_items(struct liveness * l) {
    for (int i = 0; i < l->in->n_nodes; i++) {
        struct ggml_tensor * node = l->in->nodes[i];
        gb_tensor_prefetch_ahead(l->in->nodes, (size_t) l->in->n_nodes, (size_t) i);
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            if (node->src[s] && gb_root(node->src[s]) != node) {
                GB_TRY(make_item(l, i, s));
            }
        }
        GB_TRY(make_item(l, i, OWN));
    }
    return GGML_STATUS_SUCCESS;
}

// Calls the thread's poll now and then, because planning a large graph takes milliseconds.
static enum ggml_status compute(struct liveness * l, const struct gb_liveness_input * in) {
    GB_TRY(init_state(l, in));
    GB_TRY(find_usages(l));
    GB_TRY(gb_check_poll());
    GB_TRY(find_loads(l));
    GB_TRY(gb_check_poll());
    if (!gb_vec_reserve(&l->items, (size_t) in->n_nodes / 2)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    return make_items(l);
}

enum ggml_status gb_liveness_compute(const struct gb_liveness_input * in, struct gb_liveness * out) {
    GB_CHECK_ARG(in);
    GB_CHECK_ARG(out);
    *out = (struct gb_liveness){ 0 };
    GB_FAIL_IF(in->n_nodes < 0 || in->n_ids < 0 || in->n_ids > INT32_MAX || (in->n_nodes > 0 && !in->nodes) ||
                   (in->n_nodes > 0 && !in->id_of && !in->ids) || !in->arena_of || !in->size_of,
        GGML_STATUS_INVALID_ARGUMENT, "%s: incomplete input", __func__);
    struct liveness l;
    const enum ggml_status status = compute(&l, in);
    if (status == GGML_STATUS_SUCCESS) {
        *out = (struct gb_liveness){ l.items.data, l.items.n, l.item_of, l.own_ids };
        l.items.data = NULL;
        l.item_of = NULL;
        l.own_ids = NULL;
    }
    free_state(&l);
    return status;
}

bool gb_liveness_prefer(struct gb_liveness * liveness, const struct gb_liveness * other, int64_t n_ids, int arena) {
    const size_t n_old = liveness->n_items;
    struct gb_live_item * items = gb_realloc(liveness->items, n_old + other->n_items, sizeof(*items));
    if (items == NULL) {
        return false;
    }
    liveness->items = items;
    liveness->n_items = n_old + other->n_items;
    for (size_t k = 0; k < liveness->n_items; k++) { // new items are appended, so indices of other items stay
        items[k] = k < n_old ? items[k] : other->items[k - n_old];
        items[k].arena = (items[k].arena == arena) == (k < n_old) ? -1 : items[k].arena;
    }
    for (int64_t id = 0; id < n_ids; id++) {
        const int64_t item = other->item_of[id];
        if (item >= 0 && other->items[item].arena == arena) {
            liveness->item_of[id] = (int64_t) n_old + item;
        }
    }
    return true;
}

enum ggml_status gb_liveness_load(const struct gb_liveness * liveness, int n_nodes, size_t * sum) {
    int n_arenas = 0;
    for (size_t k = 0; k < liveness->n_items; k++) {
        n_arenas = GB_MAX(n_arenas, liveness->items[k].arena + 1);
    }
    size_t * loads = gb_calloc((size_t) n_nodes + 1, sizeof(*loads));
    if (loads == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    *sum = 0;
    for (int arena = 0; arena < n_arenas; arena++) {
        memset(loads, 0, ((size_t) n_nodes + 1) * sizeof(*loads));
        for (size_t k = 0; k < liveness->n_items; k++) {
            const struct gb_live_item * item = &liveness->items[k];
            if (item->arena == arena) {
                loads[item->lower] += item->size;
                loads[item->upper] -= item->size;
            }
        }
        size_t now = 0, most = 0;
        for (int i = 0; i < n_nodes; i++) {
            now += loads[i];
            most = GB_MAX(most, now);
        }
        *sum += most;
    }
    gb_free(loads);
    return GGML_STATUS_SUCCESS;
}

void gb_liveness_free(struct gb_liveness * liveness) {
    if (liveness) {
        gb_free(liveness->items);
        gb_free(liveness->item_of);
        gb_free(liveness->ids);
        *liveness = (struct gb_liveness){ 0 };
    }
}
