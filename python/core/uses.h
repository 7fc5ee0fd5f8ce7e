// uses.h - who uses what now.
//
// A call that computes, reads or writes enters all objects that it uses at once, for reading (with others) or writing
// (alone), or none of them: so two calls cannot wait for each other, and there is no order of locks to keep. Who
// already uses something and comes back for more (a callback of a computation) might wait for somebody who waits for
// him: that is found before he waits, and is an error. A use belongs to a computation (gb_run, base/current.h) or to a
// thread, and ends with gbpy_leave, which is also the destructor of Python's guards. Waiting is interrupted by signals
// of Python's main thread.
//
//   who may touch what: a tensor's data, buffer and extra are written by who uses its context for writing (placing),
//   and read under the lock while nobody does that, or by who uses the owner of its memory. The content of memory: who
//   uses its owner.
//
// In a forked child the uses of the parent's other threads have ended, and what they were writing is `broken`: an error
// for whoever uses it, and never freed.
#ifndef GBPY_USES_H
#define GBPY_USES_H

#include "objects.h"
#include "world.h"

// cdef: begin

void gbpy_begin(void); // once, before anything else: the handlers of forks

// A use of objects. Python's guards are made empty, with gbpy_leave as destructor.
struct gbpy_use {
    struct gbpy_want * wants; // objects that are held, with how; [0, n)
    int                n, capacity;
    bool               borrowed; // the array is somebody else's
    const void *       who;
    struct gbpy_use *  next;
    struct gbpy_use *  previous;
    bool               active;
};

// Takes all n objects, `writing` the first n_written of them and reading the others, or none. INVALID_STATE with a
// message that begins with `what`: one is closed, broken, used by who asks, or by somebody who waits for him.
// GBPY_INTERRUPTED. The handles may repeat. `nested`: what who asks uses already is no error (callbacks that look at
// what is being computed). `beside_runs`: runs on their way go on.
int  gbpy_enter(struct gbpy_use * use, const char * what, struct gbpy_handle ** handles, int n, int n_written,
    bool nested, bool beside_runs);
void gbpy_leave(struct gbpy_use * use); // at any time, any number of times

bool gbpy_is_busy(const struct gbpy_handle * handle); // somebody uses it now, to write
bool gbpy_is_mine(const struct gbpy_handle * handle); // and that is who asks

// cdef: end

// Under the lock, one list after the other: empties a list, to which gbpy_add_want adds an object, or the writing to
// what stands there. False: no memory.
void gbpy_begin_wants(gbpy_wants * wants);
bool gbpy_add_want(gbpy_wants * wants, struct gbpy_object * object, bool write);
// What giving tensors of a context a place takes: the context, and closed owners of memory in which somebody still
// computes with its tensors: those lose their place. Under the lock. False: no memory.
bool gbpy_add_place(gbpy_wants * wants, struct gbpy_object * context);

// As gbpy_enter, for C: `wants` may repeat objects. `use` is empty, or on the stack with room.
int gbpy_enter_wants(struct gbpy_use * use, const char * what, const struct gbpy_want * wants, int n, bool nested);
// The same, and the contexts, to give their tensors places.
int gbpy_enter_to_place(struct gbpy_use * use, const char * what, const struct gbpy_want * wants, int n,
    struct gbpy_object * const * contexts, int n_contexts);

bool gbpy_reserve_use(struct gbpy_use * use, int n); // outside of the lock, or of few bytes; false: no memory
// Under the lock, with room in `use`: takes all n, or gives the lock up to wait for what stands in the way; then
// use->active is false and who calls looks again, since anything may have changed. Objects do not repeat. `staged`: the
// input that is to be set, or NULL.
int gbpy_take_or_wait(struct gbpy_use * use, const char * what, const struct gbpy_want * wants, int n, bool nested,
    const struct ggml_tensor * staged);
// Under the lock, which may be given up: waits until nobody else places tensors of these contexts.
int gbpy_await_placing(struct gbpy_object * const * contexts, int n, const char * what);
// Under the lock: takes them if nothing at all stands in the way.
bool gbpy_try_take(struct gbpy_use * use, const struct gbpy_want * wants, int n);

bool gbpy_is_used(const struct gbpy_object * object); // under the lock: by anybody, for anything
// As gbpy_leave, after last(object, number), in one critical section.
void gbpy_leave_after(struct gbpy_use * use, void (*last)(struct gbpy_object * object, long long number),
    struct gbpy_object * object, long long number);
void gbpy_let_go(struct gbpy_use * use, struct gbpy_object * object);            // before the rest of the use ends
bool gbpy_holds(const struct gbpy_use * use, const struct gbpy_object * object); // under the lock

// Runs on their way use things, too (flights.c). Under the lock.
bool gbpy_any_flying(void);
// Does this thread work for a run on its way, whose scheduler or one of its backends the use has? Who has it waits for
// that run, or will.
bool gbpy_waits_for_my_run(const struct gbpy_use * use);
void gbpy_lose_flights(void); // in a forked child: they go on in the parent only, and their schedulers are broken here
// True: one conflicts, and the lock was given up to wait for it (*status: SUCCESS, or why not). An input that was
// `staged` may be set meanwhile.
bool gbpy_land_conflicts(const struct gbpy_want * wants, int n, const struct ggml_tensor * staged, int * status);

#endif // GBPY_USES_H
