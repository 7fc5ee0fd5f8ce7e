// validate.c - structs that no function of the library has made so: a C program wrote to their fields.
//
// Two questions. gb_tensor_check: is this a tensor at all, whose sizes can be computed with and whose bytes lie inside its root? It is asked
// once for each tensor when a graph is planned, by whoever plans. gb_node_mismatch: do the node's shape and its sources' fit together, as its
// builder had seen to? It is asked where operators are asked whether they can run. Both cost some nanoseconds for what is right: the
// usual sizes are small, and then nothing can overflow.
#include "tensor/tensor.h"

enum { SMALL_NE = 1 << 15, SMALL_NB = 1 << 30 };
#define MOST_BYTES ((size_t) PTRDIFF_MAX >> 8) // more than any address space has

static _Thread_local bool trusted;

void gb_trust_tensors(bool trust) {
    trusted = trust;
}

static bool is_small(const struct ggml_tensor * t) {
    uint64_t ne = 0, nb = 0;
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        ne |= (uint64_t) t->ne[d]; // negative ones are large
        nb |= t->nb[d];
    }
    return ne < SMALL_NE && nb < SMALL_NB;
}

static bool sizes_fit(const struct ggml_tensor * t, size_t * bytes) {
    int64_t n = 1;
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        if (t->ne[d] < 0 || !gb_mul_i64(n, t->ne[d], &n)) {
            return false;
        }
    }
    return gb_bytes_needed(t, bytes) && *bytes <= MOST_BYTES;
}

