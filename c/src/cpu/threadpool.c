// threadpool.c - the threads of the CPU engine.
//
// All waits use gates. A gate is a number that only grows. A thread that waits for a change spins
// for a short time, then sleeps. Spinning pays because a wake-up through the system costs more than
// most nodes. After PATIENCE_NS, a spinning thread yields its processor between two reads. If the
// team is larger than the machine, threads yield from the start.
// - The gate of a worker opens when the worker has work.
// - The gate of the pool opens when the last worker is done.
// - The gate of a barrier opens when the last thread arrives.
//
// Invariants: between two runs every worker waits at its gate. fn, arg, nth, tag and processor
// change only then. Only the workers whose gates opened take part in a run and count in `pending`.
//
// Threads do not survive a fork. In a child, a pool creates its locks again and restarts workers
// when needed. If a user function forks during a run, the run in the child fails and does not wait
// for the other threads.
#include "cpu/threadpool.h"

#include <stdatomic.h>
#include <string.h>

#include "base/current.h"
#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/processor.h"
#include "base/status.h"
#include "base/thread.h"

#define SPIN_NS 50000 // duration of spinning before sleeping
#define PATIENCE_NS 5000 // duration of spinning without yielding
#define RELAXES 32 // reads of the gate between two reads of the clock
#define LOOK_NS 1000000 // minimum time between two checks for a processor other than the caller's
#define ADOPTING UINT32_MAX // value of `generation` while a thread of a forked child makes the pool usable

// `seq` is the gate's number. Spinning threads read only `seq`. Sleeping threads use the mutex and
// the condition variable.
struct gate {
    atomic_uint seq; // grows by one when the gate opens
    atomic_int sleepers; // threads that wait at `opened`, or are about to
    gb_mutex mutex;
    gb_cond opened;
};

// A barrier. `arrived` returns to 0 before the gate opens, so the barrier can be used again.
struct barrier {
    struct gate gate;
    atomic_int arrived;
};

// Each worker has separate cache lines, so that a spinning worker does not slow down the others.
struct worker {
    _Alignas(64) atomic_ullong taken[GB_CPU_TAKINGS];
    _Alignas(64) struct gate gate; // opens when there is work, or when the pool ends
    struct gb_cpu_pool * pool;
    int ith;
    int64_t looked_ns; // gb_time_ns() of the last check for a processor other than the caller's
    gb_thread thread;
    struct gb_thread_main main;
};

struct gb_cpu_pool {
    _Alignas(64) atomic_ullong taken[GB_CPU_TAKINGS]; // slots of the caller's parts
    _Alignas(64) struct barrier barriers[2]; // by enum gb_cpu_barrier_of
    uint64_t epoch; // written while all other threads wait
    struct gate done; // opens when the last worker of a run has finished
    atomic_int pending; // workers of the run that have not finished
    gb_mutex running; // held during a run; further callers wait here
    gb_cpu_pool_fn fn; // of the run
    void * arg; // of the run, borrowed
    int nth; // of the run
    void * tag; // gb_run() of the caller
    int processor; // of the caller when the run began
    int n_threads; // maximum, including the caller
    int n_started; // workers that exist; protected by `running`
    bool no_more; // the system refused a thread; the pool starts no more
    bool exiting;
    int64_t patience_ns;
    atomic_uint generation; // gb_fork_generation() of the process that has the workers
    struct worker workers[]; // n_threads - 1
};

static _Thread_local struct gb_cpu_pool * current; // the pool whose fn this thread runs
// The calling thread of a run calls `waiting` every GB_POLL_NS while it waits for workers.
static _Thread_local void (*waiting)(void * arg);
static _Thread_local void * waiting_arg;
static _Thread_local int64_t waited_ns; // at gates in this run, without waits below SPIN_NS

// --------------------------------------------------------------------------------------------------------------- gates

static bool gate_init(struct gate * g) {
    atomic_init(&g->seq, 0);
    atomic_init(&g->sleepers, 0);
    if (!gb_mutex_init(&g->mutex)) {
        return false;
    }
    if (!gb_cond_init(&g->opened)) {
        gb_mutex_destroy(&g->mutex);
        return false;
    }
    return true;
}

static void gate_destroy(struct gate * g) {
    gb_cond_destroy(&g->opened);
    gb_mutex_destroy(&g->mutex);
}

// A sleeper increments `sleepers` before it reads seq for the last time. The opener changes seq
// before it reads `sleepers`. So the sleeper sees the new seq, or the opener sees the sleeper.
static void gate_open(struct gate * g) {
    atomic_fetch_add(&g->seq, 1);
    if (atomic_load(&g->sleepers) > 0) {
        gb_mutex_lock(&g->mutex);
        gb_cond_broadcast(&g->opened);
        gb_mutex_unlock(&g->mutex);
    }
}

