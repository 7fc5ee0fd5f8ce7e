// self_check.h - checks whether a level was compiled so that it computes the right numbers.
#ifndef GB_CPU_KERNELS_SELF_CHECK_H
#define GB_CPU_KERNELS_SELF_CHECK_H

#include "cpu/kernels/kernels.h"

// Computes a few values with the level's kernels, which takes about a microsecond. Returns false
// and reports the failure if a value is wrong. The floating-point state of the calling thread does
// not matter and does not change.
bool gb_self_check(const struct gb_level * level);

#endif // GB_CPU_KERNELS_SELF_CHECK_H
