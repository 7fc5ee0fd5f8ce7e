// later.h - exceptions that cannot be raised at once: from log functions, which any call of C may call, and from
// signal handlers whose interrupt came too late to end a call.
//
// The first exception is kept. Python raises it on its main thread as soon as C has returned, as if a signal handler
// had raised it. So callers of C need not check whether something was logged.
#ifndef GBPY_LATER_H
#define GBPY_LATER_H

#include <stdint.h>

// cdef: begin

void gbpy_raise_later(uintptr_t error); // an exception (its id); call it in a Python function that C has called

// Keeps an exception (its id) of the signal poll. An interrupted call of C reports it by its status. If the call
// completed all the same, Python raises the exception after C has returned.
void gbpy_raise_interrupt_later(uintptr_t error);

// cdef: end

void gbpy_arm_interrupt(void); // asks Python to raise the interrupt
void gbpy_arm_interrupt_again(void); // after functions of bounded devices, in which it is not raised
void gbpy_arm(void); // asks Python to raise the exception of a log function, after that returned

#endif // GBPY_LATER_H
