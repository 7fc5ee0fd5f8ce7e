// work.h - lower bounds for the work of nodes, counted from shapes and types alone: operations, and
// bytes read and written. Placement by costs and profiles use it.
#ifndef GB_TENSOR_WORK_H
#define GB_TENSOR_WORK_H

#include "ggml.h"

struct gb_work {
    double flops;  // a multiplication and an addition are two; operators without products count one for each element
    double read, written; // bytes of elements, without gaps between them
};

// The work of fused nodes, in their order. A result that only these nodes read does not count as
// read, and counts as written only if other code may read it. A tensor that several nodes read
// counts once. Views count as no work.
struct gb_work gb_work_of_step(struct ggml_tensor * const * nodes, int n);
// The work of nodes that are computed one after another.
struct gb_work gb_work_of_nodes(struct ggml_tensor * const * nodes, int n);
struct gb_work gb_work_of(const struct ggml_tensor * node);

#endif // GB_TENSOR_WORK_H
