// thread.h - threads and locks of the operating system: POSIX or Windows. It also defines how a
// fork affects each lock, and accesses fields that threads share without a lock.
#ifndef GB_BASE_THREAD_H
#define GB_BASE_THREAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef _WIN32
#    define WIN32_LEAN_AND_MEAN
#    include <windows.h>
typedef SRWLOCK gb_mutex;
typedef CONDITION_VARIABLE gb_cond;
typedef HANDLE gb_thread;
typedef INIT_ONCE gb_once;
#    define GB_MUTEX_INIT SRWLOCK_INIT
#    define GB_ONCE_INIT INIT_ONCE_STATIC_INIT
#else
#    include <pthread.h>
typedef pthread_mutex_t gb_mutex;
typedef pthread_cond_t gb_cond;
typedef pthread_t gb_thread;
typedef pthread_once_t gb_once;
#    define GB_MUTEX_INIT PTHREAD_MUTEX_INITIALIZER
#    define GB_ONCE_INIT PTHREAD_ONCE_INIT
#endif

// Plain mutexes and condition variables. The init functions report and return false when the system has no resources.
bool gb_mutex_init(gb_mutex * m);
void gb_mutex_destroy(gb_mutex * m);
void gb_mutex_lock(gb_mutex * m);
void gb_mutex_unlock(gb_mutex * m);

bool gb_cond_init(gb_cond * c);
void gb_cond_destroy(gb_cond * c);
void gb_cond_wait(gb_cond * c, gb_mutex * m);
// Waits at most `ns` nanoseconds. False: the time is over. As with gb_cond_wait, the caller holds m
// and checks its condition again, because a wait may end spuriously.
bool gb_cond_wait_for(gb_cond * c, gb_mutex * m, int64_t ns);
// As gb_cond_wait, but calls the thread's poll (current.h) from time to time, with the mutex
// released. True: the poll asks to stop, or it has forked, and the child has no thread that could
// signal.
bool gb_cond_wait_polled(gb_cond * c, gb_mutex * m);
void gb_cond_broadcast(gb_cond * c);

// Starts a thread that calls run(arg). On failure reports and returns false. Join every thread
// once.
bool gb_thread_start(gb_thread * t, void (*run)(void * arg), void * arg);
void gb_thread_join(gb_thread t);

// The same without a report and without allocating: the caller owns `main` until the thread ends.
// The thread blocks asynchronous signals, so that the program's threads get them.
struct gb_thread_main {
    void (*run)(void * arg);
    void * arg;
};
bool gb_thread_try_start(gb_thread * t, struct gb_thread_main * main);

// A child of a fork has one thread. Objects that other threads were locking or changing stay locked
// or half changed in it. There are three kinds of state:
//  State of the whole process has a process mutex (below) if a change of it may allocate, report
//  or wait for the system. The forking thread takes all process mutexes during the fork, so their
//  state is consistent in the child. State that exists many times (contexts), or that a few
//  hundred instructions change, has a spin lock (below). The forking thread takes these as well.
//  An object with its own mutex or threads stores gb_fork_generation(). A function that finds
//  another generation runs in a child. It makes new locks and discards pending work
//  (threadpool.c, sim_device.c, sched/run/).

// The number of forks between the process that first called this function and the calling process.
// A changed number means that the caller is in a child.
unsigned gb_fork_generation(void);

// The mutexes of the process, in the order in which a thread may take them. No user code runs while
// a thread holds them, except for the first, which guards the loading of modules. A fork does not
// wait for that mutex, and the child makes a new one.
enum gb_process_mutex {
    GB_MUTEX_LOADING,
    GB_MUTEX_MODULES,
    GB_MUTEX_REGISTRY,
    GB_MUTEX_WATCHERS,
    GB_MUTEX_LOG,
    GB_N_PROCESS_MUTEXES
};
void gb_process_lock(enum gb_process_mutex which);
void gb_process_unlock(enum gb_process_mutex which);

