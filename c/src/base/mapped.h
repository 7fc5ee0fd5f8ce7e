// mapped.h - files that are mapped and may shrink while we read them.
//
// An access to a page that the file has lost raises SIGBUS. Whoever maps a file makes the mapping known
// (gb_mapped_watch). Our own reading stands between gb_mapped_enter and gb_mapped_leave: there, a lost page of a known
// mapping and all behind it become zeros, the mapping is marked as damaged, and the reading goes on; afterwards
// gb_mapped_check fails for what was read from it. It also fails where the file has become shorter than what is mapped,
// which no signal tells of the last page that is left. Any other SIGBUS goes to the handler that was there before ours
// (whoever comes first is asked at each outermost enter), so a program that reads a mapping by itself still gets it.
//
// The threads of this library are inside for as long as they live (base/thread.c).
//
// Invariant: only the range and the mark of a watch are read by the handler; both are atomic, and watches are never
// freed.
#ifndef GB_BASE_MAPPED_H
#define GB_BASE_MAPPED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ggml.h"

struct gb_mapped;

// Memory [data, data + size) shows bytes [offset, offset + size) of a file. path: for messages, and to ask for the size
// of the file, if it is that file still; NULL: not known. NULL is returned, and reported, when memory is out.
struct gb_mapped * gb_mapped_watch(const void * data, size_t size, uint64_t offset, bool writable, const char * path);
void               gb_mapped_forget(struct gb_mapped * mapped); // before it is unmapped; NULL is fine

void gb_mapped_enter(void); // pairs of enter and leave may be nested
void gb_mapped_leave(void);

extern atomic_int gb_mapped_count; // of watches

// Is there any mapping to look after? Else nothing below has anything to do.
static inline bool gb_mapped_any(void) { return atomic_load_explicit(&gb_mapped_count, memory_order_relaxed) > 0; }

// The watch that a byte belongs to; NULL: none.
struct gb_mapped * gb_mapped_find(const void * data);

// IO_ERROR if the file has shrunk.
enum ggml_status gb_mapped_check(const char * func, const struct gb_mapped * mapped);

// The same for the mapping that [data, data + size) begins in, if it is one.
static inline enum ggml_status gb_mapped_check_at(const char * func, const void * data) {
    struct gb_mapped * mapped = gb_mapped_any() ? gb_mapped_find(data) : NULL;
    return mapped ? gb_mapped_check(func, mapped) : GGML_STATUS_SUCCESS;
}

#endif // GB_BASE_MAPPED_H
