// layout.h - where everything of a plan lies: offsets in arenas and leaf stores, and what they add up to.
//
// Numbers only: nothing is allocated for a layout, and no tensor knows of it before it is bound.
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
    bool leafs;  // a leaf store of its own; else chunk `chunk` of the arena
    size_t size; // bytes
};

struct gb_span { // positions of a split's nodes in the program, half-open
    int64_t lower, upper;
};

// Made by leafs.c before the program and by layout.c after it, then never changed. Owned by the plan.
struct gb_sched_layout {
    GB_VEC(struct gb_item) items; // per storage id: tensor ids, then copies from n_ids on
    GB_VEC(struct gb_span) spans; // per split
    GB_VEC(struct gb_chunk_need) chunks;
    struct gb_backend_need * need; // per backend
    // The layout whose offsets this one took over; NULL: none. Borrowed, until the plan is added to the kept ones.
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
// Called before the program is made, because copies of leafs that lie behind each other travel together. It makes
// `need` and the items of all tensors. ALLOC_FAILED: no memory, or a leaf is larger than the largest buffer of its
// backend, which is reported.
enum ggml_status gb_sched_lay_out_leafs(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, struct gb_sched_layout * layout);
// layout.c
// Adds the results and copies to a layout that has the leafs, and sums up what each backend needs. Takes over the
// offsets of the first plan of `earlier` that fits. ALLOC_FAILED: no memory, or a tensor is larger than the largest
// buffer; ABORTED: the thread's poll cancelled.
enum ggml_status gb_sched_lay_out(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, const struct gb_sched_program * program,
    const gb_sched_parts_list * earlier, struct gb_sched_layout * layout);
void gb_sched_free_layout(struct gb_sched_layout * layout);
// items.c
// The bytes that a tensor takes on a backend, at least 1: an empty tensor has an address, too.
size_t gb_sched_alloc_size(const struct ggml_backend_sched * s, int backend, struct ggml_tensor * t);
// The chunk of the item gets at least as large as the item needs; false: no memory.
bool gb_sched_need_chunk(struct gb_sched_layout * layout, const struct gb_item * item, bool leafs, size_t alignment);
// The item of a storage id (a tensor id, or n_ids + copy); NULL: it is not in an arena.
const struct gb_item * gb_sched_arena_item(const struct gb_sched_layout * layout, int64_t id);

// validator.c: called with each plan that was made. FAILED: the plan is wrong, and the message names the tensors.
enum ggml_status gb_sched_validate_layout(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_program * program, const struct gb_sched_layout * layout);

// template.c
// True if both plans have the same structure: nodes, splits, copies and steps. Sizes may differ.
bool gb_sched_is_like(const struct gb_sched_parts * p, const struct gb_sched_parts * tmpl);
// True if the plan may be able to take over the offsets of `tmpl`. The program of `p` need not be made yet.
bool gb_sched_may_fit(const struct gb_sched_parts * p, const struct gb_sched_parts * tmpl);
// Fills `at`, per alias group, with places at the offsets of `tmpl`. size_of: bytes, per storage id. False: a group
// does not fit, or no memory.
bool gb_sched_take_offsets(const struct gb_sched_parts * tmpl, const struct gb_liveness * live, const size_t * size_of,
    struct gb_item * at);

#endif // GB_SCHED_LAYOUT_LAYOUT_H
