// fault_text.h - C's message for a fault (base/fault.h). It contains dtypes, which base does not
// know.
#ifndef GB_TENSOR_FAULT_TEXT_H
#define GB_TENSOR_FAULT_TEXT_H

#include "base/fault.h"

// Writes the message for callers in C, cut to `size` bytes; returns out.
const char * gb_fault_write(const struct gb_fault * fault, char * out, size_t size);

#endif // GB_TENSOR_FAULT_TEXT_H
