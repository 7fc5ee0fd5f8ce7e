// layout.h - where everything of a plan lies: offsets in arenas and leaf stores, and what they add up to.
//
// Numbers only: nothing is allocated for a layout, and no tensor knows of it before it is bound.
#ifndef GB_SCHED_LAYOUT_LAYOUT_H
#define GB_SCHED_LAYOUT_LAYOUT_H

#include "base/vec.h"
#include "ggml.h"

struct ggml_backend_sched;
struct gb_liveness;
struct gb_sched_assigned;
struct gb_sched_input;
struct gb_sched_plan;

struct gb_item { // a tensor that uses memory of one root id or copy: where in its arena or leaf store
    int backend;
    int chunk;
    size_t offset, size;  // bytes
    bool valid;           // is placed by the plan
    int64_t lower, upper; // of those in an arena: positions in the program (layout.c), half-open
    // The alias group of an item in an arena, named by the storage id of its first member; the members share their
    // memory one after the other.
    int64_t group;
    // The bytes that may be used there: a plan of the same structure takes the place for as much (template.c).
    size_t capacity;
};

struct gb_chunk_need { // a buffer that the plan needs
    int backend, chunk;
    bool leafs;  // a leaf store of its own; else chunk `chunk` of the arena
    size_t size; // bytes
};

// What a plan needs of one backend, in bytes.
struct gb_backend_need {
    size_t replicas; // of weights and the like, perhaps shared with other plans
    size_t peak;     // of the arena, all chunks
    size_t leafs;    // leafs placed by this plan
    size_t no_reuse; // if nothing shared memory, without leafs
    size_t load;     // the most alive at once
    size_t bound;    // no plan of the arena needs less
    size_t work;     // scratch memory of the backend itself
    bool proved;     // no arena layout has a peak below `peak`
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
};

// leafs.c
// Called before the program is made, because copies of leafs that lie behind each other travel together. It makes
// `need` and the items of all tensors. ALLOC_FAILED: no memory, or a leaf is larger than the largest buffer of its
// backend, which is reported.
enum ggml_status gb_sched_lay_out_leafs(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, struct gb_sched_layout * layout);
// layout.c
// Adds the results and copies to a layout that has the leafs, and sums up what each backend needs. ALLOC_FAILED: no
// memory, or something is larger than the largest buffer; ABORTED: the thread's poll gave up.
enum ggml_status gb_sched_lay_out(struct ggml_backend_sched * s, struct gb_sched_plan * p);
void gb_sched_free_layout(struct gb_sched_layout * layout);
// items.c
// The bytes that a tensor takes on a backend, at least 1: an empty tensor has an address, too.
size_t gb_sched_alloc_size(const struct ggml_backend_sched * s, int backend, struct ggml_tensor * t);
// The chunk of the item gets at least as large as the item needs; false: no memory.
bool gb_sched_need_chunk(struct gb_sched_layout * layout, const struct gb_item * item, bool leafs, size_t alignment);
// The item of a storage id; NULL: it does not lie in an arena.
const struct gb_item * gb_sched_arena_item(const struct gb_sched_plan * p, int64_t id);

// validator.c: called with each plan that was made. FAILED: the plan is wrong, and the message names the tensors.
enum ggml_status gb_sched_validate_layout(const struct ggml_backend_sched * s, const struct gb_sched_plan * p);

// template.c
// The two plans do the same, whatever the sizes.
bool gb_sched_is_like(const struct gb_sched_plan * p, const struct gb_sched_plan * tmpl);
// A plan whose offsets this one may be able to take, if its program becomes the same: known before the program is made.
// NULL: none.
const struct gb_sched_plan * gb_sched_find_candidate(const struct ggml_backend_sched * s,
    const struct gb_sched_plan * p);
// Places of the alias groups, with their offsets in the template; size_of: bytes, per storage id. False: they do not
// fit, or memory is out.
bool gb_sched_take_offsets(const struct gb_sched_plan * tmpl, const struct gb_liveness * live, const size_t * size_of,
    struct gb_item * at);

#endif // GB_SCHED_LAYOUT_LAYOUT_H
