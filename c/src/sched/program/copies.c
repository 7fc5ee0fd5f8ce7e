// copies.c - completes the splits: their copies, the tensors that they compute, and their
// write-backs.
//
// Each root has a version, which grows with every node that writes the root or a view of it. A copy
// of a root on a backend serves all readers there until the version changes. The original is always
// up to date: the result of a node that computes on a copy is written back, and the copy gets the
// new version. A copy holds the bytes that its readers use, as one range. It holds the whole root
// if the root is quantized, because backends may store such types in another form.
//
// The result of a shadow is in the memory of the original, so later nodes could read the original.
// But backends fuse neighbouring nodes by looking at their sources, and shadows must not prevent
// fusion. Without fusion a run takes more time, and sums are rounded in another order. So the nodes
// of the same split that soon read a shadow become shadows. The views between them do, too.
//
// A copy is filled before its split begins, even if a later node of the split reads it. Within a
// split only its own backend writes, and its writes go through the copy. Copies of tensors that no
// node writes may be kept for later runs (memory/replica.c).
#include "sched/assign/assign.h"
#include "sched/input/input.h"
#include "sched/program/program.h"
#include "sched/sched.h"
#include "sched/types.h"

#include <stdio.h>
#include <string.h>

static void name_copy(const struct ggml_backend_sched * s, int backend, struct ggml_tensor * t) { // "BACKEND#name"
    char name[GGML_MAX_NAME], device[GGML_MAX_NAME / 2];
    snprintf(device, sizeof(device), "%.*s", GGML_MAX_NAME / 2 - 1, s->devices[backend].name);
    gb_cut_at_character(device);
    gb_tensor_read_name(t, name);
    snprintf(t->name, sizeof(t->name), "%s#%.*s", device, GGML_MAX_NAME - 33, name);
    gb_cut_at_character(t->name);
}

// ------------------------------------------------------------------------------------------------------------- builder

struct seen { // the latest shadow made to read a tensor
    int copy;
    struct gb_shadow * shadow;
};

struct node_shadow { // the shadow of a node, or of a view of a node, in the memory of the original
    struct gb_shadow * shadow;
    size_t at; // of the node: its index in `exec`
};

// State while the splits are completed, in order.
struct builder {
    const struct ggml_backend_sched * sched;
    const struct gb_sched_input * in;
    const struct gb_sched_assigned * assigned;
    const struct gb_item * leafs; // per id: places of leafs
    const struct gb_sched_program * candidate; // merge copies as in this program; NULL: none
    struct gb_sched_program * program;
    int * version; // owned; per id, of roots
    int32_t * copy_of; // owned; per id and backend: the latest copy of a root + 1
    struct seen * seen; // owned; per id
    struct node_shadow * node_shadows; // owned; per id, of nodes
    uint8_t * written; // owned; per root: 1 if a node writes it
    struct gb_split * split;
};

// Frees the tables. The program belongs to the plan, complete or not.
static void free_builder(struct builder * b) {
    gb_free(b->version);
    gb_free(b->copy_of);
    gb_free(b->seen);
    gb_free(b->node_shadows);
    gb_free(b->written);
}

// All tables start at zero: no versions, no copies.
static bool init_builder(struct builder * b) {
    const size_t n = (size_t) b->in->n_ids;
    b->version = gb_calloc(n, sizeof(*b->version));
    b->copy_of = gb_calloc(n, (size_t) b->in->n_backends * sizeof(*b->copy_of));
    b->seen = gb_calloc(n, sizeof(*b->seen));
    b->node_shadows = gb_calloc(n, sizeof(*b->node_shadows));
    b->written = gb_calloc(n, sizeof(*b->written));
    return b->version && b->copy_of && b->seen && b->node_shadows && b->written;
}

// ----------------------------------------------------------------------------------------------------- what is written

// True if the tensor may overlap tensors of other roots.
static bool in_user_memory(const struct gb_id * id) {
    return id->location == GB_LOCATION_USER || id->location == GB_LOCATION_HOST;
}

// True if two tensors overlap.
static bool overlap(const struct ggml_tensor * a, const struct ggml_tensor * b) {
    const uintptr_t a0 = (uintptr_t) a->data, b0 = (uintptr_t) b->data;
    return a0 < b0 + ggml_nbytes(b) && b0 < a0 + ggml_nbytes(a);
}

