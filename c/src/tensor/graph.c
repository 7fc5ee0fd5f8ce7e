// graph.c - graphs: the nodes in the order of execution, their leafs, and the set of visited
// tensors.
//
// All arrays of a graph are one block: nodes[size], leafs[size], grads[size] if it has gradients,
// one pointer to the context that owns the memory, and the keys of the visited set. The pointer is
// NULL if the memory is the caller's, and then the graph cannot grow. The struct itself is public
// and is copied by value, so its members must suffice to find everything: `owner_of` recognizes the
// block by its layout. Growing takes a new block from the context and keeps the old one, so copies
// of the struct stay valid. Building never recurses. A failed build restores the graph.
#include <limits.h>

#include "base/current.h"
#include "base/vec.h"
#include "tensor.h"

// ASK: number of new nodes between two polls.
enum { GRAPH_SIZE_MAX = INT_MAX / 4, GROWN_SIZE_MIN = 64, ASK = 1024 };

// ----------------------------------------------------------------------------------------------------------- the block

// Slots of the visited set of a graph of `size`: more than its nodes and leafs together. A prime
// number, because a key's slot is its address modulo this number, and addresses have regular
// distances.
static size_t n_slots(size_t size) {
    for (size_t n = 2 * size + 3;; n += 2) {
        size_t divisor = 3;
        while (divisor * divisor <= n && n % divisor != 0) {
            divisor += 2;
        }
        if (divisor * divisor > n) {
            return n;
        }
    }
}

// The size of a block in pointers.
static size_t block_pointers(size_t size, bool grads) { return size * (grads ? 3 : 2) + 1 + n_slots(size); }

// Lays the arrays of a graph of `size` over a zeroed block, and stores the owner in it.
static void lay_out(struct ggml_cgraph * graph, void * block, size_t size, bool grads, struct ggml_context * owner) {
    struct ggml_tensor ** at = block;
    graph->size = (int) size;
    graph->nodes = at;
    graph->leafs = at += size;
    at += size;
    graph->grads = grads ? at : NULL;
    at += grads ? size : 0;
    memcpy(at, &owner, sizeof(owner));
    graph->visited_hash_table = (struct ggml_hash_set){ n_slots(size), at + 1 };
}

// The context from which the graph can grow. NULL for fixed memory, a view, or a program's own
// arrays.
static struct ggml_context * owner_of(const struct ggml_cgraph * graph) {
    if (graph->nodes == NULL || graph->size < 0) {
        return NULL;
    }
    const size_t size = (size_t) graph->size;
    struct ggml_tensor ** const owner = graph->nodes + size * (graph->grads ? 3 : 2);
    const bool ours = graph->visited_hash_table.keys != NULL && graph->leafs == graph->nodes + size &&
                      (graph->grads == NULL || graph->grads == graph->leafs + size) &&
                      graph->visited_hash_table.keys == owner + 1 && graph->visited_hash_table.size == n_slots(size);
    struct ggml_context * ctx = NULL;
    if (ours) {
        memcpy(&ctx, owner, sizeof(ctx));
    }
    return ctx;
}

// ------------------------------------------------------------------------------------------------------------- visited

// The key of a removed tensor's slot. No tensor has this address, because tensors are aligned.
#define REMOVED_KEY ((struct ggml_tensor *) (uintptr_t) 1)

// Linear probing from the address modulo the size. The loop ends after all slots, because a
// program's set may be full.
struct ggml_tensor ** gb_hash_set_slot(struct ggml_hash_set set, const struct ggml_tensor * key) {
    size_t slot = set.size > 0 ? (uintptr_t) key % set.size : 0;
    for (size_t tried = 0; tried < set.size; tried++) {
        if (set.keys[slot] == key || set.keys[slot] == NULL) {
            return &set.keys[slot];
        }
        slot = slot + 1 == set.size ? 0 : slot + 1;
    }
    return NULL;
}

