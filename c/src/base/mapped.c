// mapped.c - the list of watches over mapped files, and the SIGBUS handler that reads it.
//
// A thread claims a watch by moving its `state` from FREE to TAKEN. From then on only this thread
// writes the other members. It writes the end of the range last, because a range without an end
// holds no address. The handler calls only what POSIX allows in a signal handler, and mmap, which
// is a plain system call.
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE
#endif
#include "base/mapped.h"

#include "base/mem.h"
#include "base/status.h"

atomic_int gb_mapped_count;

#ifdef _WIN32  // on Windows a mapped file cannot be shortened

struct gb_mapped {
    char unused;
};

struct gb_mapped * gb_mapped_watch(const void * data, size_t size, uint64_t offset, bool writable, const char * path) {
    (void) data, (void) size, (void) offset, (void) writable, (void) path;
    static struct gb_mapped none;
    return &none;
}
void gb_mapped_forget(struct gb_mapped * mapped) { (void) mapped; }
void gb_mapped_enter(void) {}
void gb_mapped_leave(void) {}
struct gb_mapped * gb_mapped_find(const void * data) {
    (void) data;
    return NULL;
}
bool gb_mapped_place(const void * data, size_t size, char ** path, uint64_t * offset) {
    (void) data, (void) size, (void) path, (void) offset;
    return false;
}
enum ggml_status gb_mapped_check(const char * func, const struct gb_mapped * mapped) {
    (void) func, (void) mapped;
    return GGML_STATUS_SUCCESS;
}

#else

#    include <errno.h>
#    include <signal.h>
#    include <string.h>
#    include <sys/mman.h>
#    include <sys/stat.h>

#    include "base/env.h"
#    include "base/thread.h"

#    ifndef MAP_ANONYMOUS
#        define MAP_ANONYMOUS MAP_ANON
#    endif

enum { FREE, TAKEN };
enum { FIRST = 64 }; // watches that need no memory of their own

struct gb_mapped {
    atomic_int state;
    atomic_uintptr_t begin, end;  // end 0: empty
    atomic_bool damaged;  // pages were missing, and are zeros now
    bool writable;
    bool has_file; // dev, ino and reach are valid: the path named a regular file
    dev_t dev;
    ino_t ino;
    uint64_t reach;          // bytes that the file must have at least
    char * path;             // owned; NULL: not known
    struct gb_mapped * next; // in the list `more`
};

static struct gb_mapped first[FIRST];
static atomic_int used; // number of watches of `first` that were ever taken
static struct gb_mapped * _Atomic more;

static _Thread_local volatile int depth; // number of times that this thread has entered

// The next watch, taken or free: first those of the array `first`, then those of the list `more`.
// NULL after the last.
static struct gb_mapped * after(struct gb_mapped * m) {
    if (m < first || m >= first + FIRST) {
        return m->next;
    }
    return m + 1 < first + atomic_load_explicit(&used, memory_order_acquire) ? m + 1 : atomic_load(&more);
}

// True if the watch covers the address. `end` is read twice, because the owner may release the
// watch between the two reads. A released watch has the end 0.
static bool holds(struct gb_mapped * m, uintptr_t at) {
    const uintptr_t end = atomic_load_explicit(&m->end, memory_order_acquire),
                    begin = atomic_load_explicit(&m->begin, memory_order_relaxed);
    return at >= begin && at < end && atomic_load_explicit(&m->end, memory_order_acquire) == end;
}

// --------------------------------------------------------------------------------------------------------- the handler

static struct sigaction before;  // the handler for faults that are not ours
static gb_mutex order = GB_MUTEX_INIT; // guards writing to `before`
static uintptr_t page;                 // bytes; a power of two

static _Thread_local volatile sig_atomic_t passed;  // this thread has passed a fault to another handler

// Passes a signal to the handler that was installed before ours. That handler may raise the signal
// again for its own predecessor, which may be our handler. So a raised signal (si_code <= 0) after
// a passed fault gets the default action, and the two handlers cannot call each other without end.
static void pass_on(int number, siginfo_t * info, void * context) {
    const bool again = passed && info->si_code <= 0;
    passed = info->si_code > 0;
    if (again) {
        signal(number, SIG_DFL);
        raise(number);
    } else if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(number);
    } else if (before.sa_handler == SIG_DFL || info->si_code > 0) {
        signal(number, SIG_DFL);  // the access runs again and ends the process, as it would without us
        if (info->si_code <= 0) {
            raise(number);  // the signal was sent, so no access will raise it again
        }
    }
}

