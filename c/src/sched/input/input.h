// input.h - the graph's tensors as dense ids, and the memory that they have already.
//
// Ids 0 .. n_nodes-1 are the nodes in the order of execution. The leafs of the graph follow, then
// all other tensors to which they refer. Each tensor comes after a tensor that refers to it. So a
// kept plan can be compared with a graph without following a stale pointer. The other parts of a
// plan consist of integers. The user's graph is only read.
#ifndef GB_SCHED_INPUT_INPUT_H
#define GB_SCHED_INPUT_INPUT_H

#include "base/hash.h"
#include "base/vec.h"
#include "ggml-backend-impl.h"
#include "sched/input/key.h"
#include "sched/types.h"
#include "tensor/tensor.h"

struct ggml_backend_sched;

// The memory that a root has.
enum gb_location {
    GB_LOCATION_VIEW, // not a root
    GB_LOCATION_ARENA, // the plan places it; a node computes it
    GB_LOCATION_LEAF, // the plan places it; the user sets its content
    GB_LOCATION_SHARED, // another kept plan placed this leaf
    GB_LOCATION_USER, // in a buffer of the user's or of another scheduler
    GB_LOCATION_HOST, // in plain host memory, without a buffer
};

// The plan's data of one tensor.
struct gb_id {
    struct ggml_tensor * tensor; // borrowed
    int32_t root; // id of the owner of its memory
    uint8_t location; // enum gb_location; only of roots
    bool computes;
    bool keep; // only of roots: keep the content to the end of the graph
    ggml_backend_buffer_type_t buft; // borrowed; only of roots in the user's memory: their buffer's type
};

// gb_sched_collect makes it. After that only `keys` changes: binding notes addresses there. The
// plan owns the arrays. The user owns the tensors, which may be freed before the plan is compared
// with another graph.
struct gb_sched_input {
    int n_nodes, n_leafs, n_ids, n_backends;
    struct ggml_tensor ** nodes; // per id
    struct ggml_tensor ** leafs;
    struct gb_ptrmap map; // tensor -> id
    GB_VEC(struct gb_id) ids;
    struct gb_keys keys; // per id: the tensor as it was when planned, or when bound since
    uint32_t * src_begin; // n_nodes + 1 entries: where the sources of a node begin in `srcs`
    int32_t * srcs; // ids; without nodes that name themselves as a source
    int32_t * chosen; // per id: the backend that the user chose, -1: none
    bool has_chosen; // `chosen` has entries other than -1
    uint8_t * weight; // per id: 1 if its buffer has usage WEIGHTS
    bool foreign; // true if the graph uses the user's buffers
    enum gb_assign_policy policy;
    int n_copies; // number of runs that may be pending at once
    bool minimal; // no replicas, no early copies: memory was short
};

// Finds the memory of a root: memory/location.c. LEAF and ARENA mean that the plan places it.
// Returns false and reports if its content is gone. `computed`: a node of the graph computes the
// tensor. `chosen`: the backend that the user chose for it, -1: none.
typedef bool (*gb_locate_fn)(const struct ggml_backend_sched * s, const struct ggml_tensor * t, bool computed,
    int chosen, enum gb_location * location);

// Fills `in` from the graph. Before, `in` is zero except for `minimal` and `n_copies`.
// gb_sched_free_input frees it after a failure, too. INVALID_ARGUMENT: a tensor of the graph is
// NULL or not valid, or a node occurs twice. INVALID_STATE: the graph reads a result that is gone.
// ABORTED: the thread's poll cancelled. ALLOC_FAILED: no memory.
enum ggml_status gb_sched_collect(const struct ggml_backend_sched * s, struct gb_sched_input * in,
    const struct ggml_cgraph * graph, gb_locate_fn locate);
// Frees the tables. Touches no tensor: tensors may be freed.
void gb_sched_free_input(struct gb_sched_input * in);

// The tensor's name when it was planned or last bound. The tensor may be freed.
static inline const char * gb_sched_name_of(const struct gb_sched_input * in, int64_t id) {
    return gb_key_name(gb_key_of(&in->keys, id));
}

#endif // GB_SCHED_INPUT_INPUT_H