// Copies all keys of a set into a larger one, which has space for them.
static void insert_all(struct ggml_hash_set to, struct ggml_hash_set from) {
    for (size_t i = 0; i < from.size; i++) {
        if (from.keys[i] != NULL) {
            *gb_hash_set_slot(to, from.keys[i]) = from.keys[i]; // `to` is larger
        }
    }
}

// Marks the tensors of a list as visited, until the set is full.
static void insert_list(struct ggml_hash_set to, struct ggml_tensor * const * list, int n) {
    for (int i = 0; i < n; i++) {
        struct ggml_tensor ** slot = gb_hash_set_slot(to, list[i]);
        if (slot != NULL) {
            *slot = list[i];
        }
    }
}

// ------------------------------------------------------------------------------------------------------------ checking

// INVALID_ARGUMENT unless the list has n tensors.
static enum ggml_status check_list(struct ggml_tensor * const * list, int n, const char * what, const char * argument,
    const char * func) {
    GB_FAIL_IF(n < 0 || (n > 0 && list == NULL), GGML_STATUS_INVALID_ARGUMENT, "%s: argument '%s': has %d %ss%s", func,
        argument, n, what, n > 0 ? " and no list of them" : "");
    for (int i = 0; i < n; i++) {
        GB_FAIL_IF(list[i] == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument '%s': %s %d is NULL", func, argument,
            what, i);
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_graph_check(const struct ggml_cgraph * graph, const char * argument, const char * func) {
    GB_FAIL_IF(graph == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument '%s' is NULL", func, argument);
    GB_TRY(check_list(graph->nodes, graph->n_nodes, "node", argument, func));
    return check_list(graph->leafs, graph->n_leafs, "leaf", argument, func);
}

// -------------------------------------------------------------------------------------------------------------- making

size_t ggml_graph_overhead_custom(size_t size, bool grads) {
    GB_FAIL_IF_RETURNING(size > GRAPH_SIZE_MAX, 0, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'size': needs at most %d, has %zu", __func__, GRAPH_SIZE_MAX, size);
    const size_t payload = sizeof(struct ggml_cgraph) + block_pointers(size, grads) * sizeof(struct ggml_tensor *);
    return sizeof(struct ggml_object) + GGML_PAD(payload, (size_t) GGML_MEM_ALIGN);
}

size_t ggml_graph_overhead(void) { return ggml_graph_overhead_custom(GGML_DEFAULT_GRAPH_SIZE, false); }

struct ggml_cgraph * ggml_new_graph_custom(struct ggml_context * ctx, size_t size, bool grads) {
    if (ctx == NULL) {
        gb_fail_null(__func__, "ctx");
        return NULL;
    }
    GB_FAIL_IF_RETURNING(size > GRAPH_SIZE_MAX, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'size': needs at most %d, has %zu", __func__, GRAPH_SIZE_MAX, size);
    const size_t bytes = sizeof(struct ggml_cgraph) + block_pointers(size, grads) * sizeof(struct ggml_tensor *);
    struct ggml_cgraph * graph = gb_context_alloc(ctx, GGML_OBJECT_GRAPH, bytes);
    if (graph != NULL) {
        memset(graph, 0, bytes);
        lay_out(graph, graph + 1, size, grads, gb_context_is_growable(ctx) ? ctx : NULL);
    }
    return graph;
}

struct ggml_cgraph * ggml_new_graph(struct ggml_context * ctx) {
    return ggml_new_graph_custom(ctx, GGML_DEFAULT_GRAPH_SIZE, false);
}

// A view has neither leafs nor a visited set. Its size is 0, so nodes cannot be added.
struct ggml_cgraph ggml_graph_view(struct ggml_cgraph * cgraph, int i0, int i1) {
    struct ggml_cgraph view = { 0 };
    GB_CHECK_ARG_RETURNING(cgraph, view);
    GB_FAIL_IF_RETURNING(i0 < 0 || i1 < i0 || i1 > cgraph->n_nodes, view, GGML_STATUS_INVALID_ARGUMENT,
        "%s: nodes [%d, %d): needs a part of [0, %d)", __func__, i0, i1, cgraph->n_nodes);
    view.n_nodes = i1 - i0;
    view.nodes = cgraph->nodes + i0;
    view.grads = cgraph->grads ? cgraph->grads + i0 : NULL;
    view.order = cgraph->order;
    return view;
}

// ------------------------------------------------------------------------------------------------------------- growing

// Reports why the graph takes no more nodes: it is a view, or its memory does not grow.
static enum ggml_status fail_full(const struct ggml_cgraph * graph, const char * func) {
    if (graph->visited_hash_table.size == 0) {
        return gb_fail(GGML_STATUS_INVALID_STATE,
            "%s: the graph is a view of another graph (ggml_graph_view): nodes cannot be added", func);
    }
    return gb_fail(GGML_STATUS_ALLOC_FAILED,
        "%s: the graph is full: it has space for %d nodes and %d leafs in memory that does not grow "
        "(ggml_new_graph_custom makes a larger one)",
        func, graph->size, graph->size);
}

// Moves the graph's arrays to a new block for `size` nodes. On failure the graph is unchanged.
static enum ggml_status grow(struct ggml_cgraph * graph, size_t size, const char * func) {
    struct ggml_context * ctx = owner_of(graph);
    if (ctx == NULL) {
        return fail_full(graph, func);
    }
    GB_FAIL_IF(size > GRAPH_SIZE_MAX, GGML_STATUS_ALLOC_FAILED, "%s: a graph of %zu nodes is too large", func, size);
    const bool grads = graph->grads != NULL;
    const size_t bytes = block_pointers(size, grads) * sizeof(struct ggml_tensor *);
    void * block = gb_context_alloc(ctx, GGML_OBJECT_WORK_BUFFER, bytes);
    if (block == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    memset(block, 0, bytes);
    const struct ggml_cgraph old = *graph;
    lay_out(graph, block, size, grads, ctx);
    memcpy(graph->nodes, old.nodes, (size_t) old.n_nodes * sizeof(*old.nodes));
    memcpy(graph->leafs, old.leafs, (size_t) old.n_leafs * sizeof(*old.leafs));
    if (grads) {
        memcpy(graph->grads, old.grads, (size_t) old.n_nodes * sizeof(*old.grads));
    }
    insert_all(graph->visited_hash_table, old.visited_hash_table);
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status grow_twice(struct ggml_cgraph * graph, const char * func) {
    return grow(graph, GB_MAX(2 * (size_t) GB_MAX(graph->size, 0), (size_t) GROWN_SIZE_MIN), func);
}

// ------------------------------------------------------------------------------------------------------------ building

struct frame { // a visited tensor that waits for its sources
    struct ggml_tensor * tensor;
    int n_seen;  // visited sources
};

// The state of one build, with everything to undo it.
struct builder {
    struct ggml_cgraph * graph;
    struct ggml_cgraph before; // the struct when the build began
    GB_VEC(struct frame) stack;
    const char * func;
};

// Marks the tensor as visited and pushes it, unless it is marked already.
static enum ggml_status enter(struct builder * b, struct ggml_tensor * tensor) {
    struct ggml_cgraph * graph = b->graph;
    struct ggml_tensor ** slot = gb_hash_set_slot(graph->visited_hash_table, tensor);
    if (slot != NULL && *slot == tensor) {
        return GGML_STATUS_SUCCESS;
    }
    // A graph that can grow keeps a quarter of the slots free, so that searches stay short.
    const size_t n_marks = (size_t) graph->n_nodes + (size_t) graph->n_leafs + b->stack.n;
    if (slot == NULL || (n_marks >= graph->visited_hash_table.size / 4 * 3 && owner_of(graph) != NULL)) {
        GB_TRY(grow_twice(graph, b->func));
        slot = gb_hash_set_slot(graph->visited_hash_table, tensor);
    }
    if (!gb_vec_push(&b->stack, ((struct frame){ tensor, 0 }))) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    *slot = tensor;
    return GGML_STATUS_SUCCESS;
}

// Appends a tensor whose sources are in the graph. It is a leaf if nothing computes it and it has
// no gradient.
static enum ggml_status append(struct builder * b, struct ggml_tensor * tensor) {
    struct ggml_cgraph * graph = b->graph;
    const bool is_leaf = tensor->op == GGML_OP_NONE && tensor->grad == NULL;
    if ((is_leaf ? graph->n_leafs : graph->n_nodes) >= graph->size) {
        GB_TRY(grow_twice(graph, b->func));
    }
    if (is_leaf) {
        graph->leafs[graph->n_leafs++] = tensor;
        return GGML_STATUS_SUCCESS;
    }
    if (graph->grads != NULL) {
        graph->grads[graph->n_nodes] = tensor->grad;
    }
    graph->nodes[graph->n_nodes++] = tensor;
    return graph->n_nodes % ASK == 0 ? gb_check_poll() : GGML_STATUS_SUCCESS;
}

// Visits depth first and appends a tensor after its sources. Marks a tensor before its sources,
// because it may name itself as a source.
static enum ggml_status visit(struct builder * b, struct ggml_tensor * tensor) {
    const bool backwards = b->graph->order == GGML_CGRAPH_EVAL_ORDER_RIGHT_TO_LEFT;
    GB_TRY(enter(b, tensor));
    while (b->stack.n > 0) {
        struct frame * top = &b->stack.data[b->stack.n - 1];
        if (top->n_seen < GGML_MAX_SRC) {
            const int i = backwards ? GGML_MAX_SRC - 1 - top->n_seen : top->n_seen;
            struct ggml_tensor * src = top->tensor->src[i];
            top->n_seen++;
            if (src != NULL) {
                GB_TRY(enter(b, src));
            }
        } else {
            GB_TRY(append(b, top->tensor));
            b->stack.n--;
        }
    }
    return GGML_STATUS_SUCCESS;
}

// The number in an automatic name. -1 for any other name.
static int number_in(const struct ggml_tensor * t, const char * prefix) {
    int i = 0, number = 0;
    for (; prefix[i] != '\0'; i++) {
        if (GB_READ_RELAXED(t->name[i]) != prefix[i]) {
            return -1;
        }
    }
    const int begin = i;
    for (char c; (c = GB_READ_RELAXED(t->name[i])) != '\0'; i++) {
        if (c < '0' || c > '9' || i - begin >= 9) { // more digits than any graph needs
            return -1;
        }
        number = number * 10 + (c - '0');
    }
    return i == begin ? -1 : number;
}

// Names the unnamed tensors of a list. In the first graph of a context the numbers are indices. A
// tensor in several graphs keeps its first name. So a tensor of this context or of another one may
// have an index already.
static void name_list(struct ggml_context * ctx, struct ggml_tensor * const * list, int begin, int end, bool is_leaf) {
    const char * prefix = is_leaf ? "leaf_" : "node_";
    bool named = true;
    for (int i = begin; i < end; i++) {
        const int number = number_in(list[i], prefix);
        if (number >= 0 && ctx != NULL) {
            gb_context_number_taken(ctx, is_leaf, number);
        }
        named = named && GB_READ_RELAXED(list[i]->name[0]) != '\0';
    }
    for (int i = begin; i < end && !named; i++) {
        if (GB_READ_RELAXED(list[i]->name[0]) == '\0') {
            ggml_format_name(list[i], "%s%d", prefix, ctx != NULL ? gb_context_number(ctx, is_leaf, i) : i);
        }
    }
}

// Names the tensors that this build has added.
static void name_new(const struct builder * b) {
    struct ggml_context * ctx = owner_of(b->graph);
    name_list(ctx, b->graph->leafs, b->before.n_leafs, b->graph->n_leafs, true);
    name_list(ctx, b->graph->nodes, b->before.n_nodes, b->graph->n_nodes, false);
}

// The slot stays taken until the build ends, so that searches for other keys do not end at it.
static void unmark(struct ggml_hash_set set, const struct ggml_tensor * tensor) {
    struct ggml_tensor ** slot = gb_hash_set_slot(set, tensor);
    if (slot != NULL && *slot != NULL) {
        *slot = REMOVED_KEY;  // not NULL, because other keys may follow it
    }
}

// Removes this build's marks and restores the struct. Older marks were set when these slots were
// free, so freeing the slots breaks no search. If the graph has grown during this build, older
// marks are in the old set as well.
static void undo_build(struct builder * b) {
    struct ggml_cgraph * graph = b->graph;
    const struct ggml_hash_set set = graph->visited_hash_table;
    const struct ggml_hash_set old = b->before.visited_hash_table;
    for (int i = b->before.n_nodes; i < graph->n_nodes; i++) {
        unmark(set, graph->nodes[i]);
    }
    for (int i = b->before.n_leafs; i < graph->n_leafs; i++) {
        unmark(set, graph->leafs[i]);
    }
    for (size_t i = 0; i < b->stack.n; i++) {
        unmark(set, b->stack.data[i].tensor);
    }
    for (size_t i = 0; old.keys != set.keys && i < old.size; i++) {
        struct ggml_tensor ** slot = old.keys[i] ? gb_hash_set_slot(set, old.keys[i]) : NULL;
        if (slot == NULL || *slot != old.keys[i]) {
            old.keys[i] = NULL;
        }
    }
    for (size_t i = 0; i < set.size; i++) {
        if (set.keys[i] == REMOVED_KEY) {
            set.keys[i] = NULL;
        }
    }
    *graph = b->before;
}

enum ggml_status gb_graph_expand(struct ggml_cgraph * graph, struct ggml_tensor * const * tensors, size_t n,
    const char * func) {
    if (graph->visited_hash_table.size == 0) {
        return fail_full(graph, func);
    }
    struct builder b = { .graph = graph, .before = *graph, .func = func };
    enum ggml_status status = GGML_STATUS_SUCCESS;
    for (size_t i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
        status = visit(&b, tensors[i]);
    }
    if (status == GGML_STATUS_SUCCESS) {
        name_new(&b);
    } else {
        undo_build(&b);
    }
    gb_vec_free(&b.stack);
    return status;
}

enum ggml_status ggml_build_forward_expand(struct ggml_cgraph * cgraph, struct ggml_tensor * tensor) {
    if (cgraph == NULL || tensor == NULL) {
        gb_fail_null(__func__, cgraph == NULL ? "cgraph" : "tensor");
        return ggml_last_status();
    }
    return gb_graph_expand(cgraph, &tensor, 1, __func__);
}

void gb_graph_mark_listed(struct ggml_cgraph * graph) {
    insert_list(graph->visited_hash_table, graph->nodes, graph->n_nodes);
    insert_list(graph->visited_hash_table, graph->leafs, graph->n_leafs);
}

// -------------------------------------------------------------------------------------------------------- whole graphs

enum ggml_status ggml_graph_clear(struct ggml_cgraph * cgraph) {
    GB_CHECK_ARG(cgraph);
    cgraph->n_nodes = 0;
    cgraph->n_leafs = 0;
    if (cgraph->visited_hash_table.size > 0) {
        memset(cgraph->visited_hash_table.keys, 0,
            cgraph->visited_hash_table.size * sizeof(*cgraph->visited_hash_table.keys));
    }
    return GGML_STATUS_SUCCESS;
}

// Gives dst the visited set of src. If src is a view, marks the tensors of its list. dst's lists
// are complete already. dst and src may share memory.
static void copy_visited(const struct ggml_cgraph * src, struct ggml_cgraph * dst) {
    if (src->visited_hash_table.keys == dst->visited_hash_table.keys) {
        return; // copies of one struct share the set
    }
    memset(dst->visited_hash_table.keys, 0, dst->visited_hash_table.size * sizeof(*dst->visited_hash_table.keys));
    for (size_t i = 0; i < src->visited_hash_table.size; i++) {
        if (src->visited_hash_table.keys[i] != NULL) {
            insert_list(dst->visited_hash_table, &src->visited_hash_table.keys[i], 1);
        }
    }
    insert_list(dst->visited_hash_table, dst->nodes, src->n_nodes);
    insert_list(dst->visited_hash_table, dst->leafs, src->n_leafs);
}

enum ggml_status ggml_graph_cpy(struct ggml_cgraph * src, struct ggml_cgraph * dst) {
    GB_TRY(gb_graph_check(src, "src", __func__));
    GB_TRY(gb_graph_check(dst, "dst", __func__));
    if (src == dst) {
        return GGML_STATUS_SUCCESS;
    }
    GB_FAIL_IF(src->grads != NULL && dst->grads == NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'dst': needs gradients (ggml_new_graph_custom), as 'src' has them", __func__);
    if (dst->visited_hash_table.size == 0) {
        return fail_full(dst, __func__);
    }
    const int need = GB_MAX(src->n_nodes, src->n_leafs);
    if (need > dst->size || dst->visited_hash_table.size < (size_t) src->n_nodes + (size_t) src->n_leafs) {
        GB_TRY(grow(dst, (size_t) need, __func__));
    }
    if (src->n_nodes > 0) { // a view without nodes may have no array
        memmove(dst->nodes, src->nodes, (size_t) src->n_nodes * sizeof(*src->nodes));
    }
    if (src->n_leafs > 0) {
        memmove(dst->leafs, src->leafs, (size_t) src->n_leafs * sizeof(*src->leafs));
    }
    for (int i = 0; dst->grads != NULL && i < src->n_nodes; i++) {
        dst->grads[i] = src->grads ? src->grads[i] : dst->nodes[i]->grad;
    }
    copy_visited(src, dst);
    dst->n_nodes = src->n_nodes;
    dst->n_leafs = src->n_leafs;
    dst->order = src->order;
    return GGML_STATUS_SUCCESS;
}

struct ggml_cgraph * ggml_graph_dup(struct ggml_context * ctx, struct ggml_cgraph * cgraph) {
    if (ctx == NULL || cgraph == NULL) {
        gb_fail_null(__func__, ctx == NULL ? "ctx" : "cgraph");
        return NULL;
    }
    if (gb_graph_check(cgraph, "cgraph", __func__) != GGML_STATUS_SUCCESS) {
        return NULL;
    }
    const int size = GB_MAX(cgraph->size, GB_MAX(cgraph->n_nodes, cgraph->n_leafs)); // a view has size 0
    struct ggml_cgraph * copy = ggml_new_graph_custom(ctx, (size_t) GB_MAX(size, 0), cgraph->grads != NULL);
    return copy != NULL && ggml_graph_cpy(cgraph, copy) == GGML_STATUS_SUCCESS ? copy : NULL;
}

// The first tensor of that name. NULL if there is none.
static struct ggml_tensor * find_by_name(struct ggml_tensor * const * list, int n, const char * name) {
    char text[GGML_MAX_NAME];
    for (int i = 0; i < n; i++) {
        if (strcmp(gb_tensor_read_name(list[i], text), name) == 0) {
            return list[i];
        }
    }
    return NULL;
}

struct ggml_tensor * ggml_graph_get_tensor(struct ggml_cgraph * cgraph, const char * name) {
    GB_CHECK_ARG_RETURNING(name, NULL);
    if (gb_graph_check(cgraph, "cgraph", __func__) != GGML_STATUS_SUCCESS) {
        return NULL;
    }
    struct ggml_tensor * leaf = find_by_name(cgraph->leafs, cgraph->n_leafs, name);
    return leaf ? leaf : find_by_name(cgraph->nodes, cgraph->n_nodes, name);
}
