// processor.h - on which processor a thread runs, and how it gets to another one. Only Linux tells.
#ifndef GB_BASE_PROCESSOR_H
#define GB_BASE_PROCESSOR_H

#include <stdbool.h>

// The number of the processor that the calling thread is on; -1: the system does not tell.
int gb_this_processor(void);

// True: fewer threads than the machine has processors want to run at this moment, besides the calling one. So one of
// them is idle, if not always one that the calling thread may use. False: not so, or the system does not tell. It takes
// some microseconds.
bool gb_has_idle_processor(void);

// Moves the calling thread from `processor` to another one that its affinity mask allows, within some ten microseconds,
// in which no other thread should set that mask; afterwards it is what it was. False, and nothing has changed: the mask
// allows no other processor, or the system has refused.
bool gb_leave_processor(int processor);

#endif // GB_BASE_PROCESSOR_H
