// liveness.c - two passes over a node list: when is each storage used, then who may take over whose.
//
// Everything is said about storage, that is about the tensor that owns memory: what happens to a view happens to its
// source. Per storage the first pass finds the first and last position that uses it and whether it must last; the
// second pass makes the items, letting a node continue the item of a source that dies in it.
#include "alloc/liveness.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/vec.h"
#include "tensor/tensor.h"

enum { NEVER = -1 };

struct usage { // of one storage (tensor id)
    struct ggml_tensor * tensor; // NULL: not met
    int     first, last;         // positions that write or read it
    int     arena;
    bool    from_start, to_end;
    bool    taken;               // a node continues its item
};

struct liveness {
    const struct gb_liveness_input * in;
    struct usage *      usages;    // owned; by tensor id
    int *               n_readers; // owned; by node position: slots of other nodes that read it
    struct gb_ptrmap    position;  // node -> position
    GB_VEC(struct gb_live_item) items;
    int64_t *           item_of;   // owned until handed out
};

bool gb_can_take_over(const struct ggml_tensor * node, const struct ggml_tensor * src) {
    if (node->view_src != NULL || !gb_op_can_inplace(node->op) || !gb_are_same_layout(node, src)) {
        return false;
    }
    // Only elementwise ops of two operands read the second one exactly where they write.
    switch (node->op) {
        case GGML_OP_ADD:
        case GGML_OP_SUB:
        case GGML_OP_MUL:
        case GGML_OP_DIV: return src == node->src[0] || src == node->src[1];
        default: return src == node->src[0];
    }
}

static void free_state(struct liveness * l) {
    gb_free(l->usages);
    gb_free(l->n_readers);
    gb_ptrmap_free(&l->position);
    gb_free(l->item_of);
    gb_vec_free(&l->items);
}

static enum ggml_status init_state(struct liveness * l, const struct gb_liveness_input * in) {
    *l           = (struct liveness){ .in = in };
    l->usages    = gb_calloc((size_t) in->n_ids, sizeof(*l->usages));
    l->n_readers = gb_calloc((size_t) in->n_nodes, sizeof(*l->n_readers));
    l->item_of   = gb_calloc((size_t) in->n_ids, sizeof(*l->item_of));
    if (!l->usages || !l->n_readers || !l->item_of || !gb_ptrmap_reserve(&l->position, (size_t) in->n_nodes)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (int i = 0; i < in->n_nodes; i++) {
        const struct ggml_tensor * node = in->nodes[i];
        GB_FAIL_IF(node == NULL, GGML_STATUS_INVALID_ARGUMENT, GGML_STATUS_INVALID_ARGUMENT,
                   "gb_liveness_compute: node %d is NULL", i);
        GB_FAIL_IF(gb_ptrmap_get(&l->position, node) != GB_PTRMAP_ABSENT, GGML_STATUS_INVALID_ARGUMENT,
                   GGML_STATUS_INVALID_ARGUMENT, "gb_liveness_compute: node %d, '%s', occurs twice", i, node->name);
        if (!gb_ptrmap_set(&l->position, node, i)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    for (int64_t id = 0; id < in->n_ids; id++) {
        l->item_of[id] = NEVER;
    }
    return GGML_STATUS_SUCCESS;
}

static int64_t id_of(const struct liveness * l, const struct ggml_tensor * t) {
    const int64_t id = l->in->id_of(l->in->user, gb_root(t));
    return id >= 0 && id < l->in->n_ids ? id : NEVER;
}

// The storage's usage, met for the first time at position i or before; NULL: not ours to place.
static struct usage * usage_of(struct liveness * l, const struct ggml_tensor * t, int i) {
    const int64_t id = id_of(l, t);
    if (id == NEVER) {
        return NULL;
    }
    struct usage * u = &l->usages[id];
    if (u->tensor == NULL) {
        u->tensor = gb_root(t);
        u->first  = i;
        u->arena  = l->in->arena_of(l->in->user, u->tensor);
    }
    return u->arena < 0 ? NULL : u;
}

static void note_flags(const struct liveness * l, struct usage * u, const struct ggml_tensor * t) {
    u->from_start |= gb_tensor_has_flag(t, GB_TENSOR_INPUT);
    u->to_end |= gb_tensor_has_flag(t, GB_TENSOR_OUTPUT) || (l->in->keep && l->in->keep(l->in->user, t));
}

static enum ggml_status note_source(struct liveness * l, const struct ggml_tensor * src, int i) {
    const int64_t at = gb_ptrmap_get(&l->position, src);
    GB_FAIL_IF(at != GB_PTRMAP_ABSENT && at > i, GGML_STATUS_INVALID_ARGUMENT, GGML_STATUS_INVALID_ARGUMENT,
               "gb_liveness_compute: node %d, '%s', reads '%s', which is computed later, as node %lld", i,
               l->in->nodes[i]->name, src->name, (long long) at);
    if (at != GB_PTRMAP_ABSENT && at < i) {
        l->n_readers[at]++;
    }
    struct usage * u = usage_of(l, src, i);
    if (u) {
        // Met in a reader: nobody wrote it before. A node reading itself is its own writer.
        u->from_start |= u->first == i && l->in->nodes[i] != u->tensor;
        u->last = i;
        note_flags(l, u, src);
        note_flags(l, u, u->tensor);
    }
    return GGML_STATUS_SUCCESS;
}

static bool has_source(const struct ggml_tensor * t) {
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        if (t->src[s]) {
            return true;
        }
    }
    return false;
}

static enum ggml_status find_usages(struct liveness * l) {
    for (int i = 0; i < l->in->n_nodes; i++) {
        struct ggml_tensor * node = l->in->nodes[i];
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            if (node->src[s]) {
                GB_TRY(note_source(l, node->src[s], i));
            }
        }
        struct usage * u = usage_of(l, node, i);
        if (u) {
            // Parameters are nodes that nothing computes; a view that is the first to name its source only looks at it.
            const bool computed = node->view_src ? !gb_op_is_view(node->op)
                                                 : node->op != GGML_OP_NONE || has_source(node);
            u->from_start |= u->first == i && (!computed || node->view_src);
            u->last = i;
            note_flags(l, u, node);
            note_flags(l, u, u->tensor);
        }
    }
    for (int i = 0; i < l->in->n_nodes && !l->in->drop_unread; i++) {
        struct usage * u = l->n_readers[i] == 0 ? usage_of(l, l->in->nodes[i], i) : NULL;
        if (u) {
            u->to_end = true;
        }
    }
    return GGML_STATUS_SUCCESS;
}

// How often the node reads the storage, over all its sources. By id: several tensors may stand for one storage.
static int n_reads(const struct liveness * l, const struct ggml_tensor * node, int64_t id) {
    int n = 0;
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        n += node->src[s] && id_of(l, node->src[s]) == id;
    }
    return n;
}