// True if the gate opens within SPIN_NS from *start. False: the thread should sleep.
static bool gate_opens_soon(struct gate * g, unsigned seen, int64_t patience_ns, int64_t * start) {
    if (atomic_load(&g->seq) != seen) {
        return true;
    }
    int64_t now = *start = gb_time_ns();
    while (now - *start < SPIN_NS) {
        for (int i = 0; i < RELAXES; i++) {
            gb_cpu_relax();
            if (atomic_load_explicit(&g->seq, memory_order_acquire) != seen) {
                return true;
            }
        }
        if (now - *start >= patience_ns) { // the opener may need this processor
            gb_thread_yield();
        }
        now = gb_time_ns();
    }
    return false;
}

// Sleeps until seq is no longer `seen`. The calling thread of the run wakes every GB_POLL_NS to
// call `waiting`.
static void gate_sleep(struct gate * g, unsigned seen) {
    gb_mutex_lock(&g->mutex);
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->seq) == seen) {
        if (waiting == NULL) {
            gb_cond_wait(&g->opened, &g->mutex);
        } else if (!gb_cond_wait_for(&g->opened, &g->mutex, GB_POLL_NS)) {
            gb_mutex_unlock(&g->mutex);
            waiting(waiting_arg);
            gb_mutex_lock(&g->mutex);
        }
    }
    atomic_fetch_sub(&g->sleepers, 1);
    gb_mutex_unlock(&g->mutex);
}

// Returns when seq is no longer `seen`.
static void gate_wait(struct gate * g, unsigned seen, int64_t patience_ns) {
    int64_t start;
    if (!gate_opens_soon(g, seen, patience_ns, &start)) {
        gate_sleep(g, seen);
        waited_ns += gb_time_ns() - start;
    }
}

static bool is_forked(struct gb_cpu_pool * pool) { // true in a child that was forked during the run
    return atomic_load_explicit(&pool->generation, memory_order_relaxed) != gb_fork_generation();
}

void gb_cpu_pool_barrier(struct gb_cpu_pool * pool, enum gb_cpu_barrier_of of, int n, void (*last)(void * arg),
    void * arg) {
    if (is_forked(pool)) {
        pool->epoch++;
        if (last != NULL) {
            last(arg);
        }
        return;
    }
    struct barrier * b = &pool->barriers[of];
    const unsigned seen = atomic_load(&b->gate.seq); // cannot change before this thread arrives
    if (atomic_fetch_add(&b->arrived, 1) + 1 < n) {
        gate_wait(&b->gate, seen, pool->patience_ns);
        return;
    }
    atomic_store(&b->arrived, 0);
    pool->epoch++;
    if (last != NULL) {
        last(arg);
    }
    gate_open(&b->gate);
}

int64_t gb_cpu_pool_waited_ns(void) { return waited_ns; }

atomic_ullong * gb_cpu_pool_taken(struct gb_cpu_pool * pool, int ith, int i) {
    return ith == 0 ? &pool->taken[i] : &pool->workers[ith - 1].taken[i];
}

uint64_t gb_cpu_pool_epoch(const struct gb_cpu_pool * pool) { return pool->epoch; }

// ------------------------------------------------------------------------------------------------------------- workers

// Moves a worker off the caller's processor if another processor is idle. In a virtual machine,
// Linux may treat a sleeping processor as taken away by the host. It then wakes a thread on the
// processor of its waker, and both threads share it for tens of milliseconds.
static void leave_caller(struct worker * w) {
    const int processor = w->pool->processor;
    if (processor < 0 || w->pool->patience_ns == 0 || gb_this_processor() != processor) {
        return;
    }
    const int64_t now = gb_time_ns();
    if (now - w->looked_ns >= LOOK_NS) {
        w->looked_ns = now;
        if (gb_has_idle_processor()) {
            gb_leave_processor(processor);
        }
    }
}

// A worker's gate opens once for each run, so `seen` counts its runs. The worker reads fn, arg,
// nth, tag, processor and exiting only after the gate opens.
static void worker_main(void * arg) {
    struct worker * w = arg;
    struct gb_cpu_pool * pool = w->pool;
    for (unsigned seen = 0;; seen++) {
        gate_wait(&w->gate, seen, pool->patience_ns);
        if (pool->exiting) {
            return;
        }
        leave_caller(w);
        current = pool;
        gb_set_run(pool->tag);
        pool->fn(pool->arg, w->ith, pool->nth);
        gb_set_run(NULL);
        current = NULL;
        if (atomic_fetch_sub(&pool->pending, 1) == 1) {
            gate_open(&pool->done);
        }
    }
}