// Type, operator and sizes; its bytes (0: empty).
static enum ggml_status check_alone(const struct ggml_tensor * t, size_t * bytes, const char * func) {
    GB_FAIL_IF(!gb_type_is_valid(t->type), GGML_STATUS_INVALID_ARGUMENT, GGML_STATUS_INVALID_ARGUMENT, "%s: tensor '%.63s': %d is no type", func,
               t->name, (int) t->type);
    GB_FAIL_IF((unsigned) t->op >= GGML_OP_COUNT, GGML_STATUS_INVALID_ARGUMENT, GGML_STATUS_INVALID_ARGUMENT,
               "%s: tensor '%.63s': %d is no operator", func, t->name, (int) t->op);
    const bool fits = is_small(t) ? gb_bytes_needed(t, bytes) : sizes_fit(t, bytes);
    GB_FAIL_IF(!fits, GGML_STATUS_INVALID_ARGUMENT, GGML_STATUS_INVALID_ARGUMENT,
               "%s: tensor '%.63s': sizes [%lld, %lld, %lld, %lld] with strides [%zu, %zu, %zu, %zu] are negative or overflow", func, t->name,
               (long long) t->ne[0], (long long) t->ne[1], (long long) t->ne[2], (long long) t->ne[3], t->nb[0], t->nb[1], t->nb[2], t->nb[3]);
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status check_view(const struct ggml_tensor * t, size_t bytes, const char * func) {
    const struct ggml_tensor * root = t->view_src;
    size_t                     have;
    GB_FAIL_IF(root->view_src != NULL, GGML_STATUS_INVALID_ARGUMENT, GGML_STATUS_INVALID_ARGUMENT,
               "%s: tensor '%.63s' is a view of '%.63s', which is a view itself", func, t->name, root->name);
    GB_TRY(check_alone(root, &have, func));
    have = ggml_nbytes(root);
    GB_FAIL_IF(t->view_offs > have || bytes > have - t->view_offs, GGML_STATUS_INVALID_ARGUMENT, GGML_STATUS_INVALID_ARGUMENT,
               "%s: view '%.63s': offset %zu and size %zu reach past the %zu bytes of '%.63s'", func, t->name, t->view_offs, bytes, have,
               root->name);
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_tensor_check(const struct ggml_tensor * t, const char * func) {
    if (trusted) {
        return GGML_STATUS_SUCCESS;
    }
    size_t bytes;
    GB_TRY(check_alone(t, &bytes, func));
    return t->view_src != NULL ? check_view(t, bytes, func) : GGML_STATUS_SUCCESS;
}

// ------------------------------------------------------------------------------------------------------------------------ nodes

// All sizes but that of one dimension; -1: all.
static bool same_but(const struct ggml_tensor * a, const struct ggml_tensor * b, int but) {
    bool same = true;
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        same = same && (a->ne[d] == b->ne[d] || d == but);
    }
    return same;
}

static bool is_shape(const struct ggml_tensor * t, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    return t->ne[0] == ne0 && t->ne[1] == ne1 && t->ne[2] == ne2 && t->ne[3] == ne3;
}

static bool planes_repeat(const struct ggml_tensor * small, const struct ggml_tensor * large) {
    return small->ne[2] > 0 && small->ne[3] > 0 && large->ne[2] % small->ne[2] == 0 && large->ne[3] % small->ne[3] == 0;
}

static bool is_product(const struct ggml_tensor * node, const struct ggml_tensor * a, const struct ggml_tensor * b) {
    return a->ne[0] == b->ne[0] && planes_repeat(a, b) && is_shape(node, a->ne[1], b->ne[1], b->ne[2], b->ne[3]);
}

// Of the operators whose node has the shape of a, what b has to be.
static bool fits_shape_of_a(const struct ggml_tensor * node, const struct ggml_tensor * a, const struct ggml_tensor * b) {
    switch (node->op) {
        case GGML_OP_ADD:
        case GGML_OP_SUB:
        case GGML_OP_MUL:
        case GGML_OP_DIV: return gb_can_repeat(b, a);
        case GGML_OP_ADD1: return ggml_is_scalar(b);
        case GGML_OP_SILU_BACK:
        case GGML_OP_RMS_NORM_BACK:
        case GGML_OP_SOFT_MAX_BACK:
        case GGML_OP_MAP_BINARY: return ggml_are_same_shape(a, b);
        case GGML_OP_ACC:
        case GGML_OP_SET: return ggml_nelements(b) <= ggml_nelements(a);
        case GGML_OP_ROPE:
        case GGML_OP_ROPE_BACK: return b->ne[0] == a->ne[2];
        default: return true;
    }
}

static bool fits(const struct ggml_tensor * node, const struct ggml_tensor * a, const struct ggml_tensor * b) {
    switch (node->op) {
        case GGML_OP_DUP:
        case GGML_OP_ADD:
        case GGML_OP_ADD1:
        case GGML_OP_ACC:
        case GGML_OP_SUB:
        case GGML_OP_MUL:
        case GGML_OP_DIV:
        case GGML_OP_SQR:
        case GGML_OP_SQRT:
        case GGML_OP_LOG:
        case GGML_OP_SILU_BACK:
        case GGML_OP_NORM:
        case GGML_OP_RMS_NORM:
        case GGML_OP_RMS_NORM_BACK:
        case GGML_OP_GROUP_NORM:
        case GGML_OP_SCALE:
        case GGML_OP_SET:
        case GGML_OP_DIAG_MASK_INF:
        case GGML_OP_DIAG_MASK_ZERO:
        case GGML_OP_SOFT_MAX:
        case GGML_OP_SOFT_MAX_BACK:
        case GGML_OP_ROPE:
        case GGML_OP_ROPE_BACK:
        case GGML_OP_ALIBI:
        case GGML_OP_CLAMP:
        case GGML_OP_ARGSORT:
        case GGML_OP_LEAKY_RELU:
        case GGML_OP_UNARY:
        case GGML_OP_MAP_UNARY:
        case GGML_OP_MAP_BINARY: return ggml_are_same_shape(node, a) && fits_shape_of_a(node, a, b);
        case GGML_OP_CPY: return ggml_nelements(a) == ggml_nelements(node) && ggml_are_same_shape(node, b);
        case GGML_OP_CONT: return ggml_nelements(a) == ggml_nelements(node);
        case GGML_OP_SUM: return ggml_is_scalar(node);
        case GGML_OP_SUM_ROWS:
        case GGML_OP_MEAN: return node->ne[0] == 1 && same_but(node, a, 0);
        case GGML_OP_ARGMAX: return is_shape(node, a->ne[1], 1, 1, 1);
        case GGML_OP_REPEAT: return gb_can_repeat(a, node);
        case GGML_OP_REPEAT_BACK: return gb_can_repeat(node, a);
        case GGML_OP_CONCAT: return same_but(node, a, 2) && same_but(a, b, 2) && (uint64_t) node->ne[2] - (uint64_t) a->ne[2] == (uint64_t) b->ne[2];
        case GGML_OP_MUL_MAT: return is_product(node, a, b);
        case GGML_OP_OUT_PROD: return a->ne[1] == b->ne[1] && planes_repeat(a, b) && is_shape(node, a->ne[0], b->ne[0], b->ne[2], b->ne[3]);
        case GGML_OP_GET_ROWS: return is_shape(node, a->ne[0], b->ne[0], b->ne[1], b->ne[2]);
        case GGML_OP_DIAG: return is_shape(node, a->ne[0], a->ne[0], a->ne[2], a->ne[3]) && a->ne[1] == 1;
        default: return true;
    }
}

static bool needs_second(enum ggml_op op) {
    switch (op) {
        case GGML_OP_ADD:
        case GGML_OP_ADD1:
        case GGML_OP_ACC:
        case GGML_OP_SUB:
        case GGML_OP_MUL:
        case GGML_OP_DIV:
        case GGML_OP_SILU_BACK:
        case GGML_OP_RMS_NORM_BACK:
        case GGML_OP_SET:
        case GGML_OP_SOFT_MAX_BACK:
        case GGML_OP_ROPE:
        case GGML_OP_ROPE_BACK:
        case GGML_OP_MAP_BINARY:
        case GGML_OP_CPY:
        case GGML_OP_CONCAT:
        case GGML_OP_MUL_MAT:
        case GGML_OP_MUL_MAT_ID:
        case GGML_OP_OUT_PROD:
        case GGML_OP_GET_ROWS: return true;
        default: return false;
    }
}

const char * gb_node_mismatch(const struct ggml_tensor * node) {
    if (trusted) {
        return NULL;
    }
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    if (gb_op_is_view(node->op) || ggml_nelements(node) == 0) {
        return NULL; // that it lies inside its root is all; nothing is computed for nothing
    }
    if (a == NULL || (b == NULL && needs_second(node->op))) {
        return "a source is missing";
    }
    return fits(node, a, b) ? NULL : "its shape does not follow from those of its sources";
}

enum ggml_status gb_node_check(const struct ggml_tensor * node, const char * func) {
    const char * wrong = gb_node_mismatch(node);
    char         text[2 * GB_DESCRIBE_SIZE];
    GB_FAIL_IF(wrong != NULL, GGML_STATUS_INVALID_ARGUMENT, GGML_STATUS_INVALID_ARGUMENT, "%s: %s: %s", func,
               gb_describe_node(node, text, sizeof(text)), wrong);
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_graph_check_tensors(const struct ggml_cgraph * graph, const char * func) {
    for (int i = 0; i < graph->n_leafs; i++) {
        GB_TRY(gb_tensor_check(graph->leafs[i], func));
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        const struct ggml_tensor * node = graph->nodes[i];
        GB_TRY(gb_tensor_check(node, func));
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            if (node->src[s] != NULL) {
                GB_TRY(gb_tensor_check(node->src[s], func));
            }
        }
        GB_TRY(gb_node_check(node, func));
    }
    return GGML_STATUS_SUCCESS;
}
