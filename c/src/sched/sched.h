// sched.h - the scheduler itself: its backends, settings, memory handles and kept plans.
//
// A plan is in plan.h. Each room has a header of its own, which says what the room makes:
//
//   input/    a graph's tensors as ids, and what memory each has already
//   cost/     the cheapest placement, by prices (pure)
//   assign/   which backend runs each node, and why
//   program/  what is done: splits, copies, shadows, steps
//   layout/   where everything lies: offsets
//   memory/   the buffers behind that, and what binds a plan to them
//   run/      waits, running, validation, counters, trace
//   report/   what a plan decided, in words and numbers
//
// Here, above the rooms, plans are made (make.c), found again (match.c), kept (keep.c) and readied for a run (plan.c).
// Rooms use this header; they call no function of these files.
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

// The usage of the scheduler's own buffers, beyond the public values.
#define GB_USAGE_SCHED ((enum ggml_backend_buffer_usage) 0x5343)

struct gb_costs;
struct gb_replica;
struct gb_sched_binding;
struct gb_sched_plan;
struct gb_trace;
struct gb_validator;

enum gb_mem_kind { GB_MEM_ARENA, GB_MEM_LEAFS, GB_MEM_INPUTS, GB_MEM_REPLICAS };

// One buffer of the scheduler. The object lives as long as the scheduler.
struct gb_mem {
    ggml_backend_buffer_t buffer; // owned
    char * base;
    size_t size; // bytes; 0 when retired
    int backend;
    enum gb_mem_kind kind;
    int n_refs; // the arena slot, and each plan bound to it
    unsigned resets_before; // of leaf stores: resets of the scheduler before it was last handed to a plan
};

typedef GB_VEC(struct gb_mem *) gb_mem_list;

// What the scheduler keeps of each backend.
struct gb_sched_device {
    ggml_backend_t backend;          // borrowed
    ggml_backend_buffer_type_t buft; // borrowed
    size_t alignment, max_size;
    size_t leaf_unit;                // leafs placed there begin at multiples of it
    gb_mem_list arena;               // chunk i; refs held. More than one only when max_size demands it
    struct gb_mem * inputs;          // behind `tallocr`; NULL before its first use
    ggml_tallocr_t measure, tallocr; // owned
    size_t inputs_need;              // bytes
    struct gb_backend_watch watch;
    struct ggml_backend_sched * sched;
    ggml_backend_t freed;            // what `backend` was before its owner freed it; only compared; NULL: it lives
    struct ggml_backend placeholder; // what `backend` is after its owner freed it
    char name[64];                   // for users: the backend's, with a number if one before it is called the same
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
    GB_VEC(struct gb_mem *) mems;         // all handles ever made, owned
    struct gb_ptrmap mem_of;              // buffer handle -> index in mems
    GB_VEC(struct gb_replica *) replicas; // owned
    unsigned n_replicated_freed;          // buffers that were gone when replicas were looked through
    // Memory that is retired stays until this is lifted, see gb_sched_hold. Other threads set it meanwhile: read and
    // written with GB_READ_RELAXED and GB_WRITE_RELAXED alone.
    bool hold;
    bool measured; // init_measure was called
    unsigned n_resets;

    // plans (keep.c)
    GB_VEC(struct gb_sched_plan *) plans; // owned, latest used first
    GB_VEC(struct gb_sched_binding *) bindings; // borrowed; those of `plans`, in the same order
    struct gb_sched_binding * current; // whose results the arenas hold; NULL: none
    struct gb_sched_plan * last; // the plan that queries are about; NULL: none

    // runs (run/)
    bool running; // work may be queued
    struct gb_sched_binding * pending; // whose run was issued last and not waited for; NULL: not known
    // The status of a failure, or of giving up, that another call was told: earlier runs may be incomplete, and the
    // next wait says so.
    enum ggml_status lost;
    unsigned fork_generation; // gb_fork_generation() in which the last run was issued
    uint32_t user_thread; // gb_thread_number() of who is inside of a call; 0: nobody
    unsigned user_fork_generation; // in which it came
    bool in_callback;
    struct ggml_backend_sched_stats stats;
    struct gb_trace * trace; // owned; NULL: never asked for
    struct gb_validator * validator; // owned; NULL: off

    GB_VEC(char) text; // of explain
};

// The device is, or was before its owner freed it, this backend.
static inline bool gb_sched_is(const struct gb_sched_device * d, ggml_backend_t backend) {
    return backend && (d->backend == backend || d->freed == backend);
}

// The index of a backend; -1 and reported, in the name of `func`, if it is not one of the scheduler's. What is none of
// them may have been freed long ago: only its address is looked at.
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

// The backend has a queue: its calls return before the work is done.
static inline bool gb_sched_has_queue(const struct ggml_backend_sched * s, int backend) {
    return s->devices[backend].backend->iface.synchronize != NULL;
}

// The backend that the user chose for a tensor, -1: none.
static inline int gb_sched_chosen_for(const struct ggml_backend_sched * s, const struct ggml_tensor * t) {
    const int64_t backend = gb_ptrmap_get(&s->chosen, t);
    return backend == GB_PTRMAP_ABSENT ? -1 : (int) backend;
}

// The object behind a handle of the scheduler; NULL: the buffer is not one of its own.
static inline struct gb_mem * gb_sched_mem_of(const struct ggml_backend_sched * s, ggml_backend_buffer_t buffer) {
    const int64_t i = buffer ? gb_ptrmap_get(&s->mem_of, buffer) : GB_PTRMAP_ABSENT;
    return i == GB_PTRMAP_ABSENT ? NULL : s->mems.data[i];
}

// lifetime.c
// `n` backends by priority, borrowed; `bufts`: NULL, or a buffer type for each, NULL where its default serves. NULL and
// reported: no memory, or a backend or buffer type that cannot be used. Free waits for what is queued and leaves
// tensors as they are.
struct ggml_backend_sched * gb_sched_new(ggml_backend_t * backends, ggml_backend_buffer_type_t * bufts, int n);
void gb_sched_free(struct ggml_backend_sched * s);
// Forgets everything about tensors without touching any: their contexts may be gone. The status is that of the run that
// was on its way; the scheduler is reset in any case.
enum ggml_status gb_sched_reset(struct ggml_backend_sched * s);

// freed.c: notices backends that are freed before the scheduler
void gb_sched_watch(struct ggml_backend_sched * s);
void gb_sched_unwatch(struct ggml_backend_sched * s);

#endif // GB_SCHED_SCHED_H
