// rules.h - which backend runs each node, and which one holds each tensor. Pure: integers in, integers out.
//
// Backends are numbered by priority: 0 is the highest. The last one, mostly the CPU, is called the fallback.
//
// Tensors are dense ids; ids 0 .. n_nodes-1 are the nodes in execution order, the others are leafs and roots of views.
// The caller answers, through callbacks, whether a backend can run a node and whether it can use memory that exists
// already.
#ifndef GB_SCHED_ASSIGN_RULES_H
#define GB_SCHED_ASSIGN_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ggml.h"
#include "sched/types.h"

// Where a tensor is, and the rule that decided.
struct gb_assignment {
    int32_t backend; // index by priority; -1: none
    int32_t by;      // the tensor that decided, -1: none
    int32_t wanted;  // the backend that the rules named but that cannot do it; -1: none
    int32_t cause;   // enum gb_cause
    int32_t other;   // by cost: the next best backend for it alone, -1: none
    int64_t saved;   // by cost: nanoseconds that it would take more there
};

struct gb_assign_graph {
    int n_backends, n_tensors, n_nodes;

    const int32_t * root;       // per tensor: the one that owns its memory (itself, if it is no view)
    const uint32_t * src_begin; // per node, n_nodes + 1 entries: its part of srcs
    const int32_t * srcs;       // sources of nodes; a node that names itself as a source is left out
    const uint8_t * computes;   // per node: does something, i.e. is neither NONE nor a view op
    const int32_t * chosen;     // per tensor: the user's choice, or -1
    const uint8_t * placed;     // per root: has memory already
    const int32_t * place;      // per root: the backend its memory belongs to, -1: none of ours, or not placed
    const uint8_t * weight;     // per root: in a buffer of usage WEIGHTS
    const size_t * bytes;       // per tensor
    const int32_t * label;      // per tensor: what the policy COST found, -1: nothing; NULL: it is not asked for

    void * user_data;
    bool (*runs)(void * user_data, int backend, int node);
    bool (*reaches)(void * user_data, int backend, int root); // placed roots: can the backend use that memory
    // Can `backend` use memory that the scheduler places on `of_backend`?
    bool (*shares)(void * user_data, int backend, int of_backend);
};

// Fills out[n_tensors]. Nodes that no backend can run keep backend -1 and are not an error here (the caller knows what
// to say); neither are user assignments that cannot run: see gb_assign_check.
void gb_assign(const struct gb_assign_graph * graph, enum gb_assign_policy policy, struct gb_assignment * out);

// The first tensor whose assignment cannot stand, or -1: a node without a backend, a user's choice that cannot run the
// node, or one that cannot use the memory where a leaf was placed.
int gb_assign_check(const struct gb_assign_graph * graph, const struct gb_assignment * out);

// Can `backend` use the memory of `root`, which is placed, or will be on the backend that `out` says?
bool gb_assign_reaches(const struct gb_assign_graph * graph, const struct gb_assignment * out, int backend, int root);

#endif // GB_SCHED_ASSIGN_RULES_H
