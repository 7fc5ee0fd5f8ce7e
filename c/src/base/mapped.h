// mapped.h - mapped files that may shrink while the library reads them.
//
// An access to a page that the file no longer has raises SIGBUS. The code that maps a file
// registers a watch for the mapping (gb_mapped_watch). The library reads mapped memory only between
// gb_mapped_enter and gb_mapped_leave. There, a missing page of a watched mapping and all later
// pages become zeros, the watch is marked as damaged, and reading continues. Afterwards
// gb_mapped_check fails for the bytes that were read. It also fails if the file has become shorter
// than its mapping, because bytes missing within the last page raise no signal. Any other SIGBUS
// goes to the handler that was installed before ours, so a program that reads a mapping outside of
// the library still gets its signal. Each outermost enter makes sure that our handler is the first
// one.
//
// The threads of this library stay between enter and leave all the time (base/thread.c).
//
// Invariant: the handler reads only the range of a watch and its mark. Both are atomic, and watches
// are never freed.
#ifndef GB_BASE_MAPPED_H
#define GB_BASE_MAPPED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ggml.h"

struct gb_mapped;

// Registers a mapping: the memory [data, data + size) shows the bytes [offset, offset + size) of a
// file. `path` (copied; NULL: not known) is used in messages, and to check the file's size while it
// names the same file. Returns NULL and reports the failure if memory runs out.
struct gb_mapped * gb_mapped_watch(const void * data, size_t size, uint64_t offset, bool writable, const char * path);
// Ends the watch. Call it before you unmap the memory. NULL is allowed.
void gb_mapped_forget(struct gb_mapped * mapped);

// The calling thread begins or ends reading. Pairs may be nested.
void gb_mapped_enter(void);
void gb_mapped_leave(void);

extern atomic_int gb_mapped_count; // of watches

// True if a watch exists. Without a watch the functions below have nothing to do.
static inline bool gb_mapped_any(void) { return atomic_load_explicit(&gb_mapped_count, memory_order_relaxed) > 0; }

// The watch whose range contains this byte, or NULL.
struct gb_mapped * gb_mapped_find(const void * data);

// Finds the file that holds the bytes [data, data + size): its path (the caller frees it with
// gb_free) and the offset of the first byte. False: no file with a known path holds them, or,
// reported, there is no memory. The caller keeps the mapping.
bool gb_mapped_place(const void * data, size_t size, char ** path, uint64_t * offset);

// IO_ERROR, reported for the function `func`, if the file has shrunk or pages of it were missing.
enum ggml_status gb_mapped_check(const char * func, const struct gb_mapped * mapped);

// The same for the watch whose range contains the first byte of `data`. Succeeds if there is none.
static inline enum ggml_status gb_mapped_check_at(const char * func, const void * data) {
    struct gb_mapped * mapped = gb_mapped_any() ? gb_mapped_find(data) : NULL;
    return mapped ? gb_mapped_check(func, mapped) : GGML_STATUS_SUCCESS;
}

#endif // GB_BASE_MAPPED_H
