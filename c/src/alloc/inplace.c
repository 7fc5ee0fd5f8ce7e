// inplace.c - which operators may be computed into the memory of a source: the one place that lists them.
//
// Two rules. The graph allocator has the documented one (fifteen operators, equal layout). Plans have the wider one
// below: an operator may write over a source if its kernels read each element, or each row, of that source before they
// write the same one and never again. All but the gradients can be asked for in place by their builders
// (ggml_norm_inplace and so on), or work on elements by themselves, so every backend that has them can do it; of the
// gradients our kernels are known to. tests/c/alloc/test_inplace.c computes every entry both ways.
#include "alloc/liveness.h"

#include "tensor/tensor.h"

enum { FIRST = 1, SECOND = 2, BOTH = FIRST | SECOND }; // sources, as bits

static const unsigned char sources[GGML_OP_COUNT] = {
    // elements
    [GGML_OP_DUP]            = FIRST,
    [GGML_OP_ADD]            = BOTH,
    [GGML_OP_ADD1]           = FIRST,
    [GGML_OP_SUB]            = BOTH,
    [GGML_OP_MUL]            = BOTH,
    [GGML_OP_DIV]            = BOTH,
    [GGML_OP_SQR]            = FIRST,
    [GGML_OP_SQRT]           = FIRST,
    [GGML_OP_LOG]            = FIRST,
    [GGML_OP_SCALE]          = FIRST,
    [GGML_OP_LEAKY_RELU]     = FIRST,
    [GGML_OP_UNARY]          = FIRST,
    [GGML_OP_SILU_BACK]      = BOTH,
    [GGML_OP_DIAG_MASK_INF]  = FIRST,
    [GGML_OP_DIAG_MASK_ZERO] = FIRST,
    [GGML_OP_ADD_REL_POS]    = FIRST,
    // a region changes after all of the source is there
    [GGML_OP_ACC] = FIRST,
    [GGML_OP_SET] = FIRST,
    // rows, or groups of them
    [GGML_OP_NORM]          = FIRST,
    [GGML_OP_RMS_NORM]      = FIRST,
    [GGML_OP_RMS_NORM_BACK] = BOTH,
    [GGML_OP_GROUP_NORM]    = FIRST,
    [GGML_OP_SOFT_MAX]      = FIRST,
    [GGML_OP_SOFT_MAX_BACK] = BOTH,
    [GGML_OP_ROPE]          = FIRST,
    [GGML_OP_ROPE_BACK]     = FIRST,
};

unsigned gb_inplace_sources(enum ggml_op op) { return (unsigned) op < GGML_OP_COUNT ? sources[op] : 0; }

// Element by element the same bytes, if both start at the same address. Strides of dims with one element do not matter.
static bool same_addresses(const struct ggml_tensor * a, const struct ggml_tensor * b) {
    bool same = a->type == b->type && a->nb[0] == b->nb[0];
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        same = same && a->ne[i] == b->ne[i] && (a->ne[i] == 1 || a->nb[i] == b->nb[i]);
    }
    return same;
}

bool gb_can_write_over(const struct ggml_tensor * node, int s) {
    return s >= 0 && s < 2 && node->view_src == NULL && node->src[s] != NULL &&
           (gb_inplace_sources(node->op) >> s & 1) != 0 && same_addresses(node, node->src[s]);
}

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
