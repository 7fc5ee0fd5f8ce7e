// validate.c - validates structs that a C program may have written to.
//
// There are two checks. gb_tensor_check tests that a tensor is valid, that its sizes do not
// overflow, and that its bytes are inside its root. Planning a graph runs it once for each tensor.
// gb_node_mismatch tests whether a builder could have made a node from its sources and parameters.
// It runs when a backend is asked whether it supports an operator, and uses the rules of the
// builders. Both cost some nanoseconds for usual tensors, whose sizes are too small to overflow.
// Tensors from files and messages pass both before they are used.
#include "tensor/tensor.h"

#include <stddef.h>

#include "tensor/ops.h"

enum { SMALL_NE = 1 << 15, SMALL_NB = 1 << 30 };
// Larger than any address space. Sums of a few such sizes do not overflow.
#define MOST_BYTES ((size_t) PTRDIFF_MAX >> 8)

static _Thread_local bool trusted;

bool gb_trust_tensors(bool trust) {
    const bool before = trusted;
    trusted = trust;
    return before;
}

bool gb_tensors_are_trusted(void) { return trusted; }

// True if sizes and strides are so small that no product or sum of them overflows. Combines all
// bits first, so that one comparison covers four numbers.
static bool is_small(const struct ggml_tensor * t) {
    uint64_t ne = 0, nb = 0;
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        ne |= (uint64_t) t->ne[d]; // negative ones are large
        nb |= t->nb[d];
    }
    return ne < SMALL_NE && nb < SMALL_NB;
}

// True for a usual tensor, which needs no further check.
static bool is_plain(const struct ggml_tensor * t) {
    return gb_type_is_valid(t->type) && (unsigned) t->op < GGML_OP_COUNT && is_small(t) && gb_elements_are_whole(t);
}

// No size is negative, and neither the number of elements nor the extent overflows.
static bool sizes_fit(const struct ggml_tensor * t) {
    int64_t n = 1;
    size_t bytes;
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        if (t->ne[d] < 0 || !gb_mul_i64(n, t->ne[d], &n)) {
            return false;
        }
    }
    return gb_bytes_needed(t, &bytes) && bytes <= MOST_BYTES;
}

// Checks type, operator and sizes of one tensor, without its source.
static enum ggml_status check_alone(const struct ggml_tensor * t, const char * func) {
    GB_FAIL_IF(!gb_type_is_valid(t->type), GGML_STATUS_INVALID_ARGUMENT, "%s: tensor '%.63s': %d is not a type", func,
        t->name, (int) t->type);
    GB_FAIL_IF((unsigned) t->op >= GGML_OP_COUNT, GGML_STATUS_INVALID_ARGUMENT,
        "%s: tensor '%.63s': %d is not an operator", func, t->name, (int) t->op);
    GB_FAIL_IF(!sizes_fit(t), GGML_STATUS_INVALID_ARGUMENT,
        "%s: tensor '%.63s': sizes [%lld, %lld, %lld, %lld] with strides [%zu, %zu, %zu, %zu] are negative or overflow",
        func, t->name, (long long) t->ne[0], (long long) t->ne[1], (long long) t->ne[2], (long long) t->ne[3], t->nb[0],
        t->nb[1], t->nb[2], t->nb[3]);
    GB_FAIL_IF(!gb_elements_are_whole(t), GGML_STATUS_INVALID_ARGUMENT,
        "%s: tensor '%.63s': sizes [%lld, %lld, %lld, %lld] with strides [%zu, %zu, %zu, %zu] and offset %zu do not "
        "make whole elements of %s, which have %zu bytes",
        func, t->name, (long long) t->ne[0], (long long) t->ne[1], (long long) t->ne[2], (long long) t->ne[3], t->nb[0],
        t->nb[1], t->nb[2], t->nb[3], t->view_offs, ggml_type_name(t->type), ggml_type_size(t->type));
    return GGML_STATUS_SUCCESS;
}

