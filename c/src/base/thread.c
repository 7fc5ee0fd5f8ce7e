// thread.c - threads, locks and forks on POSIX systems and Windows. No other file names a threading library.
//
// pthread_atfork handlers hold the mutexes of the process and all spin locks during a fork. So the
// child finds the guarded state consistent and the locks free. thread.h describes the kinds of
// locks.
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include "thread.h"

#include "current.h"
#include "mapped.h"
#include "mem.h"
#include "status.h"

// The function of a new thread and its argument. The thread frees this before it begins.
struct start {
    void (*run)(void * arg);
    void * arg;
};

// --------------------------------------------------------------------------------------------------------- spin locks

static struct gb_spin_lock brief_locks[GB_SPIN_LOCKS];

// The upper half of the product is well mixed even for addresses with regular distances.
struct gb_spin_lock * gb_spin_lock_for(const void * object) {
    gb_fork_generation();  // registers the fork handlers
    return &brief_locks[((uint64_t) (uintptr_t) object * UINT64_C(0x9e3779b97f4a7c15) >> 32) % GB_SPIN_LOCKS];
}

// The holder needs some tens of nanoseconds, unless the system has preempted it. So the waiting
// thread first spins, then yields, then sleeps.
void gb_spin_lock_wait(struct gb_spin_lock * l) {
    for (unsigned n = 0; atomic_load_explicit(&l->held, memory_order_relaxed) != 0 ||
                         atomic_exchange_explicit(&l->held, 1, memory_order_acquire) != 0;
        n++) {
        if (n < 100) {
            gb_cpu_relax();
        } else if (n < 200) {
            gb_thread_yield();
        } else {
            gb_sleep_us(50);
        }
    }
}

// A thread gets its number at its first call.
uint32_t gb_thread_number(void) {
    static atomic_uint count;
    static _Thread_local uint32_t number;
    if (number == 0) {
        number = (uint32_t) atomic_fetch_add_explicit(&count, 1, memory_order_relaxed) + 1;
    }
    return number;
}

// ---------------------------------------------------------------------------------------------- mutexes of the process

static gb_mutex process_mutexes[GB_N_PROCESS_MUTEXES] = { GB_MUTEX_INIT, GB_MUTEX_INIT, GB_MUTEX_INIT, GB_MUTEX_INIT,
    GB_MUTEX_INIT };
// One bit for each mutex of the process that this thread holds. A fork must not wait for these
// mutexes.
static _Thread_local unsigned held;

void gb_process_lock(enum gb_process_mutex which) {
    gb_fork_generation();  // registers the fork handlers
    gb_mutex_lock(&process_mutexes[which]);
    held |= 1u << which;
}

void gb_process_unlock(enum gb_process_mutex which) {
    held &= ~(1u << which);
    gb_mutex_unlock(&process_mutexes[which]);
}

// ---------------------------------------------------------------------------------------------------- operating system

#ifdef _WIN32

bool gb_mutex_init(gb_mutex * m) {
    InitializeSRWLock(m);
    return true;
}
void gb_mutex_destroy(gb_mutex * m) { (void) m; }
void gb_mutex_lock(gb_mutex * m) { AcquireSRWLockExclusive(m); }
void gb_mutex_unlock(gb_mutex * m) { ReleaseSRWLockExclusive(m); }

bool gb_cond_init(gb_cond * c) {
    InitializeConditionVariable(c);
    return true;
}
void gb_cond_destroy(gb_cond * c) { (void) c; }
void gb_cond_wait(gb_cond * c, gb_mutex * m) { SleepConditionVariableSRW(c, m, INFINITE, 0); }
bool gb_cond_wait_for(gb_cond * c, gb_mutex * m, int64_t ns) {
    const int64_t ms = ns <= 0 ? 0 : ns / 1000000 + (ns % 1000000 != 0);
    return SleepConditionVariableSRW(c, m, ms < INT32_MAX ? (DWORD) ms : INT32_MAX, 0) != 0;
}
void gb_cond_broadcast(gb_cond * c) { WakeAllConditionVariable(c); }

static DWORD WINAPI trampoline(void * arg) {
    const struct start start = *(struct start *) arg;
    gb_free(arg);
    gb_mapped_enter();  // the thread runs only code of this library
    start.run(start.arg);
    return 0;
}

