// level_i8mm.c - the level for arm64 with products of matrices of bytes; compiled with the flags that
// cmake/levels.cmake gives it.
#include "vec_neon.h"

#define LEVEL_KERNELS gb_kernels_i8mm
#include "cpu/kernels/level.tpl.h"
