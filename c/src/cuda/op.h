// op.h - operators: the table, and how to add one.
//
// To add an operator, write a `supports` and a `run` function in the file of its family, ops/<family>.cu, and a row in
// the list at its end. A new family also gets a line in ops/families.def. `supports` alone decides: `run` computes
// everything that `supports` accepts, for any shape and stride.
//
// Invariants of `run` and `fuse`:
//
// - They queue work on the backend's queue and nowhere else. They never wait for the device, call cudaMalloc, or copy
//   from host memory that a caller owns: a recorded graph would repeat that.
// - Their scratch memory comes from gb_cuda_scratch. A dry run calls them to measure it.
// - They decide by the tensors' properties and addresses (gb_cuda_data), the device, and the backend's settings, never
//   by values of data or by earlier graphs. So the dry run and the run agree.
#ifndef GB_CUDA_OP_H
#define GB_CUDA_OP_H

#include "cuda/backend.h"
#include "cuda/tensors.h"

// The choice among the algorithms of a node's operator.
struct gb_cuda_choice {
    int algorithm; // index in the operator's table; -1: the operator has one algorithm
    int rows; // of a product: gb_row_kind
};

struct gb_cuda_op {
    enum ggml_op op;
    // NULL: `run` computes the node. Else the reason why not, a static string such as "source 1
    // must be f32".
    const char * (*supports)(const gb_cuda_device & device, const ggml_tensor * dst);
    // Queues the work. dst has elements.
    enum ggml_status (*run)(gb_cuda_backend & b, ggml_tensor * dst);
    // Optional; called before `run`. Queues nodes [i, i + result) together; 0: none; -1: failed.
    // All results equal those of the nodes one by one. Results for which ggml_backend_may_leave_out is
    // true may be missing. The memory of the nodes may overlap (gb_cuda_overlap).
    int (*fuse)(gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i);
    // For operators with several algorithms. Called once per node before the first node of a graph
    // is queued; the result is stored in b.choices[i]. It depends on addresses, types, sizes and
    // the backend alone.
    gb_cuda_choice (*choose)(const gb_cuda_backend & b, const ggml_tensor * dst);
    // The name of algorithm i, in the order in which they are tried; NULL after the last. *why: why
    // it declines the node; NULL: it can compute it.
    const char * (*candidate)(const gb_cuda_backend & b, const ggml_tensor * dst, int i, const char ** why);
};

// Nodes of a graph that is being queued, without views and empty tensors. All are supported.
struct gb_cuda_nodes {
    ggml_tensor * const * node;
    int n;
    const int * next_reader; // of each node: the next node whose src[1] has the same source, or n
};

struct gb_cuda_family {
    const char * name;
    const gb_cuda_op * ops;
    int n_ops;
};

// At the end of ops/<family>.cu, with a row for each operator:
//     GB_CUDA_FAMILY_DEFINE(norm, { GGML_OP_NORM, norm_supports, norm_run, nullptr }, { ... })
#define GB_CUDA_FAMILY_DEFINE(family, ...)                                  \
    static const gb_cuda_op family##_ops[] = { __VA_ARGS__ };               \
    extern const gb_cuda_family gb_cuda_family_##family;                    \
    const gb_cuda_family gb_cuda_family_##family = { #family, family##_ops, \
        (int) (sizeof(family##_ops) / sizeof(family##_ops[0])) };

const gb_cuda_op * gb_cuda_op_get(enum ggml_op op); // NULL: not implemented
// gb_cuda_op::candidate of the node's operator. NULL without an error: the operator has one algorithm.
const char * gb_cuda_candidate(const gb_cuda_backend & b, const ggml_tensor * dst, int i, const char ** why);
const char * gb_cuda_unsupported_reason(const gb_cuda_device & d, const ggml_tensor * op); // NULL: supported
bool gb_cuda_is_view(enum ggml_op op); // computes nothing

static inline int64_t gb_cuda_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static inline int64_t gb_cuda_round_up(int64_t x, int64_t to) { return gb_cuda_ceil_div(x, to) * to; }

#endif // GB_CUDA_OP_H