// The item of a source that dies in node i and whose memory fits the node; NEVER if there is none.
static int64_t item_to_continue(struct liveness * l, const struct ggml_tensor * node, const struct usage * own,
                                size_t size, int i) {
    if (own->from_start) {
        return NEVER;
    }
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        const struct ggml_tensor * src = node->src[s];
        struct usage *             u   = src ? usage_of(l, src, i) : NULL;
        if (u == NULL || u->to_end || u->taken || u->last != i || u->arena != own->arena || src == node) {
            continue;
        }
        const int64_t item = l->item_of[id_of(l, src)];
        const bool    at_0 = src->view_src == NULL || src->view_offs == 0;
        if (item != NEVER && at_0 && size <= l->items.data[item].size && gb_can_take_over(node, src) &&
            n_reads(l, node, id_of(l, src)) == 1) {
            u->taken = true;
            return item;
        }
    }
    return NEVER;
}

// The storage of t, if it is met at position i for the first time: a new item, or the continuation of another's.
static enum ggml_status make_item(struct liveness * l, const struct ggml_tensor * t, int i) {
    struct usage * u  = usage_of(l, t, i);
    const int64_t  id = u ? id_of(l, t) : NEVER;
    if (id == NEVER || l->item_of[id] != NEVER) {
        return GGML_STATUS_SUCCESS;
    }
    const int64_t n_nodes = l->in->n_nodes;
    const int64_t upper   = u->to_end ? n_nodes : u->last + 1;
    const size_t  size    = l->in->size_of(l->in->user, u->tensor);
    const int64_t old     = u->tensor == l->in->nodes[i] ? item_to_continue(l, u->tensor, u, size, i) : NEVER;
    if (old != NEVER) {
        l->items.data[old].upper = GB_MAX(l->items.data[old].upper, upper);
        l->item_of[id]           = old;
        return GGML_STATUS_SUCCESS;
    }
    const struct gb_live_item item = { u->tensor, u->arena, size, u->from_start ? 0 : u->first, upper };
    if (!gb_vec_push(&l->items, item)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    l->item_of[id] = (int64_t) l->items.n - 1;
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status make_items(struct liveness * l) {
    for (int i = 0; i < l->in->n_nodes; i++) {
        struct ggml_tensor * node = l->in->nodes[i];
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            if (node->src[s] && gb_root(node->src[s]) != node) {
                GB_TRY(make_item(l, node->src[s], i));
            }
        }
        GB_TRY(make_item(l, node, i));
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status compute(struct liveness * l, const struct gb_liveness_input * in) {
    GB_TRY(init_state(l, in));
    GB_TRY(find_usages(l));
    return make_items(l);
}

enum ggml_status gb_liveness_compute(const struct gb_liveness_input * in, struct gb_liveness * out) {
    GB_CHECK_ARG(in, GGML_STATUS_INVALID_ARGUMENT);
    GB_CHECK_ARG(out, GGML_STATUS_INVALID_ARGUMENT);
    *out = (struct gb_liveness){ 0 };
    GB_FAIL_IF(in->n_nodes < 0 || in->n_ids < 0 || (in->n_nodes > 0 && !in->nodes) || !in->id_of || !in->arena_of ||
                   !in->size_of,
               GGML_STATUS_INVALID_ARGUMENT, GGML_STATUS_INVALID_ARGUMENT, "%s: incomplete input", __func__);
    struct liveness        l;
    const enum ggml_status status = compute(&l, in);
    if (status == GGML_STATUS_SUCCESS) {
        *out           = (struct gb_liveness){ l.items.data, l.items.n, l.item_of };
        l.items.data   = NULL;
        l.item_of      = NULL;
    }
    free_state(&l);
    return status;
}

void gb_liveness_free(struct gb_liveness * liveness) {
    if (liveness) {
        gb_free(liveness->items);
        gb_free(liveness->item_of);
        *liveness = (struct gb_liveness){ 0 };
    }
}
