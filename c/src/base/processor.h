// processor.h - the processor that a thread runs on, and moving a thread to another one. Linux
// only.
#ifndef GB_BASE_PROCESSOR_H
#define GB_BASE_PROCESSOR_H

#include <stdbool.h>

// The number of the calling thread's processor. -1: unknown.
int gb_this_processor(void);

// True if fewer threads than processors are ready to run now, not counting the calling thread. Then
// a processor is idle, although the calling thread's mask may exclude it. False also if unknown.
// Takes some microseconds.
bool gb_has_idle_processor(void);

// Moves the calling thread from `processor` to another one that its affinity mask allows. This
// takes some ten microseconds, during which no other thread should set that mask. The mask stays
// the same. False, with no change: the mask allows no other processor, or the system refused.
bool gb_leave_processor(int processor);

#endif // GB_BASE_PROCESSOR_H
