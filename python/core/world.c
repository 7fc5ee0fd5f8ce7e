// world.c - the mutex with its condition, the poll for signals, and the end of the interpreter (world.h).
#include "world.h"

#include "extension.h"
#include "later.h"

static gb_mutex mutex = GB_MUTEX_INIT;
static gb_cond condition;
static int n_waiting;
static atomic_bool ending;

static _Thread_local char mine; // its address identifies the thread
static _Thread_local bool interrupted; // the poll saw an interrupt that was not reported yet

atomic_llong gbpy_epochs;
atomic_int gbpy_cancels;

void gbpy_mutex_lock(void) {
    gb_hold_log(true);
    gb_mutex_lock(&mutex);
}

void gbpy_mutex_unlock(void) {
    gb_mutex_unlock(&mutex);
    gb_hold_log(false);
}

void gbpy_wake_waiters(void) {
    if (n_waiting > 0) {
        gb_cond_broadcast(&condition);
    }
}

bool gbpy_wait(void) {
    n_waiting++;
    const unsigned generation = gb_fork_generation();
    gb_hold_log(false); // no failure is held back
    const bool stop = gb_cond_wait_polled(&condition, &mutex);
    gb_hold_log(true);
    n_waiting -= generation == gb_fork_generation(); // in a forked child, gbpy_renew has reset the count
    return stop;
}

void gbpy_renew(void) {
    n_waiting = 0;
    gb_cond_init(&condition);
}

const void * gbpy_thread(void) { return &mine; }

const void * gbpy_caller(void) {
    const void * run = gb_run();
    // a run begins with the owner of its locks
    return run != NULL ? GB_READ_RELAXED(*(const void * const *) run) : gbpy_thread();
}

// ------------------------------------------------------------------------------------------------------------- signals

static bool (*signal_poll)(void * data);

static bool poll_signals(void * data) {
    if (interrupted) {
        return true;
    }
    const bool trust = gb_trust_tensors(false); // a handler may compute tensors that nobody has checked
    interrupted = signal_poll(data);
    gb_trust_tensors(trust);
    if (interrupted) {
        gbpy_arm_interrupt();
        atomic_fetch_add(&gbpy_cancels, 1);
    }
    return interrupted;
}

void gbpy_note_interrupt(void) {
    interrupted = true;
    gbpy_arm_interrupt();
    atomic_fetch_add(&gbpy_cancels, 1);
}

void gbpy_watch_signals(bool (*poll)(void * data)) {
    signal_poll = poll;
    gb_set_poll(poll_signals, NULL);
}

bool gbpy_is_interrupted(void) { return interrupted; }

int gbpy_outcome(int status) {
    if (!interrupted) {
        return status;
    }
    interrupted = false;
    return GBPY_INTERRUPTED;
}

struct gbpy_quiet gbpy_begin_quiet(void) {
    struct gbpy_quiet before = { .interrupted = interrupted };
    before.poll = gb_get_poll(&before.data);
    gb_set_poll(NULL, NULL);
    return before;
}

void gbpy_end_quiet(struct gbpy_quiet before) {
    gb_set_poll(before.poll, before.data);
    interrupted = before.interrupted;
}

// ------------------------------------------------------------------------------------------------------------- the end

void gbpy_end(void) {
    atomic_store(&ending, true);
    gb_set_poll(NULL, NULL);
}

bool gbpy_is_ending(void) { return atomic_load(&ending); }
