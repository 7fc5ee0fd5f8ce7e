// inplace.c - may a node be computed into the memory of a source? Operator and layout decide here; who else reads that
// memory is the caller's to know.
//
// Which operators may, and into which sources, is the column `inplace` of tensor/ops.def, with two rules. The graph
// allocator has the documented one (fifteen operators, equal layout). Plans have a wider one: an operator may write
// over a source if its kernels read each element, or each row, of that source before they write the same one and never
// again. All but the gradients can be asked for in place by their builders (ggml_norm_inplace and so on), or work on
// elements by themselves, so every backend that has them can do it; of the gradients our kernels are known to.
// tests/c/alloc/test_inplace.c computes every entry both ways.
#include "alloc/liveness.h"

#include "tensor/tensor.h"

// Element by element the same bytes, if both start at the same address. Strides of dims with one element do not matter.
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