// Calls init() exactly once per `once`. Other threads wait until it has returned.
void gb_call_once(gb_once * once, void (*init)(void));

// Locks for sections of a few hundred instructions. A thread that holds a spin lock takes no other
// lock, allocates nothing, reports nothing and calls no user code. So spin locks are last in every
// lock order. The process has GB_SPIN_LOCKS of them, and objects share them. A fork waits until
// all are free, so in the child they are free and the guarded state is consistent.
enum { GB_SPIN_LOCKS = 64 };
struct gb_spin_lock {
    _Alignas(64) atomic_uint held; // alone in its cache line
};
// The lock of an object, chosen by its address.
struct gb_spin_lock * gb_spin_lock_for(const void * object);
// Waits for a lock that another thread holds. The slow half of gb_spin_lock.
void gb_spin_lock_wait(struct gb_spin_lock * l);

static inline void gb_spin_lock(struct gb_spin_lock * l) {
    if (atomic_exchange_explicit(&l->held, 1, memory_order_acquire) != 0) {
        gb_spin_lock_wait(l);
    }
}

static inline void gb_spin_unlock(struct gb_spin_lock * l) { atomic_store_explicit(&l->held, 0, memory_order_release); }

// A unique number of the calling thread, never 0. A child keeps it after a fork.
uint32_t gb_thread_number(void);

// For fields that are plain ones for C programs, although one thread may read them while another one
// writes them. Each access is a single aligned one. A reader with ACQUIRE of a value written with
// RELEASE also sees all earlier writes. Setting and clearing bits of a char is atomic.
#if defined(__GNUC__)
// gcc 12 for RISC-V needs a library for bytes, but has instructions for words.
#    if __GCC_ATOMIC_CHAR_LOCK_FREE < 2
typedef uint32_t gb_word __attribute__((may_alias));
static inline gb_word * gb_word_of(char * byte) { return (gb_word *) ((uintptr_t) byte & ~(uintptr_t) 3); }
static inline uint32_t gb_bits_in_word(const char * byte, uint32_t bits) {
    const unsigned place = (unsigned) ((uintptr_t) byte & 3);
    return bits << 8 * (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? 3 - place : place);
}
#        define GB_SET_BITS(field, bits)                                                               \
    ((void) __atomic_fetch_or(gb_word_of(&(field)), gb_bits_in_word(&(field), (unsigned char) (bits)), \
        __ATOMIC_RELAXED))
#        define GB_CLEAR_BITS(field, bits)                                                               \
    ((void) __atomic_fetch_and(gb_word_of(&(field)), ~gb_bits_in_word(&(field), (unsigned char) (bits)), \
        __ATOMIC_RELAXED))
#    else
#        define GB_SET_BITS(field, bits) ((void) __atomic_fetch_or(&(field), (bits), __ATOMIC_RELAXED))
#        define GB_CLEAR_BITS(field, bits) ((void) __atomic_fetch_and(&(field), ~(bits), __ATOMIC_RELAXED))
#    endif
#    define GB_READ_RELAXED(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)
#    define GB_WRITE_RELAXED(field, value) __atomic_store_n(&(field), value, __ATOMIC_RELAXED)
#    define GB_READ_ACQUIRE(field) __atomic_load_n(&(field), __ATOMIC_ACQUIRE)
#    define GB_WRITE_RELEASE(field, value) __atomic_store_n(&(field), value, __ATOMIC_RELEASE)
#else
#    define GB_READ_RELAXED(field) (field)
#    define GB_WRITE_RELAXED(field, value) ((field) = (value))
#    define GB_READ_ACQUIRE(field) (field)
#    define GB_WRITE_RELEASE(field, value) ((field) = (value))
#    define GB_SET_BITS(field, bits) ((field) |= (bits))
#    define GB_CLEAR_BITS(field, bits) ((field) &= ~(bits))
#endif

void gb_thread_yield(void);
void gb_sleep_us(int64_t us);

// A hint to the processor inside a spin loop.
static inline void gb_cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif // GB_BASE_THREAD_H