// Marks roots that a node writes, and tensors of the user that overlap such a root.
static bool find_written(struct builder * b) {
    GB_VEC(int32_t) of_user = { 0 };
    bool ok = true;
    for (int i = 0; ok && i < b->in->n_nodes; i++) {
        const int root = b->in->ids.data[i].root;
        if (b->in->ids.data[i].computes && !b->written[root]) {
            b->written[root] = 1;
            ok = !in_user_memory(&b->in->ids.data[root]) || gb_vec_push(&of_user, root);
        }
    }
    for (int i = 0; ok && of_user.n > 0 && i < b->in->n_ids; i++) {
        for (size_t k = 0; in_user_memory(&b->in->ids.data[i]) && !b->written[i] && k < of_user.n; k++) {
            b->written[i] = overlap(b->in->ids.data[i].tensor, b->in->ids.data[of_user.data[k]].tensor);
        }
    }
    gb_vec_free(&of_user);
    return ok;
}

// True if the copy can be kept until its source is written. No node of this graph writes the
// source, and other writes are noticed: the host has no pointer to it, or its usage WEIGHTS
// promises that writes are reported. Inputs change with every run.
static bool can_be_kept(const struct builder * b, int root) {
    const struct gb_id * id = &b->in->ids.data[root];
    const ggml_backend_buffer_t buffer = id->tensor->buffer;
    if (b->in->minimal || b->written[root]) {
        return false;
    }
    if (b->in->weight[root] || gb_tensor_has_flag(id->tensor, GB_TENSOR_INPUT)) {
        return b->in->weight[root];
    }
    switch ((enum gb_location) id->location) {
        case GB_LOCATION_USER: return !ggml_backend_buffer_is_host(buffer) && gb_sched_mem_of(b->sched, buffer) == NULL;
        case GB_LOCATION_SHARED: return !ggml_backend_buffer_is_host(buffer);
        case GB_LOCATION_LEAF: return !ggml_backend_buft_is_host(b->sched->devices[b->assigned->to[root].backend].buft);
        default: return false;
    }
}

// -------------------------------------------------------------------------------------------------------------- copies

// Widens the copy to the bytes of its root that tensor t uses.
static void widen(struct builder * b, struct gb_copy * copy, int t) {
    const struct ggml_tensor * tensor = b->in->ids.data[t].tensor;
    const struct ggml_tensor * root = b->in->ids.data[copy->root].tensor;
    const size_t total = ggml_nbytes(root);
    size_t lo = tensor->view_src ? tensor->view_offs : 0;
    const size_t hi = lo + ggml_nbytes(tensor);
    lo -= lo % b->sched->devices[copy->backend].alignment; // views stay aligned
    copy->lo = GB_MIN(copy->lo, lo);
    copy->hi = GB_MAX(copy->hi, hi);
    copy->whole = copy->whole || ggml_is_quantized(root->type) || (copy->kept && b->in->weight[copy->root]) ||
                  (copy->lo == 0 && copy->hi == total);
    if (copy->whole) {
        copy->lo = 0;
        copy->hi = total;
    }
}

// True for an input that the user may set again during the run: devices read a copy of it.
static bool is_staged(const struct builder * b, int root) {
    const struct gb_id * id = &b->in->ids.data[root];
    if (b->in->n_copies < 2 || id->computes || b->written[root] || !gb_tensor_has_flag(id->tensor, GB_TENSOR_INPUT) ||
        !gb_sched_has_queue(b->sched, b->split->backend)) {
        return false;
    }
    switch ((enum gb_location) id->location) {
        case GB_LOCATION_LEAF: return ggml_backend_buft_is_host(b->sched->devices[b->assigned->to[root].backend].buft);
        case GB_LOCATION_HOST: return true;
        case GB_LOCATION_USER:
        case GB_LOCATION_SHARED: return ggml_backend_buffer_is_host(id->tensor->buffer);
        default: return false;
    }
}

// Adds a copy, the latest of its root on that backend.
static bool add_copy(struct builder * b, int root, int backend, int shown, bool fill) {
    struct gb_copy copy = {
        .root = root,
        .backend = backend,
        .split = (int) (b->split - b->program->splits.data),
        .shown = shown,
        .fill = fill,
        .kept = fill && can_be_kept(b, root),
        .staged = fill && !can_be_kept(b, root) && is_staged(b, root),
        .merged = -1,
        .lo = SIZE_MAX,
        .hi = 0,
        .version = b->version[root],
    };
    const int index = (int) b->program->copies.n;
    copy.dst = gb_sched_new_shadow(b->program, b->in, root, index);
    if (copy.dst == NULL || !gb_vec_push(&b->program->copies, copy) ||
        (fill && !gb_vec_push(&b->program->transfers, index))) {
        return false;
    }
    struct ggml_tensor * dst = &copy.dst->tensor;
    memset(dst->src, 0, sizeof(dst->src));
    dst->op = GGML_OP_CPY;
    b->program->n_staged += copy.staged;
    b->copy_of[(size_t) root * (size_t) b->in->n_backends + (size_t) backend] = index + 1;
    return true;
}

