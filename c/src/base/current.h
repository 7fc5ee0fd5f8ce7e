// current.h - what the calling thread works for: its run (the computation) and its poll (the function that may ask it
// to give up).
//
// Both are thread-local. The run is passed on to the other threads that work for the same computation: a pool sets it
// on its workers, a simulated device on the thread of its queue. The poll is not passed on: only the thread that set it
// calls it.
#ifndef GB_BASE_CURRENT_H
#define GB_BASE_CURRENT_H

#include <stdbool.h>

#include "ggml.h"

// A thread that waits or works for long calls its poll about this often.
#define GB_POLL_NS 20000000
// Bytes that are copied or filled between two polls. The first touch of that much fresh memory takes the system tens of
// milliseconds.
#define GB_POLL_BYTES ((size_t) 8 << 20)

// The poll of this thread. Long waits and long work call poll(data) about every GB_POLL_NS, with no lock held; a true
// answer asks them to give up as soon as possible. NULL means that there is no poll. While a poll runs the thread has
// none, so a poll that waits itself is not called again.
typedef bool (*gb_poll_fn)(void * data);
void gb_set_poll(gb_poll_fn poll, void * data);
// The poll that is set, and its data if `data` is not NULL, so that a caller can put it back.
gb_poll_fn gb_get_poll(void ** data);
// Calls the poll now; false without one.
bool gb_poll(void);
// True if there is a poll that was last called GB_POLL_NS ago or earlier.
bool gb_poll_is_due(void);

// Long work calls this between two pieces of some microseconds to milliseconds; it calls the poll when that is due.
// GGML_STATUS_ABORTED asks the caller to give up; it is the thread's last failure then, but nothing is logged.
enum ggml_status gb_go_on(void);

// Sets `size` bytes to `value` in pieces of GB_POLL_BYTES, with gb_go_on between them. ABORTED leaves the rest as it
// was.
enum ggml_status gb_fill(void * memory, int value, size_t size);

// A handle of the computation that this thread works for; this file never looks into it. NULL: none.
void gb_set_run(void * run);
void * gb_run(void);

#endif // GB_BASE_CURRENT_H
