// layout.h - the offsets of a plan: places in arenas and leaf stores, and the memory that they
// need.
//
// A layout consists of numbers. Memory is allocated later, and tensors change when the plan is
// bound.
#ifndef GB_SCHED_LAYOUT_LAYOUT_H
#define GB_SCHED_LAYOUT_LAYOUT_H

#include "base/vec.h"
#include "ggml.h"
#include "sched/types.h"

struct ggml_backend_sched;
struct gb_liveness;
struct gb_sched_assigned;
struct gb_sched_input;
struct gb_sched_program;

struct gb_chunk_need { // a buffer that the plan needs
    int backend, chunk;
    bool leafs; // a leaf store; else chunk `chunk` of the arena
    size_t size; // bytes
};

struct gb_span { // positions of a split's nodes in the program, half-open
    int64_t lower, upper;
};

// leafs.c makes one part before the program, layout.c the rest after it. Then the layout never
// changes. The plan owns it.
struct gb_sched_layout {
    GB_VEC(struct gb_item) items; // per storage id: tensor ids, then copies from n_ids on
    GB_VEC(struct gb_span) spans; // per split
    GB_VEC(struct gb_chunk_need) chunks;
    struct gb_backend_need * need; // per backend
    // The layout whose offsets this layout uses; NULL: none. Borrowed, and valid until the plan is
    // added to the kept plans.
    const struct gb_sched_layout * tmpl;
};

// The parts of a plan that its offsets depend on, and its layout; borrowed.
struct gb_sched_parts {
    const struct gb_sched_input * in;
    const struct gb_sched_assigned * assigned;
    const struct gb_sched_program * program;
    const struct gb_sched_layout * layout;
};

typedef GB_VEC(struct gb_sched_parts) gb_sched_parts_list;

// leafs.c
// Places the leafs; makes `need` and the items of all tensors. It runs before the program is made,
// because copies of neighbouring leafs are merged. ALLOC_FAILED: no memory, or a leaf is larger
// than the largest buffer of its backend (reported).
enum ggml_status gb_sched_lay_out_leafs(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, struct gb_sched_layout * layout);
// layout.c
// Adds the results and copies to a layout that has the leafs, and sums up what each backend needs.
// It takes over the offsets of the first plan of `earlier` that fits. ALLOC_FAILED: no memory, or a
// tensor is larger than the largest buffer; ABORTED: the thread's poll cancelled.
enum ggml_status gb_sched_lay_out(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, const struct gb_sched_program * program,
    const gb_sched_parts_list * earlier, struct gb_sched_layout * layout);
void gb_sched_free_layout(struct gb_sched_layout * layout);
// items.c
// Bytes of a tensor on a backend, at least 1, because an empty tensor needs an address, too.
size_t gb_sched_alloc_size(const struct ggml_backend_sched * s, int backend, struct ggml_tensor * t);
// Makes the chunk of the item large enough for it. False: no memory.
bool gb_sched_need_chunk(struct gb_sched_layout * layout, const struct gb_item * item, bool leafs, size_t alignment);
// The item of a storage id (a tensor id, or n_ids + copy). NULL: it is not in an arena.
const struct gb_item * gb_sched_arena_item(const struct gb_sched_layout * layout, int64_t id);

// validator.c: checks each new plan. FAILED: the plan is wrong; the message names the tensors.
enum ggml_status gb_sched_validate_layout(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_program * program, const struct gb_sched_layout * layout);

// template.c
// True if both plans have the same structure: nodes, splits, copies and steps. Sizes may differ.
bool gb_sched_is_like(const struct gb_sched_parts * p, const struct gb_sched_parts * tmpl);
// True if the plan may be able to use the offsets of `tmpl`. Works before the program of `p` is
// made.
bool gb_sched_may_fit(const struct gb_sched_parts * p, const struct gb_sched_parts * tmpl);
// Fills `at`, per alias group, with places at the offsets of `tmpl`. size_of: bytes, per storage id. False: a group
// does not fit, or no memory.
bool gb_sched_take_offsets(const struct gb_sched_parts * tmpl, const struct gb_liveness * live, const size_t * size_of,
    struct gb_item * at);

#endif // GB_SCHED_LAYOUT_LAYOUT_H
