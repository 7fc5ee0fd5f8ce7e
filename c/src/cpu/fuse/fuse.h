// fuse.h - neighbouring nodes that are computed together, for plan.c and run.c. The only header of this folder that
// others need.
//
//   attention.c  product, scale, mask, softmax, product (and the copy behind it): tiles that never hold all scores
//   product.c    a product with the elementwise operators behind it
//   rope.c       a rotation with the copy of its result
//   rows.c       operators on rows: a few rows at a time through all of them
//   fuse.c       the list of these kinds, and the switch; memory.c: where tensors lie
//
// What is stored. Anybody may look at a tensor that lies in memory of his own, so every node there is really computed
// and stored; a fusion may only save the way through memory. Where a planner of the whole graph placed the result, its
// content is of no interest once all readers are done, unless the graph or its user wants it; the planner marks what a
// single source of a single node refers to (gb_tensor_is_read_once). If that reader is in the same fused step, nobody
// can tell whether it was stored, so it may be left out. What the last node of a part of a graph reads is stored all
// the same: callbacks of a scheduler, and programs that compute a view of a graph, stop there and like to look at
// sources. Behind the last node of a whole graph nobody does who has not said so; but programs of early 2024 read
// embeddings from the last node but one, so only attention, whose last nodes are never that, makes use of it.
//
// A fused step is followed by the steps that do the same without it: structure is matched when the plan is made, memory
// is looked at when it runs, and where that forbids the fused step the others run.
#ifndef GB_CPU_FUSE_FUSE_H
#define GB_CPU_FUSE_FUSE_H

#include "cpu/ops/ops.h"

enum { GB_FUSE_MAX = 8 }; // nodes of a fused step

// In the order in which they are tried. What comes earlier may have later ones in the steps that stand for it.
enum gb_fusion_kind {
    GB_FUSE_ATTENTION,
    GB_FUSE_PRODUCT,
    GB_FUSE_ROPE,
    GB_FUSE_ROWS,
    GB_FUSION_KINDS,
    GB_FUSE_NOT = GB_FUSION_KINDS
};

struct gb_fusion {
    // How many of the n nodes that are computed next, from the first on, are taken together; 0: none. At most
    // GB_FUSE_MAX. By structure alone.
    int (*length)(struct ggml_tensor * const * nodes, int n);
    int (*n_tasks)(struct ggml_tensor * const * nodes, int n, int n_threads);
    size_t (*work_size)(struct ggml_tensor * const * nodes, int n, int n_tasks);
    // memory is known: does it give what computing node by node gives?
    bool (*is_safe)(struct ggml_tensor * const * nodes, int n);
    void (*run)(const struct gb_cpu_call * call, struct ggml_tensor * const * nodes, int n);
    // some result, in the memory that there is; NULL: never
    bool (*leaves_out)(struct ggml_tensor * const * nodes, int n);
    bool may_end; // may leave out what the last node of a whole graph reads
};

// What most fused steps pass on from node to node.
static inline bool gb_fuse_is_dense(const struct ggml_tensor * t) {
    return t->type == GGML_TYPE_F32 && ggml_is_contiguous(t);
}

const struct gb_fusion * gb_fusion_of(enum gb_fusion_kind kind);
const char * gb_fusion_name(enum gb_fusion_kind kind); // "product"

// Whether a fused step of that kind can begin with the node: a first look, before nodes are gathered.
static inline bool gb_fuse_may_begin(enum gb_fusion_kind kind, const struct ggml_tensor * node) {
    switch (kind) {
        case GB_FUSE_ROPE: return node->op == GGML_OP_ROPE;
        case GB_FUSE_ROWS: return node->op != GGML_OP_MUL_MAT && gb_cpu_default_tasks(node, 2) > 1;
        default: return node->op == GGML_OP_MUL_MAT;
    }
}

#endif // GB_CPU_FUSE_FUSE_H
