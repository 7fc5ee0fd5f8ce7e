// input.h - what came in: a graph's tensors as dense ids, and what memory each has already.
//
// Ids 0 .. n_nodes-1 are the nodes in the order of execution, then come the leafs of the graph, then whatever else they
// refer to. Each tensor is met after one that leads to it, so a kept plan can be compared with a graph without ever
// following a stale pointer. From here on a plan is made of integers; the user's graph is only read.
#ifndef GB_SCHED_INPUT_INPUT_H
#define GB_SCHED_INPUT_INPUT_H

#include "base/hash.h"
#include "base/vec.h"
#include "ggml-backend-impl.h"
#include "sched/input/key.h"
#include "sched/types.h"
#include "tensor/tensor.h"

struct ggml_backend_sched;

// What memory a root has.
enum gb_location {
    GB_LOCATION_VIEW, // not a root
    GB_LOCATION_ARENA, // placed by the plan, computed by a node
    GB_LOCATION_LEAF, // placed by the plan, content from outside
    GB_LOCATION_SHARED, // a leaf that another kept plan placed
    GB_LOCATION_USER, // in a buffer of the user (or of another scheduler)
    GB_LOCATION_HOST, // plain host memory, no buffer
};

// What the plan knows of a tensor of the graph.
struct gb_id {
    struct ggml_tensor * tensor; // borrowed
    int32_t root; // id of the owner of its memory
    uint8_t location; // enum gb_location, of roots
    bool computes;
    bool keep; // roots: to the end of the graph
    ggml_backend_buffer_type_t buft; // borrowed; of the buffer, for roots in memory of the user
};

// Made by gb_sched_collect, then never changed, except for `keys`: binding notes there where tensors lie. Arrays are
// owned by the plan, tensors by the user: they may be gone when another graph is compared with the plan.
struct gb_sched_input {
    int n_nodes, n_leafs, n_ids, n_backends;
    struct ggml_tensor ** nodes; // per id
    struct ggml_tensor ** leafs;
    struct gb_ptrmap map; // tensor -> id
    GB_VEC(struct gb_id) ids;
    struct gb_keys keys; // per id: the tensor as it was when planned; after binding: as it is bound
    uint32_t * src_begin; // per node and one more: its part of srcs
    int32_t * srcs; // ids; a node that names itself as a source is left out
    int32_t * chosen; // per id: the backend that the user chose, -1: none
    bool has_chosen; // some of them are set
    uint8_t * weight; // per id: its buffer's usage was WEIGHTS
    bool foreign; // uses buffers of the user
    enum gb_assign_policy policy;
    int n_copies; // of inputs: graphs in flight
    bool minimal; // memory was short: no replicas, no early copies
};

// Finds the memory of a root: memory/location.c. LEAF and ARENA mean that the plan places it. Reports and returns false
// if its content is gone. `computed`: a node of the graph computes the tensor. `chosen`: the backend that the user
// chose for it, -1: none.
typedef bool (*gb_locate_fn)(const struct ggml_backend_sched * s, const struct ggml_tensor * t, bool computed,
    int chosen, enum gb_location * location);

// Fills `in`, which is zero but for `minimal` and `n_copies`, from the graph; gb_sched_free_input frees it after a
// failure, too. INVALID_ARGUMENT: a tensor of the graph is NULL or not valid, or a node occurs twice; INVALID_STATE:
// the graph reads a result that is gone; ALLOC_FAILED; ABORTED: the thread's poll cancelled.
enum ggml_status gb_sched_collect(const struct ggml_backend_sched * s, struct gb_sched_input * in,
    const struct ggml_cgraph * graph, gb_locate_fn locate);
// Frees the tables and touches no tensor: they may be gone.
void gb_sched_free_input(struct gb_sched_input * in);

// The name that the tensor had when it was planned, or bound since, also where it is gone.
static inline const char * gb_sched_name_of(const struct gb_sched_input * in, int64_t id) {
    return gb_key_name(gb_key_of(&in->keys, id));
}

#endif // GB_SCHED_INPUT_INPUT_H