// Maps zeros over the missing page and all later pages. False: no watch covers the address, so the
// fault is not ours.
static bool mend(uintptr_t at) {
    for (struct gb_mapped * m = first; m; m = after(m)) {
        if (holds(m, at)) {
            const uintptr_t from = at & ~(page - 1), to = (atomic_load(&m->end) + page - 1) & ~(page - 1);
            const int access = PROT_READ | (m->writable ? PROT_WRITE : 0);
            atomic_store(&m->damaged, true);
            return mmap((void *) from, to - from, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
        }
    }
    return false;
}

// Faults outside of enter and leave belong to the program, even those on a watched mapping.
static void on_bus_error(int number, siginfo_t * info, void * context) {
    const int kept = errno;
    if (depth == 0 || info->si_code != BUS_ADRERR || !mend((uintptr_t) info->si_addr)) {
        pass_on(number, info, context);
    }
    errno = kept;
}

// Makes our handler the first one. A handler that was installed later, such as Python's
// faulthandler, would end the process at a missing page.
static void make_first(void) {
    struct sigaction found, ours = { .sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART };
    if (sigaction(SIGBUS, NULL, &found) != 0 || ((found.sa_flags & SA_SIGINFO) && found.sa_sigaction == on_bus_error)) {
        return;
    }
    sigemptyset(&ours.sa_mask);
    gb_mutex_lock(&order);
    before = found;
    sigaction(SIGBUS, &ours, NULL);
    gb_mutex_unlock(&order);
}

// Runs in a child after a fork: another thread of the parent may have held the mutex.
static void free_order(void) { order = (gb_mutex) GB_MUTEX_INIT; }

static void prepare(void) {
    page = (uintptr_t) gb_page_size();
    pthread_atfork(NULL, NULL, free_order);
}

// ------------------------------------------------------------------------------------------------------------- watches

// Takes a free watch. NULL if memory runs out. New watches are pushed onto the list and never
// freed, because the handler may read the list at any time.
static struct gb_mapped * take(void) {
    for (int i = 0; i < FIRST; i++) {
        int expected = FREE, n = atomic_load(&used);
        if (atomic_compare_exchange_strong(&first[i].state, &expected, TAKEN)) {
            while (n <= i && !atomic_compare_exchange_weak(&used, &n, i + 1)) {
            }
            return &first[i];
        }
    }
    for (struct gb_mapped * m = atomic_load(&more); m; m = m->next) {
        int expected = FREE;
        if (atomic_compare_exchange_strong(&m->state, &expected, TAKEN)) {
            return m;
        }
    }
    struct gb_mapped * made = GB_NEW(struct gb_mapped);
    if (made) {
        atomic_store(&made->state, TAKEN);
        made->next = atomic_load(&more);
        while (!atomic_compare_exchange_weak(&more, &made->next, made)) {
        }
    }
    return made;
}

struct gb_mapped * gb_mapped_watch(const void * data, size_t size, uint64_t offset, bool writable, const char * path) {
    static gb_once once = GB_ONCE_INIT;
    gb_call_once(&once, prepare);
    char * copy = path ? gb_strdup(path) : NULL;
    struct gb_mapped * m = path && copy == NULL ? NULL : take();
    if (m == NULL) {
        gb_free(copy);
        return NULL;
    }
    // The end is written last, with release, so a handler that sees it also sees the rest.
    struct stat info;
    m->path = copy;
    m->writable = writable;
    m->reach = offset + size;
    m->has_file = copy && stat(copy, &info) == 0 && S_ISREG(info.st_mode);
    m->dev = m->has_file ? info.st_dev : 0;
    m->ino = m->has_file ? info.st_ino : 0;
    atomic_store(&m->damaged, false);
    atomic_store(&m->begin, (uintptr_t) data);
    atomic_store_explicit(&m->end, (uintptr_t) data + size, memory_order_release);
    atomic_fetch_add(&gb_mapped_count, 1);
    make_first();
    return m;
}

// Clears the end first, so the handler stops using the watch before its owner reuses the members.
void gb_mapped_forget(struct gb_mapped * m) {
    if (m) {
        atomic_store(&m->end, 0);
        atomic_fetch_sub(&gb_mapped_count, 1);
        gb_free(m->path);
        m->path = NULL;
        atomic_store(&m->state, FREE);
    }
}

void gb_mapped_enter(void) {
    if (depth++ == 0 && gb_mapped_any()) {
        make_first();
    }
}

void gb_mapped_leave(void) { depth--; }

struct gb_mapped * gb_mapped_find(const void * data) {
    for (struct gb_mapped * m = gb_mapped_any() ? first : NULL; m; m = after(m)) {
        if (holds(m, (uintptr_t) data)) {
            return m;
        }
    }
    return NULL;
}

bool gb_mapped_place(const void * data, size_t size, char ** path, uint64_t * offset) {
    const struct gb_mapped * m = gb_mapped_find(data);
    if (m == NULL || !m->has_file) {
        return false;
    }
    const uintptr_t left = atomic_load(&m->end) - (uintptr_t) data; // to the end of the mapping
    *offset = m->reach - left;
    return size <= left && (*path = gb_strdup(m->path)) != NULL;
}

// Reads the size only while the path still names the same file. The size of another file under this
// path does not matter.
enum ggml_status gb_mapped_check(const char * func, const struct gb_mapped * m) {
    struct stat info;
    const char * name = m->path ? m->path : "a file";
    if (m->has_file && stat(m->path, &info) == 0 && info.st_dev == m->dev && info.st_ino == m->ino &&
        (uint64_t) info.st_size < m->reach) {
        return gb_fail(GGML_STATUS_IO_ERROR, "%s: %s shrank while it was mapped: it has %llu bytes, needs %llu", func,
            name, (unsigned long long) info.st_size, (unsigned long long) m->reach);
    }
    GB_FAIL_IF(atomic_load(&m->damaged), GGML_STATUS_IO_ERROR,
        "%s: %s shrank, or its disk failed, while it was mapped: part of its data is lost", func, name);
    return GGML_STATUS_SUCCESS;
}

#endif
