// world.h - the one lock, the calling user, signals, and the end of the interpreter.
//
// One mutex guards the fields of all objects and uses. It is held for a few loads and stores, or while the tensors of
// one graph or context are looked at; never while anything computes, waits, frees or runs Python: errors are logged
// after it was given back. A fork takes it first, so that a child finds it free.
#ifndef GBPY_WORLD_H
#define GBPY_WORLD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

// cdef: begin

// Instead of a status: a signal handler of Python raised an exception, which Python keeps.
enum { GBPY_INTERRUPTED = 1000 };

// Of the calling thread, Python's main one: its long waits and computations call `poll` now and then.
void gbpy_watch_signals(bool (*poll)(void * data));
// The status of a call that may have been interrupted: GBPY_INTERRUPTED if this thread's poll said so since the last
// call of this function.
int gbpy_outcome(int status);
void gbpy_end(void); // the interpreter ends: nothing is freed any more

// cdef: end

// A function of Python that C called was ended by what a signal handler raised: as if the poll had said so.
bool gbpy_is_interrupted(void); // the calling thread, in a call that has not ended yet
void gbpy_note_interrupt(void);

void gbpy_mutex_lock(void);
void gbpy_mutex_unlock(void);
// Under the lock:
void gbpy_wake_waiters(void); // wakes all that wait
bool gbpy_wait(void);    // gives the lock up until something changed. True: interrupted
void gbpy_renew(void);   // when the module is loaded and in a forked child: nobody waits

// The calling user: the computation that this thread works for, or else the thread.
const void * gbpy_caller(void);
const void * gbpy_thread(void);

bool gbpy_is_ending(void);

// Freeing C objects may wait for a device, but cannot report an interrupt: between these two calls the poll is off, and
// an interrupt that it saw is reported afterwards.
struct gbpy_quiet {
    bool (*poll)(void * data);
    void * data;
    bool interrupted;
};
struct gbpy_quiet gbpy_begin_quiet(void);
void gbpy_end_quiet(struct gbpy_quiet before);

// How often a poll reported an interrupt: a device may then have cancelled work that others had queued, and report that
// to whoever waits for it next.
extern atomic_int gbpy_cancels;

// Counts every time that tensors may have got or lost memory.
extern atomic_llong gbpy_epochs;
static inline long long gbpy_epoch_now(void) { return atomic_load(&gbpy_epochs); }
static inline void gbpy_note_move(void) { atomic_fetch_add(&gbpy_epochs, 1); }

#endif // GBPY_WORLD_H
