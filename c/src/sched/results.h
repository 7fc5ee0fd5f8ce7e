// results.h - what of a scheduler's results is still there, in which buffers: what the Python extension asks before an
// array looks into memory.
//
// A root is a tensor that is no view. All are asked by who uses the scheduler, so that no plan is made meanwhile, but
// for gb_sched_hold_for_readers. Each group is named after the file that has it; rooms use those of rooms above them.
#ifndef GB_SCHED_RESULTS_H
#define GB_SCHED_RESULTS_H

#include "ggml-backend.h"

enum { GB_SCHED_PLANS_MAX = 16 }; // plans that a scheduler keeps

// memory/location.c
// A kept plan vouches for the content of a leaf in its store; the latest plan's arena still holds the result.
bool gb_sched_leaf_is_bound(const struct ggml_backend_sched * s, const struct ggml_tensor * root);
bool gb_sched_result_is_alive(const struct ggml_backend_sched * s, const struct ggml_tensor * root);

// results.c
// Is its memory as the current plan, or the plan of its leaf, gave it?
bool gb_sched_has_placed(const struct ggml_backend_sched * s, const struct ggml_tensor * root);

// Does a node of the current plan compute it, into memory of the arena, which other tensors may be given before the run
// ends?
bool gb_sched_is_in_arena(const struct ggml_backend_sched * s, const struct ggml_tensor * root);

// Of a root in the arena: does the current plan keep its memory to the end of the run?
bool gb_sched_keeps(const struct ggml_backend_sched * s, const struct ggml_tensor * root);

// Of a root in the arena, while the graph runs and `node` was just computed: was it computed before, or by that node?
bool gb_sched_is_computed_by(const struct ggml_backend_sched * s, const struct ggml_tensor * root,
    const struct ggml_tensor * node);

// Of a root in the arena: the name of a tensor that was given memory of it afterwards, until `node` was computed (NULL:
// until the end of the run); "" for a copy without a name; NULL: nobody was.
const char * gb_sched_overwritten_by(const struct ggml_backend_sched * s, const struct ggml_tensor * root,
    const struct ggml_tensor * node);

// memory/memory.c
// While set, no memory of the scheduler is given back before the scheduler is freed: arrays look into it.
void gb_sched_hold(struct ggml_backend_sched * s, bool hold);

// results.c
// The same from now on, without using the scheduler: what is retired meanwhile may or may not stay.
void gb_sched_hold_for_readers(struct ggml_backend_sched * s);

// The scheduler's buffer number i, in the order in which they were made; NULL: it has no so many.
ggml_backend_buffer_t gb_sched_buffer_at(const struct ggml_backend_sched * s, size_t i);
// Plans so far: made, for a graph of any size, and of those that were made before, given memory again.
uint64_t gb_sched_n_plans_made(const struct ggml_backend_sched * s);
uint64_t gb_sched_n_plans_bound(const struct ggml_backend_sched * s);
const char * gb_sched_device_name(const struct ggml_backend_sched * s, int i); // no two devices have the same

#endif // GB_SCHED_RESULTS_H
