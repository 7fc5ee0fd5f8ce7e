// results.h - which of a scheduler's results are still in memory, and in which buffers. The Python extension asks before
// an array looks into memory.
//
// A root is a tensor that is no view. The caller uses the scheduler, so that no plan is made meanwhile; only
// gb_sched_hold_for_readers may be called at any time. Each group of functions names the file that defines it.
#ifndef GB_SCHED_RESULTS_H
#define GB_SCHED_RESULTS_H

#include "ggml-backend.h"

enum { GB_SCHED_PLANS_MAX = 16 }; // plans that a scheduler keeps

// memory/location.c
// A kept plan vouches for the content of a leaf in its store; the latest plan's arena still holds the result.
bool gb_sched_leaf_is_bound(const struct ggml_backend_sched * s, const struct ggml_tensor * root);
bool gb_sched_result_is_alive(const struct ggml_backend_sched * s, const struct ggml_tensor * root);

// results.c
// True if the root lies where the current plan, or the plan of its leaf, has placed it.
bool gb_sched_has_placed(const struct ggml_backend_sched * s, const struct ggml_tensor * root);

enum gb_content_state {
    GB_CONTENT_GONE, // gb_sched_has_placed says no: the memory serves another graph, or was reset
    GB_CONTENT_STAYS, // it lies in memory that no other tensor of the graph gets
    GB_CONTENT_NOT_COMPUTED, // a later node than `node` computes it
    GB_CONTENT_OVERWRITTEN, // its memory was given to another tensor
    GB_CONTENT_NOT_STORED, // a fused step computes it and does not store it
    GB_CONTENT_VALID, // it is in the arena
};

// Is the content of a root in memory, after a run (node: NULL), or during one, when `node` was just computed? Sets *by
// for GB_CONTENT_OVERWRITTEN: the name of the tensor that has the memory, "" for a copy without a name.
enum gb_content_state gb_content_state(const struct ggml_backend_sched * s, const struct ggml_tensor * root,
    const struct ggml_tensor * node, const char ** by);

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
