// threadpool.h - runs a function on n threads of a pool and lets them wait for each other.
#ifndef GB_CPU_THREADPOOL_H
#define GB_CPU_THREADPOOL_H

#include <stdatomic.h>

#include "cpu/cpu.h"

// Whether the caller computes a run alone (nth 1). With `must_be_alone` it does, because threads
// would delay it. With `may_be_alone` it does if threads sleep, because waking them takes about ten
// microseconds. If its last run alone has just ended (`ended_ns`), it wakes the threads instead,
// because frequent runs are faster with awake threads.
struct gb_cpu_rest {
    bool may_be_alone, must_be_alone;
    int64_t ended_ns; // gb_time_ns() when the last run alone ended; 0: no run alone yet
    int64_t start_ns; // gb_time_ns() when this run begins

    bool slept;        // output: a thread of the team slept
    bool alone;        // output: the caller computed the run alone
    int64_t waited_ns; // output: time that the caller waited for workers, without waits below 50 us
};

// Runs fn(arg, ith, nth) on nth threads, and returns when all have returned. The calling thread has
// ith 0. nth is n_threads, or less if the pool or the system has fewer threads. nth is 1 if the
// caller runs alone according to `rest`, which may be NULL. Reports INVALID_STATE if called from
// inside fn of the same pool. While the calling thread waits for workers, it calls
// while_waiting(arg), unless NULL, every GB_POLL_NS.
typedef void (*gb_cpu_pool_fn)(void * arg, int ith, int nth);
enum ggml_status gb_cpu_pool_run(struct gb_cpu_pool * pool, int n_threads, gb_cpu_pool_fn fn,
    void (*while_waiting)(void * arg), struct gb_cpu_rest * rest, void * arg);

// A pool has two barriers. The whole team uses TEAM between steps. The threads of a node use NODE
// inside it.
enum gb_cpu_barrier_of { GB_CPU_BARRIER_TEAM, GB_CPU_BARRIER_NODE };

// A barrier: returns when n threads have called it. The last thread calls last(arg), if given,
// before any thread returns, so all threads see its decisions.
void gb_cpu_pool_barrier(struct gb_cpu_pool * pool, enum gb_cpu_barrier_of of, int n, void (*last)(void * arg),
    void * arg);

// Time that the calling thread has waited for workers in this run, without waits below 50 us.
int64_t gb_cpu_pool_waited_ns(void);

// The number of slots taken from a thread's part of shared work number i, i < GB_CPU_TAKINGS, since
// the last barrier. Each thread's numbers are on a separate cache line. They are never reset,
// because they contain the epoch, which changes with each run and each barrier (team.c).
enum { GB_CPU_TAKINGS = 4 };
atomic_ullong * gb_cpu_pool_taken(struct gb_cpu_pool * pool, int ith, int i);
uint64_t gb_cpu_pool_epoch(const struct gb_cpu_pool * pool);

// Lends a pool of n threads to the caller until it is given back: an idle pool of that size, or a
// new one. Returns NULL and reports failures like gb_cpu_pool_new. A few idle pools are kept.
struct gb_cpu_pool * gb_cpu_pool_borrow(int n_threads);
void gb_cpu_pool_give_back(struct gb_cpu_pool * pool); // NULL is allowed

#endif // GB_CPU_THREADPOOL_H
