// threadpool.h - runs a function on n threads of a pool at once and lets them wait for each other.
#ifndef GB_CPU_THREADPOOL_H
#define GB_CPU_THREADPOOL_H

#include <stdatomic.h>

#include "cpu/cpu.h"

// When the caller computes a run alone (nth 1). It may do so if threads sleep, because waking them takes some ten
// microseconds. It does not if its last run ended a moment ago (`ended_ns`): frequent runs are
// faster with awake threads. It must do so if delayed threads would hold it up.
struct gb_cpu_rest {
    bool may_be_alone, must_be_alone;
    int64_t ended_ns; // gb_time_ns() when the last run alone ended; 0: there was none
    int64_t start_ns; // when this run begins

    bool slept;        // told: a thread of the team slept
    bool alone;        // told: the caller did it alone
    int64_t waited_ns; // told: how long the caller waited for others, without waits of less than 50 us
};

// Runs fn(arg, ith, nth) for ith = 0 .. nth-1 at once, ith 0 on the calling thread, and returns when all have returned.
// nth is n_threads, or less if the pool or the system has fewer threads, or 1 if `rest` (may be NULL) allows it.
// Reports INVALID_STATE if called from inside fn of the same pool. The calling thread calls
// while_waiting(arg), unless NULL, every GB_POLL_NS while it waits for the others.
typedef void (*gb_cpu_pool_fn)(void * arg, int ith, int nth);
enum ggml_status gb_cpu_pool_run(struct gb_cpu_pool * pool, int n_threads, gb_cpu_pool_fn fn,
    void (*while_waiting)(void * arg), struct gb_cpu_rest * rest, void * arg);

// Two meeting points, so that part of a team can meet (inside a node) between two meetings of the whole (between
// nodes).
enum gb_cpu_meeting { GB_CPU_MEET_TEAM, GB_CPU_MEET_NODE };

// A barrier: returns when n threads have called it. The last thread calls last(arg), if given,
// before any returns, so all threads see its decisions.
void gb_cpu_pool_meet(struct gb_cpu_pool * pool, enum gb_cpu_meeting meeting, int n, void (*last)(void * arg),
    void * arg);

// How long the calling thread has waited for others in this run, without waits of less than 50 us.
int64_t gb_cpu_pool_waited_ns(void);

// The slots of shared work that are taken from each thread's part, on separate cache lines. They are never reset. Each
// number contains the epoch, which changes with each run and each barrier (team.c).
atomic_ullong * gb_cpu_pool_taken(struct gb_cpu_pool * pool, int ith);
uint64_t gb_cpu_pool_epoch(const struct gb_cpu_pool * pool);

// Lends a pool of n threads that nobody else uses until it is given back: an idle one of that size, or a new one. NULL
// and reported like gb_cpu_pool_new. A few idle ones are kept for next time.
struct gb_cpu_pool * gb_cpu_pool_borrow(int n_threads);
void gb_cpu_pool_give_back(struct gb_cpu_pool * pool); // NULL is fine

#endif // GB_CPU_THREADPOOL_H
