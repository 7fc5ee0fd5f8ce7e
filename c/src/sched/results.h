// results.h - which results of a scheduler are still valid, and in which buffers. The Python
// extension asks before it creates a view of memory.
//
// A root is a tensor that is not a view. Callers hold the scheduler, so no plan is made meanwhile;
// gb_sched_hold_for_readers needs no lock.
#ifndef GB_SCHED_RESULTS_H
#define GB_SCHED_RESULTS_H

#include "ggml-backend.h"

enum { GB_SCHED_PLANS_MAX = 16 }; // plans that a scheduler keeps

// memory/location.c
// True if a kept plan is bound to the leaf's store, so the content is valid.
bool gb_sched_leaf_is_bound(const struct ggml_backend_sched * s, const struct ggml_tensor * root);
bool gb_sched_result_is_alive(const struct ggml_backend_sched * s, const struct ggml_tensor * root);

// results.c
// True if the memory of the root is what the current plan, or the plan of its leaf, assigned.
bool gb_sched_has_placed(const struct ggml_backend_sched * s, const struct ggml_tensor * root);

// True if a node of the current plan computes the root into an arena. Other tensors may reuse that
// memory before the run ends.
bool gb_sched_is_in_arena(const struct ggml_backend_sched * s, const struct ggml_tensor * root);

// For a root in the arena: true if the current plan keeps its memory to the end of the run.
bool gb_sched_keeps(const struct ggml_backend_sched * s, const struct ggml_tensor * root);

// For a root in the arena, during a run after `node`: true if `node` or an earlier node computed
// it.
bool gb_sched_is_computed_by(const struct ggml_backend_sched * s, const struct ggml_tensor * root,
    const struct ggml_tensor * node);

// For a root in the arena: the name of a tensor that reused its memory before `node` was computed
// (NULL: before the end of the run). "" for a copy without a name; NULL if no tensor did.
const char * gb_sched_overwritten_by(const struct ggml_backend_sched * s, const struct ggml_tensor * root,
    const struct ggml_tensor * node);

// memory/memory.c
// While set, the scheduler frees no memory before it is freed itself: NumPy views may refer to it.
void gb_sched_hold(struct ggml_backend_sched * s, bool hold);

// results.c
// Sets the same flag without a lock on the scheduler. Memory that is retired at the same time may
// be freed or not.
void gb_sched_hold_for_readers(struct ggml_backend_sched * s);

// Buffer number i of the scheduler, in the order of creation; NULL: i is too large.
ggml_backend_buffer_t gb_sched_buffer_at(const struct ggml_backend_sched * s, size_t i);
// Number of plans made, and of existing plans that were bound again.
uint64_t gb_sched_n_plans_made(const struct ggml_backend_sched * s);
uint64_t gb_sched_n_plans_bound(const struct ggml_backend_sched * s);
const char * gb_sched_device_name(const struct ggml_backend_sched * s, int i); // names are unique within a scheduler

#endif // GB_SCHED_RESULTS_H
