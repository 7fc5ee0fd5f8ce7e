// program.h - the actions of a plan: splits, their copies and write-backs, and the steps in the
// order of issue.
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
    int32_t copy; // the copy that has its memory; -1: the memory of the original
};

struct gb_shadow_block;

struct gb_shadow_iter { // all zero: before the first shadow
    struct gb_shadow_block * block;
    int next;
    bool started;
};

// Content of a root, or of its bytes [lo, hi), copied to another backend before a split runs.
struct gb_copy {
    int root, backend, split;
    int shown; // id of the tensor that first reads through it
    bool whole; // it has the layout of the root; else it is plain bytes
    bool fill; // false: the node that needs it writes all of it, so nothing is copied
    // A node reads it as the matrix of a product, or as a table of rows.
    bool as_weight;
    bool kept; // kept from run to run, in a replica; else in the arena
    size_t lo, hi;
    int version; // version of the root that it equals (while the program is built)
    struct gb_shadow * dst;
    struct gb_shadow * range; // the source as plain bytes; NULL if `whole`
    int merged; // the copy that also transfers these bytes; -1: none, this copy transfers itself
    size_t span; // bytes that this copy transfers from `lo` on, with those of copies merged into it
    bool staged; // it goes through host memory of the plan, so the user can set the source again at once
};

struct gb_write_back {
    int node; // the node that computes the result
    struct gb_shadow * from; // the result in a copy, to be written to the node's own memory
    struct gb_shadow * marker; // represents the write-back in the lifetimes
};

struct gb_split { // each [begin, end) is a range of the program's list of that name
    int backend;
    int start, end; // nodes
    size_t copies_begin, copies_end;
    size_t transfers_begin, transfers_end;
    size_t exec_begin, exec_end;
    size_t backs_begin, backs_end;
};

// Within a split, copies come first, then its nodes, then its write-backs.
enum gb_step_kind { GB_STEP_COPY, GB_STEP_COMPUTE, GB_STEP_BACK };

// The unit that is issued by one call.
struct gb_step {
    uint8_t kind;   // enum gb_step_kind
    int32_t index; // index of the copy, split or write-back
    int32_t issuer; // the backend whose queue runs it; n_backends: the host, which is done when the call returns
};

// split.c, copies.c and steps.c make it. Then it never changes. Owned by the plan, as are the
// shadows.
struct gb_sched_program {
    GB_VEC(struct gb_split) splits;
    GB_VEC(struct gb_copy) copies;
    GB_VEC(int32_t) transfers; // indices of the copies with `fill`, ascending
    GB_VEC(struct ggml_tensor *) exec; // nodes of the user or shadows, in the order of execution
    GB_VEC(int32_t) exec_node; // per entry of exec: its node
    GB_VEC(struct gb_write_back) backs;
    GB_VEC(struct gb_step) steps; // in the order of issue
    struct gb_shadow_block * shadows;
    size_t n_kept; // number of copies with `kept`
    size_t n_staged; // number of copies with `staged`
};

// A graph of exec[begin, end). It borrows the program's list.
static inline struct ggml_cgraph gb_program_part(const struct gb_sched_program * program, size_t begin, size_t end) {
    const int n = (int) (end - begin);
    return (struct ggml_cgraph) { .size = n, .n_nodes = n, .nodes = program->exec.data + begin };
}

// split.c
// Cuts the node list where the backend changes. Nodes that compute nothing (views) never cut: they
// belong to the current split, and leading ones to the first split. The splits cover [0, n_nodes)
// without gaps.
enum ggml_status gb_sched_cut(const struct gb_sched_input * in, const struct gb_sched_assigned * assigned,
    struct gb_sched_program * program);

struct gb_split_range {
    int backend;
    int start, end; // nodes [start, end)
};

typedef GB_VEC(struct gb_split_range) gb_split_list;

// Pure form of gb_sched_cut: backend[i] and computes[i] of each node. `out` must be empty. False
// and reported: no memory.
bool gb_split_nodes(const int32_t * backend, const uint8_t * computes, int n_nodes, gb_split_list * out);

// copies.c
// Fills everything but the steps, for splits that were cut. `leafs`: per id, the places of leafs.
// Copies that are merged in `candidate` (NULL: none) are merged here, too. ALLOC_FAILED: no memory.
enum ggml_status gb_sched_make_program(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, const struct gb_item * leafs, const struct gb_sched_program * candidate,
    struct gb_sched_program * program);

// steps.c
// Fills the steps. ALLOC_FAILED: no memory.
enum ggml_status gb_sched_order_steps(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, struct gb_sched_program * program);
// The split whose result a write-back copies.
int gb_sched_split_of_back(const struct gb_sched_program * program, size_t back);

// shadow.c
// A clone without memory and flags, owned by the program; NULL: no memory. `origin`: id of the
// cloned tensor. `copy`: the copy that has its memory, -1: none.
struct gb_shadow * gb_sched_new_shadow(struct gb_sched_program * program, const struct gb_sched_input * in, int origin,
    int copy);
// Iterates over the shadows in no particular order; NULL at the end.
struct gb_shadow * gb_sched_next_shadow(const struct gb_sched_program * program, struct gb_shadow_iter * it);
// Maps roots, and shadows that own memory, to storage ids: tensor ids, then copies from n_ids on.
// `map` must be empty. False: no memory.
bool gb_sched_map_storage(const struct gb_sched_input * in, const struct gb_sched_program * program,
    struct gb_ptrmap * map);
// Frees the program and its shadows. No tensor may point to them any more.
void gb_sched_free_program(struct gb_sched_program * program);

#endif // GB_SCHED_PROGRAM_PROGRAM_H