// The index of a copy of the current version of t's root on the split's backend, with all bytes of
// t. -1: no memory.
static int need_copy(struct builder * b, int t, bool fill) {
    const int root = b->in->ids.data[t].root;
    const int32_t * known = &b->copy_of[(size_t) root * (size_t) b->in->n_backends + (size_t) b->split->backend];
    if (*known == 0 || b->program->copies.data[*known - 1].version != b->version[root]) {
        if (!add_copy(b, root, b->split->backend, t, fill)) {
            return -1;
        }
    }
    widen(b, &b->program->copies.data[*known - 1], t);
    return *known - 1;
}

// The shadow of t on a copy of its root. view_offs is relative to the root until finish_copies.
static struct gb_shadow * on_copy(struct builder * b, int t, int copy) {
    if (b->seen[t].shadow && b->seen[t].copy == copy) {
        return b->seen[t].shadow;
    }
    struct gb_shadow * shadow = gb_sched_new_shadow(b->program, b->in, t, copy);
    if (shadow) {
        struct ggml_tensor * dst = &b->program->copies.data[copy].dst->tensor;
        memset(shadow->tensor.src, 0, sizeof(shadow->tensor.src));
        shadow->tensor.op = GGML_OP_VIEW;
        shadow->tensor.src[0] = dst;
        shadow->tensor.view_offs = b->in->ids.data[t].tensor->view_src ? b->in->ids.data[t].tensor->view_offs : 0;
        shadow->tensor.view_src = dst;
        name_copy(b->sched, b->split->backend, &shadow->tensor);
        b->seen[t] = (struct seen){ copy, shadow };
    }
    return shadow;
}

// --------------------------------------------------------------------------------------------------------------- nodes

// True if the split's backend can use the tensor in place. Never true for a staged input, which the
// user may set again.
static bool is_reached(const struct builder * b, int t) {
    const int root = b->in->ids.data[t].root;
    return gb_sched_reaches(b->sched, b->in, b->assigned, b->split->backend, root) && !is_staged(b, root);
}

// True if the result and all sources can be used in place.
static bool runs_as_it_is(const struct builder * b, int node) {
    for (uint32_t k = b->in->src_begin[node]; k < b->in->src_begin[node + 1]; k++) {
        if (!is_reached(b, b->in->srcs[k])) {
            return false;
        }
    }
    return is_reached(b, node);
}

// True if the node reads a part of the memory that it overwrites. A copy to compute on must then be
// filled.
static bool reads_own_root(const struct gb_sched_input * in, int node) {
    for (uint32_t k = in->src_begin[node]; k < in->src_begin[node + 1]; k++) {
        if (in->ids.data[in->srcs[k]].root == in->ids.data[node].root) {
            return true;
        }
    }
    return false;
}

enum {
    NEAR = 8, // nodes from a shadow to its reader; no backend fuses more
    MAX_VIEWS = 4 // views between them
};

// The node whose result the tensor shows, itself or through views, if a shadow computed it shortly
// before in this split. -1: none.
static int near_shadow(const struct builder * b, int t) {
    for (int views = 0; views <= MAX_VIEWS && t >= b->split->start && t < b->split->end; views++) {
        if (b->in->ids.data[t].computes) {
            const struct node_shadow * near = &b->node_shadows[t];
            return near->shadow && b->program->exec.n - near->at < NEAR ? t : -1;
        }
        const struct ggml_tensor * src = b->in->ids.data[t].tensor->src[0];
        t = src ? (int) gb_ptrmap_get(&b->in->map, src) : -1;
    }
    return -1;
}

static bool reads_near_shadow(const struct builder * b, int node) {
    if (b->program->shadows == NULL) { // no node has a shadow, as in most graphs
        return false;
    }
    for (uint32_t k = b->in->src_begin[node]; k < b->in->src_begin[node + 1]; k++) {
        if (near_shadow(b, b->in->srcs[k]) >= 0) {
            return true;
        }
    }
    return false;
}