// False: the system refuses the thread or its gate. Everything is freed then.
static bool start_worker(struct gb_cpu_pool * pool, int i) {
    struct worker * w = &pool->workers[i];
    w->pool = pool;
    w->ith = i + 1;
    w->main = (struct gb_thread_main){ worker_main, w };
    if (!gate_init(&w->gate)) {
        return false;
    }
    if (!gb_thread_try_start(&w->thread, &w->main)) {
        gate_destroy(&w->gate);
        return false;
    }
    return true;
}

// Starts workers until n exist, and returns the number of existing workers, at most n. Fewer
// workers are no error, because the team is then smaller.
static int start_workers(struct gb_cpu_pool * pool, int n) {
    while (pool->n_started < n && !pool->no_more) {
        if (start_worker(pool, pool->n_started)) {
            pool->n_started++;
        } else {
            pool->no_more = true;
            gb_log(GGML_LOG_LEVEL_WARN, "CPU: the system cannot start more threads, continuing with %d of %d",
                pool->n_started + 1, pool->n_threads);
        }
    }
    return GB_MIN(n, pool->n_started);
}

// ---------------------------------------------------------------------------------------------------------------- pool

// False: the system refuses a lock. Destroys the locks that it has made.
static bool init_locks(struct gb_cpu_pool * pool) {
    if (!gb_mutex_init(&pool->running)) {
        return false;
    }
    if (!gate_init(&pool->done)) {
        gb_mutex_destroy(&pool->running);
        return false;
    }
    for (int i = 0; i < 2; i++) {
        atomic_init(&pool->barriers[i].arrived, 0);
        if (!gate_init(&pool->barriers[i].gate)) {
            while (i-- > 0) {
                gate_destroy(&pool->barriers[i].gate);
            }
            gate_destroy(&pool->done);
            gb_mutex_destroy(&pool->running);
            return false;
        }
    }
    return true;
}

static void destroy_locks(struct gb_cpu_pool * pool) {
    for (int i = 0; i < 2; i++) {
        gate_destroy(&pool->barriers[i].gate);
    }
    gate_destroy(&pool->done);
    gb_mutex_destroy(&pool->running);
}

struct gb_cpu_pool * gb_cpu_pool_new(int n_threads) {
    GB_FAIL_IF_RETURNING(n_threads < 1 || n_threads > GB_CPU_MAX_THREADS, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "CPU: needs 1 to %d threads, has %d", GB_CPU_MAX_THREADS, n_threads);
    const size_t size = sizeof(struct gb_cpu_pool) + (size_t) (n_threads - 1) * sizeof(struct worker);
    struct gb_cpu_pool * pool = gb_aligned_alloc(_Alignof(struct gb_cpu_pool), size);
    if (pool == NULL) {
        return NULL;
    }
    memset(pool, 0, size);
    if (!init_locks(pool)) {
        gb_aligned_free(pool);
        return NULL;
    }
    pool->n_threads = n_threads;
    pool->patience_ns = n_threads <= gb_n_processors() ? PATIENCE_NS : 0;
    atomic_init(&pool->pending, 0);
    atomic_init(&pool->generation, gb_fork_generation());
    return pool;
}

// In a forked child: creates the locks again, because threads that did not survive may hold them.
// Workers start when needed. If several threads of the child call this at the same time, one does
// the work.
static void adopt_after_fork(struct gb_cpu_pool * pool) {
    const unsigned now = gb_fork_generation();
    unsigned last = atomic_load(&pool->generation);
    if (last == now) {
        return;
    }
    if (last != ADOPTING && atomic_compare_exchange_strong(&pool->generation, &last, ADOPTING)) {
        init_locks(pool);
        pool->n_started = 0;
        pool->no_more = false;
        atomic_store(&pool->pending, 0);
        atomic_store(&pool->generation, now);
    }
    while (atomic_load(&pool->generation) != now) {
        gb_thread_yield();
    }
}

void gb_cpu_pool_free(struct gb_cpu_pool * pool) {
    if (pool == NULL) {
        return;
    }
    adopt_after_fork(pool);
    pool->exiting = true;
    for (int i = 0; i < pool->n_started; i++) {
        gate_open(&pool->workers[i].gate);
    }
    for (int i = 0; i < pool->n_started; i++) {
        gb_thread_join(pool->workers[i].thread);
        gate_destroy(&pool->workers[i].gate);
    }
    destroy_locks(pool);
    gb_aligned_free(pool);
}

int gb_cpu_pool_n_threads(const struct gb_cpu_pool * pool) { return pool != NULL ? pool->n_threads : 1; }

