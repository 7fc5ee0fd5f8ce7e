// mincut.h - maximum flow and minimum cut of a network with integer capacities. Pure.
//
// The maximum flow from a source to a sink equals the minimum capacity of arcs that separate them.
// So a flow and a cut of the same value prove each other. Both stay in the network, so that tests
// can validate them.
#ifndef GB_SCHED_COST_MINCUT_H
#define GB_SCHED_COST_MINCUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/vec.h"
#include "ggml.h"

struct gb_flow_arc {
    int32_t from, to;
    int64_t cap, back; // capacity from -> to and to -> from, >= 0
};

struct gb_flow { // all zero: a network without nodes
    int32_t n_nodes;
    GB_VEC(struct gb_flow_arc) arcs;

    // Filled by gb_flow_solve; owned.
    int64_t value;
    int64_t * flow; // per arc: net from -> to
    // The side of each node: 1 with the source, 0 with the sink. Of several minimum cuts this is
    // the one with most nodes on the source side.
    uint8_t * side;
};

// Twice each capacity, and the value of the minimum cut, must be below INT64_MAX.
// gb_flow_add adds an arc and the nodes that it names. It skips arcs without capacity and arcs from
// a node to itself. False and reported: no memory.
// gb_flow_solve replaces the result of an earlier call. After ALLOC_FAILED (no memory) and ABORTED
// (the thread's poll cancelled) flow and side are undefined. gb_flow_free leaves an empty network.
bool gb_flow_add(struct gb_flow * net, int32_t from, int32_t to, int64_t cap, int64_t back);
enum ggml_status gb_flow_solve(struct gb_flow * net, int32_t source, int32_t sink);
void gb_flow_free(struct gb_flow * net);

#endif // GB_SCHED_COST_MINCUT_H
