// current.h - what the calling thread works for: the computation (its run), and whoever may want it to give up (its
// poll).
//
// Both belong to the thread. The run goes along to other threads that work for the same computation: a pool sets it on
// its workers, a simulated device on the thread of its queue. The poll stays: only the thread that set it asks it.
#ifndef GB_BASE_CURRENT_H
#define GB_BASE_CURRENT_H

#include <stdbool.h>

#include "ggml.h"

#define GB_POLL_NS 20000000 // how often a long wait asks
// copied at once; while the system gives fresh memory this takes tens of milliseconds
#define GB_POLL_BYTES ((size_t) 8 << 20)

// Long waits and long work of this thread ask poll(data) about every GB_POLL_NS, with no lock held; true: give up as
// soon as possible. NULL: nobody is asked. A poll that itself waits here is not asked again meanwhile.
typedef bool (*gb_poll_fn)(void * data);
void       gb_set_poll(gb_poll_fn poll, void * data);
gb_poll_fn gb_get_poll(void ** data); // what is set, so that it can be put back; data may be NULL
bool       gb_poll(void);             // asks now; false without a poll
bool       gb_poll_is_due(void);      // there is a poll, which was not asked for GB_POLL_NS

// For long work, between two pieces of it, each some microseconds to milliseconds long: asks if that is due. ABORTED,
// left as the thread's failure, but not logged: give up.
enum ggml_status gb_go_on(void);

// Sets `size` bytes to `value`, in pieces of GB_POLL_BYTES, and asks between them.
enum ggml_status gb_fill(void * memory, int value, size_t size);

// A name for the computation that this thread works for, of no meaning here; NULL: none.
void   gb_set_run(void * run);
void * gb_run(void);

#endif // GB_BASE_CURRENT_H
