// liveness.c - two passes over a node list: when is each storage used, then who may take over whose.
//
// Per storage the first pass finds the first and last position that uses it and whether it must last; the second pass
// makes the items, letting a node continue the item of a source that dies in it.
//
// By the rule of plans, continuing an item of the node's own size never raises the load, the bytes alive at a position.
// One that is larger keeps bytes that nobody needs, so it is continued only where the highest load of the positions
// concerned falls. Hence the highest load of an arena is never above that of plans that compute nothing in place.
#include "alloc/liveness.h"

#include "base/current.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/vec.h"
#include "tensor/tensor.h"

enum { NEVER = -1, OWN = GGML_MAX_SRC }; // OWN: the slot of the node itself

// of one storage (tensor id)
struct usage {
    struct ggml_tensor * tensor; // NULL: not met
    int first, last; // positions that write or read it
    int n_last; // slots that read it and give it back together with the last one
    int arena;
    size_t size;
    bool from_start, to_end;
    bool taken; // a node continues its item
};

struct liveness {
    const struct gb_liveness_input * in;
    const int32_t * ids; // borrowed: the caller's, or own_ids
    int32_t * own_ids; // owned until handed out
    struct usage * usages; // owned; by tensor id
    int * n_readers; // owned; by node position: slots of other nodes that read it
    struct gb_ptrmap position; // node -> position
    GB_VEC(struct gb_live_item) items;
    int64_t * item_of; // owned until handed out
    size_t * loads; // owned; by arena and position: bytes alive, with what was decided so far
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

// Each slot is looked up once, since callers find ids by hashing; everything below works with ids.
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

// -------------------------------------------------------------------------------------------------------------- usages

// Of slot s of the node at position i: the usage of its storage, met for the first time there or before; NULL: not ours
// to place.
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

// The node at position i uses the storage through t. Slots that read it are counted while they give it back together,
// at the same barrier: only a storage that one slot alone still reads can be taken over by the allocator's rule.
static void note_use(const struct liveness * l, struct usage * u, const struct ggml_tensor * t, int i, bool reads) {
    if (released_at(l, u->last) != released_at(l, i)) {
        u->n_last = 0;
    }
    u->n_last += reads;
    u->last = i;
    note_flags(u, t);
    note_flags(u, u->tensor);
}

// Of a source that is a node itself: it is read, and it must come before its reader.
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
        // Met in a reader: nobody wrote it before. A node reading itself is its own writer.
        u->from_start |= !is_allocator(l) && u->first == i && node != u->tensor;
        note_use(l, u, node->src[s], i, node->src[s] != node);
    }
    return GGML_STATUS_SUCCESS;
}

// A node of operator NONE is a parameter, which nothing computes, unless it names a source.
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
        // Parameters are nodes that nothing computes; a view that is the first to name its source only looks at it.
        const bool computed = node->view_src ? gb_op_computes(node->op) : node->op != GGML_OP_NONE || has_source(node);
        u->from_start |= !is_allocator(l) && u->first == i && (!computed || node->view_src);
        note_use(l, u, node, i, false);
    }
}

// The first pass. What no node of the list reads is a result, and lasts, unless the caller drops it: a slot that reads
// a view counts for the view only, so a view that nobody reads makes its source last.
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

// From the first node, or from the start of the list where content comes from outside.
static int64_t lower_of(const struct usage * u) { return u->from_start ? 0 : u->first; }

static int64_t upper_of(const struct liveness * l, const struct usage * u) {
    return u->to_end ? l->in->n_nodes : released_at(l, u->last);
}

// One row of loads for each arena: bytes of different arenas never compete.
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

// As if nothing were computed in place. Unsigned numbers wrap, so differences may be added up. The allocator's rule
// asks for no loads.
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

// The highest load from position i, where `own` begins, up to its end, if it goes on in a larger piece of memory that
// was to end there.
static size_t load_within(const struct liveness * l, const struct usage * own, size_t wasted, int i) {
    const size_t * loads = loads_of(l, own->arena);
    size_t most = loads[i] - own->size;
    for (int64_t t = i + 1; t < upper_of(l, own); t++) {
        most = GB_MAX(most, loads[t] + wasted);
    }
    return most;
}

// The highest load of the same positions if `own` has memory of its own.
static size_t load_apart(const struct liveness * l, const struct usage * own, int i) {
    const size_t * loads = loads_of(l, own->arena);
    size_t most = loads[i];
    for (int64_t t = i + 1; t < upper_of(l, own); t++) {
        most = GB_MAX(most, loads[t]);
    }
    return most;
}

// The loads as they are now that `own` goes on in memory that is `wasted` bytes larger: at position i both were
// counted.
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

// May the node at position i be computed into the storage u of its source s, if that dies in it?
static bool may_write_over(const struct liveness * l, int i, int s, const struct usage * u) {
    const struct ggml_tensor *node = l->in->nodes[i], *src = node->src[s];
    if (is_allocator(l)) {
        return src != node && u->n_last == 1 && (src->view_src == NULL || src->view_offs == 0) &&
               gb_allocator_can_write_over(node, s);
    }
    const int32_t * ids = l->ids + (size_t) i * GB_LIVE_SLOTS;
    return gb_plan_can_write_over(node, s) && gb_live_reads_in_place(node, ids, ids[s]);
}

// The item of a source that dies in node i, in memory that can become the node's; NEVER if source s is none.
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

// The source whose item node i goes on in: of those that die in it the first, or by the rule of plans the smallest,
// which leaves the lowest load; NEVER if there is none.
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

// The storage of node i goes on in the item of a source.
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

// The storage of slot s, if it is met at position i for the first time: a new item, or the continuation of another's.
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

// The second pass, in the order in which memory is needed: sources that no node of the list computed before, then the
// node.
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

// Planning a large graph takes milliseconds: it asks in between whether anybody still waits for it.
static enum ggml_status compute(struct liveness * l, const struct gb_liveness_input * in) {
    GB_TRY(init_state(l, in));
    GB_TRY(find_usages(l));
    GB_TRY(gb_go_on());
    GB_TRY(find_loads(l));
    GB_TRY(gb_go_on());
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
    for (size_t k = 0; k < liveness->n_items; k++) { // the others' indices stay: all are appended
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
