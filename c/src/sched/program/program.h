// program.h - what a plan does: splits, the copies and write-backs that make them complete, and the steps in the order
// of issue.
//
// The user's graph is never changed. A node that must read or write a copy runs as a shadow: a clone of its tensor,
// owned by the plan, whose sources are replaced. So do nodes that read a shadow soon after it.
#ifndef GB_SCHED_PROGRAM_PROGRAM_H
#define GB_SCHED_PROGRAM_PROGRAM_H

#include "base/hash.h"
#include "base/vec.h"
#include "tensor/tensor.h"

struct ggml_backend_sched;
struct gb_item;
struct gb_sched_assigned;
struct gb_sched_input;

struct gb_shadow {
    struct ggml_tensor tensor;
    int32_t origin; // id of the original
    int32_t copy;   // its memory is in this copy; -1: in the original's
};

struct gb_shadow_block;

struct gb_shadow_iter { // all zero: before the first
    struct gb_shadow_block * block;
    int next;
    bool started;
};

// Content of a root, or of bytes [lo, hi) of it, made on another backend before a split runs.
struct gb_copy {
    int root, backend, split;
    int shown;  // id of the tensor that was first read through it
    bool whole; // has the root's layout; else plain bytes
    bool fill;  // false: fully written by the node that needs it, nothing to copy in
    // A node reads it where weights stand: as the matrix of a product, or as a table of rows.
    bool as_weight;
    bool kept; // from run to run, in a replica; else in the arena
    size_t lo, hi;
    int version; // of the root that it equals (while building)
    struct gb_shadow * dst;
    struct gb_shadow * range; // the source as plain bytes; NULL when whole
    int merged;               // travels with this copy, behind its bytes; -1: by itself
    size_t span;              // bytes of those that travel with it, from its lo; hi - lo if there are none
    bool staged;              // goes through host memory of the plan: the user can set the source again at once
};

struct gb_write_back {
    int node;                  // after this node ...
    struct gb_shadow * from;   // ... its result, on a copy, goes to where it belongs
    struct gb_shadow * marker; // stands for it in the lifetimes
};

struct gb_split { // each [begin, end) is a part of the program's list of that name
    int backend;
    int start, end; // nodes
    size_t copies_begin, copies_end;
    size_t transfers_begin, transfers_end;
    size_t exec_begin, exec_end;
    size_t backs_begin, backs_end;
};

// In a split's own order: its copies in, its nodes, its write-backs.
enum gb_step_kind { GB_STEP_COPY, GB_STEP_COMPUTE, GB_STEP_BACK };

// What is issued at once.
struct gb_step {
    uint8_t kind;   // enum gb_step_kind
    int32_t index;  // of the copy, split or write-back
    int32_t issuer; // the backend in whose queue it is; n_backends: the host, which is done when the call returns
};

// Made by split.c, copies.c and steps.c, then never changed. Owned by the plan, shadows included.
struct gb_sched_program {
    GB_VEC(struct gb_split) splits;
    GB_VEC(struct gb_copy) copies;
    GB_VEC(int32_t) transfers;         // indices of the copies that are filled, ascending
    GB_VEC(struct ggml_tensor *) exec; // what runs: nodes of the user or shadows
    GB_VEC(int32_t) exec_node;         // per exec: its node
    GB_VEC(struct gb_write_back) backs;
    GB_VEC(struct gb_step) steps; // in the order of issue
    struct gb_shadow_block * shadows;
    size_t n_kept;   // copies
    size_t n_staged; // copies
};

// A graph of what runs from `begin` to `end`: it borrows the program's list.
static inline struct ggml_cgraph gb_program_part(const struct gb_sched_program * program, size_t begin, size_t end) {
    const int n = (int) (end - begin);
    return (struct ggml_cgraph) { .size = n, .n_nodes = n, .nodes = program->exec.data + begin };
}

// split.c
// Cuts the node list where the backend changes. Nodes that compute nothing never cut: they belong to the split they
// stand in, leading ones to the first. The splits cover [0, n_nodes) without gaps.
enum ggml_status gb_sched_cut(const struct gb_sched_input * in, const struct gb_sched_assigned * assigned,
    struct gb_sched_program * program);

struct gb_split_range {
    int backend;
    int start, end; // nodes [start, end)
};

typedef GB_VEC(struct gb_split_range) gb_split_list;

// The same for arrays: backend[i] and computes[i] of each node; pure. `out` must be empty. False when memory is out
// (reported).
bool gb_split_nodes(const int32_t * backend, const uint8_t * computes, int n_nodes, gb_split_list * out);

// copies.c
// `leafs` says, per id, where leafs were laid out. Copies are merged as in `candidate` (NULL: none) where it has the
// same ones. Fills everything but the steps, for splits that were cut. ALLOC_FAILED: no memory.
enum ggml_status gb_sched_make_program(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, const struct gb_item * leafs, const struct gb_sched_program * candidate,
    struct gb_sched_program * program);

// steps.c
// Fills the steps. ALLOC_FAILED: no memory.
enum ggml_status gb_sched_order_steps(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, struct gb_sched_program * program);
// The split whose result a write-back takes.
int gb_sched_split_of_back(const struct gb_sched_program * program, size_t back);

// shadow.c
// A clone without memory and flags; NULL: no memory. `origin`: the id of the tensor that it clones; `copy`: the copy
// that its memory is in, -1: none. Owned by the program.
struct gb_shadow * gb_sched_new_shadow(struct gb_sched_program * program, const struct gb_sched_input * in, int origin,
    int copy);
// The shadows one after the other, in no order that means anything; NULL at the end.
struct gb_shadow * gb_sched_next_shadow(const struct gb_sched_program * program, struct gb_shadow_iter * it);
// Maps roots and what stands for them to storage ids: tensor ids, then copies from n_ids on. `map` is empty before.
// False: no memory.
bool gb_sched_map_storage(const struct gb_sched_input * in, const struct gb_sched_program * program,
    struct gb_ptrmap * map);
// Frees the shadows, too: nothing may point to them any more.
void gb_sched_free_program(struct gb_sched_program * program);

#endif // GB_SCHED_PROGRAM_PROGRAM_H
