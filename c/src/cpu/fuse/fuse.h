// fuse.h - fusion of neighbouring nodes, for plan.c and run.c. The other headers of this folder are private.
//
//   attention.c  product, scale, mask, softmax, product, copy: tiles that never hold all scores
//   products.c   products of the same row, with the norm before them
//   product.c    a product with the elementwise operators after it
//   conv.c       a convolution with the elementwise operators after it; IM2COL with its product
//   stages.c     the elementwise operators after a product or a convolution
//   rope.c       a rotation with the copy of its result
//   rows.c       operators on rows: a few rows at a time through all of them
//   fuse.c       the list of these kinds; memory.c: whether tensors share memory
//
// The rules for stored results are these. The program may read a tensor in its own memory, so a
// node in such memory is computed and stored. Fusion then only avoids reading the result again. A
// result that a planner of the whole graph placed is dead after its last reader, unless it is an
// output. The planner marks results that one source of one node reads (gb_tensor_is_read_once). If
// that reader is in the same fused step, the result need not be stored.
//
// The sources of the last node of a part of a graph are always stored. Scheduler callbacks, and
// programs that compute a view of a graph, read them there. Programs of early 2024 also read
// embeddings from the second to last node of a whole graph. So at the end of a whole graph only
// attention omits results: these graphs do not end with attention.
//
// The plan matches the structure of nodes. It stores the unfused steps after each fused step. Each
// run checks the memory of the nodes, and computes the unfused steps if fusion is not safe.
#ifndef GB_CPU_FUSE_FUSE_H
#define GB_CPU_FUSE_FUSE_H

#include "cpu/ops/ops.h"

enum { GB_FUSE_MAX = 8 }; // nodes of a fused step

// The plan tries the kinds in this order. The unfused steps of a kind may contain later kinds.
enum gb_fusion_kind {
    GB_FUSE_ATTENTION,
    GB_FUSE_PRODUCTS,
    GB_FUSE_PRODUCT,
    GB_FUSE_COLUMNS,
    GB_FUSE_CONVOLUTION,
    GB_FUSE_ROPE,
    GB_FUSE_ROWS,
    GB_FUSION_KINDS,
    GB_FUSE_NOT = GB_FUSION_KINDS
};

struct gb_fusion {
    // The number of nodes, from the first of n on, that one step can compute together, at most
    // GB_FUSE_MAX. 0 if there is none. Depends on the structure only.
    int (*length)(struct ggml_tensor * const * nodes, int n);
    int (*n_tasks)(struct ggml_tensor * const * nodes, int n, int n_threads);
    size_t (*work_size)(struct ggml_tensor * const * nodes, int n, int n_tasks);
    // True if the fused step computes the same results with the memory of this run.
    bool (*is_safe)(struct ggml_tensor * const * nodes, int n);
    void (*run)(const struct gb_cpu_call * call, struct ggml_tensor * const * nodes, int n);
    // True if the step does not store some result, with the memory of this run. NULL: never.
    bool (*leaves_out)(struct ggml_tensor * const * nodes, int n);
    bool may_end; // may leave out sources of the last node of a whole graph
};

// True for the tensors that most fused steps pass from node to node.
static inline bool gb_fuse_is_dense(const struct ggml_tensor * t) {
    return t->type == GGML_TYPE_F32 && ggml_is_contiguous(t);
}

const struct gb_fusion * gb_fusion_of(enum gb_fusion_kind kind);
const char * gb_fusion_name(enum gb_fusion_kind kind); // "product"

// A quick check before nodes are gathered: true if a fused step of that kind can begin with the
// node.
static inline bool gb_fuse_may_begin(enum gb_fusion_kind kind, const struct ggml_tensor * node) {
    switch (kind) {
        case GB_FUSE_PRODUCTS:
            return node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_RMS_NORM || node->op == GGML_OP_NORM;
        case GB_FUSE_COLUMNS: return node->op == GGML_OP_IM2COL;
        case GB_FUSE_CONVOLUTION:
            return node->op == GGML_OP_CONV_2D || node->op == GGML_OP_CONV_2D_DW || node->op == GGML_OP_CONV_3D;
        case GB_FUSE_ROPE: return node->op == GGML_OP_ROPE;
        case GB_FUSE_ROWS: return node->op != GGML_OP_MUL_MAT && gb_cpu_default_tasks(node, 2) > 1;
        default: return node->op == GGML_OP_MUL_MAT;
    }
}

#endif // GB_CPU_FUSE_FUSE_H
