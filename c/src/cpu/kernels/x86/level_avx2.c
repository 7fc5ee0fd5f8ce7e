// level_avx2.c - the level for AVX2 with FMA and F16C; compiled with the flags that cmake/levels.cmake gives it.
#include "vec_avx2.h"

#define LEVEL_KERNELS gb_kernels_avx2
#include "cpu/kernels/level.tpl.h"
