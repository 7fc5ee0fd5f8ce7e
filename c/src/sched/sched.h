// sched.h - the scheduler itself: its backends, settings, memory handles and kept plans.
//
// plan.h defines a plan. Each folder has a header that defines the part of a plan which it makes:
//
//   input/    the graph's tensors as ids, and the memory that they have already
//   cost/     the cheapest placement, from prices (pure)
//   assign/   the backend that runs each node, and the reason
//   program/  splits, copies, shadows, and the steps in order
//   layout/   offsets of all tensors
//   memory/   buffers, and the binding of a plan to them
//   run/      waits, running, validation, counters, trace
//   report/   descriptions of a plan's decisions
//
// The files beside this header make plans (make.c), match graphs with kept plans (match.c), keep
// plans (keep.c), prepare them for a run (plan.c) and describe them to users (query.c, results.c).
// Folders include this header and types.h, and call no function of these files.
#ifndef GB_SCHED_SCHED_H
#define GB_SCHED_SCHED_H

#include "backend/backend.h"
#include "base/hash.h"
#include "base/vec.h"
#include "ggml-alloc.h"
#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "sched/results.h"
#include "sched/types.h"
#include "tensor/tensor.h"

enum { GB_SCHED_SPARES_MAX = 8 };

// The usage of the scheduler's own buffers, in addition to the public values.
#define GB_USAGE_SCHED ((enum ggml_backend_buffer_usage) 0x5343)

struct gb_costs;
struct gb_replica;
struct gb_sched_binding;
struct gb_sched_plan;
struct gb_trace;
struct gb_validator;

enum gb_mem_kind { GB_MEM_ARENA, GB_MEM_LEAFS, GB_MEM_INPUTS, GB_MEM_REPLICAS };

// A buffer of the scheduler. The struct lives as long as the scheduler.
struct gb_mem {
    ggml_backend_buffer_t buffer; // owned
    char * base;
    size_t size; // bytes; 0 when retired
    int backend;
    enum gb_mem_kind kind;
    int n_refs; // references: of the arena, and of each plan that is bound to it
    unsigned resets_before; // leaf stores: number of resets of the scheduler when a plan last got the store
};

typedef GB_VEC(struct gb_mem *) gb_mem_list;

// The scheduler's data of one backend.
struct gb_sched_device {
    ggml_backend_t backend;          // borrowed
    ggml_backend_buffer_type_t buft; // borrowed
    size_t alignment, max_size;
    size_t leaf_unit; // bytes; leafs start at multiples of it
    gb_mem_list arena; // owned; chunk i, with one reference each. More than one only if max_size requires it
    struct gb_mem * inputs; // memory of `tallocr`; NULL before its first use
    ggml_tallocr_t measure, tallocr; // owned
    size_t inputs_need;              // bytes
    struct gb_backend_watch watch;
    struct ggml_backend_sched * sched;
    ggml_backend_t freed; // the backend's address after its owner freed it, only compared; NULL: not freed
    struct ggml_backend placeholder; // replaces `backend` after its owner freed it
    char name[64]; // for users: the backend's name, with a number if an earlier one has the same name
};

struct ggml_backend_sched {
    int n_backends;
    struct gb_sched_device * devices; // owned

    // settings of the user
    enum gb_assign_policy policy;
    int n_copies;            // of inputs, >= 1
    struct gb_costs * costs; // owned; NULL: none given
    struct gb_ptrmap chosen; // tensor -> backend index that the user chose, -1: none
    ggml_backend_sched_eval_callback callback;
    void * callback_data;

    // memory (memory/)
    GB_VEC(struct gb_mem *) mems; // owned; all handles ever made
    struct gb_ptrmap mem_of;              // buffer handle -> index in mems
    GB_VEC(struct gb_replica *) replicas; // owned
    unsigned n_replicated_freed; // value of gb_replicated_buffers_freed() when replicas were last checked
    // While true, retired memory is not freed; see gb_sched_hold. Other threads set it: use
    // GB_READ_RELAXED and GB_WRITE_RELAXED.
    bool hold;
    bool measured; // init_measure was called
    unsigned n_resets;

