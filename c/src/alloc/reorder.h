// reorder.h - an order of the same nodes that needs less memory.
#ifndef GB_ALLOC_REORDER_H
#define GB_ALLOC_REORDER_H

#include "alloc/liveness.h"

struct gb_reorder_result {
    size_t before, after; // highest loads (bytes alive at once), summed over the arenas; with results in place
    bool changed;         // order is not 0, 1, 2, ...; only if after < before
};

// order[k]: which node of the list to run as k-th. Each node comes after all that it needs: what it reads, and whatever
// touches the same storage before it if one of the two writes. Every node sees the same operands, so results do not
// change. Custom operators keep their order, for they may do anything. INVALID_ARGUMENT as gb_liveness_compute; on
// failure order is unspecified.
enum ggml_status gb_reorder(const struct gb_liveness_input * in, int * order, struct gb_reorder_result * result);

#endif // GB_ALLOC_REORDER_H
