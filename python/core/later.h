// later.h - exceptions of functions that C calls where nobody could raise them: of log functions, which any call of C
// may call, and of signal handlers whose interrupt came too late to end a call.
//
// The first one is kept, and raised on Python's main thread as soon as that is back in Python, as if a signal handler
// had raised it. So callers of C need not look whether something was logged.
#ifndef GBPY_LATER_H
#define GBPY_LATER_H

#include <stdint.h>

// cdef: begin

void gbpy_raise_later(uintptr_t error); // an exception (its id). By the function that C calls, before it returns to C

// What the poll of signals raised (an exception's id). The call of C that was interrupted says so by its status; if it
// went to its end all the same, this is raised as soon as C has returned.
void gbpy_raise_interrupt_later(uintptr_t error);

// cdef: end

void gbpy_arm_interrupt(void);       // the same for the interrupt
void gbpy_arm_interrupt_again(void); // behind functions of bounded devices, in which it is not raised
void gbpy_arm(void);                 // in C, when Python has returned: what was kept is raised from now on

#endif // GBPY_LATER_H