// The shadow of a view is in the shadow of its root, if there is one.
static void bind_to_shadow(const struct builder * b, struct gb_shadow * shadow) {
    const int root = b->in->ids.data[shadow->origin].root;
    struct gb_shadow * near = b->node_shadows[root].shadow;
    if (root != shadow->origin && root >= b->split->start && near != NULL) {
        shadow->tensor.view_src = &near->tensor;
    }
}

// The shadow of t, for which near_shadow has found a node. Makes missing shadows of views. NULL: no
// memory.
static struct gb_shadow * shadow_for(struct builder * b, int t) {
    if (b->node_shadows[t].shadow == NULL) {
        const struct ggml_tensor * src = b->in->ids.data[t].tensor->src[0];
        struct gb_shadow * source = shadow_for(b, (int) gb_ptrmap_get(&b->in->map, src));
        struct gb_shadow * shadow = source ? gb_sched_new_shadow(b->program, b->in, t, -1) : NULL;
        if (shadow == NULL) {
            return NULL;
        }
        shadow->tensor.src[0] = &source->tensor;
        bind_to_shadow(b, shadow);
        b->node_shadows[t].shadow = shadow;
    }
    return b->node_shadows[t].shadow;
}

// Replaces sources that the backend cannot use or that have a shadow near by.
static bool replace_sources(struct builder * b, struct gb_shadow * shadow) {
    const struct ggml_tensor * node = b->in->ids.data[shadow->origin].tensor;
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        if (node->src[s] == NULL) {
            continue;
        }
        if (node->src[s] == node) {
            shadow->tensor.src[s] = &shadow->tensor;
            continue;
        }
        const int t = (int) gb_ptrmap_get(&b->in->map, node->src[s]);
        if (is_reached(b, t)) {
            if (near_shadow(b, t) >= 0) {
                struct gb_shadow * near = shadow_for(b, t);
                if (near == NULL) {
                    return false;
                }
                shadow->tensor.src[s] = &near->tensor;
            }
            continue;
        }
        const int copy = need_copy(b, t, true);
        struct gb_shadow * src = copy < 0 ? NULL : on_copy(b, t, copy);
        if (src == NULL) {
            return false;
        }
        b->program->copies.data[copy].as_weight |= gb_op_is_weight(node->op, s);
        shadow->tensor.src[s] = &src->tensor;
    }
    return true;
}

// The node computes on a copy of its root. Then the result is written back.
static bool add_write_back(struct builder * b, struct gb_shadow * shadow, int copy) {
    const int node = shadow->origin;
    struct ggml_tensor * dst = &b->program->copies.data[copy].dst->tensor;
    shadow->copy = copy;
    shadow->tensor.view_offs = b->in->ids.data[node].tensor->view_src ? b->in->ids.data[node].tensor->view_offs : 0;
    shadow->tensor.view_src = dst;
    struct gb_shadow * marker = gb_sched_new_shadow(b->program, b->in, node, -1);
    if (marker == NULL) {
        return false;
    }
    struct ggml_tensor * root = b->in->ids.data[b->in->ids.data[node].root].tensor;
    memset(marker->tensor.src, 0, sizeof(marker->tensor.src));
    marker->tensor.op = GGML_OP_CPY;
    marker->tensor.src[0] = &shadow->tensor;
    marker->tensor.view_src = root;
    return gb_vec_push(&b->program->backs, ((struct gb_write_back){ node, shadow, marker }));
}

// The node runs as a shadow, because its result or a source is on a copy, or a source is a shadow.
static bool add_shadow_node(struct builder * b, int node) {
    const int root = b->in->ids.data[node].root;
    struct gb_shadow * shadow = gb_sched_new_shadow(b->program, b->in, node, -1);
    if (shadow == NULL) {
        return false;
    }
    int copy = -1;
    if (!is_reached(b, node)) { // before the sources, because sources of the same root are in the same copy
        copy = need_copy(b, node, root != node || reads_own_root(b->in, node));
        if (copy < 0) {
            return false;
        }
    }
    if (!replace_sources(b, shadow) || !gb_vec_push(&b->program->exec, &shadow->tensor)) {
        return false;
    }
    if (copy < 0) {
        bind_to_shadow(b, shadow);
        b->node_shadows[node] = (struct node_shadow){ shadow, b->program->exec.n - 1 };
        return true;
    }
    return add_write_back(b, shadow, copy);
}

