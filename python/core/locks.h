// locks.h - which computations and threads use which objects now.
//
// A call that computes, reads or writes enters all objects that it uses at once, for reading (with others) or writing
// (alone), or none of them: so two calls cannot wait for each other, and there is no order of locks to keep. A use
// belongs to its *user*, a computation (gb_run, base/current.h) or a thread, and ends with gbpy_unlock, which is also
// the destructor of Python's guards. A user that already uses something and asks for more (a callback of a computation)
// might wait for another user that waits for it: that is found before it waits, and is an error. Signals of Python's
// main thread interrupt waiting.
//
//   What a user may touch: a tensor's data, buffer and extra are written by the user that writes its context (that is
//   placing), and read under the lock while nobody places, or by a user of the owner of its memory. The content of
//   memory belongs to the users of its owner.
//
// In a forked child the uses of the parent's other threads have ended, and what they were writing is `broken`: an error
// to use, and never freed.
#ifndef GBPY_LOCKS_H
#define GBPY_LOCKS_H

#include "objects.h"
#include "world.h"

// cdef: begin

void gbpy_begin(void); // once, before anything else: the handlers of forks

// A use of objects. Python's guards are made empty, with gbpy_unlock as destructor.
struct gbpy_locks {
    struct gbpy_request * held; // objects that are held, with how; [0, n)
    int n, capacity;
    bool borrowed; // the array is somebody else's
    const void * owner;
    struct gbpy_locks * next;
    struct gbpy_locks * previous;
    bool active;
};

// Takes all n objects, `writing` the first n_written of them and reading the others, or none. INVALID_STATE with a
// message that begins with `what`: one of them is closed, broken, used by the caller itself, or by a user that waits
// for the caller. GBPY_INTERRUPTED: a signal ended the wait. The handles may repeat. `nested`: what the caller uses
// already is no error (callbacks that look at what is being computed). `beside_runs`: does not wait for runs in flight.
int gbpy_lock(struct gbpy_locks * locks, const char * what, struct gbpy_handle ** handles, int n, int n_written,
    bool nested, bool beside_runs);
void gbpy_unlock(struct gbpy_locks * locks); // at any time, any number of times

bool gbpy_is_busy(const struct gbpy_handle * handle); // somebody writes it now
bool gbpy_is_mine(const struct gbpy_handle * handle); // the caller writes it now

// cdef: end

// Under the lock, one list after the other: empties a list, to which gbpy_add_request adds an object, or the writing to
// what stands there. False: no memory.
void gbpy_begin_requests(gbpy_requests * requests);
bool gbpy_add_request(gbpy_requests * requests, struct gbpy_object * object, bool write);
// Under the lock: adds all that giving tensors of a context memory takes: the context, and those closed owners of
// memory in which somebody still computes with its tensors, since these lose it. False: no memory.
bool gbpy_add_placement(gbpy_requests * requests, struct gbpy_context * context);

// As gbpy_lock, for C: `wants` may repeat objects. `use` is empty, or on the stack with capacity for all.
int gbpy_lock_all(struct gbpy_locks * locks, const char * what, const struct gbpy_request * requests, int n,
    bool nested);
// The same, and enters the contexts, to give their tensors memory.
int gbpy_lock_to_place(struct gbpy_locks * locks, const char * what, const struct gbpy_request * requests, int n,
    struct gbpy_context * const * contexts, int n_contexts);

bool gbpy_reserve_locks(struct gbpy_locks * locks, int n); // outside of the lock, or of few bytes; false: no memory
// Under the lock, with capacity in `use`: takes all n, or gives the lock up to wait for what stands in the way; then
// use->active is false and the caller looks again, since anything may have changed. Objects do not repeat. `staged`:
// the input that is to be set, or NULL.
int gbpy_take_or_wait(struct gbpy_locks * locks, const char * what, const struct gbpy_request * requests, int n,
    bool nested, const struct ggml_tensor * staged);
// Under the lock, which it may give up: waits until nobody else places tensors of these contexts.
int gbpy_wait_for_placement(struct gbpy_context * const * contexts, int n, const char * what);
// Under the lock: takes them if nothing at all stands in the way.
bool gbpy_try_take(struct gbpy_locks * locks, const struct gbpy_request * requests, int n);

bool gbpy_is_locked(const struct gbpy_object * object); // under the lock: by anybody, for anything
// As gbpy_unlock, after last(object, number), in one critical section.
void gbpy_unlock_after(struct gbpy_locks * locks, void (*last)(struct gbpy_graph * graph, long long number),
    struct gbpy_graph * graph, long long number);
void gbpy_unlock_one(struct gbpy_locks * locks, struct gbpy_object * object); // before the rest of the use ends
bool gbpy_holds(const struct gbpy_locks * locks, const struct gbpy_object * object); // under the lock

// Under the lock: is any run in flight (pending.c)? Such runs are users, too.
bool gbpy_any_pending(void);
// Does this thread work for a run in flight, whose scheduler, or one of its backends, the use has? The user that has it
// waits for that run, or will.
bool gbpy_waits_for_my_run(const struct gbpy_locks * locks);
void gbpy_break_pending_runs(
    void); // in a forked child: runs go on in the parent only, and their schedulers are broken here
// True: a run in flight conflicts, and the lock was given up to wait for it (*status: SUCCESS, or why waiting failed).
// An input that was `staged` may be set meanwhile.
bool gbpy_wait_for_conflicting_run(const struct gbpy_request * requests, int n, const struct ggml_tensor * staged,
    int * status);

#endif // GBPY_LOCKS_H
