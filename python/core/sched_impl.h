// sched_impl.h - the struct of schedulers, for scheds.c, pending.c, content.c and the table of kinds in objects.c.
#ifndef GBPY_SCHED_IMPL_H
#define GBPY_SCHED_IMPL_H

#include "locks.h"

struct gbpy_pending_run; // pending.c

struct gbpy_choice { // the user's choice of a backend for a node
    struct ggml_tensor * node;
    struct gbpy_context * context; // weak; without it the address could belong to another tensor
};

// Only the owner of the scheduler's lock writes these fields. "Under the mutex": such a field is also read by others.
struct gbpy_sched {
    struct gbpy_memory memory;
    struct gbpy_request * members; // owned; write locks for itself and its backends; the backends are in `needs`
    int n_members;
    size_t n_handles; // the scheduler's buffers that this object owns
    GB_VEC(struct gbpy_choice) choices;
    struct gbpy_object * profile; // strong; where its computations are recorded; NULL: nowhere

    // the planned graph; under the mutex
    struct gbpy_graph * graph;        // strong; NULL: none
    gbpy_requests owners;             // strong; locks for the memory of other owners that the graph uses
    int n_nodes;                      // of the graph when it was planned
    long long epoch;                  // of gbpy_epoch_now when it was planned
    bool dirty;                       // it must be planned again
    bool dirty_choices;               // the user has chosen backends for nodes since
    long long about;                  // serial number of the graph that the plan belongs to; 0: none
    bool inputs_are_set;              // all inputs that were placed here
    bool running;                     // in gbpy_sched_compute
    const struct ggml_tensor * shown; // the result that an eval callback reads; NULL: none
    bool ran;                         // its results are from a complete run ...
    long long version;                // ... that began with this version of the inputs
    bool replaced;                    // it was planned for another graph after a run, so the results are gone
    int n_copies;
    bool keep_all;

    // pending runs (pending.c)
    bool has_pending_runs;            // under the mutex
    struct gbpy_graph * pending_graph; // strong
    gbpy_requests pending_locks;      // strong; all locks that the runs hold
    struct gbpy_pending_run * runs;   // owned; the oldest first
    struct gbpy_sched * next_pending; // under the mutex
    int kept_status;                  // of a failed run without a Pending, which other calls have waited for
    char kept_message[512];

    uint64_t n_reported; // plans made, at the last report
};

static inline int gbpy_n_backends(const struct gbpy_sched * s) { return s->n_members - 1; }
static inline struct gbpy_backend * gbpy_backend_at(const struct gbpy_sched * s, int i) {
    return (struct gbpy_backend *) s->members[1 + i].object;
}

struct gbpy_sched * gbpy_sched_of(const struct gbpy_handle * handle, const char * what); // NULL and reported: empty
int gbpy_lock_sched(struct gbpy_locks * locks, struct gbpy_sched * s, const char * what);

// The caller has locked the scheduler:
bool gbpy_is_planned(const struct gbpy_sched * s, const struct gbpy_graph * graph);
// Locks all that computing the graph takes, and plans it if necessary. `waits`: finishes pending runs first.
int gbpy_lock_planned(struct gbpy_locks * locks, struct gbpy_sched * s, struct gbpy_graph * graph, bool waits,
    bool computes, const char * what, int * how);
bool gbpy_own_new(struct gbpy_sched * s); // owns the buffers that the scheduler has made since; false: out of memory

// pending.c:
bool gbpy_works_for(const struct gbpy_sched * s); // this thread works for one of its pending runs
// The caller has locked the scheduler and its backends:
int gbpy_finish_runs(struct gbpy_sched * s); // waits for all pending runs
// The same before another run: runs that were stopped are no failure.
int gbpy_finish_earlier_runs(struct gbpy_sched * s);

#endif // GBPY_SCHED_IMPL_H
