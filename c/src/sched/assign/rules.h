// rules.h - the backend that runs each node, and the backend that holds each tensor. Pure: integers
// in, integers out.
#ifndef GB_SCHED_ASSIGN_RULES_H
#define GB_SCHED_ASSIGN_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ggml.h"
#include "sched/types.h"

// The backend of a tensor, and the rule that decided.
struct gb_assignment {
    int32_t backend; // index by priority; -1: none
    int32_t by;      // the tensor that decided, -1: none
    int32_t wanted; // the backend that the rules preferred but that cannot run it; -1: none
    int32_t cause;   // enum gb_cause
    int32_t other; // by cost: the next best backend for this tensor, -1: none
    int64_t saved; // by cost: extra nanoseconds on `other`
};

struct gb_assign_graph {
    int n_backends, n_tensors, n_nodes;

    const int32_t * root; // per tensor: the tensor that owns its memory; itself if it is not a view
    const uint32_t * src_begin; // per node, n_nodes + 1 entries: where its sources begin in `srcs`
    const int32_t * srcs; // sources of nodes; without nodes that name themselves as a source
    const uint8_t * computes; // per node: false for NONE and views
    const int32_t * chosen;     // per tensor: the user's choice, or -1
    const uint8_t * placed; // per root: it has memory already
    const int32_t * place; // per root: the backend of its memory; -1: it has none yet, or no backend owns it
    const uint8_t * weight;     // per root: true in a buffer of usage WEIGHTS
    const size_t * bytes;       // per tensor
    const int32_t * label; // per tensor: the backend that policy COST found, -1: none; NULL: not used

    void * user_data;
    bool (*runs)(void * user_data, int backend, int node);
    bool (*reaches)(void * user_data, int backend, int root); // true if it can use a placed root
    // True if `backend` can use memory that the scheduler places on `of_backend`.
    bool (*shares)(void * user_data, int backend, int of_backend);
};

// Fills out[n_tensors]. A node that no backend can run gets backend -1. A user's choice that cannot
// run is kept. Here these are no errors, because gb_assign_check finds them.
void gb_assign(const struct gb_assign_graph * graph, enum gb_assign_policy policy, struct gb_assignment * out);

// The first tensor whose assignment is invalid, or -1. Invalid are a node without a backend, a
// user's choice that cannot run the node, and a backend that cannot use the memory of its leaf.
int gb_assign_check(const struct gb_assign_graph * graph, const struct gb_assignment * out);

// True if `backend` can use the memory of `root`, which exists or will be on the backend in `out`.
bool gb_assign_reaches(const struct gb_assign_graph * graph, const struct gb_assignment * out, int backend, int root);

#endif // GB_SCHED_ASSIGN_RULES_H
