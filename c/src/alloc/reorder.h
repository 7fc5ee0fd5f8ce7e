// reorder.h - finds an order of a node list that needs less memory.
#ifndef GB_ALLOC_REORDER_H
#define GB_ALLOC_REORDER_H

#include "alloc/liveness.h"

struct gb_reorder_result {
    size_t before, after; // largest loads, summed over the arenas; with results in place
    bool changed;         // the order is not 0, 1, 2, ...; then after < before
};

// order[k] is the index of the node that runs as the k-th. Each node comes after its sources, and
// after earlier nodes that use the same storage if one of the two writes it. So operands and
// results do not change. Custom operators keep their order, because they may have side effects.
// INVALID_ARGUMENT as gb_liveness_compute. On failure the order is unspecified.
enum ggml_status gb_reorder(const struct gb_liveness_input * in, int * order, struct gb_reorder_result * result);

#endif // GB_ALLOC_REORDER_H
