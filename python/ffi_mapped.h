// ffi_mapped.h - mapped files that may shrink, for the Python package: forwards to c/src/base/mapped.h.
#ifndef GBPY_FFI_MAPPED_H
#define GBPY_FFI_MAPPED_H

#include "extension.h"

// cdef: begin

struct gbpy_watch { // made empty, with gbpy_mapped_forget as its destructor
    void * mapped;
};

// made empty, with gbpy_mapped_leave as its destructor
struct gbpy_guard {
    const void * thread; // the thread that has entered; NULL: none
};

static inline bool gbpy_mapped_watch(struct gbpy_watch * watch, const void * data, size_t size, uint64_t offset,
    bool writable, const char * path);
static inline void gbpy_mapped_forget(struct gbpy_watch * watch);
static inline void gbpy_mapped_enter(struct gbpy_guard * guard);
static inline void gbpy_mapped_leave(struct gbpy_guard * guard); // does nothing unless this thread has entered
static inline bool gbpy_mapped_any(void);
// Returns a failure if the byte belongs to a known file that has shrunk.
static inline int gbpy_mapped_check(const void * data);

// cdef: end

static inline bool gbpy_mapped_watch(struct gbpy_watch * watch, const void * data, size_t size, uint64_t offset,
    bool writable, const char * path) {
    watch->mapped = gb_mapped_watch(data, size, offset, writable, path);
    return watch->mapped != NULL;
}

static inline void gbpy_mapped_forget(struct gbpy_watch * watch) {
    gb_mapped_forget((struct gb_mapped *) watch->mapped);
    watch->mapped = NULL;
}

static _Thread_local char gbpy_mapped_thread; // its address identifies the thread

static inline void gbpy_mapped_enter(struct gbpy_guard * guard) {
    gb_mapped_enter();
    guard->thread = &gbpy_mapped_thread;
}

static inline void gbpy_mapped_leave(struct gbpy_guard * guard) {
    if (guard->thread == &gbpy_mapped_thread) {
        gb_mapped_leave();
        guard->thread = NULL;
    }
}

static inline bool gbpy_mapped_any(void) { return gb_mapped_any(); }

static inline int gbpy_mapped_check(const void * data) { return gb_mapped_check_at("reading", data); }

#endif // GBPY_FFI_MAPPED_H