    // plans (keep.c)
    int64_t plan_budget_ms; // of plans made from now on; 0: the usual one
    GB_VEC(struct gb_sched_plan *) plans; // owned, latest used first
    GB_VEC(struct gb_sched_binding *) bindings; // borrowed; those of `plans`, in the same order
    struct gb_sched_binding * current; // whose results the arenas hold; NULL: none
    struct gb_sched_plan * last; // the plan that queries are about; NULL: none

    // runs (run/)
    bool running; // backends may have queued work
    struct gb_sched_binding * pending; // whose run was issued last and is not waited for; NULL: unknown
    // The status of a failure or cancellation that another call reported. Earlier runs may be
    // incomplete, and the next wait reports that.
    enum ggml_status earlier_failure;
    unsigned fork_generation; // gb_fork_generation() in which the last run was issued
    uint32_t user_thread; // gb_thread_number() of the thread inside a call; 0: none
    unsigned user_fork_generation; // gb_fork_generation() when it entered
    bool in_callback;
    struct ggml_backend_sched_stats stats;
    struct gb_trace * trace; // owned; NULL: never requested
    struct gb_validator * validator; // owned; NULL: off

    GB_VEC(char) text; // of explain
};

// True if the device is this backend, or was before its owner freed it.
static inline bool gb_sched_is(const struct gb_sched_device * d, ggml_backend_t backend) {
    return backend && (d->backend == backend || d->freed == backend);
}

// The index of a backend. -1 and reported for the function `func` if the scheduler does not have
// it. Only the address is read, because the backend may have been freed.
static inline int gb_sched_index_of(const struct ggml_backend_sched * s, ggml_backend_t backend, const char * func) {
    for (int b = 0; b < s->n_backends; b++) {
        if (gb_sched_is(&s->devices[b], backend)) {
            return b;
        }
    }
    gb_fail(GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'backend' is %s", func,
        backend ? "not a backend of this scheduler" : "NULL");
    return -1;
}

// True if the backend has a queue: its calls return before the work is done.
static inline bool gb_sched_has_queue(const struct ggml_backend_sched * s, int backend) {
    return s->devices[backend].backend->iface.synchronize != NULL;
}

// The backend that the user chose for a tensor; -1: none.
static inline int gb_sched_chosen_for(const struct ggml_backend_sched * s, const struct ggml_tensor * t) {
    const int64_t backend = gb_ptrmap_get(&s->chosen, t);
    return backend == GB_PTRMAP_ABSENT ? -1 : (int) backend;
}

// The struct behind a handle of the scheduler; NULL: another owner's buffer.
static inline struct gb_mem * gb_sched_mem_of(const struct ggml_backend_sched * s, ggml_backend_buffer_t buffer) {
    const int64_t i = buffer ? gb_ptrmap_get(&s->mem_of, buffer) : GB_PTRMAP_ABSENT;
    return i == GB_PTRMAP_ABSENT ? NULL : s->mems.data[i];
}

// lifetime.c
// `backends`: n backends by priority, borrowed. `bufts`: NULL, or a buffer type for each; NULL
// entries mean the default. Returns NULL, and reports, if there is no memory or a backend or buffer
// type cannot be used. gb_sched_free waits for queued work and leaves tensors as they are.
struct ggml_backend_sched * gb_sched_new(ggml_backend_t * backends, ggml_backend_buffer_type_t * bufts, int n);
void gb_sched_free(struct ggml_backend_sched * s);
// Removes all tensors from the scheduler without touching them, because their contexts may be
// freed. Always resets the scheduler. Returns the status of the pending run.
enum ggml_status gb_sched_reset(struct ggml_backend_sched * s);

// freed.c: reacts to backends that are freed before the scheduler
void gb_sched_watch(struct ggml_backend_sched * s);
void gb_sched_unwatch(struct ggml_backend_sched * s);

#endif // GB_SCHED_SCHED_H
