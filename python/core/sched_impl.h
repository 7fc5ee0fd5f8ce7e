// sched_impl.h - a scheduler's own fields. For scheds.c, pending.c and content.c.
#ifndef GBPY_SCHED_IMPL_H
#define GBPY_SCHED_IMPL_H

#include "locks.h"

struct gbpy_pending_run; // a run in flight: pending.c

struct gbpy_choice { // of the user: a backend for a node
    struct ggml_tensor * node;
    struct gbpy_object * context; // a weak reference: without it the address may serve another tensor
};

// Written by the user of the scheduler, but for what is marked.
struct gbpy_sched {
    struct gbpy_object * object;
    struct gbpy_request * members; // itself and its backends, all to write; part of the object's needs
    int n_members;
    size_t n_handles; // of the scheduler's buffers that are owned by the object
    GB_VEC(struct gbpy_choice) choices;

    // the planned graph; under the lock, too
    struct gbpy_object * graph; // strong; NULL: none
    gbpy_requests owners;          // of memory of others that it uses; strong
    int n_nodes;
    long long epoch; // as of which that is so
    bool dirty;
    bool dirty_choices;               // the user chose backends for nodes since
    long long about;                  // serial number of the graph that questions are about; 0: none
    bool inputs_are_set;              // all that were placed here
    bool running;                     // in gbpy_sched_compute
    const struct ggml_tensor * shown; // to an eval callback: computed just now; NULL: none
    bool ran;                         // what its results hold is from a complete run ...
    bool replaced;                    // it was planned again since a run; its results are gone
    long long version;                // ... that began with this version of the inputs
    int n_copies;
    bool keep_all;

    // runs in flight: pending.c
    bool has_pending_runs; // under the mutex
    struct gbpy_object * pending_graph; // strong
    gbpy_requests pending_locks;           // all that they use; strong
    struct gbpy_pending_run * runs;
    int kept_status; // of a run that nobody holds, which other calls have waited for
    char kept_message[512];
    struct gbpy_sched * next_pending; // under the lock

    uint64_t n_reported; // plans, of those that were made
};

static inline int gbpy_n_backends(const struct gbpy_sched * s) { return s->n_members - 1; }
static inline struct gbpy_object * gbpy_backend_at(const struct gbpy_sched * s, int i) {
    return s->members[1 + i].object;
}

struct gbpy_sched * gbpy_sched_of(const struct gbpy_handle * handle, const char * what); // NULL and reported: empty
int gbpy_lock_sched(struct gbpy_locks * locks, struct gbpy_sched * s, const char * what);

// By the user of the scheduler:
bool gbpy_is_planned(const struct gbpy_sched * s, const struct gbpy_object * graph);
// Enters all that computing the graph takes, and plans if that is not done. `lands`: waits for runs in flight
// first.
int gbpy_lock_planned(struct gbpy_locks * locks, struct gbpy_sched * s, struct gbpy_object * graph, bool lands,
    bool computes, const char * what, int * how);
bool gbpy_own_new(struct gbpy_sched * s); // the buffers that the scheduler has made meanwhile; false: no memory

// pending.c:
bool gbpy_works_for(const struct gbpy_sched * s); // does this thread work for a run in flight of it?
// By the user of the scheduler and its backends:
int gbpy_finish_runs(struct gbpy_sched * s); // waits for all runs
// before another run: reports that earlier ones were stopped
int gbpy_finish_earlier_runs(struct gbpy_sched * s);

#endif // GBPY_SCHED_IMPL_H
