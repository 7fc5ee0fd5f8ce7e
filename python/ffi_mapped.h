// ffi_mapped.h - mapped files that may shrink, for the Python package: thin names for c/src/base/mapped.h, which says how it works.
#ifndef GBPY_FFI_MAPPED_H
#define GBPY_FFI_MAPPED_H

#include "base/mapped.h"

// cdef: begin

static inline void * gbpy_mapped_watch(const void * data, size_t size, uint64_t offset, bool writable, const char * path);
static inline void   gbpy_mapped_forget(void * watch);
static inline void   gbpy_mapped_guard(bool enter); // entering and leaving, by the same thread
static inline bool   gbpy_mapped_any(void);
static inline int    gbpy_mapped_check(const void * data); // a status: has the file shrunk that this byte is of, if it is of a known one?

// cdef: end

static inline void * gbpy_mapped_watch(const void * data, size_t size, uint64_t offset, bool writable, const char * path) {
    return gb_mapped_watch(data, size, offset, writable, path);
}

static inline void gbpy_mapped_forget(void * watch) { gb_mapped_forget((struct gb_mapped *) watch); }

static inline void gbpy_mapped_guard(bool enter) {
    if (enter) {
        gb_mapped_enter();
    } else {
        gb_mapped_leave();
    }
}

static inline bool gbpy_mapped_any(void) { return gb_mapped_any(); }

static inline int gbpy_mapped_check(const void * data) { return gb_mapped_check_at("reading", data); }

#endif // GBPY_FFI_MAPPED_H