// Each node raises the version of its root, wherever the node computes.
static bool add_node(struct builder * b, int node) {
    const size_t n_backs = b->program->backs.n;
    if (runs_as_it_is(b, node) && !reads_near_shadow(b, node)
            ? !gb_vec_push(&b->program->exec, b->in->ids.data[node].tensor)
            : !add_shadow_node(b, node)) {
        return false;
    }
    const int root = b->in->ids.data[node].root;
    b->version[root]++;
    if (b->program->backs.n > n_backs) {
        b->program->copies.data[b->program->backs.data[n_backs].from->copy].version = b->version[root];
    }
    return gb_vec_push(&b->program->exec_node, node);
}

// The copies, transfers, nodes and write-backs of a split are contiguous in the program's lists.
static bool add_split(struct builder * b, struct gb_split * split) {
    b->split = split;
    split->copies_begin = b->program->copies.n;
    split->transfers_begin = b->program->transfers.n;
    split->exec_begin = b->program->exec.n;
    split->backs_begin = b->program->backs.n;
    for (int i = split->start; i < split->end; i++) {
        if (b->in->ids.data[i].computes && !add_node(b, i)) {
            return false;
        }
    }
    split->copies_end = b->program->copies.n;
    split->transfers_end = b->program->transfers.n;
    split->exec_end = b->program->exec.n;
    split->backs_end = b->program->backs.n;
    return true;
}

// ------------------------------------------------------------------------------------------------------------ together

struct address { // place of a root's bytes, as far as it is known before binding
    bool known;
    const void * buffer; // of the user; NULL: chunk `chunk` of the leaf stores of `backend`
    int backend, chunk;
    size_t at;
};

// Leafs are compared by their places in the layout.
static struct address address_of(const struct builder * b, int root) {
    const struct gb_id * id = &b->in->ids.data[root];
    const struct gb_item * item = &b->leafs[root];
    const struct ggml_tensor * t = id->tensor;
    switch ((enum gb_location) id->location) {
        case GB_LOCATION_USER:
        case GB_LOCATION_SHARED: return (struct address){ true, t->buffer, -1, -1, (size_t) (uintptr_t) t->data };
        case GB_LOCATION_LEAF: return (struct address){ true, NULL, item->backend, item->chunk, item->offset };
        default: return (struct address){ .known = false };
    }
}

// True if the copy is a whole root from outside the graph, as plain bytes.
static bool can_travel_together(const struct builder * b, const struct gb_copy * copy) {
    const struct ggml_tensor * root = b->in->ids.data[copy->root].tensor;
    return copy->fill && !copy->kept && !b->written[copy->root] && !ggml_is_quantized(root->type) && copy->lo == 0 &&
           copy->hi == ggml_nbytes(root) && copy->hi > 0 && address_of(b, copy->root).known &&
           ggml_backend_buft_get_alloc_size(b->sched->devices[copy->backend].buft, (struct ggml_tensor *) root) ==
               copy->hi;
}

// True if `next` begins where the bytes of `first` end, or shortly after, and would be aligned
// there.
static bool follows(const struct builder * b, const struct gb_copy * first, const struct gb_copy * next) {
    enum { GAP = 256 };
    const struct address p = address_of(b, first->root), q = address_of(b, next->root);
    const bool same = p.buffer == q.buffer && p.backend == q.backend && p.chunk == q.chunk;
    // Leafs are padded to the leaf unit, so they are neighbours for any size of `first`.
    const size_t gap = p.backend < 0 ? GAP : GB_MAX(GAP, b->sched->devices[p.backend].leaf_unit);
    return same && first->staged == next->staged && q.at >= p.at + first->span && q.at - p.at - first->span < gap &&
           (q.at - p.at) % b->sched->devices[first->backend].alignment == 0;
}

// True if `candidate` merges the same copies.
static bool candidate_agrees(const struct builder * b, size_t c, int with) {
    const struct gb_sched_program * candidate = b->candidate;
    return candidate == NULL || c >= candidate->copies.n ||
           candidate->copies.data[c].root != b->program->copies.data[c].root ||
           candidate->copies.data[c].merged == with;
}

// Merges the copies of neighbouring inputs of a split into one transfer.
static void merge_copies(struct builder * b, const struct gb_split * split) {
    int last = -1;
    for (size_t c = split->copies_begin; c < split->copies_end; c++) {
        struct gb_copy * copy = &b->program->copies.data[c];
        copy->span = copy->hi - copy->lo;
        if (b->in->minimal || !can_travel_together(b, copy)) {
            continue;
        }
        struct gb_copy * first = last < 0 ? NULL : &b->program->copies.data[last];
        if (first && follows(b, first, copy) && candidate_agrees(b, c, last)) {
            first->whole = false;
            first->shown = first->root;
            first->span = address_of(b, copy->root).at - address_of(b, first->root).at + copy->span;
            copy->merged = last;
            b->program->n_staged -= copy->staged;
        } else {
            last = (int) c;
        }
    }
}

