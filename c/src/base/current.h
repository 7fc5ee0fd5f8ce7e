// current.h - the calling thread's run (its computation) and its poll (a function that may ask it
// to stop).
//
// Both are thread-local. The other threads of a computation get the same run: a pool sets it on its
// workers, a simulated device on the thread of its queue. Only the thread that set a poll calls it.
#ifndef GB_BASE_CURRENT_H
#define GB_BASE_CURRENT_H

#include <stdbool.h>

#include "ggml.h"

// A thread that waits or works for long calls its poll about this often.
#define GB_POLL_NS 20000000
// Bytes that are copied or filled between two polls. The system takes tens of milliseconds for the
// first touch of so much memory.
#define GB_POLL_BYTES ((size_t) 8 << 20)

// Sets the poll of this thread; NULL removes it. Long waits and long work call poll(data) about
// every GB_POLL_NS, with no lock held. If it returns true, they stop as soon as possible. While a
// poll runs, the thread has no poll. So a poll that waits is not called again.
typedef bool (*gb_poll_fn)(void * data);
void gb_set_poll(gb_poll_fn poll, void * data);
// The current poll, and its data if `data` is not NULL, so that a caller can restore it.
gb_poll_fn gb_get_poll(void ** data);
// Calls the poll now. False if the thread has no poll.
bool gb_poll(void);
// True if the thread has a poll and last called it at least GB_POLL_NS ago.
bool gb_poll_is_due(void);

// Long work calls this after every few microseconds to milliseconds of work. It calls the poll if
// that is due. GGML_STATUS_ABORTED asks the caller to stop. It is then the thread's last failure,
// and is not logged.
enum ggml_status gb_check_poll(void);

#ifdef GB_TEST_HOOKS
// The thread's poll is due at each check, so a test can count the checks.
void gb_test_poll_always(bool always);
#endif

// Sets `size` bytes to `value` in pieces of GB_POLL_BYTES, with gb_check_poll between them. ABORTED
// leaves the rest unchanged.
enum ggml_status gb_fill(void * memory, int value, size_t size);

// Sets an opaque handle of the computation that this thread works for. NULL: none.
void gb_set_run(void * run);
void * gb_run(void);

#endif // GB_BASE_CURRENT_H
