// level_dotprod.c - the level for arm64 with dot products of signed bytes; compiled with the flags that
// cmake/levels.cmake gives it.
#include "vec_neon.h"

#define LEVEL_KERNELS gb_kernels_dotprod
#include "cpu/kernels/level.tpl.h"
