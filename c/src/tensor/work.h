// work.h - what computing nodes takes at least, counted from shapes and types alone: operations, and bytes that are
// read and written. Placement by costs and profiles count by it.
#ifndef GB_TENSOR_WORK_H
#define GB_TENSOR_WORK_H

#include "ggml.h"

struct gb_work {
    double flops;         // a multiplication and an addition are two, an element of any other result is one
    double read, written; // bytes of elements, without gaps between them
};

// Of nodes that are computed in one go, in order. What one of them computes and a later one reads does not count as
// read, and as written only if somebody else may look at it. A tensor that several of them read is read once. Views are
// no work.
struct gb_work gb_work_of_step(struct ggml_tensor * const * nodes, int n);
// Of nodes that are computed one after the other.
struct gb_work gb_work_of_nodes(struct ggml_tensor * const * nodes, int n);
struct gb_work gb_work_of(const struct ggml_tensor * node);

#endif // GB_TENSOR_WORK_H
