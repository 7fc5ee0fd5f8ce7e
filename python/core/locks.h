// locks.h - read and write locks on objects.
//
// A call locks all objects that it needs in one step, or none. So there is no lock order, and two calls cannot
// deadlock. The owner of a lock is a thread or a run (gb_run, base/current.h). gbpy_unlock releases it on every path;
// it is also the destructor of the guards that Python holds.
//
// An owner that asks for more locks (a callback inside a run) could wait for an owner that waits for it. The wait
// graph is searched before each wait, and a cycle is an error. Signals interrupt waits of the main thread.
//
// Giving a tensor memory ("placing" it) takes a write lock on its context. A lock on the owner of a tensor's memory
// keeps the tensor from being placed again. So a thread with that lock may read the tensor's fields data, buffer and
// extra, and the content of the memory. The fields may also be read under the mutex while the context is not locked
// for writing.
//
// After a fork, locks of the parent's other threads are gone. Objects that they were writing are marked broken: using
// one is an error, and its memory is never freed.
#ifndef GBPY_LOCKS_H
#define GBPY_LOCKS_H

#include "objects.h"
#include "world.h"

// cdef: begin

void gbpy_begin(void); // registers the fork handlers; call it once, before anything else

// Locks that one owner took in one step. Python makes the struct empty, with gbpy_unlock as its destructor.
struct gbpy_locks {
    struct gbpy_request * held; // n of them
    int n, capacity;
    bool borrowed; // the array `held` is not owned
    const void * owner;
    struct gbpy_locks * next;
    struct gbpy_locks * previous;
    bool active;
};

// Locks all n objects, or none: the first n_written for writing, the others for reading. The handles may repeat.
// `nested`: the caller may have locked them already (callbacks that read results). `beside_runs`: does
// not wait for pending runs. INVALID_STATE, in a message that begins with `what`: an object is closed, broken, locked
// by the caller itself, or by an owner that waits for the caller. GBPY_INTERRUPTED: a signal ended the wait.
int gbpy_lock(struct gbpy_locks * locks, const char * what, struct gbpy_handle ** handles, int n, int n_written,
    bool nested, bool beside_runs);
void gbpy_unlock(struct gbpy_locks * locks); // may be called at any time and repeated

bool gbpy_is_busy(const struct gbpy_handle * handle); // locked for writing
bool gbpy_is_mine(const struct gbpy_handle * handle); // locked for writing by the caller

// cdef: end

// Under the mutex, for one list at a time: empties a list. gbpy_add_request then adds an object, or makes a request
// for the same object a request to write. False: out of memory.
void gbpy_begin_requests(gbpy_requests * requests);
bool gbpy_add_request(gbpy_requests * requests, struct gbpy_object * object, bool write);
// Under the mutex: adds all locks that placing tensors of a context takes. These are the context and those closed
// owners of memory in which its tensors are still computed, because the tensors lose that memory. False: out of
// memory.
bool gbpy_add_placement(gbpy_requests * requests, struct gbpy_context * context);

// As gbpy_lock, for C. The list may repeat objects. `locks` is empty, or on the stack with capacity for all.
int gbpy_lock_all(struct gbpy_locks * locks, const char * what, const struct gbpy_request * requests, int n,
    bool nested);
// The same, and locks the contexts to place their tensors.
int gbpy_lock_to_place(struct gbpy_locks * locks, const char * what, const struct gbpy_request * requests, int n,
    struct gbpy_context * const * contexts, int n_contexts);

bool gbpy_reserve_locks(struct gbpy_locks * locks, int n); // false: out of memory
// Under the mutex, with capacity in `locks`, for objects that do not repeat. Takes all n locks, or waits for a change
// with the mutex released. After a wait, locks->active is false and the caller looks again, because anything may have
// changed. `staged`: the input that will be set, or NULL.
int gbpy_take_or_wait(struct gbpy_locks * locks, const char * what, const struct gbpy_request * requests, int n,
    bool nested, const struct ggml_tensor * staged);
// Under the mutex, which it releases to wait: waits until nobody else places tensors of these contexts.
int gbpy_wait_for_placement(struct gbpy_context * const * contexts, int n, const char * what);
// Under the mutex: takes the locks if it can do so at once.
bool gbpy_try_take(struct gbpy_locks * locks, const struct gbpy_request * requests, int n);

bool gbpy_is_locked(const struct gbpy_object * object); // under the mutex: for reading or writing
// Calls last(graph, number) and unlocks, in one critical section.
void gbpy_unlock_after(struct gbpy_locks * locks, void (*last)(struct gbpy_graph * graph, long long number),
    struct gbpy_graph * graph, long long number);
void gbpy_unlock_one(struct gbpy_locks * locks, struct gbpy_object * object); // before the other locks are released
bool gbpy_holds(const struct gbpy_locks * locks, const struct gbpy_object * object); // under the mutex

// pending.c. Pending runs hold locks, too.
bool gbpy_any_pending(void); // under the mutex
// True if this thread works for a pending run whose scheduler, or one of its backends, `locks` holds. So the owner of
// `locks` waits for that run, or will.
bool gbpy_waits_for_my_run(const struct gbpy_locks * locks);
void gbpy_break_pending_runs(void); // in a forked child: runs go on in the parent only, and their schedulers break
// True if a pending run conflicted. The call then released the mutex and waited for the run; *status says whether
// waiting failed. The input `staged` does not conflict.
bool gbpy_wait_for_conflicting_run(const struct gbpy_request * requests, int n, const struct ggml_tensor * staged,
    int * status);

#endif // GBPY_LOCKS_H