bool gb_thread_start(gb_thread * t, void (*run)(void * arg), void * arg) {
    struct start * start = GB_NEW(struct start);
    if (start == NULL) {
        return false;
    }
    *start = (struct start){ run, arg };
    *t = CreateThread(NULL, 0, trampoline, start, 0, NULL);
    if (*t == NULL) {
        gb_free(start);
        gb_fail(GGML_STATUS_FAILED, "cannot start a thread: error %lu", (unsigned long) GetLastError());
        return false;
    }
    return true;
}

void gb_thread_join(gb_thread t) {
    WaitForSingleObject(t, INFINITE);
    CloseHandle(t);
}

static DWORD WINAPI main_trampoline(void * arg) {
    const struct gb_thread_main * main = arg;
    gb_mapped_enter();
    main->run(main->arg);
    return 0;
}

bool gb_thread_try_start(gb_thread * t, struct gb_thread_main * main) {
    *t = CreateThread(NULL, 0, main_trampoline, main, 0, NULL);
    return *t != NULL;
}

unsigned gb_fork_generation(void) { return 0; }

static BOOL CALLBACK once_trampoline(PINIT_ONCE once, PVOID init, PVOID * context) {
    (void) once;
    (void) context;
    (*(void (**)(void)) init)();
    return TRUE;
}

void gb_call_once(gb_once * once, void (*init)(void)) {
    InitOnceExecuteOnce(once, once_trampoline, (void *) &init, NULL);
}
void gb_thread_yield(void) { SwitchToThread(); }
void gb_sleep_us(int64_t us) { Sleep((DWORD) ((us + 999) / 1000)); }

#else

#    include <errno.h>
#    include <sched.h>
#    include <signal.h>
#    include <string.h>
#    include <time.h>

bool gb_mutex_init(gb_mutex * m) {
    const int err = pthread_mutex_init(m, NULL);
    GB_FAIL_IF_RETURNING(err != 0, false, GGML_STATUS_FAILED, "cannot create a mutex: %s", strerror(err));
    return true;
}
void gb_mutex_destroy(gb_mutex * m) { pthread_mutex_destroy(m); }
void gb_mutex_lock(gb_mutex * m) { pthread_mutex_lock(m); }
void gb_mutex_unlock(gb_mutex * m) { pthread_mutex_unlock(m); }

#    ifdef __APPLE__  // no choice of clock here, but relative waits

static int init_cond(gb_cond * c) { return pthread_cond_init(c, NULL); }

bool gb_cond_wait_for(gb_cond * c, gb_mutex * m, int64_t ns) {
    const struct timespec time = { (time_t) (GB_MAX(ns, 0) / 1000000000), (long) (GB_MAX(ns, 0) % 1000000000) };
    return pthread_cond_timedwait_relative_np(c, m, &time) == 0;
}

#    else

static int init_cond(gb_cond * c) {
    pthread_condattr_t attr;
    int err = pthread_condattr_init(&attr);
    if (err == 0) {
        // A monotonic clock, so that setting the system's time does not move the end of a wait.
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        err = pthread_cond_init(c, &attr);
        pthread_condattr_destroy(&attr);
    }
    return err;
}

bool gb_cond_wait_for(gb_cond * c, gb_mutex * m, int64_t ns) {
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    const int64_t fraction = (int64_t) end.tv_nsec + GB_MAX(ns, 0) % 1000000000;
    end.tv_sec += (time_t) (GB_MAX(ns, 0) / 1000000000 + fraction / 1000000000);
    end.tv_nsec = (long) (fraction % 1000000000);
    return pthread_cond_timedwait(c, m, &end) == 0;
}

#    endif

bool gb_cond_init(gb_cond * c) {
    const int err = init_cond(c);
    GB_FAIL_IF_RETURNING(err != 0, false, GGML_STATUS_FAILED, "cannot create a condition variable: %s", strerror(err));
    return true;
}
void gb_cond_destroy(gb_cond * c) { pthread_cond_destroy(c); }
void gb_cond_wait(gb_cond * c, gb_mutex * m) { pthread_cond_wait(c, m); }
void gb_cond_broadcast(gb_cond * c) { pthread_cond_broadcast(c); }

static void * trampoline(void * arg) {
    const struct start start = *(struct start *) arg;
    gb_free(arg);
    gb_mapped_enter();  // the thread runs only code of this library
    start.run(start.arg);
    return NULL;
}

