// level_avx512.c - the level for AVX-512 F, BW, DQ, VL; compiled with the flags that cmake/levels.cmake gives it.
#include "vec_avx512.h"

#define LEVEL_KERNELS gb_kernels_avx512
#include "cpu/kernels/level.tpl.h"
