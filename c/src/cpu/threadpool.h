// threadpool.h - runs a function on n threads of a pool at once and lets them wait for each other.
#ifndef GB_CPU_THREADPOOL_H
#define GB_CPU_THREADPOOL_H

#include <stdatomic.h>

#include "cpu/cpu.h"

// Whether the caller does a run alone (nth 1). It may where threads would have to be woken, which takes some ten
// microseconds, but not when it did so a moment ago, as `ended_ns` says: whoever calls again and again is faster with
// threads that stay awake. It must where others would hold it up.
struct gb_cpu_rest {
    bool may_be_alone, must_be_alone;
    int64_t ended_ns; // gb_time_ns() when the last run alone ended; 0: there was none
    int64_t start_ns; // when this run begins

    bool slept;        // told: a thread of the team slept
    bool alone;        // told: the caller did it alone
    int64_t waited_ns; // told: how long the caller waited for others, without waits of less than 50 us
};

// Runs fn(arg, ith, nth) for ith = 0 .. nth-1 at once, ith 0 on the calling thread, and returns when all have returned.
// nth is n_threads, or less when the pool or the system has fewer, or 1 where `rest`, unless NULL, allows it.
// INVALID_STATE and reported when called from inside the same pool's fn. while_waiting(arg), unless NULL, is called
// every GB_POLL_NS on the calling thread while that waits for the others.
typedef void (*gb_cpu_pool_fn)(void * arg, int ith, int nth);
enum ggml_status gb_cpu_pool_run(struct gb_cpu_pool * pool, int n_threads, gb_cpu_pool_fn fn,
    void (*while_waiting)(void * arg), struct gb_cpu_rest * rest, void * arg);

// Two meeting points, so that part of a team can meet (inside a node) between two meetings of the whole (between
// nodes).
enum gb_cpu_meeting { GB_CPU_MEET_TEAM, GB_CPU_MEET_NODE };

// Returns when n threads have called it. The last one to come calls last(arg) (if any) before anybody goes on: what it
// decides, all see.
void gb_cpu_pool_meet(struct gb_cpu_pool * pool, enum gb_cpu_meeting meeting, int n, void (*last)(void * arg),
    void * arg);

// How long the calling thread has waited for others in this run, without waits of less than 50 us.
int64_t gb_cpu_pool_waited_ns(void);

// What threads have taken of shared work, a number for each thread on a cache line of its own. Nobody sets them back;
// instead the epoch, which changes with each run and each meeting, is a part of what is written (team.c).
atomic_ullong * gb_cpu_pool_taken(struct gb_cpu_pool * pool, int ith);
uint64_t gb_cpu_pool_epoch(const struct gb_cpu_pool * pool);

// Lends a pool of n threads that nobody else uses until it is given back: an idle one of that size, or a new one. NULL
// and reported like gb_cpu_pool_new. A few idle ones are kept for next time.
struct gb_cpu_pool * gb_cpu_pool_borrow(int n_threads);
void gb_cpu_pool_give_back(struct gb_cpu_pool * pool); // NULL is fine

#endif // GB_CPU_THREADPOOL_H