bool gb_thread_start(gb_thread * t, void (*run)(void * arg), void * arg) {
    struct start * start = GB_NEW(struct start);
    if (start == NULL) {
        return false;
    }
    *start = (struct start){ run, arg };
    const int err = pthread_create(t, NULL, trampoline, start);
    if (err != 0) {
        gb_free(start);
        gb_fail(GGML_STATUS_FAILED, "cannot start a thread: %s", strerror(err));
        return false;
    }
    return true;
}

static void * main_trampoline(void * arg) {
    const struct gb_thread_main * main = arg;
    gb_mapped_enter();
    main->run(main->arg);
    return NULL;
}

bool gb_thread_try_start(gb_thread * t, struct gb_thread_main * main) {
    // Does not block signals of faults, which go to the faulting thread.
    static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS };
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < GB_ARRAY_LEN(faults); i++) {
        sigdelset(&blocked, faults[i]);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, &before); // inherited by the new thread
    const int err = pthread_create(t, NULL, main_trampoline, main);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return err == 0;
}

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static atomic_uint forks;

// The mutexes that the forking thread takes during the fork: all that it does not hold already,
// except the mutex of module loading, because loading may take seconds.
static bool is_taken_for_fork(int which) { return which != GB_MUTEX_LOADING && !(held & (1u << which)); }

// Takes the locks in their order: first the mutexes of the process, then the spin locks.
static void before_fork(void) {
    for (int i = 0; i < GB_N_PROCESS_MUTEXES; i++) {
        if (is_taken_for_fork(i)) {
            gb_mutex_lock(&process_mutexes[i]);
        }
    }
    for (int i = 0; i < GB_SPIN_LOCKS; i++) {
        gb_spin_lock(&brief_locks[i]);
    }
}

static void after_fork(void) {
    for (int i = 0; i < GB_SPIN_LOCKS; i++) {
        gb_spin_unlock(&brief_locks[i]);
    }
    for (int i = GB_N_PROCESS_MUTEXES; i-- > 0;) {
        if (is_taken_for_fork(i)) {
            gb_mutex_unlock(&process_mutexes[i]);
        }
    }
}

// The child has no copy of the thread that was loading a module, so no thread would release its
// mutex.
static void in_child(void) {
    atomic_fetch_add(&forks, 1);
    after_fork();
    if (!(held & (1u << GB_MUTEX_LOADING))) {
        gb_mutex_init(&process_mutexes[GB_MUTEX_LOADING]);
    }
}

static void watch_forks(void) { pthread_atfork(before_fork, after_fork, in_child); }

// These locks are last in the order, so their handler must run last before a fork. Handlers run in
// reverse order of registration. So ours is registered when the library is loaded, before a program
// that calls it can register its own handlers.
#    if defined(__GNUC__)
__attribute__((constructor)) static void watch_forks_early(void) { gb_fork_generation(); }
#    endif

unsigned gb_fork_generation(void) {
    pthread_once(&fork_once, watch_forks);
    return atomic_load(&forks);
}

void gb_thread_join(gb_thread t) { pthread_join(t, NULL); }
void gb_call_once(gb_once * once, void (*init)(void)) { pthread_once(once, init); }
void gb_thread_yield(void) { sched_yield(); }

void gb_sleep_us(int64_t us) {
    struct timespec left = { (time_t) (us / 1000000), (long) (us % 1000000) * 1000 };
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

#endif

// A plain wait without a poll. With a poll the thread wakes up every GB_POLL_NS.
bool gb_cond_wait_polled(gb_cond * c, gb_mutex * m) {
    if (gb_get_poll(NULL) == NULL) {
        gb_cond_wait(c, m);
        return false;
    }
    if (gb_cond_wait_for(c, m, GB_POLL_NS) && !gb_poll_is_due()) { // polls in time even if the thread is often woken up
        return false;
    }
    const unsigned generation = gb_fork_generation();
    gb_mutex_unlock(m);
    const bool stop = gb_poll();
    // The poll has forked, and this is the child. Only the parent has threads that could hold the
    // mutex.
    if (gb_fork_generation() != generation) {
        gb_mutex_init(m);
        gb_cond_init(c);
        gb_mutex_lock(m);
        return true;
    }
    gb_mutex_lock(m);
    return stop;
}
