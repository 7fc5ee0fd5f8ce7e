// liveness.h - when each tensor of a node list must be in memory, and which results may take over a source's memory.
//
// The one computation of lifetimes: plans of the scheduler (on its private node list), the graph allocator and the
// search for a better order all use it. Tensors are only read. Lifetimes are those of storage, that is of the tensor
// that owns memory: what happens to a view happens to its source.
#ifndef GB_ALLOC_LIVENESS_H
#define GB_ALLOC_LIVENESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ggml.h"

// One piece of storage to be placed: a tensor that owns memory, plus those that take it over in place, one after
// another.
struct gb_live_item {
    struct ggml_tensor * tensor; // the first owner
    int arena;                   // which arena (backend) it belongs to; items of different arenas never share
    size_t size;                 // bytes, from size_of
    int64_t lower, upper;        // in node positions, half-open
    bool from_start;             // of the first owner: it has content from outside
    bool to_end;                 // of the last owner: it is still wanted after the last node
};

enum { GB_LIVE_SLOTS = GGML_MAX_SRC + 1 }; // of a node: its sources, then itself

struct gb_liveness {
    struct gb_live_item * items; // owned
    size_t n_items;
    int64_t * item_of; // owned; per tensor id as given by the caller: its item, or -1 (placed already, a view, ...)
    int32_t * ids;     // owned; GB_LIVE_SLOTS a node: the id of the storage of each slot, -1: none
};

// The rules differ in what is promised to whom:
//
//                                  plans                                  the graph allocator
//   content from outside, of what  is there from the start                arrives with the first reader: programs of
//   is no input                                                           early 2024 place their inputs themselves
//   a node may write over a        gb_plan_can_write_over, read by any    gb_allocator_can_write_over, read by one
//   source that dies in it         slots that begin where it writes       slot
//   of several such sources        that which leaves the lowest load      the first
enum gb_live_rule { GB_LIVE_PLAN = 0, GB_LIVE_ALLOCATOR };

struct gb_liveness_input {
    struct ggml_tensor * const * nodes; // in execution order
    int n_nodes;
    void * user_data;
    // Dense id 0 .. n_ids-1 of a tensor that is not a view; the same tensor always gives the same id; -1: leave it
    // alone. NULL: the caller has them already, in `ids`.
    int64_t (*id_of)(void * user_data, const struct ggml_tensor * t);
    // As gb_liveness::ids. Who gives ids has checked that each node occurs once and after what it reads: here only
    // nodes that are looked up with `id_of` are checked for that.
    const int32_t * ids;
    int64_t n_ids;
    // About the storage `id`, which `t` owns.
    // -1: not to be placed (placed already)
    int (*arena_of)(void * user_data, int64_t id, const struct ggml_tensor * t);
    size_t (*size_of)(void * user_data, int64_t id, const struct ggml_tensor * t);
    // true: to the end of the list; NULL: none
    bool (*keep)(void * user_data, int64_t id, const struct ggml_tensor * t);
    bool drop_unread; // nodes that no node of the list reads are kept only if they are outputs or `keep` says so
    bool no_join;     // no node is computed into the memory of a source
    // May the storage `id` of a node continue in the memory of the storage `source`? NULL: in any.
    bool (*may_join)(void * user_data, int64_t id, int64_t source);
    enum gb_live_rule rule;
    // Per node: the position from which on memory that it was the last to use may serve others, for callers that run
    // some nodes in any order; ascending, each greater than the node's own position. NULL: the next one.
    const int * released;
};

static inline int gb_live_released_at(const int * released, int position) {
    return released ? released[position] : position + 1;
}

// Rules: storage lives from the first node that writes or reads it to the last node that writes or reads it or any view
// of it; inputs (GB_TENSOR_INPUT) from the start, and so does what is read before any node of the list writes it (its
// content comes from outside); outputs (GB_TENSOR_OUTPUT, `keep`, and nodes that nobody reads) to the end, a view's
// flag counting for its source. Unless `keep` says so, content from outside lasts only until its last reader, which may
// even take over its memory: who wants to run the list again without setting it again keeps it. INVALID_ARGUMENT when a
// node occurs twice or reads a result of a later one. On failure *out is empty.
enum ggml_status gb_liveness_compute(const struct gb_liveness_input * in, struct gb_liveness * out);
void gb_liveness_free(struct gb_liveness * liveness);

// Items of the arena as in `other`, which was computed for the same nodes and ids; those that they replace have the
// arena -1 from then on. False: no memory, nothing has changed.
bool gb_liveness_prefer(struct gb_liveness * liveness, const struct gb_liveness * other, int64_t n_ids, int arena);

// The most bytes alive at once, added up over the arenas.
enum ggml_status gb_liveness_load(const struct gb_liveness * liveness, int n_nodes, size_t * sum);

// Does the node read the storage `id` only through slots that it may write over and that begin where the storage does?
// By id, since several tensors may stand for one storage. ids: of its slots.
bool gb_live_reads_in_place(const struct ggml_tensor * node, const int32_t * ids, int32_t id);

// May `node` be computed into the memory of its source s as far as op and layout go (readers and ownership are the
// caller's to check)?
bool gb_plan_can_write_over(const struct ggml_tensor * node, int s);

// The same by the narrower rule that is documented for the graph allocator.
bool gb_allocator_can_write_over(const struct ggml_tensor * node, int s);

#endif // GB_ALLOC_LIVENESS_H