// A view's root is not a view, and the view lies inside the root's bytes.
static enum ggml_status check_view(const struct ggml_tensor * t, const char * func) {
    const struct ggml_tensor * root = t->view_src;
    GB_FAIL_IF(root->view_src != NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: tensor '%.63s' is a view of '%.63s', which is a view itself", func, t->name, root->name);
    if (!is_plain(root)) {
        GB_TRY(check_alone(root, func));
    }
    const size_t have = ggml_nbytes(root), bytes = ggml_nbytes(t);
    GB_FAIL_IF(t->view_offs > have || bytes > have - t->view_offs, GGML_STATUS_INVALID_ARGUMENT,
        "%s: view '%.63s': offset %zu and size %zu reach past the %zu bytes of '%.63s'", func, t->name, t->view_offs,
        bytes, have, root->name);
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_tensor_check(const struct ggml_tensor * t, const char * func) {
    if (!is_plain(t)) {
        GB_TRY(check_alone(t, func));
    }
    return t->view_src != NULL ? check_view(t, func) : GGML_STATUS_SUCCESS;
}

enum ggml_status gb_tensors_check(struct ggml_tensor * const * nodes, int n, const char * func) {
    const bool look = !trusted;
    for (int i = 0; i < n; i++) {
        GB_FAIL_IF(nodes[i] == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: node %d of the graph is NULL", func, i);
        if (!look) {
            continue;
        }
        GB_TRY(gb_tensor_check(nodes[i], func));
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            if (nodes[i]->src[s] != NULL) {
                GB_TRY(gb_tensor_check(nodes[i]->src[s], func));
            }
        }
    }
    return GGML_STATUS_SUCCESS;
}

// --------------------------------------------------------------------------------------------------------------- nodes

// True if a builder could have made the node. For a view, being inside its root suffices, which was
// checked. The checks of other operators are next to their builders (ops_<family>.c).
static bool is_as_built(const struct ggml_tensor * t) {
    static bool (*const built[GGML_OP_COUNT])(const struct ggml_tensor *) = {
#define GB_OP(id, stem, sources, work, ...) [GGML_OP_##id] = GB_UNLESS_VIEW(work, gb_built_##stem),
#include "tensor/ops.def"
    };
    return (unsigned) t->op < GGML_OP_COUNT && (built[t->op] == NULL || built[t->op](t));
}

// The fault of the node as a static text. NULL if it has none.
static const char * mismatch(const struct ggml_tensor * node) {
    if (node->src[0] == node) {  // allowed in src[1]: CPY names its destination there
        return "it is its own source";
    }
    if (gb_op_is_idle(node)) {
        return NULL;
    }
    if (!gb_elements_are_apart(node)) {
        return "elements of its result share bytes";
    }
    if (is_as_built(node)) {
        return NULL;
    }
    return gb_node_has_sources(node) ? "its shape, its sources and its parameters do not fit together"
                                     : "a source is missing";
}

static enum ggml_status fail_node(const struct ggml_tensor * node, const char * wrong, const char * func) {
    char text[2 * GB_DESCRIBE_SIZE];
    return gb_fail(GGML_STATUS_INVALID_ARGUMENT, "%s: %s: %s", func, gb_describe_node(node, text, sizeof(text)), wrong);
}

const char * gb_node_mismatch(const struct ggml_tensor * node) { return trusted ? NULL : mismatch(node); }

enum ggml_status gb_node_check(const struct ggml_tensor * node, const char * func) {
    const char * wrong = mismatch(node);
    return wrong == NULL ? GGML_STATUS_SUCCESS : fail_node(node, wrong, func);
}

enum ggml_status gb_graph_check_tensors(const struct ggml_cgraph * graph, const char * func) {
    if (trusted) {
        return GGML_STATUS_SUCCESS;
    }
    for (int i = 0; i < graph->n_leafs; i++) {
        GB_TRY(gb_tensor_check(graph->leafs[i], func));
    }
    GB_TRY(gb_tensors_check(graph->nodes, graph->n_nodes, func));
    for (int i = 0; i < graph->n_nodes; i++) {
        GB_TRY(gb_node_check(graph->nodes[i], func));
    }
    return GGML_STATUS_SUCCESS;
}
