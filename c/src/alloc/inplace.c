// inplace.c - decides by operator and layout whether a node may overwrite a source. The caller
// checks other readers.
//
// The column `inplace` of tensor/ops.def lists the operators and their sources. There are two
// rules. The graph allocator follows ggml's rule (ANY_A and ANY_AB in ops.def): equal layout. Plans
// have a wider rule: an operator may overwrite a source if its kernels read each element, or each
// row, before they write it, and not afterwards. Every backend must compute these operators right
// in place. Builders such as ggml_norm_inplace rely on that, too. tests/c/alloc/test_inplace.c
// tests each entry.
#include "alloc/liveness.h"

#include "tensor/tensor.h"

// True if each element has the same bytes in both tensors when both start at the same address.
static bool same_addresses(const struct ggml_tensor * a, const struct ggml_tensor * b) {
    bool same = a->type == b->type && a->nb[0] == b->nb[0];
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        same = same && a->ne[i] == b->ne[i] && (a->ne[i] == 1 || a->nb[i] == b->nb[i]);
    }
    return same;
}

bool gb_plan_can_write_over(const struct ggml_tensor * node, int s) {
    return s >= 0 && s < 2 && node->view_src == NULL && node->src[s] != NULL &&
           (gb_op_inplace_sources(node->op) >> s & 1) != 0 && same_addresses(node, node->src[s]);
}

bool gb_allocator_can_write_over(const struct ggml_tensor * node, int s) {
    return s >= 0 && s < 2 && node->view_src == NULL && node->src[s] != NULL && gb_op_can_inplace(node->op) &&
           (gb_op_inplace_sources(node->op) >> s & 1) != 0 && gb_are_same_layout(node, node->src[s]);
}
