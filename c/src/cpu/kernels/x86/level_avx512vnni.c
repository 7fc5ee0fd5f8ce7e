// level_avx512vnni.c - the level for AVX-512 with VNNI and VBMI; compiled with the flags that cmake/levels.cmake gives
// it.
#include "vec_avx512.h"

#define LEVEL_KERNELS gb_kernels_avx512vnni
#include "cpu/kernels/level.tpl.h"
