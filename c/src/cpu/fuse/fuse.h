// fuse.h - fusion of neighbouring nodes, for plan.c and run.c. The other headers of this folder are private.
//
//   attention.c  product, scale, mask, softmax, product (and the copy behind it): tiles that never hold all scores
//   product.c    a product with the elementwise operators behind it
//   rope.c       a rotation with the copy of its result
//   rows.c       operators on rows: a few rows at a time through all of them
//   fuse.c       the list of these kinds, and the switch; memory.c: where tensors lie
//
// Which results are stored. The program may read a tensor in its own memory, so each such node is computed and stored.
// Fusion then only avoids reading the result again. A result that a planner of the whole graph placed is dead after its
// last reader, unless the graph or its user wants it. The planner marks results that one source of one node reads
// (gb_tensor_is_read_once). If that reader is in the same fused step, the result need not be stored.
//
// The sources of the last node of a part of a graph are always stored: scheduler callbacks, and programs that compute a
// view of a graph, stop there and read them. Programs of early 2024 also read embeddings from the
// last node but one of a whole graph. So only attention, which never ends there, omits results at the end of a graph.
//
// A fused step is followed by the unfused steps that compute the same. The plan matches the
// structure of nodes. Each run checks their memory, and computes the unfused steps if the memory forbids the fused one.
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

// True if a fused step of that kind can begin with the node: a first look, before nodes are gathered.
static inline bool gb_fuse_may_begin(enum gb_fusion_kind kind, const struct ggml_tensor * node) {
    switch (kind) {
        case GB_FUSE_ROPE: return node->op == GGML_OP_ROPE;
        case GB_FUSE_ROWS: return node->op != GGML_OP_MUL_MAT && gb_cpu_default_tasks(node, 2) > 1;
        default: return node->op == GGML_OP_MUL_MAT;
    }
}

#endif // GB_CPU_FUSE_FUSE_H
