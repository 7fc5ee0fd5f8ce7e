// world.h - the one lock, who asks, signals, and the end of the interpreter.
//
// One mutex guards the fields of all objects and uses. It is held for a few loads and stores, or while the tensors of
// one graph or context are looked at; never while anything computes, waits, frees or runs Python: errors are logged
// when it was given back. Fork takes it first, so a child finds it free.
#ifndef GBPY_WORLD_H
#define GBPY_WORLD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

// cdef: begin

// instead of a status: a signal handler of Python raised; the exception is kept in Python
enum { GBPY_INTERRUPTED = 1000 };

// of the calling thread, Python's main one: its long waits and computations ask `poll`
void gbpy_watch_signals(bool (*poll)(void * data));
// of a call that may have been interrupted: GBPY_INTERRUPTED if this thread's poll said so since the last time
int  gbpy_outcome(int status);
void gbpy_end(void); // the interpreter ends: nothing is freed any more
// objects, tensors and entries of lists that were looked at so far to open, close, place and reset things: for tests
long long gbpy_n_visited(void);

// cdef: end

void gbpy_lock(void);
void gbpy_unlock(void);
// Under the lock:
void gbpy_changed(void); // wakes all who wait
bool gbpy_wait(void);    // gives the lock up until something changed. True: interrupted
void gbpy_renew(void);   // when the module is loaded and in a forked child: nobody waits

// Who asks: the computation that this thread works for, or the thread.
const void * gbpy_me(void);
const void * gbpy_thread(void);

bool gbpy_is_ending(void);

// While C objects are freed, which may wait for a device, nobody could be told of an interrupt: it is told later.
struct gbpy_quiet {
    bool (*poll)(void * data);
    void * data;
    bool   interrupted;
};
struct gbpy_quiet gbpy_begin_quiet(void);
void              gbpy_end_quiet(struct gbpy_quiet before);

// How often a poll said so: a device may have cancelled what others had queued, and tell the next who asks.
extern atomic_int gbpy_cancels;

// What gbpy_n_visited counts.
extern atomic_llong gbpy_visits;
static inline void  gbpy_visited(size_t n) {
    atomic_fetch_add_explicit(&gbpy_visits, (long long) n, memory_order_relaxed);
}

// Counts every time that tensors may have got or lost memory.
extern atomic_llong     gbpy_epochs;
static inline long long gbpy_epoch_now(void) { return atomic_load(&gbpy_epochs); }
static inline void      gbpy_note_move(void) { atomic_fetch_add(&gbpy_epochs, 1); }

#endif // GBPY_WORLD_H