// Moves the shadows on a merged copy to the bytes of the copy that transfers it.
static void move_shadow(const struct builder * b, struct gb_shadow * shadow) {
    struct gb_copy * copy = &b->program->copies.data[shadow->copy];
    if (copy->merged >= 0 && shadow != copy->dst) {
        const struct gb_copy * first = &b->program->copies.data[copy->merged];
        shadow->tensor.view_offs += address_of(b, copy->root).at - address_of(b, first->root).at;
        shadow->tensor.view_src = &first->dst->tensor;
        shadow->tensor.src[0] = &first->dst->tensor;
        shadow->copy = copy->merged;
    }
}

// Shadows move with the copies that contain them.
static void merge_all(struct builder * b) {
    for (size_t k = 0; k < b->program->splits.n; k++) {
        merge_copies(b, &b->program->splits.data[k]);
    }
    struct gb_shadow_iter it = { 0 };
    for (struct gb_shadow * sh = gb_sched_next_shadow(b->program, &it); sh;
        sh = gb_sched_next_shadow(b->program, &it)) {
        if (sh->copy >= 0) {
            move_shadow(b, sh);
        }
    }
}

// -------------------------------------------------------------------------------------------------------------- finish

// Ranges of tensors are copied as plain bytes.
static void as_bytes(struct ggml_tensor * t, size_t size) {
    t->type = GGML_TYPE_I8;
    gb_tensor_set_ndim(t, 1);
    t->ne[0] = (int64_t) size;
    t->nb[0] = 1;
    for (int d = 1; d < GGML_MAX_DIMS; d++) {
        t->ne[d] = 1;
        t->nb[d] = size;
    }
}

// When the ranges are known: sets the layouts of the copies, their names and sources, and the
// offsets of shadows on them.
static bool finish_copies(const struct builder * b) {
    for (size_t c = 0; c < b->program->copies.n; c++) {
        struct gb_copy * copy = &b->program->copies.data[c];
        struct ggml_tensor * dst = &copy->dst->tensor;
        struct ggml_tensor * root = b->in->ids.data[copy->root].tensor;
        dst->src[0] = copy->fill ? root : NULL;
        if (!copy->whole) {
            as_bytes(dst, copy->span);
            copy->range = gb_sched_new_shadow(b->program, b->in, copy->root, -1);
            if (copy->range == NULL) {
                return false;
            }
            struct ggml_tensor * range = &copy->range->tensor;
            as_bytes(range, copy->span);
            memset(range->src, 0, sizeof(range->src));
            range->op = GGML_OP_VIEW;
            range->src[0] = root;
            range->view_src = root;
            range->view_offs = copy->lo;
            dst->src[0] = range;
        }
        gb_tensor_read_name(b->in->ids.data[copy->whole ? copy->root : copy->shown].tensor, dst->name);
        name_copy(b->sched, copy->backend, dst);
    }
    struct gb_shadow_iter it = { 0 };
    for (struct gb_shadow * sh = gb_sched_next_shadow(b->program, &it); sh;
        sh = gb_sched_next_shadow(b->program, &it)) {
        if (sh->copy >= 0 && sh != b->program->copies.data[sh->copy].dst) {
            sh->tensor.view_offs -= b->program->copies.data[sh->copy].lo;
        }
    }
    return true;
}

// Merges copies when all are known. Then sets their layouts and names.
enum ggml_status gb_sched_make_program(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, const struct gb_item * leafs, const struct gb_sched_program * candidate,
    struct gb_sched_program * program) {
    struct builder b = {
        .sched = s, .in = in, .assigned = assigned, .leafs = leafs, .candidate = candidate, .program = program
    };
    bool ok = init_builder(&b) && find_written(&b);
    for (size_t k = 0; ok && k < program->splits.n; k++) {
        ok = add_split(&b, &program->splits.data[k]);
    }
    if (ok) {
        merge_all(&b);
    }
    ok = ok && finish_copies(&b);
    for (size_t c = 0; c < program->copies.n; c++) {
        program->n_kept += program->copies.data[c].kept;
    }
    free_builder(&b);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}