// Opens the gates of nth - 1 workers, runs the caller's share, and waits for the workers. A child
// that fn forked has no workers to wait for.
static void run_team(struct gb_cpu_pool * pool, int nth, gb_cpu_pool_fn fn, void * arg) {
    const unsigned seen = atomic_load(&pool->done.seq);
    pool->fn = fn;
    pool->arg = arg;
    pool->nth = nth;
    pool->tag = gb_run();
    pool->processor = gb_this_processor();
    pool->epoch++;
    atomic_store(&pool->pending, nth - 1);
    for (int i = 0; i < nth - 1; i++) {
        gate_open(&pool->workers[i].gate);
    }
    fn(arg, 0, nth);
    if (nth > 1 && !is_forked(pool)) {
        gate_wait(&pool->done, seen, pool->patience_ns);
    }
}

static bool any_sleeps(struct gb_cpu_pool * pool, int n_workers) {
    if (pool->n_started < n_workers) {
        return false; // some threads are not started yet
    }
    for (int i = 0; i < n_workers; i++) {
        if (atomic_load_explicit(&pool->workers[i].gate.sleepers, memory_order_relaxed) > 0) {
            return true;
        }
    }
    return false;
}

// True: the caller computes the run alone.
static bool lets_rest(struct gb_cpu_pool * pool, int n_workers, struct gb_cpu_rest * rest) {
    if (rest == NULL) {
        return false;
    }
    rest->slept = !rest->must_be_alone && any_sleeps(pool, n_workers);
    rest->alone =
        rest->must_be_alone || (rest->slept && rest->may_be_alone && rest->start_ns - rest->ended_ns > SPIN_NS);
    return rest->alone;
}

enum ggml_status gb_cpu_pool_run(struct gb_cpu_pool * pool, int n_threads, gb_cpu_pool_fn fn,
    void (*while_waiting)(void * arg), struct gb_cpu_rest * rest, void * arg) {
    GB_FAIL_IF(current == pool, GGML_STATUS_INVALID_STATE,
        "CPU: a node that is being computed asks the same threads to compute another graph");
    adopt_after_fork(pool);
    gb_mutex_lock(&pool->running);
    struct gb_cpu_pool * const outer = current;
    void (*const outer_waiting)(void * arg_) = waiting;
    void * const outer_arg = waiting_arg;
    const int64_t outer_waited = waited_ns;
    current = pool;
    waiting = while_waiting;
    waiting_arg = arg;
    waited_ns = 0;
    const int n_workers = GB_MIN(n_threads, pool->n_threads) - 1;
    run_team(pool, lets_rest(pool, n_workers, rest) ? 1 : 1 + start_workers(pool, n_workers), fn, arg);
    if (rest != NULL) {
        rest->waited_ns = waited_ns;
    }
    current = outer;
    waiting = outer_waiting;
    waiting_arg = outer_arg;
    waited_ns = outer_waited;
    gb_mutex_unlock(&pool->running);
    GB_FAIL_IF(is_forked(pool), GGML_STATUS_INVALID_STATE,
        "CPU: the process was forked during a computation; its other threads, and their part of the results, are in "
        "the parent process");
    return GGML_STATUS_SUCCESS;
}

// ---------------------------------------------------------------------------------------------------- lending of pools

// Idle pools. A slot is taken or filled by one atomic exchange, so a fork cannot leave a lock held.
#define N_IDLE 4
static _Atomic(struct gb_cpu_pool *) idle[N_IDLE];

// True: an idle slot took ownership of the pool.
static bool keep(struct gb_cpu_pool * pool) {
    for (int i = 0; i < N_IDLE; i++) {
        struct gb_cpu_pool * none = NULL;
        if (atomic_compare_exchange_strong(&idle[i], &none, pool)) {
            return true;
        }
    }
    return false;
}

struct gb_cpu_pool * gb_cpu_pool_borrow(int n_threads) {
    for (int i = 0; i < N_IDLE; i++) {
        struct gb_cpu_pool * pool = atomic_exchange(&idle[i], NULL);
        if (pool != NULL && pool->n_threads == n_threads) {
            return pool;
        }
        if (pool != NULL && !keep(pool)) {
            gb_cpu_pool_free(pool);
        }
    }
    return gb_cpu_pool_new(n_threads);
}

void gb_cpu_pool_give_back(struct gb_cpu_pool * pool) {
    if (pool == NULL || keep(pool)) {
        return;
    }
    gb_cpu_pool_free(atomic_exchange(&idle[N_IDLE - 1], pool)); // keeps the newest pool
}

void gb_cpu_pools_trim(void) {
    for (int i = 0; i < N_IDLE; i++) {
        gb_cpu_pool_free(atomic_exchange(&idle[i], NULL));
    }
}
