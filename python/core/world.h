// world.h - the mutex, the calling thread or run, signals, and the end of the interpreter.
//
// One mutex guards the fields of all objects and locks. It is held for a few loads and stores, or while the tensors
// of one graph or context are read. It is never held while anything computes, waits, frees memory or runs Python:
// errors are logged after it was released. A fork takes it first, so that the child finds it free.
#ifndef GBPY_WORLD_H
#define GBPY_WORLD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

// cdef: begin

// Instead of a status: a Python signal handler raised an exception, which Python keeps.
enum { GBPY_INTERRUPTED = 1000 };

// For Python's main thread: its long waits and computations call `poll` regularly.
void gbpy_watch_signals(bool (*poll)(void * data));
// Returns the status of a call, or GBPY_INTERRUPTED if this thread's poll saw an interrupt since the last call of
// this function.
int gbpy_outcome(int status);
void gbpy_end(void); // the interpreter ends: nothing is freed any more

// cdef: end

// gbpy_note_interrupt: a signal handler ended a Python function that C called. This counts as an interrupt of the
// poll.
bool gbpy_is_interrupted(void); // the calling thread, in a call that has not returned yet
void gbpy_note_interrupt(void);

void gbpy_mutex_lock(void);
void gbpy_mutex_unlock(void);
// Under the mutex:
void gbpy_wake_waiters(void); // after a change that a waiting thread could wait for
bool gbpy_wait(void); // releases the mutex until the next change. True: interrupted
void gbpy_renew(void); // when the module is loaded and in a forked child: no thread waits

// The owner of locks that the calling thread takes: the run that it works for, or else the thread itself.
const void * gbpy_caller(void);
const void * gbpy_thread(void);

bool gbpy_is_ending(void);

// Freeing C objects may wait for a device but cannot report an interrupt. Between these two calls the poll is off. An
// interrupt that it saw before is reported afterwards.
struct gbpy_quiet {
    bool (*poll)(void * data);
    void * data;
    bool interrupted;
};
struct gbpy_quiet gbpy_begin_quiet(void);
void gbpy_end_quiet(struct gbpy_quiet before);

// Number of interrupts seen. A device may have cancelled other callers' work.
extern atomic_int gbpy_cancels;

// Increases whenever tensors may have got or lost memory.
extern atomic_llong gbpy_epochs;
static inline long long gbpy_epoch_now(void) { return atomic_load(&gbpy_epochs); }
static inline void gbpy_note_move(void) { atomic_fetch_add(&gbpy_epochs, 1); }

#endif // GBPY_WORLD_H
