// results.h - which results of a scheduler are still valid, and in which buffers. The Python
// extension calls these functions before it creates a view of memory.
//
// A root is a tensor that is not a view. Callers hold a lock on the scheduler, so no plan is made
// during the call. Only gb_sched_hold_for_readers needs no lock.
#ifndef GB_SCHED_RESULTS_H
#define GB_SCHED_RESULTS_H

#include "ggml-backend.h"

enum { GB_SCHED_PLANS_MAX = 16 }; // plans that a scheduler keeps

// memory/location.c
// True if a kept plan is bound to the leaf's store, so the content is valid.
bool gb_sched_leaf_is_bound(const struct ggml_backend_sched * s, const struct ggml_tensor * root);
bool gb_sched_result_is_alive(const struct ggml_backend_sched * s, const struct ggml_tensor * root);

// results.c
// True if the root is at the place that the current plan, or the plan of its leaf, gave it.
bool gb_sched_has_placed(const struct ggml_backend_sched * s, const struct ggml_tensor * root);

enum gb_content_state {
    GB_CONTENT_GONE, // gb_sched_has_placed is false: another graph uses the memory, or it was reset
    GB_CONTENT_STAYS, // it is in memory that no other tensor of the graph gets
    GB_CONTENT_NOT_COMPUTED, // a later node than `node` computes it
    GB_CONTENT_OVERWRITTEN, // its memory was given to another tensor
    GB_CONTENT_NOT_STORED, // a fused step computes it and does not store it
    GB_CONTENT_VALID, // it is in the arena
};

// The state of a root's content, after a run (node: NULL), or during a run, when `node` was just
// computed. For GB_CONTENT_OVERWRITTEN, *by is the name of the tensor that has the memory, "" for a
// copy without a name.
enum gb_content_state gb_content_state(const struct ggml_backend_sched * s, const struct ggml_tensor * root,
    const struct ggml_tensor * node, const char ** by);

// memory/memory.c
// While set, the scheduler frees no memory, because NumPy views may refer to it. Freeing the
// scheduler frees all.
void gb_sched_hold(struct ggml_backend_sched * s, bool hold);

// results.c
// Sets the same flag without a lock on the scheduler. Memory that is retired at the same time may
// be freed or not.
void gb_sched_hold_for_readers(struct ggml_backend_sched * s);

// Buffer number i of the scheduler, in the order of creation; NULL: i is too large.
ggml_backend_buffer_t gb_sched_buffer_at(const struct ggml_backend_sched * s, size_t i);
// Number of plans made, and number of kept plans that were bound again.
uint64_t gb_sched_n_plans_made(const struct ggml_backend_sched * s);
uint64_t gb_sched_n_plans_bound(const struct ggml_backend_sched * s);
const char * gb_sched_device_name(const struct ggml_backend_sched * s, int i); // names are unique within a scheduler

#endif // GB_SCHED_RESULTS_H
