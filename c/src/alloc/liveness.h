// liveness.h - lifetimes of the tensors of a node list, and results that may reuse a source's
// memory.
//
// The scheduler's plans, the graph allocator and the search for a better order all use it. Tensors
// are only read. A lifetime is that of a storage, the memory of a tensor that is not a view. A use
// of a view is a use of its storage.
#ifndef GB_ALLOC_LIVENESS_H
#define GB_ALLOC_LIVENESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ggml.h"

// Memory to be placed: the storage of a tensor, then the storages that are computed into it in
// place, one after another.
struct gb_live_item {
    struct ggml_tensor * tensor; // the first owner
    int arena;                   // index of its arena (backend); items of different arenas share no memory
    size_t size;                 // bytes, from size_of
    int64_t lower, upper;        // in node positions, half-open
    bool from_start;             // the first owner has content from outside
    bool to_end;                 // the last owner is needed after the last node
};

enum { GB_LIVE_SLOTS = GGML_MAX_SRC + 1 }; // per node: its sources, then itself

struct gb_liveness {
    struct gb_live_item * items; // owned
    size_t n_items;
    int64_t * item_of; // owned; by tensor id: its item, or -1 (placed already, a view, ...)
    int32_t * ids;     // owned; GB_LIVE_SLOTS per node: ids of the storage of its slots; -1: none
};

// The two rules:
//
//                                  plans                                  the graph allocator
//   content from outside of a      exists from the start                  arrives with the first reader: programs of
//   tensor that is no input                                               early 2024 place their inputs themselves
//   a node may overwrite a         gb_plan_can_write_over; all slots      gb_allocator_can_write_over; one slot reads
//   source that dies in it         that read it begin where it begins     it
//   of several such sources        the one with the lowest load           the first
enum gb_live_rule { GB_LIVE_PLAN = 0, GB_LIVE_ALLOCATOR };

struct gb_liveness_input {
    struct ggml_tensor * const * nodes; // in execution order
    int n_nodes;
    void * user_data;
    // The id, 0 .. n_ids-1, of a tensor that is not a view, always the same for a tensor. -1: the
    // tensor is ignored. NULL: `ids` is used.
    int64_t (*id_of)(void * user_data, const struct ggml_tensor * t);
    // As gb_liveness::ids. The caller has checked that each node occurs once and after its sources.
    // With `id_of`, gb_liveness_compute checks that.
    const int32_t * ids;
    int64_t n_ids;
    // The following three are for the storage `id` of `t`. arena_of returns -1 if it is placed
    // already.
    int (*arena_of)(void * user_data, int64_t id, const struct ggml_tensor * t);
    size_t (*size_of)(void * user_data, int64_t id, const struct ggml_tensor * t);
    // True if the storage is needed to the end of the list. NULL: none is.
    bool (*keep)(void * user_data, int64_t id, const struct ggml_tensor * t);
    bool drop_unread; // nodes that no node of the list reads are kept only if they are outputs or `keep` says so
    bool no_join;     // no node writes over a source
    // True if the storage `id` of a node may reuse the memory of `source`. NULL: always.
    bool (*may_join)(void * user_data, int64_t id, int64_t source);
    enum gb_live_rule rule;
    // By node: the position from which on memory whose last user is the node may be used again, for
    // callers that run some nodes in any order. Ascending, each greater than the node's own
    // position. NULL: the next position.
    const int * released;
};

static inline int gb_live_released_at(const int * released, int position) {
    return released ? released[position] : position + 1;
}

// Storage lives from its first use by a node to its last, including uses of views.
// - Inputs (GB_TENSOR_INPUT) live from the start. So does storage that is read before any node writes
//   it, because its content comes from outside.
// - Outputs (GB_TENSOR_OUTPUT, `keep`, and nodes that no node reads) live to the end. A view's flag
//   counts for its source.
// - Content from outside lasts only until its last reader, which may overwrite it. Use `keep` to run
//   the list again without setting the content again.
// INVALID_ARGUMENT: a node occurs twice, or reads a result of a later node. On failure *out is
// empty.
enum ggml_status gb_liveness_compute(const struct gb_liveness_input * in, struct gb_liveness * out);
void gb_liveness_free(struct gb_liveness * liveness);

// Replaces the items of the arena by the items of `other`, computed for the same nodes and ids.
// Replaced items get arena -1. False: no memory, and nothing has changed.
bool gb_liveness_prefer(struct gb_liveness * liveness, const struct gb_liveness * other, int64_t n_ids, int arena);

// The largest load of each arena, summed over the arenas.
enum ggml_status gb_liveness_load(const struct gb_liveness * liveness, int n_nodes, size_t * sum);

// True if each slot through which the node reads the storage `id` may be overwritten and begins
// where the storage begins. ids: of the node's slots; several tensors may have the same storage.
bool gb_live_reads_in_place(const struct ggml_tensor * node, const int32_t * ids, int32_t id);

// True if `node` may overwrite its source s by operator and layout. The caller checks readers and
// ownership.
bool gb_plan_can_write_over(const struct ggml_tensor * node, int s);

// The same by the narrower rule of the graph allocator.
bool gb_allocator_can_write_over(const struct ggml_tensor * node, int s);

#endif // GB_ALLOC_LIVENESS_H
